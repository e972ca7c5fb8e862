#include "engine/sched/estimate.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

/* As in scheduler_plan.c. */
#define CHUNK_TOKENS_MIN 32
/* Steps that are simulated if not all sequences before the request are. */
#define N_STEPS_IF_MANY 4
/* Fraction of the golden ratio: multiples of it are spread evenly over [0, 1). */
#define GOLDEN 0.6180339887498949
/* Least step of a followed quantile, in log units, and the number of first observations that move
 * it further. */
#define FOLLOW_RATE 0.02
#define N_FAST 40
#define HIGH 0.9
#define N_MEMOS 64
#define N_QUANTILES 16
/* Time constant over which the steps' speed is averaged. */
#define PACE_S 1.0

/* Groups of the correction: by the number of requests before them, in powers of two of a
 * PLACES_FINE-th of the places; and by the share of the last N_LEADS requests that would overtake
 * them. */
#define N_DEPTHS 7
#define PLACES_FINE 8
#define N_SHARES 8
#define N_LEADS 64
/* A group has its own correction from so many requests on. */
#define N_GROUP_MIN 16

/* A sequence of the simulation. */
struct member {
    uint32_t n_cached, n_left; /* computed tokens, and known ones that are left to compute */
    double n_tokens;           /* still to generate, counted in steps that end with tokens */
    double cap_s;              /* time of service until it is demoted behind the request */
    bool runs;                 /* has a place */
    bool is_urgent;            /* its chunk is not put off until its next token */
};

/* The quantiles of actual / predicted, as logarithms. */
struct follower {
    double median, high;
    uint64_t n;
};

/* Answers of lengths.h for a class, until another answer is noted; 0: not asked yet. */
struct class_memo {
    uint32_t class;
    uint64_t n_noted;
    double tokens[N_QUANTILES]; /* of an answer that has not begun */
};

struct estimator {
    struct scheduler *s;
    estimate_tokens_fn *tokens;
    const void *tokens_arg;
    uint32_t n_steps;
    struct follower ttft[2], e2e[2], ttft_error, e2e_error;
    struct follower ttft_of[N_DEPTHS * N_SHARES], e2e_of[N_DEPTHS * N_SHARES];
    double leads_s[N_LEADS]; /* of the last requests, a ring */
    uint64_t n_leads;
    double expected_s, taken_s;     /* faded sums over the last steps; 0: none yet */
    struct member *before, *behind; /* [n_max] */
    uint32_t n_max;
    struct class_memo memos[N_MEMOS]; /* by class % N_MEMOS */
};

/* One prediction. */
struct walk {
    struct estimator *m;
    const struct scheduler_config *config;
    struct member *before, *behind; /* in the order of service */
    uint32_t n_before, n_behind;
    struct member own;
    double rest_s; /* of the sequences between `before` and the request, which are not simulated */
    double now_s;
    uint32_t n_all; /* usual sequences that have not ended */
    uint32_t n_steps;
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- lifecycle --- */

enum status estimator_create(struct estimator **out, struct scheduler *s,
                             estimate_tokens_fn *tokens, const void *tokens_arg, uint32_t n_steps)
{
    struct estimator *m = calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return ERR_NOMEM;
    m->s = s;
    m->tokens = tokens;
    m->tokens_arg = tokens_arg;
    m->n_steps = n_steps;
    m->n_max = 2 * s->config.n_running_max + ESTIMATE_N_AHEAD;
    m->before = calloc(m->n_max, sizeof *m->before);
    m->behind = calloc(m->n_max, sizeof *m->behind);
    if (!m->before || !m->behind) {
        estimator_destroy(m);
        return ERR_NOMEM;
    }
    *out = m;
    return OK;
}

void estimator_destroy(struct estimator *m)
{
    if (!m)
        return;
    free(m->before);
    free(m->behind);
    free(m);
}

/* --- the sequences at the start --- */

/* The present figures of a class. */
static struct class_memo *memo_of(struct estimator *m, uint32_t class)
{
    struct class_memo *memo = &m->memos[class % N_MEMOS];
    uint64_t n_noted = lengths_n_noted(m->s->lengths);

