/* test_experts.c - mixtures of experts on the GPU: routers and sums against the reference, products
 * against gemm() with the row and its expert alone. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#define MAX_ROWS 150 /* fewer than the sorted rows of some tests: products are cut */

static struct device *open_device(void)
{
    struct device_config config = {.kind = DEVICE_CUDA,
                                   .max_rows = MAX_ROWS,
                                   .max_k = 512,
                                   .max_heads = 8,
                                   .max_head_dim = 64,
                                   .batch_invariant = true};

    return cuda_device_for(&config);
}

/* --- routers --- */

static struct route_params results_of(struct device *d, const struct route_params *like)
{
    uint32_t n = like->n_rows * like->n_chosen;
    struct route_params p = *like;

    p.experts = d ? on_device(d, NULL, n * 4) : host_array(n * 4);
    p.weights = d ? on_device(d, NULL, n * 4) : host_array(n * 4);
    p.rows = d ? on_device(d, NULL, n * 4) : host_array(n * 4);
    p.at = d ? on_device(d, NULL, n * 4) : host_array(n * 4);
    p.offsets = d ? on_device(d, NULL, (p.n_experts + 1) * 4) : host_array((p.n_experts + 1) * 4);
    return p;
}

static void check_rows_alone(struct device *d, const struct route_params *all)
{
    uint32_t k = all->n_chosen;
    const float *weights = from_device(d, all->weights, all->n_rows * k * sizeof(float));

    for (size_t t = 0; t < all->n_rows; t += 3) {
        struct route_params one = *all;

        one.n_rows = 1;
        one.logits += t * one.n_experts;
        one.experts = on_device(d, NULL, k * 4);
        one.weights = on_device(d, NULL, k * 4);
        one.offsets = one.rows = one.at = NULL;
        assert_ok(device_ops(d)->route(d, NULL, &one));
        assert_same_bits("route alone", from_device(d, one.weights, k * 4), weights + t * k, k * 4);
    }
}

static void check_route(struct route_params p)
{
    struct device *d = open_device();
    uint32_t n = p.n_rows * p.n_chosen;
    size_t n_logits = (size_t)p.n_rows * p.n_experts;
    float *logits = random_array(n_logits, 2);

    for (size_t i = 0; i < n_logits; i += 4)
        logits[i] = 0.5f; /* ties */
    for (size_t i = 7; i < n_logits; i += 131)
        logits[i] = i % 2 ? NAN : -INFINITY;
    p.logits = logits;
    struct route_params want = results_of(NULL, &p), got = results_of(d, &p);
    got.logits = on_device(d, logits, n_logits * sizeof *logits);
    assert_ok(ref_route(NULL, NULL, &want));
    assert_ok(device_ops(d)->route(d, NULL, &got));
    assert_same_bits("experts", from_device(d, got.experts, n * 4), want.experts, n * 4);
    assert_same_bits("rows", from_device(d, got.rows, n * 4), want.rows, n * 4);
    assert_same_bits("places", from_device(d, got.at, n * 4), want.at, n * 4);
    assert_same_bits("offsets", from_device(d, got.offsets, (p.n_experts + 1) * 4), want.offsets,
                     (p.n_experts + 1) * 4);
    assert_close("weights", from_device(d, got.weights, n * 4), want.weights, n, 1e-7f, 1e-5f);
    check_rows_alone(d, &got);
    cuda_test_free_all(d);
}

static void a_router_chooses_as_the_reference_whatever_the_batch(void **state)
{
    static const uint32_t sizes[][3] = {/* T, E, k */
                                        {1, 1, 1},  {3, 8, 2},   {40, 8, 2},  {5, 33, 5},
                                        {9, 64, 6}, {2, 128, 8}, {70, 60, 4}, {1, 512, 64}};

    (void)state;
    seed_random(1);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t flags = 0; flags < 4; flags++)
            check_route((struct route_params){.n_rows = sizes[i][0],
                                              .n_experts = sizes[i][1],
                                              .n_chosen = sizes[i][2],
                                              .score = flags & 1 ? ROUTE_SIGMOID : ROUTE_SOFTMAX,
                                              .renormalize = flags & 2,
                                              .scale = 1.5f});
    if (full_size())
        check_route((struct route_params){
            .n_rows = 2048, .n_experts = 128, .n_chosen = 8, .renormalize = 1, .scale = 1});
}

/* --- products --- */

static const struct type {
    enum dtype t;
    uint32_t group;
} types[] = {{DTYPE_F32, 0}, {DTYPE_F16, 0},  {DTYPE_BF16, 0}, {DTYPE_I8, 32},  {DTYPE_I8, 128},
             {DTYPE_I4, 32}, {DTYPE_I4, 128}, {DTYPE_A8, 32},  {DTYPE_A4, 128}, {DTYPE_F8, 128}};

#define N_EXPERTS_MAX 35

struct world {
    struct gemm_experts_params p; /* on the device */
    uint32_t offsets[N_EXPERTS_MAX + 1];
};

/* `each`: rows of most experts; expert 3 has 30 more, and every fifth has none. */
struct shape {
    uint32_t n_experts, each, n, k;
};

static void fill_expert(const struct weight *w)
{
    float *x = random_array((size_t)w->n * w->k, 1 / sqrtf((float)w->k));

    if (w->group) {
        quantize_rows(w, 0, x, w->n);
        return;
    }
    void *elements = host_array((size_t)w->n * w->k * dtype_bytes(w->dtype));
    for (size_t i = 0; i < (size_t)w->n * w->k; i++)
        dtype_store(w->dtype, elements, i, x[i]);
    pack_rows(w, 0, elements, w->n);
}

