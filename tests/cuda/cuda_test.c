/* cuda_test.c - the device, the arrays and the comparisons of the CUDA tests. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/pack.h"

/* Two vectors may always differ in direction by this 1 - cosine, whatever the tolerance. */
#define COSINE_DISTANCE_MAX 1e-5

struct array {
    struct array *next;
    void *p;
    bool on_device;
};

static struct device *the_device;
static struct device_config the_config;
static struct array *arrays;
static uint64_t random_state = 1;

bool full_size(void)
{
    const char *text = getenv("TARN_GPU_TEST");

    return text && strcmp(text, "1") == 0;
}

/* Free the device's arrays. Reopening the device keeps the host's, because a test may already have
 * made its inputs. */
static void free_arrays(struct device *d, bool host_too)
{
    struct array **at = &arrays;

    while (*at) {
        struct array *a = *at;

        if (!a->on_device && !host_too) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        if (a->on_device)
            device_free(d, a->p);
        else
            free(a->p);
        free(a);
    }
}

void cuda_test_free_all(struct device *d)
{
    free_arrays(d, true);
}

void cuda_test_close_device(void)
{
    if (the_device)
        free_arrays(the_device, false);
    device_close(the_device);
    the_device = NULL;
}

static void close_at_exit(void)
{
    cuda_test_close_device();
    free_arrays(NULL, true);
}

static bool same_config(const struct device_config *a, const struct device_config *b)
{
    return a->kind == b->kind && a->n_threads == b->n_threads && a->max_rows == b->max_rows &&
           a->max_k == b->max_k && a->max_heads == b->max_heads &&
           a->max_head_dim == b->max_head_dim && a->batch_invariant == b->batch_invariant &&
           a->wgmma == b->wgmma && a->measure == b->measure && a->weights == b->weights &&
           a->weights_group == b->weights_group && a->kv == b->kv;
}

struct device *cuda_device_for(const struct device_config *config)
{
    static bool closes_at_exit;
    struct buf why;

    if (the_device && same_config(&the_config, config))
        return the_device;
    if (!closes_at_exit)
        atexit(close_at_exit);
    closes_at_exit = true;
    cuda_test_close_device();
    buf_init(&why, BUF_WHY_MAX);
    enum status s = device_open(&the_device, config, &why);
    if (s != OK)
        print_message("no CUDA device: %s\n", buf_str(&why));
    buf_fini(&why);
    assert_ok(s);
    the_config = *config;
    return the_device;
}

static void *remember(void *p, bool on_device)
{
    struct array *a = malloc(sizeof *a);

    assert_non_null(p);
    assert_non_null(a);
    *a = (struct array){arrays, p, on_device};
    arrays = a;
    return p;
}

/* Allocate the exact length, so that AddressSanitizer sees an access beyond it. */
void *host_array(size_t n_bytes)
{
    void *p = NULL;

    assert_int_equal(posix_memalign(&p, 64, n_bytes ? n_bytes : 1), 0);
    memset(p, 0, n_bytes);
    return remember(p, false);
}

void seed_random(uint64_t seed)
{
    random_state = seed;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t random_below(uint32_t n)
{
    return (uint32_t)(((next_random() >> 32) * n) >> 32);
}

/* The sum of four uniform numbers, scaled to variance 1. */
float *random_array(size_t n, float scale)
{
    float *x = host_array(n * sizeof *x);

    for (size_t i = 0; i < n; i++) {
        uint64_t r = next_random();
        float sum = 0;
        for (int j = 0; j < 4; j++)
            sum += (float)(r >> 16 * j & 0xffff) / 65536.0f - 0.5f;
        x[i] = scale * sum * 1.7320508f;
    }
    return x;
}

void *on_device(struct device *d, const void *host, size_t n_bytes)
{
    void *p = remember(device_alloc(d, n_bytes), true);

    if (host) {
        assert_ok(device_upload(d, p, host, n_bytes));
        return p;
    }
    void *ones = malloc(n_bytes ? n_bytes : 1);
    assert_non_null(ones);
    memset(ones, 0xff, n_bytes);
    enum status s = device_upload(d, p, ones, n_bytes);
    free(ones);
    assert_ok(s);
    return p;
}

void *from_device(struct device *d, const void *device, size_t n_bytes)
{
    void *p = host_array(n_bytes);

    assert_ok(device_download(d, p, device, n_bytes));
    return p;
}

static bool element_close(float got, float want, float abs_tol, float rel_tol)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return want == got;
    float difference = fabsf(got - want);
    return difference <= abs_tol || difference <= rel_tol * fabsf(want);
}

/* 1 - cosine over the finite elements; 0 if a vector is zero. */
static double cosine_distance(const float *got, const float *want, size_t n)
{
    double gw = 0, gg = 0, ww = 0;

    for (size_t i = 0; i < n; i++)
        if (isfinite(got[i]) && isfinite(want[i])) {
            gw += (double)got[i] * want[i];
            gg += (double)got[i] * got[i];
            ww += (double)want[i] * want[i];
        }
    return gg > 0 && ww > 0 ? 1 - gw / sqrt(gg * ww) : 0;
}

/* The 1 - cosine that the tolerances imply. A relative error e turns a vector by an angle of about
 * e, and 1 - cosine is half of its square. If the elements are small compared with abs_tol, any
 * direction is allowed. */
