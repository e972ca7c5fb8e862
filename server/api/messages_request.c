#include "server/api/messages_request.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "server/api/messages_content.h"
#include "server/api/retention.h"

#define N_MESSAGES_MAX 4096
#define N_TOOLS_MAX 1024
#define FIELD_BYTES 64

/* --- fields --- */

enum rule {
    READ,    /* translated here */
    COPIED,  /* as in a chat */
    IGNORED, /* no token depends on these strings */
    ANY,     /* nor on these */
    REFUSED, /* unless null or empty */
};

static const struct {
    const char *name;
    enum rule rule;
} fields[] = {
    {"messages", READ},
    {"system", READ},
    {"stop_sequences", READ},
    {"tools", READ},
    {"tool_choice", READ},
    {"thinking", READ},
    {"output_config", READ},
    {"output_format", READ},
    {"model", COPIED},
    {"max_tokens", COPIED},
    {"stream", COPIED},
    {"temperature", COPIED},
    {"top_p", COPIED},
    {"top_k", COPIED},
    {"metadata", COPIED},
    {"cache_control", COPIED},
    {"service_tier", IGNORED},
    {"inference_geo", IGNORED},
    {"speed", IGNORED},
    {"diagnostics", ANY},
    {"container", REFUSED},
    {"mcp_servers", REFUSED},
    /* Fields of Tarn's chats. */
    {"seed", COPIED},
    {"min_p", COPIED},
    {"repetition_penalty", COPIED},
    {"presence_penalty", COPIED},
    {"frequency_penalty", COPIED},
    {"logit_bias", COPIED},
    {"allowed_token_ids", COPIED},
    {"bad_words", COPIED},
    {"min_tokens", COPIED},
    {"ignore_eos", COPIED},
    {"stop_token_ids", COPIED},
    {"priority", COPIED},
    {"slo_ttft_ms", COPIED},
    {"slo_tpot_ms", COPIED},
    {"cache_salt", COPIED},
    {"cache_ttl", COPIED},
    {"session_id", COPIED},
    {"chat_template_kwargs", COPIED},
    {"parse_special", COPIED},
    {"preamble", READ}, /* preamble_use.h */
    {"documents", COPIED},
    {"documents_placement", COPIED},
    {"documents_order", COPIED},
    {"retrieval", COPIED},
    {"structured_outputs", COPIED},
};

static bool is_set(const struct json *v)
{
    return !js_is(v, JS_NULL) && !((js_is(v, JS_ARRAY) || js_is(v, JS_OBJECT)) && js_len(v) == 0);
}

static enum status copy_fields(struct json *chat, struct json *body, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(fields); i++) {
        struct json *v = js_get_set(body, fields[i].name);
        if (v && fields[i].rule == COPIED)
            s = js_set(chat, fields[i].name, js_ref(v));
        else if (v && fields[i].rule == REFUSED && is_set(v))
            s = buf_why(why, ERR_UNSUPPORTED, "%s: not supported", fields[i].name);
        else if (v && fields[i].rule == IGNORED && !js_is(v, JS_STRING))
            s = buf_why(why, ERR_INVALID, "%s: expected a string, got %s", fields[i].name,
                        js_type_name(js_typeof(v)));
    }
    return s;
}

void messages_find_unknown(struct unknown_fields *u, const struct json *body)
{
    const char *known[ARRAY_SIZE(fields)];

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        known[i] = fields[i].name;
    unknown_fields_find(u, body, "", known, ARRAY_SIZE(known));
}

static enum status set_word(struct json *out, const char *key, const char *word)
{
    return js_set(out, key, js_new_string(word, strlen(word)));
}

/* --- tools --- */

static enum status check_tool(struct json *tool, const char *name, struct buf *why)
{
    const char *type = "custom";
    char field[FIELD_BYTES];

