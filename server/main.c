/* main.c - tarn-server: start, serve, drain, and free everything in reverse order.
 *
 * The first SIGTERM or SIGINT drains the server: readiness goes off, new requests get 503, running
 * requests finish within --drain-timeout seconds. A member of a pool of instances then hands over
 * the KV that no other instance has, in what is left of that time. A second signal, or a signal
 * during the start, ends the process at once. All these exit with 0. SIGHUP reads the files of keys
 * and TLS again.
 *
 * After a permanent failure of the device readiness goes off, open requests get 503, and the
 * process exits with 1, so that systemd or Kubernetes starts it again. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/flags.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/model/hub.h"
#include "engine/settings.h"
#include "server/auth/auth.h"
#include "server/banner.h"
#include "server/cache_dir.h"
#include "server/config.h"
#include "server/download.h"
#include "server/early_end.h"
#include "server/http/http.h"
#include "server/http_flags.h"
#include "server/kv_events.h"
#include "server/lora_flags.h"
#include "server/pool_flags.h"
#include "server/api/background.h"
#include "server/api/embeddings.h"
#include "server/api/library.h"
#include "server/api/preamble.h"
#include "server/server.h"
#include "server/summary.h"

#define INSPECT_BYTES_MAX ((size_t)1 << 20)
#define DRAIN_POLL_NS 20000000L
#define FIGURES_NS 150000000L /* the pool publishes its figures every 100 ms */
#define END_POLL_NS UINT64_C(5000000)
#define SECOND_NS UINT64_C(1000000000)
#define END_WAIT_NS (5 * SECOND_NS)
/* Period of the check that the device works, and time that open requests have after its failure. */
#define WATCH_NS 200000000L
#define FAILED_NS SECOND_NS

extern char **environ;

/* --- process --- */

/* This thread receives signals by sigtimedwait(); threads created later inherit the mask. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed connection is an error of one write */
}

/* Use one heap for all threads: with an arena per thread, each keeps the memory of its largest
 * prompts and answers. Steps and streams allocate nothing per token. */
static void share_heap(void)
{
    mallopt(M_ARENA_MAX, 1);
}

static void start_log(const struct config *c)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    enum log_level level = LOG_INFO;

    for (int i = 0; i < 4; i++)
        if (strcmp(c->log_level, names[i]) == 0)
            level = (enum log_level)i;
    log_init(level, strcmp(c->log_format, "json") == 0);
}

/* Print the error that ends the program: text, or a line of a JSON log. An error for lack of memory
 * is named as such beside the words of the lower layers. */
static void report_failure(enum status s, const char *words)
{
    bool add_cause = s == ERR_NOMEM && !strstr(words, status_words(s));
    const char *cause = add_cause || !words[0] ? status_words(s) : "";
    const char *between = cause[0] && words[0] ? ": " : "";

    if (log_is_json())
        log_event(LOG_ERROR, "tarn-server failed", "why=\"%s%s%s\"", cause, between, words);
    else
        fprintf(stderr, "tarn-server: %s%s%s\n", cause, between, words);
}

/* --- the engine --- */

#define COST_DIR "cost"

/* The directory of measured costs; NULL: costs are not kept. The engine borrows the path. */
static const char *find_cost_dir(const struct config *c)
{
    static char path[PATH_MAX];

    if (!c->profile_cost)
        return NULL;
    const char *wrong = cache_dir_open(path, c->cache_dir, COST_DIR);
    if (wrong)
        log_event(LOG_WARN, "measured costs are not kept, each start takes seconds longer",
                  "dir=\"%s\" why=\"%s\"", path, wrong);
    return wrong ? NULL : path;
}

#define PACKED_DIR "packed"

/* The directory of packed weights; NULL: none are kept. The engine borrows the path. */
static const char *find_packed_dir(const struct config *c)
{
    static char path[PATH_MAX];

    if (c->packed_weights_bytes == 0)
        return NULL;
    const char *wrong = cache_dir_open(path, c->cache_dir, PACKED_DIR);
    if (wrong)
        log_event(LOG_WARN, "packed weights are not kept, each start quantizes again",
                  "dir=\"%s\" why=\"%s\"", path, wrong);
    return wrong ? NULL : path;
}

