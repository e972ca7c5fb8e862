/* memory.h - how much memory this process may still take.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none: what cannot be read does not limit.
 * Units   bytes. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_MEMORY_H
#define TARN_LOADGEN_BENCH_ENGINE_MEMORY_H

#include <stdint.h>

/* The machine's available memory, or the unused part of the control group's limit if less. */
uint64_t memory_available(void);

#endif
