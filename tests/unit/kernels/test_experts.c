/* test_experts.c - mixtures of experts: routers choose by the row alone, and products of experts
 * have the bits of gemm(). */
#include "tests/unit/kernels/kernel_test.h"

#include <sys/mman.h>

#include "kernels/ref/ref.h"

#define N_EXPERTS 7

/* --- routers --- */

struct routes {
    struct route_params p;
    uint32_t n; /* choices */
};

static struct routes routes_of(const struct route_params *like)
{
    struct routes r = {.p = *like, .n = like->n_rows * like->n_chosen};

    r.p.experts = test_alloc(r.n * sizeof(uint32_t));
    r.p.weights = test_alloc(r.n * sizeof(float));
    r.p.offsets = test_alloc((like->n_experts + 1) * sizeof(uint32_t));
    r.p.rows = test_alloc(r.n * sizeof(uint32_t));
    r.p.at = test_alloc(r.n * sizeof(uint32_t));
    return r;
}

static void routes_fini(struct routes *r)
{
    free(r->p.experts);
    free(r->p.weights);
    free(r->p.offsets);
    free(r->p.rows);
    free(r->p.at);
}

static void check_rows_alone(struct device *d, const struct routes *all)
{
    uint32_t k = all->p.n_chosen, experts[ROUTE_CHOSEN_MAX];
    float weights[ROUTE_CHOSEN_MAX];

    for (size_t t = 0; t < all->p.n_rows; t++) {
        struct route_params one = all->p;

        one.n_rows = 1;
        one.logits += t * one.n_experts;
        one.experts = experts;
        one.weights = weights;
        one.offsets = one.rows = one.at = NULL;
        assert_int_equal(device_ops(d)->route(d, NULL, &one), OK);
        assert_memory_equal(experts, all->p.experts + t * k, k * sizeof *experts);
        check_same("route alone", weights, all->p.weights + t * k, k);
    }
}

static void check_route(struct device *d, struct route_params p)
{
    float *logits = random_floats((size_t)p.n_rows * p.n_experts);

    for (size_t i = 0; i < (size_t)p.n_rows * p.n_experts; i += 5)
        logits[i] = 0.25f; /* ties */
    for (size_t i = 3; i < (size_t)p.n_rows * p.n_experts && p.n_rows > 4; i += 97)
        logits[i] = i % 2 ? NAN : -INFINITY;
    p.logits = logits;
    struct routes want = routes_of(&p), got = routes_of(&p);
    assert_int_equal(ref_route(NULL, NULL, &want.p), OK);
    assert_int_equal(device_ops(d)->route(d, NULL, &got.p), OK);
    assert_memory_equal(got.p.experts, want.p.experts, want.n * sizeof(uint32_t));
    assert_memory_equal(got.p.offsets, want.p.offsets, (p.n_experts + 1) * sizeof(uint32_t));
    assert_memory_equal(got.p.rows, want.p.rows, want.n * sizeof(uint32_t));
    assert_memory_equal(got.p.at, want.p.at, want.n * sizeof(uint32_t));
    check_close("route", got.p.weights, want.p.weights, want.n, 1e-7, 1e-5);
    check_rows_alone(d, &got);
    routes_fini(&want);
    routes_fini(&got);
    free(logits);
}

static void routes_on(struct device *d)
{
    static const uint32_t sizes[][2] = {{1, 1},  {2, 1},  {8, 2},   {7, 7},   {60, 4},
                                        {64, 6}, {33, 5}, {128, 8}, {512, 64}};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t flags = 0; flags < 4; flags++)
            for (uint32_t n_rows = 0; n_rows < 40; n_rows = 4 * n_rows + 1)
                check_route(
                    d, (struct route_params){.n_rows = n_rows,
                                             .n_experts = sizes[i][0],
                                             .n_chosen = sizes[i][1],
                                             .score = flags & 1 ? ROUTE_SIGMOID : ROUTE_SOFTMAX,
                                             .renormalize = flags & 2,
                                             .scale = flags == 3 ? 2.5f : 1});
}

static void a_router_chooses_as_the_reference_whatever_the_batch(void **state)
{
    (void)state;
    each_variant(1, routes_on);
    each_variant(3, routes_on);
}

