/* The step loop: take what was submitted, let go of what was cancelled, ask the scheduler, run one
 * batch through the model, pick tokens, hand them out. Runs on the engine thread alone. */
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "kernels/device.h"

#define IDLE_WAIT_NS 1000000000u
/* Until then the cost model is a guess, of which only ratios are right. */
#define N_PREFILLS_TO_SCALE 4
/* When a copy may be what everybody waits for. */
#define COPY_WAIT_NS 200000u

/* --- tokens and ends go to the submitter --- */

static void wake(struct request *r)
{
    if (!atomic_exchange(&r->woken, true) && r->wake)
        r->wake(r->wake_arg);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

static void count_finish(struct engine *e, const struct request *r, enum finish_reason reason)
{
    struct engine_stats *st = &e->live;
    uint64_t t0 = atomic_load(&r->t_submit), t1 = atomic_load(&r->t_first_step);
    uint64_t t2 = atomic_load(&r->t_first_token), t3 = atomic_load(&r->t_finish);
    uint32_t n_out = atomic_load(&r->n_out);

    st->n_finished[reason]++;
    if (reason != FINISH_STOP && reason != FINISH_LENGTH)
        return;
    hist_add(&st->e2e_s, seconds(t0, t3));
    hist_add(&st->queue_s, seconds(t0, t1));
    hist_add(&st->prefill_s, seconds(t1, t2));
    hist_add(&st->decode_s, seconds(t2, t3));
    hist_add(&st->inference_s, seconds(t1, t3));
    if (n_out > 1)
        hist_add(&st->tpot_s, seconds(t2, t3) / (n_out - 1));
    hist_add(&st->prompt_tokens, r->prompt.n_ids);
    hist_add(&st->computed_tokens, r->prompt.n_ids - atomic_load(&r->n_cached));
    hist_add(&st->max_tokens, r->stopping.max_tokens);
    hist_add(&st->generation_tokens, n_out);
}

/* Whoever asked for it finds the prompt's KV a while longer. */
static void hold_prompt(const struct sequence *q, uint64_t now)
{
    const struct request *r = q->req;

    (void)cache_seq_hold(q->kv, r->prompt.n_ids, now + r->cache_ttl_s * UINT64_C(1000000000));
}

/* The end of a request, whatever the reason: everything it holds is given back now. The scheduler
 * has been told by the caller (finish and cancel are different events). */
static void end_sequence(struct engine *e, uint32_t slot, enum finish_reason reason)
{
    struct sequence *q = &e->seqs[slot];
    struct request *r = q->req;

    if (r->cache_ttl_s && (reason == FINISH_STOP || reason == FINISH_LENGTH))
        hold_prompt(q, clock_now_ns());
    cache_seq_close(q->kv);
    sampler_state_fini(&q->sampler);
    if (q->watches_text)
        detok_fini(&q->detok);
    if (!q->admitted)
        atomic_fetch_sub(&e->n_queued, 1);
    *q = (struct sequence){0};
    e->free_slots[e->n_free_slots++] = slot;

    atomic_store(&r->t_finish, clock_now_ns());
    count_finish(e, r, reason);
    atomic_fetch_sub(&e->n_inside, 1);
    atomic_store(&r->finish, (int)reason);
    wake(r);
    request_unref(r);
}

static void fail_sequence(struct engine *e, uint32_t slot, enum status error, const char *words)
{
    struct request *r = e->seqs[slot].req;

    log_event(LOG_ERROR, "request failed", "id=\"%s\" error=%s", r->id, status_name(error));
    r->error = error;
    r->error_words = words;
    scheduler_on_finish(e->scheduler, slot);
    end_sequence(e, slot, FINISH_ERROR);
}

/* --- intake --- */

static enum status open_sequence(struct engine *e, struct sequence *q, struct request *r)
{
    enum status s = cache_seq_open(e->cache, &r->prompt, r->prompt.n_ids + r->stopping.max_tokens,
                                   &q->kv);

    if (s == OK)
        s = sampler_state_init(&q->sampler, &r->sampling, e->info.n_vocab, r->ids,
                               r->prompt.n_ids, r->stopping.max_tokens);
    if (s != OK) {
        cache_seq_close(q->kv);
        return s;
    }
    q->req = r;
    q->n_known = r->prompt.n_ids;
    q->watches_text = r->stopping.n_stops > 0 && e->tokenizer;
    if (q->watches_text)
        detok_init(&q->detok, e->tokenizer, r->stopping.stops, r->stopping.n_stops,
                   r->stopping.show_special, r->text_continues, r->stopping.include_stop);
    return OK;
}

/* A request that never became a sequence. */
static void refuse(struct engine *e, struct request *r, enum status error, const char *words)
{
    r->error = error;
    r->error_words = words;
    atomic_store(&r->t_finish, clock_now_ns());
    e->live.n_finished[FINISH_ERROR]++;
    atomic_fetch_sub(&e->n_queued, 1);
    atomic_fetch_sub(&e->n_inside, 1);
    atomic_store(&r->finish, FINISH_ERROR);
    wake(r);
    request_unref(r);
}

static void take_submitted(struct engine *e, uint64_t now)
{
    uint32_t n = ring_drain(&e->submitted, e->intake, e->n_slots);

    for (uint32_t i = 0; i < n; i++) {
        struct request *r = e->intake[i];
        if (atomic_load(&e->failed)) { /* it was past engine_submit()'s look at that */
            refuse(e, r, ERR_UNAVAILABLE, DEVICE_FAILED_WORDS);
            continue;
        }
        ASSERT(e->n_free_slots > 0); /* engine_submit() lets no more in than there are slots */
        uint32_t slot = e->free_slots[e->n_free_slots - 1];
        enum status s = open_sequence(e, &e->seqs[slot], r);
        if (s != OK) {
            e->seqs[slot] = (struct sequence){0};
            refuse(e, r, s, "out of memory for this request");
            continue;
        }
        e->n_free_slots--;
        r->slot = slot;
        scheduler_submit(e->scheduler, slot, r->prompt.n_ids, r->priority, now);
        cache_seq_expect(e->seqs[slot].kv);
    }
}

static void drop_cancelled(struct engine *e)
{
    bool all = atomic_load(&e->stopping);

    for (uint32_t slot = 0; slot < e->n_slots; slot++) {
        struct request *r = e->seqs[slot].req;
        if (!r || !(all || atomic_load_explicit(&r->cancel, memory_order_relaxed)))
            continue;
        scheduler_on_cancel(e->scheduler, slot);
        end_sequence(e, slot, FINISH_CANCELLED);
    }
}

/* --- the plan becomes a batch --- */

static uint32_t view_match(void *arg, uint32_t slot)
{
    return cache_match(((struct engine *)arg)->seqs[slot].kv);
}

static uint32_t view_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    return cache_seq_need(((struct engine *)arg)->seqs[slot].kv, n_tokens);
}

