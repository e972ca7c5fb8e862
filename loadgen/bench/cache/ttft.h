/* ttft.h - part "ttft": time to first token of a shared prefix that is cold, on the device, or on
 * the host, next to the time that reading the weights and the prefix's KV takes at least.
 *
 * The device tier holds one prompt only, so a new prefix spills the one before it to the host.
 * A round is: a new prefix (cold); then pairs of requests, one for the prefix on the device and one
 * for the prefix on the host, after which the two have changed places. The
 * machine's read rate is measured before and after each pair; the pair's floor is at the higher of
 * the two rates.
 *
 * Owns    everything that it opens, until it returns.
 * Thread  one; the engine has its own, and the read rate is measured by as many as the engine uses.
 * Errors  words that name the option or file; ERR_TOO_LARGE when the memory does not suffice.
 * Units   seconds, bytes, tokens. */
#ifndef TARN_LOADGEN_BENCH_CACHE_TTFT_H
#define TARN_LOADGEN_BENCH_CACHE_TTFT_H

#include "cache/cache.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

enum ttft_kind { TTFT_COLD, TTFT_DEVICE, TTFT_HOST, TTFT_N_KINDS };
const char *ttft_kind_name(enum ttft_kind k); /* "cold", "device", "host" */

struct ttft_row {
    struct figure ttft_s;
    struct figure ratio;                  /* of TTFT to the floor of the same pair */
    uint32_t n_cached_min[CACHE_N_TIERS]; /* tokens: the minimum over counted requests */
    uint32_t n_cached_max[CACHE_N_TIERS];
    uint32_t n_elsewhere; /* not counted: the prefix was not where it was to be */
};

struct ttft_result {
    char ops_name[32];
    uint32_t n_threads;
    uint64_t n_params;
    uint32_t prefix, n_new;
    uint32_t n_device_blocks, n_host_blocks;
    uint64_t weight_bytes; /* read once by a step */
    uint64_t kv_bytes;     /* of the prefix */
    struct figure read_bytes_per_s;
    struct figure floor_s;
    uint32_t n_disturbed; /* read rates taken while others had the cores */
    struct ttft_row row[TTFT_N_KINDS];
    struct cache_stats cache; /* at the end */
};

NODISCARD enum status ttft_run(struct ttft_result *out, const struct cachebench_options *o,
                               struct buf *why);

#endif
