#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine_internal.h"
#include "engine/model/fingerprint.h"
#include "engine/opening.h"
#include "engine/settings.h"
#include "engine/step_memory.h"
#include "kernels/device.h"

#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
/* FastServe's starvation threshold (Wu et al., "Fast Distributed Inference Serving for Large
 * Language Models", 2023). */
#define GPU_STARVATION_MS 300.0
#ifdef TARN_DEBUG
#define CHECK_EACH_STEP true
#else
#define CHECK_EACH_STEP false
#endif

void engine_config_init(struct engine_config *c)
{
    *c = (struct engine_config){.device = DEFAULT_DEVICE,
                                .dtype = DEFAULT_DTYPE,
                                .kv_dtype = DEFAULT_DTYPE,
                                .quantization = DEFAULT_QUANTIZATION,
                                .load_format = DEFAULT_LOAD_FORMAT,
                                .policy = DEFAULT_SCHEDULING_POLICY,
                                .mlfq_variant = DEFAULT_MLFQ_VARIANT,
                                .latency_objective = OBJECTIVE_NORMALIZED,
                                .level_ratio = DEFAULT_LEVEL_RATIO,
                                .reorder_window = DEFAULT_CACHE_REORDER_WINDOW,
                                .swap = DEFAULT_KV_SWAP,
                                .profile_cost = true,
                                .max_num_seqs = DEFAULT_MAX_NUM_SEQS,
                                .max_queued = DEFAULT_MAX_NUM_QUEUED_REQS,
                                .speculative_tokens = DEFAULT_SPECULATIVE_TOKENS,
                                .tensor_parallel_size = DEFAULT_TENSOR_PARALLEL_SIZE,
                                .gpu_memory_utilization = DEFAULT_GPU_MEMORY_UTILIZATION,
                                .segment_tokens = DEFAULT_KV_SEGMENT_TOKENS,
                                .async_scheduling = true,
                                .prefix_caching = true,
                                .kv_prefetch_share = DEFAULT_KV_PREFETCH_SHARE,
                                .kv_hold_share = DEFAULT_KV_HOLD_SHARE,
                                .kv_disk_min_uses = DEFAULT_KV_DISK_MIN_USES,
                                .kv_disk_timeout_ms = DEFAULT_KV_DISK_TIMEOUT_MS,
                                .kv_preload = DEFAULT_KV_PRELOAD,
                                .pool_query = DEFAULT_POOL_QUERY,
                                .pool_balance = true,
                                .pool_device_ipc = true,
                                .cache_policy = DEFAULT_CACHE_POLICY,
                                .check_each_step = CHECK_EACH_STEP};
}

const uint8_t *engine_fingerprint(const struct engine *e)
{
    return e->fingerprint;
}

uint32_t engine_segment_tokens(const struct engine *e)
{
    return e->config.segment_tokens;
}

/* --- opening: model, device, weights --- */

/* Choose type and quantization of the weights, which decide how the device is opened. */
static enum status choose_weights(struct engine *e, struct buf *why)
{
    const struct engine_config *c = &e->config;
    struct opening o = {.load_format = c->load_format,
                        .dtype = c->dtype,
                        .quantization = c->quantization,
                        .quantization_group = c->quantization_group,
                        .seed = c->seed};

    enum status s = opening_weights(&e->weights_config, &o, &e->model, e->model_dir, why);
    e->weights_config.packed_dir = c->packed_dir;
    e->weights_config.packed_bytes = c->packed_bytes;
    return s;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Without max_batched_tokens the device decides: a GPU needs more rows before it waits for
 * arithmetic and no longer for the weights. */
static enum status open_device(struct engine *e, struct buf *why)
{
    static const enum device_kind kinds[] = {DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_REF};
    uint32_t kind = 0;
    struct engine_config *c = &e->config;
    uint32_t n_cpu = step_memory_batched_tokens(c, true);
    uint32_t n_gpu = step_memory_batched_tokens(c, false);
    struct device_config d = {.cpu_variant = c->cpu_variant,
                              .n_threads = c->n_threads,
                              .numa = c->numa,
                              .max_rows = most(n_cpu, c->max_num_seqs),
                              .max_rows_gpu = most(n_gpu, c->max_num_seqs),
                              .batch_invariant = c->batch_invariant,
                              .wgmma = c->wgmma && c->tensor_parallel_size <= 1,
                              .measure = c->profile_cost,
                              .measure_dir = c->cost_dir};

