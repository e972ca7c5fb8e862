/* Swapping, through cache.h: expected blocks are evicted latest-due first, blocks are spilled
 * before memory is needed, preempted sequences are prefetched before their turn, and spilling and
 * prefetching do not undo each other. Also: the blocks that a sequence finds without prefix
 * caching. */
#include "tests/unit/test.h"

#include "tests/unit/cache/cache_run.h"

#define SECOND 1000000000u
#define TENTH ((uint64_t)SECOND / 10)

static struct cache_seq *expect(struct cache *c, struct open_seq *o, const char *text,
                                uint64_t due_ns)
{
    cache_seq_expect(seq(c, o, text), due_ns);
    cache_check(c);
    return o->s;
}

static void close_all(struct open_seq *o, int n)
{
    for (int i = 0; i < n; i++)
        cache_seq_close(o[i].s);
}

/* --- order of eviction --- */

static void expected_blocks_are_evicted_latest_due_first(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq o[3];

    (void)state;
    run(c, "AAAA");
    run(c, "BBBB");
    run(c, "CCCC");
    expect(c, &o[0], "AAAA", 2 * (uint64_t)SECOND);
    expect(c, &o[1], "BBBB", SECOND);
    expect(c, &o[2], "CCCC", 3 * (uint64_t)SECOND);
    run(c, "WWWWXXXX"); /* 9 blocks where 4 are free: C and one more block are evicted */
    assert_int_equal(match(c, "CCCC"), 0);
    assert_int_equal(match(c, "AAAA"), 0);
    assert_int_equal(match(c, "BBBB"), 128);
    assert_int_equal(stats_of(c).n_expected_lost, 8);
    run(c, "AAAA");
    cache_seq_expect(o[0].s, SECOND / 2); /* due earlier now */
    run(c, "WWWWXXXXYYYY");
    assert_int_equal(match(c, "AAAA"), 0); /* 13 of 16 are in use: all other blocks were evicted */
    assert_int_equal(match(c, "BBBB"), 0);
    close_all(o, 3);
    cache_check(c);
    cache_destroy(c);
}

static void the_last_due_time_counts(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq o[2];

    (void)state;
    for (int round = 0; round < 3; round++) {
        uint64_t now = 1000 * (uint64_t)SECOND * (uint64_t)(round + 1);

        (void)cache_poll(c, now);
        cache_reset(c);
        run(c, "AAAA");
        run(c, "BBBB");
        expect(c, &o[0], "AAAA", now + 10 * (uint64_t)SECOND);
        expect(c, &o[1], "BBBB", now + 20 * (uint64_t)SECOND);
        if (round == 1) /* much later */
            cache_seq_expect(o[0].s, now + 30 * (uint64_t)SECOND);
        if (round == 2) { /* B is due at about the same time: too small a change to reorder */
            cache_seq_expect(o[1].s, now + 10 * (uint64_t)SECOND + SECOND / 10);
            cache_seq_expect(o[0].s, now + 10 * (uint64_t)SECOND + SECOND / 5);
        }
        run(c, "VVVVWWWWXX"); /* A or B must be evicted */
        assert_int_equal(match(c, "AAAA"), round == 1 ? 0 : 128);
        assert_int_equal(match(c, "BBBB"), round == 1 ? 128 : 0);
        close_all(o, 2);
    }
    cache_destroy(c);
}

/* Two sequences expect A and one expects B, due between the two: the earlier due time of A
 * counts. */
static void the_earliest_due_time_counts(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct open_seq o[3];

    (void)state;
    for (int first_left = 0; first_left < 2; first_left++) {
        struct cache *c = make(&config);

        run(c, "AAAA");
        run(c, "BBBB");
        expect(c, &o[1], "BBBB", 3 * (uint64_t)SECOND);
        if (first_left)
            expect(c, &o[0], "AAAA", SECOND);
        expect(c, &o[2], "AAAA", 5 * (uint64_t)SECOND);
        if (!first_left) /* the first due time comes from either sequence */
            expect(c, &o[0], "AAAA", SECOND);
        if (first_left) {
            cache_seq_close(o[0].s);
            cache_seq_expect(o[2].s, 5 * (uint64_t)SECOND); /* another due time, told later */
        }
        run(c, "VVVVWWWWXX");
        assert_int_equal(match(c, "AAAA"), first_left ? 0 : 128);
        assert_int_equal(match(c, "BBBB"), first_left ? 128 : 0);
        close_all(o + first_left, 3 - first_left);
        cache_check(c);
        cache_destroy(c);
    }
}

