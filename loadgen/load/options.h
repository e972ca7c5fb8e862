/* options.h - the command line of tarn-loadgen.
 *
 * An option of `vllm bench serve` has the same meaning here; where the name differs, vLLM's is an
 * alias (--num-prompts is --count, --request-rate is --rate, ...).
 *
 * Owns    copies of all texts: options_fini().
 * Thread  filled on the main thread, read-only after.
 * Errors  ERR_INVALID with words that name the option (option_table.h).
 * Units   seconds, tokens, requests per second. */
#ifndef TARN_LOADGEN_LOAD_OPTIONS_H
#define TARN_LOADGEN_LOAD_OPTIONS_H

#include <stdio.h>

#include "base/option_table.h"
#include "loadgen/load/metrics.h"
#include "loadgen/load/workload.h"

#define N_OPTIONS_MAX 192

struct options {
    /* server */
    char *url, *url_a, *url_b, *host, *unix_path;
    uint64_t port;
    char *api_key, *admin_api_key, *model, *served_model, *tokenizer;
    char *endpoint; /* after options_load(): "chat", "completions" or "" */
    char *backend;
    char *ca_file;
    bool insecure, fresh_connections;
    struct option_list headers;
    double ready_timeout_s, request_timeout_s;
    /* arrivals and length */
    char *workload, *rate, *arrival, *ramp;
    double burstiness, ramp_start, ramp_end, ramp_s;
    uint64_t concurrency, count;
    double duration_s, warmup_s, drain_s;
    char *seed;
    /* workload */
    char *input_len, *output_len, *prefix_len, *system_len, *document_len, *turns;
    double range_ratio;
    uint64_t max_input_len, max_output_len;
    double scale_input, scale_output;
    char *dataset_name; /* vLLM's name of a workload */
    bool shuffle, oversample, self_timed;
    char *data, *trace_format, *trace_order;
    uint64_t trace_block;
    double trace_speed, trace_unit_s;
    uint64_t n_prefixes, n_documents, n_retrieved;
    double think_s, think_cv, zipf;
    bool finish_conversations;
    char *history, *popularity, *retrieval, *document_order, *documents_as;
    struct option_list tenants;
    double disconnect_rate, slow_rate, slow_pause_s;
    /* requests */
    char *prompt_format, *token_ids, *calibrate, *temperature, *top_p;
    char *top_k, *min_p, *frequency_penalty, *presence_penalty, *repetition_penalty;
    char *extra_body; /* after options_load(): with the five above */
    bool ignore_eos, send_session;
    char *sampling_seed;
    /* checks and reports */
    struct option_list slo;
    double verify;
    char *percentile_metrics, *metric_percentiles;
    char *json_file, *csv_file, *raw_file, *label;
    struct option_list metadata;
    char *result_dir, *result_filename;
    bool save_result, save_detailed, append_result, progress, quiet;
    /* compare */
    uint64_t block;
    char *interleave;
    char *name_a, *name_b, *api_key_b, *documents_as_b;

    /* sim */
    char *scheduling_policy, *mlfq_variant, *latency_objective, *cost_model, *starvation_ms,
        *kv_swap, *routing, *cache_policy, *speculative_prefill;
    uint64_t n_seqs_max, n_batched_tokens_max, n_queued_max, n_instances;
    double max_step_ms, step_overhead_us, quantum_ms, level_ratio, load;
    bool prefix_caching, token_times, estimates;
    uint64_t kv_bytes_per_token, kv_device_bytes, kv_host_bytes, kv_reserve_blocks;
    uint64_t cache_reorder_window, background_documents, background_tokens;
    uint64_t copy_in_bytes, copy_out_bytes; /* per second */
    double kv_prefetch_share;
    double search_ms, search_final;
    uint64_t n_search_stages;
    char *instance_model, *pool_query;
    bool pool, elastic;
    uint64_t hash_tokens, link_bytes, query_bytes, query_layers;
    double hash_factor, link_us, pool_lookup_ms, directory_ms, directory_us, balance_ms,
        balance_share;
    double fail_at_s, join_at_s;

    char *ignored; /* options that have no effect */
    bool ignored_switch;

    bool compare, sim; /* the subcommand */
    bool want_help, want_version;
    bool given[N_OPTIONS_MAX]; /* by the user; options_was_given() */

    /* made of the above by options_load() */
    struct workload_config config;
    bool closed;
    struct percents percents;
    double age_boost_ms;
    double starvation_s; /* sim: 0: the scheduler's own; INFINITY: never */
};

NODISCARD enum status options_load(struct options *o, int argc, char **argv, struct buf *why);
void options_fini(struct options *o);
void options_print_help(FILE *f);
/* Replace each {some_name} in a message of the engine by --some-name. */
void options_name_options(struct buf *why);
/* Whether the command line has the option; `name` is the one that --help lists. */
bool options_was_given(const struct options *o, const char *name);

#endif
