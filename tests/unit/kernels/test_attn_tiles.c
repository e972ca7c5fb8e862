/* test_attn_tiles.c - attention_tiles and merge_tiles: together they give the bits of attention,
 * whichever device, call or batch computed each tile. */
#include "tests/unit/kernels/attention_world.h"

static struct attention_params params_of(const struct call *c, const struct world *w)
{
    return (struct attention_params){.n_seqs = c->n_seqs,
                                     .n_rows = c->n_rows,
                                     .n_heads = w->n_heads,
                                     .layer = LAYER,
                                     .scale = 1.0f / sqrtf((float)w->dim),
                                     .q = c->q,
                                     .q_stride = c->q_stride,
                                     .out = c->out,
                                     .seqs = c->seqs,
                                     .segments = c->segs,
                                     .blocks = w->blocks,
                                     .pool = w->pool};
}

static size_t tile_floats(const struct world *w)
{
    return (size_t)w->n_heads * (w->dim + 2);
}

static void run_tiles(struct device *d, const struct attention_params *p)
{
    if (d)
        assert_int_equal(device_ops(d)->attention_tiles(d, NULL, p), OK);
    else
        assert_int_equal(ref_attention_tiles(NULL, NULL, p), OK);
}

static void run_merge(struct device *d, const struct world *w, const float *const *parts,
                      uint32_t n_parts, uint32_t n_rows, float *out)
{
    struct merge_tiles_params m = {.n_rows = n_rows,
                                   .n_heads = w->n_heads,
                                   .head_dim = w->dim,
                                   .kv_dtype = w->dtype,
                                   .n_parts = n_parts,
                                   .parts = parts,
                                   .out = out};

    if (d)
        assert_int_equal(device_ops(d)->merge_tiles(d, NULL, &m), OK);
    else
        assert_int_equal(ref_merge_tiles(NULL, NULL, &m), OK);
}

/* All tiles of the call at once, then each sequence merged. The caller frees the result. */
static float *run_at_once(struct call *c, const struct world *w, struct device *d)
{
    struct attention_params p = params_of(c, w);
    size_t n_tiles = 0, at = 0;
    float *out = test_alloc(c->n_rows * c->width * sizeof(float));

    for (uint32_t i = 0; i < c->n_seqs; i++)
        n_tiles += (size_t)c->seqs[i].n_segs * c->seqs[i].n_rows;
    p.out = test_alloc(n_tiles * tile_floats(w) * sizeof(float));
    for (size_t i = 0; i < n_tiles * tile_floats(w); i++)
        p.out[i] = NAN; /* what is not written shows */
    run_tiles(d, &p);
    for (uint32_t i = 0; i < c->n_seqs; i++) {
        const struct attn_seq *seq = &c->seqs[i];
        const float *parts[64];

        for (uint32_t s = 0; s < seq->n_segs; s++, at += seq->n_rows)
            parts[s] = p.out + at * tile_floats(w);
        run_merge(d, w, parts, seq->n_segs, seq->n_rows, out + seq->row0 * c->width);
    }
    free(p.out);
    return out;
}

/* Each segment of each sequence in a call of its own, the odd ones on `other`, in descending order
 * and in pieces of at most `rows` rows. */
static float *run_apart(struct call *c, const struct world *w, struct device *d,
                        struct device *other, uint32_t rows)
{
    struct attention_params p = params_of(c, w);
    float *out = test_alloc(c->n_rows * c->width * sizeof(float));
    float *tiles = test_alloc(64 * (size_t)rows * tile_floats(w) * sizeof(float));

    for (uint32_t i = 0; i < c->n_seqs; i++)
        for (uint32_t row = 0; row < c->seqs[i].n_rows; row += rows) {
            struct attn_seq seq = c->seqs[i];
            const float *parts[64];
            uint32_t n_segs = seq.n_segs;

            seq.row0 += row;
            seq.pos0 += row;
            seq.n_rows = seq.n_rows - row < rows ? seq.n_rows - row : rows;
            seq.n_segs = 1;
            p.n_seqs = 1;
            p.seqs = &seq;
            for (uint32_t s = n_segs; s-- > 0;) {
                seq.seg0 = c->seqs[i].seg0 + s;
                parts[s] = p.out = tiles + (size_t)s * rows * tile_floats(w);
                run_tiles(s % 2 ? other : d, &p);
            }
            run_merge(d, w, parts, n_segs, seq.n_rows, out + seq.row0 * c->width);
        }
    free(tiles);
    return out;
}

