/* kv_store_inner.h - what the files of kv_store share; nobody else includes it.
 *
 * Owns    nothing.
 * Thread  as kv_store.h.
 * Errors  none.
 * Units   as kv_store.h. */
#ifndef TARN_CACHE_STORE_KV_STORE_INNER_H
#define TARN_CACHE_STORE_KV_STORE_INNER_H

#include "base/map.h"
#include "cache/key.h"
#include "cache/store/kv_store.h"
#include "cache/policy/replace.h"
#include "kernels/device.h"

#define NODE_N_BLOCKS_MAX (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define N_TRANSFERS 256
#define N_HOLDS_MAX 256
/* Blocks of waiting requests that are counted; those of requests behind are not looked ahead to. */
#define N_EXPECTED_MAX (1u << 15)

/* Beside each node of the tree. */
struct node_info {
    uint32_t entry; /* of the policy */
    uint32_t n_tokens;
    uint32_t pos0;       /* of its first token */
    uint32_t tail_of;    /* the parent, when it is a tail; else KTREE_NONE */
    uint32_t n_tails;    /* children that are */
    bool is_prefetched;  /* for a waiting request, and not used since */
    bool is_orphan;      /* to be forgotten once nothing moves */
    bool due_is_old;     /* who told its due time waits no more: the next who tells is right */
    bool starts_segment; /* its first block does */
    bool from_disk;      /* is_prefetched, and was read */
    bool is_offered, is_writing, is_reading; /* kv_store_disk.h */
    uint64_t no_load_until_ns;               /* it was read in vain: not again before */
    uint64_t no_load_ahead_until_ns;         /* the same but for who comes first */
    uint64_t fetch_no; /* of the transfer that brings it to the device; done: below n_done */
    uint64_t spill_no; /* of the transfer that brings it to the host */
    uint64_t n_uses, n_hit_tokens, used_ns;
};

struct store_tier {
    uint32_t n_blocks;
    uint32_t n_free;
    uint32_t *free_ids; /* [n_blocks] stack */
    uint32_t n_in_transfer;
    uint64_t n_evicted, n_moved_in, n_hit_tokens;
};

enum transfer_kind {
    TRANSFER_FETCH, /* host to device */
    TRANSFER_SPILL, /* device to host */
    TRANSFER_LOAD,  /* what was read from disk, from staging to the device */
    TRANSFER_SAVE   /* what will be written, from the device to staging */
};

struct transfer {
    enum transfer_kind kind;
    uint64_t no;   /* from 1 on, in the order of their start */
    uint32_t node; /* pinned by all but spills */
    uint32_t n;
    uint32_t n_held; /* device blocks of it in transfer: 0 or n */
    uint32_t device_blocks[NODE_N_BLOCKS_MAX];
    uint32_t memory_blocks[NODE_N_BLOCKS_MAX]; /* on the host or in staging */
    struct device_event *event;
};

static inline bool is_inward(enum transfer_kind kind)
{
    return kind == TRANSFER_FETCH || kind == TRANSFER_LOAD;
}

struct hold {
    uint64_t until_ns;
    struct kv_key *keys; /* [n] of its blocks */
    uint32_t n;
};

struct store {
    struct cache_config config;
    struct kv_pool pool;
    size_t block_bytes;
    bool copies;         /* tiers are different memories */
    unsigned char *host; /* [n_host_blocks][block_bytes], pinned, when copies */
    struct store_tier tier[CACHE_N_TIERS];
    uint32_t n_tiers;       /* of memory: device, host. The disk comes behind them */
    struct disk_tier *disk; /* kv_store_disk.h; NULL: there is none */
    uint32_t n_private;
    uint64_t now_ns;

    struct ktree *tree;
    struct key_index *index; /* of the tree's keys; NULL without prefix caching */
    struct replace *policy;
    struct node_info *info; /* [n_nodes_max + 1] */
    uint32_t *node_of;      /* [n_entries_max] entry -> node */
    uint32_t *path;         /* [n_nodes_max] scratch */

    /* A ring, oldest first. */
    struct transfer transfers[N_TRANSFERS];
    uint32_t first_transfer, n_transfers;
    uint64_t n_transfers_ever;
    struct device_event *compute_done; /* recorded before a copy: what the steps so far wrote */

    struct map expected; /* first 8 bytes of a block's key -> waiting requests */
    struct map held;     /* the same -> holds */
    struct hold holds[N_HOLDS_MAX];
    uint32_t n_holds;
    uint32_t n_prefetched; /* device blocks */
    uint32_t n_orphans;    /* nodes */
    uint32_t n_reserve;    /* device blocks that prefetching leaves alone */
    bool is_ahead;         /* what moves now moves before somebody needs it */

