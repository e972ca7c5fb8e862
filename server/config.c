#include "server/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/option_rows.h"
#include "cache/cache.h"
#include "engine/sched/contest.h"
#include "engine/sched/drafting.h"
#include "engine/sched/scheduler.h"
#include "engine/settings.h"
#include "engine/text/reasoning.h"
#include "engine/text/tool_format.h"

#define VARIABLES "TARN_"
#define VARIABLE_SHOWN_MAX 64
#define POOL_NAME_MAX 32
#define INSTANCE_NAME_MAX 63
#define HOUR_MS 3600000.0
#define OBJECTIVE_MAX 1000000 /* a priority, either sign */
#define OPTIONS_OF struct config
#define DTYPE_ALIASES "|float32=f32|float=f32|bfloat16=bf16|float16=f16|half=f16"

static const struct option_row rows[] = {
    TEXT("Model", "model", model, "", "MODEL",
         "directory in Hugging Face layout, .gguf file, or org/name[@rev][:FILE.gguf] in the local "
         "Hugging Face cache"),
    BOOL(NULL, "download", download, "false",
         "get --model, --embedding-model and --rerank-model from huggingface.co (or HF_ENDPOINT) "
         "into the cache if "
         "they are not there"),
    CHOICE(NULL, "inspect", inspect, "off", "off|text|json",
           "print what --model is, needs and would be refused for, without loading it, and end"),
    TEXT(NULL, "served-model-name", served_model_name, "", "NAMES",
         "names that requests may give, separated by commas; default: the value of --model"),
    TEXT(NULL, "chat-template", chat_template, "", "FILE",
         "Jinja template to use instead of the model's own"),
    BOOL(NULL, "trust-request-chat-template", trust_request_chat_template, "false",
         "requests may bring a chat_template of their own"),
    CHOICE(NULL, "tool-call-parser", tool_call_parser, "auto", TOOL_FORMAT_NAMES,
           "how the model writes calls of tools; auto: by its chat template; none: tools are "
           "refused"),
    CHOICE(NULL, "reasoning-parser", reasoning_parser, "auto", REASONING_NAMES,
           "how the model writes what it thinks before it answers; auto: by its chat template; "
           "none: that is text of the answer"),
    TEXT(NULL, "preamble", preamble, "", "FILES",
         "system prompt (or several files, separated by commas) whose KV all tenants share; "
         ".json: with tools"),
    LIST(NULL, "lora-modules", lora_modules, "NAME=FOLDER...",
         "adapters (LoRA) as the PEFT library writes them, which requests name as model; or "
         "{\"name\": ..., \"path\": ...}"),
    TEXT(NULL, "lora-dir", lora_dir, "", "DIR",
         "adapters in this folder may be loaded while the server runs (/v1/load_lora_adapter)"),
    COUNT(NULL, "max-loras", max_loras, 1, 1024, "16", "adapters that may be loaded at once"),
    COUNT(NULL, "max-lora-rank", max_lora_rank, 1, 1024, "64", "largest rank of an adapter"),
    BOOL(NULL, "parse-special", parse_special, "false",
         "special tokens spelled in the text of users, tools and documents are control tokens"),
    CHOICE(NULL, "load-format", load_format, DEFAULT_LOAD_FORMAT, LOAD_FORMAT_NAMES,
           "dummy: random weights for any config.json"),
    CHOICE(NULL, "dtype", dtype, DEFAULT_DTYPE, DTYPE_NAMES DTYPE_ALIASES,
           "type of the weights; auto: as stored"),
    CHOICE(NULL, "quantization", quantization, DEFAULT_QUANTIZATION, QUANTIZATION_NAMES,
           "auto: weights as stored; int8, int4, fp8: quantize at load, embedding and output layer "
           "to 8 bits; none: floats"),
    CHOICE(NULL, "quantization-group", quantization_group, "auto", "auto|32|128",
           "weights that share a scale, for int8 and int4; auto: 128 for int8, 32 for int4"),
    SIZE(NULL, "packed-weights-bytes", packed_weights_bytes, 0, UINT64_C(1) << 50, "32G",
         "limit on quantized weights in --cache-dir, which make the next start faster; 0: none are "
         "kept"),
    CHOICE(NULL, "kv-cache-dtype", kv_cache_dtype, DEFAULT_DTYPE,
           KV_DTYPE_NAMES DTYPE_ALIASES "|fp8_e4m3=fp8",
           "type of cached K and V; auto: that of --dtype; int8, fp8: one byte and a shared scale"),
    COUNT(NULL, "max-model-len", max_model_len, 0, UINT32_MAX, "0",
          "longest prompt plus answer in tokens; 0: the model's, cut to what the KV pool holds"),

    TEXT("HTTP", "host", host, "127.0.0.1", "ADDRESS", "address to listen on"),
    COUNT(NULL, "port", port, 0, 65535, "8000", "port; 0: any free one, printed at start"),
    SECRET(NULL, "api-key", api_key, "KEYS",
           "key (or several, separated by commas) that every route but /health/* and /ping then "
           "needs"),
    TEXT(NULL, "api-key-file", api_key_file, "", "FILE",
         "JSON file with keys, their tenants and limits; read again on SIGHUP"),
    SECRET(NULL, "admin-api-key", admin_api_key, "KEYS",
           "key (or several) for /cache and other admin routes; opens all others too"),
    COUNT(NULL, "http-threads", http_threads, 1, 64, "4", "threads that talk to clients"),
    COUNT(NULL, "max-connections", max_connections, 1, 65536, "4096",
          "open connections; one more closes the connection that is idle longest"),
    COUNT(NULL, "max-connections-per-ip", max_connections_per_ip, 0, 65536, "0",
          "connections of one client address; 0: no limit"),
    SIZE(NULL, "max-body-bytes", max_body_bytes, 1024, UINT64_C(1) << 30, "32M",
         "largest request body"),
    COUNT(NULL, "header-timeout", header_timeout_s, 0, 86400, "10",
          "seconds for a request's header, and for a connection's first byte; 0: no limit"),
    COUNT(NULL, "body-timeout", body_timeout_s, 0, 86400, "30",
          "seconds for a request's body, and one more per 16K of it; 0: no limit"),
    COUNT(NULL, "write-timeout", write_timeout_s, 0, 86400, "30",
          "seconds that a client may take to receive a piece of its answer; 0: no limit"),
    COUNT(NULL, "idle-timeout", idle_timeout_s, 0, 86400, "75",
          "seconds that a connection may stay open between requests; 0: no limit"),
    TEXT(NULL, "uds", uds, "", "PATH", "listen on a Unix socket instead of --host and --port"),
    TEXT(NULL, "uds-mode", uds_mode, "0600", "MODE", "permissions of the Unix socket, octal"),
    TEXT(NULL, "tls-cert", tls_cert, "", "FILE",
         "certificate chain (PEM): serve HTTPS; read again on SIGHUP"),
    TEXT(NULL, "tls-key", tls_key, "", "FILE", "its private key (PEM)"),
    TEXT(NULL, "allowed-origins", allowed_origins, "", "ORIGINS",
         "origins whose pages may read answers in a browser (CORS), separated by commas; *: all"),
    COUNT(NULL, "drain-timeout", drain_timeout_s, 0, 86400, "30",
          "seconds that running requests get to finish after SIGTERM"),

    CHOICE("Machine", "device", device, DEFAULT_DEVICE, DEVICE_NAMES,
           "where to compute; auto: a GPU, or the CPU where there is none; ref: plain C, the slow "
           "reference"),
    CHOICE(NULL, "cpu-variant", cpu_variant, "auto",
           "auto|amx|avx512bf16|avx512|avx2|neonmm|neondot|neon|portable",
           "instruction set of the CPU; auto: the fastest of this machine"),
    COUNT(NULL, "tensor-parallel-size", tensor_parallel_size, 1, 8,
          SETTING_TEXT(DEFAULT_TENSOR_PARALLEL_SIZE),
          "GPUs of this machine that compute the model together, each with a share of its weights "
          "and of the KV"),
    BOOL(NULL, "batch-invariant", batch_invariant, "false",
         "GPU: answers do not depend on other requests, bit for bit; slower (always so on a CPU)"),
    BOOL(NULL, "wgmma", wgmma, "true",
         "GPU of compute capability 9.0: multiply long prompts with quantized weights, and compute "
         "their attention, by its own matrix instructions, if a trial at start finds them right "
         "and faster; never with --batch-invariant"),
    BOOL(NULL, "enforce-eager", enforce_eager, "false",
         "GPU: launch the kernels of each step one by one; else decode steps are recorded as CUDA "
         "graphs and replayed"),
    BOOL(NULL, "async-scheduling", async_scheduling, "true",
         "GPU: launch a decode step before the one before has ended, where it needs nothing else; "
         "--no-async-scheduling switches it off"),
    COUNT(NULL, "threads", threads, 0, 1024, "0", "compute threads; 0: all cores of this process"),
    TEXT(NULL, "numa", numa, "auto", "auto|off|DIR",
         "auto: threads and weights are spread over the machine's memory nodes; DIR: nodes as this "
         "folder has them, which is laid out as /sys/devices/system/node"),
    COUNT(NULL, "seed", seed, 0, UINT64_MAX, "0", "seed of dummy weights"),

    COUNT("Scheduling", "max-num-seqs", max_num_seqs, 1, 4096, SETTING_TEXT(DEFAULT_MAX_NUM_SEQS),
          "sequences that run at once"),
    COUNT(
        NULL, "max-num-batched-tokens", max_num_batched_tokens, 0, 1 << 20, "0",
        "tokens of one step; longer prompts are computed in chunks; 0: " SETTING_TEXT(
            DEFAULT_MAX_NUM_BATCHED_TOKENS) ", on a GPU " SETTING_TEXT(DEFAULT_GPU_BATCHED_TOKENS)),
    COUNT(NULL, "speculative-tokens", speculative_tokens, 0, DRAFT_TOKENS_MAX,
          SETTING_TEXT(DEFAULT_SPECULATIVE_TOKENS),
          "most tokens that an answer may copy in one step from its prompt, its documents or "
          "itself, where that is faster; the answer stays the same; on a GPU only with "
          "--batch-invariant; 0: off"),
    TEXT(
        NULL, "draft-model", draft_model, "", "MODEL",
        "second, small model with the same tokenizer that guesses how answers go on, where that is "
        "faster; the answer stays the same; named as --model, and of the same --dtype and "
        "--quantization"),
    SIZE(NULL, "draft-kv-bytes", draft_kv_bytes, 0, UINT64_C(1) << 50, "0",
         "memory of the draft model's own KV; 0: for 16 answers of up to 2048 tokens"),
    COUNT(NULL, "max-num-queued-reqs", max_num_queued_reqs, 1, 1 << 20,
          SETTING_TEXT(DEFAULT_MAX_NUM_QUEUED_REQS), "requests that may wait; one more gets 429"),
    COUNT(NULL, "sleep-idle-seconds", sleep_idle_s, 0, 365 * 86400, "0",
          "without requests for so long, the memory of weights and KV is given back until the next "
          "one, which waits for the weights; 0: never"),
    CHOICE_OF(
        NULL, "scheduling-policy", scheduling_policy, DEFAULT_SCHEDULING_POLICY, contest_policies,
        "order in which requests run; in each policy a lower `priority` goes first; auto: the "
        "one that would have served the last answers best"),
    NUMBER(NULL, "max-step-ms", max_step_ms, 0, HOUR_MS, "0", "MS",
           "prompts are cut so that a step takes no longer; 0: " SETTING_TEXT(
               DEFAULT_CPU_STEP_MS) " on a CPU, " SETTING_TEXT(DEFAULT_GPU_STEP_MS) " on a GPU"),
    NUMBER(NULL, "quantum-ms", quantum_ms, 0, HOUR_MS, "0", "MS",
           "time that the top level of an MLFQ gives a request; 0: that of a decode step"),
    NUMBER(NULL, "level-ratio", level_ratio, 1.1, 16, SETTING_TEXT(DEFAULT_LEVEL_RATIO), "X",
           "time of an MLFQ level, as a multiple of the level above, 1.1 to 16"),
    NUMBER(
        NULL, "starvation-ms", starvation_ms, 0, 24 * HOUR_MS, "0", "MS",
        "a request that has not run for this time goes first; 0: never with the variant learned, "
        "else 300 on a GPU; on a CPU 3000, or 100 decode steps where that is longer"),
    CHOICE_OF(NULL, "mlfq-variant", mlfq_variant, DEFAULT_MLFQ_VARIANT, scheduler_variants,
              "MLFQs as tuned here, as in FastServe's paper, or as in its authors' code; learned: "
              "skip-join-mlfq with ranks learned from the lengths of answers"),
    CHOICE(NULL, "latency-objective", latency_objective, DEFAULT_LATENCY_OBJECTIVE,
           LATENCY_OBJECTIVE_NAMES,
           "latency that learned ranks minimize: per token, or end-to-end"),
    NUMBER(NULL, "age-boost-ms", age_boost_ms, 0, HOUR_MS, "0", "MS",
           "learned ranks: time constant of ageing; 0: learned from the backlog"),
    BOOL(NULL, "profile-cost", profile_cost, "true",
         "measure at start how long steps take (seconds, once for a model and machine); off: "
         "learn it from requests"),
    COUNT(NULL, "cache-reorder-window", cache_reorder_window, 0, 256,
          SETTING_TEXT(DEFAULT_CACHE_REORDER_WINDOW),
          "a waiting request with more of its prompt cached goes before at most this many others "
          "of the same level; 0: off"),
    CHOICE(NULL, "speculative-prefill", speculative_prefill, "auto", "auto|off",
           "auto: while documents are still searched, the engine's spare time computes the "
           "prompt of those found so far"),
    CHOICE(NULL, "slo-admission", slo_admission, "off", "off|reject",
           "reject: a request that is predicted to miss its target of the first token gets 429"),
    NUMBER(NULL, "slo-ttft-ms", slo_ttft_ms, 0, HOUR_MS, "0", "MS",
           "target of the first token for requests that bring none; 0: no target"),
    NUMBER(NULL, "slo-tpot-ms", slo_tpot_ms, 0, HOUR_MS, "0", "MS",
           "target of the mean time between tokens for requests that bring none; 0: no target"),
    NUMBER(
        NULL, "retrieval-stage-ms", retrieval_stage_ms, 0, 60000, "0", "MS",
        "for experiments: a search for documents takes four stages of at least this time; 0: only "
        "what it needs"),

    SIZE("KV cache", "kv-device-bytes", kv_device_bytes, 0, UINT64_C(1) << 50, "0",
         "size of the KV pool; 0: chosen from free memory"),
    SHARE(NULL, "gpu-memory-utilization", gpu_memory_utilization,
          SETTING_TEXT(DEFAULT_GPU_MEMORY_UTILIZATION),
          "GPU: share of its memory for weights, buffers, recorded steps and KV pool; "
          "--kv-device-bytes wins"),
    COUNT(NULL, "kv-segment-tokens", kv_segment_tokens, 32, 256,
          SETTING_TEXT(DEFAULT_KV_SEGMENT_TOKENS), "tokens of a segment, a multiple of 32"),
    BOOL(NULL, "prefix-caching", prefix_caching, "true",
         "reuse KV of prompts that were computed before; --no-prefix-caching switches it off"),
    SIZE(NULL, "kv-host-bytes", kv_host_bytes, 0, UINT64_C(1) << 50, "0",
         "pinned host memory for KV that does not fit on the GPU; 0: none; on a CPU a second part "
         "of the same memory"),
    NUMBER(NULL, "kv-prefetch-share", kv_prefetch_share, 0, 1,
           SETTING_TEXT(DEFAULT_KV_PREFETCH_SHARE), "SHARE",
           "share of the KV pool that waiting requests may fetch into from host memory"),
    NUMBER(NULL, "kv-hold-share", kv_hold_share, 0, 1, SETTING_TEXT(DEFAULT_KV_HOLD_SHARE), "SHARE",
           "share of the KV pool that requests may hold (cache_ttl and others)"),
    COUNT(NULL, "kv-reserve-blocks", kv_reserve_blocks, 0, UINT32_MAX, "0",
          "KV blocks kept free for new requests; 0: chosen by need"),
    CHOICE(NULL, "kv-swap", kv_swap, DEFAULT_KV_SWAP, KV_SWAP_NAMES,
           "swap KV to host memory and back ahead of need, or only when room is needed"),
    TEXT(NULL, "kv-disk-path", kv_disk_path, "", "DIR",
         "directory for KV that outlives memory and the process; one server uses it at a time"),
    SIZE(NULL, "kv-disk-bytes", kv_disk_bytes, 0, UINT64_C(1) << 50, "0",
         "limit on all files in --kv-disk-path, whichever model wrote them"),
    COUNT(NULL, "kv-disk-min-uses", kv_disk_min_uses, 1, UINT32_MAX,
          SETTING_TEXT(DEFAULT_KV_DISK_MIN_USES),
          "KV is written to disk at its Nth use; 1: as soon as it is computed"),
    COUNT(NULL, "kv-disk-timeout-ms", kv_disk_timeout_ms, 1, 3600000,
          SETTING_TEXT(DEFAULT_KV_DISK_TIMEOUT_MS),
          "KV that the disk has not read within this time is computed instead"),
    CHOICE(NULL, "kv-preload", kv_preload, DEFAULT_KV_PRELOAD, KV_PRELOAD_NAMES,
           "read from disk at start: nothing, the KV of --preamble, or what fits into half of the "
           "KV pool"),
    CHOICE_OF(NULL, "cache-policy", cache_policy, DEFAULT_CACHE_POLICY, cache_policies,
              "eviction policy of the KV cache"),
    TEXT(NULL, "cache-dir", cache_dir, "", "DIR",
         "directory for the secret that separates tenants, for measured costs and for packed "
         "weights; default: $XDG_CACHE_HOME/tarn or ~/.cache/tarn"),

    TEXT("Pool of instances", "pool", pool, "", "URL",
         "share KV with the other instances that name the same Redis or Valkey: "
         "redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or unix:///PATH"),
    TEXT(NULL, "pool-secret", pool_secret, "", "FILE",
         "secret of at least 16 bytes that all instances of a pool have; --pool needs it"),
    TEXT(NULL, "pool-name", pool_name, "default", "NAME",
         "pools of different names in one Redis do not see each other; letters a to z, digits, -"),
    TEXT(NULL, "pool-listen", pool_listen, "127.0.0.1:0", "HOST:PORT",
         "address for the other instances; port 0: any free one. The default is reached from this "
         "machine only; other machines need an address of a private network"),
    TEXT(NULL, "pool-announce", pool_announce, "", "HOST",
         "name or address by which others reach this instance; default: that of --pool-listen"),
    CHOICE(NULL, "pool-transport", pool_transport, "auto", "auto|ucx|tcp",
           "ucx: shared memory, RDMA or TCP, by what there is; auto: ucx where the machine has "
           "RDMA devices, else tcp"),
    TEXT(NULL, "instance-name", instance_name, "", "NAME",
         "name of this instance for people; default: made from host and port"),
    COUNT(NULL, "pool-lookup-ms", pool_lookup_ms, 1, 60000, "50",
          "KV that has not been found on other instances within this time is computed"),
    COUNT(NULL, "pool-pull-ms", pool_pull_ms, 1, 3600000, "2000",
          "KV that another instance has not sent within this time is computed"),
    CHOICE(NULL, "pool-query", pool_query, DEFAULT_POOL_QUERY, POOL_QUERY_NAMES,
           "KV on another instance is read, or stays there and gets queries; auto: by the expected "
           "time; never: this instance neither sends nor answers queries"),
    COUNT(NULL, "pool-query-ms", pool_query_ms, 1, 60000, "250",
          "a query that another instance has not answered within this time is lost, and the "
          "sequence begins again without queries"),
    BOOL(
        NULL, "pool-balance", pool_balance, "true",
        "KV that many instances read or query gets further copies, and an instance that serves too "
        "much hands paths over; --no-pool-balance switches it off"),
    BOOL(NULL, "pool-device-ipc", pool_device_ipc, "true",
         "instances of one machine and one user copy KV from GPU memory to GPU memory (CUDA IPC), "
         "and so can read and write all of each other's KV; --no-pool-device-ipc switches it off"),
    TEXT("Routers", "kv-events-endpoint", kv_events_endpoint, "", "ENDPOINT",
         "publish which prompts are cached, as vLLM does, on this ZeroMQ endpoint such as "
         "tcp://*:5557; token ids go out in clear: only routers may reach it"),
    TEXT(NULL, "kv-events-replay-endpoint", kv_events_replay_endpoint, "", "ENDPOINT",
         "answer routers that ask for the last 10000 batches of events again"),
    TEXT(NULL, "kv-events-topic", kv_events_topic, "", "TOPIC",
         "topic of the events; default: kv@HOST:PORT@MODEL, with $POD_IP as HOST if it is set"),
    COUNT(NULL, "kv-events-block-size", kv_events_block_size, 8, 64, "16",
          "tokens of a block in events: what the router is set to"),
    BOOL(NULL, "trust-router-headers", trust_router_headers, "false",
         "heed the headers x-llm-d-*; only where a router makes every request"),
    TEXT(NULL, "router-objectives", router_objectives, "", "LIST",
         "priorities of x-llm-d-inference-objective, as name=10,other=-1; a higher one goes first"),

    TEXT("Documents", "documents-path", documents_path, "", "DIR",
         "directory of registered documents, one server uses it at a time; none: no documents; "
         "default: documents in the folder of --cache-dir"),
    SIZE(NULL, "documents-bytes", documents_bytes, 1 << 20, UINT64_C(1) << 50, "64G",
         "size of the file of registered documents; a document that does not fit is refused"),
    TEXT(NULL, "embedding-model", embedding_model, "", "MODEL",
         "second model that embeds documents and queries for vector search, and the texts of "
         "/v1/embeddings; named as --model"),
    TEXT(NULL, "served-embedding-model-name", served_embedding_model_name, "", "NAME",
         "name of that model in requests; default: the value of --embedding-model"),
    TEXT(NULL, "rerank-model", rerank_model, "", "MODEL",
         "further model that classifies texts and pairs of texts, for /rerank, /score and "
         "/classify (BERT, RoBERTa or XLM-RoBERTa for sequence classification); named as --model"),
    TEXT(NULL, "served-rerank-model-name", served_rerank_model_name, "", "NAME",
         "name of that model in requests; default: the value of --rerank-model"),

    COUNT("Responses", "stored-responses", stored_responses, 0, 1 << 20, "4096",
          "responses of /v1/responses kept in memory for previous_response_id and GET; the tenant "
          "that keeps most loses its least recently used one first; 0: none"),
    SIZE(NULL, "stored-responses-bytes", stored_responses_bytes, 0, UINT64_C(1) << 50, "256M",
         "memory that they may take"),
    COUNT(NULL, "background-responses", background_responses, 0, 1024, "64",
          "responses with background: true that run at once; one more is answered with 429"),

    CHOICE("Logs", "log-level", log_level, "info", "debug|info|warn|error|warning=warn",
           "lowest level of the messages that are written"),
    CHOICE(NULL, "log-format", log_format, "text", "text|json", "key=value text or JSON lines"),
    BOOL(NULL, "log-prompts", log_prompts, "false", "write prompts to the log, at level debug"),

    CONFIG_FILE("Other", "config", config_file, "read options from FILE"),
};

