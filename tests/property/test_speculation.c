/* Promise P1 with speculation: whatever is guessed, and however much of it is right, the answer has
 * the tokens and the bits of log-probabilities that plain decoding gives. Random requests are
 * answered by an engine that never guesses, one after the other, and then by one that guesses all
 * the time, together, with prefixes in the cache and too few KV blocks for all. Predictions that
 * are partly right make guesses end at any place. The same with a draft
 * model, whether that is the model itself, or another random one, which is right by chance. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/run/vocab_mask.h"
#include "kernels/cpu/cpu.h"
#include "tests/engine_test.h"

#ifdef TEST_ON_GPU
#define DEVICE "cuda"
#define N_CASES 9
#define N_PROMPT_MAX 90
#else
#define DEVICE "cpu"
#define N_PROMPT_MAX 220
#ifndef N_CASES /* sanitizer builds take fewer: see CMakeLists.txt */
#define N_CASES 72
#endif
#endif
#define N_OUT_MAX 40
#define N_VOCAB 300
#define N_TOPS 3
#define N_PREFIXES 3
#define N_TRIES_MAX 20
/* A draft model whose context is shorter than that of the cases. */
#define OTHER_MODEL                                                                                \
    "{\"architectures\":[\"MistralForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":1,"      \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"                         \
    "\"intermediate_size\":40,\"vocab_size\":300,\"max_position_embeddings\":160,"                 \
    "\"sliding_window\":50,\"rms_norm_eps\":1e-5,\"rope_theta\":10000,"                            \
    "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"}"

struct answer {
    enum finish_reason finish;
    uint32_t n_out;
    int32_t stop_id;
    struct out_token tokens[N_OUT_MAX];
    struct out_top tops[N_OUT_MAX * N_TOPS];
};

struct test_case {
    uint32_t ids[N_PROMPT_MAX], n_ids;
    struct sampling sp;
    struct stopping st;
    uint32_t stop_ids[2];
    struct logit_bias bias[3];
    uint32_t allowed[(N_VOCAB + 31) / 32];
    uint32_t word_ends[4], word_ids[8];
    uint32_t prediction[N_OUT_MAX], n_prediction;
    int32_t priority;
    struct answer want;
};

static struct test_case cases[N_CASES];
static char same_dir[ENGINE_TEST_DIR_BYTES], other_dir[ENGINE_TEST_DIR_BYTES];
static uint64_t n_drawn;

static uint32_t draw(uint32_t n)
{
    return rng_u32(4711, n_drawn++) % n;
}

static bool one_in(uint32_t n)
{
    return draw(n) == 0;
}

/* Few ids and copied pieces, so that every match has several places. */
static void draw_prompt(struct test_case *c)
{
    uint32_t n_prefix = draw(N_PREFIXES) * 33, n_kinds = 2 + draw(12), first = draw(N_VOCAB - 20);

    c->n_ids = n_prefix + 1 + draw(N_PROMPT_MAX - n_prefix - 1);
    for (uint32_t i = 0; i < n_prefix; i++)
        c->ids[i] = i * i % N_VOCAB;
    for (uint32_t i = n_prefix; i < c->n_ids; i++)
        c->ids[i] = first + draw(n_kinds);
    for (uint32_t i = n_prefix; one_in(2) && i + 20 < c->n_ids; i += 20)
        memcpy(c->ids + i + 10, c->ids + n_prefix, 10 * sizeof *c->ids);
}

