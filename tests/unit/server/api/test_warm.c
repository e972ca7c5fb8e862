/* test_warm.c - which prefill is next, and when it must wait. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "server/api/warm.h"

#define MINUTE_NS UINT64_C(60000000000)

static struct warm w;
static uint32_t n_dropped;
static const struct warm_room LARGE = {.n_memory = 1000, .n_free = 1000};

static int open_table(void **state)
{
    (void)state;
    n_dropped = 0;
    return warm_init(&w) == OK ? 0 : -1;
}

static int close_table(void **state)
{
    (void)state;
    warm_fini(&w);
    return 0;
}

static void count_dropped(void *arg, const struct warm_task *t)
{
    (void)arg;
    assert_true(t->is_pinned && t->state == WARM_READY);
    n_dropped++;
}

static void ready(uint32_t task, uint32_t n_blocks)
{
    w.tasks[task].n_blocks = n_blocks;
    assert_true(warm_set(&w, task, WARM_RUNNING, NULL, 0));
    assert_true(warm_set(&w, task, WARM_READY, NULL, 0));
}

static void each_task_runs_once(void **state)
{
    (void)state;
    for (int64_t row = 1; row <= 1000; row++)
        for (uint64_t p = 1; p <= 2; p++)
            assert_true(warm_want(&w, row, 1, p, false));
    assert_true(warm_want(&w, 7, 1, 2, false)); /* is there */
    for (int i = 0; i < 2000; i++) {
        uint32_t task = warm_next(&w, &LARGE, 0);
        assert_int_not_equal(task, WARM_NONE);
        ready(task, 0);
    }
    assert_int_equal(warm_next(&w, &LARGE, UINT64_MAX), WARM_NONE);
    assert_int_equal(w.n[WARM_READY], 2000);
}

static void a_new_version_starts_anew(void **state)
{
    (void)state;
    assert_true(warm_want(&w, 5, 1, 9, true));
    ready(warm_of_row(&w, 5), 3);
    warm_row_begin(&w, 5);
    assert_true(warm_want(&w, 5, 2, 9, true));
    warm_row_end(&w, 5, count_dropped, NULL);
    assert_int_equal(n_dropped, 1);
    uint32_t task = warm_of_row(&w, 5);
    assert_int_equal(w.tasks[task].version, 2);
    assert_int_equal(w.tasks[task].next, WARM_NONE);
    assert_int_equal(w.tasks[task].state, WARM_WAITING);
    assert_int_equal(w.n_blocks, 0);
}

static void a_running_task_goes_when_its_request_ends(void **state)
{
    (void)state;
    assert_true(warm_want(&w, 5, 1, 9, false));
    uint32_t task = warm_next(&w, &LARGE, 0);
    assert_true(warm_set(&w, task, WARM_RUNNING, NULL, 0));
    warm_row_begin(&w, 5);
    warm_row_end(&w, 5, count_dropped, NULL);
    assert_int_equal(warm_of_row(&w, 5), task);
    assert_false(warm_set(&w, task, WARM_READY, NULL, 0));
    assert_int_equal(warm_of_row(&w, 5), WARM_NONE);
    assert_int_equal(w.n_blocks, 0);
}

static void a_scan_drops_what_it_does_not_name(void **state)
{
    (void)state;
    for (int64_t row = 1; row <= 10; row++)
        assert_true(warm_want(&w, row, 1, 1, row % 2));
    for (uint32_t i = 0; i < 10; i++)
        ready(i, 1);
    warm_scan_begin(&w);
    for (int64_t row = 1; row <= 4; row++)
        assert_true(warm_want(&w, row, 1, 1, row % 2));
    warm_scan_end(&w, count_dropped, NULL);
    assert_int_equal(n_dropped, 3); /* 5, 7, 9 */
    for (int64_t row = 1; row <= 10; row++)
        assert_int_equal(warm_of_row(&w, row) != WARM_NONE, row <= 4);
    assert_int_equal(w.n_blocks, 4);
    assert_true(warm_want(&w, 11, 1, 1, false)); /* a freed place is used again */
    assert_int_equal(w.n_all, 10);
}

