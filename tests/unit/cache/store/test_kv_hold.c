/* Holds: what each owner may hold, holds without end, and random holds against a model. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/rng.h"
#include "tests/unit/cache/cache_run.h"

#define NO_LIMIT UINT64_C(0)

static struct cache_hold until(uint64_t owner, uint64_t until_ns, uint64_t n_bytes_max)
{
    return (struct cache_hold){.owner = owner, .n_bytes_max = n_bytes_max, .until_ns = until_ns};
}

static uint32_t hold(struct cache *c, const char *text, uint32_t n_tokens, struct cache_hold h,
                     enum cache_hold_limit *limit)
{
    struct open_seq o;
    uint32_t n = cache_seq_hold(seq(c, &o, text), n_tokens, &h, limit);

    cache_seq_close(o.s);
    cache_check(c);
    return n;
}

/* The key of block i of the text. */
static struct kv_key key_of(struct cache *c, const char *text, uint32_t i)
{
    struct open_seq o;

    cache_seq_close(seq(c, &o, text));
    return o.q.p.keys[i];
}

static uint32_t n_blocks_of(struct cache *c, uint64_t owner)
{
    struct cache_stats st;

    cache_stats(c, &st);
    for (uint32_t i = 0; i < st.n_owners; i++)
        if (st.owners[i].owner == owner)
            return st.owners[i].n_blocks;
    return 0;
}

static uint64_t block_bytes(const struct cache_config *config)
{
    return kv_block_bytes(&config->pool);
}

/* --- owners --- */

static void an_owner_holds_no_more_than_its_bound(void **state)
{
    struct cache_config config = small_config(32, 0);
    uint64_t bound = 4 * block_bytes(&config);
    enum cache_hold_limit limit;
    struct cache *c = make(&config);

    (void)state;
    run(c, "AAAB");
    run(c, "AAAC");
    run(c, "DD");
    assert_int_equal(hold(c, "AAAB", 1000, until(7, 100, bound), &limit), 128);
    assert_int_equal(limit, CACHE_HOLD_NO_LIMIT);
    assert_int_equal(hold(c, "AAAC", 1000, until(7, 100, bound), &limit), 0); /* a fifth block */
    assert_int_equal(limit, CACHE_HOLD_OWNER);
    assert_int_equal(hold(c, "AAAC", 96, until(7, 200, bound), &limit), 96); /* held already */
    assert_int_equal(hold(c, "AAAC", 1000, until(7, 100, bound + 1), &limit), 0);
    assert_int_equal(hold(c, "AAAC", 1000, until(8, 100, bound), &limit), 128); /* another owner */
    assert_int_equal(hold(c, "DD", 1000, until(9, 100, NO_LIMIT), &limit), 64);
    assert_true(n_blocks_of(c, 7) == 4 && n_blocks_of(c, 8) == 4 && n_blocks_of(c, 9) == 2);
    assert_int_equal(stats_of(c).n_held_blocks, 7); /* a shared block counts once in the pool */
    (void)cache_poll(c, 100);
    assert_int_equal(n_blocks_of(c, 7), 3);
    assert_int_equal(stats_of(c).n_owners, 1);
    assert_int_equal(hold(c, "AAAC", 1000, until(7, 200, bound), &limit), 128);
    cache_destroy(c);
}

/* Owner 1 asks for holds of much more than the pool, again and again. */
static void an_owner_at_its_bound_costs_no_other_owner_its_held_kv(void **state)
{
    for (uint32_t n_host = 0; n_host <= 16; n_host += 16) {
        struct cache_config config = small_config(16, n_host);
        uint64_t bound = 3 * block_bytes(&config);
        char text[] = "CAAA";

        (void)state;
        config.always_copy = true;
        struct cache *c = make(&config);
        run(c, "BBB");
        assert_int_equal(hold(c, "BBB", 1000, until(2, 1000, bound), NULL), 96);
        for (uint32_t i = 0; i < 40; i++) {
            text[0] = (char)('C' + i % 20);
            run(c, text);
            settle(c, 1);
            (void)hold(c, text, 1000, until(1, 1000, bound), NULL);
            (void)hold(c, text, 64, until(1, 1000, bound), NULL);
            assert_true(n_blocks_of(c, 1) <= 3);
            assert_int_equal(n_blocks_of(c, 2), 3);
        }
        assert_true(n_blocks_of(c, 1) > 0);
        assert_int_equal(match(c, "BBB"), 96);
        cache_destroy(c);
    }
}

