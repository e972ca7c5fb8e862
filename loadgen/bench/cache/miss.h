/* miss.h - part "miss": requests that share nothing, with prefix caching and without it.
 *
 * A small model on one thread, one request after another, in a pool that holds a few of them: with
 * caching on, every lookup misses, and every request enters the tree and evicts another one.
 * This part measures time; miss_instructions.py runs it under callgrind to count instructions.
 *
 * Owns    everything that it opens, until it returns.
 * Thread  one; the engine has its own.
 * Errors  words; ERR_INTERNAL when a lookup hits.
 * Units   seconds, tokens. */
#ifndef TARN_LOADGEN_BENCH_CACHE_MISS_H
#define TARN_LOADGEN_BENCH_CACHE_MISS_H

#include "base/buf.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

enum miss_side { MISS_ON, MISS_OFF, MISS_N_SIDES };

struct miss_result {
    char ops_name[32];
    uint32_t n_requests, n_prompt, n_out; /* of each request: tokens */
    uint64_t n_macs_per_token;            /* products of the layers */
    uint64_t n_evicted;                   /* blocks, with caching on */
    bool ran[MISS_N_SIDES];
    struct figure cpu_s[MISS_N_SIDES]; /* of a request, all threads of the process */
};

NODISCARD enum status miss_run(struct miss_result *out, const struct cachebench_options *o,
                               struct buf *why);

#endif
