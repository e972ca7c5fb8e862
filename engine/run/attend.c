#include "engine/run/attend.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/layer.h"

struct attend {
    struct device *device;
    const struct ops *ops;
    struct kv_pool pool; /* base: of each call */
    uint32_t n_heads;
    float scale;
    uint32_t blocks[POOL_PATH_MAX];
    struct attn_segment segments[POOL_QUERY_SEGMENTS_MAX];
};

/* Prefix of the names of ops of the CPU variants. */
static const char cpu_prefix[] = "cpu-";

bool attend_is_possible(const struct device *d, const struct model_config *m)
{
    const struct ops *ops = device_ops(d);

    return m->window == 0 && m->attention_cap == 0 && device_is_host(d) && ops->attention_tiles &&
           strncmp(ops->name, cpu_prefix, strlen(cpu_prefix)) == 0;
}

enum status attend_create(struct attend **out, const struct attend_config *config)
{
    const struct model_config *m = config->model;
    struct attend *a;

    *out = NULL;
    if (!attend_is_possible(config->device, m))
        return ERR_UNSUPPORTED;
    if (!(a = calloc(1, sizeof *a)))
        return ERR_NOMEM;
    struct device_config dc = {.kind = DEVICE_CPU,
                               .cpu_variant = device_ops(config->device)->name + strlen(cpu_prefix),
                               .n_threads = 1,
                               .max_rows = 1, /* it computes no products */
                               .max_k = 1,
                               .max_heads = m->n_heads,
                               .max_head_dim = m->head_dim};
    enum status s = device_open(&a->device, &dc, NULL);
    if (s != OK) {
        free(a);
        return s;
    }
    a->ops = device_ops(a->device);
    a->pool = (struct kv_pool){.layout = config->layout,
                               .n_layers = m->n_layers,
                               .n_kv_heads = m->n_kv_heads,
                               .head_dim = m->head_dim};
    a->n_heads = m->n_heads;
    a->scale = layer_attention_scale(m);
    *out = a;
    return OK;
}

void attend_destroy(struct attend *a)
{
    if (!a)
        return;
    device_close(a->device);
    free(a);
}

/* Number the blocks by their distance from the first one in memory, which becomes block 0. */
static bool number_blocks(struct attend *a, const struct pool_attend *x)
{
    uintptr_t base = UINTPTR_MAX;
    size_t bytes = kv_block_bytes(&a->pool);

    for (uint32_t i = 0; i < x->n_blocks; i++)
        if ((uintptr_t)x->blocks[i] < base) {
            base = (uintptr_t)x->blocks[i];
            a->pool.base = (void *)(uintptr_t)x->blocks[i];
        }
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        uintptr_t at = (uintptr_t)x->blocks[i] - base;

        if (at % bytes != 0 || at / bytes >= UINT32_MAX)
            return false;
        a->blocks[i] = (uint32_t)(at / bytes);
    }
    a->pool.n_blocks = UINT32_MAX;
    return true;
}

static bool take_segments(struct attend *a, const struct pool_attend *x)
{
    for (uint32_t i = 0; i < x->n_segments; i++) {
        const struct pool_segment *s = &x->segments[i];

        if (s->n_tokens == 0 || s->n_tokens > KV_SEGMENT_TOKENS_MAX ||
            s->n_blocks != (s->n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS ||
            s->at > x->n_blocks || s->n_blocks > x->n_blocks - s->at)
            return false;
        a->segments[i] = (struct attn_segment){.n_tokens = s->n_tokens, .block0 = s->at};
    }
    return true;
}

enum status attend_tiles(void *arg, const struct pool_attend *x)
{
    struct attend *a = arg;

    if (x->layer >= a->pool.n_layers || x->n_blocks > POOL_PATH_MAX ||
        x->n_segments > POOL_QUERY_SEGMENTS_MAX || x->n_rows > POOL_QUERY_ROWS_MAX ||
        !number_blocks(a, x) || !take_segments(a, x))
        return ERR_INVALID;
    /* All segments begin at position 0, and the rows lie behind them: every row sees every key. */
    struct attn_seq seq = {
        .n_rows = x->n_rows, .pos0 = KV_SEGMENT_TOKENS_MAX, .n_segs = x->n_segments};
    struct attention_params p = {.n_seqs = x->n_rows > 0 && x->n_segments > 0,
                                 .n_rows = x->n_rows,
                                 .n_rows_max = x->n_rows,
                                 .n_segs = x->n_segments,
                                 .n_segs_max = x->n_segments,
                                 .n_heads = a->n_heads,
                                 .layer = x->layer,
                                 .scale = a->scale,
                                 .q = x->q,
                                 .q_stride = (size_t)a->n_heads * a->pool.head_dim,
                                 .out = x->tiles,
                                 .seqs = &seq,
                                 .segments = a->segments,
                                 .blocks = a->blocks,
                                 .pool = a->pool};
    return a->ops->attention_tiles(a->device, NULL, &p);
}
