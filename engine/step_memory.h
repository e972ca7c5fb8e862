/* step_memory.h - the memory of a GPU that steps take, and what is left for KV: the same functions
 * for a server that starts (engine_memory.c) and for one that inspects a model (inspect.c).
 *
 * Owns    nothing.
 * Thread  any; step_memory_reserve() as struct device.
 * Errors  none: sizes only.
 * Units   bytes, rows, tokens. */
#ifndef TARN_ENGINE_STEP_MEMORY_H
#define TARN_ENGINE_STEP_MEMORY_H

#include "engine/engine.h"
#include "engine/run/device_sampler.h"
#include "engine/run/forward.h"

/* Everything that sizes a step. */
struct step_memory {
    const struct engine_config *config; /* its max_batched_tokens is above 0 */
    const struct model_config *model;
    const struct model_config *share; /* of it, on one device of the group: model_share() */
    const struct weights *weights;    /* of group.rank; NULL: not loaded, in a group of one */
    struct device_group group;
    uint32_t max_model_len;
};

/* Return config's max_batched_tokens, or what suits the device where it is 0. */
uint32_t step_memory_batched_tokens(const struct engine_config *config, bool is_host);
/* The tokens that a sequence may guess in one step: none where a row's bits depend on others. */
uint32_t step_memory_guesses(const struct engine_config *config, const struct device *d);
/* Rows of logits in a step. A single sequence can verify all of its guesses. */
uint32_t step_memory_logits_rows(const struct engine_config *config, const struct device *d);
struct forward_config step_memory_forward(const struct step_memory *m);
struct device_sampler_config step_memory_sampler(const struct step_memory *m);
/* Return the bytes that steps take on the device of group.rank, without recorded ones. */
uint64_t step_memory_bytes(const struct step_memory *m);

/* Measure what recorded steps cost on the device, into *cost, and return the memory to reserve for
 * them. 0: none will be recorded. */
uint64_t step_memory_reserve(const struct step_memory *m, struct step_graphs_cost *cost);

/* A GPU whose weights are loaded. */
struct kv_room {
    uint64_t n_total, n_free;
    uint64_t taken_bytes; /* of weights, and of all else since the device was opened */
    uint64_t step_bytes;  /* to come: buffers, recordings, exchange with other instances */
    double utilization;   /* the share of n_total that weights, buffers and KV may take */
};
/* Return the bytes left for KV: never more than is free. */
uint64_t kv_room_bytes(const struct kv_room *r);

#endif
