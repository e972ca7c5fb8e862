/* test_pack.c - packed weights and scalar conversions. */
#include "tests/unit/kernels/kernel_test.h"

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* The value of a 16-bit pattern, computed from its fields. */
static double value_of_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);

    return h & 0x8000 ? -v : v;
}

static void f16_loads_every_pattern(void **state)
{
    (void)state;
    for (uint32_t u = 0; u < 65536; u++) {
        uint16_t h = (uint16_t)u;
        float f = dtype_load(DTYPE_F16, &h, 0);
        double want = value_of_f16(h);

        if (isnan(want)) {
            assert_true(isnan(f));
            continue;
        }
        assert_true(f == want && !signbit(f) == !signbit(want));
    }
}

static void f16_and_bf16_survive_the_round_trip(void **state)
{
    (void)state;
    for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
        for (uint32_t u = 0; u < 65536; u++) {
            uint16_t in = (uint16_t)u, out = 0;
            float f = dtype_load((enum dtype)t, &in, 0);

            dtype_store((enum dtype)t, &out, 0, f);
            if (isnan(f))
                assert_true(isnan(dtype_load((enum dtype)t, &out, 0)));
            else
                assert_int_equal(in, out);
        }
    }
}

/* Between each two neighbours: just below the middle, the middle, just above it. */
static void check_rounding(enum dtype t, uint32_t last_finite)
{
    for (uint32_t u = 0; u < last_finite; u++) {
        uint16_t lo = (uint16_t)u, hi = (uint16_t)(u + 1), got;
        float a = dtype_load(t, &lo, 0), b = dtype_load(t, &hi, 0);
        float mid = (float)(((double)a + b) / 2); /* exact: one more bit than a 16-bit float */
        float at[3] = {nextafterf(mid, a), mid, nextafterf(mid, b)};
        uint16_t want[3] = {lo, u % 2 == 0 ? lo : hi, hi};

        for (int i = 0; i < 3; i++) {
            dtype_store(t, &got, 0, at[i]);
            assert_int_equal(got, want[i]);
            dtype_store(t, &got, 0, -at[i]);
            assert_int_equal(got, want[i] | 0x8000);
        }
    }
}

static void stores_round_to_nearest_even(void **state)
{
    (void)state;
    check_rounding(DTYPE_F16, 0x7bff);
    check_rounding(DTYPE_BF16, 0x7f7f);
}

static void stores_overflow_to_inf_and_keep_nan(void **state)
{
    uint16_t h;

    (void)state;
    dtype_store(DTYPE_F16, &h, 0, 65519.99f);
    assert_int_equal(h, 0x7bff);
    dtype_store(DTYPE_F16, &h, 0, 65520.0f);
    assert_int_equal(h, 0x7c00);
    dtype_store(DTYPE_F16, &h, 0, -1e30f);
    assert_int_equal(h, 0xfc00);
    dtype_store(DTYPE_BF16, &h, 0, float_of(0x7f7fffff));
    assert_int_equal(h, 0x7f80);
    for (uint32_t low = 1; low < 0x800000; low = low * 2 + 1) { /* NaNs whose payload is low down */
        for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
            dtype_store((enum dtype)t, &h, 0, float_of(0xff800000u | low));
            assert_true(isnan(dtype_load((enum dtype)t, &h, 0)));
        }
    }
}

static struct weight make_weight(enum weight_layout layout, enum dtype t, uint32_t n, uint32_t k)
{
    struct weight w = {.dtype = t,
                       .layout = layout,
                       .n = n,
                       .k = k,
                       .stride = layout == WEIGHT_ROWS ? pack_row_stride(k) : 0};

    w.data = test_alloc(pack_weight_bytes(&w));
    return w;
}

static void free_weight(struct weight *w)
{
    free((void *)(uintptr_t)w->data);
}

static void check_pack(enum weight_layout layout, enum dtype t, uint32_t n, uint32_t k)
{
    size_t es = dtype_bytes(t);
    char *src = random_elements(t, (size_t)n * k);
    struct weight w = make_weight(layout, t, n, k);
    uint32_t cut1 = n / 3, cut2 = n - n / 4;

    /* In three parts, the last first, from a source that is only aligned to its element. */
    char *shifted = test_alloc((size_t)n * k * es + es);
    memcpy(shifted + es, src, (size_t)n * k * es);
    pack_rows(&w, cut2, shifted + es + (size_t)cut2 * k * es, n - cut2);
    pack_rows(&w, 0, shifted + es, cut1);
    pack_rows(&w, cut1, shifted + es + (size_t)cut1 * k * es, cut2 - cut1);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++)
            assert_true(pack_at(&w, i, j) == dtype_load(t, src, (size_t)i * k + j));

    /* Places without an element are still zero: as many values differ from zero as in src. */
    size_t n_slots = pack_weight_bytes(&w) / es, n_set = 0, n_src = 0;
    for (size_t i = 0; i < n_slots; i++)
        n_set += dtype_load(t, w.data, i) != 0;
    for (size_t i = 0; i < (size_t)n * k; i++)
        n_src += dtype_load(t, src, i) != 0;
    assert_int_equal(n_set, n_src);
    free(shifted);
    free_weight(&w);
    free(src);
}

