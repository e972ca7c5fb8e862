/* scheduler_learned.c - the order of the variant `learned`: ranks from the lengths of answers, aged
 * by boosting.
 *
 * A sequence has the rank x of lengths.h and the place
 *     origin + T (ln x - u)
 * on the axis of time; the earliest place goes first. So a sequence goes before another one of the
 * same rank that arrived later, before one of e times its rank that arrived up to T earlier, and so
 * on. Time changes no order between two sequences: a place changes only when its sequence
 * progresses. No sequence starves: a place is at most T (ln x + KEEP_MAX + CREDIT) behind that of
 * any later arrival, so sequences that arrive later than that never go before it, but for elders.
 * (Boost scheduling: Yu and Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1",
 * 2024, with Gittins ranks in place of known sizes.)
 *
 * T follows the backlog: AGE_BOOST times the mean time that requests spend here, or more while the
 * load rises. With a smaller T the order comes near that of arrival and gives short answers less;
 * with a larger T the last answers wait longer. The number u is the mean of ln x over arrivals,
 * plus 1. So the place of a usual arrival is T before it. Without u, a T that grows in a burst
 * places the new requests of the burst behind all earlier ones.
 *
 * Elders. Short prompts go before long ones, so in a long burst the longest prompts would come
 * last of all. The request without a first token that is first by turn (of tenants) and arrival
 * goes before the others of its priority once its age is ELDER_AGE T. The next one does so when
 * ELDER_SHARE of the time since makes up for its prefill. Begun answers that are nearly over would
 * wait behind new ones in the same way. Begun answers that are expected to end soon go before the
 * others once their age is ENDING_AGE T, until their end, in at most half of the places.
 *
 * AGE_BOOST, FIRST_TOKEN_GAIN and the constants of elders were chosen by the simulations of
 * loadgen/bench/sched/README.md.
 *
 * The requests of a session are one program, ranked by the lengths of programs, which have classes
 * of their own, given what the whole program has attained, and a request counts as arrived
 * earlier by the time in which earlier requests of the program were here (pauses do not count). So
 * programs of even length are served in the order in which they began, and where lengths of
 * programs have a heavy tail, those that attained least go first. A program has ended when its
 * session is closed or has paused for long (scheduler_trajectory.c). */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"
#include "engine/sched/scheduler_internal.h"

#define AGE_BOOST 2.8
#define AGE_S_MAX 3600.0
/* When the load rises, the ages of the requests that are here rise before the time that requests
 * spend here. So T is at least this many mean ages. */
#define AGES 2.1
#define ELDER_AGE 0.6
#define ELDER_SHARE 0.5
#define ENDING_AGE 0.4
/* An answer is expected to end soon when the rest has this share of the mean length. So answers
 * whose length has a heavy tail never are: the longer they are, the longer is the rest. */
#define ENDING_SHARE 0.75
/* Weights of a new request in the moving means. */
#define SPENT_RATE 0.005
#define TURN_RATE 0.02
/* The gain of a first token over that of an answer of mean length, each per token: with 1, first
 * tokens of long prompts wait for short answers; near 0, many answers are begun and none is
 * finished. */
#define FIRST_TOKEN_GAIN 5.0
/* Largest share of the time that may go into restoring preempted sequences. Above it, running
 * sequences are kept: their ranks count as e^keep times better, up to KEEP_MAX, where nothing but
 * want of memory preempts. Between two ends `keep` rises by KEEP_RATE for each multiple of the
 * share above it. */
#define RESTORE_SHARE 0.02
#define KEEP_RATE 0.05
#define KEEP_MAX 12.0
/* Places that differ by less than this share of T are equal, so that tenants take turns. */
#define EQUAL_SHARE (1.0 / 16)
/* At most this share of the running sequences goes before others for their targets or as begun
 * elders, so that these do not undo the order. */
#define DUE_SHARE 0.5
/* A request counts as arrived earlier by the time that its program spent here, up to CREDIT T: a
 * program that never ends must not go before all others for ever. */
#define CREDIT 4
/* Sequences that stand for all, in scheduler_backlog_s(). */
#define BACKLOG_SAMPLES 128
/* An infinite rank is that of a length that no answer had. */
#define RANK_MAX 1e15
#define LOG_RANK_MAX 35.0
#define PLACE_S ((2 * CREDIT + KEEP_MAX + LOG_RANK_MAX) * AGE_S_MAX) /* keeps places above 0 */

/* --- rounds --- */