    if (memo->class != class || memo->n_noted != n_noted)
        *memo = (struct class_memo){.class = class, .n_noted = n_noted};
    return memo;
}

/* Tokens that the sequence is still to generate; i: its number in the prediction. */
static double tokens_of(struct estimator *m, uint32_t slot, uint32_t i)
{
    const struct entry *e = &m->s->entries[slot];
    double p = fmod(0.5 + i * GOLDEN, 1), n;

    if (e->n_out_left == 0)
        return 0;
    if (m->tokens) {
        n = m->tokens(m->tokens_arg, slot, p);
    } else if (e->n_out > 0) {
        n = lengths_quantile_left(m->s->lengths, e->length_class, e->n_out, p);
    } else {
        double *kept = &memo_of(m, e->length_class)->tokens[(uint32_t)(p * N_QUANTILES)];
        if (*kept == 0)
            *kept = lengths_quantile_left(m->s->lengths, e->length_class, 0, p);
        n = *kept;
    }
    return fmin(fmax(n, 1), e->n_out_left);
}

/* Time of service after which an MLFQ serves the sequence behind the request. */
static double cap_seconds(const struct estimator *m, const struct entry *e, const struct entry *own)
{
    const struct scheduler *s = m->s;

    if (e->priority < own->priority)
        return INFINITY;
    if (!s->policy->has_levels)
        return INFINITY; /* changes of learned places are not followed */
    if (e->is_urgent && e->level > own->level)
        return 0;
    return s->quanta_before_s[own->level] + (e->level == own->level ? s->quantum_s[e->level] : 0) -
           s->quanta_before_s[e->level] - e->charged_s;
}

/* The steps that generate n tokens. The first token is the last of the prefill. */
static double steps_of(const struct scheduler *s, const struct entry *e, double n)
{
    double n_first = e->n_out == 0 && n >= 1;

    return n_first + (n - n_first) / entry_yield(s, e);
}

/* The member for a slot; i: its number in the prediction. A preempted sequence is expected to find
 * what it computed. */
static struct member member_of(struct estimator *m, uint32_t slot, uint32_t own, uint32_t i)
{
    const struct entry *e = &m->s->entries[slot];
    bool runs = e->state == ENTRY_RUNNING;
    uint32_t n_cached = runs ? entry_computed(e) : e->has_run ? e->n_had : e->n_cached;
    uint32_t n_known = entry_known(e);

    n_cached = min_u32(n_cached, n_known - 1);
    return (struct member){.n_cached = n_cached,
                           .n_left = n_known - n_cached,
                           .n_tokens = steps_of(m->s, e, tokens_of(m, slot, i)),
                           .cap_s = cap_seconds(m, e, &m->s->entries[own]),
                           .runs = runs,
                           .is_urgent = e->is_urgent || e->is_due || e->is_elder};
}

/* Seconds that a prefill adds to steps which run anyway. */
static double chunk_seconds(const struct cost_model *cost, const struct member *q)
{
    struct cost_step step = {0};

    if (q->n_left > 1)
        cost_step_add(&step, cost, q->n_cached, q->n_left);
    return step.chunks_s;
}

/* Tokens that a member generates before it ends or is demoted. */
static double tokens_before_cap(const struct member *q, double decode_s)
{
    double n = fmax(1, q->cap_s / decode_s);

    return q->n_tokens < n ? q->n_tokens : n;
}

/* Estimate the seconds of the n_rest sequences at positions n_walked.. from evenly spaced ones. */
static double sample_rest(struct estimator *m, uint32_t own, uint32_t n_walked, uint32_t n_rest)
{
    const struct scheduler *s = m->s;
    uint32_t n_run = s->config.n_running_max, n = min_u32(n_rest, ESTIMATE_N_SAMPLES);
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = n_walked + (uint32_t)((uint64_t)n_rest * i / n);
        struct member q = member_of(m, order_at(&s->order, at), own, i);
        double decode_s = decode_seconds(s, q.n_cached + q.n_left, n_run);

        sum +=
            chunk_seconds(s->config.cost, &q) + tokens_before_cap(&q, decode_s) * decode_s / n_run;
    }
    return n ? sum * n_rest / n : 0;
}

