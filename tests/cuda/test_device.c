/* test_device.c - the CUDA device: memory, copies, streams, events, and its behaviour when calls
 * fail. Failures can be injected into the emulation only; on a real GPU these tests are skipped. */
#include "tests/cuda/cuda_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/ops.h"
#include "tests/cuda_emulation/emulation.h"

void emulation_fail_call(uint64_t n, int error) __attribute__((weak));
void emulation_kill(int error) __attribute__((weak));
uint64_t emulation_calls(void) __attribute__((weak));

void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

/* Values of cudaError_t, whose header is C++. */
enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INSUFFICIENT_DRIVER = 35,
    NO_DEVICE = 100,
    ILLEGAL_ADDRESS = 700,
};

#define MIB ((size_t)1 << 20)

static const struct device_config small_config = {.kind = DEVICE_CUDA,
                                                  .n_threads = 2,
                                                  .max_rows = 3,
                                                  .max_k = 100,
                                                  .max_heads = 2,
                                                  .max_head_dim = 64};

static struct device *open_small(void)
{
    struct device *d = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = device_open(&d, &small_config, &why);
    if (s == ERR_UNSUPPORTED) {
        print_message("SKIP: no GPU: %s\n", buf_str(&why));
        buf_fini(&why);
        skip();
    }
    if (s != OK)
        fail_msg("%s: %s", status_name(s), buf_str(&why));
    buf_fini(&why);
    return d;
}

static void need_injection(void)
{
    if (!emulation_fail_call)
        skip();
}

/* Turn the log off, because injected errors would fill it. */
static void be_quiet(bool quiet)
{
    log_init(quiet ? LOG_ERROR + 1 : LOG_WARN, false);
}

/* Ignore leaks: the driver keeps memory that a failed call did not free. */
static void allow_leaks(bool allow)
{
    if (__lsan_disable && __lsan_enable) {
        if (allow)
            __lsan_disable();
        else
            __lsan_enable();
    }
}

static size_t free_bytes(struct device *d)
{
    size_t n_free = 0, n_total = 0;

    assert_ok(device_memory(d, &n_free, &n_total));
    assert_true(n_free <= n_total);
    return n_free;
}

static void it_says_what_it_is(void **state)
{
    struct device *d = open_small();

    (void)state;
    assert_memory_equal(device_ops(d)->name, "cuda-sm", 7);
    assert_false(device_is_host(d));
    assert_int_equal(device_weight_layout(d), WEIGHT_ROWS);
    assert_null(device_failure(d));
    assert_int_equal(device_n_threads(d), 2);
    assert_true(free_bytes(d) > 0);
    for (int a = 0; a < DEVICE_STREAM_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_ptr_not_equal(device_stream(d, (enum device_stream)a),
                                 device_stream(d, (enum device_stream)b));
    device_close(d);
}

/* The two modes give different bits, and the fingerprint of stored KV contains the ops' name. */
static void batch_invariant_products_have_a_name_of_their_own(void **state)
{
    struct device_config config = small_config;
    struct device *d = open_small();

    (void)state;
    device_close(d);
    config.batch_invariant = true;
    assert_ok(device_open(&d, &config, NULL));
    assert_memory_equal(device_ops(d)->name, "cuda-sm", 7);
    assert_non_null(strstr(device_ops(d)->name, "-invariant"));
    device_close(d);
}

/* Two generations of GPUs give different bits, too. */
static void each_generation_has_a_name_of_its_own(void **state)
{
    struct device *d;

    (void)state;
    if (!emulation_fail_call)
        skip(); /* the generation of a real GPU cannot be changed */
    setenv("TARN_EMULATION_SM", "80", 1);
    d = open_small();
    assert_string_equal(device_ops(d)->name, "cuda-sm80");
    device_close(d);
    setenv("TARN_EMULATION_SM", "90", 1);
    d = open_small();
    assert_string_equal(device_ops(d)->name, "cuda-sm90");
    device_close(d);
    unsetenv("TARN_EMULATION_SM");
}

static void memory_is_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = {0, 1, 255, 257, 5 * MIB + 3};
    struct device *d = open_small();
    unsigned char *host = malloc(5 * MIB + 3);

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        void *p = device_alloc(d, sizes[i]);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 256, 0);
        memset(host, 0xff, sizes[i]);
        assert_ok(device_download(d, host, p, sizes[i]));
        for (size_t k = 0; k < sizes[i]; k++)
            if (host[k] != 0)
                fail_msg("byte %zu of %zu is set", k, sizes[i]);
        device_free(d, p);
    }
    device_free(d, NULL);
    device_free_pinned(d, NULL);
    device_event_destroy(d, NULL);
    free(host);
    device_close(d);
}

