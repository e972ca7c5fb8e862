#include "loadgen/bench/cache/options.h"

#include <string.h>

#include "base/check.h"
#include "base/option_rows.h"
#include "engine/settings.h"

#define OPTIONS_OF struct cachebench_options

static const struct option_row rows[] = {
    CHOICE(
        "What", "part", part, "all", "all|ttft|tree|miss|disk|writes|index",
        "ttft: time to first token behind a shared prefix; tree: hashing, walking and pinning in a "
        "large tree; miss: what prefix caching costs when nothing is found; disk: ttft from disk; "
        "writes: what writing to disk costs running requests; index: opening a full directory"),
    TEXT(NULL, "cache-policy", cache_policy, "", "NAME",
         "eviction policy, as of tarn-server; default: the server's default"),

    COUNT("Machine (all but tree)", "threads", threads, 0, 1024, "0",
          "compute threads, also of the read rate; 0: all cores of this process, 1 (miss)"),
    TEXT(NULL, "cpu-variant", cpu_variant, "auto", "NAME",
         "instruction set; auto: the fastest of this machine"),

    TEXT("Model (ttft, disk, writes)", "model", model, "", "DIR",
         "directory in Hugging Face layout; default: a shape of 0.49 B parameters"),
    CHOICE(NULL, "load-format", load_format, "dummy", LOAD_FORMAT_NAMES,
           "dummy: random weights, config.json is enough; auto: the directory's"),
    CHOICE(NULL, "dtype", dtype, DEFAULT_DTYPE, DTYPE_NAMES,
           "type of the weights; auto: as stored"),
    CHOICE(NULL, "kv-cache-dtype", kv_cache_dtype, DEFAULT_DTYPE, KV_DTYPE_NAMES,
           "type of cached K and V; auto: that of the weights"),
    COUNT(NULL, "max-num-batched-tokens", chunk, 1, 1 << 20,
          SETTING_TEXT(DEFAULT_MAX_NUM_BATCHED_TOKENS),
          "tokens of one step; longer prompts are computed in chunks"),

    COUNT("Parts ttft and disk", "prefix", prefix, 32, 100000, "4000", "tokens that are shared"),
    COUNT(NULL, "new", n_new, 1, 1024, "4", "tokens behind the prefix, different in each request"),

    COUNT("Part ttft", "rounds", rounds, 1, 1000, "7", "rounds; each begins with a cold prefix"),
    COUNT(NULL, "hits", hits, 1, 1000, "3", "pairs of a device hit and a host hit in a round"),

    COUNT("Part tree", "segments", segments, 1, 100000000, "1000000",
          "segments of 256 tokens in the tree"),
    COUNT(NULL, "path-segments", path_segments, 1, 4096, "100", "segments of one path"),
    COUNT(NULL, "lookups", lookups, 1, 1000000, "2000",
          "random paths that are looked up and pinned; then one path as often"),

    CHOICE("Part miss", "prefix-caching", prefix_caching, "both", "both|on|off",
           "one of them alone is for counting instructions: see miss_instructions.py"),
    COUNT(NULL, "requests", requests, 1, 1000000, "24",
          "requests that share nothing, one after another"),
    COUNT(NULL, "prompt", prompt, 1, 8000, "128", "tokens of each prompt"),
    COUNT(NULL, "max-tokens", max_tokens, 1, 1000, "4", "tokens that each request generates"),

    TEXT("Disk (disk, writes, index)", "disk-path", disk_path, "", "DIR",
         "a directory is made below it, and removed at the end; default: $TMPDIR, or /tmp"),
    CHOICE(NULL, "disk-io", disk_io, "auto", "auto|threads", "threads: no io_uring"),

    COUNT("Part disk", "disk-pairs", disk_pairs, 1, 1000, "15",
          "pairs of a request for a prefix on disk and one for the same prefix on the device"),
    COUNT(NULL, "restarts", restarts, 0, 100, "3",
          "new engines over the same directory, with one request each"),

    COUNT("Part writes", "write-rounds", write_rounds, 1, 1000, "30", "rounds, each of all sides"),
    COUNT(NULL, "write-requests", write_requests, 1, 64, "4", "requests that run at a time"),
    COUNT(NULL, "write-prompt", write_prompt, 32, 8000, "192",
          "new tokens in the prompt of each request"),
    COUNT(NULL, "write-tokens", write_tokens, 1, 1000, "8", "tokens that each request generates"),

    COUNT("Part index", "records", records, 64, 10000000, "100000", "records in the directory"),
    COUNT(NULL, "opens", opens, 1, 1000, "9", "openings of the directory"),

    SWITCH("Output", "json", json, "JSON instead of text"),
    SWITCH(NULL, "quiet", quiet, "no progress on the standard error"),
};

/* The cache's names for its settings. */
static const char *const aliases[][2] = {{"kv-disk-path", "disk-path"}};

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
    .aliases = aliases,
    .n_aliases = ARRAY_SIZE(aliases),
};

enum status cachebench_options_parse(struct cachebench_options *b, int argc, char **argv,
                                     struct buf *why)
{
    *b = (struct cachebench_options){0};
    enum status s = option_table_presets(&table, b, why);

    if (s == OK)
        s = option_table_read_args(&table, b, argc, argv, 1, why);
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

void cachebench_options_fini(struct cachebench_options *o)
{
    option_table_fini(&table, o);
}

void cachebench_options_name(struct buf *why)
{
    option_table_name_options(&table, why);
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