static void gather(struct walk *w, uint32_t slot, double n_tokens)
{
    struct estimator *m = w->m;
    const struct scheduler *s = m->s;
    uint32_t n_position = order_position(&s->order, slot), n_walked = 0, n_waiting = 0;

    for (uint32_t at = order_first(&s->order); at != slot; at = order_next(&s->order, at)) {
        n_waiting += s->entries[at].state == ENTRY_WAITING;
        if (n_waiting > ESTIMATE_N_AHEAD)
            break;
        n_walked++;
        w->before[w->n_before] = member_of(m, at, slot, w->n_before);
        w->n_before++;
    }
    for (uint32_t at = order_next(&s->order, slot);
         at != ORDER_NONE && w->n_behind < s->config.n_running_max;
         at = order_next(&s->order, at)) {
        w->behind[w->n_behind] = member_of(m, at, slot, w->n_before + w->n_behind);
        w->n_behind++;
    }
    w->rest_s = sample_rest(m, slot, n_walked, n_position - n_walked);
    if (n_position > n_walked) /* the wait is long, so its first steps need not be exact */
        w->n_steps = m->n_steps - min_u32(m->n_steps, N_STEPS_IF_MANY);
    w->n_all = s->n_running_of[SCHED_USUAL] + s->n_waiting_of[SCHED_USUAL];
    w->own = member_of(m, slot, slot, 0);
    w->own.cap_s = INFINITY;
    if (n_tokens >= 0)
        w->own.n_tokens = steps_of(s, &s->entries[slot], n_tokens);
}

/* --- steps --- */

/* The part of a step that walks one list of members. */
struct batch_part {
    struct member *v;
    uint32_t n;
};

struct step_now {
    struct batch_part parts[3];
    struct cost_step cost;
    uint32_t n_chunks;    /* members with a prompt to compute */
    uint32_t n_finishing; /* members that got their first token in this step */
    uint32_t n_tokens_left;
    bool full, closed; /* for chunks; for members without a place */
};

static void remove_member(struct member *v, uint32_t *n, uint32_t i)
{
    for (uint32_t k = i + 1; k < *n; k++)
        v[k - 1] = v[k];
    --*n;
}

/* Choose the members that have a place. */
static struct step_now choose(struct walk *w)
{
    uint32_t places = w->config->n_running_max, n_before = min_u32(w->n_before, places);
    bool own = n_before < places && w->own.n_left > 0;
    struct step_now now = {.parts = {{w->before, n_before},
                                     {&w->own, own},
                                     {w->behind, min_u32(w->n_behind, places - n_before - own)}}};

    for (int p = 0; p < 3; p++)
        for (uint32_t i = 0; i < now.parts[p].n; i++) {
            const struct member *q = &now.parts[p].v[i];
            if (q->n_left == 1) {
                now.cost.n_decodes++;
                now.cost.n_decode_cached += q->n_cached;
            } else {
                now.n_chunks++;
            }
        }
    return now;
}

/* Account for one more token of a member. */
static void give_token(struct member *q)
{
    q->n_cached += q->n_left;
    q->n_left = 1;
    q->n_tokens -= 1;
    q->runs = true;
    q->is_urgent = false;
}

