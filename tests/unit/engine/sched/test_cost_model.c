#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/rng.h"
#include "engine/sched/cost_model.h"

static const uint32_t cached[] = {0, 100, 300}, fresh[] = {10, 20};
static const double seconds[] = {1, 2, 3, 5, 7, 9}; /* rows: cached 0, 100, 300 */
static const uint32_t batch[] = {1, 4};
static const double decode[] = {0.5, 0.8, 0.6, 1.2, 0.8, 2.0};
static const struct cost_points points = {cached, fresh, batch, 3, 2, 2, seconds, decode};

static struct cost_model small(void)
{
    struct cost_model m;

    assert_ok(cost_model_init(&m, &points, NULL));
    return m;
}

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-12)
        fail_msg("%.17g, not %.17g", got, want);
}

static void assert_seconds(const struct cost_model *m, uint32_t n_cached, uint32_t n_new,
                           double want)
{
    double got = cost_model_seconds(m, n_cached, n_new);

    if (fabs(got - want) > 1e-12)
        fail_msg("T(%u, %u) = %.17g, not %.17g", n_cached, n_new, got, want);
}

static void points_of_the_grid_are_exact(void **state)
{
    struct cost_model m = small();

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 2; j++) {
            assert_seconds(&m, cached[i], fresh[j], seconds[2 * i + j]);
            assert_near(cost_model_decode_seconds(&m, cached[i], batch[j]), decode[2 * i + j]);
        }
}

static void between_points_the_formula_of_the_paper_holds(void **state)
{
    struct cost_model m = small();

    (void)state;
    /* cached 25: t = 1/4; new 15: u = 1/2. (3/4)(1/2) 1 + (1/4)(1/2) 3 + (3/4)(1/2) 2 + (1/8) 5 */
    assert_seconds(&m, 25, 15, 0.375 + 0.375 + 0.75 + 0.625);
    assert_seconds(&m, 200, 10, 5);
    assert_seconds(&m, 100, 15, 4);
    /* batch 2: u = 1/3. (3/4)(2/3) 0.5 + (1/4)(2/3) 0.6 + (3/4)(1/3) 0.8 + (1/4)(1/3) 1.2 */
    assert_near(cost_model_decode_seconds(&m, 25, 2), 0.25 + 0.1 + 0.2 + 0.1);
}

static void outside_the_grid_the_model_extrapolates_as_documented(void **state)
{
    struct cost_model m = small();
    const uint32_t a[] = {0, 10}, b[] = {10, 20};
    const double falls[] = {4, 2, 4, 2}; /* a noisy profile: more work, less time */

    (void)state;
    assert_seconds(&m, 100, 0, 0);
    assert_seconds(&m, 0, 1, 1);  /* below: the first point */
    assert_seconds(&m, 0, 40, 4); /* above: the line goes on */
    assert_seconds(&m, 500, 10, 11);
    assert_seconds(&m, 500, 30, 15); /* both: 7 9 9 11 13 ... along each axis */
    assert_near(cost_model_decode_seconds(&m, 100, 0), 0);
    assert_near(cost_model_decode_seconds(&m, 0, 7), 1.1);   /* 0.1 more for each sequence */
    assert_near(cost_model_decode_seconds(&m, 500, 4), 2.8); /* 0.4 more for each 100 tokens */
    struct cost_points noisy = {
        .cached = a, .n_cached = 2, .new_tokens = b, .n_new = 2, .seconds = falls};
    assert_ok(cost_model_init(&m, &noisy, NULL));
    assert_seconds(&m, 0, 100, 2); /* never below the last point */
}

static void a_grid_that_makes_no_sense_is_refused_with_words(void **state)
{
    const uint32_t down[] = {10, 10}, zero[] = {0, 10}, two[] = {2, 3};
    const double bad[] = {1, 2, 3, (double)NAN, 4, 5};
    struct cost_points no_axis = points, no_new = points, short_axis = points, no_number = points,
                       no_one = points, no_decode = points;
    const struct {
        struct cost_points *p;
        const char *words;
    } cases[] = {{&no_axis, "cached"},          {&no_new, "new"},   {&short_axis, "cached"},
                 {&no_number, "seconds[1][1]"}, {&no_one, "batch"}, {&no_decode, "decode[1][1]"}};
    struct cost_model m;
    struct buf why;

    (void)state;
    no_axis.cached = down;
    no_axis.n_cached = 2;
    no_new.new_tokens = zero;
    short_axis.n_cached = 1;
    no_number.seconds = bad;
    no_one.batch = two;
    no_decode.decode = bad;
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_init(&why, BUF_WHY_MAX);
        assert_int_equal(cost_model_init(&m, cases[i].p, &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), cases[i].words));
        buf_fini(&why);
    }
}

