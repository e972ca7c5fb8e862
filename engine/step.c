/* The step loop, on the engine thread: drain the submit ring, release cancelled sequences, have the
 * lineup plan a step, run one batch through the model, pick tokens (pick.c) and publish them.
 *
 * On a GPU the next step is planned while this one runs, and launched, too, if it may be (async.c).
 * A host device computes inside the launching calls with all its cores, so no time is left beside
 * the step. */
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "kernels/device.h"

#define IDLE_WAIT_NS 1000000000u
/* Prefills that scale an unmeasured cost model: before them only its ratios are right. */
#define N_PREFILLS_TO_SCALE 4
/* Weight of one step in the moving mean of the cost model's error. */
#define ERROR_RATE 0.02
/* Poll interval while copies are under way that sequences may wait for. */
#define COPY_WAIT_NS 200000u
/* The same in a sleep, where no sequence waits for them. */
#define SLEEP_WAIT_NS 10000000u
/* The same while sequences wait for other instances only, whose answers wake this thread. */
#define POOL_WAIT_NS 2000000u

/* --- waking the submitter, ending sequences --- */

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

    st->of_class[r->class].n_ended++;
    if (r->class != SCHED_USUAL)
        return;
    st->n_finished[reason]++;
    if (reason != FINISH_STOP && reason != FINISH_LENGTH)
        return;
    hist_add(&st->e2e_s, seconds(t0, t3));
    hist_add(&st->queue_s, seconds(t0, t1));
    hist_add(&st->prefill_s, seconds(t1, t2));
    hist_add(&st->inference_s, seconds(t1, t3));
    if (n_out > 0)
        hist_add(&st->decode_s, seconds(t2, t3));
    if (n_out > 1)
        hist_add(&st->tpot_s, seconds(t2, t3) / (n_out - 1));
    hist_add(&st->prompt_tokens, r->prompt.n_ids);
    hist_add(&st->computed_tokens, r->prompt.n_ids - atomic_load(&r->n_cached));
    hist_add(&st->max_tokens, r->stopping.max_tokens);
    hist_add(&st->generation_tokens, n_out);
}

/* Hold the first n_tokens of the prompt. Returns whether they are held. */
static bool hold_part(struct cache_seq *kv, struct request *r, struct request_break part,
                      uint64_t now)
{
    enum cache_hold_limit limit;
    struct cache_hold hold = {.owner = r->tenant, .n_bytes_max = r->cache_bytes_max};

    hold.until_ns = part.ttl_s == CACHE_TTL_FOREVER ? CACHE_HOLD_FOREVER
                                                    : now + part.ttl_s * UINT64_C(1000000000);
    uint32_t n = cache_seq_hold(kv, part.n_tokens, &hold, &limit);
    if (limit != CACHE_HOLD_NO_LIMIT && r->hold_limit == CACHE_HOLD_NO_LIMIT)
        r->hold_limit = limit;
    r->n_held = n > r->n_held ? n : r->n_held;
    return limit == CACHE_HOLD_NO_LIMIT;
}

/* Hold the prompt, or its longest part that the limits let in. An earlier part adds something only
 * if it is held for longer. */
static void hold_prompt(const struct engine *e, uint32_t slot, uint64_t now)
{
    const struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;
    uint32_t ttl_s = 0;

    if (r->cache_ttl_s > 0 &&
        hold_part(q->kv, r, (struct request_break){r->prompt.n_ids, r->cache_ttl_s}, now))
        ttl_s = r->cache_ttl_s;
    for (uint32_t i = r->n_breaks; i-- > 0;)
        if (r->breaks[i].ttl_s > ttl_s && hold_part(q->kv, r, r->breaks[i], now))
            ttl_s = r->breaks[i].ttl_s;
}

