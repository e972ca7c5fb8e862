/* test_f8.c - weights of F8 numbers: the quantizer's choice of numbers and scales, their places in
 * both layouts as the drawing in pack.h has them, and rows of embedding tables. */
#include "kernels/quantize.h"
#include "kernels/ref/ref.h"
#include "tests/unit/kernels/kernel_test.h"

#define GROUP 128

static const uint32_t shapes[][2] = {{1, 1},    {1, 8},   {31, 3},   {32, 32},  {33, 33},
                                     {65, 128}, {7, 129}, {40, 161}, {100, 257}};

static struct weight make_weight(enum weight_layout layout, uint32_t n, uint32_t k)
{
    struct weight w = {.dtype = DTYPE_F8,
                       .layout = layout,
                       .n = n,
                       .k = k,
                       .group = GROUP,
                       .stride = layout == WEIGHT_ROWS ? pack_row_stride(k) : 0};

    w.data = test_alloc(pack_weight_bytes(&w));
    return w;
}

static void free_weight(struct weight *w)
{
    free((void *)(uintptr_t)w->data);
}

/* fn(zeroed weight, floats of its size) for both layouts and every shape. */
static void each_case(void (*fn)(struct weight *w, const float *x))
{
    rng_seed(3);
    for (size_t c = 0; c < 2 * ARRAY_SIZE(shapes); c++) {
        struct weight w =
            make_weight(c % 2 ? WEIGHT_ROWS : WEIGHT_PANELS, shapes[c / 2][0], shapes[c / 2][1]);
        float *x = random_floats((size_t)w.n * w.k);

        fn(&w, x);
        free(x);
        free_weight(&w);
    }
}

static float largest(const float *x, uint32_t n)
{
    float max = 0;

    for (uint32_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    return max;
}

/* The numbers are those that KV in fp8 would have: of quantize.c and kv_layout.h, one is wrong
 * otherwise. */
static void check_numbers_of(struct weight *w, const float *x)
{
    pack_quantize_rows(w, 0, DTYPE_F32, x, w->n);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            const float *group = x + (size_t)n * w->k + k / GROUP * GROUP;
            uint32_t n_k = w->k - k / GROUP * GROUP;
            struct kv_scale s = kv_scale_of(DTYPE_F8, largest(group, n_k < GROUP ? n_k : GROUP));
            unsigned char want = kv_round(DTYPE_F8, group[k % GROUP] * s.inverse);

            assert_int_equal(pack_int_at(w, n, k), want);
            assert_true(pack_scale_at(w, n, k) == s.scale);
            assert_true(pack_at(w, n, k) == kv_unrounded(DTYPE_F8, want) * s.scale);
        }
}

static void numbers_and_scales_are_those_of_kv_in_fp8(void **state)
{
    (void)state;
    each_case(check_numbers_of);
}

/* Quantizing in parts, and with each set of instructions of this machine, gives the same bytes. */
static void check_splits_of(struct weight *w, const float *x)
{
    uint32_t cut1 = w->n / 3, cut2 = w->n - w->n / 4;

    pack_quantize_rows(w, 0, DTYPE_F32, x, w->n);
    for (uint32_t path = 0; path < quantize_n_paths(); path++) {
        struct weight again = make_weight(w->layout, w->n, w->k);

        quantize_rows_on(path, &again, cut2, DTYPE_F32, x + (size_t)cut2 * w->k, w->n - cut2);
        quantize_rows_on(path, &again, 0, DTYPE_F32, x, cut1);
        quantize_rows_on(path, &again, cut1, DTYPE_F32, x + (size_t)cut1 * w->k, cut2 - cut1);
        assert_memory_equal(again.data, w->data, pack_weight_bytes(w));
        free_weight(&again);
    }
}

static void splits_and_paths_give_the_same_bytes(void **state)
{
    (void)state;
    each_case(check_splits_of);
}

static void rows_of_16_bit_floats_are_quantized_as_the_floats_that_they_are(void **state)
{
    enum { N = 33, K = 150 };

    (void)state;
    rng_seed(5);
    for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
        void *src = random_elements((enum dtype)t, (size_t)N * K);
        float *x = test_alloc(sizeof *x * N * K);
        struct weight a = make_weight(WEIGHT_PANELS, N, K), b = make_weight(WEIGHT_PANELS, N, K);

        dtype_convert(DTYPE_F32, x, (enum dtype)t, src, (size_t)N * K);
        pack_quantize_rows(&a, 0, (enum dtype)t, src, N);
        pack_quantize_rows(&b, 0, DTYPE_F32, x, N);
        assert_memory_equal(a.data, b.data, pack_weight_bytes(&a));
        free(src);
        free(x);
        free_weight(&a);
        free_weight(&b);
    }
}

