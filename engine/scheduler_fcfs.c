/* First come, first served inside a priority; the control that later policies are measured against.
 *
 * A step holds all decodes, then prefill chunks of those already running, then new ones, up to the
 * token budget. When the KV pool is full, the last in order of service gives its blocks back and
 * waits at its old place: nobody is overtaken, so nobody starves. */
#include "engine/scheduler_internal.h"

#include "base/check.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t remaining(const struct scheduler *s, uint32_t slot)
{
    return s->entries[slot].n_known - s->entries[slot].n_computed;
}

static bool is_planned(const struct scheduler *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->n_items; i++)
        if (s->items[i].slot == slot)
            return true;
    return false;
}

/* Take `need` blocks out of *available for `slot`, preempting from the back of the running queue,
 * but nobody who is served before it or is in the plan. False when slot itself had to go. */
static bool make_room(struct scheduler *s, const struct sched_view *view, uint32_t slot,
                      uint32_t need, uint32_t *available)
{
    while (need > *available) {
        uint32_t i = s->running.n;
        while (i > 0 && s->running.slots[i - 1] != slot && is_planned(s, s->running.slots[i - 1]))
            i--;
        ASSERT(i > 0);
        uint32_t victim = s->running.slots[i - 1];
        *available += view->reclaimable(view->arg, victim);
        plan_preempt(s, victim);
        if (victim == slot)
            return false;
    }
    *available -= need;
    return true;
}

/* Run what is already running: decodes in the first pass, prefill chunks in the second. */
static void plan_running(struct scheduler *s, const struct sched_view *view, bool decodes,
                         uint32_t *available, uint32_t *budget)
{
    for (uint32_t i = 0; i < s->running.n && *budget > 0;) {
        uint32_t slot = s->running.slots[i], left = remaining(s, slot);
        uint32_t n = min_u32(left, *budget);
        if ((left == 1) != decodes || is_planned(s, slot)) {
            i++;
            continue;
        }
        if (!make_room(s, view, slot, view->need(view->arg, slot, n), available))
            continue; /* slot left the queue: index i is the next one already */
        plan_run(s, slot, n);
        *budget -= n;
        i++;
    }
}

/* Blocks that the prefills under way will still take after this step. */
static uint32_t promised(const struct scheduler *s, const struct sched_view *view)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->running.n; i++) {
        uint32_t slot = s->running.slots[i], left = remaining(s, slot);
        if (left > 1)
            n += view->need(view->arg, slot, left);
    }
    return n;
}

static void admit_waiting(struct scheduler *s, const struct sched_view *view, uint32_t available,
                          uint32_t *budget)
{
    while (s->waiting.n > 0 && s->running.n < s->config.n_running_max && *budget > 0) {
        uint32_t slot = s->waiting.slots[0];
        uint32_t n_known = s->entries[slot].n_known, n_cached = view->match(view->arg, slot);
        uint32_t need = view->need(view->arg, slot, n_known - n_cached);
        if (need > available)
            return; /* nobody behind it may overtake */
        uint32_t n = min_u32(n_known - n_cached, *budget);
        plan_admit(s, slot, n_cached, n);
        available -= need;
        *budget -= n;
    }
}

static void plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view)
{
    uint32_t available = view->n_available, budget = s->config.n_tokens_max;

    (void)now_ns;
    /* Counted before anything is planned: what is planned now was part of the promise. */
    uint32_t reserved = promised(s, view);
    plan_running(s, view, true, &available, &budget);
    uint32_t after_decodes = available;
    plan_running(s, view, false, &available, &budget);
    uint32_t taken_by_prefill = after_decodes > available ? after_decodes - available : 0;
    reserved = reserved > taken_by_prefill ? reserved - taken_by_prefill : 0;

    /* A step that had to preempt admits nobody: it would be the next victim. */
    if (s->n_preempt == 0 && available >= reserved)
        admit_waiting(s, view, available - reserved, &budget);
}

const struct policy policy_fcfs = {"fcfs", plan};
