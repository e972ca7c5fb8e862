/* test_attention.c - attention on the GPU: compared with the reference, and bits of a row compared
 * between batches. */
#include <stdlib.h>

#include "tests/cuda/attention_batch.h"

/* --- Against the reference --- */

static const uint32_t odd_cut[] = {33, 256, 1, 64, 31, 65, 7}; /* 457 tokens */
#define ODD_SEGS 7

static void check_shape(enum dtype dtype, uint32_t dim, uint32_t n_heads, uint32_t n_kv_heads)
{
    static const uint32_t one[] = {1}, whole[] = {256, 44};
    struct shape shape = {.dtype = dtype, .dim = dim, .n_heads = n_heads, .n_kv_heads = n_kv_heads};
    static struct world w;

    open_world(&w, &shape, 64, 32);
    uint32_t a = add_sequence(&w, odd_cut, ODD_SEGS), b = add_sequence(&w, one, 1),
             c = add_sequence(&w, whole, 2);
    const struct part parts[] = {{a, 456, 1, 0}, {c, 120, 19, 0}, {b, 0, 1, 0}};
    check_batch(&w, parts, 3);
    cuda_test_free_all(w.d);
}

static void shapes_match_reference(void **state)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 7, 8, 16, 17, 40};
    static const uint32_t dims[] = {16, 32, 48, 80, 96, 112, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        check_shape(DTYPE_BF16, 64, groups[i] * (i < 4 ? 2 : 1), i < 4 ? 2 : 1);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_shape(DTYPE_BF16, dims[i], 4, 2);
}

static void shapes_of_one_byte_match_reference(void **state)
{
    static const uint32_t dims[] = {64, 96, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        check_shape(DTYPE_I8, dims[i], 4, 2);
        check_shape(DTYPE_F8, dims[i], dims[i] == 256 ? 5 : 17, 1);
    }
}

static void shapes_of_f16_match_reference(void **state)
{
    (void)state;
    check_shape(DTYPE_F16, 64, 17, 1);
    check_shape(DTYPE_F16, 96, 6, 2);
    check_shape(DTYPE_F16, 128, 6, 2);
    check_shape(DTYPE_F16, 256, 5, 1);
}

static void plain_shapes_match_reference(void **state)
{
    (void)state;
    check_shape(DTYPE_F32, 64, 4, 2);
    check_shape(DTYPE_F16, 112, 6, 2);
    check_shape(DTYPE_F32, 7, 3, 1);
    check_shape(DTYPE_F16, 33, 2, 2);
    check_shape(DTYPE_BF16, 24, 5, 5);
    check_shape(DTYPE_BF16, 13, 2, 1);
    check_shape(DTYPE_BF16, 250, 2, 1);
    check_shape(DTYPE_F32, 255, 2, 1);
    check_shape(DTYPE_I8, 24, 4, 2);
    check_shape(DTYPE_F8, 24, 6, 2);
    check_shape(DTYPE_I8, 13, 3, 1);
    check_shape(DTYPE_F8, 240, 2, 1);
}

/* Context lengths around the edges of blocks, tiles and segments: as a decode, and as the end of a
 * prefill. */
static void context_lengths_match_reference(void **state)
{
    static const uint32_t lengths[] = {1,   2,   31,  32,  33,  63,  64,  65,
                                       127, 128, 129, 192, 255, 256, 257, 320};
    static const uint32_t cut[] = {256, 64};
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 2};
    struct part parts[PARTS_MAX];
    static struct world w;
    uint32_t n = sizeof lengths / sizeof *lengths;

    (void)state;
    open_world(&w, &shape, 512, 32);
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint32_t length = lengths[i % n], rows = i < n ? 1 : 1 + random_below(length);

        add_sequence(&w, cut, 2);
        parts[i] = (struct part){i, length - rows, rows, 0};
    }
    check_batch(&w, parts, n);
    check_batch(&w, parts, 2 * n);
    check_batch(&w, parts + n, n);
    cuda_test_free_all(w.d);
}

