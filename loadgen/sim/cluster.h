/* cluster.h - many light instances (light.h), alone or as a pool, in virtual time.
 *
 * A pool, as docs/design/pool.md describes it:
 *   lookup    the first requests of a queue ask the directory (registry.h) for what follows their
 *             local prefix. cover_choose() picks the copies. A holder that evicted the KV since, or
 *             died, costs time and is passed over.
 *   read      over links: each instance sends and receives at a rate, one transfer after the
 *             other. KV is read if that is expected to take less time than computing it. The copy
 *             of the lender is demoted, unless several copies are wanted.
 *   query     instead of reading, queries go to the holders and tiles come back, in every layer
 *             of every step; the KV stays where it is. Chosen by bytes: those of the queries for
 *             the suffix and the expected answer against those of the KV.
 *   balance   every balance_ns: copies for heavy pieces (heavy.h, place.h), which also refills
 *             holes after a loss, then moves from the fullest to the emptiest instance
 *             (rebalance.h); both within a share of the links' rate.
 *   elastic   instances that have nothing to do compute a part of others' steps, as long as these
 *             have prompts only (elastic.h); matching.h chooses who helps whom. A step of a group
 *             of k takes what the k-th part of its tokens takes, and the time in which queries of
 *             the prompt's rows pass to the members that do not hold its prefix.
 *   failure   instance 0 dies and comes back empty. Its requests are routed again from the
 *             beginning. The directory names it until its record expires; asking it costs
 *             lookup_ns.
 *
 * Owns    the instances, the directory, transfers under way; jobs are borrowed until they ended.
 * Thread  one.
 * Errors  ERR_NOMEM with words.
 * Units   virtual nanoseconds, tokens, bytes. */
#ifndef TARN_LOADGEN_SIM_CLUSTER_H
#define TARN_LOADGEN_SIM_CLUSTER_H

#include "loadgen/sim/light.h"

enum cluster_query { CLUSTER_QUERY_AUTO, CLUSTER_QUERY_NEVER, CLUSTER_QUERY_ALWAYS };

struct cluster_config {
    struct light_config light; /* its callbacks for a pool are filled in */
    uint32_t n_instances;
    bool is_pool;
    uint64_t bytes_per_token;
    double link_bytes_per_s;
    uint64_t link_ns;      /* one way */
    uint64_t lookup_ns;    /* a lookup that takes longer found nothing */
    uint64_t directory_ns; /* delay of announcements */
    uint64_t command_ns;   /* of the directory */
    enum cluster_query query;
    uint64_t query_bytes; /* of a row's queries and of its tiles of one segment, all layers */
    uint32_t n_layers;
    uint64_t balance_ns;  /* 0: no background copies */
    double balance_share; /* of the links' rate */
    bool is_elastic;
    uint64_t fail_ns, join_ns; /* instance 0; 0: never */
    /* Where a job goes whose instance died. */
    uint32_t (*route)(void *arg, struct job *j, uint64_t now_ns);
    void *arg;
};

struct cluster;

NODISCARD enum status cluster_open(struct cluster **out, const struct cluster_config *config,
                                   struct buf *why);
void cluster_close(struct cluster *c); /* NULL is fine; jobs inside get no on_end() */

void cluster_submit(struct cluster *c, uint32_t at, struct job *j, uint64_t now_ns);
void cluster_cancel(struct cluster *c, struct job *j);
/* Time of the next event; UINT64_MAX: none before the next submission. */
uint64_t cluster_next(const struct cluster *c);
void cluster_end_steps(struct cluster *c, uint64_t now_ns);
void cluster_begin_steps(struct cluster *c, uint64_t now_ns);

/* For routing. */
bool cluster_is_alive(const struct cluster *c, uint32_t at);
uint32_t cluster_n_inside(const struct cluster *c, uint32_t at);
uint32_t cluster_n_waiting(const struct cluster *c, uint32_t at);
double cluster_in_use(const struct cluster *c, uint32_t at);
/* Fill n_tokens [n_instances] with the tokens of the path that each instance holds now. */
void cluster_match(const struct cluster *c, const struct pieces *p, uint32_t *n_tokens);

/* ASSERT that all counts agree, and add the counts to *r. */
void cluster_count(struct cluster *c, struct sim_result *r, uint64_t now_ns);

#endif
