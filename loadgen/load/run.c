#include "loadgen/load/run.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "loadgen/load/pace.h"

#define NS_PER_S 1e9
#define STEP_NS UINT64_C(100000000)
#define TEXT_BYTES_MAX (16u << 20)
/* Requests that one turn of the loop sends before it reads sockets again, at most: a burst must not
 * delay the time stamps of other requests' tokens. */
#define N_SENDS_PER_TURN 16

struct flight {
    struct run *run;
    struct turn turn;
    struct tarn_body body;
    struct buf text;
    struct tarn_call *call;
    struct http_timer *timer; /* think time, disconnect, or a slow reader's pause */
    bool hangs_up;            /* on purpose */
    bool keeps_text;
    struct link link; /* in `active`, `thinking` or `waiting` */
};

struct run {
    struct run_config config;
    struct outcome_list outcomes;
    struct pace pace;
    struct flight *prepared; /* the next flight to send, with its body */
    struct http_timer *send_timer, *stop_timer;
    struct link active;   /* flights that were sent and have not ended */
    struct link thinking; /* flights whose user thinks */
    struct link waiting;  /* flights whose time has come, for a place */
    uint32_t n_waiting;
    uint64_t n_started, n_ended, n_errors, n_tokens;
    uint64_t progress_ns;
    bool draining; /* nothing more is sent, what is in flight is hung up */
    enum status status;
    struct buf *why;
    atomic_bool interrupted;
};

static void send_due(void *arg, uint64_t due_ns);
static void schedule(struct run *run);

/* --- flights --- */

static void flight_free(struct flight *f)
{
    if (!f)
        return;
    http_timer_cancel(f->run->config.loop, f->timer);
    turn_fini(&f->turn);
    tarn_body_fini(&f->body);
    buf_fini(&f->text);
    free(f);
}

static void fail(struct run *run, enum status s)
{
    if (run->status == OK)
        run->status = s;
    run->pace.no_more = true;
}

/* Take the turn over, also on failure. */
static struct flight *flight_create(struct run *run, struct turn *t)
{
    struct flight *f = calloc(1, sizeof *f);

    if (!f) {
        turn_fini(t);
        buf_why(run->why, ERR_NOMEM, "out of memory");
        fail(run, ERR_NOMEM);
        return NULL;
    }
    f->run = run;
    f->turn = *t;
    link_init(&f->link);
    buf_init(&f->text, TEXT_BYTES_MAX);
    f->keeps_text = run->config.keep_text || t->request.verify || run->config.real_history;
    return f;
}

static enum status flight_build(struct flight *f)
{
    struct run *run = f->run;
    const struct chain *chain = f->turn.chain;
    struct prompt_answers answers = {chain ? chain->answers : NULL, chain ? chain->n_answers : 0};
    enum status s = prompt_build(&f->body, run->config.style, &f->turn.request, &answers, run->why);

    if (s != OK)
        fail(run, s);
    return s;
}

/* Make run->prepared, if there is more to send. */
static void prepare(struct run *run)
{
    struct turn t;

    if (run->prepared)
        return;
    enum status s = pace_next(&run->pace, &t, run->why);
    if (s != OK) {
        if (s != ERR_NOT_FOUND)
            fail(run, s);
        return;
    }
    struct flight *f = flight_create(run, &t);
    if (f && flight_build(f) != OK) {
        flight_free(f);
        f = NULL;
    }
    run->prepared = f;
}

/* --- sending --- */

static void end_flight(struct flight *f);

static void keep_message(struct outcome *o, const char *words)
{
    o->message = words[0] ? strdup(words) : NULL; /* without memory there are only fewer words */
    /* The server's words go to a terminal. */
    for (char *c = o->message; c && *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = ' ';
}

static void hang_up_due(void *arg, uint64_t due_ns)
{
    struct flight *f = arg;

    (void)due_ns;
    f->timer = NULL;
    f->hangs_up = true;
    tarn_call_cancel(f->call);
}

static void resume_due(void *arg, uint64_t due_ns)
{
    struct flight *f = arg;

    (void)due_ns;
    f->timer = NULL;
    tarn_call_pause(f->call, false);
}

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *c)
{
    struct flight *f = arg;
    struct run *run = f->run;
    struct outcome *o = &f->turn.outcome;

    if (!c->has_delta || c->index != 0)
        return;
    run->n_tokens++;
    if (outcome_token(o, c->time_ns) != OK ||
        (f->keeps_text && buf_append(&f->text, c->text, c->text_len) != OK)) {
        buf_why(run->why, ERR_NOMEM, "out of memory");
        fail(run, ERR_NOMEM);
    }
    if (o->n_tokens >= f->turn.request.disconnect_after && !f->hangs_up) {
        f->hangs_up = true;
        tarn_call_cancel(call);
    } else if (f->turn.request.slow_reader && !f->timer) {
        tarn_call_pause(call, true);
        uint64_t due_ns = pace_after(c->time_ns, run->config.slow_pause_s);
        if (http_timer_start(&f->timer, run->config.loop, due_ns, resume_due, f) != OK)
            tarn_call_pause(call, false);
    }
}

