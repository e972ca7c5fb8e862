/* call_arguments.c - arguments of calls that are no JSON object: each in tags, or as in Python.
 *
 * Values of strings in tags are plain text. All other values are JSON. */
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/json_string.h"

#define KEY_BYTES_MAX 256u

/* The texts around an argument. */
struct style {
    const char *before_key, *behind_key, *behind_value, *separator;
    const char *behind_json_key; /* instead of behind_key where no string follows */
    const char *value_end;       /* of plain text; "": strings are JSON */
};

static const char *text_of(const struct json *object, const char *key)
{
    const struct json *v = js_get(object, key);

    return js_is(v, JS_STRING) ? js_string(v, NULL) : "";
}

static struct style read_style(const struct json *j)
{
    struct style y = {.before_key = text_of(j, "before_key"),
                      .behind_key = text_of(j, "behind_key"),
                      .behind_value = text_of(j, "behind_value"),
                      .behind_json_key = text_of(j, "behind_json_key"),
                      .separator = "",
                      .value_end = text_of(j, "value_end")};

    if (!y.behind_json_key[0])
        y.behind_json_key = y.behind_key;
    if (!y.value_end[0]) {
        y.separator = y.behind_value;
        y.behind_value = "";
    }
    return y;
}

/* --- values --- */

static bool is_text(const struct json *values)
{
    for (size_t i = 0; i < js_len(values); i++)
        if (!js_is(js_at(values, i), JS_STRING))
            return false;
    return js_len(values) > 0;
}

/* Whether the value is a string, or a string or null. */
static bool is_string(const struct json *schema)
{
    const struct json *type = js_get(schema, "type"), *v = js_get_set(schema, "const");
    bool found = false;

    if (js_is(type, JS_STRING))
        return strcmp(js_string(type, NULL), "string") == 0;
    for (size_t i = 0; i < js_len(type); i++) {
        const char *word = js_is(js_at(type, i), JS_STRING) ? js_string(js_at(type, i), NULL) : "";
        found = found || strcmp(word, "string") == 0;
        if (strcmp(word, "string") != 0 && strcmp(word, "null") != 0)
            return false;
    }
    return found || (!type && (js_is(v, JS_STRING) || is_text(js_get(schema, "enum"))));
}

static uint32_t text_expr(struct exprs *e, const struct json *v)
{
    size_t len;
    const char *text = js_string(v, &len);

    return expr_text(e, text, len);
}

static uint32_t length_of(const struct json *schema, const char *key, uint32_t absent)
{
    const struct json *v = js_get_set(schema, key);

    return js_is(v, JS_INT) && js_int(v) >= 0 && js_int(v) < absent ? (uint32_t)js_int(v) : absent;
}

/* A string as plain text. */
static enum status read_text(struct exprs *e, const struct json *schema, const struct style *y,
                             uint32_t *out, struct buf *why)
{
    static const struct code_range tag = {'<', '<'};
    const struct json *values = js_get_set(schema, "enum"), *v = js_get_set(schema, "const");
    const char *regex = text_of(schema, "pattern"), *format = text_of(schema, "format");

    if (js_is(v, JS_STRING)) {
        *out = text_expr(e, v);
        return OK;
    }
    if (is_text(values)) {
        *out = text_expr(e, js_at(values, 0));
        for (size_t i = 1; i < js_len(values); i++)
            *out = expr_alt(e, *out, text_expr(e, js_at(values, i)));
        return OK;
    }
    if (regex[0])
        return front_regex(e, regex, strlen(regex), REGEX_SEARCH, out, why);
    if (format[0] && (regex = front_format_regex(format)))
        return front_regex(e, regex, strlen(regex), 0, out, why);
    if (js_get_set(schema, "minLength") || js_get_set(schema, "maxLength"))
        *out = expr_repeat(e, expr_class(e, &tag, 1, true), length_of(schema, "minLength", 0),
                           length_of(schema, "maxLength", EXPR_MANY));
    else
        *out = front_text_without(e, y->value_end);
    return OK;
}

/* A value of JSON by a schema, whose references may name definitions of its document. */
static enum status read_json(struct exprs *e, const struct json *schema, const struct json *root,
                             uint32_t *out, struct buf *why)
{
    static const char *const keys[] = {"$defs", "definitions"};
    struct json *whole;
    enum status s;

    if (!js_is(schema, JS_OBJECT))
        return front_json_schema(e, schema, out, why);
    /* The definitions may be large, and each of many arguments needs them: shared, not copied. */
    s = (whole = js_new_object()) ? OK : ERR_NOMEM;
    for (void *it = js_first(schema); s == OK && it; it = js_next(schema, it))
        s = js_set(whole, js_it_key(it), js_ref(js_it_value(it)));
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(keys); i++)
        if (js_get_set(root, keys[i]) && !js_get(whole, keys[i]))
            s = js_set(whole, keys[i], js_ref(js_get(root, keys[i])));
    s = s == OK ? front_json_schema(e, whole, out, why) : buf_why(why, s, "out of memory");
    js_unref(whole);
    return s;
}

static enum status read_value(struct exprs *e, const struct json *schema, const struct json *root,
                              const struct style *y, uint32_t *out, struct buf *why)
{
    bool is_plain = y->value_end[0] != '\0';

    if (is_plain && is_string(schema))
        return read_text(e, schema, y, out, why);
    enum status s = read_json(e, schema, root, out, why);
    if (s == OK && !is_plain && strcmp(text_of(schema, "type"), "boolean") == 0)
        *out = expr_alt(e, *out, expr_alt(e, expr_cstr(e, "True"), expr_cstr(e, "False")));
    return s;
}

