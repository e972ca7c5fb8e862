/* kv_store_expect.c - what will be used: by requests that wait, and by the word of those who hold
 * it.
 *
 * Both are counted by the keys of blocks, whether the tree has them now or not: a document that the
 * next request computes is expected by the others from its first block on. A node is expected as
 * often as its first block is. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/kv_store_inner.h"

enum status init_expect(struct store *st)
{
    enum status s = map_init(&st->expected, N_EXPECTED_MAX);

    if (s == OK)
        s = map_init(&st->held, N_EXPECTED_MAX);
    st->memory_bytes += ((uint64_t)st->expected.mask + st->held.mask + 2) * sizeof(struct map_slot);
    return s;
}

void fini_expect(struct store *st)
{
    drop_holds(st);
    map_fini(&st->expected);
    map_fini(&st->held);
}

static uint32_t count_of(const struct map *m, const struct kv_key *key)
{
    uint32_t n;

    return map_get(m, short_key(key), &n) ? n : 0;
}

uint32_t n_expected(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->expected, first) + count_of(&st->held, first);
}

bool is_held(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->held, first) > 0;
}

/* False: there is no room for another key; nothing changed. */
static bool count_key(struct store *st, struct map *m, const struct kv_key *key, int delta)
{
    uint32_t n = count_of(m, key), node;

    if (n == 0 && m->n == m->n_max)
        return false;
    ASSERT(delta > 0 || n > 0);
    if (n + (uint32_t)delta == 0)
        map_remove(m, short_key(key));
    else
        map_put(m, short_key(key), n + (uint32_t)delta);
    node = ktree_find(st->tree, key);
    if (node != KTREE_NONE)
        replace_expect(st->policy, st->info[node].entry, delta);
    return true;
}

uint32_t store_expect(struct store *st, const struct kv_key *keys, uint32_t n, int delta)
{
    uint32_t i = 0;

    while (st->tree && i < n && count_key(st, &st->expected, &keys[i], delta))
        i++;
    return i;
}

/* --- prefetch --- */

bool store_prefetches(const struct store *st)
{
    return st->n_tiers > 1 && st->copies;
}

/* Within the share, and without pushing out what somebody else waits for. */
static bool may_prefetch(const struct store *st, uint32_t n_blocks)
{
    uint32_t limit = (uint32_t)(st->config.prefetch_share * st->config.pool.n_blocks);
    uint32_t victim = replace_peek(st->policy, CACHE_DEVICE);

    if (st->n_prefetched + n_blocks > limit)
        return false;
    return st->tier[CACHE_DEVICE].n_free >= n_blocks ||
           (victim != REPLACE_NONE && !replace_n_expected(st->policy, victim));
}

/* A node of a path whose end on the host is `end`: room is not made of that. */
static bool prefetch_node(struct store *st, uint32_t node, uint32_t end)
{
    uint32_t entry = st->info[end].entry;

    replace_pin(st->policy, CACHE_HOST, entry);
    bool done = fetch_node(st, node);
    replace_unpin(st->policy, CACHE_HOST, entry);
    if (done) {
        st->info[node].is_prefetched = true;
        st->n_prefetched += ktree_look(st->tree, node).n_blocks;
    }
    return done;
}

bool store_prefetch(struct store *st, const struct ktree_match *m)
{
    uint32_t n = 0, pinned = KTREE_ROOT;
    bool room = true;

    if (!store_prefetches(st) || m->node == KTREE_ROOT)
        return true;
    for (uint32_t x = m->node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (lies_in(&look, CACHE_DEVICE)) {
            pinned = x;
            break;
        }
        st->path[n++] = x; /* the deepest first */
    }
    move_pin(st, KTREE_ROOT, pinned); /* nor is room made of its beginning */
    while (n > 0 && room) {
        uint32_t x = st->path[--n];

        room = may_prefetch(st, ktree_look(st->tree, x).n_blocks) &&
               prefetch_node(st, x, st->path[0]);
        if (!room)
            break;
        move_pin(st, pinned, x);
        pinned = x;
    }
    move_pin(st, pinned, KTREE_ROOT);
    return room;
}

void store_forget_prefetch(struct store *st, const struct ktree_match *m)
{
    for (uint32_t x = m->node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent) {
        struct node_info *info = &st->info[x];

        if (!info->is_prefetched || replace_n_expected(st->policy, info->entry) > 0)
            continue; /* or another one waits for it */
        info->is_prefetched = false;
        st->n_prefetched -= ktree_look(st->tree, x).n_blocks;
    }
}

/* --- holds --- */

static void end_hold(struct store *st, uint32_t i)
{
    struct hold *h = &st->holds[i];

    for (uint32_t k = 0; k < h->n; k++)
        (void)count_key(st, &st->held, &h->keys[k], -1);
    free(h->keys);
    st->holds[i] = st->holds[--st->n_holds];
}

void end_holds(struct store *st, uint64_t now_ns)
{
    for (uint32_t i = 0; i < st->n_holds;)
        if (st->holds[i].until_ns <= now_ns)
            end_hold(st, i);
        else
            i++;
}

void drop_holds(struct store *st)
{
    while (st->n_holds > 0)
        end_hold(st, st->n_holds - 1);
}

/* The same path is held already: until the later of both times. */
static bool renew_hold(struct store *st, const struct kv_key *keys, uint32_t n, uint64_t until_ns)
{
    for (uint32_t i = 0; i < st->n_holds; i++) {
        struct hold *h = &st->holds[i];

        if (h->n != n || memcmp(&h->keys[n - 1], &keys[n - 1], sizeof *keys) != 0)
            continue;
        h->until_ns = h->until_ns > until_ns ? h->until_ns : until_ns;
        return true;
    }
    return false;
}

uint32_t store_hold(struct store *st, const struct kv_key *keys, uint32_t n, uint64_t until_ns)
{
    uint32_t limit = (uint32_t)(st->config.hold_share * st->config.pool.n_blocks), n_more = 0;
    struct hold *h = &st->holds[st->n_holds];

    n = st->tree ? ktree_match(st->tree, keys, n).n_blocks : 0;
    if (n == 0 || renew_hold(st, keys, n, until_ns))
        return n;
    for (uint32_t i = 0; i < n; i++)
        n_more += !is_held(st, &keys[i]);
    if (st->n_holds == N_HOLDS_MAX || st->held.n + n_more > limit ||
        st->held.n + n_more > st->held.n_max)
        return 0;
    *h = (struct hold){.until_ns = until_ns, .keys = malloc(n * sizeof *keys), .n = n};
    if (!h->keys)
        return 0;
    memcpy(h->keys, keys, n * sizeof *keys);
    st->n_holds++;
    for (uint32_t i = 0; i < n; i++) {
        bool counted = count_key(st, &st->held, &keys[i], 1);
        ASSERT(counted);
    }
    return n;
}
