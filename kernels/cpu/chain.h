/* chain.h - the inner loop of products and attention: R rows times NC vectors of columns.
 *
 * acc[r][j] = fma(a[r][k], w[k][j], acc[r][j]) for ascending k: each lane of each accumulator is
 * one chain of fused multiply-adds over k, for every R and NC. For products, promise P1
 * (ARCHITECTURE.md) follows from that alone: the instances for 1 and for 12 rows compute different
 * numbers of outputs, but each output by the same operations. Storing accumulators as float and
 * loading them again between two calls does not change the chain.
 *
 * Everything is inlined with constant R, NC, dtype and layout, so that acc stays in registers. */
#ifndef TARN_KERNELS_CPU_CHAIN_H
#define TARN_KERNELS_CPU_CHAIN_H

#include <stdbool.h>

#include "kernels/cpu/vec.h"

/* The operands. Element k of row r is a[k * a_k + r * a_row]; row k of the columns is at w + k *
 * w_k bytes (with pairs: elements 2i and 2i + 1 of all columns at w + i * w_k). */
struct chain {
    const float *a;
    size_t a_k;
    size_t a_row;
    const unsigned char *w;
    size_t w_k;
    uint32_t n_k;
    /* Memory to prefetch meanwhile: this many bytes behind w, or the streams of `fetch`. */
    ptrdiff_t ahead;                 /* 0: nothing */
    const struct chain_fetch *fetch; /* NULL: nothing */
    uint32_t n_cols;                 /* columns that exist; used only if `part` is set */
};

/* Most vectors of columns for which R rows leave accumulators: a power of two, at most a panel. */
ALWAYS_INLINE int chain_cols(int n_rows)
{
    int nc = PANEL_COLS / VW;

    while (nc * n_rows > ACC_MAX)
        nc /= 2;
    return nc;
}

/* Bytes of an element of w; one byte: KV that is scaled by the caller. */
ALWAYS_INLINE size_t chain_bytes(enum dtype t)
{
    return kv_dtype_is_scaled(t) ? 1 : dtype_bytes(t);
}

ALWAYS_INLINE vf chain_load(enum dtype t, bool part, const struct chain *c, const unsigned char *w,
                            int j)
{
    uint32_t col = (uint32_t)j * VW;

    w += col * chain_bytes(t);
    if (!part || c->n_cols >= col + VW)
        return kv_dtype_is_scaled(t) ? v_load_byte(t, w) : v_load_as(t, w);
    if (c->n_cols <= col)
        return v_set1(0);
    return kv_dtype_is_scaled(t) ? v_load_byte_n(t, w, c->n_cols - col)
                                 : v_load_as_n(t, w, c->n_cols - col);
}

/* One k for all rows; w has the NC vectors of this k. */
ALWAYS_INLINE void chain_step(vf *acc, int n_rows, int nc, const float *a, size_t a_row,
                              const vf *w)
{
    int r = 0;

#ifdef HAVE_LANES
    const int n_lanes = a_row == 1 ? n_rows / 4 * 4 : 0;

    UNROLL
    for (; r < n_lanes; r += 4) {
        vf four = v_load(a + r);

        UNROLL
        for (int i = 0; i < 4 * nc; i++)
            acc[r * nc + i] = v_fma_lane(four, i / nc, w[i % nc], acc[r * nc + i]);
    }
#endif
    UNROLL
    for (; r < n_rows; r++) {
        vf b = v_set1(a[(size_t)r * a_row]);

        UNROLL
        for (int j = 0; j < nc; j++)
            acc[r * nc + j] = v_fma(b, w[j], acc[r * nc + j]);
    }
}

/* The prefetch of a walk over a panel: four streams of lines that are `stride` bytes apart.
 * FETCH_FOUR_STREAMS are four places; FETCH_ONE_STREAM is one place, FETCH_AHEAD_BYTES behind what
 * is read, whose lines the four share. */
#define FETCH_FOUR_STREAMS 64
#define FETCH_ONE_STREAM 256
#define FETCH_AHEAD_BYTES (8 << 10)
struct chain_fetch {
    const unsigned char *from[4];
    size_t stride;
};