/* Count the items of a list. *has_empty: whether one of them is empty. */
static size_t count_items(const char *list, bool *has_empty)
{
    const char *item;
    size_t n = 0, len;

    *has_empty = false;
    while (flag_list_next(&list, &item, &len)) {
        *has_empty |= len == 0;
        n++;
    }
    return n;
}

/* Refuse lists with empty items. An empty key, as from a variable that was never filled, would
 * leave the server open. */
static enum status check_list(const void *config, const struct option_row *row, const char *text,
                              const char *source, struct buf *why)
{
    bool has_empty, is_names = row->offset == OPTION_AT(served_model_name);
    size_t n = count_items(text, &has_empty);

    (void)config;
    if (has_empty && (row->secret || (n == 1 && row->offset == OPTION_AT(api_key_file))))
        return buf_why(why, ERR_INVALID, "%s: %s; give %s, or leave the option out", source,
                       n > 1 ? "one of the keys is empty" : "is empty",
                       row->secret ? "a key" : "a file");
    if (is_names && text[0] && has_empty)
        return buf_why(why, ERR_INVALID,
                       "%s: \"%s\" has an empty name; expected names separated by commas", source,
                       text);
    if (is_names && n > CONFIG_N_MODEL_NAMES_MAX)
        return buf_why(why, ERR_INVALID, "%s: %zu names, at most %d are taken", source, n,
                       CONFIG_N_MODEL_NAMES_MAX);
    return OK;
}

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
    .variables = VARIABLES,
    .check = check_list,
};

