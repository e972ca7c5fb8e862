#include "server/api/messages_content.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/api/retention.h"

#define NAME_BYTES 96                  /* of a block */
#define INNER_BYTES (NAME_BYTES + 32)  /* of an object in such a block */
#define FIELD_BYTES (INNER_BYTES + 48) /* of a member of it */
#define TEXT_BYTES_MAX (256u << 20)

/* The blocks of one message while it is read. */
struct turn {
    struct messages_content *c;
    const char *role;
    struct json *parts, *calls; /* NULL: none yet */
    struct buf thoughts;
    struct buf *why;
};

/* --- members --- */

enum status messages_check_type(struct json *object, const char *name, const char *key,
                                enum js_type type, struct buf *why)
{
    static const char *const expected[] = {
        [JS_BOOL] = "a boolean", [JS_INT] = "an integer",   [JS_STRING] = "a string",
        [JS_ARRAY] = "an array", [JS_OBJECT] = "an object", [JS_REAL] = "a number",
        [JS_NULL] = "null"};
    const struct json *v = js_get_set(object, key);

    if (!v || js_is(v, type))
        return OK;
    return buf_why(why, ERR_INVALID, "%s%s%s: expected %s, got %s", name, name[0] ? "." : "", key,
                   expected[type], js_type_name(js_typeof(v)));
}

enum status messages_check_control(struct json *object, const char *name, struct buf *why)
{
    char field[FIELD_BYTES];
    uint32_t ttl_s;

    snprintf(field, sizeof field, "%s.cache_control", name);
    return retention_read_control(js_get_set(object, "cache_control"), field, &ttl_s, why);
}

enum status messages_copy(struct json *out, const char *out_key, struct json *from, const char *key)
{
    struct json *v = js_get_set(from, key);

    return v ? js_set(out, out_key, js_ref(v)) : OK;
}

static enum status set_word(struct json *out, const char *key, const char *word)
{
    return js_set(out, key, js_new_string(word, strlen(word)));
}

static enum status read_word(struct json *object, const char *name, const char *key,
                             const char **word, struct buf *why)
{
    char field[FIELD_BYTES + 64];

    snprintf(field, sizeof field, "%s.%s", name, key);
    return js_read_cstr(js_get(object, key), field, word, why);
}

/* --- parts of text --- */

static enum status push_part(struct json **parts, struct json *text, struct json *control)
{
    struct json *part = js_new_object();
    enum status s = part ? set_word(part, "type", "text") : ERR_NOMEM;

    if (!*parts)
        *parts = js_new_array();
    if (s == OK && !*parts)
        s = ERR_NOMEM;
    if (s == OK)
        s = js_set(part, "text", js_ref(text));
    if (s == OK && control)
        s = js_set(part, "cache_control", js_ref(control));
    if (s == OK)
        return js_push(*parts, part);
    js_unref(part);
    return s;
}

static enum status push_text(struct json **parts, struct json *block, const char *name,
                             bool may_be_empty, struct buf *why)
{
    struct json *text = js_get(block, "text");
    size_t len = 0;

    if (!js_is(text, JS_STRING))
        return buf_why(why, ERR_INVALID, "%s.text: expected a string, got %s", name,
                       js_type_name(js_typeof(text)));
    (void)js_string(text, &len);
    if (len == 0 && !may_be_empty)
        return buf_why(why, ERR_INVALID, "%s.text: must not be empty", name);
    enum status s = messages_check_control(block, name, why);
    return s == OK ? push_part(parts, text, js_get_set(block, "cache_control")) : s;
}

/* Append the text of an array of text blocks, or a string. */
static enum status append_text(struct buf *out, struct json *v, const char *name, struct buf *why)
{
    enum status s = OK;
    const char *type, *text;
    char field[FIELD_BYTES];
    size_t len;