/* The rows from pos0 on of every sequence, all keys written, the rest of the pool poisoned. */
static void check_tiles(struct device *d, struct device *other, struct world *w, uint32_t n_rows)
{
    struct call c;

    call_init(&c, w, world_rows(w));
    for (uint32_t s = 0; s < w->n_seqs; s++)
        call_add(&c, w, s, w->len[s] > n_rows ? w->len[s] - n_rows : 0, w->len[s]);
    call_run(&c, w, d);
    float *once = run_at_once(&c, w, d), *apart = run_apart(&c, w, d, other, 13);
    check_same("tiles of one call", once, c.out, c.n_rows * c.width);
    check_same("tiles of many calls", apart, c.out, c.n_rows * c.width);
    free(once);
    free(apart);
    call_fini(&c);
}

static void check_variant(const char *variant, struct world *w, uint32_t seg_tokens)
{
    static const uint32_t rows[] = {1, 64, 4096};
    struct device *d = open_device(DEVICE_CPU, variant, 3);
    struct device *one = open_device(DEVICE_CPU, variant, 1);

    rng_seed(7);
    for (size_t i = 0; d && i < ARRAY_SIZE(rows); i++) {
        world_init(w, seg_tokens);
        world_poison(w, i % 2 ? NAN : INFINITY);
        write_all(w);
        check_tiles(d, one, w, rows[i]);
        check_tiles(one, d, w, rows[i]);
        world_fini(w);
    }
    device_close(d);
    device_close(one);
}

static void merged_tiles_have_the_bits_of_attention(void **state)
{
    static const uint32_t heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {14, 2}, {7, 1}, {50, 1}};
    static const uint32_t dims[] = {2, 20, 32, 64, 80, 96, 128};

    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (size_t t = 0; t < ARRAY_SIZE(kv_types); t++) {
            bool all = t < 3 && !IS_SANITIZED;

            for (size_t i = all ? 0 : (t + 1) % 2; i < ARRAY_SIZE(heads); i += IS_EMULATED ? 3
                                                                               : all       ? 1
                                                                                           : 2) {
                struct world w = {.dtype = kv_types[t],
                                  .n_heads = heads[i][0],
                                  .n_kv_heads = heads[i][1],
                                  .dim = dims[(i + t) % ARRAY_SIZE(dims)],
                                  .n_seqs = 3,
                                  .len = {70, 33, 1}};

                check_variant(variant_names[v], &w, i % 2 ? 0 : 32);
            }
        }
}

static void whole_segments_have_the_bits_of_attention(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (size_t t = 0; t < (IS_EMULATED ? 1 : ARRAY_SIZE(kv_types)); t++) {
            struct world w = {.dtype = kv_types[t],
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .dim = 64,
                              .n_seqs = 2,
                              .len = {IS_EMULATED || (IS_SANITIZED && t > 0) ? 270 : 600, 130}};

            check_variant(variant_names[v], &w, KV_SEGMENT_TOKENS_MAX);
        }
}

/* Scores of some hundreds in some tiles, and keys and values that overflowed. */
static void extremes_on(struct device *d)
{
    for (size_t t = 0; t < 2 * ARRAY_SIZE(kv_types); t++) {
        struct world w = {.dtype = kv_types[t / 2],
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .dim = 64,
                          .n_seqs = 1,
                          .len = {IS_EMULATED ? 70 : 150}};

        world_init(&w, 32);
        for (size_t i = 0; i < world_outputs(&w); i++)
            w.q[0][i] *= 300;
        if (t % 2) {
            w.v[0][((size_t)37 * 2 + 1) * w.dim + 3] = INFINITY;
            w.k[0][((size_t)61 * 2 + 0) * w.dim + 5] = NAN;
        }
        write_all(&w);
        check_tiles(d, d, &w, w.len[0]);
        world_fini(&w);
    }
}

static void extreme_scores_and_values_keep_their_bits(void **state)
{
    (void)state;
    each_variant(2, extremes_on);
}

