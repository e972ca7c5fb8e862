/* test_weights_stored.c - quantized checkpoints as they are stored: which type each weight gets,
 * and that it holds the numbers of the file. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/model/checkpoint.h"
#include "engine/model/decoder.h"
#include "engine/model/family.h"
#include "engine/model/weights.h"
#include "kernels/pack.h"
#include "tests/unit/engine/model/checkpoint.h"
#include "tests/unit/engine/model/made_codes.h"

static const struct quantization none, as_stored = {.dtype = DTYPE_A8};
static struct device *device;
static char dir[64];

/* Odd sizes, so that the last panel, group and task are incomplete. */
static struct model_config odd_model(bool tied)
{
    return (struct model_config){.family = &family_llama,
                                 .n_layers = 1,
                                 .dim = 40,
                                 .n_heads = 10,
                                 .n_kv_heads = 1,
                                 .head_dim = 14,
                                 .ffn_dim = 150,
                                 .n_vocab = 77,
                                 .tied = tied,
                                 .attention_bias = true,
                                 .stored_dtype = DTYPE_F32};
}

static struct weights load(const struct model_config *m, struct quantization q)
{
    struct weights_config c = {
        .device = device, .dir = dir, .model = m, .dtype = DTYPE_F32, .quantization = q};
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (weights_load(&w, &c, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return w;
}

/* Rows [row0, ...) of w are those of tensor `name`, number for number: codes, scales and offsets
 * for A8 and A4; floats as they are; I8 as the quantizer makes it. */
static void check_rows(struct checkpoint *file, const struct weight *w, uint32_t row0,
                       const char *name)
{
    const struct tensor *t = checkpoint_find(file, name);

    assert_non_null(t);
    for (uint32_t n = 0; n < t->shape[0]; n++)
        for (uint32_t k = 0; k < t->shape[1]; k++) {
            float want =
                t->codec ? made_at(t, n, k) : dtype_load(t->dtype, t->data, n * t->shape[1] + k);
            float got = w->layout == WEIGHT_ROWS
                            ? dtype_load(w->dtype, w->data, (size_t)n * w->stride + k)
                            : pack_at(w, row0 + n, k);

            if (dtype_is_affine(w->dtype)) {
                assert_int_equal(pack_int_at(w, row0 + n, k), made_code(t, n, k));
                assert_true(pack_scale_at(w, row0 + n, k) == made_scale(t, n, k / t->code_group));
                assert_true(pack_offset_at(w, row0 + n, k) == made_offset(t, n, k / t->code_group));
            }
            if (w->dtype == DTYPE_F8 && t->code_is_f8)
                assert_int_equal(pack_int_at(w, row0 + n, k), made_code(t, n, k));
            if (w->dtype == DTYPE_I8)
                assert_true(fabsf(got - want) <= pack_scale_at(w, row0 + n, k) * 0.5001f);
            else
                assert_true(got == want);
        }
}

struct expected {
    enum dtype dtype;
    uint32_t group;
};

static void check_kind(const struct weight *w, struct expected want)
{
    assert_int_equal(w->dtype, want.dtype);
    assert_int_equal(w->group, want.group);
}

static void check_layer(const struct weights *w, struct checkpoint *file, struct expected qkv,
                        struct expected o, struct expected gate_up, struct expected down)
{
    const struct decoder_layer *l = &decoder_layers(w)[0];

    check_kind(&l->qkv, qkv);
    check_kind(&l->o, o);
    check_kind(&l->gate_up, gate_up);
    check_kind(&l->down, down);
    check_rows(file, &l->qkv, 0, "model.layers.0.self_attn.q_proj.weight");
    check_rows(file, &l->qkv, 140, "model.layers.0.self_attn.k_proj.weight");
    check_rows(file, &l->qkv, 154, "model.layers.0.self_attn.v_proj.weight");
    check_rows(file, &l->o, 0, "model.layers.0.self_attn.o_proj.weight");
    check_rows(file, &l->gate_up, 0, "model.layers.0.mlp.gate_proj.weight");
    check_rows(file, &l->gate_up, 150, "model.layers.0.mlp.up_proj.weight");
    check_rows(file, &l->down, 0, "model.layers.0.mlp.down_proj.weight");
}

/* Load the model as stored under a rule; *file is the checkpoint to compare with. */
static struct weights load_stored(const struct model_config *m,
                                  struct made_kind (*rule)(const char *), struct checkpoint **file)
{
    made_reset();
    made_rule = rule;
    checkpoint_write(dir, m);
    assert_ok(checkpoint_open(file, dir, NULL));
    return load(m, as_stored);
}

static void done(struct weights *w, struct checkpoint *file)
{
    weights_free(w);
    checkpoint_close(file);
    checkpoint_remove(dir);
    made_rule = NULL;
}

static struct made_kind four_bits(const char *name)
{
    bool is_layer = strstr(name, "layers.") != NULL;

    return (struct made_kind){is_layer ? MADE_CODES : MADE_PLAIN, 4, 128};
}

static void codes_of_4_bits_keep_4_bits_and_plain_tensors_stay_floats(void **state)
{
    const struct expected a4 = {DTYPE_A4, 128};
    struct model_config m = odd_model(false);
    struct checkpoint *file;
    struct weights w = load_stored(&m, four_bits, &file);

    (void)state;
    check_layer(&w, file, a4, a4, a4, a4);
    check_kind(&w.output, (struct expected){DTYPE_F32, 0});
    check_kind(&w.embedding, (struct expected){DTYPE_F32, 0});
    check_rows(file, &w.output, 0, "lm_head.weight");
    check_rows(file, &w.embedding, 0, "model.embed_tokens.weight");
    assert_non_null(w.file); /* the embedding is read from it */
    assert_true(quantization_is_as_stored(w.quantization));
    done(&w, file);
}

/* Parts of a weight are stored in different ways. */
static struct made_kind mixed(const char *name)
{
    static const struct {
        const char *name;
        struct made_kind kind;
    } kinds[] = {{"q_proj", {MADE_CODES, 4, 128}},   {"k_proj", {MADE_CODES, 8, 256}},
                 {"v_proj", {MADE_CODES, 4, 96}},    {"o_proj", {MADE_CODES, 8, 128}},
                 {"gate_proj", {MADE_CODES, 4, 32}}, {"up_proj", {MADE_OTHER, 0, 0}},
                 {"down_proj", {MADE_OTHER, 0, 0}},  {"embed", {MADE_CODES, 4, 64}},
                 {"lm_head", {MADE_CODES, 4, 32}}};

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (strstr(name, kinds[i].name))
            return kinds[i].kind;
    return (struct made_kind){.form = MADE_PLAIN};
}

static void a_weight_takes_the_kind_that_holds_all_its_parts(void **state)
{
    const struct expected a8_32 = {DTYPE_A8, 32}, a8_128 = {DTYPE_A8, 128}, i8 = {DTYPE_I8, 32};

    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct model_config m = odd_model(tied != 0);
        struct checkpoint *file;
        struct weights w = load_stored(&m, mixed, &file);

        check_layer(&w, file, a8_32, a8_128, i8, i8);
        check_kind(&w.embedding, a8_32); /* 8 bits, although its codes have 4 */
        check_rows(file, &w.embedding, 0, "model.embed_tokens.weight");
        assert_int_equal(w.embedding.data == w.output.data, m.tied);
        if (!m.tied) {
            check_kind(&w.output, (struct expected){DTYPE_A4, 32});
            check_rows(file, &w.output, 0, "lm_head.weight");
        }
        assert_null(w.file);
        done(&w, file);
    }
}

/* One plain part, and codecs that only reorder floats. */
static struct made_kind partly_plain(const char *name)
{
    if (strstr(name, "q_proj") || strstr(name, "up_proj"))
        return (struct made_kind){MADE_CODES, 8, 32};
    if (strstr(name, "k_proj") || strstr(name, "down_proj"))
        return (struct made_kind){.form = MADE_FLOATS};
    return (struct made_kind){.form = MADE_PLAIN};
}

static void a_weight_with_a_plain_part_is_of_floats(void **state)
{
    const struct expected f32 = {DTYPE_F32, 0};
    struct model_config m = odd_model(true);
    struct checkpoint *file;
    struct weights w = load_stored(&m, partly_plain, &file);

    (void)state;
    check_layer(&w, file, f32, f32, f32, f32);
    done(&w, file);
}

static struct made_kind only_floats(const char *name)
{
    (void)name;
    return (struct made_kind){.form = MADE_FLOATS};
}

static void check_plain(struct made_kind (*rule)(const char *))
{
    for (int tied = 0; tied < 2; tied++) {
        struct model_config m = odd_model(tied != 0);
        struct checkpoint *file;
        struct weights a = load_stored(&m, rule, &file), b = load(&m, none);
        const struct decoder_layer *la = &decoder_layers(&a)[0], *lb = &decoder_layers(&b)[0];

        assert_memory_equal(&a.quantization, &b.quantization, sizeof a.quantization);
        assert_memory_equal(a.content_hash, b.content_hash, sizeof a.content_hash);
        assert_int_equal(la->qkv.dtype, DTYPE_F32);
        assert_memory_equal(la->qkv.data, lb->qkv.data, pack_weight_bytes(&la->qkv));
        assert_memory_equal(a.output.data, b.output.data, pack_weight_bytes(&a.output));
        weights_free(&b);
        done(&a, file);
    }
}

static void a_checkpoint_without_quantized_tensors_loads_as_without_quantization(void **state)
{
    (void)state;
    check_plain(NULL);
    check_plain(only_floats);
}

/* Two parts of gate_up have codes of two kinds. */
static struct made_kind f8_numbers(const char *name)
{
    bool is_layer = strstr(name, "layers.") != NULL, is_up = strstr(name, "up_proj") != NULL;

