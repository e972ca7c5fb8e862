#include "engine/sched/contest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/cost_model.h"

/* Limits of a candidate, as multiples of what fcfs gives; see the header. */
#define NORMALIZED_P99_MAX 1.1
#define E2E_P99_MAX 1.75

static const struct {
    const char *policy, *variant;
} table[] = {
    {"fcfs", ""}, /* first: the measure of the limits */
    {"skip-join-mlfq", "tarn"},
    {"skip-join-mlfq", "learned"},
};
#define FCFS 0
/* Weight of a contest in the moving mean of scores. */
#define SCORE_RATE 0.2

struct contest {
    struct contest_config config;
    struct contest_request noted[CONTEST_N_REQUESTS]; /* ring; the next goes to n_noted % size */
    uint64_t n_noted;
    uint32_t n_new;
    bool is_running;

    /* Of the contest under way. */
    struct contest_request requests[CONTEST_N_REQUESTS]; /* [n] by time of arrival */
    uint32_t n;
    struct cost_model cost;
    struct contest_replay *replay; /* of candidate `at`; NULL: not begun */
    uint32_t at;
    bool has_failed;
    struct contest_result results[CONTEST_N_CANDIDATES_MAX];

    uint32_t in_force, challenger; /* indices of candidates */
    uint32_t n_wins;               /* of the challenger, in a row */
    struct contest_stats stats;
};

const char *contest_policies(void)
{
    static const char names[] = "skip-join-mlfq|mlfq|fcfs|sjf-prompt|srpt|" CONTEST_AUTO;

    ASSERT(strncmp(names, scheduler_policies(), strlen(scheduler_policies())) == 0);
    return names;
}

/* --- life --- */

/* The index of a candidate; it is added if it is not there. */
static uint32_t add_candidate(struct contest *c, const char *policy, const char *variant)
{
    struct contest_stats *s = &c->stats;
    uint32_t i = 0;

    while (i < s->n_candidates && (strcmp(s->candidates[i].policy, policy) != 0 ||
                                   strcmp(s->candidates[i].variant, variant) != 0))
        i++;
    if (i == s->n_candidates)
        s->candidates[s->n_candidates++] =
            (struct contest_candidate){.policy = policy, .variant = variant};
    return i;
}

/* A scheduler that is made only to check the configuration and to name the policy in force. */
static enum status name_policy(struct contest *c, struct buf *why)
{
    struct scheduler_config config = c->config.scheduler;
    struct scheduler_stats stats;
    struct scheduler *s;

    config.n_slots = 1;
    config.cost = NULL;
    enum status st = scheduler_create(&s, &config, why);
    if (st != OK)
        return st;
    scheduler_stats(s, &stats);
    c->in_force = add_candidate(c, stats.policy, stats.variant);
    scheduler_destroy(s);
    return OK;
}

enum status contest_create(struct contest **out, const struct contest_config *config,
                           struct buf *why)
{
    struct contest *c = calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory");
    c->config = *config;
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        (void)add_candidate(c, table[i].policy, table[i].variant);
    enum status s = name_policy(c, why);
    if (s != OK) {
        contest_destroy(c);
        return s;
    }
    c->challenger = c->in_force;
    *out = c;
    return OK;
}

void contest_destroy(struct contest *c)
{
    if (!c)
        return;
    contest_replay_destroy(c->replay);
    free(c);
}

/* --- the requests --- */

void contest_note(struct contest *c, const struct contest_request *r)
{
    if (r->n_out == 0 || !contest_request_fits(r, &c->config.memory))
        return;
    c->noted[c->n_noted++ % CONTEST_N_REQUESTS] = *r;
    c->n_new++;
}

bool contest_is_due(const struct contest *c)
{
    return !c->is_running && c->n_new >= CONTEST_N_NEW && c->n_noted >= CONTEST_N_MIN;
}

static int compare_arrivals(const void *a, const void *b)
{
    const struct contest_request *x = a, *y = b;

    if (x->arrival_ns != y->arrival_ns)
        return x->arrival_ns < y->arrival_ns ? -1 : 1;
    if (x->asked.n_known != y->asked.n_known)
        return x->asked.n_known < y->asked.n_known ? -1 : 1;
    return (x->n_out > y->n_out) - (x->n_out < y->n_out);
}

