/* test_queries.c - sequences whose KV lies on another instance in part: the logits have the bits of
 * a run on one instance, and a lost query costs its own sequence only.
 *
 * Two KV memories stand for two instances. A fake of cache_seq_query() has attend.c compute the
 * answer from the other memory. The blocks of remote segments are poisoned here. */
#include "tests/unit/engine/run/forward_world.h"

#include <math.h>

#include "base/check.h"
#include "engine/run/attend.h"
#include "kernels/pack.h"

#define SEG_TOKENS 64
#define SEG_BLOCKS (SEG_TOKENS / KV_BLOCK_TOKENS)
#define N_SEGS_MAX 6
#define SEQ_BLOCKS (N_SEGS_MAX * SEG_BLOCKS)
#define N_SEQS 3
#define N_TOKENS (N_SEGS_MAX * SEG_TOKENS)

/* A sequence and what its peer has; a batch knows it as a struct cache_seq. */
struct fake_seq {
    uint32_t remote0, n_remote;
    uint32_t rows_max;
    bool is_asked;
    struct pool_attend asked;
    float *q, *tiles;
    uint32_t n_queries, fail_at; /* the query with this number fails; 0: none does */
    uint32_t lose_at;            /* the same of answers */
};

static struct {
    struct world w;
    struct kv_pool here, there;
    struct attend *attend;
    struct fake_seq seqs[N_SEQS];
    const void *blocks[N_SEQS][SEQ_BLOCKS]; /* there, of the remote segments */
    struct pool_segment segments[N_SEQS][N_SEGS_MAX];
    uint32_t ids[N_SEQS][N_TOKENS];
} t;

static struct cache_seq *handle(struct fake_seq *s)
{
    return (struct cache_seq *)(void *)s;
}

static struct fake_seq *fake_of(const struct cache_seq *s)
{
    return (struct fake_seq *)(void *)(uintptr_t)s;
}

static uint32_t fake_rows_max(const struct cache_seq *s)
{
    return fake_of(s)->rows_max;
}

static enum status fake_query(struct cache_seq *seq, uint32_t layer, const float *q,
                              size_t q_stride, uint32_t n_rows)
{
    struct fake_seq *s = fake_of(seq);
    uint32_t at = (uint32_t)(s - t.seqs);
    size_t width = (size_t)t.w.model.n_heads * t.w.model.head_dim;

    assert_true(!s->is_asked && n_rows > 0 && n_rows <= s->rows_max);
    assert_true(s->fail_at == 0 || s->n_queries < s->fail_at); /* no query after one that failed */
    assert_true(s->lose_at == 0 || s->n_queries < s->lose_at);
    if (++s->n_queries == s->fail_at)
        return ERR_UNAVAILABLE;
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(s->q + i * width, q + i * q_stride, width * sizeof *q);
    s->is_asked = true;
    s->asked = (struct pool_attend){.layer = layer,
                                    .n_rows = n_rows,
                                    .q = s->q,
                                    .blocks = t.blocks[at],
                                    .n_blocks = s->n_remote * SEG_BLOCKS,
                                    .segments = t.segments[at],
                                    .n_segments = s->n_remote,
                                    .tiles = s->tiles};
    return OK;
}

static enum status fake_answer(struct cache_seq *seq, const float **tiles)
{
    struct fake_seq *s = fake_of(seq);

    assert_true(s->is_asked);
    s->is_asked = false;
    if (s->n_queries == s->lose_at)
        return ERR_TIMEOUT;
    assert_ok(attend_tiles(t.attend, &s->asked));
    for (uint32_t i = 0; i < s->n_remote; i++)
        tiles[i] =
            s->tiles + (size_t)i * s->asked.n_rows * t.w.model.n_heads * (t.w.model.head_dim + 2);
    return OK;
}

static const struct query_calls calls = {fake_rows_max, fake_query, fake_answer};

static struct model_config model_of(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    struct model_config m = world_llama();

    m.n_heads = n_heads;
    m.n_kv_heads = n_kv_heads;
    m.head_dim = head_dim;
    return m;
}

