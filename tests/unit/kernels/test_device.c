/* test_device.c - opening a backend, and its memory. */
#include "tests/unit/kernels/kernel_test.h"

#include <stdatomic.h>

#include "kernels/backend.h"
#include "kernels/cpu/bf16_rate.h"
#include "kernels/cpu/cpu.h"

static void reference_and_auto_open(void **state)
{
    struct device *ref = open_device(DEVICE_REF, NULL, 0);
    struct device *best = open_device(DEVICE_AUTO, NULL, 0);

    (void)state;
    assert_non_null(ref);
    assert_non_null(best);
    assert_string_equal(device_ops(ref)->name, "ref");
    assert_int_equal(device_n_threads(ref), 1);
    assert_memory_equal(device_ops(best)->name, "cpu-", 4);
    assert_true(device_n_threads(best) >= 1);
    device_close(ref);
    device_close(best);
    device_close(NULL);
}

static void a_build_without_cuda_refuses_it_with_words(void **state)
{
    struct device_config config = {.kind = DEVICE_CUDA, .n_threads = 1};
    struct device *d = NULL;
    struct buf why;

    (void)state;
    assert_null(&tarn_cuda_backend); /* this program does not link it */
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(device_open(&d, &config, &why), ERR_UNSUPPORTED);
    assert_null(d);
    assert_non_null(strstr(buf_str(&why), "TARN_CUDA=ON"));
    buf_fini(&why);
}

static void a_forced_variant_is_the_one_that_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(variant_names); i++) {
        struct device *d = open_device(DEVICE_CPU, variant_names[i], 2);

        if (!d)
            continue;
        assert_string_equal(device_ops(d)->name + strlen("cpu-"), variant_names[i]);
        assert_int_equal(device_n_threads(d), 2);
        device_close(d);
    }
    struct device *d = open_device(DEVICE_CPU, "portable", 1);
    assert_non_null(d); /* every machine has it */
    device_close(d);
}

/* Where the test's caller knows which processor this is. */
static void the_processor_decides_the_variant(void **state)
{
    const char *best = getenv("TARN_TEST_BEST_VARIANT");
    struct device_config config = {.kind = DEVICE_CPU, .n_threads = 1};
    struct device *d = NULL;

    (void)state;
    if (!best)
        skip();
    assert_int_equal(device_open(&d, &config, NULL), OK);
    assert_string_equal(device_ops(d)->name + strlen("cpu-"), best);
    device_close(d);
}

static void an_unknown_variant_is_refused_by_name(void **state)
{
    struct device_config config = {.kind = DEVICE_CPU, .cpu_variant = "avx9000", .n_threads = 1};
    struct device *d = NULL;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(device_open(&d, &config, &why), ERR_UNSUPPORTED);
    assert_non_null(strstr(buf_str(&why), "avx9000"));
    assert_non_null(strstr(buf_str(&why), "portable"));
    buf_fini(&why);
}

static double fake_rate;
static int n_measured;

static double measure_fake(void)
{
    n_measured++;
    return fake_rate;
}

static bool yes(void)
{
    return true;
}

static bool no(void)
{
    return false;
}

static void slow_bf16_products_give_way_to_floats_for_bf16_weights_only(void **state)
{
    static const struct {
        bool amx, bf16_weights;
        double rate;
        const char *name;
        int n_measured;
    } cases[] = {
        {false, true, 2.0, "avx512bf16", 1}, {false, true, 1.0, "avx512bf16", 1},
        {false, true, 0.5, "avx512", 1},     {false, false, 0.5, "avx512bf16", 0},
        {true, true, 0.5, "amx", 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct cpu_variant all[] = {{"amx", NULL, cases[i].amx ? yes : no},
                                          {"avx512bf16", NULL, yes},
                                          {"avx512", NULL, yes},
                                          {"avx2", NULL, yes},
                                          {"portable", NULL, yes}};

        fake_rate = cases[i].rate;
        n_measured = 0;
        assert_string_equal(
            cpu_variant_choose(all, ARRAY_SIZE(all), cases[i].bf16_weights, measure_fake)->name,
            cases[i].name);
        assert_int_equal(n_measured, cases[i].n_measured);
    }
}

static void an_unsupported_variant_is_never_chosen(void **state)
{
    const struct cpu_variant all[] = {
        {"amx", NULL, no}, {"avx512bf16", NULL, no}, {"avx512", NULL, no}, {"avx2", NULL, yes}};

    (void)state;
    fake_rate = 0.5;
    assert_string_equal(cpu_variant_choose(all, 4, true, measure_fake)->name, "avx2");
    assert_null(cpu_variant_choose(all, 3, true, measure_fake));
}

#if defined(__x86_64__)
/* Cores start one instruction every fourth cycle at worst, beside two floats per cycle. */
static void the_measured_rate_is_one_that_a_core_can_have(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx512bf16"))
        skip();
    double rate = bf16_rate_measure();

    assert_true(rate > 0.1 && rate < 8);
}
#endif

static void memory_is_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 4097, 1u << 20, (4u << 20) + 1, 9u << 20};
    struct device *d = open_device(DEVICE_CPU, NULL, 1);
    void *p[ARRAY_SIZE(sizes)];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        unsigned char *b = device_alloc(d, sizes[i]);

        assert_non_null(b);
        assert_int_equal((uintptr_t)b % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            if (b[k] != 0)
                fail_msg("byte %zu of %zu is set", k, sizes[i]);
        memset(b, 0xff, sizes[i]);
        p[i] = b;
    }
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i += 2) /* the others are left to device_close */
        device_free(d, p[i]);
    device_free(d, NULL);
    assert_null(device_alloc(d, SIZE_MAX - 100));
    device_close(d);
}

