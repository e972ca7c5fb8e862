/* test_affine.c - weights of codes with a scale and an offset per group: each number is where the
 * drawing in pack.h has it, and stands for the element that the checkpoint means. */
#include "kernels/quantize.h"
#include "kernels/ref/ref.h"
#include "tests/unit/kernels/kernel_test.h"

static const enum dtype types[] = {DTYPE_A8, DTYPE_A4};
static const uint32_t group_sizes[] = {32, 128};
static const uint32_t shapes[][2] = {{1, 1},    {1, 8},   {31, 3},   {32, 32},  {33, 33},
                                     {65, 128}, {7, 129}, {40, 161}, {100, 257}};

static struct weight make_weight(enum weight_layout layout, enum dtype t, uint32_t n, uint32_t k,
                                 uint32_t group)
{
    struct weight w = {.dtype = t,
                       .layout = layout,
                       .n = n,
                       .k = k,
                       .group = group,
                       .stride = layout == WEIGHT_ROWS ? pack_row_stride(k) : 0};

    w.data = test_alloc(pack_weight_bytes(&w));
    return w;
}

static void free_weight(struct weight *w)
{
    free((void *)(uintptr_t)w->data);
}

/* fn(zeroed weight, its source) for every type, layout, group and shape, with sources whose groups
 * are those of the weight and longer. */
static void each_case(void (*fn)(struct weight *w, const struct affine *a))
{
    rng_seed(11);
    for (size_t c = 0; c < ARRAY_SIZE(shapes) * 16; c++) {
        const uint32_t *shape = shapes[c / 16];
        enum weight_layout layout = c / 2 % 2 ? WEIGHT_ROWS : WEIGHT_PANELS;
        uint32_t group = group_sizes[c / 4 % 2], times = c / 8 % 2 ? 4 : 1;
        struct weight w = make_weight(layout, types[c % 2], shape[0], shape[1], group);
        struct affine a = random_affine(dtype_bits(w.dtype), w.n, w.k, group * times);

        fn(&w, &a);
        affine_free(&a);
        free_weight(&w);
    }
}

static float f16_of(float f)
{
    uint16_t h;

    dtype_store(DTYPE_F16, &h, 0, f);
    return dtype_load(DTYPE_F16, &h, 0);
}

static void check_numbers_of(struct weight *w, const struct affine *a)
{
    pack_affine(w, 0, a, 0, w->n);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            uint8_t code = a->codes[(size_t)n * w->k + k];
            size_t group = (size_t)n * a->n_groups + k / a->group;
            float scale = f16_of(a->scales[group]), offset = f16_of(a->offsets[group]);

            assert_int_equal(pack_int_at(w, n, k), code);
            assert_true(pack_scale_at(w, n, k) == scale);
            assert_true(pack_offset_at(w, n, k) == offset);
            /* One rounding: the exact number in double, rounded to float. */
            assert_true(pack_at(w, n, k) == (float)((double)code * scale + offset));
        }
}

static void each_element_is_its_code_times_scale_plus_offset(void **state)
{
    (void)state;
    each_case(check_numbers_of);
}

/* Packing in three parts, the last first, gives the same bytes; and rows that were not given keep
 * their zeros. */
static void check_splits_of(struct weight *w, const struct affine *a)
{
    struct weight again = make_weight(w->layout, w->dtype, w->n, w->k, w->group);
    uint32_t cut1 = w->n / 3, cut2 = w->n - w->n / 4;

    pack_affine(w, 0, a, 0, w->n);
    pack_affine(&again, cut2, a, cut2, w->n - cut2);
    pack_affine(&again, 0, a, 0, cut1);
    for (uint32_t n = cut1; n < cut2; n++)
        for (uint32_t k = 0; k < w->k; k++)
            assert_true(pack_int_at(&again, n, k) == 0 && pack_scale_at(&again, n, k) == 0 &&
                        pack_offset_at(&again, n, k) == 0);
    pack_affine(&again, cut1, a, cut1, cut2 - cut1);
    assert_memory_equal(again.data, w->data, pack_weight_bytes(w));
    free_weight(&again);
}

static void rows_in_any_pieces_and_order_give_the_same_bytes(void **state)
{
    (void)state;
    each_case(check_splits_of);
}

