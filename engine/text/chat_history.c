#include "engine/text/chat_history.h"

#include <string.h>

#include "base/hash.h"

#define SHORT_ID_CHARS 9
#define ID_HASH_BYTES 16

enum status chat_history_init(struct chat_history *h, const struct chat_traits *traits)
{
    *h = (struct chat_history){.messages = js_new_array(), .traits = *traits};
    buf_init(&h->results, CHAT_HISTORY_TEXT_BYTES_MAX);
    buf_init(&h->calls, CHAT_HISTORY_TEXT_BYTES_MAX);
    return h->messages ? OK : ERR_NOMEM;
}

void chat_history_fini(struct chat_history *h)
{
    js_unref(h->messages);
    h->messages = NULL;
    buf_fini(&h->results);
    buf_fini(&h->calls);
}

static const char *text_of(const struct json *v, size_t *len)
{
    *len = 0;
    return js_is(v, JS_STRING) ? js_string(v, len) : "";
}

static enum status set_text(struct json *obj, const char *key, const char *text)
{
    return js_set(obj, key, js_new_string(text, strlen(text)));
}

static enum status copy_members(struct json *to, const struct json *from)
{
    enum status s = OK;

    for (void *it = js_first(from); s == OK && it; it = js_next(from, it))
        s = js_set(to, js_it_key(it), js_ref(js_it_value(it)));
    return s;
}

/* --- ids --- */

static bool is_short(const char *id)
{
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");

    return n == SHORT_ID_CHARS && id[n] == '\0';
}

/* Replace an id by 9 letters and digits. Equal ids stay equal, so calls and results still match,
 * and the next turn of the conversation finds this one in the cache. */
static enum status shorten_id(struct json *obj, const char *key)
{
    const struct json *v = js_get_set(obj, key);
    char hex[2 * ID_HASH_BYTES + 1];
    uint8_t hash[ID_HASH_BYTES];

    if (!v || is_short(js_string(v, NULL)))
        return OK;
    hash_blake2b(hash, sizeof hash, js_string(v, NULL), strlen(js_string(v, NULL)), NULL, 0);
    hash_hex(hex, hash, sizeof hash);
    hex[SHORT_ID_CHARS] = '\0';
    return set_text(obj, key, hex);
}

/* --- calls --- */

/* The arguments as an object. Models also write arguments that are not JSON; the template then gets
 * the text itself. */
static enum status arguments_as_object(struct json **out, const struct json *given)
{
    struct json *parsed = NULL;
    size_t len;
    const char *text = text_of(given, &len);

    if (js_is(given, JS_OBJECT)) {
        *out = js_ref((struct json *)(uintptr_t)given);
        return OK;
    }
    if (strspn(text, " \t\r\n") == len) {
        *out = js_new_object();
        return *out ? OK : ERR_NOMEM;
    }
    enum status s = js_parse(&parsed, text, len, NULL);
    if (s == ERR_NOMEM)
        return s;
    /* Copy to the heap: a parsed document has memory pages of its own, too many for a thousand
     * calls. */
    *out = s == OK && js_is(parsed, JS_OBJECT) ? js_copy_deep(parsed) : js_new_string(text, len);
    js_unref(parsed);
    return *out ? OK : ERR_NOMEM;
}

static enum status write_arguments(struct buf *out, const struct json *given)
{
    size_t len;
    const char *text = text_of(given, &len);

    if (js_is(given, JS_OBJECT))
        return js_write(out, given);
    return len > 0 ? buf_append(out, text, len) : buf_puts(out, "{}");
}

static enum status arguments_as_string(struct json **out, const struct json *given)
{
    struct buf text;

    buf_init(&text, CHAT_HISTORY_TEXT_BYTES_MAX);
    enum status s = write_arguments(&text, given);
    if (s == OK && !(*out = js_new_string(buf_str(&text), text.len)))
        s = ERR_NOMEM;
    buf_fini(&text);
    return s;
}

/* Add a call with its arguments in the template's form; other members are copied. */
static enum status adapt_call(struct json *calls, const struct json *given,
                              const struct chat_traits *traits)
{
    const struct json *function = js_get(given, "function");
    struct json *call = js_new_object(), *inner = js_new_object(), *arguments = NULL;
    enum status s = call && inner ? copy_members(call, given) : ERR_NOMEM;

    if (s == OK)
        s = copy_members(inner, function);
    if (s == OK)
        s = traits->tool_calls == TOOL_CALLS_AS_OBJECTS
                ? arguments_as_object(&arguments, js_get_set(function, "arguments"))
                : arguments_as_string(&arguments, js_get_set(function, "arguments"));
    if (s == OK)
        s = js_set(inner, "arguments", arguments);
    if (s == OK) {
        s = js_set(call, "function", inner);
        inner = NULL;
    }
    if (s == OK)
        s = set_text(call, "type", "function");
    if (s == OK && traits->short_call_ids)
        s = shorten_id(call, "id");
    if (s == OK) {
        s = js_push(calls, call);
        call = NULL;
    }
    js_unref(inner);
    js_unref(call);
    return s;
}

