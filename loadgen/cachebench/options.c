#include "loadgen/cachebench/options.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"

enum kind { KIND_TEXT, KIND_CHOICE, KIND_COUNT, KIND_SWITCH };

struct option {
    const char *group; /* starts a group of --help when not NULL */
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t min, max;
    const char *preset;
    const char *value; /* what --help calls it; KIND_CHOICE: the choices, separated by | */
    const char *help;
};

#define AT(field) offsetof(struct cachebench_options, field)
#define DTYPES "auto|f32|bf16|f16"

static const struct option options[] = {
    {"What", "part", KIND_CHOICE, AT(part), 0, 0, "all", "all|ttft|tree|miss",
     "ttft: time to first token behind a shared prefix; tree: hashing, walking and pinning in a "
     "large tree; miss: what prefix caching costs when nothing is found"},
    {NULL, "cache-policy", KIND_TEXT, AT(cache_policy), 0, 0, "", "NAME",
     "eviction policy, as of tarn-server; default: the server's default"},

    {"Machine (ttft, miss)", "threads", KIND_COUNT, AT(threads), 0, 1024, "0", "N",
     "compute threads, also of the read rate; 0: all cores of this process (ttft), 1 (miss)"},
    {NULL, "cpu-variant", KIND_TEXT, AT(cpu_variant), 0, 0, "auto", "NAME",
     "instruction set; auto: the best of this machine"},

    {"Part ttft", "model", KIND_TEXT, AT(model), 0, 0, "", "DIR",
     "directory in Hugging Face layout; default: a shape of 0.49 B parameters"},
    {NULL, "load-format", KIND_CHOICE, AT(load_format), 0, 0, "dummy", "auto|dummy",
     "dummy: random weights, config.json is enough; auto: the directory's"},
    {NULL, "dtype", KIND_CHOICE, AT(dtype), 0, 0, "auto", DTYPES,
     "type of the weights; auto: as stored"},
    {NULL, "kv-cache-dtype", KIND_CHOICE, AT(kv_cache_dtype), 0, 0, "auto", DTYPES,
     "type of cached K and V; auto: that of the weights"},
    {NULL, "prefix", KIND_COUNT, AT(prefix), 32, 100000, "4000", "N", "tokens that are shared"},
    {NULL, "new", KIND_COUNT, AT(n_new), 1, 1024, "4", "N",
     "tokens behind the prefix, different in each request"},
    {NULL, "rounds", KIND_COUNT, AT(rounds), 1, 1000, "7", "N",
     "rounds; each begins with a cold prefix"},
    {NULL, "hits", KIND_COUNT, AT(hits), 1, 1000, "3", "N",
     "pairs of a device hit and a host hit in a round"},
    {NULL, "max-num-batched-tokens", KIND_COUNT, AT(chunk), 1, 1 << 20, "512", "N",
     "tokens of one step; longer prompts are computed in chunks"},

    {"Part tree", "segments", KIND_COUNT, AT(segments), 1, 100000000, "1000000", "N",
     "segments of 256 tokens in the tree"},
    {NULL, "path-segments", KIND_COUNT, AT(path_segments), 1, 4096, "100", "N",
     "segments of one path"},
    {NULL, "lookups", KIND_COUNT, AT(lookups), 1, 1000000, "2000", "N",
     "paths that are looked up and pinned, at random; and one of them as often again"},

    {"Part miss", "prefix-caching", KIND_CHOICE, AT(prefix_caching), 0, 0, "both", "both|on|off",
     "one of them alone is for counting instructions: see miss_instructions.py"},
    {NULL, "requests", KIND_COUNT, AT(requests), 1, 1000000, "24", "N",
     "requests that share nothing, one after another"},
    {NULL, "prompt", KIND_COUNT, AT(prompt), 1, 8000, "128", "N", "tokens of each prompt"},
    {NULL, "max-tokens", KIND_COUNT, AT(max_tokens), 1, 1000, "4", "N",
     "tokens that each request generates"},

    {"Output", "json", KIND_SWITCH, AT(json), 0, 1, "", NULL, "JSON instead of text"},
    {NULL, "quiet", KIND_SWITCH, AT(quiet), 0, 1, "", NULL, "no progress on the standard error"},
};

static const struct option *find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

static enum status unknown(const char *given, size_t n, struct buf *why)
{
    struct flag_near best = {0};
    char name[FLAG_NAME_BYTES_MAX];

    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name), given);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        flag_consider(&best, options[i].name, name);
    return buf_why(why, ERR_INVALID, "--%.64s: unknown option, %s%s%s", given,
                   best.word ? "did you mean --" : "", best.word ? best.word : "see --help",
                   best.word ? "?" : "");
}

static enum status set(struct cachebench_options *b, const struct option *o, const char *text,
                       struct buf *why)
{
    void *at = (char *)b + o->offset;
    char source[FLAG_NAME_BYTES_MAX];

    snprintf(source, sizeof source, "--%s", o->name);
    switch (o->kind) {
    case KIND_SWITCH: *(bool *)at = true; return OK;
    case KIND_COUNT: return flag_parse(FLAG_COUNT, source, text, o->min, o->max, at, why);
    case KIND_CHOICE:
        if (!flag_is_choice(o->value, text))
            return buf_why(why, ERR_INVALID, "%s: \"%.64s\" is not known (one of %s)", source,
                           text, o->value);
        break;
    case KIND_TEXT: break;
    }
    *(const char **)at = text;
    return OK;
}

/* argv[*i], which starts with "--", and its value. */
static enum status read_flag(struct cachebench_options *b, int argc, char **argv, int *i,
                             struct buf *why)
{
    const char *name = argv[*i] + 2;
    size_t n = strcspn(name, "=");
    const struct option *o = find(name, n);

    if (!o)
        return unknown(name, n, why);
    if (o->kind == KIND_SWITCH)
        return name[n] ? buf_why(why, ERR_INVALID, "--%s takes no value", o->name)
                       : set(b, o, "", why);
    if (name[n])
        return set(b, o, name + n + 1, why);
    if (*i + 1 >= argc)
        return buf_why(why, ERR_INVALID, "--%s: a value is missing", o->name);
    return set(b, o, argv[++*i], why);
}

static enum status set_presets(struct cachebench_options *b, struct buf *why)
{
    enum status s = OK;

    *b = (struct cachebench_options){0};
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(options); i++)
        if (options[i].kind != KIND_SWITCH)
            s = set(b, &options[i], options[i].preset, why);
    return s;
}

enum status cachebench_options_parse(struct cachebench_options *b, int argc, char **argv,
                                     struct buf *why)
{
    enum status s = set_presets(b, why);

    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            b->want_help = true;
        else if (strcmp(argv[i], "--version") == 0)
            b->want_version = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = read_flag(b, argc, argv, &i, why);
        else
            s = buf_why(why, ERR_INVALID, "\"%.64s\" is no option, see --help", argv[i]);
    }
    if (s != OK || b->want_help || b->want_version)
        return s;
    if (b->path_segments > b->segments)
        return buf_why(why, ERR_INVALID, "--path-segments %llu is more than --segments %llu: the "
                       "tree must hold one path at least", (unsigned long long)b->path_segments,
                       (unsigned long long)b->segments);
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
          "tree of a million segments costs, and what caching costs where nothing is found.\n"
          "--some-name V is also --some-name=V. Defaults are in [ ].\n",
          f);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        const struct option *o = &options[i];
        flag_print(f, &(struct flag_row){o->group, o->name, false, o->value, o->help, o->preset});
    }
    flag_print(f, &(struct flag_row){"Other", "help, --version", false, NULL, "print and exit",
                                     ""});
}
