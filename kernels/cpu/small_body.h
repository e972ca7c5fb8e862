/* small_body.h - embed, rmsnorm, rope_kv, silu_mul, scale, gather and KV copies; compiled once per
 * variant.
 *
 * Each op works row by row, and threads divide the rows. The compiler vectorizes elementwise loops
 * in plain C: the build forbids contraction, so the vector and the scalar part of a loop give equal
 * bits. */
#ifndef TARN_KERNELS_CPU_SMALL_BODY_H
#define TARN_KERNELS_CPU_SMALL_BODY_H

#include <string.h>

#include "base/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/pack.h"

/* Elements below which one thread is faster than waking others. */
#define ROWS_ALONE_MAX (32u << 10)

/* Run fn over the rows, each of about row_elems elements of work. */
static void over_rows(struct device *d, uint32_t n_rows, size_t row_elems,
                      void (*fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread),
                      const void *params)
{
    struct cpu *c = device_cpu(d);
    uint32_t chunk = n_rows;

    if (n_rows == 0)
        return;
    if (n_rows * row_elems > ROWS_ALONE_MAX)
        chunk = n_rows / (4 * pool_n_threads(c->pool)) + 1;
    pool_run(c->pool, n_rows, chunk, fn, (void *)(uintptr_t)params);
}

/* Read a column of a packed weight of 8 bits: quads 128 bytes apart, with one scale, and for codes
 * one offset, per group. */
static void embed_packed(const struct embed_params *p, uint32_t id, float *out)
{
    enum dtype t = p->table.dtype;
    const unsigned char *w =
        (const unsigned char *)p->table.data +
        (size_t)(id / PANEL_COLS) * pack_panel_bytes(t, p->dim, p->table.group);
    uint32_t col = id % PANEL_COLS;

    for (uint32_t k = 0; k < p->dim; k += p->table.group) {
        uint32_t n = min_u32(p->dim - k, p->table.group);
        const unsigned char *quad = w + pack_head_bytes(t) + col * 4;

        if (t == DTYPE_I8) {
            float scale = dtype_load(DTYPE_BF16, w, col);

            for (uint32_t i = 0; i < n; i++)
                out[k + i] = (float)((int)quad[i / 4 * PANEL_COLS * 4 + i % 4] - 128) * scale;
        } else if (t == DTYPE_F8) {
            float scale = dtype_load(DTYPE_F32, w, col);

            for (uint32_t i = 0; i < n; i++)
                out[k + i] = kv_unrounded(t, quad[i / 4 * PANEL_COLS * 4 + i % 4]) * scale;
        } else {
            float scale = dtype_load(DTYPE_F16, w, col);
            float offset = dtype_load(DTYPE_F16, w, PANEL_COLS + col);

            for (uint32_t i = 0; i < n; i++)
                out[k + i] = (float)quad[i / 4 * PANEL_COLS * 4 + i % 4] * scale + offset;
        }
        w += pack_group_bytes(t, n);
    }
}

static void embed_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct embed_params *p = arg;
    enum dtype dtype = p->table.dtype;
    bool packed = dtype >= DTYPE_FLOATS;
    size_t es = dtype_bytes(dtype); /* undefined for packed tables, and not used there */

    (void)thread;
    for (uint32_t t = begin; t < end; t++) {
        const char *src = (const char *)p->table.data + (size_t)p->ids[t] * p->table.stride * es;
        float *out = p->out + (size_t)t * p->dim;

        ASSERT(p->ids[t] < p->n_vocab && packed == (p->table.layout == WEIGHT_PANELS));
        ASSERT(!packed || dtype_bits(dtype) == 8); /* as params.h says */
        if (packed) {
            embed_packed(p, p->ids[t], out);
            continue;
        }
        if (dtype == DTYPE_F32) {
            memcpy(out, src, p->dim * sizeof(*out));
            continue;
        }
        for (uint32_t i = 0; i < p->dim; i += VW) {
            uint32_t n = min_u32(p->dim - i, VW);

            v_store_n(out + i, v_load_as_n(dtype, src + i * es, n), n);
        }
    }
}

