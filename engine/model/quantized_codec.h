/* quantized_codec.h - how the parts of a quantized weight become rows of floats, or codes with
 * scales and offsets. quantized.h lists the formats.
 *
 * Owns    nothing.
 * Thread  any: a weight is constant once it is built.
 * Errors  none: quantized.c checks types, shapes and indices before it hands out a tensor.
 * Units   elements. */
#ifndef TARN_ENGINE_MODEL_QUANTIZED_CODEC_H
#define TARN_ENGINE_MODEL_QUANTIZED_CODEC_H

#include <stdbool.h>

#include "engine/model/tensor.h"

enum quantized_codes {
    CODES_ALONG_K_WORDS, /* I32 [K * bits / 32, N]: GPTQ */
    CODES_AWQ,           /* I32 [K, N / 8], interleaved */
    CODES_ROWS,          /* I32 [N, ceil(K * bits / 32)]: compressed-tensors */
    CODES_I8,            /* [N, K], as the next two */
    CODES_E4M3,
    CODES_E5M2
};

enum quantized_zeros {
    ZEROS_FIXED,   /* `zero` for all */
    ZEROS_ALONG_N, /* I32 [G, N * bits / 32], and zeros_less is added to each word */
    ZEROS_AWQ,     /* I32 [G, N / 8], interleaved */
    ZEROS_COLUMNS, /* I32 [ceil(N * bits / 32), G] */
    ZEROS_I8       /* at the index of the scale; `zero` is added */
};

struct quantized_weight {
    struct tensor tensor; /* as the loader sees it; own[0] is the address of this struct */
    enum quantized_codes codes_as;
    enum quantized_zeros zeros_as;
    uint32_t bits;
    int32_t zero;
    uint32_t zeros_less;
    uint64_t n, k;
    uint64_t block_rows, block_cols;         /* elements with one scale */
    uint64_t n_groups;                       /* of a row */
    uint64_t scale_per_row, scale_per_group; /* steps of the scale's index */
    const struct tensor *codes;
    const struct tensor *scales; /* NULL: 1 */
    const struct tensor *zeros;
    const struct tensor *g_idx; /* NULL: column k is of group k / block_cols */
};

/* The codec of such a weight. */
const struct tensor_codec *quantized_codec(const struct quantized_weight *w);

/* The value of an F8_E4M3 (without infinities) or F8_E5M2 number. */
float quantized_e4m3(uint8_t x);
float quantized_e5m2(uint8_t x);

/* Element i of an I32 tensor, at any alignment. */
int32_t quantized_i32(const struct tensor *t, uint64_t i);
float quantized_scale(const struct quantized_weight *w, uint64_t row, uint64_t group);

#endif
