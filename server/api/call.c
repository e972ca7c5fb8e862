#include "server/api/call.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/auth/admission.h"
#include "server/api/background.h"
#include "server/api/body.h"
#include "server/api/caller.h"
#include "server/api/citations.h"
#include "server/api/estimates.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/api/logprobs.h"
#include "server/api/lookup.h"
#include "server/api/params_vocab.h"
#include "server/api/router.h"
#include "server/api/running.h"
#include "server/api/speculation.h"
#include "server/server.h"
#include "server/api/structured.h"
#include "server/api/tally.h"
#include "server/api/tool_answer.h"
#include "server/api/wait.h"

#define KEEP_ALIVE_NS UINT64_C(1000000000)
/* Bounds of one on_fill(): within HTTP_OUT_BYTES_MAX. */
#define N_TOKENS_PER_TURN 64
#define TURN_BYTES (1u << 20)
#define ANSWER_BYTES_MAX (1u << 30)
#define FRAME_HEAD_BYTES_MAX 8192
#define LOG_PROMPT_BYTES_MAX (1u << 20)

/* --- lifecycle --- */

static struct call *call_create(struct server *srv, struct http_exchange *x,
                                const struct shape *shape)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call)
        return NULL;
    call->srv = srv;
    call->account = caller_account(x);
    account_ref(call->account);
    atomic_init(&call->refs, 1);
    call->shape = shape;
    snprintf(call->http_id, sizeof call->http_id, "%s", http_id(x));
    call->created_s = (int64_t)(clock_unix_ns() / 1000000000u);
    snprintf(call->id, sizeof call->id, "%s-%s", shape->id_prefix, call->http_id);
    buf_init(&call->frame_head, FRAME_HEAD_BYTES_MAX);
    return call;
}

void call_unref(struct call *call)
{
    if (!call || atomic_fetch_sub(&call->refs, 1) != 1)
        return;
    running_remove(call->srv->running, call);
    for (uint32_t i = 0; i < call->n_choices; i++)
        choice_fini(&call->choices[i]);
    free(call->choices);
    prompt_list_free(call->prompts, call->n_prompts);
    speculation_destroy(call->speculation);
    buf_fini(&call->frame_head);
    params_fini(&call->params);
    js_unref(call->made);
    if (call->shape_state)
        call->shape->destroy(call->shape_state);
    wait_unref(call->wait);
    account_unref(call->account);
    free(call);
}

static void cancel_all(struct call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++)
        request_cancel(call->choices[i].request);
}

void call_cancel(struct call *call)
{
    cancel_all(call);
}

/* submit() stores the state and then reads is_gone; on_gone() stores is_gone and then reads the
 * state. So at least one of the two cancels the requests. */
static void on_gone(void *ctx)
{
    struct call *call = ctx;

    atomic_store(&call->is_gone, true);
    if (atomic_load(&call->state) == CALL_SUBMITTED && !atomic_load(&call->in_background))
        cancel_all(call);
}

static void on_close(void *ctx, int status)
{
    struct call *call = ctx;

    if (atomic_load(&call->in_background)) {
        call->shape->background->left(call);
    } else if (atomic_load(&call->state) == CALL_SUBMITTED) {
        cancel_all(call); /* no effect on finished requests */
        call_end(call, status);
    }
    call_unref(call);
}

/* --- answering --- */

/* not_found: the code of ERR_NOT_FOUND. */
static void reply_error(const struct server *srv, struct http_exchange *x, enum status s,
                        const char *not_found, const struct buf *why)
{
    if (s == ERR_TOO_LARGE)
        error_reply_too_long(x, buf_str(why));
    else if (s == ERR_BUSY)
        error_reply_later(x, s, NULL, buf_str(why), estimates_retry_s(srv, NULL));
    else
        error_reply(x, s, s == ERR_NOT_FOUND ? not_found : NULL, buf_str(why));
}

static bool is_failure(const struct call *call, enum finish_reason finish)
{
    bool may_abort = call->shape->takes_id && atomic_load(&call->is_aborted);

    return finish == FINISH_ERROR || (finish == FINISH_CANCELLED && !may_abort);
}

