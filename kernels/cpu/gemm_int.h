/* gemm_int.h - products with quantized weights by dot products of four bytes.
 *
 * The slot of a group of rows: scale[groups of K][rows], then start[groups of K][rows], then, for
 * affine types, sums[groups of K][rows], then quads[ceil(K/8) * 2][rows][4]; these groups of K are
 * those of activations (quant_group()). The dot-product instruction wants one operand unsigned, so
 * weights are stored as u with a zero o of 128 (i8) or 8 (i4):
 *   sum of q * (u - o) = sum of q * u - o * sum of q
 * Each sum over a group of K starts at `start`, which is the last term. For codes o is 0; where
 * v_dot_i8() subtracts 128 itself, the start adds it again. `sums` are sums of q times scale. */
#ifndef TARN_KERNELS_CPU_GEMM_INT_H
#define TARN_KERNELS_CPU_GEMM_INT_H

#include "kernels/cpu/gemm_quant.h"

#ifndef INT_ROWS /* most rows of a tile */
#define INT_ROWS (INT_ACC_MAX < 12 ? INT_ACC_MAX : 12)
#endif

struct int_tile {
    const float *scale;     /* [n_groups][rows] */
    const int32_t *start;   /* [n_groups][rows] */
    const float *sums;      /* [n_groups][rows]; affine types */
    const int32_t *quads;   /* [quads][rows] */
    const unsigned char *w; /* one panel */
    uint32_t k;
    uint32_t group, quant; /* elements of K in a group of weights, of activations */
    const struct chain_fetch *fetch;
    struct gemm_share share; /* in the place of `fetch`; its steps are chunks of K */
    struct gemm_end end;
};

/* Bytes of a row of a panel. */
#define INT_ROW_BYTES (PANEL_COLS * 4)

/* How a walk prefetches: each is compiled by itself, since most walks do not. */
enum int_fetch {
    INT_FETCH_NONE,
    INT_FETCH_AHEAD, /* at a constant distance, which costs nothing else */
    INT_FETCH_FOUR,  /* int_tile.fetch */
    INT_FETCH_SHARE  /* int_tile.share */
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

/* A step is a row of the panel: one quad, or two of 4-bit elements. `row`: its number. */
ALWAYS_INLINE void int_step(vi *acc, enum dtype t, int n_rows, int nc, const unsigned char *w,
                            const int32_t *a, enum int_fetch how, const struct chain_fetch *fetch,
                            size_t row)
{
    vb wv[PANEL_COLS / VW];

    if (how == INT_FETCH_AHEAD)
        fetch_lines(w, INT_ROW_BYTES, FETCH_AHEAD_BYTES);
    if (how == INT_FETCH_FOUR)
        chain_fetch_step(fetch, (uint32_t)row);
    UNROLL
    for (int j = 0; j < nc; j++)
        wv[j] = b_load(w + (size_t)j * VW * 4);
    int_quad(acc, t, 0, n_rows, nc, wv, a);
    if (dtype_bits(t) == 4)
        int_quad(acc, t, 1, n_rows, nc, wv, a + n_rows);
}

/* At most QUANT_CHUNK elements of K for all rows. */
ALWAYS_INLINE void int_chunk(vi *acc, enum dtype t, int n_rows, int nc, const unsigned char *w,
                             const int32_t *a, uint32_t n_steps, enum int_fetch how,
                             const struct chain_fetch *fetch, size_t row)
{
    const uint32_t whole = QUANT_CHUNK * dtype_bits(t) / 32;
    const uint32_t quads = 8 / dtype_bits(t) * (uint32_t)n_rows; /* of a step */

    if (n_steps == whole) {
        UNROLL
        for (uint32_t i = 0; i < whole; i++)
            int_step(acc, t, n_rows, nc, w + i * INT_ROW_BYTES, a + i * quads, how, fetch, row + i);
        return;
    }
#pragma GCC unroll 1
    for (uint32_t i = 0; i < n_steps; i++)
        int_step(acc, t, n_rows, nc, w + i * INT_ROW_BYTES, a + i * quads, how, fetch, row + i);
}

ALWAYS_INLINE int int_cols(int n_rows)
{
    int nc = PANEL_COLS / VW;

    while (nc * n_rows > INT_ACC_MAX)
        nc /= 2;
    return nc;
}

/* sum += the group's products times both scales, then the sums of q times the offsets. `head` is
 * the group's row of weights' scales, at the first column. */
ALWAYS_INLINE void int_scale(vf *sum, enum dtype t, int n_rows, int nc, const vi *acc,
                             const unsigned char *head, const float *scales, const float *sums)
{
    UNROLL
    for (int j = 0; j < nc; j++, head += VW * 2) {
        vf scale = v_load_as(dtype_is_affine(t) ? DTYPE_F16 : DTYPE_BF16, head);

        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r * nc + j] =
                v_fma(__builtin_convertvector(acc[r * nc + j], vf) * v_set1(scales[r]), scale,
                      sum[r * nc + j]);
        if (!dtype_is_affine(t))
            continue;
        vf offset = v_load_as(DTYPE_F16, head + PANEL_COLS * 2);

        UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r * nc + j] = v_fma(v_set1(sums[r]), offset, sum[r * nc + j]);
    }
}