/* The host memory is pageable, and the test changes it as soon as the call returns. */
static void synchronous_copies_of_any_size_round_trip(void **state)
{
    static const size_t sizes[] = {0, 1, 4097, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 13 * MIB + 5};
    struct device *d = open_small();

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        size_t n = sizes[i];
        unsigned char *from = malloc(n + 1), *to = malloc(n + 1), *p = device_alloc(d, n);

        assert_non_null(p);
        for (size_t k = 0; k < n; k++)
            from[k] = (unsigned char)(k * 7 + k / 4096 + k / MIB * 13 + i);
        assert_ok(device_upload(d, p, from, n));
        memset(from, 0xaa, n);
        to[n] = 0x5a;
        assert_ok(device_download(d, to, p, n));
        for (size_t k = 0; k < n; k++)
            if (to[k] != (unsigned char)(k * 7 + k / 4096 + k / MIB * 13 + i))
                fail_msg("byte %zu of %zu differs", k, n);
        assert_int_equal(to[n], 0x5a);
        free(from);
        free(to);
        device_free(d, p);
    }
    device_close(d);
}

/* Copy in on one stream, run an op on the second, copy out on the third, ordered by two events, or
 * without them if `ordered` is false. Return whether the result is right. */
static bool pass_through_streams(struct device *d, int round, bool ordered)
{
    enum { DIM = 64, N_BYTES = DIM * sizeof(float) };
    struct stream *in = device_stream(d, DEVICE_COPY_IN), *out = device_stream(d, DEVICE_COPY_OUT);
    float *from = device_alloc_pinned(d, 2 * N_BYTES), *to = device_alloc_pinned(d, N_BYTES);
    float *gate_up = device_alloc(d, 2 * N_BYTES), *product = device_alloc(d, N_BYTES);
    struct silu_mul_params p = {.n_rows = 1, .dim = DIM, .gate_up = gate_up, .out = product};
    struct device_event *e = NULL;
    bool right = true;

    assert_ok(device_event_create(d, &e));
    for (int i = 0; i < DIM; i++) {
        from[i] = 100; /* silu(100) is 100 */
        from[DIM + i] = (float)(round + i + 1);
        to[i] = -1;
    }
    assert_ok(device_upload_async(d, in, gate_up, from, 2 * N_BYTES));
    if (ordered) {
        assert_ok(device_event_record(d, e, in));
        assert_ok(device_event_order(d, e, NULL));
    }
    assert_ok(device_ops(d)->silu_mul(d, NULL, &p));
    if (ordered) {
        assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COMPUTE)));
        assert_ok(device_event_order(d, e, out));
    }
    assert_ok(device_download_async(d, out, to, product, N_BYTES));
    assert_ok(device_stream_wait(d, out));
    for (int i = 0; i < DIM; i++)
        right = right && to[i] == 100 * (float)(round + i + 1);
    assert_ok(device_stream_wait(d, in));
    assert_ok(device_stream_wait(d, NULL));
    device_event_destroy(d, e);
    device_free_pinned(d, from);
    device_free_pinned(d, to);
    device_free(d, gate_up);
    device_free(d, product);
    return right;
}

static void events_order_work_of_different_streams(void **state)
{
    struct device *d = open_small();

    (void)state;
    for (int round = 0; round < 50; round++)
        if (!pass_through_streams(d, round, true))
            fail_msg("round %d came out wrong", round);
    device_close(d);
}

/* Show that the test above can fail. */
static void without_events_the_emulation_shows_it(void **state)
{
    need_injection();
    struct device *d = open_small();
    int n_wrong = 0;

    (void)state;
    for (int round = 0; round < 50; round++)
        n_wrong += !pass_through_streams(d, round, false);
    assert_true(n_wrong > 10);
    device_close(d);
}

