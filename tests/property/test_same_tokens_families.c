/* Promise P1 for every kind of family: token ids and bits of log-probabilities depend neither on
 * chunks and threads nor on batch, cache and preemptions. test_same_tokens.c tests the same for
 * Llama, more thoroughly. Here the layers differ: windows, norms, biases, positions,
 * multipliers, experts. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#define N_PROMPT 330 /* two segments and no multiple of a block */
#define N_CACHED 270
#define N_OUT 8
#define TRIES_MAX 50
#define N_LATE 200
#define N_COMPANY 5
#define N_VOCAB 300
/* 3 layers, K and V, 2 heads of 16 in f32 */
#define BLOCK_BYTES ((uint64_t)3 * 2 * 2 * 16 * KV_BLOCK_TOKENS * 4)

static const struct {
    const char *architecture, *own;
} families[] = {
    {"MistralForCausalLM", "\"sliding_window\":70"},
    {"Qwen2ForCausalLM", "\"use_sliding_window\":true,\"sliding_window\":45,"
                         "\"max_window_layers\":1"},
    {"Qwen3ForCausalLM", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                         "\"original_max_position_embeddings\":128}"},
    {"Phi3ForCausalLM", "\"original_max_position_embeddings\":256,\"partial_rotary_factor\":0.5,"
                        "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
                        "\"long_factor\":[1,2,3,4]}"},
    {"Gemma2ForCausalLM", "\"hidden_act\":\"gelu_pytorch_tanh\",\"sliding_window\":100"},
    {"Gemma3ForCausalLM", "\"hidden_act\":\"gelu_pytorch_tanh\",\"sliding_window\":33,"
                          "\"sliding_window_pattern\":3"},
    {"SmolLM3ForCausalLM", "\"no_rope_layers\":[1,0,1]"},
    {"Olmo2ForCausalLM", "\"rope_theta\":500000"},
    {"GraniteForCausalLM", "\"embedding_multiplier\":12,\"residual_multiplier\":0.22,"
                           "\"attention_multiplier\":0.0625,\"logits_scaling\":4"},
    {"StableLmForCausalLM", "\"partial_rotary_factor\":0.25,\"use_qkv_bias\":true"},
    {"MixtralForCausalLM", "\"num_local_experts\":5,\"sliding_window\":70"},
    {"Qwen2MoeForCausalLM", "\"num_experts\":9,\"num_experts_per_tok\":3,"
                            "\"moe_intermediate_size\":40,\"mlp_only_layers\":[1],"
                            "\"shared_expert_intermediate_size\":48"},
    {"Qwen3MoeForCausalLM", "\"num_experts\":7,\"num_experts_per_tok\":2,"
                            "\"moe_intermediate_size\":40,\"norm_topk_prob\":true"},
    {"OlmoeForCausalLM", "\"num_experts\":8,\"num_experts_per_tok\":3"},
    {"BailingMoeForCausalLM", "\"num_experts\":40,\"num_experts_per_tok\":6,"
                              "\"moe_intermediate_size\":32,\"num_shared_experts\":2,"
                              "\"first_k_dense_replace\":1"},
};

struct answer {
    struct out_token tokens[N_OUT];
    struct out_top tops[N_OUT * SAMPLING_N_LOGPROBS_MAX];
};

static uint32_t ids[N_COMPANY + 1][N_PROMPT];
static const char *model; /* config.json of the family under test */

/* In bf16 a word of the cache has two keys: a window may begin in the middle of it. */
static const struct kernels {
    const char *variant; /* NULL: the best of the machine */
    const char *kv_dtype, *quantization;
} all_kernels[] = {{NULL, "f32", "none"},
                   {NULL, "bf16", "none"},
                   {"portable", "bf16", "none"},
                   {NULL, "bf16", "int4"}};
static const struct kernels *kernels;
#ifndef N_KERNELS /* of a family, the first and the others in turns: see CMakeLists.txt */
#define N_KERNELS ARRAY_SIZE(all_kernels)
#endif

static void open_engine(struct engine_test *t, uint32_t chunk, uint32_t threads, uint64_t kv_bytes)
{
    struct engine_config c;

    engine_config_init(&c);
    c.max_batched_tokens = chunk;
    c.n_threads = threads;
    c.max_num_seqs = N_COMPANY + 1;
    c.cpu_variant = kernels->variant;
    c.kv_dtype = kernels->kv_dtype;
    c.quantization = kernels->quantization;
    c.kv_bytes = kv_bytes;
    engine_test_open(t, model, &c);
}

