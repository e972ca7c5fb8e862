/* disk_verify.h - a directory of the disk tier checked offline: is what it says still true?
 *
 * Every header is decoded and its key computed again; each path is followed to its start; two
 * records of one key are found; and every payload is read and its checksum taken. Nothing is
 * written, and no lock is held while it is read.
 *
 * A server may be running on the directory. What it changes between two looks is counted apart,
 * but the table was not read in one moment: orphaned and doubled records may then be false alarms,
 * and a server that started in the middle may have caused any of the others.
 *
 * Each extent counts once: as empty, good, changed, or by the worst fault that it has. After
 * SIGKILL there may be orphaned and doubled records, and some that are being erased: they do no
 * harm, the next start of a server frees them. All other faults are damage.
 *
 * Owns    nothing after it has returned.
 * Thread  any; no state.
 * Errors  words that name the path. ERR_NOT_FOUND, ERR_IO, ERR_NOMEM: it could not be looked at.
 *         ERR_UNSUPPORTED: another format version. ERR_CORRUPT: its superblock does not hold, so
 *         nothing in it can be used.
 * Units   bytes, extents. */
#ifndef TARN_CACHE_DISK_DISK_VERIFY_H
#define TARN_CACHE_DISK_DISK_VERIFY_H

#include "cache/disk/disk_format.h"

/* The worst first. */
enum disk_fault {
    DISK_FAULT_UNREADABLE, /* a valid header, but its extent: an I/O error, or the file ends */
    DISK_FAULT_PAYLOAD,    /* the same, but the payload's checksum does not hold */
    DISK_FAULT_TORN,       /* these four: enum disk_verdict */
    DISK_FAULT_FOREIGN,
    DISK_FAULT_IMPOSSIBLE,
    DISK_FAULT_MISNAMED,
    DISK_FAULT_DOUBLED,  /* there is a newer record of the same key */
    DISK_FAULT_ORPHANED, /* a block before it in its path is missing, or does not fit */
    DISK_FAULT_ERASING,  /* a record that was erased; its payload may still be there */
    DISK_N_FAULTS
};
const char *disk_fault_name(enum disk_fault f);
/* The last three: they take place, and nothing else. A kill leaves such. */
static inline bool disk_fault_is_harmless(enum disk_fault f)
{
    return f >= DISK_FAULT_DOUBLED;
}

#define DISK_REPORT_PLACES_MAX 32u

struct disk_report {
    struct disk_super super;
    bool is_in_use; /* a server had it locked, at the beginning or at the end */
    uint32_t n_empty, n_good, n_changed, n_by_fault[DISK_N_FAULTS]; /* sum: super.n_extents */
    uint32_t n_registered;                                          /* of the good ones */
    uint64_t n_tokens;                                              /* in the good ones */
    uint64_t n_file_bytes;  /* of table and data together, as the superblock says */
    uint64_t n_stray_bytes; /* behind the last header that are not zero, and behind either file's
                               end as the superblock says it: nobody reads them */
    uint32_t n_places;      /* the first faults by extent number, harmless ones too */
    struct disk_place {
        uint32_t extent;
        enum disk_fault fault;
    } places[DISK_REPORT_PLACES_MAX];
};
/* Faults that are not harmless. */
uint32_t disk_report_n_damaged(const struct disk_report *r);

struct disk_verify_watch {
    /* While payloads are read; n_done == n_all at the end. */
    void (*progress)(void *arg, uint64_t n_done_bytes, uint64_t n_all_bytes);
    void *arg;
};

/* dir: the one with `table` in it. watch may be NULL. */
NODISCARD enum status disk_verify(struct disk_report *out, const char *dir,
                                  const struct disk_verify_watch *watch, struct buf *why);

/* What to check at a path: itself if there is a table in it, else all in it that are named like
 * directories of the disk tier, of whatever version, in the order of their names. */
struct disk_dirs {
    char **paths; /* [n] */
    uint32_t n;
};
/* ERR_NOT_FOUND: there is none. */
NODISCARD enum status disk_dirs_find(struct disk_dirs *out, const char *path, struct buf *why);
void disk_dirs_fini(struct disk_dirs *d); /* zeroed is fine */

#endif
