/* cache.c - create and destroy the cache, and calls that concern all of it. Sequences: cache_seq.c.
 */
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "cache/cache_seq_inner.h"
#include "cache/policy/replace.h"
#include "kernels/device.h"

/* Blocks of other instances that may be known at a time. */
#define DEFAULT_REMOTE_BLOCKS 16384u
/* As struct pool_config: the store needs the deadlines, too. */
#define DEFAULT_LOOKUP_MS 50u
#define DEFAULT_PULL_MS 2000u
#define DEFAULT_QUERY_MS 250u
/* Events that the pool may be behind. */
#define N_POOL_EVENTS 4096u
/* The directory need not hear more often how busy this instance is. */
#define LOAD_PAUSE_NS UINT64_C(100000000)

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

const char *cache_way_name(enum cache_way w)
{
    static const char *const names[CACHE_N_WAYS] = {"pull", "query", "compute"};

    return names[w];
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

uint64_t cache_sharing_bytes(uint64_t block_bytes)
{
    return tier_near_device_bytes(block_bytes);
}

/* Prepare to share device memory, if it can be shared. Without that KV goes through the host. */
static void open_near(struct cache *c)
{
    const struct cache_config *config = &c->config;
    struct device *self = device_group_self(&config->group);
    enum status s;

    if (!config->remote.url || !config->remote.shares_device || device_is_host(self) ||
        config->group.n > 1) /* a block lies on several GPUs */
        return;
    s = tier_near_open(&c->near, self, kv_block_bytes(&config->pool));
    if (s != OK)
        log_event(LOG_WARN, "GPU memory is not shared with other instances", "why=\"%s\"",
                  status_words(s));
}

static enum status open_memory(struct cache *c)
{
    const struct cache_config *config = &c->config;
    struct device *self = device_group_self(&config->group);
    bool is_separate = !device_is_host(self) || config->always_copy;
    uint64_t n_shared = is_separate ? 0 : config->n_host_blocks;
    struct tier_device_config device = {.group = config->group,
                                        .block_bytes = kv_block_bytes(&config->pool),
                                        .n_blocks = config->pool.n_blocks,
                                        .n_shared = (uint32_t)n_shared,
                                        .is_separate = is_separate,
                                        .has_other_tiers = config->n_host_blocks > 0 ||
                                                           config->disk.path || config->remote.url};
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

/* Let the pool lend from the memory of a tier that the host can address. */
static void register_memory(struct cache *c, enum cache_tier which, uint32_t n_blocks)
{
    const struct tier *t = c->tiers[which];

    if (t && tier_is_addressable(t))
        pool_register(c->pool, tier_memory(t, 0), n_blocks * kv_block_bytes(&c->config.pool));
}

/* Let the pool lend from device memory to instances that can map it. */
static void export_memory(struct cache *c)
{
    uint8_t handle[POOL_HANDLE_BYTES];

    if (device_export(device_group_self(&c->config.group),
                      tier_device_memory(c->tiers[CACHE_DEVICE], 0), handle) == OK)
        pool_export(c->pool, handle, c->config.pool.n_blocks * kv_block_bytes(&c->config.pool));
}

static void register_all(struct cache *c)
{
    bool shares = tier_is_addressable(c->tiers[CACHE_DEVICE]); /* the host's blocks lie behind */

    register_memory(c, CACHE_DEVICE,
                    c->config.pool.n_blocks + (shares ? c->config.n_host_blocks : 0));
    if (!shares)
        register_memory(c, CACHE_HOST, c->config.n_host_blocks);
    if (c->near)
        export_memory(c);
}

static enum status map_memory(void *arg, const uint8_t handle[POOL_HANDLE_BYTES], void **memory)
{
    return device_map(arg, handle, memory);
}

static void unmap_memory(void *arg, void *memory)
{
    device_unmap(arg, memory);
}

static enum status join_pool(struct cache *c, struct buf *why)
{
    const struct cache_remote_config *r = &c->config.remote;
    struct device *self = device_group_self(&c->config.group);
    struct pool_config config = {.directory = {.url = r->url, .pool = r->pool ? r->pool : ""},
                                 .transport = r->transport ? r->transport : "auto",
                                 .listen = r->listen,
                                 .announce_host = r->announce_host,
                                 .name = r->name ? r->name : "",
                                 .http = r->http ? r->http : "",
                                 .block_bytes = kv_block_bytes(&c->config.pool),
                                 .lookup_ms = r->lookup_ms,
                                 .pull_ms = r->pull_ms,
                                 .wake = r->wake,
                                 .wake_arg = r->wake_arg,
                                 .attend = r->query == CACHE_QUERY_NEVER ? NULL : r->attend,
                                 .attend_arg = r->attend_arg,
                                 .query_floats = r->n_heads * c->config.pool.head_dim,
                                 .tile_floats = r->n_heads * (c->config.pool.head_dim + 2),
                                 .n_layers = c->config.pool.n_layers,
                                 .balances = r->balances,
                                 .map = c->near ? map_memory : NULL,
                                 .unmap = unmap_memory,
                                 .map_arg = self,
                                 .machine = r->machine};
    struct tier_remote_config remote = {
        .device = self, .block_bytes = config.block_bytes, .n_blocks = r->n_blocks};
    enum status s = cache_events_create(&c->pool_events, N_POOL_EVENTS, false);

    c->meta = calloc(POOL_PATH_MAX, sizeof *c->meta);
    if (s != OK || !c->meta)
        return buf_why(why, ERR_NOMEM, "out of memory for the pool");
    config.events = c->pool_events;
    memcpy(config.secret, r->secret, sizeof config.secret);
    memcpy(config.fingerprint, r->fingerprint, sizeof config.fingerprint);
    s = pool_open(&c->pool, &config, why);
    if (s != OK)
        return s;
    register_all(c);
    remote.pool = c->pool;
    remote.near = c->near;
    return tier_remote_open(&c->tiers[CACHE_REMOTE], &remote, why);
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
    open_near(c);
    s = open_memory(c);
    if (s == OK && c->config.disk.path && (s = open_disk(c, why)) != OK)
        return s; /* it has said why */
    if (s == OK && c->config.remote.url && (s = join_pool(c, why)) != OK)
        return s;
    if (s == OK)
        s = store_create(&c->store, &c->config, c->tiers, c->pool, policy, why);
    if (s == OK && c->near)
        s = store_lend_near(c->store, c->near);
    if (s == OK) {
        store_send_events(c->store, c->pool_events,
                          c->config.prefix_caching ? c->config.kv_events : NULL);
        return s;
    }
    return buf_why(
        why, s,
        "%s: cannot allocate KV for %u blocks on the device and %u on the host, of "
        "%zu bytes each, and keep the books of %u more on disk; lower {kv_device_bytes}, "
        "{kv_host_bytes} or {kv_disk_bytes}",
        status_words(s), c->config.pool.n_blocks, c->config.n_host_blocks,
        kv_block_bytes(&c->config.pool), tier_n_blocks(c->tiers[CACHE_DISK]));
}

static void set_defaults(struct cache_remote_config *r)
{
    r->n_blocks = r->n_blocks ? r->n_blocks : DEFAULT_REMOTE_BLOCKS;
    r->lookup_ms = r->lookup_ms ? r->lookup_ms : DEFAULT_LOOKUP_MS;
    r->pull_ms = r->pull_ms ? r->pull_ms : DEFAULT_PULL_MS;
    r->query_ms = r->query_ms ? r->query_ms : DEFAULT_QUERY_MS;
}

enum status cache_create(struct cache **out, const struct cache_config *config, struct buf *why)
{
    struct cache *c = calloc(1, sizeof *c);
    enum status s;

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory for the KV cache");
    c->config = *config;
    set_defaults(&c->config.remote);
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
    tier_close(c->tiers[CACHE_REMOTE]);
    tier_near_wait(c->near); /* before the memory from which it copies is unmapped */
    pool_close(c->pool);     /* before the memory from which it lends is freed */
    cache_events_destroy(c->pool_events);
    for (enum cache_tier t = 0; t < CACHE_REMOTE; t++)
        tier_close(c->tiers[t]);
    tier_near_close(c->near);
    free(c->meta);
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
    c->now_ns = now_ns;
    return store_poll(c->store, now_ns);
}

bool cache_awaits_pool_only(struct cache *c)
{
    uint64_t n_before = c->n_load_events;

    c->n_load_events = store_n_load_events(c->store);
    return c->pool && c->n_load_events == n_before && store_awaits_pool_only(c->store);
}

void cache_stats(const struct cache *c, struct cache_stats *out)
{
    *out = (struct cache_stats){.policy = c->config.policy ? c->config.policy
                                                           : replace_policy_name(REPLACE_CONTEST),
                                .n_query_tokens = c->n_query_tokens,
                                .n_hit_tokens = c->n_hit_tokens,
                                .n_restored_tokens = c->n_restored_tokens};
    memcpy(out->n_ways, c->n_ways, sizeof out->n_ways);
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
    ASSERT(store_n_queriers(c->store) == c->n_querying &&
           c->n_querying <= c->n_seqs * SEQ_PARTS_MAX);
    store_check(c->store);
}

void cache_reset(struct cache *c)
{
    cache_assert_owner(c);
    store_reset(c->store);
}

/* --- sleep --- */

bool cache_sleep(struct cache *c)
{
    cache_assert_owner(c);
    if (c->sleep == CACHE_ASLEEP)
        return true;
    if (c->sleep == CACHE_AWAKE) {
        if (!store_sleep(c->store))
            return false;
        c->sleep = CACHE_EMPTY;
        if (c->pool)
            pool_unregister(c->pool);
    }
    if (c->pool && !pool_is_unregistered(c->pool))
        return false;
    for (enum cache_tier t = CACHE_DEVICE; t <= CACHE_HOST; t++)
        if (c->tiers[t])
            tier_sleep(c->tiers[t]);
    c->sleep = CACHE_ASLEEP;
    return true;
}

enum status cache_wake(struct cache *c)
{
    enum status s = OK;

    cache_assert_owner(c);
    for (enum cache_tier t = CACHE_DEVICE; s == OK && t <= CACHE_HOST; t++)
        if (c->tiers[t])
            s = tier_wake(c->tiers[t]);
    if (s != OK) {
        for (enum cache_tier t = CACHE_DEVICE; t <= CACHE_HOST; t++)
            if (c->tiers[t] && !tier_is_asleep(c->tiers[t]))
                tier_sleep(c->tiers[t]);
        return s;
    }
    if (c->pool && c->sleep != CACHE_AWAKE)
        register_all(c);
    store_wake(c->store);
    c->sleep = CACHE_AWAKE;
    return OK;
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

void cache_set_pace(struct cache *c, double pace)
{
    cache_assert_owner(c);
    store_set_pace(c->store, pace);
}

void cache_set_load(struct cache *c, uint32_t n_waiting, uint32_t n_running)
{
    struct pool_load load = {.n_waiting = n_waiting, .n_running = n_running};

    cache_assert_owner(c);
    if (!c->pool || c->now_ns < c->load_set_ns + LOAD_PAUSE_NS)
        return;
    c->load_set_ns = c->now_ns;
    load.n_accesses = (double)c->n_accesses;
    c->n_accesses = 0;
    for (enum cache_tier t = 0; t <= CACHE_HOST; t++) {
        load.n_blocks += tier_n_blocks(c->tiers[t]);
        load.n_free_blocks += c->tiers[t] ? tier_n_free(c->tiers[t]) : 0;
    }
    pool_set_load(c->pool, &load);
}

uint32_t cache_pool_deadline_ms(const struct cache *c)
{
    return c->pool ? c->config.remote.lookup_ms + c->config.remote.pull_ms : 0;
}

void cache_leave(struct cache *c)
{
    cache_assert_owner(c);
    if (c->pool)
        store_leave(c->store);
}

void cache_drain(struct cache *c)
{
    cache_assert_owner(c);
    if (c->pool)
        store_drain(c->store);
}

bool cache_has_left(const struct cache *c)
{
    return !c->pool || store_has_left(c->store);
}

struct pool_notes *cache_notes(const struct cache *c)
{
    return c->pool ? pool_notes(c->pool) : NULL;
}

uint32_t cache_instances(struct cache *c, struct directory_instance *out, uint32_t n_max)
{
    return c->pool ? pool_instances(c->pool, out, n_max) : 0;
}
