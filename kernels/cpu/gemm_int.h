/* gemm_int.h - products with quantized weights by dot products of four bytes.
 *
 * The slot of a group of rows: scale[rows], then start[groups of K][rows], then, for affine types,
 * sums[groups of K][rows], then quads[ceil(K/8) * 2][rows][4]. The dot-product instruction wants
 * one operand unsigned, so weights are stored as u with a zero o of 128 (i8) or 8 (i4):
 *   sum of q * (u - o) = sum of q * u - o * sum of q
 * Each sum over a group of K starts at `start`, which is the last term. For codes o is 0; where
 * v_dot_i8() subtracts 128 itself, the start adds it again. `sums` are the sums of q. */
#ifndef TARN_KERNELS_CPU_GEMM_INT_H
#define TARN_KERNELS_CPU_GEMM_INT_H

#include "kernels/cpu/gemm_quant.h"

#define INT_ROWS (INT_ACC_MAX < 12 ? INT_ACC_MAX : 12)

struct int_tile {
    const float *scale;     /* [rows] */
    const int32_t *start;   /* [n_groups][rows] */
    const float *sums;      /* [n_groups][rows]; affine types */
    const int32_t *quads;   /* [quads][rows] */
    const unsigned char *w; /* one panel */
    uint32_t k;
    uint32_t group;
    const struct chain_fetch *fetch;
    struct gemm_end end;
};

/* One quad of all rows times nc vectors of weights; `half`: which quad of an int4 step. */
ALWAYS_INLINE void int_quad(vi *acc, enum dtype t, int half, int n_rows, int nc, const vb *w,
                            const int32_t *a)
{
    int r = 0;

#ifdef HAVE_LANES
    UNROLL
    for (; r + 4 <= n_rows; r += 4) {
        vi four;

        memcpy(&four, a + r, sizeof(four));
        UNROLL
        for (int i = 0; i < 4 * nc; i++) {
            vi *to = &acc[r * nc + i];

            if (dtype_bits(t) == 4)
                *to =
                    v_dot_i4_lane(*to, (vb)((vu)w[i % nc] >> 4 * half & 0x0f0f0f0fu), four, i / nc);
            else
                *to = v_dot_i8_lane(*to, w[i % nc], four, i / nc);
        }
    }
#endif
    UNROLL
    for (; r < n_rows; r++) {
        vi quad = v_set1_i32(a[r]);

        UNROLL
        for (int j = 0; j < nc; j++) {
            vi *to = &acc[r * nc + j];

            if (dtype_bits(t) == 4)
                *to = v_dot_i4(*to, (vb)((vu)w[j] >> 4 * half & 0x0f0f0f0fu), quad);
            else
                *to = v_dot_i8(*to, w[j], quad);
        }
    }
}

/* One group of K for all rows. A step is a row of the panel: one quad, or two of 4-bit elements. */
ALWAYS_INLINE void int_group(vi *acc, enum dtype t, int n_rows, int nc, const unsigned char *w,
                             const int32_t *a, uint32_t n_steps, const struct chain_fetch *fetch,
                             uint32_t step0)
{
    for (uint32_t i = 0; i < n_steps; i++, w += PANEL_COLS * 4) {
        vb wv[PANEL_COLS / VW];

        if (fetch)
            chain_fetch_step(fetch, step0 + i);
        UNROLL
        for (int j = 0; j < nc; j++)
            wv[j] = b_load(w + (size_t)j * VW * 4);
        int_quad(acc, t, 0, n_rows, nc, wv, a);
        a += n_rows;
        if (dtype_bits(t) != 4)
            continue;
        int_quad(acc, t, 1, n_rows, nc, wv, a);
        a += n_rows;
    }
}

ALWAYS_INLINE int int_cols(int n_rows)
{
    int nc = PANEL_COLS / VW;

    while (nc * n_rows > INT_ACC_MAX)
        nc /= 2;
    return nc;
}

/* sum += the group's products times its scales, then the sums of q times its offsets. `head` is the
 * group's row of scales, at the first column. */
