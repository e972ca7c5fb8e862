/* contest_replay.h - serves recorded requests in virtual time under one policy, to learn what the
 * policy would have given.
 *
 * The scheduler is the real one, and the cost model says how long a step takes. Of memory only
 * blocks are counted: every sequence has its own, and those of a preempted sequence stay on the
 * device until another sequence needs them. Then they move to host memory, or are lost where that
 * is full, those of the sequence that is due last first. A copy back runs beside the step. Prompt
 * tokens that the cache held when the request was served are cached in the replay too.
 *
 * The replay is cut into slices of a number of plans; the cuts do not change the result. The result
 * depends on the configuration only.
 *
 * Owns    its scheduler and its records; the requests and the cost model are borrowed.
 * Thread  one at a time.
 * Errors  contest_replay_create(): ERR_NOMEM, ERR_INVALID as scheduler_create().
 * Units   virtual nanoseconds, tokens, KV blocks; seconds where a name ends in _s. */
#ifndef TARN_ENGINE_SCHED_CONTEST_REPLAY_H
#define TARN_ENGINE_SCHED_CONTEST_REPLAY_H

#include "engine/sched/scheduler.h"

/* A request that has been answered. */
struct contest_request {
    struct sched_request asked; /* n_cached: tokens that its first admission found in the cache */
    uint64_t arrival_ns;
    uint32_t n_out; /* tokens generated, at least 1 */
};

struct contest_memory {
    uint32_t n_device_blocks, n_host_blocks;
    double copy_s_per_token; /* of KV, from host to device or back */
};

struct contest_replay_config {
    struct scheduler_config scheduler; /* n_slots is filled in */
    struct contest_memory memory;
    const struct contest_request *requests; /* [n] by time of arrival */
    uint32_t n;
    uint32_t n_warmup; /* the first ones are served but not measured; below n */
};

/* Percentiles by nearest rank. */
struct contest_figures {
    double mean, p95, p99;
};

struct contest_result {
    uint32_t n;                           /* requests measured; 0: no result */
    struct contest_figures normalized_s;  /* end-to-end latency / output tokens */
    struct contest_figures e2e_s, ttft_s; /* from arrival to the last and to the first token */
};

struct contest_replay;

/* Whether memory can hold the request at its end; others must not be replayed. */
bool contest_request_fits(const struct contest_request *r, const struct contest_memory *m);

NODISCARD enum status contest_replay_create(struct contest_replay **out,
                                            const struct contest_replay_config *config,
                                            struct buf *why);
void contest_replay_destroy(struct contest_replay *r); /* NULL is fine */
/* Make at most n_plans plans. True: all requests have been served. */
bool contest_replay_run(struct contest_replay *r, uint32_t n_plans);
/* The figures of a replay that has served all. */
void contest_replay_result(const struct contest_replay *r, struct contest_result *out);

#endif
