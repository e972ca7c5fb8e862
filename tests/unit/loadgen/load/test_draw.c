/* Random numbers, lengths, weights: moments against theory, with bounds of five standard errors. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "loadgen/load/weighted.h"

#define N 200000

static void streams_are_independent_and_repeat(void **state)
{
    struct draw a, b, c;
    int n_equal = 0;

    (void)state;
    draw_init(&a, 1, DRAW_LENGTH, 5);
    draw_init(&b, 1, DRAW_LENGTH, 5);
    draw_init(&c, 1, DRAW_LENGTH, 6);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = draw_u64(&a);
        assert_int_equal(x, draw_u64(&b));
        n_equal += x == draw_u64(&c);
    }
    assert_int_equal(n_equal, 0);
}

static void moments(double (*next)(struct draw *), double *mean, double *variance)
{
    double sum = 0, squares = 0;
    struct draw d;

    draw_init(&d, 3, DRAW_ARRIVAL, 0);
    for (int i = 0; i < N; i++) {
        double x = next(&d);
        sum += x;
        squares += x * x;
    }
    *mean = sum / N;
    *variance = squares / N - *mean * *mean;
}

static double next_gamma_half(struct draw *d)
{
    return draw_gamma(d, 0.5);
}

static double next_gamma_four(struct draw *d)
{
    return draw_gamma(d, 4);
}

static void moments_are_those_of_theory(void **state)
{
    const struct {
        double (*next)(struct draw *);
        double mean, variance, bound;
    } rows[] = {
        {draw_unit, 0.5, 1.0 / 12, 0.004}, {draw_exp, 1, 1, 0.03},        {draw_normal, 0, 1, 0.02},
        {next_gamma_half, 0.5, 0.5, 0.03}, {next_gamma_four, 4, 4, 0.09},
    };
    double mean, variance;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        moments(rows[i].next, &mean, &variance);
        assert_near(mean, rows[i].mean, rows[i].bound);
        assert_near(variance, rows[i].variance, rows[i].bound);
    }
}

static void below_stays_below_and_is_even(void **state)
{
    int counts[7] = {0};
    struct draw d;

    (void)state;
    draw_init(&d, 9, DRAW_SHUFFLE, 0);
    for (int i = 0; i < 70000; i++) {
        uint64_t x = draw_below(&d, 7);
        assert_true(x < 7);
        counts[x]++;
    }
    for (int i = 0; i < 7; i++)
        assert_near(counts[i], 10000, 500);
    assert_int_equal(draw_below(&d, 0), 0);
    assert_int_equal(draw_below(&d, 1), 0);
}

static void shuffle_keeps_all(void **state)
{
    uint32_t a[100], sum = 0;
    struct draw d;

    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        a[i] = i;
    draw_init(&d, 1, DRAW_SHUFFLE, 0);
    draw_shuffle_u32(&d, a, 100);
    int n_moved = 0;
    for (uint32_t i = 0; i < 100; i++) {
        sum += a[i];
        n_moved += a[i] != i;
    }
    assert_int_equal(sum, 4950);
    assert_true(n_moved > 80);
}

static void lengths_are_read_as_written(void **state)
{
    struct dist d;

    (void)state;
    assert_ok(dist_parse(&d, "128", NULL));
    assert_int_equal(d.form[0].kind, DIST_CONSTANT);
    assert_near(dist_mean(&d), 128, 0);
    assert_ok(dist_parse(&d, "uniform:3:9", NULL));
    assert_near(dist_mean(&d), 6, 0);
    assert_ok(dist_parse(&d, "lognormal:64:4", NULL));
    assert_near(dist_mean(&d), 64, 0);
}

/* Draw N lengths for one request. Returns the share of draws equal to `n`. */
static double share_of(const struct dist *d, uint64_t index, uint32_t n)
{
    struct draw draw;
    int n_equal = 0;

    draw_init(&draw, 5, DRAW_LENGTH, 0);
    for (int i = 0; i < N; i++)
        n_equal += dist_draw(d, index, &draw) == n;
    return (double)n_equal / N;
}

static void a_mixture_draws_each_form_at_its_share(void **state)
{
    struct dist d = dist_of("80%16+20%constant:512");

    (void)state;
    assert_near(dist_mean(&d), 0.8 * 16 + 0.2 * 512, 1e-9);
    assert_near(share_of(&d, 0, 16), 0.8, 0.01);
    assert_near(share_of(&d, 0, 16) + share_of(&d, 0, 512), 1, 1e-9);
}

