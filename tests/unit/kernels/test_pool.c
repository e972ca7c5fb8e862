/* test_pool.c - the compute pool runs everything exactly once and makes it visible. */
#include "tests/unit/kernels/kernel_test.h"

#include <stdatomic.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"

#define N_MAX 5000

struct seen {
    uint32_t n_threads;
    uint32_t chunk;
    uint32_t times[N_MAX]; /* plain: a sanitizer sees a double call or a missing fence */
    _Atomic uint32_t n_calls;
};

static void mark(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct seen *s = arg;

    if (!(begin < end && end - begin <= s->chunk && thread < s->n_threads))
        abort();
    for (uint32_t i = begin; i < end; i++)
        s->times[i]++;
    atomic_fetch_add(&s->n_calls, 1);
}

static void run_rounds(uint32_t n_threads, uint32_t n_rounds)
{
    struct seen *s = test_alloc(sizeof(*s));
    struct pool *p = NULL;
    uint32_t want[2] = {0, 0};

    assert_int_equal(pool_create(&p, n_threads, NULL), OK);
    assert_int_equal(pool_n_threads(p), n_threads);
    s->n_threads = n_threads;
    for (uint32_t round = 0; round < n_rounds; round++) {
        uint32_t n = rng_below(4) == 0 ? rng_below(N_MAX) : rng_below(9);

        s->chunk = 1 + (rng_below(3) == 0 ? rng_below(N_MAX) : rng_below(5));
        pool_run(p, n, s->chunk, mark, s);
        for (uint32_t i = 0; i < n; i++) {
            want[0] += s->times[i];
            assert_int_equal(s->times[i], 1);
            s->times[i] = 0;
        }
        want[1] += n;
        if (rng_below(500) == 0)
            usleep(500); /* long enough for the workers to fall asleep */
    }
    assert_int_equal(want[0], want[1]);
    pool_destroy(p);
    free(s);
}

static void every_index_runs_exactly_once(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++)
        run_rounds(n_threads, 3000);
}

static void one_thread_is_the_caller(void **state)
{
    (void)state;
    run_rounds(1, 10);
}

static void no_indices_call_nothing(void **state)
{
    struct seen *s = test_alloc(sizeof(*s));
    struct pool *p = NULL;

    (void)state;
    assert_int_equal(pool_create(&p, 3, NULL), OK);
    pool_run(p, 0, 1, mark, s);
    assert_int_equal(s->n_calls, 0);
    pool_destroy(p);
    free(s);
}

static void destroy_joins_idle_sleeping_and_unused_workers(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct pool *p = NULL;

        assert_int_equal(pool_create(&p, 4, NULL), OK);
        if (i % 8 == 0)
            usleep(2000);
        pool_destroy(p);
    }
    pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_exactly_once),
        cmocka_unit_test(one_thread_is_the_caller),
        cmocka_unit_test(no_indices_call_nothing),
        cmocka_unit_test(destroy_joins_idle_sleeping_and_unused_workers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
