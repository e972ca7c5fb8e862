/* layer.h - one step as a layer sees it, and the ops that most layers are made of.
 *
 * Owns    nothing; engine/run/forward.c owns the buffers.
 * Thread  engine thread only.
 * Errors  what the device answers.
 * Units   rows (one token each), elements. */
#ifndef TARN_ENGINE_MODEL_LAYER_H
#define TARN_ENGINE_MODEL_LAYER_H

#include <stdbool.h>

#include "engine/model/adapter.h"
#include "engine/model/weights.h"

#define LAYER_N_BUFFERS_MAX 8

struct layer_step {
    struct device *device; /* device_group_self(group) */
    const struct device_group *group;
    const struct ops *ops;
    const struct model_config *model;
    const struct weights *weights;
    const float *cos_sin;       /* [n_pos, r]: r rotated dimensions of a head */
    const float *cos_sin_local; /* the same for layers with a window */
    uint32_t n_pos;
    float *x;                           /* [T, D] residual stream */
    float *xn;                          /* [T, D] normed */
    float *buffer[LAYER_N_BUFFERS_MAX]; /* [T, width]: plan_buffers() of the family */
    uint16_t *rounded; /* [T, stride of any weight] or [T k, stride of an expert's] rounded_rows;
                          NULL: the device makes none */

    /* The batch; arrays lie where ops can read them. */
    uint32_t n_rows; /* T */
    uint32_t n_seqs;
    uint32_t seq_rows_most;     /* rows of the longest sequence */
    uint32_t n_segments;        /* of all sequences */
    uint32_t seq_segments_most; /* segments of the sequence with most */
    const uint32_t *pos, *slot_block, *slot_offset, *blocks;
    const struct attn_seq *seqs;
    const struct attn_segment *segments;
    const struct attn_work *work; /* NULL on a host device */
    const struct kv_pool *pool;
    bool bidirectional; /* attention is to all keys of a sequence */
    /* Runs of rows with an adapter, ascending; then `rounded` is NULL. */
    const struct adapter_run *adapter_runs;
    uint32_t n_adapter_runs;
    float *adapter_mid; /* [T, adapter_mid_width()]; NULL: no row has an adapter */
    uint32_t *n_sums;   /* counts the sums over the group in this step */
    /* In place of the op, while sequences of the batch have KV on other instances; else NULL. The
     * arrays of p lie in host memory then. */
    enum status (*attention)(void *arg, const struct attention_params *p);
    void *attention_arg;
};

/* Factor of the scores of attention. */
float layer_attention_scale(const struct model_config *m);

/* out [n_rows, D] = norm of x with weights w, of the model's kind, plus bias [D], which may be
 * NULL; with `accumulate` the result is added to out. */
NODISCARD enum status layer_norm_with(const struct layer_step *s, uint32_t n_rows, const float *x,
                                      const float *w, const float *bias, bool accumulate,
                                      float *out);
/* layer_norm_with() for the product with `reader`, which alone reads the result: *in is the `a` of
 * that product, `out` or, if the device rounds rows, NULL. reader NULL: *in is `out`. */
NODISCARD enum status layer_norm_for(const struct layer_step *s, uint32_t n_rows, const float *x,
                                     const float *w, const float *bias, const struct weight *reader,
                                     float *out, const float **in);
/* layer_norm_for() for several readers: `out` has the floats in any case, and if *is_rounded,
 * s->rounded has the rows for products with `reader`, too. */
NODISCARD enum status layer_norm_also(const struct layer_step *s, const float *x, const float *w,
                                      const float *bias, const struct weight *reader, float *out,
                                      bool *is_rounded);
/* Norm the n_heads heads from `first` on in each row of qkv [T, (H + 2 G) d] in place: parts of
 * `dim` elements, each by itself. */
NODISCARD enum status layer_norm_heads(const struct layer_step *s, uint32_t n_parts, uint32_t dim,
                                       const float *w, float *first);
/* out [n_rows, N] = a * w^T + bias; a NULL: the rows that the op before left in s->rounded. `next`
 * is the weight of the following product, to be fetched early. */
NODISCARD enum status layer_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                                    const struct weight *w, const struct weight *next,
                                    const float *bias, float *out);
/* out += a * w^T + bias, summed over the group: each device multiplies its share of a and w. */
NODISCARD enum status layer_add_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                                        const struct weight *w, const struct weight *next,
                                        const float *bias, float *out);
/* out += a * w^T of this device alone: layer_sum() follows. */
NODISCARD enum status layer_add_part(const struct layer_step *s, uint32_t n_rows, const float *a,
                                     const struct weight *w, const struct weight *next, float *out);
/* x [n] = its sum over the group. */
NODISCARD enum status layer_sum(const struct layer_step *s, size_t n, float *x);
/* x [n_rows, dim] = 0; NaN and infinities become NaN. */
NODISCARD enum status layer_clear(const struct layer_step *s, uint32_t n_rows, uint32_t dim,
                                  float *x);
/* out = a * w^T + bias, summed over the group. */
NODISCARD enum status layer_sum_product(const struct layer_step *s, uint32_t n_rows, const float *a,
                                        const struct weight *w, const struct weight *next,
                                        const float *bias, float *out);
/* out [n_rows, dim] = x * factor (0: 1), or out += x * factor; then the soft cap (0: none). `cap`
 * and `accumulate` exclude each other. */
NODISCARD enum status layer_scale(const struct layer_step *s, uint32_t n_rows, uint32_t dim,
                                  const float *x, double factor, double cap, bool accumulate,
                                  float *out);
/* Rotate Q in qkv [T, (H + 2 G) d] in place; write rotated K and V into the KV pool. */
NODISCARD enum status layer_rope_kv(const struct layer_step *s, uint32_t layer, float *qkv);
/* out [T, H d] = attention of Q in qkv over the KV pool, with the model's scale, soft cap and
 * window. `reader` and `in` as for layer_norm_for(). */
NODISCARD enum status layer_attention(const struct layer_step *s, uint32_t layer, const float *qkv,
                                      const struct weight *reader, float *out, const float **in);
/* out [n_rows, dim] = f(gate) * up of gate_up [n_rows, 2 dim] with the model's activation f;
 * `reader` and `in` as for layer_norm_for(). */
NODISCARD enum status layer_silu_mul(const struct layer_step *s, uint32_t n_rows, uint32_t dim,
                                     const float *gate_up, const struct weight *reader, float *out,
                                     const float **in);
/* x [T, dim] = f(x), for a feed-forward part without a gate. */
NODISCARD enum status layer_activate(const struct layer_step *s, uint32_t dim, float *x);

#endif
