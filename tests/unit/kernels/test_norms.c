/* test_norms.c - the norms, activations and multipliers of families other than Llama against the
 * reference, and the same bits for a row alone as in a batch. */
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

static const uint32_t dims[] = {1, 3, 16, 17, 64, 80, 257, 1100};
#define N_ROWS 23

struct norm_kind {
    uint32_t n_parts;
    uint32_t gap; /* elements between the rows of x; out is x, the usual place of Q and K, then */
    int center, accumulate, bias;
};

static const struct norm_kind norm_kinds[] = {
    {.n_parts = 3, .gap = 5}, {.n_parts = 1, .gap = 9},
    {.center = 1, .bias = 1}, {.n_parts = 2, .center = 1},
    {.accumulate = 1},        {.center = 1, .accumulate = 1, .bias = 1},
};

static void norm_on(struct device *d, const struct norm_kind *k, uint32_t dim)
{
    uint32_t n_parts = k->n_parts ? k->n_parts : 1;
    size_t stride = n_parts * dim + k->gap, n = N_ROWS * stride;
    float *x = random_floats(n), *w = random_floats(dim), *bias = random_floats(dim);
    float *want = random_floats(n), *got = test_alloc(n * sizeof *got);
    float *one = test_alloc(stride * sizeof *one);
    struct rmsnorm_params p = {.n_rows = N_ROWS,
                               .dim = dim,
                               .eps = 1e-5f,
                               .x = x,
                               .w = w,
                               .n_parts = k->n_parts,
                               .x_stride = k->gap ? stride : 0,
                               .out_stride = k->gap ? stride : 0,
                               .center = k->center,
                               .accumulate = k->accumulate,
                               .bias = k->bias ? bias : NULL};

    for (uint32_t i = 0; i < dim; i++)
        x[2 * stride + i] = 0;
    if (k->gap)
        memcpy(want, x, n * sizeof *x);
    float *before = test_alloc(n * sizeof *before);
    memcpy(before, want, n * sizeof *want);
    memcpy(got, want, n * sizeof *want);
    p.out = want;
    assert_int_equal(ref_rmsnorm(NULL, NULL, &p), OK);
    p.out = got;
    p.x = k->gap ? got : x; /* in place */
    assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
    check_close("norm", got, want, n, 4e-6, 4e-6);
    for (size_t t = 0; t < N_ROWS; t++) {
        for (size_t i = n_parts * dim; i < stride; i++)
            assert_true(got[t * stride + i] == x[t * stride + i]);
        memcpy(one, before + t * stride, stride * sizeof *one);
        p.n_rows = 1;
        p.x = x + t * stride;
        p.out = one;
        assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
        check_same("norm alone", one, got + t * stride, stride);
    }
    free(x);
    free(w);
    free(bias);
    free(want);
    free(got);
    free(one);
    free(before);
}

static void norms_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (size_t k = 0; k < ARRAY_SIZE(norm_kinds); k++)
            norm_on(d, &norm_kinds[k], dims[i]);
}

static void norms_of_heads_and_centered_norms_equal_the_reference(void **state)
{
    (void)state;
    each_variant(1, norms_on);
    each_variant(3, norms_on);
}

static const float nasty[] = {0,     -0.0f, 12,  -12,    87.5f,    -87.5f, 1000,
                              -1000, NAN,   3e8, -3e38f, INFINITY, 1e-30f};

static void activation_dim_on(struct device *d, uint32_t dim, enum activation f, int ungated)
{
    size_t n = (size_t)N_ROWS * dim, width = (ungated ? 1 : 2) * (size_t)dim;
    float *x = random_floats(2 * n), *one = test_alloc(dim * sizeof *one);
    float *want = test_alloc(n * sizeof *want), *got = test_alloc(n * sizeof *got);
    struct silu_mul_params p = {.n_rows = N_ROWS,
                                .dim = dim,
                                .gate_up = x,
                                .out = want,
                                .activation = f,
                                .ungated = ungated};

    for (size_t i = 0; i < 2 * n; i++)
        x[i] *= 2;
    for (size_t i = 0; i < ARRAY_SIZE(nasty); i++)
        x[i * width + rng_below(dim)] = nasty[i];
    assert_int_equal(ref_silu_mul(NULL, NULL, &p), OK);
    p.out = got;
    assert_int_equal(device_ops(d)->silu_mul(d, NULL, &p), OK);
    check_close("activation", got, want, n, 1e-9, 1e-5);
    for (uint32_t t = 0; t < N_ROWS; t++) {
        struct silu_mul_params alone = p;

        alone.n_rows = 1;
        alone.gate_up = x + t * width;
        alone.out = one;
        assert_int_equal(device_ops(d)->silu_mul(d, NULL, &alone), OK);
        check_same("activation alone", one, got + (size_t)t * dim, dim);
    }
    free(x);
    free(one);
    free(want);
    free(got);
}

