/* test_small.c - embed, rmsnorm, rope_kv, silu_mul and gather against the reference, and the same
 * bits for a row alone as in a batch. */
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/ref/ref.h"

static const uint32_t dims[] = {1, 3, 4, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257, 1100};
#define N_ROWS 41 /* with the larger dims enough to wake the pool */

static void embed_on(struct device *d)
{
    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
            uint32_t ids[N_ROWS], n_vocab = 19, dim = dims[i];
            size_t n = (size_t)N_ROWS * dim;
            char *table = test_alloc(((size_t)n_vocab * dim + 1) * dtype_bytes((enum dtype)t));
            float *want = test_alloc(n * sizeof(float)), *got = test_alloc(n * sizeof(float));
            struct embed_params p = {.n_rows = N_ROWS,
                                     .dim = dim,
                                     .n_vocab = n_vocab,
                                     .table = {.dtype = (enum dtype)t,
                                               .layout = WEIGHT_ROWS,
                                               .n = n_vocab,
                                               .k = dim,
                                               .stride = dim,
                                               .data = table + dtype_bytes((enum dtype)t)},
                                     .ids = ids,
                                     .out = want};

            for (size_t j = 0; j <= (size_t)n_vocab * dim; j++)
                dtype_store((enum dtype)t, table, j, rng_float());
            for (uint32_t r = 0; r < N_ROWS; r++)
                ids[r] = r < n_vocab ? r : rng_below(n_vocab);
            assert_int_equal(ref_embed(NULL, NULL, &p), OK);
            p.out = got;
            assert_int_equal(device_ops(d)->embed(d, NULL, &p), OK);
            check_same("embed", got, want, n);
            free(table);
            free(want);
            free(got);
        }
}

static void embed_equals_reference_bit_for_bit(void **state)
{
    (void)state;
    each_variant(1, embed_on);
    each_variant(3, embed_on);
}

/* With `sum` the norm is that of sum + x, and sum keeps it. */
static void rmsnorm_of_sum_on(struct device *d, uint32_t dim, const float *w)
{
    size_t n = (size_t)N_ROWS * dim;
    float *x = random_floats(n), *sum = random_floats(n), *added = test_alloc(n * sizeof(float));
    float *want = test_alloc(n * sizeof(float)), *got = test_alloc(n * sizeof(float));
    struct rmsnorm_params p = {
        .n_rows = N_ROWS, .dim = dim, .eps = 1e-5f, .x = added, .w = w, .out = want};

    for (size_t i = 0; i < n; i++)
        added[i] = sum[i] + x[i];
    assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
    p.x = x;
    p.sum = sum;
    p.out = got;
    assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
    check_same("rmsnorm of a sum", got, want, n);
    check_same("the sum itself", sum, added, n);
    free(x);
    free(sum);
    free(added);
    free(want);
    free(got);
}

static void rmsnorm_dim_on(struct device *d, uint32_t dim)
{
    size_t n = (size_t)N_ROWS * dim;
    float *x = random_floats(n), *w = random_floats(dim);
    float *want = test_alloc(n * sizeof(float)), *got = test_alloc(n * sizeof(float));
    float *one = test_alloc(dim * sizeof(float));
    struct rmsnorm_params p = {
        .n_rows = N_ROWS, .dim = dim, .eps = 1e-5f, .x = x, .w = w, .out = want};

    for (uint32_t i = 0; i < dim; i++) {
        x[2 * dim + i] = 0;
        x[3 * dim + i] *= 1e-12f; /* eps decides */
        x[4 * dim + i] *= 1e12f;
    }
    assert_int_equal(ref_rmsnorm(NULL, NULL, &p), OK);
    p.out = got;
    assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
    check_close("rmsnorm", got, want, n, 1e-7, 2e-6);
    for (uint32_t t = 0; t < N_ROWS; t++) {
        struct rmsnorm_params alone = {.n_rows = 1, .dim = dim, .eps = 1e-5f, .w = w, .out = one};

        alone.x = x + (size_t)t * dim;
        assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &alone), OK);
        check_same("rmsnorm alone", one, got + (size_t)t * dim, dim);
    }
    p.out = x; /* in place */
    assert_int_equal(device_ops(d)->rmsnorm(d, NULL, &p), OK);
    check_same("rmsnorm in place", x, got, n);
    rmsnorm_of_sum_on(d, dim, w);
    free(x);
    free(w);
    free(want);
    free(got);
    free(one);
}

static void rmsnorm_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        rmsnorm_dim_on(d, dims[i]);
}

static void rmsnorm_equals_reference_alone_in_a_batch_and_in_place(void **state)
{
    (void)state;
    each_variant(1, rmsnorm_on);
    each_variant(3, rmsnorm_on);
}

