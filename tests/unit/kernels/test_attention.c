/* test_attention.c - attention: compared with the reference, and the same bits for a row whatever
 * the chunks, the batch, the number of threads and the content of unwritten slots. */
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

#define N_SEQS_MAX 4
#define N_LAYERS 2
#define LAYER 1

/* A few sequences with keys, values and queries for all positions; the test fills the pool as it
 * proceeds. */
struct world {
    enum dtype dtype;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t dim;
    uint32_t n_seqs;
    uint32_t len[N_SEQS_MAX];
    uint32_t n_segs[N_SEQS_MAX];
    uint32_t seg_len[N_SEQS_MAX][64]; /* the last one may reach behind len */
    uint32_t block0[N_SEQS_MAX][64];
    uint32_t *blocks;
    uint32_t n_blocks;
    float *q[N_SEQS_MAX]; /* [len][H][d] */
    float *k[N_SEQS_MAX]; /* [len][G][d] */
    float *v[N_SEQS_MAX];
    struct kv_pool pool;
};

/* Segments of seg_tokens, or of random lengths when that is 0. */
static void world_init(struct world *w, uint32_t seg_tokens)
{
    uint32_t max_blocks = 0;

    for (uint32_t s = 0; s < w->n_seqs; s++) {
        w->n_segs[s] = 0;
        for (uint32_t at = 0; at < w->len[s]; w->n_segs[s]++) {
            uint32_t n = seg_tokens ? seg_tokens : 1 + rng_below(KV_SEGMENT_TOKENS_MAX);

            w->seg_len[s][w->n_segs[s]] = n;
            w->block0[s][w->n_segs[s]] = max_blocks;
            max_blocks += (n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
            at += n;
        }
        w->q[s] = random_floats((size_t)w->len[s] * w->n_heads * w->dim);
        w->k[s] = random_floats((size_t)w->len[s] * w->n_kv_heads * w->dim);
        w->v[s] = random_floats((size_t)w->len[s] * w->n_kv_heads * w->dim);
    }
    w->n_blocks = max_blocks;
    w->blocks = test_alloc(max_blocks * sizeof(*w->blocks));
    for (uint32_t i = 0; i < max_blocks; i++) { /* a random permutation */
        uint32_t j = rng_below(i + 1);

        w->blocks[i] = w->blocks[j];
        w->blocks[j] = i;
    }
    w->pool = (struct kv_pool){.layout = kv_layout_of(w->dtype),
                               .n_blocks = max_blocks,
                               .n_layers = N_LAYERS,
                               .n_kv_heads = w->n_kv_heads,
                               .head_dim = w->dim};
    w->pool.base = test_alloc(max_blocks * kv_block_bytes(&w->pool));
}

static void world_fini(struct world *w)
{
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        free(w->q[s]);
        free(w->k[s]);
        free(w->v[s]);
    }
    free(w->blocks);
    free(w->pool.base);
}

static size_t world_rows(const struct world *w)
{
    size_t n = 0;

    for (uint32_t s = 0; s < w->n_seqs; s++)
        n += w->len[s];
    return n;
}

static size_t world_outputs(const struct world *w)
{
    return world_rows(w) * w->n_heads * w->dim;
}

/* Fill every slot with a value that must not be read, such as NaN or infinity. */
static void world_poison(struct world *w, float value)
{
    size_t n = w->n_blocks * kv_block_bytes(&w->pool) / dtype_bytes(w->dtype);

    for (size_t i = 0; i < n; i++)
        dtype_store(w->dtype, w->pool.base, i, value);
}