    opening_fit_device(&d, &e->weights_config);
    enum status s = opening_choose("{device}", DEVICE_NAMES, c->device, &kind, why);
    d.kind = kinds[kind];
    if (s == OK)
        s = opening_kv_dtype("{kv_cache_dtype}", c->kv_dtype, e->weights_config.dtype, NULL, &d.kv,
                             why);
    if (s == OK)
        s = engine_read_draft(e, &d, why);
    if (s == OK)
        s = device_open(&e->device, &d, why);
    if (s == OK)
        c->max_batched_tokens = device_is_host(e->device) ? n_cpu : n_gpu;
    if (s == OK && !device_is_host(e->device))
        s = engine_gpu_memory(e->device, &e->gpu_bytes_free_at_open[0], NULL, why);
    if (s == OK)
        s = engine_open_group(e, &d, why);
    return s;
}

static enum status load_chat_template(struct engine *e, struct buf *why)
{
    const char *source = e->tokenizer ? tokenizer_chat_template(e->tokenizer) : NULL;
    struct buf file, words;

    if (!e->config.chat_template_file)
        return source ? chat_template_create(&e->chat_template, source, strlen(source), why) : OK;
    buf_init(&file, TEMPLATE_BYTES_MAX);
    buf_init(&words, BUF_WHY_MAX / 2);
    enum status s = file_read(&file, e->config.chat_template_file, &words);
    if (s != OK)
        buf_why(why, s, "{chat_template}: %s", buf_str(&words));
    else
        s = chat_template_create(&e->chat_template, buf_str(&file), file.len, why);
    buf_fini(&words);
    buf_fini(&file);
    return s;
}

static enum status load_tokenizer(struct engine *e, struct buf *why)
{
    enum status s = tokenizer_load(&e->tokenizer, e->model_dir, why);

    if (s == ERR_NOT_FOUND && !strcmp(e->config.load_format, "dummy"))
        return OK; /* random weights need no text: token ids in, token ids out */
    if (s != OK)
        return s;
    s = load_chat_template(e, why);
    /* A model without eos in its config may still have one in its tokenizer. */
    uint32_t eos = tokenizer_eos(e->tokenizer);
    if (e->model.n_eos_ids == 0 && eos != TOKEN_NONE && eos < e->model.n_vocab)
        e->model.eos_ids[e->model.n_eos_ids++] = eos;
    return s;
}

/* --- opening: the KV pool --- */

static enum status make_fingerprint(struct engine *e, const struct kv_pool *pool)
{
    const struct ops *ops = device_ops(e->device);
    char name[64];
    struct fingerprint_config f = {.terms = {.format_version = KV_FORMAT_VERSION,
                                             .segment_tokens = e->config.segment_tokens,
                                             .ops_version = ops->version,
                                             .weights_dtype = e->weights.dtype,
                                             .quantization = e->weights.quantization,
                                             .kv = pool->layout},
                                   .model = &e->model,
                                   .ops_name = name,
                                   .content_hash = e->content_hash};