static void upload_and_download_copy(void **state)
{
    struct device *d = open_device(DEVICE_CPU, NULL, 1);
    char out[6] = "";
    char *p = device_alloc(d, 6);

    (void)state;
    assert_int_equal(device_upload(d, p, "hello", 6), OK);
    assert_int_equal(device_download(d, out, p, 6), OK);
    assert_string_equal(out, "hello");
    device_close(d);
}

/* On the host copies are done when the call returns, whatever the stream, and events have
 * passed. */
static void streams_and_events_of_a_host_device_are_done_at_once(void **state)
{
    static const enum device_kind kinds[] = {DEVICE_REF, DEVICE_CPU};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct device *d = open_device(kinds[i], NULL, 1);
        char *pinned = device_alloc_pinned(d, 6), *p = device_alloc(d, 6), out[6] = "";
        struct device_event *e = NULL;
        struct stream *in = device_stream(d, DEVICE_COPY_IN);
        size_t n_free, n_total;
        bool done = false;

        assert_non_null(pinned);
        assert_int_equal((uintptr_t)pinned % 64, 0);
        assert_null(in);
        memcpy(pinned, "hello", 6);
        assert_int_equal(device_event_create(d, &e), OK);
        assert_int_equal(device_upload_async(d, in, p, pinned, 6), OK);
        memset(pinned, 0, 6);
        assert_int_equal(device_event_record(d, e, in), OK);
        assert_int_equal(device_event_query(d, e, &done), OK);
        assert_true(done);
        assert_int_equal(device_event_order(d, e, device_stream(d, DEVICE_COPY_OUT)), OK);
        assert_int_equal(device_download_async(d, NULL, out, p, 6), OK);
        assert_string_equal(out, "hello");
        assert_int_equal(device_event_wait(d, e), OK);
        assert_int_equal(device_stream_wait(d, NULL), OK);
        device_event_destroy(d, e);
        device_event_destroy(d, NULL);
        assert_int_equal(device_memory(d, &n_free, &n_total), ERR_UNSUPPORTED);
        assert_true(device_is_host(d));
        assert_null(device_failure(d));
        assert_int_equal(device_weight_layout(d), WEIGHT_PANELS);
        device_free_pinned(d, pinned);
        device_free_pinned(d, NULL);
        assert_non_null(device_alloc_pinned(d, 9u << 20)); /* left to device_close */
        device_close(d);
    }
}

static void count(void *arg, uint32_t i)
{
    atomic_fetch_add((_Atomic uint32_t *)arg + i, 1);
}

static void parallel_runs_each_index_once(void **state)
{
    static const struct {
        enum device_kind kind;
        uint32_t n_threads;
    } cases[] = {{DEVICE_REF, 0}, {DEVICE_CPU, 1}, {DEVICE_CPU, 4}};

    (void)state;
    for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
        struct device *d = open_device(cases[c].kind, NULL, cases[c].n_threads);
        _Atomic uint32_t times[1000] = {0};

        device_parallel(d, 0, count, times);
        device_parallel(d, 1000, count, times);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(times[i], 1);
        device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_and_auto_open),
        cmocka_unit_test(a_build_without_cuda_refuses_it_with_words),
        cmocka_unit_test(a_forced_variant_is_the_one_that_runs),
        cmocka_unit_test(the_processor_decides_the_variant),
        cmocka_unit_test(an_unknown_variant_is_refused_by_name),
        cmocka_unit_test(slow_bf16_products_give_way_to_floats_for_bf16_weights_only),
        cmocka_unit_test(an_unsupported_variant_is_never_chosen),
#if defined(__x86_64__)
        cmocka_unit_test(the_measured_rate_is_one_that_a_core_can_have),
#endif
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(upload_and_download_copy),
        cmocka_unit_test(streams_and_events_of_a_host_device_are_done_at_once),
        cmocka_unit_test(parallel_runs_each_index_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