/* Write positions [pos0, end) of a sequence into the cache, as rope_kv does. */
static void world_write(struct world *w, uint32_t s, uint32_t pos0, uint32_t end)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < w->n_segs[s]; at += w->seg_len[s][i++]) {
        for (uint32_t j = 0; j < w->seg_len[s][i]; j++) {
            uint32_t pos = at + j, off = j % KV_BLOCK_TOKENS;
            uint32_t block = w->blocks[w->block0[s][i] + j / KV_BLOCK_TOKENS];

            if (pos < pos0 || pos >= end)
                continue;
            for (uint32_t g = 0; g < w->n_kv_heads; g++) {
                for (uint32_t e = 0; e < w->dim; e++) {
                    size_t src = ((size_t)pos * w->n_kv_heads + g) * w->dim + e;

                    dtype_store(w->dtype, kv_at(&w->pool, block, LAYER, 0, g),
                                kv_k_index(&w->pool, e, off), w->k[s][src]);
                    dtype_store(w->dtype, kv_at(&w->pool, block, LAYER, 1, g),
                                kv_v_index(&w->pool, e, off), w->v[s][src]);
                }
            }
        }
    }
}

/* One call under construction. */
struct call {
    struct attn_seq seqs[N_SEQS_MAX];
    struct attn_segment segs[N_SEQS_MAX * 64];
    uint32_t n_seqs, n_segs, n_rows;
    uint32_t window;
    float soft_cap;
    float *q;
    float *out;
    float *lse;
    size_t width, q_stride;
};

static void call_init(struct call *c, const struct world *w, size_t rows)
{
    c->width = (size_t)w->n_heads * w->dim;
    c->q_stride = c->width + 5;
    c->n_seqs = c->n_segs = c->n_rows = c->window = 0;
    c->soft_cap = 0;
    c->lse = NULL;
    c->q = test_alloc(rows * c->q_stride * sizeof(float));
    c->out = test_alloc(rows * c->width * sizeof(float));
}

/* Rows of positions [pos0, end) of sequence s join the call. */
static void call_add(struct call *c, const struct world *w, uint32_t s, uint32_t pos0, uint32_t end)
{
    struct attn_seq *seq = &c->seqs[c->n_seqs++];
    uint32_t at = 0;

    *seq =
        (struct attn_seq){.row0 = c->n_rows, .n_rows = end - pos0, .pos0 = pos0, .seg0 = c->n_segs};
    for (uint32_t i = 0; at < end; at += w->seg_len[s][i++]) {
        uint32_t n = w->seg_len[s][i] < end - at ? w->seg_len[s][i] : end - at;

        c->segs[c->n_segs++] =
            (struct attn_segment){.pos0 = at, .n_tokens = n, .block0 = w->block0[s][i]};
        seq->n_segs++;
    }
    for (uint32_t pos = pos0; pos < end; pos++)
        memcpy(c->q + c->n_rows++ * c->q_stride, w->q[s] + pos * c->width,
               c->width * sizeof(float));
}

/* On d, or by the reference (d NULL). */
static void call_run(struct call *c, const struct world *w, struct device *d)
{
    struct attention_params p = {
        .n_seqs = c->n_seqs,
        .n_heads = w->n_heads,
        .layer = LAYER,
        .window = c->window,
        .scale = 1.0f / sqrtf((float)w->dim),
        .soft_cap = c->soft_cap,
        .q = c->q,
        .q_stride = c->q_stride,
        .out = c->out,
        .lse = c->lse,
        .seqs = c->seqs,
        .segments = c->segs,
        .blocks = w->blocks,
        .pool = w->pool,
    };

    if (d)
        assert_int_equal(device_ops(d)->attention(d, NULL, &p), OK);
    else
        assert_int_equal(ref_attention(NULL, NULL, &p), OK);
}

static void call_fini(struct call *c)
{
    free(c->q);
    free(c->out);
}

/* All rows of all sequences in one call; the caller frees the result. */
static float *run_whole(struct world *w, struct device *d)
{
    struct call c;

    call_init(&c, w, world_rows(w));
    for (uint32_t s = 0; s < w->n_seqs; s++)
        call_add(&c, w, s, 0, w->len[s]);
    call_run(&c, w, d);
    free(c.q);
    return c.out;
}

/* Compute the sequences one after another in chunks of `chunk` rows. Each chunk is written just
 * before its call, and the rest of the pool is poisoned. With `mixed`, a call has chunks of all
 * sequences, of different sizes. */
