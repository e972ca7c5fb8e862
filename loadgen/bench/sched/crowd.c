#include "loadgen/bench/sched/crowd.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"

#define N_TENANTS 4
#define STEP_TOKENS 512
#define BLOCKS_PER_RUNNING 12 /* the mean sequence holds 7: memory is scarce now and then */
#define BLOCKS_MOST 256       /* of one sequence; the pool holds at least as many */
#define DECODE_NS 10000000u
#define PREFILL_TOKEN_NS 100000u
/* Time between two arrivals of the first crowd: about the time between two ends on a server, so
 * that ages are spread as in a queue whose length is stable. */
#define ARRIVAL_NS 20000000u

static double draw(struct crowd *c)
{
    return ((double)rng_u32(c->seed, c->n_draws++) + 0.5) * 0x1p-32;
}

/* Box and Muller; the logarithm of a heavy-tailed length is normal. */
static uint32_t draw_length(struct crowd *c, double median, double sigma, uint32_t most)
{
    double u = draw(c), v = draw(c);
    double n = median * exp(sigma * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));

    return n < 1 ? 1 : n > most ? most : (uint32_t)n;
}

static uint32_t blocks_of(uint32_t n_tokens)
{
    return (n_tokens + CROWD_BLOCK_TOKENS - 1) / CROWD_BLOCK_TOKENS;
}

/* --- the view --- */

static uint32_t view_match(void *arg, uint32_t slot)
{
    const struct crowd *c = arg;

    return c->seqs[slot].n_cached;
}

static uint32_t view_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    const struct crowd *c = arg;
    const struct crowd_seq *q = &c->seqs[slot];

    if (q->runs)
        return blocks_of(q->n_computed + n_tokens) - blocks_of(q->n_computed);
    return blocks_of(q->n_cached + n_tokens);
}

static uint32_t view_reclaimable(void *arg, uint32_t slot)
{
    const struct crowd *c = arg;

    return blocks_of(c->seqs[slot].n_computed);
}

/* --- what happens to sequences --- */

static void arrive(struct crowd *c, uint32_t slot)
{
    struct crowd_seq *q = &c->seqs[slot];
    uint32_t n_prompt = draw_length(c, 100, 1.0, 4000);
    double kind = draw(c);

    *q = (struct crowd_seq){.n_known = n_prompt, .n_out_left = draw_length(c, 16, 1.7, 4000)};
    scheduler_submit(c->scheduler, slot,
                     &(struct sched_request){
                         .n_known = n_prompt,
                         .n_out_max = q->n_out_left,
                         .priority = kind < 0.05  ? -1
                                     : kind > 0.9 ? 1
                                                  : 0,
                         .tenant = 1 + (uint64_t)(draw(c) * N_TENANTS),
                     },
                     c->now_ns);
}

static void drop(struct crowd *c, uint32_t slot)
{
    struct crowd_seq *q = &c->seqs[slot];

    ASSERT(q->runs);
    c->n_free_blocks += blocks_of(q->n_computed);
    q->n_cached = q->n_computed - q->n_computed % CROWD_BLOCK_TOKENS;
    if (q->n_cached >= q->n_known) /* the last id is always computed */
        q->n_cached = (q->n_known - 1) - (q->n_known - 1) % CROWD_BLOCK_TOKENS;
    q->n_computed = 0;
    q->runs = false;
}

static void grow(struct crowd *c, const struct plan_item *item)
{
    struct crowd_seq *q = &c->seqs[item->slot];
    uint32_t n_before = blocks_of(q->n_computed), n_after;

    ASSERT(item->admit != q->runs);
    if (item->admit) {
        ASSERT(item->n_cached <= q->n_cached);
        q->n_computed = item->n_cached;
        q->runs = true;
        n_before = 0;
        c->n_admitted++;
    }
    q->n_computed += item->n_tokens;
    ASSERT(item->n_tokens >= 1 && q->n_computed <= q->n_known);
    n_after = blocks_of(q->n_computed);
    ASSERT(n_after - n_before <= c->n_free_blocks);
    c->n_free_blocks -= n_after - n_before;
}

static void end(struct crowd *c, uint32_t slot)
{
    c->n_free_blocks += blocks_of(c->seqs[slot].n_computed);
    scheduler_on_finish(c->scheduler, slot, c->now_ns);
    c->n_ended++;
    arrive(c, slot);
}

static void run_item(struct crowd *c, const struct plan_item *item, uint64_t step_ns)
{
    struct crowd_seq *q = &c->seqs[item->slot];
    bool got_token = q->n_computed == q->n_known;

    scheduler_on_tokens(c->scheduler, item->slot, item->n_tokens, got_token, step_ns, c->now_ns);
    if (!got_token)
        return;
    q->n_known++;
    if (--q->n_out_left == 0)
        end(c, item->slot);
}

/* --- */

enum status crowd_init(struct crowd *c, const struct crowd_config *config, struct buf *why)
{
    struct scheduler_config sc = {
        .policy = config->policy,
        .variant = config->variant,
        .n_slots = config->n_queued + config->n_running,
        .n_running_max = config->n_running,
        .n_tokens_max = STEP_TOKENS > config->n_running ? STEP_TOKENS : config->n_running,
        .starvation_s = config->starvation_never ? INFINITY : 0,
    };

    *c = (struct crowd){.seed = config->seed, .n_seqs = sc.n_slots, .now_ns = 1};
    c->n_free_blocks = config->n_running * BLOCKS_PER_RUNNING;
    if (c->n_free_blocks < BLOCKS_MOST)
        c->n_free_blocks = BLOCKS_MOST;
    c->seqs = calloc(c->n_seqs, sizeof *c->seqs);
    if (!c->seqs)
        return buf_why(why, ERR_NOMEM, "out of memory");
    enum status s = scheduler_create(&c->scheduler, &sc, why);
    if (s != OK) {
        crowd_fini(c);
        return s;
    }
    for (uint32_t i = 0; i < c->n_seqs; i++) {
        arrive(c, i);
        c->now_ns += ARRIVAL_NS;
    }
    return OK;
}

void crowd_fini(struct crowd *c)
{
    for (uint32_t i = 0; c->scheduler && i < c->n_seqs; i++)
        scheduler_on_cancel(c->scheduler, i, c->now_ns);
    scheduler_destroy(c->scheduler);
    free(c->seqs);
    *c = (struct crowd){0};
}

void crowd_plan(struct crowd *c, struct plan *out)
{
    const struct sched_view view = {
        .arg = c,
        .n_available = c->n_free_blocks,
        .match = view_match,
        .need = view_need,
        .reclaimable = view_reclaimable,
    };

    scheduler_plan(c->scheduler, c->now_ns, &view, out);
}

void crowd_run(struct crowd *c, const struct plan *plan)
{
    uint64_t step_ns = DECODE_NS;

    ASSERT(plan->n_items > 0);
    for (uint32_t i = 0; i < plan->n_preempt; i++)
        drop(c, plan->preempt[i]);
    for (uint32_t i = 0; i < plan->n_items; i++) {
        grow(c, &plan->items[i]);
        if (plan->items[i].n_tokens > 1)
            step_ns += (uint64_t)plan->items[i].n_tokens * PREFILL_TOKEN_NS;
    }
    scheduler_take(c->scheduler, plan, c->now_ns);
    c->now_ns += step_ns;
    c->n_items += plan->n_items;
    c->n_steps++;
    for (uint32_t i = 0; i < plan->n_items; i++)
        run_item(c, &plan->items[i], step_ns);
}
