#include "engine/run/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/family.h"
#include "engine/run/ranks.h"
#include "engine/run/segment_work.h"
#include "engine/run/staging.h"
#include "engine/run/step_graphs.h"
#include "kernels/pack.h"

/* A layer of a Llama model has 10 kernels in decode. Norms behind sublayers and products whose
 * ranges of K are blocks of their own add up to 6, a mixture of experts 8 more. */
#define KERNELS_OF_LAYER 16
#define KERNELS_OF_EXPERTS 24

struct forward {
    struct forward_config c;
    struct device *device;    /* of the group: the one that this forward pass runs on */
    struct layer_step step;   /* its buffers are owned here */
    const uint32_t *ids;      /* [T] of this step, where ops can read them */
    const uint32_t *out_rows; /* the same, [R] */
    const uint32_t *from;     /* the same, [T]; NULL without `picked` */
    const uint32_t *picked;   /* of forward_follow(); NULL: all ids are known to the host */
    float *cos_sin;           /* [tables][n_pos, r] */
    uint16_t *rounded;        /* step.rounded in steps without adapters */
    float *out_x;             /* [R, D] rows that want logits */
    float *logits;            /* [R, V]; with c.hidden the same memory as out_x */
    float *part_logits;       /* [R, V / n] where devices share the output layer; else NULL */
    uint32_t n_sums;          /* over the group, in this step */
    bool has_gathered;        /* the logits of all devices were gathered in this step */
    float *host_logits;
    struct staging *staging;
    struct queries *queries;    /* NULL: no sequence sends queries */
    struct segment_work *work;  /* NULL: the device is the host */
    struct step_graphs *graphs; /* NULL: each step is launched kernel by kernel */
    uint32_t n_out;             /* rows of this step that get logits, padding included */
};

/* Bytes of rows that ops round for products, with any weight of the model; 0 on a device whose ops
 * do not. */
static uint64_t rounded_bytes(const struct forward_config *c)
{
    const struct model_config *m = c->model;
    struct device *d = device_group_self(&c->group);
    const struct ops *ops = c->ops ? c->ops : device_ops(d);
    uint64_t n_rows = c->n_rows_max > c->n_out_max ? c->n_rows_max : c->n_out_max, width, sorted;
    struct model_work work;

    if (!ops->rounds_rows)
        return 0;
    m->family->count_work(m, NULL, &work);
    width = pack_row_stride(work.k_max);
    sorted = (uint64_t)m->n_chosen * pack_row_stride(m->expert_dim); /* a row for each expert */
    return n_rows * (width > sorted ? width : sorted) * sizeof(uint16_t);
}

static void *alloc_floats(struct forward *f, uint64_t rows, uint64_t cols)
{
    return device_alloc(f->device, rows * cols * sizeof(float));
}

/* Floats of one table of cosines and sines. */
static size_t cos_sin_size(const struct forward_config *c)
{
    return (size_t)c->n_pos * model_rot_dim(c->model);
}

static uint32_t n_cos_sin_tables(const struct model_config *m)
{
    return m->rope_local.theta > 0 ? 2 : 1;
}

static void fill_cos_sin(const struct forward_config *c, bool local, float *table)
{
    const struct rope_config *r = local ? &c->model->rope_local : &c->model->rope;
    double freqs[MODEL_ROPE_PAIRS_MAX], magnitude = r->magnitude > 0 ? r->magnitude : 1;
    uint32_t half = model_rope_freqs(c->model, local, freqs);

    for (uint32_t p = 0; p < c->n_pos; p++)
        for (uint32_t i = 0; i < half; i++) {
            table[(size_t)p * 2 * half + i] = (float)(magnitude * cos(p * freqs[i]));
            table[(size_t)p * 2 * half + half + i] = (float)(magnitude * sin(p * freqs[i]));
        }
}

static enum status make_cos_sin(struct forward *f)
{
    size_t n = cos_sin_size(&f->c), n_bytes = n_cos_sin_tables(f->c.model) * n * sizeof(float);
    float *table = malloc(n_bytes);

    if (!table)
        return ERR_NOMEM;
    fill_cos_sin(&f->c, false, table);
    if (n_cos_sin_tables(f->c.model) > 1)
        fill_cos_sin(&f->c, true, table + n);
    enum status s = device_upload(f->device, f->cos_sin, table, n_bytes);
    free(table);
    return s;
}

/* Floats of one row of the result. */
static uint32_t out_width(const struct forward_config *c)
{
    return c->hidden ? c->model->dim : c->model->n_vocab;
}

