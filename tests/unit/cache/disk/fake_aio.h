/* fake_aio.h - replaces base/aio by a device controlled by the test. Requests are carried out with
 * pread() and pwrite(), in any order, wrongly, late or never. Each write also checks the disk: a
 * valid header must never be there without its payload.
 *
 * Include it once after disk_world.h, and link with the --wrap options that tests/CMakeLists.txt
 * calls fake_aio. */
#ifndef TARN_TESTS_UNIT_CACHE_FAKE_AIO_H
#define TARN_TESTS_UNIT_CACHE_FAKE_AIO_H

#include <errno.h>

#include "base/aio.h"

#define FAKE_DEPTH 256u

struct aio {
    uint32_t depth;
};

static struct {
    struct aio aio;
    const struct world *world; /* whose files are checked */
    struct aio_op ops[FAKE_DEPTH];
    uint64_t numbers[FAKE_DEPTH]; /* in the order of submission, from 1 */
    uint32_t n;                   /* in progress */
    uint64_t n_ever;
    /* set by the test */
    bool holds;           /* no request ends by itself, except for: */
    bool ends;            /* one request, */
    uint32_t ends_at;     /* this one, at the next poll */
    bool is_dead;         /* the process was killed: no later request reaches the disk */
    uint64_t shuffle;     /* a seed: requests end in any order, some later; 0: in order */
    uint64_t fail_nth;    /* the request with this number fails; 0: none */
    uint32_t fail_one_in; /* fail at random, by `shuffle`; 0: none */
    int fail_error;       /* with this error; 0: the file ends (a read), EIO (a write) */
    bool fail_half;       /* half of a failed write is written */
    uint32_t n_busy;      /* number of calls that find the queue full */
    uint64_t n_draws;
    uint32_t n_failed;
} fake;

static uint32_t fake_draw(uint32_t below)
{
    return rng_u32(fake.shuffle, fake.n_draws++) % below;
}

static void fake_reset(const struct world *w)
{
    memset(&fake, 0, sizeof fake);
    fake.world = w;
    fake.fail_error = EIO;
}

/* --- the expected files --- */

static bool fake_is_table(int fd)
{
    return fd == disk_directory(fake.world->d)->table_fd;
}

static void fake_check_payload(uint32_t extent, const struct disk_record *r)
{
    uint8_t payload[BLOCK_BYTES];

    read_file(fake.world, "data", (uint64_t)extent * EXTENT_BYTES, payload, sizeof payload);
    assert_int_equal(hash_crc32c(0, payload, sizeof payload), r->payload_crc);
}

/* Check a write before it is carried out. */
static void fake_check_write(const struct aio_op *op)
{
    struct disk_reader reader;
    struct disk_record r;

    disk_reader_init(&reader, fake.world->fingerprint);
    if (!fake_is_table(op->fd)) {
        for (uint64_t e = op->offset / EXTENT_BYTES; e * EXTENT_BYTES < op->offset + op->n_bytes;
             e++)
            assert_int_not_equal(look_on_disk(fake.world, (uint32_t)e, &r), DISK_VALID);
        return;
    }
    assert_true(op->offset >= DISK_PAGE_BYTES && op->n_bytes == DISK_PAGE_BYTES);
    uint32_t first = (uint32_t)((op->offset - DISK_PAGE_BYTES) / DISK_HEADER_BYTES);
    for (uint32_t i = 0; i < DISK_HEADERS_PER_PAGE; i++) {
        const uint8_t *header = (const uint8_t *)op->data + i * DISK_HEADER_BYTES;
        if (disk_header_decode(&reader, &r, header, first + i) == DISK_VALID)
            fake_check_payload(first + i, &r);
    }
}

/* --- ends --- */

static bool fake_fails(uint64_t number)
{
    return number == fake.fail_nth || (fake.fail_one_in && fake_draw(fake.fail_one_in) == 0);
}

static void fake_carry_out(const struct aio_op *op, size_t n)
{
    ssize_t r = (ssize_t)n;

    if (fake.is_dead || n == 0)
        return;
    if (op->write)
        fake_check_write(op);
    r = op->write ? pwrite(op->fd, op->data, n, (off_t)op->offset)
                  : pread(op->fd, op->data, n, (off_t)op->offset);
    assert_int_equal(r, n);
}

/* End the i-th request in progress; the last one takes its place. */
static struct aio_done fake_end(uint32_t i)
{
    struct aio_op op = fake.ops[i];
    struct aio_done done = {.tag = op.tag, .status = OK, .n_bytes = op.n_bytes};