static uint32_t view_reclaimable(void *arg, uint32_t slot)
{
    return cache_seq_reclaimable(((struct engine *)arg)->seqs[slot].kv);
}

static void preempt(struct engine *e, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->n_preempt; i++) {
        struct sequence *q = &e->seqs[plan->preempt[i]];
        cache_seq_drop(q->kv);
        cache_seq_expect(q->kv); /* it comes back */
        q->n_computed = 0;
        q->runs_alone = false;
        e->live.n_preemptions++;
    }
}

/* In the order of service, what waits gets its KV from the host before it is planned. */
static void prefetch(struct engine *e)
{
    uint32_t n = e->config.kv_host_bytes ? scheduler_n_waiting(e->scheduler) : 0;

    for (uint32_t i = 0; i < n; i++)
        if (!cache_seq_prefetch(e->seqs[scheduler_waiting(e->scheduler, i)].kv))
            return;
}

/* Its first step: what it found is known now, and waiting is over. */
static void note_admitted(struct engine *e, struct sequence *q, const uint32_t *found, uint64_t now)
{
    q->admitted = q->runs_alone = true;
    atomic_fetch_sub(&e->n_queued, 1);
    atomic_store(&q->req->t_first_step, now);
    atomic_store(&q->req->n_cached, q->n_computed);
    e->live.n_prompt_tokens += q->req->prompt.n_ids;
    e->live.n_prompt_tokens_cached += q->n_computed;
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        atomic_store(&q->req->n_cached_in[t], found[t]);
        e->live.n_prompt_tokens_in[t] += found[t];
    }
}

/* All attach before any grows: growing may evict what another was promised. So may fetching, and a
 * copy may fail: then a sequence has fewer tokens than planned, and its first come first. */
