/* silu_mul.c - reference: the gated activation of a feed-forward layer. */
#include <math.h>

#include "kernels/ref/ref.h"

static double activation(enum activation f, double x)
{
    if (f == ACTIVATION_GELU)
        return x * 0.5 * erfc(-x * 0.70710678118654752);
    double u = 0.7978845608028654 * (x + 0.044715 * x * x * x);

    return x / (1 + exp(f == ACTIVATION_SILU ? -x : -2 * u));
}

enum status ref_silu_mul(struct device *d, struct stream *s, const struct silu_mul_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *gate = p->gate_up + (size_t)t * (p->ungated ? 1 : 2) * p->dim;
        const float *up = p->ungated ? NULL : gate + p->dim;

        for (uint32_t i = 0; i < p->dim; i++)
            p->out[(size_t)t * p->dim + i] =
                (float)(activation(p->activation, (double)gate[i]) * (up ? up[i] : 1));
    }
    return OK;
}
