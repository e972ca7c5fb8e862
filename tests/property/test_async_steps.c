/* Asynchronous steps (engine/async.c) on the emulated GPU: answers have the same bits with and
 * without them, sequences end at the same token, and nothing is held or leaked whatever ends a
 * sequence whose next row is under way. The emulation does the device's work as late as it may, so
 * a row of an ended sequence runs after its blocks were given to others. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/engine_test.h"

#define CUDA_ERROR_MEMORY_ALLOCATION 2 /* the device survives it */
#define CUDA_ERROR_LAUNCH_FAILURE 719  /* it does not */
#define N_SEQS 5
#define N_PROMPT 100
#define N_OUT 8
#ifndef N_SEEDS /* more, to find a missing order of copies */
#define N_SEEDS 1
#endif
#define BLOCK_BYTES (2 * 2 * 2 * 12 * 32 * 4) /* of engine_test.h's model with KV in f32 */

static uint32_t ids[N_SEQS][N_PROMPT];

static void config(struct engine_config *c, bool is_async)
{
    engine_config_init(c);
    c->profile_cost = false;
    c->device = "cuda";
    c->batch_invariant = true;
    c->speculative_tokens = 0;
    c->async_scheduling = is_async;
    c->max_batched_tokens = 64;
    c->n_threads = 1;
    c->max_num_seqs = 3; /* fewer than there are requests */
    c->max_model_len = 256;
    c->dtype = "f32";
    c->kv_dtype = "f32";
    c->kv_bytes = (uint64_t)60 * BLOCK_BYTES;
    c->check_each_step = true;
}

struct run {
    struct engine_test t;
    struct request *r[N_SEQS];
    struct engine_stats stats;
};

/* A request with `which` as its parameters: all that a row may have but what holds it back. */
static struct request *submit(struct engine_test *t, uint32_t which, uint32_t n_out,
                              const uint32_t *stop_ids, uint32_t n_stop_ids)
{
    static const struct logit_bias bias[] = {{7, 2}, {200, -3}};
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    sp.temperature = which % 3 ? 0.9f : 0;
    sp.top_p = which % 2 ? 0.9f : 1;
    sp.seed = which;
    sp.n_logprobs = which == 1 ? 3 : which == 2; /* few, because they are slow here */
    if (which == 2) {
        sp.logit_bias = bias;
        sp.n_logit_bias = 2;
    }
    st.min_tokens = which == 1 ? 3 : 0;
    st.stop_ids = stop_ids;
    st.n_stop_ids = n_stop_ids;
    return engine_test_submit(t, ids[which], 5 + 23 * which, NULL, 0, &sp, &st);
}

static void end(struct run *x)
{
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (x->r[i])
            engine_test_wait(x->r[i]);
    engine_test_idle(&x->t, &x->stats);
    assert_int_equal(x->stats.cache.tier[CACHE_DEVICE].n_in_use, 0);
    assert_int_equal(x->stats.cache.tier[CACHE_DEVICE].n_leaked, 0);
}

static void close_run(struct run *x)
{
    for (uint32_t i = 0; i < N_SEQS; i++)
        request_unref(x->r[i]);
    engine_test_close(&x->t);
}

/* All requests at once, with answers of many lengths. Each tenth token or so is a stop, so that
 * sequences end while their next row is under way. */
static void run_all(struct run *x, struct engine_config *c)
{
    uint32_t stop_ids[30];

    for (uint32_t i = 0; i < 30; i++)
        stop_ids[i] = 10 * i + 3;
    *x = (struct run){0};
    engine_test_open(&x->t, NULL, c);
    for (uint32_t i = 0; i < N_SEQS; i++)
        x->r[i] = submit(&x->t, i, i == 3 ? 1 : N_OUT + 4 * i, stop_ids, i % 4 ? 30 : 0);
    end(x);
}

