/* gemm_amx.h - products with bf16 and quantized weights on AMX tiles.
 *
 * A group is two row blocks of at most 16 rows. Its activations are packed in the order of the
 * tiles: block after block, [step][rows][64 bytes]; a step is 32 bf16 or 64 int8 elements of K. The
 * tile instructions treat every row of A separately, in an order along K that depends on the shape
 * alone, so a row's bits do not depend on the other rows (promise P1). Integer products are exact
 * and equal those of gemm_int.h. */
#ifndef TARN_KERNELS_CPU_GEMM_AMX_H
#define TARN_KERNELS_CPU_GEMM_AMX_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_quant.h"

/* Number of rows from which tiles are faster than vpdpbusd. */
#define AMX_INT_ROWS_MIN 9
/* Steps of B that stay in the first-level cache while all groups are multiplied by them. */
#define AMX_BF16_STEPS 8

/* Outputs of a step that no cache keeps until they are read: from there on a store that does not
 * read its line first is faster. Rows of outputs lie at the same place in every page, so the few
 * lines that a cache has for them hold back all other stores. */
#define AMX_STREAM_BYTES (4u << 20)

static bool amx_streams(const struct gemm_job *j)
{
    const struct gemm_params *p = j->p;

    return !p->accumulate && p->out_stride % VW == 0 && (uintptr_t)p->out % AMX_ROW_BYTES == 0 &&
           (uint64_t)j->n_rows * p->w.n * sizeof(float) >= AMX_STREAM_BYTES;
}

/* gemm_store() of n_rows sums [n_rows][width]. */
static void amx_store(const struct gemm_end *e, bool streams, const float *sums, uint32_t n_rows,
                      uint32_t width, uint32_t col0)
{
    if (!streams || e->n_cols < col0 + width) {
        gemm_store(e, sums, n_rows, width, col0);
        return;
    }
    for (uint32_t i = 0; i < width; i += VW) {
        vf bias = e->bias ? v_load(e->bias + col0 + i) : v_set1(0);

        for (uint32_t r = 0; r < n_rows; r++) {
            vf v = v_load(sums + r * width + i);

            v_stream(e->out + r * e->out_stride + col0 + i, e->bias ? v + bias : v);
        }
    }
}

/* --- bf16 --- */

static uint32_t amx_bf16_steps(const struct weight *w)
{
    return (w->k + 31) / 32;
}

/* Activations are stored span after span, so that one span of all groups is one stream through
 * memory: [span][group][row block][step of the span][rows][64 bytes]. */
_Static_assert(AMX_BF16_STEPS *AMX_ROW_BYTES <= CPU_PACK_ROW_EXTRA, "a span is padded");
#define AMX_SPAN_BYTES (AMX_BF16_STEPS * AMX_GROUP_ROWS * AMX_ROW_BYTES) /* of one group */

static size_t amx_bf16_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    (void)n_rows;
    return (size_t)((amx_bf16_steps(w) + AMX_BF16_STEPS - 1) / AMX_BF16_STEPS) * AMX_SPAN_BYTES;
}

static unsigned char *amx_bf16_at(const struct gemm_job *j, uint32_t group, uint32_t span)
{
    return j->packed + ((size_t)span * j->n_groups + group) * AMX_SPAN_BYTES;
}

static void amx_bf16_pack_row(const struct gemm_job *j, uint32_t group, uint32_t r, uint32_t n_rows,
                              const float *x)
{
    uint32_t m0 = min_u32(n_rows, AMX_ROWS), n_k = j->p->w.k;
    size_t m = r < m0 ? m0 : n_rows - m0, block = r < m0 ? 0 : m0 * AMX_BF16_STEPS;
    size_t step = m * AMX_ROW_BYTES;

    for (uint32_t span = 0, k = 0; k < n_k; span++) {
        unsigned char *dst = amx_bf16_at(j, group, span) + (block + r % AMX_ROWS) * AMX_ROW_BYTES;

        for (uint32_t s = 0; s < AMX_BF16_STEPS && k < n_k; s++, k += 32, dst += step)
            bf16_pairs(dst, x + k, min_u32(n_k - k, 32), true);
    }
}

static void amx_bf16_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        amx_bf16_pack_row(j, group, r, n_rows, a + r * j->p->a_stride);
}

