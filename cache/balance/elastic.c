#include "cache/balance/elastic.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

struct cell {
    double sum;
    uint32_t j, l; /* the cell before it */
};

static struct cell *at(struct cell *f, const struct elastic_problem *p, uint32_t i, uint32_t k)
{
    return &f[(size_t)i * (p->n_instances + 1) + k];
}

/* Extend all plans by a batch [j, i) on n instances. */
static void extend(struct cell *f, const struct elastic_problem *p, uint32_t j, uint32_t i,
                   uint32_t n, double slo_s)
{
    double s = p->seconds(p->arg, j, i, n);

    if (s > slo_s)
        return;
    for (uint32_t l = 0; l + n <= p->n_instances; l++) {
        double sum = at(f, p, j, l)->sum + (i - j) * s;
        struct cell *c = at(f, p, i, l + n);
        if (sum < c->sum)
            *c = (struct cell){sum, j, l};
    }
}

static void fill(struct cell *f, const struct elastic_problem *p, bool with_slo)
{
    for (uint32_t i = 0; i <= p->n_requests; i++)
        for (uint32_t k = 0; k <= p->n_instances; k++)
            at(f, p, i, k)->sum = i == 0 && k == 0 ? 0 : INFINITY;
    for (uint32_t i = 1; i <= p->n_requests; i++) {
        double slo_s = INFINITY;
        for (uint32_t j = i; j-- > 0;) {
            if (with_slo && p->slo_s && p->slo_s[j] < slo_s)
                slo_s = p->slo_s[j];
            for (uint32_t n = 1; n <= p->n_instances; n++)
                extend(f, p, j, i, n, slo_s);
        }
    }
}

static uint32_t best_end(struct cell *f, const struct elastic_problem *p)
{
    uint32_t best = 0;

    for (uint32_t k = 1; k <= p->n_instances; k++)
        if (at(f, p, p->n_requests, k)->sum < at(f, p, p->n_requests, best)->sum)
            best = k;
    return best;
}

enum status elastic_plan(const struct elastic_problem *p, struct elastic_batch *batches,
                         uint32_t *n, double *sum_s, bool *keeps_slo)
{
    size_t n_cells = ((size_t)p->n_requests + 1) * (p->n_instances + 1);
    struct cell *f = calloc(n_cells, sizeof *f);

    ASSERT(p->n_instances > 0);
    if (!f)
        return ERR_NOMEM;
    fill(f, p, true);
    uint32_t k = best_end(f, p), i = p->n_requests;
    *keeps_slo = isfinite(at(f, p, i, k)->sum);
    if (!*keeps_slo) {
        fill(f, p, false);
        k = best_end(f, p);
    }
    *sum_s = at(f, p, i, k)->sum;
    *n = 0;
    while (i > 0) { /* backwards, then turned around */
        const struct cell *c = at(f, p, i, k);
        batches[(*n)++] = (struct elastic_batch){c->j, i, k - c->l};
        i = c->j;
        k = c->l;
    }
    for (uint32_t a = 0; a < *n / 2; a++) {
        struct elastic_batch swapped = batches[a];
        batches[a] = batches[*n - 1 - a];
        batches[*n - 1 - a] = swapped;
    }
    free(f);
    return OK;
}
