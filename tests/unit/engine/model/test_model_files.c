/* config.json and safetensors files may be hostile: each kind of damage gives a clear error and no
 * crash (run under ASan and UBSan). */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/family.h"
#include "engine/model/weights_load.h"
#include "kernels/pack.h"

static char dir[64];

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static const struct model_config llama = {.family = &family_llama};

static const char good_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":6,"
    "\"vocab_size\":5,\"max_position_embeddings\":64,\"eos_token_id\":[1,2]}";

/* The config with `from` replaced by `to` must fail with these words. */
static void refuse(const char *from, const char *to, enum status want, const char *words)
{
    char text[1024];
    const char *at = strstr(good_config, from);
    struct model_config m;
    struct buf why;

    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_config), good_config, to,
             at + strlen(from));
    write_file("config.json", text, strlen(text));
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(model_config_load(&m, dir, &why), want);
    if (!strstr(buf_str(&why), words) || !strstr(buf_str(&why), dir))
        fail_msg("\"%s\" names neither \"%s\" nor the file", buf_str(&why), words);
    buf_fini(&why);
}

static void a_bad_config_is_named_by_field(void **state)
{
    (void)state;
    refuse("LlamaForCausalLM", "ElectraModel", ERR_UNSUPPORTED, "ElectraModel");
    refuse("\"hidden_size\":8", "\"hidden_size\":\"8\"", ERR_INVALID, "hidden_size");
    refuse("\"hidden_size\":8,", "", ERR_INVALID, "hidden_size is missing");
    refuse("\"num_hidden_layers\":1", "\"num_hidden_layers\":0", ERR_INVALID, "num_hidden_layers");
    refuse("\"num_key_value_heads\":1", "\"num_key_value_heads\":3", ERR_INVALID, "multiple");
    refuse("\"vocab_size\":5", "\"vocab_size\":-5", ERR_INVALID, "vocab_size");
    refuse("\"vocab_size\":5", "\"vocab_size\":1e18", ERR_INVALID, "vocab_size");
    refuse("[1,2]", "[1,77]", ERR_INVALID, "eos_token_id");
    refuse("[1,2]", "[1,2],\"rope_scaling\":{\"rope_type\":\"dynamic\"}", ERR_UNSUPPORTED,
           "dynamic");
    refuse("[1,2]", "[1,2],\"hidden_act\":\"gelu\"", ERR_UNSUPPORTED, "gelu");
    refuse("[1,2]", "[1,2],\"sliding_window\":4096", ERR_UNSUPPORTED, "sliding_window");
    refuse("[1,2]", "[1,2],\"torch_dtype\":\"int8\"", ERR_UNSUPPORTED, "int8");
    refuse("[1,2]", "[1,2],\"head_dim\":300", ERR_INVALID, "head_dim");
    refuse("[1,2]}", "[1,2]", ERR_INVALID, "malformed JSON");
    remove_file("config.json");
    struct model_config m;
    assert_int_equal(model_config_load(&m, dir, NULL), ERR_NOT_FOUND);
}

static void refuse_family(const char *fields, enum status want, const char *words)
{
    char to[512];

    snprintf(to, sizeof to, "%s,\"hidden_size\":8", fields);
    refuse("\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8", to, want, words);
}

#define ARCHITECTURE(name) "\"architectures\":[\"" name "ForCausalLM\"]"

