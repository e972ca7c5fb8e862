/* lineup.h - runs the scheduler's plans on the cache: the one place where the two meet.
 *
 * The step loop (step.c) runs the planned items through a model, the simulator through a cost
 * model:
 *
 *     lineup_submit(), lineup_end()           when a sequence is submitted or ends
 *     n = lineup_begin(l, now)                plan; preempt, attach, grow: l->items [n]
 *     lineup_guess()                          let a decode verify guessed tokens, too
 *     (the step runs)     lineup_ahead()      spill, fetch and plan for the next step meanwhile
 *     lineup_ran(l, i, ...) of each item      commit its KV, and count its token
 *     lineup_accepted()                       for each guess that was right, in order
 *     lineup_guessed()                        give back the KV of those that were wrong
 *     or lineup_lost(l, i, ...)               it waits again: its step failed
 *
 * A step may be launched before the one before it has ended:
 *
 *     (a step runs)       lineup_ahead(), then lineup_follow(): l->next [n_next]; launch it
 *     lineup_ran() of the items of the step before, lineup_end() of those that ended
 *     lineup_resume()                         l->items [n] of the step that is under way
 *
 * Swapping. A preempted sequence releases its blocks to the cache, together with the time at which
 * it is expected to run again (cache_seq_expect()); the cache evicts by that time. With
 * `swap_ahead` the cache spills blocks before they are needed, so that a reserve stays free, and
 * fetches the KV of sequences that run soon (proactive swapping: FastServe, Wu et al. 2023).
 *
 * Disk. The plan passes a waiting sequence over while its KV is being read from disk. The first
 * plan that would have admitted it starts a timer of load_timeout_ns; after that its KV is
 * computed.
 *
 * Two counts of computed tokens. The scheduler counts them per sequence (n_computed), and so does
 * the sequence's KV handle (cache_view.n_tokens), from which the lengths of its blocks and segments
 * follow. Neither module may include the other, and both read the number in most of their
 * functions: as a parameter it would pass through most calls of the cache, and as a callback it
 * would tie the pure scheduler to a cache. lineup_check() asserts that both counts are equal.
 *
 * Owns    the scheduler, the records of sequences, their KV handles; the cache is borrowed.
 * Thread  the engine thread.
 * Errors  lineup_create(): ERR_NOMEM, ERR_INVALID with words. `failed` lists sequences for which no
 *         block was left although the plan had counted one: a bug that ends one request only.
 * Units   as scheduler.h. */
#ifndef TARN_ENGINE_LINEUP_H
#define TARN_ENGINE_LINEUP_H

#include "cache/cache.h"
#include "engine/sched/scheduler.h"
#include "engine/sequence.h"

struct lineup_config {
    struct cache *cache;
    struct scheduler_config scheduler;
    bool swap_ahead;
    double copy_s_per_token;  /* of KV, from host to device or back; 0: nothing is copied */
    uint64_t load_timeout_ns; /* limit of a planned sequence's wait for a read from disk */
};

struct lineup {
    struct cache *cache;
    struct scheduler *scheduler;
    struct sequence *seqs; /* [n_slots] */
    uint32_t n_slots;
    struct plan_item *items; /* [n_items] of the step under way, in batch order */
    uint32_t n_items;
    uint32_t n_preempted; /* by lineup_begin() just now */
    double step_s;        /* expected time of the step under way */
    double guess_s;       /* of step_s: of verifying guesses */
    uint32_t *failed;     /* [n_failed] slots that lineup_begin() could not grow */
    uint32_t n_failed;
    uint64_t n_steps, n_planned_ahead; /* of those: while the one before ran */
    struct plan_item *next;            /* [n_next] of the step that follows that one */
    uint32_t n_next;
    double next_s; /* its expected time */

    /* inside */
    bool swap_ahead;
    double copy_s_per_token;
    uint64_t load_timeout_ns;
    uint64_t plan_ns; /* time that the plan in the making is for */
    struct plan ahead;
    bool has_ahead;
    uint32_t refresh_at; /* slot */
};

NODISCARD enum status lineup_create(struct lineup *l, const struct lineup_config *config,
                                    struct buf *why);
/* All sequences have ended. */
void lineup_destroy(struct lineup *l); /* fine on a zeroed struct */

/* A new sequence waits. Takes kv over. Returns the tokens that it finds in the cache now. */
uint32_t lineup_submit(struct lineup *l, uint32_t slot, struct cache_seq *kv,
                       const struct sched_request *r, uint64_t now_ns);
/* End a sequence and release its KV. finished: it generated all of its tokens. */
void lineup_end(struct lineup *l, uint32_t slot, bool finished, uint64_t now_ns);

/* Plan the next step and reserve its KV, right after cache_poll(). Returns the number of items.
 * With 0 items, and none preempted or failed, nothing can run before a submission or the end of a
 * copy. */
uint32_t lineup_begin(struct lineup *l, uint64_t now_ns);
/* While the step runs: spill and fetch ahead, and plan the next step for ends_ns, the expected end
 * of this one. Optional: lineup_begin() does the same where it was not called. */
void lineup_ahead(struct lineup *l, uint64_t ends_ns);
/* After lineup_ahead(), while the step runs: begin the planned step, too, if it needs nothing from
 * the end of that step but the ids of its tokens, and if may(arg, slot) for each of its sequences,
 * which then have a slot of KV for the token that is not known yet. The sequence of an item that
 * ends meanwhile is taken out of l->next. Until lineup_resume() nothing else is begun or planned.
 */
bool lineup_follow(struct lineup *l, bool (*may)(const void *arg, uint32_t slot), const void *arg,
                   uint64_t now_ns);
/* The step before it has ended: l->items are those of the step that follows it, which may be none
 * any more. */
void lineup_resume(struct lineup *l);
/* Item i of the step was run: commit its KV. got_token: the next id of its sequence is known, and
 * the scheduler counts it; the owner calls cache_seq_extend() with the id. */
void lineup_ran(struct lineup *l, uint32_t i, bool got_token, uint64_t step_ns, uint64_t now_ns);

/* Speculation: the step also runs n guessed tokens behind those of the slot's item, which decodes.
 * False, and nothing changed: memory is short. seconds: by which the step is expected to be
 * longer. */
bool lineup_guess(struct lineup *l, uint32_t slot, uint32_t n, double seconds);
/* After lineup_ran() of the item, and cache_seq_extend(): the next guess was right. The
 * guess's KV is committed, and the scheduler counts one more token. */
void lineup_accepted(struct lineup *l, uint32_t slot, uint64_t now_ns);
/* The guesses of the sequence are verified: give back the slots of those that were wrong. */
void lineup_guessed(struct lineup *l, uint32_t slot);

/* Of item i only the first n_tokens (0: none) were run, or count: the others are planned again. */
void lineup_ran_part(struct lineup *l, uint32_t i, uint32_t n_tokens, uint64_t step_ns,
                     uint64_t now_ns);
/* Take item i out of the step before it runs; the items behind it move up. */
void lineup_hold(struct lineup *l, uint32_t i, uint64_t now_ns);
/* Item i of the step was run in vain, because attention to KV on another instance failed: give back
 * all KV of its sequence, which waits again as after a preemption. */
void lineup_lost(struct lineup *l, uint32_t i, uint64_t now_ns);

/* The cache is about to sleep: all sequences wait, as after a preemption, and hold no KV. */
void lineup_rest(struct lineup *l, uint64_t now_ns);

/* scheduler_check(), and ASSERT that scheduler and cache agree on what is computed. O(n). Between
 * two steps, or with one under way. */
void lineup_check(const struct lineup *l);

#endif
