/* cost_profile.h - the cost model's numbers, measured at start by running steps.
 *
 * cost_profile_obtain() is what the engine calls: it loads the file of an earlier start, or
 * measures through the engine's own forward pass and saves. cost_profile_measure() does not depend
 * on the engine: which shapes to run within a budget, and what grids follow from them.
 *
 * Shapes run in the order of their information: one decode, a short prefill, the corners of the
 * grids, then points that halve the gaps. A shape is skipped if it is expected to take more than
 * half of the remaining budget. A point that took much longer than the others suggest is measured
 * again. Points that were not measured follow the law
 *     prefill = a + b new + c new (cached + new / 2),  decode = a + b batch + c batch cached
 * which is fitted to the measured points and bent through them. With a single point, the law is the
 * estimate, scaled. One point of each grid is always measured, however long it takes.
 *
 * A chunk has at most n_rows_max tokens, and no shape takes more KV than the pool has. A longer
 * prefill is the sum of its chunks; a shape that does not fit into the pool follows the law.
 *
 * The measured steps are artificial: batches of arbitrary ids over the first blocks of the empty
 * pool. The cache does not know these blocks, so no request can hit them. The times leave out the
 * host's work around the forward pass (planning, sampling); cost_model_learn() adds it.
 *
 * At every start, whether a file is loaded or not, a GPU first times its matrix products, for half
 * a second at most (device_tune()). The choice changes no bit, so nothing of it is kept.
 *
 * Owns    nothing beyond a call.
 * Thread  the engine thread, or any before it starts.
 * Errors  cost_profile_obtain(): never fatal. ERR_NOMEM, ERR_IO, or what a step answered, with
 *         words: the model is then as good as it could be made (an estimate at worst), see
 *         cost_profile_result.
 * Units   tokens and seconds. */
#ifndef TARN_ENGINE_RUN_COST_PROFILE_H
#define TARN_ENGINE_RUN_COST_PROFILE_H

#include <stdbool.h>

#include "engine/sched/cost_model.h"

struct batch;
struct device;
struct forward;
struct kv_pool;

struct cost_profile_result {
    uint32_t n_prefill, n_decode; /* points measured */
    double seconds;               /* in steps, repetitions included */
    bool is_measured;             /* by this start or an earlier one; else the model is the
                                     estimate, and the first prefills scale it */
    bool is_loaded;               /* from a file */
    bool is_kept;                 /* a file exists: save the learned model at the end */
};

struct cost_profile_config {
    struct device *device;
    struct forward *forward;
    struct batch *batch;        /* empty between two steps; as the forward pass was made for */
    const struct kv_pool *pool; /* cache_pool(); its contents are overwritten */
    uint32_t segment_tokens;
    uint32_t n_vocab;
    uint32_t n_rows_max;   /* --max-num-batched-tokens */
    uint32_t n_seqs_max;   /* --max-num-seqs */
    uint32_t n_tokens_max; /* --max-model-len */
    struct cost_estimate estimate;
    double budget_s;                          /* 0: 3 s on a host device, 0.3 s on a GPU */
    const char *dir;                          /* NULL: measured at every start, nothing saved */
    const struct cost_model_subject *subject; /* with dir */
};

/* *m is always filled. */
NODISCARD enum status cost_profile_obtain(struct cost_model *m,
                                          const struct cost_profile_config *config,
                                          struct cost_profile_result *result, struct buf *why);
/* Describe the configuration that the numbers hold for: the device and the three maxima.
 * fingerprint [COST_MODEL_FINGERPRINT_BYTES]. */
void cost_profile_subject(struct cost_model_subject *out, const uint8_t *fingerprint,
                          const struct cost_profile_config *config);

/* --- without an engine --- */

struct cost_profile_shape {
    uint32_t n_rows_max, n_seqs_max, n_tokens_max; /* as above */
    uint64_t n_kv_tokens_max;                      /* that a step's sequences may have together */
    struct cost_estimate estimate;
    double budget_s;
    /* One step: n_seqs sequences, each n_new tokens behind n_cached; n_new is 1 or n_seqs is. */
    NODISCARD enum status (*run)(void *arg, uint32_t n_cached, uint32_t n_new, uint32_t n_seqs,
                                 double *seconds);
    void *arg;
};

/* Measure within the budget. *m is always filled. The first failure of run() ends the measurement
 * and is returned; the model then follows from the points measured before it. */
NODISCARD enum status cost_profile_measure(struct cost_model *m,
                                           const struct cost_profile_shape *shape,
                                           struct cost_profile_result *result);

#endif