static void check_random(const struct shape *shape, uint32_t n_seqs, bool partial)
{
    struct part parts[PARTS_MAX];
    static struct world w;

    open_world(&w, shape, 400, 32);
    for (uint32_t i = 0; i < n_seqs; i++) {
        random_cut(&w, 1 + random_below(9));
        parts[i] = random_part(&w, i, 50);
        parts[i].missing = partial ? random_below(1u << 16) : 0;
    }
    if (partial)
        parts[n_seqs / 2].missing = UINT32_MAX; /* no keys: output 0, lse -inf */
    check_batch(&w, parts, n_seqs);
    cuda_test_free_all(w.d);
}

static void random_batches_match_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        check_random(
            &(struct shape){
                .dtype = i == 3 ? DTYPE_F32 : DTYPE_BF16, .dim = 16, .n_heads = 6, .n_kv_heads = 2},
            7, false);
}

static void windows_match_reference(void **state)
{
    static const uint32_t windows[] = {1, 2, 31, 32, 64, 65, 130, 4096, UINT32_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        for (int plain = 0; plain < 2; plain++)
            check_random(&(struct shape){.dtype = plain ? DTYPE_F16 : DTYPE_BF16,
                                         .dim = 16,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .window = windows[i]},
                         5, false);
}

/* The sliding window begins at the last key of a tile, and at the first key of the next one. */
static void window_edges_match_reference(void **state)
{
    static const uint32_t cut[] = {64, 100};
    static struct world w;

    (void)state;
    for (uint32_t window = 60; window <= 68; window++) {
        open_world(
            &w,
            &(struct shape){
                .dtype = DTYPE_BF16, .dim = 16, .n_heads = 2, .n_kv_heads = 1, .window = window},
            16, 32);
        add_sequence(&w, cut, 2);
        add_sequence(&w, cut, 2);
        check_batch(&w, (const struct part[]){{0, 127, 3, 0}, {1, 127, 1, 0}}, 2);
        cuda_test_free_all(w.d);
    }
}

static void soft_caps_match_reference(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++)
        for (int i = 0; i < 2; i++)
            check_random(&(struct shape){.dtype = plain ? DTYPE_F32 : DTYPE_BF16,
                                         .dim = 32,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .window = i ? 70 : 0,
                                         .soft_cap = i ? 0.7f : 30.0f,
                                         .no_lse = i},
                         4, false);
}

static void partial_attention_matches_reference(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        check_random(&(struct shape){.dtype = i < 4 ? DTYPE_BF16 : DTYPE_F32,
                                     .dim = 16,
                                     .n_heads = 4,
                                     .n_kv_heads = 2,
                                     .window = i % 2 ? 90 : 0},
                     5, true);
}

/* --- The same bits --- */

static void check_same_bits(const struct shape *shape)
{
    static struct world w;
    struct result wholes[4];

    open_world(&w, shape, 128, 32);
    add_sequence(&w, odd_cut, ODD_SEGS);
    for (int i = 0; i < 3; i++)
        random_cut(&w, 4);
    compute_wholes(&w, wholes);
    for (uint32_t i = 0; i < 4; i++) { /* single rows, in batches */
        uint32_t last = w.seqs[0].n_tokens - 1, pos = i == 0 ? last : random_below(last);
        struct part parts[4] = {{0, pos, 1, 0}};

        check_same_batch(&w, wholes, parts, 1);
        for (uint32_t s = 1; s < 4; s++)
            parts[s] = random_part(&w, s, 40);
        check_same_batch(&w, wholes, parts, 4);
    }
    for (uint32_t pos = 0, n; pos < w.seqs[1].n_tokens; pos += n) { /* in chunks */
        uint32_t left = w.seqs[1].n_tokens - pos;

        n = 1 + random_below(90);
        n = n < left ? n : left;
        check_same_batch(&w, wholes, &(struct part){1, pos, n, 0}, 1);
    }
    cuda_test_free_all(w.d);
}

