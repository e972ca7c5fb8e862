/* quantized_config.h - quantization_config of config.json: how the weights of a checkpoint are
 * coded.
 *
 * The four methods differ in the names of tensors; quantized.h lists these. compressed-tensors has
 * several schemes, and the tensors of a module show by type and shape which one is theirs.
 *
 * Owns    nothing; plain data.
 * Thread  any.
 * Errors  ERR_UNSUPPORTED a method, format or width by name; ERR_INVALID a field of a wrong type or
 *         out of range, named.
 * Units   bits, elements. */
#ifndef TARN_ENGINE_MODEL_QUANTIZED_CONFIG_H
#define TARN_ENGINE_MODEL_QUANTIZED_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"

#define QUANTIZED_N_SCHEMES_MAX 16

enum quantized_method {
    QUANTIZED_NONE, /* no quantization_config */
    QUANTIZED_GPTQ,
    QUANTIZED_AWQ,
    QUANTIZED_COMPRESSED, /* compressed-tensors */
    QUANTIZED_FP8
};

/* The elements that share a scale: block_rows x block_cols; 0: all rows, or all of a row. */
struct quantized_scheme {
    uint32_t bits;
    uint32_t block_rows, block_cols;
    bool is_float;  /* F8_E4M3 or F8_E5M2 instead of whole numbers */
    bool symmetric; /* no tensor of zero points */
};

struct quantized_config {
    enum quantized_method method;
    bool reordered;    /* GPTQ: desc_act; g_idx is required */
    bool zeros_less_1; /* GPTQ: 1 was subtracted from all zero points of a word at once */
    uint32_t n_schemes;
    struct quantized_scheme schemes[QUANTIZED_N_SCHEMES_MAX];
};

/* Read the quantization_config of config.json's object `config`. */
NODISCARD enum status quantized_config_read(struct quantized_config *out, const struct json *config,
                                            struct buf *why);

#endif