static void an_event_is_done_before_its_record_and_after_its_work(void **state)
{
    struct device *d = open_small();
    void *pinned = device_alloc_pinned(d, MIB), *p = device_alloc(d, MIB);
    struct stream *in = device_stream(d, DEVICE_COPY_IN);
    struct device_event *e = NULL;
    bool done = false;

    (void)state;
    assert_ok(device_event_create(d, &e));
    assert_ok(device_event_query(d, e, &done));
    assert_true(done);
    assert_ok(device_event_wait(d, e));
    for (int i = 0; i < 20; i++) {
        struct silu_mul_params nothing_left = {.n_rows = 1, .dim = 1, .gate_up = p, .out = p};

        assert_ok(device_upload_async(d, in, p, pinned, MIB));
        assert_ok(device_event_record(d, e, in));
        assert_ok(device_event_query(d, e, &done));
        /* "Not ready" must not be kept as an error, which the next launch would report. */
        assert_ok(device_ops(d)->silu_mul(d, in, &nothing_left));
        assert_ok(device_event_wait(d, e));
        assert_ok(device_event_query(d, e, &done));
        assert_true(done);
    }
    assert_ok(device_upload_async(d, in, p, pinned, MIB));
    assert_ok(device_event_record(d, e, in));
    for (done = false; !done;) /* queries alone must be enough */
        assert_ok(device_event_query(d, e, &done));
    device_close(d); /* frees the event and the memory as well */
}

static void closing_gives_back_what_was_left(void **state)
{
    struct device *d = open_small();
    size_t before = free_bytes(d);
    struct device_event *e = NULL;

    (void)state;
    for (int i = 0; i < 10; i++) {
        assert_non_null(device_alloc(d, 3 * MIB));
        assert_non_null(device_alloc_pinned(d, MIB));
        assert_ok(device_event_create(d, &e));
    }
    assert_true(free_bytes(d) <= before - 30 * MIB);
    device_close(d);
    d = open_small();
    /* Other processes may use a real GPU, so its free memory is not compared. */
    assert_true(free_bytes(d) == before || !emulation_fail_call);
    device_close(d);
}

static void a_failed_allocation_is_null_and_the_device_works(void **state)
{
    struct device *d = open_small();
    size_t n_free = 0, n_total = 0;

    (void)state;
    assert_ok(device_memory(d, &n_free, &n_total));
    assert_null(device_alloc(d, n_total + 1));
    assert_null(device_alloc(d, SIZE_MAX - 100));
    assert_null(device_failure(d));
    assert_true(pass_through_streams(d, 1, true));
    if (emulation_fail_call) {
        emulation_fail_call(1, OUT_OF_MEMORY);
        assert_null(device_alloc_pinned(d, 100));
        assert_null(device_failure(d));
        assert_true(pass_through_streams(d, 2, true));
    }
    device_close(d);
}

/* An invalid argument is a bug of Tarn, but does not destroy the context. */
static void a_harmless_error_fails_one_call_only(void **state)
{
    need_injection();
    struct device *d = open_small();
    char *p = device_alloc(d, 100), host[100];

    (void)state;
    be_quiet(true);
    emulation_fail_call(1, INVALID_VALUE);
    assert_int_equal(device_download(d, host, p, sizeof(host)), ERR_INTERNAL);
    assert_null(device_failure(d));
    assert_ok(device_download(d, host, p, sizeof(host)));
    assert_true(pass_through_streams(d, 3, true));
    be_quiet(false);
    device_close(d);
}

