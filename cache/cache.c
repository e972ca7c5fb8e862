/* cache.c - life of the cache, and what is asked of all of it. Sequences: cache_seq.c. */
#include "cache/cache.h"

#include <stdlib.h>

#include "base/check.h"
#include "cache/cache_inner.h"
#include "cache/policy/replace.h"

const char *cache_tier_name(enum cache_tier t)
{
    static const char *const names[CACHE_N_TIERS] = {"device", "host", "disk"};

    return names[t];
}

const char *cache_policies(void)
{
    return "contest, pgdsf, gdsf, lru, lfu";
}

void cache_assert_owner(struct cache *c)
{
    if (c->owner == 0)
        c->owner = check_thread_id();
    ASSERT_THREAD(c->owner);
}

enum status cache_create(struct cache **out, const struct cache_config *config, struct buf *why)
{
    struct cache *c = calloc(1, sizeof *c);
    enum status s;

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory for the KV cache");
    c->config = *config;
    s = store_create(&c->store, config, why);
    if (s != OK) {
        free(c);
        return s;
    }
    *out = c;
    return OK;
}

void cache_destroy(struct cache *c)
{
    if (!c)
        return;
    ASSERT(c->n_seqs == 0);
    store_destroy(c->store);
    free(c);
}

const struct kv_pool *cache_pool(const struct cache *c)
{
    return store_pool(c->store);
}

bool cache_knows(const struct cache *c, const struct kv_key *key)
{
    return store_knows(c->store, key);
}

void cache_spill_ahead(struct cache *c, uint32_t n_blocks)
{
    cache_assert_owner(c);
    store_spill_ahead(c->store, n_blocks);
}

bool cache_poll(struct cache *c, uint64_t now_ns)
{
    cache_assert_owner(c);
    return store_poll(c->store, now_ns);
}

void cache_stats(const struct cache *c, struct cache_stats *out)
{
    *out = (struct cache_stats){.policy = c->config.policy ? c->config.policy
                                                           : replace_policy_name(REPLACE_CONTEST),
                                .n_query_tokens = c->n_query_tokens,
                                .n_hit_tokens = c->n_hit_tokens,
                                .n_restored_tokens = c->n_restored_tokens};
    store_stats(c->store, out);
}

uint32_t cache_top_spans(const struct cache *c, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all)
{
    return store_top_spans(c->store, out, n_max, n_all);
}

uint32_t cache_n_available(const struct cache *c)
{
    return store_n_available(c->store);
}

void cache_check(const struct cache *c)
{
    store_check(c->store);
}

void cache_reset(struct cache *c)
{
    cache_assert_owner(c);
    store_reset(c->store);
}

uint32_t cache_erase(struct cache *c, const struct kv_key *first)
{
    cache_assert_owner(c);
    return store_forget(c->store, first);
}
