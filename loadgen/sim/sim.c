#include "loadgen/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "loadgen/load/draw.h"
#include "loadgen/load/pace.h"
#include "loadgen/load/stats.h"
#include "loadgen/sim/agenda.h"
#include "loadgen/sim/ids.h"

#define NEVER UINT64_MAX
#define NS_PER_S 1e9
/* Background prefills inside at a time, as a librarian thread of the server would submit them. */
#define N_BACKGROUND_INSIDE 4

#define NO_LIST UINT32_MAX
#define OWN_LIST 0 /* the documents of the request; other numbers: lists of early stages */

/* A speculative prefill of a provisional list. */
struct guess {
    struct job job;
    struct flight *flight; /* NULL: it has another list now, or has ended */
    struct link link;      /* in `guesses` */
};

struct flight {
    struct agenda_item item; /* first: think time, next stage of the search, or when it hangs up */
    struct job job;
    struct turn turn;
    uint32_t at;    /* instance */
    bool is_active; /* sent, not ended */
    bool is_searching;
    uint32_t n_stages;   /* of the search, that have ended */
    uint32_t list;       /* the last one that was speculated on; NO_LIST: none */
    struct guess *guess; /* inside of the instance; NULL: none */
    struct link link;    /* in `active` or `waiting` */
};

/* A document that is prefilled in the background. */
struct chore {
    struct job job;
    struct link link; /* in `chores` */
};

struct sim {
    const struct sim_config *config;
    struct fleet *fleet;
    struct outcome_list *outcomes;
    struct agenda agenda;
    struct pace pace;
    uint64_t now_ns;
    uint64_t drain_end_ns; /* NEVER: no limit */
    struct flight *prepared;
    struct link active;  /* flights that were sent and have not ended */
    struct link waiting; /* flights whose time has come, for a place */
    struct link guesses; /* inside */
    struct sim_result *result;
    struct link chores;                     /* inside */
    uint64_t n_chores_begun, n_chores_done; /* done: or cancelled */
    uint64_t n_background_done;
    uint64_t chore_ns;                     /* end of the last one done */
    struct series ttft_errors, e2e_errors; /* relative, of the predictions */
    bool is_draining;                      /* nothing more is sent, requests inside are cancelled */
    enum status status;
    struct buf *why;
};

/* --- flights --- */

static void flight_free(struct flight *f)
{
    if (!f)
        return;
    sim_prompt_fini(&f->job.prompt);
    pieces_fini(&f->job.pieces);
    turn_fini(&f->turn);
    free(f);
}

static void fail(struct sim *sim, enum status s, const char *words)
{
    if (sim->status == OK)
        sim->status = buf_why(sim->why, s, "%s", words);
    sim->pace.no_more = true;
}

/* Take the turn over, also on failure. */
static struct flight *flight_create(struct sim *sim, struct turn *t)
{
    struct flight *f = calloc(1, sizeof *f);

    if (!f) {
        turn_fini(t);
        fail(sim, ERR_NOMEM, "out of memory");
        return NULL;
    }
    agenda_item_init(&f->item, t->request.index);
    f->turn = *t;
    f->list = NO_LIST;
    link_init(&f->link);
    return f;
}

/* Make sim->prepared, if there is more to send. */
static void prepare(struct sim *sim)
{
    struct turn t;

    if (sim->prepared)
        return;
    enum status s = pace_next(&sim->pace, &t, NULL);
    if (s == OK)
        sim->prepared = flight_create(sim, &t);
    else if (s != ERR_NOT_FOUND)
        fail(sim, s, s == ERR_NOMEM ? "out of memory" : "the workload failed");
}

/* --- sending --- */

/* --- speculative prefills --- */

static void free_guess(struct guess *e)
{
    if (e->flight)
        e->flight->guess = NULL;
    link_remove(&e->link);
    sim_prompt_fini(&e->job.prompt);
    free(e);
}

static void drop_guess(struct sim *sim, struct flight *f)
{
    struct guess *e = f->guess;

    if (!e)
        return;
    f->guess = NULL;
    e->flight = NULL;
    fleet_cancel(sim->fleet, &e->job, sim->now_ns);
}