struct amx_bf16_span {         /* a few steps of one panel */
    const unsigned char *w;    /* first step of the span */
    const unsigned char *tail; /* the panel's last step if it is short, padded with zeros */
    uint32_t begin, end;       /* steps; step end - 1 is the tail if `tail` is set */
    /* The span behind it, next_bytes of which are prefetched into the first-level cache in each
     * step of each group: a tile load waits for each line that is missing there. */
    const unsigned char *next;
    uint32_t next_bytes;
    /* The panel's prefetch from memory, fetch_rows of it in each step of each group. */
    const struct chain_fetch *fetch;
    uint32_t fetch_row, fetch_rows;
};

/* One group over the n whole steps of a span. */
ALWAYS_INLINE void amx_bf16_steps_of(bool two, struct amx_bf16_span *b, const unsigned char *a0,
                                     const unsigned char *a1, size_t m0, size_t m1, uint32_t n)
{
    const unsigned char *w = b->w, *next = b->next;

    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t i = 0; i < b->fetch_rows; i++)
            chain_fetch_step(b->fetch, b->fetch_row++);
        for (uint32_t i = 0; i < b->next_bytes; i += 64)
            __builtin_prefetch(next + i);
        amx_step(two, a0, a1, w, AMX_B_STRIDE);
        a0 += m0 * AMX_ROW_BYTES;
        a1 += m1 * AMX_ROW_BYTES;
        w += AMX_STEP_BYTES;
        next += b->next_bytes;
    }
    b->next = next;
}

static void amx_bf16_group(struct amx_bf16_span *b, const unsigned char *a0, uint32_t n_rows,
                           float *c)
{
    size_t m0 = min_u32(n_rows, AMX_ROWS), m1 = n_rows - m0;
    const unsigned char *a1 = a0 + AMX_BF16_STEPS * m0 * AMX_ROW_BYTES;
    uint32_t n = b->end - b->begin - (b->tail ? 1 : 0);
    bool two = m1 > 0;

    if (b->begin == 0)
        amx_zero(two);
    else
        amx_load_c(c, two);
    if (!two)
        amx_bf16_steps_of(false, b, a0, a0, m0, 0, n);
    else
        amx_bf16_steps_of(true, b, a0, a1, m0, m1, n);
    if (b->tail)
        amx_step(two, a0 + n * m0 * AMX_ROW_BYTES, a1 + n * m1 * AMX_ROW_BYTES, b->tail,
                 AMX_B_STRIDE);
    amx_store_c(c, two);
}

static void amx_bf16_panel(const struct gemm_job *j, const struct gemm_panel *p)
{
    const struct weight *w = &j->p->w;
    const unsigned char *data = gemm_panel_data(j, p->panel);
    _Alignas(64) unsigned char tail[AMX_STEP_BYTES];
    uint32_t shape = 0, n_steps = amx_bf16_steps(w), n_groups = p->end - p->begin;
    size_t whole = (size_t)(w->k / 32) * AMX_STEP_BYTES;
    float *c = j->cpu->tile_scratch[p->thread].c;
    bool streams = amx_streams(j);
    /* With one group, the prefetch of the next span is a stream that runs ahead as far. */
    bool fetches = n_groups > 1 || p->fetch.stride != FETCH_ONE_STREAM;

    if (w->k % 32) {
        memset(tail, 0, sizeof(tail));
        memcpy(tail, data + whole, j->panel_bytes - whole);
    }
    for (uint32_t s = 0; s < n_steps; s += AMX_BF16_STEPS) {
        struct amx_bf16_span b = {.w = data + (size_t)s * AMX_STEP_BYTES,
                                  .begin = s,
                                  .end = min_u32(s + AMX_BF16_STEPS, n_steps),
                                  .next = data + (s + AMX_BF16_STEPS) * (size_t)AMX_STEP_BYTES,
                                  .next_bytes = (AMX_STEP_BYTES / n_groups + 63) / 64 * 64,
                                  .fetch = &p->fetch,
                                  .fetch_row = s * AMX_ROWS,
                                  .fetch_rows = fetches ? (AMX_ROWS + n_groups - 1) / n_groups : 0};

        if (b.end == n_steps && w->k % 32)
            b.tail = tail;
        for (uint32_t i = p->begin; i < p->end; i++) {
            uint32_t n_rows = gemm_group_row(j, i + 1) - gemm_group_row(j, i);
            float *ci = c + (size_t)(i - p->begin) * AMX_GROUP_ROWS * PANEL_COLS;

            if (n_rows != shape)
                amx_shape(shape = n_rows, AMX_ROW_BYTES);
            amx_bf16_group(&b, amx_bf16_at(j, i, s / AMX_BF16_STEPS), n_rows, ci);
            if (b.end == n_steps) {
                struct gemm_end e = gemm_end_of(j, p->panel, i);

                amx_store(&e, streams, ci, n_rows, PANEL_COLS, 0);
            }
        }
    }
    v_stream_end();
    amx_done();
}