static void draw_sampling(struct test_case *c)
{
    static const float temperatures[] = {0, 0, 0.1f, 0.8f, 1.6f};
    struct sampling *sp = &c->sp;

    *sp = (struct sampling){.temperature = temperatures[draw(5)],
                            .top_p = one_in(2) ? 1 : 0.5f + 0.1f * (float)draw(5),
                            .top_k = one_in(2) ? 0 : 1 + draw(30),
                            .min_p = one_in(4) ? 0.05f : 0,
                            .repetition_penalty = one_in(4) ? 1.3f : 1,
                            .presence_penalty = one_in(5) ? 0.7f : 0,
                            .frequency_penalty = one_in(5) ? -0.4f : 0,
                            .seed = draw(1000),
                            .n_logprobs = one_in(2) ? N_TOPS : 0,
                            .want_logprob = !one_in(3),
                            .want_prompt_logprobs = one_in(8)};
    if (one_in(4)) {
        sp->n_logit_bias = 3;
        for (uint32_t i = 0; i < 3; i++)
            c->bias[i] = (struct logit_bias){draw(N_VOCAB), (float)draw(9) - 4};
        sp->logit_bias = c->bias;
    }
    if (one_in(5)) {
        memset(c->allowed, 0, sizeof c->allowed);
        for (uint32_t i = 0; i < 40; i++)
            vocab_mask_allow(c->allowed, draw(N_VOCAB));
        sp->rules.allowed = c->allowed;
    }
    if (one_in(4)) {
        for (uint32_t i = 0; i < 4; i++)
            c->word_ends[i] = 2 * (i + 1);
        for (uint32_t i = 0; i < 8; i++)
            c->word_ids[i] = c->ids[draw(c->n_ids)];
        sp->rules.n_words = 4;
        sp->rules.word_ends = c->word_ends;
        sp->rules.word_ids = c->word_ids;
    }
}

static void draw_case(struct test_case *c)
{
    draw_prompt(c);
    draw_sampling(c);
    c->st = (struct stopping){.max_tokens = one_in(12) ? draw(4) : 1 + draw(N_OUT_MAX),
                              .min_tokens = one_in(3) ? draw(20) : 0,
                              .ignore_eos = true};
    if (one_in(3)) {
        c->st.n_stop_ids = 2;
        c->stop_ids[0] = draw(N_VOCAB);
        c->stop_ids[1] = c->ids[c->n_ids - 1];
        c->st.stop_ids = c->stop_ids;
        c->st.include_stop = one_in(2);
    }
    c->priority = (int32_t)draw(3);
}

/* What a client might expect: the answer with some ids changed, or anything. */
static void draw_prediction(struct test_case *c)
{
    uint32_t wrong = 1 + draw(30);

    c->n_prediction = one_in(3) ? 0 : c->want.n_out;
    for (uint32_t i = 0; i < c->n_prediction; i++)
        c->prediction[i] = one_in(wrong) ? draw(N_VOCAB) : c->want.tokens[i].id;
}

static struct request *submit(struct engine_test *t, const struct test_case *c)
{
    struct kv_scope scope = {{0}};
    struct request *r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_ok(
        request_create(&r, t->engine, c->ids, c->n_ids, NULL, 0, &scope, 0, &c->sp, &c->st, &why));
    assert_ok(request_predict(r, t->engine, c->prediction, c->n_prediction, &why));
    r->priority = c->priority;
    assert_ok(engine_submit(t->engine, r, &why));
    buf_fini(&why);
    return r;
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    memset(a, 0, sizeof *a);
    a->finish = request_finish(r);
    a->n_out = request_n_out(r);
    a->stop_id = r->stop_id;
    memcpy(a->tokens, r->out, a->n_out * sizeof *a->tokens);
    if (r->out_top)
        memcpy(a->tops, r->out_top, a->n_out * N_TOPS * sizeof *a->tops);
    assert_true(atomic_load(&r->n_accepted) <= atomic_load(&r->n_guessed));
    request_unref(r);
}

static void assert_same(const struct answer *a, uint32_t i, const char *how)
{
    const struct answer *want = &cases[i].want;

    for (uint32_t k = 0; k < a->n_out && k < want->n_out; k++)
        if (memcmp(&a->tokens[k], &want->tokens[k], sizeof a->tokens[k]))
            fail_msg("%s: case %u, token %u is %u (%a), without speculation it is %u (%a)", how, i,
                     k, a->tokens[k].id, (double)a->tokens[k].logprob, want->tokens[k].id,
                     (double)want->tokens[k].logprob);
    assert_int_equal(a->n_out, want->n_out);
    assert_int_equal(a->finish, want->finish);
    assert_int_equal(a->stop_id, want->stop_id);
    assert_memory_equal(a->tops, want->tops, sizeof a->tops);
}

static void config(struct engine_config *c, bool speculates)
{
    engine_config_init(c);
    c->device = DEVICE;
    c->batch_invariant = true;
    c->n_threads = 2;
    c->max_num_seqs = 8;
    c->max_model_len = 288;
    c->max_batched_tokens = 128;
    c->kv_bytes = (uint64_t)1 << 20;
    c->speculative_tokens = speculates ? DRAFT_TOKENS_MAX : 0;
    c->speculate_always = true;
}

