/* gguf_blocks.h - codecs of the types that ggml stores tensors in.
 *
 * Rows are decoded to the same floats as ggml's own dequantization, bit for bit. llama.cpp stores
 * the rows of Q and K of some architectures in another order: for each head, the row pairs that are
 * rotated together stand side by side, while Hugging Face stores the first half of all pairs before
 * the second half. Codecs put rows back into that second order.
 *
 * Owns    nothing: a codec reads the tensor's mapped bytes.
 * Thread  any.
 * Errors  none; the caller has checked the tensor's size.
 * Units   bytes, elements, rows. */
#ifndef TARN_ENGINE_MODEL_GGUF_BLOCKS_H
#define TARN_ENGINE_MODEL_GGUF_BLOCKS_H

#include <stdbool.h>

#include "engine/model/tensor.h"

/* The types that have a codec, in words, for messages. */
#define GGUF_BLOCKS_SUPPORTED                                                                      \
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K"

struct gguf_blocks_order {
    uint32_t head_rows; /* rows of a head whose pairs stand side by side; 0: the order is kept */
    bool less_one;      /* 1 is subtracted from each element */
};

/* Set dtype and, where the type or the order needs one, codec of a tensor, from shape, data and
 * n_bytes. `type` is the number in the file. False: the type has no codec, or is a type of blocks
 * and the tensor a vector. */
bool gguf_blocks_set(struct tensor *t, uint32_t type, struct gguf_blocks_order order);

#endif