    /* The degree decides the order of sums, and how a stored block is laid out. */
    if (e->group.n > 1)
        snprintf(name, sizeof name, "%s-tp%u", ops->name, e->group.n);
    else
        snprintf(name, sizeof name, "%s", ops->name);
    _Static_assert(FINGERPRINT_BYTES == KV_FINGERPRINT_BYTES, "one fingerprint");
    enum status s = fingerprint_make(e->fingerprint, &f);
    hash_hex(e->info.fingerprint_hex, e->fingerprint, KV_FINGERPRINT_BYTES);
    return s;
}

/* --- opening: what the loop needs --- */

/* Sample on the device if it can; else on the host, with scratch for every row. */
static enum status create_sampler(struct engine *e)
{
    struct device_sampler_config ds = engine_sampler_shape(e, e->config.max_model_len);
    size_t n_logits = (size_t)e->n_logits_max * e->model.n_vocab;

    if (device_ops(e->device)->sample)
        return device_sampler_create(&e->device_sampler, &ds);
    e->candidates = memory_zeroed(n_logits, sizeof *e->candidates);
    e->raw_logits = memory_zeroed(n_logits, sizeof *e->raw_logits);
    return e->candidates && e->raw_logits ? OK : ERR_NOMEM;
}

static double miss_seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    return cost_model_seconds(arg, n_cached, n_new);
}

static uint32_t n_host_blocks(const struct engine_config *c, uint64_t block_bytes)
{
    uint64_t n = c->kv_host_bytes / block_bytes;

    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; /* cache_create() says when it is too much */
}

static struct cache_disk_config disk_shape(const struct engine *e)
{
    const struct engine_config *c = &e->config;

    if (!c->kv_disk_path)
        return (struct cache_disk_config){0};
    return (struct cache_disk_config){
        .path = c->kv_disk_path,
        .n_bytes = c->kv_disk_bytes,
        .fingerprint = e->fingerprint,
        .min_uses = c->kv_disk_min_uses,
        .timeout_ns = c->kv_disk_timeout_ms * UINT64_C(1000000),
        .preload = (enum cache_preload)flag_choice_at(KV_PRELOAD_NAMES, c->kv_preload),
        .threads_only = c->kv_disk_threads_only};
}

/* Wake the engine thread, which has something to do. */
static void wake_engine(void *arg)
{
    ring_poke(&((struct engine *)arg)->submitted);
}

static struct cache_remote_config remote_shape(struct engine *e)
{
    static const uint8_t no_secret[POOL_SECRET_BYTES];
    const struct engine_config *c = &e->config;

    if (!c->pool_url)
        return (struct cache_remote_config){0};
    return (struct cache_remote_config){
        .url = c->pool_url,
        .pool = c->pool_name,
        .listen = c->pool_listen,
        .announce_host = c->pool_announce_host,
        .transport = c->pool_transport,
        .name = c->pool_instance_name,
        .http = c->pool_http,
        .secret = c->pool_secret ? c->pool_secret : no_secret,
        .fingerprint = e->fingerprint,
        .lookup_ms = c->pool_lookup_ms,
        .pull_ms = c->pool_pull_ms,
        .query = (enum cache_query)flag_choice_at(POOL_QUERY_NAMES, c->pool_query),
        .query_ms = c->pool_query_ms,
        .balances = c->pool_balance,
        .shares_device = c->pool_device_ipc,
        .n_heads = e->model.n_heads,
        .attend = e->attend ? attend_tiles : NULL,
        .attend_arg = e->attend,
        .wake = wake_engine,
        .wake_arg = e};
}

static struct cache_config cache_shape(struct engine *e, const struct kv_pool *pool)
{
    const struct engine_config *c = &e->config;

    return (struct cache_config){.group = e->group,
                                 .pool = *pool,
                                 .segment_tokens = c->segment_tokens,
                                 .prefix_caching = c->prefix_caching,
                                 .policy = c->cache_policy,
                                 .n_host_blocks = n_host_blocks(c, kv_block_bytes(pool)),
                                 .always_copy = c->kv_always_copy,
                                 .prefetch_share = c->kv_prefetch_share,
                                 .hold_share = c->kv_hold_share,
                                 .disk = disk_shape(e),
                                 .remote = remote_shape(e),
                                 .kv_events = c->kv_events,
                                 .seconds = miss_seconds,
                                 .seconds_arg = &e->cost};
}

