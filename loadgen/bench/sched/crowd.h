/* crowd.h - made-up sequences around a scheduler, in place of a server.
 *
 * Each sequence has a prompt and an answer of drawn lengths, a tenant and a priority. KV is a count
 * of blocks: a running sequence holds them, a preempted one finds all but its last partial block
 * again (as from a host tier), and no two sequences share any. When a sequence ends another one
 * arrives: the number of waiting sequences stays the same. Time is virtual: a step takes 10 ms and
 * 0.1 ms for each token of a prefill, as the scheduler expects without a cost model.
 *
 * Owns    its sequences and the scheduler.
 * Thread  one.
 * Errors  ERR_NOMEM; ERR_INVALID with words for an unknown policy.
 * Units   tokens, blocks of CROWD_BLOCK_TOKENS, nanoseconds of virtual time. */
#ifndef TARN_LOADGEN_BENCH_SCHED_CROWD_H
#define TARN_LOADGEN_BENCH_SCHED_CROWD_H

#include "engine/sched/scheduler.h"

#define CROWD_BLOCK_TOKENS 32u

struct crowd_config {
    const char *policy, *variant; /* of the scheduler */
    uint32_t n_queued, n_running;
    bool starvation_never;
    uint64_t seed;
};

struct crowd_seq {
    uint32_t n_known, n_computed;
    uint32_t n_out_left;
    uint32_t n_cached; /* of a waiting sequence: tokens computed before its preemption */
    bool runs;
};

struct crowd {
    struct scheduler *scheduler;
    struct crowd_seq *seqs; /* [n_seqs] */
    uint32_t n_seqs;
    uint32_t n_free_blocks;
    uint64_t seed, n_draws;
    uint64_t now_ns;
    uint64_t n_ended, n_admitted, n_steps;
    uint64_t n_items; /* of all steps */
};

NODISCARD enum status crowd_init(struct crowd *c, const struct crowd_config *config,
                                 struct buf *why);
void crowd_fini(struct crowd *c); /* also fine on a zeroed struct */

void crowd_plan(struct crowd *c, struct plan *out);
/* Run the planned step: tokens are generated, some sequences end, and as many new ones arrive. */
void crowd_run(struct crowd *c, const struct plan *plan);

#endif
