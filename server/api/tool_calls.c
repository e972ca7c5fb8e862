#include "server/api/tool_calls.h"

#include <stdio.h>
#include <string.h>

#define N_TOOL_CALLS_MAX 1024
#define NAME_BYTES_MAX 96

static enum status check_type(const struct json *call, const char *name, struct buf *why)
{
    const char *type = "function";
    char field[NAME_BYTES_MAX];

    if (!js_get_set(call, "type"))
        return OK;
    snprintf(field, sizeof field, "%s.type", name);
    enum status s = js_read_cstr(js_get(call, "type"), field, &type, why);
    if (s != OK || strcmp(type, "function") == 0)
        return s;
    return buf_why(why, ERR_UNSUPPORTED, "%s: \"%.40s\" is not supported, only \"function\"", field,
                   type);
}

static enum status check_function(const struct json *call, const char *name, struct buf *why)
{
    const struct json *function = js_get(call, "function");
    const struct json *arguments = js_get_set(function, "arguments");
    char field[NAME_BYTES_MAX];
    const char *text;

    if (!js_is(function, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s.function: expected an object, got %s", name,
                       js_type_name(js_typeof(function)));
    snprintf(field, sizeof field, "%s.function.name", name);
    enum status s = js_read_cstr(js_get(function, "name"), field, &text, why);
    if (s == OK && arguments && !js_is(arguments, JS_STRING) && !js_is(arguments, JS_OBJECT))
        s = buf_why(why, ERR_INVALID,
                    "%s.function.arguments: expected the text of a JSON object, "
                    "got %s",
                    name, js_type_name(js_typeof(arguments)));
    return s;
}

static enum status check_call(const struct json *call, const char *name, struct buf *why)
{
    char field[NAME_BYTES_MAX];
    const char *id;

    if (!js_is(call, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", name,
                       js_type_name(js_typeof(call)));
    snprintf(field, sizeof field, "%s.id", name);
    enum status s = js_read_cstr(js_get(call, "id"), field, &id, why);
    if (s == OK)
        s = check_type(call, name, why);
    return s == OK ? check_function(call, name, why) : s;
}

static enum status check_calls(const struct json *calls, size_t index, struct buf *why)
{
    char name[NAME_BYTES_MAX / 2];
    enum status s = OK;

    if (!js_is(calls, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "messages[%zu].tool_calls: expected an array, got %s",
                       index, js_type_name(js_typeof(calls)));
    if (js_len(calls) > N_TOOL_CALLS_MAX)
        return buf_why(why, ERR_INVALID,
                       "messages[%zu].tool_calls: %zu entries, at most %d are taken", index,
                       js_len(calls), N_TOOL_CALLS_MAX);
    for (size_t i = 0; s == OK && i < js_len(calls); i++) {
        snprintf(name, sizeof name, "messages[%zu].tool_calls[%zu]", index, i);
        s = check_call(js_at(calls, i), name, why);
    }
    return s;
}

enum status tool_calls_check(const struct json *message, const char *role, size_t index,
                             struct buf *why)
{
    const struct json *calls = js_get_set(message, "tool_calls");
    const struct json *id = js_get_set(message, "tool_call_id");
    char field[NAME_BYTES_MAX];
    const char *text;

    if (js_get_set(message, "function_call"))
        return buf_why(why, ERR_UNSUPPORTED,
                       "messages[%zu].function_call: not supported, send "
                       "tool_calls",
                       index);
    snprintf(field, sizeof field, "messages[%zu].tool_call_id", index);
    if (calls && strcmp(role, "assistant") == 0)
        return check_calls(calls, index, why);
    if (id && strcmp(role, "tool") == 0)
        return js_read_cstr(id, field, &text, why);
    return OK;
}