    return (struct made_kind){is_up ? MADE_CODES : is_layer ? MADE_F8 : MADE_PLAIN, 8, 128};
}

static void f8_numbers_stay_beside_themselves(void **state)
{
    const struct expected f8 = {DTYPE_F8, 128}, i8 = {DTYPE_I8, 32};

    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        struct model_config m = odd_model(true);
        struct checkpoint *file;
        struct weights w = load_stored(&m, f8_numbers, &file);

        if (asked) { /* also where F8 is asked for: gate_up is then quantized but for its F8 part */
            weights_free(&w);
            w = load(&m, (struct quantization){DTYPE_F8, 128});
            check_kind(&decoder_layers(&w)[0].gate_up, f8);
            check_kind(&w.output, (struct expected){DTYPE_I8, 128});
            check_rows(file, &decoder_layers(&w)[0].qkv, 0,
                       "model.layers.0.self_attn.q_proj.weight");
            check_rows(file, &decoder_layers(&w)[0].gate_up, 0,
                       "model.layers.0.mlp.gate_proj.weight");
        } else {
            check_layer(&w, file, f8, f8, i8, f8);
        }
        done(&w, file);
    }
}

static void other_settings_decode_and_quantize_again(void **state)
{
    static const struct quantization kinds[] = {{DTYPE_I8, 128}, {DTYPE_I8, 32}, {0}};
    struct model_config m = odd_model(true);
    struct checkpoint *file;
    struct weights stored = load_stored(&m, mixed, &file);

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct weights w = load(&m, kinds[i]);
        struct expected want = {kinds[i].group ? DTYPE_I8 : DTYPE_F32, kinds[i].group};

        check_layer(&w, file, want, want, want, want);
        check_kind(&w.output, want);
        assert_memory_equal(&w.quantization, &kinds[i], sizeof kinds[i]);
        assert_int_equal(w.n_params, stored.n_params);
        weights_free(&w);
    }
    done(&stored, file);
}

