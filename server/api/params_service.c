#include "server/api/params_service.h"

#include <string.h>

#include "base/hash.h"
#include "engine/adapters.h"
#include "server/events/publisher.h"
#include "server/http/http.h"
#include "server/http/request_id.h"
#include "server/server.h"

#define CACHE_SALT_BYTES_MAX (PUBLISHER_SALT_BYTES - 1)

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

/* The number of a salt and an adapter for KV events; 0: neither. */
static uint64_t salt_number(const struct params *p, const char *salt)
{
    struct kv_scope both = p->scope;
    uint64_t number = 0;

    if (p->adapter)
        adapter_narrow(p->adapter, &both);
    if (salt || p->adapter)
        memcpy(&number, both.bytes, sizeof number);
    return number;
}

static enum status read_salt(struct params *p, const struct server *srv, const struct json *body,
                             struct buf *why)
{
    const char *salt = NULL;
    size_t len = 0;
    enum status s = js_get_str(body, "cache_salt", &salt, &len, why);

    if (s != OK)
        return s;
    if (salt && (len == 0 || len > CACHE_SALT_BYTES_MAX))
        return buf_why(why, ERR_INVALID, "cache_salt: expected 1 to %d bytes, got %zu",
                       CACHE_SALT_BYTES_MAX, len);
    if (salt)
        hash_blake2b(p->scope.bytes, sizeof p->scope.bytes, salt, len, NULL, 0);
    p->salt = salt_number(p, salt);
    if (p->salt != 0)
        publisher_note_salt(srv->kv_events, p->salt, salt, len,
                            p->adapter ? adapter_name(p->adapter) : NULL);
    return OK;
}

static enum status read_session(struct params *p, const struct json *body, struct buf *why)
{
    enum status s = js_get_str(body, "session_id", &p->session, &p->session_len, why);

    if (s != OK || !p->session)
        return s;
    if (p->session_len == 0 || p->session_len > SESSION_BYTES_MAX)
        return buf_why(why, ERR_INVALID, "session_id: expected 1 to %d bytes, got %zu",
                       SESSION_BYTES_MAX, p->session_len);
    return OK;
}

enum status params_read_service(struct params *p, const struct server *srv, const struct json *body,
                                struct buf *why)
{
    enum status s = read_salt(p, srv, body, why);

    if (s == OK)
        s = read_session(p, body, why);
    if (s == OK)
        s = read_id(p, body, why);
    if (s == OK)
        s = js_get_bool(body, "return_timings", &p->return_timings, why);
    return s == OK ? read_transfer(p, body, why) : s;
}
