#include "engine/text/tool_format.h"

#include <string.h>

#include "base/check.h"
#include "engine/text/reasoning.h"

/* The fields that a row does not need. */
#define NO_KEYS                                                                                    \
    .before_key = "", .behind_key = "", .behind_value = "", .before_end = "", .value_end = "",     \
    .behind_json_key = ""
#define PLAIN NO_KEYS, .before_name = "", .behind_name = "", .before_id = "", .next = ""
#define LIST(separator_, close_)                                                                   \
    .prefix = "", .gap = " ", .open = "[", .separator = separator_, .close = close_,               \
    .arguments = "arguments", .is_list = true, .end = ""
#define DEEPSEEK_WORDS                                                                             \
    {                                                                                              \
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",                       \
            "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"                                    \
    }

#define DSML(block)                                                                                \
    .syntax = CALLS_TAGS, .marker = "<｜DSML｜" block ">", .prefix = "", .gap = "", .open = "\n",  \
    .separator = "\n", .close = "\n</｜DSML｜" block ">", .end = "",                               \
    .before_name = "<｜DSML｜invoke name=\"", .behind_name = "\">\n", .before_id = "",             \
    .next = "<｜DSML｜invoke name=\"", .before_key = "<｜DSML｜parameter name=\"",                 \
    .behind_key = "\" string=\"true\">", .behind_json_key = "\" string=\"false\">",                \
    .behind_value = "</｜DSML｜parameter>\n", .before_end = "</｜DSML｜invoke>",                   \
    .value_end = "</｜DSML｜parameter>", .words = {"｜DSML｜"}

static const struct tool_format formats[] = {
    {.name = "hermes",
     PLAIN,
     .marker = "<tool_call>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n</tool_call>\n<tool_call>\n",
     .close = "\n</tool_call>",
     .arguments = "arguments",
     .end = "</tool_call>",
     .words = {"<tool_call>", "</tool_call>"}},
    {.name = "llama3_json",
     .marker = "",
     .prefix = "<|python_tag|>",
     .gap = "",
     .open = "",
     .separator = "; ",
     .close = "",
     .arguments = "parameters",
     .end = "",
     PLAIN},
    {.name = "mistral",
     PLAIN,
     .marker = "[TOOL_CALLS]",
     LIST(", ", "]"),
     .words = {"[TOOL_CALLS]"}},
    {.name = "granite",
     PLAIN,
     .marker = "<|tool_call|>",
     LIST(", ", "]"),
     .words = {"<|tool_call|>"}},
    {.name = "phi4_mini_json", PLAIN, .marker = "functools", LIST(", ", "]")},
    {.name = "mistral_v11",
     NO_KEYS,
     .before_name = "",
     .next = "",
     .syntax = CALLS_NAMED,
     .marker = "[TOOL_CALLS]",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "[TOOL_CALLS]",
     .close = "",
     .end = "",
     .behind_name = "[ARGS]",
     .before_id = "[CALL_ID]",
     .words = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}},
    {.name = "deepseek_v3",
     NO_KEYS,
     .before_id = "",
     .syntax = CALLS_NAMED,
     .marker = "<｜tool▁calls▁begin｜>",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "\n",
     .close = "<｜tool▁calls▁end｜>",
     .end = "\n```<｜tool▁call▁end｜>",
     .before_name = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .behind_name = "\n```json\n",
     .next = "<｜tool▁call▁begin｜>",
     .words = DEEPSEEK_WORDS},
    {.name = "deepseek_v31",
     NO_KEYS,
     .before_id = "",
     .syntax = CALLS_NAMED,
     .marker = "<｜tool▁calls▁begin｜>",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "",
     .close = "<｜tool▁calls▁end｜>",
     .end = "<｜tool▁call▁end｜>",
     .before_name = "<｜tool▁call▁begin｜>",
     .behind_name = "<｜tool▁sep｜>",
     .next = "<｜tool▁call▁begin｜>",
     .words = DEEPSEEK_WORDS},
    {.name = "qwen3_coder",
     .syntax = CALLS_TAGS,
     .marker = "<tool_call>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n</tool_call>\n<tool_call>\n",
     .close = "\n</tool_call>",
     .end = "</tool_call>",
     .before_name = "<function=",
     .behind_name = ">\n",
     .before_id = "",
     .next = "",
     .before_key = "<parameter=",
     .behind_key = ">\n",
     .behind_value = "\n</parameter>\n",
     .before_end = "</function>",
     .value_end = "</parameter>",
     .behind_json_key = "",
     .words = {"<tool_call>", "</tool_call>"}},
    {.name = "glm45",
     .syntax = CALLS_TAGS,
     .marker = "<tool_call>",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "</tool_call>\n<tool_call>",
     .close = "</tool_call>",
     .end = "</tool_call>",
     .before_name = "",
     .behind_name = "\n",
     .before_id = "",
     .next = "",
     .before_key = "<arg_key>",
     .behind_key = "</arg_key>\n<arg_value>",
     .behind_value = "</arg_value>\n",
     .before_end = "",
     .value_end = "</arg_value>",
     .behind_json_key = "",
     .words = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
               "</arg_value>"}},
    {.name = "glm47",
     .syntax = CALLS_TAGS,
     .marker = "<tool_call>",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "</tool_call><tool_call>",
     .close = "</tool_call>",
     .end = "</tool_call>",
     .before_name = "",
     .behind_name = "",
     .before_id = "",
     .next = "",
     .before_key = "<arg_key>",
     .behind_key = "</arg_key><arg_value>",
     .behind_value = "</arg_value>",
     .before_end = "",
     .value_end = "</arg_value>",
     .behind_json_key = "",
     .words = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
               "</arg_value>"}},
    {.name = "seed_oss",
     .syntax = CALLS_TAGS,
     .marker = "<seed:tool_call>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n</seed:tool_call>\n<seed:tool_call>\n",
     .close = "\n</seed:tool_call>",
     .end = "</seed:tool_call>",
     .before_name = "<function=",
     .behind_name = ">\n",
     .before_id = "",
     .next = "",
     .before_key = "<parameter=",
     .behind_key = ">",
     .behind_value = "</parameter>\n",
     .before_end = "</function>",
     .value_end = "</parameter>",
     .behind_json_key = "",
     .words = {"<seed:tool_call>", "</seed:tool_call>"}},
    {.name = "minimax_m2",
     .syntax = CALLS_TAGS,
     .marker = "<minimax:tool_call>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n",
     .close = "\n</minimax:tool_call>",
     .end = "",
     .before_name = "<invoke name=\"",
     .behind_name = "\">\n",
     .before_id = "",
     .next = "<invoke name=\"",
     .before_key = "<parameter name=\"",
     .behind_key = "\">",
     .behind_value = "</parameter>\n",
     .before_end = "</invoke>",
     .value_end = "</parameter>",
     .behind_json_key = "",
     .words = {"<minimax:tool_call>", "</minimax:tool_call>"}},
    {.name = "deepseek_v32", DSML("function_calls")},
    {.name = "deepseek_v4", DSML("tool_calls")},
    {.name = "pythonic",
     .syntax = CALLS_PYTHON,
     .marker = "",
     .prefix = "<|python_start|>",
     .gap = "",
     .open = "[",
     .separator = ", ",
     .close = "]",
     .is_list = true,
     .end = "<|python_end|>",
     .before_name = "",
     .behind_name = "",
     .before_id = "",
     .next = "",
     .before_key = "",
     .behind_key = "=",
     .behind_value = ", ",
     .before_end = "",
     .value_end = "",
     .behind_json_key = "",
     .words = {"<|python_start|>", "<|python_end|>"}},
    {.name = "lfm2",
     .syntax = CALLS_PYTHON,
     .marker = "<|tool_call_start|>",
     .prefix = "",
     .gap = "",
     .open = "[",
     .separator = ", ",
     .close = "]<|tool_call_end|>",
     .is_list = true,
     .end = "<|tool_call_end|>",
     .before_name = "",
     .behind_name = "",
     .before_id = "",
     .next = "",
     .before_key = "",
     .behind_key = "=",
     .behind_value = ", ",
     .before_end = "",
     .value_end = "",
     .behind_json_key = "",
     .words = {"<|tool_call_start|>", "<|tool_call_end|>"}},
    {.name = "hunyuan_a13b",
     PLAIN,
     .marker = "<tool_calls>",
     .prefix = "",
     .gap = "",
     .open = "[",
     .separator = ", ",
     .close = "]</tool_calls>",
     .arguments = "arguments",
     .is_list = true,
     .end = "</tool_calls>",
     .words = {"<tool_calls>", "</tool_calls>"}},
    {.name = "minimax",
     NO_KEYS,
     .before_name = "",
     .behind_name = "",
     .before_id = "",
     .next = "{",
     .marker = "<tool_calls>",
     .prefix = "",
     .gap = "",
     .open = "\n",
     .separator = "\n",
     .close = "\n</tool_calls>",
     .arguments = "arguments",
     .end = "",
     .words = {"<tool_calls>", "</tool_calls>"}},
    {.name = "kimi_k2",
     NO_KEYS,
     .syntax = CALLS_NAMED,
     .marker = "<|tool_calls_section_begin|>",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "",
     .close = "<|tool_calls_section_end|>",
     .end = "<|tool_call_end|>",
     .before_name = "<|tool_call_begin|>functions.",
     .behind_name = "<|tool_call_argument_begin|>",
     .before_id = ":",
     .is_numbered = true,
     .next = "<|tool_call_begin|>",
     .words = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>",
               "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"}},
    {.name = "openai",
     NO_KEYS,
     .syntax = CALLS_NAMED,
     .marker = "<|channel|>commentary",
     .prefix = "",
     .gap = "",
     .open = "",
     .separator = "",
     .close = "",
     .is_message = true,
     .end = "<|call|>",
     .before_name = " to=functions.",
     .behind_name = " <|constrain|>json<|message|>",
     .before_id = "",
     .next = "",
     .words = {"<|channel|>", "<|constrain|>", "<|message|>", "<|call|>"}},
};

