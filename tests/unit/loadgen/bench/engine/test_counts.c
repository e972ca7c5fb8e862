/* The counts of tarn-bench, as exact figures for a shape of 0.49 B parameters, and the parsing of
 * cases. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "loadgen/bench/engine/counts.h"
#include "loadgen/bench/engine/options.h"

/* Of one row: 28 x (4096 + 2048 + 6144 + 3072) x 1024, and 50257 x 1024. */
#define LAYER_MACS UINT64_C(440401920)
#define OUTPUT_MACS UINT64_C(51463168)
/* The same with the output layer's last panel full: 1571 x 32 outputs. */
#define OUTPUT_PACKED UINT64_C(51478528)
/* Of one row and one key: 2 products x 2 x 16 heads x 128 x 28 layers. */
#define KEY_OPS UINT64_C(229376)
#define KV_TOKEN_BYTES UINT64_C(114688)

static struct bench_shape shape(enum dtype layers, uint32_t group, enum dtype output)
{
    return (struct bench_shape){.n_layers = 28,
                                .dim = 1024,
                                .n_heads = 16,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .ffn_dim = 3072,
                                .n_vocab = 50257,
                                .layers = layers,
                                .layers_group = group,
                                .output = output,
                                .output_group = group,
                                .kv = DTYPE_BF16};
}

static void decode_step_of_one_row(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_work w;

    (void)state;
    counts_step(&m, 1, 0, 1, 1, &w);
    assert_int_equal(w.layer_ops, 2 * LAYER_MACS);
    assert_int_equal(w.output_ops, 2 * OUTPUT_MACS);
    assert_int_equal(w.attention_ops, KEY_OPS); /* a row sees itself */
    assert_int_equal(w.weight_bytes, 2 * LAYER_MACS + 2 * OUTPUT_PACKED + 2 * 1024);
    assert_int_equal(w.kv_bytes, 0);
}

static void decode_step_reads_weights_once_and_every_context(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_work w;

    (void)state;
    assert_int_equal(counts_kv_token_bytes(&m), KV_TOKEN_BYTES);
    counts_step(&m, 16, 1024, 1, 1, &w);
    assert_int_equal(w.layer_ops, 16 * 2 * LAYER_MACS);
    assert_int_equal(w.output_ops, 16 * 2 * OUTPUT_MACS);
    assert_int_equal(w.attention_ops, 16 * 1025 * KEY_OPS);
    assert_int_equal(w.weight_bytes, 2 * LAYER_MACS + 2 * OUTPUT_PACKED + 16 * 2 * 1024);
    assert_int_equal(w.kv_bytes, 16 * 1024 * KV_TOKEN_BYTES);
}

static void prefill_counts_the_causal_triangle_and_one_row_of_logits(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_work w;

    (void)state;
    counts_step(&m, 1, 0, 512, 1, &w);
    assert_int_equal(w.layer_ops, 512 * 2 * LAYER_MACS);
    assert_int_equal(w.output_ops, 2 * OUTPUT_MACS);
    assert_int_equal(w.attention_ops, UINT64_C(131328) * KEY_OPS); /* 1 + 2 + ... + 512 */
    counts_step(&m, 1, 8192, 512, 0, &w);
    assert_int_equal(w.output_ops, 0);
    assert_int_equal(w.attention_ops, (UINT64_C(8192) * 512 + 131328) * KEY_OPS);
    assert_int_equal(w.weight_bytes, 2 * LAYER_MACS + 512 * 2 * 1024);
    assert_int_equal(w.kv_bytes, 8192 * KV_TOKEN_BYTES);
}

static void chunks_count_as_much_attention_as_the_whole(void **state)
{
    uint64_t whole = counts_attention_ops(16, 128, 0, 2048), sum = 0;

    (void)state;
    for (uint32_t pos0 = 0; pos0 < 2048; pos0 += 512)
        sum += counts_attention_ops(16, 128, pos0, 512);
    assert_int_equal(sum, whole);
}

static void quantized_weights_count_with_their_scales(void **state)
{
    struct bench_work w;

    (void)state;
    /* Group 32: 34 bytes for 32 weights of 8 bits, 18 for 32 of 4. */
    struct bench_shape m = shape(DTYPE_I8, 32, DTYPE_I8);
    counts_step(&m, 1, 0, 1, 1, &w);
    assert_int_equal(w.weight_bytes, (LAYER_MACS + OUTPUT_PACKED) / 32 * 34 + 1024 / 32 * 34);
    m = shape(DTYPE_I4, 32, DTYPE_I8);
    counts_step(&m, 1, 0, 1, 1, &w);
    assert_int_equal(w.weight_bytes,
                     LAYER_MACS / 32 * 18 + OUTPUT_PACKED / 32 * 34 + 1024 / 32 * 34);
    /* Group 128: 130 and 66 for 128. */
    m = shape(DTYPE_I4, 128, DTYPE_I8);
    counts_step(&m, 1, 0, 1, 0, &w);
    assert_int_equal(w.weight_bytes, LAYER_MACS / 128 * 66 + 1024 / 128 * 130);
}

