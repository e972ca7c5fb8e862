/* gemm_f8.h - products with F8 weights, whose numbers become floats in the first-level cache.
 *
 * A group of a panel is converted once for up to F8_BATCH groups of rows, in registers if there is
 * only one. Each of them multiplies it from a sum of 0 on; then sum = fma(group's sum, scale, sum)
 * (params.h). With vdpbf16ps the numbers become bf16, which holds them exactly, and activations are
 * rounded to bf16. A pair of bf16 is then not of neighbours: bytes 0 and 2 of a quad are the first
 * pair, bytes 1 and 3 the second one, which saves shuffles. Other variants convert to f32 and
 * multiply f32 activations. */
#ifndef TARN_KERNELS_CPU_GEMM_F8_H
#define TARN_KERNELS_CPU_GEMM_F8_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_float.h"

#define F8_GROUP 128
/* Groups of rows that share a conversion; their sums lie on the stack: 12 KB. */
#define F8_BATCH 8
/* Bytes of a row of a panel: four elements of K. */
#define F8_ROW_BYTES (PANEL_COLS * 4)

/* One group of rows times a group of a panel. */
struct f8_tile {
    const void *a;              /* its activations, from this group on: [pairs or k][rows] */
    const unsigned char *w;     /* as packed, or converted: [pairs or k][PANEL_COLS] */
    uint32_t n_k;               /* elements */
    const unsigned char *scale; /* [PANEL_COLS], f32 */
    float *sums;                /* [rows][PANEL_COLS] */
};

#ifdef HAVE_BF16_DOT

typedef uint16_t f8_element;
#define F8_PER_WORD 2 /* elements in four bytes */
#define F8_ROWS_MAX 12

/* Convert a vector of quads to one of first and one of second pairs. */
ALWAYS_INLINE void f8_convert(vu pair[2], vu quads)
{
    pair[0] = (vu)v_bf16_from_f8((vb)quads, 0);
    pair[1] = (vu)v_bf16_from_f8((vb)quads, 1);
}

/* Convert a vector of quads to two vectors that are a row apart. */
ALWAYS_INLINE void f8_unpack(f8_element *out, const unsigned char *quads)
{
    vu pair[2];

    f8_convert(pair, (vu)b_load(quads));
    b_store(out, (vb)pair[0]);
    b_store(out + 2 * PANEL_COLS, (vb)pair[1]);
}

ALWAYS_INLINE void f8_products(vf *acc, const struct f8_tile *g, int n_rows, int nc, uint32_t col,
                               bool packed)
{
    const unsigned char *w = g->w + col * 4;
    const uint32_t *a = g->a;

    for (uint32_t k = 0; k < g->n_k; k += 4, w += packed ? F8_ROW_BYTES : 2 * F8_ROW_BYTES) {
        vu pair[PANEL_COLS / VW][2];

        UNROLL
        for (int j = 0; j < nc; j++) {
            const unsigned char *at = w + (size_t)j * VW * 4;

            if (packed) {
                f8_convert(pair[j], (vu)b_load(at));
            } else {
                pair[j][0] = (vu)b_load(at);
                pair[j][1] = (vu)b_load(at + F8_ROW_BYTES);
            }
        }
        UNROLL
        for (int i = 0; i < 2; i++, a += n_rows) {
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vf both = (vf)v_set1_i32((int32_t)a[r]);

                UNROLL
                for (int j = 0; j < nc; j++)
                    acc[r * nc + j] = v_dot_bf16(acc[r * nc + j], both, (vf)pair[j][i]);
            }
        }
    }
}

static size_t f8_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return (((size_t)w->k + 3) / 4 * 2 * n_rows * 4 + 63) / 64 * 64;
}