/* Tokens of the member's chunk in this step, as scheduler_plan.c cuts it. */
static uint32_t fit_chunk(const struct walk *w, struct step_now *now, const struct member *q)
{
    const struct scheduler_config *c = w->config;
    uint32_t n = min_u32(q->n_left, now->n_tokens_left), fits = n;

    if (now->full || (now->closed && !q->runs))
        return 0;
    if (n > 0 && c->step_s_max > 0)
        fits = cost_model_fit(c->cost, &now->cost, q->n_cached, n, c->step_s_max);
    if (now->cost.n_chunks == 0 && fits < CHUNK_TOKENS_MIN)
        fits = min_u32(CHUNK_TOKENS_MIN, n);
    now->full = fits == 0;
    if (fits > 0 && fits < q->n_left && !q->is_urgent &&
        step_ends_before(w->m->s, &now->cost, q->n_cached, fits, now->n_finishing, w->n_all)) {
        now->closed |= !q->runs;
        return 0;
    }
    return fits;
}

/* Run a step with chunks. Returns its seconds. */
static double run_chunks(const struct walk *w, struct step_now *now)
{
    const struct scheduler_config *c = w->config;

    now->n_tokens_left = c->n_tokens_max - min_u32(now->cost.n_decodes, c->n_tokens_max);
    for (int p = 0; p < 3; p++)
        for (uint32_t i = 0; i < now->parts[p].n; i++) {
            struct member *q = &now->parts[p].v[i];
            bool is_decode = q->n_left == 1;
            uint32_t fits = is_decode ? 1 : fit_chunk(w, now, q);

            if (fits == 0)
                continue;
            if (!is_decode) {
                cost_step_add(&now->cost, c->cost, q->n_cached, fits);
                now->n_tokens_left -= fits;
            }
            if (fits == q->n_left) {
                now->n_finishing += !is_decode || !q->runs;
                give_token(q);
            } else {
                q->n_cached += fits;
                q->n_left -= fits;
                q->runs = true;
            }
        }
    return cost_model_step_seconds(c->cost, &now->cost);
}

/* Run decodes until the first member that precedes the request leaves its place, or the request has
 * its next token or its end. */
static double run_decodes(const struct walk *w, const struct step_now *now, bool to_end)
{
    double step_s = cost_model_step_seconds(w->config->cost, &now->cost), n = INFINITY;

    for (int p = 0; p < 3; p++)
        for (uint32_t i = 0; i < now->parts[p].n; i++) {
            const struct member *q = &now->parts[p].v[i];
            n = fmin(n, fmin(ceil(q->n_tokens), ceil(q->cap_s / step_s)));
        }
    n = fmax(1, to_end || now->parts[1].n == 0 ? n : 1);
    for (int p = 0; p < 3; p++)
        for (uint32_t i = 0; i < now->parts[p].n; i++) {
            struct member *q = &now->parts[p].v[i];

            q->n_cached += (uint32_t)n;
            q->n_tokens -= n;
            q->runs = true;
            q->is_urgent = false;
        }
    return n * step_s;
}

/* Remove members that ended, and move demoted ones behind the request. */
static void settle(struct walk *w, uint32_t n_before, uint32_t n_behind, double step_s)
{
    for (uint32_t i = n_behind; i-- > 0;)
        if (w->behind[i].n_tokens <= 0 && w->behind[i].n_left == 1) {
            remove_member(w->behind, &w->n_behind, i);
            w->n_all--;
        }
    for (uint32_t i = n_before; i-- > 0;) {
        struct member *q = &w->before[i], moved;

        q->cap_s -= step_s;
        if (q->n_left > 1)
            continue; /* an iteration ends with a token */
        moved = *q;
        w->n_all -= q->n_tokens <= 0;
        if (q->n_tokens <= 0 || q->cap_s <= 0)
            remove_member(w->before, &w->n_before, i);
        if (moved.n_tokens > 0 && moved.cap_s <= 0 && w->n_behind < w->m->n_max) {
            moved.cap_s = INFINITY;
            w->behind[w->n_behind++] = moved;
        }
    }
}