static struct sched_request asked_of(const struct engine *e, const struct request *r)
{
    return (struct sched_request){.n_known = r->prompt.n_ids,
                                  .n_out_max = r->stopping.max_tokens,
                                  .has_limit = r->prompt.n_ids + r->stopping.max_tokens <
                                               e->info.max_model_len,
                                  .class = r->class,
                                  .priority = r->priority,
                                  .tenant = r->flow ? r->flow : r->tenant,
                                  .session = r->session,
                                  .slo_ttft_s = r->slo_ttft_s,
                                  .slo_tpot_s = r->slo_tpot_s};
}

/* Learn from a usual request that has finished. */
static void learn_end(struct engine *e, const struct request *r, const struct estimate *estimate)
{
    if (r->class == SCHED_USUAL)
        engine_note_end(e, r, estimate);
}

/* A sequence of the adapter ends: the counts are those of the others, after the step. */
static void forget_adapter(struct engine *e, struct adapter *a)
{
    if (!a)
        return;
    e->n_adapted--;
    atomic_store(&a->n_running, 0);
    atomic_store(&a->n_waiting, 0);
}

/* End a request for any reason, and release everything that it holds. */
static void end_sequence(struct engine *e, uint32_t slot, enum finish_reason reason)
{
    struct sequence *q = &e->lineup.seqs[slot];
    struct estimate estimate = q->estimate;
    struct request *r = q->req;
    bool finished = reason == FINISH_STOP || reason == FINISH_LENGTH;
    uint64_t now = clock_now_ns();

    if (finished)
        hold_prompt(e, slot, now);
    async_forget(e, slot);
    engine_note_leaving(e, slot);
    sampler_state_fini(&q->sampler);
    stop_watch_fini(&q->stop);
    form_close(&q->form);
    lookup_fini(&q->lookup);
    draft_model_drop(e->draft_model, slot);
    forget_adapter(e, r->adapter);
    uint32_t last = e->live_slots[e->n_slots - e->n_free_slots - 1];
    e->live_slots[q->live_at] = last;
    e->lineup.seqs[last].live_at = q->live_at;
    lineup_end(&e->lineup, slot, finished, now);
    e->free_slots[e->n_free_slots++] = slot;

    atomic_store(&r->t_finish, now);
    count_finish(e, r, reason);
    if (finished)
        learn_end(e, r, &estimate);
    engine_leave(e, r);
    atomic_store(&r->finish, (int)reason);
    wake(r);
    request_unref(r);
}

static void fail_sequence(struct engine *e, uint32_t slot, enum status error, const char *words)
{
    struct request *r = e->lineup.seqs[slot].req;

    log_event(LOG_ERROR, "request failed", "id=\"%s\" error=%s", r->id, status_name(error));
    r->error = error;
    r->error_words = words;
    end_sequence(e, slot, FINISH_ERROR);
}

/* --- intake --- */

static enum status open_sequence(struct engine *e, struct sequence *q, struct request *r,
                                 struct cache_seq **kv)
{
    const struct stop_model model = {e->info.eos_ids, e->info.n_eos_ids, e->info.n_vocab,
                                     e->tokenizer};
    enum status s =
        cache_seq_open(e->cache, &r->prompt, r->prompt.n_ids + r->stopping.max_tokens, kv);

    if (s != OK)
        return s;
    s = sampler_state_init(&q->sampler, &r->sampling, e->info.n_vocab, r->ids, r->prompt.n_ids,
                           r->stopping.max_tokens);
    if (s == OK)
        s = stop_watch_init(&q->stop, &r->stopping, &model, r->text_continues);
    if (s == OK)
        s = form_open(&q->form, r->grammar, r->grammar_prefix, &r->sampling.rules, &q->stop.model,
                      e->form_worker, r->text_continues);
    if (s == OK && r->thoughts.format)
        s = form_bound(&q->form, &r->thoughts, &r->stopping);
    if (s != OK) {
        form_close(&q->form);
        stop_watch_fini(&q->stop);
        sampler_state_fini(&q->sampler);
        cache_seq_close(*kv);
        return s;
    }
    q->req = r;
    if (prompt_is_to_score(q))
        cache_seq_limit_match(*kv, 0);
    if (r->cache_ttl_s > 0 || r->n_breaks > 0)
        cache_seq_bring_here(*kv); /* it is to be held here */
    return OK;
}

