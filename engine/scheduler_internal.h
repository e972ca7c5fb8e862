/* scheduler_internal.h - what the policies share: entries, the two queues, the plan being made.
 *
 * Owns    nothing beyond scheduler.h.
 * Thread  as scheduler.h.
 * Errors  none.
 * Units   as scheduler.h. */
#ifndef TARN_ENGINE_SCHEDULER_INTERNAL_H
#define TARN_ENGINE_SCHEDULER_INTERNAL_H

#include "engine/scheduler.h"

enum entry_state { ENTRY_NONE, ENTRY_WAITING, ENTRY_RUNNING };

struct entry {
    enum entry_state state;
    uint32_t n_known, n_computed;
    int32_t priority;
    uint64_t order;      /* of arrival: kept over preemptions, so a victim keeps its place */
    uint64_t arrived_ns;
};

/* Slots in order of service. */
struct queue {
    uint32_t *slots;
    uint32_t n;
};

struct scheduler {
    struct scheduler_config config;
    const struct policy *policy;
    struct entry *entries;      /* [n_slots] */
    struct queue waiting, running;
    uint64_t n_arrived;
    struct plan_item *items;    /* [n_slots] */
    uint32_t *preempt;          /* [n_slots] */
    uint32_t n_items, n_preempt, n_tokens;
};

struct policy {
    const char *name;
    void (*plan)(struct scheduler *s, uint64_t now_ns, const struct sched_view *view);
};

extern const struct policy policy_fcfs;

/* Whether a is to be served before b: priority, then arrival. */
bool entry_before(const struct entry *a, const struct entry *b);
/* Keep the queue in the order of entry_before(). */
void queue_insert(struct scheduler *s, struct queue *q, uint32_t slot);
void queue_remove(struct queue *q, uint32_t slot);

/* Steps of a plan in the making. */
void plan_run(struct scheduler *s, uint32_t slot, uint32_t n_tokens);
void plan_admit(struct scheduler *s, uint32_t slot, uint32_t n_cached, uint32_t n_tokens);
void plan_preempt(struct scheduler *s, uint32_t slot);

#endif
