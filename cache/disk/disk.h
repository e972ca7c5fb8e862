/* disk.h - blocks to disk and back, many under way, none waited for; knows no tree.
 *
 * A unit is up to DISK_UNIT_BLOCKS_MAX blocks that go together. Payloads pass through staging:
 * slots of one extent each, in memory of the caller's (pinned beside a GPU). Of a write the
 * payloads go first; when all of them are there, the headers; only then it is done, so a record is
 * complete or not there. An extent whose header is being cleared is free only when the table on the
 * disk says so. Headers are changed in memory and written by whole pages, one write of a page at a
 * time.
 *
 * An extent is erased by a mark in its header, zeros over its payload, then a header of zeros: what
 * ends the process in between leaves no record, and what is left of the payload is known by the
 * mark (no valid header: to be cleared like any other).
 *
 * A deadline counts from the beginning of a unit, its call. What has not ended by then is given up:
 * the unit is done with ERR_TIMEOUT, and its slots and extents stay with the disk until the kernel
 * has let go of them. Meanwhile the disk is hung, and takes nothing new.
 *
 * Owns    the directory (disk_dir.h), free slots, what is under way. Not the staging memory.
 * Thread  engine thread only; opened and closed by whoever has no engine thread beside it.
 * Errors  of a unit: disk_done.status. ERR_IO (errno is in `error`), ERR_CORRUPT (a checksum),
 *         ERR_TIMEOUT. Of a write: what of it is on the disk then is being cleared.
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
    uint32_t n_slots;    /* at least DISK_UNIT_BLOCKS_MAX; a write zeroes what they have
                            beyond block_bytes */
    uint64_t timeout_ns; /* of a unit */
    enum aio_backend backend;
};

NODISCARD enum status disk_open(struct disk **out, const struct disk_config *config,
                                struct buf *why);
/* Ends what is under way, as far as it ends by then. ERR_TIMEOUT: the kernel may still write into
 * the staging memory, which must stay for ever. NULL is fine. The handle is gone either way. */
enum status disk_close(struct disk *d, uint64_t deadline_ns);

const struct disk_dir *disk_directory(const struct disk *d);
/* What the table in memory says of an extent; as disk_header_decode(). */
enum disk_verdict disk_look(struct disk *d, uint32_t extent, struct disk_record *out);
/* "io_uring" or "threads" */
const char *disk_io_name(const struct disk *d);

/* --- staging --- */

uint32_t disk_n_free_slots(const struct disk *d);
/* All or nothing: false when there are fewer. Ascending, and in a row where there is one: adjacent
 * slots to adjacent extents go as one request. */
bool disk_take_slots(struct disk *d, uint32_t *slots, uint32_t n);
void disk_give_slots(struct disk *d, const uint32_t *slots, uint32_t n);

/* --- units --- */

/* extents [n] into slots [n], of disk_take_slots(). They may be cleared meanwhile, and written
 * again: what is there then does not have the checksum that is expected. When it is done with OK
 * the payloads are there and as they were written, and the slots are the caller's; else the disk
 * gives them back by itself, as soon as it can. ERR_BUSY: too much under way, or the disk is hung;
 * the slots are still the caller's. */
NODISCARD enum status disk_read(struct disk *d, const uint32_t *extents, const uint32_t *slots,
                                uint32_t n, uint64_t tag);
/* slots [n], which the disk gives back by itself, to extents [n]; records [n], whose payload_crc
 * and `no` are filled in here (`no` goes on from what disk_look() saw: look at all first). Extents
 * hold no record that is DISK_VALID, and nothing is under way for them. When it is done with OK the
 * records are on the disk. When not, each extent comes back by a DISK_CLEARED of its own, now or
 * later. ERR_BUSY: as above. */
NODISCARD enum status disk_write(struct disk *d, const struct disk_record *records,
                                 const uint32_t *extents, const uint32_t *slots, uint32_t n,
                                 uint64_t tag);
/* Their records are no more; DISK_CLEARED says when each may be written again. erase: their payload
 * is overwritten with zeros before that; also if the process that was to erase it ended. None of
 * them is being written or cleared. Never fails: what cannot be written is tried again a little
 * later, and the extent comes back then. */
void disk_clear(struct disk *d, const uint32_t *extents, uint32_t n, bool erase);

enum disk_event { DISK_READ_DONE, DISK_WRITE_DONE, DISK_CLEARED };

struct disk_done {
    enum disk_event event;
    enum status status;
    int error;    /* errno behind it; 0 */
    uint64_t tag; /* of a unit */
    uint32_t n;   /* blocks of the unit; 1 of DISK_CLEARED */
    uint32_t extents[DISK_UNIT_BLOCKS_MAX];
    uint32_t slots[DISK_UNIT_BLOCKS_MAX]; /* of DISK_READ_DONE with OK: the caller's */
    uint64_t took_ns;                     /* of a unit, from its beginning */
};

/* What has ended by now_ns, at most n_max of it, units first; begins what was waiting. Never waits.
 * The checksums of a read are computed in here. */
uint32_t disk_poll(struct disk *d, uint64_t now_ns, struct disk_done *out, uint32_t n_max);
/* Something is under way, or waits to be: poll again. */
bool disk_is_busy(const struct disk *d);
/* Something is under way beyond its deadline, as disk_poll() saw last. */
bool disk_is_hung(const struct disk *d);

struct disk_stats {
    uint64_t n_read_bytes, n_written_bytes;                          /* of payload */
    uint64_t n_reads_failed, n_writes_failed, n_timeouts, n_corrupt; /* units, each in one */
    uint64_t memory_bytes; /* of the table and what is under way; not the staging */
};
void disk_stats(const struct disk *d, struct disk_stats *out);

#endif