static void a_change_draws_the_second_form_from_its_request_on(void **state)
{
    struct dist d = dist_of("7/100/uniform:9:9");

    (void)state;
    assert_near(dist_mean(&d), 7, 0);
    assert_near(share_of(&d, 99, 7), 1, 0);
    assert_near(share_of(&d, 100, 9), 1, 0);
}

static void wrong_lengths_are_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "x",
        "0",
        "-1",
        "1.5",
        "constant:",
        "constant:1:2",
        "uniform:5",
        "uniform:9:3",
        "uniform:0:3",
        "lognormal:0:1",
        "lognormal:5",
        "lognormal:5:-1",
        "lognormal:5:nan",
        "1e99",
        "uniform:1:2:3",
        "constant:0x10",
        "99999999999",
        "80%16",
        "80%16+30%512",
        "100%16+0%512",
        "16+20%512",
        "80%16+20%512+5%9",
        "80%16+20%uniform:9",
        "16/0/512",
        "16/1.5/512",
        "16/100",
        "16/100/",
        "16/100/512/100/9",
    };
    struct dist d;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(dist_parse(&d, wrong[i], &why), ERR_INVALID);
        assert_true(why.len > 0);
    }
    buf_fini(&why);
}

static void lognormal_has_its_mean_and_cv(void **state)
{
    struct dist d = dist_of("lognormal:1000:0.5");
    double sum = 0, squares = 0;
    struct draw draw;

    (void)state;
    draw_init(&draw, 5, DRAW_LENGTH, 0);
    for (int i = 0; i < N; i++) {
        double x = dist_draw(&d, 0, &draw);
        sum += x;
        squares += x * x;
    }
    double mean = sum / N, cv = sqrt(squares / N - mean * mean) / mean;
    assert_near(mean, 1000, 6);
    assert_near(cv, 0.5, 0.01);
}

static void uniform_has_both_ends(void **state)
{
    struct dist d = dist_of("uniform:3:5");
    bool seen[6] = {false};
    struct draw draw;

    (void)state;
    draw_init(&draw, 5, DRAW_LENGTH, 0);
    for (int i = 0; i < 1000; i++) {
        uint32_t x = dist_draw(&d, 0, &draw);
        assert_in_range(x, 3, 5);
        seen[x] = true;
    }
    assert_true(seen[3] && seen[4] && seen[5]);
}

static void zipf_has_its_shares(void **state)
{
    struct weighted w;
    struct draw d;
    int counts[100] = {0};
    double norm = 0;

    (void)state;
    assert_ok(weighted_init_zipf(&w, 100, 1));
    draw_init(&d, 2, DRAW_RETRIEVAL, 0);
    for (int i = 0; i < N; i++)
        counts[weighted_draw(&w, &d)]++;
    for (int k = 1; k <= 100; k++)
        norm += 1.0 / k;
    for (int k = 0; k < 100; k += 9) {
        double expected = N / norm / (k + 1);
        assert_near(counts[k], expected, 5 * sqrt(expected) + 1);
    }
    weighted_fini(&w);
}

static void distinct_draws_are_distinct_and_stop_at_what_has_weight(void **state)
{
    const double weights[] = {1000000, 1, 0, 1, 0};
    uint32_t out[5], k = 5;
    struct weighted w;
    struct draw d;

    (void)state;
    assert_ok(weighted_init(&w, weights, 5));
    draw_init(&d, 2, DRAW_RETRIEVAL, 0);
    assert_ok(weighted_draw_distinct(&w, &d, out, &k));
    assert_int_equal(k, 3);
    assert_int_equal(out[0] + out[1] + out[2], 0 + 1 + 3);
    assert_true(out[0] != out[1] && out[1] != out[2] && out[0] != out[2]);
    weighted_fini(&w);
    const double none[] = {0, 0}, negative[] = {1, -1};
    assert_int_equal(weighted_init(&w, none, 2), ERR_INVALID);
    assert_int_equal(weighted_init(&w, negative, 2), ERR_INVALID);
    assert_int_equal(weighted_init(&w, none, 0), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_are_independent_and_repeat),
        cmocka_unit_test(moments_are_those_of_theory),
        cmocka_unit_test(below_stays_below_and_is_even),
        cmocka_unit_test(shuffle_keeps_all),
        cmocka_unit_test(lengths_are_read_as_written),
        cmocka_unit_test(a_mixture_draws_each_form_at_its_share),
        cmocka_unit_test(a_change_draws_the_second_form_from_its_request_on),
        cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(lognormal_has_its_mean_and_cv),
        cmocka_unit_test(uniform_has_both_ends),
        cmocka_unit_test(zipf_has_its_shares),
        cmocka_unit_test(distinct_draws_are_distinct_and_stop_at_what_has_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
