/* light.h - a light model of one instance, for simulations of many: continuous batching first come
 * first served, a cost model, and a cache of pieces under LRU (shelf.h).
 *
 * A step runs all sequences that decode, and chunks of prompts up to n_tokens_max and step_s_max.
 * Decoding sequences cost nothing to simulate: each ends at a step that is known when it begins.
 * KV of a prompt is shared as soon as it is computed; that of an answer when its request ends. When
 * memory is full, pieces are evicted, then the request that was admitted last is preempted.
 * Differences from the real engine and cache (instance.h): one order of service, one eviction
 * policy, no host memory, and on_token() comes for the first and the last token only.
 *
 * Owns    its shelf and seats; jobs are borrowed until they have ended.
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   virtual nanoseconds, tokens. */
#ifndef TARN_LOADGEN_SIM_LIGHT_H
#define TARN_LOADGEN_SIM_LIGHT_H

#include "loadgen/sim/agenda.h"
#include "loadgen/sim/instance.h"
#include "loadgen/sim/shelf.h"

#define LIGHT_PEERS_MAX 8u

/* KV that a sequence uses by sending queries to a peer. */
struct light_peer {
    uint32_t instance, life, n_tokens;
    uint64_t pin; /* the last piece there */
};

/* A request at an instance. */
struct seat {
    struct job *job;         /* NULL: it has left, and reads for it are still under way */
    struct agenda_item item; /* decoding: due_ns is the number of the step of its last token */
    struct link link;        /* in `waiting` or `running` */
    struct link fill;        /* in `filling`; in no list while KV is read for it */
    uint64_t arrival;        /* order of arrival */
    uint32_t n_done, n_known;
    uint32_t n_committed; /* pieces at the beginning that are on the shelf and pinned */
    uint64_t pin;         /* the last of them; 0: none */
    uint32_t n_private;   /* tokens, but for those of decoding */
    uint64_t began;       /* decoding: the step after which it decodes */
    bool is_decoding, was_asked, is_reading;
    uint32_t n_read; /* tokens read from others for it */
    /* reads under way, and the tokens that they bring */
    uint32_t n_reads, n_read_tokens;
    struct light_peer peers[LIGHT_PEERS_MAX]; /* [n_peers] */
    uint32_t n_peers, n_queried; /* pieces at the beginning that lie on peers: [n_committed, ...) */
    uint32_t n_segments;         /* of those */
};

struct light_config {
    const struct cost_model *cost;
    uint32_t n_running_max, n_tokens_max, piece_tokens;
    double step_s_max; /* 0: only tokens cut prompts */
    uint64_t n_kv_tokens, overhead_ns;
    void (*on_token)(void *arg, struct job *j, uint64_t now_ns);
    void (*on_end)(void *arg, struct job *j, enum job_end end, uint64_t now_ns);
    void *arg; /* of the two above */
    /* With a pool. Before a request is admitted: it may get peers to query, and then needs less
     * memory. */
    void (*ask)(void *pool, uint32_t instance, struct seat *s, uint64_t now_ns);
    /* After that, if it has no peers: begin to read more of its prompt from others, into the memory
     * that it has. True: it runs only after light_end_reads(). */
    bool (*read)(void *pool, uint32_t instance, struct seat *s, uint64_t now_ns);
    /* Peers are not queried any more. */
    void (*release)(void *pool, struct seat *s);
    /* Seconds that a step takes longer by queries of a sequence that runs n_rows. */
    double (*query_s)(void *pool, const struct seat *s, uint32_t n_rows);
    void *pool; /* NULL: none of the four above is called */
    /* The first n pieces of the request were found on the shelf when it was admitted. */
    void (*used)(void *owner, uint32_t instance, struct seat *s, uint32_t n_pieces);
    void *owner;
};

/* A step of prompts that several instances compute together. */
struct light_group {
    uint32_t n;           /* 0: the instance alone */
    double row_s, step_s; /* added for each row, and for the step */
};

struct light {
    struct light_config config;
    uint32_t index;
    struct shelf shelf;
    struct link waiting, running, filling, leaving;
    struct agenda decoding;
    uint32_t n_inside, n_waiting, n_running, n_querying;
    int64_t context; /* sum over decoding: tokens known less the step at which that was */
    uint64_t n_steps, n_arrived;
    struct step_chunk {
        struct seat *seat;
        uint32_t n;
    } * chunks; /* [n_chunks] of the step under way */
    uint32_t n_chunks;
    struct agenda_item item;    /* of the owner: the end of the step */
    uint64_t ends_ns, began_ns; /* of the step under way; UINT64_MAX: none */
    struct light_group group;   /* of the next step, or of the one under way */
    double debt_s;              /* time of queries of others, to be added to the next step */
    struct sim_result result;
};

NODISCARD enum status light_init(struct light *l, uint32_t index,
                                 const struct light_config *config);
void light_fini(struct light *l);
/* Add a job; a refused job gets its on_end() at once. */
void light_submit(struct light *l, struct job *j, uint64_t now_ns);
void light_cancel(struct light *l, struct job *j);
/* Admit waiting requests while none is under way: what light_begin_step() does first. */
void light_admit(struct light *l, uint64_t now_ns);
/* Tokens that prompts inside still need; 0: none, or a request decodes. *n_cached, *first: of the
 * first of them. */
uint32_t light_prompts(const struct light *l, uint32_t *n_cached, const struct pieces **first);
/* Begin a step if none is under way and there is something to do; sets ends_ns. */
void light_begin_step(struct light *l, uint64_t now_ns);
void light_end_step(struct light *l, uint64_t now_ns);
/* The instance dies: take one job out, in the order of arrival of running, then waiting ones. NULL:
 * it is empty, and all its memory forgotten. */
struct job *light_die(struct light *l);
/* All reads for the seat are over, and brought tokens from n_done on. No effect on a request that
 * was preempted meanwhile. */
void light_end_reads(struct light *l, struct seat *s);
/* Share of memory that running requests use. */
double light_in_use(const struct light *l);
void light_check(const struct light *l);

#endif
