/* test_form_worker.c - masks that take long: other sequences go on meanwhile, and no token changes,
 * neither of the answer that waits nor of the others. And text that a grammar forces: several tokens
 * a step, and the same ones. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/engine_test.h"

#define N_PROMPT 40u
#define N_OUT 24u
#define N_REQUESTS 6u
#define N_VOCAB 300u /* of the model with random weights; ids of the demo model's tokenizer */

/* The costliest takes long even for the first token of a sole answer. */
static const char *const costly = "([a-m]?[b-y]?[n-z]?){900}", *const plain = "[a-z ]*",
                         *const costliest =
                             "([a-c]?[b-f ]?[e-k]?[j-q]?[o-u]?[t-z]?[A-M]?[K-Z]?){450}";

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;

static int open_vocab(void **state)
{
    (void)state;
    assert_ok(tokenizer_load(&tokenizer, TARN_SOURCE_DIR "/deploy/demo-model", NULL));
    assert_ok(grammar_vocab_create(&vocab, tokenizer, N_VOCAB));
    return 0;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    return 0;
}

static struct grammar *regex(const char *source)
{
    struct json *j = js_new_string(source, strlen(source));
    struct grammar *g;

    assert_ok(grammar_create(&g, vocab, GRAMMAR_REGEX, j, NULL));
    js_unref(j);
    return g;
}

static void open_engine(struct engine_test *t, bool guesses)
{
    struct engine_config c;

    engine_config_init(&c);
    c.profile_cost = false;
    c.n_threads = 1;
    c.max_num_seqs = N_REQUESTS;
    c.max_batched_tokens = 64;
    c.max_model_len = 200;
    c.kv_bytes = UINT64_C(1) << 20;
    c.check_each_step = true;
    c.speculative_tokens = guesses ? c.speculative_tokens : 0;
    c.speculate_always = true;
    engine_test_open(t, NULL, &c);
}

/* Request i: every second one has the costly grammar. */
static struct request *submit_scored(struct engine_test *t, uint32_t i, struct grammar *g,
                                     bool scores)
{
    struct kv_scope scope = {{0}};
    uint32_t ids[N_PROMPT];
    struct sampling sp;
    struct stopping st;
    struct request *r;

    for (uint32_t k = 0; k < N_PROMPT; k++)
        ids[k] = rng_u32(i, k) % N_VOCAB;
    engine_test_params(&sp, &st, N_OUT);
    sp.n_logprobs = 0;
    sp.want_prompt_logprobs = scores;
    sp.temperature = 1;
    sp.seed = i;
    assert_ok(request_create(&r, t->engine, ids, N_PROMPT, NULL, 0, &scope, 0, &sp, &st, NULL));
    r->grammar = grammar_ref(g);
    assert_ok(engine_submit(t->engine, r, NULL));
    return r;
}

static struct request *submit(struct engine_test *t, uint32_t i, struct grammar *g)
{
    return submit_scored(t, i, g, false);
}

static void finish(struct request *r, uint32_t out[N_OUT], uint32_t *n)
{
    engine_test_wait(r);
    assert_int_not_equal(atomic_load(&r->finish), FINISH_ERROR);
    *n = atomic_load(&r->n_out);
    for (uint32_t i = 0; i < *n; i++)
        out[i] = r->out[i].id;
    request_unref(r);
}

static void a_mask_that_takes_long_changes_no_token(void **state)
{
    uint32_t alone[N_REQUESTS][N_OUT], n_alone[N_REQUESTS], out[N_OUT], n;
    struct request *r[N_REQUESTS];
    struct engine_stats st;
    struct engine_test t;

    (void)state;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct grammar *g = regex(i % 2 ? costly : plain);
        open_engine(&t, true);
        finish(submit(&t, i, g), alone[i], &n_alone[i]);
        engine_test_close(&t);
        grammar_unref(g);
    }
    struct grammar *both[2] = {regex(plain), regex(costly)};
    open_engine(&t, true);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        r[i] = submit(&t, i, both[i % 2]);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        finish(r[i], out, &n);
        assert_int_equal(n, n_alone[i]);
        assert_memory_equal(out, alone[i], n * sizeof *out);
    }
    engine_test_idle(&t, &st);
    assert_true(st.n_mask_waits > 0);
    engine_test_close(&t);
    grammar_unref(both[0]);
    grammar_unref(both[1]);
}

static void logprobs_of_the_prompt_do_not_wait_for_the_mask(void **state)
{
    struct grammar *g = regex(costliest);
    struct engine_stats st;
    struct engine_test t;

    (void)state;
    open_engine(&t, false);
    struct request *r = submit_scored(&t, 0, g, true);
    engine_test_wait(r);
    assert_int_equal(atomic_load(&r->n_prompt_out), N_PROMPT);
    request_unref(r);
    engine_test_idle(&t, &st);
    assert_true(st.n_mask_waits > 0);
    engine_test_close(&t);
    grammar_unref(g);
}

static void requests_end_while_their_mask_is_computed(void **state)
{
    struct engine_test t;
    struct request *r[N_REQUESTS];
    struct grammar *g = regex(costly);

    (void)state;
    open_engine(&t, true);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        r[i] = submit(&t, i, g);
        if (i % 2)
            atomic_store(&r[i]->cancel, true);
    }
    engine_test_wait(r[0]);
    atomic_store(&r[2]->cancel, true);
    engine_test_close(&t); /* cancels the others */
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        request_unref(r[i]);
    grammar_unref(g);
}

/* The answers of all requests with one grammar, and the steps that they took. */
static uint64_t write_all(const char *source, bool guesses, uint32_t out[N_REQUESTS][N_OUT],
                          uint32_t n[N_REQUESTS])
{
    struct grammar *g = regex(source);
    struct request *r[N_REQUESTS];
    struct engine_stats st;
    struct engine_test t;

    open_engine(&t, guesses);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        r[i] = submit(&t, i, g);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        finish(r[i], out[i], &n[i]);
    engine_test_idle(&t, &st);
    engine_test_close(&t);
    grammar_unref(g);
    return st.n_steps;
}

static void forced_text_takes_fewer_steps_and_changes_no_token(void **state)
{
    static const char *const sources[] = {"x{90}", "([ab]zyxwvutsrq[cd]zyxwvu!)+",
                                          "(ab|cdefgh|q{5})+"};
    uint32_t plain_out[N_REQUESTS][N_OUT], out[N_REQUESTS][N_OUT], n_plain[N_REQUESTS],
        n[N_REQUESTS];
    uint64_t n_steps = 0, n_plain_steps = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
        n_plain_steps += write_all(sources[i], false, plain_out, n_plain);
        n_steps += write_all(sources[i], true, out, n);
        assert_memory_equal(n, n_plain, sizeof n);
        for (uint32_t k = 0; k < N_REQUESTS; k++)
            assert_memory_equal(out[k], plain_out[k], n[k] * sizeof **out);
    }
    assert_true(n_steps < n_plain_steps * 3 / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_that_takes_long_changes_no_token),
        cmocka_unit_test(logprobs_of_the_prompt_do_not_wait_for_the_mask),
        cmocka_unit_test(requests_end_while_their_mask_is_computed),
        cmocka_unit_test(forced_text_takes_fewer_steps_and_changes_no_token),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
