/* runner.h - rounds through limits and cases, so that a drift of the machine affects all alike.
 *
 * The first pass of a case warms the case up and determines how many passes make a repetition long
 * enough to time. The reported figure of a case or a limit is the median over the rounds.
 *
 * Owns    runner_run() fills a struct runner_result that runner_fini() frees.
 * Thread  one.
 * Errors  those of the device. A case that does not fit into memory is a skipped row, no error.
 * Units   seconds. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_RUNNER_H
#define TARN_LOADGEN_BENCH_ENGINE_RUNNER_H

#include "loadgen/bench/engine/profile.h"
#include "loadgen/bench/engine/rig.h"

struct runner_row {
    struct bench_case c;
    char skipped[160]; /* why; "" when it ran */
    double *seconds;   /* [n_done] of one pass, ascending in the end */
    uint32_t n_done;
    uint32_t n_passes;   /* in one repetition */
    uint64_t n_profiled; /* passes in `profile` */
    struct profile profile;
    struct bench_floor floor;
    double median; /* seconds of a pass */
};

struct runner_result {
    struct runner_row *rows; /* [n_rows] */
    uint32_t n_rows;
    uint32_t n_rounds;
    bool has_limits;
    struct limits limits;
};

NODISCARD enum status runner_run(struct runner_result *out, struct rig *rig,
                                 const struct bench_options *o, struct buf *why);
void runner_fini(struct runner_result *r);

#endif
