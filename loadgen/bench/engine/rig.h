/* rig.h - the engine's forward pass set up for cases: model, device, weights, KV pool, batch.
 *
 * The whole KV pool is filled with random finite numbers once; a context is then only a sequence
 * with slots for so many tokens, cut and counted by the cache as any other. The kernels cannot tell
 * it from a computed one, and a context of any length costs nothing to set up.
 *
 * Owns    everything of the engine that it opens, until rig_close().
 * Thread  one; the device spreads the work over its own threads.
 * Errors  words that name the option or file; ERR_TOO_LARGE for a case that does not fit.
 * Units   tokens, bytes, seconds. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_RIG_H
#define TARN_LOADGEN_BENCH_ENGINE_RIG_H

#include <stdbool.h>

#include "loadgen/bench/engine/counts.h"
#include "loadgen/bench/engine/options.h"

struct rig;

struct rig_info {
    const char *ops_name;
    uint32_t n_threads;
    bool is_host;   /* computes in host memory */
    uint32_t chunk; /* rows of one step at most, in prefill */
    uint64_t n_params;
    uint64_t weight_bytes;
    uint64_t kv_bytes; /* of the pool */
    double load_seconds;
    struct bench_shape shape;
};

/* The pool is as large as the largest case that fits needs. */
NODISCARD enum status rig_open(struct rig **out, const struct bench_options *o, struct buf *why);
void rig_close(struct rig *r); /* NULL is fine */
const struct rig_info *rig_info(const struct rig *r);

/* ERR_TOO_LARGE with words when the case's context or KV is beyond the model or the memory. */
NODISCARD enum status rig_case_fits(const struct rig *r, const struct bench_case *c,
                                    struct buf *why);

/* One case at a time: begin, any number of passes, end. A pass is the whole prompt, or one token of
 * each sequence, and leaves the sequences as it found them. */
NODISCARD enum status rig_case_begin(struct rig *r, const struct bench_case *c);
NODISCARD enum status rig_case_pass(struct rig *r);
void rig_case_end(struct rig *r);

#endif
