/* gguf_inner.h - what gguf.c and gguf_values.c share.
 *
 * Owns    struct gguf owns its parts, keys and tensors: gguf_close().
 * Thread  as gguf.h.
 * Errors  as gguf.h.
 * Units   bytes. */
#ifndef TARN_BASE_GGUF_INNER_H
#define TARN_BASE_GGUF_INNER_H

#include "base/arena.h"
#include "base/gguf.h"
#include "base/mapfile.h"

#define GGUF_N_TYPES (GGUF_F64 + 1)

struct gguf_value {
    const char *key;
    enum gguf_type type;
    const unsigned char *data; /* of a number */
    const char *text;          /* of a string: a copy with a NUL behind */
    size_t len;
    struct gguf_array array;
};

struct gguf_part {
    struct mapfile map;
    char *path;
    int fd; /* -1: not opened for reads yet */
    struct arena arena;
    struct gguf_value *values; /* sorted by key */
    uint32_t n_values;
};

struct gguf {
    struct gguf_part *parts;
    uint32_t n_parts;
    struct gguf_tensor *tensors; /* sorted by name, once all parts are read */
    uint64_t n_tensors;
};

/* Bytes of a number or bool; 0: a string or an array. */
extern const uint32_t gguf_number_bytes[GGUF_N_TYPES];

/* Order of keys, for qsort(). */
int gguf_compare_keys(const void *a, const void *b);
/* NULL: the file has no such key. */
const struct gguf_value *gguf_find_value(const struct gguf_part *p, const char *key);
NODISCARD enum status gguf_value_u64(const struct gguf_value *v, uint64_t min, uint64_t max,
                                     uint64_t *out, struct buf *why);

#endif
