#include "engine/grammar/schema_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/schema_read.h"
#include "engine/grammar/text_set.h"

#define DEPTH_MAX 64u
#define KEYWORD_COMPARISONS 4u /* the price of a look at a keyword */
#define BYTES_PER_COMPARISON 64u

struct checker {
    struct schema_document *d;
    const struct json *of; /* as in schema_check() */
    uint32_t depth;
};

static enum schema_verdict check(struct checker *c, const struct json *j, const struct json *v);

static enum schema_verdict verdict(bool yes)
{
    return yes ? SCHEMA_YES : SCHEMA_NO;
}

static enum schema_verdict both(enum schema_verdict a, enum schema_verdict b)
{
    if (a == SCHEMA_NO || b == SCHEMA_NO)
        return SCHEMA_NO;
    return a == SCHEMA_YES ? b : SCHEMA_UNKNOWN;
}

static enum schema_verdict negated(enum schema_verdict a)
{
    return a == SCHEMA_UNKNOWN ? a : verdict(a == SCHEMA_NO);
}

static bool is_number(const struct json *v)
{
    return js_is(v, JS_INT) || js_is(v, JS_REAL);
}

static bool pay(struct schema_document *d, size_t n)
{
    d->n_comparisons_left = n < d->n_comparisons_left ? d->n_comparisons_left - (uint32_t)n : 0;
    return d->n_comparisons_left > 0;
}

/* --- patterns --- */

static void free_pattern(struct schema_pattern *p)
{
    text_set_destroy(p->set);
    free(p->text);
    *p = (struct schema_pattern){0};
}

void schema_document_fini(struct schema_document *d)
{
    for (uint32_t i = 0; i < SCHEMA_PATTERNS_MAX; i++)
        free_pattern(&d->patterns[i]);
}

/* The strings that match a pattern, which many strings are tried with. NULL: the pattern is faulty,
 * or a bound, or no memory. */
static struct text_set *pattern_set(struct schema_document *d, const char *pattern, size_t len)
{
    struct schema_pattern *p;

    for (uint32_t i = 0; i < SCHEMA_PATTERNS_MAX; i++) {
        p = &d->patterns[i];
        if (p->set && p->len == len && memcmp(p->text, pattern, len) == 0)
            return p->set;
    }
    p = &d->patterns[d->n_patterns++ % SCHEMA_PATTERNS_MAX];
    free_pattern(p);
    p->len = len;
    p->text = malloc(len + 1);
    p->set = p->text ? text_set_create(&d->n_work_left) : NULL;
    if (p->set && text_set_add_regex(p->set, TEXT_WANTED, pattern, len, REGEX_SEARCH, NULL) == OK)
        memcpy(p->text, pattern, len);
    else
        free_pattern(p);
    return p->set;
}

enum schema_verdict schema_check_pattern(struct schema_document *d, const char *pattern, size_t len,
                                         const char *text, size_t n)
{
    struct text_set *t = pattern_set(d, pattern, len);
    uint32_t class;
    bool yes = false;

    return t && text_set_has(t, text, n, &yes, &class) == OK ? verdict(yes) : SCHEMA_UNKNOWN;
}

/* --- one keyword --- */

static enum schema_verdict check_pattern(struct checker *c, const struct json *pattern,
                                         const char *text, size_t n)
{
    size_t len;

    if (!js_is(pattern, JS_STRING))
        return SCHEMA_UNKNOWN;
    const char *regex = js_string(pattern, &len);
    return schema_check_pattern(c->d, regex, len, text, n);
}

static bool pay_string(struct checker *c, const struct json *v)
{
    size_t len;

    (void)js_string(v, &len);
    return pay(c->d, len / BYTES_PER_COMPARISON);
}

static double n_chars(const struct json *v)
{
    size_t len, n = 0;
    const char *s = js_string(v, &len);

    for (size_t i = 0; i < len; i++)
        n += ((uint8_t)s[i] & 0xc0) != 0x80;
    return (double)n;
}

