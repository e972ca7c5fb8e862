/* The rules of the cache: block states add up (promise P2), cuts depend only on ids and spans,
 * committed blocks are found again, and blocks in use are never evicted. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "cache/cache.h"
#include "kernels/device.h"

#define N_BLOCKS 64
#define N_IDS_MAX 900

static struct device *device;
static uint8_t fingerprint[KV_FINGERPRINT_BYTES];

static struct cache *make_cache(uint32_t n_blocks, bool prefix_caching)
{
    struct cache_config config = {.group = device_group_of(device),
                                  .pool = {.layout = kv_layout_of(DTYPE_F32),
                                           .n_blocks = n_blocks,
                                           .n_layers = 1,
                                           .n_kv_heads = 1,
                                           .head_dim = 2},
                                  .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                                  .prefix_caching = prefix_caching};
    struct cache *c;

    assert_ok(cache_create(&c, &config, NULL));
    return c;
}

/* A prompt with its own memory. */
struct prompt {
    uint32_t ids[N_IDS_MAX];
    uint32_t ends[8];
    struct kv_key keys[N_IDS_MAX / 32 + 10];
    struct cache_prompt p;
};

static void hash_prompt(struct prompt *q, uint32_t n, uint32_t n_ends)
{
    struct kv_scope scope = {{0}};

    q->p = (struct cache_prompt){
        .ids = q->ids, .n_ids = n, .span_ends = q->ends, .n_span_ends = n_ends, .keys = q->keys};
    kv_chain_init(&q->p.chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    q->p.n_keys = kv_chain_prompt(&q->p.chain, q->ids, n, q->ends, n_ends, 0, q->keys);
}

static void make_prompt(struct prompt *q, uint64_t seed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        q->ids[i] = rng_u32(seed, i) % 1000;
    hash_prompt(q, n, 0);
}

static struct cache_seq *run_whole(struct cache *c, const struct prompt *q)
{
    struct cache_seq *s;

    assert_ok(cache_seq_open(c, &q->p, N_IDS_MAX, &s));
    uint32_t hit = cache_seq_attach(s, NULL);
    assert_ok(cache_seq_grow(s, q->p.n_ids - hit));
    cache_seq_commit(s, q->p.n_ids - hit);
    return s;
}

static void committed_blocks_are_found_again(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    struct prompt q;
    struct cache_stats st;

    (void)state;
    make_prompt(&q, 1, 100);
    struct cache_seq *a = run_whole(c, &q);
    struct cache_seq *b;
    assert_ok(cache_seq_open(c, &q.p, 200, &b));
    assert_int_equal(cache_match(b), 96); /* three whole blocks, the fourth is open */
    assert_int_equal(cache_seq_need(b, 4), 1);
    cache_seq_close(a);
    assert_int_equal(cache_match(b), 96);
    assert_int_equal(cache_seq_need(b, 4), 4); /* attaching would take the three from the evictable
                                                  blocks */
    assert_int_equal(cache_seq_attach(b, NULL), 96);
    cache_stats(c, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_in_use, 3);
    assert_int_equal(st.tier[CACHE_DEVICE].n_cached, 1); /* a's tail of 4 tokens */
    assert_int_equal(st.tier[CACHE_DEVICE].n_leaked, 0);
    cache_seq_close(b);
    cache_check(c);
    cache_destroy(c);
}

static void the_last_token_is_never_a_hit(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    struct prompt q;

    (void)state;
    make_prompt(&q, 2, 64);
    cache_seq_close(run_whole(c, &q));
    struct cache_seq *b;
    assert_ok(cache_seq_open(c, &q.p, 100, &b));
    assert_int_equal(cache_match(b), 32); /* 64 are cached, but one must be computed */
    cache_seq_close(b);
    cache_destroy(c);
}

static void without_prefix_caching_nothing_is_found(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, false);
    struct cache_stats st;
    struct prompt q;

    (void)state;
    make_prompt(&q, 2, 200);
    cache_seq_close(run_whole(c, &q));
    cache_stats(c, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_free, N_BLOCKS);
    struct cache_seq *b;
    assert_ok(cache_seq_open(c, &q.p, 200, &b));
    assert_int_equal(cache_match(b), 0);
    cache_seq_close(b);
    cache_destroy(c);
}

