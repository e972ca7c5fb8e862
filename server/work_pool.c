#include "server/work_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define N_THREADS_MAX 16

struct work_pool {
    void (*work)(void *item);
    pthread_t threads[N_THREADS_MAX];
    uint32_t n_threads; /* running, to be joined */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock. */
    void **items; /* [n_max], a circle */
    uint32_t n_max;
    uint32_t head; /* next to take */
    uint32_t n;
    bool closed;
};

static void *run(void *arg)
{
    struct work_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->n == 0 && !p->closed)
            pthread_cond_wait(&p->changed, &p->lock);
        if (p->n == 0)
            break;
        void *item = p->items[p->head];
        p->head = (p->head + 1) % p->n_max;
        p->n--;
        pthread_mutex_unlock(&p->lock);
        p->work(item);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum status work_pool_create(struct work_pool **out, uint32_t n_threads, uint32_t n_queued_max,
                             void (*work)(void *item))
{
    struct work_pool *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return ERR_NOMEM;
    p->work = work;
    p->n_max = n_queued_max;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->items = calloc(n_queued_max, sizeof *p->items);
    enum status s = p->items && n_threads <= N_THREADS_MAX ? OK : ERR_NOMEM;
    while (s == OK && p->n_threads < n_threads) {
        if (pthread_create(&p->threads[p->n_threads], NULL, run, p) == 0)
            p->n_threads++;
        else
            s = ERR_NOMEM;
    }
    if (s != OK) {
        work_pool_destroy(p);
        return s;
    }
    *out = p;
    return OK;
}

enum status work_pool_push(struct work_pool *p, void *item)
{
    enum status s = OK;

    pthread_mutex_lock(&p->lock);
    if (p->closed) {
        s = ERR_UNAVAILABLE;
    } else if (p->n == p->n_max) {
        s = ERR_BUSY;
    } else {
        p->items[(p->head + p->n++) % p->n_max] = item;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return s;
}

void work_pool_close(struct work_pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (; p->n_threads > 0; p->n_threads--)
        pthread_join(p->threads[p->n_threads - 1], NULL);
}

void work_pool_destroy(struct work_pool *p)
{
    if (!p)
        return;
    work_pool_close(p);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->items);
    free(p);
}
