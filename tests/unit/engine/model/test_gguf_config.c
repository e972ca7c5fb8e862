/* The metadata of a GGUF file describes a model as config.json would. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdlib.h>

#include "engine/model/family.h"
#include "tests/temp_dir.h"
#include "tests/unit/gguf_file.h"

#define N_PAIRS 32

static struct temp_dir dir;
static char path[128];
static struct buf why;

static int make_dir(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/model.gguf", dir.path);
    buf_init(&why, BUF_WHY_MAX);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    temp_dir_remove(&dir);
    buf_fini(&why);
    return 0;
}

static void architecture_key(struct gguf_file *f, const char *name, const char *key, uint32_t v)
{
    char full[96];

    snprintf(full, sizeof full, "%s.%s", name, key);
    gguf_file_key_u32(f, full, v);
}

/* A model of 4 heads of 64 elements, 6 layers, 100 tokens, with n_tensors to follow. */
static void begin_model(struct gguf_file *f, const char *name, uint64_t n_tensors)
{
    gguf_file_begin(f, n_tensors, 0);
    gguf_file_key_string(f, "general.architecture", name);
    architecture_key(f, name, "block_count", 6);
    architecture_key(f, name, "embedding_length", 256);
    architecture_key(f, name, "feed_forward_length", 512);
    architecture_key(f, name, "attention.head_count", 4);
    architecture_key(f, name, "context_length", 4096);
    architecture_key(f, name, "vocab_size", 100);
}

static void load(struct gguf_file *f, struct model_config *m)
{
    gguf_file_count_keys(f);
    gguf_file_write(f, path);
    if (model_config_load(m, path, &why) != OK)
        fail_msg("%s", buf_str(&why));
}

static void refuse(struct gguf_file *f, enum status s, const char *words)
{
    struct model_config m;

    gguf_file_count_keys(f);
    gguf_file_write(f, path);
    assert_int_equal(model_config_load(&m, path, &why), s);
    if (!strstr(buf_str(&why), words))
        fail_msg("expected the words \"%s\": %s", words, buf_str(&why));
}

