/* disk.h - asynchronous reads and writes of blocks in a directory of the disk tier.
 *
 * A unit is one read or write of up to DISK_UNIT_BLOCKS_MAX blocks. Payloads pass through staging:
 * slots of one extent each, in memory of the caller (pinned for a GPU). A write first writes the
 * payloads and, when all of them are on the disk, the headers; it is done after that, so a record
 * is either complete or absent. An extent whose header is being cleared becomes free only when the
 * table on the disk says so. Headers are changed in memory and written as whole pages, with one
 * write per page at a time.
 *
 * An extent is erased in three writes: a mark as its header, zeros over its payload, zeros as its
 * header. If the process ends in between, no record is left, and the mark tells the next process
 * that part of the payload may remain (no valid header: it is cleared like any other).
 *
 * The deadline of a unit counts from its call. A unit that has not ended by then is given up: it is
 * done with ERR_TIMEOUT, and the disk keeps its slots and extents until the kernel no longer uses
 * them. Until then the disk is hung and accepts no unit.
 *
 * Owns    the directory (disk_dir.h), the list of free slots, units under way. Not the staging
 *         memory.
 * Thread  engine thread only; opened and closed while no engine thread runs.
 * Errors  of a unit: disk_done.status. ERR_IO (errno is in `error`), ERR_CORRUPT (a checksum),
 *         ERR_TIMEOUT. After a failed write the parts that are on the disk are cleared.
 * Units   blocks; times of clock_now_ns(). */
#ifndef TARN_CACHE_DISK_DISK_H
#define TARN_CACHE_DISK_DISK_H

#include "base/aio.h"
#include "cache/disk/disk_dir.h"

#define DISK_UNIT_BLOCKS_MAX (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)

struct disk;

struct disk_config {
    struct disk_dir_config dir;
    void *staging;       /* [n_slots][extent_bytes], page-aligned; outlives the disk */
    uint32_t n_slots;    /* at least DISK_UNIT_BLOCKS_MAX; a write zeroes the bytes of a slot
                            beyond block_bytes */
    uint64_t timeout_ns; /* of a unit */
    enum aio_backend backend;
};

NODISCARD enum status disk_open(struct disk **out, const struct disk_config *config,
                                struct buf *why);
/* Wait for what is under way, until the deadline. ERR_TIMEOUT: the kernel may still write into the
 * staging memory, which must never be freed. NULL is fine. The handle is gone either way. */
enum status disk_close(struct disk *d, uint64_t deadline_ns);

const struct disk_dir *disk_directory(const struct disk *d);
/* Decode the header of an extent in the table in memory, as disk_header_decode() does. */
enum disk_verdict disk_look(struct disk *d, uint32_t extent, struct disk_record *out);
/* "io_uring" or "threads" */
const char *disk_io_name(const struct disk *d);

/* --- staging --- */

uint32_t disk_n_free_slots(const struct disk *d);
/* All or nothing: false when fewer are free. The slots ascend and are adjacent if possible:
 * adjacent slots to adjacent extents are one request. */
bool disk_take_slots(struct disk *d, uint32_t *slots, uint32_t n);
void disk_give_slots(struct disk *d, const uint32_t *slots, uint32_t n);

/* --- units --- */

/* Read extents [n] into slots [n] of disk_take_slots(). The extents may be cleared and written
 * again meanwhile: the new payload then fails the expected checksum. If the unit is done with OK,
 * the payloads are as they were written and the slots are the caller's; else the disk gives the
 * slots back by itself as soon as it can. ERR_BUSY: too many units, or the disk is hung; the slots
 * are still the caller's. */
NODISCARD enum status disk_read(struct disk *d, const uint32_t *extents, const uint32_t *slots,
                                uint32_t n, uint64_t tag);
/* Write slots [n], which the disk then gives back by itself, to extents [n], with records [n].
 * Their payload_crc and `no` are filled in here (`no` continues from the largest that disk_look()
 * saw, so look at all extents first). The extents hold no DISK_VALID record and have nothing under
 * way. If the unit is done with OK, the records are on the disk; else each extent is reported by a
 * DISK_CLEARED of its own, now or later. ERR_BUSY: as above. */
NODISCARD enum status disk_write(struct disk *d, const struct disk_record *records,
                                 const uint32_t *extents, const uint32_t *slots, uint32_t n,
                                 uint64_t tag);
/* Remove the records of extents [n], none of which is being written or cleared. DISK_CLEARED
 * reports each extent that may be written again. erase: overwrite the payload with zeros before
 * that; the next process finishes this if this one ends. Never fails: a write that fails is tried
 * again a little later. */
void disk_clear(struct disk *d, const uint32_t *extents, uint32_t n, bool erase);

enum disk_event { DISK_READ_DONE, DISK_WRITE_DONE, DISK_CLEARED };

struct disk_done {
    enum disk_event event;
    enum status status;
    int error;    /* errno of the failure, or 0 */
    uint64_t tag; /* the caller's name of the unit */
    uint32_t n;   /* blocks of the unit; 1 for DISK_CLEARED */
    uint32_t extents[DISK_UNIT_BLOCKS_MAX];
    uint32_t slots[DISK_UNIT_BLOCKS_MAX]; /* DISK_READ_DONE with OK: now the caller's */
    uint64_t took_ns;                     /* time since the unit's call */
};

/* Report at most n_max units and clears that ended by now_ns, units first, and begin what was
 * waiting. Never waits. The checksums of reads are computed here. */
uint32_t disk_poll(struct disk *d, uint64_t now_ns, struct disk_done *out, uint32_t n_max);
/* Whether something is under way or waiting to begin: poll again. */
bool disk_is_busy(const struct disk *d);
/* Whether something was under way beyond its deadline at the last disk_poll(). */
bool disk_is_hung(const struct disk *d);

struct disk_stats {
    uint64_t n_read_bytes, n_written_bytes;                          /* of payload */
    uint64_t n_reads_failed, n_writes_failed, n_timeouts, n_corrupt; /* units, each in one */
    uint64_t memory_bytes; /* of the table and the bookkeeping; not of the staging */
};
void disk_stats(const struct disk *d, struct disk_stats *out);

#endif