static void rows_have_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    check_same_bits(&(struct shape){.dtype = DTYPE_BF16, .dim = 64, .n_heads = 4, .n_kv_heads = 2});
    check_same_bits(&(struct shape){.dtype = DTYPE_BF16,
                                    .dim = 16,
                                    .n_heads = 3,
                                    .n_kv_heads = 1,
                                    .window = 75,
                                    .soft_cap = 20});
    check_same_bits(
        &(struct shape){.dtype = DTYPE_BF16, .dim = 48, .n_heads = 17, .n_kv_heads = 1});
    check_same_bits(&(struct shape){.dtype = DTYPE_F32, .dim = 20, .n_heads = 2, .n_kv_heads = 1});
    check_same_bits(&(struct shape){.dtype = DTYPE_I8, .dim = 20, .n_heads = 2, .n_kv_heads = 1});
    check_same_bits(&(struct shape){.dtype = DTYPE_I8, .dim = 64, .n_heads = 4, .n_kv_heads = 2});
    check_same_bits(&(struct shape){
        .dtype = DTYPE_F8, .dim = 64, .n_heads = 3, .n_kv_heads = 1, .window = 75, .soft_cap = 20});
    check_same_bits(&(struct shape){
        .dtype = DTYPE_F16, .dim = 64, .n_heads = 3, .n_kv_heads = 1, .window = 75});
    check_same_bits(&(struct shape){.dtype = DTYPE_F16, .dim = 128, .n_heads = 4, .n_kv_heads = 1});
    check_same_bits(&(struct shape){.dtype = DTYPE_BF16,
                                    .dim = 256,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .window = 75,
                                    .soft_cap = 20});
    check_same_bits(&(struct shape){.dtype = DTYPE_F16, .dim = 256, .n_heads = 1, .n_kv_heads = 1});
    check_same_bits(&(struct shape){.dtype = DTYPE_I8, .dim = 256, .n_heads = 1, .n_kv_heads = 1});
}

/* A row has up to three groups of segments. The whole prefill walks them, chunks of few rows share
 * them among blocks, and decode steps split them. */
static void check_groups(const struct shape *shape)
{
    static struct world w;
    struct result whole;
    uint32_t cut[20];

    open_world(&w, shape, 128, 32);
    for (uint32_t i = 0; i < 20; i++)
        cut[i] = 1 + random_below(i == 5 ? 130 : 35);
    add_sequence(&w, cut, 20);
    add_sequence(&w, odd_cut, 3);
    whole = run(&w, &(struct part){0, 0, w.seqs[0].n_tokens, 0}, 1, false);
    check_against_reference(&whole);
    for (uint32_t pos = 0, n; pos < w.seqs[0].n_tokens; pos += n) {
        uint32_t left = w.seqs[0].n_tokens - pos;
        struct part parts[] = {{1, 17, 1, 0}, {0, pos, 1, 0}, {1, 3, 2, 0}};

        n = 1 + random_below(40);
        n = n < left ? n : left;
        check_same_batch(&w, &whole, &(struct part){0, pos, n, 0}, 1);
        check_same_batch(&w, &whole, &parts[1], 1);
        parts[1].n_rows = n; /* beside other sequences */
        struct result got = run(&w, parts, 3, false);
        check_same_rows(&w, &whole, &got, 1, &parts[1]);
    }
    cuda_test_free_all(w.d);
}

/* One long sequence beside short ones, in a decode step: the launches are as large as the sum of
 * segments, not as sequences times the longest. Then two prompts of 64 and 40 rows. */
static void no_blocks_are_launched_without_work(void **state)
{
    static const struct shape shape = {
        .dtype = DTYPE_BF16, .dim = 16, .n_heads = 2, .n_kv_heads = 1};
    enum { N_SHORT = 20, N_LONG_SEGS = 30, LONG_TOKENS = 8 * N_LONG_SEGS };
    static struct world w;
    struct part parts[PARTS_MAX];
    uint32_t cut[N_LONG_SEGS];

    (void)state;
    if (!emulation_blocks_run)
        skip(); /* a real GPU counts no blocks */
    open_world(&w, &shape, 128, 32);
    for (uint32_t i = 0; i < N_LONG_SEGS; i++)
        cut[i] = 8;
    add_sequence(&w, cut, N_LONG_SEGS);
    add_sequence(&w, (uint32_t[]){64}, 1);
    for (uint32_t i = 0; i < N_SHORT; i++)
        parts[i] = (struct part){1, i, 1, 0};
    parts[N_SHORT] = (struct part){0, LONG_TOKENS - 1, 1, 0};
    /* A block for each segment, and one of the combine kernel for each sequence. */
    assert_int_equal(run(&w, parts, N_SHORT + 1, false).n_blocks,
                     N_SHORT + N_LONG_SEGS + N_SHORT + 1);

    parts[0] = (struct part){1, 0, 64, 0};
    parts[1] = (struct part){1, 0, 40, 0};
    /* 128 and 80 queries in tiles of 64, with at most one more for each sequence: 5. The decode
     * kernels are launched beside it, because the host does not look at single sequences: 2 and
     * 2. */
    assert_int_equal(run(&w, parts, 2, false).n_blocks, 5 + 2 + 2);
    cuda_test_free_all(w.d);
}

