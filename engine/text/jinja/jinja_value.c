#include "engine/text/jinja/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"
#include "engine/text/jinja/jinja_text.h"

enum status jinja_fail(struct jinja_run *r, enum status s, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return buf_why(r->why, s, "chat template line %d: %s", r->line, text);
}

enum status jinja_charge(struct jinja_run *r, uint64_t n)
{
    uint64_t max = r->steps_max ? r->steps_max : JINJA_STEPS_MAX;

    r->steps += n;
    if (r->steps > max)
        return jinja_fail(r, ERR_TOO_LARGE, "more than %llu steps", (unsigned long long)max);
    return OK;
}

enum status jinja_alloc(struct jinja_run *r, size_t n, void *ptr_out)
{
    void *p = arena_alloc(r->arena, n);

    memcpy(ptr_out, &p, sizeof p); /* for any kind of pointer; a cast would break aliasing rules */
    if (!p) {
        if (n > r->arena->max_bytes || r->arena->used_bytes > r->arena->max_bytes - n)
            return jinja_fail(r, ERR_TOO_LARGE, "needs more than %zu bytes of memory",
                              r->arena->max_bytes);
        return jinja_fail(r, ERR_NOMEM, "out of memory");
    }
    return OK;
}

enum status jinja_alloc_array(struct jinja_run *r, size_t n, size_t each, void *ptr_out)
{
    if (each && n > SIZE_MAX / 4 / each)
        return jinja_fail(r, ERR_TOO_LARGE, "a list of %zu items is too long", n);
    return jinja_alloc(r, n * each, ptr_out);
}

/* Sequences ------------------------------------------------------------------------------- */

enum status jinja_seq_new(struct jinja_run *r, enum jinja_seq_kind kind, size_t n,
                          struct jinja_value *out)
{
    struct jinja_seq *seq;

    TRY(jinja_charge(r, n / 8));
    TRY(jinja_alloc(r, sizeof *seq, &seq));
    TRY(jinja_alloc_array(r, n, sizeof *seq->items, &seq->items));
    seq->kind = kind;
    seq->n = n;
    *out = (struct jinja_value){.type = JINJA_SEQ, .seq = seq};
    return OK;
}

enum status jinja_pair_tuple(struct jinja_run *r, const struct jinja_value *a,
                             const struct jinja_value *b, struct jinja_value *out)
{
    struct jinja_value tuple;

    TRY(jinja_seq_new(r, JINJA_TUPLE, 2, &tuple));
    tuple.seq->items[0] = *a;
    tuple.seq->items[1] = *b;
    *out = tuple;
    return OK;
}

enum status jinja_list_push(struct jinja_run *r, struct jinja_list *l, const struct jinja_value *v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jinja_value *items;
        TRY(jinja_alloc_array(r, cap, sizeof *items, &items));
        if (l->n)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = *v;
    return OK;
}

enum status jinja_list_seq(struct jinja_run *r, enum jinja_seq_kind kind,
                           const struct jinja_list *l, struct jinja_value *out)
{
    struct jinja_seq *seq;

    TRY(jinja_alloc(r, sizeof *seq, &seq));
    *seq = (struct jinja_seq){.kind = kind, .n = l->n, .items = l->items};
    *out = (struct jinja_value){.type = JINJA_SEQ, .seq = seq};
    return OK;
}

/* Dicts ----------------------------------------------------------------------------------- */

enum status jinja_dict_new(struct jinja_run *r, size_t cap, struct jinja_value *out)
{
    struct jinja_dict *d;

    TRY(jinja_alloc(r, sizeof *d, &d));
    if (cap)
        TRY(jinja_alloc_array(r, cap, sizeof *d->pairs, &d->pairs));
    d->cap = cap;
    *out = (struct jinja_value){.type = JINJA_DICT, .dict = d};
    return OK;
}

static bool hashable(const struct jinja_value *key)
{
    if (key->type == JINJA_DICT)
        return false;
    if (key->type != JINJA_SEQ)
        return true;
    if (key->seq->kind != JINJA_TUPLE)
        return key->seq->kind != JINJA_LIST;
    for (size_t i = 0; i < key->seq->n; i++)
        if (!hashable(&key->seq->items[i]))
            return false;
    return true;
}

