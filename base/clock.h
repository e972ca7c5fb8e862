/* clock.h - reads the clocks. Only the edges of the program call it; inner modules are passed
 * `now`.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none. A signal may end a sleep early.
 * Units   nanoseconds; clock_now_ns() is CLOCK_MONOTONIC, clock_unix_*() since 1970 UTC. */
#ifndef TARN_BASE_CLOCK_H
#define TARN_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);
uint64_t clock_unix_ns(void);
void clock_sleep_ns(uint64_t ns);

#endif
