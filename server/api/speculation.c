#include "server/api/speculation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/prompt.h"
#include "server/api/tally.h"
#include "server/auth/auth.h"
#include "server/server.h"

/* Prefills started for one call. A search has few stages. */
#define N_TRIALS_MAX 16

/* One speculative prefill. The speculation and the engine hold one reference each: the second one
 * to drop it counts the tokens that were computed for nothing. */
struct trial {
    struct tally *tally;
    struct request *request;
    uint32_t n_useful; /* leading tokens that the final prompt has too */
    atomic_uint refs;
};

struct speculation {
    const struct server *srv;
    uint64_t tenant;
    struct kv_scope scope;
    uint64_t salt;
    struct trial *trials[N_TRIALS_MAX]; /* [n]; all but the last one are replaced */
    uint32_t n;
    bool is_current; /* the last one is for the present prompt */
    bool is_judged;  /* speculation_confirm() was called */
};

/* --- trials --- */

static void trial_unref(struct trial *t)
{
    if (atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    uint32_t n_computed = atomic_load(&t->request->n_computed);
    uint32_t n_found = atomic_load(&t->request->n_cached);
    uint32_t n_good = n_found > t->n_useful ? n_found : t->n_useful;

    if (n_computed > n_good)
        tally_add(t->tally, TALLY_SPECULATED_FOR_NOTHING, n_computed - n_good);
    request_unref(t->request);
    free(t);
}

/* The engine is done with the request. On the engine thread. */
static void on_end(void *arg)
{
    trial_unref(arg);
}

static enum status create_request(const struct speculation *s, const struct prompt *p,
                                  struct request **out, struct buf *why)
{
    const struct sampling sampling = {.top_p = 1, .repetition_penalty = 1};
    const struct stopping stopping = {.max_tokens = 0}; /* the prompt only */
    enum status st =
        request_create(out, s->srv->engine, prompt_ids(p), prompt_n_ids(p), prompt_span_ends(p),
                       prompt_n_span_ends(p), &s->scope, p->n_public, &sampling, &stopping, why);

    if (st != OK)
        return st;
    snprintf((*out)->id, sizeof(*out)->id, "speculative");
    (*out)->class = SCHED_SPECULATIVE;
    (*out)->tenant = s->tenant;
    (*out)->prompt.salt = s->salt;
    (*out)->wake = on_end;
    (*out)->wake_at_end = true;
    return OK;
}

/* Prefill the prompt. A request that the engine does not take is no error: nothing is
 * speculated. */
static void start(struct speculation *s, const struct prompt *p)
{
    struct trial *t = calloc(1, sizeof *t);
    struct buf why;

    if (!t)
        return;
    buf_init(&why, BUF_WHY_MAX);
    t->tally = s->srv->tally;
    atomic_init(&t->refs, 2);
    enum status st = create_request(s, p, &t->request, &why);
    if (st == OK) {
        t->request->wake_arg = t;
        st = engine_submit(s->srv->engine, t->request, &why);
    }
    buf_fini(&why);
    if (st != OK) {
        request_unref(t->request);
        free(t);
        return;
    }
    s->trials[s->n++] = t;
    s->is_current = true;
    tally_add(t->tally, TALLY_SPECULATION_STARTED, 1);
}

static bool is_of(const struct trial *t, const struct prompt *p)
{
    const struct cache_prompt *of = &t->request->prompt;

    return of->n_ids == prompt_n_ids(p) && of->n_public == p->n_public &&
           of->n_span_ends == prompt_n_span_ends(p) &&
           memcmp(of->ids, prompt_ids(p), of->n_ids * sizeof *of->ids) == 0 &&
           (of->n_span_ends == 0 || memcmp(of->span_ends, prompt_span_ends(p),
                                           of->n_span_ends * sizeof *of->span_ends) == 0);
}

static uint32_t n_common(const struct trial *t, const struct prompt *p)
{
    const struct cache_prompt *of = &t->request->prompt;
    uint32_t n = 0;

    while (n < of->n_ids && n < prompt_n_ids(p) && of->ids[n] == prompt_ids(p)[n])
        n++;
    return n;
}

/* Cancel the running prefill, and count why. */
static void cancel(struct speculation *s, enum tally_count why)
{
    if (!s->is_current)
        return;
    s->is_current = false;
    request_cancel(s->trials[s->n - 1]->request);
    tally_add(s->srv->tally, why, 1);
}

/* --- the interface --- */

enum status speculation_create(struct speculation **out, const struct server *srv,
                               struct account *account, const struct kv_scope *scope, uint64_t salt)
{
    *out = NULL;
    if (strcmp(srv->config->speculative_prefill, "off") == 0)
        return OK;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ERR_NOMEM;
    (*out)->srv = srv;
    (*out)->tenant = account->tenant_id;
    (*out)->scope = *scope;
    (*out)->salt = salt;
    return OK;
}

void speculation_update(struct speculation *s, const struct prompt *p)
{
    uint32_t n_leaving = 0;

    if (!s || (s->is_current && is_of(s->trials[s->n - 1], p)))
        return;
    cancel(s, TALLY_SPECULATION_REPLACED);
    /* The engine drops cancelled prefills before its next step, so they do not count as pending. */
    for (uint32_t i = 0; i < s->n; i++)
        n_leaving += request_finish(s->trials[i]->request) == FINISH_NONE;
    if (s->n < N_TRIALS_MAX && engine_has_prefill_room(s->srv->engine, n_leaving))
        start(s, p);
}

void speculation_confirm(struct speculation *s, const struct prompt *final)
{
    if (!s || s->is_judged)
        return;
    s->is_judged = true;
    for (uint32_t i = 0; final && i < s->n; i++)
        s->trials[i]->n_useful = n_common(s->trials[i], final);
    if (s->is_current && final && is_of(s->trials[s->n - 1], final))
        tally_add(s->srv->tally, TALLY_SPECULATION_CONFIRMED, 1);
    else
        cancel(s, TALLY_SPECULATION_DROPPED);
}

const char *speculation_outcome(const struct speculation *s)
{
    if (!s || s->n == 0)
        return "none";
    return s->is_current ? "confirmed" : "dropped";
}

void speculation_destroy(struct speculation *s)
{
    if (!s)
        return;
    speculation_confirm(s, NULL);
    for (uint32_t i = 0; i < s->n; i++) {
        request_cancel(s->trials[i]->request); /* no effect where it has ended */
        trial_unref(s->trials[i]);
    }
    free(s);
}
