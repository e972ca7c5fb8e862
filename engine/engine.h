/* engine.h - what runs: a loaded model, its tokenizer, and the thread that steps it.
 *
 * Owns    model, weights, tokenizer, chat template, device, cache, scheduler, the engine thread.
 * Thread  engine_open/start/drain/close: main. engine_submit, engine_reset_cache, engine_stats,
 *         engine_leave_pool, engine_pool_instances, engine_notes, sleep and the const getters: any
 *         thread. Everything inside the step: the engine thread alone.
 * Errors  engine_open(): words that name the file and what is wrong with it.
 *         engine_submit(): ERR_BUSY when max_queued requests are waiting, ERR_UNAVAILABLE while
 *         draining and after the device failed, ERR_TOO_LARGE when the request could never fit the
 *         KV pool. engine_cache_view(), engine_cache_spans(), engine_cache_erase(),
 *         engine_cache_release(), engine_estimate(): ERR_TIMEOUT when the engine thread is in a
 *         step for too long, ERR_UNAVAILABLE when it ends.
 * Units   bytes, tokens, nanoseconds. */
#ifndef TARN_ENGINE_ENGINE_H
#define TARN_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/hist.h"
#include "cache/cache.h"
#include "engine/text/chat_template.h"
#include "engine/request.h"
#include "engine/sched/estimate.h"
#include "engine/sched/contest.h"
#include "engine/sched/drafting.h"
#include "engine/sched/scheduler.h"
#include "engine/text/tokenizer/tokenizer.h"

struct adapters;
struct engine;

