#include "server/api/response_items.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/api/responses.h"

#define N_PARTS_MAX 1024
#define FIELD_BYTES 96
#define ID_GIVEN_BYTES_MAX 256
#define REASONING_BYTES_MAX (64u << 20)

void response_item_id(char out[RESPONSE_ITEM_ID_BYTES], const char *kind, const char *response_id,
                      char side, uint32_t number)
{
    snprintf(out, RESPONSE_ITEM_ID_BYTES, "%.8s_%.*s%c%u", kind, RESPONSE_ID_HEX,
             response_id + sizeof RESPONSE_ID_PREFIX - 1, side, number);
}

static enum status set_text(struct json *obj, const char *key, const char *text)
{
    return js_set(obj, key, js_new_string(text, strlen(text)));
}

static enum status set_copy(struct json *obj, const char *key, const struct json *from)
{
    struct json *v = js_get(from, key);

    return v ? js_set(obj, key, js_ref(v)) : OK;
}

static enum status no_memory(struct buf *why, enum status s)
{
    return s == ERR_NOMEM ? buf_why(why, s, "out of memory") : s;
}

/* --- items of a request --- */

struct reader {
    const struct response_source *source;
    char field[FIELD_BYTES]; /* the item's: "input[2]" */
    uint32_t number;
    size_t n_looked; /* bytes of turns that references were looked up in */
    struct buf *why;
};

static enum status expect(struct reader *r, const struct json *v, enum js_type t, const char *key,
                          const char *words)
{
    if (js_is(v, t))
        return OK;
    return buf_why(r->why, ERR_INVALID, "%s.%s: expected %s, got %s", r->field, key, words,
                   js_type_name(js_typeof(v)));
}

static enum status read_cstr(struct reader *r, const struct json *item, const char *key,
                             const char **out)
{
    char name[FIELD_BYTES + 32];

    snprintf(name, sizeof name, "%s.%s", r->field, key);
    return js_read_cstr(js_get(item, key), name, out, r->why);
}

/* Begin a complete item: its type, and its id, which is the client's if that has one. */
static enum status begin_item(struct reader *r, struct json **out, const struct json *given,
                              const char *type, const char *kind)
{
    const char *own = NULL;
    char id[RESPONSE_ITEM_ID_BYTES];

    *out = js_new_object();
    enum status s = *out ? OK : ERR_NOMEM;
    if (s == OK && js_get_set(given, "id"))
        s = read_cstr(r, given, "id", &own);
    if (s == OK && own && strlen(own) > ID_GIVEN_BYTES_MAX)
        s = buf_why(r->why, ERR_INVALID, "%s.id: longer than %d bytes", r->field,
                    ID_GIVEN_BYTES_MAX);
    response_item_id(id, kind, r->source->response_id, 'i', r->number);
    if (s == OK)
        s = set_text(*out, "id", own && own[0] ? own : id);
    return s == OK ? set_text(*out, "type", type) : s;
}

/* Complete a part of a message: *out {"type": text_type, "text"} or a refusal. */
static enum status read_part(struct reader *r, const struct json *given, size_t i,
                             bool is_assistant, const char *text_type, struct json **out)
{
    char field[FIELD_BYTES + 48];
    const char *type;

    *out = NULL;
    snprintf(field, sizeof field, "%s.content[%zu].type", r->field, i);
    enum status s = js_read_cstr(js_get(given, "type"), field, &type, r->why);
    if (s != OK)
        return s;
    bool is_refusal = is_assistant && strcmp(type, "refusal") == 0;
    if (!is_refusal && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 &&
        strcmp(type, "text") != 0)
        return buf_why(r->why, ERR_UNSUPPORTED,
                       "%s: \"%.40s\" parts are not supported, only texts are", field, type);
    const char *key = is_refusal ? "refusal" : "text";
    const struct json *text = js_get(given, key);
    if (!js_is(text, JS_STRING))
        return buf_why(r->why, ERR_INVALID, "%s.content[%zu].%s: expected a string, got %s",
                       r->field, i, key, js_type_name(js_typeof(text)));
    *out = js_new_object();
    s = *out ? set_text(*out, "type", is_refusal ? "refusal" : text_type) : ERR_NOMEM;
    if (s == OK)
        s = set_copy(*out, key, given);
    if (s == OK && is_assistant && !is_refusal)
        s = js_set(*out, "annotations", js_new_array());
    if (s == OK && is_assistant && !is_refusal)
        s = js_set(*out, "logprobs", js_new_array());
    return s;
}