static void numbers_are_those_of_config_json_to_the_last_bit(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"GraniteForCausalLM\"], \"num_hidden_layers\": 6,"
        " \"hidden_size\": 256, \"intermediate_size\": 512, \"num_attention_heads\": 4,"
        " \"max_position_embeddings\": 4096, \"vocab_size\": 100, \"rms_norm_eps\": 1e-5,"
        " \"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"eos_token_id\": 7,"
        " \"attention_multiplier\": 0.015625, \"embedding_multiplier\": 12.0,"
        " \"residual_multiplier\": 0.22, \"logits_scaling\": 8.1}";
    struct model_config ours, theirs;
    struct gguf_file f;
    struct buf a, b;
    char file[160];

    (void)state;
    begin_model(&f, "granite", 0);
    gguf_file_key_f32(&f, "granite.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_file_key_f32(&f, "granite.rope.freq_base", 500000.0f);
    gguf_file_key_f32(&f, "granite.attention.scale", 0.015625f);
    gguf_file_key_f32(&f, "granite.embedding_scale", 12.0f);
    gguf_file_key_f32(&f, "granite.residual_scale", 0.22f);
    gguf_file_key_f32(&f, "granite.logit_scale", 8.1f);
    gguf_file_key_u32(&f, "tokenizer.ggml.eos_token_id", 7);
    load(&f, &ours);
    snprintf(file, sizeof file, "%s/config.json", dir.path);
    gguf_file_save(file, config, sizeof config - 1);
    assert_int_equal(model_config_load(&theirs, dir.path, &why), OK);
    buf_init(&a, 1 << 16);
    buf_init(&b, 1 << 16);
    assert_ok(model_config_write(&ours, false, &a));
    assert_ok(model_config_write(&theirs, false, &b));
    assert_string_equal(buf_str(&a), buf_str(&b));
    buf_fini(&a);
    buf_fini(&b);
}

static void answers_end_at_the_tokens_that_the_file_names_or_marks(void **state)
{
    static const char *const tokens[] = {"a", "<|im_end|>", "</s>", "<|endoftext|>", "<|eot_id|>"};
    static const uint32_t types[] = {1, 3, 3, 3, 1}; /* 3: control */
    struct model_config m;
    struct gguf_file f;

    (void)state;
    begin_model(&f, "qwen2", 0);
    gguf_file_key_array(&f, "tokenizer.ggml.tokens", GGUF_STRING, 5);
    for (int i = 0; i < 5; i++)
        gguf_file_string(&f, tokens[i]);
    gguf_file_key_array(&f, "tokenizer.ggml.token_type", GGUF_I32, 5);
    for (int i = 0; i < 5; i++)
        gguf_file_u32(&f, types[i]);
    gguf_file_key_u32(&f, "tokenizer.ggml.eos_token_id", 2);
    gguf_file_key_u32(&f, "tokenizer.ggml.eot_token_id", 1);
    load(&f, &m);
    assert_int_equal(m.n_vocab, 5); /* as many as there are tokens */
    assert_int_equal(m.n_eos_ids, 3);
    assert_int_equal(m.eos_ids[0], 2);
    assert_int_equal(m.eos_ids[1], 1);
    assert_int_equal(m.eos_ids[2], 3);
}

static void sampling_defaults_are_read(void **state)
{
    struct model_config m;
    struct gguf_file f;

    (void)state;
    begin_model(&f, "llama", 0);
    gguf_file_key_f32(&f, "general.sampling.temp", 0.6f);
    gguf_file_key_f32(&f, "general.sampling.top_p", 0.95f);
    gguf_file_key_u32(&f, "general.sampling.top_k", 20);
    load(&f, &m);
    assert_true(m.temperature == 0.6f && m.top_p == 0.95f && m.min_p == 0);
    assert_int_equal(m.top_k, 20);
    begin_model(&f, "llama", 0);
    gguf_file_key_f32(&f, "general.sampling.temp", -1);
    refuse(&f, ERR_INVALID, "temperature");
}

static void windows_are_in_the_layers_that_the_architecture_says(void **state)
{
    struct model_config m;
    struct gguf_file f;

    (void)state;
    begin_model(&f, "llama", 0);
    architecture_key(&f, "llama", "attention.sliding_window", 100);
    load(&f, &m);
    assert_string_equal(m.family->name, "mistral");
    assert_int_equal(m.window, 100);
    assert_int_equal(m.windowed[0], 63);
    begin_model(&f, "gemma2", 0);
    load(&f, &m);
    assert_int_equal(m.window, 0); /* 4096 hides nothing of the context */
    assert_int_equal(m.windowed[0], 21);
    begin_model(&f, "gemma3", 0);
    architecture_key(&f, "gemma3", "attention.sliding_window", 512);
    load(&f, &m);
    assert_int_equal(m.window, 512);
    assert_int_equal(m.windowed[0], 31);
    begin_model(&f, "gemma3", 0);
    load(&f, &m);
    assert_int_equal(m.windowed[0], 0);
    begin_model(&f, "qwen3", 0);
    architecture_key(&f, "qwen3", "attention.sliding_window", 512);
    load(&f, &m);
    assert_int_equal(m.window, 0);
    begin_model(&f, "olmo2", 0);
    architecture_key(&f, "olmo2", "attention.sliding_window", 512);
    refuse(&f, ERR_UNSUPPORTED, "key olmo2.attention.sliding_window");
    begin_model(&f, "gemma3", 0);
    architecture_key(&f, "gemma3", "attention.sliding_window", 512);
    gguf_file_key_array(&f, "gemma3.attention.sliding_window_pattern", GGUF_BOOL, 2);
    gguf_file_add(&f, "\1\0", 2);
    refuse(&f, ERR_INVALID, "expected one bool per layer");
}

static void numbers_per_layer_must_be_equal(void **state)
{
    struct model_config m;
    struct gguf_file f;

    (void)state;
    for (uint32_t last = 2; last <= 4; last += 2) {
        begin_model(&f, "llama", 0);
        gguf_file_key_array(&f, "llama.attention.head_count_kv", GGUF_U32, 6);
        for (int i = 0; i < 6; i++)
            gguf_file_u32(&f, i == 5 ? last : 2);
        if (last != 2) {
            refuse(&f, ERR_UNSUPPORTED, "key llama.attention.head_count_kv differs between layers");
            continue;
        }
        load(&f, &m);
        assert_int_equal(m.n_kv_heads, 2);
    }
}

/* A file whose tensor rope_freqs.weight has these divisors. */
static void write_divisors(struct gguf_file *f, const float *divisors)
{
    begin_model(f, "llama", 1);
    gguf_file_key_f32(f, "llama.rope.freq_base", 500000.0f);
    gguf_file_count_keys(f);
    gguf_file_string(f, "rope_freqs.weight");
    gguf_file_u32(f, 1);
    gguf_file_u64(f, N_PAIRS);
    gguf_file_u32(f, 0);
    gguf_file_u64(f, 0);
    gguf_file_data(f, 32, 0);
    gguf_file_add(f, divisors, N_PAIRS * sizeof *divisors);
    gguf_file_write(f, path);
}

static void divisors_of_rotary_pairs_divide_the_frequencies(void **state)
{
    float divisors[N_PAIRS];
    double freqs[MODEL_ROPE_PAIRS_MAX];
    struct model_config m;
    struct gguf_file f;

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < N_PAIRS; i++) {
            double wavelength = 2 * 3.14159265358979323846 * pow(500000, i / 32.0);
            double smooth = (8192 / wavelength - 1) / 3;
            smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
            divisors[i] = kind ? (float)(1 + 0.3 * i) : (float)(1 / ((1 - smooth) / 32 + smooth));
        }
        write_divisors(&f, divisors);
        if (model_config_load(&m, path, &why) != OK)
            fail_msg("%s", buf_str(&why));
        assert_int_equal(m.rope.kind, kind ? ROPE_LONG : ROPE_LLAMA3);
        if (!kind)
            assert_true(m.rope.factor == 32 && m.rope.original_max_pos == 8192);
        assert_int_equal(model_rope_freqs(&m, false, freqs), N_PAIRS);
        for (int i = 0; i < N_PAIRS; i++) {
            double expected = pow(500000, -i / 32.0) / divisors[i];
            assert_true(fabs(freqs[i] - expected) <= 1e-6 * expected);
        }
        assert_true(m.rope.magnitude == (kind ? 1 : 0));
    }
    divisors[3] = NAN;
    write_divisors(&f, divisors);
    assert_int_equal(model_config_load(&m, path, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "tensor rope_freqs.weight: a factor is not finite"));
}

