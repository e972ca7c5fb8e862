#include "engine/text/jinja/jinja_ops.h"

#include <math.h>
#include <stdio.h>

#include "engine/text/jinja/jinja_lexer.h"
#include "engine/text/jinja/jinja_text.h"

static const char *op_text(int op)
{
    switch (op) {
    case TOK_ADD: return "+";
    case TOK_SUB: return "-";
    case TOK_MUL: return "*";
    case TOK_DIV: return "/";
    case TOK_FLOORDIV: return "//";
    case TOK_MOD: return "%";
    case TOK_POW: return "** or pow()";
    case TOK_LT: return "<";
    case TOK_LE: return "<=";
    case TOK_GT: return ">";
    default: return ">=";
    }
}

static enum status fail_operands(struct jinja_run *r, int op, const struct jinja_value *a,
                                 const struct jinja_value *b)
{
    if (op == TOK_ADD && a->type == JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "can only concatenate str (not \"%s\") to str",
                          jinja_type_name(b));
    return jinja_fail(r, ERR_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                      op_text(op), jinja_type_name(a), jinja_type_name(b));
}

static enum status fail_range(struct jinja_run *r)
{
    return jinja_fail(r, ERR_UNSUPPORTED, "an integer does not fit into 64 bits");
}

/* Numbers --------------------------------------------------------------------------------- */

static enum status int_pow(struct jinja_run *r, int64_t base, int64_t exp, struct jinja_value *out)
{
    int64_t product = 1;

    if (exp < 0) {
        if (base == 0)
            return jinja_fail(r, ERR_INVALID, "0.0 cannot be raised to a negative power");
        *out = jinja_float(pow((double)base, (double)exp));
        return OK;
    }
    if (base == -1 || base == 0 || base == 1) /* only their powers stay in range for every
                                                 exponent */
        exp = exp > 2 ? 2 + (exp & 1) : exp;
    for (int64_t i = 0; i < exp; i++)
        if (__builtin_mul_overflow(product, base, &product))
            return fail_range(r);
    *out = jinja_int(product);
    return OK;
}

static enum status int_divide(struct jinja_run *r, int op, int64_t a, int64_t b,
                              struct jinja_value *out)
{
    if (b == 0)
        return jinja_fail(r, ERR_INVALID, "division by zero");
    if (op == TOK_DIV) {
        *out = jinja_float((double)a / (double)b);
        return OK;
    }
    if (a == INT64_MIN && b == -1)
        return fail_range(r);
    int64_t q = a / b;
    int64_t m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) { /* Python rounds towards minus infinity */
        m += b;
        q--;
    }
    *out = jinja_int(op == TOK_MOD ? m : q);
    return OK;
}

static enum status int_binary(struct jinja_run *r, int op, int64_t a, int64_t b,
                              struct jinja_value *out)
{
    int64_t v = 0;
    bool overflow;

    switch (op) {
    case TOK_ADD: overflow = __builtin_add_overflow(a, b, &v); break;
    case TOK_SUB: overflow = __builtin_sub_overflow(a, b, &v); break;
    case TOK_MUL: overflow = __builtin_mul_overflow(a, b, &v); break;
    case TOK_POW: return int_pow(r, a, b, out);
    default: return int_divide(r, op, a, b, out);
    }
    if (overflow)
        return fail_range(r);
    *out = jinja_int(v);
    return OK;
}

static enum status float_binary(struct jinja_run *r, int op, double a, double b,
                                struct jinja_value *out)
{
    if (b == 0 && (op == TOK_DIV || op == TOK_FLOORDIV || op == TOK_MOD))
        return jinja_fail(r, ERR_INVALID, "float division by zero");
    double m = op == TOK_FLOORDIV || op == TOK_MOD ? fmod(a, b) : 0;
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    switch (op) {
    case TOK_ADD: *out = jinja_float(a + b); break;
    case TOK_SUB: *out = jinja_float(a - b); break;
    case TOK_MUL: *out = jinja_float(a * b); break;
    case TOK_DIV: *out = jinja_float(a / b); break;
    case TOK_MOD: *out = jinja_float(m); break;
    case TOK_POW: *out = jinja_float(pow(a, b)); break;
    default: *out = jinja_float(round((a - m) / b));
    }
    return OK;
}

enum status jinja_negate(struct jinja_run *r, const struct jinja_value *a, struct jinja_value *out)
{
    int64_t i;

