#include "cache/balance/quota.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define TOLERANCE 0.01

/* An item, or an instance, in an order. */
struct ranked {
    double load;
    uint32_t home, index;
};

struct solver {
    const struct quota_problem *p;
    struct ranked *order;   /* [n_items] by home, the heaviest first */
    struct ranked *fullest; /* [n_instances] the fullest first */
    uint32_t *first;        /* [n_instances + 1] index in `order` of a home's first item */
    double *load;           /* [n_instances] */
    uint32_t *used;         /* [n_instances] slots */
    double *kept;           /* [n_items] load that stays at home */
    struct quota *copies;   /* [n_copies] of this trial */
    uint32_t n_copies;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->home != y->home)
        return x->home < y->home ? -1 : 1;
    if (x->load != y->load)
        return x->load > y->load ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool is_holder(const struct solver *s, uint32_t item, uint32_t instance)
{
    if (s->p->items[item].home == instance)
        return true;
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (s->copies[i].item == item && s->copies[i].instance == instance)
            return true;
    return false;
}

/* The instance with most room below the limit that can take a copy; n_instances: none. */
static uint32_t find_room(const struct solver *s, uint32_t item, double limit)
{
    uint32_t n = s->p->n_instances, best = n;

    for (uint32_t i = 0; i < n; i++)
        if (s->used[i] < s->p->n_slots && limit - s->load[i] > 0 &&
            limit - s->load[i] >= s->p->load_min && (best == n || s->load[i] < s->load[best]) &&
            !is_holder(s, item, i))
            best = i;
    return best;
}

/* Give away load of an item until its home is below the limit. */
static void give_away(struct solver *s, uint32_t item, double limit)
{
    uint32_t home = s->p->items[item].home;

    while (s->load[home] > limit && s->kept[item] > 0 && s->kept[item] >= s->p->load_min) {
        uint32_t to = find_room(s, item, limit);
        if (to == s->p->n_instances)
            return;
        double room = limit - s->load[to], quota = s->load[home] - limit;
        quota = quota < s->p->load_min ? s->p->load_min : quota;
        quota = quota > room ? room : quota;
        quota = quota > s->kept[item] ? s->kept[item] : quota;
        s->copies[s->n_copies++] = (struct quota){item, to, quota};
        s->used[to]++;
        s->load[to] += quota;
        s->load[home] -= quota;
        s->kept[item] -= quota;
    }
}

/* Start again with every item at home. */
static double reset(struct solver *s)
{
    const struct quota_problem *p = s->p;
    double max = 0;

    s->n_copies = 0;
    memset(s->used, 0, p->n_instances * sizeof *s->used);
    memset(s->load, 0, p->n_instances * sizeof *s->load);
    for (uint32_t i = 0; i < p->n_items; i++) {
        s->kept[i] = p->items[i].load;
        s->load[p->items[i].home] += p->items[i].load;
    }
    for (uint32_t i = 0; i < p->n_instances; i++)
        max = s->load[i] > max ? s->load[i] : max;
    return max;
}

static double try_limit(struct solver *s, double limit)
{
    const struct quota_problem *p = s->p;
    double max = 0;

    (void)reset(s);
    for (uint32_t i = 0; i < p->n_instances; i++) {
        uint32_t at = s->fullest[i].index;
        for (uint32_t k = s->first[at]; k < s->first[at + 1] && s->load[at] > limit; k++)
            give_away(s, s->order[k].index, limit);
    }
    for (uint32_t i = 0; i < p->n_instances; i++)
        max = s->load[i] > max ? s->load[i] : max;
    return max;
}

static void rank(struct solver *s)
{
    const struct quota_problem *p = s->p;

    for (uint32_t i = 0; i < p->n_items; i++) {
        ASSERT(p->items[i].home < p->n_instances && p->items[i].load >= 0);
        s->order[i] = (struct ranked){p->items[i].load, p->items[i].home, i};
        s->first[p->items[i].home + 1]++;
    }
    for (uint32_t i = 0; i < p->n_instances; i++) {
        s->first[i + 1] += s->first[i];
        s->fullest[i] = (struct ranked){s->load[i], 0, i};
    }
    qsort(s->order, p->n_items, sizeof *s->order, compare_ranked);
    qsort(s->fullest, p->n_instances, sizeof *s->fullest, compare_ranked);
}

/* Leave the copies of the best trial in s; returns the largest load. */
static double search(struct solver *s)
{
    const struct quota_problem *p = s->p;
    double tolerance = p->tolerance > 0 ? p->tolerance : TOLERANCE, sum = 0;
    double high = reset(s);

    rank(s);
    for (uint32_t i = 0; i < p->n_instances; i++)
        sum += s->load[i];
    double low = sum / p->n_instances;
    while (high - low > tolerance * low) {
        double middle = (low + high) / 2;
        if (try_limit(s, middle) <= middle * (1 + 1e-9))
            high = middle;
        else
            low = middle;
    }
    return try_limit(s, high);
}

static void write_quotas(const struct solver *s, struct quota *quotas, uint32_t *n)
{
    const struct quota_problem *p = s->p;

    *n = 0;
    for (uint32_t i = 0; i < p->n_items; i++) {
        quotas[(*n)++] = (struct quota){i, p->items[i].home, s->kept[i]};
        for (uint32_t k = 0; k < s->n_copies; k++)
            if (s->copies[k].item == i)
                quotas[(*n)++] = s->copies[k];
    }
}

static void solver_fini(struct solver *s)
{
    free(s->order);
    free(s->fullest);
    free(s->first);
    free(s->load);
    free(s->used);
    free(s->kept);
    free(s->copies);
}

enum status quota_solve(const struct quota_problem *p, struct quota *quotas, uint32_t *n,
                        double *load_max)
{
    size_t n_copies_max = (size_t)p->n_instances * p->n_slots + 1;
    struct solver s = {.p = p,
                       .order = calloc(p->n_items + 1, sizeof *s.order),
                       .fullest = calloc(p->n_instances, sizeof *s.fullest),
                       .first = calloc(p->n_instances + 1, sizeof *s.first),
                       .load = calloc(p->n_instances, sizeof *s.load),
                       .used = calloc(p->n_instances, sizeof *s.used),
                       .kept = calloc(p->n_items + 1, sizeof *s.kept),
                       .copies = calloc(n_copies_max, sizeof *s.copies)};
    enum status status = ERR_NOMEM;

    ASSERT(p->n_instances > 0);
    if (s.order && s.fullest && s.first && s.load && s.used && s.kept && s.copies) {
        *load_max = search(&s);
        write_quotas(&s, quotas, n);
        status = OK;
    }
    solver_fini(&s);
    return status;
}
