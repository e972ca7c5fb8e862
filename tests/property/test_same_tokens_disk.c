/* Promises P1 and P4 with the disk tier: 500 prompts give the same bits cold, from disk, after a
 * restart and after SIGKILL, and with a disk that fails, returns wrong bytes, is slow or hangs.
 *
 * The expected answers are those of an engine without prefix caching, one request at a time. */
#include "tests/unit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "tests/faulty_aio.h"
#include "tests/many_prompts.h"
#include "tests/temp_dir.h"

#ifndef N_PROMPTS /* sanitizer builds take fewer: see CMakeLists.txt */
#define N_PROMPTS 240
#endif
#define N_OUT 12
#define N_WINDOW 40
#define BLOCK_BYTES (2 * 2 * 2 * 12 * 32 * 2) /* layers, K and V, heads, head_dim, tokens, bf16 */
/* The disk holds all prompts with their answers; memory does not even hold those of a sanitizer
 * build. */
#define N_DISK_BYTES (UINT64_C(16) << 20)
#define N_DEVICE 100
#define N_HOST 60
#define TIMEOUT_MS 20000 /* only the injected delays exceed it */
#define WAIT_MAX_NS UINT64_C(120000000000)

static struct many_prompt prompts[N_PROMPTS];
static struct answer_digest cold[N_PROMPTS];

static void config(struct engine_config *c, const char *disk)
{
    engine_config_init(c);
    c->n_threads = 2;
    c->max_num_seqs = 16;
    c->max_batched_tokens = 200;
    c->max_model_len = MANY_PROMPTS_IDS_MAX + N_OUT;
    c->kv_bytes = (uint64_t)N_DEVICE * BLOCK_BYTES;
    c->check_each_step = N_PROMPTS < 240; /* in sanitizer builds, which use fewer prompts */
    if (!disk)
        return;
    c->kv_disk_path = disk;
    c->kv_disk_bytes = N_DISK_BYTES;
    c->kv_disk_min_uses = 1;
    c->kv_disk_timeout_ms = TIMEOUT_MS;
}

static int learn_cold(void **state)
{
    struct engine_config c;
    struct engine_test t;

    (void)state;
    config(&c, NULL);
    c.prefix_caching = false;
    engine_test_open(&t, NULL, &c);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        many_prompts_make(&prompts[p], p);
        cold[p] = many_prompts_digest(many_prompts_submit(&t, &prompts[p], p, N_OUT), N_OUT);
    }
    engine_test_close(&t);
    return 0;
}

/* Ask N_WINDOW prompts from number `from` on, all at once. Return the number of answers with other
 * bits than cold. */
static uint32_t ask_window(struct engine_test *t, uint32_t from, uint32_t stride, const char *how)
{
    uint32_t n = N_PROMPTS - from < N_WINDOW ? N_PROMPTS - from : N_WINDOW, n_wrong = 0;
    struct request *r[N_WINDOW];
    uint32_t which[N_WINDOW];

    for (uint32_t w = 0; w < n; w++) {
        which[w] = (from + w) * stride % N_PROMPTS;
        r[w] = many_prompts_submit(t, &prompts[which[w]], which[w], N_OUT);
    }
    for (uint32_t w = 0; w < n; w++) {
        struct answer_digest d = many_prompts_digest(r[w], N_OUT);
        if (memcmp(&d, &cold[which[w]], sizeof d) == 0)
            continue;
        n_wrong++;
        fprintf(stderr, "%s: prompt %u has other bits than cold\n", how, which[w]);
    }
    return n_wrong;
}

/* Ask all prompts `rounds` times, in a different order each time. Return the wrong answers. */
static uint32_t ask_all(struct engine_test *t, uint32_t rounds, const char *how)
{
    uint32_t n_wrong = 0;

    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < N_PROMPTS; i += N_WINDOW)
            n_wrong += ask_window(t, i, round % 2 ? 7 : 1, how); /* 7 is prime to N_PROMPTS */
    return n_wrong;
}

static bool is_busy(const struct cache_stats *c)
{
    uint32_t n = 0;

    for (int t = 0; t < CACHE_N_TIERS; t++)
        n += c->tier[t].n_in_use + c->tier[t].n_in_transfer;
    return n > 0;
}

/* Wait until no request runs and no transfer is under way, and check that each block of each tier
 * is in exactly one state. */
