/* Properties of all policies, in deterministic cases in virtual time (sched_world.h): no
 * starvation, priorities, the length of a step, memory, plans made ahead. A decode takes 10 ms and
 * a token of a prefill 1 ms, unless a case sets other times. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "tests/unit/engine/sched/sched_world.h"

static const char *const policies[] = {"skip-join-mlfq", "mlfq", "fcfs", "sjf-prompt", "srpt"};
#define N_POLICIES ARRAY_SIZE(policies)

/* --- starvation --- */

/* Slot 0 has a long job, and there is always another job before it in the order. Return the step
 * of its second run; *again: the step of its third run. */
static uint64_t steps_until_it_runs(struct world *w, int32_t priority_of_others, uint64_t *again)
{
    uint64_t at[2] = {0, 0};

    for (uint64_t i = 0, n = 0; n < 2 && i < 5000; i++) {
        if (!w->jobs[1].is_live)
            world_submit_as(w, 1, 9, 1, &(struct sched_request){.priority = priority_of_others});
        world_step(w);
        if (world_is_planned(w, 0))
            at[n++] = i;
    }
    *again = at[1];
    return at[0];
}

/* Each other job runs for 9 ms. After the threshold of 300 ms, which are 34 of these jobs, slot 0
 * runs before all others until its next token. */
static void a_starving_job_runs_for_one_token_in_every_policy(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        struct scheduler_stats stats;
        uint64_t at, again;
        struct world w;

        (void)state;
        world_init(&w, policies[i], 2);
        w.config.n_running_max = 1;
        w.config.starvation_s = 0.3;
        world_open(&w);
        world_submit_as(&w, 0, 100, 50, &(struct sched_request){.priority = 100});
        world_step(&w);
        assert_true(world_is_planned(&w, 0));
        at = steps_until_it_runs(&w, -100, &again);
        assert_int_equal(at, 34);
        assert_int_equal(again - at, 35);
        scheduler_stats(w.s, &stats);
        assert_int_equal(stats.n_starving, 2);
        world_close(&w);
    }
}

static void a_job_starving_in_its_prefill_runs_until_it_has_a_token(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint32_t n = 0;
        struct world w;

        (void)state;
        world_init(&w, policies[i], 2);
        w.config.n_running_max = 1;
        w.config.n_tokens_max = 20;
        w.config.starvation_s = 0.3;
        world_open(&w);
        world_submit_as(&w, 0, 100, 50, &(struct sched_request){.priority = 1});
        while (w.jobs[0].n_known == 100 && n < 100) {
            if (!w.jobs[1].is_live)
                world_submit(&w, 1, 9, 1);
            world_step(&w);
            n++;
            if (w.jobs[0].n_admitted)
                assert_true(world_is_planned(&w, 0));
        }
        assert_int_equal(n, 34 + 5);
        world_close(&w);
    }
}

/* Slot 0 computes two of its five chunks before another job preempts it, and then begins again. If
 * it were not promoted, it would never have a token, although it runs most of the time. */
static void a_job_that_loses_its_kv_still_gets_its_token(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint64_t next_ns = 40 * 1000000;
        struct world w;

        (void)state;
        world_init(&w, policies[i], 2);
        w.config.n_running_max = 1;
        w.config.n_tokens_max = 20;
        w.config.starvation_s = 0.3;
        w.keep_percent = 0;
        world_open(&w);
        world_submit_as(&w, 0, 100, 2, &(struct sched_request){.priority = 1});
        while (w.jobs[0].n_known == 100) {
            if (w.now_ns >= next_ns && !w.jobs[1].is_live) {
                world_submit(&w, 1, 9, 1);
                next_ns += 50 * 1000000;
            }
            world_step(&w);
            assert_true(world_seconds(w.now_ns) < 0.3 + 0.3);
        }
        world_close(&w);
    }
}

/* A job is promoted while 0 is the most important priority. Then more important jobs arrive without
 * end. */
