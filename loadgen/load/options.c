#include "loadgen/load/options.h"

#include <string.h>

#include "base/check.h"
#include "base/option_rows.h"
#include "engine/settings.h"
#include "loadgen/load/options_inner.h"

#define OPTIONS_OF struct options
#define SERVER_GROUP "Server"
#define REQUESTS_GROUP "Requests"
#define COMPARE_GROUP "tarn-loadgen compare"
#define SIM_GROUP "tarn-loadgen sim"
#define IGNORED_GROUP "Accepted without effect"

static const struct option_row rows[] = {
    TEXT(SERVER_GROUP, "url", url, "", "URL", "http(s)://host:port, with or without /v1"),
    TEXT(NULL, "host", host, "127.0.0.1", "HOST", "with --port, instead of --url"),
    COUNT(NULL, "port", port, 1, 65535, "8000", "see --host"),
    TEXT(NULL, "uds", unix_path, "", "PATH", "Unix socket of the server"),
    TEXT(NULL, "model", model, "", "NAME", "default: the first of /v1/models"),
    TEXT(NULL, "served-model-name", served_model, "", "NAME",
         "the name that requests carry, where it is not --model"),
    TEXT(NULL, "endpoint", endpoint, "", "PATH",
         "chat or completions, or its path: /v1/chat/completions, /v1/completions; default: that "
         "of --backend, else chat; completions with token ids"),
    CHOICE(NULL, "backend", backend, "", "openai|openai-chat|vllm",
           "vLLM's name of the endpoint: openai-chat is chat, the others are completions"),
    TEXT(NULL, "tokenizer", tokenizer, "", "NAME",
         "goes into the result as tokenizer_id; only the server counts tokens"),
    TEXT(NULL, "api-key", api_key, "", "KEY", "default: $OPENAI_API_KEY"),
    TEXT(NULL, "admin-api-key", admin_api_key, "", "KEY", "for DELETE /cache; default: --api-key"),
    LIST(NULL, "header", headers, "'NAME: VALUE'", "one more header of every request"),
    TEXT(NULL, "ca-file", ca_file, "", "FILE", "authorities for https (PEM)"),
    BOOL(NULL, "insecure", insecure, "false", "accept any certificate"),
    BOOL(NULL, "fresh-connections", fresh_connections, "false", "a new connection per request"),
    NUMBER(NULL, "ready-timeout", ready_timeout_s, 0, 86400, "10", "S",
           "how long to wait for the server to become ready"),
    NUMBER(NULL, "request-timeout", request_timeout_s, 0, 86400, "21600", "S",
           "time limit of a request; 0: none"),

    CHOICE("Workload", "workload", workload, "random",
           "random|lengths|prefix|multiturn|rag|mix|trace|file", "kind of requests"),
    CHOICE(NULL, "dataset-name", dataset_name, "",
           "random|prefix_repetition|sharegpt|custom|timed_trace",
           "vLLM's name of a workload, with vLLM's defaults; sharegpt, custom and timed_trace "
           "read --dataset-path"),
    TEXT(NULL, "input-len", input_len, "", "DIST",
         "tokens of a prompt (or of a turn, a question): N, constant:N, uniform:A:B, "
         "lognormal:MEAN:CV, 80%X+20%Y (a mixture of two), X/N/Y (Y from request N on); default "
         "1024, multiturn 128, rag 32"),
    TEXT(NULL, "output-len", output_len, "", "DIST", "tokens to generate; default 128"),
    NUMBER(NULL, "range-ratio", range_ratio, 0, 1, "0", "R",
           "constant lengths become uniform in [N(1-R), N(1+R)]"),
    TEXT(NULL, "data", data, "", "PATH", "file or directory of lengths, rag, trace, file"),
    BOOL(NULL, "shuffle", shuffle, "true",
         "sharegpt, custom, rag: in an order drawn by the seed, not in the data's"),
    BOOL(NULL, "oversample", oversample, "true",
         "sharegpt, custom: repeat rows where --count is larger than the data"),
    BOOL(NULL, "self-timed", self_timed, "true",
         "timed_trace: at the trace's times, instead of --rate"),
    TEXT(NULL, "prefix-len", prefix_len, "", "DIST",
         "prefix: tokens of a shared prefix (256); random: one prefix for all"),
    COUNT(NULL, "num-prefixes", n_prefixes, 1, 1e7, "10", "prefix: how many"),
    TEXT(NULL, "turns", turns, "uniform:2:6", "DIST", "multiturn: turns of a conversation"),
    NUMBER(NULL, "think-time", think_s, 0, 86400, "1", "S",
           "multiturn: mean pause before the next turn"),
    NUMBER(NULL, "think-cv", think_cv, 0, 100, "0", "CV",
           "multiturn: the pauses are log-normal with this CV; 0: exponential"),
    BOOL(NULL, "finish-conversations", finish_conversations, "false",
         "multiturn: send all turns of what began, also beyond --count and --duration"),
    CHOICE(NULL, "history", history, "made", "made|real",
           "multiturn: earlier answers in later turns; made ones keep runs identical"),
    TEXT(NULL, "system-len", system_len, "", "DIST", "multiturn, rag: a shared system prompt"),
    COUNT(NULL, "num-documents", n_documents, 0, 1e7, "0",
          "rag: of the data, the first so many (0: all); without data 1000 made ones"),
    TEXT(NULL, "document-len", document_len, "256", "DIST", "rag without data: their tokens"),
    COUNT(NULL, "docs-per-request", n_retrieved, 1, 64, "2", "rag: documents of a request"),
    CHOICE(NULL, "retrieval", retrieval, "list", "list|draw",
           "rag: take the data's lists, or draw documents one by one"),
    CHOICE(NULL, "popularity", popularity, "measured", "measured|zipf",
           "rag: as in the data, or by --zipf"),
    NUMBER(NULL, "zipf", zipf, 0, 10, "", "A",
           "exponent of popularity; default: rag 1, prefix 0 (all equal)"),
    CHOICE(NULL, "document-order", document_order, "kept", "kept|shuffled",
           "rag: as retrieved, or shuffled per request"),
    CHOICE(NULL, "documents-as", documents_as, "", "field|text",
           "our `documents` field, or plain text in the same order; default: field on chat"),
    CHOICE(NULL, "trace-format", trace_format, "auto",
           "auto|mooncake|azure|ragpulse|timed_trace|csv", "trace: how to read --data"),
    NUMBER(NULL, "trace-speed", trace_speed, 1e-6, 1e6, "1", "X",
           "trace: speed, as a multiple of the recorded one"),
    COUNT(NULL, "trace-block", trace_block, 0, 1e6, "0",
          "trace: tokens that a hash id names; default: 512, of timed_trace 16"),
    NUMBER(NULL, "trace-time-unit", trace_unit_s, 0, 1e6, "0", "S",
           "trace: seconds that 1 in a timestamp is; default: 0.001, of timed_trace 1"),
    CHOICE(NULL, "trace-order", trace_order, "given", "given|reuse",
           "ragpulse: reuse moves the per-request third of the system prompt behind the passages"),
    LIST(NULL, "tenant", tenants, "SPEC",
         "a class of clients: name=N,share=0.7,priority=0,input=DIST,output=DIST and limits in ms "
         "(ttft=, tpot=, e2el=, normalized=), key=KEY"),
    COUNT(NULL, "max-input-len", max_input_len, 0, DIST_MAX, "0", "cut longer; 0: no limit"),
    COUNT(NULL, "max-output-len", max_output_len, 0, DIST_MAX, "0", "cut longer; 0: no limit"),
    NUMBER(NULL, "scale-input", scale_input, 1e-6, 1e6, "1", "X", "all input lengths times X"),
    NUMBER(NULL, "scale-output", scale_output, 1e-6, 1e6, "1", "X", "all output lengths times X"),
    NUMBER(NULL, "disconnect-rate", disconnect_rate, 0, 1, "0", "SHARE",
           "share of clients that hang up during their answer"),
    NUMBER(NULL, "slow-rate", slow_rate, 0, 1, "0", "SHARE", "share of clients that read slowly"),
    NUMBER(NULL, "slow-pause", slow_pause_s, 0.001, 3600, "1", "S",
           "pause of a slow reader after each piece"),
    TEXT(NULL, "seed", seed, "", "N", "equal seeds make equal requests; default: another each run"),

    TEXT("Arrivals and length", "rate", rate, "", "R",
         "requests (or conversations) per second, open loop; inf: all at once"),
    CHOICE(NULL, "arrival", arrival, "", "poisson|gamma|constant|trace|closed",
           "default: the data's times for trace, poisson with --rate, closed with --concurrency; "
           "trace with --rate or --load: the data's times, scaled to that mean rate"),
    NUMBER(NULL, "burstiness", burstiness, 1e-6, 1e6, "1", "B",
           "shape of the gaps: 1 Poisson, below 1 in bursts, above 1 more even"),
    CHOICE(NULL, "ramp-up-strategy", ramp, "", "linear|exponential",
           "the rate goes from --ramp-up-start-rps to --ramp-up-end-rps"),
    NUMBER(NULL, "ramp-up-start-rps", ramp_start, 0, 1e6, "0", "R", "see --ramp-up-strategy"),
    NUMBER(NULL, "ramp-up-end-rps", ramp_end, 0, 1e6, "0", "R", "see --ramp-up-strategy"),
    NUMBER(NULL, "ramp-up-time", ramp_s, 0, 1e9, "0", "S",
           "how long the ramp takes; default: --warmup and --duration"),
    COUNT(NULL, "concurrency", concurrency, 0, 1e6, "0",
          "closed loop: requests (or conversations) at any time; with --rate a limit"),
    COUNT(NULL, "count", count, 0, 1e12, "0",
          "measured requests; default 1000 without --duration, or all of the data"),
    NUMBER(NULL, "duration", duration_s, 0, 1e9, "0", "S", "seconds in which requests are sent"),
    NUMBER(NULL, "warmup", warmup_s, 0, 1e9, "0", "S",
           "requests of the first S seconds do not count"),
    NUMBER(NULL, "drain", drain_s, 0, 1e9, "0", "S",
           "seconds for what is in flight at the end; 0: until all is answered"),

    CHOICE(REQUESTS_GROUP, "prompt-format", prompt_format, "text", "text|ids",
           "prompts as text, or as token ids (completions)"),
    TEXT(NULL, "token-ids", token_ids, "300:500", "LO:HI", "ids are drawn from [LO, HI)"),
    CHOICE(NULL, "calibrate", calibrate, "auto", "auto|off",
           "learn how many tokens a word is: from /tokenize, else from two requests"),
    BOOL(NULL, "ignore-eos", ignore_eos, "false", "generate all of --output-len"),
    TEXT(NULL, "temperature", temperature, "0", "T", "none: not sent"),
    TEXT(NULL, "top-p", top_p, "none", "P", "none: not sent"),
    TEXT(NULL, "top-k", top_k, "none", "K", "none: not sent"),
    TEXT(NULL, "min-p", min_p, "none", "P", "none: not sent"),
    TEXT(NULL, "frequency-penalty", frequency_penalty, "none", "X", "none: not sent"),
    TEXT(NULL, "presence-penalty", presence_penalty, "none", "X", "none: not sent"),
    TEXT(NULL, "repetition-penalty", repetition_penalty, "none", "X", "none: not sent"),
    TEXT(NULL, "sampling-seed", sampling_seed, "none", "N", "seed of each request; none: not sent"),
    BOOL(NULL, "send-session-id", send_session, "false", "send session_id (an extension)"),
    TEXT(NULL, "extra-body", extra_body, "", "JSON", "members added to each request"),

    LIST("Checks and reports", "goodput", slo, "METRIC:MS...",
         "limits of a good request: ttft, tpot, e2el, normalized; also --slo"),
    NUMBER(NULL, "verify", verify, 0, 1, "0", "SHARE",
           "send this share again alone, cold and warm, and compare the texts (temperature 0)"),
    TEXT(NULL, "percentile-metrics", percentile_metrics, "ttft,tpot,itl", "LIST",
         "in the table: ttft, tpot, itl, e2el"),
    TEXT(NULL, "metric-percentiles", metric_percentiles, "99", "LIST", "in the table"),
    TEXT(NULL, "json", json_file, "", "FILE", "the result, with vLLM's field names; - is stdout"),
    TEXT(NULL, "csv", csv_file, "", "FILE", "the same in one line (and a header, when it is new)"),
    TEXT(NULL, "raw", raw_file, "", "FILE", "each request with the time of each token, JSON lines"),
    BOOL(NULL, "save-result", save_result, "false",
         "write the result to a file with vLLM's name: BACKEND-RATEqps-MODEL-DATE.json"),
    TEXT(NULL, "result-dir", result_dir, "", "DIR", "directory of that file; made if absent"),
    TEXT(NULL, "result-filename", result_filename, "", "FILE", "another name of that file"),
    BOOL(NULL, "save-detailed", save_detailed, "false",
         "per-request lists in the result, as vLLM's"),
    BOOL(NULL, "append-result", append_result, "false",
         "add a line to the file instead of replacing it; without --json it means --save-result"),
    TEXT(NULL, "label", label, "", "TEXT",
         "goes into the result, and in place of the backend into --save-result's file name"),
    LIST(NULL, "metadata", metadata, "K=V", "goes into the result"),
    BOOL(NULL, "progress", progress, "true", "a line on a terminal while it runs"),
    BOOL(NULL, "quiet", quiet, "false", "no table"),

    TEXT(COMPARE_GROUP, "a", url_a, "", "URL", "the first server"),
    TEXT(NULL, "b", url_b, "", "URL", "the second; ratios are B / A"),
    TEXT(NULL, "name-a", name_a, "A", "NAME", "what the table calls it"),
    TEXT(NULL, "name-b", name_b, "B", "NAME", "what the table calls it"),
    TEXT(NULL, "api-key-b", api_key_b, "", "KEY", "of the second; default: --api-key"),
    CHOICE(NULL, "documents-as-b", documents_as_b, "text", "field|text",
           "of the second (compare's default for the first is text too)"),
    COUNT(NULL, "block", block, 0, 1e9, "0",
          "requests that go to one server, then to the other, in alternating order; default: "
          "--concurrency, or a fourth of --count at a rate"),
    CHOICE(NULL, "interleave", interleave, "blocks", "blocks|requests",
           "blocks in turn, or (at a rate, servers that share no machine) each request to both"),

    TEXT(SIM_GROUP, "scheduling-policy", scheduling_policy, DEFAULT_SCHEDULING_POLICY, "NAME",
         "as tarn-server's, also auto; a wrong name lists them"),
    COUNT(NULL, "max-num-seqs", n_seqs_max, 1, 4096, SETTING_TEXT(DEFAULT_MAX_NUM_SEQS),
          "sequences that run in one step"),
    COUNT(NULL, "max-num-batched-tokens", n_batched_tokens_max, 1, 1 << 20,
          SETTING_TEXT(DEFAULT_MAX_NUM_BATCHED_TOKENS), "tokens of one step"),
    NUMBER(NULL, "max-step-ms", max_step_ms, 0, 3600000, SETTING_TEXT(DEFAULT_GPU_STEP_MS), "MS",
           "prompts are cut so that a step takes no longer; 0: only tokens cut them"),
    COUNT(NULL, "max-num-queued-reqs", n_queued_max, 0, 1 << 20,
          SETTING_TEXT(DEFAULT_MAX_NUM_QUEUED_REQS),
          "requests that may wait for their first step; one more gets 429; 0: no limit"),
    TEXT(NULL, "cost-model", cost_model, "", "FILE",
         "what steps cost, as tarn-server measured it; default: OPT-13B on an A100"),
    NUMBER(NULL, "step-overhead-us", step_overhead_us, 0, 1e9, "0", "US",
           "of the host, before each step"),
    NUMBER(NULL, "load", load, 0, 100, "0", "X",
           "rate as a multiple of the instances' capacity, which is measured first (all at once, "
           "fcfs); instead of --rate"),
    NUMBER(NULL, "quantum-ms", quantum_ms, 0, 3600000, "0", "MS",
           "time that the top level of an MLFQ gives a request; 0: that of a decode step"),
    NUMBER(NULL, "level-ratio", level_ratio, 1.1, 16, SETTING_TEXT(DEFAULT_LEVEL_RATIO), "X",
           "time of an MLFQ level, as a multiple of the level above"),
    TEXT(NULL, "starvation-ms", starvation_ms, "0", "MS",
         "a request that has not run for this time goes first; inf: never; 0: never with the "
         "variant "
         "learned, else 3000, or 100 decode steps where that is longer"),
    CHOICE(NULL, "mlfq-variant", mlfq_variant, DEFAULT_MLFQ_VARIANT, "tarn|paper|released|learned",
           "MLFQs as tuned here, as in FastServe's paper, or as in its authors' code; learned: "
           "skip-join-mlfq with ranks learned from the lengths of answers"),
    CHOICE(NULL, "latency-objective", latency_objective, DEFAULT_LATENCY_OBJECTIVE,
           LATENCY_OBJECTIVE_NAMES,
           "latency that learned ranks minimize: per token, or end-to-end"),
    NUMBER(NULL, "age-boost-ms", age_boost_ms, 0, 24 * 3600000.0, "0", "MS",
           "learned ranks: time constant of ageing; 0: learned from the backlog"),
    COUNT(NULL, "cache-reorder-window", cache_reorder_window, 0, 256,
          SETTING_TEXT(DEFAULT_CACHE_REORDER_WINDOW),
          "a waiting request with more of its prompt cached goes before at most this many others "
          "of the same level; 0: off"),
    BOOL(NULL, "estimates", estimates, "false",
         "predict the first token and the end of each request as the server does, and report how "
         "far off the predictions are"),
    COUNT(NULL, "background-documents", background_documents, 0, 1 << 24, "0",
          "documents that are prefilled in the background meanwhile"),
    COUNT(NULL, "background-tokens", background_tokens, 1, 1 << 20, "740", "tokens of each"),
    SIZE(NULL, "kv-bytes-per-token", kv_bytes_per_token, 4, 1 << 30, "819200",
         "KV of a token, all layers; default: OPT-13B's"),
    SIZE(NULL, "kv-device-bytes", kv_device_bytes, 1, UINT64_C(1) << 44, "12G",
         "device memory of an instance for KV"),
    SIZE(NULL, "kv-host-bytes", kv_host_bytes, 0, UINT64_C(1) << 44, "48G",
         "host memory of an instance for KV"),
    COUNT(NULL, "kv-reserve-blocks", kv_reserve_blocks, 0, UINT32_MAX, "0",
          "KV blocks kept free for new requests; 0: chosen by need"),
    NUMBER(NULL, "kv-prefetch-share", kv_prefetch_share, 0, 1,
           SETTING_TEXT(DEFAULT_KV_PREFETCH_SHARE), "SHARE",
           "of device memory, that waiting requests may fetch into"),
    CHOICE(NULL, "kv-swap", kv_swap, DEFAULT_KV_SWAP, "proactive|reactive|recompute|off",
           "swap KV to the host and back ahead of need, or only when room is needed; without host "
           "memory: compute evicted KV again, or admit only requests that fit to their end"),
    BOOL(NULL, "prefix-caching", prefix_caching, "true", "requests with equal beginnings share KV"),
    TEXT(NULL, "cache-policy", cache_policy, DEFAULT_CACHE_POLICY, "NAME",
         "eviction policy, as tarn-server's; a wrong name lists them"),
    SIZE(NULL, "copy-in-bytes-per-s", copy_in_bytes, 1, UINT64_C(1) << 50, "12000000000",
         "host to device"),
    SIZE(NULL, "copy-out-bytes-per-s", copy_out_bytes, 1, UINT64_C(1) << 50, "12000000000",
         "device to host"),
    NUMBER(NULL, "search-ms", search_ms, 0, 3600000, "0", "MS",
           "each request first waits so long for the search that finds its documents"),
    COUNT(NULL, "search-stages", n_search_stages, 1, 1000, "4",
          "equal parts of a search; each but the last has a provisional list"),
    NUMBER(
        NULL, "search-final", search_final, 0, 1, "1", "SHARE",
        "of a search, after which its list is the final one; earlier lists have other documents"),
    CHOICE(NULL, "speculative-prefill", speculative_prefill, "auto", "auto|off",
           "prefill the documents of provisional lists"),
    COUNT(NULL, "instances", n_instances, 1, 1024, "1", "simulated servers"),
    CHOICE(NULL, "routing", routing, "least-loaded",
           "least-loaded|round-robin|session|random|hash|precise",
           "which instance a request goes to; precise knows all caches"),
    COUNT(NULL, "routing-hash-tokens", hash_tokens, 1, 1 << 20, "512",
          "hash: tokens at the beginning of a prompt that choose the instance"),
    NUMBER(NULL, "routing-hash-factor", hash_factor, 0, 100, "0", "X",
           "hash: instances with more than X times the mean number of requests are passed over; "
           "0: never"),
    CHOICE(NULL, "instance-model", instance_model, "real", "real|light",
           "the engine's scheduler and cache, or a light model for many instances"),
    BOOL(NULL, "pool", pool, "false", "light instances share KV"),
    SIZE(NULL, "link-bytes-per-s", link_bytes, 1, UINT64_C(1) << 50, "50000000000",
         "pool: rate at which an instance sends, and receives"),
    NUMBER(NULL, "link-us", link_us, 0, 1e6, "10", "US", "pool: latency of a link"),
    NUMBER(NULL, "pool-lookup-ms", pool_lookup_ms, 0, 3600000, "50", "MS",
           "pool: a lookup that takes longer found nothing"),
    NUMBER(NULL, "directory-delay-ms", directory_ms, 0, 3600000, "20", "MS",
           "pool: until others learn of new and evicted KV"),
    NUMBER(NULL, "directory-us", directory_us, 0, 1e6, "2.5", "US",
           "pool: the directory's time for a command"),
    CHOICE(NULL, "pool-query", pool_query, "auto", "auto|never|always",
           "pool: send queries to KV of others instead of reading it"),
    SIZE(NULL, "pool-query-bytes", query_bytes, 0, UINT64_C(1) << 40, "2129920",
         "pool: bytes of one row's tile of a segment, all layers"),
    COUNT(NULL, "pool-query-layers", query_layers, 1, 1024, "64", "pool: layers of the model"),
    NUMBER(NULL, "balance-ms", balance_ms, 0, 3600000, "100", "MS",
           "pool: period of background copies; 0: none"),
    NUMBER(NULL, "balance-share", balance_share, 0, 1, "0.05", "SHARE",
           "pool: of the links' rate, for background copies"),
    BOOL(NULL, "elastic", elastic, "false",
         "pool: idle instances compute parts of others' prompts"),
    NUMBER(NULL, "fail-at", fail_at_s, 0, 1e9, "0", "S", "instance 0 dies; 0: never"),
    NUMBER(NULL, "join-at", join_at_s, 0, 1e9, "0", "S", "instance 0 comes back, empty"),
    BOOL(NULL, "token-times", token_times, "true",
         "keep the time of each token, 8 bytes each: without, there is no ITL"),

    /* vLLM's tool loads a tokenizer as these say. There is none here: the server renders chat
     * templates and counts tokens. */
    TEXT(IGNORED_GROUP, "tokenizer-mode", ignored, "", NULL, NULL),
    SWITCH(NULL, "trust-remote-code", ignored_switch, NULL),
    SWITCH(NULL, "skip-tokenizer-init", ignored_switch, NULL),
    SWITCH(NULL, "skip-chat-template", ignored_switch, NULL),
};

