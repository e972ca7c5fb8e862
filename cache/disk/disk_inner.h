/* disk_inner.h - what disk.c, disk_unit.c and disk_table.c share; included by these only.
 *
 * disk.c        open, close, staging, what is handed out
 * disk_unit.c   units: payloads, checksums, deadlines
 * disk_table.c  headers, their pages, clearing and erasing
 *
 * Every request to the queue is an `op`. Its slots, pages and extents stay reserved until the op
 * has ended, however long that takes, so a late op never touches memory or extents of another unit.
 *
 * Owns    see disk.h.
 * Thread  as disk.h.
 * Errors  as disk.h.
 * Units   as disk.h. */
#ifndef TARN_CACHE_DISK_DISK_INNER_H
#define TARN_CACHE_DISK_DISK_INNER_H

#include "cache/disk/disk.h"

#define DISK_NONE UINT32_MAX
#define DISK_N_UNITS 64u
#define DISK_N_BOUNCE 32u /* pages of headers under way */
#define DISK_N_ERASING 4u /* extents being overwritten with zeros at a time */
/* A write that failed is tried again so much later. */
#define DISK_RETRY_NS UINT64_C(100000000)

/* --- lists of numbers, linked by an array beside them --- */

struct disk_list {
    uint32_t first, last;
};

static inline void disk_list_push(struct disk_list *l, uint32_t *next, uint32_t i)
{
    next[i] = DISK_NONE;
    if (l->first == DISK_NONE)
        l->first = i;
    else
        next[l->last] = i;
    l->last = i;
}

static inline uint32_t disk_list_pop(struct disk_list *l, const uint32_t *next)
{
    uint32_t i = l->first;

    if (i != DISK_NONE)
        l->first = next[i];
    return i;
}

/* Append all of `from` to `to`, and empty `from`. */
static inline void disk_list_move(struct disk_list *to, struct disk_list *from, uint32_t *next)
{
    for (uint32_t i; (i = disk_list_pop(from, next)) != DISK_NONE;)
        disk_list_push(to, next, i);
}

/* --- requests under way --- */

enum disk_op_kind { DISK_OP_PAYLOAD, DISK_OP_PAGE, DISK_OP_ERASE };

struct disk_op {
    enum disk_op_kind kind;
    uint32_t index;  /* unit, page or extent */
    uint32_t bounce; /* of a page */
    uint64_t began_ns;
    bool is_used;
    bool is_late; /* beyond its deadline */
};

/* --- units --- */

enum disk_unit_state {
    DISK_UNIT_FREE,
    DISK_UNIT_WAITING, /* waits for room in the queue */
    DISK_UNIT_PAYLOAD, /* payloads are under way */
    DISK_UNIT_HEADERS, /* of a write: the payloads are on the disk, headers are under way */
    DISK_UNIT_DONE,    /* waits to be reported */
    DISK_UNIT_GIVEN_UP /* past its deadline with requests under way; reported or not */
};

/* Blocks with adjacent extents and adjacent slots: one request. */
struct disk_run {
    uint8_t first, n;
};

struct disk_unit {
    enum disk_unit_state state;
    bool is_write;
    bool is_reported;
    enum status status;
    int error;
    uint64_t tag, began_ns, took_ns;
    uint32_t n, n_runs;
    uint32_t n_pending; /* requests under way; in DISK_UNIT_HEADERS: headers not on the disk yet */
    uint32_t extents[DISK_UNIT_BLOCKS_MAX], slots[DISK_UNIT_BLOCKS_MAX];
    uint32_t crc[DISK_UNIT_BLOCKS_MAX]; /* of a read: the expected checksums */
    struct disk_run runs[DISK_UNIT_BLOCKS_MAX];
    uint8_t headers[DISK_UNIT_BLOCKS_MAX][DISK_HEADER_BYTES]; /* of a write */
};

/* --- extents --- */