static void a_promoted_job_stays_before_new_jobs(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint32_t n = 0;
        struct world w;

        (void)state;
        world_init(&w, policies[i], 3);
        w.config.n_running_max = 1;
        w.config.starvation_s = 0.3;
        world_open(&w);
        world_submit(&w, 1, 400, 1); /* one step of 400 ms */
        world_submit_as(&w, 0, 9, 1, &(struct sched_request){.priority = 5});
        world_step(&w);
        world_submit(&w, 1, 400, 1);
        world_step(&w);
        for (; w.jobs[0].is_live; n++) {
            if (!w.jobs[2].is_live)
                world_submit_as(&w, 2, 9, 1, &(struct sched_request){.priority = -5});
            world_step(&w);
            assert_true(n < 40); /* 300 ms */
        }
        world_close(&w);
    }
}

static void without_a_threshold_no_job_is_promoted(void **state)
{
    uint64_t again;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.n_running_max = 1;
    world_open(&w);
    world_submit(&w, 0, 100, 50);
    world_step(&w);
    assert_int_equal(steps_until_it_runs(&w, 0, &again), 0);
    world_close(&w);
}

/* The released code looks for starving jobs in every 1000th plan. A promoted job then stays in the
 * top level, before new jobs, until its charged time makes it sink. */
static void as_released_the_starving_are_looked_for_every_1000th_plan(void **state)
{
    struct scheduler_stats stats;
    uint64_t at, again;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.n_running_max = 1;
    w.config.starvation_s = 0.3;
    w.config.variant = "released";
    world_open(&w);
    world_submit(&w, 0, 100, 50);
    world_step(&w);
    at = steps_until_it_runs(&w, 0, &again);
    assert_true(at >= 997 && at <= 999);
    scheduler_stats(w.s, &stats);
    assert_int_equal(stats.n_in_level[4], 0); /* where it came from */
    assert_int_equal(stats.n_starving, 4);    /* slot 0, and who never ran, in two scans */
    assert_true(again > at + 900); /* with the time that it was charged: one token took it down */
    world_close(&w);
}

static void a_job_that_ran_lately_is_not_promoted(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.starvation_s = 0.3;
    w.config.variant = "released";
    world_open(&w);
    world_submit(&w, 0, 9, 2000);
    for (int i = 0; i < 1100; i++)
        world_step(&w);
    assert_true(world_level(&w) >= 9); /* 10 + 20 + ... + 2560 ms, and more */
    world_close(&w);
}

/* --- priorities and ping-pong --- */

static void a_priority_acts_across_levels(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        struct world w;

        (void)state;
        world_init(&w, policies[i], 3);
        w.config.n_running_max = 1;
        w.config.n_tokens_max = 50;
        world_open(&w);
        world_submit(&w, 0, 9, 30);
        world_step(&w);
        world_submit_as(&w, 1, 400, 5, &(struct sched_request){.priority = -1});
        world_step(&w);
        assert_true(world_is_planned(&w, 1));
        assert_int_equal(w.jobs[0].n_preempted, 1);
        assert_int_equal(w.plan.n_tokens, 50); /* nothing is kept for who lost its place */
        world_submit_as(&w, 2, 2, 1, &(struct sched_request){.priority = 1});
        while (w.jobs[0].is_live) { /* and the less important never displace */
            assert_int_equal(w.jobs[2].n_admitted, 0);
            assert_false(world_is_planned(&w, 0) && w.jobs[1].is_live);
            world_step(&w);
        }
        assert_int_equal(w.jobs[0].n_preempted, 1);
        world_run_until_empty(&w, 10);
        world_close(&w);
    }
}

/* Count preemptions. Each one has a cause that occurs once: an arrival, a change of level, or the
 * end of a starvation. */
static uint64_t preemptions_in_a_crowd(const char *policy, uint32_t n_blocks, uint64_t *n_reasons)
{
    struct scheduler_stats stats;
    uint64_t n_came = 0;
    struct world w;

    world_init(&w, policy, 24);
    w.n_blocks = n_blocks;
    w.config.n_tokens_max = 64;
    w.config.starvation_s = 5;
    world_open(&w);
    for (uint32_t i = 0; i < 1000; i++) {
        for (uint32_t slot = 0; slot < 24; slot++)
            if (!w.jobs[slot].is_live) {
                world_submit(&w, slot, 1 + world_draw(&w, 200), 1 + world_draw(&w, 100));
                n_came++;
            }
        world_step(&w);
    }
    scheduler_stats(w.s, &stats);
    *n_reasons = n_came + stats.n_demoted + 2 * stats.n_starving;
    assert_int_equal(stats.n_preempted_for_place + stats.n_preempted_for_memory, w.n_preempted);
    world_close(&w);
    return w.n_preempted;
}

