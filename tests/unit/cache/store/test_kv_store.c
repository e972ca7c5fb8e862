/* The store, through cache.h: held and expected blocks stay, waiting requests are prefetched,
 * evicted blocks are copied once, and the tree can be listed. */
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/unit/cache/cache_run.h"

static uint32_t hold(struct cache *c, const char *text, uint32_t n_tokens, uint64_t until_ns)
{
    struct open_seq o;
    uint32_t n = cache_seq_hold(seq(c, &o, text), n_tokens,
                                &(struct cache_hold){.until_ns = until_ns}, NULL);

    cache_seq_close(o.s);
    cache_check(c);
    return n;
}

/* --- holds --- */

static void a_held_prompt_stays_until_its_time(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AA|AA");
    run_others(c);
    assert_int_equal(match(c, "AA|AA"), 0); /* without a hold it is evicted */
    run(c, "AA|AA");
    assert_int_equal(hold(c, "AA|AA", 1000, 100), 128);
    run_others(c);
    (void)cache_poll(c, 99);
    run_others(c);
    assert_int_equal(match(c, "AA|AA"), 128);
    assert_true(stats_of(c).n_holds == 1 && stats_of(c).n_held_blocks == 4);
    (void)cache_poll(c, 100);
    assert_true(stats_of(c).n_holds == 0 && stats_of(c).n_held_blocks == 0);
    run_others(c);
    assert_int_equal(match(c, "AA|AA"), 0);
    cache_destroy(c);
}

static void a_hold_covers_whole_blocks_and_what_is_there(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    assert_int_equal(hold(c, "AA|AA", 1000, 100), 0); /* not cached */
    run(c, "AA|AA");
    assert_int_equal(hold(c, "AA|AA", 31, 100), 0);
    assert_int_equal(hold(c, "AA|AA", 70, 100), 64);
    assert_int_equal(hold(c, "AA|AB", 1000, 100), 96);
    assert_int_equal(stats_of(c).n_holds, 1); /* the longer one replaces the other */
    (void)cache_poll(c, 100);
    cache_check(c);
    cache_destroy(c);
}

static void holds_take_no_more_than_their_share(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c;

    (void)state;
    config.hold_share = 0.25;
    c = make(&config);
    run(c, "AAA");
    run(c, "BBB");
    assert_int_equal(hold(c, "AAA", 1000, 100), 96);
    assert_int_equal(hold(c, "BBB", 1000, 100), 0);
    assert_int_equal(hold(c, "BBB", 32, 200), 32);
    assert_int_equal(hold(c, "BBB", 32, 200), 32); /* these blocks are held already */
    (void)cache_poll(c, 100);                      /* the first hold ends */
    assert_int_equal(hold(c, "BBB", 1000, 200), 96);
    assert_int_equal(stats_of(c).n_held_blocks, 3); /* each block counts once */
    cache_destroy(c);
    config.hold_share = 0;
    c = make(&config);
    run(c, "AAA");
    assert_int_equal(hold(c, "AAA", 1000, 100), 0);
    cache_destroy(c);
}

static void the_number_of_holds_is_bounded(void **state)
{
    struct cache_config config = small_config(8192, 0);
    struct open_seq o;
    struct cache *c;
    uint32_t n = 0, n_held = 32;

    (void)state;
    config.hold_share = 1;
    c = make(&config);
    prompt_of(&o.q, "A");
    while (n_held == 32 && n < 8000) {
        o.q.ids[0] = 100 + n; /* another prompt */
        hash_prompt(&o.q, 33, 0);
        assert_ok(cache_seq_open(c, &o.q.p, 33, &o.s));
        compute(&o, NULL);
        n_held = cache_seq_hold(o.s, 32, &(struct cache_hold){.until_ns = 100 + n}, NULL);
        n += n_held == 32;
        cache_seq_close(o.s);
    }
    assert_int_equal(n_held, 0);
    assert_true(n > 0 && stats_of(c).n_holds == n);
    (void)cache_poll(c, 100 + n / 2);
    cache_check(c);
    assert_int_equal(stats_of(c).n_holds, n - n / 2 - 1);
    assert_int_equal(stats_of(c).n_held_blocks, n - n / 2 - 1);
    cache_destroy(c);
}

