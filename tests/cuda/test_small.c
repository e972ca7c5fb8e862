/* test_small.c - embed, gather, rmsnorm and rope_kv on the GPU, compared with the reference, and
 * bits of a row compared between batches. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

static const uint32_t dims[] = {1, 3, 4, 63, 64, 65, 128, 516, 1000, 2052, 4100};
static const uint32_t row_counts[] = {1, 2, 33, 70};

static struct device *open_device(void)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = 128, .max_k = 4096, .max_heads = 8, .max_head_dim = 256};

    return cuda_device_for(&config);
}

/* Check that embed gives exactly the reference's result, also for a table that is aligned to its
 * elements only (`shift` elements after an aligned address). */
static void check_embed(struct device *d, struct weight table, size_t n_table_bytes,
                        size_t shift_bytes, uint32_t n_rows)
{
    uint32_t *ids = host_array(n_rows * sizeof *ids);
    size_t n_out = (size_t)n_rows * table.k * sizeof(float);
    float *want = host_array(n_out);
    struct embed_params p = {.n_rows = n_rows,
                             .dim = table.k,
                             .n_vocab = table.n,
                             .table = table,
                             .ids = ids,
                             .out = want};

    uint32_t *from = host_array(n_rows * sizeof *from), *picked = host_array(n_rows * sizeof *ids);

    for (uint32_t i = 0; i < n_rows; i++) {
        ids[i] = i == 0 ? table.n - 1 : random_below(table.n);
        picked[i] = random_below(table.n);
        from[i] = i % 3 == 2 ? random_below(n_rows) : UINT32_MAX;
    }
    if (n_rows > 1) {
        p.from = from;
        p.picked = picked;
    }
    p.table.data = (const char *)table.data + shift_bytes;
    assert_ok(ref_embed(NULL, NULL, &p));
    p.table.data = (const char *)on_device(d, table.data, n_table_bytes) + shift_bytes;
    p.ids = on_device(d, ids, n_rows * sizeof *ids);
    if (n_rows > 1) {
        p.from = on_device(d, from, n_rows * sizeof *from);
        p.picked = on_device(d, picked, n_rows * sizeof *picked);
    }
    p.out = on_device(d, NULL, n_out);
    assert_ok(device_ops(d)->embed(d, NULL, &p));
    assert_same_bits("embed", from_device(d, p.out, n_out), want, n_out);
    cuda_test_free_all(d);
}

static void embed_floats(enum dtype t, uint32_t dim, uint32_t stride, uint32_t shift,
                         uint32_t n_vocab, uint32_t n_rows)
{
    struct device *d = open_device(); /* first, because opening a device frees all arrays */
    size_t n = (size_t)n_vocab * stride + shift;
    float *values = random_array(n, 2);
    void *data = host_array(n * dtype_bytes(t));
    struct weight table = {
        .dtype = t, .layout = WEIGHT_ROWS, .n = n_vocab, .k = dim, .stride = stride, .data = data};

    values[n - 1] = INFINITY;
    for (size_t i = 0; i < n; i++)
        dtype_store(t, data, i, values[i]);
    check_embed(d, table, n * dtype_bytes(t), shift * dtype_bytes(t), n_rows);
}

static void embed_of_floats_is_exact_for_any_stride_and_alignment(void **state)
{
    (void)state;
    for (int t = 0; t < DTYPE_FLOATS; t++) {
        for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
            uint32_t rows = row_counts[i % ARRAY_SIZE(row_counts)];

            embed_floats((enum dtype)t, dims[i], dims[i], 0, 19, rows);
            embed_floats((enum dtype)t, dims[i], pack_row_stride(dims[i]), 0, 7, 3);
            embed_floats((enum dtype)t, dims[i], dims[i] + 5, 0, 7, 3);
            embed_floats((enum dtype)t, dims[i], dims[i] + 4, 1, 7, 3);
        }
        if (full_size())
            embed_floats((enum dtype)t, 4096, 4096, 0, 8192, 512);
    }
}

static void embed_8_bits(enum dtype t, uint32_t dim, uint32_t group, uint32_t n_vocab,
                         uint32_t n_rows)
{
    struct weight table = {.dtype = t,
                           .layout = WEIGHT_ROWS,
                           .n = n_vocab,
                           .k = dim,
                           .group = group,
                           .stride = pack_row_stride(dim)};
    struct device *d = open_device();
    size_t n_bytes = pack_weight_bytes(&table);
    void *data = host_array(n_bytes);

    memset(data, 0, n_bytes);
    table.data = data;
    quantize_rows(&table, 0, random_array((size_t)n_vocab * dim, 2), n_vocab);
    check_embed(d, table, n_bytes, 0, n_rows);
}

