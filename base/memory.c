#include "base/memory.h"

#include <stdlib.h>

#define PAGE_BYTES 4096

void *memory_zeroed(size_t n, size_t size)
{
    char *p = calloc(n, size);

    /* Volatile writes: the compiler may drop a memset() to 0 of memory that calloc() returned. */
    for (size_t at = 0; p && at < n * size; at += PAGE_BYTES)
        ((volatile char *)p)[at] = 0;
    return p;
}
