/* test_engine_gpu.c - the engine on a device with its own memory, here the emulated GPU: its use of
 * that memory, and the end of requests when a step or the whole device fails. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/run/step_graphs.h"
#include "engine/settings.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/engine_test.h"

#define CUDA_ERROR_MEMORY_ALLOCATION 2 /* the device survives it */
#define CUDA_ERROR_LAUNCH_FAILURE 719  /* it does not */
#define GPU_BYTES ((uint64_t)1 << 30)  /* the emulation's default */
#define N_PROMPT 70
#define N_OUT 3

static uint32_t ids[4][N_PROMPT];

static void config(struct engine_config *c)
{
    engine_config_init(c);
    c->profile_cost = false; /* calls are counted from the start */
    c->device = "cuda";
    c->n_threads = 1;
    c->max_num_seqs = 4;
    c->max_batched_tokens = 64;
    c->max_model_len = 256;
    c->kv_bytes = (uint64_t)1 << 20;
}

static struct request *submit(struct engine_test *t, uint32_t which, uint32_t n_out)
{
    struct sampling sp;
    struct stopping st;

    engine_test_params(&sp, &st, n_out);
    return engine_test_submit(t, ids[which], N_PROMPT, NULL, 0, &sp, &st);
}

static void assert_works(struct engine_test *t)
{
    struct request *r = submit(t, 3, N_OUT);

    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_int_equal(request_n_out(r), N_OUT);
    request_unref(r);
}

/* --- memory --- */