/* Whether this device has a part of the output layer. */
static bool shares_output(const struct forward_config *c)
{
    return !c->hidden && c->group.n > 1 && c->weights->output.n < c->model->n_vocab;
}

static bool is_on_gpu(const struct forward_config *c)
{
    return !device_is_host(device_group_self(&c->group));
}

/* Of one step's arrays at most. */
static size_t staging_bytes_max(const struct forward_config *c)
{
    return 4 * STAGING_BYTES(c->n_rows_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_blocks_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_out_max * sizeof(uint32_t)) +
           STAGING_BYTES(c->n_seqs_max * sizeof(struct attn_seq)) +
           STAGING_BYTES(c->n_blocks_max * sizeof(struct attn_segment)) +
           (is_on_gpu(c) ? STAGING_BYTES(c->n_blocks_max * sizeof(struct attn_work)) +
                               STAGING_BYTES(c->n_rows_max * sizeof(uint32_t))
                         : 0);
}

uint64_t forward_device_bytes(const struct forward_config *c)
{
    const struct model_config *m = c->model;
    uint64_t per_row = 2 * (uint64_t)m->dim, per_out = m->dim;
    uint32_t widths[LAYER_N_BUFFERS_MAX];

    for (uint32_t n = m->family->plan_buffers(m, widths); n > 0; n--)
        per_row += widths[n - 1];
    per_row += adapter_mid_width(c->adapter_rank);
    if (!c->hidden)
        per_out += m->n_vocab;
    if (shares_output(c))
        per_out += c->weights->output.n;
    return (c->n_rows_max * per_row + c->n_out_max * per_out +
            n_cos_sin_tables(m) * (uint64_t)cos_sin_size(c)) *
               sizeof(float) +
           rounded_bytes(c) + staging_bytes_max(c);
}

static enum status alloc_buffers(struct forward *f)
{
    const struct model_config *m = f->c.model;
    struct layer_step *p = &f->step;
    uint32_t widths[LAYER_N_BUFFERS_MAX], n = m->family->plan_buffers(m, widths);
    uint64_t rows = f->c.n_rows_max;

    ASSERT(n <= LAYER_N_BUFFERS_MAX);
    if (rounded_bytes(&f->c) > 0 && !(f->rounded = device_alloc(f->device, rounded_bytes(&f->c))))
        return ERR_NOMEM;
    p->rounded = f->rounded;
    if (f->c.adapter_rank > 0 &&
        !(p->adapter_mid = alloc_floats(f, rows, adapter_mid_width(f->c.adapter_rank))))
        return ERR_NOMEM;
    p->x = alloc_floats(f, rows, m->dim);
    p->xn = alloc_floats(f, rows, m->dim);
    for (uint32_t i = 0; i < n; i++)
        if (!(p->buffer[i] = alloc_floats(f, rows, widths[i])))
            return ERR_NOMEM;
    f->out_x = alloc_floats(f, f->c.n_out_max, m->dim);
    f->logits = f->c.hidden ? f->out_x : alloc_floats(f, f->c.n_out_max, m->n_vocab);
    if (shares_output(&f->c) &&
        !(f->part_logits = alloc_floats(f, f->c.n_out_max, f->c.weights->output.n)))
        return ERR_NOMEM;
    p->cos_sin = f->cos_sin = alloc_floats(f, n_cos_sin_tables(m), cos_sin_size(&f->c));
    p->cos_sin_local = p->cos_sin;
    if (n_cos_sin_tables(m) > 1)
        p->cos_sin_local += cos_sin_size(&f->c);
    return p->x && p->xn && f->out_x && f->logits && f->cos_sin ? OK : ERR_NOMEM;
}

uint32_t forward_kernels_max(const struct model_config *m)
{
    return (m->n_layers + 1) * (m->n_experts ? KERNELS_OF_EXPERTS : KERNELS_OF_LAYER);
}

enum status forward_create(struct forward **out, const struct forward_config *config)
{
    size_t n_logits = (size_t)config->n_out_max * out_width(config);
    struct forward *f = calloc(1, sizeof *f);
    enum status s;

