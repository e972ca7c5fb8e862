/* weights.h - a checkpoint on the device: packed, fused, fingerprinted, quantized if so asked.
 *
 * Q, K and V become one weight, gate and up another, so that a layer is four products. The
 * embedding table stays where it is (the mapped file) unless the dtype changes. When weights are
 * quantized, the layers' products get the type asked for, the embedding and the output layer always
 * 8 bits: a tied model has both in one packed weight. Norms and biases stay f32.
 *
 * Owns    device memory of every packed weight; the mapped checkpoint while `file` is not NULL.
 * Thread  load: one caller, spreads over the device's host threads. Read-only after.
 * Errors  ERR_INVALID a tensor is missing or has another shape than config.json says;
 *         ERR_UNSUPPORTED a dtype; ERR_NOMEM.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_H
#define TARN_ENGINE_MODEL_WEIGHTS_H

#include <stdint.h>

#include "base/buf.h"
#include "engine/model/model.h"
#include "kernels/device.h"

/* How weights are made smaller while they are loaded. */
struct quantization {
    enum dtype dtype; /* of the layers' products: DTYPE_I8 or DTYPE_I4 */
    uint32_t group;   /* 32 or 128; 0: not quantized, dtype counts for nothing */
};

struct weights {
    struct device *device;
    void *layers;               /* [n_layers], a struct of the family's */
    const struct weight *first; /* that a step multiplies first */
    struct weight embedding;    /* [V, D]: floats row-major, not packed; I8 packed, and the same
                                     memory as output when the model is tied */
    enum dtype dtype;           /* the float type: of every packed weight unless quantized */
    struct quantization quantization;
    float *final_norm;    /* [D] */
    struct weight output; /* [V, D] */
    uint64_t n_params;
    uint64_t n_bytes;         /* device memory taken */
    uint8_t content_hash[32]; /* over names, shapes, dtypes and CRC32C of what was loaded */

    struct safetensors *file; /* NULL when nothing refers to it */
    void **owned;             /* every device allocation, for weights_free() */
    uint32_t n_owned, owned_cap;
};

struct weights_config {
    struct device *device;
    const char *dir;
    const struct model_config *model;
    enum dtype dtype; /* a float type */
    struct quantization quantization;
    bool dummy; /* random weights from `seed`, no checkpoint needed */
    uint64_t seed;
};

/* *w is ready to use on OK and zeroed otherwise. */
NODISCARD enum status weights_load(struct weights *w, const struct weights_config *config,
                                   struct buf *why);
/* Read the type in which the checkpoint stores the embedding table. */
NODISCARD enum status weights_stored_dtype(const struct model_config *m, const char *dir,
                                           enum dtype *out, struct buf *why);
/* "none", "int8" or "int4"; group 32, 128, or 0 for the best of that type. */
NODISCARD enum status quantization_parse(struct quantization *out, const char *name, uint32_t group,
                                         struct buf *why);
void weights_free(struct weights *w); /* also fine on a zeroed struct */

#endif
