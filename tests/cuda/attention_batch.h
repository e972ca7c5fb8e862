/* attention_batch.h - attention on the GPU: sequences, and batches of some of their rows.
 *
 * A world holds sequences: their queries, keys and values at all positions, cut into segments. A
 * batch computes some rows of some sequences. The KV pool of a batch holds the keys and values that
 * these rows may read, and NaN and infinities everywhere else, so that a wrong read makes the
 * output NaN. */
#ifndef TARN_TESTS_CUDA_ATTENTION_BATCH_H
#define TARN_TESTS_CUDA_ATTENTION_BATCH_H

#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#define UNUSED __attribute__((unused)) /* by one of the tests */
#define LAYER 1
#define N_LAYERS 2
#define PARTS_MAX 80

struct shape {
    enum dtype dtype;
    uint32_t dim, n_heads, n_kv_heads;
    uint32_t window;
    float soft_cap;
    bool no_lse;
};

struct sequence {
    uint32_t n_tokens, n_segs, seg0; /* of the world */
    float *q;                        /* [n_tokens, H, d] */
};

struct world {
    struct shape shape;
    struct device *d;
    struct kv_pool pool; /* on the host */
    uint32_t n_blocks, n_segs, n_seqs;
    uint32_t n_together; /* most members of a group of segments; 0: calls have no list of work */
    uint32_t blocks[4096];
    struct attn_segment segs[1024];
    struct sequence seqs[PARTS_MAX];
};

/* Rows [pos0, pos0 + n_rows) of a sequence. Bit i of `missing`: omit segment i. */
struct part {
    uint32_t seq, pos0, n_rows;
    uint32_t missing;
};

struct result {
    struct attention_params p; /* host pointers; out and lse are the device's results */
    size_t n_out, n_lse;
    uint64_t n_blocks;   /* that the emulated GPU ran */
    uint64_t bytes_once; /* that the emulated GPU read by load_once16() */
};

/* Functions of the emulation (emulation.h); NULL on a real GPU. */
uint64_t emulation_blocks_run(void) __attribute__((weak));
uint64_t emulation_bytes_once(void) __attribute__((weak));

static UNUSED uint64_t blocks_run(void)
{
    return emulation_blocks_run ? emulation_blocks_run() : 0;
}

static UNUSED uint64_t bytes_once(void)
{
    return emulation_bytes_once ? emulation_bytes_once() : 0;
}

/* --- The world --- */

static UNUSED void open_world_on(struct world *w, const struct shape *shape, uint32_t max_blocks,
                                 struct device *d)
{
    memset(w, 0, sizeof *w);
    w->shape = *shape;
    w->d = d;
    w->pool = (struct kv_pool){.layout = kv_layout_of(shape->dtype),
                               .n_blocks = max_blocks,
                               .n_layers = N_LAYERS,
                               .n_kv_heads = shape->n_kv_heads,
                               .head_dim = shape->dim};
    w->pool.base = host_array(max_blocks * kv_block_bytes(&w->pool));
}

static UNUSED void open_world(struct world *w, const struct shape *shape, uint32_t max_blocks,
                              uint32_t max_heads)
{
    struct device_config config = {.kind = DEVICE_CUDA,
                                   .max_rows = 64,
                                   .max_k = 64,
                                   .max_heads = max_heads,
                                   .max_head_dim = 256};

    open_world_on(w, shape, max_blocks, cuda_device_for(&config));
}

/* Whether matrix instructions may compute these shapes: in f16 with KV in f16, else in bf16. */
static UNUSED bool rounds(enum dtype t, uint32_t dim)
{
    return t == DTYPE_BF16 ||
           (t != DTYPE_F32 && (dim == 64 || dim == 96 || dim == 128 || dim == 256));
}

/* Queries are rounded to 16 bits, because the matrix instructions would round them. The
 * remaining errors are those of the rounded softmax weights. */
static UNUSED float *queries(const struct shape *shape, size_t n)
{
    float *q = random_array(n, 1);
    uint16_t h;
    enum dtype to = shape->dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;

    for (size_t i = 0; i < n && rounds(shape->dtype, shape->dim); i++) {
        dtype_store(to, &h, 0, q[i]);
        q[i] = dtype_load(to, &h, 0);
    }
    return q;
}

/* Fill the keys and values of one token, in all heads of the layer. */
static UNUSED void fill_token(const struct kv_pool *pool, uint32_t block, uint32_t offset)
{
    uint32_t n = pool->n_kv_heads * pool->head_dim;
    float *x = random_array(2 * (size_t)n, 1);

    for (uint32_t head = 0; head < pool->n_kv_heads; head++)
        for (int v = 0; v < 2; v++)
            kv_token_store(pool, block, LAYER, v, head, offset,
                           x + v * (size_t)n + head * pool->head_dim);
}