/* Make the prompt of the request with the documents of another list. */
static enum status make_guess_prompt(struct sim *sim, struct cache_prompt *out,
                                     struct load_request *r, uint32_t list)
{
    struct sim_prompt_config p = {r->tenant, sim->config->fleet.instance.segment_tokens, false};
    uint64_t other = list == OWN_LIST ? 0 : draw_mix(r->index, list);

    for (uint32_t i = 0; i < r->n_parts; i++)
        r->parts[i].id ^= r->parts[i].role == PART_DOCUMENT ? other : 0;
    enum status s = sim_prompt_make(out, r, &p);
    for (uint32_t i = 0; i < r->n_parts; i++)
        r->parts[i].id ^= r->parts[i].role == PART_DOCUMENT ? other : 0;
    return s;
}

/* The provisional list is `list` now. */
static void speculate(struct sim *sim, struct flight *f, uint32_t list)
{
    const struct sim_config *c = sim->config;

    if (!c->search.speculates || f->list == list)
        return;
    drop_guess(sim, f);
    f->list = NO_LIST;
    if (fleet_n_inside(sim->fleet, f->at) >= c->fleet.instance.scheduler.n_running_max)
        return;
    struct guess *e = calloc(1, sizeof *e);
    if (!e || make_guess_prompt(sim, &e->job.prompt, &f->turn.request, list) != OK) {
        free(e);
        fail(sim, ERR_NOMEM, "out of memory");
        return;
    }
    e->job.class = SCHED_SPECULATIVE;
    e->job.tenant = f->job.tenant;
    e->flight = f;
    f->guess = e;
    f->list = list;
    sim->result->n_speculated++;
    sim->result->n_speculated_in_vain += list != OWN_LIST;
    link_append(&sim->guesses, &e->link);
    fleet_submit(sim->fleet, f->at, &e->job, sim->now_ns);
}

/* --- submitting --- */

static enum status fill_job(struct sim *sim, struct flight *f)
{
    const struct sim_config *c = sim->config;
    const struct load_request *r = &f->turn.request;
    struct sim_prompt_config p = {r->tenant, c->fleet.instance.segment_tokens, c->real_history};
    enum status s = c->fleet.is_light
                        ? pieces_make(&f->job.pieces, r, &p, c->fleet.instance.segment_tokens)
                        : sim_prompt_make(&f->job.prompt, r, &p);

    f->job.n_prompt = c->fleet.is_light ? f->job.pieces.n_tokens : f->job.prompt.n_ids;
    f->job.n_out = r->n_output_tokens ? r->n_output_tokens : c->n_output_usual;
    f->job.answer_name = sim_answer_name(r, r->turn, c->real_history);
    f->job.priority = r->priority;
    f->job.tenant = r->tenant + 1;
    f->job.session = c->send_session ? r->session : 0;
    return s;
}

static void end_flight(struct sim *sim, struct flight *f, enum job_end end);

static void submit(struct sim *sim, struct flight *f)
{
    const struct load_request *r = &f->turn.request;

    if (r->disconnect_after == 0 &&
        agenda_add(&sim->agenda, &f->item, pace_after(sim->now_ns, r->disconnect_s)) != OK) {
        fail(sim, ERR_NOMEM, "out of memory");
        return;
    }
    drop_guess(sim, f); /* what it has computed is cached */
    fleet_submit(sim->fleet, f->at, &f->job, sim->now_ns);
}

static void schedule_stage(struct sim *sim, struct flight *f)
{
    const struct sim_search *c = &sim->config->search;
    uint64_t due_ns =
        pace_after(f->turn.outcome.sent_ns, c->search_s * (f->n_stages + 1) / c->n_stages);

    if (agenda_add(&sim->agenda, &f->item, due_ns) != OK)
        fail(sim, ERR_NOMEM, "out of memory");
}

/* A stage of the search has ended. */
static void end_stage(struct sim *sim, struct flight *f)
{
    const struct sim_search *c = &sim->config->search;

    f->n_stages++;
    if (f->n_stages < c->n_stages) {
        bool is_final = f->n_stages >= c->final_share * c->n_stages;
        speculate(sim, f, is_final ? OWN_LIST : f->n_stages);
        schedule_stage(sim, f);
        return;
    }
    f->is_searching = false;
    submit(sim, f);
}