static enum status failure_of(const struct call *call, const struct choice *c, const char **words)
{
    if (c->finish == FINISH_CANCELLED) {
        *words = atomic_load(&call->is_aborted) ? "the request was aborted"
                                                : "the server is shutting down";
        return ERR_UNAVAILABLE;
    }
    *words = c->request->error_words ? c->request->error_words : "the request failed";
    return c->request->error == OK ? ERR_INTERNAL : c->request->error;
}

/* End the call with the error of a choice. */
static enum http_next reply_failure(struct call *call, struct http_exchange *x,
                                    const struct choice *c)
{
    const char *words;
    enum status s = failure_of(call, c, &words);

    cancel_all(call);
    if (s == ERR_BUSY) /* predicted to miss its target */
        error_reply_later(x, s, "slo_unattainable", words,
                          estimates_retry_s(call->srv, c->request));
    else
        error_reply(x, s, NULL, words);
    return HTTP_DONE;
}

static void add_estimates(const struct call *call, struct http_exchange *x)
{
    const struct request *requests[PARAMS_N_REQUESTS_MAX];

    for (uint32_t i = 0; i < call->n_choices; i++)
        requests[i] = call->choices[i].request;
    estimates_add_headers(x, requests, call->n_choices);
}

/* Put an echoed prompt before the answer's own text. */
static enum status prepend_echo(struct call *call)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < call->n_choices; i++) {
        const struct buf *echo = &call->prompts[call->choices[i].prompt_index].text;
        struct buf *text = &call->choices[i].text, joined;
        if (echo->len == 0)
            continue;
        buf_init(&joined, text->max);
        s = buf_append(&joined, echo->data, echo->len);
        if (s == OK)
            s = buf_append(&joined, buf_str(text), text->len);
        buf_fini(text);
        *text = joined;
    }
    return s;
}

static double mean_logprob(const struct request *r)
{
    uint32_t n = request_n_out(r);
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += isfinite(r->out[i].logprob) ? (double)r->out[i].logprob : LOGPROB_LEAST;
    return n ? sum / n : 0;
}

/* Give the n best of each prompt's best_of answers a place in the response, the best one first.
 * Equal scores keep the order of the requests. */
static void choose_best(struct call *call)
{
    uint32_t n = call->params.n, best_of = call->params.best_of;
    double score[PARAMS_N_MAX];

    for (uint32_t p = 0; best_of > n && p < call->n_prompts; p++) {
        struct choice *group = &call->choices[p * best_of];
        for (uint32_t i = 0; i < best_of; i++)
            score[i] = mean_logprob(group[i].request);
        for (uint32_t i = 0; i < best_of; i++) {
            uint32_t rank = 0;
            for (uint32_t k = 0; k < best_of; k++)
                rank += score[k] > score[i] || (score[k] == score[i] && k < i);
            group[i].place = rank < n ? p * n + rank : CHOICE_LEFT_OUT;
        }
    }
}

static enum http_next reply_whole(struct call *call, struct http_exchange *x)
{
    struct buf body;

    choose_best(call);
    buf_init(&body, ANSWER_BYTES_MAX);
    enum status s = prepend_echo(call);
    if (s == OK)
        s = call->shape->whole(call, &body);
    if (s == OK) {
        add_estimates(call, x);
        http_reply(x, 200, "application/json", &body);
    } else {
        error_reply(x, s, NULL, "the answer does not fit into memory");
    }
    buf_fini(&body);
    return HTTP_DONE;
}

static enum status read_body(struct call *call, struct http_exchange *x, const struct json *body,
                             struct buf *why);
static void begin_waiting(struct call *call, struct http_exchange *x);
static void submit(struct call *call, struct http_exchange *x);

/* A waiting call was woken: submit it when the work is over. */
static enum http_next step_waiting(struct call *call, struct http_exchange *x)
{
    struct wait *w = call->wait;
    char words[96];
    struct buf why;

