/* scheduler_plan.c - the plan of a step: the first sequences of the order that memory, places,
 * tokens and time allow.
 *
 * Memory comes first. Running sequences reserve blocks in the order of service, for all their known
 * tokens, so that a prefill that was begun can be finished. Where blocks are missing, the last ones
 * in the order are preempted. Then running and waiting sequences are walked in one order. An
 * admission must leave a reserve to the running sequences, so that their next block does not
 * preempt it again at once. If a waiting sequence would fit without the running ones behind it,
 * those are preempted.
 *
 * A plan that preempts for memory admits nothing: the victim's blocks may be the ones that an
 * admitted sequence would share, so until the victim has released them the number of blocks needed
 * is unknown.
 *
 * Decodes are counted first, and chunks share what is left of n_tokens_max and step_s_max. So a
 * decode waits for at most one step's chunks, however many prefills there are.
 *
 * Usual sequences are chosen first, and what they do not take goes to the other classes. Where
 * usual ones lack memory while others hold some, the plan only preempts all others: no step runs
 * before the next plan, which finds their blocks released. So usual sequences run in the same steps
 * as without the others. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

/* The plan admits nothing more after passing over this many waiting sequences that do not fit. */
#define N_PASSED_OVER_MAX 4
/* The same for waiting sequences whose KV is being read. */
#define N_LOADING_MAX 64
/* Fewest tokens of the first chunk of a step, so that a prefill makes progress whatever the step
 * costs. */
#define CHUNK_TOKENS_MIN 32
/* Longest step of the other classes, as a share of step_s_max. */
#define SPECULATIVE_SHARE 0.5
#define BACKGROUND_SHARE 0.125
/* A background chunk may lengthen a step of decodes by this share of its time. */
#define RIDE_SHARE 0.1
/* A sequence waits for blocks that another one computes if a step of their own would take longer
 * than so many decode steps: one is the fixed cost of that step, one is what the wait costs. */
#define SHARED_DECODES 2
/* Waiting sequences, at most, that a plan passes over because others compute their blocks. */
#define N_SHARING_MAX 64
/* Plans, at most, that pass one sequence over for that. */
#define SHARED_WAITS_MAX 256
/* Where that is less than so many decode steps, such a step may take as long as those: with fewer
 * tokens most of its time would be the fixed cost of a step. */
#define OTHERS_DECODES 4