    if (js_is(v, JS_STRING)) {
        text = js_string(v, &len);
        return buf_append(out, text, len);
    }
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "%s: expected a string or an array of text blocks, got %s",
                       name, js_type_name(js_typeof(v)));
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        snprintf(field, sizeof field, "%s[%zu]", name, i);
        s = read_word(js_at(v, i), field, "type", &type, why);
        if (s == OK && strcmp(type, "text") != 0)
            return buf_why(why, ERR_UNSUPPORTED,
                           "%s.type: \"%.40s\" blocks are not supported here, only \"text\"", field,
                           type);
        const struct json *block = js_get(js_at(v, i), "text");
        if (s == OK && !js_is(block, JS_STRING))
            return buf_why(why, ERR_INVALID, "%s.text: expected a string, got %s", field,
                           js_type_name(js_typeof(block)));
        if (s == OK && i > 0)
            s = buf_putc(out, '\n');
        text = s == OK ? js_string(block, &len) : "";
        if (s == OK)
            s = buf_append(out, text, len);
    }
    return s;
}

/* --- documents --- */

/* Append the text of a document's source. */
static enum status append_source(struct buf *out, struct json *block, const char *name,
                                 struct buf *why)
{
    struct json *source = js_get(block, "source");
    char at[INNER_BYTES], field[FIELD_BYTES];
    const char *type, *media = "text/plain";

    snprintf(at, sizeof at, "%s.source", name);
    enum status s = read_word(source, at, "type", &type, why);
    if (s != OK)
        return s;
    if (strcmp(type, "content") == 0) {
        snprintf(field, sizeof field, "%s.content", at);
        return append_text(out, js_get(source, "content"), field, why);
    }
    if (strcmp(type, "text") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s.type: \"%.40s\" is not supported: documents are plain text, so send "
                       "\"text\" or \"content\"",
                       at, type);
    if (js_get_set(source, "media_type"))
        s = read_word(source, at, "media_type", &media, why);
    if (s == OK && strcmp(media, "text/plain") != 0)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "%s.media_type: \"%.40s\" is not supported, \"text/plain\" is", at, media);
    if (s == OK && !js_is(js_get(source, "data"), JS_STRING))
        s = buf_why(why, ERR_INVALID, "%s.data: expected a string, got %s", at,
                    js_type_name(js_typeof(js_get(source, "data"))));
    snprintf(field, sizeof field, "%s.data", at);
    return s == OK ? append_text(out, js_get(source, "data"), field, why) : s;
}

/* Append the text of a block "document" or "search_result". */
static enum status append_document(struct buf *out, struct json *block, const char *type,
                                   const char *name, struct buf *why)
{
    struct json *citations = js_get_set(block, "citations"), *context;
    char field[FIELD_BYTES];
    bool on = false;
    enum status s = js_get_bool(citations, "enabled", &on, NULL);

    if (s != OK || on)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s.citations: not supported; leave it out, or send `documents` and "
                       "`citations` to /v1/chat/completions",
                       name);
    s = messages_check_type(block, name, "title", JS_STRING, why);
    if (s == OK)
        s = messages_check_type(block, name, "context", JS_STRING, why);
    if (s == OK)
        s = messages_check_control(block, name, why);
    context = js_get_set(block, "context");
    if (s == OK && context) {
        s = append_text(out, context, "", why);
        if (s == OK)
            s = buf_puts(out, "\n\n");
    }
    snprintf(field, sizeof field, "%s.content", name);
    if (s == OK)
        s = type[0] == 'd' ? append_source(out, block, name, why)
                           : append_text(out, js_get(block, "content"), field, why);
    return s;
}

static enum status push_document(struct messages_content *c, struct json *block, const char *type,
                                 const char *name, struct buf *why)
{
    struct json *d = js_new_object();
    struct buf text;

    buf_init(&text, TEXT_BYTES_MAX);
    enum status s = d ? append_document(&text, block, type, name, why) : ERR_NOMEM;
    if (s == OK)
        s = messages_copy(d, "title", block, "title");
    if (s == OK)
        s = js_set(d, "text", js_new_string(buf_str(&text), text.len));
    buf_fini(&text);
    if (s == OK && !c->has_turn && js_get_set(block, "cache_control"))
        c->cache_control = js_get(block, "cache_control");
    if (s == OK)
        return js_push(c->documents, d);
    js_unref(d);
    return s;
}

