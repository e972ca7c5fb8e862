/* memory.h - zeroed memory whose pages exist.
 *
 * A large calloc() only reserves addresses; the kernel supplies the pages when they are first
 * written. A table that is sized once and filled over hours would make the server grow for hours,
 * and fail late where memory is short.
 *
 * Owns    nothing; the caller frees the memory by free().
 * Thread  any.
 * Errors  NULL: out of memory.
 * Units   bytes. */
#ifndef TARN_BASE_MEMORY_H
#define TARN_BASE_MEMORY_H

#include <stddef.h>

/* Like calloc(n, size), with all pages written. */
void *memory_zeroed(size_t n, size_t size);

#endif
