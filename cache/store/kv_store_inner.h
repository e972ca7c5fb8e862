/* kv_store_inner.h - what the files of the store share; included by cache/store/ only.
 *
 * The files, lowest first; each calls only files above it in this list:
 *
 *   kv_store_expect.c  counts of waiting requests and holds by block key; due times of nodes
 *   kv_store_hold.c    holds, and what each owner holds
 *   kv_store_session.c the KV of sessions between two requests
 *   kv_store_events.c  what the pool and routers are told of blocks that come and go
 *   kv_store_node.c    the tree, the policy and node_info kept in step: enter, split, pin, leave
 *   kv_store_move.c    moves under way; eviction, spilling, fetching; making room in each tier
 *   kv_store_ahead.c   moves before they are needed: prefetching, spilling ahead
 *   kv_store_save.c    what is written to disk
 *   kv_store_load.c    what is read from slow tiers
 *   kv_store_remote.c  lookups in the pool, and the remote nodes that they find
 *   kv_store_query.c   lookups to which sequences send queries
 *   kv_store_bequeath.c  private KV that is handed over when its sequence ends
 *   kv_store_surplus.c which of two copies of a pulled path is evicted first
 *   kv_store_lend.c    what other instances get; leaving the pool; the price of replicas
 *   kv_store_index.c   entering the records of the disk into the tree at start
 *   kv_store_forget.c  erasing on request, reset, sleep
 *   kv_store_path.c    paths of sequences: match, attach, append, tails
 *   kv_store_look.c    statistics, checks, top spans
 *   kv_store.c         create, destroy, private blocks, poll
 *
 * Owns    nothing.
 * Thread  as kv_store.h.
 * Errors  none.
 * Units   as kv_store.h. */
#ifndef TARN_CACHE_STORE_KV_STORE_INNER_H
#define TARN_CACHE_STORE_KV_STORE_INNER_H

#include "base/map.h"
#include "cache/store/kv_store.h"
#include "cache/tier/tier.h"

#define NODE_N_BLOCKS_MAX (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define N_MOVES 256
#define N_HOLDS_MAX 4096
/* Block keys of waiting requests that are counted. Requests beyond that are not looked ahead to. */
#define N_EXPECTED_MAX (1u << 15)

/* The store's record of a node; the tree has a record of its own. */
struct node_info {
    uint32_t entry; /* in the policy */
    uint64_t owner; /* the session whose requests alone used it; 0: there is none */
    uint32_t n_tokens;
    uint32_t pos0;       /* position of its first token */
    uint32_t tail_of;    /* its parent if the node is a tail, else KTREE_NONE */
    uint32_t n_tails;    /* children that are tails */
    bool is_prefetched;  /* fetched for a waiting request and not used since */
    bool is_orphan;      /* to be forgotten when nobody uses it and no move of it is under way */
    bool due_is_old;     /* the request that set its due time no longer waits: the next due time
                            that any waiting request reports is taken, even a later one */
    bool starts_segment; /* its first block starts a segment */
    bool is_public;      /* it lies in the public scope */
    bool has_named_ids;  /* the routers' events have had its ids */
    uint8_t read_from; /* CACHE_DISK or CACHE_REMOTE: read from there and not used since; else 0 */
    bool is_replica;   /* another instance has it, too: kv_store_lend.c */
    bool is_borrowed;  /* read from an instance that keeps its copy: kv_store_surplus.c */
    bool was_offered;  /* to other instances, since this one leaves the pool */
    uint8_t lent_in;   /* the tier in which it is pinned while it is lent */
    uint32_t n_lent;   /* loans */
    bool is_offered, is_writing, is_reading; /* kv_store_slow.h */
    uint64_t no_load_until_ns;       /* a read failed or was too late: do not read before then */
    uint64_t no_load_ahead_until_ns; /* there was no room: only the first request may read before */
    uint64_t fetch_no;               /* last move that brings it to the device */
    uint64_t spill_no;               /* last move that brings it to the host */
    uint64_t n_uses, n_hit_tokens, used_ns;
    double saved_s; /* as struct cache_span */
    double read_s;  /* time that reading it took, while read_from is set */
};

