/* weights.h - a checkpoint on the device: packed, fused, fingerprinted.
 *
 * Q, K and V become one weight, gate and up another, so that a layer is four products. The embedding
 * table stays where it is (the mapped file) unless the dtype changes.
 *
 * Owns    device memory of every packed weight, and the mapped checkpoint.
 * Thread  load: one caller, spreads over the device's host threads. Read-only after.
 * Errors  ERR_INVALID a tensor is missing or has another shape than config.json says;
 *         ERR_UNSUPPORTED a dtype; ERR_NOMEM.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_WEIGHTS_H
#define TARN_ENGINE_WEIGHTS_H

#include <stdint.h>

#include "base/buf.h"
#include "cache/cache.h"
#include "engine/model.h"
#include "kernels/device.h"

struct layer_weights {
    float *attn_norm;       /* [D] */
    struct weight qkv;      /* [(H + 2 G) d, D]: Q rows, then K, then V */
    float *qkv_bias;        /* NULL when the model has none; so for the other biases */
    struct weight o;        /* [D, H d] */
    float *o_bias;
    float *ffn_norm;        /* [D] */
    struct weight gate_up;  /* [2 F, D]: gate rows, then up */
    float *gate_up_bias;
    struct weight down;     /* [D, F] */
    float *down_bias;
};

struct weights {
    struct device *device;
    struct layer_weights *layers; /* [n_layers] */
    const void *embed;            /* [V, D] row-major */
    enum dtype dtype;             /* of embed and of every packed weight */
    float *final_norm;            /* [D] */
    struct weight output;         /* [V, D] */
    uint64_t n_params;
    uint64_t n_bytes;             /* device memory taken */
    uint8_t content_hash[32];     /* over names, shapes, dtypes and CRC32C of what was loaded */

    struct safetensors *file;     /* NULL for dummy weights */
    void **owned;                 /* every device allocation, for weights_free() */
    uint32_t n_owned;
};

struct weights_config {
    struct device *device;
    const char *dir;
    const struct model_config *model;
    enum dtype dtype;
    bool dummy;                   /* random weights from `seed`, no checkpoint needed */
    uint64_t seed;
};

/* *w is ready to use on OK and zeroed otherwise. */
NODISCARD enum status weights_load(struct weights *w, const struct weights_config *config,
                                   struct buf *why);
/* The dtype that the checkpoint's embedding table is stored in. */
NODISCARD enum status weights_stored_dtype(const char *dir, enum dtype *out, struct buf *why);
void weights_free(struct weights *w); /* also fine on a zeroed struct */

#endif