static float *run_chunked(struct world *w, struct device *d, uint32_t chunk, bool mixed)
{
    size_t width = (size_t)w->n_heads * w->dim, rows = 0;
    uint32_t done[N_SEQS_MAX] = {0}, first[N_SEQS_MAX];
    uint32_t s_of[N_SEQS_MAX], pos_of[N_SEQS_MAX];
    bool more = true;

    for (uint32_t s = 0; s < w->n_seqs; s++) {
        first[s] = (uint32_t)rows;
        rows += w->len[s];
    }
    size_t call_rows = (size_t)chunk * N_SEQS_MAX < rows ? chunk * N_SEQS_MAX : rows;
    float *out = test_alloc(rows * width * sizeof(*out));
    while (more) {
        struct call c;

        call_init(&c, w, call_rows);
        for (uint32_t s = w->n_seqs; s-- > 0 && (mixed || c.n_seqs == 0);) {
            uint32_t n = mixed ? 1 + rng_below(chunk) : chunk;
            uint32_t end = done[s] + n < w->len[s] ? done[s] + n : w->len[s];

            if (done[s] == end)
                continue;
            world_write(w, s, done[s], end);
            s_of[c.n_seqs] = s;
            pos_of[c.n_seqs] = done[s];
            call_add(&c, w, s, done[s], end);
            done[s] = end;
        }
        more = c.n_seqs > 0;
        call_run(&c, w, d);
        for (uint32_t i = 0; i < c.n_seqs; i++)
            memcpy(out + (first[s_of[i]] + pos_of[i]) * width, c.out + c.seqs[i].row0 * width,
                   c.seqs[i].n_rows * width * sizeof(*out));
        call_fini(&c);
    }
    return out;
}

static void write_all(struct world *w)
{
    for (uint32_t s = 0; s < w->n_seqs; s++)
        world_write(w, s, 0, w->len[s]);
}

/* Tiles take queries and probabilities in bf16, with relative errors up to 2^-9. A score of about
 * sqrt(d) * |q| |k| / sqrt(d), with outliers up to 10, then errs by some 0.1; values are up to
 * 10. */
static void check_world(const char *what, struct device *d, const struct world *w, const float *got,
                        const float *want)
{
    bool rounds =
        strcmp(device_ops(d)->name, "cpu-amx") == 0 && w->dtype == DTYPE_BF16 && w->dim % 32 == 0;

    if (rounds)
        check_near(what, got, want, world_outputs(w), 0.1, 0.01, 1e-4);
    else
        check_close(what, got, want, world_outputs(w), 2e-5, 2e-5);
}

static void check_against_ref(struct device *d, struct world *w, uint32_t seg_tokens)
{
    char what[128];

    world_init(w, seg_tokens);
    world_poison(w, NAN);
    write_all(w);
    float *want = run_whole(w, NULL);
    float *got = run_whole(w, d);
    snprintf(what, sizeof(what), "%s dtype %d heads %u/%u dim %u len %u", device_ops(d)->name,
             w->dtype, w->n_heads, w->n_kv_heads, w->dim, w->len[0]);
    check_world(what, d, w, got, want);
    free(want);
    free(got);
    world_fini(w);
}

static void head_sizes_on(struct device *d)
{
    static const uint32_t dims[] = {2, 8, 16, 20, 34, 64, 80, 96, 128, 256};

    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
            struct world w = {.dtype = (enum dtype)t,
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .dim = dims[i],
                              .n_seqs = 2,
                              .len = {67, 1}};

            check_against_ref(d, &w, 0);
        }
}

static void equals_reference_for_every_head_size(void **state)
{
    (void)state;
    each_variant(1, head_sizes_on);
    each_variant(3, head_sizes_on);
}

static void groupings_on(struct device *d)
{
    static const uint32_t heads[][2] = {{1, 1}, {2, 2}, {3, 3}, {6, 2},  {8, 2},  {5, 1},  {12, 2},
                                        {7, 1}, {8, 1}, {9, 1}, {11, 1}, {12, 1}, {14, 1}, {50, 1}};

    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
            struct world w = {.dtype = (enum dtype)t,
                              .n_heads = heads[i][0],
                              .n_kv_heads = heads[i][1],
                              .dim = 20,
                              .n_seqs = 1,
                              .len = {39}};

            check_against_ref(d, &w, 30);
            w.dim = 32;
            check_against_ref(d, &w, 30);
        }
}

