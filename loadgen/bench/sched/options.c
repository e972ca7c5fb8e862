#include "loadgen/bench/sched/options.h"

#include "base/check.h"
#include "base/option_rows.h"
#include "engine/settings.h"

#define OPTIONS_OF struct schedbench_options

static const struct option_row rows[] = {
    TEXT("What", "policy", policy, "all", "NAME",
         "scheduling policy, as of tarn-server; all: each of them"),
    TEXT(NULL, "mlfq-variant", mlfq_variant, DEFAULT_MLFQ_VARIANT, "NAME",
         "as of tarn-server; a wrong name lists them"),
    COUNT(NULL, "queued", queued, 0, 1000000, "0",
          "sequences that wait; 0: 1,000 and then 100,000"),
    COUNT(NULL, "running", running, 1, 4096, "64",
          "sequences that run at once, as --max-num-seqs of tarn-server"),
    COUNT(NULL, "plans", plans, 10, 10000000, "4000",
          "plans that are measured, after half as many to warm up"),
    CHOICE(NULL, "starvation", starvation, "both", "both|default|never",
           "default: the scheduler's own limit, beyond which nearly all of a long queue is; never: "
           "the "
           "levels alone decide"),
    COUNT(NULL, "seed", seed, 0, UINT32_MAX, "1", "of lengths and arrivals"),

    SWITCH("Output", "json", json, "JSON instead of text"),
    SWITCH(NULL, "quiet", quiet, "no progress on the standard error"),
};

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
};

enum status schedbench_options_parse(struct schedbench_options *o, int argc, char **argv,
                                     struct buf *why)
{
    *o = (struct schedbench_options){0};
    enum status s = option_table_presets(&table, o, why);

    return s == OK ? option_table_read_args(&table, o, argc, argv, 1, why) : s;
}

void schedbench_options_fini(struct schedbench_options *o)
{
    option_table_fini(&table, o);
}

void schedbench_options_help(FILE *f)
{
    fputs("tarn-schedbench [options]\n\n"
          "Measures what the scheduler takes to plan a step while many wait, requests come, end\n"
          "and change levels all the time. No model and no cache: a pool of made-up blocks.\n"
          "--some-name V is also --some-name=V. Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}
