/* kv_store_coming.c - blocks that sequences here are about to compute.
 *
 * The pool is told of them like of blocks that lie here, in a tier of their own. A peer that asks
 * for such blocks waits for the answer, as for a disk, and does not compute them too. A sequence
 * promises its blocks only when it waits for nothing itself, so no two instances wait for each
 * other.
 *
 * A sequence that looks elsewhere for blocks that it has promised hesitates: it will compute them,
 * unless it finds them. Of two instances whose sequences look for the same blocks, the one with the
 * larger id waits for the other, and the other one gets its answer at once. Otherwise both would
 * find nothing, and compute them. All waiting is for a smaller id, or for a sequence that waits for
 * nothing, so there is no circle.
 *
 * Blocks are counted by key, because several sequences may begin alike. */
#include "base/check.h"
#include "cache/store/kv_store_slow.h"

static void tell(struct store *st, struct cache_event *e, enum cache_event_kind kind,
                 const struct kv_key *key)
{
    e->kind = kind;
    e->tier = CACHE_EVENT_COMING;
    e->key = *key;
    if (st->listings[STORE_LIST_POOL].events)
        cache_events_send(st->listings[STORE_LIST_POOL].events, e);
}

static uint32_t count_in(const struct map *m, const struct kv_key *key)
{
    uint32_t n;

    return map_get(m, short_key(key), &n) ? n : 0;
}

static uint32_t count_of(const struct store *st, const struct kv_key *key)
{
    return count_in(&st->remote->coming, key);
}

bool is_coming(const struct store *st, const struct kv_key *key, bool yields)
{
    uint32_t n = count_of(st, key);

    return n > 0 && (yields || n > count_in(&st->remote->hesitant, key));
}

void store_hesitate(struct store *st, const struct kv_key *keys, uint32_t n, int by)
{
    struct map *hesitant = &st->remote->hesitant;

    for (uint32_t i = 0; i < n; i++) {
        int64_t count = (int64_t)count_in(hesitant, &keys[i]) + by;

        ASSERT(count >= 0 && count <= count_of(st, &keys[i]));
        if (count == 0)
            map_remove(hesitant, short_key(&keys[i]));
        else
            map_put(hesitant, short_key(&keys[i]), (uint32_t)count);
    }
}

uint32_t store_promise(struct store *st, const struct kv_key *keys, const struct pool_meta *meta,
                       uint32_t from, uint32_t n)
{
    struct map *coming = &st->remote->coming;
    struct cache_event e = {0};

    for (uint32_t i = 0; i < n; i++) {
        if (meta[i].starts_segment)
            e.segment = keys[i];
        if (i >= from) {
            uint32_t n_now = count_of(st, &keys[i]);
            if (n_now == 0 && coming->n == coming->n_max)
                return i;
            map_put(coming, short_key(&keys[i]), n_now + 1);
            if (n_now == 0)
                tell(st, &e, CACHE_STORED, &keys[i]);
        }
        e.pos0 += meta[i].n_tokens;
    }
    return n;
}

void store_unpromise(struct store *st, const struct kv_key *keys, uint32_t n)
{
    struct map *coming = &st->remote->coming;
    struct cache_event e = {0};

    while (n-- > 0) {
        uint32_t n_now = count_of(st, &keys[n]);
        ASSERT(n_now > 0);
        if (n_now > 1) {
            map_put(coming, short_key(&keys[n]), n_now - 1);
            continue;
        }
        map_remove(coming, short_key(&keys[n]));
        tell(st, &e, CACHE_REMOVED, &keys[n]);
    }
}