/* A phi3 file with factors for short and long contexts. */
static void write_factors(struct gguf_file *f, float magnitude)
{
    begin_model(f, "phi3", 2);
    architecture_key(f, "phi3", "rope.scaling.original_context_length", 2048);
    gguf_file_key_f32(f, "phi3.rope.scaling.attn_factor", magnitude);
    gguf_file_count_keys(f);
    for (uint64_t i = 0; i < 2; i++) {
        gguf_file_string(f, i ? "rope_factors_long.weight" : "rope_factors_short.weight");
        gguf_file_u32(f, 1);
        gguf_file_u64(f, N_PAIRS);
        gguf_file_u32(f, 0);
        gguf_file_u64(f, i * N_PAIRS * sizeof(float));
    }
    gguf_file_data(f, 32, 0);
    for (int i = 0; i < 2 * N_PAIRS; i++) {
        float v = i < N_PAIRS ? 1.1f : 4.0f;
        gguf_file_add(f, &v, sizeof v);
    }
    gguf_file_write(f, path);
}

static void factors_of_longrope_keep_the_magnitude_of_the_file(void **state)
{
    double usual = sqrt(1 + log(2) / log(2048));
    struct model_config m;
    struct gguf_file f;

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        write_factors(&f, kind ? 1.25f : (float)usual);
        if (model_config_load(&m, path, &why) != OK)
            fail_msg("%s", buf_str(&why));
        assert_int_equal(m.rope.kind, ROPE_LONG);
        assert_int_equal(m.rope.original_max_pos, 2048);
        assert_true(m.rope.magnitude == (kind ? 1.25 : usual));
        assert_true(m.rope_factors[0][0] == 1.1 && m.rope_factors[1][N_PAIRS - 1] == 4);
    }
}

static void yarn_keeps_its_settings(void **state)
{
    struct model_config m;
    struct gguf_file f;

    (void)state;
    begin_model(&f, "qwen2", 0);
    gguf_file_key_string(&f, "qwen2.rope.scaling.type", "yarn");
    gguf_file_key_f32(&f, "qwen2.rope.scaling.factor", 4);
    architecture_key(&f, "qwen2", "rope.scaling.original_context_length", 1024);
    gguf_file_key_f32(&f, "qwen2.rope.scaling.yarn_attn_factor", 1.3f);
    gguf_file_key_f32(&f, "qwen2.rope.scaling.yarn_beta_fast", 16);
    gguf_file_key_f32(&f, "qwen2.rope.scaling.yarn_beta_slow", 2);
    load(&f, &m);
    assert_int_equal(m.rope.kind, ROPE_YARN);
    assert_int_equal(m.rope.original_max_pos, 1024);
    assert_true(m.rope.factor == 4 && m.rope.magnitude == 1.3);
    assert_true(m.rope.beta_fast == 16 && m.rope.beta_slow == 2);
}

static void rotated_dimensions_may_be_a_part_of_a_head(void **state)
{
    struct model_config m;
    struct gguf_file f;

    (void)state;
    for (uint32_t n = 2; n <= 64; n += 2) {
        begin_model(&f, "stablelm", 0);
        architecture_key(&f, "stablelm", "rope.dimension_count", n);
        load(&f, &m);
        assert_int_equal(model_rot_dim(&m), n);
    }
    begin_model(&f, "stablelm", 0);
    architecture_key(&f, "stablelm", "rope.dimension_count", 66);
    refuse(&f, ERR_INVALID, "key stablelm.rope.dimension_count: expected a whole number up to 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_config_json_to_the_last_bit),
        cmocka_unit_test(answers_end_at_the_tokens_that_the_file_names_or_marks),
        cmocka_unit_test(sampling_defaults_are_read),
        cmocka_unit_test(windows_are_in_the_layers_that_the_architecture_says),
        cmocka_unit_test(numbers_per_layer_must_be_equal),
        cmocka_unit_test(divisors_of_rotary_pairs_divide_the_frequencies),
        cmocka_unit_test(factors_of_longrope_keep_the_magnitude_of_the_file),
        cmocka_unit_test(yarn_keeps_its_settings),
        cmocka_unit_test(rotated_dimensions_may_be_a_part_of_a_head),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
