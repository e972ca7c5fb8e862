/* test_device_ipc.c - device memory of another process, on two emulated GPUs: copies and checksums,
 * handles that must not work, an owner that dies, calls that fail. */
#include "tests/unit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "cache/tier/tier.h"
#include "kernels/device.h"
#include "tests/cuda_emulation/emulation.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STEP = 5 }; /* of calls that fail: ten times slower */
#else
enum { STEP = 1 };
#endif

enum {
    N_BLOCKS = 8,
    BLOCK_BYTES = 20480,
    INVALID_VALUE = 1,
    ILLEGAL_ADDRESS = 700,
    MAP_FAILED_CODE = 205
}; /* cudaErrorMapBufferObjectFailed */

static const struct device_config small_config = {.kind = DEVICE_CUDA,
                                                  .n_threads = 1,
                                                  .max_rows = 3,
                                                  .max_k = 100,
                                                  .max_heads = 2,
                                                  .max_head_dim = 64};

static void fill(uint8_t *block, uint32_t i)
{
    for (uint32_t k = 0; k < BLOCK_BYTES; k += 4) {
        uint32_t r = rng_u32(3, i * 100000u + k);
        memcpy(block + k, &r, 4);
    }
}

/* --- the other process --- */

static struct owner {
    pid_t pid;
    int orders, answers; /* pipes */
    uint8_t handle[DEVICE_HANDLE_BYTES];
} owner;

static void give(int fd, const void *bytes, size_t n)
{
    if (write(fd, bytes, n) != (ssize_t)n)
        _exit(1);
}

/* Export memory, and fill it with blocks from `order` on for each byte that comes. */
static void own(int orders, int answers)
{
    static uint8_t block[BLOCK_BYTES];
    uint8_t handle[DEVICE_HANDLE_BYTES], order = 0;
    struct device *d;
    uint8_t *memory;

    if (device_open(&d, &small_config, NULL) != OK ||
        !(memory = device_alloc(d, (size_t)N_BLOCKS * BLOCK_BYTES)) ||
        device_export(d, memory, handle) != OK)
        _exit(1);
    do {
        for (uint32_t i = 0; i < N_BLOCKS; i++) {
            fill(block, order + i);
            if (device_upload(d, memory + (size_t)i * BLOCK_BYTES, block, BLOCK_BYTES) != OK)
                _exit(1);
        }
        give(answers, handle, sizeof handle);
    } while (read(orders, &order, 1) == 1);
    device_free(d, memory);
    device_close(d);
    _exit(0);
}

static void order(uint8_t first)
{
    give(owner.orders, &first, 1);
    assert_int_equal(read(owner.answers, owner.handle, sizeof owner.handle), sizeof owner.handle);
}

