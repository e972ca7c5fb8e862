#include "loadgen/bench/engine/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/model/family.h"
#include "engine/model/hub.h"
#include "engine/opening.h"
#include "engine/run/forward.h"
#include "kernels/pack.h"
#include "loadgen/bench/engine/memory.h"
#include "loadgen/bench/engine/profile.h"

/* Random numbers that the pool is filled with, again and again: odd, so that no two heads' keys are
 * alike. */
#define NOISE_COUNT 1000003u
#define SEED 1
/* Bytes that one task writes when the threads fill a pool. */
#define FILL_BYTES ((uint64_t)4 << 20)

struct rig_seq {
    struct cache_seq *kv;
    const uint32_t *ids;
    uint32_t *own_ids;   /* NULL: ids lie in those of the rig, at a place of the sequence's own */
    struct kv_key *keys; /* of own_ids */
};

struct rig {
    struct rig_info info;
    struct buf model_path;
    struct model_config model;
    struct device *device;
    struct weights weights;
    struct cache *cache;
    struct forward *forward;
    struct batch batch;
    uint64_t n_blocks_max; /* what memory allows */
    uint32_t *ids;         /* [n_ids] */
    uint32_t n_ids;
    bool shares;          /* some case has sequences with tokens in common */
    struct rig_seq *seqs; /* [n_seqs] of the running case */
    uint32_t n_seqs;
    struct bench_case c; /* the running case */
};

/* --- model, device, weights --- */

static uint32_t largest_batch(const struct bench_options *o)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < o->n_cases; i++)
        n = o->cases[i].batch > n ? o->cases[i].batch : n;
    return n;
}

static uint32_t rows_max(const struct rig *r, const struct bench_options *o)
{
    uint32_t batch = largest_batch(o);

    return r->info.chunk > batch ? r->info.chunk : batch;
}

/* Choose type and quantization of the weights. The device opens after that, and for them. */
static enum status choose_weights(struct weights_config *out, const struct rig *r,
                                  const struct bench_options *o, struct buf *why)
{
    enum dtype stored = r->model.stored_dtype;
    enum status s;

    *out = (struct weights_config){.dir = buf_str(&r->model_path),
                                   .model = &r->model,
                                   .dummy = strcmp(o->load_format, "dummy") == 0};
    s = quantization_parse(&out->quantization, o->quantization, (uint32_t)o->quantization_group,
                           why);
    if (s == OK && !out->dummy)
        s = weights_stored_dtype(&r->model, out->dir, &stored, why);
    out->dtype = bench_dtype(o->dtype, stored);
    return s;
}

static enum status open_device(struct rig *r, const struct bench_options *o,
                               const struct weights_config *w, struct buf *why)
{
    const struct model_config *m = &r->model;
    struct device_config d = {.kind = DEVICE_AUTO,
                              .n_threads = (uint32_t)o->threads,
                              .max_rows = rows_max(r, o),
                              .measure = true};

    opening_fit_device(&d, w);
    if (strcmp(o->cpu_variant, "auto") != 0)
        d.cpu_variant = o->cpu_variant;
    if (strcmp(o->device, "ref") == 0)
        d.kind = DEVICE_REF;
    else if (strcmp(o->device, "cpu") == 0)
        d.kind = DEVICE_CPU;
    else if (strcmp(o->device, "cuda") == 0)
        d.kind = DEVICE_CUDA;
    d.batch_invariant = o->batch_invariant;
    d.wgmma = !o->no_wgmma;
    enum status s = device_open(&r->device, &d, why);
    if (s == OK && o->profile && m->family != &family_llama)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "--profile recognizes a product by its weight in a "
                    "Llama layer (qkv, o, gate_up, down); this model is of family %s",
                    m->family->name);
    if (s == OK && m->n_experts > 0 && !o->no_limits)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "the limits are those of a dense model; with the experts of family %s a step "
                    "reads what its rows choose: use --no-limits",
                    m->family->name);
    if (s == OK && o->profile && !device_is_host(r->device))
        s = buf_why(why, ERR_UNSUPPORTED, "--profile measures ops on the host: use --device cpu");
    return s;
}

