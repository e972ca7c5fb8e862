/* Predictions of the first and the last token against a scheduler that runs in virtual time. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "engine/sched/estimate.h"
#include "tests/unit/engine/sched/sched_world.h"

#define N_SLOTS 24
#define SPARE (N_SLOTS - 1)

/* When a job of the world was submitted, got its first token and ended; seconds. */
struct times {
    double came_s, first_s, end_s;
};

/* Run a step that takes what the cost model expects. */
static void step(struct world *w)
{
    struct sched_view view = world_view(w);
    struct plan plan;

    scheduler_plan(w->s, w->now_ns, &view, &plan);
    world_begin(w, &plan);
    if (plan.n_items > 0)
        w->step_s = plan.step_s;
    world_end(w);
}

static struct times run_to_end(struct world *w, uint32_t slot)
{
    const struct world_job *j = &w->jobs[slot];
    struct times t = {.came_s = world_seconds(w->now_ns)};

    while (j->is_live) {
        step(w);
        if (t.first_s == 0 && (!j->is_live || j->n_known > j->r.n_known))
            t.first_s = world_seconds(w->now_ns);
    }
    t.end_s = world_seconds(w->now_ns);
    return t;
}

/* Every job generates as many tokens as it may. */
static double to_the_limit(const void *arg, uint32_t slot, double p)
{
    (void)arg;
    (void)slot;
    (void)p;
    return INFINITY;
}

static void open_world(struct world *w, const char *policy, uint64_t seed)
{
    world_init(w, policy, N_SLOTS);
    w->seed = seed;
    w->config.step_s_max = 0.3;
    w->is_checked = false;
    world_open(w);
}

/* Submit jobs of random lengths, with steps between them. The last one is in slot n - 1. */
static void submit_many(struct world *w, uint32_t n)
{
    for (uint32_t slot = 0; slot < n; slot++) {
        world_submit(w, slot, 1 + world_draw(w, 900), 1 + world_draw(w, 40));
        for (uint32_t i = world_draw(w, 3); slot + 1 < n && i > 0; i--)
            step(w);
    }
}

static void fcfs_with_known_lengths_is_predicted_exactly(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world w;
        struct estimator *m;
        struct estimate e;
        uint32_t last = (uint32_t)(seed % 16);

        open_world(&w, "fcfs", seed);
        assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, UINT32_MAX));
        submit_many(&w, last + 1);
        estimate_slot(m, last, 0, -1, &e);
        struct times t = run_to_end(&w, last);
        assert_near(e.ttft_s, t.first_s - t.came_s, 1e-6);
        assert_near(e.e2e_s, t.end_s - t.came_s, 1e-6);
        estimator_destroy(m);
        world_close(&w);
    }
}

static void under_mlfq_the_error_stays_small(void **state)
{
    double ttft = 0, e2e = 0;
    uint32_t n = 60;

    (void)state;
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct world w;
        struct estimator *m;
        struct estimate e;
        uint32_t last = (uint32_t)(seed % 16);

        open_world(&w, "skip-join-mlfq", seed);
        assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
        submit_many(&w, last + 1);
        estimate_slot(m, last, 0, -1, &e);
        struct times t = run_to_end(&w, last);
        double ttft_error = fabs(e.ttft_s - (t.first_s - t.came_s)) / (t.first_s - t.came_s);
        double e2e_error = fabs(e.e2e_s - (t.end_s - t.came_s)) / (t.end_s - t.came_s);
        ttft += ttft_error;
        e2e += e2e_error;
        estimator_destroy(m);
        world_close(&w);
    }
    assert_true(ttft / n < 0.03);
    assert_true(e2e / n < 0.2);
}