static void f8_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    uint32_t k_max = j->p->w.k;

    for (uint32_t r = 0; r < n_rows; r++, a += j->p->a_stride) {
        uint32_t *dst = (uint32_t *)(void *)gemm_slot(j, group) + r;

        for (uint32_t k = 0; k < k_max; k += 2 * VW) {
            uint32_t n = min_u32(k_max - k, 2 * VW);
            uint16_t h[2 * VW];

            bf16_pairs(h, a + k, n, true);
            for (uint32_t i = 0; i < n; i += 4, dst += 2 * n_rows) {
                dst[0] = h[i] | (uint32_t)h[i + 2] << 16;
                dst[n_rows] = h[i + 1] | (uint32_t)h[i + 3] << 16;
            }
        }
    }
}

#else

typedef float f8_element;
#define F8_PER_WORD 1
#define F8_ROWS_MAX ROWS_MAX

/* Convert the lowest byte of each lane, as kv_unrounded(). */
ALWAYS_INLINE vf f8_convert(vu quads)
{
    vf mag = (vf)((quads & 0x7f) << 20) * 0x1p120f;

    return (vf)((vu)mag | (quads & 0x80) << 24);
}

/* Convert a vector of quads to four vectors that are a row apart. */
ALWAYS_INLINE void f8_unpack(f8_element *out, const unsigned char *quads)
{
    vu w = (vu)b_load(quads);

    UNROLL
    for (uint32_t i = 0; i < 4; i++, w >>= 8, out += PANEL_COLS)
        v_store(out, f8_convert(w));
}

ALWAYS_INLINE void f8_products(vf *acc, const struct f8_tile *g, int n_rows, int nc, uint32_t col,
                               bool packed)
{
    const float *a = g->a;
    struct chain c = {.a = a,
                      .a_k = (size_t)n_rows,
                      .a_row = 1,
                      .w = g->w + col * sizeof(float),
                      .w_k = PANEL_COLS * sizeof(float),
                      .n_k = g->n_k};

    if (!packed) {
        chain_plain(acc, n_rows, nc, DTYPE_F32, false, &c);
        return;
    }
    for (uint32_t k = 0; k < g->n_k; k++, a += n_rows) {
        const unsigned char *quads = g->w + (size_t)(k / 4) * F8_ROW_BYTES + col * 4;
        vf wv[PANEL_COLS / VW];

        UNROLL
        for (int j = 0; j < nc; j++)
            wv[j] = f8_convert((vu)b_load(quads + (size_t)j * VW * 4) >> 8 * (k % 4));
        chain_step(acc, n_rows, nc, a, 1, wv);
    }
}

#define f8_slot_bytes float_slot_bytes
#define f8_pack float_pack

#endif

KERNEL_BODY void f8_tile(const struct f8_tile *g, int n_rows, bool packed)
{
    const int nc = chain_cols(n_rows);

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        vf acc[ACC_MAX];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1(0);
        f8_products(acc, g, n_rows, nc, col, packed);
        UNROLL
        for (int j = 0; j < nc; j++) {
            float *sums = g->sums + col + j * VW;
            vf scale = v_load((const float *)(const void *)g->scale + col + j * VW);

            UNROLL
            for (int r = 0; r < n_rows; r++, sums += PANEL_COLS)
                v_store(sums, v_fma(acc[r * nc + j], scale, v_load(sums)));
        }
    }
}

#define F8_TILE(rows)                                                                              \
    static void f8_##rows(const struct f8_tile *g)                                                 \
    {                                                                                              \
        f8_tile(g, rows, false);                                                                   \
    }                                                                                              \
    static void f8_packed_##rows(const struct f8_tile *g)                                          \
    {                                                                                              \
        f8_tile(g, rows, true);                                                                    \
    }
#define F8_ROW(rows)                                                                               \
    {                                                                                              \
        f8_##rows, f8_packed_##rows                                                                \
    }

