/* gemm_neonmm.h - products by matrix instructions of ARM: bfmmla for bf16 weights, usmmla for
 * quantized ones.
 *
 * An instruction multiplies two columns by two rows. An operand has 16 bytes: a half with 8 bytes
 * of K for each column or row, four numbers of bf16 or eight of a byte. A vector of a panel has
 * four columns with 4 bytes of K each, so two of them that follow along K make two operands.
 *
 * A row's sums do not depend on the row beside it: bfmmla adds two pairs of products one after the
 * other, in each of its four sums by itself, and a group of odd size has a row of zeros at its end.
 * The integer sums are exact, and so equal those of gemm_int.h, which has the products for one row
 * and for an odd K. */
#ifndef TARN_KERNELS_CPU_GEMM_NEONMM_H
#define TARN_KERNELS_CPU_GEMM_NEONMM_H

#include "kernels/cpu/gemm_int.h"

#define MM_ROWS 12
#define MM_PAIRS (MM_ROWS / 2)
#define MM_ACC_MAX 24
/* Rows from which on quantized weights are multiplied by matrix instructions. */
#define MM_INT_ROWS_MIN 2

struct mm_tile {
    const unsigned char *a; /* operands [steps of K][pairs of rows][16] */
    const unsigned char *w; /* one panel */
    uint32_t k;
    uint32_t n_rows;
    /* Quantized weights, as in struct int_tile, with a row of zeros behind an odd number. */
    const float *scale;
    const int32_t *start;
    const float *sums;
    uint32_t group, quant;
    const struct chain_fetch *fetch;
    struct gemm_end end;
};

/* Most vectors of four columns for which the row pairs leave accumulators, two for each. */
ALWAYS_INLINE int mm_cols(int n_pairs)
{
    int nc = PANEL_COLS / VW;

    while (2 * nc * n_pairs > MM_ACC_MAX)
        nc /= 2;
    return nc;
}

/* The operands of columns 0 and 1, and of 2 and 3. */
ALWAYS_INLINE void mm_operands(vu out[2], vu first, vu second)
{
    out[0] = (vu)vzip1q_u32((uint32x4_t)first, (uint32x4_t)second);
    out[1] = (vu)vzip2q_u32((uint32x4_t)first, (uint32x4_t)second);
}

/* From accumulators with columns 0 and 1 of two rows, and with columns 2 and 3: the rows. */
ALWAYS_INLINE void mm_rows(vf out[2], vf left, vf right)
{
    out[0] = (vf)vuzp1q_f32((float32x4_t)left, (float32x4_t)right);
    out[1] = (vf)vuzp2q_f32((float32x4_t)left, (float32x4_t)right);
}

/* Store all sums of a tile for the columns from `col` on. */
ALWAYS_INLINE void mm_store(const struct mm_tile *g, const vf *acc, int n_pairs, int nc,
                            uint32_t col)
{
    float sums[MM_ROWS * PANEL_COLS];

    UNROLL
    for (int i = 0; i < n_pairs * nc; i++) {
        float *to = sums + (i / nc * 2 * nc + i % nc) * VW;
        vf rows[2];

        mm_rows(rows, acc[2 * i], acc[2 * i + 1]);
        v_store(to, rows[0]);
        v_store(to + nc * VW, rows[1]);
    }
    gemm_store(&g->end, sums, g->n_rows, (uint32_t)nc * VW, col);
}

/* --- bf16 --- */

/* One step of K: four numbers. `w`: two rows of the panel; `last`: only the first one exists. */
ALWAYS_INLINE void mm_bf16_step(vf *acc, int n_pairs, int nc, const unsigned char *w,
                                const unsigned char *a, bool last)
{
    UNROLL
    for (int j = 0; j < nc; j++) {
        vu second = last ? (vu){0} : (vu)b_load(w + PANEL_COLS * 4 + j * 16), op[2];

        mm_operands(op, (vu)b_load(w + j * 16), second);
        UNROLL
        for (int i = 0; i < 2 * n_pairs; i++) {
            float32x4_t *to = (float32x4_t *)&acc[(i / 2 * nc + j) * 2 + i % 2];

            *to = vbfmmlaq_f32(*to, (bfloat16x8_t)op[i % 2], (bfloat16x8_t)b_load(a + i / 2 * 16));
        }
    }
}