/* The longest that a planned request waits for KV from a slow tier. */
static uint64_t load_timeout_ns(const struct engine *e)
{
    const struct engine_config *c = &e->config;
    uint64_t disk_ms = c->kv_disk_path ? c->kv_disk_timeout_ms : 0;
    uint64_t pool_ms = cache_pool_deadline_ms(e->cache);

    return (disk_ms > pool_ms ? disk_ms : pool_ms) * UINT64_C(1000000);
}

static enum status create_lineup(struct engine *e, struct buf *why)
{
    const struct engine_config *c = &e->config;
    bool is_host = device_is_host(e->device), ahead = flag_choice_at(KV_SWAP_NAMES, c->swap) == 0;
    double step_ms = is_host ? DEFAULT_CPU_STEP_MS : DEFAULT_GPU_STEP_MS;
    bool ages = c->mlfq_variant && !strcmp(c->mlfq_variant, "learned");
    double starvation_ms = is_host || ages ? 0 : GPU_STARVATION_MS; /* 0: the scheduler's default */
    struct lineup_config l = {
        .cache = e->cache,
        .swap_ahead = ahead,
        .copy_s_per_token = is_host || !c->kv_host_bytes ? 0 : engine_measure_copy(e),
        .load_timeout_ns = load_timeout_ns(e),
        .scheduler = {.policy = engine_first_policy(e),
                      .n_slots = e->n_slots + 1, /* the last one: of engine_estimate() */
                      .n_running_max = c->max_num_seqs,
                      .n_tokens_max = c->max_batched_tokens,
                      .step_s_max = (c->max_step_ms > 0 ? c->max_step_ms : step_ms) * 1e-3,
                      .cost = &e->cost,
                      .quantum_s = c->quantum_ms * 1e-3,
                      .ratio = c->level_ratio,
                      .reorder_window = c->reorder_window,
                      .starvation_s =
                          (c->starvation_ms > 0 ? c->starvation_ms : starvation_ms) * 1e-3,
                      .variant = c->mlfq_variant,
                      .objective = c->latency_objective,
                      .age_s = c->age_boost_ms * 1e-3,
                      .reserve_blocks = c->kv_reserve_blocks}};

    return engine_open_lineup(e, &l, why);
}

static enum status create_jobs(struct engine *e)
{
    for (uint32_t i = 0; i < (e->is_async ? DEVICE_SAMPLER_TURNS : 1); i++) {
        struct pick_job *p = &e->jobs[i].pick;
        *p = (struct pick_job){.e = e, .turn = i};
        p->rows = calloc(e->n_logits_max, sizeof *p->rows);
        p->tokens = calloc(e->n_logits_max, sizeof *p->tokens);
        if (!p->rows || !p->tokens)
            return ERR_NOMEM;
    }
    return OK;
}

static enum status create_tables(struct engine *e, struct buf *why)
{
    enum status s;

    e->free_slots = calloc(e->n_slots, sizeof *e->free_slots);
    e->live_slots = calloc(e->n_slots, sizeof *e->live_slots);
    e->intake = calloc(e->n_slots, sizeof *e->intake);
    if (!e->free_slots || !e->live_slots || !e->intake || form_worker_create(&e->form_worker) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory for the sequence table");
    if ((s = create_jobs(e)) != OK)
        return buf_why(why, s, "out of memory for the step buffers");
    while (e->n_free_slots < e->n_slots) {
        e->free_slots[e->n_free_slots] = e->n_slots - 1 - e->n_free_slots;
        e->n_free_slots++;
    }
    return OK;
}

/* With a pool, prepare to attend to the queries of peers, where the device can. */
static enum status create_attend(struct engine *e, const struct kv_pool *pool)
{
    struct attend_config a = {.device = e->device, .model = &e->model, .layout = pool->layout};