static enum status read_string_part(const struct json *given, bool is_assistant,
                                    const char *text_type, struct json **out)
{
    *out = js_new_object();
    enum status s = *out ? set_text(*out, "type", text_type) : ERR_NOMEM;

    if (s == OK)
        s = js_set(*out, "text", js_ref((struct json *)(uintptr_t)given));
    if (s == OK && is_assistant)
        s = js_set(*out, "annotations", js_new_array());
    if (s == OK && is_assistant)
        s = js_set(*out, "logprobs", js_new_array());
    return s;
}

/* Complete the content of a message, or the output of a tool that is a list: *out is an array. */
static enum status read_parts(struct reader *r, const struct json *given, bool is_assistant,
                              struct json **out)
{
    const char *text_type = is_assistant ? "output_text" : "input_text";
    struct json *part = NULL;
    enum status s;

    *out = js_new_array();
    if (!*out)
        return ERR_NOMEM;
    if (js_is(given, JS_STRING)) {
        s = read_string_part(given, is_assistant, text_type, &part);
        if (s == OK)
            return js_push(*out, part);
        js_unref(part);
        return s;
    }
    s = expect(r, given, JS_ARRAY, "content", "a string or an array of parts");
    if (s == OK && js_len(given) > N_PARTS_MAX)
        s = buf_why(r->why, ERR_INVALID, "%s.content: %zu parts, at most %d are taken", r->field,
                    js_len(given), N_PARTS_MAX);
    for (size_t i = 0; s == OK && i < js_len(given); i++) {
        s = read_part(r, js_at(given, i), i, is_assistant, text_type, &part);
        if (s == OK)
            s = js_push(*out, part);
        else
            js_unref(part);
    }
    return s;
}

static enum status read_message(struct reader *r, const struct json *given, struct json **out)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    struct json *parts = NULL;
    const char *role = NULL;
    bool known = false;
    enum status s = read_cstr(r, given, "role", &role);

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(roles); i++)
        known |= strcmp(role, roles[i]) == 0;
    if (s == OK && !known)
        s = buf_why(r->why, ERR_INVALID,
                    "%s.role: \"%.40s\" is none of user, assistant, system, developer", r->field,
                    role);
    if (s == OK)
        s = begin_item(r, out, given, "message", "msg");
    if (s == OK)
        s = set_text(*out, "status", "completed");
    if (s == OK)
        s = set_text(*out, "role", role);
    if (s != OK)
        return s;
    s = read_parts(r, js_get(given, "content"), strcmp(role, "assistant") == 0, &parts);
    if (s == OK)
        return js_set(*out, "content", parts);
    js_unref(parts);
    return s;
}

static enum status read_call(struct reader *r, const struct json *given, struct json **out)
{
    const char *text;
    enum status s = read_cstr(r, given, "call_id", &text);

    if (s == OK)
        s = read_cstr(r, given, "name", &text);
    if (s == OK)
        s = expect(r, js_get(given, "arguments"), JS_STRING, "arguments", "the text of an object");
    if (s == OK)
        s = begin_item(r, out, given, "function_call", "fc");
    if (s == OK)
        s = set_text(*out, "status", "completed");
    if (s == OK)
        s = set_copy(*out, "arguments", given);
    if (s == OK)
        s = set_copy(*out, "call_id", given);
    return s == OK ? set_copy(*out, "name", given) : s;
}

static enum status read_output(struct reader *r, const struct json *given, struct json **out)
{
    const struct json *output = js_get(given, "output");
    struct json *parts = NULL;
    const char *text;
    enum status s = read_cstr(r, given, "call_id", &text);

    if (s == OK && !js_is(output, JS_STRING) && !js_is(output, JS_ARRAY))
        s = expect(r, output, JS_STRING, "output", "a string or an array of parts");
    if (s == OK)
        s = begin_item(r, out, given, "function_call_output", "fco");
    if (s == OK)
        s = set_text(*out, "status", "completed");
    if (s == OK)
        s = set_copy(*out, "call_id", given);
    if (s != OK || js_is(output, JS_STRING))
        return s == OK ? set_copy(*out, "output", given) : s;
    s = read_parts(r, output, false, &parts);
    if (s == OK)
        return js_set(*out, "output", parts);
    js_unref(parts);
    return s;
}