ALWAYS_INLINE void int_scale(vf *sum, enum dtype t, int n_rows, int nc, const vi *acc,
                             const unsigned char *head, const float *sums)
{
    UNROLL
    for (int j = 0; j < nc; j++, head += VW * 2) {
        vf scale = v_load_as(dtype_is_affine(t) ? DTYPE_F16 : DTYPE_BF16, head);

        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r * nc + j] =
                v_fma(__builtin_convertvector(acc[r * nc + j], vf), scale, sum[r * nc + j]);
        if (!dtype_is_affine(t))
            continue;
        vf offset = v_load_as(DTYPE_F16, head + PANEL_COLS * 2);

        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r * nc + j] = v_fma(v_set1(sums[r]), offset, sum[r * nc + j]);
    }
}

ALWAYS_INLINE void int_tile(const struct int_tile *g, enum dtype t, int n_rows)
{
    const int nc = int_cols(n_rows);
    const uint32_t per_step = 32 / dtype_bits(t); /* elements of K */

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        const unsigned char *w = g->w;
        const int32_t *start = g->start, *a = g->quads;
        const float *sums = g->sums;
        uint32_t step0 = 0;
        vf sum[INT_ACC_MAX];
        float out[INT_ACC_MAX * VW];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            sum[i] = v_set1(0);
        for (uint32_t k = 0; k < g->k; k += g->group, start += n_rows) {
            uint32_t n_steps = (min_u32(g->k - k, g->group) + per_step - 1) / per_step;
            vi acc[INT_ACC_MAX];

            UNROLL
            for (int i = 0; i < n_rows * nc; i++)
                acc[i] = v_set1_i32(start[i / nc]);
            int_group(acc, t, n_rows, nc, w + pack_head_bytes(t) + col * 4, a, n_steps,
                      col == 0 ? g->fetch : NULL, step0);
            step0 += n_steps;
            int_scale(sum, t, n_rows, nc, acc, w + col * 2, sums);
            sums += dtype_is_affine(t) ? n_rows : 0;
            w += pack_head_bytes(t) + (size_t)n_steps * PANEL_COLS * 4;
            a += n_steps * (per_step / 4) * (uint32_t)n_rows;
        }
        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            v_store(out + i * VW, sum[i] * v_set1(g->scale[i / nc]));
        gemm_store(&g->end, out, (uint32_t)n_rows, (uint32_t)nc * VW, col);
    }
}

#define INT_TILES(rows)                                                                            \
    static void int_i8_##rows(const struct int_tile *g)                                            \
    {                                                                                              \
        int_tile(g, DTYPE_I8, rows);                                                               \
    }                                                                                              \
    static void int_i4_##rows(const struct int_tile *g)                                            \
    {                                                                                              \
        int_tile(g, DTYPE_I4, rows);                                                               \
    }                                                                                              \
    static void int_a8_##rows(const struct int_tile *g)                                            \
    {                                                                                              \
        int_tile(g, DTYPE_A8, rows);                                                               \
    }                                                                                              \
    static void int_a4_##rows(const struct int_tile *g)                                            \
    {                                                                                              \
        int_tile(g, DTYPE_A4, rows);                                                               \
    }
#define INT_ROW(rows)                                                                              \
    {                                                                                              \
        int_i8_##rows, int_i4_##rows, int_a8_##rows, int_a4_##rows                                 \
    }

INT_TILES(1)
INT_TILES(2)
INT_TILES(3)
INT_TILES(4)
#if INT_ROWS >= 12
INT_TILES(5)
INT_TILES(6)
INT_TILES(7)
INT_TILES(8)
INT_TILES(9)
INT_TILES(10)
INT_TILES(11)
INT_TILES(12)
#endif

static void (*const int_tiles[INT_ROWS][DTYPE_COUNT - DTYPE_FLOATS])(const struct int_tile *) = {
    INT_ROW(1), INT_ROW(2),  INT_ROW(3),  INT_ROW(4),
#if INT_ROWS >= 12
    INT_ROW(5), INT_ROW(6),  INT_ROW(7),  INT_ROW(8),
    INT_ROW(9), INT_ROW(10), INT_ROW(11), INT_ROW(12),
#endif
};