struct making {
    struct scheduler *s;
    enum sched_class class; /* that is being chosen */
    uint32_t end;           /* in s->running: behind the sequences of that class */
    const struct sched_view *view;
    uint32_t available; /* blocks that can be taken now */
    uint32_t n_chosen;  /* sequences that keep or get a place */
    uint32_t n_tokens_left;
    uint32_t n_decodes_to_come; /* running decodes that choose() has not reached */
    uint32_t n_items, n_chunks, n_preempt;
    uint32_t n_finishing; /* sequences whose first token comes with this step */
    uint32_t n_for_memory;
    uint32_t n_passed_over, n_loading, n_sharing;
    uint32_t n_lagging; /* preempted ones at the end of s->preempt: lags_behind() */
    double ride_s; /* longest time of a step of decodes with a background chunk; 0: it has none */
    bool closed;   /* no further admission in this plan */
    bool yields;   /* a usual sequence lacks memory while other classes hold some */
    struct cost_step step;
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- the running sequences, sorted --- */

/* Insertion sort: the array is nearly sorted already. */
static void sort_running(struct scheduler *s)
{
    for (uint32_t i = 1; i < s->n_running; i++) {
        uint32_t slot = s->running[i], k = i;
        while (k > 0 && entry_precedes(s, slot, s->running[k - 1])) {
            s->running[k] = s->running[k - 1];
            k--;
        }
        s->running[k] = slot;
    }
    for (uint32_t i = 0; i < s->n_running; i++) {
        s->entries[s->running[i]].running_at = i;
        s->is_victim[i] = false;
    }
}

/* --- memory --- */

static uint32_t need_of(const struct making *m, uint32_t slot, uint32_t n)
{
    return m->view->need(m->view->arg, slot, n);
}

static void take_place(struct making *m, uint32_t i)
{
    struct scheduler *s = m->s;

    s->is_victim[i] = true;
    s->preempt[m->n_preempt++] = s->running[i];
    m->available += m->view->reclaimable(m->view->arg, s->running[i]);
    m->closed = true;
}

/* Make `need` blocks available by preempting usual sequences at index `first` or behind it, the
 * last one first. Preempt nothing if that would not be enough. */
static bool make_room(struct making *m, uint32_t first, uint32_t need)
{
    struct scheduler *s = m->s;
    uint32_t could_be = m->available, i = m->end;

    m->yields |= could_be < need && m->end < s->n_running;
    if (m->yields)
        return false;
    while (could_be < need && i > first)
        if (!s->is_victim[--i])
            could_be += m->view->reclaimable(m->view->arg, s->running[i]);
    if (could_be < need)
        return false;
    for (uint32_t k = m->end; k-- > i;)
        if (!s->is_victim[k])
            take_place(m, k);
    return true;
}

/* Reserve blocks for the running sequence at index i: for all of its known tokens if possible, else
 * for one step. Preempt it if even that fails. */
static void reserve_running(struct making *m, uint32_t i)
{
    const struct scheduler *s = m->s;
    uint32_t slot = s->running[i], left = entry_left(&s->entries[slot]);
    uint32_t need = need_of(m, slot, left);

    m->yields |= need > m->available && m->end < s->n_running;
    if (need > m->available && left > s->config.n_tokens_max)
        need = need_of(m, slot, s->config.n_tokens_max);
    if (make_room(m, i + 1, need))
        m->available -= need;
    else
        take_place(m, i);
}

/* --- tokens --- */

static void add_item(struct making *m, uint32_t slot, uint32_t n, uint32_t n_cached, bool admit)
{
    struct scheduler *s = m->s;
    const struct entry *e = &s->entries[slot];
    uint32_t n_before = admit ? n_cached : entry_computed(e);
    struct plan_item item = {slot, n, n_cached, admit, admit && !e->has_run};
    uint32_t left = entry_known(e) - n_before;

    m->n_finishing += n == left && (admit || left > 1);
    if (left == 1)
        s->items[m->n_items++] = item;
    else
        s->chunks[m->n_chunks++] = item;
    m->n_tokens_left -= n;
}

/* Longest time of a step to which a sequence of the class is added; 0: no limit. */
static double step_limit_s(const struct making *m)
{
    double max_s = m->s->config.step_s_max, decodes_s = OTHERS_DECODES * m->s->decode_s;

    if (m->class == SCHED_USUAL)
        return max_s;
    if (m->class == SCHED_BACKGROUND && m->ride_s > 0)
        return m->ride_s;
    if (max_s == 0)
        return m->class == SCHED_SPECULATIVE ? 0 : decodes_s;
    double share = m->class == SCHED_SPECULATIVE ? SPECULATIVE_SHARE : BACKGROUND_SHARE;
    return fmin(fmax(max_s * share, decodes_s), max_s);
}

/* Tokens of the next chunk, of the `left` ones behind n_before; 0: the step is full. */
static uint32_t chunk_tokens(const struct making *m, uint32_t n_before, uint32_t left)
{
    const struct scheduler_config *c = &m->s->config;
    /* Tokens kept for decodes that come later in the order and still have a place behind this
     * one. */
    uint32_t n_decodes = min_u32(m->n_decodes_to_come, c->n_running_max - m->n_chosen - 1);
    uint32_t n = m->n_tokens_left > n_decodes ? min_u32(left, m->n_tokens_left - n_decodes) : 0;
    double limit_s = step_limit_s(m);

    if (n == 0 || limit_s == 0)
        return n;
    uint32_t fits = cost_model_fit(c->cost, &m->step, n_before, n, limit_s);
    bool is_first = m->class == SCHED_USUAL ? m->step.n_chunks == 0 : m->n_items + m->n_chunks == 0;
    if (is_first && fits < CHUNK_TOKENS_MIN)
        fits = min_u32(CHUNK_TOKENS_MIN, n);
    return fits;
}

/* Prompts that are complete with the step get their first token earlier, each by the time of the
 * chunk, and all others wait for the fixed cost of one more step. So a cached prompt does not wait
 * for 500 tokens of another one, while many waiting sequences share the fixed costs. */
bool step_ends_before(const struct scheduler *s, const struct cost_step *step, uint32_t n_before,
                      uint32_t n, uint32_t n_finishing, uint32_t n_all)
{
    const struct cost_model *cost = s->config.cost;
    struct cost_step longer = *step;

    if (n_finishing == 0 || s->variant == MLFQ_RELEASED)
        return false;
    cost_step_add(&longer, cost, n_before, n);
    double chunk_s = cost_model_step_seconds(cost, &longer) - cost_model_step_seconds(cost, step);
    double fixed_s = cost_model_seconds(cost, n_before, n) - chunk_s;
    return chunk_s * n_finishing > fixed_s * (n_all - n_finishing);
}

/* Whether the step ends before this chunk of n tokens. A chunk that completes its prompt, or that
 * of a sequence that is starving or late, is not put off. */
static bool ends_before(const struct making *m, const struct entry *e, uint32_t n_before,
                        uint32_t left, uint32_t n)
{
    const struct scheduler *s = m->s;
    uint32_t n_all = s->n_running_of[SCHED_USUAL] + s->n_waiting_of[SCHED_USUAL];

    return n < left && !e->is_urgent && !e->is_due &&
           step_ends_before(s, &m->step, n_before, n, m->n_finishing, n_all);
}

/* --- one sequence --- */

/* Whether others have computed blocks that the running sequence would compute again: it began with
 * them, and they went before it. It is preempted then, and finds them when it is admitted again,
 * each time with more of its prompt. */
static bool lags_behind(const struct making *m, uint32_t slot)
{
    const struct scheduler *s = m->s;
    const struct entry *e = &s->entries[slot];
    uint32_t n_computed = entry_computed(e);

    if (!m->view->shared || entry_left(e) == 1 || e->is_urgent || e->is_due || e->has_lost)
        return false;
    uint32_t n_cached = m->view->match(m->view->arg, slot);
    return n_cached > n_computed &&
           cost_model_seconds(s->config.cost, n_computed, n_cached - n_computed) >
               SHARED_DECODES * s->decode_s;
}

/* The running sequence at index i. */
static void choose_running(struct making *m, uint32_t i)
{
    struct scheduler *s = m->s;
    uint32_t slot = s->running[i];
    const struct entry *e = &s->entries[slot];
    uint32_t left = entry_left(e), n = left == 1 ? 1 : chunk_tokens(m, entry_computed(e), left);

    m->n_decodes_to_come -= left == 1;
    if (n > 0 && lags_behind(m, slot)) {
        s->is_victim[i] = true;
        s->preempt[s->config.n_running_max - ++m->n_lagging] = slot;
        return;
    }
    m->n_chosen++;
    if (n == 0 || ends_before(m, e, entry_computed(e), left, n))
        return; /* it keeps its place and its blocks */
    if (left > 1)
        cost_step_add(&m->step, s->config.cost, entry_computed(e), n);
    add_item(m, slot, n, 0, false);
}

static uint32_t reserve(const struct making *m)
{
    uint32_t r = m->s->config.reserve_blocks;

    return m->n_chosen == 0 ? 0 : r ? r : m->n_chosen;
}

/* The sequence is not admitted by this plan. */
static void pass_over(struct making *m, struct entry *e, bool has_cleared)
{
    if (has_cleared) { /* others were preempted for it; the next plan admits it */
        e->has_cleared = true;
        return;
    }
    m->n_passed_over++;
    m->closed =
        e->has_cleared || m->s->variant == MLFQ_RELEASED || m->n_passed_over == N_PASSED_OVER_MAX;
}

/* Whether a chunk of this step computes blocks that the waiting sequence would compute too. Such a
 * sequence is passed over until that chunk's sequence has them, so that they are computed once. The
 * wait needs no record of the other: the next plan asks again, and the sequence goes alone where
 * the other one has ended, was preempted or gets no chunk. One that is starving, late, has waited
 * so for long, or had others preempted for it does not wait, so promise P6 holds. */
static bool computed_by_other(struct making *m, uint32_t slot, uint32_t n_cached)
{
    const struct scheduler *s = m->s;
    struct entry *e = &m->s->entries[slot];

    if (!m->view->shared || e->is_urgent || e->is_due || e->has_cleared || e->slo_ttft_s > 0 ||
        e->n_shared_waits == SHARED_WAITS_MAX || s->variant == MLFQ_RELEASED ||
        m->n_sharing == N_SHARING_MAX)
        return false;
    for (uint32_t i = 0; i < m->n_chunks; i++) {
        const struct plan_item *other = &s->chunks[i];
        uint32_t n_shared = m->view->shared(m->view->arg, slot, other->slot);
        uint32_t n_before = other->n_cached + entry_computed(&s->entries[other->slot]);
        if (n_before < n_cached)
            n_before = n_cached;
        if (n_shared > n_before &&
            cost_model_seconds(s->config.cost, n_before, n_shared - n_before) >
                SHARED_DECODES * s->decode_s) {
            m->n_sharing++;
            e->n_shared_waits++;
            return true;
        }
    }
    return false;
}

/* A waiting sequence that precedes the running ones at index i and behind. */
static void choose_waiting(struct making *m, uint32_t slot, uint32_t i)
{
    struct entry *e = &m->s->entries[slot];

    if (m->view->is_loading && m->view->is_loading(m->view->arg, slot)) {
        m->closed = ++m->n_loading == N_LOADING_MAX;
        return;
    }
    uint32_t n_cached = m->view->match(m->view->arg, slot), left = e->n_known - n_cached;
    uint32_t n, need;

    if (computed_by_other(m, slot, n_cached))
        return;
    n = chunk_tokens(m, n_cached, left);
    if (n == 0 || ends_before(m, e, n_cached, left, n)) {
        m->closed = true;
        return;
    }
    need = need_of(m, slot, left);
    if (need + reserve(m) > m->available) {
        pass_over(m, e, make_room(m, i, need + reserve(m)));
        return;
    }
    m->available -= need;
    m->n_chosen++;
    cost_step_add(&m->step, m->s->config.cost, n_cached, n);
    add_item(m, slot, n, n_cached, true);
}

/* --- the whole plan --- */

static void begin(struct making *m)
{
    struct scheduler *s = m->s;

    sort_running(s);
    for (uint32_t i = 0; i < m->end; i++)
        if (!s->is_victim[i])
            reserve_running(m, i);
    for (uint32_t i = 0; i < m->end; i++) {
        const struct entry *e = &s->entries[s->running[i]];
        if (s->is_victim[i] || entry_left(e) != 1)
            continue;
        m->n_decodes_to_come++;
        cost_step_add(&m->step, s->config.cost, entry_computed(e), 1);
    }
}

static void choose(struct making *m)
{
    struct scheduler *s = m->s;
    uint32_t i = 0, waiting = entry_next_waiting(s, &s->order, ORDER_NONE);

    while (m->n_chosen < s->config.n_running_max) {
        bool may_admit = !m->closed && waiting != ORDER_NONE;
        if (i < m->end && (!may_admit || order_before(&s->order, s->running[i], waiting))) {
            if (!s->is_victim[i])
                choose_running(m, i);
            i++;
        } else if (may_admit) {
            waiting = reorder_first(s, m->view, waiting);
            choose_waiting(m, waiting, i);
            waiting = entry_next_waiting(s, &s->order, waiting);
        } else {
            break;
        }
    }
    m->n_for_memory = m->n_preempt;
    memmove(s->preempt + m->n_preempt, s->preempt + s->config.n_running_max - m->n_lagging,
            m->n_lagging * sizeof *s->preempt);
    m->n_preempt += m->n_lagging;
    for (; i < m->end; i++) /* no place left */
        if (!s->is_victim[i])
            s->preempt[m->n_preempt++] = s->running[i];
}

/* --- the other classes --- */

/* Preempt the running sequence at index i, which is not usual. The plan does not count its blocks
 * as available. */
static void put_back(struct making *m, uint32_t i)
{
    if (!m->s->is_victim[i])
        m->s->preempt[m->n_preempt++] = m->s->running[i];
    m->s->is_victim[i] = true;
}

/* Preempt what runs in the classes behind m->class. */
static void put_back_behind(struct making *m)
{
    for (uint32_t i = m->end; i < m->s->n_running; i++)
        put_back(m, i);
    m->closed = true;
}

/* The running sequence at index i. It keeps its place and its blocks in a step without room for
 * it, but not where a usual one takes the place. */
static void continue_other(struct making *m, uint32_t i)
{
    struct scheduler *s = m->s;
    uint32_t slot = s->running[i], n_before = entry_computed(&s->entries[slot]);

    if (m->n_chosen == s->config.n_running_max) {
        put_back(m, i);
        return;
    }
    uint32_t n = chunk_tokens(m, n_before, entry_left(&s->entries[slot]));
    uint32_t need = n > 0 ? need_of(m, slot, n) : 0;
    if (need > m->available) {
        put_back_behind(m);
        put_back(m, i);
        return;
    }
    m->n_chosen++;
    if (n == 0)
        return;
    m->available -= need;
    cost_step_add(&m->step, s->config.cost, n_before, n);
    add_item(m, slot, n, 0, false);
}

static void admit_other(struct making *m, uint32_t slot)
{
    const struct entry *e = &m->s->entries[slot];

    if (m->view->is_loading && m->view->is_loading(m->view->arg, slot)) {
        m->closed = ++m->n_loading >= N_LOADING_MAX;
        return;
    }
    uint32_t n_cached = m->view->match(m->view->arg, slot), left = e->n_known - n_cached;
    uint32_t n = chunk_tokens(m, n_cached, left), need = n > 0 ? need_of(m, slot, left) : 0;
    if (n == 0) {
        m->closed = true;
        return;
    }
    if (need + reserve(m) > m->available) {
        put_back_behind(m);
        return;
    }
    m->available -= need;
    m->n_chosen++;
    cost_step_add(&m->step, m->s->config.cost, n_cached, n);
    add_item(m, slot, n, n_cached, true);
}

/* Whether background sequences get a small chunk beside the decodes of this step: nobody waits for
 * the step to end, and no prefill is made longer. */
static bool may_ride(const struct making *m)
{
    const struct scheduler *s = m->s;

    return m->n_chunks == 0 && m->n_preempt == 0 &&
           s->n_waiting_of[SCHED_USUAL] + s->n_waiting_of[SCHED_SPECULATIVE] == 0;
}

/* Choose among the sequences of the next class. A waiting sequence that was passed over may need
 * the memory, so nothing behind it is admitted. */
static void choose_other(struct making *m, enum sched_class class)
{
    struct scheduler *s = m->s;
    uint32_t i = m->end, slot = ORDER_NONE;
    bool runs = class == SCHED_SPECULATIVE || m->n_items + m->n_chunks == 0;

    if (class == SCHED_BACKGROUND && !runs && may_ride(m)) {
        m->ride_s = (1 + RIDE_SHARE) * cost_model_step_seconds(s->config.cost, &m->step);
        runs = true;
    }
    m->class = class;
    m->end = i + s->n_running_of[class];
    m->closed |= m->n_passed_over > 0 || m->n_preempt > 0;
    if (!runs) { /* what has a place keeps it */
        for (; i < m->end; i++)
            if (!s->is_victim[i] && m->n_chosen++ >= s->config.n_running_max)
                put_back(m, i);
        return;
    }
    if (class == SCHED_BACKGROUND)
        m->available -= min_u32(m->available, m->view->n_held);
    for (; i < m->end; i++)
        if (!s->is_victim[i])
            continue_other(m, i);
    while (!m->closed && m->n_chosen < s->config.n_running_max &&
           (slot = entry_next_waiting(s, &s->others, slot)) != ORDER_NONE)
        if (s->entries[slot].class == class)
            admit_other(m, slot);
}

/* A plan that only takes the places and blocks of the other classes. */
static void yield_to_usual(struct making *m)
{
    struct scheduler *s = m->s;

    *m = (struct making){.s = s, .view = m->view, .n_tokens_left = s->config.n_tokens_max};
    for (uint32_t i = 0; i < s->n_running; i++)
        s->is_victim[i] = false;
    for (uint32_t i = s->n_running_of[SCHED_USUAL]; i < s->n_running; i++)
        put_back(m, i);
}

void scheduler_plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view,
                    struct plan *out)
{
    struct making m = {.s = s,
                       .view = view,
                       .end = s->n_running_of[SCHED_USUAL],
                       .available = view->n_available,
                       .n_tokens_left = s->config.n_tokens_max};

