/* lineup.h - sequences under the scheduler, and what its plans mean for their KV.
 *
 * The one place where scheduler and cache meet. The step loop (step.c) runs what comes out of it
 * through a model, the simulator through a cost model:
 *
 *     lineup_submit(), lineup_end()           whenever somebody comes or leaves
 *     n = lineup_begin(l, now)                plan; swap out and in; grow: l->items [n]
 *     (the step runs)     lineup_ahead()      what can be done for the next step meanwhile
 *     lineup_ran(l, i, ...) of each item      its KV is written, and whether a token came
 *
 * Swapping. A sequence that loses its place gives its blocks back to the cache, as the value that
 * its expected time of coming back gives them (cache_seq_expect()). With `swap_ahead` blocks are
 * spilled before they are needed, so that a reserve is free, and what comes back soon is fetched
 * before its turn (FastServe, papers.md 1.4).
 *
 * Disk. Who waits is passed over while its KV is being read, in the order of service; from the plan
 * on that would have admitted it, for load_timeout_ns at most: then it is computed.
 *
 * Owns    scheduler and sequences' KV handles; the cache is borrowed.
 * Thread  the engine thread.
 * Errors  lineup_create(): ERR_NOMEM, ERR_INVALID with words. A sequence for which no block was
 *         left against the plan stands in `failed`: a bug, but one request's.
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
    uint64_t load_timeout_ns; /* one whose turn it is waits so long for what lies on disk */
};

struct lineup {
    struct cache *cache;
    struct scheduler *scheduler;
    struct sequence *seqs; /* [n_slots] */
    uint32_t n_slots;
    struct plan_item *items; /* [n_items] of the step under way, in batch order */
    uint32_t n_items;
    uint32_t n_preempted; /* by lineup_begin() just now */
    double step_s;        /* what that step is expected to take */
    uint32_t *failed;     /* [n_failed] slots that lineup_begin() could not grow */
    uint32_t n_failed;
    uint64_t n_preemptions;
    uint64_t n_steps, n_planned_ahead; /* of those: while the one before ran */

    /* inside */
    bool swap_ahead;
    double copy_s_per_token;
    uint64_t load_timeout_ns;
    uint64_t plan_ns; /* the time for which a plan is being made */
    struct plan ahead;
    bool has_ahead;
    uint32_t refresh_at; /* slot */
};

NODISCARD enum status lineup_create(struct lineup *l, const struct lineup_config *config,
                                    struct buf *why);
/* No sequence is left. */
void lineup_destroy(struct lineup *l); /* fine on a zeroed struct */

/* kv becomes the lineup's. */
void lineup_submit(struct lineup *l, uint32_t slot, struct cache_seq *kv,
                   const struct sched_request *r, uint64_t now_ns);
/* The end of a sequence; finished: by itself. Gives everything back. */
void lineup_end(struct lineup *l, uint32_t slot, bool finished, uint64_t now_ns);

/* Plan the next step and have its KV in place; cache_poll() was called just now. Returns items:
 * with 0, and nobody preempted or failed, nothing can run until one comes or a copy is done. */
uint32_t lineup_begin(struct lineup *l, uint64_t now_ns);
/* While the step runs: spill and fetch ahead, and plan the next step for the time at which this one
 * is expected to end. Without it lineup_begin() does so. */
void lineup_ahead(struct lineup *l, uint64_t ends_ns);
/* Item i of the step was run: commit its KV. got_token: the next id of its sequence is known, and the
 * scheduler counts it; the owner calls cache_seq_extend() with the id. */
void lineup_ran(struct lineup *l, uint32_t i, bool got_token, uint64_t step_ns, uint64_t now_ns);

/* scheduler_check(), and ASSERT that scheduler and cache agree on what is computed. O(n). Between
 * two steps. */
void lineup_check(const struct lineup *l);

#endif