    if (!e->config.pool_url || !attend_is_possible(e->device, &e->model))
        return OK;
    return attend_create(&e->attend, &a);
}

static enum status create_loop_state(struct engine *e, const struct kv_pool *pool, struct buf *why)
{
    const struct engine_config *c = &e->config;
    uint32_t n_seqs = c->max_num_seqs;
    enum status s;

    e->n_guesses_max = draft_tokens_max(e);
    e->n_logits_max = engine_logits_rows(e);
    if ((s = create_attend(e, pool)) != OK)
        return buf_why(why, s, "out of memory for the queries of other instances");
    struct cache_config cache = cache_shape(e, pool);
    struct forward_config fwd = engine_forward_shape(e, c->max_model_len);
    if (c->kv_host_bytes > 0 && cache.n_host_blocks == 0)
        return buf_why(
            why, ERR_INVALID,
            "{kv_host_bytes} holds less than one KV block of %zu bytes; raise it, or leave it out",
            kv_block_bytes(pool));
    if (fwd.n_blocks_max == UINT32_MAX)
        return buf_why(why, ERR_INVALID, "{max_num_seqs} times {max_model_len} is too large");
    if ((s = ring_init(&e->submitted, e->n_slots)) != OK) /* the cache's pool pokes it */
        return buf_why(why, s, "out of memory for the step buffers");
    if ((s = cache_create(&e->cache, &cache, why)) != OK)
        return s;
    if (e->group.n > 1 && (s = ranks_create(&e->ranks, &fwd, e->rank_weights)) != OK)
        return buf_why(why, s, "out of memory for the step buffers of further GPUs");
    fwd.ranks = e->ranks;
    if ((s = forward_create(&e->forward, &fwd)) != OK ||
        (s = batch_create(&e->batch, c->max_batched_tokens, n_seqs, fwd.n_out_max,
                          fwd.n_blocks_max)) != OK)
        return buf_why(why, s, "out of memory for the step buffers");
    if ((s = create_sampler(e)) != OK)
        return buf_why(why, s, "out of memory for sampling");
    e->is_async = async_is_possible(e);
    if (e->is_async)
        forward_follow(e->forward, device_sampler_ids(e->device_sampler));
    engine_obtain_cost(e, pool);
    s = create_lineup(e, why);
    if (s != OK)
        return s;
    if ((s = engine_create_estimator(e)) != OK)
        return buf_why(why, s, "out of memory for predictions");
    engine_load_lengths(e);
    return create_tables(e, why);
}

static void init_stats(struct engine_stats *st)
{
    hist_init(&st->ttft_s, hist_bounds_ttft_s, ARRAY_SIZE(hist_bounds_ttft_s));
    hist_init(&st->itl_s, hist_bounds_itl_s, ARRAY_SIZE(hist_bounds_itl_s));
    hist_init(&st->tpot_s, hist_bounds_itl_s, ARRAY_SIZE(hist_bounds_itl_s));
    hist_init(&st->step_s, hist_bounds_step_s, ARRAY_SIZE(hist_bounds_step_s));
    hist_init(&st->gap_s, hist_bounds_gap_s, ARRAY_SIZE(hist_bounds_gap_s));
    struct hist *long_ones[] = {&st->e2e_s, &st->queue_s, &st->prefill_s, &st->decode_s,
                                &st->inference_s};
    struct hist *of_tokens[] = {&st->prompt_tokens, &st->generation_tokens, &st->computed_tokens,
                                &st->max_tokens};
    for (size_t i = 0; i < ARRAY_SIZE(long_ones); i++)
        hist_init(long_ones[i], hist_bounds_e2e_s, ARRAY_SIZE(hist_bounds_e2e_s));
    for (size_t i = 0; i < ARRAY_SIZE(of_tokens); i++)
        hist_init(of_tokens[i], hist_bounds_tokens, ARRAY_SIZE(hist_bounds_tokens));
    hist_init(&st->step_tokens, hist_bounds_step_tokens, ARRAY_SIZE(hist_bounds_step_tokens));
}

static const char *weights_name(const struct weights *w)
{
    static const char *const names[DTYPE_COUNT][2] = {
        [DTYPE_F32] = {"f32"},
        [DTYPE_F16] = {"f16"},
        [DTYPE_BF16] = {"bf16"},
        [DTYPE_I8] = {"int8 (groups of 32)", "int8 (groups of 128)"},
        [DTYPE_I4] = {"int4 (groups of 32)", "int4 (groups of 128)"},
        [DTYPE_A8] = {"8-bit codes as stored (groups of 32)",
                      "8-bit codes as stored (groups of 128)"},
        [DTYPE_A4] = {"4-bit codes as stored (groups of 32)",
                      "4-bit codes as stored (groups of 128)"},
        [DTYPE_F8] = {NULL, "fp8 (groups of 128)"},
    };
    struct quantization q = w->quantization;

    if (quantization_is_as_stored(q))
        return names[w->first->dtype][w->first->group == 128];
    return q.group ? names[q.dtype][q.group == 128] : names[w->dtype][0];
}

static void fill_info(struct engine *e, const struct kv_pool *pool, uint64_t t0)
{
    const struct model_config *m = &e->model;
    const struct engine_config *c = &e->config;
    struct engine_info *i = &e->info;
    struct cache_stats stats;

    i->model_dir = e->model_dir;
    i->ops_name = device_ops(e->device)->name;
    i->weights_name = weights_name(&e->weights);
    i->n_vocab = m->n_vocab;
    i->max_model_len = c->max_model_len;
    i->n_layers = m->n_layers;
    i->dim = m->dim;
    i->n_heads = m->n_heads;
    i->n_kv_heads = m->n_kv_heads;
    i->head_dim = m->head_dim;
    i->n_params = e->weights.n_params_all;
    i->weight_bytes = e->weights.n_bytes;
    for (uint32_t r = 1; r < e->group.n; r++)
        i->weight_bytes += e->rank_weights[r].n_bytes;
    i->kv_bytes = kv_block_bytes(pool) * pool->n_blocks;
    i->n_kv_blocks = pool->n_blocks;
    i->kv_block_bytes = kv_block_bytes(pool);
    i->n_kv_host_blocks = n_host_blocks(c, i->kv_block_bytes);
    cache_stats(e->cache, &stats);
    i->n_kv_disk_blocks = stats.tier[CACHE_DISK].n_blocks;
    i->n_tiers = stats.n_tiers;
    i->n_threads = device_n_threads(e->device);
    i->max_num_seqs = c->max_num_seqs;
    i->n_guesses_max = e->n_guesses_max;
    i->max_batched_tokens = c->max_batched_tokens;
    i->max_queued = c->max_queued;
    i->eos_ids = m->eos_ids;
    i->n_eos_ids = m->n_eos_ids;
    i->default_temperature = m->temperature;
    i->default_top_p = m->top_p;
    i->default_min_p = m->min_p;
    i->default_top_k = m->top_k;
    i->default_repetition_penalty = m->repetition_penalty;
    i->load_ns = clock_now_ns() - t0;
}

static enum status check_disk(const struct engine_config *c, struct buf *why)
{
    uint32_t at;

