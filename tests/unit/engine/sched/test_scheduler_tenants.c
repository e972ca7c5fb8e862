/* Fairness between tenants, and levels of sessions, in deterministic cases in virtual time
 * (sched_world.h). */
#include "tests/unit/test.h"

#include "tests/unit/engine/sched/sched_world.h"

static const char *const policies[] = {"skip-join-mlfq", "mlfq", "fcfs"};
#define N_WITH_ROUNDS 3

/* --- tenants --- */

/* Tenant 7 always has one request waiting or running, tenant 8 has 100, all alike. served_s:
 * seconds of the steps with a request of each tenant, after the first 100 requests have sunk to the
 * level in which they end. */
static void serve_tenants(const char *policy, uint32_t n_out, double served_s[2])
{
    struct world w;
    uint32_t n_ended = 0;

    world_init(&w, policy, 101);
    w.config.n_running_max = 1;
    w.is_checked = false; /* it is O(n) */
    world_open(&w);
    while (n_ended < 400) {
        for (uint32_t slot = 0; slot < 101; slot++)
            if (!w.jobs[slot].is_live) {
                n_ended += w.jobs[slot].n_admitted > 0;
                world_submit_as(&w, slot, 20, n_out,
                                &(struct sched_request){.tenant = slot ? 8 : 7});
            }
        world_step(&w);
        if (n_ended >= 200)
            served_s[w.items[0].slot != 0] += w.step_s;
    }
    world_close(&w);
}

static void tenants_have_equal_time_however_many_they_send(void **state)
{
    /* Lengths that use the quantum of the last level completely: 20 + 40 ms, 20 + 20 + 40 ms. */
    static const uint32_t n_out[N_WITH_ROUNDS] = {5, 7, 5};

    (void)state;
    for (uint32_t i = 0; i < N_WITH_ROUNDS; i++) {
        double served_s[2] = {0, 0};

        serve_tenants(policies[i], n_out[i], served_s);
        assert_true(served_s[0] + served_s[1] > 11);
        assert_near(served_s[0], served_s[1], 0.1);
    }
}

static void each_of_five_tenants_has_a_fifth(void **state)
{
    double served_s[5] = {0};
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 64);
    w.config.n_running_max = 1;
    w.is_checked = false;
    world_open(&w);
    while (w.now_ns < 30 * UINT64_C(1000000000)) {
        for (uint32_t slot = 0; slot < 64; slot++)
            if (!w.jobs[slot].is_live)
                world_submit_as(&w, slot, 20, 5,
                                &(struct sched_request){.tenant = slot < 4 ? slot : 99});
        world_step(&w);
        served_s[w.items[0].slot < 4 ? w.items[0].slot : 4] += w.step_s;
    }
    for (uint32_t i = 0; i < 5; i++)
        assert_near(served_s[i], 6, 0.2);
    world_close(&w);
}

/* A tenant is charged a whole quantum when its request enters a level, and gets the unused rest
 * back when the request ends. So requests that wait already are served a little late. */
static void an_unused_quantum_is_nearly_equal_time(void **state)
{
    double served_s[2] = {0, 0};

    (void)state;
    serve_tenants("mlfq", 5, served_s); /* 20 of the last 40 ms */
    assert_true(served_s[0] < 1.5 * served_s[1] && served_s[1] < 1.5 * served_s[0]);
}

/* A request of tenant 1 takes a tenth of the time of one of tenant 2. Each tenant always has 10
 * requests waiting or running, and gets the unused rest of a quantum back. */
static void small_requests_are_served_more_often(void **state)
{
    double served_s[2] = {0, 0};
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 20);
    w.config.n_running_max = 1;
    w.config.quantum_s = 0.100;
    world_open(&w);
    while (w.now_ns < 60 * UINT64_C(1000000000)) {
        for (uint32_t slot = 0; slot < 20; slot++)
            if (!w.jobs[slot].is_live)
                world_submit_as(&w, slot, slot < 10 ? 10 : 98, 1,
                                &(struct sched_request){.tenant = 1 + slot / 10});
        world_step(&w);
        served_s[w.items[0].slot / 10] += w.step_s;
    }
    assert_true(served_s[0] > 0.25 * served_s[1]); /* by number it were a tenth */
    assert_true(served_s[0] < 1.2 * served_s[1]);
    world_close(&w);
}