enum status jinja_dict_get_text(struct jinja_run *r, const struct jinja_dict *d, const char *key,
                                size_t len, const struct jinja_value **found)
{
    *found = NULL;
    TRY(jinja_charge(r, d->n / 8));
    for (size_t i = 0; i < d->n; i++) {
        const struct jinja_value *k = &d->pairs[i].key;
        if (k->type == JINJA_STR && k->str.len == len && memcmp(k->str.p, key, len) == 0) {
            *found = &d->pairs[i].value;
            break;
        }
    }
    return OK;
}

enum status jinja_dict_get(struct jinja_run *r, const struct jinja_dict *d,
                           const struct jinja_value *key, const struct jinja_value **found)
{
    if (key->type == JINJA_STR)
        return jinja_dict_get_text(r, d, key->str.p, key->str.len, found);
    *found = NULL;
    if (!hashable(key))
        return jinja_fail(r, ERR_INVALID, "unhashable type: '%s'", jinja_type_name(key));
    TRY(jinja_charge(r, d->n / 8));
    for (size_t i = 0; i < d->n; i++) {
        bool same;
        TRY(jinja_equal(r, &d->pairs[i].key, key, &same));
        if (same) {
            *found = &d->pairs[i].value;
            break;
        }
    }
    return OK;
}

static enum status dict_grow(struct jinja_run *r, struct jinja_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct jinja_pair *pairs;

    TRY(jinja_alloc_array(r, cap, sizeof *pairs, &pairs));
    if (d->n)
        memcpy(pairs, d->pairs, d->n * sizeof *pairs);
    d->pairs = pairs;
    d->cap = cap;
    return OK;
}

enum status jinja_dict_set(struct jinja_run *r, struct jinja_dict *d, const struct jinja_value *key,
                           const struct jinja_value *value)
{
    const struct jinja_value *found;

    TRY(jinja_dict_get(r, d, key, &found));
    if (found) {
        d->pairs[(const struct jinja_pair *)((const char *)found -
                                             offsetof(struct jinja_pair, value)) -
                 d->pairs]
            .value = *value;
        return OK;
    }
    if (d->n == d->cap)
        TRY(dict_grow(r, d));
    d->pairs[d->n++] = (struct jinja_pair){*key, *value};
    return OK;
}

enum status jinja_dict_view(struct jinja_run *r, const struct jinja_dict *d,
                            enum jinja_seq_kind kind, struct jinja_value *out)
{
    TRY(jinja_seq_new(r, kind, d->n, out));
    for (size_t i = 0; i < d->n; i++) {
        struct jinja_value *item = &out->seq->items[i];
        if (kind == JINJA_KEYS)
            *item = d->pairs[i].key;
        else if (kind == JINJA_VALUES)
            *item = d->pairs[i].value;
        else
            TRY(jinja_pair_tuple(r, &d->pairs[i].key, &d->pairs[i].value, item));
    }
    return OK;
}

/* JSON ------------------------------------------------------------------------------------ */

static enum status from_object(struct jinja_run *r, const struct json *j, struct jinja_value *out)
{
    TRY(jinja_dict_new(r, js_len(j), out));
    struct jinja_dict *d = out->dict;
    for (void *it = js_first(j); it && d->n < d->cap; it = js_next(j, it)) {
        struct jinja_pair *pair = &d->pairs[d->n];
        pair->key = jinja_cstr(js_it_key(it));
        TRY(jinja_from_json(r, js_it_value(it), &pair->value));
        d->n++;
    }
    return OK;
}

enum status jinja_from_json(struct jinja_run *r, const struct json *j, struct jinja_value *out)
{
    size_t len;
    const char *text;

    switch (js_typeof(j)) {
    case JS_NULL: *out = jinja_none(); return OK;
    case JS_BOOL: *out = jinja_bool(js_bool(j)); return OK;
    case JS_INT: *out = jinja_int(js_int(j)); return OK;
    case JS_REAL: *out = jinja_float(js_number(j)); return OK;
    case JS_STRING:
        text = js_string(j, &len);
        *out = jinja_str(text, len);
        return OK;
    case JS_ARRAY:
        TRY(jinja_seq_new(r, JINJA_LIST, js_len(j), out));
        for (size_t i = 0; i < out->seq->n; i++)
            TRY(jinja_from_json(r, js_at(j, i), &out->seq->items[i]));
        return OK;
    case JS_OBJECT: return from_object(r, j, out);
    }
    *out = jinja_none();
    return OK;
}

