/* tree.h - part "tree": measures hashing, walking and pinning in a tree of many segments.
 *
 * The KV of a block is as small as it can be, so that memory holds a million segments.
 * No model runs, and paths share nothing. Each path is hashed (as on an HTTP thread), grown and
 * committed as if it was computed, and closed. Then random paths are looked up, where the
 * processor's caches help little, and one path many times.
 *
 * Owns    everything that it makes, until it returns.
 * Thread  one.
 * Errors  ERR_TOO_LARGE with words when the memory does not suffice; ERR_INTERNAL when the tree
 * lacks a block that was entered. Units   seconds, bytes. */
#ifndef TARN_LOADGEN_BENCH_CACHE_TREE_H
#define TARN_LOADGEN_BENCH_CACHE_TREE_H

#include "cache/cache.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

/* Seconds of the calls on one path, in the order an engine makes them. */
struct tree_calls {
    struct figure open, match, attach, close;
    struct figure walk_and_pin; /* match and attach */
};

struct tree_result {
    uint32_t n_segments, n_paths, path_segments;
    struct figure hash_s; /* of a segment; one value for each path */
    double hash_one_s;    /* of one block's message by itself */
    double fill_s;        /* of a segment: open, grow, commit, close */
    struct tree_calls cold, warm;
    uint32_t n_nodes;
    uint64_t memory_bytes; /* of all bookkeeping */
    const char *policy;
};

NODISCARD enum status tree_run(struct tree_result *out, const struct cachebench_options *o,
                               struct buf *why);

#endif