    if (!js_is(tool, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", name,
                       js_type_name(js_typeof(tool)));
    snprintf(field, sizeof field, "%s.type", name);
    enum status s =
        js_get_set(tool, "type") ? js_read_cstr(js_get(tool, "type"), field, &type, why) : OK;
    if (s == OK && strcmp(type, "custom") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: \"%.40s\" is not supported: this server runs no tools; give the tool "
                       "a name and an input_schema",
                       field, type);
    if (s == OK && !js_is(js_get(tool, "input_schema"), JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "%s.input_schema: expected an object, got %s", name,
                    js_type_name(js_typeof(js_get(tool, "input_schema"))));
    if (s == OK)
        s = messages_check_type(tool, name, "name", JS_STRING, why);
    if (s == OK)
        s = messages_check_type(tool, name, "description", JS_STRING, why);
    if (s == OK)
        s = messages_check_type(tool, name, "strict", JS_BOOL, why);
    return s == OK ? messages_check_control(tool, name, why) : s;
}

static enum status push_tool(struct json *out, struct json *tool)
{
    struct json *made = js_new_object(), *function = js_new_object();
    enum status s = made && function ? set_word(made, "type", "function") : ERR_NOMEM;

    if (s == OK)
        s = messages_copy(function, "name", tool, "name");
    if (s == OK)
        s = messages_copy(function, "description", tool, "description");
    if (s == OK)
        s = messages_copy(function, "parameters", tool, "input_schema");
    if (s == OK)
        s = messages_copy(function, "strict", tool, "strict");
    if (s == OK) {
        s = js_set(made, "function", function);
        function = NULL;
    }
    if (s == OK) {
        s = js_push(out, made);
        made = NULL;
    }
    js_unref(made);
    js_unref(function);
    return s;
}

static enum status read_tools(struct json *chat, struct messages_content *c, struct json *tools,
                              struct buf *why)
{
    struct json *out;
    char name[FIELD_BYTES / 2];
    enum status s = OK;

    if (!tools)
        return OK;
    if (!js_is(tools, JS_ARRAY) || js_len(tools) > N_TOOLS_MAX)
        return buf_why(why, ERR_INVALID, "tools: expected an array of at most %d, got %s",
                       N_TOOLS_MAX, js_type_name(js_typeof(tools)));
    out = js_new_array();
    for (size_t i = 0; out && s == OK && i < js_len(tools); i++) {
        struct json *tool = js_at(tools, i);
        snprintf(name, sizeof name, "tools[%zu]", i);
        s = check_tool(tool, name, why);
        if (s == OK)
            s = push_tool(out, tool);
        if (s == OK && js_get_set(tool, "cache_control"))
            c->cache_control = js_get(tool, "cache_control");
    }
    if (s == OK)
        return js_set(chat, "tools", out);
    js_unref(out);
    return s;
}

/* {"type": "tool", "name"} as {"type": "function", "function": {"name"}}. */
static enum status choose_tool(struct json *chat, struct json *choice, struct buf *why)
{
    struct json *made, *function;
    const char *name;
    enum status s = js_read_cstr(js_get(choice, "name"), "tool_choice.name", &name, why);

    if (s != OK)
        return s;
    made = js_new_object();
    function = js_new_object();
    s = made && function ? set_word(made, "type", "function") : ERR_NOMEM;
    if (s == OK)
        s = set_word(function, "name", name);
    if (s == OK) {
        s = js_set(made, "function", function);
        function = NULL;
    }
    js_unref(function);
    if (s == OK)
        return js_set(chat, "tool_choice", made);
    js_unref(made);
    return s;
}

static enum status read_tool_choice(struct json *chat, struct json *choice, struct buf *why)
{
    static const struct {
        const char *type, *word;
    } words[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const char *type;
    bool alone = false;

    if (!choice)
        return OK;
    enum status s = js_read_cstr(js_get(choice, "type"), "tool_choice.type", &type, why);
    if (s == OK)
        s = messages_check_type(choice, "tool_choice", "disable_parallel_tool_use", JS_BOOL, why);
    if (s == OK)
        s = js_get_bool(choice, "disable_parallel_tool_use", &alone, why);
    if (s == OK && alone)
        s = js_set(chat, "parallel_tool_calls", js_new_bool(false));
    if (s != OK)
        return s;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(type, words[i].type) == 0)
            return set_word(chat, "tool_choice", words[i].word);
    return strcmp(type, "tool") == 0
               ? choose_tool(chat, choice, why)
               : buf_why(why, ERR_INVALID,
                         "tool_choice.type: \"%.40s\" is none of auto, any, tool, none", type);
}

/* --- the rest --- */

static enum status read_stops(struct json *chat, struct json *stops, struct buf *why)
{
    if (!stops)
        return OK;
    if (!js_is(stops, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "stop_sequences: expected an array, got %s",
                       js_type_name(js_typeof(stops)));
    for (size_t i = 0; i < js_len(stops); i++)
        if (!js_is(js_at(stops, i), JS_STRING))
            return buf_why(why, ERR_INVALID, "stop_sequences[%zu]: expected a string, got %s", i,
                           js_type_name(js_typeof(js_at(stops, i))));
    return js_set(chat, "stop", js_ref(stops));
}

/* Say to the template whether the model thinks, unless chat_template_kwargs says that. Templates
 * have one of two names for it. */
static enum status say_thinking(struct json *chat, bool on)
{
    struct json *given = js_get_set(chat, "chat_template_kwargs"), *made;
    enum status s = OK;

    if (given && !js_is(given, JS_OBJECT))
        return OK; /* the reader of the chat refuses it */
    if (js_get(given, "enable_thinking") || js_get(given, "thinking"))
        return OK;
    made = js_new_object();
    if (!made)
        return ERR_NOMEM;
    for (void *it = js_first(given); s == OK && it; it = js_next(given, it))
        s = js_set(made, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK)
        s = js_set(made, "enable_thinking", js_new_bool(on));
    if (s == OK)
        s = js_set(made, "thinking", js_new_bool(on));
    if (s == OK)
        return js_set(chat, "chat_template_kwargs", made);
    js_unref(made);
    return s;
}

static enum status read_thinking(struct json *chat, struct json *thinking, struct buf *why)
{
    static const char types[] = "enabled|disabled|adaptive", displays[] = "summarized|omitted";
    const char *type = "disabled", *display = "summarized";
    int64_t budget = 0;

    if (!thinking)
        return say_thinking(chat, false);
    enum status s = js_read_cstr(js_get(thinking, "type"), "thinking.type", &type, why);
    if (s == OK && !flag_is_choice(types, type))
        s = buf_why(why, ERR_INVALID, "thinking.type: \"%.40s\" is none of %s", type, types);
    if (s == OK)
        s = messages_check_type(thinking, "thinking", "budget_tokens", JS_INT, why);
    if (s == OK)
        s = js_get_i64(thinking, "budget_tokens", 1, INT64_MAX, &budget, why);
    if (s == OK && strcmp(type, "enabled") == 0 && budget == 0)
        s = buf_why(why, ERR_INVALID, "thinking.budget_tokens: is required");
    if (s == OK && js_get_set(thinking, "display"))
        s = js_read_cstr(js_get(thinking, "display"), "thinking.display", &display, why);
    if (s == OK && !flag_is_choice(displays, display))
        s = buf_why(why, ERR_INVALID, "thinking.display: \"%.40s\" is none of %s", display,
                    displays);
    if (s == OK && display[0] == 'o')
        s = js_set(chat, "include_reasoning", js_new_bool(false));
    if (s == OK && type[0] == 'e')
        s = js_set(chat, "thinking_token_budget",
                   js_new_int(budget < INT32_MAX ? budget : INT32_MAX));
    return s == OK ? say_thinking(chat, type[0] != 'd') : s;
}

/* {"type": "json_schema", "schema"} as response_format. */
static enum status read_format(struct json *chat, struct json *format, const char *name,
                               struct buf *why)
{
    struct json *made, *schema;
    const char *type;
    char field[FIELD_BYTES];

    snprintf(field, sizeof field, "%s.type", name);
    enum status s = js_read_cstr(js_get(format, "type"), field, &type, why);
    if (s != OK)
        return s;
    if (strcmp(type, "json_schema") != 0)
        return buf_why(why, ERR_UNSUPPORTED, "%s: \"%.40s\" is not supported, \"json_schema\" is",
                       field, type);
    if (!js_is(js_get(format, "schema"), JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s.schema: expected an object, got %s", name,
                       js_type_name(js_typeof(js_get(format, "schema"))));
    made = js_new_object();
    schema = js_new_object();
    s = made && schema ? set_word(made, "type", "json_schema") : ERR_NOMEM;
    if (s == OK)
        s = set_word(schema, "name", "answer");
    if (s == OK)
        s = messages_copy(schema, "schema", format, "schema");
    if (s == OK) {
        s = js_set(made, "json_schema", schema);
        schema = NULL;
    }
    js_unref(schema);
    if (s == OK)
        return js_set(chat, "response_format", made);
    js_unref(made);
    return s;
}

static enum status read_output(struct json *chat, struct json *body, struct buf *why)
{
    struct json *config = js_get_set(body, "output_config");
    struct json *format = js_get_set(config, "format"), *old = js_get_set(body, "output_format");
    enum status s = messages_check_type(body, "", "output_config", JS_OBJECT, why);

    if (s == OK)
        s = messages_copy(chat, "reasoning_effort", config, "effort");
    if (s == OK && format && old)
        s = buf_why(why, ERR_INVALID,
                    "output_format: output_config.format asks for a form already; give one");
    if (s == OK && format)
        return read_format(chat, format, "output_config.format", why);
    return s == OK && old ? read_format(chat, old, "output_format", why) : s;
}

/* --- messages --- */

static enum status read_messages(struct messages_content *c, struct json *body, struct buf *why)
{
    struct json *messages = js_get_set(body, "messages");
    size_t n = js_len(messages);
    enum status s = messages_add_system(c, js_get_set(body, "system"), why);

    if (s != OK)
        return s;
    if (!js_is(messages, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "messages: %s",
                       messages ? "expected an array" : "is required");
    if (n == 0 || n > N_MESSAGES_MAX)
        return buf_why(why, ERR_INVALID, "messages: expected 1 to %d entries, got %zu",
                       N_MESSAGES_MAX, n);
    for (size_t i = 0; s == OK && i < n; i++)
        s = messages_add(c, js_at(messages, i), i, why);
    return s;
}

/* Put the documents of blocks behind those of the body's field. */
static enum status join_documents(struct json *chat, struct json *found, struct buf *why)
{
    struct json *given = js_get_set(chat, "documents"), *all;
    enum status s = OK;

    if (js_len(found) == 0)
        return OK;
    if (given && !js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "documents: expected an array, got %s",
                       js_type_name(js_typeof(given)));
    all = js_new_array();
    if (!all)
        return ERR_NOMEM;
    for (size_t i = 0; s == OK && i < js_len(given); i++)
        s = js_push(all, js_ref(js_at(given, i)));
    for (size_t i = 0; s == OK && i < js_len(found); i++)
        s = js_push(all, js_ref(js_at(found, i)));
    if (s == OK)
        return js_set(chat, "documents", all);
    js_unref(all);
    return s;
}

static enum status translate(struct json *chat, struct messages_content *c, struct json *body,
                             struct buf *why)
{
    enum status s = copy_fields(chat, body, why);

    if (s == OK)
        s = read_stops(chat, js_get_set(body, "stop_sequences"), why);
    if (s == OK)
        s = read_tools(chat, c, js_get_set(body, "tools"), why);
    if (s == OK)
        s = read_tool_choice(chat, js_get_set(body, "tool_choice"), why);
    if (s == OK)
        s = read_thinking(chat, js_get_set(body, "thinking"), why);
    if (s == OK)
        s = read_output(chat, body, why);
    if (s == OK)
        s = read_messages(c, body, why);
    if (s == OK && c->continues)
        s = js_set(chat, "continue_final_message", js_new_bool(true));
    return s == OK ? join_documents(chat, c->documents, why) : s;
}

enum status messages_to_chat(struct json **out, const struct json *body, bool counts,
                             struct buf *why)
{
    struct messages_content c = {.messages = js_new_array(), .documents = js_new_array()};
    struct json *chat = js_new_object();
    enum status s = chat && c.messages && c.documents ? OK : ERR_NOMEM;

    *out = NULL;
    if (s == OK && !counts && !js_get_set(body, "max_tokens"))
        s = buf_why(why, ERR_INVALID, "max_tokens: is required");
    /* The values are shared: only their counts of references change. */
    if (s == OK)
        s = translate(chat, &c, (struct json *)(uintptr_t)body, why);
    if (s == OK) {
        s = js_set(chat, "messages", c.messages);
        c.messages = NULL;
    }
    js_unref(c.messages);
    js_unref(c.documents);
    if (s == OK) {
        *out = chat;
        return OK;
    }
    js_unref(chat);
    return s == ERR_NOMEM ? buf_why(why, s, "out of memory") : s;
}
