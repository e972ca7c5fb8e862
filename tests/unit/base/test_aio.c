#include "tests/unit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/buf.h"
#include "base/clock.h"
#include "tests/unit/fault.h"

#define FILE_BYTES 1000003u /* no multiple of anything */
#define SECOND_NS UINT64_C(1000000000)
#define WAIT_MAX_NS (240 * SECOND_NS) /* a guard against hanging */

/* --- a file system that is cut short or hangs, for the back end with threads: this binary's
 * pread() and pwrite() replace the C library's --- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n_max; /* bytes of one call; 0: all */
    int hang_fd;  /* calls for it wait; -1: none */
    uint32_t n_begun, n_ended;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .hang_fd = -1};

static size_t pass(int fd, size_t n)
{
    pthread_mutex_lock(&disk.lock);
    disk.n_begun++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.hang_fd == fd)
        pthread_cond_wait(&disk.changed, &disk.lock);
    if (disk.n_max && n > disk.n_max)
        n = disk.n_max;
    pthread_mutex_unlock(&disk.lock);
    return n;
}

static ssize_t end(ssize_t result)
{
    pthread_mutex_lock(&disk.lock);
    disk.n_ended++;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
    return result;
}

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    struct iovec v = {data, pass(fd, n)};

    return end(preadv(fd, &v, 1, offset));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    struct iovec v = {(void *)data, pass(fd, n)};

    return end(pwritev(fd, &v, 1, offset));
}

static void set_disk(size_t n_max, int hang_fd)
{
    pthread_mutex_lock(&disk.lock);
    disk.n_max = n_max;
    disk.hang_fd = hang_fd;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

/* Until n calls are under way. */
static void wait_for_calls(uint32_t n)
{
    pthread_mutex_lock(&disk.lock);
    while (disk.n_begun - disk.n_ended != n)
        pthread_cond_wait(&disk.changed, &disk.lock);
    pthread_mutex_unlock(&disk.lock);
}

/* --- helpers --- */

static const enum aio_backend both[] = {AIO_URING, AIO_THREADS};

/* NULL where this kernel has no io_uring. */
static struct aio *open_queue(enum aio_backend backend, uint32_t depth)
{
    struct aio_config config = {.backend = backend, .depth = depth};
    struct aio *a;
    enum status s = aio_open(&a, &config, NULL);

    if (backend == AIO_URING && s == ERR_UNSUPPORTED)
        return NULL;
    assert_ok(s);
    return a;
}

static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 2654435761u >> 13);
}

static int make_file(void)
{
    char path[] = "/tmp/test_aio.XXXXXX";
    int fd = mkstemp(path);
    unsigned char *all = malloc(FILE_BYTES);

    assert_true(fd >= 0);
    unlink(path);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        all[i] = byte_at(i);
    assert_int_equal(write(fd, all, FILE_BYTES), FILE_BYTES);
    free(all);
    return fd;
}

/* The completion of the only request under way. */
static struct aio_done finish_one(struct aio *a)
{
    struct aio_done done;
    uint32_t n;

    assert_ok(aio_wait(a, clock_now_ns() + WAIT_MAX_NS, &done, 1, &n));
    assert_int_equal(n, 1);
    assert_int_equal(aio_n_pending(a), 0);
    return done;
}

static struct aio_done run_one(struct aio *a, struct aio_op op)
{
    assert_ok(aio_submit(a, &op, 1));
    return finish_one(a);
}

/* --- reads return the bytes of the file --- */

#define DEPTH 32
#define PIECE_MAX 50000u

