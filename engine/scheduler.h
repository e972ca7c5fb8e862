/* scheduler.h - who runs in the next step: pure state, events in, a plan out.
 *
 * The scheduler does no I/O, reads no clock (it is handed `now`), allocates nothing after
 * scheduler_create() and touches no cache: it asks the view, whose functions are pure too. So the
 * server runs it in real time, the simulator in virtual time and the tests in no time.
 *
 * A sequence is a slot number. It has n_known ids and n_computed of them in the cache; the rest are
 * to run: one is a decode, more are (a chunk of) a prefill. A preempted sequence is simply one with
 * n_computed = 0 again.
 *
 * Owns    its entries and the arrays of the plan it returns.
 * Thread  one at a time (the engine thread).
 * Errors  scheduler_create(): ERR_NOMEM, ERR_INVALID for an unknown policy.
 * Units   tokens, KV blocks, nanoseconds. */
#ifndef TARN_ENGINE_SCHEDULER_H
#define TARN_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct scheduler;

struct scheduler_config {
    const char *policy;          /* "fcfs" */
    uint32_t n_slots;            /* slot numbers are below this */
    uint32_t n_running_max;      /* --max-num-seqs */
    uint32_t n_tokens_max;       /* --max-num-batched-tokens: of one step */
};

NODISCARD enum status scheduler_create(struct scheduler **out,
                                       const struct scheduler_config *config, struct buf *why);
void scheduler_destroy(struct scheduler *s); /* NULL is fine */
/* "fcfs, ...": for the message about an unknown policy and for --help. */
const char *scheduler_policies(void);

/* --- events --- */

/* A new sequence with n_known ids waits. Lower priority numbers go first, then arrival. */
void scheduler_submit(struct scheduler *s, uint32_t slot, uint32_t n_known, int32_t priority,
                      uint64_t now_ns);
/* What was planned to be admitted with n_cached tokens has n_computed instead. */
void scheduler_on_attach(struct scheduler *s, uint32_t slot, uint32_t n_computed);
/* A step ran n_run tokens of the slot; n_new more ids are known after it (0 or 1). */
void scheduler_on_tokens(struct scheduler *s, uint32_t slot, uint32_t n_run, uint32_t n_new,
                         uint64_t now_ns);
/* The slot is done with: finished by itself, or cancelled in whatever phase. */
void scheduler_on_finish(struct scheduler *s, uint32_t slot);
void scheduler_on_cancel(struct scheduler *s, uint32_t slot);

/* --- the plan --- */

/* What the cache would answer, without changing it. */
struct sched_view {
    void *arg;
    uint32_t n_available;                                          /* free or evictable blocks */
    uint32_t (*match)(void *arg, uint32_t slot);                   /* cached tokens of a waiter */
    uint32_t (*need)(void *arg, uint32_t slot, uint32_t n_tokens); /* blocks out of available */
    uint32_t (*reclaimable)(void *arg, uint32_t slot);             /* blocks a preemption frees */
};

struct plan_item {
    uint32_t slot;
    uint32_t n_tokens;   /* to run now */
    uint32_t n_cached;   /* admit: the view's match, to be attached; else 0 */
    bool admit;          /* first step of its life, or after a preemption */
};

struct plan {
    const struct plan_item *items;   /* decodes first, then prefill chunks */
    uint32_t n_items;
    uint32_t n_tokens;
    const uint32_t *preempt;         /* slots to drop before anything is grown */
    uint32_t n_preempt;
};

/* Decide; the scheduler's state already counts the plan as taken. Plan and arrays live until the
 * next call. Empty only when nothing can run. */
void scheduler_plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view,
                    struct plan *out);

uint32_t scheduler_n_running(const struct scheduler *s);
uint32_t scheduler_n_waiting(const struct scheduler *s);
/* The slot that waits at place i of the order of service, i < scheduler_n_waiting(). */
uint32_t scheduler_waiting(const struct scheduler *s, uint32_t i);

#endif
