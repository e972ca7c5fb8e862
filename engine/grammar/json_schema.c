/* json_schema.c - JSON schemas as expressions.
 *
 * A keyword that this file cannot enforce is refused by name, so a finished answer is always
 * valid. Where the schema leaves a choice of spelling (order of properties, white space,
 * escapes), the expression has the usual ones only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/json_number.h"
#include "engine/grammar/json_string.h"
#include "engine/grammar/schema_merge.h"
#include "engine/grammar/schema_read.h"

#define DEPTH_MAX 200u
#define REFS_MAX 4096u
#define MERGED_BYTES_MAX ((size_t)16 << 20)
#define COMPARISONS_MAX 5000000u /* of values of oneOf */
#define SPACES_MAX 20u           /* of an indented line */
#define ITEMS_MAX 10000u
#define CHARACTERS_MAX 100000u

struct reader {
    struct exprs *e;
    const struct json *root;
    struct buf *why;
    enum status status;
    uint32_t depth;
    const struct json *refs[REFS_MAX]; /* [n_refs] schemas that are rules */
    uint32_t ref_rules[REFS_MAX];
    uint32_t n_refs;
    struct json *made[REFS_MAX]; /* [n_made] merged schemas, released at the end */
    uint32_t n_made;
    size_t n_merged_bytes; /* of them */
    uint32_t n_comparisons_left;
    uint32_t space, any, string; /* rules; EXPR_FAILED: not made yet */
};

/* Whether the schema is refused, or a bound or the memory is used up: nothing more is read then. */
static bool is_stopped(const struct reader *r)
{
    return r->status != OK || exprs_status(r->e) != OK;
}

static uint32_t refuse(struct reader *r, enum status s, const char *what, const char *name)
{
    if (!is_stopped(r))
        r->status = buf_why(r->why, s, "JSON schema: %s%s%.100s", what, *name ? " " : "", name);
    return EXPR_FAILED;
}

static uint32_t read_schema(struct reader *r, const struct json *j);

static uint32_t text(struct reader *r, const char *t)
{
    return expr_cstr(r->e, t);
}

static uint32_t make_rule(struct reader *r, uint32_t x)
{
    uint32_t rule = expr_new_rule(r->e);

    expr_define(r->e, rule, x);
    return rule;
}

/* Nothing, a space, or a new line with its indentation. */
static uint32_t space(struct reader *r)
{
    static const struct byte_set blanks = {{UINT64_C(1) << ' ' | UINT64_C(1) << '\t', 0, 0, 0}};

    if (r->space == EXPR_FAILED) {
        uint32_t line = expr_seq(r->e, text(r, "\n"),
                                 expr_repeat(r->e, expr_byte(r->e, &blanks), 0, SPACES_MAX));
        r->space =
            make_rule(r, expr_alt(r->e, expr_empty(r->e), expr_alt(r->e, text(r, " "), line)));
    }
    return expr_rule(r->e, r->space);
}

/* --- strings --- */

static uint32_t quoted(struct reader *r, uint32_t x)
{
    return expr_seq3(r->e, text(r, "\""), x, text(r, "\""));
}

static uint32_t any_string(struct reader *r)
{
    if (r->string == EXPR_FAILED)
        r->string = make_rule(r, quoted(r, expr_repeat(r->e, front_character(r->e), 0, EXPR_MANY)));
    return expr_rule(r->e, r->string);
}

static uint32_t by_regex(struct reader *r, const char *regex, size_t len, unsigned flags)
{
    uint32_t x = EXPR_FAILED;
    enum status s = front_regex(r->e, regex, len, REGEX_IN_JSON | flags, &x, r->why);

    if (s != OK && r->status == OK)
        r->status = s;
    return quoted(r, x);
}