static void a_request_that_is_not_submitted_gets_the_same_and_leaves_nothing(void **state)
{
    static const char *const policies[] = {"fcfs", "skip-join-mlfq", "srpt"};

    (void)state;
    for (int p = 0; p < 3; p++) {
        struct sched_request r = {.n_known = 200, .n_cached = 40, .n_out_max = 9, .tenant = 3};
        struct estimate asked, again, submitted;
        struct estimator *m;
        struct world w;

        open_world(&w, policies[p], 7);
        assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
        submit_many(&w, 12);
        struct sched_view view = world_view(&w);
        struct plan plan;
        scheduler_plan(w.s, w.now_ns, &view, &plan);
        estimate_request(m, SPARE, &r, w.now_ns, &asked);
        estimate_request(m, SPARE, &r, w.now_ns, &again);
        assert_memory_equal(&asked, &again, sizeof asked);
        assert_true(scheduler_is_current(w.s, &plan));
        scheduler_check(w.s);
        world_submit_as(&w, SPARE, 200, 9, &r);
        estimate_slot(m, SPARE, 0, -1, &submitted);
        assert_memory_equal(&asked, &submitted, sizeof asked);
        estimator_destroy(m);
        world_close(&w);
    }
}

/* Jobs of four tenants and of sessions that come again; `asks`: with questions in between, of known
 * and unknown tenants, sessions, limits and prompts. Returns the time of the last end. */
static uint64_t run_with_questions(const char *policy, const char *variant, bool asks)
{
    struct estimator *m;
    struct world w;

    world_init(&w, policy, N_SLOTS);
    w.seed = 5;
    w.config.variant = variant;
    w.is_checked = false;
    world_open(&w);
    assert_ok(estimator_create(&m, w.s, NULL, NULL, ESTIMATE_N_STEPS));
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t slot = i % SPARE;
        struct sched_request r = {.tenant = i % 4, .session = i % 3 ? 1 + i % 5 : 0};
        while (w.jobs[slot].is_live)
            step(&w);
        world_submit_as(&w, slot, 1 + world_draw(&w, 500), 1 + world_draw(&w, 30), &r);
        for (uint32_t k = 0; asks && k < 8; k++) {
            struct sched_request asked = {.n_known = 1u << (i + k) % 12,
                                          .n_out_max = 1u << (i / 3 + k) % 12,
                                          .has_limit = k % 2,
                                          .priority = (int32_t)(k % 3) - 1,
                                          .tenant = i % 7 + (k == 7) * (1000 + i),
                                          .session = k % 3 ? i % 9 + (k == 4) * (1000 + i) : 0,
                                          .slo_ttft_s = k == 2 ? 10 : 0};
            struct estimate e;
            estimate_request(m, SPARE, &asked, w.now_ns + 40 * UINT64_C(1000000000), &e);
            assert_true(e.ttft_s > 0);
        }
        scheduler_check(w.s);
        step(&w);
    }
    struct sched_session session;
    assert_false(scheduler_session(w.s, 1004, &session));
    assert_true(scheduler_session(w.s, 2, &session));
    struct length_traits unknown = {
        .tenant = 3, .n_prompt = 2048, .n_out_max = 2048, .has_limit = true};
    assert_int_equal(lengths_class(scheduler_lengths(w.s), &unknown), 0); /* the root */
    world_run_until_empty(&w, 100000);
    uint64_t end_ns = w.now_ns;
    estimator_destroy(m);
    world_close(&w);
    return end_ns * 1000003 + w.n_preempted;
}

static void questions_change_nothing(void **state)
{
    static const char *const orders[][2] = {{"fcfs", ""},
                                            {"skip-join-mlfq", "tarn"},
                                            {"skip-join-mlfq", "learned"},
                                            {"skip-join-mlfq", "paper"},
                                            {"srpt", ""}};

    (void)state;
    for (uint32_t i = 0; i < sizeof orders / sizeof *orders; i++)
        assert_int_equal(run_with_questions(orders[i][0], orders[i][1], true),
                         run_with_questions(orders[i][0], orders[i][1], false));
}