struct store_tier {
    struct tier *t;     /* NULL: there is no such tier */
    uint32_t n_filling; /* blocks of the tree that a move still fills; host only */
    uint32_t n_placing; /* reserved blocks in no node yet: being filled or written */
    uint64_t n_evicted, n_moved_in, n_hit_tokens;
    double saved_s, lost_s; /* as struct cache_tier_stats */
};

enum move_kind {
    MOVE_FETCH, /* host to device */
    MOVE_SPILL, /* device to host, from where the node leaves the device */
    MOVE_COPY,  /* device to host: the node stays on the device */
    MOVE_LOAD,  /* a staging buffer of a slow tier to the device */
    MOVE_SAVE   /* device to a staging buffer of the disk tier */
};

/* An asynchronous move of the device tier. */
struct store_move {
    enum move_kind kind;
    enum cache_tier from; /* MOVE_LOAD: the slow tier */
    uint32_t node;        /* pinned, except by spills */
    uint32_t n;
    void *buffers[NODE_N_BLOCKS_MAX]; /* MOVE_LOAD: given back when it is over */
};

struct hold {
    uint64_t owner, until_ns;
    struct kv_key *keys; /* [n] of its blocks */
    uint32_t n;
};

struct hold_owner {
    uint64_t id;
    uint32_t n_holds, n_blocks; /* blocks: each counts once, whatever the number of holds */
};

/* A reader of cache events, and the listing of all nodes for it. */
struct store_listing {
    struct cache_events *events; /* NULL: there is no such reader */
    uint32_t next;               /* the next node to list; KTREE_NONE: no listing is under way */
};
enum { STORE_LIST_POOL, STORE_LIST_ROUTERS, STORE_N_LISTINGS };

struct store {
    struct cache_config config;
    struct kv_pool pools[DEVICE_GROUP_MAX]; /* of each rank */
    size_t block_bytes;
    bool copies; /* device and host are separate memories: moves between them are copies */
    struct store_tier tier[CACHE_N_TIERS];
    uint32_t n_tiers; /* tiers in memory: device, or device and host */
    struct slow_tier
        *slow[CACHE_N_TIERS];    /* kv_store_slow.h; NULL: not a slow tier, or not there */
    struct store_disk *disk;     /* NULL without a disk tier */
    struct store_remote *remote; /* NULL without a pool */
    uint64_t copy_left;          /* of COPY_BYTES_PER_POLL in this poll */
    const void *load_first;      /* the first of the waiting requests: store_load_first() */
    uint32_t n_private;
    uint64_t now_ns;
    double pace; /* store_set_pace() */

    struct store_listing listings[STORE_N_LISTINGS];
    struct ktree *tree;
    struct key_index *index; /* of the tree's keys; NULL without prefix caching */
    struct replace *policy;
    struct node_info *info; /* [n_nodes_max + 1] */
    uint32_t *node_of;      /* [n_entries_max] entry -> node */
    uint32_t *path;         /* [n_nodes_max] scratch */

    /* Moves are numbered from 1 in the order in which they begin, and end in that order: a ring,
     * move `no` at no % N_MOVES. */
    struct store_move moves[N_MOVES];
    uint64_t n_moves_begun, n_moves_over;

    struct map expected;       /* first 8 bytes of a block's key -> waiting requests */
    struct map held;           /* the same -> holds */
    struct map held_by;        /* the same, mixed with the owner -> holds of this owner */
    struct hold *holds;        /* [N_HOLDS_MAX] */
    struct hold_owner *owners; /* [N_HOLDS_MAX] of at least one hold */
    uint32_t n_holds, n_owners;
    uint64_t holds_end_ns;     /* no hold ends before */
    struct sessions *sessions; /* kv_store_session.c */
    uint32_t n_prefetched;     /* device blocks */
    uint32_t n_orphans;        /* nodes */
    uint32_t n_reserve;        /* device blocks that prefetching leaves free */
    bool sleeps;               /* store_sleep() */
    uint64_t sleep_ns;         /* of its first call */
    bool is_ahead;             /* moves are counted as made ahead, not on demand */
    bool lists_events;         /* poll_events() has more to do */

    uint64_t n_spilled_ahead, n_spilled_on_demand, n_fetched_ahead, n_fetched_on_demand;
    uint64_t n_expected_lost, n_expected_out;
    uint64_t n_superseded;     /* blocks */
    double saved_s;            /* as struct cache_stats */
    uint64_t n_load_events;    /* store_n_load_events() */
    uint64_t n_loaded_to_host; /* from disk; not part of its n_moved_in */
    uint64_t memory_bytes;
};

