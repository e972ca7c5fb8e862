/* test_quantize.c - int8 and int4 weights: the quantizer's promises about its numbers, the same
 * result for every division of the work, and products of the reference kernel. */
#include "kernels/quantize.h"
#include "kernels/ref/ref.h"
#include "tests/unit/kernels/kernel_test.h"

static const enum dtype types[] = {DTYPE_I8, DTYPE_I4};
static const uint32_t group_sizes[] = {32, 128};
static const uint32_t shapes[][2] = {{1, 1},    {1, 8},   {31, 3},   {32, 32},  {33, 33},
                                     {65, 128}, {7, 129}, {40, 161}, {100, 257}};

static struct weight make_in(enum weight_layout layout, enum dtype t, uint32_t n, uint32_t k,
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

static struct weight make_weight(enum dtype t, uint32_t n, uint32_t k, uint32_t group)
{
    return make_in(WEIGHT_PANELS, t, n, k, group);
}

static void free_weight(struct weight *w)
{
    free((void *)(uintptr_t)w->data);
}

static float bf16_of(float f)
{
    uint16_t h;

    dtype_store(DTYPE_BF16, &h, 0, f);
    return dtype_load(DTYPE_BF16, &h, 0);
}

static float largest(const float *x, uint32_t n)
{
    float max = 0;

    for (uint32_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    return max;
}

static bool has(const float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == value)
            return true;
    return false;
}

static double squared_error(const float *x, uint32_t n, double s)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        double q = fmin(fmax(rint(x[i] / s), -8), 7);
        sum += (x[i] - q * s) * (x[i] - q * s);
    }
    return sum;
}

/* Check one group of one output against the promises of pack.h. */
static void check_group(const struct weight *w, uint32_t row, uint32_t k0, const float *x,
                        uint32_t n)
{
    float s = pack_scale_at(w, row, k0), max = largest(x, n);
    double err = 0;

    assert_true(bf16_of(s) == s && isfinite(s) && fabsf(s) >= 0x1p-126f);
    for (uint32_t i = 0; i < n; i++) {
        int q = pack_int_at(w, row, k0 + i);
        double diff = fabs(x[i] - (double)q * s);

        assert_true(pack_scale_at(w, row, k0 + i) == s);
        assert_true(pack_at(w, row, k0 + i) == (float)q * s);
        if (w->dtype == DTYPE_I8)
            assert_in_range(q + 127, 0, 254);
        else
            assert_in_range(q + 8, 0, 15);
        /* Half a step, unless int4 was clipped at an end; 1 / s is rounded, hence a little more. */
        if (w->dtype == DTYPE_I8 || (q > -8 && q < 7))
            assert_true(diff <= fabs((double)s) * (0.5 + 1e-4));
        err += diff * diff;
    }
    if (w->dtype == DTYPE_I8) {
        /* The largest takes 124 steps at least (a little less where bf16 rounded up), and there is
         * none of 124 .. 127 that would hit it better. */
        double miss = INFINITY;
        for (int steps = 124; steps <= 127; steps++)
            miss = fmin(miss, fabs((double)max - (double)steps * bf16_of(max / (float)steps)));
        if (s > 0x1p-126f) {
            assert_true(s <= max / 124 * (1 + 0x1p-8f));
            miss += max * 1e-6;
            assert_true(fabs(max - rint((double)max / s) * s) <= miss);
        }
        return;
    }
    /* No worse than the plain choice, by which the largest (the negative one of two) becomes -8.
     * Where squares are normal numbers. */
    if (max > 1e-15f && max < 1e15f) {
        double plain = bf16_of(has(x, n, -max) ? max / 8 : -max / 8);
        assert_true(err <= squared_error(x, n, plain) * (1 + 1e-4));
    }
}

static void check_weight(const struct weight *w, const float *x)
{
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k += w->group)
            check_group(w, n, k, x + (size_t)n * w->k + k,
                        w->group < w->k - k ? w->group : w->k - k);
}

