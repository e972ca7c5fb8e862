/* adapter.h - a LoRA adapter: what it adds to the products of a decoder's layers.
 *
 * The product of a module with x becomes W x + scale * B (A x), with A [r, K] and B [N, r] (Hu et
 * al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021). Both are kept in f32, with the
 * scale multiplied into B, and are ordinary weights of the device: the addition is two products,
 *   mid = A x            of all modules that read the same x, one behind the other
 *   out[:, col0 ..] += B mid[:, mid0 ..]
 * for each run of rows that have the adapter. Both are products of ops.gemm, so a row's result
 * depends neither on the other rows nor on their adapters (promise P1). Rows outside of a run are
 * not touched.
 *
 * Owns    the packed matrices, the name and the path; counted references.
 * Thread  adapter_load(): any thread. adapter_place(), adapter_add(): engine thread. The rest: any;
 *         an adapter is constant once it is loaded and placed.
 * Errors  adapter_load(): ERR_NOT_FOUND, ERR_INVALID, ERR_UNSUPPORTED with words that name file and
 *         tensor; ERR_TOO_LARGE: the rank; ERR_NOMEM. adapter_add(): what the device answers.
 * Units   elements; rows of a step. */
#ifndef TARN_ENGINE_MODEL_ADAPTER_H
#define TARN_ENGINE_MODEL_ADAPTER_H

#include <stdatomic.h>

#include "engine/model/weights.h"

struct layer_step;

/* The products of a layer. */
enum adapter_place { ADAPTER_QKV, ADAPTER_O, ADAPTER_GATE_UP, ADAPTER_DOWN, ADAPTER_N_PLACES };

/* Modules of one product: Q, K and V. */
#define ADAPTER_N_UPS_MAX 3
#define ADAPTER_HASH_BYTES 32

struct adapter_up {
    struct weight w; /* scale * B [N, r] */
    uint32_t col0;   /* the first of its columns of the product */
    uint32_t mid0;   /* the first of its columns of `mid` */
};

struct adapter_product {
    struct weight down;                       /* [sum of r, K] */
    struct adapter_up ups[ADAPTER_N_UPS_MAX]; /* [n_ups]; 0: nothing is added */
    uint32_t n_ups;
};

struct adapter {
    char *name, *path;
    char *base;                       /* the name of the model that it was made for; may be NULL */
    uint8_t hash[ADAPTER_HASH_BYTES]; /* of the matrices and scales */
    uint32_t rank;                    /* the largest one */
    uint64_t n_params;
    uint64_t number; /* ascending in the order of loading */
    uint32_t n_layers;
    struct adapter_product *products; /* [n_layers * ADAPTER_N_PLACES] */
    unsigned char *memory;            /* [n_bytes] on the host; NULL once on another device */
    size_t n_bytes;
    struct device *device;                 /* of on_device */
    void *on_device;                       /* NULL: the matrices are in `memory` */
    atomic_uint refs;                      /* counted by engine/adapters.h */
    void *owner;                           /* struct adapters */
    struct adapter *next;                  /* of those on the device */
    _Atomic uint32_t n_running, n_waiting; /* sequences, after the latest step */
    uint32_t counted_running, counted_waiting;
};

struct adapter_source {
    const char *name; /* of the adapter */
    const char *dir;  /* as the PEFT library writes it */
    const char *base; /* may be NULL */
    const struct model_config *model;
    const struct weights *weights; /* of the model: the names of its modules */
    enum weight_layout layout;     /* of the device */
    uint32_t rank_max;
};

/* Whether the model's layers can have adapters. */
bool adapter_is_possible(const struct model_config *m);
/* Read an adapter into host memory. */
NODISCARD enum status adapter_load(struct adapter **out, const struct adapter_source *source,
                                   struct buf *why);
/* Move the matrices to a device that is not a host's. */
NODISCARD enum status adapter_place(struct adapter *a, struct device *d);
/* Free the memory of that device, on the engine thread. The adapter cannot be used any more. */
void adapter_displace(struct adapter *a);
void adapter_free(struct adapter *a); /* NULL is fine; not one that is on a device */

/* Rows [row0, row0 + n_rows) of a step, which have the same adapter. */
struct adapter_run {
    uint32_t row0, n_rows;
    const struct adapter *adapter;
};

/* Elements of a row of `mid` for adapters of that rank. */
static inline uint32_t adapter_mid_width(uint32_t rank)
{
    return ADAPTER_N_UPS_MAX * rank;
}

/* Add to out [T, out_stride], the product of `in` [T, K] at this place of the layer, what the
 * adapters of the step's rows add. */
NODISCARD enum status adapter_add(const struct layer_step *s, uint32_t layer,
                                  enum adapter_place place, const float *in, float *out,
                                  size_t out_stride);

#endif
