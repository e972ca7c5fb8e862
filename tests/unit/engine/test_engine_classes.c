/* Requests that are not usual, through the engine's interface: their bound, drains, counts. */
#include "tests/unit/test.h"

#include "base/rng.h"
#include "tests/engine_test.h"

#define N_PROMPT 100

static char dir[ENGINE_TEST_DIR_BYTES];
static struct engine_test t;

/* The thread is not started: what is submitted stays inside. */
static void open_small(void)
{
    struct engine_config c;

    engine_test_make_model(dir, NULL);
    engine_config_init(&c);
    c.model_dir = dir;
    c.load_format = "dummy";
    c.profile_cost = false;
    c.n_threads = 1;
    c.max_num_seqs = 2;
    c.max_queued = 3;
    c.max_batched_tokens = 64;
    c.max_model_len = 800;
    c.kv_bytes = UINT64_C(1) << 20;
    c.check_each_step = true;
    assert_ok(engine_open(&t.engine, &c, NULL));
}

static void close_small(void)
{
    engine_close(t.engine);
    engine_test_remove_model(dir);
}

static struct request *make(uint32_t which, enum sched_class class, uint32_t n_out)
{
    struct kv_scope scope = {{0}};
    uint32_t ids[N_PROMPT];
    struct sampling sp;
    struct stopping st;
    struct request *r;

    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = rng_u32(which, i) % 300;
    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = 0;
    assert_ok(request_create(&r, t.engine, ids, N_PROMPT, NULL, 0, &scope, 0, &sp, &st, NULL));
    r->class = class;
    return r;
}

static void other_classes_leave_the_queue_to_usual_requests(void **state)
{
    struct request *others[2 * ENGINE_N_OTHERS_MAX], *usual[6], *extra;
    struct engine_stats st;
    uint32_t n = 0;

    (void)state;
    open_small();
    for (int class = SCHED_SPECULATIVE; class <= SCHED_BACKGROUND; class ++) {
        for (uint32_t i = 0; i < ENGINE_N_OTHERS_MAX; i++) {
            others[n] = make(n, (enum sched_class) class, 0);
            assert_ok(engine_submit(t.engine, others[n++], NULL));
        }
        extra = make(n, (enum sched_class) class, 0);
        assert_int_equal(engine_submit(t.engine, extra, NULL), ERR_BUSY);
        request_unref(extra);
    }
    for (uint32_t i = 0; i < 5; i++) { /* max_num_seqs and max_queued */
        usual[i] = make(1000 + i, SCHED_USUAL, 2);
        assert_ok(engine_submit(t.engine, usual[i], NULL));
    }
    usual[5] = make(1005, SCHED_USUAL, 2);
    assert_int_equal(engine_submit(t.engine, usual[5], NULL), ERR_BUSY);
    engine_stats(t.engine, &st);
    assert_int_equal(st.n_rejected, 1);
    assert_ok(engine_start(t.engine));
    for (uint32_t i = 0; i < n; i++) {
        engine_test_wait(others[i]);
        assert_int_equal(request_finish(others[i]), FINISH_LENGTH);
        request_unref(others[i]);
    }
    for (uint32_t i = 0; i < 5; i++) {
        engine_test_wait(usual[i]);
        assert_int_equal(request_finish(usual[i]), FINISH_LENGTH);
    }
    engine_test_idle(&t, &st);
    assert_int_equal(st.of_class[SCHED_USUAL].n_ended, 5);
    assert_int_equal(st.of_class[SCHED_SPECULATIVE].n_ended, ENGINE_N_OTHERS_MAX);
    assert_int_equal(st.of_class[SCHED_BACKGROUND].n_tokens, ENGINE_N_OTHERS_MAX * N_PROMPT);
    assert_int_equal(st.n_prompt_tokens, 5 * N_PROMPT);
    assert_int_equal(st.ttft_s.n, 5);
    assert_int_equal(st.n_finished[FINISH_LENGTH], 5);
    for (uint32_t i = 0; i < 6; i++)
        request_unref(usual[i]);
    close_small();
}

static void a_drain_waits_for_usual_requests_only(void **state)
{
    struct request *usual, *others[2];

    (void)state;
    open_small();
    usual = make(1, SCHED_USUAL, 20);
    others[0] = make(2, SCHED_SPECULATIVE, 0);
    others[1] = make(3, SCHED_BACKGROUND, 0);
    assert_ok(engine_submit(t.engine, usual, NULL));
    for (int i = 0; i < 2; i++)
        assert_ok(engine_submit(t.engine, others[i], NULL));
    engine_drain_begin(t.engine);
    assert_false(engine_drained(t.engine));
    assert_ok(engine_start(t.engine));
    for (int i = 0; i < 2; i++) {
        engine_test_wait(others[i]);
        assert_int_equal(request_finish(others[i]), FINISH_CANCELLED);
        request_unref(others[i]);
    }
    engine_test_wait(usual);
    assert_int_equal(request_finish(usual), FINISH_LENGTH);
    assert_true(engine_drained(t.engine));
    request_unref(usual);
    close_small();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_classes_leave_the_queue_to_usual_requests),
        cmocka_unit_test(a_drain_waits_for_usual_requests_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
