/* scheduler_set_policy(): the order is the new policy's at once, and no promise is broken. Virtual
 * time (sched_world.h): a decode takes 10 ms, a token of a prefill 1 ms. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "tests/unit/engine/sched/sched_world.h"

static void switch_to(struct world *w, const char *policy, const char *variant)
{
    assert_ok(scheduler_set_policy(w->s, policy, variant, NULL));
    scheduler_check(w->s);
}

/* Slots of the waiting sequences in the order of service, as digits. */
static void assert_waiting(const struct world *w, const char *expected)
{
    char digits[16] = "";
    uint32_t slot = UINT32_MAX, n = 0;

    while (scheduler_next_waiting(w->s, &slot)) {
        assert_true(n < sizeof digits - 1);
        digits[n++] = (char)('0' + slot);
    }
    assert_string_equal(digits, expected);
}

/* --- places --- */

static void under_fcfs_the_present_order_stays_and_arrivals_queue_behind(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 6);
    w.config.n_running_max = 1;
    w.config.quantum_s = 0.010;
    world_open(&w);
    world_submit(&w, 0, 100, 50);
    world_step(&w);
    world_submit(&w, 4, 300, 9);
    world_submit(&w, 2, 5, 9);
    world_submit(&w, 3, 60, 9);
    world_submit(&w, 1, 5, 9);
    assert_waiting(&w, "2134"); /* short prefills are in higher levels */
    switch_to(&w, "fcfs", NULL);
    world_submit(&w, 5, 5, 9);
    assert_waiting(&w, "21345");
    world_step(&w); /* slots 2, 1 and 3 were before the running one, and still are */
    assert_true(w.jobs[2].is_running && !w.jobs[0].is_running);
    world_run_until_empty(&w, 1000);
    assert_true(w.jobs[2].left_ns < w.jobs[1].left_ns && w.jobs[1].left_ns < w.jobs[4].left_ns);
    assert_true(w.jobs[4].left_ns < w.jobs[5].left_ns);
    world_close(&w);
}

static void under_an_mlfq_the_service_received_sets_the_level(void **state)
{
    struct scheduler_stats stats;
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 3);
    w.config.n_running_max = 2;
    w.config.quantum_s = 0.010;
    world_open(&w);
    world_submit(&w, 0, 2, 100);
    for (int i = 0; i < 8; i++)
        world_step(&w); /* 2 ms of prefill and 70 of decodes: 10 + 20 + 40 are used up */
    world_submit(&w, 1, 2, 100);
    world_submit(&w, 2, 15, 100);
    switch_to(&w, "skip-join-mlfq", "tarn");
    scheduler_stats(w.s, &stats);
    assert_int_equal(stats.n_in_level[3], 1);
    assert_int_equal(stats.n_in_level[0], 1);
    assert_int_equal(stats.n_in_level[1], 1); /* its prefill takes more than the top quantum */
    assert_string_equal(stats.policy, "skip-join-mlfq");
    assert_string_equal(stats.variant, "tarn");
    switch_to(&w, "skip-join-mlfq", "learned");
    scheduler_stats(w.s, &stats);
    assert_int_equal(stats.n_levels, 1);
    assert_string_equal(stats.variant, "learned");
    world_run_until_empty(&w, 1000);
    world_close(&w);
}

static void priorities_stay_in_front(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.config.n_running_max = 1;
    world_open(&w);
    world_submit(&w, 0, 10, 50);
    world_step(&w);
    world_submit(&w, 1, 10, 5);
    world_submit_as(&w, 2, 10, 5, &(struct sched_request){.priority = -1});
    world_submit_as(&w, 3, 10, 5, &(struct sched_request){.priority = 1});
    switch_to(&w, "fcfs", NULL);
    assert_waiting(&w, "213");
    switch_to(&w, "mlfq", "paper");
    assert_waiting(&w, "213");
    world_run_until_empty(&w, 1000);
    world_close(&w);
}

static void tenants_alternate_after_the_switch_too(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 6);
    w.config.n_running_max = 1;
    world_open(&w);
    world_submit(&w, 0, 10, 50);
    world_step(&w);
    for (uint32_t slot = 1; slot < 6; slot++)
        world_submit_as(&w, slot, 10, 5, &(struct sched_request){.tenant = slot < 4 ? 1 : 2});
    switch_to(&w, "skip-join-mlfq", "tarn");
    assert_waiting(&w, "14253");
    switch_to(&w, "fcfs", NULL);
    assert_waiting(&w, "14253");
    world_close(&w);
}

/* --- plans --- */