static void random_batches(struct aio *a, int fd, unsigned char *data, unsigned seed)
{
    struct aio_op ops[DEPTH], pending[DEPTH] = {{0}};
    uint32_t n_left = 600;

    while (n_left > 0 || aio_n_pending(a) > 0) {
        uint32_t n = 0, n_free = 0, free_slots[DEPTH];
        for (uint32_t i = 0; i < DEPTH; i++)
            if (pending[i].n_bytes == 0)
                free_slots[n_free++] = i;
        uint32_t want = n_left ? (uint32_t)rand_r(&seed) % (n_free + 1) : 0;
        for (; n < want && n < n_left; n++) {
            uint32_t slot = free_slots[n];
            uint32_t size = 1 + (uint32_t)rand_r(&seed) % PIECE_MAX;
            pending[slot] = ops[n] =
                (struct aio_op){.write = false,
                                .fd = fd,
                                .data = data + (size_t)slot * PIECE_MAX,
                                .n_bytes = size,
                                .offset = (uint32_t)rand_r(&seed) % (FILE_BYTES - size),
                                .tag = slot};
        }
        assert_ok(aio_submit(a, ops, n));
        n_left -= n;
        struct aio_done done[DEPTH];
        uint32_t n_done = aio_reap(a, done, 1 + (uint32_t)rand_r(&seed) % DEPTH);
        if (n_done == 0 && aio_n_pending(a) > 0)
            assert_ok(aio_wait(a, UINT64_MAX, done, DEPTH, &n_done));
        for (uint32_t i = 0; i < n_done; i++) {
            struct aio_op *op = &pending[done[i].tag];
            assert_ok(done[i].status);
            assert_int_equal(done[i].error, 0);
            assert_int_equal(done[i].n_bytes, op->n_bytes);
            for (size_t k = 0; k < op->n_bytes; k++)
                assert_int_equal(((unsigned char *)op->data)[k], byte_at(op->offset + k));
            memset(op->data, 0, op->n_bytes);
            op->n_bytes = 0;
        }
    }
}

static void random_batches_read_what_the_file_holds(void **state)
{
    unsigned char *data = malloc(DEPTH * PIECE_MAX);
    int fd = make_file();

    (void)state;
    for (int b = 0; b < 4; b++) {
        struct aio_region region = {data, DEPTH / 2 * PIECE_MAX}; /* the other half is not in it */
        struct aio_config config = {.backend = both[b % 2],
                                    .depth = DEPTH,
                                    .n_threads = 5,
                                    .regions = &region,
                                    .n_regions = b >= 2 ? 1 : 0};
        struct aio *a;
        enum status s = aio_open(&a, &config, NULL);
        if (s == ERR_UNSUPPORTED)
            continue;
        assert_ok(s);
        set_disk(b == 3 ? 999 : 0, -1); /* every call ends short */
        random_batches(a, fd, data, 1234 + (unsigned)b);
        set_disk(0, -1);
        assert_ok(aio_close(a, UINT64_MAX));
    }
    close(fd);
    free(data);
}

static void what_was_written_is_read_again(void **state)
{
    (void)state;
    for (int b = 0; b < 2; b++) {
        char path[] = "/tmp/test_aio.XXXXXX";
        int fd = mkstemp(path);
        struct aio *a = open_queue(both[b], 8);
        unsigned char from[8][1000], to[8][1000];
        struct aio_op ops[8];
        struct aio_done done[8];
        uint32_t n, n_done = 0;
        unlink(path);
        if (!a) {
            close(fd);
            continue;
        }
        set_disk(b ? 77 : 0, -1);
        for (unsigned i = 0; i < 8; i++) { /* from the back: the file grows with holes */
            memset(from[i], (int)i + 1, sizeof from[i]);
            ops[i] = (struct aio_op){true, fd, from[i], sizeof from[i], (7 - i) * 1000u, i};
        }
        assert_ok(aio_submit(a, ops, 8));
        for (; n_done < 8; n_done += n) {
            assert_ok(aio_wait(a, UINT64_MAX, done, 8, &n));
            for (uint32_t i = 0; i < n; i++)
                assert_ok(done[i].status);
        }
        for (unsigned i = 0; i < 8; i++)
            ops[i] = (struct aio_op){false, fd, to[i], sizeof to[i], (7 - i) * 1000u, i};
        assert_ok(aio_submit(a, ops, 8));
        for (n_done = 0; n_done < 8; n_done += n) {
            assert_ok(aio_wait(a, UINT64_MAX, done, 8, &n));
            for (uint32_t i = 0; i < n; i++)
                assert_ok(done[i].status);
        }
        assert_memory_equal(from, to, sizeof from);
        set_disk(0, -1);
        assert_ok(aio_close(a, UINT64_MAX));
        close(fd);
    }
}