/* A variable of another program of the project, or of the test suite. */
static bool is_for_others(const char *variable)
{
    return strncmp(variable, VARIABLES "URL=", sizeof VARIABLES "URL=" - 1) == 0 ||
           strncmp(variable, VARIABLES "TEST_", sizeof VARIABLES "TEST_" - 1) == 0;
}

void config_warn_unknown(char **env)
{
    const char *value;
    bool is_ours;

    for (; *env; env++)
        if (!option_table_find_variable(&table, *env, &value, &is_ours) && is_ours &&
            !is_for_others(*env)) {
            size_t n = strcspn(*env, "=");
            log_event(LOG_WARN, "unknown variable ignored", "name=\"%.*s\"",
                      (int)(n < VARIABLE_SHOWN_MAX ? n : VARIABLE_SHOWN_MAX), *env);
        }
}

/* Permissions: one to four octal digits. */
static bool is_mode(const char *text)
{
    size_t n = strspn(text, "01234567");

    return n > 0 && text[n] == '\0' && strtoul(text, NULL, 8) <= 0777;
}

static enum status check_network(const struct config *c, struct buf *why)
{
    if (!is_mode(c->uds_mode))
        return buf_why(why, ERR_INVALID,
                       "--uds-mode: expected permissions such as 0600, got \"%s\"", c->uds_mode);
    if ((c->tls_cert[0] == '\0') != (c->tls_key[0] == '\0'))
        return buf_why(why, ERR_INVALID, "--tls-%s: needs --tls-%s as well",
                       c->tls_cert[0] ? "cert" : "key", c->tls_cert[0] ? "key" : "cert");
    return OK;
}

