#include "server/api/body.h"

#include <string.h>

#include "base/json.h"
#include "server/http/error.h"
#include "server/http/http.h"

/* Bounds of a request's JSON. A prompt of a million token ids passes, and so do a hundred prompts
 * of ten thousand ids. A body of empty objects, which take 70 bytes of memory each, does not
 * pass. */
#define BODY_N_VALUES_MAX ((size_t)1 << 22)
#define BODY_MEMORY_MIN ((size_t)64 << 20)
#define BODY_MEMORY_PER_BYTE 4

static enum status parse_body(struct json **out, const struct buf *text, struct buf *why)
{
    const struct js_limits limits = {.n_values_max = BODY_N_VALUES_MAX,
                                     .n_bytes_max =
                                         BODY_MEMORY_MIN + BODY_MEMORY_PER_BYTE * text->len};

    *out = NULL;
    if (text->len == 0)
        return buf_why(why, ERR_INVALID, "the body is empty; send a JSON object");
    enum status s = js_parse_limited(out, buf_str(text), text->len, &limits, why);
    if (s != OK || js_is(*out, JS_OBJECT))
        return s;
    s = buf_why(why, ERR_INVALID, "the body must be a JSON object, not %s",
                js_type_name(js_typeof(*out)));
    js_unref(*out);
    *out = NULL;
    return s;
}

bool body_has(const struct http_exchange *x, const char *const *names, size_t n)
{
    const struct buf *text = http_body(x);
    struct json *body = NULL;
    bool is_named = false, has = false;

    for (size_t i = 0; i < n; i++)
        is_named |= memmem(buf_str(text), text->len, names[i], strlen(names[i])) != NULL;
    if (is_named && parse_body(&body, text, NULL) == OK)
        for (size_t i = 0; i < n; i++)
            has |= js_get_set(body, names[i]) != NULL;
    js_unref(body);
    return has;
}

struct json *body_read(struct http_exchange *x)
{
    struct json *body;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = parse_body(&body, http_body(x), &why);
    if (s != OK)
        error_reply(x, s, s == ERR_INVALID ? "malformed_json" : NULL, buf_str(&why));
    buf_fini(&why);
    return body;
}
