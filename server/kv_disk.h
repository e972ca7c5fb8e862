/* kv_disk.h - the disk tier in words: the start-up line, and what of its records was of no use.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   blocks; bytes. */
#ifndef TARN_SERVER_KV_DISK_H
#define TARN_SERVER_KV_DISK_H

#include <stdio.h>

#include "cache/cache.h"

#define KV_DISK_N_WHYS 6

/* Records that were there at start and were not entered, by why. */
struct kv_disk_dropped {
    const char *why;
    uint32_t n;
};
void kv_disk_dropped(const struct cache_disk_stats *d, struct kv_disk_dropped out[KV_DISK_N_WHYS]);

/* Room and what was found, one line; then a line for what was dropped, if anything was. Nothing
 * without a disk tier. */
void kv_disk_print(FILE *f, const char *path, const struct cache_stats *c);

#endif