static double cosine_allowed(const float *want, size_t n, float abs_tol, float rel_tol)
{
    double ww = 0;

    for (size_t i = 0; i < n; i++)
        if (isfinite(want[i]))
            ww += (double)want[i] * want[i];
    double e = (ww > 0 ? abs_tol * sqrt((double)n / ww) : 2) + rel_tol;
    return fmax(COSINE_DISTANCE_MAX, e * e);
}

void assert_close(const char *what, const float *got, const float *want, size_t n, float abs_tol,
                  float rel_tol)
{
    size_t first = n, worst = 0, n_wrong = 0;
    float worst_by = -1;

    for (size_t i = 0; i < n; i++) {
        float by = fabsf(got[i] - want[i]);
        if (by > worst_by) {
            worst_by = by;
            worst = i;
        }
        if (element_close(got[i], want[i], abs_tol, rel_tol))
            continue;
        if (n_wrong++ == 0)
            first = i;
    }
    if (n_wrong)
        fail_msg("%s: %zu of %zu differ; first [%zu]: got %.9g (%a), want %.9g (%a); worst [%zu]: "
                 "got %.9g, want %.9g",
                 what, n_wrong, n, first, (double)got[first], (double)got[first],
                 (double)want[first], (double)want[first], worst, (double)got[worst],
                 (double)want[worst]);
    double distance = cosine_distance(got, want, n);
    if (distance > cosine_allowed(want, n, abs_tol, rel_tol))
        fail_msg("%s: 1 - cosine is %.3g", what, distance);
}

void assert_same_bits(const char *what, const void *got, const void *want, size_t n_bytes)
{
    const unsigned char *a = got, *b = want;

    for (size_t i = 0; i < n_bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu (word %zu) differs: got %02x, want %02x", what, i,
                     n_bytes, i / 4, a[i], b[i]);
}

/* Codes for one group of n elements, from the least to the largest. A group with NaN or inf gets
 * the scale NaN. */
static void make_codes(const float *x, uint32_t n, float largest, uint8_t *codes, float *scale,
                       float *offset)
{
    float low = x[0], high = x[0];
    bool finite = true;

    for (uint32_t i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
        finite = finite && isfinite(x[i]);
    }
    *offset = low;
    *scale = finite ? (high - low) / largest : NAN;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(*scale > 0 ? fminf(rintf((x[i] - low) / *scale), largest) : 0);
}

static void pack_affine_row(const struct weight *w, uint32_t row, const float *x)
{
    uint32_t n_groups = (w->k - 1) / w->group + 1;
    uint8_t *codes = malloc(w->k);
    float *scales = malloc(2 * n_groups * sizeof *scales), *offsets = scales + n_groups;

    assert_non_null(codes);
    assert_non_null(scales);
    for (uint32_t g = 0, k = 0; g < n_groups; g++, k += w->group)
        make_codes(x + k, w->k - k < w->group ? w->k - k : w->group,
                   dtype_bits(w->dtype) == 8 ? 255 : 15, codes + k, &scales[g], &offsets[g]);
    pack_coded_rows(w, row, codes, scales, offsets, w->group, 1);
    free(codes);
    free(scales);
}

void quantize_rows(const struct weight *w, uint32_t n0, const float *x, uint32_t n_rows)
{
    if (!dtype_is_affine(w->dtype)) {
        pack_quantize_rows(w, n0, DTYPE_F32, x, n_rows);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        pack_affine_row(w, n0 + r, x + (size_t)r * w->k);
}

struct rounded_rows rounded_on_device(struct device *d, uint32_t n_rows, uint32_t k, enum dtype t)
{
    uint32_t stride = pack_row_stride(k);

    return (struct rounded_rows){on_device(d, NULL, (size_t)n_rows * stride * sizeof(uint16_t)),
                                 stride, t};
}

const uint16_t *round_rows(const float *x, uint32_t n_rows, uint32_t k, enum dtype t)
{
    enum dtype to = t == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
    uint32_t stride = pack_row_stride(k);
    uint16_t *out = host_array((size_t)n_rows * stride * sizeof *out);

    memset(out, 0, (size_t)n_rows * stride * sizeof *out);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < k; i++) {
            uint16_t *at = out + (size_t)r * stride + i;

            dtype_store(to, at, 0, x[(size_t)r * k + i]);
            if (t >= DTYPE_FLOATS && isinf(dtype_load(to, at, 0)))
                dtype_store(to, at, 0, NAN);
        }
    return out;
}

void assert_rounded(struct device *d, const struct rounded_rows *rows, const float *x,
                    uint32_t n_rows, uint32_t k)
{
    enum dtype to = rows->weights == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
    size_t n = (size_t)n_rows * rows->stride;
    const uint16_t *want = round_rows(x, n_rows, k, rows->weights);
    const uint16_t *got = from_device(d, rows->data, n * sizeof *got);

    for (size_t i = 0; i < n; i++) /* a NaN may have any bits */
        if (got[i] != want[i] && !(isnan(dtype_load(to, got, i)) && isnan(dtype_load(to, want, i))))
            fail_msg("row %zu element %zu: %04x, not %04x", i / rows->stride, i % rows->stride,
                     got[i], want[i]);
}
