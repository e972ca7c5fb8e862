/* test_prompt_logprobs.c - logprobs of prompts, and prefills (max_tokens 0).
 *
 * The logprobs of a prompt's tokens have the same bits as those of the same tokens when generated,
 * and promise P1 holds for them: they do not depend on chunks, batch, cache or preemptions. With
 * TEST_ON_GPU the test runs on the emulated GPU, which computes the logits and samples. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#define BLOCK_BYTES (2u * 2 * 2 * 12 * 32 * 2) /* of the small Llama: 2 layers, 2 KV heads of 12 */
#define N_VOCAB 300
#ifdef TEST_ON_GPU /* the emulation takes about 15 ms for a row of logits */
#define N_PROMPT 31
#define N_OUT 3
#define N_SHAPES 2
#define N_ROUNDS 1
#define N_PREEMPTED 2
#else
#define N_PROMPT 150
#define N_OUT 40
#define N_SHAPES 4
#define N_ROUNDS 2
#define N_PREEMPTED 12
#endif
#define N_TRIES 2000u
#define N_ALL (N_PROMPT + N_OUT)
#define N_TOP 3

/* The logprobs of one request: [0] of the prompt is not used. */
struct scores {
    struct out_token tokens[N_ALL];
    struct out_top tops[N_ALL][N_TOP];
};

static void open_engine(struct engine_test *t, uint32_t n_batch, uint32_t n_seqs, uint32_t n_blocks)
{
    struct engine_config c;

    engine_config_init(&c);
#ifdef TEST_ON_GPU
    c.device = "cuda";
#endif
    c.profile_cost = false;
    c.batch_invariant = true;
    c.n_threads = 1;
    c.max_num_seqs = n_seqs;
    c.max_batched_tokens = n_batch;
    c.max_model_len = 256;
    c.kv_bytes = (uint64_t)n_blocks * BLOCK_BYTES;
    c.check_each_step = true;
    engine_test_open(t, NULL, &c);
}

static void fill_ids(uint32_t *ids, uint64_t seed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = rng_u32(seed, i) % N_VOCAB;
}

static struct request *submit(struct engine_test *t, const uint32_t *ids, uint32_t n,
                              uint32_t n_out, bool scores)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = N_TOP;
    sp.want_prompt_logprobs = scores;
    return engine_test_submit(t, ids, n, NULL, 0, &sp, &st);
}

static void copy_scores(const struct request *r, struct scores *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->tokens + 1, r->prompt_out + 1, (r->prompt.n_ids - 1) * sizeof *r->prompt_out);
    memcpy(out->tops + 1, r->prompt_top + N_TOP,
           (size_t)(r->prompt.n_ids - 1) * N_TOP * sizeof *r->prompt_top);
}

/* The scores of the whole of ids [N_ALL], which are the request's to the end. */
static void finish(struct request *r, struct scores *out)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_int_equal(atomic_load(&r->n_prompt_out), r->prompt.n_ids);
    for (uint32_t i = 1; i < r->prompt.n_ids; i++)
        assert_int_equal(r->prompt_out[i].id, r->prompt.ids[i]);
    copy_scores(r, out);
    request_unref(r);
}

static void score(struct engine_test *t, const uint32_t *ids, struct scores *out)
{
    finish(submit(t, ids, N_ALL, 0, true), out);
}

static void assert_nothing_held(struct engine_test *t)
{
    struct engine_stats st;

    engine_test_idle(t, &st);
    assert_int_equal(st.cache.tier[CACHE_DEVICE].n_leaked, 0);
}

/* Make the expected values: ids [N_ALL] are N_PROMPT random tokens and those that greedy decoding
 * generates after them; *want: the logprobs of the generated tokens. */
static void generate(struct engine_test *t, uint32_t *ids, struct scores *want)
{
    fill_ids(ids, 7, N_PROMPT);
    struct request *r = submit(t, ids, N_PROMPT, N_OUT, false);

    engine_test_wait(r);
    assert_null(r->prompt_out);
    for (uint32_t i = 0; i < N_OUT; i++) {
        ids[N_PROMPT + i] = r->out[i].id;
        want->tokens[N_PROMPT + i] = r->out[i];
        memcpy(want->tops[N_PROMPT + i], r->out_top + i * N_TOP, sizeof want->tops[0]);
    }
    request_unref(r);
}

