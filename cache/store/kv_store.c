/* kv_store.c - create, destroy, private blocks, poll. kv_store_inner.h lists the other files. */
#include "cache/store/kv_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "cache/tree/key_index.h"
#include "cache/store/kv_store_slow.h"

/* Bytes of reads whose checksums one poll computes. */
#define CHECK_BYTES_PER_POLL (UINT64_C(32) << 20)
/* Nodes that the policy remembers after they left the tree, as a share of the largest possible
 * number of nodes in it. Most nodes have several blocks, so this is several times the number of
 * nodes that fit (replace.h says why that matters). */
#define HISTORY_SHARE 0.5
/* Bounds of store_set_pace(): a machine that stood still for a moment says nothing. */
#define PACE_MIN 0.25
#define PACE_MAX 16.0

/* --- life --- */

static void *take_memory(struct store *st, uint64_t n, size_t size)
{
    st->memory_bytes += n * size;
    return memory_zeroed(n, size);
}

static enum status init_tree(struct store *st, enum replace_policy policy)
{
    uint64_t n_nodes = 0, bytes = st->block_bytes;
    struct replace_config r = {.policy = policy,
                               .is_shared = st->remote != NULL,
                               .n_tiers = st->n_tiers + (st->disk != NULL)};
    struct ktree_stats tree;
    enum status s;

    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        if (!st->tier[t].t)
            continue;
        n_nodes += tier_n_blocks(st->tier[t].t);
        if (t == CACHE_REMOTE)
            continue; /* its nodes are not in the policy's orders */
        r.capacity_bytes[order_of(st, t)] = bytes * tier_capacity(st->tier[t].t);
    }
    if (n_nodes > UINT32_MAX / 2)
        return ERR_TOO_LARGE;
    r.n_entries_max = (uint32_t)((double)n_nodes * (1 + HISTORY_SHARE));
    if ((s = ktree_create(&st->tree, (uint32_t)n_nodes, (uint32_t)n_nodes,
                          st->remote ? CACHE_N_TIERS
                          : st->disk ? CACHE_REMOTE
                                     : st->n_tiers)) != OK ||
        (s = replace_create(&st->policy, &r)) != OK)
        return s;
    st->info = take_memory(st, n_nodes + 1, sizeof *st->info);
    st->node_of = take_memory(st, r.n_entries_max, sizeof *st->node_of);
    st->path = take_memory(st, n_nodes, sizeof *st->path);
    if (!st->info || !st->node_of || !st->path)
        return ERR_NOMEM;
    if (st->config.prefix_caching && (s = key_index_create(&st->index, (uint32_t)n_nodes)) != OK)
        return s;
    ktree_share_keys(st->tree, st->index);
    ktree_stats(st->tree, &tree);
    st->memory_bytes +=
        tree.memory_bytes + replace_memory_bytes(st->policy) + key_index_memory_bytes(st->index);
    st->info[KTREE_ROOT].entry = REPLACE_NONE;
    s = init_expect(st);
    return s == OK ? init_holds(st) : s;
}

static void init_tiers(struct store *st, struct tier *const *tiers)
{
    struct tier_stats stats;

    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        st->tier[t].t = tiers[t];
        if (!tiers[t])
            continue;
        tier_stats(tiers[t], &stats);
        st->memory_bytes += stats.memory_bytes;
    }
    st->n_tiers = tiers[CACHE_HOST] ? 2 : 1;
    st->copies = !tier_is_addressable(tiers[CACHE_DEVICE]);
    for (uint32_t r = 0; r < st->config.group.n; r++) {
        struct kv_pool *p = &st->pools[r];

        *p = st->config.pool;
        p->n_kv_heads /= st->config.group.n;
        p->n_blocks = tier_n_blocks(tiers[CACHE_DEVICE]);
        if (!st->copies)
            p->n_blocks += tier_n_blocks(tiers[CACHE_HOST]);
    }
    store_find_pools(st);
}

void store_find_pools(struct store *st)
{
    for (uint32_t r = 0; r < st->config.group.n; r++)
        st->pools[r].base = tier_device_memory(device_tier(st), r);
}

static enum status init_disk(struct store *st, struct tier *t)
{
    struct store_disk *d = calloc(1, sizeof *d);
    struct tier_stats stats;

    if (!d)
        return ERR_NOMEM;
    st->disk = d;
    st->slow[CACHE_DISK] = &d->slow;
    d->slow.which = CACHE_DISK;
    d->slow.t = t;
    d->slow.timeout_ns = st->config.disk.timeout_ns;
    tier_stats(t, &stats);
    d->found.index_s = stats.open_s;
    d->slow.units = calloc(N_UNITS, sizeof *d->slow.units);
    d->offers = calloc(N_OFFERS, sizeof *d->offers);
    if (!d->slow.units || !d->offers)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < N_OFFERS; i++)
        d->offer_ring[i] = &d->offers[i];
    st->memory_bytes += sizeof *d + N_UNITS * sizeof *d->slow.units + N_OFFERS * sizeof *d->offers;
    return OK;
}

static enum status init_store(struct store *st, struct tier *const *tiers, struct pool *pool,
                              enum replace_policy policy, struct buf *why)
{
    enum status s = OK;

    init_tiers(st, tiers);
    if (tiers[CACHE_DISK])
        s = init_disk(st, tiers[CACHE_DISK]);
    if (s == OK && tiers[CACHE_REMOTE])
        s = init_remote(st, tiers[CACHE_REMOTE], pool);
    if (s == OK)
        s = init_tree(st, policy);
    if (s == OK)
        s = init_sessions(st);
    if (s == OK && st->disk)
        s = store_index_disk(st, why);
    return s;
}