    s->n_plans++;
    promote_starving(s, now_ns);
    learned_promote_due(s, now_ns);
    reorder_by_match(s, view);
    begin(&m);
    choose(&m);
    if (m.yields) {
        yield_to_usual(&m);
    } else if (s->others.n > 0) {
        choose_other(&m, SCHED_SPECULATIVE);
        choose_other(&m, SCHED_BACKGROUND);
    }
    for (uint32_t i = 0; i < m.n_chunks; i++)
        s->items[m.n_items++] = s->chunks[i];
    *out = (struct plan){.items = s->items,
                         .n_items = m.n_items,
                         .n_tokens = s->config.n_tokens_max - m.n_tokens_left,
                         .preempt = s->preempt,
                         .n_preempt = m.n_preempt,
                         .n_for_memory = m.n_for_memory,
                         .step_s = cost_model_step_seconds(s->config.cost, &m.step),
                         .version = s->version};
    s->step_s = out->step_s;
}

bool scheduler_is_current(const struct scheduler *s, const struct plan *plan)
{
    return plan->version == s->version;
}

bool scheduler_may_follow(const struct scheduler *s, const struct plan *plan)
{
    uint32_t first = order_first(&s->order);

    if (!scheduler_is_current(s, plan) || plan->n_items == 0 || plan->n_preempt > 0 ||
        (first != ORDER_NONE && s->entries[first].state == ENTRY_WAITING))
        return false;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct plan_item *item = &plan->items[i];
        const struct entry *e = &s->entries[item->slot];

        if (item->admit || item->n_tokens != 1 || e->class != SCHED_USUAL || e->n_flying == 0 ||
            e->n_following > 0 || entry_computed(e) != e->n_known)
            return false;
    }
    return true;
}

