/* Promise P1: the same tokens, always. Logits depend, bit for bit, only on model, prompt,
 * parameters and seed, and not on batch, chunks, threads, cache and preemptions. The tests compare
 * token ids and the bits of 21 log-probabilities per token.
 *
 * Most tests use the best kernels of the machine, bf16 weights and a long prompt. The last one uses
 * all kernels and weight types with a short prompt. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "tests/engine_test.h"

#ifndef N_PROMPT /* sanitizer builds take a shorter one: see CMakeLists.txt */
#define N_PROMPT 5003
#endif
#ifndef N_CACHINGS /* as N_PROMPT: 1 is the preemptions with prefix caching only */
#define N_CACHINGS 2
#endif
#define N_OUT 12
#define N_BATCH 32
#define N_VOCAB 300

struct answer {
    struct out_token tokens[N_OUT];
    struct out_top tops[N_OUT * SAMPLING_N_LOGPROBS_MAX];
};

static uint32_t ids[N_BATCH][N_PROMPT + 64];
static const uint32_t span_ends[] = {17, 250, 251, 2000};
static struct answer alone;

static void fill_prompts(void)
{
    for (uint32_t b = 0; b < N_BATCH; b++)
        for (uint32_t i = 0; i < N_PROMPT + 64; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
}

static struct request *submit(struct engine_test *t, uint32_t b, uint32_t n, bool sampled)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, N_OUT);
    if (sampled) {
        sp.temperature = 0.9f;
        sp.top_p = 0.95f;
        sp.seed = 1234;
    }
    return engine_test_submit(t, ids[b], n, span_ends, n > 2000 ? 4 : 3, &sp, &st);
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_int_equal(request_n_out(r), N_OUT);
    memcpy(a->tokens, r->out, sizeof a->tokens);
    memcpy(a->tops, r->out_top, sizeof a->tops);
    request_unref(r);
}

static void assert_equal(const struct answer *a, const struct answer *b, const char *how)
{
    for (int i = 0; i < N_OUT; i++)
        if (memcmp(&a->tokens[i], &b->tokens[i], sizeof a->tokens[i]))
            fail_msg("%s: token %d is %u (%a), alone it is %u (%a)", how, i, a->tokens[i].id,
                     (double)a->tokens[i].logprob, b->tokens[i].id, (double)b->tokens[i].logprob);
    if (memcmp(a->tops, b->tops, sizeof a->tops))
        fail_msg("%s: the alternatives' bits differ", how);
}

static void assert_same(const struct answer *a, const char *how)
{
    assert_equal(a, &alone, how);
}

static void config(struct engine_config *c, uint32_t chunk, uint32_t threads)
{
    engine_config_init(c);
    c->max_batched_tokens = chunk;
    c->n_threads = threads;
    c->max_num_seqs = N_BATCH + 1;
    c->kv_bytes = (uint64_t)96 << 20;
    c->check_each_step = false; /* too slow with 16,000 blocks; other tests check */
}

static void answer_with(uint32_t chunk, uint32_t threads, const char *kv, struct answer *a)
{
    struct engine_config c;
    struct engine_test t;

    config(&c, chunk, threads);
    c.kv_dtype = kv;
    engine_test_open(&t, NULL, &c);
    keep(a, submit(&t, 0, N_PROMPT, false));
    engine_test_close(&t);
}

static int setup(void **state)
{
    (void)state;
    fill_prompts();
    answer_with(512, 2, "auto", &alone);
    return 0;
}

static void chunks_do_not_change_a_bit(void **state)
{
    const uint32_t chunks[] = {1, 7, 64, 4096};
    struct answer a;
    char how[40];

    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(how, sizeof how, "chunks of %u", chunks[i]);
        answer_with(chunks[i], 2, "auto", &a);
        assert_same(&a, how);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    struct answer a;

    (void)state;
    answer_with(512, 1, "auto", &a);
    assert_same(&a, "one thread");
    answer_with(64, 3, "auto", &a);
    assert_same(&a, "three threads");
}