/* A count such as minLength; false: not there. */
static bool count(struct reader *r, const struct json *j, const char *name, uint32_t max,
                  uint32_t *out)
{
    const struct json *v = js_get(j, name);
    double n;

    if (!v)
        return false;
    n = js_is(v, JS_INT) || js_is(v, JS_REAL) ? js_number(v) : -1;
    if (n < 0 || floor(n) != n)
        refuse(r, ERR_INVALID, "not a count:", name);
    else if (n > max)
        refuse(r, ERR_TOO_LARGE, "too large:", name);
    else
        *out = (uint32_t)n;
    return true;
}

/* Whether every text of the pattern has min to max characters. */
static bool lengths_follow(const struct json *pattern, uint32_t min, uint32_t max)
{
    struct exprs e;
    uint32_t x = EXPR_FAILED, least, most;
    size_t len;
    const char *regex = js_is(pattern, JS_STRING) ? js_string(pattern, &len) : NULL;
    bool yes = min == 0 && max == EXPR_MANY;

    if (!regex || yes)
        return yes;
    exprs_init(&e);
    if (front_regex(&e, regex, len, REGEX_SEARCH, &x, NULL) == OK && x != EXPR_FAILED &&
        exprs_count_chars(&e, x, &least, &most))
        yes = least >= min && most <= max;
    exprs_fini(&e);
    return yes;
}

static uint32_t read_string(struct reader *r, const struct json *j)
{
    const struct json *pattern = js_get(j, "pattern"), *format = js_get(j, "format");
    uint32_t min = 0, max = EXPR_MANY;
    bool has_length = count(r, j, "minLength", CHARACTERS_MAX, &min);

    has_length = count(r, j, "maxLength", CHARACTERS_MAX, &max) || has_length;
    const char *known =
        js_is(format, JS_STRING) ? front_format_regex(js_string(format, NULL)) : NULL;
    if (pattern && has_length && lengths_follow(pattern, min, max))
        has_length = false;
    if (!!pattern + !!known + has_length > 1)
        return refuse(r, ERR_UNSUPPORTED,
                      "two of pattern, format and a length together are not supported", "");
    if (pattern) {
        size_t len = 0;
        if (!js_is(pattern, JS_STRING))
            return refuse(r, ERR_INVALID, "pattern is no string", "");
        const char *regex = js_string(pattern, &len);
        return by_regex(r, regex, len, REGEX_SEARCH);
    }
    if (known)
        return by_regex(r, known, strlen(known), 0);
    if (!has_length)
        return any_string(r);
    if (min > max)
        return refuse(r, ERR_INVALID, "minLength is above maxLength", "");
    uint32_t one = expr_rule(r->e, make_rule(r, front_character(r->e)));
    return quoted(r, expr_repeat(r->e, one, min, max));
}

/* --- numbers --- */

/* One bound. `exclusive` is a number, or, in old schemas, a flag beside `name`. */
static void read_bound(struct reader *r, const struct json *j, const char *name,
                       const char *exclusive, int sign, double *bound, bool *with)
{
    const struct json *v = js_get(j, name), *x = js_get(j, exclusive);
    bool is_flag = js_is(x, JS_BOOL);

    if (v && !js_is(v, JS_INT) && !js_is(v, JS_REAL))
        refuse(r, ERR_INVALID, "not a number:", name);
    else if (x && !is_flag && !js_is(x, JS_INT) && !js_is(x, JS_REAL))
        refuse(r, ERR_INVALID, "not a number:", exclusive);
    if (r->status != OK)
        return;
    if (v) {
        *bound = js_number(v);
        *with = !(is_flag && js_bool(x));
    }
    if (x && !is_flag && (!v || sign * (js_number(x) - *bound) <= 0)) {
        *bound = js_number(x);
        *with = false;
    }
}