static void admit(struct engine *e, const struct plan *plan, uint64_t now)
{
    uint32_t found[CACHE_N_TIERS];

    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct plan_item *item = &plan->items[i];
        struct sequence *q = &e->seqs[item->slot];
        if (!item->admit)
            continue;
        q->n_computed = cache_seq_attach(q->kv, found);
        if (q->n_computed != item->n_cached)
            scheduler_on_attach(e->scheduler, item->slot, q->n_computed);
        if (!q->admitted) /* else back from a preemption: counted already */
            note_admitted(e, q, found, now);
    }
}

/* Returns how many items made it into the batch; slots[] names them in batch order. */
static uint32_t build_batch(struct engine *e, const struct plan *plan, struct plan_item *items)
{
    uint32_t n = 0;

    batch_reset(&e->batch);
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct plan_item *item = &plan->items[i];
        struct sequence *q = &e->seqs[item->slot];
        uint32_t left = q->n_known - q->n_computed;
        items[n] = *item;
        if (items[n].n_tokens > left) /* it found more than when it was planned */
            items[n].n_tokens = left;
        enum status s = cache_seq_grow(q->kv, items[n].n_tokens);
        if (s != OK) { /* the plan's count was wrong: a bug, but one request's, not the server's */
            fail_sequence(e, item->slot, s, "the KV pool is full");
            continue;
        }
        batch_add(&e->batch, q->kv, q->req->ids + q->n_computed, q->n_computed,
                  items[n].n_tokens, items[n].n_tokens == left ? 1 : 0);
        n++;
    }
    return n;
}

/* --- sampling --- */

struct pick_job {
    struct engine *e;
    float *logits;
    const uint32_t *slots;       /* [n_out] */
    struct out_token *tokens;    /* [n_out] */
};

static uint32_t banned_ids(const struct engine *e, const struct request *r, uint32_t n_out,
                           uint32_t *ids)
{
    uint32_t n = 0;

    if (n_out >= r->stopping.min_tokens)
        return 0;
    for (uint32_t i = 0; i < e->info.n_eos_ids; i++)
        ids[n++] = e->info.eos_ids[i];
    for (uint32_t i = 0; i < r->stopping.n_stop_ids; i++)
        if (r->stopping.stop_ids[i] < e->info.n_vocab)
            ids[n++] = r->stopping.stop_ids[i];
    return n;
}

/* banned [N_BANNED_MAX] is the row's; *top is where the token's alternatives go. */
static struct sampler_row row_of(const struct engine *e, uint32_t slot, uint32_t *banned,
                                 struct out_top **top)
{
    const struct sequence *q = &e->seqs[slot];
    const struct request *r = q->req;
    uint32_t n_out = q->n_known - r->prompt.n_ids;

    *top = r->out_top ? r->out_top + (size_t)n_out * r->sampling.n_logprobs : NULL;
    return (struct sampler_row){.sampling = &r->sampling, .state = &q->sampler, .n = n_out,
                                .banned = banned, .n_banned = banned_ids(e, r, n_out, banned),
                                .n_vocab = e->info.n_vocab};
}

static void pick_row(void *arg, uint32_t i)
{
    const struct pick_job *job = arg;
    struct engine *e = job->e;
    uint32_t banned[N_BANNED_MAX];
    struct out_top *top;
    size_t at = (size_t)i * e->info.n_vocab;
    struct sampler_row row = row_of(e, job->slots[i], banned, &top);

    row.logits = job->logits + at;
    row.scratch = e->candidates + at;
    row.raw = e->raw_logits + at;
    sampler_pick(&row, &job->tokens[i], top);
}

/* One token per row of logits, where the logits are. */
static enum status pick_tokens(const struct pick_job *job, uint32_t n_out)
{
    struct engine *e = job->e;

    if (!e->device_sampler) {
        device_parallel(e->device, n_out, pick_row, (void *)job);
        return OK;
    }
    device_sampler_begin(e->device_sampler, job->logits, job->tokens);
    for (uint32_t i = 0; i < n_out; i++) {
        uint32_t banned[N_BANNED_MAX];
        struct out_top *top;
        struct sampler_row row = row_of(e, job->slots[i], banned, &top);
        enum status s = device_sampler_add(e->device_sampler, &row, top);
        if (s != OK)
            return s;
    }
    return device_sampler_finish(e->device_sampler);
}

