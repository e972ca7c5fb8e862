#include "tests/unit/engine/sched/sched_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/unit/engine/sched/costs.h"
#include "tests/unit/test.h"

void world_init(struct world *w, const char *policy, uint32_t n_slots)
{
    *w = (struct world){.config = {.policy = policy,
                                   .n_slots = n_slots,
                                   .n_running_max = 4,
                                   .n_tokens_max = 1000,
                                   .starvation_s = INFINITY},
                        .decode_s = 0.010,
                        .token_s = 0.001,
                        .decode_growth = 1,
                        .n_blocks = 1u << 20,
                        .keep_percent = 100,
                        .is_checked = true,
                        .seed = 1};
}

void world_open(struct world *w)
{
    uint32_t n = w->config.n_slots;

    w->cost = cost_of_lines(0, w->token_s, w->decode_s, w->decode_s * w->decode_growth);
    w->config.cost = &w->cost;
    w->n_free = w->n_blocks;
    w->jobs = calloc(n, sizeof *w->jobs);
    w->items = calloc(n, sizeof *w->items);
    w->preempt = calloc(n, sizeof *w->preempt);
    assert_true(w->jobs && w->items && w->preempt);
    assert_ok(scheduler_create(&w->s, &w->config, NULL));
}

void world_close(struct world *w)
{
    scheduler_destroy(w->s);
    free(w->jobs);
    free(w->items);
    free(w->preempt);
}

uint32_t world_draw(struct world *w, uint32_t n)
{
    return rng_u32(w->seed, w->n_drawn++) % n;
}

double world_seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.9f is not %.9f", value, expected);
}

static void check(const struct world *w)
{
    if (w->is_checked)
        scheduler_check(w->s);
}

/* --- the toy memory --- */

static uint32_t n_found(const struct world_job *j)
{
    return j->n_kept < j->n_known ? j->n_kept : j->n_known - 1;
}

static uint32_t match(void *arg, uint32_t slot)
{
    struct world *w = arg;

    w->n_view_calls++;
    return n_found(&w->jobs[slot]);
}

static uint32_t blocks_for(const struct world_job *j, uint32_t n_tokens)
{
    uint32_t have = j->is_running ? j->n_slots : n_found(j);

    return (have + n_tokens + WORLD_BLOCK - 1) / WORLD_BLOCK - j->n_held;
}

static uint32_t need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    struct world *w = arg;

    w->n_view_calls++;
    return blocks_for(&w->jobs[slot], n_tokens);
}

static uint32_t reclaimable(void *arg, uint32_t slot)
{
    struct world *w = arg;

    w->n_view_calls++;
    return w->jobs[slot].n_held;
}

struct sched_view world_view(struct world *w)
{
    return (struct sched_view){.arg = w,
                               .n_available = w->n_free,
                               .match = match,
                               .need = need,
                               .reclaimable = reclaimable};
}

static void let_go(struct world *w, struct world_job *j)
{
    w->n_free += j->n_held;
    j->n_held = j->n_slots = 0;
    j->is_running = false;
}

/* --- jobs that arrive and jobs that end --- */

void world_submit_as(struct world *w, uint32_t slot, uint32_t n_prompt, uint32_t n_out,
                     const struct sched_request *r)
{
    struct world_job *j = &w->jobs[slot];

    assert_false(j->is_live);
    *j = (struct world_job){.r = *r,
                            .n_out = n_out,
                            .is_live = true,
                            .n_known = n_prompt,
                            .n_kept = r->n_cached,
                            .came_ns = w->now_ns,
                            .ran_ns = w->now_ns,
                            .token_ns = w->now_ns};
    j->r.n_known = n_prompt;
    if (!r->n_out_max)
        j->r.n_out_max = n_out;
    w->n_live++;
    w->has_others |= j->r.class != SCHED_USUAL;
    scheduler_submit(w->s, slot, &j->r, w->now_ns);
    check(w);
}

void world_submit(struct world *w, uint32_t slot, uint32_t n_prompt, uint32_t n_out)
{
    world_submit_as(w, slot, n_prompt, n_out, &(struct sched_request){0});
}

static void leave(struct world *w, struct world_job *j)
{
    let_go(w, j);
    j->is_live = false;
    j->n_run = 0;
    j->left_ns = w->now_ns;
    w->n_live--;
}

void world_cancel(struct world *w, uint32_t slot)
{
    assert_true(w->jobs[slot].is_live);
    leave(w, &w->jobs[slot]);
    scheduler_on_cancel(w->s, slot, w->now_ns);
    check(w);
}

/* --- a step --- */

static void copy_plan(struct world *w, const struct plan *p)
{
    assert_true(p->n_items <= w->config.n_slots && p->n_preempt <= w->config.n_slots);
    if (p->n_items)
        memcpy(w->items, p->items, p->n_items * sizeof *p->items);
    if (p->n_preempt)
        memcpy(w->preempt, p->preempt, p->n_preempt * sizeof *p->preempt);
    w->plan = *p;
    w->plan.items = w->items;
    w->plan.preempt = w->preempt;
}