/* The first six jobs copy: each of their decodes yields five tokens. The last job, of the same
 * kind, waits for their places. */
static void steps_that_yield_several_tokens_are_expected_to(void **state)
{
    static const char *const policies[] = {"fcfs", "skip-join-mlfq"};

    (void)state;
    for (uint32_t p = 0; p < 2; p++) {
        struct estimator *m;
        struct estimate e;
        struct world w;

        open_world(&w, policies[p], 7);
        assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, UINT32_MAX));
        for (uint32_t slot = 0; slot < 6; slot++) {
            world_submit(&w, slot, 50, 400);
            w.jobs[slot].n_right = 4;
        }
        for (uint32_t i = 0; i < 40; i++)
            step(&w);
        assert_true(scheduler_yield(w.s) > 4);
        world_submit(&w, 6, 50, 200);
        w.jobs[6].n_right = 4;
        estimate_slot(m, 6, 0, -1, &e);
        struct times t = run_to_end(&w, 6);
        assert_near(e.ttft_s / (t.first_s - t.came_s), 1, 0.1);
        assert_near(e.e2e_s / (t.end_s - t.came_s), 1, 0.2);
        estimator_destroy(m);
        world_close(&w);
    }
}

static void the_time_since_the_submission_is_included(void **state)
{
    struct world w;
    struct estimator *m;
    struct estimate now, later;

    (void)state;
    open_world(&w, "fcfs", 3);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    submit_many(&w, 6);
    estimate_slot(m, 5, 0, -1, &now);
    estimate_slot(m, 5, 2, -1, &later);
    assert_near(later.ttft_s, now.ttft_s + 2, 1e-9);
    assert_near(later.e2e_s, now.e2e_s + 2, 1e-9);
    estimator_destroy(m);
    world_close(&w);
}

static void predictions_follow_the_speed_of_the_last_steps(void **state)
{
    struct world w;
    struct estimator *m;
    struct estimate before, slow, after;

    (void)state;
    open_world(&w, "fcfs", 3);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    submit_many(&w, 6);
    estimate_slot(m, 5, 0, -1, &before);
    assert_near(estimator_pace(m), 1, 1e-9);
    for (int i = 0; i < 200; i++)
        estimator_note_step(m, 0.01, 0.03);
    assert_near(estimator_pace(m), 3, 1e-6);
    estimate_slot(m, 5, 0, -1, &slow);
    for (int i = 0; i < 2000; i++)
        estimator_note_step(m, 0.01, 0.01);
    estimate_slot(m, 5, 0, -1, &after);
    assert_near(slow.ttft_s, 3 * before.ttft_s, 1e-6);
    assert_near(after.e2e_s, before.e2e_s, 1e-6);
    estimator_destroy(m);
    world_close(&w);
}

/* --- cost --- */

struct counted {
    uint32_t n_calls;
    double n_tokens;
};

static double count_tokens(const void *arg, uint32_t slot, double p)
{
    struct counted *c = (struct counted *)(uintptr_t)arg;

    (void)slot;
    assert_true(p > 0 && p < 1);
    c->n_calls++;
    return c->n_tokens;
}

#define N_CROWD 100000

static void a_hundred_thousand_that_wait_cost_no_more_than_a_hundred(void **state)
{
    struct counted counted = {0, 20};
    struct estimate e;
    struct estimator *m;
    struct world w;

    (void)state;
    world_init(&w, "fcfs", N_CROWD);
    w.is_checked = false;
    world_open(&w);
    assert_ok(estimator_create(&m, w.s, count_tokens, &counted, ESTIMATE_N_STEPS));
    for (uint32_t slot = 0; slot < N_CROWD; slot++)
        scheduler_submit(w.s, slot, &(struct sched_request){.n_known = 101, .n_out_max = 1000}, 0);
    estimate_slot(m, N_CROWD - 1, 0, -1, &e);
    assert_int_equal(e.n_before, N_CROWD - 1);
    assert_true(counted.n_calls <= ESTIMATE_N_AHEAD + ESTIMATE_N_SAMPLES + 2);
    /* Each adds 91 ms to the steps, and a quarter of 20 decodes of 10 ms. */
    assert_near(e.ttft_s / N_CROWD, 0.091 + 20 * 0.010 / 4, 0.01);
    estimator_destroy(m);
    scheduler_destroy(w.s); /* 100,000 cancellations would test nothing */
    w.s = NULL;
    world_close(&w);
}