/* --- carrying out --- */

static void take_preempted(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    ASSERT(e->state == ENTRY_RUNNING && e->n_flying == 0 && e->n_following == 0);
    entry_stops(s, slot);
    s->n_waiting_of[e->class]++;
    e->state = ENTRY_WAITING;
    if (e->n_computed > e->n_had)
        e->n_had = e->n_computed;
    e->n_computed = 0;
    if (e->class != SCHED_USUAL)
        return;
    s->n_started++;
    if (!s->policy->has_levels) /* the key may depend on what is left to compute */
        entry_placed(s, slot);
}

void scheduler_on_lost(struct scheduler *s, uint32_t slot)
{
    ASSERT(slot < s->config.n_slots);
    s->entries[slot].n_flying = 0;
    take_preempted(s, slot);
    s->version++;
}

/* The part of a step's beginning that only usual sequences have. */
static void take_usual(struct scheduler *s, const struct plan_item *item, uint64_t now_ns)
{
    struct entry *e = &s->entries[item->slot];
    uint32_t index = round_index(e->level, e->priority);

    if (item->admit)
        s->n_started -= e->has_run;
    if (s->variant == MLFQ_LEARNED && !e->has_run)
        learned_started(s, e);
    e->has_run = true;
    e->has_cleared = false;
    if (s->variant != MLFQ_LEARNED && e->round > s->round[index])
        s->round[index] = e->round;
    if (!e->has_lost)
        age_list_append(s, item->slot, now_ns);
    if (item->admit && !s->policy->has_levels)
        entry_placed(s, item->slot);
}

