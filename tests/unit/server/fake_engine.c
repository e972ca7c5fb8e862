#include "tests/unit/server/fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/document_order.h"
#include "engine/embedder.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define N_INSIDE_MAX 1024
#define IDLE_NS 200000

_Atomic uint64_t fake_step_ns;
_Atomic uint64_t fake_prefill_ns;
atomic_uint fake_n_max = N_INSIDE_MAX;
atomic_uint fake_usual_ms = 1000;
atomic_uint fake_n_inside;
atomic_int fake_fail_at = -1;
atomic_bool fake_uses_documents;
atomic_bool fake_failed;
atomic_uint fake_clock_s;
_Atomic(const char *) fake_text = "abcdefghijklmnopqrstuvwxyz";
atomic_bool fake_is_stuck;
_Atomic uint64_t fake_view_ns;
atomic_uint fake_n_viewing;
atomic_uint fake_n_resets;
atomic_uint fake_n_erasures;
atomic_uint fake_n_releases;
atomic_uint fake_n_releases;
atomic_bool fake_has_disk = true;
atomic_bool fake_has_pool;
atomic_bool fake_order_is_held;
atomic_uint fake_n_orders;
atomic_uint fake_n_ordered;

struct tokenizer {
    char bytes[256];
};

struct chat_template {
    int unused;
};

struct inside {
    struct request *r;
    struct stop_watch stop;
    uint64_t t_next;
};

struct engine {
    struct engine_info info;
    struct tokenizer tokenizer;
    struct chat_template template;
    uint32_t eos;
    pthread_t thread;
    atomic_bool stopping, draining;
    pthread_mutex_t lock;
    struct inside inside[N_INSIDE_MAX]; /* under lock */
    uint32_t n_inside;
    uint64_t n_tokens;
    struct fake_submitted submitted[FAKE_N_SUBMITTED_MAX];
    uint32_t n_submitted;
};

/* --- tokenizer, detokenizer, template --- */

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                             unsigned flags, struct buf *ids)
{
    enum status s = flags & TOKENIZE_ADD_SPECIAL ? buf_u32(ids, FAKE_BOS) : OK;

    (void)t;
    for (size_t i = 0; s == OK && i < len; i++)
        s = buf_u32(ids, (unsigned char)text[i]);
    return s;
}

enum status tokenizer_encode_mixed(const struct tokenizer *t, const char *text, size_t len,
                                   unsigned flags, const struct ranges *untrusted, struct buf *ids)
{
    (void)untrusted; /* this tokenizer has no special tokens */
    return tokenizer_encode(t, text, len, flags, ids);
}

const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *len)
{
    *len = id < 256 ? 1 : id < FAKE_N_VOCAB ? (id == FAKE_BOS ? 3 : 4) : 0;
    return id < 256 ? &t->bytes[id] : id == FAKE_BOS ? "<s>" : "</s>";
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *len)
{
    return tokenizer_bytes(t, id, len);
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    (void)t;
    return 256;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    (void)t;
    return id >= 256;
}

const char *tokenizer_bos_text(const struct tokenizer *t)
{
    (void)t;
    return "<s>";
}

const char *tokenizer_eos_text(const struct tokenizer *t)
{
    (void)t;
    return "</s>";
}

void detok_init(struct detok *d, const struct tokenizer *tok, const struct detok_stop *stops,
                uint32_t n_stops, bool show_special, bool continues, bool include_stop)
{
    memset(d, 0, sizeof *d);
    d->tok = tok;
    d->stops = stops;
    d->n_stops = n_stops;
    d->show_special = show_special;
    d->continues = continues;
    d->include_stop = include_stop;
    d->stopped_by = -1;
    buf_init(&d->held, 1 << 20);
}

void detok_fini(struct detok *d)
{
    buf_fini(&d->held);
}

/* Hold back incomplete characters, and with stop strings all text until the end: simple, and the
 * whole text is right. */