static enum status embed(struct device *d, struct stream *s, const struct embed_params *p)
{
    (void)s;
    ASSERT(!p->from);
    over_rows(d, p->n_rows, p->dim, embed_rows, p);
    return OK;
}

/* Sum of squares in four vectors, added as a fixed tree, so that it depends on the row alone. */
static float sum_squares(const float *x, uint32_t n)
{
    vf acc[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
    uint32_t i = 0;

    for (; i + 4 * VW <= n; i += 4 * VW) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            vf v = v_load(x + i + j * VW);

            acc[j] = v_fma(v, v, acc[j]);
        }
    }
    for (uint32_t j = 0; i < n; i += VW, j++) {
        vf v = v_load_n(x + i, min_u32(n - i, VW));

        acc[j] = v_fma(v, v, acc[j]);
    }
    return v_sum((acc[0] + acc[2]) + (acc[1] + acc[3]));
}

static void rmsnorm_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct rmsnorm_params *p = arg;

    (void)thread;
    for (uint32_t t = begin; t < end; t++) {
        const float *x = p->x + (size_t)t * p->dim;
        float *stream = p->sum ? p->sum + (size_t)t * p->dim : NULL;
        float *out = p->out + (size_t)t * p->dim;

        for (uint32_t i = 0; stream && i < p->dim; i++)
            stream[i] += x[i];
        x = stream ? stream : x;
        float scale = 1.0f / sqrtf(sum_squares(x, p->dim) / (float)p->dim + p->eps);

        for (uint32_t i = 0; i < p->dim; i++)
            out[i] = x[i] * scale * p->w[i];
    }
}

/* Sum of x - mean, or of its squares, over n elements: two chains per lane, so that it depends on
 * the vector alone. */
static float sum_around(const float *x, uint32_t n, float mean, bool squares)
{
    vf acc[2] = {v_set1(0), v_set1(0)};

    for (uint32_t i = 0, j = 0; i < n; i += VW, j ^= 1) {
        vf v = v_load_n(x + i, min_u32(n - i, VW)) - mean;

        v = v_select(v_below((int32_t)(n - i)), v, v_set1(0));
        acc[j] = squares ? v_fma(v, v, acc[j]) : acc[j] + v;
    }
    return v_sum(acc[0] + acc[1]);
}

static void norm_part(const struct rmsnorm_params *p, const float *x, float *out)
{
    float mean = p->center ? sum_around(x, p->dim, 0, false) / (float)p->dim : 0;
    float scale = 1.0f / sqrtf(sum_around(x, p->dim, mean, true) / (float)p->dim + p->eps);

    for (uint32_t i = 0; i < p->dim; i += VW) {
        uint32_t n = min_u32(p->dim - i, VW);
        vf y = (v_load_n(x + i, n) - mean) * scale * v_load_n(p->w + i, n);

        if (p->bias)
            y += v_load_n(p->bias + i, n);
        if (p->accumulate)
            y += v_load_n(out + i, n);
        v_store_n(out + i, y, n);
    }
}

/* Norms of other kinds than Llama's. */
static void norm_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct rmsnorm_params *p = arg;
    size_t width = (size_t)(p->n_parts ? p->n_parts : 1) * p->dim;

    (void)thread;
    for (uint32_t t = begin; t < end; t++) {
        const float *x = p->x + t * (p->x_stride ? p->x_stride : width);
        float *out = p->out + t * (p->out_stride ? p->out_stride : width);

        for (size_t at = 0; at < width; at += p->dim)
            norm_part(p, x + at, out + at);
    }
}

static enum status rmsnorm(struct device *d, struct stream *s, const struct rmsnorm_params *p)
{
    bool plain =
        !p->n_parts && !p->x_stride && !p->out_stride && !p->center && !p->accumulate && !p->bias;

    (void)s;
    ASSERT(plain || !p->sum);
    over_rows(d, p->n_rows, 2 * (size_t)p->dim * (p->n_parts ? p->n_parts : 1),
              plain ? rmsnorm_rows : norm_rows, p);
    return OK;
}

