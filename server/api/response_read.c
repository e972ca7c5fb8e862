#include "server/api/response_read.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "engine/retrieval/retrieval.h"
#include "server/api/response_items.h"
#include "server/api/search.h"

#define TOP_K_DEFAULT 4
#define METADATA_MAX 16
#define METADATA_KEY_BYTES 256    /* 64 characters */
#define METADATA_VALUE_BYTES 2048 /* 512 characters */
#define INCLUDES                                                                                   \
    "file_search_call.results|message.output_text.logprobs|reasoning.encrypted_content|"           \
    "web_search_call.results|web_search_call.action.sources|message.input_image.image_url|"        \
    "computer_call_output.output.image_url|code_interpreter_call.outputs"

/* Treatment of a field. */
enum rule {
    OWN,    /* read here */
    NOT_SET /* refused unless null, false, 0 or empty; `words`: what to do instead */
};

static const struct field {
    const char *name;
    enum rule rule;
    const char *words;
} fields[] = {
    {"input", OWN, NULL},
    {"instructions", OWN, NULL},
    {"previous_response_id", OWN, NULL},
    {"include", OWN, NULL},
    {"text", OWN, NULL},
    {"tools", OWN, NULL},
    {"tool_choice", OWN, NULL},
    {"reasoning", OWN, NULL},
    {"max_output_tokens", OWN, NULL},
    {"max_tool_calls", OWN, NULL},
    {"top_logprobs", OWN, NULL},
    {"truncation", OWN, NULL},
    {"background", OWN, NULL},
    {"store", OWN, NULL},
    {"metadata", OWN, NULL},
    {"preamble", OWN, NULL}, /* preamble_use.h */
    {"conversation", NOT_SET, "previous_response_id continues a conversation"},
    {"prompt", NOT_SET, "templates of prompts are not kept here; send input and instructions"},
    {"context_management", NOT_SET, "truncation \"auto\" drops old items"},
    {"messages", NOT_SET, "send input"},
    {"response_format", NOT_SET, "send text.format"},
    {"max_tokens", NOT_SET, "send max_output_tokens"},
    {"max_completion_tokens", NOT_SET, "send max_output_tokens"},
    {"logprobs", NOT_SET, "send include: [\"message.output_text.logprobs\"]"},
    {"reasoning_effort", NOT_SET, "send reasoning.effort"},
    {"functions", NOT_SET, "send tools"},
    {"function_call", NOT_SET, "send tool_choice"},
    {"n", NOT_SET, "a response has one answer"},
    {"best_of", NOT_SET, "a response has one answer"},
    {"prompt_logprobs", NOT_SET, "/v1/completions has it"},
    {"return_token_ids", NOT_SET, "/v1/chat/completions has it"},
};

static bool is_set(const struct json *v)
{
    switch (js_typeof(v)) {
    case JS_NULL: return false;
    case JS_BOOL: return js_bool(v);
    case JS_ARRAY:
    case JS_OBJECT: return js_len(v) > 0;
    default: return true;
    }
}

static const struct field *find_field(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static enum status set_text(struct json *obj, const char *key, const char *text)
{
    return js_set(obj, key, js_new_string(text, strlen(text)));
}

static enum status no_memory(struct buf *why, enum status s)
{
    return s == ERR_NOMEM && why->len == 0 ? buf_why(why, s, "out of memory") : s;
}

/* Copy what a chat has too. */
static enum status copy_fields(struct response_ask *a, struct buf *why)
{
    enum status s = OK;

    for (void *it = js_first(a->body); s == OK && it; it = js_next(a->body, it)) {
        const struct field *f = find_field(js_it_key(it));
        if (f && f->rule == NOT_SET && is_set(js_it_value(it)))
            s = buf_why(why, ERR_UNSUPPORTED, "%s: not supported; %s", f->name, f->words);
        else if (!f)
            s = js_set(a->chat, js_it_key(it), js_ref(js_it_value(it)));
    }
    return s;
}

static enum status expect_object(const struct json *v, const char *name, struct buf *why)
{
    return !v || js_is(v, JS_OBJECT) ? OK
                                     : buf_why(why, ERR_INVALID, "%s: expected an object, got %s",
                                               name, js_type_name(js_typeof(v)));
}

/* --- messages --- */

/* Add the turns before this one, the first one first. */
static enum status add_turns(struct response_messages *m, const struct response_turn *last,
                             struct buf *why)
{
    const struct response_turn **turns = NULL;
    struct buf list;
    size_t n_bytes = 0;
    enum status s = OK;

    buf_init(&list, SIZE_MAX / 2);
    for (const struct response_turn *t = last; s == OK && t; t = t->previous) {
        n_bytes += t->input.len + t->output.len;
        s = n_bytes > RESPONSE_READ_BYTES_MAX
                ? buf_why(why, ERR_TOO_LARGE,
                          "previous_response_id: the turns before have more than %u bytes; begin a "
                          "new conversation",
                          RESPONSE_READ_BYTES_MAX)
                : buf_append(&list, &t, sizeof t);
    }
    turns = (const struct response_turn **)(void *)list.data;
    for (size_t i = list.len / sizeof *turns; s == OK && i-- > 0;) {
        s = response_messages_add_text(m, &turns[i]->input);
        if (s == OK)
            s = response_messages_add_text(m, &turns[i]->output);
    }
    buf_fini(&list);
    return s;
}

static enum status write_items(struct buf *out, const struct json *items)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(items); i++) {
        s = i ? buf_putc(out, ',') : OK;
        if (s == OK)
            s = js_write(out, js_at(items, i));
    }
    return s;
}

