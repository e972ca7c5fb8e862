/* disk_room.h - how much room a directory of the disk tier has left for one fingerprint, and making
 * more by removing what no server uses.
 *
 * Owns    nothing.
 * Thread  one at a time, with the root locked (disk_dir.c): nobody else opens or removes then.
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

/* Is that the name of a fingerprint's directory, of whatever version? */
bool disk_room_is_ours(const char *name);
/* The files lock, table and data in the directory, as far as they are there, locked by flock(): the
 * descriptors are in fds [3], -1 for what is missing. A file that somebody else has locked, this
 * program included: ERR_BUSY, and none is open. To lock a server's requests out as well, which may
 * live longer than it, all three are locked. */
NODISCARD enum status disk_room_lock(int dir, int *fds);

struct disk_room {
    uint64_t n_left;          /* for the directory `own` */
    uint64_t n_running_bytes; /* of servers that run, and their number */
    uint32_t n_running;
    uint64_t n_removed_bytes;
    uint32_t n_removed;
};

/* Of n_max in all of `root` (an open directory, `path` in words), at least n_wanted for `own`, or
 * what running servers leave. Others go for that, the one whose lock file was not touched for
 * longest first. */
NODISCARD enum status disk_room_make(struct disk_room *out, int root, const char *path,
                                     const char *own, uint64_t n_max, uint64_t n_wanted,
                                     struct buf *why);

#endif
