/* instance.h - one simulated server: the engine's scheduler and lineup, the real cache, a cost
 * model in place of the device, and a queue in front of them as in the server.
 *
 * The caller drives the instance in virtual time:
 *
 *     instance_submit(), instance_cancel()       a request arrives, or its client leaves
 *     t = instance_next(in)                      time of the next event inside
 *     instance_end_step(in, t)                   end the step that is due: tokens, finished jobs
 *     instance_begin_step(in, t)                 begin the next step
 *
 * Requests that arrive during a step are admitted between two steps, as in the engine.
 *
 * Swapping:
 *   proactive  spill and fetch ahead (lineup.h)
 *   reactive   spill when room is needed, fetch when the request is scheduled
 *   recompute  no swapping and no host memory: evicted KV is computed again
 *   off        no swapping and no host memory: a request is admitted only when its largest need
 *              fits beside the largest needs of all admitted requests. A server that can neither
 *              swap nor recompute has to work like this
 *
 * With `follows_contest` the instance notes its jobs and, between two steps, holds the
 * contests of engine/sched/contest.h that are due; they take no virtual time.
 *
 * With `predicts` a job of the class SCHED_USUAL gets a prediction when it comes, as in the engine.
 *
 * Owns    its device, cache, lineup, contest, estimator; jobs are borrowed until they have ended.
 * Thread  one.
 * Errors  instance_open(): ERR_NOMEM, ERR_INVALID with words. A refused job: on_end().
 * Units   virtual nanoseconds, tokens, KV blocks, bytes. */
#ifndef TARN_LOADGEN_SIM_INSTANCE_H
#define TARN_LOADGEN_SIM_INSTANCE_H

#include "base/list.h"
#include "engine/lineup.h"
#include "engine/sched/estimate.h"
#include "loadgen/sim/pieces.h"
#include "loadgen/sim/result.h"

#define SIM_START_NS UINT64_C(1000000000) /* not 0: that is "never" in an outcome */

struct cost_model;
struct seat;

enum sim_swap { SWAP_PROACTIVE, SWAP_REACTIVE, SWAP_RECOMPUTE, SWAP_OFF };

enum job_end { JOB_DONE, JOB_CANCELLED, JOB_REFUSED_FULL, JOB_REFUSED_LONG, JOB_FAILED };

struct job {
    /* by the owner */
    struct cache_prompt prompt;
    struct pieces pieces; /* in place of `prompt`, for the light model (light.h) */
    uint32_t n_prompt;    /* tokens, for the outcome */
    uint32_t n_out;       /* tokens to generate, cut to what memory holds; 0: a prefill */
    enum sched_class class;
    uint64_t answer_name; /* names the generated ids */
    int32_t priority;
    uint64_t tenant, session;
    /* by the instance */
    uint32_t n_got;
    uint32_t n_cached, n_cached_in[CACHE_N_TIERS];
    uint32_t slot;           /* NO_SLOT: not in the lineup */
    uint32_t n_blocks;       /* the most that it may need */
    uint32_t n_computed_max; /* most tokens that were computed at one time */
    uint64_t arrival_ns;
    uint64_t contest_id;      /* of contest_arrived() */
    struct estimate estimate; /* if the instance predicts */
    bool is_cancelled;
    struct link link;  /* in a list of the instance */
    struct seat *seat; /* light model only */
    uint32_t at;       /* number of the instance; set by fleet_submit() */
};

struct instance_config {
    struct scheduler_config scheduler; /* n_slots is filled in; cost too */
    bool follows_contest;              /* --scheduling-policy auto: scheduler.policy is the first
                                          one in force */
    bool predicts;                     /* fill in job.estimate */
    const struct cost_model *cost;     /* borrowed */
    enum sim_swap swap;
    double in_bytes_per_s, out_bytes_per_s;
    uint64_t bytes_per_token;
    uint32_t n_device_blocks, n_host_blocks;
    uint32_t segment_tokens;
    double prefetch_share;
    bool prefix_caching;
    const char *cache_policy; /* NULL: the default */
    uint64_t overhead_ns;     /* of the host, before each step */
    uint32_t n_queued_max;    /* 0: no limit but SIM_SLOTS_MAX */

    /* A token has come at now_ns; the job has ended, and is the owner's again. */
    void (*on_token)(void *arg, struct job *j, uint64_t now_ns);
    void (*on_end)(void *arg, struct job *j, enum job_end end, uint64_t now_ns);
    void *arg;
};

/* Requests inside of one instance. */
#define SIM_SLOTS_MAX (1u << 17)

struct instance;

NODISCARD enum status instance_open(struct instance **out, const struct instance_config *config,
                                    struct buf *why);
void instance_close(struct instance *in); /* NULL is fine; jobs inside get no on_end() */

/* Add a job; a refused job gets its on_end() at once. */
void instance_submit(struct instance *in, struct job *j, uint64_t now_ns);
/* Cancel a job; its on_end() comes between two steps. */
void instance_cancel(struct instance *in, struct job *j, uint64_t now_ns);
uint32_t instance_n_inside(const struct instance *in);
/* For routers: requests that have not run yet; the share of device memory that is in use; tokens of
 * a prompt that the cache holds, in whole blocks. */
uint32_t instance_n_waiting(const struct instance *in);
double instance_in_use(const struct instance *in);
uint32_t instance_match(const struct instance *in, const struct cache_prompt *p);
/* Time of the next event; UINT64_MAX: none before the next submission. */
uint64_t instance_next(const struct instance *in);
void instance_end_step(struct instance *in, uint64_t now_ns);
/* Begin a step, unless one is under way. */
void instance_begin_step(struct instance *in, uint64_t now_ns);
/* Jobs are inside, nothing is under way, and nothing will ever happen: a fault of the policy. */
bool instance_is_stuck(const struct instance *in);

/* Add the counts to *r. */
void instance_count(const struct instance *in, struct sim_result *r);
/* ASSERT that all counts and lists agree. O(jobs). */
void instance_check(const struct instance *in);

#endif
