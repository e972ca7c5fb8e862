#include "cache/balance/rebalance.h"

#include <math.h>

#define NONE UINT32_MAX

double rebalance_cv(const double *load, uint32_t n)
{
    double sum = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += load[i];
    double mean = n > 0 ? sum / n : 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (load[i] - mean) * (load[i] - mean);
    return mean > 0 ? sqrt(squares / n) / mean : 0;
}

/* The item of `from` whose move to `to` evens out most. */
static uint32_t best_item(const struct rebalance_state *s, uint32_t from, uint32_t to,
                          uint64_t budget)
{
    double gap = s->load[from] - s->load[to];
    uint32_t best = NONE;

    for (uint32_t i = 0; i < s->n_items; i++) {
        const struct rebalance_item *item = &s->items[i];
        if (item->instance != from || item->load <= 0 || item->load >= gap || item->size > budget ||
            item->size > s->free[to])
            continue;
        if (s->holds && s->holds(s->arg, i, to))
            continue;
        if (best == NONE || fabs(item->load - gap / 2) < fabs(s->items[best].load - gap / 2))
            best = i;
    }
    return best;
}

static void find_ends(const struct rebalance_state *s, uint32_t *fullest, uint32_t *emptiest)
{
    *fullest = *emptiest = 0;
    for (uint32_t i = 1; i < s->n_instances; i++) {
        *fullest = s->load[i] > s->load[*fullest] ? i : *fullest;
        *emptiest = s->load[i] < s->load[*emptiest] ? i : *emptiest;
    }
}

uint32_t rebalance_plan(const struct rebalance_state *s, struct rebalance_move *out, uint32_t n_max)
{
    double cv_stop = s->cv_stop > 0 ? s->cv_stop : REBALANCE_CV_STOP;
    uint64_t left = s->budget;
    uint32_t n = 0;

    while (n < n_max && rebalance_cv(s->load, s->n_instances) >= cv_stop) {
        uint32_t from, to;
        find_ends(s, &from, &to);
        uint32_t i = best_item(s, from, to, left);
        if (i == NONE)
            break;
        struct rebalance_item *item = &s->items[i];
        s->load[from] -= item->load;
        s->load[to] += item->load;
        s->free[from] += item->size;
        s->free[to] -= item->size;
        item->instance = to;
        left -= item->size;
        out[n++] = (struct rebalance_move){i, to};
    }
    return n;
}