/* Bounds of numbers, and of the sizes of strings, arrays and objects. */
static enum schema_verdict check_bound(struct checker *c, const struct json *j, const char *key,
                                       const struct json *bound, const struct json *v)
{
    static const struct {
        const char *name;
        char of; /* number, string, array, object */
        int sign;
        bool exclusive;
    } rows[] = {{"minimum", 'n', 1, false},         {"maximum", 'n', -1, false},
                {"exclusiveMinimum", 'n', 1, true}, {"exclusiveMaximum", 'n', -1, true},
                {"minLength", 's', 1, false},       {"maxLength", 's', -1, false},
                {"minItems", 'a', 1, false},        {"maxItems", 'a', -1, false},
                {"minProperties", 'o', 1, false},   {"maxProperties", 'o', -1, false}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char of = is_number(v)          ? 'n'
                  : js_is(v, JS_STRING) ? 's'
                  : js_is(v, JS_ARRAY)  ? 'a'
                  : js_is(v, JS_OBJECT) ? 'o'
                                        : 0;
        if (strcmp(rows[i].name, key) != 0)
            continue;
        bool exclusive = rows[i].exclusive;
        if (exclusive && js_is(bound, JS_BOOL)) /* of draft 4, beside the bound itself */
            return SCHEMA_YES;
        const struct json *flag =
            i < 2 ? js_get(j, i == 0 ? "exclusiveMinimum" : "exclusiveMaximum") : NULL;
        exclusive = exclusive || (js_is(flag, JS_BOOL) && js_bool(flag));
        if (!is_number(bound) || (of == 's' && !pay_string(c, v)))
            return SCHEMA_UNKNOWN;
        double x = of == 'n' ? js_number(v) : of == 's' ? n_chars(v) : (double)js_len(v);
        x = rows[i].sign * (x - js_number(bound));
        return verdict(of != rows[i].of || (exclusive ? x > 0 : x >= 0));
    }
    return SCHEMA_UNKNOWN;
}

static enum schema_verdict check_multiple(const struct json *of, const struct json *v)
{
    if (!is_number(v))
        return SCHEMA_YES;
    if (js_is(of, JS_INT) && js_int(of) > 0 && js_is(v, JS_INT))
        return verdict(js_int(v) % js_int(of) == 0);
    return SCHEMA_UNKNOWN;
}

/* --- members and items --- */

static enum schema_verdict check_member(struct checker *c, const struct json *j, const char *name,
                                        const struct json *v)
{
    const struct json *declared = js_get(j, "properties"),
                      *patterns = js_get(j, "patternProperties");
    const struct json *others = js_get(j, "additionalProperties"), *own = js_get(declared, name);
    enum schema_verdict all = own ? check(c, own, v) : SCHEMA_YES;
    bool is_known = own != NULL;

    for (void *it = js_is(patterns, JS_OBJECT) ? js_first(patterns) : NULL; it;
         it = js_next(patterns, it)) {
        enum schema_verdict is_meant =
            schema_check_pattern(c->d, js_it_key(it), strlen(js_it_key(it)), name, strlen(name));
        if (is_meant == SCHEMA_UNKNOWN)
            return is_meant;
        is_known = is_known || is_meant == SCHEMA_YES;
        if (is_meant == SCHEMA_YES)
            all = both(all, check(c, js_it_value(it), v));
    }
    return others && !is_known ? both(all, check(c, others, v)) : all;
}

static enum schema_verdict check_members(struct checker *c, const struct json *j,
                                         const struct json *v)
{
    const struct json *required = js_get(j, "required"), *names = js_get(j, "propertyNames");
    enum schema_verdict all = SCHEMA_YES;

    size_t n_patterns = js_len(js_get(j, "patternProperties"));
    if (!pay(c->d, js_len(required) + js_len(v) * (1 + n_patterns)))
        return SCHEMA_UNKNOWN;
    for (size_t i = 0; js_is(required, JS_ARRAY) && i < js_len(required); i++)
        if (js_is(js_at(required, i), JS_STRING))
            all = both(all, verdict(js_get(v, js_string(js_at(required, i), NULL)) != NULL));
    for (void *it = js_first(v); it && all != SCHEMA_NO; it = js_next(v, it)) {
        all = both(all, check_member(c, j, js_it_key(it), js_it_value(it)));
        if (names) {
            struct json *name = js_new_string(js_it_key(it), strlen(js_it_key(it)));
            all = both(all, name ? check(c, names, name) : SCHEMA_UNKNOWN);
            js_unref(name);
        }
    }
    return all;
}