static void warm_documents_take_at_most_half_of_the_memory(void **state)
{
    const struct warm_room room = {.n_memory = 100}, with_disk = {.n_memory = 100, .n_disk = 100};

    (void)state;
    for (int64_t row = 1; row <= 3; row++)
        assert_true(warm_want(&w, row, 1, 1, false));
    ready(0, 30);
    w.tasks[1].n_blocks = 20;
    assert_true(warm_has_room(&w, &w.tasks[1], &room));
    w.tasks[1].n_blocks = 21;
    assert_false(warm_has_room(&w, &w.tasks[1], &room));
    assert_true(warm_has_room(&w, &w.tasks[1], &with_disk));
    w.tasks[1].is_pinned = true; /* holds have bounds of their own */
    assert_true(warm_has_room(&w, &w.tasks[1], &room));
    w.tasks[1].is_pinned = false;
    assert_true(warm_set(&w, 1, WARM_NO_ROOM, NULL, 0));
    assert_int_equal(warm_next(&w, &room, MINUTE_NS), 2); /* its size is not known yet */
    w.tasks[2].n_blocks = 90;
    assert_int_equal(warm_next(&w, &room, MINUTE_NS), WARM_NONE);
    assert_true(warm_set(&w, 0, WARM_EVICTED, NULL, 0));
    assert_int_equal(warm_next(&w, &room, MINUTE_NS - 1), 1);
}

static void what_was_evicted_waits_for_free_blocks_and_twice_as_long_each_time(void **state)
{
    const struct warm_room full = {.n_memory = 100, .n_free = 19}, free = {100, 0, 20};
    uint64_t now = 1000, wait = MINUTE_NS;

    (void)state;
    assert_true(warm_want(&w, 1, 1, 1, false));
    ready(0, 10);
    for (int i = 0; i < 8; i++) {
        assert_true(warm_set(&w, 0, WARM_EVICTED, NULL, now));
        assert_int_equal(warm_next(&w, &free, now + wait - 1), WARM_NONE);
        assert_int_equal(warm_next(&w, &full, now + wait), WARM_NONE);
        assert_int_equal(warm_next(&w, &free, now + wait), 0);
        now += wait;
        wait = 2 * wait < 60 * MINUTE_NS ? 2 * wait : 60 * MINUTE_NS;
        ready(0, 10);
    }
}

static void a_failure_is_told_and_tried_again(void **state)
{
    (void)state;
    assert_true(warm_want(&w, 1, 1, 1, false));
    assert_true(warm_set(&w, 0, WARM_RUNNING, NULL, 0));
    assert_true(warm_set(&w, 0, WARM_FAILED, "too long", 0));
    assert_string_equal(w.tasks[0].why, "too long");
    assert_int_equal(warm_next(&w, &LARGE, MINUTE_NS - 1), WARM_NONE);
    assert_int_equal(warm_next(&w, &LARGE, MINUTE_NS), 0);
    ready(0, 1);
    assert_null(w.tasks[0].why);
}

static void a_document_that_becomes_pinned_runs_again_to_be_held(void **state)
{
    (void)state;
    assert_true(warm_want(&w, 1, 1, 1, false));
    ready(0, 5);
    assert_true(warm_want(&w, 1, 1, 1, true));
    assert_int_equal(warm_next(&w, &LARGE, 0), 0);
    ready(0, 5);
    assert_true(warm_want(&w, 1, 1, 1, true));
    assert_int_equal(warm_next(&w, &LARGE, 0), WARM_NONE);
}

static void tasks_have_a_limit(void **state)
{
    (void)state;
    for (int64_t row = 1; row <= WARM_N_TASKS_MAX; row++)
        assert_true(warm_want(&w, row, 1, 1, false));
    assert_false(warm_want(&w, WARM_N_TASKS_MAX + 1, 1, 1, false));
    assert_false(warm_want(&w, 1, 1, 2, false));
    warm_row_begin(&w, 4);
    warm_row_end(&w, 4, count_dropped, NULL);
    assert_true(warm_want(&w, 1, 1, 2, false));
    assert_int_equal(w.n[WARM_WAITING], WARM_N_TASKS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_task_runs_once, open_table, close_table),
        cmocka_unit_test_setup_teardown(a_new_version_starts_anew, open_table, close_table),
        cmocka_unit_test_setup_teardown(a_running_task_goes_when_its_request_ends, open_table,
                                        close_table),
        cmocka_unit_test_setup_teardown(a_scan_drops_what_it_does_not_name, open_table,
                                        close_table),
        cmocka_unit_test_setup_teardown(warm_documents_take_at_most_half_of_the_memory, open_table,
                                        close_table),
        cmocka_unit_test_setup_teardown(
            what_was_evicted_waits_for_free_blocks_and_twice_as_long_each_time, open_table,
            close_table),
        cmocka_unit_test_setup_teardown(a_failure_is_told_and_tried_again, open_table, close_table),
        cmocka_unit_test_setup_teardown(a_document_that_becomes_pinned_runs_again_to_be_held,
                                        open_table, close_table),
        cmocka_unit_test_setup_teardown(tasks_have_a_limit, open_table, close_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
