/* The variant learned of skip-join-mlfq, in deterministic cases in virtual time (sched_world.h). */
#include "tests/unit/test.h"

#include <math.h>

#include "tests/unit/engine/sched/sched_world.h"

static void open_learned(struct world *w, uint32_t n_slots, uint32_t n_running, double age_s)
{
    world_init(w, "skip-join-mlfq", n_slots);
    w->config.variant = "learned";
    w->config.n_running_max = n_running;
    w->config.age_s = age_s;
    world_open(w);
}

/* Teach the scheduler that answers have these lengths, in turn. */
static void teach(struct world *w, const uint32_t *lengths, uint32_t n, uint32_t n_answers)
{
    const struct length_traits plain = {.n_prompt = 20};
    struct lengths *l = scheduler_lengths(w->s);
    uint32_t class = lengths_enter(l, &plain);

    for (uint32_t i = 0; i < n_answers; i++)
        lengths_note(l, class, lengths[i % n]);
    lengths_leave(l, class);
}

/* --- the order follows the lengths --- */

static void equal_lengths_are_served_in_the_order_of_arrival(void **state)
{
    static const uint32_t equal[] = {60};
    struct scheduler_stats stats;
    struct world w;

    (void)state;
    open_learned(&w, 12, 2, 100);
    teach(&w, equal, 1, 1000);
    for (uint32_t slot = 0; slot < 12; slot++) {
        world_submit(&w, slot, 20, 60);
        world_sleep(&w, 0.01);
    }
    world_run_until_empty(&w, 5000);
    for (uint32_t slot = 1; slot < 12; slot++)
        assert_true(w.jobs[slot].left_ns >= w.jobs[slot - 1].left_ns);
    scheduler_stats(w.s, &stats);
    /* A first token may go before an answer that has begun, and nothing else does. */
    assert_true(stats.n_preempted_for_place <= 2 * 12);
    world_close(&w);
}

static void after_many_tokens_a_long_answer_makes_room_for_short_ones(void **state)
{
    static const uint32_t heavy[] = {4, 5, 6, 7, 8, 5, 6, 4, 9, 2000};
    struct world w;

    (void)state;
    open_learned(&w, 8, 1, 100);
    teach(&w, heavy, 10, 1000);
    world_submit(&w, 0, 20, 400);
    for (uint32_t i = 0; i < 50; i++)
        world_step(&w);
    world_submit(&w, 1, 20, 6);
    while (w.jobs[1].is_live)
        world_step(&w);
    assert_true(w.jobs[0].is_live);
    assert_int_equal(w.jobs[0].n_preempted, 1);
    world_run_until_empty(&w, 5000);
    world_close(&w);
}

static void lengths_are_learned_from_the_answers_served(void **state)
{
    const struct length_traits plain = {.n_prompt = 20};
    struct world w;

    (void)state;
    open_learned(&w, 8, 4, 0);
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t slot = 0; slot < 8; slot++)
            world_submit(&w, slot, 20, 30);
        world_run_until_empty(&w, 1000);
    }
    const struct lengths *l = scheduler_lengths(w.s);
    assert_int_equal(lengths_n_noted(l), 480);
    assert_true(fabs(lengths_mean_left(l, lengths_class(l, &plain), 0) - 30) < 4);
    world_submit(&w, 0, 20, 30);
    for (uint32_t i = 0; i < 20; i++)
        world_step(&w);
    assert_true(fabs(scheduler_tokens_left(w.s, 0) - 10) < 5);
    world_close(&w);
}

/* A cancelled answer says nothing about its length. */
static void cancelled_answers_are_not_learned(void **state)
{
    struct world w;

    (void)state;
    open_learned(&w, 2, 1, 0);
    world_submit(&w, 0, 20, 30);
    world_step(&w);
    world_cancel(&w, 0);
    world_step(&w);
    assert_int_equal(lengths_n_noted(scheduler_lengths(w.s)), 0);
    world_close(&w);
}

/* --- nobody starves --- */

/* One long answer, and short ones that arrive faster than they can be served. The long one is
 * overtaken only by answers that arrived less than T ln x after it, and x, its rank, is at most
 * (its length + the answers left) times the longest length. */
static void a_long_answer_is_overtaken_for_a_bounded_time(void **state)
{
    static const uint32_t heavy[] = {4, 5, 6, 7, 8, 5, 6, 4, 9, 300};
    double bound_s = 0.5 * log(300.0 * 300);
    struct world w;

    (void)state;
    open_learned(&w, 400, 1, 0.5);
    w.is_checked = false; /* it is O(n) */
    teach(&w, heavy, 10, 2000);
    world_submit(&w, 0, 20, 200);
    uint32_t slot = 1;
    while (w.jobs[0].is_live) {
        if (slot < 400 && w.n_steps % 4 == 0)
            world_submit(&w, slot++, 20, 6);
        assert_true(world_step(&w));
    }
    for (uint32_t i = 1; i < slot;
         i++) /* answers that came late wait until the long one has ended */
        if (!w.jobs[i].is_live)
            assert_true(world_seconds(w.jobs[i].came_ns) <= bound_s + 0.1);
    assert_true(slot > 50);
    world_close(&w);
}

