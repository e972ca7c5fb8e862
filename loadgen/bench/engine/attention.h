/* attention.h - `tarn-bench attention`: the attention op alone, beside the limits of the machine.
 *
 * A case is one call: the rows of one prefill or decode case, or of two joined by '+'
 * (prefill:512+decode:16:1024). The op is timed for each type of KV on random numbers. Successive
 * calls use different layers of the pool, so that small contexts do not stay in the CPU's caches.
 *
 * Owns    nothing after it returns.
 * Thread  main.
 * Errors  ERR_INVALID and ERR_UNSUPPORTED with words that name the option; ERR_NOMEM.
 * Units   bytes, operations (a multiply-add is two), seconds. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_ATTENTION_H
#define TARN_LOADGEN_BENCH_ENGINE_ATTENTION_H

#include <stdio.h>

#include "loadgen/bench/engine/options.h"

/* Measure all cases and print a table to f. */
NODISCARD enum status attention_bench(FILE *f, const struct bench_options *o, struct buf *why);

#endif