KERNEL_BODY void mm_bf16_tile(const struct mm_tile *g, int n_pairs)
{
    const int nc = mm_cols(n_pairs);
    uint32_t n_w = (g->k + 1) / 2; /* rows of the panel */

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        const unsigned char *w = g->w + col * 4, *a = g->a;
        vf acc[MM_ACC_MAX];

        UNROLL
        for (int i = 0; i < 2 * n_pairs * nc; i++)
            acc[i] = v_set1(0);
        for (uint32_t i = 0; i + 2 <= n_w; i += 2, w += 2 * PANEL_COLS * 4, a += n_pairs * 16) {
            if (col == 0 && g->fetch) {
                chain_fetch_step(g->fetch, i);
                chain_fetch_step(g->fetch, i + 1);
            }
            mm_bf16_step(acc, n_pairs, nc, w, a, false);
        }
        if (n_w % 2)
            mm_bf16_step(acc, n_pairs, nc, w, a, true);
        mm_store(g, acc, n_pairs, nc, col);
    }
}

static size_t mm_bf16_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return (((size_t)w->k + 3) / 4 * ((n_rows + 1) / 2) * 16 + 63) / 64 * 64;
}

static void mm_bf16_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    uint32_t k_end = j->p->w.k, n_pairs = (n_rows + 1) / 2;

    for (uint32_t r = 0; r < 2 * n_pairs; r++) {
        unsigned char *to = gemm_slot(j, group) + r / 2 * 16 + r % 2 * 8;

        for (uint32_t k = 0; k < k_end; k += 4, to += n_pairs * 16) {
            vf x = r == n_rows      ? v_set1(0)
                   : k + 4 <= k_end ? v_load(a + r * j->p->a_stride + k)
                                    : v_load_n(a + r * j->p->a_stride + k, k_end - k);
            bfloat16x4_t h = vcvt_bf16_f32((float32x4_t)x);

            memcpy(to, &h, sizeof(h));
        }
    }
}

/* --- quantized weights --- */

/* One step of K: eight numbers. `w`: one row of the panel for 4 bits, two for 8. */
ALWAYS_INLINE void mm_int_step(vi *acc, enum dtype t, int n_pairs, int nc, const unsigned char *w,
                               const unsigned char *a)
{
    UNROLL
    for (int j = 0; j < nc; j++) {
        vu first = (vu)b_load(w + j * 16), second, op[2];

        if (dtype_bits(t) == 4) {
            second = first >> 4 & 0x0f0f0f0fu;
            first &= 0x0f0f0f0fu;
        } else {
            second = (vu)b_load(w + PANEL_COLS * 4 + j * 16);
        }
        mm_operands(op, first, second);
        UNROLL
        for (int i = 0; i < 2 * n_pairs; i++) {
            int32x4_t *to = (int32x4_t *)&acc[(i / 2 * nc + j) * 2 + i % 2];

            *to = vusmmlaq_s32(*to, (uint8x16_t)op[i % 2], (int8x16_t)b_load(a + i / 2 * 16));
        }
    }
}

/* Two numbers, those of a pair of rows, for both columns of an accumulator. */
ALWAYS_INLINE vf mm_pair(const float *p)
{
    float32x2_t two = vld1_f32(p);

    return (vf)vcombine_f32(two, two);
}

