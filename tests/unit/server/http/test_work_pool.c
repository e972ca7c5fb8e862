/* test_work_pool.c - each accepted item runs once, clients share the threads fairly, and a full or
 * closed pool refuses items. */
#include "tests/unit/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/http/work_pool.h"

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
        enum status s = work_pool_push(p->pool, &times[p->first + i], (uint64_t)p->first,
                                       (uint64_t)i % 2 << 30);
        while (s == ERR_BUSY) {
            clock_sleep_ns(10000);
            s = work_pool_push(p->pool, &times[p->first + i], (uint64_t)p->first,
                               (uint64_t)i % 2 << 30);
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
        enum status s = work_pool_push(pool, &gate, (uint64_t)i, 0);
        assert_true(s == OK || s == ERR_BUSY);
        n_taken += s == OK;
    }
    assert_true(n_taken == 3 || n_taken == 4); /* the thread may have taken one already */
    atomic_store(&gate, true);
    work_pool_close(pool); /* finishes the queued items */
    assert_int_equal(atomic_load(&n_done), n_taken);
    assert_int_equal(work_pool_push(pool, &gate, 1, 0), ERR_UNAVAILABLE);
    work_pool_destroy(pool);
    work_pool_destroy(NULL);
}

/* --- the order --- */

struct task {
    char name;
    bool waits; /* for the gate */
};

static char order[64];     /* names of the tasks, as they began */
static atomic_int n_begun; /* names that are written */
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;

static void note(void *item)
{
    const struct task *t = item;

    pthread_mutex_lock(&order_lock);
    order[atomic_load(&n_begun)] = t->name;
    atomic_fetch_add(&n_begun, 1);
    pthread_mutex_unlock(&order_lock);
    while (t->waits && !atomic_load(&gate))
        clock_sleep_ns(100000);
    atomic_fetch_add(&n_done, 1);
}

static void reset(void)
{
    memset(order, 0, sizeof order);
    atomic_store(&n_begun, 0);
    atomic_store(&n_done, 0);
    atomic_store(&gate, false);
}

static void wait_until_begun(int n)
{
    while (atomic_load(&n_begun) < n)
        clock_sleep_ns(100000);
}

static void push_task(struct work_pool *pool, struct task *t, uint64_t client, uint64_t cost)
{
    assert_ok(work_pool_push(pool, t, client, cost));
}

static void a_client_waits_behind_none_of_another_ones_queue(void **state)
{
    struct task first = {'A', true}, a = {'a', false}, b = {'b', false}, c = {'c', false};
    struct work_pool *pool;

    (void)state;
    reset();
    assert_ok(work_pool_create(&pool, 1, 32, note));
    push_task(pool, &first, 1, 5u << 20);
    wait_until_begun(1);
    for (int i = 0; i < 4; i++)
        push_task(pool, &a, 1, 0);
    push_task(pool, &b, 2, 100);
    push_task(pool, &c, 3, 5u << 20);
    atomic_store(&gate, true);
    work_pool_close(pool);
    assert_string_equal(order, "Abcaaaa");
    work_pool_destroy(pool);
}

/* A client that returns after a pause has gained no credit, and has lost no service time. */
static void a_pause_earns_nothing(void **state)
{
    struct task first = {'A', true}, a = {'a', false}, b = {'b', false}, wait = {'W', true};
    struct work_pool *pool;

    (void)state;
    reset();
    assert_ok(work_pool_create(&pool, 1, 32, note));
    push_task(pool, &first, 1, 0); /* takes a long time */
    wait_until_begun(1);
    clock_sleep_ns(20000000);
    atomic_store(&gate, true);
    while (atomic_load(&n_done) < 1)
        clock_sleep_ns(100000);
    atomic_store(&gate, false);
    push_task(pool, &wait, 9, 0);
    wait_until_begun(2);
    push_task(pool, &a, 1, 0); /* queued first, but its client has more service */
    push_task(pool, &b, 2, 0);
    atomic_store(&gate, true);
    work_pool_close(pool);
    assert_string_equal(order, "AWba");
    work_pool_destroy(pool);
}

static void heavy_items_leave_a_thread_to_short_ones(void **state)
{
    struct task heavy = {'H', true}, other = {'h', false}, light = {'l', false};
    struct work_pool *pool;

    (void)state;
    reset();
    assert_ok(work_pool_create(&pool, 2, 32, note));
    push_task(pool, &heavy, 1, WORK_HEAVY_COST + 1);
    wait_until_begun(1);
    push_task(pool, &other, 2, WORK_HEAVY_COST + 1);
    push_task(pool, &light, 1, WORK_HEAVY_COST); /* of a client with a heavy item running */
    push_task(pool, &light, 3, 0);
    while (atomic_load(&n_done) < 2) /* would never end if these waited for heavy items */
        clock_sleep_ns(100000);
    assert_string_equal(order, "Hll");
    atomic_store(&gate, true);
    work_pool_close(pool);
    assert_string_equal(order, "Hllh");
    work_pool_destroy(pool);
}

static void one_client_cannot_fill_the_queue(void **state)
{
    struct task first = {'A', true}, t = {'t', false};
    struct work_pool *pool;
    int n_taken = 0;

    (void)state;
    reset();
    assert_ok(work_pool_create(&pool, 1, 32, note));
    push_task(pool, &first, 1, 0);
    wait_until_begun(1);
    while (work_pool_push(pool, &t, 1, 0) == OK)
        n_taken++;
    assert_int_equal(n_taken, 16);
    for (uint64_t client = 2; client < 10; client++)
        push_task(pool, &t, client, 0);
    atomic_store(&gate, true);
    work_pool_close(pool);
    work_pool_destroy(pool);
}

static void clients_are_known_by_their_addresses(void **state)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6}, mapped = {.sin6_family = AF_INET6};
    struct sockaddr local = {.sa_family = AF_UNIX};
    const struct sockaddr *v6_address = (const struct sockaddr *)&v6;

    (void)state;
    assert_int_equal(inet_pton(AF_INET, "192.0.2.7", &v4.sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET6, "::ffff:192.0.2.7", &mapped.sin6_addr), 1);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr), 1);
    uint64_t a = work_client_of_address((const struct sockaddr *)&v4);
    uint64_t b = work_client_of_address(v6_address);
    assert_true(a != 0 && b != 0 && a != b);
    assert_int_equal(work_client_of_address((const struct sockaddr *)&mapped), a);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::ffff:2", &v6.sin6_addr), 1);
    assert_int_equal(work_client_of_address(v6_address), b);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8:0:1::1", &v6.sin6_addr), 1);
    assert_true(work_client_of_address(v6_address) != b);
    assert_int_equal(work_client_of_address(&local), 0);
    assert_int_equal(work_client_of_address(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_worked_once),
        cmocka_unit_test(full_is_busy_and_closed_is_unavailable),
        cmocka_unit_test(a_client_waits_behind_none_of_another_ones_queue),
        cmocka_unit_test(a_pause_earns_nothing),
        cmocka_unit_test(heavy_items_leave_a_thread_to_short_ones),
        cmocka_unit_test(one_client_cannot_fill_the_queue),
        cmocka_unit_test(clients_are_known_by_their_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
