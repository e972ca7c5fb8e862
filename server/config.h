/* config.h - the options of tarn-server, from one table (base/option_table.h).
 *
 * A value comes from the flag --some-name, else from the variable TARN_SOME_NAME, else from a line
 * `some-name = value` of the --config file, else from the default of its row.
 *
 * Owns    copies of every text value: config_fini().
 * Thread  filled on the main thread, read-only after.
 * Errors  ERR_INVALID with words that name the option, its source and, for an unknown name,
 *         the nearest one; ERR_NOT_FOUND for a --config file that is not there. An unknown TARN_*
 *         variable is no error: config_warn_unknown().
 * Units   sizes in bytes (K, M, G are powers of 1024), times in seconds but for names in _ms. */
#ifndef TARN_SERVER_CONFIG_H
#define TARN_SERVER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/option_table.h"

#define CONFIG_N_MODEL_NAMES_MAX 64
#define CONFIG_POOL_SECRET_BYTES 32
#define CONFIG_POOL_SHOWN_BYTES 256

struct config {
    /* what to serve */
    char *model;
    bool download;           /* get models that are not in the local cache */
    char *inspect;           /* off, text, json */
    char *served_model_name; /* comma list, no item empty; "": the name given to --model */
    char *chat_template;     /* file; empty: the model's own */
    bool trust_request_chat_template;
    char *reasoning_parser;          /* one of REASONING_NAMES */
    char *tool_call_parser;          /* one of TOOL_FORMAT_NAMES */
    char *preamble;                  /* comma list of files */
    struct option_list lora_modules; /* NAME=FOLDER, or a JSON object */
    char *lora_dir;                  /* empty: no adapter is loaded while the server runs */
    uint64_t max_loras, max_lora_rank;
    bool parse_special; /* special tokens count in the text of users, tools and documents */
    /* where */
    char *host;
    uint64_t port;
    char *api_key; /* comma list; empty: none needed */
    char *api_key_file;
    char *admin_api_key; /* comma list */
    uint64_t http_threads;
    uint64_t max_connections;
    uint64_t max_connections_per_ip; /* 0: no limit */
    uint64_t max_body_bytes;
    uint64_t header_timeout_s; /* 0: no limit, as the next three */
    uint64_t body_timeout_s;
    uint64_t write_timeout_s;
    uint64_t idle_timeout_s;
    char *uds;      /* path; empty: host and port */
    char *uds_mode; /* octal */
    char *tls_cert; /* files; both or none */
    char *tls_key;
    char *allowed_origins; /* comma list; empty: CORS is off */
    uint64_t drain_timeout_s;
    /* how it computes */
    char *device;
    char *cpu_variant; /* "auto" or a name */
    char *numa;        /* "auto", "off" or a folder */
    uint64_t tensor_parallel_size;
    bool batch_invariant;
    bool wgmma;
    bool enforce_eager;
    bool async_scheduling;
    char *dtype;
    char *quantization;
    char *quantization_group; /* "auto" or a number */
    uint64_t packed_weights_bytes;
    char *kv_cache_dtype;
    char *load_format;
    uint64_t threads;
    uint64_t seed;
    /* limits and memory */
    uint64_t max_model_len;
    uint64_t max_num_seqs;
    uint64_t max_num_batched_tokens;
    uint64_t speculative_tokens;
    char *draft_model; /* empty: none */
    uint64_t draft_kv_bytes;
    uint64_t max_num_queued_reqs;
    uint64_t sleep_idle_s;   /* 0: never */
    char *scheduling_policy; /* of contest_policies() */
    double max_step_ms;      /* 0: by the device, as the next and starvation_ms */
    double quantum_ms;
    double level_ratio;
    double starvation_ms;
    char *mlfq_variant, *latency_objective;
    double age_boost_ms;
    uint64_t cache_reorder_window; /* 0: off */
    char *speculative_prefill;     /* "auto" or "off" */
    char *slo_admission;           /* "off" or "reject" */
    double slo_ttft_ms;            /* targets of requests that have none; 0: none */
    double slo_tpot_ms;
    double retrieval_stage_ms; /* of a search, for experiments; 0: as it takes */
    bool profile_cost;
    uint64_t kv_device_bytes;
    double gpu_memory_utilization; /* above 0, at most 1 */
    uint64_t kv_segment_tokens;
    bool prefix_caching;
    uint64_t kv_host_bytes;   /* 0: no host tier */
    double kv_prefetch_share; /* 0 to 1, as the next */
    double kv_hold_share;
    uint64_t kv_reserve_blocks; /* 0: one for each sequence that may run */
    char *kv_swap;
    char *kv_disk_path; /* empty: no disk tier; else kv_disk_bytes is above 0 */
    uint64_t kv_disk_bytes;
    uint64_t kv_disk_min_uses;
    uint64_t kv_disk_timeout_ms;
    char *kv_preload;
    char *cache_policy; /* of cache_policies() */
    char *cache_dir;    /* empty: the user's */
    /* pool of instances */
    char *pool;                                    /* URL of the directory; empty: no pool */
    char *pool_name;                               /* [a-z0-9-] */
    char *pool_secret;                             /* file */
    uint8_t pool_member[CONFIG_POOL_SECRET_BYTES]; /* secrets made of that file: pool_secret.h */
    uint8_t pool_scope[CONFIG_POOL_SECRET_BYTES];
    char *pool_listen;
    char *pool_announce; /* empty: the host of pool_listen */
    char *pool_transport;
    char *instance_name; /* empty: made from host and port */
    uint64_t pool_lookup_ms;
    uint64_t pool_pull_ms;
    char *pool_query; /* of POOL_QUERY_NAMES */
    uint64_t pool_query_ms;
    bool pool_balance;
    bool pool_device_ipc;
    /* routers */
    char *kv_events_endpoint; /* of ZeroMQ; empty: no KV events */
    char *kv_events_replay_endpoint;
    char *kv_events_topic; /* empty: kv@HOST:PORT@MODEL */
    uint64_t kv_events_block_size;
    bool trust_router_headers;
    char *router_objectives; /* comma list of NAME=PRIORITY */
    /* documents */
    uint64_t documents_bytes;
    uint32_t stored_responses;
    uint64_t stored_responses_bytes;
    uint32_t background_responses;
    char *documents_path;              /* empty: in cache_dir; "none": no documents */
    char *embedding_model;             /* empty: none */
    char *served_embedding_model_name; /* empty: the name given to --embedding-model */
    char *rerank_model;                /* empty: none */
    char *served_rerank_model_name;    /* empty: the name given to --rerank-model */
    /* logs */
    char *log_level;
    char *log_format;
    bool log_prompts;
    char *config_file; /* of --config; empty: none */
    bool want_help, want_version;
};

