/* writes.h - part "writes": measures the cost of background writes to disk for running requests.
 *
 * Engines that differ in their disk tier only: none, writes on the first use, writes on the second
 * (the default). A batch is several requests at once for new prompts, and then as many that begin
 * with the same prompts; both are timed together. A round is a batch on each side, in changing
 * order, and one more without a disk, which measures the machine's noise. Writes that are
 * unfinished at the end of a batch end before the next one begins and are not timed;
 * written_meanwhile is the share that was finished.
 *
 * Owns    everything that it opens, until it returns.
 * Thread  one; each engine has its own.
 * Errors  words that name the option; ERR_TOO_LARGE when the memory does not suffice.
 * Units   tokens per second; percent. */
#ifndef TARN_LOADGEN_BENCH_CACHE_WRITES_H
#define TARN_LOADGEN_BENCH_CACHE_WRITES_H

#include "base/buf.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

enum writes_side { WRITES_NONE, WRITES_CONTROL, WRITES_FIRST, WRITES_SECOND, WRITES_N_SIDES };
/* "no_disk", "no_disk_again", "min_uses_1", "min_uses_2" */
const char *writes_side_name(enum writes_side side);

struct writes_row {
    struct figure tokens_per_s; /* of a batch: prompts and generated ones */
    struct figure cost_percent; /* of time, against the batch without a disk of its round */
    uint64_t n_written_bytes;   /* of payload, over all rounds */
    double written_meanwhile;   /* share of it that was there when its batch ended */
};

struct writes_result {
    char ops_name[32];
    uint32_t n_threads;
    uint64_t n_params;
    uint32_t n_rounds, n_requests, n_prompt, n_out;
    uint32_t n_batch_tokens;
    struct writes_row row[WRITES_N_SIDES];
    double steal_share;
};

NODISCARD enum status writes_run(struct writes_result *out, const struct cachebench_options *o,
                                 struct buf *why);

#endif