/* The prefetch of row i of the walk. A row has 128 bytes: two lines. */
ALWAYS_INLINE void chain_fetch_step(const struct chain_fetch *f, uint32_t i)
{
    const unsigned char *const *from = f->from + i % 2 * 2;
    size_t at = i / 2 * f->stride;

    __builtin_prefetch(from[0] + at, 0, 2);
    __builtin_prefetch(from[1] + at, 0, 2);
}

/* Prefetch n lines from `at` on into the second-level cache; returns what is behind them. */
ALWAYS_INLINE const unsigned char *chain_fetch_lines(const unsigned char *at, uint32_t n)
{
#pragma GCC unroll 1
    for (; n > 0; n--, at += 64)
        __builtin_prefetch(at, 0, 2);
    return at;
}

/* Prefetch n_bytes from w on into the second-level cache. */
ALWAYS_INLINE void fetch_lines_l2(const unsigned char *w, size_t n_bytes)
{
    UNROLL
    for (size_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(w + i, 0, 2);
}

/* Prefetch n_bytes from w + ahead on. */
ALWAYS_INLINE void fetch_lines(const unsigned char *w, size_t n_bytes, ptrdiff_t ahead)
{
    UNROLL
    for (size_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(w + ahead + i);
}

/* Rows of w one after the other: f32 and f16 panels, KV blocks. */
ALWAYS_INLINE void chain_plain(vf *acc, int n_rows, int nc, enum dtype t, bool part,
                               const struct chain *c)
{
    const unsigned char *w = c->w;
    const float *a = c->a;

    for (uint32_t k = 0; k < c->n_k; k++, w += c->w_k, a += c->a_k) {
        vf wv[PANEL_COLS / VW];

        if (c->ahead)
            fetch_lines(w, (size_t)nc * VW * chain_bytes(t), c->ahead);
        if (c->fetch && (t == DTYPE_F32 || k % 2 == 0))
            chain_fetch_step(c->fetch, t == DTYPE_F32 ? k : k / 2);
        UNROLL
        for (int j = 0; j < nc; j++)
            wv[j] = chain_load(t, part, c, w, j);
        chain_step(acc, n_rows, nc, a, c->a_row, wv);
    }
}

/* One vector of pairs along k, in 32-bit lanes. */
ALWAYS_INLINE vu chain_load_pairs(bool part, const struct chain *c, const unsigned char *w, int j)
{
    uint32_t col = (uint32_t)j * VW;
    const float *p = (const float *)(const void *)(w + (size_t)col * 4);

    if (!part || c->n_cols >= col + VW)
        return (vu)v_load(p);
    return c->n_cols <= col ? (vu)v_set1(0) : (vu)v_load_n(p, c->n_cols - col);
}

/* bf16: pairs along k in 32-bit lanes. The even element is the lower half: shifting it up gives the
 * float. Masking the lower half off gives the float of the odd one. */
ALWAYS_INLINE void chain_pairs(vf *acc, int n_rows, int nc, bool part, const struct chain *c)
{
    const unsigned char *w = c->w;
    const float *a = c->a;
    vu pair[PANEL_COLS / VW];
    vf wv[PANEL_COLS / VW];

    for (uint32_t k = 0; k < c->n_k; k += 2, w += c->w_k, a += 2 * c->a_k) {
        if (c->ahead)
            fetch_lines(w, (size_t)nc * VW * 4, c->ahead);
        if (c->fetch)
            chain_fetch_step(c->fetch, k / 2);
        UNROLL
        for (int j = 0; j < nc; j++) {
            pair[j] = chain_load_pairs(part, c, w, j);
            wv[j] = (vf)(pair[j] << 16);
        }
        chain_step(acc, n_rows, nc, a, c->a_row, wv);
        if (k + 1 == c->n_k)
            break;
        UNROLL
        for (int j = 0; j < nc; j++)
            wv[j] = (vf)(pair[j] & 0xffff0000u);
        chain_step(acc, n_rows, nc, a + c->a_k, c->a_row, wv);
    }
}

/* Only the odd element of the pairs at w, for a chain that begins in the middle of a pair. */
ALWAYS_INLINE void chain_odd(vf *acc, int n_rows, int nc, bool part, const struct chain *c)
{
    vf wv[PANEL_COLS / VW];

    UNROLL
    for (int j = 0; j < nc; j++)
        wv[j] = (vf)(chain_load_pairs(part, c, c->w, j) & 0xffff0000u);
    chain_step(acc, n_rows, nc, c->a, c->a_row, wv);
}

#endif