static void start(struct sim *sim, struct flight *f)
{
    const struct load_request *r = &f->turn.request;

    link_append(&sim->active, &f->link);
    sim->pace.n_active++;
    f->is_active = true;
    f->turn.outcome.sent_ns = sim->now_ns;
    enum status s = fill_job(sim, f);
    if (s == ERR_NOMEM) {
        fail(sim, s, "out of memory");
        return;
    }
    if (s != OK) {
        end_flight(sim, f, JOB_REFUSED_LONG);
        return;
    }
    f->at = fleet_route(sim->fleet, &f->job, r);
    f->is_searching = sim->config->search.search_s > 0;
    if (f->is_searching)
        schedule_stage(sim, f);
    else
        submit(sim, f);
}

/* --- after the end --- */

/* Prepare the next turn of the conversation, if there is one and time for it. */
static void follow(struct sim *sim, struct chain *chain, const struct outcome *before)
{
    struct turn t;

    if (sim->is_draining || sim->status != OK) {
        chain_free(chain);
        return;
    }
    if (!pace_follow(&sim->pace, chain, before, &t))
        return;
    struct flight *f = flight_create(sim, &t);
    if (!f)
        return;
    if (agenda_add(&sim->agenda, &f->item, t.outcome.intended_ns) != OK) {
        flight_free(f);
        fail(sim, ERR_NOMEM, "out of memory");
        return;
    }
    sim->pace.n_admitted += t.outcome.measured;
    sim->pace.n_thinking++;
}

static void set_end(struct outcome *o, enum job_end end)
{
    static const struct {
        enum outcome_end end;
        enum tarn_error error;
        int http_status;
    } of[] = {
        [JOB_DONE] = {OUTCOME_OK, TARN_OK, 200},
        [JOB_CANCELLED] = {OUTCOME_DISCONNECTED, TARN_ERR_CANCELLED, 200},
        [JOB_REFUSED_FULL] = {OUTCOME_FAILED, TARN_ERR_BUSY, 429},
        [JOB_REFUSED_LONG] = {OUTCOME_FAILED, TARN_ERR_HTTP_4XX, 400},
        [JOB_FAILED] = {OUTCOME_FAILED, TARN_ERR_HTTP_5XX, 500},
    };

    o->end = of[end].end;
    o->error = of[end].error;
    o->http_status = of[end].http_status;
}

static void fill_outcome(const struct sim *sim, struct flight *f, enum job_end end)
{
    const struct job *j = &f->job;
    struct outcome *o = &f->turn.outcome;

    set_end(o, end);
    if (end == JOB_CANCELLED && sim->is_draining)
        o->end = OUTCOME_UNFINISHED;
    o->end_ns = sim->now_ns;
    if (!o->first_ns)
        o->first_ns = o->last_ns = o->end_ns;
    o->usage.prompt_tokens = j->n_prompt;
    o->usage.completion_tokens = j->n_got;
    o->usage.total_tokens = (int64_t)j->n_prompt + j->n_got;
    o->usage.cached_tokens = j->n_cached;
    o->usage.cached_by_tier[TARN_TIER_DEVICE] = j->n_cached_in[CACHE_DEVICE];
    o->usage.cached_by_tier[TARN_TIER_HOST] = j->n_cached_in[CACHE_HOST];
    o->usage.cached_by_tier[TARN_TIER_REMOTE] = j->n_cached_in[CACHE_REMOTE];
    if (end == JOB_DONE)
        strcpy(o->finish_reason, "length");
    if (end == JOB_REFUSED_LONG) /* without memory there are only fewer words */
        o->message = strdup("the prompt is longer than KV memory holds: raise --kv-device-bytes");
}

static double relative_error(const struct job *j, double predicted_s, uint64_t at_ns)
{
    double actual_s = (double)(at_ns - j->arrival_ns) / NS_PER_S;

    return actual_s > 0 ? fabs(predicted_s - actual_s) / actual_s : 0;
}

/* Add the errors of the predictions for an answer to the statistics. */
static void keep_errors(struct sim *sim, const struct flight *f)
{
    const struct job *j = &f->job;
    const struct estimate *e = &j->estimate;
    enum status s =
        series_push(&sim->ttft_errors, relative_error(j, e->ttft_s, f->turn.outcome.first_ns));

    if (s == OK)
        s = series_push(&sim->e2e_errors, relative_error(j, e->e2e_s, sim->now_ns));
    if (s != OK)
        fail(sim, s, "out of memory");
}

