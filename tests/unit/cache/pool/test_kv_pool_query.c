/* Sequences that send queries to KV of another instance: which part of their prefix stays there,
 * when that is chosen, and what happens when the peer is lost. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS
#define TWO_SEGMENTS "ABCDEFGHIJKLMNOP"
#define THREE_SEGMENTS TWO_SEGMENTS "QRSTUVWX"

static struct cache *join_asking(uint32_t n_blocks, enum cache_query query)
{
    struct cache_config config = query_config_of(n_blocks, 0, query);

    return join_with(&config);
}

static struct cache_view view_of(const struct open_seq *o)
{
    struct cache_view v;

    cache_seq_view(o->s, &v);
    return v;
}

/* Begin a sequence and wait until it would run. */
static void begin(struct cache *c, struct open_seq *o, const char *text)
{
    seq(c, o, text);
    (void)wait_loaded(c, o->s);
}

static void end(struct cache *c, struct open_seq *o)
{
    cache_check(c);
    cache_seq_close(o->s);
    cache_check(c);
}

/* --- what stays there --- */

static void kv_that_is_queried_stays_where_it_is(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(8, CACHE_QUERY_ALWAYS);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS "QR");
    begin(b, &o, TWO_SEGMENTS "QRS");
    assert_int_equal(cache_match(o.s), 16 * B);
    assert_int_equal(cache_seq_need(o.s, 3 * B + 1), 4);
    assert_int_equal(compute_kv(b, &o, found), 16 * B);
    assert_int_equal(found[CACHE_REMOTE], 16 * B);
    struct cache_view v = view_of(&o);
    assert_true(cache_seq_queries(o.s) && v.remote0 == 0 && v.n_remote == 2 && v.n_segments == 3);
    assert_int_equal(cache_seq_reclaimable(o.s), 4);
    assert_ok(query_kv(b, &o, 1));
    assert_ok(query_kv(b, &o, POOL_QUERY_ROWS_MAX));
    assert_int_equal(fake_of(b)->n_read_blocks, 0);
    assert_int_equal(stats_of(b).tier[CACHE_REMOTE].n_hit_tokens, 16 * B);
    assert_int_equal(stats_of(b).n_ways[CACHE_QUERIED], 1);
    end(b, &o);
    assert_int_equal(n_in(b, CACHE_DEVICE), 0);
    pass_ms(2);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    assert_int_equal(stats_of(a).tier[CACHE_DEVICE].n_in_use, 0);
}

static void the_lease_lasts_while_queries_are_sent(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(16, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    fake_of(b)->lease_ns = 20 * STEP_NS;
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    for (int i = 0; i < 10; i++) {
        assert_ok(query_kv(b, &o, 1));
        pass_ms(10);
    }
    pass_ms(20);
    assert_int_equal(query_kv(b, &o, 1), ERR_UNAVAILABLE);
    end(b, &o);
}

static void a_part_of_a_segment_is_read_and_whole_segments_are_queried(void **state)
{
    struct cache *a = join_asking(128, CACHE_QUERY_ALWAYS),
                 *b = join_asking(64, CACHE_QUERY_ALWAYS);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq o;

    (void)state;
    ask(a, THREE_SEGMENTS);
    fake_of(a)->is_away = true;
    ask(b, "ABCDEFGHIJ");
    fake_of(a)->is_away = false;
    begin(b, &o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(b, &o, found), 24 * B);
    assert_int_equal(found[CACHE_DEVICE], 10 * B);
    assert_int_equal(found[CACHE_REMOTE], 14 * B);
    assert_int_equal(fake_of(b)->n_read_blocks, 6);
    assert_true(view_of(&o).remote0 == 2 && view_of(&o).n_remote == 1);
    assert_ok(query_kv(b, &o, 3));
    end(b, &o);
}

static void spans_that_end_early_are_segments_of_their_own(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, "PPp|ABCDEFGHIJ|KLm|N");
    begin(b, &o, "PPp|ABCDEFGHIJ|KLm|NO");
    assert_int_equal(compute_kv(b, &o, NULL), 14 * B + 40);
    assert_true(view_of(&o).n_remote == 4); /* PPp, ABCDEFGH, IJ, KLm; N is not closed */
    assert_ok(query_kv(b, &o, 2));
    end(b, &o);
}