/* Take the text of the chat's last message of a user as the query of the search. */
static enum status take_query(struct response_ask *a, const struct json *messages)
{
    const struct json *content = NULL;
    size_t len;

    buf_init(&a->query, SEARCH_QUERY_BYTES_MAX);
    for (size_t i = js_len(messages); !content && i-- > 0;)
        if (strcmp(js_string(js_get(js_at(messages, i), "role"), NULL), "user") == 0)
            content = js_get(js_at(messages, i), "content");
    if (!js_is(content, JS_STRING))
        content = js_get(js_at(content, js_len(content) - 1), "text");
    if (!js_is(content, JS_STRING))
        return OK;
    const char *text = js_string(content, &len);
    if (len > a->query.max)
        for (len = a->query.max; len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80;)
            len--;
    return buf_append(&a->query, text, len);
}

static enum status make_messages(struct response_ask *a, struct json *items, struct buf *why)
{
    const char *instructions = NULL;
    struct response_messages m;
    size_t len = 0;
    enum status s = js_get_str(a->body, "instructions", &instructions, &len, why);

    if (s != OK)
        return s;
    s = response_messages_init(&m);
    if (s == OK && instructions)
        s = response_messages_add_system(&m, instructions, len);
    a->n_instructions = instructions != NULL;
    if (s == OK)
        s = add_turns(&m, a->turn->previous, why);
    if (s == OK)
        s = response_messages_add(&m, items);
    if (s == OK && js_len(m.list) == a->n_instructions)
        s = buf_why(why, ERR_INVALID, "input: has no message");
    if (s == OK)
        s = take_query(a, m.list);
    if (s == OK) {
        s = js_set(a->chat, "messages", m.list);
        m.list = NULL;
    }
    response_messages_fini(&m);
    return no_memory(why, s);
}

static enum status read_previous(struct response_ask *a, struct responses *responses,
                                 const char *owner, struct response_turn **out, struct buf *why)
{
    const char *id = NULL;
    enum status s = js_get_str(a->body, "previous_response_id", &id, NULL, why);

    *out = NULL;
    if (s != OK || !id)
        return s;
    *out = responses_turn(responses, owner, id);
    if (*out && (*out)->is_final)
        return OK;
    a->error_code = "previous_response_not_found";
    s = *out
            ? buf_why(why, ERR_INVALID, "previous_response_id: response '%.80s' is in progress", id)
            : buf_why(why, ERR_INVALID,
                      "previous_response_id: Previous response with id '%.80s' not found. It was "
                      "not stored, forgotten (--stored-responses) or deleted.",
                      id);
    response_turn_unref(*out);
    *out = NULL;
    return s;
}

static enum status read_input(struct response_ask *a, struct responses *responses,
                              const char *owner, const char *id, struct buf *why)
{
    const struct response_source source = {responses, owner, id};
    struct response_turn *previous;
    struct json *items = NULL;
    enum status s = read_previous(a, responses, owner, &previous, why);

    if (s == OK)
        s = response_turn_create(&a->turn, id, previous);
    if (s == OK)
        s = (items = js_new_array()) ? OK : ERR_NOMEM;
    if (s == OK)
        s = response_items_read(items, js_get_set(a->body, "input"), &source, why);
    if (s == OK)
        s = write_items(&a->turn->input, items);
    if (s == OK)
        s = make_messages(a, items, why);
    /* All responses of a chain are one session, whose pauses the scheduler learns. */
    if (s == OK && previous && !js_get_set(a->chat, "session_id"))
        s = set_text(a->chat, "session_id", a->turn->root);
    js_unref(items);
    return no_memory(why, s);
}

