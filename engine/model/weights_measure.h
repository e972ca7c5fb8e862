/* weights_measure.h - what a checkpoint has and what its weights take, without loading them.
 *
 * The plan of weights_load() runs without memory for the weights and without reading a tensor, so
 * that the figures are those of a load, and a tensor that a load would refuse is found by name.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  as weights_load(), but tensors that are missing or wrong are counted as faults.
 * Units   bytes, elements. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_MEASURE_H
#define TARN_ENGINE_MODEL_WEIGHTS_MEASURE_H

#include "engine/model/checkpoint.h"
#include "engine/model/weights.h"

#define WEIGHTS_N_FAULTS_MAX 8
#define WEIGHTS_N_CODES_MAX 32
#define WEIGHTS_N_COUNTED_MAX 1024 /* faults that are counted */

struct weights_code {
    const char *name; /* such as "BF16" or "Q4_K"; of the checkpoint */
    uint32_t n_tensors;
    uint64_t n_bytes;
};

struct weights_measure {
    uint64_t n_params;
    double n_active;                                /* parameters that a token is multiplied with */
    uint64_t n_bytes;                               /* memory of the device */
    uint64_t n_mapped_bytes;                        /* of a table that stays in the mapped file */
    struct weights_code codes[WEIGHTS_N_CODES_MAX]; /* [n_codes], the largest first */
    uint32_t n_codes;
    enum dtype product; /* type of the first product's weight */
    uint32_t n_faults;  /* tensors that are missing or wrong; WEIGHTS_N_COUNTED_MAX: or more */
    uint64_t fault_hashes[WEIGHTS_N_COUNTED_MAX]; /* of their words: a plan may ask twice */
    char faults[WEIGHTS_N_FAULTS_MAX][256];       /* the first of them, in words */
    void *nowhere; /* the address of all weights during the plan; nothing is there */
};

struct loader;

/* Measure the weights for `config`, which has a device. `file` is open, and stays so. */
NODISCARD enum status weights_measure(struct weights_measure *out,
                                      const struct weights_config *config, struct checkpoint *file,
                                      struct buf *why);

/* For the plan: note a fault that the loader's words tell, once for each tensor. */
void weights_measure_fault(struct loader *l);

#endif
