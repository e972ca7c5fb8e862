/* disk_dir.h - a directory of the disk tier: found or made, locked, within its size, its table
 * read.
 *
 * PATH/                        --kv-disk-path, 0700
 *   <64 hex digits>-v1/        the fingerprint and DISK_FORMAT_VERSION, 0700
 *     lock                     of the server that uses the directory: its pid, and when it began
 *     table, data              disk_format.h; 0600, allocated in full
 *
 * All three files are flock()ed while a server runs: its last requests hold them for as long as
 * they live, which may be longer than it. While one begins, PATH itself is.
 *
 * The file system keeps 5 percent of its size free, at most 1 GiB. A bound that does not leave that
 * is refused before a byte is allocated.
 *
 * The bound is on all of PATH. Directories of other models that no server has locked make room, the
 * one not used for longest first (the lock file's mtime says when: it is touched at each open);
 * those of running servers count and stay. What is in PATH and is not ours (another name, not a
 * directory) is neither touched nor counted.
 *
 * Owns    the file descriptors, the lock, the table in memory.
 * Thread  one at a time.
 * Errors  words that name the path and what to do. ERR_BUSY: another server has locked it (after
 *         waiting for a killed one's last writes, at most DISK_LOCK_WAIT_NS).
 * Units   bytes. */
#ifndef TARN_CACHE_DISK_DISK_DIR_H
#define TARN_CACHE_DISK_DISK_DIR_H

#include "cache/disk/disk_format.h"

#define DISK_LOCK_WAIT_NS UINT64_C(5000000000)

struct disk_dir_config {
    const char *path;
    uint64_t n_bytes_max;       /* of all in PATH */
    const uint8_t *fingerprint; /* [KV_FINGERPRINT_BYTES] */
    uint64_t block_bytes;
    uint32_t segment_tokens;
};

struct disk_dir {
    struct disk_super super;
    int table_fd, data_fd, lock_fd;
    bool is_direct;          /* O_DIRECT works here; else the page cache is in between */
    bool is_new;             /* there were no records: made now, or what was there is unusable */
    char why_new[128];       /* of what was there: "" when nothing was */
    uint8_t *table;          /* [disk_table_bytes()], page-aligned: what the file holds */
    uint32_t n_removed_dirs; /* of other models, to make room */
    uint64_t n_removed_bytes;
};

/* PATH and what it needs above it are made; it may not be a link, another user's or open to all. On
 * OK *out is open. A table or data file of another size is cut or grown: headers beyond the end
 * are gone. ERR_INVALID: the bound has no room for at least DISK_EXTENTS_MIN extents. */
#define DISK_EXTENTS_MIN 64u
NODISCARD enum status disk_dir_open(struct disk_dir *out, const struct disk_dir_config *config,
                                    struct buf *why);
void disk_dir_close(struct disk_dir *d); /* zeroed is fine; unlocks */
/* The same directory to read only, for those who check it: no lock, nothing made or changed.
 * dir: the one with `table` in it. super is what its page 0 says, and must hold. */
NODISCARD enum status disk_dir_open_to_read(struct disk_dir *out, const char *dir, struct buf *why);

#endif