bool response_ask_drop(struct response_ask *a, const struct json *messages, size_t n_dropped)
{
    struct json *left = js_new_array();
    size_t n = js_len(messages), at = a->n_instructions + n_dropped;
    enum status s = left ? OK : ERR_NOMEM;

    while (n_dropped > 0 && at < n &&
           strcmp(js_string(js_get(js_at(messages, at), "role"), NULL), "user") != 0)
        at++;
    bool is_empty = at >= n;
    if (s == OK && a->n_instructions > 0)
        s = js_push(left, js_ref(js_at(messages, 0)));
    for (; s == OK && at < n; at++)
        s = js_push(left, js_ref(js_at(messages, at)));
    if (s == OK && !is_empty)
        return js_set(a->chat, "messages", left) == OK;
    js_unref(left);
    return false;
}

/* --- tools --- */

static const char *const search_fields[] = {"type", "vector_store_ids", "max_num_results",
                                            "filters", "ranking_options"};

/* The scope that vector_store_ids name together; NULL: an error. */
static const char *read_stores(const struct json *ids, const char *field, struct buf *why)
{
    bool own = false, public = false;

    if (!js_is(ids, JS_ARRAY) || js_len(ids) == 0) {
        buf_why(why, ERR_INVALID, "%s.vector_store_ids: expected a list of names", field);
        return NULL;
    }
    for (size_t i = 0; i < js_len(ids); i++) {
        const char *name = "";
        if (js_is(js_at(ids, i), JS_STRING))
            name = js_string(js_at(ids, i), NULL);
        own |= strcmp(name, "own") == 0 || strcmp(name, "all") == 0;
        public |= strcmp(name, "public") == 0 || strcmp(name, "all") == 0;
        if (strcmp(name, "own") != 0 && strcmp(name, "public") != 0 && strcmp(name, "all") != 0) {
            buf_why(why, ERR_INVALID,
                    "%s.vector_store_ids[%zu]: there is no store \"%.80s\"; the registered "
                    "documents are \"all\", \"own\" or \"public\"",
                    field, i, name);
            return NULL;
        }
    }
    return own && public ? "all" : own ? "own" : "public";
}

static enum status check_ranking(const struct json *options, const char *field, struct buf *why)
{
    double threshold = 0;
    struct buf inner;