static void the_content_hash_covers_codes_scales_and_offsets(void **state)
{
    uint8_t seen[4][32];
    struct model_config m = odd_model(true);

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct checkpoint *file;
        struct weights w, again;

        if (i < 3)
            made_salt[i] = 5;
        w = load_stored(&m, four_bits, &file);
        again = load(&m, as_stored);
        assert_memory_equal(w.content_hash, again.content_hash, 32);
        memcpy(seen[i], w.content_hash, 32);
        for (uint32_t j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], 32);
        memset(made_salt, 0, sizeof made_salt);
        weights_free(&again);
        done(&w, file);
    }
}

static void auto_means_as_stored(void **state)
{
    struct quantization q;

    (void)state;
    assert_ok(quantization_parse(&q, "auto", 0, NULL));
    assert_true(quantization_is_as_stored(q));
    assert_ok(quantization_parse(&q, "none", 0, NULL));
    assert_false(quantization_is_as_stored(q));
    assert_ok(quantization_parse(&q, "int8", 0, NULL));
    assert_false(quantization_is_as_stored(q));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_4_bits_keep_4_bits_and_plain_tensors_stay_floats),
        cmocka_unit_test(a_weight_takes_the_kind_that_holds_all_its_parts),
        cmocka_unit_test(a_weight_with_a_plain_part_is_of_floats),
        cmocka_unit_test(a_checkpoint_without_quantized_tensors_loads_as_without_quantization),
        cmocka_unit_test(f8_numbers_stay_beside_themselves),
        cmocka_unit_test(other_settings_decode_and_quantize_again),
        cmocka_unit_test(the_content_hash_covers_codes_scales_and_offsets),
        cmocka_unit_test(auto_means_as_stored),
    };
    struct device_config c = {.kind = DEVICE_CPU,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 150,
                              .max_heads = 10,
                              .max_head_dim = 14};

    strcpy(dir, "/tmp/tarn-stored-XXXXXX");
    if (!mkdtemp(dir) || device_open(&device, &c, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    rmdir(dir);
    return rc;
}