/* Add a sequence that begins with the first n_before segments of sequence `before`. */
static UNUSED uint32_t add_behind(struct world *w, uint32_t before, uint32_t n_before,
                                  const uint32_t *seg_tokens, uint32_t n_segs)
{
    struct sequence *s = &w->seqs[w->n_seqs];

    *s = (struct sequence){.n_segs = n_before + n_segs, .seg0 = w->n_segs};
    for (uint32_t i = 0; i < n_before; i++) {
        w->segs[w->n_segs] = w->segs[w->seqs[before].seg0 + i];
        s->n_tokens += w->segs[w->n_segs++].n_tokens;
    }
    for (uint32_t i = 0; i < n_segs; i++) {
        uint32_t n = (seg_tokens[i] + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;

        w->segs[w->n_segs++] = (struct attn_segment){s->n_tokens, seg_tokens[i], w->n_blocks};
        assert_true(w->n_blocks + n <= w->pool.n_blocks);
        for (uint32_t b = 0; b < n; b++, w->n_blocks++) /* blocks in descending order */
            w->blocks[w->n_blocks] = w->pool.n_blocks - 1 - w->n_blocks;
        for (uint32_t t = 0; t < seg_tokens[i]; t++)
            fill_token(&w->pool, w->blocks[w->n_blocks - n + t / KV_BLOCK_TOKENS],
                       t % KV_BLOCK_TOKENS);
        s->n_tokens += seg_tokens[i];
    }
    s->q = queries(&w->shape, (size_t)s->n_tokens * w->shape.n_heads * w->shape.dim);
    return w->n_seqs++;
}

static UNUSED uint32_t add_sequence(struct world *w, const uint32_t *seg_tokens, uint32_t n_segs)
{
    return add_behind(w, 0, 0, seg_tokens, n_segs);
}

/* --- A batch --- */

static UNUSED void copy_token(const struct kv_pool *to, const struct kv_pool *from, uint32_t block,
                              uint32_t offset)
{
    size_t size = kv_element_bytes(&to->layout), scale = kv_elements_bytes(to) + offset * 4;

    for (uint32_t i = 0; i < 2 * to->n_kv_heads; i++) {
        unsigned char *a = kv_at(to, block, LAYER, i % 2, i / 2);
        const unsigned char *b = kv_at(from, block, LAYER, i % 2, i / 2);

        for (uint32_t dim = 0; dim < to->head_dim; dim++) {
            size_t at = i % 2 ? kv_v_index(to, dim, offset) : kv_k_index(to, dim, offset);
            memcpy(a + at * size, b + at * size, size);
        }
        if (to->layout.scale_group)
            memcpy(a + scale, b + scale, 4);
    }
}

static UNUSED struct kv_pool garbage_pool(const struct kv_pool *like)
{
    static const float garbage[] = {NAN, INFINITY, NAN, -INFINITY, 1e30f, NAN, INFINITY};
    struct kv_pool pool = *like;
    enum dtype t = pool.layout.scale_group ? DTYPE_F32 : pool.layout.dtype; /* scales and all */
    size_t n = pool.n_blocks * kv_block_bytes(&pool);

    pool.base = host_array(n);
    for (size_t i = 0; i < n / dtype_bytes(t); i++)
        dtype_store(t, pool.base, i, garbage[i % 7]);
    return pool;
}

/* Place the segments that a part reads, except missing ones, and copy their tokens to the pool. */
static UNUSED struct attn_seq place_part(const struct world *w, const struct part *part,
                                         uint32_t row0, struct attn_segment *segs, uint32_t seg0,
                                         const struct kv_pool *pool)
{
    const struct sequence *s = &w->seqs[part->seq];
    struct attn_seq seq = {row0, part->n_rows, part->pos0, seg0, 0};
    uint32_t end = part->pos0 + part->n_rows;

    assert_true(end <= s->n_tokens);
    for (uint32_t i = 0; i < s->n_segs; i++) {
        struct attn_segment seg = w->segs[s->seg0 + i];

        if (seg.pos0 >= end || (i < 32 && part->missing >> i & 1))
            continue;
        if (seg.n_tokens > end - seg.pos0)
            seg.n_tokens = end - seg.pos0;
        for (uint32_t t = 0; t < seg.n_tokens && pool->base != w->pool.base; t++)
            copy_token(pool, &w->pool, w->blocks[seg.block0 + t / KV_BLOCK_TOKENS],
                       t % KV_BLOCK_TOKENS);
        segs[seg0 + seq.n_segs++] = seg;
    }
    return seq;
}

/* Whether sequences i and k, each of one row, both see all of the same segment. */
static UNUSED bool is_shared(const struct attention_params *p, uint32_t i,
                             const struct attn_segment *x, uint32_t k, const struct attn_segment *y)
{
    return x->block0 == y->block0 && x->n_tokens == y->n_tokens &&
           x->pos0 + x->n_tokens <= p->seqs[i].pos0 && y->pos0 + y->n_tokens <= p->seqs[k].pos0;
}

#define WORK_PADDING 3

/* The list of work of a call: groups of up to n_together, then padding. */
static UNUSED struct attn_work *list_work(const struct attention_params *p, uint32_t n_together)
{
    struct attn_work *work = host_array((p->n_segs + WORK_PADDING) * sizeof *work);
    bool *is_listed = host_array((p->n_segs + 1) * sizeof *is_listed);
    uint32_t n = 0;

    memset(is_listed, 0, (p->n_segs + 1) * sizeof *is_listed);
    for (uint32_t i = 0; i < p->n_seqs; i++)
        for (uint32_t s = p->seqs[i].seg0; s < p->seqs[i].seg0 + p->seqs[i].n_segs; s++) {
            uint32_t head = n;

            if (is_listed[s] || p->seqs[i].n_rows != 1)
                continue;
            work[n++] = (struct attn_work){s, i, 1};
            for (uint32_t k = i + 1; k < p->n_seqs; k++)
                for (uint32_t t = p->seqs[k].seg0; t < p->seqs[k].seg0 + p->seqs[k].n_segs; t++)
                    if (p->seqs[k].n_rows == 1 && !is_listed[t] && work[head].n < n_together &&
                        is_shared(p, i, &p->segments[s], k, &p->segments[t])) {
                        work[n++] = (struct attn_work){t, k, 0};
                        work[head].n++;
                        is_listed[t] = true;
                    }
        }
    while (n < p->n_segs + WORK_PADDING)
        work[n++] = (struct attn_work){0};
    return work;
}

/* The same results, rounded for a product; `out` is scratch memory then. */
static UNUSED void check_rounded(const struct world *w, struct attention_params p,
                                 const struct result *result)
{
    uint32_t k = w->shape.n_heads * w->shape.dim;
    enum dtype t = p.n_rows % 2 ? DTYPE_BF16 : DTYPE_I8;

    p.out = on_device(w->d, NULL, result->n_out * sizeof *p.out);
    p.lse = NULL;
    p.rounded = rounded_on_device(w->d, p.n_rows, k, t);
    assert_ok(device_ops(w->d)->attention(w->d, NULL, &p));
    assert_rounded(w->d, &p.rounded, result->p.out, p.n_rows, k);
}

/* Compute the parts. `clean`: use the world's own pool, without NaN in other places. */
static UNUSED struct result run(const struct world *w, const struct part *parts, uint32_t n_parts,
                                bool clean)
{
    const struct shape *shape = &w->shape;
    size_t row = (size_t)shape->n_heads * shape->dim, stride = row + 3;
    uint32_t n_rows = 0, n_rows_max = 0, n_segs_max = 0, n_segs = 0;
    struct kv_pool pool = clean ? w->pool : garbage_pool(&w->pool);
    struct attn_seq *seqs = host_array(n_parts * sizeof *seqs);

    for (uint32_t i = 0; i < n_parts; i++) {
        n_rows += parts[i].n_rows;
        n_segs += w->seqs[parts[i].seq].n_segs;
    }
    struct attn_segment *segs = host_array(n_segs * sizeof *segs);
    float *q = host_array(n_rows * stride * sizeof *q);
    n_rows = n_segs = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct part *part = &parts[i];

        seqs[i] = place_part(w, part, n_rows, segs, n_segs, &pool);
        n_segs += seqs[i].n_segs;
        n_segs_max = seqs[i].n_segs > n_segs_max ? seqs[i].n_segs : n_segs_max;
        n_rows_max = part->n_rows > n_rows_max ? part->n_rows : n_rows_max;
        for (uint32_t r = 0; r < part->n_rows; r++, n_rows++)
            memcpy(q + n_rows * stride, w->seqs[part->seq].q + (part->pos0 + r) * row,
                   row * sizeof *q);
    }
    struct result result = {.n_out = n_rows * row, .n_lse = (size_t)n_rows * shape->n_heads};
    result.p = (struct attention_params){.n_seqs = n_parts,
                                         .n_rows = n_rows,
                                         .n_rows_max = n_rows_max,
                                         .n_segs = n_segs,
                                         .n_segs_max = n_segs_max,
                                         .n_heads = shape->n_heads,
                                         .layer = LAYER,
                                         .window = shape->window,
                                         .scale = 1 / sqrtf((float)shape->dim),
                                         .soft_cap = shape->soft_cap,
                                         .q = q,
                                         .q_stride = stride,
                                         .seqs = seqs,
                                         .segments = segs,
                                         .blocks = w->blocks,
                                         .pool = pool};

    struct attention_params p = result.p;
    p.q = on_device(w->d, q, n_rows * stride * sizeof *q);
    p.seqs = on_device(w->d, seqs, n_parts * sizeof *seqs);
    p.segments = on_device(w->d, segs, n_segs * sizeof *segs);
    p.blocks = on_device(w->d, w->blocks, w->n_blocks * sizeof *w->blocks);
    p.pool.base = on_device(w->d, pool.base, pool.n_blocks * kv_block_bytes(&pool));
    p.out = on_device(w->d, NULL, result.n_out * sizeof *p.out);
    p.lse = shape->no_lse ? NULL : on_device(w->d, NULL, result.n_lse * sizeof *p.lse);
    if (w->n_together > 0) {
        p.n_segs += WORK_PADDING;
        p.work = on_device(w->d, list_work(&result.p, w->n_together), p.n_segs * sizeof *p.work);
    }
    result.n_blocks = blocks_run();
    result.bytes_once = bytes_once();
    assert_ok(device_ops(w->d)->attention(w->d, NULL, &p));
    result.p.out = from_device(w->d, p.out, result.n_out * sizeof *p.out);
    result.n_blocks = blocks_run() - result.n_blocks;
    result.bytes_once = bytes_once() - result.bytes_once;
    if (p.lse)
        result.p.lse = from_device(w->d, p.lse, result.n_lse * sizeof *p.lse);
    check_rounded(w, p, &result);
    return result;
}