static void answer_plainly(struct engine_config *c)
{
    struct engine_test t;
    struct engine_stats st;

    c->speculative_tokens = 0;
    engine_test_open(&t, NULL, c);
    for (uint32_t i = 0; i < N_CASES; i++) {
        cases[i].n_prediction = 0;
        keep(&cases[i].want, submit(&t, &cases[i]));
    }
    engine_test_idle(&t, &st);
    assert_int_equal(st.drafts[DRAFT_BY_LOOKUP].n_tokens, 0);
    engine_test_close(&t);
}

static void answer_together(struct engine_config *c, const char *how, struct engine_stats *st)
{
    struct request *r[N_CASES];
    struct engine_test t;
    struct answer a;

    engine_test_open(&t, NULL, c);
    for (uint32_t i = 0; i < N_CASES; i++)
        r[i] = submit(&t, &cases[i]);
    for (uint32_t i = 0; i < N_CASES; i++) {
        keep(&a, r[i]);
        assert_same(&a, i, how);
    }
    engine_test_idle(&t, st);
    assert_int_equal(st->cache.tier[CACHE_DEVICE].n_leaked, 0);
    engine_test_close(&t);
}

static void assert_adds_up(const struct draft_count *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < DRAFT_TOKENS_MAX; i++)
        n += c->n_accepted_at[i];
    assert_int_equal(n, c->n_accepted);
    assert_true(c->n_accepted <= c->n_tokens);
}

static void assert_guessed(const struct engine_stats *st)
{
    const struct draft_count *c = &st->drafts[DRAFT_BY_LOOKUP];

    assert_adds_up(c);
    assert_true(c->n_drafts > 0); /* numbers depend on who shares a step */
    assert_true(c->n_accepted > 0);
}

static int setup(void **state)
{
    struct engine_config c;

    (void)state;
    engine_test_make_model(same_dir, NULL);
    engine_test_make_model(other_dir, OTHER_MODEL);
    for (uint32_t i = 0; i < N_CASES; i++)
        draw_case(&cases[i]);
    config(&c, false);
    answer_plainly(&c);
    for (uint32_t i = 0; i < N_CASES; i++)
        draw_prediction(&cases[i]);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    engine_test_remove_model(same_dir);
    engine_test_remove_model(other_dir);
    return 0;
}

#ifndef TEST_ON_GPU
static void guesses_change_no_bit_of_an_answer(void **state)
{
    struct engine_config c;
    struct engine_stats st;

    (void)state;
    config(&c, true);
    c.check_each_step = true;
    answer_together(&c, "together", &st);
    assert_guessed(&st);
}

#endif

/* A block of small_llama is 2 layers * 2 * 2 heads * 12 * 32 tokens * 2 bytes; the longest case
 * needs 9 of them. Whether requests meet depends on how fast they come, so the engine answers them
 * until some have been preempted. */
static void preemptions_between_guesses_change_no_bit(void **state)
{
    struct engine_config c;
    struct engine_stats st = {0};

    (void)state;
    config(&c, true);
    c.kv_bytes = 14 * (2 * 2 * 2 * 12 * 32 * 2);
    c.check_each_step = true;
#ifdef TEST_ON_GPU
    c.draft_model_dir = same_dir;
#endif
    for (int i = 0; i < N_TRIES_MAX && st.n_preemptions == 0; i++) {
        answer_together(&c, "with few blocks", &st);
        assert_guessed(&st);
    }
    assert_true(st.n_preemptions > 0);
}

#ifndef TEST_ON_GPU
/* With the costs of random weights, which are estimates, some steps guess and some do not. */
static void guesses_chosen_by_cost_change_no_bit(void **state)
{
    struct engine_config c;
    struct engine_stats st;

    (void)state;
    config(&c, true);
    c.speculate_always = false;
    c.max_batched_tokens = 40;
    c.prefix_caching = false;
    answer_together(&c, "by cost", &st);
}

