/* scheduler.h - who runs in the next step: pure state, events in, a plan out.
 *
 * The scheduler does no I/O, reads no clock (it is handed `now`), allocates nothing after
 * scheduler_create() and touches no cache: it asks the view, whose functions are pure too. So the
 * server runs it in real time, the simulator in virtual time and the tests in no time.
 *
 * A sequence is a slot number. It has n_known ids and n_computed of them in the cache; the rest are
 * to run: one is a decode, more are (a chunk of) a prefill. A preempted sequence is one that holds
 * nothing again; what it computed may still be found in the cache.
 *
 * One order. A policy gives each sequence a place in one strict order of service; all else is the
 * same for all of them (scheduler_plan.c): a step takes the first n_running_max sequences of the
 * order that KV memory, tokens and time allow; who was running and is not among the first loses its
 * place, last first. Nobody who waits gets the place of somebody before it in the order, so two
 * sequences cannot take the place from each other in turn.
 *
 * Policies:
 *   skip-join-mlfq  FastServe (arXiv 2305.05920; papers.md 1.2): levels with quanta growing by
 *                   `ratio`; a sequence joins the first level whose quantum covers its prefill, and
 *                   sinks when it has used the quantum up
 *   mlfq            the same, but all join at the top
 *   fcfs            in the order of arrival
 *   sjf-prompt      the shortest prefill first; who runs goes on
 *   srpt            the shortest remaining time first: an oracle, which takes n_out_max for the
 *                   number of tokens that will come
 * In all of them a lower `priority` goes before a higher one, across levels. In the MLFQs requests
 * of one level alternate between tenants (deficit round robin in shares of the level's quantum), in
 * fcfs all requests do; the other two have an order of their own for each pair of requests. Rounds
 * are counted apart for priorities below, at and above 0.
 *
 * Variants of the two MLFQs (--mlfq-variant):
 *   tarn      as the paper, but who is moved up because it starved has one iteration and goes
 *             back to where it stood: sent to the top it would sink through all levels once more,
 *             before those who came since. And the threshold may rise (below)
 *   paper     to the top level and on from there, threshold fixed (papers.md 1.2)
 *   released  the authors' code (papers.md 1.3): down one level at a time and to its front;
 *             starvation is looked at every 1000th plan, to the top's front; who does not fit is
 *             not passed over; no rounds between tenants
 *
 * No starvation (design P6). Who has not run for `starvation_s` goes before everybody until it has
 * its next token; nor does a run count that computes again what was lost since its last one. (fcfs,
 * where nobody is overtaken by equals: only who waits for more important ones.) Where memory is
 * short, to move somebody up is to bring its KV back and to send another's away, and with many of
 * them a machine would do nothing else: the threshold is raised so that bringing back takes a
 * fiftieth of the time at most (scheduler_on_restored()).
 *
 * Trajectories. Requests of one session are one job with pauses: a request that comes within
 * starvation_s of the end of the one before goes on at that one's level (the MLFQs), so that a long
 * job cut into many calls is a long job. The pauses are measured: scheduler_pause_s().
 *
 * Owns    its entries and the arrays of the plan it returns.
 * Thread  one at a time (the engine thread).
 * Errors  scheduler_create(): ERR_NOMEM, ERR_INVALID for an unknown policy or a wrong number.
 * Units   tokens, KV blocks, nanoseconds; seconds where a name says so. */
#ifndef TARN_ENGINE_SCHED_SCHEDULER_H
#define TARN_ENGINE_SCHED_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct scheduler;
struct cost_model;

/* 0 is a default wherever a comment gives one. */
struct scheduler_config {
    const char *policy;
    uint32_t n_slots;       /* slot numbers are below this */
    uint32_t n_running_max; /* --max-num-seqs */
    uint32_t n_tokens_max;  /* --max-num-batched-tokens: of one step */
    double step_s_max;      /* --max-step-ms: prefill chunks are cut so that a step is expected
                               to take no longer, but to no less than 32 tokens in a step
                               without another chunk; 0: only n_tokens_max cuts them */
    const struct cost_model *cost; /* borrowed, and may be corrected between two calls. NULL: a step
                                      takes 10 ms and a prefill 0.1 ms a token */
    double quantum_s;              /* of the top level; 0: what a decode step with n_running_max
                                      sequences takes */
    double ratio;                  /* from level to level; 0: 2 */
    double starvation_s;           /* 0: max(3 s, 100 decode steps); INFINITY: never */
    const char *variant;           /* of the MLFQs, above; NULL: "tarn" */
    uint32_t reserve_blocks; /* device blocks kept for those that run when another is admitted,
                                and free for those that come; 0: one for each that runs, and
                                what a step may take */
};

NODISCARD enum status scheduler_create(struct scheduler **out,
                                       const struct scheduler_config *config, struct buf *why);
void scheduler_destroy(struct scheduler *s); /* NULL is fine */
/* "fcfs|mlfq|...", "tarn|...": for the message about an unknown one and for --help. */
const char *scheduler_policies(void);
const char *scheduler_variants(void);

/* --- events; `now` never goes back --- */