static void step(struct walk *w, bool to_end)
{
    struct step_now now = choose(w);
    double seconds = now.n_chunks ? run_chunks(w, &now) : run_decodes(w, &now, to_end);

    w->now_s += seconds;
    settle(w, now.parts[0].n, now.parts[2].n, seconds);
}

/* --- the two predictions --- */

/* Seconds until the first token if the members before the request are not followed one by one. */
static double remaining_first(const struct walk *w)
{
    const struct scheduler_config *c = w->config;
    uint32_t places = c->n_running_max;
    double decode_s = cost_model_decode_seconds(c->cost, w->own.n_cached + w->own.n_left,
                                                min_u32(places, w->n_before + w->n_behind));
    double chunks_s = chunk_seconds(c->cost, &w->own), tokens = 0, share = c->step_s_max - decode_s;

    for (uint32_t i = 0; i < w->n_before; i++) {
        chunks_s += chunk_seconds(c->cost, &w->before[i]);
        tokens += tokens_before_cap(&w->before[i], decode_s);
    }
    if (share > decode_s) /* a step of prompts computes the decodes too */
        chunks_s *= 1 + decode_s / share;
    if (w->n_before >= places)
        chunks_s += tokens * decode_s / places * (w->n_before - places + 1) / w->n_before;
    return chunks_s + decode_s;
}

static void run_to_first(struct walk *w)
{
    uint32_t known = w->own.n_cached + w->own.n_left;
    bool waits = true;

    while (w->own.n_left + w->own.n_cached == known && w->n_steps < w->m->n_steps) {
        if (waits && w->n_before < w->config->n_running_max) {
            waits = false;
            w->now_s += w->rest_s; /* the sequences that are not simulated precede it */
        }
        step(w, false);
        w->n_steps++;
    }
    if (w->own.n_left + w->own.n_cached != known)
        return;
    w->now_s += remaining_first(w) + (waits ? w->rest_s : 0);
    w->n_before = min_u32(w->n_before, w->config->n_running_max - 1);
    give_token(&w->own);
}

static double rest_of_own(const struct walk *w)
{
    uint32_t n = min_u32(w->n_before + 1 + w->n_behind, w->config->n_running_max);

    return fmax(0, w->own.n_tokens) *
           cost_model_decode_seconds(w->config->cost, w->own.n_cached, n);
}

/* The request keeps its place: follow it to its end. */
static double run_to_end(struct walk *w)
{
    while (w->own.n_tokens > 0 && w->n_steps < w->m->n_steps) {
        step(w, true);
        w->n_steps++;
    }
    return w->now_s + rest_of_own(w);
}

/* The level in which an MLFQ ends the request, after so many seconds of service. */
static uint32_t last_level(const struct scheduler *s, const struct entry *own, double seconds)
{
    uint32_t level = own->level;

    while (level + 1 < SCHEDULER_N_LEVELS &&
           s->quanta_before_s[level + 1] - s->quanta_before_s[own->level] < seconds)
        level++;
    return level;
}

/* Work of other sequences, in seconds of a place and seconds of the device. */
struct work {
    double decodes_s, chunks_s;
};

/* The work of sequence `at` that an MLFQ does before the end of the request: service up to until_s,
 * counted in quanta from the top. */
static struct work work_before(const struct walk *w, uint32_t slot, uint32_t at, double until_s)
{
    const struct scheduler *s = w->m->s;
    const struct entry *e = &s->entries[at], *own = &s->entries[slot];
    struct member q = member_of(w->m, at, slot, at);
    double left_s = q.n_tokens * s->decode_s;

    if (at == slot || e->priority > own->priority)
        return (struct work){0};
    if (e->priority == own->priority)
        left_s = fmax(0, fmin(left_s, until_s - s->quanta_before_s[e->level] - e->charged_s));
    return (struct work){
        left_s, left_s > 0 || e->state == ENTRY_RUNNING ? chunk_seconds(s->config.cost, &q) : 0};
}

