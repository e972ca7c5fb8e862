#include "engine/model/quantized_codec.h"

#include <math.h>
#include <string.h>

#include "kernels/pack.h"

/* A tile of codes lies in the first-level cache: AWQ stores neighbours of a row far apart. */
#define TILE_ROWS 64
#define TILE_COLS 128 /* a multiple of the codes in a word */

/* Where AWQ puts the elements of a word: element e is nibble awq_nibble[e]. */
static const uint8_t awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

int32_t quantized_i32(const struct tensor *t, uint64_t i)
{
    int32_t v;

    memcpy(&v, (const unsigned char *)t->data + i * sizeof v, sizeof v);
    return v;
}

static uint32_t word(const struct tensor *t, uint64_t i)
{
    return (uint32_t)quantized_i32(t, i);
}

static uint32_t field(uint32_t packed, uint64_t i, uint32_t bits)
{
    return packed >> (i * bits) & ((1u << bits) - 1);
}

float quantized_e4m3(uint8_t x)
{
    int exponent = x >> 3 & 15, mantissa = x & 7;
    float magnitude =
        exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);

    if (exponent == 15 && mantissa == 7)
        magnitude = NAN;
    return x & 0x80 ? -magnitude : magnitude;
}

float quantized_e5m2(uint8_t x)
{
    uint16_t half = (uint16_t)(x << 8);

    return dtype_load(DTYPE_F16, &half, 0);
}

/* --- scales and zero points --- */

static uint64_t scale_index(const struct quantized_weight *w, uint64_t row, uint64_t group)
{
    return row / w->block_rows * w->scale_per_row + group * w->scale_per_group;
}

float quantized_scale(const struct quantized_weight *w, uint64_t row, uint64_t group)
{
    unsigned char element[4];

    if (!w->scales)
        return 1;
    size_t size = dtype_bytes(w->scales->dtype);
    memcpy(element, (const unsigned char *)w->scales->data + scale_index(w, row, group) * size,
           size);
    return dtype_load(w->scales->dtype, element, 0);
}

static int32_t zero_of(const struct quantized_weight *w, uint64_t row, uint64_t group)
{
    uint32_t per = 32 / w->bits;

    switch (w->zeros_as) {
    case ZEROS_FIXED: return w->zero;
    case ZEROS_ALONG_N:
        return (int32_t)field(word(w->zeros, group * (w->n / per) + row / per) + w->zeros_less,
                              row % per, w->bits);
    case ZEROS_AWQ:
        return (int32_t)field(word(w->zeros, group * (w->n / 8) + row / 8), awq_nibble[row % 8], 4);
    case ZEROS_COLUMNS:
        return (int32_t)field(word(w->zeros, row / per * w->n_groups + group), row % per, w->bits);
    case ZEROS_I8: return ((const int8_t *)w->zeros->data)[scale_index(w, row, group)] + w->zero;
    }
    return 0;
}

static uint64_t group_of(const struct quantized_weight *w, uint64_t col)
{
    return w->g_idx ? (uint64_t)quantized_i32(w->g_idx, col) : col / w->block_cols;
}

/* --- codes --- */

/* Part of a weight: rows [row, row + n_rows), columns [col, col + n_cols); col is a multiple of
 * TILE_COLS. Row r of the codes begins at out + r * stride. */
struct tile {
    uint64_t row, col;
    uint32_t n_rows, n_cols;
    uint8_t *out;
    size_t stride;
};

static void unpack_along_k(const struct quantized_weight *w, const struct tile *t)
{
    uint32_t per = 32 / w->bits;

    for (uint32_t c = 0; c < t->n_cols; c += per) /* K is a multiple of `per` */
        for (uint32_t r = 0; r < t->n_rows; r++) {
            uint32_t packed = word(w->codes, (t->col + c) / per * w->n + t->row + r);
            for (uint32_t i = 0; i < per; i++)
                t->out[r * t->stride + c + i] = (uint8_t)field(packed, i, w->bits);
        }
}

static void unpack_awq(const struct quantized_weight *w, const struct tile *t)
{
    for (uint32_t c = 0; c < t->n_cols; c++)
        for (uint32_t r = 0; r < t->n_rows; r++) {
            uint64_t row = t->row + r;
            uint32_t packed = word(w->codes, (t->col + c) * (w->n / 8) + row / 8);
            t->out[r * t->stride + c] = (uint8_t)field(packed, awq_nibble[row % 8], 4);
        }
}

static void unpack_rows(const struct quantized_weight *w, const struct tile *t)
{
    uint32_t per = 32 / w->bits;
    uint64_t n_words = (w->k + per - 1) / per, first = t->col / per;

    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t c = 0; c < t->n_cols; c += per) {
            uint32_t packed = word(w->codes, (t->row + r) * n_words + first + c / per);
            for (uint32_t i = 0; i < per && c + i < t->n_cols; i++) /* K may end within a word */
                t->out[r * t->stride + c + i] = (uint8_t)field(packed, i, w->bits);
        }
}

/* Codes of signed numbers are 128 too large, as the zero point is. */
static void unpack_bytes(const struct quantized_weight *w, const struct tile *t)
{
    uint8_t flip = w->codes_as == CODES_I8 ? 0x80 : 0;

    for (uint32_t r = 0; r < t->n_rows; r++) {
        const uint8_t *from = (const uint8_t *)w->codes->data + (t->row + r) * w->k + t->col;
        for (uint32_t c = 0; c < t->n_cols; c++)
            t->out[r * t->stride + c] = from[c] ^ flip;
    }
}

