/* gemm_dot.h - products with bf16 weights by vdpbf16ps. Activations are rounded to bf16 and packed
 * [ceil(K/2)][rows][2], so that a pair is broadcast directly from memory. */
#ifndef TARN_KERNELS_CPU_GEMM_DOT_H
#define TARN_KERNELS_CPU_GEMM_DOT_H

#include "kernels/cpu/gemm.h"

struct dot_tile {
    const uint32_t *a;      /* [pairs][rows] */
    const unsigned char *w; /* one panel */
    uint32_t n_pairs;
    const struct chain_fetch *fetch;
    struct gemm_share share; /* in the place of `fetch` */
    struct gemm_end end;
};

/* Pairs of a step of the share. */
#define DOT_SHARE_PAIRS 8

KERNEL_BODY void dot_tile(const struct dot_tile *g, int n_rows)
{
    const int nc = chain_cols(n_rows);

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        const unsigned char *w = g->w + col * 4;
        const unsigned char *share = g->share.at;
        const uint32_t *a = g->a;
        vf acc[ACC_MAX];
        float sums[ACC_MAX * VW];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1(0);
        for (uint32_t k = 0; k < g->n_pairs; k++, w += PANEL_COLS * 4, a += n_rows) {
            vf wv[PANEL_COLS / VW];

            if (col == 0 && g->share.at) {
                if (k % DOT_SHARE_PAIRS == 0)
                    share = chain_fetch_lines(share, g->share.n_lines);
            } else if (col == 0 && g->fetch) {
                chain_fetch_step(g->fetch, k);
            }
            UNROLL
            for (int j = 0; j < nc; j++)
                wv[j] = (vf)b_load(w + (size_t)j * VW * 4);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vf pair = (vf)v_set1_i32((int32_t)a[r]);

                UNROLL
                for (int j = 0; j < nc; j++)
                    acc[r * nc + j] = v_dot_bf16(acc[r * nc + j], pair, wv[j]);
            }
        }
        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            v_store(sums + i * VW, acc[i]);
        gemm_store(&g->end, sums, (uint32_t)n_rows, (uint32_t)nc * VW, col);
    }
}

#define DOT_TILE(rows)                                                                             \
    static void dot_##rows(const struct dot_tile *g)                                               \
    {                                                                                              \
        dot_tile(g, rows);                                                                         \
    }

DOT_TILE(1)
DOT_TILE(2)
DOT_TILE(3)
DOT_TILE(4)
DOT_TILE(5)
DOT_TILE(6)
DOT_TILE(7)
DOT_TILE(8)
DOT_TILE(9)
DOT_TILE(10)
DOT_TILE(11)
DOT_TILE(12)

static void (*const dot_tiles[12])(const struct dot_tile *) = {
    dot_1, dot_2, dot_3, dot_4, dot_5, dot_6, dot_7, dot_8, dot_9, dot_10, dot_11, dot_12,
};

static size_t dot_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return (((size_t)w->k + 1) / 2 * n_rows * 4 + 63) / 64 * 64;
}

static void dot_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    const struct weight *w = &j->p->w;
    size_t stride = j->p->a_stride;
    uint32_t pairs[VW];

    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t *dst = (uint32_t *)(void *)gemm_slot(j, group) + r;

        for (uint32_t k = 0; k < w->k; k += 2 * VW) {
            uint32_t n = min_u32(w->k - k, 2 * VW);

            bf16_pairs(pairs, a + r * stride + k, n, true);
            for (uint32_t i = 0; i < (n + 1) / 2; i++, dst += n_rows)
                *dst = pairs[i];
        }
    }
}

static void dot_panel(const struct gemm_job *j, const struct gemm_panel *b)
{
    const struct weight *w = &j->p->w;
    struct dot_tile g = {
        .w = gemm_panel_data(j, b->panel), .n_pairs = (w->k + 1) / 2, .fetch = &b->fetch};

    for (uint32_t i = b->begin; i < b->end; i++) {
        uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);

        g.a = (const uint32_t *)(const void *)gemm_slot(j, i);
        g.share = gemm_share_of(j, b, i, (g.n_pairs + DOT_SHARE_PAIRS - 1) / DOT_SHARE_PAIRS);
        g.end = gemm_end_of(j, b->panel, i);
        gemm_fetch_out(&g.end, n);
        dot_tiles[n - 1](&g);
        g.fetch = NULL;
    }
}

static const struct gemm_kernel dot_kernel = {12, true, dot_slot_bytes, dot_pack, dot_panel, true};

#endif
