/* test_attention_shared.c - segments that several decoding sequences have: read once for a group of
 * them, with the bits of a call without groups. */
#include "tests/cuda/attention_batch.h"

/* The same call with and without groups of segments: all bits are equal. */
static void check_groups_of_segments(struct world *w, const struct part *parts, uint32_t n_parts)
{
    uint32_t n_shared = w->shape.n_heads / w->shape.n_kv_heads;
    const uint32_t sizes[] = {n_shared < 16 ? 16 / n_shared : 1, 2, ATTN_WORK_MAX};

    w->n_together = 0;
    struct result apart = run(w, parts, n_parts, false);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        w->n_together = sizes[i];
        struct result together = run(w, parts, n_parts, false);

        assert_same_bits("out", together.p.out, apart.p.out, apart.n_out * sizeof(float));
        assert_same_bits("lse", together.p.lse, apart.p.lse, apart.n_lse * sizeof(float));
        assert_true(together.bytes_once <= apart.bytes_once);
    }
}

/* Sequences of mixed lengths behind prefixes of mixed lengths; some have several rows, one has a
 * prefix of its own, and one is still inside of its prefix. */
static void check_shared(const struct shape *shape, uint32_t n_seqs, uint32_t max_heads)
{
    static const uint32_t trunk[] = {256, 40, 130, 64, 33};
    struct part parts[PARTS_MAX];
    static struct world w;

    open_world(&w, shape, 160, max_heads);
    add_sequence(&w, trunk, 5);
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t own[] = {1 + random_below(90), 1 + random_below(90)};
        uint32_t s = add_behind(&w, 0, i == 3 ? 0 : 5 - random_below(3), own, 1 + i % 2);
        uint32_t n_rows = i % 5 == 4 ? 2 + random_below(7) : 1;

        n_rows = n_rows < own[0] ? n_rows : 1;
        parts[i] = (struct part){s, w.seqs[s].n_tokens - n_rows, n_rows, 0};
        if (i == 6)
            parts[i].pos0 = 300;
    }
    check_groups_of_segments(&w, parts, n_seqs);
    cuda_test_free_all(w.d);
}

static void shared_segments_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n++)
        check_shared(&(struct shape){.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 1},
                     n, 32);
    for (uint32_t n_shared = 1; n_shared <= 17; n_shared = n_shared * 5 / 3 + 1)
        check_shared(&(struct shape){.dtype = n_shared % 2 ? DTYPE_BF16 : DTYPE_I8,
                                     .dim = 64,
                                     .n_heads = n_shared,
                                     .n_kv_heads = 1,
                                     .window = n_shared == 4 ? 140 : 0,
                                     .soft_cap = n_shared == 2 ? 3 : 0},
                     7, 32);
    check_shared(
        &(struct shape){
            .dtype = DTYPE_BF16, .dim = 16, .n_heads = 3, .n_kv_heads = 1, .window = 190},
        9, 32);
    check_shared(
        &(struct shape){
            .dtype = DTYPE_BF16, .dim = 256, .n_heads = 3, .n_kv_heads = 1, .window = 190},
        7, 32);
    /* room for the partial results of some sequences only */
    check_shared(&(struct shape){.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 2}, 9,
                 8192);
}

/* A value that is NaN, and that only the sequences see whose window reaches it. */
static void a_value_outside_of_a_window_spoils_no_other_sequence(void **state)
{
    static const struct shape shape = {
        .dtype = DTYPE_BF16, .dim = 16, .n_heads = 4, .n_kv_heads = 1, .window = 100};
    static const uint32_t trunk[] = {64, 64};
    struct part parts[4];
    static struct world w;

    (void)state;
    open_world(&w, &shape, 32, 32);
    add_sequence(&w, trunk, 2);
    for (uint32_t i = 0; i < 4; i++)
        parts[i] = (struct part){add_behind(&w, 0, 2, (uint32_t[]){10 + 15 * i}, 1),
                                 128 + 9 + 15 * i, 1, 0};
    dtype_store(DTYPE_BF16, kv_at(&w.pool, w.blocks[w.segs[0].block0 + 1], LAYER, 1, 0),
                kv_v_index(&w.pool, 3, 20), NAN); /* position 52 */
    check_groups_of_segments(&w, parts, 4);
    w.n_together = 4;
    struct result r = run(&w, parts, 4, false);
    for (uint32_t i = 0; i < 4; i++) /* the first key of sequence i is that of position 38 + 15 i */
        assert_int_equal(isnan(r.p.out[(size_t)i * 4 * 16 + 3]), i == 0);
    cuda_test_free_all(w.d);
}

/* 16 sequences behind a prefix of 4,096 tokens, four query heads for each KV head. */
static void a_shared_prefix_is_read_once_for_four_sequences(void **state)
{
    static const struct shape shape = {
        .dtype = DTYPE_BF16, .dim = 16, .n_heads = 4, .n_kv_heads = 1};
    enum { N = 16, TRUNK = 4096, BYTES = TRUNK * 16 * 2 * 2 };
    uint32_t trunk[TRUNK / KV_SEGMENT_TOKENS_MAX];
    static struct world w;
    struct part parts[N];
    uint64_t bytes[2];

    (void)state;
    if (!emulation_bytes_once)
        skip(); /* a real GPU counts no bytes */
    open_world(&w, &shape, TRUNK / KV_BLOCK_TOKENS + N, 32);
    for (uint32_t i = 0; i < TRUNK / KV_SEGMENT_TOKENS_MAX; i++)
        trunk[i] = KV_SEGMENT_TOKENS_MAX;
    add_sequence(&w, trunk, TRUNK / KV_SEGMENT_TOKENS_MAX);
    for (uint32_t i = 0; i < N; i++) {
        add_behind(&w, 0, TRUNK / KV_SEGMENT_TOKENS_MAX, (uint32_t[]){8}, 1);
        parts[i] = (struct part){1 + i, TRUNK + 7, 1, 0};
    }
    for (uint32_t i = 0; i < 2; i++) {
        w.n_together = i * 4;
        bytes[i] = run(&w, parts, N, true).bytes_once;
    }
    assert_true(bytes[0] > (uint64_t)N * BYTES);
    assert_int_equal(bytes[0] - bytes[1], (N - N / 4) * BYTES);
    print_message("bytes of K and V: %llu apart, %llu together\n", (unsigned long long)bytes[0],
                  (unsigned long long)bytes[1]);
    cuda_test_free_all(w.d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_segments_change_no_bit),
        cmocka_unit_test(a_value_outside_of_a_window_spoils_no_other_sequence),
        cmocka_unit_test(a_shared_prefix_is_read_once_for_four_sequences),
    };

    return cmocka_run_group_tests_name("cuda_attention_shared", tests, NULL, NULL);
}
