/* disk_rate.h - the highest rate at which this machine reads a file: O_DIRECT, several patterns.
 *
 * The file has the size of the data that it is compared with, was written in full, and is in the
 * same file system.
 *
 * Owns    the file (already unlinked) and buffers, until disk_rate_destroy().
 * Thread  one.
 * Errors  words that name the directory; ERR_IO, ERR_NOMEM.
 * Units   bytes, bytes per second. */
#ifndef TARN_LOADGEN_BENCH_CACHE_DISK_RATE_H
#define TARN_LOADGEN_BENCH_CACHE_DISK_RATE_H

#include <stdbool.h>

#include "base/buf.h"

struct disk_rate;

NODISCARD enum status disk_rate_create(struct disk_rate **out, const char *dir, uint64_t n_bytes,
                                       struct buf *why);
void disk_rate_destroy(struct disk_rate *r); /* NULL is fine */
/* Measure one pass in each pattern and return the best, which changes from minute to minute. */
NODISCARD enum status disk_rate_measure(struct disk_rate *r, double *bytes_per_s, struct buf *why);
/* Of the best: "io_uring, 16 x 512 KiB". */
const char *disk_rate_pattern(const struct disk_rate *r);
/* Whether reads bypass the page cache; else the rate is one of memory. */
bool disk_rate_is_direct(const struct disk_rate *r);

#endif
