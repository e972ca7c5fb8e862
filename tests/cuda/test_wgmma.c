/* test_wgmma.c - products of many rows on Hopper's own matrix instructions, and the choice whether
 * they are used. */
#include "tests/cuda/wgmma_trial.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/save_file.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

struct spec {
    enum dtype t;
    uint32_t group, n_rows, n, k;
    bool bias, accumulate;
};

/* A product on the device, and its parts on the host. */
struct operands {
    struct gemm_params p;
    struct weight w;
    float *a, *old, *bias;
    size_t n_out;
};

static const struct {
    enum dtype t;
    uint32_t group;
} types[] = {{DTYPE_I8, 32},  {DTYPE_I8, 128}, {DTYPE_I4, 32},  {DTYPE_I4, 128}, {DTYPE_A8, 32},
             {DTYPE_A8, 128}, {DTYPE_A4, 32},  {DTYPE_A4, 128}, {DTYPE_F8, 128}};

static struct device_config config_of(enum dtype t, uint32_t group, bool wgmma)
{
    return (struct device_config){.kind = DEVICE_CUDA,
                                  .max_rows = 150,
                                  .max_k = 640,
                                  .max_heads = 1,
                                  .max_head_dim = 64,
                                  .weights = t,
                                  .weights_group = group,
                                  .measure = true,
                                  .wgmma = wgmma};
}

/* The device of such weights. In the emulation `wgmma` decides what it computes with. */
static struct device *device_with(enum dtype t, uint32_t group, bool wgmma)
{
    struct device_config config = config_of(t, group, wgmma);
    struct device *d;

    if (emulation_make_wgmma_fast)
        emulation_make_wgmma_fast(1);
    d = cuda_device_for(&config);
    if (emulation_make_wgmma_fast)
        emulation_make_wgmma_fast(0);
    return d;
}

/* Whether the device's products of many rows run on wgmma. */
static bool has_wgmma(struct device *d)
{
    return strstr(device_ops(d)->name, "-wgmma") != NULL;
}

/* Random operands on the host; rows lie a little further apart than they are long. */
static struct operands make_operands(const struct spec *s)
{
    struct operands o = {.w = {.dtype = s->t,
                               .layout = WEIGHT_ROWS,
                               .n = s->n,
                               .k = s->k,
                               .group = s->group,
                               .stride = pack_row_stride(s->k)}};

    o.p = (struct gemm_params){.n_rows = s->n_rows,
                               .a_stride = s->k + 3,
                               .out_stride = s->n + 5,
                               .accumulate = s->accumulate};
    o.n_out = s->n_rows * o.p.out_stride;
    o.a = random_array(s->n_rows * o.p.a_stride, 1);
    o.old = random_array(o.n_out, 1);
    o.bias = s->bias ? random_array(s->n, 1) : NULL;
    o.w.data = host_array(pack_weight_bytes(&o.w));
    quantize_rows(&o.w, 0, random_array((size_t)s->n * s->k, 1 / sqrtf((float)s->k)), s->n);
    return o;
}

/* The product on a device, with new copies of the operands. */
static const float *multiply(struct device *d, const struct operands *o)
{
    struct gemm_params p = o->p;

    p.w = o->w;
    p.w.data = on_device(d, o->w.data, pack_weight_bytes(&o->w));
    p.a = on_device(d, o->a, p.n_rows * p.a_stride * sizeof(float));
    p.bias = o->bias ? on_device(d, o->bias, o->w.n * sizeof(float)) : NULL;
    p.out = on_device(d, o->old, o->n_out * sizeof(float));
    assert_ok(device_ops(d)->gemm(d, NULL, &p));
    return from_device(d, p.out, o->n_out * sizeof(float));
}

/* The reference, on dequantized weights and rounded activations. */
static float *reference(const struct operands *o)
{
    uint32_t n = o->w.n, k = o->w.k;
    struct gemm_params p = o->p;
    float *row = host_array(k * sizeof *row);
    float *a = host_array((size_t)p.n_rows * k * sizeof *a);
    float *out = host_array(o->n_out * sizeof *out);
    uint16_t h;

    for (size_t i = 0; i < (size_t)p.n_rows * k; i++) {
        dtype_store(DTYPE_BF16, &h, 0, o->a[i / k * p.a_stride + i % k]);
        a[i] = dtype_load(DTYPE_BF16, &h, 0);
    }
    memcpy(out, o->old, o->n_out * sizeof *out);
    p.w = (struct weight){.dtype = DTYPE_F32, .layout = WEIGHT_PANELS, .n = n, .k = k};
    p.w.data = host_array(pack_weight_bytes(&p.w));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < k; j++)
            row[j] = pack_at(&o->w, i, j);
        pack_rows(&p.w, i, row, 1);
    }
    p.a = a;
    p.a_stride = k;
    p.bias = o->bias;
    p.out = out;
    assert_ok(ref_gemm(NULL, NULL, &p));
    return out;
}

