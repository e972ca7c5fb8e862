/* kernel_test.h - helpers of the kernel tests: random numbers, devices, comparison.
 *
 * A comparison with the reference checks three things: inf and NaN are at the same positions, every
 * element is within an absolute or a relative tolerance, and the cosine of both vectors is near
 * 1. */
#ifndef TARN_TESTS_KERNEL_TEST_H
#define TARN_TESTS_KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/device.h"
#include "kernels/pack.h"

#define UNUSED __attribute__((unused))

#ifndef IS_EMULATED /* the processor is emulated, thirty times slower: see CMakeLists.txt */
#define IS_EMULATED 0
#endif
/* Sanitizers: ten times slower, so fewer and shorter cases of the same kinds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif
#ifndef VARIANTS /* those to be tested, where the machine has them */
#define VARIANTS "amx", "avx512bf16", "avx512", "avx2", "neonmm", "neondot", "neon", "portable"
#endif
static const char *const variant_names[] = {VARIANTS};

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static UNUSED void rng_seed(uint64_t seed)
{
    rng_state = seed * 0x9e3779b97f4a7c15u + 1;
}

static UNUSED uint32_t rng_u32(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}

static UNUSED uint32_t rng_below(uint32_t n)
{
    return rng_u32() % n;
}

/* In (-1, 1), and one in 61 is ten times as large: without outliers a softmax would be flat. */
static UNUSED float rng_float(void)
{
    float f = (float)(int32_t)rng_u32() * 0x1p-31f;

    return rng_below(61) == 0 ? 10 * f : f;
}

static UNUSED void *test_alloc(size_t n_bytes)
{
    void *p = calloc(1, n_bytes ? n_bytes : 1);

    assert_non_null(p);
    return p;
}

static UNUSED float *random_floats(size_t n)
{
    float *f = test_alloc(n * sizeof(*f));

    for (size_t i = 0; i < n; i++)
        f[i] = rng_float();
    return f;
}

/* n random elements of any dtype. */
static UNUSED void *random_elements(enum dtype t, size_t n)
{
    void *p = test_alloc(n * dtype_bytes(t));

    for (size_t i = 0; i < n; i++)
        dtype_store(t, p, i, rng_float());
    return p;
}

/* Rows of codes with a scale and an offset per group, as a checkpoint may have them. */
struct affine {
    uint32_t k, group, n_groups;
    uint8_t *codes;          /* [n, k] */
    float *scales, *offsets; /* [n, n_groups] */
};

/* Codes of `bits` bits. Weights of a group span about -1 .. 1, or ten times as much. */
static UNUSED struct affine random_affine(uint32_t bits, uint32_t n, uint32_t k, uint32_t group)
{
    struct affine a = {.k = k, .group = group, .n_groups = (k + group - 1) / group};
    float largest = bits == 8 ? 255 : 15;

    a.codes = test_alloc((size_t)n * k);
    a.scales = test_alloc(n * a.n_groups * sizeof(float));
    a.offsets = test_alloc(n * a.n_groups * sizeof(float));
    for (size_t i = 0; i < (size_t)n * k; i++)
        a.codes[i] = (uint8_t)rng_below((uint32_t)largest + 1);
    for (size_t i = 0; i < (size_t)n * a.n_groups; i++) {
        float size = rng_float(), middle = 0.5f + 0.1f * rng_float();

        a.scales[i] = 2 * size / largest;
        a.offsets[i] = -2 * size * middle;
    }
    return a;
}

static UNUSED void affine_free(struct affine *a)
{
    free(a->codes);
    free(a->scales);
    free(a->offsets);
}

/* Pack rows [row, row + n_rows) of `a` to rows from n0 on. */
static UNUSED void pack_affine(const struct weight *w, uint32_t n0, const struct affine *a,
                               uint32_t row, uint32_t n_rows)
{
    pack_coded_rows(w, n0, a->codes + (size_t)row * a->k, a->scales + (size_t)row * a->n_groups,
                    a->offsets + (size_t)row * a->n_groups, a->group, n_rows);
}

/* Fill a quantized weight, whose memory is zero, with random numbers. */
static UNUSED void pack_random(const struct weight *w)
{
    if (dtype_is_affine(w->dtype)) {
        struct affine a = random_affine(dtype_bits(w->dtype), w->n, w->k, w->group);

        pack_affine(w, 0, &a, 0, w->n);
        affine_free(&a);
    } else {
        float *src = random_floats((size_t)w->n * w->k);

        pack_quantize_rows(w, 0, DTYPE_F32, src, w->n);
        free(src);
    }
}

static UNUSED struct device *open_device(enum device_kind kind, const char *variant,
                                         uint32_t n_threads)
{
    struct device_config config = {
        .kind = kind,
        .cpu_variant = variant,
        .n_threads = n_threads,
        .max_rows = 100, /* fewer than the rows of some tests, so that long steps are split */
        .max_k = 1200,
        .max_heads = 64,
        .max_head_dim = 256,
    };
    struct device *d = NULL;

    return device_open(&d, &config, NULL) == OK ? d : NULL;
}

/* Call fn(device) on every variant that this machine has, with n_threads. */
static UNUSED void each_variant(uint32_t n_threads, void (*fn)(struct device *d))
{
    for (size_t i = 0; i < ARRAY_SIZE(variant_names); i++) {
        struct device *d = open_device(DEVICE_CPU, variant_names[i], n_threads);

        if (!d)
            continue;
        rng_seed(1);
        fn(d);
        device_close(d);
    }
}

static UNUSED void check_near(const char *what, const float *got, const float *want, size_t n,
                              double abs_tol, double rel_tol, double cos_tol)
{
    double dot = 0, got2 = 0, want2 = 0;

    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) || isinf(want[i])) {
            if (isnan(want[i]) ? !isnan(got[i]) : got[i] != want[i])
                fail_msg("%s: [%zu] is %g, want %g", what, i, got[i], want[i]);
            continue;
        }
        double diff = fabs((double)got[i] - want[i]);

        if (!(diff <= abs_tol || diff <= rel_tol * fabs(want[i])))
            fail_msg("%s: [%zu] is %.9g, want %.9g", what, i, got[i], want[i]);
        dot += (double)got[i] * want[i];
        got2 += (double)got[i] * got[i];
        want2 += (double)want[i] * want[i];
    }
    if (want2 > 0 && !(dot / sqrt(got2 * want2) > 1 - cos_tol))
        fail_msg("%s: cosine %.9f", what, dot / sqrt(got2 * want2));
}

static UNUSED void check_close(const char *what, const float *got, const float *want, size_t n,
                               double abs_tol, double rel_tol)
{
    check_near(what, got, want, n, abs_tol, rel_tol, 1e-6);
}

/* Compare bit for bit; a failure shows the first index that differs. Any two NaNs are equal: the
 * payload of a result depends on the order of an instruction's operands, which kernels do not
 * control. */
static UNUSED void check_same(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: bits differ first at [%zu]: %.9g and %.9g", what, i, got[i], want[i]);
}

#endif
