#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/scheduler_internal.h"

static const struct policy *const policies[] = {&policy_fcfs};

const char *scheduler_policies(void)
{
    return "fcfs";
}

static const struct policy *find_policy(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
        if (!strcmp(policies[i]->name, name))
            return policies[i];
    return NULL;
}

enum status scheduler_create(struct scheduler **out, const struct scheduler_config *config,
                             struct buf *why)
{
    const struct policy *policy = find_policy(config->policy);
    struct scheduler *s;

    *out = NULL;
    if (!policy)
        return buf_why(why, ERR_INVALID, "unknown scheduling policy %s; known: %s",
                       config->policy, scheduler_policies());
    ASSERT(config->n_running_max >= 1 && config->n_tokens_max >= 1);
    s = calloc(1, sizeof *s);
    if (!s)
        return buf_why(why, ERR_NOMEM, "out of memory");
    s->config = *config;
    s->policy = policy;
    s->entries = calloc(config->n_slots, sizeof *s->entries);
    s->waiting.slots = calloc(config->n_slots, sizeof(uint32_t));
    s->running.slots = calloc(config->n_slots, sizeof(uint32_t));
    s->items = calloc(config->n_slots, sizeof *s->items);
    s->preempt = calloc(config->n_slots, sizeof(uint32_t));
    if (!s->entries || !s->waiting.slots || !s->running.slots || !s->items || !s->preempt) {
        scheduler_destroy(s);
        return buf_why(why, ERR_NOMEM, "out of memory");
    }
    *out = s;
    return OK;
}

void scheduler_destroy(struct scheduler *s)
{
    if (!s)
        return;
    free(s->entries);
    free(s->waiting.slots);
    free(s->running.slots);
    free(s->items);
    free(s->preempt);
    free(s);
}

bool entry_before(const struct entry *a, const struct entry *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->order < b->order;
}

void queue_insert(struct scheduler *s, struct queue *q, uint32_t slot)
{
    uint32_t i = q->n++;

    /* From the back: a newcomer of usual priority is in its place at once. */
    while (i > 0 && entry_before(&s->entries[slot], &s->entries[q->slots[i - 1]])) {
        q->slots[i] = q->slots[i - 1];
        i--;
    }
    q->slots[i] = slot;
}

void queue_remove(struct queue *q, uint32_t slot)
{
    uint32_t i = 0;

    while (i < q->n && q->slots[i] != slot)
        i++;
    ASSERT(i < q->n);
    memmove(q->slots + i, q->slots + i + 1, (q->n - i - 1) * sizeof *q->slots);
    q->n--;
}

/* --- events --- */

void scheduler_submit(struct scheduler *s, uint32_t slot, uint32_t n_known, int32_t priority,
                      uint64_t now_ns)
{
    ASSERT(slot < s->config.n_slots && s->entries[slot].state == ENTRY_NONE && n_known > 0);
    s->entries[slot] = (struct entry){.state = ENTRY_WAITING, .n_known = n_known,
                                      .priority = priority, .order = s->n_arrived++,
                                      .arrived_ns = now_ns};
    queue_insert(s, &s->waiting, slot);
}

void scheduler_on_attach(struct scheduler *s, uint32_t slot, uint32_t n_computed)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->state == ENTRY_RUNNING && n_computed < e->n_known);
    e->n_computed = n_computed;
}

void scheduler_on_tokens(struct scheduler *s, uint32_t slot, uint32_t n_run, uint32_t n_new,
                         uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    (void)now_ns; /* the event's time belongs to the interface; fcfs charges nobody */
    ASSERT(slot < s->config.n_slots && e->state == ENTRY_RUNNING);
    e->n_computed += n_run;
    e->n_known += n_new;
    ASSERT(e->n_computed <= e->n_known);
}

static void forget(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->state != ENTRY_NONE);
    queue_remove(e->state == ENTRY_WAITING ? &s->waiting : &s->running, slot);
    e->state = ENTRY_NONE;
}

void scheduler_on_finish(struct scheduler *s, uint32_t slot)
{
    forget(s, slot);
}

void scheduler_on_cancel(struct scheduler *s, uint32_t slot)
{
    forget(s, slot);
}

/* --- the plan --- */

void plan_run(struct scheduler *s, uint32_t slot, uint32_t n_tokens)
{
    s->items[s->n_items++] = (struct plan_item){.slot = slot, .n_tokens = n_tokens};
    s->n_tokens += n_tokens;
}

void plan_admit(struct scheduler *s, uint32_t slot, uint32_t n_cached, uint32_t n_tokens)
{
    struct entry *e = &s->entries[slot];

    queue_remove(&s->waiting, slot);
    e->state = ENTRY_RUNNING;
    e->n_computed = n_cached;
    queue_insert(s, &s->running, slot);
    s->items[s->n_items++] = (struct plan_item){slot, n_tokens, n_cached, true};
    s->n_tokens += n_tokens;
}

void plan_preempt(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    queue_remove(&s->running, slot);
    e->state = ENTRY_WAITING;
    e->n_computed = 0;
    queue_insert(s, &s->waiting, slot);
    s->preempt[s->n_preempt++] = slot;
}

void scheduler_plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view,
                    struct plan *out)
{
    s->n_items = s->n_preempt = s->n_tokens = 0;
    s->policy->plan(s, now_ns, view);
    *out = (struct plan){s->items, s->n_items, s->n_tokens, s->preempt, s->n_preempt};
}

uint32_t scheduler_n_running(const struct scheduler *s)
{
    return s->running.n;
}

uint32_t scheduler_n_waiting(const struct scheduler *s)
{
    return s->waiting.n;
}

uint32_t scheduler_waiting(const struct scheduler *s, uint32_t i)
{
    ASSERT(i < s->waiting.n);
    return s->waiting.slots[i];
}