/* A hold has no due time: it counts as due now, before and after a due time is told. */
static void a_hold_goes_before_any_time(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq o[3];

    (void)state;
    run(c, "AAAA");
    run(c, "BBBB");
    expect(c, &o[0], "AAAA", 9 * (uint64_t)SECOND);
    assert_int_equal(cache_seq_hold(o[0].s, 128, &(struct cache_hold){.until_ns = SECOND}, NULL),
                     128);
    cache_seq_expect(o[0].s, 90 * (uint64_t)SECOND);
    expect(c, &o[1], "AAAA", 80 * (uint64_t)SECOND);
    expect(c, &o[2], "BBBB", SECOND / 2);
    run(c, "VVVVWWWWXX");
    assert_int_equal(match(c, "BBBB"), 0);
    assert_int_equal(match(c, "AAAA"), 128);
    run(c, "BBBB");
    (void)cache_poll(c, SECOND); /* the hold has ended */
    cache_seq_expect(o[0].s, 90 * (uint64_t)SECOND);
    cache_seq_expect(o[2].s, 40 * (uint64_t)SECOND);
    run(c, "VVVVWWWWXX");
    assert_int_equal(match(c, "AAAA"), 0);
    assert_int_equal(match(c, "BBBB"), 128);
    close_all(o, 3);
    cache_check(c);
    cache_destroy(c);
}

/* A sequence of 5 blocks, 20 tokens of a sixth, and one more id. */
static void run_with_tail(struct cache *c, struct open_seq *o, const char *text)
{
    prompt_of(&o->q, text);
    assert_ok(cache_seq_open(c, &o->q.p, o->q.p.n_ids + 40, &o->s));
    (void)compute(o, NULL);
    for (uint32_t i = 0; i < 20; i++)
        cache_seq_extend(o->s, i);
    assert_ok(cache_seq_grow(o->s, 19));
    cache_seq_commit(o->s, 19);
    cache_check(c);
}

static void a_preempted_sequence_keeps_its_last_tokens(void **state)
{
    struct cache_config config = small_config(16, 64);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq o;

    (void)state;
    for (int with_host = 0; with_host < 2; with_host++) {
        config.n_host_blocks = with_host ? 64 : 0;
        struct cache *c = make(&config);

        run_with_tail(c, &o, "AAAAA");
        cache_seq_drop(o.s);
        cache_seq_expect(o.s, SECOND / 2);
        cache_check(c);
        run(c, "WWWW");
        run(c, "XXXX");
        run(c, "YYYY");
        assert_int_equal(cache_match(o.s), 180); /* the other blocks are younger and are evicted
                                                    first */
        if (with_host) { /* when the whole path was evicted, all of it is fetched */
            run(c, "VVVVWWWWXXXXYY");
            settle(c, 1);
            assert_lies(c, "AAAAA", 0, 6);
            assert_true(cache_seq_prefetch(o.s));
            settle(c, 2);
            assert_lies(c, "AAAAA", 6, 6);
        }
        assert_int_equal(cache_seq_attach(o.s, found), 180);
        cache_check(c);
        cache_seq_close(o.s);
        settle(c, 3);
        cache_destroy(c);
    }
}

/* --- ahead --- */