/* 51 MB of weights. */
static const char large_vocabulary[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"intermediate_size\":128,\"vocab_size\":200000,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\"}";

static uint64_t pool_bytes(const char *model, double utilization, uint64_t kv_bytes)
{
    struct engine_config c;
    struct engine_test t;

    config(&c);
    c.gpu_memory_utilization = utilization;
    c.kv_bytes = kv_bytes;
    engine_test_open(&t, model, &c);
    if (!model) /* the other one takes long */
        assert_works(&t);
    uint64_t n = engine_info(t.engine)->kv_bytes;
    engine_test_close(&t);
    return n;
}

static void the_pool_is_what_the_share_leaves(void **state)
{
    uint64_t half = pool_bytes(NULL, 0.5, 0), quarter = pool_bytes(NULL, 0.25, 0);
    uint64_t all = pool_bytes(NULL, 1, 0), beside = pool_bytes(large_vocabulary, 0.5, 0);

    (void)state;
    assert_true(half < GPU_BYTES / 2 && half > GPU_BYTES / 2 * 9 / 10);
    assert_in_range(half - quarter, GPU_BYTES / 4 - 100000, GPU_BYTES / 4 + 100000);
    assert_in_range(half - beside, 51000000, 70000000); /* its weights, and wider buffers */
    assert_true(all > half && all < GPU_BYTES);         /* something stays free for the driver */
    assert_in_range(pool_bytes(NULL, 0.5, 3 << 20), (3 << 20) - 100000, 3 << 20);
}

/* With KV blocks of 512 KiB. */
static const char wide_kv[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"num_hidden_layers\":8,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":128,"
    "\"intermediate_size\":128,\"vocab_size\":512,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"torch_dtype\":\"bfloat16\"}";
#define WIDE_BLOCK_BYTES (8u * 2 * 4 * 128 * 32 * 2)

/* The buffers for KV from the memory of other GPUs. */
static void the_share_contains_what_a_pool_of_instances_takes(void **state)
{
    struct engine_config c;
    struct engine_test t;
    uint64_t n[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        config(&c);
        c.gpu_memory_utilization = 1;
        c.kv_bytes = 0;
        c.pool_url = "redis://127.0.0.1:1/0"; /* nobody is there: it serves alone */
        c.pool_listen = "127.0.0.1:0";
        c.pool_transport = "tcp";
        c.pool_instance_name = "one";
        c.pool_device_ipc = i == 1;
        engine_test_open(&t, wide_kv, &c);
        n[i] = engine_info(t.engine)->kv_bytes;
        engine_test_close(&t);
    }
    assert_in_range(n[0] - n[1], 32 * WIDE_BLOCK_BYTES, 33 * WIDE_BLOCK_BYTES + 1000000);
}

/* The pool leaves room for recorded steps, and --enforce-eager for none. */
static void recorded_steps_are_in_the_share(void **state)
{
    uint64_t kv[2], reserve[2];

    (void)state;
    emulation_graph_memory(8192, 0); /* more than the least reserve */
    for (int eager = 0; eager < 2; eager++) {
        struct engine_config c;
        struct engine_test t;

        config(&c);
        c.gpu_memory_utilization = 0.5;
        c.kv_bytes = 0;
        c.enforce_eager = eager;
        engine_test_open(&t, NULL, &c);
        assert_works(&t);
        kv[eager] = engine_info(t.engine)->kv_bytes;
        reserve[eager] = engine_info(t.engine)->graph_bytes;
        engine_test_close(&t);
    }
    emulation_graph_memory(2048, 0);
    assert_int_equal(reserve[1], 0);
    assert_true(reserve[0] > STEP_GRAPHS_BYTES_MIN && reserve[0] < GPU_BYTES / STEP_GRAPHS_SHARE);
    assert_in_range(kv[1] - kv[0], reserve[0] - 100000, reserve[0] + 100000);
}

static uint32_t step_of(const char *device, uint32_t max_batched_tokens)
{
    struct engine_config c;
    struct engine_test t;

    config(&c);
    c.device = device;
    c.max_batched_tokens = max_batched_tokens;
    c.kv_bytes = (uint64_t)4 << 20;
    engine_test_open(&t, NULL, &c);
    uint32_t n = engine_info(t.engine)->max_batched_tokens;
    engine_test_close(&t);
    return n;
}

static void a_step_without_a_limit_has_the_rows_that_suit_the_device(void **state)
{
    (void)state;
    assert_int_equal(step_of("cuda", 0), DEFAULT_GPU_BATCHED_TOKENS);
    assert_int_equal(step_of("auto", 0), DEFAULT_GPU_BATCHED_TOKENS);
    assert_int_equal(step_of("cpu", 0), DEFAULT_MAX_NUM_BATCHED_TOKENS);
    assert_int_equal(step_of("cuda", 70), 70);
}

static void refuse(struct engine_test *t, struct engine_config *c, enum status want,
                   const char *words)
{
    struct engine *e = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    c->model_dir = t->dir;
    c->load_format = "dummy";
    assert_int_equal(engine_open(&e, c, &why), want);
    assert_null(e);
    if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" lacks \"%s\"", buf_str(&why), words);
    buf_fini(&why);
}

static void what_does_not_fit_is_refused_with_words(void **state)
{
    struct engine_config c;
    struct engine_test t;

    (void)state;
    config(&c);
    engine_test_open(&t, NULL, &c); /* its directory */
    config(&c);
    c.kv_bytes = 0;
    c.gpu_memory_utilization = 0.0001;
    refuse(&t, &c, ERR_NOMEM, "{gpu_memory_utilization}");
    config(&c);
    c.kv_bytes = GPU_BYTES + 1;
    refuse(&t, &c, ERR_NOMEM, "{kv_device_bytes}");
    config(&c);
    c.max_batched_tokens = 1 << 20;
    c.max_num_seqs = 4096;
    c.max_model_len = 8192;
    c.kv_bytes = (uint64_t)64 << 20;
    refuse(&t, &c, ERR_NOMEM, "out of memory");
    engine_test_close(&t);
}

/* --- failures --- */

static void a_failed_step_ends_its_own_requests_only(void **state)
{
    struct engine_config c;
    struct engine_test t;
    int n_failed = 0;

    (void)state;
    config(&c);
    engine_test_open(&t, NULL, &c);
    for (uint64_t nth = 1; nth < 33; nth++) {
        emulation_fail_call(nth, CUDA_ERROR_MEMORY_ALLOCATION);
        struct request *r = submit(&t, 0, N_OUT);
        engine_test_wait(r);
        emulation_fail_call(0, 0);
        bool died = engine_failed(t.engine); /* a refusal of cuBLASLt is a fault */
        if (request_finish(r) == FINISH_ERROR && !died) {
            n_failed++;
            assert_int_equal(r->error, ERR_NOMEM);
        }
        if (died) {
            engine_test_close(&t);
            config(&c);
            engine_test_open(&t, NULL, &c);
        } else if (request_finish(r) == FINISH_ERROR) {
            assert_works(&t);
        }
        request_unref(r);
        engine_test_holds_nothing(&t);
    }
    assert_true(n_failed > 2);
    engine_test_close(&t);
}

static void a_dead_device_ends_every_request(void **state)
{
    enum { N = 8 };
    struct request *r[N], *late;
    struct engine_config c;
    struct engine_test t;
    struct kv_scope scope = {{0}};
    struct sampling sp;
    struct stopping st;
    struct buf why;

    (void)state;
    config(&c);
    engine_test_open(&t, NULL, &c);
    assert_false(engine_failed(t.engine));
    for (uint32_t i = 0; i < N; i++) /* four run, four wait */
        r[i] = submit(&t, i % 3, 100);
    while (request_n_out(r[0]) < 2)
        clock_sleep_ns(100000);
    emulation_kill(CUDA_ERROR_LAUNCH_FAILURE);
    for (uint32_t i = 0; i < N; i++) {
        engine_test_wait(r[i]);
        assert_int_equal(request_finish(r[i]), FINISH_ERROR);
        assert_int_equal(r[i]->error, ERR_UNAVAILABLE);
        assert_non_null(strstr(r[i]->error_words, "device failed"));
        request_unref(r[i]);
    }
    assert_true(engine_failed(t.engine));
    engine_test_holds_nothing(&t);
    buf_init(&why, BUF_WHY_MAX);
    engine_test_params(&sp, &st, N_OUT);
    assert_ok(
        request_create(&late, t.engine, ids[0], N_PROMPT, NULL, 0, &scope, 0, &sp, &st, NULL));
    assert_int_equal(engine_submit(t.engine, late, &why), ERR_UNAVAILABLE);
    assert_non_null(strstr(buf_str(&why), "device failed"));
    request_unref(late);
    engine_drain_begin(t.engine);
    assert_true(engine_drained(t.engine));
    engine_test_close(&t); /* does not hang */
    buf_fini(&why);
    emulation_kill(0);
}

/* If any call fails with a launch failure, the request ends with an error and the engine is failed;
 * nothing is held. */
static void every_failing_call_ends_the_request(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth < 130; nth += nth < 20 ? 2 : 11) {
        struct engine_config c;
        struct engine_test t;
        config(&c);
        engine_test_open(&t, NULL, &c);
        emulation_fail_call(nth, CUDA_ERROR_LAUNCH_FAILURE);
        struct request *r = submit(&t, 0, N_OUT);
        engine_test_wait(r);
        emulation_fail_call(0, 0);
        if (request_finish(r) == FINISH_ERROR) {
            assert_int_equal(r->error, ERR_UNAVAILABLE);
            assert_true(engine_failed(t.engine));
        } else {
            assert_int_equal(request_finish(r), FINISH_LENGTH);
            assert_false(engine_failed(t.engine));
        }
        request_unref(r);
        engine_test_holds_nothing(&t);
        engine_test_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pool_is_what_the_share_leaves),
        cmocka_unit_test(the_share_contains_what_a_pool_of_instances_takes),
        cmocka_unit_test(recorded_steps_are_in_the_share),
        cmocka_unit_test(a_step_without_a_limit_has_the_rows_that_suit_the_device),
        cmocka_unit_test(what_does_not_fit_is_refused_with_words),
        cmocka_unit_test(a_failed_step_ends_its_own_requests_only),
        cmocka_unit_test(a_dead_device_ends_every_request),
        cmocka_unit_test(every_failing_call_ends_the_request),
    };

    for (uint32_t b = 0; b < 4; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = (i * 7 + b * 31) % 300;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