enum status learned_init(struct scheduler *s)
{
    enum status st = lengths_create(&s->lengths);

    if (st == OK)
        st = order_init(&s->due, s->config.n_slots);
    if (st == OK)
        st = order_init(&s->unserved, s->config.n_slots);
    if (st == OK)
        st = order_init(&s->ending, s->config.n_slots);
    s->elder = ORDER_NONE;
    s->n_rounds = s->config.n_slots + 1;
    for (int i = 0; st == OK && i < N_CLASSES; i++) {
        struct rounds *r = &s->rounds[i];
        r->origin_ns = memory_zeroed(s->n_rounds, sizeof *r->origin_ns);
        r->n_fresh = memory_zeroed(s->n_rounds, sizeof *r->n_fresh);
        st = r->origin_ns && r->n_fresh ? OK : ERR_NOMEM;
    }
    return st;
}

void learned_fini(struct scheduler *s)
{
    lengths_destroy(s->lengths);
    order_fini(&s->due);
    order_fini(&s->unserved);
    order_fini(&s->ending);
    for (int i = 0; i < N_CLASSES; i++) {
        free(s->rounds[i].origin_ns);
        free(s->rounds[i].n_fresh);
    }
}

struct rounds *learned_rounds(struct scheduler *s, int32_t priority)
{
    return &s->rounds[round_index(0, priority)];
}

static struct rounds *rounds_of(struct scheduler *s, const struct entry *e)
{
    return learned_rounds(s, e->priority);
}

void learned_join(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];
    struct rounds *r = rounds_of(s, e);
    uint64_t end = r->first + s->n_rounds - 1; /* the last one that there is room for */

    e->round = tenants_round(&s->tenants, e->tenant, round_index(0, e->priority), r->first);
    if (e->round > end)
        e->round = end;
    while (r->last < e->round) {
        uint64_t i = ++r->last % s->n_rounds;
        r->origin_ns[i] = e->origin_ns;
        r->n_fresh[i] = 0;
    }
    if (r->n_fresh[e->round % s->n_rounds] == 0) /* the others of the round have run or left */
        r->origin_ns[e->round % s->n_rounds] = e->origin_ns;
    e->origin_ns = r->origin_ns[e->round % s->n_rounds];
    r->n_fresh[e->round % s->n_rounds]++;
    learned_rank(s, slot);
    learned_set_due(s, slot, e->came_ns);
}

void learned_started(struct scheduler *s, const struct entry *e)
{
    struct rounds *r = rounds_of(s, e);

    ASSERT(r->n_fresh[e->round % s->n_rounds] > 0);
    r->n_fresh[e->round % s->n_rounds]--;
    while (r->first < r->last && r->n_fresh[r->first % s->n_rounds] == 0)
        r->first++;
}

void learned_unjoin(struct scheduler *s, const struct entry *e, uint64_t first, uint64_t last)
{
    struct rounds *r = rounds_of(s, e);

    r->n_fresh[e->round % s->n_rounds]--;
    r->first = first;
    r->last = last;
}

void learned_forget_rounds(struct scheduler *s)
{
    for (int i = 0; i < N_CLASSES; i++) {
        struct rounds *r = &s->rounds[i];
        r->first = r->last = 0;
        for (uint32_t k = 0; k < s->n_rounds; k++)
            r->n_fresh[k] = 0;
    }
}

void learned_rejoin(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    e->rank_step = 0; /* the place is of the last time that this variant was in force */
    learned_join(s, slot);
    if (e->has_run)
        learned_started(s, e);
}

/* --- targets --- */

static void forget_target(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    if (e->due_ns)
        order_remove(&s->due, slot);
    if (e->is_unserved)
        order_remove(&s->unserved, slot);
    if (s->elder == slot)
        s->elder = ORDER_NONE;
    s->n_due -= e->is_due;
    e->due_ns = 0;
    e->is_due = e->is_unserved = false;
}

void learned_forget_due(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    forget_target(s, slot);
    if (e->is_ending)
        order_remove(&s->ending, slot);
    s->n_elders -= e->is_elder;
    e->is_ending = e->is_elder = false;
}

static struct order_key by_turn(const struct entry *e)
{
    return (struct order_key){(uint64_t)((int64_t)e->priority - INT32_MIN), e->round, e->arrival};
}

