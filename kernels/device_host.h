/* device_host.h - the memory of a host device: zeroed, aligned, backed by huge pages where large.
 *
 * Owns    every allocation until host_memory_free() or host_memory_fini().
 * Thread  any.
 * Errors  NULL when out of memory.
 * Units   bytes. */
#ifndef TARN_KERNELS_DEVICE_HOST_H
#define TARN_KERNELS_DEVICE_HOST_H

#include <pthread.h>
#include <stddef.h>

/* From this size on an allocation has whole pages of its own, which are parts of huge ones. */
#define HOST_MEMORY_MAP_BYTES ((size_t)128 << 10)

struct host_block;
struct host_slab;

struct host_memory {
    pthread_mutex_t lock;
    struct host_slab *slab;    /* the newest; NULL: none */
    struct host_block *blocks; /* all live allocations */
};

void host_memory_init(struct host_memory *m);
void host_memory_fini(struct host_memory *m);
/* Zeroed memory, 64-byte aligned; n_bytes == 0 gives a valid pointer. */
void *host_memory_alloc(struct host_memory *m, size_t n_bytes);
void host_memory_free(struct host_memory *m, void *p);

#endif