/* --- messages --- */

/* Add a message and take it over; the first one gets the breakpoint of tools and documents. */
static enum status add_message(struct messages_content *c, struct json *m)
{
    enum status s = OK;

    if (!c->has_turn && c->cache_control && !js_get(m, "cache_control"))
        s = js_set(m, "cache_control", js_ref(c->cache_control));
    c->has_turn = true;
    if (s == OK)
        return js_push(c->messages, m);
    js_unref(m);
    return s;
}

/* Make a message; takes over content, which may be NULL. */
static enum status new_message(struct json **out, const char *role, struct json *content)
{
    struct json *m = js_new_object();
    enum status s = m ? set_word(m, "role", role) : ERR_NOMEM;

    if (s == OK && content)
        s = js_set(m, "content", content);
    else if (content)
        js_unref(content);
    *out = s == OK ? m : NULL;
    if (s != OK)
        js_unref(m);
    return s;
}

/* Add the text so far as a message. */
static enum status flush(struct turn *t)
{
    struct json *m, *parts = t->parts;

    t->parts = NULL;
    if (!parts)
        return OK;
    enum status s = new_message(&m, t->role, parts);
    return s == OK ? add_message(t->c, m) : s;
}

/* --- results of tools --- */

static enum status read_result_block(struct turn *t, struct json *block, const char *name,
                                     struct json **parts)
{
    struct json *made = NULL;
    struct buf text;
    const char *type;
    enum status s = read_word(block, name, "type", &type, t->why);

    if (s != OK)
        return s;
    if (strcmp(type, "text") == 0)
        return push_text(parts, block, name, true, t->why);
    if (strcmp(type, "document") != 0 && strcmp(type, "search_result") != 0)
        return buf_why(t->why, ERR_UNSUPPORTED,
                       "%s.type: \"%.40s\" blocks are not supported; text, document and "
                       "search_result are",
                       name, type);
    buf_init(&text, TEXT_BYTES_MAX);
    s = append_document(&text, block, type, name, t->why);
    if (s == OK && !(made = js_new_string(buf_str(&text), text.len)))
        s = ERR_NOMEM;
    buf_fini(&text);
    if (s == OK)
        s = push_part(parts, made, js_get_set(block, "cache_control"));
    js_unref(made);
    return s;
}

static enum status read_result(struct turn *t, struct json *block, const char *name,
                               struct json **content)
{
    struct json *v = js_get_set(block, "content");
    char field[INNER_BYTES];
    enum status s = OK;

    *content = NULL;
    if (!v || (js_is(v, JS_ARRAY) && js_len(v) == 0))
        return (*content = js_new_string("", 0)) ? OK : ERR_NOMEM;
    if (js_is(v, JS_STRING)) {
        *content = js_ref(v);
        return OK;
    }
    if (!js_is(v, JS_ARRAY))
        return buf_why(t->why, ERR_INVALID, "%s.content: expected a string or an array, got %s",
                       name, js_type_name(js_typeof(v)));
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        snprintf(field, sizeof field, "%s.content[%zu]", name, i);
        s = read_result_block(t, js_at(v, i), field, content);
    }
    return s;
}

static enum status add_result(struct turn *t, struct json *block, const char *name)
{
    struct json *content = NULL, *m = NULL;
    const char *id;
    enum status s = read_word(block, name, "tool_use_id", &id, t->why);

    if (s == OK)
        s = messages_check_type(block, name, "is_error", JS_BOOL, t->why);
    if (s == OK)
        s = messages_check_control(block, name, t->why);
    if (s == OK)
        s = read_result(t, block, name, &content);
    if (s == OK)
        s = flush(t);
    if (s != OK) {
        js_unref(content);
        return s;
    }
    s = new_message(&m, "tool", content);
    if (s == OK)
        s = messages_copy(m, "tool_call_id", block, "tool_use_id");
    if (s == OK)
        s = messages_copy(m, "cache_control", block, "cache_control");
    if (s == OK)
        return add_message(t->c, m);
    js_unref(m);
    return s;
}

