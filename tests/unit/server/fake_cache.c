#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/server/fake_inner.h"

void engine_reset_cache(struct engine *e)
{
    (void)e;
    atomic_fetch_add(&fake_n_resets, 1);
}

/* Every part sleeps and wakes at once. */
static atomic_uint asleep;
static atomic_bool is_deep;

void engine_sleep(struct engine *e, const struct engine_sleep *s)
{
    (void)e;
    atomic_store(&is_deep, s->forgets);
    atomic_fetch_or(&asleep, s->parts);
}

void engine_wake(struct engine *e, unsigned parts)
{
    (void)e;
    atomic_fetch_and(&asleep, ~parts);
}

void engine_sleep_state(struct engine *e, struct engine_sleep_state *out)
{
    (void)e;
    *out = (struct engine_sleep_state){.wanted = atomic_load(&asleep),
                                       .asleep = atomic_load(&asleep),
                                       .is_deep = atomic_load(&is_deep)};
}

enum status engine_sleep_watch(struct engine *e, void (*changed)(void *arg), void *arg)
{
    (void)e, (void)changed, (void)arg;
    return OK;
}

void engine_sleep_unwatch(struct engine *e, void *arg)
{
    (void)e, (void)arg;
}

enum status engine_cache_erase(struct engine *e, const struct kv_key *first, uint32_t *n_blocks)
{
    (void)e;
    if (atomic_load(&fake_is_stuck))
        return ERR_TIMEOUT;
    *n_blocks = first->bytes[0] < 20 && first->bytes[31] == first->bytes[0] ? 7 : 0;
    if (*n_blocks)
        atomic_fetch_add(&fake_n_erasures, 1);
    return OK;
}

/* Caches nothing. */
enum status engine_cache_spans(struct engine *e, const struct kv_key *keys, uint32_t n,
                               struct cache_span *spans)
{
    (void)e;
    for (uint32_t i = 0; i < n; i++)
        spans[i] = (struct cache_span){.key = keys[i]};
    return atomic_load(&fake_is_stuck) ? ERR_TIMEOUT : OK;
}

bool engine_cache_knows(const struct engine *e, const struct kv_key *key)
{
    (void)e;
    (void)key;
    return false;
}

enum status engine_cache_release(struct engine *e, const struct kv_key *key, uint32_t *n_blocks)
{
    (void)e;
    if (atomic_load(&fake_is_stuck))
        return ERR_TIMEOUT;
    *n_blocks = key->bytes[0] < 20 && key->bytes[31] == key->bytes[0] ? 5 : 0;
    if (*n_blocks)
        atomic_fetch_add(&fake_n_releases, 1);
    return OK;
}

static void fill_pool(struct cache_stats *c)
{
    c->n_tiers = CACHE_N_TIERS;
    c->tier[CACHE_REMOTE] = (struct cache_tier_stats){.n_blocks = 200,
                                                      .n_free = 190,
                                                      .n_cached = 10,
                                                      .n_hit_tokens = 201,
                                                      .n_evicted = 202,
                                                      .n_not_worth = 204,
                                                      .saved_s = 205.5,
                                                      .lost_s = 206.5,
                                                      .order = ""};
    for (uint32_t w = 0; w < CACHE_N_WAYS; w++)
        c->n_ways[w] = 240 + w;
    c->pool = (struct pool_stats){.directory = {.is_up = true,
                                                .n_connects = 207,
                                                .n_timeouts = 208,
                                                .n_announced = 210,
                                                .n_dropped = 211,
                                                .round_trip_s = 0.25},
                                  .transport = "tcp",
                                  .n_instances = 212,
                                  .n_peers = 213,
                                  .n_segments = 214,
                                  .n_lent = 215,
                                  .n_lookups = 300,
                                  .n_found = 216,
                                  .n_stale = 217,
                                  .n_lookup_timeouts = 18,
                                  .n_pulled_blocks = 219,
                                  .n_pulled_bytes = 220,
                                  .n_lent_blocks = 221,
                                  .n_lent_bytes = 222,
                                  .n_reads_lost = 223,
                                  .n_reads_corrupt = 224,
                                  .n_reads_timed_out = 225,
                                  .n_peer_timeouts = 231,
                                  .n_lease_timeouts = 232,
                                  .n_mapped = 254,
                                  .n_near_bytes = 255,
                                  .n_queries = 233,
                                  .n_queries_failed = 234,
                                  .n_query_bytes = 235,
                                  .n_attended = 236,
                                  .n_attended_rows = 237,
                                  .query_s = 0.75,
                                  .n_refused = 226,
                                  .n_offered = 227,
                                  .n_handed_over = 228,
                                  .n_copies_offered = 250,
                                  .n_copies = 251,
                                  .n_moves = 252,
                                  .n_accesses = 253,
                                  .load_cv = 0.375,
                                  .n_events_lost = 229,
                                  .lookup_s = 0.5,
                                  .read_latency_s = 0.125,
                                  .read_bytes_per_s = 230};
}

