#include "server/api/provenance.h"

#include <string.h>

static enum status add(struct buf *texts, const char *p, size_t len)
{
    struct chat_text text = {p, len};

    return len ? buf_append(texts, &text, sizeof text) : OK;
}

/* Add all strings and keys of a value. json.h limits the nesting, and so the recursion. */
static enum status add_all(struct buf *texts, const struct json *v)
{
    enum status s = OK;
    size_t len;

    if (js_is(v, JS_STRING)) {
        const char *p = js_string(v, &len);
        return add(texts, p, len);
    }
    for (size_t i = 0; s == OK && js_is(v, JS_ARRAY) && i < js_len(v); i++)
        s = add_all(texts, js_at(v, i));
    if (!js_is(v, JS_OBJECT))
        return s;
    for (void *it = js_first(v); s == OK && it; it = js_next(v, it)) {
        s = add(texts, js_it_key(it), strlen(js_it_key(it)));
        if (s == OK)
            s = add_all(texts, js_it_value(it));
    }
    return s;
}

static bool is_role(const struct json *message, const char *role)
{
    const struct json *v = js_get(message, "role");

    return js_is(v, JS_STRING) && strcmp(js_string(v, NULL), role) == 0;
}

/* Add the texts of a message, except its role: that is one of a few known words, and templates
 * write it between control tokens. */
static enum status add_message(struct buf *texts, const struct json *message)
{
    enum status s = OK;

    if (is_role(message, "system") || is_role(message, "developer"))
        return OK;
    if (is_role(message, "assistant"))
        return add_all(texts, js_get(message, "tool_calls"));
    for (void *it = js_first(message); s == OK && it; it = js_next(message, it)) {
        if (strcmp(js_it_key(it), "role") == 0)
            continue;
        s = add(texts, js_it_key(it), strlen(js_it_key(it)));
        if (s == OK)
            s = add_all(texts, js_it_value(it));
    }
    return s;
}

static enum status add_documents_in(struct buf *texts, const struct json *message, size_t n_written,
                                    const struct ranges *in_it)
{
    const struct json *v = js_get(message, "content");
    size_t len = 0;
    const char *content = js_is(v, JS_STRING) ? js_string(v, &len) : NULL;
    enum status s = OK;

    if (!content || len < n_written) /* the documents were not found: trust nothing */
        return add_all(texts, v);
    for (size_t i = 0; s == OK && i < in_it->n; i++)
        s = add(texts, content + len - n_written + in_it->v[i].begin,
                in_it->v[i].end - in_it->v[i].begin);
    return s;
}

static enum status add_calls(struct buf *texts, const struct json *messages,
                             const struct buf *calls)
{
    enum status s = OK;

    for (size_t at = 0; s == OK && at < calls->len; at += sizeof(struct chat_history_calls)) {
        struct chat_history_calls c;
        memcpy(&c, calls->data + at, sizeof c);
        size_t len = 0;
        const char *content = js_string(js_get(js_at(messages, c.message), "content"), &len);
        s = add(texts, content + c.begin, len - c.begin);
    }
    return s;
}

enum status provenance_collect(struct buf *texts, const struct json *context,
                               const struct buf *calls, size_t documents_len,
                               const struct ranges *in_it)
{
    const struct json *messages = js_get(context, "messages");
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(messages); i++)
        s = add_message(texts, js_at(messages, i));
    if (s == OK)
        s = add_calls(texts, messages, calls);
    if (s == OK && documents_len > 0)
        s = add_documents_in(texts, js_at(messages, 0), documents_len, in_it);
    if (s == OK)
        s = add_all(texts, js_get(context, "documents"));
    return s == OK ? add_all(texts, js_get(context, "tools")) : s;
}
