/* The KV of sessions, through cache.h: what is held over a pause, what a session's next request and
 * its end demote, and that the KV of other sessions is not touched. Prompts as
 * in cache_prompt.h. */
#include "tests/unit/test.h"

#include "tests/unit/cache/cache_run.h"

#define SECOND UINT64_C(1000000000)
#define NOT_KEPT 0

/* Run a request of the session: its prompt, then `answer` (letters as in a prompt). until_ns:
 * NOT_KEPT: the request is cancelled. Returns the tokens found. */
static uint32_t turn(struct cache *c, uint64_t session, const char *text, const char *answer,
                     uint64_t due_ns, uint64_t until_ns)
{
    uint32_t n_answer = (uint32_t)strlen(answer) * KV_BLOCK_TOKENS, hit;
    struct open_seq o;

    prompt_of(&o.q, text);
    assert_ok(cache_seq_open(c, &o.q.p, o.q.p.n_ids + n_answer, &o.s));
    if (session)
        cache_seq_join_session(o.s, session);
    hit = compute(&o, NULL);
    for (uint32_t i = 0; i < n_answer; i++) {
        cache_seq_extend(o.s, (uint32_t)answer[i / KV_BLOCK_TOKENS]);
        assert_ok(cache_seq_grow(o.s, 1));
        cache_seq_commit(o.s, 1);
    }
    if (until_ns != NOT_KEPT)
        cache_seq_keep(o.s, due_ns, until_ns);
    cache_check(c);
    cache_seq_close(o.s);
    cache_check(c);
    return hit;
}

/* Blocks of a session's last request, in all tiers. */
static struct cache_session look(const struct cache *c, uint64_t session)
{
    struct cache_session x;

    assert_true(cache_session(c, session, &x));
    return x;
}

/* --- holds --- */

static void a_session_is_held_until_its_pause_is_over_its_expectation(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    turn(c, 1, "AAAA", "", SECOND / 2, 2 * SECOND);
    turn(c, 2, "BB", "", SECOND / 2, NOT_KEPT);
    assert_true(look(c, 1).is_held);
    assert_true(stats_of(c).n_session_blocks >= 4);
    run_others(c);
    assert_int_equal(match(c, "AAAA"), 128);
    assert_int_equal(match(c, "BB"), 0);
    (void)cache_poll(c, 2 * SECOND);
    assert_false(look(c, 1).is_held);
    assert_int_equal(stats_of(c).n_session_blocks, 0);
    run_others(c);
    assert_int_equal(match(c, "AAAA"), 0);
    cache_destroy(c);
}

static void the_next_request_ends_the_hold(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    turn(c, 1, "AAAA", "", SECOND / 2, 9 * SECOND);
    turn(c, 1, "AAAA", "", SECOND / 2, NOT_KEPT);
    assert_false(look(c, 1).is_held);
    assert_int_equal(stats_of(c).n_session_blocks, 0);
    cache_destroy(c);
}

static void sessions_hold_no_more_than_their_share(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c;

    (void)state;
    config.hold_share = 0.25;
    c = make(&config);
    turn(c, 1, "AAA", "", 1, SECOND);
    turn(c, 2, "BBB", "", 1, SECOND);
    assert_true(look(c, 1).is_held);
    assert_false(look(c, 2).is_held);
    (void)cache_poll(c, SECOND);
    turn(c, 2, "BBB", "", 1, 2 * SECOND);
    assert_true(look(c, 2).is_held);
    cache_destroy(c);
}

/* Sessions share "AA", which needs no hold of its own: its children keep it. */
static void only_the_own_nodes_of_a_session_are_held(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AA|");
    turn(c, 1, "AA|B", "", 1, SECOND);
    turn(c, 2, "AA|C", "", 1, SECOND);
    assert_int_equal(look(c, 1).n_own_blocks, 1);
    assert_int_equal(look(c, 1).n_blocks, 3);
    assert_int_equal(stats_of(c).n_session_blocks, 2);
    cache_destroy(c);
}

/* --- superseded nodes --- */

static void an_answer_that_the_next_prompt_drops_is_evicted_first(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "XX"); /* the least recently used */
    turn(c, 1, "AA", "RR", 1, SECOND);
    assert_int_equal(stats_of(c).n_superseded, 0);
    turn(c, 1, "AAQQ", "", 1, NOT_KEPT);
    assert_true(stats_of(c).n_superseded >= 2);
    run(c, "YYYYYYYY"); /* 9 blocks where 7 are free */
    assert_int_equal(match(c, "XX"), 64);
    assert_int_equal(match(c, "AAQQ"), 128);
    cache_destroy(c);
}

