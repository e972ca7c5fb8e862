/* data.h - made-up vectors in clusters, queries near them, and the exact answers.
 *
 * A vector is a cluster's centre plus noise of the same length, so that two vectors of one cluster
 * have a cosine of about 0.5. All vectors are normalized.
 *
 * Owns    the arrays: data_fini().
 * Thread  one.
 * Errors  ERR_NOMEM; ERR_IO: words name the file.
 * Units   none. */
#ifndef TARN_LOADGEN_BENCH_RETRIEVAL_DATA_H
#define TARN_LOADGEN_BENCH_RETRIEVAL_DATA_H

#include "loadgen/bench/retrieval/options.h"

struct data {
    uint32_t dim, n, n_queries, k;
    float *x;   /* [n, dim] */
    float *q;   /* [n_queries, dim] */
    float *kth; /* [n_queries] score of the k-th nearest */
};

NODISCARD enum status data_make(struct data *d, const struct retrievalbench_options *o,
                                struct buf *why);
void data_fini(struct data *d);
/* Write a line of JSON with the sizes, then x and q as floats in host order. */
NODISCARD enum status data_write(const struct data *d, const char *path, struct buf *why);

#endif
