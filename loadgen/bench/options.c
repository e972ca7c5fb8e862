#include "loadgen/bench/options.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"

enum kind { KIND_TEXT, KIND_CHOICE, KIND_COUNT, KIND_SIZE, KIND_SWITCH, KIND_CASE };

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

#define AT(field) offsetof(struct bench_options, field)
#define DTYPES "auto|f32|bf16|f16"

static const struct option options[] = {
    {"Model", "model", KIND_TEXT, AT(model), 0, 0, "", "DIR",
     "directory in Hugging Face layout; config.json is enough for dummy weights"},
    {NULL, "load-format", KIND_CHOICE, AT(load_format), 0, 0, "auto", "auto|dummy",
     "dummy: random weights"},
    {NULL, "dtype", KIND_CHOICE, AT(dtype), 0, 0, "auto", DTYPES,
     "type of the weights; auto: as stored"},
    {NULL, "quantization", KIND_CHOICE, AT(quantization), 0, 0, "none", "none|int8|int4",
     "quantize the weights at load"},
    {NULL, "quantization-group", KIND_COUNT, AT(quantization_group), 0, 128, "0", "N",
     "weights that share a scale, 32 or 128; 0: the best of the type"},
    {NULL, "kv-cache-dtype", KIND_CHOICE, AT(kv_cache_dtype), 0, 0, "auto", DTYPES,
     "type of cached K and V; auto: that of --dtype"},

    {"Machine", "device", KIND_CHOICE, AT(device), 0, 0, "auto", "auto|cpu|cuda|ref",
     "where to compute; on a GPU the machine's limits are not measured"},
    {NULL, "batch-invariant", KIND_SWITCH, AT(batch_invariant), 0, 1, "", NULL,
     "GPU: products in an order that no batch changes"},
    {NULL, "cpu-variant", KIND_TEXT, AT(cpu_variant), 0, 0, "auto", "NAME",
     "instruction set; auto: the best of this machine"},
    {NULL, "threads", KIND_COUNT, AT(threads), 0, 1024, "0", "N",
     "compute threads, also of the limits; 0: all cores of this process"},

    {"Cases", "case", KIND_CASE, 0, 0, 0, "", "CASE",
     "prefill:512, prefill:512@8192 (behind a context of 8192) or decode:BATCH:CONTEXT; may be "
     "given many times; default: prefill of 128, 512, 2048, 4096 and decode of 1, 4, 16, 64 "
     "sequences at context 0, 1024, 8192"},
    {NULL, "repetitions", KIND_COUNT, AT(repetitions), 1, 1000, "5", "N",
     "rounds through all cases; medians are reported"},
    {NULL, "max-seconds", KIND_COUNT, AT(max_seconds), 0, 1000000, "0", "N",
     "start no new round after so many seconds (the first is always finished); 0: no limit"},
    {NULL, "max-num-batched-tokens", KIND_COUNT, AT(chunk), 1, 1 << 20, "512", "N",
     "tokens of one step; longer prompts are computed in chunks"},
    {NULL, "kv-device-bytes", KIND_SIZE, AT(kv_bytes_max), 0, UINT64_C(1) << 50, "0", "SIZE",
     "largest KV pool, cases that need more are skipped; 0: three quarters of free memory"},
    {NULL, "no-limits", KIND_SWITCH, AT(no_limits), 0, 1, "", NULL,
     "do not measure the machine's limits"},
    {NULL, "profile", KIND_SWITCH, AT(profile), 0, 1, "", NULL, "time of each op in each case"},

    {"Output", "json", KIND_SWITCH, AT(json), 0, 1, "", NULL, "JSON instead of a table"},
};

static const struct option *find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

static enum status add_case(struct bench_options *b, const char *text, struct buf *why)
{
    if (b->n_cases == BENCH_CASES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "--case: at most %d", BENCH_CASES_MAX);
    return case_parse(&b->cases[b->n_cases++], text, why);
}

static enum status set(struct bench_options *b, const struct option *o, const char *text,
                       struct buf *why)
{
    void *at = (char *)b + o->offset;
    char source[FLAG_NAME_BYTES_MAX];

    snprintf(source, sizeof source, "--%s", o->name);
    switch (o->kind) {
    case KIND_CASE: return add_case(b, text, why);
    case KIND_SWITCH: *(bool *)at = true; return OK;
    case KIND_COUNT: return flag_parse(FLAG_COUNT, source, text, o->min, o->max, at, why);
    case KIND_SIZE: return flag_parse(FLAG_SIZE, source, text, o->min, o->max, at, why);
    case KIND_CHOICE:
        if (!flag_is_choice(o->value, text))
            return buf_why(why, ERR_INVALID, "%s: \"%s\" is not known (one of %s)", source, text,
                           o->value);
        break;
    case KIND_TEXT: break;
    }
    *(const char **)at = text;
    return OK;
}

/* argv[*i], which starts with "--", and its value. */
static enum status read_flag(struct bench_options *b, int argc, char **argv, int *i,
                             struct buf *why)
{
    const char *name = argv[*i] + 2;
    size_t n = strcspn(name, "=");
    const struct option *o = find(name, n);

    if (!o)
        return buf_why(why, ERR_INVALID, "%s: unknown option, see --help", argv[*i]);
    if (o->kind == KIND_SWITCH)
        return name[n] ? buf_why(why, ERR_INVALID, "--%s takes no value", o->name)
                       : set(b, o, "", why);
    if (name[n])
        return set(b, o, name + n + 1, why);
    if (*i + 1 >= argc)
        return buf_why(why, ERR_INVALID, "--%s: a value is missing", o->name);
    return set(b, o, argv[++*i], why);
}

static enum status set_presets(struct bench_options *b, struct buf *why)
{
    enum status s = OK;

    *b = (struct bench_options){0};
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(options); i++)
        if (options[i].kind != KIND_SWITCH && options[i].kind != KIND_CASE)
            s = set(b, &options[i], options[i].preset, why);
    return s;
}

enum status options_parse(struct bench_options *b, int argc, char **argv, struct buf *why)
{
    enum status s = set_presets(b, why);

    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            b->want_help = true;
        else if (strcmp(argv[i], "--version") == 0)
            b->want_version = true;
        else if (strcmp(argv[i], "limits") == 0 && i == 1)
            b->only_limits = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = read_flag(b, argc, argv, &i, why);
        else
            s = buf_why(why, ERR_INVALID, "\"%s\" is no option, see --help", argv[i]);
    }
    if (s != OK || b->want_help || b->want_version || b->only_limits)
        return s;
    if (b->model[0] == '\0')
        return buf_why(why, ERR_INVALID, "--model: which model? a directory with config.json");
    if (b->n_cases == 0)
        b->n_cases = case_defaults(b->cases);
    return OK;
}

static void print_option(FILE *f, const struct option *o)
{
    flag_print(f, &(struct flag_row){o->group, o->name, false, o->value, o->help, o->preset});
}

void options_print_help(FILE *f)
{
    fputs("tarn-bench --model DIR [options]\n"
          "tarn-bench limits [--threads N] [--json]\n\n"
          "Measures the engine's forward pass without HTTP, beside what the machine can do at\n"
          "most; `limits` measures only that. --some-name V is also --some-name=V. Sizes take K,\n"
          "M, G (powers of 1024). Defaults are in [ ].\n",
          f);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        print_option(f, &options[i]);
    flag_print(f, &(struct flag_row){"Other", "help, --version", false, NULL, "print and exit",
                                     ""});
}
