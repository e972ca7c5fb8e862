#include "engine/grammar/schema_merge.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "engine/grammar/schema_check.h"
#include "engine/grammar/schema_read.h"

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

/* For two schemas that are to be joined, whose size the caller has bounded. */
static bool same(const struct json *a, const struct json *b)
{
    uint32_t n_left = UINT32_MAX;

    return schema_equal(a, b, &n_left);
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

/* `required`: the names of both. */
static enum status join_required(struct json *to, const struct json *more)
{
    struct json *have = js_get(to, "required");
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(more); i++) {
        const struct json *name = js_at(more, i);
        if (js_is(name, JS_STRING) && schema_names(have, js_string(name, NULL)))
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

/* `properties`: those of both. */
static enum status join_properties(struct json *to, const struct json *more)
{
    struct json *have = js_get(to, "properties");
    enum status s = OK;

    for (void *it = js_first(more); s == OK && it; it = js_next(more, it)) {
        const char *name = js_it_key(it);
        const struct json *ours = js_get(have, name), *theirs = js_it_value(it);
        if (!ours || schema_is_true(ours) || schema_is_false(theirs))
            s = keep(have, name, theirs);
        else if (!schema_is_true(theirs) && !schema_is_false(ours) && !same(ours, theirs))
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

/* {key: value} goes into the list that the schema has for list_key. */
static enum status push_schema(struct json *to, const char *list_key, const char *key,
                               const struct json *value)
{
    struct json *one = js_new_object();
    enum status s = one ? keep(one, key, value) : ERR_NOMEM;

    if (s == OK && !js_get(to, list_key))
        s = js_set(to, list_key, js_new_array());
    if (s == OK)
        return js_push(js_get(to, list_key), one);
    js_unref(one);
    return s;
}

/* --- types and constants --- */

static const char *const type_names[] = {"object", "array",  "string", "boolean",
                                         "null",   "number", "integer"};
#define TYPE_NUMBER 5u
#define TYPE_INTEGER 6u

static unsigned types_of(const struct json *type)
{
    unsigned bits = 0;

    for (uint32_t i = 0; i < ARRAY_SIZE(type_names); i++)
        bits |= (unsigned)schema_names(type, type_names[i]) << i;
    return bits & 1u << TYPE_NUMBER ? bits | 1u << TYPE_INTEGER : bits;
}

/* The types of both. *never: there are none. */
static enum status join_types(struct json *to, const struct json *more, bool *never)
{
    unsigned bits = types_of(js_get(to, "type")) & types_of(more);
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    if (bits & 1u << TYPE_NUMBER)
        bits &= ~(1u << TYPE_INTEGER);
    *never = bits == 0;
    for (uint32_t i = 0; i < ARRAY_SIZE(type_names) && s == OK; i++)
        if (bits >> i & 1)
            s = js_push(list, js_new_string(type_names[i], strlen(type_names[i])));
    if (s == OK)
        s = js_set(to, "type", js_ref(js_len(list) == 1 ? js_at(list, 0) : list));
    js_unref(list);
    return s;
}

/* `enum`: the values of both. */
static enum status join_values(struct json *to, const struct json *more, bool *never)
{
    const struct json *have = js_get(to, "enum");
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    for (size_t i = 0; i < js_len(have) && s == OK; i++)
        for (size_t k = 0; k < js_len(more); k++)
            if (same(js_at(have, i), js_at(more, k))) {
                s = js_push(list, js_copy_deep(js_at(have, i)));
                break;
            }
    *never = s == OK && js_len(list) == 0;
    if (s == OK)
        s = js_set(to, "enum", js_ref(list));
    js_unref(list);
    return s;
}

/* --- all keywords --- */

/* `not`: {"anyOf": [...]} of both. */
static enum status join_nots(struct json *to, const struct json *more)
{
    struct json *list = js_new_array(), *all = js_new_object();
    const struct json *parts[] = {js_get(to, "not"), more};
    enum status s = list && all ? OK : ERR_NOMEM;

    for (size_t i = 0; i < ARRAY_SIZE(parts) && s == OK; i++) {
        const struct json *any = js_get(parts[i], "anyOf");
        bool is_list = js_is(any, JS_ARRAY) && !schema_has_more(parts[i], "anyOf");
        for (size_t k = 0; k < (is_list ? js_len(any) : 1) && s == OK; k++) {
            struct json *copy = js_copy_deep(is_list ? js_at(any, k) : parts[i]);
            s = copy ? js_push(list, copy) : ERR_NOMEM;
        }
    }
    if (s == OK)
        s = js_set(all, "anyOf", js_ref(list));
    if (s == OK)
        s = js_set(to, "not", js_ref(all));
    js_unref(list);
    js_unref(all);
    return s;
}

/* A second pattern or format is one that the value does not not match. */
static enum status join_second(struct json *to, const char *key, const struct json *more)
{
    struct json *one = js_new_object(), *no = js_new_object();
    enum status s = one && no ? keep(one, key, more) : ERR_NOMEM;

    if (s == OK)
        s = js_set(no, "not", js_ref(one));
    if (s == OK)
        s = js_get(to, "not") ? join_nots(to, no) : js_set(to, "not", js_ref(no));
    js_unref(one);
    js_unref(no);
    return s;
}

static bool is_one_of(const char *key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

static enum status join(struct json *to, const char *key, const struct json *more, bool *never)
{
    static const char *const wrapped[] = {
        "anyOf", "oneOf", "$ref", "dependentRequired", "dependencies", "dependentSchemas"};
    const struct json *have = js_get(to, key);
    enum status s;

    if (!have || is_note(key))
        return keep(to, key, more);
    if (join_bound(to, key, more, &s))
        return s;
    if (strcmp(key, "type") == 0)
        return join_types(to, more, never);
    if (same(have, more))
        return OK;
    if (is_one_of(key, wrapped, ARRAY_SIZE(wrapped)))
        return push_schema(to, "allOf", key, more);
    if (strcmp(key, "not") == 0)
        return join_nots(to, more);
    if (strcmp(key, "pattern") == 0 || strcmp(key, "format") == 0)
        return join_second(to, key, more);
    if (strcmp(key, "const") == 0) {
        *never = true;
        return OK;
    }
    if (strcmp(key, "uniqueItems") == 0)
        return js_is(more, JS_BOOL) && js_bool(more) ? keep(to, key, more) : OK;
    if (js_is(have, JS_ARRAY) && js_is(more, JS_ARRAY)) {
        if (strcmp(key, "required") == 0)
            return join_required(to, more);
        if (strcmp(key, "enum") == 0)
            return join_values(to, more, never);
        if (strcmp(key, "allOf") == 0) {
            for (size_t i = 0; i < js_len(more); i++)
                if ((s = js_push(js_get(to, key), js_copy_deep(js_at(more, i)))) != OK)
                    return s;
            return OK;
        }
    }
    if (strcmp(key, "properties") == 0 && js_is(have, JS_OBJECT) && js_is(more, JS_OBJECT))
        return join_properties(to, more);
    if ((strcmp(key, "items") == 0 && !js_is(have, JS_ARRAY) && !js_is(more, JS_ARRAY)) ||
        strcmp(key, "propertyNames") == 0 || strcmp(key, "additionalProperties") == 0)
        return join_schemas(to, key, more);
    return ERR_UNSUPPORTED;
}

/* --- objects --- */

static const struct json *others_of(const struct json *j)
{
    const struct json *more = js_get(j, "additionalProperties");

    return more && !schema_is_true(more) ? more : NULL;
}

/* Whether the further properties of one schema cannot be joined with the other's patterns. */
static bool patterns_conflict(const struct json *a, const struct json *b)
{
    const struct json *x = js_get(a, "patternProperties"), *y = js_get(b, "patternProperties");

    if (x && y)
        return !same(x, y);
    return (x && others_of(b)) || (y && others_of(a));
}

/* The schema that a gives to further properties applies to the properties that only b declares. */
static enum status add_others(struct json *to, const struct json *a, const struct json *b)
{
    const struct json *theirs = js_get(b, "properties"), *others = others_of(a);
    enum status s = OK;

    for (void *it = others && theirs ? js_first(theirs) : NULL; it && s == OK;
         it = js_next(theirs, it)) {
        const char *name = js_it_key(it);
        if (js_get(a, "properties") && js_get(js_get(a, "properties"), name))
            continue;
        s = schema_is_false(others) ? keep(js_get(to, "properties"), name, others)
                                    : join_schemas(js_get(to, "properties"), name, others);
    }
    return s;
}

/* `items` are those behind the prefix of the same schema. */
static bool has_other_prefix(const struct json *a, const struct json *b)
{
    return js_get(a, "prefixItems") && !js_get(b, "prefixItems") && js_get(b, "items");
}

static const char *find_conflict(const struct json *a, const struct json *b)
{
    if (patterns_conflict(a, b))
        return "patternProperties";
    if ((js_get(a, "patternProperties") && others_of(a) && js_get(b, "properties")) ||
        (js_get(b, "patternProperties") && others_of(b) && js_get(a, "properties")))
        return "additionalProperties";
    return has_other_prefix(a, b) || has_other_prefix(b, a) ? "prefixItems" : NULL;
}

/* A condition of both: they stay apart. */
static bool is_condition(const char *key)
{
    static const char *const names[] = {"if", "then", "else"};

    return is_one_of(key, names, ARRAY_SIZE(names));
}

static enum status push_condition(struct json *to, const struct json *b)
{
    struct json *one = js_new_object();
    enum status s = one ? OK : ERR_NOMEM;

    for (void *it = js_first(b); it && s == OK; it = js_next(b, it))
        if (is_condition(js_it_key(it)))
            s = keep(one, js_it_key(it), js_it_value(it));
    if (s == OK && !js_get(to, "allOf"))
        s = js_set(to, "allOf", js_new_array());
    if (s == OK)
        return js_push(js_get(to, "allOf"), one);
    js_unref(one);
    return s;
}

/* --- OpenAPI's nullable: null, whatever the other keywords say --- */

static bool is_nullable(const struct json *j)
{
    const struct json *v = js_get(j, "nullable");

    return js_is(v, JS_BOOL) && js_bool(v);
}

static bool is_null_word(const struct json *v)
{
    return js_is(v, JS_STRING) && strcmp(js_string(v, NULL), "null") == 0;
}

static bool list_has_null(const struct json *list, bool (*fits)(const struct json *))
{
    for (size_t i = 0; i < js_len(list); i++)
        if (fits(js_at(list, i)))
            return true;
    return false;
}

static bool is_null(const struct json *v)
{
    return js_is(v, JS_NULL);
}

enum nulls { NULL_NO, NULL_YES, NULL_UNKNOWN };

/* Whether null is a value of a schema that is not nullable, by the keywords that tell so; one of
 * the combinations does not count. */
static enum nulls takes_null(const struct json *j, const char *without)
{
    static const char *const combinations[] = {"$ref", "anyOf", "oneOf", "allOf", "not", "if"};
    const struct json *type = js_get(j, "type"), *values = js_get(j, "enum");
    const struct json *constant = js_get(j, "const");
    bool is_list = js_is(type, JS_ARRAY);

    if ((type && !(is_list ? list_has_null(type, is_null_word) : is_null_word(type))) ||
        (js_is(values, JS_ARRAY) && !list_has_null(values, is_null)) ||
        (constant && !js_is(constant, JS_NULL)))
        return NULL_NO;
    for (size_t i = 0; i < ARRAY_SIZE(combinations); i++)
        if (js_get(j, combinations[i]) && strcmp(combinations[i], without) != 0)
            return NULL_UNKNOWN;
    return NULL_YES;
}

/* {"anyOf": [j without two keywords, {"type": "null"}]} */
static enum status spell_out_null(struct json **out, const struct json *j, const char *without)
{
    struct json *to = js_new_object(), *bare = js_new_object(), *null = js_new_object();
    struct json *list = js_new_array();
    enum status s = to && bare && null && list ? OK : ERR_NOMEM;

    for (void *it = js_first(j); it && s == OK; it = js_next(j, it))
        if (strcmp(js_it_key(it), without) != 0 && strcmp(js_it_key(it), "nullable") != 0)
            s = keep(bare, js_it_key(it), js_it_value(it));
    if (s == OK)
        s = js_set(null, "type", js_new_string("null", 4));
    if (s == OK)
        s = js_push(list, js_ref(bare));
    if (s == OK)
        s = js_push(list, js_ref(null));
    if (s == OK)
        s = js_set(to, "anyOf", js_ref(list));
    js_unref(list);
    js_unref(null);
    js_unref(bare);
    if (s == OK)
        *out = to;
    else
        js_unref(to);
    return s;
}

static enum status join_all(struct json *to, const struct json *b, bool *never, char *conflict,
                            size_t size)
{
    bool has_condition = js_get(to, "if") && js_get(b, "if");
    enum status s = has_condition ? push_condition(to, b) : OK;

    for (void *it = js_first(b); s == OK && it && !*never; it = js_next(b, it)) {
        if ((js_get(to, "if") && has_condition && is_condition(js_it_key(it))) ||
            strcmp(js_it_key(it), "nullable") == 0)
            continue;
        s = join(to, js_it_key(it), js_it_value(it), never);
        if (s == ERR_UNSUPPORTED)
            snprintf(conflict, size, "%s", js_it_key(it));
    }
    return s;
}

/* schema_merge() of schemas of which at most the result is nullable. */
static enum status merge(struct json **out, const struct json *a, const struct json *b,
                         const char *without, char *conflict, size_t size)
{
    bool never = schema_is_false(a) || schema_is_false(b);
    const char *reason;
    enum status s = OK;

    *out = NULL;
    snprintf(conflict, size, "a schema that is no object");
    if (!never && ((!js_is(a, JS_OBJECT) && !schema_is_true(a)) ||
                   (!js_is(b, JS_OBJECT) && !schema_is_true(b))))
        return ERR_UNSUPPORTED;
    if (!never && (reason = find_conflict(a, b))) {
        snprintf(conflict, size, "%s", reason);
        return ERR_UNSUPPORTED;
    }
    struct json *to = js_new_object();
    if (!to)
        return ERR_NOMEM;
    for (void *it = !never && js_is(a, JS_OBJECT) ? js_first(a) : NULL; s == OK && it;
         it = js_next(a, it))
        if (strcmp(js_it_key(it), without) != 0 && strcmp(js_it_key(it), "nullable") != 0)
            s = keep(to, js_it_key(it), js_it_value(it));
    if (s == OK && !never && js_is(b, JS_OBJECT))
        s = join_all(to, b, &never, conflict, size);
    if (s == OK && !never && js_is(js_get(to, "properties"), JS_OBJECT)) {
        s = add_others(to, a, b);
        if (s == OK)
            s = add_others(to, b, a);
    }
    if (s == OK && never) {
        js_unref(to);
        to = js_new_bool(false);
        s = to ? OK : ERR_NOMEM;
    }
    if (s == OK)
        *out = to;
    else
        js_unref(to);
    return s;
}

/* null is a value of both where each schema takes it. A combination that may take it is joined with
 * the other schema's null spelled out. */
enum status schema_merge(struct json **out, const struct json *a, const struct json *b,
                         const char *without, char *conflict, size_t size)
{
    bool of_a = is_nullable(a), of_b = is_nullable(b);
    enum nulls other = of_a == of_b ? (of_a ? NULL_YES : NULL_NO)
                       : of_a       ? takes_null(b, "")
                                    : takes_null(a, without);
    struct json *spelled = NULL;
    enum status s;

    *out = NULL;
    if (other == NULL_UNKNOWN) {
        s = spell_out_null(&spelled, of_a ? a : b, of_a ? without : "");
        if (s == OK)
            s = merge(out, of_a ? spelled : a, of_a ? b : spelled, of_a ? "" : without, conflict,
                      size);
        js_unref(spelled);
        return s;
    }
    s = merge(out, a, b, without, conflict, size);
    if (s != OK || other != NULL_YES)
        return s;
    if (schema_is_false(*out)) { /* null alone is left */
        js_unref(*out);
        *out = js_new_object();
        s = *out ? js_set(*out, "type", js_new_string("null", 4)) : ERR_NOMEM;
    } else {
        s = js_set(*out, "nullable", js_new_bool(true));
    }
    if (s != OK) {
        js_unref(*out);
        *out = NULL;
    }
    return s;
}
