/* options.h - tarn-schedbench's command line.
 *
 * Owns    copies of all texts: schedbench_options_fini().
 * Thread  main.
 * Errors  ERR_INVALID with words that name the option.
 * Units   sequences, plans. */
#ifndef TARN_LOADGEN_BENCH_SCHED_OPTIONS_H
#define TARN_LOADGEN_BENCH_SCHED_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

struct schedbench_options {
    char *mlfq_variant;
    char *policy;    /* "all", or one of scheduler_policies() */
    uint64_t queued; /* 0: SCHEDBENCH_QUEUED, one after another */
    uint64_t running;
    uint64_t plans;
    uint64_t seed;
    char *starvation; /* "both", "default", "never" */
    bool json;
    bool quiet;
    bool want_help;
    bool want_version;
};

NODISCARD enum status schedbench_options_parse(struct schedbench_options *o, int argc, char **argv,
                                               struct buf *why);
void schedbench_options_fini(struct schedbench_options *o);
void schedbench_options_help(FILE *f);

#endif
