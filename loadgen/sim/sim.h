/* sim.h - a discrete-event simulation: generated requests against one or many instances.
 *
 * Arrivals, conversations, limits of time, number and concurrency are those of a live run (run.h),
 * and so are the outcomes; time is virtual and starts at SIM_START_NS. Of events at one time, ends
 * of steps come first, then actions of clients, then beginnings of steps. This order makes the
 * outcomes of equal configurations and sources equal.
 *
 * A search takes `search_s` from a request's arrival and ends in equal stages. Every stage before
 * `final_share` of the search ends with a list of its own: documents that no other request has.
 * The later stages end with the request's own documents. With `speculates` a list that differs from
 * the last one cancels the speculative prefill of the last one, and starts one if the instance has
 * fewer requests inside than may run at one time; it ends when its request is submitted.
 *
 * Owns    nothing that outlives sim_run() but the outcomes.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_INVALID with words; ERR_INTERNAL when a policy lets requests wait
 *         for ever.
 * Units   virtual nanoseconds; seconds where named so. */
#ifndef TARN_LOADGEN_SIM_SIM_H
#define TARN_LOADGEN_SIM_SIM_H

#include "loadgen/load/chain.h"
#include "loadgen/load/outcome.h"
#include "loadgen/sim/fleet.h"

#define SIM_INSTANCES_MAX 1024

/* The search that finds the documents of a request, before the request can be submitted. */
struct sim_search {
    double search_s; /* 0: documents are known at arrival */
    uint32_t n_stages;
    double final_share; /* of the stages; after it the provisional list is the final one */
    bool speculates;    /* provisional lists are prefilled */
};

struct sim_config {
    struct fleet_config fleet; /* its callbacks and arg are filled in */
    struct load_source source;

    uint64_t n_background; /* documents to prefill in the background, from the start on */
    uint32_t n_background_tokens;
    bool closed;                 /* no arrival times: `concurrency` requests at any time */
    uint32_t concurrency;        /* 0: no limit (open loop only) */
    uint64_t count;              /* measured requests; 0: no limit */
    double warmup_s, duration_s; /* duration 0: no limit */
    double drain_s;              /* 0: until all has ended */
    uint32_t n_output_usual;     /* tokens of a request without a length */
    bool ends_conversations;     /* as in struct pace */
    bool real_history;           /* answers stand in later turns as they came */
    bool send_session;           /* the scheduler is told of sessions */
    bool token_times;            /* outcomes keep the time of each token: 8 bytes each */
    struct sim_search search;
};

/* *result is zeroed but for what the caller set; the sums are added. */
NODISCARD enum status sim_run(const struct sim_config *config, struct outcome_list *outcomes,
                              struct sim_result *result, struct buf *why);

/* The capacity: requests (and first requests of conversations) per second that a closed loop got
 * answered while all its places were taken. */
struct sim_capacity {
    double requests_per_s, conversations_per_s;
    uint64_t n_simulated;
};
/* `config` is that of a closed loop with a count. */
NODISCARD enum status sim_capacity(const struct sim_config *config, struct sim_capacity *out,
                                   struct buf *why);

#endif
