/* gemm.c - reference: activations times a packed weight. */
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

enum status ref_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *a = p->a + t * p->a_stride;
        float *out = p->out + t * p->out_stride;

        for (uint32_t n = 0; n < p->w.n; n++) {
            double sum = 0;

            for (uint32_t k = 0; k < p->w.k; k++)
                sum += (double)a[k] * pack_at(&p->w, n, k);
            if (p->bias)
                sum += p->bias[n];
            if (p->accumulate)
                sum += out[n];
            out[n] = (float)sum;
        }
    }
    return OK;
}