static void add_work(struct work *sum, struct work more, double times)
{
    sum->decodes_s += more.decodes_s * times;
    sum->chunks_s += more.chunks_s * times;
}

/* In an MLFQ with more sequences than places, all others are served up to the level in which the
 * request ends; half of those in that level precede it. Decodes share the steps, prompts do not. */
static double shared_end(const struct walk *w, uint32_t slot)
{
    const struct scheduler *s = w->m->s;
    const struct entry *own = &s->entries[slot];
    uint32_t places = s->config.n_running_max, n = min_u32(s->order.n, ESTIMATE_N_SAMPLES);
    uint32_t n_run = min_u32(s->n_running, ESTIMATE_N_SAMPLES), n_sampled = 0;
    double own_s = rest_of_own(w);
    uint32_t level = last_level(s, own, own->prefill_s + own_s);
    double until_s = s->quanta_before_s[level] + fmin(own_s, s->quantum_s[level]) / 2;
    struct work all = {0}, sampled = {0};

    for (uint32_t i = 0; i < n_run; i++)
        add_work(&all, work_before(w, slot, s->running[s->n_running * i / n_run], until_s),
                 (double)s->n_running / n_run);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = order_at(&s->order, (uint32_t)((uint64_t)s->order.n * i / n));
        if (s->entries[at].state != ENTRY_WAITING)
            continue;
        add_work(&sampled, work_before(w, slot, at, until_s), 1);
        n_sampled++;
    }
    if (n_sampled > 0)
        add_work(&all, sampled, (double)s->n_waiting_of[SCHED_USUAL] / n_sampled);
    return fmax(w->now_s + own_s, own->prefill_s + all.chunks_s + (own_s + all.decodes_s) / places);
}

/* --- correction --- */

void estimator_note_step(struct estimator *m, double expected_s, double actual_s)
{
    double kept = exp(-actual_s / PACE_S);

    m->expected_s = m->expected_s * kept + expected_s;
    m->taken_s = m->taken_s * kept + actual_s;
}

double estimator_pace(const struct estimator *m)
{
    return m->expected_s > 0 ? m->taken_s / m->expected_s : 1;
}

static void follow(struct follower *f, double ratio)
{
    double x = log(fmin(fmax(ratio, 1e-3), 1e3)), rate;

    f->n++;
    rate = fmax(FOLLOW_RATE, 0.3 / (1 + (double)f->n * f->n / N_FAST));
    f->median += rate * (x > f->median ? 1 : -1);
    f->high += 2 * rate * (x > f->high ? HIGH : HIGH - 1);
    f->high = fmax(f->high, f->median);
}

static double note_error(struct follower *f, double predicted_s, double actual_s)
{
    double error = actual_s > 0 ? fabs(predicted_s - actual_s) / actual_s : 0;

    follow(f, error);
    return error;
}

/* A request's place in the order of learned ranks, counted from its arrival: a later one overtakes
 * it by having a smaller lead, if it comes early enough. Other orders have no such places, so the
 * lead falls with the time of arrival, and nobody seems to be overtaken. */
static double lead_seconds(const struct entry *e)
{
    return (double)e->place_us * 1e-6 - (double)e->came_ns * 1e-9;
}

static uint32_t group_of(const struct estimator *m, uint32_t slot, uint32_t n_before)
{
    uint32_t n = m->n_leads < N_LEADS ? (uint32_t)m->n_leads : N_LEADS, n_overtake = 0, depth = 0;
    uint32_t part = PLACES_FINE * n_before / m->s->config.n_running_max;
    double lead_s = lead_seconds(&m->s->entries[slot]);

    for (; part > 0 && depth < N_DEPTHS - 1; part /= 2)
        depth++;
    for (uint32_t i = 0; i < n; i++)
        n_overtake += m->leads_s[i] < lead_s;
    return depth * N_SHARES + n_overtake * N_SHARES / (n + 1);
}