static void room_is_made_before_it_is_needed(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct cache_stats s;

    (void)state;
    run(c, "AAAA");
    run(c, "BBBB");
    run(c, "CCCC");
    run(c, "DDD");
    cache_spill_ahead(c, 0);
    assert_int_equal(stats_of(c).n_spilled_ahead, 0);
    cache_spill_ahead(c, 6); /* one block is free */
    cache_check(c);
    s = stats_of(c);
    assert_int_equal(s.n_spilled_ahead, 8);
    assert_int_equal(s.tier[CACHE_DEVICE].n_in_transfer, 8);
    cache_spill_ahead(c, 6); /* being spilled */
    settle(c, 1);
    cache_spill_ahead(c, 9); /* spilled */
    assert_int_equal(stats_of(c).n_spilled_ahead, 8);
    assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_free, 9);
    assert_lies(c, "AAAA", 0, 4);
    assert_lies(c, "BBBB", 0, 4);
    assert_lies(c, "CCCC", 4, 0);
    run(c, "EEEEEEEE");
    assert_int_equal(stats_of(c).n_spilled_on_demand, 0);
    assert_int_equal(run(c, "AAAA"), 128);
    s = stats_of(c);
    assert_true(s.n_fetched_on_demand == 4 && s.n_fetched_ahead == 0);
    assert_true(s.n_spilled_on_demand > 0 && s.n_spilled_ahead == 8);
    settle(c, 2);
    cache_destroy(c);
    config.n_host_blocks = 0; /* no host tier to spill to, and one memory for both: no spill */
    for (int k = 0; k < 2; k++, config.n_host_blocks = 64, config.always_copy = false) {
        c = make(&config);
        run(c, "AAAABBBBCCCC");
        cache_spill_ahead(c, 16);
        assert_lies(c, "AAAABBBBCCCC", 12, 0);
        cache_check(c);
        cache_destroy(c);
    }
}

/* A is due now, B almost now, D held; C in 10 s. */
static void blocks_due_now_are_not_spilled_ahead(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq o[3];

    (void)state;
    (void)cache_poll(c, 100 * (uint64_t)SECOND);
    run(c, "AAAA");
    run(c, "BBBB");
    run(c, "CCCC");
    run(c, "DDD");
    expect(c, &o[0], "AAAA", 0);
    expect(c, &o[1], "BBBB", 100 * (uint64_t)SECOND + SECOND / 20);
    expect(c, &o[2], "CCCC", 110 * (uint64_t)SECOND);
    assert_int_equal(
        cache_seq_hold(o[0].s, 64, &(struct cache_hold){.until_ns = 200 * (uint64_t)SECOND}, NULL),
        64);
    cache_spill_ahead(c, 16);
    settle(c, 100 * (uint64_t)SECOND);
    assert_lies(c, "AAAA", 4, 0);
    assert_lies(c, "BBBB", 4, 0);
    assert_lies(c, "CCCC", 0, 4);
    assert_lies(c, "DDD", 0, 3); /* no request expects it */
    close_all(o, 3);
    cache_destroy(c);
}

static void spilling_and_fetching_ahead_do_not_undo_each_other(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq o[4];
    static const char *const texts[] = {"AAAA", "BBBB", "CCCC", "DDD"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        run(c, texts[i]);
        expect(c, &o[i], texts[i], (uint64_t)(i + 2) * TENTH);
    }
    cache_spill_ahead(c, 4);
    settle(c, 0);
    assert_lies(c, "DDD", 0, 3);
    for (int i = 0; i < 3; i++) { /* the reserve is not for it, and the other blocks are due
                                     earlier */
        assert_false(cache_seq_prefetch(o[3].s));
        cache_spill_ahead(c, 4);
        settle(c, 0);
    }
    cache_spill_ahead(c, 0); /* reserve off */
    assert_true(cache_seq_prefetch(o[3].s));
    settle(c, 0);
    assert_lies(c, "DDD", 3, 3);
    cache_spill_ahead(c, 4); /* although it is due last */
    cache_seq_expect(o[3].s, 9 * TENTH);
    cache_spill_ahead(c, 4);
    settle(c, 0);
    assert_lies(c, "DDD", 3, 3);
    assert_true(stats_of(c).n_spilled_ahead == 3 && stats_of(c).n_fetched_ahead == 3);
    close_all(o, 4);
    cache_destroy(c);
}

