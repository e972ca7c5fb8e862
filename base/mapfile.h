/* mapfile.h - a whole file, read-only, as memory.
 *
 * Owns    the mapping until mapfile_close().
 * Thread  read-only after open: any.
 * Errors  ERR_NOT_FOUND, ERR_NOMEM, ERR_IO, with words. An empty file gives data NULL and n_bytes
 *         0. A file cut short while mapped raises SIGBUS, as with any mmap: models are not edited
 *         in place.
 * Units   bytes. */
#ifndef TARN_BASE_MAPFILE_H
#define TARN_BASE_MAPFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct mapfile {
    const unsigned char *data;
    size_t n_bytes;
    uint64_t dev, ino, mtime_ns; /* identity, for caches of what was computed from it */
};

NODISCARD enum status mapfile_open(struct mapfile *m, const char *path, struct buf *why);
void mapfile_close(struct mapfile *m);

#endif