/* --- calls of tools --- */

static enum status make_call(struct json *call, struct json *block)
{
    struct json *function = js_new_object();
    enum status s = function ? messages_copy(function, "name", block, "name") : ERR_NOMEM;

    if (s == OK)
        s = messages_copy(function, "arguments", block, "input");
    if (s == OK)
        s = messages_copy(call, "id", block, "id");
    if (s == OK)
        s = set_word(call, "type", "function");
    if (s == OK)
        return js_set(call, "function", function);
    js_unref(function);
    return s;
}

static enum status add_call(struct turn *t, struct json *block, const char *name)
{
    const char *word;
    enum status s = read_word(block, name, "id", &word, t->why);

    if (s == OK)
        s = read_word(block, name, "name", &word, t->why);
    if (s == OK && !js_is(js_get(block, "input"), JS_OBJECT))
        s = buf_why(t->why, ERR_INVALID, "%s.input: expected an object, got %s", name,
                    js_type_name(js_typeof(js_get(block, "input"))));
    if (s == OK)
        s = messages_check_control(block, name, t->why);
    if (s != OK)
        return s;
    struct json *call = js_new_object();
    if (!t->calls)
        t->calls = js_new_array();
    s = call && t->calls ? make_call(call, block) : ERR_NOMEM;
    if (s == OK)
        return js_push(t->calls, call);
    js_unref(call);
    return s;
}

/* --- blocks --- */

static enum status add_thinking(struct turn *t, struct json *block, const char *name)
{
    struct json *v = js_get(block, "thinking");
    size_t len;

    if (!js_is(v, JS_STRING))
        return buf_why(t->why, ERR_INVALID, "%s.thinking: expected a string, got %s", name,
                       js_type_name(js_typeof(v)));
    enum status s = t->thoughts.len ? buf_putc(&t->thoughts, '\n') : OK;
    const char *text = js_string(v, &len);
    return s == OK ? buf_append(&t->thoughts, text, len) : s;
}

static enum status refuse_block(const struct turn *t, const char *name, const char *type)
{
    static const char *const known[] = {"tool_use",    "thinking", "redacted_thinking",
                                        "tool_result", "document", "search_result"};

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (strcmp(type, known[i]) == 0)
            return buf_why(t->why, ERR_INVALID, "%s.type: \"%s\" is no block of the role \"%s\"",
                           name, type, t->role);
    return buf_why(t->why, ERR_UNSUPPORTED,
                   "%s.type: \"%.40s\" blocks are not supported; text, document, search_result, "
                   "tool_use, tool_result and thinking are",
                   name, type);
}

static enum status add_block(struct turn *t, struct json *block, const char *name)
{
    bool is_user = t->role[0] == 'u', is_assistant = t->role[0] == 'a';
    const char *type;
    enum status s = read_word(block, name, "type", &type, t->why);

    if (s != OK)
        return s;
    if (strcmp(type, "text") == 0)
        return push_text(&t->parts, block, name, is_assistant, t->why);
    if (is_user && strcmp(type, "tool_result") == 0)
        return add_result(t, block, name);
    if (is_user && (strcmp(type, "document") == 0 || strcmp(type, "search_result") == 0))
        return push_document(t->c, block, type, name, t->why);
    if (is_assistant && strcmp(type, "tool_use") == 0)
        return add_call(t, block, name);
    if (is_assistant && strcmp(type, "thinking") == 0)
        return add_thinking(t, block, name);
    if (is_assistant && strcmp(type, "redacted_thinking") == 0)
        return OK; /* only its writer can read it */
    return refuse_block(t, name, type);
}

/* Add the message of the assistant that the blocks make. */
static enum status end_answer(struct turn *t, struct json *last_block)
{
    bool has_text = t->parts != NULL;
    struct json *m, *parts = t->parts;

