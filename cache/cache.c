/* cache.c - create and destroy the cache, and calls that concern all of it. Sequences: cache_seq.c.
 */
#include "cache/cache.h"

#include <stdlib.h>

#include "base/check.h"
#include "cache/cache_inner.h"
#include "cache/policy/replace.h"
#include "kernels/device.h"

const char *cache_tier_name(enum cache_tier t)
{
    static const char *const names[CACHE_N_TIERS] = {"device", "host", "disk", "remote"};

    return names[t];
}

const char *cache_hold_limit_name(enum cache_hold_limit l)
{
    static const char *const names[CACHE_HOLD_N_LIMITS] = {"", "share", "owner", "count"};

    return names[l];
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

/* --- life --- */

static enum status open_memory(struct cache *c)
{
    const struct cache_config *config = &c->config;
    struct device *self = device_group_self(&config->group);
    bool is_separate = !device_is_host(self) || config->always_copy;
    uint64_t n_shared = is_separate ? 0 : config->n_host_blocks;
    struct tier_device_config device = {.device = self,
                                        .block_bytes = kv_block_bytes(&config->pool),
                                        .n_blocks = config->pool.n_blocks,
                                        .n_shared = (uint32_t)n_shared,
                                        .is_separate = is_separate,
                                        .has_other_tiers =
                                            config->n_host_blocks > 0 || config->disk.path};
    enum status s;

    if (config->pool.n_blocks + n_shared > UINT32_MAX / 2)
        return ERR_TOO_LARGE;
    s = tier_device_open(&c->tiers[CACHE_DEVICE], &device);
    if (s == OK && config->n_host_blocks > 0)
        s = tier_host_open(&c->tiers[CACHE_HOST], self, is_separate ? NULL : c->tiers[CACHE_DEVICE],
                           device.block_bytes, config->n_host_blocks);
    return s;
}

static enum status open_disk(struct cache *c, struct buf *why)
{
    const struct cache_config *config = &c->config;
    struct device *self = device_group_self(&config->group);
    struct tier_disk_config disk = {.device = self,
                                    .block_bytes = kv_block_bytes(&config->pool),
                                    .path = config->disk.path,
                                    .n_bytes = config->disk.n_bytes,
                                    .fingerprint = config->disk.fingerprint,
                                    .segment_tokens = config->segment_tokens,
                                    .timeout_ns = config->disk.timeout_ns,
                                    .threads_only = config->disk.threads_only};

    return tier_disk_open(&c->tiers[CACHE_DISK], &disk, why);
}

/* Belady's policy needs to know the future: it is for simulations only. */
static enum status parse_policy(const char *name, enum replace_policy *out, struct buf *why)
{
    *out = REPLACE_CONTEST;
    if (!name || (replace_policy_parse(name, out) == OK && *out != REPLACE_BELADY))
        return OK;
    return buf_why(why, ERR_INVALID, "unknown cache policy %s; known: %s", name, cache_policies());
}

static enum status init_cache(struct cache *c, struct buf *why)
{
    enum replace_policy policy;
    enum status s = parse_policy(c->config.policy, &policy, why);

    if (s != OK)
        return s;
    s = open_memory(c);
    if (c->config.remote.url)
        return buf_why(why, ERR_UNSUPPORTED, "{pool}: this cache cannot join a pool");
    if (s == OK && c->config.disk.path && (s = open_disk(c, why)) != OK)
        return s; /* it has said why */
    if (s == OK)
        s = store_create(&c->store, &c->config, c->tiers, policy, why);
    if (s == OK)
        return s;
    return buf_why(
        why, s,
        "%s: cannot allocate KV for %u blocks on the device and %u on the host, of "
        "%zu bytes each, and keep the books of %u more on disk; lower {kv_device_bytes}, "
        "{kv_host_bytes} or {kv_disk_bytes}",
        status_words(s), c->config.pool.n_blocks, c->config.n_host_blocks,
        kv_block_bytes(&c->config.pool), tier_n_blocks(c->tiers[CACHE_DISK]));
}

enum status cache_create(struct cache **out, const struct cache_config *config, struct buf *why)
{
    struct cache *c = calloc(1, sizeof *c);
    enum status s;

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory for the KV cache");
    c->config = *config;
    s = init_cache(c, why);
    if (s != OK) {
        cache_destroy(c);
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
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
        tier_close(c->tiers[t]);
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

bool cache_find_span(const struct cache *c, const struct kv_key *first, struct cache_span *out)
{
    return store_find_span(c->store, first, out);
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

uint32_t cache_n_held(const struct cache *c)
{
    return store_n_held(c->store);
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

bool cache_close_session(struct cache *c, uint64_t session, uint32_t *n_blocks)
{
    cache_assert_owner(c);
    return store_close_session(c->store, session, n_blocks);
}

bool cache_session(const struct cache *c, uint64_t session, struct cache_session *out)
{
    return store_session(c->store, session, out);
}

uint32_t cache_release(struct cache *c, const struct kv_key *key)
{
    cache_assert_owner(c);
    return store_release_holds(c->store, key);
}

uint32_t cache_erase(struct cache *c, const struct kv_key *first)
{
    cache_assert_owner(c);
    return store_forget(c->store, first);
}

/* --- the pool --- */

void cache_set_load(struct cache *c, uint32_t n_waiting, uint32_t n_running)
{
    (void)c, (void)n_waiting, (void)n_running;
}

void cache_leave(struct cache *c)
{
    (void)c;
}

bool cache_has_left(const struct cache *c)
{
    (void)c;
    return true;
}

uint32_t cache_instances(struct cache *c, struct directory_instance *out, uint32_t n_max)
{
    (void)c, (void)out, (void)n_max;
    return 0;
}
