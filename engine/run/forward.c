#include "engine/run/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/run/staging.h"

/* A batch's arrays where ops can read them; on a host device the batch's own. */
struct step_arrays {
    const uint32_t *ids, *pos, *slot_block, *slot_offset, *blocks, *out_rows;
    const struct attn_seq *seqs;
    const struct attn_segment *segments;
};

struct forward {
    struct forward_config c;
    const struct ops *ops;
    float *x;       /* [T, D] residual stream */
    float *xn;      /* [T, D] normed */
    float *qkv;     /* [T, (H + 2 G) d] */
    float *attn;    /* [T, H d] */
    float *gate_up; /* [T, 2 F] */
    float *act;     /* [T, F] */
    float *out_x;   /* [R, D] rows that want logits */
    float *logits;  /* [R, V] */
    float *cos_sin; /* [n_pos, d] */
    float *host_logits;
    struct staging *staging;
};

static void *alloc_floats(struct forward *f, uint64_t rows, uint64_t cols)
{
    return device_alloc(f->c.device, rows * cols * sizeof(float));
}

static enum status make_cos_sin(struct forward *f)
{
    uint32_t half = f->c.model->head_dim / 2;
    double freqs[128];
    size_t n = (size_t)f->c.n_pos * half * 2;
    float *table = malloc(n * sizeof *table);

    if (!table)
        return ERR_NOMEM;
    ASSERT(half <= ARRAY_SIZE(freqs));
    model_rope_freqs(f->c.model, freqs);
    for (uint32_t p = 0; p < f->c.n_pos; p++)
        for (uint32_t i = 0; i < half; i++) {
            table[(size_t)p * 2 * half + i] = (float)cos(p * freqs[i]);
            table[(size_t)p * 2 * half + half + i] = (float)sin(p * freqs[i]);
        }
    enum status s = device_upload(f->c.device, f->cos_sin, table, n * sizeof *table);
    free(table);
    return s;
}

/* Of one step's arrays at most. */
static size_t staging_bytes_max(const struct forward_config *c)
{
    return 4 * STAGING_BYTES(c->n_rows_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_blocks_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_out_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_seqs_max * sizeof(struct attn_seq)) +
           STAGING_BYTES(c->n_blocks_max * sizeof(struct attn_segment));
}

uint64_t forward_device_bytes(const struct forward_config *c)
{
    const struct model_config *m = c->model;
    uint64_t per_row = 2 * (uint64_t)m->dim + 3 * (uint64_t)m->ffn_dim +
                       2 * (uint64_t)(m->n_heads + m->n_kv_heads) * m->head_dim;
    uint64_t per_out = (uint64_t)m->dim + m->n_vocab;

    return (c->n_rows_max * per_row + c->n_out_max * per_out + c->n_pos * (uint64_t)m->head_dim) *
               sizeof(float) +
           staging_bytes_max(c);
}

enum status forward_create(struct forward **out, const struct forward_config *config)
{
    const struct model_config *m = config->model;
    struct forward *f = calloc(1, sizeof *f);
    uint64_t rows = config->n_rows_max;
    enum status s = ERR_NOMEM;

    *out = NULL;
    if (!f)
        return ERR_NOMEM;
    f->c = *config;
    f->ops = config->ops ? config->ops : device_ops(config->device);
    f->x = alloc_floats(f, rows, m->dim);
    f->xn = alloc_floats(f, rows, m->dim);
    f->qkv = alloc_floats(f, rows, (uint64_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim);
    f->attn = alloc_floats(f, rows, (uint64_t)m->n_heads * m->head_dim);
    f->gate_up = alloc_floats(f, rows, 2 * (uint64_t)m->ffn_dim);
    f->act = alloc_floats(f, rows, m->ffn_dim);
    f->out_x = alloc_floats(f, config->n_out_max, m->dim);
    f->logits = alloc_floats(f, config->n_out_max, m->n_vocab);
    f->cos_sin = alloc_floats(f, config->n_pos, m->head_dim);
    if (!f->x || !f->xn || !f->qkv || !f->attn || !f->gate_up || !f->act || !f->out_x ||
        !f->logits || !f->cos_sin)
        goto done;
    if (device_is_host(config->device))
        /* The pages now, not when the batch first is that wide: see base/memory.h. */
        memset(f->logits, 0, (size_t)config->n_out_max * m->n_vocab * sizeof(float));
    if (!device_is_host(config->device) && !config->device_logits) {
        f->host_logits = malloc((size_t)config->n_out_max * m->n_vocab * sizeof(float));
        if (!f->host_logits)
            goto done;
    }
    s = staging_create(&f->staging, config->device, staging_bytes_max(config));
    if (s == OK)
        s = make_cos_sin(f);
done:
    if (s != OK) {
        forward_destroy(f);
        return s;
    }
    *out = f;
    return OK;
}

void forward_destroy(struct forward *f)
{
    if (!f)
        return;
    void *all[] = {f->x,   f->xn,    f->qkv,    f->attn,   f->gate_up,
                   f->act, f->out_x, f->logits, f->cos_sin};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        device_free(f->c.device, all[i]);
    staging_destroy(f->staging);
    free(f->host_logits);
    free(f);
}

static enum status stage_batch(struct forward *f, const struct batch *b, struct step_arrays *a)
{
    struct staging *g = f->staging;
    enum status s = staging_begin(g);