static void equals_never_take_places_from_each_other_in_turn(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint64_t n_reasons, n = preemptions_in_a_crowd(policies[i], 1u << 20, &n_reasons);

        assert_true(n <= n_reasons);
        if (!strcmp(policies[i], "fcfs") || !strcmp(policies[i], "sjf-prompt"))
            assert_true(n <= 1000 / 5); /* only the starving take places */
        else
            assert_true(n > 0);
        n = preemptions_in_a_crowd(policies[i], 40, &n_reasons);
        assert_true(n > 0 && n <= 4 * n_reasons);
    }
}

/* --- how long a step takes --- */

/* The cost model's estimate of the last plan, with `n_more` tokens more for its last item. */
static double expected_s(const struct world *w, const uint32_t *n_computed, uint32_t n_more)
{
    struct cost_step step = {0};

    for (uint32_t i = 0; i < w->plan.n_items; i++)
        cost_step_add(&step, &w->cost, n_computed[w->items[i].slot],
                      w->items[i].n_tokens + (i + 1 == w->plan.n_items ? n_more : 0));
    return cost_model_step_seconds(&w->cost, &step);
}

static void chunks_are_cut_to_the_expected_time_and_no_decode_is_left_out(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint32_t n_computed[4];
        struct world w;

        (void)state;
        world_init(&w, policies[i], 4);
        w.config.step_s_max = 0.050;
        w.decode_growth = 300; /* 3 ms for each */
        world_open(&w);
        world_submit(&w, 0, 9, 200);
        world_submit(&w, 1, 9, 200);
        world_step(&w);
        world_submit(&w, 2, 500, 2);
        world_submit(&w, 3, 500, 2);
        while (w.jobs[2].n_known == 500 || w.jobs[3].n_known == 500) {
            for (uint32_t slot = 0; slot < 4; slot++)
                n_computed[slot] = w.jobs[slot].n_computed;
            world_step(&w);
            assert_true(world_is_planned(&w, 0) && world_is_planned(&w, 1));
            assert_near(w.plan.step_s, expected_s(&w, n_computed, 0), 1e-9);
            assert_true(w.plan.step_s <= 0.050 + 1e-9);
            if (w.jobs[2].n_known == 500 && w.jobs[3].n_known == 500) /* and it is used */
                assert_true(expected_s(&w, n_computed, 1) > 0.050 - 1e-9);
        }
        world_close(&w);
    }
}

/* In any order, the chunk gets all tokens of the step that decodes leave. */
static void a_chunk_has_all_tokens_that_decodes_leave(void **state)
{
    for (int32_t priority = -1; priority <= 1; priority += 2) {
        struct world w;

        (void)state;
        world_init(&w, "fcfs", 4);
        w.config.n_tokens_max = 50;
        world_open(&w);
        world_submit(&w, 0, 9, 200);
        world_submit(&w, 1, 9, 200);
        world_step(&w);
        world_submit_as(&w, 2, 500, 2, &(struct sched_request){.priority = priority});
        for (int i = 0; i < 10; i++) {
            world_step(&w);
            assert_int_equal(w.items[2].slot, 2);
            assert_int_equal(w.items[2].n_tokens, 48);
        }
        world_close(&w);
    }
}

/* Even the shortest step exceeds the limit, but all jobs progress. */
static void a_limit_that_is_too_low_stops_no_job(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        struct world w;

        (void)state;
        world_init(&w, policies[i], 4);
        w.config.step_s_max = 0.005;
        w.config.starvation_s = 0.5;
        w.token_s = 0.020;
        world_open(&w);
        world_submit(&w, 0, 20, 5); /* alone, and each token takes too long */
        world_run_until_empty(&w, 100);
        world_submit(&w, 0, 2, 200); /* decodes, which alone take too long */
        world_step(&w);
        world_step(&w);
        world_submit(&w, 1, 20, 3);
        while (w.jobs[1].is_live)
            world_step(&w);
        assert_true(w.jobs[0].is_live);
        world_run_until_empty(&w, 1000);
        world_close(&w);
    }
}

