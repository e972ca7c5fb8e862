/* replay.h - replays one trace with one policy and one size of memory, and counts hits.
 *
 * The cache is one tier. A request's hits are the leading nodes of its path that are there; it pins
 * them, has victims evicted for the nodes it computes, and unpins its path at its end; requests do
 * not overlap. A node that does not fit because everything is pinned is not kept, nor the nodes
 * behind it.
 *
 * Owns    nothing after it returns.
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   tokens (an entry has one byte a token), seconds. */
#ifndef TARN_LOADGEN_BENCH_POLICY_REPLAY_H
#define TARN_LOADGEN_BENCH_POLICY_REPLAY_H

#include "cache/policy/replace.h"
#include "engine/sched/cost_model.h"
#include "loadgen/bench/policy/paths.h"

#define REPLAY_N_ORDERS 3
extern const char *const replay_orders[REPLAY_N_ORDERS]; /* as replace_stats.order says it */

struct replay_options {
    enum replace_policy policy;
    uint64_t capacity_tokens;
    double history;       /* entries remembered behind those that fit, as a multiple of them;
                             INFINITY: every node of the trace */
    uint32_t n_lookahead; /* requests whose paths are expected while they wait */
    const struct cost_model *cost;
    bool checks; /* replace_check() after each request: slow */
};

struct replay_result {
    uint64_t n_tokens_hit;
    uint64_t n_nodes_hit;
    uint64_t n_uses; /* nodes on paths */
    uint64_t n_evicted;
    uint64_t n_tokens_max;               /* in memory at one time */
    uint64_t n_not_kept;                 /* nodes without room */
    double saved_s;                      /* sum of T(0, all) - T(cached, new) */
    double ideal_s;                      /* the same of an infinite cache */
    uint64_t n_switches;                 /* of contest */
    double order_share[REPLAY_N_ORDERS]; /* of requests in which that order picked */
    uint64_t memory_bytes;               /* of the policy */
    uint32_t n_entries_max;
    double cpu_s;
};

NODISCARD enum status replay(const struct paths *p, const struct replay_options *o,
                             struct replay_result *out);

#endif
