/* scheduler.h - decides which sequences run in the next step: pure state, events in, a plan out.
 *
 * The scheduler does no I/O, reads no clock (callers pass `now`), allocates nothing after
 * scheduler_create() and does not touch the cache: it calls the functions of a view, which are pure
 * too. The server therefore runs it in real time, the simulator in virtual time and the tests in no
 * time.
 *
 * A sequence is a slot number. It has n_known token ids, and n_computed of them are in the cache;
 * the others are left to run: one token left is a decode, more are (a chunk of) a prefill. A
 * preempted sequence holds no blocks, but the cache may still contain what it computed.
 *
 * One order. A policy gives each sequence a place in one strict order of service. Everything else
 * is the same for all policies (scheduler_plan.c): a step takes the first n_running_max sequences
 * of the order that fit into KV memory, tokens and time. Running sequences behind those are
 * preempted, the last one first. A waiting sequence never displaces one that is before it in the
 * order, so two sequences cannot preempt each other in turn.
 *
 * Policies:
 *   skip-join-mlfq  FastServe (Wu et al., "Fast Distributed Inference Serving for Large Language
 *                   Models", 2023, arXiv 2305.05920): levels whose quanta grow by `ratio`. A
 *                   sequence joins the first level whose quantum covers its prefill, and is demoted
 *                   when it has used up the quantum
 *   mlfq            the same, but every sequence joins at the top level
 *   fcfs            order of arrival
 *   sjf-prompt      shortest prefill first, not preemptive: running sequences go on
 *   srpt            shortest remaining time first: an oracle that takes n_out_max for the number of
 *                   tokens that the sequence will generate
 * In every policy a lower `priority` value goes before a higher one, across levels. The MLFQs
 * alternate between tenants inside a level (deficit round robin in shares of the level's quantum),
 * fcfs among all requests. sjf-prompt and srpt order any two requests themselves and have no
 * rounds. Rounds are counted separately for priorities below, at and above 0.
 *
 * One computation. A waiting sequence whose next blocks a prefill of the step computes is passed
 * over until they are cached, and a running one whose next blocks others have computed is preempted
 * to find them, if that saves more than a step of waiting costs.
 *
 * With reorder_window, waiting sequences whose prompt is cached go before others inside the order
 * (scheduler_reorder.c).
 *
 * Variants of the two MLFQs (--mlfq-variant):
 *   learned   of skip-join-mlfq: as many levels as there are ranks, learned from the lengths of
 *             finished answers (lengths.h), and an age boost instead of the starvation threshold
 *             (scheduler_learned.c). Where lengths have a heavy tail the order is that of the MLFQ,
 *             where they have not it comes near the order of arrival. Of mlfq: as tarn
 *   tarn      the paper's, except that a starving sequence goes first for one iteration only and
 *             then returns to its old place: in the top level it would be demoted through all
 *             levels again, ahead of newer sequences. The starvation threshold may rise (below)
 *   paper     as published: a starving sequence moves to the top level and stays there; the
 *             threshold is fixed
 *   released  the authors' released code: demotion by one level at a time, to the front of that
 *             level; starvation is checked at every 1000th plan and moves to the front of the top
 *             level; a sequence that does not fit is not passed over; no rounds between tenants
 *
 * No starvation (promise P6, ARCHITECTURE.md). With the variant learned, the age boost is bounded
 * (scheduler_learned.c): sequences that arrive later than that never go before, and starvation_s is
 * off unless it is configured. In the other orders, a sequence that has not run for `starvation_s`
 * goes before all others until its next token. Steps that only recompute tokens lost by a
 * preemption do not count as running. (In fcfs, where no equal overtakes, only a sequence that
 * waits for more important ones can starve.) Where memory is short, serving a starving sequence
 * means restoring its KV and evicting another's; with many of them the machine would do nothing
 * else. So the threshold is raised until restoring takes at most a fiftieth of the time
 * (scheduler_on_restored()).
 *
 * Classes (enum sched_class). The plan chooses usual sequences first, as if there were no others.
 * Speculative ones get what is left of the step, up to half of step_s_max. Background ones run in
 * steps without others, which take at most an eighth of step_s_max, or four decode steps: so long
 * an arrival waits at most. While no usual or speculative sequence waits, they also get small
 * chunks in steps of decodes, which become a tenth longer at most. Both are preempted in the plan
 * in which a usual sequence lacks their place or memory. Both classes are no part of the policy's
 * order, of levels, rounds, sessions, learned lengths, estimates and starvation; inside a class,
 * the order is priority, then arrival.
 *
 * Trajectories. The requests of one session are one job with pauses. In the MLFQs a request that
 * arrives within starvation_s of the end of the previous one continues at the level of that one, so
 * that a long job stays a long job when it is cut into many calls. scheduler_session()
 * answers what a session received and how long its next pause is expected to last.
 *
 * Owns    its entries and the arrays of the plan it returns.
 * Thread  one at a time (the engine thread).
 * Errors  scheduler_create(): ERR_NOMEM; ERR_INVALID for an unknown policy or a number out of
 *         range.
 * Units   tokens, KV blocks, nanoseconds; seconds where a name ends in _s. */
