/* test_norms.c - the norms, activations and multipliers of families other than Llama on the GPU
 * against the reference, and bits of a row compared between batches. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

static const uint32_t dims[] = {1, 3, 16, 64, 80, 257, 1000};
#define N_ROWS 7

static struct device *open_device(void)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = 128, .max_k = 4096, .max_heads = 8, .max_head_dim = 256};

    return cuda_device_for(&config);
}

/* Norm row `first` and those behind it, in place or into `out`, which is host memory. */
static float *norm_on(struct device *d, struct rmsnorm_params p, const float *out, size_t stride,
                      uint32_t first, uint32_t n)
{
    size_t at = first * stride, bytes = n * stride * sizeof(float);
    float *to = on_device(d, out + at, bytes);

    p.n_rows = n;
    p.x = p.x == out ? to : on_device(d, p.x + at, bytes);
    p.w = on_device(d, p.w, p.dim * sizeof(float));
    p.bias = p.bias ? on_device(d, p.bias, p.dim * sizeof(float)) : NULL;
    p.out = to;
    assert_ok(device_ops(d)->rmsnorm(d, NULL, &p));
    return from_device(d, to, bytes);
}

static void check_norm(uint32_t n_parts, uint32_t gap, bool center, bool accumulate, uint32_t dim)
{
    struct device *d = open_device();
    size_t stride = (size_t)(n_parts ? n_parts : 1) * dim + gap, n = N_ROWS * stride;
    float *x = random_array(n, 1), *out = gap ? x : random_array(n, 1);
    float *want = host_array(n * sizeof *want);
    struct rmsnorm_params p = {.n_rows = N_ROWS,
                               .dim = dim,
                               .eps = 1e-5f,
                               .x = x,
                               .w = random_array(dim, 1),
                               .out = want,
                               .n_parts = n_parts,
                               .x_stride = gap ? stride : 0,
                               .out_stride = gap ? stride : 0,
                               .center = center,
                               .accumulate = accumulate,
                               .bias = center ? random_array(dim, 1) : NULL};

    memcpy(want, out, n * sizeof *want);
    assert_ok(ref_rmsnorm(NULL, NULL, &p));
    float *got = norm_on(d, p, out, stride, 0, N_ROWS);
    assert_close("norm", got, want, n, 4e-6f, 4e-6f);
    for (uint32_t r = 0; r < N_ROWS; r += 3)
        assert_same_bits("norm alone", norm_on(d, p, out, stride, r, 1), got + r * stride,
                         stride * sizeof(float));
    cuda_test_free_all(d);
}

static void check_rounded(uint32_t dim, enum dtype t, bool center, bool in_place)
{
    struct device *d = open_device();
    size_t n_bytes = N_ROWS * (size_t)dim * sizeof(float);
    float *x = random_array(N_ROWS * (size_t)dim, 1);
    struct rmsnorm_params p = {.n_rows = N_ROWS, .dim = dim, .eps = 1e-5f, .center = center};

    x[0] = NAN; /* the padding of a row becomes 0 also where the row is NaN */
    p.x = on_device(d, x, n_bytes);
    p.w = on_device(d, random_array(dim, 1), dim * sizeof(float));
    p.bias = center ? on_device(d, random_array(dim, 1), dim * sizeof(float)) : NULL;
    p.out = on_device(d, NULL, n_bytes);
    assert_ok(device_ops(d)->rmsnorm(d, NULL, &p));
    const float *floats = from_device(d, p.out, n_bytes);

    p.out = in_place ? (float *)(uintptr_t)p.x : NULL;
    p.rounded = rounded_on_device(d, N_ROWS, dim, t);
    assert_ok(device_ops(d)->rmsnorm(d, NULL, &p));
    assert_rounded(d, &p.rounded, floats, N_ROWS, dim);
    assert_same_bits("x", from_device(d, p.x, n_bytes), x, n_bytes);
    p.out = on_device(d, NULL, n_bytes);
    p.rounded = rounded_on_device(d, N_ROWS, dim, t);
    p.keep_out = 1;
    assert_ok(device_ops(d)->rmsnorm(d, NULL, &p));
    assert_rounded(d, &p.rounded, floats, N_ROWS, dim);
    assert_same_bits("kept floats", from_device(d, p.out, n_bytes), floats, n_bytes);
    cuda_test_free_all(d);
}