static void count_errors(struct series *errors, double out[2])
{
    series_sort(errors);
    out[0] = stats_percentile(errors->v, errors->n, 50);
    out[1] = stats_percentile(errors->v, errors->n, 90);
}

static void end_flight(struct sim *sim, struct flight *f, enum job_end end)
{
    struct chain *chain = f->turn.chain;

    if (sim->config->fleet.instance.predicts && end == JOB_DONE)
        keep_errors(sim, f);
    drop_guess(sim, f);
    link_remove(&f->link);
    sim->pace.n_active--;
    f->is_active = false;
    f->turn.chain = NULL;
    agenda_remove(&sim->agenda, &f->item);
    fill_outcome(sim, f, end);
    follow(sim, chain, &f->turn.outcome);
    if (outcome_list_push(sim->outcomes, &f->turn.outcome) == OK)
        memset(&f->turn.outcome, 0, sizeof f->turn.outcome);
    else
        fail(sim, ERR_NOMEM, "out of memory");
    flight_free(f);
}

static struct flight *flight_of(struct job *j)
{
    return LINK_ITEM(j, flight, job);
}

/* Keep a token's time; the number of tokens is known, so the room is allocated once. */
static enum status keep_time(struct outcome *o, const struct job *j, uint64_t now_ns)
{
    if (!o->token_ns && (o->token_ns = malloc(j->n_out * sizeof *o->token_ns)))
        o->cap_tokens = j->n_out;
    return outcome_token(o, now_ns);
}

static void on_token(void *arg, struct job *j, uint64_t now_ns)
{
    struct sim *sim = arg;

    if (j->class != SCHED_USUAL)
        return;
    struct flight *f = flight_of(j);
    struct outcome *o = &f->turn.outcome;

    if (!o->first_ns)
        o->first_ns = now_ns;
    o->last_ns = now_ns;
    if (sim->config->token_times && keep_time(o, j, now_ns) != OK)
        fail(sim, ERR_NOMEM, "out of memory for token times; without them: --no-token-times");
    if (j->n_got >= f->turn.request.disconnect_after)
        fleet_cancel(sim->fleet, j, now_ns);
}

/* --- background --- */

static enum status make_document(struct sim *sim, struct cache_prompt *out)
{
    const struct sim_config *c = sim->config;
    struct sim_prompt_config p = {.segment_tokens = c->fleet.instance.segment_tokens};
    struct load_request r;

    load_request_init(&r, 0);
    /* Ids of its own: no request has this document. */
    uint64_t name = UINT64_C(0x646f630000000000) + sim->n_chores_begun;
    enum status s = load_request_add(&r, PART_DOCUMENT, name, c->n_background_tokens)
                        ? sim_prompt_make(out, &r, &p)
                        : ERR_NOMEM;
    load_request_fini(&r);
    return s;
}

static void begin_chores(struct sim *sim)
{
    while (sim->n_chores_begun < sim->config->n_background && !sim->is_draining &&
           sim->n_chores_begun < sim->n_chores_done + N_BACKGROUND_INSIDE) {
        struct chore *x = calloc(1, sizeof *x);
        if (!x || make_document(sim, &x->job.prompt) != OK) {
            free(x);
            fail(sim, ERR_NOMEM, "out of memory for background work");
            return;
        }
        x->job.class = SCHED_BACKGROUND;
        uint32_t at = (uint32_t)(sim->n_chores_begun++ % sim->config->fleet.n_instances);
        link_append(&sim->chores, &x->link);
        fleet_submit(sim->fleet, at, &x->job, sim->now_ns);
    }
}

static void end_chore(struct sim *sim, struct chore *x)
{
    link_remove(&x->link);
    sim_prompt_fini(&x->job.prompt);
    free(x);
    sim->n_chores_done++;
}

/* The requests are over: the background work that is left is not waited for. */
static void cancel_chores(struct sim *sim)
{
    sim->n_chores_begun = sim->config->n_background;
    for (struct link *l = sim->chores.next; l != &sim->chores; l = l->next) {
        struct chore *x = LINK_ITEM(l, chore, link);
        fleet_cancel(sim->fleet, &x->job, sim->now_ns);
    }
}

