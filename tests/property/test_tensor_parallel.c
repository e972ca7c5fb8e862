/* Promise P1 with --tensor-parallel-size: token ids and the bits of 21 log-probabilities per token
 * depend, within one number of GPUs, only on model, prompt, parameters and seed. Answers are close
 * to those of one GPU; KV moves to the host and back; faults stay where they happened. The GPUs are
 * emulated, and the emulation ends the process where one touches the memory of another. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/engine_test.h"
#include "tests/temp_dir.h"

#define CUDA_ERROR_MEMORY_ALLOCATION 2 /* the device survives it */
#define CUDA_ERROR_LAUNCH_FAILURE 719  /* it does not */
#define N_PROMPT 100                   /* three blocks and a tail */
#define N_CACHED 90
#define N_SHORT 40
#define N_OUT 2
#define N_COMPANY 4
#define N_VOCAB 300
/* Of both ranks: layers, K and V, KV heads, dimensions, tokens, bytes. */
#define N_BLOCK_BYTES ((uint64_t)2 * 2 * 2 * 32 * 32 * 2)

struct answer {
    struct out_token tokens[N_OUT];
    struct out_top tops[N_OUT * SAMPLING_N_LOGPROBS_MAX];
};

static uint32_t ids[N_COMPANY][N_PROMPT];
static const uint32_t span_ends[] = {17, 60, 61};

static const char untied[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"intermediate_size\":128,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";
/* Biases on Q, K and V; the output layer is the embedding. */
static const char tied[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,"
    "\"intermediate_size\":128,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\"}";
/* Norms of each head, and behind each part; soft caps. */
static const char normed[] =
    "{\"architectures\":[\"Gemma2ForCausalLM\"],\"model_type\":\"gemma2\",\"hidden_size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"intermediate_size\":128,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"query_pre_attn_scalar\":32,"
    "\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0,\"sliding_window\":64,"
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"torch_dtype\":\"bfloat16\"}";

/* Norms of each head, experts. */
static const char experts[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"num_experts\":5,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"intermediate_size\":96,"
    "\"norm_topk_prob\":true,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";
/* Experts beside a shared part with a gate. */
static const char shared[] =
    "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"intermediate_size\":96,"
    "\"shared_expert_intermediate_size\":80,\"vocab_size\":300,"
    "\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";

struct kind {
    const char *name, *model, *dtype, *kv, *quantization;
    uint32_t group, n_ranks;
};

static const struct kind kinds[] = {
    {"untied, bf16", untied, "bf16", "bf16", "none", 0, 2},
    {"four ranks, int8, KV too", tied, "bf16", "int8", "int8", 32, 4},
    {"experts, bf16", experts, "bf16", "bf16", "none", 0, 2},
};

static void kind_config(struct engine_config *c, const struct kind *k, uint32_t chunk)
{
    engine_config_init(c);
    c->device = "cuda";
    c->tensor_parallel_size = k->n_ranks;
    c->batch_invariant = true;
    c->profile_cost = false;
    c->max_batched_tokens = chunk;
    c->n_threads = 1;
    c->max_num_seqs = N_COMPANY + 1;
    c->max_model_len = 400;
    c->dtype = k->dtype;
    c->quantization = k->quantization;
    c->quantization_group = k->group;
    c->kv_dtype = k->kv;
    c->kv_bytes = 100 * N_BLOCK_BYTES;
    c->check_each_step = true;
}

static void open_kind(struct engine_test *t, const struct kind *k, uint32_t chunk)
{
    struct engine_config c;

    kind_config(&c, k, chunk);
    engine_test_open(t, k->model, &c);
}

static struct request *submit(struct engine_test *t, uint32_t which, uint32_t n, float temperature)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, N_OUT);
    sp.temperature = temperature;
    sp.top_p = temperature > 0 ? 0.95f : 1;
    sp.seed = 1234;
    return engine_test_submit(t, ids[which], n, span_ends, n > 61 ? 3 : 1, &sp, &st);
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    memcpy(a->tokens, r->out, sizeof a->tokens);
    memcpy(a->tops, r->out_top, sizeof a->tops);
    request_unref(r);
}

static void assert_same(const struct answer *a, const struct answer *want, const char *name,
                        const char *how)
{
    if (memcmp(a, want, sizeof *a))
        fail_msg("%s, %s: the bits differ (tokens %u, %u)", name, how, a->tokens[0].id,
                 want->tokens[0].id);
}

static void answer_with(const struct kind *k, uint32_t n, uint32_t chunk, float temperature,
                        struct answer *a)
{
    struct engine_test t;

    open_kind(&t, k, chunk);
    keep(a, submit(&t, 0, n, temperature));
    engine_test_close(&t);
}

/* Answer with a part of the prompt in the cache, in a batch with prompts of all lengths. */
static void answer_in_company(const struct kind *k, float temperature, struct answer *a)
{
    struct request *r[N_COMPANY], *first;
    struct engine_test t;

    open_kind(&t, k, 64);
    first = submit(&t, 0, N_CACHED, 0);
    engine_test_wait(first);
    request_unref(first);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = b == 2 ? submit(&t, 0, N_PROMPT, temperature)
                      : submit(&t, b ? b : 1, 20 + 20 * b, temperature);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        engine_test_wait(r[b]);
    assert_true(atomic_load(&r[2]->n_cached) >= N_CACHED - KV_BLOCK_TOKENS);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        if (b != 2)
            request_unref(r[b]);
    keep(a, r[2]);
    engine_test_close(&t);
}

static void chunks_batch_mates_and_cache_hits_do_not_change_a_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        const struct kind *k = &kinds[i];
        float temperature = i % 2 ? 0 : 0.9f;
        static struct answer want, got;

        answer_with(k, N_PROMPT, 256, temperature, &want);
        answer_with(k, N_PROMPT, 41, temperature, &got);
        assert_same(&got, &want, k->name, "chunks of 41");
        if (k->n_ranks > 2)
            continue; /* it takes long */
        answer_in_company(k, temperature, &got);
        assert_same(&got, &want, k->name, "in company");
    }
}

