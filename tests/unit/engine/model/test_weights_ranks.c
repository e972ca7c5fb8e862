/* test_weights_ranks.c - weights that several ranks share: each rank's rows and columns are those
 * of the whole weights, bit for bit, whatever the checkpoint stores. The GPU is emulated. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/model/decoder.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/pack.h"
#include "tests/unit/engine/model/checkpoint.h"
#include "tests/unit/engine/model/made_codes.h"

static char dir[64];
static struct device *device;

static struct model_config small_model(bool tied, enum dtype stored)
{
    return (struct model_config){.family = &family_llama,
                                 .n_layers = 2,
                                 .dim = 40,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 32,
                                 .ffn_dim = 256,
                                 .n_vocab = 78,
                                 .tied = tied,
                                 .attention_bias = true,
                                 .stored_dtype = stored};
}

static enum status try_load(const struct model_config *m, enum dtype dtype, struct quantization q,
                            bool dummy, uint32_t n_ranks, uint32_t rank, struct weights *w,
                            struct buf *why)
{
    struct model_config share;
    enum status s = model_share(m, n_ranks, &share, why);
    struct weights_config c = {.device = device,
                               .dir = dir,
                               .model = &share,
                               .n_ranks = n_ranks,
                               .rank = rank,
                               .dtype = dtype,
                               .quantization = q,
                               .dummy = dummy,
                               .seed = 5};

    return s == OK ? weights_load(w, &c, why) : s;
}

static struct weights load(const struct model_config *m, enum dtype dtype, struct quantization q,
                           bool dummy, uint32_t n_ranks, uint32_t rank)
{
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (try_load(m, dtype, q, dummy, n_ranks, rank, &w, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return w;
}

/* A copy in host memory, which the caller frees. */
static struct weight fetch(const struct weight *w)
{
    struct weight host = *w;
    void *data = malloc(pack_weight_bytes(w));

    assert_non_null(data);
    assert_ok(device_download(device, data, w->data, pack_weight_bytes(w)));
    host.data = data;
    return host;
}

/* Rows [row, row + n_rows) of the part are rows [whole_row, ...) of the whole weight, from its
 * column k0 on. */
static void check_rows(const struct weight *part, const struct weight *whole, uint32_t row,
                       uint32_t n_rows, uint32_t whole_row, uint32_t k0)
{
    struct weight a = fetch(part), b = fetch(whole);

    assert_int_equal(a.dtype, b.dtype);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < a.k; k++) {
            float x = pack_at(&a, row + r, k), y = pack_at(&b, whole_row + r, k0 + k);

            if (memcmp(&x, &y, sizeof x))
                fail_msg("row %u, column %u is %g; in the whole weight %g", row + r, k, (double)x,
                         (double)y);
        }
    free((void *)(uintptr_t)a.data);
    free((void *)(uintptr_t)b.data);
}

static void check_vec(const float *part, const float *whole, uint32_t n)
{
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);

    assert_true(a && b);
    assert_ok(device_download(device, a, part, n * sizeof *a));
    assert_ok(device_download(device, b, whole, n * sizeof *b));
    assert_memory_equal(a, b, n * sizeof *a);
    free(a);
    free(b);
}

static void check_layer(const struct decoder_layer *part, const struct decoder_layer *whole,
                        const struct model_config *m, uint32_t n, uint32_t rank)
{
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim, f = m->ffn_dim;

    assert_int_equal(part->qkv.n, (q + 2 * kv) / n);
    check_rows(&part->qkv, &whole->qkv, 0, q / n, rank * q / n, 0);
    check_rows(&part->qkv, &whole->qkv, q / n, kv / n, q + rank * kv / n, 0);
    check_rows(&part->qkv, &whole->qkv, (q + kv) / n, kv / n, q + kv + rank * kv / n, 0);
    if (m->attention_bias) {
        check_vec(part->qkv_bias, whole->qkv_bias + rank * q / n, q / n);
        check_vec(part->qkv_bias + q / n, whole->qkv_bias + q + rank * kv / n, kv / n);
        check_vec(part->o_bias, whole->o_bias, m->dim);
    }
    assert_int_equal(part->o.k, q / n);
    check_rows(&part->o, &whole->o, 0, m->dim, 0, rank * q / n);
    check_rows(&part->gate_up, &whole->gate_up, 0, f / n, rank * f / n, 0);
    check_rows(&part->gate_up, &whole->gate_up, f / n, f / n, f + rank * f / n, 0);
    assert_int_equal(part->down.k, f / n);
    check_rows(&part->down, &whole->down, 0, m->dim, 0, rank * f / n);
    check_vec(part->ffn_norm, whole->ffn_norm, m->dim);
}

static void check_ranks(const struct model_config *m, enum dtype dtype, struct quantization q,
                        bool dummy, uint32_t n)
{
    struct weights whole = load(m, dtype, q, dummy, 1, 0);

    for (uint32_t rank = 0; rank < n; rank++) {
        struct weights part = load(m, dtype, q, dummy, n, rank);
        bool shares = part.output.n < m->n_vocab;

        for (uint32_t i = 0; i < m->n_layers; i++)
            check_layer(&decoder_layers(&part)[i], &decoder_layers(&whole)[i], m, n, rank);
        check_rows(&part.embedding, &whole.embedding, 0, m->n_vocab, 0, 0);
        check_rows(&part.output, &whole.output, 0, part.output.n, shares ? rank * part.output.n : 0,
                   0);
        assert_int_equal(shares, !(m->tied && part.output.group));
        assert_int_equal(part.n_params_all, whole.n_params);
        assert_true(part.n_params < whole.n_params);
        weights_free(&part);
    }
    weights_free(&whole);
}

