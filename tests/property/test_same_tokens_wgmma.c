/* Promise P1 on a GPU that computes with wgmma. Products of more than 64 rows, and attention of
 * sequences with at least 128 queries of a KV head, have the bits of wgmma; all others have those
 * of mma.sync. So an answer's bits depend on the instruction that computes a row, and on nothing
 * else. --batch-invariant uses no wgmma. The tests run whole steps of the engine on an emulated
 * GPU of compute capability 9.0 that finds wgmma right and fast, or slow. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/device.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/engine_test.h"
#include "tests/temp_dir.h"

/* Two queries of a KV head, and chunks of 128 tokens: 65 rows are many rows in both senses. */
#define N_PROMPT 222 /* chunks: 128, 94 */
#define N_CACHED 96  /* of these: the rest is 126 rows */
#define N_FEW 12
#define N_TOPS 2 /* alternatives; the emulated sampler is slow */
#define N_OUT 4  /* the prompt and the first two end a block */
#define N_OUT_MAX 7
#define N_COMPANY 4
#define N_VOCAB 300

/* Each product has as many outputs as two tiles, so that with one tile of rows all of them are
 * computed by wgmma. */
static const char model[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"intermediate_size\":128,\"vocab_size\":300,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

enum matrices { MMA_SYNC, WGMMA, INVARIANT };

struct answer {
    uint32_t n;
    struct out_token tokens[N_OUT_MAX];
    struct out_top tops[N_OUT_MAX * N_TOPS];
};

/* Of an engine with one of the choices, alone: to a prompt in one chunk; to one of few rows, with
 * the logprobs of its tokens. */
struct answers {
    struct answer whole, few;
    struct out_token prompt[N_FEW];
};

static uint32_t ids[N_COMPANY][N_PROMPT];
static struct temp_dir kept; /* the choice of the first engine with wgmma */
static const char *measure_dir;

enum status __real_device_open(struct device **out, const struct device_config *config,
                               struct buf *why);
enum status __wrap_device_open(struct device **out, const struct device_config *config,
                               struct buf *why);

/* Have the kernels tried at start, as with a profile of step times, which would take too long. */
enum status __wrap_device_open(struct device **out, const struct device_config *config,
                               struct buf *why)
{
    struct device_config c = *config;

    c.measure = true;
    c.measure_dir = measure_dir;
    return __real_device_open(out, &c, why);
}

static void make_config(struct engine_config *c, enum matrices by, uint32_t chunk)
{
    engine_config_init(c);
    c->device = "cuda";
    c->dtype = "bf16";
    c->quantization = "int8";
    c->wgmma = true;
    c->batch_invariant = by == INVARIANT;
    c->max_batched_tokens = chunk;
    c->max_step_ms = 1e9; /* a chunk does not depend on time */
    c->n_threads = 2;
    c->max_num_seqs = N_COMPANY;
    c->max_model_len = 512;
    c->kv_bytes = (uint64_t)8 << 20;
}

static void open_engine(struct engine_test *t, enum matrices by, struct engine_config *c)
{
    emulation_make_wgmma_fast(by != MMA_SYNC);
    measure_dir = by == WGMMA ? kept.path : NULL;
    engine_test_open(t, model, c);
    emulation_make_wgmma_fast(-1);
}

static void open_with(struct engine_test *t, enum matrices by, uint32_t chunk)
{
    struct engine_config c;

    make_config(&c, by, chunk);
    open_engine(t, by, &c);
}

static struct request *submit(struct engine_test *t, uint32_t which, uint32_t n, uint32_t n_out)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = N_TOPS;
    sp.want_prompt_logprobs = n == N_FEW;
    return engine_test_submit(t, ids[which], n, NULL, 0, &sp, &st);
}

/* Hold the steps, so that all requests of a batch come to the same one. */
static void hold(struct engine_test *t)
{
    struct engine_sleep_state state;

    engine_sleep(t->engine, &(struct engine_sleep){.parts = ENGINE_STEPS});
    do
        engine_sleep_state(t->engine, &state);
    while (!(state.asleep & ENGINE_STEPS));
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    memset(a, 0, sizeof *a);
    a->n = atomic_load(&r->n_out);
    memcpy(a->tokens, r->out, a->n * sizeof a->tokens[0]);
    memcpy(a->tops, r->out_top, a->n * N_TOPS * sizeof a->tops[0]);
    request_unref(r);
}

/* Computed once for each choice. */
static const struct answers *alone(enum matrices by)
{
    static const char *const names[] = {"cuda-sm90", "cuda-sm90-wgmma-attnwgmma",
                                        "cuda-sm90-invariant"};
    static struct answers answers[3];
    struct engine_test t;
    struct request *r;

    if (answers[by].whole.n > 0)
        return &answers[by];
    open_with(&t, by, 512);
    assert_string_equal(engine_info(t.engine)->ops_name, names[by]);
    keep(&answers[by].whole, submit(&t, 0, N_PROMPT, N_OUT));
    r = submit(&t, 1, N_FEW, N_OUT);
    engine_test_wait(r);
    memcpy(answers[by].prompt + 1, r->prompt_out + 1, (N_FEW - 1) * sizeof *r->prompt_out);
    keep(&answers[by].few, r);
    engine_test_close(&t);
    return &answers[by];
}

/* Tokens are the same but where two are as likely, within what rounding may change. */
static void assert_near(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t o = 0; o < a->n; o++) {
        const struct out_top *x = &a->tops[o * N_TOPS];
        const struct out_top *y = &b->tops[o * N_TOPS];

        assert_true(fabsf(x[0].logprob - y[0].logprob) < 0.02f);
        if (a->tokens[o].id != b->tokens[o].id) {
            assert_true(fabsf(x[0].logprob - x[1].logprob) < 0.02f);
            return; /* other tokens follow */
        }
    }
}

