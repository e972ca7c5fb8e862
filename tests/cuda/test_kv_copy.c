/* test_kv_copy.c - copies of KV blocks out of the pool and into it, compared byte by byte. */
#include "tests/cuda/cuda_test.h"

#include <string.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

static struct device *open_device(void)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = 128, .max_k = 4096, .max_heads = 8, .max_head_dim = 256};

    return cuda_device_for(&config);
}

struct copy {
    struct kv_copy_params p; /* host arrays; pool.base and flat hold random bytes */
    size_t n_pool, n_flat;   /* bytes */
};

static unsigned char *random_bytes(size_t n)
{
    unsigned char *b = host_array(n);

    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)random_below(256);
    return b;
}

/* Choose distinct blocks of the pool in random order. */
static void copy_init(struct copy *c, struct kv_pool pool, uint32_t n_blocks)
{
    uint32_t *all = host_array(pool.n_blocks * sizeof *all);

    ASSERT(n_blocks <= pool.n_blocks);
    for (uint32_t i = 0; i < pool.n_blocks; i++)
        all[i] = i;
    for (uint32_t i = 0; i < pool.n_blocks; i++) {
        uint32_t j = i + random_below(pool.n_blocks - i), t = all[i];

        all[i] = all[j];
        all[j] = t;
    }
    c->n_pool = pool.n_blocks * kv_block_bytes(&pool);
    c->n_flat = n_blocks * kv_block_bytes(&pool);
    pool.base = random_bytes(c->n_pool);
    c->p = (struct kv_copy_params){
        .n_blocks = n_blocks, .blocks = all, .pool = pool, .flat = random_bytes(c->n_flat)};
}

/* Check both directions. `flat`: device memory or pinned host memory of n_flat bytes. */
static void check_both(struct device *d, const struct copy *c, void *flat, bool pinned)
{
    struct kv_copy_params p = c->p, ref = c->p;
    void *want_flat = host_array(c->n_flat), *want_pool = host_array(c->n_pool);

    p.blocks = on_device(d, c->p.blocks, c->p.pool.n_blocks * sizeof *p.blocks);
    p.pool.base = on_device(d, c->p.pool.base, c->n_pool);
    p.flat = flat;
    ref.flat = want_flat;
    assert_ok(ref_kv_gather(NULL, NULL, &ref));
    assert_ok(device_ops(d)->kv_gather(d, device_stream(d, DEVICE_COPY_OUT), &p));
    assert_ok(device_stream_wait(d, device_stream(d, DEVICE_COPY_OUT)));
    assert_same_bits("kv_gather", pinned ? flat : from_device(d, flat, c->n_flat), want_flat,
                     c->n_flat);
    assert_same_bits("the pool", from_device(d, p.pool.base, c->n_pool), c->p.pool.base, c->n_pool);

    if (pinned)
        memcpy(flat, c->p.flat, c->n_flat);
    else
        assert_ok(device_upload(d, flat, c->p.flat, c->n_flat));
    memcpy(want_pool, c->p.pool.base, c->n_pool);
    ref = c->p;
    ref.pool.base = want_pool;
    assert_ok(ref_kv_scatter(NULL, NULL, &ref));
    assert_ok(device_ops(d)->kv_scatter(d, device_stream(d, DEVICE_COPY_IN), &p));
    assert_ok(device_stream_wait(d, device_stream(d, DEVICE_COPY_IN)));
    assert_same_bits("kv_scatter", from_device(d, p.pool.base, c->n_pool), want_pool, c->n_pool);
}

static void check_copy(enum dtype t, uint32_t head_dim, uint32_t n_kv_heads, uint32_t n_layers,
                       uint32_t n_pool_blocks, uint32_t n_blocks)
{
    struct device *d = open_device();
    struct kv_pool pool = {.layout = kv_layout_of(t),
                           .n_blocks = n_pool_blocks,
                           .n_layers = n_layers,
                           .n_kv_heads = n_kv_heads,
                           .head_dim = head_dim};
    struct copy c;

    copy_init(&c, pool, n_blocks);
    check_both(d, &c, on_device(d, NULL, c.n_flat), false);

    void *pinned = device_alloc_pinned(d, c.n_flat);

    assert_non_null(pinned);
    memset(pinned, 0xff, c.n_flat);
    check_both(d, &c, pinned, true);
    device_free_pinned(d, pinned);
    cuda_test_free_all(d);
}

/* Blocks as large as one piece of the kernel, smaller and larger, and odd head sizes with
 * padding. */
static void blocks_go_out_and_in_and_nothing_else_changes(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8};

    (void)state;
    for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
        check_copy(types[t], 1, 1, 1, 3, 2);
        check_copy(types[t], 3, 1, 1, 5, 5);
        check_copy(types[t], 65, 2, 3, 7, 4);
        check_copy(types[t], 64, 2, 2, 4, 1);
        check_copy(types[t], 20, 3, 1, 40, 37);
        check_copy(types[t], 256, 1, 1, 3, 2);
        if (full_size())
            check_copy(types[t], 128, 8, 32, 20, 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_out_and_in_and_nothing_else_changes),
    };

    return cmocka_run_group_tests_name("cuda_kv_copy", tests, NULL, NULL);
}
