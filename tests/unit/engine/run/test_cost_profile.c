/* The profile of a simulated device with a known cost law: the steps that are run, their number,
 * and the resulting model. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"
#include "engine/run/cost_profile.h"

/* Of reading the weights, of a token's products, and of a token and a key it sees. */
#define FLOOR_S 0.1
#define TOKEN_S 1e-3
#define PAIR_S 2e-6

struct machine {
    double speed; /* all of it is so many times as quick */
    uint32_t n_runs, n_prefills, n_decodes;
    uint32_t fails_at; /* run; 0: never */
    bool is_busy;      /* some runs are held up */
    const struct cost_profile_shape *shape;
};

static double law(uint32_t n_cached, uint32_t n_new, uint32_t n_seqs)
{
    double n_rows = (double)n_new * n_seqs;

    return FLOOR_S + n_rows * TOKEN_S + n_rows * (n_cached + n_new / 2.0) * PAIR_S;
}

static enum status run(void *arg, uint32_t n_cached, uint32_t n_new, uint32_t n_seqs,
                       double *seconds)
{
    struct machine *m = arg;
    const struct cost_profile_shape *s = m->shape;

    assert_true(n_new >= 1 && n_seqs >= 1 && (n_new == 1 || n_seqs == 1));
    assert_true(n_new <= s->n_rows_max && n_seqs <= s->n_rows_max && n_seqs <= s->n_seqs_max);
    assert_true(n_cached + n_new <= s->n_tokens_max);
    assert_true((uint64_t)(n_cached + n_new) * n_seqs <= s->n_kv_tokens_max);
    m->n_runs++;
    *(n_new == 1 ? &m->n_decodes : &m->n_prefills) += 1;
    if (m->n_runs == m->fails_at)
        return ERR_INTERNAL;
    *seconds = law(n_cached, n_new, n_seqs) / m->speed;
    if (m->is_busy && rng_u32(1, m->n_runs) % 4 == 0)
        *seconds *= 1 + rng_u32(2, m->n_runs) % 1000 * 2e-3;
    return OK;
}

static struct cost_profile_shape shape_of(struct machine *m)
{
    return (struct cost_profile_shape){.n_rows_max = 512,
                                       .n_seqs_max = 16,
                                       .n_tokens_max = 4096,
                                       .n_kv_tokens_max = 40000,
                                       .estimate = {.weight_bytes = 1e9,
                                                    .flops_per_token = 1e9,
                                                    .flops_per_pair = 1e6,
                                                    .kv_bytes_per_token = 1e4,
                                                    .bytes_per_s = 2e10,
                                                    .flops_per_s = 1e12},
                                       .budget_s = 3,
                                       .run = run,
                                       .arg = m};
}

static double error(double got, double want)
{
    return fabs(got - want) / want;
}

/* Of single chunks and of decodes, at random shapes inside of the grid. */
static double worst_error(const struct cost_model *model, const struct machine *m, double *mean)
{
    double worst = 0, sum = 0;
    uint32_t n = 4000;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_cached = rng_u32(3, i) % 3584, n_new = 2 + rng_u32(4, i) % 511;
        uint32_t n_seqs = 1 + rng_u32(5, i) % 16;
        double e = i % 2 ? error(cost_model_seconds(model, n_cached, n_new),
                                 law(n_cached, n_new, 1) / m->speed)
                         : error(cost_model_decode_seconds(model, n_cached, n_seqs),
                                 law(n_cached, 1, n_seqs) / m->speed);
        worst = fmax(worst, e);
        sum += e / n;
    }
    *mean = sum;
    return worst;
}

static struct cost_model profile(struct machine *m, struct cost_profile_shape *shape,
                                 enum status want, struct cost_profile_result *result)
{
    struct cost_model model;

    m->shape = shape;
    assert_int_equal(cost_profile_measure(&model, shape, result), want);
    for (uint32_t i = 0; i < model.n_cached; i++) {
        for (uint32_t j = 0; j < model.n_new; j++)
            assert_true(isfinite(model.seconds[i][j]) && model.seconds[i][j] > 0);
        for (uint32_t j = 0; j < model.n_batch; j++)
            assert_true(isfinite(model.decode[i][j]) && model.decode[i][j] > 0);
    }
    return model;
}

static void a_quick_device_is_measured_everywhere_and_met(void **state)
{
    struct machine m = {.speed = 300};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    struct cost_model model = profile(&m, &shape, OK, &r);
    double mean;

    (void)state;
    /* new 8 to 512 and batch 1 to 16, behind 0, 256, ..., 2048, 3584; all but 16 behind 3584 fit */
    assert_int_equal(r.n_prefill, 6 * 7);
    assert_int_equal(r.n_decode, 6 * 5 - 1);
    assert_true(r.is_measured && !r.is_loaded && !r.is_kept);
    assert_true(worst_error(&model, &m, &mean) < 0.03); /* of straight lines between points */
    assert_true(mean < 0.01);
    /* A long prefill is the sum of its chunks. */
    double sum = 0;
    for (uint32_t i = 0; i < 4096; i += 512)
        sum += law(i, 512, 1) / m.speed;
    assert_true(error(cost_model_seconds(&model, 0, 4096), sum) < 0.02);
}