/* The pool holds one prompt and a bit: evicted blocks are fetched from host memory, where the
 * parts of all ranks lie one behind the other. */
static void the_host_tier_does_not_change_a_bit(void **state)
{
    const struct kind *k = &kinds[0];
    static struct answer want[2], got;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct request *r;

    (void)state;
    open_kind(&t, k, 256);
    for (uint32_t i = 0; i < 2; i++)
        keep(&want[i], submit(&t, i, N_PROMPT, 0));
    engine_test_close(&t);
    kind_config(&c, k, 256);
    c.max_num_seqs = 2;
    c.max_model_len = 160;
    c.kv_bytes = 8 * N_BLOCK_BYTES;
    c.kv_host_bytes = 100 * N_BLOCK_BYTES;
    engine_test_open(&t, k->model, &c);
    assert_int_equal(engine_info(t.engine)->n_kv_blocks, 8);
    for (uint32_t round = 0; round < 4; round++) {
        r = submit(&t, round % 2, N_PROMPT, 0);
        engine_test_wait(r);
        assert_true(round < 2 || atomic_load(&r->n_cached_in[CACHE_HOST]) > 0);
        keep(&got, r);
        assert_same(&got, &want[round % 2], k->name, "from the host");
    }
    engine_test_idle(&t, &st);
    assert_int_equal(st.cache.n_copies_failed, 0);
    assert_int_equal(st.cache.tier[CACHE_DEVICE].n_leaked, 0);
    assert_true(st.cache.tier[CACHE_DEVICE].n_moved_in > 0);
    engine_test_close(&t);
}