/* Credit for an unused quantum expires when other tenants are served meanwhile. */
static void credit_is_not_kept_over_a_pause(void **state)
{
    uint32_t n_first = 0;
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 40);
    w.config.n_running_max = 1;
    w.config.quantum_s = 1;
    world_open(&w);
    for (uint32_t slot = 0; slot < 10; slot++) /* all but 2 % of each quantum comes back */
        world_submit_as(&w, slot, 20, 1, &(struct sched_request){.tenant = 1});
    world_run_until_empty(&w, 10);
    for (uint32_t slot = 10; slot < 40; slot++)
        world_submit_as(&w, slot, 20, 1, &(struct sched_request){.tenant = 2});
    for (uint32_t i = 0; i < 20; i++)
        world_step(&w);
    for (uint32_t slot = 0; slot < 10; slot++)
        world_submit_as(&w, slot, 20, 1, &(struct sched_request){.tenant = 1});
    for (uint32_t i = 0; i < 6; i++) {
        world_step(&w);
        n_first += w.items[0].slot < 10;
    }
    assert_true(n_first <= 3);
    world_close(&w);
}

/* More tenants than the scheduler distinguishes, each for a short time. */
static void thousands_of_tenants_come_and_go(void **state)
{
    uint32_t n_first = 0;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 1200);
    w.config.n_running_max = 16;
    w.is_checked = false;
    world_open(&w);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t slot = i % 1200;

        if (!w.jobs[slot].is_live)
            world_submit_as(&w, slot, 5 + i % 50, 1 + i % 5,
                            &(struct sched_request){.tenant = 1 + i * 7 % 3001});
        if (i % 5 == 0)
            world_step(&w);
    }
    world_run_until_empty(&w, 20000);
    for (uint32_t i = 0; i < 5000; i++) {
        world_submit_as(&w, i % 1200, 2, 1, &(struct sched_request){.tenant = i % 1500});
        world_step(&w);
    }
    for (uint32_t slot = 1; slot < 1200; slot++) /* and then two are told apart as ever */
        world_submit_as(&w, slot, 2, 1, &(struct sched_request){.tenant = 9001});
    for (uint32_t i = 0; i < 60; i++) {
        if (!w.jobs[0].is_live) {
            n_first++;
            world_submit_as(&w, 0, 2, 1, &(struct sched_request){.tenant = 9002});
        }
        world_step(&w);
    }
    assert_true(n_first >= 55);
    world_run_until_empty(&w, 1000);
    world_close(&w);
}

/* Service in one priority does not change the order of tenants in another priority. */
static void rounds_of_one_priority_are_not_those_of_another(void **state)
{
    double served_s[2] = {0, 0};
    struct world w;

    (void)state;
    world_init(&w, "fcfs", 42);
    w.config.n_running_max = 1;
    world_open(&w);
    for (uint32_t slot = 0; slot < 20; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 1, .priority = 1});
    for (uint32_t i = 0; i < 40; i++) { /* tenants 2 and 3 have their turns at the top */
        world_submit_as(&w, 40, 20, 1, &(struct sched_request){.tenant = 2});
        world_submit_as(&w, 41, 20, 1, &(struct sched_request){.tenant = 2});
        world_step(&w);
        world_step(&w);
    }
    for (uint32_t slot = 20; slot < 40; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 4, .priority = 1});
    while (w.n_live > 20)
        world_step(&w);
    for (uint32_t slot = 0; slot < 40; slot++)
        served_s[slot / 20] += w.jobs[slot].ran_s;
    assert_near(served_s[0], served_s[1], 0.15);
    world_close(&w);
}