static uint32_t read_number(struct reader *r, const struct json *j, bool is_integer)
{
    double low = -INFINITY, high = INFINITY;
    const struct json *multiple = js_get(j, "multipleOf");
    struct json_bounds b = {.with_low = true, .with_high = true};

    if (multiple && !(is_integer && js_is(multiple, JS_INT) && js_int(multiple) == 1))
        return refuse(r, ERR_UNSUPPORTED, "multipleOf is not supported", "");
    read_bound(r, j, "minimum", "exclusiveMinimum", -1, &low, &b.with_low);
    read_bound(r, j, "maximum", "exclusiveMaximum", 1, &high, &b.with_high);
    if (r->status != OK)
        return EXPR_FAILED;
    if (!is_integer && isinf(low) && isinf(high))
        return front_number(r->e);
    if (low < -(double)JSON_INTEGER_MAX) {
        low = -(double)JSON_INTEGER_MAX;
        b.with_low = true;
    }
    if (high > (double)JSON_INTEGER_MAX) {
        high = (double)JSON_INTEGER_MAX;
        b.with_high = true;
    }
    if (low > high)
        return refuse(r, ERR_INVALID, "minimum is above maximum", "");
    if (is_integer) {
        b.low = (int64_t)ceil(low) + (floor(low) == low && !b.with_low);
        b.high = (int64_t)floor(high) - (floor(high) == high && !b.with_high);
        return b.low > b.high ? refuse(r, ERR_INVALID, "no integer is between the bounds", "")
                              : front_integer(r->e, b.low, b.high);
    }
    if (floor(low) != low || floor(high) != high)
        return refuse(r, ERR_UNSUPPORTED,
                      "bounds of a number that are no whole numbers are not supported", "");
    b.low = (int64_t)low;
    b.high = (int64_t)high;
    return front_number_between(r->e, &b);
}

/* --- arrays --- */

/* A list of `items` with commas, min to max of them. */
static uint32_t list(struct reader *r, uint32_t item, uint32_t min, uint32_t max)
{
    uint32_t comma = expr_seq3(r->e, text(r, ","), space(r), item);
    uint32_t some;

    if (max == 0)
        return expr_empty(r->e);
    some = expr_seq(r->e, item,
                    expr_repeat(r->e, comma, min ? min - 1 : 0, max == EXPR_MANY ? max : max - 1));
    return min == 0 ? expr_repeat(r->e, some, 0, 1) : some;
}

static uint32_t bracketed(struct reader *r, const char *open, uint32_t x, const char *close)
{
    return expr_seq3(r->e, expr_seq(r->e, text(r, open), space(r)), x,
                     expr_seq(r->e, space(r), text(r, close)));
}

static uint32_t read_prefix(struct reader *r, const struct json *prefix, uint32_t rest,
                            uint32_t min, uint32_t max)
{
    uint32_t n = (uint32_t)js_len(prefix);
    uint32_t comma = expr_seq(r->e, text(r, ","), space(r));
    uint32_t x = rest == EXPR_FAILED || max <= n
                     ? expr_empty(r->e)
                     : expr_repeat(r->e, expr_seq(r->e, comma, rest), min > n ? min - n : 0,
                                   max == EXPR_MANY ? max : max - n);

    for (uint32_t i = n; i-- > 0;) {
        uint32_t item = read_schema(r, js_at(prefix, i));
        if (i >= max)
            continue;
        x = expr_seq3(r->e, i > 0 ? comma : expr_empty(r->e), item, x);
        if (i >= min)
            x = expr_repeat(r->e, x, 0, 1);
    }
    return x;
}