/* Types, truth, numbers ------------------------------------------------------------------- */

bool jinja_truth(const struct jinja_value *v)
{
    switch (v->type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return v->boolean;
    case JINJA_INT: return v->integer != 0;
    case JINJA_FLOAT: return v->real != 0;
    case JINJA_STR: return v->str.len > 0;
    case JINJA_SEQ: return v->seq->kind == JINJA_GENERATOR || v->seq->n > 0;
    case JINJA_DICT: return v->dict->n > 0;
    default: return true;
    }
}

static const char *seq_type_name(enum jinja_seq_kind kind)
{
    static const char *const names[] = {
        [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",
        [JINJA_RANGE] = "range",         [JINJA_KEYS] = "dict_keys",
        [JINJA_VALUES] = "dict_values",  [JINJA_ITEMS] = "dict_items",
        [JINJA_GENERATOR] = "generator",
    };
    return names[kind];
}

const char *jinja_type_name(const struct jinja_value *v)
{
    switch (v->type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED: return "Undefined";
    case JINJA_NONE: return "NoneType";
    case JINJA_BOOL: return "bool";
    case JINJA_INT: return "int";
    case JINJA_FLOAT: return "float";
    case JINJA_STR: return v->markup ? "Markup" : "str";
    case JINJA_SEQ: return seq_type_name(v->seq->kind);
    case JINJA_DICT: return "dict";
    case JINJA_NAMESPACE: return "Namespace";
    case JINJA_MACRO: return "Macro";
    case JINJA_FUNCTION: return "function";
    case JINJA_METHOD: return "builtin_function_or_method";
    case JINJA_LOOP: return "LoopContext";
    }
    return "?";
}

bool jinja_as_int(const struct jinja_value *v, int64_t *out)
{
    if (v->type == JINJA_INT)
        *out = v->integer;
    else if (v->type == JINJA_BOOL)
        *out = v->boolean;
    else
        return false;
    return true;
}

bool jinja_as_number(const struct jinja_value *v, double *out)
{
    int64_t i;

    if (v->type == JINJA_FLOAT)
        *out = v->real;
    else if (jinja_as_int(v, &i))
        *out = (double)i;
    else
        return false;
    return true;
}

/* jinja2's messages say "dict object" for a dict. */
static const char *owner_object(const char *owner, char text[64])
{
    snprintf(text, 64, "%s object", owner);
    return text;
}

enum status jinja_fail_undefined(struct jinja_run *r, const struct jinja_value *v)
{
    char object[64];
    const char *name = v->undef.name ? v->undef.name : "";
    const char *owner = v->undef.owner ? v->undef.owner : "";
    bool none = strcmp(owner, "NoneType") == 0;

    switch (v->undef_kind) {
    case JINJA_UNDEF_ATTR:
        return jinja_fail(r, ERR_INVALID, "'%s' has no attribute '%s'",
                          none ? "None" : owner_object(owner, object), name);
    case JINJA_UNDEF_ELEMENT:
        return jinja_fail(r, ERR_INVALID, "%s has no element %s",
                          none ? "None" : owner_object(owner, object), name);
    case JINJA_UNDEF_UNSAFE:
        return jinja_fail(r, ERR_INVALID, "access to attribute '%s' of '%s' object is unsafe", name,
                          owner);
    case JINJA_UNDEF_TEXT: return jinja_fail(r, ERR_INVALID, "%s", name);
    default: return jinja_fail(r, ERR_INVALID, "'%s' is undefined", name);
    }
}

/* Equality and order ---------------------------------------------------------------------- */

static enum status enter(struct jinja_run *r)
{
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    return jinja_charge(r, 1);
}

static enum status seq_equal(struct jinja_run *r, const struct jinja_seq *a,
                             const struct jinja_seq *b, bool *out)
{
    *out = a == b;
    if (a == b || a->kind != b->kind || a->kind > JINJA_RANGE || a->n != b->n)
        return OK;
    for (size_t i = 0; i < a->n; i++) {
        TRY(jinja_equal(r, &a->items[i], &b->items[i], out));
        if (!*out)
            return OK;
    }
    *out = true;
    return OK;
}

static enum status dict_equal(struct jinja_run *r, const struct jinja_dict *a,
                              const struct jinja_dict *b, bool *out)
{
    *out = a == b;
    if (a == b || a->n != b->n)
        return OK;
    for (size_t i = 0; i < a->n; i++) {
        const struct jinja_value *other;
        TRY(jinja_dict_get(r, b, &a->pairs[i].key, &other));
        if (!other)
            return OK;
        TRY(jinja_equal(r, &a->pairs[i].value, other, out));
        if (!*out)
            return OK;
    }
    *out = true;
    return OK;
}

static enum status str_equal(struct jinja_run *r, struct jinja_str a, struct jinja_str b, bool *out)
{
    *out = a.len == b.len && memcmp(a.p, b.p, a.len) == 0;
    return a.len == b.len ? jinja_charge(r, a.len / 256) : OK;
}

enum status jinja_equal(struct jinja_run *r, const struct jinja_value *a,
                        const struct jinja_value *b, bool *out)
{
    int64_t ia, ib;
    double fa, fb;
    enum status s = OK;

    TRY(enter(r));
    *out = false;
    if (jinja_as_int(a, &ia) && jinja_as_int(b, &ib))
        *out = ia == ib;
    else if (jinja_as_number(a, &fa) && jinja_as_number(b, &fb))
        *out = fa == fb;
    else if (a->type != b->type)
        *out = false;
    else if (a->type == JINJA_STR)
        s = str_equal(r, a->str, b->str, out);
    else if (a->type == JINJA_SEQ)
        s = seq_equal(r, a->seq, b->seq, out);
    else if (a->type == JINJA_DICT)
        s = dict_equal(r, a->dict, b->dict, out);
    else if (a->type == JINJA_METHOD)
        *out = a->method == b->method;
    else if (a->type >= JINJA_NAMESPACE)
        *out = a->dict == b->dict; /* all are pointers: compare identity */
    else
        *out = true; /* None, Undefined */
    r->depth--;
    return s;
}

static int str_compare(struct jinja_str a, struct jinja_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.p, b.p, n) : 0; /* UTF-8 sorts in the order of code points */

    if (c != 0)
        return c;
    return (a.len > b.len) - (a.len < b.len);
}