static void weight_bytes_are_those_of_the_packed_weight(void **state)
{
    static const uint32_t sizes[] = {1, 3, 31, 32, 33, 100, 127, 129, 1024};
    static const uint32_t groups[] = {32, 128};

    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (size_t n = 0; n < ARRAY_SIZE(sizes); n++)
            for (size_t k = 0; k < ARRAY_SIZE(sizes); k++)
                for (size_t g = 0; g < ARRAY_SIZE(groups); g++)
                    assert_int_equal(
                        counts_weight_bytes((enum dtype)t, sizes[n], sizes[k], groups[g]),
                        pack_bytes((enum dtype)t, sizes[n], sizes[k], groups[g]));
}

/* --- the floor --- */

static struct limits some_limits(void)
{
    struct limits l = {0};

    l.rate[LIMIT_READ] = 40e9;
    l.rate[LIMIT_FP32] = 300e9;
    l.rate[LIMIT_BF16] = 600e9;
    l.rate[LIMIT_INT8] = 1500e9;
    l.rate[LIMIT_AMX_BF16] = 4000e9;
    l.rate[LIMIT_AMX_INT8] = 8000e9;
    l.rate[LIMIT_AVX2_FP32] = 190e9;
    l.rate[LIMIT_AVX2_INT8] = 350e9;
    return l;
}

static void near(double a, double b)
{
    assert_true(a > b * (1 - 1e-12) && a < b * (1 + 1e-12));
}

static void floor_of_decode_is_reading(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_case c = {BENCH_DECODE, 0, 1, 1024, 0};
    struct limits l = some_limits();
    struct bench_floor f;

    (void)state;
    counts_floor(&m, &c, 512, &l, "cpu-avx512", &f);
    near(f.seconds,
         (double)(2 * LAYER_MACS + 2 * OUTPUT_PACKED + 2048 + 1024 * KV_TOKEN_BYTES) / 40e9);
    assert_int_equal(f.limit, LIMIT_READ);
}

static void floor_of_prefill_is_arithmetic_of_each_type(void **state)
{
    struct bench_shape m = shape(DTYPE_I8, 32, DTYPE_I8);
    struct bench_case c = {BENCH_PREFILL, 1024, 1, 0, 0};
    struct limits l = some_limits();
    struct bench_floor f;

    (void)state;
    counts_floor(&m, &c, 512, &l, "cpu-avx512", &f);
    near(f.seconds, (double)(1024 * 2 * LAYER_MACS + 2 * OUTPUT_MACS) / 1500e9 +
                        (double)(UINT64_C(524800) * KEY_OPS) / 600e9);
    assert_int_equal(f.limit, LIMIT_INT8);
    counts_floor(&m, &c, 512, &l, "cpu-amx", &f);
    assert_int_equal(f.limit, LIMIT_AMX_INT8);
}

static void floor_of_a_short_last_chunk_is_reading_again(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_case whole = {BENCH_PREFILL, 512, 1, 0, 0}, more = {BENCH_PREFILL, 513, 1, 0, 0};
    struct limits l = some_limits();
    struct bench_floor a, b;

    (void)state;
    counts_floor(&m, &whole, 512, &l, "cpu-avx512", &a);
    counts_floor(&m, &more, 512, &l, "cpu-avx512", &b);
    /* The added row reads all weights; its logits are computed instead of the previous row's. */
    near(b.seconds - a.seconds,
         (double)(2 * LAYER_MACS + 2 * OUTPUT_PACKED + 2048 + 512 * KV_TOKEN_BYTES) / 40e9 -
             (double)(2 * OUTPUT_MACS) / 600e9);
}

static void shared_context_is_read_once(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_case apart = {BENCH_DECODE, 0, 4, 1024, 0},
                      shared = {BENCH_DECODE, 0, 4, 1024, 96};
    struct limits l = some_limits();
    struct bench_floor a, b;

    (void)state;
    counts_floor(&m, &apart, 512, &l, "cpu-avx512", &a);
    counts_floor(&m, &shared, 512, &l, "cpu-avx512", &b);
    assert_int_equal(a.limit, LIMIT_READ);
    near(a.seconds - b.seconds, (double)(3 * 96 * KV_TOKEN_BYTES) / 40e9);
}

