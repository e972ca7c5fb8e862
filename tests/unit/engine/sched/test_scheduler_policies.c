/* The order of each policy, in deterministic cases in virtual time (sched_world.h). A decode takes
 * 10 ms and a token of a prefill 1 ms, unless a case sets other times. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "tests/unit/engine/sched/sched_world.h"

static uint32_t n_in_level(const struct world *w, uint32_t level)
{
    struct scheduler_stats stats;

    scheduler_stats(w->s, &stats);
    return stats.n_in_level[level];
}

/* --- the toy example of FastServe (Wu et al., "Fast Distributed Inference Serving for Large
 * Language Models", 2023) --- */

/* Three jobs arrive together. The paper gives the mean completion times of four policies (4.23, 5,
 * 3.3 and 3 s), but not the jobs. These jobs were found by a search for triples with all four
 * means: prefills of multiples of 0.1 s, decodes of 0.1 to 1.2 s, up to 8 tokens, quanta of 1, 2,
 * 4, ... s. Of the 42 triples in which no iteration is exactly as long as a quantum, this one has
 * equal numbers of tokens: prefills of 3.0, 0.2 and 2.1 s, then two decodes of 0.1 s each. */
static double toy_mean_s(const char *policy)
{
    static const uint32_t prefill_tenths[] = {30, 2, 21};
    struct world w;
    double sum_s = 0;

    world_init(&w, policy, 3);
    w.config.n_running_max = 1;
    w.config.quantum_s = 1;
    w.decode_s = w.token_s = 0.1;
    world_open(&w);
    for (uint32_t i = 0; i < 3; i++)
        world_submit(&w, i, prefill_tenths[i], 3);
    world_run_until_empty(&w, 100);
    for (uint32_t i = 0; i < 3; i++)
        sum_s += world_seconds(w.jobs[i].left_ns);
    world_close(&w);
    return sum_s / 3;
}

static void the_toy_example_has_the_published_means(void **state)
{
    (void)state;
    assert_near(toy_mean_s("fcfs"), 12.7 / 3, 1e-6); /* 4.23 */
    assert_near(toy_mean_s("mlfq"), 5, 1e-6);
    assert_near(toy_mean_s("skip-join-mlfq"), 9.9 / 3, 1e-6); /* 3.3 */
    assert_near(toy_mean_s("srpt"), 3, 1e-6);
}

/* --- levels --- */

static uint32_t first_level(const char *policy, uint32_t n_prompt, uint32_t n_cached,
                            double quantum_s, double ratio)
{
    struct world w;
    uint32_t level;

    world_init(&w, policy, 1);
    w.config.n_tokens_max = 16; /* chunks are shorter than the prompt */
    w.config.step_s_max = 0.012;
    w.config.quantum_s = quantum_s;
    w.config.ratio = ratio;
    world_open(&w);
    world_submit_as(&w, 0, n_prompt, 1, &(struct sched_request){.n_cached = n_cached});
    level = world_level(&w);
    world_close(&w);
    return level;
}

static void a_sequence_joins_the_level_that_covers_its_whole_prefill(void **state)
{
    (void)state;
    /* Quanta of 10, 20, 40, 80, 160 ms: by default a decode. */
    assert_int_equal(first_level("skip-join-mlfq", 9, 0, 0, 0), 0);
    assert_int_equal(first_level("skip-join-mlfq", 15, 0, 0, 0), 1);
    assert_int_equal(first_level("skip-join-mlfq", 100, 0, 0, 0), 4);
    assert_int_equal(first_level("skip-join-mlfq", 100, 70, 0, 0), 2); /* 30 are to be computed */
    assert_int_equal(first_level("skip-join-mlfq", 100, 99, 0, 0), 0);
    assert_int_equal(first_level("skip-join-mlfq", 100, 0, 0.025, 0), 2); /* 25, 50, 100 */
    assert_int_equal(first_level("skip-join-mlfq", 90, 0, 0, 10), 1);     /* 10, 100 */
    assert_int_equal(first_level("mlfq", 100, 0, 0, 0), 0);
    assert_int_equal(first_level("mlfq", 100, 70, 0, 0), 0);
    /* Longer than any quantum: the last one. */
    assert_int_equal(first_level("skip-join-mlfq", 2000, 0, 1e-8, 0), 24 - 1);
}

