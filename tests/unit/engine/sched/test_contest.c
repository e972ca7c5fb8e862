/* Contests between policies (contest.h) and the replays below them: equal inputs give equal
 * figures, the better policy wins where the literature says it does, and one contest changes
 * nothing. Backlogs stay from one contest to the next, and requests that have not ended count. A
 * decode takes 10 ms whatever the batch, a token of a prefill 0.1 ms. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/sched/contest.h"
#include "tests/unit/engine/sched/costs.h"

#define N_RUNNING 4
#define DECODE_S 0.010
#define TOKEN_S 0.0001
#define N_PROMPT 50

enum tail { CONSTANT, HEAVY };

/* The mean of HEAVY is 75 too: 15 of 16 answers have 16 tokens, one has 960. */
static uint32_t length_of(enum tail kind, uint64_t i)
{
    if (kind == CONSTANT)
        return 75;
    return rng_u32(7, i) % 16 ? 16 : 960;
}

struct traffic {
    enum tail kind;
    double load; /* share of what N_RUNNING places can serve */
    uint64_t n, now_ns;
};

static struct contest_request next_request(struct traffic *t)
{
    double gap_s = 75 * DECODE_S / N_RUNNING / t->load;
    uint64_t i = t->n++;

    t->now_ns += (uint64_t)(-log(1 - (double)rng_uniform(11, i)) * gap_s * 1e9);
    return (struct contest_request){.asked = {.n_known = N_PROMPT, .n_out_max = 2000},
                                    .arrival_ns = t->now_ns,
                                    .n_out = length_of(t->kind, i)};
}

static struct cost_model cost_of(double decode_s)
{
    return cost_of_lines(0, TOKEN_S, decode_s, decode_s);
}

static struct scheduler_config scheduler_of(const char *policy)
{
    return (struct scheduler_config){
        .policy = policy, .n_running_max = N_RUNNING, .n_tokens_max = 512, .step_s_max = 0.2};
}

static const struct contest_memory ample = {.n_device_blocks = 1 << 20};

/* --- replays --- */

#define N_REPLAYED 400

static const struct contest_pace usual_pace = {1, 1};

/* Serve n requests until none is left. */
static struct contest_result replay_all(const char *policy, const struct contest_request *requests,
                                        uint32_t n, const struct contest_memory *memory,
                                        uint32_t n_plans, struct contest_pace pace)
{
    struct cost_model cost = cost_of(DECODE_S);
    struct contest_replay_config config = {
        .scheduler = scheduler_of(policy), .memory = *memory, .requests = requests, .n = n};
    struct contest_replay *r;
    struct contest_result result;

    config.scheduler.cost = &cost;
    assert_ok(contest_replay_create(&r, &config, NULL));
    contest_replay_extend(r, n, UINT64_MAX, pace);
    for (uint32_t i = 0; !contest_replay_run(r, n_plans); i++)
        assert_true(i < 1000000);
    contest_replay_result(r, &result);
    contest_replay_destroy(r);
    return result;
}

static struct contest_result replay(const char *policy, enum tail kind,
                                    const struct contest_memory *memory, uint32_t n_plans)
{
    struct traffic t = {.kind = kind, .load = 0.9};
    struct contest_request requests[N_REPLAYED];

    for (uint32_t i = 0; i < N_REPLAYED; i++)
        requests[i] = next_request(&t);
    return replay_all(policy, requests, N_REPLAYED, memory, n_plans, usual_pace);
}

static const struct contest_request lone = {
    .asked = {.n_known = 301, .n_cached = 1}, .arrival_ns = 5, .n_out = 21};

static void a_lone_request_takes_what_the_cost_model_says(void **state)
{
    double first_s = 300 * TOKEN_S, end_s = first_s + 20 * DECODE_S;
    struct contest_result result = replay_all("fcfs", &lone, 1, &ample, UINT32_MAX, usual_pace);

    (void)state;
    assert_int_equal(result.n, 1);
    assert_true(fabs(result.ttft_s.mean - first_s) < 1e-6);
    assert_true(fabs(result.e2e_s.p99 - end_s) < 1e-6);
    assert_true(fabs(result.normalized_s.p95 - end_s / 21) < 1e-6);
}

static void virtual_time_has_the_pace_of_the_server(void **state)
{
    struct contest_pace pace = {.step = 1.5, .tokens = 2};
    double first_s = 300 * TOKEN_S * pace.step, end_s = first_s + 10 * DECODE_S * pace.step;
    struct contest_result result = replay_all("fcfs", &lone, 1, &ample, UINT32_MAX, pace);

    (void)state;
    assert_true(fabs(result.ttft_s.mean - first_s) < 1e-6);
    assert_true(fabs(result.e2e_s.mean - end_s) < 1e-6); /* two tokens in each step */
}

