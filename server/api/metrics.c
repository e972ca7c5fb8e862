/* metrics.c - GET /metrics: Prometheus text. A metric that vLLM has is named as in vLLM, all others
 * are named tarn:*. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/api/api.h"
#include "server/api/background.h"
#include "server/api/caller.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/api/exposition.h"
#include "server/http/http.h"
#include "server/kv_disk.h"
#include "server/api/metrics.h"
#include "server/api/responses.h"
#include "server/server.h"
#include "server/api/tally.h"

#define BODY_BYTES_MAX (4u << 20)
#define LABELS_BYTES 512

static void add_count(char *labels, size_t n, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, value);
    label_add(labels, n, name, text);
}

static void add_fraction(char *labels, size_t n, const char *name, double value)
{
    char text[32];

    snprintf(text, sizeof text, "%g", value);
    label_add(labels, n, name, text);
}

/* Write vllm:cache_config_info, from whose labels routers read the capacity. Has those of vLLM's
 * labels that apply here, in vLLM's format. */
static void write_cache_config(struct page *p, const struct server *srv)
{
    const struct engine_info *info = srv->info;
    const struct config *c = srv->config;
    uint64_t n_tokens = (uint64_t)info->n_kv_blocks * KV_BLOCK_TOKENS;
    char more[LABELS_BYTES] = "";

    add_count(more, sizeof more, "block_size", KV_BLOCK_TOKENS);
    label_add(more, sizeof more, "cache_dtype", c->kv_cache_dtype ? c->kv_cache_dtype : "auto");
    label_add(more, sizeof more, "enable_prefix_caching", c->prefix_caching ? "True" : "False");
    add_fraction(more, sizeof more, "gpu_memory_utilization", c->gpu_memory_utilization);
    add_fraction(more, sizeof more, "kv_cache_max_concurrency",
                 info->max_model_len ? (double)n_tokens / info->max_model_len : 0);
    add_count(more, sizeof more, "kv_cache_memory_bytes", info->kv_bytes);
    add_count(more, sizeof more, "kv_cache_size_tokens", n_tokens);
    add_count(more, sizeof more, "num_gpu_blocks", info->n_kv_blocks);
    add_count(more, sizeof more, "num_cpu_blocks", info->n_kv_host_blocks);
    label_add(more, sizeof more, "prefix_caching_hash_algo", "blake2b");
    label_add(more, sizeof more, "sliding_window", "None");
    page_head(p, "vllm:cache_config_info", "gauge", "The KV cache, in labels.");
    page_sample(p, "vllm:cache_config_info", more, 1);
}

/* A pause alone is none of the three, as in vLLM. */
static void write_sleep_state(struct page *p, const struct server *srv)
{
    static const char name[] = "vllm:engine_sleep_state";
    struct engine_sleep_state s;

    engine_sleep_state(srv->engine, &s);
    bool has_slept = s.asleep & (ENGINE_WEIGHTS | ENGINE_KV);
    page_head(p, name, "gauge", "Whether memory of weights and KV was given back (POST /sleep).");
    page_sample(p, name, ",sleep_state=\"awake\"", !s.asleep);
    page_sample(p, name, ",sleep_state=\"weights_offloaded\"", has_slept && !s.is_deep);
    page_sample(p, name, ",sleep_state=\"discard_all\"", has_slept && s.is_deep);
}

static void write_gauges(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    const struct cache_tier_stats *device = &st->cache.tier[CACHE_DEVICE];

    page_gauge(p, "vllm:num_requests_running", "Requests in the running batch.", st->n_running);
    page_gauge(p, "vllm:num_requests_waiting", "Requests that wait for their first step.",
               st->n_waiting);
    page_gauge(p, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.",
               device->n_blocks ? (double)device->n_in_use / device->n_blocks : 0);
    write_sleep_state(p, srv);
    write_cache_config(p, srv);
}

/* A counter of struct draft_count for each source of guesses: the member at `offset`. */
static void write_of_sources(struct page *p, const struct draft_count *counts, uint32_t n_sources,
                             const char *name, const char *help, size_t offset)
{
    static const char *const more[DRAFT_N_SOURCES] = {",source=\"lookup\"", ",source=\"draft\""};

    page_head(p, name, "counter", help);
    for (uint32_t i = 0; i < n_sources; i++) {
        uint64_t n;
        memcpy(&n, (const char *)&counts[i] + offset, sizeof n);
        page_sample(p, name, more[i], (double)n);
    }
}

