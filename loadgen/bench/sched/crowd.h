/* crowd.h - a crowd of sequences under a scheduler: what a server would have around it, made up.
 *
 * Each sequence has a prompt and an answer of drawn lengths, a tenant and a priority. KV is a count
 * of blocks: who runs holds them, who was preempted finds all but its last partial block again (as
 * from a host tier), and nobody else shares any. When a sequence ends another comes, so the number
 * of those that wait stays what it was. Time is virtual: a step takes 10 ms and 0.1 ms for each
 * token of a prefill, which is what the scheduler expects without a cost model.
 *
 * Owns    its sequences and the scheduler.
 * Thread  one.
 * Errors  ERR_NOMEM; ERR_INVALID for a policy that nobody knows, with words.
 * Units   tokens, blocks of CROWD_BLOCK_TOKENS, nanoseconds of virtual time. */
#ifndef TARN_LOADGEN_BENCH_SCHED_CROWD_H
#define TARN_LOADGEN_BENCH_SCHED_CROWD_H

#include "engine/sched/scheduler.h"

#define CROWD_BLOCK_TOKENS 32u

struct crowd_config {
    const char *policy;
    uint32_t n_queued, n_running;
    bool starvation_never;
    uint64_t seed;
};

struct crowd_seq {
    uint32_t n_known, n_computed;
    uint32_t n_out_left;
    uint32_t n_cached; /* while it waits: what it computed before */
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
/* The step that was planned runs: tokens come, some sequences end, and as many others come. */
void crowd_run(struct crowd *c, const struct plan *plan);

#endif
