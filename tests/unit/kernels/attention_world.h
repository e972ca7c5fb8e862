/* attention_world.h - a KV pool with a few sequences, and calls of attention on it. */
#ifndef TARN_TESTS_ATTENTION_WORLD_H
#define TARN_TESTS_ATTENTION_WORLD_H

#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

#define N_SEQS_MAX 4
#define N_LAYERS 2
#define LAYER 1

/* All types of KV. */
static UNUSED const enum dtype kv_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8};

/* A few sequences with keys, values and queries for all positions; the test fills the pool as it
 * proceeds. */
struct world {
    enum dtype dtype;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t dim;
    uint32_t n_seqs;
    uint32_t window; /* of its calls, 0: none */
    uint32_t len[N_SEQS_MAX];
    uint32_t n_segs[N_SEQS_MAX];
    uint32_t seg_len[N_SEQS_MAX][64]; /* the last one may reach behind len */
    uint32_t block0[N_SEQS_MAX][64];
    uint32_t *blocks;
    uint32_t n_blocks;
    float *q[N_SEQS_MAX]; /* [len][H][d] */
    float *k[N_SEQS_MAX]; /* [len][G][d] */
    float *v[N_SEQS_MAX];
    struct kv_pool pool;
};

/* Segments of seg_tokens, or of random lengths when that is 0. */
static UNUSED void world_init(struct world *w, uint32_t seg_tokens)
{
    uint32_t max_blocks = 0;

    for (uint32_t s = 0; s < w->n_seqs; s++) {
        w->n_segs[s] = 0;
        for (uint32_t at = 0; at < w->len[s]; w->n_segs[s]++) {
            uint32_t n = seg_tokens ? seg_tokens : 1 + rng_below(KV_SEGMENT_TOKENS_MAX);

            w->seg_len[s][w->n_segs[s]] = n;
            w->block0[s][w->n_segs[s]] = max_blocks;
            max_blocks += (n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
            at += n;
        }
        w->q[s] = random_floats((size_t)w->len[s] * w->n_heads * w->dim);
        w->k[s] = random_floats((size_t)w->len[s] * w->n_kv_heads * w->dim);
        w->v[s] = random_floats((size_t)w->len[s] * w->n_kv_heads * w->dim);
    }
    w->n_blocks = max_blocks;
    w->blocks = test_alloc(max_blocks * sizeof(*w->blocks));
    for (uint32_t i = 0; i < max_blocks; i++) { /* a random permutation */
        uint32_t j = rng_below(i + 1);

        w->blocks[i] = w->blocks[j];
        w->blocks[j] = i;
    }
    w->pool = (struct kv_pool){.layout = kv_layout_of(w->dtype),
                               .n_blocks = max_blocks,
                               .n_layers = N_LAYERS,
                               .n_kv_heads = w->n_kv_heads,
                               .head_dim = w->dim};
    w->pool.base = test_alloc(max_blocks * kv_block_bytes(&w->pool));
}

static UNUSED void world_fini(struct world *w)
{
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        free(w->q[s]);
        free(w->k[s]);
        free(w->v[s]);
    }
    free(w->blocks);
    free(w->pool.base);
}

static UNUSED size_t world_rows(const struct world *w)
{
    size_t n = 0;

    for (uint32_t s = 0; s < w->n_seqs; s++)
        n += w->len[s];
    return n;
}

static UNUSED size_t world_outputs(const struct world *w)
{
    return world_rows(w) * w->n_heads * w->dim;
}

/* Fill every slot with a value that must not be read, such as NaN or infinity. */
static UNUSED void world_poison(struct world *w, float value)
{
    enum dtype t = kv_dtype_is_scaled(w->dtype) ? DTYPE_F32 : w->dtype; /* scales and all */
    size_t n = w->n_blocks * kv_block_bytes(&w->pool) / dtype_bytes(t);

    for (size_t i = 0; i < n; i++)
        dtype_store(t, w->pool.base, i, value);
}

/* Write positions [pos0, end) of a sequence into the cache, as rope_kv does. */
static UNUSED void world_write(struct world *w, uint32_t s, uint32_t pos0, uint32_t end)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < w->n_segs[s]; at += w->seg_len[s][i++]) {
        for (uint32_t j = 0; j < w->seg_len[s][i]; j++) {
            uint32_t pos = at + j, off = j % KV_BLOCK_TOKENS;
            uint32_t block = w->blocks[w->block0[s][i] + j / KV_BLOCK_TOKENS];

            if (pos < pos0 || pos >= end)
                continue;
            for (uint32_t g = 0; g < w->n_kv_heads; g++) {
                size_t src = ((size_t)pos * w->n_kv_heads + g) * w->dim;

                kv_token_store(&w->pool, block, LAYER, 0, g, off, w->k[s] + src);
                kv_token_store(&w->pool, block, LAYER, 1, g, off, w->v[s] + src);
            }
        }
    }
}