/* Check that v is absent or a list of {"text": string}, and append copies of type `type`. */
static enum status read_thoughts(struct reader *r, const struct json *given, const char *key,
                                 const char *type, struct json *out)
{
    const struct json *v = js_get_set(given, key);
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    if (s == OK && v)
        s = expect(r, v, JS_ARRAY, key, "an array");
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        struct json *part = js_new_object();
        s = js_is(js_get(js_at(v, i), "text"), JS_STRING)
                ? (part ? OK : ERR_NOMEM)
                : buf_why(r->why, ERR_INVALID, "%s.%s[%zu].text: expected a string", r->field, key,
                          i);
        if (s == OK)
            s = set_text(part, "type", type);
        if (s == OK)
            s = set_copy(part, "text", js_at(v, i));
        if (s == OK)
            s = js_push(list, part);
        else
            js_unref(part);
    }
    if (s == OK)
        return js_set(out, key, list);
    js_unref(list);
    return s;
}

static enum status read_reasoning(struct reader *r, const struct json *given, struct json **out)
{
    enum status s = begin_item(r, out, given, "reasoning", "rs");

    if (s == OK)
        s = read_thoughts(r, given, "summary", "summary_text", *out);
    return s == OK ? read_thoughts(r, given, "content", "reasoning_text", *out) : s;
}

/* A search of an earlier answer: kept for input_items, without effect on the prompt. */
static enum status read_search(struct reader *r, const struct json *given, struct json **out)
{
    enum status s = begin_item(r, out, given, "file_search_call", "fs");

    if (s == OK)
        s = set_text(*out, "status", "completed");
    if (s == OK && !js_is(js_get(given, "queries"), JS_ARRAY))
        return js_set(*out, "queries", js_new_array());
    return s == OK ? set_copy(*out, "queries", given) : s;
}

enum status response_items_parse(struct json *items, const struct buf *written)
{
    struct json *list = NULL;
    struct buf text;

    buf_init(&text, written->len + 3);
    enum status s = buf_putc(&text, '[');
    if (s == OK)
        s = buf_append(&text, buf_str(written), written->len);
    if (s == OK)
        s = buf_putc(&text, ']');
    if (s == OK)
        s = js_parse(&list, buf_str(&text), text.len, NULL);
    for (size_t i = 0; s == OK && i < js_len(list); i++)
        s = js_push(items, js_ref(js_at(list, i)));
    js_unref(list);
    buf_fini(&text);
    return s;
}

/* The item of this id in a list that was written; NULL: none. A reference. */
static struct json *find_in(const struct buf *written, const char *id)
{
    struct json *list = js_new_array(), *found = NULL;
    enum status s = list ? response_items_parse(list, written) : ERR_NOMEM;

    for (size_t i = 0; s == OK && !found && i < js_len(list); i++) {
        const struct json *own = js_get(js_at(list, i), "id");
        if (js_is(own, JS_STRING) && strcmp(js_string(own, NULL), id) == 0)
            found = js_ref(js_at(list, i));
    }
    js_unref(list);
    return found;
}

static enum status read_reference(struct reader *r, const struct json *given, struct json **out)
{
    char response[RESPONSE_ID_BYTES] = RESPONSE_ID_PREFIX;
    const char *id = NULL, *hex;
    struct response_turn *turn = NULL;
    enum status s = read_cstr(r, given, "id", &id);

    if (s != OK)
        return s;
    hex = strchr(id, '_');
    if (hex && strnlen(hex + 1, RESPONSE_ID_HEX) == RESPONSE_ID_HEX && r->source->responses) {
        memcpy(response + sizeof RESPONSE_ID_PREFIX - 1, hex + 1, RESPONSE_ID_HEX);
        turn = responses_turn(r->source->responses, r->source->owner, response);
    }
    if (turn) { /* the output of a response in progress is another thread's */
        bool is_final = atomic_load(&turn->is_final);
        r->n_looked += turn->input.len + (is_final ? turn->output.len : 0);
        if (r->n_looked > RESPONSE_READ_BYTES_MAX)
            s = buf_why(r->why, ERR_INVALID,
                        "%s: the references need more than %u bytes of earlier responses to be "
                        "read; send previous_response_id, or the items",
                        r->field, RESPONSE_READ_BYTES_MAX);
        if (s == OK && is_final)
            *out = find_in(&turn->output, id);
        if (s == OK && !*out)
            *out = find_in(&turn->input, id);
    }
    response_turn_unref(turn);
    if (*out || s != OK)
        return s;
    return buf_why(r->why, ERR_NOT_FOUND,
                   "%s: Item with id '%.80s' not found. It was not stored, or its response was "
                   "forgotten or deleted.",
                   r->field, id);
}

