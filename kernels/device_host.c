/* device_host.c - memory of a host device. */
#include "kernels/device_host.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES ((size_t)4 << 10)
#define SLAB_BYTES ((size_t)64 << 20)

/* A mapping that huge pages can back: reading weights from small pages takes 10 % longer. Parts
 * share the huge pages at their ends, so that the last one of a weight is huge too. The slab is cut
 * into parts one after the other. A part that is freed gives its pages back and is not used again,
 * since parts are zeroed; the mapping goes with its last part. */
struct host_slab {
    char *mapping, *at, *end; /* `at`: behind the last part */
    size_t map_bytes;
    size_t n_parts;
};

/* Header in front of every allocation. */
struct host_block {
    _Alignas(64) struct host_block *next;
    struct host_block *prev;
    struct host_slab *slab; /* NULL: from posix_memalign(), freed as a whole */
    size_t n_bytes;         /* of the payload, with a slab: whole pages */
};

void host_memory_init(struct host_memory *m)
{
    pthread_mutex_init(&m->lock, NULL);
    m->blocks = NULL;
    m->slab = NULL;
}

/* Map a slab with room for a part of n_bytes. */
static struct host_slab *slab_create(size_t n_bytes)
{
    struct host_slab *slab = malloc(sizeof *slab);
    size_t room = n_bytes + PAGE_BYTES > SLAB_BYTES ? n_bytes + PAGE_BYTES : SLAB_BYTES;
    size_t map_bytes = (room + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    char *map = NULL;

    map_bytes += HUGE_PAGE_BYTES; /* to start on a huge page */
    if (slab)
        map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!slab || map == MAP_FAILED) {
        free(slab);
        return NULL;
    }
    uintptr_t start = ((uintptr_t)map + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    *slab = (struct host_slab){.mapping = map,
                               .at = (char *)start,
                               .end = (char *)start + map_bytes - HUGE_PAGE_BYTES,
                               .map_bytes = map_bytes};
    (void)madvise(slab->at, (size_t)(slab->end - slab->at), MADV_HUGEPAGE); /* best effort */
    return slab;
}

static void slab_destroy(struct host_slab *slab)
{
    munmap(slab->mapping, slab->map_bytes);
    free(slab);
}

/* Take a part, whose payload starts on a page, with the header just before it. */
static struct host_block *slab_part(struct host_memory *m, size_t n_bytes)
{
    size_t part_bytes = PAGE_BYTES + (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct host_slab *slab = m->slab;

    if (!slab || part_bytes > (size_t)(slab->end - slab->at)) {
        slab = slab_create(part_bytes);
        if (!slab)
            return NULL;
        m->slab = slab; /* the last one goes with its last part */
    }
    struct host_block *b = (struct host_block *)(void *)(slab->at + PAGE_BYTES) - 1;
    slab->at += part_bytes;
    slab->n_parts++;
    b->slab = slab;
    b->n_bytes = part_bytes - PAGE_BYTES;
    return b;
}

void *host_memory_alloc(struct host_memory *m, size_t n_bytes)
{
    struct host_block *b = NULL;
    void *p;

    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    if (n_bytes < HOST_MEMORY_MAP_BYTES) {
        if (posix_memalign(&p, 64, sizeof(*b) + n_bytes + 1) != 0)
            return NULL;
        b = p;
        memset(b, 0, sizeof(*b) + n_bytes + 1);
    }
    pthread_mutex_lock(&m->lock);
    if (!b)
        b = slab_part(m, n_bytes);
    if (b) {
        b->prev = NULL;
        b->next = m->blocks;
        if (b->next)
            b->next->prev = b;
        m->blocks = b;
    }
    pthread_mutex_unlock(&m->lock);
    return b ? b + 1 : NULL;
}

static void release(struct host_memory *m, struct host_block *b)
{
    struct host_slab *slab = b->slab;

    if (!slab) {
        free(b);
        return;
    }
    if (--slab->n_parts > 0) {
        (void)madvise(b + 1, b->n_bytes, MADV_DONTNEED); /* the header's page stays */
        return;
    }
    if (m->slab == slab)
        m->slab = NULL;
    slab_destroy(slab);
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
    release(m, b);
    pthread_mutex_unlock(&m->lock);
}

void host_memory_fini(struct host_memory *m)
{
    struct host_block *next;

    for (struct host_block *b = m->blocks; b; b = next) {
        next = b->next;
        release(m, b);
    }
    m->blocks = NULL;
    pthread_mutex_destroy(&m->lock);
}