    if (!c->kv_disk_path)
        return OK;
    if (c->kv_disk_bytes == 0)
        return buf_why(why, ERR_INVALID, "{kv_disk_path} needs {kv_disk_bytes} as well");
    if (!c->prefix_caching)
        return buf_why(why, ERR_INVALID,
                       "{kv_disk_path} keeps computed prompts, and without {prefix_caching} they "
                       "are forgotten; leave one of the two out");
    if (c->kv_disk_min_uses == 0 || c->kv_disk_timeout_ms == 0)
        return buf_why(why, ERR_INVALID,
                       "{kv_disk_min_uses} and {kv_disk_timeout_ms} must be at least 1");
    return opening_choose("{kv_preload}", KV_PRELOAD_NAMES, c->kv_preload, &at, why);
}

static enum status check_share(const char *setting, double share, struct buf *why)
{
    return share >= 0 && share <= 1 ? OK
                                    : buf_why(why, ERR_INVALID, "%s must be from 0 to 1", setting);
}

static enum status check_config(const struct engine_config *c, struct buf *why)
{
    uint32_t at;
    enum status s = opening_choose("{kv_swap}", KV_SWAP_NAMES, c->swap, &at, why);

    if (s == OK)
        s = check_share("{kv_prefetch_share}", c->kv_prefetch_share, why);
    if (s == OK)
        s = check_share("{kv_hold_share}", c->kv_hold_share, why);
    if (s != OK)
        return s;
    if (!(c->gpu_memory_utilization > 0 && c->gpu_memory_utilization <= 1))
        return buf_why(why, ERR_INVALID, "{gpu_memory_utilization} must be above 0 and at most 1");
    if (!c->model_dir)
        return buf_why(why, ERR_INVALID, "no model given; use {model}");
    if (c->max_num_seqs == 0)
        return buf_why(why, ERR_INVALID, "{max_num_seqs} must be at least 1");
    if (c->segment_tokens < KV_BLOCK_TOKENS || c->segment_tokens > KV_SEGMENT_TOKENS_MAX ||
        c->segment_tokens % KV_BLOCK_TOKENS)
        return buf_why(why, ERR_INVALID, "{kv_segment_tokens} must be a multiple of %d, at most %d",
                       KV_BLOCK_TOKENS, KV_SEGMENT_TOKENS_MAX);
    enum status grouped = engine_check_group(c, why);
    return grouped == OK ? check_disk(c, why) : grouped;
}

static void init_locks(struct engine *e)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&e->stats_lock, NULL);
    pthread_mutex_init(&e->ask_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->answered, &attr);
    pthread_condattr_destroy(&attr);
}

