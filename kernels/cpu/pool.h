/* pool.h - the compute pool: a parallel for over a few worker threads.
 *
 * Owns    n_threads - 1 threads, joined by pool_destroy(); the caller of pool_run() is the last
 *         one. A pool of 1 has no thread at all.
 * Thread  one pool_run() at a time, from one thread; never from inside a job.
 * Errors  ERR_NOMEM when memory or a thread cannot be had.
 * Units   indices. */
#ifndef TARN_KERNELS_CPU_POOL_H
#define TARN_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "base/status.h"

struct pool;

NODISCARD enum status pool_create(struct pool **out, uint32_t n_threads);
void pool_destroy(struct pool *p); /* NULL is fine */
uint32_t pool_n_threads(const struct pool *p);
/* Workers are pinned to a core each when there are as many threads as cores; the calling thread gets
 * the remaining one for good. For a thread that does little but call pool_run(). */
void pool_pin_caller(struct pool *p);

/* Call fn(arg, begin, end, thread) until every index of [0, n) was in exactly one [begin, end),
 * at most `chunk` long, then return; what the calls wrote is visible to the caller. Chunks are
 * taken in ascending order by whichever thread is free. `thread` is below n_threads and names the
 * thread (0: the caller), for scratch memory. */
void pool_run(struct pool *p, uint32_t n, uint32_t chunk,
              void (*fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread), void *arg);

#endif