/* int_scale() for pairs of rows. */
ALWAYS_INLINE void mm_int_scale(vf *sum, enum dtype t, int n_pairs, int nc, const vi *acc,
                                const unsigned char *head, const float *scales, const float *sums)
{
    UNROLL
    for (int j = 0; j < nc; j++, head += VW * 2) {
        vu scale[2], offset[2];
        vu s = (vu)v_load_as(dtype_is_affine(t) ? DTYPE_F16 : DTYPE_BF16, head);
        vu o = dtype_is_affine(t) ? (vu)v_load_as(DTYPE_F16, head + PANEL_COLS * 2) : s;

        mm_operands(scale, s, s);
        mm_operands(offset, o, o);
        UNROLL
        for (int i = 0; i < 2 * n_pairs; i++) {
            int at = (i / 2 * nc + j) * 2 + i % 2;

            sum[at] =
                v_fma(v_from_i32(acc[at]) * mm_pair(scales + i / 2 * 2), (vf)scale[i % 2], sum[at]);
            if (dtype_is_affine(t))
                sum[at] = v_fma(mm_pair(sums + i / 2 * 2), (vf)offset[i % 2], sum[at]);
        }
    }
}

KERNEL_BODY void mm_int_tile(const struct mm_tile *g, enum dtype t, int n_pairs)
{
    const int nc = mm_cols(n_pairs);
    const uint32_t w_rows = dtype_bits(t) == 4 ? 1 : 2; /* of the panel, in a step */

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        const unsigned char *w = g->w, *a = g->a, *head = w;
        const float *start = (const float *)(const void *)g->start;
        const float *scales = g->scale, *sums = g->sums;
        uint32_t step0 = 0;
        vf sum[MM_ACC_MAX];

        UNROLL
        for (int i = 0; i < 2 * n_pairs * nc; i++)
            sum[i] = v_set1(0);
        for (uint32_t k = 0; k < g->k; k += g->quant, start += 2 * n_pairs, scales += 2 * n_pairs) {
            uint32_t n_steps = min_u32(g->k - k, g->quant) / 8;
            vi acc[MM_ACC_MAX];

            if (k % g->group == 0) {
                head = w + col * 2;
                w += pack_head_bytes(t);
            }
            UNROLL
            for (int i = 0; i < 2 * n_pairs * nc; i++)
                acc[i] = (vi)mm_pair(start + i / (2 * nc) * 2);
            for (uint32_t i = 0; i < n_steps; i++, a += n_pairs * 16) {
                if (col == 0 && g->fetch)
                    for (uint32_t f = 0; f < w_rows; f++)
                        chain_fetch_step(g->fetch, (step0 + i) * w_rows + f);
                mm_int_step(acc, t, n_pairs, nc, w + col * 4, a);
                w += w_rows * PANEL_COLS * 4;
            }
            step0 += n_steps;
            mm_int_scale(sum, t, n_pairs, nc, acc, head, scales, sums);
            sums += dtype_is_affine(t) ? 2 * n_pairs : 0;
        }
        mm_store(g, sum, n_pairs, nc, col);
    }
}

static size_t mm_int_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return int_slot_bytes(w, (n_rows + 1) / 2 * 2);
}

/* The slot of int_pack() for an even number of rows, but with the quads as operands. */
static void mm_int_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    const struct weight *w = &j->p->w;
    uint32_t n_even = (n_rows + 1) / 2 * 2;
    int32_t *slot = (int32_t *)(void *)gemm_slot(j, group);
    unsigned char *operands = (unsigned char *)(slot + int_slot_quads(w, n_even));
    int32_t quads[QUANT_CHUNK / 4];

    if (n_even > n_rows)
        memset(slot, 0, j->slot_bytes);
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *x = a + r * j->p->a_stride;
        float *scale = (float *)slot + r;
        int32_t *start = slot + int_slot_start(w, n_even) + r;
        float *sums = (float *)slot + int_slot_sums(w, n_even) + r;
        struct quant_scale by = {0};
        vi lanes = v_set1_i32(0);

        for (uint32_t k = 0; k < w->k; k += QUANT_CHUNK) {
            uint32_t n = min_u32(w->k - k, QUANT_CHUNK);
            unsigned char *to = operands + ((size_t)k / 8 * n_even + r) * 8;

            if (k % quant_group(w) == 0)
                by = quant_scale_of(x + k, min_u32(w->k - k, quant_group(w)));
            quant_chunk((int8_t *)quads, x + k, n, by.inverse, &lanes);
            for (uint32_t i = 0; i < n / 8; i++, to += n_even * 8)
                memcpy(to, quads + 2 * i, 8);
            if ((k + n) % quant_group(w) != 0 && k + n < w->k)
                continue;
            int32_t sum = quant_sum(lanes);

            *scale = by.scale;
            scale += n_even;
            *start = int_start_factor(w->dtype) * sum;
            start += n_even;
            if (dtype_is_affine(w->dtype)) {
                *sums = (float)sum * by.scale;
                sums += n_even;
            }
            lanes = v_set1_i32(0);
        }
    }
}