_Static_assert(ARRAY_SIZE(rows) <= N_OPTIONS_MAX, "struct options has a place for each");

/* Other words for the same. */
static const char *const aliases[][2] = {
    {"base-url", "url"},
    {"num-prompts", "count"},
    {"request-rate", "rate"},
    {"max-concurrency", "concurrency"},
    {"random-input-len", "input-len"},
    {"random-output-len", "output-len"},
    {"random-range-ratio", "range-ratio"},
    {"random-prefix-len", "prefix-len"},
    {"prefix-repetition-prefix-len", "prefix-len"},
    {"prefix-repetition-suffix-len", "input-len"},
    {"prefix-repetition-num-prefixes", "num-prefixes"},
    {"prefix-repetition-output-len", "output-len"},
    {"dataset-path", "data"},
    {"ready-check-timeout-sec", "ready-timeout"},
    {"slo", "goodput"},
    {"out", "json"},
    {"timed-trace-chunk-hash-size", "trace-block"},
    {"timed-trace-sec-multiplier", "trace-time-unit"},
    {"swap", "kv-swap"},
    {"custom-output-len", "output-len"},
    {"sharegpt-output-len", "output-len"},
    {"disable-shuffle", "no-shuffle"},
    {"disable-tqdm", "no-progress"},
};