/* A row that sees no key of some segments, or of any, and what the tiles of those hold. */
static void unseen_on(struct device *d)
{
    enum { LEN = 90 };
    struct world w = {
        .dtype = DTYPE_F16, .n_heads = 2, .n_kv_heads = 1, .dim = 16, .n_seqs = 1, .len = {LEN}};
    struct call c;
    const float *parts[8];

    world_init(&w, 32);
    world_poison(&w, NAN);
    write_all(&w);
    call_init(&c, &w, LEN);
    call_add(&c, &w, 0, 0, LEN);
    struct attention_params p = params_of(&c, &w);
    p.out = test_alloc(3 * LEN * tile_floats(&w) * sizeof(float));
    run_tiles(d, &p);
    for (uint32_t s = 0; s < 3; s++) {
        parts[s] = p.out + s * LEN * tile_floats(&w);
        for (uint32_t row = 0; row < LEN; row++) {
            float sum = parts[s][row * tile_floats(&w) + w.dim + 1];

            assert_true(row < 32 * s ? sum == 0 : sum >= 1);
            for (uint32_t i = 0; row < 32 * s && i <= w.dim; i++)
                p.out[(s * LEN + row) * tile_floats(&w) + i] = NAN;
        }
    }
    call_run(&c, &w, d);
    float *got = test_alloc(LEN * c.width * sizeof(float));
    run_merge(d, &w, parts, 3, LEN, got);
    check_same("with unseen segments", got, c.out, LEN * c.width);
    run_merge(d, &w, parts + 2, 1, 64, got); /* of rows that see nothing there */
    for (size_t i = 0; i < 64 * c.width; i++)
        assert_true(got[i] == 0);
    free(got);
    free(p.out);
    call_fini(&c);
    world_fini(&w);
}

static void segments_that_a_row_does_not_see_count_nothing(void **state)
{
    (void)state;
    each_variant(1, unseen_on);
}

static void near_reference_on(struct device *d)
{
    struct world w = {
        .dtype = DTYPE_F32, .n_heads = 6, .n_kv_heads = 2, .dim = 20, .n_seqs = 2, .len = {67, 40}};
    struct call c;

    world_init(&w, 0);
    write_all(&w);
    call_init(&c, &w, world_rows(&w));
    call_add(&c, &w, 0, 3, 67);
    call_add(&c, &w, 1, 0, 40);
    call_run(&c, &w, NULL);
    float *ref = run_at_once(&c, &w, NULL), *got = run_at_once(&c, &w, d);
    check_close("the reference's tiles", ref, c.out, c.n_rows * c.width, 1e-6, 1e-6);
    check_close("tiles", got, c.out, c.n_rows * c.width, 2e-5, 2e-5);
    free(ref);
    free(got);
    call_fini(&c);
    world_fini(&w);
}

static void merged_tiles_are_near_the_reference(void **state)
{
    (void)state;
    each_variant(2, near_reference_on);
}

static void refusals_on(struct device *d)
{
    struct attention_params p = {
        .n_heads = 2,
        .pool = {.layout = kv_layout_of(DTYPE_F32), .n_layers = 1, .n_kv_heads = 1, .head_dim = 8}};
    struct merge_tiles_params m = {.n_heads = 2, .head_dim = 8};

    assert_int_equal(device_ops(d)->attention_tiles(d, NULL, &p), OK);
    assert_int_equal(device_ops(d)->merge_tiles(d, NULL, &m), OK);
    p.window = 5;
    assert_int_equal(device_ops(d)->attention_tiles(d, NULL, &p), ERR_UNSUPPORTED);
    p.window = 0;
    p.soft_cap = 30;
    assert_int_equal(device_ops(d)->attention_tiles(d, NULL, &p), ERR_UNSUPPORTED);
}

static void no_rows_do_nothing_and_windows_have_no_tiles(void **state)
{
    (void)state;
    each_variant(1, refusals_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_tiles_have_the_bits_of_attention),
        cmocka_unit_test(whole_segments_have_the_bits_of_attention),
        cmocka_unit_test(extreme_scores_and_values_keep_their_bits),
        cmocka_unit_test(segments_that_a_row_does_not_see_count_nothing),
        cmocka_unit_test(merged_tiles_are_near_the_reference),
        cmocka_unit_test(no_rows_do_nothing_and_windows_have_no_tiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