/* An idle tenant gains no credit. */
static void an_idle_tenant_saves_nothing_up(void **state)
{
    struct world w;
    uint32_t n_first = 0;

    (void)state;
    world_init(&w, "fcfs", 60);
    w.config.n_running_max = 1;
    world_open(&w);
    for (uint32_t slot = 0; slot < 40; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 1});
    while (w.n_live > 20)
        world_step(&w);
    for (uint32_t slot = 40; slot < 60; slot++)
        world_submit_as(&w, slot, 20, 5, &(struct sched_request){.tenant = 2});
    while (w.n_live > 20)
        world_step(&w);
    for (uint32_t slot = 0; slot < 40; slot++)
        n_first += w.jobs[slot].is_live;
    assert_true(n_first >= 8 && n_first <= 12);
    world_close(&w);
}

/* --- trajectories --- */

static const struct sched_request of_session_9 = {.session = 9};

static uint32_t level_of_one_call(uint32_t n_prompt, uint32_t n_out)
{
    struct world w;
    uint32_t level;

    world_init(&w, "skip-join-mlfq", 2);
    w.config.quantum_s = 0.010;
    w.decode_s = 0.0101;
    world_open(&w);
    world_submit_as(&w, 0, n_prompt, n_out + 1, &of_session_9);
    for (uint32_t i = 0; i < n_out; i++)
        world_step(&w);
    level = world_level(&w);
    world_close(&w);
    return level;
}

/* The same tokens in calls of `n_out_each` tokens with pauses, in which each prompt contains the
 * answers before it. */
static uint32_t level_of_many_calls(uint32_t n_prompt, uint32_t n_out, uint32_t n_out_each,
                                    double pause_s)
{
    struct sched_request r = of_session_9;
    struct world w;
    uint32_t level, n_done = 0;

    world_init(&w, "skip-join-mlfq", 2);
    w.config.quantum_s = 0.010;
    w.config.starvation_s = 3;
    w.decode_s = 0.0101;
    world_open(&w);
    for (; n_done + n_out_each <= n_out; n_done += n_out_each) {
        r.n_cached = n_done ? n_prompt + n_done - 1 : 0;
        world_submit_as(&w, 0, n_prompt + n_done, n_out_each, &r);
        world_run_until_empty(&w, 1000);
        world_sleep(&w, pause_s);
    }
    r.n_cached = n_prompt + n_done - 1;
    world_submit_as(&w, 0, n_prompt + n_done, 1, &r);
    level = world_level(&w);
    world_close(&w);
    return level;
}

static void a_job_cut_into_calls_sinks_like_a_whole_one(void **state)
{
    (void)state;
    assert_int_equal(level_of_one_call(9, 121), 7 - 1); /* 1 + 1 + 2 + ... + 32 + 57 of 64 */
    assert_int_equal(level_of_many_calls(9, 120, 40, 0.5), 6);
    assert_int_equal(level_of_many_calls(9, 120, 5, 0.5), 6);
    assert_int_equal(level_of_many_calls(9, 120, 1, 0.5), 6);
    assert_int_equal(level_of_many_calls(9, 120, 5, 3.5), 0); /* too long ago */
}

/* A prompt that is longer than the quantum of its session's level begins in a lower level. */
static void a_session_goes_on_no_higher_than_its_prefill_allows(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.quantum_s = 0.010;
    world_open(&w);
    world_submit_as(&w, 0, 9, 1, &of_session_9);
    world_run_until_empty(&w, 10);
    world_submit_as(&w, 0, 100, 1, &of_session_9);
    assert_int_equal(world_level(&w), 4);
    world_run_until_empty(&w, 10);
    world_submit_as(&w, 0, 100, 1, &(struct sched_request){.session = 9, .n_cached = 99});
    assert_int_equal(world_level(&w), 4);
    world_close(&w);
}

/* The mean of the session's own pauses would be drawn to that of all sessions; one session alone
 * has its own. */
static double pause_s(const struct world *w, uint64_t session)
{
    struct sched_session x;

    return scheduler_session(w->s, session, &x) ? x.pause.mean_s : 0;
}