static void embed_of_8_bits_is_exact(void **state)
{
    static const enum dtype types[] = {DTYPE_I8, DTYPE_A8, DTYPE_F8};

    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
        for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
            embed_8_bits(types[t], dims[i], types[t] == DTYPE_F8 ? 128 : 32, 19,
                         row_counts[i % ARRAY_SIZE(row_counts)]);
            embed_8_bits(types[t], dims[i], 128, 5, 3);
        }
        if (full_size())
            embed_8_bits(types[t], 4096, 128, 8192, 512);
    }
}

static void check_gather(uint32_t n_in, uint32_t n_rows, uint32_t dim, uint32_t shift)
{
    struct device *d = open_device();
    size_t n_x = (size_t)n_in * dim + shift, n_out = (size_t)n_rows * dim;
    float *x = random_array(n_x, 1), *want = host_array(n_out * sizeof *want);
    uint32_t *rows = host_array(n_rows * sizeof *rows);
    struct gather_params p = {
        .n_rows = n_rows, .dim = dim, .x = x + shift, .rows = rows, .out = want};

    x[shift] = NAN;
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = i == 0 ? n_in - 1 : random_below(n_in);
    assert_ok(ref_gather(NULL, NULL, &p));
    p.x = (float *)on_device(d, x, n_x * sizeof *x) + shift;
    p.rows = on_device(d, rows, n_rows * sizeof *rows);
    p.out = on_device(d, NULL, n_out * sizeof *want);
    assert_ok(device_ops(d)->gather(d, NULL, &p));
    assert_same_bits("gather", from_device(d, p.out, n_out * sizeof *want), want,
                     n_out * sizeof *want);
    cuda_test_free_all(d);
}

static void gather_picks_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        check_gather(17, row_counts[i % ARRAY_SIZE(row_counts)], dims[i], 0);
        check_gather(3, 2, dims[i], 1);
    }
    if (full_size()) {
        check_gather(512, 256, 4096, 0);
        check_gather(100, 70000, 33, 0); /* more rows than a grid's y or z */
    }
}

enum norm_out { OUT_APART, OUT_IS_X, OUT_IS_SUM };

/* Make random rows, and some whose sum of squares is 0, tiny, huge, infinite or NaN. */
static float *norm_input(uint32_t n_rows, uint32_t dim)
{
    float *x = random_array((size_t)n_rows * dim, 1);

    for (uint32_t r = 1; r < n_rows && r < 4; r++)
        for (uint32_t i = 0; i < dim; i++)
            x[(size_t)r * dim + i] *= r == 1 ? 0 : r == 2 ? 1e-12f : 1e12f;
    if (n_rows > 4)
        x[4 * (size_t)dim + dim / 2] = INFINITY;
    if (n_rows > 5)
        x[5 * (size_t)dim + dim - 1] = NAN;
    return x;
}

/* Compute rows [first, first + n); the result is in device memory. x and out begin at the given
 * number of floats after an aligned address. *sum is replaced by the new sum. */
static float *norm_on_device(struct device *d, const struct rmsnorm_params *host, uint32_t first,
                             uint32_t n, uint32_t x_shift, uint32_t out_shift, enum norm_out where,
                             float **sum)
{
    size_t bytes = (size_t)n * host->dim * sizeof(float), at = (size_t)first * host->dim;
    float *x = (float *)on_device(d, NULL, bytes + 4 * x_shift) + x_shift;
    struct rmsnorm_params p = *host;

    p.n_rows = n;
    p.x = x;
    assert_ok(device_upload(d, x, host->x + at, bytes));
    p.w = on_device(d, host->w, host->dim * sizeof(float));
    if (*sum)
        p.sum = on_device(d, *sum + at, bytes);
    if (where == OUT_APART)
        p.out = (float *)on_device(d, NULL, bytes + 4 * out_shift) + out_shift;
    else
        p.out = where == OUT_IS_X ? x : p.sum;
    assert_ok(device_ops(d)->rmsnorm(d, NULL, &p));
    if (*sum)
        *sum = from_device(d, p.sum, bytes);
    return from_device(d, p.out, bytes);
}