static void assert_same_answers(const struct run *got, const struct run *want, const char *how)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        const struct request *a = got->r[i], *b = want->r[i];
        uint32_t n = request_n_out(b);

        assert_int_equal(request_finish(a), request_finish(b));
        if (request_n_out(a) != n || memcmp(a->out, b->out, n * sizeof *a->out) ||
            (b->out_top &&
             memcmp(a->out_top, b->out_top, n * b->sampling.n_logprobs * sizeof *b->out_top)))
            fail_msg("%s: answer %u has other bits", how, i);
    }
}

static struct run want; /* one step after the other, by the first test */

static void no_bit_changes(void **state)
{
    struct engine_config c;
    struct run got;

    (void)state;
    config(&c, false);
    run_all(&want, &c);
    assert_int_equal(want.stats.n_async_steps, 0);
    for (int eager = 0; eager < 2; eager++) {
        emulation_order(eager ? EMULATION_LATE : EMULATION_EARLY);
        config(&c, true);
        c.enforce_eager = eager;
        run_all(&got, &c);
        assert_same_answers(&got, &want, eager ? "eager" : "replayed");
        assert_true(got.stats.n_async_steps >= 8);
        assert_true(eager || got.stats.n_graph_steps > 4);
        assert_int_equal(got.stats.n_generation_tokens, want.stats.n_generation_tokens);
        close_run(&got);
    }
    emulation_order(EMULATION_RANDOM);
}

/* The pool holds one or two of the sequences, so they preempt each other. With host memory their
 * blocks move there and back, also into blocks that a row of an ended sequence has yet to write. */
static void memory_that_is_short_changes_no_bit(void **state)
{
    struct engine_config c;
    struct run got;

    (void)state;
    for (int host = 0; host < 2; host++) {
        config(&c, true);
        c.kv_bytes = (uint64_t)6 * BLOCK_BYTES;
        c.max_model_len = 160;
        c.kv_host_bytes = host ? (uint64_t)40 * BLOCK_BYTES : 0;
        c.kv_prefetch_share = 1;
        c.mlfq_variant = "tarn"; /* preempts more */
        for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
            emulation_seed(2 * seed + (uint64_t)host);
            run_all(&got, &c);
            assert_same_answers(&got, &want, host ? "with host memory" : "in a small pool");
            assert_true(got.stats.n_async_steps > 0 && got.stats.n_preemptions > 0);
            assert_true(!host || got.stats.cache.tier[CACHE_DEVICE].n_moved_in > 0);
            close_run(&got);
        }
    }
    emulation_seed(1);
}

/* A greedy request. stop_id: NULL: none. */
static struct request *plain(struct engine_test *t, uint32_t which, uint32_t n, uint32_t n_out,
                             const uint32_t *stop_id)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = 0;
    st.stop_ids = stop_id;
    st.n_stop_ids = stop_id ? 1 : 0;
    return engine_test_submit(t, ids[which], n, NULL, 0, &sp, &st);
}

/* Answer a request alone; out [n_out] may be NULL. */
static void answer(struct run *x, uint32_t which, uint32_t n, uint32_t n_out,
                   const uint32_t *stop_id, struct out_token *out)
{
    x->r[0] = plain(&x->t, which, n, n_out, stop_id);
    end(x);
    if (out)
        memcpy(out, x->r[0]->out, n_out * sizeof *out);
    request_unref(x->r[0]);
    x->r[0] = NULL;
}

/* A sequence that ends gives its only block away while its row of the next step is under way, and
 * the KV of the next sequence comes from host memory into that very block. With streams in the
 * early order, a copy that nothing orders behind the row is done before the row writes; in the late
 * order, kernels that nothing orders behind the copy read before it. */
