/* device_host.c - memory of a host device. */
#include "kernels/device_host.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Header in front of every allocation. */
struct host_block {
    _Alignas(64) struct host_block *next;
    struct host_block *prev;
    void *mapping; /* NULL: from posix_memalign(), freed as a whole */
    size_t map_bytes;
};

void host_memory_init(struct host_memory *m)
{
    pthread_mutex_init(&m->lock, NULL);
    m->blocks = NULL;
}

/* Map memory whose payload starts on a huge page; the header is just before it. */
static struct host_block *map_block(size_t n_bytes)
{
    size_t map_bytes = n_bytes + 2 * HUGE_PAGE_BYTES;
    char *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    uintptr_t start = ((uintptr_t)map + sizeof(struct host_block) + HUGE_PAGE_BYTES - 1) &
                      ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    struct host_block *b = (struct host_block *)start - 1;

    (void)madvise((void *)start, n_bytes, MADV_HUGEPAGE); /* best effort */
    b->mapping = map;
    b->map_bytes = map_bytes;
    return b;
}

void *host_memory_alloc(struct host_memory *m, size_t n_bytes)
{
    struct host_block *b = NULL;
    void *p;

    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes >= HOST_MEMORY_MAP_BYTES) {
        b = map_block(n_bytes);
    } else if (posix_memalign(&p, 64, sizeof(*b) + n_bytes + 1) == 0) {
        b = p;
        memset(b, 0, sizeof(*b) + n_bytes + 1);
    }
    if (!b)
        return NULL;
    b->prev = NULL;
    pthread_mutex_lock(&m->lock);
    b->next = m->blocks;
    if (b->next)
        b->next->prev = b;
    m->blocks = b;
    pthread_mutex_unlock(&m->lock);
    return b + 1;
}

static void release(struct host_block *b)
{
    if (b->mapping)
        munmap(b->mapping, b->map_bytes);
    else
        free(b);
}

void host_memory_free(struct host_memory *m, void *p)
{
    struct host_block *b = (struct host_block *)p - 1;

    pthread_mutex_lock(&m->lock);
    if (b->prev)
        b->prev->next = b->next;
    else
        m->blocks = b->next;
    if (b->next)
        b->next->prev = b->prev;
    pthread_mutex_unlock(&m->lock);
    release(b);
}

void host_memory_fini(struct host_memory *m)
{
    struct host_block *next;

    for (struct host_block *b = m->blocks; b; b = next) {
        next = b->next;
        release(b);
    }
    m->blocks = NULL;
    pthread_mutex_destroy(&m->lock);
}
