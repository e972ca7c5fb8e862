#include "tests/unit/test.h"

#include <pthread.h>

#include "base/ring.h"

#define N_SENDERS 4
#define N_EACH 20000

static struct ring ring;

static void *send_all(void *arg)
{
    uintptr_t who = (uintptr_t)arg;

    for (uintptr_t i = 1; i <= N_EACH;)
        if (ring_push(&ring, (void *)(who * 1000000 + i)) == OK)
            i++;
    return NULL;
}

static void nothing_is_lost_and_each_sender_keeps_its_order(void **state)
{
    pthread_t senders[N_SENDERS];
    uintptr_t last[N_SENDERS] = {0};
    void *items[64];
    uint32_t n_seen = 0;

    (void)state;
    assert_ok(ring_init(&ring, 100));
    for (uintptr_t i = 0; i < N_SENDERS; i++)
        assert_int_equal(pthread_create(&senders[i], NULL, send_all, (void *)i), 0);
    while (n_seen < N_SENDERS * N_EACH) {
        uint32_t n = ring_drain(&ring, items, 64);
        for (uint32_t i = 0; i < n; i++) {
            uintptr_t v = (uintptr_t)items[i], who = v / 1000000;
            assert_int_equal(v % 1000000, last[who] + 1);
            last[who]++;
        }
        n_seen += n;
        if (n == 0)
            ring_wait(&ring, 1000000);
    }
    for (int i = 0; i < N_SENDERS; i++)
        pthread_join(senders[i], NULL);
    ring_fini(&ring);
}

static void full_and_closed_are_said(void **state)
{
    int x;

    (void)state;
    assert_ok(ring_init(&ring, 2));
    assert_ok(ring_push(&ring, &x));
    assert_ok(ring_push(&ring, &x));
    assert_int_equal(ring_push(&ring, &x), ERR_BUSY);
    ring_close(&ring);
    assert_int_equal(ring_push(&ring, &x), ERR_UNAVAILABLE);
    void *items[4];
    assert_int_equal(ring_drain(&ring, items, 4), 2); /* earlier items stay */
    ring_fini(&ring);
}

static void a_poke_ends_a_wait(void **state)
{
    (void)state;
    assert_ok(ring_init(&ring, 2));
    ring_poke(&ring);
    ring_wait(&ring, UINT64_C(3600) * 1000000000); /* returns at once, or the test times out */
    ring_fini(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_and_each_sender_keeps_its_order),
        cmocka_unit_test(full_and_closed_are_said),
        cmocka_unit_test(a_poke_ends_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