/* The pool holds two of the three prompts, so that one is preempted and resumes. */
static void preemptions_do_not_change_a_bit(void **state)
{
    enum { N_LATE = 20 };
    struct out_token want[N_LATE];
    struct request *first, *second;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct sampling sp;
    struct stopping stop;

    (void)state;
    kind_config(&c, &kinds[0], 128);
    c.prefix_caching = false;
    c.max_model_len = 160;
    c.kv_bytes = 7 * N_BLOCK_BYTES;
    c.mlfq_variant = "tarn"; /* by default the second request waits for the first */
    engine_test_open(&t, kinds[0].model, &c);
    engine_test_params(&sp, &stop, N_LATE);
    first = engine_test_submit(&t, ids[3], N_PROMPT, NULL, 0, &sp, &stop);
    engine_test_wait(first);
    memcpy(want, first->out, sizeof want);
    request_unref(first);
    first = engine_test_submit(&t, ids[2], N_PROMPT, NULL, 0, &sp, &stop);
    second = engine_test_submit(&t, ids[3], N_PROMPT, NULL, 0, &sp, &stop);
    engine_test_wait(first);
    engine_test_wait(second);
    engine_stats(t.engine, &st);
    assert_true(st.n_preemptions > 0);
    assert_memory_equal(want, second->out, sizeof want);
    request_unref(first);
    request_unref(second);
    engine_test_close(&t);
}

/* The same weights on one GPU and on several: sums have another order, and nothing else. */
static void answers_are_close_to_those_of_one_gpu(void **state)
{
    static const struct kind pairs[] = {
        {"untied, f32", untied, "f32", "f32", "none", 0, 2},
        {"tied, with biases, f32", tied, "f32", "f32", "none", 0, 4},
        {"norms behind each part, f32", normed, "f32", "f32", "none", 0, 2},
        {"experts, f32", experts, "f32", "f32", "none", 0, 2},
        {"experts and a shared part, f32", shared, "f32", "f32", "none", 0, 2},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        struct kind one = pairs[i];
        static struct answer a, b;

        one.n_ranks = 1;
        answer_with(&pairs[i], N_SHORT, 128, 0, &a);
        answer_with(&one, N_SHORT, 128, 0, &b);
        for (int n = 0; n < N_OUT * SAMPLING_N_LOGPROBS_MAX; n++)
            if (fabs((double)a.tops[n].logprob - (double)b.tops[n].logprob) > 2e-4)
                fail_msg("%s: logprob %d is %g, on one GPU %g", pairs[i].name, n,
                         (double)a.tops[n].logprob, (double)b.tops[n].logprob);
        for (int n = 0; n < N_OUT; n++)
            assert_int_equal(a.tokens[n].id, b.tokens[n].id);
    }
}

/* KV of another number of GPUs lies in memory in another way, and has other bits. */
static void the_fingerprint_has_the_number_of_gpus(void **state)
{
    struct kind k = kinds[0];
    char one[80], two[80];
    struct engine_test t;

    (void)state;
    open_kind(&t, &k, 64);
    snprintf(two, sizeof two, "%s", engine_info(t.engine)->fingerprint_hex);
    assert_int_equal(engine_info(t.engine)->kv_block_bytes, N_BLOCK_BYTES);
    engine_test_close(&t);
    k.n_ranks = 1;
    open_kind(&t, &k, 64);
    snprintf(one, sizeof one, "%s", engine_info(t.engine)->fingerprint_hex);
    engine_test_close(&t);
    assert_string_not_equal(one, two);
}

/* Open an engine of n_ranks with the disk tier, answer, and wait until all blocks are on disk.
 * Returns how many tokens were found there. */
static uint32_t answer_with_disk(const char *path, uint32_t n_ranks, struct answer *a)
{
    struct kind k = kinds[0];
    struct engine_config c;
    struct engine_stats st;
    struct engine_test t;

    k.n_ranks = n_ranks;
    kind_config(&c, &k, 128);
    c.kv_disk_path = path;
    c.kv_disk_bytes = (uint64_t)16 << 20;
    c.kv_disk_min_uses = 1;
    c.kv_disk_timeout_ms = 60000;
    engine_test_open(&t, k.model, &c);
    struct request *r = submit(&t, 0, N_PROMPT, 0);
    engine_test_wait(r);
    uint32_t n_found = atomic_load(&r->n_cached_in[CACHE_DISK]);
    keep(a, r);
    do {
        clock_sleep_ns(1000000);
        engine_test_idle(&t, &st);
    } while (st.cache.tier[CACHE_DISK].n_cached < 5); /* of the three spans and the rest */
    engine_test_close(&t);
    return n_found;
}