/* One row and one output above a tile, ranges of K that the stages of shared memory hold and such
 * that they do not, more rows than the device has scratch for. */
static void products_match_reference(void **state)
{
    static const uint32_t shapes[][3] = {{129, 257, 129}, {151, 130, 130}, {70, 250, 640}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(types) * ARRAY_SIZE(shapes); i++) {
        const uint32_t *shape = shapes[i % ARRAY_SIZE(shapes)];
        size_t t = i / ARRAY_SIZE(shapes);
        struct spec s = {.t = types[t].t,
                         .group = types[t].group,
                         .n_rows = shape[0],
                         .n = shape[1],
                         .k = shape[2],
                         .bias = i % 2,
                         .accumulate = i % 3 == 1};
        struct device *d = device_with(s.t, s.group, true);

        if (i % ARRAY_SIZE(shapes) != 0 && t % 3 != 0) /* these with some types only */
            continue;
        seed_random(16 + i);
        if (emulation_make_wgmma_fast && !has_wgmma(d))
            fail_msg("dtype %d/%u is not computed by wgmma", s.t, s.group);
        struct operands o = make_operands(&s);
        const float *got = multiply(d, &o), *want = reference(&o);
        for (uint32_t row = 0; row < s.n_rows; row++) {
            size_t at = row * o.p.out_stride;

            assert_close("a row", got + at, want + at, s.n, s.k > 200 ? 1e-5f : 3e-6f, 1e-5f);
            assert_same_bits("behind a row", got + at + s.n, o.old + at + s.n,
                             (o.p.out_stride - s.n) * sizeof(float));
        }
        cuda_test_free_all(d);
    }
}

/* Few rows, few tiles, another type and another group have the bits of mma.sync. */
static void other_products_have_the_bits_of_mma_sync(void **state)
{
    static const struct spec specs[] = {
        {.t = DTYPE_I8, .group = 128, .n_rows = 64, .n = 300, .k = 300},
        {.t = DTYPE_I8, .group = 128, .n_rows = 70, .n = 120, .k = 140},
        {.t = DTYPE_I8, .group = 32, .n_rows = 70, .n = 300, .k = 140},
        {.t = DTYPE_I4, .group = 128, .n_rows = 70, .n = 300, .k = 140}};
    const float *want[ARRAY_SIZE(specs)];
    struct operands o[ARRAY_SIZE(specs)];
    struct device *d = device_with(DTYPE_I8, 128, false);

    (void)state;
    seed_random(17);
    assert_false(has_wgmma(d));
    for (size_t i = 0; i < ARRAY_SIZE(specs); i++) {
        o[i] = make_operands(&specs[i]);
        want[i] = multiply(d, &o[i]);
    }
    d = device_with(DTYPE_I8, 128, true);
    if (emulation_make_wgmma_fast) /* a real GPU may choose otherwise */
        assert_true(has_wgmma(d));
    for (size_t i = 0; i < ARRAY_SIZE(specs); i++)
        if (!full_size() || i != 1) /* many multiprocessors have other limits */
            assert_same_bits("beside wgmma", multiply(d, &o[i]), want[i],
                             o[i].n_out * sizeof(float));
    cuda_test_free_all(d);
}

/* NaN in one row of activations stays in that row; in a group of weights, in that output. */
static void nan_stays_where_it_is(void **state)
{
    struct spec s = {.t = DTYPE_A8, .group = 32, .n_rows = 140, .n = 200, .k = 300};
    struct device *d = device_with(s.t, s.group, true);
    struct operands o;
    const float *clean, *got;

    (void)state;
    seed_random(18);
    o = make_operands(&s);
    clean = multiply(d, &o);
    o.a[131 * o.p.a_stride + 299] = NAN;
    float *bad = random_array(s.k, 1);
    bad[77] = INFINITY;
    quantize_rows(&o.w, 150, bad, 1);
    got = multiply(d, &o);
    for (uint32_t row = 0; row < s.n_rows; row++)
        for (uint32_t n = 0; n < s.n; n++) {
            size_t at = row * o.p.out_stride + n;

            if (row == 131 || n == 150)
                assert_true(isnan(got[at]));
            else
                assert_same_bits("a clean element", got + at, clean + at, sizeof *got);
        }
    cuda_test_free_all(d);
}

/* Slower than mma.sync, batch-invariant, not measured, refused, no type for it, few rows: without
 * wgmma. */
