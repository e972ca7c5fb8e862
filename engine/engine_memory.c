/* engine_memory.c - how large the buffers of a step and the KV pool are. */
#include <sys/sysinfo.h>

#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/opening.h"
#include "engine/step_memory.h"
#include "kernels/device.h"

enum status engine_gpu_memory(struct device *d, uint64_t *n_free, uint64_t *n_total,
                              struct buf *why)
{
    size_t free_now, total;
    enum status s = device_memory(d, &free_now, &total);

    if (s != OK)
        return buf_why(why, s, "the GPU does not say how much memory it has");
    *n_free = free_now;
    if (n_total)
        *n_total = total;
    return OK;
}

static uint64_t default_kv_bytes(uint64_t wanted)
{
    struct sysinfo si;

    if (sysinfo(&si) != 0)
        return wanted;
    uint64_t quarter = (uint64_t)si.totalram * si.mem_unit / 4;
    return wanted < quarter ? wanted : quarter;
}

static struct step_memory step_memory_of(const struct engine *e, uint32_t rank,
                                         uint32_t max_model_len)
{
    struct step_memory m = {.config = &e->config,
                            .model = &e->model,
                            .share = &e->share,
                            .weights = rank ? &e->rank_weights[rank] : &e->weights,
                            .group = e->group,
                            .max_model_len = max_model_len};

    m.group.rank = rank;
    return m;
}

uint32_t engine_logits_rows(const struct engine *e)
{
    return step_memory_logits_rows(&e->config, e->device);
}

struct forward_config engine_forward_shape(struct engine *e, uint32_t max_model_len)
{
    static const struct query_calls queries = {cache_seq_query_rows, cache_seq_query,
                                               cache_seq_answer};
    struct step_memory m = step_memory_of(e, 0, max_model_len);
    struct forward_config fwd = step_memory_forward(&m);

    fwd.graph_bytes = e->graph_bytes;
    fwd.queries = e->attend ? &queries : NULL;
    return fwd;
}

struct device_sampler_config engine_sampler_shape(struct engine *e, uint32_t max_model_len)
{
    struct step_memory m = step_memory_of(e, 0, max_model_len);

    return step_memory_sampler(&m);
}

/* Bytes that the exchange of KV with other instances on this machine takes (cache.c). */
static uint64_t sharing_bytes(const struct engine *e, uint64_t block)
{
    const struct engine_config *c = &e->config;

    return c->pool_url && c->pool_device_ipc && e->group.n == 1 ? cache_sharing_bytes(block) : 0;
}

void engine_reserve_graphs(struct engine *e)
{
    struct step_memory m = step_memory_of(e, 0, e->config.max_model_len);

    e->graph_bytes = e->info.graph_bytes = step_memory_reserve(&m, &e->graph_cost);
    if (e->graph_bytes > 0)
        log_event(LOG_INFO, "GPU memory is reserved for recorded steps", "bytes=%llu recordings=%d",
                  (unsigned long long)e->graph_bytes, STEP_GRAPHS_MAX);
}

/* Bytes that recorded steps will take. The driver may have kept some when those of the measurement
 * were destroyed: these are taken already. */
static uint64_t graph_bytes_to_come(const struct engine *e)
{
    uint64_t kept = e->graph_cost.n_kept;

    return e->info.graph_bytes > kept ? e->info.graph_bytes - kept : 0;
}

/* Size the KV pool of a rank by gpu_memory_utilization: that share of all memory, less the memory
 * used since the device was opened (weights, and all of a draft model), that of the step's buffers,
 * the reserve for recorded steps and the exchange with other instances; never more than is free. */
