#include "loadgen/bench/cache/disk_rate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"

#define PAGE_BYTES 4096u
#define FILL_BYTES ((size_t)4 << 20)
#define BUFFER_BYTES ((size_t)32 << 20)
#define DEPTH_MAX 64
#define PASS_MAX_NS UINT64_C(120000000000)

/* Requests of chunk_bytes, `depth` of them under way. Depth 1: plain pread(), one after another. */
static const struct pattern {
    uint32_t depth;
    size_t chunk_bytes;
} patterns[] = {
    {1, (size_t)8 << 20},    {8, (size_t)4 << 20},    {16, (size_t)1 << 20},
    {32, (size_t)512 << 10}, {64, (size_t)256 << 10}, {64, (size_t)128 << 10},
};

struct disk_rate {
    int fd;
    bool is_direct;
    uint64_t n_bytes;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    struct aio *aio;
    double best;   /* of all passes until now */
    char name[64]; /* its pattern */
};

/* Something that no layer below can leave out. */
static void fill_buffer(uint8_t *buffer, uint64_t offset)
{
    for (size_t i = 0; i < FILL_BYTES; i += sizeof(uint32_t)) {
        uint32_t v = rng_u32(offset, i);
        memcpy(buffer + i, &v, sizeof v);
    }
}

static enum status fill_file(struct disk_rate *r, const char *dir, struct buf *why)
{
    fill_buffer(r->buffer, 1);
    for (uint64_t at = 0; at < r->n_bytes;) {
        uint64_t left = r->n_bytes - at;
        memcpy(r->buffer, &at, sizeof at); /* no two pieces alike */
        ssize_t n = pwrite(r->fd, r->buffer, left < FILL_BYTES ? left : FILL_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || n % PAGE_BYTES)
            return buf_why(why, ERR_IO,
                           "cannot write %llu bytes in %s (%s): --disk-path must have "
                           "room",
                           (unsigned long long)r->n_bytes, dir,
                           n < 0 ? strerror(errno) : "the file ends early");
        at += (uint64_t)n;
    }
    if (fsync(r->fd) != 0)
        return buf_why(why, ERR_IO, "cannot write in %s: %s", dir, strerror(errno));
    return OK;
}

static enum status open_file(struct disk_rate *r, const char *dir, struct buf *why)
{
    r->fd = open(dir, O_RDWR | O_TMPFILE | O_DIRECT | O_CLOEXEC, 0600);
    r->is_direct = r->fd >= 0;
    if (r->fd < 0)
        r->fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (r->fd < 0)
        return buf_why(why, ERR_IO, "cannot make a file in %s: %s", dir, strerror(errno));
    return OK;
}

enum status disk_rate_create(struct disk_rate **out, const char *dir, uint64_t n_bytes,
                             struct buf *why)
{
    struct disk_rate *r = calloc(1, sizeof *r);

    *out = NULL;
    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory");
    r->fd = -1;
    r->n_bytes = (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    r->buffer = aligned_alloc(PAGE_BYTES, BUFFER_BYTES);
    enum status s = r->buffer ? OK : buf_why(why, ERR_NOMEM, "out of memory");
    if (s == OK) {
        struct aio_region region = {r->buffer, BUFFER_BYTES};
        struct aio_config c = {
            .backend = AIO_AUTO, .depth = DEPTH_MAX, .regions = &region, .n_regions = 1};
        memset(r->buffer, 1, BUFFER_BYTES);
        s = aio_open(&r->aio, &c, why);
    }
    if (s == OK)
        s = open_file(r, dir, why);
    if (s == OK)
        s = fill_file(r, dir, why);
    if (s != OK) {
        disk_rate_destroy(r);
        return s;
    }
    *out = r;
    return OK;
}

void disk_rate_destroy(struct disk_rate *r)
{
    if (!r)
        return;
    /* A read that still hangs may write into the buffer, which is then not freed. */
    if (aio_close(r->aio, clock_now_ns() + PASS_MAX_NS) == OK)
        free(r->buffer);
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

static bool read_plain(struct disk_rate *r, size_t chunk)
{
    for (uint64_t at = 0; at < r->n_bytes;) {
        uint64_t left = r->n_bytes - at;
        ssize_t n = pread(r->fd, r->buffer, left < chunk ? left : chunk, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (uint64_t)n;
    }
    return true;
}

/* The chunk that begins at `at`, into place number `tag` of the buffer. */
static bool submit(struct disk_rate *r, size_t chunk, uint64_t at, uint64_t tag)
{
    uint64_t left = r->n_bytes - at;
    struct aio_op op = {.fd = r->fd,
                        .data = r->buffer + tag * chunk,
                        .n_bytes = left < chunk ? left : chunk,
                        .offset = at,
                        .tag = tag};

    return aio_submit(r->aio, &op, 1) == OK;
}

static bool read_deep(struct disk_rate *r, const struct pattern *p)
{
    uint64_t at = 0, deadline = clock_now_ns() + PASS_MAX_NS;
    bool ok = true;

    for (uint32_t i = 0; ok && i < p->depth && at < r->n_bytes; i++, at += p->chunk_bytes)
        ok = submit(r, p->chunk_bytes, at, i);
    while (aio_n_pending(r->aio) > 0) {
        struct aio_done done[DEPTH_MAX];
        uint32_t n;

        if (aio_wait(r->aio, deadline, done, DEPTH_MAX, &n) != OK)
            return false;
        for (uint32_t i = 0; i < n; i++) {
            ok &= done[i].status == OK;
            if (!ok || at >= r->n_bytes)
                continue;
            ok = submit(r, p->chunk_bytes, at, done[i].tag);
            at += p->chunk_bytes;
        }
    }
    return ok;
}

static enum status one_pass(struct disk_rate *r, const struct pattern *p, double *rate,
                            struct buf *why)
{
    ASSERT(p->depth * p->chunk_bytes <= BUFFER_BYTES && p->depth <= DEPTH_MAX);
    if (!r->is_direct)
        posix_fadvise(r->fd, 0, 0, POSIX_FADV_DONTNEED);
    uint64_t t0 = clock_now_ns();
    bool ok = p->depth == 1 ? read_plain(r, p->chunk_bytes) : read_deep(r, p);
    *rate = (double)r->n_bytes / ((double)(clock_now_ns() - t0 + 1) * 1e-9);
    return ok ? OK
              : buf_why(why, ERR_IO, "a file in --disk-path cannot be read: %s", strerror(errno));
}

static void name_pattern(struct disk_rate *r, const struct pattern *p)
{
    snprintf(r->name, sizeof r->name, "%s, %u x %zu KiB",
             p->depth == 1 ? "pread" : aio_name(r->aio), p->depth, p->chunk_bytes >> 10);
}

enum status disk_rate_measure(struct disk_rate *r, double *bytes_per_s, struct buf *why)
{
    enum status s = OK;

    *bytes_per_s = 0;
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(patterns); i++) {
        double rate;
        s = one_pass(r, &patterns[i], &rate, why);
        if (s == OK && rate > *bytes_per_s)
            *bytes_per_s = rate;
        if (s == OK && rate > r->best) {
            r->best = rate;
            name_pattern(r, &patterns[i]);
        }
    }
    return s;
}

const char *disk_rate_pattern(const struct disk_rate *r)
{
    return r->name;
}

bool disk_rate_is_direct(const struct disk_rate *r)
{
    return r->is_direct;
}
