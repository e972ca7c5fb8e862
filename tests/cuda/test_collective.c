/* test_collective.c - collectives of several GPUs: sums in the order of the ranks, columns in the
 * order of the ranks, and the end of a group. Skipped where fewer than two GPUs are visible. */
#include "tests/cuda/cuda_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "tests/cuda_emulation/emulation.h"

void emulation_fail_call(uint64_t n, int error) __attribute__((weak));
void emulation_queue(unsigned n) __attribute__((weak));

#define ILLEGAL_ADDRESS 700
/* More than a piece of collective.cu. */
#define N_LARGE (((size_t)1 << 20) + 1001)
#define N_AHEAD 400 /* sums that a device would be given ahead of another one */

static void close_group(struct device_group *g)
{
    for (uint32_t r = 0; r < g->n; r++)
        device_close(g->devices[r]);
}

static struct device_group open_group(uint32_t n)
{
    struct device_group g = {.n = n};
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    for (uint32_t r = 0; r < n; r++) {
        struct device_config c = {.kind = DEVICE_CUDA,
                                  .n_threads = 1,
                                  .max_rows = 3,
                                  .max_k = 100,
                                  .max_heads = 2,
                                  .max_head_dim = 64,
                                  .ordinal = r};
        enum status s = device_open(&g.devices[r], &c, &why);
        if (s == ERR_UNSUPPORTED) {
            print_message("SKIP: %s\n", buf_str(&why));
            while (r-- > 0)
                device_close(g.devices[r]);
            buf_fini(&why);
            skip();
        }
        if (s != OK)
            fail_msg("%s", buf_str(&why));
    }
    enum status s = device_group_connect(&g, &why);
    if (s == ERR_UNSUPPORTED && !emulation_fail_call) {
        print_message("SKIP: %s\n", buf_str(&why));
        close_group(&g);
        buf_fini(&why);
        skip();
    }
    if (s != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return g;
}

/* A collective on one device, run by its thread. */
struct part {
    struct device *device;
    bool gathers;
    struct all_reduce_params sum;
    struct all_gather_params gather;
    enum status status;
    pthread_t thread;
};

static void *run_part(void *arg)
{
    struct part *p = arg;
    p->status = p->gathers ? device_all_gather(p->device, NULL, &p->gather)
                           : device_ops(p->device)->all_reduce(p->device, NULL, &p->sum);
    return NULL;
}

static void run_parts(struct part *parts, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(pthread_create(&parts[r].thread, NULL, run_part, &parts[r]), 0);
    for (uint32_t r = 0; r < n; r++)
        pthread_join(parts[r].thread, NULL);
}

/* Numbers of all magnitudes, whose sum depends on the order. */
static float number(uint32_t rank, size_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u + rank * 40503u) >> 7;
    float sign = x & 1 ? -1.0f : 1.0f;

    return sign * (float)(x % 1000) * (x % 7 == 0 ? 1e6f : 1e-3f);
}

static float *numbers_on(struct device *d, uint32_t rank, size_t n)
{
    float *x = malloc(n * sizeof *x), *on = device_alloc(d, n * sizeof *x);

    assert_non_null(x);
    assert_non_null(on);
    for (size_t i = 0; i < n; i++)
        x[i] = number(rank, i);
    assert_ok(device_upload(d, on, x, n * sizeof *x));
    free(x);
    return on;
}

static float sum_in_order(uint32_t n_ranks, size_t i)
{
    float sum = number(0, i);

    for (uint32_t r = 1; r < n_ranks; r++)
        sum += number(r, i);
    return sum;
}

static void check_sums(struct device_group *g, size_t n)
{
    struct part parts[DEVICE_GROUP_MAX];
    float *got = malloc(n * sizeof *got), want;

    assert_non_null(got);
    for (uint32_t r = 0; r < g->n; r++)
        parts[r] = (struct part){.device = g->devices[r],
                                 .sum = {.n = n, .x = numbers_on(g->devices[r], r, n)}};
    run_parts(parts, g->n);
    for (uint32_t r = 0; r < g->n; r++) {
        assert_ok(parts[r].status);
        assert_ok(device_download(g->devices[r], got, parts[r].sum.x, n * sizeof *got));
        for (size_t i = 0; i < n; i++) {
            want = sum_in_order(g->n, i);
            if (memcmp(&got[i], &want, sizeof want))
                fail_msg("rank %u, element %zu of %zu is %a, the sum is %a", r, i, n,
                         (double)got[i], (double)want);
        }
        device_free(g->devices[r], parts[r].sum.x);
    }
    free(got);
}