static enum status check_disk(const struct config *c, struct buf *why)
{
    if (c->kv_disk_path[0] && c->kv_disk_bytes == 0)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-path: needs --kv-disk-bytes as well: how much "
                       "of the disk may be used, such as 100G");
    if (!c->kv_disk_path[0] && c->kv_disk_bytes)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-bytes: needs --kv-disk-path as well: the "
                       "directory to use");
    if (c->kv_disk_path[0] && !c->prefix_caching)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-path: keeps computed prompts, and "
                       "--no-prefix-caching forgets them; leave one of the two out");
    return OK;
}

/* The name of a pool is part of keys in Redis. */
static bool is_pool_name(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");

    return n > 0 && n <= POOL_NAME_MAX && text[n] == '\0';
}

/* Names of instances stand in logs and lists: no spaces, no control characters. */
static bool is_instance_name(const char *text)
{
    size_t n = 0;

    while (text[n] > ' ' && text[n] <= '~')
        n++;
    return n <= INSTANCE_NAME_MAX && text[n] == '\0';
}

/* HOST:PORT, also [HOST]:PORT. Names are resolved when the pool is opened. */
static bool is_host_and_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t n_digits = colon ? strspn(colon + 1, "0123456789") : 0;
    bool has_host = colon && colon > text && (text[0] != '[' || colon[-1] == ']');

    return has_host && n_digits >= 1 && n_digits <= 5 && colon[1 + n_digits] == '\0' &&
           strtoul(colon + 1, NULL, 10) <= 65535 && (text[0] == '[' || colon == strchr(text, ':'));
}