static void a_prefetch_evicts_blocks_that_are_due_later(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq o[4], a, b;
    static const char *const texts[] = {"VVV", "XXXX", "YYYY", "ZZZZ"};

    (void)state;
    run(c, "AAAA");
    run(c, "BBBB");
    run_others(c);
    settle(c, 0);
    run(c, "VVV"); /* one block is free, W lies on the host */
    for (int i = 0; i < 4; i++)
        expect(c, &o[i], texts[i], (i == 1 ? 9 : 1) * TENTH);
    assert_false(cache_seq_prefetch(expect(c, &b, "BBBB", (uint64_t)SECOND)));
    assert_lies(c, "BBBB", 0, 4);
    assert_true(cache_seq_prefetch(expect(c, &a, "AAAA", 3 * TENTH)));
    settle(c, 0);
    assert_lies(c, "AAAA", 4, 4);
    assert_lies(c, "XXXX", 0, 4);
    assert_lies(c, "YYYY", 4, 0);
    close_all(o, 4);
    cache_seq_close(a.s);
    cache_seq_close(b.s);
    cache_destroy(c);
}

static void an_evicted_prefetch_is_repeated(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq a;

    (void)state;
    run(c, "AAAA");
    run_others(c);
    settle(c, 0);
    expect(c, &a, "AAAA", 5 * TENTH);
    for (int i = 0; i < 2; i++) {
        assert_true(cache_seq_prefetch(a.s));
        settle(c, 0);
        assert_lies(c, "AAAA", 4, 4);
        run(c, "WWWWXXXXYYYYZZZ"); /* it needs all 16 blocks */
        settle(c, 0);
        assert_lies(c, "AAAA", 0, 4);
    }
    assert_int_equal(stats_of(c).n_fetched_ahead, 8);
    cache_seq_close(a.s);
    cache_destroy(c);
}

/* If there is no room for the rest, the part that was prefetched is released with it. */
static void a_partial_prefetch_is_released_too(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq a, b;

    (void)state;
    run(c, "AAAA|CCCC|DDDD");
    run(c, "BBBBB");
    run_others(c);
    settle(c, 0);
    assert_false(cache_seq_prefetch(seq(c, &a, "AAAA|CCCC|DDDD")));
    assert_false(cache_seq_prefetch(seq(c, &b, "BBBBB"))); /* 8 of 8 blocks of the prefetch share
                                                              are in use */
    cache_seq_close(a.s);
    settle(c, 0);
    assert_true(cache_seq_prefetch(b.s));
    settle(c, 0);
    assert_lies(c, "BBBBB", 5, 5);
    cache_seq_close(b.s);
    cache_destroy(c);
}

/* --- without prefix caching --- */

static void without_prefix_caching_a_sequence_finds_only_its_own_blocks(void **state)
{
    struct cache_config config = small_config(16, 64);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq a, b;

    (void)state;
    config.prefix_caching = false;
    for (int copy = 0; copy < 2; copy++) {
        config.always_copy = copy;
        struct cache *c = make(&config);

        seq(c, &b, "AAAAA");
        run_with_tail(c, &a, "AAAAA");
        assert_int_equal(stats_of(c).n_nodes, 0); /* a running sequence adds no nodes */
        assert_int_equal(cache_match(b.s), 0);
        cache_seq_drop(a.s);
        cache_check(c);
        assert_int_equal(cache_match(a.s), 180);
        assert_int_equal(cache_match(b.s), 0);
        assert_int_equal(cache_seq_hold(a.s, 160, &(struct cache_hold){.until_ns = SECOND}, NULL),
                         0);
        (void)compute(&b, NULL);
        cache_seq_drop(b.s);
        cache_seq_expect(a.s, 5 * TENTH);
        cache_spill_ahead(c, 16);
        assert_int_equal(match(c, "AAAAA"), 0);
        run(c, "WWWWXXXXYYYYZZZ"); /* all other blocks are evicted to the host */
        settle(c, 1);
        assert_true(cache_match(a.s) == (copy ? 160 : 180) && cache_match(b.s) == 160);
        cache_spill_ahead(c, 0); /* reserve off */
        assert_true(cache_seq_prefetch(a.s));
        settle(c, 1);
        assert_int_equal(cache_seq_attach(a.s, found), 180);
        cache_check(c);
        cache_seq_close(a.s);
        cache_check(c);
        assert_int_equal(cache_match(b.s), 160);
        cache_seq_close(b.s);
        settle(c, 2);
        assert_int_equal(stats_of(c).n_nodes, 0);
        assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_free, 16);
        assert_int_equal(stats_of(c).tier[CACHE_HOST].n_free, 64);
        assert_int_equal(stats_of(c).n_expected_lost, 0);
        cache_destroy(c);
    }
}