static void set_scheduling(struct engine_config *e, const struct config *c)
{
    e->policy = c->scheduling_policy;
    e->max_step_ms = c->max_step_ms;
    e->quantum_ms = c->quantum_ms;
    e->level_ratio = c->level_ratio;
    e->starvation_ms = c->starvation_ms;
    e->mlfq_variant = c->mlfq_variant;
    e->latency_objective =
        (enum latency_objective)flag_choice_at(LATENCY_OBJECTIVE_NAMES, c->latency_objective);
    e->age_boost_ms = c->age_boost_ms;
    e->reorder_window = (uint32_t)c->cache_reorder_window;
    e->slo_reject = strcmp(c->slo_admission, "reject") == 0;
    e->kv_reserve_blocks = (uint32_t)c->kv_reserve_blocks;
    e->swap = c->kv_swap;
    e->profile_cost = c->profile_cost;
}

static const char *null_if(const char *text, const char *word)
{
    return strcmp(text, word) == 0 ? NULL : text;
}

static void set_disk(struct engine_config *e, const struct config *c)
{
    e->kv_disk_path = null_if(c->kv_disk_path, "");
    e->kv_disk_bytes = c->kv_disk_bytes;
    e->kv_disk_min_uses = (uint32_t)c->kv_disk_min_uses;
    e->kv_disk_timeout_ms = (uint32_t)c->kv_disk_timeout_ms;
    e->kv_preload = c->kv_preload;
}

/* *dir: the folder or file of the draft model; "" without one. */
static enum status resolve_draft(const struct config *c, struct buf *dir, struct buf *why)
{
    struct buf words;

    if (!c->draft_model[0])
        return OK;
    buf_init(&words, BUF_WHY_MAX);
    enum status s = hub_resolve(c->draft_model, dir, &words);
    if (s != OK)
        buf_why(why, s, "--draft-model: %s", buf_str(&words));
    buf_fini(&words);
    return s;
}

/* Set all that the options say, but no directory of models or of the server's own files. */
static void set_engine(struct engine_config *e, const struct config *c)
{
    engine_config_init(e);
    e->device = c->device;
    e->cpu_variant = null_if(c->cpu_variant, "auto");
    e->dtype = c->dtype;
    e->quantization = c->quantization;
    e->quantization_group = (uint32_t)strtoul(c->quantization_group, NULL, 10); /* 0 for "auto" */
    e->packed_bytes = c->packed_weights_bytes;
    e->kv_dtype = c->kv_cache_dtype;
    e->load_format = c->load_format;
    set_scheduling(e, c);
    e->n_threads = (uint32_t)c->threads;
    e->numa = null_if(c->numa, "off");
    e->max_model_len = (uint32_t)c->max_model_len;
    e->max_num_seqs = (uint32_t)c->max_num_seqs;
    e->max_batched_tokens = (uint32_t)c->max_num_batched_tokens;
    e->speculative_tokens = (uint32_t)c->speculative_tokens;
    e->draft_kv_bytes = c->draft_kv_bytes;
    e->max_queued = (uint32_t)c->max_num_queued_reqs;
    e->sleep_idle_s = (uint32_t)c->sleep_idle_s;
    e->kv_bytes = c->kv_device_bytes;
    e->gpu_memory_utilization = c->gpu_memory_utilization;
    e->tensor_parallel_size = (uint32_t)c->tensor_parallel_size;
    e->batch_invariant = c->batch_invariant;
    e->wgmma = c->wgmma;
    e->enforce_eager = c->enforce_eager;
    e->async_scheduling = c->async_scheduling;
    e->segment_tokens = (uint32_t)c->kv_segment_tokens;
    e->prefix_caching = c->prefix_caching;
    e->kv_host_bytes = c->kv_host_bytes;
    e->kv_prefetch_share = c->kv_prefetch_share;
    e->kv_hold_share = c->kv_hold_share;
    set_disk(e, c);
    pool_flags_apply(e, c);
    e->cache_policy = c->cache_policy;
    lora_flags_apply(e, c);
    e->seed = c->seed;
    e->chat_template_file = null_if(c->chat_template, "");
}