static void a_plan_made_before_the_switch_is_not_current(void **state)
{
    struct world w;
    struct plan plan;

    (void)state;
    world_init(&w, "fcfs", 2);
    world_open(&w);
    world_submit(&w, 0, 10, 5);
    struct sched_view view = world_view(&w);
    scheduler_plan(w.s, w.now_ns, &view, &plan);
    assert_true(scheduler_is_current(w.s, &plan));
    switch_to(&w, "fcfs", NULL); /* nothing changes */
    assert_true(scheduler_is_current(w.s, &plan));
    switch_to(&w, "mlfq", NULL);
    assert_false(scheduler_is_current(w.s, &plan));
    world_close(&w);
}

static void an_unknown_name_changes_nothing(void **state)
{
    struct scheduler_stats stats;
    struct world w;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    world_init(&w, "mlfq", 2);
    world_open(&w);
    world_submit(&w, 0, 10, 5);
    assert_int_equal(scheduler_set_policy(w.s, "lottery", NULL, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "lottery"));
    assert_int_equal(scheduler_set_policy(w.s, "fcfs", "tern", &why), ERR_INVALID);
    scheduler_check(w.s);
    scheduler_stats(w.s, &stats);
    assert_string_equal(stats.policy, "mlfq");
    world_close(&w);
    buf_fini(&why);
}

/* --- promises --- */

static void a_starving_sequence_stays_first(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.config.n_running_max = 1;
    w.config.starvation_s = 0.5;
    world_open(&w);
    world_submit(&w, 3, 400, 5); /* it waits in a low level */
    for (int i = 0; i < 60 && w.jobs[3].n_admitted == 0; i++) {
        if (!w.jobs[0].is_live)
            world_submit(&w, 0, 2, 100);
        switch_to(&w, i % 2 ? "mlfq" : "skip-join-mlfq", i % 3 ? "tarn" : "learned");
        world_step(&w);
    }
    assert_true(w.jobs[3].n_admitted > 0);
    assert_true(world_longest_wait_s(&w) < 0.6);
    world_run_until_empty(&w, 1000);
    world_close(&w);
}

static void the_default_threshold_is_that_of_the_variant_in_force(void **state)
{
    struct scheduler_stats stats;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.variant = "learned";
    w.config.starvation_s = 0;
    world_open(&w);
    scheduler_stats(w.s, &stats);
    assert_true(isinf(stats.starvation_s));
    switch_to(&w, "skip-join-mlfq", "tarn");
    scheduler_stats(w.s, &stats);
    assert_near(stats.starvation_s, 3, 1e-9);
    world_close(&w);
}

/* Random jobs, cancellations, short memory; the policy changes every few steps. sched_world checks
 * each plan, and scheduler_check() runs after each event. */
static void random_switches_break_no_promise(void **state)
{
    static const char *const policies[] = {"fcfs", "skip-join-mlfq", "mlfq", "srpt", "sjf-prompt"};
    static const char *const variants[] = {"tarn", "paper", "released", "learned"};
    uint32_t n_submitted = 0;
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 24);
    w.config.starvation_s = 0.4;
    w.n_blocks = 60;
    w.keep_percent = 70;
    w.surprise_percent = 10;
    world_open(&w);
    while (n_submitted < 400 || w.n_live > 0) {
        uint32_t slot = world_draw(&w, 24);

        if (n_submitted < 400 && world_draw(&w, 3) == 0 && !w.jobs[slot].is_live) {
            struct sched_request r = {.priority = (int32_t)world_draw(&w, 3) - 1,
                                      .tenant = world_draw(&w, 3),
                                      .session = world_draw(&w, 8)};
            world_submit_as(&w, slot, 1 + world_draw(&w, 200), 1 + world_draw(&w, 60), &r);
            n_submitted++;
        } else if (world_draw(&w, 50) == 0 && w.jobs[slot].is_live) {
            world_cancel(&w, slot);
        }
        if (world_draw(&w, 10) == 0)
            switch_to(&w, policies[world_draw(&w, 5)], variants[world_draw(&w, 4)]);
        if (w.n_live > 0)
            world_step(&w);
    }
    assert_int_equal(w.n_free, w.n_blocks);
    assert_true(w.n_preempted > 50);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_fcfs_the_present_order_stays_and_arrivals_queue_behind),
        cmocka_unit_test(under_an_mlfq_the_service_received_sets_the_level),
        cmocka_unit_test(priorities_stay_in_front),
        cmocka_unit_test(tenants_alternate_after_the_switch_too),
        cmocka_unit_test(a_plan_made_before_the_switch_is_not_current),
        cmocka_unit_test(an_unknown_name_changes_nothing),
        cmocka_unit_test(a_starving_sequence_stays_first),
        cmocka_unit_test(the_default_threshold_is_that_of_the_variant_in_force),
        cmocka_unit_test(random_switches_break_no_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
