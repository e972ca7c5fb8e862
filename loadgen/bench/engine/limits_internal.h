/* limits_internal.h - threads, and reading memory: for limits.c, and for loadgen/cachebench, which
 * compares with reading alone.
 *
 * Owns    read_create(): the buffers, until read_destroy().
 * Thread  one caller.
 * Errors  ERR_NOMEM; ERR_INTERNAL when no thread can be started.
 * Units   bytes per second; cpu_share from 0 to 1. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_LIMITS_INTERNAL_H
#define TARN_LOADGEN_BENCH_ENGINE_LIMITS_INTERNAL_H

#include <stdint.h>

#include "base/buf.h"

/* Run fn(arg, i) for i in [0, n) on n new threads, each on a core of its own if there are enough
 * cores. No thread calls fn before all threads exist. */
NODISCARD enum status threads_run(uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);
uint32_t threads_usable_cores(void);

struct read_meter;

NODISCARD enum status read_create(struct read_meter **out, uint32_t n_threads, struct buf *why);
void read_destroy(struct read_meter *m); /* NULL is fine */
/* The read rate of all threads together, and the share of the time for which they had a core. */
struct read_figure {
    double bytes_per_s;
    double cpu_share;
};
/* Below this share other programs used the cores, and the figure is void. */
#define READ_CPU_SHARE_MIN 0.90

/* Measure the best of several passes. The first call also finds the fastest access pattern. */
NODISCARD enum status read_measure(struct read_meter *m, struct read_figure *out);

#endif