static void rows_of_several_groups_have_the_same_bits(void **state)
{
    (void)state;
    check_groups(&(struct shape){.dtype = DTYPE_BF16, .dim = 32, .n_heads = 3, .n_kv_heads = 1});
    check_groups(&(struct shape){
        .dtype = DTYPE_BF16, .dim = 16, .n_heads = 2, .n_kv_heads = 1, .window = 90});
    check_groups(&(struct shape){.dtype = DTYPE_I8, .dim = 64, .n_heads = 2, .n_kv_heads = 1});
}

/* On a GPU whose blocks have 99 KB of shared memory, two pairs of warps share a tile, not four. */
static void heads_of_256_fit_into_little_shared_memory(void **state)
{
    (void)state;
    if (!emulation_blocks_run)
        skip(); /* a real GPU has what it has */
    cuda_test_close_device();
    setenv("TARN_EMULATION_SM", "86", 1);
    check_groups(&(struct shape){.dtype = DTYPE_BF16, .dim = 256, .n_heads = 1, .n_kv_heads = 1});
    cuda_test_close_device();
    unsetenv("TARN_EMULATION_SM");
}

/* With this many heads the device has room for the partial results of a few segments only. */
static void rows_have_the_same_bits_without_room_for_partials(void **state)
{
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 2};
    struct result wholes[8];
    struct part parts[8];
    static struct world w;

    (void)state;
    open_world(&w, &shape, 512, 8192);
    for (uint32_t i = 0; i < 8; i++) {
        random_cut(&w, i == 0 ? 1 : 6);
        parts[i] = (struct part){i, w.seqs[i].n_tokens - 1, 1, 0};
    }
    compute_wholes(&w, wholes);
    check_same_batch(&w, wholes, parts, 8);
    cuda_test_free_all(w.d);
}

/* A decode step that is filled up with sequences without rows: each has the row0 that it would have
 * with one. */
static void check_padded(const struct world *w, const struct result *r, uint32_t n_more)
{
    struct attention_params p = r->p;
    uint32_t n_seqs = p.n_seqs + n_more, n_rows = p.n_rows + n_more, n_segs = p.n_segs + n_more;
    struct attn_seq *seqs = host_array(n_seqs * sizeof *seqs);
    struct attn_segment *segs = host_array(n_segs * sizeof *segs);
    float *q = host_array(n_rows * p.q_stride * sizeof *q);

    memcpy(seqs, p.seqs, p.n_seqs * sizeof *seqs);
    memcpy(segs, p.segments, p.n_segs * sizeof *segs);
    memcpy(q, p.q, p.n_rows * p.q_stride * sizeof *q);
    for (uint32_t i = 0; i < n_more; i++) {
        seqs[p.n_seqs + i] = (struct attn_seq){.row0 = p.n_rows + i, .seg0 = p.n_segs};
        segs[p.n_segs + i] = (struct attn_segment){0};
    }
    p.seqs = on_device(w->d, seqs, n_seqs * sizeof *seqs);
    p.segments = on_device(w->d, segs, n_segs * sizeof *segs);
    p.q = on_device(w->d, q, n_rows * p.q_stride * sizeof *q);
    p.blocks = on_device(w->d, w->blocks, w->n_blocks * sizeof *w->blocks);
    p.pool.base = on_device(w->d, p.pool.base, p.pool.n_blocks * kv_block_bytes(&p.pool));
    p.out = on_device(w->d, NULL, r->n_out / p.n_rows * n_rows * sizeof *p.out);
    p.lse = NULL;
    p.n_seqs = n_seqs;
    p.n_rows = n_rows;
    p.n_segs = p.n_segs_max = n_segs;
    assert_ok(device_ops(w->d)->attention(w->d, NULL, &p));
    assert_same_bits("padded", from_device(w->d, p.out, r->n_out * sizeof *p.out), r->p.out,
                     r->n_out * sizeof *p.out);
}