/* Check that after the context died, every function of the device fails without a CUDA call. */
static void check_dead(struct device *d, void *p, struct device_event *e)
{
    struct silu_mul_params op = {.n_rows = 1, .dim = 1, .gate_up = p, .out = p};
    struct device_event *another = NULL;
    uint64_t n_calls = emulation_calls();
    size_t n_free, n_total;
    bool done = false;
    char host[8] = {0};

    assert_null(device_alloc(d, 10));
    assert_null(device_alloc_pinned(d, 10));
    assert_int_equal(device_memory(d, &n_free, &n_total), ERR_INTERNAL);
    assert_int_equal(device_upload(d, p, host, sizeof(host)), ERR_INTERNAL);
    assert_int_equal(device_download(d, host, p, sizeof(host)), ERR_INTERNAL);
    assert_int_equal(device_upload_async(d, NULL, p, host, sizeof(host)), ERR_INTERNAL);
    assert_int_equal(device_download_async(d, NULL, host, p, sizeof(host)), ERR_INTERNAL);
    assert_int_equal(device_stream_wait(d, NULL), ERR_INTERNAL);
    assert_int_equal(device_event_create(d, &another), ERR_INTERNAL);
    assert_int_equal(device_event_record(d, e, NULL), ERR_INTERNAL);
    assert_int_equal(device_event_order(d, e, NULL), ERR_INTERNAL);
    assert_int_equal(device_event_query(d, e, &done), ERR_INTERNAL);
    assert_int_equal(device_event_wait(d, e), ERR_INTERNAL);
    assert_int_equal(emulation_calls(), n_calls);
    assert_int_equal(device_ops(d)->silu_mul(d, NULL, &op), ERR_INTERNAL);
}

enum call { STREAM_WAIT, EVENT_WAIT, EVENT_QUERY, LAUNCH, ALLOC, CALL_COUNT };

static void die_in(struct device *d, enum call call, void *p, struct device_event *e)
{
    struct silu_mul_params op = {.n_rows = 1, .dim = 1, .gate_up = p, .out = p};
    bool done = false;

    switch (call) {
    case STREAM_WAIT: assert_int_equal(device_stream_wait(d, NULL), ERR_INTERNAL); break;
    case EVENT_WAIT: assert_int_equal(device_event_wait(d, e), ERR_INTERNAL); break;
    case EVENT_QUERY:
        assert_int_equal(device_event_query(d, e, &done), ERR_INTERNAL);
        assert_false(done);
        break;
    case LAUNCH: assert_int_equal(device_ops(d)->silu_mul(d, NULL, &op), ERR_INTERNAL); break;
    default: assert_null(device_alloc(d, 10));
    }
}

/* The injection ends, so that CUDA calls would work again. The device stays failed all the same: no
 * answer may be computed from memory that such an error may have corrupted. */
static void after_a_sticky_error_the_device_stays_dead(void **state)
{
    /* ECC, illegal address, timeout, assert, stack, instruction, alignment, PC, launch failure, a
     * number that is in no header, and cudaErrorUnknown. */
    static const int errors[] = {214, 700, 702, 710, 714, 715, 716, 718, 719, 911, 999};

    (void)state;
    need_injection();
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        struct device *d = open_small();
        void *p = device_alloc(d, 1000);
        struct device_event *e = NULL;

        assert_ok(device_event_create(d, &e));
        be_quiet(true);
        emulation_fail_call(1, errors[i]);
        die_in(d, (enum call)(i % CALL_COUNT), p, e);
        assert_non_null(device_failure(d));
        if (errors[i] == ILLEGAL_ADDRESS)
            assert_non_null(strstr(device_failure(d), "cudaErrorIllegalAddress"));
        check_dead(d, p, e);
        be_quiet(false);
        device_close(d);
    }
}

static void a_device_whose_context_is_gone_can_be_closed(void **state)
{
    need_injection();
    allow_leaks(true);
    struct device *d = open_small();
    void *p = device_alloc(d, 1000);
    struct device_event *e = NULL;

    (void)state;
    assert_ok(device_event_create(d, &e));
    be_quiet(true);
    emulation_kill(ILLEGAL_ADDRESS);
    assert_int_equal(device_stream_wait(d, NULL), ERR_INTERNAL);
    check_dead(d, p, e);
    device_free(d, p);
    device_event_destroy(d, e);
    device_close(d);
    emulation_kill(0);
    be_quiet(false);
    allow_leaks(false);
}

/* Call fn and copy its output on stderr to `text`. */
static void capture_stderr(void (*fn)(void), char *text, size_t n_bytes)
{
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO);

    assert_non_null(f);
    fflush(stderr);
    assert_true(dup2(fileno(f), STDERR_FILENO) >= 0);
    fn();
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(f);
    text[fread(text, 1, n_bytes - 1, f)] = '\0';
    fclose(f);
}

static struct device *captured_device;

static void die_and_go_on(void)
{
    emulation_fail_call(1, ILLEGAL_ADDRESS);
    assert_int_equal(device_stream_wait(captured_device, NULL), ERR_INTERNAL);
    for (int i = 0; i < 5; i++)
        assert_int_equal(device_stream_wait(captured_device, NULL), ERR_INTERNAL);
    device_close(captured_device);
}