/* fn(weight, its rows as floats and in `from`) for every type, group, shape and source type. */
static void each_case(void (*fn)(struct weight *w, enum dtype from, const float *x,
                                 const void *src))
{
    rng_seed(7);
    for (size_t c = 0; c < ARRAY_SIZE(types) * ARRAY_SIZE(group_sizes) * ARRAY_SIZE(shapes); c++)
        for (int from = 0; from < DTYPE_FLOATS; from++) {
            const uint32_t *shape = shapes[c / 4];
            struct weight w = make_weight(types[c % 2], shape[0], shape[1], group_sizes[c / 2 % 2]);
            size_t n = (size_t)w.n * w.k;
            void *src = random_elements((enum dtype)from, n);
            float *x = test_alloc(n * sizeof *x);

            for (size_t i = 0; i < n; i++)
                x[i] = dtype_load((enum dtype)from, src, i);
            fn(&w, (enum dtype)from, x, src);
            free(x);
            free(src);
            free_weight(&w);
        }
}

static void check_bounds_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    pack_quantize_rows(w, 0, from, src, w->n);
    check_weight(w, x);
}

static void every_element_is_within_half_a_step(void **state)
{
    (void)state;
    each_case(check_bounds_of);
}

/* Quantizing in three parts, the last first, from an address that is aligned to an element only,
 * and with each set of instructions of this machine gives the same bytes. */
static void check_splits_in(enum weight_layout layout, const struct weight *like, enum dtype from,
                            const void *src)
{
    struct weight w = make_in(layout, like->dtype, like->n, like->k, like->group);
    size_t es = dtype_bytes(from), row = w.k * es;
    uint32_t cut1 = w.n / 3, cut2 = w.n - w.n / 4;
    char *shifted = test_alloc(w.n * row + es);

    pack_quantize_rows(&w, 0, from, src, w.n);
    memcpy(shifted + es, src, w.n * row);
    for (uint32_t path = 0; path < quantize_n_paths(); path++) {
        struct weight again = make_in(layout, w.dtype, w.n, w.k, w.group);

        quantize_rows_on(path, &again, cut2, from, shifted + es + cut2 * row, w.n - cut2);
        quantize_rows_on(path, &again, 0, from, shifted + es, cut1);
        quantize_rows_on(path, &again, cut1, from, shifted + es + cut1 * row, cut2 - cut1);
        assert_memory_equal(again.data, w.data, pack_weight_bytes(&w));
        free_weight(&again);
    }
    free(shifted);
    free_weight(&w);
}

static void check_splits_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    (void)x;
    check_splits_in(WEIGHT_PANELS, w, from, src);
    check_splits_in(WEIGHT_ROWS, w, from, src);
}

static void splits_and_paths_give_the_same_bytes(void **state)
{
    (void)state;
    each_case(check_splits_of);
}

/* Rows that were not given keep their zeros, next to some that were. */
static void check_neighbours_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    uint32_t row = w->n / 2;
    size_t row_bytes = w->k * dtype_bytes(from);

    (void)x;
    pack_quantize_rows(w, row, from, (const char *)src + row * row_bytes, 1);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; n != row && k < w->k; k++) {
            assert_true(pack_scale_at(w, n, k) == 0);
            assert_int_equal(pack_int_at(w, n, k), w->dtype == DTYPE_I8 ? -128 : -8);
        }
}

static void other_rows_are_left_alone(void **state)
{
    (void)state;
    each_case(check_neighbours_of);
}