static void silu_mul_dim_on(struct device *d, uint32_t dim)
{
    static const float nasty[] = {0,    -0.0f, 80,  -80,   87.5f,    -87.5f,    88.5f, -88.5f,
                                  1000, -1000, NAN, 3e38f, INFINITY, -INFINITY, 1e-30f};
    size_t n = (size_t)N_ROWS * dim;
    float *x = random_floats(2 * n), *one = test_alloc(dim * sizeof(float));
    float *want = test_alloc(n * sizeof(float)), *got = test_alloc(n * sizeof(float));
    struct silu_mul_params p = {.n_rows = N_ROWS, .dim = dim, .gate_up = x, .out = want};

    for (size_t i = 0; i < 2 * n; i++)
        x[i] *= 8;
    for (size_t i = 0; i < ARRAY_SIZE(nasty); i++)
        x[i * 2 * dim + rng_below(dim)] = nasty[i];
    assert_int_equal(ref_silu_mul(NULL, NULL, &p), OK);
    p.out = got;
    assert_int_equal(device_ops(d)->silu_mul(d, NULL, &p), OK);
    check_close("silu_mul", got, want, n, 1e-30, 1e-6);
    for (uint32_t t = 0; t < N_ROWS; t++) {
        struct silu_mul_params alone = {.n_rows = 1, .dim = dim, .out = one};

        alone.gate_up = x + (size_t)t * 2 * dim;
        assert_int_equal(device_ops(d)->silu_mul(d, NULL, &alone), OK);
        check_same("silu_mul alone", one, got + (size_t)t * dim, dim);
    }
    free(x);
    free(one);
    free(want);
    free(got);
}

static void silu_mul_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++)
        silu_mul_dim_on(d, dims[i]);
}

static void silu_mul_equals_reference_up_to_inf_and_nan(void **state)
{
    (void)state;
    each_variant(1, silu_mul_on);
    each_variant(3, silu_mul_on);
}

static void gather_on(struct device *d)
{
    for (size_t i = 0; i < ARRAY_SIZE(dims); i++) {
        size_t n = (size_t)N_ROWS * dims[i];
        float *x = random_floats(n), *out = test_alloc(n * sizeof(float));
        uint32_t rows[N_ROWS];
        struct gather_params p = {
            .n_rows = N_ROWS, .dim = dims[i], .x = x, .rows = rows, .out = out};

        for (uint32_t r = 0; r < N_ROWS; r++)
            rows[r] = rng_below(N_ROWS);
        assert_int_equal(device_ops(d)->gather(d, NULL, &p), OK);
        for (uint32_t r = 0; r < N_ROWS; r++)
            check_same("gather", out + (size_t)r * dims[i], x + (size_t)rows[r] * dims[i], dims[i]);
        free(x);
        free(out);
    }
}

static void gather_picks_rows(void **state)
{
    (void)state;
    each_variant(1, gather_on);
    each_variant(3, gather_on);
}

/* A batch for rope_kv: every row its own slot. */
struct rope {
    struct rope_kv_params p;
    float *qkv; /* [T][H * d + G * d + G * d + pad], as a fused product gives it */
    float *table;
    uint32_t pos[N_ROWS], block[N_ROWS], offset[N_ROWS];
    size_t pool_elements;
};

/* Slots of neighbours are `step` apart. */
static void rope_init(struct rope *r, enum dtype t, uint32_t dim, uint32_t rot_dim, uint32_t step)
{
    uint32_t n_heads = 6, n_kv = 2;
    size_t stride = (size_t)(n_heads + 2 * n_kv) * dim + 3;

    r->qkv = random_floats(N_ROWS * stride);
    r->table = random_floats((size_t)50 * rot_dim);
    r->p = (struct rope_kv_params){
        .n_rows = N_ROWS,
        .n_heads = n_heads,
        .rot_dim = rot_dim,
        .layer = 1,
        .q = r->qkv,
        .k = r->qkv + (size_t)n_heads * dim,
        .v = r->qkv + (size_t)(n_heads + n_kv) * dim,
        .qkv_stride = stride,
        .pos = r->pos,
        .cos_sin = r->table,
        .n_pos = 50,
        .slot_block = r->block,
        .slot_offset = r->offset,
        .pool = {.layout = kv_layout_of(t),
                 .n_blocks = 5,
                 .n_layers = 2,
                 .n_kv_heads = n_kv,
                 .head_dim = dim},
    };
    for (uint32_t i = 0; i < N_ROWS; i++) {
        uint32_t slot = (i * step) % (5 * KV_BLOCK_TOKENS);

        r->pos[i] = rng_below(50);
        r->block[i] = slot / KV_BLOCK_TOKENS;
        r->offset[i] = slot % KV_BLOCK_TOKENS;
    }
    r->pool_elements = 5 * kv_block_bytes(&r->p.pool) / dtype_bytes(t);
    r->p.pool.base = NULL;
}

