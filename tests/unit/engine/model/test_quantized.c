/* Quantized checkpoints: codecs decode what the formats define, rows and codes agree, and damaged
 * or hostile files get errors that name the part. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/model/checkpoint.h"
#include "engine/model/quantized_codec.h"
#include "tests/unit/fault.h"

#define RANDOM UINT64_MAX
#define WORD(word) ((uint64_t)(word) << 32 | (uint64_t)(word))
#define PAIR(low, high) ((uint64_t)(high) << 32 | (uint64_t)(low))
#define ONE_F16 WORD(0x3c003c00)
#define N_PARTS_MAX 8

/* A tensor of a file; its bytes repeat the 8 bytes of `fill`, little-endian, or are random. */
struct part {
    const char *name, *dtype, *shape;
    uint32_t n_bytes;
    uint64_t fill;
};

static char dir[64];

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void fill(unsigned char *out, const struct part *p)
{
    for (uint32_t i = 0; i < p->n_bytes; i++) {
        uint64_t fill = p->fill == RANDOM ? rng_u32(7, i / 4) : p->fill;
        out[i] = (unsigned char)(fill >> (p->fill == RANDOM ? 8 * (i % 4) : 8 * (i % 8)));
    }
}

/* Write a checkpoint whose quantization_config has these fields; NULL: has none. */
static void write_checkpoint(const char *fields, const struct part *parts, size_t n)
{
    static unsigned char file[1 << 16];
    char config[1024], header[4096] = "{";
    size_t len = 1, begin = 0;
    uint64_t n_header;

    snprintf(config, sizeof config, fields ? "{\"quantization_config\":{%s}}" : "{}", fields);
    write_file("config.json", config, strlen(config));
    for (size_t i = 0; i < n && parts[i].name; i++) {
        len += (size_t)snprintf(header + len, sizeof header - len,
                                "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
                                "\"data_offsets\":[%zu,%zu]}",
                                i ? "," : "", parts[i].name, parts[i].dtype, parts[i].shape, begin,
                                begin + parts[i].n_bytes);
        begin += parts[i].n_bytes;
    }
    n_header = len + 1;
    header[len] = '}';
    memcpy(file, &n_header, 8);
    memcpy(file + 8, header, n_header);
    size_t at = 8 + n_header;
    for (size_t i = 0; i < n && parts[i].name; at += parts[i].n_bytes, i++)
        fill(file + at, &parts[i]);
    write_file("model.safetensors", file, at);
}