/* The budget of three seconds is enough for 28 steps of this device. */
static void a_slow_device_keeps_the_budget_and_the_law_says_the_rest(void **state)
{
    struct machine m = {.speed = 1};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    struct cost_model model = profile(&m, &shape, OK, &r);
    double mean;

    (void)state;
    assert_true(r.seconds <= shape.budget_s);
    assert_true(r.n_prefill >= 2 && r.n_decode >= 2);
    assert_true(m.n_runs < 30);
    assert_true(worst_error(&model, &m, &mean) < 0.35);
    assert_true(mean < 0.1);
}

static void a_very_slow_device_runs_one_of_each(void **state)
{
    struct machine m = {.speed = 0.01};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    struct cost_model model = profile(&m, &shape, OK, &r);

    (void)state;
    assert_int_equal(m.n_prefills, 1);
    assert_int_equal(m.n_decodes, 2); /* the first finds nothing in any cache */
    assert_true(error(cost_model_decode_seconds(&model, 0, 1), law(0, 1, 1) / m.speed) < 1e-9);
    assert_true(error(cost_model_seconds(&model, 0, 8), law(0, 8, 1) / m.speed) < 1e-9);
}

static void a_budget_is_never_passed_by_much(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        struct machine m = {.speed = exp2(i % 20) / 16, .is_busy = i % 2};
        struct cost_profile_shape shape = shape_of(&m);
        struct cost_profile_result r;

        shape.budget_s = 0.2 + i / 20.0;
        profile(&m, &shape, OK, &r);
        double forced = 3 * (2 * law(0, 1, 1) + law(0, 8, 1)) / m.speed;
        assert_true(r.seconds <= fmax(2 * shape.budget_s, forced));
        assert_true(m.n_prefills > 0 && m.n_decodes > 0);
    }
}

static void runs_that_are_held_up_are_seen_through(void **state)
{
    struct machine m = {.speed = 300, .is_busy = true};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    struct cost_model model = profile(&m, &shape, OK, &r);
    double mean;

    (void)state;
    assert_true(worst_error(&model, &m, &mean) < 0.25);
    assert_true(mean < 0.02);
}

static void more_work_never_takes_less_time(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 10; i++) {
        struct machine m = {.speed = exp2(2 * i), .is_busy = true, .fails_at = 3 + 4 * i};
        struct cost_profile_shape shape = shape_of(&m);
        struct cost_profile_result r;
        struct cost_model model;

        m.shape = &shape;
        (void)!cost_profile_measure(&model, &shape, &r); /* some fail: see below */
        for (uint32_t c = 0; c < 5000; c += 97)
            for (uint32_t n = 1; n < 40; n++) {
                assert_true(cost_model_decode_seconds(&model, c, n + 1) >=
                            (1 - 1e-12) * cost_model_decode_seconds(&model, c, n));
                assert_true(cost_model_seconds(&model, c, 50 * n + 50) >=
                            (1 - 1e-12) * cost_model_seconds(&model, c, 50 * n));
            }
    }
}

static void a_failure_ends_it_and_keeps_what_was_found(void **state)
{
    struct machine m = {.speed = 300, .fails_at = 1};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    struct cost_model model = profile(&m, &shape, ERR_INTERNAL, &r), estimate;

    (void)state;
    cost_model_estimate(&estimate, &shape.estimate);
    assert_memory_equal(&model, &estimate, sizeof model);
    assert_true(!r.is_measured && r.n_prefill == 0 && r.n_decode == 0);
    for (uint32_t at = 2; at < 100; at += 7) {
        m = (struct machine){.speed = 300, .fails_at = at};
        model = profile(&m, &shape, ERR_INTERNAL, &r);
        assert_int_equal(m.n_runs, at); /* none after it */
        if (at > 7)                     /* the five runs of the floor were good */
            assert_true(error(cost_model_decode_seconds(&model, 0, 1), law(0, 1, 1) / m.speed) <
                        1e-9);
    }
}

/* Of every size that an engine can have, to the smallest: run() asserts that no limit is passed. */
static void odd_engines_get_a_model_too(void **state)
{
    static const uint32_t sizes[] = {1, 2, 5, 33, 1000, 131072, 1048576};
    const uint32_t n = sizeof sizes / sizeof *sizes;

    (void)state;
    for (uint32_t i = 0; i < n * n; i++) {
        struct machine m = {.speed = 1e4};
        struct cost_profile_shape shape = shape_of(&m);
        struct cost_profile_result r;

        shape.n_rows_max = sizes[i % n];
        shape.n_tokens_max = sizes[i / n];
        shape.n_seqs_max = sizes[(i * 7) % 6];
        shape.n_kv_tokens_max = i % 3 ? 64 : 4096;
        profile(&m, &shape, OK, &r);
        assert_int_equal(r.n_decode > 0, true);
    }
    struct machine m = {.speed = 1e4};
    struct cost_profile_shape shape = shape_of(&m);
    struct cost_profile_result r;
    shape.n_kv_tokens_max = 31; /* not one block */
    profile(&m, &shape, OK, &r);
    assert_false(r.is_measured);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quick_device_is_measured_everywhere_and_met),
        cmocka_unit_test(a_slow_device_keeps_the_budget_and_the_law_says_the_rest),
        cmocka_unit_test(a_very_slow_device_runs_one_of_each),
        cmocka_unit_test(a_budget_is_never_passed_by_much),
        cmocka_unit_test(runs_that_are_held_up_are_seen_through),
        cmocka_unit_test(more_work_never_takes_less_time),
        cmocka_unit_test(a_failure_ends_it_and_keeps_what_was_found),
        cmocka_unit_test(odd_engines_get_a_model_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