static void check_norm(uint32_t n_rows, uint32_t dim, bool with_sum, enum norm_out where)
{
    struct device *d = open_device();
    size_t n = (size_t)n_rows * dim, n_bytes = n * sizeof(float);
    float *want = host_array(n_bytes), *sum = NULL, *want_sum = NULL;
    struct rmsnorm_params p = {.n_rows = n_rows,
                               .dim = dim,
                               .eps = 1e-5f,
                               .x = norm_input(n_rows, dim),
                               .w = random_array(dim, 1),
                               .out = want};

    if (with_sum) {
        sum = random_array(n, 1);
        want_sum = host_array(n_bytes);
        memcpy(want_sum, sum, n_bytes);
        p.sum = want_sum;
    }
    assert_ok(ref_rmsnorm(NULL, NULL, &p));

    float *got_sum = sum;
    float *got = norm_on_device(d, &p, 0, n_rows, 0, 0, where, &got_sum);

    assert_close("rmsnorm", got, want, n, 1e-7f, 4e-6f);
    if (sum && where != OUT_IS_SUM)
        assert_same_bits("sum", got_sum, want_sum, n_bytes);
    for (uint32_t r = 0; r < n_rows; r += r < 6 ? 1 : 16) { /* alone, and at odd addresses */
        float *row_sum = sum;
        float *one = norm_on_device(d, &p, r, 1, r % 2, r / 2 % 2, where, &row_sum);

        assert_same_bits("rmsnorm alone", one, got + (size_t)r * dim, dim * sizeof(float));
    }
    cuda_test_free_all(d);
}

static void rmsnorm_matches_reference_and_has_a_rows_own_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        check_norm(6, dims[i], false, OUT_APART);
        check_norm(row_counts[i % ARRAY_SIZE(row_counts)], dims[i], false, OUT_IS_X);
    }
    check_norm(2, 8192 + 260, false, OUT_IS_X); /* longer than the part that stays in registers */
    check_norm(2, 8192 + 3, false, OUT_APART);
    if (full_size()) {
        check_norm(512, 4096, false, OUT_APART);
        check_norm(70000, 64, false, OUT_APART);
    }
}

static void rmsnorm_adds_to_the_residual_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        check_norm(6, dims[i], true, OUT_APART);
        check_norm(2, dims[i], true, OUT_IS_X);
        check_norm(3, dims[i], true, OUT_IS_SUM);
    }
    check_norm(2, 8192 + 260, true, OUT_IS_X);
    check_norm(2, 8192 + 3, true, OUT_IS_SUM);
    check_norm(2, 8192 + 7, true, OUT_APART);
    if (full_size())
        check_norm(512, 8192, true, OUT_APART);
}

/* Where rows go: slots of one block after the other from an odd one on; the same backwards; each
 * row at the offset behind its neighbour's, but in another block; pairs of rows for the halves of
 * one word that are not next to each other in the batch. */
enum slots { SLOTS_FORWARD, SLOTS_BACKWARD, SLOTS_APART, SLOTS_HALVES, SLOTS_COUNT };

#define N_POOL_BLOCKS 5
#define N_POS 50

struct rope {
    struct rope_kv_params p; /* host arrays */
    float *qkv;
    size_t n_qkv, n_pool_bytes;
    uint32_t *pos, *block, *offset;
};

static uint32_t slot_of(enum slots how, uint32_t row, uint32_t n_rows)
{
    switch (how) {
    case SLOTS_FORWARD: return 5 + row;
    case SLOTS_BACKWARD: return 5 + n_rows - 1 - row;
    case SLOTS_APART:
        /* Distinct, since 5 and 32 are coprime. */
        return row % N_POOL_BLOCKS * KV_BLOCK_TOKENS + row % KV_BLOCK_TOKENS;
    default: return row < n_rows / 2 ? 2 * row : 2 * (row - n_rows / 2) + 1;
    }
}