static const struct gemm_kernel amx_bf16_kernel = {
    AMX_GROUP_ROWS, false, amx_bf16_slot_bytes, amx_bf16_pack, amx_bf16_panel, false};

/* --- quantized weights ---
 *
 * A group's slot: scale[groups of K][32], then the row blocks, then, for affine types, the sums of
 * q times scale [groups of K][32]; these groups of K are those of activations (quant_group()). A
 * panel is first unpacked to bytes, signed ones or codes, [column block][K/4][16][4], which all
 * rows then read from the nearer caches. One pair of a row block and a column block is computed at
 * a time: its 16 rows of float sums stay in vector registers, and the four C tiles take the groups
 * of K in turn. */

/* Bytes of one number for each row and group of K. */
static size_t amx_int_head(const struct weight *w)
{
    return w->k / quant_group(w) * AMX_GROUP_ROWS * sizeof(float);
}

static uint32_t amx_int_steps(const struct weight *w)
{
    return (w->k + 63) / 64;
}

static size_t amx_int_slot_sums(const struct weight *w, uint32_t n_rows)
{
    return amx_int_head(w) + (size_t)amx_int_steps(w) * n_rows * AMX_ROW_BYTES;
}

static size_t amx_int_slot_bytes(const struct weight *w, uint32_t n_rows)
{
    return amx_int_slot_sums(w, n_rows) + (dtype_is_affine(w->dtype) ? amx_int_head(w) : 0);
}

/* Quantize a row; `step`: bytes from a step of its row block to the next. scales, and sums or
 * NULL: [groups of K][AMX_GROUP_ROWS] at this row. */
static void amx_int_pack_row(const struct weight *w, int8_t *out, size_t step, float *scales,
                             float *sums, const float *x)
{
    const uint32_t group = quant_group(w);

    for (uint32_t k0 = 0; k0 < w->k; k0 += group, scales += AMX_GROUP_ROWS) {
        struct quant_scale by = quant_scale_of(x + k0, group);
        vi lanes = v_set1_i32(0);

        for (uint32_t k = k0; k < k0 + group; k += QUANT_CHUNK)
            quant_chunk(out + k / 64 * step + k % 64, x + k, QUANT_CHUNK, by.inverse, &lanes);
        *scales = by.scale;
        if (sums)
            sums[k0 / group * AMX_GROUP_ROWS] = (float)quant_sum(lanes) * by.scale;
    }
}

static void amx_int_pack(const struct gemm_job *j, uint32_t group, const float *a, uint32_t n_rows)
{
    const struct weight *w = &j->p->w;
    unsigned char *slot = gemm_slot(j, group);
    float *scale = (float *)(void *)slot;
    float *sums = (float *)(void *)(slot + amx_int_slot_sums(w, n_rows));
    int8_t *block = (int8_t *)slot + amx_int_head(w);

    for (uint32_t r0 = 0; r0 < n_rows; r0 += AMX_ROWS) {
        uint32_t m = min_u32(n_rows - r0, AMX_ROWS);
        size_t step = (size_t)m * AMX_ROW_BYTES;

        for (uint32_t r = 0; r < m; r++)
            amx_int_pack_row(w, block + r * AMX_ROW_BYTES, step, scale + r0 + r,
                             dtype_is_affine(w->dtype) ? sums + r0 + r : NULL,
                             a + (r0 + r) * j->p->a_stride);
        block += amx_int_steps(w) * step;
    }
}

/* Unpack a panel to signed bytes, or to codes, and prefetch meanwhile. */
ALWAYS_INLINE void amx_unpack(enum dtype t, const struct weight *w, const unsigned char *panel,
                              unsigned char *out, const struct chain_fetch *fetch)
{
    const uint32_t n_rows = w->group / (32 / dtype_bits(t)); /* rows of 128 bytes in a group */
    const uint8_t zero = t == DTYPE_I4 ? 8 : 0;
    size_t half = (size_t)w->k * AMX_ROWS;
    uint32_t step = 0;

    for (uint32_t k = 0; k < w->k; k += w->group) {
        panel += pack_head_bytes(t);
        for (uint32_t i = 0; i < n_rows; i++, panel += AMX_B_STRIDE) {
            chain_fetch_step(fetch, step++);
            for (int j = 0; j < 2; j++) {
                vu u = (vu)b_load(panel + j * 64);
                unsigned char *to = out + j * half;

                if (dtype_bits(t) == 4) {
                    b_store(to, (vb)(u & 0x0f0f0f0fu) - zero);
                    b_store(to + 64, (vb)(u >> 4 & 0x0f0f0f0fu) - zero);
                } else {
                    b_store(to, t == DTYPE_I8 ? (vb)(u ^ 0x80808080u) : (vb)u);
                }
            }
            out += dtype_bits(t) == 4 ? 128 : 64;
        }
    }
}