    uint64_t n_copies_failed;
    uint64_t n_spilled_ahead, n_spilled_on_demand, n_fetched_ahead, n_fetched_on_demand;
    uint64_t n_expected_lost, n_expected_out;
    uint64_t n_loaded_to_host; /* from disk: not among its n_moved_in */
    uint64_t memory_bytes;
};

static inline bool lies_in(const struct ktree_node *n, enum cache_tier tier)
{
    return n->tiers >> tier & 1;
}

/* On disk and nowhere else. */
static inline bool lies_on_disk_only(const struct ktree_node *n)
{
    return n->tiers == 1u << CACHE_DISK;
}

/* The tier's number for the policy, which knows only those that there are. */
static inline uint32_t order_of(const struct store *st, enum cache_tier tier)
{
    return tier == CACHE_DISK ? st->n_tiers : tier;
}

/* --- kv_store.c --- */

void tier_push(struct store_tier *t, uint32_t id);
uint32_t tier_pop(struct store_tier *t);
/* A node has entered the tree or left its last tier: the policy and node_info follow. */
void node_left(struct store *st, uint32_t node, uint32_t entry);
/* A new node in one tier: it is in the tree, the policy and node_info, not yet in the policy's
 * order of the tier. KTREE_NONE: there cannot be one. */
struct node_birth {
    uint32_t parent, depth, pos0, n_tokens;
    enum cache_tier tier;
    const struct kv_key *keys; /* [n] */
    const uint32_t *slots;     /* [n] */
    uint32_t n;
    bool starts_segment;
};
uint32_t node_enter(struct store *st, const struct node_birth *birth);
/* Seconds per byte to compute the node behind its prefix. */
double own_seconds_per_byte(const struct store *st, uint32_t node);
/* The node was split: *upper is the new upper part. False: it cannot be. */
bool node_split(struct store *st, uint32_t node, uint32_t n_upper, uint32_t *upper);
void node_pin(struct store *st, uint32_t node);
void node_unpin(struct store *st, uint32_t node);
/* From one node to another; KTREE_ROOT: from or to none. */
void move_pin(struct store *st, uint32_t from, uint32_t to);

/* --- kv_store_move.c: between tiers --- */

/* Have n device blocks on the free stack. False: there are not that many to be had. */
bool make_device_room(struct store *st, uint32_t n);
/* Device blocks whose copy to the host is under way. */
uint32_t n_spilling(const struct store *st);
/* The node that ranks lowest leaves the device. False: there is none. */
bool evict_from_device(struct store *st);
/* Room on the host for n blocks of an entry, unless what lies there is worth more. What others hang
 * below must come in. */
bool make_host_room(struct store *st, uint32_t entry, uint32_t n, bool must);
/* A child of the node that lies in the tier, or KTREE_NONE. */
uint32_t child_in(const struct store *st, uint32_t node, enum cache_tier tier);
/* Forget what moves no more of what is to be forgotten. */
void forget_orphans(struct store *st);
/* Start a copy between n device blocks and as many of the host's or of staging; it is entered as
 * the youngest transfer. The node's pins are the caller's matter. */
enum status start_transfer(struct store *st, enum transfer_kind kind, uint32_t node,
                           const uint32_t *device_blocks, const uint32_t *memory_blocks,
                           uint32_t n);
/* Bring a node that lies on the host only to the device; its parent lies there and is pinned. */
bool fetch_node(struct store *st, uint32_t node);
/* Kernels launched from now on see what a fetch under way brings into this node. */
void wait_for_fetch(struct store *st, uint32_t node);
/* Complete the copies that are done; with `all` wait for all of them. */
void complete_transfers(struct store *st, bool all);
/* Whether a copy from or to the node is under way. */
bool is_moving(const struct store *st, uint32_t node);
enum status init_transfers(struct store *st);
void fini_transfers(struct store *st);

/* --- kv_store_expect.c --- */

/* Device blocks for n more and the reserve, without pushing out what is due before due_s, or what
 * lives longer than until then anyway: that would have to be fetched again in its turn. */
bool make_room_ahead(struct store *st, uint32_t n, double due_s);
/* Device blocks that may be fetched ahead in all. */
uint32_t prefetch_limit(const struct store *st);

enum status init_expect(struct store *st);
void fini_expect(struct store *st);
/* How often a node that begins with this key is waited for or held. */
uint32_t n_expected(const struct store *st, const struct kv_key *first);
bool is_held(const struct store *st, const struct kv_key *first);
bool is_awaited(const struct store *st, const struct kv_key *first);
void end_holds(struct store *st, uint64_t now_ns);
void drop_holds(struct store *st);

#endif
