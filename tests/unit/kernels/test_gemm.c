/* test_gemm.c - products: right on odd sizes, and the same bits for a row however computed. */
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

#define PAD 3 /* floats between rows, which nobody may touch */

struct problem {
    struct weight w;
    void *packed;
    uint32_t n_rows;
    size_t a_stride;
    size_t out_stride;
    float *a;
    float *bias;
    float *old; /* what out holds before */
};

static void problem_init(struct problem *p, enum dtype t, uint32_t n_rows, uint32_t n, uint32_t k)
{
    void *src = random_elements(t, (size_t)n * k);

    *p = (struct problem){.n_rows = n_rows, .a_stride = k + PAD, .out_stride = n + PAD};
    p->packed = test_alloc(pack_bytes(t, n, k) + 64);
    p->w = (struct weight){.dtype = t, .n = n, .k = k, .data = p->packed};
    pack_rows(&p->w, 0, src, n);
    p->a = random_floats(n_rows * p->a_stride);
    p->bias = random_floats(n);
    p->old = random_floats(n_rows * p->out_stride);
    free(src);
}

static void problem_fini(struct problem *p)
{
    free(p->packed);
    free(p->a);
    free(p->bias);
    free(p->old);
}

/* Rows [row0, row0 + n_rows) on d, or by the reference (d NULL); the caller frees the result. */
static float *run_gemm(struct device *d, const struct problem *p, uint32_t row0, uint32_t n_rows,
                       bool bias, bool accumulate)
{
    size_t n = n_rows * p->out_stride;
    float *out = test_alloc(n * sizeof(*out));
    struct gemm_params params = {
        .n_rows = n_rows,
        .a = p->a + row0 * p->a_stride,
        .a_stride = p->a_stride,
        .w = p->w,
        .bias = bias ? p->bias : NULL,
        .accumulate = accumulate,
        .out = out,
        .out_stride = p->out_stride,
    };

    memcpy(out, p->old + row0 * p->out_stride, n * sizeof(*out));
    if (d)
        assert_int_equal(device_ops(d)->gemm(d, NULL, &params), OK);
    else
        assert_int_equal(ref_gemm(NULL, NULL, &params), OK);
    return out;
}

static void check_against_ref(struct device *d, enum dtype t, uint32_t n_rows, uint32_t n,
                              uint32_t k)
{
    struct problem p;
    char what[96];

    problem_init(&p, t, n_rows, n, k);
    for (int flags = 0; flags < 4; flags++) {
        float *want = run_gemm(NULL, &p, 0, n_rows, flags & 1, flags & 2);
        float *got = run_gemm(d, &p, 0, n_rows, flags & 1, flags & 2);

        snprintf(what, sizeof(what), "%s dtype %d rows %u n %u k %u flags %d",
                 device_ops(d)->name, t, n_rows, n, k, flags);
        check_close(what, got, want, n_rows * p.out_stride, 2e-6 * k + 1e-6, 1e-5);
        free(want);
        free(got);
    }
    problem_fini(&p);
}

static void sizes_on(struct device *d)
{
    static const uint32_t shapes[][2] = {{1, 1},   {2, 2},   {31, 3},  {32, 16},
                                         {33, 17}, {50, 64}, {96, 65}, {257, 129}};

    for (int t = 0; t < DTYPE_COUNT; t++)
        for (uint32_t n_rows = 0; n_rows <= 14; n_rows++)
            for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
                check_against_ref(d, (enum dtype)t, n_rows, shapes[i][0], shapes[i][1]);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        check_against_ref(d, (enum dtype)t, 1, 70, 1199);
        check_against_ref(d, (enum dtype)t, 131, 40, 33); /* longer than max_rows */
    }
}

static void equals_reference_on_odd_sizes(void **state)
{
    (void)state;
    each_variant(1, sizes_on);
    each_variant(3, sizes_on);
}

static void nan_and_inf_on(struct device *d)
{
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct problem p;

        problem_init(&p, (enum dtype)t, 13, 40, 21);
        p.a[2 * p.a_stride + 5] = NAN;
        p.a[7 * p.a_stride + 20] = INFINITY;
        dtype_store((enum dtype)t, p.packed, 3, -INFINITY);
        float *want = run_gemm(NULL, &p, 0, 13, true, true);
        float *got = run_gemm(d, &p, 0, 13, true, true);
        check_close("nan and inf", got, want, 13 * p.out_stride, 1e-4, 1e-5);
        free(want);
        free(got);
        problem_fini(&p);
    }
}

static void nan_and_inf_stay_in_their_row_and_column(void **state)
{
    (void)state;
    each_variant(2, nan_and_inf_on);
}

/* Every row of `all` (a run over all rows by `d`) equals the row computed in any other company; in
 * fewer companies with several threads, where calls are slow under a sanitizer. */
static void check_rows(struct device *d, const struct problem *p, const float *all)
{
    static const uint32_t batches[] = {1, 2, 3, 5, 6, 11, 12, 13, 24, 29, 37};

    for (size_t b = 0; b < ARRAY_SIZE(batches); b += device_n_threads(d) > 1 ? 5 : 1) {
        uint32_t n = batches[b];

        for (uint32_t row0 = 0; row0 < p->n_rows; row0 += n) {
            uint32_t n_rows = row0 + n <= p->n_rows ? n : p->n_rows - row0;
            float *part = run_gemm(d, p, row0, n_rows, true, true);

            check_same(device_ops(d)->name, part, all + row0 * p->out_stride,
                       n_rows * p->out_stride);
            free(part);
        }
    }
}

static void batch_invariance_of(const char *variant)
{
    for (int t = 0; t < DTYPE_COUNT; t++) {
        struct problem p;
        float *first = NULL;

        problem_init(&p, (enum dtype)t, 131, 205, 301);
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            struct device *d = open_device(DEVICE_CPU, variant, n_threads);

            if (!d)
                break;
            float *all = run_gemm(d, &p, 0, p.n_rows, true, true);
            if (first)
                check_same("threads", all, first, p.n_rows * p.out_stride);
            check_rows(d, &p, all);
            device_close(d);
            if (first)
                free(all);
            else
                first = all;
        }
        free(first);
        problem_fini(&p);
    }
}

static void a_row_has_the_same_bits_in_any_batch_position_and_thread_count(void **state)
{
    (void)state;
    rng_seed(7);
    for (size_t i = 0; i < ARRAY_SIZE(variant_names); i++)
        batch_invariance_of(variant_names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference_on_odd_sizes),
        cmocka_unit_test(nan_and_inf_stay_in_their_row_and_column),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_position_and_thread_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
