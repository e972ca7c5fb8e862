/* options.h - tarn-retrievalbench's command line.
 *
 * Owns    copies of all texts: retrievalbench_options_fini().
 * Thread  main.
 * Errors  ERR_INVALID with words that name the option.
 * Units   vectors, queries. */
#ifndef TARN_LOADGEN_BENCH_RETRIEVAL_OPTIONS_H
#define TARN_LOADGEN_BENCH_RETRIEVAL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

struct retrievalbench_options {
    uint64_t vectors, dim, clusters, queries, top_k;
    char *factories; /* separated by ';' */
    uint64_t n_probe, stages, threads, seed;
    char *file; /* of the vectors, also for faiss_peer.py; "": none */
    char *keep; /* folder of built indexes; "": none */
    bool json, quiet, want_help, want_version;
};

NODISCARD enum status retrievalbench_options_parse(struct retrievalbench_options *o, int argc,
                                                   char **argv, struct buf *why);
void retrievalbench_options_fini(struct retrievalbench_options *o);
void retrievalbench_options_help(FILE *f);

#endif