static uint32_t read_array(struct reader *r, const struct json *j)
{
    const struct json *prefix = js_get(j, "prefixItems"), *items = js_get(j, "items");
    uint32_t min = 0, max = EXPR_MANY, item;
    bool is_closed = js_is(items, JS_BOOL) && !js_bool(items);

    (void)count(r, j, "minItems", ITEMS_MAX, &min);
    (void)count(r, j, "maxItems", ITEMS_MAX, &max);
    if (js_is(items, JS_ARRAY))
        return refuse(r, ERR_UNSUPPORTED, "items as a list is not supported: use prefixItems", "");
    if (prefix && !js_is(prefix, JS_ARRAY))
        return refuse(r, ERR_INVALID, "prefixItems is no list", "");
    uint32_t n_prefix = prefix ? (uint32_t)js_len(prefix) : 0;
    if (is_closed && max > n_prefix)
        max = n_prefix;
    if (min > max)
        return refuse(r, ERR_INVALID, "minItems is above maxItems", "");
    item = is_closed ? EXPR_FAILED : items ? read_schema(r, items) : read_schema(r, NULL);
    if (!is_closed && item != EXPR_FAILED)
        item = expr_rule(r->e, make_rule(r, item));
    if (r->status != OK)
        return EXPR_FAILED;
    /* Items behind the prefix that no schema asks for are left out. */
    return bracketed(r, "[",
                     prefix
                         ? read_prefix(r, prefix, items || min > n_prefix ? item : EXPR_FAILED, min,
                                       items || min > n_prefix ? max
                                       : max < n_prefix        ? max
                                                               : n_prefix)
                     : max == 0 ? expr_empty(r->e)
                                : list(r, item, min, max),
                     "]");
}

/* --- objects --- */

static uint32_t pair(struct reader *r, uint32_t key, uint32_t value)
{
    return expr_seq3(r->e, key, expr_seq(r->e, text(r, ":"), space(r)), value);
}

struct properties {
    const char *names[JSON_NAMES_MAX]; /* [n] */
    const struct json *schemas[JSON_NAMES_MAX];
    bool required[JSON_NAMES_MAX];
    uint32_t n;
};

static bool is_required(const struct json *required, const char *name)
{
    for (size_t i = 0; i < js_len(required); i++)
        if (js_is(js_at(required, i), JS_STRING) &&
            strcmp(js_string(js_at(required, i), NULL), name) == 0)
            return true;
    return false;
}

static bool has_name(const struct properties *p, const char *name)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->names[i], name) == 0)
            return true;
    return false;
}

/* The declared properties, then those that are only required. */
static void list_properties(struct reader *r, const struct json *j, struct properties *p)
{
    const struct json *declared = js_get(j, "properties"), *required = js_get(j, "required");

    if ((declared && !js_is(declared, JS_OBJECT)) || (required && !js_is(required, JS_ARRAY)))
        refuse(r, ERR_INVALID, "properties is no object, or required is no list", "");
    if (r->status != OK)
        return;
    if (js_len(declared) + js_len(required) > JSON_NAMES_MAX)
        refuse(r, ERR_TOO_LARGE, "too many properties", "");
    for (void *it = declared ? js_first(declared) : NULL; it && r->status == OK;
         it = js_next(declared, it)) {
        p->names[p->n] = js_it_key(it);
        p->schemas[p->n] = js_it_value(it);
        p->required[p->n] = is_required(required, js_it_key(it));
        p->n++;
    }
    for (size_t i = 0; r->status == OK && i < js_len(required); i++) {
        const char *name = NULL;
        if (js_read_cstr(js_at(required, i), "required", &name, NULL) != OK)
            refuse(r, ERR_INVALID, "required has something else than names", "");
        else if (!has_name(p, name)) {
            p->names[p->n] = name;
            p->schemas[p->n] = NULL;
            p->required[p->n++] = true;
        }
    }
}

/* Properties in their order, then further pairs (EXPR_FAILED: none). Behind[i] are the properties
 * from i on when one came before; `first` is the object that begins with property i.
 * may_be_empty: an object without any pair is one. */