static enum status seq_compare(struct jinja_run *r, const struct jinja_seq *a,
                               const struct jinja_seq *b, const char *op, int *out, bool *unordered)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        TRY(jinja_equal(r, &a->items[i], &b->items[i], &same));
        if (!same)
            return jinja_compare(r, &a->items[i], &b->items[i], op, out, unordered);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return OK;
}

enum status jinja_compare(struct jinja_run *r, const struct jinja_value *a,
                          const struct jinja_value *b, const char *op, int *out, bool *unordered)
{
    int64_t ia, ib;
    double fa, fb;
    enum status s = OK;

    TRY(enter(r));
    *unordered = false;
    if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, a->type == JINJA_UNDEFINED ? a : b);
    if (jinja_as_int(a, &ia) && jinja_as_int(b, &ib)) {
        *out = (ia > ib) - (ia < ib);
    } else if (jinja_as_number(a, &fa) && jinja_as_number(b, &fb)) {
        *out = (fa > fb) - (fa < fb);
        *unordered = isnan(fa) || isnan(fb);
    } else if (a->type == JINJA_STR && b->type == JINJA_STR) {
        *out = str_compare(a->str, b->str);
        s = jinja_charge(r, (a->str.len < b->str.len ? a->str.len : b->str.len) / 256);
    } else if (a->type == JINJA_SEQ && b->type == JINJA_SEQ && a->seq->kind == b->seq->kind &&
               a->seq->kind <= JINJA_TUPLE) {
        s = seq_compare(r, a->seq, b->seq, op, out, unordered);
    } else {
        return jinja_fail(r, ERR_INVALID, "'%s' not supported between instances of '%s' and '%s'",
                          op, jinja_type_name(a), jinja_type_name(b));
    }
    r->depth--;
    return s;
}