#ifndef TARN_ENGINE_SCHED_SCHEDULER_H
#define TARN_ENGINE_SCHED_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/sched/lengths.h"

struct scheduler;
struct cost_model;

#define SCHED_REORDER_MAX 256u

/* Fields whose comment says "0: x" have the default x. */
struct scheduler_config {
    const char *policy;
    uint32_t n_slots;       /* slot numbers are below this */
    uint32_t n_running_max; /* --max-num-seqs */
    uint32_t n_tokens_max;  /* per step; --max-num-batched-tokens */
    double step_s_max;      /* --max-step-ms: chunks are cut so that the expected time of a step
                               stays below this, but the only chunk of a step has at least 32
                               tokens; 0: only n_tokens_max cuts chunks */
    const struct cost_model *cost; /* borrowed; may be corrected between two calls. NULL: a step
                                      takes 10 ms, a prefill 0.1 ms a token */
    double quantum_s;              /* of the top level; 0: the time of a decode step of
                                      n_running_max sequences */
    double ratio;                  /* of a level's quantum to that of the level above; 0: 2 */
    double starvation_s;           /* 0: max(3 s, 100 decode steps), and never with the variant
                                         learned; INFINITY: never */
    uint32_t reorder_window; /* a waiting sequence is passed by at most as many that have more of
                                their prompt cached, up to SCHED_REORDER_MAX; 0: by none */
    const char *variant;     /* of the MLFQs (above); NULL or "": "tarn" */
    enum latency_objective objective; /* variant learned */
    double age_s;                     /* variant learned: T of its ageing; 0: learned */
    uint32_t reserve_blocks;          /* device blocks that an admission must leave free for running
                                sequences, and that the lineup keeps free for arrivals; 0: one per
                                running sequence, for arrivals plus the blocks of n_tokens_max
                                tokens */
};

NODISCARD enum status scheduler_create(struct scheduler **out,
                                       const struct scheduler_config *config, struct buf *why);
void scheduler_destroy(struct scheduler *s); /* NULL is fine */
/* The known names, "fcfs|mlfq|...", "tarn|...", for --help and for messages about unknown names. */
const char *scheduler_policies(void);
const char *scheduler_variants(void);

/* Change policy and variant (NULL or "": "tarn") while sequences run and wait. Each sequence gets
 * the level that its prompt and the service received lead to under the new policy, and inside a
 * level the present order of service stays. (With fcfs all of it stays, and arrivals queue behind.
 * In order of arrival, the longest of an MLFQ's requests would run next, before all short ones.)
 * The variant learned ranks all sequences anew. Starving sequences still go first, and waiting
 * times go on, so promise P6 holds across the change. No step is under way. ERR_INVALID: an unknown
 * name, and nothing changed. Costs O(n log n). */
NODISCARD enum status scheduler_set_policy(struct scheduler *s, const char *policy,
                                           const char *variant, struct buf *why);

/* --- events; `now` never goes back --- */

/* Class of service, across priorities. Only SCHED_USUAL is promised to run (promise P6). */
enum sched_class {
    SCHED_USUAL,
    SCHED_SPECULATIVE, /* takes places, tokens and blocks that no usual sequence can use in the
                          step; preempted by any usual one */
    SCHED_BACKGROUND,  /* runs in steps in which nothing else runs, or only decodes */
    SCHED_N_CLASSES
};

struct sched_request {
    uint32_t n_known;   /* ids of the prompt, > 0 */
    uint32_t n_cached;  /* prompt ids in the cache now: for the expected time of its prefill */
    uint32_t n_out_max; /* limit of the tokens that it may generate */
    int32_t priority;
    uint64_t tenant;  /* equal numbers: the same tenant */
    uint64_t session; /* equal numbers: one trajectory; 0: none */
    bool has_limit;   /* the client asked for n_out_max */
    enum sched_class class;
    /* Targets; 0: none. The variant learned serves a sequence before its target is missed. */
    double slo_ttft_s, slo_tpot_s;
};