/* _OUT: a copy of the extent's header page is being written with this state. */
enum disk_extent_state {
    DISK_EXTENT_IDLE,    /* a record or none; the tables in memory and on the disk agree */
    DISK_EXTENT_PAYLOAD, /* its payload is being written; no header yet */
    DISK_EXTENT_HEADER,
    DISK_EXTENT_HEADER_OUT,
    DISK_EXTENT_WRITTEN, /* its header is on the disk, others of its unit are not yet */
    DISK_EXTENT_MARK,
    DISK_EXTENT_MARK_OUT, /* to be erased: the mark is written first */
    DISK_EXTENT_ERASE,    /* zeros over the payload are waiting or under way */
    DISK_EXTENT_CLEAR,
    DISK_EXTENT_CLEAR_OUT, /* a header of zeros is to be written */
    DISK_EXTENT_CLEARED    /* waits to be reported */
};

enum { DISK_PAGE_DIRTY = 1, DISK_PAGE_OUT = 2 };

enum { DISK_SLOT_FREE, DISK_SLOT_TAKEN, DISK_SLOT_IN_UNIT };

struct disk {
    struct disk_dir dir;
    struct disk_reader reader;
    struct aio *aio;
    uint8_t *staging;
    uint64_t timeout_ns, now_ns;
    uint64_t next_no;
    struct disk_stats stats;

    uint8_t *slots; /* [n_slots] */
    uint32_t n_slots, n_free_slots;

    struct disk_op *ops; /* [n_ops] */
    uint32_t *free_ops;  /* [n_ops] stack */
    uint32_t n_ops, n_free_ops;
    uint32_t n_late; /* ops */

    struct disk_unit *units; /* [DISK_N_UNITS] */
    uint32_t unit_next[DISK_N_UNITS];
    struct disk_list free_units, waiting_reads, waiting_writes, done_units;
    uint32_t n_units; /* not free */

    uint8_t *extents; /* [n_extents] enum disk_extent_state */
    /* [n_extents] next extent in a list; in _HEADER, _HEADER_OUT and _WRITTEN: the unit. */
    uint32_t *extent_next;
    struct disk_list to_erase, failed_erases, cleared;
    uint8_t *zeros; /* [extent_bytes] */
    uint32_t n_erasing;

    uint8_t *pages;      /* [n_pages] DISK_PAGE_DIRTY, DISK_PAGE_OUT */
    uint32_t *page_next; /* [n_pages] */
    struct disk_list dirty_pages, failed_pages;
    uint8_t *bounce; /* [DISK_N_BOUNCE][DISK_PAGE_BYTES] copies of pages being written, which must
                        not change */
    uint32_t free_bounce[DISK_N_BOUNCE], n_free_bounce;
    uint64_t retry_ns; /* when failed writes are tried again */
};

static inline uint8_t *disk_header_at(struct disk *d, uint32_t extent)
{
    return d->dir.table + DISK_PAGE_BYTES + (size_t)extent * DISK_HEADER_BYTES;
}

static inline uint8_t *disk_slot_at(struct disk *d, uint32_t slot)
{
    return d->staging + (size_t)slot * d->dir.super.extent_bytes;
}

/* --- disk.c --- */

/* Take an op; the caller has set kind, index and bounce. DISK_NONE: there is none. */
uint32_t disk_op_take(struct disk *d, struct disk_op op);
void disk_op_give(struct disk *d, uint32_t i);
void disk_op_is_late(struct disk *d, struct disk_op *op);
void disk_release_slots(struct disk *d, const struct disk_unit *u);

/* --- disk_unit.c --- */

void disk_units_begin(struct disk *d); /* begin waiting units */
void disk_unit_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done);
/* A header of the unit was written, with this status. */
void disk_unit_header_done(struct disk *d, uint32_t unit, enum status status, int error);
void disk_units_expire(struct disk *d);
/* Report a finished unit. False: there is none. */
bool disk_unit_report(struct disk *d, struct disk_done *out);

/* --- disk_table.c --- */

/* Put the unit's headers into the table. */
void disk_table_commit(struct disk *d, uint32_t unit);
/* Clear an extent of a failed unit, with or without a header in the table. */
void disk_table_take_back(struct disk *d, uint32_t extent);
void disk_table_begin(struct disk *d);
void disk_page_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done);
void disk_erase_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done);
bool disk_cleared_report(struct disk *d, struct disk_done *out);

#endif
