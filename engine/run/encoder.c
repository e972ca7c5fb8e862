#include "engine/run/encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/family.h"

struct encoder {
    struct encoder_config c;
    struct device *device;
    struct layer_step step; /* its buffers are owned here */
    struct kv_pool pool;    /* of one layer; token i lies in block i / KV_BLOCK_TOKENS */
    uint32_t *types, *pos, *slot_block, *slot_offset; /* [n_tokens_max] */
    float *pooled; /* [D], of models that classify, as the next */
    float *logits; /* [n_labels] */
    uint32_t *blocks;
    struct attn_segment *segments;
    struct attn_seq seq;
};

static uint32_t n_parts(uint32_t n_tokens, uint32_t size)
{
    return (n_tokens + size - 1) / size;
}

static enum status alloc_buffers(struct encoder *e)
{
    uint32_t widths[LAYER_N_BUFFERS_MAX], dim = e->c.model->dim;
    uint32_t n = e->c.model->family->plan_buffers(e->c.model, widths);
    uint64_t rows = e->c.n_tokens_max;
    struct layer_step *p = &e->step;

    ASSERT(n <= LAYER_N_BUFFERS_MAX);
    p->x = device_alloc(e->device, rows * dim * sizeof(float));
    p->xn = device_alloc(e->device, rows * dim * sizeof(float));
    if (!p->x || !p->xn)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (!(p->buffer[i] = device_alloc(e->device, rows * widths[i] * sizeof(float))))
            return ERR_NOMEM;
    e->pool.base = device_alloc(e->device, e->pool.n_blocks * kv_block_bytes(&e->pool));
    if (!e->pool.base)
        return ERR_NOMEM;
    if (e->c.model->n_labels == 0)
        return OK;
    e->pooled = device_alloc(e->device, dim * sizeof(float));
    e->logits = device_alloc(e->device, e->c.model->n_labels * sizeof(float));
    return e->pooled && e->logits ? OK : ERR_NOMEM;
}

static enum status alloc_arrays(struct encoder *e)
{
    uint32_t n = e->c.n_tokens_max;

    e->types = calloc(n, sizeof *e->types);
    e->pos = calloc(n, sizeof *e->pos);
    e->slot_block = calloc(n, sizeof *e->slot_block);
    e->slot_offset = calloc(n, sizeof *e->slot_offset);
    e->blocks = calloc(e->pool.n_blocks, sizeof *e->blocks);
    e->segments = calloc(n_parts(n, KV_SEGMENT_TOKENS_MAX), sizeof *e->segments);
    if (!e->types || !e->pos || !e->slot_block || !e->slot_offset || !e->blocks || !e->segments)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        e->pos[i] = i;
        e->slot_block[i] = i / KV_BLOCK_TOKENS;
        e->slot_offset[i] = i % KV_BLOCK_TOKENS;
    }
    for (uint32_t i = 0; i < e->pool.n_blocks; i++)
        e->blocks[i] = i;
    return OK;
}

enum status encoder_create(struct encoder **out, const struct encoder_config *config)
{
    const struct model_config *m = config->model;
    struct encoder *e = calloc(1, sizeof *e);

    *out = NULL;
    if (!e)
        return ERR_NOMEM;
    e->c = *config;
    e->device = device_group_self(&e->c.group);
    ASSERT(m->family->is_encoder && config->group.n == 1);
    ASSERT(config->n_tokens_max > 0 && config->n_tokens_max <= m->max_pos);
    e->pool = (struct kv_pool){.layout = kv_layout_of(config->weights->dtype),
                               .n_blocks = n_parts(config->n_tokens_max, KV_BLOCK_TOKENS),
                               .n_layers = 1,
                               .n_kv_heads = m->n_kv_heads,
                               .head_dim = m->head_dim};
    enum status s = device_is_host(e->device) ? alloc_buffers(e) : ERR_UNSUPPORTED;
    if (s == OK)
        s = alloc_arrays(e);
    if (s != OK) {
        encoder_destroy(e);
        return s;
    }
    e->step.device = e->device;
    e->step.group = &e->c.group;
    e->step.ops = device_ops(e->device);
    e->step.model = m;
    e->step.weights = config->weights;
    e->step.cos_sin = e->step.cos_sin_local = e->step.x; /* no dimension is rotated */
    e->step.n_pos = config->n_tokens_max;
    e->step.n_seqs = 1;
    e->step.pos = e->pos;
    e->step.slot_block = e->slot_block;
    e->step.slot_offset = e->slot_offset;
    e->step.blocks = e->blocks;
    e->step.seqs = &e->seq;
    e->step.segments = e->segments;
    e->step.pool = &e->pool;
    e->step.bidirectional = true;
    *out = e;
    return OK;
}