/* Add a new sequence to those that wait. */
void scheduler_submit(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                      uint64_t now_ns);
/* Correct an admission: the plan expected n_cached tokens in the cache, n_computed were
 * attached, and n_run tokens run now. Call it between scheduler_take() and the step's
 * scheduler_on_tokens(). */
void scheduler_on_attach(struct scheduler *s, uint32_t slot, uint32_t n_computed, uint32_t n_run);
/* Report what re-admitting a preempted sequence cost: copy_s seconds of copies. The scheduler
 * itself adds the time of recomputing what was lost. Call it after scheduler_on_attach(). */
void scheduler_on_restored(struct scheduler *s, uint32_t slot, double copy_s);
/* A step of step_ns ran n_run tokens of the slot, at most the planned ones; n_new (0 or 1) more ids
 * are known after it. */
void scheduler_on_tokens(struct scheduler *s, uint32_t slot, uint32_t n_run, uint32_t n_new,
                         uint64_t step_ns, uint64_t now_ns);
/* The step also verified a guess of the slot, which was right: one more token has its KV, and one
 * more id is known. Call it after scheduler_on_tokens() of the step, once for each such token; the
 * time of the step is counted already. */
void scheduler_on_accepted(struct scheduler *s, uint32_t slot, uint64_t now_ns);
/* A step ran tokens of the slot in vain, and their KV is gone, with all that the sequence held:
 * back to waiting, as after a preemption. */
void scheduler_on_lost(struct scheduler *s, uint32_t slot);
/* Remove a sequence: it finished, or it was cancelled in any phase. */
void scheduler_on_finish(struct scheduler *s, uint32_t slot, uint64_t now_ns);
void scheduler_on_cancel(struct scheduler *s, uint32_t slot, uint64_t now_ns);

/* --- the plan --- */

/* Questions to the cache. The answers change nothing in it. */
struct sched_view {
    void *arg;
    uint32_t n_available;                                          /* blocks that are free or can be
                                                                      evicted */
    uint32_t (*match)(void *arg, uint32_t slot);                   /* tokens in the cache of a
                                                                      waiting one */
    uint32_t (*need)(void *arg, uint32_t slot, uint32_t n_tokens); /* of n_available */
    uint32_t (*reclaimable)(void *arg, uint32_t slot);             /* blocks freed by preempting
                                                                      it */
    /* Whether its KV is being read from disk; such a sequence is passed over. Only asked about a
     * sequence that could be admitted now, so the callee can measure how long the read delays it.
     * NULL: none is being read. */
    bool (*is_loading)(void *arg, uint32_t slot);
    /* Tokens of a waiting one that are cached in any tier, for its place in the order. NULL: as
     * match. */
    uint32_t (*cached)(void *arg, uint32_t slot);
    /* Leading tokens, in whole blocks, that the prompts of two sequences share. NULL: none. */
    uint32_t (*shared)(void *arg, uint32_t slot, uint32_t other);
    uint32_t n_held; /* blocks of n_available, at most, that background sequences must leave: they
                        are held */
};

struct plan_item {
    uint32_t slot;
    uint32_t n_tokens; /* to run in this step */
    uint32_t n_cached; /* admitted ones: cached tokens to attach, as the view answered; else 0 */
    bool admit;        /* its first step, or the first one after a preemption */
    bool is_first;     /* its first step */
};

struct plan {
    const struct plan_item *items; /* decodes first, then prefill chunks in the order of service */
    uint32_t n_items;
    uint32_t n_tokens;
    const uint32_t *preempt; /* slots to preempt, before any attach or growth */
    uint32_t n_preempt;
    uint32_t n_for_memory; /* of usual ones the first of them, preempted for memory; the others
                                for lack of a place, or to find KV that others computed */
    double step_s;         /* expected time of the step */
    uint64_t version;      /* of the scheduler's state that it was made from */
};

/* Make a plan. A step that was taken and has not ended counts as if it had, with one more known
 * token for each sequence that reaches the end of its known ones: so the next plan can be made
 * while a step runs. The plan's arrays are valid until the next call. A plan has no items only when
 * nothing can run, or when it preempts sequences for one that the next plan admits. */
void scheduler_plan(struct scheduler *s, uint64_t now_ns, const struct sched_view *view,
                    struct plan *out);
