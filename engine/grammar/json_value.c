/* json_value.c - strings, numbers and arrays of JSON schemas. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/json_number.h"
#include "engine/grammar/json_reader.h"
#include "engine/grammar/json_string.h"
#include "engine/grammar/schema_not.h"
#include "engine/grammar/schema_read.h"

#define CHARACTERS_MAX 100000u
#define UNIQUE_MAX 8u     /* values of unique items */
#define CONTAINS_MAX 256u /* items beside `contains`, where their number is bounded */
#define MULTIPLES_MAX 512u

/* --- strings --- */

static uint32_t by_regex(struct reader *r, const char *regex, size_t len, unsigned flags)
{
    uint32_t x = EXPR_FAILED;
    enum status s = front_regex(r->e, regex, len, REGEX_IN_JSON | flags, &x, r->why);

    if (s != OK)
        return reader_fail(r, s);
    return reader_quoted(r, x);
}

/* Whether every text of the expression has min to max characters. */
static bool lengths_follow(const char *regex, size_t len, unsigned flags, uint32_t min,
                           uint32_t max)
{
    struct exprs e;
    uint32_t x = EXPR_FAILED, least, most;
    bool yes = min == 0 && max == EXPR_MANY;

    if (yes)
        return true;
    exprs_init(&e);
    if (front_regex(&e, regex, len, flags, &x, NULL) == OK && x != EXPR_FAILED &&
        exprs_count_chars(&e, x, &least, &most))
        yes = least >= min && most <= max;
    exprs_fini(&e);
    return yes;
}

/* Conditions of strings, in the words of a schema. */
struct words {
    const char *pattern, *format; /* regular expressions; NULL: none */
    size_t pattern_len;
    uint32_t min, max;
    const struct json *no; /* {"anyOf": [...]} or one: schema_not_is_plain() */
};

static bool read_words(struct reader *r, const struct json *j, struct words *w)
{
    const struct json *pattern = js_get(j, "pattern"), *format = js_get(j, "format");

    *w = (struct words){.max = EXPR_MANY, .no = js_get(j, "not")};
    (void)reader_count(r, j, "minLength", CHARACTERS_MAX, &w->min);
    (void)reader_count(r, j, "maxLength", CHARACTERS_MAX, &w->max);
    if (js_is(format, JS_STRING))
        w->format = front_format_regex(js_string(format, NULL));
    if (pattern && !js_is(pattern, JS_STRING))
        reader_refuse(r, ERR_INVALID, "pattern is no string", "");
    else if (pattern)
        w->pattern = js_string(pattern, &w->pattern_len);
    return !reader_is_stopped(r);
}

/* The strings that one part of `not` leaves. */
static enum status add_no(struct text_set *t, const struct json *no, struct buf *why)
{
    const struct json *again = js_get(no, "not"), *values = js_get(no, "enum");
    enum text_condition c = again ? TEXT_WANTED : TEXT_FORBIDDEN;
    const struct json *pattern = js_get(again ? again : no, "pattern"), *format;
    size_t len;

    if (js_is(pattern, JS_STRING)) {
        const char *regex = js_string(pattern, &len);
        unsigned flags = again ? REGEX_SEARCH : REGEX_SEARCH | REGEX_WIDE;
        return text_set_add_regex(t, c, regex, len, flags, why);
    }
    if (again && (format = js_get(again, "format"))) {
        const char *known =
            js_is(format, JS_STRING) ? front_format_regex(js_string(format, NULL)) : NULL;
        return known ? text_set_add_regex(t, c, known, strlen(known), 0, why) : OK;
    }
    const char **texts = malloc((js_len(values) + 1) * sizeof *texts);
    size_t n = 0;
    if (!texts)
        return ERR_NOMEM;
    for (size_t i = 0; js_is(values, JS_ARRAY) && i < js_len(values); i++) {
        const char *s = js_string(js_at(values, i), &len);
        if (strlen(s) == len) /* a text with U+0000 is in no answer */
            texts[n++] = s;
    }
    enum status s = text_set_add_texts(t, c, texts, n, why);
    free((void *)texts);
    return s;
}

static enum status add_words(struct text_set *t, const struct words *w, struct buf *why)
{
    const struct json *any = js_get(w->no, "anyOf");
    enum status s = OK;