static void a_bound_does_not_concern_kv_that_is_not_held(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AAAA");
    assert_int_equal(hold(c, "AAAA", 1000, until(1, 100, 1), NULL), 0);
    assert_int_equal(run(c, "AAAA|B"), 128);
    cache_destroy(c);
}

/* The pool's own share is small against the host's: held KV is spilled like all other, and stays
 * held there. */
static void held_kv_is_held_in_the_tier_to_which_it_moves(void **state)
{
    struct cache_config config = small_config(16, 12);
    struct cache *c = make(&config);
    struct open_seq o;

    (void)state;
    run(c, "AAA");
    assert_int_equal(hold(c, "AAA", 1000, until(1, 1000, NO_LIMIT), NULL), 96);
    seq(c, &o, "BBBBBBBBBBBBBBB"); /* needs the whole device */
    (void)compute(&o, NULL);
    settle(c, 1);
    assert_lies(c, "AAA", 0, 3);
    cache_seq_close(o.s);
    for (int i = 0; i < 3; i++)
        run_others(c);
    settle(c, 2);
    assert_int_equal(match(c, "AAA"), 96);
    assert_int_equal(n_blocks_of(c, 1), 3);
    settle(c, 1000);
    for (int i = 0; i < 3; i++)
        run_others(c);
    assert_int_equal(match(c, "AAA"), 0);
    cache_destroy(c);
}

/* --- parts, and renewal --- */

static void a_longer_hold_replaces_its_part_and_a_shorter_one_stays_beside_it(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AABB");
    assert_int_equal(hold(c, "AABB", 64, until(1, 100, NO_LIMIT), NULL), 64);
    assert_int_equal(hold(c, "AABB", 128, until(1, 100, NO_LIMIT), NULL), 128);
    assert_int_equal(stats_of(c).n_holds, 1);
    assert_int_equal(hold(c, "AABB", 64, until(1, 90, NO_LIMIT), NULL), 64);
    assert_int_equal(stats_of(c).n_holds, 1); /* held for longer already */
    assert_int_equal(hold(c, "AABB", 64, until(1, 200, NO_LIMIT), NULL), 64);
    assert_int_equal(stats_of(c).n_holds, 2);
    (void)cache_poll(c, 100);
    cache_check(c);
    assert_int_equal(n_blocks_of(c, 1), 2);
    (void)cache_poll(c, 200);
    assert_true(stats_of(c).n_holds == 0 && stats_of(c).n_owners == 0);
    cache_destroy(c);
}

/* --- holds without end --- */