static int count_lines(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void a_dead_context_is_logged_once(void **state)
{
    char text[4096];

    (void)state;
    need_injection();
    captured_device = open_small();
    capture_stderr(die_and_go_on, text, sizeof(text));
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "cudaStreamSynchronize"));
    assert_non_null(strstr(text, "cudaErrorIllegalAddress"));
}

/* Each call of device_open() fails once, with each of three errors. */
static void open_fails_cleanly_at_every_call(void **state)
{
    static const int errors[] = {INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS};

    (void)state;
    need_injection();
    uint64_t begin = emulation_calls();
    struct device *d = open_small();
    uint64_t n_calls = emulation_calls() - begin;
    size_t n_free = free_bytes(d);

    device_close(d);
    assert_true(n_calls > 10);
    be_quiet(true);
    for (uint64_t n = 1; n <= n_calls; n++) {
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        emulation_fail_call(n, errors[n % ARRAY_SIZE(errors)]);
        d = NULL;
        enum status s = device_open(&d, &small_config, &why);
        assert_true(s == ERR_INTERNAL || s == ERR_NOMEM);
        assert_null(d);
        assert_true(why.len > 0);
        buf_fini(&why);
    }
    be_quiet(false);
    emulation_fail_call(0, 0);
    d = open_small();
    assert_int_equal(free_bytes(d), n_free); /* all memory was freed */
    device_close(d);
}

static void close_goes_on_when_calls_fail(void **state)
{
    (void)state;
    need_injection();
    be_quiet(true);
    allow_leaks(true);
    for (uint64_t n = 1; n < 12; n++) {
        struct device *d = open_small();

        emulation_fail_call(n, n % 2 ? INVALID_VALUE : ILLEGAL_ADDRESS);
        device_close(d);
        emulation_fail_call(0, 0);
    }
    allow_leaks(false);
    be_quiet(false);
}

static void open_auto(void)
{
    struct device_config config = small_config;
    config.kind = DEVICE_AUTO;

    captured_device = NULL;
    assert_ok(device_open(&captured_device, &config, NULL));
}

static void check_refused(const char *words)
{
    struct device *d = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(device_open(&d, &small_config, &why), ERR_UNSUPPORTED);
    if (!strstr(buf_str(&why), words))
        fail_msg("'%s' does not say '%s'", buf_str(&why), words);
    buf_fini(&why);
}

static void without_a_gpu_cuda_is_refused_with_words(void **state)
{
    (void)state;
    need_injection();
    emulation_fail_call(1, NO_DEVICE);
    check_refused("nvidia-smi");
    emulation_fail_call(1, INSUFFICIENT_DRIVER);
    check_refused("driver");
}

static void without_a_gpu_auto_takes_the_cpu_and_says_so_once(void **state)
{
    static const int errors[] = {NO_DEVICE, INSUFFICIENT_DRIVER};
    char text[4096];

    (void)state;
    need_injection();
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        emulation_fail_call(1, errors[i]);
        capture_stderr(open_auto, text, sizeof(text));
        assert_memory_equal(device_ops(captured_device)->name, "cpu-", 4);
        assert_true(device_is_host(captured_device));
        assert_int_equal(count_lines(text), 1);
        assert_non_null(strstr(text, "no GPU"));
        assert_non_null(strstr(text, device_ops(captured_device)->name));
        device_close(captured_device);
    }
}

/* With --device auto, a broken GPU must end the start, not make the server silently slow. */
static void a_gpu_that_does_not_start_fails_auto(void **state)
{
    struct device_config config = small_config;
    struct device *d = NULL;

    (void)state;
    need_injection();
    config.kind = DEVICE_AUTO;
    be_quiet(true);
    emulation_fail_call(1, 999);
    assert_int_equal(device_open(&d, &config, NULL), ERR_INTERNAL);
    assert_null(d);
    be_quiet(false);
}

