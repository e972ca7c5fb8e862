#include "loadgen/bench/engine/options.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/flag_table.h"

#define AT(field) offsetof(struct bench_options, field)
#define DTYPES "auto|f32|bf16|f16"

static const struct option_row rows[] = {
    {"Model", "model", OPTION_TEXT, AT(model), 0, 0, "", "DIR",
     "directory in Hugging Face layout; config.json is enough for dummy weights"},
    {NULL, "load-format", OPTION_CHOICE, AT(load_format), 0, 0, "auto", "auto|dummy",
     "dummy: random weights"},
    {NULL, "dtype", OPTION_CHOICE, AT(dtype), 0, 0, "auto", DTYPES,
     "type of the weights; auto: as stored"},
    {NULL, "quantization", OPTION_CHOICE, AT(quantization), 0, 0, "none", "none|int8|int4",
     "quantize the weights at load"},
    {NULL, "quantization-group", OPTION_COUNT, AT(quantization_group), 0, 128, "0", "N",
     "weights that share a scale, 32 or 128; 0: the best of the type"},
    {NULL, "kv-cache-dtype", OPTION_CHOICE, AT(kv_cache_dtype), 0, 0, "auto", DTYPES,
     "type of cached K and V; auto: that of --dtype"},

    {"Machine", "device", OPTION_CHOICE, AT(device), 0, 0, "auto", "auto|cpu|cuda|ref",
     "where to compute; on a GPU the machine's limits are not measured"},
    {NULL, "batch-invariant", OPTION_SWITCH, AT(batch_invariant), 0, 1, "", NULL,
     "GPU: products in an order that no batch changes"},
    {NULL, "cpu-variant", OPTION_TEXT, AT(cpu_variant), 0, 0, "auto", "NAME",
     "instruction set; auto: the fastest of this machine"},
    {NULL, "threads", OPTION_COUNT, AT(threads), 0, 1024, "0", "N",
     "compute threads, also of the limits; 0: all cores of this process"},

    {"Cases", "case", OPTION_OTHER, 0, 0, 0, "", "CASE",
     "prefill:512, prefill:512@8192 (behind a context of 8192) or decode:BATCH:CONTEXT; may be "
     "given many times; default: prefill of 128, 512, 2048, 4096 and decode of 1, 4, 16, 64 "
     "sequences at context 0, 1024, 8192"},
    {NULL, "repetitions", OPTION_COUNT, AT(repetitions), 1, 1000, "5", "N",
     "rounds through all cases; medians are reported"},
    {NULL, "max-seconds", OPTION_COUNT, AT(max_seconds), 0, 1000000, "0", "N",
     "start no new round after so many seconds (the first is always finished); 0: no limit"},
    {NULL, "max-num-batched-tokens", OPTION_COUNT, AT(chunk), 1, 1 << 20, "512", "N",
     "tokens of one step; longer prompts are computed in chunks"},
    {NULL, "kv-device-bytes", OPTION_SIZE, AT(kv_bytes_max), 0, UINT64_C(1) << 50, "0", "SIZE",
     "largest KV pool, cases that need more are skipped; 0: three quarters of free memory"},
    {NULL, "no-limits", OPTION_SWITCH, AT(no_limits), 0, 1, "", NULL,
     "do not measure the machine's limits"},
    {NULL, "profile", OPTION_SWITCH, AT(profile), 0, 1, "", NULL, "time of each op in each case"},

    {"Output", "json", OPTION_SWITCH, AT(json), 0, 1, "", NULL, "JSON instead of a table"},
};

/* --case, the only one of its kind. */
static enum status add_case(void *options, const struct option_row *row, const char *text,
                            struct buf *why)
{
    struct bench_options *b = options;

    if (b->n_cases == BENCH_CASES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "--%s: at most %d", row->name, BENCH_CASES_MAX);
    return case_parse(&b->cases[b->n_cases++], text, why);
}

static const struct option_table table = {rows, ARRAY_SIZE(rows), add_case};

enum status options_parse(struct bench_options *b, int argc, char **argv, struct buf *why)
{
    *b = (struct bench_options){0};
    enum status s = option_table_presets(&table, b, why);

    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            b->want_help = true;
        else if (strcmp(argv[i], "--version") == 0)
            b->want_version = true;
        else if (strcmp(argv[i], "limits") == 0 && i == 1)
            b->only_limits = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = option_table_read(&table, b, argc, argv, &i, why);
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

void options_print_help(FILE *f)
{
    fputs("tarn-bench --model DIR [options]\n"
          "tarn-bench limits [--threads N] [--json]\n\n"
          "Measures the engine's forward pass without HTTP, beside what the machine can do at\n"
          "most; `limits` measures only that. --some-name V is also --some-name=V. Sizes take K,\n"
          "M, G (powers of 1024). Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}