static enum status check_pool(const struct config *c, struct buf *why)
{
    if (!is_pool_name(c->pool_name))
        return buf_why(why, ERR_INVALID,
                       "--pool-name: expected 1 to %d letters a to z, digits or -, got \"%s\"",
                       POOL_NAME_MAX, c->pool_name);
    if (!is_instance_name(c->instance_name))
        return buf_why(why, ERR_INVALID,
                       "--instance-name: expected at most %d ASCII characters without spaces, got "
                       "\"%s\"",
                       INSTANCE_NAME_MAX, c->instance_name);
    if (!is_host_and_port(c->pool_listen))
        return buf_why(why, ERR_INVALID,
                       "--pool-listen: expected HOST:PORT such as 10.0.0.5:7000 or [fd00::5]:7000, "
                       "got \"%s\"",
                       c->pool_listen);
    if (config_has_pool(c) && !c->pool_secret[0])
        return buf_why(why, ERR_INVALID,
                       "--pool: needs --pool-secret as well: a file that all instances of the pool "
                       "have (openssl rand -hex 32)");
    if (!config_has_pool(c) && (c->pool_secret[0] || c->pool_announce[0]))
        return buf_why(why, ERR_INVALID, "--pool-%s: needs --pool as well: the URL of a Redis",
                       c->pool_secret[0] ? "secret" : "announce");
    if (config_has_pool(c) && !c->prefix_caching)
        return buf_why(why, ERR_INVALID,
                       "--pool: shares computed prompts, and --no-prefix-caching forgets them; "
                       "leave one of the two out");
    return OK;
}

