#include "loadgen/bench/sched/options.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/flag_table.h"

#define AT(field) offsetof(struct schedbench_options, field)

static const struct option_row rows[] = {
    {"What", "policy", OPTION_TEXT, AT(policy), 0, 0, "all", "NAME",
     "scheduling policy, as of tarn-server; all: each of them"},
    {NULL, "queued", OPTION_COUNT, AT(queued), 0, 1000000, "0", "N",
     "sequences that wait; 0: 1,000 and then 100,000"},
    {NULL, "running", OPTION_COUNT, AT(running), 1, 4096, "64", "N",
     "sequences that run at once, as --max-num-seqs of tarn-server"},
    {NULL, "plans", OPTION_COUNT, AT(plans), 10, 10000000, "4000", "N",
     "plans that are measured, behind half as many that are not"},
    {NULL, "starvation", OPTION_CHOICE, AT(starvation), 0, 0, "both", "both|default|never",
     "default: the scheduler's own limit, beyond which nearly all of a long queue is; never: the "
     "levels alone decide"},
    {NULL, "seed", OPTION_COUNT, AT(seed), 0, UINT32_MAX, "1", "N", "of lengths and arrivals"},

    {"Output", "json", OPTION_SWITCH, AT(json), 0, 1, "", NULL, "JSON instead of text"},
    {NULL, "quiet", OPTION_SWITCH, AT(quiet), 0, 1, "", NULL, "no progress on the standard error"},
};

static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

enum status schedbench_options_parse(struct schedbench_options *o, int argc, char **argv,
                                     struct buf *why)
{
    *o = (struct schedbench_options){0};
    enum status s = option_table_presets(&table, o, why);

    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            o->want_help = true;
        else if (strcmp(argv[i], "--version") == 0)
            o->want_version = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = option_table_read(&table, o, argc, argv, &i, why);
        else
            s = buf_why(why, ERR_INVALID, "\"%.64s\" is no option, see --help", argv[i]);
    }
    return s;
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