static enum status open_engine(struct engine **out, const struct config *c, const char *model_dir,
                               const char *draft_dir, struct cache_events *kv_events,
                               struct buf *why)
{
    struct engine_config e;

    set_engine(&e, c);
    e.model_dir = model_dir;
    e.draft_model_dir = null_if(draft_dir, "");
    e.packed_dir = find_packed_dir(c);
    e.cost_dir = find_cost_dir(c);
    e.kv_events = kv_events;
    enum status s = engine_open(out, &e, why);
    if (s != OK)
        return s;
    s = engine_start(*out);
    if (s != OK) {
        buf_why(why, s,
                "cannot start the engine thread: no more memory or threads for this "
                "process (ulimit -v, ulimit -u, the container's limits)");
        engine_close(*out);
        *out = NULL;
    }
    return s;
}

/* --- serving --- */

static void reload_keys(const struct server *srv)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (auth_reload(srv->auth, &why) != OK)
        log_event(LOG_ERROR, "keys not loaded, the old ones stay", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
}

static void reload_certificate(struct http_server *http)
{
    struct buf why;
    bool changed;

    buf_init(&why, BUF_WHY_MAX);
    if (http_reload(http, &changed, &why) != OK)
        log_event(LOG_ERROR, "TLS certificate not loaded, the old one stays", "why=\"%s\"",
                  buf_str(&why));
    else
        log_event(LOG_INFO, "TLS certificate read again", "changed=%d", changed);
    buf_fini(&why);
}

static void reload(const struct server *srv, struct http_server *http)
{
    bool keys = srv->config->api_key_file[0], tls = srv->config->tls_cert[0];

    if (!keys && !tls)
        log_event(LOG_WARN, "SIGHUP: nothing to read again", "%s", "");
    if (keys)
        reload_keys(srv);
    if (tls)
        reload_certificate(http);
}

/* Wait for the first signal that ends the server, or a failure of the device. */
static void wait_for_end(const struct server *srv, struct http_server *http, const sigset_t *set)
{
    const struct timespec period = {.tv_nsec = WATCH_NS};
    struct summary summary = {.t_ns = clock_now_ns()}; /* requests may have arrived already */

    while (!engine_failed(srv->engine)) {
        int number = sigtimedwait(set, NULL, &period);
        if (number == SIGHUP)
            reload(srv, http);
        else if (number > 0)
            return;
        else if (errno == EAGAIN)
            summary_log(&summary, srv, clock_now_ns());
        log_flush(false);
    }
}

/* Wait for another signal to end; true when it came. */
static bool wait_signal(const sigset_t *set, long timeout_ns)
{
    struct timespec timeout = {.tv_nsec = timeout_ns};

    int number = sigtimedwait(set, NULL, &timeout);
    return number > 0 && number != SIGHUP;
}

/* Finish the running requests. After half of the time KV is handed over beside them, so that one
 * long answer does not prevent that. Returns false after a second signal. */
static bool finish_requests(struct server *srv, struct http_server *http, const sigset_t *set,
                            uint64_t end_ns)
{
    uint64_t now_ns = clock_now_ns(), leave_ns = now_ns + (end_ns - now_ns) / 2;

    while (http_n_in_flight(http) > 0 || !engine_drained(srv->engine)) {
        if (clock_now_ns() >= leave_ns)
            engine_leave_pool(srv->engine);
        if (wait_signal(set, DRAIN_POLL_NS)) {
            log_event(LOG_WARN, "second signal", "in_flight=%u", http_n_in_flight(http));
            return false;
        }
        if (clock_now_ns() >= end_ns) {
            log_event(LOG_WARN, "drain timed out", "in_flight=%u", http_n_in_flight(http));
            return true;
        }
    }
    return true;
}

/* Hand over to other instances what only this one has. */
static void leave_pool(const struct server *srv, const sigset_t *set, uint64_t end_ns)
{
    uint64_t start_ns = clock_now_ns();
    struct engine_stats stats;
    bool has_left = false;

    engine_leave_pool(srv->engine);
    while (!(has_left = engine_has_left_pool(srv->engine)) && clock_now_ns() < end_ns &&
           !engine_failed(srv->engine))
        if (wait_signal(set, DRAIN_POLL_NS)) {
            log_event(LOG_WARN, "second signal", "%s", "");
            break;
        }
    double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;
    if (has_left && !wait_signal(set, FIGURES_NS)) {
        engine_leave_pool(srv->engine); /* wakes the engine thread, which takes over the figures */
        clock_sleep_ns(DRAIN_POLL_NS);
    }
    engine_stats(srv->engine, &stats);
    pool_log_left(&stats.cache.pool, has_left, seconds);
}