static void take_item(struct scheduler *s, const struct plan_item *item, uint64_t now_ns)
{
    struct entry *e = &s->entries[item->slot];

    ASSERT(e->n_following == 0 && (e->n_flying == 0 || (item->n_tokens == 1 && !item->admit)));
    if (item->admit) {
        ASSERT(e->state == ENTRY_WAITING);
        e->state = ENTRY_RUNNING;
        entry_found(e, item->n_cached);
        e->running_at = s->n_running;
        s->running[s->n_running++] = item->slot;
        s->n_running_of[e->class]++;
        s->n_waiting_of[e->class]--;
    }
    if (e->n_flying > 0)
        e->n_following = item->n_tokens;
    else
        e->n_flying = item->n_tokens;
    if (e->class == SCHED_USUAL)
        take_usual(s, item, now_ns);
    e->has_run = true;
}

void scheduler_take(struct scheduler *s, const struct plan *plan, uint64_t now_ns)
{
    ASSERT(scheduler_is_current(s, plan));
    for (uint32_t i = 0; i < plan->n_preempt; i++) {
        bool is_usual = s->entries[plan->preempt[i]].class == SCHED_USUAL;
        s->n_preempted_for_memory += i < plan->n_for_memory;
        s->n_preempted_for_place += i >= plan->n_for_memory && is_usual;
        take_preempted(s, plan->preempt[i]);
    }
    for (uint32_t i = 0; i < plan->n_items; i++)
        take_item(s, &plan->items[i], now_ns);
}
