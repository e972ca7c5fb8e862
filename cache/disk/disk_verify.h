/* disk_verify.h - check a directory of the disk tier offline.
 *
 * The check decodes every header and computes its key again, follows each path to its start, finds
 * records of equal keys, and reads every payload and compares its checksum. It writes nothing and
 * holds no lock.
 *
 * A server may use the directory meanwhile. Records that change between two reads are counted
 * separately. But the table is not read at one moment, so orphaned and doubled records may be false
 * alarms then, and a server that starts during the check may cause any other fault.
 *
 * Each extent counts once: as empty, good, changed, or by its worst fault. After SIGKILL there may
 * be orphaned and doubled records and unfinished erasures. They are harmless: the next start of a
 * server frees them. All other faults are damage.
 *
 * Owns    nothing after it has returned.
 * Thread  any; no state.
 * Errors  words that name the path. ERR_NOT_FOUND, ERR_IO, ERR_NOMEM: it could not be checked.
 *         ERR_UNSUPPORTED: another format version. ERR_CORRUPT: the superblock is invalid, so
 *         nothing in the directory can be used.
 * Units   bytes, extents. */
#ifndef TARN_CACHE_DISK_DISK_VERIFY_H
#define TARN_CACHE_DISK_DISK_VERIFY_H

#include "cache/disk/disk_format.h"

/* The worst first. */
enum disk_fault {
    DISK_FAULT_UNREADABLE, /* a valid header, but the extent has an I/O error or is cut off */
    DISK_FAULT_PAYLOAD,    /* a valid header, but a wrong checksum of the payload */
    DISK_FAULT_TORN,       /* these four: enum disk_verdict */
    DISK_FAULT_FOREIGN,
    DISK_FAULT_IMPOSSIBLE,
    DISK_FAULT_MISNAMED,
    DISK_FAULT_DOUBLED,  /* there is a newer record of the same key */
    DISK_FAULT_ORPHANED, /* an earlier block of its path is missing or does not fit */
    DISK_FAULT_ERASING,  /* an unfinished erasure; part of the payload may remain */
    DISK_N_FAULTS
};
const char *disk_fault_name(enum disk_fault f);
/* The last three, which only take room. A kill leaves such faults. */
static inline bool disk_fault_is_harmless(enum disk_fault f)
{
    return f >= DISK_FAULT_DOUBLED;
}

#define DISK_REPORT_PLACES_MAX 32u

struct disk_report {
    struct disk_super super;
    bool is_in_use; /* a server held the lock at the beginning or at the end of the check */
    uint32_t n_empty, n_good, n_changed, n_by_fault[DISK_N_FAULTS]; /* sum: super.n_extents */
    uint32_t n_registered;                                          /* of the good ones */
    uint64_t n_tokens;                                              /* in the good ones */
    uint64_t n_file_bytes;  /* of table and data together, as the superblock says */
    uint64_t n_stray_bytes; /* bytes that no server reads: nonzero ones behind the last header, and
                               those behind the end of either file by the superblock */
    uint32_t n_places;      /* the first faults by extent number, harmless ones too */
    struct disk_place {
        uint32_t extent;
        enum disk_fault fault;
    } places[DISK_REPORT_PLACES_MAX];
};
/* Faults that are not harmless. */
uint32_t disk_report_n_damaged(const struct disk_report *r);

struct disk_verify_watch {
    /* Called while payloads are read; n_done_bytes == n_all_bytes at the end. */
    void (*progress)(void *arg, uint64_t n_done_bytes, uint64_t n_all_bytes);
    void *arg;
};

/* dir: the directory that contains `table`. watch may be NULL. */
NODISCARD enum status disk_verify(struct disk_report *out, const char *dir,
                                  const struct disk_verify_watch *watch, struct buf *why);

/* The directories to check at a path: the path itself if it contains a table, else all directories
 * in it that are named like those of the disk tier, of any version, sorted by name. */
struct disk_dirs {
    char **paths; /* [n] */
    uint32_t n;
};
/* ERR_NOT_FOUND: there is none. */
NODISCARD enum status disk_dirs_find(struct disk_dirs *out, const char *path, struct buf *why);
void disk_dirs_fini(struct disk_dirs *d); /* zeroed is fine */

#endif
