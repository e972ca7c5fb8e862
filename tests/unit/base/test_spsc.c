/* test_spsc.c - the bounded queue of records between two threads. */
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <sched.h>
#include <cmocka.h>

#include "base/spsc.h"

struct record {
    uint64_t a, b;
};

#define N_RECORDS 200000u

static void records_come_out_in_order_until_the_queue_is_empty(void **state)
{
    struct spsc *q;
    struct record r;

    (void)state;
    assert_int_equal(spsc_create(&q, sizeof r, 3), OK);
    assert_false(spsc_pop(q, &r));
    for (uint64_t i = 0; i < 4; i++)
        assert_true(spsc_push(q, &(struct record){i, 2 * i}));
    for (uint64_t i = 0; i < 4; i++) {
        assert_true(spsc_pop(q, &r));
        assert_int_equal(r.a, i);
        assert_int_equal(r.b, 2 * i);
    }
    assert_true(spsc_is_empty(q));
    spsc_destroy(q);
}

static void a_full_queue_refuses_and_keeps_what_it_has(void **state)
{
    struct spsc *q;
    struct record r = {7, 7};

    (void)state;
    assert_int_equal(spsc_create(&q, sizeof r, 4), OK);
    for (uint64_t i = 0; i < 4; i++)
        assert_true(spsc_push(q, &(struct record){i, 0}));
    assert_int_equal(spsc_room(q), 0);
    assert_false(spsc_push(q, &r));
    assert_true(spsc_pop(q, &r));
    assert_int_equal(r.a, 0);
    assert_int_equal(spsc_room(q), 1);
    spsc_destroy(q);
}

static void *send_all(void *arg)
{
    for (uint64_t i = 0; i < N_RECORDS; i++)
        while (!spsc_push(arg, &(struct record){i, ~i}))
            sched_yield();
    return NULL;
}

static void two_threads_see_every_record_once_and_whole(void **state)
{
    struct spsc *q;
    struct record r;
    pthread_t sender;

    (void)state;
    assert_int_equal(spsc_create(&q, sizeof r, 64), OK);
    assert_int_equal(pthread_create(&sender, NULL, send_all, q), 0);
    for (uint64_t i = 0; i < N_RECORDS; i++) {
        while (!spsc_pop(q, &r))
            sched_yield();
        assert_int_equal(r.a, i);
        assert_int_equal(r.b, ~i);
    }
    pthread_join(sender, NULL);
    assert_true(spsc_is_empty(q));
    spsc_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_in_order_until_the_queue_is_empty),
        cmocka_unit_test(a_full_queue_refuses_and_keeps_what_it_has),
        cmocka_unit_test(two_threads_see_every_record_once_and_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