/* Compare with the reference. In bf16 a softmax weight is rounded to 8 bits, so the error of an
 * output is at most 2^-9 of the mean |V|, whose elements are about 1; in f16 to 11 bits. A weight
 * of 1 is exact in bf16, but not its product with a scale: of few keys, elements of 4 may err by
 * 2^-7. All else is fp32. */
static UNUSED void check_against_reference(const struct result *result)
{
    enum dtype t = result->p.pool.layout.dtype;
    struct attention_params p = result->p;
    float most = 1e-5f;

    p.out = host_array(result->n_out * sizeof *p.out);
    p.lse = p.lse ? host_array(result->n_lse * sizeof *p.lse) : NULL;
    assert_ok(ref_attention(NULL, NULL, &p));
    if (rounds(t, p.pool.head_dim))
        most = t == DTYPE_F16 ? 5e-4f : kv_dtype_is_scaled(t) ? 8e-3f : 4e-3f;
    assert_close("out", result->p.out, p.out, result->n_out, most, most);
    if (p.lse)
        assert_close("lse", result->p.lse, p.lse, result->n_lse, 2e-5f, 2e-5f);
}

static UNUSED void check_batch(const struct world *w, const struct part *parts, uint32_t n_parts)
{
    struct result result = run(w, parts, n_parts, false);

    check_against_reference(&result);
}

