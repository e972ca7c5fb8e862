#include "engine/run/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/ring.h"

/* While a device computes, its thread looks this often whether it has failed: the other devices
 * would wait for it in a collective. */
#define WATCH_NS UINT64_C(2000000)
#define IDLE_NS UINT64_C(3600000000000)

/* An order of the engine thread to the rank threads: launch a batch, or the logits of rows. */
struct launch {
    struct batch *batch; /* NULL: logits */
    const struct kv_pool *pools;
    const uint32_t *rows;
    uint32_t n;
};

struct rank {
    struct ranks *all;
    struct device *device;
    struct forward *forward;
    struct device_event *reached; /* behind the last launch */
    struct ring ring;             /* struct launch *; one at a time */
    pthread_t thread;
    bool has_ring, runs;
    enum status status; /* of the last launch; valid while n_launching is 0 */
};

struct ranks {
    struct device_group group;
    struct rank rank[DEVICE_GROUP_MAX]; /* [group.n]; the first is not used */
    struct launch launch;
    pthread_mutex_t lock; /* protects n_launching */
    pthread_cond_t launched;
    uint32_t n_launching;
    atomic_bool ends;
};

/* The device has failed for good: nobody may wait for it. */
static void end_group(struct ranks *r, const char *words)
{
    device_group_fail(&r->group, words ? words : "a rank cannot go on");
}

static enum status run_launch(struct rank *k, const struct launch *l)
{
    enum status s = l->batch ? forward_launch(k->forward, l->batch, l->pools)
                             : forward_launch_logits(k->forward, l->rows, l->n);
    const char *failure = device_failure(k->device);

    if (!failure && device_event_record(k->device, k->reached, NULL) != OK)
        failure = device_failure(k->device);
    if (failure)
        end_group(k->all, failure);
    return failure ? ERR_INTERNAL : s;
}

static void end_launch(struct rank *k, enum status s)
{
    struct ranks *r = k->all;

    k->status = s;
    pthread_mutex_lock(&r->lock);
    if (--r->n_launching == 0)
        pthread_cond_signal(&r->launched);
    pthread_mutex_unlock(&r->lock);
}

/* Whether the device has done all that was launched; a device that has failed has. */
static bool is_idle(struct rank *k)
{
    bool done = true;

    if (device_event_query(k->device, k->reached, &done) == OK)
        return done;
    if (device_failure(k->device))
        end_group(k->all, device_failure(k->device));
    return true;
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    bool idle = true;
    void *item;

    device_adopt_thread(k->device);
    for (;;) {
        ring_wait(&k->ring, idle ? IDLE_NS : WATCH_NS);
        if (ring_drain(&k->ring, &item, 1) == 0) {
            idle = is_idle(k);
            if (idle && atomic_load(&k->all->ends))
                return NULL;
            continue;
        }
        idle = false;
        end_launch(k, run_launch(k, item));
    }
}

static enum status start_rank(struct ranks *r, uint32_t i, const struct forward_config *first,
                              const struct weights *weights)
{
    struct rank *k = &r->rank[i];
    struct forward_config c = *first;

    k->all = r;
    k->device = first->group.devices[i];
    c.group.rank = i;
    c.weights = &weights[i];
    c.ranks = NULL;
    enum status s = forward_create(&k->forward, &c);
    if (s == OK)
        s = device_event_create(k->device, &k->reached);
    if (s == OK)
        s = ring_init(&k->ring, 1);
    if (s != OK)
        return s;
    k->has_ring = true;
    k->runs = pthread_create(&k->thread, NULL, rank_main, k) == 0;
    return k->runs ? OK : ERR_NOMEM;
}

enum status ranks_create(struct ranks **out, const struct forward_config *first,
                         const struct weights *weights)
{
    struct ranks *r = calloc(1, sizeof *r);
    enum status s = OK;

    *out = NULL;
    if (!r)
        return ERR_NOMEM;
    r->group = first->group;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->launched, NULL);
    for (uint32_t i = 1; s == OK && i < r->group.n; i++)
        s = start_rank(r, i, first, weights);
    if (s != OK) {
        ranks_destroy(r);
        return s;
    }
    *out = r;
    return OK;
}

void ranks_destroy(struct ranks *r)
{
    if (!r)
        return;
    atomic_store(&r->ends, true);
    for (uint32_t i = 1; i < r->group.n; i++) {
        struct rank *k = &r->rank[i];

        if (k->has_ring)
            ring_poke(&k->ring);
        if (k->runs)
            pthread_join(k->thread, NULL);
        if (k->has_ring)
            ring_fini(&k->ring);
        forward_destroy(k->forward);
        if (k->device)
            device_event_destroy(k->device, k->reached);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->launched);
    free(r);
}

static void begin(struct ranks *r, struct launch launch)
{
    ASSERT(r->n_launching == 0);
    r->launch = launch;
    r->n_launching = r->group.n - 1;
    for (uint32_t i = 1; i < r->group.n; i++) {
        enum status s = ring_push(&r->rank[i].ring, &r->launch);

        ASSERT(s == OK); /* the ring is empty: the last launch has ended */
    }
}

void ranks_begin(struct ranks *r, struct batch *batch, const struct kv_pool *pools)
{
    begin(r, (struct launch){.batch = batch, .pools = pools});
}

void ranks_begin_logits(struct ranks *r, const uint32_t *rows, uint32_t n)
{
    begin(r, (struct launch){.rows = rows, .n = n});
}

enum status ranks_end(struct ranks *r, enum status own)
{
    const char *failure = device_failure(r->group.devices[0]);

    if (failure)
        end_group(r, failure);
    pthread_mutex_lock(&r->lock);
    while (r->n_launching > 0)
        pthread_cond_wait(&r->launched, &r->lock);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 1; i < r->group.n; i++)
        own = own == OK ? r->rank[i].status : own;
    return own;
}
