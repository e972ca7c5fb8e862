/* metrics.c - GET /metrics: Prometheus text, vLLM's names for what vLLM has, ours under tarn:. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "server/api.h"
#include "server/auth.h"
#include "server/error.h"
#include "server/http.h"
#include "server/kv_disk.h"
#include "server/server.h"
#include "server/writer.h"

#define BODY_BYTES_MAX (4u << 20)
#define LABELS_BYTES 512
#define N_KEY_LABELS_MAX 100 /* keys named in each family */

struct page {
    struct writer w;
    char labels[LABELS_BYTES]; /* model_name="...",engine="0" */
};

/* Label values escape backslash, quote and newline. */
static void make_labels(struct page *p, const char *model)
{
    size_t n = (size_t)snprintf(p->labels, sizeof p->labels, "model_name=\"");

    for (; *model && n + 32 < sizeof p->labels; model++) {
        if (*model == '\\' || *model == '"' || *model == '\n')
            p->labels[n++] = '\\';
        p->labels[n++] = *model == '\n' ? 'n' : *model;
    }
    snprintf(p->labels + n, sizeof p->labels - n, "\",engine=\"0\"");
}

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    write_format(&p->w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* more: further labels with a leading comma, or "". */
static void sample(struct page *p, const char *name, const char *more, double value)
{
    write_format(&p->w, "%s{%s%s} ", name, p->labels, more);
    if (isinf(value) && value > 0)
        write_puts(&p->w, "+Inf\n"); /* a quantum that nothing uses up */
    else if (value == floor(value) && fabs(value) < 1e15)
        write_format(&p->w, "%.0f\n", value);
    else
        write_format(&p->w, "%.9g\n", value);
}

static void gauge(struct page *p, const char *name, const char *help, double value)
{
    head(p, name, "gauge", help);
    sample(p, name, "", value);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t value)
{
    head(p, name, "counter", help);
    sample(p, name, "", (double)value);
}

static void histogram(struct page *p, const char *name, const char *help, const struct hist *h)
{
    char full[96], bound[48];
    uint64_t n = 0;

    head(p, name, "histogram", help);
    snprintf(full, sizeof full, "%s_bucket", name);
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        snprintf(bound, sizeof bound, ",le=\"%g\"", h->bounds[i]);
        sample(p, full, bound, (double)n);
    }
    sample(p, full, ",le=\"+Inf\"", (double)h->n);
    snprintf(full, sizeof full, "%s_sum", name);
    sample(p, full, "", h->sum);
    snprintf(full, sizeof full, "%s_count", name);
    sample(p, full, "", (double)h->n);
}

static uint64_t resident_bytes(void)
{
    unsigned long long n_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f)
        return 0;
    if (fscanf(f, "%*u %llu", &n_pages) != 1)
        n_pages = 0;
    fclose(f);
    return n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void write_gauges(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    const struct cache_tier_stats *device = &st->cache.tier[CACHE_DEVICE];
    char more[192];

    gauge(p, "vllm:num_requests_running", "Requests in the running batch.", st->n_running);
    gauge(p, "vllm:num_requests_waiting", "Requests that wait for their first step.",
          st->n_waiting);
    gauge(p, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.",
          device->n_blocks ? (double)device->n_in_use / device->n_blocks : 0);
    /* Routers read the capacity from these labels. */
    head(p, "vllm:cache_config_info", "gauge", "The cache, in labels.");
    snprintf(more, sizeof more,
             ",block_size=\"%d\",num_gpu_blocks=\"%u\",num_cpu_blocks=\"%u\","
             "enable_prefix_caching=\"%s\"",
             KV_BLOCK_TOKENS, srv->info->n_kv_blocks, srv->info->n_kv_host_blocks,
             srv->config->prefix_caching ? "True" : "False");
    sample(p, "vllm:cache_config_info", more, 1);
}

