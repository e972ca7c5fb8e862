#include "cache/events.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/spsc.h"

struct cache_events {
    struct spsc *queue;
    bool wants_ids;
    atomic_bool is_marked; /* set by both sides, removed by the store */
    _Atomic uint64_t n_overflows;
};

enum status cache_events_create(struct cache_events **out, uint32_t n_max, bool wants_ids)
{
    struct cache_events *e = calloc(1, sizeof *e);

    *out = NULL;
    if (!e)
        return ERR_NOMEM;
    enum status s = spsc_create(&e->queue, sizeof(struct cache_event), n_max);
    if (s != OK) {
        free(e);
        return s;
    }
    e->wants_ids = wants_ids;
    atomic_init(&e->is_marked, false);
    atomic_init(&e->n_overflows, 0);
    *out = e;
    return OK;
}

void cache_events_destroy(struct cache_events *e)
{
    if (!e)
        return;
    spsc_destroy(e->queue);
    free(e);
}

bool cache_events_next(struct cache_events *e, struct cache_event *out)
{
    return spsc_pop(e->queue, out);
}

void cache_events_request_all(struct cache_events *e)
{
    atomic_store_explicit(&e->is_marked, true, memory_order_release);
}

bool cache_events_want_ids(const struct cache_events *e)
{
    return e->wants_ids;
}

void cache_events_send(struct cache_events *e, const struct cache_event *event)
{
    if (cache_events_is_marked(e) || spsc_push(e->queue, event))
        return;
    atomic_store_explicit(&e->is_marked, true, memory_order_release);
    atomic_fetch_add_explicit(&e->n_overflows, 1, memory_order_relaxed);
}

bool cache_events_is_marked(const struct cache_events *e)
{
    return atomic_load_explicit(&e->is_marked, memory_order_acquire);
}

bool cache_events_begin_all(struct cache_events *e)
{
    const struct cache_event cleared = {.kind = CACHE_CLEARED};

    if (spsc_room(e->queue) == 0)
        return false;
    /* The mark goes first: a request of the reader that arrives after CACHE_CLEARED must stay. */
    atomic_store_explicit(&e->is_marked, false, memory_order_release);
    return spsc_push(e->queue, &cleared);
}

uint32_t cache_events_room(const struct cache_events *e)
{
    return spsc_room(e->queue);
}

uint64_t cache_events_n_overflows(const struct cache_events *e)
{
    return atomic_load_explicit(&e->n_overflows, memory_order_relaxed);
}
