/* aio_threads.h - the back end of aio.h without io_uring: threads that call pread() and pwrite().
 *
 * Owns    its threads and its table of requests.
 * Thread  as aio.h; one lock inside.
 * Errors  as aio.h.
 * Units   as aio.h. */
#ifndef TARN_BASE_AIO_THREADS_H
#define TARN_BASE_AIO_THREADS_H

#include "base/aio.h"

/* Most bytes of one system call. Linux itself cuts calls at 2 GiB less a page. */
#define AIO_CALL_BYTES_MAX ((size_t)1 << 30)

struct aio_threads;

NODISCARD enum status aio_threads_open(struct aio_threads **out, uint32_t depth,
                                       uint32_t n_threads);
enum status aio_threads_close(struct aio_threads *t, uint64_t deadline_ns);
NODISCARD enum status aio_threads_submit(struct aio_threads *t, const struct aio_op *ops,
                                         uint32_t n);
uint32_t aio_threads_reap(struct aio_threads *t, struct aio_done *out, uint32_t n_max);
NODISCARD enum status aio_threads_wait(struct aio_threads *t, uint64_t deadline_ns,
                                       struct aio_done *out, uint32_t n_max, uint32_t *n);
void aio_threads_cancel(struct aio_threads *t, uint64_t tag);
uint32_t aio_threads_n_pending(struct aio_threads *t);

/* Interpret the result of a system call (-errno for a failure) for a request with *n_done bytes
 * done. Returns true when the request is over; then *status and *error are set. Both back ends use
 * it. */
bool aio_step(const struct aio_op *op, int64_t result, size_t *n_done, enum status *status,
              int *error);

#endif
