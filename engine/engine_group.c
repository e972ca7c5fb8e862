/* engine_group.c - the devices that compute the model together, and the weights of each.
 *
 * Rank r has the r-th of n equal parts of the heads, of the feed-forward part and of the output
 * layer. The host does the same for all ranks: one plan, one block table, one batch. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_internal.h"

enum status engine_check_group(const struct engine_config *c, struct buf *why)
{
    if (c->tensor_parallel_size <= 1)
        return OK;
    if (c->tensor_parallel_size > DEVICE_GROUP_MAX)
        return buf_why(why, ERR_INVALID, "{tensor_parallel_size} %u: at most %d",
                       c->tensor_parallel_size, DEVICE_GROUP_MAX);
    if (c->max_adapters > 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "{tensor_parallel_size} does not go with {lora_modules} and {lora_dir}: "
                       "adapters run on one GPU only");
    return OK;
}

static enum status open_rank(struct engine *e, uint32_t rank, const struct device_config *first,
                             struct buf *why)
{
    struct device_config d = *first;
    size_t n_free, n_total;

    d.kind = DEVICE_CUDA;
    d.ordinal = rank;
    enum status s = device_open(&e->group.devices[rank], &d, why);
    if (s != OK)
        return s;
    e->group.n = rank + 1;
    s = device_memory(e->group.devices[rank], &n_free, &n_total);
    if (s != OK)
        return buf_why(why, s, "a GPU does not say how much memory it has");
    e->gpu_bytes_free_at_open[rank] = n_free;
    return OK;
}

enum status engine_open_group(struct engine *e, const struct device_config *d, struct buf *why)
{
    uint32_t n = e->config.tensor_parallel_size > 1 ? e->config.tensor_parallel_size : 1;
    enum status s = model_share(&e->model, n, &e->share, why);

    e->group = device_group_of(e->device);
    if (s == OK && n > 1 && device_is_host(e->device))
        s = buf_why(why, ERR_UNSUPPORTED,
                    "{tensor_parallel_size} %u needs %u GPUs, and this server "
                    "computes on the CPU",
                    n, n);
    for (uint32_t r = 1; s == OK && r < n; r++)
        s = open_rank(e, r, d, why);
    if (s == OK)
        s = device_group_connect(&e->group, why);
    if (s != OK || n == 1)
        return s;
    e->rank_weights = calloc(n, sizeof *e->rank_weights);
    if (!e->rank_weights)
        return buf_why(why, ERR_NOMEM, "out of memory");
    log_event(LOG_INFO, "one model on several GPUs", "gpus=%u", n);
    return OK;
}

/* The first device is engine_close()'s. */
void engine_close_group(struct engine *e)
{
    for (uint32_t r = 1; r < e->group.n; r++)
        device_close(e->group.devices[r]);
    free(e->rank_weights);
}

static struct weights *weights_of(struct engine *e, uint32_t rank)
{
    return rank ? &e->rank_weights[rank] : &e->weights;
}

enum status engine_load_weights(struct engine *e, uint8_t *hash, struct buf *why)
{
    struct hash_state all;
    enum status s = OK;

    hash_begin(&all, sizeof e->weights.content_hash, NULL, 0);
    for (uint32_t r = 0; s == OK && r < e->group.n; r++) {
        struct weights *w = weights_of(e, r);
        struct weights_config c = e->weights_config;

        c.device = e->group.devices[r];
        c.model = &e->share;
        c.n_ranks = e->group.n;
        c.rank = r;
        s = weights_load(w, &c, why);
        if (s == OK)
            hash_add(&all, w->content_hash, sizeof w->content_hash);
    }
    hash_end(&all, hash, sizeof e->weights.content_hash);
    if (e->group.n == 1)
        memcpy(hash, e->weights.content_hash, sizeof e->weights.content_hash);
    if (s != OK)
        engine_free_weights(e);
    return s;
}

/* Also fine where some ranks have none. */
void engine_free_weights(struct engine *e)
{
    for (uint32_t r = 0; r < e->group.n; r++)
        if (r == 0 || e->rank_weights)
            weights_free(weights_of(e, r));
}
