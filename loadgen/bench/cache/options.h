/* options.h - tarn-cachebench's command line.
 *
 * Owns    copies of all texts: cachebench_options_fini().
 * Thread  main.
 * Errors  ERR_INVALID with words that name the option.
 * Units   tokens, segments, counts. */
#ifndef TARN_LOADGEN_BENCH_CACHE_OPTIONS_H
#define TARN_LOADGEN_BENCH_CACHE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

struct cachebench_options {
    char *part;         /* "all", "ttft", "tree", "miss", "disk", "writes", "index" */
    char *cache_policy; /* "": the default */
    char *cpu_variant;  /* "auto", ... */
    uint64_t threads;   /* 0: all cores of this process */

    char *model;       /* "": the shape of 0.49 B parameters */
    char *load_format; /* "auto", "dummy" */
    char *dtype;       /* "auto", "f32", "bf16", "f16" */
    char *kv_cache_dtype;
    uint64_t prefix; /* tokens that are shared */
    uint64_t n_new;  /* tokens behind it, never the same */
    uint64_t rounds;
    uint64_t hits; /* pairs of device and host hits in a round */
    uint64_t chunk;

    uint64_t segments;
    uint64_t path_segments;
    uint64_t lookups;

    char *prefix_caching; /* "both", "on", "off" */
    uint64_t requests;
    uint64_t prompt;
    uint64_t max_tokens;

    char *disk_path; /* "": $TMPDIR, or /tmp */
    char *disk_io;   /* "auto", "threads" */
    uint64_t disk_pairs;
    uint64_t restarts;
    uint64_t write_rounds;
    uint64_t write_requests;
    uint64_t write_prompt;
    uint64_t write_tokens;
    uint64_t records;
    uint64_t opens;

    bool json;
    bool quiet;
    bool want_help;
    bool want_version;
};

NODISCARD enum status cachebench_options_parse(struct cachebench_options *o, int argc, char **argv,
                                               struct buf *why);
void cachebench_options_fini(struct cachebench_options *o);
/* Replace each {some_name} in a message of the engine by --some-name. */
void cachebench_options_name(struct buf *why);
void cachebench_options_help(FILE *f);
/* Whether `part` is to run. */
bool cachebench_wants(const struct cachebench_options *o, const char *part);

#endif
