/* Caches of a pool that sleep: as lenders, as askers, as heirs. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS
#define TWO_SEGMENTS "ABCDEFGHIJKLMNOP"

/* A sequence of the cache that waits for reads, which stand still. */
static void begin_to_read(struct cache *c, struct open_seq *o, const char *text)
{
    fake_of(c)->stalls = true;
    seq(c, o, text);
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o->s, true);
        step_all();
    }
    assert_true(cache_seq_is_loading(o->s) && n_in(c, CACHE_REMOTE) > 0);
}

static void a_sleeping_instance_lends_nothing(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);

    (void)state;
    ask(a, "ABCD");
    (void)fall_asleep(a);
    assert_int_equal(ask(b, "ABCDE"), 0);
    assert_int_equal(fake_of(a)->n_lent_blocks, 0);
    assert_ok(cache_wake(a));
    assert_int_equal(match(a, "ABCD"), 0);
}

static void a_woken_instance_pulls_and_lends_again(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    ask(b, "ABCD");
    for (uint32_t n = 0; n < 3; n++) {
        char text[] = {(char)('P' + 2 * n), (char)('Q' + 2 * n), '\0'};

        sleep_and_wake(a);
        assert_int_equal(ask_found(a, "ABCD", found), 4 * B);
        assert_int_equal(found[CACHE_REMOTE], 4 * B);
        ask(a, text);
        assert_int_equal(ask_found(b, text, found), 2 * B);
        assert_int_equal(found[CACHE_REMOTE], 2 * B);
        pass_ms(5); /* the lease is given back */
    }
}

static void a_loan_delays_the_sleep_of_its_lender(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGH|IJ");
    begin_to_read(b, &o, "ABCDEFGH|IJ");
    for (int i = 0; i < 20; i++) {
        assert_false(cache_sleep(a));
        step_all();
    }
    fake_of(b)->stalls = false;
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 10 * B);
    cache_seq_close(o.s);
    assert_true(fall_asleep(a) < 10);
}

static void a_lender_whose_asker_is_lost_falls_asleep_when_the_lease_ends(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD");
    fake_of(b)->lease_ns = 50 * STEP_NS;
    begin_to_read(b, &o, "ABCD");
    fake_of(b)->stalls = false;
    fake_of(b)->read_status = ERR_TIMEOUT;
    assert_true(fall_asleep(a) < 60);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
}

static void an_asker_that_sleeps_gives_its_lease_back_and_asks_again(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGH|IJ");
    begin_to_read(b, &o, "ABCDEFGH|IJ");
    cache_seq_sleep(o.s);
    (void)fall_asleep(b); /* the reads under way go to buffers beside its memory */
    fake_of(b)->stalls = false;
    pass_ms(5);
    assert_int_equal(stats_of(a).tier[CACHE_DEVICE].n_in_use, 0);
    assert_ok(cache_wake(b));
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 10 * B);
    assert_int_equal(fake_of(b)->n_lookups, 2);
    cache_seq_close(o.s);
}

/* The read ends after the cache was found empty, and before its memory is freed. */
static void a_read_that_ends_in_the_middle_of_falling_asleep_is_not_placed(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD");
    begin_to_read(b, &o, "ABCD");
    cache_seq_sleep(o.s);
    assert_false(cache_sleep(b)); /* the pool still knows the memory */
    fake_of(b)->stalls = false;
    assert_int_equal(fall_asleep(b), 1);
    assert_ok(cache_wake(b));
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
    cache_seq_close(o.s);
}

/* A lookup whose answer comes while the asker sleeps. */
static void an_answer_to_a_sleeping_asker_is_given_back(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD");
    fake_of(b)->holds_back = true;
    seq(b, &o, "ABCD");
    (void)cache_seq_load(o.s, true);
    cache_seq_sleep(o.s);
    (void)fall_asleep(b);
    fake_of(b)->holds_back = false;
    pass_ms(5);
    assert_int_equal(stats_of(a).tier[CACHE_DEVICE].n_in_use, 0);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    assert_ok(cache_wake(b));
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
    cache_seq_close(o.s);
}

static void queries_begin_again_after_a_sleep(void **state)
{
    struct cache_config config = query_config_of(64, 0, CACHE_QUERY_ALWAYS);
    struct cache *a = join_with(&config), *b = join_with(&config);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    seq(b, &o, TWO_SEGMENTS "Q");
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_ok(query_kv(b, &o, 1));
    cache_seq_sleep(o.s); /* it runs */
    sleep_and_wake(b);
    assert_int_equal(stats_of(a).tier[CACHE_DEVICE].n_in_use, 0);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_true(cache_seq_queries(o.s));
    assert_ok(query_kv(b, &o, 1));
    assert_int_equal(fake_of(b)->n_read_blocks, 0);
    cache_seq_close(o.s);
}

static void a_sleeping_instance_inherits_nothing(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);

    (void)state;
    ask(a, "ABCD");
    (void)fall_asleep(b);
    cache_leave(a);
    pass_ms(1100); /* a list of paths is made now and then */
    assert_true(cache_has_left(a));
    assert_int_equal(fake_of(b)->n_read_blocks, 0);
    assert_ok(cache_wake(b));
    assert_int_equal(match(b, "ABCD"), 0);
}

#define TEST(name) cmocka_unit_test_teardown(name, leave_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sleeping_instance_lends_nothing),
        TEST(a_woken_instance_pulls_and_lends_again),
        TEST(a_loan_delays_the_sleep_of_its_lender),
        TEST(a_lender_whose_asker_is_lost_falls_asleep_when_the_lease_ends),
        TEST(an_asker_that_sleeps_gives_its_lease_back_and_asks_again),
        TEST(a_read_that_ends_in_the_middle_of_falling_asleep_is_not_placed),
        TEST(an_answer_to_a_sleeping_asker_is_given_back),
        TEST(queries_begin_again_after_a_sleep),
        TEST(a_sleeping_instance_inherits_nothing),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
