/* cluster_inner.h - the parts of a cluster that its files share.
 *
 * Owns, Thread, Errors, Units: as cluster.h. */
#ifndef TARN_LOADGEN_SIM_CLUSTER_INNER_H
#define TARN_LOADGEN_SIM_CLUSTER_INNER_H

#include "cache/balance/heavy.h"
#include "loadgen/sim/cluster.h"
#include "loadgen/sim/registry.h"

#define CLUSTER_NEVER UINT64_MAX
#define CLUSTER_HEAVY_MAX 1024u
#define CLUSTER_PATH_MAX 1024u /* pieces of a path that is copied */
#define CLUSTER_WINDOW_NS UINT64_C(10000000000)

enum transfer_kind { TRANSFER_READ, TRANSFER_COPY, TRANSFER_MOVE };

/* KV on its way from an instance to another. */
struct transfer {
    struct agenda_item item; /* first */
    enum transfer_kind kind;
    uint32_t from, to, from_life, to_life;
    uint64_t pin;       /* at the lender */
    struct seat *seat;  /* reads */
    struct piece *path; /* [n_path] copies: the last piece first */
    uint32_t n_path;
    struct link link; /* in `transfers` */
};

struct node {
    struct cluster *cluster; /* first: arg of the shelf's callback */
    struct light light;
    bool is_alive, is_awake;
    uint32_t helps; /* 1 + the instance whose step it computes a part of; 0: none */
    uint32_t life;
    uint64_t tx_free_ns, rx_free_ns;
    double load;                        /* tokens served, a decayed sum */
    uint64_t n_served, n_served_before; /* tokens found here: by own requests and by others */
};

struct cluster {
    struct cluster_config config;
    struct node *nodes; /* [n_instances] */
    struct registry *registry;
    struct heavy *heavy;
    struct table wanted; /* key -> copies wanted, of heavy pieces */
    struct agenda agenda;
    struct agenda_item tick, fail, join;
    uint32_t *awake; /* [n_awake] nodes that may begin a step */
    uint32_t n_awake, n_alive;
    uint32_t next_helper; /* the first one that is looked at */
    struct link transfers;
    uint64_t n_transfers;
    uint64_t now_ns, tick_ns, window_ns;
    double n_out; /* mean answer, a moving mean */
    double cv_sum;
    uint32_t n_windows;
    uint32_t n_segments; /* cached, of all instances: for repeated announcements */
    /* room for one request */
    uint32_t *holders; /* [n_instances] */
    double *loads;     /* [n_instances] */
    uint32_t *n_held;  /* [n_instances] zeros */
    struct sim_result result;
};

void cluster_wake(struct cluster *c, uint32_t at);
/* Reserve both links from now_ns on; returns the time of the last byte. */
uint64_t cluster_send(struct cluster *c, uint32_t from, uint32_t to, uint64_t n_bytes,
                      uint64_t now_ns);
/* The time at which it would come; nothing is reserved. */
uint64_t cluster_send_end(const struct cluster *c, uint32_t from, uint32_t to, uint64_t n_bytes,
                          uint64_t now_ns);
/* Start a transfer that ends at end_ns. Takes `t`, also on failure. */
bool cluster_start(struct cluster *c, struct transfer *t, uint64_t end_ns);
void cluster_free_transfer(struct cluster *c, struct transfer *t);

/* cluster_pool.c: callbacks of light instances */
void cluster_ask(void *pool, uint32_t at, struct seat *s, uint64_t now_ns);
bool cluster_read(void *pool, uint32_t at, struct seat *s, uint64_t now_ns);
void cluster_release(void *pool, struct seat *s);
double cluster_query_s(void *pool, const struct seat *s, uint32_t n_rows);
void cluster_used(void *pool, uint32_t at, struct seat *s, uint32_t n_pieces);
void cluster_end_read(struct cluster *c, struct transfer *t);

/* cluster_elastic.c */
/* Before steps begin: form groups for the awake instances whose next step has prompts only. */
void cluster_plan_groups(struct cluster *c, uint64_t now_ns);
/* The step of a group's first instance is over, after busy_ns, or never began (0): the others are
 * free. */
void cluster_end_group(struct cluster *c, uint32_t at, uint64_t busy_ns);

/* cluster_balance.c */
void cluster_balance(struct cluster *c);
void cluster_end_copy(struct cluster *c, struct transfer *t);

#endif