static const char *group_of(const struct option_row *row)
{
    while (!row->group)
        row--;
    return row->group;
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Refuse options of a server in a simulation, and options of the simulated server elsewhere. */
static enum status check_mode(const void *options, const struct option_row *row, const char *text,
                              const char *source, struct buf *why)
{
    static const char *const sim_too[] = {"ignore-eos", "send-session-id"};
    static const char *const live_only[] = {"verify", "documents-as", "slow-pause"};
    const struct options *o = options;
    const char *group = group_of(row);
    bool is_sim = strcmp(group, SIM_GROUP) == 0;
    bool is_live = is_one_of(row->name, live_only, ARRAY_SIZE(live_only)) ||
                   ((strcmp(group, SERVER_GROUP) == 0 || strcmp(group, REQUESTS_GROUP) == 0 ||
                     strcmp(group, COMPARE_GROUP) == 0) &&
                    !is_one_of(row->name, sim_too, ARRAY_SIZE(sim_too)));

    (void)text;
    if (o->sim && is_live)
        return buf_why(why, ERR_INVALID, "%s: asks a server; `tarn-loadgen sim` has none", source);
    if (!o->sim && is_sim)
        return buf_why(why, ERR_INVALID, "%s: belongs to `tarn-loadgen sim`; a server has its own",
                       source);
    return OK;
}

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
    .given = OPTION_AT(given),
    .aliases = aliases,
    .n_aliases = ARRAY_SIZE(aliases),
    .check = check_mode,
};