    if (atomic_load(&call->is_gone)) {
        error_reply(x, ERR_UNAVAILABLE, NULL, "the server is shutting down");
        return HTTP_DONE;
    }
    if (!wait_is_over(w)) {
        if (clock_now_ns() < call->wait_until_ns)
            return HTTP_WAIT;
        snprintf(words, sizeof words, "%s: the lookup took too long, try again", w->name);
        error_reply(x, ERR_UNAVAILABLE, NULL, words);
        return HTTP_DONE;
    }
    http_wake_at(x, 0);
    buf_init(&why, BUF_WHY_MAX);
    call->wait = NULL;
    call->preamble_tools = w->tools;
    enum status s = w->status != OK ? w->status
                    : w->makes_body ? read_body(call, x, w->body, &why)
                                    : w->resumed(call, w, &why);
    call->preamble_tools = NULL;
    if (s != OK)
        reply_error(call->srv, x, s, w->status != OK ? w->not_found : "model_not_found",
                    w->status != OK ? &w->why : &why);
    else if (call->wait)
        begin_waiting(call, x);
    else
        submit(call, x);
    wait_unref(w); /* frees the body and the documents' texts */
    buf_fini(&why);
    return http_replied(x) ? HTTP_DONE : HTTP_WAIT;
}

/* Send the headers of a stream when the engine has predicted all requests, which it does before
 * their first step: no first token waits for it. A request that ends before becomes an error with a
 * status of its own. */
static enum http_next begin_stream(struct call *call, struct http_exchange *x)
{
    for (uint32_t i = 0; i < call->n_choices; i++) {
        struct choice *c = &call->choices[i];

        request_poll(c->request);
        enum finish_reason finish = request_finish(c->request);
        if (request_n_out(c->request) > 0)
            continue;
        if (is_failure(call, finish)) {
            c->finish = finish;
            return reply_failure(call, x, c);
        }
        if (finish == FINISH_NONE && atomic_load(&c->request->estimated_ttft_us) == 0)
            return HTTP_WAIT;
    }
    add_estimates(call, x);
    return HTTP_STREAM;
}

static enum http_next on_step(void *ctx, struct http_exchange *x)
{
    struct call *call = ctx;
    bool all_done = true;

    if (atomic_load(&call->state) == CALL_WAITING) {
        enum http_next next = step_waiting(call, x);
        if (next == HTTP_DONE || atomic_load(&call->state) == CALL_WAITING)
            return next;
    }
    if (atomic_load(&call->in_background))
        return http_replied(x) ? HTTP_DONE : HTTP_STREAM;
    if (call->params.stream)
        return begin_stream(call, x);
    for (uint32_t i = 0; i < call->n_choices; i++) {
        struct choice *c = &call->choices[i];
        enum status s = choice_take(c, call->srv, &call->params, call->shape->kind, UINT32_MAX);
        if (s != OK) {
            cancel_all(call);
            error_reply(x, s, NULL, "the answer does not fit into memory");
            return HTTP_DONE;
        }
        if (is_failure(call, c->finish))
            return reply_failure(call, x, c);
        all_done &= c->finish != FINISH_NONE;
    }
    return all_done ? reply_whole(call, x) : HTTP_WAIT;
}

/* Write frames for the new tokens of choice c. */
static enum status fill_choice(struct call *call, struct choice *c, struct buf *out)
{
    enum status s = choice_take(c, call->srv, &call->params, call->shape->kind, N_TOKENS_PER_TURN);

    if (s != OK || is_failure(call, c->finish))
        return s;
    /* The first frame goes out with the first token: clients take its time for the TTFT. One that
     * has logprobs of the prompt goes out when those are there. */
    if (!c->began && (c->n_taken > 0 || c->n_echoed > 0 || c->finish != FINISH_NONE)) {
        s = call->shape->begin(call, c, out);
        c->began = true;
        if (c->n_echoed > 0)
            choice_reset_delta(c);
    }
    if (s == OK && choice_has_delta(c)) {
        s = call->shape->delta(call, c, out);
        choice_reset_delta(c);
    }
    if (s == OK && c->finish != FINISH_NONE) {
        s = call->shape->end(call, c, out);
        c->ended = true;
    }
    return s;
}

static enum http_next end_with_error(struct call *call, const struct choice *c, struct buf *out)
{
    const char *words;
    enum status failure = failure_of(call, c, &words);

    cancel_all(call);
    return call->shape->error(call, failure, words, out) == OK ? HTTP_DONE : HTTP_ABORT;
}

enum http_next call_fill(struct call *call, struct buf *out)
{
    enum status s = OK;
    bool all_ended = true;