static struct checkpoint *open_good(const char *fields, const struct part *parts, size_t n)
{
    struct checkpoint *c;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    write_checkpoint(fields, parts, n);
    if (checkpoint_open(&c, dir, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return c;
}

static void refuse(const char *fields, const struct part *parts, size_t n, enum status want,
                   const char *words)
{
    struct checkpoint *c;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    write_checkpoint(fields, parts, n);
    enum status s = checkpoint_open(&c, dir, &why);
    if (s != want || !strstr(buf_str(&why), words))
        fail_msg("%s, \"%s\" instead of %s, \"%s\"", status_name(s), buf_str(&why),
                 status_name(want), words);
    assert_null(c);
    buf_fini(&why);
}

/* --- values --- */

static void floats_of_8_bits_are_those_of_their_definition(void **state)
{
    (void)state;
    for (int sign = 0; sign < 2; sign++)
        for (int e = 0; e < 16; e++)
            for (int m = 0; m < 8; m++) {
                double want = e ? (1 + m / 8.0) * pow(2, e - 7) : m / 8.0 * pow(2, -6);
                float got = quantized_e4m3((uint8_t)(sign << 7 | e << 3 | m));
                if (e == 15 && m == 7)
                    assert_true(isnan(got));
                else
                    assert_true((double)got == (sign ? -want : want));
            }
    for (int e = 0; e < 32; e++)
        for (int m = 0; m < 4; m++) {
            double want = e ? (1 + m / 4.0) * pow(2, e - 15) : m / 4.0 * pow(2, -14);
            float got = quantized_e5m2((uint8_t)(e << 2 | m));
            if (e == 31)
                assert_true(m ? isnan(got) : isinf(got));
            else
                assert_true((double)got == want);
            assert_int_equal(signbit(quantized_e5m2((uint8_t)(0x80 | e << 2 | m))) != 0, 1);
        }
}

#define GPTQ(rest) "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1" rest
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-1,\"version\":\"GEMM\""

static void expect_row(const char *fields, const struct part *parts, uint64_t row,
                       const float want[8])
{
    struct checkpoint *c = open_good(fields, parts, N_PARTS_MAX);
    const struct tensor *t = checkpoint_find(c, "model.a.weight");
    float got[8];

    assert_non_null(t);
    assert_int_equal(t->shape[0], 8);
    assert_int_equal(t->shape[1], 8);
    t->codec->read_rows(t, row, 1, got);
    for (int i = 0; i < 8; i++)
        if (got[i] != want[i])
            fail_msg("column %d is %g instead of %g", i, (double)got[i], (double)want[i]);
    checkpoint_close(c);
}

/* The name of the tensors lacks "model.", as in files of a model without output layer. */
static void words_are_unpacked_in_the_order_of_their_format(void **state)
{
    struct part gptq[N_PARTS_MAX] = {{"a.qweight", "I32", "1,8", 32, WORD(0x76543210)},
                                     {"a.qzeros", "I32", "1,1", 4, WORD(0x76543217)},
                                     {"a.scales", "F16", "1,8", 16, ONE_F16}};
    struct part awq[N_PARTS_MAX] = {{"a.qweight", "I32", "8,1", 32, WORD(0x75316420)},
                                    {"a.qzeros", "I32", "1,1", 4, WORD(0x75316420)},
                                    {"a.scales", "F16", "1,8", 16, WORD(0x40004000)}};

    (void)state;
    expect_row(GPTQ(""), gptq, 0, (float[]){-8, -7, -6, -5, -4, -3, -2, -1});
    expect_row(GPTQ(""), gptq, 1, (float[]){-2, -1, 0, 1, 2, 3, 4, 5});
    expect_row(GPTQ(",\"checkpoint_format\":\"gptq_v2\""), gptq, 7,
               (float[]){-7, -6, -5, -4, -3, -2, -1, 0});
    for (int row = 0; row < 8; row++) { /* the words have each row's number as code, as zero */
        float code = 2 * (float)row, zero = 2 * (3 - (float)row);
        awq[0].fill = WORD(0x75316420);
        awq[1].fill = 0;
        expect_row(AWQ, awq, (uint64_t)row,
                   (float[]){code, code, code, code, code, code, code, code});
        awq[0].fill = WORD(0x33333333);
        awq[1].fill = WORD(0x75316420);
        expect_row(AWQ, awq, (uint64_t)row,
                   (float[]){zero, zero, zero, zero, zero, zero, zero, zero});
    }
}

/* --- rows and codes --- */

/* Decode all rows in three ways: at once, one by one, and from codes. */
static void check_codes(const struct tensor *t, uint32_t bits, uint32_t group)
{
    uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    float *rows = calloc((size_t)n * k, sizeof *rows), *row = calloc(k, sizeof *row);
    uint8_t *codes = calloc((size_t)n * k, 1);

    assert_true(rows && row && codes);
    t->codec->read_rows(t, 0, n, rows);
    for (uint32_t r = 0; r < n; r++) {
        t->codec->read_rows(t, r, 1, row);
        assert_memory_equal(row, rows + (size_t)r * k, k * sizeof *row);
    }
    assert_int_equal(t->code_bits, bits);
    assert_int_equal(t->code_group, group);
    if (bits) {
        uint32_t n_groups = (k + group - 1) / group;
        float *scales = calloc((size_t)n * n_groups, sizeof *scales);
        float *offsets = calloc((size_t)n * n_groups, sizeof *offsets);
        assert_true(scales && offsets);
        t->codec->read_codes(t, 0, 3, codes, scales, offsets);
        t->codec->read_codes(t, 3, n - 3, codes + (size_t)3 * k, scales + (size_t)3 * n_groups,
                             offsets + (size_t)3 * n_groups);
        for (uint32_t i = 0; i < n * k; i++) {
            uint32_t g = i / k * n_groups + i % k / group;
            double code = t->code_is_f8 ? (double)quantized_e4m3(codes[i]) : codes[i];
            double got = code * (double)scales[g] + (double)offsets[g];
            assert_true(codes[i] < 1u << bits);
            assert_true(fabs(got - (double)rows[i]) <= 1e-4 * fabs((double)scales[g]));
        }
        free(scales);
        free(offsets);
    }
    free(rows);
    free(row);
    free(codes);
}

static void agree(const char *fields, const struct part *parts, uint32_t bits, uint32_t group)
{
    struct checkpoint *c = open_good(fields, parts, N_PARTS_MAX);
    const struct tensor *t = checkpoint_find(c, "model.a.weight");

    assert_non_null(t);
    check_codes(t, bits, group);
    checkpoint_close(c);
}

#define GPTQ_OF(bits, group) "\"quant_method\":\"gptq\",\"bits\":" #bits ",\"group_size\":" #group
#define COMPRESSED(format, weights)                                                                \
    "\"quant_method\":\"compressed-tensors\",\"format\":\"" format                                 \
    "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}}"

static void rows_and_codes_agree(void **state)
{
    (void)state;
    agree(GPTQ_OF(4, 64),
          (struct part[N_PARTS_MAX]){{"a.qweight", "I32", "24,72", 6912, RANDOM},
                                     {"a.qzeros", "I32", "3,9", 108, RANDOM},
                                     {"a.scales", "F16", "3,72", 432, WORD(0x2c003e01)}},
          4, 64);
    agree(GPTQ_OF(8, -1),
          (struct part[N_PARTS_MAX]){{"a.qweight", "I32", "40,12", 1920, RANDOM},
                                     {"a.qzeros", "I32", "1,3", 12, RANDOM},
                                     {"a.scales", "F16", "1,12", 24, WORD(0x2c003e01)}},
          8, 32);
    agree("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128",
          (struct part[N_PARTS_MAX]){{"a.qweight", "I32", "256,9", 9216, RANDOM},
                                     {"a.qzeros", "I32", "2,9", 72, RANDOM},
                                     {"a.scales", "F16", "2,72", 288, WORD(0x2c003e01)}},
          4, 128);
    agree(COMPRESSED("pack-quantized", "\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32,"
                                       "\"symmetric\":false"),
          (struct part[N_PARTS_MAX]){{"a.weight_shape", "I32", "2", 8, PAIR(10, 67)},
                                     {"a.weight_packed", "I32", "10,9", 360, RANDOM},
                                     {"a.weight_scale", "BF16", "10,3", 60, WORD(0x3f803dcd)},
                                     {"a.weight_zero_point", "I32", "2,3", 24, RANDOM}},
          4, 32);
    agree(COMPRESSED("pack-quantized", "\"num_bits\":8,\"strategy\":\"channel\""),
          (struct part[N_PARTS_MAX]){{"a.weight_shape", "I32", "2", 8, PAIR(5, 66)},
                                     {"a.weight_packed", "I32", "5,17", 340, RANDOM},
                                     {"a.weight_scale", "F32", "5,1", 20, WORD(0x3e000000)}},
          8, 128);
    agree(COMPRESSED("int-quantized", "\"num_bits\":8,\"strategy\":\"tensor\",\"symmetric\":false"),
          (struct part[N_PARTS_MAX]){{"a.weight_scale", "F32", "1", 4, WORD(0x3e000000)},
                                     {"a.weight", "I8", "6,64", 384, RANDOM},
                                     {"a.weight_zero_point", "I8", "1", 1, 5}},
          8, 64);
}

/* The loader may keep codes only where kernels can use them as they are. */
static void codes_are_offered_only_where_they_are_exact(void **state)
{
    struct part p[N_PARTS_MAX] = {{"a.qweight", "I32", "8,8", 256, RANDOM},
                                  {"a.qzeros", "I32", "2,1", 8, RANDOM},
                                  {"a.scales", "F16", "2,8", 32, ONE_F16}};

    (void)state;
    agree(GPTQ_OF(4, 32), p, 4, 32);
    p[2].fill = WORD(0x03ff3c00); /* the largest number below 2^-14 */
    agree(GPTQ_OF(4, 32), p, 0, 0);
    p[2].fill = WORD(0x7bff3c00); /* offsets beyond f16 */
    agree(GPTQ_OF(4, 32), p, 0, 0);
    p[2].fill = ONE_F16;
    p[3] = (struct part){"a.g_idx", "I32", "64", 256, PAIR(0, 1)};
    agree(GPTQ_OF(4, 32), p, 0, 0);
    p[3].fill = 0; /* all columns of the first group */
    agree(GPTQ_OF(4, 32), p, 0, 0);
    agree(GPTQ_OF(4, 16),
          (struct part[N_PARTS_MAX]){{"a.qweight", "I32", "4,8", 128, RANDOM},
                                     {"a.qzeros", "I32", "2,1", 8, RANDOM},
                                     {"a.scales", "F16", "2,8", 32, ONE_F16}},
          0, 0);
}

/* Kernels take F8 numbers with scales of groups of 128; any scales will do. */
static void f8_numbers_are_offered_with_whole_groups(void **state)
{
    struct part p[N_PARTS_MAX] = {{"a.weight_scale", "F32", "", 4, WORD(0x1f800000)},
                                  {"a.weight", "F8_E4M3", "8,32", 256, WORD(0x01c27e08)}};

    (void)state;
    agree("\"quant_method\":\"fp8\"", p, 8, 128);
    p[0] = (struct part){"a.weight_scale", "F32", "8,1", 32, PAIR(0x3f800000, 0x40000000)};
    agree("\"quant_method\":\"fbgemm_fp8\"", p, 8, 128);
    p[0] = (struct part){"a.weight_scale_inv", "F32", "2,2", 16, PAIR(0x3f800000, 0x40000000)};
    p[1] = (struct part){"a.weight", "F8_E4M3", "8,200", 1600, WORD(0x01c27e08)};
    agree("\"quant_method\":\"fp8\",\"weight_block_size\":[4,128]", p, 8, 128);
    p[0] = (struct part){"a.weight_scale_inv", "F32", "2,3", 24, PAIR(0x3f800000, 0x40000000)};
    agree("\"quant_method\":\"fp8\",\"weight_block_size\":[4,96]", p, 0, 0);
    p[0] = (struct part){"a.weight_scale", "F32", "", 4, WORD(0x3f800000)};
    p[1].dtype = "F8_E5M2";
    agree("\"quant_method\":\"fp8\"", p, 0, 0);
}

static void an_f8_nan_makes_its_group_nan(void **state)
{
    struct part p[N_PARTS_MAX] = {{"a.weight_scale", "F32", "", 4, WORD(0x40000000)},
                                  {"a.weight", "F8_E4M3", "1,136", 136, WORD(0x38383838)},
                                  {"b.weight_scale", "F32", "", 4, WORD(0x40000000)},
                                  {"b.weight", "F8_E4M3", "1,136", 136, PAIR(0x38383838, 0xff)}};
    struct checkpoint *c = open_good("\"quant_method\":\"fp8\"", p, N_PARTS_MAX);
    const struct tensor *t = checkpoint_find(c, "model.a.weight");
    float scales[2], offsets[2];
    uint8_t codes[136];

    (void)state;
    t->codec->read_codes(t, 0, 1, codes, scales, offsets);
    assert_true(scales[0] == 2 && scales[1] == 2 && offsets[0] == 0 && offsets[1] == 0);
    t = checkpoint_find(c, "model.b.weight");
    t->codec->read_codes(t, 0, 1, codes, scales, offsets);
    assert_true(isnan(scales[0]) && isnan(scales[1]) && offsets[0] == 0);
    checkpoint_close(c);
}

static void floats_of_8_bits_without_a_scale_are_themselves(void **state)
{
    struct part p[N_PARTS_MAX] = {{"a.weight", "F8_E5M2", "1,8", 8, WORD(0xbc3cc040)}};
    const float want[8] = {2, -2, 1, -1, 2, -2, 1, -1};
    struct checkpoint *c = open_good(NULL, p, N_PARTS_MAX);
    float got[8];

    (void)state;
    const struct tensor *t = checkpoint_find(c, "a.weight");
    assert_non_null(t);
    t->codec->read_rows(t, 0, 1, got);
    assert_memory_equal(got, want, sizeof got);
    checkpoint_close(c);
    p[1] = (struct part){"a.weight_scale", "F8_E5M2", "1,8", 8, RANDOM};
    refuse(NULL, p, N_PARTS_MAX, ERR_INVALID, "a.weight_scale exists, but config.json has no");
    p[0] = (struct part){"a.qweight", "I32", "1,8", 32, RANDOM};
    refuse(NULL, p, N_PARTS_MAX, ERR_INVALID, "a.qweight is quantized, but config.json has no");
}

static void plain_weights_stand_beside_quantized_ones(void **state)
{
    struct part p[N_PARTS_MAX] = {{"model.a.qweight", "I32", "1,8", 32, RANDOM},
                                  {"model.a.qzeros", "I32", "1,1", 4, RANDOM},
                                  {"model.a.scales", "F16", "1,8", 16, ONE_F16},
                                  {"model.a.bias", "F16", "8", 16, ONE_F16},
                                  {"model.b.weight", "F16", "2,4", 16, ONE_F16}};
    struct checkpoint *c = open_good(GPTQ(""), p, N_PARTS_MAX);

    (void)state;
    assert_non_null(checkpoint_find(c, "model.a.weight")->codec);
    assert_null(checkpoint_find(c, "model.a.bias")->codec);
    assert_null(checkpoint_find(c, "model.b.weight")->codec);
    assert_null(checkpoint_find(c, "model.c.weight"));
    checkpoint_close(c);
    p[4].name = "model.a.weight";
    refuse(GPTQ(""), p, N_PARTS_MAX, ERR_INVALID, "model.a.weight stands beside model.a.qweight");
}

/* --- errors --- */

static void other_methods_are_refused_by_name(void **state)
{
    static const struct {
        const char *fields;
        enum status want;
        const char *words;
    } cases[] = {
        {"\"quant_method\":\"hqq\"", ERR_UNSUPPORTED, "quant_method hqq is not supported"},
        {"\"quant_method\":\"mxfp4\"", ERR_UNSUPPORTED, "supported: gptq, awq"},
        {"\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"",
         ERR_UNSUPPORTED, "bitsandbytes (nf4) is not supported"},
        {"\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true", ERR_UNSUPPORTED, "(int8)"},
        {"\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":128", ERR_UNSUPPORTED, "bits 3"},
        {"\"quant_method\":\"gptq\",\"bits\":2,\"group_size\":128", ERR_UNSUPPORTED, "bits 2"},
        {"\"quant_method\":\"gptq\",\"bits\":4", ERR_INVALID, "group_size is missing"},
        {"\"quant_method\":\"gptq\",\"bits\":\"4\"", ERR_INVALID, "bits"},
        {GPTQ(",\"checkpoint_format\":\"marlin\""), ERR_UNSUPPORTED, "checkpoint_format marlin"},
        {GPTQ(",\"dynamic\":{\"+:.*down.*\":{\"bits\":8}}"), ERR_UNSUPPORTED, "+:.*down.*"},
        {"\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemv\"",
         ERR_UNSUPPORTED, "version gemv"},
        {"\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":false",
         ERR_UNSUPPORTED, "zero_point"},
        {"\"quant_method\":\"awq\",\"bits\":8,\"group_size\":64", ERR_UNSUPPORTED, "4 is"},
        {COMPRESSED("marlin-24", ""), ERR_UNSUPPORTED, "format marlin-24"},
        {COMPRESSED("pack-quantized", "\"num_bits\":3"), ERR_UNSUPPORTED, "3 bits of type int"},
        {COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"float\""), ERR_UNSUPPORTED,
         "4 bits of type float"},
        {COMPRESSED("pack-quantized", "\"strategy\":\"tensor_group\""), ERR_UNSUPPORTED,
         "strategy tensor_group"},
        {COMPRESSED("float-quantized", "\"strategy\":\"block\""), ERR_INVALID, "block_structure"},
        {COMPRESSED("dense", "") ",\"transform_config\":{\"config_groups\":{\"u\":{}}}",
         ERR_UNSUPPORTED, "transform_config"},
        {COMPRESSED("dense", "") ",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}",
         ERR_UNSUPPORTED, "sparse-24-bitmask"},
        {"\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]", ERR_INVALID,
         "weight_block_size"},
        {"\"bits\":4", ERR_UNSUPPORTED, "quant_method is missing"},
        {"\"quant_method\":7", ERR_INVALID, "quant_method"},
    };
    struct part none[1] = {{0}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        refuse(cases[i].fields, none, 1, cases[i].want, cases[i].words);
}

/* Replace or (without a name) remove a part of a good checkpoint. */
struct damage {
    uint32_t at;
    struct part part;
    const char *words;
};

static void refuse_each(const char *fields, const struct part *good, const struct damage *cases,
                        size_t n)
{
    struct part parts[N_PARTS_MAX];

    checkpoint_close(open_good(fields, good, N_PARTS_MAX));
    for (size_t i = 0; i < n; i++) {
        memcpy(parts, good, sizeof parts);
        parts[cases[i].at] = cases[i].part;
        if (!cases[i].part.name)
            memmove(parts + cases[i].at, parts + cases[i].at + 1,
                    (N_PARTS_MAX - 1 - cases[i].at) * sizeof *parts);
        refuse(fields, parts, N_PARTS_MAX, ERR_INVALID, cases[i].words);
    }
}

static void a_damaged_part_of_gptq_is_named(void **state)
{
    static const struct part good[N_PARTS_MAX] = {{"a.g_idx", "I32", "64", 256, PAIR(0, 1)},
                                                  {"a.qweight", "I32", "8,8", 256, RANDOM},
                                                  {"a.qzeros", "I32", "2,1", 8, RANDOM},
                                                  {"a.scales", "F16", "2,8", 32, ONE_F16}};
    static const struct damage cases[] = {
        {0, {0}, "a.g_idx is missing"},
        {0, {"a.g_idx", "I32", "64", 256, PAIR(1, 2)}, "a.g_idx has index 2 at 1"},
        {0, {"a.g_idx", "I32", "64", 256, PAIR(1, -1)}, "a.g_idx has index -1"},
        {0, {"a.g_idx", "I32", "63", 252, 0}, "a.g_idx has another shape than [64]"},
        {0, {"a.g_idx", "I64", "64", 512, 0}, "a.g_idx has dtype I64 instead of I32"},
        {1, {"a.qweight", "F32", "8,8", 256, RANDOM}, "a.qweight has dtype F32"},
        {1, {"a.qweight", "I32", "64", 256, RANDOM}, "a.qweight is no matrix"},
        {1, {"a.qweight", "I32", "8,0", 0, RANDOM}, "empty"},
        {1, {"a.qweight", "I32", "8,7", 224, RANDOM}, "7 outputs"},
        {1, {"a.qweight", "I32", "9,8", 288, RANDOM}, "a.scales has another shape than [3, 8]"},
        {2, {0}, "a.qzeros is missing"},
        {2, {"a.qzeros", "I32", "1,2", 8, RANDOM}, "a.qzeros has another shape than [2, 1]"},
        {3, {0}, "a.scales is missing"},
        {3, {"a.scales", "I16", "2,8", 32, ONE_F16}, "a.scales has dtype I16"},
        {3, {"a.scales", "F16", "8,2", 32, ONE_F16}, "a.scales has another shape than [2, 8]"},
        {3, {"a.scales", "F16", "2,8", 32, WORD(0x00003c00)}, "a.scales has the scale 0 at 1"},
        {3, {"a.scales", "F16", "2,8", 32, WORD(0x7e003c00)}, "a.scales has the scale nan at 1"},
        {3, {"a.scales", "F16", "2,8", 32, WORD(0x7c003c00)}, "a.scales has the scale inf at 1"},
    };

    (void)state;
    refuse_each(GPTQ_OF(4, 32) ",\"desc_act\":true", good, cases, ARRAY_SIZE(cases));
}

static void a_damaged_part_of_compressed_tensors_is_named(void **state)
{
    static const struct part good[N_PARTS_MAX] = {
        {"a.weight_shape", "I32", "2", 8, PAIR(8, 64)},
        {"a.weight_packed", "I32", "8,8", 256, RANDOM},
        {"a.weight_scale", "F32", "8,2", 64, WORD(0x3f800000)},
        {"a.weight_zero_point", "I32", "1,2", 8, RANDOM}};
    static const struct damage cases[] = {
        {0, {0}, "a.weight_shape is missing"},
        {0, {"a.weight_shape", "I32", "3", 12, PAIR(8, 64)}, "a.weight_shape is no pair"},
        {0, {"a.weight_shape", "I32", "2", 8, PAIR(9, 64)}, "disagrees with weight_packed"},
        {0, {"a.weight_shape", "I32", "2", 8, PAIR(8, -64)}, "disagrees with weight_packed"},
        {0, {"a.weight_shape", "I32", "2", 8, PAIR(8, 0x7fffffff)}, "disagrees"},
        {0, {"a.weight_shape", "I32", "2", 8, PAIR(8, 56)}, "no scheme"},
        {1, {"a.weight_packed", "I64", "8,8", 512, RANDOM}, "dtype I64"},
        {2, {0}, "a.weight_scale is missing"},
        {2, {"a.weight_scale", "F32", "2,8", 64, WORD(0x3f800000)}, "a.weight_scale has a shape"},
        {2, {"a.weight_scale", "F32", "8,2,1", 64, WORD(0x3f800000)}, "a.weight_scale has a shape"},
        {2, {"a.weight_scale", "F32", "8,2", 64, 0}, "a.weight_scale has the scale 0"},
        {3, {0}, "a.weight_zero_point is missing"},
        {3, {"a.weight_zero_point", "I32", "2,1", 8, 0}, "a.weight_zero_point has another shape"},
        {3, {"a.weight_zero_point", "I8", "8,1", 8, 0}, "a.weight_zero_point has dtype I8"},
    };

    (void)state;
    refuse_each(
        COMPRESSED("pack-quantized", "\"num_bits\":4,\"group_size\":32,\"symmetric\":false"), good,
        cases, ARRAY_SIZE(cases));
}

static void a_damaged_part_of_fp8_is_named(void **state)
{
    static const struct part good[N_PARTS_MAX] = {
        {"a.weight_scale_inv", "F32", "2,3", 24, WORD(0x3f800000)},
        {"a.weight", "F8_E4M3", "5,9", 45, WORD(0x01020304)}};
    static const struct damage cases[] = {
        {0, {0}, "a.weight_scale is missing"},
        {0, {"a.weight_scale_inv", "F32", "3,2", 24, WORD(0x3f800000)}, "has a shape"},
        {0, {"a.weight_scale_inv", "F32", "2,3", 24, WORD(0xff800000)}, "the scale -inf"},
        {1, {"a.weight", "F8_E4M3", "45", 45, 0}, "a.weight is no matrix"},
    };

    (void)state;
    refuse_each("\"quant_method\":\"fp8\",\"weight_block_size\":[4,4]", good, cases,
                ARRAY_SIZE(cases));
}

static void an_allocation_that_fails_ends_the_opening(void **state)
{
    struct part p[N_PARTS_MAX] = {{"a.qweight", "I32", "1,8", 32, RANDOM},
                                  {"a.qzeros", "I32", "1,1", 4, RANDOM},
                                  {"a.scales", "F16", "1,8", 16, ONE_F16}};

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)p;
    skip();
#else
    bool failed = true;
    uint32_t n_refused = 0;
    write_checkpoint(GPTQ(""), p, N_PARTS_MAX);
    for (long n = 1; failed; n++) {
        struct checkpoint *c;
        fail_in = n;
        enum status s = checkpoint_open(&c, dir, NULL);
        failed = fail_in == 0;
        fail_in = 0;
        assert_int_equal(s == OK, c != NULL); /* stdio does without a buffer */
        n_refused += s != OK;
        if (s == OK)
            assert_non_null(checkpoint_find(c, "a.weight")->name);
        checkpoint_close(c);
    }
    assert_true(n_refused >= 9); /* files, tensors, config, weights, name */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_of_8_bits_are_those_of_their_definition),
        cmocka_unit_test(words_are_unpacked_in_the_order_of_their_format),
        cmocka_unit_test(rows_and_codes_agree),
        cmocka_unit_test(codes_are_offered_only_where_they_are_exact),
        cmocka_unit_test(f8_numbers_are_offered_with_whole_groups),
        cmocka_unit_test(an_f8_nan_makes_its_group_nan),
        cmocka_unit_test(floats_of_8_bits_without_a_scale_are_themselves),
        cmocka_unit_test(plain_weights_stand_beside_quantized_ones),
        cmocka_unit_test(other_methods_are_refused_by_name),
        cmocka_unit_test(a_damaged_part_of_gptq_is_named),
        cmocka_unit_test(a_damaged_part_of_compressed_tensors_is_named),
        cmocka_unit_test(a_damaged_part_of_fp8_is_named),
        cmocka_unit_test(an_allocation_that_fails_ends_the_opening),
    };
    strcpy(dir, "/tmp/tarn-quantized-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
    return rc;
}