static void rest(struct engine_test *t, struct engine_stats *out, const char *how)
{
    const struct cache_stats *c = &out->cache;
    uint64_t t0 = clock_now_ns();

    for (engine_test_idle(t, out); is_busy(c); engine_stats(t->engine, out)) {
        assert_true(clock_now_ns() - t0 < WAIT_MAX_NS);
        clock_sleep_ns(1000000);
    }
    for (int i = 0; i < CACHE_N_TIERS; i++) {
        assert_int_equal(c->tier[i].n_leaked, 0);
        assert_int_equal(c->tier[i].n_free + c->tier[i].n_cached, c->tier[i].n_blocks);
    }
    assert_int_equal(out->n_finished[FINISH_ERROR], 0);
    printf("%s: of %llu tokens %llu found on the device, %llu on the host, %llu on disk (%s); %u "
           "blocks there, %llu failed, %llu corrupt, %llu too late, %llu not worth it\n",
           how, (unsigned long long)c->n_query_tokens,
           (unsigned long long)out->n_prompt_tokens_in[CACHE_DEVICE],
           (unsigned long long)out->n_prompt_tokens_in[CACHE_HOST],
           (unsigned long long)out->n_prompt_tokens_in[CACHE_DISK], c->disk.io,
           c->tier[CACHE_DISK].n_cached,
           (unsigned long long)(c->disk.n_reads_failed + c->disk.n_writes_failed),
           (unsigned long long)c->disk.n_corrupt, (unsigned long long)c->disk.n_timeouts,
           (unsigned long long)c->disk.n_not_worth);
}

static uint32_t n_refused(const struct cache_disk_stats *d)
{
    return d->n_torn + d->n_foreign + d->n_impossible + d->n_misnamed + d->n_orphaned +
           d->n_doubled;
}

/* --- a disk that works --- */

static void the_disk_tier_does_not_change_a_bit(void **state)
{
    static const char *const names[] = {"disk", "disk behind a host tier", "disk by threads"};
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        temp_dir_make(&d);
        config(&c, d.path);
        c.kv_host_bytes = kind == 1 ? (uint64_t)N_HOST * BLOCK_BYTES : 0;
        c.kv_disk_threads_only = kind == 2;
        engine_test_open(&t, NULL, &c);
        assert_int_equal(ask_all(&t, 2, names[kind]), 0);
        rest(&t, &st, names[kind]);
        assert_true(st.n_prompt_tokens_in[CACHE_DISK] > 0);
        assert_int_equal(n_refused(&st.cache.disk), 0);
        if (kind == 2)
            assert_string_equal(st.cache.disk.io, "threads");
        engine_test_close(&t);
        temp_dir_remove(&d);
    }
}

/* The next process finds all blocks that were written, which are those with two uses. */
static void a_restart_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    c.kv_disk_min_uses = 2;
    engine_test_open(&t, NULL, &c);
    assert_int_equal(ask_all(&t, 2, "before the restart"), 0);
    rest(&t, &st, "before the restart");
    uint32_t n_written = st.cache.tier[CACHE_DISK].n_cached;
    assert_true(n_written > 0);
    engine_test_close(&t);

    for (int again = 0; again < 2; again++) {
        engine_test_open(&t, NULL, &c);
        engine_stats(t.engine, &st);
        assert_int_equal(st.cache.disk.n_found, n_written);
        assert_int_equal(n_refused(&st.cache.disk), 0);
        assert_int_equal(ask_all(&t, 1, "after the restart"), 0);
        rest(&t, &st, "after the restart");
        assert_true(st.n_prompt_tokens_in[CACHE_DISK] > st.cache.n_query_tokens / 20);
        n_written = st.cache.tier[CACHE_DISK].n_cached;
        engine_test_close(&t);
    }
    temp_dir_remove(&d);
}

/* Ask windows until killed, and report each of them through the pipe. */
static void ask_until_killed(const char *model, const struct engine_config *config, int pipe_fd)
{
    struct engine_config c = *config;
    struct engine_test t;

    engine_test_open_model(&t, model, &c);
    for (uint32_t i = 0;; i = (i + N_WINDOW) % (N_PROMPTS / N_WINDOW * N_WINDOW))
        if (ask_window(&t, i, 1, "before SIGKILL") || write(pipe_fd, "", 1) != 1)
            _exit(3);
}

/* Start a writing process and kill it `us` microseconds after its n_windows-th report. */
static void run_and_kill(const char *model, const struct engine_config *c, uint32_t n_windows,
                         uint32_t us)
{
    int fds[2], status;
    char byte;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
        close(fds[0]);
        ask_until_killed(model, c, fds[1]);
    }
    close(fds[1]);
    for (uint32_t i = 0; i < n_windows; i++)
        assert_int_equal(read(fds[0], &byte, 1), 1);
    clock_sleep_ns(us * 1000);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(fds[0]);
}

