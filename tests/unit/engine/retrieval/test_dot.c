/* test_dot.c - inner products on every path of this CPU. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/retrieval/dot.h"
#include "tests/unit/test.h"

#define N_X 9
#define N_ROWS 11
#define DIM_MAX 131

static float x[N_X * DIM_MAX], rows[N_ROWS * DIM_MAX];

static void fill(void)
{
    for (uint32_t i = 0; i < ARRAY_SIZE(x); i++)
        x[i] = rng_uniform(1, i) - 0.5f;
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++)
        rows[i] = rng_uniform(2, i) - 0.5f;
}

static void check_product(const float *a, const float *b, size_t dim, float got)
{
    double sum = 0, size = 0;

    for (size_t i = 0; i < dim; i++) {
        sum += (double)a[i] * b[i];
        size += fabs((double)a[i] * b[i]);
    }
    assert_true(fabs(got - sum) <= 1e-6 * size + 1e-12);
}

static void every_path_agrees_with_double_precision(void **state)
{
    static const size_t dims[] = {1, 2, 15, 16, 17, 32, 100, DIM_MAX};
    float out[N_X * N_ROWS];

    (void)state;
    for (uint32_t path = 0; path < dot_n_paths(); path++)
        for (size_t d = 0; d < ARRAY_SIZE(dims); d++)
            for (size_t n_x = 1; n_x <= N_X; n_x++) {
                dot_many_on(path, out, x, n_x, rows, N_ROWS, dims[d]);
                for (size_t i = 0; i < n_x; i++)
                    for (size_t j = 0; j < N_ROWS; j++)
                        check_product(x + i * dims[d], rows + j * dims[d], dims[d],
                                      out[i * N_ROWS + j]);
            }
}

static void a_pair_has_the_same_product_in_every_call(void **state)
{
    const size_t dim = 100;
    float out[N_X * N_ROWS];

    (void)state;
    for (size_t n_x = 1; n_x <= N_X; n_x++)
        for (size_t n_rows = 1; n_rows <= N_ROWS; n_rows++) {
            dot_many(out, x, n_x, rows, n_rows, dim);
            for (size_t i = 0; i < n_x; i++)
                for (size_t j = 0; j < n_rows; j++)
                    assert_true(out[i * n_rows + j] == dot_one(x + i * dim, rows + j * dim, dim));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path_agrees_with_double_precision),
        cmocka_unit_test(a_pair_has_the_same_product_in_every_call),
    };

    fill();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