static void many_rows_have_bits_of_the_choice(void **state)
{
    (void)state;
    assert_memory_not_equal(&alone(WGMMA)->whole, &alone(MMA_SYNC)->whole, sizeof(struct answer));
    assert_near(&alone(WGMMA)->whole, &alone(MMA_SYNC)->whole);
}

/* Few rows are computed by mma.sync whatever was chosen, and so are all with the flag. */
static void few_rows_have_the_bits_of_either_choice(void **state)
{
    (void)state;
    assert_memory_equal(&alone(WGMMA)->few, &alone(MMA_SYNC)->few, sizeof(struct answer));
    assert_memory_equal(alone(WGMMA)->prompt, alone(MMA_SYNC)->prompt, sizeof alone(WGMMA)->prompt);
    assert_memory_equal(alone(INVARIANT), alone(MMA_SYNC), sizeof(struct answers));
}

static void chunks_of_many_rows_do_not_change_a_bit(void **state)
{
    struct engine_test t;
    struct answer got;

    (void)state;
    open_with(&t, WGMMA, 128);
    keep(&got, submit(&t, 0, N_PROMPT, N_OUT));
    engine_test_close(&t);
    assert_memory_equal(&got, &alone(WGMMA)->whole, sizeof got);
}

/* A part is cached; the rest comes beside a prompt of many rows and one of few. */
static void batch_mates_and_cache_hits_do_not_change_a_bit(void **state)
{
    struct request *first, *many, *few, *r;
    struct engine_test t;
    struct answer got;

    (void)state;
    open_with(&t, WGMMA, 1024);
    first = submit(&t, 0, N_CACHED + 1, 1);
    engine_test_wait(first);
    hold(&t);
    many = submit(&t, 2, 90, N_OUT);
    few = submit(&t, 3, 9, N_OUT);
    r = submit(&t, 0, N_PROMPT, N_OUT);
    engine_wake(t.engine, ENGINE_STEPS);
    engine_test_wait(r);
    assert_int_equal(atomic_load(&r->n_cached), N_CACHED);
    keep(&got, r);
    assert_memory_equal(&got, &alone(WGMMA)->whole, sizeof got);
    engine_test_wait(many);
    engine_test_wait(few);
    request_unref(first);
    request_unref(many);
    request_unref(few);
    engine_test_close(&t);
}

/* Prompts of many rows, which then decode together. */
static void answer_many(bool eager, struct answer out[N_COMPANY], uint64_t *n_graph_steps)
{
    struct request *r[N_COMPANY];
    struct engine_config c;
    struct engine_stats st;
    struct engine_test t;

    make_config(&c, WGMMA, 1024);
    c.enforce_eager = eager;
    c.async_scheduling = !eager;
    open_engine(&t, WGMMA, &c);
    hold(&t);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = submit(&t, b, 65 + 3 * b, N_OUT_MAX - b); /* they leave one by one */
    engine_wake(t.engine, ENGINE_STEPS);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        keep(&out[b], r[b]);
    engine_test_idle(&t, &st);
    *n_graph_steps = st.n_graph_steps;
    engine_test_close(&t);
}

static void replayed_steps_do_not_change_a_bit(void **state)
{
    static struct answer want[N_COMPANY], got[N_COMPANY];
    uint64_t n_eager, n_replayed;

    (void)state;
    answer_many(true, want, &n_eager);
    answer_many(false, got, &n_replayed);
    assert_int_equal(n_eager, 0);
    assert_true(n_replayed > 0);
    assert_memory_equal(want, got, sizeof want);
}

/* A sequence that resumes computes a part of its tokens in other company than before, so its bits
 * may change, by no more than rounding does. */
static void preemptions_change_bits_by_rounding_only(void **state)
{
    enum { N_BLOCK_BYTES = 2 * 2 * 2 * 64 * 32 * 2 };
    struct answer got;
    struct request *first, *second;
    struct engine_config c;
    struct engine_stats st;
    struct engine_test t;

    (void)state;
    make_config(&c, WGMMA, 512);
    c.max_model_len = 400;
    c.prefix_caching = false;
    c.kv_bytes = (uint64_t)14 * N_BLOCK_BYTES;
    c.mlfq_variant = "tarn"; /* by default the second request waits for the first */
    open_engine(&t, WGMMA, &c);
    hold(&t);
    first = submit(&t, 2, N_PROMPT, N_OUT); /* 7 blocks, later 8 */
    second = submit(&t, 0, N_PROMPT, N_OUT);
    engine_wake(t.engine, ENGINE_STEPS);
    engine_test_wait(first);
    keep(&got, second);
    engine_stats(t.engine, &st);
    assert_true(st.n_preemptions > 0);
    assert_near(&alone(WGMMA)->whole, &got);
    request_unref(first);
    engine_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_rows_have_bits_of_the_choice),
        cmocka_unit_test(few_rows_have_the_bits_of_either_choice),
        cmocka_unit_test(chunks_of_many_rows_do_not_change_a_bit),
        cmocka_unit_test(batch_mates_and_cache_hits_do_not_change_a_bit),
        cmocka_unit_test(replayed_steps_do_not_change_a_bit),
        cmocka_unit_test(preemptions_change_bits_by_rounding_only),
    };

    for (uint32_t b = 0; b < N_COMPANY; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
    temp_dir_make(&kept);
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_dir_remove(&kept);
    return n_failed;
}
