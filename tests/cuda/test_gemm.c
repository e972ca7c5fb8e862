/* test_gemm.c - matrix products on the GPU: compared with the reference, and bits of a row compared
 * between batches. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

/* Functions of the emulation (emulation.h); NULL on a real GPU. */
void emulation_refuse_products(int refuse) __attribute__((weak));
uint64_t emulation_products_by(unsigned algorithm) __attribute__((weak));
void emulation_fail_call(uint64_t n, int error) __attribute__((weak));
uint64_t emulation_calls(void) __attribute__((weak));

/* The shape, types and options of a product. */
struct spec {
    enum dtype t;
    uint32_t group, n_rows, n, k;
    bool bias, accumulate, invariant;
};

/* A product with its operands on host and device. `host` has the activations rounded as the kernels
 * round them. */
struct operands {
    struct device *d;
    struct gemm_params host, device;
    float *a;          /* activations for the device, row stride a_stride */
    float *old;        /* out before the product */
    size_t n_a, n_out; /* elements of a and out, including the gaps between rows */
};

static const struct {
    enum dtype t;
    uint32_t group;
    const char *name;
} types[] = {{DTYPE_F32, 0, "f32"},     {DTYPE_F16, 0, "f16"},     {DTYPE_BF16, 0, "bf16"},
             {DTYPE_I8, 32, "i8/32"},   {DTYPE_I8, 128, "i8/128"}, {DTYPE_I4, 32, "i4/32"},
             {DTYPE_I4, 128, "i4/128"}, {DTYPE_A8, 32, "a8/32"},   {DTYPE_A8, 128, "a8/128"},
             {DTYPE_A4, 32, "a4/32"},   {DTYPE_A4, 128, "a4/128"}, {DTYPE_F8, 128, "f8"}};

/* In the emulation max_rows is smaller than the number of rows, so that steps are split. */
static struct device *open_device(bool invariant)
{
    struct device_config config = {.kind = DEVICE_CUDA,
                                   .max_rows = full_size() ? 2048 : 150,
                                   .max_k = full_size() ? 14336 : 2048,
                                   .max_heads = 1,
                                   .max_head_dim = 64,
                                   .batch_invariant = invariant};

    return cuda_device_for(&config);
}

/* Repeat a random block of odd length, because drawing full-size weights would take minutes. */
static float *long_random_array(size_t n, float scale)
{
    enum { BLOCK = 1000003 };
    float *x, *block;

    if (n <= BLOCK)
        return random_array(n, scale);
    block = random_array(BLOCK, scale);
    x = host_array(n * sizeof *x);
    for (size_t i = 0; i < n; i += BLOCK)
        memcpy(x + i, block, (n - i < BLOCK ? n - i : BLOCK) * sizeof *x);
    return x;
}

static struct weight empty_weight(enum weight_layout layout, enum dtype t, uint32_t group,
                                  uint32_t n, uint32_t k)
{
    struct weight w = {.dtype = t,
                       .layout = layout,
                       .n = n,
                       .k = k,
                       .group = group,
                       .stride = layout == WEIGHT_ROWS ? pack_row_stride(k) : 0};

    w.data = host_array(pack_weight_bytes(&w));
    return w;
}

/* Rows of one packing task. */
#define PACK_ROWS 64

struct packing {
    struct weight *w;
    const float *x;
    char *elements; /* [n, k] in w's type; NULL for integer weights */
};

static void pack_some_rows(void *arg, uint32_t i)
{
    const struct packing *p = arg;
    uint32_t row0 = i * PACK_ROWS, n = p->w->n - row0 < PACK_ROWS ? p->w->n - row0 : PACK_ROWS;
    size_t first = (size_t)row0 * p->w->k, end = first + (size_t)n * p->w->k;

    if (!p->elements) {
        quantize_rows(p->w, row0, p->x + first, n);
        return;
    }
    for (size_t e = first; e < end; e++)
        dtype_store(p->w->dtype, p->elements, e, p->x[e]);
    pack_rows(p->w, row0, p->elements + first * dtype_bytes(p->w->dtype), n);
}

