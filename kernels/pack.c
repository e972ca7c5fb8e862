/* pack.c - the places of weights in both layouts, and the scalar conversions between dtypes. */
#include "kernels/pack.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "kernels/quantize.h"

/* Elements of K copied for all rows of a panel before the next ones: the lines being written
 * (BLOCK_K * 64 or 128 bytes) then stay in the first-level cache until they are full. */
#define BLOCK_K 128
/* WEIGHT_ROWS: rows are padded to a multiple of every group size and of the kernels' tiles. */
#define ROW_ALIGN 128
/* WEIGHT_ROWS: the scales begin at a multiple of this. */
#define SCALES_ALIGN 256

static float f32_from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint32_t bits_from_f32(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static uint16_t load_u16(const void *base, size_t i)
{
    uint16_t h;

    memcpy(&h, (const char *)base + 2 * i, sizeof(h));
    return h;
}

static void put_u16(unsigned char *p, uint16_t h)
{
    memcpy(p, &h, sizeof(h));
}

static float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;

    if (mag >= 0x7c00) /* inf, or NaN made quiet */
        return f32_from_bits(sign | 0x7f800000u | mag << 13 | (mag > 0x7c00 ? 0x400000u : 0));
    /* Exact: the 15 bits become exponent and mantissa of a float that is 2^112 too small. */
    return f32_from_bits(sign | bits_from_f32(f32_from_bits(mag << 13) * 0x1p112f));
}

