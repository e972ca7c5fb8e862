#include "engine/sched/contest_replay.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

#define BLOCK_TOKENS 32 /* KV_BLOCK_TOKENS of cache/cache.h */
#define NS_PER_S 1e9

/* Where the KV of a waiting sequence is. */
enum kept { KEPT_NOWHERE, KEPT_ON_DEVICE, KEPT_ON_HOST };

struct replayed {
    uint32_t n_known, n_computed;
    uint32_t n_held; /* device blocks, of a running sequence or kept ones of a waiting one */
    uint32_t n_kept; /* tokens of a waiting sequence whose KV is cached */
    enum kept kept;
    uint64_t first_ns, end_ns; /* of the first and the last token; 0: not yet */
};

struct contest_replay {
    struct contest_replay_config config;
    struct scheduler *scheduler;
    struct replayed *seqs; /* [n], by request; the index is the slot */
    uint32_t *kept;        /* [n_kept] waiting sequences with blocks on the device */
    uint32_t n_kept;
    uint32_t n_kept_blocks, n_free_blocks, n_free_host_blocks;
    uint64_t now_ns;
    uint32_t n_arrived, n_ended;
    double *scratch; /* [n] */
};

/* --- life --- */

static uint32_t blocks_of(uint32_t n_tokens)
{
    return (n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

bool contest_request_fits(const struct contest_request *r, const struct contest_memory *m)
{
    return blocks_of(r->asked.n_known + r->n_out) <= m->n_device_blocks;
}

enum status contest_replay_create(struct contest_replay **out,
                                  const struct contest_replay_config *config, struct buf *why)
{
    struct contest_replay *r = calloc(1, sizeof *r);

    *out = NULL;
    ASSERT(config->n > config->n_warmup);
    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory");
    r->config = *config;
    r->config.scheduler.n_slots = config->n;
    r->n_free_blocks = config->memory.n_device_blocks;
    r->n_free_host_blocks = config->memory.n_host_blocks;
    r->seqs = calloc(config->n, sizeof *r->seqs);
    r->kept = calloc(config->n, sizeof *r->kept);
    r->scratch = calloc(config->n, sizeof *r->scratch);
    enum status s = r->seqs && r->kept && r->scratch
                        ? scheduler_create(&r->scheduler, &r->config.scheduler, why)
                        : buf_why(why, ERR_NOMEM, "out of memory");
    if (s != OK) {
        contest_replay_destroy(r);
        return s;
    }
    r->now_ns = config->requests[0].arrival_ns;
    *out = r;
    return OK;
}

void contest_replay_destroy(struct contest_replay *r)
{
    if (!r)
        return;
    scheduler_destroy(r->scheduler);
    free(r->seqs);
    free(r->kept);
    free(r->scratch);
    free(r);
}

/* --- memory --- */

static uint32_t view_match(void *arg, uint32_t slot)
{
    const struct replayed *q = &((struct contest_replay *)arg)->seqs[slot];

    return q->n_kept < q->n_known ? q->n_kept : q->n_known - 1;
}

/* The kept blocks of a waiting sequence count as available, so it needs all of its blocks. */
static uint32_t view_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    const struct contest_replay *r = arg;
    const struct replayed *q = &r->seqs[slot];

    if (scheduler_seq(r->scheduler, slot).waits)
        return blocks_of(view_match(arg, slot) + n_tokens);
    return blocks_of(q->n_computed + n_tokens) - q->n_held;
}

static uint32_t view_reclaimable(void *arg, uint32_t slot)
{
    return ((struct contest_replay *)arg)->seqs[slot].n_held;
}

static void keep(struct contest_replay *r, uint32_t slot)
{
    struct replayed *q = &r->seqs[slot];

    q->n_kept = q->n_computed;
    q->n_computed = 0;
    q->kept = KEPT_ON_DEVICE;
    r->kept[r->n_kept++] = slot;
    r->n_kept_blocks += q->n_held;
}

static void forget_kept(struct contest_replay *r, uint32_t i)
{
    r->n_kept_blocks -= r->seqs[r->kept[i]].n_held;
    r->kept[i] = r->kept[--r->n_kept];
}

/* Evict the kept blocks of the sequence that is due last. */
static void evict_one(struct contest_replay *r)
{
    uint32_t victim = 0;
    uint64_t last_ns = 0;

    ASSERT(r->n_kept > 0);
    for (uint32_t i = 0; i < r->n_kept; i++) {
        uint64_t next_ns = scheduler_next_ns(r->scheduler, r->kept[i], r->now_ns);
        if (next_ns > last_ns) {
            last_ns = next_ns;
            victim = i;
        }
    }
    struct replayed *q = &r->seqs[r->kept[victim]];
    forget_kept(r, victim);
    r->n_free_blocks += q->n_held;
    q->n_held = 0;
    if (blocks_of(q->n_kept) <= r->n_free_host_blocks) {
        q->kept = KEPT_ON_HOST;
        r->n_free_host_blocks -= blocks_of(q->n_kept);
    } else {
        q->kept = KEPT_NOWHERE;
        q->n_kept = 0;
    }
}

/* Attach an admitted sequence to its kept KV. Returns the seconds of the copy from the host. */
static double attach(struct contest_replay *r, const struct plan_item *item)
{
    struct replayed *q = &r->seqs[item->slot];
    double copy_s = 0;

    if (q->kept == KEPT_ON_DEVICE) {
        for (uint32_t i = 0; i < r->n_kept; i++)
            if (r->kept[i] == item->slot)
                forget_kept(r, i);
    } else if (q->kept == KEPT_ON_HOST) {
        r->n_free_host_blocks += blocks_of(q->n_kept);
        copy_s = q->n_kept * r->config.memory.copy_s_per_token;
    }
    q->kept = KEPT_NOWHERE;
    q->n_computed = item->n_cached;
    if (!item->is_first)
        scheduler_on_restored(r->scheduler, item->slot, 2 * copy_s); /* out and in */
    return copy_s;
}

static void grow(struct contest_replay *r, const struct plan_item *item)
{
    struct replayed *q = &r->seqs[item->slot];
    uint32_t want = blocks_of(q->n_computed + item->n_tokens);
    uint32_t need = want > q->n_held ? want - q->n_held : 0;

    while (r->n_free_blocks < need)
        evict_one(r);
    r->n_free_blocks -= need;
    q->n_held += need;
}

/* --- steps --- */

static void arrive(struct contest_replay *r)
{
    const struct contest_request *requests = r->config.requests;

    for (; r->n_arrived < r->config.n && requests[r->n_arrived].arrival_ns <= r->now_ns;
         r->n_arrived++) {
        const struct sched_request *asked = &requests[r->n_arrived].asked;
        struct replayed *q = &r->seqs[r->n_arrived];

        ASSERT(contest_request_fits(&requests[r->n_arrived], &r->config.memory));
        q->n_known = asked->n_known;
        q->n_kept = asked->n_cached;
        scheduler_submit(r->scheduler, r->n_arrived, asked, r->now_ns);
    }
}

static void ran(struct contest_replay *r, const struct plan_item *item, uint64_t step_ns)
{
    const struct contest_request *request = &r->config.requests[item->slot];
    struct replayed *q = &r->seqs[item->slot];

    q->n_computed += item->n_tokens;
    bool is_token = q->n_computed == q->n_known;
    q->n_known += is_token;
    scheduler_on_tokens(r->scheduler, item->slot, item->n_tokens, is_token, step_ns, r->now_ns);
    if (is_token && !q->first_ns)
        q->first_ns = r->now_ns;
    if (q->n_known < request->asked.n_known + request->n_out)
        return;
    q->end_ns = r->now_ns;
    scheduler_on_finish(r->scheduler, item->slot, r->now_ns);
    r->n_free_blocks += q->n_held;
    q->n_held = 0;
    r->n_ended++;
}

static void run_step(struct contest_replay *r, const struct plan *plan)
{
    double copy_s = 0;

    for (uint32_t i = 0; i < plan->n_preempt; i++)
        keep(r, plan->preempt[i]);
    for (uint32_t i = 0; i < plan->n_items; i++)
        if (plan->items[i].admit)
            copy_s += attach(r, &plan->items[i]);
    for (uint32_t i = 0; i < plan->n_items; i++)
        grow(r, &plan->items[i]);
    if (plan->n_items == 0)
        return;
    uint64_t step_ns = 1 + (uint64_t)(fmax(plan->step_s, copy_s) * NS_PER_S);
    r->now_ns += step_ns;
    for (uint32_t i = 0; i < plan->n_items; i++)
        ran(r, &plan->items[i], step_ns);
}

static void plan_once(struct contest_replay *r)
{
    struct sched_view view = {.arg = r,
                              .n_available = r->n_free_blocks + r->n_kept_blocks,
                              .match = view_match,
                              .need = view_need,
                              .reclaimable = view_reclaimable};
    struct plan plan;

    if (r->n_arrived == r->n_ended && r->config.requests[r->n_arrived].arrival_ns > r->now_ns)
        r->now_ns = r->config.requests[r->n_arrived].arrival_ns;
    arrive(r);
    scheduler_plan(r->scheduler, r->now_ns, &view, &plan);
    /* Every request fits into memory alone, so the first of the order can always run. */
    ASSERT(plan.n_items > 0 || plan.n_preempt > 0);
    scheduler_take(r->scheduler, &plan, r->now_ns);
    run_step(r, &plan);
}

bool contest_replay_run(struct contest_replay *r, uint32_t n_plans)
{
    while (r->n_ended < r->config.n && n_plans-- > 0)
        plan_once(r);
    return r->n_ended == r->config.n;
}

/* --- the result --- */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const double *ascending, uint32_t n, double p)
{
    uint32_t rank = (uint32_t)ceil(p * n);

    return ascending[rank > 0 ? rank - 1 : 0];
}