    for (uint32_t i = 0; s == OK && i < call->n_choices; i++) {
        struct choice *c = &call->choices[i];
        if (!c->ended && out->len < TURN_BYTES)
            s = fill_choice(call, c, out);
        if (s == OK && is_failure(call, c->finish))
            return end_with_error(call, c, out);
        all_ended &= c->ended;
    }
    if (s == OK && all_ended)
        return call->shape->finish(call, out) == OK ? HTTP_DONE : HTTP_ABORT;
    return s == OK ? HTTP_WAIT : HTTP_ABORT;
}

uint32_t call_n_taken(const struct call *call)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < call->n_choices; i++)
        n += call->choices[i].n_taken;
    return n;
}

static enum http_next on_fill(void *ctx, struct buf *out, uint64_t idle_ns)
{
    struct call *call = ctx;
    enum http_next next;

    if (!atomic_load(&call->in_background))
        next = call_fill(call, out);
    else if (atomic_load(&call->is_gone))
        next = HTTP_DONE; /* the client left, or the server ends */
    else
        next = call->shape->background->follow(call, out);
    if (next == HTTP_WAIT && out->len == 0 && idle_ns >= KEEP_ALIVE_NS &&
        buf_puts(out, call->shape->keep_alive) != OK)
        return HTTP_ABORT;
    return next;
}

static const struct http_async async = {
    .step = on_step, .fill = on_fill, .gone = on_gone, .close = on_close};

/* --- submission --- */

static enum status make_choice(struct call *call, uint32_t prompt_index, uint32_t k,
                               struct buf *why)
{
    const struct prompt *prompt = &call->prompts[prompt_index];
    struct sampling sampling = call->params.sampling;
    struct request *r = NULL;

    sampling.seed += k;
    sampling.want_prompt_logprobs &= k == 0; /* those of all answers are the same */
    params_allow_label(&call->params, call->srv, k);
    enum status s =
        request_create(&r, call->srv->engine, prompt_ids(prompt), prompt_n_ids(prompt),
                       prompt_span_ends(prompt), prompt_n_span_ends(prompt), &call->params.scope,
                       prompt->n_public, &sampling, &call->params.stopping, why);
    if (s == OK && call->params.adapter)
        request_adapt(r, call->srv->engine, call->params.adapter);
    if (s == OK)
        s = request_predict(r, call->srv->engine, (const uint32_t *)call->params.prediction.data,
                            (uint32_t)(call->params.prediction.len / sizeof(uint32_t)), why);
    if (s != OK) {
        request_unref(r);
        return s;
    }
    if (call->n_prompts * call->params.best_of == 1)
        snprintf(r->id, sizeof r->id, "%s", call->http_id);
    else
        snprintf(r->id, sizeof r->id, "%.55s-%u", call->http_id, call->n_choices);
    r->priority = call->params.priority;
    r->tenant = call->account->tenant_id;
    r->flow = call->params.flow;
    r->prompt.salt = call->params.salt;
    if (call->params.session)
        r->session = account_session(call->account, call->params.session, call->params.session_len);
    r->cache_ttl_s = call->params.cache_ttl_s;
    r->cache_bytes_max = atomic_load(&call->account->kv_bytes);
    r->n_breaks = prompt->n_breaks;
    memcpy(r->breaks, prompt->breaks, sizeof r->breaks);
    r->slo_ttft_s = call->params.slo_ttft_ms * 1e-3;
    r->slo_tpot_s = call->params.slo_tpot_ms * 1e-3;
    r->text_continues = call->shape->kind == PARAMS_COMPLETION;
    r->grammar = call->params.grammar ? grammar_ref(call->params.grammar) : NULL;
    const struct reasoning_format *reasoning = call->params.reasoning;
    if (structured_allows(reasoning))
        r->grammar_prefix = reasoning_prefix(reasoning, prompt->reasoning);
    r->thoughts = call->params.thoughts;
    r->thoughts.place = prompt->reasoning;
    struct choice *c = &call->choices[call->n_choices];
    choice_init(c, r, call->srv->tokenizer);
    c->index = c->place = call->n_choices++;
    c->prompt_index = prompt_index;
    if (prompt->wants_citations &&
        (s = citations_create(&c->citations, prompt->documents, prompt->n_documents)) != OK)
        return buf_why(why, s, "out of memory");
    if (reasoning && (s = choice_reason(c, reasoning, prompt->reasoning)) != OK)
        return buf_why(why, s, "out of memory");
    if (call->params.tools.format && (s = tool_answer_create(&c->tools, &call->params.tools)) != OK)
        return buf_why(why, s, "out of memory");
    c->n_tops = call->params.n_tops;
    c->tokens_as_ids = call->params.tokens_as_ids;
    if (call->params.echo && call->params.logprobs) {
        c->first = &call->choices[prompt_index * call->params.best_of];
        c->scored = c->first->request;
        c->echo = &prompt->text;
    }
    return OK;
}

