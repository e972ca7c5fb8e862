/* scheduler_policies.c - the order of service: where each policy places a sequence.
 *
 * MLFQ (FastServe): level l has the quantum q_0 ratio^l. A sequence is charged the wall time of
 * each step that it takes part in. Demotion is decided only when an iteration ends, which is when a
 * token came: a prefill is one iteration, whatever the number of its chunks. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

#define RELEASED_SCAN_PLANS 1000
/* Largest share of the time that may go into restoring starving sequences. */
#define RESTORE_SHARE 0.02

/* --- places within one priority and level --- */

static struct order_key by_rank(const struct scheduler *s, uint32_t slot)
{
    return (struct order_key){.middle = s->entries[slot].round, .low = s->entries[slot].rank};
}

/* Ascending microseconds, then order of arrival. */
static struct order_key by_seconds(const struct entry *e, double seconds)
{
    double us = seconds * 1e6, max = (double)(UINT64_C(1) << 62);

    return (struct order_key){.middle = 1 + (uint64_t)(us < max ? us : max), .low = e->arrival};
}

static struct order_key by_prompt(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];

    if (e->has_run)
        return (struct order_key){.low = e->arrival};
    return by_seconds(e, e->prefill_s);
}

/* The prefill is prorated from the time expected at arrival, and a preempted sequence is assumed to
 * find everything it computed in the cache. So the key depends only on the sequence's own numbers,
 * not on when it is computed. */
static double remaining_seconds(const struct scheduler *s, const struct entry *e)
{
    double t = e->n_out_left * s->decode_s;

    if (!e->has_run || e->state == ENTRY_RUNNING)
        t += e->prefill_s * (e->n_known - e->n_computed) / e->n_known;
    return t;
}

static struct order_key by_remaining(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];
    return by_seconds(e, remaining_seconds(s, e));
}

/* --- levels --- */

void policy_init_levels(struct scheduler *s)
{
    double q = s->config.quantum_s, sum = 0;

    for (uint32_t l = 0; l < SCHEDULER_N_LEVELS; l++) {
        s->quantum_s[l] = l + 1 < SCHEDULER_N_LEVELS ? q : INFINITY;
        s->quanta_before_s[l] = sum;
        sum += q;
        q *= s->config.ratio;
    }
}

/* The first level, from `level` on, whose quantum covers that time. */
static uint32_t covering_level(const struct scheduler *s, uint32_t level, double seconds)
{
    while (s->quantum_s[level] < seconds) /* ends: the last quantum is INFINITY */
        level++;
    return level;
}

static void join_top(struct scheduler *s, uint32_t slot)
{
    s->entries[slot].level = 0;
}

static void join_covering(struct scheduler *s, uint32_t slot)
{
    s->entries[slot].level = covering_level(s, 0, s->entries[slot].prefill_s);
}

static void sink(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];
    uint32_t level = e->level + 1;

    if (s->variant != MLFQ_RELEASED)
        level = covering_level(s, level, next_iteration_seconds(s, e));
    entry_to_level(s, slot, level, s->variant == MLFQ_RELEASED);
    s->n_demoted++;
}

static void ran_mlfq(struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];
    double quantum_s = s->quantum_s[e->level];

    if (s->variant == MLFQ_RELEASED ? e->charged_s > quantum_s : e->charged_s >= quantum_s)
        sink(s, slot);
}

static void ran_nothing(struct scheduler *s, uint32_t slot)
{
    (void)s;
    (void)slot;
}

/* --- expected time until a sequence's turn --- */

/* FastServe's T_execute: all sequences of higher levels sink to this level first. */
static double ahead_in_levels(const struct scheduler *s, uint32_t slot)
{
    uint32_t level = s->entries[slot].level;
    double sum = 0;

    for (uint32_t l = 0; l < level; l++)
        sum += s->n_in_level[l] * (s->quanta_before_s[level] - s->quanta_before_s[l]);
    return sum / s->config.n_running_max;
}

/* Each sequence that arrived before runs one step at least. */
static double ahead_in_line(const struct scheduler *s, uint32_t slot)
{
    uint64_t first = s->entries[order_first(&s->order)].arrival, mine = s->entries[slot].arrival;

    return mine > first ? (double)(mine - first) * s->decode_s / s->config.n_running_max : 0;
}

/* The sequences before it have shorter prefills than its own. */
static double ahead_by_prompt(const struct scheduler *s, uint32_t slot)
{
    return s->entries[slot].has_run ? 0 : s->entries[slot].prefill_s;
}

static double ahead_by_remaining(const struct scheduler *s, uint32_t slot)
{
    return remaining_seconds(s, &s->entries[slot]);
}

/* --- the policies --- */

/* The variant learned of skip-join-mlfq. Its levels are as many as its ranks. */
static const struct policy learned = {.name = "skip-join-mlfq",
                                      .by_size = true,
                                      .overtakes_equals = true,
                                      .join = join_top,
                                      .ran = ran_nothing,
                                      .place = learned_place,
                                      .ahead_s = learned_ahead};