static void what_a_family_cannot_compute_is_named(void **state)
{
    (void)state;
    refuse_family(ARCHITECTURE("Qwen2Vl"), ERR_UNSUPPORTED, "the nearest is Qwen2ForCausalLM");
    refuse_family(ARCHITECTURE("MistralX"), ERR_UNSUPPORTED, "the nearest is MistralForCausalLM");
    refuse_family(ARCHITECTURE("StableLm") ",\"partial_rotary_factor\":0.5,\"qk_layernorm\":true",
                  ERR_UNSUPPORTED, "qk_layernorm");
    refuse_family(ARCHITECTURE("StableLm"), ERR_INVALID, "partial_rotary_factor is missing");
    refuse_family(ARCHITECTURE("StableLm") ",\"partial_rotary_factor\":0.3", ERR_UNSUPPORTED,
                  "rotates 1 dimensions");
    refuse_family(ARCHITECTURE("Gemma2") ",\"hidden_act\":\"gelu\"", ERR_UNSUPPORTED,
                  "gelu_pytorch_tanh is");
    refuse_family(ARCHITECTURE("Gemma3") ",\"use_bidirectional_attention\":true", ERR_UNSUPPORTED,
                  "use_bidirectional_attention");
    refuse_family(ARCHITECTURE("Mistral") ",\"layer_types\":[\"chunked_attention\"]",
                  ERR_UNSUPPORTED, "chunked_attention");
    refuse_family(ARCHITECTURE("Mistral") ",\"layer_types\":[]", ERR_INVALID, "layer_types");
    refuse_family(ARCHITECTURE("Mistral") ",\"sliding_window\":-1", ERR_INVALID, "sliding_window");
    refuse_family(ARCHITECTURE("SmolLM3") ",\"no_rope_layers\":[1,1]", ERR_INVALID,
                  "no_rope_layers");
    refuse_family(ARCHITECTURE("Phi3") ",\"rope_scaling\":{\"type\":\"longrope\","
                                       "\"short_factor\":[1],\"long_factor\":[1,1]}",
                  ERR_INVALID, "short_factor");
    refuse_family(ARCHITECTURE("Phi3") ",\"rope_scaling\":{\"type\":\"longrope\","
                                       "\"short_factor\":[1,1],\"long_factor\":[1,0]}",
                  ERR_INVALID, "long_factor");
    refuse_family(ARCHITECTURE("Granite") ",\"residual_multiplier\":-1", ERR_INVALID,
                  "residual_multiplier");
    remove_file("config.json");
}

#define QWEN3_MOE ARCHITECTURE("Qwen3Moe") ",\"moe_intermediate_size\":4,\"num_experts\":6"
#define BAILING ARCHITECTURE("BailingMoe") ",\"num_experts\":8,\"num_experts_per_tok\":2"

static void a_mixture_that_cannot_be_computed_is_named(void **state)
{
    (void)state;
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":7", ERR_INVALID, "num_experts_per_tok 7");
    refuse_family(QWEN3_MOE, ERR_INVALID, "num_experts_per_tok 8 is more than the 6 experts");
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":0", ERR_INVALID, "num_experts_per_tok");
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":2,\"mlp_only_layers\":7", ERR_INVALID,
                  "mlp_only_layers");
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":2,\"mlp_only_layers\":[-1]", ERR_INVALID,
                  "mlp_only_layers");
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":2,\"decoder_sparse_step\":0", ERR_INVALID,
                  "decoder_sparse_step");
    refuse_family(QWEN3_MOE ",\"num_experts_per_tok\":2,\"use_sliding_window\":true",
                  ERR_UNSUPPORTED, "use_sliding_window");
    refuse_family(ARCHITECTURE("Qwen3Moe"), ERR_INVALID, "moe_intermediate_size is missing");
    refuse_family(ARCHITECTURE("Qwen3Moe") ",\"num_experts\":513", ERR_INVALID, "num_experts");
    refuse_family(ARCHITECTURE("Mixtral") ",\"num_local_experts\":-8", ERR_INVALID,
                  "num_local_experts");
    refuse_family(ARCHITECTURE("Mixtral") ",\"num_experts_per_tok\":65", ERR_INVALID,
                  "num_experts_per_tok");
    refuse_family(ARCHITECTURE("Olmoe") ",\"clip_qkv\":8.0", ERR_UNSUPPORTED, "clip_qkv");
    refuse_family(ARCHITECTURE("BailingMoe"), ERR_INVALID, "num_experts is missing");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"n_group\":8", ERR_UNSUPPORTED,
                  "n_group 8");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"topk_group\":2", ERR_UNSUPPORTED,
                  "topk_group 2");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"moe_router_enable_expert_bias\":true",
                  ERR_UNSUPPORTED, "moe_router_enable_expert_bias");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"score_function\":\"sigmoid\"",
                  ERR_UNSUPPORTED, "sigmoid");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"num_shared_experts\":-1", ERR_INVALID,
                  "num_shared_experts");
    refuse_family(BAILING ",\"moe_intermediate_size\":4,\"norm_head\":true", ERR_UNSUPPORTED,
                  "norm_head");
    remove_file("config.json");
}

