/* layer.h - one step as a layer sees it, and the ops that most layers are made of.
 *
 * Owns    nothing; engine/run/forward.c owns the buffers.
 * Thread  engine thread only.
 * Errors  what the device answers.
 * Units   rows (one token each), elements. */
#ifndef TARN_ENGINE_MODEL_LAYER_H
#define TARN_ENGINE_MODEL_LAYER_H

#include <stdbool.h>

#include "engine/model/weights.h"

#define LAYER_N_BUFFERS_MAX 8

struct layer_step {
    struct device *device; /* device_group_self(group) */
    const struct device_group *group;
    const struct ops *ops;
    const struct model_config *model;
    const struct weights *weights;
    const float *cos_sin; /* [n_pos, d] */
    uint32_t n_pos;
    float *x;                           /* [T, D] residual stream */
    float *xn;                          /* [T, D] normed */
    float *buffer[LAYER_N_BUFFERS_MAX]; /* [T, width]: plan_buffers() of the family */

    /* The batch; arrays lie where ops can read them. */
    uint32_t n_rows; /* T */
    uint32_t n_seqs;
    uint32_t seq_rows_most;     /* rows of the longest sequence */
    uint32_t seq_segments_most; /* segments of the sequence with most */
    const uint32_t *pos, *slot_block, *slot_offset, *blocks;
    const struct attn_seq *seqs;
    const struct attn_segment *segments;
    const struct kv_pool *pool;
};

/* out [n_rows, D] = RMS norm of x with weights w. */
NODISCARD enum status layer_norm(const struct layer_step *s, uint32_t n_rows, const float *x,
                                 const float *w, float *out);
/* out [n_rows, N] = a * w^T + bias. `next` is the weight of the following product, to be fetched
 * early. */
NODISCARD enum status layer_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                                    const struct weight *w, const struct weight *next,
                                    const float *bias, float *out);
/* out += a * w^T + bias, summed over the group: each device multiplies its share of a and w. */
NODISCARD enum status layer_add_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                                        const struct weight *w, const struct weight *next,
                                        const float *bias, float *out);
/* Rotate Q in qkv [T, (H + 2 G) d] in place; write rotated K and V into the KV pool. */
NODISCARD enum status layer_rope_kv(const struct layer_step *s, uint32_t layer, float *qkv);
/* out [T, H d] = causal attention of Q in qkv over the KV pool, scaled by 1 / sqrt(d). */
NODISCARD enum status layer_attention(const struct layer_step *s, uint32_t layer, const float *qkv,
                                      float *out);
/* out [T, dim] = silu(gate) * up of gate_up [T, 2 dim]. */
NODISCARD enum status layer_silu_mul(const struct layer_step *s, uint32_t dim, const float *gate_up,
                                     float *out);

#endif