/* --- arguments --- */

static bool is_key(const char *key, const struct style *y)
{
    size_t len = strlen(key);
    const char *const name = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

    if (len == 0 || len > KEY_BYTES_MAX)
        return false;
    return y->value_end[0] ? !strpbrk(key, "<>\n") && !strchr(key, y->behind_key[0])
                           : strspn(key, name) == len;
}

static bool is_required(const struct json *schema, const char *key)
{
    const struct json *list = js_get(schema, "required");

    for (size_t i = 0; i < js_len(list); i++)
        if (js_is(js_at(list, i), JS_STRING) && strcmp(js_string(js_at(list, i), NULL), key) == 0)
            return true;
    return false;
}

/* Any arguments. */
static enum status read_any(struct exprs *e, const struct style *y, uint32_t *out, struct buf *why)
{
    static const struct code_range name[] = {
        {'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    uint32_t key = expr_repeat(e, expr_class(e, name, ARRAY_SIZE(name), false), 1, KEY_BYTES_MAX);
    uint32_t value, json = EXPR_FAILED, rule = expr_new_rule(e);
    struct json *any = js_new_object();
    enum status s = any ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    if (s == OK)
        s = front_json_schema(e, any, &json, why);
    value = y->value_end[0] ? front_text_without(e, y->value_end) : json;
    js_unref(any);
    if (s != OK)
        return s;
    value = expr_seq(e, expr_cstr(e, y->behind_key), value);
    if (y->behind_json_key != y->behind_key)
        value = expr_alt(e, value, expr_seq(e, expr_cstr(e, y->behind_json_key), json));
    value = expr_seq3(e, key, value, expr_cstr(e, y->behind_value));
    expr_define(e, rule, expr_seq(e, expr_cstr(e, y->before_key), value));
    uint32_t more = expr_seq(e, expr_cstr(e, y->separator), expr_rule(e, rule));
    more = expr_seq(e, expr_rule(e, rule), expr_repeat(e, more, 0, EXPR_MANY));
    *out = expr_alt(e, expr_empty(e), more);
    return OK;
}

/* Make the rule of one argument. */
static enum status read_argument(struct exprs *e, const char *key, const struct json *schema,
                                 const struct json *root, const struct style *y, uint32_t *out,
                                 struct buf *why)
{
    uint32_t value = EXPR_FAILED, rule = expr_new_rule(e);
    struct buf inner;

    if (!is_key(key, y))
        return buf_why(why, ERR_UNSUPPORTED,
                       "property \"%.60s\": the model's format of calls cannot write this name",
                       key);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = read_value(e, schema, root, y, &value, &inner);
    if (s != OK)
        buf_why(why, s, "property \"%.60s\": %s", key, buf_str(&inner));
    buf_fini(&inner);
    if (s != OK)
        return s;
    const char *behind = is_string(schema) ? y->behind_key : y->behind_json_key;
    value = expr_seq(e, value, expr_cstr(e, y->behind_value));
    value = expr_seq3(e, expr_cstr(e, key), expr_cstr(e, behind), value);
    expr_define(e, rule, expr_seq(e, expr_cstr(e, y->before_key), value));
    *out = expr_rule(e, rule);
    return OK;
}

/* Arguments from `it` on, behind none (*first) and behind another one (*later). */
static enum status read_rest(struct exprs *e, const struct json *schema, void *it,
                             const struct style *y, uint32_t *first, uint32_t *later,
                             struct buf *why)
{
    const struct json *properties = js_get(schema, "properties");
    uint32_t x = EXPR_FAILED, rest_first, rest_later, rule;
    const char *key = it ? js_it_key(it) : "";

    *first = *later = expr_empty(e);
    if (!it)
        return OK;
    enum status s = read_rest(e, schema, js_next(properties, it), y, &rest_first, &rest_later, why);
    if (s == OK)
        s = read_argument(e, key, js_it_value(it), schema, y, &x, why);
    if (s != OK)
        return s;
    *first = expr_seq(e, x, rest_later);
    *later = expr_seq3(e, expr_cstr(e, y->separator), x, rest_later);
    if (!is_required(schema, key)) {
        *first = expr_alt(e, *first, rest_first);
        *later = expr_alt(e, *later, rest_later);
    }
    rule = expr_new_rule(e);
    expr_define(e, rule, *first);
    *first = expr_rule(e, rule);
    rule = expr_new_rule(e);
    expr_define(e, rule, *later);
    *later = expr_rule(e, rule);
    return OK;
}

enum status front_arguments(struct exprs *e, const struct json *schema, const struct json *style,
                            uint32_t *out, struct buf *why)
{
    static const char *const joined[] = {"$ref",  "anyOf",         "oneOf",
                                         "allOf", "minProperties", "patternProperties"};
    const struct json *properties = js_get_set(schema, "properties");
    const struct json *others = js_get_set(schema, "additionalProperties");
    struct style y = read_style(style);
    uint32_t unused;

    for (size_t i = 0; i < ARRAY_SIZE(joined); i++)
        if (js_get_set(schema, joined[i]))
            return buf_why(why, ERR_UNSUPPORTED,
                           "%s: not supported in the model's format of calls; list the properties",
                           joined[i]);
    if (js_len(properties) > CALL_ARGUMENTS_MAX)
        return buf_why(why, ERR_TOO_LARGE, "more than %u properties", CALL_ARGUMENTS_MAX);
    bool is_closed = js_is(others, JS_BOOL) && !js_bool(others);
    if (js_len(properties) == 0 && !is_closed)
        return read_any(e, &y, out, why);
    return read_rest(e, schema, js_first(properties), &y, out, &unused, why);
}
