/* test_batch.c - the flat arrays of a step. */
#include "tests/unit/engine/run/forward_world.h"

#include "base/hash.h"

#define N_IDS 100

static uint32_t ids[N_IDS];

static void open_world(struct world *w)
{
    struct model_config m = world_llama();

    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 5 + 1) % m.n_vocab;
    world_open(w, &m, NULL, NULL);
}

/* Every row says its token, its position and the slot that the cache gives to that position. */
static void check_rows(const struct batch *b, uint32_t row0, const struct world_seq *s,
                       uint32_t pos0, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block, offset;

        cache_seq_slot(s->seq, pos0 + i, &block, &offset);
        assert_int_equal(b->ids[row0 + i], s->prompt.ids[pos0 + i]);
        assert_int_equal(b->pos[row0 + i], pos0 + i);
        assert_int_equal(b->slot_block[row0 + i], block);
        assert_int_equal(b->slot_offset[row0 + i], offset);
    }
}

/* The segments of sequence i cover all of its positions, and their blocks are the cache's. */
static void check_segments(const struct batch *b, uint32_t i, const struct world_seq *s)
{
    const struct attn_seq *q = &b->seqs[i];
    uint32_t pos = 0;

    for (uint32_t k = 0; k < q->n_segs; k++) {
        const struct attn_segment *g = &b->segments[q->seg0 + k];

        assert_int_equal(g->pos0, pos);
        for (uint32_t t = 0; t < g->n_tokens; t++, pos++) {
            uint32_t block, offset;
            cache_seq_slot(s->seq, pos, &block, &offset);
            assert_int_equal(b->blocks[g->block0 + t / KV_BLOCK_TOKENS], block);
            assert_int_equal(t % KV_BLOCK_TOKENS, offset);
        }
    }
    assert_int_equal(pos, q->pos0 + q->n_rows);
}

static void sequences_lie_one_behind_the_other(void **state)
{
    struct world_seq a, b;
    struct world w;

    (void)state;
    open_world(&w);
    world_seq_open(&w, &a, ids, 40);
    world_seq_open(&w, &b, ids + 3, 7);
    batch_reset(&w.batch);
    world_add(&w, &a, 0, 40, 1);
    world_add(&w, &b, 0, 7, 3);
    assert_int_equal(w.batch.n_rows, 47);
    assert_int_equal(w.batch.n_seqs, 2);
    assert_int_equal(w.batch.seqs[1].row0, 40);
    check_rows(&w.batch, 0, &a, 0, 40);
    check_rows(&w.batch, 40, &b, 0, 7);
    check_segments(&w.batch, 0, &a);
    check_segments(&w.batch, 1, &b);
    cache_seq_close(a.seq);
    cache_seq_close(b.seq);
    world_close(&w);
}

static void a_sequence_without_a_cache_lies_in_consecutive_blocks(void **state)
{
    struct batch b;

    (void)state;
    assert_ok(batch_create(&b, 100, 2, 3, 40));
    batch_add_blocks(&b, 0, 64, ids, 0, 5, 1);
    batch_add_blocks(&b, 7, 64, ids + 60, 60, 10, 2); /* 3 blocks in 2 segments */
    assert_int_equal(b.n_rows, 15);
    assert_int_equal(b.n_blocks, 1 + 3);
    assert_int_equal(b.seq_rows_most, 10);
    assert_int_equal(b.seq_segments_most, 2);
    const struct attn_segment want[] = {{0, 5, 0}, {0, 64, 1}, {64, 6, 3}};
    assert_int_equal(b.n_segments, 3);
    assert_memory_equal(b.segments, want, sizeof want);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(b.ids[5 + i], ids[60 + i]);
        assert_int_equal(b.pos[5 + i], 60 + i);
        assert_int_equal(b.slot_block[5 + i], i < 4 ? 8 : 9);
        assert_int_equal(b.slot_offset[5 + i], (60 + i) % KV_BLOCK_TOKENS);
    }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(b.blocks[1 + i], 7 + i);
    const uint32_t out[] = {4, 13, 14};
    assert_int_equal(b.n_out, 3);
    assert_memory_equal(b.out_rows, out, sizeof out);
    batch_destroy(&b);
}

static void the_last_rows_of_a_sequence_want_logits(void **state)
{
    struct world_seq a, b;
    struct world w;

    (void)state;
    open_world(&w);
    world_seq_open(&w, &a, ids, 10);
    world_seq_open(&w, &b, ids, 5);
    batch_reset(&w.batch);
    world_add(&w, &a, 0, 10, 0); /* a chunk in the middle of a prompt */
    world_add(&w, &b, 0, 5, 2);
    assert_int_equal(w.batch.n_out, 2);
    assert_int_equal(w.batch.out_rows[0], 13);
    assert_int_equal(w.batch.out_rows[1], 14);
    cache_seq_close(a.seq);
    cache_seq_close(b.seq);
    world_close(&w);
}

static void the_maxima_are_those_of_the_largest_sequences(void **state)
{
    struct world_seq a, b;
    struct world w;

    (void)state;
    open_world(&w);
    world_seq_open(&w, &a, ids, N_IDS);
    world_seq_open(&w, &b, ids, 9);
    batch_reset(&w.batch);
    world_add(&w, &a, 0, 50, 1);
    cache_seq_commit(a.seq, 50);
    batch_reset(&w.batch);
    assert_int_equal(w.batch.n_rows, 0);
    assert_int_equal(w.batch.seq_rows_most, 0);
    world_add(&w, &a, 50, 1, 1); /* few rows behind a long context */
    world_add(&w, &b, 0, 9, 1);
    check_rows(&w.batch, 0, &a, 50, 1);
    check_segments(&w.batch, 0, &a);
    check_segments(&w.batch, 1, &b);
    assert_int_equal(w.batch.seq_rows_most, 9);
    assert_int_equal(w.batch.seq_segments_most, w.batch.seqs[0].n_segs);
    cache_seq_close(a.seq);
    cache_seq_close(b.seq);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_lie_one_behind_the_other),
        cmocka_unit_test(a_sequence_without_a_cache_lies_in_consecutive_blocks),
        cmocka_unit_test(the_last_rows_of_a_sequence_want_logits),
        cmocka_unit_test(the_maxima_are_those_of_the_largest_sequences),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
