/* Sequences whose prefix several instances lend: read from all of them, attended to by all of them,
 * and what happens when one of them is lost. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS
#define ONE_SEGMENT "ABCDEFGH"
#define TWO_SEGMENTS ONE_SEGMENT "IJKLMNOP"
#define THREE_SEGMENTS TWO_SEGMENTS "QRSTUVWX"
#define N_LENDERS 3

static struct cache *asker;

static struct cache *join_asking(uint32_t n_blocks, enum cache_query query, uint32_t per_lender)
{
    struct cache_config config = query_config_of(n_blocks, 0, query);

    config.remote.spread_segments = per_lender;
    return join_with(&config);
}

/* Three caches compute a text each, without the others' help; a fourth one asks. */
static void begin_world(const char *const texts[N_LENDERS], enum cache_query query,
                        uint32_t per_lender)
{
    for (int i = 0; i < N_LENDERS; i++) {
        ask(join_asking(64, CACHE_QUERY_ALWAYS, 0), texts[i]);
        fakes[i].is_away = true;
    }
    for (int i = 0; i < N_LENDERS; i++)
        fakes[i].is_away = false;
    asker = join_asking(64, query, per_lender);
    fake_of(asker)->names_all = true;
}

static void begin_steps(enum cache_query query)
{
    static const char *const texts[] = {ONE_SEGMENT, TWO_SEGMENTS, THREE_SEGMENTS};

    begin_world(texts, query, 100);
}

static void begin_replicas(uint32_t per_lender)
{
    static const char *const texts[] = {THREE_SEGMENTS, THREE_SEGMENTS, THREE_SEGMENTS};

    begin_world(texts, CACHE_QUERY_ALWAYS, per_lender);
}

static void begin(struct open_seq *o, const char *text)
{
    seq(asker, o, text);
    (void)wait_loaded(asker, o->s);
}

static void end(struct open_seq *o)
{
    cache_check(asker);
    cache_seq_close(o->s);
    pass_ms(3);
    assert_int_equal(n_in(asker, CACHE_REMOTE), 0);
    for (int i = 0; i < N_LENDERS; i++)
        assert_int_equal(stats_of(caches[i]).tier[CACHE_DEVICE].n_in_use, 0);
}

static void assert_attended(uint32_t a, uint32_t b, uint32_t c)
{
    assert_true(fakes[0].n_attended == a && fakes[1].n_attended == b && fakes[2].n_attended == c);
}

/* --- each instance has more of the path than the one before --- */

static void a_path_is_read_from_all_who_have_a_part_of_it(void **state)
{
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    begin_steps(CACHE_QUERY_NEVER);
    assert_int_equal(ask_found(asker, THREE_SEGMENTS "Y", found), 24 * B);
    assert_int_equal(found[CACHE_REMOTE], 24 * B);
    assert_int_equal(fake_of(asker)->n_read_blocks, 24);
    for (int i = 0; i < N_LENDERS; i++)
        assert_int_equal(fakes[i].n_lent_blocks, 8);
}

static void a_path_is_queried_at_all_who_have_a_part_of_it(void **state)
{
    struct open_seq o;

    (void)state;
    begin_steps(CACHE_QUERY_ALWAYS);
    begin(&o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 1));
    assert_attended(1, 1, 1);
    assert_ok(query_kv(asker, &o, 5));
    assert_attended(2, 2, 2);
    assert_int_equal(fake_of(asker)->n_read_blocks, 0);
    end(&o);
}

static void a_local_prefix_needs_no_query_to_its_lender(void **state)
{
    struct open_seq o, first;

    (void)state;
    begin_steps(CACHE_QUERY_ALWAYS);
    begin(&o, THREE_SEGMENTS "Y");
    seq(asker, &first, ONE_SEGMENT "Z");
    cache_seq_bring_here(first.s);
    (void)wait_loaded(asker, first.s);
    assert_int_equal(compute_kv(asker, &first, NULL), 8 * B);
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 1));
    assert_attended(0, 1, 1);
    cache_seq_close(first.s);
    end(&o);
}

static void others_join_the_lookups_of_all_parts(void **state)
{
    struct open_seq o, second;

    (void)state;
    begin_steps(CACHE_QUERY_ALWAYS);
    begin(&o, THREE_SEGMENTS "Y");
    begin(&second, THREE_SEGMENTS "Z");
    assert_int_equal(compute_kv(asker, &second, NULL), 24 * B);
    assert_ok(query_kv(asker, &second, 1));
    assert_attended(1, 1, 1);
    cache_seq_close(second.s);
    end(&o);
}

static void a_part_within_a_segment_goes_to_whoever_has_all_of_it(void **state)
{
    static const char *const texts[] = {"ABCDEFGHIJK", TWO_SEGMENTS "QR", THREE_SEGMENTS};
    struct open_seq o;

    (void)state;
    begin_world(texts, CACHE_QUERY_ALWAYS, 100);
    begin(&o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 2));
    assert_attended(1, 1, 1);
    end(&o);
}