static void without_a_decode_grid_decodes_are_like_prefills(void **state)
{
    struct cost_points p = {
        .cached = cached, .n_cached = 3, .new_tokens = fresh, .n_new = 2, .seconds = seconds};
    struct cost_model m;

    (void)state;
    assert_ok(cost_model_init(&m, &p, NULL));
    assert_near(cost_model_decode_seconds(&m, 100, 16), cost_model_seconds(&m, 100, 16));
    assert_near(cost_model_decode_seconds(&m, 0, 1), 1);
}

static void a_correction_moves_the_answer_by_the_rate(void **state)
{
    static const uint32_t at[][2] = {{0, 10}, {25, 15}, {300, 20}, {130, 12}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct cost_model m = small();
        double before = cost_model_seconds(&m, at[i][0], at[i][1]);

        cost_model_correct(&m, at[i][0], at[i][1], 2 * before);
        assert_seconds(&m, at[i][0], at[i][1], before * (1 + COST_MODEL_RATE));
    }
}

static void corrections_converge_and_wild_ones_are_bounded(void **state)
{
    struct cost_model m = small();
    double before = cost_model_seconds(&m, 50, 15);

    (void)state;
    cost_model_correct(&m, 50, 15, 1e9);
    assert_seconds(&m, 50, 15, before * (1 + 3 * COST_MODEL_RATE));
    cost_model_correct(&m, 50, 15, 0);
    cost_model_correct(&m, 50, 15, (double)NAN);
    cost_model_correct(&m, 50, 0, 5);
    assert_seconds(&m, 50, 15, before * (1 + 3 * COST_MODEL_RATE)); /* no observations */
    for (int i = 0; i < 500; i++)
        cost_model_correct(&m, 50, 15, 0.5);
    assert_true(fabs(cost_model_seconds(&m, 50, 15) - 0.5) < 1e-6);
    for (int i = 0; i < 2000; i++)
        cost_model_correct(&m, (uint32_t)i % 400, 1 + (uint32_t)i % 30, 1e-9);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 2; j++)
            assert_true(m.seconds[i][j] > 0);
}

static void a_step_takes_its_decodes_and_the_chunks_time_above_the_floor(void **state)
{
    struct cost_model m = small();
    struct cost_step step = {0};

    (void)state;
    assert_near(cost_model_step_seconds(&m, &step), 0);
    cost_step_add(&step, &m, 100, 0);
    assert_near(cost_model_step_seconds(&m, &step), 0); /* nothing is no work */
    cost_step_add(&step, &m, 100, 10);
    assert_near(cost_model_step_seconds(&m, &step), 3); /* the cost of a chunk alone is unchanged */
    cost_step_add(&step, &m, 0, 20);
    assert_near(cost_model_step_seconds(&m, &step), 3 + 2 - 0.5);
    for (uint32_t i = 0; i < 4; i++)
        cost_step_add(&step, &m, 50 * i, 1); /* 75 behind, in the mean */
    assert_near(cost_model_step_seconds(&m, &step), 0.25 * 0.8 + 0.75 * 1.2 + 3 - 0.5 + 2 - 0.5);
}

static struct cost_step random_step(const struct cost_model *m, uint32_t seed)
{
    struct cost_step step = {0};

    for (uint32_t i = 0, n = rng_u32(seed, 0) % 6; i < n; i++)
        cost_step_add(&step, m, rng_u32(seed, 1 + i) % 500,
                      i < 4 ? 1 : 2 + rng_u32(seed, 9 + i) % 20);
    return step;
}

static double seconds_with(const struct cost_model *m, struct cost_step step, uint32_t n_cached,
                           uint32_t n)
{
    cost_step_add(&step, m, n_cached, n);
    return cost_model_step_seconds(m, &step);
}

