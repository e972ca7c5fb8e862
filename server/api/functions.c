#include "server/api/functions.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

#define ID_BYTES 32

static bool is_word(const struct json *v, const char *word)
{
    return js_is(v, JS_STRING) && strcmp(js_string(v, NULL), word) == 0;
}

bool functions_are_used(const struct json *body)
{
    const struct json *messages = js_get_set(body, "messages");

    if (js_get_set(body, "functions") || js_get_set(body, "function_call"))
        return true;
    for (size_t i = 0; i < js_len(messages); i++) {
        const struct json *m = js_at(messages, i);
        if (js_get_set(m, "function_call") || is_word(js_get(m, "role"), "function"))
            return true;
    }
    return false;
}

static enum status set_text(struct json *obj, const char *key, const char *text)
{
    return js_set(obj, key, js_new_string(text, strlen(text)));
}

/* {"type": "function", "function": v}; takes v over. */
static struct json *wrap(struct json *v)
{
    struct json *made = js_new_object();
    enum status s = made ? set_text(made, "type", "function") : ERR_NOMEM;

    if (s == OK) {
        s = js_set(made, "function", v);
        v = NULL;
    }
    if (s == OK)
        return made;
    js_unref(v);
    js_unref(made);
    return NULL;
}

static enum status move_functions(struct json *body, struct buf *why)
{
    struct json *functions = js_get_set(body, "functions"), *tools;
    enum status s = OK;

    if (!functions)
        return OK;
    if (!js_is(functions, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "functions: expected an array, got %s",
                       js_type_name(js_typeof(functions)));
    if (js_get_set(body, "tools"))
        return buf_why(why, ERR_INVALID, "functions: is the older name of tools; send one of them");
    tools = js_new_array();
    s = tools ? OK : ERR_NOMEM;
    for (size_t i = 0; s == OK && i < js_len(functions); i++) {
        if (!js_is(js_at(functions, i), JS_OBJECT))
            s = buf_why(why, ERR_INVALID, "functions[%zu]: expected an object, got %s", i,
                        js_type_name(js_typeof(js_at(functions, i))));
        else
            s = js_push(tools, wrap(js_ref(js_at(functions, i))));
    }
    if (s == OK)
        s = js_set(body, "tools", js_ref(tools));
    js_unref(tools);
    return s;
}

static enum status move_choice(struct json *body, struct buf *why)
{
    struct json *v = js_get_set(body, "function_call");

    if (!v)
        return OK;
    if (is_word(v, "none") || is_word(v, "auto"))
        return js_set(body, "tool_choice", js_ref(v));
    if (!js_is(v, JS_OBJECT) || !js_is(js_get(v, "name"), JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "function_call: expected \"none\", \"auto\" or an object with a name");
    return js_set(body, "tool_choice", wrap(js_ref(v)));
}

/* A message that calls a function gets an id, which the result behind it gets too. */
static enum status move_message(struct json *m, size_t i, char id[ID_BYTES], struct buf *why)
{
    struct json *call = js_get_set(m, "function_call"), *calls = NULL, *wrapped = NULL;
    enum status s = OK;

    if (is_word(js_get(m, "role"), "function")) {
        s = set_text(m, "role", "tool");
        return s == OK ? set_text(m, "tool_call_id", id) : s;
    }
    if (!call)
        return OK;
    if (!js_is(call, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "messages[%zu].function_call: expected an object, got %s",
                       i, js_type_name(js_typeof(call)));
    if (js_get_set(m, "tool_calls"))
        return buf_why(why, ERR_INVALID,
                       "messages[%zu].function_call: is the older form of tool_calls; send one of "
                       "them",
                       i);
    snprintf(id, ID_BYTES, "call_%zu", i);
    calls = js_new_array();
    wrapped = wrap(js_ref(call));
    s = calls && wrapped ? set_text(wrapped, "id", id) : ERR_NOMEM;
    if (s == OK) {
        s = js_push(calls, wrapped);
        wrapped = NULL;
    }
    if (s == OK)
        s = js_set(m, "tool_calls", js_ref(calls));
    if (s == OK)
        s = js_remove(m, "function_call");
    js_unref(wrapped);
    js_unref(calls);
    return s;
}

enum status functions_to_tools(struct json **out, const struct json *body, struct buf *why)
{
    static const char *const names[] = {"functions", "function_call"};
    struct json *made = js_copy_deep(body);
    struct json *messages = js_get_set(made, "messages");
    char id[ID_BYTES] = "call_0";
    enum status s = made ? OK : ERR_NOMEM;

    if (s == OK)
        s = move_functions(made, why);
    if (s == OK)
        s = move_choice(made, why);
    if (s == OK)
        s = js_set(made, "parallel_tool_calls", js_new_bool(false));
    for (size_t i = 0; s == OK && i < js_len(messages); i++)
        if (js_is(js_at(messages, i), JS_OBJECT))
            s = move_message(js_at(messages, i), i, id, why);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(names); i++)
        if (js_get(made, names[i]))
            s = js_remove(made, names[i]);
    if (s == OK)
        *out = made;
    else
        js_unref(made);
    return s == ERR_NOMEM ? buf_why(why, s, "out of memory") : s;
}