static void logprobs_of_a_prompt_are_those_of_its_generation(void **state)
{
    static struct scores want, got;
    uint32_t ids[N_ALL];
    struct engine_test t;

    (void)state;
    open_engine(&t, 512, 8, 60);
    generate(&t, ids, &want);
    score(&t, ids, &got);
    assert_memory_equal(got.tokens + N_PROMPT, want.tokens + N_PROMPT, N_OUT * sizeof *want.tokens);
    assert_memory_equal(got.tops + N_PROMPT, want.tops + N_PROMPT, N_OUT * sizeof *want.tops);
    for (uint32_t i = N_PROMPT; i < N_ALL; i++)
        assert_true(got.tops[i][0].id == ids[i] && got.tops[i][0].logprob == got.tokens[i].logprob);
    assert_nothing_held(&t);
    engine_test_close(&t);
}

static void neither_chunks_nor_cache_nor_batch_change_a_bit(void **state)
{
    static const struct {
        uint32_t n_batch, n_seqs;
    } shapes[] = {{512, 8}, {7, 1}, {64, 2}, {33, 24}};
    static struct scores want, got;
    uint32_t ids[N_ALL], other[N_ALL];
    struct engine_test t;

    (void)state;
    fill_ids(ids, 1, N_ALL);
    for (size_t i = 0; i < N_SHAPES; i++) {
        open_engine(&t, shapes[i].n_batch, shapes[i].n_seqs, 60);
        score(&t, ids, i == 0 ? &want : &got);           /* nothing is cached */
        for (int round = 0; round < N_ROUNDS; round++) { /* then all of it, and others run beside */
            struct request *r[3];
            for (uint32_t k = 0; k < 3; k++) {
                fill_ids(other, 100 + k, N_ALL);
                r[k] = submit(&t, other, N_PROMPT / 3 * (k + 1), N_OUT, k == 1);
            }
            if (i > 0 || round > 0)
                assert_memory_equal(&got, &want, sizeof got);
            score(&t, ids, &got);
            for (uint32_t k = 0; k < 3; k++) {
                engine_test_wait(r[k]);
                request_unref(r[k]);
            }
        }
        assert_memory_equal(&got, &want, sizeof got);
        assert_nothing_held(&t);
        engine_test_close(&t);
    }
}

/* Requests of a higher priority preempt one in the middle of its prompt. */
static void a_preempted_prompt_has_the_same_logprobs(void **state)
{
    static struct scores want, got;
    uint32_t ids[N_ALL], other[N_ALL], n_preempted = 0;
    struct engine_stats st;
    struct engine_test t;

    (void)state;
    fill_ids(ids, 1, N_ALL);
    open_engine(&t, 8, 1, 60);
    score(&t, ids, &want);
    /* On a fast machine the prompt may end before the other one comes: then once more. */
    for (uint32_t i = 0; i < N_PREEMPTED || (n_preempted == 0 && i < N_TRIES); i++) {
        uint32_t k = i % N_PREEMPTED;
        engine_reset_cache(t.engine);
        struct request *r = submit(&t, ids, N_ALL, 2, true);
        while (atomic_load(&r->n_prompt_out) < N_ALL * k / N_PREEMPTED &&
               request_finish(r) == FINISH_NONE)
            clock_sleep_ns(10000);
        fill_ids(other, 200 + i, 20);
        struct sampling sp;
        struct stopping stop;
        struct kv_scope scope = {{0}};
        struct request *first;
        engine_test_params(&sp, &stop, 2);
        assert_ok(
            request_create(&first, t.engine, other, 20, NULL, 0, &scope, 0, &sp, &stop, NULL));
        first->priority = -1;
        assert_ok(engine_submit(t.engine, first, NULL));
        engine_test_wait(first);
        request_unref(first);
        finish(r, &got);
        assert_memory_equal(&got, &want, sizeof got);
        engine_stats(t.engine, &st);
        n_preempted = (uint32_t)st.n_preemptions;
    }
    assert_true(n_preempted > 0);
    assert_nothing_held(&t);
    engine_test_close(&t);
}

#ifndef TEST_ON_GPU
static uint32_t n_found(struct engine_test *t, const uint32_t *ids, uint32_t n)
{
    struct request *r = submit(t, ids, n, 1, false);

    engine_test_wait(r);
    uint32_t found = atomic_load(&r->n_cached);
    request_unref(r);
    return found;
}

