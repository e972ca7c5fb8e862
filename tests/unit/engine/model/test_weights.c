/* test_weights.c - the weights that weights_load() packs: the quantized weights are the quantizer's
 * own output for the float ones, each in the type that weights.h says, and a checkpoint gives the
 * same. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/model/family.h"
#include "engine/model/decoder.h"
#include "engine/model/weights.h"
#include "kernels/pack.h"
#include "tests/unit/engine/model/checkpoint.h"

static struct device *device;
static char dir[64];

/* Odd sizes, so that the last panel, group and task are incomplete. */
static struct model_config odd_model(bool tied)
{
    return (struct model_config){.family = &family_llama,
                                 .n_layers = 2,
                                 .dim = 40,
                                 .n_heads = 3,
                                 .n_kv_heads = 1,
                                 .head_dim = 14,
                                 .ffn_dim = 150,
                                 .n_vocab = 77,
                                 .tied = tied,
                                 .attention_bias = true,
                                 .stored_dtype = DTYPE_F32};
}

static struct weights load(const struct model_config *m, struct quantization q, bool dummy)
{
    struct weights_config c = {.device = device,
                               .dir = dir,
                               .model = m,
                               .dtype = DTYPE_F32,
                               .quantization = q,
                               .dummy = dummy,
                               .seed = 5};
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (weights_load(&w, &c, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return w;
}

/* The rows of a float weight, packed or (the embedding) not. */
static float *rows_of(const struct weight *w, bool packed)
{
    float *x = calloc((size_t)w->n * w->k, sizeof *x);

    assert_non_null(x);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++)
            x[(size_t)n * w->k + k] =
                packed ? pack_at(w, n, k) : dtype_load(w->dtype, w->data, (size_t)n * w->k + k);
    return x;
}

static void check_quantized(const struct weight *got, enum dtype want, uint32_t group,
                            const struct weight *floats, bool packed)
{
    size_t n_bytes = pack_bytes(want, floats->n, floats->k, group);
    struct weight w = {
        .dtype = want, .n = floats->n, .k = floats->k, .group = group, .data = calloc(1, n_bytes)};
    float *x = rows_of(floats, packed);

    assert_non_null(w.data);
    assert_int_equal(got->dtype, want);
    assert_int_equal(got->group, group);
    assert_int_equal(got->n, floats->n);
    assert_int_equal(got->k, floats->k);
    pack_quantize_rows(&w, 0, DTYPE_F32, x, w.n);
    assert_memory_equal(got->data, w.data, n_bytes);
    free((void *)(uintptr_t)w.data);
    free(x);
}

static void check_all(const struct weights *got, const struct weights *floats,
                      const struct model_config *m)
{
    struct quantization q = got->quantization;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct decoder_layer *a = &decoder_layers(got)[i], *b = &decoder_layers(floats)[i];

        check_quantized(&a->qkv, q.dtype, q.group, &b->qkv, true);
        check_quantized(&a->o, q.dtype, q.group, &b->o, true);
        check_quantized(&a->gate_up, q.dtype, q.group, &b->gate_up, true);
        check_quantized(&a->down, q.dtype, q.group, &b->down, true);
        assert_memory_equal(a->attn_norm, b->attn_norm, m->dim * sizeof(float));
        assert_memory_equal(a->qkv_bias, b->qkv_bias, b->qkv.n * sizeof(float));
    }
    check_quantized(&got->output, DTYPE_I8, q.group, &floats->output, true);
    check_quantized(&got->embedding, DTYPE_I8, q.group, &floats->embedding, false);
    assert_int_equal(got->embedding.data == got->output.data, m->tied);
    assert_int_equal(got->dtype, DTYPE_F32);
    assert_null(got->file);
}

static void check_model(bool tied, bool dummy)
{
    static const struct quantization kinds[] = {
        {DTYPE_I8, 32}, {DTYPE_I8, 128}, {DTYPE_I4, 32}, {DTYPE_I4, 128}};
    struct model_config m = odd_model(tied);
    struct weights floats = load(&m, (struct quantization){0}, dummy);

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct weights w = load(&m, kinds[i], dummy);

        check_all(&w, &floats, &m);
        weights_free(&w);
    }
    weights_free(&floats);
}

static void dummy_weights_quantize_as_they_would_be_floats(void **state)
{
    (void)state;
    check_model(false, true);
    check_model(true, true);
}

static void a_checkpoint_is_quantized_and_let_go(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct model_config m = odd_model(tied != 0);

        checkpoint_write(dir, &m);
        check_model(tied != 0, false);
    }
    checkpoint_remove(dir);
}

/* The content hash depends on the checkpoint alone. Stored KV depends on the quantization too, but
 * through the settings in the fingerprint. */
static void the_content_hash_is_the_checkpoints(void **state)
{
    struct model_config m = odd_model(true);
    struct weights a, b;

    (void)state;
    checkpoint_write(dir, &m);
    a = load(&m, (struct quantization){DTYPE_I8, 32}, false);
    b = load(&m, (struct quantization){DTYPE_I4, 32}, false);
    assert_memory_equal(a.content_hash, b.content_hash, sizeof a.content_hash);
    assert_int_equal(a.n_params, b.n_params);
    assert_true(b.n_bytes < a.n_bytes);
    weights_free(&a);
    weights_free(&b);
    checkpoint_remove(dir);
}

static void the_default_group_depends_on_the_type(void **state)
{
    struct quantization q;

    (void)state;
    assert_ok(quantization_parse(&q, "int8", 0, NULL));
    assert_true(q.dtype == DTYPE_I8 && q.group == 128);
    assert_ok(quantization_parse(&q, "int4", 0, NULL));
    assert_true(q.dtype == DTYPE_I4 && q.group == 32);
    assert_ok(quantization_parse(&q, "int4", 128, NULL));
    assert_int_equal(q.group, 128);
    assert_ok(quantization_parse(&q, "none", 32, NULL));
    assert_int_equal(q.group, 0);
    assert_ok(quantization_parse(&q, "fp8", 0, NULL));
    assert_true(q.dtype == DTYPE_F8 && q.group == 128);
    assert_ok(quantization_parse(&q, "fp8", 128, NULL));
    assert_int_equal(quantization_parse(&q, "fp8", 32, NULL), ERR_INVALID);
    assert_int_equal(quantization_parse(&q, "int4", 64, NULL), ERR_INVALID);
    assert_int_equal(quantization_parse(&q, "int5", 0, NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dummy_weights_quantize_as_they_would_be_floats),
        cmocka_unit_test(a_checkpoint_is_quantized_and_let_go),
        cmocka_unit_test(the_content_hash_is_the_checkpoints),
        cmocka_unit_test(the_default_group_depends_on_the_type),
    };
    struct device_config c = {.kind = DEVICE_CPU,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 150,
                              .max_heads = 3,
                              .max_head_dim = 14};

    strcpy(dir, "/tmp/tarn-weights-XXXXXX");
    if (!mkdtemp(dir) || device_open(&device, &c, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    rmdir(dir);
    return rc;
}
