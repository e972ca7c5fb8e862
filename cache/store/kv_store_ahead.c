/* kv_store_ahead.c - moves before they are needed: prefetching for waiting requests, and spilling
 * so that the next request finds free blocks. */
#include <math.h>

#include "base/check.h"
#include "cache/store/kv_store_inner.h"

/* Limits of one call of store_spill_ahead(): nodes, and how soon a node must not be due. */
#define SPILL_AHEAD_NODES_MAX 16
#define SPILL_AHEAD_MIN_S 0.1

/* --- prefetch --- */

bool store_prefetches(const struct store *st)
{
    return st->n_tiers > 1 && st->copies;
}

uint32_t prefetch_limit(const struct store *st)
{
    return (uint32_t)(st->config.prefetch_share * st->config.pool.n_blocks);
}

bool make_room_ahead(struct store *st, uint32_t n_blocks, double due_s)
{
    bool is_early = due_s != STORE_NO_DUE &&
                    due_s - store_now_s(st) > replace_survival_s(st->policy, CACHE_DEVICE);

    while (tier_n_free_soon(device_tier(st)) < n_blocks + st->n_reserve) {
        uint32_t victim = replace_peek(st->policy, CACHE_DEVICE);

        if (victim == REPLACE_NONE || is_early || replace_due_s(st->policy, victim) <= due_s ||
            !evict_from_device(st))
            return false;
    }
    return true;
}

/* Fetch one node of a path whose last node on the host is `end`; making room must not evict `end`.
 */
static bool prefetch_node(struct store *st, uint32_t node, uint32_t end, double due_s)
{
    uint32_t entry = st->info[end].entry;

    replace_pin(st->policy, CACHE_HOST, entry);
    uint32_t n = ktree_look(st->tree, node).n_blocks;
    bool done = st->n_prefetched + n <= prefetch_limit(st) && make_room_ahead(st, n, due_s) &&
                fetch_node(st, node);
    replace_unpin(st->policy, CACHE_HOST, entry);
    if (done) {
        st->info[node].is_prefetched = true;
        st->n_prefetched += n;
    }
    return done;
}

/* The tail with this key behind the match if it lies on the host only, else KTREE_NONE. */
static uint32_t host_tail(const struct store *st, const struct ktree_match *m,
                          const struct kv_key *key)
{
    uint32_t node = key ? ktree_find(st->tree, key) : KTREE_NONE;

    if (node == KTREE_NONE || st->info[node].tail_of != m->node)
        return KTREE_NONE;
    struct ktree_node look = ktree_look(st->tree, node);
    return lies_in(&look, CACHE_DEVICE) ? KTREE_NONE : node;
}

/* List the nodes of the path to `node` that lie on the host only in st->path, deepest first; *first
 * is the last node of the path on the device. */
static uint32_t list_host_part(struct store *st, uint32_t node, uint32_t tail, uint32_t *first)
{
    uint32_t n = 0;

    *first = KTREE_ROOT;
    if (tail != KTREE_NONE)
        st->path[n++] = tail;
    for (uint32_t x = node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (lies_in(&look, CACHE_DEVICE)) {
            *first = x;
            break;
        }
        st->path[n++] = x;
    }
    return n;
}

bool store_prefetch(struct store *st, const struct ktree_match *m, const struct kv_key *tail,
                    double due_s)
{
    uint32_t n, pinned;
    bool room = true;

    if (!store_prefetches(st) || m->node == KTREE_ROOT)
        return true;
    n = list_host_part(st, m->node, host_tail(st, m, tail), &pinned);
    st->is_ahead = true;
    move_pin(st, KTREE_ROOT, pinned); /* nor must it evict the path's beginning */
    while (n > 0) {
        uint32_t x = st->path[--n];

        room = prefetch_node(st, x, st->path[0], due_s);
        if (!room)
            break;
        move_pin(st, pinned, x);
        pinned = x;
    }
    move_pin(st, pinned, KTREE_ROOT);
    st->is_ahead = false;
    return room;
}

uint64_t store_n_expected_out(const struct store *st)
{
    return st->n_expected_out;
}

static void forget_prefetch_of(struct store *st, uint32_t node)
{
    struct node_info *info = &st->info[node];

    if (!info->is_prefetched || replace_n_expected(st->policy, info->entry) > 0)
        return; /* not prefetched, or another request waits for it */
    info->is_prefetched = false;
    st->n_prefetched -= ktree_look(st->tree, node).n_blocks;
}

void store_forget_prefetch(struct store *st, const struct ktree_match *m, const struct kv_key *tail)
{
    uint32_t node = tail ? ktree_find(st->tree, tail) : KTREE_NONE;

    if (node != KTREE_NONE)
        forget_prefetch_of(st, node);
    for (uint32_t x = m->node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent)
        forget_prefetch_of(st, x);
}

/* --- spilling ahead --- */

/* Whether to spill this victim before its room is needed. Not if it was prefetched or is due about
 * now: it would be fetched again at once. And an expected node must not be lost for a reserve: the
 * host must have a copy of it, room for one, or an unexpected victim. */
static bool may_spill_ahead(const struct store *st, uint32_t entry)
{
    uint32_t node = st->node_of[entry], out = replace_peek(st->policy, CACHE_HOST);
    double due_s = replace_due_s(st->policy, entry);

    if (isinf(due_s))
        return true; /* unexpected */
    if (st->info[node].is_prefetched || due_s - store_now_s(st) <= SPILL_AHEAD_MIN_S)
        return false;
    return replace_in_tier(st->policy, CACHE_HOST, entry) ||
           tier_n_free(host_tier(st)) >= ktree_look(st->tree, node).n_blocks ||
           (out != REPLACE_NONE && isinf(replace_due_s(st->policy, out)));
}

void store_spill_ahead(struct store *st, uint32_t n_blocks)
{
    uint32_t entry;

    if (!store_prefetches(st))
        return;
    st->n_reserve = n_blocks;
    st->is_ahead = true;
    for (uint32_t i = 0; i < SPILL_AHEAD_NODES_MAX && tier_can_move(device_tier(st)) &&
                         tier_n_free_soon(device_tier(st)) < n_blocks;
         i++) {
        entry = replace_peek(st->policy, CACHE_DEVICE);
        if (entry == REPLACE_NONE || !may_spill_ahead(st, entry) || !evict_from_device(st))
            break;
    }
    st->is_ahead = false;
}
