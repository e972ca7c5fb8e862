/* Expected values are numpy's (mean, std, percentile with its default, linear) and those of tables
 * of Student's t. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "loadgen/load/slo.h"
#include "loadgen/load/stats.h"

static void statistics_are_numpys(void **state)
{
    const double v[] = {3.1, 0.2, 7.7, 5.5, 1.4, 9.9, 2.6, 8.8, 4.3, 6.1, 0.9};
    const struct {
        double p, value;
    } expected[] = {
        {0, 0.2},
        {1, 0.27},
        {25, 2.0},
        {33.3, 2.7649999999999997},
        {50, 4.3},
        {75, 6.9},
        {90, 8.8},
        {95, 9.350000000000001},
        {99, 9.790000000000001},
        {99.9, 9.889000000000003},
        {100, 9.9},
    };
    struct series s = {0};

    (void)state;
    for (size_t i = 0; i < 11; i++)
        assert_ok(series_push(&s, v[i]));
    series_sort(&s);
    assert_near(stats_mean(s.v, s.n), 4.590909090909091, 1e-15);
    assert_near(stats_std(s.v, s.n), 3.1338197852271263, 1e-15);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_near(stats_percentile(s.v, s.n, expected[i].p), expected[i].value, 2e-15);
    series_fini(&s);
}

static void empty_and_single_have_statistics(void **state)
{
    double one = 3;

    (void)state;
    assert_near(stats_mean(NULL, 0), 0, 0);
    assert_near(stats_std(NULL, 0), 0, 0);
    assert_near(stats_percentile(NULL, 0, 50), 0, 0);
    assert_near(stats_percentile(&one, 1, 99), 3, 0);
    assert_near(stats_std(&one, 1), 0, 0);
}

static void t_is_that_of_the_tables(void **state)
{
    const struct {
        size_t df;
        double t;
    } expected[] = {{1, 12.7062}, {2, 4.3027},  {10, 2.2281},  {30, 2.0423},      {31, 2.0395},
                    {40, 2.0211}, {60, 2.0003}, {120, 1.9799}, {1000000, 1.95996}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_near(stats_t975(expected[i].df), expected[i].t, 0.00006);
}

static void a_constant_ratio_has_no_interval(void **state)
{
    double a[20], b[20];
    struct interval r;
    size_t n;

    (void)state;
    for (int i = 0; i < 20; i++) {
        a[i] = 1 + i;
        b[i] = 2.5 * a[i];
    }
    for (int w = 0; w < N_STATISTICS; w++) {
        assert_ok(stats_ratio_bootstrap(a, b, 20, (enum statistic)w, 1, &r));
        assert_near(r.value, 2.5, 1e-12);
        assert_near(r.low, 2.5, 1e-12);
        assert_near(r.high, 2.5, 1e-12);
    }
    r = stats_ratio_t(a, b, 20, &n);
    assert_int_equal(n, 20);
    assert_near(r.value, 2.5, 1e-12);
    assert_near(r.low, 2.5, 1e-9);
    assert_near(r.high, 2.5, 1e-9);
}

/* By hand: logarithms of the ratios 0 and ln 4, mean ln 2, standard error ln 2, t(1) 12.7062. */
static void students_interval_is_that_of_the_formula(void **state)
{
    const double a[] = {1, 1, 0}, b[] = {1, 4, 5};
    size_t n;
    struct interval r = stats_ratio_t(a, b, 3, &n);

    (void)state;
    assert_int_equal(n, 2); /* the pair with a 0 has no ratio */
    assert_near(r.value, 2, 1e-12);
    assert_near(r.low, 2 / pow(2, 12.7062), 1e-9);
    assert_near(r.high / (2 * pow(2, 12.7062)), 1, 1e-9);
}

static bool is_none(struct interval r)
{
    return isnan(r.value) && isnan(r.low) && isnan(r.high);
}

static void a_ratio_of_nothing_is_none(void **state)
{
    const double zeros[] = {0, 0, 0}, ones[] = {1, 1, 1}, some[] = {0, 0, 5};
    struct interval r;
    size_t n;

    (void)state;
    assert_ok(stats_ratio_bootstrap(zeros, ones, 0, STATISTIC_MEAN, 1, &r));
    assert_true(is_none(r));
    assert_ok(stats_ratio_bootstrap(zeros, zeros, 3, STATISTIC_MEAN, 1, &r));
    assert_true(is_none(r));
    assert_ok(stats_ratio_bootstrap(zeros, ones, 3, STATISTIC_MEDIAN, 1, &r));
    assert_true(is_none(r));
    assert_true(is_none(stats_ratio_t(zeros, zeros, 3, &n)));
    assert_int_equal(n, 0);
    /* A resample of zeros alone has no ratio, and must not count as a ratio of 0. */
    assert_ok(stats_ratio_bootstrap(some, ones, 3, STATISTIC_MEAN, 1, &r));
    assert_near(r.value, 0.6, 1e-12);
    assert_true(r.low > 0.19);
}

/* The interval must hold the true ratio about 95 times in 100. */
static void the_bootstrap_covers_the_truth(void **state)
{
    int n_covered = 0;

    (void)state;
    for (uint64_t trial = 0; trial < 100; trial++) {
        double a[60], b[60];
        struct interval r;
        struct draw d;
        draw_init(&d, trial, DRAW_LENGTH, 0);
        for (int i = 0; i < 60; i++) {
            a[i] = 10 + draw_exp(&d);
            b[i] = 1.3 * (10 + draw_exp(&d));
        }
        assert_ok(stats_ratio_bootstrap(a, b, 60, STATISTIC_MEAN, trial, &r));
        assert_true(r.low <= r.value && r.value <= r.high);
        n_covered += r.low <= 1.3 && 1.3 <= r.high;
    }
    assert_in_range(n_covered, 86, 100);
}

static void limits_are_read_and_kept(void **state)
{
    struct slo s = {{0}};
    const double kept[] = {200, 50, 10000, 5}, missed[] = {200.1, 1, 1, 1};

    (void)state;
    assert_false(slo_is_set(&s));
    assert_true(slo_is_met(&s, missed));
    assert_ok(slo_parse(&s, "ttft:200 tpot:50,e2el:10000", NULL));
    assert_true(slo_is_set(&s));
    assert_true(slo_is_met(&s, kept)); /* limits are inclusive */
    assert_false(slo_is_met(&s, missed));
    assert_int_equal(slo_parse(&s, "ttft", NULL), ERR_INVALID);
    assert_int_equal(slo_parse(&s, "ttft:", NULL), ERR_INVALID);
    assert_int_equal(slo_parse(&s, "ttft:-5", NULL), ERR_INVALID);
    assert_int_equal(slo_parse(&s, "e2e:5", NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_numpys),
        cmocka_unit_test(empty_and_single_have_statistics),
        cmocka_unit_test(t_is_that_of_the_tables),
        cmocka_unit_test(a_constant_ratio_has_no_interval),
        cmocka_unit_test(students_interval_is_that_of_the_formula),
        cmocka_unit_test(a_ratio_of_nothing_is_none),
        cmocka_unit_test(the_bootstrap_covers_the_truth),
        cmocka_unit_test(limits_are_read_and_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
