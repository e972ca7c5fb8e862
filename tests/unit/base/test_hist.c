/* test_hist.c - buckets, sums and estimated quantiles of a histogram. */
#include "tests/unit/test.h"

#include <math.h>

#include "base/hist.h"

static const double bounds[3] = {10, 20, 40};

static void a_value_on_a_bound_is_in_the_bucket_below(void **state)
{
    static const double values[] = {-1, 0, 10, 10.5, 20, 40, 40.5, INFINITY};
    static const uint64_t expected[4] = {3, 2, 1, 2};
    struct hist h;

    (void)state;
    hist_init(&h, bounds, 3);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        hist_add(&h, values[i]);
    assert_int_equal(h.n, 8);
    assert_memory_equal(h.counts, expected, sizeof expected);
}

static void a_nan_changes_nothing(void **state)
{
    struct hist h;

    (void)state;
    hist_init(&h, bounds, 3);
    hist_add(&h, 2.5);
    hist_add(&h, NAN);
    hist_add(&h, 30);
    assert_int_equal(h.n, 2);
    assert_true(h.sum == 32.5);
}

static void a_quantile_is_interpolated_in_its_bucket(void **state)
{
    struct hist h;

    (void)state;
    hist_init(&h, bounds, 3);
    assert_true(hist_quantile(&h, 0.5) == 0); /* empty */
    for (int i = 0; i < 8; i++)
        hist_add(&h, 15);
    assert_true(hist_quantile(&h, 0) == 10);
    assert_true(hist_quantile(&h, 0.25) == 12.5);
    assert_true(hist_quantile(&h, 1) == 20);
    for (int i = 0; i < 8; i++)
        hist_add(&h, 30);
    assert_true(hist_quantile(&h, 0.5) == 20);
    assert_true(hist_quantile(&h, 0.75) == 30);
    for (int i = 0; i < 16; i++) /* above the last bound, which is then the estimate */
        hist_add(&h, 1e9);
    assert_true(hist_quantile(&h, 0.75) == 40);
    assert_true(hist_quantile(&h, 1) == 40);
}

static void an_initialized_histogram_is_empty(void **state)
{
    struct hist h;

    (void)state;
    hist_init(&h, bounds, 3);
    hist_add(&h, 15);
    hist_init(&h, bounds, 3);
    assert_true(h.n == 0 && h.sum == 0 && h.counts[1] == 0);
}

static void the_exported_bounds_ascend_and_fit(void **state)
{
#define ROW(b)                                                                                     \
    {                                                                                              \
        b, sizeof b / sizeof *b                                                                    \
    }
    static const struct {
        const double *bounds;
        size_t n;
    } rows[] = {ROW(hist_bounds_ttft_s),      ROW(hist_bounds_itl_s), ROW(hist_bounds_e2e_s),
                ROW(hist_bounds_tokens),      ROW(hist_bounds_n),     ROW(hist_bounds_step_s),
                ROW(hist_bounds_step_tokens), ROW(hist_bounds_gap_s)};

    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        assert_in_range(rows[k].n, 1, HIST_N_BOUNDS_MAX);
        assert_true(rows[k].bounds[0] > 0);
        for (size_t i = 1; i < rows[k].n; i++)
            assert_true(rows[k].bounds[i - 1] < rows[k].bounds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_on_a_bound_is_in_the_bucket_below),
        cmocka_unit_test(a_nan_changes_nothing),
        cmocka_unit_test(a_quantile_is_interpolated_in_its_bucket),
        cmocka_unit_test(an_initialized_histogram_is_empty),
        cmocka_unit_test(the_exported_bounds_ascend_and_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