static void a_device_does_without_where_there_is_no_gain(void **state)
{
    struct device_config base = config_of(DTYPE_I8, 128, true), changed[7];

    (void)state;
    if (!emulation_make_wgmma_fast)
        skip(); /* a real GPU may choose otherwise */
    base.max_k = 128;
    assert_false(has_wgmma(cuda_device_for(&base)));
    emulation_make_wgmma_fast(1);
    for (size_t i = 0; i < ARRAY_SIZE(changed); i++)
        changed[i] = base;
    changed[0].max_heads = 2; /* opened again */
    changed[1].batch_invariant = true;
    changed[2].measure = false;
    changed[3].wgmma = false;
    changed[4].weights = DTYPE_BF16;
    changed[4].weights_group = 0;
    changed[5].max_rows = 127;
    changed[6].max_heads = 3;
    for (size_t i = 0; i < ARRAY_SIZE(changed); i++)
        assert_int_equal(has_wgmma(cuda_device_for(&changed[i])), i == 0 || i == 6);
    emulation_make_wgmma_fast(0);
}

/* Noise must not change what stored KV belongs to. */
static void a_kept_choice_is_not_measured_again(void **state)
{
    char file[64];
    struct device_config config = config_of(DTYPE_I8, 128, true);

    (void)state;
    config.max_k = 128;
    snprintf(file, sizeof file, "matrix-%u-128-emulated-GPU.txt", (unsigned)DTYPE_I8);
    check_kept_choice(config, file, has_wgmma);
}

/* Another start, which found the new kernel too slow. */
struct other_start {
    int lock;
    const char *path, *text;
};

static void *end_other_start(void *arg)
{
    const struct other_start *o = arg;
    FILE *f;

    clock_sleep_ns(200000000); /* this one looks into the folder meanwhile */
    f = fopen(o->path, "w");
    assert_true(f && fputs(o->text, f) >= 0 && fclose(f) == 0);
    save_unlock_dir(o->lock);
    return NULL;
}

static void two_starts_at_once_make_one_choice(void **state)
{
    char dir[] = "/tmp/tarn-wgmma-XXXXXX", path[sizeof dir + 48], text[512] = "";
    struct device_config config = config_of(DTYPE_I8, 128, true);
    struct other_start other = {.path = path, .text = text};
    pthread_t thread;

    (void)state;
    if (!emulation_make_wgmma_fast)
        skip(); /* a real GPU may choose otherwise */
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/matrix-%u-128-emulated-GPU.txt", dir, (unsigned)DTYPE_I8);
    config.max_k = 128;
    config.measure_dir = dir;
    assert_false(has_wgmma(cuda_device_for(&config)));
    FILE *f = fopen(path, "r");
    assert_true(f && fgets(text, sizeof text, f) && fclose(f) == 0);
    assert_int_equal(unlink(path), 0);
    other.lock = save_lock_dir(dir);
    assert_int_equal(pthread_create(&thread, NULL, end_other_start, &other), 0);
    emulation_make_wgmma_fast(1);
    config.max_heads = 2; /* opened again */
    assert_false(has_wgmma(cuda_device_for(&config)));
    emulation_make_wgmma_fast(0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Each of the last calls of an open, which are the trial's, fails once for want of memory: the
 * device opens without wgmma, and computes. */
static void a_trial_that_fails_ends_nothing(void **state)
{
    struct device_config config = config_of(DTYPE_I4, 32, true), without = config;
    uint64_t n_calls, n_tried, n_before, n_lost = 0;

    (void)state;
    if (!emulation_make_wgmma_fast || !emulation_fail_call || !emulation_calls)
        skip();
    config.max_k = without.max_k = 128;
    without.wgmma = false;
    emulation_make_wgmma_fast(1);
    (void)device_with(DTYPE_I8, 128, false);
    n_before = emulation_calls();
    (void)cuda_device_for(&without);
    n_calls = emulation_calls() - n_before;
    (void)device_with(DTYPE_I8, 128, false);
    emulation_make_wgmma_fast(1);
    n_before = emulation_calls();
    (void)cuda_device_for(&config);
    n_tried = emulation_calls() - n_before;
    assert_true(n_tried > n_calls + 20);
    for (uint64_t i = 1; i <= n_tried; i += i < n_calls ? n_calls / 2 : 7) {
        struct device *d = NULL;
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        emulation_fail_call(i, OUT_OF_MEMORY);
        enum status s = device_open(&d, &config, &why);
        emulation_fail_call(0, 0);
        if (s != OK)
            assert_true(s == ERR_NOMEM && why.len > 0);
        else
            n_lost += !has_wgmma(d);
        buf_fini(&why);
        device_close(d);
    }
    emulation_make_wgmma_fast(0);
    assert_true(n_lost > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_reference),
        cmocka_unit_test(other_products_have_the_bits_of_mma_sync),
        cmocka_unit_test(nan_stays_where_it_is),
        cmocka_unit_test(a_device_does_without_where_there_is_no_gain),
        cmocka_unit_test(a_kept_choice_is_not_measured_again),
        cmocka_unit_test(two_starts_at_once_make_one_choice),
        cmocka_unit_test(a_trial_that_fails_ends_nothing),
    };

    return cmocka_run_group_tests_name("cuda_wgmma", tests, NULL, NULL);
}
