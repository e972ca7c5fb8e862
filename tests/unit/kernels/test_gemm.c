/* test_gemm.c - products: right for odd sizes, and the same bits for a row in any batch. */
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

#ifndef IS_SHORT /* sanitizer builds: see CMakeLists.txt */
#define IS_SHORT 0
#endif
#define PAD 3 /* floats between rows, which no kernel may touch */

/* The tested types of weights; quantized ones with both sizes of groups, affine ones with one each:
 * no kernel depends on group and width together. */
static const struct kind {
    enum dtype t;
    uint32_t group;
} kinds[] = {{DTYPE_F32, 0}, {DTYPE_F16, 0},  {DTYPE_BF16, 0}, {DTYPE_I8, 32},  {DTYPE_I8, 128},
             {DTYPE_I4, 32}, {DTYPE_I4, 128}, {DTYPE_A8, 32},  {DTYPE_A4, 128}, {DTYPE_F8, 128}};

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

/* Activations of a product with bf16 or F8 weights are bf16 numbers here: kernels may round them.
 * */
static void problem_init(struct problem *p, struct kind kind, uint32_t n_rows, uint32_t n,
                         uint32_t k)
{
    bool quantized = kind.t >= DTYPE_FLOATS;

    *p = (struct problem){.n_rows = n_rows, .a_stride = k + PAD, .out_stride = n + PAD};
    p->packed = aligned_alloc(64, (pack_bytes(kind.t, n, k, kind.group) + 127) / 64 * 64);
    assert_non_null(p->packed);
    memset(p->packed, 0, pack_bytes(kind.t, n, k, kind.group));
    p->w = (struct weight){.dtype = kind.t, .n = n, .k = k, .group = kind.group, .data = p->packed};
    if (quantized) {
        pack_random(&p->w);
    } else {
        void *src = random_elements(kind.t, (size_t)n * k);

        pack_rows(&p->w, 0, src, n);
        free(src);
    }
    p->a = random_floats(n_rows * p->a_stride);
    bool rounds = kind.t == DTYPE_BF16 || kind.t == DTYPE_F8;
    for (size_t i = 0; rounds && i < n_rows * p->a_stride; i++) {
        uint16_t h;

        dtype_store(DTYPE_BF16, &h, 0, p->a[i]);
        p->a[i] = dtype_load(DTYPE_BF16, &h, 0);
    }
    p->bias = random_floats(n);
    p->old = random_floats(n_rows * p->out_stride);
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

/* Products of whole numbers are integers and a fixed chain of fused multiply-adds, so they equal
 * the reference bit for bit; but not without an instruction for the latter. */
static bool is_exact(struct device *d, enum dtype t)
{
    return t >= DTYPE_FLOATS && t != DTYPE_F8 && strcmp(device_ops(d)->name, "cpu-portable") != 0;
}

static void check_against_ref(struct device *d, struct kind kind, uint32_t n_rows, uint32_t n,
                              uint32_t k)
{
    bool few_flags = IS_SHORT || (uint64_t)n_rows * n * k > 100000; /* the reference is slow */
    struct problem p;
    char what[96];

    problem_init(&p, kind, n_rows, n, k);
    for (int flags = 0; flags < 4; flags += few_flags ? 3 : 1) {
        float *want = run_gemm(NULL, &p, 0, n_rows, flags & 1, flags & 2);
        float *got = run_gemm(d, &p, 0, n_rows, flags & 1, flags & 2);

        snprintf(what, sizeof(what), "%s dtype %d group %u rows %u n %u k %u flags %d",
                 device_ops(d)->name, kind.t, kind.group, n_rows, n, k, flags);
        if (is_exact(d, kind.t))
            check_same(what, got, want, n_rows * p.out_stride);
        else
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

    for (size_t t = 0; t < ARRAY_SIZE(kinds); t++) {
        if (IS_EMULATED) { /* all sizes of groups, K even, odd and a multiple of 8 */
            for (uint32_t n_rows = 0; n_rows <= 13; n_rows++)
                check_against_ref(d, kinds[t], n_rows, shapes[n_rows % 5][0],
                                  n_rows % 2 ? 200 : shapes[n_rows % 5][1]);
            check_against_ref(d, kinds[t], 27, 37, 129);
            check_against_ref(d, kinds[t], 131, 3, 72);
            continue;
        }
        for (uint32_t n_rows = 0; n_rows <= 14; n_rows++)
            for (size_t i = IS_SANITIZED ? n_rows % 2 : 0; i < ARRAY_SIZE(shapes);
                 i += IS_SANITIZED ? 2 : 1)
                check_against_ref(d, kinds[t], n_rows, shapes[i][0], shapes[i][1]);
        for (uint32_t n_rows = 15; n_rows <= 66; n_rows += 3) /* one, two and more tiles */
            check_against_ref(d, kinds[t], n_rows, 37, n_rows % 2 ? 256 : 96);
        check_against_ref(d, kinds[t], 1, 70, 1199);
        check_against_ref(d, kinds[t], 33, 70, 1199);
        check_against_ref(d, kinds[t], 131, 40, 33); /* longer than max_rows */
        check_against_ref(d, kinds[t], 100, 65, 1152);
    }
}

static void equals_reference_on_odd_sizes(void **state)
{
    (void)state;
    each_variant(3, sizes_on); /* other thread counts: the same bits, as another test shows */
}

static void nan_and_inf_on(struct device *d)
{
    for (size_t t = 0; t < ARRAY_SIZE(kinds); t++) {
        struct problem p;

        problem_init(&p, kinds[t], 33, 40, 128);
        p.a[2 * p.a_stride + 5] = NAN;
        p.a[7 * p.a_stride + 20] = INFINITY;
        p.a[30 * p.a_stride + 127] = -INFINITY;
        if (kinds[t].t < DTYPE_FLOATS)
            dtype_store(kinds[t].t, p.packed, 3, -INFINITY);
        else
            dtype_store(kinds[t].t == DTYPE_F8        ? DTYPE_F32
                        : dtype_is_affine(kinds[t].t) ? DTYPE_F16
                                                      : DTYPE_BF16,
                        p.packed, 3, NAN); /* the scale of a group of output 3 */
        float *want = run_gemm(NULL, &p, 0, 33, true, true);
        float *got = run_gemm(d, &p, 0, 33, true, true);
        check_close("nan and inf", got, want, 33 * p.out_stride, 1e-3, 1e-5);
        free(want);
        free(got);
        problem_fini(&p);
    }
}

/* Rows of zeros, of the smallest numbers, and of one number among zeros. */
static void extreme_rows_on(struct device *d)
{
    for (size_t t = 0; t < ARRAY_SIZE(kinds); t++) {
        struct problem p;

        problem_init(&p, kinds[t], 12, 33, 256);
        for (uint32_t i = 0; i < 256; i++) {
            p.a[i] = 0;
            p.a[3 * p.a_stride + i] = i % 2 ? 1e-40f : -1e-36f;
            p.a[5 * p.a_stride + i] = i == 77 ? -0x1p100f : 0;
        }
        float *want = run_gemm(NULL, &p, 0, 12, true, false);
        float *got = run_gemm(d, &p, 0, 12, true, false);
        check_close("extreme rows", got, want, 12 * p.out_stride, 1e-3, 1e-5);
        free(want);
        free(got);
        problem_fini(&p);
    }
}

static void zero_tiny_and_lonely_values_are_right(void **state)
{
    (void)state;
    each_variant(1, extreme_rows_on);
}

static void nan_and_inf_stay_in_their_row_and_column(void **state)
{
    (void)state;
    each_variant(2, nan_and_inf_on);
}

/* Check that every row of `all` (computed by `d` in one call) has the same bits in batches of other
 * sizes: all of `batches`, or every fifth. */
static void check_rows(struct device *d, const struct problem *p, const float *all, bool fifth)
{
    static const uint32_t batches[] = {1, 2, 3, 5, 6, 11, 12, 13, 24, 29, 37, 64};

    for (size_t b = 0; b < ARRAY_SIZE(batches); b += fifth ? 5 : 1) {
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

static void batch_invariance_of(const char *variant, struct kind kind, uint32_t k)
{
    struct problem p;
    float *first = NULL;

    problem_init(&p, kind, IS_EMULATED ? 41 : 131, IS_EMULATED ? 69 : 205, k);
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        struct device *d = open_device(DEVICE_CPU, variant, n_threads);

        if (!d)
            break;
        float *all = run_gemm(d, &p, 0, p.n_rows, true, true);
        if (first)
            check_same("threads", all, first, p.n_rows * p.out_stride);
        check_rows(d, &p, all, n_threads > 1 || k % 2 == 0);
        device_close(d);
        if (first)
            free(all);
        else
            first = all;
    }
    free(first);
    problem_fini(&p);
}

static void a_row_has_the_same_bits_in_any_batch_position_and_thread_count(void **state)
{
    (void)state;
    rng_seed(7);
    for (size_t i = 0; i < ARRAY_SIZE(variant_names); i++)
        for (size_t t = 0; t < ARRAY_SIZE(kinds); t++) {
            batch_invariance_of(variant_names[i], kinds[t], IS_EMULATED ? 141 : 301);
            if (!IS_SHORT || IS_EMULATED)
                batch_invariance_of(variant_names[i], kinds[t], IS_EMULATED ? 152 : 384);
        }
}

/* Outputs of many megabytes in whole lines are stored past the caches. */
static void large_outputs_have_the_bits_of_small_ones(void **state)
{
    const uint32_t n = 10505, n_rows = 101, stride = 10512, k = 128;
    float *all = aligned_alloc(64, n_rows * stride * sizeof(float));

    (void)state;
    assert_non_null(all);
    rng_seed(8);
    for (size_t i = 0; i < ARRAY_SIZE(variant_names); i++)
        for (size_t t = 2; t < ARRAY_SIZE(kinds); t += 5) { /* bf16 and a quantized type */
            struct device *d = open_device(DEVICE_CPU, variant_names[i], 2);
            struct problem p;

            if (!d)
                break;
            problem_init(&p, kinds[t], n_rows, n, k);
            struct gemm_params params = {.n_rows = n_rows,
                                         .a = p.a,
                                         .a_stride = p.a_stride,
                                         .w = p.w,
                                         .bias = p.bias,
                                         .out = all,
                                         .out_stride = stride};
            memset(all, 0xff, n_rows * stride * sizeof(float)); /* behind a row: kept as it is */
            assert_int_equal(device_ops(d)->gemm(d, NULL, &params), OK);
            for (uint32_t r = 0; r < n_rows; r += 50) {
                float *one = run_gemm(d, &p, r, 1, true, false);
                const uint32_t *behind = (const uint32_t *)(all + (size_t)r * stride + n);

                check_same(device_ops(d)->name, one, all + (size_t)r * stride, n);
                for (uint32_t c = 0; c < stride - n; c++)
                    assert_int_equal(behind[c], 0xffffffff);
                free(one);
            }
            problem_fini(&p);
            device_close(d);
        }
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference_on_odd_sizes),
        cmocka_unit_test(nan_and_inf_stay_in_their_row_and_column),
        cmocka_unit_test(zero_tiny_and_lonely_values_are_right),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_position_and_thread_count),
        cmocka_unit_test(large_outputs_have_the_bits_of_small_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