static void rope_init(struct rope *r, enum dtype t, uint32_t dim, uint32_t rot_dim, uint32_t n_rows,
                      uint32_t pad, enum slots how)
{
    const uint32_t n_heads = 6, n_kv = 2;
    size_t stride = (size_t)(n_heads + 2 * n_kv) * dim + pad;

    r->n_qkv = n_rows * stride;
    r->qkv = random_array(r->n_qkv, 1);
    r->pos = host_array(n_rows * 4);
    r->block = host_array(n_rows * 4);
    r->offset = host_array(n_rows * 4);
    r->p = (struct rope_kv_params){
        .n_rows = n_rows,
        .n_heads = n_heads,
        .rot_dim = rot_dim,
        .layer = 1,
        .q = r->qkv,
        .k = r->qkv + (size_t)n_heads * dim,
        .v = r->qkv + (size_t)(n_heads + n_kv) * dim,
        .qkv_stride = stride,
        .pos = r->pos,
        .cos_sin = random_array(N_POS * rot_dim + 1, 1),
        .n_pos = N_POS,
        .slot_block = r->block,
        .slot_offset = r->offset,
        .pool = {.layout = kv_layout_of(t),
                 .n_blocks = N_POOL_BLOCKS,
                 .n_layers = 2,
                 .n_kv_heads = n_kv,
                 .head_dim = dim},
    };
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t slot = slot_of(how, i, n_rows);

        r->pos[i] = random_below(N_POS);
        r->block[i] = slot / KV_BLOCK_TOKENS;
        r->offset[i] = slot % KV_BLOCK_TOKENS;
    }
    /* Infinities and NaN in K and V of the first row, pass and rotate. */
    r->qkv[n_heads * (size_t)dim] = INFINITY;
    r->qkv[(n_heads + n_kv) * (size_t)dim] = -INFINITY;
    r->qkv[(n_heads + n_kv) * (size_t)dim + dim - 1] = NAN;
    r->n_pool_bytes = N_POOL_BLOCKS * kv_block_bytes(&r->p.pool);
}

/* The type as which the pool's bytes are compared: KV of one byte is not, its floats are. */
static enum dtype pool_type(const struct rope *r)
{
    return r->p.pool.layout.scale_group ? DTYPE_F32 : r->p.pool.layout.dtype;
}

/* All elements are 77 before the op, and those that the op must not write stay 77. */
static void *fresh_pool(const struct rope *r)
{
    void *pool = host_array(r->n_pool_bytes);

    for (size_t i = 0; i < r->n_pool_bytes / dtype_bytes(pool_type(r)); i++)
        dtype_store(pool_type(r), pool, i, 77);
    return pool;
}

/* Q, K and V rows, then the pool, as floats. `d` NULL: by the reference. */
static float *rope_run(const struct rope *r, struct device *d, uint32_t chunk)
{
    size_t n_pool = r->n_pool_bytes / dtype_bytes(pool_type(r));
    float *out = host_array((r->n_qkv + n_pool) * sizeof *out);
    void *pool = fresh_pool(r);
    struct rope_kv_params p = r->p;
    float *qkv = memcpy(out, r->qkv, r->n_qkv * sizeof *qkv);

    if (d) {
        qkv = on_device(d, r->qkv, r->n_qkv * sizeof *qkv);
        p.pos = on_device(d, r->pos, p.n_rows * 4);
        p.slot_block = on_device(d, r->block, p.n_rows * 4);
        p.slot_offset = on_device(d, r->offset, p.n_rows * 4);
        p.cos_sin = on_device(d, p.cos_sin, (N_POS * (size_t)p.rot_dim + 1) * sizeof(float));
    }
    p.pool.base = d ? on_device(d, pool, r->n_pool_bytes) : pool;
    for (uint32_t t = 0; t < r->p.n_rows; t += chunk) {
        struct rope_kv_params c = p;

        c.n_rows = t + chunk <= p.n_rows ? chunk : p.n_rows - t;
        c.q = qkv + t * p.qkv_stride;
        c.k = c.q + (r->p.k - r->p.q);
        c.v = c.q + (r->p.v - r->p.q);
        c.pos += t;
        c.slot_block += t;
        c.slot_offset += t;
        assert_ok(d ? device_ops(d)->rope_kv(d, NULL, &c) : ref_rope_kv(NULL, NULL, &c));
    }
    if (d) {
        memcpy(out, from_device(d, qkv, r->n_qkv * sizeof *out), r->n_qkv * sizeof *out);
        pool = from_device(d, p.pool.base, r->n_pool_bytes);
    }
    for (size_t i = 0; i < n_pool; i++)
        out[r->n_qkv + i] = dtype_load(pool_type(r), pool, i);
    return out;
}

