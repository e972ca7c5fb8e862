/* options.h - tarn-bench's command line.
 *
 * Owns    copies of all texts: options_fini().
 * Thread  main.
 * Errors  ERR_INVALID with words that name the option.
 * Units   seconds, bytes, tokens. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_OPTIONS_H
#define TARN_LOADGEN_BENCH_ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/option_table.h"
#include "loadgen/bench/engine/cases.h"

struct bench_options {
    char *model;
    char *load_format;  /* "auto", "dummy" */
    char *dtype;        /* "auto", "f32", "bf16", "f16" */
    char *quantization; /* one of QUANTIZATION_NAMES */
    char *kv_cache_dtype;
    char *cpu_variant;           /* "auto", ... */
    char *device;                /* "auto", "cpu", "cuda", "ref" */
    uint64_t quantization_group; /* 32, 128; 0: the best of the type */
    uint64_t threads;
    uint64_t chunk;        /* rows of one step at most */
    uint64_t kv_bytes_max; /* 0: from free memory */
    uint64_t repetitions;
    uint64_t max_seconds; /* 0: no limit */
    bool json;
    bool no_limits;
    bool profile;
    bool batch_invariant;
    bool no_wgmma;
    bool enforce_eager;
    bool want_help;
    bool want_version;
    bool only_limits;    /* `tarn-bench limits` */
    bool only_attention; /* `tarn-bench attention` */
    char *attention_sizes;
    struct option_list case_texts;
    struct bench_case cases[BENCH_CASES_MAX];
    uint32_t n_cases;
};

NODISCARD enum status options_parse(struct bench_options *o, int argc, char **argv,
                                    struct buf *why);
void options_fini(struct bench_options *o);
void options_print_help(FILE *f);
/* Replace each {some_name} in a message of the engine by --some-name. */
void options_name_options(struct buf *why);

#endif
