/* forward_world.h - a small model, its KV pool and a forward pass, without an engine.
 *
 * Owns    everything that world_open() made, until world_close().
 * Thread  the test's main thread.
 * Errors  each failure fails the test.
 * Units   tokens. */
#ifndef TARN_TESTS_UNIT_ENGINE_RUN_FORWARD_WORLD_H
#define TARN_TESTS_UNIT_ENGINE_RUN_FORWARD_WORLD_H

#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model/family.h"
#include "engine/run/forward.h"

#define WORLD_N_ROWS 64
#define WORLD_N_SEQS 4
#define WORLD_N_TOKENS 512
#define WORLD_N_BLOCKS 40

struct world {
    struct model_config model;
    struct device *device;
    struct weights weights;
    struct cache *cache;
    struct batch batch;
    struct forward *forward;
};

/* A sequence and what cache_seq_open() borrows. */
struct world_seq {
    struct kv_key keys[WORLD_N_BLOCKS];
    struct cache_prompt prompt;
    struct cache_seq *seq;
};

static inline struct model_config world_llama(void)
{
    return (struct model_config){.family = &family_llama,
                                 .rope = {.theta = 10000, .factor = 1},
                                 .rms_eps = 1e-5,
                                 .n_layers = 2,
                                 .dim = 24,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 6,
                                 .ffn_dim = 40,
                                 .n_vocab = 50,
                                 .max_pos = WORLD_N_TOKENS,
                                 .stored_dtype = DTYPE_F32};
}

struct world_options {
    const char *dir;         /* of the weights; NULL: random ones */
    const struct ops *ops;   /* NULL: the device's own */
    const char *cpu_variant; /* NULL: the reference device */
    uint32_t n_threads;
    enum dtype kv; /* F32 by default */
    const struct query_calls *queries;
};

/* False: this machine lacks the CPU variant. */
static inline bool world_open_with(struct world *w, const struct model_config *m,
                                   const struct world_options *o)
{
    struct model_work work;
    struct buf why;

    memset(w, 0, sizeof *w);
    buf_init(&why, BUF_WHY_MAX);
    w->model = *m;
    m->family->count_work(m, NULL, &work);
    struct device_config dc = {.kind = o->cpu_variant ? DEVICE_CPU : DEVICE_REF,
                               .cpu_variant = o->cpu_variant,
                               .n_threads = o->n_threads,
                               .max_rows = WORLD_N_ROWS,
                               .max_k = work.k_max,
                               .max_heads = m->n_heads,
                               .max_head_dim = m->head_dim};
    if (device_open(&w->device, &dc, &why) != OK) {
        assert_non_null(o->cpu_variant);
        buf_fini(&why);
        return false;
    }
    struct weights_config wc = {
        .device = w->device, .dir = o->dir, .model = &w->model, .dummy = !o->dir, .seed = 3};
    if (weights_load(&w->weights, &wc, &why) != OK)
        fail_msg("%s", buf_str(&why));
    struct cache_config cc = {.group = device_group_of(w->device),
                              .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                              .pool = {.layout = kv_layout_of(o->kv),
                                       .n_blocks = WORLD_N_BLOCKS,
                                       .n_layers = m->n_layers,
                                       .n_kv_heads = m->n_kv_heads,
                                       .head_dim = m->head_dim}};
    assert_ok(cache_create(&w->cache, &cc, NULL));
    assert_ok(batch_create(&w->batch, WORLD_N_ROWS, WORLD_N_SEQS, WORLD_N_ROWS, WORLD_N_BLOCKS));
    struct forward_config fc = {.group = device_group_of(w->device),
                                .model = &w->model,
                                .weights = &w->weights,
                                .n_rows_max = WORLD_N_ROWS,
                                .n_out_max = WORLD_N_ROWS,
                                .n_pos = WORLD_N_TOKENS,
                                .n_seqs_max = WORLD_N_SEQS,
                                .n_blocks_max = WORLD_N_BLOCKS,
                                .ops = o->ops,
                                .queries = o->queries};
    assert_ok(forward_create(&w->forward, &fc));
    buf_fini(&why);
    return true;
}

static inline void world_open(struct world *w, const struct model_config *m, const char *dir,
                              const struct ops *ops)
{
    struct world_options o = {.dir = dir, .ops = ops};

    assert_true(world_open_with(w, m, &o));
}

static inline void world_close(struct world *w)
{
    forward_destroy(w->forward);
    batch_destroy(&w->batch);
    cache_destroy(w->cache);
    weights_free(&w->weights);
    device_close(w->device);
}

static inline void world_seq_open(struct world *w, struct world_seq *s, const uint32_t *ids,
                                  uint32_t n)
{
    static const uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope = {{0}};

    memset(s, 0, sizeof *s);
    s->prompt = (struct cache_prompt){.ids = ids, .n_ids = n, .keys = s->keys};
    kv_chain_init(&s->prompt.chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    s->prompt.n_keys = kv_chain_prompt(&s->prompt.chain, ids, n, NULL, 0, 0, s->keys);
    assert_ok(cache_seq_open(w->cache, &s->prompt, n, &s->seq));
}

/* Add the next n tokens of the sequence to the batch. */
static inline void world_add(struct world *w, struct world_seq *s, uint32_t pos, uint32_t n,
                             uint32_t n_out)
{
    assert_ok(cache_seq_grow(s->seq, n));
    batch_add(&w->batch, s->seq, s->prompt.ids + pos, pos, n, n_out);
}

/* Run a whole prompt in chunks; out [n, V] gets the logits of each token. */
static inline void world_prefill(struct world *w, const uint32_t *ids, uint32_t n, uint32_t chunk,
                                 float *out)
{
    struct world_seq s;
    float *logits;

    world_seq_open(w, &s, ids, n);
    for (uint32_t pos = 0; pos < n; pos += chunk) {
        uint32_t c = n - pos < chunk ? n - pos : chunk;
        batch_reset(&w->batch);
        world_add(w, &s, pos, c, c);
        assert_ok(forward_run(w->forward, &w->batch, cache_pool(w->cache), &logits));
        cache_seq_commit(s.seq, c);
        memcpy(out + (size_t)pos * w->model.n_vocab, logits,
               (size_t)c * w->model.n_vocab * sizeof *out);
    }
    cache_seq_close(s.seq);
}

#endif