static enum status rank_kv_bytes(struct engine *e, uint32_t rank, uint32_t max_model_len,
                                 uint64_t block, uint64_t *out, struct buf *why)
{
    struct step_memory m = step_memory_of(e, rank, max_model_len);
    struct kv_room room = {.step_bytes = step_memory_bytes(&m) + graph_bytes_to_come(e) +
                                         sharing_bytes(e, block),
                           .utilization = e->config.gpu_memory_utilization};
    uint64_t at_open = e->gpu_bytes_free_at_open[rank];
    enum status s = engine_gpu_memory(e->group.devices[rank], &room.n_free, &room.n_total, why);

    if (s != OK)
        return s;
    room.taken_bytes = at_open - room.n_free;
    if (room.n_free > at_open) /* another process gave memory back meanwhile */
        room.taken_bytes = e->weights.n_bytes + e->info.draft_weight_bytes + e->info.draft_kv_bytes;
    *out = kv_room_bytes(&room);
    if (*out == 0)
        return buf_why(why, ERR_NOMEM,
                       "the GPU has no room for a KV pool: weights and buffers "
                       "take %.2f GB, %.2f of %.2f GB are free, {gpu_memory_utilization} is %g",
                       (double)(room.taken_bytes + room.step_bytes) * 1e-9,
                       (double)room.n_free * 1e-9, (double)room.n_total * 1e-9, room.utilization);
    return OK;
}

/* The ranks' pools have equally many blocks: as many as the fullest device holds. */
static enum status gpu_kv_bytes(struct engine *e, uint32_t max_model_len, uint64_t block,
                                uint64_t *out, struct buf *why)
{
    uint64_t least = UINT64_MAX / DEVICE_GROUP_MAX, n;
    enum status s = OK;

    for (uint32_t r = 0; s == OK && r < e->group.n; r++) {
        s = rank_kv_bytes(e, r, max_model_len, block, &n, why);
        least = s == OK && n < least ? n : least;
    }
    *out = least * e->group.n;
    return s;
}

static enum status choose_kv_bytes(struct engine *e, uint32_t max_model_len, uint64_t block,
                                   uint64_t wanted, uint64_t *out, struct buf *why)
{
    *out = e->config.kv_bytes;
    if (*out > 0)
        return OK;
    if (!device_is_host(e->device))
        return gpu_kv_bytes(e, max_model_len, block, out, why);
    *out = default_kv_bytes(wanted);
    return OK;
}

enum status engine_size_pool(struct engine *e, struct kv_pool *pool, struct buf *why)
{
    struct engine_config *c = &e->config;
    uint32_t len = c->max_model_len ? c->max_model_len : e->model.max_pos;
    uint64_t bytes, wanted;
    enum dtype kv;
    enum status s;

    *pool = (struct kv_pool){.n_layers = e->model.n_layers,
                             .n_kv_heads = e->model.n_kv_heads,
                             .head_dim = e->model.head_dim};
    s = opening_kv_dtype("{kv_cache_dtype}", c->kv_dtype, e->weights.dtype, e->device, &kv, why);
    if (s != OK)
        return s;
    pool->layout = kv_layout_of(kv);
    if (len > e->model.max_pos)
        return buf_why(why, ERR_INVALID,
                       "{max_model_len} %u is above the model's "
                       "max_position_embeddings %u",
                       len, e->model.max_pos);
    uint64_t block = kv_block_bytes(pool);
    uint64_t per_seq = cache_blocks_max(len, 0, 0);
    if (__builtin_mul_overflow(per_seq * block, c->max_num_seqs, &wanted))
        wanted = UINT64_MAX; /* cut to what there is */
    s = choose_kv_bytes(e, len, block, wanted, &bytes, why);
    if (s != OK)
        return s;
    uint64_t n = bytes / block;
    if (n > UINT32_MAX / 2)
        n = UINT32_MAX / 2;
    if (n < 2)
        return buf_why(why, ERR_INVALID,
                       "the KV pool of %llu bytes holds fewer than 2 KV blocks "
                       "of %llu bytes; raise {kv_device_bytes}",
                       (unsigned long long)bytes, (unsigned long long)block);
    if (per_seq > n) {
        if (c->max_model_len)
            return buf_why(why, ERR_INVALID,
                           "the KV pool of %llu blocks cannot hold {max_model_len} %u; raise "
                           "{kv_device_bytes} to %llu",
                           (unsigned long long)n, len, (unsigned long long)(per_seq * block));
        len = (uint32_t)(n - 1) * KV_BLOCK_TOKENS;
        log_event(LOG_WARN, "max_model_len cut to what the KV pool holds", "max_model_len=%u", len);
    }
    c->max_model_len = len;
    model_set_context(&e->model, len);
    model_set_context(&e->share, len);
    pool->n_blocks = (uint32_t)n;
    return OK;
}