/* --- memory --- */

static void a_newcomer_leaves_the_reserve_to_those_that_run(void **state)
{
    static const uint32_t n_tokens[] = {3 * WORLD_BLOCK, 3 * WORLD_BLOCK + 1};

    for (uint32_t i = 0; i < 2; i++) {
        struct world w;

        (void)state;
        world_init(&w, "fcfs", 4);
        w.n_blocks = 10;
        w.config.reserve_blocks = 3;
        world_open(&w);
        assert_int_equal(scheduler_reserve_blocks(w.s), 3);
        world_submit(&w, 0, 4 * WORLD_BLOCK - 3, 3);
        world_step(&w);
        world_submit(&w, 1, n_tokens[i], 2);
        world_step(&w);
        assert_int_equal(world_is_planned(&w, 1), i == 0);
        world_run_until_empty(&w, 20);
        world_close(&w);
    }
}

/* Jobs of 3, 2 (then 3) and 1 blocks in a memory of 7. Slot 0 needs one block more, and slot 2
 * holds exactly one. */
static void no_more_lose_their_place_than_must(void **state)
{
    struct scheduler_stats stats;
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 3);
    w.n_blocks = 7;
    w.config.reserve_blocks = 1;
    world_open(&w);
    world_submit(&w, 0, 40, 20);
    world_submit(&w, 1, 30, 20);
    world_submit(&w, 2, 3, 20);
    for (int i = 0; i < 9; i++) {
        world_step(&w);
        assert_int_equal(w.plan.n_items, 3);
    }
    world_step(&w);
    assert_int_equal(w.plan.n_preempt, 1);
    assert_int_equal(w.preempt[0], 2);
    scheduler_stats(w.s, &stats);
    assert_int_equal(stats.n_preempted_for_memory, 1);
    assert_int_equal(stats.n_preempted_for_place, 0);
    world_run_until_empty(&w, 100);
    world_close(&w);
}

/* Three jobs need a fourth block at once. One block is free and slot 3 holds one, so slot 2 must be
 * preempted as well. */
static void preempted_blocks_are_given_only_once(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 4);
    w.n_blocks = 11;
    w.config.reserve_blocks = 1;
    world_open(&w);
    for (uint32_t i = 0; i < 4; i++)
        world_submit(&w, i, i < 3 ? 40 : 3, 20);
    for (int i = 0; i < 9; i++) {
        world_step(&w);
        assert_int_equal(w.plan.n_items, 4);
    }
    world_step(&w);
    assert_int_equal(w.plan.n_preempt, 2);
    assert_int_equal(w.plan.n_items, 2);
    world_run_until_empty(&w, 100);
    world_close(&w);
}

static void a_single_sequence_may_use_all_memory(void **state)
{
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        struct world w;

        (void)state;
        world_init(&w, policies[i], 4);
        w.n_blocks = 10;
        w.config.reserve_blocks = 5;
        world_open(&w);
        world_submit(&w, 0, 8 * WORLD_BLOCK, 2 * WORLD_BLOCK);
        world_submit(&w, 1, 8 * WORLD_BLOCK, 2 * WORLD_BLOCK);
        world_run_until_empty(&w, 1000);
        world_close(&w);
    }
}

/* Slot 1 does not fit beside slot 0, slot 2 does. Slot 1 comes first once it fits. */
static void a_fitting_job_passes_one_that_does_not_fit_but_not_as_released(void **state)
{
    for (int as_released = 0; as_released < 2; as_released++) {
        struct world w;

        (void)state;
        world_init(&w, "mlfq", 4);
        w.n_blocks = 12;
        w.config.variant = as_released ? "released" : "paper";
        w.config.quantum_s = 10;
        world_open(&w);
        world_submit(&w, 0, 80, 3);
        world_submit(&w, 1, 160, 2);
        world_submit(&w, 2, 10, 20);
        world_step(&w);
        assert_true(world_is_planned(&w, 0) && !world_is_planned(&w, 1));
        assert_int_equal(world_is_planned(&w, 2), !as_released);
        while (w.jobs[0].is_live)
            world_step(&w);
        world_step(&w);
        assert_true(world_is_planned(&w, 1));
        world_run_until_empty(&w, 100);
        world_close(&w);
    }
}