static enum outcome_end end_of(const struct flight *f, const struct tarn_result *r)
{
    if (r->error == TARN_OK)
        return OUTCOME_OK;
    if (r->error != TARN_ERR_CANCELLED)
        return OUTCOME_FAILED;
    return f->hangs_up ? OUTCOME_DISCONNECTED : OUTCOME_UNFINISHED;
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct flight *f = arg;
    struct outcome *o = &f->turn.outcome;

    (void)call;
    f->call = NULL;
    o->end = end_of(f, r);
    o->error = r->error;
    o->http_status = r->http_status;
    o->usage = r->usage;
    o->end_ns = r->end_ns;
    /* An answer without text (its first token ended it) has its end as first and last time. */
    o->first_ns = o->n_tokens ? o->token_ns[0] : r->end_ns;
    o->last_ns = o->n_tokens ? o->token_ns[o->n_tokens - 1] : r->end_ns;
    memcpy(o->finish_reason, r->finish_reason, sizeof o->finish_reason);
    if (o->end == OUTCOME_FAILED)
        keep_message(o, r->message);
    end_flight(f);
}

static void start(struct flight *f)
{
    static const struct tarn_handlers handlers = {NULL, on_chunk, on_end};
    struct run *run = f->run;
    struct outcome *o = &f->turn.outcome;
    const struct load_request *r = &f->turn.request;

    link_append(&run->active, &f->link);
    run->pace.n_active++;
    run->n_started++;
    o->sent_ns = clock_now_ns();
    uint32_t client = r->tenant < run->config.n_clients ? r->tenant : 0;
    enum tarn_error e = tarn_call_start(&f->call, run->config.loop, run->config.clients[client],
                                        &f->body, &handlers, f);
    if (e != TARN_OK) {
        o->end = OUTCOME_FAILED;
        o->error = e;
        o->end_ns = clock_now_ns();
        end_flight(f);
        return;
    }
    if (r->disconnect_after == 0 &&
        http_timer_start(&f->timer, run->config.loop, pace_after(o->sent_ns, r->disconnect_s),
                         hang_up_due, f) != OK)
        fail(run, ERR_NOMEM);
}

/* --- after the end --- */

static void think_over(void *arg, uint64_t due_ns)
{
    struct flight *f = arg;

    (void)due_ns;
    link_remove(&f->link);
    f->run->pace.n_thinking--;
    f->timer = NULL;
    start(f);
}

/* Prepare the next turn of the conversation, if there is one and time for it. */
static void follow(struct run *run, struct chain *chain, const struct outcome *before)
{
    struct turn t;

    if (run->draining || run->status != OK) {
        chain_free(chain);
        return;
    }
    if (!pace_follow(&run->pace, chain, before, &t))
        return;
    struct flight *f = flight_create(run, &t);
    if (!f)
        return;
    if (flight_build(f) != OK ||
        http_timer_start(&f->timer, run->config.loop, t.outcome.intended_ns, think_over, f) != OK) {
        flight_free(f);
        return;
    }
    run->pace.n_admitted += t.outcome.measured;
    link_append(&run->thinking, &f->link);
    run->pace.n_thinking++;
}

static void end_flight(struct flight *f)
{
    struct run *run = f->run;
    struct outcome *o = &f->turn.outcome;
    struct chain *chain = f->turn.chain;

    link_remove(&f->link);
    run->pace.n_active--;
    run->n_ended++;
    run->n_errors += o->end == OUTCOME_FAILED;
    http_timer_cancel(run->config.loop, f->timer);
    f->timer = NULL;
    f->turn.chain = NULL;
    if (run->config.keep_text || o->verify) {
        o->text = f->text.data ? strdup(f->text.data) : NULL;
        o->text_len = f->text.len;
    }
    if (o->verify) {
        o->body = f->body;
        memset(&f->body, 0, sizeof f->body);
    }
    if (chain && run->config.real_history && o->end == OUTCOME_OK &&
        chain_keep_answer(chain, o->turn, &f->text) != OK)
        fail(run, ERR_NOMEM);
    follow(run, chain, o);
    if (outcome_list_push(&run->outcomes, o) == OK)
        memset(o, 0, sizeof *o);
    else
        fail(run, ERR_NOMEM);
    flight_free(f);
    schedule(run);
}