static void make_pool(struct kv_pool *pool, enum dtype kv)
{
    *pool = (struct kv_pool){.layout = kv_layout_of(kv),
                             .n_blocks = N_SEQS * SEQ_BLOCKS,
                             .n_layers = t.w.model.n_layers,
                             .n_kv_heads = t.w.model.n_kv_heads,
                             .head_dim = t.w.model.head_dim};
    pool->base = calloc(pool->n_blocks, kv_block_bytes(pool));
    assert_non_null(pool->base);
}

static bool open_two(const struct model_config *m, const char *variant, uint32_t n_threads,
                     enum dtype kv)
{
    struct world_options o = {
        .cpu_variant = variant, .n_threads = n_threads, .kv = kv, .queries = &calls};
    size_t width = (size_t)m->n_heads * (m->head_dim + 2);

    memset(&t, 0, sizeof t);
    if (!world_open_with(&t.w, m, &o))
        return false;
    make_pool(&t.here, kv);
    make_pool(&t.there, kv);
    struct attend_config a = {
        .device = t.w.device, .model = &t.w.model, .layout = kv_layout_of(kv)};
    assert_ok(attend_create(&t.attend, &a));
    for (uint32_t s = 0; s < N_SEQS; s++) {
        t.seqs[s].rows_max = POOL_QUERY_ROWS_MAX;
        t.seqs[s].q = calloc(POOL_QUERY_ROWS_MAX * width, sizeof(float));
        t.seqs[s].tiles = calloc(N_SEGS_MAX * POOL_QUERY_ROWS_MAX * width, sizeof(float));
        assert_true(t.seqs[s].q && t.seqs[s].tiles);
        for (uint32_t i = 0; i < N_TOKENS; i++)
            t.ids[s][i] = (i * 7 + s * 13 + i * i) % m->n_vocab;
    }
    return true;
}

static void close_two(void)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        free(t.seqs[s].q);
        free(t.seqs[s].tiles);
    }
    attend_destroy(t.attend);
    free(t.here.base);
    free(t.there.base);
    world_close(&t.w);
}

/* Add rows [pos, pos + n) of a sequence; all want logits. */
static void add(uint32_t s, uint32_t pos, uint32_t n)
{
    struct batch *b = &t.w.batch;
    uint32_t first = b->n_blocks;

    batch_add_blocks(b, s * SEQ_BLOCKS, SEG_TOKENS, t.ids[s] + pos, pos, n, n);
    if (t.seqs[s].n_remote == 0)
        return;
    batch_add_query(b, handle(&t.seqs[s]), t.seqs[s].remote0, t.seqs[s].n_remote);
    for (uint32_t i = 0; i < t.seqs[s].n_remote * SEG_BLOCKS; i++)
        b->blocks[first + t.seqs[s].remote0 * SEG_BLOCKS + i] = CACHE_NO_BLOCK;
}

static float *forward(void)
{
    float *logits;

    assert_ok(forward_run(t.w.forward, &t.w.batch, &t.here, &logits));
    return logits;
}

/* Compute rows [pos, end) of a sequence, and keep the logits of those from `from` on. */
static void compute(uint32_t s, uint32_t pos, uint32_t end, uint32_t from, float *out)
{
    size_t width = t.w.model.n_vocab;

    for (uint32_t n; pos < end; pos += n) {
        n = end - pos < WORLD_N_ROWS ? end - pos : WORLD_N_ROWS;
        batch_reset(&t.w.batch);
        add(s, pos, n);
        const float *logits = forward();
        for (uint32_t i = 0; i < n; i++)
            if (pos + i >= from)
                memcpy(out + (pos + i - from) * width, logits + i * width, width * sizeof *out);
    }
}

/* Move segments [first, first + n) to the other memory, in other places, and poison them here. */
static void move_away(uint32_t s, uint32_t first, uint32_t n)
{
    size_t bytes = kv_block_bytes(&t.here);
    unsigned char *here = t.here.base, *there = t.there.base;

    t.seqs[s].remote0 = first;
    t.seqs[s].n_remote = n;
    for (uint32_t i = 0; i < n * SEG_BLOCKS; i++) {
        unsigned char *from = here + (s * SEQ_BLOCKS + first * SEG_BLOCKS + i) * bytes;
        unsigned char *to = there + (s * SEQ_BLOCKS + (i * 5 + 3) % SEQ_BLOCKS) * bytes;

        memcpy(to, from, bytes);
        enum dtype type = t.here.layout.scale_group ? DTYPE_F32 : t.here.layout.dtype;
        for (size_t k = 0; k < bytes / dtype_bytes(type); k++)
            dtype_store(type, from, k, NAN);
        t.blocks[s][i] = to;
    }
    for (uint32_t i = 0; i < n; i++)
        t.segments[s][i] = (struct pool_segment){i * SEG_BLOCKS, SEG_BLOCKS, SEG_TOKENS};
}