/* Read the next item NAME=PRIORITY of the list. False: the list ended, or *is_bad: no such item. */
static bool next_objective(const char **list, const char **name, size_t *n_name, int32_t *priority,
                           bool *is_bad)
{
    size_t len;
    char *end;

    if (!flag_list_next(list, name, &len))
        return false;
    const char *equals = memchr(*name, '=', len);
    long value = equals ? strtol(equals + 1, &end, 10) : 0;
    *is_bad = !equals || equals == *name || end == equals + 1 || end != *name + len ||
              value < -OBJECTIVE_MAX || value > OBJECTIVE_MAX;
    *n_name = equals ? (size_t)(equals - *name) : 0;
    *priority = (int32_t)value;
    return !*is_bad;
}

bool config_objective(const struct config *c, const char *name, int32_t *priority)
{
    const char *list = c->router_objectives, *item;
    size_t n;
    bool is_bad = false;

    while (next_objective(&list, &item, &n, priority, &is_bad))
        if (strlen(name) == n && memcmp(name, item, n) == 0)
            return true;
    return false;
}

static enum status check_routers(const struct config *c, struct buf *why)
{
    const char *list = c->router_objectives[0] ? c->router_objectives : NULL, *item;
    int32_t priority;
    size_t n;
    bool is_bad = false;