/* One call under construction. */
struct call {
    struct attn_seq seqs[N_SEQS_MAX];
    struct attn_segment segs[N_SEQS_MAX * 64];
    uint32_t n_seqs, n_segs, n_rows;
    uint32_t window;
    float soft_cap;
    int bidirectional;
    float *q;
    float *out;
    float *lse;
    size_t width, q_stride;
};

static UNUSED void call_init(struct call *c, const struct world *w, size_t rows)
{
    c->width = (size_t)w->n_heads * w->dim;
    c->q_stride = c->width + 5;
    c->n_seqs = c->n_segs = c->n_rows = 0;
    c->window = w->window;
    c->soft_cap = 0;
    c->bidirectional = 0;
    c->lse = NULL;
    c->q = test_alloc(rows * c->q_stride * sizeof(float));
    c->out = test_alloc(rows * c->width * sizeof(float));
}

/* Rows of positions [pos0, end) of sequence s join the call. */
static UNUSED void call_add(struct call *c, const struct world *w, uint32_t s, uint32_t pos0,
                            uint32_t end)
{
    struct attn_seq *seq = &c->seqs[c->n_seqs++];
    uint32_t at = 0;

    *seq =
        (struct attn_seq){.row0 = c->n_rows, .n_rows = end - pos0, .pos0 = pos0, .seg0 = c->n_segs};
    for (uint32_t i = 0; at < end; at += w->seg_len[s][i++]) {
        uint32_t n = w->seg_len[s][i] < end - at ? w->seg_len[s][i] : end - at;

        c->segs[c->n_segs++] =
            (struct attn_segment){.pos0 = at, .n_tokens = n, .block0 = w->block0[s][i]};
        seq->n_segs++;
    }
    for (uint32_t pos = pos0; pos < end; pos++)
        memcpy(c->q + c->n_rows++ * c->q_stride, w->q[s] + pos * c->width,
               c->width * sizeof(float));
}

/* On d, or by the reference (d NULL). */
static UNUSED void call_run(struct call *c, const struct world *w, struct device *d)
{
    struct attention_params p = {
        .n_seqs = c->n_seqs,
        .n_heads = w->n_heads,
        .layer = LAYER,
        .window = c->window,
        .bidirectional = c->bidirectional,
        .scale = 1.0f / sqrtf((float)w->dim),
        .soft_cap = c->soft_cap,
        .q = c->q,
        .q_stride = c->q_stride,
        .out = c->out,
        .lse = c->lse,
        .seqs = c->seqs,
        .segments = c->segs,
        .blocks = w->blocks,
        .pool = w->pool,
    };

    if (d)
        assert_int_equal(device_ops(d)->attention(d, NULL, &p), OK);
    else
        assert_int_equal(ref_attention(NULL, NULL, &p), OK);
}

static UNUSED void call_fini(struct call *c)
{
    free(c->q);
    free(c->out);
}

static UNUSED void write_all(struct world *w)
{
    for (uint32_t s = 0; s < w->n_seqs; s++)
        world_write(w, s, 0, w->len[s]);
}

/* Whether the kernel takes queries and probabilities in bf16. */
static UNUSED bool world_rounds(struct device *d, const struct world *w)
{
    const char *name = device_ops(d)->name;

    if (strcmp(name, "cpu-avx512bf16") == 0)
        return w->dtype == DTYPE_BF16 || kv_dtype_is_scaled(w->dtype);
    return w->dtype == DTYPE_BF16 && strcmp(name, "cpu-amx") == 0 && w->dim % 32 == 0;
}

/* Numbers in bf16 have relative errors up to 2^-9. A score of about sqrt(d) * |q| |k| / sqrt(d),
 * with outliers up to 10, then errs by some 0.1; values are up to 10. */
static UNUSED void check_world(const char *what, struct device *d, const struct world *w,
                               const float *got, const float *want)
{
    if (world_rounds(d, w))
        check_near(what, got, want, world_outputs(w), 0.15, 0.01, 1e-4);
    else
        check_close(what, got, want, world_outputs(w), 2e-5, 2e-5);
}

#endif
