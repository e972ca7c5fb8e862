#include "base/memory.h"

#include <stdlib.h>

#define PAGE_BYTES 4096

void *memory_zeroed(size_t n, size_t size)
{
    char *p = calloc(n, size);

    /* Written by hand: a memset() of what calloc() returned may be left out by the compiler. */
    for (size_t at = 0; p && at < n * size; at += PAGE_BYTES)
        ((volatile char *)p)[at] = 0;
    return p;
}