    while (next_objective(&list, &item, &n, &priority, &is_bad))
        ;
    if (is_bad)
        return buf_why(why, ERR_INVALID,
                       "--router-objectives: expected names with whole numbers, such as "
                       "premium=10,batch=-1, got \"%.200s\"",
                       c->router_objectives);
    if (c->router_objectives[0] && !c->trust_router_headers)
        return buf_why(why, ERR_INVALID,
                       "--router-objectives: needs --trust-router-headers as well: without it "
                       "the header is not read");
    return OK;
}

static enum status check_together(const struct config *c, struct buf *why)
{
    if (c->kv_segment_tokens % 32 != 0)
        return buf_why(why, ERR_INVALID, "--kv-segment-tokens: %llu is no multiple of 32",
                       (unsigned long long)c->kv_segment_tokens);
    if (c->model[0] == '\0')
        return buf_why(why, ERR_INVALID,
                       "--model: which model? a directory, or org/name from the Hugging Face "
                       "cache");
    enum status s = check_routers(c, why);
    if (s == OK)
        s = check_disk(c, why);
    if (s == OK)
        s = check_pool(c, why);
    return s == OK ? check_network(c, why) : s;
}

/* The value of a variable, or NULL. */
static const char *find_variable(char **env, const char *name)
{
    size_t n = strlen(name);

    for (; *env; env++)
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
            return *env + n + 1;
    return NULL;
}

/* Options that come later in the order of their sources replace a list, and do not add to it. */
static void clear_modules(struct config *c)
{
    while (c->lora_modules.n > 0)
        free(c->lora_modules.v[--c->lora_modules.n]);
}