/* Make a weight, on all host threads: full-size weights have up to 600 million elements. */
static struct weight make_weight(struct device *d, enum dtype t, uint32_t group, uint32_t n,
                                 uint32_t k, const float *x)
{
    struct weight w = empty_weight(WEIGHT_ROWS, t, group, n, k);
    struct packing p = {.w = &w, .x = x};

    if (t < DTYPE_FLOATS)
        p.elements = host_array((size_t)n * k * dtype_bytes(t));
    device_parallel(d, (n + PACK_ROWS - 1) / PACK_ROWS, pack_some_rows, &p);
    return w;
}

/* Rows rows[0 .. n) of w for the reference, as floats; integers are multiplied by their scales. */
static struct weight float_weight(const struct weight *w, const uint32_t *rows, uint32_t n)
{
    struct weight f = empty_weight(WEIGHT_PANELS, DTYPE_F32, 0, n, w->k);
    float *row = host_array(w->k * sizeof *row);

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < w->k; k++)
            row[k] = pack_at(w, rows ? rows[i] : i, k);
        pack_rows(&f, i, row, 1);
    }
    return f;
}

/* An activation as the device rounds it for weights of type t (params.h). */
static float rounded(enum dtype t, float x)
{
    uint16_t h;

    if (t == DTYPE_F32)
        return x;
    dtype_store(t == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16, &h, 0, x);
    x = dtype_load(t == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16, &h, 0);
    return t >= DTYPE_FLOATS && isinf(x) ? NAN : x;
}

static float *rounded_rows(const struct operands *o, const uint32_t *rows, uint32_t n)
{
    const struct gemm_params *p = &o->host;
    float *a = host_array((size_t)n * p->w.k * sizeof *a);

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < p->w.k; k++)
            a[(size_t)i * p->w.k + k] =
                rounded(p->w.dtype, o->a[(rows ? rows[i] : i) * p->a_stride + k]);
    return a;
}

/* Make operands whose row strides are a little larger than the rows, to test the strides. */
static struct operands make_operands(const struct spec *s)
{
    struct operands o = {.d = open_device(s->invariant)};
    struct gemm_params *p = &o.host;
    float *w = long_random_array((size_t)s->n * s->k, 1 / sqrtf((float)s->k));

    *p = (struct gemm_params){.n_rows = s->n_rows,
                              .a_stride = s->k + 3,
                              .out_stride = s->n + 5,
                              .accumulate = s->accumulate};
    o.n_a = s->n_rows * p->a_stride;
    o.n_out = s->n_rows * p->out_stride;
    o.a = long_random_array(o.n_a, 1);
    o.old = long_random_array(o.n_out, 1);
    p->w = make_weight(o.d, s->t, s->group, s->n, s->k, w);
    p->bias = s->bias ? random_array(s->n, 1) : NULL;
    return o;
}

static void send(struct operands *o)
{
    struct gemm_params *p = &o->device;

    *p = o->host;
    p->a = on_device(o->d, o->a, o->n_a * sizeof(float));
    p->w.data = on_device(o->d, p->w.data, pack_weight_bytes(&p->w));
    p->bias = p->bias ? on_device(o->d, p->bias, p->w.n * sizeof(float)) : NULL;
    p->out = on_device(o->d, o->old, o->n_out * sizeof(float));
}

static float *run(const struct operands *o)
{
    assert_ok(device_ops(o->d)->gemm(o->d, NULL, &o->device));
    return from_device(o->d, o->device.out, o->n_out * sizeof(float));
}

/* The tolerance for sums of k terms with a variance of 1. The GPU's matrix units truncate where
 * IEEE arithmetic would round, once per 16 elements, so the error grows with k. */
static float tolerance(const struct spec *s)
{
    return full_size() ? 3e-6f * sqrtf((float)s->k) : s->k > 200 ? 1e-5f : 3e-6f;
}

/* Compare outputs [rows[i], cols[j]] with the reference. NULL: compare all outputs, and check that
 * the gaps between rows are unchanged. */