/* Compute all sequences to `len` here, then rows from `from` on again with some segments away: in
 * batches of `rows` rows of each sequence. Sequence 1 is an ordinary one; of sequence 2 n_away
 * segments behind the first one are away. */
static void check_split(const uint32_t *len, const uint32_t *from, uint32_t rows, uint32_t n_away)
{
    size_t width = t.w.model.n_vocab;
    float *want[N_SEQS];

    for (uint32_t s = 0; s < N_SEQS; s++) {
        want[s] = calloc((len[s] - from[s]) * width, sizeof(float));
        assert_non_null(want[s]);
        compute(s, 0, len[s], from[s], want[s]);
    }
    move_away(0, 0, from[0] / SEG_TOKENS);
    move_away(2, 1, n_away);
    uint32_t done[N_SEQS] = {from[0], from[1], from[2]};
    for (bool more = true; more;) {
        uint32_t n[N_SEQS], pos[N_SEQS], at = 0;

        batch_reset(&t.w.batch);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            uint32_t left = len[s] - done[s], room = WORLD_N_ROWS - t.w.batch.n_rows;

            n[s] = left < rows ? left : rows;
            n[s] = n[s] < room ? n[s] : room;
            pos[s] = done[s];
            if (n[s] > 0)
                add(s, done[s], n[s]);
            done[s] += n[s];
        }
        more = t.w.batch.n_rows > 0;
        const float *logits = more ? forward() : NULL;
        for (uint32_t s = 0; s < N_SEQS; s++) {
            if (n[s] > 0)
                assert_memory_equal(logits + at * width, want[s] + (pos[s] - from[s]) * width,
                                    n[s] * width * sizeof(float));
            at += n[s];
        }
        for (uint32_t i = 0; i < t.w.batch.n_queries; i++)
            assert_false(t.w.batch.queries[i].failed);
    }
    assert_true(t.seqs[0].n_queries > 0 && t.seqs[1].n_queries == 0 && t.seqs[2].n_queries > 0);
    for (uint32_t s = 0; s < N_SEQS; s++)
        free(want[s]);
}

static const enum dtype kv_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8};
static const char *const variants[] = {"amx",    "avx512bf16", "avx512", "avx2",
                                       "neonmm", "neondot",    "neon",   "portable"};

static void queries_give_the_bits_of_one_instance(void **state)
{
    static const uint32_t shapes[][3] = {{4, 2, 6}, {4, 2, 32}, {7, 1, 20}};
    static const uint32_t rows[] = {1, 5, 64};
    static const uint32_t len[] = {150, 90, 270}, from[] = {128, 70, 192};

    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variants); v++)
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
            for (size_t kv = 0; kv < ARRAY_SIZE(kv_types); kv++) {
                struct model_config m = model_of(shapes[i][0], shapes[i][1], shapes[i][2]);
                uint32_t r = rows[(v + i + kv) % ARRAY_SIZE(rows)];

                if (!open_two(&m, variants[v], 1 + (uint32_t)kv % 3, kv_types[kv]))
                    break;
                check_split(len, from, r, 2);
                close_two();
            }
}

/* Long chunks, which are sent in pieces: by the bound of a query, here 3 rows. */
static void rows_beyond_a_querys_bound_follow_in_further_queries(void **state)
{
    static const uint32_t len[] = {180, 90, 300}, from[] = {128, 70, 256};
    struct model_config m = model_of(4, 2, 8);

    (void)state;
    assert_true(open_two(&m, "portable", 2, DTYPE_BF16));
    t.seqs[0].rows_max = 3;
    t.seqs[2].rows_max = 7;
    check_split(len, from, 21, 3);
    assert_true(t.seqs[0].n_queries >= 52 / 3 * m.n_layers);
    close_two();
}