static void scale_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct scale_params *p = arg;

    (void)thread;
    for (uint32_t t = begin; t < end; t++) {
        const float *x = p->x + (size_t)t * p->dim;
        float *out = p->out + (size_t)t * p->dim;

        for (uint32_t i = 0; i < p->dim; i += VW) {
            uint32_t n = min_u32(p->dim - i, VW);
            vf y = v_load_n(x + i, n) * p->scale;

            if (p->soft_cap > 0)
                y = v_tanh(y / p->soft_cap) * p->soft_cap;
            if (p->accumulate)
                y += v_load_n(out + i, n);
            v_store_n(out + i, y, n);
        }
    }
}

static enum status scale(struct device *d, struct stream *s, const struct scale_params *p)
{
    (void)s;
    over_rows(d, p->n_rows, p->dim, scale_rows, p);
    return OK;
}

/* Apply the rotation; out may be x. */
static void rotate(float *out, const float *x, const float *cos_sin, uint32_t half)
{
    const float *cosv = cos_sin;
    const float *sinv = cos_sin + half;

    for (uint32_t i = 0; i < half; i++) {
        float lo = x[i] * cosv[i] - x[i + half] * sinv[i];
        float hi = x[i + half] * cosv[i] + x[i] * sinv[i];

        out[i] = lo;
        out[i + half] = hi;
    }
}

/* Store a head's K in column `offset` of its block: one element (bf16: one pair) in each row of the
 * block. The values are converted in vectors first. */
static void store_k(enum dtype t, void *k, uint32_t offset, const float *x, uint32_t dim)
{
    unsigned char tmp[2 * VW * sizeof(float)];
    size_t cell = t == DTYPE_F16 ? 2 : 4;
    uint32_t per_vec = t == DTYPE_BF16 ? 2 * VW : VW;
    unsigned char *dst = (unsigned char *)k + offset * cell;

    for (uint32_t i = 0; i < dim; i += per_vec) {
        uint32_t n = min_u32(dim - i, per_vec);

        if (t == DTYPE_BF16) {
            bf16_pairs(tmp, x + i, n, false);
            n = (n + 1) / 2;
        } else {
            v_store_as_n(t, tmp, v_load_n(x + i, n), n);
        }
        for (uint32_t j = 0; j < n; j++, dst += KV_BLOCK_TOKENS * cell)
            memcpy(dst, tmp + j * cell, cell);
    }
}

/* Prefetch for writing what store_k() and store_scaled() write of a head's K: a line in each row of
 * the block, or in every other one. Without that each store waits for memory. */
static void fetch_k(const struct kv_pool *p, const unsigned char *k, uint32_t offset)
{
    enum dtype t = p->layout.dtype;
    size_t cell = p->layout.scale_group ? 1 : t == DTYPE_F16 ? 2 : 4;
    size_t row = KV_BLOCK_TOKENS * cell, step = row < 64 ? 64 : row;
    size_t n = p->head_dim * row / (t == DTYPE_BF16 ? 2 : 1);

    for (size_t i = 0; i < n; i += step)
        __builtin_prefetch(k + i + offset * cell, 1);
}

/* Store one token's V in its row; in bf16 in every other element of the pair's row. The other
 * elements may belong to a row that another thread stores, so they are not touched. */
static void store_v(enum dtype t, void *v, uint32_t offset, const float *x, uint32_t dim)
{
    size_t es = dtype_bytes(t);
    unsigned char *dst = (unsigned char *)v + (size_t)offset * dim * es;
    uint16_t *half = (uint16_t *)v + (size_t)(offset / 2) * dim * 2 + offset % 2;

    for (uint32_t i = 0; i < dim; i += VW) {
        uint32_t n = min_u32(dim - i, VW);

        if (t != DTYPE_BF16) {
            v_store_as_n(t, dst + i * es, v_load_n(x + i, n), n);
            continue;
        }
        vh h = v_to_bf16(v_load_n(x + i, n));

        for (uint32_t j = 0; j < n; j++)
            half[2 * (i + j)] = h[j];
    }
}

