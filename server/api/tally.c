#include "server/api/tally.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"

#define N_STATUSES (TALLY_STATUS_MAX - TALLY_STATUS_MIN + 1)

struct route_tally {
    char name[ROUTE_NAME_BYTES]; /* constant; empty: never counted */
    uint64_t n[N_STATUSES];
    struct hist seconds;
};

struct tally {
    pthread_mutex_t lock;
    uint32_t n_routes; /* constant */
    _Atomic uint64_t counts[TALLY_N_COUNTS];
    /* Under lock. */
    struct hist n, n_tokens_max, search_s;
    uint64_t n_searches_failed;
    struct route_tally routes[];
};

enum status tally_create(struct tally **out, uint32_t n_routes,
                         bool (*name)(uint32_t route, char out[ROUTE_NAME_BYTES]))
{
    struct tally *t = calloc(1, sizeof *t + n_routes * sizeof *t->routes);

    *out = t;
    if (!t)
        return ERR_NOMEM;
    pthread_mutex_init(&t->lock, NULL);
    t->n_routes = n_routes;
    hist_init(&t->n, hist_bounds_n, ARRAY_SIZE(hist_bounds_n));
    hist_init(&t->search_s, hist_bounds_ttft_s, ARRAY_SIZE(hist_bounds_ttft_s));
    hist_init(&t->n_tokens_max, hist_bounds_tokens, ARRAY_SIZE(hist_bounds_tokens));
    for (uint32_t i = 0; i < n_routes; i++) {
        struct route_tally *r = &t->routes[i];
        hist_init(&r->seconds, hist_bounds_ttft_s, ARRAY_SIZE(hist_bounds_ttft_s));
        if (!name(i, r->name))
            r->name[0] = '\0';
    }
    return OK;
}

void tally_destroy(struct tally *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void tally_add(struct tally *t, enum tally_count what, uint64_t n)
{
    atomic_fetch_add_explicit(&t->counts[what], n, memory_order_relaxed);
}

uint64_t tally_count(const struct tally *t, enum tally_count what)
{
    return atomic_load_explicit(&t->counts[what], memory_order_relaxed);
}

uint32_t tally_n_routes(const struct tally *t)
{
    return t->n_routes;
}

const char *tally_route_name(const struct tally *t, uint32_t route)
{
    ASSERT(route < t->n_routes);
    return t->routes[route].name[0] ? t->routes[route].name : NULL;
}

void tally_exchange(struct tally *t, uint32_t route, int status, double seconds)
{
    ASSERT(route < t->n_routes);
    if (status < TALLY_STATUS_MIN || status > TALLY_STATUS_MAX)
        status = TALLY_STATUS_NONE;
    pthread_mutex_lock(&t->lock);
    t->routes[route].n[status - TALLY_STATUS_MIN]++;
    hist_add(&t->routes[route].seconds, seconds);
    pthread_mutex_unlock(&t->lock);
}

void tally_prompt(struct tally *t, uint32_t n, uint32_t n_tokens_max)
{
    pthread_mutex_lock(&t->lock);
    hist_add(&t->n, n);
    hist_add(&t->n_tokens_max, n_tokens_max);
    pthread_mutex_unlock(&t->lock);
}

void tally_each_status(struct tally *t, uint32_t route, int always,
                       void (*f)(void *arg, int status, uint64_t n), void *arg)
{
    ASSERT(route < t->n_routes);
    for (int i = 0; i < N_STATUSES; i++) {
        pthread_mutex_lock(&t->lock);
        uint64_t n = t->routes[route].n[i];
        pthread_mutex_unlock(&t->lock);
        if (n || TALLY_STATUS_MIN + i == always)
            f(arg, TALLY_STATUS_MIN + i, n);
    }
}

void tally_seconds(struct tally *t, uint32_t route, struct hist *out)
{
    ASSERT(route < t->n_routes);
    pthread_mutex_lock(&t->lock);
    *out = t->routes[route].seconds;
    pthread_mutex_unlock(&t->lock);
}

void tally_prompts(struct tally *t, struct hist *n, struct hist *n_tokens_max)
{
    pthread_mutex_lock(&t->lock);
    *n = t->n;
    *n_tokens_max = t->n_tokens_max;
    pthread_mutex_unlock(&t->lock);
}

void tally_search(struct tally *t, double seconds, bool succeeded)
{
    pthread_mutex_lock(&t->lock);
    if (succeeded)
        hist_add(&t->search_s, seconds);
    else
        t->n_searches_failed++;
    pthread_mutex_unlock(&t->lock);
}

void tally_searches(struct tally *t, struct hist *seconds, uint64_t *n_failed)
{
    pthread_mutex_lock(&t->lock);
    *seconds = t->search_s;
    *n_failed = t->n_searches_failed;
    pthread_mutex_unlock(&t->lock);
}
