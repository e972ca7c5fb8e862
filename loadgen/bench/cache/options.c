#include "loadgen/bench/cache/options.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/flag_table.h"

#define AT(field) offsetof(struct cachebench_options, field)
#define DTYPES "auto|f32|bf16|f16"

static const struct option_row rows[] = {
    {"What", "part", OPTION_CHOICE, AT(part), 0, 0, "all", "all|ttft|tree|miss|disk|writes|index",
     "ttft: time to first token behind a shared prefix; tree: hashing, walking and pinning in a "
     "large tree; miss: what prefix caching costs when nothing is found; disk: ttft from disk; "
     "writes: what writing to disk costs running requests; index: opening a full directory"},
    {NULL, "cache-policy", OPTION_TEXT, AT(cache_policy), 0, 0, "", "NAME",
     "eviction policy, as of tarn-server; default: the server's default"},

    {"Machine (all but tree)", "threads", OPTION_COUNT, AT(threads), 0, 1024, "0", "N",
     "compute threads, also of the read rate; 0: all cores of this process, 1 (miss)"},
    {NULL, "cpu-variant", OPTION_TEXT, AT(cpu_variant), 0, 0, "auto", "NAME",
     "instruction set; auto: the fastest of this machine"},

    {"Model (ttft, disk, writes)", "model", OPTION_TEXT, AT(model), 0, 0, "", "DIR",
     "directory in Hugging Face layout; default: a shape of 0.49 B parameters"},
    {NULL, "load-format", OPTION_CHOICE, AT(load_format), 0, 0, "dummy", "auto|dummy",
     "dummy: random weights, config.json is enough; auto: the directory's"},
    {NULL, "dtype", OPTION_CHOICE, AT(dtype), 0, 0, "auto", DTYPES,
     "type of the weights; auto: as stored"},
    {NULL, "kv-cache-dtype", OPTION_CHOICE, AT(kv_cache_dtype), 0, 0, "auto", DTYPES,
     "type of cached K and V; auto: that of the weights"},
    {NULL, "max-num-batched-tokens", OPTION_COUNT, AT(chunk), 1, 1 << 20, "512", "N",
     "tokens of one step; longer prompts are computed in chunks"},

    {"Parts ttft and disk", "prefix", OPTION_COUNT, AT(prefix), 32, 100000, "4000", "N",
     "tokens that are shared"},
    {NULL, "new", OPTION_COUNT, AT(n_new), 1, 1024, "4", "N",
     "tokens behind the prefix, different in each request"},

    {"Part ttft", "rounds", OPTION_COUNT, AT(rounds), 1, 1000, "7", "N",
     "rounds; each begins with a cold prefix"},
    {NULL, "hits", OPTION_COUNT, AT(hits), 1, 1000, "3", "N",
     "pairs of a device hit and a host hit in a round"},

    {"Part tree", "segments", OPTION_COUNT, AT(segments), 1, 100000000, "1000000", "N",
     "segments of 256 tokens in the tree"},
    {NULL, "path-segments", OPTION_COUNT, AT(path_segments), 1, 4096, "100", "N",
     "segments of one path"},
    {NULL, "lookups", OPTION_COUNT, AT(lookups), 1, 1000000, "2000", "N",
     "paths that are looked up and pinned, at random; and one of them as often again"},

    {"Part miss", "prefix-caching", OPTION_CHOICE, AT(prefix_caching), 0, 0, "both", "both|on|off",
     "one of them alone is for counting instructions: see miss_instructions.py"},
    {NULL, "requests", OPTION_COUNT, AT(requests), 1, 1000000, "24", "N",
     "requests that share nothing, one after another"},
    {NULL, "prompt", OPTION_COUNT, AT(prompt), 1, 8000, "128", "N", "tokens of each prompt"},
    {NULL, "max-tokens", OPTION_COUNT, AT(max_tokens), 1, 1000, "4", "N",
     "tokens that each request generates"},

    {"Disk (disk, writes, index)", "disk-path", OPTION_TEXT, AT(disk_path), 0, 0, "", "DIR",
     "a directory is made below it, and removed at the end; default: $TMPDIR, or /tmp"},
    {NULL, "disk-io", OPTION_CHOICE, AT(disk_io), 0, 0, "auto", "auto|threads",
     "threads: no io_uring"},

    {"Part disk", "disk-pairs", OPTION_COUNT, AT(disk_pairs), 1, 1000, "15", "N",
     "pairs of a prefix that lies on disk only, and the same on the device"},
    {NULL, "restarts", OPTION_COUNT, AT(restarts), 0, 100, "3", "N",
     "new engines over the same directory, each asked once"},

    {"Part writes", "write-rounds", OPTION_COUNT, AT(write_rounds), 1, 1000, "30", "N",
     "rounds, each of all sides"},
    {NULL, "write-requests", OPTION_COUNT, AT(write_requests), 1, 64, "4", "N",
     "requests that run at a time"},
    {NULL, "write-prompt", OPTION_COUNT, AT(write_prompt), 32, 8000, "192", "N",
     "tokens that nobody asked for before, in each of them"},
    {NULL, "write-tokens", OPTION_COUNT, AT(write_tokens), 1, 1000, "8", "N",
     "tokens that each of them generates"},

    {"Part index", "records", OPTION_COUNT, AT(records), 64, 10000000, "100000", "N",
     "records in the directory"},
    {NULL, "opens", OPTION_COUNT, AT(opens), 1, 1000, "9", "N", "how often it is opened"},

    {"Output", "json", OPTION_SWITCH, AT(json), 0, 1, "", NULL, "JSON instead of text"},
    {NULL, "quiet", OPTION_SWITCH, AT(quiet), 0, 1, "", NULL, "no progress on the standard error"},
};

static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

enum status cachebench_options_parse(struct cachebench_options *b, int argc, char **argv,
                                     struct buf *why)
{
    *b = (struct cachebench_options){0};
    enum status s = option_table_presets(&table, b, why);

    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            b->want_help = true;
        else if (strcmp(argv[i], "--version") == 0)
            b->want_version = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = option_table_read(&table, b, argc, argv, &i, why);
        else
            s = buf_why(why, ERR_INVALID, "\"%.64s\" is no option, see --help", argv[i]);
    }
    if (s != OK || b->want_help || b->want_version)
        return s;
    if (b->path_segments > b->segments)
        return buf_why(why, ERR_INVALID,
                       "--path-segments %llu is more than --segments %llu: the "
                       "tree must hold one path at least",
                       (unsigned long long)b->path_segments, (unsigned long long)b->segments);
    return OK;
}

bool cachebench_wants(const struct cachebench_options *o, const char *part)
{
    return strcmp(o->part, "all") == 0 || strcmp(o->part, part) == 0;
}

void cachebench_options_help(FILE *f)
{
    fputs("tarn-cachebench [options]\n\n"
          "Measures the KV cache: what a hit takes next to what reading its bytes takes, what the\n"
          "tree of a million segments costs, what caching costs where nothing is found, and the\n"
          "disk tier.\n"
          "--some-name V is also --some-name=V. Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}
