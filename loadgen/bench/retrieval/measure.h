/* measure.h - builds one index and searches it.
 *
 * Owns    nothing.
 * Thread  one; a rebuild runs in a thread of its own.
 * Errors  as engine/retrieval/vectors.h.
 * Units   seconds, microseconds, bytes. */
#ifndef TARN_LOADGEN_BENCH_RETRIEVAL_MEASURE_H
#define TARN_LOADGEN_BENCH_RETRIEVAL_MEASURE_H

#include "engine/retrieval/vectors.h"
#include "loadgen/bench/retrieval/data.h"

#define N_STAGES_MAX 64

struct measure_result {
    char wanted[VECTORS_FACTORY_BYTES_MAX]; /* as given */
    struct vectors_stats stats;
    bool is_loaded; /* from --keep */
    double build_s; /* from the first vector to the end of the last rebuild; or of loading */
    double recall;  /* share of the k nearest that are found */
    double median_us, p99_us;
    double cpu_us; /* mean CPU time of a query: hardly changed by other load on the machine */
    /* Staged search: share of queries whose list is already the final one after stage i + 1. */
    double final_after[N_STAGES_MAX];
};

NODISCARD enum status measure_index(struct measure_result *out, const char *factory,
                                    const struct data *d, const struct retrievalbench_options *o,
                                    struct buf *why);

#endif