static void equals_reference_for_every_sharing_of_kv_heads(void **state)
{
    (void)state;
    each_variant(2, groupings_on);
}

static void lengths_on(struct device *d)
{
    static const uint32_t lens[] = {1, 2, 31, 32, 33, 255, 256, 257, 300};

    for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
        struct world w = {.dtype = DTYPE_BF16,
                          .n_heads = 2,
                          .n_kv_heads = 1,
                          .dim = 16,
                          .n_seqs = 1,
                          .len = {lens[i]}};

        check_against_ref(d, &w, i % 2 ? 0 : KV_SEGMENT_TOKENS_MAX);
        w.dtype = DTYPE_BF16;
        w.dim = 64;
        check_against_ref(d, &w, i % 2 ? 0 : KV_SEGMENT_TOKENS_MAX);
    }
}

static void equals_reference_around_tile_edges(void **state)
{
    (void)state;
    each_variant(2, lengths_on);
}

/* Scores of some hundreds. The maximum of one tile is far above that of an earlier or later tile,
 * so that a merge with the wrong maximum overflows. */
static void large_scores_on(struct device *d)
{
    struct world w = {
        .dtype = DTYPE_F32, .n_heads = 4, .n_kv_heads = 2, .dim = 16, .n_seqs = 1, .len = {150}};

    world_init(&w, 32);
    for (size_t i = 0; i < world_outputs(&w); i++)
        w.q[0][i] *= 300;
    write_all(&w);
    float *want = run_whole(&w, NULL);
    float *got = run_whole(&w, d);
    check_close("large scores", got, want, world_outputs(&w), 1e-3, 1e-3);
    free(want);
    free(got);
    world_fini(&w);
}

static void equals_reference_where_one_tile_dwarfs_another(void **state)
{
    (void)state;
    each_variant(1, large_scores_on);
}

static void nothing_on(struct device *d)
{
    struct attention_params p = {
        .n_heads = 2,
        .pool = {.layout = kv_layout_of(DTYPE_F32), .n_layers = 1, .n_kv_heads = 1, .head_dim = 8}};

    assert_int_equal(device_ops(d)->attention(d, NULL, &p), OK);
}

static void no_rows_do_nothing(void **state)
{
    (void)state;
    each_variant(2, nothing_on);
}

/* In chunks of 1, 7, 64 and all rows, alone and mixed, on a poisoned pool: all equal `whole`. */
static void check_chunks(struct device *d, struct world *w, const float *whole)
{
    static const uint32_t chunks[] = {1, 7, 64, 4096};

    for (size_t i = 0; i < 2 * ARRAY_SIZE(chunks); i++) {
        world_poison(w, i % 2 ? NAN : -INFINITY);
        float *out = run_chunked(w, d, chunks[i / 2], i % 2);

        check_same(i % 2 ? "mixed chunks" : "chunks", out, whole, world_outputs(w));
        free(out);
    }
}

static void check_invariance(const char *variant, struct world *w, uint32_t seg_tokens)
{
    float *whole = NULL;

    rng_seed(11);
    world_init(w, seg_tokens);
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        struct device *d = open_device(DEVICE_CPU, variant, n_threads);

        if (!d)
            break;
        world_poison(w, n_threads == 1 ? 0 : INFINITY);
        write_all(w);
        float *out = run_whole(w, d);
        if (n_threads == 1) {
            whole = out;
        } else {
            check_same("threads", out, whole, world_outputs(w));
            free(out);
        }
        if (n_threads < 3)
            check_chunks(d, w, whole);
        device_close(d);
    }
    free(whole);
    world_fini(w);
}