static void check_against_reference(const struct spec *s, const struct operands *o,
                                    const float *got, const uint32_t *rows, uint32_t n_rows,
                                    const uint32_t *cols, uint32_t n_cols)
{
    struct gemm_params p = o->host;
    float *bias = host_array(n_cols * sizeof *bias);
    float *want = host_array((size_t)n_rows * n_cols * sizeof *want);
    float *sampled = host_array((size_t)n_rows * n_cols * sizeof *sampled);
    char what[100];

    for (uint32_t j = 0; s->bias && j < n_cols; j++)
        bias[j] = o->host.bias[cols ? cols[j] : j];
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < n_cols; j++) {
            size_t at = (rows ? rows[i] : i) * p.out_stride + (cols ? cols[j] : j);

            want[(size_t)i * n_cols + j] = o->old[at];
            sampled[(size_t)i * n_cols + j] = got[at];
        }
    p.a = rounded_rows(o, rows, n_rows);
    p.a_stride = p.w.k;
    p.w = float_weight(&o->host.w, cols, n_cols);
    p.bias = s->bias ? bias : NULL;
    p.n_rows = n_rows;
    p.out = want;
    p.out_stride = n_cols;
    assert_ok(ref_gemm(NULL, NULL, &p));
    snprintf(what, sizeof what, "dtype %d/%u [%u, %u] x [%u, %u]%s%s%s", s->t, s->group, s->n_rows,
             s->k, s->n, s->k, s->bias ? " bias" : "", s->accumulate ? " add" : "",
             s->invariant ? " invariant" : "");
    assert_close(what, sampled, want, (size_t)n_rows * n_cols, tolerance(s), 1e-5f);
    for (uint32_t t = 0; !rows && t < n_rows; t++)
        assert_same_bits("behind a row", got + t * o->host.out_stride + s->n,
                         o->old + t * o->host.out_stride + s->n,
                         (o->host.out_stride - s->n) * sizeof(float));
}

static void check_spec(const struct spec *s)
{
    struct operands o = make_operands(s);

    send(&o);
    check_against_reference(s, &o, run(&o), NULL, s->n_rows, NULL, s->n);
    cuda_test_free_all(o.d);
}

static void small_shapes_match_reference(void **state)
{
    static const uint32_t shapes[][3] = {/* T, N, K */
                                         {1, 1, 1},    {3, 31, 33},  {1, 33, 127}, {8, 16, 128},
                                         {9, 17, 129}, {16, 33, 31}, {17, 257, 5}, {33, 31, 300}};

    (void)state;
    seed_random(1);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(types) * ARRAY_SIZE(shapes); i++) {
        const uint32_t *shape = shapes[i % ARRAY_SIZE(shapes)];
        size_t t = i / ARRAY_SIZE(shapes) % ARRAY_SIZE(types);
        struct spec s = {
            types[t].t, types[t].group, shape[0],  shape[1],
            shape[2],   i % 2,          i / 2 % 2, i >= ARRAY_SIZE(types) * ARRAY_SIZE(shapes)};
        check_spec(&s);
    }
}

/* Check bias and old values with each kernel and with cuBLASLt. */
static void bias_and_old_values_are_added_once(void **state)
{
    (void)state;
    seed_random(2);
    for (int i = 0; i < 8; i++)
        for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
            struct spec s = {types[t].t, types[t].group, 5, 37, 130, i & 1, i & 2, i & 4};
            check_spec(&s);
        }
}

/* Ranges of K of unequal length, many tiles, and more rows than the device has scratch for. */
static void larger_shapes_match_reference(void **state)
{
    static const uint32_t shapes[][3] = {{65, 70, 1152}, {151, 257, 140}, {130, 260, 256}};

    (void)state;
    seed_random(3);
    for (int invariant = 0; invariant < 2; invariant++)
        for (size_t i = 0; i < ARRAY_SIZE(types) * ARRAY_SIZE(shapes); i++) {
            const uint32_t *shape = shapes[i % ARRAY_SIZE(shapes)];
            size_t t = i / ARRAY_SIZE(shapes);
            struct spec s = {types[t].t, types[t].group, shape[0],   shape[1],
                             shape[2],   i % 2,          i % 3 == 1, invariant};

            if (i % 2 == (size_t)invariant || types[t].t < DTYPE_FLOATS)
                check_spec(&s);
        }
}