static void one_query_names_no_more_segments_than_an_answer_holds(void **state)
{
    struct cache_config config = query_config_of(64, 0, CACHE_QUERY_ALWAYS);
    struct cache *a, *b;
    struct open_seq o;

    (void)state;
    config.remote.n_heads = POOL_QUERY_BYTES_MAX / (2 * 4 * sizeof(float)); /* two tiles */
    a = join_with(&config);
    b = join_with(&config);
    ask(a, THREE_SEGMENTS);
    begin(b, &o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_int_equal(view_of(&o).n_remote, 2);
    assert_int_equal(cache_seq_query_rows(o.s), 1);
    end(b, &o);
}

static void other_sequences_may_read_what_is_queried(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o, second, third;
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    ask(a, TWO_SEGMENTS);
    begin(b, &o, TWO_SEGMENTS "X");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    begin(b, &second, TWO_SEGMENTS "Y");
    assert_int_equal(compute_kv(b, &second, NULL), 16 * B);
    seq(b, &third, TWO_SEGMENTS "Z");
    cache_seq_bring_here(third.s);
    (void)wait_loaded(b, third.s);
    assert_int_equal(compute_kv(b, &third, found), 16 * B);
    assert_false(cache_seq_queries(third.s));
    assert_int_equal(fake_of(b)->n_read_blocks, 16);
    assert_ok(query_kv(b, &o, 1));
    end(b, &o);
    assert_ok(query_kv(b, &second, 1));
    end(b, &second);
    end(b, &third);
    assert_int_equal(stats_of(b).n_ways[CACHE_QUERIED], 2);
    assert_int_equal(stats_of(b).n_ways[CACHE_PULLED], 1);
}

/* --- loss --- */

static void a_sequence_whose_queries_fail_is_computed_or_reads(void **state)
{
    (void)state;
    for (int refuses = 0; refuses < 2; refuses++) {
        struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS);
        struct cache *b = join_asking(64, CACHE_QUERY_ALWAYS);
        uint32_t found[CACHE_N_TIERS];
        struct open_seq o;

        ask(a, TWO_SEGMENTS);
        begin(b, &o, TWO_SEGMENTS "Q");
        assert_int_equal(cache_seq_attach(o.s, NULL), 16 * B);
        assert_ok(cache_seq_grow(o.s, B));
        fake_of(b)->query_status = ERR_TIMEOUT;
        fake_of(b)->refuses_queries = refuses;
        assert_true(query_kv(b, &o, 1) != OK);
        assert_int_equal(query_kv(b, &o, 1), ERR_UNAVAILABLE);
        cache_seq_shrink(o.s);
        cache_seq_drop(o.s);
        cache_check(b);
        (void)wait_loaded(b, o.s);
        assert_int_equal(compute_kv(b, &o, found), 16 * B);
        assert_false(cache_seq_queries(o.s));
        assert_int_equal(found[CACHE_REMOTE], 16 * B);
        assert_int_equal(fake_of(b)->n_read_blocks, 16);
        end(b, &o);
        leave_world(NULL);
    }
}

static void a_peer_that_dies_costs_a_computation(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_ok(query_kv(b, &o, 1));
    fake_of(a)->is_away = true;
    pass_ms(5);
    assert_true(query_kv(b, &o, 1) != OK);
    cache_seq_drop(o.s);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    end(b, &o);
    assert_int_equal(ask(b, TWO_SEGMENTS "Q"), 17 * B);
}