    if (a->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, a);
    if (a->type == JINJA_FLOAT) {
        *out = jinja_float(-a->real);
        return OK;
    }
    if (!jinja_as_int(a, &i))
        return jinja_fail(r, ERR_INVALID, "bad operand type for unary -: '%s'", jinja_type_name(a));
    if (i == INT64_MIN)
        return fail_range(r);
    *out = jinja_int(-i);
    return OK;
}

/* Text and lists --------------------------------------------------------------------------- */

static enum status add_text(struct jinja_run *r, const struct jinja_value *a,
                            const struct jinja_value *b, struct jinja_value *out)
{
    struct jinja_str left, right;
    bool markup = a->markup || b->markup;

    /* Markup + "<b>" escapes the plain side, as markupsafe does */
    TRY(jinja_escape_for(r, a, markup, &left));
    TRY(jinja_escape_for(r, b, markup, &right));
    *out = (struct jinja_value){.type = JINJA_STR, .markup = markup};
    return jinja_concat(r, left, right, &out->str);
}

static enum status add_seqs(struct jinja_run *r, const struct jinja_seq *a,
                            const struct jinja_seq *b, struct jinja_value *out)
{
    TRY(jinja_charge(r, (a->n + b->n) / 8));
    TRY(jinja_seq_new(r, a->kind, a->n + b->n, out));
    if (a->n)
        memcpy(out->seq->items, a->items, a->n * sizeof *a->items);
    if (b->n)
        memcpy(out->seq->items + a->n, b->items, b->n * sizeof *b->items);
    return OK;
}

static enum status repeat(struct jinja_run *r, const struct jinja_value *v, int64_t n,
                          struct jinja_value *out)
{
    struct jinja_out text = {0};

    if (n < 0)
        n = 0;
    if (v->type == JINJA_STR) {
        for (int64_t i = 0; i < n && v->str.len; i++) {
            TRY(jinja_charge(r, 1));
            TRY(jinja_put(r, &text, v->str.p, v->str.len));
        }
        *out = jinja_str_like(v, text.p ? text.p : "", text.len);
        return OK;
    }
    if (v->seq->n && (uint64_t)n > JINJA_STEPS_MAX / v->seq->n)
        return jinja_fail(r, ERR_TOO_LARGE, "the repeated list is too long");
    TRY(jinja_charge(r, (uint64_t)n));
    TRY(jinja_seq_new(r, v->seq->kind, v->seq->n ? v->seq->n * (size_t)n : 0, out));
    for (size_t i = 0; i < out->seq->n; i++)
        out->seq->items[i] = v->seq->items[i % v->seq->n];
    return OK;
}

static bool list_or_tuple(const struct jinja_value *v)
{
    return v->type == JINJA_SEQ && v->seq->kind <= JINJA_TUPLE;
}

static bool repeatable(const struct jinja_value *v)
{
    return v->type == JINJA_STR || list_or_tuple(v);
}

enum status jinja_binary(struct jinja_run *r, int op, const struct jinja_value *a,
                         const struct jinja_value *b, struct jinja_value *out)
{
    int64_t ia, ib;
    double fa, fb;

    if (op == TOK_MOD && a->type == JINJA_STR)
        return jinja_percent(r, a, b, out);
    if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, a->type == JINJA_UNDEFINED ? a : b);
    if (jinja_as_int(a, &ia) && jinja_as_int(b, &ib))
        return int_binary(r, op, ia, ib, out);
    if (jinja_as_number(a, &fa) && jinja_as_number(b, &fb))
        return float_binary(r, op, fa, fb, out);
    if (op == TOK_ADD && a->type == JINJA_STR && b->type == JINJA_STR)
        return add_text(r, a, b, out);
    if (op == TOK_ADD && list_or_tuple(a) && list_or_tuple(b) && a->seq->kind == b->seq->kind)
        return add_seqs(r, a->seq, b->seq, out);
    if (op == TOK_MUL && repeatable(a) && jinja_as_int(b, &ib))
        return repeat(r, a, ib, out);
    if (op == TOK_MUL && repeatable(b) && jinja_as_int(a, &ia))
        return repeat(r, b, ia, out);
    return fail_operands(r, op, a, b);
}

/* Relations -------------------------------------------------------------------------------- */

