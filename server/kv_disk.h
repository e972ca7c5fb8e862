/* kv_disk.h - text about the disk tier: its line at the start, and the records it cannot use.
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

/* Records that were found at the start and dropped, by reason. */
struct kv_disk_dropped {
    const char *why;
    uint32_t n;
};
void kv_disk_dropped(const struct cache_disk_stats *d, struct kv_disk_dropped out[KV_DISK_N_WHYS]);

/* Print one line with the size and the records found, and one with the dropped records, if any.
 * Nothing is printed without a disk tier. */
void kv_disk_print(FILE *f, const char *path, const struct cache_stats *c);

#endif
