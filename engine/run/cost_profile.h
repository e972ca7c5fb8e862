/* cost_profile.h - the cost model's numbers, measured at start by running steps.
 *
 * cost_profile_obtain() is what the engine calls: it loads the file of an earlier start, or
 * measures through the engine's own forward pass and saves. cost_profile_measure() is the part that
 * knows no engine: which shapes to run within a budget, and what grids follow from them.
 *
 * The budget is kept like this: shapes are run in the order of what they tell (one decode, a few
 * tokens of prefill, then the corners of the grids, then what halves the gaps), and those that are
 * expected to take more than half of what is left are passed over. What took much longer than the
 * rest says is run again. What was not run follows the law
 *     prefill = a + b new + c new (cached + new / 2),  decode = a + b batch + c batch cached
 * fitted to what was, bent through the measured points. With one point it is the estimate's shape,
 * scaled. One point of each grid is always run, whatever it takes.
 *
 * A chunk has at most n_rows_max tokens, and no shape takes more KV than the pool has: longer
 * prefills are the sum of their chunks, and what does not fit into the pool follows the law.
 *
 * What is run is made up: batches of some ids over the first blocks of the pool, before anything is
 * in it. The cache never hears of them, so no request can find them. What the host does around the
 * forward pass (planning, sampling) is not in them: cost_model_learn() brings it in.
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
    bool is_measured;             /* now or by an earlier start; else the model is the estimate,
                                     and the first prefills have to scale it */
    bool is_loaded;               /* from a file */
    bool is_kept;                 /* there is a file: at the end, save what was learned */
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
/* What the numbers are true for: of config, the device and the three maxima.
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

/* *m is always filled. The first failure of run() ends the measuring: its status, and the model
 * says what was found until then. */
NODISCARD enum status cost_profile_measure(struct cost_model *m,
                                           const struct cost_profile_shape *shape,
                                           struct cost_profile_result *result);

#endif