static enum schema_verdict check_items(struct checker *c, const struct json *j,
                                       const struct json *v)
{
    const struct json *items = js_get(j, "items"), *prefix = js_get(j, "prefixItems");
    const struct json *unique = js_get(j, "uniqueItems"), *contains = js_get(j, "contains");
    enum schema_verdict all = contains ? SCHEMA_UNKNOWN : SCHEMA_YES;

    if (js_is(items, JS_ARRAY)) { /* before draft 2020-12 */
        prefix = items;
        items = js_get(j, "additionalItems");
    }
    for (size_t i = 0; i < js_len(v) && all != SCHEMA_NO; i++) {
        const struct json *of = prefix && i < js_len(prefix) ? js_at(prefix, i) : items;
        if (of)
            all = both(all, check(c, of, js_at(v, i)));
        for (size_t k = 0; k < i && js_is(unique, JS_BOOL) && js_bool(unique); k++)
            if (schema_equal(js_at(v, i), js_at(v, k), &c->d->n_comparisons_left))
                all = SCHEMA_NO;
    }
    return all;
}

/* --- combinations --- */

static enum schema_verdict check_dependent(struct checker *c, const struct json *rows,
                                           const struct json *v)
{
    enum schema_verdict all = SCHEMA_YES;

    for (void *it = js_is(rows, JS_OBJECT) && js_is(v, JS_OBJECT) ? js_first(rows) : NULL; it;
         it = js_next(rows, it)) {
        const struct json *then = js_it_value(it);
        if (!pay(c->d, 1 + js_len(then)))
            return SCHEMA_UNKNOWN;
        if (!js_get(v, js_it_key(it)))
            continue;
        for (size_t i = 0; js_is(then, JS_ARRAY) && i < js_len(then); i++)
            if (js_is(js_at(then, i), JS_STRING))
                all = both(all, verdict(js_get(v, js_string(js_at(then, i), NULL)) != NULL));
        if (!js_is(then, JS_ARRAY))
            all = both(all, check(c, then, v));
    }
    return all;
}

/* Check the value against a list of schemas, of which all, any or exactly one (key) must match. */
static enum schema_verdict check_list(struct checker *c, const char *key, const struct json *list,
                                      const struct json *v)
{
    size_t n_yes = 0, n_no = 0, n = js_len(list);

    if (!js_is(list, JS_ARRAY))
        return SCHEMA_UNKNOWN;
    for (size_t i = 0; i < n; i++) {
        enum schema_verdict one = check(c, js_at(list, i), v);
        n_yes += one == SCHEMA_YES;
        n_no += one == SCHEMA_NO;
    }
    if (strcmp(key, "allOf") == 0)
        return n_no ? SCHEMA_NO : n_yes == n ? SCHEMA_YES : SCHEMA_UNKNOWN;
    if (strcmp(key, "anyOf") == 0)
        return n_yes ? SCHEMA_YES : n_no == n ? SCHEMA_NO : SCHEMA_UNKNOWN;
    if (n_yes > 1)
        return SCHEMA_NO;
    return n_yes + n_no < n ? SCHEMA_UNKNOWN : verdict(n_yes == 1);
}

static enum schema_verdict check_if(struct checker *c, const struct json *j, const struct json *v)
{
    enum schema_verdict test = check(c, js_get(j, "if"), v);
    const struct json *then = js_get(j, "then"), *otherwise = js_get(j, "else");

    if (test == SCHEMA_UNKNOWN)
        return test;
    const struct json *of = test == SCHEMA_YES ? then : otherwise;
    return of ? check(c, of, v) : SCHEMA_YES;
}

static enum schema_verdict check_ref(struct checker *c, const struct json *ref,
                                     const struct json *v)
{
    const struct json *to = js_is(ref, JS_STRING) && pay_string(c, ref)
                                ? schema_resolve(c->d->root, js_string(ref, NULL))
                                : NULL;

    return to ? check(c, to, v) : SCHEMA_UNKNOWN;
}

static bool has_value(struct checker *c, const struct json *values, const struct json *v)
{
    for (size_t i = 0; i < js_len(values); i++)
        if (schema_equal(js_at(values, i), v, &c->d->n_comparisons_left))
            return true;
    return false;
}

static bool is_one_of(const char *key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return false;
}

