/* gemm.c - reference: activations times a packed weight.
 *
 * Floats are summed in double. Quantized weights are computed to the bit as params.h says: there
 * the order of operations is part of the definition. */
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

/* Quantize one row of activations. Returns the scale, or NaN if the row has NaN or inf. */
static float quantize_row(int8_t *q, const float *a, uint32_t n_k)
{
    float max = 0;

    for (uint32_t k = 0; k < n_k; k++) {
        if (!isfinite(a[k]))
            return NAN;
        max = fmaxf(max, fabsf(a[k]));
    }
    if (max < QUANT_ROW_MIN) {
        memset(q, 0, n_k);
        return 0;
    }
    float inverse = 127 / max;
    for (uint32_t k = 0; k < n_k; k++)
        q[k] = (int8_t)rintf(a[k] * inverse);
    return max / 127;
}

static float dot_ints(const struct weight *w, uint32_t n, const int8_t *q, float scale,
                      const float *bias, const float *old)
{
    float sum = 0;

    for (uint32_t k0 = 0; k0 < w->k; k0 += w->group) {
        uint32_t end = w->group < w->k - k0 ? k0 + w->group : w->k;
        int32_t group = 0, sum_q = 0; /* |group| <= 128 * 127 * 255 < 2^24 is exact as a float */

        for (uint32_t k = k0; k < end; k++) {
            group += q[k] * pack_int_at(w, n, k);
            sum_q += q[k];
        }
        sum = fmaf((float)group, pack_scale_at(w, n, k0), sum);
        if (dtype_is_affine(w->dtype))
            sum = fmaf((float)sum_q, pack_offset_at(w, n, k0), sum);
    }
    sum *= scale;
    if (bias)
        sum += *bias;
    if (old)
        sum += *old;
    return sum;
}

enum status ref_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    bool ints = p->w.dtype >= DTYPE_FLOATS;
    int8_t *q = NULL;
    float scale = 0;

    (void)d;
    (void)s;
    if (ints && !(q = malloc(p->w.k)))
        return ERR_NOMEM;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *a = p->a + t * p->a_stride;
        float *out = p->out + t * p->out_stride;

        if (ints)
            scale = quantize_row(q, a, p->w.k);
        for (uint32_t n = 0; n < p->w.n; n++) {
            const float *bias = p->bias ? p->bias + n : NULL;
            const float *old = p->accumulate ? out + n : NULL;

            out[n] = !ints          ? dot_floats(&p->w, n, a, bias, old)
                     : isnan(scale) ? NAN
                                    : dot_ints(&p->w, n, q, scale, bias, old);
        }
    }
    free(q);
    return OK;
}