static void pack_rows_puts_each_element_where_pack_at_reads_it(void **state)
{
    static const uint32_t sizes[][2] = {{1, 1},  {1, 2},    {31, 3},  {32, 4},   {33, 127},
                                        {96, 5}, {65, 128}, {7, 129}, {100, 257}};

    (void)state;
    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            check_pack(WEIGHT_PANELS, (enum dtype)t, sizes[i][0], sizes[i][1]);
            check_pack(WEIGHT_ROWS, (enum dtype)t, sizes[i][0], sizes[i][1]);
        }
}

/* Row n begins at n * stride and holds its source as it is, whatever the stride. */
static void rows_are_the_source_at_a_stride(void **state)
{
    enum { N = 5, K = 70, STRIDE = 73 };

    (void)state;
    for (int t = 0; t < DTYPE_FLOATS; t++) {
        size_t es = dtype_bytes((enum dtype)t);
        char *src = random_elements((enum dtype)t, (size_t)N * K);
        struct weight w = {
            .dtype = (enum dtype)t, .layout = WEIGHT_ROWS, .n = N, .k = K, .stride = STRIDE};

        assert_int_equal(pack_weight_bytes(&w), N * STRIDE * es);
        w.data = test_alloc(N * STRIDE * es);
        pack_rows(&w, 0, src, N);
        for (size_t n = 0; n < N; n++)
            assert_memory_equal((const char *)w.data + n * STRIDE * es, src + n * K * es, K * es);
        free_weight(&w);
        free(src);
    }
}

static void pieces_of_rows_make_the_whole(void **state)
{
    enum { N = 41, K = 130 };
    struct pack_range to[2], of[2];

    (void)state;
    for (int t = 0; t < DTYPE_FLOATS; t++) {
        size_t row = K * dtype_bytes((enum dtype)t);
        char *src = random_elements((enum dtype)t, (size_t)N * K);
        struct weight whole = make_weight(WEIGHT_ROWS, (enum dtype)t, N, K);
        struct weight again = make_weight(WEIGHT_ROWS, (enum dtype)t, N, K);

        pack_rows(&whole, 0, src, N);
        for (uint32_t n0 = 0, n; n0 < N; n0 += n) {
            n = 1 + rng_below(N - n0);
            struct weight piece = make_weight(WEIGHT_ROWS, (enum dtype)t, n, K);

            pack_rows(&piece, 0, src + n0 * row, n);
            assert_int_equal(pack_row_ranges(&again, n0, n, to), 1);
            assert_int_equal(pack_row_ranges(&piece, 0, n, of), 1);
            assert_int_equal(to[0].n_bytes, of[0].n_bytes);
            memcpy((char *)(uintptr_t)again.data + to[0].offset,
                   (const char *)piece.data + of[0].offset, of[0].n_bytes);
            free_weight(&piece);
        }
        assert_memory_equal(again.data, whole.data, pack_weight_bytes(&whole));
        free_weight(&again);
        free_weight(&whole);
        free(src);
    }
}

static void sizes_are_whole_panels(void **state)
{
    (void)state;
    assert_int_equal(pack_bytes(DTYPE_F32, 33, 5, 0), 2 * 5 * 32 * 4);
    assert_int_equal(pack_bytes(DTYPE_F16, 32, 5, 0), 5 * 32 * 2);
    assert_int_equal(pack_bytes(DTYPE_BF16, 1, 5, 0), 6 * 32 * 2);
    assert_int_equal(pack_bytes(DTYPE_BF16, 0, 5, 0), 0);
    /* More than 4 GB must not wrap. */
    assert_true(pack_bytes(DTYPE_F32, 1u << 20, 1u << 16, 0) == (size_t)1 << 38);
}

static void sizes_are_whole_rows(void **state)
{
    struct weight w = {
        .dtype = DTYPE_BF16, .layout = WEIGHT_ROWS, .n = 1u << 20, .k = 0xff81, .stride = 1u << 16};

    (void)state;
    assert_int_equal(pack_row_stride(1), 128);
    assert_int_equal(pack_row_stride(128), 128);
    assert_int_equal(pack_row_stride(129), 256);
    /* More than 4 GB must not wrap. */
    assert_int_equal(pack_row_stride(w.k), w.stride);
    assert_true(pack_weight_bytes(&w) == (size_t)1 << 37);
    w.dtype = DTYPE_I4;
    w.group = 32;
    assert_true(pack_weight_bytes(&w) == ((size_t)1 << 35) + ((size_t)1 << 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_loads_every_pattern),
        cmocka_unit_test(f16_and_bf16_survive_the_round_trip),
        cmocka_unit_test(stores_round_to_nearest_even),
        cmocka_unit_test(stores_overflow_to_inf_and_keep_nan),
        cmocka_unit_test(pack_rows_puts_each_element_where_pack_at_reads_it),
        cmocka_unit_test(rows_are_the_source_at_a_stride),
        cmocka_unit_test(pieces_of_rows_make_the_whole),
        cmocka_unit_test(sizes_are_whole_panels),
        cmocka_unit_test(sizes_are_whole_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