/* Fill in figures that all differ, so that a test sees if two are mixed up. Under the lock. */
static void fill_cache(const struct engine *e, struct cache_stats *c)
{
    *c = (struct cache_stats){.policy = "lru",
                              .n_tiers = CACHE_REMOTE,
                              .n_query_tokens = 400,
                              .n_hit_tokens = 100,
                              .n_restored_tokens = 3,
                              .n_copies_failed = 4,
                              .n_spilled_ahead = 21,
                              .n_spilled_on_demand = 22,
                              .n_fetched_ahead = 23,
                              .n_fetched_on_demand = 24,
                              .n_expected_lost = 25,
                              .n_nodes = 5,
                              .n_holds = 6,
                              .n_held_blocks = 8,
                              .memory_bytes = 9000,
                              .tier = {[CACHE_DEVICE] = {.n_blocks = 100,
                                                         .n_free = 80 - e->n_inside,
                                                         .n_cached = 20,
                                                         .n_in_use = e->n_inside,
                                                         .n_nodes = 11,
                                                         .n_hit_tokens = 70,
                                                         .n_evicted = 12,
                                                         .n_moved_in = 13,
                                                         .order = ""},
                                       [CACHE_HOST] = {.n_blocks = FAKE_N_HOST_BLOCKS,
                                                       .n_free = 20,
                                                       .n_cached = 29,
                                                       .n_in_transfer = 1,
                                                       .n_nodes = 14,
                                                       .n_hit_tokens = 30,
                                                       .n_evicted = 15,
                                                       .n_moved_in = 16,
                                                       .order = ""}}};
    if (atomic_load(&fake_has_pool))
        fill_pool(c);
    if (!atomic_load(&fake_has_disk)) {
        c->disk.io = "";
        return;
    }
    c->tier[CACHE_DISK] = (struct cache_tier_stats){.n_blocks = FAKE_N_DISK_BLOCKS,
                                                    .n_free = 101,
                                                    .n_cached = 352,
                                                    .n_in_use = 45,
                                                    .n_in_transfer = 2,
                                                    .n_nodes = 46,
                                                    .n_hit_tokens = 47,
                                                    .n_evicted = 48,
                                                    .n_moved_in = 49,
                                                    .order = "clock"};
    c->disk = (struct cache_disk_stats){.is_on = true,
                                        .is_hung = true,
                                        .io = "io_uring",
                                        .is_direct = true,
                                        .extent_bytes = 8192,
                                        .index_s = 0.25,
                                        .n_found = 70,
                                        .n_torn = 71,
                                        .n_foreign = 72,
                                        .n_impossible = 73,
                                        .n_misnamed = 74,
                                        .n_orphaned = 75,
                                        .n_doubled = 76,
                                        .n_read_bytes = 77,
                                        .n_written_bytes = 78,
                                        .n_reads_failed = 79,
                                        .n_writes_failed = 81,
                                        .n_timeouts = 82,
                                        .n_corrupt = 83,
                                        .n_not_worth = 84,
                                        .n_preloaded_blocks = 85,
                                        .read_bytes_per_s = 86};
}

/* Span i has key bytes i and i + 1 blocks, the first of them in host memory. */
enum status engine_cache_view(struct engine *e, uint32_t n_spans_max, struct engine_cache_view *out)
{
    uint64_t end_ns = clock_now_ns() + atomic_load(&fake_view_ns);

    if (atomic_load(&fake_is_stuck))
        return ERR_TIMEOUT;
    atomic_fetch_add(&fake_n_viewing, 1);
    while (clock_now_ns() < end_ns && atomic_load(&fake_view_ns))
        clock_sleep_ns(FAKE_IDLE_NS);
    atomic_fetch_sub(&fake_n_viewing, 1);
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&e->lock);
    fill_cache(e, &out->stats);
    pthread_mutex_unlock(&e->lock);
    out->n_spans_all = 1000;
    out->n_spans = n_spans_max < ENGINE_N_SPANS_MAX ? n_spans_max : ENGINE_N_SPANS_MAX;
    for (uint32_t i = 0; i < out->n_spans; i++) {
        struct cache_span *s = &out->spans[i];
        *s = (struct cache_span){
            .depth = i,
            .n_blocks = i + 1,
            .n_tokens = 32 * (i + 1),
            .n_blocks_in = {[CACHE_DEVICE] = i, [CACHE_HOST] = 1, [CACHE_DISK] = i + 1},
            .n_nodes = 2,
            .n_children = 3,
            .n_uses = 1000 - i,
            .n_hit_tokens = 900 - i,
            .idle_ns = 1500000000,
            .in_use = i == 0,
            .is_held = i == 1};
        memset(s->key.bytes, (int)(i & 255), sizeof s->key.bytes);
    }
    return OK;
}

