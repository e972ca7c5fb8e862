/* test_step_graphs.c - steps that are recorded and replayed, on the emulated GPU. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "engine/run/step_graphs.h"
#include "tests/cuda_emulation/emulation.h"

#define N 8
#define CUDA_ERROR_NOT_SUPPORTED 801 /* the device survives it */

struct world {
    struct device *d;
    struct step_graphs *g;
    float *x, *y;
    uint64_t reserve;
};

static void open_world_with(struct world *w, uint64_t reserve)
{
    w->reserve = reserve;
    const struct device_config config = {.kind = DEVICE_CUDA, .n_threads = 1, .max_rows = 1};
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(device_open(&w->d, &config, &why), OK);
    buf_fini(&why);
    assert_int_equal(step_graphs_create(&w->g, w->d, w->reserve), OK);
    w->x = device_alloc(w->d, N * sizeof *w->x);
    w->y = device_alloc(w->d, N * sizeof *w->y);
    assert_true(w->x && w->y);
}

static void open_world(struct world *w)
{
    open_world_with(w, UINT64_MAX);
}

static void close_world(struct world *w)
{
    step_graphs_destroy(w->g);
    device_free(w->d, w->x);
    device_free(w->d, w->y);
    device_close(w->d);
}

/* y = 2 x, then y = 2 y */
static enum status step(void *arg)
{
    const struct world *w = arg;
    struct scale_params p = {.n_rows = 1, .dim = N, .scale = 2, .x = w->x, .out = w->y};
    enum status s = device_ops(w->d)->scale(w->d, NULL, &p);

    p.x = w->y;
    return s == OK ? device_ops(w->d)->scale(w->d, NULL, &p) : s;
}

/* Run the step with x = value, and check y. Returns the calls of the runtime. */
static uint64_t run(struct world *w, uint32_t n_rows, float value)
{
    const struct step_bucket bucket = {.n_rows = n_rows, .n_segments = 8, .pool = w->x};
    float x[N], y[N];

    for (int i = 0; i < N; i++)
        x[i] = value + (float)i;
    assert_int_equal(device_upload(w->d, w->x, x, sizeof x), OK);
    uint64_t before = emulation_calls();
    assert_int_equal(step_graphs_run(w->g, &bucket, step, w), OK);
    uint64_t n_calls = emulation_calls() - before;
    assert_int_equal(device_download(w->d, y, w->y, sizeof y), OK);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 4 * x[i]);
    return n_calls;
}

static void a_replay_reads_memory_anew_by_one_call(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    (void)run(&w, 1, 1);
    assert_int_equal(step_graphs_stats(w.g).n_recorded, 0);
    (void)run(&w, 1, 2);
    assert_int_equal(run(&w, 1, 3), 1);
    assert_int_equal(run(&w, 1, 4), 1);
    assert_int_equal(step_graphs_stats(w.g).n_recorded, 1);
    assert_int_equal(step_graphs_stats(w.g).n_replayed, 3);
    close_world(&w);
}

static void the_graph_used_least_recently_is_replaced(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    for (uint32_t n = 1; n <= STEP_GRAPHS_MAX; n++)
        for (int i = 0; i < 2; i++)
            (void)run(&w, n, (float)n);
    (void)run(&w, 1, 7); /* bucket 2 is the oldest now */
    for (int i = 0; i < 2; i++)
        (void)run(&w, STEP_GRAPHS_MAX + 1, 8);
    assert_int_equal(step_graphs_stats(w.g).n_recorded, STEP_GRAPHS_MAX + 1);
    assert_int_equal(run(&w, 1, 9), 1);
    assert_true(run(&w, 2, 10) > 1);
    close_world(&w);
}

/* Any call of a recording may fail: its step is computed all the same. */
static void a_failed_recording_costs_no_step(void **state)
{
    (void)state;
    for (uint64_t nth = 2; nth <= 8; nth++) { /* the first one asks for the free memory */
        struct world w;

        open_world(&w);
        (void)run(&w, 1, 1);
        const struct step_bucket bucket = {.n_rows = 1, .n_segments = 8, .pool = w.x};
        emulation_fail_call(nth, CUDA_ERROR_NOT_SUPPORTED);
        enum status s = step_graphs_run(w.g, &bucket, step, &w);
        emulation_fail_call(0, 0);
        /* begin, two launches, end, instantiate, upload, destroy */
        assert_int_equal(s, OK);
        assert_int_equal(step_graphs_stats(w.g).n_recorded, 0);
        assert_true(run(&w, 1, 3) > 1);
        close_world(&w);
    }
}

/* --- memory --- */

#define NODE_BYTES 5000
#define STEP_BYTES (2 * NODE_BYTES) /* of a recording of step() */

static uint64_t free_bytes(struct device *d)
{
    size_t n_free, n_total;

    assert_int_equal(device_memory(d, &n_free, &n_total), OK);
    return n_free;
}