static void a_lease_that_ends_before_the_sequence_runs_is_asked_for_again(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    fake_of(b)->lease_ns = 20 * STEP_NS;
    begin(b, &o, TWO_SEGMENTS "Q");
    pass_ms(30);
    assert_int_equal(cache_match(o.s), 0);
    assert_true(cache_seq_load(o.s, true) && cache_seq_is_loading(o.s));
    (void)wait_loaded(b, o.s);
    assert_int_equal(fake_of(b)->n_lookups, 2);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_ok(query_kv(b, &o, 1));
    end(b, &o);
}

static void a_prefix_that_is_evicted_before_the_sequence_runs_is_asked_for(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    fake_of(a)->is_away = true;
    ask(b, "ABCDEFGH");
    fake_of(a)->is_away = false;
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(cache_match(o.s), 16 * B);
    cache_reset(b);
    (void)cache_seq_load(o.s, true);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_int_equal(view_of(&o).n_remote, 2);
    end(b, &o);
}

static void a_gap_that_cannot_be_read_ends_the_queries(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    fake_of(a)->is_away = true;
    ask(b, "ABC");
    fake_of(a)->is_away = false;
    fake_of(b)->read_status = ERR_NOT_FOUND;
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(compute_kv(b, &o, NULL), 3 * B);
    assert_false(cache_seq_queries(o.s));
    assert_int_equal(stats_of(b).n_ways[CACHE_COMPUTED], 1);
    end(b, &o);
}

/* --- what it computed itself --- */

/* A sequence of b that queries a's two segments, and has computed the third one. */
static void query_and_compute(struct cache **a, struct cache **b, struct open_seq *o)
{
    *a = join_asking(64, CACHE_QUERY_ALWAYS);
    *b = join_asking(64, CACHE_QUERY_ALWAYS);
    ask(*a, TWO_SEGMENTS);
    begin(*b, o, THREE_SEGMENTS "Y");
    assert_int_equal(compute_kv(*b, o, NULL), 16 * B);
    assert_ok(query_kv(*b, o, 1));
}

static void end_and_wait(struct cache *c, struct open_seq *o)
{
    end(c, o);
    pass_ms(20);
    assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_in_use, 0);
}

static void own_kv_goes_to_the_lender_when_the_instance_leaves(void **state)
{
    struct cache *a, *b;
    struct open_seq o;
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    query_and_compute(&a, &b, &o);
    cache_drain(b);
    end_and_wait(b, &o);
    cache_leave(b);
    pass_ms(1100); /* a list of paths is made now and then */
    assert_true(cache_has_left(b));
    assert_int_equal(fake_of(a)->n_read_blocks, 9); /* all closed ones */
    fake_of(b)->is_away = true;
    assert_int_equal(ask_found(a, THREE_SEGMENTS "YZ", found), 25 * B);
    assert_int_equal(found[CACHE_DEVICE], 25 * B);
}

/* A sequence of a session or of none ends. Returns the tokens that the lender has then. */
static uint32_t found_after_the_end(bool is_of_session, bool erases)
{
    struct cache *a = join_asking(64, CACHE_QUERY_ALWAYS),
                 *b = join_asking(128, CACHE_QUERY_ALWAYS);
    struct open_seq o, other;

    ask(a, TWO_SEGMENTS);
    if (erases) {
        ask(b, "Z");
        seq(b, &other, "Z");
        assert_int_equal(cache_erase(b, &other.q.keys[0]), 1);
        cache_seq_close(other.s);
    }
    seq(b, &o, THREE_SEGMENTS "Y");
    if (is_of_session)
        cache_seq_join_session(o.s, 7);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    end_and_wait(b, &o);
    fake_of(b)->is_away = true;
    uint32_t found = ask(a, THREE_SEGMENTS "YZ");
    leave_world(NULL);
    return found;
}

static void own_kv_of_a_session_goes_to_the_lender(void **state)
{
    (void)state;
    assert_int_equal(found_after_the_end(false, false), 16 * B);
    assert_int_equal(found_after_the_end(true, false), 25 * B);
}