/* Blocks that are held already take no more of the share, so the later end of a second request
 * counts. */
static void a_hold_can_be_renewed(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c;

    (void)state;
    config.hold_share = 0.25;
    c = make(&config);
    run(c, "AAA");
    assert_int_equal(hold(c, "AAA", 1000, 100), 96);
    assert_int_equal(hold(c, "AAA", 1000, 200), 96);
    (void)cache_poll(c, 100);
    run_others(c);
    assert_int_equal(match(c, "AAA"), 96);
    cache_destroy(c);
}

/* Another prompt may split a held node: both parts stay. */
static void a_hold_outlives_a_split(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "ABCD");
    assert_int_equal(hold(c, "ABCD", 1000, 100), 128);
    run(c, "ABX");
    run_others(c);
    assert_int_equal(match(c, "ABCD"), 128);
    assert_int_equal(match(c, "ABX"), 64);
    (void)cache_poll(c, 100);
    cache_check(c);
    run_others(c);
    assert_int_equal(match(c, "ABCD"), 0);
    cache_destroy(c);
}

/* --- expected blocks --- */

static void blocks_of_a_waiting_request_are_evicted_last(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq waits;

    (void)state;
    run(c, "AAAA");
    run(c, "BBBB");
    cache_seq_expect(seq(c, &waits, "AAAA"), 0);
    cache_seq_expect(waits.s, 0); /* told twice: no effect */
    run(c, "CCCC");
    run(c, "DDDD"); /* one of the older paths must be evicted */
    assert_int_equal(match(c, "BBBB"), 0);
    assert_int_equal(match(c, "AAAA"), 128);
    cache_seq_close(waits.s);
    cache_check(c);
    run(c, "EEEE");
    assert_int_equal(match(c, "AAAA"), 0); /* the oldest path, and no request expects it */
    cache_destroy(c);
}

static void blocks_computed_later_are_expected_too(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq waits;

    (void)state;
    cache_seq_expect(seq(c, &waits, "AA|AA"), 0);
    run(c, "AA|AA");
    run_others(c);
    assert_int_equal(match(c, "AA|AA"), 128);
    assert_int_equal(cache_seq_attach(waits.s, NULL), 128);
    cache_check(c);
    cache_seq_drop(waits.s);
    run_others(c);
    assert_int_equal(cache_match(waits.s), 0); /* attaching ended the wait */
    cache_seq_close(waits.s);
    cache_destroy(c);
}

/* Where two prompts diverge inside a segment, the expected branch stays. */
static void an_expected_branch_inside_a_segment_stays(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct open_seq waits;

    (void)state;
    run(c, "AABB");
    run(c, "AACC");
    run(c, "AABB"); /* the more recent one */
    cache_seq_expect(seq(c, &waits, "AACC"), 0);
    run_others(c);
    assert_int_equal(match(c, "AACC"), 128);
    cache_seq_close(waits.s);
    cache_destroy(c);
}

/* --- tiers --- */

