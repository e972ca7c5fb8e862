/* aio.c - choice of the back end, and the back end on io_uring. */
#include "base/aio.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "base/aio_threads.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"

struct request {
    struct aio_op op;
    size_t n_done;
    bool used;
    bool cancelled;
};

struct aio {
    struct aio_threads *threads; /* NULL: the back end is io_uring */
    struct io_uring ring;
    struct request *requests; /* [depth] */
    uint32_t *free;           /* [depth] stack */
    uint32_t depth, n_free;
    struct aio_region *regions; /* [n_regions], registered in this order */
    uint32_t n_regions;
};

/* --- open and close --- */

/* Whether this kernel has all features used here. The newest is IORING_FEAT_EXT_ARG (Linux 5.11): a
 * wait with a deadline that takes no request. */
static bool can_do(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe && (ring->features & IORING_FEAT_EXT_ARG) &&
               io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
               io_uring_opcode_supported(probe, IORING_OP_ASYNC_CANCEL);

    io_uring_free_probe(probe);
    return can;
}

static void register_regions(struct aio *a, const struct aio_config *config)
{
    struct iovec *v = calloc(config->n_regions, sizeof *v);
    struct aio_region *copy = calloc(config->n_regions, sizeof *copy);

    for (uint32_t i = 0; v && copy && i < config->n_regions; i++) {
        copy[i] = config->regions[i];
        v[i] = (struct iovec){copy[i].data, copy[i].n_bytes};
    }
    if (v && copy && io_uring_register_buffers(&a->ring, v, config->n_regions) == 0) {
        a->regions = copy;
        a->n_regions = config->n_regions;
    } else {
        free(copy);
    }
    free(v);
}

static enum status open_ring(struct aio *a, const struct aio_config *config, struct buf *why)
{
    /* The kernel makes the completion ring twice as long: room for one completion of each request
     * and one of each cancellation. */
    int r = io_uring_queue_init(config->depth, &a->ring, 0);

    if (r < 0)
        return buf_why(why, ERR_UNSUPPORTED, "io_uring is not available: %s", strerror(-r));
    a->requests = calloc(config->depth, sizeof *a->requests);
    a->free = calloc(config->depth, sizeof *a->free);
    if (!a->requests || !a->free || !can_do(&a->ring)) {
        enum status s = a->requests && a->free ? ERR_UNSUPPORTED : ERR_NOMEM;
        io_uring_queue_exit(&a->ring);
        free(a->requests);
        free(a->free);
        return buf_why(why, s,
                       s == ERR_NOMEM ? "out of memory" : "this kernel's io_uring is too old");
    }
    for (uint32_t i = 0; i < config->depth; i++)
        a->free[a->n_free++] = config->depth - 1 - i;
    if (config->n_regions > 0)
        register_regions(a, config);
    return OK;
}

enum status aio_open(struct aio **out, const struct aio_config *config, struct buf *why)
{
    struct aio *a = calloc(1, sizeof *a);
    enum status s = ERR_UNSUPPORTED;

    *out = NULL;
    ASSERT(config->depth >= 1 && config->depth <= AIO_DEPTH_MAX);
    if (!a)
        return buf_why(why, ERR_NOMEM, "out of memory");
    a->depth = config->depth;
    if (config->backend != AIO_THREADS)
        s = open_ring(a, config, why);
    if (s == ERR_UNSUPPORTED && config->backend != AIO_URING) {
        s = aio_threads_open(&a->threads, config->depth, config->n_threads);
        if (s != OK)
            buf_why(why, s, "cannot start the threads that read files");
    }
    if (s != OK) {
        free(a);
        return s;
    }
    *out = a;
    return OK;
}

const char *aio_name(const struct aio *a)
{
    return a->threads ? "threads" : "io_uring";
}

uint32_t aio_n_pending(const struct aio *a)
{
    return a->threads ? aio_threads_n_pending(a->threads) : a->depth - a->n_free;
}

static void cancel_one(struct aio *a, uint32_t i);

enum status aio_close(struct aio *a, uint64_t deadline_ns)
{
    enum status s = OK;
    struct aio_done done[16];
    uint32_t n;

    if (!a)
        return OK;
    if (a->threads) {
        s = aio_threads_close(a->threads, deadline_ns);
        free(a);
        return s;
    }
    for (uint32_t i = 0; i < a->depth; i++)
        if (a->requests[i].used)
            cancel_one(a, i);
    while (s == OK && aio_n_pending(a) > 0)
        s = aio_wait(a, deadline_ns, done, 16, &n);
    io_uring_queue_exit(&a->ring); /* does not wait for hanging requests */
    free(a->requests);
    free(a->free);
    free(a->regions);
    free(a);
    return s;
}

/* --- io_uring: submission --- */

static struct io_uring_sqe *next_sqe(struct aio *a)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&a->ring);

    if (sqe)
        return sqe;
    (void)io_uring_submit(&a->ring); /* the submission ring is full: hand it to the kernel */
    return io_uring_get_sqe(&a->ring);
}

/* The registered region that contains all of data[0..n_bytes), or -1. */
static int find_region(const struct aio *a, const char *data, size_t n_bytes)
{
    for (uint32_t i = 0; i < a->n_regions; i++) {
        const char *base = a->regions[i].data;
        if (data >= base && n_bytes <= a->regions[i].n_bytes &&
            (size_t)(data - base) <= a->regions[i].n_bytes - n_bytes)
            return (int)i;
    }
    return -1;
}

