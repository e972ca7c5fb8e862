/* gemm_int.h - products with int8 and int4 weights by dot products of four bytes.
 *
 * The slot of a group of rows: scale[rows], then minus[groups of K][rows], then quads[ceil(K/8) *
 * 2][rows][4]. The dot-product instruction wants one operand unsigned, so weights are stored as u
 * with an offset o of 128 (int8) or 8 (int4):
 *   sum of q * (u - o) = sum of q * u - o * sum of q
 * Each sum over a group of K starts at `minus`, which is the last term. */
#ifndef TARN_KERNELS_CPU_GEMM_INT_H
#define TARN_KERNELS_CPU_GEMM_INT_H

#include "kernels/cpu/gemm_quant.h"

#define INT_ROWS (INT_ACC_MAX < 12 ? INT_ACC_MAX : 12)

struct int_tile {
    const float *scale;     /* [rows] */
    const int32_t *minus;   /* [n_groups][rows] */
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
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        vi quad = v_set1_i32(a[r]);

        UNROLL
        for (int j = 0; j < nc; j++) {
            vi *to = &acc[r * nc + j];

            if (t == DTYPE_I4)
                *to = v_dot_i4(*to, (vb)((vu)w[j] >> 4 * half & 0x0f0f0f0fu), quad);
            else
                *to = v_dot_i8(*to, w[j], quad);
        }
    }
}

/* One group of K for all rows. A step is a row of the panel: one quad, or two of int4. */
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
        if (t != DTYPE_I4)
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

ALWAYS_INLINE void int_tile(const struct int_tile *g, enum dtype t, int n_rows)
{
    const int nc = int_cols(n_rows);
    const uint32_t per_step = t == DTYPE_I4 ? 8 : 4; /* elements of K */

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        const unsigned char *w = g->w;
        const int32_t *minus = g->minus, *a = g->quads;
        uint32_t step0 = 0;
        vf sum[INT_ACC_MAX];
        float out[INT_ACC_MAX * VW];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            sum[i] = v_set1(0);
        for (uint32_t k = 0; k < g->k; k += g->group, minus += n_rows) {
            uint32_t n_steps = (min_u32(g->k - k, g->group) + per_step - 1) / per_step;
            vi acc[INT_ACC_MAX];

            UNROLL
            for (int i = 0; i < n_rows * nc; i++)
                acc[i] = v_set1_i32(minus[i / nc]);
            int_group(acc, t, n_rows, nc, w + PANEL_COLS * 2 + col * 4, a, n_steps,
                      col == 0 ? g->fetch : NULL, step0);
            step0 += n_steps;
            UNROLL
            for (int j = 0; j < nc; j++) {
                vf scale = v_load_as(DTYPE_BF16, w + (col + (uint32_t)j * VW) * 2);

                UNROLL
                for (int r = 0; r < n_rows; r++)
                    sum[r * nc + j] =
                        v_fma(__builtin_convertvector(acc[r * nc + j], vf), scale, sum[r * nc + j]);
            }
            w += PANEL_COLS * 2 + (size_t)n_steps * PANEL_COLS * 4;
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
    }
#define INT_ROW(rows)                                                                              \
    {                                                                                              \
        int_i8_##rows, int_i4_##rows                                                               \
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

static void (*const int_tiles[INT_ROWS][2])(const struct int_tile *) = {
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
static size_t int_slot_minus(uint32_t n_rows)
{
    return n_rows;
}

static size_t int_slot_quads(const struct weight *w, uint32_t n_rows)
{
    return int_slot_minus(n_rows) + (size_t)int_n_groups(w) * n_rows;
}

static size_t int_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    size_t quads = ((size_t)w->k + 7) / 8 * 2;

    return ((int_slot_quads(w, n_rows) + quads * n_rows) * 4 + 63) / 64 * 64;
}

static void int_pack_row(const struct weight *w, int32_t *slot, uint32_t r, uint32_t n_rows,
                         const float *a)
{
    struct quant_row row = quant_row_of(a, w->k);
    int32_t *minus = slot + int_slot_minus(n_rows) + r;
    int32_t *quads = slot + int_slot_quads(w, n_rows) + r;
    uint32_t n_quads = (w->k + 7) / 8 * 2;
    int32_t offset = w->dtype == DTYPE_I4 ? 8 : I8_OFFSET;

    memcpy(slot + r, &row.scale, sizeof(row.scale));
    for (uint32_t k = 0; k < w->k; k += w->group, minus += n_rows) {
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
        *minus = -offset * sum;
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
        g.minus = slot + int_slot_minus(n);
        g.quads = slot + int_slot_quads(w, n);
        g.end = gemm_end_of(j, b->panel, i);
        int_tiles[n - 1][w->dtype - DTYPE_I8](&g);
        g.fetch = NULL;
    }
}

static const struct gemm_kernel int_kernel = {INT_ROWS, true, int_slot_bytes, int_pack, int_panel};

#endif
