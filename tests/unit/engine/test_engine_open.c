/* engine_open() either succeeds or returns an error message, and then has freed everything (under
 * ASan a leak is a failure). */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/opening.h"
#include "kernels/backend.h"

static char dir[64];

static const char config_json[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":24,"
    "\"vocab_size\":40,\"max_position_embeddings\":512,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"float16\"}";

static void write_file(const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static struct engine_config small(void)
{
    struct engine_config c;

    engine_config_init(&c);
    c.model_dir = dir;
    c.load_format = "dummy";
    c.n_threads = 1;
    c.max_num_seqs = 4;
    c.kv_bytes = 1 << 20;
    return c;
}

static void refuse(const struct engine_config *c, enum status want, const char *words)
{
    struct engine *e = (struct engine *)1;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status got = engine_open(&e, c, &why);
    if (got != want || !strstr(buf_str(&why), words))
        fail_msg("%s \"%s\" instead of %s \"%s\"", status_name(got), buf_str(&why),
                 status_name(want), words);
    assert_null(e);
    buf_fini(&why);
}

static void every_wrong_option_is_named(void **state)
{
    struct engine_config c;

    (void)state;
    c = small();
    c.model_dir = NULL;
    refuse(&c, ERR_INVALID, "{model}");
    c = small();
    c.model_dir = "/nonexistent/model";
    refuse(&c, ERR_NOT_FOUND, "/nonexistent/model/config.json");
    c = small();
    c.device = "tpu";
    refuse(&c, ERR_INVALID, "{device} tpu");
    c = small();
    c.device = "cuda"; /* this program is linked without that backend */
    refuse(&c, ERR_UNSUPPORTED, "-DTARN_CUDA=ON");
    c = small();
    c.gpu_memory_utilization = 1.01;
    refuse(&c, ERR_INVALID, "{gpu_memory_utilization}");
    c = small();
    c.cpu_variant = "sse9";
    refuse(&c, ERR_UNSUPPORTED, "sse9");
    c = small();
    c.dtype = "int3";
    refuse(&c, ERR_INVALID, "{dtype} int3");
    c = small();
    c.kv_dtype = "int3";
    refuse(&c, ERR_INVALID, "{kv_cache_dtype} int3");
    c = small();
    c.dtype = "int8"; /* of KV only */
    refuse(&c, ERR_INVALID, "{dtype} int8");
    c = small();
    c.quantization = "int3";
    refuse(&c, ERR_INVALID, "{quantization} int3");
    c = small();
    c.quantization = "int4";
    c.quantization_group = 64;
    refuse(&c, ERR_INVALID, "{quantization_group} 64");
    c = small();
    c.load_format = "zip";
    refuse(&c, ERR_INVALID, "{load_format} zip");
    c = small();
    c.policy = "lifo";
    refuse(&c, ERR_INVALID, "lifo");
    c = small();
    c.max_model_len = 513;
    refuse(&c, ERR_INVALID, "max_position_embeddings 512");
    c = small();
    c.kv_bytes = 1000;
    refuse(&c, ERR_INVALID, "{kv_device_bytes}");
    c = small();
    c.kv_bytes = 10 * 2048;
    c.max_model_len = 512;
    refuse(&c, ERR_INVALID, "raise {kv_device_bytes}");
    c = small();
    c.segment_tokens = 100;
    refuse(&c, ERR_INVALID, "{kv_segment_tokens}");
    c = small();
    c.kv_disk_path = dir;
    refuse(&c, ERR_INVALID, "{kv_disk_path} needs {kv_disk_bytes}");
    c.kv_disk_bytes = 1 << 20;
    c.prefix_caching = false;
    refuse(&c, ERR_INVALID, "without {prefix_caching}");
    c.prefix_caching = true;
    c.kv_disk_min_uses = 0;
    refuse(&c, ERR_INVALID, "{kv_disk_min_uses}");
    c.kv_disk_min_uses = 1;
    c.kv_preload = "some";
    refuse(&c, ERR_INVALID, "{kv_preload} some");
    c = small();
    c.draft_kv_bytes = 1 << 20;
    refuse(&c, ERR_INVALID, "{draft_kv_bytes} needs {draft_model}");
    c.draft_model_dir = dir;
    c.speculative_tokens = 0;
    refuse(&c, ERR_INVALID, "{draft_model} has no use with {speculative_tokens} 0");
    c.speculative_tokens = 8;
    c.draft_model_dir = "/nonexistent/model";
    refuse(&c, ERR_NOT_FOUND, "{draft_model}: ");
    c = small();
    c.max_num_seqs = 0;
    refuse(&c, ERR_INVALID, "{max_num_seqs}");
    c = small();
    c.load_format = "auto";
    refuse(&c, ERR_NOT_FOUND, "model.safetensors");
}

static void damaged_side_files_are_errors_not_crashes(void **state)
{
    struct engine_config c = small();

    (void)state;
    write_file("tokenizer.json", "{\"model\":");
    refuse(&c, ERR_INVALID, "tokenizer.json");
    remove_file("tokenizer.json");
    write_file("generation_config.json", "{\"temperature\":\"hot\"}");
    refuse(&c, ERR_INVALID, "temperature");
    remove_file("generation_config.json");
}

static void a_small_pool_cuts_the_context(void **state)
{
    struct engine_config c = small();
    struct engine *e;

    (void)state;
    c.kv_bytes = 40000; /* blocks of 2 layers * 2 * 1 head * 8 * 32 * 2 bytes = 2 KiB: 19 of them */
    assert_ok(engine_open(&e, &c, NULL));
    assert_int_equal(engine_info(e)->max_model_len, 512);
    engine_close(e);
    c.kv_bytes = 5 * 2048;
    assert_ok(engine_open(&e, &c, NULL));
    assert_int_equal(engine_info(e)->n_kv_blocks, 5);
    assert_int_equal(engine_info(e)->max_model_len, 4 * 32);
    engine_close(e);
}

/* With one set of kernels: a choice by measurement may change on a busy machine. */
static struct engine_config fixed(void)
{
    struct engine_config c = small();

    c.cpu_variant = "portable";
    return c;
}

static void the_fingerprint_tells_models_and_settings_apart(void **state)
{
    struct engine_config c = fixed();
    char first[65], again[65], other[65];
    struct engine *e;

    (void)state;
    assert_ok(engine_open(&e, &c, NULL));
    strcpy(first, engine_info(e)->fingerprint_hex);
    engine_close(e);
    assert_ok(engine_open(&e, &c, NULL));
    strcpy(again, engine_info(e)->fingerprint_hex);
    engine_close(e);
    assert_string_equal(first, again);
    for (int k = 0; k < 6; k++) {
        c = fixed();
        if (k == 0)
            c.seed = 7; /* other weights */
        else if (k == 1)
            c.kv_dtype = "f32";
        else if (k == 2)
            c.segment_tokens = 128;
        else if (k == 3)
            c.dtype = "bf16";
        else if (k == 4)
            c.quantization = "int8";
        else
            c.device = "ref";
        assert_ok(engine_open(&e, &c, NULL));
        strcpy(other, engine_info(e)->fingerprint_hex);
        engine_close(e);
        assert_string_not_equal(first, other);
    }
}

static void each_quantization_has_a_fingerprint_of_its_own(void **state)
{
    static const struct {
        const char *name;
        uint32_t group;
        const char *shown;
    } kinds[] = {{"none", 0, "f16"},
                 {"int8", 32, "int8 (groups of 32)"},
                 {"int8", 128, "int8 (groups of 128)"},
                 {"int4", 32, "int4 (groups of 32)"},
                 {"int4", 128, "int4 (groups of 128)"},
                 {"fp8", 0, "fp8 (groups of 128)"}};
    char seen[ARRAY_SIZE(kinds)][65];
    uint64_t bytes[ARRAY_SIZE(kinds)];
    struct engine *e;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct engine_config c = small();
        c.quantization = kinds[i].name;
        c.quantization_group = kinds[i].group;
        assert_ok(engine_open(&e, &c, NULL));
        strcpy(seen[i], engine_info(e)->fingerprint_hex);
        bytes[i] = engine_info(e)->weight_bytes;
        assert_string_equal(engine_info(e)->weights_name, kinds[i].shown);
        /* "auto" is the float type of the model, quantized or not: 2 KiB a block. */
        assert_int_equal(engine_info(e)->kv_bytes / engine_info(e)->n_kv_blocks, 2048);
        engine_close(e);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(seen[i], seen[j]);
    }
    assert_true(bytes[1] < bytes[0] && bytes[3] < bytes[1]);
}

static const struct ops float_ops = {.name = "floats-only", .kv_dtypes = KV_FLOAT_DTYPES};

static const struct ops *ops_of_floats(const void *state)
{
    (void)state;
    return &float_ops;
}

static void close_nothing(void *state)
{
    (void)state;
}

/* A device whose attention takes KV of float types only. */
static void a_type_of_kv_that_the_device_lacks_is_refused_by_name(void **state)
{
    static const struct device_backend backend = {.close = close_nothing, .ops = ops_of_floats};
    static const char *const names[] = {"auto", "f32", "bf16", "f16", "int8", "fp8"};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F32, DTYPE_BF16,
                                       DTYPE_F16,  DTYPE_I8,  DTYPE_F8};
    struct device *d;
    struct buf why;
    enum dtype t;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(device_open_backend(&d, &backend, NULL, &why));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        enum status s = opening_kv_dtype("{kv_cache_dtype}", names[i], DTYPE_BF16, d, &t, &why);

        assert_int_equal(s, i < 4 ? OK : ERR_UNSUPPORTED);
        assert_int_equal(t, types[i]);
    }
    assert_non_null(strstr(buf_str(&why), "{kv_cache_dtype} fp8"));
    assert_non_null(strstr(buf_str(&why), "floats-only"));
    buf_fini(&why);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wrong_option_is_named),
        cmocka_unit_test(damaged_side_files_are_errors_not_crashes),
        cmocka_unit_test(a_small_pool_cuts_the_context),
        cmocka_unit_test(the_fingerprint_tells_models_and_settings_apart),
        cmocka_unit_test(each_quantization_has_a_fingerprint_of_its_own),
        cmocka_unit_test(a_type_of_kv_that_the_device_lacks_is_refused_by_name),
    };
    strcpy(dir, "/tmp/tarn-open-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    write_file("config.json", config_json);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_file("config.json");
    rmdir(dir);
    return rc;
}