static void every_kernel_set_keeps_its_bits(void **state)
{
    static const struct {
        const char *dtype, *quantization, *kv;
    } types[] = {{"f32", "none", "int8"}, {"bf16", "int8", "bf16"}, {"bf16", "int4", "fp8"}};
    uint32_t n_variants;
    const struct cpu_variant *variants = cpu_variants(&n_variants);
    struct engine_config c;
    struct engine_stats st;

    (void)state;
    for (uint32_t v = 0; v < n_variants; v++) {
        if (!variants[v].supported())
            continue;
        for (uint32_t i = 0; i < ARRAY_SIZE(types); i++) {
            config(&c, false);
            c.cpu_variant = variants[v].name;
            c.dtype = types[i].dtype;
            c.quantization = types[i].quantization;
            c.kv_dtype = types[i].kv;
            answer_plainly(&c);
            for (uint32_t k = 0; k < N_CASES; k++)
                draw_prediction(&cases[k]);
            c.speculative_tokens = 7;
            c.draft_model_dir = i == 1 ? same_dir : NULL;
            answer_together(&c, variants[v].name, &st);
            assert_guessed(&st);
        }
    }
}
#endif

#ifndef TEST_ON_GPU
/* Few KV blocks and few seats: sequences take both from each other. */
static void guesses_of_a_draft_model_change_no_bit(void **state)
{
    const char *dirs[] = {same_dir, other_dir};
    double share[ARRAY_SIZE(dirs)];
    struct engine_config c;
    struct engine_stats st = {0};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_SIZE(dirs); i++) {
        config(&c, true);
        c.draft_model_dir = dirs[i];
        c.check_each_step = true;
        c.kv_bytes = 14 * (2 * 2 * 2 * 12 * 32 * 2);
        c.draft_kv_bytes = 40 * (2 * 2 * 2 * 12 * 32 * 2);
        answer_together(&c, dirs[i], &st);
        const struct draft_count *by_model = &st.drafts[DRAFT_BY_MODEL];
        assert_adds_up(by_model);
        assert_true(by_model->n_tokens > 0 && st.n_draft_passes > 0);
        share[i] = (double)by_model->n_accepted / (double)by_model->n_tokens;
    }
    /* Penalties and bad words make the model itself wrong, too. */
    assert_true(share[0] > 0.2 && share[1] < 0.1);
}

#endif

/* The draft model draws with the same numbers. */
static void a_model_guesses_itself_right(void **state)
{
    static const float temperatures[] = {0, 0.7f, 1.4f};
    struct stopping st = {.max_tokens = N_OUT_MAX, .ignore_eos = true};
    struct kv_scope scope = {{0}};
    struct request *r[ARRAY_SIZE(temperatures)];
    struct engine_stats stats;
    struct engine_config c;
    struct engine_test t;
    struct buf why;

    (void)state;
    config(&c, true);
    c.draft_model_dir = same_dir;
    buf_init(&why, BUF_WHY_MAX);
    engine_test_open(&t, NULL, &c);
    for (uint32_t i = 0; i < ARRAY_SIZE(r); i++) {
        struct sampling sp = {
            .temperature = temperatures[i], .top_p = 1, .repetition_penalty = 1, .seed = i};
        uint32_t ids[] = {10 + i, 200, 3 * i, 77};
        assert_ok(request_create(&r[i], t.engine, ids, 4, NULL, 0, &scope, 0, &sp, &st, &why));
        assert_ok(engine_submit(t.engine, r[i], &why));
    }
    for (uint32_t i = 0; i < ARRAY_SIZE(r); i++) {
        engine_test_wait(r[i]);
        request_unref(r[i]);
    }
    engine_test_idle(&t, &stats);
    const struct draft_count *by_model = &stats.drafts[DRAFT_BY_MODEL];
    assert_true(by_model->n_tokens > 3 * ARRAY_SIZE(r));
    assert_int_equal(by_model->n_accepted, by_model->n_tokens);
    engine_test_close(&t);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preemptions_between_guesses_change_no_bit),
        cmocka_unit_test(a_model_guesses_itself_right),
#ifndef TEST_ON_GPU /* emulated: a second pass would be seconds */
        cmocka_unit_test(guesses_of_a_draft_model_change_no_bit),
        cmocka_unit_test(guesses_change_no_bit_of_an_answer),
        cmocka_unit_test(guesses_chosen_by_cost_change_no_bit),
        cmocka_unit_test(every_kernel_set_keeps_its_bits),
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
