/* catalog_filter.c - conditions on the metadata of documents. */
#include "engine/retrieval/catalog_inner.h"

#define DEPTH_MAX 8
#define N_CONDITIONS_MAX 256
#define N_VALUES_MAX 1024 /* of "in" and "nin" */

enum operator{ EQ, NE, GT, GTE, LT, LTE, IN, NIN, AND, OR, N_OPERATORS };

static const char *const names[N_OPERATORS] = {"eq",  "ne", "gt",  "gte", "lt",
                                               "lte", "in", "nin", "and", "or"};

static bool is_scalar(const struct json *v)
{
    enum js_type t = js_typeof(v);

    return t == JS_STRING || t == JS_INT || t == JS_REAL || t == JS_BOOL;
}

static bool is_number(const struct json *v)
{
    return js_is(v, JS_INT) || js_is(v, JS_REAL);
}

/* An object with "type" and "key" or "filters" is a condition; any other one lists attributes that
 * must be equal. */
static bool is_condition(const struct json *f)
{
    return js_is(js_get(f, "type"), JS_STRING) && (js_get(f, "key") || js_get(f, "filters"));
}

static enum operator find_operator(const struct json *f)
{
    const char *type = js_string(js_get(f, "type"), NULL);
    unsigned i = 0;

    while (i < N_OPERATORS && strcmp(type, names[i]) != 0)
        i++;
    return i;
}

/* --- whether a filter is well formed --- */

static enum status check_values(enum operator op, const struct json *value, struct buf *why)
{
    if (op == IN || op == NIN) {
        if (!js_is(value, JS_ARRAY))
            return buf_why(why, ERR_INVALID, "value: \"%s\" needs an array", names[op]);
        if (js_len(value) > N_VALUES_MAX)
            return buf_why(why, ERR_TOO_LARGE, "value: %zu values, at most %d", js_len(value),
                           N_VALUES_MAX);
        for (size_t i = 0; i < js_len(value); i++)
            if (!is_scalar(js_at(value, i)))
                return buf_why(why, ERR_INVALID,
                               "value[%zu]: expected a string, a number or a boolean", i);
        return OK;
    }
    if (op == EQ || op == NE)
        return is_scalar(value)
                   ? OK
                   : buf_why(why, ERR_INVALID, "value: expected a string, a number or a boolean");
    return is_number(value) || js_is(value, JS_STRING)
               ? OK
               : buf_why(why, ERR_INVALID, "value: \"%s\" needs a number or a string", names[op]);
}

static enum status check_filter(const struct json *f, unsigned depth, unsigned *n_left,
                                struct buf *why);

static enum status check_group(const struct json *f, enum operator op, unsigned depth,
                               unsigned *n_left, struct buf *why)
{
    struct json *filters = js_get(f, "filters");

    if (!js_is(filters, JS_ARRAY) || js_len(filters) == 0)
        return buf_why(why, ERR_INVALID, "filters: \"%s\" needs an array of filters", names[op]);
    for (size_t i = 0; i < js_len(filters); i++) {
        enum status s = check_filter(js_at(filters, i), depth + 1, n_left, why);
        if (s != OK)
            return s;
    }
    return OK;
}

static enum status check_equals(const struct json *f, unsigned *n_left, struct buf *why)
{
    for (void *it = js_first(f); it; it = js_next(f, it)) {
        if ((*n_left)-- == 0)
            return buf_why(why, ERR_TOO_LARGE, "more than %d conditions", N_CONDITIONS_MAX);
        if (!is_scalar(js_it_value(it)))
            return buf_why(why, ERR_INVALID, "%s: expected a string, a number or a boolean",
                           js_it_key(it));
    }
    return OK;
}

static enum status check_filter(const struct json *f, unsigned depth, unsigned *n_left,
                                struct buf *why)
{
    const char *text;
    enum status s;

