#include "base/ring.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum status ring_init(struct ring *r, uint32_t n_max)
{
    pthread_condattr_t attr;

    *r = (struct ring){.n_max = n_max};
    r->items = calloc(n_max ? n_max : 1, sizeof *r->items);
    if (!r->items)
        return ERR_NOMEM;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->filled, &attr);
    pthread_condattr_destroy(&attr);
    return OK;
}

void ring_fini(struct ring *r)
{
    if (!r->items)
        return;
    pthread_cond_destroy(&r->filled);
    pthread_mutex_destroy(&r->lock);
    free(r->items);
    r->items = NULL;
}

enum status ring_push(struct ring *r, void *item)
{
    enum status s = OK;

    pthread_mutex_lock(&r->lock);
    if (r->closed) {
        s = ERR_UNAVAILABLE;
    } else if (r->n == r->n_max) {
        s = ERR_BUSY;
    } else {
        r->items[(r->head + r->n) % r->n_max] = item;
        /* The one receiver drains the ring, so only the first item needs a wake. */
        if (r->n++ == 0)
            pthread_cond_signal(&r->filled);
    }
    pthread_mutex_unlock(&r->lock);
    return s;
}

uint32_t ring_drain(struct ring *r, void **out, uint32_t n_max)
{
    uint32_t n = 0;

    pthread_mutex_lock(&r->lock);
    while (n < n_max && r->n > 0) {
        out[n++] = r->items[r->head];
        r->head = (r->head + 1) % r->n_max;
        r->n--;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

void ring_wait(struct ring *r, uint64_t timeout_ns)
{
    uint64_t until = clock_now_ns() + timeout_ns;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

    pthread_mutex_lock(&r->lock);
    while (r->n == 0 && !r->poked && !r->closed)
        if (pthread_cond_timedwait(&r->filled, &r->lock, &t) != 0)
            break;
    r->poked = false;
    pthread_mutex_unlock(&r->lock);
}

void ring_poke(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->poked = true;
    pthread_cond_signal(&r->filled);
    pthread_mutex_unlock(&r->lock);
}

void ring_close(struct ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_cond_broadcast(&r->filled);
    pthread_mutex_unlock(&r->lock);
}