static void slices_do_not_change_the_result(void **state)
{
    struct contest_result whole = replay("skip-join-mlfq", HEAVY, &ample, UINT32_MAX);
    struct contest_result cut = replay("skip-join-mlfq", HEAVY, &ample, 7);

    (void)state;
    assert_memory_equal(&whole, &cut, sizeof whole);
    assert_int_equal(whole.n, N_REPLAYED);
}

static void the_better_policy_depends_on_the_tail(void **state)
{
    struct contest_result fcfs = replay("fcfs", CONSTANT, &ample, UINT32_MAX);
    struct contest_result mlfq = replay("skip-join-mlfq", CONSTANT, &ample, UINT32_MAX);

    (void)state;
    assert_true(fcfs.normalized_s.mean < 0.9 * mlfq.normalized_s.mean);
    fcfs = replay("fcfs", HEAVY, &ample, UINT32_MAX);
    mlfq = replay("skip-join-mlfq", HEAVY, &ample, UINT32_MAX);
    assert_true(mlfq.normalized_s.mean < 0.5 * fcfs.normalized_s.mean);
    assert_true(mlfq.ttft_s.p95 < fcfs.ttft_s.p95);
}

static void short_memory_costs_time_and_host_memory_saves_some(void **state)
{
    /* Two of the longest answers fit. */
    struct contest_memory tight = {.n_device_blocks = 64};
    struct contest_memory swap = {
        .n_device_blocks = 64, .n_host_blocks = 4096, .copy_s_per_token = 1e-6};
    double free_s = replay("skip-join-mlfq", HEAVY, &ample, UINT32_MAX).e2e_s.mean;
    double swap_s = replay("skip-join-mlfq", HEAVY, &swap, UINT32_MAX).e2e_s.mean;
    double tight_s = replay("skip-join-mlfq", HEAVY, &tight, UINT32_MAX).e2e_s.mean;

    (void)state;
    assert_true(free_s < swap_s && swap_s < tight_s);
}

/* --- contests --- */

static struct contest *contest_of(const char *policy, bool follows)
{
    struct contest_config config = {
        .scheduler = scheduler_of(policy), .memory = ample, .follows = follows};
    struct contest *c;

    assert_ok(contest_create(&c, &config, NULL));
    return c;
}

static struct scheduler *idle_scheduler(void)
{
    struct scheduler_config config = scheduler_of("skip-join-mlfq");
    struct scheduler *s;

    config.n_slots = 64;
    assert_ok(scheduler_create(&s, &config, NULL));
    return s;
}

/* A request that arrives and is answered. */
static void note_one(struct contest *c, const struct contest_request *r)
{
    contest_ended(c, contest_arrived(c, r, 0), 0, r->n_out);
}

static void note(struct contest *c, struct traffic *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct contest_request r = next_request(t);
        note_one(c, &r);
    }
}

static struct contest_verdict contest_with(struct contest *c, const struct scheduler *s,
                                           uint64_t now_ns)
{
    struct cost_model cost = cost_of(DECODE_S);
    struct contest_verdict v;

    contest_begin(c, &cost, s, now_ns);
    assert_false(contest_is_due(c));
    while (!contest_run(c, 1000)) {
    }
    contest_end(c, &v);
    return v;
}

/* Note requests until a contest is due, and hold it. */
static struct contest_verdict hold(struct contest *c, struct traffic *t)
{
    struct scheduler *idle = idle_scheduler();
    struct contest_verdict v;

    while (!contest_is_due(c))
        note(c, t, 1);
    v = contest_with(c, idle, t->now_ns);
    scheduler_destroy(idle);
    return v;
}

static void two_wins_in_a_row_change_the_policy(void **state)
{
    struct traffic t = {.kind = CONSTANT, .load = 0.9};
    struct contest *c = contest_of("skip-join-mlfq", true);
    struct contest_stats stats;
    struct contest_verdict v;

    (void)state;
    v = hold(c, &t);
    assert_false(v.is_change);
    assert_string_equal(v.best->policy, "fcfs");
    v = hold(c, &t);
    assert_true(v.is_change);
    assert_string_equal(v.best->policy, "fcfs");
    assert_string_equal(v.best->variant, "");
    assert_string_equal(v.from->policy, "skip-join-mlfq");
    assert_true(v.best->score_s < 0.95 * v.from->score_s);
    v = hold(c, &t);
    assert_false(v.is_change); /* it is in force */
    contest_stats(c, &stats);
    assert_int_equal(stats.n_contests, 3);
    assert_int_equal(stats.n_changes, 1);
    assert_int_equal(stats.candidates[0].result.n, CONTEST_N_MIN + 2 * CONTEST_N_NEW);
    contest_destroy(c);
}