/* The bias is aligned to one element only. */
static void any_alignment_of_floats_will_do(void **state)
{
    (void)state;
    seed_random(4);
    for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
        struct spec s = {types[t].t, types[t].group, 4, 35, 64, true, true, false};
        struct operands o = make_operands(&s);
        float *bias = host_array((s.n + 1) * sizeof *bias);
        float *a = host_array((o.n_a + 1) * sizeof *a);

        send(&o);
        memcpy(bias + 1, o.host.bias, s.n * sizeof *bias);
        memcpy(a + 1, o.a, o.n_a * sizeof *a);
        o.device.bias = (float *)on_device(o.d, bias, (s.n + 1) * sizeof *bias) + 1;
        o.device.a = (float *)on_device(o.d, a, (o.n_a + 1) * sizeof *a) + 1;
        check_against_reference(&s, &o, run(&o), NULL, s.n_rows, NULL, s.n);
        cuda_test_free_all(o.d);
    }
}

/* Check that n_rows rows from `first` on, computed alone, have the bits of `want`. */
static void check_rows_alone(const struct operands *o, uint32_t first, uint32_t n_rows,
                             const float *want)
{
    const struct gemm_params *all = &o->device;
    struct gemm_params p = *all;
    size_t n_bytes = n_rows * p.out_stride * sizeof(float);
    char what[60];

    p.n_rows = n_rows;
    p.a += first * p.a_stride;
    p.out = on_device(o->d, o->old + first * p.out_stride, n_bytes);
    assert_ok(device_ops(o->d)->gemm(o->d, NULL, &p));
    snprintf(what, sizeof what, "dtype %d/%u, rows %u to %u alone", p.w.dtype, p.w.group, first,
             first + n_rows - 1);
    assert_same_bits(what, from_device(o->d, p.out, n_bytes), want + first * p.out_stride, n_bytes);
}

/* Promise P1: a row has the same bits alone, among few rows, and in every kind of tile. */
static void a_row_has_the_same_bits_among_any_number(void **state)
{
    static const uint32_t counts[] = {1, 2, 8, 9, 15, 16, 17, 32, 33, 64, 65, 100, 129};
    static const uint32_t shapes[][2] = {{257, 140}, {40, 1160}}; /* N, K */

    (void)state;
    seed_random(5);
    for (size_t i = 0; i < ARRAY_SIZE(types) * ARRAY_SIZE(shapes); i++) {
        const uint32_t *shape = shapes[i % ARRAY_SIZE(shapes)];
        struct spec s = {types[i / ARRAY_SIZE(shapes)].t,
                         types[i / ARRAY_SIZE(shapes)].group,
                         140,
                         shape[0],
                         shape[1],
                         true,
                         true,
                         true};
        struct operands o = make_operands(&s);
        const float *want;

        send(&o);
        want = run(&o);
        for (size_t c = 0; c < ARRAY_SIZE(counts); c++)
            check_rows_alone(&o, c % 2 ? s.n_rows - counts[c] : 0, counts[c], want);
        check_rows_alone(&o, 77, 1, want);
        cuda_test_free_all(o.d);
    }
}

static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    seed_random(6);
    for (int invariant = 0; invariant < 2; invariant++)
        for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
            struct spec s = {types[t].t, types[t].group, 20, 45, 520, true, true, invariant};
            struct operands o = make_operands(&s);
            const float *first;

            send(&o);
            first = run(&o);
            for (int i = 0; i < 3; i++) {
                o.device.out = on_device(o.d, o.old, o.n_out * sizeof(float));
                assert_same_bits("again", run(&o), first, o.n_out * sizeof(float));
            }
            cuda_test_free_all(o.d);
        }
}

/* NaN and infinities in activations and weights follow IEEE rules for float weights. With integer
 * weights they make the whole row NaN, or all outputs of their group. Other rows keep their
 * bits. */