static void a_direct_read_gives_the_same_bytes(void **state)
{
    char path[] = "./test_aio.XXXXXX"; /* /tmp may be a tmpfs, which has no O_DIRECT */
    int fd = mkstemp(path), direct;
    void *data = NULL;

    (void)state;
    assert_true(fd >= 0);
    for (uint64_t i = 0; i < 10000; i++) {
        unsigned char c = byte_at(i);
        assert_int_equal(write(fd, &c, 1), 1);
    }
    direct = open(path, O_RDONLY | O_DIRECT);
    unlink(path);
    assert_int_equal(posix_memalign(&data, 4096, 16384), 0);
    for (int b = 0; direct >= 0 && b < 2; b++) {
        struct aio *a = open_queue(both[b], 2);
        if (!a)
            continue;
        memset(data, 0, 16384);
        struct aio_done done = run_one(a, (struct aio_op){false, direct, data, 8192, 0, 7});
        assert_ok(done.status);
        for (uint64_t i = 0; i < 8192; i++)
            assert_int_equal(((unsigned char *)data)[i], byte_at(i));
        /* The file ends inside the last sector. */
        done = run_one(a, (struct aio_op){false, direct, data, 8192, 4096, 8});
        assert_int_equal(done.status, ERR_CORRUPT);
        assert_int_equal(done.n_bytes, 10000 - 4096);
        assert_ok(aio_close(a, UINT64_MAX));
    }
    free(data);
    if (direct >= 0)
        close(direct);
    close(fd);
}

/* --- errors --- */

static void each_failure_has_its_status_and_errno(void **state)
{
    char data[5000];
    int fd = make_file(), full = open("/dev/full", O_RDWR), dir = open("/tmp", O_RDONLY);

    (void)state;
    for (int b = 0; b < 2; b++) {
        struct aio *a = open_queue(both[b], 4);
        struct aio_done done;
        if (!a)
            continue;
        done = run_one(a, (struct aio_op){false, fd, data, 5000, FILE_BYTES - 1234, 11});
        assert_int_equal(done.tag, 11);
        assert_int_equal(done.status, ERR_CORRUPT); /* the file ends before */
        assert_int_equal(done.error, 0);
        assert_int_equal(done.n_bytes, 1234);
        for (uint64_t i = 0; i < 1234; i++)
            assert_int_equal((unsigned char)data[i], byte_at(FILE_BYTES - 1234 + i));
        done = run_one(a, (struct aio_op){false, fd, data, 10, FILE_BYTES + 100, 12});
        assert_int_equal(done.status, ERR_CORRUPT);
        assert_int_equal(done.n_bytes, 0);
        done = run_one(a, (struct aio_op){false, 9999, data, 10, 0, 13});
        assert_int_equal(done.status, ERR_IO);
        assert_int_equal(done.error, EBADF);
        done = run_one(a, (struct aio_op){true, full, data, 10, 0, 14});
        assert_int_equal(done.status, ERR_IO);
        assert_int_equal(done.error, ENOSPC);
        done = run_one(a, (struct aio_op){false, dir, data, 10, 0, 15});
        assert_int_equal(done.status, ERR_IO);
        assert_int_equal(done.error, EISDIR);
        done = run_one(a, (struct aio_op){false, fd, (void *)16, 10, 0, 16});
        assert_int_equal(done.error, EFAULT);
        done = run_one(a, (struct aio_op){false, fd, data, 10, 0, 17}); /* still works */
        assert_ok(done.status);
        assert_ok(aio_close(a, UINT64_MAX));
    }
    close(fd);
    close(full);
    close(dir);
}