/* --- after the step --- */

static enum finish_reason check_stop(struct engine *e, struct sequence *q, uint32_t id)
{
    struct request *r = q->req;
    uint32_t n_out = q->n_known - r->prompt.n_ids;

    if (n_out > r->stopping.min_tokens || r->stopping.min_tokens == 0) {
        for (uint32_t i = 0; !r->stopping.ignore_eos && i < e->info.n_eos_ids; i++)
            if (id == e->info.eos_ids[i])
                return FINISH_STOP;
        for (uint32_t i = 0; i < r->stopping.n_stop_ids; i++)
            if (id == r->stopping.stop_ids[i]) {
                r->stop_id = (int32_t)id;
                return FINISH_STOP;
            }
    }
    if (q->watches_text) {
        buf_reset(&e->text);
        if (detok_feed(&q->detok, id, &e->text) == OK && q->detok.stopped_by >= 0)
            return FINISH_STOP;
    }
    return n_out >= r->stopping.max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

static void give_token(struct engine *e, uint32_t slot, struct out_token token, uint64_t now)
{
    struct sequence *q = &e->seqs[slot];
    struct request *r = q->req;
    uint32_t n_out = q->n_known - r->prompt.n_ids;

    r->ids[q->n_known++] = token.id;
    cache_seq_extend(q->kv, token.id);
    sampler_state_count(&q->sampler, token.id);
    r->out[n_out] = token;
    e->live.n_generation_tokens++;
    if (n_out == 0) {
        atomic_store(&r->t_first_token, now);
        hist_add(&e->live.ttft_s, seconds(atomic_load(&r->t_submit), now));
    } else {
        hist_add(&e->live.itl_s, seconds(q->t_last_token, now));
    }
    q->t_last_token = now;
    atomic_store(&r->n_out, n_out + 1);

    enum finish_reason reason = check_stop(e, q, token.id);
    if (reason == FINISH_NONE) {
        if (!r->wake_at_end)
            wake(r);
        return;
    }
    scheduler_on_finish(e->scheduler, slot);
    end_sequence(e, slot, reason);
}

/* A prefill that had its steps for itself tells what such a one costs. */
static void learn_cost(struct engine *e, struct sequence *q, uint32_t n_items, double step_s)
{
    uint32_t n_cached = atomic_load(&q->req->n_cached), n_prompt = q->req->prompt.n_ids;

    if (n_items > 1)
        q->runs_alone = false;
    if (!q->runs_alone || q->n_known > n_prompt)
        return;
    q->prefill_s += step_s;
    if (q->n_computed != n_prompt)
        return;
    if (e->n_prefills_learned++ < N_PREFILLS_TO_SCALE)
        cost_model_scale(&e->cost, n_cached, n_prompt - n_cached, q->prefill_s);
    else
        cost_model_correct(&e->cost, n_cached, n_prompt - n_cached, q->prefill_s);
}

static void finish_step(struct engine *e, const struct plan_item *items, uint32_t n_items,
                        const uint32_t *out_slots, const struct out_token *tokens, uint32_t n_out,
                        uint64_t began, uint64_t now)
{
    uint32_t o = 0;

    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t slot = items[i].slot;
        struct sequence *q = &e->seqs[slot];
        bool got = o < n_out && out_slots[o] == slot;
        cache_seq_commit(q->kv, items[i].n_tokens);
        q->n_computed += items[i].n_tokens;
        scheduler_on_tokens(e->scheduler, slot, items[i].n_tokens, got ? 1 : 0, now);
        uint32_t n_prompt = q->req->prompt.n_ids;
        atomic_store(&q->req->n_prefilled, q->n_computed < n_prompt ? q->n_computed : n_prompt);
        learn_cost(e, q, n_items, seconds(began, now));
        if (got)
            give_token(e, slot, tokens[o++], now);
    }
}