static void a_good_config_is_read(void **state)
{
    const char generation[] = "{\"eos_token_id\":3,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":40,"
                              "\"do_sample\":true}";
    struct model_config m;

    (void)state;
    write_file("config.json", good_config, sizeof good_config - 1);
    assert_ok(model_config_load(&m, dir, NULL));
    assert_int_equal(m.head_dim, 4);
    assert_int_equal(m.n_eos_ids, 2);
    assert_true(m.temperature == 1 && m.top_p == 1);
    write_file("generation_config.json", generation, sizeof generation - 1);
    assert_ok(model_config_load(&m, dir, NULL));
    assert_int_equal(m.n_eos_ids, 1); /* generation_config.json wins */
    assert_int_equal(m.eos_ids[0], 3);
    assert_true(m.temperature == 0.6f && m.top_p == 0.9f && m.top_k == 40);
    remove_file("generation_config.json");
}

/* A file with this header text and n_data bytes behind it. */
static size_t make_file(unsigned char *out, const char *header, size_t n_data)
{
    uint64_t n = strlen(header);

    memcpy(out, &n, 8);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, n_data);
    return 8 + n + n_data;
}

static void refuse_header(const char *header, size_t n_data, const char *words)
{
    static unsigned char file[4096];
    struct safetensors *st;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    write_file("model.safetensors", file, make_file(file, header, n_data));
    assert_int_equal(safetensors_open(&st, dir, &why), ERR_INVALID);
    assert_null(st);
    if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" does not mention \"%s\"", buf_str(&why), words);
    buf_fini(&why);
}