/* Whether the server belongs to a pool. */
bool config_has_pool(const struct config *c);
/* The URL of --pool, its password replaced by "***". */
void config_pool_shown(const struct config *c, char out[CONFIG_POOL_SHOWN_BYTES]);

/* Read argv[1..argc) and the environment `env` (as environ: "NAME=value", NULL-terminated). *c goes
 * to config_fini() after errors too. */
NODISCARD enum status config_load(struct config *c, int argc, char **argv, char **env,
                                  struct buf *why);
void config_fini(struct config *c);

/* Overwrite the secrets, once nothing reads them any more; a secret that was given becomes "*". The
 * password in the URL of --pool stays, because the pool connects again with it; it is never shown.
 */
void config_forget_secrets(struct config *c);

/* --help: grouped, at most 100 columns. */
void config_print_help(FILE *f);
/* The effective values, `name=value` separated by spaces; secrets are masked. */
void config_describe(const struct config *c, struct buf *out);
/* Write the same to the log, one line. */
void config_log(const struct config *c);
/* Log each TARN_* variable that names no option, but TARN_URL, which is tarnctl's. No error:
 * Kubernetes sets further ones for a service called "tarn". */
void config_warn_unknown(char **env);
/* Whether the log has JSON lines. After a failed config_load() the answer comes from the options it
 * has read, the command line and the environment. */
bool config_wants_json(const struct config *c, int argc, char **argv, char **env);

/* Find the priority of an objective in router_objectives. */
bool config_objective(const struct config *c, const char *name, int32_t *priority);

/* The known option name nearest to `name`, or NULL when nothing is near. */
const char *config_nearest(const char *name);
/* Replace each {some_name} in a message of a lower layer by --some-name. */
void config_name_options(struct buf *why);

#endif
