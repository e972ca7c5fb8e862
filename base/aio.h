/* aio.h - reads and writes of files, many under way at once, none waited for one by one.
 *
 * Two back ends: io_uring, and a few threads with pread() and pwrite() where the kernel has no
 * io_uring or a sandbox forbids it (seccomp, gVisor). Files may be opened with O_DIRECT; then data,
 * n_bytes and offset are aligned by the caller.
 *
 * Owns    the queue; neither files nor buffers. A buffer belongs to the request from aio_submit()
 *         until its completion was reaped, whatever deadline passed in between.
 * Thread  one at a time.
 * Errors  of a request: its completion has a status and the errno behind it. A transfer that stops
 *         half way is continued inside, so OK means all bytes; a file that ends before is
 *         ERR_CORRUPT.
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
    AIO_AUTO, /* io_uring where it works, else threads */
    AIO_URING,
    AIO_THREADS
};

/* Memory that many requests go through. With io_uring it is registered, which spares the kernel to
 * look up its pages for each request; where the kernel refuses (RLIMIT_MEMLOCK), all works
 * without. */
struct aio_region {
    void *data;
    size_t n_bytes;
};

struct aio_config {
    enum aio_backend backend;
    uint32_t depth;                   /* requests under way at most: 1 .. AIO_DEPTH_MAX */
    uint32_t n_threads;               /* of AIO_THREADS; 0: a few */
    const struct aio_region *regions; /* [n_regions]; may be NULL */
    uint32_t n_regions;
};

/* ERR_UNSUPPORTED: AIO_URING where there is none. ERR_NOMEM. */
NODISCARD enum status aio_open(struct aio **out, const struct aio_config *config, struct buf *why);
/* Cancels what has not begun and waits for the rest until the deadline. ERR_TIMEOUT: some requests
 * hang (a dead disk); their buffers must then stay as they are for ever, the kernel may still write
 * to them. The handle is gone either way. NULL is fine. */
enum status aio_close(struct aio *a, uint64_t deadline_ns);
/* "io_uring" or "threads" */
const char *aio_name(const struct aio *a);

struct aio_op {
    bool write;
    int fd;
    void *data;     /* not changed by a write */
    size_t n_bytes; /* at least 1 */
    uint64_t offset;
    uint64_t tag; /* the caller's; comes back with the completion */
};

/* Begin n requests, all or none: ERR_BUSY when fewer than n places are free. Never waits for a
 * device with io_uring and O_DIRECT, nor with threads; a buffered read or write through io_uring
 * may copy what the page cache holds at once. */
NODISCARD enum status aio_submit(struct aio *a, const struct aio_op *ops, uint32_t n);

struct aio_done {
    uint64_t tag;
    enum status status; /* OK, ERR_CORRUPT, ERR_CANCELLED, ERR_NOMEM, else ERR_IO */
    int error;          /* errno behind it; 0 when there is none */
    size_t n_bytes;     /* done, also of a request that failed */
};

/* Up to n_max completions that are there now. Never waits. */
uint32_t aio_reap(struct aio *a, struct aio_done *out, uint32_t n_max);
/* The same, but waits for the first one. ERR_TIMEOUT: none until the deadline, *n is 0;
 * ERR_NOT_FOUND: nothing is under way. */
NODISCARD enum status aio_wait(struct aio *a, uint64_t deadline_ns, struct aio_done *out,
                               uint32_t n_max, uint32_t *n);
/* Requests with this tag need not go on. Each still has its completion: ERR_CANCELLED if it had not
 * begun or could be stopped, else whatever becomes of it. */
void aio_cancel(struct aio *a, uint64_t tag);
/* Requests whose completion was not reaped. */
uint32_t aio_n_pending(const struct aio *a);

#endif