static void nan_and_inf_come_out_where_they_went_in(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    enum { ROWS = 19, N = 35, K = 200 };

    (void)state;
    seed_random(7);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(bad) * ARRAY_SIZE(types); i++) {
        enum dtype t = types[i % ARRAY_SIZE(types)].t;
        uint32_t group = types[i % ARRAY_SIZE(types)].group;
        float one = bad[i / ARRAY_SIZE(types) % ARRAY_SIZE(bad)];
        struct spec s = {t, group, ROWS,  N,
                         K, true,  false, i >= ARRAY_SIZE(bad) * ARRAY_SIZE(types)};
        struct operands o = make_operands(&s);
        float *x = random_array((size_t)N * K, 0.1f);
        const float *clean, *got;

        send(&o);
        clean = run(&o);
        o.a[3 * o.host.a_stride + 150] = one;
        o.a[18 * o.host.a_stride] = one;
        send(&o);
        got = run(&o);
        check_against_reference(&s, &o, got, NULL, ROWS, NULL, N);
        for (uint32_t r = 0; r < ROWS; r++)
            if (r != 3 && r != 18)
                assert_same_bits("a clean row", got + r * o.host.out_stride,
                                 clean + r * o.host.out_stride, N * sizeof(float));
        x[34 * K + 199] = one;
        x[5 * K] = one;
        o.host.w = make_weight(o.d, t, group, N, K, x);
        send(&o);
        check_against_reference(&s, &o, run(&o), NULL, ROWS, NULL, N);
        cuda_test_free_all(o.d);
    }
}

/* If cuBLASLt refuses a product for which it found an algorithm, Tarn's own kernels compute it.
 * Test each type that uses cuBLASLt, and the same shape twice. */
static void a_product_that_the_library_refuses_is_computed_here(void **state)
{
    (void)state;
    if (!emulation_refuse_products)
        skip(); /* the real library cannot be made to refuse */
    seed_random(10);
    emulation_refuse_products(1);
    for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
        struct spec s = {types[t].t, types[t].group, 21, 52, 136, true, true, false};

        check_spec(&s);
        check_spec(&s);
    }
    emulation_refuse_products(0);
}

/* The emulated library's fastest algorithm adds in another order, and the second and third fastest
 * have the bits of its first proposal. More rows than 64 are proposed another order. */
static void the_fastest_algorithm_with_the_same_bits_is_kept(void **state)
{
    static const uint32_t n_rows[] = {64, 70, 96, 96, 70, 97, 120};

    (void)state;
    if (!emulation_products_by)
        skip(); /* a real library has no counts */
    seed_random(13);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(n_rows); i++) {
        struct spec s = {
            i % 2 ? DTYPE_F32 : DTYPE_BF16, 0, n_rows[i / 2], 37, 300, i == 3, i % 3 == 0, false};
        struct operands o = make_operands(&s);
        uint64_t n_other;

        send(&o);
        const float *untimed = run(&o);
        device_tune(o.d, true);
        o.device.out = on_device(o.d, o.old, o.n_out * sizeof(float));
        (void)run(&o); /* garbage, if it is added */
        device_tune(o.d, false);
        uint64_t n_third = emulation_products_by(3);
        n_other = emulation_products_by(0) + emulation_products_by(1) + emulation_products_by(2);
        o.device.out = on_device(o.d, o.old, o.n_out * sizeof(float));
        assert_same_bits("timed", run(&o), untimed, o.n_out * sizeof(float));
        assert_int_equal(emulation_products_by(3), n_third + 1);
        assert_int_equal(emulation_products_by(0) + emulation_products_by(1) +
                             emulation_products_by(2),
                         n_other);
        cuda_test_free_all(o.d);
    }
}

/* Numbers of rows up to the next one of the form 2^i or 3 * 2^i share an algorithm. */
static void a_row_has_the_same_bits_among_rows_of_the_same_plan(void **state)
{
    static const uint32_t counts[] = {2, 9, 16, 16, 17, 24, 24, 66, 96, 96, 97, 128, 128};
    struct spec s = {DTYPE_BF16, 0, 128, 40, 500, true, false, false};
    struct operands o;
    const float *whole = NULL;

    (void)state;
    seed_random(14);
    o = make_operands(&s);
    send(&o);
    for (size_t i = ARRAY_SIZE(counts); i-- > 0;) {
        if (i > 0 && counts[i] == counts[i - 1]) { /* the most of a plan */
            o.device.n_rows = counts[i];
            whole = run(&o);
        } else {
            check_rows_alone(&o, 0, counts[i], whole);
        }
    }
    cuda_test_free_all(o.d);
}

