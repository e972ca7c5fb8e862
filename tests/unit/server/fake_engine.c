#include "tests/unit/server/fake_inner.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/adapters.h"
#include "engine/document_order.h"

_Atomic uint64_t fake_step_ns;
_Atomic uint64_t fake_prefill_ns;
atomic_uint fake_n_max = FAKE_N_INSIDE_MAX;
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
atomic_bool fake_has_disk = true;
atomic_bool fake_has_pool;
atomic_bool fake_order_is_held;
atomic_uint fake_n_orders;
atomic_uint fake_n_ordered;

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

enum status request_predict(struct request *r, const struct engine *e, const uint32_t *ids,
                            uint32_t n, struct buf *why)
{
    (void)e;
    (void)ids;
    (void)why;
    r->n_prediction = n;
    return OK;
}

void request_adapt(struct request *r, const struct engine *e, struct adapter *adapter)
{
    (void)e;
    r->adapter = adapter_ref(adapter);
}

struct adapters *engine_adapters(const struct engine *e)
{
    (void)e;
    return NULL;
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
    grammar_unref(r->grammar);
    adapter_unref(r->adapter);
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
        clock_sleep_ns(FAKE_IDLE_NS);
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

/* Choose the reverse order. */
enum status document_order_by_cache(const struct engine *e, const struct document_prompt *p,
                                    uint32_t *order, uint32_t *n_cached)
{
    (void)e;
    atomic_fetch_add(&fake_n_orders, 1);
    while (atomic_load(&fake_order_is_held))
        clock_sleep_ns(FAKE_IDLE_NS);
    *n_cached = 0;
    for (uint32_t i = 0; i < p->n_documents; i++)
        order[i] = p->n_documents - 1 - i;
    atomic_fetch_add(&fake_n_ordered, 1);
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