static void quanta_and_thresholds_have_the_stated_defaults(void **state)
{
    struct scheduler_stats stats;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.config.starvation_s = 0;
    world_open(&w);
    scheduler_stats(w.s, &stats);
    assert_near(stats.starvation_s, 3, 1e-9);
    for (uint32_t i = 0; i < 10; i++)
        assert_near(stats.quantum_s[i], 0.010 * (1u << i), 1e-9);
    world_close(&w);

    world_init(&w, "mlfq", 4);
    w.config.starvation_s = 0;
    w.config.quantum_s = 0.5;
    w.config.ratio = 3;
    w.decode_s = 0.1;
    world_open(&w);
    scheduler_stats(w.s, &stats);
    assert_near(stats.starvation_s, 10, 1e-9); /* 100 decodes */
    assert_near(stats.quantum_s[0], 0.5, 1e-9);
    assert_near(stats.quantum_s[3], 13.5, 1e-9);
    world_close(&w);
}

/* 10 ms a step and 0.1 ms a token. */
static void without_a_cost_model_there_is_a_usual_one(void **state)
{
    struct scheduler_config config = {
        .policy = "skip-join-mlfq", .n_slots = 1, .n_running_max = 1, .n_tokens_max = 1000};
    struct scheduler_stats stats;
    struct scheduler *s;

    (void)state;
    assert_ok(scheduler_create(&s, &config, NULL));
    scheduler_submit(s, 0, &(struct sched_request){.n_known = 350, .n_out_max = 1}, 0);
    scheduler_stats(s, &stats);
    assert_near(stats.quantum_s[0], 0.010, 1e-9);
    assert_near(stats.starvation_s, 3, 1e-9);
    assert_int_equal(stats.n_in_level[2], 1);
    scheduler_destroy(s);
}

/* Decodes of 10.1 ms: 1, 2, 4 and 8 of them use up quanta of 10, 20, 40 and 80 ms. */
static void a_used_up_quantum_means_one_level_down(void **state)
{
    for (int as_released = 0; as_released < 2; as_released++) {
        struct scheduler_stats stats;
        struct world w;

        (void)state;
        world_init(&w, "skip-join-mlfq", 1);
        w.config.quantum_s = 0.010;
        w.config.variant = as_released ? "released" : "paper";
        w.decode_s = 0.0101;
        world_open(&w);
        world_submit(&w, 0, 9, 40);
        world_step(&w); /* the prefill: 9 ms of 10 */
        assert_int_equal(world_level(&w), 0);
        for (uint32_t level = 0; level < 4; level++)
            for (uint32_t i = 0; i < 1u << level; i++) {
                assert_int_equal(world_level(&w), level);
                world_step(&w);
            }
        assert_int_equal(world_level(&w), 4);
        scheduler_stats(w.s, &stats);
        assert_int_equal(stats.n_demoted, 4);
        world_close(&w);
    }
}

/* A job is charged the whole time of its steps. If that equals the quantum exactly, the job sinks
 * by the published rule, but not by the released code. */
static void exactly_a_quantum_is_used_up_as_published_only(void **state)
{
    for (int as_released = 0; as_released < 2; as_released++) {
        struct world w;

        (void)state;
        world_init(&w, "mlfq", 1);
        w.config.quantum_s = 0.0625; /* exact in binary and in nanoseconds */
        w.config.variant = as_released ? "released" : "paper";
        w.decode_s = w.token_s = 0.03125;
        world_open(&w);
        world_submit(&w, 0, 2, 5); /* 62.5 ms */
        world_step(&w);
        assert_int_equal(world_level(&w), as_released ? 0 : 1);
        world_close(&w);
    }
}

/* Behind a short prefill come decodes that are longer than the first quanta of 1, 2, 4, 8, 16 ms.
 */
static void as_published_a_job_sinks_to_a_quantum_that_fits_its_next_iteration(void **state)
{
    for (int as_released = 0; as_released < 2; as_released++) {
        struct world w;

        (void)state;
        world_init(&w, "mlfq", 1);
        w.config.quantum_s = 0.001;
        w.config.variant = as_released ? "released" : "paper";
        world_open(&w);
        world_submit(&w, 0, 100, 5);
        world_step(&w);
        assert_int_equal(world_level(&w), as_released ? 1 : 4);
        world_close(&w);
    }
}

