#include "engine/grammar/schema_merge.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"

/* Keywords that say nothing about values. */
static bool is_note(const char *keyword)
{
    static const char *const notes[] = {
        "title",     "description", "default",       "examples",    "example",      "$schema",
        "$id",       "$comment",    "$defs",         "definitions", "deprecated",   "readOnly",
        "writeOnly", "$anchor",     "discriminator", "xml",         "externalDocs", "id"};

    for (size_t i = 0; i < ARRAY_SIZE(notes); i++)
        if (strcmp(notes[i], keyword) == 0)
            return true;
    return strncmp(keyword, "x-", 2) == 0; /* of OpenAPI and of editors */
}

bool schema_has_more(const struct json *j, const char *keyword)
{
    for (void *it = js_first(j); it; it = js_next(j, it))
        if (strcmp(js_it_key(it), keyword) != 0 && !is_note(js_it_key(it)))
            return true;
    return false;
}

/* Take n of the comparisons that are left. */
static bool pay(uint32_t *n_left, size_t n)
{
    *n_left = n < *n_left ? *n_left - (uint32_t)n : 0;
    return *n_left > 0;
}

/* Whether two documents are one JSON value: 1 is 1.0, and members have no order. False too when no
 * comparison is left. */
static bool equal(const struct json *a, const struct json *b, uint32_t *n_left)
{
    bool numbers =
        (js_is(a, JS_INT) || js_is(a, JS_REAL)) && (js_is(b, JS_INT) || js_is(b, JS_REAL));
    size_t n = js_len(a), a_len, b_len;

    if (!pay(n_left, 1) || (js_typeof(a) != js_typeof(b) && !numbers) || n != js_len(b))
        return false;
    switch (js_typeof(a)) {
    case JS_NULL: return true;
    case JS_BOOL: return js_bool(a) == js_bool(b);
    case JS_INT:
        if (js_is(b, JS_INT))
            return js_int(a) == js_int(b);
        return js_number(a) == js_number(b);
    case JS_REAL: return js_number(a) == js_number(b);
    case JS_STRING: {
        const char *x = js_string(a, &a_len), *y = js_string(b, &b_len);
        return a_len == b_len && pay(n_left, a_len / 64) && memcmp(x, y, a_len) == 0;
    }
    case JS_ARRAY:
        for (size_t i = 0; i < n; i++)
            if (!equal(js_at(a, i), js_at(b, i), n_left))
                return false;
        return true;
    case JS_OBJECT:
        for (void *it = js_first(a); it; it = js_next(a, it)) {
            const struct json *other = js_get(b, js_it_key(it));
            if (!other || !equal(js_it_value(it), other, n_left))
                return false;
        }
        return true;
    }
    return false;
}

/* For two schemas that are to be joined, whose size the caller has bounded. */
static bool same(const struct json *a, const struct json *b)
{
    uint32_t n_left = UINT32_MAX;

    return equal(a, b, &n_left);
}

size_t schema_bytes(const struct json *j)
{
    size_t n = 64, len = 0;

    if (js_is(j, JS_STRING)) {
        (void)js_string(j, &len);
        return n + len;
    }
    for (size_t i = 0; js_is(j, JS_ARRAY) && i < js_len(j); i++)
        n += schema_bytes(js_at(j, i));
    for (void *it = js_is(j, JS_OBJECT) ? js_first(j) : NULL; it; it = js_next(j, it))
        n += 64 + strlen(js_it_key(it)) + schema_bytes(js_it_value(it));
    return n;
}

static enum status keep(struct json *to, const char *key, const struct json *v)
{
    struct json *copy = js_copy_deep(v);

    return copy ? js_set(to, key, copy) : ERR_NOMEM;
}

static bool has_string(const struct json *list, const char *s)
{
    if (js_is(list, JS_STRING))
        return strcmp(js_string(list, NULL), s) == 0;
    for (size_t i = 0; js_is(list, JS_ARRAY) && i < js_len(list); i++)
        if (js_is(js_at(list, i), JS_STRING) && strcmp(js_string(js_at(list, i), NULL), s) == 0)
            return true;
    return false;
}

/* `required`: the names of both. */
static enum status join_required(struct json *to, const struct json *more)
{
    struct json *have = js_get(to, "required");
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(more); i++) {
        const struct json *name = js_at(more, i);
        if (js_is(name, JS_STRING) && has_string(have, js_string(name, NULL)))
            continue;
        struct json *copy = js_copy_deep(name);
        s = copy ? js_push(have, copy) : ERR_NOMEM;
    }
    return s;
}

/* Both schemas hold for the value: {"allOf": [have, more]}. */
static enum status join_schemas(struct json *to, const char *key, const struct json *more)
{
    struct json *all = js_new_object(), *list = js_new_array(), *a = js_copy_deep(js_get(to, key)),
                *b = js_copy_deep(more);
    enum status s = all && list && a && b ? OK : ERR_NOMEM;

