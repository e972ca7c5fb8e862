/* test_attention.c - attention: compared with the reference, and the same bits for a row whatever
 * the chunks, the batch, the number of threads and the content of unwritten slots. */
#include "tests/unit/kernels/attention_world.h"

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

/* I8 and F8 share the sizes: every other one each. */
static void head_sizes_on(struct device *d)
{
    static const uint32_t dims[] = {2, 7, 8, 16, 20, 33, 34, 64, 80, 96, 128, 256};

    for (size_t t = 0; t < ARRAY_SIZE(kv_types); t++)
        for (size_t i = t < 3 ? 0 : t - 3; i < ARRAY_SIZE(dims); i += t < 3 ? 1 : 2) {
            struct world w = {.dtype = kv_types[t],
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
    each_variant(3, head_sizes_on);
    if (!IS_EMULATED)
        each_variant(1, head_sizes_on);
}

static void groupings_on(struct device *d)
{
    static const uint32_t heads[][2] = {{1, 1}, {2, 2}, {3, 3}, {6, 2},  {8, 2},  {5, 1},  {12, 2},
                                        {7, 1}, {8, 1}, {9, 1}, {11, 1}, {12, 1}, {14, 1}, {50, 1}};

    for (size_t t = 0; t < ARRAY_SIZE(kv_types); t++)
        for (size_t i = t < 3 ? 0 : t - 3; i < ARRAY_SIZE(heads);
             i += t < 3 && !IS_EMULATED ? 1 : 2) {
            struct world w = {.dtype = kv_types[t],
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

    for (size_t i = 0; i < ARRAY_SIZE(lens); i += IS_EMULATED ? 4 : 1) {
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

/* With one key, the result is its value and the log-sum-exp is its score. Queries choose one
 * dimension each, so every number of one byte appears in both; each is exact. */
static void bytes_on(struct device *d)
{
    enum { N = 256 };

    for (int t = 3; t < 5; t++) {
        struct world w = {
            .dtype = kv_types[t], .n_heads = N, .n_kv_heads = 1, .dim = N, .n_seqs = 1, .len = {1}};
        float lse[N];
        struct call c;

        world_init(&w, 0);
        memset(w.q[0], 0, world_outputs(&w) * sizeof(float));
        for (uint32_t i = 0; i < N; i++) {
            /* I8's -128 and F8's NaN are never stored; the largest number makes the scale 1 */
            bool is_unused = w.dtype == DTYPE_I8 ? i == 128 : (i & 127) == 127;

            w.q[0][i * N + i] = 16;
            w.v[0][i] = is_unused ? 0 : kv_unrounded(w.dtype, (unsigned char)i);
            w.k[0][N - 1 - i] = w.v[0][i];
        }
        write_all(&w);
        call_init(&c, &w, 1);
        call_add(&c, &w, 0, 0, 1);
        c.lse = lse;
        call_run(&c, &w, d);
        for (uint32_t h = 0; h < N; h++)
            for (uint32_t i = 0; i < N; i++)
                assert_true(c.out[h * N + i] == w.v[0][i]);
        for (uint32_t h = 0; h < N; h++)
            assert_true(lse[h] == w.k[0][h]);
        call_fini(&c);
        world_fini(&w);
    }
}

static void every_number_of_one_byte_is_exact(void **state)
{
    (void)state;
    each_variant(1, bytes_on);
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

/* Without F8, the last type, which differs from I8 in the conversion of elements alone. */
static void a_row_has_the_same_bits_in_any_chunk_batch_and_thread_count(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (size_t t = 0; t + 1 < ARRAY_SIZE(kv_types); t++) {
            struct world w = {.dtype = kv_types[t],
                              .n_heads = 6,
                              .n_kv_heads = 2,
                              .dim = 20,
                              .n_seqs = 3,
                              .len = {IS_EMULATED    ? 80
                                      : IS_SANITIZED ? 150
                                                     : 300,
                                      70, 1}};

            check_invariance(variant_names[v], &w, 0);
            if (IS_EMULATED)
                continue;
            w.len[0] = IS_SANITIZED ? 270 : 390;
            w.n_heads = 4;
            w.dim = 32;
            check_invariance(variant_names[v], &w, KV_SEGMENT_TOKENS_MAX);
        }
}

/* Windows and chunks begin at any key of a pair of bf16 numbers. */
static void a_row_with_a_window_has_the_same_bits_in_any_chunk_and_batch(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (size_t t = 0; t < ARRAY_SIZE(kv_types); t++) {
            struct world w = {.dtype = kv_types[t],
                              .n_heads = 6,
                              .n_kv_heads = 2,
                              .dim = 20,
                              .n_seqs = 2,
                              .window = 37,
                              .len = {IS_EMULATED ? 60 : 150, 41}};

            check_invariance(variant_names[v], &w, 0);
        }
}

/* Fewer tasks than threads want: segments become tasks, in waves that the scratch memory holds. */
static void many_segments_of_few_heads_have_the_bits_of_one_thread(void **state)
{
    (void)state;
    for (size_t v = 0; v < ARRAY_SIZE(variant_names); v++)
        for (size_t t = 0; t < ARRAY_SIZE(kv_types); t++) {
            struct world w = {.dtype = kv_types[t],
                              .n_heads = 2,
                              .n_kv_heads = 1,
                              .dim = 128,
                              .n_seqs = 2,
                              .len = {50, 3}};
            float *whole = NULL;

            world_init(&w, 1);
            world_poison(&w, NAN);
            write_all(&w);
            for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
                struct device *d = open_device(DEVICE_CPU, variant_names[v], n_threads);

                if (!d)
                    break;
                float *out = run_whole(&w, d);
                if (whole)
                    check_same("segments at once", out, whole, world_outputs(&w));
                free(whole);
                whole = out;
                device_close(d);
            }
            free(whole);
            world_fini(&w);
        }
}

/* A key or value that overflowed spoils the rows that see it, and no earlier one. */
static void spoilt_on(struct device *d)
{
    for (size_t t = 0; t < 2 * ARRAY_SIZE(kv_types); t++) {
        struct world w = {.dtype = kv_types[t / 2],
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

/* Attention over half of the keys. The first rows have no keys in the second half. */
static void parts_on(struct device *d)
{
    enum { LEN = 150, H = 4 };
    struct world w = {
        .dtype = DTYPE_BF16, .n_heads = H, .n_kv_heads = 2, .dim = 64, .n_seqs = 1, .len = {LEN}};
    size_t n_lse = (size_t)LEN * H, n = n_lse * w.dim;
    float *lse = test_alloc(n_lse * sizeof(float)), *want_lse = test_alloc(n_lse * sizeof(float));
    float *part = test_alloc(n * sizeof(float));
    struct call half;

    world_init(&w, 40);
    world_poison(&w, NAN);
    write_all(&w);
    for (uint32_t odd = 0; odd < 2; odd++) {
        call_half(&half, &w, odd, lse);
        call_run(&half, &w, d);
        memcpy(part, half.out, n * sizeof(float));
        half.lse = want_lse;
        call_run(&half, &w, NULL);
        check_world("a part", d, &w, part, half.out);
        check_near("its lse", lse, want_lse, n_lse, 0.1, 0.01, 1e-4);
        call_fini(&half);
    }
    assert_true(isinf(lse[0]) && lse[0] < 0 && part[0] == 0);
    world_fini(&w);
    free(part);
    free(lse);
    free(want_lse);
}

static void attention_to_some_segments_tells_its_weight(void **state)
{
    (void)state;
    each_variant(1, parts_on);
    each_variant(3, parts_on);
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

/* Attention of a row to all keys of its sequence, as causal attention computes it for a last
 * row. */
static void compute_last_row(struct world *w, struct device *d, uint32_t s, uint32_t row,
                             float *out)
{
    struct call c;

    call_init(&c, w, 1);
    call_add(&c, w, s, w->len[s] - 1, w->len[s]);
    memcpy(c.q, w->q[s] + row * c.width, c.width * sizeof(float));
    call_run(&c, w, d);
    memcpy(out, c.out, c.width * sizeof(float));
    call_fini(&c);
}

static void all_keys_on(struct device *d)
{
    for (int t = 0; t < 2 * DTYPE_FLOATS; t++) {
        struct world w = {.dtype = (enum dtype)(t / 2),
                          .n_heads = 2,
                          .n_kv_heads = t % 2 ? 2 : 1,
                          .dim = t % 2 ? 32 : 10,
                          .n_seqs = 3,
                          .len = {IS_EMULATED ? 60 : 260, 37, 1}};
        size_t width = (size_t)w.n_heads * w.dim, at = 0;
        float *last = test_alloc(width * sizeof *last);
        struct call c;

        world_init(&w, t % 2 ? KV_SEGMENT_TOKENS_MAX : 0);
        world_poison(&w, NAN);
        write_all(&w);
        call_init(&c, &w, world_rows(&w));
        for (uint32_t s = 0; s < w.n_seqs; s++)
            call_add(&c, &w, s, 0, w.len[s]);
        c.bidirectional = 1;
        call_run(&c, &w, NULL);
        float *want = test_alloc(world_outputs(&w) * sizeof *want);
        memcpy(want, c.out, world_outputs(&w) * sizeof *want);
        call_run(&c, &w, d);
        check_world("all keys", d, &w, c.out, want);
        for (uint32_t s = 0; s < w.n_seqs; at += w.len[s++])
            for (uint32_t row = 0; row < w.len[s]; row += 13) {
                compute_last_row(&w, d, s, row, last);
                check_same("all keys, alone", c.out + (at + row) * width, last, width);
            }
        call_fini(&c);
        free(want);
        free(last);
        world_fini(&w);
    }
}

static void bidirectional_rows_see_all_keys_with_the_bits_of_a_last_row(void **state)
{
    (void)state;
    each_variant(2, all_keys_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference_for_every_head_size),
        cmocka_unit_test(equals_reference_for_every_sharing_of_kv_heads),
        cmocka_unit_test(equals_reference_around_tile_edges),
        cmocka_unit_test(every_number_of_one_byte_is_exact),
        cmocka_unit_test(equals_reference_where_one_tile_dwarfs_another),
        cmocka_unit_test(no_rows_do_nothing),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_chunk_batch_and_thread_count),
        cmocka_unit_test(a_row_with_a_window_has_the_same_bits_in_any_chunk_and_batch),
        cmocka_unit_test(many_segments_of_few_heads_have_the_bits_of_one_thread),
        cmocka_unit_test(inf_and_nan_reach_only_rows_that_see_them),
        cmocka_unit_test(attention_to_some_segments_tells_its_weight),
        cmocka_unit_test(a_window_hides_what_lies_before_it),
        cmocka_unit_test(a_soft_cap_bounds_scores),
        cmocka_unit_test(bidirectional_rows_see_all_keys_with_the_bits_of_a_last_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
