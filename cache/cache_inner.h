/* cache_inner.h - what cache.c and cache_seq.c share.
 *
 * Owns    nothing.
 * Thread  as cache.h.
 * Errors  none.
 * Units   as cache.h. */
#ifndef TARN_CACHE_CACHE_INNER_H
#define TARN_CACHE_CACHE_INNER_H

#include "cache/cache.h"
#include "cache/store/kv_store.h"
#include "cache/tier/tier.h"

struct cache {
    struct cache_config config;
    struct tier *tiers[CACHE_N_TIERS]; /* NULL: there is no such tier */
    struct store *store;
    struct pool *pool;                /* NULL: no pool */
    struct tier_near *near;           /* NULL: device memory is not shared */
    struct cache_events *pool_events; /* from the store to the pool */
    struct pool_meta *meta;           /* [POOL_PATH_MAX] scratch; with a pool only */
    uint64_t load_set_ns;             /* cache_set_load() */
    uint64_t n_load_events;           /* at the last cache_awaits_pool_only() */
    uint64_t n_accesses;              /* by sequences here since then: struct pool_load */
    uint64_t now_ns;                  /* of the latest cache_poll() */
    enum {
        CACHE_AWAKE,
        CACHE_EMPTY,
        CACHE_ASLEEP
    } sleep; /* EMPTY: the pool still knows the
                                                                memory */
    uint32_t n_seqs;
    uint32_t n_loading;  /* of these: they wait for their KV */
    uint32_t n_querying; /* parts of sequences: each holds a lookup for queries */
    uint64_t n_ways[CACHE_N_WAYS];
    uint64_t n_nonces;
    uint64_t n_query_tokens, n_hit_tokens, n_restored_tokens;
    unsigned owner; /* the engine thread, known from its first call on */
};

void cache_assert_owner(struct cache *c);

#endif