static void preempt_planned(struct world *w)
{
    for (uint32_t i = 0; i < w->plan.n_preempt; i++) {
        struct world_job *j = &w->jobs[w->preempt[i]];

        assert_true(j->is_live && j->is_running);
        let_go(w, j);
        j->n_kept = world_draw(w, 100) < w->keep_percent ? j->n_computed : 0;
        j->n_computed = 0;
        j->n_preempted++;
        w->n_preempted++;
    }
}

/* All attach before any grows, as the engine does it. */
static void admit_planned(struct world *w)
{
    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        const struct plan_item *item = &w->items[i];
        struct world_job *j = &w->jobs[item->slot];

        assert_true(j->is_live && item->admit == !j->is_running);
        assert_int_equal(item->n_cached, item->admit ? n_found(j) : 0);
        assert_int_equal(j->n_run, 0); /* once in a plan, and not preempted by it */
        j->n_run = item->n_tokens;
        assert_true(item->n_tokens >= 1);
        if (!item->admit)
            continue;
        j->n_computed = j->n_slots = item->n_cached;
        j->n_admitted++;
    }
    for (uint32_t i = 0; i < w->plan.n_preempt; i++)
        assert_int_equal(w->jobs[w->preempt[i]].n_run, 0);
}

/* Let an admission find less than planned (as after a failed copy) or more (as when another
 * sequence committed the same prefix). */
static void surprise(struct world *w, uint32_t slot)
{
    struct world_job *j = &w->jobs[slot];
    uint32_t n_computed = world_draw(w, j->n_known), left = j->n_known - n_computed;
    uint32_t n_run = j->n_run < left ? j->n_run : left;
    uint32_t n_blocks = (n_computed + n_run + WORLD_BLOCK - 1) / WORLD_BLOCK;

    if (world_draw(w, 100) >= w->surprise_percent || n_blocks > w->n_free + j->n_held)
        return;
    w->n_free = w->n_free + j->n_held - n_blocks;
    j->n_held = n_blocks;
    j->n_computed = n_computed;
    j->n_run = n_run;
    j->n_slots = n_computed + n_run;
    scheduler_on_attach(w->s, slot, n_computed, n_run);
    check(w);
}

static void grow_planned(struct world *w)
{
    bool was_chunk = false;
    uint32_t sum = 0, n_running = 0;

    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        struct world_job *j = &w->jobs[w->items[i].slot];
        uint32_t n_blocks = blocks_for(j, w->items[i].n_tokens);
        bool is_decode = !w->items[i].admit && j->n_known - j->n_computed == 1;

        assert_true(j->n_computed + j->n_run <= j->n_known);
        assert_true(n_blocks <= w->n_free);   /* the plan fits into memory */
        assert_false(is_decode && was_chunk); /* decodes first */
        was_chunk |= w->items[i].n_tokens > 1;
        w->n_free -= n_blocks;
        j->n_held += n_blocks;
        j->n_slots += w->items[i].n_tokens;
        j->is_running = true;
        sum += w->items[i].n_tokens;
    }
    assert_int_equal(sum, w->plan.n_tokens);
    assert_true(sum <= w->config.n_tokens_max);
    for (uint32_t i = 0; i < w->config.n_slots; i++) {
        const struct world_job *j = &w->jobs[i];

        n_running += j->is_running;
        if (w->plan.n_items > 0 && j->is_running && j->r.class == SCHED_USUAL &&
            j->n_known - j->n_computed == 1 && w->config.n_tokens_max >= w->config.n_running_max)
            assert_true(j->n_run == 1); /* no decode is left out */
    }
    assert_true(n_running <= w->config.n_running_max);
    assert_int_equal(scheduler_n_running(w->s), n_running);
    assert_int_equal(scheduler_n_waiting(w->s), w->n_live - n_running);
}

static double duration(const struct world *w)
{
    bool decodes = false;
    double chunks_s = 0;

    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        const struct world_job *j = &w->jobs[w->items[i].slot];
        uint32_t n = j->n_run;

        if (w->others_are_free && j->r.class != SCHED_USUAL)
            continue;
        if (n > 1)
            chunks_s += n * w->token_s;
        else
            decodes = true;
    }
    return chunks_s + (decodes ? w->decode_s : 0);
}