/* The tiles of 62 rows and 5 local segments do not fit: heads are many and wide. */
static void rows_beyond_the_memory_for_tiles_follow_in_further_waves(void **state)
{
    static const uint32_t len[] = {129, 71, 330}, from[] = {128, 70, 268};
    struct model_config m = model_of(64, 1, 256);
    uint32_t n_tiles_max = QUERIES_TILE_BYTES / (64 * 258 * sizeof(float));

    (void)state;
    m.n_layers = 1;
    assert_true(n_tiles_max < 5 * 62);
    assert_true(open_two(&m, "portable", 2, DTYPE_F16));
    check_split(len, from, 62, 1);
    assert_int_equal(t.seqs[2].n_queries, 2);
    close_two();
}

/* One batch: sequence 0 loses a query, sequences 1 and 2 have the bits that they should have. */
static void check_lost(uint32_t fail_at, uint32_t lose_at, uint32_t rows_max)
{
    static const uint32_t len[] = {150, 90, 200}, from[] = {128, 70, 192};
    size_t width = t.w.model.n_vocab;
    float *want = calloc(WORLD_N_ROWS * width, sizeof *want);

    assert_non_null(want);
    for (uint32_t s = 0, at = 0; s < N_SEQS; at += len[s] - from[s], s++)
        compute(s, 0, len[s], from[s], want + at * width);
    move_away(0, 0, 2);
    move_away(2, 0, 3);
    t.seqs[0].fail_at = fail_at;
    t.seqs[0].lose_at = lose_at;
    t.seqs[0].rows_max = rows_max;
    batch_reset(&t.w.batch);
    for (uint32_t s = 0; s < N_SEQS; s++)
        add(s, from[s], len[s] - from[s]);
    const float *logits = forward();
    uint32_t n0 = len[0] - from[0], n = t.w.batch.n_rows;
    assert_true(batch_has_failed(&t.w.batch, 0));
    assert_true(!batch_has_failed(&t.w.batch, 1) && !batch_has_failed(&t.w.batch, 2));
    assert_memory_equal(logits + n0 * width, want + n0 * width, (n - n0) * width * sizeof *want);
    for (size_t i = 0; i < n0 * width; i++)
        assert_true(isfinite(logits[i]));
    assert_int_equal(t.seqs[0].n_queries, fail_at ? fail_at : lose_at);
    /* The next step begins anew, without what the peer had: all of it is computed. */
    t.seqs[0].n_remote = t.seqs[0].fail_at = t.seqs[0].lose_at = 0;
    float *again = calloc(n0 * width, sizeof *again);
    assert_non_null(again);
    compute(0, 0, len[0], from[0], again);
    assert_memory_equal(again, want, n0 * width * sizeof *want);
    free(again);
    free(want);
}

static void a_lost_query_costs_its_own_sequence_only(void **state)
{
    struct model_config m = model_of(4, 2, 8);

    (void)state;
    m.n_layers = 3;
    for (uint32_t i = 1; i <= 7; i++) { /* in each layer; with pieces of 8 rows in their midst */
        for (uint32_t lose = 0; lose < 2; lose++) {
            if (!open_two(&m, "portable", 2, DTYPE_BF16))
                fail();
            check_lost(lose ? 0 : i, lose ? i : 0, i <= 3 ? 64 : 8);
            close_two();
        }
    }
}

static void a_sequence_that_cannot_query_fails(void **state)
{
    struct model_config m = model_of(4, 2, 8);

    (void)state;
    assert_true(open_two(&m, "portable", 1, DTYPE_F32));
    static float logits[N_TOKENS * 50];
    compute(0, 0, 130, 0, logits);
    move_away(0, 0, 2);
    t.seqs[0].rows_max = 0;
    batch_reset(&t.w.batch);
    add(0, 128, 2);
    (void)forward();
    assert_true(batch_has_failed(&t.w.batch, 0));
    close_two();
}

