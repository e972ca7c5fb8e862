/* test_attention_wgmma.c - attention of many rows on Hopper's own matrix instructions, and the
 * choice whether they are used. */
#include "tests/cuda/attention_batch.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "tests/cuda/wgmma_trial.h"

#define WIDE_QUERIES 128

static struct device_config config_of(uint32_t dim, bool wgmma)
{
    return (struct device_config){.kind = DEVICE_CUDA,
                                  .max_rows = 128,
                                  .max_k = 64,
                                  .max_heads = 32,
                                  .max_head_dim = dim,
                                  .kv = DTYPE_BF16,
                                  .measure = true,
                                  .wgmma = wgmma};
}

static bool has_wgmma(struct device *d)
{
    return strstr(device_ops(d)->name, "-attnwgmma") != NULL;
}

/* The device for KV of this type and heads of this size. In the emulation `wgmma` decides what it
 * computes with. */
static struct device *device_with(uint32_t dim, enum dtype kv, bool wgmma)
{
    struct device_config config = config_of(dim, wgmma);
    struct device *d;

    config.kv = kv;

    if (emulation_make_wgmma_fast)
        emulation_make_wgmma_fast(1);
    d = cuda_device_for(&config);
    if (emulation_make_wgmma_fast) {
        emulation_make_wgmma_fast(0);
        assert_int_equal(has_wgmma(d), wgmma);
    }
    return d;
}

static void open_wide(struct world *w, const struct shape *shape, uint32_t max_blocks)
{
    open_world_on(w, shape, max_blocks, device_with(shape->dim, shape->dtype, true));
}

static const uint32_t odd_cut[] = {33, 256, 1, 64, 31, 65, 7}; /* 457 tokens */
#define ODD_SEGS 7

/* --- Against the reference --- */

/* Blocks with one query, with 127, whole ones; beside a decode and a few rows. */
static void shapes_match_reference(void **state)
{
    static const struct {
        enum dtype kv;
        uint32_t dim, n_heads, n_kv_heads, n_rows;
    } shapes[] = {{DTYPE_BF16, 128, 4, 1, 33}, {DTYPE_BF16, 128, 2, 2, 129},
                  {DTYPE_BF16, 64, 8, 2, 64},  {DTYPE_BF16, 64, 7, 1, 37},
                  {DTYPE_BF16, 64, 17, 1, 8},  {DTYPE_F16, 64, 7, 1, 37}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        struct shape shape = {.dtype = shapes[i].kv,
                              .dim = shapes[i].dim,
                              .n_heads = shapes[i].n_heads,
                              .n_kv_heads = shapes[i].n_kv_heads};
        uint32_t n = shapes[i].n_rows;
        static struct world w;

        open_wide(&w, &shape, 64);
        add_sequence(&w, odd_cut, ODD_SEGS);
        add_sequence(&w, (const uint32_t[]){256, 44}, 2);
        check_batch(&w,
                    (const struct part[]){
                        {0, 456, 1, 0}, {1, 280, 2, 0}, {0, 457 - n, n, 0}, {1, 10, n, 0}},
                    4);
        cuda_test_free_all(w.d);
    }
}

static void windows_and_caps_match_reference(void **state)
{
    static const uint32_t windows[] = {1, 31, 64, 130, UINT32_MAX};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(windows); i++) {
        struct shape shape = {.dtype = DTYPE_BF16,
                              .dim = 64,
                              .n_heads = 4,
                              .n_kv_heads = 1,
                              .window = windows[i],
                              .soft_cap = i % 2 ? 2 : 0,
                              .no_lse = i == 2};
        static struct world w;

        open_wide(&w, &shape, 64);
        add_sequence(&w, odd_cut, ODD_SEGS);
        check_batch(&w, (const struct part[]){{0, 250, 66, 0}}, 1);
        cuda_test_free_all(w.d);
    }
}

/* Sequences without some of their segments; one without any key has 0 and -inf. */
static void partial_attention_matches_reference(void **state)
{
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 64, .n_heads = 4, .n_kv_heads = 1};
    static struct world w;

    (void)state;
    open_wide(&w, &shape, 64);
    add_sequence(&w, odd_cut, ODD_SEGS);
    check_batch(
        &w, (const struct part[]){{0, 300, 40, 0x2a}, {0, 250, 45, UINT32_MAX}, {0, 0, 34, 0}}, 3);
    cuda_test_free_all(w.d);
}

/* --- The same bits --- */

/* A row's bits are those of the whole prefill, in chunks and batches of any kind that give the
 * sequence at least 128 queries. */