static void write_node(const char *dir, const char *name, const char *list)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", list);
    assert_int_equal(fclose(f), 0);
}

/* The second node does not exist, so the system refuses to put memory there. */
static void memory_nodes_do_not_change_a_bit(void **state)
{
    char dir[] = "/tmp/tarn-nodes-XXXXXX", path[64], command[64];
    static const char *const cpus[] = {"0", "1-1023"};
    struct engine_config c;
    struct engine_test t;
    struct answer a;

    (void)state;
    assert_non_null(mkdtemp(dir));
    write_node(dir, "online", "0-1");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/node%d", dir, i);
        assert_int_equal(mkdir(path, 0700), 0);
        write_node(path, "cpulist", cpus[i]);
    }
    config(&c, 64, 4);
    c.numa = dir;
    engine_test_open(&t, NULL, &c);
    keep(&a, submit(&t, 0, N_PROMPT, false));
    engine_test_close(&t);
    assert_same(&a, "two memory nodes");
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* Show that the comparison can fail: another KV dtype gives other bits. */
static void another_kv_dtype_does_change_bits(void **state)
{
    struct answer a;

    (void)state;
    answer_with(512, 2, "f32", &a);
    assert_memory_not_equal(a.tops, alone.tops, sizeof a.tops);
}

static void a_batch_of_32_does_not_change_a_bit(void **state)
{
    struct request *r[N_BATCH];
    struct engine_config c;
    struct engine_test t;
    struct answer a;

    (void)state;
    config(&c, 1024, 2);
    engine_test_open(&t, NULL, &c);
    for (uint32_t b = 0; b < N_BATCH; b++) { /* the one under test is submitted in the middle */
        uint32_t which = (b + N_BATCH / 2) % N_BATCH;
        r[b] = submit(&t, which, which ? 260 + which * 20 : N_PROMPT, false);
    }
    keep(&a, r[N_BATCH / 2]);
    assert_same(&a, "in a batch of 32");
    for (uint32_t b = 0; b < N_BATCH; b++)
        if (b != N_BATCH / 2) {
            engine_test_wait(r[b]);
            request_unref(r[b]);
        }
    engine_test_close(&t);
}

static void a_cache_hit_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct request *r;
    struct answer a;

    (void)state;
    config(&c, 512, 2);
    engine_test_open(&t, NULL, &c);
    for (uint32_t n = 2050; n < N_PROMPT; n += 1000) { /* prefixes first, for partial hits */
        r = submit(&t, 0, n, true);
        engine_test_wait(r);
        request_unref(r);
    }
    for (int round = 0; round < 2; round++) {
        r = submit(&t, 0, N_PROMPT, false);
        engine_test_wait(r);
        assert_true(atomic_load(&r->n_cached) >= (round ? N_PROMPT - 40u : N_PROMPT - 1003u));
        keep(&a, r);
        assert_same(&a, "after a cache hit");
    }
    engine_test_close(&t);
}

