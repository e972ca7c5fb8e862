#include "server/api/params_prediction.h"

#include <string.h>

#include "base/check.h"
#include "server/server.h"

static bool is_word(const struct json *v, const char *word)
{
    size_t len;

    if (!js_is(v, JS_STRING))
        return false;
    const char *text = js_string(v, &len);
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

static enum status add_text(struct params *p, const struct server *srv, const struct json *v,
                            const char *name, struct buf *why)
{
    size_t len;

    if (!js_is(v, JS_STRING))
        return buf_why(why, ERR_INVALID, "%s: expected a string, got %s", name,
                       js_type_name(js_typeof(v)));
    const char *text = js_string(v, &len);
    if (!srv->tokenizer || srv->info->n_guesses_max == 0)
        return OK;
    enum status s = tokenizer_encode(srv->tokenizer, text, len, TOKENIZE_CONTINUES, &p->prediction);
    if (s == ERR_INVALID || s == ERR_TOO_LARGE) { /* it is of no use, but no error either */
        buf_reset(&p->prediction);
        return OK;
    }
    return s == OK ? OK : buf_why(why, s, "%s: out of memory", name);
}

static enum status add_parts(struct params *p, const struct server *srv, const struct json *parts,
                             struct buf *why)
{
    enum status s = OK;
    char name[64];

    for (size_t i = 0; s == OK && i < js_len(parts); i++) {
        const struct json *part = js_at(parts, i);

        snprintf(name, sizeof name, "prediction.content[%zu]", i);
        if (!js_is(part, JS_OBJECT))
            return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", name,
                           js_type_name(js_typeof(part)));
        if (!is_word(js_get(part, "type"), "text"))
            return buf_why(why, ERR_INVALID, "%s.type: expected \"text\"", name);
        snprintf(name, sizeof name, "prediction.content[%zu].text", i);
        s = add_text(p, srv, js_get(part, "text"), name, why);
    }
    return s;
}

enum status params_read_prediction(struct params *p, const struct server *srv,
                                   const struct json *body, struct buf *why)
{
    static const char *const fields[] = {"type", "content"};
    const struct json *v = js_get_set(body, "prediction");

    buf_init(&p->prediction, (size_t)srv->info->max_model_len * sizeof(uint32_t));
    if (!v)
        return OK;
    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "prediction: expected an object, got %s",
                       js_type_name(js_typeof(v)));
    unknown_fields_find(&p->unknown, v, "prediction.", fields, ARRAY_SIZE(fields));
    if (!is_word(js_get(v, "type"), "content"))
        return buf_why(why, ERR_INVALID, "prediction.type: expected \"content\"");
    const struct json *content = js_get(v, "content");
    if (js_is(content, JS_ARRAY))
        return add_parts(p, srv, content, why);
    return add_text(p, srv, content, "prediction.content", why);
}
