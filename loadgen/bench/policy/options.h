/* options.h - the command line of tarn-cachesim.
 *
 * Owns    copies of all texts: sim_options_fini().
 * Thread  one.
 * Errors  ERR_INVALID with words.
 * Units   shares of memory are fractions of the distinct tokens. */
#ifndef TARN_LOADGEN_BENCH_POLICY_OPTIONS_H
#define TARN_LOADGEN_BENCH_POLICY_OPTIONS_H

#include <stdio.h>

#include "cache/policy/replace.h"
#include "loadgen/bench/policy/paths.h"

#define SIM_N_SHARES_MAX 16

struct sim_options {
    struct { /* as the user wrote it */
        char *format, *order, *parts, *rows, *policies, *memory, *history, *cost;
    } given;
    char *trace; /* file or directory */
    enum trace_format format;
    enum trace_order order;
    enum paths_parts parts;
    uint64_t from, to; /* rows */
    enum replace_policy policies[REPLACE_N_POLICIES];
    uint32_t n_policies;
    double shares[SIM_N_SHARES_MAX];
    uint32_t n_shares;
    double history; /* INFINITY: all */
    uint64_t n_lookahead;
    double cost[3]; /* T = [0] + [1] new + [2] new (cached + new / 2) */
    bool json, quiet, checks, help, version;
};

NODISCARD enum status sim_options_parse(struct sim_options *o, int argc, char **argv,
                                        struct buf *why);
void sim_options_fini(struct sim_options *o);
void sim_options_help(FILE *f);

#endif