/* *out: a new item or NULL. */
static enum status read_item(struct reader *r, const struct json *given, struct json **out)
{
    static const struct {
        const char *type;
        enum status (*read)(struct reader *r, const struct json *given, struct json **out);
    } types[] = {{"message", read_message},
                 {"function_call", read_call},
                 {"function_call_output", read_output},
                 {"reasoning", read_reasoning},
                 {"file_search_call", read_search},
                 {"item_reference", read_reference}};
    const char *type = "message";
    enum status s = OK;

    *out = NULL;
    if (!js_is(given, JS_OBJECT))
        return buf_why(r->why, ERR_INVALID, "%s: expected an object, got %s", r->field,
                       js_type_name(js_typeof(given)));
    if (js_get_set(given, "type"))
        s = read_cstr(r, given, "type", &type);
    else if (!js_get_set(given, "role") && js_get_set(given, "id"))
        type = "item_reference"; /* its type may be left out */
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(types); i++)
        if (strcmp(type, types[i].type) == 0)
            return types[i].read(r, given, out);
    return s == OK ? buf_why(r->why, ERR_UNSUPPORTED,
                             "%s.type: items of type \"%.40s\" are not supported", r->field, type)
                   : s;
}

enum status response_items_read(struct json *items, const struct json *given,
                                const struct response_source *source, struct buf *why)
{
    struct reader r = {.source = source, .why = why};
    struct json *item = NULL, *parts = NULL;
    enum status s = OK;

    if (js_is(given, JS_STRING)) { /* a message of the user */
        s = begin_item(&r, &item, NULL, "message", "msg");
        if (s == OK)
            s = set_text(item, "status", "completed");
        if (s == OK)
            s = set_text(item, "role", "user");
        if (s == OK && (s = read_parts(&r, given, false, &parts)) == OK) {
            s = js_set(item, "content", parts);
            parts = NULL;
        }
        js_unref(parts);
        if (s == OK)
            return no_memory(why, js_push(items, item));
        js_unref(item);
        return no_memory(why, s);
    }
    if (given && !js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "input: expected a string or an array of items, got %s",
                       js_type_name(js_typeof(given)));
    if (js_len(given) > RESPONSE_N_ITEMS_MAX)
        return buf_why(why, ERR_INVALID, "input: %zu items, at most %d are taken", js_len(given),
                       RESPONSE_N_ITEMS_MAX);
    for (; s == OK && r.number < js_len(given); r.number++) {
        snprintf(r.field, sizeof r.field, "input[%u]", r.number);
        s = read_item(&r, js_at(given, r.number), &item);
        if (s == OK)
            s = js_push(items, item);
        else
            js_unref(item);
    }
    return no_memory(why, s);
}

/* --- messages --- */

enum status response_messages_init(struct response_messages *m)
{
    *m = (struct response_messages){.list = js_new_array()};
    buf_init(&m->reasoning, REASONING_BYTES_MAX);
    return m->list ? OK : ERR_NOMEM;
}

void response_messages_fini(struct response_messages *m)
{
    js_unref(m->list);
    m->list = m->assistant = NULL;
    buf_fini(&m->reasoning);
}

/* Append a message without content. *out is borrowed. */
static enum status push_message(struct response_messages *m, const char *role, struct json **out)
{
    struct json *message = js_new_object();
    enum status s = message ? set_text(message, "role", role) : ERR_NOMEM;

    *out = message;
    m->assistant = NULL;
    if (s == OK && strcmp(role, "assistant") == 0) {
        m->assistant = message;
        if (m->reasoning.len > 0)
            s = js_set(message, "reasoning_content",
                       js_new_string(m->reasoning.data, m->reasoning.len));
    }
    buf_reset(&m->reasoning);
    if (s == OK)
        return js_push(m->list, message);
    js_unref(message);
    return s;
}