/* End a request that never became a sequence. */
static void refuse(struct engine *e, struct request *r, enum status error, const char *words)
{
    r->error = error;
    r->error_words = words;
    atomic_store(&r->t_finish, clock_now_ns());
    count_finish(e, r, FINISH_ERROR);
    engine_leave(e, r);
    atomic_store(&r->finish, FINISH_ERROR);
    wake(r);
    request_unref(r);
}

/* Predict a new sequence. The submitter may wait for the prediction: it goes out in the headers of
 * the answer. */
static void predict(struct engine *e, uint32_t slot, uint64_t now)
{
    struct request *r = e->lineup.seqs[slot].req;

    if (r->class != SCHED_USUAL)
        return;
    if (engine_predict(e, slot, now)) {
        if (!r->wake_at_end)
            wake(r);
        return;
    }
    e->live.n_slo_rejected++;
    r->error = ERR_BUSY;
    r->error_words = SLO_REJECTED_WORDS;
    end_sequence(e, slot, FINISH_ERROR);
}

static void take_submitted(struct engine *e, uint64_t now)
{
    uint32_t n = ring_drain(&e->submitted, e->intake, e->n_slots);

    for (uint32_t i = 0; i < n; i++) {
        struct request *r = e->intake[i];
        if (atomic_load(&e->failed)) { /* the device failed after engine_submit()'s check */
            refuse(e, r, ERR_UNAVAILABLE, DEVICE_FAILED_WORDS);
            continue;
        }
        ASSERT(e->n_free_slots > 0); /* engine_submit() accepts no more than there are slots */
        uint32_t slot = e->free_slots[e->n_free_slots - 1];
        struct cache_seq *kv;
        enum status s = open_sequence(e, &e->lineup.seqs[slot], r, &kv);
        if (s != OK) {
            e->lineup.seqs[slot] = (struct sequence){0};
            refuse(e, r, s, "out of memory for this request");
            continue;
        }
        e->lineup.seqs[slot].live_at = e->n_slots - e->n_free_slots;
        e->live_slots[e->lineup.seqs[slot].live_at] = slot;
        e->n_free_slots--;
        e->n_adapted += r->adapter != NULL;
        struct sched_request asked = asked_of(e, r);
        asked.n_cached = lineup_submit(&e->lineup, slot, kv, &asked, now);
        engine_note_arrival(e, slot, &asked);
        predict(e, slot, now);
    }
}

/* Whether the request is to be ended now. A drain does not wait for requests that are not usual. */
static bool is_dropped(const struct engine *e, const struct request *r)
{
    return atomic_load_explicit(&r->cancel, memory_order_relaxed) || atomic_load(&e->stopping) ||
           (r->class != SCHED_USUAL && atomic_load(&e->draining));
}

static void drop_cancelled(struct engine *e)
{
    for (uint32_t i = e->n_slots - e->n_free_slots; i-- > 0;) { /* an end moves the last one here */
        uint32_t slot = e->live_slots[i];
        if (is_dropped(e, e->lineup.seqs[slot].req))
            end_sequence(e, slot, FINISH_CANCELLED);
    }
}

/* --- the plan becomes a batch --- */

/* Publish what the cache had for a sequence at its first admission. */
static void note_admitted(struct engine *e, uint32_t slot, uint64_t now)
{
    const struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;

    atomic_store(&r->t_first_step, now);
    atomic_store(&r->n_cached, q->n_cached);
    if (r->class != SCHED_USUAL)
        return;
    e->live.n_prompt_tokens += r->prompt.n_ids;
    e->live.n_prompt_tokens_cached += q->n_cached;
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        atomic_store(&r->n_cached_in[t], q->n_cached_in[t]);
        e->live.n_prompt_tokens_in[t] += q->n_cached_in[t];
    }
}