static void write_counters(struct page *p, const struct engine_stats *st)
{
    const struct cache_stats *c = &st->cache;

    counter(p, "vllm:prompt_tokens_total", "Prompt tokens of requests.", st->n_prompt_tokens);
    counter(p, "vllm:prompt_tokens_cached_total", "Prompt tokens whose KV was found.",
            st->n_prompt_tokens_cached);
    head(p, "vllm:prompt_tokens_by_source_total", "counter",
         "Prompt tokens by where KV came from.");
    sample(p, "vllm:prompt_tokens_by_source_total", ",source=\"local_compute\"",
           (double)(st->n_prompt_tokens - st->n_prompt_tokens_cached));
    sample(p, "vllm:prompt_tokens_by_source_total", ",source=\"local_cache_hit\"",
           (double)st->n_prompt_tokens_cached);
    counter(p, "vllm:generation_tokens_total", "Tokens generated.", st->n_generation_tokens);
    counter(p, "vllm:num_preemptions_total", "Running requests put back.", st->n_preemptions);
    counter(p, "vllm:prefix_cache_queries_total", "Prompt tokens looked up.", c->n_query_tokens);
    counter(p, "vllm:prefix_cache_hits_total", "Prompt tokens found.", c->n_hit_tokens);
    counter(p, "vllm:admission_rejections_total", "Requests refused because the queue was full.",
            st->n_rejected);
    head(p, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (int r = FINISH_STOP; r <= FINISH_ERROR; r++) {
        char more[64];
        snprintf(more, sizeof more, ",finished_reason=\"%s\"",
                 finish_reason_name((enum finish_reason)r));
        sample(p, "vllm:request_success_total", more, (double)st->n_finished[r]);
    }
}

static void write_histograms(struct page *p, const struct engine_stats *st)
{
    histogram(p, "vllm:time_to_first_token_seconds", "From submission to the first token.",
              &st->ttft_s);
    histogram(p, "vllm:inter_token_latency_seconds", "Between two tokens of a request.",
              &st->itl_s);
    histogram(p, "vllm:request_time_per_output_token_seconds",
              "Mean gap after the first token, by request.", &st->tpot_s);
    histogram(p, "vllm:e2e_request_latency_seconds", "From submission to the end.", &st->e2e_s);
    histogram(p, "vllm:request_queue_time_seconds", "From submission to the first step.",
              &st->queue_s);
    histogram(p, "vllm:request_prefill_time_seconds", "From the first step to the first token.",
              &st->prefill_s);
    histogram(p, "vllm:request_decode_time_seconds", "From the first token to the end.",
              &st->decode_s);
    histogram(p, "vllm:request_inference_time_seconds", "From the first step to the end.",
              &st->inference_s);
    histogram(p, "vllm:request_prompt_tokens", "Prompt tokens by request.", &st->prompt_tokens);
    histogram(p, "vllm:request_generation_tokens", "Generated tokens by request.",
              &st->generation_tokens);
    histogram(p, "vllm:request_prefill_kv_computed_tokens",
              "Prompt tokens by request whose KV was not found.", &st->computed_tokens);
    histogram(p, "vllm:request_params_max_tokens", "max_tokens by request.", &st->max_tokens);
    histogram(p, "vllm:iteration_tokens_total", "Tokens of a step.", &st->step_tokens);
}

static void write_blocks(struct page *p, const char *name, const char *help,
                         const struct cache_tier_stats *c)
{
    const struct {
        const char *labels;
        uint32_t n;
    } states[] = {
        {",state=\"free\"", c->n_free},
        {",state=\"cached\"", c->n_cached},
        {",state=\"in_use\"", c->n_in_use},
        {",state=\"in_transfer\"", c->n_in_transfer},
    };

    head(p, name, "gauge", help);
    for (size_t i = 0; i < ARRAY_SIZE(states); i++)
        sample(p, name, states[i].labels, states[i].n);
}

/* One sample for each tier; offset: of the uint64_t in struct cache_tier_stats. */
static void write_by_tier(struct page *p, const char *name, const char *label, const char *help,
                          const struct cache_stats *c, size_t offset)
{
    char more[48];

    head(p, name, "counter", help);
    for (int t = 0; t < CACHE_N_TIERS; t++) {
        uint64_t n;
        memcpy(&n, (const char *)&c->tier[t] + offset, sizeof n);
        snprintf(more, sizeof more, ",%s=\"%s\"", label, cache_tier_name((enum cache_tier)t));
        sample(p, name, more, (double)n);
    }
}

static void write_tokens_by_tier(struct page *p, const struct engine_stats *st)
{
    static const char name[] = "tarn:prompt_tokens_by_tier_total";
    char more[48];

    head(p, name, "counter", "Prompt tokens by the tier that held their KV, or computed.");
    for (int t = 0; t < CACHE_N_TIERS; t++) {
        snprintf(more, sizeof more, ",tier=\"%s\"", cache_tier_name((enum cache_tier)t));
        sample(p, name, more, (double)st->n_prompt_tokens_in[t]);
    }
    sample(p, name, ",tier=\"computed\"",
           (double)(st->n_prompt_tokens - st->n_prompt_tokens_cached));
}

static void write_kv(struct page *p, const struct engine_stats *st)
{
    const struct cache_stats *c = &st->cache;
    uint32_t n_leaked = 0;

    for (int t = 0; t < CACHE_N_TIERS; t++)
        n_leaked += c->tier[t].n_leaked;
    write_tokens_by_tier(p, st);
    write_blocks(p, "tarn:kv_blocks", "KV blocks of the device by state; the sum is constant.",
                 &c->tier[CACHE_DEVICE]);
    write_blocks(p, "tarn:kv_host_blocks", "KV blocks in host memory by state.",
                 &c->tier[CACHE_HOST]);
    write_blocks(p, "tarn:kv_disk_blocks", "KV blocks on disk by state.", &c->tier[CACHE_DISK]);
    gauge(p, "tarn:kv_blocks_leaked", "KV blocks in no state: 0, or there is a bug.", n_leaked);
    write_by_tier(p, "tarn:kv_blocks_evicted_total", "tier",
                  "KV blocks that left a tier to make room.", c,
                  offsetof(struct cache_tier_stats, n_evicted));
    write_by_tier(p, "tarn:kv_blocks_moved_total", "to", "KV blocks that came from another tier.",
                  c, offsetof(struct cache_tier_stats, n_moved_in));
    counter(p, "tarn:kv_copies_failed_total", "Copies between tiers that failed: computed again.",
            c->n_copies_failed);
    counter(p, "tarn:kv_tokens_restored_total", "Tokens that preempted requests found again.",
            c->n_restored_tokens);
    gauge(p, "tarn:kv_tree_nodes", "Segments in the tree of prefixes.", c->n_nodes);
    gauge(p, "tarn:kv_held_blocks", "KV blocks kept by cache_ttl.", c->n_held_blocks);
    gauge(p, "tarn:kv_metadata_bytes", "Memory of tree and policy, without the KV.",
          (double)c->memory_bytes);
}

/* Blocks that swapping moved: before somebody had to wait for it, or because somebody did. */
static void write_swaps(struct page *p, const char *name, const char *help, uint64_t n_ahead,
                        uint64_t n_on_demand)
{
    head(p, name, "counter", help);
    sample(p, name, ",when=\"ahead\"", (double)n_ahead);
    sample(p, name, ",when=\"on_demand\"", (double)n_on_demand);
}

static void write_swapping(struct page *p, const struct cache_stats *c)
{
    write_swaps(p, "tarn:kv_blocks_spilled_total",
                "KV blocks moved to host memory, before the room was needed or when it was.",
                c->n_spilled_ahead, c->n_spilled_on_demand);
    write_swaps(p, "tarn:kv_blocks_fetched_total",
                "KV blocks moved back to the device, for a waiting request or for one that runs.",
                c->n_fetched_ahead, c->n_fetched_on_demand);
    counter(p, "tarn:kv_blocks_recomputed_total",
            "KV blocks that were forgotten although somebody waited for them.",
            c->n_expected_lost);
}

static void write_disk(struct page *p, const struct cache_disk_stats *d)
{
    static const char dropped_name[] = "tarn:kv_disk_records_dropped";
    struct kv_disk_dropped dropped[KV_DISK_N_WHYS];
    char more[32];

    counter(p, "tarn:kv_disk_read_bytes_total", "KV read from disk.", d->n_read_bytes);
    counter(p, "tarn:kv_disk_written_bytes_total", "KV written to disk.", d->n_written_bytes);
    counter(p, "tarn:kv_disk_reads_failed_total", "Reads that failed: computed again.",
            d->n_reads_failed);
    counter(p, "tarn:kv_disk_writes_failed_total", "Writes that failed: not kept.",
            d->n_writes_failed);
    counter(p, "tarn:kv_disk_timeouts_total", "Reads and writes given up after their time.",
            d->n_timeouts);
    counter(p, "tarn:kv_disk_corrupt_total", "Blocks read whose checksum did not hold.",
            d->n_corrupt);
    counter(p, "tarn:kv_disk_not_worth_total",
            "Requests that computed what could be read, as that was slower.", d->n_not_worth);
    counter(p, "tarn:kv_disk_preloaded_blocks_total", "KV blocks read because the server started.",
            d->n_preloaded_blocks);
    gauge(p, "tarn:kv_disk_hung", "1 while the disk does not answer in time.", d->is_hung);
    gauge(p, "tarn:kv_disk_read_bytes_per_second", "Moving mean of what reads achieve; 0: no read.",
          d->read_bytes_per_s);
    gauge(p, "tarn:kv_disk_index_seconds", "Time to open the directory and enter its records.",
          d->index_s);
    gauge(p, "tarn:kv_disk_records_found", "KV blocks that were there at start.", d->n_found);
    kv_disk_dropped(d, dropped);
    head(p, dropped_name, "gauge", "Records that were there at start and could not be used.");
    for (int i = 0; i < KV_DISK_N_WHYS; i++) {
        snprintf(more, sizeof more, ",why=\"%s\"", dropped[i].why);
        sample(p, dropped_name, more, dropped[i].n);
    }
}

static void write_levels(struct page *p, const struct scheduler_stats *s)
{
    char more[24];

    head(p, "tarn:sched_level_requests", "gauge", "Requests by level, 0 is served first.");
    for (uint32_t i = 0; i < s->n_levels; i++) {
        snprintf(more, sizeof more, ",level=\"%u\"", i);
        sample(p, "tarn:sched_level_requests", more, s->n_in_level[i]);
    }
    head(p, "tarn:sched_level_quantum_seconds", "gauge",
         "Time that a level gives a request before it sinks.");
    for (uint32_t i = 0; i < s->n_levels; i++) {
        snprintf(more, sizeof more, ",level=\"%u\"", i);
        sample(p, "tarn:sched_level_quantum_seconds", more, s->quantum_s[i]);
    }
}

static void write_scheduling(struct page *p, const struct engine_stats *st)
{
    const struct scheduler_stats *s = &st->scheduler;

    write_levels(p, s);
    gauge(p, "tarn:sched_starvation_seconds", "Who has not run for so long goes before all.",
          s->starvation_s);
    /* vllm:num_preemptions_total by what the request had to give up. */
    head(p, "tarn:preemptions_total", "counter",
         "Running requests put back, by what others needed: a place or KV memory.");
    sample(p, "tarn:preemptions_total", ",reason=\"place\"", (double)s->n_preempted_for_place);
    sample(p, "tarn:preemptions_total", ",reason=\"memory\"", (double)s->n_preempted_for_memory);
    counter(p, "tarn:starvation_boosts_total", "Times that a request went first for its wait.",
            s->n_starving);
    counter(p, "tarn:demotions_total", "Times that a request sank to a lower level.",
            s->n_demoted);
    counter(p, "tarn:plans_ahead_total", "Steps planned while the one before ran.",
            st->n_plans_ahead);
    gauge(p, "tarn:cost_model_relative_error",
          "Moving mean of |expected - seen| / seen of the time of steps.", st->cost_error);
    histogram(p, "tarn:step_seconds", "From a step's plan to its tokens.", &st->step_s);
    histogram(p, "tarn:step_gap_seconds", "Of it and before it, when the device did not compute.",
              &st->gap_s);
}

static void write_ours(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    write_kv(p, st);
    write_swapping(p, &st->cache);
    write_disk(p, &st->cache.disk);
    write_scheduling(p, st);
    counter(p, "tarn:steps_total", "Batches run through the model.", st->n_steps);
    gauge(p, "tarn:process_resident_bytes", "Resident memory of the server.",
          (double)resident_bytes());
    gauge(p, "tarn:draining", "1 while the server is shutting down.",
          atomic_load(&srv->draining));
}

/* --- tenants and keys: everybody sees his own, an admin (or anybody, without keys) all --- */

struct who {
    struct page *p;
    const struct account *asks; /* NULL: whose key was taken away a moment ago */
    bool sees_all;
    const char *name;
    size_t offset;              /* of the number in struct tenant or struct account */
    uint32_t n_keys;
};

static void write_tenant(void *arg, const struct tenant *t)
{
    const struct who *w = arg;
    char more[KEY_NAME_BYTES + 16];

    if (!w->sees_all && !(w->asks && w->asks->tenant == t))
        return;
    snprintf(more, sizeof more, ",tenant=\"%s\"", t->name); /* names need no escapes: keys.h */
    sample(w->p, w->name, more,
           (double)atomic_load((_Atomic uint64_t *)(uintptr_t)((const char *)t + w->offset)));
}

static void write_tenants(struct who *w, struct auth *auth)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {"tarn:tenant_requests_total", "Calls that were let in.",
         offsetof(struct tenant, n_requests)},
        {"tarn:tenant_rate_limited_total", "Calls refused for a limit of their key.",
         offsetof(struct tenant, n_rate_limited)},
        {"tarn:tenant_prompt_tokens_total", "Prompt tokens of ended calls.",
         offsetof(struct tenant, n_prompt_tokens)},
        {"tarn:tenant_prompt_tokens_cached_total", "Of those, found in the cache.",
         offsetof(struct tenant, n_cached_tokens)},
        {"tarn:tenant_generation_tokens_total", "Tokens generated by ended calls.",
         offsetof(struct tenant, n_generation_tokens)},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        w->name = rows[i].name;
        w->offset = rows[i].offset;
        head(w->p, w->name, "counter", rows[i].help);
        auth_each_tenant(auth, write_tenant, w);
    }
}