static void a_waiting_request_is_prefetched_before_it_is_attached(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq a, b;

    (void)state;
    run(c, "AAAAA");
    run(c, "BBBBB");
    run_others(c);
    settle(c, 1);
    assert_lies(c, "AAAAA", 0, 5);
    assert_lies(c, "BBBBB", 0, 5);
    assert_true(cache_seq_prefetch(seq(c, &a, "AAAAA")));
    assert_false(cache_seq_prefetch(seq(c, &b, "BBBBB"))); /* 10 blocks are more than half of 16 */
    settle(c, 2);
    assert_lies(c, "AAAAA", 5, 5);
    assert_lies(c, "BBBBB", 0, 5);
    uint64_t n_moved = stats_of(c).tier[CACHE_DEVICE].n_moved_in;
    assert_int_equal(n_moved, 5);
    assert_true(cache_seq_prefetch(a.s)); /* told twice: no effect */
    assert_int_equal(cache_seq_attach(a.s, found), 160);
    assert_true(found[CACHE_HOST] == 160 && found[CACHE_DEVICE] == 0);
    assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_moved_in, n_moved);
    assert_int_equal(stats_of(c).tier[CACHE_HOST].n_hit_tokens, 160);
    assert_true(cache_seq_prefetch(b.s)); /* its part of the share is free again */
    settle(c, 3);
    assert_lies(c, "BBBBB", 5, 5);
    cache_seq_close(a.s);
    cache_seq_close(b.s);
    assert_int_equal(run_found(c, "AAAAA", found), 160);
    assert_int_equal(found[CACHE_DEVICE], 160); /* the second time it lies on the device */
    cache_destroy(c);
}

static void a_prefetch_evicts_no_expected_blocks(void **state)
{
    static const char *const others[] = {"XXXX", "YYYY", "ZZZZ"};
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq x[3], a;

    (void)state;
    run(c, "AAAAA");
    run_others(c);
    settle(c, 1);
    for (int i = 0; i < 3; i++)
        cache_seq_expect(seq(c, &x[i], others[i]), 0);
    assert_false(cache_seq_prefetch(seq(c, &a, "AAAAA"))); /* 4 blocks are free */
    assert_lies(c, "AAAAA", 0, 5);
    cache_seq_close(x[0].s);
    assert_true(cache_seq_prefetch(a.s));
    settle(c, 2);
    assert_lies(c, "AAAAA", 5, 5);
    assert_lies(c, "XXXX", 0, 4);
    assert_lies(c, "YYYY", 4, 0);
    assert_lies(c, "ZZZZ", 4, 0);
    cache_seq_close(a.s);
    cache_seq_close(x[1].s);
    cache_seq_close(x[2].s);
    cache_check(c);
    cache_destroy(c);
}

/* A block prefetched for a request that was cancelled is an ordinary cached block. */
static void a_cancelled_request_releases_its_prefetch_share(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq a, b;

    (void)state;
    run(c, "AAAAA");
    run(c, "BBBBB");
    run_others(c);
    settle(c, 1);
    assert_true(cache_seq_prefetch(seq(c, &a, "AAAAA")));
    settle(c, 2);
    cache_seq_close(a.s); /* the request is cancelled */
    assert_true(cache_seq_prefetch(seq(c, &b, "BBBBB")));
    cache_seq_close(b.s);
    settle(c, 3);
    cache_destroy(c);
}

static void one_memory_needs_no_fetching_ahead(void **state)
{
    struct cache_config config = small_config(16, 64);
    uint32_t found[CACHE_N_TIERS];
    struct open_seq a;
    struct cache *c;

    (void)state;
    config.always_copy = false;
    c = make(&config);
    run(c, "AAAAA");
    run_others(c);
    assert_lies(c, "AAAAA", 0, 5);
    assert_true(cache_seq_prefetch(seq(c, &a, "AAAAA")));
    assert_false(cache_poll(c, 1));
    assert_lies(c, "AAAAA", 0, 5);
    assert_int_equal(cache_seq_attach(a.s, found), 160);
    assert_int_equal(found[CACHE_HOST], 160);
    assert_lies(c, "AAAAA", 5, 0); /* exchanged, not copied */
    cache_seq_close(a.s);
    cache_check(c);
    cache_destroy(c);
}

