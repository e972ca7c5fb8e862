/* kv_store_hold.c - holds: paths that are evicted last until a time, or until they are released.
 *
 * A hold counts its blocks by key, whether or not the tree still has them: where all memory is in
 * use, even held KV is evicted, and it is held again as soon as a request has computed it anew.
 * All holds together stay within hold_share of the device's blocks, and the holds of one owner
 * within the bound that the caller gives.
 *
 * Keys are chained (key.h), so two paths that have one key in common have all keys before it in
 * common, at the same places. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_inner.h"

#define OWNER_FACTOR UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: spreads small numbers */

enum status init_holds(struct store *st)
{
    st->holds_end_ns = CACHE_HOLD_FOREVER;
    st->holds = calloc(N_HOLDS_MAX, sizeof *st->holds);
    st->owners = calloc(N_HOLDS_MAX, sizeof *st->owners);
    if (!st->holds || !st->owners)
        return ERR_NOMEM;
    enum status s = map_init(&st->held_by, 2 * N_EXPECTED_MAX);
    st->memory_bytes += N_HOLDS_MAX * (sizeof *st->holds + sizeof *st->owners) +
                        ((uint64_t)st->held_by.mask + 1) * sizeof(struct map_slot);
    return s;
}

void fini_holds(struct store *st)
{
    drop_holds(st);
    map_fini(&st->held_by);
    free(st->holds);
    free(st->owners);
}