static enum schema_verdict check_keyword(struct checker *c, const struct json *j, const char *key,
                                         const struct json *x, const struct json *v)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    static const char *const dependent[] = {"dependencies", "dependentRequired",
                                            "dependentSchemas"};
    static const char *const bounds[] = {
        "minimum",   "maximum",  "exclusiveMinimum", "exclusiveMaximum", "minLength",
        "maxLength", "minItems", "maxItems",         "minProperties",    "maxProperties"};
    static const char *const unknown[] = {"unevaluatedProperties", "unevaluatedItems",
                                          "$dynamicRef", "$recursiveRef"};
    size_t len;

    if (strcmp(key, "type") == 0)
        return verdict(schema_fits_type(v, x));
    if (strcmp(key, "const") == 0)
        return verdict(schema_equal(x, v, &c->d->n_comparisons_left));
    if (strcmp(key, "enum") == 0 && x == c->of && c->depth == 1)
        return SCHEMA_YES;
    if (strcmp(key, "enum") == 0)
        return js_is(x, JS_ARRAY) ? verdict(has_value(c, x, v)) : SCHEMA_UNKNOWN;
    if (strcmp(key, "not") == 0)
        return negated(check(c, x, v));
    if (strcmp(key, "if") == 0)
        return check_if(c, j, v);
    if (strcmp(key, "$ref") == 0)
        return check_ref(c, x, v);
    if (strcmp(key, "multipleOf") == 0)
        return check_multiple(x, v);
    if (is_one_of(key, lists, ARRAY_SIZE(lists)))
        return check_list(c, key, x, v);
    if (is_one_of(key, dependent, ARRAY_SIZE(dependent)))
        return check_dependent(c, x, v);
    if (is_one_of(key, bounds, ARRAY_SIZE(bounds)))
        return check_bound(c, j, key, x, v);
    if (strcmp(key, "pattern") == 0 && js_is(v, JS_STRING)) {
        const char *text = js_string(v, &len);
        return check_pattern(c, x, text, len);
    }
    return is_one_of(key, unknown, ARRAY_SIZE(unknown)) ? SCHEMA_UNKNOWN : SCHEMA_YES;
}

static enum schema_verdict check(struct checker *c, const struct json *j, const struct json *v)
{
    enum schema_verdict all = SCHEMA_YES;

    if (js_is(j, JS_BOOL))
        return verdict(js_bool(j));
    const struct json *nullable = js_get(j, "nullable"); /* OpenAPI 3.0 */
    if (v && js_is(v, JS_NULL) && js_is(nullable, JS_BOOL) && js_bool(nullable))
        return SCHEMA_YES;
    if (!js_is(j, JS_OBJECT) || c->depth == DEPTH_MAX ||
        !pay(c->d, 1 + KEYWORD_COMPARISONS * js_len(j)))
        return SCHEMA_UNKNOWN;
    c->depth++;
    for (void *it = js_first(j); it && all != SCHEMA_NO; it = js_next(j, it))
        all = both(all, check_keyword(c, j, js_it_key(it), js_it_value(it), v));
    if (all != SCHEMA_NO && js_is(v, JS_OBJECT))
        all = both(all, check_members(c, j, v));
    if (all != SCHEMA_NO && js_is(v, JS_ARRAY))
        all = both(all, check_items(c, j, v));
    c->depth--;
    return c->d->n_comparisons_left == 0 ? SCHEMA_UNKNOWN : all;
}

enum schema_verdict schema_check(struct schema_document *d, const struct json *j,
                                 const struct json *v, const struct json *of)
{
    struct checker c = {.d = d, .of = of};

    return check(&c, j, v);
}

/* --- exclusion --- */

static bool exclude(struct schema_document *d, const struct json *a, const struct json *b,
                    uint32_t depth);

bool schema_names(const struct json *list, const char *s)
{
    if (js_is(list, JS_STRING))
        return strcmp(js_string(list, NULL), s) == 0;
    for (size_t i = 0; js_is(list, JS_ARRAY) && i < js_len(list); i++)
        if (js_is(js_at(list, i), JS_STRING) && strcmp(js_string(js_at(list, i), NULL), s) == 0)
            return true;
    return false;
}

static bool types_exclude(struct schema_document *d, const struct json *a, const struct json *b)
{
    const struct json *x = js_get(a, "type"), *y = js_get(b, "type");
    static const char *const names[] = {"object", "array", "string", "boolean", "null"};

    if (!x || !y || !pay(d, 1 + js_len(x) + js_len(y)))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (schema_names(x, names[i]) && schema_names(y, names[i]))
            return false;
    return !((schema_names(x, "number") || schema_names(x, "integer")) &&
             (schema_names(y, "number") || schema_names(y, "integer")));
}