/* The same bytes by the drawing in pack.h, without pack.c. */
static void draw(unsigned char *p, const struct weight *w, const struct affine *a)
{
    uint32_t bits = w->dtype == DTYPE_A8 ? 8 : 4, per_step = 32 / bits;
    size_t row = (size_t)w->stride * bits / 8, heads = (w->n * row + 255) / 256 * 256;
    size_t whole = 128 + w->group / per_step * (size_t)128; /* a group of a panel */
    size_t panel = w->k / w->group * whole;

    if (w->k % w->group)
        panel += 128 + (w->k % w->group + per_step - 1) / per_step * 128;
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            size_t from = (size_t)n * a->n_groups + k / a->group;
            uint8_t code = a->codes[(size_t)n * w->k + k];
            size_t group = n / 32 * panel + k / w->group * whole, i = k % w->group, head, at;

            if (w->layout == WEIGHT_PANELS) {
                head = group / 2 + n % 32;
                dtype_store(DTYPE_F16, p, head + 32, a->offsets[from]);
                at = group + 128 + i / per_step * 128 + n % 32 * 4 + i % 4;
                p[at] |= (uint8_t)(code << (bits == 4 && i % 8 >= 4 ? 4 : 0));
            } else {
                head = heads / 2 + ((size_t)n * (w->stride / w->group) + k / w->group) * 2;
                dtype_store(DTYPE_F16, p, head + 1, a->offsets[from]);
                size_t word = k / per_step, of = word % 16; /* of 16 words */
                at = bits == 8 ? of / 2 % 4 * 4 + of / 8 * 2 + of % 2 : of % 4 * 4 + of / 4;
                at = n * row + (word - of + at) * 4;
                at += bits == 8 ? k % 4 : k % 2 * 2 + k % 8 / 4;
                p[at] |= (uint8_t)(code << (bits == 4 ? k % 4 / 2 * 4 : 0));
            }
            dtype_store(DTYPE_F16, p, head, a->scales[from]);
        }
}

static void check_drawing_of(struct weight *w, const struct affine *a)
{
    unsigned char *want = test_alloc(pack_weight_bytes(w));

    draw(want, w, a);
    pack_affine(w, 0, a, 0, w->n);
    assert_memory_equal(w->data, want, pack_weight_bytes(w));
    free(want);
}

static void numbers_lie_as_drawn_with_zeros_behind_them(void **state)
{
    (void)state;
    each_case(check_drawing_of);
}

/* Packed as weights of their own and copied range by range, pieces of rows make the whole. */
static void check_pieces_of(struct weight *w, const struct affine *a)
{
    struct pack_range to[2], of[2];

    if (w->layout != WEIGHT_ROWS)
        return;
    struct weight again = make_weight(WEIGHT_ROWS, w->dtype, w->n, w->k, w->group);
    pack_affine(w, 0, a, 0, w->n);
    for (uint32_t n0 = 0, n; n0 < w->n; n0 += n) {
        n = 1 + rng_below(w->n - n0);
        struct weight piece = make_weight(WEIGHT_ROWS, w->dtype, n, w->k, w->group);

        pack_affine(&piece, 0, a, n0, n);
        assert_int_equal(pack_row_ranges(&again, n0, n, to), 2);
        assert_int_equal(pack_row_ranges(&piece, 0, n, of), 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(to[i].n_bytes, of[i].n_bytes);
            memcpy((char *)(uintptr_t)again.data + to[i].offset,
                   (const char *)piece.data + of[i].offset, of[i].n_bytes);
        }
        free_weight(&piece);
    }
    assert_memory_equal(again.data, w->data, pack_weight_bytes(w));
    free_weight(&again);
}

static void pieces_of_rows_make_the_whole(void **state)
{
    (void)state;
    each_case(check_pieces_of);
}

static void a_code_too_large_for_4_bits_does_not_touch_its_neighbours(void **state)
{
    uint8_t codes[40];
    float scale[2] = {1, 1}, offset[2] = {0, 0};

    (void)state;
    for (int layout = WEIGHT_PANELS; layout <= WEIGHT_ROWS; layout++) {
        struct weight w = make_weight((enum weight_layout)layout, DTYPE_A4, 1, 40, 32);

        for (uint32_t k = 0; k < 40; k++)
            codes[k] = k % 3 == 0 ? 0xf5 : 2;
        pack_coded_rows(&w, 0, codes, scale, offset, 32, 1);
        for (uint32_t k = 0; k < 40; k++)
            assert_int_equal(pack_int_at(&w, 0, k), k % 3 == 0 ? 5 : 2);
        free_weight(&w);
    }
}

