/* disk_room.h - the room under PATH for the directory of one fingerprint, and making room by
 * removing directories that no server uses.
 *
 * Owns    nothing.
 * Thread  one at a time, with the root locked (disk_dir.c): no other process opens or removes then.
 * Errors  ERR_IO, with words.
 * Units   bytes of the files' sizes. */
#ifndef TARN_CACHE_DISK_DISK_ROOM_H
#define TARN_CACHE_DISK_DISK_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct buf;

/* 64 hex digits, "-v", a version, NUL. */
#define DISK_NAME_BYTES 80

/* Whether this is the name of a fingerprint's directory, of any format version. */
bool disk_room_is_ours(const char *name);
/* Open and flock() the files lock, table and data of a directory, as far as they exist: fds [3], -1
 * for a missing one. ERR_BUSY: one of them is locked already, perhaps by this process; none is open
 * then. All three are locked because I/O requests of a server may outlive it. */
NODISCARD enum status disk_room_lock(int dir, int *fds);

struct disk_room {
    uint64_t n_left;          /* for the directory `own` */
    uint64_t n_running_bytes; /* in directories of running servers */
    uint32_t n_running;
    uint64_t n_removed_bytes;
    uint32_t n_removed;
};

/* Make room for n_wanted bytes in the directory `own`, when all of `root` (an open directory with
 * the name `path`) may have n_max; or for as many as running servers leave. Unused directories are
 * removed for that, the one with the oldest lock file first. */
NODISCARD enum status disk_room_make(struct disk_room *out, int root, const char *path,
                                     const char *own, uint64_t n_max, uint64_t n_wanted,
                                     struct buf *why);

#endif
