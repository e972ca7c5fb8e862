/* family_llama.h - a layer's weights in the Llama family (Llama, Mistral).
 *
 * Owns    nothing: struct weights owns the layers.
 * Thread  read-only after weights_load().
 * Errors  none.
 * Units   elements. */
#ifndef TARN_ENGINE_MODEL_FAMILY_LLAMA_H
#define TARN_ENGINE_MODEL_FAMILY_LLAMA_H

#include "engine/model/weights.h"

struct llama_layer {
    float *attn_norm;  /* [D] */
    struct weight qkv; /* [(H + 2 G) d, D]: Q rows, then K, then V */
    float *qkv_bias;   /* each bias is NULL when the model has none */
    struct weight o;   /* [D, H d] */
    float *o_bias;
    float *ffn_norm;       /* [D] */
    struct weight gate_up; /* [2 F, D]: gate rows, then up */
    float *gate_up_bias;
    struct weight down; /* [D, F] */
    float *down_bias;
};

/* The layers [n_layers] of weights that family_llama planned. */
static inline const struct llama_layer *llama_layers(const struct weights *w)
{
    return (const struct llama_layer *)w->layers;
}

#endif
