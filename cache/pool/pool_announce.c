/* pool_announce.c - the inventory to the directory, what others hold to the engine, and the life
 * sign of this instance. */
#include <string.h>

#include "cache/pool/pool_inner.h"

#define EVENTS_MAX 8192u              /* cache events of one turn of the loop */
#define CHANGES_NS (4 * POOL_MS)      /* between two batches of changes */
#define BATCHES_MAX 4u                /* of changes at a time */
#define ROLL_NS (100 * POOL_MS)       /* between two batches of the rolling pass */
#define PASS_MIN_NS (2 * POOL_SECOND) /* a small inventory is not announced more often */
#define PASS_RATE 160.0               /* segments per second, if that is faster than needed */
#define INSTANCE_TTL_MS 3000u         /* as directory.h says */
#define SEGMENT_TTL_S 600u

void pool_announce_events(struct pool *p)
{
    struct cache_event e;

    for (uint32_t i = 0; i < EVENTS_MAX; i++) {
        if (!cache_events_next(p->config.events, &e))
            return;
        inventory_take(p->inventory, &e, p->now_ns);
    }
    p->is_busy = true;
}

void pool_announce_all(struct pool *p)
{
    inventory_announce_all(p->inventory);
    p->n_counted = 0; /* an answer to an earlier count does not come any more */
}

static void heartbeat(struct pool *p)
{
    uint32_t ttl_ms = p->config.directory.instance_ttl_ms;

    if (p->now_ns < p->heartbeat_ns)
        return;
    p->heartbeat_ns = p->now_ns + (ttl_ms ? ttl_ms : INSTANCE_TTL_MS) * POOL_MS / 3;
    directory_heartbeat(p->directory, &p->info);
    p->is_busy = true;
}

static void announce_changes(struct pool *p)
{
    if (p->now_ns < p->announce_ns || !directory_is_up(p->directory))
        return;
    p->announce_ns = p->now_ns + CHANGES_NS;
    for (uint32_t i = 0; i < BATCHES_MAX; i++) {
        uint32_t n = inventory_changes(p->inventory, p->now_ns, p->batch, DIRECTORY_PATH_MAX);
        if (n == 0)
            return;
        uint32_t n_taken = directory_announce(p->directory, p->batch, n);
        inventory_announced(p->inventory, n_taken);
        p->is_busy = true;
        if (n_taken < DIRECTORY_PATH_MAX)
            return;
    }
}

/* Segments to be announced again in the time since the last batch: all within a third of their
 * life, and a small inventory faster, so that the engine soon knows what others hold. */
static uint32_t n_due(struct pool *p)
{
    uint32_t ttl_s = p->config.directory.segment_ttl_s;
    double pass_s = (ttl_s ? ttl_s : SEGMENT_TTL_S) / 3.0;
    double n = inventory_n_segments(p->inventory), quick_s = n / PASS_RATE;

    if (quick_s < PASS_MIN_NS / 1e9)
        quick_s = PASS_MIN_NS / 1e9;
    pass_s = quick_s < pass_s ? quick_s : pass_s;
    p->roll_due += n * (ROLL_NS / 1e9) / pass_s;
    p->roll_due = p->roll_due < DIRECTORY_PATH_MAX ? p->roll_due : DIRECTORY_PATH_MAX;
    uint32_t whole = (uint32_t)p->roll_due;
    p->roll_due -= whole;
    return whole;
}

/* Extend the life of some segments, and have their holders counted. */
static void roll(struct pool *p)
{
    if (p->now_ns < p->roll_ns || !directory_is_up(p->directory))
        return;
    p->roll_ns = p->now_ns + ROLL_NS;
    uint32_t n = inventory_roll(p->inventory, p->batch, n_due(p));
    if (n == 0)
        return;
    n = directory_announce(p->directory, p->batch, n);
    p->is_busy = true;
    if (p->n_counted > 0 || n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        memcpy(p->counted[i], p->batch[i].key, DIRECTORY_SEGMENT_BYTES);
    if (directory_count(p->directory, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])p->counted, n,
                        pool_tag(POOL_TAG_COUNT, 0, ++p->count_generation)) == OK)
        p->n_counted = n;
}

void pool_announce_counted(struct pool *p, const struct directory_event *e)
{
    uint32_t n = e->kind == DIRECTORY_COUNTED ? e->n_counts : 0;

    if ((uint32_t)e->tag != p->count_generation)
        return;
    for (uint32_t i = 0; i < n && i < p->n_counted; i++) {
        struct pool_news news = {.is_replica =
                                     e->counts[i].n_holders > 1 && !e->counts[i].is_first};
        memcpy(news.segment.bytes, p->counted[i], DIRECTORY_SEGMENT_BYTES);
        if (!inventory_set_replica(p->inventory, p->counted[i], news.is_replica))
            continue;
        if (spsc_push(p->news, &news))
            p->has_posted = true;
        else
            inventory_forget_replica(p->inventory, p->counted[i]);
    }
    p->n_counted = 0;
}

void pool_announce_timers(struct pool *p)
{
    heartbeat(p);
    announce_changes(p);
    roll(p);
}
