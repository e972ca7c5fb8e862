/* kv_store_disk.h - the store's disk tier: what is written, read, evicted; only kv_store*.c include
 * it.
 *
 * A node on disk has a parent on disk: it is written after it, and evicted before it (the policy's
 * order of the tier sees to that). A node that lies on disk only is brought to memory before
 * anybody can use it: to the host where there is a host tier, else to the device.
 *
 * Offers are what the store would like to have written: nodes that were used often enough, with the
 * ids that their records name. Units are what is under way, by keys: nodes may be split, evicted or
 * computed again meanwhile, and what a unit brings is placed where the tree still wants it.
 *
 * Owns    the disk (disk.h), staging memory, offers, units.
 * Thread  engine thread only.
 * Errors  as kv_store.h.
 * Units   as kv_store.h. */
#ifndef TARN_CACHE_STORE_KV_STORE_DISK_H
#define TARN_CACHE_STORE_KV_STORE_DISK_H

#include "cache/disk/disk.h"
#include "cache/store/kv_store_inner.h"

#define N_OFFERS 256
#define N_DISK_UNITS 64

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
    UNIT_SAVING, /* is copied from the device to staging */
    UNIT_SAVED,  /* lies in staging, to be written */
    UNIT_WRITING,
    UNIT_READING,
    UNIT_READ /* lies in staging, to be placed */
};

struct unit {
    enum unit_state state;
    struct offer what; /* of reads: keys and n only */
    uint32_t slots[NODE_N_BLOCKS_MAX], extents[NODE_N_BLOCKS_MAX];
    bool is_stale; /* what it writes is not wanted any more */
    bool is_preload;
    const void *owner; /* of reads: who waits for it */
    double due_s;
    uint64_t give_up_ns; /* UNIT_READ: if it has no place by then */
};

/* A node to be read at start. */
struct preload {
    struct kv_key first;
    uint32_t n_uses, pos0;
    bool is_registered;
};

struct disk_tier {
    struct disk *disk;
    void *staging_memory;
    unsigned char *staging; /* [n_slots][extent_bytes] in that, at a page's beginning */
    uint64_t extent_bytes;
    uint32_t n_slots;
    uint32_t n_capacity;  /* extents that the policy fills; the rest is on its way out */
    struct offer *offers; /* [N_OFFERS] */
    struct offer *offer_ring[N_OFFERS]; /* all of them; those in use from first_offer on, oldest
                                           first */
    uint32_t first_offer, n_offers;
    struct unit *units;  /* [N_DISK_UNITS] */
    uint32_t n_writing;  /* blocks of units that write: their room is promised */
    uint32_t n_reading;  /* blocks of units that read */
    uint32_t n_clearing; /* extents whose record is being cleared */
    const void *first;   /* of those who wait: store_load_first() */
    uint64_t n_load_events;
    uint64_t no_write_until_ns; /* after an error */
    struct preload *preload;    /* [n_preload] */
    uint32_t n_preload, at_preload;
    uint64_t n_preloaded, n_not_worth;
    uint64_t busy_since_ns, n_busy_bytes; /* of reads: to measure the disk's rate */
    double bytes_per_s;
    struct cache_disk_stats found; /* by the index */
};

/* --- kv_store_disk.c: life, offers and writes, leaving --- */

/* Opens the directory; st->tier[CACHE_DISK] is ready. The tree is not there yet. */
enum status disk_tier_open(struct store *st, struct buf *why);
/* A disk that hangs keeps its staging memory for ever. */
void disk_tier_close(struct store *st);
uint32_t disk_tier_capacity(const struct store *st);
/* The node's first n blocks were used: they may be worth writing. `must`: whatever their uses. */
void disk_offer(struct store *st, uint32_t node, uint32_t n, const struct store_use *use,
                bool must);
void disk_tier_poll(struct store *st);
bool disk_tier_is_busy(const struct store *st);
/* The transfer of a unit that was being saved is done. */
void unit_saved(struct store *st, const uint32_t *slots);
/* The node's copy on disk goes; nothing below it lies there. True: the node is gone. */
bool leave_disk(struct store *st, uint32_t node, bool erase);
/* The node's copy on disk goes, and all below it. The node may be gone then. */
void drop_disk_below(struct store *st, uint32_t node, bool erase);
void disk_tier_reset(struct store *st);
void disk_tier_stats(const struct store *st, struct cache_disk_stats *out);
void disk_tier_check(const struct store *st);
/* A unit that is free, or NULL. */
struct unit *take_unit(struct disk_tier *d);
uint64_t unit_tag(const struct disk_tier *d, const struct unit *u);

/* --- kv_store_load.c: reads --- */

void load_read_done(struct store *st, struct unit *u, const struct disk_done *done);
/* What was read and waits for its place; then what is to be preloaded. */
void load_poll(struct store *st);

/* --- kv_store_index.c --- */

/* Enters the directory's records into the tree. */
enum status disk_tier_index(struct store *st, struct buf *why);

#endif