enum status detok_feed(struct detok *d, uint32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(d->tok, id, &len);

    if (d->stopped_by >= 0 || (id >= 256 && !d->show_special))
        return OK;
    enum status s = buf_append(&d->held, bytes, len);
    if (s == OK && d->n_stops == 0 && utf8_is_valid(d->held.data, d->held.len)) {
        s = buf_append(out, d->held.data, d->held.len);
        buf_reset(&d->held);
    }
    for (uint32_t i = 0; s == OK && i < d->n_stops; i++) {
        uint32_t n = d->stops[i].len;
        if (d->held.len < n || memcmp(d->held.data + d->held.len - n, d->stops[i].text, n) != 0)
            continue;
        d->stopped_by = (int)i;
        d->held.len -= d->include_stop ? 0 : n;
        s = buf_append(out, d->held.data, d->held.len);
        buf_reset(&d->held);
        break;
    }
    return s;
}

enum status detok_finish(struct detok *d, struct buf *out)
{
    enum status s = d->held.len ? buf_append(out, d->held.data, d->held.len) : OK;

    buf_reset(&d->held);
    return s;
}

static const char *text_of(const struct json *v)
{
    return js_is(v, JS_STRING) ? js_string(v, NULL) : "";
}

enum status chat_template_render(const struct chat_template *t, const struct json *context,
                                 int64_t now_s, struct buf *out, struct buf *why)
{
    const struct json *messages = js_get(context, "messages");
    const struct json *documents = js_get(context, "documents");
    enum status s = buf_puts(out, text_of(js_get(context, "bos_token")));

    (void)t;
    if (s == OK && atomic_load(&fake_clock_s))
        s = buf_printf(out, "%lld\n", (long long)now_s / atomic_load(&fake_clock_s));
    if (js_get(context, "raise"))
        return buf_why(why, ERR_INVALID, "raised");
    for (size_t i = 0; s == OK && i < js_len(documents); i++)
        s = buf_printf(out, "[%s|%s]", text_of(js_get(js_at(documents, i), "title")),
                       text_of(js_get(js_at(documents, i), "text")));
    for (size_t i = 0; s == OK && i < js_len(messages); i++)
        s = buf_printf(out, "%s: %s\n", text_of(js_get(js_at(messages, i), "role")),
                       text_of(js_get(js_at(messages, i), "content")));
    if (s == OK && js_bool(js_get(context, "add_generation_prompt")))
        s = buf_puts(out, "assistant: ");
    return s;
}

/* A single text is found by its bytes, and several are not. */
enum status chat_template_render_marked(const struct chat_template *t, const struct json *context,
                                        int64_t now_s, const struct chat_text *untrusted,
                                        size_t n_untrusted, struct buf *out, struct ranges *marked,
                                        struct buf *why)
{
    size_t start = out->len;
    enum status s = chat_template_render(t, context, now_s, out, why);

    if (s != OK || n_untrusted != 1)
        return s;
    const char *at = memmem(out->data + start, out->len - start, untrusted->p, untrusted->len);
    size_t begin = at ? (size_t)(at - (const char *)out->data) : 0;
    return at ? ranges_add(marked, begin, begin + untrusted->len) : OK;
}

/* Choose the reverse order. */
enum status document_order_by_cache(const struct engine *e, const struct document_prompt *p,
                                    uint32_t *order, uint32_t *n_cached)
{
    (void)e;
    atomic_fetch_add(&fake_n_orders, 1);
    while (atomic_load(&fake_order_is_held))
        clock_sleep_ns(IDLE_NS);
    *n_cached = 0;
    for (uint32_t i = 0; i < p->n_documents; i++)
        order[i] = p->n_documents - 1 - i;
    atomic_fetch_add(&fake_n_ordered, 1);
    return OK;
}

bool chat_template_uses(const struct chat_template *t, const char *variable)
{
    (void)t;
    if (strcmp(variable, "strftime_now") == 0)
        return atomic_load(&fake_clock_s) > 0;
    return strcmp(variable, "documents") == 0 && atomic_load(&fake_uses_documents);
}

bool chat_template_mentions(const struct chat_template *t, const char *word)
{
    (void)t;
    (void)word;
    return false;
}

/* --- requests --- */