#define OUT_OF_MEMORY 2 /* cudaErrorMemoryAllocation, which a context survives */

/* Each call that tuning makes fails once: the product then fails or is right, and so is the next
 * one, unless the library's failure has ended the device. */
static void a_failure_while_products_are_timed_ends_nothing(void **state)
{
    struct spec s = {DTYPE_BF16, 0, 70, 37, 200, true, false, false};
    uint64_t i = 1, n_calls, n_right = 0;

    (void)state;
    if (!emulation_fail_call || !emulation_calls)
        skip(); /* a real device cannot be made to fail */
    seed_random(15);
    do {
        struct operands o = make_operands(&s);

        send(&o);
        device_tune(o.d, true);
        n_calls = emulation_calls();
        emulation_fail_call(i, OUT_OF_MEMORY);
        enum status status = device_ops(o.d)->gemm(o.d, NULL, &o.device);
        n_calls = emulation_calls() - n_calls;
        emulation_fail_call(0, 0);
        if (n_calls < i)
            assert_ok(status);
        device_tune(o.d, false);
        if (!device_failure(o.d)) {
            check_against_reference(&s, &o, run(&o), NULL, s.n_rows, NULL, s.n);
            n_right++;
        }
        cuda_test_free_all(o.d);
        (void)open_device(true); /* closes the other one */
    } while (n_calls >= i++);
    assert_true(i > 20 && n_right > 10); /* of four algorithms */
}

static void check_rounded(const struct spec *s)
{
    struct operands o = make_operands(s);
    float *a = host_array((size_t)s->n_rows * s->k * sizeof *a);

    for (uint32_t t = 0; t < s->n_rows; t++)
        memcpy(a + (size_t)t * s->k, o.a + t * o.host.a_stride, s->k * sizeof *a);
    send(&o);
    const float *want = run(&o);
    const uint16_t *rows = round_rows(a, s->n_rows, s->k, s->t);

    o.device.a = NULL;
    o.device.rounded = on_device(o.d, rows, (size_t)s->n_rows * o.host.w.stride * sizeof *rows);
    o.device.out = on_device(o.d, o.old, o.n_out * sizeof(float));
    assert_same_bits("a product of rounded rows", run(&o), want, o.n_out * sizeof(float));
    cuda_test_free_all(o.d);
}

/* Also of more rows than the device has scratch for, by cuBLASLt and by each of our kernels. */
static void rows_that_are_rounded_already_give_the_same_bits(void **state)
{
    static const uint32_t n_rows[] = {1, 12, 40, 151};

    (void)state;
    seed_random(12);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(types) * ARRAY_SIZE(n_rows); i++) {
        size_t t = i / 2 % ARRAY_SIZE(types);
        struct spec s = {.t = types[t].t,
                         .group = types[t].group,
                         .n_rows = n_rows[i / 2 / ARRAY_SIZE(types)],
                         .n = 37,
                         .k = 300,
                         .invariant = i % 2};

        if (s.t != DTYPE_F32)
            check_rounded(&s);
    }
}

static void no_rows_do_nothing(void **state)
{
    struct spec s = {DTYPE_BF16, 0, 2, 3, 4, false, false, false};
    struct operands o = make_operands(&s);

    (void)state;
    send(&o);
    o.device.n_rows = 0;
    assert_same_bits("out", run(&o), o.old, o.n_out * sizeof(float));
    cuda_test_free_all(o.d);
}

/* --- full size --- */

/* Compare a sample of the outputs of the first n_rows rows with the reference. For an invariant
 * product, also check the bits of one row alone. */