/* A record has the parts of all ranks. Another number of GPUs does not find it. */
static void the_disk_tier_does_not_change_a_bit(void **state)
{
    static struct answer want, got, other;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    assert_int_equal(answer_with_disk(d.path, 2, &want), 0);
    assert_true(answer_with_disk(d.path, 2, &got) > KV_BLOCK_TOKENS);
    assert_same(&got, &want, kinds[0].name, "from disk");
    assert_int_equal(answer_with_disk(d.path, 1, &other), 0);
    temp_dir_remove(&d);
}

static void wait_asleep(struct engine_test *t, unsigned parts)
{
    struct engine_sleep_state s;

    do {
        clock_sleep_ns(100000);
        engine_sleep_state(t->engine, &s);
        assert_int_equal(s.error, OK);
    } while (s.asleep != parts);
}

/* The weights of all ranks are loaded again, and their pools have other addresses. */
static void all_ranks_sleep_and_wake(void **state)
{
    const struct engine_sleep all = {.parts = ENGINE_WEIGHTS | ENGINE_KV};
    static struct answer want, got;
    struct engine_test t;

    (void)state;
    open_kind(&t, &kinds[0], 128);
    keep(&want, submit(&t, 0, N_PROMPT, 0));
    engine_sleep(t.engine, &all);
    wait_asleep(&t, all.parts);
    engine_wake(t.engine, all.parts);
    wait_asleep(&t, 0);
    keep(&got, submit(&t, 0, N_PROMPT, 0));
    assert_same(&got, &want, kinds[0].name, "after a sleep");
    engine_test_close(&t);
}

/* Guesses that are looked up, and those of a draft model on the first GPU. The prompt repeats
 * itself, and so does the answer. */
static void guesses_do_not_change_a_bit(void **state)
{
    enum { N_LONG = 16, NO_GUESSES = DRAFT_N_SOURCES };
    struct out_token want[N_LONG];
    uint32_t repeated[N_SHORT];
    char dir[ENGINE_TEST_DIR_BYTES];

    (void)state;
    for (uint32_t i = 0; i < N_SHORT; i++)
        repeated[i] = ids[0][i % 5];
    engine_test_make_model(dir, untied);
    for (int source = NO_GUESSES; source >= 0; source--) {
        struct engine_config c;
        struct engine_stats st;
        struct engine_test t;
        struct sampling sp;
        struct stopping stop;

        kind_config(&c, &kinds[0], 64);
        c.speculative_tokens = source == NO_GUESSES ? 0 : 6;
        c.speculate_always = true;
        c.draft_model_dir = source == DRAFT_BY_MODEL ? dir : NULL;
        engine_test_open(&t, untied, &c);
        engine_test_params(&sp, &stop, N_LONG);
        struct request *r = engine_test_submit(&t, repeated, N_SHORT, NULL, 0, &sp, &stop);
        engine_test_wait(r);
        engine_test_idle(&t, &st);
        if (source == NO_GUESSES)
            memcpy(want, r->out, sizeof want);
        else
            assert_true(st.drafts[source].n_accepted > 0);
        assert_memory_equal(r->out, want, sizeof want);
        request_unref(r);
        engine_test_close(&t);
    }
    engine_test_remove_model(dir);
}

/* --- failures --- */

static void assert_works(struct engine_test *t)
{
    struct request *r = submit(t, 3, 70, 0);

    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    request_unref(r);
}

/* A call of either rank fails. Where the device survives it, the other rank does not wait for the
 * collectives that are left, and the next step succeeds. */