static void a_block_that_is_given_away_gets_its_copy_behind_the_row(void **state)
{
    enum { N_RESERVED = 2 + 64 / 32, N_BLOCKS = 1 + 2 + N_RESERVED }; /* of scheduler and cache */
    struct out_token first[N_OUT], second[N_OUT];
    struct engine_config c;
    struct run x = {0};

    (void)state;
    config(&c, true);
    c.policy = "fcfs";
    c.max_num_seqs = 2;
    c.max_model_len = 192;
    c.kv_bytes = (uint64_t)N_BLOCKS * BLOCK_BYTES;
    c.kv_host_bytes = (uint64_t)40 * BLOCK_BYTES;
    c.kv_prefetch_share = 1;
    engine_test_open(&x.t, NULL, &c);
    answer(&x, 0, 20, N_OUT, NULL, first);
    answer(&x, 1, 40, N_OUT, NULL, second);
    for (uint32_t k = 2; k < N_OUT; k++) {
        uint64_t n_moved = x.stats.cache.tier[CACHE_DEVICE].n_moved_in;

        emulation_order(k % 2 ? EMULATION_LATE : EMULATION_EARLY);
        answer(&x, 2 + k % 2, 100, 90, NULL, NULL); /* all KV goes to the host */
        x.r[0] = plain(&x.t, 0, 20, N_OUT, &first[k].id);
        x.r[1] = plain(&x.t, 4, 40, 24, NULL);
        while (request_n_out(x.r[0]) < 1 || request_n_out(x.r[1]) < 1)
            clock_sleep_ns(20000);
        x.r[2] = plain(&x.t, 1, 40, N_OUT, NULL);
        end(&x);
        assert_int_equal(request_finish(x.r[0]), FINISH_STOP);
        assert_true(x.stats.cache.tier[CACHE_DEVICE].n_moved_in > n_moved);
        assert_memory_equal(x.r[2]->out, second, sizeof second);
        for (int i = 0; i < 3; i++) {
            request_unref(x.r[i]);
            x.r[i] = NULL;
        }
    }
    emulation_order(EMULATION_RANDOM);
    engine_test_close(&x.t);
}

/* A stop at each token in turn, while another sequence goes on. */
static void a_stop_ends_at_the_same_token(void **state)
{
    struct out_token all[2][N_OUT];
    struct engine_config c;
    struct run x = {0};

    (void)state;
    config(&c, true);
    engine_test_open(&x.t, NULL, &c);
    for (uint32_t i = 0; i < 2; i++) {
        x.r[i] = submit(&x.t, i, N_OUT, NULL, 0);
        engine_test_wait(x.r[i]);
        memcpy(all[i], x.r[i]->out, sizeof all[i]);
        request_unref(x.r[i]);
    }
    for (uint32_t k = 0; k < N_OUT; k++) {
        uint32_t n = 0;
        while (all[0][n].id != all[0][k].id)
            n++;
        x.r[0] = submit(&x.t, 0, N_OUT, &all[0][k].id, 1);
        x.r[1] = submit(&x.t, 1, N_OUT, NULL, 0);
        end(&x);
        assert_int_equal(request_finish(x.r[0]), FINISH_STOP);
        assert_int_equal(x.r[0]->stop_id, all[0][k].id);
        assert_int_equal(request_n_out(x.r[0]), n + 1);
        assert_memory_equal(x.r[0]->out, all[0], (n + 1) * sizeof **all);
        assert_int_equal(request_n_out(x.r[1]), N_OUT);
        assert_memory_equal(x.r[1]->out, all[1], sizeof all[1]);
        request_unref(x.r[0]);
        request_unref(x.r[1]);
    }
    assert_true(x.stats.n_async_steps > 2 * N_OUT);
    /* Tokens of rows that ran behind the end of their sequence are not counted. */
    assert_true(x.stats.n_generation_tokens < 2 * N_OUT * (N_OUT + 1));
    engine_test_close(&x.t);
}

/* Cancel after each number of tokens, which the engine thread notices while a row is under way; the
 * request's memory is gone before that row's results come. */