/* Walking --------------------------------------------------------------------------------- */

static enum status chars_of(struct jinja_run *r, const struct jinja_value *v,
                            struct jinja_value *out)
{
    size_t at = 0;
    uint32_t cp;

    TRY(jinja_seq_new(r, JINJA_LIST, jinja_n_chars(v->str), out));
    for (size_t i = 0; i < out->seq->n; i++) {
        size_t n = jinja_utf8_next(v->str.p + at, v->str.len - at, &cp);
        out->seq->items[i] = jinja_str_like(v, v->str.p + at, n);
        at += n;
    }
    return OK;
}

enum status jinja_iterate(struct jinja_run *r, const struct jinja_value *v,
                          const struct jinja_seq **out)
{
    static const struct jinja_seq empty = {.kind = JINJA_LIST};
    struct jinja_value list;

    switch (v->type) {
    case JINJA_UNDEFINED: *out = &empty; return OK;
    case JINJA_SEQ:
        *out = v->seq->spent ? &empty : v->seq;
        if (v->seq->kind == JINJA_GENERATOR)
            v->seq->spent = true;
        return OK;
    case JINJA_STR:
        TRY(chars_of(r, v, &list));
        *out = list.seq;
        return OK;
    case JINJA_DICT:
        TRY(jinja_dict_view(r, v->dict, JINJA_KEYS, &list));
        *out = list.seq;
        return OK;
    default: return jinja_fail(r, ERR_INVALID, "'%s' object is not iterable", jinja_type_name(v));
    }
}

enum status jinja_length(struct jinja_run *r, const struct jinja_value *v, size_t *out)
{
    switch (v->type) {
    case JINJA_UNDEFINED: *out = 0; return OK;
    case JINJA_STR: *out = jinja_n_chars(v->str); return jinja_charge(r, v->str.len / 256);
    case JINJA_DICT: *out = v->dict->n; return OK;
    case JINJA_LOOP: *out = v->loop->seq->n; return OK;
    case JINJA_SEQ:
        if (v->seq->kind != JINJA_GENERATOR) {
            *out = v->seq->n;
            return OK;
        }
        break;
    default: break;
    }
    return jinja_fail(r, ERR_INVALID, "object of type '%s' has no len()", jinja_type_name(v));
}

/* Arguments ------------------------------------------------------------------------------- */

/* The index of `name` in `names`, which are separated by spaces; SIZE_MAX: absent. *n_names: their
 * number. */
static size_t name_index(const char *names, struct jinja_str name, size_t *n_names)
{
    size_t i = 0;
    size_t found = SIZE_MAX;

    for (const char *p = names; *p; i++) {
        size_t len = strcspn(p, " ");
        if (len == name.len && memcmp(p, name.p, len) == 0)
            found = i;
        p += len;
        p += *p == ' ';
    }
    *n_names = i;
    return found;
}

enum status jinja_bind(struct jinja_run *r, const struct jinja_args *args, const char *what,
                       const char *names, size_t n_required, struct jinja_value *slots)
{
    size_t n_names;

    name_index(names, (struct jinja_str){"", 0}, &n_names);
    if (args->n_pos > n_names)
        return jinja_fail(r, ERR_INVALID, "%s() takes at most %zu arguments, %zu given", what,
                          n_names, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++)
        slots[i] = args->pos[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        size_t at = name_index(names, args->kw[i].name, &n_names);
        if (at == SIZE_MAX || slots[at].type != JINJA_MISSING)
            return jinja_fail(r, ERR_INVALID, "%s() got %s argument '%.*s'", what,
                              at == SIZE_MAX ? "an unexpected" : "two values for",
                              (int)args->kw[i].name.len, args->kw[i].name.p);
        slots[at] = args->kw[i].value;
    }
    for (size_t i = 0; i < n_required; i++)
        if (slots[i].type == JINJA_MISSING)
            return jinja_fail(r, ERR_INVALID, "%s() needs %zu argument%s", what, n_required,
                              n_required == 1 ? "" : "s");
    return OK;
}
