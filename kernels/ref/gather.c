/* gather.c - reference: pick rows. */
#include <string.h>

#include "kernels/ref/ref.h"

enum status ref_gather(struct device *d, struct stream *s, const struct gather_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t i = 0; i < p->n_rows; i++)
        memcpy(p->out + (size_t)i * p->dim, p->x + (size_t)p->rows[i] * p->dim,
               p->dim * sizeof(float));
    return OK;
}