/* Let steps run, with short requests that come faster than they are served, until the request of
 * the slot has its first token. Returns how many short requests began meanwhile. */
static uint32_t until_first_token(struct world *w, uint32_t slot, uint32_t *next)
{
    uint32_t n_prompt = w->jobs[slot].n_known, n_served = 0;

    for (uint32_t i = 0; i < *next; i++)
        n_served -= w->jobs[i].n_admitted > 0;
    while (w->jobs[slot].is_live && w->jobs[slot].n_known == n_prompt) {
        assert_true(*next + 2 <= 6000);
        for (int k = 0; k < 2; k++)
            world_submit(w, (*next)++, 20, 2);
        assert_true(world_step(w));
    }
    for (uint32_t i = 0; i < *next; i++)
        n_served += w->jobs[i].n_admitted > 0;
    return n_served;
}

/* T is 10 s. By rank alone, prompts of 20 tokens overtake one of 900 for about 30 s. As an elder it
 * has its turn within T, and the next elder leaves the short ones half of the time. */
static void long_prompts_do_not_wait_for_all_short_ones(void **state)
{
    static const uint32_t equal[] = {2};
    uint32_t next = 2;
    struct world w;

    (void)state;
    open_learned(&w, 6000, 1, 10);
    w.is_checked = false; /* it is O(n) */
    teach(&w, equal, 1, 1000);
    while (next < 500) /* what a usual request is */
        world_submit(&w, next++, 20, 2);
    world_run_until_empty(&w, 5000);
    world_submit(&w, 0, 900, 2);
    world_submit(&w, 1, 900, 2);
    until_first_token(&w, 0, &next);
    double first_s = world_seconds(w.now_ns - w.jobs[0].came_ns);
    assert_true(first_s > 5 && first_s < 10);
    uint32_t n_served = until_first_token(&w, 1, &next);
    double second_s = world_seconds(w.now_ns - w.jobs[1].came_ns) - first_s;
    assert_true(second_s > 1.6 && second_s < 3);
    assert_true(n_served >= 20); /* of 30 ms each, in the 0.9 s that are theirs */
    world_close(&w);
}

/* Let steps run, with a first token due in each for each place, until the answer of slot 0 is so
 * old or has ended. */
static void until_age(struct world *w, double age_s, uint32_t *next)
{
    while (w->jobs[0].is_live && world_seconds(w->now_ns - w->jobs[0].came_ns) < age_s) {
        assert_true(*next + w->config.n_running_max <= w->config.n_slots);
        for (uint32_t k = 0; k < w->config.n_running_max; k++)
            world_submit(w, (*next)++, 20, 60);
        assert_true(world_step(w));
    }
}

static void until_generated(struct world *w, uint32_t slot, uint32_t n_out)
{
    while (w->jobs[slot].n_known < 20 + n_out)
        assert_true(world_step(w));
}

/* T is 10 s. By rank alone, first tokens go before the last 20 tokens of an answer of 60 for about
 * 30 s. */
static void a_begun_answer_that_ends_soon_does_not_wait_for_all_first_tokens(void **state)
{
    static const uint32_t equal[] = {60};
    uint32_t next = 1;
    struct world w;

    (void)state;
    open_learned(&w, 2000, 2, 10);
    w.is_checked = false; /* it is O(n) */
    teach(&w, equal, 1, 1000);
    world_submit(&w, 0, 20, 60);
    until_generated(&w, 0, 40);
    until_age(&w, 3.5, &next);
    assert_true(w.jobs[0].is_live && !w.jobs[0].is_running);
    until_age(&w, 15, &next);
    assert_false(w.jobs[0].is_live);
    assert_true(world_seconds(w.jobs[0].left_ns - w.jobs[0].came_ns) < 6);
    world_close(&w);
}

/* The more such an answer has, the longer is the rest: it gives way as long as it is long. */
static void with_a_heavy_tail_no_begun_answer_goes_before_first_tokens(void **state)
{
    static const uint32_t heavy[] = {30, 30, 30, 30, 40, 40, 60, 80, 160, 2000};
    uint32_t next = 1;
    struct world w;

    (void)state;
    open_learned(&w, 2000, 2, 10);
    w.is_checked = false;
    teach(&w, heavy, 10, 1000);
    world_submit(&w, 0, 20, 220);
    until_generated(&w, 0, 200);
    until_age(&w, 15, &next);
    assert_true(w.jobs[0].is_live && !w.jobs[0].is_running);
    world_close(&w);
}