static void a_cancelled_request_holds_nothing(void **state)
{
    struct engine_config c;
    struct run x = {0};

    (void)state;
    config(&c, true);
    engine_test_open(&x.t, NULL, &c);
    for (uint32_t n = 1; n < 6; n++) {
        x.r[0] = submit(&x.t, 4, 30, NULL, 0);
        x.r[1] = submit(&x.t, 1, N_OUT, NULL, 0);
        while (request_n_out(x.r[0]) < n)
            clock_sleep_ns(20000);
        request_cancel(x.r[0]);
        engine_test_wait(x.r[0]);
        request_unref(x.r[0]);
        x.r[0] = NULL;
        end(&x);
        assert_int_equal(request_finish(x.r[1]), FINISH_LENGTH);
        request_unref(x.r[1]);
        x.r[1] = NULL;
    }
    assert_true(x.stats.n_async_steps > 10);
    x.r[0] = submit(&x.t, 2, 100, NULL, 0); /* the engine ends while steps are under way */
    while (request_n_out(x.r[0]) < 4)
        clock_sleep_ns(20000);
    engine_test_close(&x.t);
    assert_int_equal(request_finish(x.r[0]), FINISH_CANCELLED);
    request_unref(x.r[0]);
}

/* A request that a rule holds back: its tokens depend on the text before. */
static void what_depends_on_the_text_is_not_asynchronous(void **state)
{
    struct engine_config c;
    struct sampling sp;
    struct stopping st;
    struct run x = {0};

    (void)state;
    config(&c, true);
    engine_test_open(&x.t, NULL, &c);
    engine_test_params(&sp, &st, N_OUT);
    sp.repetition_penalty = 1.2f;
    x.r[0] = engine_test_submit(&x.t, ids[0], 40, NULL, 0, &sp, &st);
    end(&x);
    assert_int_equal(x.stats.n_async_steps, 0);
    close_run(&x);
    config(&c, true);
    c.speculative_tokens = 8;
    run_all(&x, &c);
    assert_int_equal(x.stats.n_async_steps, 0);
    close_run(&x);
}

/* A call of the runtime fails: with an error that the device survives, or one that it does not. */
static void a_failing_call_ends_its_requests_only(void **state)
{
    static const int errors[] = {CUDA_ERROR_MEMORY_ALLOCATION, CUDA_ERROR_LAUNCH_FAILURE};
    struct engine_config c;
    uint32_t n_failed = 0, n_died = 0, n = 0;

    (void)state;
    for (uint64_t nth = 1; nth < 180; nth += 13, n++) {
        struct run x = {0};

        config(&c, true);
        engine_test_open(&x.t, NULL, &c);
        emulation_fail_call(nth, errors[n % 3 == 2]);
        x.r[0] = submit(&x.t, 1, N_OUT, NULL, 0);
        end(&x);
        emulation_fail_call(0, 0);
        bool died = engine_failed(x.t.engine), failed = request_finish(x.r[0]) == FINISH_ERROR;
        request_unref(x.r[0]);
        x.r[0] = NULL;
        n_failed += failed;
        n_died += died;
        assert_true(failed || !died);
        if (!died) {
            x.r[0] = submit(&x.t, 2, 2, NULL, 0);
            end(&x);
            assert_int_equal(request_finish(x.r[0]), FINISH_LENGTH);
        }
        close_run(&x);
    }
    assert_true(n_failed > 2 && n_died > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_changes),
        cmocka_unit_test(memory_that_is_short_changes_no_bit),
        cmocka_unit_test(a_block_that_is_given_away_gets_its_copy_behind_the_row),
        cmocka_unit_test(a_stop_ends_at_the_same_token),
        cmocka_unit_test(a_cancelled_request_holds_nothing),
        cmocka_unit_test(what_depends_on_the_text_is_not_asynchronous),
        cmocka_unit_test(a_failing_call_ends_its_requests_only),
    };

    for (uint32_t b = 0; b < N_SEQS; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 40, i) % 300;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    close_run(&want);
    return rc;
}