static void own_kv_goes_to_the_lender_after_something_else_was_erased(void **state)
{
    (void)state;
    assert_int_equal(found_after_the_end(true, true), 25 * B);
}

static void own_kv_that_nobody_takes_is_given_back(void **state)
{
    (void)state;
    for (int resets = 0; resets < 2; resets++) {
        struct cache *a, *b;
        struct open_seq o;

        query_and_compute(&a, &b, &o);
        cache_leave(b);
        if (!resets)
            fake_of(a)->is_away = true;
        end(b, &o);
        if (resets)
            cache_reset(b);
        pass_ms(3100);
        assert_int_equal(stats_of(b).tier[CACHE_DEVICE].n_in_use, 0);
        fake_of(a)->is_away = false;
        assert_int_equal(fake_of(a)->n_read_blocks, 0);
        leave_world(NULL);
    }
}

/* --- the choice --- */

static bool queries_for(uint32_t n_output, enum cache_query query)
{
    struct cache *a = join_asking(64, CACHE_QUERY_AUTO), *b = join_asking(64, query);
    struct open_seq o;

    ask(a, TWO_SEGMENTS);
    fake_of(b)->bytes_per_s = 1e6;
    seq(b, &o, TWO_SEGMENTS "Q");
    cache_seq_expect_output(o.s, n_output);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    bool queries = cache_seq_queries(o.s);
    end(b, &o);
    leave_world(NULL);
    return queries;
}

static void few_expected_rows_are_queried_and_many_pull(void **state)
{
    (void)state;
    assert_true(queries_for(1, CACHE_QUERY_AUTO));
    assert_false(queries_for(1000, CACHE_QUERY_AUTO));
    assert_false(queries_for(1, CACHE_QUERY_NEVER));
    assert_true(queries_for(1000, CACHE_QUERY_ALWAYS));
}

static void the_first_pull_measures_the_link(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_AUTO), *b = join_asking(64, CACHE_QUERY_AUTO);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_false(cache_seq_queries(o.s));
    end(b, &o);
}

static void an_instance_that_never_queries_answers_none(void **state)
{
    struct cache *a = join_asking(64, CACHE_QUERY_NEVER), *b = join_asking(64, CACHE_QUERY_ALWAYS);
    struct open_seq o;

    (void)state;
    ask(a, TWO_SEGMENTS);
    begin(b, &o, TWO_SEGMENTS "Q");
    assert_int_equal(compute_kv(b, &o, NULL), 16 * B);
    assert_false(cache_seq_queries(o.s));
    end(b, &o);
}

#define TEST(name) cmocka_unit_test_teardown(name, leave_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(kv_that_is_queried_stays_where_it_is),
        TEST(the_lease_lasts_while_queries_are_sent),
        TEST(a_part_of_a_segment_is_read_and_whole_segments_are_queried),
        TEST(spans_that_end_early_are_segments_of_their_own),
        TEST(one_query_names_no_more_segments_than_an_answer_holds),
        TEST(other_sequences_may_read_what_is_queried),
        TEST(a_sequence_whose_queries_fail_is_computed_or_reads),
        TEST(a_peer_that_dies_costs_a_computation),
        TEST(a_lease_that_ends_before_the_sequence_runs_is_asked_for_again),
        TEST(a_prefix_that_is_evicted_before_the_sequence_runs_is_asked_for),
        TEST(a_gap_that_cannot_be_read_ends_the_queries),
        TEST(own_kv_goes_to_the_lender_when_the_instance_leaves),
        TEST(own_kv_of_a_session_goes_to_the_lender),
        TEST(own_kv_goes_to_the_lender_after_something_else_was_erased),
        TEST(own_kv_that_nobody_takes_is_given_back),
        TEST(few_expected_rows_are_queried_and_many_pull),
        TEST(the_first_pull_measures_the_link),
        TEST(an_instance_that_never_queries_answers_none),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