static void spans_cut_segments_and_blocks(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    struct cache_view v;
    struct prompt q;

    (void)state;
    make_prompt(&q, 3, 700);
    q.ends[0] = 50;
    q.ends[1] = 350;
    hash_prompt(&q, 700, 2);
    struct cache_seq *s = run_whole(c, &q);
    cache_seq_view(s, &v);
    /* spans of 50, 300, 350 tokens: segments 50 | 256 44 | 256 94 */
    const uint32_t pos0[] = {0, 50, 306, 350, 606}, n[] = {50, 256, 44, 256, 94};
    const uint32_t block0[] = {0, 2, 10, 12, 20};
    assert_int_equal(v.n_segments, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(v.segments[i].pos0, pos0[i]);
        assert_int_equal(v.segments[i].n_tokens, n[i]);
        assert_int_equal(v.segments[i].block0, block0[i]);
    }
    assert_int_equal(v.n_blocks, 23);
    cache_seq_close(s);
    cache_destroy(c);
}

/* The cuts must be the same in whatever pieces a sequence grows. */
static void growing_in_pieces_gives_the_same_view(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, false);
    struct cache_view whole, pieces;
    struct prompt q;

    (void)state;
    make_prompt(&q, 4, 600);
    q.ends[0] = 7;
    q.ends[1] = 8;
    q.ends[2] = 333;
    hash_prompt(&q, 600, 3);
    struct cache_seq *a = run_whole(c, &q);
    cache_seq_view(a, &whole);
    for (uint32_t step = 1; step < 300; step += 13) {
        struct cache_seq *b;
        assert_ok(cache_seq_open(c, &q.p, 600, &b));
        for (uint32_t at = 0; at < 600; at += step) {
            uint32_t n = 600 - at < step ? 600 - at : step;
            uint32_t need = cache_seq_need(b, n), before = cache_n_available(c);
            assert_ok(cache_seq_grow(b, n));
            assert_int_equal(before - cache_n_available(c), need);
            cache_seq_view(b, &pieces);
            for (uint32_t i = 0; i < pieces.n_segments; i++) {
                uint32_t end = whole.segments[i].pos0 + whole.segments[i].n_tokens;
                assert_int_equal(pieces.segments[i].pos0, whole.segments[i].pos0);
                assert_int_equal(pieces.segments[i].block0, whole.segments[i].block0);
                assert_int_equal(pieces.segments[i].n_tokens,
                                 (end < at + n ? end : at + n) - whole.segments[i].pos0);
            }
            cache_seq_commit(b, n);
        }
        assert_int_equal(pieces.n_blocks, whole.n_blocks);
        cache_seq_close(b);
    }
    cache_seq_close(a);
    cache_check(c);
    cache_destroy(c);
}

static void two_that_compute_the_same_share_blocks_after_commit(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    struct cache_view va, vb;
    struct cache_stats st;
    struct cache_seq *a, *b;
    struct prompt q;

    (void)state;
    make_prompt(&q, 5, 128);
    assert_ok(cache_seq_open(c, &q.p, 200, &a));
    assert_ok(cache_seq_open(c, &q.p, 200, &b));
    assert_ok(cache_seq_grow(a, 128));
    assert_ok(cache_seq_grow(b, 128));
    cache_seq_commit(a, 128);
    cache_seq_commit(b, 128);
    cache_seq_view(a, &va);
    cache_seq_view(b, &vb);
    assert_memory_equal(va.blocks, vb.blocks, 4 * sizeof(uint32_t));
    cache_stats(c, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_in_use, 4);
    assert_int_equal(st.tier[CACHE_DEVICE].n_free, N_BLOCKS - 4);
    cache_seq_close(a);
    cache_seq_close(b);
    cache_check(c);
    cache_destroy(c);
}