/* sum[r] += (float)c[r] * row[r] * scale, then += q[r] * offset with the group's sums q of affine
 * types. Rows beyond those in use have arbitrary values. */
ALWAYS_INLINE void amx_int_scale(bool affine, vf *sum, const int32_t *c,
                                 const unsigned char *scales, const float *row, const float *q)
{
    vf s = v_load_as(affine ? DTYPE_F16 : DTYPE_BF16, scales);

    UNROLL
    for (int r = 0; r < AMX_ROWS; r++)
        sum[r] =
            v_fma(__builtin_convertvector((vi)b_load(c + r * VW), vf) * v_set1(row[r]), s, sum[r]);
    if (!affine)
        return;
    s = v_load_as(DTYPE_F16, scales + PANEL_COLS * 2);
    UNROLL
    for (int r = 0; r < AMX_ROWS; r++)
        sum[r] = v_fma(v_set1(q[r]), s, sum[r]);
}

/* The product of one pair of blocks over one group of K into C tile 0 .. 3; exact. */
#define AMX_INT_DOT(tile, ta, tb)                                                                  \
    do {                                                                                           \
        AMX_ZERO(tile);                                                                            \
        for (uint32_t i = 0; i < group; i += k_bytes) {                                            \
            AMX_LOAD(ta, a + i / 64 * m * AMX_ROW_BYTES, AMX_ROW_BYTES);                           \
            AMX_LOAD(tb, b + i * AMX_ROWS, AMX_ROW_BYTES);                                         \
            if (affine)                                                                            \
                AMX_U8(tile, ta, tb);                                                              \
            else                                                                                   \
                AMX_I8(tile, ta, tb);                                                              \
        }                                                                                          \
    } while (0)

ALWAYS_INLINE void amx_int_dot(bool affine, uint32_t group, const unsigned char *a, size_t m,
                               const unsigned char *b, uint32_t tile)
{
    const uint32_t k_bytes = group < 64 ? group : 64;

    if (tile == 0)
        AMX_INT_DOT(0, 4, 6);
    else if (tile == 1)
        AMX_INT_DOT(1, 5, 7);
    else if (tile == 2)
        AMX_INT_DOT(2, 4, 6);
    else
        AMX_INT_DOT(3, 5, 7);
}

ALWAYS_INLINE void amx_int_take(uint32_t tile, int32_t *c)
{
    if (tile == 0)
        AMX_STORE(0, c, AMX_ROW_BYTES);
    else if (tile == 1)
        AMX_STORE(1, c, AMX_ROW_BYTES);
    else if (tile == 2)
        AMX_STORE(2, c, AMX_ROW_BYTES);
    else
        AMX_STORE(3, c, AMX_ROW_BYTES);
}

/* Groups of K from a tile's product to its store and to its scaling. A store directly behind its
 * product would stall everything behind it until the product is done. */
#define AMX_INT_STORE_LAG 1
#define AMX_INT_SCALE_LAG 3

/* A row block of m rows times a column block over all of K, to out [16][16]. group: of activations;
 * every `per` of them share a row of the weight's scales. row, q: [n_groups][AMX_GROUP_ROWS]. */
ALWAYS_INLINE void amx_int_block(bool affine, uint32_t group, uint32_t per, uint32_t n_groups,
                                 const unsigned char *a, size_t m, const unsigned char *b,
                                 const unsigned char *scales, size_t scales_step, const float *row,
                                 const float *q, float *out)
{
    _Alignas(64) int32_t c[4][AMX_ROWS * VW];
    vf sum[AMX_ROWS];

    UNROLL
    for (int r = 0; r < AMX_ROWS; r++)
        sum[r] = v_set1(0);
    for (uint32_t g0 = 0; g0 < n_groups + AMX_INT_SCALE_LAG; g0 += 4)
        UNROLL
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t g = g0 + t, k = g * group, store = (t + 4 - AMX_INT_STORE_LAG) % 4;
        uint32_t scale = (t + 4 - AMX_INT_SCALE_LAG) % 4;

        if (g < n_groups)
            amx_int_dot(affine, group, a + k / 64 * m * AMX_ROW_BYTES + k % 64, m,
                        b + (size_t)k * AMX_ROWS, t);
        if (g >= AMX_INT_STORE_LAG && g - AMX_INT_STORE_LAG < n_groups)
            amx_int_take(store, c[store]);
        if (g >= AMX_INT_SCALE_LAG && g - AMX_INT_SCALE_LAG < n_groups) {
            amx_int_scale(affine, sum, c[scale], scales, row, q);
            scales += (g - AMX_INT_SCALE_LAG + 1) % per == 0 ? scales_step : 0;
            row += AMX_GROUP_ROWS;
            q += affine ? AMX_GROUP_ROWS : 0;
        }
    }
    UNROLL
    for (int r = 0; r < AMX_ROWS; r++)
        v_store(out + r * VW, sum[r]);
}

