/* experts.c - reference: routers and products of mixtures of experts. */
#include <math.h>

#include "kernels/ref/ref.h"

static double key_of(float logit)
{
    return isnan(logit) ? -INFINITY : (double)logit;
}

/* Number of experts that are chosen before expert e. */
static uint32_t rank_of(const float *logits, uint32_t n_experts, uint32_t e)
{
    double key = key_of(logits[e]);
    uint32_t rank = 0;

    for (uint32_t i = 0; i < n_experts; i++)
        rank += key_of(logits[i]) > key || (key_of(logits[i]) == key && i < e);
    return rank;
}

static double score_of(const struct route_params *p, float logit, double max)
{
    return p->score == ROUTE_SIGMOID ? 1 / (1 + exp(-(double)logit)) : exp((double)logit - max);
}

static void route_row(const struct route_params *p, const float *logits, uint32_t *experts,
                      float *weights)
{
    double max = -INFINITY, all = 0, chosen = 0;
    uint32_t n = 0;

    for (uint32_t e = 0; e < p->n_experts; e++)
        max = fmax(max, (double)logits[e]);
    for (uint32_t e = 0; e < p->n_experts; e++) {
        double score = score_of(p, logits[e], max);

        all += score;
        if (rank_of(logits, p->n_experts, e) >= p->n_chosen)
            continue;
        chosen += score;
        experts[n++] = e;
    }
    double sum = p->renormalize ? chosen : p->score == ROUTE_SOFTMAX ? all : 1;
    for (uint32_t j = 0; j < n; j++)
        weights[j] = (float)(score_of(p, logits[experts[j]], max) / sum * (double)p->scale);
}

static void route_none(const struct route_params *p, size_t at)
{
    for (size_t i = at; i < at + p->n_chosen; i++) {
        p->experts[i] = p->n_experts;
        p->weights[i] = 0;
        if (p->at)
            p->at[i] = 0;
    }
}

static void sort_rows(const struct route_params *p)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < p->n_experts; e++) {
        p->offsets[e] = n;
        for (uint32_t i = 0; i < p->n_rows * p->n_chosen; i++)
            if (p->experts[i] == e) {
                p->rows[n] = i / p->n_chosen;
                p->at[i] = n++;
            }
    }
    p->offsets[p->n_experts] = n;
}

enum status ref_route(struct device *d, struct stream *s, const struct route_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        size_t at = (size_t)t * p->n_chosen;

        if (p->slot_block && p->slot_block[t] == UINT32_MAX)
            route_none(p, at);
        else
            route_row(p, p->logits + (size_t)t * p->n_experts, p->experts + at, p->weights + at);
    }
    if (p->offsets)
        sort_rows(p);
    return OK;
}

enum status ref_gemm_experts(struct device *d, struct stream *s,
                             const struct gemm_experts_params *p)
{
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t row0 = p->offsets[e];
        struct gemm_params g = {.n_rows = p->offsets[e + 1] - row0,
                                .a = p->a + (size_t)row0 * p->w.k,
                                .a_stride = p->w.k,
                                .w = p->w,
                                .out = p->out + (size_t)row0 * p->w.n,
                                .out_stride = p->w.n};

        g.w.data = (const unsigned char *)p->w.data + e * p->expert_bytes;
        enum status status = ref_gemm(d, s, &g);
        if (status != OK)
            return status;
    }
    return OK;
}

enum status ref_combine(struct device *d, struct stream *s, const struct combine_params *p)
{
    (void)d;
    (void)s;
    for (size_t t = 0; t < p->n_rows; t++)
        for (uint32_t i = 0; i < p->dim; i++) {
            double sum = 0;

            for (size_t j = t * p->n_chosen; j < (t + 1) * p->n_chosen; j++)
                sum += (double)p->weights[j] * p->y[(p->at ? p->at[j] : j) * p->dim + i];
            p->out[t * p->dim + i] = (float)(p->out[t * p->dim + i] + sum);
        }
    return OK;
}
