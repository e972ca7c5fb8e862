/* gguf.h - reads a GGUF file (version 3, and 2, which differs in nothing that is read here): keys
 * with values, and tensors; mapped, never copied.
 *
 * The format is that of ggml: "GGUF", version, counts, keys with typed values, tensor infos, and
 * the data of all tensors from a multiple of general.alignment on. A model may be split into files
 * NAME-00001-of-00005.gguf; the first one is opened by name and finds the others beside it.
 *
 * Owns    the mappings, keys, strings and tensor infos until gguf_close().
 * Thread  read-only after open: any thread, except for gguf_file().
 * Errors  ERR_NOT_FOUND no such file; ERR_INVALID a damaged file (words name key or tensor);
 *         ERR_UNSUPPORTED another version, a big-endian file. Every count, length, offset, size,
 *         alignment and overlap is checked before anything is returned.
 * Units   bytes, elements. */
#ifndef TARN_BASE_GGUF_H
#define TARN_BASE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define GGUF_N_DIMS_MAX 4

struct gguf;
struct mapfile;

/* Types of values, with the numbers of the format. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_array {
    enum gguf_type type; /* of the elements; never GGUF_ARRAY */
    uint64_t n;
    const void *data;       /* not aligned; use the functions below */
    const uint32_t *places; /* of strings, for gguf_array_str() */
};

/* The code of a tensor's elements. */
struct gguf_code {
    const char *name; /* as ggml calls it, such as "Q4_K" */
    uint32_t block_elements, block_bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t type; /* the number that ggml gives the code of its elements: 0 F32, 1 F16, ... */
    uint32_t n_dims;
    uint64_t shape[GGUF_N_DIMS_MAX]; /* in the order of the file: the dimension of adjacent elements
                                        first; 1 behind n_dims; none is 0 */
    const struct gguf_code *code;    /* NULL: a type that ggml added later */
    const void *data;
    uint64_t n_bytes; /* exactly what type and shape take; up to the next tensor or the end of the
                         data where the type is unknown */
    uint32_t file;    /* of a split model, from 0 on */
};

/* Open a file and, if it is the first of a split model, the others. */
NODISCARD enum status gguf_open(struct gguf **out, const char *path, struct buf *why);
void gguf_close(struct gguf *g); /* NULL is fine */
/* Whether the path names a regular file that begins with "GGUF". */
bool gguf_is(const char *path);

bool gguf_has(const struct gguf *g, const char *key);
/* Read a value that is a number of any integer type from min to max, a number of any type, a bool,
 * a string (NUL-terminated; len may be NULL; ERR_INVALID: a NUL inside). A key that is absent
 * leaves *out as it is; ERR_INVALID: a value of another type or outside of the limits, named. */
NODISCARD enum status gguf_get_u64(const struct gguf *g, const char *key, uint64_t min,
                                   uint64_t max, uint64_t *out, struct buf *why);
NODISCARD enum status gguf_get_f64(const struct gguf *g, const char *key, double *out,
                                   struct buf *why);
NODISCARD enum status gguf_get_bool(const struct gguf *g, const char *key, bool *out,
                                    struct buf *why);
NODISCARD enum status gguf_get_str(const struct gguf *g, const char *key, const char **out,
                                   size_t *len, struct buf *why);
/* Read an array; an absent key gives n = 0. */
NODISCARD enum status gguf_get_array(const struct gguf *g, const char *key, struct gguf_array *out,
                                     struct buf *why);
/* Element i of an array of strings, in constant time; not NUL-terminated. NULL: not an array of
 * strings. */
const char *gguf_array_str(const struct gguf *g, const struct gguf_array *a, uint64_t i,
                           size_t *len);
/* Element i of an array of numbers, as a double (exact for integers up to 2^53). */
double gguf_array_number(const struct gguf_array *a, uint64_t i);

/* The name and the sizes of a tensor's type; NULL: an unknown type. */
const struct gguf_code *gguf_code(uint32_t type);

/* Tensors are sorted by name. A file with a vocabulary only has none. */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, uint64_t i);
/* NULL: no tensor has that name. */
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);
/* Mapped file i of a split model; NULL behind the last. */
const struct mapfile *gguf_map(const struct gguf *g, uint32_t i);
/* Return the file of a tensor, open until gguf_close(), and the offset of the tensor's first byte.
 * Not for two threads at once. ERR_IO if the file cannot be opened again or is not the file that
 * was mapped. */
NODISCARD enum status gguf_file(struct gguf *g, const struct gguf_tensor *t, int *fd,
                                uint64_t *offset, struct buf *why);

#endif