/* The sequence has progressed. */
static void note_ending(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    if (e->n_out == 0 || e->is_elder)
        return;
    bool was_ending = e->is_ending;
    e->is_ending = lengths_mean_left(s->lengths, LENGTHS_CALLS, e->n_out) <=
                   ENDING_SHARE * lengths_mean_left(s->lengths, LENGTHS_CALLS, 0);
    if (e->is_ending && !was_ending)
        order_insert(&s->ending, slot, by_turn(e));
    else if (was_ending && !e->is_ending)
        order_remove(&s->ending, slot);
}

/* The next token has to come by first_ns + n_out slo_tpot_s, and the first by came_ns + slo_ttft_s.
 * Before it runs, the step under way ends, and others run in its step. A target that cannot be met
 * any more is given up. */
void learned_set_due(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];
    double step_s = fmax(s->step_s, s->decode_s), run_s, due_s = 0;

    forget_target(s, slot);
    if (e->n_out == 0) {
        e->is_unserved = true;
        order_insert(&s->unserved, slot, by_turn(e));
    }
    if (e->slo_ttft_s == 0 && e->slo_tpot_s == 0)
        return;
    run_s = step_s + fmax(next_iteration_seconds(s, e), step_s);
    if (e->n_out == 0 && e->slo_ttft_s > 0)
        due_s = e->came_ns / NS_PER_S + e->slo_ttft_s - run_s;
    else if (e->n_out > 0 && e->slo_tpot_s > 0)
        due_s = e->first_ns / NS_PER_S + e->n_out * e->slo_tpot_s - run_s;
    if (due_s * NS_PER_S < (double)now_ns)
        return;
    e->due_ns = (uint64_t)(due_s * NS_PER_S);
    order_insert(&s->due, slot, (struct order_key){.high = e->due_ns});
}

static void promote(struct scheduler *s, uint32_t slot)
{
    s->entries[slot].is_due = true;
    s->n_due++;
    entry_placed(s, slot);
}

static void promote_elder(struct scheduler *s, uint64_t now_ns)
{
    uint32_t slot = order_first(&s->unserved);

    if (slot == ORDER_NONE || s->elder != ORDER_NONE || now_ns < s->next_elder_ns)
        return;
    const struct entry *e = &s->entries[slot];
    if (e->state == ENTRY_RUNNING || e->is_due ||
        (now_ns - e->came_ns) / NS_PER_S < ELDER_AGE * learned_age_s(s))
        return;
    promote(s, slot);
    s->elder = slot;
    s->next_elder_ns = now_ns + (uint64_t)(e->prefill_s / ELDER_SHARE * NS_PER_S);
}

/* Where memory is short, to restore a waiting one costs more than its early end gains. */
static void promote_ending(struct scheduler *s, uint64_t now_ns, uint32_t n_max)
{
    uint32_t slot;

    while (s->n_due + s->n_elders < n_max && (slot = order_first(&s->ending)) != ORDER_NONE) {
        struct entry *e = &s->entries[slot];
        bool costs = s->keep > 0 && e->state != ENTRY_RUNNING;
        if (costs || (now_ns - e->came_ns) / NS_PER_S < ENDING_AGE * learned_age_s(s))
            return;
        order_remove(&s->ending, slot);
        e->is_ending = false;
        e->is_elder = true;
        s->n_elders++;
        entry_placed(s, slot);
    }
}

void learned_promote_due(struct scheduler *s, uint64_t now_ns)
{
    uint32_t slot, n_max = (uint32_t)ceil(s->config.n_running_max * DUE_SHARE);

    while ((slot = order_first(&s->due)) != ORDER_NONE && s->entries[slot].due_ns <= now_ns) {
        order_remove(&s->due, slot);
        s->entries[slot].due_ns = 0;
        if (s->n_due + s->n_elders < n_max && !s->entries[slot].is_due)
            promote(s, slot);
    }
    promote_elder(s, now_ns);
    promote_ending(s, now_ns, n_max);
}

/* --- places --- */

double learned_age_s(const struct scheduler *s)
{
    double usual_s = fmax(AGE_BOOST * s->spent_s, AGES * s->age_s);

    return s->config.age_s > 0 ? s->config.age_s : fmin(fmax(usual_s, s->decode_s), AGE_S_MAX);
}

/* The prefill that is left, or restoring the KV of a preempted sequence. */
static double seconds_before(const struct scheduler *s, const struct entry *e)
{
    if (e->n_out == 0)
        return e->prefill_s * (e->n_known - e->n_computed) / e->n_known;
    return e->state == ENTRY_RUNNING ? 0 : s->restore_s;
}

