/* kv_store_forget.c - erasing on request, reset, and sleep. */
#include "base/check.h"
#include "cache/store/kv_store_slow.h"

/* The longest that store_sleep() waits for writes to disk. */
#define SLEEP_WRITE_NS UINT64_C(10000000000)

static void copy_evicted(const struct store *st, uint64_t out[CACHE_N_TIERS])
{
    for (uint32_t tier = 0; tier < CACHE_N_TIERS; tier++)
        out[tier] = st->tier[tier].n_evicted;
}

/* Forgetting is not counted as eviction. */
static void restore_evicted(struct store *st, const uint64_t n_evicted[CACHE_N_TIERS])
{
    for (uint32_t tier = 0; tier < CACHE_N_TIERS; tier++)
        st->tier[tier].n_evicted = n_evicted[tier];
}

static void reset_disk(struct store *st)
{
    struct store_disk *d = st->disk;

    drop_offers(st);
    d->at_preload = d->n_preload;
    for (uint32_t i = 0; i < N_UNITS; i++)
        d->slow.units[i].is_stale = true;
    drop_all_of_disk(st);
}

/* Forget what lies in memory, except what is pinned. */
static void empty_memory(struct store *st)
{
    uint64_t n_evicted[CACHE_N_TIERS], n_lost = st->n_expected_lost;
    struct replace_victim victim;

    copy_evicted(st, n_evicted);
    while (st->n_tiers > 1 && evict_from_host(st)) {
    }
    while (replace_evict(st->policy, CACHE_DEVICE, &victim) == OK)
        (void)leave_device(st, st->node_of[victim.id]);
    restore_evicted(st, n_evicted);
    st->n_expected_lost = n_lost;
}

void store_reset(struct store *st)
{
    complete_moves(st, true);
    drop_holds(st);
    drop_sessions(st);
    if (st->remote)
        reset_remote(st);
    if (st->disk)
        reset_disk(st);
    empty_memory(st);
}

/* --- sleep --- */

static bool is_free(const struct tier *t)
{
    return !t || tier_is_asleep(t) || tier_n_free(t) == tier_n_blocks(t);
}

bool store_sleep(struct store *st)
{
    struct store_disk *d = st->disk;

    if (!st->sleeps)
        st->sleep_ns = st->now_ns;
    st->sleeps = true;
    if (d)
        d->at_preload = d->n_preload;
    if (d && d->n_offers + d->n_writing > 0 && !tier_is_hung(d->slow.t) &&
        st->now_ns < st->sleep_ns + SLEEP_WRITE_NS)
        return false;
    complete_moves(st, true);
    empty_memory(st);
    return is_free(device_tier(st)) && is_free(host_tier(st));
}

void store_wake(struct store *st)
{
    st->sleeps = false;
    store_find_pools(st);
    st->n_load_events++; /* waiting sequences may be loaded again */
}

/* --- forgetting a subtree --- */

/* Remove a node without children from all tiers. No move of it is under way. */
static void forget_node(struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t entry = st->info[node].entry;
    uint64_t n_evicted[CACHE_N_TIERS];

    copy_evicted(st, n_evicted);
    if (lies_in(&look, CACHE_DISK) && leave_disk(st, node, true))
        return;
    if (lies_in(&look, CACHE_REMOTE)) {
        (void)leave_remote(st, node);
        return;
    }
    if (lies_in(&look, CACHE_DEVICE)) {
        replace_remove(st->policy, CACHE_DEVICE, entry);
        (void)leave_device(st, node);
    }
    if (lies_in(&look, CACHE_HOST)) {
        replace_remove(st->policy, CACHE_HOST, entry);
        (void)leave_host(st, node);
    }
    restore_evicted(st, n_evicted);
}

static bool is_in_use(const struct store *st, uint32_t node)
{
    return is_moving(st, node) || ktree_look(st->tree, node).n_pins > 0 ||
           st->info[node].n_lent > 0;
}

/* Forget an orphan, and the orphans above it that have no other child, as far as they are unused.
 */
static void forget_upwards(struct store *st, uint32_t node)
{
    while (node != KTREE_ROOT && st->info[node].is_orphan && !is_in_use(st, node) &&
           ktree_look(st->tree, node).n_children == 0) {
        uint32_t parent = ktree_look(st->tree, node).parent;

        forget_node(st, node);
        node = parent;
    }
}

void forget_orphans(struct store *st)
{
    /* In depth-first order the next node is never an ancestor, so it survives this call. */
    for (uint32_t x = KTREE_ROOT, next; st->n_orphans > 0 && x != KTREE_NONE; x = next) {
        next = ktree_next(st->tree, x, KTREE_ROOT);
        forget_upwards(st, x);
    }
}

uint32_t store_forget(struct store *st, const struct kv_key *first)
{
    uint32_t top = ktree_find(st->tree, first), n_blocks = 0;

    cut_holds(st, first);
    if (st->remote)
        drop_bequests(st); /* they may lie behind it */
    if (top == KTREE_NONE)
        return 0;
    for (uint32_t x = top; x != KTREE_NONE; x = ktree_next(st->tree, x, top)) {
        n_blocks += ktree_look(st->tree, x).n_blocks;
        st->n_orphans += !st->info[x].is_orphan;
        st->info[x].is_orphan = true;
    }
    struct ktree_node look = ktree_look(st->tree, top);
    if (lies_in(&look,
                CACHE_DISK)) { /* at once: the process may end before the sequences that use it */
        drop_disk_below(st, top, true);
        if (lies_slow_only(&look))
            return n_blocks;
    }
    for (uint32_t x = top, next; x != KTREE_NONE; x = next) {
        next = ktree_next(st->tree, x, top); /* no ancestor of x; only x and ancestors go */
        forget_upwards(st, x);
    }
    return n_blocks;
}