/* More sessions than the scheduler remembers: it remembers the last ones. */
static void sessions_that_ended_long_ago_are_forgotten(void **state)
{
    uint32_t n_known = 0;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 4);
    w.is_checked = false;
    world_open(&w);
    for (int round = 0; round < 2; round++) /* the pause is that between the rounds */
        for (uint32_t i = 1; i <= 3000; i++) {
            world_submit_as(&w, i % 4, 2, 1, &(struct sched_request){.session = i});
            world_step(&w);
        }
    for (uint32_t i = 1; i <= 3000; i++)
        assert_true(pause_s(&w, i) > 0);
    world_submit_as(&w, 3, 2, 60000, &(struct sched_request){.session = 8});
    for (uint32_t i = 0; i < 20000; i++) {
        world_submit_as(&w, i % 2, 2, 1, &(struct sched_request){.session = 10000 + i});
        world_step(&w);
        if (i % 50 == 0) { /* this one comes back in time */
            world_submit_as(&w, 1, 2, 1, &(struct sched_request){.session = 7});
            world_submit_as(&w, 2, 2, 1, &(struct sched_request){.session = 8}); /* beside it */
            world_step(&w);
        }
    }
    for (uint32_t i = 1; i <= 3000; i++)
        n_known += pause_s(&w, i) > 0;
    assert_int_equal(n_known, 2);
    assert_true(pause_s(&w, 7) > 0 && pause_s(&w, 8) > 0);
    world_submit_as(&w, 1, 2, 1, &(struct sched_request){.session = 10000 + 19990});
    assert_true(pause_s(&w, 10000 + 19990) > 0);
    world_close(&w);
}

/* A request beside another one of its session ends no pause. */
static void requests_side_by_side_are_no_pause(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    world_open(&w);
    world_submit_as(&w, 0, 20, 1, &of_session_9);
    world_run_until_empty(&w, 10);
    world_sleep(&w, 0.4);
    world_submit_as(&w, 0, 20, 50, &of_session_9);
    for (int i = 0; i < 10; i++)
        world_step(&w);
    world_submit_as(&w, 1, 20, 1, &of_session_9);
    assert_near(pause_s(&w, 9), 0.4, 1e-6);
    world_run_until_empty(&w, 100);
    world_close(&w);
}

static void pauses_of_a_session_are_measured(void **state)
{
    static const double pauses_s[] = {0.4, 0.8};
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    w.config.starvation_s = 3;
    world_open(&w);
    assert_near(pause_s(&w, 9), 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        world_submit_as(&w, 0, 20, 3, &of_session_9);
        world_submit_as(&w, 1, 20, 3, &(struct sched_request){.session = 10 + i});
        world_run_until_empty(&w, 100);
        if (i < 2)
            world_sleep(&w, pauses_s[i]);
    }
    assert_true(pause_s(&w, 9) > 0.4 && pause_s(&w, 9) < 0.8);
    assert_true(pause_s(&w, 10) > 0.4 && pause_s(&w, 10) < 0.8); /* as those of other sessions */
    assert_near(pause_s(&w, 0), 0, 0);
    world_close(&w);
}

static void a_session_has_what_all_its_requests_received(void **state)
{
    struct sched_session x;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    world_open(&w);
    world_sleep(&w, 1);
    for (uint32_t i = 0; i < 3; i++) {
        world_submit_as(&w, 0, 20, 5, &of_session_9);
        world_run_until_empty(&w, 100);
        world_sleep(&w, 1);
    }
    assert_true(scheduler_session(w.s, 9, &x));
    assert_int_equal(x.n_calls, 3);
    assert_int_equal(x.n_inside, 0);
    assert_int_equal(x.n_generated, 15);
    assert_near(x.served_s, 3 * (0.020 + 4 * 0.010), 1e-6);
    assert_near(world_seconds(x.first_ns), 1, 1e-6);
    assert_near(world_seconds(x.ended_ns), 3 + x.served_s, 1e-6);
    assert_near(x.pause.mean_s, 1, 1e-6);
    assert_near(x.pause.spread_s, 0, 1e-6);
    world_close(&w);
}