    if (!js_is(f, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "expected an object");
    if (depth > DEPTH_MAX)
        return buf_why(why, ERR_TOO_LARGE, "nested more than %d deep", DEPTH_MAX);
    if (!is_condition(f))
        return check_equals(f, n_left, why);
    if (*n_left == 0)
        return buf_why(why, ERR_TOO_LARGE, "more than %d conditions", N_CONDITIONS_MAX);
    --*n_left;
    if ((s = js_read_cstr(js_get(f, "type"), "type", &text, why)) != OK)
        return s;
    enum operator op = find_operator(f);
    if (op == N_OPERATORS)
        return buf_why(why, ERR_INVALID,
                       "type: \"%s\" is none of eq, ne, gt, gte, lt, lte, in, nin, and, or", text);
    if (op == AND || op == OR)
        return check_group(f, op, depth, n_left, why);
    if ((s = js_read_cstr(js_get(f, "key"), "key", &text, why)) != OK)
        return s;
    return check_values(op, js_get(f, "value"), why);
}

enum status catalog_check_filter(const struct json *filter, struct buf *why)
{
    unsigned n_left = N_CONDITIONS_MAX;

    return check_filter(filter, 1, &n_left, why);
}

/* --- whether a document fits --- */

/* -1, 0, 1; or 2: they cannot be compared. */
static int compare(const struct json *a, const struct json *b)
{
    if (js_is(a, JS_INT) && js_is(b, JS_INT))
        return (js_int(a) > js_int(b)) - (js_int(a) < js_int(b));
    if (is_number(a) && is_number(b))
        return (js_number(a) > js_number(b)) - (js_number(a) < js_number(b));
    if (js_is(a, JS_STRING) && js_is(b, JS_STRING)) {
        size_t n, m;
        const char *x = js_string(a, &n), *y = js_string(b, &m);
        int order = memcmp(x, y, n < m ? n : m);

        return order != 0 ? (order > 0) - (order < 0) : (n > m) - (n < m);
    }
    if (js_is(a, JS_BOOL) && js_is(b, JS_BOOL))
        return js_bool(a) == js_bool(b) ? 0 : 2;
    return 2;
}

static bool is_in(const struct json *v, const struct json *values)
{
    for (size_t i = 0; i < js_len(values); i++)
        if (compare(v, js_at(values, i)) == 0)
            return true;
    return false;
}

static bool fits_condition(const struct json *f, enum operator op, const struct json *metadata)
{
    struct json *v = js_get(metadata, js_string(js_get(f, "key"), NULL));
    struct json *wanted = js_get(f, "value");
    int order = op == IN || op == NIN ? 2 : compare(v, wanted);

    switch (op) {
    case EQ: return order == 0;
    case NE: return order != 0;
    case GT: return order == 1;
    case GTE: return order == 0 || order == 1;
    case LT: return order == -1;
    case LTE: return order == 0 || order == -1;
    case IN: return is_in(v, wanted);
    case NIN: return !is_in(v, wanted);
    default: return false;
    }
}

static bool fits(const struct json *f, const struct json *metadata)
{
    if (!is_condition(f)) {
        for (void *it = js_first(f); it; it = js_next(f, it))
            if (compare(js_get(metadata, js_it_key(it)), js_it_value(it)) != 0)
                return false;
        return true;
    }
    enum operator op = find_operator(f);
    if (op != AND && op != OR)
        return fits_condition(f, op, metadata);
    for (size_t i = 0; i < js_len(js_get(f, "filters")); i++)
        if (fits(js_at(js_get(f, "filters"), i), metadata) == (op == OR))
            return op == OR;
    return op == AND;
}

bool catalog_filter_fits(void *filter, const char *metadata, size_t len)
{
    struct json *j = NULL;
    bool yes;

    /* Metadata were checked when they were put: what does not parse is damaged and fits nothing. */
    if (len > 0 && js_parse(&j, metadata, len, NULL) != OK)
        return false;
    yes = fits(filter, j);
    js_unref(j);
    return yes;
}