static void auto_takes_the_gpu_unless_a_cpu_variant_is_named(void **state)
{
    struct device_config config = small_config;
    struct device *d = open_small();

    (void)state;
    device_close(d);
    config.kind = DEVICE_AUTO;
    assert_ok(device_open(&d, &config, NULL));
    assert_memory_equal(device_ops(d)->name, "cuda-sm", 7);
    device_close(d);
    config.cpu_variant = "portable";
    assert_ok(device_open(&d, &config, NULL));
    assert_string_equal(device_ops(d)->name, "cpu-portable");
    device_close(d);
}

static void count(void *arg, uint32_t i)
{
    __atomic_fetch_add((uint32_t *)arg + i, 1, __ATOMIC_RELAXED);
}

static void host_threads_run_each_index_once(void **state)
{
    struct device *d = open_small();
    uint32_t times[300] = {0};

    (void)state;
    device_adopt_thread(d);
    device_parallel(d, ARRAY_SIZE(times), count, times);
    for (size_t i = 0; i < ARRAY_SIZE(times); i++)
        assert_int_equal(times[i], 1);
    device_close(d);
}

/* --- graphs --- */

static void recorded_work_is_done_at_each_launch(void **state)
{
    struct device *d = open_small();
    float x[4] = {1, 2, 3, 4}, y[4] = {0}, *p = device_alloc(d, sizeof x);
    struct scale_params scale = {.n_rows = 1, .dim = 4, .scale = 3, .x = p, .out = p};
    struct device_graph *g;

    (void)state;
    assert_non_null(p);
    assert_int_equal(device_upload(d, p, x, sizeof x), OK);
    assert_int_equal(device_graph_begin(d), OK);
    assert_int_equal(device_ops(d)->scale(d, NULL, &scale), OK);
    assert_int_equal(device_graph_end(d, &g), OK);
    assert_int_equal(device_download(d, y, p, sizeof y), OK);
    assert_memory_equal(x, y, sizeof x); /* recorded, not done */
    for (int i = 0; i < 3; i++)
        assert_int_equal(device_graph_launch(d, g), OK);
    assert_int_equal(device_download(d, y, p, sizeof y), OK);
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 27 * x[i]);
    device_graph_destroy(d, g);
    device_free(d, p);
    device_close(d);
}

static void waiting_ends_a_recording_and_not_the_device(void **state)
{
    struct device *d = open_small();
    struct device_graph *g;

    (void)state;
    assert_int_equal(device_graph_begin(d), OK);
    assert_int_not_equal(device_stream_wait(d, NULL), OK);
    assert_int_not_equal(device_graph_end(d, &g), OK);
    assert_null(g);
    assert_null(device_failure(d));
    assert_int_equal(device_stream_wait(d, NULL), OK);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_it_is),
        cmocka_unit_test(batch_invariant_products_have_a_name_of_their_own),
        cmocka_unit_test(each_generation_has_a_name_of_its_own),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(synchronous_copies_of_any_size_round_trip),
        cmocka_unit_test(events_order_work_of_different_streams),
        cmocka_unit_test(without_events_the_emulation_shows_it),
        cmocka_unit_test(an_event_is_done_before_its_record_and_after_its_work),
        cmocka_unit_test(closing_gives_back_what_was_left),
        cmocka_unit_test(a_failed_allocation_is_null_and_the_device_works),
        cmocka_unit_test(a_harmless_error_fails_one_call_only),
        cmocka_unit_test(after_a_sticky_error_the_device_stays_dead),
        cmocka_unit_test(a_device_whose_context_is_gone_can_be_closed),
        cmocka_unit_test(a_dead_context_is_logged_once),
        cmocka_unit_test(open_fails_cleanly_at_every_call),
        cmocka_unit_test(close_goes_on_when_calls_fail),
        cmocka_unit_test(without_a_gpu_cuda_is_refused_with_words),
        cmocka_unit_test(without_a_gpu_auto_takes_the_cpu_and_says_so_once),
        cmocka_unit_test(a_gpu_that_does_not_start_fails_auto),
        cmocka_unit_test(auto_takes_the_gpu_unless_a_cpu_variant_is_named),
        cmocka_unit_test(host_threads_run_each_index_once),
        cmocka_unit_test(recorded_work_is_done_at_each_launch),
        cmocka_unit_test(waiting_ends_a_recording_and_not_the_device),
    };

    log_init(LOG_WARN, false);
    return cmocka_run_group_tests_name("cuda_device", tests, NULL, NULL);
}