/* Four old answers lack 20 tokens each; with four places, two at a time go before first tokens. */
static void begun_answers_leave_half_of_the_places_to_first_tokens(void **state)
{
    static const uint32_t equal[] = {60};
    uint32_t next = 4, n_most = 0, n_ended = 0;
    struct world w;

    (void)state;
    open_learned(&w, 2000, 4, 10);
    w.is_checked = false;
    teach(&w, equal, 1, 1000);
    for (uint32_t slot = 0; slot < 4; slot++)
        world_submit(&w, slot, 20, 60);
    until_generated(&w, 3, 40);
    until_age(&w, 3.5, &next);
    while (world_seconds(w.now_ns - w.jobs[3].came_ns) < 8 && next + 4 <= 2000) {
        uint32_t n_old = 0;
        for (int k = 0; k < 4; k++)
            world_submit(&w, next++, 20, 60);
        assert_true(world_step(&w));
        for (uint32_t slot = 0; slot < 4; slot++)
            n_old += world_is_planned(&w, slot);
        n_most = n_old > n_most ? n_old : n_most;
    }
    for (uint32_t slot = 0; slot < 4; slot++)
        n_ended += !w.jobs[slot].is_live;
    assert_int_equal(n_most, 2);
    assert_int_equal(n_ended, 4);
    world_close(&w);
}

/* --- tenants --- */

static void a_quiet_tenant_does_not_wait_behind_the_backlog_of_a_busy_one(void **state)
{
    uint32_t n_before = 0;
    struct world w;

    (void)state;
    open_learned(&w, 101, 1, 10);
    for (uint32_t slot = 1; slot < 101; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 8});
    for (uint32_t i = 0; i < 30; i++)
        world_step(&w);
    world_submit_as(&w, 0, 20, 5, &(struct sched_request){.tenant = 7});
    for (uint32_t slot = 1; slot < 101; slot++)
        n_before += w.jobs[slot].n_admitted > 0;
    assert_in_range(n_before, 1, 60);
    while (w.jobs[0].n_known == 20)
        world_step(&w);
    uint32_t n_now = 0;
    for (uint32_t slot = 1; slot < 101; slot++)
        n_now += w.jobs[slot].n_admitted > 0;
    assert_true(n_now <= n_before + 2);
    world_close(&w);
}

/* A request that leaves before it has run costs its tenant no turn. */
static void a_cancelled_request_costs_no_turn(void **state)
{
    struct world w;

    (void)state;
    open_learned(&w, 60, 1, 10);
    for (uint32_t slot = 10; slot < 60; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 8});
    for (uint32_t i = 0; i < 30; i++) {
        world_submit_as(&w, 0, 20, 5, &(struct sched_request){.tenant = 7});
        world_cancel(&w, 0);
    }
    world_submit_as(&w, 0, 20, 5, &(struct sched_request){.tenant = 7});
    for (uint32_t i = 0; i < 3; i++)
        world_step(&w);
    assert_true(w.jobs[0].n_known > 20);
    world_close(&w);
}

/* --- targets --- */

static void a_target_lets_a_sequence_run_in_time(void **state)
{
    static const uint32_t equal[] = {50};
    struct world w;

    (void)state;
    for (int targeted = 0; targeted < 2; targeted++) {
        open_learned(&w, 32, 2, 10);
        teach(&w, equal, 1, 1000);
        for (uint32_t slot = 1; slot < 31; slot++)
            world_submit(&w, slot, 400, 50);
        world_step(&w);
        world_submit_as(&w, 0, 400, 50, &(struct sched_request){.slo_ttft_s = targeted ? 2.0 : 0});
        while (w.jobs[0].n_known == 400)
            world_step(&w);
        double ttft_s = world_seconds(w.now_ns - w.jobs[0].came_ns);
        if (targeted)
            assert_true(ttft_s <= 2.0);
        else
            assert_true(ttft_s > 4.0);
        world_close(&w);
    }
}

static void a_target_that_cannot_be_met_gains_nothing(void **state)
{
    uint64_t ended_ns[2];
    struct world w;

    (void)state;
    for (int targeted = 0; targeted < 2; targeted++) {
        open_learned(&w, 32, 2, 10);
        for (uint32_t slot = 1; slot < 31; slot++)
            world_submit(&w, slot, 400, 50);
        world_submit_as(&w, 0, 400, 50, &(struct sched_request){.slo_ttft_s = targeted ? 1e-3 : 0});
        while (w.jobs[0].is_live)
            world_step(&w);
        ended_ns[targeted] = w.now_ns;
        world_close(&w);
    }
    assert_int_equal(ended_ns[0], ended_ns[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_lengths_are_served_in_the_order_of_arrival),
        cmocka_unit_test(after_many_tokens_a_long_answer_makes_room_for_short_ones),
        cmocka_unit_test(lengths_are_learned_from_the_answers_served),
        cmocka_unit_test(cancelled_answers_are_not_learned),
        cmocka_unit_test(a_long_answer_is_overtaken_for_a_bounded_time),
        cmocka_unit_test(long_prompts_do_not_wait_for_all_short_ones),
        cmocka_unit_test(a_begun_answer_that_ends_soon_does_not_wait_for_all_first_tokens),
        cmocka_unit_test(with_a_heavy_tail_no_begun_answer_goes_before_first_tokens),
        cmocka_unit_test(begun_answers_leave_half_of_the_places_to_first_tokens),
        cmocka_unit_test(a_quiet_tenant_does_not_wait_behind_the_backlog_of_a_busy_one),
        cmocka_unit_test(a_cancelled_request_costs_no_turn),
        cmocka_unit_test(a_target_lets_a_sequence_run_in_time),
        cmocka_unit_test(a_target_that_cannot_be_met_gains_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