    if (fake_fails(fake.numbers[i])) {
        fake.n_failed++;
        done.n_bytes = fake.fail_half ? op.n_bytes / 2 / DISK_PAGE_BYTES * DISK_PAGE_BYTES : 0;
        done.error = op.write && !fake.fail_error ? EIO : fake.fail_error;
        done.status = done.error ? ERR_IO : ERR_CORRUPT;
    }
    fake_carry_out(&op, done.n_bytes);
    fake.n--;
    memmove(&fake.ops[i], &fake.ops[i + 1], (fake.n - i) * sizeof fake.ops[0]);
    memmove(&fake.numbers[i], &fake.numbers[i + 1], (fake.n - i) * sizeof fake.numbers[0]);
    return done;
}

/* --- base/aio --- */

enum status __wrap_aio_open(struct aio **out, const struct aio_config *config, struct buf *why);
enum status __wrap_aio_close(struct aio *a, uint64_t deadline_ns);
enum status __wrap_aio_submit(struct aio *a, const struct aio_op *ops, uint32_t n);
uint32_t __wrap_aio_reap(struct aio *a, struct aio_done *out, uint32_t n_max);
enum status __wrap_aio_wait(struct aio *a, uint64_t deadline_ns, struct aio_done *out,
                            uint32_t n_max, uint32_t *n);
void __wrap_aio_cancel(struct aio *a, uint64_t tag);
const char *__wrap_aio_name(const struct aio *a);

enum status __wrap_aio_open(struct aio **out, const struct aio_config *config, struct buf *why)
{
    (void)why;
    assert_true(config->depth <= FAKE_DEPTH);
    fake.aio.depth = config->depth;
    *out = &fake.aio;
    return OK;
}

/* Requests that the test holds do not end before the deadline. */
enum status __wrap_aio_close(struct aio *a, uint64_t deadline_ns)
{
    (void)a;
    (void)deadline_ns;
    while (!fake.holds && fake.n > 0)
        (void)fake_end(0);
    return fake.n > 0 ? ERR_TIMEOUT : OK;
}

enum status __wrap_aio_submit(struct aio *a, const struct aio_op *ops, uint32_t n)
{
    if (fake.n_busy > 0) {
        fake.n_busy--;
        return ERR_BUSY;
    }
    if (n > a->depth - fake.n)
        return ERR_BUSY;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal((uintptr_t)ops[i].data % DISK_PAGE_BYTES, 0);
        assert_true(ops[i].offset % DISK_PAGE_BYTES == 0 && ops[i].n_bytes % DISK_PAGE_BYTES == 0);
        for (uint32_t k = 0; k < fake.n; k++) /* one write to a place at a time */
            assert_false(ops[i].write && fake.ops[k].write && ops[i].fd == fake.ops[k].fd &&
                         ops[i].offset < fake.ops[k].offset + fake.ops[k].n_bytes &&
                         fake.ops[k].offset < ops[i].offset + ops[i].n_bytes);
        fake.numbers[fake.n] = ++fake.n_ever;
        fake.ops[fake.n++] = ops[i];
    }
    return OK;
}

uint32_t __wrap_aio_reap(struct aio *a, struct aio_done *out, uint32_t n_max)
{
    uint32_t n = 0;

    (void)a;
    if (fake.holds && fake.ends && n_max > 0) {
        fake.ends = false;
        out[n++] = fake_end(fake.ends_at);
    }
    if (fake.holds)
        return n;
    while (n < n_max && fake.n > 0) {
        if (fake.shuffle && fake_draw(3) == 0)
            break;
        out[n++] = fake_end(fake.shuffle ? fake_draw(fake.n) : 0);
    }
    return n;
}

enum status __wrap_aio_wait(struct aio *a, uint64_t deadline_ns, struct aio_done *out,
                            uint32_t n_max, uint32_t *n)
{
    (void)deadline_ns;
    *n = 0;
    if (fake.n == 0)
        return ERR_NOT_FOUND;
    while (!fake.holds && *n == 0)
        *n = __wrap_aio_reap(a, out, n_max);
    return *n > 0 ? OK : ERR_TIMEOUT;
}

/* A cancel may or may not help; here it does not. */
void __wrap_aio_cancel(struct aio *a, uint64_t tag)
{
    (void)a;
    (void)tag;
}

const char *__wrap_aio_name(const struct aio *a)
{
    (void)a;
    return "fake";
}

#endif