static void a_row_has_the_same_bits_in_any_chunk_batch_and_thread_count(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (int t = 0; t < DTYPE_FLOATS; t++) {
            struct world w = {.dtype = (enum dtype)t,
                              .n_heads = 6,
                              .n_kv_heads = 2,
                              .dim = 20,
                              .n_seqs = 3,
                              .len = {300, 70, 1}};

            check_invariance(variant_names[v], &w, 0);
            w.len[0] = 390;
            w.n_heads = 4;
            w.dim = 32;
            check_invariance(variant_names[v], &w, KV_SEGMENT_TOKENS_MAX);
        }
}

/* A key or value that overflowed spoils the rows that see it, and no earlier one. */
static void spoilt_on(struct device *d)
{
    for (int t = 0; t < 2 * DTYPE_FLOATS; t++) {
        struct world w = {.dtype = (enum dtype)(t / 2),
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .dim = t % 2 ? 36 : 64,
                          .n_seqs = 1,
                          .len = {90}};

        world_init(&w, 0);
        w.v[0][((size_t)37 * 2 + 1) * w.dim + 3] = INFINITY;
        w.k[0][((size_t)61 * 2 + 0) * w.dim + 5] = NAN;
        write_all(&w);
        float *want = run_whole(&w, NULL);
        float *whole = run_whole(&w, d);
        world_poison(&w, NAN);
        float *ones = run_chunked(&w, d, 1, false);
        check_world("spoilt", d, &w, whole, want);
        check_same("spoilt", ones, whole, world_outputs(&w));
        free(want);
        free(whole);
        free(ones);
        world_fini(&w);
    }
}

static void inf_and_nan_reach_only_rows_that_see_them(void **state)
{
    (void)state;
    each_variant(2, spoilt_on);
}

/* Of one sequence all rows, with the segments whose number has this parity only. */
static void call_half(struct call *c, const struct world *w, uint32_t odd, float *lse)
{
    uint32_t n = 0;

    call_init(c, w, w->len[0]);
    call_add(c, w, 0, 0, w->len[0]);
    for (uint32_t i = 0; i < c->seqs[0].n_segs; i++)
        if (i % 2 == odd)
            c->segs[n++] = c->segs[i];
    c->seqs[0].n_segs = n;
    c->lse = lse;
}

/* Attention over two halves of the keys, merged, equals attention over all. The first rows have no
 * keys in the second half. */
static void parts_on(struct device *d)
{
    enum { LEN = 150, H = 4 };
    struct world w = {
        .dtype = DTYPE_BF16, .n_heads = H, .n_kv_heads = 2, .dim = 64, .n_seqs = 1, .len = {LEN}};
    size_t n_lse = (size_t)LEN * H, n = n_lse * w.dim;
    float *parts = test_alloc(2 * n * sizeof(float)), *lse = test_alloc(4 * n_lse * sizeof(float));
    float *got = test_alloc(n * sizeof(float)), *both = test_alloc(n_lse * sizeof(float));
    struct call whole, half;

    world_init(&w, 40);
    world_poison(&w, NAN);
    write_all(&w);
    for (uint32_t odd = 0; odd < 2; odd++) {
        call_half(&half, &w, odd, lse + odd * n_lse);
        call_run(&half, &w, d);
        memcpy(parts + odd * n, half.out, n * sizeof(float));
        half.lse = lse + (2 + odd) * n_lse;
        call_run(&half, &w, NULL);
        check_world("a part", d, &w, parts + odd * n, half.out);
        check_near("its lse", lse + odd * n_lse, half.lse, n_lse, 0.1, 0.01, 1e-4);
        call_fini(&half);
    }
    assert_true(isinf(lse[n_lse]) && lse[n_lse] < 0 && parts[n] == 0);
    struct merge_params m = {.n_rows = LEN,
                             .n_heads = H,
                             .head_dim = w.dim,
                             .n_parts = 2,
                             .parts = parts,
                             .lse = lse,
                             .out = got,
                             .out_lse = both};

    parts[n] = NAN; /* of a row without keys: counts nothing */
    assert_int_equal(device_ops(d)->merge(d, NULL, &m), OK);
    call_init(&whole, &w, LEN);
    call_add(&whole, &w, 0, 0, LEN);
    whole.lse = lse;
    call_run(&whole, &w, d);
    check_near("joined", got, whole.out, n, 0.02, 0.01, 1e-4);
    check_near("joined lse", both, lse, n_lse, 1e-3, 1e-4, 1e-6);
    call_fini(&whole);
    world_fini(&w);
    free(parts);
    free(lse);
    free(got);
    free(both);
}