void world_begin(struct world *w, const struct plan *plan)
{
    assert_false(w->is_stepping);
    assert_true(scheduler_is_current(w->s, plan));
    copy_plan(w, plan);
    /* Each job alone fits into the memory. So some job can always run, at the latest after one plan
     * that only preempts; or after two, where the first one preempts all that is not usual. */
    if (w->n_live > 0 && plan->n_items == 0)
        assert_true(plan->n_preempt > 0 && w->n_without_items++ < (w->has_others ? 2u : 1u));
    if (plan->n_items > 0)
        w->n_without_items = 0;
    scheduler_take(w->s, plan, w->now_ns);
    check(w);
    preempt_planned(w);
    admit_planned(w);
    grow_planned(w);
    w->step_s = duration(w);
    for (uint32_t i = 0; i < w->plan.n_items; i++)
        if (w->items[i].admit && w->surprise_percent)
            surprise(w, w->items[i].slot);
    w->longest_step_s = fmax(w->longest_step_s, w->step_s);
    w->n_steps++;
    w->is_stepping = true;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void ran(struct world *w, uint32_t slot, uint64_t step_ns)
{
    struct world_job *j = &w->jobs[slot];
    uint32_t n_run = j->n_run;
    bool got;

    j->n_computed += n_run;
    j->n_run = 0;
    got = j->n_computed == j->n_known;
    j->n_known += got;
    if (j->r.class == SCHED_USUAL)
        w->wait_ns = max_u64(w->wait_ns, w->now_ns - j->ran_ns);
    j->ran_ns = w->now_ns;
    j->ran_s += world_seconds(step_ns);
    scheduler_on_tokens(w->s, slot, n_run, got ? 1 : 0, step_ns, w->now_ns);
    check(w);
    if (!got)
        return;
    for (uint32_t i = 0;
         i < j->n_right && j->n_known > j->r.n_known + 1 && j->n_known < j->r.n_known + j->n_out;
         i++) {
        j->n_computed++;
        j->n_known++;
        scheduler_on_accepted(w->s, slot, w->now_ns);
    }
    w->n_tokens_out++;
    if (j->r.class == SCHED_USUAL)
        w->gap_ns = max_u64(w->gap_ns, w->now_ns - j->token_ns);
    j->token_ns = w->now_ns;
    assert_true(j->n_known <= j->r.n_known + j->n_out);
    if (j->n_known < j->r.n_known + j->n_out)
        return;
    leave(w, j);
    scheduler_on_finish(w->s, slot, w->now_ns);
    check(w);
}

void world_end(struct world *w)
{
    uint64_t step_ns = (uint64_t)llround(w->step_s * 1e9);

    assert_true(w->is_stepping);
    w->is_stepping = false;
    w->now_ns += step_ns;
    for (uint32_t i = 0; i < w->plan.n_items; i++)
        if (w->jobs[w->items[i].slot].n_run) /* else cancelled meanwhile */
            ran(w, w->items[i].slot, step_ns);
}

bool world_step(struct world *w)
{
    struct sched_view view = world_view(w);
    struct plan plan;

    scheduler_plan(w->s, w->now_ns, &view, &plan);
    world_begin(w, &plan);
    world_end(w);
    return w->plan.n_items > 0;
}

void world_run_until_empty(struct world *w, uint64_t n_steps_max)
{
    for (uint64_t i = 0; w->n_live > 0; i++) {
        assert_true(i < n_steps_max);
        world_step(w);
    }
    assert_int_equal(w->n_free, w->n_blocks);
    assert_int_equal(scheduler_n_running(w->s) + scheduler_n_waiting(w->s), 0);
}

void world_sleep(struct world *w, double seconds)
{
    w->now_ns += (uint64_t)llround(seconds * 1e9);
}

/* --- looking --- */

bool world_is_planned(const struct world *w, uint32_t slot)
{
    for (uint32_t i = 0; i < w->plan.n_items; i++)
        if (w->items[i].slot == slot)
            return true;
    return false;
}

uint32_t world_level(const struct world *w)
{
    struct scheduler_stats stats;
    uint32_t level = UINT32_MAX, n = 0;

    scheduler_stats(w->s, &stats);
    for (uint32_t i = 0; i < stats.n_levels; i++) {
        n += stats.n_in_level[i];
        if (stats.n_in_level[i])
            level = i;
    }
    assert_int_equal(n, 1);
    return level;
}

double world_longest_wait_s(const struct world *w)
{
    uint64_t longest = w->wait_ns;

    for (uint32_t i = 0; i < w->config.n_slots; i++)
        if (w->jobs[i].is_live && w->jobs[i].r.class == SCHED_USUAL)
            longest = max_u64(longest, w->now_ns - w->jobs[i].ran_ns);
    return world_seconds(longest);
}

double world_longest_gap_s(const struct world *w)
{
    uint64_t longest = w->gap_ns;

    for (uint32_t i = 0; i < w->config.n_slots; i++)
        if (w->jobs[i].is_live && w->jobs[i].r.class == SCHED_USUAL)
            longest = max_u64(longest, w->now_ns - w->jobs[i].token_ns);
    return world_seconds(longest);
}