static void norms_are_rounded_for_a_product(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_I4};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (size_t t = 0; t < ARRAY_SIZE(types); t++)
            check_rounded(dims[i], types[t], t == 1, i % 2);
    check_rounded(8200, DTYPE_BF16, false, false); /* more than a block keeps in registers */
}

static void norms_of_heads_and_centered_norms_match_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        check_norm(3, 5, false, false, dims[i]);
        check_norm(1, 9, false, false, dims[i]);
        check_norm(0, 0, true, false, dims[i]);
        check_norm(0, 0, false, true, dims[i]);
        check_norm(2, 0, true, true, dims[i]);
    }
}

static void gelu_mul_matches_the_reference(void **state)
{
    static const float nasty[] = {0, -12, 87.5f, -1000, NAN, -3e38f, INFINITY, 1e-30f};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        struct device *d = open_device();
        size_t n = (size_t)N_ROWS * dims[i];
        float *in = random_array(2 * n, 2), *want = host_array(n * sizeof *want);
        struct silu_mul_params p = {.n_rows = N_ROWS,
                                    .dim = dims[i],
                                    .gate_up = in,
                                    .out = want,
                                    .activation = ACTIVATION_GELU_TANH};

        for (size_t k = 0; k < ARRAY_SIZE(nasty); k++)
            in[k * 7 % (2 * n)] = nasty[k];
        assert_ok(ref_silu_mul(NULL, NULL, &p));
        p.gate_up = on_device(d, in, 2 * n * sizeof *in);
        p.out = on_device(d, NULL, n * sizeof *want);
        assert_ok(device_ops(d)->silu_mul(d, NULL, &p));
        assert_close("gelu_mul", from_device(d, p.out, n * sizeof *want), want, n, 1e-9f, 1e-5f);
        cuda_test_free_all(d);
    }
}

static void check_scale(uint32_t dim, float soft_cap, bool accumulate)
{
    struct device *d = open_device();
    size_t n = (size_t)N_ROWS * dim, n_bytes = n * sizeof(float);
    float *x = random_array(n, 3), *out = random_array(n, 1), *want = host_array(n_bytes);
    struct scale_params p = {.n_rows = N_ROWS,
                             .dim = dim,
                             .scale = 1.7f,
                             .soft_cap = soft_cap,
                             .accumulate = accumulate,
                             .x = x,
                             .out = want};

    memcpy(want, out, n_bytes);
    assert_ok(ref_scale(NULL, NULL, &p));
    p.x = on_device(d, x, n_bytes);
    p.out = on_device(d, out, n_bytes);
    assert_ok(device_ops(d)->scale(d, NULL, &p));
    assert_close("scale", from_device(d, p.out, n_bytes), want, n, 5e-6f, 2e-6f);
    cuda_test_free_all(d);
}

static void scale_matches_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        for (int k = 0; k < 4; k++)
            check_scale(dims[i], k % 2 ? 5 : 0, k / 2);
    struct device *d = open_device();
    assert_ok(device_ops(d)->scale(d, NULL, &(struct scale_params){.dim = 8}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_heads_and_centered_norms_match_the_reference),
        cmocka_unit_test(norms_are_rounded_for_a_product),
        cmocka_unit_test(gelu_mul_matches_the_reference),
        cmocka_unit_test(scale_matches_the_reference),
    };

    return cmocka_run_group_tests_name("cuda_norms", tests, NULL, NULL);
}