bool options_was_given(const struct options *o, const char *name)
{
    const struct option_row *row = option_table_find(&table, name);

    return row && o->given[row - rows];
}

enum status options_load(struct options *o, int argc, char **argv, struct buf *why)
{
    int first = 1;

    memset(o, 0, sizeof *o);
    o->zipf = -1;
    enum status s = option_table_presets(&table, o, why);
    if (argc > 1 && (strcmp(argv[1], "compare") == 0 || strcmp(argv[1], "sim") == 0)) {
        *(argv[1][0] == 'c' ? &o->compare : &o->sim) = true;
        first = 2;
    } else if (argc > 1 && strcmp(argv[1], "run") == 0) {
        first = 2;
    }
    if (s == OK)
        s = option_table_read_args(&table, o, argc, argv, first, why);
    if (s != OK || o->want_help || o->want_version)
        return s;
    s = options_apply_vllm(o, why);
    return s == OK ? options_resolve(o, why) : s;
}

void options_fini(struct options *o)
{
    option_table_fini(&table, o);
    memset(o, 0, sizeof *o);
}

void options_name_options(struct buf *why)
{
    option_table_name_options(&table, why);
}

void options_print_help(FILE *f)
{
    fputs("tarn-loadgen --url URL [options]\n"
          "tarn-loadgen compare --a URL --b URL [options]\n"
          "tarn-loadgen sim [options]\n\n"
          "Asks an OpenAI-style server many things at once and measures how long it takes.\n"
          "  tarn-loadgen --url http://127.0.0.1:8000 --rate 5 --duration 60 --warmup 10\n"
          "  tarn-loadgen --concurrency 16 --count 500 --input-len lognormal:300:1\n"
          "  tarn-loadgen --workload rag --data loadgen/data/rag --rate 2 --count 100\n"
          "  tarn-loadgen sim --load 0.9 --count 4000 --input-len 161 --output-len 338\n"
          "Latencies count from the time at which a request should have been sent. Flags of\n"
          "vllm bench serve work too. Every --name V is also --name=V. Defaults are in [ ].\n"
          "Exit status: 0, 1 when it could not run or no request succeeded, 2 for a wrong option,\n"
          "3 when --verify found other texts.\n",
          f);
    option_table_help(&table, f);
    fputs("\nOther words: ", f);
    for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
        fprintf(f, "%s--%s = --%s",
                i == 0  ? ""
                : i % 2 ? ", "
                        : ",\n  ",
                aliases[i][0], aliases[i][1]);
    fputs("\nAccepted without effect, since no tokenizer is loaded here:\n ", f);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!rows[i].help)
            fprintf(f, " --%s%s", rows[i].name, i + 1 < ARRAY_SIZE(rows) ? "," : "\n");
}
