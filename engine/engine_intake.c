/* Counts of requests of each class inside, and the test whether prefills saturate the engine. */
#include <math.h>

#include "engine/engine_internal.h"

/* Weight of one finished request in the moving mean. */
#define MEAN_RATE 0.02

static uint32_t n_inside_max(const struct engine *e, enum sched_class class)
{
    /* Preempted requests wait too: all requests inside count, not only those that never ran. */
    return class == SCHED_USUAL ? e->config.max_queued + e->config.max_num_seqs
                                : ENGINE_N_OTHERS_MAX;
}

uint32_t engine_n_slots(const struct engine *e)
{
    uint32_t n = 0;

    for (int class = 0; class < SCHED_N_CLASSES; class ++)
        n += n_inside_max(e, (enum sched_class) class);
    return n;
}

enum status engine_enter(struct engine *e, enum sched_class class, struct buf *why)
{
    if (atomic_load(&e->failed))
        return buf_why(why, ERR_UNAVAILABLE, DEVICE_FAILED_WORDS);
    if (atomic_load(&e->draining))
        return buf_why(why, ERR_UNAVAILABLE, "the server is shutting down");
    if (atomic_fetch_add(&e->n_inside[class], 1) >= n_inside_max(e, class)) {
        atomic_fetch_sub(&e->n_inside[class], 1);
        if (class != SCHED_USUAL)
            return buf_why(why, ERR_BUSY, "%u requests of this class are inside already",
                           ENGINE_N_OTHERS_MAX);
        atomic_fetch_add(&e->n_rejected, 1);
        return buf_why(why, ERR_BUSY,
                       "%u requests are waiting already, beside %u that run; try again later",
                       e->config.max_queued, e->config.max_num_seqs);
    }
    if (class != SCHED_BACKGROUND)
        atomic_fetch_add(&e->n_prefilling, 1);
    return OK;
}

void engine_prefilled(struct engine *e, const struct request *r)
{
    if (r->class != SCHED_BACKGROUND)
        atomic_fetch_sub(&e->n_prefilling, 1);
}

void engine_leave(struct engine *e, const struct request *r)
{
    if (atomic_load(&r->t_first_token) == 0)
        engine_prefilled(e, r);
    atomic_fetch_sub(&e->n_inside[r->class], 1);
}

bool engine_drained(const struct engine *e)
{
    bool is_empty = atomic_load(&e->draining);

    for (int class = 0; class < SCHED_N_CLASSES; class ++)
        is_empty = is_empty && atomic_load(&e->n_inside[class]) == 0;
    return is_empty;
}

/* --- room for speculation --- */

void engine_note_computed(struct engine *e, const struct request *r)
{
    double n_new = r->prompt.n_ids - atomic_load(&r->n_cached);

    e->mean_computed_tokens += MEAN_RATE * (n_new - e->mean_computed_tokens);
}

/* The tokens that usual prompts leave to compute fill a step after so many of them. */
void engine_publish_room(struct engine *e)
{
    const struct cache_tier_stats *t = &e->live.cache.tier[CACHE_DEVICE];
    double n_tokens_free = (double)(t->n_free + t->n_cached) * KV_BLOCK_TOKENS;
    const struct cost_step nothing = {0};
    uint32_t n_step = cost_model_fit(&e->cost, &nothing, 0, e->config.max_batched_tokens,
                                     scheduler_step_s_max(e->lineup.scheduler));
    double n = fmax(1, floor(n_step / fmax(1, e->mean_computed_tokens)));

    if (n_tokens_free < e->mean_prompt_tokens || atomic_load(&e->sleep_wanted))
        n = 0;
    atomic_store(&e->n_prefills_max, (uint32_t)fmin(n, e->config.max_num_seqs));
}

bool engine_has_prefill_room(const struct engine *e, uint32_t n_leaving)
{
    return atomic_load(&e->n_prefilling) < atomic_load(&e->n_prefills_max) + n_leaving;
}
