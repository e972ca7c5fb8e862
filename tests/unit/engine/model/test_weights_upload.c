/* test_weights_upload.c - weights on a device with its own memory, here the emulated GPU. The bytes
 * there equal those packed on a host, for all dtypes, sizes and pieces. Each failure gives an error
 * message and frees all memory. */
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
#include "tests/cuda_emulation/emulation.h"
#include "tests/unit/engine/model/checkpoint.h"
#include "tests/unit/engine/model/made_codes.h"

#define CUDA_ERROR_LAUNCH_FAILURE 719

static char dir[64];

static struct device *open_device(enum device_kind kind)
{
    struct device_config c = {.kind = kind,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 512,
                              .max_heads = 4,
                              .max_head_dim = 32};
    struct device *d;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (device_open(&d, &c, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return d;
}

/* Odd sizes, so that rows and groups end inside pieces and panels. */
static struct model_config odd_model(bool tied, enum dtype stored)
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
                                 .stored_dtype = stored};
}

/* Rows that need no padding, and an embedding of three pieces. */
static struct model_config wide_model(enum dtype stored)
{
    return (struct model_config){.family = &family_llama,
                                 .n_layers = 1,
                                 .dim = 128,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 32,
                                 .ffn_dim = 256,
                                 .n_vocab = 100001,
                                 .tied = true,
                                 .stored_dtype = stored};
}

static enum status try_load(struct device *d, const struct model_config *m, enum dtype dtype,
                            struct quantization q, bool dummy, struct weights *w, struct buf *why)
{
    struct weights_config c = {.device = d,
                               .dir = dir,
                               .model = m,
                               .dtype = dtype,
                               .quantization = q,
                               .dummy = dummy,
                               .seed = 5};

    return weights_load(w, &c, why);
}

static struct weights load(struct device *d, const struct model_config *m, enum dtype dtype,
                           struct quantization q, bool dummy)
{
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (try_load(d, m, dtype, q, dummy, &w, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return w;
}

static float host_at(const struct weight *w, uint32_t n, uint32_t k)
{
    return w->layout == WEIGHT_ROWS && !w->group
               ? dtype_load(w->dtype, w->data, (size_t)n * w->stride + k)
               : pack_at(w, n, k);
}

/* got, on the device, against want, in host memory: every element, and zeros behind K. */
static void check_weight(struct device *d, const struct weight *got, const struct weight *want)
{
    struct weight w = *got;
    size_t n_bytes = pack_weight_bytes(got);
    unsigned char *copy = malloc(n_bytes);

    assert_non_null(copy);
    assert_int_equal(got->layout, WEIGHT_ROWS);
    assert_int_equal(got->stride, pack_row_stride(want->k));
    assert_int_equal(got->dtype, want->dtype);
    assert_int_equal(got->group, want->group);
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->k, want->k);
    assert_ok(device_download(d, copy, got->data, n_bytes));
    w.data = copy;
    for (uint32_t n = 0; n < w.n; n++)
        for (uint32_t k = 0; k < w.k; k++) {
            float a = pack_at(&w, n, k), b = host_at(want, n, k);
            if (memcmp(&a, &b, sizeof a))
                fail_msg("row %u, element %u is %g, on the host %g", n, k, (double)a, (double)b);
        }
    for (uint32_t n = 0; !w.group && n < w.n; n++)
        for (uint32_t k = w.k; k < w.stride; k++)
            assert_true(dtype_load(w.dtype, copy, (size_t)n * w.stride + k) == 0);
    free(copy);
}

static void check_vec(struct device *d, const float *got, const float *want, uint32_t n)
{
    float *copy = malloc(n * sizeof *copy);

    assert_non_null(copy);
    assert_ok(device_download(d, copy, got, n * sizeof *copy));
    assert_memory_equal(copy, want, n * sizeof *copy);
    free(copy);
}

static void check_same(struct device *d, const struct weights *got, const struct weights *want,
                       const struct model_config *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct decoder_layer *a = &decoder_layers(got)[i], *b = &decoder_layers(want)[i];

        check_vec(d, a->attn_norm, b->attn_norm, m->dim);
        check_weight(d, &a->qkv, &b->qkv);
        if (m->attention_bias)
            check_vec(d, a->qkv_bias, b->qkv_bias, b->qkv.n);
        check_weight(d, &a->o, &b->o);
        check_vec(d, a->ffn_norm, b->ffn_norm, m->dim);
        check_weight(d, &a->gate_up, &b->gate_up);
        check_weight(d, &a->down, &b->down);
    }
    check_vec(d, got->final_norm, want->final_norm, m->dim);
    check_weight(d, &got->embedding, &want->embedding);
    check_weight(d, &got->output, &want->output);
    assert_int_equal(got->embedding.data == got->output.data, m->tied);
    assert_memory_equal(got->content_hash, want->content_hash, sizeof want->content_hash);
    assert_int_equal(got->n_params, want->n_params);
    assert_null(got->file);
}

static void check_load(const struct model_config *m, enum dtype dtype, struct quantization q,
                       bool dummy)
{
    struct device *host = open_device(DEVICE_REF), *gpu = open_device(DEVICE_CUDA);
    struct weights want = load(host, m, dtype, q, dummy), got = load(gpu, m, dtype, q, dummy);

    check_same(gpu, &got, &want, m);
    weights_free(&got);
    weights_free(&want);
    device_close(gpu);
    device_close(host);
}