/* The columns from `col` on, as many as have accumulators. */
KERNEL_BODY void int_cols_of(const struct int_tile *g, enum dtype t, int n_rows, uint32_t col,
                             enum int_fetch how)
{
    const int nc = int_cols(n_rows);
    const uint32_t per_step = 32 / dtype_bits(t); /* elements of K */
    const unsigned char *w = g->w, *head = w, *share = g->share.at;
    const int32_t *start = g->start;
    const float *scales = g->scale, *sums = g->sums;
    vf sum[INT_ACC_MAX];
    float out[INT_ACC_MAX * VW];

    UNROLL
    for (int i = 0; i < n_rows * nc; i++)
        sum[i] = v_set1(0);
    for (uint32_t k = 0; k < g->k; k += g->quant, start += n_rows, scales += n_rows) {
        uint32_t n_k = min_u32(g->k - k, g->quant);
        vi acc[INT_ACC_MAX];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1_i32(start[i / nc]);
        if (k % g->group == 0) {
            if (how == INT_FETCH_AHEAD)
                fetch_lines(w, pack_head_bytes(t), FETCH_AHEAD_BYTES);
            head = w + col * 2;
            w += pack_head_bytes(t);
        }
        for (uint32_t c = 0; c < n_k; c += QUANT_CHUNK) {
            uint32_t n_steps = (min_u32(n_k - c, QUANT_CHUNK) + per_step - 1) / per_step;

            if (how == INT_FETCH_SHARE)
                share = chain_fetch_lines(share, g->share.n_lines);
            int_chunk(acc, t, n_rows, nc, w + col * 4,
                      g->quads + (size_t)((k + c) / 4) * (uint32_t)n_rows, n_steps, how, g->fetch,
                      (size_t)(w - g->w) / INT_ROW_BYTES);
            w += (size_t)n_steps * INT_ROW_BYTES;
        }
        int_scale(sum, t, n_rows, nc, acc, head, scales, sums);
        sums += dtype_is_affine(t) ? n_rows : 0;
    }
    UNROLL
    for (int i = 0; i < n_rows * nc; i++)
        v_store(out + i * VW, sum[i]);
    gemm_store(&g->end, out, (uint32_t)n_rows, (uint32_t)nc * VW, col);
}