F8_TILE(1)
F8_TILE(2)
F8_TILE(3)
F8_TILE(4)
#if ROWS_MAX >= 6
F8_TILE(5)
F8_TILE(6)
#endif
#if ROWS_MAX >= 12
F8_TILE(7)
F8_TILE(8)
F8_TILE(9)
F8_TILE(10)
F8_TILE(11)
F8_TILE(12)
#endif

/* By rows, and whether the weights are as packed. */
static void (*const f8_tiles[F8_ROWS_MAX][2])(const struct f8_tile *) = {
    F8_ROW(1), F8_ROW(2), F8_ROW(3), F8_ROW(4),
#if ROWS_MAX >= 6
    F8_ROW(5), F8_ROW(6),
#endif
#if ROWS_MAX >= 12
    F8_ROW(7), F8_ROW(8), F8_ROW(9), F8_ROW(10), F8_ROW(11), F8_ROW(12),
#endif
};

/* Prefetch what belongs to rows [row, row + n) of the walk over the panel. */
static void f8_fetch(const struct chain_fetch *fetch, uint32_t row, uint32_t n)
{
    for (uint32_t i = row; fetch && i < row + n; i++)
        chain_fetch_step(fetch, i);
}

static void f8_unpack_group(f8_element *out, const unsigned char *w, uint32_t n_quads)
{
    for (uint32_t i = 0; i < n_quads; i++, w += F8_ROW_BYTES, out += 4 * PANEL_COLS) {
        UNROLL
        for (uint32_t col = 0; col < PANEL_COLS; col += VW)
            f8_unpack(out + col * F8_PER_WORD, w + (size_t)col * 4);
    }
}

/* Multiply groups [begin, end) of rows, at most F8_BATCH, by the panel. One group of rows converts
 * numbers as it multiplies; several share the converted ones. */
static void f8_batch(const struct gemm_job *j, const struct gemm_panel *b, uint32_t begin,
                     uint32_t end, const struct chain_fetch *fetch)
{
    _Alignas(64) float sums[F8_BATCH][F8_ROWS_MAX * PANEL_COLS];
    _Alignas(64) f8_element numbers[F8_GROUP * PANEL_COLS];
    const unsigned char *w = gemm_panel_data(j, b->panel);
    bool packed = end - begin == 1;

    memset(sums, 0, (end - begin) * sizeof *sums);
    for (uint32_t k = 0, row = 0; k < j->p->w.k; k += F8_GROUP) {
        uint32_t n_k = min_u32(j->p->w.k - k, F8_GROUP), n_quads = (n_k + 3) / 4;
        const unsigned char *quads = w + pack_head_bytes(DTYPE_F8);
        struct f8_tile g = {
            .w = packed ? quads : (const unsigned char *)numbers, .n_k = n_k, .scale = w};

        f8_fetch(fetch, row, n_quads + 1);
        if (!packed)
            f8_unpack_group(numbers, quads, n_quads);
        for (uint32_t i = begin; i < end; i++) {
            uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);

            g.a = gemm_slot(j, i) + (size_t)k / F8_PER_WORD * n * sizeof(float);
            g.sums = sums[i - begin];
            f8_tiles[n - 1][packed](&g);
        }
        w += pack_group_bytes(DTYPE_F8, n_k);
        row += n_quads + 1;
    }
    for (uint32_t i = begin; i < end; i++) {
        struct gemm_end e = gemm_end_of(j, b->panel, i);

        gemm_store(&e, sums[i - begin], gemm_group_row(j, i + 1) - gemm_group_row(j, i), PANEL_COLS,
                   0);
    }
}

static void f8_panel(const struct gemm_job *j, const struct gemm_panel *b)
{
    for (uint32_t i = b->begin; i < b->end; i += F8_BATCH)
        f8_batch(j, b, i, min_u32(i + F8_BATCH, b->end), i == b->begin ? &b->fetch : NULL);
}

static const struct gemm_kernel f8_kernel = {F8_ROWS_MAX, true,     f8_slot_bytes,
                                             f8_pack,     f8_panel, false};

#endif
