/* kv_store_slow.h - what the store decides about the slow tiers, the disk and the other instances
 * of the pool: what is written, what is read, in which order. Included by cache/store/ only. The
 * bytes are moved by the tiers (tier.h).
 *
 * A node that lies in slow tiers only must be read into memory before a sequence can use it: to the
 * host where there is a host tier, else to the device.
 *
 * Disk. A node on disk has a parent on disk: it is written after its parent and evicted before it,
 * which the policy's order of the tier guarantees.
 *
 * Remote. A node lies in CACHE_REMOTE only while no tier of this instance has it: the node leaves
 * CACHE_REMOTE as soon as it is read, or computed here. So all nodes below a remote node are
 * remote, too. Remote nodes come from lookups (kv_store_remote.c) and are short-lived: they are not
 * in the policy's orders, and they never keep a node in memory from eviction. When a node leaves
 * its last tier here, the remote nodes below it leave first.
 *
 * An offer is a node that the store wants to write to disk: it was used often enough, and its token
 * ids are known. A unit is one write or read under way. Units name blocks by key, not by node:
 * while a unit is under way its nodes may be split, evicted or computed again. What a unit brings
 * is placed only where the tree still lacks it.
 *
 * Owns    offers, units, lookups.
 * Thread  engine thread only.
 * Errors  as kv_store.h.
 * Units   as kv_store.h. */
#ifndef TARN_CACHE_STORE_KV_STORE_SLOW_H
#define TARN_CACHE_STORE_KV_STORE_SLOW_H

#include "cache/store/kv_store_inner.h"
#include "cache/tier/tier.h"

#define N_OFFERS 256
#define N_UNITS 64 /* of each slow tier */
/* Nodes that are read from disk for other instances at a time: the other units are for waiting
 * requests. */
#define N_LENDING 8
/* Bytes that one poll copies on the engine thread between staging and memory: about a millisecond.
 * At least one block (of a read) or one node (of a write) is copied whatever its size. */
#define COPY_BYTES_PER_POLL (UINT64_C(8) << 20)

struct offer {
    uint32_t n;
    struct kv_key keys[NODE_N_BLOCKS_MAX]; /* [n] */
    struct kv_key parent;
    struct kv_scope scope;
    uint32_t pos0, n_tokens, depth, n_uses;
    bool starts_segment, is_registered;
    uint32_t ids[KV_SEGMENT_TOKENS_MAX]; /* [n_tokens] */
};

enum unit_state {
    UNIT_FREE,
    UNIT_SAVING, /* being copied from the device to staging */
    UNIT_SAVED,  /* in staging, to be written */
    UNIT_WRITING,
    UNIT_READING,
    UNIT_READ /* in staging, to be placed */
};

/* For whom a node is read. */
enum read_for {
    READ_FOR_REQUEST, /* that waits */
    READ_AT_START,    /* preload: only free room is taken */
    READ_ADOPTED,     /* another instance hands it over: only the room of what is worth less */
    READ_FOR_LOAN     /* another instance asks for it */
};

struct unit {
    enum unit_state state;
    struct offer what;                  /* of reads: keys and n only */
    void *buffers[NODE_N_BLOCKS_MAX];   /* staging; of reads NULL: that block was placed */
    uint32_t blocks[NODE_N_BLOCKS_MAX]; /* of the slow tier */
    uint64_t save_no;                   /* UNIT_SAVING: the move */
    bool is_stale;                      /* a write whose result nobody wants any more */
    bool is_near; /* of reads: from mapped device memory, into buffers there */
    enum read_for read_for;
    const void *owner; /* of reads: the request that waits */
    uint64_t began_ns;
    double read_s; /* UNIT_READ: time that the read took, per block */
    double due_s;
    uint64_t give_up_ns; /* UNIT_READ: if there is no room by then */
    /* The node that is being copied from staging to memory, over several polls. */
    uint32_t to[NODE_N_BLOCKS_MAX]; /* [n_reserved] blocks of unit_tier() */
    uint32_t at, n_reserved, n_copied;
};

/* A node to be read at start. */
struct preload {
    struct kv_key first;
    uint32_t n_uses, pos0;
    bool is_registered;
};

/* A tier from which nodes are read into memory. */
struct slow_tier {
    enum cache_tier which;
    struct tier *t;
    struct unit *units;  /* [N_UNITS] */
    uint32_t n_reading;  /* blocks of units that read */
    uint64_t timeout_ns; /* of a read; also how long a block that was read waits for room */
    uint64_t n_not_worth;
    uint64_t busy_since_ns, n_busy_bytes; /* to measure the read rate */
    double bytes_per_s;                   /* a moving mean; 0: not measured yet */
};

struct store_disk {
    struct slow_tier slow;
    struct offer *offers;               /* [N_OFFERS] */
    struct offer *offer_ring[N_OFFERS]; /* all of them; those in use begin at first_offer, oldest
                                           first */
    uint32_t first_offer, n_offers;
    uint32_t n_writing;         /* blocks of units that write; room on disk is promised to them */
    uint64_t no_write_until_ns; /* after an error */
    struct preload *preload;    /* [n_preload] */
    uint32_t n_preload, at_preload;
    uint64_t n_preloaded;
    struct cache_disk_stats found; /* by the index at start */
};