/* Store both tokens of a pair. */
static void store_v_pair(void *v, uint32_t offset, const float *x, const float *next, uint32_t dim)
{
    float *dst = (float *)v + (size_t)(offset / 2) * dim;

    for (uint32_t i = 0; i < dim; i += VW) {
        uint32_t n = min_u32(dim - i, VW);
        vu lo = v_widen(v_to_bf16(v_load_n(x + i, n)));
        vu hi = v_widen(v_to_bf16(v_load_n(next + i, n)));

        v_store_n(dst + i, (vf)(lo | hi << 16), n);
    }
}

/* Largest head size of rope_kv; attention's limit is the device's max_head_dim. */
#define ROPE_DIM_MAX 1024

/* Round a head to bytes; returns the scale. */
static float round_head(enum dtype t, unsigned char *out, const float *x, uint32_t dim)
{
    vf max = v_set1(0);
    vi bad = v_set1_i32(0);

    for (uint32_t i = 0; i < dim; i += VW) {
        vf mag = (vf)((vu)v_load_n(x + i, min_u32(dim - i, VW)) & 0x7fffffffu);

        max = v_max(max, mag);
        bad |= ~(mag < INFINITY);
    }
    struct kv_scale s = kv_scale_of(t, v_largest(v_select(bad, v_set1(NAN), max)));
    for (uint32_t i = 0; i < dim; i += VW) {
        uint32_t n = min_u32(dim - i, VW);
        vu q = v_round_byte(t, v_load_n(x + i, n) * s.inverse);

        for (uint32_t j = 0; j < n; j++)
            out[i + j] = s.inverse > 0 ? (unsigned char)q[j] : 0;
    }
    return s.scale;
}

/* Store a head of K or V of one token in bytes. */
static void store_scaled(const struct kv_pool *p, unsigned char *head, int v, uint32_t offset,
                         const float *x)
{
    uint32_t dim = p->head_dim;
    unsigned char q[ROPE_DIM_MAX];
    float scale = round_head(p->layout.dtype, q, x, dim);

    memcpy(head + kv_elements_bytes(p) + offset * sizeof(scale), &scale, sizeof(scale));
    if (v)
        memcpy(head + (size_t)offset * dim, q, dim);
    for (uint32_t i = 0; !v && i < dim; i++)
        head[(size_t)i * KV_BLOCK_TOKENS + offset] = q[i];
}

/* KV heads between the one that is stored and the one that is prefetched. */
#define ROPE_AHEAD 2
/* Rows from which on each thread has whole blocks of them. */
#define ROPE_ROWS_MIN 64

/* Whether rows t and t + 1 fill one pair of V. */
static bool rope_is_pair(const struct rope_kv_params *p, uint32_t t, uint32_t end)
{
    return p->pool.layout.dtype == DTYPE_BF16 && t + 1 < end && p->slot_offset[t] % 2 == 0 &&
           p->slot_block[t + 1] == p->slot_block[t] &&
           p->slot_offset[t + 1] == p->slot_offset[t] + 1;
}

/* Rows [begin, end) of KV heads [g0, g1). */
struct rope_part {
    const struct rope_kv_params *p;
    struct kv_strides kv;
    uint32_t begin, end;
    uint32_t g0, g1;
};

static unsigned char *rope_place(const struct rope_part *r, uint32_t t, int v, uint32_t g)
{
    const struct rope_kv_params *p = r->p;

    return kv_at_strides(&p->pool, &r->kv, p->slot_block[t], p->layer, v, g);
}

/* Rotate and store a row of K. */
static void rope_k(const struct rope_part *r, uint32_t t, const float *cos_sin)
{
    const struct rope_kv_params *p = r->p;
    uint32_t dim = p->pool.head_dim, half = p->rot_dim / 2;
    float head[ROPE_DIM_MAX];

    for (uint32_t g = r->g0; g < r->g1; g++) {
        const float *k = p->k + t * p->qkv_stride + (size_t)g * dim;

        if (g + ROPE_AHEAD < r->g1)
            fetch_k(&p->pool, rope_place(r, t, 0, g + ROPE_AHEAD), p->slot_offset[t]);
        rotate(head, k, cos_sin, half);
        memcpy(head + 2 * half, k + 2 * half, (dim - 2 * half) * sizeof(*head));
        if (p->pool.layout.scale_group)
            store_scaled(&p->pool, rope_place(r, t, 0, g), 0, p->slot_offset[t], head);
        else
            store_k(p->pool.layout.dtype, rope_place(r, t, 0, g), p->slot_offset[t], head, dim);
    }
}

