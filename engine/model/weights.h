/* weights.h - a checkpoint on the device: packed, fused, hashed, quantized on request.
 *
 * The family plans which tensors make up which weight (weights_plan.h). On a host device the
 * embedding table is read from the mapped file unless its type changes. Quantization gives the
 * layers' products the requested type, and the embedding and the output layer 8 bits: a tied model
 * has both in one packed weight. Norms and biases stay f32.
 *
 * As stored, the tensors that fill a weight decide its type, and the embedding's its own. Codes
 * with a scale and an offset per group become A8 or A4, and F8 numbers whose scales suit groups of
 * 128 become F8, with the numbers of the file. Tensors quantized in another way become I8 in groups
 * of 32. Plain floats keep the float type, as does a weight that mixes them with quantized tensors.
 *
 * Owns    device memory of every packed weight; the mapped checkpoint while `file` is not NULL.
 * Thread  load: one caller, spreads over the device's host threads. Read-only after.
 * Errors  ERR_INVALID a tensor is missing or has another shape than the configuration
 *         says;
 *         ERR_UNSUPPORTED a dtype; ERR_NOMEM.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_H
#define TARN_ENGINE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/model/model.h"
#include "kernels/device.h"

/* Quantization of weights while they are loaded. With group 0 nothing is quantized: the weights are
 * floats, decoded where the checkpoint is quantized, or, with dtype DTYPE_A8, as stored. */
struct quantization {
    enum dtype dtype; /* of the layers' products: DTYPE_I8, DTYPE_I4 or DTYPE_F8 */
    uint32_t group;   /* elements that share a scale: 32 or 128 */
};

static inline bool quantization_is_as_stored(struct quantization q)
{
    return q.group == 0 && q.dtype == DTYPE_A8;
}

struct weights_part {
    void *data;
    size_t n_bytes;
};

struct packed_keeper;

struct weights {
    struct device *device;
    void *layers;               /* [n_layers], a struct of the family's */
    const struct weight *first; /* that a step multiplies first */
    struct weight embedding;    /* [V, D]: floats row-major, not packed; I8 and A8 packed, and the
                                     same memory as output when the model is tied */
    enum dtype dtype;           /* the float type: of every packed weight unless quantized */
    struct quantization quantization; /* not "as stored" where no tensor is quantized */
    float *final_norm;                /* [D] */
    float *final_norm_bias;           /* [D]; NULL: none */
    struct weight output; /* [V, D]; data is NULL with no_output, unless it is the embedding */
    /* Of encoders; else zeros. The tables are floats in WEIGHT_ROWS, also of quantized models. */
    struct weight positions;                     /* [max_pos, D] */
    struct weight types;                         /* [n_types, D]; data is NULL if there are none */
    float *embedding_norm, *embedding_norm_bias; /* [D] */
    /* Of models that classify texts; else zeros. Both are f32. */
    struct weight pooler; /* [D, D] */
    struct weight labels; /* [n_labels, D] */
    float *pooler_bias, *labels_bias;
    uint64_t n_params;        /* that this rank has */
    uint64_t n_params_all;    /* of all ranks together, each parameter once */
    uint64_t n_bytes;         /* device memory taken */
    uint8_t content_hash[32]; /* over names, shapes, dtypes and CRC32C of what was loaded: codes,
                                 scales and offsets of A8 and A4, floats of all others */

    struct checkpoint *file;    /* NULL once no weight lies in a mapped file */
    struct weights_part *owned; /* every device allocation, for weights_free() */
    uint32_t n_owned, owned_cap;
    struct packed_keeper *keeper; /* writes them to a file; NULL: nothing does */
};

struct weights_config {
    struct device *device;
    const char *dir;                  /* or file: as checkpoint_open() */
    const struct model_config *model; /* the rank's share of the model: model_share() */
    uint32_t n_ranks, rank; /* GPUs that share the weights, and which of them loads; 0, 0: one */
    enum dtype dtype;       /* a float type */
    struct quantization quantization;
    bool no_output; /* the output layer is not loaded and may be missing: for hidden states */
    bool dummy;     /* random weights from `seed`, no checkpoint needed */
    uint64_t seed;
    const char *packed_dir; /* quantized weights are kept here (packed.h); NULL: they are not */
    uint64_t packed_bytes;  /* limit on all files there */
};

/* Load all weights. *w is ready to use on OK and zeroed otherwise. */
NODISCARD enum status weights_load(struct weights *w, const struct weights_config *config,
                                   struct buf *why);
/* Read the type in which the checkpoint stores the embedding table; BF16 for a quantized one. */
NODISCARD enum status weights_stored_dtype(const struct model_config *m, const char *dir,
                                           enum dtype *out, struct buf *why);
/* Parse "auto" (as stored), "none", "int8", "int4" or "fp8"; group is 32, 128, or 0 for the default
 * of that type. */
NODISCARD enum status quantization_parse(struct quantization *out, const char *name, uint32_t group,
                                         struct buf *why);
void weights_free(struct weights *w); /* also fine on a zeroed struct */

#endif