/* The device computes nothing any more: everybody is told, and the server has to end. */
static void fail_all(struct engine *e, const char *words)
{
    log_event(LOG_ERROR, "the device failed", "device=%s why=\"%s\" requests=%u",
              e->info.ops_name, words, e->n_slots - e->n_free_slots);
    atomic_store(&e->failed, true); /* from here on nobody comes in */
    take_submitted(e, clock_now_ns());
    for (uint32_t slot = 0; slot < e->n_slots; slot++) {
        struct request *r = e->seqs[slot].req;
        if (!r)
            continue;
        r->error = ERR_UNAVAILABLE;
        r->error_words = DEVICE_FAILED_WORDS;
        scheduler_on_cancel(e->scheduler, slot); /* it may be waiting as well as running */
        end_sequence(e, slot, FINISH_ERROR);
    }
}

/* A failure that the device survives is the end of this step's requests only. */
static void fail_step(struct engine *e, const struct plan_item *items, uint32_t n, enum status s)
{
    const char *failure = device_failure(e->device);

    if (failure) {
        fail_all(e, failure);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fail_sequence(e, items[i].slot, s, "the device could not run this step");
}

static void run_plan(struct engine *e, const struct plan *plan, uint64_t now)
{
    struct plan_item items[plan->n_items + 1]; /* a plan may hold preemptions only */
    uint32_t out_slots[plan->n_items + 1], n_out = 0;
    struct out_token tokens[plan->n_items + 1];
    float *logits;

    preempt(e, plan);
    admit(e, plan, now);
    uint32_t n = build_batch(e, plan, items);
    if (n == 0)
        return;
    enum status s = forward_run(e->forward, &e->batch, cache_pool(e->cache), &logits);
    if (s != OK) {
        fail_step(e, items, n, s);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct sequence *q = &e->seqs[items[i].slot];
        if (q->n_computed + items[i].n_tokens == q->n_known)
            out_slots[n_out++] = items[i].slot;
    }
    struct pick_job job = {e, logits, out_slots, tokens};
    s = pick_tokens(&job, n_out);
    if (s != OK) {
        fail_step(e, items, n, s);
        return;
    }
    hist_add(&e->live.step_tokens, e->batch.n_rows);
    e->live.n_steps++;
    finish_step(e, items, n, out_slots, tokens, n_out, now, clock_now_ns());
}

void engine_publish_stats(struct engine *e)
{
    cache_stats(e->cache, &e->live.cache);
    e->live.n_running = scheduler_n_running(e->scheduler);
    e->live.n_waiting = scheduler_n_waiting(e->scheduler);
    pthread_mutex_lock(&e->stats_lock);
    e->shared = e->live;
    pthread_mutex_unlock(&e->stats_lock);
}

/* Somebody asked what the cache holds: engine_cache_view(). */
static void show_cache(struct engine *e)
{
    struct engine_cache_view *out;

    pthread_mutex_lock(&e->stats_lock);
    out = e->view_out;
    if (out) {
        cache_stats(e->cache, &out->stats);
        out->n_spans = cache_top_spans(e->cache, out->spans, out->n_spans, &out->n_spans_all);
        e->view_out = NULL;
        pthread_cond_signal(&e->view_made);
    }
    pthread_mutex_unlock(&e->stats_lock);
}

void *engine_loop(void *arg)
{
    struct engine *e = arg;

    device_adopt_thread(e->device);
    while (!atomic_load(&e->stopping)) {
        uint64_t now = clock_now_ns();
        struct plan plan;
        bool copying = cache_poll(e->cache, now);
        take_submitted(e, now);
        drop_cancelled(e);
        /* After the intake: what was submitted after the wish cannot have attached before it. */
        if (atomic_exchange(&e->reset_wanted, false))
            cache_reset(e->cache);
        if (atomic_exchange(&e->view_wanted, false))
            show_cache(e);
        prefetch(e);
        struct sched_view view = {e, cache_n_available(e->cache), view_match, view_need,
                                  view_reclaimable};
        scheduler_plan(e->scheduler, now, &view, &plan);
        if (plan.n_items > 0 || plan.n_preempt > 0)
            run_plan(e, &plan, now);
        if (e->config.check_each_step)
            cache_check(e->cache);
        engine_publish_stats(e);
        if (plan.n_items == 0 && plan.n_preempt == 0)
            ring_wait(&e->submitted, copying ? COPY_WAIT_NS : IDLE_WAIT_NS);
    }
    ring_close(&e->submitted);
    take_submitted(e, clock_now_ns());
    drop_cancelled(e);
    show_cache(e); /* whoever asked while it ended */
    cache_check(e->cache);
    engine_publish_stats(e);
    return NULL;
}