/* The number of tokens that take as long. */
static double tokens_of(const struct scheduler *s, double seconds)
{
    return seconds * s->config.n_running_max / s->decode_s; /* a token's share of a step */
}

/* Tokens of the request so far, and of its program. */
static double attained_now(const struct scheduler *s, const struct entry *e)
{
    return e->n_out ? tokens_of(s, e->prefill_s) + e->n_out : 0;
}

static double attained(const struct scheduler *s, const struct entry *e)
{
    return fmin(s->trajectories.v[e->trajectory].attained + attained_now(s, e), 1 << 30);
}

/* A request that has begun to answer is also ranked by itself: its blocks and its place are free
 * soonest when it is finished. By the rank of its program alone, the requests of older programs
 * preempt it (simulated agents with short memory: mean program 298 s instead of 133). */
static double program_rank(const struct scheduler *s, const struct entry *e, double prefill)
{
    double rank = lengths_rank(s->lengths, e->program, (uint32_t)attained(s, e), prefill,
                               s->config.objective);

    if (e->n_out == 0)
        return rank;
    return fmin(rank,
                lengths_rank(s->lengths, e->length_class, e->n_out, prefill, s->config.objective));
}

static double limited(double rank)
{
    return fmin(fmax(rank, 1), RANK_MAX);
}

/* A token takes 1 / yield of a step, so prefills count as yield times the tokens, and the time of
 * all is divided by it. */
static double rank_of(const struct scheduler *s, const struct entry *e)
{
    double yield = entry_yield(s, e), prefill = tokens_of(s, e->before_s) * yield, rank;

    if (e->trajectory != NO_TRAJECTORY)
        return limited(program_rank(s, e, prefill) / yield);
    rank = lengths_rank(s->lengths, e->length_class, e->n_out, prefill, s->config.objective);
    if (e->n_out == 0 && s->config.objective == OBJECTIVE_NORMALIZED) {
        double mean = lengths_mean_left(s->lengths, e->length_class, 0);
        rank = fmin(rank, (1 + prefill) * fmax(1, mean / FIRST_TOKEN_GAIN));
    }
    return limited(rank / yield);
}

/* Between two values the rank depends on the prefill only. */
static uint32_t step_of(const struct scheduler *s, const struct entry *e)
{
    uint32_t step = lengths_step(e->n_out) + 1;

    return e->trajectory == NO_TRAJECTORY ? step
                                          : lengths_step((uint32_t)attained(s, e)) << 16 | step;
}

/* Of a sequence that has no place yet. */
static void note_rank(struct scheduler *s, double log_rank)
{
    s->usual_log += fmax(SPENT_RATE, 1.0 / ++s->n_logs) * (log_rank + 1 - s->usual_log);
}

void learned_rank(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];
    uint32_t step = step_of(s, e);
    double before_s = seconds_before(s, e);
    double keep = e->state == ENTRY_RUNNING ? s->keep : 0;

    if (e->rank_step == step && e->before_s == before_s && (e->keep > 0) == (keep > 0))
        return;
    /* Where only its cached prompt changes, a sequence that waits keeps the T of its arrival, as
     * its neighbours do: T rises with the backlog, and a larger T would place it later. */
    bool is_new = e->rank_step != step || e->has_run;
    if (is_new)
        e->place_age_s = learned_age_s(s);
    e->before_s = before_s;
    e->keep = keep;
    double log_rank = log(rank_of(s, e));
    if (e->rank_step == 0)
        note_rank(s, log_rank);
    if (is_new)
        e->usual_log = s->usual_log;
    if (e->rank_step != step)
        note_ending(s, slot);
    e->rank_step = step;
    double age_s = e->place_age_s;
    double place_s = e->origin_ns / NS_PER_S + PLACE_S - fmin(e->age_s, CREDIT * age_s) +
                     age_s * (log_rank - e->usual_log - keep);
    e->place_us = (uint64_t)(floor(place_s / (age_s * EQUAL_SHARE)) * age_s * EQUAL_SHARE * 1e6);
}

struct order_key learned_place(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];

    return (struct order_key){.middle = e->is_due || e->is_elder ? 0 : e->place_us,
                              .low = e->round};
}

/* --- programs --- */

static struct length_traits program_traits(uint64_t tenant)
{
    return (struct length_traits){.tenant = tenant, .kind = LENGTH_PROGRAM};
}