/* --- tables --- */

#define MM_TILES(pairs)                                                                            \
    static void mm_bf16_##pairs(const struct mm_tile *g)                                           \
    {                                                                                              \
        mm_bf16_tile(g, pairs);                                                                    \
    }                                                                                              \
    static void mm_i8_##pairs(const struct mm_tile *g)                                             \
    {                                                                                              \
        mm_int_tile(g, DTYPE_I8, pairs);                                                           \
    }                                                                                              \
    static void mm_i4_##pairs(const struct mm_tile *g)                                             \
    {                                                                                              \
        mm_int_tile(g, DTYPE_I4, pairs);                                                           \
    }                                                                                              \
    static void mm_a8_##pairs(const struct mm_tile *g)                                             \
    {                                                                                              \
        mm_int_tile(g, DTYPE_A8, pairs);                                                           \
    }                                                                                              \
    static void mm_a4_##pairs(const struct mm_tile *g)                                             \
    {                                                                                              \
        mm_int_tile(g, DTYPE_A4, pairs);                                                           \
    }
#define MM_ROW(pairs)                                                                              \
    {                                                                                              \
        mm_bf16_##pairs, mm_i8_##pairs, mm_i4_##pairs, mm_a8_##pairs, mm_a4_##pairs                \
    }

MM_TILES(1)
MM_TILES(2)
MM_TILES(3)
MM_TILES(4)
MM_TILES(5)
MM_TILES(6)

/* By pairs of rows and type, from DTYPE_BF16 on. */
static void (*const mm_tiles[MM_PAIRS][DTYPE_F8 - DTYPE_BF16])(const struct mm_tile *) = {
    MM_ROW(1), MM_ROW(2), MM_ROW(3), MM_ROW(4), MM_ROW(5), MM_ROW(6),
};

static void mm_panel(const struct gemm_job *j, const struct gemm_panel *b)
{
    const struct weight *w = &j->p->w;
    struct mm_tile g = {.w = gemm_panel_data(j, b->panel),
                        .k = w->k,
                        .group = w->group,
                        .quant = w->dtype == DTYPE_BF16 ? 0 : quant_group(w),
                        .fetch = &b->fetch};

    for (uint32_t i = b->begin; i < b->end; i++) {
        uint32_t n_even;

        g.n_rows = gemm_group_row(j, i + 1) - gemm_group_row(j, i);
        n_even = (g.n_rows + 1) / 2 * 2;
        g.a = gemm_slot(j, i);
        if (w->dtype != DTYPE_BF16) {
            const int32_t *slot = (const int32_t *)(const void *)g.a;

            g.scale = (const float *)(const void *)slot;
            g.start = slot + int_slot_start(w, n_even);
            g.sums = (const float *)(const void *)(slot + int_slot_sums(w, n_even));
            g.a = (const unsigned char *)(slot + int_slot_quads(w, n_even));
        }
        g.end = gemm_end_of(j, b->panel, i);
        gemm_fetch_out(&g.end, g.n_rows);
        mm_tiles[n_even / 2 - 1][w->dtype - DTYPE_BF16](&g);
        g.fetch = NULL;
    }
}

static const struct gemm_kernel mm_bf16_kernel = {MM_ROWS,      true,     mm_bf16_slot_bytes,
                                                  mm_bf16_pack, mm_panel, false};
static const struct gemm_kernel mm_int_kernel = {MM_ROWS,     true,     mm_int_slot_bytes,
                                                 mm_int_pack, mm_panel, false};

#endif
