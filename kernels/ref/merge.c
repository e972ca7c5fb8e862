/* merge.c - reference: join partial attentions by their log-sum-exp. */
#include <math.h>

#include "kernels/ref/ref.h"

static void merge_head(const struct merge_params *p, size_t at)
{
    size_t n_heads = (size_t)p->n_rows * p->n_heads;
    float *out = p->out + at * p->head_dim;
    double max = -INFINITY, total = 0;

    for (uint32_t i = 0; i < p->n_parts; i++)
        max = fmax(max, p->lse[i * n_heads + at]);
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (p->lse[i * n_heads + at] != -INFINITY)
            total += exp(p->lse[i * n_heads + at] - max);
    for (uint32_t k = 0; k < p->head_dim; k++) {
        double sum = 0;

        for (uint32_t i = 0; i < p->n_parts; i++)
            if (p->lse[i * n_heads + at] != -INFINITY)
                sum += exp(p->lse[i * n_heads + at] - max) *
                       p->parts[(i * n_heads + at) * p->head_dim + k];
        out[k] = total != 0 ? (float)(sum / total) : 0;
    }
    if (p->out_lse)
        p->out_lse[at] = total != 0 ? (float)(max + log(total)) : -INFINITY;
}

enum status ref_merge(struct device *d, struct stream *s, const struct merge_params *p)
{
    (void)d;
    (void)s;
    for (size_t at = 0; at < (size_t)p->n_rows * p->n_heads; at++)
        merge_head(p, at);
    return OK;
}
