/* test_clock.h - a clock that the test stops and advances, for tests of timeouts.
 *
 * Include it in one source file of a program, and link with -Wl,--wrap=clock_now_ns. The clock is
 * the real one until test_clock_stop(); a stopped clock changes only by test_clock_advance(). The
 * kernel's timers know nothing of it: while the clock is stopped, poll with a wait of 0.
 *
 * Owns    one process-wide time.
 * Thread  any; the clock is stopped, advanced and resumed by the test's thread.
 * Errors  none.
 * Units   nanoseconds. */
#ifndef TARN_TESTS_UNIT_TEST_CLOCK_H
#define TARN_TESTS_UNIT_TEST_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);

static atomic_uint_least64_t test_clock_ns; /* 0: the real clock */

uint64_t __wrap_clock_now_ns(void)
{
    uint64_t now_ns = atomic_load(&test_clock_ns);

    return now_ns ? now_ns : __real_clock_now_ns();
}

static inline void test_clock_stop(void)
{
    atomic_store(&test_clock_ns, __real_clock_now_ns());
}

static inline void test_clock_advance(uint64_t ns)
{
    atomic_fetch_add(&test_clock_ns, ns);
}

static inline void test_clock_resume(void)
{
    atomic_store(&test_clock_ns, 0);
}

#endif
