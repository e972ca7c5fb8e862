/* test_moe.c - the weights of experts, and what a step of a mixture reads. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/decoder.h"
#include "kernels/pack.h"

/* Odd sizes, so that no expert ends with a whole panel. */
static const struct model_config mixture = {.family = &family_qwen2_moe,
                                            .n_layers = 3,
                                            .dim = 40,
                                            .n_heads = 3,
                                            .n_kv_heads = 1,
                                            .head_dim = 14,
                                            .ffn_dim = 50,
                                            .n_vocab = 77,
                                            .n_experts = 5,
                                            .n_chosen = 2,
                                            .expert_dim = 33,
                                            .shared_dim = 21,
                                            .shared_gate = 1,
                                            .no_experts = {1u << 1},
                                            .stored_dtype = DTYPE_F32};
static struct device *device;

static struct weights load(enum dtype dtype, struct quantization q)
{
    struct weights_config c = {.device = device,
                               .dir = "",
                               .model = &mixture,
                               .dtype = dtype,
                               .quantization = q,
                               .dummy = true,
                               .seed = 5};
    struct weights w;

    assert_ok(weights_load(&w, &c, NULL));
    return w;
}

/* The weight of expert e. */
static struct weight expert(const struct weight *first, size_t bytes, uint32_t e)
{
    struct weight w = *first;

    w.data = (const unsigned char *)first->data + e * bytes;
    return w;
}

static void assert_same_elements(const struct weight *a, const struct weight *b)
{
    assert_true(a->n == b->n && a->k == b->k);
    for (uint32_t n = 0; n < a->n; n++)
        for (uint32_t k = 0; k < a->k; k++)
            assert_true(pack_at(a, n, k) == pack_at(b, n, k));
}

/* Quantize the elements of a float weight again. */
static void assert_quantized(const struct weight *got, const struct weight *floats)
{
    struct weight want = *got;
    float *x = malloc((size_t)got->n * got->k * sizeof *x);

    want.data = calloc(1, pack_weight_bytes(&want));
    assert_true(x && want.data);
    for (uint32_t n = 0; n < got->n; n++)
        for (uint32_t k = 0; k < got->k; k++)
            x[(size_t)n * got->k + k] = pack_at(floats, n, k);
    pack_quantize_rows(&want, 0, DTYPE_F32, x, got->n);
    assert_memory_equal(got->data, want.data, pack_weight_bytes(&want));
    free((void *)(uintptr_t)want.data);
    free(x);
}

static void experts_are_quantized_each_and_routers_are_not(void **state)
{
    const struct quantization none = {0}, q = {.dtype = DTYPE_I4, .group = 32};
    struct weights floats = load(DTYPE_F32, none), small = load(DTYPE_F32, q);

    (void)state;
    for (uint32_t i = 0; i < mixture.n_layers; i++) {
        const struct moe *f = &decoder_layers(&floats)[i].moe, *s = &decoder_layers(&small)[i].moe;

        if (i == 1) { /* the dense one */
            assert_true(!s->router.data && !s->gate_up.data && decoder_layers(&small)[i].down.data);
            continue;
        }
        assert_true(s->router.dtype == DTYPE_F32 && s->shared_gate.dtype == DTYPE_F32);
        assert_same_elements(&s->router, &f->router);
        assert_same_elements(&s->shared_gate, &f->shared_gate);
        assert_true(s->shared_down.dtype == DTYPE_I4 && s->gate_up.group == 32);
        for (uint32_t e = 0; e < mixture.n_experts; e++) {
            struct weight a = expert(&s->gate_up, s->gate_up_bytes, e);
            struct weight b = expert(&f->gate_up, f->gate_up_bytes, e);

            assert_quantized(&a, &b);
            a = expert(&s->down, s->down_bytes, e);
            b = expert(&f->down, f->down_bytes, e);
            assert_quantized(&a, &b);
        }
    }
    weights_free(&floats);
    weights_free(&small);
}

static void a_router_is_f32_beside_bf16_weights(void **state)
{
    struct weights w = load(DTYPE_BF16, (struct quantization){0});
    const struct moe *m = &decoder_layers(&w)[0].moe;

    (void)state;
    assert_true(m->router.dtype == DTYPE_F32 && m->gate_up.dtype == DTYPE_BF16);
    weights_free(&w);
}

static void a_row_reads_the_experts_that_it_chooses(void **state)
{
    struct weights w = load(DTYPE_F32, (struct quantization){0});
    const uint32_t d = mixture.dim, q = mixture.n_heads * mixture.head_dim;
    const uint32_t kv = mixture.n_kv_heads * mixture.head_dim;
    const struct moe *m = &decoder_layers(&w)[0].moe;
    struct model_work work;
    uint64_t attention = (uint64_t)3 * ((q + 2 * kv) * d + d * q) + 7 * d; /* and norms */
    uint64_t dense = (uint64_t)3 * d * mixture.ffn_dim + 2 * mixture.n_vocab * d;
    uint64_t beside = 2 * (uint64_t)(mixture.n_experts * d + d + 3 * d * mixture.shared_dim);
    uint64_t one = 2 * (uint64_t)3 * d * mixture.expert_dim; /* of both layers */

    (void)state;
    assert_int_equal(w.n_params, attention + dense + beside + mixture.n_experts * one);
    decoder_count_work(&mixture, &w, &work);
    assert_true(work.flops_per_token ==
                2 * (double)(attention + dense + beside + mixture.n_chosen * one));
    assert_true(work.weight_bytes ==
                (double)w.n_bytes - 2 * 3 * (double)(m->gate_up_bytes + m->down_bytes));
    assert_int_equal(work.k_max, 50);
    weights_free(&w);
}

static void buffers_hold_the_widest_part(void **state)
{
    uint32_t widths[FAMILY_N_BUFFERS_MAX];
    struct model_config m = mixture;

    (void)state;
    assert_int_equal(decoder_buffers_with_experts(&m, widths), MOE_N_BUFFERS);
    assert_int_equal(widths[MOE_ACT], 2 * 33);
    assert_int_equal(widths[MOE_GATE_UP], 4 * 33);
    assert_int_equal(widths[MOE_SORTED], 2 * 40);
    assert_int_equal(widths[MOE_ROUTES], 4 * 2 + 5 + 1);
    m.ffn_dim = 90;
    (void)decoder_buffers_with_experts(&m, widths);
    assert_int_equal(widths[MOE_ACT], 90);
    m.no_experts[0] = 0; /* no dense layer */
    m.n_chosen = 1;
    m.shared_dim = 34;
    (void)decoder_buffers_with_experts(&m, widths);
    assert_int_equal(widths[MOE_ACT], 34);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_quantized_each_and_routers_are_not),
        cmocka_unit_test(a_router_is_f32_beside_bf16_weights),
        cmocka_unit_test(a_row_reads_the_experts_that_it_chooses),
        cmocka_unit_test(buffers_hold_the_widest_part),
    };
    struct device_config c = {.kind = DEVICE_CPU,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 150,
                              .max_heads = 3,
                              .max_head_dim = 14};

    if (device_open(&device, &c, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