/* Whether a prompt leaves no room in the context; true when an error was answered. */
static bool refuse_too_long(const struct call *call, struct http_exchange *x)
{
    char words[160];

    for (uint32_t i = 0; i < call->n_prompts; i++) {
        uint32_t n = prompt_n_ids(&call->prompts[i]), max = call->srv->info->max_model_len;
        bool generates = !stopping_is_prefill(&call->params.stopping);
        if (n < max || (n == max && !generates))
            continue;
        snprintf(words, sizeof words,
                 "This model's maximum context length is %u tokens, but the "
                 "prompt has %u%s.",
                 max, n, generates ? " and at least one must be generated" : "");
        error_reply_too_long(x, words);
        return true;
    }
    return false;
}

static enum status make_choices(struct call *call, struct buf *why)
{
    enum status s = OK;

    call->choices = calloc((size_t)call->n_prompts * call->params.best_of, sizeof *call->choices);
    if (!call->choices)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; s == OK && i < call->n_prompts; i++) {
        for (uint32_t k = 0; s == OK && k < call->params.best_of; k++)
            s = make_choice(call, i, k, why);
        buf_fini(&call->prompts[i].ids); /* the requests have them now */
    }
    return s == OK && (call->params.stream || call->wants_background) ? call->shape->open(call) : s;
}

static void submit_all(struct call *call, struct http_exchange *x, struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < call->n_choices; i++) {
        struct request *r = call->choices[i].request;
        r->wake = call->wants_background ? background_wake : http_wake;
        r->wake_arg = call->wants_background ? call->srv->background : http_waker(x);
        /* Logprobs become JSON while tokens are generated: to write all of them at the end would
         * block the HTTP thread for long. */
        r->wake_at_end = !call->params.stream && !call->params.logprobs &&
                         !call->params.prompt_logprobs && !call->wants_background;
        s = engine_submit(call->srv->engine, r, why);
    }
    if (s == OK) {
        lookup_note(call);
        return;
    }
    cancel_all(call);
    reply_error(call->srv, x, s, NULL, why);
}

/* Only with --log-prompts, and then at level debug. */
static void log_prompts(const struct call *call)
{
    struct buf text;

    if (!call->srv->config->log_prompts || !log_enabled(LOG_DEBUG))
        return;
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        buf_init(&text, LOG_PROMPT_BYTES_MAX);
        const struct prompt *p = &call->prompts[i];
        /* Text that does not fit is cut, and the line says so. */
        enum status s = prompt_decode(call->srv, prompt_ids(p), prompt_n_ids(p), true, &text);
        log_event(LOG_DEBUG, "prompt", "id=%s index=%u n_tokens=%u cut=%s text=\"%.3000s\"",
                  call->http_id, i, prompt_n_ids(p), s != OK || text.len > 3000 ? "true" : "false",
                  buf_str(&text));
        buf_fini(&text);
    }
}

/* Narrow the scope to the caller's, and charge the caller's limits; true when an error was
 * answered. */
static bool refuse_caller(struct call *call, struct http_exchange *x)
{
    const struct kv_scope salt = call->params.scope;
    uint64_t n_tokens = 0;

    account_scope(call->account, &salt, &call->params.scope);
    for (uint32_t i = 0; i < call->n_prompts; i++)
        n_tokens += prompt_n_ids(&call->prompts[i]);
    return !admission_prompt(call->account, x, n_tokens);
}

/* Logprobs in the answer per token of a prompt. Those of prompt_logprobs take twice as many bytes
 * as those of an echoed prompt. A chat has one list for all answers. */
