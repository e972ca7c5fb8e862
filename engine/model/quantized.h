/* quantized.h - the quantized weights of a safetensors checkpoint, as tensors with codecs.
 *
 * A weight [N, K] of module X is made of several tensors (groups G = ceil(K / group)):
 *
 *   gptq                X.qweight [K * bits / 32, N] I32, packed along K, lowest bits first;
 *                       X.qzeros [G, N * bits / 32] I32 likewise, along N, each zero point less 1
 *                       (modulo a word) except in gptq_v2; X.scales [G, N];
 *                       X.g_idx [K] I32, the group of each column (optional without desc_act)
 *   awq                 X.qweight [K, N / 8] I32, packed along N in the order 0 2 4 6 1 3 5 7;
 *                       X.qzeros [G, N / 8] I32 likewise; X.scales [G, N]
 *   compressed-tensors  X.weight_packed [N, ceil(K * bits / 32)] I32, packed along K, and
 *                       X.weight_shape [2]; or X.weight [N, K] I8, F8_E4M3 or F8_E5M2;
 *                       X.weight_scale per tensor, row, group or block;
 *                       X.weight_zero_point, I32 packed along N, or I8; X.weight_g_idx [K] I32
 *   fp8                 X.weight [N, K] F8_E4M3 or F8_E5M2; X.weight_scale_inv or X.weight_scale
 *   no method           X.weight [N, K] F8_E4M3 or F8_E5M2 without a scale
 *
 * The tensor is called X.weight. An element is (code - zero) * scale, computed in f32; stored
 * scales are F16, BF16 or F32. Weights that a configuration leaves out (`ignore`,
 * `modules_to_not_convert`) are plain tensors and are found as such. Scales of activations
 * (input_scale) are not used: kernels quantize activations by their own rule.
 *
 * Owns    the tensors until quantized_close(); their bytes belong to the safetensors files, which
 *         must stay open.
 * Thread  read-only after open: any thread.
 * Errors  as quantized_config.h; ERR_INVALID a part is missing, has another type or shape, a
 *         group index is out of range, or a scale is 0 or not finite. The reason names the tensor.
 * Units   elements. */
#ifndef TARN_ENGINE_MODEL_QUANTIZED_H
#define TARN_ENGINE_MODEL_QUANTIZED_H

#include "base/buf.h"
#include "engine/model/safetensors.h"

struct quantized;

/* Read DIR/config.json and check all quantized weights. *out is NULL without any. */
NODISCARD enum status quantized_open(struct quantized **out, const struct safetensors *st,
                                     const char *dir, struct buf *why);
void quantized_close(struct quantized *q); /* NULL is fine */
/* Returns NULL if there is no quantized weight of that name; q may be NULL. */
const struct tensor *quantized_find(const struct quantized *q, const char *name);

#endif