/* Effect of an item on its sequence. */
struct effect {
    uint32_t n_computed; /* before the step */
    bool ends;           /* all known ids are computed after the step */
    bool gives_token;
};

static struct effect effect_of(const struct engine *e, const struct plan_item *item)
{
    struct sched_seq q = scheduler_seq(e->lineup.scheduler, item->slot);
    bool ends = q.n_computed + item->n_tokens == q.n_known;

    return (struct effect){q.n_computed, ends,
                           ends && !stopping_is_prefill(&e->lineup.seqs[item->slot].req->stopping)};
}

/* Want the logits of the guesses of item i: one row each. */
static void want_guesses(struct engine *e, uint32_t i, bool ahead, struct pick_row *rows)
{
    const struct plan_item *item = &e->lineup.items[i];
    struct sequence *q = &e->lineup.seqs[item->slot];
    uint32_t row = e->batch.seqs[i].row0 + item->n_tokens;

    q->ahead0 = e->batch.n_out;
    for (uint32_t k = 0; k < q->n_guessed; k++) {
        rows[e->batch.n_out] =
            (struct pick_row){.slot = item->slot, .pos = PICK_NEXT, .ahead = ahead ? k + 1 : 0};
        batch_want(&e->batch, row + k);
    }
}

/* Lay out the step. rows [n_logits_max]: the rows of logits that give tokens. Returns how many of
 * them, the first ones, are picked together: the others are guesses that are picked stepwise. */
static uint32_t build_batch(struct engine *e, struct pick_row *rows)
{
    struct batch *b = &e->batch;

    batch_reset(b);
    for (uint32_t i = 0; i < e->lineup.n_items; i++) {
        const struct plan_item *item = &e->lineup.items[i];
        struct sequence *q = &e->lineup.seqs[item->slot];
        struct effect f = effect_of(e, item);

        batch_add(b, q->kv, q->req->ids + f.n_computed, f.n_computed, item->n_tokens + q->n_guessed,
                  0);
        if (q->req->adapter)
            batch_adapt(b, q->req->adapter);
        if (!f.gives_token)
            continue;
        q->out0 = b->n_out;
        rows[b->n_out] = (struct pick_row){.slot = item->slot, .pos = PICK_NEXT};
        batch_want(b, b->seqs[i].row0 + item->n_tokens - 1);
        if (!draft_is_stepwise(q))
            want_guesses(e, i, true, rows);
    }
    uint32_t n_together = b->n_out;
    for (uint32_t i = 0; i < e->lineup.n_items; i++)
        if (draft_is_stepwise(&e->lineup.seqs[e->lineup.items[i].slot]))
            want_guesses(e, i, false, rows);
    return n_together;
}

/* --- after the step --- */

/* The verdict is stored before the count: a reader that sees a token sees its verdict. */
static void publish_token(struct request *r, const struct stop_verdict *v, uint32_t n_out)
{
    r->stop_id = v->stop_id;
    r->stop_string = v->stop_string;
    atomic_store(&r->n_text_ids, v->n_text_ids);
    atomic_store(&r->n_text_bytes, v->n_text_bytes);
    atomic_store(&r->n_out, n_out);
}

static void count_token(struct engine *e, const struct sequence *q, uint32_t n_out, uint64_t now)
{
    e->live.n_generation_tokens++;
    if (n_out > 0) {
        hist_add(&e->live.itl_s, seconds(q->t_last_token, now));
        return;
    }
    hist_add(&e->live.ttft_s, seconds(atomic_load(&q->req->t_submit), now));
    engine_note_first_token(e, q);
}