/* --- all have the whole path --- */

static void a_long_path_is_spread_over_those_who_have_it(void **state)
{
    struct open_seq o;

    (void)state;
    begin_replicas(1);
    begin(&o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 3));
    assert_attended(1, 1, 1);
    end(&o);
}

static void a_short_path_has_one_lender(void **state)
{
    struct open_seq o;

    (void)state;
    begin_replicas(2);
    begin(&o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 3));
    assert_attended(1, 0, 0);
    end(&o);
}

static void what_no_other_lends_stays_with_the_first_lender(void **state)
{
    static const char *const texts[] = {THREE_SEGMENTS, "X", "ABCDEFGHIJK"};
    struct open_seq o;

    (void)state;
    begin_world(texts, CACHE_QUERY_ALWAYS, 1);
    begin(&o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 3));
    assert_attended(1, 0, 1);
    end(&o);
}

/* --- loss --- */

static void a_sequence_that_loses_one_lender_reads(void **state)
{
    uint32_t found[CACHE_N_TIERS];
    struct open_seq o;

    (void)state;
    for (uint32_t lost = 0; lost < N_LENDERS; lost++) {
        begin_replicas(1);
        begin(&o, THREE_SEGMENTS "Y");
        assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
        assert_ok(query_kv(asker, &o, 1));
        fakes[lost].is_away = true;
        pass_ms(2);
        assert_true(query_kv(asker, &o, 1) != OK);
        assert_int_equal(query_kv(asker, &o, 1), ERR_UNAVAILABLE);
        cache_seq_drop(o.s);
        (void)wait_loaded(asker, o.s);
        assert_int_equal(compute_kv(asker, &o, found), 24 * B);
        assert_false(cache_seq_queries(o.s));
        assert_int_equal(found[CACHE_REMOTE], 24 * B);
        fakes[lost].is_away = false;
        end(&o);
        leave_world(NULL);
    }
}

static void a_path_whose_middle_is_lost_is_computed_from_there(void **state)
{
    struct open_seq o;

    (void)state;
    begin_steps(CACHE_QUERY_NEVER);
    fakes[1].is_away = fakes[2].is_away = true;
    seq(asker, &o, THREE_SEGMENTS "Y");
    (void)wait_loaded(asker, o.s);
    assert_int_equal(compute_kv(asker, &o, NULL), 8 * B);
    end(&o);
}

static void a_lender_lost_before_the_sequence_runs_is_replaced(void **state)
{
    struct open_seq o;

    (void)state;
    begin_replicas(1);
    begin(&o, THREE_SEGMENTS "Y");
    fakes[1].is_away = true;
    pass_ms(2);
    assert_true(cache_seq_load(o.s, true) && cache_seq_is_loading(o.s));
    (void)wait_loaded(asker, o.s);
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 1));
    assert_true(fakes[0].n_attended == 1 && fakes[1].n_attended == 0 && fakes[2].n_attended == 1);
    fakes[1].is_away = false;
    end(&o);
}

/* --- sleep --- */

static void a_waiting_sequence_asks_all_lenders_again_after_a_sleep(void **state)
{
    struct open_seq o;

    (void)state;
    begin_replicas(1);
    begin(&o, THREE_SEGMENTS "Y");
    uint32_t n_lookups = fake_of(asker)->n_lookups;
    /* The first lender, another one for the block that it does not have, and two parts. */
    assert_int_equal(n_lookups, 4);
    cache_seq_sleep(o.s);
    sleep_and_wake(asker);
    assert_true(cache_seq_is_loading(o.s));
    (void)wait_loaded(asker, o.s);
    assert_int_equal(fake_of(asker)->n_lookups, 2 * n_lookups);
    assert_int_equal(compute_kv(asker, &o, NULL), 24 * B);
    assert_ok(query_kv(asker, &o, 1));
    assert_attended(1, 1, 1);
    end(&o);
}

#define TEST(name) cmocka_unit_test_teardown(name, leave_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_path_is_read_from_all_who_have_a_part_of_it),
        TEST(a_path_is_queried_at_all_who_have_a_part_of_it),
        TEST(a_local_prefix_needs_no_query_to_its_lender),
        TEST(others_join_the_lookups_of_all_parts),
        TEST(a_part_within_a_segment_goes_to_whoever_has_all_of_it),
        TEST(a_long_path_is_spread_over_those_who_have_it),
        TEST(a_short_path_has_one_lender),
        TEST(what_no_other_lends_stays_with_the_first_lender),
        TEST(a_sequence_that_loses_one_lender_reads),
        TEST(a_path_whose_middle_is_lost_is_computed_from_there),
        TEST(a_lender_lost_before_the_sequence_runs_is_replaced),
        TEST(a_waiting_sequence_asks_all_lenders_again_after_a_sleep),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