/* --- shared blocks --- */

/* A memory of 10 blocks. Slot 0 holds 4. Slots 1 and 2 begin with the same 3 cached blocks; slot 1
 * has 6 in all, slot 2 has 4. While slot 2 runs, slot 1 needs only 3 more, and would fit if slot 2
 * were gone; when it is gone, slot 1 needs all 6, and does not. */
struct shared {
    bool runs[3];
};

static uint32_t shared_match(void *arg, uint32_t slot)
{
    (void)arg;
    return slot == 1 ? 3 * WORLD_BLOCK : slot == 2 ? 4 * WORLD_BLOCK - 2 : 0;
}

static uint32_t shared_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    const struct shared *m = arg;

    (void)n_tokens;
    if (m->runs[slot])
        return 0;
    return slot == 1 ? (m->runs[2] ? 3 : 6) : 4;
}

static uint32_t shared_reclaimable(void *arg, uint32_t slot)
{
    (void)arg;
    (void)slot;
    return 4;
}

static void carry_out(struct scheduler *s, struct shared *m, uint32_t n_known[3],
                      uint32_t *n_preempted)
{
    uint32_t n_free = 10 - 4 * m->runs[0] - 6 * m->runs[1] - 4 * m->runs[2];
    struct sched_view view = {.arg = m,
                              .n_available = n_free,
                              .match = shared_match,
                              .need = shared_need,
                              .reclaimable = shared_reclaimable};
    struct plan plan;

    scheduler_plan(s, 0, &view, &plan);
    scheduler_take(s, &plan, 0);
    for (uint32_t i = 0; i < plan.n_preempt; i++)
        m->runs[plan.preempt[i]] = false;
    *n_preempted += plan.n_preempt;
    for (uint32_t i = 0; i < plan.n_items; i++) {
        uint32_t slot = plan.items[i].slot;

        m->runs[slot] = true;
        n_known[slot]++;
        scheduler_on_tokens(s, slot, plan.items[i].n_tokens, 1, 10000000, 0);
    }
    scheduler_check(s);
}

static void sharing_blocks_causes_no_endless_preemptions(void **state)
{
    struct scheduler_config config = {.policy = "fcfs",
                                      .n_slots = 3,
                                      .n_running_max = 3,
                                      .n_tokens_max = 1000,
                                      .starvation_s = INFINITY};
    static const uint32_t n_prompt[3] = {50, 6 * WORLD_BLOCK - 2, 4 * WORLD_BLOCK - 1};
    uint32_t n_known[3] = {0}, n_preempted = 0;
    struct shared m = {{false}};
    struct scheduler *s;

    (void)state;
    assert_ok(scheduler_create(&s, &config, NULL));
    for (uint32_t i = 0; i < 3; i++)
        scheduler_submit(s, i, &(struct sched_request){.n_known = n_prompt[i], .n_out_max = 500},
                         0);
    for (int i = 0; i < 40; i++)
        carry_out(s, &m, n_known, &n_preempted);
    assert_true(n_known[0] >= 30);
    assert_true(n_preempted <= 2);
    scheduler_destroy(s);
}

/* The number of a plan's cache lookups depends on the slots, not on the number of waiting jobs. */
static void a_plan_asks_as_much_however_many_wait(void **state)
{
    for (uint32_t i = 0; i < 2 * N_POLICIES; i++)
        for (uint32_t n = 20; n <= 10020; n += 10000) {
            struct world w;
            uint64_t n_calls;

            (void)state;
            world_init(&w, policies[i % N_POLICIES], n);
            w.config.n_running_max = 8;
            w.config.n_tokens_max = i < N_POLICIES ? 16 : 1000; /* scarce, too */
            w.n_blocks = 30; /* scarce, so that places are lost for memory as well */
            w.is_checked = false;
            world_open(&w);
            for (uint32_t slot = 0; slot < n; slot++)
                world_submit_as(&w, slot, 1 + world_draw(&w, 60), 1 + world_draw(&w, 60),
                                &(struct sched_request){.tenant = slot % 3});
            for (uint32_t k = 0; k < 60; k++) {
                n_calls = w.n_view_calls;
                world_step(&w);
                assert_true(w.n_view_calls - n_calls <= 6 * (8 + 1));
            }
            world_close(&w);
        }
}