static struct world make_world(struct device *d, const struct type *type, const struct shape *s)
{
    uint32_t each = s->each, n = s->n, k = s->k;
    struct world w = {0};
    struct weight one = {.dtype = type->t,
                         .layout = WEIGHT_ROWS,
                         .n = n,
                         .k = k,
                         .group = type->group,
                         .stride = pack_row_stride(k)};
    size_t bytes = (pack_weight_bytes(&one) + 255) / 256 * 256;
    unsigned char *all = host_array(s->n_experts * bytes);
    uint32_t most = 0;

    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t count = e % 5 == 0 ? 0 : e == 3 ? each + 30 : each > 1 ? each - e % 2 : each;

        most = count > most ? count : most;
        w.offsets[e + 1] = w.offsets[e] + count;
        one.data = all + e * bytes;
        fill_expert(&one);
    }
    uint32_t n_rows = w.offsets[s->n_experts];
    one.data = on_device(d, all, s->n_experts * bytes);
    w.p = (struct gemm_experts_params){
        .n_rows = n_rows,
        .n_rows_max = most,
        .n_experts = s->n_experts,
        .w = one,
        .expert_bytes = bytes,
        .offsets = on_device(d, w.offsets, sizeof w.offsets),
        .a = on_device(d, random_array((size_t)n_rows * k, 1), (size_t)n_rows * k * sizeof(float)),
        .out = on_device(d, NULL, (size_t)n_rows * n * sizeof(float))};
    return w;
}

static void check_products(const struct type *type, const struct shape *s)
{
    struct device *d = open_device();
    struct world w = make_world(d, type, s);
    uint32_t n = s->n, k = s->k;
    char what[80];

    assert_ok(device_ops(d)->gemm_experts(d, NULL, &w.p));
    const float *got = from_device(d, w.p.out, (size_t)w.p.n_rows * n * sizeof *got);
    for (uint32_t e = 0; e < s->n_experts; e++)
        for (uint32_t i = w.offsets[e]; i < w.offsets[e + 1]; i += 1 + s->each / 3) {
            struct gemm_params g = {.n_rows = 1,
                                    .a = w.p.a + (size_t)i * k,
                                    .a_stride = k,
                                    .w = w.p.w,
                                    .out = on_device(d, NULL, n * sizeof(float)),
                                    .out_stride = n};

            g.w.data = (const unsigned char *)g.w.data + e * w.p.expert_bytes;
            assert_ok(device_ops(d)->gemm(d, NULL, &g));
            snprintf(what, sizeof what, "dtype %d/%u expert %u row %u", type->t, type->group, e, i);
            assert_same_bits(what, from_device(d, g.out, n * sizeof(float)), got + (size_t)i * n,
                             n * sizeof(float));
        }
    cuda_test_free_all(d);
}

static void a_row_has_the_bits_of_its_expert_alone(void **state)
{
    (void)state;
    seed_random(2);
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        check_products(&types[i], &(struct shape){35, 1, 33, 130});
        check_products(&types[i], &(struct shape){35, 7, 17, 96}); /* cut at MAX_ROWS */
        check_products(&types[i], &(struct shape){10, 8, 20, 40}); /* taller and taller tiles */
        check_products(&types[i], &(struct shape){3, 20, 40, 128});
        check_products(&types[i], &(struct shape){2, 140, 20, 40});
    }
    if (full_size())
        for (size_t i = 0; i < ARRAY_SIZE(types); i++)
            check_products(&types[i], &(struct shape){35, 100, 768, 512});
}

/* --- sums --- */

static void check_combine(uint32_t n_rows, uint32_t dim, uint32_t k, bool in_order)
{
    struct device *d = open_device();
    uint32_t n = n_rows * k, *at = host_array(n * sizeof *at);
    float *weights = random_array(n, 1), *y = random_array((size_t)n * dim, 1);
    float *want = random_array((size_t)n_rows * dim, 1);
    struct combine_params p = {.n_rows = n_rows,
                               .dim = dim,
                               .n_chosen = k,
                               .weights = weights,
                               .at = in_order ? NULL : at,
                               .y = y,
                               .out = want};
    struct combine_params gpu = p;

    for (uint32_t i = 0; i < n; i++)
        at[i] = n - 1 - i;
    gpu.weights = on_device(d, weights, n * sizeof *weights);
    gpu.at = in_order ? NULL : on_device(d, at, n * sizeof *at);
    gpu.y = on_device(d, y, (size_t)n * dim * sizeof *y);
    gpu.out = on_device(d, want, (size_t)n_rows * dim * sizeof *want);
    assert_ok(ref_combine(NULL, NULL, &p));
    assert_ok(device_ops(d)->combine(d, NULL, &gpu));
    assert_close("combine", from_device(d, gpu.out, (size_t)n_rows * dim * sizeof *want), want,
                 (size_t)n_rows * dim, 1e-5f, 1e-5f);
    cuda_test_free_all(d);
}

static void sums_equal_the_reference(void **state)
{
    (void)state;
    seed_random(3);
    check_combine(1, 1, 1, true);
    check_combine(5, 63, 2, false);
    check_combine(17, 64, 8, false);
    check_combine(2, 1100, 3, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_router_chooses_as_the_reference_whatever_the_batch),
        cmocka_unit_test(a_row_has_the_bits_of_its_expert_alone),
        cmocka_unit_test(sums_equal_the_reference),
    };

    return cmocka_run_group_tests_name("cuda_experts", tests, NULL, NULL);
}
