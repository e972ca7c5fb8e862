/* gguf_values.c - values of keys, as numbers, strings and arrays. */
#include <stdlib.h>
#include <string.h>

#include "base/gguf_inner.h"
#include "base/little_endian.h"

/* Bytes of a number or bool; 0: a string or an array. */
const uint32_t gguf_number_bytes[GGUF_N_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static const char *const type_names[GGUF_N_TYPES] = {
    [GGUF_U8] = "u8",   [GGUF_I8] = "i8",         [GGUF_U16] = "u16",     [GGUF_I16] = "i16",
    [GGUF_U32] = "u32", [GGUF_I32] = "i32",       [GGUF_F32] = "f32",     [GGUF_BOOL] = "bool",
    [GGUF_U64] = "u64", [GGUF_STRING] = "string", [GGUF_ARRAY] = "array", [GGUF_I64] = "i64",
    [GGUF_F64] = "f64",
};

int gguf_compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

const struct gguf_value *gguf_find_value(const struct gguf_part *p, const char *key)
{
    struct gguf_value want = {.key = key};

    return p->n_values ? bsearch(&want, p->values, p->n_values, sizeof want, gguf_compare_keys)
                       : NULL;
}

static const struct gguf_value *find_key(const struct gguf *g, const char *key)
{
    return gguf_find_value(&g->parts[0], key);
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_key(g, key) != NULL;
}

static enum status wrong_type(const struct gguf_value *v, const char *expected, struct buf *why)
{
    return buf_why(why, ERR_INVALID, "key %s: expected %s, found %s", v->key, expected,
                   type_names[v->type]);
}

/* Read a whole number of any type. Returns false for other types. */
static bool load_integer(enum gguf_type type, const unsigned char *p, int64_t *out, bool *is_huge)
{
    *is_huge = false;
    switch (type) {
    case GGUF_U8: *out = *p; return true;
    case GGUF_I8: *out = (int8_t)*p; return true;
    case GGUF_U16: *out = get_u16(p); return true;
    case GGUF_I16: *out = (int16_t)get_u16(p); return true;
    case GGUF_U32: *out = get_u32(p); return true;
    case GGUF_I32: *out = (int32_t)get_u32(p); return true;
    case GGUF_U64:
        *is_huge = get_u64(p) > INT64_MAX;
        *out = (int64_t)get_u64(p);
        return true;
    case GGUF_I64: *out = (int64_t)get_u64(p); return true;
    default: return false;
    }
}

static bool load_number(enum gguf_type type, const unsigned char *p, double *out)
{
    union {
        uint32_t bits;
        float value;
    } f32;
    union {
        uint64_t bits;
        double value;
    } f64;
    int64_t i;
    bool is_huge;

    if (type == GGUF_F32) {
        f32.bits = get_u32(p);
        *out = f32.value;
    } else if (type == GGUF_F64) {
        f64.bits = get_u64(p);
        *out = f64.value;
    } else if (load_integer(type, p, &i, &is_huge)) {
        *out = is_huge ? (double)(uint64_t)i : (double)i;
    } else {
        return false;
    }
    return true;
}

enum status gguf_value_u64(const struct gguf_value *v, uint64_t min, uint64_t max, uint64_t *out,
                           struct buf *why)
{
    bool is_huge;
    int64_t i;

    if (!v->data || !load_integer(v->type, v->data, &i, &is_huge))
        return wrong_type(v, "a whole number", why);
    if ((i < 0 && !is_huge) || (uint64_t)i < min || (uint64_t)i > max)
        return buf_why(why, ERR_INVALID, "key %s: expected a number from %llu to %llu", v->key,
                       (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)i;
    return OK;
}

enum status gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max,
                         uint64_t *out, struct buf *why)
{
    const struct gguf_value *v = find_key(g, key);

    return v ? gguf_value_u64(v, min, max, out, why) : OK;
}

enum status gguf_get_f64(const struct gguf *g, const char *key, double *out, struct buf *why)
{
    const struct gguf_value *v = find_key(g, key);

    if (v && (!v->data || !load_number(v->type, v->data, out)))
        return wrong_type(v, "a number", why);
    return OK;
}

enum status gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct buf *why)
{
    const struct gguf_value *v = find_key(g, key);

    if (v && v->type != GGUF_BOOL)
        return wrong_type(v, "a bool", why);
    if (v)
        *out = *v->data != 0;
    return OK;
}

enum status gguf_get_str(const struct gguf *g, const char *key, const char **out, size_t *len,
                         struct buf *why)
{
    const struct gguf_value *v = find_key(g, key);

    if (!v)
        return OK;
    if (v->type != GGUF_STRING)
        return wrong_type(v, "a string", why);
    if (memchr(v->text, '\0', v->len))
        return buf_why(why, ERR_INVALID, "key %s: the string has a NUL inside", key);
    *out = v->text;
    if (len)
        *len = v->len;
    return OK;
}

enum status gguf_get_array(const struct gguf *g, const char *key, struct gguf_array *out,
                           struct buf *why)
{
    const struct gguf_value *v = find_key(g, key);

    *out = (struct gguf_array){0};
    if (v && v->type != GGUF_ARRAY)
        return wrong_type(v, "an array", why);
    if (v)
        *out = v->array;
    return OK;
}

const char *gguf_array_str(const struct gguf *g, const struct gguf_array *a, uint64_t i,
                           size_t *len)
{
    (void)g;
    if (a->type != GGUF_STRING || !a->places || i >= a->n)
        return NULL;
    const unsigned char *p = (const unsigned char *)a->data + a->places[i];
    *len = get_u64(p);
    return (const char *)p + 8;
}

double gguf_array_number(const struct gguf_array *a, uint64_t i)
{
    double v = 0;

    if (i >= a->n || !a->data || a->type == GGUF_STRING)
        return 0;
    const unsigned char *p = (const unsigned char *)a->data + i * gguf_number_bytes[a->type];
    if (a->type == GGUF_BOOL)
        return *p != 0;
    (void)load_number(a->type, p, &v);
    return v;
}
