/* Promise P1 on a GPU with --batch-invariant: token ids and the bits of 21 log-probabilities per
 * token depend only on model, prompt, parameters and seed, and not on chunks, batch, cache and
 * preemptions. The prompts are as short as the cases allow, because the GPU is emulated. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#define N_PROMPT 301 /* two segments and no multiple of a block */
#define N_CACHED 270
#define N_OUT 3
#define N_LONG_OUT 10
#define N_COMPANY 5
#define N_VOCAB 300

struct answer {
    struct out_token tokens[N_OUT];
    struct out_top tops[N_OUT * SAMPLING_N_LOGPROBS_MAX];
};

static uint32_t ids[N_COMPANY][N_PROMPT];
static const uint32_t span_ends[] = {17, 140, 141};

/* Heads of 64 dimensions use tensor cores, those of 12 (engine_test.h's model) do not. */
static const char wide_heads[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"intermediate_size\":256,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

/* Two warps share each tile of such heads. */
static const char widest_heads[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":256,"
    "\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

static const char heads_of_128[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":128,"
    "\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"float16\"}";

/* Batches are filled up to a step's graph, and rows of padding must choose no expert. */
static const char experts[] =
    "{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"num_local_experts\":5,\"num_experts_per_tok\":2,"
    "\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

struct kind {
    const char *name, *model, *dtype, *kv, *quantization;
    uint32_t group;
    uint32_t chunk;
};

static const struct kind kinds[] = {
    {"head of 64, bf16", wide_heads, "bf16", "bf16", "none", 0, 19},
    {"head of 12, f32", NULL, "f32", "f32", "none", 0, 50},
    {"head of 64, int8, KV too", wide_heads, "bf16", "int8", "int8", 128, 40},
    {"experts, int8", experts, "bf16", "bf16", "int8", 32, 90},
    {"head of 64, int4, KV in fp8", wide_heads, "bf16", "fp8", "int4", 32, 90},
    {"head of 64, fp8, KV too", wide_heads, "bf16", "fp8", "fp8", 128, 90},
    {"head of 256, bf16", widest_heads, "bf16", "bf16", "none", 0, 19},
    {"head of 256, KV in int8", widest_heads, "bf16", "int8", "none", 0, 90},
    {"head of 128, f16", heads_of_128, "f16", "f16", "none", 0, 40},
    {"experts, bf16", experts, "bf16", "bf16", "none", 0, 40},
};

#ifndef N_KINDS /* all but the slow test take the first ones: see tests/emulated/CMakeLists.txt */
#define N_KINDS ARRAY_SIZE(kinds)
#endif

static void kind_config(struct engine_config *c, const struct kind *k, uint32_t chunk,
                        const char *device)
{
    engine_config_init(c);
    c->device = device;
    c->batch_invariant = true;
    c->max_batched_tokens = chunk;
    c->n_threads = 2;
    c->max_num_seqs = N_COMPANY + 1;
    c->max_model_len = 512;
    c->dtype = k->dtype;
    c->quantization = k->quantization;
    c->quantization_group = k->group;
    c->kv_dtype = k->kv;
    c->kv_bytes = (uint64_t)4 << 20;
}

static void open_kind(struct engine_test *t, const struct kind *k, uint32_t chunk,
                      const char *device)
{
    struct engine_config c;

    kind_config(&c, k, chunk, device);
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
    return engine_test_submit(t, ids[which], n, span_ends, n > 141 ? 3 : 1, &sp, &st);
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    memcpy(a->tokens, r->out, sizeof a->tokens);
    memcpy(a->tops, r->out_top, sizeof a->tops);
    request_unref(r);
}

static void assert_same(const struct answer *a, const struct answer *want, const struct kind *k,
                        const char *how)
{
    for (int i = 0; i < N_OUT; i++)
        if (memcmp(&a->tokens[i], &want->tokens[i], sizeof a->tokens[i]))
            fail_msg("%s, %s: token %d is %u (%a), alone it is %u (%a)", k->name, how, i,
                     a->tokens[i].id, (double)a->tokens[i].logprob, want->tokens[i].id,
                     (double)want->tokens[i].logprob);
    if (memcmp(a->tops, want->tops, sizeof a->tops))
        fail_msg("%s, %s: the alternatives' bits differ", k->name, how);
}

static void answer_on(const char *device, const struct kind *k, uint32_t chunk, struct answer *a)
{
    struct engine_test t;

    open_kind(&t, k, chunk, device);
    keep(a, submit(&t, 0, N_PROMPT, 0));
    engine_test_close(&t);
}

static void answer_with(const struct kind *k, uint32_t chunk, struct answer *a)
{
    answer_on("cuda", k, chunk, a);
}

/* The first prompt's answer by kinds[0], alone. Computed once, because several tests compare with
 * it. */
static const struct answer *first_kind_alone(void)
{
    static struct answer a;
    static bool is_made;

    if (!is_made)
        answer_with(&kinds[0], 512, &a);
    is_made = true;
    return &a;
}

/* Answer with a part of the prompt in the cache, in a batch with prompts of all lengths. */
static void answer_in_company(const struct kind *k, struct answer *a)
{
    struct request *r[N_COMPANY], *first;
    struct engine_test t;

    open_kind(&t, k, 100, "cuda");
    first = submit(&t, 0, N_CACHED, 0);
    engine_test_wait(first);
    request_unref(first);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = b == 2 ? submit(&t, 0, N_PROMPT, 0) : submit(&t, b ? b : 1, 20 + 37 * b, 0);
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
    char how[40];

    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const struct kind *k = &kinds[i];
        static struct answer want, got;

        if (i == 0)
            want = *first_kind_alone();
        else
            answer_with(k, 512, &want);
        snprintf(how, sizeof how, "chunks of %u", k->chunk);
        answer_with(k, k->chunk, &got);
        assert_same(&got, &want, k, how);
        answer_in_company(k, &got);
        assert_same(&got, &want, k, "in company");
    }
}

/* The pool holds one and a half prompts, so that evicted blocks are fetched from pinned host
 * memory. The emulation makes these copies as late as streams and events allow. */
static void the_host_tier_does_not_change_a_bit(void **state)
{
    enum { N_BLOCKS = 18, N_BLOCK_BYTES = 2 * 2 * 2 * 64 * 32 * 2 };
    const struct kind *k = &kinds[0];
    static struct answer want[2], got;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct request *r;

    (void)state;
    want[0] = *first_kind_alone();
    open_kind(&t, k, 256, "cuda");
    keep(&want[1], submit(&t, 1, N_PROMPT, 0));
    engine_test_close(&t);
    engine_config_init(&c);
    c.device = "cuda";
    c.batch_invariant = true;
    c.max_batched_tokens = 256;
    c.n_threads = 2;
    c.max_num_seqs = 2;
    c.max_model_len = 400;
    c.kv_bytes = (uint64_t)N_BLOCKS * N_BLOCK_BYTES;
    c.kv_host_bytes = (uint64_t)100 * N_BLOCK_BYTES;
    c.check_each_step = true;
    engine_test_open(&t, k->model, &c);
    for (uint32_t round = 0; round < 4; round++) {
        r = submit(&t, round % 2, N_PROMPT, 0);
        engine_test_wait(r);
        assert_true(round < 2 || atomic_load(&r->n_cached_in[CACHE_HOST]) > 0);
        assert_true(round < 2 || atomic_load(&r->n_cached) >= N_PROMPT - KV_BLOCK_TOKENS);
        keep(&got, r);
        assert_same(&got, &want[round % 2], k, "from the host");
    }
    engine_test_idle(&t, &st);
    assert_int_equal(st.cache.n_copies_failed, 0);
    assert_true(st.cache.tier[CACHE_DEVICE].n_moved_in > 0);
    engine_test_close(&t);
}

/* The pool holds two of the three prompts, so that one is preempted and resumes. */
static void preemptions_do_not_change_a_bit(void **state)
{
    enum { N_LATE = 30, N_BLOCK_BYTES = 2 * 2 * 2 * 64 * 32 * 2 };
    const struct kind *k = &kinds[0];
    struct out_token want[N_LATE];
    struct request *first, *second;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct sampling sp;
    struct stopping stop;

    (void)state;
    engine_config_init(&c);
    c.device = "cuda";
    c.batch_invariant = true;
    c.max_batched_tokens = 128;
    c.n_threads = 2;
    c.max_num_seqs = 4;
    c.max_model_len = 400;
    c.prefix_caching = false;
    c.kv_bytes = (uint64_t)14 * N_BLOCK_BYTES;
    c.mlfq_variant = "tarn"; /* by default the second request waits for the first */
    engine_test_open(&t, k->model, &c);
    assert_int_equal(engine_info(t.engine)->n_kv_blocks, 14);
    engine_test_params(&sp, &stop, N_LATE);
    first = engine_test_submit(&t, ids[3], 200, NULL, 0, &sp, &stop);
    engine_test_wait(first);
    memcpy(want, first->out, sizeof want);
    request_unref(first);
    first = engine_test_submit(&t, ids[4], 200, NULL, 0, &sp, &stop); /* 7 blocks, later 8 */
    second = engine_test_submit(&t, ids[3], 200, NULL, 0, &sp, &stop);
    engine_test_wait(first);
    engine_test_wait(second);
    engine_stats(t.engine, &st);
    assert_true(st.n_preemptions > 0);
    assert_memory_equal(want, second->out, sizeof want);
    request_unref(first);
    request_unref(second);
    engine_test_close(&t);
}

static void a_seed_draws_the_same_tokens_in_any_company(void **state)
{
    struct request *r[N_COMPANY];
    struct out_token want[N_OUT];
    struct engine_test t;

    (void)state;
    open_kind(&t, &kinds[0], 128, "cuda");
    r[0] = submit(&t, 1, 160, 0.9f);
    engine_test_wait(r[0]);
    memcpy(want, r[0]->out, sizeof want);
    request_unref(r[0]);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = submit(&t, b == 3 ? 1 : 4, b == 3 ? 160 : 20 + 9 * b, 0.9f);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        engine_test_wait(r[b]);
    assert_memory_equal(want, r[3]->out, sizeof want);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        request_unref(r[b]);
    engine_test_close(&t);
}

/* Sequences of several lengths, of n_longest tokens at most. */
static void answer_many(const struct kind *k, bool eager, uint32_t n_longest,
                        uint64_t *n_graph_steps, struct out_token out[N_COMPANY][N_LONG_OUT])
{
    struct request *r[N_COMPANY];
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct sampling sp;
    struct stopping stop;

    kind_config(&c, k, 400, "cuda");
    c.enforce_eager = eager;
    engine_test_open(&t, k->model, &c);
    engine_test_params(&sp, &stop, N_LONG_OUT);
    sp.temperature = 0.8f;
    for (uint32_t b = 0; b < N_COMPANY; b++) {
        sp.seed = b;
        stop.max_tokens = N_LONG_OUT - 2 * b; /* so that sequences leave one by one */
        r[b] = engine_test_submit(&t, ids[b], b == 0 ? n_longest : 3 + 9 * b, NULL, 0, &sp, &stop);
    }
    for (uint32_t b = 0; b < N_COMPANY; b++) {
        engine_test_wait(r[b]);
        assert_int_equal(request_finish(r[b]), FINISH_LENGTH);
        memset(out[b], 0, sizeof out[b]);
        memcpy(out[b], r[b]->out, (N_LONG_OUT - 2 * b) * sizeof *out[b]);
        request_unref(r[b]);
    }
    engine_test_idle(&t, &st);
    *n_graph_steps = st.n_graph_steps;
    engine_test_close(&t);
}

/* With padding, and with the arguments of a recording. */
static void replayed_steps_do_not_change_a_bit(void **state)
{
    static struct out_token want[N_COMPANY][N_LONG_OUT], got[N_COMPANY][N_LONG_OUT];
    uint64_t n_eager, n_replayed;

    (void)state;
    for (size_t i = 0; i < N_KINDS && i < 3; i += 2) {
        uint32_t n_longest = i == 0 ? 250 : 50; /* the former passes a segment's end */

        answer_many(&kinds[i], true, n_longest, &n_eager, want);
        answer_many(&kinds[i], false, n_longest, &n_replayed, got);
        assert_int_equal(n_eager, 0);
        assert_true(n_replayed > 0); /* how many depends on when the requests come */
        if (memcmp(want, got, sizeof want))
            fail_msg("%s: replayed steps gave other bits", kinds[i].name);
    }
}

/* Compare the best logprobs of each token by rank. Ids are not compared, because the id of a rank
 * may depend on the last bit. */
static void assert_near(const struct answer *gpu, const struct answer *ref, double most,
                        const char *name)
{
    for (int o = 0; o < N_OUT; o++)
        for (int i = 0; i < SAMPLING_N_LOGPROBS_MAX; i++) {
            float a = gpu->tops[o * SAMPLING_N_LOGPROBS_MAX + i].logprob;
            float b = ref->tops[o * SAMPLING_N_LOGPROBS_MAX + i].logprob;
            if (fabs((double)a - (double)b) > most)
                fail_msg("%s: token %d, rank %d is %g, by the reference %g", name, o, i, (double)a,
                         (double)b);
        }
}

/* The tests above only compare the GPU with itself; this one compares it with the reference. */
static void the_answers_are_the_references(void **state)
{
    static const struct {
        struct kind kind;
        double most; /* of a logprob's error */
    } cases[] = {{{"head of 64, f32", wide_heads, "f32", "f32", "none", 0, 0}, 1e-4},
                 {{"head of 12, KV in int8", NULL, "f32", "int8", "none", 0, 0}, 5e-3}};
    static struct answer gpu, ref;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct kind *k = &cases[i].kind;

        answer_with(k, 128, &gpu);
        answer_on("ref", k, 128, &ref);
        assert_near(&gpu, &ref, cases[i].most, k->name);
    }
    answer_on("ref", &kinds[0], 128, &ref);
    assert_near(first_kind_alone(), &ref, 0.02, kinds[0].name);
}

/* Show that the comparison can fail: another KV dtype gives other bits. */
static void another_kv_dtype_does_change_bits(void **state)
{
    const struct kind other = {"f16", wide_heads, "f16", "f16", "none", 0, 0};
    static struct answer a;

    (void)state;
    answer_with(&other, 128, &a);
    assert_memory_not_equal(a.tops, first_kind_alone()->tops, sizeof a.tops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_batch_mates_and_cache_hits_do_not_change_a_bit),
        cmocka_unit_test(the_host_tier_does_not_change_a_bit),
        cmocka_unit_test(preemptions_do_not_change_a_bit),
        cmocka_unit_test(a_seed_draws_the_same_tokens_in_any_company),
        cmocka_unit_test(replayed_steps_do_not_change_a_bit),
        cmocka_unit_test(the_answers_are_the_references),
        cmocka_unit_test(another_kv_dtype_does_change_bits),
    };

    for (uint32_t b = 0; b < N_COMPANY; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