    *out = NULL;
    if (!f)
        return ERR_NOMEM;
    f->c = *config;
    f->device = device_group_self(&f->c.group);
    f->step = (struct layer_step){.device = f->device,
                                  .group = &f->c.group,
                                  .ops = config->ops ? config->ops : device_ops(f->device),
                                  .model = config->model,
                                  .weights = config->weights,
                                  .n_pos = config->n_pos,
                                  .n_sums = &f->n_sums};
    if (config->model->family->is_encoder || (config->group.n > 1 && !f->step.ops->all_reduce))
        s = ERR_UNSUPPORTED;
    else
        s = alloc_buffers(f);
    if (s == OK && device_is_host(f->device))
        /* Touch the pages now, not in the first step with so many rows: see base/memory.h. */
        memset(f->logits, 0, n_logits * sizeof(float));
    if (s == OK && !device_is_host(f->device) && !config->device_logits) {
        f->host_logits = malloc(n_logits * sizeof(float));
        s = f->host_logits ? OK : ERR_NOMEM;
    }
    if (s == OK)
        s = staging_create(&f->staging, f->device, staging_bytes_max(config));
    if (s == OK)
        s = make_cos_sin(f);
    if (s == OK && is_on_gpu(config))
        s = segment_work_create(&f->work, config->n_blocks_max);
    if (s == OK && config->graph_bytes > 0 && is_on_gpu(config) && config->group.n == 1)
        s = step_graphs_create(&f->graphs, f->device, config->graph_bytes);
    if (s == OK && config->queries)
        s = queries_create(&f->queries,
                           &(struct queries_config){.device = f->device,
                                                    .ops = f->step.ops,
                                                    .calls = config->queries,
                                                    .n_heads = config->model->n_heads,
                                                    .head_dim = config->model->head_dim,
                                                    .n_seqs_max = config->n_seqs_max});
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
    step_graphs_destroy(f->graphs);
    segment_work_destroy(f->work);
    void *all[] = {f->step.x,           f->step.xn,    f->rounded,
                   f->step.adapter_mid, f->out_x,      f->c.hidden ? NULL : f->logits,
                   f->cos_sin,          f->part_logits};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        device_free(f->device, all[i]);
    for (size_t i = 0; i < LAYER_N_BUFFERS_MAX; i++)
        device_free(f->device, f->step.buffer[i]);
    staging_destroy(f->staging);
    queries_destroy(f->queries);
    free(f->host_logits);
    free(f);
}

/* Fill the batch up to a bucket, behind its rows, sequences and segments. */
static void pad_batch(struct batch *b, const struct step_bucket *to)
{
    ASSERT(to->n_rows <= b->n_rows_max && to->n_rows <= b->n_seqs_max &&
           to->n_rows <= b->n_out_max && to->n_segments <= b->n_segments_max);
    for (uint32_t i = b->n_rows; i < to->n_rows; i++) {
        b->ids[i] = b->pos[i] = b->slot_offset[i] = 0;
        b->from[i] = BATCH_KNOWN;
        b->slot_block[i] = UINT32_MAX; /* its K and V are not stored */
        b->seqs[i] = (struct attn_seq){.row0 = i, .seg0 = b->n_segments}; /* both ascend */
    }
    for (uint32_t i = b->n_out; i < to->n_rows; i++)
        b->out_rows[i] = 0;
    for (uint32_t i = b->n_segments; i < to->n_segments; i++)
        b->segments[i] = (struct attn_segment){0};
}

/* The order in which a GPU reads segments. A group has as many sequences as fill an mma. */
static const struct attn_work *list_work(struct forward *f, const struct batch *b, uint32_t n)
{
    uint32_t n_shared = f->c.model->n_heads / f->c.model->n_kv_heads;
    uint32_t n_together = n_shared < ATTN_WORK_MAX ? ATTN_WORK_MAX / n_shared : 1;

    return segment_work_list(f->work, b, n_together, n);
}

/* Stage the batch's arrays, as long as the bucket wants them. Block ids come last: their number
 * differs between steps of a bucket, the address of no array does. */
static enum status stage_batch(struct forward *f, const struct batch *b,
                               const struct step_bucket *bucket)
{
    struct layer_step *p = &f->step;
    struct staging *g = f->staging;
    enum status s = staging_begin(g);

    p->n_rows = bucket ? bucket->n_rows : b->n_rows;
    p->n_seqs = bucket ? bucket->n_rows : b->n_seqs;
    p->seq_rows_most = b->seq_rows_most;
    p->n_segments = bucket ? bucket->n_segments : b->n_segments;
    p->seq_segments_most = bucket ? bucket->n_segments : b->seq_segments_most;
    f->n_out = bucket ? bucket->n_rows : b->n_out;
    if (s != OK)
        return s;
    f->ids = staging_add(g, b->ids, p->n_rows * sizeof *b->ids);
    if (f->picked)
        f->from = staging_add(g, b->from, p->n_rows * sizeof *b->from);
    p->pos = staging_add(g, b->pos, p->n_rows * sizeof *b->pos);
    p->slot_block = staging_add(g, b->slot_block, p->n_rows * sizeof *b->slot_block);
    p->slot_offset = staging_add(g, b->slot_offset, p->n_rows * sizeof *b->slot_offset);
    f->out_rows = staging_add(g, b->out_rows, f->n_out * sizeof *b->out_rows);
    p->seqs = staging_add(g, b->seqs, p->n_seqs * sizeof *b->seqs);
    p->segments = staging_add(g, b->segments, p->n_segments * sizeof *b->segments);
    if (f->work)
        p->work = staging_add(g, list_work(f, b, p->n_segments), p->n_segments * sizeof *p->work);
    p->blocks = staging_add(g, b->blocks, b->n_blocks * sizeof *b->blocks);
    return staging_send(g);
}

