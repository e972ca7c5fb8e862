/* silu_mul.c - reference: the gated activation of a SwiGLU feed-forward layer. */
#include <math.h>

#include "kernels/ref/ref.h"

enum status ref_silu_mul(struct device *d, struct stream *s, const struct silu_mul_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        const float *gate = p->gate_up + (size_t)t * 2 * p->dim;
        const float *up = gate + p->dim;

        for (uint32_t i = 0; i < p->dim; i++)
            p->out[(size_t)t * p->dim + i] =
                (float)((double)gate[i] / (1 + exp(-(double)gate[i])) * up[i]);
    }
    return OK;
}