static void a_failed_call_ends_its_own_requests_only(void **state)
{
    struct engine_test t;
    int n_failed = 0;

    (void)state;
    log_init(LOG_ERROR + 1, false);
    open_kind(&t, &kinds[0], 64);
    for (uint64_t nth = 1; nth < 80; nth += 7) {
        emulation_fail_call(nth, CUDA_ERROR_MEMORY_ALLOCATION);
        struct request *r = submit(&t, 0, 70, 0);
        engine_test_wait(r);
        emulation_fail_call(0, 0);
        bool died = engine_failed(t.engine); /* a collective failed */
        n_failed += request_finish(r) == FINISH_ERROR && !died;
        if (!died && request_finish(r) == FINISH_ERROR)
            assert_works(&t);
        request_unref(r);
        engine_test_holds_nothing(&t);
        if (died) {
            engine_test_close(&t);
            open_kind(&t, &kinds[0], 64);
        }
    }
    assert_true(n_failed > 3);
    engine_test_close(&t);
    log_init(LOG_WARN, false);
}

static void a_dead_device_ends_the_engine(void **state)
{
    (void)state;
    log_init(LOG_ERROR + 1, false);
    for (uint64_t nth = 1; nth < 120; nth += 17) {
        struct engine_test t;

        open_kind(&t, &kinds[0], 64);
        emulation_fail_call(nth, CUDA_ERROR_LAUNCH_FAILURE);
        struct request *r = submit(&t, 0, 70, 0);
        engine_test_wait(r);
        emulation_fail_call(0, 0);
        if (request_finish(r) == FINISH_ERROR) {
            assert_int_equal(r->error, ERR_UNAVAILABLE);
            assert_true(engine_failed(t.engine));
        }
        request_unref(r);
        engine_test_holds_nothing(&t);
        engine_test_close(&t); /* does not hang */
    }
    log_init(LOG_WARN, false);
}

/* --- refusals --- */

static void refuse(struct engine_config *c, const char *model, const char *words)
{
    struct engine *e = NULL;
    char dir[ENGINE_TEST_DIR_BYTES];
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    engine_test_make_model(dir, model);
    c->model_dir = dir;
    c->load_format = "dummy";
    assert_int_not_equal(engine_open(&e, c, &why), OK);
    assert_null(e);
    if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" lacks \"%s\"", buf_str(&why), words);
    engine_test_remove_model(dir);
    buf_fini(&why);
}

static void what_several_gpus_cannot_do_is_refused_by_name(void **state)
{
    struct engine_config c;

    (void)state;
    kind_config(&c, &kinds[0], 64);
    c.tensor_parallel_size = 4;
    refuse(&c, untied, "num_key_value_heads 2");
    kind_config(&c, &kinds[0], 64);
    c.tensor_parallel_size = 9;
    refuse(&c, untied, "at most 8");
    kind_config(&c, &kinds[0], 64);
    c.device = "cpu";
    refuse(&c, untied, "{tensor_parallel_size} 2 needs 2 GPUs");
    kind_config(&c, &kinds[0], 64);
    c.max_adapters = 1;
    c.max_adapter_rank = 8;
    refuse(&c, untied, "{lora_modules}");
    setenv("TARN_EMULATION_DEVICES", "1", 1);
    kind_config(&c, &kinds[0], 64);
    refuse(&c, untied, "GPU number 2 is wanted, and 1 are visible");
    setenv("TARN_EMULATION_DEVICES", "4", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_batch_mates_and_cache_hits_do_not_change_a_bit),
        cmocka_unit_test(the_host_tier_does_not_change_a_bit),
        cmocka_unit_test(preemptions_do_not_change_a_bit),
        cmocka_unit_test(the_disk_tier_does_not_change_a_bit),
        cmocka_unit_test(answers_are_close_to_those_of_one_gpu),
        cmocka_unit_test(the_fingerprint_has_the_number_of_gpus),
        cmocka_unit_test(all_ranks_sleep_and_wake),
        cmocka_unit_test(guesses_do_not_change_a_bit),
        cmocka_unit_test(a_failed_call_ends_its_own_requests_only),
        cmocka_unit_test(a_dead_device_ends_the_engine),
        cmocka_unit_test(what_several_gpus_cannot_do_is_refused_by_name),
    };

    setenv("TARN_EMULATION_DEVICES", "4", 1);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
