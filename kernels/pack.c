/* pack.c - weights into panels, and the scalar conversions between dtypes. */
#include "kernels/pack.h"

#include <string.h>

#include "base/check.h"
#include "kernels/quantize.h"

/* Elements of K copied at once for all rows of a panel: what is written (BLOCK_K * 64 or 128
 * bytes) then stays in the first-level cache until its lines are full. */
#define BLOCK_K 128

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

static float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;

    if (mag >= 0x7c00) /* inf, or NaN made quiet */
        return f32_from_bits(sign | 0x7f800000u | mag << 13 | (mag > 0x7c00 ? 0x400000u : 0));
    /* Exact: the 15 bits land in the exponent and mantissa of a float that is 2^112 too small. */
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
        /* Below 2^-14 the result is a multiple of 2^-24: adding 0.5, whose last bit is worth
         * 2^-24, lets the adder round to nearest even. */
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
    case DTYPE_F16:
        return f32_from_f16(load_u16(base, i));
    case DTYPE_BF16:
        return f32_from_bits((uint32_t)load_u16(base, i) << 16);
    default:
        memcpy(&f, (const char *)base + 4 * i, sizeof(f));
        return f;
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

size_t pack_group_bytes(enum dtype t, uint32_t n_k)
{
    size_t per_quad = t == DTYPE_I8 ? 4 : 8; /* elements in 4 bytes */

    return PANEL_COLS * (2 + (n_k + per_quad - 1) / per_quad * 4);
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

/* Copy src[0..n) (elements k0.. of one output) into column `col` of a panel of 4-byte elements. */
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

/* As put_f16, for pairs: k0 is even. */
static void put_bf16(unsigned char *panel, uint32_t col, uint32_t k0, const char *src, uint32_t n)
{
    unsigned char *dst = panel + ((size_t)(k0 / 2) * PANEL_COLS + col) * 4;
    uint32_t k = 0;

    for (; k + 2 <= n; k += 2, dst += PANEL_COLS * 4)
        memcpy(dst, src + 2 * k, 4);
    if (k < n)
        memcpy(dst, src + 2 * k, 2);
}

void pack_rows(const struct weight *w, uint32_t n0, const void *src, uint32_t n_rows)
{
    size_t es = dtype_bytes(w->dtype);
    size_t panel_bytes = pack_panel_bytes(w->dtype, w->k, 0);
    uint32_t end;

    ASSERT(w->dtype < DTYPE_FLOATS);
    ASSERT(n_rows <= w->n && n0 <= w->n - n_rows);
    for (uint32_t first = n0; first < n0 + n_rows; first = end) { /* one panel's share at a time */
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

unsigned char *pack_group_of(const struct weight *w, uint32_t n, uint32_t k)
{
    return (unsigned char *)w->data + n / PANEL_COLS * pack_panel_bytes(w->dtype, w->k, w->group) +
           k / w->group * pack_group_bytes(w->dtype, w->group);
}

float pack_scale_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(w->dtype >= DTYPE_FLOATS && n < w->n && k < w->k);
    return dtype_load(DTYPE_BF16, pack_group_of(w, n, k), n % PANEL_COLS);
}

int pack_int_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(w->dtype >= DTYPE_FLOATS && n < w->n && k < w->k);
    const unsigned char *quads = pack_group_of(w, n, k) + PANEL_COLS * 2;
    uint32_t i = k % w->group, col = n % PANEL_COLS;

    if (w->dtype == DTYPE_I8)
        return quads[((size_t)(i / 4) * PANEL_COLS + col) * 4 + i % 4] - 128;
    unsigned byte = quads[((size_t)(i / 8) * PANEL_COLS + col) * 4 + i % 4];
    return (int)(i % 8 < 4 ? byte & 15 : byte >> 4) - 8;
}

float pack_at(const struct weight *w, uint32_t n, uint32_t k)
{
    ASSERT(n < w->n && k < w->k);
    if (w->dtype >= DTYPE_FLOATS)
        return (float)pack_int_at(w, n, k) * pack_scale_at(w, n, k);

    const unsigned char *panel =
        (const unsigned char *)w->data + n / PANEL_COLS * pack_panel_bytes(w->dtype, w->k, 0);
    size_t col = n % PANEL_COLS;

    if (w->dtype == DTYPE_BF16)
        return dtype_load(DTYPE_BF16, panel, ((size_t)(k / 2) * PANEL_COLS + col) * 2 + k % 2);
    return dtype_load(w->dtype, panel, (size_t)k * PANEL_COLS + col);
}