static void quiet_times_do_not_undo_what_a_burst_showed(void **state)
{
    struct traffic t = {.kind = HEAVY, .load = 0.9};
    struct contest *c = contest_of("skip-join-mlfq", true);
    struct contest_verdict v;

    (void)state;
    for (int i = 0; i < 4; i++)
        v = hold(c, &t);
    assert_true(strcmp(v.best->policy, "fcfs") != 0);
    t.load = 0.3;
    for (int i = 0; i < 8; i++) {
        v = hold(c, &t);
        assert_true(strcmp(v.best->policy, "fcfs") != 0);
    }
    contest_destroy(c);
}

static void without_load_all_policies_are_equal_and_none_changes(void **state)
{
    struct traffic t = {.kind = HEAVY, .load = 0.05};
    struct contest *c = contest_of("fcfs", true);

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct contest_verdict v = hold(c, &t);
        assert_false(v.is_change);
        assert_true(fabs(v.best->score_s / v.from->score_s - 1) < CONTEST_MARGIN);
    }
    contest_destroy(c);
}

static void a_contest_that_only_compares_names_no_change(void **state)
{
    struct traffic t = {.kind = HEAVY, .load = 0.9};
    struct contest *c = contest_of("srpt", false);
    struct contest_stats stats;

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_false(hold(c, &t).is_change);
    contest_stats(c, &stats);
    assert_int_equal(stats.n_changes, 0);
    assert_string_equal(stats.candidates[stats.n_candidates - 1].policy, "srpt");
    for (uint32_t i = 0; i < stats.n_candidates; i++)
        assert_true(stats.candidates[i].result.normalized_s.mean > 0);
    contest_destroy(c);
}

static void the_variant_in_force_is_one_candidate_only(void **state)
{
    struct contest_config config = {.scheduler = scheduler_of("skip-join-mlfq"), .memory = ample};
    struct contest_stats stats;
    struct contest *c;

    (void)state;
    config.scheduler.variant = "learned";
    assert_ok(contest_create(&c, &config, NULL));
    contest_stats(c, &stats);
    assert_int_equal(stats.n_candidates, 3);
    assert_string_equal(stats.candidates[2].variant, "learned");
    contest_destroy(c);
    config.scheduler.variant = "paper";
    assert_ok(contest_create(&c, &config, NULL));
    contest_stats(c, &stats);
    assert_int_equal(stats.n_candidates, 4);
    assert_string_equal(stats.candidates[3].variant, "paper");
    contest_destroy(c);
}

static void requests_noted_during_a_contest_do_not_change_it(void **state)
{
    struct scheduler *idle = idle_scheduler();
    struct contest_stats a, b;

    (void)state;
    for (uint32_t during = 0; during < 2; during++) {
        struct traffic t = {.kind = HEAVY, .load = 0.9};
        struct contest *c = contest_of("fcfs", true);
        struct cost_model cost = cost_of(DECODE_S);
        struct contest_verdict v;

        note(c, &t, 300);
        contest_begin(c, &cost, idle, t.now_ns);
        cost = cost_of(1); /* the contest has a copy */
        while (!contest_run(c, 500))
            note(c, &t, during);
        contest_end(c, &v);
        contest_stats(c, during ? &a : &b);
        contest_destroy(c);
    }
    scheduler_destroy(idle);
    assert_memory_equal(&a, &b, sizeof a);
}

static void requests_that_never_fit_are_not_noted(void **state)
{
    struct contest_config config = {.scheduler = scheduler_of("fcfs"),
                                    .memory = {.n_device_blocks = 4}};
    struct contest_request r = {.asked = {.n_known = 128}, .n_out = 1};
    struct contest *c;

    (void)state;
    assert_ok(contest_create(&c, &config, NULL));
    for (uint32_t i = 0; i < CONTEST_N_MIN; i++)
        note_one(c, &r);
    assert_false(contest_is_due(c));
    r.asked.n_known = 127;
    for (uint32_t i = 0; i < CONTEST_N_MIN; i++)
        note_one(c, &r);
    assert_true(contest_is_due(c));
    contest_destroy(c);
}

/* --- what the shadows know --- */

#define N_LONG_RUN (2 * CONTEST_N_REQUESTS)