static uint32_t join_properties(struct reader *r, const struct properties *p, uint32_t more,
                                bool may_be_empty)
{
    uint32_t comma = expr_seq(r->e, text(r, ","), space(r));
    uint32_t behind = expr_empty(r->e);
    uint32_t first = may_be_empty ? expr_empty(r->e) : expr_never(r->e);

    if (more != EXPR_FAILED) {
        behind = expr_repeat(r->e, expr_seq(r->e, comma, more), 0, EXPR_MANY);
        first = list(r, more, may_be_empty ? 0 : 1, EXPR_MANY);
    }
    for (uint32_t i = p->n; i-- > 0 && !is_stopped(r);) {
        uint32_t key = quoted(r, front_json_text(r->e, p->names[i], strlen(p->names[i])));
        uint32_t one = make_rule(r, pair(r, key, read_schema(r, p->schemas[i])));
        uint32_t rest = make_rule(r, behind);
        uint32_t begins = expr_seq(r->e, expr_rule(r->e, one), expr_rule(r->e, rest));
        uint32_t follows = expr_seq(r->e, comma, expr_rule(r->e, one));
        first = p->required[i] ? begins : expr_alt(r->e, first, begins);
        behind = expr_seq(r->e, p->required[i] ? follows : expr_repeat(r->e, follows, 0, 1),
                          expr_rule(r->e, rest));
    }
    return first;
}

/* Keys that a pattern describes, where the object has nothing else. */
static uint32_t read_patterns(struct reader *r, const struct json *patterns)
{
    void *it = js_first(patterns);

    if (js_len(patterns) != 1)
        return refuse(r, ERR_UNSUPPORTED, "several patternProperties are not supported", "");
    return pair(r, by_regex(r, js_it_key(it), strlen(js_it_key(it)), REGEX_SEARCH),
                read_schema(r, js_it_value(it)));
}

/* Whether the counts follow from the properties. *min becomes 1 where only the empty object is to
 * be left out. */
static bool counts_hold(const struct properties *p, bool has_more, uint32_t *min, uint32_t max)
{
    uint32_t n_required = 0;

    for (uint32_t i = 0; i < p->n; i++)
        n_required += p->required[i];
    if (*min <= n_required)
        *min = 0;
    return *min <= 1 && (max == EXPR_MANY || (max >= p->n && !has_more));
}

static uint32_t read_object(struct reader *r, const struct json *j)
{
    struct properties *p = calloc(1, sizeof *p);
    const struct json *more = js_get(j, "additionalProperties");
    const struct json *patterns = js_get(j, "patternProperties");
    bool is_closed = js_is(more, JS_BOOL) && !js_bool(more);
    uint32_t min = 0, max = EXPR_MANY, pairs = EXPR_FAILED, x;
    bool has_counts = count(r, j, "minProperties", ITEMS_MAX, &min);

    if (!p)
        return expr_fail(r->e, ERR_NOMEM);
    has_counts = count(r, j, "maxProperties", ITEMS_MAX, &max) || has_counts;
    list_properties(r, j, p);
    if (r->status == OK && patterns && (p->n > 0 || !js_is(patterns, JS_OBJECT)))
        refuse(r, ERR_UNSUPPORTED, "patternProperties beside properties are not supported", "");
    if (r->status == OK && has_counts && p->n > 0 && !counts_hold(p, more && !is_closed, &min, max))
        refuse(r, ERR_UNSUPPORTED,
               "minProperties and maxProperties beside properties, where they say more than these, "
               "are not supported",
               "");
    if (r->status == OK && patterns) {
        pairs = read_patterns(r, patterns);
    } else if (r->status == OK && (more ? !is_closed : p->n == 0)) {
        const char **names = malloc((p->n + 1) * sizeof *names);
        if (names) {
            memcpy(names, p->names, p->n * sizeof *names);
            pairs = pair(r, p->n ? quoted(r, front_other_key(r->e, names, p->n)) : any_string(r),
                         read_schema(r, more));
        } else {
            expr_fail(r->e, ERR_NOMEM);
        }
        free((void *)names);
    }
    if (pairs != EXPR_FAILED)
        pairs = expr_rule(r->e, make_rule(r, pairs));
    if (has_counts && (min > max || (min > 0 && p->n == 0 && pairs == EXPR_FAILED)))
        refuse(r, ERR_INVALID, "minProperties cannot be met", "");
    x = r->status != OK ? EXPR_FAILED
        : has_counts && p->n == 0
            ? pairs == EXPR_FAILED ? expr_empty(r->e) : list(r, pairs, min, max)
            : join_properties(r, p, pairs, min == 0);
    free(p);
    return r->status == OK ? bracketed(r, "{", x, "}") : EXPR_FAILED;
}

