/* gemm.c - reference: activations times a packed weight.
 *
 * Floats, also those of F8 weights, are summed in double. Weights of integers are computed to the
 * bit as params.h says: there the order of operations is part of the definition. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/ref/ref.h"

static float dot_floats(const struct weight *w, uint32_t n, const float *a, const float *bias,
                        const float *old)
{
    double sum = 0;

    for (uint32_t k = 0; k < w->k; k++)
        sum += (double)a[k] * pack_at(w, n, k);
    if (bias)
        sum += *bias;
    if (old)
        sum += *old;
    return (float)sum;
}

/* Quantize a group of activations. Returns the scale, or NaN and zeros if it has NaN or inf. */
static float quantize_group(int8_t *q, const float *a, uint32_t n_k)
{
    bool finite = true;
    float max = 0;

    for (uint32_t k = 0; k < n_k; k++) {
        finite = finite && isfinite(a[k]);
        max = fmaxf(max, fabsf(a[k]));
    }
    if (!finite || max < QUANT_MIN) {
        memset(q, 0, n_k);
        return finite ? 0 : NAN;
    }
    float inverse = 127 / max;
    for (uint32_t k = 0; k < n_k; k++)
        q[k] = (int8_t)rintf(a[k] * inverse);
    return max / 127;
}

static uint32_t group_end(const struct weight *w, uint32_t k)
{
    return quant_group(w) < w->k - k ? k + quant_group(w) : w->k;
}

/* scales: of the groups of q. */
static float dot_ints(const struct weight *w, uint32_t n, const int8_t *q, const float *scales,
                      const float *bias, const float *old)
{
    float sum = 0;

    for (uint32_t k0 = 0; k0 < w->k; k0 += quant_group(w), scales++) {
        uint32_t end = group_end(w, k0);
        int32_t group = 0, sum_q = 0; /* |group| <= 64 * 127 * 255 < 2^24 is exact as a float */

        for (uint32_t k = k0; k < end; k++) {
            group += q[k] * pack_int_at(w, n, k);
            sum_q += q[k];
        }
        sum = fmaf((float)group * *scales, pack_scale_at(w, n, k0), sum);
        if (dtype_is_affine(w->dtype))
            sum = fmaf((float)sum_q * *scales, pack_offset_at(w, n, k0), sum);
    }
    if (bias)
        sum += *bias;
    if (old)
        sum += *old;
    return sum;
}

enum status ref_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    bool ints = p->w.dtype >= DTYPE_FLOATS && p->w.dtype != DTYPE_F8;
    uint32_t n_groups = ints ? (p->w.k + quant_group(&p->w) - 1) / quant_group(&p->w) : 0;
    float *scales = NULL;
    int8_t *q = NULL;

    (void)d;
    (void)s;
    if (ints) {
        scales = malloc(n_groups * sizeof *scales + p->w.k);
        if (!scales)
            return ERR_NOMEM;
        q = (int8_t *)(scales + n_groups);
    }
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *a = p->a + t * p->a_stride;
        float *out = p->out + t * p->out_stride;

        for (uint32_t k = 0, g = 0; g < n_groups; g++, k += quant_group(&p->w))
            scales[g] = quantize_group(q + k, a + k, group_end(&p->w, k) - k);
        for (uint32_t n = 0; n < p->w.n; n++) {
            const float *bias = p->bias ? p->bias + n : NULL;
            const float *old = p->accumulate ? out + n : NULL;

            out[n] = ints ? dot_ints(&p->w, n, q, scales, bias, old)
                          : dot_floats(&p->w, n, a, bias, old);
        }
    }
    free(scales);
    return OK;
}
