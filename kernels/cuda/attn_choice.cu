/* attn_choice.cu - whether attention of many rows runs on Hopper's own matrix instructions
 * (attn_wgmma.cu): decided once, when the device opens, as choice.cuh says, for the KV's type and
 * the model's head size.
 *
 * The trial is a prompt of 32 rows for each multiprocessor, with four query heads for one KV head,
 * so each has a block of 128 queries. Queries are large, so that a row's result is the values of a
 * few keys: a key in the wrong place changes it by far more than rounding does. */
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/cuda/attn_launch.cuh"
#include "kernels/cuda/choice.cuh"

#define HEADS 4
#define ROWS_OF_BLOCK (ATTN_WIDE_QUERIES / HEADS)
/* A probability may be rounded to one or the other of two neighbours, 2^-8 apart. */
#define TOLERANCE 1e-2f

enum { POOL, QUERIES, TABLES }; /* arrays of the trial */

static struct attention_params prompt_of(const struct cuda_context *c)
{
    struct attention_params p = {};
    uint32_t dim = c->config.max_head_dim;

    p.n_seqs = 1;
    p.n_rows = p.n_rows_max = ROWS_OF_BLOCK * (uint32_t)c->n_sms;
    p.n_segs = p.n_segs_max = ceil_div(p.n_rows, KV_SEGMENT_TOKENS_MAX);
    p.n_heads = HEADS;
    p.scale = dim == 64 ? 0.125f : 0.08838835f;
    p.q_stride = HEADS * dim;
    p.pool.layout = kv_layout_of(c->config.kv);
    p.pool.n_blocks = ceil_div(p.n_rows, KV_BLOCK_TOKENS);
    p.pool.n_layers = 1;
    p.pool.n_kv_heads = 1;
    p.pool.head_dim = dim;
    return p;
}

/* Of the prompt: the sequence, its segments, its blocks in descending order. All in one array. */
static enum status send_tables(struct cuda_context *c, struct trial *t)
{
    struct attention_params *p = static_cast<struct attention_params *>(t->arg);
    size_t n_seq = sizeof(struct attn_seq), n_segs = p->n_segs * sizeof(struct attn_segment);
    size_t n_bytes = n_seq + n_segs + p->pool.n_blocks * sizeof(uint32_t);
    unsigned char *host = static_cast<unsigned char *>(malloc(n_bytes));
    enum status s = host ? trial_array(c, t, TABLES, n_bytes) : ERR_NOMEM;

    if (s == OK) {
        unsigned char *to = static_cast<unsigned char *>(t->arrays[TABLES]);
        struct attn_segment *segs = reinterpret_cast<struct attn_segment *>(host + n_seq);
        uint32_t *blocks = reinterpret_cast<uint32_t *>(host + n_seq + n_segs);

        *reinterpret_cast<struct attn_seq *>(host) = {0, p->n_rows, 0, 0, p->n_segs};
        for (uint32_t i = 0; i < p->n_segs; i++) {
            uint32_t first = i * KV_SEGMENT_TOKENS_MAX, left = p->n_rows - first;

            segs[i] = {first, left < KV_SEGMENT_TOKENS_MAX ? left : KV_SEGMENT_TOKENS_MAX,
                       first / KV_BLOCK_TOKENS};
        }
        for (uint32_t i = 0; i < p->pool.n_blocks; i++)
            blocks[i] = p->pool.n_blocks - 1 - i;
        p->seqs = reinterpret_cast<struct attn_seq *>(to);
        p->segments = reinterpret_cast<struct attn_segment *>(to + n_seq);
        p->blocks = reinterpret_cast<uint32_t *>(to + n_seq + n_segs);
        s = cuda_check(c, cudaMemcpy(to, host, n_bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    free(host);
    return s;
}

static cudaError_t load(const struct cuda_context *c, const struct trial *)
{
    return attn_wgmma_prepare(c->config.kv, c->config.max_head_dim);
}

/* K and V between 1/2 and 1, queries between 4 and 8, with both signs. */
static enum status prepare(struct cuda_context *c, struct trial *t)
{
    struct attention_params *p = static_cast<struct attention_params *>(t->arg);
    size_t n_pool = p->pool.n_blocks * kv_block_bytes(&p->pool);
    size_t n_q = p->n_rows * p->q_stride * sizeof(float);
    enum status s = trial_array(c, t, POOL, n_pool);

    if (s == OK)
        s = trial_array(c, t, QUERIES, n_q);
    if (s == OK)
        s = c->config.kv == DTYPE_F16
                ? trial_fill(c, t->arrays[POOL], n_pool, 0x83ff83ff, 0x38003800)
                : trial_fill(c, t->arrays[POOL], n_pool, 0x807f807f, 0x3f003f00);
    if (s == OK)
        s = trial_fill(c, t->arrays[QUERIES], n_q, 0x807fffff, 0x40800000);
    p->pool.base = t->arrays[POOL];
    p->q = static_cast<float *>(t->arrays[QUERIES]);
    return s == OK ? send_tables(c, t) : s;
}

static enum status run(struct cuda_context *c, struct trial *t, bool with_wgmma)
{
    struct attention_params *p = static_cast<struct attention_params *>(t->arg);

    p->out = t->out[with_wgmma];
    c->has_wgmma_attention = with_wgmma;
    enum status s = attention_of(c, c->streams[DEVICE_COMPUTE], p);
    c->has_wgmma_attention = false;
    return s;
}

static enum status try_out(struct cuda_context *c, bool *chosen)
{
    struct attention_params p = prompt_of(c);
    const char *kv = c->config.kv == DTYPE_F16 ? "-f16" : "";
    char file[64], subject[64];
    struct trial t = {};

    snprintf(file, sizeof(file), "attention%s-%u", kv, c->config.max_head_dim);
    snprintf(subject, sizeof(subject), "attention with heads of %u", c->config.max_head_dim);
    t.what = "attention";
    t.file = file;
    t.subject = subject;
    t.tolerance = TOLERANCE;
    t.n_out = p.n_rows * p.q_stride;
    t.load = load;
    t.prepare = prepare;
    t.run = run;
    t.arg = &p;
    return trial_choose(c, &t, chosen);
}

enum status attn_choose(struct cuda_context *c, struct buf *why)
{
    const struct device_config *g = &c->config;
    bool chosen = false;

    c->has_wgmma_attention = false;
    if (!g->wgmma || !g->measure || g->batch_invariant || c->major != 9 || c->minor != 0 ||
        !attn_wgmma_exists(g->kv, g->max_head_dim) || g->max_rows < ATTN_WIDE_QUERIES)
        return OK;
    enum status s = try_out(c, &chosen);

    c->has_wgmma_attention = chosen;
    return trial_outcome(c, "attention", s, why);
}