/* The texts of parts as content parts of a chat, in *out: a new array. */
static enum status chat_parts(const struct json *parts, struct json **out)
{
    enum status s = (*out = js_new_array()) ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < js_len(parts); i++) {
        const struct json *from = js_at(parts, i);
        bool is_refusal = js_get(from, "refusal") != NULL;
        struct json *part = js_new_object();
        s = part ? set_text(part, "type", is_refusal ? "refusal" : "text") : ERR_NOMEM;
        if (s == OK)
            s = set_copy(part, is_refusal ? "refusal" : "text", from);
        if (s == OK)
            s = js_push(*out, part);
        else
            js_unref(part);
    }
    return s;
}

static enum status set_content(struct json *message, const struct json *content)
{
    struct json *parts = NULL;

    if (js_len(content) == 1 && js_get(js_at(content, 0), "text"))
        content = js_get(js_at(content, 0), "text");
    if (js_is(content, JS_STRING))
        return js_set(message, "content", js_ref((struct json *)(uintptr_t)content));
    enum status s = chat_parts(content, &parts);
    if (s == OK)
        return js_set(message, "content", parts);
    js_unref(parts);
    return s;
}

static enum status add_message(struct response_messages *m, const struct json *item)
{
    struct json *message;
    enum status s = push_message(m, js_string(js_get(item, "role"), NULL), &message);

    return s == OK ? set_content(message, js_get(item, "content")) : s;
}

/* Add a call to the assistant's message, which has no content if the calls are all of it. */
static enum status add_call(struct response_messages *m, const struct json *item)
{
    struct json *message = m->assistant, *call = NULL, *function = NULL;
    enum status s = message ? OK : push_message(m, "assistant", &message);

    if (s == OK && !js_get(message, "tool_calls"))
        s = js_set(message, "tool_calls", js_new_array());
    if (s == OK)
        s = (call = js_new_object()) && (function = js_new_object()) ? OK : ERR_NOMEM;
    if (s == OK)
        s = js_set(call, "id", js_ref(js_get(item, "call_id")));
    if (s == OK)
        s = set_text(call, "type", "function");
    if (s == OK)
        s = set_copy(function, "name", item);
    if (s == OK)
        s = set_copy(function, "arguments", item);
    if (s == OK) {
        s = js_set(call, "function", function);
        function = NULL;
    }
    js_unref(function);
    if (s == OK)
        return js_push(js_get(message, "tool_calls"), call);
    js_unref(call);
    return s;
}

static enum status add_output(struct response_messages *m, const struct json *item)
{
    struct json *message;
    enum status s = push_message(m, "tool", &message);

    if (s == OK)
        s = js_set(message, "tool_call_id", js_ref(js_get(item, "call_id")));
    return s == OK ? set_content(message, js_get(item, "output")) : s;
}

/* Thoughts belong to the assistant's message that follows. */
static enum status add_reasoning(struct response_messages *m, const struct json *item)
{
    const struct json *list = js_get(item, "content");
    enum status s = OK;

    m->assistant = NULL;
    if (js_len(list) == 0)
        list = js_get(item, "summary");
    for (size_t i = 0; s == OK && i < js_len(list); i++) {
        size_t len;
        const char *text = js_string(js_get(js_at(list, i), "text"), &len);
        s = buf_append(&m->reasoning, text, len);
    }
    return s;
}

enum status response_messages_add(struct response_messages *m, const struct json *items)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(items); i++) {
        const struct json *item = js_at(items, i);
        const char *type = js_string(js_get(item, "type"), NULL);
        if (strcmp(type, "message") == 0)
            s = add_message(m, item);
        else if (strcmp(type, "function_call") == 0)
            s = add_call(m, item);
        else if (strcmp(type, "function_call_output") == 0)
            s = add_output(m, item);
        else if (strcmp(type, "reasoning") == 0)
            s = add_reasoning(m, item);
    }
    return s;
}

enum status response_messages_add_text(struct response_messages *m, const struct buf *items)
{
    struct json *list = js_new_array();
    enum status s = list ? response_items_parse(list, items) : ERR_NOMEM;

    if (s == OK)
        s = response_messages_add(m, list);
    js_unref(list);
    return s;
}

enum status response_messages_add_system(struct response_messages *m, const char *text, size_t len)
{
    struct json *message;
    enum status s = push_message(m, "system", &message);

    return s == OK ? js_set(message, "content", js_new_string(text, len)) : s;
}