static void drain(struct server *srv, struct http_server *http, const sigset_t *set)
{
    bool failed = engine_failed(srv->engine);
    uint64_t timeout_ns = failed ? FAILED_NS : srv->config->drain_timeout_s * SECOND_NS;
    uint64_t end_ns = clock_now_ns() + timeout_ns;

    atomic_store(&srv->draining, true);
    engine_drain_begin(srv->engine);
    log_event(LOG_INFO, "draining", "in_flight=%u timeout_s=%" PRIu64, http_n_in_flight(http),
              timeout_ns / SECOND_NS);
    if (finish_requests(srv, http, set, end_ns) && !failed && config_has_pool(srv->config))
        leave_pool(srv, set, end_ns);
    /* Cancel the remaining requests; their clients get an error. */
    end_ns = clock_now_ns() + (failed ? FAILED_NS : END_WAIT_NS);
    while (http_n_in_flight(http) > 0 && clock_now_ns() < end_ns) {
        http_cancel_all(http);
        clock_sleep_ns(END_POLL_NS);
    }
}

static enum status serve(struct server *srv, const sigset_t *set, struct buf *why)
{
    const struct config *c = srv->config;
    struct http_config config;
    struct http_server *http;

    http_flags_apply(&config, c, srv);
    buf_reset(why);
    enum status s = http_create(&http, &config, why);

    if (s != OK && why->len == 0)
        buf_why(why, s, "cannot start to serve: %s", status_words(s));
    if (s != OK)
        return s;
    s = kv_events_start(srv->kv_events, srv, http_port(http), why);
    if (s != OK) {
        http_destroy(http);
        return s;
    }
    early_end_stop();
    /* Only now: a failed start prints nothing but its error. */
    config_log(c);
    banner_print(srv, http_port(http));
    wait_for_end(srv, http, set);
    drain(srv, http, set);
    /* Also after a failure while draining: the requests it ended did not finish. */
    s = engine_failed(srv->engine) ? buf_why(why, ERR_INTERNAL, "the device failed") : OK;
    http_stop(http);
    background_close(srv->background);
    library_close(srv->library); /* its prefills need the engine */
    srv->library = NULL;
    embeddings_close(srv->embeddings); /* the library and lookups use the model */
    srv->embeddings = NULL;
    embeddings_close(srv->classifier);
    srv->classifier = NULL;
    engine_close(srv->engine); /* no request is woken after this */
    srv->engine = NULL;
    http_destroy(http);
    log_event(LOG_INFO, "stopped", "%s", "");
    log_flush(true);
    return s;
}

/* Write the options in the reasons as this program's flags. */
static enum status name_options(struct inspection *i)
{
    for (uint32_t k = 0; k < i->n_reasons; k++) {
        struct buf words;
        buf_init(&words, BUF_WHY_MAX);
        enum status s = buf_puts(&words, i->reasons[k]);
        config_name_options(&words);
        char *named = s == OK ? strdup(buf_str(&words)) : NULL;
        buf_fini(&words);
        if (!named)
            return ERR_NOMEM;
        free(i->reasons[k]);
        i->reasons[k] = named;
    }
    return OK;
}

/* Print the report of --inspect. A model that would be refused ends the program with 1. */
static enum status inspect(const struct config *c, bool *is_refused, struct buf *why)
{
    struct buf path, text;
    struct inspection i = {.n_reasons = 0};

