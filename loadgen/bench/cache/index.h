/* index.h - part "index": measures the opening of a directory with many records.
 *
 * The cache alone, with KV of 256 bytes a block: each record is a page of payload and a header.
 * Paths of 8 segments are hashed, opened, grown, committed and closed, and written as a server
 * writes them; then the cache is closed and opened many times. The first opening and every second
 * one after it finds nothing of the files in the page cache (cold); the others may (warm). An
 * opening reads headers, computes their checksums and keys again, and builds the tree, which is all
 * that a server does before it is ready.
 *
 * Owns    everything that it opens, until it returns.
 * Thread  one.
 * Errors  words that name the option; ERR_TOO_LARGE when the memory does not suffice.
 * Units   seconds. */
#ifndef TARN_LOADGEN_BENCH_CACHE_INDEX_H
#define TARN_LOADGEN_BENCH_CACHE_INDEX_H

#include "base/buf.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

struct index_result {
    char io[16];
    bool is_direct;
    uint32_t n_records;           /* found, in each opening */
    uint32_t n_extents;           /* that the directory has room for */
    double write_s;               /* until all records were on disk */
    double first_s;               /* the tier's own figure of the first opening */
    struct figure cold_s, warm_s; /* the tier's own figure */
    struct figure open_s;         /* of cache_create(), which makes much else as well */
    double steal_share;
};

NODISCARD enum status index_run(struct index_result *out, const struct cachebench_options *o,
                                struct buf *why);

#endif
