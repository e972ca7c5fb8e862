#include "server/api/embedding_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/json.h"
#include "server/api/api.h"
#include "server/api/body.h"
#include "server/api/caller.h"
#include "server/api/embeddings.h"
#include "server/api/tally.h"
#include "server/auth/admission.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/server.h"

#define ANSWER_BYTES_MAX (1u << 30)
#define TEXT_FACTOR 3     /* a text of the answer may have more escapes than in the request */
#define AROUND_BYTES 8192 /* around the list; the model's name has at most 4096 bytes */

static struct embedding_call *call_create(struct server *srv, struct http_exchange *x,
                                          const struct embedding_work *work)
{
    struct embedding_call *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->srv = srv;
    c->work = work;
    c->tenant = caller_account(x)->tenant;
    c->created_s = (int64_t)time(NULL);
    snprintf(c->id, sizeof c->id, "%s-%s", work->id_prefix, http_id(x));
    atomic_init(&c->refs, 1);
    buf_init(&c->answer, ANSWER_BYTES_MAX);
    buf_init(&c->why, BUF_WHY_MAX);
    return c;
}

static void call_unref(struct embedding_call *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    embedding_request_fini(&c->request);
    buf_fini(&c->answer);
    buf_fini(&c->why);
    free(c);
}

/* --- the job --- */

enum status embedding_call_next(struct embedding_call *c, uint32_t i, const uint32_t **ids,
                                uint32_t *n)
{
    *ids = embedding_request_ids(&c->request, i, n);
    return atomic_load(&c->is_gone) ? ERR_CANCELLED : OK;
}

void embedding_call_count(struct embedding_call *c, uint32_t n)
{
    tally_add(c->srv->tally, TALLY_EMBEDDED_INPUTS, 1);
    tally_add(c->srv->tally, TALLY_EMBEDDED_TOKENS, n);
    atomic_fetch_add(&c->tenant->n_prompt_tokens, n);
}

void embedding_call_write_head(const struct embedding_call *c, struct writer *w)
{
    write_puts(w, "{\"id\":");
    write_json(w, c->id, strlen(c->id));
    write_format(w, ",\"object\":\"list\",\"created\":%" PRId64 ",\"model\":", c->created_s);
    write_json(w, c->request.model, strlen(c->request.model));
}

enum status embedding_call_end(struct embedding_call *c, const struct writer *w)
{
    return w->status == OK ? OK
                           : buf_why(&c->why, w->status, "the answer does not fit into memory");
}

static void run(void *arg)
{
    struct embedding_call *c = arg;

    c->status = c->work->compute(c);
    atomic_store(&c->is_over, true);
    http_wake(c->waker); /* a late wake-up is harmless: http_slot.h */
    call_unref(c);
}

/* --- the exchange --- */

static enum http_next on_step(void *ctx, struct http_exchange *x)
{
    struct embedding_call *c = ctx;
    bool is_over = atomic_load(&c->is_over);

    if (!is_over && !atomic_load(&c->is_gone))
        return HTTP_WAIT;
    if (!is_over || c->status == ERR_CANCELLED)
        error_reply(x, ERR_UNAVAILABLE, NULL, "the server is shutting down");
    else if (c->status == OK)
        http_reply(x, 200, "application/json", &c->answer);
    else
        error_reply(x, c->status, NULL, buf_str(&c->why));
    return HTTP_DONE;
}

static void on_gone(void *ctx)
{
    atomic_store(&((struct embedding_call *)ctx)->is_gone, true);
}

static void on_close(void *ctx, int status)
{
    struct embedding_call *c = ctx;

    (void)status;
    on_gone(c);
    if (c->n_reserved > 0)
        embeddings_release(c->request.of, c->n_reserved);
    call_unref(c);
}

static const struct http_async async = {.step = on_step, .gone = on_gone, .close = on_close};

/* Reserve memory for the answer; false: an error was answered. */
static bool reserve(struct embedding_call *c, struct http_exchange *x)
{
    const struct embedding_request *r = &c->request;
    size_t texts = r->documents ? TEXT_FACTOR * http_body(x)->len : 0;
    size_t bytes = AROUND_BYTES + c->work->answer_bytes(r) + texts;

    if (!embeddings_reserve(r->of, bytes)) {
        error_reply(x, ERR_BUSY, NULL, "too many answers wait to be sent, try again later");
        return false;
    }
    c->n_reserved = bytes;
    return true;
}

/* Take the call over: once the exchange is deferred, on_close() drops its reference. */
static void start(struct embedding_call *c, struct http_exchange *x)
{
    uint32_t n_tokens = embedding_request_n_tokens(&c->request);

    if (!admission_prompt(caller_account(x), x, n_tokens)) {
        call_unref(c);
        return;
    }
    enum status s = http_defer(x, &async, c);
    if (s != OK) {
        error_reply(x, s, NULL, "the server is shutting down");
        call_unref(c);
        return;
    }
    if (!reserve(c, x))
        return;
    c->job = (struct http_job){run, c};
    c->waker = http_waker(x);
    atomic_fetch_add(&c->refs, 1);
    atomic_fetch_add(&c->tenant->n_requests, 1);
    s = embeddings_run(c->request.of, &c->job, http_client(x), n_tokens);
    if (s != OK) {
        error_reply(x, s, NULL, "too many requests wait for this model, try again");
        call_unref(c);
    }
}

static void reply_error(struct http_exchange *x, enum status s, const struct buf *why)
{
    if (s == ERR_TOO_LARGE)
        error_reply_too_long(x, buf_str(why));
    else
        error_reply(x, s, s == ERR_NOT_FOUND ? "model_not_found" : NULL, buf_str(why));
}

void embedding_call_serve(struct server *srv, struct http_exchange *x,
                          const struct embedding_work *work)
{
    struct json *body = body_read(x);
    struct embedding_call *c;

    if (!body)
        return; /* body_read() has answered */
    c = call_create(srv, x, work);
    enum status s = c ? work->read(&c->request, srv, body, &c->why) : ERR_NOMEM;
    js_unref(body);
    if (!c) {
        error_reply(x, s, NULL, "out of memory");
        return;
    }
    unknown_fields_report(&c->request.unknown, &srv->unknown_log, x);
    if (s == OK) {
        start(c, x);
    } else {
        reply_error(x, s, &c->why);
        call_unref(c);
    }
}