    if (s == OK)
        s = js_push(list, js_ref(a));
    if (s == OK)
        s = js_push(list, js_ref(b));
    if (s == OK)
        s = js_set(all, "allOf", js_ref(list));
    if (s == OK)
        s = js_set(to, key, js_ref(all));
    js_unref(all);
    js_unref(list);
    js_unref(a);
    js_unref(b);
    return s;
}

static bool is_no_schema(const struct json *j)
{
    return js_is(j, JS_BOOL) && !js_bool(j);
}

/* A schema that allows everything. */
static bool is_any_schema(const struct json *j)
{
    return js_is(j, JS_BOOL) ? js_bool(j) : js_is(j, JS_OBJECT) && js_len(j) == 0;
}

/* `properties`: those of both. */
static enum status join_properties(struct json *to, const struct json *more)
{
    struct json *have = js_get(to, "properties");
    enum status s = OK;

    for (void *it = js_first(more); s == OK && it; it = js_next(more, it)) {
        const char *name = js_it_key(it);
        const struct json *ours = js_get(have, name), *theirs = js_it_value(it);
        if (!ours || is_any_schema(ours) || is_no_schema(theirs))
            s = keep(have, name, theirs);
        else if (!is_any_schema(theirs) && !is_no_schema(ours) && !same(ours, theirs))
            s = join_schemas(have, name, theirs);
    }
    return s;
}

/* Bounds: the narrower one. False: no such keyword, or no numbers. */
static bool join_bound(struct json *to, const char *key, const struct json *more, enum status *s)
{
    static const struct {
        const char *name;
        int sign;
    } rows[] = {{"minimum", 1},           {"maximum", -1},  {"exclusiveMinimum", 1},
                {"exclusiveMaximum", -1}, {"minLength", 1}, {"maxLength", -1},
                {"minItems", 1},          {"maxItems", -1}, {"minProperties", 1},
                {"maxProperties", -1}};
    const struct json *have = js_get(to, key);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        bool numbers = (js_is(have, JS_INT) || js_is(have, JS_REAL)) &&
                       (js_is(more, JS_INT) || js_is(more, JS_REAL));
        if (strcmp(rows[i].name, key) != 0 || !numbers)
            continue;
        *s = rows[i].sign * (js_number(more) - js_number(have)) > 0 ? keep(to, key, more) : OK;
        return true;
    }
    return false;
}

static enum status join(struct json *to, const char *key, const struct json *more)
{
    const struct json *have = js_get(to, key);
    enum status s;

    if (!have || is_note(key))
        return keep(to, key, more);
    if (strcmp(key, "required") == 0 && js_is(have, JS_ARRAY) && js_is(more, JS_ARRAY))
        return join_required(to, more);
    if (strcmp(key, "properties") == 0 && js_is(have, JS_OBJECT) && js_is(more, JS_OBJECT))
        return join_properties(to, more);
    if (join_bound(to, key, more, &s))
        return s;
    if (strcmp(key, "items") == 0 && js_is(have, JS_OBJECT) && js_is(more, JS_OBJECT) &&
        !same(have, more))
        return join_schemas(to, key, more);
    return same(have, more) ? OK : ERR_UNSUPPORTED;
}

/* Whether the object has a word about properties that it does not declare. */
static bool is_closed(const struct json *j)
{
    const struct json *more = js_get(j, "additionalProperties");

    return (more && !is_any_schema(more)) || js_get(j, "patternProperties");
}

/* A closed object forbids the properties that only the other one declares, or describes them. */
static bool is_shut_out(const struct json *a, const struct json *b)
{
    const struct json *theirs = js_get(b, "properties");

    for (void *it = is_closed(a) && theirs ? js_first(theirs) : NULL; it; it = js_next(theirs, it))
        if (!js_get(a, "properties") || !js_get(js_get(a, "properties"), js_it_key(it)))
            return true;
    return false;
}

/* `items` are those behind the prefix of the same schema. */
static bool has_other_prefix(const struct json *a, const struct json *b)
{
    return js_get(a, "prefixItems") && !js_get(b, "prefixItems") && js_get(b, "items");
}