/* With a heavy tail at 1.05 of capacity the queue of fcfs grows for thousands of requests: a replay
 * that begins with an empty queue shows a fraction of it. */
static void a_backlog_stays_from_one_contest_to_the_next(void **state)
{
    static struct contest_request requests[N_LONG_RUN];
    struct traffic t = {.kind = HEAVY, .load = 1.05};
    struct contest *c = contest_of("fcfs", false);
    struct scheduler *idle = idle_scheduler();
    struct contest_result late, fresh;
    struct contest_stats stats;

    (void)state;
    for (uint32_t i = 0; i < N_LONG_RUN; i++) {
        requests[i] = next_request(&t);
        note_one(c, &requests[i]);
        if (contest_is_due(c))
            (void)contest_with(c, idle, requests[i].arrival_ns);
    }
    contest_stats(c, &stats);
    late = stats.candidates[0].result;
    fresh = replay_all("fcfs", requests + CONTEST_N_REQUESTS, CONTEST_N_REQUESTS, &ample,
                       UINT32_MAX, usual_pace);
    assert_int_equal(late.n, CONTEST_N_REQUESTS);
    assert_true(late.ttft_s.mean > 1.5 * fresh.ttft_s.mean);
    scheduler_destroy(idle);
    contest_destroy(c);
}

/* A server that puts long answers off answers the short ones only. */
static void requests_that_have_not_ended_are_in_the_shadows(void **state)
{
    struct contest *c = contest_of("skip-join-mlfq", false);
    struct scheduler *s = idle_scheduler();
    struct contest_request r = {.asked = {.n_known = N_PROMPT, .n_out_max = 2000}, .n_out = 16};
    struct contest_stats stats;
    uint32_t n_open = 0;

    (void)state;
    for (uint32_t i = 0; i < CONTEST_N_MIN; i++) {
        r.arrival_ns += UINT64_C(1000000000);
        uint64_t id = contest_arrived(c, &r, n_open);
        if (i % 32 != 16) {
            contest_ended(c, id, 0, r.n_out);
            continue;
        }
        scheduler_submit(s, n_open++, &r.asked, r.arrival_ns);
    }
    assert_int_equal(n_open, CONTEST_N_MIN / 32);
    (void)contest_with(c, s, r.arrival_ns);
    contest_stats(c, &stats);
    assert_int_equal(stats.candidates[0].result.n, CONTEST_N_MIN);
    scheduler_destroy(s);
    contest_destroy(c);
}

/* Many requests that have not ended: the server is overloaded and answers the short ones first, so
 * that guesses from its answers would be short. The shadows wait for the ends. */
static void shadows_do_not_run_ahead_of_an_overloaded_server(void **state)
{
    struct contest *c = contest_of("skip-join-mlfq", true);
    struct scheduler *s = idle_scheduler();
    struct contest_request r = {.asked = {.n_known = N_PROMPT, .n_out_max = 2000}, .n_out = 16};
    struct contest_stats stats;
    uint64_t ids[2 * CONTEST_N_MIN];

    (void)state;
    for (uint32_t i = 0; i < 2 * CONTEST_N_MIN; i++) {
        r.arrival_ns += UINT64_C(10000000);
        ids[i] = contest_arrived(c, &r, 0);
        if (i < CONTEST_N_MIN)
            contest_ended(c, ids[i], 0, r.n_out);
    }
    (void)contest_with(c, s, r.arrival_ns);
    contest_stats(c, &stats);
    assert_in_range(stats.candidates[0].result.n, CONTEST_N_MIN, CONTEST_N_MIN + 64);
    for (uint32_t i = CONTEST_N_MIN; i < 2 * CONTEST_N_MIN; i++)
        contest_ended(c, ids[i], 0, 960);
    note_one(c, &r);
    (void)contest_with(c, s, r.arrival_ns);
    contest_stats(c, &stats);
    assert_int_equal(stats.candidates[0].result.n, 2 * CONTEST_N_MIN + 1);
    scheduler_destroy(s);
    contest_destroy(c);
}

/* The requests inside precede all later ones under fcfs: with long ones that the MLFQ has put off,
 * a change would cost more than it gains. */
