/* The virtual device: the times of copies and kernels, and their order. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "base/buf.h"
#include "loadgen/sim/virtual_device.h"

#define GB 1000000000u
#define MS UINT64_C(1000000)

static struct virtual_device *v;
static struct device *d;
static struct device_event *e;

/* 1 GB/s in, 2 GB/s out: a megabyte takes 1 ms and half of one. */
static int open_device(void **state)
{
    struct virtual_device_config config = {GB, 2.0 * GB};

    (void)state;
    assert_ok(virtual_device_open(&v, &d, &config, NULL));
    assert_ok(device_event_create(d, &e));
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    device_event_destroy(d, e);
    device_close(d);
    return 0;
}

/* In pieces of a megabyte. */
static void copy(enum device_stream which, uint32_t n_mb)
{
    void *to[16] = {NULL};
    const void *from[16] = {NULL};

    assert_in_range(n_mb, 1, 16);
    assert_ok(device_copies_async(d, device_stream(d, which), to, from, n_mb, 1000000));
}

static void copy_in(uint32_t n_mb)
{
    copy(DEVICE_COPY_IN, n_mb);
}

static void copy_out(uint32_t n_mb)
{
    copy(DEVICE_COPY_OUT, n_mb);
}

static bool is_reached(void)
{
    bool done = false;

    assert_ok(device_event_query(d, e, &done));
    return done;
}

static void memory_is_addresses_of_any_size(void **state)
{
    unsigned char *a = device_alloc(d, (size_t)1 << 38), *b = device_alloc_pinned(d, 0);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_true(b < a || b >= a + ((size_t)1 << 38));
    device_free(d, a);
    device_free_pinned(d, b);
    assert_false(device_is_host(d));
}

static void synchronous_copies_are_refused(void **state)
{
    char here[16] = "";

    (void)state;
    assert_int_equal(device_upload(d, here, here, sizeof here), ERR_UNSUPPORTED);
    assert_int_equal(device_download(d, here, here, sizeof here), ERR_UNSUPPORTED);
}

static void copies_of_one_stream_go_in_turn_and_of_two_side_by_side(void **state)
{
    struct virtual_device_stats stats;

    (void)state;
    virtual_device_advance(v, 100 * MS);
    copy_in(3);
    copy_in(2);
    copy_out(4);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    assert_int_equal(virtual_device_next(v), 105 * MS);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_OUT)));
    assert_int_equal(virtual_device_next(v), 102 * MS);
    virtual_device_stats(v, &stats);
    assert_int_equal(stats.in_bytes, 5000000);
    assert_int_equal(stats.out_bytes, 4000000);
    assert_int_equal(stats.compute_waited_ns, 0);
}

static void a_stream_that_was_idle_starts_now(void **state)
{
    (void)state;
    copy_in(1);
    virtual_device_advance(v, 50 * MS);
    copy_in(1);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    assert_int_equal(virtual_device_next(v), 51 * MS);
}

static void kernels_wait_only_for_what_they_are_ordered_behind(void **state)
{
    struct virtual_device_stats stats;

    (void)state;
    copy_in(10);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    copy_in(5); /* after the event, so it does not count */
    assert_int_equal(virtual_device_run(v, 4 * MS), 4 * MS);
    virtual_device_advance(v, 4 * MS);
    assert_ok(device_event_order(d, e, NULL));
    assert_int_equal(virtual_device_run(v, 4 * MS), 14 * MS);
    virtual_device_stats(v, &stats);
    assert_int_equal(stats.compute_waited_ns, 6 * MS);
}

static void what_came_ahead_of_time_delays_nothing(void **state)
{
    struct virtual_device_stats stats;

    (void)state;
    copy_in(10);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    assert_int_equal(virtual_device_run(v, 30 * MS), 30 * MS);
    virtual_device_advance(v, 30 * MS);
    assert_ok(device_event_order(d, e, device_stream(d, DEVICE_COMPUTE)));
    assert_int_equal(virtual_device_run(v, 4 * MS), 34 * MS);
    virtual_device_stats(v, &stats);
    assert_int_equal(stats.compute_waited_ns, 0);
}

/* Like a spill, which reads what the current step writes. */
static void a_copy_can_be_ordered_behind_kernels(void **state)
{
    (void)state;
    assert_int_equal(virtual_device_run(v, 8 * MS), 8 * MS);
    assert_ok(device_event_record(d, e, NULL));
    assert_ok(device_event_order(d, e, device_stream(d, DEVICE_COPY_OUT)));
    copy_out(2);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_OUT)));
    assert_int_equal(virtual_device_next(v), 9 * MS);
}

static void an_event_is_reached_in_its_time(void **state)
{
    (void)state;
    assert_true(is_reached()); /* never recorded */
    assert_int_equal(virtual_device_next(v), UINT64_MAX);
    copy_in(2);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    assert_false(is_reached());
    virtual_device_advance(v, 2 * MS - 1);
    assert_false(is_reached());
    virtual_device_advance(v, 2 * MS);
    assert_true(is_reached());
    virtual_device_advance(v, MS); /* the clock does not go back */
    assert_int_equal(virtual_device_now(v), 2 * MS);
}

static void time_that_the_host_waits_is_counted(void **state)
{
    struct virtual_device_stats stats;

    (void)state;
    copy_in(7);
    assert_ok(device_event_record(d, e, device_stream(d, DEVICE_COPY_IN)));
    assert_ok(device_event_wait(d, e));
    assert_int_equal(virtual_device_now(v), 7 * MS);
    assert_ok(device_event_wait(d, e)); /* waited for already: returns at once */
    copy_out(2);
    assert_ok(device_stream_wait(d, device_stream(d, DEVICE_COPY_OUT)));
    assert_int_equal(virtual_device_now(v), 8 * MS);
    virtual_device_stats(v, &stats);
    assert_int_equal(stats.host_waited_ns, 8 * MS);
}

static void a_bandwidth_of_nothing_is_refused(void **state)
{
    struct virtual_device_config config = {0, GB};
    struct virtual_device *other;
    struct device *device;

    (void)state;
    assert_int_equal(virtual_device_open(&other, &device, &config, NULL), ERR_INVALID);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(memory_is_addresses_of_any_size, open_device, close_device),
        cmocka_unit_test_setup_teardown(synchronous_copies_are_refused, open_device, close_device),
        cmocka_unit_test_setup_teardown(copies_of_one_stream_go_in_turn_and_of_two_side_by_side,
                                        open_device, close_device),
        cmocka_unit_test_setup_teardown(a_stream_that_was_idle_starts_now, open_device,
                                        close_device),
        cmocka_unit_test_setup_teardown(kernels_wait_only_for_what_they_are_ordered_behind,
                                        open_device, close_device),
        cmocka_unit_test_setup_teardown(what_came_ahead_of_time_delays_nothing, open_device,
                                        close_device),
        cmocka_unit_test_setup_teardown(a_copy_can_be_ordered_behind_kernels, open_device,
                                        close_device),
        cmocka_unit_test_setup_teardown(an_event_is_reached_in_its_time, open_device, close_device),
        cmocka_unit_test_setup_teardown(time_that_the_host_waits_is_counted, open_device,
                                        close_device),
        cmocka_unit_test(a_bandwidth_of_nothing_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