/* --- the order of sending --- */

static struct flight *dequeue(struct run *run)
{
    struct flight *f = LINK_ITEM(run->waiting.next, flight, link);

    link_remove(&f->link);
    run->n_waiting--;
    return f;
}

/* Send one request at most; false when none can be sent now. */
static bool send_one(struct run *run, uint64_t now_ns)
{
    struct flight *f;

    if (run->n_waiting && pace_has_place(&run->pace)) {
        f = dequeue(run);
        f->turn.outcome.free_ns = now_ns;
        start(f);
        return true;
    }
    prepare(run);
    f = run->prepared;
    if (!f || !pace_is_due(&run->pace, &f->turn, now_ns))
        return false;
    run->prepared = NULL;
    if (!pace_admit(&run->pace, &f->turn, now_ns)) {
        flight_free(f);
        return false;
    }
    if (pace_has_place(&run->pace)) {
        start(f);
    } else {
        link_append(&run->waiting, &f->link);
        run->n_waiting++;
    }
    return true;
}

/* Start the timer for the next request. */
static void schedule(struct run *run)
{
    uint64_t due_ns = UINT64_MAX;

    if (run->send_timer || run->draining)
        return;
    prepare(run);
    /* A time of 0 means at once. A closed loop begins at the start of the run. */
    if (run->n_waiting && pace_has_place(&run->pace))
        due_ns = 0;
    else if (run->prepared && run->config.closed)
        due_ns = pace_has_place(&run->pace) ? run->pace.start_ns : UINT64_MAX;
    else if (run->prepared)
        due_ns = run->prepared->turn.outcome.intended_ns;
    if (due_ns == UINT64_MAX)
        return;
    if (http_timer_start(&run->send_timer, run->config.loop, due_ns, send_due, run) != OK)
        fail(run, ERR_NOMEM);
}

static void send_due(void *arg, uint64_t due_ns)
{
    struct run *run = arg;

    (void)due_ns;
    /* The timer stays set meanwhile: a request that fails at once must not schedule another. */
    for (int i = 0; i < N_SENDS_PER_TURN && run->status == OK && !run->draining; i++)
        if (!send_one(run, clock_now_ns()))
            break;
    run->send_timer = NULL;
    schedule(run);
}

/* --- the whole run --- */

/* Count a request that was due and never got a place as unfinished: without it an overload would
 * look like fewer requests. */
static void give_up(struct run *run, struct flight *f)
{
    f->turn.outcome.end = OUTCOME_UNFINISHED;
    if (outcome_list_push(&run->outcomes, &f->turn.outcome) == OK)
        memset(&f->turn.outcome, 0, sizeof f->turn.outcome);
    else
        fail(run, ERR_NOMEM);
    flight_free(f);
}

static void cancel_all(struct run *run)
{
    run->pace.no_more = true;
    run->draining = true;
    flight_free(run->prepared);
    run->prepared = NULL;
    while (run->n_waiting)
        give_up(run, dequeue(run));
    while (!link_is_empty(&run->thinking)) {
        struct flight *f = LINK_ITEM(run->thinking.next, flight, link);
        link_remove(&f->link);
        run->pace.n_thinking--;
        flight_free(f);
    }
    for (struct link *l = run->active.next; l != &run->active; l = l->next)
        tarn_call_cancel(LINK_ITEM(l, flight, link)->call);
}

static void stop_due(void *arg, uint64_t due_ns)
{
    struct run *run = arg;

    (void)due_ns;
    run->stop_timer = NULL;
    cancel_all(run);
}

static void report_progress(struct run *run, uint64_t now_ns)
{
    const struct run_config *c = &run->config;

    if (!c->progress || now_ns < run->progress_ns)
        return;
    run->progress_ns = now_ns + c->progress_ns;
    struct run_progress p = {
        .elapsed_s = (double)(int64_t)(now_ns - run->pace.start_ns) / NS_PER_S,
        .of_s = c->duration_s > 0 ? c->warmup_s + c->duration_s : 0,
        .n_started = run->n_started,
        .n_ended = run->n_ended,
        .n_errors = run->n_errors,
        .of_n = c->count,
        .n_tokens = run->n_tokens,
        .n_active = run->pace.n_active,
        .n_waiting = run->n_waiting,
    };
    c->progress(c->progress_arg, &p);
}