static void padding_changes_no_row(void **state)
{
    static const struct shape shape = {
        .dtype = DTYPE_BF16, .dim = 32, .n_heads = 16, .n_kv_heads = 1};
    static struct world w;
    struct part parts[8];

    (void)state;
    for (int has_room = 0; has_room < 2; has_room++) { /* for the partial results */
        open_world(&w, &shape, 512, has_room ? 16 : 8192);
        for (uint32_t i = 0; i < 8; i++) {
            random_cut(&w, 6);
            parts[i] = (struct part){i, w.seqs[i].n_tokens - 1, 1, 0};
        }
        struct result r = run(&w, parts, 8, false);
        check_padded(&w, &r, 8);
        cuda_test_free_all(w.d);
    }
}

/* --- Infinities --- */

/* Values that are inf change the rows that attend to them, and no others. */
static void values_of_later_keys_never_matter(void **state)
{
    static const uint32_t cut[] = {100, 30};
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 2};
    static struct world w;
    struct result wholes[1], clean;

    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        shape.window = kind % 2 ? 20 : 0;
        if (kind >= 2) { /* of int8 a scale is NaN */
            shape.dtype = kind < 4 ? DTYPE_I8 : kind < 6 ? DTYPE_F16 : DTYPE_BF16;
            shape.dim = kind < 6 ? 64 : 256;
        }
        open_world(&w, &shape, 16, 32);
        add_sequence(&w, cut, 2);
        clean = run(&w, &(struct part){0, 0, 130, 0}, 1, false);
        for (uint32_t i = 0; i < 3; i++) { /* at positions 40, 41 and 110 */
            uint32_t pos = i == 2 ? 110 : 40 + i, t = pos < 100 ? pos : pos - 100;
            uint32_t block = w.blocks[w.segs[pos >= 100].block0 + t / KV_BLOCK_TOKENS];

            unsigned char *head = kv_at(&w.pool, block, LAYER, 1, 1);

            if (shape.dtype == DTYPE_I8)
                dtype_store(DTYPE_F32, head + kv_elements_bytes(&w.pool), t % KV_BLOCK_TOKENS, NAN);
            else
                dtype_store(shape.dtype, head, kv_v_index(&w.pool, 5 + i, t % KV_BLOCK_TOKENS),
                            i == 1 ? NAN : INFINITY);
        }
        compute_wholes(&w, wholes);
        check_against_reference(&wholes[0]);
        assert_same_bits("before", wholes[0].p.out, clean.p.out,
                         40 * sizeof(float) * shape.n_heads * shape.dim);
        for (uint32_t pos = 35; pos < 130; pos += 5)
            check_same_batch(&w, wholes, &(struct part){0, pos, 1, 0}, 1);
        cuda_test_free_all(w.d);
    }
}

/* --- Sizes of real models, on a real GPU --- */