/* name, has_levels, by_size, overtakes_equals */
static const struct policy policies[] = {
    {"skip-join-mlfq", true, false, true, join_covering, ran_mlfq, by_rank, ahead_in_levels},
    {"mlfq", true, false, true, join_top, ran_mlfq, by_rank, ahead_in_levels},
    {"fcfs", false, false, false, join_top, ran_nothing, by_rank, ahead_in_line},
    {"sjf-prompt", false, true, true, join_top, ran_nothing, by_prompt, ahead_by_prompt},
    {"srpt", false, true, true, join_top, ran_nothing, by_remaining, ahead_by_remaining},
};

const char *scheduler_policies(void)
{
    return "skip-join-mlfq|mlfq|fcfs|sjf-prompt|srpt";
}

const struct policy *policy_find(const char *name, enum mlfq_variant variant)
{
    if (variant == MLFQ_LEARNED && !strcmp(name, learned.name))
        return &learned;
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
        if (!strcmp(policies[i].name, name))
            return &policies[i];
    return NULL;
}

static const char *const variants[] = {"tarn", "paper", "released", "learned"};

const char *scheduler_variants(void)
{
    return "tarn|paper|released|learned";
}

bool variant_find(const char *name, enum mlfq_variant *out)
{
    for (size_t i = 0; i < ARRAY_SIZE(variants); i++)
        if (!strcmp(variants[i], name)) {
            *out = (enum mlfq_variant)i;
            return true;
        }
    return false;
}

const char *variant_name(enum mlfq_variant variant)
{
    return variants[variant];
}

/* --- starvation --- */

uint64_t starvation_now_ns(const struct scheduler *s)
{
    uint64_t raised_ns = (uint64_t)(s->n_started * s->restore_s / RESTORE_SHARE * NS_PER_S);

    if (s->variant == MLFQ_PAPER || s->variant == MLFQ_RELEASED)
        return s->starvation_ns;
    return raised_ns > s->starvation_ns ? raised_ns : s->starvation_ns;
}

static void make_urgent(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];
    const struct entry *first = &s->entries[order_first(&s->order)];

    age_list_take(s, slot); /* the list holds it again when it has run */
    if (e->is_urgent)
        return;
    if (!s->policy->overtakes_equals && !first->is_urgent && first->priority >= e->priority) {
        age_list_append(s, slot, now_ns); /* it is first among equals in any case; a later arrival
                                             of higher priority may change that */
        return;
    }
    e->is_urgent = true;
    e->urgent_no = s->n_urgent_ever++;
    s->n_starving++;
    if (s->variant == MLFQ_PAPER)
        entry_to_level(s, slot, 0, false);
    entry_placed(s, slot);
}

/* As the authors' released code does it: all sequences that did not run for that long, and all that
 * never ran (their time starts at 0), move to the front of the top level and keep the time charged
 * to them. */
static void scan_as_released(struct scheduler *s, uint64_t now_ns)
{
    for (uint32_t slot = s->oldest; slot != ORDER_NONE; slot = s->entries[slot].newer) {
        struct entry *e = &s->entries[slot];
        double charged_s = e->charged_s;

        if (e->has_run && now_ns - e->last_run_ns < s->starvation_ns)
            continue;
        entry_to_level(s, slot, 0, true);
        e->charged_s = charged_s;
        s->n_starving++;
        entry_placed(s, slot);
    }
}

void promote_starving(struct scheduler *s, uint64_t now_ns)
{
    if (s->starvation_ns == UINT64_MAX)
        return;
    if (s->variant == MLFQ_RELEASED) {
        if (s->n_plans % RELEASED_SCAN_PLANS == 0)
            scan_as_released(s, now_ns);
        return;
    }
    uint64_t threshold_ns = starvation_now_ns(s);
    while (s->oldest != ORDER_NONE && s->entries[s->oldest].last_run_ns + threshold_ns <= now_ns)
        make_urgent(s, s->oldest, now_ns);
}

/* FastServe's ENST: the earlier of T_execute and T_promote, the time at which it is moved up. */
uint64_t scheduler_next_ns(const struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    const struct entry *e = &s->entries[slot];
    uint64_t promote_ns =
        s->starvation_ns == UINT64_MAX ? UINT64_MAX : e->last_run_ns + starvation_now_ns(s);
    if (e->class != SCHED_USUAL)
        return UINT64_MAX;
    if (e->is_urgent)
        return now_ns;
    double execute_s = s->policy->ahead_s(s, slot);
    uint64_t execute_ns = execute_s < 1e9 ? now_ns + (uint64_t)(execute_s * NS_PER_S) : UINT64_MAX;
    uint64_t next_ns = execute_ns < promote_ns ? execute_ns : promote_ns;
    return next_ns > now_ns ? next_ns : now_ns;
}
