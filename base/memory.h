/* memory.h - zeroed memory whose pages are there.
 *
 * calloc() of something large hands out addresses; the pages come when they are written. What a
 * server sizes once and fills over hours would let it grow for hours, and fail late where memory is
 * short.
 *
 * Owns    nothing; free() what it returns.
 * Thread  any.
 * Errors  NULL when out of memory.
 * Units   bytes. */
#ifndef TARN_BASE_MEMORY_H
#define TARN_BASE_MEMORY_H

#include <stddef.h>

/* As calloc(n, size). */
void *memory_zeroed(size_t n, size_t size);

#endif
