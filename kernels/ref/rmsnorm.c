/* rmsnorm.c - reference: root-mean-square norm, LayerNorm. */
#include <math.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

static void norm(const struct rmsnorm_params *p, const float *x, float *out)
{
    double mean = 0, sum = 0;

    for (uint32_t i = 0; p->center && i < p->dim; i++)
        mean += (double)x[i] / p->dim;
    for (uint32_t i = 0; i < p->dim; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / sqrt(sum / p->dim + p->eps);
    for (uint32_t i = 0; i < p->dim; i++) {
        double y = p->w[i] * ((x[i] - mean) * scale) + (p->bias ? p->bias[i] : 0);
        out[i] = (float)(p->accumulate ? out[i] + y : y);
    }
}

enum status ref_rmsnorm(struct device *d, struct stream *s, const struct rmsnorm_params *p)
{
    uint32_t n_parts = p->n_parts ? p->n_parts : 1;
    size_t width = (size_t)n_parts * p->dim;

    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *x = p->x + t * (p->x_stride ? p->x_stride : width);
        float *stream = p->sum ? p->sum + t * width : NULL;
        float *out = p->out + t * (p->out_stride ? p->out_stride : width);

        for (uint32_t i = 0; stream && i < p->dim; i++)
            stream[i] += x[i];
        x = stream ? stream : x;
        for (size_t at = 0; at < width; at += p->dim)
            norm(p, x + at, out + at);
    }
    return OK;
}
