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
        one.slot_block = NULL;
        one.experts = on_device(d, NULL, k * 4);
        one.weights = on_device(d, NULL, k * 4);
        one.offsets = one.rows = one.at = NULL;
        assert_ok(device_ops(d)->route(d, NULL, &one));
        assert_same_bits("route alone", from_device(d, one.weights, k * 4), weights + t * k, k * 4);
    }
}

/* slots [T]: every third row is padding. */
static uint32_t *make_slots(uint32_t n_rows)
{
    uint32_t *slots = host_array(n_rows * sizeof *slots);

    for (uint32_t t = 0; t < n_rows; t++)
        slots[t] = t % 3 == 2 ? UINT32_MAX : t;
    return slots;
}

static void check_route(struct route_params p, bool is_padded)
{
    struct device *d = open_device();
    uint32_t n = p.n_rows * p.n_chosen;
    size_t n_logits = (size_t)p.n_rows * p.n_experts;
    float *logits = random_array(n_logits, 2);
    uint32_t *slots = is_padded ? make_slots(p.n_rows) : NULL;

    for (size_t i = 0; i < n_logits; i += 4)
        logits[i] = 0.5f; /* ties */
    for (size_t i = 7; i < n_logits; i += 131)
        logits[i] = i % 2 ? NAN : -INFINITY;
    p.logits = logits;
    p.slot_block = slots;
    struct route_params want = results_of(NULL, &p), got = results_of(d, &p);
    got.logits = on_device(d, logits, n_logits * sizeof *logits);
    got.slot_block = slots ? on_device(d, slots, p.n_rows * sizeof *slots) : NULL;
    assert_ok(ref_route(NULL, NULL, &want));
    for (int i = 0; i < 2; i++) /* the second call finds what the first one leaves */
        assert_ok(device_ops(d)->route(d, NULL, &got));
    uint32_t n_placed = want.offsets[p.n_experts];
    assert_same_bits("experts", from_device(d, got.experts, n * 4), want.experts, n * 4);
    assert_same_bits("rows", from_device(d, got.rows, n * 4), want.rows, n_placed * 4);
    assert_same_bits("places", from_device(d, got.at, n * 4), want.at, n * 4);
    assert_same_bits("offsets", from_device(d, got.offsets, (p.n_experts + 1) * 4), want.offsets,
                     (p.n_experts + 1) * 4);
    assert_close("weights", from_device(d, got.weights, n * 4), want.weights, n, 1e-7f, 1e-5f);
    check_rows_alone(d, &got);
    cuda_test_free_all(d);
}

static void a_router_chooses_as_the_reference_whatever_the_batch(void **state)
{
    static const uint32_t sizes[][3] = {/* T, E, k; {128, 12, 8} is the most that one block sorts */
                                        {1, 1, 1},    {3, 8, 2},   {40, 8, 2},  {5, 33, 5},
                                        {9, 64, 6},   {2, 128, 8}, {70, 60, 4}, {1, 512, 64},
                                        {128, 12, 8}, {129, 12, 8}};

    (void)state;
    seed_random(1);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t flags = 0; flags < 4; flags++)
            check_route((struct route_params){.n_rows = sizes[i][0],
                                              .n_experts = sizes[i][1],
                                              .n_chosen = sizes[i][2],
                                              .score = flags & 1 ? ROUTE_SIGMOID : ROUTE_SOFTMAX,
                                              .renormalize = flags & 2,
                                              .scale = 1.5f},
                        flags == 2 || flags == 1);
    if (full_size())
        check_route(
            (struct route_params){
                .n_rows = 2048, .n_experts = 128, .n_chosen = 8, .renormalize = 1, .scale = 1},
            false);
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
    float *a; /* p.a on the host */
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
    w.a = random_array((size_t)n_rows * k, 1);
    w.p =
        (struct gemm_experts_params){.n_rows = n_rows,
                                     .n_rows_max = most,
                                     .n_experts = s->n_experts,
                                     .w = one,
                                     .expert_bytes = bytes,
                                     .offsets = on_device(d, w.offsets, sizeof w.offsets),
                                     .a = on_device(d, w.a, (size_t)n_rows * k * sizeof(float)),
                                     .out = on_device(d, NULL, (size_t)n_rows * n * sizeof(float))};
    return w;
}

/* The rows of w.p.a in the other order, of which there are as many as one expert has at most, and
 * which of them each sorted row is. */
static void scatter_rows(struct device *d, struct world *w, const struct type *type,
                         struct gemm_experts_params *p, bool is_rounded)
{
    uint32_t k = p->w.k, n = p->n_rows, n_rows = p->n_rows_max,
             *rows = host_array(n * sizeof *rows);
    float *a = host_array((size_t)n_rows * k * sizeof *a);

    for (uint32_t i = 0; i < n; i++) {
        rows[i] = n_rows - 1 - i % n_rows;
        memcpy(a + (size_t)rows[i] * k, w->a + (size_t)(i % n_rows) * k, k * sizeof *a);
    }
    p->rows = on_device(d, rows, n * sizeof *rows);
    p->a = is_rounded ? NULL : on_device(d, a, (size_t)n_rows * k * sizeof *a);
    if (is_rounded)
        p->rounded = on_device(d, round_rows(a, n_rows, k, type->t),
                               (size_t)n_rows * pack_row_stride(k) * sizeof(uint16_t));
}

/* Products that find their rows by an index, also among more rows than one expert may have. */
static void check_rows_by_index(struct device *d, struct world *w, const struct type *type)
{
    size_t n_bytes = (size_t)w->p.n_rows * w->p.w.n * sizeof(float);
    uint32_t k = w->p.w.k;

    if (w->p.n_rows_max > MAX_ROWS)
        return;
    for (uint32_t i = w->p.n_rows_max; i < w->p.n_rows; i++) /* as the index repeats them */
        memcpy(w->a + (size_t)i * k, w->a + (size_t)(i - w->p.n_rows_max) * k, k * sizeof(float));
    struct gemm_experts_params p = w->p;
    p.a = on_device(d, w->a, (size_t)p.n_rows * k * sizeof(float));
    p.out = on_device(d, NULL, n_bytes);
    assert_ok(device_ops(d)->gemm_experts(d, NULL, &p));
    const float *want = from_device(d, p.out, n_bytes);
    for (int is_rounded = 0; is_rounded < (type->t == DTYPE_F32 ? 1 : 2); is_rounded++) {
        struct gemm_experts_params q = p;

        scatter_rows(d, w, type, &q, is_rounded);
        q.out = on_device(d, NULL, n_bytes);
        assert_ok(device_ops(d)->gemm_experts(d, NULL, &q));
        assert_same_bits("rows by index", from_device(d, q.out, n_bytes), want, n_bytes);
    }
    if (type->t == DTYPE_F32)
        return;
    p.rounded = on_device(d, round_rows(w->a, p.n_rows, k, type->t),
                          (size_t)p.n_rows * pack_row_stride(k) * sizeof(uint16_t));
    p.a = NULL;
    p.out = on_device(d, NULL, n_bytes);
    p.n_rows += 9; /* padding: offsets end before */
    assert_ok(device_ops(d)->gemm_experts(d, NULL, &p));
    assert_same_bits("rounded rows", from_device(d, p.out, n_bytes), want, n_bytes);
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
    check_rows_by_index(d, &w, type);
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