static void note_ran(struct engine *e, uint32_t slot, uint32_t n_computed, uint32_t n_run)
{
    struct request *r = e->lineup.seqs[slot].req;

    e->live.of_class[r->class].n_tokens += n_run;
    if (r->class != SCHED_USUAL && n_computed > atomic_load(&r->n_computed))
        atomic_store(&r->n_computed, n_computed);
}

/* Whether the sequence goes on: if not, it has ended. */
static bool give_token(struct engine *e, uint32_t slot, struct out_token token, uint64_t now)
{
    struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;
    uint32_t n_out = atomic_load_explicit(&r->n_out, memory_order_relaxed);

    r->ids[r->prompt.n_ids + n_out] = token.id;
    cache_seq_extend(q->kv, token.id);
    sampler_state_count(&q->sampler, token.id);
    r->out[n_out] = token;
    if (n_out == 0) {
        engine_prefilled(e, r);
        atomic_store(&r->t_first_token, now);
    }
    if (r->class == SCHED_USUAL)
        count_token(e, q, n_out, now);
    q->t_last_token = now;
    draft_learn(e, q, n_out);
    enum status form = form_feed(&q->form, token.id);
    enum status s = stop_watch_feed(&q->stop, n_out, token.id);
    publish_token(r, &q->stop.now, n_out + 1);
    if (form != OK)
        fail_sequence(e, slot, form, form_error(form));
    else if (s != OK)
        fail_sequence(e, slot, s, "out of memory for this request's text");
    else if (q->stop.now.finish != FINISH_NONE)
        end_sequence(e, slot, q->stop.now.finish);
    else {
        if (!r->wake_at_end)
            wake(r);
        return true;
    }
    return false;
}

/* Give the sequence the tokens of its rows: the first one, and one more behind each guess that was
 * right. */
static void give_tokens(struct engine *e, const struct pick_job *job, uint32_t slot, uint64_t now)
{
    struct sequence *q = &e->lineup.seqs[slot];
    struct request *r = q->req;
    uint32_t n = q->n_guessed, at = q->out0, ahead0 = q->ahead0;
    uint32_t known = r->prompt.n_ids + atomic_load_explicit(&r->n_out, memory_order_relaxed);
    bool is_stepwise = draft_is_stepwise(q);

    q->n_guessed = 0;
    if (n > 0)
        draft_note_run(e, q, n);
    for (uint32_t k = 0;; k++) {
        bool is_right = k < n && job->tokens[at].id == r->ids[known + k];

        if (k < n)
            draft_verified(e, q, k, is_right);
        if (!give_token(e, slot, job->tokens[at], now))
            return;
        if (!is_right)
            break;
        at = ahead0 + k;
        enum status s = is_stepwise ? pick_now(job, at) : OK;
        if (s != OK) {
            fail_sequence(e, slot, s, "the device could not run this step");
            return;
        }
        if (job->rows[at].waits) { /* the last token known is computed again */
            e->live.n_mask_waits++;
            break;
        }
        lineup_accepted(&e->lineup, slot, now);
        note_ran(e, slot, known + k + 1, 1);
    }
    if (n > 0)
        lineup_guessed(&e->lineup, slot);
}

/* End a prefill: its prompt's KV is committed. */
static void end_prefill(struct engine *e, uint32_t slot, uint64_t now)
{
    engine_prefilled(e, e->lineup.seqs[slot].req);
    atomic_store(&e->lineup.seqs[slot].req->t_first_token, now);
    end_sequence(e, slot, FINISH_LENGTH);
}

/* Correct the cost model by the time of the step. */
static void learn_cost(struct engine *e, double step_s)
{
    struct cost_step step = {0};
    double error;

    if (draft_learn_step(e, step_s))
        return;
    for (uint32_t i = 0; i < e->lineup.n_items; i++) {
        const struct plan_item *item = &e->lineup.items[i];
        cost_step_add(&step, &e->cost, scheduler_seq(e->lineup.scheduler, item->slot).n_computed,
                      item->n_tokens);
    }
    if (!e->profile.is_measured && step.n_chunks == 1 && step.n_decodes == 0 &&
        e->n_prefills_learned++ < N_PREFILLS_TO_SCALE)
        cost_model_scale(&e->cost, step.chunk_cached, step.chunk_new, step_s);
    error = cost_model_learn(&e->cost, &step, step_s);
    e->live.cost_error += ERROR_RATE * (error - e->live.cost_error);
}

