/* kv_store_disk.h - what the store decides about the disk tier: what is written, what is read, in
 * which order. Included by cache/store/ only. The bytes are moved by the tier (tier.h).
 *
 * A node on disk has a parent on disk: it is written after its parent and evicted before it, which
 * the policy's order of the tier guarantees. A node that lies on disk only must be read into memory
 * before a sequence can use it: to the host where there is a host tier, else to the device.
 *
 * An offer is a node that the store wants to write: it was used often enough, and its token ids are
 * known. A unit is one write or read under way. Units name blocks by key, not by node: while a unit
 * is under way its nodes may be split, evicted or computed again. What a unit brings is placed only
 * where the tree still lacks it.
 *
 * Owns    offers and units.
 * Thread  engine thread only.
 * Errors  as kv_store.h.
 * Units   as kv_store.h. */
#ifndef TARN_CACHE_STORE_KV_STORE_DISK_H
#define TARN_CACHE_STORE_KV_STORE_DISK_H

#include "cache/store/kv_store_inner.h"
#include "cache/tier/tier.h"

#define N_OFFERS 256
#define N_DISK_UNITS 64
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

struct unit {
    enum unit_state state;
    struct offer what;                  /* of reads: keys and n only */
    void *buffers[NODE_N_BLOCKS_MAX];   /* staging; of reads NULL: that block was placed */
    uint32_t blocks[NODE_N_BLOCKS_MAX]; /* of the disk tier */
    uint64_t save_no;                   /* UNIT_SAVING: the move */
    bool is_stale;                      /* a write whose result nobody wants any more */
    bool is_preload;
    const void *owner; /* of reads: the request that waits */
    double due_s;
    uint64_t give_up_ns; /* UNIT_READ: if there is no room by then */
    /* The node that is being copied from staging to memory, over several polls. */
    uint32_t to[NODE_N_BLOCKS_MAX]; /* [n_reserved] blocks of load_tier() */
    uint32_t at, n_reserved, n_copied;
};

/* A node to be read at start. */
struct preload {
    struct kv_key first;
    uint32_t n_uses, pos0;
    bool is_registered;
};

struct store_disk {
    struct tier *t;
    struct offer *offers;               /* [N_OFFERS] */
    struct offer *offer_ring[N_OFFERS]; /* all of them; those in use begin at first_offer, oldest
                                           first */
    uint32_t first_offer, n_offers;
    struct unit *units;         /* [N_DISK_UNITS] */
    uint32_t n_writing;         /* blocks of units that write; room on disk is promised to them */
    uint32_t n_reading;         /* blocks of units that read */
    uint64_t copy_left;         /* of COPY_BYTES_PER_POLL in this poll */
    const void *first;          /* the first of the waiting requests: store_load_first() */
    uint64_t no_write_until_ns; /* after an error */
    struct preload *preload;    /* [n_preload] */
    uint32_t n_preload, at_preload;
    uint64_t n_preloaded, n_not_worth;
    uint64_t busy_since_ns, n_busy_bytes; /* to measure the read rate */
    double bytes_per_s;
    struct cache_disk_stats found; /* by the index at start */
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

/* Take n bytes of this poll's copy budget. False: it is used up. */
static inline bool take_copy_budget(struct store_disk *d, uint64_t n)
{
    if (d->copy_left == 0)
        return false;
    d->copy_left -= n < d->copy_left ? n : d->copy_left;
    return true;
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
/* A free unit, or NULL. */
struct unit *take_unit(struct store_disk *d);
uint64_t unit_tag(const struct store_disk *d, const struct unit *u);

/* --- kv_store_load.c --- */

void load_read_done(struct store *st, struct unit *u, enum status status);
/* Place what has been read, then begin to preload. */
void load_poll(struct store *st);

/* --- kv_store_index.c --- */

/* Enter the records of the disk into the tree, at start. */
enum status store_index_disk(struct store *st, struct buf *why);

#endif