enum status schema_merge(struct json **out, const struct json *a, const struct json *b,
                         const char *without, char *conflict, size_t size)
{
    enum status s = OK;

    *out = NULL;
    snprintf(conflict, size, "a schema that is no object");
    if (!js_is(a, JS_OBJECT) || !js_is(b, JS_OBJECT))
        return ERR_UNSUPPORTED;
    snprintf(conflict, size, "additionalProperties");
    if (is_shut_out(a, b) || is_shut_out(b, a))
        return ERR_UNSUPPORTED;
    snprintf(conflict, size, "prefixItems");
    if (has_other_prefix(a, b) || has_other_prefix(b, a))
        return ERR_UNSUPPORTED;
    *out = js_new_object();
    if (!*out)
        return ERR_NOMEM;
    for (void *it = js_first(a); s == OK && it; it = js_next(a, it))
        if (strcmp(js_it_key(it), without) != 0)
            s = keep(*out, js_it_key(it), js_it_value(it));
    for (void *it = js_first(b); s == OK && it; it = js_next(b, it)) {
        s = join(*out, js_it_key(it), js_it_value(it));
        if (s == ERR_UNSUPPORTED)
            snprintf(conflict, size, "%s", js_it_key(it));
    }
    if (s != OK) {
        js_unref(*out);
        *out = NULL;
    }
    return s;
}

/* --- exclusion --- */

static bool types_exclude(const struct json *a, const struct json *b, uint32_t *n_left)
{
    const struct json *x = js_get(a, "type"), *y = js_get(b, "type");
    static const char *const names[] = {"object", "array", "string", "boolean", "null"};
    bool both_numbers;

    if (!x || !y || !pay(n_left, 1 + js_len(x) + js_len(y)))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (has_string(x, names[i]) && has_string(y, names[i]))
            return false;
    both_numbers = (has_string(x, "number") || has_string(x, "integer")) &&
                   (has_string(y, "number") || has_string(y, "integer"));
    return !both_numbers;
}

/* Whether a schema allows a value by its `const` or `enum`; true where it has neither. */
static bool allows(const struct json *j, const struct json *v, uint32_t *n_left)
{
    const struct json *constant = js_get(j, "const"), *values = js_get(j, "enum");

    if (constant)
        return equal(constant, v, n_left);
    for (size_t i = 0; js_is(values, JS_ARRAY) && i < js_len(values); i++)
        if (equal(js_at(values, i), v, n_left))
            return true;
    return !values;
}

static bool constants_exclude(const struct json *a, const struct json *b, uint32_t *n_left)
{
    const struct json *constant = js_get(a, "const"), *values = js_get(a, "enum");

    if ((!constant && !js_is(values, JS_ARRAY)) || (!js_get(b, "const") && !js_get(b, "enum")))
        return false;
    if (constant)
        return !allows(b, constant, n_left);
    for (size_t i = 0; i < js_len(values); i++)
        if (allows(b, js_at(values, i), n_left))
            return false;
    return true;
}

/* Whether a property that both require excludes values of both. */
static bool property_excludes(const struct json *a, const struct json *b, const char *name,
                              const struct json *ours, const struct json *theirs, uint32_t *n_left)
{
    const struct json *x = js_get(a, "required"), *y = js_get(b, "required");

    return pay(n_left, 1 + js_len(x) + js_len(y)) && has_string(x, name) && has_string(y, name) &&
           (types_exclude(ours, theirs, n_left) || constants_exclude(ours, theirs, n_left));
}

/* Whether one object requires a property that the other one cannot have. */
static bool requires_more(const struct json *a, const struct json *b, uint32_t *n_left)
{
    const struct json *names = js_get(a, "required"), *theirs = js_get(b, "properties");
    bool is_shut =
        is_no_schema(js_get(b, "additionalProperties")) && !js_get(b, "patternProperties");

    if (!has_string(js_get(a, "type"), "object") || !has_string(js_get(b, "type"), "object"))
        return false;
    for (size_t i = 0; js_is(names, JS_ARRAY) && i < js_len(names) && pay(n_left, 1); i++) {
        const char *name =
            js_is(js_at(names, i), JS_STRING) ? js_string(js_at(names, i), NULL) : "";
        const struct json *x = js_get(theirs, name);
        if (*name && (x ? is_no_schema(x) : is_shut))
            return true;
    }
    return false;
}

bool schemas_exclude(const struct json *a, const struct json *b, uint32_t *n_left)
{
    const struct json *ours, *theirs;

    if (!js_is(a, JS_OBJECT) || !js_is(b, JS_OBJECT))
        return false;
    if (types_exclude(a, b, n_left) || constants_exclude(a, b, n_left))
        return *n_left > 0;
    if (requires_more(a, b, n_left) || requires_more(b, a, n_left))
        return *n_left > 0;
    ours = js_get(a, "properties");
    theirs = js_get(b, "properties");
    for (void *it = ours && theirs ? js_first(ours) : NULL; it; it = js_next(ours, it)) {
        const struct json *other = js_get(theirs, js_it_key(it));
        if (other && property_excludes(a, b, js_it_key(it), js_it_value(it), other, n_left))
            return *n_left > 0;
    }
    return false;
}