enum key_number { KEY_WEIGHT, KEY_KV_BYTES, KEY_REQUESTS, KEY_TOKENS };

static double key_number(struct account *a, size_t which)
{
    double value = 0;

    pthread_mutex_lock(&a->lock);
    switch ((enum key_number)which) {
    case KEY_WEIGHT: value = a->weight; break;
    case KEY_KV_BYTES: value = (double)a->kv_bytes; break;
    case KEY_REQUESTS: value = (double)a->limiter.requests.limit; break;
    case KEY_TOKENS: value = (double)a->limiter.tokens.limit; break;
    }
    pthread_mutex_unlock(&a->lock);
    return value;
}

static void write_key(void *arg, struct account *a)
{
    struct who *w = arg;
    char more[2 * KEY_NAME_BYTES + 32];

    if (!(w->sees_all || w->asks == a) || w->n_keys++ >= N_KEY_LABELS_MAX)
        return;
    snprintf(more, sizeof more, ",key=\"%s\",tenant=\"%s\"", a->name, a->tenant_name);
    sample(w->p, w->name, more, key_number(a, w->offset));
}

static void write_keys(struct who *w, struct auth *auth)
{
    static const struct {
        const char *name, *help;
        enum key_number number;
    } rows[] = {
        {"tarn:key_weight", "Share of the machine; not enforced yet.", KEY_WEIGHT},
        {"tarn:key_kv_bytes", "Limit of cached KV, 0: none; not enforced yet.", KEY_KV_BYTES},
        {"tarn:key_requests_per_minute", "Limit, 0: none.", KEY_REQUESTS},
        {"tarn:key_tokens_per_minute", "Limit, 0: none.", KEY_TOKENS},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        w->name = rows[i].name;
        w->offset = rows[i].number;
        w->n_keys = 0;
        head(w->p, w->name, "gauge", rows[i].help);
        auth_each_account(auth, write_key, w);
    }
}