static void a_damaged_header_is_refused(void **state)
{
    (void)state;
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 15,
                  "cut short");
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,16]}}", 16,
                  "disagree");
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,0]}}", 16,
                  "data_offsets");
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[-1,15]}}", 16,
                  "data_offsets");
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                  "\"data_offsets\":[0,0]}}",
                  16, "too many");
    refuse_header("{\"t\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 16,
                  "shape[0]");
    refuse_header("{\"t\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 16, "dtype");
    refuse_header("{\"t\":5}", 16, "tensor t");
    refuse_header("[]", 16, "no object");
    refuse_header("{\"t\":", 16, "malformed");
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

/* Files that the official library refuses, and offsets within an element, which it never writes. */
static void tensors_must_cover_the_data_once(void **state)
{
    (void)state;
    refuse_header("{" T("a", "F32", "4", "0,16") "," T("b", "F32", "4", "0,16") "}", 16,
                  "tensor b begins at byte 0, but tensor a before it ends at byte 16");
    refuse_header("{" T("b", "F16", "4", "8,16") "," T("a", "F32", "3", "0,12") "}", 16,
                  "tensor b begins at byte 8, but tensor a before it ends at byte 12");
    refuse_header("{" T("a", "F16", "8", "0,16") "," T("b", "F16", "2", "4,8") "}", 16,
                  "they overlap");
    refuse_header("{" T("a", "F32", "2", "0,8") "," T("b", "F32", "1", "12,16") "}", 16,
                  "tensor b begins at byte 12, and the 4 bytes before it belong to no tensor");
    refuse_header("{" T("a", "F32", "2", "4,12") "}", 12, "the 4 bytes before it");
    refuse_header("{" T("a", "F32", "2", "0,8") "}", 11,
                  "the last 3 bytes of data belong to no tensor");
    refuse_header("{}", 1, "the last 1 bytes");
    refuse_header("{" T("m", "BOOL", "3", "0,3") "," T("a", "BF16", "4", "3,11") "}", 11,
                  "tensor a: data begins at byte 3, which is no multiple of the 2 bytes");
    refuse_header("{" T("a", "I64", "1", "0,8") "," T("b", "U8", "4", "8,12") "," T("c", "I64", "1",
                                                                                    "12,20") "}",
                  20, "no multiple of the 8 bytes");
    refuse_header("{" T("a", "F8_E4M3", "4", "0,5") "}", 5, "disagree");
}

static void tensors_in_any_order_and_empty_ones_are_fine(void **state)
{
    static unsigned char file[4096];
    static const char header[] =
        "{" T("c", "BF16", "2", "16,20") "," T("none", "F32", "0,7", "16,16") "," T(
            "a", "F32", "4",
            "0,16") "," T("odd", "F4", "7",
                          "20,24") "," T("end", "F16", "0",
                                         "24,24") ",\"__metadata__\":{\"format\":\"pt\"}}";
    struct safetensors *st;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    write_file("model.safetensors", file, make_file(file, header, 24));
    if (safetensors_open(&st, dir, &why) != OK)
        fail_msg("%s", buf_str(&why));
    assert_int_equal(safetensors_find(st, "c")->n_bytes, 4);
    assert_int_equal(safetensors_find(st, "none")->n_bytes, 0);
    safetensors_close(st);
    remove_file("model.safetensors");
}

static void a_length_behind_the_end_is_refused(void **state)
{
    static unsigned char file[64];
    struct safetensors *st;

    (void)state;
    for (size_t n = 0; n <= 16; n++) {
        memset(file, 0xff, sizeof file);
        write_file("model.safetensors", file, n);
        assert_int_equal(safetensors_open(&st, dir, NULL), ERR_INVALID);
    }
    remove_file("model.safetensors");
    assert_int_equal(safetensors_open(&st, dir, NULL), ERR_NOT_FOUND);
}

static void an_index_cannot_reach_out_of_its_directory(void **state)
{
    const char index[] = "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}";
    struct safetensors *st;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    write_file("model.safetensors.index.json", index, sizeof index - 1);
    assert_int_equal(safetensors_open(&st, dir, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "file name"));
    remove_file("model.safetensors.index.json");
    buf_fini(&why);
}

static void random_damage_never_crashes(void **state)
{
    static unsigned char good[4096], bad[4096];
    const char header[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[5,8],"
        "\"data_offsets\":[0,80]},\"lm_head.weight\":{\"dtype\":\"F16\",\"shape\":[5,8],"
        "\"data_offsets\":[80,160]},\"__metadata__\":{\"format\":\"pt\"}}";
    size_t n = make_file(good, header, 160);
    enum dtype dtype;
    uint32_t n_ok = 0;

    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        uint32_t r = rng_u32(1, round);
        size_t len = r % 4 == 0 ? rng_u32(2, round) % n : n;
        memcpy(bad, good, n);
        for (uint32_t i = 0; i < r % 3 + 1; i++)
            bad[rng_u32(3 + i, round) % (r % 5 ? n - 160 : 16)] = (unsigned char)(r >> (8 * i));
        write_file("model.safetensors", bad, len);
        n_ok += weights_stored_dtype(&llama, dir, &dtype, NULL) == OK;
    }
    assert_true(n_ok < 3000);
    write_file("model.safetensors", good, n);
    assert_ok(weights_stored_dtype(&llama, dir, &dtype, NULL));
    assert_int_equal(dtype, DTYPE_BF16);
    remove_file("model.safetensors");
}

static void a_missing_or_misshapen_tensor_is_named(void **state)
{
    static unsigned char file[4096];
    const char header[] = "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[5,8],"
                          "\"data_offsets\":[0,160]},\"model.layers.0.input_layernorm.weight\":"
                          "{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[160,188]}}";
    struct device_config dc = {.kind = DEVICE_REF,
                               .n_threads = 1,
                               .max_rows = 1,
                               .max_k = 8,
                               .max_heads = 2,
                               .max_head_dim = 4};
    struct model_config m;
    struct device *device;
    struct weights w;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(device_open(&device, &dc, NULL));
    write_file("config.json", good_config, sizeof good_config - 1);
    write_file("model.safetensors", file, make_file(file, header, 188));
    assert_ok(model_config_load(&m, dir, NULL));
    struct weights_config wc = {.device = device, .dir = dir, .model = &m, .dtype = DTYPE_F32};
    assert_int_equal(weights_load(&w, &wc, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "input_layernorm"));
    assert_non_null(strstr(buf_str(&why), "[8]"));
    m.n_vocab = 6;
    assert_int_equal(weights_load(&w, &wc, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "[6, 8]"));
    wc.dummy = true;
    assert_ok(weights_load(&w, &wc, &why));
    weights_free(&w);
    device_close(device);
    remove_file("config.json");
    remove_file("model.safetensors");
    buf_fini(&why);
}

/* --- values that are not finite --- */

static void put_element(unsigned char *at, enum dtype dtype, float value)
{
    unsigned char element[4];

    dtype_store(dtype, element, 0, value);
    memcpy(at, element, dtype_bytes(dtype));
}

static void nan_and_infinity_are_counted_at_any_place(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const float finite[] = {0, -0.0f, 1, -65504, 6e-8f};
    static unsigned char data[4 * 1000 + 3];

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        size_t size = dtype_bytes(types[t]);
        for (size_t n = 0; n < 900; n += 1 + n / 3) {
            unsigned char *at = data + n % 4; /* unaligned too */
            for (size_t i = 0; i < n; i++)
                put_element(at + i * size, types[t], finite[i % 5]);
            assert_int_equal(weights_count_nonfinite(types[t], at, n), 0);
            if (n == 0)
                continue;
            put_element(at, types[t], NAN);
            put_element(at + (n - 1) * size, types[t], -INFINITY);
            put_element(at + n / 2 * size, types[t], INFINITY);
            size_t want = n == 1 ? 1 : n == 2 ? 2 : 3;
            assert_int_equal(weights_count_nonfinite(types[t], at, n), want);
        }
    }
}

