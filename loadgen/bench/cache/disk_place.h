/* disk_place.h - a directory for a disk tier during a measurement; and the CPU time that the
 * hypervisor took from this machine meanwhile.
 *
 * Owns    the directory and all in it, until disk_place_remove().
 * Thread  one.
 * Errors  ERR_IO with words that name the directory.
 * Units   bytes; shares from 0 to 1. */
#ifndef TARN_LOADGEN_BENCH_CACHE_DISK_PLACE_H
#define TARN_LOADGEN_BENCH_CACHE_DISK_PLACE_H

#include "base/buf.h"

#define DISK_PLACE_PATH_BYTES 512

struct disk_place {
    char dir[DISK_PLACE_PATH_BYTES]; /* "": nothing is there to be removed */
};

/* Below `path`; "": below $TMPDIR, or /tmp without it. */
NODISCARD enum status disk_place_make(struct disk_place *p, const char *path, struct buf *why);
void disk_place_remove(struct disk_place *p); /* also fine on a zeroed struct, and twice */
/* Bytes that all its files take of the file system. */
uint64_t disk_place_bytes(const struct disk_place *p);
/* Drop the files from the page cache. */
void disk_place_forget(const struct disk_place *p);

/* CPU time that the hypervisor gave to other machines ("steal"). */
struct steal {
    uint64_t stolen, all;
};
void steal_begin(struct steal *s);
double steal_share(const struct steal *since); /* 0 where the kernel does not say */

#endif
