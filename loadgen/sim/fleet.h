/* fleet.h - the instances of a simulation and the router before them: real ones (instance.h), or
 * light ones that may be a pool (cluster.h).
 *
 * Routing, where there are several instances:
 *   least-loaded  the first instance with the fewest requests inside
 *   round-robin   one instance after the other
 *   session       the instance of the session's last request; for a new session the least loaded
 *   random        any instance, drawn by the request's number
 *   hash          by the first hash_tokens of the prompt, in whole parts (consistent hashing). With
 *                 a hash_factor, an instance that has more than this times the mean number of
 *                 requests is passed over (Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing
 *                 with bounded loads", 2018), as HAProxy's hash-balance-factor does
 *   precise       the largest sum of scores, with exact knowledge of all caches, as llm-d's
 *                 precise-scheduling (github.com/llm-d/llm-d-kv-cache, benchmarking): 3 for the
 *                 share of the prompt that an instance holds, over the largest such share; 2 for
 *                 free KV memory; 2 for a short queue, between the longest and the shortest one. Of
 *                 equals a random one
 *
 * Owns    the instances; jobs are borrowed until they have ended.
 * Thread  one.
 * Errors  as instance.h.
 * Units   virtual nanoseconds. */
#ifndef TARN_LOADGEN_SIM_FLEET_H
#define TARN_LOADGEN_SIM_FLEET_H

#include "loadgen/sim/cluster.h"
#include "loadgen/sim/instance.h"

#define SIM_ROUTINGS "least-loaded|round-robin|session|random|hash|precise"
enum sim_routing {
    ROUTE_LEAST_LOADED,
    ROUTE_ROUND_ROBIN,
    ROUTE_SESSION,
    ROUTE_RANDOM,
    ROUTE_HASH,
    ROUTE_PRECISE
};

struct fleet_config {
    struct instance_config instance; /* also gives its limits and cost model to light ones */
    uint32_t n_instances;
    enum sim_routing routing;
    uint32_t hash_tokens;
    double hash_factor; /* 0: no bound */
    bool is_light;
    struct cluster_config cluster; /* light: what instance and n_instances do not say */
    /* Of a job: the request that it is for, for a router. */
    const struct load_request *(*request_of)(const struct job *j);
};

struct fleet;

NODISCARD enum status fleet_open(struct fleet **out, const struct fleet_config *config,
                                 struct buf *why);
void fleet_close(struct fleet *f); /* NULL is fine */

/* Choose an instance for a job whose prompt is made. */
uint32_t fleet_route(struct fleet *f, const struct job *j, const struct load_request *r);
void fleet_submit(struct fleet *f, uint32_t at, struct job *j, uint64_t now_ns);
void fleet_cancel(struct fleet *f, struct job *j, uint64_t now_ns);
uint32_t fleet_n_inside(const struct fleet *f, uint32_t at);
/* Time of the next event; UINT64_MAX: none before the next submission. */
uint64_t fleet_next(const struct fleet *f);
void fleet_end_steps(struct fleet *f, uint64_t now_ns);
void fleet_begin_steps(struct fleet *f, uint64_t now_ns);
/* ASSERT that all counts agree and that nothing is inside, and add the counts to *r. */
void fleet_count(struct fleet *f, struct sim_result *r, uint64_t now_ns);

#endif