void encoder_destroy(struct encoder *e)
{
    if (!e)
        return;
    device_free(e->device, e->step.x);
    device_free(e->device, e->step.xn);
    for (size_t i = 0; i < LAYER_N_BUFFERS_MAX; i++)
        device_free(e->device, e->step.buffer[i]);
    device_free(e->device, e->pool.base);
    free(e->types);
    device_free(e->device, e->pooled);
    device_free(e->device, e->logits);
    free(e->pos);
    free(e->slot_block);
    free(e->slot_offset);
    free(e->blocks);
    free(e->segments);
    free(e);
}

/* Describe one sequence of n tokens. */
static void set_length(struct encoder *e, uint32_t n)
{
    uint32_t n_segs = n_parts(n, KV_SEGMENT_TOKENS_MAX);

    for (uint32_t i = 0; i < n_segs; i++) {
        uint32_t first = i * KV_SEGMENT_TOKENS_MAX, left = n - first;

        e->segments[i] = (struct attn_segment){
            .pos0 = first,
            .n_tokens = left < KV_SEGMENT_TOKENS_MAX ? left : KV_SEGMENT_TOKENS_MAX,
            .block0 = first / KV_BLOCK_TOKENS};
    }
    e->seq = (struct attn_seq){.n_rows = n, .n_segs = n_segs};
    e->step.n_rows = e->step.seq_rows_most = n;
    e->step.n_segments = n_segs;
    e->step.seq_segments_most = n_segs;
}

/* out [n, D] = rows of a table. */
static enum status look_up(struct encoder *e, const struct weight *table, const uint32_t *rows,
                           float *out)
{
    struct embed_params p = {.n_rows = e->step.n_rows,
                             .dim = e->c.model->dim,
                             .n_vocab = table->n,
                             .table = *table,
                             .ids = rows,
                             .out = out};

    return e->step.ops->embed(e->device, NULL, &p);
}

/* Add rows of a table to the embedding. A table without data adds nothing. */
static enum status add_rows(struct encoder *e, const struct weight *table, const uint32_t *rows)
{
    struct layer_step *p = &e->step;
    enum status s;

    if (!table->data)
        return OK;
    s = look_up(e, table, rows, p->xn);
    return s == OK ? layer_scale(p, p->n_rows, e->c.model->dim, p->xn, 1, 0, true, p->x) : s;
}

/* Types 0, then 1. A table with one row has no second type. */
static void set_types(struct encoder *e, uint32_t n, uint32_t n_first)
{
    bool has_second = e->c.weights->types.n > 1;

    for (uint32_t i = 0; i < n; i++)
        e->types[i] = i >= n_first && has_second;
}

enum status encoder_run(struct encoder *e, const uint32_t *ids, uint32_t n, uint32_t n_first,
                        const float **hidden)
{
    const struct weights *w = e->c.weights;
    struct layer_step *p = &e->step;
    enum status s;

    ASSERT(n > 0 && n <= e->c.n_tokens_max);
    set_length(e, n);
    set_types(e, n, n_first);
    s = look_up(e, &w->embedding, ids, p->x);
    if (s == OK)
        s = add_rows(e, &w->positions, e->pos);
    if (s == OK)
        s = add_rows(e, &w->types, e->types);
    if (s == OK)
        s = layer_norm_with(p, n, p->x, w->embedding_norm, w->embedding_norm_bias, false, p->x);
    for (uint32_t layer = 0; s == OK && layer < e->c.model->n_layers; layer++)
        s = e->c.model->family->run_layer(p, layer);
    *hidden = p->x;
    return s;
}

enum status encoder_classify(struct encoder *e, const uint32_t *ids, uint32_t n, uint32_t n_first,
                             float *logits)
{
    const struct weights *w = e->c.weights;
    const struct model_config *m = e->c.model;
    const float *hidden;
    enum status s;

    ASSERT(m->n_labels > 0);
    s = encoder_run(e, ids, n, n_first, &hidden);
    if (s == OK)
        s = layer_product(&e->step, 1, hidden, &w->pooler, &w->labels, w->pooler_bias, e->pooled);
    for (uint32_t i = 0; s == OK && i < m->dim; i++)
        e->pooled[i] = tanhf(e->pooled[i]);
    if (s == OK)
        s = layer_product(&e->step, 1, e->pooled, &w->labels, NULL, w->labels_bias, e->logits);
    if (s == OK)
        memcpy(logits, e->logits, m->n_labels * sizeof *logits);
    return s;
}