/* Publish how many prompt tokens have their logprob. */
static void publish_prompt_logprobs(const struct sequence *q)
{
    struct request *r = q->req;

    if (!r->prompt_out || atomic_load(&r->n_prompt_out) == q->n_scored + 1)
        return;
    atomic_store(&r->n_prompt_out, q->n_scored + 1);
    if (!r->wake_at_end)
        wake(r);
}

/* Exclude the rows of sequences that lost a query from the tokens to be picked. */
static void exclude_failed(const struct engine *e, struct pick_row *rows)
{
    for (uint32_t i = 0; e->batch.n_queries > 0 && i < e->lineup.n_items; i++)
        if (effect_of(e, &e->lineup.items[i]).gives_token && batch_has_failed(&e->batch, i))
            rows[e->lineup.seqs[e->lineup.items[i].slot].out0].slot = PICK_NONE;
}

/* Commit the step and publish its tokens. scored: part of the step's time went into logprobs of
 * prompts, which the cost model does not cover, so the model is not corrected. A step that waited
 * for other instances, or that ran rows of sequences that ended, does not correct it either. */
static void finish_step(struct engine *e, const struct step_job *step, bool scored, uint64_t now)
{
    const struct pick_job *job = &step->pick;
    uint32_t n = e->lineup.n_items;
    uint64_t began = step->began_ns;

    if (!scored && e->batch.n_queries == 0 && n == step->n_items)
        learn_cost(e, seconds(began, now) - e->draft_step.proposed_s);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = e->lineup.items[i].slot;
        struct effect f = effect_of(e, &e->lineup.items[i]);

        if (batch_has_failed(&e->batch, i)) {
            lineup_lost(&e->lineup, i, now);
            e->live.n_query_preemptions++;
            continue;
        }
        if (scored)
            publish_prompt_logprobs(&e->lineup.seqs[slot]);
        if (f.gives_token && job->rows[e->lineup.seqs[slot].out0].waits) {
            lineup_ran_part(&e->lineup, i, e->lineup.items[i].n_tokens - 1, now - began, now);
            e->lineup.seqs[slot].n_guessed = 0;
            e->live.n_mask_waits++;
            continue;
        }
        lineup_ran(&e->lineup, i, f.gives_token, now - began, now);
        note_ran(e, slot, f.n_computed + e->lineup.items[i].n_tokens, e->lineup.items[i].n_tokens);
        if (f.gives_token)
            give_tokens(e, job, slot, now);
        else if (f.ends)
            end_prefill(e, slot, now);
    }
}

void engine_end_all(struct engine *e, enum status error, const char *words)
{
    for (uint32_t i = e->n_slots - e->n_free_slots; i-- > 0;) {
        uint32_t slot = e->live_slots[i];
        struct request *r = e->lineup.seqs[slot].req;
        r->error = error;
        r->error_words = words;
        end_sequence(e, slot, FINISH_ERROR);
    }
}

/* The device is dead: end all requests with ERR_UNAVAILABLE; main ends the process. */
static void fail_all(struct engine *e, const char *words)
{
    log_event(LOG_ERROR, "the device failed", "device=%s why=\"%s\" requests=%u", e->info.ops_name,
              words, e->n_slots - e->n_free_slots);
    atomic_store(&e->failed, true); /* engine_submit() refuses from here on */
    take_submitted(e, clock_now_ns());
    engine_end_all(e, ERR_UNAVAILABLE, DEVICE_FAILED_WORDS);
    async_drop(e);
}

