/* test_device.c - opening a backend, and its memory. */
#include "tests/unit/kernels/kernel_test.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/save_file.h"
#include "kernels/backend.h"
#include "kernels/cpu/choice.h"
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

static void the_first_kernels_give_way_only_to_much_faster_ones(void **state)
{
    static const struct {
        struct cpu_rate rates[3];
        uint32_t chosen;
    } cases[] = {
        {{{1, 1, 0}, {1, 1, 0}, {1, 1, 0}}, 0},
        {{{1, 1, 0}, {0.9, 0.9, 0}, {0.85, 0.85, 0}}, 0}, /* noise */
        {{{2, 1, 0}, {1, 1, 0}, {1.1, 1.1, 0}}, 1},       /* a slow instruction */
        {{{1, 1, 0}, {1, 0.5, 0}, {2, 0.1, 0}}, 0},       /* decode alone is a small part */
        {{{2, 2, 0}, {1.5, 1.5, 0}, {1, 1, 0}}, 2},
        {{{1, 1, 1}, {1, 1, 0.9}, {1, 1, 0.4}}, 2}, /* equal products, slow attention */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(cpu_choose(cases[i].rates, 3), cases[i].chosen);
}

static struct cpu_choice measured_with(const char *variant, const char *dir, uint32_t n_threads)
{
    uint32_t n;
    struct device_config config = {.cpu_variant = variant,
                                   .weights = DTYPE_I8,
                                   .weights_group = 32,
                                   .measure = true,
                                   .measure_dir = dir};
    struct cpu_choice c = {.fetch = CPU_FETCH_AHEAD};

    c.variant = &cpu_variants(&n)[n - 1];
    cpu_measure(&c, &config, n_threads);
    return c;
}

static struct cpu_choice measured(const char *variant, const char *dir)
{
    return measured_with(variant, dir, 1);
}

static void measured_kernels_are_those_of_this_machine_unless_named(void **state)
{
    (void)state;
    assert_true(measured(NULL, NULL).variant->supported());
    assert_string_equal(measured("portable", NULL).variant->name, "portable");
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void read_text(const char *path, char text[1024])
{
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    text[fread(text, 1, 1023, f)] = '\0';
    assert_int_equal(fclose(f), 0);
}

static void a_choice_is_kept_and_a_damaged_one_is_measured_again(void **state)
{
    char dir[] = "/tmp/tarn-choice-XXXXXX", path[sizeof dir + 40], text[1024], whole[1024];
    struct cpu_choice first;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/kernels-%u-32-0-1-auto.txt", dir, (unsigned)DTYPE_I8);
    first = measured(NULL, dir);
    read_text(path, whole);
    assert_non_null(strstr(whole, first.variant->name));
    /* The file says the other way to prefetch: the next start believes it. */
    strcpy(text, whole);
    strcpy(strstr(text, "\nprefetch ") + strlen("\nprefetch "),
           first.fetch == CPU_FETCH_AHEAD ? "quarters\n" : "ahead\n");
    write_text(path, text);
    assert_int_not_equal(measured(NULL, dir).fetch, first.fetch);
    /* Neither an unknown variant nor a cut file is believed; a whole one takes its place. */
    strcpy(strstr(text, "\nvariant ") + strlen("\nvariant "), "%s\nprefetch ahead\n");
    for (int i = 0; i < 2; i++) {
        text[i ? 20 : strlen(text)] = '\0';
        write_text(path, text);
        assert_ptr_not_equal(measured(NULL, dir).variant, NULL);
        read_text(path, text);
        assert_memory_equal(text, whole, strstr(whole, "\nvariant ") - whole);
        assert_non_null(strstr(text, "\nprefetch "));
    }
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Remove the files of the directory; returns their number. */
static uint32_t remove_files(const char *dir)
{
    char path[512];
    uint32_t n = 0;
    struct dirent *e;
    DIR *d = opendir(dir);

    assert_non_null(d);
    while ((e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n += unlink(path) == 0;
    }
    assert_int_equal(closedir(d), 0);
    return n;
}

/* Each start of either would measure again, and perhaps choose otherwise. */
static void servers_with_other_settings_keep_their_own_choice(void **state)
{
    char dir[] = "/tmp/tarn-choice-XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)measured_with(NULL, dir, 1);
    (void)measured_with(NULL, dir, 2);
    (void)measured_with("portable", dir, 1);
    assert_int_equal(remove_files(dir), 3);
    assert_int_equal(rmdir(dir), 0);
}

/* Another start, which measures and keeps another choice. */
struct other_start {
    int lock;
    const char *path, *text;
};

static void *end_other_start(void *arg)
{
    struct other_start *o = arg;

    clock_sleep_ns(200000000); /* this one looks into the folder meanwhile */
    write_text(o->path, o->text);
    save_unlock_dir(o->lock);
    return NULL;
}

static void two_starts_at_once_make_one_choice(void **state)
{
    char dir[] = "/tmp/tarn-choice-XXXXXX", path[sizeof dir + 40], text[1024];
    struct cpu_choice first;
    struct other_start other = {.path = path, .text = text};
    pthread_t thread;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/kernels-%u-32-0-1-auto.txt", dir, (unsigned)DTYPE_I8);
    first = measured(NULL, dir);
    read_text(path, text);
    strcpy(strstr(text, "\nprefetch ") + strlen("\nprefetch "),
           first.fetch == CPU_FETCH_AHEAD ? "quarters\n" : "ahead\n");
    assert_int_equal(remove(path), 0);
    other.lock = save_lock_dir(dir);
    assert_true(other.lock >= 0);
    assert_int_equal(pthread_create(&thread, NULL, end_other_start, &other), 0);
    assert_int_not_equal(measured(NULL, dir).fetch, first.fetch);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* How weights are prefetched changes no bit, for a few rows and for many. */
static void prefetching_changes_no_bit(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_I8, DTYPE_I4, DTYPE_A4};
    enum { N = 100, K = 256, ROWS = 13 };
    static float a[ROWS * K], out[2][ROWS * N];
    struct device *d = open_device(DEVICE_CPU, NULL, 2);

    (void)state;
    for (size_t i = 0; i < ROWS * K; i++)
        a[i] = (float)(i * 37 % 101) - 50;
    for (size_t t = 0; t < ARRAY_SIZE(types); t++)
        for (uint32_t rows = 1; rows <= ROWS; rows += 4) {
            size_t bytes = pack_bytes(types[t], N, K, 32);
            unsigned char *data = device_alloc(d, bytes);

            assert_non_null(data);
            for (size_t i = 0; i < bytes; i++)
                data[i] = (unsigned char)(i * 29 % 60);
            for (int f = 0; f < 2; f++) {
                struct gemm_params p = {
                    .n_rows = rows,
                    .a = a,
                    .a_stride = K,
                    .w = {.dtype = types[t], .n = N, .k = K, .group = 32, .data = data},
                    .out = out[f],
                    .out_stride = N};

                p.w.layout = device_weight_layout(d);
                p.next = &p.w;
                device_cpu(d)->fetch = (enum cpu_fetch)f;
                assert_int_equal(device_ops(d)->gemm(d, NULL, &p), OK);
            }
            assert_memory_equal(out[0], out[1], (size_t)rows * N * sizeof(float));
            device_free(d, data);
        }
    device_close(d);
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
        cmocka_unit_test(the_first_kernels_give_way_only_to_much_faster_ones),
        cmocka_unit_test(measured_kernels_are_those_of_this_machine_unless_named),
        cmocka_unit_test(a_choice_is_kept_and_a_damaged_one_is_measured_again),
        cmocka_unit_test(servers_with_other_settings_keep_their_own_choice),
        cmocka_unit_test(two_starts_at_once_make_one_choice),
        cmocka_unit_test(prefetching_changes_no_bit),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(upload_and_download_copy),
        cmocka_unit_test(streams_and_events_of_a_host_device_are_done_at_once),
        cmocka_unit_test(parallel_runs_each_index_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