static void a_block_with_a_copy_is_not_copied_again(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AAAA");
    run_others(c);
    settle(c, 1);
    assert_lies(c, "AAAA", 0, 4);
    assert_int_equal(run(c, "AAAA"), 128);
    run_others(c); /* all these blocks have been copied out, now or before */
    run_others(c);
    settle(c, 2);
    uint64_t n_moved = stats_of(c).tier[CACHE_HOST].n_moved_in;
    uint64_t n_evicted = stats_of(c).tier[CACHE_DEVICE].n_evicted;
    assert_int_equal(run(c, "AAAA"), 128);
    run_others(c);
    settle(c, 3);
    assert_lies(c, "AAAA", 0, 4);
    assert_true(stats_of(c).tier[CACHE_DEVICE].n_evicted >= n_evicted + 4);
    assert_int_equal(stats_of(c).tier[CACHE_HOST].n_moved_in, n_moved);
    assert_int_equal(stats_of(c).n_copies_failed, 0);
    cache_destroy(c);
}

static void hits_are_counted_per_tier(void **state)
{
    struct cache_config config = small_config(16, 64);
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        config.always_copy = copy;
        struct cache *c = make(&config);

        run(c, "AA|BB");
        assert_int_equal(run_found(c, "AA|BB", found), 128);
        assert_true(found[CACHE_DEVICE] == 128 && found[CACHE_HOST] == 0);
        run_others(c);
        assert_int_equal(run_found(c, "AA|BB", found), 128);
        assert_true(found[CACHE_DEVICE] == 0 && found[CACHE_HOST] == 128);
        struct cache_stats stats = stats_of(c);
        assert_int_equal(stats.tier[CACHE_DEVICE].n_hit_tokens, 128);
        assert_int_equal(stats.tier[CACHE_HOST].n_hit_tokens, 128);
        assert_int_equal(stats.n_hit_tokens, 256);
        assert_int_equal(stats.n_query_tokens, 7 * 129);
        assert_int_equal(stats.n_restored_tokens, 0);
        cache_destroy(c);
    }
}

/* Random documents below one preamble: if a document lies on the device, so does the preamble. */
static void a_prefix_is_never_in_a_slower_tier_than_its_suffix(void **state)
{
    struct cache_config config = small_config(16, 24);
    char text[] = "PP|DDD|EE|Q";
    uint32_t n_both = 0;

    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        config.always_copy = copy;
        struct cache *c = make(&config);

        for (uint64_t i = 0; i < 400; i++) {
            struct cache_span spans[64];
            uint32_t n_all, n_in[CACHE_N_TIERS], r = rng_u32(5, i);

            memset(text + 3, 'D' + (int)(r % 5), 3);
            memset(text + 7, 'D' + (int)(r / 8 % 5), 2);
            if (r / 64 % 3 == 0)
                run(c, i & 1 ? "WWWWWWWWW" : "XXXX|YYYY");
            else
                run(c, text);
            (void)cache_poll(c, i);
            lies(c, "PP|", n_in);
            for (uint32_t k = cache_top_spans(c, spans, 64, &n_all); k-- > 0;)
                if (spans[k].depth > 0 && spans[k].n_tokens == 96) { /* DDD, which no other prompt
                                                                        has */
                    n_both += spans[k].n_blocks_in[CACHE_DEVICE] > 0;
                    assert_true(!spans[k].n_blocks_in[CACHE_DEVICE] || n_in[CACHE_DEVICE] == 2);
                    assert_true(n_in[CACHE_DEVICE] || n_in[CACHE_HOST]);
                }
        }
        settle(c, 400);
        cache_destroy(c);
    }
    assert_true(n_both > 100);
}

/* --- looking --- */