static enum status embed(struct forward *f)
{
    struct embed_params p = {.n_rows = f->step.n_rows,
                             .dim = f->c.model->dim,
                             .n_vocab = f->c.model->n_vocab,
                             .table = f->c.weights->embedding,
                             .ids = f->ids,
                             .out = f->step.x,
                             .from = f->from,
                             .picked = f->picked};
    const struct model_config *m = f->c.model;
    enum status s = f->step.ops->embed(f->device, NULL, &p);

    if (s != OK || m->embed_scale == 0)
        return s;
    return layer_scale(&f->step, p.n_rows, p.dim, p.out, m->embed_scale, 0, false, p.out);
}

/* Bring the devices' parts of n rows of logits together on the first one. */
static enum status gather_logits(struct forward *f, uint32_t n)
{
    struct all_gather_params p = {.n_rows = n,
                                  .n_cols = f->c.weights->output.n,
                                  .x = f->part_logits,
                                  .out = f->c.group.rank == 0 ? f->logits : NULL};

    f->has_gathered = true; /* whatever the op answers, this device took part */
    return device_all_gather(f->device, NULL, &p);
}

/* Compute the result of rows [n]; the array lies where ops can read it. An output layer that is not
 * shared is the first device's. */
static enum status run_output(struct forward *f, const uint32_t *rows, uint32_t n)
{
    const struct model_config *m = f->c.model;
    const struct weights *w = f->c.weights;
    struct gather_params p = {
        .n_rows = n, .dim = m->dim, .x = f->step.x, .rows = rows, .out = f->out_x};
    float *out = f->part_logits ? f->part_logits : f->logits;
    const float *in;
    enum status s;

    if (n == 0 || (f->c.group.rank > 0 && !f->part_logits))
        return OK;
    if ((s = f->step.ops->gather(f->device, NULL, &p)) != OK ||
        (s = layer_norm_for(&f->step, n, f->out_x, w->final_norm, w->final_norm_bias,
                            f->c.hidden ? NULL : &w->output, f->out_x, &in)) != OK)
        return s;
    if (!f->c.hidden)
        s = layer_product(&f->step, n, in, &w->output, w->first, NULL, out);
    if (s == OK && !f->c.hidden && (m->logit_scale > 0 || m->logit_cap > 0))
        s = layer_scale(&f->step, n, w->output.n, out, m->logit_scale, m->logit_cap, false, out);
    return s == OK && f->part_logits ? gather_logits(f, n) : s;
}

/* Take part in the collectives that a step which failed halfway has left out, because the other
 * devices wait in them. Nothing of the result is read. */
static void finish_collectives(struct forward *f, uint32_t n_sums, uint32_t n_out)
{
    struct all_reduce_params sum = {.n = (size_t)f->step.n_rows * f->c.model->dim, .x = f->step.x};

    for (; f->n_sums < n_sums; f->n_sums++)
        (void)f->step.ops->all_reduce(f->device, NULL, &sum);
    if (f->part_logits && n_out > 0 && !f->has_gathered)
        (void)gather_logits(f, n_out);
}

/* Bring the results of n rows to where the caller reads them. */
static enum status take_output(struct forward *f, uint32_t n, float **logits)
{
    *logits = f->host_logits ? f->host_logits : f->logits;
    if (n == 0 || *logits == f->logits)
        return OK;
    return device_download(f->device, *logits, f->logits,
                           (size_t)n * out_width(&f->c) * sizeof(float));
}

/* Set the rows with adapters. Their products read floats, so other ops leave floats in such a step:
 * a product rounds them to the same bits itself. */
static void begin_adapters(struct forward *f, const struct batch *b)
{
    ASSERT(b->n_adapter_runs == 0 || f->step.adapter_mid);
    f->step.adapter_runs = b->adapter_runs;
    f->step.n_adapter_runs = b->n_adapter_runs;
    f->step.rounded = b->n_adapter_runs > 0 ? NULL : f->rounded;
}

