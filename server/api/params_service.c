#include "server/api/params_service.h"

#include "server/http/http.h"
#include "server/http/request_id.h"

static enum status read_id(struct params *p, const struct json *body, struct buf *why)
{
    const char *name = js_get_set(body, "request_id") ? "request_id" : "rid";
    enum status s = js_get_str(body, name, &p->request_id, NULL, why);

    if (s != OK || !p->request_id || request_id_is_sane(p->request_id))
        return s;
    return buf_why(why, ERR_INVALID, "%s: expected 1 to %d letters, digits, and of . _ -", name,
                   HTTP_ID_BYTES - 1);
}

/* vLLM's object by which a router hands a request from an instance that computes prompts to one
 * that generates. KV goes by the pool, which finds it without hints: only the wish to be named in
 * the answer is read. */
static enum status read_transfer(struct params *p, const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "kv_transfer_params");
    struct buf inner;

    if (!v)
        return OK;
    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "kv_transfer_params: expected an object, got %s",
                       js_type_name(js_typeof(v)));
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_get_bool(v, "do_remote_decode", &p->hands_over, &inner);
    if (s != OK)
        buf_why(why, s, "kv_transfer_params.%s", buf_str(&inner));
    buf_fini(&inner);
    return s;
}

enum status params_read_service(struct params *p, const struct json *body, struct buf *why)
{
    enum status s = read_id(p, body, why);

    if (s == OK)
        s = js_get_bool(body, "return_timings", &p->return_timings, why);
    return s == OK ? read_transfer(p, body, why) : s;
}
