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
 * Graphs take memory of the device that only the driver allocates. So before the KV pool is sized,
 * the memory of small graphs is measured, and what STEP_GRAPHS_MAX recordings would take by that is
 * reserved for them. Each recording is measured, too: where the next one might not fit the reserve,
 * it replaces one that was not used for long, or is not made.
 *
 * Owns    at most STEP_GRAPHS_MAX graphs; the one that was used least recently is replaced.
 * Thread  engine thread only.
 * Errors  a device without graphs, or one that fails to record, computes step by step.
 * Units   rows, segments, bytes. */
#ifndef TARN_ENGINE_RUN_STEP_GRAPHS_H
#define TARN_ENGINE_RUN_STEP_GRAPHS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"

#define STEP_GRAPHS_MAX 48
/* A step with more rows is long enough to hide its launches. */
#define STEP_GRAPH_ROWS_MAX 512
/* Some pieces of memory that a driver allocates at once. */
#define STEP_GRAPHS_BYTES_MIN ((uint64_t)16 << 20)
#define STEP_GRAPHS_SHARE 32u

struct step_bucket {
    uint32_t n_rows; /* and sequences, and rows that get logits */
    uint32_t n_segments;
    const void *pool; /* the address of the KV pool */
};

struct step_graphs_stats {
    uint64_t n_recorded;
    uint64_t n_replayed;
    uint32_t n_held;  /* graphs that exist now */
    uint64_t n_bytes; /* of device memory that they take */
};

/* The memory that graphs take on a device. */
struct step_graphs_cost {
    bool is_possible;      /* the device has graphs */
    uint64_t probe_bytes;  /* of all small graphs that were measured */
    uint64_t n_kept;       /* of those: bytes that the driver did not give back */
    uint64_t device_bytes; /* all memory of the device */
};

/* Measure. Where that fails, the bytes are 0. */
void step_graphs_measure(struct device *d, struct step_graphs_cost *out);
/* Return the memory for all recordings of steps of so many kernels: at least STEP_GRAPHS_BYTES_MIN,
 * at most 1 / STEP_GRAPHS_SHARE of the device's memory. 0: the device has no graphs. */
uint64_t step_graphs_reserve(const struct step_graphs_cost *c, uint32_t n_kernels);

struct step_graphs;

/* reserve: memory for recordings, which they pass by one recording at most. */
NODISCARD enum status step_graphs_create(struct step_graphs **out, struct device *d,
                                         uint64_t reserve);
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