/* Have sequences that query attended to by way of `queries`. */
static void begin_queries(struct forward *f, struct batch *b)
{
    f->step.attention = NULL;
    if (b->n_queries == 0)
        return;
    ASSERT(f->queries);
    queries_begin(f->queries, b);
    f->step.attention = queries_attention;
    f->step.attention_arg = f->queries;
}

/* Enqueue all ops of the step. */
static enum status run_ops(void *arg)
{
    struct forward *f = arg;
    const struct model_config *m = f->c.model;
    enum status s = embed(f);

    for (uint32_t layer = 0; s == OK && layer < m->n_layers; layer++)
        s = m->family->run_layer(&f->step, layer);
    return s == OK ? run_output(f, f->out_rows, f->n_out) : s;
}

/* Whether the step is one that repeats: a row of each sequence. Then pads the batch. */
static bool choose_bucket(const struct forward *f, struct batch *b, const struct kv_pool *pool,
                          struct step_bucket *out)
{
    uint32_t most = f->c.n_seqs_max < f->c.n_out_max ? f->c.n_seqs_max : f->c.n_out_max;

    most = most < f->c.n_rows_max ? most : f->c.n_rows_max;
    most = most < STEP_GRAPH_ROWS_MAX ? most : STEP_GRAPH_ROWS_MAX;
    if (!f->graphs || b->n_rows == 0 || b->n_rows > most || b->seq_rows_most != 1 ||
        b->n_queries > 0 || b->n_adapter_runs > 0)
        return false;
    *out = step_bucket_for(b->n_rows, b->n_segments, most, f->c.n_blocks_max);
    out->pool = pool->base;
    pad_batch(b, out);
    return true;
}

/* Enqueue the step on this device. */
static enum status launch(struct forward *f, struct batch *b, const struct kv_pool *pools,
                          const struct step_bucket *bucket)
{
    enum status s = stage_batch(f, b, bucket);

    f->n_sums = 0;
    f->has_gathered = false;
    f->step.pool = &pools[f->c.group.rank];
    begin_queries(f, b);
    begin_adapters(f, b);
    if (s == OK)
        s = bucket ? step_graphs_run(f->graphs, bucket, run_ops, f) : run_ops(f);
    if (s != OK && f->c.group.n > 1)
        finish_collectives(f, FORWARD_SUMS_PER_LAYER * f->c.model->n_layers, f->n_out);
    return s;
}

enum status forward_launch(struct forward *f, struct batch *b, const struct kv_pool *pools)
{
    ASSERT(!f->graphs);
    return launch(f, b, pools, NULL);
}

enum status forward_run(struct forward *f, struct batch *b, const struct kv_pool *pool,
                        float **logits)
{
    struct step_bucket bucket;

    ASSERT(b->n_rows <= f->c.n_rows_max && b->n_out <= f->c.n_out_max);
    bool repeats = choose_bucket(f, b, pool, &bucket);
    if (f->c.ranks)
        ranks_begin(f->c.ranks, b, pool);
    enum status s = launch(f, b, pool, repeats ? &bucket : NULL);
    if (f->c.ranks)
        s = ranks_end(f->c.ranks, s);
    return s == OK ? take_output(f, b->n_out, logits) : s;
}

enum status forward_launch_logits(struct forward *f, const uint32_t *rows, uint32_t n)
{
    enum status s = staging_begin(f->staging);

    ASSERT(n <= f->c.n_out_max);
    f->has_gathered = false;
    if (s == OK) {
        rows = staging_add(f->staging, rows, n * sizeof *rows);
        s = staging_send(f->staging);
    }
    if (s == OK)
        s = run_output(f, rows, n);
    if (s != OK && f->c.group.n > 1)
        finish_collectives(f, 0, n);
    return s;
}

enum status forward_logits(struct forward *f, const uint32_t *rows, uint32_t n, float **logits)
{
    if (f->c.ranks)
        ranks_begin_logits(f->c.ranks, rows, n);
    enum status s = forward_launch_logits(f, rows, n);
    if (f->c.ranks)
        s = ranks_end(f->c.ranks, s);
    return s == OK ? take_output(f, n, logits) : s;
}

void forward_tune(struct forward *f, bool on)
{
    for (uint32_t i = 0; i < f->c.group.n; i++)
        device_tune(f->c.group.devices[i], on);
}

void forward_follow(struct forward *f, const uint32_t *picked)
{
    ASSERT(is_on_gpu(&f->c));
    f->picked = picked;
}

void forward_forget(struct forward *f)
{
    if (f->graphs)
        step_graphs_forget(f->graphs);
}

struct step_graphs_stats forward_graphs(const struct forward *f)
{
    return f->graphs ? step_graphs_stats(f->graphs) : (struct step_graphs_stats){0};
}