enum status engine_open(struct engine **out, const struct engine_config *config, struct buf *why)
{
    uint64_t t0 = clock_now_ns();
    struct kv_pool pool = {0};
    enum status s = check_config(config, why);

    *out = NULL;
    if (s != OK)
        return s;
    if ((s = hash_init()) != OK)
        return buf_why(why, s, "libsodium cannot start");
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return buf_why(why, ERR_NOMEM, "out of memory");
    init_locks(e);
    init_stats(&e->live);
    e->shared = e->live;
    e->config = *config;
    e->n_slots = engine_n_slots(e);
    e->model_dir = strdup(config->model_dir);
    if (!e->model_dir)
        s = buf_why(why, ERR_NOMEM, "out of memory");
    if (s == OK)
        s = model_config_load(&e->model, e->model_dir, why);
    if (s == OK)
        s = opening_check_generates(&e->model, why);
    if (s == OK)
        s = choose_weights(e, why);
    if (s == OK)
        s = open_device(e, why);
    if (s == OK)
        s = engine_load_weights(e, e->content_hash, why);
    if (s == OK)
        s = engine_create_adapters(e, why);
    if (s == OK)
        s = load_tokenizer(e, why);
    if (s == OK) {
        engine_reserve_graphs(e);
        s = engine_open_draft(e, why);
    }
    if (s == OK)
        s = engine_size_pool(e, &pool, why);
    if (s == OK && (s = make_fingerprint(e, &pool)) != OK)
        s = buf_why(why, s, "out of memory");
    if (s == OK) {
        e->info.kv_block_bytes = kv_block_bytes(&pool);
        s = create_loop_state(e, &pool, why);
    }
    if (s != OK) {
        engine_close(e);
        return s;
    }
    fill_info(e, &pool, t0);
    engine_publish_stats(e);
    *out = e;
    return OK;
}

/* --- running --- */