/* The padding after K, in the last group, and after N is 0, which kernels rely on. */
static void check_padding_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    const unsigned char *p = w->data;
    size_t n_bytes = pack_bytes(w->dtype, w->n, w->k, w->group);
    unsigned char *used = test_alloc(n_bytes);
    uint32_t per_quad = w->dtype == DTYPE_I8 ? 4 : 8;

    (void)x;
    pack_quantize_rows(w, 0, from, src, w->n);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            struct pack_group g = pack_group_of(w, n, k);
            size_t i = k % w->group,
                   quad = (size_t)(g.quad - p) + pack_quad_offset(&g, (uint32_t)i / per_quad);

            memset(used + (g.scale - p), 0xff, 2);
            used[quad + i % 4] |= w->dtype == DTYPE_I8 ? 0xff : i % 8 < 4 ? 0x0f : 0xf0;
        }
    for (size_t i = 0; i < n_bytes; i++)
        assert_int_equal(p[i] & ~used[i], 0);
    free(used);
}

static void padding_stays_zero(void **state)
{
    (void)state;
    each_case(check_padding_of);
}

/* The layout changes where a number lies, never the number. */
static void check_rows_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    struct weight rows = make_in(WEIGHT_ROWS, w->dtype, w->n, w->k, w->group);

    (void)x;
    pack_quantize_rows(w, 0, from, src, w->n);
    pack_quantize_rows(&rows, 0, from, src, w->n);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++) {
            float want = pack_scale_at(w, n, k), got = pack_scale_at(&rows, n, k);

            assert_memory_equal(&got, &want, sizeof got);
            assert_int_equal(pack_int_at(&rows, n, k), pack_int_at(w, n, k));
        }
    free_weight(&rows);
}

static void rows_hold_the_same_numbers_as_panels(void **state)
{
    (void)state;
    each_case(check_rows_of);
}

/* Check the bytes against the drawing in pack.h, without pack.c: each element is at its place, and
 * all other bytes are 0. */
static void check_drawing_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    struct weight rows = make_in(WEIGHT_ROWS, w->dtype, w->n, w->k, w->group);
    uint32_t stride = (w->k + 127) / 128 * 128, bits = w->dtype == DTYPE_I8 ? 8 : 4;
    size_t elements = (size_t)w->n * stride * bits / 8, scales = (elements + 255) / 256 * 256;
    const unsigned char *p = rows.data;
    uint32_t word;

    (void)x;
    assert_int_equal(rows.stride, stride);
    assert_int_equal(pack_weight_bytes(&rows), scales + w->n * (stride / w->group) * (size_t)2);
    pack_quantize_rows(&rows, 0, from, src, w->n);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < stride; k++) {
            size_t e = (size_t)n * stride + k, at = n * (stride / w->group) + k / w->group;
            bool behind = k >= w->k, no_group = k / w->group * w->group >= w->k;
            float scale = dtype_load(DTYPE_BF16, p + scales, at), want = NAN;
            size_t i = e / 4 % 16, place = e / 64 * 16 + i / 2 % 4 * 4 + i / 8 * 2 + i % 2;
            int zero = w->dtype == DTYPE_I8 ? 128 : 8;
            int u = w->dtype == DTYPE_I8 ? p[place * 4 + e % 4] : 0;

            if (w->dtype == DTYPE_I4) {
                size_t at_word = e / 8; /* rows are whole chunks of 16 words */
                at_word = at_word / 16 * 16 + at_word % 4 * 4 + at_word / 4 % 4;
                memcpy(&word, p + at_word * 4, 4);
                u = word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15;
            }
            assert_int_equal(u, behind ? 0 : pack_int_at(&rows, n, k) + zero);
            want = no_group ? 0 : pack_scale_at(&rows, n, k / w->group * w->group);
            assert_memory_equal(&scale, &want, sizeof want);
        }
    for (size_t i = elements; i < scales; i++)
        assert_int_equal(p[i], 0);
    free_weight(&rows);
}

static void rows_lie_as_drawn_with_zeros_behind_them(void **state)
{
    (void)state;
    each_case(check_drawing_of);
}

