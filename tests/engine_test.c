#include "tests/engine_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define WAIT_STEP_NS 200000u
#define WAIT_MAX_NS UINT64_C(240000000000)

static const char small_llama[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":48,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":12,"
    "\"intermediate_size\":100,\"vocab_size\":300,\"max_position_embeddings\":8192,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}";

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "engine_test: %s: %s\n", what, detail);
    abort();
}

void engine_test_make_model(char dir[ENGINE_TEST_DIR_BYTES], const char *config_json)
{
    char path[128];
    FILE *f;

    snprintf(dir, ENGINE_TEST_DIR_BYTES, "/tmp/tarn-test-XXXXXX");
    if (!mkdtemp(dir))
        die("mkdtemp", dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    if (!f || fputs(config_json ? config_json : small_llama, f) < 0 || fclose(f) != 0)
        die("cannot write", path);
}

void engine_test_remove_model(const char *dir)
{
    char path[128];

    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

void engine_test_open_model(struct engine_test *t, const char *dir, struct engine_config *c)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    t->dir[0] = '\0';
    c->model_dir = dir;
    c->load_format = "dummy";
    c->profile_cost = false; /* it would take seconds for each of dozens of engines */
    if (engine_open(&t->engine, c, &why) != OK)
        die("engine_open", buf_str(&why));
    if (engine_start(t->engine) != OK)
        die("engine_start", "no thread");
    buf_fini(&why);
}

void engine_test_open(struct engine_test *t, const char *config_json, struct engine_config *c)
{
    char dir[ENGINE_TEST_DIR_BYTES];

    engine_test_make_model(dir, config_json);
    engine_test_open_model(t, dir, c);
    memcpy(t->dir, dir, sizeof dir);
    c->model_dir = t->dir;
}

void engine_test_close(struct engine_test *t)
{
    engine_close(t->engine);
    if (t->dir[0])
        engine_test_remove_model(t->dir);
}

void engine_test_params(struct sampling *sp, struct stopping *st, uint32_t n_out)
{
    *sp = (struct sampling){.top_p = 1,
                            .repetition_penalty = 1,
                            .seed = 1,
                            .want_logprob = true,
                            .n_logprobs = SAMPLING_N_LOGPROBS_MAX};
    *st = (struct stopping){.max_tokens = n_out, .ignore_eos = true};
}

struct request *engine_test_submit(struct engine_test *t, const uint32_t *ids, uint32_t n,
                                   const uint32_t *span_ends, uint32_t n_span_ends,
                                   const struct sampling *sp, const struct stopping *st)
{
    struct kv_scope scope = {{0}};
    struct request *r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (request_create(&r, t->engine, ids, n, span_ends, n_span_ends, &scope, 0, sp, st, &why) !=
        OK)
        die("request_create", buf_str(&why));
    if (engine_submit(t->engine, r, &why) != OK)
        die("engine_submit", buf_str(&why));
    buf_fini(&why);
    return r;
}

void engine_test_wait(const struct request *r)
{
    uint64_t t0 = clock_now_ns();

    while (request_finish(r) == FINISH_NONE) {
        if (clock_now_ns() - t0 > WAIT_MAX_NS)
            die("engine_test_wait", "the request did not finish in time");
        clock_sleep_ns(WAIT_STEP_NS);
    }
}

void engine_test_idle(struct engine_test *t, struct engine_stats *out)
{
    uint64_t t0 = clock_now_ns();

    do {
        if (clock_now_ns() - t0 > WAIT_MAX_NS)
            die("engine_test_idle", "the engine did not come to rest");
        clock_sleep_ns(WAIT_STEP_NS);
        engine_stats(t->engine, out);
    } while (out->n_running || out->n_waiting || out->cache.tier[CACHE_DEVICE].n_in_use);
}

void engine_test_holds_nothing(struct engine_test *t)
{
    struct engine_stats st;

    engine_test_idle(t, &st);
    if (st.cache.tier[CACHE_DEVICE].n_leaked > 0)
        die("engine_test_holds_nothing", "KV blocks are leaked");
}
