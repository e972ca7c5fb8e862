/* gemm_float.h - products with f32, f16 and bf16 weights by fused multiply-adds in f32. */
#ifndef TARN_KERNELS_CPU_GEMM_FLOAT_H
#define TARN_KERNELS_CPU_GEMM_FLOAT_H

#include "kernels/cpu/gemm.h"

/* One tile: up to ROWS_MAX rows times one panel. */
struct float_tile {
    const float *a;         /* [k][rows] */
    const unsigned char *w; /* one panel */
    uint32_t k;
    const struct chain_fetch *fetch;
    struct gemm_end end;
};

KERNEL_BODY void float_tile(const struct float_tile *g, enum dtype t, int n_rows)
{
    const int nc = chain_cols(n_rows);
    const uint32_t col_bytes = t == DTYPE_F16 ? 2 : 4; /* a bf16 column is a pair */
    struct chain c = {
        .a = g->a,
        .a_k = (size_t)n_rows,
        .a_row = 1,
        .w_k = PANEL_COLS * col_bytes,
        .n_k = g->k,
    };

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        vf acc[ACC_MAX];
        float sums[ACC_MAX * VW];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1(0);
        c.w = g->w + col * col_bytes;
        c.fetch = col == 0 ? g->fetch : NULL;
        if (t == DTYPE_BF16)
            chain_pairs(acc, n_rows, nc, false, &c);
        else
            chain_plain(acc, n_rows, nc, t, false, &c);
        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            v_store(sums + i * VW, acc[i]);
        gemm_store(&g->end, sums, (uint32_t)n_rows, (uint32_t)nc * VW, col);
    }
}

#define FLOAT_TILES(rows)                                                                          \
    static void float_f32_##rows(const struct float_tile *g)                                       \
    {                                                                                              \
        float_tile(g, DTYPE_F32, rows);                                                            \
    }                                                                                              \
    static void float_f16_##rows(const struct float_tile *g)                                       \
    {                                                                                              \
        float_tile(g, DTYPE_F16, rows);                                                            \
    }                                                                                              \
    static UNUSED_HERE void float_bf16_##rows(const struct float_tile *g)                          \
    {                                                                                              \
        float_tile(g, DTYPE_BF16, rows);                                                           \
    }
/* Where bf16 has a kernel of its own (gemm_dot.h, gemm_neonmm.h). */
#if defined(HAVE_BF16_DOT) || defined(HAVE_NEON_MATRIX)
#define UNUSED_HERE __attribute__((unused))
#define FLOAT_ROW(rows)                                                                            \
    {                                                                                              \
        float_f32_##rows, float_f16_##rows, NULL                                                   \
    }
#else
#define UNUSED_HERE
#define FLOAT_ROW(rows)                                                                            \
    {                                                                                              \
        float_f32_##rows, float_f16_##rows, float_bf16_##rows                                      \
    }
#endif

FLOAT_TILES(1)
FLOAT_TILES(2)
FLOAT_TILES(3)
FLOAT_TILES(4)
#if ROWS_MAX >= 6
FLOAT_TILES(5)
FLOAT_TILES(6)
#endif
#if ROWS_MAX >= 12
FLOAT_TILES(7)
FLOAT_TILES(8)
FLOAT_TILES(9)
FLOAT_TILES(10)
FLOAT_TILES(11)
FLOAT_TILES(12)
#endif

static void (*const float_tiles[ROWS_MAX][DTYPE_FLOATS])(const struct float_tile *) = {
    FLOAT_ROW(1), FLOAT_ROW(2), FLOAT_ROW(3), FLOAT_ROW(4),
#if ROWS_MAX >= 6
    FLOAT_ROW(5), FLOAT_ROW(6),
#endif
#if ROWS_MAX >= 12
    FLOAT_ROW(7), FLOAT_ROW(8), FLOAT_ROW(9), FLOAT_ROW(10), FLOAT_ROW(11), FLOAT_ROW(12),
#endif
};

static size_t float_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return ((size_t)w->k * n_rows * sizeof(float) + 63) / 64 * 64;
}

/* Transpose four rows of four floats at a (stride apart) to columns at dst (n apart). */
static inline void transpose4(float *dst, size_t n, const float *a, size_t stride)
{
    typedef float f4 __attribute__((vector_size(16)));
    typedef int32_t i4 __attribute__((vector_size(16)));
    f4 r[4], t[4];

    for (int i = 0; i < 4; i++)
        memcpy(&r[i], a + (size_t)i * stride, sizeof(r[i]));
    t[0] = __builtin_shuffle(r[0], r[1], (i4){0, 4, 1, 5});
    t[1] = __builtin_shuffle(r[2], r[3], (i4){0, 4, 1, 5});
    t[2] = __builtin_shuffle(r[0], r[1], (i4){2, 6, 3, 7});
    t[3] = __builtin_shuffle(r[2], r[3], (i4){2, 6, 3, 7});
    r[0] = __builtin_shuffle(t[0], t[1], (i4){0, 1, 4, 5});
    r[1] = __builtin_shuffle(t[0], t[1], (i4){2, 3, 6, 7});
    r[2] = __builtin_shuffle(t[2], t[3], (i4){0, 1, 4, 5});
    r[3] = __builtin_shuffle(t[2], t[3], (i4){2, 3, 6, 7});
    for (int i = 0; i < 4; i++)
        memcpy(dst + (size_t)i * n, &r[i], sizeof(r[i]));
}

/* Transpose n rows of K floats (stride apart) to [K][n]. */
static void float_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n)
{
    const struct weight *w = &j->p->w;
    size_t stride = j->p->a_stride;
    float *dst = (float *)(void *)gemm_slot(j, group);
    uint32_t k = 0;

    for (; k + 4 <= w->k; k += 4) {
        uint32_t r = 0;

        for (; r + 4 <= n; r += 4)
            transpose4(dst + (size_t)k * n + r, n, a + r * stride + k, stride);
        for (; r < n; r++)
            for (uint32_t i = 0; i < 4; i++)
                dst[(size_t)(k + i) * n + r] = a[r * stride + k + i];
    }
    for (; k < w->k; k++)
        for (uint32_t r = 0; r < n; r++)
            dst[(size_t)k * n + r] = a[r * stride + k];
}

static void float_panel(const struct gemm_job *j, const struct gemm_panel *b)
{
    const struct weight *w = &j->p->w;
    struct float_tile g = {.w = gemm_panel_data(j, b->panel), .k = w->k, .fetch = &b->fetch};

    for (uint32_t i = b->begin; i < b->end; i++) {
        uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);

        g.a = (const float *)(const void *)gemm_slot(j, i);
        g.end = gemm_end_of(j, b->panel, i);
        float_tiles[n - 1][w->dtype](&g);
        g.fetch = NULL;
    }
}

static const struct gemm_kernel float_kernel = {ROWS_MAX,   true,        float_slot_bytes,
                                                float_pack, float_panel, false};

#endif