/* Run on a copy of q and a fresh pool of 77s; returns both as floats, q's rows first. */
static float *rope_run(const struct rope *r, struct device *d, uint32_t chunk)
{
    struct rope_kv_params p = r->p;
    size_t n_q = N_ROWS * p.qkv_stride, n = n_q + r->pool_elements;
    float *out = test_alloc(n * sizeof(*out));

    memcpy(out, r->qkv, n_q * sizeof(*out));
    p.pool.base = test_alloc(r->pool_elements * dtype_bytes(p.pool.layout.dtype));
    for (size_t i = 0; i < r->pool_elements; i++)
        dtype_store(p.pool.layout.dtype, p.pool.base, i, 77);
    for (uint32_t t = 0; t < N_ROWS; t += chunk) {
        struct rope_kv_params c = p;

        c.n_rows = t + chunk <= N_ROWS ? chunk : N_ROWS - t;
        c.q = out + t * p.qkv_stride;
        c.k = p.k + t * p.qkv_stride;
        c.v = p.v + t * p.qkv_stride;
        c.pos = p.pos + t;
        c.slot_block = p.slot_block + t;
        c.slot_offset = p.slot_offset + t;
        if (d)
            assert_int_equal(device_ops(d)->rope_kv(d, NULL, &c), OK);
        else
            assert_int_equal(ref_rope_kv(NULL, NULL, &c), OK);
    }
    for (size_t i = 0; i < r->pool_elements; i++)
        out[n_q + i] = dtype_load(p.pool.layout.dtype, p.pool.base, i);
    free(p.pool.base);
    return out;
}

static void rope_on(struct device *d)
{
    static const uint32_t shapes[][2] = {{2, 2},   {8, 8},   {16, 4},  {20, 20},   {34, 0},
                                         {64, 64}, {80, 32}, {96, 96}, {128, 128}, {256, 256}};
    /* One unit in the last place of the cache dtype: the reference rounds from double. */
    static const double ulp[DTYPE_FLOATS] = {1e-6, 0x1p-10, 0x1p-7};

    for (int t = 0; t < DTYPE_FLOATS; t++)
        for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
            struct rope r;

            /* rows of one sequence, or scattered: 53 and 160 have no common factor */
            rope_init(&r, (enum dtype)t, shapes[i][0], shapes[i][1], i % 2 ? 1 : 53);
            size_t n_q = N_ROWS * r.p.qkv_stride;
            float *want = rope_run(&r, NULL, N_ROWS), *got = rope_run(&r, d, N_ROWS);
            float *ones = rope_run(&r, d, 1);

            check_close("rope q", got, want, n_q, 1e-5, 1e-6);
            check_close("rope cache", got + n_q, want + n_q, r.pool_elements, 1e-5, ulp[t]);
            check_same("rope one by one", ones, got, n_q + r.pool_elements);
            free(want);
            free(got);
            free(ones);
            free(r.qkv);
            free(r.table);
        }
}

static void rope_kv_equals_reference_and_touches_only_its_slots(void **state)
{
    (void)state;
    each_variant(1, rope_on);
    each_variant(2, rope_on); /* a head for each thread */
    each_variant(3, rope_on);
}

/* KV of one byte: the reference rotates in double, so K may be rounded to a neighbour; V has the
 * reference's bits. Slots that no row has keep theirs. */
