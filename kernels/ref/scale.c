/* scale.c - reference: multipliers and soft caps. */
#include <math.h>

#include "kernels/ref/ref.h"

enum status ref_scale(struct device *d, struct stream *s, const struct scale_params *p)
{
    (void)d;
    (void)s;
    for (size_t i = 0; i < (size_t)p->n_rows * p->dim; i++) {
        double y = (double)p->x[i] * (double)p->scale;

        if (p->soft_cap > 0)
            y = p->soft_cap * tanh(y / p->soft_cap);
        p->out[i] = (float)(p->accumulate ? p->out[i] + y : y);
    }
    return OK;
}