/* Whether the other schema has none of the values that `const` or `enum` leaves. */
static bool constants_exclude(struct schema_document *d, const struct json *a, const struct json *b)
{
    const struct json *constant = js_get(a, "const"), *values = js_get(a, "enum");

    if (constant)
        return schema_check(d, b, constant, NULL) == SCHEMA_NO;
    if (!js_is(values, JS_ARRAY))
        return false;
    for (size_t i = 0; i < js_len(values); i++)
        if (schema_check(d, b, js_at(values, i), NULL) != SCHEMA_NO)
            return false;
    return true;
}

/* Whether one object requires a property that the other one cannot have. */
static bool requires_more(struct schema_document *d, const struct json *a, const struct json *b)
{
    const struct json *names = js_get(a, "required"), *theirs = js_get(b, "properties");
    bool is_shut =
        schema_is_false(js_get(b, "additionalProperties")) && !js_get(b, "patternProperties");

    if (!schema_names(js_get(a, "type"), "object") || !schema_names(js_get(b, "type"), "object"))
        return false;
    for (size_t i = 0; js_is(names, JS_ARRAY) && i < js_len(names) && pay(d, 1); i++) {
        const char *name =
            js_is(js_at(names, i), JS_STRING) ? js_string(js_at(names, i), NULL) : "";
        const struct json *x = js_get(theirs, name);
        if (*name && (x ? schema_is_false(x) : is_shut))
            return true;
    }
    return false;
}

/* Whether values of a property that both require exclude each other. */
static bool properties_exclude(struct schema_document *d, const struct json *a,
                               const struct json *b, uint32_t depth)
{
    const struct json *ours = js_get(a, "properties"), *theirs = js_get(b, "properties");
    const struct json *x = js_get(a, "required"), *y = js_get(b, "required");

    if (!js_is(ours, JS_OBJECT) || !js_is(theirs, JS_OBJECT) || !pay(d, js_len(ours)))
        return false;
    for (void *it = js_first(ours); it; it = js_next(ours, it)) {
        const char *name = js_it_key(it);
        const struct json *other = js_get(theirs, name);
        if (other && pay(d, 1 + js_len(x) + js_len(y)) && schema_names(x, name) &&
            schema_names(y, name) && exclude(d, js_it_value(it), other, depth))
            return true;
    }
    return false;
}

/* Whether b excludes the schema that a refers to, one of those that a joins, or all of those that
 * a chooses from. */
static bool parts_exclude(struct schema_document *d, const struct json *a, const struct json *b,
                          uint32_t depth)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const struct json *ref = js_get(a, "$ref"), *all = js_get(a, "allOf");

    if (js_is(ref, JS_STRING)) {
        const struct json *to = schema_resolve(d->root, js_string(ref, NULL));
        if (to && exclude(d, to, b, depth))
            return true;
    }
    for (size_t i = 0; js_is(all, JS_ARRAY) && i < js_len(all); i++)
        if (exclude(d, js_at(all, i), b, depth))
            return true;
    for (size_t k = 0; k < ARRAY_SIZE(choices); k++) {
        const struct json *list = js_get(a, choices[k]);
        size_t n = 0;
        while (js_is(list, JS_ARRAY) && n < js_len(list) && exclude(d, js_at(list, n), b, depth))
            n++;
        if (js_is(list, JS_ARRAY) && n == js_len(list))
            return true;
    }
    return false;
}

static bool exclude(struct schema_document *d, const struct json *a, const struct json *b,
                    uint32_t depth)
{
    if (schema_is_false(a) || schema_is_false(b))
        return true;
    if (!js_is(a, JS_OBJECT) || !js_is(b, JS_OBJECT) || depth == 0 || !pay(d, 1))
        return false;
    depth--;
    return types_exclude(d, a, b) || constants_exclude(d, a, b) || constants_exclude(d, b, a) ||
           requires_more(d, a, b) || requires_more(d, b, a) || properties_exclude(d, a, b, depth) ||
           parts_exclude(d, a, b, depth) || parts_exclude(d, b, a, depth);
}

bool schemas_exclude(struct schema_document *d, const struct json *a, const struct json *b)
{
    return exclude(d, a, b, 8) && d->n_comparisons_left > 0;
}