static void activations_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (int ungated = 0; ungated < 2; ungated++) {
            activation_dim_on(d, dims[i], ACTIVATION_SILU, ungated);
            activation_dim_on(d, dims[i], ACTIVATION_GELU_TANH, ungated);
            activation_dim_on(d, dims[i], ACTIVATION_GELU, ungated);
        }
}

static void activations_equal_reference_up_to_inf_and_nan(void **state)
{
    (void)state;
    each_variant(1, activations_on);
    each_variant(3, activations_on);
}

static void gelu_range_on(struct device *d)
{
    enum { N = 26 * 1024 + 1 };
    float *x = test_alloc(N * sizeof *x), *want = test_alloc(N * sizeof *want);
    struct silu_mul_params p = {.n_rows = 1,
                                .dim = N,
                                .gate_up = x,
                                .out = want,
                                .activation = ACTIVATION_GELU,
                                .ungated = 1};

    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) / 1024 * 0.9999f;
    assert_int_equal(ref_silu_mul(NULL, NULL, &p), OK);
    p.out = x; /* in place */
    assert_int_equal(device_ops(d)->silu_mul(d, NULL, &p), OK);
    check_close("gelu", x, want, N, 0, 2e-6);
    free(x);
    free(want);
}

static void gelu_is_relatively_exact_in_its_tail_too(void **state)
{
    (void)state;
    each_variant(1, gelu_range_on);
}

static void scale_dim_on(struct device *d, uint32_t dim, float soft_cap, int accumulate)
{
    size_t n = (size_t)N_ROWS * dim;
    float *x = random_floats(n), *want = random_floats(n), *got = test_alloc(n * sizeof *got);
    float *one = test_alloc(dim * sizeof *one);
    struct scale_params p = {.n_rows = N_ROWS,
                             .dim = dim,
                             .scale = 1.7f,
                             .soft_cap = soft_cap,
                             .accumulate = accumulate,
                             .x = x};

    for (size_t i = 0; i < ARRAY_SIZE(nasty); i++)
        x[i * dim + rng_below(dim)] = nasty[i];
    memcpy(one, want, dim * sizeof *one); /* row 0 of out as it was */
    memcpy(got, want, n * sizeof *got);
    p.out = want;
    assert_int_equal(ref_scale(NULL, NULL, &p), OK);
    p.out = got;
    assert_int_equal(device_ops(d)->scale(d, NULL, &p), OK);
    check_close("scale", got, want, n, 1e-6, 2e-6); /* out + y may cancel */
    p.n_rows = 1;
    p.out = one;
    assert_int_equal(device_ops(d)->scale(d, NULL, &p), OK);
    check_same("scale alone", one, got, dim);
    free(x);
    free(want);
    free(got);
    free(one);
}

static void scale_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            scale_dim_on(d, dims[i], 0, accumulate);
            scale_dim_on(d, dims[i], 5, accumulate);
        }
}

static void scale_equals_reference_with_and_without_a_cap(void **state)
{
    (void)state;
    each_variant(1, scale_on);
    each_variant(3, scale_on);
}

static void no_rows_on(struct device *d)
{
    assert_int_equal(device_ops(d)->scale(d, NULL, &(struct scale_params){.dim = 8}), OK);
    assert_int_equal(
        device_ops(d)->rmsnorm(d, NULL, &(struct rmsnorm_params){.dim = 8, .n_parts = 2}), OK);
}

static void no_rows_do_nothing(void **state)
{
    (void)state;
    each_variant(2, no_rows_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_heads_and_centered_norms_equal_the_reference),
        cmocka_unit_test(activations_equal_reference_up_to_inf_and_nan),
        cmocka_unit_test(gelu_is_relatively_exact_in_its_tail_too),
        cmocka_unit_test(scale_equals_reference_with_and_without_a_cap),
        cmocka_unit_test(no_rows_do_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