/* --- a server under load --- */

#define N_LOAD_SLOTS 400
#define N_LOAD 1500
#define MEAN_OUT 40

static double exponential(const void *arg, uint32_t slot, double p)
{
    (void)slot;
    return -*(const double *)arg * log1p(-p);
}

static double draw_exponential(struct world *w, double mean)
{
    return -mean * log((world_draw(w, 1u << 30) + 0.5) * 0x1p-30);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median relative error of the first token under Poisson arrivals at a share of the capacity.
 * Answers have exponential lengths that the estimator does not know; the variant learned learns
 * them. */
static double median_error(const char *policy, const char *variant, double load, uint64_t seed)
{
    static struct estimate estimates[N_LOAD_SLOTS];
    static double errors[N_LOAD];
    double mean_out = MEAN_OUT, next_s = 0;
    uint32_t n = 0, slot = 0;
    struct estimator *m;
    struct world w;

    world_init(&w, policy, N_LOAD_SLOTS);
    w.seed = seed;
    w.config.variant = variant;
    w.config.n_running_max = 8;
    w.config.step_s_max = 0.1;
    w.token_s = 0.0002;
    w.is_checked = false;
    world_open(&w);
    assert_ok(estimator_create(&m, w.s, variant ? NULL : exponential, &mean_out, ESTIMATE_N_STEPS));
    /* A request takes 40 decodes of an eighth of 10 ms, and what its prompt adds to a step: 0.2 ms
     * a token, less the 10 ms that the step takes anyway. */
    double between_s = (MEAN_OUT * 0.010 / 8 + 150 * 0.0002 * exp(-50.0 / 150)) / load;
    while (n < N_LOAD) {
        while (next_s <= world_seconds(w.now_ns)) {
            while (w.jobs[slot].is_live)
                slot = (slot + 1) % N_LOAD_SLOTS;
            uint32_t n_prompt = 1 + (uint32_t)draw_exponential(&w, 150);
            double n_out = draw_exponential(&w, MEAN_OUT);
            world_submit_as(&w, slot, n_prompt, 1 + (uint32_t)n_out,
                            &(struct sched_request){.n_out_max = 2000});
            estimate_slot(m, slot, world_seconds(w.now_ns) - next_s, -1, &estimates[slot]);
            w.jobs[slot].came_ns = (uint64_t)(next_s * 1e9);
            next_s += draw_exponential(&w, between_s);
        }
        if (w.n_live == 0) {
            world_sleep(&w, next_s - world_seconds(w.now_ns) + 1e-9);
            continue;
        }
        step(&w);
        for (uint32_t i = 0; i < w.plan.n_items && n < N_LOAD; i++) {
            struct world_job *j = &w.jobs[w.items[i].slot];
            double ttft_s = world_seconds(w.now_ns - j->came_ns);
            if (j->is_live ? j->n_known != j->r.n_known + 1 : j->n_out > 1)
                continue; /* not its first token */
            if (j->token_ns != w.now_ns && j->is_live)
                continue;
            errors[n++] = estimator_note_ttft(m, &estimates[w.items[i].slot], ttft_s);
        }
    }
    qsort(errors, n, sizeof *errors, by_value);
    estimator_destroy(m);
    world_close(&w);
    return errors[n / 2];
}

static void under_load_the_median_error_is_below_15_percent(void **state)
{
    static const char *const policies[][2] = {
        {"skip-join-mlfq", NULL}, {"skip-join-mlfq", "learned"}, {"fcfs", NULL}};
    static const double loads[] = {0.5, 0.7, 0.9};

    (void)state;
    for (int p = 0; p < 3; p++)
        for (int l = 0; l < 3; l++) {
            double error = median_error(policies[p][0], policies[p][1], loads[l], 11);
            if (!(error < 0.15))
                fail_msg("%s at %g: %g", policies[p][0], loads[l], error);
        }
}

/* --- places that become free --- */

/* With four running answers of unknown length, the first place is free after about a quarter of the
 * mean length, not after the mean. */
static void unknown_lengths_end_one_after_the_other(void **state)
{
    double mean = 400;
    struct estimate e;
    struct estimator *m;
    struct world w;

    (void)state;
    open_world(&w, "fcfs", 1);
    assert_ok(estimator_create(&m, w.s, exponential, &mean, ESTIMATE_N_STEPS));
    for (uint32_t slot = 0; slot < 4; slot++)
        world_submit(&w, slot, 10, 4000);
    for (int i = 0; i < 6; i++)
        step(&w);
    world_submit(&w, 4, 10, 1000);
    estimate_slot(m, 4, 0, -1, &e);
    assert_true(e.waits);
    assert_true(e.ttft_s > 0.4 && e.ttft_s < 2); /* the mean length takes 4 s */
    estimator_destroy(m);
    world_close(&w);
}

/* --- the correction --- */

/* Actual times are the prediction times a lognormal factor with median 1.6. */
static void half_and_nine_tenths_of_the_requests_are_served_as_predicted(void **state)
{
    uint32_t n = 4000, n_median = 0, n_high = 0, n_counted = 0;
    struct estimator_stats stats;
    struct estimate e;
    struct estimator *m;
    struct world w;

    (void)state;
    open_world(&w, "fcfs", 1);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    world_submit(&w, 0, 500, 10);
    for (uint32_t i = 0; i < n; i++) {
        estimate_slot(m, 0, 0.5, -1, &e);
        double u = (rng_u32(5, 2 * i) + 0.5) * 0x1p-32, v = rng_u32(5, 2 * i + 1) * 0x1p-32;
        double factor = 1.6 * exp(0.3 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        double ttft_s = 0.5 + factor * e.raw_ttft_s, e2e_s = 0.5 + factor * e.raw_e2e_s;
        if (i >= 200) {
            n_counted++;
            n_median += ttft_s <= e.ttft_s;
            n_high += e2e_s <= e.e2e_high_s;
        }
        assert_near(estimator_note_ttft(m, &e, ttft_s), fabs(e.ttft_s - ttft_s) / ttft_s, 1e-9);
        (void)estimator_note_e2e(m, &e, e2e_s);
    }
    assert_near((double)n_median / n_counted, 0.5, 0.03);
    assert_near((double)n_high / n_counted, 0.9, 0.03);
    estimator_stats(m, &stats);
    assert_near(stats.ttft[0].median, 1.6, 0.16);
    assert_near(stats.ttft[1].median, 1, 0); /* of requests that wait for a place: none seen */
    assert_int_equal(stats.ttft[0].n, n);
    estimator_destroy(m);
    world_close(&w);
}

/* Submit to slot 0 of an empty world, predict, let the first token take `factor` times as long, and
 * end. Returns predicted / simulated. */
static double predicted_alone(struct world *w, struct estimator *m, uint32_t n_prompt,
                              double factor)
{
    struct estimate e;

    world_submit(w, 0, n_prompt, 2);
    estimate_slot(m, 0, 0, -1, &e);
    if (factor > 0)
        (void)estimator_note_ttft(m, &e, factor * e.raw_ttft_s);
    (void)run_to_end(w, 0);
    return e.ttft_s / e.raw_ttft_s;
}

/* Long prompts are overtaken by later requests, and take four times what the walk says. */
static void requests_that_are_overtaken_have_a_correction_of_their_own(void **state)
{
    struct sched_request question = {.n_known = 800, .n_out_max = 2};
    struct estimator *m;
    struct estimate e;
    struct world w;

    (void)state;
    world_init(&w, "skip-join-mlfq", N_SLOTS);
    w.config.variant = "learned";
    w.is_checked = false;
    world_open(&w);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    for (uint32_t i = 0; i < 300; i++) {
        (void)predicted_alone(&w, m, 10, 1);
        (void)predicted_alone(&w, m, 800, 4);
    }
    for (uint32_t i = 0; i < 200; i++) { /* questions are not among the last requests */
        estimate_request(m, SPARE, &question, w.now_ns, &e);
        assert_near(e.ttft_s / e.raw_ttft_s, 4, 0.4);
    }
    assert_near(predicted_alone(&w, m, 10, 0), 1, 0.1);
    assert_near(predicted_alone(&w, m, 800, 0), 4, 0.4);
    estimator_destroy(m);
    world_close(&w);
}

/* Of three that wait, the last one takes three times what the walk says. */
static void requests_behind_others_have_a_correction_of_their_own(void **state)
{
    struct estimate first, last;
    struct estimator *m;
    struct world w;

    (void)state;
    open_world(&w, "fcfs", 1);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    for (uint32_t slot = 0; slot < 3; slot++)
        world_submit(&w, slot, 100, 10);
    for (uint32_t i = 0; i < 300; i++) {
        estimate_slot(m, 0, 0, -1, &first);
        estimate_slot(m, 2, 0, -1, &last);
        (void)estimator_note_ttft(m, &first, first.raw_ttft_s);
        (void)estimator_note_ttft(m, &last, 3 * last.raw_ttft_s);
    }
    assert_true(!first.waits && !last.waits);
    assert_near(first.ttft_s / first.raw_ttft_s, 1, 0.1);
    assert_near(last.ttft_s / last.raw_ttft_s, 3, 0.3);
    estimator_destroy(m);
    world_close(&w);
}

static void a_prompt_without_an_answer_ends_with_its_first_step(void **state)
{
    struct world w;
    struct estimator *m;
    struct estimate e;

    (void)state;
    open_world(&w, "skip-join-mlfq", 1);
    assert_ok(estimator_create(&m, w.s, to_the_limit, NULL, ESTIMATE_N_STEPS));
    scheduler_submit(w.s, 0, &(struct sched_request){.n_known = 100}, 0);
    estimate_slot(m, 0, 0, -1, &e);
    assert_near(e.ttft_s, 0.1, 1e-9);
    assert_near(e.e2e_s, 0.1, 1e-9);
    estimator_destroy(m);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fcfs_with_known_lengths_is_predicted_exactly),
        cmocka_unit_test(under_mlfq_the_error_stays_small),
        cmocka_unit_test(a_request_that_is_not_submitted_gets_the_same_and_leaves_nothing),
        cmocka_unit_test(questions_change_nothing),
        cmocka_unit_test(steps_that_yield_several_tokens_are_expected_to),
        cmocka_unit_test(the_time_since_the_submission_is_included),
        cmocka_unit_test(predictions_follow_the_speed_of_the_last_steps),
        cmocka_unit_test(a_hundred_thousand_that_wait_cost_no_more_than_a_hundred),
        cmocka_unit_test(under_load_the_median_error_is_below_15_percent),
        cmocka_unit_test(unknown_lengths_end_one_after_the_other),
        cmocka_unit_test(half_and_nine_tenths_of_the_requests_are_served_as_predicted),
        cmocka_unit_test(requests_that_are_overtaken_have_a_correction_of_their_own),
        cmocka_unit_test(requests_behind_others_have_a_correction_of_their_own),
        cmocka_unit_test(a_prompt_without_an_answer_ends_with_its_first_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
