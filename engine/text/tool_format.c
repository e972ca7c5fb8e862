#include "engine/text/tool_format.h"

#include <string.h>

#include "base/check.h"

static const struct tool_format formats[] = {
    {.name = "hermes",
     .marker = "<tool_call>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n</tool_call>\n<tool_call>\n",
     .close = "\n</tool_call>",
     .arguments = "arguments",
     .end = "</tool_call>"},
    {.name = "llama3_json",
     .marker = "",
     .prefix = "<|python_tag|>",
     .gap = "",
     .open = "",
     .separator = "; ",
     .close = "",
     .arguments = "parameters",
     .end = ""},
    {.name = "mistral",
     .marker = "[TOOL_CALLS]",
     .prefix = "",
     .gap = " ",
     .open = "[",
     .separator = ", ",
     .close = "]",
     .arguments = "arguments",
     .is_list = true,
     .end = ""},
    {.name = "granite",
     .marker = "<|tool_call|>",
     .prefix = "",
     .gap = " ",
     .open = "[",
     .separator = ", ",
     .close = "]",
     .arguments = "arguments",
     .is_list = true,
     .end = ""},
};

/* Words of a template that teaches the format, and of those that teach another one with the same
 * marker. */
static const struct {
    const char *name, *words, *others[4];
} signs[] = {
    {"hermes", "<tool_call>", {"<function=", "<arg_key>", "<parameter=", "<function name"}},
    {"mistral", "[TOOL_CALLS]", {"[ARGS]", "[CALL_ID]", "<SPECIAL", NULL}},
    {"granite", "<|tool_call|>", {NULL}},
    {"llama3_json", "\"parameters\": dictionary of argument name", {NULL}},
};

static const struct tool_format *by_name(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

const struct tool_format *tool_format_find(const char *name, const struct chat_template *t)
{
    if (strcmp(name, "auto") != 0)
        return by_name(name);
    for (size_t i = 0; t && i < ARRAY_SIZE(signs); i++) {
        bool is_it = chat_template_mentions(t, signs[i].words);
        for (size_t k = 0; is_it && k < ARRAY_SIZE(signs[i].others) && signs[i].others[k]; k++)
            is_it = !chat_template_mentions(t, signs[i].others[k]);
        if (is_it)
            return by_name(signs[i].name);
    }
    return NULL;
}

/* --- grammars --- */

static enum status set_text(struct json *object, const char *key, const char *text)
{
    return js_set(object, key, js_new_string(text, strlen(text)));
}

/* The parameters as a schema of an object. NULL: any object. */
static enum status set_schema(struct json *call, const struct json *function, bool binds)
{
    const struct json *given = js_get_set(function, "parameters");
    struct json *schema;
    enum status s;

    if (!binds)
        return OK;
    schema = given ? js_copy_deep(given) : js_new_object();
    s = schema ? OK : ERR_NOMEM;
    if (s == OK && !given)
        s = js_set(schema, "additionalProperties", js_new_bool(false));
    if (s == OK && !js_get(schema, "type") && !js_get(schema, "$ref"))
        s = set_text(schema, "type", "object");
    if (s == OK)
        return js_set(call, "schema", schema);
    js_unref(schema);
    return s;
}

static enum status push_call(struct json *calls, const struct tool_format *f,
                             const struct tool_wish *w, const struct json *function)
{
    const struct json *strict = js_get(function, "strict");
    const char *name = js_string(js_get(function, "name"), NULL);
    bool binds = !w->is_free || (js_is(strict, JS_BOOL) && js_bool(strict));
    struct json *call = js_new_object();
    struct buf begin;
    enum status s = call ? OK : ERR_NOMEM;

    buf_init(&begin, 512);
    if (s == OK)
        s = buf_printf(&begin, "{\"name\": \"%s\", \"%s\": ", name, f->arguments);
    if (s == OK)
        s = set_text(call, "name", name);
    if (s == OK)
        s = set_text(call, "begin", buf_str(&begin));
    if (s == OK)
        s = set_text(call, "end", "}");
    if (s == OK)
        s = set_schema(call, function, binds);
    buf_fini(&begin);
    if (s == OK)
        return js_push(calls, call);
    js_unref(call);
    return s;
}

static enum status push_calls(struct json *calls, const struct tool_format *f,
                              const struct tool_wish *w)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(w->tools); i++) {
        const struct json *function = js_get(js_at(w->tools, i), "function");
        if (!w->only || strcmp(js_string(js_get(function, "name"), NULL), w->only) == 0)
            s = push_call(calls, f, w, function);
    }
    return s;
}

struct json *tool_format_grammar(const struct tool_format *f, const struct tool_wish *w)
{
    const struct {
        const char *key, *text;
    } rows[] = {{"marker", f->marker},
                {"gap", f->gap},
                {"open", f->open},
                {"separator", f->separator},
                {"close", f->close}};
    struct json *g = js_new_object(), *calls = js_new_array();
    enum status s = g && calls ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++)
        s = set_text(g, rows[i].key, rows[i].text);
    if (s == OK)
        s = js_set(g, "free", js_new_bool(w->is_free && !w->form));
    if (s == OK && w->form)
        s = js_set(g, "form", js_copy_deep(w->form));
    if (s == OK)
        s = js_set(g, "many", js_new_bool(w->many));
    if (s == OK)
        s = push_calls(calls, f, w);
    if (s == OK) {
        s = js_set(g, "calls", calls);
        calls = NULL;
    }
    js_unref(calls);
    if (s == OK)
        return g;
    js_unref(g);
    return NULL;
}