/* A path that a waiting request asked the pool for, or that another instance hands over. */
struct lookup {
    bool is_used;    /* the record */
    bool is_found;   /* its nodes have entered the tree */
    bool is_over;    /* the lease has ended, or nothing was found */
    bool is_adopted; /* another instance hands it over */
    bool is_part;    /* of a path that other lookups found: for queries, not in the tree */
    uint32_t ticket; /* POOL_NO_TICKET: forgotten */
    uint32_t n_users;
    uint32_t n_queriers; /* of the users: their queries name the ticket, so it is not forgotten */
    struct pool_found found; /* is_found: the latest answer of pool_look() */
    uint64_t began_ns, until_ns;
    bool is_first_again; /* lookups were left out for their time before this one */
    struct kv_key *keys; /* [n] */
    struct pool_meta *meta;
    uint32_t n;
    uint32_t n_local; /* blocks of the path that were here when the pool was asked */
    uint32_t at;      /* is_adopted: the next block to be read */
};

#define N_BEQUESTS 16

/* Private blocks [from, n) of a path, offered to the instance that has those before them. */
struct bequest {
    bool is_used;
    bool is_over;        /* lent no more; given back when it is not lent */
    struct kv_key *keys; /* [n] */
    uint32_t *blocks;    /* [n - from] */
    uint8_t *n_tokens;   /* [n - from] */
    uint32_t n, from;
    uint32_t n_loans;
    uint64_t until_ns;
};

/* A path that is pinned for another instance. */
struct loan {
    bool is_used;
    struct bequest *bequest; /* NULL: nodes of the tree are lent */
    uint32_t lease;
    uint32_t node;     /* the last one of the path, or KTREE_ROOT */
    uint32_t n_blocks; /* of the path */
    uint32_t n_there;  /* of these, blocks that the peer had */
    bool is_asked;     /* and not answered yet */
    bool was_awaited;  /* the answer waited for the disk, or for blocks that are computed here */
    bool keeps;        /* the peer's copy is the surplus one: kv_store_surplus.c */
    struct pool_ask ask;
    uint64_t disk_until_ns; /* no read from disk for it begins later */
};

/* A path to be offered to other instances. */
struct leaving_path {
    struct kv_key first; /* of its last node */
    uint32_t n_uses;
};

/* CRC32Cs of the device blocks of one loan, which the device computes. */
struct loan_sums {
    bool is_used;   /* for `lease` */
    bool is_failed; /* or not wanted any more */
    uint32_t lease;
    uint32_t n_jobs; /* under way */
    struct loan_job {
        uint32_t job, n;
        uint32_t at[TIER_SUMS_MAX]; /* [n] entries of store_remote.blocks */
    } jobs[POOL_PATH_MAX / TIER_SUMS_MAX];
    uint32_t crc[POOL_PATH_MAX];
};

struct store_remote {
    struct slow_tier slow;
    struct pool *pool;            /* borrowed */
    struct tier_near *near;       /* borrowed; NULL: device memory is not lent */
    struct loan_sums *sums;       /* NULL: the same */
    struct lookup *lookups;       /* [POOL_TICKETS_MAX] */
    uint32_t n_lookups;           /* records in use */
    uint32_t n_nodes;             /* in CACHE_REMOTE */
    struct map coming;            /* first 8 bytes of a block's key -> sequences that compute it */
    struct map hesitant;          /* the same -> those of them that look for it elsewhere now */
    double lookup_s;              /* moving mean of the time of lookups that were found */
    uint32_t n_left_out;          /* lookups since the latest one, for their time */
    double latency_s, s_per_byte; /* of reads, of the latest lookup that was found; 0: not known */
    struct loan loans[POOL_LEASES_MAX];
    uint32_t n_loans;
    uint32_t n_asked;                 /* of these */
    struct kv_key lending[N_LENDING]; /* first keys of nodes that are read for loans */
    uint32_t n_lending;
    uint32_t n_lent[CACHE_N_TIERS]; /* blocks of the nodes that are pinned, by that tier */
    uint64_t no_loan_until_ns;
    bool drains;                  /* no more requests come: private KV is handed over */
    bool leaves;                  /* the pool */
    struct leaving_path *leaving; /* [n_leaving] */
    uint32_t n_leaving, at_leaving;
    uint64_t listed_ns;
    struct bequest bequests[N_BEQUESTS];
    uint32_t n_bequeathed; /* their blocks */
    /* Scratch, [POOL_PATH_MAX]. */
    struct pool_block *blocks;
    struct kv_key *path_keys;
    struct pool_meta *path_meta;
};

static inline bool is_write(const struct unit *u)
{
    return u->state == UNIT_SAVING || u->state == UNIT_SAVED || u->state == UNIT_WRITING;
}