static void sums_have_the_order_of_the_ranks_on_every_device(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 3; n++) {
        struct device_group g = open_group(n);

        check_sums(&g, 1);
        check_sums(&g, 3000);
        if (n == 2)
            check_sums(&g, N_LARGE);
        close_group(&g);
    }
}

static void columns_are_joined_in_the_order_of_the_ranks(void **state)
{
    enum { N_ROWS = 5, N_COLS = 37, N = 2 };
    struct device_group g = open_group(N);
    struct part parts[N];
    float got[N_ROWS][N][N_COLS];

    (void)state;
    for (uint32_t r = 0; r < N; r++) {
        struct device *d = g.devices[r];

        parts[r] = (struct part){
            .device = d,
            .gathers = true,
            .gather = {.n_rows = N_ROWS, .n_cols = N_COLS, .x = numbers_on(d, r, N_ROWS * N_COLS)}};
        if (r == 0)
            parts[r].gather.out = device_alloc(d, sizeof got);
    }
    run_parts(parts, N);
    assert_ok(parts[0].status);
    assert_ok(parts[1].status);
    assert_ok(device_download(g.devices[0], got, parts[0].gather.out, sizeof got));
    for (uint32_t row = 0; row < N_ROWS; row++)
        for (uint32_t r = 0; r < N; r++)
            for (uint32_t col = 0; col < N_COLS; col++)
                assert_true(got[row][r][col] == number(r, row * N_COLS + col));
    close_group(&g);
}

static void a_failed_group_waits_for_nobody(void **state)
{
    struct device_group g = open_group(2);
    struct part part = {.device = g.devices[0], .sum = {.n = 10}};

    (void)state;
    part.sum.x = numbers_on(g.devices[0], 0, 10);
    run_part(&part); /* and the other device is not given its part */
    assert_ok(part.status);
    log_init(LOG_ERROR + 1, false);
    device_group_fail(&g, "the other one has left");
    log_init(LOG_WARN, false);
    for (uint32_t r = 0; r < 2; r++)
        assert_string_equal(device_failure(g.devices[r]), "the other one has left");
    run_part(&part);
    assert_int_equal(part.status, ERR_INTERNAL);
    close_group(&g); /* does not hang */
}

/* Sums on one device, which the other one is not given. */
struct many_parts {
    struct part part;
    atomic_uint n_done;
};

static void *run_many_parts(void *arg)
{
    struct many_parts *m = arg;

    for (int i = 0; i < N_AHEAD && m->part.status == OK; i++) {
        run_part(&m->part);
        atomic_fetch_add(&m->n_done, 1);
    }
    return NULL;
}

/* Wait until the thread gets no further. */
static void wait_until_stuck(struct many_parts *m)
{
    unsigned n, before;

    do {
        before = atomic_load(&m->n_done);
        usleep(300 * 1000);
        n = atomic_load(&m->n_done);
    } while (n == 0 || n != before);
}

static void check_end_behind(unsigned queue)
{
    struct device_group g = open_group(2);
    struct many_parts m = {.part = {.device = g.devices[0], .sum = {.n = 10}}};

    m.part.sum.x = numbers_on(g.devices[0], 0, 10);
    log_init(LOG_ERROR + 1, false);
    emulation_queue(queue);
    alarm(50); /* instead of hanging */
    assert_int_equal(pthread_create(&m.part.thread, NULL, run_many_parts, &m), 0);
    wait_until_stuck(&m);
    assert_true(atomic_load(&m.n_done) < N_AHEAD);
    device_group_fail(&g, "the other one has left");
    pthread_join(m.part.thread, NULL);
    alarm(0);
    emulation_queue(0);
    log_init(LOG_WARN, false);
    assert_int_equal(m.part.status, ERR_INTERNAL);
    for (uint32_t r = 0; r < 2; r++)
        assert_string_equal(device_failure(g.devices[r]), "the other one has left");
    close_group(&g);
}

/* A stream has room for about as many launches as a real one. A sum is three pieces of work, so one
 * of these queues is full when the thread is inside of NCCL, unless it waits before. */
static void a_group_ends_while_a_rank_waits_for_its_gpu(void **state)
{
    (void)state;
    if (!emulation_queue)
        skip();
    for (unsigned queue = 1000; queue < 1003; queue++)
        check_end_behind(queue);
}

/* Nobody can end a group whose thread does not come back: in a queue that is far too short it is
 * inside of NCCL. */
