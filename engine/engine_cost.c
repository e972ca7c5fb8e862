/* engine_cost.c - what the engine knows of time: T(cached, new, batch), and copies of KV. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/model/family.h"
#include "kernels/device.h"

#define COPY_BYTES ((size_t)4 << 20)

/* About what a core and a GPU do. */
static struct cost_estimate estimate(const struct engine *e, const struct kv_pool *pool)
{
    const struct model_config *m = &e->share; /* all ranks work at the same time */
    bool is_host = device_is_host(e->device);
    struct model_work work;

    m->family->count_work(m, &e->weights, &work);
    return (struct cost_estimate){
        .weight_bytes = work.weight_bytes,
        .flops_per_token = work.flops_per_token,
        .flops_per_pair = work.flops_per_pair,
        .kv_bytes_per_token = (double)kv_block_bytes(pool) / KV_BLOCK_TOKENS / e->group.n,
        .bytes_per_s = is_host ? 2e10 : 2e12,
        .flops_per_s = is_host ? 1e11 * device_n_threads(e->device) : 3e14};
}

/* T(cached, new, batch): measured, or kept from an earlier start. Without it the server goes on
 * with an estimate, which the first prefills scale. */
void engine_obtain_cost(struct engine *e, const struct kv_pool *pool)
{
    const struct engine_config *c = &e->config;
    struct cost_profile_config p = {.device = e->device,
                                    .forward = e->forward,
                                    .batch = &e->batch,
                                    .pool = cache_pool(e->cache),
                                    .segment_tokens = c->segment_tokens,
                                    .n_vocab = e->model.n_vocab,
                                    .n_rows_max = c->max_batched_tokens,
                                    .n_seqs_max = c->max_num_seqs,
                                    .n_tokens_max = c->max_model_len,
                                    .estimate = estimate(e, pool),
                                    .dir = c->cost_dir,
                                    .subject = &e->cost_subject};
    struct buf why;

    cost_model_estimate(&e->cost, &p.estimate);
    if (!c->profile_cost)
        return;
    buf_init(&why, BUF_WHY_MAX);
    cost_profile_subject(&e->cost_subject, e->fingerprint, &p);
    enum status s = cost_profile_obtain(&e->cost, &p, &e->profile, &why);
    if (s != OK)
        log_event(LOG_WARN, "the profile of step times is not whole", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
}

/* Seconds to copy a token's KV between host and device memory; 0 where nothing is copied. */
double engine_measure_copy(struct engine *e)
{
    /* Each rank copies its part, all at the same time. */
    uint64_t token_bytes = e->info.kv_block_bytes / KV_BLOCK_TOKENS / e->group.n, t0 = 0;
    void *host = device_alloc_pinned(e->device, COPY_BYTES);
    void *device = device_alloc(e->device, COPY_BYTES);
    enum status s = host && device ? OK : ERR_NOMEM;

    for (int i = 0; s == OK && i < 2; i++) { /* the first one touches everything */
        t0 = clock_now_ns();
        s = device_upload_async(e->device, NULL, device, host, COPY_BYTES);
        if (s == OK)
            s = device_stream_wait(e->device, NULL);
    }
    double seconds = (double)(clock_now_ns() - t0) * 1e-9;
    device_free(e->device, device);
    device_free_pinned(e->device, host);
    return s == OK ? seconds / COPY_BYTES * (double)token_bytes : 0;
}

void engine_load_lengths(struct engine *e)
{
    struct buf why;

    if (!e->config.cost_dir)
        return;
    buf_init(&why, BUF_WHY_MAX);
    enum status s = lengths_load(scheduler_lengths(e->lineup.scheduler), e->config.cost_dir,
                                 e->fingerprint, &why);
    if (s != OK && s != ERR_NOT_FOUND)
        log_event(LOG_WARN, "lengths of answers are learned anew", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
}

/* Write what was learned since the start to files, for the next start. */
void engine_keep_learned(struct engine *e)
{
    const struct lengths *lengths;
    struct buf why;

    if (!e->lineup.scheduler) /* the engine was not created whole */
        return;
    lengths = scheduler_lengths(e->lineup.scheduler);
    buf_init(&why, BUF_WHY_MAX);
    if (e->config.cost_dir && lengths_n_noted(lengths) > 0 &&
        lengths_save(lengths, e->config.cost_dir, e->fingerprint, &why) != OK)
        log_event(LOG_WARN, "the lengths of answers are not saved", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
    if (!e->profile.is_kept)
        return;
    buf_init(&why, BUF_WHY_MAX);
    if (cost_model_save(&e->cost, e->config.cost_dir, &e->cost_subject, &why) != OK)
        log_event(LOG_WARN, "the profile of step times is not saved", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
}
