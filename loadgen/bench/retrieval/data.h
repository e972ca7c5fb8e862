/* data.h - made-up vectors in clusters, queries near them, and the exact answers.
 *
 * A vector is a cluster's centre plus noise of the same length, so that two vectors of one cluster
 * have a cosine of about 0.5. All vectors are normalized.
 *
 * Owns    the arrays, or the mapped file: data_fini().
 * Thread  one.
 * Errors  ERR_NOMEM; ERR_IO: words name the file.
 * Units   none. */
#ifndef TARN_LOADGEN_BENCH_RETRIEVAL_DATA_H
#define TARN_LOADGEN_BENCH_RETRIEVAL_DATA_H

#include "base/mapfile.h"
#include "loadgen/bench/retrieval/options.h"

struct data {
    uint32_t dim, n, n_queries, k;
    float *made; /* what the pointers below point to, or NULL: the file */
    struct mapfile file;
    const float *x;   /* [n, dim] */
    const float *q;   /* [n_queries, dim] */
    const float *kth; /* [n_queries] score of the k-th nearest */
};

/* Read o->file if its first line says that it holds this data. Else make the data and, if a file is
 * named, write it: a line of JSON, padded to DATA_HEAD_BYTES, then x, q and kth as floats in host
 * order. */
#define DATA_HEAD_BYTES 256
NODISCARD enum status data_open(struct data *d, const struct retrievalbench_options *o,
                                struct buf *why);
void data_fini(struct data *d);

#endif