enum status jinja_contains(struct jinja_run *r, const struct jinja_value *needle,
                           const struct jinja_value *hay, bool *out)
{
    const struct jinja_value *found;
    const struct jinja_seq *seq;

    *out = false;
    if (hay->type == JINJA_STR) {
        if (needle->type != JINJA_STR)
            return jinja_fail(r, ERR_INVALID,
                              "'in <string>' requires string as left operand, "
                              "not %s",
                              jinja_type_name(needle));
        TRY(jinja_charge(r, hay->str.len / 64));
        *out = jinja_find(hay->str, needle->str, 0) != SIZE_MAX;
        return OK;
    }
    if (hay->type == JINJA_DICT) {
        TRY(jinja_dict_get(r, hay->dict, needle, &found));
        *out = found != NULL;
        return OK;
    }
    if (hay->type != JINJA_SEQ && hay->type != JINJA_UNDEFINED)
        return jinja_fail(r, ERR_INVALID, "argument of type '%s' is not iterable",
                          jinja_type_name(hay));
    TRY(jinja_iterate(r, hay, &seq));
    for (size_t i = 0; i < seq->n && !*out; i++)
        TRY(jinja_equal(r, &seq->items[i], needle, out));
    return OK;
}

enum status jinja_relate(struct jinja_run *r, int op, const struct jinja_value *a,
                         const struct jinja_value *b, bool *out)
{
    int order = 0;
    bool unordered;

    if (op == TOK_EQ || op == TOK_NE) {
        TRY(jinja_equal(r, a, b, out));
        *out ^= op == TOK_NE;
        return OK;
    }
    if (op == TOK_IN || op == TOK_NOTIN) {
        TRY(jinja_contains(r, a, b, out));
        *out ^= op == TOK_NOTIN;
        return OK;
    }
    TRY(jinja_compare(r, a, b, op_text(op), &order, &unordered));
    *out = !unordered && (op == TOK_LT   ? order < 0
                          : op == TOK_LE ? order <= 0
                          : op == TOK_GT ? order > 0
                                         : order >= 0);
    return OK;
}

/* Attributes ------------------------------------------------------------------------------- */

static void loop_attr(const struct jinja_loop *l, const char *name, struct jinja_value *out)
{
    int64_t i = (int64_t)l->index0;
    int64_t n = (int64_t)l->seq->n;

    if (strcmp(name, "index") == 0)
        *out = jinja_int(i + 1);
    else if (strcmp(name, "index0") == 0)
        *out = jinja_int(i);
    else if (strcmp(name, "first") == 0)
        *out = jinja_bool(i == 0);
    else if (strcmp(name, "last") == 0)
        *out = jinja_bool(i + 1 == n);
    else if (strcmp(name, "length") == 0)
        *out = jinja_int(n);
    else if (strcmp(name, "revindex") == 0)
        *out = jinja_int(n - i);
    else if (strcmp(name, "revindex0") == 0)
        *out = jinja_int(n - i - 1);
    else if (strcmp(name, "depth") == 0)
        *out = jinja_int(l->depth0 + 1);
    else if (strcmp(name, "depth0") == 0)
        *out = jinja_int(l->depth0);
    else if (strcmp(name, "previtem") == 0)
        *out = i > 0 ? l->seq->items[i - 1]
                     : jinja_undefined(JINJA_UNDEF_TEXT, "there is no previous item", NULL);
    else if (strcmp(name, "nextitem") == 0)
        *out = i + 1 < n ? l->seq->items[i + 1]
                         : jinja_undefined(JINJA_UNDEF_TEXT, "there is no next item", NULL);
}

/* The attribute itself, without items; *out stays JINJA_MISSING if there is none. */
static enum status attribute(struct jinja_run *r, const struct jinja_value *obj, const char *name,
                             struct jinja_value *out)
{
    const struct jinja_value *found = NULL;
    struct jinja_method *method;
    bool unsafe = false;

    *out = (struct jinja_value){0};
    if (strncmp(name, "__", 2) == 0) { /* Python's internals are never accessible */
        *out = jinja_undefined(JINJA_UNDEF_UNSAFE, name, jinja_type_name(obj));
        return OK;
    }
    if (obj->type == JINJA_LOOP)
        loop_attr(obj->loop, name, out);
    if (obj->type == JINJA_NAMESPACE)
        TRY(jinja_dict_get_text(r, obj->dict, name, strlen(name), &found));
    if (found)
        *out = *found;
    if (out->type != JINJA_MISSING || !jinja_has_method(obj, name, &unsafe))
        return OK;
    if (unsafe) {
        *out = jinja_undefined(JINJA_UNDEF_UNSAFE, name, jinja_type_name(obj));
        return OK;
    }
    TRY(jinja_alloc(r, sizeof *method, &method));
    *method = (struct jinja_method){*obj, name};
    *out = (struct jinja_value){.type = JINJA_METHOD, .method = method};
    return OK;
}