/* Which element of the pool's floats is an element of K or V of a row. */
static size_t pool_index(const struct rope *r, uint32_t row, int v, uint32_t head, uint32_t i)
{
    struct kv_pool pool = r->p.pool;
    static unsigned char origin;

    pool.base = &origin;
    return (size_t)(kv_at(&pool, r->block[row], r->p.layer, v, head) - &origin) /
               dtype_bytes(pool.layout.dtype) +
           (v ? kv_v_index(&pool, i, r->offset[row]) : kv_k_index(&pool, i, r->offset[row]));
}

/* V is not rotated and equal in each bit; an odd head's last pair of K in bf16 ends with a 0, which
 * the reference leaves alone. */
static void check_rows(const struct rope *r, const float *got, float *want)
{
    uint32_t dim = r->p.pool.head_dim;

    for (uint32_t t = 0; t < r->p.n_rows; t++)
        for (uint32_t g = 0; g < r->p.pool.n_kv_heads; g++) {
            for (uint32_t i = 0; i < dim; i++) {
                size_t at = pool_index(r, t, 1, g, i);

                assert_true(got[at] == want[at] || (isnan(got[at]) && isnan(want[at])));
            }
            if (r->p.pool.layout.dtype == DTYPE_BF16 && dim % 2)
                want[pool_index(r, t, 0, g, dim)] = 0;
        }
}

static void check_rope(enum dtype t, uint32_t dim, uint32_t rot_dim, uint32_t n_rows, uint32_t pad,
                       enum slots how)
{
    /* One unit in the last place of the cache dtype: the reference rounds from double. */
    static const float ulp[DTYPE_FLOATS] = {1e-6f, 0x1p-10f, 0x1p-7f};
    struct device *d = open_device();
    struct rope r;

    rope_init(&r, t, dim, rot_dim, n_rows, pad, how);
    size_t n_pool = r.n_pool_bytes / dtype_bytes(t);
    float *want = rope_run(&r, NULL, n_rows), *got = rope_run(&r, d, n_rows);

    check_rows(&r, got + r.n_qkv, want + r.n_qkv);
    assert_close("rope q", got, want, r.n_qkv, 1e-5f, 1e-6f);
    assert_close("rope cache", got + r.n_qkv, want + r.n_qkv, n_pool, 1e-5f, ulp[t]);
    assert_same_bits("rope in chunks", rope_run(&r, d, n_rows > 20 ? 9 : 1), got,
                     (r.n_qkv + n_pool) * sizeof *got);
    cuda_test_free_all(d);
}

static void rope_kv_matches_reference_and_writes_only_its_slots(void **state)
{
    static const uint32_t shapes[][2] = {{2, 2},   {3, 2},   {5, 4},     {8, 8},    {16, 4},
                                         {20, 20}, {34, 0},  {63, 62},   {64, 64},  {65, 64},
                                         {80, 32}, {96, 96}, {128, 128}, {256, 256}};

    (void)state;
    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
            uint32_t rows[SLOTS_COUNT] = {shapes[i][0] > 65 ? 35 : 70, 33, 17, 6};

            for (int how = 0; how < SLOTS_COUNT; how++)
                check_rope((enum dtype)t, shapes[i][0], shapes[i][1], rows[how], how % 2 ? 3 : 0,
                           (enum slots)how);
            check_rope((enum dtype)t, shapes[i][0], shapes[i][1], 1, 0, SLOTS_FORWARD);
        }
    if (full_size())
        for (int t = 0; t < DTYPE_FLOATS; t++)
            check_rope((enum dtype)t, 128, 128, 150, 0, SLOTS_FORWARD);
}

/* The reference rotates in double, so K may be rounded to a neighbour; V has the reference's bits,
 * and so have slots that no row writes. */
static void check_rope_scaled(enum dtype t, uint32_t dim, uint32_t rot_dim, uint32_t n_rows,
                              enum slots how)
{
    struct device *d = open_device();
    struct rope r;
    float a[256], b[256];

    rope_init(&r, t, dim, rot_dim, n_rows, how % 2 ? 3 : 0, how);
    for (uint32_t i = 0; i < dim; i++) /* V of the last row: too small to be quantized */
        r.qkv[r.n_qkv - 1 - i - (how % 2 ? 3 : 0)] *= 1e-31f;
    float *want = rope_run(&r, NULL, n_rows), *got = rope_run(&r, d, n_rows);
    struct kv_pool here = r.p.pool, there = r.p.pool;

