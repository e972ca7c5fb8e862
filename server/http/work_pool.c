#include "server/http/work_pool.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#define N_THREADS_MAX 16

struct item {
    void *item;
    struct client *client;
    bool is_heavy;
};

/* A client that has, or recently had, items queued or running. */
struct client {
    uint64_t id;
    uint64_t service_ns; /* run time of its items, raised after pauses (work_pool_push()) */
    uint64_t used_no;    /* number of its last push; 0: the record is free */
    uint32_t n_queued, n_running;
};

struct work_pool {
    void (*work)(void *item);
    pthread_t threads[N_THREADS_MAX];
    uint32_t n_threads; /* running, to be joined */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock. */
    struct item *items; /* [n_max], oldest first; n_max is small, so memmove() is fine */
    uint32_t n_max, n;
    struct client *clients; /* [n_clients_max], so many that a record is always idle */
    uint32_t n_clients_max;
    uint64_t service_ns; /* highest service of a client when one of its items began */
    uint64_t n_pushed;
    uint32_t n_heavy, n_heavy_max; /* heavy items that run, and that may run */
    bool closed;
};

/* --- clients --- */

static bool is_idle(const struct client *c)
{
    return c->n_queued == 0 && c->n_running == 0;
}

/* The client's record. A new client replaces the client that has been idle for longest. */
static struct client *find_client(struct work_pool *p, uint64_t id)
{
    struct client *oldest = NULL;

    for (uint32_t i = 0; i < p->n_clients_max; i++) {
        struct client *c = &p->clients[i];
        if (c->used_no > 0 && c->id == id)
            return c;
        if (is_idle(c) && (!oldest || c->used_no < oldest->used_no))
            oldest = c;
    }
    ASSERT(oldest); /* there are more records than items */
    *oldest = (struct client){.id = id};
    return oldest;
}

/* Whether a's next item runs before b's. */
static bool goes_before(const struct client *a, const struct client *b)
{
    if ((a->n_running == 0) != (b->n_running == 0))
        return a->n_running == 0;
    return a->service_ns < b->service_ns;
}

/* --- the queue --- */

/* The index of the next item to run, or p->n when none may run now. */
static uint32_t choose(const struct work_pool *p)
{
    bool heavy_may_run = p->n_heavy < p->n_heavy_max;
    uint32_t best = p->n;

    for (uint32_t i = 0; i < p->n; i++) {
        if (p->items[i].is_heavy && !heavy_may_run)
            continue;
        if (best == p->n || goes_before(p->items[i].client, p->items[best].client))
            best = i;
    }
    return best;
}

static struct item take(struct work_pool *p, uint32_t i)
{
    struct item item = p->items[i];

    memmove(p->items + i, p->items + i + 1, (p->n - i - 1) * sizeof *p->items);
    p->n--;
    item.client->n_queued--;
    item.client->n_running++;
    p->n_heavy += item.is_heavy;
    if (item.client->service_ns > p->service_ns)
        p->service_ns = item.client->service_ns;
    return item;
}

static void put_back(struct work_pool *p, const struct item *item, uint64_t service_ns)
{
    item->client->service_ns += service_ns;
    item->client->n_running--;
    p->n_heavy -= item->is_heavy;
    if (item->is_heavy)
        pthread_cond_broadcast(&p->changed); /* the next heavy item may run */
}

static void *run(void *arg)
{
    struct work_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        uint32_t i = choose(p);
        if (i == p->n && p->n == 0 && p->closed)
            break;
        if (i == p->n) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        struct item item = take(p, i);
        pthread_mutex_unlock(&p->lock);
        uint64_t begin_ns = clock_now_ns();
        p->work(item.item);
        uint64_t service_ns = clock_now_ns() - begin_ns;
        pthread_mutex_lock(&p->lock);
        put_back(p, &item, service_ns);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum status work_pool_push(struct work_pool *p, void *item, uint64_t client, uint64_t cost)
{
    enum status s = OK;

    pthread_mutex_lock(&p->lock);
    struct client *c = find_client(p, client);
    if (p->closed) {
        s = ERR_UNAVAILABLE;
    } else if (p->n == p->n_max || c->n_queued >= p->n_max - p->n) {
        s = ERR_BUSY;
    } else {
        if (is_idle(c) && c->service_ns < p->service_ns)
            c->service_ns = p->service_ns;
        c->used_no = ++p->n_pushed;
        c->n_queued++;
        p->items[p->n++] = (struct item){item, c, cost > WORK_HEAVY_COST};
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return s;
}

/* --- lifecycle --- */

enum status work_pool_create(struct work_pool **out, uint32_t n_threads, uint32_t n_queued_max,
                             void (*work)(void *item))
{
    struct work_pool *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return ERR_NOMEM;
    p->work = work;
    p->n_max = n_queued_max;
    p->n_clients_max = n_queued_max + N_THREADS_MAX + 1;
    p->n_heavy_max = n_threads > 1 ? n_threads - 1 : 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->items = calloc(n_queued_max, sizeof *p->items);
    p->clients = calloc(p->n_clients_max, sizeof *p->clients);
    enum status s = p->items && p->clients && n_threads <= N_THREADS_MAX ? OK : ERR_NOMEM;
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
    free(p->clients);
    free(p);
}

uint64_t work_client_of_address(const struct sockaddr *address)
{
    uint64_t id = 0;

    if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)address;
        id = a->sin_addr.s_addr;
    } else if (address && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)address;
        bool is_mapped = IN6_IS_ADDR_V4MAPPED(&a->sin6_addr);
        memcpy(&id, a->sin6_addr.s6_addr + (is_mapped ? 12 : 0), is_mapped ? 4 : 8);
    }
    return id;
}