static void a_change_to_fcfs_waits_for_long_requests_that_were_put_off(void **state)
{
    struct traffic t = {.kind = CONSTANT, .load = 0.9};
    struct contest *c = contest_of("skip-join-mlfq", true);
    struct scheduler *s = idle_scheduler();
    struct contest_verdict v;

    (void)state;
    for (uint32_t slot = 0; slot < 32; slot++)
        scheduler_submit(s, slot, &(struct sched_request){.n_known = 5000, .n_out_max = 5000}, 0);
    for (int i = 0; i < 4; i++) {
        note(c, &t, i ? CONTEST_N_NEW : CONTEST_N_MIN);
        v = contest_with(c, s, t.now_ns);
        assert_string_equal(v.best->policy, "fcfs");
        assert_false(v.is_change);
    }
    for (uint32_t slot = 0; slot < 32; slot++)
        scheduler_on_cancel(s, slot, t.now_ns);
    for (int i = 0; i < 2; i++) {
        note(c, &t, CONTEST_N_NEW);
        v = contest_with(c, s, t.now_ns);
    }
    assert_true(v.is_change);
    scheduler_destroy(s);
    contest_destroy(c);
}

/* Many requests come while no contest begins, and the last ones have not ended: the records between
 * those that were copied before and those that are remembered are gone. */
static void requests_that_were_forgotten_are_not_replayed_in_the_place_of_others(void **state)
{
    struct traffic t = {.kind = CONSTANT, .load = 0.5};
    struct contest *c = contest_of("fcfs", false);
    struct scheduler *s = idle_scheduler();
    struct contest_stats stats;
    uint32_t n_open = 1000;

    (void)state;
    note(c, &t, CONTEST_N_REQUESTS);
    (void)contest_with(c, s, t.now_ns);
    note(c, &t, CONTEST_N_REQUESTS);
    for (uint32_t i = 0; i < n_open; i++) {
        struct contest_request r = next_request(&t);
        (void)contest_arrived(c, &r, 0);
    }
    (void)contest_with(c, s, t.now_ns);
    contest_stats(c, &stats);
    assert_in_range(stats.candidates[0].result.n, CONTEST_N_REQUESTS - n_open,
                    CONTEST_N_REQUESTS - n_open + 64);
    scheduler_destroy(s);
    contest_destroy(c);
}

static void cancelled_requests_leave_the_shadows(void **state)
{
    struct traffic t = {.kind = CONSTANT, .load = 0.5};
    struct contest *c = contest_of("fcfs", false);
    struct scheduler *idle = idle_scheduler();
    struct contest_stats stats;

    (void)state;
    for (uint32_t i = 0; i < CONTEST_N_MIN; i++) {
        struct contest_request r = next_request(&t);
        contest_ended(c, contest_arrived(c, &r, 0), 0, i % 2 ? r.n_out : 0);
    }
    (void)contest_with(c, idle, t.now_ns);
    contest_stats(c, &stats);
    assert_int_equal(stats.candidates[0].result.n, CONTEST_N_MIN / 2);
    scheduler_destroy(idle);
    contest_destroy(c);
}

static void an_unknown_policy_is_refused(void **state)
{
    struct contest_config config = {.scheduler = scheduler_of("lottery"), .memory = ample};
    struct contest *c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(contest_create(&c, &config, &why), ERR_INVALID);
    assert_null(c);
    assert_non_null(strstr(buf_str(&why), "lottery"));
    buf_fini(&why);
    assert_non_null(strstr(contest_policies(), "|auto"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_request_takes_what_the_cost_model_says),
        cmocka_unit_test(virtual_time_has_the_pace_of_the_server),
        cmocka_unit_test(slices_do_not_change_the_result),
        cmocka_unit_test(the_better_policy_depends_on_the_tail),
        cmocka_unit_test(short_memory_costs_time_and_host_memory_saves_some),
        cmocka_unit_test(two_wins_in_a_row_change_the_policy),
        cmocka_unit_test(quiet_times_do_not_undo_what_a_burst_showed),
        cmocka_unit_test(without_load_all_policies_are_equal_and_none_changes),
        cmocka_unit_test(a_contest_that_only_compares_names_no_change),
        cmocka_unit_test(the_variant_in_force_is_one_candidate_only),
        cmocka_unit_test(requests_noted_during_a_contest_do_not_change_it),
        cmocka_unit_test(requests_that_never_fit_are_not_noted),
        cmocka_unit_test(a_backlog_stays_from_one_contest_to_the_next),
        cmocka_unit_test(requests_that_have_not_ended_are_in_the_shadows),
        cmocka_unit_test(shadows_do_not_run_ahead_of_an_overloaded_server),
        cmocka_unit_test(a_change_to_fcfs_waits_for_long_requests_that_were_put_off),
        cmocka_unit_test(requests_that_were_forgotten_are_not_replayed_in_the_place_of_others),
        cmocka_unit_test(cancelled_requests_leave_the_shadows),
        cmocka_unit_test(an_unknown_policy_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