enum status request_create(struct request **out, const struct engine *e, const uint32_t *ids,
                           uint32_t n_ids, const uint32_t *span_ends, uint32_t n_span_ends,
                           const struct kv_scope *scope, uint32_t n_public,
                           const struct sampling *sampling, const struct stopping *stopping,
                           struct buf *why)
{
    (void)n_public;
    (void)span_ends;
    (void)n_span_ends;
    (void)scope;
    if (n_ids == 0)
        return buf_why(why, ERR_INVALID, "the prompt is empty");
    struct request *r = calloc(1, sizeof *r);
    ASSERT(r);
    r->sampling = *sampling;
    r->stopping = *stopping;
    r->prompt_out = calloc(n_ids, sizeof *r->prompt_out);
    r->prompt_top = calloc((size_t)n_ids * (sampling->n_logprobs + 1), sizeof *r->prompt_top);
    if (r->stopping.max_tokens > e->info.max_model_len - n_ids)
        r->stopping.max_tokens = e->info.max_model_len - n_ids;
    struct detok_stop *stops = calloc(stopping->n_stops + 1, sizeof *stops);
    for (uint32_t i = 0; i < stopping->n_stops; i++)
        stops[i] = (struct detok_stop){strndup(stopping->stops[i].text, stopping->stops[i].len),
                                       stopping->stops[i].len};
    r->stopping.stops = stops;
    uint32_t *copy = malloc(n_ids * sizeof *copy);
    ASSERT(copy);
    memcpy(copy, ids, n_ids * sizeof *copy);
    r->prompt.ids = copy;
    r->prompt.n_ids = n_ids;
    r->out = calloc((size_t)r->stopping.max_tokens + 1, sizeof *r->out);
    r->out_top =
        calloc((size_t)r->stopping.max_tokens * (sampling->n_logprobs + 1), sizeof *r->out_top);
    r->stop_id = r->stop_string = -1;
    atomic_init(&r->refs, 1);
    *out = r;
    return OK;
}

void request_unref(struct request *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    for (uint32_t i = 0; i < r->stopping.n_stops; i++)
        free((void *)(uintptr_t)r->stopping.stops[i].text);
    free((void *)(uintptr_t)r->stopping.stops);
    free((void *)(uintptr_t)r->prompt.ids);
    free(r->out);
    free(r->out_top);
    free(r->prompt_out);
    free(r->prompt_top);
    free(r);
}

void request_poll(struct request *r)
{
    atomic_store(&r->woken, false);
}

void request_cancel(struct request *r)
{
    atomic_store(&r->cancel, true);
}

uint32_t request_n_out(const struct request *r)
{
    return atomic_load(&r->n_out);
}

enum finish_reason request_finish(const struct request *r)
{
    return (enum finish_reason)atomic_load(&r->finish);
}

uint32_t request_n_written(const struct request *r)
{
    uint32_t n_cached = atomic_load(&r->n_cached);

    return r->n_held > n_cached ? r->n_held - n_cached : 0;
}

/* --- engine --- */

static void wake(struct request *r)
{
    if (!atomic_exchange(&r->woken, true))
        r->wake(r->wake_arg);
}

/* Give token i of the prompt the logprob -i, and worse alternatives. */
static void score_prompt(struct request *r)
{
    uint32_t n_top = r->sampling.n_logprobs;

    for (uint32_t i = 1; r->sampling.want_prompt_logprobs && i < r->prompt.n_ids; i++) {
        r->prompt_out[i] = (struct out_token){r->prompt.ids[i], -(float)i};
        for (uint32_t k = 0; k < n_top; k++)
            r->prompt_top[i * n_top + k] =
                (struct out_top){r->prompt.ids[i] + k, -(float)i - (float)k};
    }
    atomic_store(&r->n_prompt_out, r->prompt.n_ids);
}