static const struct follower *correction(const struct follower *group, const struct follower *all)
{
    return group->n >= N_GROUP_MIN ? group : all;
}

double estimator_note_ttft(struct estimator *m, const struct estimate *e, double actual_s)
{
    if (e->raw_ttft_s > 0) {
        double ratio = (actual_s - e->waited_s) / e->raw_ttft_s;

        follow(&m->ttft[e->waits], ratio);
        follow(&m->ttft_of[e->group], ratio);
    }
    return note_error(&m->ttft_error, e->ttft_s, actual_s);
}

double estimator_note_e2e(struct estimator *m, const struct estimate *e, double actual_s)
{
    if (e->raw_e2e_s > 0) {
        double ratio = (actual_s - e->waited_s) / e->raw_e2e_s;

        follow(&m->e2e[e->waits], ratio);
        follow(&m->e2e_of[e->group], ratio);
    }
    return note_error(&m->e2e_error, e->e2e_s, actual_s);
}

static struct estimate_factors factors_of(const struct follower *f)
{
    return (struct estimate_factors){exp(f->median), exp(f->high), f->n};
}

void estimator_stats(const struct estimator *m, struct estimator_stats *out)
{
    for (int waits = 0; waits < 2; waits++) {
        out->ttft[waits] = factors_of(&m->ttft[waits]);
        out->e2e[waits] = factors_of(&m->e2e[waits]);
    }
    out->ttft_error = factors_of(&m->ttft_error);
    out->e2e_error = factors_of(&m->e2e_error);
}

/* --- */

static void predict(struct estimator *m, uint32_t slot, double waited_s, double n_tokens,
                    struct estimate *out)
{
    const struct scheduler *s = m->s;
    struct walk w = {.m = m, .config = &s->config, .before = m->before, .behind = m->behind};
    bool shares = s->policy->has_levels && s->order.n > s->config.n_running_max;

    ASSERT(s->entries[slot].state == ENTRY_WAITING);
    gather(&w, slot, n_tokens);
    *out = (struct estimate){.waited_s = waited_s, .n_before = order_position(&s->order, slot)};
    out->waits = out->n_before >= s->config.n_running_max;
    out->group = group_of(m, slot, out->n_before);
    run_to_first(&w);
    out->raw_ttft_s = w.now_s * estimator_pace(m);
    out->raw_e2e_s = (shares ? shared_end(&w, slot) : run_to_end(&w)) * estimator_pace(m);
    struct estimate_factors ttft =
        factors_of(correction(&m->ttft_of[out->group], &m->ttft[out->waits]));
    struct estimate_factors e2e =
        factors_of(correction(&m->e2e_of[out->group], &m->e2e[out->waits]));
    out->ttft_s = waited_s + ttft.median * out->raw_ttft_s;
    out->ttft_high_s = waited_s + ttft.high * out->raw_ttft_s;
    out->e2e_s = fmax(out->ttft_s, waited_s + e2e.median * out->raw_e2e_s);
    out->e2e_high_s = fmax(out->ttft_high_s, waited_s + e2e.high * out->raw_e2e_s);
}

void estimate_slot(struct estimator *m, uint32_t slot, double waited_s, double n_tokens,
                   struct estimate *out)
{
    predict(m, slot, waited_s, n_tokens, out);
    m->leads_s[m->n_leads++ % N_LEADS] = lead_seconds(&m->s->entries[slot]);
}

void estimate_request(struct estimator *m, uint32_t slot, const struct sched_request *r,
                      uint64_t now_ns, struct estimate *out)
{
    struct sched_probe probe;

    scheduler_probe(m->s, slot, r, now_ns, &probe);
    predict(m, slot, 0, -1, out);
    scheduler_unprobe(m->s, slot, &probe);
}
