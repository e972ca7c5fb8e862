/* gemm_f8.h - products with F8 weights, whose numbers become floats in the first-level cache.
 *
 * A group of a panel is converted once for up to F8_BATCH groups of rows. Each of them multiplies
 * it from a sum of 0 on; then sum = fma(group's sum, scale, sum) (params.h). With vdpbf16ps the
 * numbers become bf16, which holds them exactly, and so do the activations. A pair of bf16 is then
 * not of neighbours: bytes 0 and 2 of a quad are the first pair, bytes 1 and 3 the second one, which
 * saves shuffles. Other variants convert to f32 and multiply f32 activations. */
#ifndef TARN_KERNELS_CPU_GEMM_F8_H
#define TARN_KERNELS_CPU_GEMM_F8_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_float.h"

#define F8_GROUP 128
/* Groups of rows that share a conversion; their sums lie on the stack: 12 KB. */
#define F8_BATCH 8
/* Bytes of a row of a panel: four elements of K. */
#define F8_ROW_BYTES (PANEL_COLS * 4)

/* One group of rows times a converted group of a panel. */
struct f8_tile {
    const void *a;              /* its activations, from this group on: [pairs or k][rows] */
    const unsigned char *w;     /* [pairs or k][PANEL_COLS] */
    uint32_t n_k;               /* pairs, or elements */
    const unsigned char *scale; /* [PANEL_COLS], f32 */
    float *sums;                /* [rows][PANEL_COLS] */
};

#ifdef HAVE_BF16_DOT

typedef uint16_t v16 __attribute__((vector_size(VW * 4)));
typedef uint16_t f8_element;
#define F8_PER_WORD 2 /* elements in four bytes */
#define F8_ROWS_MAX 12

/* The numbers in the lower bytes of 16-bit lanes as bf16. Those below 2^-6 come from a table: bf16
 * has no shift that makes them normal numbers. */
ALWAYS_INLINE v16 f8_to_bf16(v16 c)
{
    /* i * 2^-9, by the lower bits of the lane; lanes with other bits set are not used */
    const v16 few = {0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    v16 mag = (c & 0x7f) << 4, is_small = (v16)(mag < 0x80);
    v16 small = __builtin_shuffle(few, c & 7);

    mag = (small & is_small) | ((mag + 0x3c00) & ~is_small);
    return mag | ((c << 8) & 0x8000);
}

/* Convert one vector of quads to two of pairs, which are a row of pairs apart. */
ALWAYS_INLINE void f8_convert(f8_element *out, const unsigned char *quads)
{
    vu w = (vu)b_load(quads);

    b_store(out, (vb)f8_to_bf16((v16)(w & 0x00ff00ffu)));
    b_store(out + 2 * PANEL_COLS, (vb)f8_to_bf16((v16)(w >> 8 & 0x00ff00ffu)));
}

ALWAYS_INLINE void f8_products(vf *acc, const struct f8_tile *g, int n_rows, int nc, uint32_t col)
{
    const unsigned char *w = g->w + col * 4;
    const uint32_t *a = g->a;

    for (uint32_t k = 0; k < g->n_k; k++, w += PANEL_COLS * 4, a += n_rows) {
        vf wv[PANEL_COLS / VW];

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

/* Convert one vector of quads to four of elements, which are a row of elements apart. */
ALWAYS_INLINE void f8_convert(f8_element *out, const unsigned char *quads)
{
    vu w = (vu)b_load(quads);

    UNROLL
    for (uint32_t i = 0; i < 4; i++, w >>= 8, out += PANEL_COLS) {
        vf mag = (vf)((w & 0x7f) << 20) * 0x1p120f; /* as kv_unrounded() */

        v_store(out, (vf)((vu)mag | (w & 0x80) << 24));
    }
}

ALWAYS_INLINE void f8_products(vf *acc, const struct f8_tile *g, int n_rows, int nc, uint32_t col)
{
    struct chain c = {.a = g->a,
                      .a_k = (size_t)n_rows,
                      .a_row = 1,
                      .w = g->w + col * sizeof(float),
                      .w_k = PANEL_COLS * sizeof(float),
                      .n_k = g->n_k};

    chain_plain(acc, n_rows, nc, DTYPE_F32, false, &c);
}

#define f8_slot_bytes float_slot_bytes
#define f8_pack float_pack

#endif

KERNEL_BODY void f8_tile(const struct f8_tile *g, int n_rows)
{
    const int nc = chain_cols(n_rows);

    for (uint32_t col = 0; col < PANEL_COLS; col += (uint32_t)nc * VW) {
        vf acc[ACC_MAX];

        UNROLL
        for (int i = 0; i < n_rows * nc; i++)
            acc[i] = v_set1(0);
        f8_products(acc, g, n_rows, nc, col);
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
        f8_tile(g, rows);                                                                          \
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

static void (*const f8_tiles[F8_ROWS_MAX])(const struct f8_tile *) = {
    f8_1, f8_2, f8_3, f8_4,
#if ROWS_MAX >= 6
    f8_5, f8_6,
#endif
#if ROWS_MAX >= 12
    f8_7, f8_8, f8_9, f8_10, f8_11, f8_12,
#endif
};

/* Convert n_quads rows of a panel. `fetch` (NULL: none) prefetches meanwhile, from its row `row`
 * on. */
static void f8_convert_group(f8_element *out, const unsigned char *w, uint32_t n_quads,
                             const struct chain_fetch *fetch, uint32_t row)
{
    for (uint32_t i = 0; i < n_quads; i++, w += F8_ROW_BYTES, out += 4 * PANEL_COLS) {
        if (fetch)
            chain_fetch_step(fetch, row + i);
        UNROLL
        for (uint32_t col = 0; col < PANEL_COLS; col += VW)
            f8_convert(out + col * F8_PER_WORD, w + (size_t)col * 4);
    }
}

/* Multiply groups [begin, end) of rows, at most F8_BATCH, by the panel. */
static void f8_batch(const struct gemm_job *j, const struct gemm_panel *b, uint32_t begin,
                     uint32_t end, const struct chain_fetch *fetch)
{
    _Alignas(64) float sums[F8_BATCH][F8_ROWS_MAX * PANEL_COLS];
    _Alignas(64) f8_element numbers[F8_GROUP * PANEL_COLS];
    const unsigned char *w = gemm_panel_data(j, b->panel);

    memset(sums, 0, (end - begin) * sizeof *sums);
    for (uint32_t k = 0, row = 0; k < j->p->w.k; k += F8_GROUP) {
        uint32_t n_k = min_u32(j->p->w.k - k, F8_GROUP), n_quads = (n_k + 3) / 4;
        struct f8_tile g = {.w = (const unsigned char *)numbers,
                            .n_k = F8_PER_WORD == 2 ? 2 * n_quads : n_k,
                            .scale = w};

        f8_convert_group(numbers, w + pack_head_bytes(DTYPE_F8), n_quads, fetch, row);
        for (uint32_t i = begin; i < end; i++) {
            uint32_t n = gemm_group_row(j, i + 1) - gemm_group_row(j, i);

            g.a = gemm_slot(j, i) + (size_t)k / F8_PER_WORD * n * sizeof(float);
            g.sums = sums[i - begin];
            f8_tiles[n - 1](&g);
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