static void check_same_bits(const struct shape *shape)
{
    uint32_t n_shared = shape->n_heads / shape->n_kv_heads;
    uint32_t least = (WIDE_QUERIES + n_shared - 1) / n_shared;
    static struct world w;
    struct result wholes[2];

    open_wide(&w, shape, 64);
    add_sequence(&w, odd_cut, ODD_SEGS);
    add_sequence(&w, (const uint32_t[]){40, 70}, 2);
    compute_wholes(&w, wholes);
    check_against_reference(&wholes[0]);
    for (uint32_t pos = 0, n; pos + least <= w.seqs[0].n_tokens; pos += n) {
        uint32_t left = w.seqs[0].n_tokens - pos;
        struct part parts[] = {{1, 60, least, 0}, {0, 0, 0, 0}, {1, 3, least + 2, 0}};

        n = least + random_below(60);
        n = n < left ? n : left;
        parts[1] = (struct part){0, pos, n, 0};
        check_same_batch(&w, wholes, &parts[1], 1);
        check_same_batch(&w, wholes, parts, 3);
    }
    cuda_test_free_all(w.d);
}

static void rows_have_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    check_same_bits(
        &(struct shape){.dtype = DTYPE_BF16, .dim = 128, .n_heads = 4, .n_kv_heads = 1});
    check_same_bits(&(struct shape){
        .dtype = DTYPE_BF16, .dim = 64, .n_heads = 6, .n_kv_heads = 2, .window = 75});
    check_same_bits(&(struct shape){.dtype = DTYPE_F16, .dim = 64, .n_heads = 4, .n_kv_heads = 1});
}

/* A row has up to three groups of segments: the whole prefill walks them, smaller chunks share them
 * among blocks. */
static void rows_of_several_groups_have_the_same_bits(void **state)
{
    struct shape shape = {.dtype = DTYPE_BF16, .dim = 64, .n_heads = 4, .n_kv_heads = 1};
    static struct world w;
    struct result whole;
    uint32_t cut[20];

    (void)state;
    open_wide(&w, &shape, 64);
    for (uint32_t i = 0; i < 20; i++)
        cut[i] = 1 + random_below(i == 5 ? 130 : 35);
    add_sequence(&w, cut, 20);
    whole = run(&w, &(struct part){0, 0, w.seqs[0].n_tokens, 0}, 1, false);
    check_against_reference(&whole);
    for (uint32_t end = w.seqs[0].n_tokens; end > 100; end -= 70) {
        struct part parts[] = {{0, end - 40, 40, 0}, {0, end - 35, 33, 0}};

        check_same_batch(&w, &whole, parts, 1); /* 160 queries: few blocks */
        struct result got = run(&w, parts, 2, false);
        check_same_rows(&w, &whole, &got, 40, &parts[1]);
    }
    cuda_test_free_all(w.d);
}

/* Decodes, sequences of few queries, other types of KV and other head sizes have the bits of
 * mma.sync. */
static void other_sequences_have_the_bits_of_mma_sync(void **state)
{
    static const struct shape shapes[] = {
        {.dtype = DTYPE_BF16, .dim = 64, .n_heads = 4, .n_kv_heads = 1},
        {.dtype = DTYPE_I8, .dim = 64, .n_heads = 4, .n_kv_heads = 1},
        {.dtype = DTYPE_F16, .dim = 64, .n_heads = 4, .n_kv_heads = 1},
        {.dtype = DTYPE_BF16, .dim = 32, .n_heads = 4, .n_kv_heads = 1}};
    const struct part parts[] = {{0, 400, 1, 0}, {0, 300, 31, 0}, {0, 400, 40, 0}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        uint32_t n_parts = i == 0 ? 2 : 3; /* the third one has enough queries */
        const float *out[2];
        size_t n_out = 0;

        for (int wide = 0; wide < 2; wide++) {
            static struct world w;

            seed_random(40 + i);
            open_world_on(&w, &shapes[i], 64, device_with(64, DTYPE_BF16, wide));
            add_sequence(&w, odd_cut, ODD_SEGS);
            struct result r = run(&w, parts, n_parts, false);
            out[wide] = r.p.out;
            n_out = r.n_out;
        }
        assert_same_bits("beside wgmma", out[1], out[0], n_out * sizeof(float));
    }
    cuda_test_free_all(device_with(64, DTYPE_BF16, true));
}

/* --- Infinities --- */

