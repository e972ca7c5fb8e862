/* aio.h - asynchronous reads and writes of files, many at once.
 *
 * Two back ends: io_uring, and a few threads with pread() and pwrite() where the kernel has no
 * io_uring or a sandbox forbids it (seccomp, gVisor). Files may be opened with O_DIRECT; the caller
 * then aligns data, n_bytes and offset.
 *
 * Owns    the queue; neither files nor buffers. A buffer belongs to its request from aio_submit()
 *         until its completion is reaped, even if a deadline passes in between.
 * Thread  one at a time.
 * Errors  each completion has a status and the errno behind it. A partial transfer is continued
 *         internally, so OK means all bytes; a file that ends before them is ERR_CORRUPT.
 * Units   bytes; deadlines are times of clock_now_ns(). */
#ifndef TARN_BASE_AIO_H
#define TARN_BASE_AIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct aio;
struct buf;

#define AIO_DEPTH_MAX 4096

enum aio_backend {
    AIO_AUTO, /* io_uring if it works, else threads */
    AIO_URING,
    AIO_THREADS
};

/* Memory that many requests use. io_uring registers it, so that the kernel need not look up its
 * pages for each request. If the kernel refuses (RLIMIT_MEMLOCK), requests work without it. */
struct aio_region {
    void *data;
    size_t n_bytes;
};

struct aio_config {
    enum aio_backend backend;
    uint32_t depth;                   /* most requests under way: 1 .. AIO_DEPTH_MAX */
    uint32_t n_threads;               /* of AIO_THREADS; 0: the default, 4 */
    const struct aio_region *regions; /* [n_regions]; may be NULL */
    uint32_t n_regions;
};

/* ERR_UNSUPPORTED: AIO_URING was asked for and is not available. ERR_NOMEM. */
NODISCARD enum status aio_open(struct aio **out, const struct aio_config *config, struct buf *why);
/* Cancel the requests that have not begun, wait for the others until the deadline, and free the
 * handle in any case. ERR_TIMEOUT: some requests hang (a dead disk). The kernel may still write to
 * their buffers, so those must stay allocated for ever. NULL is fine. */
enum status aio_close(struct aio *a, uint64_t deadline_ns);
/* "io_uring" or "threads" */
const char *aio_name(const struct aio *a);

struct aio_op {
    bool write;
    int fd;
    void *data;     /* a write does not change it */
    size_t n_bytes; /* at least 1 */
    uint64_t offset;
    uint64_t tag; /* the caller's; returned with the completion */
};

/* Begin n requests, all or none. ERR_BUSY: fewer than n places are free. It never waits for the
 * device with threads, or with io_uring and O_DIRECT; a buffered request through io_uring may copy
 * what the page cache holds before it returns. */
NODISCARD enum status aio_submit(struct aio *a, const struct aio_op *ops, uint32_t n);

struct aio_done {
    uint64_t tag;
    enum status status; /* OK, ERR_CORRUPT, ERR_CANCELLED, ERR_NOMEM, else ERR_IO */
    int error;          /* errno of the failure; 0: none */
    size_t n_bytes;     /* bytes transferred, also by a request that failed */
};

/* Return up to n_max completions that are available, without waiting. */
uint32_t aio_reap(struct aio *a, struct aio_done *out, uint32_t n_max);
/* aio_reap() that waits for the first completion. ERR_TIMEOUT: none came before the deadline, *n is
 * 0. ERR_NOT_FOUND: no request is under way. */
NODISCARD enum status aio_wait(struct aio *a, uint64_t deadline_ns, struct aio_done *out,
                               uint32_t n_max, uint32_t *n);
/* Cancel the requests with this tag. Each still gets its completion: ERR_CANCELLED if it had not
 * begun or could be stopped, else its normal result. */
void aio_cancel(struct aio *a, uint64_t tag);
/* The number of requests whose completion was not reaped. */
uint32_t aio_n_pending(const struct aio *a);

#endif
