/* kv_store_expect.c - what will be used: by requests that wait, and by the word of those who hold
 * it.
 *
 * Both are counted by the keys of blocks, whether the tree has them now or not: a document that the
 * next request computes is expected by the others from its first block on. A node is expected as
 * often as its first block is.
 *
 * Due times are kept by node only, as the policy's: the earliest that was told. Who told it is not
 * kept; when that time passes on (its owner has come, or tells a later one) and others wait, the
 * node's time is theirs as they tell them. What is held, or was not in the tree when they told, is
 * due now. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_inner.h"

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

bool is_awaited(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->expected, first) > 0;
}

double store_now_s(const struct store *st)
{
    return (double)st->now_ns * 1e-9;
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
    if (node == KTREE_NONE)
        return true;
    replace_expect(st->policy, st->info[node].entry, delta);
    if (m == &st->held && replace_n_expected(st->policy, st->info[node].entry) > 0) {
        replace_due(st->policy, st->info[node].entry, 0);
        st->info[node].due_is_old = true;
    }
    return true;
}

/* Somebody who waits for the node tells its time. */
static void tell_node(struct store *st, uint32_t node, const struct kv_key *first, double was_s,
                      double due_s)
{
    struct node_info *info = &st->info[node];
    uint32_t n_waiting = replace_n_expected(st->policy, info->entry);
    double now_told = replace_due_s(st->policy, info->entry);

    if (n_waiting == 0 || (st->n_holds > 0 && is_held(st, first)))
        return;
    if (n_waiting == 1 || info->due_is_old || due_s < now_told || now_told == was_s) {
        now_told = due_s;
        info->due_is_old = false;
    }
    replace_due(st->policy, info->entry, now_told);
}

void store_expect_at(struct store *st, const struct kv_key *keys, uint32_t n, double was_s,
                     double due_s)
{
    uint32_t node;

    for (uint32_t i = 0; i < n && (node = ktree_find(st->tree, &keys[i])) != KTREE_NONE;
         i += ktree_look(st->tree, node).n_blocks)
        tell_node(st, node, &keys[i], was_s, due_s);
}

uint32_t store_expect(struct store *st, const struct kv_key *keys, uint32_t n, double due_s)
{
    uint32_t i = 0;

    while (i < n && count_key(st, &st->expected, &keys[i], 1))
        i++;
    store_expect_at(st, keys, i, -1, due_s);
    return i;
}

void store_unexpect(struct store *st, const struct kv_key *keys, uint32_t n, double was_s)
{
    uint32_t node;

    for (uint32_t i = 0; i < n && (node = ktree_find(st->tree, &keys[i])) != KTREE_NONE;
         i += ktree_look(st->tree, node).n_blocks)
        st->info[node].due_is_old |= replace_due_s(st->policy, st->info[node].entry) == was_s;
    for (uint32_t i = 0; i < n; i++)
        (void)count_key(st, &st->expected, &keys[i], -1);
}

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

    while (st->tier[CACHE_DEVICE].n_free + n_spilling(st) < n_blocks + st->n_reserve) {
        uint32_t victim = replace_peek(st->policy, CACHE_DEVICE);

        if (victim == REPLACE_NONE || is_early || replace_due_s(st->policy, victim) <= due_s ||
            !evict_from_device(st))
            return false;
    }
    return true;
}

/* A node of a path whose end on the host is `end`: room is not made of that. */
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

/* The tail of that name behind the match, where it lies on the host only; KTREE_NONE else. */
static uint32_t host_tail(const struct store *st, const struct ktree_match *m,
                          const struct kv_key *key)
{
    uint32_t node = key ? ktree_find(st->tree, key) : KTREE_NONE;

    if (node == KTREE_NONE || st->info[node].tail_of != m->node)
        return KTREE_NONE;
    struct ktree_node look = ktree_look(st->tree, node);
    return lies_in(&look, CACHE_DEVICE) ? KTREE_NONE : node;
}

/* What of the path to `node` lies on the host only, the deepest first, to st->path; *first is the
 * last node before it. */
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
    move_pin(st, KTREE_ROOT, pinned); /* nor is room made of its beginning */
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
        return; /* or another one waits for it */
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

    n = ktree_match(st->tree, keys, n).n_blocks;
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