/* A checkpoint of good_config whose tensors are ones, but for two. */
static void write_checkpoint(bool is_broken)
{
    static const struct {
        const char *name;
        uint32_t rows, cols;
    } tensors[] = {
        {"model.embed_tokens.weight", 5, 8},
        {"model.layers.0.input_layernorm.weight", 8, 0},
        {"model.layers.0.self_attn.q_proj.weight", 8, 8},
        {"model.layers.0.self_attn.k_proj.weight", 4, 8},
        {"model.layers.0.self_attn.v_proj.weight", 4, 8},
        {"model.layers.0.self_attn.o_proj.weight", 8, 8},
        {"model.layers.0.post_attention_layernorm.weight", 8, 0},
        {"model.layers.0.mlp.gate_proj.weight", 6, 8},
        {"model.layers.0.mlp.up_proj.weight", 6, 8},
        {"model.layers.0.mlp.down_proj.weight", 8, 6},
        {"model.norm.weight", 8, 0},
        {"lm_head.weight", 5, 8},
    };
    static unsigned char file[16384];
    char header[8192] = "{", *p = header + 1;
    uint32_t at = 0;

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        uint32_t n = tensors[i].rows * (tensors[i].cols ? tensors[i].cols : 1);
        p += sprintf(p, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", i ? "," : "", tensors[i].name,
                     tensors[i].rows);
        p += tensors[i].cols ? sprintf(p, ",%u", tensors[i].cols) : 0;
        p += sprintf(p, "],\"data_offsets\":[%u,%u]}", at, at + 4 * n);
        at += 4 * n;
    }
    strcpy(p, "}");
    size_t n_file = make_file(file, header, at), data = n_file - at;
    for (uint32_t i = 0; i < at / 4; i++)
        put_element(file + data + 4 * i, DTYPE_F32, 1);
    if (is_broken) { /* of the embedding and of the last tensor */
        put_element(file + data + 4 * 39, DTYPE_F32, NAN);
        put_element(file + n_file - 4, DTYPE_F32, INFINITY);
        put_element(file + n_file - 8, DTYPE_F32, NAN);
    }
    write_file("config.json", good_config, sizeof good_config - 1);
    write_file("model.safetensors", file, n_file);
}