static void on_end(void *arg, struct job *j, enum job_end end, uint64_t now_ns)
{
    struct sim *sim = arg;

    if (j->class == SCHED_BACKGROUND) {
        if (end == JOB_DONE)
            sim->chore_ns = now_ns;
        sim->n_background_done += end == JOB_DONE;
        end_chore(sim, LINK_ITEM(j, chore, job));
        return;
    }
    if (j->class == SCHED_SPECULATIVE) {
        free_guess(LINK_ITEM(j, guess, job));
        return;
    }
    end_flight(arg, flight_of(j), end);
}

/* --- the order of sending --- */

/* Send one request at most; false when none can be sent now. */
static bool send_one(struct sim *sim)
{
    struct flight *f;

    if (!link_is_empty(&sim->waiting) && pace_has_place(&sim->pace)) {
        f = LINK_ITEM(sim->waiting.next, flight, link);
        link_remove(&f->link);
        f->turn.outcome.free_ns = sim->now_ns;
        start(sim, f);
        return true;
    }
    prepare(sim);
    f = sim->prepared;
    if (!f || !pace_is_due(&sim->pace, &f->turn, sim->now_ns))
        return false;
    sim->prepared = NULL;
    if (!pace_admit(&sim->pace, &f->turn, sim->now_ns)) {
        flight_free(f);
        return false;
    }
    if (pace_has_place(&sim->pace))
        start(sim, f);
    else
        link_append(&sim->waiting, &f->link);
    return true;
}

/* Do what the agenda has for a flight: start it after its think time, end a stage of its search, or
 * cancel it. */
static void act(struct sim *sim, struct flight *f)
{
    if (f->is_searching) {
        end_stage(sim, f);
        return;
    }
    if (f->is_active) {
        fleet_cancel(sim->fleet, &f->job, sim->now_ns);
        return;
    }
    sim->pace.n_thinking--;
    start(sim, f);
}

/* --- the whole run --- */