/* --- planning ahead --- */

static void a_plan_made_ahead_counts_the_step_as_done(void **state)
{
    struct sched_view view;
    struct plan ahead;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.config.n_tokens_max = 50;
    world_open(&w);
    world_submit(&w, 0, 120, 3);
    world_step(&w);
    for (uint32_t n_tokens = 50; n_tokens; n_tokens = n_tokens == 50 ? 20 : n_tokens == 20) {
        view = world_view(&w);
        scheduler_plan(w.s, w.now_ns, &view, &ahead);
        assert_int_equal(ahead.n_items, 1);
        assert_int_equal(ahead.items[0].n_tokens, n_tokens);
        world_begin(&w, &ahead);
        view = world_view(&w);
        scheduler_plan(w.s, w.now_ns + 50 * 1000000, &view, &ahead);
        assert_int_equal(ahead.n_items, 1);
        assert_int_equal(ahead.items[0].n_tokens, n_tokens == 50 ? 20 : 1);
        assert_false(ahead.items[0].admit);
        world_end(&w);
        assert_int_equal(scheduler_is_current(w.s, &ahead), true);
        if (n_tokens == 1)
            break;
    }
    world_submit(&w, 1, 5, 1);
    assert_false(scheduler_is_current(w.s, &ahead));
    world_close(&w);
}

static void a_plan_is_stale_after_an_arrival_or_an_end(void **state)
{
    struct sched_view view;
    struct plan ahead;

    for (int i = 0; i < 4; i++) {
        struct world w;

        (void)state;
        world_init(&w, "fcfs", 4);
        w.config.n_running_max = 2;
        world_open(&w);
        world_submit(&w, 0, 10, i == 3 ? 1 : 5);
        world_submit(&w, 1, 10, 5);
        world_submit(&w, 2, 10, 5); /* waits */
        view = world_view(&w);
        scheduler_plan(w.s, w.now_ns, &view, &ahead);
        world_begin(&w, &ahead);
        view = world_view(&w);
        scheduler_plan(w.s, w.now_ns + 20 * 1000000, &view, &ahead);
        if (i == 0)
            world_submit(&w, 3, 10, 5);
        if (i == 1)
            world_cancel(&w, 0); /* in the step */
        if (i == 2)
            world_cancel(&w, 2);
        world_end(&w); /* 3: slot 0 has all its tokens */
        assert_false(scheduler_is_current(w.s, &ahead));
        world_run_until_empty(&w, 100);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_starving_job_runs_for_one_token_in_every_policy),
        cmocka_unit_test(a_job_starving_in_its_prefill_runs_until_it_has_a_token),
        cmocka_unit_test(a_job_that_loses_its_kv_still_gets_its_token),
        cmocka_unit_test(a_promoted_job_stays_before_new_jobs),
        cmocka_unit_test(without_a_threshold_no_job_is_promoted),
        cmocka_unit_test(as_released_the_starving_are_looked_for_every_1000th_plan),
        cmocka_unit_test(a_job_that_ran_lately_is_not_promoted),
        cmocka_unit_test(a_priority_acts_across_levels),
        cmocka_unit_test(equals_never_take_places_from_each_other_in_turn),
        cmocka_unit_test(chunks_are_cut_to_the_expected_time_and_no_decode_is_left_out),
        cmocka_unit_test(a_chunk_has_all_tokens_that_decodes_leave),
        cmocka_unit_test(a_limit_that_is_too_low_stops_no_job),
        cmocka_unit_test(a_newcomer_leaves_the_reserve_to_those_that_run),
        cmocka_unit_test(no_more_lose_their_place_than_must),
        cmocka_unit_test(preempted_blocks_are_given_only_once),
        cmocka_unit_test(a_single_sequence_may_use_all_memory),
        cmocka_unit_test(a_fitting_job_passes_one_that_does_not_fit_but_not_as_released),
        cmocka_unit_test(sharing_blocks_causes_no_endless_preemptions),
        cmocka_unit_test(a_plan_asks_as_much_however_many_wait),
        cmocka_unit_test(a_plan_made_ahead_counts_the_step_as_done),
        cmocka_unit_test(a_plan_is_stale_after_an_arrival_or_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