enum status engine_start(struct engine *e)
{
    ASSERT(!e->thread_runs);
    if (pthread_create(&e->thread, NULL, engine_loop, e) != 0)
        return ERR_NOMEM;
    e->thread_runs = true;
    return OK;
}

void engine_drain_begin(struct engine *e)
{
    atomic_store(&e->draining, true);
    ring_poke(&e->submitted); /* the engine thread cancels what is not usual */
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->thread_runs) {
        atomic_store(&e->draining, true);
        atomic_store(&e->stopping, true);
        ring_poke(&e->submitted);
        pthread_join(e->thread, NULL);
    }
    device_sampler_destroy(e->device_sampler);
    engine_close_draft(e);
    ranks_destroy(e->ranks);
    forward_destroy(e->forward);
    engine_keep_learned(e);
    estimator_destroy(e->estimator);
    engine_close_lineup(e);
    cache_destroy(e->cache);
    attend_destroy(e->attend); /* after the pool's query thread */
    batch_destroy(&e->batch);
    ring_fini(&e->submitted);
    chat_template_destroy(e->chat_template);
    tokenizer_destroy(e->tokenizer);
    adapters_destroy(e->adapters);
    engine_free_weights(e);
    engine_close_group(e);
    device_close(e->device);
    form_worker_destroy(e->form_worker);
    free(e->free_slots);
    free(e->live_slots);
    free(e->intake);
    free(e->candidates);
    free(e->raw_logits);
    for (size_t i = 0; i < ARRAY_SIZE(e->jobs); i++) {
        free(e->jobs[i].pick.rows);
        free(e->jobs[i].pick.tokens);
    }
    pthread_mutex_destroy(&e->stats_lock);
    pthread_mutex_destroy(&e->ask_lock);
    pthread_cond_destroy(&e->answered);
    free(e->model_dir);
    free(e);
}

void engine_leave_pool(struct engine *e)
{
    atomic_store(&e->leave_wanted, true);
    ring_poke(&e->submitted);
}

bool engine_has_left_pool(const struct engine *e)
{
    return !e->config.pool_url || !e->thread_runs || atomic_load(&e->has_left);
}

struct pool_notes *engine_notes(struct engine *e)
{
    return cache_notes(e->cache);
}

uint32_t engine_pool_instances(struct engine *e, struct directory_instance *out, uint32_t n_max)
{
    return cache_instances(e->cache, out, n_max);
}

bool engine_failed(const struct engine *e)
{
    return atomic_load(&e->failed);
}

enum status engine_submit(struct engine *e, struct request *r, struct buf *why)
{
    const struct cache_prompt *p = &r->prompt;
    uint32_t n_blocks = cache_blocks_max(p->n_ids, p->n_span_ends, r->stopping.max_tokens);
    enum status s;

    /* A request that does not fit the empty pool would wait forever. */
    if (n_blocks > e->info.n_kv_blocks)
        return buf_why(why, ERR_TOO_LARGE,
                       "prompt and max_tokens need up to %u KV blocks, the "
                       "pool has %u; lower max_tokens",
                       n_blocks, e->info.n_kv_blocks);
    s = engine_enter(e, r->class, why);
    if (s != OK)
        return s;
    atomic_store(&r->t_submit, clock_now_ns());
    request_ref(r);
    s = ring_push(&e->submitted, r);
    if (s != OK) {
        engine_leave(e, r);
        request_unref(r);
        return buf_why(why, s,
                       s == ERR_BUSY ? "too many requests are waiting; try again later"
                                     : "the server is shutting down");
    }
    return OK;
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

const struct tokenizer *engine_tokenizer(const struct engine *e)
{
    return e->tokenizer;
}

const struct chat_template *engine_chat_template(const struct engine *e)
{
    return e->chat_template;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->stats_lock);
    *out = e->shared;
    pthread_mutex_unlock(&e->stats_lock);
    out->n_rejected = atomic_load(&e->n_rejected);
}