/* A prefill is one iteration, however many chunks it is cut into. */
static void no_job_sinks_during_its_prefill(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "mlfq", 1);
    w.config.n_tokens_max = 16;
    world_open(&w);
    world_submit(&w, 0, 100, 5);
    for (uint32_t i = 0; i < 6; i++) {
        world_step(&w);
        assert_int_equal(world_level(&w), 0);
    }
    world_step(&w);
    assert_int_equal(world_level(&w), 1);
    world_close(&w);
}

/* Slot 0 sinks from the top level into the level in which slot 1 waits. */
static void a_sinking_job_joins_the_end_of_its_level_or_the_front_as_released(void **state)
{
    for (int as_released = 0; as_released < 2; as_released++) {
        struct world w;

        (void)state;
        world_init(&w, "skip-join-mlfq", 3);
        w.config.n_running_max = 1;
        w.config.quantum_s = 0.010;
        w.config.variant = as_released ? "released" : "paper";
        w.decode_s = 0.0101;
        world_open(&w);
        world_submit(&w, 0, 9, 40);
        world_submit(&w, 1, 15, 40);
        world_step(&w);
        assert_true(world_is_planned(&w, 0));
        world_step(&w); /* and sinks */
        assert_int_equal(n_in_level(&w, 1), 2);
        world_step(&w);
        assert_int_equal(world_is_planned(&w, 0), as_released);
        assert_int_equal(world_is_planned(&w, 1), !as_released);
        assert_int_equal(w.jobs[0].n_preempted, !as_released);
        world_close(&w);
    }
}

static void higher_levels_go_first_and_displace(void **state)
{
    static const uint32_t prompts[] = {300, 30, 9, 15}; /* levels 5, 2, 0, 1 */
    static const uint32_t order[] = {2, 3, 1, 0};
    struct scheduler_stats stats;
    uint32_t slot = UINT32_MAX;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 6);
    w.config.n_running_max = 1;
    w.config.quantum_s = 0.010;
    w.config.n_tokens_max = 100;
    world_open(&w);
    for (uint32_t i = 0; i < 4; i++)
        world_submit(&w, i, prompts[i], 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(scheduler_next_waiting(w.s, &slot) && slot == order[i]);
    assert_false(scheduler_next_waiting(w.s, &slot));
    for (uint32_t i = 0; i < 4; i++) {
        world_step(&w);
        assert_int_equal(w.items[0].slot, order[i]);
    }
    world_submit(&w, 4, 9, 1); /* slot 0 is in the midst of its prefill */
    world_step(&w);
    assert_int_equal(w.plan.n_preempt, 1);
    assert_int_equal(w.preempt[0], 0);
    assert_int_equal(w.items[0].slot, 4);
    scheduler_stats(w.s, &stats);
    assert_int_equal(stats.n_preempted_for_memory, 0);
    assert_int_equal(stats.n_preempted_for_place, 1);
    world_step(&w);
    assert_true(world_is_planned(&w, 0));
    assert_int_equal(w.items[0].n_cached, 100); /* it goes on where it was */
    world_close(&w);
}

static void a_displaced_job_keeps_its_place_in_its_level(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.config.n_running_max = 1;
    w.config.quantum_s = 0.010;
    w.config.n_tokens_max = 100;
    world_open(&w);
    world_submit(&w, 0, 300, 2);
    world_step(&w);
    world_submit(&w, 1, 300, 2); /* of the same level */
    world_submit(&w, 2, 9, 1);
    world_step(&w);
    assert_true(world_is_planned(&w, 2));
    world_step(&w);
    assert_true(world_is_planned(&w, 0));
    world_close(&w);
}

/* --- the other policies --- */

static void the_shortest_prefill_is_first_and_running_jobs_continue(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "sjf-prompt", 6);
    w.config.n_running_max = 1;
    world_open(&w);
    world_submit(&w, 0, 50, 3);
    world_step(&w);
    world_submit(&w, 1, 40, 1);
    world_submit(&w, 2, 20, 1);
    world_submit_as(&w, 3, 90, 1, &(struct sched_request){.n_cached = 80}); /* 10 are left */
    world_step(&w);
    assert_true(world_is_planned(&w, 0));
    world_step(&w);
    assert_true(world_is_planned(&w, 0));
    world_step(&w);
    assert_true(world_is_planned(&w, 3));
    world_step(&w);
    assert_true(world_is_planned(&w, 2));
    world_step(&w);
    assert_true(world_is_planned(&w, 1));
    world_close(&w);
}