void contest_begin(struct contest *c, const struct cost_model *cost)
{
    ASSERT(!c->is_running && c->n_noted > 0);
    c->n = c->n_noted < CONTEST_N_REQUESTS ? (uint32_t)c->n_noted : CONTEST_N_REQUESTS;
    memcpy(c->requests, c->noted, c->n * sizeof *c->requests);
    c->cost = *cost;
    c->n_new = 0;
    c->at = 0;
    c->has_failed = false;
    c->is_running = true;
}

/* --- the replays --- */

static enum status begin_replay(struct contest *c)
{
    const struct contest_candidate *candidate = &c->stats.candidates[c->at];
    struct contest_replay_config config = {.scheduler = c->config.scheduler,
                                           .memory = c->config.memory,
                                           .requests = c->requests,
                                           .n = c->n,
                                           .n_warmup = c->n / 2};

    config.scheduler.cost = &c->cost;
    config.scheduler.policy = candidate->policy;
    config.scheduler.variant = candidate->variant;
    return contest_replay_create(&c->replay, &config, NULL);
}

bool contest_run(struct contest *c, uint32_t n_plans)
{
    ASSERT(c->is_running);
    if (c->at == c->stats.n_candidates || c->has_failed)
        return true;
    if (!c->replay) {
        if (c->at == 0)
            qsort(c->requests, c->n, sizeof *c->requests, compare_arrivals);
        c->has_failed = begin_replay(c) != OK;
        if (c->has_failed)
            return true;
    }
    if (!contest_replay_run(c->replay, n_plans))
        return false;
    contest_replay_result(c->replay, &c->results[c->at]);
    contest_replay_destroy(c->replay);
    c->replay = NULL;
    return ++c->at == c->stats.n_candidates;
}

/* --- the verdict --- */

static double excess(double value, double limit)
{
    return limit > 0 && value > limit ? value / limit : 1;
}

static double score_of(const struct contest *c, const struct contest_result *r)
{
    bool is_e2e = c->config.scheduler.objective == OBJECTIVE_E2E;
    const struct contest_figures *mine = is_e2e ? &r->e2e_s : &r->normalized_s;
    const struct contest_result *fcfs = &c->results[FCFS];
    const struct contest_figures *limit = is_e2e ? &fcfs->e2e_s : &fcfs->normalized_s;

    return mine->mean * excess(mine->p99, (is_e2e ? E2E_P99_MAX : NORMALIZED_P99_MAX) * limit->p99);
}

/* The candidate with the lowest score; of equal ones that in force, then the first. */
static uint32_t score_all(struct contest *c)
{
    struct contest_stats *s = &c->stats;
    uint32_t best = c->in_force;

    for (uint32_t i = 0; i < s->n_candidates; i++) {
        s->candidates[i].result = c->results[i];
        s->candidates[i].score_s += fmax(SCORE_RATE, 1.0 / (double)(s->n_contests + 1)) *
                                    (score_of(c, &c->results[i]) - s->candidates[i].score_s);
    }
    for (uint32_t i = 0; i < s->n_candidates; i++)
        if (s->candidates[i].score_s < s->candidates[best].score_s)
            best = i;
    return best;
}

/* Whether `best` has now won often enough. */
static bool count_win(struct contest *c, uint32_t best)
{
    const struct contest_candidate *v = c->stats.candidates;

    if (!c->config.follows || v[best].score_s > (1 - CONTEST_MARGIN) * v[c->in_force].score_s)
        best = c->in_force;
    if (best != c->challenger) {
        c->challenger = best;
        c->n_wins = 0;
    }
    c->n_wins += best != c->in_force;
    return c->n_wins >= CONTEST_N_WINS;
}

void contest_end(struct contest *c, struct contest_verdict *out)
{
    ASSERT(c->is_running && !c->replay && (c->has_failed || c->at == c->stats.n_candidates));
    *out = (struct contest_verdict){0};
    c->is_running = false;
    if (c->has_failed) {
        c->stats.n_failed++;
        return;
    }
    uint32_t best = score_all(c);
    *out = (struct contest_verdict){.is_change = count_win(c, best),
                                    .from = &c->stats.candidates[c->in_force],
                                    .best = &c->stats.candidates[best]};
    c->stats.n_contests++;
    if (!out->is_change)
        return;
    c->in_force = c->challenger = best;
    c->n_wins = 0;
    c->stats.n_changes++;
}

void contest_stats(const struct contest *c, struct contest_stats *out)
{
    *out = c->stats;
}