ALWAYS_INLINE void int_tile(const struct int_tile *g, enum dtype t, int n_rows)
{
    const uint32_t n_cols = (uint32_t)int_cols(n_rows) * VW;

    uint32_t col = n_cols; /* the first columns prefetch for all */

    if (g->share.at)
        int_cols_of(g, t, n_rows, 0, INT_FETCH_SHARE);
    else if (!g->fetch)
        col = 0;
    else if (g->fetch->stride == FETCH_ONE_STREAM)
        int_cols_of(g, t, n_rows, 0, INT_FETCH_AHEAD);
    else
        int_cols_of(g, t, n_rows, 0, INT_FETCH_FOUR);
    for (; col < PANEL_COLS; col += n_cols)
        int_cols_of(g, t, n_rows, col, INT_FETCH_NONE);
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
#if INT_ROWS >= 6
INT_TILES(5)
INT_TILES(6)
#endif
#if INT_ROWS >= 12
INT_TILES(7)
INT_TILES(8)
INT_TILES(9)
INT_TILES(10)
INT_TILES(11)
INT_TILES(12)
#endif

static void (*const int_tiles[INT_ROWS][DTYPE_F8 - DTYPE_FLOATS])(const struct int_tile *) = {
    INT_ROW(1), INT_ROW(2), INT_ROW(3), INT_ROW(4),
#if INT_ROWS >= 6
    INT_ROW(5), INT_ROW(6),
#endif
#if INT_ROWS >= 12
    INT_ROW(7), INT_ROW(8), INT_ROW(9), INT_ROW(10), INT_ROW(11), INT_ROW(12),
#endif
};

static uint32_t int_n_groups(const struct weight *w)
{
    return (w->k + quant_group(w) - 1) / quant_group(w);
}

/* Offsets of a slot's parts, in units of 4 bytes; the quads come last. */
static size_t int_slot_start(const struct weight *w, uint32_t n_rows)
{
    return (size_t)int_n_groups(w) * n_rows;
}

static size_t int_slot_sums(const struct weight *w, uint32_t n_rows)
{
    return int_slot_start(w, n_rows) + (size_t)int_n_groups(w) * n_rows;
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

/* Put the quads of n elements at their places, which are `step` quads apart. */
ALWAYS_INLINE void int_put(int32_t *quads, size_t step, const int8_t *bytes, uint32_t n)
{
    int32_t four[QUANT_CHUNK / 4];

    memcpy(four, bytes, sizeof(four));
    UNROLL
    for (uint32_t i = 0; i < QUANT_CHUNK / 4; i++)
        if (n == QUANT_CHUNK || i < (n + 7) / 8 * 2)
            quads[i * step] = four[i];
}

static void int_pack_row(const struct weight *w, int32_t *slot, uint32_t r, uint32_t n_rows,
                         const float *a)
{
    const uint32_t group = quant_group(w);
    float *scale = (float *)slot + r;
    int32_t *start = slot + int_slot_start(w, n_rows) + r;
    float *sums = (float *)slot + int_slot_sums(w, n_rows) + r; /* of affine types */
    int32_t *quads = slot + int_slot_quads(w, n_rows) + r;
    int32_t factor = int_start_factor(w->dtype);

    for (uint32_t k = 0; k < w->k; k += group, scale += n_rows, start += n_rows) {
        uint32_t end = min_u32(k + group, w->k);
        struct quant_scale by = quant_scale_of(a + k, end - k);
        vi lanes = v_set1_i32(0);

        for (uint32_t c = k; c < end; c += QUANT_CHUNK) {
            _Alignas(64) int8_t bytes[QUANT_CHUNK];
            uint32_t n = min_u32(end - c, QUANT_CHUNK);

            quant_chunk(bytes, a + c, n, by.inverse, &lanes);
            int_put(quads + (size_t)(c / 4) * n_rows, n_rows, bytes, n);
        }
        int32_t sum = quant_sum(lanes);

        *scale = by.scale;
        *start = factor * sum;
        if (dtype_is_affine(w->dtype)) {
            *sums = (float)sum * by.scale;
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
    struct int_tile g = {.w = gemm_panel_data(j, b->panel),
                         .k = w->k,
                         .group = w->group,
                         .quant = quant_group(w),
                         .fetch = &b->fetch};
    uint32_t n_chunks = (w->k + QUANT_CHUNK - 1) / QUANT_CHUNK;

    for (uint32_t i = b->begin; i < b->end; i++) {
        uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);
        const int32_t *slot = (const int32_t *)(const void *)gemm_slot(j, i);

        g.scale = (const float *)(const void *)slot;
        g.start = slot + int_slot_start(w, n);
        g.sums = (const float *)(const void *)(slot + int_slot_sums(w, n));
        g.quads = slot + int_slot_quads(w, n);
        g.share = gemm_share_of(j, b, i, n_chunks);
        g.end = gemm_end_of(j, b->panel, i);
        gemm_fetch_out(&g.end, n);
        int_tiles[n - 1][w->dtype - DTYPE_I8](&g);
        g.fetch = NULL;
    }
}

#ifdef GEMM_INT_NAME
#define int_kernel GEMM_INT_NAME
const struct gemm_kernel int_kernel = {
#else
static const struct gemm_kernel int_kernel = {
#endif
    INT_ROWS, true, int_slot_bytes, int_pack, int_panel, true,
};

#endif