static void ranks_have_the_parts_of_the_whole_weights(void **state)
{
    const struct quantization none = {0};

    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct model_config m = small_model(tied != 0, DTYPE_BF16);

        checkpoint_write(dir, &m);
        check_ranks(&m, DTYPE_BF16, none, false, 2);
        check_ranks(&m, DTYPE_F32, none, false, 2);
        check_ranks(&m, DTYPE_F32, none, true, 2);
        m.n_kv_heads = m.n_heads;
        check_ranks(&m, DTYPE_F32, none, true, 2);
    }
    checkpoint_remove(dir);
}

/* A family whose Q, K and V are one tensor: that of another product, which has as many rows. */
static enum status plan_fused(struct loader *l)
{
    static const struct decoder_names names = {.attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .qkv = "mlp.up_proj"};

    return decoder_plan(l, &names);
}

static void ranks_have_the_parts_of_a_fused_tensor(void **state)
{
    struct model_config m = small_model(false, DTYPE_BF16);
    struct model_family fused = family_llama;

    (void)state;
    m.attention_bias = false;
    assert_int_equal((m.n_heads + 2 * m.n_kv_heads) * m.head_dim, m.ffn_dim);
    checkpoint_write(dir, &m);
    fused.plan_weights = plan_fused;
    m.family = &fused;
    check_ranks(&m, DTYPE_BF16, (struct quantization){0}, false, 2);
    check_ranks(&m, DTYPE_F32, (struct quantization){0}, false, 2);
    checkpoint_remove(dir);
}

static struct made_kind codes_of_32(const char *name)
{
    return strstr(name, "norm") ? (struct made_kind){.form = MADE_PLAIN}
                                : (struct made_kind){MADE_CODES, 8, 32};
}

static void ranks_have_the_codes_of_the_file(void **state)
{
    const struct quantization as_stored = {.dtype = DTYPE_A8};
    struct model_config m = small_model(false, DTYPE_BF16);

    (void)state;
    made_rule = codes_of_32;
    made_reset();
    checkpoint_write(dir, &m);
    check_ranks(&m, DTYPE_BF16, as_stored, false, 2);
    made_rule = NULL;
    checkpoint_remove(dir);
}

static struct made_kind codes_of_128(const char *name)
{
    return strstr(name, "norm") ? (struct made_kind){.form = MADE_PLAIN}
                                : (struct made_kind){MADE_CODES, 8, 128};
}

static void expect_refusal(const struct model_config *m, struct quantization q, uint32_t n_ranks,
                           const char *words)
{
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(try_load(m, DTYPE_BF16, q, false, n_ranks, 0, &w, &why), ERR_UNSUPPORTED);
    if (!strstr(buf_str(&why), "{tensor_parallel_size}") || !strstr(buf_str(&why), words))
        fail_msg("\"%s\" lacks \"%s\"", buf_str(&why), words);
    buf_fini(&why);
}

static void what_ranks_cannot_share_is_refused_by_name(void **state)
{
    struct model_config m = small_model(false, DTYPE_BF16);
    const struct quantization as_stored = {.dtype = DTYPE_A8}, none = {0};

    (void)state;
    expect_refusal(&m, none, 4, "num_key_value_heads 2");
    expect_refusal(&m, none, 3, "num_attention_heads 4");
    m.ffn_dim = 255;
    expect_refusal(&m, none, 2, "intermediate_size 255");
    m = small_model(false, DTYPE_BF16);
    m.expert_dim = 33;
    expect_refusal(&m, none, 2, "moe_intermediate_size 33");
    m = small_model(false, DTYPE_BF16);
    made_rule = codes_of_128; /* o has 128 columns, of which a rank has 64 */
    made_reset();
    checkpoint_write(dir, &m);
    expect_refusal(&m, as_stored, 2, "o_proj");
    made_rule = NULL;
    m.family = &family_olmo2;
    expect_refusal(&m, none, 2, "all heads");
    m.family = &family_olmoe;
    expect_refusal(&m, none, 2, "all heads");
    checkpoint_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_have_the_parts_of_the_whole_weights),
        cmocka_unit_test(ranks_have_the_parts_of_a_fused_tensor),
        cmocka_unit_test(ranks_have_the_codes_of_the_file),
        cmocka_unit_test(what_ranks_cannot_share_is_refused_by_name),
    };
    struct device_config c = {.kind = DEVICE_CUDA,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 512,
                              .max_heads = 4,
                              .max_head_dim = 32};

    snprintf(dir, sizeof dir, "/tmp/tarn_weights_ranks_XXXXXX");
    if (!mkdtemp(dir) || device_open(&device, &c, NULL) != OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    checkpoint_remove(dir);
    rmdir(dir);
    return failed;
}