/* Store row t of V, or rows t and t + 1. */
static void rope_v(const struct rope_part *r, uint32_t t, uint32_t n)
{
    const struct rope_kv_params *p = r->p;
    uint32_t dim = p->pool.head_dim;

    for (uint32_t g = r->g0; g < r->g1; g++) {
        const float *v = p->v + t * p->qkv_stride + (size_t)g * dim;
        unsigned char *to = rope_place(r, t, 1, g);

        if (p->pool.layout.scale_group)
            store_scaled(&p->pool, to, 1, p->slot_offset[t], v);
        else if (n == 2)
            store_v_pair(to, p->slot_offset[t], v, v + p->qkv_stride, dim);
        else
            store_v(p->pool.layout.dtype, to, p->slot_offset[t], v, dim);
    }
}

/* The part's K and V, and the query heads that share its KV heads. */
static void rope_part(const struct rope_part *r)
{
    const struct rope_kv_params *p = r->p;
    uint32_t dim = p->pool.head_dim, n_shared = p->n_heads / p->pool.n_kv_heads;
    uint32_t h_end = r->g1 < p->pool.n_kv_heads ? r->g1 * n_shared : p->n_heads;

    for (uint32_t t = r->begin; t < r->end; t++) {
        const float *cos_sin = p->cos_sin + (size_t)p->pos[t] * p->rot_dim;

        ASSERT(p->pos[t] < p->n_pos && p->slot_block[t] < p->pool.n_blocks &&
               p->slot_offset[t] < KV_BLOCK_TOKENS);
        for (uint32_t g = r->g0; g < min_u32(r->g0 + ROPE_AHEAD, r->g1); g++)
            fetch_k(&p->pool, rope_place(r, t, 0, g), p->slot_offset[t]);
        for (uint32_t h = r->g0 * n_shared; h < h_end; h++) {
            float *q = p->q + t * p->qkv_stride + (size_t)h * dim;

            rotate(q, q, cos_sin, p->rot_dim / 2);
        }
        rope_k(r, t, cos_sin);
    }
    for (uint32_t t = r->begin, n; t < r->end; t += n) {
        n = rope_is_pair(p, t, r->end) ? 2 : 1;
        rope_v(r, t, n);
    }
}

static void rope_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct rope_kv_params *p = arg;

    (void)thread;
    rope_part(&(struct rope_part){p, kv_strides_of(&p->pool), begin, end, 0, p->pool.n_kv_heads});
}

static void rope_heads(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct rope_kv_params *p = arg;

    (void)thread;
    rope_part(&(struct rope_part){p, kv_strides_of(&p->pool), 0, p->n_rows, begin, end});
}

/* Whether threads should divide heads instead of rows: where most rows lie in the same lines of K
 * as their neighbour, two threads would take these from each other with each store. */
static bool rope_divides_heads(const struct rope_kv_params *p, uint32_t n_threads)
{
    uint32_t n_near = 0;

    if (p->n_rows >= ROPE_ROWS_MIN || p->pool.n_kv_heads < n_threads)
        return false;
    for (uint32_t t = 1; t < p->n_rows; t++)
        n_near += p->slot_block[t] == p->slot_block[t - 1];
    return 2 * n_near >= p->n_rows;
}

static enum status rope_kv(struct device *d, struct stream *s, const struct rope_kv_params *p)
{
    uint32_t n_kv_heads = p->pool.n_kv_heads;
    size_t row = (size_t)(p->n_heads + 2 * n_kv_heads) * p->pool.head_dim;