/* The pool holds about two of the three prompts, so that one is always preempted and resumes. */
static void preemptions_do_not_change_a_bit(void **state)
{
    enum { N_LONG = 3, N_LATE = 300 };
    struct request *r[N_LONG];
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct sampling sp;
    struct stopping stop;
    struct answer a;

    (void)state;
    for (int caching = 1; caching > 1 - N_CACHINGS; caching--) {
        config(&c, 256, 2);
        c.prefix_caching = caching;
        c.max_model_len = N_PROMPT + 2000;
        /* With guesses the first answer ends before the second one needs its blocks;
         * test_speculation.c has both. */
        c.speculative_tokens = 0;
        /* blocks of 2 layers * 2 * 2 heads * 12 * 32 * 2 bytes */
        c.kv_bytes = (uint64_t)(2 * (N_PROMPT + N_LATE) / 32 - 4) * (2 * 2 * 2 * 12 * 32 * 2);
        engine_test_open(&t, NULL, &c);
        engine_test_params(&sp, &stop, N_LATE);
        r[0] = engine_test_submit(&t, ids[1], N_PROMPT - 300, NULL, 0, &sp, &stop);
        stop.max_tokens = N_OUT;
        r[1] = submit(&t, 0, N_PROMPT, false);
        stop.max_tokens = N_LATE;
        r[2] = engine_test_submit(&t, ids[2], N_PROMPT - 1500, NULL, 0, &sp, &stop);
        keep(&a, r[1]);
        assert_same(&a, "beside others in a small pool");
        engine_test_wait(r[0]);
        engine_test_wait(r[2]);
        request_unref(r[0]);
        request_unref(r[2]);
        /* Two prompts fit into the pool at first, and exceed it while they decode. */
        uint32_t n_half = (uint32_t)(c.kv_bytes / (2 * 2 * 2 * 12 * 32 * 2)) * 32 / 2 - 200;
        struct request *first, *second;
        static struct out_token want[N_LATE];
        stop.max_tokens = N_LATE;
        first = engine_test_submit(&t, ids[3], n_half, NULL, 0, &sp, &stop);
        engine_test_wait(first);
        assert_int_equal(request_n_out(first), N_LATE);
        memcpy(want, first->out, sizeof want);
        request_unref(first);
        engine_stats(t.engine, &st);
        uint64_t n_before = st.n_preemptions;
        first = engine_test_submit(&t, ids[4], n_half, NULL, 0, &sp, &stop);
        second = engine_test_submit(&t, ids[3], n_half, NULL, 0, &sp, &stop);
        engine_test_wait(first);
        engine_test_wait(second);
        engine_stats(t.engine, &st);
        assert_true(st.n_preemptions > n_before);
        assert_memory_equal(want, second->out, sizeof want);
        request_unref(first);
        request_unref(second);
        engine_test_close(&t);
    }
}

static void a_seed_draws_the_same_tokens_in_any_company(void **state)
{
    struct request *r[8];
    struct out_token want[N_OUT];
    struct engine_config c;
    struct engine_test t;

    (void)state;
    config(&c, 128, 2);
    engine_test_open(&t, NULL, &c);
    r[0] = submit(&t, 5, 500, true);
    engine_test_wait(r[0]);
    memcpy(want, r[0]->out, sizeof want);
    request_unref(r[0]);
    for (int i = 0; i < 8; i++)
        r[i] = submit(&t, i == 3 ? 5 : 9, i == 3 ? 500 : 300 + (uint32_t)i, true);
    for (int i = 0; i < 8; i++)
        engine_test_wait(r[i]);
    assert_memory_equal(want, r[3]->out, sizeof want);
    for (int i = 0; i < 8; i++)
        request_unref(r[i]);
    engine_test_close(&t);
}

/* --- every kernel set, weight type and kind of head --- */

#ifndef N_SHORT     /* as N_PROMPT */
#define N_SHORT 600 /* four segments and no multiple of a block */
#endif
#define N_SHORT_CACHED 270
#ifndef N_VARIANTS_MAX /* as N_PROMPT */
#define N_VARIANTS_MAX 99
#endif

struct kind {
    const char *variant;
    const char *head; /* the name of its shape */
    const char *model;
    const char *dtype, *quantization;
    uint32_t group;
    const char *kv;
};

/* K is a multiple of 32 and 128 here, so that int8 and int4 weights use matrix tiles if the machine
 * has them; attention with bf16 KV uses them for head sizes that are multiples of 32. */
