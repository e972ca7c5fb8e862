/* test_merge.c - merging partial attentions on the GPU, compared with the reference. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/ref/ref.h"

static struct device *open_device(void)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = 128, .max_k = 4096, .max_heads = 8, .max_head_dim = 256};

    return cuda_device_for(&config);
}

struct merge {
    struct merge_params p; /* host arrays */
    float *parts, *lse;
    size_t n_heads, n_out;
};

/* Make parts of very different weight. Some have no keys (lse -inf) and hold NaN, which must not
 * count. Head 0 has no part with keys; the last head has a NaN that does count. */
static void merge_init(struct merge *m, uint32_t n_rows, uint32_t n_heads, uint32_t dim,
                       uint32_t n_parts)
{
    m->n_heads = (size_t)n_rows * n_heads;
    m->n_out = m->n_heads * dim;
    m->parts = random_array(n_parts * m->n_out, 1);
    m->lse = random_array(n_parts * m->n_heads, 5);
    m->p = (struct merge_params){.n_rows = n_rows,
                                 .n_heads = n_heads,
                                 .head_dim = dim,
                                 .n_parts = n_parts,
                                 .parts = m->parts,
                                 .lse = m->lse};
    for (size_t i = 0; i < n_parts * m->n_heads; i++) {
        size_t head = i % m->n_heads;

        if (head == 3)
            m->lse[i] = i < m->n_heads ? 2000.0f : -2000.0f;
        if (head != 0 && random_below(4) != 0)
            continue;
        m->lse[i] = -INFINITY;
        for (uint32_t k = 0; k < dim; k++)
            m->parts[i * dim + k] = k % 2 ? NAN : INFINITY;
    }
    if (m->n_heads > 1) {
        m->lse[m->n_heads - 1] = 1;
        m->parts[m->n_out - 1] = NAN;
    }
}

/* Merge rows [first, first + n) only; d NULL: with the reference. Return the floats of out, then
 * those of out_lse. */
static float *merge_run(const struct merge *m, struct device *d, uint32_t first, uint32_t n)
{
    uint32_t dim = m->p.head_dim, parts = m->p.n_parts;
    size_t heads = (size_t)n * m->p.n_heads, n_out = heads * dim;
    float *part_rows = host_array(parts * n_out * sizeof(float));
    float *lse_rows = host_array(parts * heads * sizeof(float));
    float *out = host_array((n_out + heads) * sizeof(float));
    struct merge_params p = m->p;

    for (uint32_t i = 0; i < parts; i++) {
        size_t head = i * m->n_heads + (size_t)first * m->p.n_heads;

        memcpy(part_rows + i * n_out, m->parts + head * dim, n_out * sizeof(float));
        memcpy(lse_rows + i * heads, m->lse + head, heads * sizeof(float));
    }
    p.n_rows = n;
    p.parts = d ? on_device(d, part_rows, parts * n_out * sizeof(float)) : part_rows;
    p.lse = d ? on_device(d, lse_rows, parts * heads * sizeof(float)) : lse_rows;
    p.out = d ? on_device(d, NULL, (n_out + heads) * sizeof(float)) : out;
    p.out_lse = p.out + n_out;
    assert_ok(d ? device_ops(d)->merge(d, NULL, &p) : ref_merge(NULL, NULL, &p));
    return d ? from_device(d, p.out, (n_out + heads) * sizeof(float)) : out;
}

static void check_merge(uint32_t n_rows, uint32_t n_heads, uint32_t dim, uint32_t n_parts)
{
    struct device *d = open_device();
    struct merge m;

    merge_init(&m, n_rows, n_heads, dim, n_parts);
    float *want = merge_run(&m, NULL, 0, n_rows), *got = merge_run(&m, d, 0, n_rows);

    assert_close("merge", got, want, m.n_out, 2e-6f, 1e-5f);
    assert_close("merge lse", got + m.n_out, want + m.n_out, m.n_heads, 1e-5f, 1e-6f);
    for (uint32_t k = 0; k < dim; k++) /* no part has keys */
        assert_true(got[k] == 0);
    assert_true(got[m.n_out] == -INFINITY);
    assert_same_bits("merge again", merge_run(&m, d, 0, n_rows), got,
                     (m.n_out + m.n_heads) * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r += 7) {
        float *one = merge_run(&m, d, r, 1);
        size_t n = (size_t)n_heads * dim;

        assert_same_bits("merge alone", one, got + r * n, n * sizeof(float));
        assert_same_bits("lse alone", one + n, got + m.n_out + (size_t)r * n_heads,
                         n_heads * sizeof(float));
    }
    cuda_test_free_all(d);
}

static void merge_matches_reference_and_has_a_rows_own_bits(void **state)
{
    static const uint32_t head_dims[] = {1, 2, 3, 63, 64, 65, 128, 256};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(head_dims); i++) {
        check_merge(1, 1, head_dims[i], 1);
        check_merge(3, 2, head_dims[i], 2);
        check_merge(17, 5, head_dims[i], 3);
        check_merge(2, 4, head_dims[i], 11);
    }
    if (full_size()) {
        check_merge(512, 32, 128, 8);
        check_merge(70000, 1, 4, 2);
    }
}

/* One part with keys, merged with parts without keys, keeps its bits. */
static void a_part_alone_keeps_its_bits_whatever_the_others_hold(void **state)
{
    const uint32_t n_rows = 9, n_heads = 3, dim = 64, n_parts = 4;
    struct device *d = open_device();
    struct merge m;

    (void)state;
    merge_init(&m, n_rows, n_heads, dim, n_parts);
    for (size_t i = 0; i < n_parts * m.n_heads; i++) {
        bool counts = i / m.n_heads == 2;

        m.lse[i] = counts ? -300.0f : -INFINITY;
        for (uint32_t k = 0; k < dim; k++)
            m.parts[i * dim + k] = counts ? (float)(i + k) / 7 : NAN;
    }
    float *got = merge_run(&m, d, 0, n_rows);

    assert_same_bits("one part", got, m.parts + 2 * m.n_out, m.n_out * sizeof(float));
    for (size_t i = 0; i < m.n_heads; i++)
        assert_true(got[m.n_out + i] == -300.0f);
    cuda_test_free_all(d);
}

static void lse_of_the_result_is_optional(void **state)
{
    struct device *d = open_device();
    struct merge m;

    (void)state;
    merge_init(&m, 4, 3, 20, 2);
    struct merge_params p = m.p;
    float *want = merge_run(&m, d, 0, 4);

    p.parts = on_device(d, m.parts, 2 * m.n_out * sizeof(float));
    p.lse = on_device(d, m.lse, 2 * m.n_heads * sizeof(float));
    p.out = on_device(d, NULL, m.n_out * sizeof(float));
    assert_ok(device_ops(d)->merge(d, NULL, &p));
    assert_same_bits("merge", from_device(d, p.out, m.n_out * sizeof(float)), want,
                     m.n_out * sizeof(float));
    cuda_test_free_all(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_matches_reference_and_has_a_rows_own_bits),
        cmocka_unit_test(a_part_alone_keeps_its_bits_whatever_the_others_hold),
        cmocka_unit_test(lse_of_the_result_is_optional),
    };

    return cmocka_run_group_tests_name("cuda_merge", tests, NULL, NULL);
}
