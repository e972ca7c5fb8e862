/* cluster_elastic.c - idle instances help others to compute prompts. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "cache/balance/elastic.h"
#include "cache/balance/matching.h"
#include "engine/sched/cost_model.h"
#include "loadgen/sim/cluster_inner.h"

#define N_HOMES_MAX 32u /* of one plan; the others wait for no plan */
#define N_HELPERS_MAX MATCHING_MAX

/* An instance whose next step has prompts only. */
struct home {
    uint32_t at, n_cached, n_new;
    const struct pieces *first; /* of its prompts */
};

struct groups {
    struct cluster *c;
    struct home homes[N_HOMES_MAX];
    uint32_t helpers[N_HELPERS_MAX];
    uint32_t n_homes, n_helpers;
};

/* Seconds per row that its queries travel when n of a group of n_group do not hold its prefix. */
static double row_seconds(const struct cluster *c, uint32_t n, uint32_t n_group)
{
    return (double)n * (double)c->config.query_bytes / n_group / c->config.link_bytes_per_s;
}

/* The ring of a group is passed once in each layer. */
static double ring_seconds(const struct cluster *c)
{
    return 1e-9 * (double)c->config.link_ns * c->config.n_layers;
}

/* struct elastic_problem.seconds. Prompts of one instance are one batch, as in its own steps;
 * larger batches are left out. */
static double seconds(const void *arg, uint32_t first, uint32_t end, uint32_t n)
{
    const struct groups *p = arg;
    const struct cluster *c = p->c;
    const struct home *h = &p->homes[first];
    uint32_t n_own = (h->n_new + n - 1) / n;

    if (end - first > 1)
        return INFINITY;
    double s =
        cost_model_seconds(c->config.light.cost, h->n_cached + (h->n_new - n_own) / 2, n_own);
    return n == 1 ? s : s + ring_seconds(c) + h->n_new * row_seconds(c, n - 1, n);
}

static int by_context(const void *a, const void *b)
{
    const struct home *x = a, *y = b;
    uint64_t n = (uint64_t)x->n_cached + x->n_new, m = (uint64_t)y->n_cached + y->n_new;

    return n != m ? (n > m) - (n < m) : (x->at > y->at) - (x->at < y->at);
}

static void list_homes(struct groups *p, uint64_t now_ns)
{
    struct cluster *c = p->c;

    for (uint32_t i = 0; i < c->n_awake && p->n_homes < N_HOMES_MAX; i++) {
        struct node *node = &c->nodes[c->awake[i]];
        struct home h = {.at = c->awake[i]};
        if (!node->is_alive || node->helps || node->light.ends_ns != CLUSTER_NEVER)
            continue;
        light_admit(&node->light, now_ns);
        h.n_new = light_prompts(&node->light, &h.n_cached, &h.first);
        if (h.n_new > 1)
            p->homes[p->n_homes++] = h;
    }
    qsort(p->homes, p->n_homes, sizeof *p->homes, by_context);
}

static void list_helpers(struct groups *p)
{
    struct cluster *c = p->c;

    for (uint32_t k = 0; k < c->config.n_instances && p->n_helpers < N_HELPERS_MAX; k++) {
        uint32_t i = (c->next_helper + k) % c->config.n_instances;
        struct node *node = &c->nodes[i];
        if (node->is_alive && !node->helps && node->light.ends_ns == CLUSTER_NEVER &&
            node->light.n_inside == 0)
            p->helpers[p->n_helpers++] = i;
    }
    c->next_helper = (c->next_helper + 1) % c->config.n_instances;
}

/* Tokens of the beginning of the prompt that the instance holds. */
static double held(const struct cluster *c, uint32_t at, const struct pieces *p)
{
    uint32_t n = shelf_match(&c->nodes[at].light.shelf, p), n_tokens = 0;

    for (uint32_t i = 0; i < n; i++)
        n_tokens += p->v[i].n_tokens;
    return n_tokens;
}

/* Each home gets n_more [n_homes] helpers: those that hold most of its prompt. */
static void assign(struct groups *p, const uint32_t *n_more)
{
    static _Thread_local double gain[N_HOMES_MAX * N_HELPERS_MAX];
    uint32_t home_of[N_HELPERS_MAX], n_lacking[N_HOMES_MAX] = {0};
    struct cluster *c = p->c;

    for (uint32_t h = 0; h < p->n_homes; h++)
        for (uint32_t k = 0; k < p->n_helpers; k++)
            gain[h * p->n_helpers + k] = held(c, p->helpers[k], p->homes[h].first);
    (void)matching_dispatch(gain, n_more, p->n_homes, p->n_helpers, home_of);
    for (uint32_t k = 0; k < p->n_helpers; k++) {
        uint32_t h = home_of[k];
        if (h == UINT32_MAX)
            continue;
        c->nodes[p->helpers[k]].helps = p->homes[h].at + 1;
        n_lacking[h] += gain[h * p->n_helpers + k] < p->homes[h].n_cached;
    }
    for (uint32_t h = 0; h < p->n_homes; h++)
        if (n_more[h] > 0)
            c->nodes[p->homes[h].at].light.group =
                (struct light_group){.n = 1 + n_more[h],
                                     .row_s = row_seconds(c, n_lacking[h], 1 + n_more[h]),
                                     .step_s = ring_seconds(c)};
}

void cluster_plan_groups(struct cluster *c, uint64_t now_ns)
{
    struct groups p = {.c = c};
    struct elastic_batch batches[N_HOMES_MAX];
    uint32_t n_more[N_HOMES_MAX] = {0}, n = 0;
    double sum_s;
    bool keeps_slo;

    list_homes(&p, now_ns);
    if (p.n_homes > 0)
        list_helpers(&p);
    if (p.n_helpers == 0)
        return;
    struct elastic_problem problem = {.n_requests = p.n_homes,
                                      .n_instances = p.n_homes + p.n_helpers,
                                      .seconds = seconds,
                                      .arg = &p};
    if (elastic_plan(&problem, batches, &n, &sum_s, &keeps_slo) != OK)
        return; /* without memory each instance computes alone */
    for (uint32_t i = 0; i < n; i++)
        n_more[batches[i].first] = batches[i].n_instances - 1;
    assign(&p, n_more);
}

void cluster_end_group(struct cluster *c, uint32_t at, uint64_t busy_ns)
{
    for (uint32_t i = 0; i < c->config.n_instances; i++) {
        if (c->nodes[i].helps != at + 1)
            continue;
        c->nodes[i].helps = 0;
        c->result.helped_ns += busy_ns;
        cluster_wake(c, i);
    }
    c->result.n_group_steps += busy_ns > 0;
    c->nodes[at].light.group = (struct light_group){0};
}