static void the_reference_chooses_the_largest_and_the_lower_of_a_tie(void **state)
{
    const float logits[] = {1, 3, NAN, 3, 3, -1, 2, 1};
    uint32_t experts[3];
    float weights[3];
    struct route_params p = {.n_rows = 1,
                             .n_experts = 8,
                             .n_chosen = 3,
                             .renormalize = 1,
                             .scale = 3,
                             .logits = logits,
                             .experts = experts,
                             .weights = weights};

    (void)state;
    assert_int_equal(ref_route(NULL, NULL, &p), OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(experts[i] == (i ? i + 2 : 1) && fabsf(weights[i] - 1) < 1e-6f);
}

/* --- products --- */

static const struct kind {
    enum dtype t;
    uint32_t group;
} kinds[] = {{DTYPE_F32, 0}, {DTYPE_F16, 0},  {DTYPE_BF16, 0}, {DTYPE_I8, 32},  {DTYPE_I8, 128},
             {DTYPE_I4, 32}, {DTYPE_I4, 128}, {DTYPE_A8, 32},  {DTYPE_A4, 128}, {DTYPE_F8, 128}};

struct world {
    struct gemm_experts_params p;
    unsigned char *memory;
    size_t n_bytes;
    uint32_t offsets[N_EXPERTS + 1];
    float *a, *out;
};

/* counts: rows of each expert. The weights of experts without rows cannot be read. */
static void world_init(struct world *w, struct kind kind, const uint32_t *counts, uint32_t n,
                       uint32_t k)
{
    size_t page = 4096, bytes = (pack_bytes(kind.t, n, k, kind.group) + page - 1) / page * page;

    *w = (struct world){.n_bytes = N_EXPERTS * bytes};
    w->memory = mmap(NULL, w->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(w->memory != MAP_FAILED);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        w->offsets[e + 1] = w->offsets[e] + counts[e];
    uint32_t n_rows = w->offsets[N_EXPERTS];
    w->a = random_floats((size_t)n_rows * k);
    w->out = random_floats((size_t)n_rows * n); /* old values, to be overwritten */
    w->p = (struct gemm_experts_params){
        .n_rows = n_rows,
        .n_rows_max = n_rows,
        .n_experts = N_EXPERTS,
        .w = {.dtype = kind.t, .n = n, .k = k, .group = kind.group, .data = w->memory},
        .expert_bytes = bytes,
        .offsets = w->offsets,
        .a = w->a,
        .out = w->out};
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        struct weight one = w->p.w;

        one.data = w->memory + e * bytes;
        if (kind.group) {
            pack_random(&one);
        } else {
            void *src = random_elements(kind.t, (size_t)n * k);

            pack_rows(&one, 0, src, n);
            free(src);
        }
        if (counts[e] == 0)
            assert_int_equal(mprotect(w->memory + e * bytes, bytes, PROT_NONE), 0);
    }
}

static void world_fini(struct world *w)
{
    munmap(w->memory, w->n_bytes);
    free(w->a);
    free(w->out);
}

/* Each row's bits are those of a product of this row alone. */
static void check_products(struct device *d, struct kind kind, const uint32_t *counts, uint32_t n,
                           uint32_t k)
{
    float *alone = test_alloc(n * sizeof(float));
    struct world w;

    world_init(&w, kind, counts, n, k);
    assert_int_equal(device_ops(d)->gemm_experts(d, NULL, &w.p), OK);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (uint32_t i = w.offsets[e]; i < w.offsets[e + 1]; i++) {
            struct gemm_params g = {.n_rows = 1,
                                    .a = w.a + (size_t)i * k,
                                    .a_stride = k,
                                    .w = w.p.w,
                                    .out = alone,
                                    .out_stride = n};

            g.w.data = w.memory + e * w.p.expert_bytes;
            assert_int_equal(device_ops(d)->gemm(d, NULL, &g), OK);
            check_same(device_ops(d)->name, w.out + (size_t)i * n, alone, n);
        }
    world_fini(&w);
    free(alone);
}

static void products_on(struct device *d)
{
    static const uint32_t counts[][N_EXPERTS] = {
        {0, 0, 0, 0, 0, 0, 0},   {0, 0, 1, 0, 0, 0, 0},   {1, 0, 1, 1, 0, 0, 1},
        {5, 13, 0, 33, 1, 9, 2}, {0, 0, 250, 0, 0, 3, 0}, {40, 41, 42, 43, 0, 0, 90}};

    for (size_t t = 0; t < ARRAY_SIZE(kinds); t++)
        for (size_t c = 0; c < ARRAY_SIZE(counts); c++) {
            check_products(d, kinds[t], counts[c], 50, 96);
            check_products(d, kinds[t], counts[c], 64, 128);
            if (c < 4)
                check_products(d, kinds[t], counts[c], 33, 256 + 3);
        }
}

static void a_row_has_the_bits_of_its_expert_alone(void **state)
{
    (void)state;
    each_variant(1, products_on);
    each_variant(3, products_on);
}

static void reference_on(struct device *d)
{
    static const uint32_t counts[N_EXPERTS] = {3, 0, 17, 1, 0, 2, 8};

    for (size_t t = 0; t < ARRAY_SIZE(kinds); t++) {
        const uint32_t n = 40, k = 160;
        struct world w;

        world_init(&w, kinds[t], counts, n, k);
        for (size_t i = 0; i < (size_t)w.p.n_rows * k; i++) { /* kernels may round to bf16 */
            uint16_t h;

            dtype_store(DTYPE_BF16, &h, 0, w.a[i]);
            w.a[i] = dtype_load(DTYPE_BF16, &h, 0);
        }
        float *want = test_alloc((size_t)w.p.n_rows * n * sizeof(float));
        struct gemm_experts_params ref = w.p;
        ref.out = want;
        assert_int_equal(ref_gemm_experts(NULL, NULL, &ref), OK);
        assert_int_equal(device_ops(d)->gemm_experts(d, NULL, &w.p), OK);
        check_close("gemm_experts", w.out, want, (size_t)w.p.n_rows * n, 1e-3, 1e-5);
        free(want);
        world_fini(&w);
    }
}

static void products_equal_the_reference(void **state)
{
    (void)state;
    each_variant(2, reference_on);
}

/* --- sums --- */

static void check_combine(struct device *d, uint32_t n_rows, uint32_t dim, uint32_t k,
                          bool in_order)
{
    uint32_t n = n_rows * k, *at = test_alloc(n * sizeof *at);
    float *weights = random_floats(n), *y = random_floats((size_t)n * dim);
    float *got = random_floats((size_t)n_rows * dim), *want = test_alloc((size_t)n_rows * dim * 4);
    float *one = test_alloc((size_t)n_rows * dim * 4);
    struct combine_params p = {.n_rows = n_rows,
                               .dim = dim,
                               .n_chosen = k,
                               .weights = weights,
                               .at = in_order ? NULL : at,
                               .y = y,
                               .out = want};

    for (uint32_t i = 0; i < n; i++)
        at[i] = (i * 7 + 3) % n;
    memcpy(want, got, (size_t)n_rows * dim * 4);
    memcpy(one, got, (size_t)n_rows * dim * 4);
    assert_int_equal(ref_combine(NULL, NULL, &p), OK);
    p.out = got;
    assert_int_equal(device_ops(d)->combine(d, NULL, &p), OK);
    check_close("combine", got, want, (size_t)n_rows * dim, 1e-4, 1e-5);
    p.n_rows = 1;
    for (size_t t = 0; t < n_rows && !in_order; t++) {
        p.out = one + t * dim;
        p.weights = weights + t * k;
        p.at = at + t * k;
        assert_int_equal(device_ops(d)->combine(d, NULL, &p), OK);
    }
    if (!in_order)
        check_same("combine alone", one, got, (size_t)n_rows * dim);
    free(at);
    free(weights);
    free(y);
    free(got);
    free(want);
    free(one);
}

static void sums_on(struct device *d)
{
    for (uint32_t dim = 1; dim < 70; dim += 11)
        for (uint32_t k = 1; k <= 8; k++)
            for (uint32_t n_rows = 0; n_rows < 30; n_rows = 3 * n_rows + 1)
                check_combine(d, n_rows, dim, k, k % 2);
}

static void sums_equal_the_reference_whatever_the_batch(void **state)
{
    (void)state;
    each_variant(3, sums_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_chooses_the_largest_and_the_lower_of_a_tie),
        cmocka_unit_test(a_router_chooses_as_the_reference_whatever_the_batch),
        cmocka_unit_test(a_row_has_the_bits_of_its_expert_alone),
        cmocka_unit_test(products_equal_the_reference),
        cmocka_unit_test(sums_equal_the_reference_whatever_the_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