static void fill_info(struct rig *r, uint64_t t0)
{
    const struct model_config *m = &r->model;
    const struct weight *layer = r->weights.first, *output = &r->weights.output;
    struct rig_info *i = &r->info;

    i->ops_name = device_ops(r->device)->name;
    i->n_threads = device_n_threads(r->device);
    i->is_host = device_is_host(r->device);
    i->n_params = r->weights.n_params;
    i->weight_bytes = r->weights.n_bytes;
    i->load_seconds = (double)(clock_now_ns() - t0) * 1e-9;
    i->shape = (struct bench_shape){.n_layers = m->n_layers,
                                    .dim = m->dim,
                                    .n_heads = m->n_heads,
                                    .n_kv_heads = m->n_kv_heads,
                                    .head_dim = m->head_dim,
                                    .ffn_dim = m->ffn_dim,
                                    .n_vocab = m->n_vocab,
                                    .layers = layer->dtype,
                                    .layers_group = layer->group,
                                    .output = output->dtype,
                                    .output_group = output->group,
                                    .kv = i->shape.kv};
}

/* --- the KV pool --- */

static struct kv_pool pool_shape(const struct rig *r)
{
    return (struct kv_pool){.layout = kv_layout_of(r->info.shape.kv),
                            .n_layers = r->model.n_layers,
                            .n_kv_heads = r->model.n_kv_heads,
                            .head_dim = r->model.head_dim};
}

enum status rig_case_fits(const struct rig *r, const struct bench_case *c, struct buf *why)
{
    uint64_t n_tokens = (uint64_t)c->context + case_rows_per_seq(c);
    struct kv_pool pool = pool_shape(r);

    if (n_tokens > r->model.max_pos)
        return buf_why(why, ERR_TOO_LARGE,
                       "%llu tokens are beyond the model's "
                       "max_position_embeddings of %u",
                       (unsigned long long)n_tokens, r->model.max_pos);
    if (case_blocks(c) > r->n_blocks_max)
        return buf_why(why, ERR_TOO_LARGE, "its KV takes %.1f GiB, there is room for %.1f GiB",
                       (double)(case_blocks(c) * kv_block_bytes(&pool)) / (1 << 30),
                       (double)(r->n_blocks_max * kv_block_bytes(&pool)) / (1 << 30));
    return OK;
}

struct fill {
    unsigned char *to;
    uint64_t n_bytes;
    const unsigned char *noise;
    uint64_t noise_bytes;
};

static void fill_part(void *arg, uint32_t i)
{
    const struct fill *f = arg;
    uint64_t at = i * FILL_BYTES, end = at + FILL_BYTES, n;

    for (end = end < f->n_bytes ? end : f->n_bytes; at < end; at += n) {
        uint64_t from = at % f->noise_bytes;
        n = f->noise_bytes - from < end - at ? f->noise_bytes - from : end - at;
        memcpy(f->to + at, f->noise + from, n);
    }
}

/* The same to a device with memory of its own. */
static enum status upload_noise(struct rig *r, const struct fill *f)
{
    enum status s = OK;
    uint64_t n;

    for (uint64_t at = 0; s == OK && at < f->n_bytes; at += n) {
        n = f->n_bytes - at < f->noise_bytes ? f->n_bytes - at : f->noise_bytes;
        s = device_upload(r->device, f->to + at, f->noise, n);
    }
    return s;
}

/* Fill the pool with numbers in [-1, 1): about the magnitude of keys and values, and no denormal
 * numbers, which would slow the kernels down. Filling also maps all pages before the timing. */
static enum status fill_pool(struct rig *r)
{
    const struct kv_pool *pool = cache_pool(r->cache);
    /* Elements of one byte are those of floats, which are their scales, too: about 1 / 127. With
     * larger ones, probabilities are denormal numbers. */
    enum dtype t = pool->layout.scale_group ? DTYPE_F32 : pool->layout.dtype;
    float top = pool->layout.scale_group ? 1.0f / 128 : 1;
    struct fill f = {pool->base, kv_block_bytes(pool) * pool->n_blocks, NULL,
                     (uint64_t)NOISE_COUNT * dtype_bytes(t)};
    unsigned char *noise = malloc(f.noise_bytes);

    if (!noise)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < NOISE_COUNT; i++)
        dtype_store(t, noise, i, (2 * rng_uniform(SEED, i) - 1) * top);
    f.noise = noise;
    enum status s = OK;
    if (device_is_host(r->device))
        device_parallel(r->device, (uint32_t)((f.n_bytes + FILL_BYTES - 1) / FILL_BYTES), fill_part,
                        &f);
    else
        s = upload_noise(r, &f);
    free(noise);
    return s;
}

static enum status create_cache(struct rig *r, uint64_t n_blocks, struct buf *why)
{
    struct cache_config c = {.group = device_group_of(r->device),
                             .pool = pool_shape(r),
                             .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                             .prefix_caching = r->shares};