static enum status adapt_calls(struct json *message, const struct chat_traits *traits)
{
    const struct json *given = js_get(message, "tool_calls");
    struct json *calls = js_new_array();
    enum status s = calls ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < js_len(given); i++)
        s = adapt_call(calls, js_at(given, i), traits);
    if (s == OK)
        return js_set(message, "tool_calls", calls);
    js_unref(calls);
    return s;
}

static enum status write_call(struct buf *out, const struct json *call)
{
    const struct json *function = js_get(call, "function");
    enum status s = out->len > 0 ? buf_putc(out, '\n') : OK;

    if (s == OK)
        s = buf_printf(out, "Tool call %s: %s(", js_string(js_get(call, "id"), NULL),
                       js_string(js_get(function, "name"), NULL));
    if (s == OK)
        s = write_arguments(out, js_get_set(function, "arguments"));
    return s == OK ? buf_putc(out, ')') : s;
}

/* Write the calls into the content, for a template that does not render tool_calls. */
static enum status calls_to_text(struct chat_history *h, struct json *message)
{
    const struct json *calls = js_get(message, "tool_calls");
    struct buf text;
    size_t len;
    const char *content = text_of(js_get(message, "content"), &len);
    const struct chat_history_calls part = {(uint32_t)js_len(h->messages), len};

    buf_init(&text, CHAT_HISTORY_TEXT_BYTES_MAX);
    enum status s = buf_append(&text, content, len);
    for (size_t i = 0; s == OK && i < js_len(calls); i++)
        s = write_call(&text, js_at(calls, i));
    if (s == OK)
        s = js_set(message, "content", js_new_string(buf_str(&text), text.len));
    if (s == OK)
        s = js_remove(message, "tool_calls");
    if (s == OK)
        s = buf_append(&h->calls, &part, sizeof part);
    buf_fini(&text);
    return s;
}

/* Adapt an assistant's message, which becomes the next one of the history. */
static enum status adapt_assistant(struct chat_history *h, struct json *message)
{
    const struct chat_traits *traits = &h->traits;
    bool has_calls = js_len(js_get(message, "tool_calls")) > 0;
    size_t len;

    text_of(js_get(message, "content"), &len);
    if (!has_calls && js_get(message, "tool_calls")) {
        enum status s = js_remove(message, "tool_calls"); /* null or [] */
        if (s != OK)
            return s;
    }
    /* A template that tests for a content of null would drop the calls of a message with text. */
    if (has_calls &&
        (traits->tool_calls == TOOL_CALLS_AS_TEXT || (traits->null_content && len > 0)))
        return calls_to_text(h, message);
    if (len == 0) {
        bool null = has_calls && traits->null_content;
        enum status s = js_set(message, "content", null ? js_new_null() : js_new_string("", 0));
        if (s != OK)
            return s;
    }
    return has_calls ? adapt_calls(message, traits) : OK;
}

/* --- results --- */

/* Collect a result, for a template that drops role "tool". */
static enum status add_result(struct chat_history *h, const struct json *message)
{
    size_t n_id, n_content;
    const char *id = text_of(js_get(message, "tool_call_id"), &n_id);
    const char *content = text_of(js_get(message, "content"), &n_content);
    enum status s = buf_printf(&h->results, "%sTool result%s%s:\n", h->has_results ? "\n\n" : "",
                               n_id > 0 ? " " : "", id);

    h->has_results = true;
    return s == OK ? buf_append(&h->results, content, n_content) : s;
}

/* Add the collected results, if any, as a message of role "user". */
static enum status end_results(struct chat_history *h)
{
    struct json *m = h->has_results ? js_new_object() : NULL;

    if (!h->has_results)
        return OK;
    h->has_results = false;
    enum status s = m ? set_text(m, "role", "user") : ERR_NOMEM;
    if (s == OK)
        s = js_set(m, "content", js_new_string(buf_str(&h->results), h->results.len));
    buf_reset(&h->results);
    if (s == OK)
        return js_push(h->messages, m);
    js_unref(m);
    return s;
}

enum status chat_history_take(struct chat_history *h, struct json **out)
{
    enum status s = end_results(h);

    if (s != OK)
        return s;
    *out = h->messages;
    h->messages = NULL;
    return OK;
}

void chat_history_take_calls(struct chat_history *h, struct buf *out)
{
    *out = h->calls;
    h->calls = (struct buf){.max = h->calls.max};
}

enum status chat_history_add(struct chat_history *h, struct json *message)
{
    const char *role = js_string(js_get(message, "role"), NULL);
    bool is_tool = strcmp(role, "tool") == 0;
    enum status s = OK;

    if (is_tool && !h->traits.tool_role) {
        s = add_result(h, message);
        js_unref(message);
        return s;
    }
    s = end_results(h);
    if (s == OK && strcmp(role, "assistant") == 0)
        s = adapt_assistant(h, message);
    else if (s == OK && strcmp(role, "developer") == 0 && !h->traits.developer)
        s = set_text(message, "role", "system");
    else if (s == OK && is_tool && h->traits.short_call_ids)
        s = shorten_id(message, "tool_call_id");
    if (s == OK)
        return js_push(h->messages, message);
    js_unref(message);
    return s;
}