/* The tier into which nodes are read. */
static inline enum cache_tier load_tier(const struct store *st)
{
    return st->n_tiers > 1 ? CACHE_HOST : CACHE_DEVICE;
}

/* The same for a unit: device memory is not copied through the host. */
static inline enum cache_tier unit_tier(const struct store *st, const struct unit *u)
{
    return u->is_near ? CACHE_DEVICE : load_tier(st);
}

/* Take n bytes of this poll's copy budget. False: it is used up. */
static inline bool take_copy_budget(struct store *st, uint64_t n)
{
    if (st->copy_left == 0)
        return false;
    st->copy_left -= n < st->copy_left ? n : st->copy_left;
    return true;
}

/* A free unit, or NULL. */
static inline struct unit *take_unit(struct slow_tier *w)
{
    for (uint32_t i = 0; i < N_UNITS; i++)
        if (w->units[i].state == UNIT_FREE)
            return &w->units[i];
    return NULL;
}

static inline uint64_t unit_tag(const struct slow_tier *w, const struct unit *u)
{
    return (uint64_t)(u - w->units);
}

/* --- kv_store_save.c --- */

/* Offer the node's first n blocks, which were just used, for writing. Unless `must`, only what has
 * been used often enough (min_uses) or is public is taken. */
void disk_offer(struct store *st, uint32_t node, uint32_t n, const struct store_use *use,
                bool must);
void save_write_done(struct store *st, struct unit *u, enum status status);
/* Write what has arrived in staging. */
void save_poll(struct store *st);
/* Begin writes of offers, within the limits of one poll. */
void save_begin(struct store *st);
/* Forget all offers. */
void drop_offers(struct store *st);

/* --- kv_store_load.c --- */

void load_read_done(struct store *st, struct slow_tier *w, struct unit *u, enum status status);
/* Place what has been read from the tier. */
void load_poll(struct store *st, struct slow_tier *w);
/* Preload from disk. */
void load_preload(struct store *st);
/* Begin to read a node that lies in slow tiers only. owner: the waiting request, or NULL. ERR_BUSY:
 * no unit or staging buffer is free now. */
enum status begin_read(struct store *st, uint32_t node, const void *owner, double due_s,
                       enum read_for read_for);

/* --- kv_store_remote.c --- */

enum status init_remote(struct store *st, struct tier *t, struct pool *pool);
void fini_remote(struct store *st);
/* Take answers of the pool, and end lookups that are over. */
void poll_lookups(struct store *st);
/* Remove every remote node from the tree. */
void reset_remote(struct store *st);
/* Enter a path that another instance hands over, under a found ticket, which is taken over. False:
 * not possible. */
bool adopt_lookup(struct store *st, const struct pool_offer *offer);

/* --- kv_store_coming.c --- */

/* Whether a sequence here has promised to compute the block. yields: or may yet find it elsewhere.
 */
bool is_coming(const struct store *st, const struct kv_key *key, bool yields);

/* --- kv_store_bequeath.c --- */

/* The bequest that answers the ask. NULL: there is none. */
struct bequest *find_bequest(struct store *st, const struct pool_ask *ask);
void lend_bequest(struct store *st, struct bequest *b, const struct pool_ask *ask);
void return_bequest(struct bequest *b);
/* Lend none of them again. */
void drop_bequests(struct store *st);
/* Give back the blocks of those that are over. */
void poll_bequests(struct store *st);
void fini_bequests(struct store *st);

/* --- kv_store_surplus.c --- */

/* Whether the copy of a loan's n blocks here goes on behind them, and the peer's does not. */
bool keeps_copy(const struct store *st, const struct loan *l, uint32_t n);
/* The peer has read all of the loan: evict the copy here before all others. */
void demote_pulled(struct store *st, const struct loan *l);
/* Whether prompts part behind the node. */
bool has_branches(const struct store *st, uint32_t node);

/* --- kv_store_lend.c --- */

/* Answer asks of other instances, and end the loans that they give back. */
void poll_loans(struct store *st);
void poll_news(struct store *st);
/* Take offers of instances that leave, and make those of this one if it leaves. */
void poll_offers(struct store *st);
/* Whether another instance has the node's KV, too: its price in the policy follows. */
void set_replica(struct store *st, uint32_t node, bool is_replica);

/* --- kv_store_near.c --- */

/* Take checksums that the device has computed. */
void poll_sums(struct store *st);
/* Fill in the checksums of the loan's blocks [n_there, *n) in store_remote.blocks that lie in
 * device memory. False: not yet. *n is 0 when the device failed to compute them. */
bool fill_sums(struct store *st, const struct loan *l, uint32_t *n);
bool awaits_sums(const struct store *st, const struct loan *l);
/* The loan is answered without them. */
void drop_sums(struct store *st, const struct loan *l);
void fini_near(struct store *st);

/* --- kv_store_index.c --- */

/* Enter the records of the disk into the tree, at start. */
enum status store_index_disk(struct store *st, struct buf *why);

#endif
