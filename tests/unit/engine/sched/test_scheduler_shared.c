/* One computation (scheduler.h): blocks that several prompts share are computed once, and the wait
 * for them ends. The cache of this world keeps the longest part of each group's common beginning
 * that anybody has computed, until a test makes it forget. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/sched/scheduler.h"
#include "tests/unit/engine/sched/costs.h"

#define B 32u
#define N_JOBS 12
#define N_GROUPS 3
#define N_COMMON (125 * B) /* tokens that the prompts of a group begin with */
#define TOKEN_S 0.001
#define DECODE_S 0.01

static const char *const policies[] = {"skip-join-mlfq", "mlfq", "fcfs", "sjf-prompt", "srpt"};

struct job {
    bool is_live, is_running;
    uint32_t group, n_prompt, n_known, n_computed, n_kept, n_out;
};

struct lot {
    struct scheduler *s;
    struct cost_model cost;
    struct job jobs[N_JOBS];
    uint32_t cached[N_GROUPS];
    bool knows_shared; /* the view says what prompts share */
    uint64_t now_ns, n_computed, n_preempted;
    uint32_t n_live;
};

static uint32_t whole(uint32_t n)
{
    return n / B * B;
}

static uint32_t match(void *arg, uint32_t slot)
{
    const struct lot *w = arg;
    const struct job *j = &w->jobs[slot];
    uint32_t own = whole(j->is_running ? j->n_computed : j->n_kept), n = w->cached[j->group];

    n = n > own ? n : own;
    return n < j->n_known ? n : j->n_known - 1;
}

static uint32_t shared(void *arg, uint32_t slot, uint32_t other)
{
    const struct lot *w = arg;

    return w->jobs[slot].group == w->jobs[other].group ? N_COMMON : 0;
}

static void open_lot(struct lot *w, const char *policy, uint32_t n_tokens_max, double starvation_s)
{
    struct scheduler_config config = {.policy = policy,
                                      .n_slots = N_JOBS,
                                      .n_running_max = 4,
                                      .n_tokens_max = n_tokens_max,
                                      .starvation_s = starvation_s,
                                      .cost = &w->cost};

    *w = (struct lot){
        .cost = cost_of_lines(0, TOKEN_S, DECODE_S, DECODE_S), .knows_shared = true, .now_ns = 1};
    assert_ok(scheduler_create(&w->s, &config, NULL));
}

static void submit(struct lot *w, uint32_t slot, uint32_t group, uint32_t n_own, uint32_t n_out,
                   int32_t priority)
{
    struct job *j = &w->jobs[slot];
    uint32_t n = N_COMMON + n_own;

    *j = (struct job){.is_live = true, .group = group, .n_prompt = n, .n_known = n, .n_out = n_out};
    w->n_live++;
    scheduler_submit(
        w->s, slot, &(struct sched_request){.n_known = n, .n_out_max = n_out, .priority = priority},
        w->now_ns);
}

static void leave(struct lot *w, struct job *j)
{
    j->is_live = j->is_running = false;
    w->n_live--;
}

static void cancel(struct lot *w, uint32_t slot)
{
    scheduler_on_cancel(w->s, slot, w->now_ns);
    leave(w, &w->jobs[slot]);
}

/* Evict all cached blocks but those that running sequences hold. */
static void forget(struct lot *w)
{
    memset(w->cached, 0, sizeof w->cached);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        struct job *j = &w->jobs[i];
        uint32_t n = whole(j->n_computed < N_COMMON ? j->n_computed : N_COMMON);

        j->n_kept = 0;
        if (j->is_live && j->is_running && n > w->cached[j->group])
            w->cached[j->group] = n;
    }
}

static void run_item(struct lot *w, const struct plan_item *item, uint64_t step_ns)
{
    struct job *j = &w->jobs[item->slot];

    if (item->admit)
        j->n_computed = item->n_cached;
    j->is_running = true;
    j->n_computed += item->n_tokens;
    w->n_computed += item->n_tokens;
    uint32_t n = whole(j->n_computed < N_COMMON ? j->n_computed : N_COMMON);
    if (n > w->cached[j->group])
        w->cached[j->group] = n;
    bool is_token = j->n_computed == j->n_known;
    j->n_known += is_token;
    scheduler_on_tokens(w->s, item->slot, item->n_tokens, is_token, step_ns, w->now_ns);
    if (j->n_known < j->n_prompt + j->n_out)
        return;
    scheduler_on_finish(w->s, item->slot, w->now_ns);
    leave(w, j);
}

static void step(struct lot *w)
{
    struct sched_view view = {.arg = w,
                              .n_available = AMPLE_BLOCKS,
                              .match = match,
                              .shared = w->knows_shared ? shared : NULL,
                              .need = one_block_needed,
                              .reclaimable = one_block_reclaimable};
    struct plan plan;

    scheduler_plan(w->s, w->now_ns, &view, &plan);
    assert_true(plan.n_items + plan.n_preempt > 0);
    scheduler_take(w->s, &plan, w->now_ns);
    for (uint32_t i = 0; i < plan.n_preempt; i++) {
        struct job *j = &w->jobs[plan.preempt[i]];

        assert_true(j->is_running);
        j->is_running = false;
        j->n_kept = j->n_computed;
        j->n_computed = 0;
        w->n_preempted++;
    }
    uint64_t step_ns = (uint64_t)(plan.step_s * 1e9);
    w->now_ns += step_ns;
    for (uint32_t i = 0; i < plan.n_items; i++)
        run_item(w, &plan.items[i], step_ns);
    scheduler_check(w->s);
}