static bool is_over(const struct run *run)
{
    return run->pace.n_active == 0 && run->pace.n_thinking == 0 && !run->prepared &&
           !run->n_waiting && run->pace.no_more;
}

enum status run_create(struct run **out, const struct run_config *config)
{
    struct run *run = calloc(1, sizeof *run);

    *out = run;
    if (!run)
        return ERR_NOMEM;
    ASSERT(config->n_clients > 0 && (!config->closed || config->concurrency > 0));
    run->config = *config;
    run->pace = (struct pace){.source = config->source,
                              .closed = config->closed,
                              .concurrency = config->concurrency,
                              .count = config->count,
                              .offset_s = config->arrival_offset_s,
                              .ends_conversations = config->ends_conversations};
    link_init(&run->active);
    link_init(&run->thinking);
    link_init(&run->waiting);
    return OK;
}

/* After the last arrival, cancel what has not ended within drain_s. */
static void watch_drain(struct run *run)
{
    if (!run->pace.no_more || run->stop_timer || run->draining || run->prepared)
        return;
    if (run->config.drain_s <= 0)
        return;
    if (http_timer_start(&run->stop_timer, run->config.loop,
                         pace_after(clock_now_ns(), run->config.drain_s), stop_due, run) != OK)
        fail(run, ERR_NOMEM);
}

static void begin(struct run *run, uint64_t start_ns, struct buf *why)
{
    const struct run_config *c = &run->config;

    run->why = why;
    pace_begin(&run->pace, start_ns, c->warmup_s, c->duration_s);
    schedule(run);
}

/* Check all runs; an error or interrupt of one stops all. False: all have ended. */
static bool look_after(struct run *const *runs, uint32_t n)
{
    bool stops = false, goes_on = false;

    for (uint32_t i = 0; i < n; i++)
        stops |= runs[i]->status != OK || atomic_load(&runs[i]->interrupted);
    for (uint32_t i = 0; i < n; i++) {
        if (stops && !runs[i]->draining)
            cancel_all(runs[i]);
        watch_drain(runs[i]);
        goes_on |= !is_over(runs[i]);
    }
    return goes_on;
}

enum status run_go_together(struct run *const *runs, uint32_t n, struct buf *why)
{
    struct http_loop *loop = runs[0]->config.loop;
    enum status s = OK;

    /* 2 ms ahead: the body of the first request is built before its time. */
    uint64_t start_ns = clock_now_ns() + UINT64_C(2000000);
    for (uint32_t i = 0; i < n; i++)
        begin(runs[i], start_ns, why);
    while (s == OK && look_after(runs, n)) {
        s = http_loop_step(loop, STEP_NS);
        for (uint32_t i = 0; i < n; i++)
            report_progress(runs[i], clock_now_ns());
    }
    if (s != OK)
        buf_why(why, s, "the connections cannot be driven: %s", status_name(s));
    for (uint32_t i = 0; i < n; i++) {
        http_timer_cancel(loop, runs[i]->stop_timer);
        http_timer_cancel(loop, runs[i]->send_timer);
        runs[i]->stop_timer = runs[i]->send_timer = NULL;
        s = s == OK ? runs[i]->status : s;
    }
    return s;
}

enum status run_go(struct run *run, struct buf *why)
{
    return run_go_together(&run, 1, why);
}

void run_interrupt(struct run *run)
{
    atomic_store(&run->interrupted, true);
    http_loop_stop(run->config.loop);
}

bool run_was_interrupted(const struct run *run)
{
    return atomic_load(&run->interrupted);
}

void run_take(struct run *run, struct outcome_list *out)
{
    *out = run->outcomes;
    memset(&run->outcomes, 0, sizeof run->outcomes);
}

uint64_t run_start_ns(const struct run *run)
{
    return run->pace.start_ns;
}

uint64_t run_measured_ns(const struct run *run)
{
    return run->pace.measured_ns;
}

void run_destroy(struct run *run)
{
    if (!run)
        return;
    flight_free(run->prepared);
    while (run->n_waiting)
        flight_free(dequeue(run));
    outcome_list_fini(&run->outcomes);
    free(run);
}