    (void)s;
    if (!kv_layout_is_native(&p->pool.layout))
        return ERR_UNSUPPORTED;
    ASSERT(p->pool.head_dim <= ROPE_DIM_MAX && p->rot_dim <= p->pool.head_dim &&
           p->rot_dim % 2 == 0 && p->layer < p->pool.n_layers);
    if (rope_divides_heads(p, pool_n_threads(device_cpu(d)->pool)))
        over_rows(d, n_kv_heads, p->n_rows * row / n_kv_heads, rope_heads, p);
    else
        over_rows(d, p->n_rows, row, rope_rows, p);
    return OK;
}

/* The probability that a normal number is below x, times x. Its tail is e^(-x^2 / 2) t P(t), t =
 * 1 / (1 + 0.3535 |x|); P is a least-squares fit of relative error 5e-8. The rounding error of x^2
 * is computed and made good, as e^(-x^2 / 2) would multiply it by x^2. */
static inline vf v_gelu(vf x)
{
    static const float p[] = {-0.030035414f, 0.14468637f, -0.24847020f, 0.14441445f, -0.016746579f,
                              0.10270178f,   0.12122401f, 0.14120567f,  0.14101988f};
    vf a = v_select(x < 0, -x, x), one = v_set1(1.0f);

    a = v_select(a < 14.0f, a, v_set1(14.0f)); /* e^-98 is 0 here */
    vf high = (vf)((vu)a & 0xfffff000u), square = a * a;
    vf error = (high * high - square) + (a - high) * (a + high);
    vf t = one / (a * 0.3535f + one), tail = v_set1(p[0]);
    UNROLL
    for (int i = 1; i < 9; i++)
        tail = v_fma(tail, t, v_set1(p[i]));
    tail = v_exp(square * -0.5f) * (one - error * 0.5f) * (tail * t);
    return x * v_select(x < 0, tail, one - tail);
}

ALWAYS_INLINE vf activate(enum activation f, vf x)
{
    if (f == ACTIVATION_GELU)
        return v_gelu(x);
    if (f == ACTIVATION_SILU)
        return x / (v_exp(-x) + 1.0f);
    vf u = (x * x * 0.044715f + 1.0f) * x * -1.5957691216057308f; /* -2 sqrt(2 / pi) */

    return x / (v_exp(u) + 1.0f);
}

/* In vectors with a masked tail: a scalar tail would need an exp with the same bits. */
ALWAYS_INLINE void activation_rows(const struct silu_mul_params *p, enum activation f,
                                   uint32_t begin, uint32_t end)
{
    size_t stride = (p->ungated ? 1 : 2) * (size_t)p->dim;

    for (uint32_t t = begin; t < end; t++) {
        const float *gate = p->gate_up + t * stride;
        float *out = p->out + (size_t)t * p->dim;

        for (uint32_t i = 0; i < p->dim; i += VW) {
            uint32_t n = min_u32(p->dim - i, VW);
            vf y = activate(f, v_load_n(gate + i, n));

            v_store_n(out + i, p->ungated ? y : y * v_load_n(gate + p->dim + i, n), n);
        }
    }
}

static void silu_mul_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    activation_rows(arg, ACTIVATION_SILU, begin, end);
}

static void gelu_tanh_mul_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    activation_rows(arg, ACTIVATION_GELU_TANH, begin, end);
}

static void gelu_mul_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    activation_rows(arg, ACTIVATION_GELU, begin, end);
}

static enum status silu_mul(struct device *d, struct stream *s, const struct silu_mul_params *p)
{
    (void)s;
    over_rows(d, p->n_rows, 4 * (size_t)p->dim,
              p->activation == ACTIVATION_GELU        ? gelu_mul_rows
              : p->activation == ACTIVATION_GELU_TANH ? gelu_tanh_mul_rows
                                                      : silu_mul_rows,
              p);
    return OK;
}

static void gather_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct gather_params *p = arg;

    (void)thread;
    for (uint32_t i = begin; i < end; i++)
        memcpy(p->out + (size_t)i * p->dim, p->x + (size_t)p->rows[i] * p->dim,
               p->dim * sizeof(float));
}

static enum status gather(struct device *d, struct stream *s, const struct gather_params *p)
{
    (void)s;
    over_rows(d, p->n_rows, p->dim, gather_rows, p);
    return OK;
}

#endif