    text_set_bound(t, w->min, w->max);
    if (w->pattern)
        s = text_set_add_regex(t, TEXT_WANTED, w->pattern, w->pattern_len, REGEX_SEARCH, why);
    if (s == OK && w->format)
        s = text_set_add_regex(t, TEXT_WANTED, w->format, strlen(w->format), 0, why);
    if (w->no && !any && s == OK)
        s = add_no(t, w->no, why);
    for (size_t i = 0; i < js_len(any) && s == OK; i++)
        s = add_no(t, js_at(any, i), why);
    return s;
}

struct text_set *reader_text_set(struct reader *r, const struct json *j)
{
    struct words w;
    struct text_set *t = NULL;

    if (!read_words(r, j, &w))
        return NULL;
    t = text_set_create(&r->doc.n_work_left);
    if (!t) {
        reader_refuse(r, ERR_NOMEM, "out of memory", "");
        return NULL;
    }
    enum status s = add_words(t, &w, r->why);
    if (s == OK)
        return t;
    text_set_destroy(t);
    reader_fail(r, s);
    return NULL;
}

/* All conditions together, as one machine. */
static uint32_t by_conditions(struct reader *r, const struct json *j)
{
    struct text_set *t = reader_text_set(r, j);
    uint32_t classes[TEXT_SET_CLASSES_MAX], n, x = EXPR_FAILED;

    if (!t)
        return EXPR_FAILED;
    enum status s = text_set_explore(t, classes, &n);
    if (s == OK)
        x = n > 0 ? text_set_in_json(t, r->e, 0) : expr_never(r->e);
    else
        reader_refuse(r, s, "pattern, format and lengths of one string are too large together", "");
    text_set_destroy(t);
    return s == OK ? reader_quoted(r, x) : EXPR_FAILED;
}

uint32_t read_string(struct reader *r, const struct json *j)
{
    struct words w;

    if (!read_words(r, j, &w))
        return EXPR_FAILED;
    if (w.min > w.max)
        return expr_never(r->e);
    bool has_length = w.min > 0 || w.max != EXPR_MANY;
    if (has_length &&
        ((w.pattern && lengths_follow(w.pattern, w.pattern_len, REGEX_SEARCH, w.min, w.max)) ||
         (w.format && lengths_follow(w.format, strlen(w.format), 0, w.min, w.max))))
        has_length = false;
    if (w.no || !!w.pattern + !!w.format + has_length > 1)
        return by_conditions(r, j);
    if (w.pattern)
        return by_regex(r, w.pattern, w.pattern_len, REGEX_SEARCH);
    if (w.format)
        return by_regex(r, w.format, strlen(w.format), 0);
    if (!has_length)
        return reader_any_string(r);
    uint32_t one = expr_rule(r->e, reader_rule(r, front_character(r->e)));
    return reader_quoted(r, expr_repeat(r->e, one, w.min, w.max));
}

/* --- numbers --- */