/* End the requests of a failed step, or all requests where the device is dead. */
static void fail_step(struct engine *e, enum status s)
{
    const char *failure = device_failure(e->device);

    if (failure) {
        fail_all(e, failure);
        return;
    }
    for (uint32_t i = 0; i < e->lineup.n_items; i++)
        fail_sequence(e, e->lineup.items[i].slot, s, "the device could not run this step");
}

/* Take out the sequences whose next mask is still being computed. */
static void hold_back(struct engine *e, uint64_t now)
{
    for (uint32_t i = e->lineup.n_items; i-- > 0;) {
        const struct plan_item *item = &e->lineup.items[i];
        if (effect_of(e, item).gives_token && form_waits(&e->lineup.seqs[item->slot].form))
            lineup_hold(&e->lineup, i, now);
    }
}

/* Plan a step and reserve its KV. False: nothing can run now. *holds: a mask is waited for. */
static bool begin_step(struct engine *e, uint64_t now, bool *holds)
{
    uint32_t n = lineup_begin(&e->lineup, now);

    for (uint32_t i = 0; i < e->lineup.n_failed; i++)
        fail_sequence(e, e->lineup.failed[i], ERR_NO_BLOCKS, "the KV pool is full");
    for (uint32_t i = 0; i < n; i++)
        if (e->lineup.items[i].is_first)
            note_admitted(e, e->lineup.items[i].slot, now);
    hold_back(e, now);
    engine_sort_adapted(e);
    *holds = n > e->lineup.n_items;
    return e->lineup.n_items > 0;
}

enum status step_launch(struct engine *e, struct step_job *job, uint32_t n_out)
{
    struct pick_job *pick = &job->pick;
    enum status s = forward_run(e->forward, &e->batch, cache_pool(e->cache), &pick->logits);

    job->n_rows = e->batch.n_rows;
    exclude_failed(e, pick->rows);
    return s == OK ? pick_begin(pick, n_out) : s;
}

/* Lay out and launch the planned step. */
static enum status launch_planned(struct engine *e, struct step_job *job, uint64_t now)
{
    draft_choose(e);
    uint32_t n_out = build_batch(e, job->pick.rows);
    uint64_t launched = clock_now_ns();

    if (e->computed_ns)
        hist_add(&e->live.gap_s, seconds(e->computed_ns, launched));
    job->began_ns = now;
    job->n_items = e->lineup.n_items;
    return step_launch(e, job, n_out);
}

/* Prepare the next step while this one runs, then wait for this one's tokens, and score prompts. */
static enum status await_step(struct engine *e, const struct step_job *job, bool *scored)
{
    if (!device_is_host(e->device)) {
        lineup_ahead(&e->lineup, job->began_ns + (uint64_t)(e->lineup.step_s * 1e9));
        async_launch(e);
    }
    enum status s = pick_finish(&job->pick);
    return s == OK ? score_prompts(e, scored) : s;
}

/* Run the planned step, or the rest of one that was launched while the one before ran. */
static void run_step(struct engine *e, uint64_t now)
{
    bool scored = false;
    enum status s = e->has_next ? async_resume(e) : launch_planned(e, &e->jobs[e->turn], now);
    const struct step_job *job = &e->jobs[e->turn];

    if (s == OK)
        s = await_step(e, job, &scored);
    uint64_t ended = clock_now_ns(), before = e->computed_ns ? e->computed_ns : now;
    e->computed_ns = ended;
    if (s != OK) {
        fail_step(e, s);
        return;
    }
    hist_add(&e->live.step_tokens, job->n_rows);
    hist_add(&e->live.step_s, seconds(job->began_ns, ended));
    /* Predictions know nothing of guesses, so the pace of the steps contains their time. */
    double expected_s = e->lineup.step_s - e->lineup.guess_s;
    estimator_note_step(e->estimator, expected_s, seconds(job->began_ns, ended));
    cache_set_pace(e->cache, estimator_pace(e->estimator));
    contest_note_step(e->contest, expected_s, seconds(before, ended));
    e->live.n_steps++;
    finish_step(e, job, scored, ended);
}