struct engine_config {
    const char *model_dir;       /* Hugging Face layout */
    const char *device;          /* "auto", "cpu", "cuda", "ref" */
    const char *cpu_variant;     /* NULL = best of the machine */
    const char *dtype;           /* of weights: "auto" (as stored), "f32", "bf16", "f16" */
    const char *quantization;    /* of weights: one of QUANTIZATION_NAMES */
    uint32_t quantization_group; /* 32 or 128; 0 = the best for that type */
    const char *packed_dir;      /* quantized weights are kept here; NULL: they are not */
    uint64_t packed_bytes;       /* limit on all files there */
    const char *kv_dtype;        /* "auto" (what `dtype` comes to), or another of KV_DTYPE_NAMES */
    const char *load_format;     /* "auto" or "dummy" (random weights, config.json only needed) */
    const char *policy;          /* of scheduling: contest_policies() */
    double max_step_ms;          /* prefill chunks are cut for it; 0: 200 on a CPU, 100 on a GPU */
    double quantum_ms;           /* of the top level; 0: a decode step */
    double level_ratio;          /* of quanta, at least 1.1 */
    uint32_t reorder_window;     /* cached prompts go before so many others; 0: off */
    double starvation_ms;        /* 0: max(3 s, 100 decode steps) on a CPU, 300 ms on a GPU */
    const char *mlfq_variant;    /* scheduler_variants() */
    enum latency_objective latency_objective; /* of learned ranks */
    double age_boost_ms;                      /* time constant of their ageing; 0: learned */
    uint32_t kv_reserve_blocks; /* free for newcomers; 0: one for each sequence that may run */
    bool slo_reject;            /* end a request with ERR_BUSY if it is predicted to miss its
                                   target of the first token */
    const char *swap;           /* "proactive": spill and fetch ahead; "reactive": when the room
                                    is needed */
    const char *cost_dir;       /* where the profile of T(cached, new, batch) is kept; NULL: it is
                                    measured at every start */
    bool profile_cost;          /* false: the first prefills tell (tests) */
    uint32_t n_threads;         /* 0 = all cores of this process */
    const char *numa;           /* as in struct device_config */
    uint32_t max_model_len;     /* 0 = the model's, cut to what the KV pool holds */
    uint32_t max_num_seqs;
    uint32_t max_batched_tokens; /* 0: what suits the device */
    uint32_t max_queued;
    uint32_t speculative_tokens; /* guessed tokens that a sequence verifies in one step, at most
                                    DRAFT_TOKENS_MAX; 0: none. On a GPU only with
                                    batch_invariant */
    const char *draft_model_dir; /* a second model that guesses; NULL: none */
    uint64_t draft_kv_bytes;     /* of that model's KV; 0: draft_model.h says how much */
    bool speculate_always;       /* guess as much as there is room for, whatever it costs (tests) */
    uint32_t max_adapters;       /* LoRA adapters that may be loaded at once; 0: none */
    uint32_t max_adapter_rank;   /* at least 1 with max_adapters */
    uint64_t kv_bytes;           /* 0 = chosen from free memory */
    double gpu_memory_utilization; /* on a GPU, when kv_bytes is 0: the share of its memory, above
                                      0 and at most 1, that weights, buffers and KV may take */
    uint32_t tensor_parallel_size; /* GPUs that compute the model together */
    bool batch_invariant;          /* on a GPU: products in an order that no batch changes */
    bool wgmma;                    /* on a GPU: device_config.wgmma */
    bool enforce_eager;            /* on a GPU: no step is recorded and replayed */
    bool async_scheduling;         /* on a GPU: a decode step is launched before the one before has
                                      ended, where it may be (async.c) */
    uint32_t segment_tokens;
    bool prefix_caching;
    uint64_t kv_host_bytes;      /* of the host tier; 0: none */
    double kv_prefetch_share;    /* of the device's KV blocks: what waiting requests may fetch */
    double kv_hold_share;        /* of the same: what requests may keep (cache_ttl) */
    const char *kv_disk_path;    /* NULL: no disk tier. Borrowed until engine_close() */
    uint64_t kv_disk_bytes;      /* of all that lies there */
    uint32_t kv_disk_min_uses;   /* what was used so often is written; at least 1 */
    uint32_t kv_disk_timeout_ms; /* a read that takes longer is a miss */
    const char *kv_preload;      /* what is read from disk at start: "none", "registered", "all" */
    bool kv_disk_threads_only;   /* no io_uring (tests) */
    const char *cache_policy;    /* of eviction: cache_policies(); NULL: the default */
    const char *pool_url;        /* of the pool's directory; NULL: no pool. This and the strings
                                    below are borrowed until engine_close() */
    const char *pool_name;       /* NULL: "default" */
    const char *pool_listen;     /* of the data plane, HOST:PORT */
    const char *pool_announce_host; /* NULL: the host of pool_listen */
    const char *pool_transport;     /* "auto", "ucx", "tcp" */
    const char *pool_instance_name; /* for people */
    const char *pool_http;          /* URL of this instance's HTTP API; NULL: not announced */
    const uint8_t *pool_secret;     /* [POOL_SECRET_BYTES]; NULL: all zero */
    uint32_t pool_lookup_ms;        /* deadline of a lookup; 0: the default of struct pool_config */
    uint32_t pool_pull_ms;          /* deadline of a pull; the same */
    const char *pool_query;         /* of POOL_QUERY_NAMES */
    uint32_t pool_query_ms;         /* deadline of a query; 0: the cache's default */
    bool pool_balance;              /* as struct pool_config's balances */
    bool pool_device_ipc;           /* as struct cache_remote_config's shares_device */
    struct cache_events *kv_events; /* every block that comes or goes, for routers; NULL: none.
                                         Destroyed by its owner after engine_close() */
    bool kv_always_copy;            /* copy between tiers on a host device too (tests) */
    bool check_each_step;           /* recount the cache after every step: slow */
    uint32_t sleep_idle_s;          /* without requests for so long, weights and KV sleep until
                                       the next one; 0: never */
    uint64_t seed;                  /* of dummy weights */
    const char *chat_template_file; /* NULL = the model's own */
};
/* Set the defaults of settings.h. */
void engine_config_init(struct engine_config *c);

NODISCARD enum status engine_open(struct engine **out, const struct engine_config *config,
                                  struct buf *why);