/* Packed as weights of their own and copied range by range, pieces make the whole. */
static void check_pieces_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    struct weight whole = make_in(WEIGHT_ROWS, w->dtype, w->n, w->k, w->group);
    struct weight again = make_in(WEIGHT_ROWS, w->dtype, w->n, w->k, w->group);
    size_t row = w->k * dtype_bytes(from);
    struct pack_range to[2], of[2];

    (void)x;
    pack_quantize_rows(&whole, 0, from, src, w->n);
    for (uint32_t n0 = 0, n; n0 < w->n; n0 += n) {
        n = 1 + rng_below(w->n - n0);
        struct weight piece = make_in(WEIGHT_ROWS, w->dtype, n, w->k, w->group);

        pack_quantize_rows(&piece, 0, from, (const char *)src + n0 * row, n);
        assert_int_equal(pack_row_ranges(&again, n0, n, to), 2);
        assert_int_equal(pack_row_ranges(&piece, 0, n, of), 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(to[i].n_bytes, of[i].n_bytes);
            memcpy((char *)(uintptr_t)again.data + to[i].offset,
                   (const char *)piece.data + of[i].offset, of[i].n_bytes);
        }
        free_weight(&piece);
    }
    assert_memory_equal(again.data, whole.data, pack_weight_bytes(&whole));
    free_weight(&again);
    free_weight(&whole);
}

static void pieces_of_rows_make_the_whole(void **state)
{
    (void)state;
    each_case(check_pieces_of);
}

/* Groups of one magnitude each, from the least denormal to the largest float. */
static void any_magnitude_works(void **state)
{
    static const float magnitudes[] = {0,      0x1p-149f, 1e-44f, 1e-40f, 0x1p-126f,
                                       1e-37f, 1e-36f,    1e-30f, 1e-20f, 1e-6f,
                                       1,      1e6f,      1e20f,  1e36f,  3e38f};
    float x[ARRAY_SIZE(magnitudes) * 32];

    (void)state;
    rng_seed(3);
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        float u = (float)(int32_t)rng_u32() * 0x1p-31f;
        x[i] = magnitudes[i / 32] * (i % 32 == 5 ? 1 : u);
    }
    for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
        struct weight w = make_weight(types[t], 1, ARRAY_SIZE(x), 32);

        pack_quantize_rows(&w, 0, DTYPE_F32, x, 1);
        check_weight(&w, x);
        for (uint32_t k = 0; k < 32; k++)
            assert_true(pack_at(&w, 0, k) == 0);
        free_weight(&w);
    }
}

/* Over many groups of normally distributed numbers, as weights are, the search over scales lowers
 * the squared error by at least 5 % compared with the plain scale (measured: 10 %). */
static void int4_gains_from_its_search(void **state)
{
    enum { N = 128 };
    float x[N * 32];
    struct weight w = make_weight(DTYPE_I4, 1, N * 32, 32);
    double got = 0, plain = 0;

    (void)state;
    rng_seed(4);
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        int64_t sum = 0;
        for (int j = 0; j < 6; j++)
            sum += (int32_t)rng_u32();
        x[i] = (float)sum * 0x1p-31f;
    }
    pack_quantize_rows(&w, 0, DTYPE_F32, x, 1);
    for (uint32_t k = 0; k < N * 32; k += 32) {
        float max = largest(x + k, 32);

        plain += squared_error(x + k, 32, bf16_of(has(x + k, 32, -max) ? max / 8 : -max / 8));
        for (uint32_t i = k; i < k + 32; i++)
            got += pow((double)x[i] - pack_at(&w, 0, i), 2);
    }
    if (!(got < 0.95 * plain))
        fail_msg("%g of the plain scale's error", got / plain);
    free_weight(&w);
}

/* A NaN or an infinity spoils its group, of its row, and nothing else. */
static void nan_and_inf_spoil_their_group_only(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(types); t++)
        for (int from = 0; from < DTYPE_FLOATS; from++)
            for (size_t b = 0; b < ARRAY_SIZE(bad); b++) {
                struct weight w = make_weight(types[t], 20, 70, 32);
                void *src = random_elements((enum dtype)from, (size_t)20 * 70);

                dtype_store((enum dtype)from, src, 17 * 70 + 40, bad[b]);
                pack_quantize_rows(&w, 0, (enum dtype)from, src, 20);
                for (uint32_t n = 0; n < 20; n++)
                    for (uint32_t k = 0; k < 70; k++)
                        assert_int_equal(!!isnan(pack_at(&w, n, k)), n == 17 && k / 32 == 1);
                free(src);
                free_weight(&w);
            }
}