enum status jinja_getattr(struct jinja_run *r, const struct jinja_value *obj, const char *name,
                          struct jinja_value *out)
{
    const struct jinja_value *found = NULL;

    if (obj->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, obj);
    TRY(attribute(r, obj, name, out));
    if (out->type == JINJA_MISSING && obj->type == JINJA_DICT)
        TRY(jinja_dict_get_text(r, obj->dict, name, strlen(name), &found));
    if (found)
        *out = *found;
    if (out->type == JINJA_MISSING)
        *out = jinja_undefined(JINJA_UNDEF_ATTR, name, jinja_type_name(obj));
    return OK;
}

/* Items ------------------------------------------------------------------------------------ */

/* Python's index, which counts from the end if negative. SIZE_MAX: out of range. */
static size_t resolve_index(int64_t i, size_t n)
{
    if (i < 0)
        i += (int64_t)n;
    return i < 0 || (uint64_t)i >= n ? SIZE_MAX : (size_t)i;
}

static enum status char_at(struct jinja_run *r, const struct jinja_value *s, int64_t i,
                           struct jinja_value *out)
{
    uint32_t cp;

    TRY(jinja_charge(r, s->str.len / 128));
    size_t at = resolve_index(i, jinja_n_chars(s->str));
    if (at == SIZE_MAX)
        return OK;
    at = jinja_char_offset(s->str, at);
    *out = jinja_str_like(s, s->str.p + at, jinja_utf8_next(s->str.p + at, s->str.len - at, &cp));
    return OK;
}

static bool subscriptable(const struct jinja_value *v)
{
    return v->type == JINJA_SEQ && v->seq->kind <= JINJA_RANGE;
}

static bool may_be_key(const struct jinja_value *v)
{
    return v->type != JINJA_DICT && !jinja_is_seq(v, JINJA_LIST);
}

/* The item; *out stays JINJA_MISSING if there is none. */
static enum status item(struct jinja_run *r, const struct jinja_value *obj,
                        const struct jinja_value *key, struct jinja_value *out)
{
    const struct jinja_value *found = NULL;
    int64_t i;

    *out = (struct jinja_value){0};
    if (obj->type == JINJA_DICT && may_be_key(key)) {
        TRY(jinja_dict_get(r, obj->dict, key, &found));
        if (found)
            *out = *found;
    } else if (obj->type == JINJA_STR && jinja_as_int(key, &i)) {
        TRY(char_at(r, obj, i, out));
    } else if (subscriptable(obj) && jinja_as_int(key, &i)) {
        size_t at = resolve_index(i, obj->seq->n);
        if (at != SIZE_MAX)
            *out = obj->seq->items[at];
    }
    return OK;
}

static enum status no_item(struct jinja_run *r, const struct jinja_value *obj,
                           const struct jinja_value *key, struct jinja_value *out)
{
    char number[32] = "of that kind";
    const char *name = NULL;
    int64_t i;

    if (jinja_as_int(key, &i))
        snprintf(number, sizeof number, "%lld", (long long)i);
    TRY(jinja_cdup(r, (struct jinja_str){number, strlen(number)}, &name));
    *out = jinja_undefined(JINJA_UNDEF_ELEMENT, name, jinja_type_name(obj));
    return OK;
}

enum status jinja_getitem(struct jinja_run *r, const struct jinja_value *obj,
                          const struct jinja_value *key, struct jinja_value *out)
{
    const char *name;

    if (obj->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, obj);
    TRY(item(r, obj, key, out));
    if (out->type != JINJA_MISSING)
        return OK;
    if (key->type != JINJA_STR)
        return no_item(r, obj, key, out);
    TRY(jinja_cdup(r, key->str, &name));
    TRY(attribute(r, obj, name, out));
    if (out->type == JINJA_MISSING)
        *out = jinja_undefined(JINJA_UNDEF_ATTR, name, jinja_type_name(obj));
    return OK;
}

static bool all_digits(struct jinja_str s, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] < '0' || s.p[i] > '9' || i > 15)
            return false;
        *out = *out * 10 + (s.p[i] - '0');
    }
    return s.len > 0;
}