/* --- values --- */

/* A value written as it is. */
static uint32_t literal(struct reader *r, const struct json *v)
{
    struct buf b;
    uint32_t x = EXPR_FAILED;

    if (js_is(v, JS_STRING)) {
        size_t len;
        const char *s = js_string(v, &len);
        return quoted(r, front_json_text(r->e, s, len));
    }
    buf_init(&b, 1 << 20);
    if (js_write(&b, v) == OK)
        x = expr_text(r->e, b.data, b.len);
    else
        expr_fail(r->e, ERR_TOO_LARGE);
    buf_fini(&b);
    return x;
}

static uint32_t any_value(struct reader *r)
{
    if (r->any == EXPR_FAILED) {
        uint32_t x;
        r->any = expr_new_rule(r->e);
        uint32_t value = expr_rule(r->e, r->any);
        x = bracketed(r, "{", list(r, pair(r, any_string(r), value), 0, EXPR_MANY), "}");
        x = expr_alt(r->e, x, bracketed(r, "[", list(r, value, 0, EXPR_MANY), "]"));
        x = expr_alt(r->e, x, any_string(r));
        x = expr_alt(r->e, x, front_number(r->e));
        x = expr_alt(r->e, x, text(r, "true"));
        x = expr_alt(r->e, x, text(r, "false"));
        expr_define(r->e, r->any, expr_alt(r->e, x, text(r, "null")));
    }
    return expr_rule(r->e, r->any);
}

static uint32_t read_type(struct reader *r, const struct json *j, const char *type)
{
    if (strcmp(type, "object") == 0)
        return read_object(r, j);
    if (strcmp(type, "array") == 0)
        return read_array(r, j);
    if (strcmp(type, "string") == 0)
        return read_string(r, j);
    if (strcmp(type, "number") == 0)
        return read_number(r, j, false);
    if (strcmp(type, "integer") == 0)
        return read_number(r, j, true);
    if (strcmp(type, "boolean") == 0)
        return expr_alt(r->e, text(r, "true"), text(r, "false"));
    if (strcmp(type, "null") == 0)
        return text(r, "null");
    return refuse(r, ERR_INVALID, "unknown type", type);
}

static uint32_t read_types(struct reader *r, const struct json *j)
{
    const struct json *type = js_get(j, "type");
    const char *implied = type ? NULL : schema_implied_type(j);
    uint32_t x = expr_never(r->e);

    if (implied)
        return read_type(r, j, implied);
    if (!type)
        return any_value(r);
    if (js_is(type, JS_STRING))
        return read_type(r, j, js_string(type, NULL));
    if (!js_is(type, JS_ARRAY) || js_len(type) == 0)
        return refuse(r, ERR_INVALID, "type is no name and no list of names", "");
    for (size_t i = 0; i < js_len(type) && !is_stopped(r); i++) {
        if (!js_is(js_at(type, i), JS_STRING))
            return refuse(r, ERR_INVALID, "type has something else than names", "");
        x = expr_alt(r->e, x, read_type(r, j, js_string(js_at(type, i), NULL)));
    }
    return x;
}

static uint32_t read_enum(struct reader *r, const struct json *j, const struct json *values)
{
    uint32_t x = expr_never(r->e), n = 0;

    for (size_t i = 0; i < js_len(values) && !is_stopped(r); i++)
        if (schema_fits_type(js_at(values, i), js_get(j, "type"))) {
            x = expr_alt(r->e, x, literal(r, js_at(values, i)));
            n++;
        }
    return n ? x : refuse(r, ERR_INVALID, "no value of enum has the type", "");
}

/* --- combinations --- */