    buf_init(&path, 8192);
    buf_init(&text, INSPECT_BYTES_MAX);
    enum status s = download_models(c, why);
    if (s == OK)
        s = hub_resolve(c->model, &path, why);
    if (s == OK) {
        struct engine_config engine;
        struct inspect_config config = {
            .name = c->model, .path = buf_str(&path), .engine = &engine};
        set_engine(&engine, c);
        s = inspect_model(&i, &config, why);
    }
    if (s == OK)
        s = name_options(&i);
    if (s == OK)
        s = strcmp(c->inspect, "json") == 0 ? inspect_write_json(&i, &text)
                                            : inspect_write(&i, &text);
    if (s == OK && (fputs(buf_str(&text), stdout) < 0 || fflush(stdout) != 0))
        s = buf_why(why, ERR_IO, "standard output: %s", strerror(errno));
    *is_refused = i.n_reasons > 0;
    inspect_fini(&i);
    buf_fini(&path);
    buf_fini(&text);
    return s;
}

static enum status run(struct config *c, const sigset_t *set, struct buf *why)
{
    struct preambles *preambles = NULL;
    struct publisher *kv_events = NULL;
    struct engine *engine = NULL;
    struct server srv;
    struct buf model_dir, draft_dir;

    buf_init(&model_dir, 8192);
    buf_init(&draft_dir, 8192);
    enum status s = auth_check_config(c, why); /* before the weights load for minutes */
    if (s == OK)
        s = pool_flags_read_secret(c, why);
    if (s == OK)
        s = preambles_open(&preambles, c->preamble, why);
    if (s == OK)
        s = kv_events_open(&kv_events, c, why);
    if (s == OK)
        s = download_models(c, why);
    if (s == OK)
        s = hub_resolve(c->model, &model_dir, why);
    if (s == OK)
        s = resolve_draft(c, &draft_dir, why);
    if (s == OK)
        s = open_engine(&engine, c, buf_str(&model_dir), buf_str(&draft_dir),
                        publisher_queue(kv_events), why);
    if (s == OK) {
        s = server_init(&srv, c, engine);
        if (s != OK)
            buf_why(why, s, "cannot prepare the server: %s", status_words(s));
        config_forget_secrets(c);
        if (s == OK) {
            s = preambles_prepare(preambles, &srv, why);
            srv.preambles = preambles;
            srv.kv_events = kv_events;
            if (s == OK)
                s = embeddings_open(&srv.embeddings, &srv, EMBEDDINGS_VECTORS, why);
            if (s == OK)
                s = embeddings_open(&srv.classifier, &srv, EMBEDDINGS_LABELS, why);
            if (s == OK)
                s = lora_flags_load(&srv, why);
            if (s == OK)
                s = library_open(&srv.library, &srv, why);
            if (s == OK)
                s = library_start(srv.library, why);
            if (s == OK)
                s = serve(&srv, set, why);
            library_close(srv.library);
            embeddings_close(srv.embeddings);
            embeddings_close(srv.classifier);
            engine = srv.engine;
            server_fini(&srv);
        }
    }
    engine_close(engine);
    publisher_destroy(kv_events); /* the cache sends into its queue */
    preambles_destroy(preambles);
    buf_fini(&model_dir);
    buf_fini(&draft_dir);
    return s;
}

int main(int argc, char **argv)
{
    bool is_refused = false; /* by --inspect */
    struct config config;
    struct buf why;
    sigset_t set;

    share_heap();
    buf_init(&why, BUF_WHY_MAX);
    enum status s = config_load(&config, argc, argv, environ, &why);
    if (s == OK && (config.want_help || config.want_version)) {
        if (config.want_help)
            config_print_help(stdout);
        else
            puts("tarn-server " TARN_VERSION);
    } else if (s == OK) {
        block_signals(&set);
        start_log(&config);
        bool inspects = strcmp(config.inspect, "off") != 0;
        if (!inspects)
            config_warn_unknown(environ);
        s = hash_init();
        if (s == OK)
            s = early_end_begin();
        if (s == OK)
            s = inspects ? inspect(&config, &is_refused, &why) : run(&config, &set, &why);
        early_end_stop();
    } else { /* in the log format of the options, as far as they were read */
        log_init(LOG_INFO, config_wants_json(&config, argc, argv, environ));
    }
    if (s != OK) {
        config_name_options(&why);
        report_failure(s, buf_str(&why));
    }
    config_fini(&config);
    buf_fini(&why);
    return s == OK && !is_refused ? EXIT_SUCCESS : EXIT_FAILURE;
}