enum status config_load(struct config *c, int argc, char **argv, char **env, struct buf *why)
{
    memset(c, 0, sizeof *c);
    enum status s = option_table_presets(&table, c, why);
    /* First only to learn which file to read; the second time flags win over file and variables. */
    if (s == OK)
        s = option_table_read_args(&table, c, argc, argv, 1, why);
    if (s != OK || c->want_help || c->want_version)
        return s;
    bool has_modules = c->lora_modules.n > 0;
    const char *file = find_variable(env, VARIABLES "CONFIG");
    clear_modules(c);
    if (c->config_file[0] || !file)
        file = c->config_file;
    if (file[0])
        s = option_table_read_file(&table, c, file, "--config", why);
    if (has_modules || find_variable(env, VARIABLES "LORA_MODULES"))
        clear_modules(c);
    if (s == OK)
        s = option_table_read_env(&table, c, env, why);
    if (has_modules)
        clear_modules(c);
    if (s == OK)
        s = option_table_read_args(&table, c, argc, argv, 1, why);
    return s == OK ? check_together(c, why) : s;
}

/* The value of the last --log-format, or NULL. */
static const char *find_log_format(int argc, char **argv)
{
    static const char flag[] = "--log-format";
    const size_t n = sizeof flag - 1;
    const char *value = NULL;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], flag, n) != 0)
            continue;
        if (argv[i][n] == '=')
            value = argv[i] + n + 1;
        else if (argv[i][n] == '\0' && i + 1 < argc)
            value = argv[++i];
    }
    return value;
}

bool config_wants_json(const struct config *c, int argc, char **argv, char **env)
{
    const char *value = find_log_format(argc, argv);

    if (!value)
        value = find_variable(env, VARIABLES "LOG_FORMAT");
    value = value ? value : c->log_format;
    return value && strcmp(value, "json") == 0;
}

void config_fini(struct config *c)
{
    option_table_fini(&table, c);
    memset(c, 0, sizeof *c);
}

void config_forget_secrets(struct config *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *text = rows[i].secret ? *(char **)(void *)((char *)c + rows[i].offset) : NULL;
        if (!text || !text[0])
            continue;
        explicit_bzero(text, strlen(text));
        text[0] = '*'; /* the log still says that there was one */
    }
    explicit_bzero(c->pool_member, sizeof c->pool_member);
    explicit_bzero(c->pool_scope, sizeof c->pool_scope);
}

/* --- output --- */

const char *config_nearest(const char *name)
{
    return option_table_nearest(&table, name);
}

void config_name_options(struct buf *why)
{
    option_table_name_options(&table, why);
}

void config_print_help(FILE *f)
{
    fputs("tarn-server --model DIR [options]\n\n"
          "Serves a language model over an OpenAI-style HTTP API.\n"
          "Every option --some-name V is also --some-name=V, the variable TARN_SOME_NAME=V, and a\n"
          "line `some-name = V` of the file given by --config. A flag wins over a variable, a\n"
          "variable over the file. Sizes take K, M, G (powers of 1024). Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}

bool config_has_pool(const struct config *c)
{
    return c->pool && c->pool[0];
}

void config_pool_shown(const struct config *c, char out[CONFIG_POOL_SHOWN_BYTES])
{
    const char *url = c->pool ? c->pool : "", *start = strstr(url, "://");
    const char *at = strrchr(url, '@');

    start = start ? start + 3 : url;
    const char *colon = at && at > start ? memchr(start, ':', (size_t)(at - start)) : NULL;
    if (colon)
        snprintf(out, CONFIG_POOL_SHOWN_BYTES, "%.*s***%.150s", (int)(colon + 1 - url), url, at);
    else
        snprintf(out, CONFIG_POOL_SHOWN_BYTES, "%s", url);
}

/* The values of all rows as texts. */
struct described {
    struct log_field fields[ARRAY_SIZE(rows)];
    char text[ARRAY_SIZE(rows)][OPTION_VALUE_BYTES];
    char pool[CONFIG_POOL_SHOWN_BYTES];
};

/* All rows but that of --config. Returns their number. */
static size_t describe(const struct config *c, struct described *d)
{
    size_t n = 0;

    config_pool_shown(c, d->pool);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (rows[i].type != OPTION_FILE) {
            const char *value = rows[i].offset == OPTION_AT(pool)
                                    ? d->pool
                                    : option_table_value(&rows[i], c, d->text[n]);
            d->fields[n] = (struct log_field){rows[i].name, value,
                                              option_row_is_text(&rows[i]) ? LOG_TEXT : LOG_NUMBER};
            n++;
        }
    return n;
}

void config_describe(const struct config *c, struct buf *out)
{
    struct described d;
    size_t n = describe(c, &d);
    enum status s = OK;

    for (size_t i = 0; s == OK && i < n; i++) {
        const char *quote = d.fields[i].kind == LOG_TEXT ? "\"" : "";
        s = buf_printf(out, "%s%s=%s%s%s", i ? " " : "", d.fields[i].key, quote, d.fields[i].value,
                       quote);
    }
}

void config_log(const struct config *c)
{
    struct described d;
    size_t n = describe(c, &d);

    log_fields(LOG_INFO, "configuration", d.fields, n);
}
