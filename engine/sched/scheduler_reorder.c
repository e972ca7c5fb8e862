/* scheduler_reorder.c - waiting sequences with more of their prompt in the cache go first
 * (cache-aware reordering: Jin et al., "RAGCache", 2024, arXiv 2404.12457, section 5.2).
 *
 * Prompts with a common prefix then run one after the other while its KV is in the cache, instead
 * of evicting it for each other in turn. Only sequences that have not run are reordered, by the
 * ratio of cached tokens to tokens to compute, and only inside the policy's own order:
 *
 *   MLFQs, fcfs  the one with the largest ratio among the next reorder_window sequences of the
 *                same priority and level takes the place of the first, when that would be admitted;
 *                those it passes move back by one. Each sequence is passed at most reorder_window
 *                times, and starving sequences never. So the bound of promise P6 holds, and in fcfs
 *                a sequence waits for at most reorder_window later ones.
 *   the others   their order depends on the expected time of the prefill, which follows what is
 *                cached now: of the next reorder_window sequences in each plan, and of a few others
 *                in turn. Their own bound (the starvation threshold, the age boost) holds for any
 *                prefill, and so for one that changes.
 *
 * The variant "released" is not reordered: it does what the authors' code does. */
#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

/* Slots outside of the window that are looked at in a plan. */
#define N_IN_TURN 8
/* Less than a block changes no order. */
#define TOKENS_MIN 32

/* Tokens of a waiting sequence that are in the cache in this plan. */
static uint32_t n_cached_now(struct scheduler *s, const struct sched_view *view, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    if (e->seen_in_plan != s->n_plans) {
        e->seen_in_plan = s->n_plans;
        e->n_seen = view->cached ? view->cached(view->arg, slot) : view->match(view->arg, slot);
    }
    return e->n_seen;
}

/* Whether the sequence may change its place: it waits for its first step, as one of many. */
static bool is_movable(const struct entry *e)
{
    return e->state == ENTRY_WAITING && !e->has_run && !e->is_urgent && !e->has_cleared;
}

/* --- orders by rank --- */

/* Whether a has a larger ratio of cached tokens to tokens to compute than b. */
static bool has_more(struct scheduler *s, const struct sched_view *view, uint32_t a, uint32_t b)
{
    uint64_t cached_a = n_cached_now(s, view, a), cached_b = n_cached_now(s, view, b);
    uint64_t new_a = s->entries[a].n_known - cached_a, new_b = s->entries[b].n_known - cached_b;

    return cached_a >= cached_b + TOKENS_MIN && cached_a * new_b > cached_b * new_a;
}

/* Give the last of the n slots the place of the first one, and move the others back by one. */
static void pass(struct scheduler *s, const uint32_t *slots, uint32_t n)
{
    struct entry *last = &s->entries[slots[n - 1]];
    uint64_t round = s->entries[slots[0]].round, rank = s->entries[slots[0]].rank;

    for (uint32_t i = 0; i + 1 < n; i++) {
        struct entry *e = &s->entries[slots[i]], *next = &s->entries[slots[i + 1]];
        e->round = next->round;
        e->rank = next->rank;
        e->n_passed++;
    }
    last->round = round;
    last->rank = rank;
    for (uint32_t i = 0; i < n; i++)
        entry_placed(s, slots[i]);
    s->n_reordered++;
}

uint32_t reorder_first(struct scheduler *s, const struct sched_view *view, uint32_t first)
{
    uint32_t slots[SCHED_REORDER_MAX + 1], n = 0, best = 0, slot = first;
    uint64_t high = order_key_of(&s->order, first).high;

    if (s->config.reorder_window == 0 || s->policy->by_size || s->variant == MLFQ_RELEASED)
        return first;
    while (slot != ORDER_NONE && is_movable(&s->entries[slot]) &&
           order_key_of(&s->order, slot).high == high) {
        slots[n] = slot;
        if (has_more(s, view, slot, slots[best]))
            best = n;
        if (n++ == s->config.reorder_window ||
            s->entries[slot].n_passed >= s->config.reorder_window)
            break;
        slot = order_next(&s->order, slot);
    }
    if (best > 0)
        pass(s, slots, best + 1);
    return n > 0 ? slots[best] : first;
}

/* --- orders by time --- */

static void follow_match(struct scheduler *s, const struct sched_view *view, uint32_t slot)
{
    struct entry *e = &s->entries[slot];
    uint32_t n = n_cached_now(s, view, slot);

    if (n < e->n_cached + TOKENS_MIN && n + TOKENS_MIN > e->n_cached)
        return;
    e->n_cached = n;
    e->prefill_s = prefill_seconds(s, n, e->n_known - n);
    entry_placed(s, slot);
}

void reorder_by_match(struct scheduler *s, const struct sched_view *view)
{
    uint32_t slots[SCHED_REORDER_MAX + N_IN_TURN], n = 0, slot = ORDER_NONE;
    uint32_t n_max = s->config.reorder_window;

    if (n_max == 0 || !s->policy->by_size || s->n_waiting_of[SCHED_USUAL] == 0)
        return;
    while (n < n_max && (slot = entry_next_waiting(s, &s->order, slot)) != ORDER_NONE)
        slots[n++] = slot;
    for (uint32_t i = 0; i < N_IN_TURN && s->n_waiting_of[SCHED_USUAL] > n_max; i++) {
        s->match_at = s->match_at + 1 < s->config.n_slots ? s->match_at + 1 : 0;
        if (s->entries[s->match_at].class == SCHED_USUAL)
            slots[n++] = s->match_at;
    }
    for (uint32_t i = 0; i < n; i++)
        if (is_movable(&s->entries[slots[i]]))
            follow_match(s, view, slots[i]);
}
