/* gemm_body.h - products of activations and packed weights; compiled once per variant.
 *
 * A step's rows are cut into groups of at most ROWS_MAX, evenly, and packed [K][rows]; a task is
 * one panel of weights times a few groups whose activations together stay in the second-level cache.
 * K is never split. With one row the walk over panels is a single stream through memory. */
#ifndef TARN_KERNELS_CPU_GEMM_BODY_H
#define TARN_KERNELS_CPU_GEMM_BODY_H

#include <string.h>

#include "base/check.h"
#include "kernels/cpu/chain.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/pack.h"

/* Activations that the groups of one task may take: half of a second-level cache of 1 MB and more,
 * the rest is for the panel. */
#define TASK_A_BYTES (512u << 10)
/* Weights that one turn at the queue takes at least, so that small products do not queue for each
 * panel. */
#define TURN_W_BYTES (64u << 10)
/* Below this many multiply-adds waking the pool costs more than it saves. */
#define GEMM_ALONE_MAX (64u << 10)

/* One tile: up to ROWS_MAX rows times one panel. */
struct gemm_tile {
    const float *a;            /* [k][rows] */
    const unsigned char *w;    /* one panel */
    uint32_t k;
    uint32_t n_cols;           /* outputs of this panel that exist, 1..PANEL_COLS */
    const float *bias;         /* [n_cols] or NULL */
    bool accumulate;
    float *out;                /* [rows][n_cols] */
    size_t out_stride;
};

/* The end of each chain: bias, then the old output, then out it goes. Not inlined: it is short
 * beside any chain, and there are three dozen instances of those. */
static __attribute__((noinline)) void gemm_store(const struct gemm_tile *g,
                                                 const float *acc /* [n_rows][width] */,
                                                 uint32_t n_rows, uint32_t width, uint32_t col0)
{
    for (uint32_t j = 0; j < width && col0 + j < g->n_cols; j += VW) {
        uint32_t col = col0 + j;
        uint32_t n = min_u32(g->n_cols - col, VW);
        vf bias = g->bias ? v_load_n(g->bias + col, n) : v_set1(0);

        for (uint32_t r = 0; r < n_rows; r++) {
            float *out = g->out + r * g->out_stride + col;
            vf v = v_load(acc + r * width + j);

            if (g->bias)
                v += bias;
            if (g->accumulate)
                v += v_load_n(out, n);
            v_store_n(out, v, n);
        }
    }
}

ALWAYS_INLINE void gemm_tile(const struct gemm_tile *g, enum dtype t, int n_rows)
{
    const int nc = chain_cols(n_rows);
    const uint32_t col_bytes = t == DTYPE_F16 ? 2 : 4; /* a bf16 column is a pair */
    struct chain c = {
        .a = g->a,
        .a_k = (size_t)n_rows,
        .a_row = 1,
        .w_k = PANEL_COLS * col_bytes,
        .n_k = g->k,
        .ahead = PANEL_AHEAD,
    };

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        vf acc[ACC_MAX];
        float sums[ACC_MAX * VW];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1(0);
        c.w = g->w + col * col_bytes;
        if (t == DTYPE_BF16)
            chain_pairs(acc, n_rows, nc, &c);
        else
            chain_plain(acc, n_rows, nc, t, false, &c);
        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            v_store(sums + i * VW, acc[i]);
        gemm_store(g, sums, (uint32_t)n_rows, (uint32_t)nc * VW, col);
    }
}

#define GEMM_TILES(rows)                                                                           \
    static void gemm_f32_##rows(const struct gemm_tile *g)                                         \
    {                                                                                              \
        gemm_tile(g, DTYPE_F32, rows);                                                             \
    }                                                                                              \
    static void gemm_f16_##rows(const struct gemm_tile *g)                                         \
    {                                                                                              \
        gemm_tile(g, DTYPE_F16, rows);                                                             \
    }                                                                                              \
    static void gemm_bf16_##rows(const struct gemm_tile *g)                                        \
    {                                                                                              \
        gemm_tile(g, DTYPE_BF16, rows);                                                            \
    }
#define GEMM_ROW(rows) {gemm_f32_##rows, gemm_f16_##rows, gemm_bf16_##rows}

GEMM_TILES(1)
GEMM_TILES(2)
GEMM_TILES(3)
GEMM_TILES(4)
#if ROWS_MAX >= 6
GEMM_TILES(5)
GEMM_TILES(6)
#endif
#if ROWS_MAX >= 12
GEMM_TILES(7)
GEMM_TILES(8)
GEMM_TILES(9)
GEMM_TILES(10)
GEMM_TILES(11)
GEMM_TILES(12)
#endif

static void (*const gemm_tiles[ROWS_MAX][DTYPE_COUNT])(const struct gemm_tile *) = {
    GEMM_ROW(1), GEMM_ROW(2), GEMM_ROW(3),  GEMM_ROW(4),
#if ROWS_MAX >= 6
    GEMM_ROW(5), GEMM_ROW(6),
#endif
#if ROWS_MAX >= 12
    GEMM_ROW(7), GEMM_ROW(8), GEMM_ROW(9),  GEMM_ROW(10), GEMM_ROW(11), GEMM_ROW(12),
#endif
};

