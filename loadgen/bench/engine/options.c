#include "loadgen/bench/engine/options.h"

#include <string.h>

#include "base/check.h"
#include "base/option_rows.h"
#include "engine/settings.h"

#define OPTIONS_OF struct bench_options

static const struct option_row rows[] = {
    TEXT("Model", "model", model, "", "MODEL",
         "named as for tarn-server; config.json is enough for dummy weights"),
    CHOICE(NULL, "load-format", load_format, DEFAULT_LOAD_FORMAT, LOAD_FORMAT_NAMES,
           "dummy: random weights"),
    CHOICE(NULL, "dtype", dtype, DEFAULT_DTYPE, DTYPE_NAMES,
           "type of the weights; auto: as stored"),
    CHOICE(NULL, "quantization", quantization, DEFAULT_QUANTIZATION, QUANTIZATION_NAMES,
           "auto: weights as stored; int8, int4, fp8: quantize at load; none: floats"),
    COUNT(NULL, "quantization-group", quantization_group, 0, 128, "0",
          "weights that share a scale, 32 or 128; 0: the best of the type"),
    CHOICE(NULL, "kv-cache-dtype", kv_cache_dtype, DEFAULT_DTYPE, KV_DTYPE_NAMES,
           "type of cached K and V; auto: that of --dtype"),

    CHOICE("Machine", "device", device, DEFAULT_DEVICE, DEVICE_NAMES,
           "where to compute; on a GPU the machine's limits are not measured"),
    SWITCH(NULL, "batch-invariant", batch_invariant,
           "GPU: products in an order that no batch changes"),
    SWITCH(NULL, "no-wgmma", no_wgmma, "GPU: long prompts by mma.sync on every GPU"),
    SWITCH(NULL, "enforce-eager", enforce_eager,
           "GPU: launch the kernels of each step one by one, without CUDA graphs"),
    TEXT(NULL, "cpu-variant", cpu_variant, "auto", "NAME",
         "instruction set; auto: the fastest of this machine"),
    COUNT(NULL, "threads", threads, 0, 1024, "0",
          "compute threads, also of the limits; 0: all cores of this process"),

    LIST("Cases", "case", case_texts, "CASE",
         "prefill:512, prefill:512@8192 (behind a context of 8192), decode:BATCH:CONTEXT or "
         "decode:BATCH:CONTEXT@SHARED (tokens that all sequences have); may be given many times; "
         "default: prefill of 128, 512, 2048, 4096 and decode of 1, 4, 16, 64 "
         "sequences at context 0, 1024, 8192"),
    TEXT(NULL, "attention-sizes", attention_sizes, "16:8:128", "H:G:D",
         "`attention`: query heads, KV heads and their dimensions"),
    COUNT(NULL, "repetitions", repetitions, 1, 1000, "5",
          "rounds through all cases; medians are reported"),
    COUNT(NULL, "max-seconds", max_seconds, 0, 1000000, "0",
          "start no new round after so many seconds (the first is always finished); 0: no limit"),
    COUNT(NULL, "max-num-batched-tokens", chunk, 1, 1 << 20,
          SETTING_TEXT(DEFAULT_MAX_NUM_BATCHED_TOKENS),
          "tokens of one step; longer prompts are computed in chunks"),
    SIZE(NULL, "kv-device-bytes", kv_bytes_max, 0, UINT64_C(1) << 50, "0",
         "largest KV pool, cases that need more are skipped; 0: three quarters of free memory"),
    SWITCH(NULL, "no-limits", no_limits, "do not measure the machine's limits"),
    SWITCH(NULL, "profile", profile, "time of each op in each case"),

    SWITCH("Output", "json", json, "JSON instead of a table"),
};

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
};

_Static_assert(BENCH_CASES_MAX == OPTION_LIST_MAX, "each --case has a place");

enum status options_parse(struct bench_options *b, int argc, char **argv, struct buf *why)
{
    *b = (struct bench_options){.only_limits = argc > 1 && strcmp(argv[1], "limits") == 0,
                                .only_attention = argc > 1 && strcmp(argv[1], "attention") == 0};
    bool is_part = b->only_limits || b->only_attention;
    enum status s = option_table_presets(&table, b, why);

    if (s == OK)
        s = option_table_read_args(&table, b, argc, argv, is_part ? 2 : 1, why);
    for (uint32_t i = 0; s == OK && !b->only_attention && i < b->case_texts.n; i++)
        s = case_parse(&b->cases[b->n_cases++], b->case_texts.v[i], why);
    if (s != OK || b->want_help || b->want_version || is_part)
        return s;
    if (b->model[0] == '\0')
        return buf_why(why, ERR_INVALID, "--model: which model? a directory with config.json");
    if (b->n_cases == 0)
        b->n_cases = case_defaults(b->cases);
    return OK;
}

void options_fini(struct bench_options *b)
{
    option_table_fini(&table, b);
}

void options_name_options(struct buf *why)
{
    option_table_name_options(&table, why);
}

void options_print_help(FILE *f)
{
    fputs("tarn-bench --model DIR [options]\n"
          "tarn-bench limits [--threads N] [--json]\n"
          "tarn-bench attention [--threads N] [--cpu-variant NAME] [--kv-cache-dtype T]\n"
          "                     [--case CASE[+CASE]] [--attention-sizes H:G:D] [--no-limits]\n\n"
          "Measures the engine's forward pass without HTTP, beside what the machine can do at\n"
          "most; `limits` measures only that, `attention` the attention op alone. --some-name V is "
          "also --some-name=V. Sizes take K,\n"
          "M, G (powers of 1024). Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}
