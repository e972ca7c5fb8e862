/* disk_ttft.h - part "disk": time to first token of a prefix that is on disk only, compared with
 * the least time for reading its bytes plus one step.
 *
 * The device tier holds one prompt, and there is no host tier: of two prefixes that are requested
 * in turns, each was evicted from memory before its next turn. A pair is such a request (disk) and
 * one for the same prefix, which is then on the device (step: the time of computing the rest).
 * The machine's O_DIRECT rate is measured before and after each pair on a file of the prefix's size
 * in the same directory. The pair's floor is reading at the higher of the two rates, and the median
 * of all steps. At the end the engine is closed, opened again and measured (restart).
 *
 * Owns    everything that it opens, until it returns.
 * Thread  one; the engine has its own.
 * Errors  words that name the option or file; ERR_TOO_LARGE when the memory does not suffice.
 * Units   seconds, bytes, tokens. */
#ifndef TARN_LOADGEN_BENCH_CACHE_DISK_TTFT_H
#define TARN_LOADGEN_BENCH_CACHE_DISK_TTFT_H

#include "cache/cache.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

enum disk_kind { DISK_COLD, DISK_STEP, DISK_READ, DISK_RESTART, DISK_N_KINDS };
const char *disk_kind_name(enum disk_kind k); /* "cold", "step", "disk", "restart" */

struct disk_row {
    struct figure ttft_s;
    struct figure ratio;    /* of TTFT to the floor of the same pair */
    uint32_t n_on_disk_min; /* tokens found there: the minimum over counted requests */
    uint32_t n_elsewhere;   /* not counted: the prefix was not where it was to be */
};

struct disk_ttft_result {
    char ops_name[32], rate_pattern[64], io[16];
    bool is_direct, rate_is_direct;
    uint32_t n_threads;
    uint64_t n_params;
    uint32_t prefix, n_new;
    uint32_t n_device_blocks;
    uint64_t kv_bytes;              /* of the prefix */
    uint64_t payload_bytes;         /* of that, in whole blocks */
    uint64_t disk_bytes;            /* a record's header and extent, for each of its blocks */
    uint64_t file_bytes;            /* of all files at the end: the room was allocated in full */
    uint64_t file_bytes_max;        /* the limit of the tier */
    struct figure disk_bytes_per_s; /* by this program */
    struct figure read_s;           /* kv_bytes at the rate of each pair */
    struct figure floor_s;          /* that and a step */
    struct disk_row row[DISK_N_KINDS];
    struct cache_disk_stats tier; /* before the restarts */
    double steal_share;
};

NODISCARD enum status disk_ttft_run(struct disk_ttft_result *out,
                                    const struct cachebench_options *o, struct buf *why);

#endif