/* Recordings of so many kernels as in the reserve take no more than the reserve. */
static void the_reserve_is_what_recordings_take(void **state)
{
    struct step_graphs_cost cost;
    struct world w;

    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        open_world(&w);
        emulation_graph_memory(NODE_BYTES, keeps);
        uint64_t before = free_bytes(w.d);
        step_graphs_measure(w.d, &cost);
        assert_true(cost.is_possible);
        assert_int_equal(cost.n_kept, before - free_bytes(w.d));
        assert_int_equal(cost.n_kept, keeps ? cost.probe_bytes : 0);
        assert_int_equal(step_graphs_reserve(&cost, 100), STEP_GRAPHS_MAX * 100 * NODE_BYTES);
        assert_int_equal(step_graphs_reserve(&cost, 2), STEP_GRAPHS_BYTES_MIN);
        assert_int_equal(step_graphs_reserve(&cost, 1000000),
                         cost.device_bytes / STEP_GRAPHS_SHARE);
        emulation_graph_memory(2048, 0);
        close_world(&w);
    }
}

static void a_measurement_that_fails_leaves_nothing(void **state)
{
    struct step_graphs_cost cost;
    struct world w;

    (void)state;
    open_world(&w);
    uint64_t before = free_bytes(w.d);
    for (uint64_t nth = 1; nth < 4180; nth += nth < 8 ? 1 : 263) {
        emulation_fail_call(nth, CUDA_ERROR_NOT_SUPPORTED);
        step_graphs_measure(w.d, &cost);
        emulation_fail_call(0, 0);
        assert_int_equal(free_bytes(w.d), before);
        assert_true(step_graphs_reserve(&cost, 2) <= STEP_GRAPHS_BYTES_MIN);
    }
    emulation_graph_memory((uint64_t)1 << 20, 0); /* more than there is */
    step_graphs_measure(w.d, &cost);
    emulation_graph_memory(2048, 0);
    assert_int_equal(cost.probe_bytes, 0);
    assert_int_equal(free_bytes(w.d), before);
    (void)run(&w, 1, 1);
    close_world(&w);
}

/* Three recordings fit. A fourth bucket is computed kernel by kernel, until one of the three was
 * not used for long. */
static void recordings_stay_in_their_reserve(void **state)
{
    struct world w;

    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        open_world_with(&w, 3 * STEP_BYTES + STEP_BYTES / 2);
        emulation_graph_memory(NODE_BYTES, keeps);
        uint64_t before = free_bytes(w.d);
        for (uint32_t n = 1; n <= 5; n++)
            for (int i = 0; i < 3; i++)
                (void)run(&w, n, (float)n);
        assert_int_equal(step_graphs_stats(w.g).n_held, 3);
        assert_int_equal(step_graphs_stats(w.g).n_bytes, 3 * STEP_BYTES);
        assert_int_equal(before - free_bytes(w.d), 3 * STEP_BYTES);
        assert_int_equal(run(&w, 3, 1), 1);
        assert_true(run(&w, 4, 1) > 1);
        for (int i = 0; i < 300; i++) /* buckets 2 and 3 go on; 1 is forgotten */
            assert_int_equal(run(&w, 2 + (uint32_t)i % 2, (float)i), 1);
        (void)run(&w, 4, 1);
        assert_int_equal(run(&w, 4, 2), 1);
        assert_int_equal(run(&w, 2, 3), 1);
        assert_true(run(&w, 1, 4) > 1);
        assert_int_equal(step_graphs_stats(w.g).n_held, 3);
        assert_int_equal(before - free_bytes(w.d), 3 * STEP_BYTES);
        step_graphs_forget(w.g);
        assert_int_equal(step_graphs_stats(w.g).n_bytes, 0);
        emulation_graph_memory(2048, 0);
        assert_int_equal(free_bytes(w.d), before);
        close_world(&w);
    }
}

static void a_bucket_has_room_and_little_padding(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 300; rows++)
        for (uint32_t segments = rows; segments < 20000; segments += 1 + segments / 3) {
            struct step_bucket b = step_bucket_for(rows, segments, 300, 20000);

            assert_in_range(b.n_rows, rows, 300);
            assert_in_range(b.n_segments, segments, 20000);
            assert_true(b.n_rows - rows < (rows <= 64 ? 8 : 32));
            assert_true(b.n_segments - segments <= (segments < 64 ? 8 : segments / 8));
            /* A bucket is its own bucket. */
            assert_int_equal(step_bucket_for(b.n_rows, b.n_segments, 300, 20000).n_rows, b.n_rows);
            assert_int_equal(step_bucket_for(b.n_rows, b.n_segments, 300, 20000).n_segments,
                             b.n_segments);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_reads_memory_anew_by_one_call),
        cmocka_unit_test(the_graph_used_least_recently_is_replaced),
        cmocka_unit_test(a_failed_recording_costs_no_step),
        cmocka_unit_test(the_reserve_is_what_recordings_take),
        cmocka_unit_test(a_measurement_that_fails_leaves_nothing),
        cmocka_unit_test(recordings_stay_in_their_reserve),
        cmocka_unit_test(a_bucket_has_room_and_little_padding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
