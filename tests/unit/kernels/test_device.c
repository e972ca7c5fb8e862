/* test_device.c - opening a backend, and its memory. */
#include "tests/unit/kernels/kernel_test.h"

#include <stdatomic.h>

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
        cmocka_unit_test(a_forced_variant_is_the_one_that_runs),
        cmocka_unit_test(an_unknown_variant_is_refused_by_name),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(upload_and_download_copy),
        cmocka_unit_test(parallel_runs_each_index_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