static void spans_are_listed_by_what_was_found_of_them(void **state)
{
    struct cache_config config = small_config(32, 0);
    struct cache *c = make(&config);
    struct cache_span s[8];
    struct open_seq o;
    uint32_t n_all;

    (void)state;
    (void)cache_poll(c, 1000);
    run(c, "PPp|AAA|Q");
    run(c, "PPp|BB|Q");
    (void)cache_poll(c, 3000);
    run(c, "PPp|AAA|R");
    (void)cache_poll(c, 4000);
    assert_int_equal(hold(c, "PPp|BB|Q", 179, 9000), 148);
    seq(c, &o, "PPp|");
    assert_int_equal(cache_seq_attach(o.s, NULL), 84); /* in use, and one more use */
    assert_int_equal(cache_top_spans(c, s, 8, &n_all), 6);
    assert_int_equal(n_all, 6);
    assert_memory_equal(&s[0].key, &o.q.keys[0], sizeof s[0].key);
    assert_true(s[0].depth == 0 && s[0].n_blocks == 3 && s[0].n_tokens == 84);
    assert_true(s[0].n_uses == 4 && s[0].n_hit_tokens == 3 * 84 && s[0].n_children == 2);
    assert_true(s[0].n_blocks_in[CACHE_DEVICE] == 3 && s[0].n_nodes == 1);
    assert_true(s[0].in_use && s[0].is_held && s[0].idle_ns == 0);
    assert_true(s[1].depth == 1 && s[1].n_tokens == 96 && s[1].n_uses == 2);
    assert_true(s[1].n_hit_tokens == 96 && s[1].n_children == 2 && s[1].idle_ns == 1000);
    assert_false(s[1].in_use || s[1].is_held);
    assert_true(s[2].depth == 1 && s[2].n_tokens == 64 && s[2].n_uses == 1 && s[2].is_held);
    assert_true(s[2].n_hit_tokens == 0 && s[2].idle_ns == 3000 && s[2].n_children == 1);
    assert_true(s[3].depth == 2 && s[3].n_children == 0 && s[3].n_tokens == 32);
    assert_int_equal(cache_top_spans(c, s, 2, &n_all), 2);
    assert_int_equal(n_all, 6);
    assert_true(s[0].n_tokens == 84 && s[1].n_tokens == 96);
    assert_int_equal(cache_top_spans(c, s, 0, &n_all), 0);
    assert_int_equal(n_all, 6);
    cache_seq_close(o.s);
    cache_destroy(c);
}

/* A step takes 5, each token the more the further behind it is. */
static double growing_seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    (void)arg;
    return 5 + 0.5 * (((double)n_cached + n_new) * ((double)n_cached + n_new) -
                      (double)n_cached * n_cached);
}

static void a_span_is_found_by_its_first_key_with_what_its_hits_saved(void **state)
{
    struct cache_config config = small_config(32, 0);
    struct cache_span s;
    struct open_seq o;

    (void)state;
    config.seconds = growing_seconds;
    struct cache *c = make(&config);
    seq(c, &o, "PP|AAA|Q");
    const struct kv_key *keys = o.q.keys;
    assert_false(cache_find_span(c, &keys[0], &s));
    run(c, "PP|AAA|Q");
    assert_true(cache_find_span(c, &keys[2], &s));
    assert_true(s.depth == 1 && s.n_tokens == 96 && s.n_uses == 1 && s.n_hit_tokens == 0);
    assert_true(s.saved_s == 0 && stats_of(c).saved_s == 0);
    assert_false(cache_find_span(c, &keys[3], &s)); /* not the first block of its span */
    run(c, "PP|AAA|R");
    run(c, "PP|AAB|R"); /* splits the span */
    assert_true(cache_find_span(c, &keys[2], &s));
    assert_true(s.n_hit_tokens == 96 + 64 && s.n_nodes == 3);
    /* The first token is computed by every request. */
    double preamble = 0.5 * (64 * 64 - 1), whole = 0.5 * (160 * 160 - 64 * 64);
    double part = 0.5 * (128 * 128 - 64 * 64);
    assert_true(fabs(s.saved_s - whole - part) < 1e-6);
    assert_true(cache_find_span(c, &keys[0], &s));
    assert_true(fabs(s.saved_s - 2 * preamble) < 1e-6);
    assert_true(fabs(stats_of(c).saved_s - 2 * preamble - whole - part) < 1e-6);
    cache_seq_close(o.s);
    cache_destroy(c);
}