    c.pool.n_blocks = (uint32_t)n_blocks;
    r->info.kv_bytes = kv_block_bytes(&c.pool) * n_blocks;
    enum status s = cache_create(&r->cache, &c, why);
    if (s != OK)
        return s;
    s = fill_pool(r);
    return s == OK ? OK : buf_why(why, s, "out of memory for the KV cache");
}

/* --- memory for all cases that fit --- */

struct needs {
    uint64_t n_blocks; /* the most of one case */
    uint32_t n_tokens; /* of one sequence */
    uint32_t batch;
};

static void measure_needs(struct rig *r, const struct bench_options *o, struct needs *out)
{
    *out = (struct needs){2, 1, 1}; /* nothing fits: a small pool that no case uses */
    for (uint32_t i = 0; i < o->n_cases; i++) {
        const struct bench_case *c = &o->cases[i];
        uint32_t n_tokens = c->context + case_rows_per_seq(c);

        if (rig_case_fits(r, c, NULL) != OK)
            continue;
        r->shares |= c->shared > 0;
        out->n_blocks = case_blocks(c) > out->n_blocks ? case_blocks(c) : out->n_blocks;
        out->n_tokens = n_tokens > out->n_tokens ? n_tokens : out->n_tokens;
        out->batch = c->batch > out->batch ? c->batch : out->batch;
    }
}

static enum status make_ids(struct rig *r, const struct needs *n)
{
    r->n_ids = n->n_tokens + n->batch;
    r->ids = malloc(r->n_ids * sizeof *r->ids);
    r->seqs = calloc(n->batch, sizeof *r->seqs);
    if (!r->ids || !r->seqs)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < r->n_ids; i++)
        r->ids[i] = rng_u32(SEED, i) % r->model.n_vocab;
    return OK;
}

static uint64_t free_memory(const struct rig *r)
{
    size_t n_free, n_total;

    return device_memory(r->device, &n_free, &n_total) == OK ? n_free : memory_available();
}

static enum status create_step(struct rig *r, const struct bench_options *o, struct buf *why)
{
    uint64_t room = o->kv_bytes_max ? o->kv_bytes_max : free_memory(r) / 4 * 3;
    struct kv_pool pool = pool_shape(r);
    struct needs n;
    enum status s;

    r->n_blocks_max = room / kv_block_bytes(&pool);
    if (r->n_blocks_max > UINT32_MAX / 2)
        r->n_blocks_max = UINT32_MAX / 2;
    measure_needs(r, o, &n);
    s = create_cache(r, n.n_blocks, why);
    if (s != OK)
        return s;
    uint32_t rows = r->info.chunk > n.batch ? r->info.chunk : n.batch;
    struct forward_config f = {.group = device_group_of(r->device),
                               .model = &r->model,
                               .weights = &r->weights,
                               .n_rows_max = rows,
                               .n_out_max = n.batch,
                               .n_pos = n.n_tokens,
                               .n_seqs_max = n.batch,
                               .n_blocks_max = (uint32_t)n.n_blocks,
                               .graph_bytes = o->enforce_eager ? 0 : UINT64_MAX};
    if (o->profile)
        f.ops = profile_ops(device_ops(r->device), &r->weights, r->model.n_layers);
    if ((s = forward_create(&r->forward, &f)) != OK ||
        (s = batch_create(&r->batch, rows, n.batch, n.batch, (uint32_t)n.n_blocks)) != OK ||
        (s = make_ids(r, &n)) != OK)
        return buf_why(why, s, "out of memory for the step buffers");
    return OK;
}

enum status rig_open(struct rig **out, const struct bench_options *o, struct buf *why)
{
    uint64_t t0 = clock_now_ns();
    struct rig *r = calloc(1, sizeof *r);

    *out = NULL;
    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory");
    r->info.chunk = (uint32_t)o->chunk;
    struct weights_config w = {0};
    buf_init(&r->model_path, 2 * HUB_PATH_BYTES_MAX);
    enum status s = hub_resolve(o->model, &r->model_path, why);
    if (s == OK)
        s = model_config_load(&r->model, buf_str(&r->model_path), why);
    if (s == OK)
        s = choose_weights(&w, r, o, why);
    if (s == OK)
        s = open_device(r, o, &w, why);
    if (s == OK) {
        w.device = r->device;
        s = weights_load(&r->weights, &w, why);
    }
    if (s == OK) {
        r->info.shape.kv = bench_dtype(o->kv_cache_dtype, w.dtype);
        fill_info(r, t0);
        s = create_step(r, o, why);
    }
    if (s != OK) {
        rig_close(r);
        return s;
    }
    *out = r;
    return OK;
}

