/* arena.h - bump allocator whose memory is freed as a whole.
 *
 * Owns    its chunks, freed together by arena_fini().
 * Thread  one at a time.
 * Errors  arena_alloc() returns NULL when the maximum would be exceeded or malloc() fails.
 * Units   bytes. */
#ifndef TARN_BASE_ARENA_H
#define TARN_BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *head; /* newest first */
    size_t used_bytes;        /* obtained from malloc() so far */
    size_t max_bytes;
};

void arena_init(struct arena *a, size_t max_bytes);
void arena_fini(struct arena *a);
void arena_reset(struct arena *a); /* frees all memory; the arena can be used again */

/* Zeroed memory, aligned to 16 bytes. n == 0 gives a valid pointer. */
void *arena_alloc(struct arena *a, size_t n);
/* A NUL-terminated copy of s[0..len). */
char *arena_dup(struct arena *a, const char *s, size_t len);

#endif