static void sigkill_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;
    char model[ENGINE_TEST_DIR_BYTES];

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    engine_test_make_model(model, NULL);
    run_and_kill(model, &c, 1, 700);
    run_and_kill(model, &c, (N_PROMPTS + N_WINDOW - 1) / N_WINDOW - 1, 5000);
    engine_test_open_model(&t, model, &c);
    engine_stats(t.engine, &st);
    assert_true(st.cache.disk.n_found > 0);
    printf("after SIGKILL: %u blocks found; %u torn, %u orphaned\n", st.cache.disk.n_found,
           st.cache.disk.n_torn, st.cache.disk.n_orphaned);
    assert_int_equal(
        st.cache.disk.n_foreign + st.cache.disk.n_impossible + st.cache.disk.n_misnamed, 0);
    assert_int_equal(ask_all(&t, 1, "after SIGKILL"), 0);
    rest(&t, &st, "after SIGKILL");
    assert_true(st.n_prompt_tokens_in[CACHE_DISK] > st.cache.n_query_tokens / 20);
    engine_test_close(&t);
    engine_test_remove_model(model);
    temp_dir_remove(&d);
}

/* --- a disk with faults --- */

static int no_faults(void **state)
{
    (void)state;
    atomic_store(&fault_reads_one_in, 0);
    atomic_store(&fault_writes_one_in, 0);
    atomic_store(&fault_flip_one_in, 0);
    atomic_store(&fault_late_ns, 0);
    atomic_store(&fault_hung, false);
    return 0;
}

static void errors_of_the_disk_do_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_writes_one_in, 15);
    assert_int_equal(ask_all(&t, 2, "EIO of writes"), 0);
    atomic_store(&fault_writes_one_in, 0);
    rest(&t, &st, "EIO of writes");
    assert_true(atomic_load(&fault_n_eio) > 0);
    assert_true(st.cache.disk.n_writes_failed > 0);
    engine_test_close(&t);

    engine_test_open(&t, NULL, &c); /* the records left after the errors are right */
    assert_int_equal(ask_all(&t, 2, "after EIO of writes"), 0);
    rest(&t, &st, "after EIO of writes");
    assert_int_equal(st.cache.disk.n_corrupt, 0);
    assert_true(st.cache.tier[CACHE_DISK].n_cached > 0);
    engine_test_close(&t);

    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_reads_one_in, 15);
    assert_int_equal(ask_all(&t, 2, "EIO of reads"), 0);
    rest(&t, &st, "EIO of reads");
    assert_true(st.cache.disk.n_reads_failed > 0);
    assert_true(st.n_prompt_tokens_in[CACHE_DISK] > 0); /* the undamaged records were read */
    engine_test_close(&t);
    temp_dir_remove(&d);
}

static void bits_that_flip_do_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_flip_one_in, 15);
    assert_int_equal(ask_all(&t, 3, "flipped bits"), 0);
    rest(&t, &st, "flipped bits");
    assert_true(atomic_load(&fault_n_flipped) > 0);
    assert_true(st.cache.disk.n_corrupt > 0);
    assert_true(st.n_prompt_tokens_in[CACHE_DISK] > 0);
    engine_test_close(&t);
    temp_dir_remove(&d);
}

/* Change a byte in the first 256 bytes of every `stride` bytes from `at` on, except in one stride
 * of three. */
static void garble(const char *path, off_t at, off_t stride)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    for (; at < st.st_size; at += stride) {
        if (rng_u32(21, (uint64_t)at) % 3 == 0)
            continue;
        off_t where = at + rng_u32(22, (uint64_t)at) % 256;
        assert_int_equal(pread(fd, &byte, 1, where), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, where), 1);
    }
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* The path of `file` in the only directory in d. */
static void find_inner(const struct temp_dir *d, const char *file, char *out, size_t n)
{
    char command[160];

    snprintf(command, sizeof command, "ls -d %s/*-v*/%s", d->path, file);
    FILE *f = popen(command, "re");
    assert_non_null(f);
    assert_non_null(fgets(out, (int)n, f));
    assert_int_equal(pclose(f), 0);
    out[strcspn(out, "\n")] = '\0';
}

static void garbled_files_do_not_change_a_bit(void **state)
{
    static const struct {
        const char *name;
        off_t from, stride; /* disk_format.h: extents of two pages; a page, then headers */
    } files[] = {{"data", 0, 8192}, {"table", 4096, 256}, {"table", 0, 256}};
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;
    char path[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        temp_dir_make(&d);
        config(&c, d.path);
        engine_test_open(&t, NULL, &c);
        assert_int_equal(ask_all(&t, 1, "before garbling"), 0);
        rest(&t, &st, "before garbling");
        engine_test_close(&t);
        find_inner(&d, files[i].name, path, sizeof path);
        garble(path, files[i].from, files[i].stride);
        engine_test_open(&t, NULL, &c);
        assert_int_equal(ask_all(&t, 1, files[i].name), 0);
        rest(&t, &st, files[i].name);
        if (i == 0)
            assert_true(st.cache.disk.n_corrupt > 0);
        else if (i == 1)
            assert_true(st.cache.disk.n_torn > 0 && st.cache.disk.n_orphaned > 0);
        else
            assert_int_equal(st.cache.disk.n_found, 0); /* no superblock, so no records */
        engine_test_close(&t);
        temp_dir_remove(&d);
    }
}