/* Rows [row0, row0 + n_rows) of a product. */
struct gemm_job {
    const struct gemm_params *p;
    uint32_t row0;
    uint32_t n_rows;
    uint32_t n_groups;
    uint32_t n_blocks;         /* of groups */
    uint32_t n_panels;
    size_t panel_bytes;
    float *packed;             /* [n_groups][K][rows of the group] */
};

/* i-th of n even cuts of [0, total]. */
static inline uint32_t even_cut(uint32_t total, uint32_t n, uint32_t i)
{
    return (uint32_t)((uint64_t)total * i / n);
}

/* Four rows of four floats each at a (rows stride apart) into columns at dst (n apart). */
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

/* n rows of K floats, stride apart, into [K][n]. */
static void pack_group(float *dst, uint32_t n, const float *a, size_t stride, uint32_t n_k)
{
    uint32_t k = 0;

    for (; k + 4 <= n_k; k += 4) {
        uint32_t r = 0;

        for (; r + 4 <= n; r += 4)
            transpose4(dst + (size_t)k * n + r, n, a + r * stride + k, stride);
        for (; r < n; r++)
            for (uint32_t i = 0; i < 4; i++)
                dst[(size_t)(k + i) * n + r] = a[r * stride + k + i];
    }
    for (; k < n_k; k++)
        for (uint32_t r = 0; r < n; r++)
            dst[(size_t)k * n + r] = a[r * stride + k];
}

static void gemm_pack(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct gemm_job *j = arg;
    uint32_t n_k = j->p->w.k;

    (void)thread;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t r0 = even_cut(j->n_rows, j->n_groups, i);
        uint32_t n = even_cut(j->n_rows, j->n_groups, i + 1) - r0;

        pack_group(j->packed + (size_t)r0 * n_k, n, j->p->a + (j->row0 + r0) * j->p->a_stride,
                   j->p->a_stride, n_k);
    }
}

static void gemm_task(const struct gemm_job *j, uint32_t block, uint32_t panel)
{
    const struct gemm_params *p = j->p;
    uint32_t n0 = panel * PANEL_COLS;
    struct gemm_tile g = {
        .w = (const unsigned char *)p->w.data + panel * j->panel_bytes,
        .k = p->w.k,
        .n_cols = min_u32(p->w.n - n0, PANEL_COLS),
        .bias = p->bias ? p->bias + n0 : NULL,
        .accumulate = p->accumulate != 0,
        .out_stride = p->out_stride,
    };
    uint32_t end = even_cut(j->n_groups, j->n_blocks, block + 1);

    for (uint32_t i = even_cut(j->n_groups, j->n_blocks, block); i < end; i++) {
        uint32_t r0 = even_cut(j->n_rows, j->n_groups, i);
        uint32_t n = even_cut(j->n_rows, j->n_groups, i + 1) - r0;

        g.a = j->packed + (size_t)r0 * p->w.k;
        g.out = p->out + (j->row0 + r0) * p->out_stride + n0;
        gemm_tiles[n - 1][p->w.dtype](&g);
    }
}

static void gemm_tasks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct gemm_job *j = arg;

    (void)thread;
    for (uint32_t i = begin; i < end; i++)
        gemm_task(j, i / j->n_panels, i % j->n_panels);
}

static uint32_t gemm_chunk(const struct gemm_job *j, uint32_t n_threads)
{
    uint32_t n_tasks = j->n_panels * j->n_blocks;
    uint64_t macs = (uint64_t)j->n_rows * j->p->w.n * j->p->w.k;
    uint32_t chunk = (uint32_t)(TURN_W_BYTES / (j->panel_bytes + 1)) + 1;
    uint32_t even = n_tasks / (4 * n_threads) + 1;

    if (macs <= GEMM_ALONE_MAX)
        return n_tasks;
    return min_u32(chunk, even);
}

static void gemm_rows(struct cpu *c, const struct gemm_params *p, uint32_t row0, uint32_t n_rows)
{
    size_t group_bytes = (size_t)ROWS_MAX * p->w.k * sizeof(float);
    struct gemm_job j = {
        .p = p,
        .row0 = row0,
        .n_rows = n_rows,
        .n_groups = (n_rows + ROWS_MAX - 1) / ROWS_MAX,
        .n_panels = (p->w.n + PANEL_COLS - 1) / PANEL_COLS,
        .panel_bytes = pack_panel_bytes(p->w.dtype, p->w.k),
        .packed = c->packed,
    };
    uint32_t groups_per_block = (uint32_t)(TASK_A_BYTES / group_bytes);

    groups_per_block = groups_per_block ? groups_per_block : 1;
    j.n_blocks = (j.n_groups + groups_per_block - 1) / groups_per_block;
    if (n_rows == 1) /* already [K][1] */
        j.packed = (float *)(uintptr_t)(p->a + row0 * p->a_stride);
    else
        pool_run(c->pool, j.n_groups, 1, gemm_pack, &j);
    uint32_t chunk = gemm_chunk(&j, pool_n_threads(c->pool));
    pool_run(c->pool, j.n_panels * j.n_blocks, chunk, gemm_tasks, &j);
}

static enum status gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    struct cpu *c = device_cpu(d);

    (void)s;
    ASSERT(p->w.dtype < DTYPE_COUNT && p->w.k > 0 && p->w.k <= c->max_k);
    for (uint32_t r = 0; r < p->n_rows; r += c->packed_rows)
        gemm_rows(c, p, r, min_u32(p->n_rows - r, c->packed_rows));
    return OK;
}

#endif