static void unpack(const struct quantized_weight *w, const struct tile *t)
{
    if (w->codes_as == CODES_ALONG_K_WORDS)
        unpack_along_k(w, t);
    else if (w->codes_as == CODES_AWQ)
        unpack_awq(w, t);
    else if (w->codes_as == CODES_ROWS)
        unpack_rows(w, t);
    else
        unpack_bytes(w, t);
}

static uint32_t at_most(uint64_t n, uint32_t max)
{
    return n < max ? (uint32_t)n : max;
}

/* --- rows --- */

static const struct quantized_weight *weight_of(const struct tensor *t)
{
    return (const struct quantized_weight *)(uintptr_t)t->own[0];
}

/* The number of columns from `col` on, at most n, that have one group, and the group. */
static uint32_t find_run(const struct quantized_weight *w, uint64_t col, uint32_t n,
                         uint64_t *group)
{
    uint32_t run = 1;

    *group = group_of(w, col);
    if (!w->g_idx)
        return at_most(w->block_cols - col % w->block_cols, n);
    while (run < n && group_of(w, col + run) == *group)
        run++;
    return run;
}

static void scale_numbers(const uint8_t *codes, uint32_t n, int32_t zero, float scale, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((int32_t)codes[i] - zero) * scale;
}

static void scale_floats(const uint8_t *codes, uint32_t n, const float *values, float scale,
                         float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = values[codes[i]] * scale;
}

/* Compute the elements of a tile; values: of all F8 numbers, NULL for whole numbers. */
static void scale_tile(const struct quantized_weight *w, const float *values, const struct tile *t,
                       float *out)
{
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t c = 0, n; c < t->n_cols; c += n) {
            const uint8_t *codes = t->out + r * t->stride + c;
            uint64_t group;
            n = find_run(w, t->col + c, t->n_cols - c, &group);
            float scale = quantized_scale(w, t->row + r, group);
            if (values)
                scale_floats(codes, n, values, scale, out + r * w->k + c);
            else
                scale_numbers(codes, n, zero_of(w, t->row + r, group), scale, out + r * w->k + c);
        }
}

static void read_rows(const struct tensor *tensor, uint64_t row, uint32_t n_rows, float *out)
{
    const struct quantized_weight *w = weight_of(tensor);
    uint8_t codes[TILE_ROWS * TILE_COLS];
    bool floats = w->codes_as == CODES_E4M3 || w->codes_as == CODES_E5M2;
    float values[256];

    for (unsigned i = 0; floats && i < 256; i++)
        values[i] =
            w->codes_as == CODES_E4M3 ? quantized_e4m3((uint8_t)i) : quantized_e5m2((uint8_t)i);
    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS)
        for (uint64_t col = 0; col < w->k; col += TILE_COLS) {
            struct tile t = {.row = row + r,
                             .col = col,
                             .n_rows = at_most(n_rows - r, TILE_ROWS),
                             .n_cols = at_most(w->k - col, TILE_COLS),
                             .out = codes,
                             .stride = TILE_COLS};
            unpack(w, &t);
            scale_tile(w, floats ? values : NULL, &t, out + r * w->k + col);
        }
}

static bool has_nan_e4m3(const uint8_t *codes, uint64_t n)
{
    uint32_t n_nan = 0;

    for (uint64_t i = 0; i < n; i++)
        n_nan += (codes[i] & 0x7f) == 0x7f;
    return n_nan > 0;
}

static void read_codes(const struct tensor *tensor, uint64_t row, uint32_t n_rows, uint8_t *codes,
                       float *scales, float *offsets)
{
    const struct quantized_weight *w = weight_of(tensor);
    uint64_t n_groups = (w->k + tensor->code_group - 1) / tensor->code_group;

    for (uint32_t r = 0; r < n_rows; r += TILE_ROWS)
        for (uint64_t col = 0; col < w->k; col += TILE_COLS) {
            struct tile t = {.row = row + r,
                             .col = col,
                             .n_rows = at_most(n_rows - r, TILE_ROWS),
                             .n_cols = at_most(w->k - col, TILE_COLS),
                             .out = codes + r * w->k + col,
                             .stride = w->k};
            unpack(w, &t);
        }
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint64_t g = 0; g < n_groups; g++) {
            uint64_t group = group_of(w, g * tensor->code_group);
            float scale = quantized_scale(w, row + r, group);
            uint64_t col = g * tensor->code_group;
            bool is_nan =
                tensor->code_is_f8 &&
                has_nan_e4m3(codes + r * w->k + col, at_most(w->k - col, tensor->code_group));
            scales[r * n_groups + g] = is_nan ? NAN : scale;
            offsets[r * n_groups + g] =
                tensor->code_is_f8 ? 0 : -(float)zero_of(w, row + r, group) * scale;
        }
}

const struct tensor_codec *quantized_codec(const struct quantized_weight *w)
{
    static const struct tensor_codec int4 = {"int4", read_rows, read_codes};
    static const struct tensor_codec int8 = {"int8", read_rows, read_codes};
    static const struct tensor_codec e4m3 = {"F8_E4M3", read_rows, read_codes};
    static const struct tensor_codec e5m2 = {"F8_E5M2", read_rows, NULL};

    if (w->codes_as == CODES_E4M3)
        return &e4m3;
    if (w->codes_as == CODES_E5M2)
        return &e5m2;
    return w->bits == 4 ? &int4 : &int8;
}