static void a_scored_prompt_is_computed_again_and_stays_cached(void **state)
{
    struct scores got;
    uint32_t ids[N_ALL];
    struct engine_test t;

    (void)state;
    fill_ids(ids, 1, N_ALL);
    open_engine(&t, 512, 8, 60);
    for (int i = 0; i < 2; i++) {
        struct request *r = submit(&t, ids, N_ALL, 0, true);
        engine_test_wait(r);
        assert_int_equal(atomic_load(&r->n_cached), 0);
        finish(r, &got);
        assert_true(n_found(&t, ids, N_ALL) >= N_ALL / 32 * 32);
    }
    assert_nothing_held(&t);
    engine_test_close(&t);
}

static void a_prefill_ends_when_its_prompt_is_cached(void **state)
{
    uint32_t ids[256];
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    fill_ids(ids, 3, 256);
    open_engine(&t, 40, 4, 60);
    struct request *r = submit(&t, ids, 200, 0, false);
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_int_equal(request_n_out(r), 0);
    assert_true(atomic_load(&r->t_first_token) >= atomic_load(&r->t_first_step));
    request_unref(r);
    engine_test_idle(&t, &st);
    assert_true(st.n_finished[FINISH_LENGTH] == 1 && st.n_generation_tokens == 0);
    assert_true(st.ttft_s.n == 0 && st.decode_s.n == 0 && st.prefill_s.n == 1);
    assert_true(n_found(&t, ids, 200) >= 192);
    for (int i = 0; i < 2; i++) { /* of cached tokens, and of a prompt that fills the context */
        r = submit(&t, ids, i ? 256 : 200, 0, false);
        engine_test_wait(r);
        assert_int_equal(request_finish(r), FINISH_LENGTH);
        assert_true(atomic_load(&r->n_cached) >= 192 && request_n_out(r) == 0);
        request_unref(r);
    }
    assert_nothing_held(&t);
    engine_test_close(&t);
}

static void a_full_context_leaves_room_for_a_prefill_only(void **state)
{
    struct kv_scope scope = {{0}};
    uint32_t ids[257];
    struct engine_test t;
    struct sampling sp;
    struct stopping st;
    struct request *r;
    struct buf why;

    (void)state;
    fill_ids(ids, 3, 257);
    open_engine(&t, 40, 4, 60);
    buf_init(&why, BUF_WHY_MAX);
    engine_test_params(&sp, &st, 1);
    assert_int_equal(request_create(&r, t.engine, ids, 256, NULL, 0, &scope, 0, &sp, &st, &why),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "at least one must be generated"));
    st.max_tokens = 0;
    buf_reset(&why);
    assert_int_equal(request_create(&r, t.engine, ids, 257, NULL, 0, &scope, 0, &sp, &st, &why),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "257 tokens; shorten"));
    buf_fini(&why);
    engine_test_close(&t);
}

static void a_prompt_of_one_token_has_nothing_to_score(void **state)
{
    uint32_t id = 5;
    struct engine_test t;

    (void)state;
    open_engine(&t, 40, 4, 60);
    for (uint32_t n_out = 0; n_out < 2; n_out++) {
        struct request *r = submit(&t, &id, 1, n_out, true);
        engine_test_wait(r);
        assert_true(request_finish(r) == FINISH_LENGTH && request_n_out(r) == n_out);
        assert_int_equal(atomic_load(&r->n_prompt_out), 1);
        request_unref(r);
    }
    assert_nothing_held(&t);
    engine_test_close(&t);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_of_a_prompt_are_those_of_its_generation),
        cmocka_unit_test(neither_chunks_nor_cache_nor_batch_change_a_bit),
        cmocka_unit_test(a_preempted_prompt_has_the_same_logprobs),
#ifndef TEST_ON_GPU /* these do not touch the device in another way */
        cmocka_unit_test(a_scored_prompt_is_computed_again_and_stays_cached),
        cmocka_unit_test(a_prefill_ends_when_its_prompt_is_cached),
        cmocka_unit_test(a_full_context_leaves_room_for_a_prefill_only),
        cmocka_unit_test(a_prompt_of_one_token_has_nothing_to_score),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