static void check_infinities(enum dtype kv, uint32_t dim, uint32_t window)
{
    static const uint32_t cut[] = {100, 30};
    struct shape shape = {.dtype = kv, .dim = dim, .n_heads = 4, .n_kv_heads = 1, .window = window};
    static struct world w;
    struct result whole, clean;

    open_wide(&w, &shape, 16);
    add_sequence(&w, cut, 2);
    clean = run(&w, &(struct part){0, 0, 130, 0}, 1, false);
    for (uint32_t i = 0; i < 3; i++) { /* at positions 40, 41 and 110 */
        uint32_t pos = i == 2 ? 110 : 40 + i, t = pos < 100 ? pos : pos - 100;
        uint32_t block = w.blocks[w.segs[pos >= 100].block0 + t / KV_BLOCK_TOKENS];

        dtype_store(kv, kv_at(&w.pool, block, LAYER, 1, 0),
                    kv_v_index(&w.pool, 5 + i, t % KV_BLOCK_TOKENS), i == 1 ? NAN : INFINITY);
    }
    whole = run(&w, &(struct part){0, 0, 130, 0}, 1, false);
    check_against_reference(&whole);
    assert_same_bits("before", whole.p.out, clean.p.out,
                     40 * sizeof(float) * shape.n_heads * shape.dim);
    check_same_batch(&w, &whole, &(struct part){0, 35, 33, 0}, 1);
    check_same_batch(&w, &whole, &(struct part){0, 97, 33, 0}, 1);
    cuda_test_free_all(w.d);
}

/* Values that are inf or NaN change the rows that attend to them, and no others. */
static void values_of_later_keys_never_matter(void **state)
{
    (void)state;
    check_infinities(DTYPE_BF16, 128, 0);
    check_infinities(DTYPE_BF16, 64, 20);
    check_infinities(DTYPE_F16, 64, 20);
}

/* --- The choice --- */

/* Slower than mma.sync, batch-invariant, not measured, refused, no kernel for it, few rows: without
 * wgmma. */
static void a_device_does_without_where_there_is_no_gain(void **state)
{
    struct device_config base = config_of(64, true), changed[9];

    (void)state;
    if (!emulation_make_wgmma_fast)
        skip(); /* a real GPU may choose otherwise */
    base.max_heads = 4;
    assert_false(has_wgmma(cuda_device_for(&base)));
    emulation_make_wgmma_fast(1);
    for (size_t i = 0; i < ARRAY_SIZE(changed); i++)
        changed[i] = base;
    changed[0].max_heads = 2; /* opened again */
    changed[1].batch_invariant = true;
    changed[2].measure = false;
    changed[3].wgmma = false;
    changed[4].kv = DTYPE_I8;
    changed[5].max_rows = 127;
    changed[6].max_head_dim = 96;
    changed[7].max_head_dim = 128;
    changed[8].kv = DTYPE_F16;
    for (size_t i = 0; i < ARRAY_SIZE(changed); i++)
        assert_int_equal(has_wgmma(cuda_device_for(&changed[i])), i == 0 || i >= 7);
    emulation_make_wgmma_fast(0);
}

/* Noise must not change what stored KV belongs to. */
static void a_kept_choice_is_not_measured_again(void **state)
{
    (void)state;
    check_kept_choice(config_of(64, true), "attention-64-emulated-GPU.txt", has_wgmma);
}

/* Open a device whose n-th call of the runtime fails; 0: none. Returns the number of calls. */
static uint64_t open_failing(uint64_t n, bool wgmma)
{
    struct device_config config = config_of(64, wgmma);
    uint64_t n_before = emulation_calls();
    struct device *d = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    emulation_fail_call(n, OUT_OF_MEMORY);
    assert_ok(device_open(&d, &config, &why));
    emulation_fail_call(0, 0);
    n_before = emulation_calls() - n_before;
    assert_int_equal(has_wgmma(d), wgmma && n == 0);
    buf_fini(&why);
    device_close(d);
    return n_before;
}

/* Each of the last calls of an open, which are the trial's, fails once for want of memory: the
 * device opens without wgmma. */
static void a_trial_that_fails_ends_nothing(void **state)
{
    struct device_config other = config_of(32, false);

    (void)state;
    if (!emulation_make_wgmma_fast || !emulation_fail_call || !emulation_calls)
        skip();
    (void)cuda_device_for(&other);
    emulation_make_wgmma_fast(1);
    uint64_t n_without = open_failing(0, false), n_with = open_failing(0, true);
    assert_true(n_with > n_without + 20);
    for (uint64_t i = n_without + 1; i <= n_with; i += 6)
        (void)open_failing(i, true);
    emulation_make_wgmma_fast(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_match_reference),
        cmocka_unit_test(windows_and_caps_match_reference),
        cmocka_unit_test(partial_attention_matches_reference),
        cmocka_unit_test(rows_have_the_same_bits_in_any_batch),
        cmocka_unit_test(rows_of_several_groups_have_the_same_bits),
        cmocka_unit_test(other_sequences_have_the_bits_of_mma_sync),
        cmocka_unit_test(values_of_later_keys_never_matter),
        cmocka_unit_test(a_device_does_without_where_there_is_no_gain),
        cmocka_unit_test(a_kept_choice_is_not_measured_again),
        cmocka_unit_test(a_trial_that_fails_ends_nothing),
    };

    return cmocka_run_group_tests_name("cuda_attention_wgmma", tests, NULL, NULL);
}