    if (!options)
        return OK;
    if (!js_is(options, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s.ranking_options: expected an object", field);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_get_f64(options, "score_threshold", 0, 1, &threshold, &inner);
    if (s != OK)
        buf_why(why, s, "%s.ranking_options.%s", field, buf_str(&inner));
    buf_fini(&inner);
    if (s == OK && (threshold > 0 || is_set(js_get(options, "hybrid_search"))))
        s = buf_why(why, ERR_UNSUPPORTED,
                    "%s.ranking_options: score_threshold and hybrid_search are not supported",
                    field);
    return s;
}

/* Ask for the search of a tool of type file_search. */
static enum status add_search(struct response_ask *a, const struct json *tool, const char *field,
                              struct buf *why)
{
    int64_t top_k = TOP_K_DEFAULT;
    struct json *r = NULL;
    struct buf inner;
    enum status s = OK;

    if (a->searches)
        return buf_why(why, ERR_UNSUPPORTED, "%s: one tool of type file_search is taken", field);
    if (js_get_set(a->chat, "retrieval"))
        return buf_why(why, ERR_INVALID,
                       "retrieval: the tool file_search asks for a search too; "
                       "leave out one of them");
    for (void *it = js_first(tool); s == OK && it; it = js_next(tool, it)) {
        bool known = false;
        for (size_t i = 0; i < ARRAY_SIZE(search_fields); i++)
            known |= strcmp(js_it_key(it), search_fields[i]) == 0;
        if (!known)
            s = buf_why(why, ERR_UNSUPPORTED, "%s.%.40s: not supported", field, js_it_key(it));
    }
    const char *scope = s == OK ? read_stores(js_get(tool, "vector_store_ids"), field, why) : NULL;
    if (!scope)
        return s == OK ? ERR_INVALID : s;
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = js_get_i64(tool, "max_num_results", 1, RETRIEVAL_TOP_K_MAX, &top_k, &inner);
    if (s != OK)
        buf_why(why, s, "%s.%s", field, buf_str(&inner));
    buf_fini(&inner);
    if (s == OK)
        s = check_ranking(js_get_set(tool, "ranking_options"), field, why);
    if (s != OK)
        return s;
    s = (r = js_new_object()) ? set_text(r, "scope", scope) : ERR_NOMEM;
    if (s == OK)
        s = js_set(r, "top_k", js_new_int(top_k));
    if (s == OK && js_get_set(tool, "filters"))
        s = js_set(r, "filter", js_ref(js_get(tool, "filters")));
    if (s == OK && a->query.len > 0)
        s = js_set(r, "query", js_new_string(a->query.data, a->query.len));
    if (s == OK)
        a->searches = true;
    if (s == OK)
        return js_set(a->chat, "retrieval", r);
    js_unref(r);
    return s;
}

/* Whether a member of tool_choice.tools names the tool. */
static bool is_allowed(const struct json *allowed, const struct json *tool, const char *type)
{
    const struct json *name = js_get(tool, "name");

    for (size_t i = 0; i < js_len(allowed); i++) {
        const struct json *t = js_get(js_at(allowed, i), "type");
        const struct json *n = js_get(js_at(allowed, i), "name");
        if (!js_is(t, JS_STRING) || strcmp(js_string(t, NULL), type) != 0)
            continue;
        if (strcmp(type, "function") != 0 ||
            (js_is(n, JS_STRING) && js_is(name, JS_STRING) &&
             strcmp(js_string(n, NULL), js_string(name, NULL)) == 0))
            return true;
    }
    return false;
}

/* Add a function in the form of a chat. */
static enum status add_function(struct json *list, const struct json *tool)
{
    struct json *out = js_new_object(), *function = js_new_object();
    enum status s = out && function ? set_text(out, "type", "function") : ERR_NOMEM;

    for (void *it = js_first(tool); s == OK && it; it = js_next(tool, it))
        if (strcmp(js_it_key(it), "type") != 0)
            s = js_set(function, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK) {
        s = js_set(out, "function", function);
        function = NULL;
    }
    js_unref(function);
    if (s == OK)
        return js_push(list, out);
    js_unref(out);
    return s;
}

static enum status add_tool(struct response_ask *a, struct json *list, const struct json *tool,
                            size_t i, const struct json *allowed, bool searches, struct buf *why)
{
    const char *type, *name;
    char field[48];

    snprintf(field, sizeof field, "tools[%zu].type", i);
    enum status s = js_read_cstr(js_get(tool, "type"), field, &type, why);
    if (s != OK)
        return s;
    bool fits = !allowed || is_allowed(allowed, tool, type);
    if (strcmp(type, "function") == 0) {
        snprintf(field, sizeof field, "tools[%zu].name", i);
        s = js_read_cstr(js_get(tool, "name"), field, &name, why);
        return s == OK && fits ? add_function(list, tool) : s;
    }
    if (strcmp(type, "file_search") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: \"%.40s\" is not supported; \"function\" and \"file_search\" are",
                       field, type);
    snprintf(field, sizeof field, "tools[%zu]", i);
    return fits && searches ? add_search(a, tool, field, why) : OK;
}

/* Translate tool_choice. *allowed: the tools that it allows; NULL: all. */
static enum status read_choice(struct response_ask *a, const struct json **allowed, bool *searches,
                               struct buf *why)
{
    struct json *v = js_get_set(a->body, "tool_choice"), *choice, *function;
    const char *type = NULL;

    *allowed = NULL;
    if (js_is(v, JS_STRING))
        *searches &= strcmp(js_string(v, NULL), "none") != 0;
    if (!js_is(v, JS_OBJECT))
        return v ? js_set(a->chat, "tool_choice", js_ref(v)) : OK;
    enum status s = js_read_cstr(js_get(v, "type"), "tool_choice.type", &type, why);
    if (s != OK)
        return s;
    if (strcmp(type, "allowed_tools") == 0) {
        struct json *mode = js_get(v, "mode");
        *allowed = js_get(v, "tools");
        if (!js_is(*allowed, JS_ARRAY) || !js_is(mode, JS_STRING))
            return buf_why(why, ERR_INVALID,
                           "tool_choice: allowed_tools needs mode and a list of tools");
        return js_set(a->chat, "tool_choice", js_ref(mode));
    }
    if (strcmp(type, "file_search") == 0)
        return OK; /* there is a search for every answer */
    if (strcmp(type, "function") != 0)
        return buf_why(why, ERR_UNSUPPORTED, "tool_choice.type: \"%.40s\" is not supported", type);
    choice = js_new_object();
    function = js_new_object();
    s = choice && function ? set_text(choice, "type", "function") : ERR_NOMEM;
    if (s == OK && js_get(v, "name"))
        s = js_set(function, "name", js_ref(js_get(v, "name")));
    if (s == OK) {
        s = js_set(choice, "function", function);
        function = NULL;
    }
    js_unref(function);
    if (s == OK)
        return js_set(a->chat, "tool_choice", choice);
    js_unref(choice);
    return s;
}

static enum status read_tools(struct response_ask *a, struct buf *why)
{
    const struct json *tools = js_get_set(a->body, "tools"), *allowed;
    int64_t n_max = INT64_MAX;
    enum status s = js_get_i64(a->body, "max_tool_calls", 0, INT64_MAX, &n_max, why);
    bool searches = n_max > 0;

    if (s == OK)
        s = read_choice(a, &allowed, &searches, why);
    if (s != OK || !tools)
        return no_memory(why, s);
    if (!js_is(tools, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "tools: expected an array, got %s",
                       js_type_name(js_typeof(tools)));
    struct json *list = js_new_array();
    s = list ? OK : ERR_NOMEM;
    for (size_t i = 0; s == OK && i < js_len(tools); i++)
        s = add_tool(a, list, js_at(tools, i), i, allowed, searches, why);
    if (s == OK && a->searches && !js_get(a->chat, "citations"))
        s = js_set(a->chat, "citations", js_new_bool(true));
    if (s == OK && js_len(list) > 0)
        return no_memory(why, js_set(a->chat, "tools", list));
    /* A choice among searches alone. */
    if (s == OK && a->searches && js_get(a->chat, "tool_choice"))
        s = set_text(a->chat, "tool_choice", "none");
    js_unref(list);
    return no_memory(why, s);
}

/* --- the rest --- */

/* {"type": "json_schema", "name", "schema", "strict"} as a chat has it. */
static enum status add_format(struct response_ask *a, const struct json *format)
{
    const struct json *type = js_get(format, "type");
    struct json *out, *schema;

    if (!js_is(type, JS_STRING) || strcmp(js_string(type, NULL), "json_schema") != 0)
        return js_set(a->chat, "response_format", js_ref((struct json *)(uintptr_t)format));
    out = js_new_object();
    schema = js_new_object();
    enum status s = out && schema ? set_text(out, "type", "json_schema") : ERR_NOMEM;
    for (void *it = js_first(format); s == OK && it; it = js_next(format, it))
        if (strcmp(js_it_key(it), "type") != 0)
            s = js_set(schema, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK) {
        s = js_set(out, "json_schema", schema);
        schema = NULL;
    }
    js_unref(schema);
    if (s == OK)
        return js_set(a->chat, "response_format", out);
    js_unref(out);
    return s;
}

static enum status read_text(struct response_ask *a, struct buf *why)
{
    const struct json *text = js_get_set(a->body, "text");
    const struct json *format = js_get_set(text, "format");
    enum status s = expect_object(text, "text", why);

    if (s == OK)
        s = expect_object(format, "text.format", why);
    if (s == OK && js_get_set(text, "verbosity"))
        s = js_set(a->chat, "verbosity", js_ref(js_get(text, "verbosity")));
    if (s == OK && format)
        s = add_format(a, format);
    return no_memory(why, s);
}

static enum status read_reasoning(struct response_ask *a, struct buf *why)
{
    const struct json *reasoning = js_get_set(a->body, "reasoning");
    const char *summary = NULL;
    enum status s = expect_object(reasoning, "reasoning", why);

    if (s == OK)
        s = js_get_str(reasoning, "summary", &summary, NULL, why);
    if (s == OK && !summary)
        s = js_get_str(reasoning, "generate_summary", &summary, NULL, why);
    if (s == OK && summary && !flag_is_choice("auto|concise|detailed", summary))
        s = buf_why(why, ERR_INVALID,
                    "reasoning.summary: \"%.40s\" is none of auto, concise, detailed", summary);
    a->wants_summary = summary != NULL;
    if (s == OK && js_get_set(reasoning, "effort"))
        s = js_set(a->chat, "reasoning_effort", js_ref(js_get(reasoning, "effort")));
    return no_memory(why, s);
}

static enum status read_include(struct response_ask *a, struct buf *why)
{
    const struct json *include = js_get_set(a->body, "include");
    char field[32];
    const char *word;
    enum status s = OK;

    if (include && !js_is(include, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "include: expected an array, got %s",
                       js_type_name(js_typeof(include)));
    for (size_t i = 0; s == OK && i < js_len(include); i++) {
        snprintf(field, sizeof field, "include[%zu]", i);
        s = js_read_cstr(js_at(include, i), field, &word, why);
        if (s == OK && !flag_is_choice(INCLUDES, word))
            s = buf_why(why, ERR_INVALID, "%s: \"%.80s\" is not known", field, word);
        a->wants_logprobs |= s == OK && strcmp(word, "message.output_text.logprobs") == 0;
        a->wants_results |= s == OK && strcmp(word, "file_search_call.results") == 0;
    }
    if (s == OK && a->wants_logprobs)
        s = js_set(a->chat, "logprobs", js_new_bool(true));
    if (s == OK && a->wants_logprobs && js_get_set(a->body, "top_logprobs"))
        s = js_set(a->chat, "top_logprobs", js_ref(js_get(a->body, "top_logprobs")));
    return no_memory(why, s);
}

static enum status check_metadata(const struct json *map, struct buf *why)
{
    size_t len;
    enum status s = expect_object(map, "metadata", why);

    if (s == OK && js_len(map) > METADATA_MAX)
        s = buf_why(why, ERR_INVALID, "metadata: %zu entries, at most %d are taken", js_len(map),
                    METADATA_MAX);
    for (void *it = js_first(map); s == OK && it; it = js_next(map, it)) {
        if (!js_is(js_it_value(it), JS_STRING))
            return buf_why(why, ERR_INVALID, "metadata.%.64s: expected a string, got %s",
                           js_it_key(it), js_type_name(js_typeof(js_it_value(it))));
        js_string(js_it_value(it), &len);
        if (strlen(js_it_key(it)) > METADATA_KEY_BYTES || len > METADATA_VALUE_BYTES)
            return buf_why(why, ERR_INVALID,
                           "metadata: keys have at most 64 characters, values at most 512");
    }
    return s;
}

static enum status read_rest(struct response_ask *a, struct buf *why)
{
    const char *truncation = "disabled";
    int64_t n_top = 0;
    enum status s = js_get_bool(a->body, "store", &a->store, why);

    if (s == OK)
        s = js_get_bool(a->body, "background", &a->background, why);
    if (s == OK && a->background && !a->store)
        s = buf_why(why, ERR_INVALID, "background: needs store to be true");
    if (s == OK)
        s = js_get_str(a->body, "truncation", &truncation, NULL, why);
    if (s == OK && !flag_is_choice("auto|disabled", truncation))
        s = buf_why(why, ERR_INVALID, "truncation: \"%.40s\" is none of auto, disabled",
                    truncation);
    a->truncates = s == OK && strcmp(truncation, "auto") == 0;
    if (s == OK)
        s = js_get_i64(a->body, "top_logprobs", 0, 20, &n_top, why);
    if (s == OK && js_get_set(a->body, "max_output_tokens"))
        s = js_set(a->chat, "max_completion_tokens", js_ref(js_get(a->body, "max_output_tokens")));
    return s == OK ? check_metadata(js_get_set(a->body, "metadata"), why) : s;
}

enum status response_ask_read(struct response_ask *a, struct responses *responses,
                              const char *owner, const char *id, const struct json *body,
                              struct buf *why)
{
    *a = (struct response_ask){.body = body, .chat = js_new_object(), .store = true};
    enum status s = a->chat ? copy_fields(a, why) : ERR_NOMEM;

    if (s == OK)
        s = read_rest(a, why);
    if (s == OK)
        s = read_input(a, responses, owner, id, why);
    if (s == OK)
        s = read_tools(a, why);
    if (s == OK)
        s = read_text(a, why);
    if (s == OK)
        s = read_reasoning(a, why);
    if (s == OK)
        s = read_include(a, why);
    return no_memory(why, s);
}

void response_ask_fini(struct response_ask *a)
{
    response_turn_unref(a->turn);
    js_unref(a->chat);
    buf_fini(&a->query);
    *a = (struct response_ask){0};
}
