/* fault.h - malloc(), calloc() and realloc() of this binary, of which one call fails when asked.
 *
 * Include it once. A sanitizer replaces them too: the whole program is to skip itself then. */
#ifndef TARN_TESTS_UNIT_FAULT_H
#define TARN_TESTS_UNIT_FAULT_H

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);

/* Per thread, so that allocations of a test's server threads do not fail. */
static __thread long fail_in; /* n: the n-th allocation from now on fails; 0: none */

static bool fails(void)
{
    if (fail_in == 0 || --fail_in != 0)
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}

#endif

#endif