static struct request *submit(struct engine_test *t, uint32_t prompt, uint32_t n, uint32_t n_out)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    return engine_test_submit(t, ids[prompt], n, NULL, 0, &sp, &st);
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_n_out(r), N_OUT);
    memcpy(a->tokens, r->out, sizeof a->tokens);
    memcpy(a->tops, r->out_top, sizeof a->tops);
    request_unref(r);
}

static void finish(struct request *r)
{
    engine_test_wait(r);
    request_unref(r);
}

static void answer_alone(uint32_t chunk, uint32_t threads, struct answer *a)
{
    struct engine_test t;

    open_engine(&t, chunk, threads, 8 << 20);
    keep(a, submit(&t, 0, N_PROMPT, N_OUT));
    engine_test_close(&t);
}

/* Answer with a part of the prompt in the cache, in a batch with prompts of other lengths. */
static void answer_in_company(struct answer *a)
{
    struct request *r[N_COMPANY];
    struct engine_test t;

    open_engine(&t, 200, 2, 8 << 20);
    finish(submit(&t, 0, N_CACHED, N_OUT));
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = b == 2 ? submit(&t, 0, N_PROMPT, N_OUT) : submit(&t, b + 1, 60 + 50 * b, N_OUT);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        if (b != 2)
            finish(r[b]);
    engine_test_wait(r[2]);
    assert_true(atomic_load(&r[2]->n_cached) >= N_CACHED - KV_BLOCK_TOKENS);
    keep(a, r[2]);
    engine_test_close(&t);
}

/* Answer prompt 3 beside another one. */
static void check_in_company(struct engine_test *t, const struct out_token *want, const char *how)
{
    struct request *first = submit(t, 4, N_PROMPT, N_LATE), *r = submit(t, 3, N_PROMPT, N_LATE);

    finish(first);
    engine_test_wait(r);
    assert_int_equal(request_n_out(r), N_LATE);
    if (memcmp(want, r->out, N_LATE * sizeof *want) != 0)
        fail_msg("%s: other tokens after a preemption", how);
    request_unref(r);
}

/* Two prompts fit into the pool at first, and exceed it while they decode. The first one may end
 * before the second comes: then both are asked for again. */
static void check_preemptions(const char *how)
{
    static struct out_token want[N_LATE];
    struct engine_stats before, after;
    struct engine_test t;

    open_engine(&t, 256, 2, 30 * BLOCK_BYTES);
    struct request *r = submit(&t, 3, N_PROMPT, N_LATE);
    engine_test_wait(r);
    assert_int_equal(request_n_out(r), N_LATE);
    memcpy(want, r->out, sizeof want);
    request_unref(r);
    engine_stats(t.engine, &before);
    after = before;
    for (int i = 0; i < TRIES_MAX && after.n_preemptions == before.n_preemptions; i++) {
        check_in_company(&t, want, how);
        engine_stats(t.engine, &after);
    }
    if (after.n_preemptions == before.n_preemptions)
        fail_msg("%s: nothing was preempted", how);
    engine_test_close(&t);
}

static void assert_equal(const struct answer *got, const struct answer *want, const char *family,
                         const char *how)
{
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s, weights %s, KV in %s: other bits %s", family, kernels->quantization,
                 kernels->kv_dtype, how);
}

static void check_family(const char *name)
{
    static struct answer want, got;

    answer_alone(512, 2, &want);
    answer_alone(7, 1, &got);
    assert_equal(&got, &want, name, "in chunks of 7");
    answer_alone(41, 3, &got);
    assert_equal(&got, &want, name, "in chunks of 41");
    answer_in_company(&got);
    assert_equal(&got, &want, name, "in company");
    if (kernels == all_kernels)
        check_preemptions(name);
}

static void every_family_keeps_its_bits(void **state)
{
    char json[1024];

    (void)state;
    for (uint32_t b = 0; b <= N_COMPANY; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
    for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
        snprintf(json, sizeof json,
                 "{\"architectures\":[\"%s\"],%s,\"hidden_size\":64,\"num_hidden_layers\":3,"
                 "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":16,"
                 "\"intermediate_size\":96,\"vocab_size\":%u,\"max_position_embeddings\":900,"
                 "\"torch_dtype\":\"float32\",\"tie_word_embeddings\":false}",
                 families[i].architecture, families[i].own, N_VOCAB);
        model = json;
        for (size_t k = 0; k < N_KERNELS; k++) {
            kernels = all_kernels;
            if (k > 0)
                kernels += 1 + (i + k - 1) % (ARRAY_SIZE(all_kernels) - 1);
            check_family(families[i].architecture);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family_keeps_its_bits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