/* Of 30,000 random questions: the answer fits, one token more does not. */
static void fit_returns_the_largest_number_of_tokens_that_fits(void **state)
{
    struct cost_model m = small();

    (void)state;
    for (uint32_t seed = 0; seed < 30000; seed++) {
        struct cost_step step = random_step(&m, seed);
        uint32_t n_cached = rng_u32(seed, 20) % 500, n_max = rng_u32(seed, 21) % 60;
        double limit = rng_u32(seed, 22) % 2000 * 0.01;
        uint32_t n = cost_model_fit(&m, &step, n_cached, n_max, limit);

        assert_true(n <= n_max);
        if (n > 0)
            assert_true(seconds_with(&m, step, n_cached, n) <= limit);
        if (n < n_max)
            assert_true(seconds_with(&m, step, n_cached, n + 1) > limit);
    }
}

static void more_time_or_a_shorter_prefix_fits_no_fewer_tokens(void **state)
{
    struct cost_model m = small();

    (void)state;
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct cost_step step = random_step(&m, seed);
        uint32_t n_cached = rng_u32(seed, 20) % 500, before = 0;

        for (uint32_t k = 0; k < 20; k++) {
            uint32_t n = cost_model_fit(&m, &step, n_cached, 40, k * 0.7);
            assert_true(n >= before);
            assert_true(n <= cost_model_fit(&m, &step, n_cached / 2, 40, k * 0.7));
            before = n;
        }
        assert_int_equal(cost_model_fit(&m, &step, n_cached, 40, (double)INFINITY), 40);
        assert_int_equal(cost_model_fit(&m, &step, n_cached, 0, (double)INFINITY), 0);
        assert_int_equal(cost_model_fit(&m, &step, n_cached, 40, 0), 0);
    }
}

static void smoothing_lowers_points_where_less_work_took_longer(void **state)
{
    struct cost_model m = small(), was = m;

    (void)state;
    cost_model_smooth(&m);
    assert_memory_equal(&m, &was, sizeof m); /* it ascends */
    m.seconds[0][0] = 100;
    m.decode[1][1] = 5;
    cost_model_smooth(&m);
    assert_near(m.seconds[0][0], 2);
    assert_near(m.decode[1][1], 2);
}

static void steps_teach_the_grid_that_they_are_of(void **state)
{
    struct cost_model m = small(), was = m;
    struct cost_step decodes = {0}, chunk = {0}, both;

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        cost_step_add(&decodes, &m, 100, 1);
    assert_near(cost_model_learn(&m, &decodes, 1.2 * 1.25), 0.2); /* of the measured time */
    assert_near(cost_model_decode_seconds(&m, 100, 4), 1.2 * (1 + 0.25 * COST_MODEL_RATE));
    assert_memory_equal(m.seconds, was.seconds, sizeof m.seconds);
    was = m;
    cost_step_add(&chunk, &m, 100, 20);
    assert_near(cost_model_learn(&m, &chunk, 4), 0.25);
    assert_seconds(&m, 100, 20, 5 * (1 - 0.2 * COST_MODEL_RATE));
    assert_memory_equal(m.decode, was.decode, sizeof m.decode);
    was = m;
    both = decodes;
    cost_step_add(&both, &m, 100, 20);
    double expected = cost_model_step_seconds(&m, &both);
    assert_near(cost_model_learn(&m, &both, 2 * expected), 0.5);
    assert_near(cost_model_learn(&m, &(struct cost_step){0}, 1), 0);
    assert_near(cost_model_learn(&m, &decodes, 0), 0);
    assert_near(cost_model_learn(&m, &decodes, (double)NAN), 0);
    assert_memory_equal(&m, &was, sizeof m);
}

/* One in ten steps is delayed by a second. The model's error stays below a third. */
static void delayed_steps_do_not_wreck_the_model(void **state)
{
    struct cost_model m = small();
    struct cost_step step = {0};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        cost_step_add(&step, &m, 100, 1);
    for (uint32_t i = 0; i < 2000; i++) {
        cost_model_learn(&m, &step, i % 10 == 9 ? 60 : 1.2);
        double now = cost_model_decode_seconds(&m, 100, 4);
        assert_true(now > 1.2 * 0.9 && now < 1.2 * 1.34);
    }
}

static void whatever_is_learned_more_work_takes_no_less_time(void **state)
{
    struct cost_model m = small();

    (void)state;
    for (uint32_t seed = 0; seed < 5000; seed++) {
        struct cost_step step = random_step(&m, seed);
        cost_model_learn(&m, &step, rng_u32(seed, 30) % 1000 * 0.01);
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t j = 0; j < 2; j++) {
                assert_true(m.seconds[i][j] > 0 && m.decode[i][j] > 0);
                assert_true(j == 0 || (m.seconds[i][j] >= m.seconds[i][j - 1] &&
                                       m.decode[i][j] >= m.decode[i][j - 1]));
                assert_true(i == 0 || (m.seconds[i][j] >= m.seconds[i - 1][j] &&
                                       m.decode[i][j] >= m.decode[i - 1][j]));
            }
    }
}