enum status store_create(struct store **out, const struct cache_config *config,
                         struct tier *const *tiers, struct pool *pool, enum replace_policy policy,
                         struct buf *why)
{
    struct store *st = calloc(1, sizeof *st);
    enum status s;

    *out = NULL;
    if (!st)
        return buf_why(why, ERR_NOMEM, "out of memory for the KV cache");
    st->config = *config;
    st->pace = 1;
    st->block_bytes = kv_block_bytes(&config->pool);
    st->memory_bytes = sizeof *st;
    s = init_store(st, tiers, pool, policy, why);
    if (s != OK) {
        store_destroy(st);
        return s;
    }
    *out = st;
    return OK;
}

static void fini_disk(struct store_disk *d)
{
    if (!d)
        return;
    free(d->slow.units);
    free(d->offers);
    free(d->preload);
    free(d);
}

void store_destroy(struct store *st)
{
    if (!st)
        return;
    if (st->tree)
        complete_moves(st, true);
    fini_bequests(st);
    ASSERT(st->n_private == 0);
    fini_disk(st->disk);
    fini_remote(st);
    fini_sessions(st);
    fini_holds(st);
    fini_expect(st);
    ktree_destroy(st->tree);
    key_index_destroy(st->index);
    replace_destroy(st->policy);
    free(st->info);
    free(st->node_of);
    free(st->path);
    free(st);
}

bool store_knows(const struct store *st, const struct kv_key *key)
{
    return key_index_has(st->index, key);
}

const struct kv_pool *store_pool(const struct store *st)
{
    return st->pools;
}

/* --- private blocks --- */

enum status store_take(struct store *st, uint32_t *ids, uint32_t n)
{
    if (!make_device_room(st, n) || !tier_reserve(device_tier(st), ids, n))
        return ERR_NO_BLOCKS;
    st->n_private += n;
    return OK;
}

/* --- every step --- */

static void take_done(struct store *st, struct slow_tier *w, const struct tier_done *done)
{
    struct unit *u = &w->units[done->tag];

    if (done->is_write)
        save_write_done(st, u, done->status);
    else
        load_read_done(st, w, u, done->status);
}

/* Take the moves of a slow tier that are over. */
static void poll_moves(struct store *st, struct slow_tier *w)
{
    struct tier_done done[4];
    uint64_t n_bytes = 0;
    uint32_t n;

    do {
        n = tier_poll(w->t, done, 4);
        for (uint32_t i = 0; i < n; i++) {
            n_bytes += done[i].is_write ? 0 : done[i].n * tier_extent_bytes(w->t);
            take_done(st, w, &done[i]);
        }
    } while (n == 4 && n_bytes < CHECK_BYTES_PER_POLL);
}

static void poll_disk(struct store *st)
{
    struct store_disk *d = st->disk;

    poll_moves(st, &d->slow);
    if (tier_is_hung(d->slow.t)) {
        drop_offers(st);
        return;
    }
    save_poll(st);
    load_poll(st, &d->slow);
    load_preload(st);
    save_begin(st);
}

static void poll_remote(struct store *st)
{
    struct store_remote *r = st->remote;

    poll_moves(st, &r->slow);
    poll_loans(st);
    load_poll(st, &r->slow);
    poll_lookups(st); /* behind load_poll(): what could not be placed may have lost its lease */
    poll_news(st);
    poll_offers(st);
    poll_bequests(st);
}

/* A disk that hangs is not busy: it is enough to look at it now and then. */
static bool disk_is_busy(const struct store_disk *d)
{
    return !tier_is_hung(d->slow.t) &&
           (tier_is_busy(d->slow.t) || d->n_offers > 0 || d->at_preload < d->n_preload ||
            d->n_writing > 0 || d->slow.n_reading > 0);
}

/* The pool wakes the engine thread for asks and for loans that are over. */
static bool remote_is_busy(const struct store_remote *r)
{
    return r->n_lookups > 0 || r->n_asked > 0 || r->n_bequeathed > 0 || r->slow.n_reading > 0 ||
           r->at_leaving < r->n_leaving;
}

void store_set_pace(struct store *st, double pace)
{
    st->pace = fmin(fmax(pace, PACE_MIN), PACE_MAX);
}

/* Whether something is under way that nobody reports: blocks that have arrived are to be placed,
 * copies of device memory run, paths are to be offered. */
static bool remote_needs_polls(const struct store_remote *r)
{
    if (r->at_leaving < r->n_leaving || (r->near && r->slow.n_reading + r->n_asked > 0))
        return true;
    for (uint32_t i = 0; r->slow.n_reading > 0 && i < N_UNITS; i++)
        if (r->slow.units[i].state == UNIT_READ)
            return true;
    return false;
}

/* The same of all tiers. */
static bool needs_polls(const struct store *st)
{
    return st->lists_events || st->n_moves_over < st->n_moves_begun ||
           (st->disk && disk_is_busy(st->disk)) || (st->remote && remote_needs_polls(st->remote));
}

bool store_awaits_pool_only(const struct store *st)
{
    return st->remote && !needs_polls(st);
}

bool store_poll(struct store *st, uint64_t now_ns)
{
    st->now_ns = now_ns;
    replace_time(st->policy, store_now_s(st));
    complete_moves(st, false);
    st->copy_left = COPY_BYTES_PER_POLL;
    if (st->disk)
        poll_disk(st);
    if (st->remote)
        poll_remote(st);
    forget_orphans(st);
    end_holds(st, now_ns);
    refresh_sessions(st);
    st->lists_events = poll_events(st);
    return needs_polls(st) || (st->remote && remote_is_busy(st->remote));
}