void learned_end_program(struct scheduler *s, const struct trajectory *x)
{
    struct length_traits t = program_traits(x->tenant);

    lengths_note(s->lengths, lengths_class(s->lengths, &t), (uint32_t)fmin(x->attained, 1 << 30));
}

void learned_enter_program(struct scheduler *s, struct entry *e, uint64_t now_ns)
{
    const struct trajectory *x;

    while ((x = trajectories_next_over(&s->trajectories, now_ns)))
        learned_end_program(s, x);
    if (e->trajectory == NO_TRAJECTORY)
        return;
    x = &s->trajectories.v[e->trajectory];
    struct length_traits t = program_traits(x->tenant);
    e->program = lengths_enter(s->lengths, &t);
    e->age_s = x->active_s + (now_ns - x->began_ns) / NS_PER_S;
}

void learned_probe_program(const struct scheduler *s, struct entry *e, uint64_t now_ns)
{
    const struct trajectory *x = &s->trajectories.v[e->trajectory];
    struct length_traits t = program_traits(x->tenant);

    e->program = lengths_class(s->lengths, &t);
    e->age_s = x->active_s + (now_ns - x->began_ns) / NS_PER_S;
}

void learned_leave_program(struct scheduler *s, const struct entry *e)
{
    const struct trajectory *x;

    if (e->trajectory == NO_TRAJECTORY)
        return;
    x = &s->trajectories.v[e->trajectory];
    lengths_leave(s->lengths, e->program);
    trajectories_attain(&s->trajectories, e->trajectory, attained_now(s, e));
    if (x->is_closed && x->refs == 1)
        learned_end_program(s, x);
}

/* Where memory is short, each admission may cost restoring another sequence later. If that takes
 * more than its share of the time, the machine has less capacity than the arrivals need, and every
 * request waits longer than any order could gain. */
static void adapt_keep(struct scheduler *s, double since_s, double rate)
{
    double share = since_s > 0 ? s->restored_s / since_s : 0;

    s->restored_s = 0;
    s->restoring += rate * (share - s->restoring);
    s->keep += KEEP_RATE * fmin(s->restoring / RESTORE_SHARE - 1, 5);
    s->keep = fmin(fmax(s->keep, 0), KEEP_MAX);
}

void learned_ended(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    const struct entry *e = &s->entries[slot];
    double seconds = (now_ns - e->origin_ns) / NS_PER_S;
    double rate = fmax(SPENT_RATE, 1.0 / ++s->n_ended);

    double n_here = s->order.n, age_s = now_ns / NS_PER_S - s->came_sum_s / n_here;
    double turn_rate = fmax(TURN_RATE, 1.0 / s->n_ended);

    lengths_note(s->lengths, e->length_class, e->n_out);
    s->age_s += turn_rate * (age_s - s->age_s);
    s->spent_s += rate * (seconds - s->spent_s);
    double since_s = s->n_ended > 1 ? (now_ns - s->last_ended_ns) / NS_PER_S : 0;
    s->turn_s += turn_rate * (since_s - s->turn_s);
    adapt_keep(s, since_s, turn_rate);
    s->last_ended_ns = now_ns;
}

/* Return the predicted wait for a place; each sequence that ends frees one, in order. */
double learned_ahead(const struct scheduler *s, uint32_t slot)
{
    uint32_t position = order_position(&s->order, slot), n_places = s->config.n_running_max;

    return position < n_places ? 0 : (position - n_places + 1) * s->turn_s;
}

double scheduler_tokens_left(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];

    if (e->class != SCHED_USUAL)
        return e->n_out_left;
    return fmin(lengths_mean_left(s->lengths, e->length_class, e->n_out), e->n_out_left);
}

/* Of a usual sequence, in seconds of the whole device. */
static double work_left_s(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];
    uint32_t n_places = s->config.n_running_max;

    return seconds_before(s, e) + scheduler_tokens_left(s, slot) / entry_yield(s, e) *
                                      decode_seconds(s, e->n_known, n_places) / n_places;
}

double scheduler_backlog_s(const struct scheduler *s)
{
    uint32_t n = s->order.n < BACKLOG_SAMPLES ? s->order.n : BACKLOG_SAMPLES;
    double sum_s = 0;

    for (uint32_t i = 0; i < n; i++)
        sum_s += work_left_s(s, order_at(&s->order, (uint32_t)((uint64_t)s->order.n * i / n)));
    return n ? sum_s / n * s->order.n : 0;
}

struct lengths *scheduler_lengths(struct scheduler *s)
{
    return s->lengths;
}