/* Read a bound. `exclusive` is a number, or, in old schemas, a flag beside `name`. */
static void read_bound(struct reader *r, const struct json *j, const char *name,
                       const char *exclusive, int sign, double *bound, bool *with)
{
    const struct json *v = js_get(j, name), *x = js_get(j, exclusive);
    bool is_flag = js_is(x, JS_BOOL);

    if (v && !js_is(v, JS_INT) && !js_is(v, JS_REAL))
        reader_refuse(r, ERR_INVALID, "not a number:", name);
    else if (x && !is_flag && !js_is(x, JS_INT) && !js_is(x, JS_REAL))
        reader_refuse(r, ERR_INVALID, "not a number:", exclusive);
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

/* Both bounds, within those of the notation. False: an error. */
static bool read_bounds(struct reader *r, const struct json *j, struct json_bounds *b)
{
    *b = (struct json_bounds){
        .low = -INFINITY, .high = INFINITY, .with_low = true, .with_high = true};
    read_bound(r, j, "minimum", "exclusiveMinimum", -1, &b->low, &b->with_low);
    read_bound(r, j, "maximum", "exclusiveMaximum", 1, &b->high, &b->with_high);
    return !reader_is_stopped(r);
}

static void clip(struct json_bounds *b, double most)
{
    if (b->low < -most) {
        b->low = -most;
        b->with_low = true;
    }
    if (b->high > most) {
        b->high = most;
        b->with_high = true;
    }
}

/* The remainders of the digits so far as rules: a number whose digits leave none is a multiple. */
static uint32_t multiple(struct exprs *e, uint32_t of)
{
    uint32_t *rules = malloc(of * sizeof *rules), first = expr_never(e);
    struct byte_set digits[10] = {{{0}}};

    if (!rules)
        return expr_fail(e, ERR_NOMEM);
    for (uint32_t i = 0; i < of; i++)
        rules[i] = expr_new_rule(e);
    for (uint8_t d = 0; d < 10; d++)
        byte_set_add(&digits[d], (uint8_t)('0' + d));
    for (uint32_t i = 0; i < of && exprs_status(e) == OK; i++) {
        uint32_t x = i == 0 ? expr_empty(e) : expr_never(e);
        for (uint32_t d = 0; d < 10; d++)
            x = expr_alt(
                e, x,
                expr_seq(e, expr_byte(e, &digits[d]), expr_rule(e, rules[(10 * i + d) % of])));
        expr_define(e, rules[i], x);
    }
    first = expr_seq(e, expr_repeat(e, expr_cstr(e, "-"), 0, 1), expr_rule(e, rules[0]));
    free(rules);
    return first;
}

/* Whole numbers from low to high that are multiples. */
static uint32_t read_multiples(struct reader *r, int64_t low, int64_t high, uint32_t of)
{
    struct text_set *t = text_set_create(&r->doc.n_work_left);
    uint32_t classes[TEXT_SET_CLASSES_MAX], n, x = EXPR_FAILED;
    struct exprs e;
    enum status s = t ? OK : ERR_NOMEM;

    exprs_init(&e);
    if (s == OK)
        s = text_set_add_expr(t, TEXT_WANTED, &e, front_integer(&e, low, high), r->why);
    if (s == OK)
        s = text_set_add_expr(t, TEXT_WANTED, &e, multiple(&e, of), r->why);
    if (s == OK)
        s = text_set_explore(t, classes, &n);
    if (s == OK)
        x = n > 0 ? text_set_in_json(t, r->e, 0) : expr_never(r->e);
    exprs_fini(&e);
    text_set_destroy(t);
    return s == OK ? x : reader_refuse(r, s, "too large with these bounds:", "multipleOf");
}

static uint32_t read_integer(struct reader *r, struct json_bounds *b, uint32_t of)
{
    clip(b, (double)JSON_INTEGER_MAX);
    if (b->low > b->high)
        return expr_never(r->e);
    int64_t low = (int64_t)ceil(b->low) + (floor(b->low) == b->low && !b->with_low);
    int64_t high = (int64_t)floor(b->high) - (floor(b->high) == b->high && !b->with_high);
    if (low > high)
        return expr_never(r->e);
    return of > 1 ? read_multiples(r, low, high, of) : front_integer(r->e, low, high);
}

/* `multipleOf`, a whole number; 0: there is none. False: refused. */
static bool read_multiple_of(struct reader *r, const struct json *j, uint32_t *of)
{
    const struct json *v = js_get(j, "multipleOf");
    double n = v && (js_is(v, JS_INT) || js_is(v, JS_REAL)) ? js_number(v) : 0;

    *of = 0;
    if (!v)
        return true;
    if (n <= 0)
        reader_refuse(r, ERR_INVALID, "no number above 0:", "multipleOf");
    else if (floor(n) != n || n > MULTIPLES_MAX)
        reader_refuse(r, ERR_UNSUPPORTED,
                      "multipleOf is supported for whole numbers up to 512 only", "");
    else
        *of = (uint32_t)n;
    return !reader_is_stopped(r);
}

uint32_t read_number(struct reader *r, const struct json *j, bool is_integer)
{
    struct json_bounds b;
    bool wants_fraction = js_get(j, "not") != NULL;
    uint32_t of;

    if (!read_bounds(r, j, &b) || !read_multiple_of(r, j, &of))
        return EXPR_FAILED;
    if (is_integer || of > 0)
        return wants_fraction ? expr_never(r->e) : read_integer(r, &b, of);
    if (!wants_fraction && isinf(b.low) && isinf(b.high))
        return front_number(r->e);
    clip(&b, (double)(wants_fraction ? JSON_FRACTION_MAX : JSON_INTEGER_MAX));
    if (b.low > b.high || (b.low == b.high && !(b.with_low && b.with_high)))
        return expr_never(r->e);
    b.wants_fraction = wants_fraction;
    uint32_t x = front_number_between(r->e, &b);
    if (exprs_status(r->e) == ERR_UNSUPPORTED)
        return reader_fail(r, buf_why(r->why, ERR_UNSUPPORTED,
                                      "JSON schema: a bound of a number has over 15 digits"));
    return x;
}

/* --- arrays --- */

/* Items as a schema describes them; `items` may be a list, as before draft 2020-12. */
struct items {
    const struct json *prefix, *rest; /* NULL: none; any value */
    uint32_t n_prefix, min, max;
    bool says_rest; /* the schema has a word about items behind the prefix */
};

static bool read_items(struct reader *r, const struct json *j, struct items *a)
{
    const struct json *items = js_get(j, "items");

    *a = (struct items){.prefix = js_get(j, "prefixItems"), .rest = items, .max = EXPR_MANY};
    if (js_is(items, JS_ARRAY)) {
        a->prefix = items;
        a->rest = js_get(j, "additionalItems");
    }
    (void)reader_count(r, j, "minItems", JSON_ITEMS_MAX, &a->min);
    (void)reader_count(r, j, "maxItems", JSON_ITEMS_MAX, &a->max);
    if (a->prefix && !js_is(a->prefix, JS_ARRAY))
        reader_refuse(r, ERR_INVALID, "prefixItems is no list", "");
    a->says_rest = a->rest != NULL;
    a->n_prefix = a->prefix ? (uint32_t)js_len(a->prefix) : 0;
    if (schema_is_false(a->rest) && a->max > a->n_prefix)
        a->max = a->n_prefix;
    return !reader_is_stopped(r);
}

static uint32_t comma(struct reader *r)
{
    return expr_seq(r->e, reader_text(r, ","), reader_space(r));
}

static uint32_t read_prefix(struct reader *r, const struct items *a)
{
    uint32_t n = a->n_prefix, max = a->max, x = expr_empty(r->e);

    /* Items behind the prefix that no schema asks for are left out. */
    if (!a->says_rest && a->min <= n && max > n)
        max = n;
    if (max > n) {
        uint32_t rest = expr_rule(r->e, reader_rule(r, read_schema(r, a->rest)));
        x = expr_repeat(r->e, expr_seq(r->e, comma(r), rest), a->min > n ? a->min - n : 0,
                        max == EXPR_MANY ? max : max - n);
    }
    for (uint32_t i = n; i-- > 0;) {
        if (i >= max)
            continue;
        uint32_t item = read_schema(r, js_at(a->prefix, i));
        x = expr_seq3(r->e, i > 0 ? comma(r) : expr_empty(r->e), item, x);
        if (i >= a->min)
            x = expr_repeat(r->e, x, 0, 1);
    }
    return x;
}

/* Lists with an item of the schema `contains`: rule i, of the lists behind i items, is in rest[1]
 * where such an item came. The last rules repeat themselves where there is no bound. */
static uint32_t read_contains(struct reader *r, const struct items *a, const struct json *contains)
{
    const struct json *both = a->rest ? reader_merge(r, a->rest, contains, "") : contains;
    uint32_t least = a->min > 1 ? a->min : 1, n = a->max == EXPR_MANY ? least : a->max;
    uint32_t rest[2], item, hit;

    if (!both)
        return EXPR_FAILED;
    if (n > CONTAINS_MAX)
        return reader_refuse(r, ERR_TOO_LARGE, "too many items beside:", "contains");
    item = expr_rule(r->e, reader_rule(r, read_schema(r, a->rest)));
    hit = expr_rule(r->e, reader_rule(r, read_schema(r, both)));
    rest[0] = expr_never(r->e);
    rest[1] = expr_empty(r->e);
    if (a->max == EXPR_MANY) {
        uint32_t some = expr_seq(r->e, comma(r), item), loop = expr_new_rule(r->e);
        rest[1] = expr_repeat(r->e, some, 0, EXPR_MANY);
        expr_define(r->e, loop,
                    expr_alt(r->e, expr_seq3(r->e, comma(r), hit, rest[1]),
                             expr_seq(r->e, some, expr_rule(r->e, loop))));
        rest[0] = expr_rule(r->e, loop);
    }
    for (uint32_t i = n; i-- > 0 && !reader_is_stopped(r);) {
        uint32_t gap = i > 0 ? comma(r) : expr_empty(r->e);
        uint32_t no =
            expr_alt(r->e, expr_seq3(r->e, gap, hit, rest[1]), expr_seq3(r->e, gap, item, rest[0]));
        uint32_t yes = expr_seq3(r->e, gap, item, rest[1]);
        rest[0] = expr_rule(r->e, reader_rule(r, no));
        rest[1] = expr_rule(
            r->e, reader_rule(r, i >= a->min ? expr_alt(r->e, expr_empty(r->e), yes) : yes));
    }
    return rest[0];
}

/* Whether a type, or each of a list, has few values. */
static bool has_few(const struct json *type)
{
    bool yes = js_is(type, JS_ARRAY);

    if (js_is(type, JS_STRING))
        return strcmp(js_string(type, NULL), "boolean") == 0 ||
               strcmp(js_string(type, NULL), "null") == 0;
    for (size_t i = 0; yes && i < js_len(type); i++)
        yes = has_few(js_at(type, i));
    return yes;
}

/* [true, false, null] */
static const struct json *few_values(struct reader *r)
{
    struct json *all = js_new_array();
    enum status s = all ? js_push(all, js_new_bool(true)) : ERR_NOMEM;

    if (s == OK)
        s = js_push(all, js_new_bool(false));
    if (s == OK)
        s = js_push(all, js_new_null());
    if (s == OK)
        return reader_keep(r, all);
    js_unref(all);
    return NULL;
}

/* The values of a schema that has few. False: it has more than UNIQUE_MAX, or nobody knows. */
static bool list_values(struct reader *r, const struct json *j,
                        const struct json *values[UNIQUE_MAX], uint32_t *n)
{
    const struct json *list = js_get(j, "enum");

    *n = 0;
    if (!list && has_few(js_get(j, "type")))
        list = few_values(r);
    if (!js_is(list, JS_ARRAY))
        return false;
    for (size_t i = 0; i < js_len(list); i++) {
        const struct json *v = js_at(list, i);
        enum schema_verdict yes = schema_check(&r->doc, j, v, list);
        for (uint32_t k = 0; k < *n && yes == SCHEMA_YES; k++)
            if (schema_equal(values[k], v, &r->doc.n_comparisons_left))
                yes = SCHEMA_NO;
        if (yes == SCHEMA_UNKNOWN || (yes == SCHEMA_YES && *n == UNIQUE_MAX))
            return false;
        if (yes == SCHEMA_YES)
            values[(*n)++] = v;
    }
    return true;
}

/* Lists without a value twice: a rule for each set of values that came. */
static uint32_t read_unique(struct reader *r, const struct items *a)
{
    const struct json *values[UNIQUE_MAX];
    uint32_t n, literals[UNIQUE_MAX], rules[1u << UNIQUE_MAX];

    if (a->n_prefix > 0 || !list_values(r, reader_target(r, a->rest), values, &n))
        return reader_refuse(
            r, ERR_UNSUPPORTED,
            "uniqueItems is supported for items with at most 8 values (enum, boolean) only", "");
    for (uint32_t i = 0; i < n; i++)
        literals[i] = expr_rule(r->e, reader_rule(r, reader_literal(r, values[i])));
    for (uint32_t came = 1u << n; came-- > 0 && !reader_is_stopped(r);) {
        uint32_t count = (uint32_t)__builtin_popcount(came);
        uint32_t x = count >= a->min ? expr_empty(r->e) : expr_never(r->e);
        for (uint32_t i = 0; i < n && count < a->max; i++)
            if (!(came >> i & 1))
                x = expr_alt(r->e, x,
                             expr_seq3(r->e, came ? comma(r) : expr_empty(r->e), literals[i],
                                       expr_rule(r->e, rules[came | 1u << i])));
        rules[came] = reader_rule(r, x);
    }
    return expr_rule(r->e, rules[0]);
}

uint32_t read_array(struct reader *r, const struct json *j)
{
    const struct json *unique = js_get(j, "uniqueItems"), *contains = js_get(j, "contains");
    bool is_unique = js_is(unique, JS_BOOL) && js_bool(unique);
    struct items a;
    uint32_t x;

    if (!read_items(r, j, &a))
        return EXPR_FAILED;
    if (a.min > a.max)
        return expr_never(r->e);
    is_unique = is_unique && a.max > 1;
    if (contains && (js_get(j, "minContains") || js_get(j, "maxContains") || a.prefix || is_unique))
        return reader_refuse(r, ERR_UNSUPPORTED,
                             "contains beside minContains, maxContains, prefixItems or uniqueItems "
                             "is not supported",
                             "");
    if (contains)
        x = read_contains(r, &a, contains);
    else if (is_unique)
        x = read_unique(r, &a);
    else if (a.prefix)
        x = read_prefix(r, &a);
    else if (a.max == 0)
        x = expr_empty(r->e);
    else
        x = reader_list(r, expr_rule(r->e, reader_rule(r, read_schema(r, a.rest))), a.min, a.max);
    return reader_is_stopped(r) ? EXPR_FAILED : reader_bracketed(r, "[", x, "]");
}
