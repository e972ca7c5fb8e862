/* disk_dir.h - a directory of the disk tier: find or create it, lock it, size it, read its table.
 *
 * PATH/                        --kv-disk-path, 0700
 *   <64 hex digits>-v1/        the fingerprint and DISK_FORMAT_VERSION, 0700
 *     lock                     pid of the server that uses the directory, and when it began
 *     table, data              disk_format.h; 0600, allocated in full
 *
 * All three files are flock()ed while a server runs. Its last I/O requests may outlive it and keep
 * the locks that long. PATH itself is locked while a server starts.
 *
 * 5 percent of the file system's size, at most 1 GiB, must stay free. A limit that does not leave
 * that is refused before a byte is allocated.
 *
 * The limit covers all of PATH. Unlocked directories of other models are removed to make room,
 * least recently used first (the mtime of the lock file, which each open touches). Directories of
 * running servers count and stay. Files and directories with other names are neither touched nor
 * counted.
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
    uint64_t n_bytes_max;       /* limit for all of PATH */
    const uint8_t *fingerprint; /* [KV_FINGERPRINT_BYTES] */
    uint64_t block_bytes;
    uint32_t segment_tokens;
};

struct disk_dir {
    struct disk_super super;
    int table_fd, data_fd, lock_fd;
    bool is_direct;          /* O_DIRECT works here; else the page cache is used */
    bool is_new;             /* created now, or the old content is unusable */
    char why_new[128];       /* why the old content is unusable; "" without old content */
    uint8_t *table;          /* [disk_table_bytes()], page-aligned: the content of the file */
    uint32_t n_removed_dirs; /* of other models, to make room */
    uint64_t n_removed_bytes;
};

/* Create PATH and its parents if needed. PATH must not be a link, another user's, or writable for
 * all. A table or data file of another size is cut or grown; headers beyond the new end are lost.
 * ERR_INVALID: the limit has no room for DISK_EXTENTS_MIN extents. */
#define DISK_EXTENTS_MIN 64u
NODISCARD enum status disk_dir_open(struct disk_dir *out, const struct disk_dir_config *config,
                                    struct buf *why);
void disk_dir_close(struct disk_dir *d); /* zeroed is fine; unlocks */
/* Open a directory read-only, for checking: no lock, nothing created or changed. dir: the directory
 * that contains `table`. Its superblock must be valid. */
NODISCARD enum status disk_dir_open_to_read(struct disk_dir *out, const char *dir, struct buf *why);

#endif