struct sched_request {
    uint32_t n_known;   /* ids of the prompt, > 0 */
    uint32_t n_cached;  /* of them in the cache now: for the first guess of its prefill */
    uint32_t n_out_max; /* tokens that it may generate at most */
    int32_t priority;
    uint64_t tenant;  /* equal: the same one */
    uint64_t session; /* equal: one trajectory; 0: none */
};

/* A new sequence waits. */
void scheduler_submit(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                      uint64_t now_ns);
/* What was planned to be admitted with n_cached tokens has n_computed instead. Between
 * scheduler_take() and the step's scheduler_on_tokens(). n_run: the tokens it runs now. */
void scheduler_on_attach(struct scheduler *s, uint32_t slot, uint32_t n_computed, uint32_t n_run);
/* The slot was admitted again after a preemption, for which its KV was copied for so long; what was
 * lost and is computed again the scheduler knows. Behind scheduler_on_attach(). */
void scheduler_on_restored(struct scheduler *s, uint32_t slot, double copy_s);
/* A step of step_ns ran n_run tokens of the slot; n_new more ids are known after it (0 or 1). */
void scheduler_on_tokens(struct scheduler *s, uint32_t slot, uint32_t n_run, uint32_t n_new,
                         uint64_t step_ns, uint64_t now_ns);
/* The slot is done with: finished by itself, or cancelled in whatever phase. */
void scheduler_on_finish(struct scheduler *s, uint32_t slot, uint64_t now_ns);
void scheduler_on_cancel(struct scheduler *s, uint32_t slot, uint64_t now_ns);

/* --- the plan --- */

/* What the cache would answer, without changing it. */
struct sched_view {
    void *arg;
    uint32_t n_available;                                          /* free or evictable blocks */
    uint32_t (*match)(void *arg, uint32_t slot);                   /* cached tokens of a waiter */
    uint32_t (*need)(void *arg, uint32_t slot, uint32_t n_tokens); /* blocks out of available */
    uint32_t (*reclaimable)(void *arg, uint32_t slot);             /* blocks a preemption frees */
    /* Its KV is being read from disk: it is passed over. NULL: nobody's. Asked only of those who
     * could be admitted, so who answers knows how long it has been holding one up. */
    bool (*is_loading)(void *arg, uint32_t slot);
};

struct plan_item {
    uint32_t slot;
    uint32_t n_tokens; /* to run now */
    uint32_t n_cached; /* admit: the view's match, to be attached; else 0 */
    bool admit;        /* first step of its life, or after a preemption */
};

struct plan {
    const struct plan_item *items; /* decodes first, then prefill chunks in the order of service */
    uint32_t n_items;
    uint32_t n_tokens;
    const uint32_t *preempt; /* slots to drop before anything is attached or grown */
    uint32_t n_preempt;
    uint32_t n_for_memory; /* the first so many of them; the others had no place left */
    double step_s;         /* what the cost model expects the step to take */
    uint64_t version;      /* of the state that it was made for */
};

/* Decide. A step that was taken and has not ended counts as if it had, each of its sequences with
 * one more token where it reaches the end of what is known: so the next plan can be made while a
 * step runs. The plan's arrays live until the next call. Without items only when nothing can run,
 * or when it takes places away for somebody whom the next plan admits. */
void scheduler_plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view,
                    struct plan *out);
/* Whether the plan is still the one that scheduler_plan() would make, but for what may have become
 * available and for starvation meanwhile: nobody came, left or moved in the order. */
bool scheduler_is_current(const struct scheduler *s, const struct plan *plan);
/* The plan is carried out now; it is current. */
void scheduler_take(struct scheduler *s, const struct plan *plan, uint64_t now_ns);

/* --- looking --- */

uint32_t scheduler_n_running(const struct scheduler *s);
uint32_t scheduler_n_waiting(const struct scheduler *s);
/* Those that wait in the order of service: *slot is UINT32_MAX for the first, then the last answer.
 * False: no more. Nothing may change between two calls. */
bool scheduler_next_waiting(const struct scheduler *s, uint32_t *slot);
/* The time at which a waiting sequence is expected to run again: papers.md 1.4, ENST. */
uint64_t scheduler_next_ns(const struct scheduler *s, uint32_t slot, uint64_t now_ns);
/* Mean seconds between the end of a request of this session and the next one; 0: not known. */
double scheduler_pause_s(const struct scheduler *s, uint64_t session);
/* Blocks to keep free for those that come. */
uint32_t scheduler_reserve_blocks(const struct scheduler *s);

#define SCHEDULER_N_LEVELS 24
struct scheduler_stats {
    uint32_t n_levels;                       /* 1 where the policy has none */
    uint32_t n_in_level[SCHEDULER_N_LEVELS]; /* running and waiting */
    double quantum_s[SCHEDULER_N_LEVELS];    /* of the last level: INFINITY */
    double starvation_s;                     /* as it is now */
    uint64_t n_preempted_for_place, n_preempted_for_memory;
    uint64_t n_starving; /* times that somebody was moved up for it */
    uint64_t n_demoted;
};
void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out);
/* Recount everything and ASSERT that it agrees. O(n). */
void scheduler_check(const struct scheduler *s);

#endif