/* Keywords whose meaning goes beyond a finite machine, or that are not done. */
static bool check_keywords(struct reader *r, const struct json *j)
{
    static const char *const refused[] = {"not",
                                          "if",
                                          "then",
                                          "else",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "dependencies",
                                          "propertyNames",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "$dynamicRef",
                                          "$recursiveRef"};
    const struct json *unique = js_get(j, "uniqueItems");

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        if (js_get(j, refused[i]))
            return refuse(r, ERR_UNSUPPORTED, "not supported:", refused[i]) != EXPR_FAILED;
    if (unique && !(js_is(unique, JS_BOOL) && !js_bool(unique)))
        return refuse(r, ERR_UNSUPPORTED, "not supported:", "uniqueItems") != EXPR_FAILED;
    return true;
}

/* The rule of a schema that a reference names; it may refer to itself. */
static uint32_t ref_rule(struct reader *r, const struct json *target)
{
    for (uint32_t i = 0; i < r->n_refs; i++)
        if (r->refs[i] == target)
            return expr_rule(r->e, r->ref_rules[i]);
    if (r->n_refs == REFS_MAX)
        return refuse(r, ERR_TOO_LARGE, "too many references", "");
    uint32_t rule = expr_new_rule(r->e);
    r->refs[r->n_refs] = target;
    r->ref_rules[r->n_refs++] = rule;
    expr_define(r->e, rule, read_schema(r, target));
    return expr_rule(r->e, rule);
}

/* Both schemas hold: one schema with the keywords of both. */
static const struct json *merged(struct reader *r, const struct json *a, const struct json *b,
                                 const char *without)
{
    struct json *m = NULL;
    char conflict[64] = "";

    r->n_merged_bytes += schema_bytes(a) + schema_bytes(b);
    if (r->n_made == REFS_MAX || r->n_merged_bytes > MERGED_BYTES_MAX) {
        refuse(r, ERR_TOO_LARGE, "too many or too large schemas that are joined", "");
        return NULL;
    }
    enum status s = schema_merge(&m, a, b, without, conflict, sizeof conflict);
    if (s == OK) {
        r->made[r->n_made++] = m;
        return m;
    }
    refuse(r, s, s == ERR_UNSUPPORTED ? "two schemas for one value cannot be joined:" : "",
           s == ERR_UNSUPPORTED ? conflict : status_name(s));
    return NULL;
}

static uint32_t read_ref(struct reader *r, const struct json *j)
{
    const struct json *ref = js_get(j, "$ref");
    const struct json *target =
        js_is(ref, JS_STRING) ? schema_resolve(r->root, js_string(ref, NULL)) : NULL;

    if (!target)
        return refuse(r, ERR_INVALID, "$ref names nothing in this document:",
                      js_is(ref, JS_STRING) ? js_string(ref, NULL) : "no string");
    if (!schema_has_more(j, "$ref"))
        return ref_rule(r, target);
    const struct json *m = merged(r, j, target, "$ref");
    return m ? read_schema(r, m) : EXPR_FAILED;
}

static uint32_t read_all_of(struct reader *r, const struct json *j)
{
    const struct json *all = js_get(j, "allOf"), *m = j;

    if (!js_is(all, JS_ARRAY) || js_len(all) == 0)
        return refuse(r, ERR_INVALID, "allOf is no list", "");
    for (size_t i = 0; m && i < js_len(all); i++) {
        const struct json *part = js_at(all, i);
        const struct json *ref = js_get(part, "$ref");
        if (js_is(ref, JS_STRING) && !schema_has_more(part, "$ref") &&
            !(part = schema_resolve(r->root, js_string(ref, NULL))))
            return refuse(r, ERR_INVALID,
                          "$ref names nothing in this document:", js_string(ref, NULL));
        m = merged(r, m, part, i == 0 ? "allOf" : "");
    }
    return m ? read_schema(r, m) : EXPR_FAILED;
}