static void a_full_queue_is_said_and_takes_all_or_nothing(void **state)
{
    char data[6];
    int fd = make_file();

    (void)state;
    for (int b = 0; b < 2; b++) {
        struct aio *a = open_queue(both[b], 5);
        struct aio_op ops[6];
        struct aio_done done[8];
        uint32_t n, n_done = 0;
        if (!a)
            continue;
        for (unsigned i = 0; i < 6; i++)
            ops[i] = (struct aio_op){false, fd, data + i, 1, i, i};
        assert_int_equal(aio_submit(a, ops, 6), ERR_BUSY);
        assert_int_equal(aio_n_pending(a), 0);
        assert_ok(aio_submit(a, ops, 3));
        assert_int_equal(aio_submit(a, ops + 3, 3), ERR_BUSY); /* none was reaped */
        assert_int_equal(aio_n_pending(a), 3);
        assert_ok(aio_submit(a, ops + 3, 2));
        for (; n_done < 5; n_done += n)
            assert_ok(aio_wait(a, UINT64_MAX, done, 8, &n));
        assert_int_equal(aio_wait(a, UINT64_MAX, done, 8, &n), ERR_NOT_FOUND);
        assert_ok(aio_submit(a, ops, 5));
        assert_ok(aio_close(a, UINT64_MAX)); /* with requests under way */
    }
    close(fd);
}

/* --- what hangs: an empty pipe for io_uring, `disk` for threads --- */

struct hang {
    int read_fd, write_fd;
};

static struct hang begin_hang(enum aio_backend backend)
{
    struct hang h;
    int fds[2];

    if (backend == AIO_URING) {
        assert_int_equal(pipe(fds), 0);
        h = (struct hang){fds[0], fds[1]};
    } else {
        h = (struct hang){make_file(), -1};
        set_disk(0, h.read_fd);
    }
    return h;
}

static void end_hang(struct hang *h)
{
    if (h->write_fd >= 0)
        assert_int_equal(write(h->write_fd, "0123456789", 10), 10);
    else
        set_disk(0, -1);
}

static void close_hang(struct hang *h)
{
    close(h->read_fd);
    if (h->write_fd >= 0)
        close(h->write_fd);
}

static void a_deadline_passes_and_the_request_ends_later(void **state)
{
    (void)state;
    for (int b = 0; b < 2; b++) {
        struct aio *a = open_queue(both[b], 4);
        struct aio_done done;
        char data[10];
        uint32_t n;
        if (!a)
            continue;
        struct hang h = begin_hang(both[b]);
        struct aio_op op = {false, h.read_fd, data, 10, 0, 21};
        assert_ok(aio_submit(a, &op, 1));
        uint64_t t0 = clock_now_ns();
        assert_int_equal(aio_reap(a, &done, 1), 0);
        assert_int_equal(aio_wait(a, t0 + SECOND_NS / 20, &done, 1, &n), ERR_TIMEOUT);
        assert_int_equal(n, 0);
        assert_true(clock_now_ns() - t0 >= SECOND_NS / 20);
        assert_int_equal(aio_n_pending(a), 1);
        end_hang(&h);
        done = finish_one(a);
        assert_int_equal(done.tag, 21);
        assert_ok(done.status);
        assert_ok(aio_close(a, UINT64_MAX));
        close_hang(&h);
    }
}

static void what_has_not_begun_is_cancelled_by_its_tag(void **state)
{
    (void)state;
    for (int b = 0; b < 2; b++) {
        struct aio_config config = {.backend = both[b], .depth = 4, .n_threads = 1};
        struct aio *a;
        struct aio_done done[4];
        char data[3][10];
        uint32_t n, n_done = 0, n_cancelled = 0;
        if (aio_open(&a, &config, NULL) != OK)
            continue;
        struct hang h = begin_hang(both[b]);
        for (unsigned i = 0; i < 3; i++) { /* the first occupies the only thread */
            struct aio_op op = {false, h.read_fd, data[i], 10, 0, i == 0 ? 30 : 31};
            assert_ok(aio_submit(a, &op, 1));
        }
        if (both[b] == AIO_THREADS)
            wait_for_calls(1);
        aio_cancel(a, 31);
        for (; n_done < 2; n_done += n) {
            assert_ok(aio_wait(a, clock_now_ns() + WAIT_MAX_NS, done, 4, &n));
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(done[i].tag, 31);
                n_cancelled += done[i].status == ERR_CANCELLED;
            }
        }
        assert_int_equal(n_cancelled, 2);
        end_hang(&h);
        done[0] = finish_one(a);
        assert_int_equal(done[0].tag, 30);
        assert_ok(done[0].status);
        assert_ok(aio_close(a, UINT64_MAX));
        close_hang(&h);
    }
}