void engine_publish_stats(struct engine *e)
{
    cache_stats(e->cache, &e->live.cache);
    scheduler_stats(e->lineup.scheduler, &e->live.scheduler);
    e->live.n_running = e->live.scheduler.n_running[SCHED_USUAL];
    e->live.n_waiting = e->live.scheduler.n_waiting[SCHED_USUAL];
    e->live.n_preemptions = e->live.scheduler.n_preempted_for_place +
                            e->live.scheduler.n_preempted_for_memory + e->live.n_query_preemptions;
    engine_publish_room(e);
    engine_count_adapted(e);
    e->live.n_plans_ahead = e->lineup.n_planned_ahead;
    e->live.n_graph_steps = forward_graphs(e->forward).n_replayed;
    engine_publish_estimate(e, clock_now_ns());
    pthread_mutex_lock(&e->stats_lock);
    e->shared = e->live;
    pthread_mutex_unlock(&e->stats_lock);
}

/* Tell the pool how busy this instance is, and leave it when that is wanted. */
static void attend_pool(struct engine *e)
{
    cache_set_load(e->cache, e->live.n_waiting, e->live.n_running);
    if (atomic_load(&e->draining))
        cache_drain(e->cache);
    if (!atomic_load(&e->leave_wanted) || atomic_load(&e->has_left))
        return;
    cache_leave(e->cache);
    atomic_store(&e->has_left, cache_has_left(e->cache));
}

/* The time to the next poll, while something is under way that the engine waits for. */
static uint64_t poll_pause(const struct engine *e, bool sleeps, bool holds)
{
    if (sleeps && !e->falls_asleep)
        return SLEEP_WAIT_NS;
    if (!holds && !e->falls_asleep && cache_awaits_pool_only(e->cache))
        return POOL_WAIT_NS;
    return COPY_WAIT_NS;
}

void *engine_loop(void *arg)
{
    struct engine *e = arg;

    device_adopt_thread(e->device);
    engine_start_contests(e);
    while (!atomic_load(&e->stopping)) {
        uint64_t now = clock_now_ns();
        bool copying = cache_poll(e->cache, now);
        if (e->config.pool_url)
            attend_pool(e);
        take_submitted(e, now);
        drop_cancelled(e);
        bool sleeps = false, holds = false, runs = e->has_next;
        if (!runs) { /* no step is under way */
            /* After the intake: a request submitted after the question has not attached before the
             * answer. */
            if (engine_answer(e))
                copying = true;
            adapters_free_unused(e->adapters);
            engine_advance_contest(e);
            sleeps = engine_advance_sleep(e, now);
            runs = !sleeps && begin_step(e, now, &holds);
        }
        bool idle = sleeps || (!runs && e->lineup.n_preempted == 0 && e->lineup.n_failed == 0);
        if (runs)
            run_step(e, now);
        if (e->config.check_each_step) {
            cache_check(e->cache);
            lineup_check(&e->lineup);
        }
        engine_publish_stats(e);
        if (idle) {
            e->computed_ns = 0;
            /* Requests wait but nothing runs: their KV is being read. Poll again soon. */
            copying = copying || holds || e->falls_asleep || e->live.n_waiting > 0 ||
                      (sleeps && e->n_free_slots < e->n_slots); /* they may be cancelled */
            ring_wait(&e->submitted, copying ? poll_pause(e, sleeps, holds) : IDLE_WAIT_NS);
        }
    }
    async_drop(e);
    ring_close(&e->submitted);
    take_submitted(e, clock_now_ns());
    drop_cancelled(e);
    (void)engine_answer(e); /* a question that came during the shutdown */
    cache_check(e->cache);
    engine_stop_contests(e);
    engine_publish_stats(e);
    return NULL;
}