/* Fill in the bases of st->pools: the device tier has memory, perhaps at new addresses. In
 * kv_store.c. */
void store_find_pools(struct store *st);

/* The time to compute n_new tokens behind n_cached ones at the pace of the last steps, with which
 * reading them is compared; 0 where the cache knows no times. */
static inline double compute_time(const struct store *st, uint32_t n_cached, uint32_t n_new)
{
    return st->config.seconds && n_new > 0
               ? st->pace * st->config.seconds(st->config.seconds_arg, n_cached, n_new)
               : 0;
}

static inline struct tier *device_tier(const struct store *st)
{
    return st->tier[CACHE_DEVICE].t;
}

static inline struct tier *host_tier(const struct store *st)
{
    return st->tier[CACHE_HOST].t;
}

static inline bool lies_in(const struct ktree_node *n, enum cache_tier tier)
{
    return n->tiers >> tier & 1;
}

/* In no memory: it must be read before a sequence can use it. */
static inline bool lies_slow_only(const struct ktree_node *n)
{
    return (n->tiers & (1u << CACHE_DEVICE | 1u << CACHE_HOST)) == 0;
}

/* The policy's index of a tier: the policy numbers only the tiers that exist, and has no order of
 * CACHE_REMOTE. */
static inline uint32_t order_of(const struct store *st, enum cache_tier tier)
{
    return tier == CACHE_DISK ? st->n_tiers : tier;
}

/* --- kv_store_expect.c --- */

enum status init_expect(struct store *st);
void fini_expect(struct store *st);
/* Waiting requests plus holds of a node whose first block has this key. */
uint32_t n_expected(const struct store *st, const struct kv_key *first);
bool is_held(const struct store *st, const struct kv_key *first);
/* Whether a request waits for the node; holds do not count. */
bool is_awaited(const struct store *st, const struct kv_key *first);
/* Add delta to the count of a key in `expected` or `held`. False: no room for another key; nothing
 * changed. */
bool count_key(struct store *st, struct map *m, const struct kv_key *key, int delta);

/* --- kv_store_hold.c --- */

enum status init_holds(struct store *st);
void fini_holds(struct store *st);
void end_holds(struct store *st, uint64_t now_ns);
void drop_holds(struct store *st);
/* End every hold's part from this key on. */
void cut_holds(struct store *st, const struct kv_key *key);
void check_holds(const struct store *st);

/* --- kv_store_session.c --- */

enum status init_sessions(struct store *st);
void fini_sessions(struct store *st);
/* Look at one held session per call. */
void refresh_sessions(struct store *st);
void drop_sessions(struct store *st);
uint32_t n_session_blocks(const struct store *st); /* held */
void check_sessions(const struct store *st);

/* --- kv_store_events.c --- */

/* The last n blocks of a node on the device are new; other nodes are reported by the tree. */
void tell_appended(struct store *st, uint32_t node, uint32_t n, const struct store_use *use);
/* A request uses the nodes path [n], the root's child first: send the ids that were not sent. */
void tell_path(struct store *st, const uint32_t *path, uint32_t n, const struct store_use *use);
/* The first blocks of the node are a node of their own now. */
void tell_split(struct store *st, uint32_t node, uint32_t upper);
/* Go on with listings. True: poll again soon. */
bool poll_events(struct store *st);

/* --- kv_store_node.c --- */

struct node_birth {
    uint32_t parent, depth, pos0, n_tokens;
    enum cache_tier tier;
    const struct kv_key *keys; /* [n] */
    const uint32_t *slots;     /* [n] */
    uint32_t n;
    bool starts_segment, is_public;
};
/* Add a node that lies in one tier to the tree, the policy and node_info. The caller inserts it
 * into the policy's order of the tier. KTREE_NONE: not possible. */
uint32_t node_enter(struct store *st, const struct node_birth *birth);
/* Clean up after a node that has left its last tier, and so the tree. */
void node_left(struct store *st, uint32_t node, uint32_t entry);
/* Seconds that a request saves which finds the node's first n_tokens; n_tokens where the cache
 * knows no times. */
