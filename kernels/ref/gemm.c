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

/* row [K]: an output's weights. */
static float dot_floats(uint32_t n_k, const float *row, const float *a, const float *bias,
                        const float *old)
{
    double sum = 0;

    for (uint32_t k = 0; k < n_k; k++)
        sum += (double)a[k] * row[k];
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

/* codes [K]: an output's weights; scales: of the groups of q. */
static float dot_ints(const struct weight *w, uint32_t n, const int16_t *codes, const int8_t *q,
                      const float *scales, const float *bias, const float *old)
{
    float sum = 0;

    for (uint32_t k0 = 0; k0 < w->k; k0 += quant_group(w), scales++) {
        uint32_t end = group_end(w, k0);
        int32_t group = 0, sum_q = 0; /* |group| <= 64 * 127 * 255 < 2^24 is exact as a float */

        for (uint32_t k = k0; k < end; k++) {
            group += q[k] * codes[k];
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

static enum status gemm_floats(const struct gemm_params *p)
{
    const struct weight *w = &p->w;
    float *row = malloc(w->k * sizeof *row); /* read once for all rows of activations */

    if (!row)
        return ERR_NOMEM;
    for (uint32_t n = 0; n < w->n; n++) {
        for (uint32_t k = 0; k < w->k; k++)
            row[k] = pack_at(w, n, k);
        for (uint32_t t = 0; t < p->n_rows; t++) {
            float *out = p->out + t * p->out_stride + n;

            *out = dot_floats(w->k, row, p->a + t * p->a_stride, p->bias ? p->bias + n : NULL,
                              p->accumulate ? out : NULL);
        }
    }
    free(row);
    return OK;
}

/* scales [n_rows][groups], q [n_rows][K]: the activations, quantized. */
static void quantize_all(const struct gemm_params *p, float *scales, int8_t *q)
{
    for (uint32_t t = 0; t < p->n_rows; t++, q += p->w.k)
        for (uint32_t k = 0; k < p->w.k; k += quant_group(&p->w))
            *scales++ = quantize_group(q + k, p->a + t * p->a_stride + k, group_end(&p->w, k) - k);
}

static enum status gemm_ints(const struct gemm_params *p)
{
    const struct weight *w = &p->w;
    size_t n_groups = (w->k + quant_group(w) - 1) / quant_group(w);
    float *scales = malloc(p->n_rows * n_groups * sizeof *scales);
    int8_t *q = malloc((size_t)p->n_rows * w->k);
    int16_t *codes = malloc(w->k * sizeof *codes);
    enum status s = scales && q && codes ? OK : ERR_NOMEM;

    if (s == OK)
        quantize_all(p, scales, q);
    for (uint32_t n = 0; s == OK && n < w->n; n++) {
        for (uint32_t k = 0; k < w->k; k++)
            codes[k] = (int16_t)pack_int_at(w, n, k);
        for (uint32_t t = 0; t < p->n_rows; t++) {
            float *out = p->out + t * p->out_stride + n;

            *out = dot_ints(w, n, codes, q + (size_t)t * w->k, scales + t * n_groups,
                            p->bias ? p->bias + n : NULL, p->accumulate ? out : NULL);
        }
    }
    free(scales);
    free(q);
    free(codes);
    return s;
}

enum status ref_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    bool ints = p->w.dtype >= DTYPE_FLOATS && p->w.dtype != DTYPE_F8;

    (void)d;
    (void)s;
    if (p->n_rows == 0)
        return OK;
    return ints ? gemm_ints(p) : gemm_floats(p);
}