static uint16_t f16_from_f32(float f)
{
    uint32_t u = bits_from_f32(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    uint32_t mag = u & 0x7fffffffu;

    if (mag > 0x7f800000u)
        return sign | 0x7e00u;
    if (mag >= 0x477ff000u) /* 65520 and above round to inf */
        return sign | 0x7c00u;
    if (mag < 0x38800000u) {
        /* Below 2^-14 the result is a multiple of 2^-24. Adding 0.5, whose last bit is worth 2^-24,
         * makes the addition round to nearest even. */
        return sign | (uint16_t)(bits_from_f32(f32_from_bits(mag) + 0.5f) - 0x3f000000u);
    }
    mag += 0xfffu + (mag >> 13 & 1);
    return sign | (uint16_t)((mag - 0x38000000u) >> 13);
}

static uint16_t bf16_from_f32(float f)
{
    uint32_t u = bits_from_f32(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float dtype_load(enum dtype t, const void *base, size_t i)
{
    float f;

    switch (t) {
    case DTYPE_F16: return f32_from_f16(load_u16(base, i));
    case DTYPE_BF16: return f32_from_bits((uint32_t)load_u16(base, i) << 16);
    default: memcpy(&f, (const char *)base + 4 * i, sizeof(f)); return f;
    }
}

void dtype_store(enum dtype t, void *base, size_t i, float v)
{
    uint16_t h;

    if (t == DTYPE_F32) {
        memcpy((char *)base + 4 * i, &v, sizeof(v));
        return;
    }
    h = t == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
    memcpy((char *)base + 2 * i, &h, sizeof(h));
}

/* The types are constants where this is called, so that the loop has no branch on them. */
static inline __attribute__((always_inline)) void convert(enum dtype to, char *dst, enum dtype from,
                                                          const char *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f;

        if (from == DTYPE_F32)
            memcpy(&f, src + 4 * i, 4);
        else
            f = from == DTYPE_F16 ? f32_from_f16(load_u16(src, i))
                                  : f32_from_bits((uint32_t)load_u16(src, i) << 16);
        if (to == DTYPE_F32) {
            memcpy(dst + 4 * i, &f, 4);
        } else {
            uint16_t h = to == DTYPE_F16 ? f16_from_f32(f) : bf16_from_f32(f);

            memcpy(dst + 2 * i, &h, 2);
        }
    }
}

void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, size_t n)
{
    if (to == from)
        memcpy(dst, src, n * dtype_bytes(to));
    else if (to == DTYPE_F32 && from == DTYPE_BF16)
        convert(DTYPE_F32, dst, DTYPE_BF16, src, n);
    else if (to == DTYPE_F32)
        convert(DTYPE_F32, dst, DTYPE_F16, src, n);
    else if (to == DTYPE_BF16 && from == DTYPE_F32)
        convert(DTYPE_BF16, dst, DTYPE_F32, src, n);
    else if (to == DTYPE_BF16)
        convert(DTYPE_BF16, dst, DTYPE_F16, src, n);
    else if (from == DTYPE_F32)
        convert(DTYPE_F16, dst, DTYPE_F32, src, n);
    else
        convert(DTYPE_F16, dst, DTYPE_BF16, src, n);
}

size_t pack_group_bytes(enum dtype t, uint32_t n_k)
{
    size_t per_quad = 32 / dtype_bits(t); /* elements in 4 bytes */

    return pack_head_bytes(t) + PANEL_COLS * ((n_k + per_quad - 1) / per_quad * 4);
}

size_t pack_panel_bytes(enum dtype t, uint32_t k, uint32_t group)
{
    size_t k_stored = t == DTYPE_BF16 ? ((size_t)k + 1) / 2 * 2 : k;

    if (t < DTYPE_FLOATS)
        return k_stored * PANEL_COLS * dtype_bytes(t);
    return k / group * pack_group_bytes(t, group) +
           (k % group ? pack_group_bytes(t, k % group) : 0);
}

size_t pack_bytes(enum dtype t, uint32_t n, uint32_t k, uint32_t group)
{
    return ((size_t)n + PANEL_COLS - 1) / PANEL_COLS * pack_panel_bytes(t, k, group);
}

uint32_t pack_row_stride(uint32_t k)
{
    return (k + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

/* WEIGHT_ROWS: bytes of one group's scale and offset. */
static size_t group_head_bytes(enum dtype t)
{
    return pack_head_bytes(t) / PANEL_COLS;
}

/* WEIGHT_ROWS: bytes of one row's elements; and of its scales and offsets. */
static size_t row_bytes(const struct weight *w)
{
    return w->dtype < DTYPE_FLOATS ? w->stride * dtype_bytes(w->dtype)
                                   : w->stride / 8 * dtype_bits(w->dtype);
}

static size_t row_scale_bytes(const struct weight *w)
{
    return w->dtype < DTYPE_FLOATS ? 0 : w->stride / w->group * group_head_bytes(w->dtype);
}

/* WEIGHT_ROWS: offset of the scales. */
static size_t scales_offset(const struct weight *w)
{
    return (w->n * row_bytes(w) + SCALES_ALIGN - 1) / SCALES_ALIGN * SCALES_ALIGN;
}

size_t pack_weight_bytes(const struct weight *w)
{
    if (w->layout == WEIGHT_PANELS)
        return pack_bytes(w->dtype, w->n, w->k, w->group);
    if (w->dtype < DTYPE_FLOATS)
        return w->n * row_bytes(w);
    return scales_offset(w) + w->n * row_scale_bytes(w);
}

uint32_t pack_row_ranges(const struct weight *w, uint32_t n0, uint32_t n_rows,
                         struct pack_range ranges[2])
{
    ASSERT(w->layout == WEIGHT_ROWS);
    ASSERT(n_rows <= w->n && n0 <= w->n - n_rows);
    ranges[0] = (struct pack_range){n0 * row_bytes(w), n_rows * row_bytes(w)};
    if (w->dtype < DTYPE_FLOATS)
        return 1;
    ranges[1] = (struct pack_range){scales_offset(w) + n0 * row_scale_bytes(w),
                                    n_rows * row_scale_bytes(w)};
    return 2;
}

/* Copy src[0..n), elements k0 .. of one output, to column `col` of a panel of 4-byte elements. */
static void put_f32(unsigned char *panel, uint32_t col, uint32_t k0, const char *src, uint32_t n)
{
    unsigned char *dst = panel + ((size_t)k0 * PANEL_COLS + col) * 4;

    for (uint32_t k = 0; k < n; k++)
        memcpy(dst + (size_t)k * PANEL_COLS * 4, src + 4 * k, 4);
}

static void put_f16(unsigned char *panel, uint32_t col, uint32_t k0, const char *src, uint32_t n)
{
    unsigned char *dst = panel + ((size_t)k0 * PANEL_COLS + col) * 2;

    for (uint32_t k = 0; k < n; k++)
        memcpy(dst + (size_t)k * PANEL_COLS * 2, src + 2 * k, 2);
}

/* put_f16() for pairs; k0 is even. */
static void put_bf16(unsigned char *panel, uint32_t col, uint32_t k0, const char *src, uint32_t n)
{
    unsigned char *dst = panel + ((size_t)(k0 / 2) * PANEL_COLS + col) * 4;
    uint32_t k = 0;

    for (; k + 2 <= n; k += 2, dst += PANEL_COLS * 4)
        memcpy(dst, src + 2 * k, 4);
    if (k < n)
        memcpy(dst, src + 2 * k, 2);
}

static void pack_panel_rows(const struct weight *w, uint32_t n0, const void *src, uint32_t n_rows)
{
    size_t es = dtype_bytes(w->dtype);
    size_t panel_bytes = pack_panel_bytes(w->dtype, w->k, 0);
    uint32_t end;

    for (uint32_t first = n0; first < n0 + n_rows; first = end) { /* the rows of one panel at a
                                                                     time */
        unsigned char *panel = (unsigned char *)w->data + first / PANEL_COLS * panel_bytes;

        end = (first / PANEL_COLS + 1) * PANEL_COLS;
        end = end < n0 + n_rows ? end : n0 + n_rows;
        for (uint32_t k0 = 0; k0 < w->k; k0 += BLOCK_K) {
            uint32_t len = w->k - k0 < BLOCK_K ? w->k - k0 : BLOCK_K;

            for (uint32_t n = first; n < end; n++) {
                const char *row = (const char *)src + ((size_t)(n - n0) * w->k + k0) * es;

                if (w->dtype == DTYPE_F32)
                    put_f32(panel, n % PANEL_COLS, k0, row, len);
                else if (w->dtype == DTYPE_F16)
                    put_f16(panel, n % PANEL_COLS, k0, row, len);
                else
                    put_bf16(panel, n % PANEL_COLS, k0, row, len);
            }
        }
    }
}

void pack_rows(const struct weight *w, uint32_t n0, const void *src, uint32_t n_rows)
{
    size_t src_bytes = w->k * dtype_bytes(w->dtype);

    ASSERT(w->dtype < DTYPE_FLOATS);
    ASSERT(n_rows <= w->n && n0 <= w->n - n_rows);
    if (w->layout == WEIGHT_PANELS) {
        pack_panel_rows(w, n0, src, n_rows);
        return;
    }
    ASSERT(w->stride >= w->k);
    for (uint32_t n = 0; n < n_rows; n++)
        memcpy((char *)w->data + ((size_t)n0 + n) * row_bytes(w), (const char *)src + n * src_bytes,
               src_bytes);
}

struct pack_group pack_group_of(const struct weight *w, uint32_t n, uint32_t k)
{
    unsigned char *data = (unsigned char *)w->data;
    uint32_t group = k / w->group;

    if (w->layout == WEIGHT_ROWS) {
        uint32_t group_words = w->group / 32 * dtype_bits(w->dtype);
        size_t head = group_head_bytes(w->dtype);
        size_t at = (size_t)pack_word_place(w->dtype, group * group_words) * 4;

        ASSERT(w->stride == pack_row_stride(w->k));
        return (struct pack_group){.scale = data + scales_offset(w) + n * row_scale_bytes(w) +
                                            group * head,
                                   .offset_at = sizeof(uint16_t),
                                   .scale_step = row_scale_bytes(w),
                                   .quad = data + n * row_bytes(w) + at,
                                   .quad_step = 4,
                                   .row_step = row_bytes(w),
                                   .mixed = true,
                                   .dtype = w->dtype};
    }
    size_t scale_bytes = w->dtype == DTYPE_F8 ? sizeof(float) : sizeof(uint16_t);

    data += n / PANEL_COLS * pack_panel_bytes(w->dtype, w->k, w->group) +
            group * pack_group_bytes(w->dtype, w->group);
    n %= PANEL_COLS;
    return (struct pack_group){.scale = data + n * scale_bytes,
                               .offset_at = PANEL_COLS * sizeof(uint16_t),
                               .scale_step = scale_bytes,
                               .quad = data + pack_head_bytes(w->dtype) + n * (size_t)4,
                               .quad_step = PANEL_COLS * 4,
                               .row_step = 4};
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof(u));
    return u;
}

/* Put the codes of four bytes at their place. */
static inline void put_quad(const struct weight *w, unsigned char *quad, const uint8_t *codes)
{
    uint32_t word = load_u32(codes);

    if (w->dtype == DTYPE_A4) {
        word = (word & 0x0f0f0f0fu) | (load_u32(codes + 4) & 0x0f0f0f0fu) << 4;
        if (w->layout == WEIGHT_ROWS)
            word = pack_row_order_i4(word);
    }
    memcpy(quad, &word, sizeof(word));
}

/* Put n codes of one group and output at their places; bytes behind them stay 0. */
static void put_codes(const struct weight *w, const struct pack_group *g, const uint8_t *codes,
                      uint32_t n)
{
    uint32_t per_quad = 32 / dtype_bits(w->dtype), n_whole = n / per_quad;
    uint8_t few[8] = {0};

    for (uint32_t i = 0; i < n_whole; i++)
        put_quad(w, g->quad + pack_quad_offset(g, i), codes + (size_t)i * per_quad);
    if (n_whole * per_quad < n) {
        memcpy(few, codes + (size_t)n_whole * per_quad, n - n_whole * per_quad);
        put_quad(w, g->quad + pack_quad_offset(g, n_whole), few);
    }
}

/* One group after the other for all rows of a panel, so that the lines being written stay in the
 * first-level cache until they are full. */
void pack_coded_rows(const struct weight *w, uint32_t n0, const uint8_t *codes, const float *scales,
                     const float *offsets, uint32_t code_group, uint32_t n_rows)
{
    bool affine = dtype_is_affine(w->dtype);
    uint32_t n_groups, end;

    ASSERT(n_rows <= w->n && n0 <= w->n - n_rows && (affine || w->dtype == DTYPE_F8));
    ASSERT((w->group == 32 || w->group == 128) && code_group && code_group % w->group == 0);
    n_groups = (w->k - 1) / code_group + 1;
    for (uint32_t first = n0; first < n0 + n_rows; first = end) {
        end = (first / PANEL_COLS + 1) * PANEL_COLS;
        end = end < n0 + n_rows ? end : n0 + n_rows;
        for (uint32_t k = 0; k < w->k; k += w->group) {
            struct pack_group g = pack_group_of(w, first, k);
            uint32_t n_k = w->k - k < w->group ? w->k - k : w->group;

            for (uint32_t n = first; n < end; n++) {
                size_t row = n - n0, from = row * n_groups + k / code_group;

                if (affine) {
                    put_u16(g.scale, f16_from_f32(scales[from]));
                    put_u16(g.scale + g.offset_at, f16_from_f32(offsets[from]));
                } else {
                    memcpy(g.scale, &scales[from], sizeof(float));
                }
                put_codes(w, &g, codes + row * w->k + k, n_k);
                g.scale += g.scale_step;
                g.quad += g.row_step;
            }
        }
    }
}

float pack_scale_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(w->dtype >= DTYPE_FLOATS && n < w->n && k < w->k);
    return dtype_load(dtype_is_affine(w->dtype) ? DTYPE_F16
                      : w->dtype == DTYPE_F8    ? DTYPE_F32
                                                : DTYPE_BF16,
                      pack_group_of(w, n, k).scale, 0);
}

float pack_offset_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(w->dtype >= DTYPE_FLOATS && n < w->n && k < w->k);
    if (!dtype_is_affine(w->dtype))
        return 0;
    struct pack_group g = pack_group_of(w, n, k);
    return dtype_load(DTYPE_F16, g.scale + g.offset_at, 0);
}