static void a_hold_without_end_ends_when_it_is_released(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct kv_key document, other;

    (void)state;
    run(c, "P|AA");
    run(c, "P|BB");
    document = key_of(c, "P|AA", 1);
    other = key_of(c, "P|BB", 1);
    assert_int_equal(hold(c, "P|AA", 1000, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 96);
    assert_int_equal(hold(c, "P|AA", 1000, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 96);
    assert_int_equal(hold(c, "P|BB", 1000, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 96);
    assert_int_equal(stats_of(c).n_holds, 2);
    (void)cache_poll(c, UINT64_MAX - 1);
    run_others(c);
    assert_true(match(c, "P|AA") == 96 && match(c, "P|BB") == 96);
    assert_int_equal(cache_release(c, &document), 2); /* "P" is held for the other one */
    cache_check(c);
    assert_int_equal(match(c, "P|AA"), 96); /* not held, but cached */
    assert_int_equal(cache_release(c, &document), 0);
    run_others(c);
    assert_true(match(c, "P|AA") == 32 && match(c, "P|BB") == 96);
    assert_int_equal(cache_release(c, &other), 3);
    assert_true(stats_of(c).n_holds == 0 && stats_of(c).n_held_blocks == 0);
    cache_destroy(c);
}

static void a_release_ends_no_hold_that_has_an_end(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "AA|B");
    struct kv_key key = key_of(c, "AA|B", 0);
    assert_int_equal(hold(c, "AA|B", 1000, until(1, 100, NO_LIMIT), NULL), 96);
    assert_int_equal(hold(c, "AA|B", 64, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 64);
    assert_int_equal(hold(c, "AA|B", 64, until(1, 50, NO_LIMIT), NULL), 64);
    assert_int_equal(cache_release(c, &key), 0); /* nothing is left without a hold */
    assert_int_equal(stats_of(c).n_holds, 1);
    assert_int_equal(n_blocks_of(c, 1), 3);
    cache_destroy(c);
}

/* Two documents under one preamble, one behind the other. */
static void the_release_of_a_later_span_leaves_the_hold_of_an_earlier_one(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "P|A|B|");
    struct kv_key later = key_of(c, "P|A|B|", 2);
    assert_int_equal(hold(c, "P|A|B|", 64, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 64);
    assert_int_equal(hold(c, "P|A|B|", 96, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 96);
    assert_int_equal(cache_release(c, &later), 1);
    assert_int_equal(n_blocks_of(c, 1), 2);
    cache_destroy(c);
}

static void an_erased_span_is_held_no_more(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);

    (void)state;
    run(c, "P|AA");
    struct kv_key key = key_of(c, "P|AA", 1);
    assert_int_equal(hold(c, "P|AA", 1000, until(1, CACHE_HOLD_FOREVER, NO_LIMIT), NULL), 96);
    assert_int_equal(hold(c, "P|AA", 1000, until(1, 100, NO_LIMIT), NULL), 96);
    assert_int_equal(cache_erase(c, &key), 2);
    cache_check(c);
    assert_int_equal(stats_of(c).n_held_blocks, 1); /* the preamble's */
    key = key_of(c, "P|AA", 0);
    assert_int_equal(cache_erase(c, &key), 1);
    assert_true(stats_of(c).n_holds == 0 && stats_of(c).n_owners == 0);
    cache_destroy(c);
}

/* --- random holds --- */

#define N_OWNERS 3u
#define N_LETTERS 5u              /* of a text: each a block, 'A' or 'B' */
#define N_PATHS (2u << N_LETTERS) /* path 1: no letter; 2 * p and 2 * p + 1 continue path p */
#define N_RANDOM 4000u
#define SHARE 0.6

/* The expected holds of each owner on each path: the end of its timed hold, and whether it has an
 * endless one. */
struct model {
    uint64_t until_ns[N_OWNERS][N_PATHS];
    bool endless[N_OWNERS][N_PATHS];
    uint64_t now_ns;
};

static bool lies_below(uint32_t path, uint32_t top)
{
    while (path > top)
        path /= 2;
    return path == top;
}

static bool is_held_by(const struct model *m, uint32_t owner, uint32_t path)
{
    bool held = m->until_ns[owner][path] > m->now_ns;

    for (uint32_t p = path; p < N_PATHS; p++)
        held |= m->endless[owner][p] && lies_below(p, path);
    return held;
}

static uint32_t n_model(const struct model *m, uint32_t owner)
{
    uint32_t n = 0;

    for (uint32_t p = 2; p < N_PATHS; p++)
        n += is_held_by(m, owner, p);
    return n;
}

static uint32_t n_model_all(const struct model *m)
{
    uint32_t n = 0;

    for (uint32_t p = 2; p < N_PATHS; p++) {
        bool held = false;
        for (uint32_t o = 0; o < N_OWNERS; o++)
            held |= is_held_by(m, o, p);
        n += held;
    }
    return n;
}

static uint32_t text_of(char out[N_LETTERS + 1], uint32_t bits)
{
    uint32_t path = 1;

    for (uint32_t i = 0; i < N_LETTERS; i++) {
        out[i] = (char)('A' + (bits >> i & 1));
        path = 2 * path + (bits >> i & 1);
    }
    out[N_LETTERS] = '\0';
    return path;
}

static void random_hold(struct cache *c, struct model *m, const struct cache_config *config,
                        uint32_t r)
{
    uint32_t owner = r % N_OWNERS, n = 1 + r / 8 % N_LETTERS, path, n_more, n_more_all;
    uint64_t bound = (4 + owner * 20) * block_bytes(config);
    bool endless = r / 64 % 4 == 0;
    struct cache_hold h =
        until(owner, endless ? CACHE_HOLD_FOREVER : m->now_ns + 1 + r / 256 % 50, bound);
    struct model next = *m;
    enum cache_hold_limit limit;
    char text[N_LETTERS + 1];

    path = text_of(text, r >> 16) >> (N_LETTERS - n);
    run(c, text);
    settle(c, m->now_ns);
    for (uint32_t p = path; p > 1; p /= 2)
        if (!endless && next.until_ns[owner][p] < h.until_ns)
            next.until_ns[owner][p] = h.until_ns;
    next.endless[owner][path] |= endless;
    n_more = n_model(&next, owner);
    n_more_all = n_model_all(&next);
    uint32_t n_held = hold(c, text, 32 * n, h, &limit);
    if (limit == CACHE_HOLD_NO_LIMIT) {
        assert_int_equal(n_held, 32 * n);
        *m = next;
    } else {
        assert_int_equal(n_held, 0);
        assert_true(limit == CACHE_HOLD_OWNER
                        ? n_more * block_bytes(config) > bound
                        : limit == CACHE_HOLD_SHARE &&
                              n_more_all > (uint32_t)(SHARE * config->pool.n_blocks));
    }
}

static void random_release(struct cache *c, struct model *m, uint32_t r)
{
    uint32_t i = r % N_LETTERS, n_before = n_model_all(m);
    char text[N_LETTERS + 1];
    uint32_t path = text_of(text, r >> 16) >> (N_LETTERS - 1 - i);
    struct kv_key key = key_of(c, text, i);

    for (uint32_t o = 0; o < N_OWNERS; o++)
        for (uint32_t p = path; p < N_PATHS; p++)
            m->endless[o][p] &= !lies_below(p, path);
    assert_int_equal(cache_release(c, &key), n_before - n_model_all(m));
}

static void random_erasure(struct cache *c, struct model *m, uint32_t r)
{
    uint32_t i = r % N_LETTERS;
    char text[N_LETTERS + 1];
    uint32_t path = text_of(text, r >> 16) >> (N_LETTERS - 1 - i);
    struct kv_key key = key_of(c, text, i);

    for (uint32_t o = 0; o < N_OWNERS; o++)
        for (uint32_t p = path; p < N_PATHS; p++)
            if (lies_below(p, path)) {
                m->until_ns[o][p] = 0;
                m->endless[o][path / 2] |= m->endless[o][p]; /* what is before it stays held */
                m->endless[o][p] = false;
            }
    (void)cache_erase(c, &key);
}

/* Promise P2, for holds: the counts are those of the model after every event, in one tier and in
 * two, and nothing is held at the end. */
static void random_holds_are_counted_exactly_and_none_is_left(void **state)
{
    (void)state;
    for (uint32_t n_host = 0; n_host <= 24; n_host += 24) {
        struct cache_config config = small_config(40, n_host);
        struct model *m = test_calloc(1, sizeof *m);
        uint32_t n_held_max = 0;

        config.hold_share = SHARE;
        config.always_copy = true;
        struct cache *c = make(&config);
        for (uint32_t e = 0; e < N_RANDOM; e++) {
            uint32_t r = rng_u32(17, e), what = r >> 24 & 15;
            m->now_ns += r % 5;
            (void)cache_poll(c, m->now_ns);
            if (what < 10)
                random_hold(c, m, &config, rng_u32(18, e));
            else if (what < 13)
                random_release(c, m, rng_u32(18, e));
            else if (what == 13)
                random_erasure(c, m, rng_u32(18, e));
            else
                run_others(c);
            cache_check(c);
            for (uint32_t o = 0; o < N_OWNERS; o++)
                assert_int_equal(n_blocks_of(c, o), n_model(m, o));
            assert_int_equal(stats_of(c).n_held_blocks, n_model_all(m));
            n_held_max =
                stats_of(c).n_held_blocks > n_held_max ? stats_of(c).n_held_blocks : n_held_max;
        }
        assert_true(n_held_max > 10);
        for (uint32_t a = 0; a < 2; a++) {
            struct kv_key key = key_of(c, a ? "BAAAA" : "AAAAA", 0);
            (void)cache_release(c, &key);
        }
        (void)cache_poll(c, UINT64_MAX - 1);
        cache_check(c);
        assert_true(stats_of(c).n_holds == 0 && stats_of(c).n_held_blocks == 0);
        assert_int_equal(stats_of(c).n_owners, 0);
        test_free(m);
        cache_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_owner_holds_no_more_than_its_bound),
        cmocka_unit_test(an_owner_at_its_bound_costs_no_other_owner_its_held_kv),
        cmocka_unit_test(a_bound_does_not_concern_kv_that_is_not_held),
        cmocka_unit_test(held_kv_is_held_in_the_tier_to_which_it_moves),
        cmocka_unit_test(a_longer_hold_replaces_its_part_and_a_shorter_one_stays_beside_it),
        cmocka_unit_test(a_hold_without_end_ends_when_it_is_released),
        cmocka_unit_test(a_release_ends_no_hold_that_has_an_end),
        cmocka_unit_test(the_release_of_a_later_span_leaves_the_hold_of_an_earlier_one),
        cmocka_unit_test(an_erased_span_is_held_no_more),
        cmocka_unit_test(random_holds_are_counted_exactly_and_none_is_left),
    };

    if (!open_device())
        return 1;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return n_failed;
}