static uint64_t n_prompt_logprobs_each(const struct call *call)
{
    const struct params *p = &call->params;
    uint64_t n = p->echo && p->logprobs ? (1 + (uint64_t)p->n_tops) * p->n : 0;

    if (p->prompt_logprobs)
        n += 2 * (1 + (uint64_t)p->n_prompt_tops) * (call->shape->kind == PARAMS_CHAT ? 1 : p->n);
    return n;
}

/* Whether one call has more answers, or logprobs of prompts, than it may; true when an error was
 * answered. */
static bool refuse_too_many(const struct call *call, struct http_exchange *x)
{
    const struct params *p = &call->params;
    const struct engine_info *info = call->srv->info;
    uint32_t n = call->n_prompts * p->best_of, n_inside = info->max_num_seqs + info->max_queued;
    const char *name = p->best_of > p->n ? "best_of" : "n";
    uint64_t n_logprobs = 0;
    char words[256];

    words[0] = '\0';
    for (uint32_t i = 0; i < call->n_prompts; i++)
        n_logprobs += prompt_n_ids(&call->prompts[i]) * n_prompt_logprobs_each(call);
    if (n > PARAMS_N_REQUESTS_MAX)
        snprintf(words, sizeof words, "%s: %u answers for %u prompts are more than %d in one call",
                 name, p->best_of, call->n_prompts, PARAMS_N_REQUESTS_MAX);
    else if (n > n_inside)
        snprintf(words, sizeof words,
                 "%s: %u answers for %u prompts are more than the %u that "
                 "this server takes in at once (--max-num-seqs %u, --max-num-queued-reqs %u)",
                 name, p->best_of, call->n_prompts, n_inside, info->max_num_seqs, info->max_queued);
    else if (n_logprobs > PARAMS_N_PROMPT_LOGPROBS_MAX)
        snprintf(words, sizeof words,
                 "%s: the prompts have %llu logprobs (%s), at most %u are given in one call; "
                 "send fewer prompts at once",
                 p->prompt_logprobs ? "prompt_logprobs" : "echo", (unsigned long long)n_logprobs,
                 p->prompt_logprobs ? "each counts twice" : "tokens times 1 + logprobs, times n",
                 PARAMS_N_PROMPT_LOGPROBS_MAX);
    if (words[0])
        error_reply(x, ERR_INVALID, NULL, words);
    return words[0] != '\0';
}

static void reply_rendered(const struct call *call, struct http_exchange *x)
{
    struct buf body;

    buf_init(&body, ANSWER_BYTES_MAX);
    enum status s = call->shape->prompts(call, &body);
    if (s == OK)
        http_reply(x, 200, "application/json", &body);
    else
        error_reply(x, s, NULL, "the answer does not fit into memory");
    buf_fini(&body);
}

/* Reserve a place in the background where the call wants one; true when an error was answered. */
static bool refuse_background(const struct call *call, struct http_exchange *x)
{
    const struct account *a = call->account;
    enum status s = OK;
    char words[160];

    if (call->wants_background)
        s = background_reserve(call->srv->background, a->tenant_id,
                               auth_has_others(call->srv->auth, a));
    if (s == OK)
        return false;
    snprintf(words, sizeof words,
             "background: too many calls run in the background already (--background-responses is "
             "%u, for all tenants together); try again later",
             call->srv->config->background_responses);
    error_reply_later(x, s, NULL, s == ERR_BUSY ? words : status_words(s),
                      estimates_retry_s(call->srv, NULL));
    return true;
}

/* The call was submitted, or the exchange has its error: let the call go on without its
 * connection. */
static void hand_over(struct call *call, struct http_exchange *x)
{
    enum status s = http_replied(x) ? ERR_CANCELLED : call->shape->background->accept(call, x);

    if (s == OK) {
        atomic_fetch_add(&call->refs, 1);
        atomic_store(&call->in_background, true);
        background_add(call->srv->background, call);
        http_wake(http_waker(x)); /* a stream begins at once */
        return;
    }
    background_release(call->srv->background, call->account->tenant_id);
    cancel_all(call);
    if (!http_replied(x))
        error_reply(x, s, NULL, "background: the response cannot be stored");
}