static void branches_inside_of_a_span_are_counted_with_it(void **state)
{
    struct cache_config config = small_config(32, 0);
    struct cache *c = make(&config);
    struct cache_span s[4];
    uint32_t n_all;

    (void)state;
    run(c, "P|ABC|");
    run(c, "P|ABD|");
    assert_int_equal(cache_top_spans(c, s, 4, &n_all), 2);
    const struct cache_span *doc = s[0].depth == 1 ? &s[0] : &s[1];
    assert_int_equal(doc->n_nodes, 3);
    assert_int_equal(doc->n_blocks, 4);
    assert_int_equal(doc->n_tokens, 128);
    assert_int_equal(doc->n_uses, 2);
    cache_destroy(c);
}

/* Tokens found before a split of their span are not counted again. */
static void a_split_leaves_the_hits_as_they_were(void **state)
{
    struct cache_config config = small_config(32, 0);
    struct cache *c = make(&config);
    struct cache_span s;
    uint32_t n_all;

    (void)state;
    run(c, "ABC|"); /* one token more, so that all of it can be found */
    run(c, "ABC|");
    assert_int_equal(cache_top_spans(c, &s, 1, &n_all), 1);
    assert_int_equal(s.n_hit_tokens, 96);
    run(c, "ABD|");
    assert_int_equal(cache_top_spans(c, &s, 1, &n_all), 1);
    assert_int_equal(s.n_hit_tokens, 96 + 64);
    cache_destroy(c);
}

/* --- reset and refusal --- */

static void a_reset_keeps_only_blocks_in_use(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache_view view;
    struct open_seq o;

    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        config.always_copy = copy;
        struct cache *c = make(&config);

        run(c, "AAA|BB");
        assert_int_equal(hold(c, "AAA|BB", 1000, 100), 160);
        run_others(c);
        cache_seq_expect(seq(c, &o, "AAA|C"), 0);
        assert_int_equal(cache_seq_attach(o.s, NULL), 96);
        uint64_t n_evicted = stats_of(c).tier[CACHE_DEVICE].n_evicted;
        cache_reset(c);
        cache_check(c);
        struct cache_stats stats = stats_of(c);
        assert_true(stats.n_holds == 0 && stats.n_held_blocks == 0 && stats.n_nodes == 1);
        assert_int_equal(stats.tier[CACHE_DEVICE].n_in_use, 3);
        assert_int_equal(stats.tier[CACHE_DEVICE].n_free, 13);
        assert_int_equal(stats.tier[CACHE_DEVICE].n_evicted, n_evicted);
        assert_int_equal(stats.tier[CACHE_HOST].n_free, 64);
        assert_int_equal(match(c, "WWWW"), 0);
        assert_int_equal(match(c, "AAA|BB"), 96); /* in use */
        cache_seq_view(o.s, &view);
        assert_int_equal(view.n_tokens, 96);
        cache_seq_close(o.s);
        cache_reset(c);
        assert_int_equal(cache_n_available(c), 16);
        assert_true(match(c, "AAA|C") == 0 && stats_of(c).n_nodes == 0);
        assert_int_equal(run(c, "AAA|BB"), 0);
        assert_int_equal(run(c, "AAA|BB"), 160);
        cache_destroy(c);
    }
}

static void a_reset_while_somebody_waits_leaves_the_wait(void **state)
{
    struct cache_config config = small_config(16, 64);
    struct cache *c = make(&config);
    struct open_seq waits;

    (void)state;
    run(c, "AAAA");
    run_others(c);
    cache_seq_expect(seq(c, &waits, "AAAA"), 0);
    assert_true(cache_seq_prefetch(waits.s));
    cache_reset(c);
    cache_check(c);
    assert_int_equal(cache_match(waits.s), 0);
    run(c, "AAAA");
    run_others(c);
    assert_lies(c, "AAAA", 4, 0); /* still expected */
    assert_int_equal(cache_seq_attach(waits.s, NULL), 128);
    cache_seq_close(waits.s);
    settle(c, 1);
    cache_destroy(c);
}

