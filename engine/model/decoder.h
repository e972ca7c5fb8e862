/* decoder.h - the layer that all families share: attention and a gated feed-forward part or a
 * mixture of experts, each with norms before it, behind it, or both, and added to the residual
 * stream.
 *
 * A family says which tensors there are; the rest follows from struct model_config. What a family
 * does not have is NULL in its layers.
 *
 * Owns    nothing: struct weights owns the layers.
 * Thread  decoder_plan(): the caller of weights_load(); decoder_run(): engine thread only.
 * Errors  as weights_plan.h and layer.h.
 * Units   elements. */
#ifndef TARN_ENGINE_MODEL_DECODER_H
#define TARN_ENGINE_MODEL_DECODER_H

#include "engine/model/family.h"
#include "engine/model/moe.h"

#define DECODER_EMBEDDING "model.embed_tokens.weight"

enum head_norm {
    HEAD_NORM_NONE = 0,
    HEAD_NORM_EACH, /* of Q and K: each head by itself, one weight vector [d] for all */
    HEAD_NORM_ALL   /* of Q and K: all heads together, weights [H d] and [G d] */
};

/* Names of a layer's tensors, behind "model.layers.N."; NULL: the family has none. */
struct decoder_names {
    const char *attn_norm, *attn_after; /* norms before and behind attention */
    const char *ffn_norm, *ffn_after;   /* the same of the feed-forward part */
    enum head_norm head_norm;           /* self_attn.q_norm, self_attn.k_norm */
    bool is_fused;                      /* self_attn.qkv_proj, mlp.gate_up_proj */
    const char *qkv, *o;                /* other names of attention's two products, the first fused;
                                           NULL: self_attn.q_proj and so on */
    const char *embedding;              /* NULL: DECODER_EMBEDDING */
    const struct moe_names *moe;        /* of the layers with experts */
};

struct decoder_layer {
    const struct decoder_names *names; /* of all layers: a constant of the family */
    float *attn_norm, *attn_norm_bias; /* [D] */
    struct weight qkv;                 /* [(H + 2 G) d, D]: Q rows, then K, then V */
    float *qkv_bias;
    enum head_norm head_norm;
    float *q_norm, *k_norm; /* [d], or [H d] and [G d] */
    struct weight o;        /* [D, H d] */
    float *o_bias;
    float *attn_after, *ffn_norm, *ffn_norm_bias; /* [D] */
    struct moe moe;                               /* in place of the next four; else zeros */
    struct weight gate_up;                        /* [2 F, D]: gate rows, then up */
    float *gate_up_bias;
    struct weight down; /* [D, F] */
    float *down_bias;
    float *ffn_after; /* [D] */
};

/* The layers [n_layers] of weights that decoder_plan() planned. */
static inline const struct decoder_layer *decoder_layers(const struct weights *w)
{
    return (const struct decoder_layer *)w->layers;
}

/* Read a number above 0, or leave *out as it is. An explicit null sets 0: none. */
NODISCARD enum status decoder_read_multiplier(const struct json *j, const char *name, double *out,
                                              struct buf *why);
/* Read sliding_window, which all layers have unless layer_types lists some. */
NODISCARD enum status decoder_read_window(const struct json *j, struct model_config *m,
                                          struct buf *why);
/* Read it as the Qwen models have it: with use_sliding_window, in the layers from max_window_layers
 * on or in those of layer_types. */
NODISCARD enum status decoder_read_upper_windows(const struct json *j, struct model_config *m,
                                                 struct buf *why);
/* Plan all weights of a model whose embedding is DECODER_EMBEDDING. */
NODISCARD enum status decoder_plan(struct loader *l, const struct decoder_names *names);
/* The next six are members of the family's descriptor. */
/* Plan the weights of a model that names its tensors as Llama does. */
NODISCARD enum status decoder_plan_llama(struct loader *l);
/* Families with norms behind a part or with a residual_scale have decoder_buffers_with_out(), those
 * with experts decoder_buffers_with_experts(), the others decoder_buffers(). */
uint32_t decoder_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX]);
uint32_t decoder_buffers_with_out(const struct model_config *m,
                                  uint32_t widths[FAMILY_N_BUFFERS_MAX]);
uint32_t decoder_buffers_with_experts(const struct model_config *m,
                                      uint32_t widths[FAMILY_N_BUFFERS_MAX]);
NODISCARD enum status decoder_run(const struct layer_step *s, uint32_t layer);
void decoder_count_work(const struct model_config *m, const struct weights *w,
                        struct model_work *out);

#endif