/* --- Random batches, the same bits --- */

static UNUSED void random_cut(struct world *w, uint32_t n_segs)
{
    uint32_t cut[32];

    for (uint32_t i = 0; i < n_segs; i++)
        cut[i] = 1 + random_below(random_below(3) ? 70 : KV_SEGMENT_TOKENS_MAX);
    add_sequence(w, cut, n_segs);
}

static UNUSED struct part random_part(const struct world *w, uint32_t seq, uint32_t n_rows_max)
{
    uint32_t n = 1 + random_below(w->seqs[seq].n_tokens);
    uint32_t rows = random_below(2) ? 1 : 1 + random_below(n < n_rows_max ? n : n_rows_max);

    return (struct part){seq, n - rows, rows, 0};
}

/* Check that the rows of a part have the bits of `whole`, which computed the sequence at once. */
static UNUSED void check_same_rows(const struct world *w, const struct result *whole,
                                   const struct result *got, uint32_t row0, const struct part *part)
{
    size_t h = w->shape.n_heads, row = h * w->shape.dim;

    assert_same_bits("out", got->p.out + row0 * row, whole->p.out + part->pos0 * row,
                     part->n_rows * row * sizeof(float));
    assert_same_bits("lse", got->p.lse + row0 * h, whole->p.lse + part->pos0 * h,
                     part->n_rows * h * sizeof(float));
}

static UNUSED void check_same_batch(const struct world *w, const struct result *wholes,
                                    const struct part *parts, uint32_t n_parts)
{
    struct result got = run(w, parts, n_parts, false);
    uint32_t row0 = 0;

    for (uint32_t i = 0; i < n_parts; row0 += parts[i++].n_rows)
        check_same_rows(w, &wholes[parts[i].seq], &got, row0, &parts[i]);
}

static UNUSED void compute_wholes(const struct world *w, struct result *wholes)
{
    for (uint32_t i = 0; i < w->n_seqs; i++)
        wholes[i] = run(w, &(struct part){i, 0, w->seqs[i].n_tokens, 0}, 1, false);
}

#endif