NODISCARD enum status engine_start(struct engine *e); /* starts the engine thread */
/* Stop taking requests; those inside finish. True when all are out. */
void engine_drain_begin(struct engine *e);
bool engine_drained(const struct engine *e);
/* Cancels what is left, joins the thread, frees all. NULL is fine. */
void engine_close(struct engine *e);

/* The device failed for good: every request inside has ended with ERR_UNAVAILABLE, none is taken
 * any more, and all that is left is to end the process. Any thread. */
bool engine_failed(const struct engine *e);

/* Takes a reference of its own on OK. Requests that are not usual (request.class) have a small
 * bound of their own: ENGINE_N_OTHERS_MAX inside of each class. engine_drain_begin() cancels
 * them. */
#define ENGINE_N_OTHERS_MAX 32u
NODISCARD enum status engine_submit(struct engine *e, struct request *r, struct buf *why);

/* Whether a further prefill would find the engine idle in part: fewer usual and speculative
 * requests are without a first token than fill its steps. n_leaving: of these, requests that were
 * just cancelled. Any thread; does not wait. */
bool engine_has_prefill_room(const struct engine *e, uint32_t n_leaving);

/* A view of the cache, with at most n_spans_max of its spans (ENGINE_N_SPANS_MAX at most). The
 * engine thread makes the view between two steps, and the caller waits. */
#define ENGINE_N_SPANS_MAX 256
struct engine_cache_view {
    struct cache_stats stats;
    uint32_t n_spans_all; /* in the tree */
    uint32_t n_spans;
    struct cache_span spans[ENGINE_N_SPANS_MAX];
};
NODISCARD enum status engine_cache_view(struct engine *e, uint32_t n_spans_max,
                                        struct engine_cache_view *out);
/* Look up the spans whose first blocks have these keys [n], ENGINE_N_SPANS_MAX at most. spans [n]:
 * n_nodes is 0 where there is no such span. Waits for the engine thread. */
NODISCARD enum status engine_cache_spans(struct engine *e, const struct kv_key *keys, uint32_t n,
                                         struct cache_span *spans);
/* Whether the block with this key is cached in any tier: a hint, as cache_knows(). */
bool engine_cache_knows(const struct engine *e, const struct kv_key *key);
/* Evict the span whose first block has this key, and all spans behind it, from every tier; blocks
 * that running requests hold are evicted when these requests end. *n_blocks: blocks of those spans,
 * 0: no such span. Waits for the engine thread; requests submitted after this call find none of the
 * blocks. ERR_TIMEOUT: nothing was evicted. */
NODISCARD enum status engine_cache_erase(struct engine *e, const struct kv_key *first,
                                         uint32_t *n_blocks);
/* End the holds without end (CACHE_TTL_FOREVER) whose path contains the block with this key: those
 * of the span that begins with it and of what is before it in the path. KV that another hold covers
 * stays held, and all of it stays cached. *n_blocks: blocks that nothing holds any more. Waits for
 * the engine thread; ERR_TIMEOUT: nothing was released. */
NODISCARD enum status engine_cache_release(struct engine *e, const struct kv_key *key,
                                           uint32_t *n_blocks);
/* A session as the engine remembers it, and its KV. */
struct engine_session {
    bool is_known;                 /* false: all but received.pause is 0 */
    struct sched_session received; /* its times are on the clock of base/clock.h */
    struct cache_session kv;
    uint32_t n_released; /* blocks that closing made the first to be evicted */
};
/* Look at a session (request.session); close: and forget it, once its requests have ended. Waits
 * for the engine thread. ERR_TIMEOUT: nothing was closed. */
NODISCARD enum status engine_session(struct engine *e, uint64_t session, bool close,
                                     struct engine_session *out);
/* Evict all cached KV that no running request holds. The engine thread does so between two steps;
 * requests submitted after this call find none of it. */
void engine_reset_cache(struct engine *e);

/* Parts that can sleep. While any of them does no step runs: requests wait, cancelled ones end, and
 * new ones are taken as far as the queue has room. A drain wakes what requests inside need. */