/* The same product in double, with activations as they are quantized. */
static double product(const struct weight *w, uint32_t n, const float *a, double *magnitude)
{
    float max = 0;
    double sum = 0;

    *magnitude = 0;
    for (uint32_t k = 0; k < w->k; k++) {
        if (k % quant_group(w) == 0) {
            max = 0;
            for (uint32_t i = k; i < w->k && i < k + quant_group(w); i++)
                max = fmaxf(max, fabsf(a[i]));
        }
        double q = rint(a[k] * (127 / max)) * ((double)max / 127), scale = pack_scale_at(w, n, k);

        sum += q * (pack_int_at(w, n, k) * scale + pack_offset_at(w, n, k));
        *magnitude +=
            fabs(q) * (pack_int_at(w, n, k) * fabs(scale) + fabs(pack_offset_at(w, n, k)));
    }
    return sum;
}

static void check_ref_gemm_of(struct weight *w, const struct affine *source)
{
    enum { ROWS = 3 };
    float *a = random_floats((size_t)ROWS * w->k), *out = random_floats((size_t)ROWS * w->n);
    struct gemm_params p = {
        .n_rows = ROWS, .a = a, .a_stride = w->k, .w = *w, .out = out, .out_stride = w->n};

    pack_affine(w, 0, source, 0, w->n);
    assert_int_equal(ref_gemm(NULL, NULL, &p), OK);
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t n = 0; n < w->n; n++) {
            double magnitude, want = product(w, n, a + t * w->k, &magnitude);

            if (!(fabs(out[t * w->n + n] - want) <= magnitude * 4e-7))
                fail_msg("[%u, %u] is %.9g, want %.9g", t, n, out[t * w->n + n], want);
        }
    free(out);
    free(a);
}

static void the_reference_product_is_that_of_the_exact_weights(void **state)
{
    (void)state;
    each_case(check_ref_gemm_of);
}

static void embedding_rows_have_the_bits_of_the_elements_on(struct device *d)
{
    static const uint32_t ids[] = {49, 3, 31, 32};

    for (size_t g = 0; g < ARRAY_SIZE(group_sizes); g++)
        for (uint32_t k = 1; k <= 257; k += 64) {
            struct weight w = make_weight(WEIGHT_PANELS, DTYPE_A8, 50, k, group_sizes[g]);
            float *out = test_alloc(ARRAY_SIZE(ids) * k * sizeof *out);
            struct embed_params p = {.n_rows = ARRAY_SIZE(ids),
                                     .dim = k,
                                     .n_vocab = 50,
                                     .table = w,
                                     .ids = ids,
                                     .out = out};

            pack_random(&w);
            assert_int_equal(d ? device_ops(d)->embed(d, NULL, &p) : ref_embed(NULL, NULL, &p), OK);
            for (uint32_t i = 0; i < ARRAY_SIZE(ids) * k; i++)
                assert_true(out[i] == pack_at(&w, ids[i / k], i % k));
            free(out);
            free_weight(&w);
        }
}

static void embedding_rows_have_the_bits_of_the_elements(void **state)
{
    (void)state;
    embedding_rows_have_the_bits_of_the_elements_on(NULL);
    each_variant(2, embedding_rows_have_the_bits_of_the_elements_on);
}

static void sizes_count_scales_and_offsets(void **state)
{
    struct weight w = {
        .dtype = DTYPE_A4, .layout = WEIGHT_ROWS, .n = 3, .k = 100, .group = 32, .stride = 128};

    (void)state;
    assert_int_equal(pack_group_bytes(DTYPE_A8, 32), 128 + 8 * 128);
    assert_int_equal(pack_group_bytes(DTYPE_A4, 9), 128 + 2 * 128);
    assert_int_equal(pack_panel_bytes(DTYPE_A4, 128, 128), 128 + 16 * 128);
    assert_int_equal(pack_weight_bytes(&w), 256 + 3 * 4 * 4);
    w.dtype = DTYPE_A8;
    assert_int_equal(pack_weight_bytes(&w), 512 + 3 * 4 * 4);
    /* More than 4 GB must not wrap. */
    assert_true(pack_bytes(DTYPE_A8, 1u << 20, 1u << 16, 32) > (size_t)1 << 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_is_its_code_times_scale_plus_offset),
        cmocka_unit_test(rows_in_any_pieces_and_order_give_the_same_bytes),
        cmocka_unit_test(numbers_lie_as_drawn_with_zeros_behind_them),
        cmocka_unit_test(pieces_of_rows_make_the_whole),
        cmocka_unit_test(a_code_too_large_for_4_bits_does_not_touch_its_neighbours),
        cmocka_unit_test(the_reference_product_is_that_of_the_exact_weights),
        cmocka_unit_test(embedding_rows_have_the_bits_of_the_elements),
        cmocka_unit_test(sizes_count_scales_and_offsets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