/* Two sequences with the same ids and the same output each keep their own blocks. */
static void without_prefix_caching_equal_texts_share_no_blocks(void **state)
{
    struct cache_config config = small_config(32, 0);
    struct open_seq o[2];

    (void)state;
    config.prefix_caching = false;
    struct cache *c = make(&config);
    for (int k = 0; k < 2; k++) {
        prompt_of(&o[k].q, "AAAA");
        assert_ok(cache_seq_open(c, &o[k].q.p, o[k].q.p.n_ids + 80, &o[k].s));
        (void)compute(&o[k], NULL);
        for (uint32_t i = 0; i < 70; i++)
            cache_seq_extend(o[k].s, i);
        assert_ok(cache_seq_grow(o[k].s, 69));
        cache_seq_commit(o[k].s, 69);
    }
    for (int k = 0; k < 2; k++)
        cache_seq_drop(o[k].s);
    cache_check(c);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(cache_match(o[k].s), 198);
        assert_int_equal(cache_seq_attach(o[k].s, NULL), 198);
    }
    close_all(o, 2);
    assert_int_equal(stats_of(c).n_nodes, 0);
    cache_destroy(c);
}

static void blocks_of_a_closed_sequence_are_freed_after_their_transfer(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct open_seq a;

    (void)state;
    config.prefix_caching = false;
    for (int fetch = 0; fetch < 2; fetch++) {
        struct cache *c = make(&config);

        run_with_tail(c, &a, "AAAAAAAAAA");
        cache_seq_drop(a.s);
        cache_spill_ahead(c, fetch ? 16 : 8); /* the last nodes; the first one stays */
        if (fetch) {
            settle(c, 1);
            cache_spill_ahead(c, 0);
            (void)cache_seq_prefetch(a.s);
        }
        assert_true(stats_of(c).tier[CACHE_DEVICE].n_in_transfer > 0);
        cache_seq_close(a.s);
        cache_check(c);
        assert_true(stats_of(c).n_nodes > 0);
        settle(c, 2);
        assert_int_equal(stats_of(c).n_nodes, 0);
        assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_free, 16);
        assert_int_equal(stats_of(c).tier[CACHE_HOST].n_free, 64);
        cache_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expected_blocks_are_evicted_latest_due_first),
        cmocka_unit_test(the_last_due_time_counts),
        cmocka_unit_test(the_earliest_due_time_counts),
        cmocka_unit_test(a_hold_goes_before_any_time),
        cmocka_unit_test(a_preempted_sequence_keeps_its_last_tokens),
        cmocka_unit_test(room_is_made_before_it_is_needed),
        cmocka_unit_test(blocks_due_now_are_not_spilled_ahead),
        cmocka_unit_test(spilling_and_fetching_ahead_do_not_undo_each_other),
        cmocka_unit_test(a_prefetch_evicts_blocks_that_are_due_later),
        cmocka_unit_test(an_evicted_prefetch_is_repeated),
        cmocka_unit_test(a_partial_prefetch_is_released_too),
        cmocka_unit_test(without_prefix_caching_a_sequence_finds_only_its_own_blocks),
        cmocka_unit_test(without_prefix_caching_equal_texts_share_no_blocks),
        cmocka_unit_test(blocks_of_a_closed_sequence_are_freed_after_their_transfer),
    };
    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