enum engine_part {
    ENGINE_STEPS = 1,   /* a pause: everything stays in memory, the KV of requests too */
    ENGINE_WEIGHTS = 2, /* their memory is given back, that of a draft model too */
    ENGINE_KV = 4,      /* the KV pool's memory is given back; KV that is nowhere else is lost, and
                           computed again where a request needs it */
    ENGINE_PARTS = 7
};
struct engine_sleep {
    unsigned parts; /* of enum engine_part */
    bool waits;     /* first for the end of the usual requests that are inside now */
    bool forgets;   /* KV on disk as well */
};
/* Let parts sleep, beside those that do. Any thread; does not wait. */
void engine_sleep(struct engine *e, const struct engine_sleep *s);
/* Wake parts; weights are loaded again. Any thread; does not wait. */
void engine_wake(struct engine *e, unsigned parts);
struct engine_sleep_state {
    unsigned wanted;   /* parts that are to sleep */
    unsigned asleep;   /* parts that do */
    bool is_deep;      /* KV on disk was forgotten, too */
    enum status error; /* of the last wake, whose parts sleep on; OK: none */
    char why[BUF_WHY_MAX];
};
void engine_sleep_state(struct engine *e, struct engine_sleep_state *out);
/* Call changed(arg), which must not block, from any thread whenever that state changes, until
 * engine_sleep_unwatch() with the same arg. ERR_BUSY: too many watch already. */
#define ENGINE_SLEEP_WATCHERS_MAX 16
NODISCARD enum status engine_sleep_watch(struct engine *e, void (*changed)(void *arg), void *arg);
void engine_sleep_unwatch(struct engine *e, void *arg); /* not watching: no effect */

/* Begin to hand over to the other instances of the pool the KV that only this one has. The engine
 * serves as before. No effect without a pool. */
void engine_leave_pool(struct engine *e);
/* Whether all that can be handed over has been. True without a pool, and while the engine thread
 * does not run. */
bool engine_has_left_pool(const struct engine *e);
/* Messages to and from other instances (cache/pool/pool_note.h). NULL without a pool. */
struct pool_notes *engine_notes(struct engine *e);
/* List the instances of the pool, this one first, as cache_instances(). 0 without a pool. */
uint32_t engine_pool_instances(struct engine *e, struct directory_instance *out, uint32_t n_max);

/* The adapters that requests may have (request_adapt()). NULL without max_adapters. */
struct adapters *engine_adapters(const struct engine *e);

/* A request that is not submitted. */
struct estimate_query {
    uint32_t n_prompt, n_cached; /* tokens; those whose KV is in the cache */
    uint32_t n_out_max;          /* 0: no limit */
    int32_t priority;
    uint64_t tenant;
};
struct engine_estimate {
    struct estimate estimate;
    uint32_t n_running, n_waiting;
    struct estimator_stats accuracy;
};
/* Predict the request as if it were submitted now. Waits for the end of a step. */
NODISCARD enum status engine_estimate(struct engine *e, const struct estimate_query *q,
                                      struct engine_estimate *out);
/* The predicted time to the first token of a request with a usual prompt, at most some 0.1 s old.
 * Does not wait. Any thread. */
double engine_usual_ttft_s(const struct engine *e);