static void rope_scaled(struct device *d, enum dtype t, uint32_t dim, uint32_t rot_dim, bool spoilt)
{
    struct rope r;

    rope_init(&r, t, dim, rot_dim, 53);
    if (spoilt) {
        r.qkv[6 * dim] = NAN;
        r.qkv[r.p.qkv_stride + 8 * dim + dim - 1] = INFINITY;
        for (uint32_t i = 0; i < dim; i++) {
            r.qkv[2 * r.p.qkv_stride + 8 * dim + i] *= 1e-31f;
            r.qkv[3 * r.p.qkv_stride + 8 * dim + i] *= 1e-25f;
        }
    }
    size_t n = 5 * kv_block_bytes(&r.p.pool);
    struct kv_pool want = r.p.pool, got = r.p.pool, ones = r.p.pool;
    struct kv_pool *pools[] = {&want, &got, &ones};
    float *q = test_alloc(N_ROWS * r.p.qkv_stride * sizeof(float)), a[256], b[256];

    for (int i = 0; i < 3; i++) {
        struct rope_kv_params p = r.p;

        pools[i]->base = test_alloc(n);
        memset(pools[i]->base, 77, n);
        p.pool = *pools[i];
        memcpy(q, r.qkv, N_ROWS * r.p.qkv_stride * sizeof(float));
        p.q = q;
        p.n_rows = i < 2 ? N_ROWS : 1;
        for (uint32_t row = 0; row < N_ROWS; row += p.n_rows) {
            struct rope_kv_params c = p;

            c.q += row * p.qkv_stride;
            c.k += row * p.qkv_stride;
            c.v += row * p.qkv_stride;
            c.pos += row;
            c.slot_block += row;
            c.slot_offset += row;
            if (i > 0)
                assert_int_equal(device_ops(d)->rope_kv(d, NULL, &c), OK);
            else
                assert_int_equal(ref_rope_kv(NULL, NULL, &c), OK);
        }
    }
    assert_memory_equal(ones.base, got.base, n);
    for (uint32_t block = 0; block < 5; block++)
        for (uint32_t i = 0; i < 2 * 2 * 2 * KV_BLOCK_TOKENS; i++) {
            uint32_t layer = i % 2, head = i / 2 % 2, token = i / 8;
            int v = (int)(i / 4 % 2);
            float max = 0;

            kv_token_load(&want, block, layer, v, head, token, a);
            kv_token_load(&got, block, layer, v, head, token, b);
            for (uint32_t e = 0; e < dim; e++)
                max = fabsf(a[e]) > max ? fabsf(a[e]) : max;
            for (uint32_t e = 0; e < dim; e++)
                if (v)
                    assert_memory_equal(&a[e], &b[e], sizeof(*a));
                else
                    assert_true(isnan(a[e]) ? isnan(b[e])
                                            : fabsf(a[e] - b[e]) <=
                                                  max * (t == DTYPE_I8 ? 1.01f / 127 : 1.0f / 14));
        }
    for (int i = 0; i < 3; i++)
        free(pools[i]->base);
    free(q);
    free(r.qkv);
    free(r.table);
}

static void rope_scaled_on(struct device *d)
{
    static const uint32_t shapes[][2] = {{2, 2}, {20, 20}, {34, 0}, {64, 64}, {80, 32}, {256, 256}};

    for (size_t i = 0; i < 2 * ARRAY_SIZE(shapes); i++) {
        rope_scaled(d, DTYPE_I8, shapes[i / 2][0], shapes[i / 2][1], i % 2);
        rope_scaled(d, DTYPE_F8, shapes[i / 2][0], shapes[i / 2][1], i % 2);
    }
}

static void rope_kv_quantizes_heads_as_the_reference_does(void **state)
{
    (void)state;
    each_variant(1, rope_scaled_on);
    each_variant(3, rope_scaled_on);
}

/* V goes into the cache unrotated, so its rounding can be judged exactly, on any bits at all. */
static void rounding_on(struct device *d)
{
    for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
        struct rope r;

        rope_init(&r, (enum dtype)t, 64, 0, 53);
        for (uint32_t i = 0; i < N_ROWS * r.p.qkv_stride; i++) {
            uint32_t bits = rng_u32();

            memcpy(&r.qkv[i], &bits, sizeof(bits));
        }
        size_t n_q = N_ROWS * r.p.qkv_stride;
        float *want = rope_run(&r, NULL, N_ROWS), *got = rope_run(&r, d, N_ROWS);

        check_same("rounding", got + n_q, want + n_q, r.pool_elements);
        free(want);
        free(got);
        free(r.qkv);
        free(r.table);
    }
}

static void cache_rounding_equals_the_scalar_conversion(void **state)
{
    (void)state;
    each_variant(1, rounding_on);
}

static void no_rows_on(struct device *d)
{
    const struct ops *o = device_ops(d);

    assert_int_equal(o->embed(d, NULL, &(struct embed_params){.dim = 8}), OK);
    assert_int_equal(o->rmsnorm(d, NULL, &(struct rmsnorm_params){.dim = 8}), OK);
    assert_int_equal(o->silu_mul(d, NULL, &(struct silu_mul_params){.dim = 8}), OK);
    assert_int_equal(o->gather(d, NULL, &(struct gather_params){.dim = 8}), OK);
    assert_int_equal(
        o->rope_kv(d, NULL,
                   &(struct rope_kv_params){
                       .pool = {.layout = kv_layout_of(DTYPE_F32), .n_layers = 1, .head_dim = 8}}),
        OK);
}

static void no_rows_do_nothing(void **state)
{
    (void)state;
    each_variant(2, no_rows_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_equals_reference_bit_for_bit),
        cmocka_unit_test(rmsnorm_equals_reference_alone_in_a_batch_and_in_place),
        cmocka_unit_test(silu_mul_equals_reference_up_to_inf_and_nan),
        cmocka_unit_test(gather_picks_rows),
        cmocka_unit_test(rope_kv_equals_reference_and_touches_only_its_slots),
        cmocka_unit_test(rope_kv_quantizes_heads_as_the_reference_does),
        cmocka_unit_test(cache_rounding_equals_the_scalar_conversion),
        cmocka_unit_test(no_rows_do_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
