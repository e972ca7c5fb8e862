/* Pools of one process that hand paths over, with the test as their engines. */
#include "tests/unit/cache/pool/pool_reads.h"

#include "base/log.h"

static struct pool_offer offer_of_path(void)
{
    static struct pool_meta meta[N_PATH];

    for (uint32_t i = 0; i < N_PATH; i++)
        meta[i] = (struct pool_meta){.n_tokens = 32,
                                     .starts_segment = i % N_IN_SEGMENT == 0,
                                     .is_public = i < 8,
                                     .is_registered = i == 3,
                                     .depth = i / 8};
    return (struct pool_offer){.keys = world.keys, .meta = meta, .n = N_PATH};
}

static void an_offered_path_is_pulled_by_a_peer(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_offer offer = offer_of_path();
    struct pool_found found;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    pool_leave(a->pool);
    assert_true(pool_offer(a->pool, &offer));
    assert_int_equal(pool_n_offers(a->pool), 1);
    WAIT_FOR(b->n_offers == 1);
    assert_int_equal(b->offer.n, N_PATH);
    assert_memory_equal(b->offer.keys, world.keys, sizeof world.keys);
    for (uint32_t i = 0; i < N_PATH; i++)
        assert_memory_equal(&b->offer.meta[i], &offer.meta[i], sizeof offer.meta[i]);
    assert_int_equal(pool_look(b->pool, b->offer.ticket, &found), POOL_FOUND);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(read_blocks(b, b->offer.ticket, 8 * i, 8, i));
    WAIT_FOR(b->n_done == 3);
    check_blocks(0, N_PATH);
    side_hold(b, N_PATH);
    pool_forget(b->pool, b->offer.ticket);
    WAIT_FOR(pool_n_offers(a->pool) == 0);
    WAIT_FOR(stats_of(a).n_handed_over == 1 && a->n_returned == 1);
}

static void an_offer_to_one_instance_leaves_out_what_is_there(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);
    struct pool_offer offer = offer_of_path();

    (void)state;
    side_hold(a, N_PATH);
    side_hold(b, 8);
    WAIT_FOR(is_announced(a) && is_announced(b) && all_know(3));
    offer.to = b->id;
    offer.n_there = 8;
    assert_true(pool_offer(a->pool, &offer));
    WAIT_FOR(b->n_offers == 1);
    assert_true(b->offer.n == N_PATH && b->offer.n_there == 8);
    pool_forget(b->pool, b->offer.ticket);
    WAIT_FOR(pool_n_offers(a->pool) == 0); /* nobody else is offered it */
    assert_int_equal(c->n_offers, 0);
    assert_int_equal(stats_of(a).n_handed_over, 0);
}

static void a_path_that_others_hold_is_not_offered(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_offer offer = offer_of_path();

    (void)state;
    side_hold(a, N_PATH);
    side_hold(b, N_PATH);
    WAIT_FOR(is_announced(a) && is_announced(b) && all_know(2));
    pool_leave(a->pool);
    assert_true(pool_offer(a->pool, &offer));
    WAIT_FOR(pool_n_offers(a->pool) == 0);
    WAIT_FOR(stats_of(a).n_handed_over == 1);
    assert_int_equal(b->n_offers, 0);
}

static void a_refused_offer_ends_and_more_than_fit_are_not_taken(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_offer offer = offer_of_path();
    uint32_t n = 0;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    pool_leave(a->pool);
    while (pool_offer(a->pool, &offer))
        n++;
    assert_in_range(n, 2, 100);
    WAIT_FOR(({
        if (b->n_offers == 1) { /* nothing is read: no room */
            pool_forget(b->pool, b->offer.ticket);
            b->n_offers = 0;
        }
        pool_n_offers(a->pool) == 0;
    }));
    WAIT_FOR(stats_of(a).n_offered == n && a->n_returned == a->n_lent);
    assert_int_equal(stats_of(a).n_handed_over, 0);
    assert_true(pool_offer(a->pool, &offer)); /* the slots are free again */
}

static void an_instance_without_peers_has_nobody_to_hand_over_to(void **state)
{
    struct side *a = side_open(0);
    struct pool_offer offer = offer_of_path();

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a));
    pool_leave(a->pool);
    assert_true(pool_offer(a->pool, &offer));
    WAIT_FOR(pool_n_offers(a->pool) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(an_offered_path_is_pulled_by_a_peer),
        T(an_offer_to_one_instance_leaves_out_what_is_there),
        T(a_path_that_others_hold_is_not_offered),
        T(a_refused_offer_ends_and_more_than_fit_are_not_taken),
        T(an_instance_without_peers_has_nobody_to_hand_over_to),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