struct pool_notes *engine_notes(struct engine *e)
{
    (void)e;
    return NULL;
}

/* This one, one that leaves, one with another model, and one with another secret. */
uint32_t engine_pool_instances(struct engine *e, struct directory_instance *out, uint32_t n_max)
{
    static const struct directory_instance all[] = {
        {.id = 0xA1,
         .name = "here",
         .address = "tcp://10.0.0.1:7001",
         .n_blocks = 100,
         .n_free_blocks = 40,
         .n_waiting = 2,
         .load = 7000,
         .n_running = 3,
         .version = "0.1.0",
         .member = "0123456789abcdef",
         .fingerprint = {1}},
        {.id = 0xB2,
         .name = "there \"2\"",
         .address = "ucx://10.0.0.2:7001",
         .http = "http://10.0.0.2:8000",
         .n_blocks = 4294967295u,
         .is_leaving = true,
         .fingerprint = {1}},
        {.id = 0xC3, .fingerprint = {2}, .is_leaving = true},
        {.id = 0xD4, .fingerprint = {1}, .member = "0123456789abcdee"},
    };
    uint32_t n = atomic_load(&fake_has_pool) ? 4 : 0;

    (void)e;
    for (uint32_t i = 0; i < n && i < n_max; i++)
        out[i] = all[i];
    return n;
}

/* One millisecond per token of the prompt that is not cached, and as much per token of the answer;
 * the 90th percentiles are twice as long. */
enum status engine_estimate(struct engine *e, const struct estimate_query *q,
                            struct engine_estimate *out)
{
    double ttft_s = (q->n_prompt - q->n_cached) * 1e-3, e2e_s = ttft_s + q->n_out_max * 1e-3;

    (void)e;
    if (atomic_load(&fake_is_stuck))
        return ERR_TIMEOUT;
    *out = (struct engine_estimate){
        .estimate = {.ttft_s = ttft_s,
                     .ttft_high_s = 2 * ttft_s,
                     .e2e_s = e2e_s,
                     .e2e_high_s = 2 * e2e_s,
                     .n_before = q->priority < 0 ? 0 : 3},
        .n_running = 2,
        .n_waiting = 5,
        .accuracy = {.ttft_error = {0.125, 0.5, 77}, .e2e_error = {0.25, 1, 70}}};
    return OK;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&e->lock);
    fill_cache(e, &out->cache);
    out->n_running = e->n_inside;
    out->n_prompt_tokens = 100;
    out->n_prompt_tokens_cached = 65;
    out->n_prompt_tokens_in[CACHE_DEVICE] = 40;
    out->n_prompt_tokens_in[CACHE_HOST] = 20;
    out->n_prompt_tokens_in[CACHE_DISK] = 5;
    out->n_generation_tokens = e->n_tokens;
    pthread_mutex_unlock(&e->lock);
    out->n_preemptions = 66;
    out->n_query_preemptions = 3;
    out->n_plans_ahead = 34;
    out->n_graph_steps = 35;
    out->n_async_steps = 42;
    out->cost_error = 0.125;
    out->scheduler = (struct scheduler_stats){.n_levels = 3,
                                              .n_in_level = {35, 36, 37},
                                              .quantum_s = {0.25, 0.5, INFINITY},
                                              .starvation_s = 3,
                                              .n_preempted_for_place = 31,
                                              .n_preempted_for_memory = 32,
                                              .n_starving = 38,
                                              .n_demoted = 39};
    out->estimator.ttft[0] = (struct estimate_factors){1.25, 2.5, 9};
    out->usual_ttft_s = 0.375;
    out->usual_e2e_s = 1.375;
    out->slo_ttft = (struct slo_count){91, 92};
    out->slo_tpot = (struct slo_count){93, 94};
    out->slo_all = (struct slo_count){95, 96};
    out->n_slo_rejected = 97;
    hist_init(&out->ttft_error, hist_bounds_ttft_s, 22);
    hist_add(&out->ttft_error, 0.1);
    hist_init(&out->ttft_s, hist_bounds_ttft_s, 22);
    hist_init(&out->step_s, hist_bounds_ttft_s, 22);
    hist_init(&out->gap_s, hist_bounds_ttft_s, 22);
    hist_add(&out->step_s, 0.03);
    hist_add(&out->gap_s, 0.002);
    hist_add(&out->gap_s, 0.002);
}
