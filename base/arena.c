#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 16
#define CHUNK_BYTES ((size_t)16 * 1024)

struct arena_chunk {
    struct arena_chunk *next;
    size_t used;
    size_t size;
    alignas(ALIGN_BYTES) unsigned char bytes[];
};

void arena_init(struct arena *a, size_t max_bytes)
{
    *a = (struct arena){.max_bytes = max_bytes};
}

void arena_fini(struct arena *a)
{
    arena_reset(a);
}

void arena_reset(struct arena *a)
{
    struct arena_chunk *c = a->head;

    while (c) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
}

static struct arena_chunk *add_chunk(struct arena *a, size_t n)
{
    size_t size = n > CHUNK_BYTES ? n : CHUNK_BYTES;

    if (size > a->max_bytes - a->used_bytes) {
        size = n; /* near the maximum, the last chunk is smaller */
        if (size > a->max_bytes - a->used_bytes)
            return NULL;
    }
    struct arena_chunk *c = calloc(1, sizeof *c + size);
    if (!c)
        return NULL;
    c->size = size;
    c->next = a->head;
    a->head = c;
    a->used_bytes += size;
    return c;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    n = (n + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1);

    struct arena_chunk *c = a->head;
    if (!c || c->size - c->used < n) {
        c = add_chunk(a, n);
        if (!c)
            return NULL;
    }
    void *p = c->bytes + c->used;
    c->used += n;
    return p;
}

char *arena_dup(struct arena *a, const char *s, size_t len)
{
    char *copy = arena_alloc(a, len + 1);

    if (copy && len)
        memcpy(copy, s, len);
    return copy;
}
