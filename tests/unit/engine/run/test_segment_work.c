/* test_segment_work.c - the order in which a GPU reads segments, and its groups. */
#include "tests/unit/test.h"

#include "engine/run/segment_work.h"

#define N_SEQS_MAX 12
#define N_SEGMENTS_MAX 400
#define PADDING 5

struct world {
    struct batch b;
    struct segment_work *work;
};

static void open_world(struct world *w)
{
    assert_int_equal(batch_create(&w->b, 200, N_SEQS_MAX, 200, N_SEGMENTS_MAX), OK);
    assert_int_equal(segment_work_create(&w->work, N_SEGMENTS_MAX), OK);
}

static void close_world(struct world *w)
{
    batch_destroy(&w->b);
    segment_work_destroy(w->work);
}

/* Append a segment of n_tokens behind the ones of the last sequence, from block `block` on. */
static void add_segment(struct batch *b, uint32_t n_tokens, uint32_t block)
{
    struct attn_seq *q = &b->seqs[b->n_seqs - 1];
    const struct attn_segment *last = &b->segments[b->n_segments - 1];
    uint32_t pos0 = q->n_segs > 0 ? last->pos0 + last->n_tokens : 0;

    b->segments[b->n_segments++] = (struct attn_segment){pos0, n_tokens, b->n_blocks};
    for (uint32_t t = 0; t < n_tokens; t += KV_BLOCK_TOKENS)
        b->blocks[b->n_blocks++] = block++;
    q->n_segs++;
    q->pos0 = pos0 + n_tokens - q->n_rows;
}

static void add_seq(struct batch *b, uint32_t n_rows)
{
    b->seqs[b->n_seqs++] =
        (struct attn_seq){.row0 = b->n_rows, .n_rows = n_rows, .seg0 = b->n_segments};
    b->n_rows += n_rows;
}

static bool has_same_tokens(const struct batch *b, uint32_t i, uint32_t k)
{
    const struct attn_segment *x = &b->segments[i], *y = &b->segments[k];

    if (x->pos0 != y->pos0 || x->n_tokens != y->n_tokens)
        return false;
    for (uint32_t t = 0; t < x->n_tokens; t += KV_BLOCK_TOKENS)
        if (b->blocks[x->block0 + t / KV_BLOCK_TOKENS] !=
            b->blocks[y->block0 + t / KV_BLOCK_TOKENS])
            return false;
    return true;
}

/* Check what attn_work promises of each entry; returns how many groups there are. */
static uint32_t check_list(struct world *w, uint32_t n_together)
{
    const struct batch *b = &w->b;
    uint32_t n = b->n_segments + PADDING, n_groups = 0, n_listed = 0, n_wanted = 0, left = 0;
    const struct attn_work *list = segment_work_list(w->work, b, n_together, n);
    bool is_listed[N_SEGMENTS_MAX] = {false};

    for (uint32_t i = 0; i < b->n_seqs; i++)
        n_wanted += b->seqs[i].n_rows == 1 ? b->seqs[i].n_segs : 0;
    for (uint32_t i = 0; i < n_wanted; i++) {
        const struct attn_work *x = &list[i];
        const struct attn_seq *q = &b->seqs[x->seq];

        assert_true(x->seq < b->n_seqs && q->n_rows == 1);
        assert_in_range(x->segment, q->seg0, q->seg0 + q->n_segs - 1);
        assert_false(is_listed[x->segment]);
        is_listed[x->segment] = true;
        n_listed++;
        if (x->n == 0) {
            const struct attn_segment *s = &b->segments[x->segment];

            assert_true(left > 0 && x[-1].seq < x->seq);
            assert_true(has_same_tokens(b, x[-1].segment, x->segment));
            assert_true(s->pos0 + s->n_tokens <= q->pos0);
            left--;
        } else {
            assert_int_equal(left, 0);
            assert_in_range(x->n, 1, n_together);
            left = x->n - 1;
            n_groups++;
        }
    }
    assert_int_equal(left, 0);
    assert_int_equal(n_listed, n_wanted);
    for (uint32_t i = n_wanted; i < n; i++)
        assert_int_equal(list[i].n, 0);
    return n_groups;
}

/* A prefix of three segments, then one of each sequence's own. */
static void add_behind_prefix(struct batch *b, uint32_t i)
{
    add_seq(b, 1);
    add_segment(b, 256, 0);
    add_segment(b, 256, 8);
    add_segment(b, 96, 16);
    add_segment(b, 40 + i, 100 + 2 * i);
}

static void sequences_behind_one_prefix_are_grouped(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    for (uint32_t n = 1; n <= 9; n++) {
        batch_reset(&w.b);
        for (uint32_t i = 0; i < n; i++)
            add_behind_prefix(&w.b, i);
        assert_int_equal(check_list(&w, 4), 3 * ((n + 3) / 4) + n);
        assert_int_equal(check_list(&w, 16), 3 + n);
        assert_int_equal(check_list(&w, 1), 4 * n);
    }
    close_world(&w);
}

/* A prefix that is cut elsewhere, other blocks, several rows, a row inside of the segment. */
static void only_the_same_segments_are_grouped(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    add_behind_prefix(&w.b, 0);
    add_seq(&w.b, 1);
    add_segment(&w.b, 128, 0);
    add_segment(&w.b, 128, 4);
    add_segment(&w.b, 10, 50);
    add_seq(&w.b, 1); /* the same first block only */
    add_segment(&w.b, 256, 0);
    w.b.blocks[w.b.n_blocks - 1] = 77;
    add_segment(&w.b, 10, 52);
    add_seq(&w.b, 5);
    add_segment(&w.b, 256, 0);
    add_segment(&w.b, 256, 8);
    add_segment(&w.b, 10, 54);
    add_seq(&w.b, 1); /* the row is the last token of the segment */
    add_segment(&w.b, 256, 0);
    add_seq(&w.b, 1); /* the same blocks at other positions */
    add_segment(&w.b, 256, 8);
    add_segment(&w.b, 10, 56);
    assert_int_equal(check_list(&w, 4), 4 + 3 + 2 + 1 + 2);
    close_world(&w);
}

static void random_steps_list_each_segment_once(void **state)
{
    struct world w;
    uint32_t seed = 1;

    (void)state;
    open_world(&w);
    for (uint32_t round = 0; round < 300; round++) {
        batch_reset(&w.b);
        for (uint32_t i = 0; i < N_SEQS_MAX; i++) {
            add_seq(&w.b, (seed = seed * 1664525 + 1013904223) >> 28 == 0 ? 3 : 1);
            for (uint32_t k = 0; k < 1 + (seed >> 8) % 4; k++) {
                seed = seed * 1664525 + 1013904223;
                add_segment(&w.b, 32 * (1 + (seed >> 20) % 2), 2 * ((seed >> 24) % 3));
            }
        }
        (void)check_list(&w, 1 + round % ATTN_WORK_MAX);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_behind_one_prefix_are_grouped),
        cmocka_unit_test(only_the_same_segments_are_grouped),
        cmocka_unit_test(random_steps_list_each_segment_once),
    };

    return cmocka_run_group_tests_name("engine_segment_work", tests, NULL, NULL);
}