static void fail_with_a_short_queue(void)
{
    struct device_group g = open_group(2);
    struct many_parts m = {.part = {.device = g.devices[0], .sum = {.n = 10}}};

    m.part.sum.x = numbers_on(g.devices[0], 0, 10);
    emulation_queue(10);
    alarm(50);
    if (pthread_create(&m.part.thread, NULL, run_many_parts, &m) == 0)
        wait_until_stuck(&m);
    device_group_fail(&g, "the other one has left");
    _exit(0);
}

static void a_rank_that_stays_inside_of_nccl_ends_the_process(void **state)
{
    char text[2048] = "";
    size_t n = 0;
    int ends[2], status;

    (void)state;
    if (!emulation_queue)
        skip();
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        fail_with_a_short_queue();
    }
    close(ends[1]);
    for (ssize_t got = 1; got > 0 && n<sizeof text - 1; n += got> 0 ? (size_t)got : 0)
        got = read(ends[0], text + n, sizeof text - 1 - n);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_non_null(strstr(text, "NCCL does not let go"));
}

static void a_collective_that_fails_ends_the_group(void **state)
{
    struct device_group g = open_group(2);
    struct part part = {.device = g.devices[1], .sum = {.n = 10}};

    (void)state;
    if (!emulation_fail_call) {
        close_group(&g);
        skip();
    }
    part.sum.x = numbers_on(g.devices[1], 1, 10);
    log_init(LOG_ERROR + 1, false);
    emulation_fail_call(1, ILLEGAL_ADDRESS);
    run_part(&part);
    emulation_fail_call(0, 0);
    log_init(LOG_WARN, false);
    assert_int_equal(part.status, ERR_INTERNAL);
    assert_non_null(device_failure(g.devices[0]));
    assert_non_null(strstr(device_failure(g.devices[1]), "ncclAllGather"));
    close_group(&g);
}

static void memory_and_copies_belong_to_their_device(void **state)
{
    struct device_group g = open_group(2);
    size_t n_free[2], n_now, n_total;
    int got = 0, want = 7;

    (void)state;
    for (uint32_t r = 0; r < 2; r++)
        assert_ok(device_memory(g.devices[r], &n_free[r], &n_total));
    int *p = device_alloc(g.devices[1], 64 << 20);
    assert_non_null(p);
    assert_ok(device_memory(g.devices[0], &n_now, &n_total));
    assert_true(n_now + (1 << 20) > n_free[0]);
    assert_ok(device_memory(g.devices[1], &n_now, &n_total));
    assert_true(n_now + (32 << 20) < n_free[1]);
    assert_ok(device_upload(g.devices[1], p, &want, sizeof want));
    assert_ok(device_download(g.devices[1], &got, p, sizeof got));
    assert_int_equal(got, want);
    device_free(g.devices[1], p);
    close_group(&g);
}

static void a_gpu_that_is_not_there_is_refused_with_words(void **state)
{
    struct device_config c = {.kind = DEVICE_CUDA, .n_threads = 1, .ordinal = 99};
    struct device *d = NULL;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(device_open(&d, &c, &why), ERR_UNSUPPORTED);
    assert_null(d);
    assert_true(strlen(buf_str(&why)) > 0);
    buf_fini(&why);
}

static void a_host_device_joins_no_group(void **state)
{
    struct device_config c = {.kind = DEVICE_REF};
    struct device_group g = {.n = 2};
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (uint32_t r = 0; r < 2; r++)
        assert_ok(device_open(&g.devices[r], &c, &why));
    assert_int_equal(device_group_connect(&g, &why), ERR_UNSUPPORTED);
    assert_non_null(strstr(buf_str(&why), "GPUs"));
    close_group(&g);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_order_of_the_ranks_on_every_device),
        cmocka_unit_test(columns_are_joined_in_the_order_of_the_ranks),
        cmocka_unit_test(a_failed_group_waits_for_nobody),
        cmocka_unit_test(a_group_ends_while_a_rank_waits_for_its_gpu),
        cmocka_unit_test(a_rank_that_stays_inside_of_nccl_ends_the_process),
        cmocka_unit_test(a_collective_that_fails_ends_the_group),
        cmocka_unit_test(memory_and_copies_belong_to_their_device),
        cmocka_unit_test(a_gpu_that_is_not_there_is_refused_with_words),
        cmocka_unit_test(a_host_device_joins_no_group),
    };

    log_init(LOG_WARN, false);
    if (emulation_fail_call)
        setenv("TARN_EMULATION_DEVICES", "3", 1);
    return cmocka_run_group_tests_name("cuda_collective", tests, NULL, NULL);
}