/* The next turn of a conversation, and a preempted sequence, continue inside a block. */
static void a_sequence_continues_a_cached_tail(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    static struct prompt turn, next, other;
    struct cache_stats st;
    struct cache_seq *s;

    (void)state;
    make_prompt(&turn, 5, 80); /* two blocks and 16 tokens */
    make_prompt(&next, 5, 300);
    make_prompt(&other, 5, 300);
    other.ids[70] ^= 1;
    hash_prompt(&other, 300, 0);
    cache_seq_close(run_whole(c, &turn));
    assert_ok(cache_seq_open(c, &other.p, 400, &s));
    assert_int_equal(cache_match(s), 64);
    cache_seq_close(s);
    assert_ok(cache_seq_open(c, &next.p, 400, &s));
    assert_int_equal(cache_match(s), 80);
    assert_int_equal(cache_seq_need(s, 16), 3); /* two cached blocks and the tail's */
    assert_int_equal(cache_seq_need(s, 17), 4);
    assert_int_equal(cache_seq_attach(s, NULL), 80);
    assert_ok(cache_seq_grow(s, 120));
    cache_seq_commit(s, 110);
    cache_seq_shrink(s);
    cache_seq_drop(s); /* 190 tokens: the last 30 are a tail again */
    assert_int_equal(cache_match(s), 190);
    assert_int_equal(cache_seq_attach(s, NULL), 190);
    cache_check(c);
    cache_stats(c, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_cached, 0);
    assert_int_equal(st.n_restored_tokens, 190);
    cache_seq_close(s);
    cache_destroy(c);
}

/* A request for the logprobs of its prompt recomputes cached tokens. */
static void a_match_stops_at_the_limit_and_the_blocks_are_shared_all_the_same(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    static struct prompt q;
    struct cache_view va, vb;
    struct cache_seq *a, *b;
    struct cache_stats st;

    (void)state;
    make_prompt(&q, 5, 112);           /* three blocks and 16 tokens */
    cache_seq_close(run_whole(c, &q)); /* leaves a tail */
    assert_ok(cache_seq_open(c, &q.p, 200, &b));
    assert_int_equal(cache_match(b), 96);
    static const uint32_t limits[][2] = {{0, 0},   {31, 0},  {32, 32},
                                         {95, 64}, {96, 96}, {CACHE_MATCH_ALL, 96}};
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        cache_seq_limit_match(b, limits[i][0]);
        assert_int_equal(cache_match(b), limits[i][1]);
        assert_int_equal(cache_match_disk(b), limits[i][1]);
    }
    cache_seq_limit_match(b, 0);
    assert_int_equal(cache_seq_need(b, 112), 4);
    a = run_whole(c, &q);
    assert_int_equal(cache_seq_attach(b, NULL), 0);
    assert_ok(cache_seq_grow(b, 112));
    cache_seq_commit(b, 112);
    cache_seq_view(a, &va);
    cache_seq_view(b, &vb);
    assert_memory_equal(va.blocks, vb.blocks, 3 * sizeof(uint32_t));
    cache_stats(c, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_in_use, 5); /* three shared blocks, and one open block
                                                            of each sequence */
    cache_seq_close(a);
    cache_check(c);
    cache_seq_limit_match(b, 112); /* after a preemption it may find the blocks that it computed
                                      itself */
    cache_seq_drop(b);
    assert_int_equal(cache_match(b), 111 / 32 * 32);
    cache_seq_close(b);
    cache_check(c);
    cache_destroy(c);
}

static void shrinking_keeps_the_segments_that_have_tokens(void **state)
{
    struct cache *c = make_cache(N_BLOCKS, true);
    const uint32_t pos0[] = {0, 256, 512}, n[] = {256, 256, 38};
    static struct prompt q;
    struct cache_view v;
    struct cache_seq *s;

    (void)state;
    make_prompt(&q, 12, 850);
    assert_ok(cache_seq_open(c, &q.p, N_IDS_MAX, &s));
    assert_ok(cache_seq_grow(s, 850)); /* four segments */
    cache_seq_commit(s, 550);
    cache_seq_shrink(s);
    cache_seq_view(s, &v);
    assert_int_equal(v.n_segments, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(v.segments[i].pos0, pos0[i]);
        assert_int_equal(v.segments[i].n_tokens, n[i]);
    }
    assert_int_equal(v.n_blocks, 18);
    cache_seq_close(s);
    cache_check(c);
    cache_destroy(c);
}

static void growth_without_blocks_changes_nothing(void **state)
{
    struct cache *c = make_cache(4, true);
    struct cache_view v;
    struct prompt q;

    (void)state;
    make_prompt(&q, 6, 200);
    struct cache_seq *s;
    assert_ok(cache_seq_open(c, &q.p, 200, &s));
    assert_ok(cache_seq_grow(s, 100));
    assert_int_equal(cache_seq_grow(s, 100), ERR_NO_BLOCKS);
    cache_seq_view(s, &v);
    assert_int_equal(v.n_slots, 100);
    assert_ok(cache_seq_grow(s, 28));
    cache_seq_commit(s, 100);
    cache_seq_shrink(s);
    cache_seq_view(s, &v);
    assert_int_equal(v.n_slots, 100);
    assert_int_equal(v.segments[0].n_tokens, 100);
    cache_seq_close(s);
    cache_check(c);
    cache_destroy(c);
}