enum status jinja_get_path(struct jinja_run *r, const struct jinja_value *obj,
                           const struct jinja_value *path, struct jinja_value *out)
{
    struct jinja_value current = *obj;
    struct jinja_str rest;
    int64_t index;

    if (path->type != JINJA_STR)
        return jinja_getitem(r, obj, path, out);
    rest = path->str;
    for (;;) {
        size_t dot = jinja_find(rest, (struct jinja_str){".", 1}, 0);
        size_t len = dot == SIZE_MAX ? rest.len : dot;
        struct jinja_str part = {rest.p, len};
        struct jinja_value key =
            all_digits(part, &index) ? jinja_int(index) : jinja_str(part.p, part.len);
        TRY(jinja_getitem(r, &current, &key, out));
        if (dot == SIZE_MAX)
            return OK;
        current = *out;
        rest = (struct jinja_str){rest.p + len + 1, rest.len - len - 1};
    }
}

/* Slices ----------------------------------------------------------------------------------- */

struct slice {
    int64_t start, stop, step;
};

static int64_t clamp(int64_t i, int64_t n, bool backwards)
{
    if (i < 0)
        i = i < -n ? -1 : i + n;
    if (i < 0)
        return backwards ? -1 : 0;
    if (i >= n)
        return backwards ? n - 1 : n;
    return i;
}

/* PySlice_AdjustIndices */
static enum status resolve_slice(struct jinja_run *r, const struct jinja_value bounds[3],
                                 size_t length, struct slice *s)
{
    int64_t v[3] = {0, 0, 1};
    int64_t n = (int64_t)length;

    for (int i = 0; i < 3; i++) {
        if (bounds[i].type == JINJA_UNDEFINED)
            return jinja_fail_undefined(r, &bounds[i]);
        if (bounds[i].type != JINJA_NONE && !jinja_as_int(&bounds[i], &v[i]))
            return jinja_fail(r, ERR_INVALID, "slice indices must be integers or None");
    }
    if (v[2] == 0)
        return jinja_fail(r, ERR_INVALID, "slice step cannot be zero");
    s->step = v[2] < -INT32_MAX ? -INT32_MAX : v[2] > INT32_MAX ? INT32_MAX : v[2];
    bool back = s->step < 0;
    s->start = bounds[0].type == JINJA_NONE ? (back ? n - 1 : 0) : clamp(v[0], n, back);
    s->stop = bounds[1].type == JINJA_NONE ? (back ? -1 : n) : clamp(v[1], n, back);
    return OK;
}

static bool inside(const struct slice *s, int64_t i)
{
    return s->step > 0 ? i < s->stop : i > s->stop;
}

static enum status slice_text(struct jinja_run *r, const struct jinja_value *text,
                              const struct jinja_value bounds[3], struct jinja_value *out)
{
    struct slice s;
    struct jinja_out o = {0};
    const struct jinja_seq *chars;

    TRY(jinja_charge(r, text->str.len / 64));
    TRY(resolve_slice(r, bounds, jinja_n_chars(text->str), &s));
    if (s.step == 1) {
        size_t from = jinja_char_offset(text->str, (size_t)s.start);
        size_t to = s.stop > s.start ? jinja_char_offset(text->str, (size_t)s.stop) : from;
        *out = jinja_str_like(text, text->str.p + from, to - from);
        return OK;
    }
    TRY(jinja_iterate(r, text, &chars));
    for (int64_t i = s.start; inside(&s, i); i += s.step)
        TRY(jinja_put(r, &o, chars->items[i].str.p, chars->items[i].str.len));
    *out = jinja_str_like(text, o.p ? o.p : "", o.len);
    return OK;
}

enum status jinja_slice(struct jinja_run *r, const struct jinja_value *obj,
                        const struct jinja_value bounds[3], struct jinja_value *out)
{
    struct slice s;
    struct jinja_list list = {0};

    if (obj->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, obj);
    if (obj->type == JINJA_STR)
        return slice_text(r, obj, bounds, out);
    if (!subscriptable(obj)) /* an error, not Undefined as for [i]: jinja2 leaves slices to
                                Python */
        return jinja_fail(r, ERR_INVALID, "'%s' object is not subscriptable", jinja_type_name(obj));
    TRY(resolve_slice(r, bounds, obj->seq->n, &s));
    TRY(jinja_charge(r, obj->seq->n / 8));
    for (int64_t i = s.start; inside(&s, i); i += s.step)
        TRY(jinja_list_push(r, &list, &obj->seq->items[i]));
    return jinja_list_seq(r, obj->seq->kind == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST, &list, out);
}