static uint32_t int_n_groups(const struct weight *w)
{
    return (w->k + w->group - 1) / w->group;
}

/* Offsets of a slot's parts, in units of 4 bytes; the quads come last. */
static size_t int_slot_start(uint32_t n_rows)
{
    return n_rows;
}

static size_t int_slot_sums(const struct weight *w, uint32_t n_rows)
{
    return int_slot_start(n_rows) + (size_t)int_n_groups(w) * n_rows;
}

static size_t int_slot_quads(const struct weight *w, uint32_t n_rows)
{
    return int_slot_sums(w, n_rows) +
           (dtype_is_affine(w->dtype) ? (size_t)int_n_groups(w) * n_rows : 0);
}

static size_t int_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    size_t quads = ((size_t)w->k + 7) / 8 * 2;

    return ((int_slot_quads(w, n_rows) + quads * n_rows) * 4 + 63) / 64 * 64;
}

/* The factor by which the sum of a group's activations is multiplied at the start of a sum. */
static int32_t int_start_factor(enum dtype t)
{
    return t == DTYPE_I4 ? -8 : t == DTYPE_I8 ? -I8_OFFSET : t == DTYPE_A8 ? 128 - I8_OFFSET : 0;
}

static void int_pack_row(const struct weight *w, int32_t *slot, uint32_t r, uint32_t n_rows,
                         const float *a)
{
    struct quant_row row = quant_row_of(a, w->k);
    int32_t *start = slot + int_slot_start(n_rows) + r;
    float *sums = (float *)slot + int_slot_sums(w, n_rows) + r; /* of affine types */
    int32_t *quads = slot + int_slot_quads(w, n_rows) + r;
    uint32_t n_quads = (w->k + 7) / 8 * 2;
    int32_t factor = int_start_factor(w->dtype);

    memcpy(slot + r, &row.scale, sizeof(row.scale));
    for (uint32_t k = 0; k < w->k; k += w->group, start += n_rows) {
        uint32_t end = min_u32(k + w->group, w->k);

        int32_t sum = 0;

        for (uint32_t c = k; c < end; c += QUANT_CHUNK) {
            _Alignas(64) int8_t bytes[QUANT_CHUNK];
            int32_t four[QUANT_CHUNK / 4];

            sum += quant_chunk(bytes, a + c, min_u32(end - c, QUANT_CHUNK), row.inverse);
            memcpy(four, bytes, sizeof(four));
            for (uint32_t i = 0; i < QUANT_CHUNK / 4 && c / 4 + i < n_quads; i++)
                quads[(size_t)(c / 4 + i) * n_rows] = four[i];
        }
        *start = factor * sum;
        if (dtype_is_affine(w->dtype)) {
            *sums = (float)sum;
            sums += n_rows;
        }
    }
}

static void int_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        int_pack_row(&j->p->w, (int32_t *)(void *)gemm_slot(j, group), r, n_rows,
                     a + r * j->p->a_stride);
}

static void int_panel(const struct gemm_job *j, const struct gemm_panel *b)
{
    const struct weight *w = &j->p->w;
    struct int_tile g = {
        .w = gemm_panel_data(j, b->panel), .k = w->k, .group = w->group, .fetch = &b->fetch};

    for (uint32_t i = b->begin; i < b->end; i++) {
        uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);
        const int32_t *slot = (const int32_t *)(const void *)gemm_slot(j, i);

        g.scale = (const float *)(const void *)slot;
        g.start = slot + int_slot_start(n);
        g.sums = (const float *)(const void *)(slot + int_slot_sums(w, n));
        g.quads = slot + int_slot_quads(w, n);
        g.end = gemm_end_of(j, b->panel, i);
        int_tiles[n - 1][w->dtype - DTYPE_I8](&g);
        g.fetch = NULL;
    }
}

static const struct gemm_kernel int_kernel = {INT_ROWS, true, int_slot_bytes, int_pack, int_panel};

#endif