static void a_group_with_nan_or_inf_is_nan_and_one_of_zeros_is_zeros(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct weight w = make_weight(i % 2 ? WEIGHT_ROWS : WEIGHT_PANELS, 3, 300);
        float *x = random_floats(900);

        x[300 + 200] = bad[i];
        for (uint32_t k = 0; k < GROUP; k++)
            x[600 + k] = k % 2 ? 0.0f : -1e-38f;
        pack_quantize_rows(&w, 0, DTYPE_F32, x, 3);
        for (uint32_t n = 0; n < 3; n++)
            for (uint32_t k = 0; k < 300; k++)
                assert_int_equal(isnan(pack_at(&w, n, k)), n == 1 && k / GROUP == 1);
        for (uint32_t k = 0; k < GROUP; k++)
            assert_true(pack_at(&w, 2, k) == 0);
        free(x);
        free_weight(&w);
    }
}

/* Write a number and its scale by the drawing in pack.h, without pack.c. */
static void draw_one(unsigned char *p, const struct weight *w, uint32_t n, uint32_t k, uint8_t code,
                     float scale)
{
    size_t i = k % GROUP, group = k / GROUP, n_groups = (w->k + GROUP - 1) / GROUP;

    if (w->layout == WEIGHT_ROWS) {
        size_t word = k / 4 % 16, place = word / 2 % 4 * 4 + word / 8 * 2 + word % 2;
        size_t scales = (w->n * (size_t)w->stride + 255) / 256 * 256;

        p[(size_t)n * w->stride + k / 64 * 64 + place * 4 + k % 4] = code;
        memcpy(p + scales + (n * (w->stride / GROUP) + group) * 4, &scale, 4);
        return;
    }
    size_t last = w->k - (n_groups - 1) * GROUP, whole = 128 + GROUP * 32;
    size_t panel = (n_groups - 1) * whole + 128 + (last + 3) / 4 * 128;

    p += n / 32 * panel + group * whole;
    memcpy(p + n % 32 * 4, &scale, 4);
    p[128 + i / 4 * 128 + n % 32 * 4 + i % 4] = code;
}

static void check_drawing_of(struct weight *w, const float *x)
{
    uint32_t n_groups = (w->k - 1) / GROUP + 1;
    unsigned char *want = test_alloc(pack_weight_bytes(w));
    uint8_t *codes = test_alloc((size_t)w->n * w->k);

    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            codes[(size_t)n * w->k + k] = (uint8_t)rng_below(256);
            draw_one(want, w, n, k, codes[(size_t)n * w->k + k], x[n * n_groups + k / GROUP]);
        }
    pack_coded_rows(w, 0, codes, x, NULL, GROUP, w->n);
    assert_memory_equal(w->data, want, pack_weight_bytes(w));
    free(codes);
    free(want);
}

static void numbers_and_scales_lie_as_drawn_with_zeros_behind_them(void **state)
{
    (void)state;
    each_case(check_drawing_of);
}

static void embedding_rows_on(struct device *d)
{
    static const uint32_t ids[] = {0, 31, 32, 99, 5, 5};
    enum { K = 161, ROWS = ARRAY_SIZE(ids) };
    struct weight w = make_weight(WEIGHT_PANELS, 100, K);
    float *x = random_floats(100 * K), out[ROWS * K];
    struct embed_params p = {
        .n_rows = ROWS, .dim = K, .n_vocab = 100, .table = w, .ids = ids, .out = out};

    pack_quantize_rows(&w, 0, DTYPE_F32, x, 100);
    assert_int_equal(device_ops(d)->embed(d, NULL, &p), OK);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < K; k++)
            assert_true(out[r * K + k] == pack_at(&w, ids[r], k));
    free(x);
    free_weight(&w);
}

static void embedding_rows_have_the_bits_of_the_elements(void **state)
{
    (void)state;
    each_variant(2, embedding_rows_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_scales_are_those_of_kv_in_fp8),
        cmocka_unit_test(splits_and_paths_give_the_same_bytes),
        cmocka_unit_test(rows_of_16_bit_floats_are_quantized_as_the_floats_that_they_are),
        cmocka_unit_test(a_group_with_nan_or_inf_is_nan_and_one_of_zeros_is_zeros),
        cmocka_unit_test(numbers_and_scales_lie_as_drawn_with_zeros_behind_them),
        cmocka_unit_test(embedding_rows_have_the_bits_of_the_elements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