void rig_close(struct rig *r)
{
    if (!r)
        return;
    rig_case_end(r);
    batch_destroy(&r->batch);
    forward_destroy(r->forward);
    cache_destroy(r->cache);
    weights_free(&r->weights);
    device_close(r->device);
    buf_fini(&r->model_path);
    free(r->seqs);
    free(r->ids);
    free(r);
}

const struct rig_info *rig_info(const struct rig *r)
{
    return &r->info;
}

/* --- cases --- */

/* Fill the ids and keys of sequence i, which begins as all others do. */
static enum status make_prompt(struct rig *r, uint32_t i, struct cache_prompt *p)
{
    struct rig_seq *q = &r->seqs[i];
    uint32_t shared = r->c.shared / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;

    q->own_ids = malloc(p->n_ids * sizeof *q->own_ids);
    q->keys = calloc(cache_blocks_max(p->n_ids, 0, 0), sizeof *q->keys);
    if (!q->own_ids || !q->keys)
        return ERR_NOMEM;
    for (uint32_t k = 0; k < p->n_ids; k++)
        q->own_ids[k] = r->ids[k < shared ? k : i + k];
    p->ids = q->ids = q->own_ids;
    p->n_keys = kv_chain_prompt(&p->chain, p->ids, p->n_ids, NULL, 0, 0, q->keys);
    p->keys = q->keys;
    return OK;
}

static void close_seq(struct rig_seq *q)
{
    cache_seq_close(q->kv);
    free(q->own_ids);
    free(q->keys);
    *q = (struct rig_seq){0};
}

static enum status open_seq(struct rig *r, uint32_t i)
{
    uint32_t n_tokens = r->c.context + case_rows_per_seq(&r->c);
    static const uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    static const struct kv_scope scope;
    static const struct kv_key no_key; /* nothing is found again, so no block needs a name */
    struct cache_prompt prompt = {.ids = r->ids + i, .n_ids = n_tokens, .keys = &no_key};
    struct rig_seq *q = &r->seqs[i];
    enum status s = OK;

    *q = (struct rig_seq){.ids = prompt.ids};
    r->n_seqs = i + 1;
    kv_chain_init(&prompt.chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    if (r->shares)
        s = make_prompt(r, i, &prompt);
    if (s == OK)
        s = cache_seq_open(r->cache, &prompt, n_tokens, &q->kv);
    if (s != OK || r->c.context == 0)
        return s;
    s = cache_seq_grow(q->kv, r->c.context);
    if (s == OK)
        cache_seq_commit(q->kv, r->c.context); /* blocks in common become those of the first */
    return s;
}

enum status rig_case_begin(struct rig *r, const struct bench_case *c)
{
    enum status s = OK;

    ASSERT(r->n_seqs == 0);
    r->c = *c;
    for (uint32_t i = 0; s == OK && i < c->batch; i++)
        s = open_seq(r, i);
    return s;
}

/* The next n tokens of every sequence, of which `done` behind the context are computed. */
static enum status run_step(struct rig *r, uint32_t done, uint32_t n, uint32_t n_out)
{
    uint32_t pos0 = r->c.context + done;
    enum status s = OK;
    float *logits;

    batch_reset(&r->batch);
    for (uint32_t i = 0; s == OK && i < r->n_seqs; i++) {
        const struct rig_seq *q = &r->seqs[i];

        s = cache_seq_grow(q->kv, n);
        if (s == OK)
            batch_add(&r->batch, q->kv, q->ids + pos0, pos0, n, n_out);
    }
    return s == OK ? forward_run(r->forward, &r->batch, cache_pool(r->cache), &logits) : s;
}

enum status rig_case_pass(struct rig *r)
{
    uint32_t rows = case_rows_per_seq(&r->c), n;
    enum status s = OK;

    for (uint32_t done = 0; s == OK && done < rows; done += n) {
        n = rows - done < r->info.chunk ? rows - done : r->info.chunk;
        s = run_step(r, done, n, done + n == rows);
    }
    for (uint32_t i = 0; i < r->n_seqs; i++)
        cache_seq_shrink(r->seqs[i].kv);
    return s == OK ? device_stream_wait(r->device, NULL) : s; /* its end is that of the work */
}

void rig_case_end(struct rig *r)
{
    for (uint32_t i = 0; i < r->n_seqs; i++)
        close_seq(&r->seqs[i]);
    r->n_seqs = 0;
}
