/* test_work_pool.c - everything taken in is worked once; full and closed are said. */
#include "tests/unit/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/clock.h"
#include "server/work_pool.h"

#define N_ITEMS 10000
#define N_PUSHERS 4

static atomic_int n_done;
static atomic_int times[N_PUSHERS * N_ITEMS];
static atomic_bool gate;

static void count(void *item)
{
    atomic_fetch_add(&times[(atomic_int *)item - times], 1);
    atomic_fetch_add(&n_done, 1);
}

static void wait_for_gate(void *item)
{
    (void)item;
    while (!atomic_load(&gate))
        clock_sleep_ns(100000);
    atomic_fetch_add(&n_done, 1);
}

struct pusher {
    struct work_pool *pool;
    int first;
    int n_taken;
};

static void *push(void *arg)
{
    struct pusher *p = arg;

    for (int i = 0; i < N_ITEMS; i++) {
        enum status s = work_pool_push(p->pool, &times[p->first + i]);
        while (s == ERR_BUSY) {
            clock_sleep_ns(10000);
            s = work_pool_push(p->pool, &times[p->first + i]);
        }
        p->n_taken += s == OK;
    }
    return NULL;
}

static void every_item_is_worked_once(void **state)
{
    struct pusher pushers[N_PUSHERS];
    pthread_t threads[N_PUSHERS];
    struct work_pool *pool;

    (void)state;
    atomic_store(&n_done, 0);
    assert_ok(work_pool_create(&pool, 2, 16, count));
    for (int i = 0; i < N_PUSHERS; i++) {
        pushers[i] = (struct pusher){pool, i * N_ITEMS, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, push, &pushers[i]), 0);
    }
    for (int i = 0; i < N_PUSHERS; i++)
        pthread_join(threads[i], NULL);
    work_pool_close(pool);
    for (int i = 0; i < N_PUSHERS; i++)
        assert_int_equal(pushers[i].n_taken, N_ITEMS);
    for (int i = 0; i < N_PUSHERS * N_ITEMS; i++)
        assert_int_equal(atomic_load(&times[i]), 1);
    work_pool_destroy(pool);
}

static void full_is_busy_and_closed_is_unavailable(void **state)
{
    struct work_pool *pool;
    int n_taken = 0;

    (void)state;
    atomic_store(&n_done, 0);
    atomic_store(&gate, false);
    assert_ok(work_pool_create(&pool, 1, 3, wait_for_gate));
    for (int i = 0; i < 10; i++) {
        enum status s = work_pool_push(pool, &gate);
        assert_true(s == OK || s == ERR_BUSY);
        n_taken += s == OK;
    }
    assert_true(n_taken == 3 || n_taken == 4); /* the thread may have one */
    atomic_store(&gate, true);
    work_pool_close(pool); /* works off what it took */
    assert_int_equal(atomic_load(&n_done), n_taken);
    assert_int_equal(work_pool_push(pool, &gate), ERR_UNAVAILABLE);
    work_pool_destroy(pool);
    work_pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_worked_once),
        cmocka_unit_test(full_is_busy_and_closed_is_unavailable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