static unsigned count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    unsigned n = 0;

    assert_non_null(tasks);
    while (readdir(tasks))
        n++;
    closedir(tasks);
    return n;
}

static void wait_for_threads(unsigned n)
{
    while (count_threads() > n)
        clock_sleep_ns(1000000);
}

static void close_does_not_wait_for_ever(void **state)
{
    static char data[10]; /* may be written to after the test */
    unsigned n_threads = count_threads();

    (void)state;
    for (int b = 0; b < 2; b++) {
        struct aio *a = open_queue(both[b], 4);
        if (!a)
            continue;
        struct hang h = begin_hang(both[b]);
        struct aio_op op = {false, h.read_fd, data, 10, 0, 1};
        assert_ok(aio_submit(a, &op, 1));
        if (both[b] == AIO_THREADS) /* let it begin */
            wait_for_calls(1);
        /* io_uring can stop the read of a pipe; a thread in a system call cannot be stopped. */
        bool stuck = both[b] == AIO_THREADS;
        assert_int_equal(aio_close(a, clock_now_ns() + (stuck ? SECOND_NS / 10 : WAIT_MAX_NS)),
                         stuck ? ERR_TIMEOUT : OK);
        end_hang(&h);
        if (both[b] == AIO_THREADS) {
            wait_for_calls(0);
            wait_for_threads(n_threads); /* the last one frees the queue: no leak is left */
        }
        close_hang(&h);
    }
}

static void without_memory_open_says_so(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    for (int b = 0; b < 2; b++)
        for (long nth = 1; nth < 20; nth++) {
            char region[100];
            struct aio_region r = {region, sizeof region};
            struct aio_config config = {
                .backend = both[b], .depth = 8, .regions = &r, .n_regions = 1};
            struct aio *a = NULL;
            struct buf why;
            buf_init(&why, BUF_WHY_MAX);
            fail_in = nth;
            enum status s = aio_open(&a, &config, &why);
            bool reached = fail_in == 0;
            fail_in = 0;
            if (s == OK) { /* a region that could not be registered is no failure */
                char c;
                int fd = make_file();
                assert_ok(run_one(a, (struct aio_op){false, fd, &c, 1, 5, 0}).status);
                assert_int_equal((unsigned char)c, byte_at(5));
                close(fd);
                assert_ok(aio_close(a, UINT64_MAX));
            } else {
                assert_null(a);
                assert_true(s == ERR_NOMEM || (b == 0 && s == ERR_UNSUPPORTED));
            }
            buf_fini(&why);
            if (!reached)
                break;
        }
#endif
}

static void auto_always_finds_one(void **state)
{
    struct aio *a = open_queue(AIO_AUTO, 1);

    (void)state;
    assert_true(!strcmp(aio_name(a), "io_uring") || !strcmp(aio_name(a), "threads"));
    print_message("%s\n", aio_name(a));
    assert_ok(aio_close(a, UINT64_MAX));
    assert_ok(aio_close(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_read_what_the_file_holds),
        cmocka_unit_test(what_was_written_is_read_again),
        cmocka_unit_test(a_direct_read_gives_the_same_bytes),
        cmocka_unit_test(each_failure_has_its_status_and_errno),
        cmocka_unit_test(a_full_queue_is_said_and_takes_all_or_nothing),
        cmocka_unit_test(a_deadline_passes_and_the_request_ends_later),
        cmocka_unit_test(what_has_not_begun_is_cancelled_by_its_tag),
        cmocka_unit_test(close_does_not_wait_for_ever),
        cmocka_unit_test(without_memory_open_says_so),
        cmocka_unit_test(auto_always_finds_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