/* Each read takes longer than the timeout, so that all tokens are computed. */
static void a_disk_that_is_too_slow_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    engine_test_open(&t, NULL, &c);
    assert_int_equal(ask_all(&t, 1, "before"), 0);
    rest(&t, &st, "before it became slow");
    engine_test_close(&t);

    c.kv_disk_timeout_ms = 10;
    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_late_ns, 300000000);
    for (uint32_t i = 0; i < 3 * N_WINDOW && i < N_PROMPTS; i += N_WINDOW)
        assert_int_equal(ask_window(&t, i, 1, "too slow"), 0);
    rest(&t, &st, "too slow");
    assert_true(st.cache.disk.n_timeouts > 0);
    engine_test_close(&t);

    c.kv_disk_timeout_ms = TIMEOUT_MS; /* the disk is as slow, but the timeout is long */
    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_late_ns, 3000000);
    for (uint32_t i = 0; i < 3 * N_WINDOW && i < N_PROMPTS; i += N_WINDOW)
        assert_int_equal(ask_window(&t, i, 1, "slow"), 0);
    rest(&t, &st, "slow");
    assert_int_equal(st.cache.disk.n_timeouts, 0);
    engine_test_close(&t);
    temp_dir_remove(&d);
}

static void a_disk_that_hangs_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    config(&c, d.path);
    engine_test_open(&t, NULL, &c);
    assert_int_equal(ask_all(&t, 1, "before"), 0);
    rest(&t, &st, "before it hung");
    engine_test_close(&t);

    c.kv_disk_timeout_ms = 50;
    engine_test_open(&t, NULL, &c);
    atomic_store(&fault_hung, true);
    for (uint32_t i = 0; i < 3 * N_WINDOW && i < N_PROMPTS; i += N_WINDOW)
        assert_int_equal(ask_window(&t, i, 1, "hung"), 0);
    engine_test_idle(&t, &st);
    assert_int_equal(st.n_prompt_tokens_in[CACHE_DISK], 0);
    assert_int_equal(st.n_finished[FINISH_ERROR], 0);
    assert_true(st.cache.disk.n_timeouts > 0);
    atomic_store(&fault_hung, false);
    for (uint64_t t0 = clock_now_ns(); st.cache.disk.is_hung; engine_stats(t.engine, &st)) {
        assert_true(clock_now_ns() - t0 < WAIT_MAX_NS);
        clock_sleep_ns(1000000);
    }
    rest(&t, &st, "let go");
    assert_int_equal(ask_all(&t, 1, "let go"), 0);
    rest(&t, &st, "let go, asked again");
    engine_test_close(&t);

    engine_test_open(&t, NULL, &c); /* the engine can be closed while the disk hangs */
    atomic_store(&fault_hung, true);
    assert_int_equal(ask_window(&t, 0, 1, "hung to the end"), 0);
    engine_test_close(&t);
    no_faults(NULL);

    c.kv_disk_timeout_ms = TIMEOUT_MS;
    engine_test_open(&t, NULL, &c);
    assert_int_equal(ask_all(&t, 1, "after a hung end"), 0);
    rest(&t, &st, "after a hung end");
    assert_true(st.n_prompt_tokens_in[CACHE_DISK] > 0);
    engine_test_close(&t);
    temp_dir_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_disk_tier_does_not_change_a_bit),
        cmocka_unit_test(a_restart_does_not_change_a_bit),
        cmocka_unit_test(sigkill_does_not_change_a_bit),
        cmocka_unit_test_teardown(errors_of_the_disk_do_not_change_a_bit, no_faults),
        cmocka_unit_test_teardown(bits_that_flip_do_not_change_a_bit, no_faults),
        cmocka_unit_test(garbled_files_do_not_change_a_bit),
        cmocka_unit_test_teardown(a_disk_that_is_too_slow_does_not_change_a_bit, no_faults),
        cmocka_unit_test_teardown(a_disk_that_hangs_does_not_change_a_bit, no_faults),
    };
    return cmocka_run_group_tests(tests, learn_cold, NULL);
}