static bool is_same(const struct kv_key *a, const struct kv_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* --- owners --- */

static struct hold_owner *find_owner(const struct store *st, uint64_t id)
{
    for (uint32_t i = 0; i < st->n_owners; i++)
        if (st->owners[i].id == id)
            return &st->owners[i];
    return NULL;
}

static uint64_t name_of(uint64_t owner, const struct kv_key *key)
{
    return short_key(key) ^ owner * OWNER_FACTOR;
}

static bool owner_holds(const struct store *st, uint64_t owner, const struct kv_key *key)
{
    uint32_t n;

    return map_get(&st->held_by, name_of(owner, key), &n);
}

/* Add delta, 1 or -1, to the owner's count of a key. */
static void count_owned(struct store *st, struct hold_owner *o, const struct kv_key *key, int delta)
{
    uint64_t name = name_of(o->id, key);
    uint32_t n = 0;

    (void)map_get(&st->held_by, name, &n);
    ASSERT(delta > 0 || n > 0);
    if (n == 0)
        o->n_blocks++;
    if (n + (uint32_t)delta > 0) {
        map_put(&st->held_by, name, n + (uint32_t)delta);
    } else {
        map_remove(&st->held_by, name);
        o->n_blocks--;
    }
}

/* --- ends --- */

/* End the part of hold i from its key `from` on, and the hold if nothing of it is left. Returns the
 * number of blocks that nothing holds any more. */
static uint32_t cut_hold(struct store *st, uint32_t i, uint32_t from)
{
    struct hold *h = &st->holds[i];
    struct hold_owner *o = find_owner(st, h->owner);
    uint32_t n_before = st->held.n;

    for (uint32_t k = from; k < h->n; k++) {
        count_owned(st, o, &h->keys[k], -1);
        (void)count_key(st, &st->held, &h->keys[k], -1);
    }
    h->n = from;
    if (from == 0) {
        free(h->keys);
        *h = st->holds[--st->n_holds];
        if (--o->n_holds == 0)
            *o = st->owners[--st->n_owners];
    }
    return n_before - st->held.n;
}

void end_holds(struct store *st, uint64_t now_ns)
{
    if (now_ns < st->holds_end_ns)
        return;
    st->holds_end_ns = CACHE_HOLD_FOREVER;
    for (uint32_t i = 0; i < st->n_holds;) {
        uint64_t until_ns = st->holds[i].until_ns;

        if (until_ns <= now_ns) {
            (void)cut_hold(st, i, 0);
            continue;
        }
        if (until_ns < st->holds_end_ns)
            st->holds_end_ns = until_ns;
        i++;
    }
}

void drop_holds(struct store *st)
{
    while (st->n_holds > 0)
        (void)cut_hold(st, st->n_holds - 1, 0);
}

/* The place of a key in the hold's path, or h->n. */
static uint32_t place_of(const struct hold *h, const struct kv_key *key)
{
    uint32_t k = 0;

    while (k < h->n && !is_same(&h->keys[k], key))
        k++;
    return k;
}

void cut_holds(struct store *st, const struct kv_key *key)
{
    for (uint32_t i = st->n_holds; i-- > 0;) { /* an end moves the last hold here */
        uint32_t k = place_of(&st->holds[i], key);
        if (k < st->holds[i].n)
            (void)cut_hold(st, i, k);
    }
}

uint32_t store_release_holds(struct store *st, const struct kv_key *key)
{
    uint32_t n_blocks = 0;

    for (uint32_t i = st->n_holds; i-- > 0;) {
        struct hold *h = &st->holds[i];
        if (h->until_ns == CACHE_HOLD_FOREVER && place_of(h, key) < h->n)
            n_blocks += cut_hold(st, i, 0);
    }
    return n_blocks;
}

/* --- begin --- */

/* Whether path a [n_a] is the begin of path b [n_b]. */
static bool begins(const struct kv_key *a, uint32_t n_a, const struct kv_key *b, uint32_t n_b)
{
    return n_a <= n_b && is_same(&a[n_a - 1], &b[n_a - 1]);
}

/* Whether the two may stand for each other. Holds without end may not: each is released alone. */
static bool is_alike(const struct hold *h, const struct cache_hold *hold)
{
    return h->owner == hold->owner && h->until_ns != CACHE_HOLD_FOREVER &&
           hold->until_ns != CACHE_HOLD_FOREVER;
}

/* Renew the hold of the same path, or find one that covers the path for as long. */
static bool renew_hold(struct store *st, const struct kv_key *keys, uint32_t n,
                       const struct cache_hold *hold)
{
    for (uint32_t i = 0; i < st->n_holds; i++) {
        struct hold *h = &st->holds[i];

        if (h->owner != hold->owner || h->n < n || !begins(keys, n, h->keys, h->n))
            continue;
        if (h->n == n && h->until_ns == hold->until_ns)
            return true;
        if (is_alike(h, hold) && (h->n == n || h->until_ns >= hold->until_ns)) {
            h->until_ns = h->until_ns > hold->until_ns ? h->until_ns : hold->until_ns;
            return true;
        }
    }
    return false;
}

static enum cache_hold_limit limit_of(const struct store *st, const struct kv_key *keys, uint32_t n,
                                      const struct cache_hold *hold)
{
    uint32_t share = (uint32_t)(st->config.hold_share * st->config.pool.n_blocks);
    uint32_t n_more = 0, n_owned = 0;
    const struct hold_owner *o = find_owner(st, hold->owner);

    for (uint32_t i = 0; i < n; i++) {
        n_more += !is_held(st, &keys[i]);
        n_owned += !o || !owner_holds(st, hold->owner, &keys[i]);
    }
    uint64_t n_bytes = (uint64_t)(n_owned + (o ? o->n_blocks : 0)) * st->block_bytes;
    if (hold->n_bytes_max > 0 && n_bytes > hold->n_bytes_max)
        return CACHE_HOLD_OWNER;
    if (st->held.n + n_more > share)
        return CACHE_HOLD_SHARE;
    if (st->n_holds == N_HOLDS_MAX || st->held.n + n_more > st->held.n_max ||
        st->held_by.n + n_owned > st->held_by.n_max)
        return CACHE_HOLD_COUNT;
    return CACHE_HOLD_NO_LIMIT;
}

/* End the holds of the same owner that the new one covers, up to hold i. */
static void end_covered(struct store *st, const struct kv_key *keys, uint32_t n,
                        const struct cache_hold *hold, uint32_t i)
{
    while (i-- > 0) {
        const struct hold *h = &st->holds[i];
        if (is_alike(h, hold) && h->until_ns <= hold->until_ns && begins(h->keys, h->n, keys, n))
            (void)cut_hold(st, i, 0);
    }
}

static void add_hold(struct store *st, struct kv_key *keys, uint32_t n,
                     const struct cache_hold *hold)
{
    struct hold_owner *o = find_owner(st, hold->owner);

    if (!o) {
        o = &st->owners[st->n_owners++];
        *o = (struct hold_owner){.id = hold->owner};
    }
    o->n_holds++;
    st->holds[st->n_holds++] =
        (struct hold){.owner = hold->owner, .until_ns = hold->until_ns, .keys = keys, .n = n};
    if (hold->until_ns < st->holds_end_ns)
        st->holds_end_ns = hold->until_ns;
    for (uint32_t i = 0; i < n; i++) {
        bool counted = count_key(st, &st->held, &keys[i], 1);
        ASSERT(counted);
        count_owned(st, o, &keys[i], 1);
    }
    end_covered(st, keys, n, hold, st->n_holds - 1);
}

uint32_t store_hold(struct store *st, const struct kv_key *keys, uint32_t n,
                    const struct cache_hold *hold, enum cache_hold_limit *limit)
{
    enum cache_hold_limit reached;
    struct kv_key *copy;

    n = ktree_match(st->tree, keys, n).n_blocks;
    if (n == 0 || renew_hold(st, keys, n, hold))
        return n;
    reached = limit_of(st, keys, n, hold);
    copy = reached == CACHE_HOLD_NO_LIMIT ? malloc(n * sizeof *copy) : NULL;
    if (!copy) {
        if (limit)
            *limit = reached == CACHE_HOLD_NO_LIMIT ? CACHE_HOLD_COUNT : reached;
        return 0;
    }
    memcpy(copy, keys, n * sizeof *copy);
    add_hold(st, copy, n, hold);
    return n;
}

/* --- check --- */

void check_holds(const struct store *st)
{
    uint32_t n_holds = 0, n_blocks = 0;

    for (uint32_t i = 0; i < st->n_holds; i++) {
        const struct hold *h = &st->holds[i];

        ASSERT(h->n > 0 && h->until_ns >= st->holds_end_ns && find_owner(st, h->owner));
        for (uint32_t k = 0; k < h->n; k++)
            ASSERT(is_held(st, &h->keys[k]) && owner_holds(st, h->owner, &h->keys[k]));
    }
    for (uint32_t i = 0; i < st->n_owners; i++) {
        n_holds += st->owners[i].n_holds;
        n_blocks += st->owners[i].n_blocks;
    }
    ASSERT(n_holds == st->n_holds && n_blocks == st->held_by.n && st->held.n <= st->held_by.n);
}