static const char whole_tiles[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"intermediate_size\":256,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

/* NULL is the model of engine_test.h: its heads have 12 dimensions, and its K is no multiple of a
 * group. */
static const struct {
    const char *name, *model;
} shapes[] = {{"head of 64", whole_tiles}, {"head of 12", NULL}};

static const struct {
    const char *dtype, *quantization;
    uint32_t group;
    const char *kv;
} types[] = {{"f32", "none", 0, "int8"},   {"bf16", "none", 0, "bf16"},
             {"bf16", "int8", 32, "fp8"},  {"bf16", "int8", 128, "bf16"},
             {"bf16", "fp8", 128, "bf16"}, {"bf16", "int4", 32, "bf16"}};

static void open_kind(struct engine_test *t, const struct kind *k, uint32_t chunk, uint32_t threads)
{
    struct engine_config c;

    config(&c, chunk, threads);
    c.cpu_variant = k->variant;
    c.dtype = k->dtype;
    c.quantization = k->quantization;
    c.quantization_group = k->group;
    c.kv_dtype = k->kv;
    c.kv_bytes = (uint64_t)16 << 20;
    engine_test_open(t, k->model, &c);
}

static void answer_of_kind(const struct kind *k, uint32_t chunk, uint32_t threads, struct answer *a)
{
    struct engine_test t;

    open_kind(&t, k, chunk, threads);
    keep(a, submit(&t, 0, N_SHORT, false));
    engine_test_close(&t);
}

/* Answer with a part of the prompt in the cache, in a batch with prompts of all lengths. */
static void answer_in_company(const struct kind *k, struct answer *a)
{
    enum { N_COMPANY = 11 };
    struct request *r[N_COMPANY];
    struct engine_test t;

    open_kind(&t, k, 300, 2);
    r[0] = submit(&t, 0, N_SHORT_CACHED, false);
    engine_test_wait(r[0]);
    request_unref(r[0]);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = b == 5 ? submit(&t, 0, N_SHORT, false) : submit(&t, b + 1, 255 + 7 * b, false);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        engine_test_wait(r[b]);
    assert_true(atomic_load(&r[5]->n_cached) >= N_SHORT_CACHED - KV_BLOCK_TOKENS);
    keep(a, r[5]);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        if (b != 5)
            request_unref(r[b]);
    engine_test_close(&t);
}

static void check_kind(const struct kind *k)
{
    const uint32_t chunks[][2] = {{7, 1}, {41, 3}, {1, 2}}; /* rows, threads */
    static struct answer want, got;
    char how[120];

    answer_of_kind(k, 512, 2, &want);
    for (uint32_t i = 0; i < ARRAY_SIZE(chunks); i++) {
        snprintf(how, sizeof how, "%s, %s, %s %s %u, KV %s: chunks of %u, %u threads", k->variant,
                 k->head, k->dtype, k->quantization, k->group, k->kv, chunks[i][0], chunks[i][1]);
        answer_of_kind(k, chunks[i][0], chunks[i][1], &got);
        assert_equal(&got, &want, how);
    }
    snprintf(how, sizeof how, "%s, %s, %s %s %u, KV %s: in company", k->variant, k->head, k->dtype,
             k->quantization, k->group, k->kv);
    answer_in_company(k, &got);
    assert_equal(&got, &want, how);
}

static void all_kernels_and_weight_types_keep_their_bits(void **state)
{
    uint32_t n_variants;
    const struct cpu_variant *variants = cpu_variants(&n_variants);

    (void)state;
    for (uint32_t v = 0; v < n_variants && v < N_VARIANTS_MAX; v++)
        for (uint32_t s = 0; variants[v].supported() && s < ARRAY_SIZE(shapes); s++)
            for (uint32_t i = 0; i < ARRAY_SIZE(types); i++) {
                struct kind k = {variants[v].name, shapes[s].name,        shapes[s].model,
                                 types[i].dtype,   types[i].quantization, types[i].group,
                                 types[i].kv};

                check_kind(&k);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_do_not_change_a_bit),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(memory_nodes_do_not_change_a_bit),
        cmocka_unit_test(another_kv_dtype_does_change_bits),
        cmocka_unit_test(a_batch_of_32_does_not_change_a_bit),
        cmocka_unit_test(a_cache_hit_does_not_change_a_bit),
        cmocka_unit_test(preemptions_do_not_change_a_bit),
        cmocka_unit_test(a_seed_draws_the_same_tokens_in_any_company),
        cmocka_unit_test(all_kernels_and_weight_types_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