/* Params and prompts are final: have the engine answer them, or answer with an error. */
static void submit(struct call *call, struct http_exchange *x)
{
    struct buf why;

    if (refuse_too_many(call, x) || refuse_too_long(call, x))
        return;
    if (call->renders) { /* no tokens of the caller's limit */
        reply_rendered(call, x);
        return;
    }
    if (refuse_caller(call, x) || refuse_background(call, x))
        return;
    buf_init(&why, BUF_WHY_MAX);
    log_prompts(call);
    enum status s = make_choices(call, &why);
    if (s == OK) {
        atomic_fetch_add(&call->account->tenant->n_requests, 1);
        running_add(call->srv->running, call);
        atomic_store(&call->state, CALL_SUBMITTED);
        submit_all(call, x, &why);
        if (atomic_load(&call->is_gone))
            cancel_all(call);
    } else {
        reply_error(call->srv, x, s, NULL, &why);
        if (call->wants_background)
            background_release(call->srv->background, call->account->tenant_id);
    }
    /* A speculative prefill of this prompt has left its KV in the cache. */
    speculation_destroy(call->speculation);
    call->speculation = NULL;
    buf_fini(&why);
    if (s == OK && call->wants_background)
        hand_over(call, x); /* another thread has the call from here on */
}

void call_wait_for(struct call *call, struct wait *w)
{
    call->wait = w;
}

static void begin_waiting(struct call *call, struct http_exchange *x)
{
    call->wait_until_ns = clock_now_ns() + call->srv->wait_timeout_ns;
    atomic_store(&call->state, CALL_WAITING);
    enum status s = wait_begin(call->wait, x);
    if (s == OK)
        http_wake_at(x, call->wait_until_ns);
    else
        error_reply_later(x, s, NULL, "too many requests wait for a lookup",
                          estimates_retry_s(call->srv, NULL));
}

/* Take the call over. Once the exchange is deferred it owns the call: on_close() frees it. */
static void call_start(struct call *call, struct http_exchange *x)
{
    enum status s = http_defer(x, &async, call);

    if (s != OK) {
        error_reply(x, s, NULL, "the server is shutting down");
        call_unref(call);
    } else if (call->wait) {
        begin_waiting(call, x);
    } else {
        submit(call, x);
    }
}

/* Read params and prompts, unless the call waits for another body first. */
static enum status read_body(struct call *call, struct http_exchange *x, const struct json *body,
                             struct buf *why)
{
    enum status s = call->read(call, body, why);

    if (s == OK && call->wait && call->wait->makes_body)
        return OK;
    if (s == OK && call->params.request_id && call->shape->takes_id) {
        snprintf(call->http_id, sizeof call->http_id, "%s", call->params.request_id);
        snprintf(call->id, sizeof call->id, "%s-%s", call->shape->id_prefix, call->http_id);
    }
    if (s == OK)
        s = router_read_headers(&call->params, call->srv, call->account, x, why);
    unknown_fields_report(&call->params.unknown, &call->srv->unknown_log, x);
    return s;
}

static void serve(struct server *srv, struct http_exchange *x, const struct shape *shape,
                  bool renders, call_read_fn *read)
{
    struct json *body = body_read(x);
    struct call *call = body ? call_create(srv, x, shape) : NULL;
    struct buf why;

    if (!body)
        return; /* body_read() has answered */
    buf_init(&why, BUF_WHY_MAX);
    if (call) {
        call->renders = renders;
        call->read = read;
    }
    enum status s = call ? read_body(call, x, body, &why) : ERR_NOMEM;
    if (s == OK) {
        call_start(call, x);
    } else {
        if (call && call->error_code)
            error_reply(x, s, call->error_code, buf_str(&why));
        else
            reply_error(srv, x, s, "model_not_found", &why);
        call_unref(call);
    }
    js_unref(body);
    buf_fini(&why);
}

void call_serve(struct server *srv, struct http_exchange *x, const struct shape *shape,
                call_read_fn *read)
{
    serve(srv, x, shape, false, read);
}

void call_render(struct server *srv, struct http_exchange *x, const struct shape *shape,
                 call_read_fn *read)
{
    serve(srv, x, shape, true, read);
}