/* Constant after open. */
struct engine_info {
    const char *model_dir;
    const char *ops_name;     /* kernel set */
    const char *weights_name; /* type of the first product: "bf16", "int4 (groups of 32)" */
    uint32_t n_vocab;         /* rows of the output layer: ids below it are valid */
    uint32_t max_model_len;
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim;
    uint64_t n_params;
    uint64_t weight_bytes;
    uint64_t draft_weight_bytes, draft_kv_bytes; /* of the draft model; 0: there is none */
    uint64_t kv_bytes;
    uint64_t graph_bytes; /* of GPU memory: reserved for recorded steps */
    uint32_t n_threads;
    uint32_t max_num_seqs, max_batched_tokens, max_queued;
    uint32_t n_guesses_max; /* speculative_tokens, or 0 where there is no speculation */
    uint32_t n_kv_blocks;   /* of the device tier */
    uint32_t n_kv_host_blocks;
    uint32_t n_kv_disk_blocks; /* extents of the disk tier; 0: there is none */
    uint32_t n_tiers;          /* as cache_stats.n_tiers */
    uint64_t kv_block_bytes;
    uint64_t load_ns;
    const uint32_t *eos_ids; /* [n_eos_ids] from generation_config.json, else config.json,
                                else the tokenizer */
    uint32_t n_eos_ids;
    /* Defaults of a request's parameters, from generation_config.json. */
    float default_temperature, default_top_p, default_min_p, default_repetition_penalty;
    uint32_t default_top_k;
    char fingerprint_hex[65];
};
const struct engine_info *engine_info(const struct engine *e);
const struct tokenizer *engine_tokenizer(const struct engine *e); /* NULL: dummy without one */
const struct chat_template *engine_chat_template(const struct engine *e); /* may be NULL */

/* Requests that finished within a target, and others. */
struct slo_count {
    uint64_t n_met, n_missed;
};

/* Requests of one class. */
struct class_count {
    uint64_t n_ended;
    uint64_t n_tokens; /* computed in steps: of prompts and generated ones */
};

/* Speculation, of all requests: by the source of the guesses. DRAFT_BY_LOOKUP: the form of the
 * answer, too. */
enum draft_source { DRAFT_BY_LOOKUP, DRAFT_BY_MODEL, DRAFT_N_SOURCES };
struct draft_count {
    uint64_t n_drafts;                        /* steps of a sequence with guesses */
    uint64_t n_tokens, n_accepted;            /* guessed tokens that were run; that were right */
    uint64_t n_accepted_at[DRAFT_TOKENS_MAX]; /* of those: by place in the draft */
};

/* A consistent snapshot, taken after the latest step. */
struct engine_stats {
    struct cache_stats cache;
    uint32_t n_running, n_waiting; /* usual ones; so do all counts but those by class */
    struct class_count of_class[SCHED_N_CLASSES];
    uint64_t n_steps, n_prompt_tokens, n_prompt_tokens_cached, n_generation_tokens;
    uint64_t n_prompt_tokens_in[CACHE_N_TIERS]; /* of those cached, by tier */
    uint64_t n_preemptions, n_rejected;
    uint64_t n_mask_waits; /* tokens that waited for the mask of their form for a step or more */
    uint64_t n_query_preemptions; /* sequences that waited again because another instance did not
                                     answer a query */
    struct scheduler_stats scheduler;
    struct contest_stats contest;
    uint64_t n_graph_steps; /* steps that a GPU replayed from a recording */
    uint64_t n_plans_ahead; /* steps planned while the previous step ran */
    uint64_t n_async_steps; /* of those: launched, too */
    double cost_error;      /* moving mean of |expected - measured| / measured step time */
    struct hist step_s;     /* from a step's plan to its tokens */
    struct hist gap_s;      /* from a step's tokens to the launch of the next */
    uint64_t n_finished[FINISH_ERROR + 1];
    struct hist ttft_s, itl_s, e2e_s, queue_s, prefill_s, decode_s, inference_s, tpot_s;
    struct hist prompt_tokens, generation_tokens, step_tokens;
    struct hist computed_tokens;       /* of a prompt: those not in the cache */
    struct hist max_tokens;            /* limit of a request's generated tokens */
    struct hist ttft_error, e2e_error; /* |predicted - actual| / actual */
    struct estimator_stats estimator;
    double usual_ttft_s, usual_e2e_s;             /* predicted for a request with a usual prompt */
    struct slo_count slo_ttft, slo_tpot, slo_all; /* of requests with that target, or with any */
    uint64_t n_slo_rejected;
    struct draft_count drafts[DRAFT_N_SOURCES];
    uint64_t n_draft_passes; /* forward passes of the draft model, and their time */
    double draft_passes_s;
};
void engine_stats(struct engine *e, struct engine_stats *out);

#endif