/* A model of 1 GB and 1 GFLOP a token, on a device of 1 GB and 100 GFLOP a second. */
static const struct cost_estimate guess = {.weight_bytes = 1e9,
                                           .flops_per_token = 1e9,
                                           .flops_per_pair = 1e5,
                                           .kv_bytes_per_token = 1e5,
                                           .bytes_per_s = 1e9,
                                           .flops_per_s = 1e11};

static void an_estimate_has_a_floor_and_grows_with_work(void **state)
{
    struct cost_model m;

    (void)state;
    cost_model_estimate(&m, &guess);
    /* 32 and 64 tokens cost the reading of the weights, 1 s, and their attention. */
    assert_seconds(&m, 0, 32, 1 + 32 * 16 * 1e-6);
    assert_seconds(&m, 0, 64, 1 + 64 * 32 * 1e-6);
    assert_seconds(&m, 0, 1, 1 + 0.5e-6);
    assert_seconds(&m, 0, 0, 0);
    assert_seconds(&m, 4096, 1024, 1024 * 1e-2 + 1024 * (4096 + 512) * 1e-6);
    for (uint32_t i = 0; i < m.n_cached; i++)
        for (uint32_t j = 0; j < m.n_new; j++) {
            assert_true(i == 0 || m.seconds[i][j] > m.seconds[i - 1][j]);
            assert_true(j == 0 || m.seconds[i][j] > m.seconds[i][j - 1]);
        }
    /* 16 decodes behind 4096: weights and KV are read; 256 behind nothing: products. */
    assert_near(cost_model_decode_seconds(&m, 4096, 16), 1 + 16 * 4096 * 1e-4);
    assert_near(cost_model_decode_seconds(&m, 0, 256), 2.56);
    assert_near(cost_model_decode_seconds(&m, 0, 1), 1);
}

/* Without attention and the floor, twice the tokens take twice the time, and all times scale with
 * the device's speed. */
static void an_estimate_has_the_right_ratios(void **state)
{
    struct cost_estimate e = guess;
    struct cost_model slow, fast;

    (void)state;
    e.weight_bytes = e.flops_per_pair = 0;
    cost_model_estimate(&slow, &e);
    e.flops_per_s *= 4;
    cost_model_estimate(&fast, &e);
    assert_seconds(&slow, 512, 2048, 2 * cost_model_seconds(&slow, 512, 1024));
    assert_seconds(&slow, 512, 2048, cost_model_seconds(&slow, 8192, 2048));
    assert_seconds(&slow, 512, 2048, 4 * cost_model_seconds(&fast, 512, 2048));
}

static void scaling_keeps_the_ratios_and_meets_the_measurement(void **state)
{
    struct cost_model m, was;

    (void)state;
    cost_model_estimate(&m, &guess);
    was = m;
    cost_model_scale(&m, 300, 700, 0.25); /* between points, too */
    assert_seconds(&m, 300, 700, 0.25);
    double factor = 0.25 / cost_model_seconds(&was, 300, 700);
    for (uint32_t i = 0; i < m.n_cached; i++)
        for (uint32_t j = 0; j < m.n_new; j++)
            assert_true(fabs(m.seconds[i][j] / was.seconds[i][j] - factor) < 1e-12);
    assert_near(cost_model_decode_seconds(&m, 300, 7),
                factor * cost_model_decode_seconds(&was, 300, 7));
}

static void a_measurement_that_says_nothing_scales_nothing(void **state)
{
    static const double bad[] = {0, -1, (double)INFINITY, (double)NAN};
    struct cost_model m = small(), was = m;

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        cost_model_scale(&m, 100, 10, bad[i]);
    cost_model_scale(&m, 100, 0, 1); /* no work was measured */
    assert_memory_equal(&m, &was, sizeof m);
}

static const struct cost_model_subject subject = {{1, 2, 3}, "cpu \"2\" threads"};

