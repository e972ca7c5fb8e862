#include "cache/balance/cover.h"

#include <string.h>

static bool is_held(const struct cover_segment *s, uint32_t instance)
{
    for (uint32_t k = 0; k < s->n; k++)
        if (s->holders[k] == instance)
            return true;
    return false;
}

static void take_from(const struct cover_query *q, uint32_t *from, uint32_t instance)
{
    for (uint32_t i = 0; i < q->n; i++)
        if (from[i] == COVER_NONE && is_held(&q->segments[i], instance))
            from[i] = instance;
}

static bool is_better(const struct cover_query *q, uint32_t a, uint32_t b)
{
    if (b == COVER_NONE)
        return true;
    if (q->n_held[a] != q->n_held[b])
        return q->n_held[a] > q->n_held[b];
    if (q->load[a] != q->load[b])
        return q->load[a] < q->load[b];
    return a < b;
}

/* The holder of most segments that are left; of contacted instances only, if so asked. */
static uint32_t best_holder(const struct cover_query *q, const uint32_t *from, bool contacted_only)
{
    uint32_t best = COVER_NONE;

    for (int pass = 0; pass < 3; pass++) /* count, compare, clear */
        for (uint32_t i = 0; i < q->n; i++)
            for (uint32_t k = 0; from[i] == COVER_NONE && k < q->segments[i].n; k++) {
                uint32_t at = q->segments[i].holders[k];
                if (pass == 0)
                    q->n_held[at]++;
                else if (pass == 2)
                    q->n_held[at] = 0;
                else if ((!contacted_only || q->contacted[at]) && is_better(q, at, best))
                    best = at;
            }
    return best;
}

uint32_t cover_choose(const struct cover_query *q, uint32_t *from)
{
    uint32_t n = 0, at;

    memset(from, 0xff, q->n * sizeof *from); /* COVER_NONE */
    if (q->local != COVER_NONE)
        take_from(q, from, q->local);
    for (int contacted_only = q->contacted != NULL; contacted_only >= 0; contacted_only--)
        while ((at = best_holder(q, from, contacted_only)) != COVER_NONE) {
            take_from(q, from, at);
            n++;
        }
    return n;
}