static void eviction_takes_the_deepest_of_the_oldest_first(void **state)
{
    struct cache *c = make_cache(24, true);
    static struct prompt old, fresh, third;
    struct cache_seq *s;

    (void)state;
    make_prompt(&old, 7, 513);
    make_prompt(&fresh, 8, 97);
    make_prompt(&third, 9, 161);
    cache_seq_close(run_whole(c, &old));   /* 16 named blocks: two segments */
    cache_seq_close(run_whole(c, &fresh)); /* 3 named blocks */
    cache_seq_close(run_whole(c, &third)); /* 5 named blocks and an open one: one must be evicted */
    assert_ok(cache_seq_open(c, &old.p, 513, &s));
    assert_int_equal(cache_match(s), 256); /* its second segment was evicted */
    cache_seq_close(s);
    assert_ok(cache_seq_open(c, &fresh.p, 97, &s));
    assert_int_equal(cache_match(s), 96);
    cache_seq_close(s);
    cache_destroy(c);
}

/* Random operations of many sequences; after each one a recount must agree (promise P2). */
static void states_add_up_after_random_events(void **state)
{
    enum { N_SEQS = 6, N_EVENTS = 20000 };
    struct cache *c = make_cache(40, true);
    static struct prompt prompts[N_SEQS];
    struct cache_seq *seqs[N_SEQS] = {0};
    uint32_t at[N_SEQS] = {0};

    (void)state;
    for (uint64_t e = 0; e < N_EVENTS; e++) {
        uint32_t r = rng_u32(11, e), i = r % N_SEQS;
        struct cache_view v;
        if (!seqs[i]) {
            /* few distinct prompts, so that sequences share blocks */
            make_prompt(&prompts[i], r >> 8 & 3, 50 + (r >> 12) % 500);
            assert_ok(cache_seq_open(c, &prompts[i].p, N_IDS_MAX, &seqs[i]));
            at[i] = cache_seq_attach(seqs[i], NULL);
        } else if ((r >> 8) % 7 == 0) {
            cache_seq_drop(seqs[i]);
            at[i] = cache_seq_attach(seqs[i], NULL);
        } else if ((r >> 8) % 11 == 0 || at[i] == prompts[i].p.n_ids) {
            cache_seq_close(seqs[i]);
            seqs[i] = NULL;
        } else {
            uint32_t left = prompts[i].p.n_ids - at[i], n = 1 + (r >> 12) % 90;
            n = n < left ? n : left;
            if (cache_seq_grow(seqs[i], n) == OK) {
                uint32_t n_commit = (r >> 20) % 3 ? n : n / 2;
                cache_seq_commit(seqs[i], n_commit);
                cache_seq_shrink(seqs[i]);
                at[i] += n_commit;
                cache_seq_view(seqs[i], &v);
                assert_int_equal(v.n_tokens, at[i]);
            }
        }
        cache_check(c);
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        cache_seq_close(seqs[i]);
    cache_reset(c);
    assert_int_equal(cache_n_available(c), 40);
    cache_check(c);
    cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_blocks_are_found_again),
        cmocka_unit_test(the_last_token_is_never_a_hit),
        cmocka_unit_test(without_prefix_caching_nothing_is_found),
        cmocka_unit_test(spans_cut_segments_and_blocks),
        cmocka_unit_test(growing_in_pieces_gives_the_same_view),
        cmocka_unit_test(two_that_compute_the_same_share_blocks_after_commit),
        cmocka_unit_test(a_sequence_continues_a_cached_tail),
        cmocka_unit_test(a_match_stops_at_the_limit_and_the_blocks_are_shared_all_the_same),
        cmocka_unit_test(shrinking_keeps_the_segments_that_have_tokens),
        cmocka_unit_test(growth_without_blocks_changes_nothing),
        cmocka_unit_test(eviction_takes_the_deepest_of_the_oldest_first),
        cmocka_unit_test(states_add_up_after_random_events),
    };
    struct device_config config = {.kind = DEVICE_REF,
                                   .n_threads = 1,
                                   .max_rows = 1,
                                   .max_k = 1,
                                   .max_heads = 1,
                                   .max_head_dim = 2};
    if (hash_init() != OK || device_open(&device, &config, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
