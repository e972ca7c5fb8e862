/* step_graphs.h - decode steps that a GPU replays: recorded once for each bucket of sizes, then
 * launched by one call instead of one for each kernel.
 *
 * A step whose sequences all have one row is padded to a bucket: so many rows, so many segments.
 * Everything else that differs from step to step is read from device memory, so a bucket's kernels
 * and their arguments are always the same. Rows of padding have slots outside of the KV pool, and
 * sequences of padding have no rows (kernels/params.h).
 *
 * The first step of a bucket is launched kernel by kernel, which lets cuBLASLt choose and load its
 * kernels. The second one is recorded. A start records nothing, so graphs cost it no time.
 *
 * Owns    at most STEP_GRAPHS_MAX graphs; the one that was used least recently is replaced.
 * Thread  engine thread only.
 * Errors  a device without graphs, or one that fails to record, computes step by step.
 * Units   rows, segments. */
#ifndef TARN_ENGINE_RUN_STEP_GRAPHS_H
#define TARN_ENGINE_RUN_STEP_GRAPHS_H

#include <stdint.h>

#include "kernels/device.h"

#define STEP_GRAPHS_MAX 48
/* A step with more rows is long enough to hide its launches. */
#define STEP_GRAPH_ROWS_MAX 512

struct step_bucket {
    uint32_t n_rows; /* and sequences, and rows that get logits */
    uint32_t n_segments;
    const void *pool; /* the address of the KV pool */
};

struct step_graphs_stats {
    uint64_t n_recorded;
    uint64_t n_replayed;
};

struct step_graphs;

NODISCARD enum status step_graphs_create(struct step_graphs **out, struct device *d);
void step_graphs_destroy(struct step_graphs *g); /* NULL is fine */

/* Return the least bucket with room for n_rows (at least 1) and n_segments, up to the maxima, which
 * they do not exceed. */
struct step_bucket step_bucket_for(uint32_t n_rows, uint32_t n_segments, uint32_t n_rows_max,
                                   uint32_t n_segments_max);

/* Run a padded step: record(arg) enqueues its ops, which depend on the bucket alone and on memory
 * of the device. The step is launched or replayed. */
NODISCARD enum status step_graphs_run(struct step_graphs *g, const struct step_bucket *bucket,
                                      enum status (*record)(void *arg), void *arg);
/* Forget all recordings: memory that they name is about to be freed. */
void step_graphs_forget(struct step_graphs *g);
struct step_graphs_stats step_graphs_stats(const struct step_graphs *g);

#endif