static void sizes_count_scales_and_short_groups(void **state)
{
    (void)state;
    /* 32 scales of 2 bytes, then 4 bytes per output and quad. */
    assert_int_equal(pack_group_bytes(DTYPE_I8, 32), 64 + 8 * 128);
    assert_int_equal(pack_group_bytes(DTYPE_I8, 5), 64 + 2 * 128);
    assert_int_equal(pack_group_bytes(DTYPE_I4, 128), 64 + 16 * 128);
    assert_int_equal(pack_group_bytes(DTYPE_I4, 9), 64 + 2 * 128);
    assert_int_equal(pack_panel_bytes(DTYPE_I8, 37, 32), 64 + 8 * 128 + 64 + 2 * 128);
    assert_int_equal(pack_panel_bytes(DTYPE_I4, 128, 128), 64 + 16 * 128);
    assert_int_equal(pack_bytes(DTYPE_I4, 33, 32, 32), 2 * (64 + 4 * 128));
    /* More than 4 GB must not wrap. */
    assert_true(pack_bytes(DTYPE_I8, 1u << 20, 1u << 16, 32) > (size_t)1 << 36);
}

/* --- the reference product --- */

/* The same product in double, from dequantized weights and activations. Every term is exact there,
 * so that only the reference kernel's own roundings are between them. */