static struct contest_figures figures_of(double *v, uint32_t n)
{
    double sum = 0;

    qsort(v, n, sizeof *v, compare_numbers);
    for (uint32_t i = 0; i < n; i++)
        sum += v[i];
    return (struct contest_figures){sum / n, percentile(v, n, 0.95), percentile(v, n, 0.99)};
}

static double seconds_since(const struct contest_replay *r, uint32_t i, uint64_t ns)
{
    return (double)(ns - r->config.requests[i].arrival_ns) / NS_PER_S;
}

void contest_replay_result(const struct contest_replay *r, struct contest_result *out)
{
    uint32_t first = r->config.n_warmup, n = r->config.n - first;

    ASSERT(r->n_ended == r->config.n);
    out->n = n;
    for (uint32_t i = 0; i < n; i++)
        r->scratch[i] = seconds_since(r, first + i, r->seqs[first + i].end_ns);
    out->e2e_s = figures_of(r->scratch, n);
    for (uint32_t i = 0; i < n; i++)
        r->scratch[i] = seconds_since(r, first + i, r->seqs[first + i].end_ns) /
                        r->config.requests[first + i].n_out;
    out->normalized_s = figures_of(r->scratch, n);
    for (uint32_t i = 0; i < n; i++)
        r->scratch[i] = seconds_since(r, first + i, r->seqs[first + i].first_ns);
    out->ttft_s = figures_of(r->scratch, n);
}