/* Before this process opens a device. */
static int start_owner(void **state)
{
    int orders[2], answers[2];

    (void)state;
    if (pipe(orders) != 0 || pipe(answers) != 0)
        return 1;
    owner.pid = fork();
    if (owner.pid == 0) {
        close(orders[1]);
        close(answers[0]);
        own(orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    owner.orders = orders[1];
    owner.answers = answers[0];
    return owner.pid < 0 ||
           read(owner.answers, owner.handle, sizeof owner.handle) != (ssize_t)sizeof owner.handle;
}

static int end_owner(void **state)
{
    int status = 0;

    (void)state;
    close(owner.orders);
    close(owner.answers);
    if (owner.pid > 0 && (waitpid(owner.pid, &status, 0) < 0 || status != 0))
        return 1;
    return 0;
}

static void kill_owner(void)
{
    kill(owner.pid, SIGKILL);
    assert_int_equal(waitpid(owner.pid, NULL, 0), owner.pid);
    owner.pid = 0;
}

/* --- this process --- */

static struct device *open_device(void)
{
    struct device *d;

    assert_ok(device_open(&d, &small_config, NULL));
    return d;
}

/* Copy all blocks, and wait. sums [N_BLOCKS]. */
static enum status pull(struct tier_near *near, const uint8_t *memory, void **buffers,
                        uint32_t *sums)
{
    const void *from[N_BLOCKS];
    uint32_t job;
    enum status s;

    for (uint32_t i = 0; i < N_BLOCKS; i++)
        from[i] = memory + (size_t)i * BLOCK_BYTES;
    s = tier_near_pull(near, from, buffers, N_BLOCKS, &job);
    while (s == OK && !tier_near_end(near, job, &s, sums))
        ;
    return s;
}

static void unstage(struct tier_near *near, void *const *buffers)
{
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        tier_near_unstage(near, buffers[i]);
}

/* Pull the blocks, which begin with `first`, and compare sums and bytes. */
static void check_pull(struct device *d, struct tier_near *near, const uint8_t *memory,
                       uint32_t first)
{
    static uint8_t expected[BLOCK_BYTES], got[BLOCK_BYTES];
    uint32_t sums[TIER_SUMS_MAX];
    void *buffers[N_BLOCKS];

    assert_true(tier_near_stage(near, buffers, N_BLOCKS));
    assert_ok(pull(near, memory, buffers, sums));
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        fill(expected, first + i);
        assert_int_equal(sums[i], hash_crc32c(0, expected, BLOCK_BYTES));
        assert_true(tier_near_has(near, buffers[i]));
        assert_ok(device_download(d, got, buffers[i], BLOCK_BYTES));
        assert_memory_equal(got, expected, BLOCK_BYTES);
    }
    unstage(near, buffers);
}

static void blocks_of_another_process_are_copied_and_summed(void **state)
{
    struct device *d = open_device();
    struct tier_near *near;
    void *memory, *again;

    (void)state;
    assert_ok(tier_near_open(&near, d, BLOCK_BYTES));
    assert_ok(device_map(d, owner.handle, &memory));
    check_pull(d, near, memory, 0);
    order(40); /* what the owner writes is seen at once */
    check_pull(d, near, memory, 40);
    assert_ok(device_map(d, owner.handle, &again)); /* by a second connection */
    device_unmap(d, memory);
    check_pull(d, near, again, 40);
    device_unmap(d, again);
    tier_near_close(near);
    device_close(d);
}

static void handles_that_must_not_work_do_not(void **state)
{
    struct device *d = open_device();
    uint8_t handle[DEVICE_HANDLE_BYTES] = "no handle";
    void *memory = device_alloc(d, 1 << 20), *mapped;

    (void)state;
    assert_int_equal(device_map(d, handle, &mapped), ERR_UNSUPPORTED);
    assert_ok(device_export(d, memory, handle));
    assert_int_equal(device_map(d, handle, &mapped), ERR_UNSUPPORTED); /* this process's own */
    assert_null(mapped);
    kill_owner();
    assert_int_equal(device_map(d, owner.handle, &mapped), ERR_UNSUPPORTED);
    assert_null(device_failure(d)); /* the GPU works on */
    device_free(d, memory);
    assert_int_equal(device_map(d, handle, &mapped), ERR_UNSUPPORTED);
    device_close(d);
}

/* The mapped memory stays readable, and a later pull ends without an error of the device. */
static void an_owner_that_is_killed_leaves_what_is_mapped(void **state)
{
    struct device *d = open_device();
    uint32_t job, sums[TIER_SUMS_MAX];
    void *memory, *buffers[N_BLOCKS];
    const void *from[1];
    struct tier_near *near;
    enum status s;

    (void)state;
    assert_ok(tier_near_open(&near, d, BLOCK_BYTES));
    assert_ok(device_map(d, owner.handle, &memory));
    assert_true(tier_near_stage(near, buffers, N_BLOCKS));
    from[0] = memory;
    assert_ok(tier_near_pull(near, from, buffers, 1, &job));
    kill_owner();
    while (!tier_near_end(near, job, &s, sums))
        ;
    assert_ok(s);
    unstage(near, buffers);
    check_pull(d, near, memory, 0);
    device_unmap(d, memory);
    tier_near_close(near);
    device_close(d);
}

/* A driver may refuse to unmap the memory of a process that has ended, with a code that does not
 * say whether the context still works. */
static void a_refused_unmapping_is_not_the_end_of_the_device(void **state)
{
    struct device *d = open_device();
    void *memory;

    (void)state;
    assert_ok(device_map(d, owner.handle, &memory));
    log_init(LOG_ERROR + 1, false);
    emulation_fail_call(1, MAP_FAILED_CODE);
    device_unmap(d, memory);
    emulation_fail_call(0, 0);
    log_init(LOG_ERROR, false);
    assert_null(device_failure(d));
    device_close(d);
}

/* Their sums cannot be computed: KV goes through the host then. */
static void blocks_that_are_too_large_are_refused(void **state)
{
    struct device *d = open_device();
    struct tier_near *near;

    (void)state;
    assert_int_equal(tier_near_open(&near, d, DEVICE_SUM_BYTES_MAX + 4), ERR_UNSUPPORTED);
    assert_int_equal(tier_near_open(&near, d, BLOCK_BYTES + 2), ERR_UNSUPPORTED);
    assert_null(near);
    device_close(d);
}

/* Everything that a pull needs, from the beginning on. Returns whether it worked. */
static bool try_all(struct device *d)
{
    uint32_t sums[TIER_SUMS_MAX];
    void *memory = NULL, *buffers[N_BLOCKS];
    struct tier_near *near;
    bool done = false;

    if (tier_near_open(&near, d, BLOCK_BYTES) != OK)
        return false;
    if (device_map(d, owner.handle, &memory) == OK) {
        assert_true(tier_near_stage(near, buffers, N_BLOCKS));
        done = pull(near, memory, buffers, sums) == OK;
        unstage(near, buffers);
    }
    tier_near_wait(near);
    device_unmap(d, memory);
    tier_near_close(near);
    return done;
}

static void each_call_may_fail(void **state)
{
    struct device *d = open_device();
    uint64_t n_calls, n_failed = 0;

    (void)state;
    n_calls = emulation_calls();
    assert_true(try_all(d));
    n_calls = emulation_calls() - n_calls;
    log_init(LOG_ERROR + 1, false);
    /* Most of the calls create and destroy the same events. */
    for (uint64_t n = 1; n <= n_calls; n += n < 90 || n > n_calls - 98 ? 20 : STEP) {
        emulation_fail_call(n, INVALID_VALUE);
        n_failed += !try_all(d);
        emulation_fail_call(0, 0);
        assert_null(device_failure(d));
    }
    assert_true(n_failed > 10);
    assert_true(try_all(d));
    emulation_kill(ILLEGAL_ADDRESS); /* the end of the device, and of nothing else */
    assert_false(try_all(d));
    assert_non_null(device_failure(d));
    emulation_kill(0);
    device_close(d);
    log_init(LOG_WARN, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, start_owner, end_owner)
        T(blocks_of_another_process_are_copied_and_summed),
        T(handles_that_must_not_work_do_not),
        T(an_owner_that_is_killed_leaves_what_is_mapped),
        T(blocks_that_are_too_large_are_refused),
        T(a_refused_unmapping_is_not_the_end_of_the_device),
        T(each_call_may_fail),
    };

    signal(SIGPIPE, SIG_IGN);
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