static void check_sample(const struct spec *whole, const struct operands *all, uint32_t n_rows)
{
    enum { ROWS = 6, COLS = 48 };
    uint32_t rows[ROWS], cols[COLS];
    uint32_t n = n_rows < ROWS ? n_rows : ROWS, n_cols = whole->n < COLS ? whole->n : COLS;
    struct spec s = *whole;
    struct operands o = *all;
    const float *got;

    s.n_rows = o.host.n_rows = o.device.n_rows = n_rows;
    o.n_out = n_rows * o.host.out_stride;
    o.device.out = on_device(o.d, o.old, o.n_out * sizeof(float));
    got = run(&o);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = n_rows <= ROWS ? i : i == 0 ? n_rows - 1 : random_below(n_rows);
    for (uint32_t i = 0; i < n_cols; i++)
        cols[i] = i == 0 ? s.n - 1 : random_below(s.n);
    check_against_reference(&s, &o, got, rows, n, cols, n_cols);
    for (size_t i = 0; i < o.n_out; i++)
        if (!isfinite(got[i]))
            fail_msg("[%zu] is %g", i, (double)got[i]);
    if (s.invariant)
        check_rows_alone(&o, rows[0], 1, got);
}

/* Check several numbers of rows, at most s->n_rows, with one weight. */
static void check_full(const struct spec *s)
{
    static const uint32_t counts[] = {1, 16, 40, 128, 512, 2048};
    struct operands o = make_operands(s);

    send(&o);
    for (size_t i = 0; i < ARRAY_SIZE(counts) && counts[i] <= s->n_rows; i++)
        check_sample(s, &o, counts[i]);
    cuda_test_free_all(o.d);
}

/* The products of models with 0.5 and 8 billion parameters. */
static void full_size_shapes_match_reference(void **state)
{
    static const uint32_t shapes[][2] = {{1152, 896},  {9728, 896},   {896, 4864},  {6144, 4096},
                                         {4096, 4096}, {28672, 4096}, {4096, 14336}};

    (void)state;
    if (!full_size())
        skip();
    seed_random(8);
    for (size_t c = 0; c < 2 * ARRAY_SIZE(types); c++) /* the device is opened once per half */
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
            enum dtype t = types[c % ARRAY_SIZE(types)].t;
            struct spec s = {t,
                             types[c % ARRAY_SIZE(types)].group,
                             2048,
                             shapes[i][0],
                             shapes[i][1],
                             i % 2,
                             i / 2 % 2,
                             c >= ARRAY_SIZE(types)};
            bool same_as_other_half = t >= DTYPE_FLOATS && !s.invariant;

            /* Types that are used less are tested with every other shape. */
            if (!same_as_other_half && (t == DTYPE_BF16 || t == DTYPE_I4 || i % 2 == 0))
                check_full(&s);
        }
}

static void full_size_output_layers_match_reference(void **state)
{
    static const uint32_t shapes[][2] = {{151936, 896}, {128256, 4096}};

    (void)state;
    if (!full_size())
        skip();
    seed_random(9);
    for (size_t i = 0; i < 3 * ARRAY_SIZE(shapes); i++) {
        const uint32_t *shape = shapes[i % ARRAY_SIZE(shapes)];
        bool ints = i >= 2 * ARRAY_SIZE(shapes);
        struct spec s = {
            ints ? DTYPE_I8 : DTYPE_BF16, ints ? 128 : 0, 40, shape[0], shape[1], false, false,
            i >= ARRAY_SIZE(shapes)};
        check_full(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_shapes_match_reference),
        cmocka_unit_test(bias_and_old_values_are_added_once),
        cmocka_unit_test(larger_shapes_match_reference),
        cmocka_unit_test(any_alignment_of_floats_will_do),
        cmocka_unit_test(a_row_has_the_same_bits_among_any_number),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
        cmocka_unit_test(nan_and_inf_come_out_where_they_went_in),
        cmocka_unit_test(a_product_that_the_library_refuses_is_computed_here),
        cmocka_unit_test(the_fastest_algorithm_with_the_same_bits_is_kept),
        cmocka_unit_test(a_row_has_the_same_bits_among_rows_of_the_same_plan),
        cmocka_unit_test(a_failure_while_products_are_timed_ends_nothing),
        cmocka_unit_test(rows_that_are_rounded_already_give_the_same_bits),
        cmocka_unit_test(no_rows_do_nothing),
        cmocka_unit_test(full_size_shapes_match_reference),
        cmocka_unit_test(full_size_output_layers_match_reference),
    };

    return cmocka_run_group_tests_name("cuda_gemm", tests, NULL, NULL);
}
