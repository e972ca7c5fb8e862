/* tensor.h - a named tensor of a checkpoint, in whatever file and code it is stored.
 *
 * Most tensors are rows of floats, one behind the other. A quantized tensor has a codec, which
 * decodes rows, and, where its code is one of whole numbers with a scale and an offset per group of
 * a row, gives these as they are.
 *
 * Owns    nothing: the reader of the file owns tensors, names and bytes.
 * Thread  any: tensors are constant.
 * Errors  none: the reader checks sizes and shapes before it returns a tensor.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_MODEL_TENSOR_H
#define TARN_ENGINE_MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/params.h"

#define TENSOR_N_DIMS_MAX 4
#define TENSOR_N_PARTS_MAX 4

struct tensor_codec;

struct tensor {
    const char *name; /* as the families call it */
    enum dtype dtype; /* without a codec */
    int dtype_known;  /* 0: a type that is not supported; its name is in dtype_name */
    char dtype_name[16];
    uint32_t n_dims;
    uint64_t shape[TENSOR_N_DIMS_MAX]; /* of the decoded tensor: rows first */
    const void *data;                  /* may have any alignment */
    uint64_t n_bytes;
    uint32_t file; /* index of the checkpoint's file, for safetensors_file() */

    const struct tensor_codec *codec;               /* NULL: elements of `dtype` */
    const struct tensor *parts[TENSOR_N_PARTS_MAX]; /* of the codec: scales and the like */
    uint64_t own[2];                                /* of the codec */
    uint32_t code_bits;  /* of read_codes(): 4 or 8; 0: the code is of another kind */
    uint32_t code_group; /* elements of a row with one scale and offset: a multiple of 32 */
    int code_is_f8;      /* codes are F8 numbers, and code_group is a multiple of 128 */
};

/* A row of a vector is one element. Rows may be decoded in any order and by several threads. */
struct tensor_codec {
    const char *name; /* in messages, such as "Q4_K" */
    /* Decode rows [row, row + n_rows) to out [n_rows, K]. */
    void (*read_rows)(const struct tensor *t, uint64_t row, uint32_t n_rows, float *out);
    /* Where code_bits is above 0: the same rows as codes [n_rows, K], below 2^code_bits, and the
     * scales and offsets [n_rows, ceil(K / code_group)] of their groups. An element is
     * code * scale + offset; scale and offset are floats that f16 represents, or nearly so. With
     * code_is_f8 an element is the F8 number times any scale, NaN for groups with a NaN, and
     * offsets are 0. */
    void (*read_codes)(const struct tensor *t, uint64_t row, uint32_t n_rows, uint8_t *codes,
                       float *scales, float *offsets);
};

/* The type of the rows that a reader of the tensor gets. */
static inline enum dtype tensor_dtype(const struct tensor *t)
{
    return t->codec ? DTYPE_F32 : t->dtype;
}

/* Whether the tensor is quantized: a codec whose file has less than 16 bits for an element. Other
 * codecs only reorder or convert floats. */
static inline int tensor_is_quantized(const struct tensor *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return t->codec && t->n_bytes < 2 * n;
}

#endif