int pack_int_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(w->dtype >= DTYPE_FLOATS && n < w->n && k < w->k);
    struct pack_group g = pack_group_of(w, n, k);
    uint32_t i = k % w->group;
    int zero = w->dtype == DTYPE_I8 ? 128 : w->dtype == DTYPE_I4 ? 8 : 0;
    unsigned half; /* index of the half-byte in the four bytes of 4-bit elements */

    if (dtype_bits(w->dtype) == 8)
        return g.quad[pack_quad_offset(&g, i / 4) + i % 4] - zero;
    half = w->layout == WEIGHT_ROWS ? i % 8 / 2 + 4 * (i % 2) : 2 * (i % 4) + i % 8 / 4;
    return (g.quad[pack_quad_offset(&g, i / 8) + half / 2] >> 4 * (half % 2) & 15) - zero;
}

float pack_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(n < w->n && k < w->k);
    if (dtype_is_affine(w->dtype)) /* the product of a code and a scale of 11 bits is exact */
        return (float)pack_int_at(w, n, k) * pack_scale_at(w, n, k) + pack_offset_at(w, n, k);
    if (w->dtype == DTYPE_F8)
        return kv_unrounded(DTYPE_F8, (unsigned char)pack_int_at(w, n, k)) * pack_scale_at(w, n, k);
    if (w->dtype >= DTYPE_FLOATS)
        return (float)pack_int_at(w, n, k) * pack_scale_at(w, n, k);
    if (w->layout == WEIGHT_ROWS)
        return dtype_load(w->dtype, w->data, (size_t)n * w->stride + k);

    const unsigned char *panel =
        (const unsigned char *)w->data + n / PANEL_COLS * pack_panel_bytes(w->dtype, w->k, 0);
    size_t col = n % PANEL_COLS;

    if (w->dtype == DTYPE_BF16)
        return dtype_load(DTYPE_BF16, panel, ((size_t)(k / 2) * PANEL_COLS + col) * 2 + k % 2);
    return dtype_load(w->dtype, panel, (size_t)k * PANEL_COLS + col);
}