static uint64_t run_all(struct lot *w)
{
    for (uint32_t i = 0; w->n_live > 0; i++) {
        assert_true(i < 2000);
        step(w);
    }
    scheduler_destroy(w->s);
    return w->n_computed;
}

/* Tokens that one job computes behind the common part, at most: blocks that are not worth a wait,
 * the own part, the answer. */
#define N_REST (uint64_t)(2 * DECODE_S / TOKEN_S + B + 40 + 3)

/* Four prompts of a group come together, and fit into one step. Returns the computed tokens. */
static uint64_t serve_together(const char *policy, bool knows_shared)
{
    struct lot w;

    open_lot(&w, policy, 4 * (N_COMMON + 40), INFINITY);
    w.knows_shared = knows_shared;
    for (uint32_t i = 0; i < 4; i++)
        submit(&w, i, 0, 40, 3, 0);
    return run_all(&w);
}

static void what_prompts_share_is_computed_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        assert_true(serve_together(policies[i], true) <= N_COMMON + 4 * N_REST);
        assert_true(serve_together(policies[i], false) >= 4 * N_COMMON);
    }
}

/* A job begins, and another one of the group goes before it. Returns the computed tokens. */
static uint64_t serve_overtaken(const char *policy, bool knows_shared)
{
    struct lot w;

    open_lot(&w, policy, 300, INFINITY);
    w.knows_shared = knows_shared;
    submit(&w, 0, 0, 40, 3, 0);
    step(&w);
    submit(&w, 1, 0, 40, 3, -1);
    return run_all(&w);
}

static void a_job_that_was_overtaken_does_not_compute_the_same_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        assert_true(serve_overtaken(policies[i], true) <= N_COMMON + 2 * N_REST);
        assert_true(serve_overtaken(policies[i], false) >= 2 * N_COMMON - 300);
    }
}

/* The cache forgets at any time, and jobs are cancelled, also those that others wait for. */
static void all_jobs_end_whatever_the_cache_forgets(void **state)
{
    (void)state;
    for (uint64_t run = 0; run < 4 * ARRAY_SIZE(policies); run++) {
        uint64_t n_came = 0;
        struct lot w;

        open_lot(&w, policies[run % ARRAY_SIZE(policies)], run % 3 ? 300 : 9000,
                 run % 2 ? INFINITY : 1);
        for (uint64_t i = 0; n_came < 100 || w.n_live > 0; i++) {
            uint32_t r[6], slot;

            assert_true(i < 20000);
            for (uint32_t k = 0; k < ARRAY_SIZE(r); k++)
                r[k] = rng_u32(run, ARRAY_SIZE(r) * i + k);
            slot = r[0] % N_JOBS;
            if (!w.jobs[slot].is_live && n_came < 100 && r[1] % 3 == 0) {
                n_came++;
                submit(&w, slot, r[2] % N_GROUPS, r[3] % 200 + 1, r[4] % 20 + 1, 0);
            } else if (w.jobs[slot].is_live && r[1] % 40 == 0) {
                cancel(&w, slot);
            }
            if (r[5] % 8 == 0)
                forget(&w);
            if (w.n_live > 0)
                step(&w);
        }
        /* A preemption costs no more than the others computed. */
        assert_true(w.n_preempted < 1000);
        scheduler_destroy(w.s);
    }
}

/* A client sends a prompt again and again, and cancels it after n_steps steps; nothing of it stays
 * in the cache. Another job has the same beginning. Returns the plans before its first step. */
static uint32_t plans_until_it_runs(struct lot *w, uint32_t n_steps)
{
    uint32_t n = 0;

    submit(w, 1, 0, 10, 30, -1);
    submit(w, 0, 0, 20, 3, 0);
    for (step(w); w->jobs[0].n_computed == 0; step(w)) {
        assert_true(n < 1000);
        if (++n % n_steps)
            continue;
        cancel(w, 1);
        forget(w);
        submit(w, 1, 0, 10, 30, -1);
    }
    scheduler_destroy(w->s);
    return n;
}

static void a_wait_for_others_ends_at_the_starvation_threshold(void **state)
{
    const double starvation_s = 2;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        struct lot w;

        open_lot(&w, policies[i], 300, starvation_s);
        (void)plans_until_it_runs(&w, 3);
        assert_true((double)w.now_ns < (starvation_s + 1) * 1e9);
    }
}

static void without_a_threshold_a_wait_for_others_ends_after_so_many_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        struct lot w;

        open_lot(&w, policies[i], 4 * N_COMMON, INFINITY);
        assert_int_equal(plans_until_it_runs(&w, 1), 256);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_prompts_share_is_computed_once),
        cmocka_unit_test(a_job_that_was_overtaken_does_not_compute_the_same_again),
        cmocka_unit_test(all_jobs_end_whatever_the_cache_forgets),
        cmocka_unit_test(a_wait_for_others_ends_at_the_starvation_threshold),
        cmocka_unit_test(without_a_threshold_a_wait_for_others_ends_after_so_many_plans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
