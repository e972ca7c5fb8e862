#include "server/api/tools.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/grammar.h"
#include "engine/stopping.h"
#include "server/api/structured.h"
#include "server/server.h"

#define TYPES_BYTES_MAX ((size_t)4 << 20)
#define NAMES_BYTES_MAX ((size_t)TOOLS_MAX * (TOOL_NAME_BYTES_MAX + 1))

/* --- tools --- */

static bool is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");

    return n > 0 && n <= TOOL_NAME_BYTES_MAX && name[n] == '\0';
}

static bool has_name(const struct buf *names, const char *name)
{
    for (size_t at = 0; at < names->len; at += strlen(buf_str(names) + at) + 1)
        if (strcmp(buf_str(names) + at, name) == 0)
            return true;
    return false;
}

/* Check tools[i].function and add its name. */
static enum status check_function(const struct json *function, size_t i, struct buf *names,
                                  struct buf *why)
{
    const struct json *parameters = js_get_set(function, "parameters");
    const struct json *description = js_get_set(function, "description");
    const struct json *strict = js_get_set(function, "strict");
    const char *name;
    char field[64];

    snprintf(field, sizeof field, "tools[%zu].function.name", i);
    enum status s = js_read_cstr(js_get(function, "name"), field, &name, why);
    if (s != OK)
        return s;
    if (!is_name(name))
        return buf_why(why, ERR_INVALID,
                       "%s: expected 1 to %u letters, digits, and of _ - ., got \"%.80s\"", field,
                       TOOL_NAME_BYTES_MAX, name);
    if (has_name(names, name))
        return buf_why(why, ERR_INVALID, "%s: another tool has the name \"%s\"", field, name);
    if (parameters && !js_is(parameters, JS_OBJECT))
        return buf_why(why, ERR_INVALID,
                       "tools[%zu].function.parameters: expected an object, got %s", i,
                       js_type_name(js_typeof(parameters)));
    if (description && !js_is(description, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "tools[%zu].function.description: expected a string, got %s", i,
                       js_type_name(js_typeof(description)));
    if (strict && !js_is(strict, JS_BOOL))
        return buf_why(why, ERR_INVALID, "tools[%zu].function.strict: expected a boolean, got %s",
                       i, js_type_name(js_typeof(strict)));
    s = buf_append(names, name, strlen(name) + 1);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

static enum status check_tool(const struct json *tool, size_t i, struct buf *names, struct buf *why)
{
    const char *type;
    char field[48];

    if (!js_is(tool, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "tools[%zu]: expected an object, got %s", i,
                       js_type_name(js_typeof(tool)));
    snprintf(field, sizeof field, "tools[%zu].type", i);
    enum status s = js_read_cstr(js_get(tool, "type"), field, &type, why);
    if (s != OK)
        return s;
    if (strcmp(type, "function") != 0)
        return buf_why(why, ERR_UNSUPPORTED, "%s: \"%.40s\" is not supported, \"function\" is",
                       field, type);
    if (!js_is(js_get(tool, "function"), JS_OBJECT))
        return buf_why(why, ERR_INVALID, "tools[%zu].function: expected an object, got %s", i,
                       js_type_name(js_typeof(js_get(tool, "function"))));
    return check_function(js_get(tool, "function"), i, names, why);
}

/* Check the tools of a body and list their names. */
static enum status read_tools(const struct chat_kit *kit, const struct json *body,
                              const struct json **out, struct buf *names, struct buf *why)
{
    const struct json *tools = js_get_set(body, "tools");
    enum status s = OK;

    *out = NULL;
    if (!tools)
        return OK;
    if (!js_is(tools, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "tools: expected an array, got %s",
                       js_type_name(js_typeof(tools)));
    if (js_len(tools) > TOOLS_MAX)
        return buf_why(why, ERR_INVALID, "tools: %zu entries, at most %u are taken", js_len(tools),
                       TOOLS_MAX);
    for (size_t i = 0; s == OK && i < js_len(tools); i++)
        s = check_tool(js_at(tools, i), i, names, why);
    if (s != OK || js_len(tools) == 0)
        return s;
    if (!kit->template || !chat_template_uses(kit->template, "tools"))
        return buf_why(why, ERR_UNSUPPORTED,
                       "tools: this model's chat template does not know tools; serve a model whose "
                       "template does, or give one with --chat-template");
    *out = tools;
    return OK;
}

enum status tools_check(const struct chat_kit *kit, const struct json *body,
                        const struct json **tools, struct buf *why)
{
    struct buf names;

    buf_init(&names, NAMES_BYTES_MAX);
    enum status s = read_tools(kit, body, tools, &names, why);
    buf_fini(&names);
    return s;
}

/* --- the choice --- */

enum choice_kind { CHOOSE_NONE, CHOOSE_AUTO, CHOOSE_REQUIRED, CHOOSE_NAMED };

static enum status read_named(const struct json *v, const struct buf *names, const char **only,
                              struct buf *why)
{
    const char *type;
    enum status s = js_read_cstr(js_get(v, "type"), "tool_choice.type", &type, why);

    if (s != OK)
        return s;
    if (strcmp(type, "function") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "tool_choice: type \"%.40s\" is not supported, \"function\" is", type);
    s = js_read_cstr(js_get(js_get(v, "function"), "name"), "tool_choice.function.name", only, why);
    if (s != OK || has_name(names, *only))
        return s;
    return buf_why(why, ERR_INVALID, "tool_choice.function.name: no tool has the name \"%.80s\"",
                   *only);
}

static enum status read_choice(const struct json *body, const struct buf *names,
                               enum choice_kind *kind, const char **only, struct buf *why)
{
    static const char *const words[] = {"none", "auto", "required"};
    const struct json *v = js_get_set(body, "tool_choice");
    const char *word;

    *kind = names->len > 0 ? CHOOSE_AUTO : CHOOSE_NONE;
    if (!v)
        return OK;
    if (js_is(v, JS_OBJECT)) {
        *kind = CHOOSE_NAMED;
        return read_named(v, names, only, why);
    }
    enum status s = js_read_cstr(v, "tool_choice", &word, why);
    if (s != OK)
        return s;
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *kind = (enum choice_kind)i;
            return *kind == CHOOSE_NONE || names->len > 0
                       ? OK
                       : buf_why(why, ERR_INVALID, "tool_choice: needs tools");
        }
    return buf_why(why, ERR_INVALID,
                   "tool_choice: \"%.40s\" is none of none, auto, required, and no object", word);
}

static bool any_strict(const struct json *tools)
{
    for (size_t i = 0; i < js_len(tools); i++) {
        const struct json *v = js_get(js_get(js_at(tools, i), "function"), "strict");
        if (js_is(v, JS_BOOL) && js_bool(v))
            return true;
    }
    return false;
}

/* --- types of arguments, for formats that write them as plain text --- */

/* "s": a string; "n": a string or null; 0: another one, or not known. */
static char type_of(const struct json *schema)
{
    const struct json *type = js_get(schema, "type"), *values = js_get(schema, "enum");
    bool is_string = js_len(values) > 0, is_null = false;
    const char *word;

    if (js_is(type, JS_STRING) && js_read_cstr(type, "", &word, NULL) == OK)
        return strcmp(word, "string") == 0 ? 's' : 0;
    if (!js_is(type, JS_ARRAY)) {
        for (size_t i = 0; i < js_len(values); i++)
            is_string = is_string && js_is(js_at(values, i), JS_STRING);
        return is_string ? 's' : 0;
    }
    is_string = false;
    for (size_t i = 0; i < js_len(type); i++) {
        if (js_read_cstr(js_at(type, i), "", &word, NULL) != OK)
            return 0;
        if (strcmp(word, "null") == 0)
            is_null = true;
        else if (strcmp(word, "string") == 0)
            is_string = true;
        else
            return 0;
    }
    return is_string ? (is_null ? 'n' : 's') : 0;
}

static enum status list_types(const struct json *tools, struct buf *out, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(tools); i++) {
        const struct json *function = js_get(js_at(tools, i), "function");
        const char *name = js_string(js_get(function, "name"), NULL);
        const struct json *all = js_get(js_get(function, "parameters"), "properties");
        for (void *it = js_first(all); s == OK && it; it = js_next(all, it)) {
            char type = type_of(js_it_value(it));
            if (!type)
                continue;
            s = buf_putc(out, type);
            if (s == OK)
                s = buf_append(out, name, strlen(name) + 1);
            if (s == OK)
                s = buf_append(out, js_it_key(it), strlen(js_it_key(it)) + 1);
        }
    }
    return s == OK ? OK : buf_why(why, s, "tools: too many parameters");
}

/* --- use --- */

static enum status make_grammar(struct grammar **out, const struct tools_use *u,
                                const struct tool_wish *w, const struct stopping *stopping,
                                const struct server *srv, const struct chat_kit *kit,
                                struct buf *why)
{
    const struct structured_place place = {kit->reasoning, stopping->shown, stopping->n_shown};
    struct json *source = tool_format_grammar(u->format, w);
    enum status s = source ? structured_calls(srv->structured, source, &place, out, why)
                           : buf_why(why, ERR_NOMEM, "out of memory");

    js_unref(source);
    return s;
}

/* The value that response_format asks for: a schema, or true; NULL: none. */
static struct json *form_of(const struct json *body)
{
    const struct json *format = js_get_set(body, "response_format");
    struct json *schema = js_get(js_get(format, "json_schema"), "schema");
    const char *type;

    if (js_read_cstr(js_get(format, "type"), "", &type, NULL) != OK)
        return NULL;
    if (strcmp(type, "json_object") == 0)
        return js_new_bool(true);
    return strcmp(type, "json_schema") == 0 && js_is(schema, JS_OBJECT) ? js_ref(schema) : NULL;
}

static enum status begin_use(struct tools_use *u, struct grammar **grammar,
                             struct stopping *stopping, const struct server *srv,
                             const struct chat_kit *kit, const struct json *body,
                             struct tool_wish *w, struct buf *why)
{
    bool parallel = true;
    enum status s = js_get_bool(body, "parallel_tool_calls", &parallel, why);

    if (s != OK)
        return s;
    if (!kit->tool_format)
        return buf_why(why, ERR_UNSUPPORTED,
                       "tools: how this model writes calls is not known from its chat template; "
                       "say it with --tool-call-parser, or send tool_choice \"none\"");
    if (*grammar && !w->form)
        return buf_why(why, ERR_UNSUPPORTED,
                       "tools: of the forms of answers, only response_format goes with tools; "
                       "leave out the form, or send tool_choice \"none\"");
    grammar_unref(*grammar);
    *grammar = NULL;
    if (!w->is_free)
        w->form = NULL; /* the answer is calls */
    u->format = kit->tool_format;
    u->n_calls_max = parallel && !w->only ? TOOLS_MAX : 1;
    u->short_ids = kit->traits.short_call_ids;
    w->many = parallel && !w->only && !u->format->is_message;
    if (u->format->syntax == CALLS_TAGS)
        s = list_types(w->tools, &u->types, why);
    for (size_t i = 0; i < TOOL_WORDS_MAX; i++)
        stopping_show(stopping, srv->tokenizer, u->format->words[i]);
    /* Without a marker, text and calls cannot be told apart before the whole answer is there. A
     * text in messages has markers of its own. */
    bool is_bindable = u->format->marker[0] && !u->format->is_message;
    if (s == OK && (!w->is_free || w->form || (is_bindable && (any_strict(w->tools) || !parallel))))
        s = make_grammar(grammar, u, w, stopping, srv, kit, why);
    return s;
}

enum status tools_read(struct tools_use *u, struct grammar **grammar, struct stopping *stopping,
                       const struct server *srv, const struct chat_kit *kit,
                       const struct json *body, bool is_chat, struct buf *why)
{
    enum choice_kind kind = CHOOSE_NONE;
    struct tool_wish w = {0};
    bool parallel = true;

    buf_init(&u->names, NAMES_BYTES_MAX);
    buf_init(&u->types, TYPES_BYTES_MAX);
    if (!is_chat && js_len(js_get_set(body, "tools")) > 0)
        return buf_why(why, ERR_UNSUPPORTED, "tools: only chats have them");
    static const char *const old[] = {"functions", "function_call"};
    for (size_t i = 0; i < ARRAY_SIZE(old); i++)
        if (js_get_set(body, old[i])) /* a chat's body has it no longer: functions.h */
            return buf_why(why, ERR_UNSUPPORTED, "%s: only chats have it", old[i]);
    enum status s = js_get_bool(body, "parallel_tool_calls", &parallel, why);
    if (s == OK)
        s = read_tools(kit, body, &w.tools, &u->names, why);
    if (s == OK)
        s = read_choice(body, &u->names, &kind, &w.only, why);
    w.is_free = kind == CHOOSE_AUTO;
    if (s != OK || kind == CHOOSE_NONE)
        return s;
    struct json *form = form_of(body);
    w.form = form;
    s = begin_use(u, grammar, stopping, srv, kit, body, &w, why);
    js_unref(form);
    return s;
}

void tools_use_fini(struct tools_use *u)
{
    buf_fini(&u->names);
    buf_fini(&u->types);
    *u = (struct tools_use){0};
}