/* Generate a token or end the request. True: the request has ended. */
static bool step(struct engine *e, struct inside *in)
{
    struct request *r = in->r;
    uint32_t n = request_n_out(r);
    enum finish_reason finish = FINISH_NONE;

    if (atomic_load(&r->cancel) || atomic_load(&e->stopping)) {
        finish = FINISH_CANCELLED;
    } else if (clock_now_ns() < in->t_next) {
        return false;
    } else if ((int)n == atomic_load(&fake_fail_at)) {
        r->error = ERR_INTERNAL;
        r->error_words = "the fake engine was told to fail";
        finish = FINISH_ERROR;
    } else if (stopping_is_prefill(&r->stopping)) {
        score_prompt(r);
        finish = FINISH_LENGTH;
    } else {
        if (n == 0)
            score_prompt(r);
        const char *text = atomic_load(&fake_text);
        uint32_t id = (unsigned char)text[n % strlen(text)];
        r->out[n] = (struct out_token){.id = id, .logprob = -0.5f};
        for (uint32_t k = 0; k < r->sampling.n_logprobs; k++)
            r->out_top[n * r->sampling.n_logprobs + k] =
                (struct out_top){.id = id + k, .logprob = -0.5f - (float)k};
        if (n == 0)
            atomic_store(&r->t_first_token, clock_now_ns());
        e->n_tokens++;
        in->t_next = clock_now_ns() + atomic_load(&fake_step_ns);
        ASSERT(stop_watch_feed(&in->stop, n, id) == OK);
        finish = in->stop.now.finish;
        r->stop_id = in->stop.now.stop_id;
        r->stop_string = in->stop.now.stop_string;
        atomic_store(&r->n_text_ids, in->stop.now.n_text_ids);
        atomic_store(&r->n_text_bytes, in->stop.now.n_text_bytes);
        atomic_store(&r->n_out, n + 1);
    }
    if (finish != FINISH_NONE) {
        stop_watch_fini(&in->stop);
        atomic_store(&r->t_finish, clock_now_ns());
        atomic_store(&r->finish, (int)finish);
    }
    wake(r);
    if (finish != FINISH_NONE)
        request_unref(r);
    return finish != FINISH_NONE;
}

static void *loop(void *arg)
{
    struct engine *e = arg;

    for (;;) {
        pthread_mutex_lock(&e->lock);
        for (uint32_t i = 0; i < e->n_inside;) {
            if (step(e, &e->inside[i]))
                e->inside[i] = e->inside[--e->n_inside];
            else
                i++;
        }
        atomic_store(&fake_n_inside, e->n_inside);
        bool end = atomic_load(&e->stopping) && e->n_inside == 0;
        pthread_mutex_unlock(&e->lock);
        if (end)
            return NULL;
        clock_sleep_ns(IDLE_NS);
    }
}

struct engine *fake_engine_create(uint32_t max_model_len)
{
    struct engine *e = calloc(1, sizeof *e);