/* Whether scheduler_plan() would make the same plan now: no sequence arrived, left or moved in the
 * order since. Blocks that became available and starvation are not considered. */
bool scheduler_is_current(const struct scheduler *s, const struct plan *plan);
/* Carry out a plan that is current. No step is under way, or scheduler_may_follow() is true. */
void scheduler_take(struct scheduler *s, const struct plan *plan, uint64_t now_ns);
/* Whether the plan, which is current, may be taken while a step is under way: it preempts nothing,
 * and each of its items decodes a usual sequence that gets a token from that step. Then two steps
 * are under way, and scheduler_on_tokens() reports them one after the other; until the first one
 * has ended there is no further plan. False also while the first sequence of the order waits: what
 * the step's end makes free is for that one. */
bool scheduler_may_follow(const struct scheduler *s, const struct plan *plan);

/* --- queries --- */

/* The counts of a sequence, by the steps that have ended. They are kept here only: the owner of the
 * slot reads the counts here. A free slot has zeros. */
struct sched_seq {
    uint32_t n_known, n_computed;
    bool waits; /* false: it runs */
};
struct sched_seq scheduler_seq(const struct scheduler *s, uint32_t slot);

/* Of all classes; scheduler_stats() has them by class. */
uint32_t scheduler_n_running(const struct scheduler *s);
uint32_t scheduler_n_waiting(const struct scheduler *s);
/* Walk the waiting sequences of all classes in the order of service: set *slot to UINT32_MAX for
 * the first, then pass the last answer. False: no more. The scheduler must not change between two
 * calls. */
bool scheduler_next_waiting(const struct scheduler *s, uint32_t *slot);
/* The time at which a waiting sequence is expected to run again: FastServe's estimated next
 * scheduled time (ENST). UINT64_MAX for a sequence that is not usual. */
uint64_t scheduler_next_ns(const struct scheduler *s, uint32_t slot, uint64_t now_ns);
/* Time between the end of a session's request and the next one. */
struct sched_pause {
    double mean_s, spread_s; /* expected, and mean distance from that; 0 and 0: unknown */
};
struct sched_session {
    uint32_t n_calls, n_inside;  /* requests so far, and those of them that have not ended */
    uint64_t n_generated;        /* tokens */
    double served_s;             /* sum of the steps that its requests took part in */
    uint64_t first_ns, ended_ns; /* arrival of the first, end of the last; 0: none has ended */
    struct sched_pause pause;
};
/* False: the scheduler remembers no such session; then out->pause is that of all sessions. */
bool scheduler_session(const struct scheduler *s, uint64_t session, struct sched_session *out);
/* The program has ended: forget the session, as soon as its requests have ended. False: there is no
 * such session. */
bool scheduler_close_session(struct scheduler *s, uint64_t session);
/* Expected count of tokens that a sequence will still generate. */
double scheduler_tokens_left(const struct scheduler *s, uint32_t slot);
/* Tokens that a decode yields in a step, of all sequences lately; 1 without speculation. */
double scheduler_yield(const struct scheduler *s);
/* Expected time of serving all usual sequences that are here, in full steps. */
double scheduler_backlog_s(const struct scheduler *s);
/* The lengths of answers that the scheduler has learned. */
struct lengths *scheduler_lengths(struct scheduler *s);
/* Limit of a step's expected time; INFINITY: none. */
double scheduler_step_s_max(const struct scheduler *s);
/* Blocks to keep free for arriving requests. */
uint32_t scheduler_reserve_blocks(const struct scheduler *s);

#define SCHEDULER_N_LEVELS 24
struct scheduler_stats {
    const char *policy, *variant; /* in force; variant "": the policy has none */
    uint32_t n_levels;            /* 1: the policy has no levels */
    uint32_t n_running[SCHED_N_CLASSES], n_waiting[SCHED_N_CLASSES];
    uint32_t n_in_level[SCHEDULER_N_LEVELS];                /* running and waiting */
    double quantum_s[SCHEDULER_N_LEVELS];                   /* INFINITY in the last level */
    double starvation_s;                                    /* the current threshold */
    uint64_t n_preempted_for_place, n_preempted_for_memory; /* usual ones */
    uint64_t n_starving; /* times that a sequence was moved up because it starved */
    uint64_t n_demoted;
    uint64_t n_reordered; /* times that a sequence passed others for its cached prompt (by rank) */
};
void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out);
/* Recount everything and ASSERT that it agrees. Costs O(n). */
void scheduler_check(const struct scheduler *s);

#endif
