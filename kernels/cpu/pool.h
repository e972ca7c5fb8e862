/* pool.h - the compute pool: a parallel for over a few worker threads.
 *
 * Owns    n_threads - 1 threads, joined by pool_destroy(). The caller of pool_run() works as the
 *         last thread; a pool of 1 starts no thread.
 * Thread  one pool_run() at a time, from one thread, never from inside a job.
 * Errors  ERR_NOMEM: no memory, or a thread could not be started.
 * Units   indices. */
#ifndef TARN_KERNELS_CPU_POOL_H
#define TARN_KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct numa;
struct pool;

/* numa: threads are spread over its nodes; NULL or one node: the system chooses. Read only during
 * the call. */
NODISCARD enum status pool_create(struct pool **out, uint32_t n_threads, const struct numa *numa);
void pool_destroy(struct pool *p); /* NULL is fine */
uint32_t pool_n_threads(const struct pool *p);
/* Pin the calling thread for good to the core that the pinned workers leave free. Workers are
 * pinned if there are as many threads as cores, or, to all cores of a node, if there are several
 * nodes. For a thread that does little but call
 * pool_run(). */
void pool_pin_caller(struct pool *p);

/* Call fn(arg, begin, end, thread) until every index of [0, n) was in exactly one range [begin,
 * end), at most `chunk` long, then return. The caller then sees everything that the calls wrote.
 * Ranges are handed out in ascending order to free threads. `thread`, below n_threads, identifies
 * the thread (0: the caller), for scratch memory. */
void pool_run(struct pool *p, uint32_t n, uint32_t chunk,
              void (*fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread), void *arg);

/* From inside a job: while `thread` has nothing to do after it, it prefetches this memory into its
 * second-level cache, until the next job comes. A caller only does so while it waits for others. */
void pool_fetch_idle(struct pool *p, uint32_t thread, const void *from, size_t n_bytes);

#endif