/* All groups of rows times the column block at b. */
ALWAYS_INLINE void amx_int_cols(const struct gemm_job *j, const struct gemm_panel *p, bool affine,
                                uint32_t group, uint32_t cols, const unsigned char *b,
                                const unsigned char *scales)
{
    const struct weight *w = &j->p->w;
    const uint32_t quant = min_u32(group, QUANT_GROUP_MAX);
    size_t step = pack_group_bytes(w->dtype, group);
    bool streams = amx_streams(j);
    _Alignas(64) float out[AMX_ROWS * VW];

    for (uint32_t i = p->begin; i < p->end; i++) {
        const unsigned char *slot = gemm_slot(j, i);
        const unsigned char *a = slot + amx_int_head(w);
        uint32_t n_rows = gemm_group_row(j, i + 1) - gemm_group_row(j, i);
        const float *q = (const float *)(const void *)(slot + amx_int_slot_sums(w, n_rows));
        struct gemm_end e = gemm_end_of(j, p->panel, i);

        for (uint32_t r = 0; r < n_rows; r += AMX_ROWS) {
            uint32_t m = min_u32(n_rows - r, AMX_ROWS);

            if (m < AMX_ROWS)
                amx_shape_of(m, m, min_u32(quant, AMX_ROW_BYTES));
            amx_int_block(affine, quant, group / quant, w->k / quant, a, m, b, scales, step,
                          (const float *)(const void *)slot + r, q + r, out);
            amx_store(&e, streams, out, m, VW, cols);
            e.out += AMX_ROWS * e.out_stride;
            a += (size_t)amx_int_steps(w) * m * AMX_ROW_BYTES;
        }
    }
}

KERNEL_BODY void amx_int_panel(const struct gemm_job *j, const struct gemm_panel *p, bool affine,
                               uint32_t group)
{
    const struct weight *w = &j->p->w;
    unsigned char *b = j->cpu->tile_scratch[p->thread].w;
    const unsigned char *data = gemm_panel_data(j, p->panel);

    if (dtype_bits(w->dtype) == 4)
        amx_unpack(affine ? DTYPE_A4 : DTYPE_I4, w, data, b, &p->fetch);
    else
        amx_unpack(affine ? DTYPE_A8 : DTYPE_I8, w, data, b, &p->fetch);
    for (uint32_t cols = 0; cols < PANEL_COLS; cols += VW) {
        amx_shape_of(AMX_ROWS, AMX_ROWS, min_u32(group, AMX_ROW_BYTES));
        amx_int_cols(j, p, affine, group, cols, b + (size_t)cols * w->k, data + cols * 2);
    }
    v_stream_end();
    amx_done();
}

#define AMX_INT_KERNEL(name, affine, group)                                                        \
    static void amx_##name##_panel(const struct gemm_job *j, const struct gemm_panel *p)           \
    {                                                                                              \
        amx_int_panel(j, p, affine, group);                                                        \
    }                                                                                              \
    static const struct gemm_kernel amx_##name##_kernel = {                                        \
        AMX_GROUP_ROWS, false, amx_int_slot_bytes, amx_int_pack, amx_##name##_panel, false};

AMX_INT_KERNEL(g32, false, 32)
AMX_INT_KERNEL(g128, false, 128)
AMX_INT_KERNEL(affine32, true, 32)
AMX_INT_KERNEL(affine128, true, 128)

static const struct gemm_kernel *amx_int_kernel_of(const struct weight *w)
{
    if (dtype_is_affine(w->dtype))
        return w->group == 32 ? &amx_affine32_kernel : &amx_affine128_kernel;
    return w->group == 32 ? &amx_g32_kernel : &amx_g128_kernel;
}

#endif
