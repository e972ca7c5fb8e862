/* mapfile.h - maps a whole file read-only into memory, or copies it there.
 *
 * Owns    the mapping until mapfile_close().
 * Thread  any, after open: the mapping is read-only.
 * Errors  those of file.h, with a message; ERR_TOO_LARGE of a copy only. An empty file gives data
 *         NULL and n_bytes 0. A file that is truncated while mapped raises SIGBUS, as
 *         with any mmap: do not edit models in place. A copy has no such reads.
 * Units   bytes. */
#ifndef TARN_BASE_MAPFILE_H
#define TARN_BASE_MAPFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct mapfile {
    const unsigned char *data;
    size_t n_bytes;
    /* Identity of the file, for caches of results computed from it. Every change of a file's bytes
     * changes its ctime. */
    uint64_t dev, ino, mtime_ns, ctime_ns;
};

NODISCARD enum status mapfile_open(struct mapfile *m, const char *path, struct buf *why);
/* Copy a file of at most n_bytes_max bytes. ERR_IO: also of a file that is cut off meanwhile. */
NODISCARD enum status mapfile_copy(struct mapfile *m, const char *path, size_t n_bytes_max,
                                   struct buf *why);
void mapfile_close(struct mapfile *m);
/* Open the mapped file again, for reads that do not go through the mapping; the caller closes *fd.
 * ERR_IO with words: the file cannot be opened, or another one has its path now. */
NODISCARD enum status mapfile_reopen(const struct mapfile *m, const char *path, int *fd,
                                     struct buf *why);
/* Release the memory of all pages that hold a part of a mapping; a later read maps them again from
 * the file or its cache. */
void mapfile_forget(const void *data, size_t n_bytes);

#endif