/* Run `n_calls` requests of 10 tokens of a session, and close it. */
static void run_program(struct world *w, uint64_t session, uint32_t n_calls)
{
    for (uint32_t i = 0; i < n_calls; i++) {
        world_submit_as(w, 0, 2, 10, &(struct sched_request){.session = session});
        world_run_until_empty(w, 100);
        world_sleep(w, 0.1);
    }
    assert_true(scheduler_close_session(w->s, session));
}

/* Of two waiting requests, one of a program in its last request and one of a new program. */
static bool is_older_program_first(bool is_closed)
{
    struct world w;
    bool is_first;

    world_init(&w, "skip-join-mlfq", 3);
    w.config.variant = "learned";
    w.config.n_running_max = 1;
    world_open(&w);
    for (uint64_t i = 100; i < 200; i++)
        run_program(&w, i, 5);
    for (uint32_t i = 0; i < 4; i++) {
        world_submit_as(&w, 0, 2, 10, &(struct sched_request){.session = 9});
        world_run_until_empty(&w, 100);
    }
    if (is_closed)
        assert_true(scheduler_close_session(w.s, 9));
    world_submit_as(&w, 0, 2, 10, &(struct sched_request){.session = 10});
    world_submit_as(&w, 1, 2, 10, &(struct sched_request){.session = 9});
    world_step(&w);
    is_first = w.jobs[1].ran_s > 0;
    world_run_until_empty(&w, 1000);
    world_close(&w);
    return is_first;
}

static void a_program_near_its_end_goes_before_a_new_one(void **state)
{
    (void)state;
    assert_true(is_older_program_first(false));
    assert_false(is_older_program_first(true)); /* it begins anew, behind the other */
}

static void a_closed_session_is_forgotten_when_its_requests_have_ended(void **state)
{
    struct sched_session x;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", 2);
    world_open(&w);
    assert_false(scheduler_close_session(w.s, 9));
    world_submit_as(&w, 0, 20, 5, &of_session_9);
    world_run_until_empty(&w, 100);
    assert_true(scheduler_close_session(w.s, 9));
    assert_false(scheduler_session(w.s, 9, &x));
    assert_false(scheduler_close_session(w.s, 9));
    world_submit_as(&w, 0, 20, 5, &of_session_9);
    world_step(&w);
    assert_true(scheduler_close_session(w.s, 9)); /* a request of it runs */
    assert_true(scheduler_session(w.s, 9, &x));
    world_run_until_empty(&w, 100);
    assert_false(scheduler_session(w.s, 9, &x));
    for (uint32_t i = 0; i < 10000; i++) { /* places of closed sessions are used again */
        world_submit_as(&w, 0, 1, 1, &(struct sched_request){.session = 100 + i});
        world_run_until_empty(&w, 10);
        assert_true(scheduler_close_session(w.s, 100 + i));
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_have_equal_time_however_many_they_send),
        cmocka_unit_test(each_of_five_tenants_has_a_fifth),
        cmocka_unit_test(an_unused_quantum_is_nearly_equal_time),
        cmocka_unit_test(small_requests_are_served_more_often),
        cmocka_unit_test(credit_is_not_kept_over_a_pause),
        cmocka_unit_test(thousands_of_tenants_come_and_go),
        cmocka_unit_test(rounds_of_one_priority_are_not_those_of_another),
        cmocka_unit_test(an_idle_tenant_saves_nothing_up),
        cmocka_unit_test(a_job_cut_into_calls_sinks_like_a_whole_one),
        cmocka_unit_test(a_session_goes_on_no_higher_than_its_prefill_allows),
        cmocka_unit_test(sessions_that_ended_long_ago_are_forgotten),
        cmocka_unit_test(requests_side_by_side_are_no_pause),
        cmocka_unit_test(pauses_of_a_session_are_measured),
        cmocka_unit_test(a_session_has_what_all_its_requests_received),
        cmocka_unit_test(a_program_near_its_end_goes_before_a_new_one),
        cmocka_unit_test(a_closed_session_is_forgotten_when_its_requests_have_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