    ASSERT(e);
    e->eos = FAKE_EOS;
    e->info = (struct engine_info){.model_dir = "fake",
                                   .n_tiers = CACHE_REMOTE,
                                   .ops_name = "fake",
                                   .weights_name = "f32",
                                   .n_vocab = FAKE_N_VOCAB,
                                   .max_num_seqs = FAKE_MAX_NUM_SEQS,
                                   .max_queued = FAKE_MAX_QUEUED,
                                   .max_model_len = max_model_len,
                                   .eos_ids = &e->eos,
                                   .n_eos_ids = 1,
                                   .default_temperature = 0.75f,
                                   .default_top_p = 0.9f,
                                   .default_repetition_penalty = 1,
                                   .default_top_k = 7,
                                   .n_kv_blocks = 100,
                                   .n_kv_host_blocks = FAKE_N_HOST_BLOCKS,
                                   .kv_block_bytes = 4096,
                                   .fingerprint_hex = "0123456789abcdef"};
    for (int i = 0; i < 256; i++)
        e->tokenizer.bytes[i] = (char)i;
    pthread_mutex_init(&e->lock, NULL);
    ASSERT(pthread_create(&e->thread, NULL, loop, e) == 0);
    return e;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    atomic_store(&e->stopping, true);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

void engine_drain_begin(struct engine *e)
{
    atomic_store(&e->draining, true);
}

bool engine_drained(const struct engine *e)
{
    (void)e;
    return atomic_load(&fake_n_inside) == 0;
}

bool engine_failed(const struct engine *e)
{
    (void)e;
    return atomic_load(&fake_failed);
}

enum status engine_submit(struct engine *e, struct request *r, struct buf *why)
{
    if (atomic_load(&e->draining))
        return buf_why(why, ERR_UNAVAILABLE, "draining");
    pthread_mutex_lock(&e->lock);
    bool full = e->n_inside >= atomic_load(&fake_n_max);
    if (!full) {
        struct inside *in = &e->inside[e->n_inside++];
        in->r = r;
        in->t_next = clock_now_ns() + atomic_load(&fake_prefill_ns);
        const struct stop_model model = {&e->eos, 1, FAKE_N_VOCAB, &e->tokenizer};
        ASSERT(stop_watch_init(&in->stop, &r->stopping, &model, r->text_continues) == OK);
        atomic_fetch_add(&r->refs, 1);
        atomic_store(&r->t_submit, clock_now_ns());
        atomic_store(&r->estimated_e2e_us, 1500 * r->prompt.n_ids);
        atomic_store(&r->estimated_ttft_us, 1000 * r->prompt.n_ids);
        atomic_store(&fake_n_inside, e->n_inside);
        if (e->n_submitted < FAKE_N_SUBMITTED_MAX)
            e->submitted[e->n_submitted++] = (struct fake_submitted){
                r->tenant, r->flow, r->session, r->priority, r->slo_ttft_s, r->slo_tpot_s};
    }
    pthread_mutex_unlock(&e->lock);
    return full ? buf_why(why, ERR_BUSY, "the queue is full") : OK;
}

uint32_t fake_engine_submitted(struct engine *e, struct fake_submitted out[FAKE_N_SUBMITTED_MAX])
{
    pthread_mutex_lock(&e->lock);
    uint32_t n = e->n_submitted;
    memcpy(out, e->submitted, n * sizeof *out);
    e->n_submitted = 0;
    pthread_mutex_unlock(&e->lock);
    return n;
}

void engine_reset_cache(struct engine *e)
{
    (void)e;
    atomic_fetch_add(&fake_n_resets, 1);
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

/* --- no embedding model --- */

enum status embedder_open(struct embedder **out, const struct embedder_config *config,
                          struct buf *why)
{
    (void)config;
    *out = NULL;
    return buf_why(why, ERR_UNSUPPORTED, "the fake engine embeds nothing");
}

void embedder_close(struct embedder *e)
{
    (void)e;
}

uint32_t embedder_dim(const struct embedder *e)
{
    (void)e;
    return 0;
}

enum status embedder_encode(struct embedder *e, const char *text, size_t len, float *out,
                            uint32_t *n_tokens, struct buf *why)
{
    (void)e;
    (void)text;
    (void)len;
    (void)out;
    (void)n_tokens;
    (void)why;
    return ERR_UNSUPPORTED;
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

/* Knows the sessions of the submitted requests, until they are closed. */
enum status engine_session(struct engine *e, uint64_t session, bool close,
                           struct engine_session *out)
{
    *out = (struct engine_session){0};
    if (atomic_load(&fake_is_stuck))
        return ERR_TIMEOUT;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->n_submitted; i++) {
        if (e->submitted[i].session != session)
            continue;
        out->is_known = true;
        out->received.n_calls++;
        if (close)
            e->submitted[i].session = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return OK;
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

const struct tokenizer *engine_tokenizer(const struct engine *e)
{
    return &e->tokenizer;
}

const struct chat_template *engine_chat_template(const struct engine *e)
{
    return &e->template;
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
                                  .n_queries = 233,
                                  .n_queries_failed = 234,
                                  .n_query_bytes = 235,
                                  .n_attended = 236,
                                  .n_attended_rows = 237,
                                  .query_s = 0.75,
                                  .n_refused = 226,
                                  .n_offered = 227,
                                  .n_handed_over = 228,
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
        clock_sleep_ns(IDLE_NS);
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

/* Three instances: this one, one that leaves, one with another model. */
uint32_t engine_pool_instances(struct engine *e, struct directory_instance *out, uint32_t n_max)
{
    static const struct directory_instance all[] = {
        {.id = 0xA1,
         .name = "here",
         .address = "tcp://10.0.0.1:7001",
         .n_blocks = 100,
         .n_free_blocks = 40,
         .n_waiting = 2,
         .n_running = 3,
         .version = "0.1.0",
         .fingerprint = {1}},
        {.id = 0xB2,
         .name = "there \"2\"",
         .address = "ucx://10.0.0.2:7001",
         .http = "http://10.0.0.2:8000",
         .n_blocks = 4294967295u,
         .is_leaving = true,
         .fingerprint = {1}},
        {.id = 0xC3, .fingerprint = {2}, .is_leaving = true},
    };
    uint32_t n = atomic_load(&fake_has_pool) ? 3 : 0;

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

bool engine_has_prefill_room(const struct engine *e, uint32_t n_leaving)
{
    (void)e;
    (void)n_leaving;
    return true;
}

double engine_usual_ttft_s(const struct engine *e)
{
    (void)e;
    return (double)atomic_load(&fake_usual_ms) * 1e-3;
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