static double product(const struct weight *w, uint32_t n, const float *a, double *magnitude)
{
    const uint32_t group = quant_group(w);
    float max = 0;
    double sum = 0;

    *magnitude = 0;
    for (uint32_t k = 0; k < w->k; k++) {
        if (k % group == 0)
            max = largest(a + k, w->k - k < group ? w->k - k : group);
        double term = rint(a[k] * (127 / max)) * ((double)max / 127) * pack_at(w, n, k);

        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

static void check_ref_gemm_of(struct weight *w, enum dtype from, const float *x, const void *src)
{
    enum { ROWS = 3 };
    float *a = random_floats((size_t)ROWS * w->k), *bias = random_floats(w->n);
    float *out = random_floats((size_t)ROWS * w->n);
    float *old = test_alloc(ROWS * w->n * sizeof *old);
    struct gemm_params p = {.n_rows = ROWS,
                            .a = a,
                            .a_stride = w->k,
                            .w = *w,
                            .bias = bias,
                            .accumulate = 1,
                            .out = out,
                            .out_stride = w->n};

    (void)x;
    memcpy(old, out, ROWS * w->n * sizeof *old);
    pack_quantize_rows(w, 0, from, src, w->n);
    assert_int_equal(ref_gemm(NULL, NULL, &p), OK);
    for (uint32_t t = 0; t < ROWS; t++)
        for (uint32_t n = 0; n < w->n; n++) {
            double magnitude, before = old[t * w->n + n];
            double want = product(w, n, a + t * w->k, &magnitude) + bias[n] + before;

            magnitude += fabs((double)bias[n]) + fabs(before);
            if (!(fabs(out[t * w->n + n] - want) <= magnitude * 4e-7))
                fail_msg("[%u, %u] is %.9g, want %.9g", t, n, out[t * w->n + n], want);
        }
    free(old);
    free(out);
    free(bias);
    free(a);
}

static void the_reference_product_is_that_of_the_dequantized_weights(void **state)
{
    (void)state;
    each_case(check_ref_gemm_of);
}

/* An element that is far larger than all others costs only its own group's precision. */
static void an_outlier_costs_its_own_group_alone(void **state)
{
    enum { K = 256 };
    static const uint32_t groups[] = {32, 128};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
        struct weight w = make_weight(DTYPE_I8, 1, K, groups[i]);
        float *x = random_floats(K), *a = random_floats(K), out;
        struct gemm_params p = {.n_rows = 1, .a = a, .a_stride = K, .out = &out, .out_stride = 1};
        double want = 0, magnitude = 0;

        for (uint32_t k = 64; k < 64 + quant_group(&w); k++)
            a[k] = k == 70 ? 1000 : 0;
        x[70] = 0; /* the outlier itself adds nothing */
        pack_quantize_rows(&w, 0, DTYPE_F32, x, 1);
        p.w = w;
        assert_int_equal(ref_gemm(NULL, NULL, &p), OK);
        for (uint32_t k = 0; k < K; k++) {
            want += (double)a[k] * pack_at(&w, 0, k);
            magnitude += fabs((double)a[k] * pack_at(&w, 0, k));
        }
        if (!(fabs(out - want) <= magnitude / 100))
            fail_msg("groups of %u: %.9g, want %.9g", groups[i], out, want);
        free(x);
        free(a);
        free_weight(&w);
    }
}

/* Groups of activations that cannot be scaled: zeros, almost zeros, no numbers. */
static void odd_rows_of_activations(void **state)
{
    struct weight w = make_weight(DTYPE_I8, 3, 40, 32);
    float *x = random_floats(3 * 40);
    float a[5][40] = {{0}}, out[5][3];
    struct gemm_params p = {.n_rows = 5, .a = a[0], .a_stride = 40, .out = out[0], .out_stride = 3};

    (void)state;
    a[1][3] = QUANT_MIN / 2;
    a[2][3] = QUANT_MIN;
    a[3][3] = NAN;
    a[4][39] = -INFINITY;
    pack_quantize_rows(&w, 0, DTYPE_F32, x, 3);
    p.w = w;
    assert_int_equal(ref_gemm(NULL, NULL, &p), OK);
    for (int n = 0; n < 3; n++) {
        assert_true(out[0][n] == 0 && out[1][n] == 0);
        assert_true(fabsf(out[2][n] / QUANT_MIN - pack_at(&w, (uint32_t)n, 3)) < 1e-5f);
        assert_true(isnan(out[3][n]) && isnan(out[4][n]));
    }
    free(x);
    free_weight(&w);
}

static void embedding_rows_are_dequantized(void **state)
{
    struct weight w = make_weight(DTYPE_I8, 50, 37, 32);
    float *x = random_floats(50 * 37), out[2 * 37];
    uint32_t ids[] = {49, 3};
    struct embed_params p = {
        .n_rows = 2, .dim = 37, .n_vocab = 50, .table = w, .ids = ids, .out = out};

    (void)state;
    pack_quantize_rows(&w, 0, DTYPE_F32, x, 50);
    assert_int_equal(ref_embed(NULL, NULL, &p), OK);
    for (uint32_t i = 0; i < 2 * 37; i++)
        assert_true(out[i] == pack_at(&w, ids[i / 37], i % 37));
    free(x);
    free_weight(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_within_half_a_step),
        cmocka_unit_test(splits_and_paths_give_the_same_bytes),
        cmocka_unit_test(other_rows_are_left_alone),
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(rows_hold_the_same_numbers_as_panels),
        cmocka_unit_test(rows_lie_as_drawn_with_zeros_behind_them),
        cmocka_unit_test(pieces_of_rows_make_the_whole),
        cmocka_unit_test(any_magnitude_works),
        cmocka_unit_test(int4_gains_from_its_search),
        cmocka_unit_test(nan_and_inf_spoil_their_group_only),
        cmocka_unit_test(sizes_count_scales_and_short_groups),
        cmocka_unit_test(the_reference_product_is_that_of_the_dequantized_weights),
        cmocka_unit_test(an_outlier_costs_its_own_group_alone),
        cmocka_unit_test(odd_rows_of_activations),
        cmocka_unit_test(embedding_rows_are_dequantized),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