static uint32_t read_any_of(struct reader *r, const struct json *j, const char *name)
{
    const struct json *list_of = js_get(j, name);
    uint32_t x = expr_never(r->e);
    bool has_more = schema_has_more(j, name);

    if (!js_is(list_of, JS_ARRAY) || js_len(list_of) == 0)
        return refuse(r, ERR_INVALID, "no list:", name);
    if (strcmp(name, "oneOf") == 0)
        for (size_t i = 0; i < js_len(list_of); i++)
            for (size_t k = 0; k < i; k++)
                if (!schemas_exclude(js_at(list_of, i), js_at(list_of, k), &r->n_comparisons_left))
                    return r->n_comparisons_left
                               ? refuse(r, ERR_UNSUPPORTED,
                                        "oneOf with schemas that one value may match together: "
                                        "use anyOf",
                                        "")
                               : refuse(r, ERR_TOO_LARGE, "too many values to compare:", name);
    for (size_t i = 0; i < js_len(list_of) && !is_stopped(r); i++) {
        const struct json *one = js_at(list_of, i);
        if (has_more && !(one = merged(r, j, one, name)))
            return EXPR_FAILED;
        x = expr_alt(r->e, x, read_schema(r, one));
    }
    return x;
}

static uint32_t read_keywords(struct reader *r, const struct json *j)
{
    const struct json *constant = js_get(j, "const"), *values = js_get(j, "enum");

    if (!check_keywords(r, j))
        return EXPR_FAILED;
    if (js_get(j, "$ref"))
        return read_ref(r, j);
    if (js_get(j, "allOf"))
        return read_all_of(r, j);
    if (js_get(j, "anyOf"))
        return read_any_of(r, j, "anyOf");
    if (js_get(j, "oneOf"))
        return read_any_of(r, j, "oneOf");
    if (constant)
        return literal(r, constant);
    if (values && !js_is(values, JS_ARRAY))
        return refuse(r, ERR_INVALID, "enum is no list", "");
    return values ? read_enum(r, j, values) : read_types(r, j);
}

/* NULL or true: any value. */
static uint32_t read_schema(struct reader *r, const struct json *j)
{
    uint32_t x;

    if (is_stopped(r))
        return EXPR_FAILED;
    if (!j || (js_is(j, JS_BOOL) && js_bool(j)))
        return any_value(r);
    if (js_is(j, JS_BOOL))
        return expr_never(r->e);
    if (!js_is(j, JS_OBJECT))
        return refuse(r, ERR_INVALID, "a schema is no object", "");
    if (r->depth == DEPTH_MAX)
        return refuse(r, ERR_TOO_LARGE, "schemas are nested too deeply", "");
    r->depth++;
    x = read_keywords(r, j);
    r->depth--;
    const struct json *nullable = js_get(j, "nullable"); /* OpenAPI 3.0 */
    return js_is(nullable, JS_BOOL) && js_bool(nullable) ? expr_alt(r->e, x, text(r, "null")) : x;
}

static struct reader *new_reader(struct exprs *e, const struct json *root, struct buf *why)
{
    struct reader *r = calloc(1, sizeof *r);

    if (r) {
        r->e = e;
        r->root = root;
        r->why = why;
        r->space = r->any = r->string = EXPR_FAILED;
        r->n_comparisons_left = COMPARISONS_MAX;
    }
    return r;
}

enum status front_json_schema(struct exprs *e, const struct json *schema, uint32_t *out,
                              struct buf *why)
{
    struct reader *r = new_reader(e, schema, why);

    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory for the schema");
    *out = read_schema(r, schema);
    enum status s = r->status;
    for (uint32_t i = 0; i < r->n_made; i++)
        js_unref(r->made[i]);
    free(r);
    return s;
}

uint32_t front_json_object(struct exprs *e)
{
    struct reader *r = new_reader(e, NULL, NULL);
    uint32_t x;

    if (!r)
        return expr_fail(e, ERR_NOMEM);
    x = bracketed(r, "{", list(r, pair(r, any_string(r), any_value(r)), 0, EXPR_MANY), "}");
    free(r);
    return x;
}