/* Compare every `step`-th row of a result with the reference, each as a sequence of one row. */
static void check_some_rows(const struct result *result, uint32_t step)
{
    struct attn_seq *seqs = host_array(result->p.n_rows * sizeof *seqs);
    size_t h = result->p.n_heads, row = h * result->p.pool.head_dim;
    struct attention_params p = result->p;
    uint32_t n = 0;

    for (uint32_t i = 0; i < result->p.n_seqs; i++)
        for (uint32_t r = 0; r < result->p.seqs[i].n_rows; r++) {
            struct attn_seq s = result->p.seqs[i];

            if ((s.row0 + r) % step != step - 1)
                continue;
            seqs[n++] = (struct attn_seq){s.row0 + r, 1, s.pos0 + r, s.seg0, s.n_segs};
        }
    p.seqs = seqs;
    p.n_seqs = n;
    p.out = host_array(result->n_out * sizeof *p.out);
    p.lse = host_array(result->n_lse * sizeof *p.lse);
    assert_ok(ref_attention(NULL, NULL, &p));
    for (uint32_t i = 0; i < n; i++) {
        assert_close("out", result->p.out + seqs[i].row0 * row, p.out + seqs[i].row0 * row, row,
                     4e-3f, 4e-3f);
        assert_close("lse", result->p.lse + seqs[i].row0 * h, p.lse + seqs[i].row0 * h, h, 5e-5f,
                     5e-5f);
    }
}

/* First 64 sequences that read the same 8192 tokens, each from its own position. Then 512 rows
 * after 8192 tokens, and one of these rows alone. */
static void full_sizes_match_reference(void **state)
{
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 128, .n_heads = 32, .n_kv_heads = 8};
    uint32_t cut[34], n_segs = 34;
    struct part parts[64];
    static struct world w;

    (void)state;
    if (!full_size())
        skip();
    for (uint32_t i = 0; i < n_segs; i++)
        cut[i] = KV_SEGMENT_TOKENS_MAX;
    open_world(&w, &shape, 34 * 8, 32);
    add_sequence(&w, cut, n_segs);
    for (uint32_t i = 0; i < 64; i++)
        parts[i] = (struct part){0, 8192 - 1 - 100 * i, 1, 0};
    struct result decoded = run(&w, parts, 64, true);
    check_some_rows(&decoded, 16);

    struct result filled = run(&w, &(struct part){0, 8192, 512, 0}, 1, true);
    check_some_rows(&filled, 256);
    struct result alone = run(&w, &(struct part){0, 8192 + 300, 1, 0}, 1, true);
    size_t row = (size_t)shape.n_heads * shape.dim;
    assert_same_bits("row 300", alone.p.out, filled.p.out + 300 * row, row * sizeof(float));
    cuda_test_free_all(w.d);
}

static void attention_to_all_keys_is_refused(void **state)
{
    struct attention_params p = {
        .n_seqs = 1,
        .n_rows = 1,
        .n_heads = 1,
        .bidirectional = 1,
        .pool = {.layout = kv_layout_of(DTYPE_F32), .n_kv_heads = 1, .head_dim = 8}};
    static struct world w;

    (void)state;
    open_world(&w, &(struct shape){.dtype = DTYPE_F32, .dim = 8, .n_heads = 1, .n_kv_heads = 1}, 1,
               1);
    assert_int_equal(device_ops(w.d)->attention(w.d, NULL, &p), ERR_UNSUPPORTED);
    cuda_test_free_all(w.d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_to_all_keys_is_refused),
        cmocka_unit_test(shapes_match_reference),
        cmocka_unit_test(shapes_of_one_byte_match_reference),
        cmocka_unit_test(shapes_of_f16_match_reference),
        cmocka_unit_test(plain_shapes_match_reference),
        cmocka_unit_test(context_lengths_match_reference),
        cmocka_unit_test(random_batches_match_reference),
        cmocka_unit_test(windows_match_reference),
        cmocka_unit_test(window_edges_match_reference),
        cmocka_unit_test(soft_caps_match_reference),
        cmocka_unit_test(partial_attention_matches_reference),
        cmocka_unit_test(rows_have_the_same_bits_in_any_batch),
        cmocka_unit_test(no_blocks_are_launched_without_work),
        cmocka_unit_test(rows_of_several_groups_have_the_same_bits),
        cmocka_unit_test(heads_of_256_fit_into_little_shared_memory),
        cmocka_unit_test(rows_have_the_same_bits_without_room_for_partials),
        cmocka_unit_test(padding_changes_no_row),
        cmocka_unit_test(values_of_later_keys_never_matter),
        cmocka_unit_test(full_sizes_match_reference),
    };

    return cmocka_run_group_tests_name("cuda_attention", tests, NULL, NULL);
}
