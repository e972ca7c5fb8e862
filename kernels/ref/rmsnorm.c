/* rmsnorm.c - reference: root-mean-square norm. */
#include <math.h>

#include "kernels/ref/ref.h"

enum status ref_rmsnorm(struct device *d, struct stream *s, const struct rmsnorm_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *x = p->x + (size_t)t * p->dim;
        float *stream = p->sum ? p->sum + (size_t)t * p->dim : NULL;
        float *out = p->out + (size_t)t * p->dim;
        double sum = 0;

        for (uint32_t i = 0; stream && i < p->dim; i++)
            stream[i] += x[i];
        x = stream ? stream : x;
        for (uint32_t i = 0; i < p->dim; i++)
            sum += (double)x[i] * x[i];
        double scale = 1 / sqrt(sum / p->dim + p->eps);
        for (uint32_t i = 0; i < p->dim; i++)
            out[i] = (float)(p->w[i] * (x[i] * scale));
    }
    return OK;
}