/* Queue the rest of a request. False: the kernel takes no more now. */
static bool push(struct aio *a, uint32_t i)
{
    const struct request *r = &a->requests[i];
    struct io_uring_sqe *sqe = next_sqe(a);
    char *at = (char *)r->op.data + r->n_done;
    size_t n = r->op.n_bytes - r->n_done;
    uint64_t offset = r->op.offset + r->n_done;

    if (!sqe)
        return false;
    if (n > AIO_CALL_BYTES_MAX)
        n = AIO_CALL_BYTES_MAX;
    int region = find_region(a, at, n);
    if (region >= 0 && r->op.write)
        io_uring_prep_write_fixed(sqe, r->op.fd, at, (unsigned)n, offset, region);
    else if (region >= 0)
        io_uring_prep_read_fixed(sqe, r->op.fd, at, (unsigned)n, offset, region);
    else if (r->op.write)
        io_uring_prep_write(sqe, r->op.fd, at, (unsigned)n, offset);
    else
        io_uring_prep_read(sqe, r->op.fd, at, (unsigned)n, offset);
    io_uring_sqe_set_data64(sqe, (uint64_t)i + 1);
    return true;
}

enum status aio_submit(struct aio *a, const struct aio_op *ops, uint32_t n)
{
    if (a->threads)
        return aio_threads_submit(a->threads, ops, n);
    if (n > a->n_free || n > io_uring_sq_space_left(&a->ring)) {
        (void)io_uring_submit(&a->ring);
        if (n > a->n_free || n > io_uring_sq_space_left(&a->ring))
            return ERR_BUSY;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = a->free[--a->n_free];
        ASSERT(ops[k].n_bytes > 0);
        a->requests[i] = (struct request){.op = ops[k], .used = true};
        ASSERT(push(a, i)); /* the space was checked above */
    }
    /* Requests that the kernel refuses now (e.g. out of memory) stay in the ring and are submitted
     * by the next call. */
    (void)io_uring_submit(&a->ring);
    return OK;
}

static void cancel_one(struct aio *a, uint32_t i)
{
    struct io_uring_sqe *sqe;

    if (a->requests[i].cancelled || !(sqe = next_sqe(a)))
        return;
    a->requests[i].cancelled = true;
    io_uring_prep_cancel64(sqe, (uint64_t)i + 1, 0);
    io_uring_sqe_set_data64(sqe, 0);
    (void)io_uring_submit(&a->ring);
}

void aio_cancel(struct aio *a, uint64_t tag)
{
    if (a->threads) {
        aio_threads_cancel(a->threads, tag);
        return;
    }
    for (uint32_t i = 0; i < a->depth; i++)
        if (a->requests[i].used && a->requests[i].op.tag == tag)
            cancel_one(a, i);
}

/* --- io_uring: completion --- */

/* True: a request ended, and *out is its completion. */
static bool take_cqe(struct aio *a, const struct io_uring_cqe *cqe, struct aio_done *out)
{
    uint64_t data = io_uring_cqe_get_data64(cqe);

    if (data == 0) /* completion of a cancellation */
        return false;
    uint32_t i = (uint32_t)(data - 1);
    struct request *r = &a->requests[i];
    enum status s = OK;
    int error = 0;
    bool over = aio_step(&r->op, cqe->res, &r->n_done, &s, &error);
    if (!over && r->cancelled) {
        s = ERR_CANCELLED;
        error = ECANCELED;
    } else if (!over && push(a, i)) {
        return false; /* continues; the caller submits */
    } else if (!over) {
        s = ERR_IO;
        error = EBUSY;
    }
    *out = (struct aio_done){r->op.tag, s, error, r->n_done};
    r->used = false;
    a->free[a->n_free++] = i;
    return true;
}

static uint32_t reap_ring(struct aio *a, struct aio_done *out, uint32_t n_max)
{
    struct io_uring_cqe *cqe;
    uint32_t n = 0;

    while (n < n_max && io_uring_peek_cqe(&a->ring, &cqe) == 0) {
        if (take_cqe(a, cqe, &out[n]))
            n++;
        io_uring_cqe_seen(&a->ring, cqe);
    }
    if (io_uring_sq_ready(&a->ring) > 0)
        (void)io_uring_submit(&a->ring);
    return n;
}

uint32_t aio_reap(struct aio *a, struct aio_done *out, uint32_t n_max)
{
    return a->threads ? aio_threads_reap(a->threads, out, n_max) : reap_ring(a, out, n_max);
}

enum status aio_wait(struct aio *a, uint64_t deadline_ns, struct aio_done *out, uint32_t n_max,
                     uint32_t *n)
{
    if (a->threads)
        return aio_threads_wait(a->threads, deadline_ns, out, n_max, n);
    *n = 0;
    if (a->n_free == a->depth)
        return ERR_NOT_FOUND;
    for (;;) {
        *n = reap_ring(a, out, n_max);
        if (*n > 0)
            return OK;
        uint64_t now = clock_now_ns();
        if (now >= deadline_ns)
            return ERR_TIMEOUT;
        uint64_t left = deadline_ns - now;
        struct __kernel_timespec ts = {.tv_sec = (int64_t)(left / 1000000000u),
                                       .tv_nsec = (long long)(left % 1000000000u)};
        struct io_uring_cqe *cqe;
        int r = io_uring_wait_cqe_timeout(&a->ring, &cqe, deadline_ns == UINT64_MAX ? NULL : &ts);
        if (r < 0 && r != -ETIME && r != -EINTR && r != -EAGAIN && r != -EBUSY)
            return ERR_IO;
    }
}