/* Words of a template that teaches the format, and of those that teach another one with the same
 * marker. */
static const struct {
    const char *name, *words[2], *others[5];
} signs[] = {
    {"openai", {"<|channel|>commentary", "functions."}, {NULL}},
    {"kimi_k2", {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"}, {NULL}},
    {"minimax_m2", {"<minimax:tool_call>", "<invoke name="}, {NULL}},
    {"minimax", {"<tool_calls>", "<tool-name>"}, {NULL}},
    {"seed_oss", {"<seed:tool_call>", "<parameter="}, {NULL}},
    {"deepseek_v32", {"｜DSML｜", "function_calls>"}, {"tool_calls>"}},
    {"deepseek_v4", {"｜DSML｜", "tool_calls>"}, {"function_calls>"}},
    {"lfm2", {"<|tool_call_start|>["}, {NULL}},
    {"qwen3_coder", {"<function=", "<parameter="}, {"<seed:tool_call>", "<arg_key>"}},
    {"glm47", {"<tool_call>", "}<arg_key>"}, {NULL}},
    {"glm45", {"<tool_call>", "<arg_key>"}, {NULL}},
    {"hermes",
     {"<tool_call>"},
     {"<function=", "<arg_key>", "<parameter=", "<function name", "<invoke name="}},
    {"mistral_v11", {"[TOOL_CALLS]", "[ARGS]"}, {"<SPECIAL"}},
    {"mistral", {"[TOOL_CALLS]"}, {"[ARGS]", "[CALL_ID]", "<SPECIAL"}},
    {"granite", {"<|tool_call|>"}, {NULL}},
    {"deepseek_v3", {"<｜tool▁call▁begin｜>", "```json"}, {NULL}},
    {"deepseek_v31", {"<｜tool▁call▁begin｜>"}, {"```json"}},
    {"phi4_mini_json", {"functools["}, {NULL}},
    {"pythonic", {"[func_name1("}, {NULL}},
    {"llama3_json", {"\"parameters\": dictionary of argument name"}, {NULL}},
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
        bool is_it = chat_template_mentions(t, signs[i].words[0]) &&
                     (!signs[i].words[1] || chat_template_mentions(t, signs[i].words[1]));
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

static const char *end_of(const struct tool_format *f)
{
    switch (f->syntax) {
    case CALLS_JSON: return "}";
    case CALLS_NAMED: return f->end;
    case CALLS_TAGS: return f->before_end;
    case CALLS_PYTHON: return ")";
    }
    return "";
}

/* Set the notation of arguments that are no JSON object. */
static enum status set_style(struct json *g, const struct tool_format *f)
{
    const struct {
        const char *key, *text;
    } rows[] = {{"before_key", f->before_key},
                {"behind_key", f->behind_key},
                {"behind_value", f->behind_value},
                {"behind_json_key", f->behind_json_key},
                {"value_end", f->value_end}};
    struct json *style;
    enum status s = OK;

    if (f->syntax != CALLS_TAGS && f->syntax != CALLS_PYTHON)
        return OK;
    style = js_new_object();
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++)
        s = style ? set_text(style, rows[i].key, rows[i].text) : ERR_NOMEM;
    if (s == OK)
        return js_set(g, "style", style);
    js_unref(style);
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
    if (s == OK && f->syntax == CALLS_JSON)
        s = buf_printf(&begin, "{\"name\": \"%s\", \"%s\": ", name, f->arguments);
    else if (s == OK)
        s = buf_printf(&begin, "%s%s%s", f->before_name, name,
                       f->syntax == CALLS_PYTHON ? "("
                       : f->is_numbered          ? f->before_id
                                                 : f->behind_name);
    if (s == OK && f->is_numbered)
        s = set_text(call, "behind_number", f->behind_name);
    if (s == OK)
        s = set_text(call, "name", name);
    if (s == OK)
        s = set_text(call, "begin", buf_str(&begin));
    if (s == OK)
        s = set_text(call, "end", end_of(f));
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
    } rows[] = {{"marker", f->marker}, {"gap", f->gap},
                {"open", f->open},     {"separator", f->separator},
                {"close", f->close},   {"before_form", f->is_message ? REASONING_FINAL : ""}};
    struct json *g = js_new_object(), *calls = js_new_array();
    enum status s = g && calls ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++)
        s = set_text(g, rows[i].key, rows[i].text);
    if (s == OK)
        s = set_style(g, f);
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