static void parts_joined_by_their_lse_are_the_whole(void **state)
{
    (void)state;
    each_variant(1, parts_on);
    each_variant(3, parts_on);
    struct device *ref = open_device(DEVICE_REF, NULL, 1);

    parts_on(ref);
    device_close(ref);
}

/* With a window of n, a row has the same result as in a sequence of only its last n keys at the
 * same positions. Earlier keys may hold any values. */
static void windows_on(struct device *d)
{
    enum { LEN = 70, WINDOW = 33 };
    struct world w = {
        .dtype = DTYPE_F32, .n_heads = 2, .n_kv_heads = 1, .dim = 16, .n_seqs = 1, .len = {LEN}};
    struct call c, cut;

    world_init(&w, 32);
    world_poison(&w, NAN);
    world_write(&w, 0, LEN - WINDOW, LEN);
    call_init(&c, &w, 1);
    call_add(&c, &w, 0, LEN - 1, LEN);
    c.window = WINDOW;
    call_run(&c, &w, d);
    call_init(&cut, &w, 1);
    call_add(&cut, &w, 0, LEN - 1, LEN);
    cut.seqs[0].seg0 = 1; /* of keys 32 .. 69 alone ... */
    cut.seqs[0].n_segs = 2;
    cut.window = WINDOW; /* ... 37 .. 69 */
    call_run(&cut, &w, NULL);
    check_close("window", c.out, cut.out, c.width, 1e-6, 1e-6);
    for (size_t i = 0; i < c.width; i++)
        assert_true(isfinite(c.out[i]));
    call_fini(&c);
    call_fini(&cut);
    world_fini(&w);
}

static void a_window_hides_what_lies_before_it(void **state)
{
    (void)state;
    each_variant(1, windows_on);
}

/* A cap far above all scores changes next to nothing; one near zero makes all keys count alike. */
static void caps_on(struct device *d)
{
    struct world w = {
        .dtype = DTYPE_F32, .n_heads = 1, .n_kv_heads = 1, .dim = 8, .n_seqs = 1, .len = {45}};
    struct call c;

    world_init(&w, 0);
    write_all(&w);
    float *plain = run_whole(&w, d);
    call_init(&c, &w, 45);
    call_add(&c, &w, 0, 0, 45);
    c.soft_cap = 1e6f;
    call_run(&c, &w, d);
    check_close("a high cap", c.out, plain, 45 * c.width, 1e-4, 1e-4);
    c.soft_cap = 1e-7f;
    call_run(&c, &w, d);
    for (uint32_t i = 0; i < w.dim; i++) {
        double mean = 0;

        for (uint32_t j = 0; j < 45; j++)
            mean += w.v[0][j * w.dim + i] / 45;
        assert_true(fabs(c.out[44 * c.width + i] - mean) < 1e-5);
    }
    call_fini(&c);
    free(plain);
    world_fini(&w);
}

static void a_soft_cap_bounds_scores(void **state)
{
    (void)state;
    each_variant(1, caps_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference_for_every_head_size),
        cmocka_unit_test(equals_reference_for_every_sharing_of_kv_heads),
        cmocka_unit_test(equals_reference_around_tile_edges),
        cmocka_unit_test(equals_reference_where_one_tile_dwarfs_another),
        cmocka_unit_test(no_rows_do_nothing),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_chunk_batch_and_thread_count),
        cmocka_unit_test(inf_and_nan_reach_only_rows_that_see_them),
        cmocka_unit_test(parts_joined_by_their_lse_are_the_whole),
        cmocka_unit_test(a_window_hides_what_lies_before_it),
        cmocka_unit_test(a_soft_cap_bounds_scores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