/* End the run: cancel requests inside, drop those that wait. */
static void drain(struct sim *sim)
{
    struct agenda_item *item;

    sim->is_draining = true;
    sim->drain_end_ns = NEVER;
    while (!link_is_empty(&sim->waiting)) {
        struct flight *f = LINK_ITEM(sim->waiting.next, flight, link);
        link_remove(&f->link);
        f->turn.outcome.end = OUTCOME_UNFINISHED;
        if (outcome_list_push(sim->outcomes, &f->turn.outcome) == OK)
            memset(&f->turn.outcome, 0, sizeof f->turn.outcome);
        flight_free(f);
    }
    while ((item = agenda_first(&sim->agenda))) {
        struct flight *f = (struct flight *)item;
        agenda_remove(&sim->agenda, item);
        if (f->is_active)
            continue;
        sim->pace.n_thinking--;
        flight_free(f);
    }
    for (struct link *l = sim->active.next, *after; l != &sim->active; l = after) {
        struct flight *f = LINK_ITEM(l, flight, link);
        after = l->next;
        if (f->is_searching)
            end_flight(sim, f, JOB_CANCELLED);
        else
            fleet_cancel(sim->fleet, &f->job, sim->now_ns);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t next_time(struct sim *sim)
{
    struct agenda_item *item = agenda_first(&sim->agenda);
    uint64_t t = item ? item->due_ns : NEVER;

    prepare(sim);
    if (!link_is_empty(&sim->waiting) && pace_has_place(&sim->pace))
        t = sim->now_ns;
    else if (sim->prepared && sim->config->closed)
        t = pace_has_place(&sim->pace) ? sim->now_ns : t;
    else if (sim->prepared)
        t = earlier(t, sim->prepared->turn.outcome.intended_ns);
    t = earlier(t, fleet_next(sim->fleet));
    t = earlier(t, sim->drain_end_ns);
    return t > sim->now_ns || t == NEVER ? t : sim->now_ns;
}

static void watch_drain(struct sim *sim)
{
    if (sim->pace.no_more && !sim->prepared && sim->drain_end_ns == NEVER && !sim->is_draining &&
        sim->config->drain_s > 0)
        sim->drain_end_ns = pace_after(sim->now_ns, sim->config->drain_s);
}

static void run_until(struct sim *sim, uint64_t now_ns)
{
    struct agenda_item *item;

    sim->now_ns = now_ns;
    fleet_end_steps(sim->fleet, now_ns);
    while ((item = agenda_first(&sim->agenda)) && item->due_ns <= now_ns) {
        agenda_remove(&sim->agenda, item);
        act(sim, (struct flight *)item);
    }
    while (sim->status == OK && !sim->is_draining && send_one(sim)) {
    }
    if (now_ns >= sim->drain_end_ns)
        drain(sim);
    begin_chores(sim);
    fleet_begin_steps(sim->fleet, now_ns);
    watch_drain(sim);
}

static bool is_over(const struct sim *sim)
{
    return sim->pace.n_active == 0 && sim->pace.n_thinking == 0 && !sim->prepared &&
           link_is_empty(&sim->waiting) && sim->pace.no_more;
}

static enum status run_all(struct sim *sim)
{
    while (sim->status == OK) {
        uint64_t t = next_time(sim);

        if (is_over(sim) && link_is_empty(&sim->chores) && link_is_empty(&sim->guesses))
            return OK;
        if (is_over(sim)) {
            cancel_chores(sim);
            t = next_time(sim);
        }
        if (t == NEVER)
            return buf_why(sim->why, ERR_INTERNAL,
                           "%u requests wait for ever under policy %s: a "
                           "fault of the scheduler; please report the command",
                           sim->pace.n_active, sim->config->fleet.instance.scheduler.policy);
        run_until(sim, t);
    }
    return sim->status;
}

static const struct load_request *request_of(const struct job *j)
{
    return &flight_of((struct job *)(uintptr_t)j)->turn.request;
}

static enum status open_fleet(struct sim *sim)
{
    struct fleet_config c = sim->config->fleet;

    c.instance.on_token = on_token;
    c.instance.on_end = on_end;
    c.instance.arg = sim;
    c.request_of = request_of;
    return fleet_open(&sim->fleet, &c, sim->why);
}

static void close_all(struct sim *sim)
{
    fleet_close(sim->fleet);
    flight_free(sim->prepared);
    for (struct agenda_item *item; (item = agenda_first(&sim->agenda));) {
        agenda_remove(&sim->agenda, item);
        if (!((struct flight *)item)->is_active)
            flight_free((struct flight *)item);
    }
    while (!link_is_empty(&sim->guesses))
        free_guess(LINK_ITEM(sim->guesses.next, guess, link));
    while (!link_is_empty(&sim->chores))
        end_chore(sim, LINK_ITEM(sim->chores.next, chore, link));
    struct link *heads[] = {&sim->active, &sim->waiting};
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++)
        while (!link_is_empty(heads[i])) {
            struct flight *f = LINK_ITEM(heads[i]->next, flight, link);
            link_remove(&f->link);
            flight_free(f);
        }
    agenda_fini(&sim->agenda);
}

enum status sim_run(const struct sim_config *config, struct outcome_list *outcomes,
                    struct sim_result *result, struct buf *why)
{
    struct sim sim = {.config = config,
                      .outcomes = outcomes,
                      .now_ns = SIM_START_NS,
                      .drain_end_ns = NEVER,
                      .pace = {.source = config->source,
                               .closed = config->closed,
                               .concurrency = config->concurrency,
                               .count = config->count,
                               .ends_conversations = config->ends_conversations},
                      .result = result,
                      .why = why};

    ASSERT(config->fleet.n_instances > 0 && config->fleet.n_instances <= SIM_INSTANCES_MAX &&
           (!config->closed || config->concurrency > 0));
    link_init(&sim.active);
    link_init(&sim.waiting);
    link_init(&sim.chores);
    link_init(&sim.guesses);
    pace_begin(&sim.pace, SIM_START_NS, config->warmup_s, config->duration_s);
    enum status s = open_fleet(&sim);
    if (s == OK)
        s = run_all(&sim);
    if (s == OK)
        fleet_count(sim.fleet, result, sim.now_ns);
    result->n_requests = outcomes->n;
    result->n_estimated = sim.ttft_errors.n;
    count_errors(&sim.ttft_errors, result->ttft_error);
    count_errors(&sim.e2e_errors, result->e2e_error);
    result->n_background = sim.n_background_done;
    result->background_s = sim.chore_ns ? (double)(sim.chore_ns - SIM_START_NS) / NS_PER_S : 0;
    result->simulated_s = (double)(sim.now_ns - SIM_START_NS) / NS_PER_S;
    close_all(&sim);
    series_fini(&sim.ttft_errors);
    series_fini(&sim.e2e_errors);
    return s;
}