    assert_close("rope q", got, want, r.n_qkv, 1e-5f, 1e-6f);
    assert_same_bits("rope in chunks", rope_run(&r, d, n_rows > 20 ? 9 : 1), got,
                     r.n_qkv * sizeof *got + r.n_pool_bytes);
    here.base = got + r.n_qkv;
    there.base = want + r.n_qkv;
    for (uint32_t i = 0; i < N_POOL_BLOCKS * 2 * 2 * 2 * KV_BLOCK_TOKENS; i++) {
        uint32_t layer = i % 2, head = i / 2 % 2, token = i / 8 % KV_BLOCK_TOKENS;
        int v = (int)(i / 4 % 2);
        float max = 0;

        kv_token_load(&here, i / 8 / KV_BLOCK_TOKENS, layer, v, head, token, a);
        kv_token_load(&there, i / 8 / KV_BLOCK_TOKENS, layer, v, head, token, b);
        if (v) {
            assert_memory_equal(a, b, dim * sizeof *a);
            continue;
        }
        for (uint32_t e = 0; e < dim; e++)
            max = fabsf(b[e]) > max ? fabsf(b[e]) : max;
        for (uint32_t e = 0; e < dim; e++)
            assert_true(isnan(b[e]) ? isnan(a[e])
                                    : fabsf(a[e] - b[e]) <=
                                          max * (t == DTYPE_I8 ? 1.01f / 127 : 1.0f / 14));
    }
    cuda_test_free_all(d);
}

static void rope_kv_quantizes_heads_as_the_reference_does(void **state)
{
    static const uint32_t shapes[][2] = {{2, 2}, {20, 20}, {33, 0}, {64, 64}, {80, 32}, {256, 256}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        for (int how = 0; how < SLOTS_COUNT; how++)
            check_rope_scaled(how % 2 == (int)i % 2 ? DTYPE_I8 : DTYPE_F8, shapes[i][0],
                              shapes[i][1], how ? 17 : 35, (enum slots)how);
}

/* V passes unrotated, so its rounding can be judged on any bits at all. */
static void cache_rounding_equals_the_scalar_conversion(void **state)
{
    (void)state;
    for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
        struct device *d = open_device();
        struct rope r;

        rope_init(&r, (enum dtype)t, 64, 0, 40, 0, SLOTS_FORWARD);
        for (size_t i = 0; i < r.n_qkv; i++) {
            uint32_t bits = random_below(1u << 16) << 16 | random_below(1u << 16);

            memcpy(&r.qkv[i], &bits, sizeof bits);
        }
        float *want = rope_run(&r, NULL, 40), *got = rope_run(&r, d, 40);

        for (size_t i = r.n_qkv; i < r.n_qkv + r.n_pool_bytes / dtype_bytes((enum dtype)t); i++)
            assert_true((isnan(got[i]) && isnan(want[i])) ||
                        memcmp(&got[i], &want[i], sizeof(float)) == 0);
        cuda_test_free_all(d);
    }
}

static void no_rows_is_ok(void **state)
{
    struct device *d = open_device();
    const struct ops *o = device_ops(d);

    (void)state;
    assert_ok(o->embed(d, NULL, &(struct embed_params){.dim = 8}));
    assert_ok(o->gather(d, NULL, &(struct gather_params){.dim = 8}));
    assert_ok(o->rmsnorm(d, NULL, &(struct rmsnorm_params){.dim = 8}));
    assert_ok(o->rope_kv(d, NULL, &(struct rope_kv_params){.n_heads = 1}));
    assert_ok(o->silu_mul(d, NULL, &(struct silu_mul_params){.dim = 8}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_of_floats_is_exact_for_any_stride_and_alignment),
        cmocka_unit_test(embed_of_8_bits_is_exact),
        cmocka_unit_test(gather_picks_rows),
        cmocka_unit_test(rmsnorm_matches_reference_and_has_a_rows_own_bits),
        cmocka_unit_test(rmsnorm_adds_to_the_residual_first),
        cmocka_unit_test(rope_kv_matches_reference_and_writes_only_its_slots),
        cmocka_unit_test(rope_kv_quantizes_heads_as_the_reference_does),
        cmocka_unit_test(cache_rounding_equals_the_scalar_conversion),
        cmocka_unit_test(no_rows_is_ok),
    };

    return cmocka_run_group_tests_name("cuda_small", tests, NULL, NULL);
}