    if (s != OK)
        return s;
    a->ids = staging_add(g, b->ids, b->n_rows * sizeof *b->ids);
    a->pos = staging_add(g, b->pos, b->n_rows * sizeof *b->pos);
    a->slot_block = staging_add(g, b->slot_block, b->n_rows * sizeof *b->slot_block);
    a->slot_offset = staging_add(g, b->slot_offset, b->n_rows * sizeof *b->slot_offset);
    a->blocks = staging_add(g, b->blocks, b->n_blocks * sizeof *b->blocks);
    a->out_rows = staging_add(g, b->out_rows, b->n_out * sizeof *b->out_rows);
    a->seqs = staging_add(g, b->seqs, b->n_seqs * sizeof *b->seqs);
    a->segments = staging_add(g, b->segments, b->n_segments * sizeof *b->segments);
    return staging_send(g);
}

static enum status embed(struct forward *f, const struct batch *b, const struct step_arrays *a)
{
    struct embed_params p = {.n_rows = b->n_rows,
                             .dim = f->c.model->dim,
                             .n_vocab = f->c.model->n_vocab,
                             .table = f->c.weights->embedding,
                             .ids = a->ids,
                             .out = f->x};
    return f->ops->embed(f->c.device, NULL, &p);
}

static enum status norm(struct forward *f, uint32_t n_rows, const float *x, const float *w,
                        float *out)
{
    struct rmsnorm_params p = {.n_rows = n_rows,
                               .dim = f->c.model->dim,
                               .eps = (float)f->c.model->rms_eps,
                               .x = x,
                               .w = w,
                               .out = out};
    return f->ops->rmsnorm(f->c.device, NULL, &p);
}

static enum status product(struct forward *f, uint32_t n_rows, const float *a,
                           const struct weight *w, const struct weight *next, const float *bias,
                           bool accumulate, float *out)
{
    struct gemm_params p = {.n_rows = n_rows,
                            .a = a,
                            .a_stride = w->k,
                            .w = *w,
                            .next = next,
                            .bias = bias,
                            .accumulate = accumulate,
                            .out = out,
                            .out_stride = w->n};
    return f->ops->gemm(f->c.device, NULL, &p);
}

static enum status rope_kv(struct forward *f, const struct batch *b, const struct step_arrays *a,
                           const struct kv_pool *pool, uint32_t layer)
{
    const struct model_config *m = f->c.model;
    size_t q = (size_t)m->n_heads * m->head_dim, kv = (size_t)m->n_kv_heads * m->head_dim;
    struct rope_kv_params p = {.n_rows = b->n_rows,
                               .n_heads = m->n_heads,
                               .rot_dim = m->head_dim,
                               .layer = layer,
                               .q = f->qkv,
                               .k = f->qkv + q,
                               .v = f->qkv + q + kv,
                               .qkv_stride = q + 2 * kv,
                               .pos = a->pos,
                               .cos_sin = f->cos_sin,
                               .n_pos = f->c.n_pos,
                               .slot_block = a->slot_block,
                               .slot_offset = a->slot_offset,
                               .pool = *pool};
    return f->ops->rope_kv(f->c.device, NULL, &p);
}

static enum status attention(struct forward *f, const struct batch *b, const struct step_arrays *a,
                             const struct kv_pool *pool, uint32_t layer)
{
    const struct model_config *m = f->c.model;
    struct attention_params p = {.n_seqs = b->n_seqs,
                                 .n_rows = b->n_rows,
                                 .n_rows_max = b->seq_rows_most,
                                 .n_segs_max = b->seq_segments_most,
                                 .n_heads = m->n_heads,
                                 .layer = layer,
                                 .scale = 1.0f / sqrtf((float)m->head_dim),
                                 .q = f->qkv,
                                 .q_stride = (size_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
                                 .out = f->attn,
                                 .seqs = a->seqs,
                                 .segments = a->segments,
                                 .blocks = a->blocks,
                                 .pool = *pool};
    return f->ops->attention(f->c.device, NULL, &p);
}

static enum status silu_mul(struct forward *f, uint32_t n_rows)
{
    struct silu_mul_params p = {
        .n_rows = n_rows, .dim = f->c.model->ffn_dim, .gate_up = f->gate_up, .out = f->act};
    return f->ops->silu_mul(f->c.device, NULL, &p);
}

static enum status run_layer(struct forward *f, const struct batch *b, const struct step_arrays *a,
                             const struct kv_pool *pool, uint32_t layer)
{
    const struct layer_weights *w = &f->c.weights->layers[layer];
    const struct weight *after =
        layer + 1 < f->c.model->n_layers ? &w[1].qkv : &f->c.weights->output;
    uint32_t n = b->n_rows;
    enum status s;

    if ((s = norm(f, n, f->x, w->attn_norm, f->xn)) != OK ||
        (s = product(f, n, f->xn, &w->qkv, &w->o, w->qkv_bias, false, f->qkv)) != OK ||
        (s = rope_kv(f, b, a, pool, layer)) != OK || (s = attention(f, b, a, pool, layer)) != OK ||
        (s = product(f, n, f->attn, &w->o, &w->gate_up, w->o_bias, true, f->x)) != OK ||
        (s = norm(f, n, f->x, w->ffn_norm, f->xn)) != OK ||
        (s = product(f, n, f->xn, &w->gate_up, &w->down, w->gate_up_bias, false, f->gate_up)) !=
            OK ||
        (s = silu_mul(f, n)) != OK)
        return s;
    return product(f, n, f->act, &w->down, after, w->down_bias, true, f->x);
}

/* rows [n] where ops can read them. */
static enum status run_output(struct forward *f, const uint32_t *rows, uint32_t n, float **logits)
{
    const struct model_config *m = f->c.model;
    struct gather_params p = {.n_rows = n, .dim = m->dim, .x = f->x, .rows = rows, .out = f->out_x};
    enum status s;

    *logits = f->host_logits ? f->host_logits : f->logits;
    if (n == 0)
        return OK;
    if ((s = f->ops->gather(f->c.device, NULL, &p)) != OK ||
        (s = norm(f, n, f->out_x, f->c.weights->final_norm, f->out_x)) != OK ||
        (s = product(f, n, f->out_x, &f->c.weights->output, &f->c.weights->layers[0].qkv, NULL,
                     false, f->logits)) != OK)
        return s;
    if (*logits == f->logits)
        return OK;
    return device_download(f->c.device, *logits, f->logits, (size_t)n * m->n_vocab * sizeof(float));
}

enum status forward_run(struct forward *f, const struct batch *b, const struct kv_pool *pool,
                        float **logits)
{
    struct step_arrays a = {0};
    enum status s = stage_batch(f, b, &a);

    ASSERT(b->n_rows <= f->c.n_rows_max && b->n_out <= f->c.n_out_max);
    if (s == OK)
        s = embed(f, b, &a);
    for (uint32_t layer = 0; s == OK && layer < f->c.model->n_layers; layer++)
        s = run_layer(f, b, &a, pool, layer);
    return s == OK ? run_output(f, a.out_rows, b->n_out, logits) : s;
}

enum status forward_logits(struct forward *f, const uint32_t *rows, uint32_t n, float **logits)
{
    enum status s = staging_begin(f->staging);

    ASSERT(n <= f->c.n_out_max);
    if (s != OK)
        return s;
    rows = staging_add(f->staging, rows, n * sizeof *rows);
    s = staging_send(f->staging);
    return s == OK ? run_output(f, rows, n, logits) : s;
}