    t->parts = NULL;
    if (!parts && !t->calls && !(parts = js_new_string("", 0)))
        return ERR_NOMEM;
    enum status s = new_message(&m, t->role, parts);
    if (s != OK)
        return s;
    if (t->calls) {
        s = js_set(m, "tool_calls", t->calls);
        t->c->continues = false;
        t->calls = NULL;
        /* A breakpoint of a call; that of a text is in its part. */
        if (s == OK && js_is(js_get(last_block, "input"), JS_OBJECT))
            s = messages_copy(m, "cache_control", last_block, "cache_control");
    } else {
        t->c->continues = has_text;
    }
    if (s == OK && t->thoughts.len > 0)
        s = js_set(m, "reasoning_content", js_new_string(buf_str(&t->thoughts), t->thoughts.len));
    if (s == OK)
        return add_message(t->c, m);
    js_unref(m);
    return s;
}

static enum status add_blocks(struct turn *t, struct json *content, size_t index)
{
    char name[NAME_BYTES];
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(content); i++) {
        snprintf(name, sizeof name, "messages[%zu].content[%zu]", index, i);
        s = add_block(t, js_at(content, i), name);
    }
    if (s != OK)
        return s;
    if (t->role[0] != 'a')
        return flush(t);
    return end_answer(t, js_at(content, js_len(content) ? js_len(content) - 1 : 0));
}

static enum status read_role(struct json *message, size_t index, const char **role, struct buf *why)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "messages[%zu]", index);
    if (!js_is(message, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", name,
                       js_type_name(js_typeof(message)));
    enum status s = read_word(message, name, "role", role, why);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(roles); i++)
        if (strcmp(*role, roles[i]) == 0)
            return OK;
    return s == OK ? buf_why(why, ERR_INVALID,
                             "%s.role: \"%.40s\" is none of user, assistant, system", name, *role)
                   : s;
}

enum status messages_add(struct messages_content *c, struct json *message, size_t index,
                         struct buf *why)
{
    struct json *content, *m;
    const char *role;
    size_t len = 0;
    enum status s = read_role(message, index, &role, why);

    if (s != OK)
        return s;
    content = js_get_set(message, "content");
    c->continues = false;
    if (js_is(content, JS_STRING)) {
        (void)js_string(content, &len);
        c->continues = role[0] == 'a' && len > 0;
        s = new_message(&m, role, js_ref(content));
        return s == OK ? add_message(c, m) : s;
    }
    if (!js_is(content, JS_ARRAY))
        return buf_why(why, ERR_INVALID,
                       "messages[%zu].content: expected a string or an array of blocks, got %s",
                       index, js_type_name(js_typeof(content)));
    struct turn t = {.c = c, .role = role, .why = why};
    buf_init(&t.thoughts, TEXT_BYTES_MAX);
    s = add_blocks(&t, content, index);
    js_unref(t.parts);
    js_unref(t.calls);
    buf_fini(&t.thoughts);
    return s;
}

enum status messages_add_system(struct messages_content *c, struct json *v, struct buf *why)
{
    struct json *parts = NULL, *m;
    const char *type;
    char name[NAME_BYTES];
    enum status s = OK;

    if (js_is(v, JS_STRING))
        parts = js_ref(v);
    else if (v && !js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "system: expected a string or an array of blocks, got %s",
                       js_type_name(js_typeof(v)));
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        snprintf(name, sizeof name, "system[%zu]", i);
        s = read_word(js_at(v, i), name, "type", &type, why);
        if (s == OK && strcmp(type, "text") != 0)
            s = buf_why(why, ERR_UNSUPPORTED,
                        "%s.type: \"%.40s\" blocks are not supported, only \"text\"", name, type);
        if (s == OK)
            s = push_text(&parts, js_at(v, i), name, false, why);
    }
    if (s == OK && parts) {
        s = new_message(&m, "system", parts);
        return s == OK ? js_push(c->messages, m) : s;
    }
    js_unref(parts);
    return s;
}