double saved_seconds(const struct store *st, uint32_t node, uint32_t n_tokens);
/* Seconds per byte to compute the node behind its prefix. */
double own_seconds_per_byte(const struct store *st, uint32_t node);
/* Split a node after its first n_upper blocks; *upper is the new upper part. False: not possible.
 */
bool node_split(struct store *st, uint32_t node, uint32_t n_upper, uint32_t *upper);
void node_pin(struct store *st, uint32_t node);
void node_unpin(struct store *st, uint32_t node);
/* Pin `to` and unpin `from`; either may be KTREE_ROOT, which stands for no node. */
void move_pin(struct store *st, uint32_t from, uint32_t to);
/* Pin and unpin a node in the tier from which it is lent. */
void lent_pin(struct store *st, uint32_t node);
void lent_unpin(struct store *st, uint32_t node);

/* --- kv_store_surplus.c --- */

/* A sequence whose path ended with this node has released it: evict first what it had read from an
 * instance that keeps its copy. */
void return_borrowed(struct store *st, uint32_t node);

/* --- kv_store_move.c --- */

/* Have n free device blocks, evicting as needed. False: there are not that many to be had. */
bool make_device_room(struct store *st, uint32_t n);
/* Evict the victim of the device's order. False: there is none. */
bool evict_from_device(struct store *st);
/* Evict the victim of the host's order. False: there is none. */
bool evict_from_host(struct store *st);
/* Have n free host blocks for a policy entry. Unless `must`, only blocks worth less are evicted. */
bool make_host_room(struct store *st, uint32_t entry, uint32_t n, bool must);
/* The same for the disk, beside the n_promised blocks of writes under way. */
bool make_disk_room(struct store *st, uint32_t entry, uint32_t n, uint32_t n_promised);
/* A child of the node that lies in the tier, or KTREE_NONE. */
uint32_t child_in(const struct store *st, uint32_t node, enum cache_tier tier);
/* Remove a node's copy from one tier. leave_device() and leave_host(): the caller has removed the
 * node from the tier's order. The node is gone if that was its last copy; true then. */
bool leave_device(struct store *st, uint32_t node);
bool leave_host(struct store *st, uint32_t node);
bool leave_disk(struct store *st, uint32_t node, bool erase); /* no node below lies on disk */
/* Remove the disk copies of the node and of all nodes below it. The node may be gone then. */
void drop_disk_below(struct store *st, uint32_t node, bool erase);
/* Remove the node from CACHE_REMOTE. No node below it is remote, unless it lies in a faster tier.
 * True: it is gone. */
bool leave_remote(struct store *st, uint32_t node);
/* Remove the node, which is remote, and all nodes below it. */
void drop_remote(struct store *st, uint32_t node);
/* Remove the remote nodes below a node. */
void drop_remote_below(struct store *st, uint32_t node);
/* Remove every copy on disk from the tree. */
void drop_all_of_disk(struct store *st);
/* Begin an asynchronous move between n device blocks and host memory. Pins are the caller's
 * business. False: it failed and nothing is under way. */
bool begin_move(struct store *st, enum move_kind kind, uint32_t node, const uint32_t *blocks,
                void *const *memory, uint32_t n);
bool is_move_over(const struct store *st, uint64_t no);
/* Begin to copy a node that lies on the device only to the host, where there is room. The tiers are
 * separate memories. */
bool copy_to_host(struct store *st, uint32_t node);
/* Bring a node that lies on the host only to the device; its parent lies there and is pinned. */
bool fetch_node(struct store *st, uint32_t node);
/* Order kernels launched from now on behind the fetch of this node, if one is under way. */
void wait_for_fetch(struct store *st, uint32_t node);
/* Complete the moves that are over; with `all`, wait for every move. */
void complete_moves(struct store *st, bool all);
/* Whether any move of the node is under way. */
bool is_moving(const struct store *st, uint32_t node);

/* --- kv_store_ahead.c --- */

/* Have n free device blocks beside the reserve without evicting a node that is due before due_s,
 * or that would survive until then anyway: it would have to be fetched again. */
bool make_room_ahead(struct store *st, uint32_t n, double due_s);
/* Device blocks that may hold prefetched nodes in all. */
uint32_t prefetch_limit(const struct store *st);

/* --- kv_store_forget.c --- */

/* Forget the orphans that no sequence uses and no move touches. */
void forget_orphans(struct store *st);

#endif
