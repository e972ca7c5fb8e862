#include "server/http/http_exchange.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/http/http_slot.h"

const char *http_id(const struct http_exchange *x)
{
    return x->id;
}

const char *http_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const struct http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

struct query_list {
    const char *name, **out;
    size_t n, n_max;
};

static enum MHD_Result add_query(void *arg, enum MHD_ValueKind kind, const char *key,
                                 const char *value)
{
    struct query_list *l = arg;

    (void)kind;
    if (strcmp(key, l->name) != 0)
        return MHD_YES;
    if (l->n < l->n_max)
        l->out[l->n] = value;
    l->n++;
    return MHD_YES;
}

size_t http_query_all(const struct http_exchange *x, const char *name, const char **out,
                      size_t n_max)
{
    struct query_list l = {name, out, 0, n_max};

    (void)MHD_get_connection_values(x->connection, MHD_GET_ARGUMENT_KIND, add_query, &l);
    return l.n;
}

bool http_has_query(const struct http_exchange *x)
{
    return MHD_get_connection_values(x->connection, MHD_GET_ARGUMENT_KIND, NULL, NULL) > 0;
}

const struct buf *http_body(const struct http_exchange *x)
{
    return &x->body;
}

void http_take_body(struct http_exchange *x, struct buf *out)
{
    *out = x->body;
    x->body = (struct buf){.max = out->max};
    x->body_taken = true;
}

bool http_replied(const struct http_exchange *x)
{
    return x->replied;
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body)
{
    if (!x->replied) {
        x->replied = true;
        x->status = status;
        x->content_type = content_type;
        if (body) {
            x->reply = *body;
            *body = (struct buf){.max = body->max};
        }
    } else if (body) {
        buf_fini(body);
    }
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    ASSERT(x->n_extra < N_EXTRA_HEADERS);
    struct extra_header *e = &x->extra[x->n_extra++];

    e->name = name;
    snprintf(e->value, sizeof e->value, "%s", value);
}

void http_set_stream_type(struct http_exchange *x, const char *content_type)
{
    x->content_type = content_type;
}

void http_set_caller(struct http_exchange *x, const char *key, const char *tenant)
{
    snprintf(x->key, sizeof x->key, "%s", key);
    snprintf(x->tenant, sizeof x->tenant, "%s", tenant);
}

void http_set_error(struct http_exchange *x, const char *code)
{
    if (!x->error)
        x->error = code;
}

void http_set_error_form(struct http_exchange *x, enum http_error_form form)
{
    x->error_form = form;
}

enum http_error_form http_error_form(const struct http_exchange *x)
{
    return x->error_form;
}

bool http_is_surplus(const struct http_exchange *x)
{
    return x->surplus;
}

void http_will_wait(struct http_exchange *x)
{
    x->will_wait = true;
}

void http_set_client(struct http_exchange *x, uint64_t client)
{
    x->client = client;
}

void *http_waker(struct http_exchange *x)
{
    return x->slot;
}

void http_wake(void *waker)
{
    slot_wake(waker);
}

void http_wake_at(struct http_exchange *x, uint64_t at_ns)
{
    slot_wake_at(x->slot, at_ns);
}

void http_keep(struct http_exchange *x, void *p, void (*free_kept)(void *p))
{
    ASSERT(!x->kept);
    x->kept = p;
    x->free_kept = free_kept;
}

void *http_kept(const struct http_exchange *x)
{
    return x->kept;
}

enum status http_defer(struct http_exchange *x, const struct http_async *async, void *ctx)
{
    ASSERT(!x->async && !x->replied);
    enum status s = slot_defer(x->slot, async->gone, ctx);
    if (s != OK)
        return s;
    x->async = async;
    x->ctx = ctx;
    return OK;
}
