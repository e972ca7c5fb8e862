/* api_abort.c - POST /abort_requests (vLLM) and /abort_request (SGLang): end calls by their ids. */
#include "server/api/api.h"
#include "base/json.h"
#include "server/api/body.h"
#include "server/api/caller.h"
#include "server/api/running.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define IDS_MAX 1024

struct wish {
    const struct json *ids; /* an array, or NULL */
    const char *prefix;     /* or NULL */
    bool all;
    bool is_whole; /* the prefix must be a whole id */
};

static enum status read_wish(struct wish *w, const struct json *body, struct buf *why)
{
    const char *id;
    char field[48];

    *w = (struct wish){.ids = js_get_set(body, "request_ids")};
    enum status s = js_get_str(body, "rid", &w->prefix, NULL, why);
    if (s == OK)
        s = js_get_bool(body, "abort_all", &w->all, why);
    if (s == OK && w->ids && !js_is(w->ids, JS_ARRAY))
        s = buf_why(why, ERR_INVALID, "request_ids: expected an array, got %s",
                    js_type_name(js_typeof(w->ids)));
    if (s == OK && js_len(w->ids) > IDS_MAX)
        s = buf_why(why, ERR_INVALID, "request_ids: %zu entries, at most %d are taken",
                    js_len(w->ids), IDS_MAX);
    for (size_t i = 0; s == OK && i < js_len(w->ids); i++) {
        snprintf(field, sizeof field, "request_ids[%zu]", i);
        s = js_read_cstr(js_at(w->ids, i), field, &id, why);
    }
    if (s == OK && w->prefix && !*w->prefix)
        s = buf_why(why, ERR_INVALID, "rid: must not be empty; abort_all ends all requests");
    if (s == OK && !w->ids && !w->prefix && !w->all)
        s = buf_why(why, ERR_INVALID, "request_ids: is required, or rid, or abort_all");
    return s;
}

/* Without keys all callers are one tenant. Those of other machines must know the ids. */
static enum status check_caller(struct wish *w, const struct server *srv, const struct account *a,
                                struct buf *why)
{
    if (auth_needs_key(srv->auth))
        return OK;
    enum status s = caller_check_admin(srv, a, why);
    w->is_whole = s != OK;
    if (s == OK || w->all)
        return s;
    buf_reset(why);
    return OK;
}

static uint32_t abort_calls(struct server *srv, const struct account *a, const struct wish *w)
{
    uint32_t n = 0;

    if (w->all)
        return running_abort(srv->running, a, NULL, false);
    if (w->prefix)
        n = running_abort(srv->running, a, w->prefix, !w->is_whole);
    for (size_t i = 0; i < js_len(w->ids); i++)
        n += running_abort(srv->running, a, js_string(js_at(w->ids, i), NULL), false);
    return n;
}

void api_abort(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct buf answer, why;
    struct writer w = {&answer, OK};
    struct wish wish;

    if (!body)
        return;
    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_wish(&wish, body, &why);
    if (s == OK)
        s = check_caller(&wish, srv, caller_account(x), &why);
    if (s == OK) {
        buf_init(&answer, 256);
        write_format(&w, "{\"object\":\"abort\",\"aborted\":%u}",
                     abort_calls(srv, caller_account(x), &wish));
        api_reply(x, &w);
    } else {
        error_reply(x, s, NULL, buf_str(&why));
    }
    js_unref(body);
    buf_fini(&why);
}