/* The places are vLLM's: 0 is the first guess of a draft. */
static void write_drafts(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    static const char per_pos[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    const struct draft_count *d = st->drafts;
    uint32_t n = srv->info->draft_weight_bytes > 0 ? DRAFT_N_SOURCES : 1;

    write_of_sources(p, d, n, "vllm:spec_decode_num_drafts_total",
                     "Decodes that also verified guessed tokens.",
                     offsetof(struct draft_count, n_drafts));
    write_of_sources(p, d, n, "vllm:spec_decode_num_draft_tokens_total", "Guessed tokens verified.",
                     offsetof(struct draft_count, n_tokens));
    write_of_sources(p, d, n, "vllm:spec_decode_num_accepted_tokens_total", "Of those: right ones.",
                     offsetof(struct draft_count, n_accepted));
    page_head(p, per_pos, "counter", "Right guesses, by place in the draft.");
    for (uint32_t i = 0; i < srv->info->n_guesses_max; i++) {
        char more[32];
        uint64_t n_right = d[DRAFT_BY_LOOKUP].n_accepted_at[i] + d[DRAFT_BY_MODEL].n_accepted_at[i];
        snprintf(more, sizeof more, ",position=\"%u\"", i);
        page_sample(p, per_pos, more, (double)n_right);
    }
    if (n == 1)
        return;
    page_counter(p, "tarn:draft_passes_total", "Forward passes of the draft model.",
                 st->n_draft_passes);
    page_head(p, "tarn:draft_seconds_total", "counter", "Time of those.");
    page_sample(p, "tarn:draft_seconds_total", "", st->draft_passes_s);
    page_gauge(p, "tarn:draft_weight_bytes", "Weights of the draft model.",
               (double)srv->info->draft_weight_bytes);
    page_gauge(p, "tarn:draft_kv_bytes", "KV store of the draft model.",
               (double)srv->info->draft_kv_bytes);
}

static void write_responses(struct page *p, const struct server *srv)
{
    uint64_t n_bytes;
    uint32_t n;

    responses_count(srv->responses, &n, &n_bytes);
    page_gauge(p, "tarn:stored_responses", "Responses of /v1/responses that are kept.", n);
    page_gauge(p, "tarn:stored_responses_bytes", "Memory of those.", (double)n_bytes);
    page_gauge(p, "tarn:background_responses", "Responses that run in the background.",
               background_n(srv->background));
}

static void write_counters(struct page *p, const struct engine_stats *st)
{
    const struct cache_stats *c = &st->cache;

    page_counter(p, "vllm:prompt_tokens_total", "Prompt tokens of requests.", st->n_prompt_tokens);
    page_counter(p, "vllm:prompt_tokens_cached_total", "Prompt tokens whose KV was found.",
                 st->n_prompt_tokens_cached);
    page_head(p, "vllm:prompt_tokens_by_source_total", "counter",
              "Prompt tokens by where KV came from.");
    page_sample(p, "vllm:prompt_tokens_by_source_total", ",source=\"local_compute\"",
                (double)(st->n_prompt_tokens - st->n_prompt_tokens_cached));
    page_sample(p, "vllm:prompt_tokens_by_source_total", ",source=\"local_cache_hit\"",
                (double)st->n_prompt_tokens_cached);
    page_counter(p, "vllm:generation_tokens_total", "Tokens generated.", st->n_generation_tokens);
    page_counter(p, "vllm:num_preemptions_total", "Running requests put back.", st->n_preemptions);
    page_counter(p, "vllm:prefix_cache_queries_total", "Prompt tokens looked up.",
                 c->n_query_tokens);
    page_counter(p, "vllm:prefix_cache_hits_total", "Prompt tokens found.", c->n_hit_tokens);
    page_counter(p, "vllm:admission_rejections_total",
                 "Requests refused because the queue was full.", st->n_rejected);
    page_head(p, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (int r = FINISH_STOP; r <= FINISH_ERROR; r++) {
        char more[64];
        snprintf(more, sizeof more, ",finished_reason=\"%s\"",
                 finish_reason_name((enum finish_reason)r));
        page_sample(p, "vllm:request_success_total", more, (double)st->n_finished[r]);
    }
}

static void write_histograms(struct page *p, const struct server *srv,
                             const struct engine_stats *st)
{
    struct hist n, n_tokens_max;

    tally_prompts(srv->tally, &n, &n_tokens_max);
    page_histogram(p, "vllm:time_to_first_token_seconds", "From submission to the first token.",
                   &st->ttft_s);
    page_histogram(p, "vllm:inter_token_latency_seconds", "Between two tokens of a request.",
                   &st->itl_s);
    page_histogram(p, "vllm:request_time_per_output_token_seconds",
                   "Mean gap after the first token, by request.", &st->tpot_s);
    page_histogram(p, "vllm:e2e_request_latency_seconds", "From submission to the end.",
                   &st->e2e_s);
    page_histogram(p, "vllm:request_queue_time_seconds", "From submission to the first step.",
                   &st->queue_s);
    page_histogram(p, "vllm:request_prefill_time_seconds",
                   "From the first step to the first token.", &st->prefill_s);
    page_histogram(p, "vllm:request_decode_time_seconds", "From the first token to the end.",
                   &st->decode_s);
    page_histogram(p, "vllm:request_inference_time_seconds", "From the first step to the end.",
                   &st->inference_s);
    page_histogram(p, "vllm:request_prompt_tokens", "Prompt tokens by request.",
                   &st->prompt_tokens);
    page_histogram(p, "vllm:request_generation_tokens", "Generated tokens by request.",
                   &st->generation_tokens);
    page_histogram(p, "vllm:request_prefill_kv_computed_tokens",
                   "Prompt tokens by request whose KV was not found.", &st->computed_tokens);
    page_histogram(p, "vllm:request_params_max_tokens", "max_tokens by request.", &st->max_tokens);
    page_histogram(p, "vllm:request_params_n", "n by request: how many answers to one prompt.", &n);
    page_histogram(p, "vllm:request_max_num_generation_tokens",
                   "Generated tokens of the longest of a prompt's answers.", &n_tokens_max);
    page_histogram(p, "vllm:iteration_tokens_total", "Tokens of a step.", &st->step_tokens);
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

    page_head(p, name, "gauge", help);
    for (size_t i = 0; i < ARRAY_SIZE(states); i++)
        page_sample(p, name, states[i].labels, states[i].n);
}

/* Write one sample for each tier. offset: of a uint64_t in struct cache_tier_stats. */
static void write_by_tier(struct page *p, const char *name, const char *label, const char *help,
                          const struct cache_stats *c, size_t offset)
{
    char more[48];

    page_head(p, name, "counter", help);
    for (uint32_t t = 0; t < c->n_tiers; t++) {
        uint64_t n;
        memcpy(&n, (const char *)&c->tier[t] + offset, sizeof n);
        snprintf(more, sizeof more, ",%s=\"%s\"", label, cache_tier_name((enum cache_tier)t));
        page_sample(p, name, more, (double)n);
    }
}

/* Write what each tier has saved or lost. is_lost: which of the two. */
static void write_seconds_by_tier(struct page *p, const char *name, const char *help,
                                  const struct cache_stats *c, bool is_lost)
{
    char more[48];

    page_head(p, name, "counter", help);
    for (uint32_t t = 0; t < c->n_tiers; t++) {
        snprintf(more, sizeof more, ",tier=\"%s\"", cache_tier_name((enum cache_tier)t));
        page_sample(p, name, more, is_lost ? c->tier[t].lost_s : c->tier[t].saved_s);
    }
}

static void write_tokens_by_tier(struct page *p, const struct engine_stats *st)
{
    static const char name[] = "tarn:prompt_tokens_by_tier_total";
    char more[48];

    page_head(p, name, "counter", "Prompt tokens by the tier that held their KV, or computed.");
    for (uint32_t t = 0; t < st->cache.n_tiers; t++) {
        snprintf(more, sizeof more, ",tier=\"%s\"", cache_tier_name((enum cache_tier)t));
        page_sample(p, name, more, (double)st->n_prompt_tokens_in[t]);
    }
    page_sample(p, name, ",tier=\"computed\"",
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
    page_gauge(p, "tarn:kv_blocks_leaked", "KV blocks in no state: 0, or there is a bug.",
               n_leaked);
    write_by_tier(p, "tarn:kv_blocks_evicted_total", "tier",
                  "KV blocks that left a tier to make room.", c,
                  offsetof(struct cache_tier_stats, n_evicted));
    write_by_tier(p, "tarn:kv_blocks_moved_total", "to", "KV blocks that came from another tier.",
                  c, offsetof(struct cache_tier_stats, n_moved_in));
    page_counter(p, "tarn:kv_copies_failed_total",
                 "Copies between tiers that failed: computed again.", c->n_copies_failed);
    page_counter(p, "tarn:kv_tokens_restored_total", "Tokens that preempted requests found again.",
                 c->n_restored_tokens);
    page_head(p, "tarn:kv_saved_seconds_total", "counter",
              "Computing time that found KV has saved, by the cost model.");
    page_sample(p, "tarn:kv_saved_seconds_total", "", c->saved_s);
    write_seconds_by_tier(p, "tarn:kv_tier_saved_seconds_total",
                          "The same by the tier that held the KV, less the time spent reading.", c,
                          false);
    write_seconds_by_tier(p, "tarn:kv_tier_lost_seconds_total",
                          "Time of reads whose KV was not used in the end.", c, true);
    page_gauge(p, "tarn:kv_tree_nodes", "Segments in the tree of prefixes.", c->n_nodes);
    page_gauge(p, "tarn:kv_held_blocks", "KV blocks that requests hold.", c->n_held_blocks);
    page_gauge(p, "tarn:kv_metadata_bytes", "Memory of tree and policy, without the KV.",
               (double)c->memory_bytes);
}

/* Write the count of swapped blocks: moved ahead of time, or while a request waited for them. */
static void write_swaps(struct page *p, const char *name, const char *help, uint64_t n_ahead,
                        uint64_t n_on_demand)
{
    page_head(p, name, "counter", help);
    page_sample(p, name, ",when=\"ahead\"", (double)n_ahead);
    page_sample(p, name, ",when=\"on_demand\"", (double)n_on_demand);
}

static void write_swapping(struct page *p, const struct cache_stats *c)
{
    write_swaps(p, "tarn:kv_blocks_spilled_total",
                "KV blocks moved to host memory, before the room was needed or when it was.",
                c->n_spilled_ahead, c->n_spilled_on_demand);
    write_swaps(p, "tarn:kv_blocks_fetched_total",
                "KV blocks moved back to the device, for a waiting request or for one that runs.",
                c->n_fetched_ahead, c->n_fetched_on_demand);
    page_counter(p, "tarn:kv_blocks_recomputed_total",
                 "KV blocks that were forgotten although somebody waited for them.",
                 c->n_expected_lost);
}

static void write_disk(struct page *p, const struct cache_disk_stats *d)
{
    static const char dropped_name[] = "tarn:kv_disk_records_dropped";
    struct kv_disk_dropped dropped[KV_DISK_N_WHYS];
    char more[32];

    page_counter(p, "tarn:kv_disk_read_bytes_total", "KV read from disk.", d->n_read_bytes);
    page_counter(p, "tarn:kv_disk_written_bytes_total", "KV written to disk.", d->n_written_bytes);
    page_counter(p, "tarn:kv_disk_reads_failed_total", "Reads that failed: computed again.",
                 d->n_reads_failed);
    page_counter(p, "tarn:kv_disk_writes_failed_total", "Writes that failed: not kept.",
                 d->n_writes_failed);
    page_counter(p, "tarn:kv_disk_timeouts_total", "Reads and writes given up after their time.",
                 d->n_timeouts);
    page_counter(p, "tarn:kv_disk_corrupt_total", "Blocks read whose checksum did not hold.",
                 d->n_corrupt);
    page_counter(p, "tarn:kv_disk_not_worth_total",
                 "Requests that computed what could be read, as that was slower.", d->n_not_worth);
    page_counter(p, "tarn:kv_disk_preloaded_blocks_total",
                 "KV blocks read because the server started.", d->n_preloaded_blocks);
    page_gauge(p, "tarn:kv_disk_hung", "1 while the disk does not answer in time.", d->is_hung);
    page_gauge(p, "tarn:kv_disk_read_bytes_per_second",
               "Moving mean of what reads achieve; 0: no read.", d->read_bytes_per_s);
    page_gauge(p, "tarn:kv_disk_index_seconds", "Time to open the directory and enter its records.",
               d->index_s);
    page_gauge(p, "tarn:kv_disk_records_found", "KV blocks that were there at start.", d->n_found);
    kv_disk_dropped(d, dropped);
    page_head(p, dropped_name, "gauge", "Records that were there at start and could not be used.");
    for (int i = 0; i < KV_DISK_N_WHYS; i++) {
        snprintf(more, sizeof more, ",why=\"%s\"", dropped[i].why);
        page_sample(p, dropped_name, more, dropped[i].n);
    }
}

static void write_levels(struct page *p, const struct scheduler_stats *s)
{
    char more[24];

    page_head(p, "tarn:sched_level_requests", "gauge", "Requests by level, 0 is served first.");
    for (uint32_t i = 0; i < s->n_levels; i++) {
        snprintf(more, sizeof more, ",level=\"%u\"", i);
        page_sample(p, "tarn:sched_level_requests", more, s->n_in_level[i]);
    }
    page_head(p, "tarn:sched_level_quantum_seconds", "gauge",
              "Time that a level gives a request before it sinks.");
    for (uint32_t i = 0; i < s->n_levels; i++) {
        snprintf(more, sizeof more, ",level=\"%u\"", i);
        page_sample(p, "tarn:sched_level_quantum_seconds", more, s->quantum_s[i]);
    }
}

/* Write the labels of a candidate of the contest into labels[LABELS_BYTES]. */
static void name_candidate(char *labels, const struct contest_candidate *c)
{
    labels[0] = '\0';
    label_add(labels, LABELS_BYTES, "policy", c->policy);
    label_add(labels, LABELS_BYTES, "variant", c->variant);
}

static void write_contest_results(struct page *p, const struct contest_stats *c)
{
    static const char latency[] = "tarn:sched_contest_normalized_latency_seconds";
    char labels[LABELS_BYTES], with_stat[LABELS_BYTES + 16];

    page_head(p, latency, "gauge",
              "Seconds per output token that each policy would have given the last answers.");
    for (uint32_t i = 0; i < c->n_candidates; i++) {
        const struct contest_figures *f = &c->candidates[i].result.normalized_s;
        name_candidate(labels, &c->candidates[i]);
        snprintf(with_stat, sizeof with_stat, "%s,stat=\"mean\"", labels);
        page_sample(p, latency, with_stat, f->mean);
        snprintf(with_stat, sizeof with_stat, "%s,stat=\"p99\"", labels);
        page_sample(p, latency, with_stat, f->p99);
    }
    page_head(p, "tarn:sched_contest_score_seconds", "gauge",
              "What contests compare: that mean, more where the longest waits are too long.");
    for (uint32_t i = 0; i < c->n_candidates; i++) {
        name_candidate(labels, &c->candidates[i]);
        page_sample(p, "tarn:sched_contest_score_seconds", labels, c->candidates[i].score_s);
    }
}

static void write_contest(struct page *p, const struct engine_stats *st)
{
    const struct contest_stats *c = &st->contest;
    char labels[LABELS_BYTES];

    page_head(p, "tarn:sched_policy", "gauge", "1 for the scheduling policy in force.");
    for (uint32_t i = 0; i < c->n_candidates; i++) {
        const struct contest_candidate *of = &c->candidates[i];
        name_candidate(labels, of);
        page_sample(p, "tarn:sched_policy", labels,
                    strcmp(of->policy, st->scheduler.policy) == 0 &&
                        strcmp(of->variant, st->scheduler.variant) == 0);
    }
    page_counter(p, "tarn:sched_contests_total",
                 "Comparisons of scheduling policies over the last answers.", c->n_contests);
    page_counter(p, "tarn:sched_policy_changes_total",
                 "Changes of the scheduling policy after contests.", c->n_changes);
    if (c->n_contests > 0)
        write_contest_results(p, c);
}

static void write_scheduling(struct page *p, const struct engine_stats *st)
{
    const struct scheduler_stats *s = &st->scheduler;

    write_levels(p, s);
    write_contest(p, st);
    page_gauge(p, "tarn:sched_starvation_seconds", "Wait after which a request goes before others.",
               s->starvation_s);
    /* vllm:num_preemptions_total, divided by the resource that the preempted request gave up. */
    page_head(p, "tarn:preemptions_total", "counter",
              "Running requests put back: others needed a place or KV memory, or a query failed.");
    page_sample(p, "tarn:preemptions_total", ",reason=\"place\"", (double)s->n_preempted_for_place);
    page_sample(p, "tarn:preemptions_total", ",reason=\"memory\"",
                (double)s->n_preempted_for_memory);
    page_sample(p, "tarn:preemptions_total", ",reason=\"query\"", (double)st->n_query_preemptions);
    page_counter(p, "tarn:starvation_boosts_total", "Times that a request went first for its wait.",
                 s->n_starving);
    page_counter(p, "tarn:demotions_total", "Times that a request sank to a lower level.",
                 s->n_demoted);
    page_counter(p, "tarn:plans_ahead_total", "Steps planned while the one before ran.",
                 st->n_plans_ahead);
    page_counter(p, "tarn:async_steps_total",
                 "Steps that a GPU got before it had ended the one before.", st->n_async_steps);
    page_counter(p, "tarn:graph_steps_total", "Steps that a GPU replayed from a recording.",
                 st->n_graph_steps);
    page_counter(p, "tarn:mask_waits_total",
                 "Tokens that waited for a step or more until the mask of their form was computed.",
                 st->n_mask_waits);
    page_gauge(p, "tarn:cost_model_relative_error",
               "Moving mean of |expected - seen| / seen of the time of steps.", st->cost_error);
    page_histogram(p, "tarn:step_seconds", "From a step's plan to its tokens.", &st->step_s);
    page_histogram(p, "tarn:step_gap_seconds",
                   "Between two steps, when the device did not compute.", &st->gap_s);
}

static void write_ours(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    write_kv(p, st);
    write_swapping(p, &st->cache);
    write_disk(p, &st->cache.disk);
    write_scheduling(p, st);
    page_counter(p, "tarn:steps_total", "Batches run through the model.", st->n_steps);
    page_gauge(p, "tarn:draining", "1 while the server is shutting down.",
               atomic_load(&srv->draining));
}

static void write_all(struct page *p, struct server *srv)
{
    struct engine_stats st;

    engine_stats(srv->engine, &st);
    write_gauges(p, srv, &st);
    write_responses(p, srv);
    write_counters(p, &st);
    write_drafts(p, srv, &st);
    write_histograms(p, srv, &st);
    write_ours(p, srv, &st);
    if (st.cache.n_tiers > CACHE_REMOTE)
        metrics_write_pool(p, &st.cache);
    metrics_write_estimates(p, &st);
    metrics_write_documents(p, srv);
    metrics_write_searches(p, srv);
    metrics_write_embeddings(p, srv);
    metrics_write_classes(p, srv, &st);
    metrics_write_routers(p, srv);
    metrics_write_adapters(p, srv);
    metrics_write_http(p, srv);
    metrics_write_process(p, srv);
}

/* Whether the caller may see the page; if not, the error was answered. *all: the whole page, as for
 * an admin key, not only the lines of its own key. */
static bool check_caller(struct server *srv, struct http_exchange *x, const struct account *asks,
                         bool *all)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = caller_check_admin(srv, asks, &why);
    *all = s == OK;
    bool may = s == OK || auth_needs_key(srv->auth);
    if (!may)
        error_reply(x, s, NULL, buf_str(&why));
    buf_fini(&why);
    return may;
}

void api_metrics(struct server *srv, struct http_exchange *x)
{
    const struct account *asks = caller_account(x);
    struct buf body;
    struct page p;
    bool all;

    if (check_caller(srv, x, asks, &all)) {
        buf_init(&body, BODY_BYTES_MAX);
        page_begin(&p, &body, srv->model_names[0]);
        if (all)
            write_all(&p, srv);
        metrics_write_tenants(&p, srv, asks, all);
        if (p.w.status == OK)
            http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
        else
            error_reply(x, p.w.status, NULL, "out of memory");
        buf_fini(&body);
    }
}