static void an_unknown_policy_is_refused_with_words(void **state)
{
    static const char *const bad[] = {"mru", "", "belady", "LRU", "lru "};
    struct cache_config config = small_config(16, 32);
    char names[128], *rest = names;
    struct cache *c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config.policy = bad[i];
        buf_reset(&why);
        assert_int_equal(cache_create(&c, &config, &why), ERR_INVALID);
        assert_null(c);
        assert_non_null(strstr(buf_str(&why), bad[i]));
        assert_non_null(strstr(buf_str(&why), cache_policies()));
    }
    buf_fini(&why);
    assert_true(strlen(cache_policies()) < sizeof names);
    strcpy(names, cache_policies());
    for (char *name; (name = strtok_r(rest, ", ", &rest)) != NULL;) {
        config.policy = name;
        c = make(&config);
        assert_string_equal(stats_of(c).policy, name);
        run(c, "AAAA");
        run_others(c);
        cache_destroy(c);
    }
    config.policy = NULL;
    c = make(&config);
    assert_string_equal(stats_of(c).policy, "contest");
    cache_destroy(c);
}

static void a_tier_beyond_memory_is_refused_with_words(void **state)
{
    struct cache_config config = small_config(16, 1u << 20); /* the tables of more take seconds */
    struct cache *c;
    struct buf why;

    (void)state;
    config.pool.head_dim = 4096; /* 2^58 bytes: larger than the address space */
    config.pool.n_layers = 4096;
    config.pool.n_kv_heads = 64;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_not_equal(cache_create(&c, &config, &why), OK);
    assert_null(c);
    assert_non_null(strstr(buf_str(&why), "{kv_host_bytes}"));
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_held_prompt_stays_until_its_time),
        cmocka_unit_test(a_hold_covers_whole_blocks_and_what_is_there),
        cmocka_unit_test(holds_take_no_more_than_their_share),
        cmocka_unit_test(the_number_of_holds_is_bounded),
        cmocka_unit_test(a_hold_can_be_renewed),
        cmocka_unit_test(a_hold_outlives_a_split),
        cmocka_unit_test(blocks_of_a_waiting_request_are_evicted_last),
        cmocka_unit_test(blocks_computed_later_are_expected_too),
        cmocka_unit_test(an_expected_branch_inside_a_segment_stays),
        cmocka_unit_test(a_waiting_request_is_prefetched_before_it_is_attached),
        cmocka_unit_test(a_prefetch_evicts_no_expected_blocks),
        cmocka_unit_test(a_cancelled_request_releases_its_prefetch_share),
        cmocka_unit_test(one_memory_needs_no_fetching_ahead),
        cmocka_unit_test(a_block_with_a_copy_is_not_copied_again),
        cmocka_unit_test(hits_are_counted_per_tier),
        cmocka_unit_test(a_prefix_is_never_in_a_slower_tier_than_its_suffix),
        cmocka_unit_test(spans_are_listed_by_what_was_found_of_them),
        cmocka_unit_test(a_span_is_found_by_its_first_key_with_what_its_hits_saved),
        cmocka_unit_test(branches_inside_of_a_span_are_counted_with_it),
        cmocka_unit_test(a_split_leaves_the_hits_as_they_were),
        cmocka_unit_test(a_reset_keeps_only_blocks_in_use),
        cmocka_unit_test(a_reset_while_somebody_waits_leaves_the_wait),
        cmocka_unit_test(an_unknown_policy_is_refused_with_words),
        cmocka_unit_test(a_tier_beyond_memory_is_refused_with_words),
    };
    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