static void the_reference_device_sends_and_answers_none(void **state)
{
    struct model_config m = world_llama();
    struct attend *a;
    struct queries *q;
    struct world w;

    (void)state;
    world_open(&w, &m, NULL, NULL);
    assert_false(attend_is_possible(w.device, &m));
    struct attend_config ac = {.device = w.device, .model = &w.model};
    assert_int_equal(attend_create(&a, &ac), ERR_UNSUPPORTED);
    struct queries_config qc = {.device = w.device, .ops = device_ops(w.device), .calls = &calls};
    assert_int_equal(queries_create(&q, &qc), ERR_UNSUPPORTED);
    assert_true(!a && !q);
    world_close(&w);
}

static void windows_and_soft_caps_have_no_queries(void **state)
{
    struct model_config m = world_llama(), other = m;

    (void)state;
    assert_true(open_two(&m, "portable", 1, DTYPE_F32));
    assert_true(attend_is_possible(t.w.device, &m));
    other.window = 100;
    assert_false(attend_is_possible(t.w.device, &other));
    other = m;
    other.attention_cap = 50;
    assert_false(attend_is_possible(t.w.device, &other));
    close_two();
}

/* --- what attend refuses --- */

static void queries_of_other_shapes_are_refused(void **state)
{
    struct model_config m = model_of(4, 2, 8);
    float q[32] = {0}, tiles[2 * 40];

    (void)state;
    assert_true(open_two(&m, "portable", 1, DTYPE_F32));
    const unsigned char *base = t.there.base;
    size_t bytes = kv_block_bytes(&t.there);
    const void *blocks[] = {base + 5 * bytes, base, base + 2 * bytes};
    struct pool_segment segments[] = {{0, 2, 40}, {2, 1, 32}};
    const struct pool_attend good = {.n_rows = 1,
                                     .q = q,
                                     .blocks = blocks,
                                     .n_blocks = 3,
                                     .segments = segments,
                                     .n_segments = 2,
                                     .tiles = tiles};
    struct pool_attend bad = good;
    assert_ok(attend_tiles(t.attend, &good));
    bad.layer = m.n_layers;
    assert_int_equal(attend_tiles(t.attend, &bad), ERR_INVALID);
    bad = good;
    bad.n_rows = POOL_QUERY_ROWS_MAX + 1;
    assert_int_equal(attend_tiles(t.attend, &bad), ERR_INVALID);
    bad = good;
    bad.n_blocks = 2;
    assert_int_equal(attend_tiles(t.attend, &bad), ERR_INVALID);
    bad.n_blocks = POOL_PATH_MAX + 1;
    assert_int_equal(attend_tiles(t.attend, &bad), ERR_INVALID);
    bad = good;
    bad.n_segments = POOL_QUERY_SEGMENTS_MAX + 1;
    assert_int_equal(attend_tiles(t.attend, &bad), ERR_INVALID);
    static const struct pool_segment wrong[] = {{0, 2, 32}, {0, 2, 65},           {0, 1, 0},
                                                {2, 2, 64}, {0xffffffffu, 2, 40}, {0, 9, 257}};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        segments[0] = wrong[i];
        assert_int_equal(attend_tiles(t.attend, &good), ERR_INVALID);
    }
    segments[0] = (struct pool_segment){0, 2, 40};
    blocks[1] = base + 4; /* not whole blocks apart */
    assert_int_equal(attend_tiles(t.attend, &good), ERR_INVALID);
    blocks[1] = base;
    bad = good;
    bad.n_rows = 0;
    assert_ok(attend_tiles(t.attend, &bad));
    bad = good;
    bad.n_segments = bad.n_blocks = 0;
    assert_ok(attend_tiles(t.attend, &bad));
    close_two();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_give_the_bits_of_one_instance),
        cmocka_unit_test(rows_beyond_a_querys_bound_follow_in_further_queries),
        cmocka_unit_test(rows_beyond_the_memory_for_tiles_follow_in_further_waves),
        cmocka_unit_test(a_lost_query_costs_its_own_sequence_only),
        cmocka_unit_test(a_sequence_that_cannot_query_fails),
        cmocka_unit_test(the_reference_device_sends_and_answers_none),
        cmocka_unit_test(windows_and_soft_caps_have_no_queries),
        cmocka_unit_test(queries_of_other_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
