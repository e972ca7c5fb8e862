/* scheduler_policies.c - who stands where in the order of service.
 *
 * MLFQ (FastServe; papers.md 1.2, 1.3): level l has the quantum q_0 ratio^l, and time is charged as
 * the wall time of the steps that a sequence took part in. It is looked at when an iteration ends,
 * which is when a token came: a prefill is one iteration, however many chunks it is cut into. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

#define RELEASED_SCAN_PLANS 1000
/* Of the time, what bringing back those who starve may take. */
#define RESTORE_SHARE 0.02

/* --- places among equals --- */

static struct order_key by_rank(const struct scheduler *s, uint32_t slot)
{
    return (struct order_key){.middle = s->entries[slot].round, .low = s->entries[slot].rank};
}

/* Microseconds, then the order of arrival. */
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

/* What it computed before a preemption it is taken to find again. The numbers are those of its
 * coming, so that a key says the same whenever it is made. */
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

/* The first level from `level` on whose quantum covers that time. */
static uint32_t covering_level(const struct scheduler *s, uint32_t level, double seconds)
{
    while (s->quantum_s[level] < seconds) /* the last one has no end */
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

/* --- how long until it is its turn --- */

/* papers.md 1.4, T_execute: all above sink to this level first. */
static double ahead_in_levels(const struct scheduler *s, uint32_t slot)
{
    uint32_t level = s->entries[slot].level;
    double sum = 0;

    for (uint32_t l = 0; l < level; l++)
        sum += s->n_in_level[l] * (s->quanta_before_s[level] - s->quanta_before_s[l]);
    return sum / s->config.n_running_max;
}

/* Who came before it runs a step at least. */
static double ahead_in_line(const struct scheduler *s, uint32_t slot)
{
    uint64_t first = s->entries[order_first(&s->order)].arrival, mine = s->entries[slot].arrival;

    return mine > first ? (double)(mine - first) * s->decode_s / s->config.n_running_max : 0;
}

/* Those before it are shorter. */
static double ahead_by_prompt(const struct scheduler *s, uint32_t slot)
{
    return s->entries[slot].has_run ? 0 : s->entries[slot].prefill_s;
}

static double ahead_by_remaining(const struct scheduler *s, uint32_t slot)
{
    return remaining_seconds(s, &s->entries[slot]);
}

/* --- the policies --- */

static const struct policy policies[] = {
    {"skip-join-mlfq", true, true, join_covering, ran_mlfq, by_rank, ahead_in_levels},
    {"mlfq", true, true, join_top, ran_mlfq, by_rank, ahead_in_levels},
    {"fcfs", false, false, join_top, ran_nothing, by_rank, ahead_in_line},
    {"sjf-prompt", false, true, join_top, ran_nothing, by_prompt, ahead_by_prompt},
    {"srpt", false, true, join_top, ran_nothing, by_remaining, ahead_by_remaining},
};

const char *scheduler_policies(void)
{
    return "skip-join-mlfq|mlfq|fcfs|sjf-prompt|srpt";
}

const struct policy *policy_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
        if (!strcmp(policies[i].name, name))
            return &policies[i];
    return NULL;
}

static const char *const variants[] = {"tarn", "paper", "released"};

const char *scheduler_variants(void)
{
    return "tarn|paper|released";
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

/* --- starvation --- */

uint64_t starvation_now_ns(const struct scheduler *s)
{
    uint64_t raised_ns = (uint64_t)(s->n_started * s->restore_s / RESTORE_SHARE * NS_PER_S);

    if (s->variant != MLFQ_TARN)
        return s->starvation_ns;
    return raised_ns > s->starvation_ns ? raised_ns : s->starvation_ns;
}

static void make_urgent(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];
    const struct entry *first = &s->entries[order_first(&s->order)];

    age_list_take(s, slot); /* until it has run */
    if (e->is_urgent)
        return;
    if (!s->policy->overtakes_equals && !first->is_urgent && first->priority >= e->priority) {
        age_list_append(s, slot, now_ns); /* nobody overtakes it: that may change */
        return;
    }
    e->is_urgent = true;
    e->urgent_no = s->n_urgent_ever++;
    s->n_starving++;
    if (s->variant == MLFQ_PAPER)
        entry_to_level(s, slot, 0, false);
    entry_placed(s, slot);
}

/* The authors' code: all who did not run for that long, and (their time starts at 0) all who never
 * did, go to the front of the top level, with the time that they were charged. */
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

/* papers.md 1.4: T_promote is the time until it is moved up. */
uint64_t scheduler_next_ns(const struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    const struct entry *e = &s->entries[slot];
    uint64_t promote_ns =
        s->starvation_ns == UINT64_MAX ? UINT64_MAX : e->last_run_ns + starvation_now_ns(s);
    if (e->is_urgent)
        return now_ns;
    double execute_s = s->policy->ahead_s(s, slot);
    uint64_t execute_ns = execute_s < 1e9 ? now_ns + (uint64_t)(execute_s * NS_PER_S) : UINT64_MAX;
    uint64_t next_ns = execute_ns < promote_ns ? execute_ns : promote_ns;
    return next_ns > now_ns ? next_ns : now_ns;
}