static void rate_is_the_fastest_that_the_kernels_can_use(void **state)
{
    struct limits l = some_limits();

    (void)state;
    assert_int_equal(counts_rate_of(&l, "cpu-avx512", DTYPE_F32), LIMIT_FP32);
    assert_int_equal(counts_rate_of(&l, "cpu-avx512", DTYPE_BF16), LIMIT_BF16);
    assert_int_equal(counts_rate_of(&l, "cpu-avx512", DTYPE_I4), LIMIT_INT8);
    assert_int_equal(counts_rate_of(&l, "cpu-avx512-amx", DTYPE_BF16), LIMIT_AMX_BF16);
    assert_int_equal(counts_rate_of(&l, "cpu-avx2", DTYPE_BF16), LIMIT_AVX2_FP32);
    assert_int_equal(counts_rate_of(&l, "cpu-avx2", DTYPE_I8), LIMIT_AVX2_INT8);
    l.rate[LIMIT_BF16] = 150e9; /* half an instruction per cycle: fp32 is faster */
    assert_int_equal(counts_rate_of(&l, "cpu-avx512", DTYPE_BF16), LIMIT_FP32);
}

static void nothing_measured_gives_no_floor(void **state)
{
    struct bench_shape m = shape(DTYPE_BF16, 0, DTYPE_BF16);
    struct bench_case c = {BENCH_DECODE, 0, 1, 0, 0};
    struct limits l = {0};
    struct bench_floor f;

    (void)state;
    counts_floor(&m, &c, 512, &l, "cpu-avx512", &f);
    assert_true(f.seconds == 0);
}

static void median_of_limits_is_void_when_most_are(void **state)
{
    struct limits all[3] = {some_limits(), some_limits(), some_limits()}, out;

    (void)state;
    all[0].rate[LIMIT_READ] = 10e9;
    all[1].rate[LIMIT_READ] = 50e9;
    all[1].is_void = true;
    limits_median(all, 3, &out);
    near(out.rate[LIMIT_READ], 40e9);
    assert_false(out.is_void);
    all[2].is_void = true;
    limits_median(all, 3, &out);
    assert_true(out.is_void);
}

/* --- cases and options --- */

static void a_case_parses_back_from_its_name(void **state)
{
    static const char *const good[] = {"prefill:512", "prefill:512@8192", "decode:64:8192",
                                       "decode:1:0", "decode:16:4100@4096"};
    static const char *const bad[] = {"",
                                      "prefill",
                                      "prefill:",
                                      "prefill:0",
                                      "prefill:-1",
                                      "prefill:512:1",
                                      "decode:0",
                                      "decode:1:",
                                      "decode:1@5",
                                      "decode:99999999999999999999",
                                      "prefill:1x",
                                      "dec:1",
                                      "decode:2:5@6",
                                      "decode:2:5@"};
    char name[BENCH_CASE_NAME_BYTES];
    struct bench_case c;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        assert_ok(case_parse(&c, good[i], NULL));
        case_name(&c, name);
        assert_string_equal(name, good[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(case_parse(&c, bad[i], NULL), ERR_INVALID);
    assert_ok(case_parse(&c, "decode:4", NULL));
    assert_int_equal(c.batch, 4);
    assert_int_equal(c.context, 0);
}

static void options_name_what_is_wrong(void **state)
{
    char *good[] = {"tarn-bench", "--model=x", "--threads", "2", "--json", "--case", "decode:4"};
    char *bad[][4] = {{"tarn-bench", "--model", "x", "--frobnicate"},
                      {"tarn-bench", "--model", "x", "--threads=two"},
                      {"tarn-bench", "--model", "x", "--json=1"},
                      {"tarn-bench", "--model", "x", "--quantization=int7"},
                      {"tarn-bench", "--model", "x", "--case"}};
    char *words[] = {"--frobnicate", "--threads", "--json", "--quantization", "--case"};
    struct bench_options o;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(options_parse(&o, ARRAY_SIZE(good), good, &why));
    assert_int_equal(o.threads, 2);
    assert_int_equal(o.n_cases, 1);
    assert_true(o.json);
    options_fini(&o);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(options_parse(&o, 4, bad[i], &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), words[i]));
        options_fini(&o);
    }
    assert_int_equal(options_parse(&o, 1, good, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "--model"));
    options_fini(&o);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_step_of_one_row),
        cmocka_unit_test(decode_step_reads_weights_once_and_every_context),
        cmocka_unit_test(prefill_counts_the_causal_triangle_and_one_row_of_logits),
        cmocka_unit_test(chunks_count_as_much_attention_as_the_whole),
        cmocka_unit_test(quantized_weights_count_with_their_scales),
        cmocka_unit_test(weight_bytes_are_those_of_the_packed_weight),
        cmocka_unit_test(floor_of_decode_is_reading),
        cmocka_unit_test(floor_of_prefill_is_arithmetic_of_each_type),
        cmocka_unit_test(floor_of_a_short_last_chunk_is_reading_again),
        cmocka_unit_test(shared_context_is_read_once),
        cmocka_unit_test(rate_is_the_fastest_that_the_kernels_can_use),
        cmocka_unit_test(nothing_measured_gives_no_floor),
        cmocka_unit_test(median_of_limits_is_void_when_most_are),
        cmocka_unit_test(a_case_parses_back_from_its_name),
        cmocka_unit_test(options_name_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