static void every_type_lies_on_the_device_as_a_host_packs_it(void **state)
{
    static const struct {
        enum dtype stored, dtype;
        struct quantization q;
    } kinds[] = {{DTYPE_F32, DTYPE_F32, {0}},
                 {DTYPE_F32, DTYPE_BF16, {0}},
                 {DTYPE_BF16, DTYPE_BF16, {0}},
                 {DTYPE_F16, DTYPE_F32, {0}},
                 {DTYPE_BF16, DTYPE_F16, {0}},
                 {DTYPE_BF16, DTYPE_BF16, {DTYPE_I8, 32}},
                 {DTYPE_F32, DTYPE_F32, {DTYPE_I8, 128}},
                 {DTYPE_F32, DTYPE_F32, {DTYPE_I4, 32}},
                 {DTYPE_BF16, DTYPE_BF16, {DTYPE_I4, 128}}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        for (int tied = 0; tied < 2; tied++) {
            struct model_config m = odd_model(tied != 0, kinds[i].stored);

            checkpoint_write(dir, &m);
            check_load(&m, kinds[i].dtype, kinds[i].q, false);
            check_load(&m, kinds[i].dtype, kinds[i].q, true);
        }
    checkpoint_remove(dir);
}

static void a_weight_of_many_pieces_is_put_together_right(void **state)
{
    struct model_config m = wide_model(DTYPE_BF16);

    (void)state;
    checkpoint_write(dir, &m);
    check_load(&m, DTYPE_BF16, (struct quantization){0}, false); /* straight from the file */
    check_load(&m, DTYPE_F32, (struct quantization){0}, false);  /* twice as many bytes */
    check_load(&m, DTYPE_BF16, (struct quantization){DTYPE_I8, 128}, false);
    check_load(&m, DTYPE_BF16, (struct quantization){DTYPE_I8, 32}, true);
    checkpoint_remove(dir);
}

static struct made_kind several_kinds(const char *name)
{
    if (strstr(name, "v_proj") || strstr(name, "layers.1.mlp"))
        return (struct made_kind){MADE_CODES, 8, 32};
    if (strstr(name, "layers.0.mlp"))
        return (struct made_kind){.form = MADE_OTHER};
    if (strstr(name, "layers.0.self_attn.o_proj"))
        return (struct made_kind){.form = MADE_PLAIN};
    return (struct made_kind){MADE_CODES, 4, 128};
}

static void stored_codes_lie_on_the_device_as_a_host_packs_them(void **state)
{
    const struct quantization as_stored = {.dtype = DTYPE_A8};

    (void)state;
    made_rule = several_kinds;
    for (int tied = 0; tied < 2; tied++) {
        struct model_config m = odd_model(tied != 0, DTYPE_BF16);

        made_reset();
        checkpoint_write(dir, &m);
        check_load(&m, DTYPE_BF16, as_stored, false);
        check_load(&m, DTYPE_BF16, (struct quantization){DTYPE_I4, 32}, false);
        check_load(&m, DTYPE_F32, (struct quantization){0}, false);
    }
    made_rule = NULL;
    checkpoint_remove(dir);
}

/* --- failures --- */

static void a_file_that_shrinks_is_an_error(void **state)
{
    struct model_config m = odd_model(false, DTYPE_F32);
    struct device *gpu = open_device(DEVICE_CUDA);
    struct weights w;
    struct buf why;
    char path[96];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    checkpoint_write(dir, &m);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 30000), 0); /* its header still promises all */
    assert_int_not_equal(try_load(gpu, &m, DTYPE_F32, (struct quantization){0}, false, &w, &why),
                         OK);
    assert_non_null(strstr(buf_str(&why), "cut short"));
    assert_null(w.layers);
    buf_fini(&why);
    checkpoint_remove(dir);
    device_close(gpu);
}

/* Each call of the runtime fails: once, or (a dead context) from then on. */
static void every_failing_call_is_an_error_and_holds_nothing(void **state)
{
    struct model_config m = odd_model(true, DTYPE_F32);
    struct quantization none = {0};
    uint64_t n_failed = 0;

    (void)state;
    checkpoint_write(dir, &m);
    for (uint64_t nth = 1;; nth += nth < 40 ? 1 : 7) {
        struct device *gpu = open_device(DEVICE_CUDA);
        struct weights w;
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        emulation_fail_call(nth, CUDA_ERROR_LAUNCH_FAILURE);
        uint64_t before = emulation_calls();
        enum status s = try_load(gpu, &m, DTYPE_F32, none, false, &w, &why);
        bool reached = emulation_calls() - before >= nth;
        emulation_fail_call(0, 0);
        if (s == OK) {
            weights_free(&w);
        } else {
            n_failed++;
            assert_true(why.len > 0);
            assert_null(w.layers);
        }
        buf_fini(&why);
        device_close(gpu);
        if (!reached)
            break;
    }
    assert_true(n_failed > 30);
    checkpoint_remove(dir);
}

static void weights_that_do_not_fit_say_how_much_there_is(void **state)
{
    struct model_config m = wide_model(DTYPE_BF16);
    struct device *gpu = open_device(DEVICE_CUDA);
    struct weights w;
    struct buf why;

    (void)state;
    m.n_vocab = 3000000; /* 1.5 GB */
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(try_load(gpu, &m, DTYPE_F32, (struct quantization){0}, true, &w, &why),
                     ERR_NOMEM);
    assert_non_null(strstr(buf_str(&why), "GB are free"));
    buf_fini(&why);
    device_close(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_lies_on_the_device_as_a_host_packs_it),
        cmocka_unit_test(a_weight_of_many_pieces_is_put_together_right),
        cmocka_unit_test(stored_codes_lie_on_the_device_as_a_host_packs_them),
        cmocka_unit_test(a_file_that_shrinks_is_an_error),
        cmocka_unit_test(every_failing_call_is_an_error_and_holds_nothing),
        cmocka_unit_test(weights_that_do_not_fit_say_how_much_there_is),
    };

    strcpy(dir, "/tmp/tarn-upload-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return rc;
}