static void the_shortest_remaining_time_displaces(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "srpt", 6);
    w.config.n_running_max = 1;
    world_open(&w);
    world_submit(&w, 0, 50, 10); /* 50 + 9 * 10 ms */
    world_step(&w);              /* 90 are left */
    world_submit(&w, 1, 20, 6);  /* 70 */
    world_submit(&w, 2, 99, 1);  /* 99 */
    world_step(&w);
    assert_true(world_is_planned(&w, 1));
    assert_int_equal(w.jobs[0].n_preempted, 1);
    world_submit(&w, 3, 65, 1); /* against the 50 of slot 1 */
    world_step(&w);
    assert_true(world_is_planned(&w, 1));
    while (w.jobs[1].is_live)
        world_step(&w);
    world_step(&w);
    assert_true(world_is_planned(&w, 3));
    world_step(&w);
    assert_true(world_is_planned(&w, 0));
    while (w.jobs[0].is_live)
        world_step(&w);
    world_step(&w);
    assert_true(world_is_planned(&w, 2));
    world_close(&w);
}

/* --- estimated next schedule time --- */

/* Slot 0 runs at the top; 1, 2 and 3 wait in levels 1, 3 and 3: quanta of 10, 20, 40, 80 ms. */
static void assert_estimates(uint32_t n_running_max, double starvation_s, double at_s,
                             const double expected_s[3])
{
    static const uint32_t prompts[] = {9, 15, 70, 70};
    struct world w;

    world_init(&w, "skip-join-mlfq", 4 + n_running_max);
    w.config.n_running_max = n_running_max;
    w.config.quantum_s = 0.010;
    w.config.starvation_s = starvation_s;
    world_open(&w);
    for (uint32_t i = 0; i < 4; i++)
        world_submit(&w, i, prompts[i], 5);
    for (uint32_t i = 1; i < n_running_max; i++)
        world_submit(&w, 3 + i, 9, 5);
    world_sleep(&w, at_s);
    for (uint32_t i = 0; i < 3; i++)
        assert_near(world_seconds(scheduler_next_ns(w.s, i + 1, w.now_ns) - w.now_ns),
                    expected_s[i], 1e-6);
    world_close(&w);
}

static void the_estimate_of_coming_back_is_the_published_one(void **state)
{
    /* Slot 0 takes 10 until it is in level 1, 70 until it is in level 3; slot 1 takes 60. */
    static const double alone[] = {0.010, 0.130, 0.130};
    static const double starving[] = {0.010, 0.080, 0.080}, starved[] = {0, 0, 0};
    /* Two at once, and one more at the top. */
    static const double two[] = {0.020 / 2, 0.200 / 2, 0.200 / 2};

    (void)state;
    assert_estimates(1, INFINITY, 0, alone);
    assert_estimates(1, 0.1, 0.020, starving);
    assert_estimates(1, 0.1, 0.2, starved);
    assert_estimates(2, INFINITY, 0, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_toy_example_has_the_published_means),
        cmocka_unit_test(a_sequence_joins_the_level_that_covers_its_whole_prefill),
        cmocka_unit_test(quanta_and_thresholds_have_the_stated_defaults),
        cmocka_unit_test(without_a_cost_model_there_is_a_usual_one),
        cmocka_unit_test(a_used_up_quantum_means_one_level_down),
        cmocka_unit_test(exactly_a_quantum_is_used_up_as_published_only),
        cmocka_unit_test(as_published_a_job_sinks_to_a_quantum_that_fits_its_next_iteration),
        cmocka_unit_test(no_job_sinks_during_its_prefill),
        cmocka_unit_test(a_sinking_job_joins_the_end_of_its_level_or_the_front_as_released),
        cmocka_unit_test(higher_levels_go_first_and_displace),
        cmocka_unit_test(a_displaced_job_keeps_its_place_in_its_level),
        cmocka_unit_test(the_shortest_prefill_is_first_and_running_jobs_continue),
        cmocka_unit_test(the_shortest_remaining_time_displaces),
        cmocka_unit_test(the_estimate_of_coming_back_is_the_published_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