/* The log lines of loading the checkpoint. */
static void load_and_read_log(char *log, size_t n)
{
    struct device_config dc = {.kind = DEVICE_REF,
                               .n_threads = 1,
                               .max_rows = 1,
                               .max_k = 8,
                               .max_heads = 2,
                               .max_head_dim = 4};
    int before = dup(STDERR_FILENO), pipe_fds[2];
    struct model_config m;
    struct device *device;
    struct weights w;

    assert_ok(device_open(&device, &dc, NULL));
    assert_ok(model_config_load(&m, dir, NULL));
    struct weights_config wc = {.device = device, .dir = dir, .model = &m, .dtype = DTYPE_F32};
    assert_int_equal(pipe(pipe_fds), 0);
    assert_true(dup2(pipe_fds[1], STDERR_FILENO) >= 0);
    enum status s = weights_load(&w, &wc, NULL);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(pipe_fds[1]);
    ssize_t got = read(pipe_fds[0], log, n - 1);
    log[got > 0 ? got : 0] = '\0';
    close(pipe_fds[0]);
    assert_ok(s);
    weights_free(&w);
    device_close(device);
}

static void weights_that_are_not_finite_are_named(void **state)
{
    char log[4096];

    (void)state;
    log_init(LOG_INFO, false);
    write_checkpoint(false);
    load_and_read_log(log, sizeof log);
    assert_null(strstr(log, "NaN"));
    write_checkpoint(true);
    load_and_read_log(log, sizeof log);
    assert_non_null(strstr(log, "tensor=\"model.embed_tokens.weight\" n_values=1 of=40"));
    assert_non_null(strstr(log, "tensor=\"lm_head.weight\" n_values=2 of=40"));
    assert_non_null(strstr(log, "n_tensors_with_nan_or_infinity=2"));
    assert_null(strstr(log, "q_proj"));
    remove_file("config.json");
    remove_file("model.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_config_is_named_by_field),
        cmocka_unit_test(what_a_family_cannot_compute_is_named),
        cmocka_unit_test(a_mixture_that_cannot_be_computed_is_named),
        cmocka_unit_test(a_good_config_is_read),
        cmocka_unit_test(a_damaged_header_is_refused),
        cmocka_unit_test(tensors_must_cover_the_data_once),
        cmocka_unit_test(tensors_in_any_order_and_empty_ones_are_fine),
        cmocka_unit_test(a_length_behind_the_end_is_refused),
        cmocka_unit_test(an_index_cannot_reach_out_of_its_directory),
        cmocka_unit_test(random_damage_never_crashes),
        cmocka_unit_test(a_missing_or_misshapen_tensor_is_named),
        cmocka_unit_test(nan_and_infinity_are_counted_at_any_place),
        cmocka_unit_test(weights_that_are_not_finite_are_named),
    };
    strcpy(dir, "/tmp/tarn-files-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_file("config.json");
    rmdir(dir);
    return rc;
}