static void write_who(struct page *p, const struct server *srv, const struct account *asks)
{
    struct who w = {.p = p, .asks = asks};

    w.sees_all = !auth_needs_key(srv->auth) || (asks && asks->admin);
    write_tenants(&w, srv->auth);
    if (!auth_needs_key(srv->auth))
        return;
    write_keys(&w, srv->auth);
    head(p, "tarn:key_reloads_total", "counter", "Times that SIGHUP read the key file again.");
    sample(p, "tarn:key_reloads_total", ",result=\"ok\"", (double)auth_n_reloads(srv->auth, false));
    sample(p, "tarn:key_reloads_total", ",result=\"failed\"",
           (double)auth_n_reloads(srv->auth, true));
}

void api_metrics(struct server *srv, struct http_exchange *x)
{
    struct account *asks;
    struct engine_stats st;
    struct buf body;
    struct page p = {.w = {&body, OK}};

    buf_init(&body, BODY_BYTES_MAX);
    engine_stats(srv->engine, &st);
    make_labels(&p, srv->model_names[0]);
    write_gauges(&p, srv, &st);
    write_counters(&p, &st);
    write_histograms(&p, &st);
    write_ours(&p, srv, &st);
    if (auth_find(srv->auth, http_header(x, "Authorization"), http_header(x, "x-api-key"), &asks,
                  NULL) != OK)
        asks = NULL;
    write_who(&p, srv, asks);
    account_unref(asks);
    if (p.w.status == OK)
        http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    else
        error_reply(x, p.w.status, NULL, "out of memory");
    buf_fini(&body);
}