static void a_saved_model_is_read_back_bit_for_bit(void **state)
{
    char dir[] = "/tmp/tarn-cost-XXXXXX", command[64];
    struct cost_model_subject other = subject;
    struct cost_model m = small(), back = {0};

    (void)state;
    assert_ok(hash_init());
    assert_non_null(mkdtemp(dir));
    m.seconds[1][1] = 1.0 / 3;
    assert_int_equal(cost_model_load(&back, dir, &subject, NULL), ERR_NOT_FOUND);
    assert_ok(cost_model_save(&m, dir, &subject, NULL));
    assert_ok(cost_model_load(&back, dir, &subject, NULL));
    assert_memory_equal(&m, &back, sizeof m);
    other.fingerprint[31] = 1;
    assert_int_equal(cost_model_load(&back, dir, &other, NULL), ERR_NOT_FOUND);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(cost_model_save(&m, dir, &subject, NULL), ERR_IO);
}

static void a_file_about_something_else_is_no_model(void **state)
{
    struct cost_model_subject other = subject;
    struct cost_model m = small(), back = small();
    struct buf text;

    (void)state;
    buf_init(&text, 65536);
    assert_ok(cost_model_write(&text, &m, &subject));
    other.device[0] = 'g';
    assert_int_equal(cost_model_read(&back, text.data, text.len, &other, NULL), ERR_NOT_FOUND);
    buf_fini(&text);
}

static void a_file_of_the_format_before_says_to_profile_again(void **state)
{
    static const char text[] =
        "{\"format\": 1, \"fingerprint\": \"\", \"device\": \"\", \"cached\": [0, 1], "
        "\"new\": [1, 2], \"seconds\": [[1, 2], [1, 2]]}";
    struct cost_model m = small();
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(cost_model_read(&m, text, sizeof text - 1, &subject, &why), ERR_NOT_FOUND);
    assert_non_null(strstr(buf_str(&why), "format 1"));
    assert_non_null(strstr(buf_str(&why), "profile again"));
    buf_fini(&why);
}

/* Every prefix of a file, and every byte of it changed, is a model or an error. */
static void broken_files_are_errors(void **state)
{
    struct cost_model m = small(), back = small();
    struct buf text, why;

    (void)state;
    buf_init(&text, 65536);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(cost_model_write(&text, &m, &subject));
    for (size_t n = 0; n + 2 < text.len; n++)
        assert_int_equal(cost_model_read(&back, text.data, n, &subject, &why), ERR_INVALID);
    for (size_t i = 0; i < text.len; i++) {
        static const char tries[] = "{]\"-9,e";

        for (size_t k = 0; k < sizeof tries - 1; k++) {
            char was = text.data[i];

            text.data[i] = tries[k];
            enum status s = cost_model_read(&back, text.data, text.len, &subject, &why);
            assert_true(s == OK || s == ERR_INVALID || s == ERR_NOT_FOUND);
            text.data[i] = was;
        }
    }
    buf_fini(&text);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_of_the_grid_are_exact),
        cmocka_unit_test(between_points_the_formula_of_the_paper_holds),
        cmocka_unit_test(outside_the_grid_the_model_extrapolates_as_documented),
        cmocka_unit_test(a_grid_that_makes_no_sense_is_refused_with_words),
        cmocka_unit_test(a_correction_moves_the_answer_by_the_rate),
        cmocka_unit_test(corrections_converge_and_wild_ones_are_bounded),
        cmocka_unit_test(without_a_decode_grid_decodes_are_like_prefills),
        cmocka_unit_test(a_step_takes_its_decodes_and_the_chunks_time_above_the_floor),
        cmocka_unit_test(fit_returns_the_largest_number_of_tokens_that_fits),
        cmocka_unit_test(more_time_or_a_shorter_prefix_fits_no_fewer_tokens),
        cmocka_unit_test(smoothing_lowers_points_where_less_work_took_longer),
        cmocka_unit_test(steps_teach_the_grid_that_they_are_of),
        cmocka_unit_test(delayed_steps_do_not_wreck_the_model),
        cmocka_unit_test(whatever_is_learned_more_work_takes_no_less_time),
        cmocka_unit_test(an_estimate_has_a_floor_and_grows_with_work),
        cmocka_unit_test(an_estimate_has_the_right_ratios),
        cmocka_unit_test(scaling_keeps_the_ratios_and_meets_the_measurement),
        cmocka_unit_test(a_measurement_that_says_nothing_scales_nothing),
        cmocka_unit_test(a_saved_model_is_read_back_bit_for_bit),
        cmocka_unit_test(a_file_about_something_else_is_no_model),
        cmocka_unit_test(a_file_of_the_format_before_says_to_profile_again),
        cmocka_unit_test(broken_files_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