static void an_answer_that_the_next_prompt_contains_is_not_superseded(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    turn(c, 1, "AAB", "", 1, SECOND);
    turn(c, 1, "AABCC", "", 1, SECOND);
    assert_int_equal(match(c, "AABCC"), 160);
    assert_true(stats_of(c).n_superseded <= 1); /* the token behind the first prompt */
    cache_destroy(c);
}

static void branches_of_one_prompt_do_not_supersede_each_other(void **state)
{
    struct cache_config config = small_config(20, 0);
    struct cache *c = make(&config);

    (void)state;
    turn(c, 1, "AA", "RR", 1, SECOND);
    turn(c, 1, "AA", "SS", 1, SECOND);
    turn(c, 1, "BBBBB", "S", 1, SECOND); /* another prompt, although of the same session */
    assert_int_equal(stats_of(c).n_superseded, 0);
    cache_destroy(c);
}

/* The second session uses what the first one computed, so the first one does not own the blocks. */
static void nodes_that_another_session_used_are_not_superseded(void **state)
{
    static const uint64_t others[] = {2, 0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct cache_config config = small_config(20, 0);
        struct cache *c = make(&config);
        uint32_t n_blocks;

        turn(c, 1, "AA", "RR", 1, SECOND);
        turn(c, others[i], "AA", "RR", 1, NOT_KEPT);
        turn(c, 1, "AAQQ", "", 1, NOT_KEPT);
        assert_int_equal(stats_of(c).n_superseded, 0);
        assert_true(cache_close_session(c, 1, &n_blocks));
        assert_int_equal(n_blocks, 0);
        cache_destroy(c);
    }
}

/* --- the end of a session --- */

static void closing_demotes_the_own_nodes_only(void **state)
{
    struct cache_config config = small_config(20, 0);
    struct cache *c = make(&config);
    struct cache_session x;
    uint32_t n_blocks;

    (void)state;
    turn(c, 2, "PPBB", "", 1, 9 * SECOND);
    turn(c, 1, "PPAA", "", 1, 9 * SECOND);
    assert_false(cache_close_session(c, 3, &n_blocks));
    assert_true(cache_close_session(c, 1, &n_blocks));
    assert_int_equal(n_blocks, 2);
    assert_false(cache_session(c, 1, &x));
    assert_false(cache_close_session(c, 1, &n_blocks));
    assert_true(look(c, 2).is_held);
    run(c, "XXXXXXXXXXXXXXX"); /* 16 blocks where 14 are free */
    assert_int_equal(match(c, "PPAA"), 64);
    assert_lies(c, "PPBB", 4, 0);
    cache_destroy(c);
}

static void a_demoted_node_that_is_used_again_is_like_any_other(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    uint32_t n_blocks;

    (void)state;
    turn(c, 1, "AAAA", "", 1, SECOND);
    assert_true(cache_close_session(c, 1, &n_blocks));
    assert_int_equal(n_blocks, 4);
    run(c, "XXXX");
    assert_int_equal(run(c, "AAAA"), 128); /* it is still there, and now the last one used */
    run(c, "YYYYYYYY");
    assert_int_equal(match(c, "AAAA"), 128);
    assert_int_equal(match(c, "XXXX"), 0);
    cache_destroy(c);
}

static void the_session_kept_longest_ago_is_dropped_when_all_places_are_taken(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct cache_session x;

    (void)state;
    for (uint64_t i = 1; i <= 1030; i++)
        turn(c, i, "A", "", 1, SECOND);
    assert_false(cache_session(c, 1, &x));
    assert_false(cache_session(c, 6, &x));
    assert_true(cache_session(c, 7, &x));
    assert_true(cache_session(c, 1030, &x));
    cache_reset(c);
    assert_false(cache_session(c, 1030, &x));
    settle(c, SECOND);
    cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_is_held_until_its_pause_is_over_its_expectation),
        cmocka_unit_test(the_next_request_ends_the_hold),
        cmocka_unit_test(sessions_hold_no_more_than_their_share),
        cmocka_unit_test(only_the_own_nodes_of_a_session_are_held),
        cmocka_unit_test(an_answer_that_the_next_prompt_drops_is_evicted_first),
        cmocka_unit_test(an_answer_that_the_next_prompt_contains_is_not_superseded),
        cmocka_unit_test(branches_of_one_prompt_do_not_supersede_each_other),
        cmocka_unit_test(nodes_that_another_session_used_are_not_superseded),
        cmocka_unit_test(closing_demotes_the_own_nodes_only),
        cmocka_unit_test(a_demoted_node_that_is_used_again_is_like_any_other),
        cmocka_unit_test(the_session_kept_longest_ago_is_dropped_when_all_places_are_taken),
    };
    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
