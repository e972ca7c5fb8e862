/* Promise P1 with LoRA adapters: rows of the model alone and of several adapters share steps, KV
 * pool and cache, and each answer has the bits that it has alone. KV of one adapter never serves
 * another one or the model. With TEST_ON_GPU the engine runs on the emulated GPU. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/adapters.h"
#include "tests/adapter_files.h"
#include "tests/engine_test.h"
#include "tests/temp_dir.h"

#ifdef TEST_ON_GPU /* emulated: a thousand times slower */
#define N_PROMPT 40
#define N_OUT 3
#define N_LATE 24
#define N_EACH 1
#else
#define N_PROMPT 150
#define N_OUT 6
#define N_LATE 120
#define N_EACH 3
#endif
#define N_TRIES 50
#define N_VOCAB 300
#define N_LAYERS 2
#define N_ADAPTERS 3 /* number 0 is the model alone */
#define N_ALL (N_ADAPTERS * N_EACH)
/* K and V of the layers, 2 heads of 12, of 2 bytes */
#define BLOCK_BYTES ((uint64_t)N_LAYERS * 2 * 2 * 12 * KV_BLOCK_TOKENS * 2)

static const struct adapter_module modules[] = {
    {"self_attn.q_proj", 48, 48}, {"self_attn.k_proj", 24, 48}, {"self_attn.v_proj", 24, 48},
    {"self_attn.o_proj", 48, 48}, {"mlp.gate_proj", 100, 48},   {"mlp.up_proj", 100, 48},
    {"mlp.down_proj", 48, 100}};
static const struct adapter_files files[N_ADAPTERS] = {
    {0},
    {modules, ARRAY_SIZE(modules), N_LAYERS, 5, 1, 1, NULL},
    {modules + 1, 3, N_LAYERS, 8, 2, 1, NULL}, /* K, V and O only */
};
static char dirs[N_ADAPTERS][ADAPTER_FILES_DIR_BYTES];
static const char *const names[N_ADAPTERS] = {NULL, "first", "second"};

static const struct kernels {
    const char *device, *variant, *quantization;
} all_kernels[] = {
#ifdef TEST_ON_GPU
    {"cuda", NULL, "none"},
#else
    {"cpu", NULL, "none"},
    {"cpu", "portable", "none"},
    {"cpu", NULL, "int8"},
#endif
};
static const struct kernels *kernels;
static const char *disk_path; /* of the disk tier; NULL: there is none */

struct answer {
    struct out_token tokens[N_OUT];
    struct out_top tops[N_OUT * SAMPLING_N_LOGPROBS_MAX];
};

static uint32_t ids[N_ALL][N_PROMPT];
static struct answer want[N_ALL];

static void load(struct engine_test *t, uint32_t number, const char *name)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (adapters_load(engine_adapters(t->engine), name, dirs[number], NULL, false, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static void open_engine(struct engine_test *t, uint32_t chunk, uint32_t max_adapters,
                        uint64_t kv_bytes)
{
    struct engine_config c;

    engine_config_init(&c);
    c.device = kernels->device;
    c.cpu_variant = kernels->variant;
    c.quantization = kernels->quantization;
    c.batch_invariant = true;
    c.max_batched_tokens = chunk;
    c.n_threads = 2;
    c.max_num_seqs = N_ALL;
    c.kv_bytes = kv_bytes;
    c.kv_disk_path = disk_path;
    c.kv_disk_bytes = disk_path ? 8 << 20 : 0;
    c.kv_disk_min_uses = 1;
    c.kv_preload = "none";
    c.max_adapters = max_adapters;
    c.max_adapter_rank = 8;
    engine_test_open(t, NULL, &c);
    for (uint32_t i = 1; max_adapters > 0 && i < N_ADAPTERS; i++)
        load(t, i, names[i]);
}

static struct request *submit(struct engine_test *t, uint32_t prompt, const char *name,
                              uint32_t n_out)
{
    struct kv_scope scope = {{0}};
    struct sampling sp;
    struct stopping st;
    struct request *r;

    engine_test_params(&sp, &st, n_out);
    assert_ok(
        request_create(&r, t->engine, ids[prompt], N_PROMPT, NULL, 0, &scope, 0, &sp, &st, NULL));
    if (name) {
        struct adapter *a = adapters_find(engine_adapters(t->engine), name);
        assert_non_null(a);
        request_adapt(r, t->engine, a);
        adapter_unref(a);
    }
    assert_ok(engine_submit(t->engine, r, NULL));
    return r;
}

static void keep(struct answer *a, struct request *r)
{
    engine_test_wait(r);
    assert_int_equal(request_n_out(r), N_OUT);
    memcpy(a->tokens, r->out, sizeof a->tokens);
    memcpy(a->tops, r->out_top, sizeof a->tops);
    request_unref(r);
}

static void check(struct request *r, uint32_t i, const char *how)
{
    struct answer got;

    keep(&got, r);
    if (memcmp(&got, &want[i], sizeof got) != 0)
        fail_msg("%s, weights %s: other bits %s",
                 names[i % N_ADAPTERS] ? names[i % N_ADAPTERS] : "no adapter",
                 kernels->quantization, how);
}

/* The answers of the model alone come from an engine that knows no adapters. */
static void answer_alone(void)
{
    struct engine_test with, without;

    open_engine(&with, 512, N_ADAPTERS, 8 << 20);
    open_engine(&without, 512, 0, 8 << 20);
    for (uint32_t i = 0; i < N_ALL; i++) {
        const char *name = names[i % N_ADAPTERS];
        keep(&want[i], submit(name ? &with : &without, i, name, N_OUT));
    }
    engine_test_close(&with);
    engine_test_close(&without);
}

static void check_in_company(uint32_t chunk)
{
    struct request *r[N_ALL];
    struct engine_test t;

    open_engine(&t, chunk, N_ADAPTERS, 8 << 20);
    for (uint32_t i = 0; i < N_ALL; i++)
        r[i] = submit(&t, i, names[i % N_ADAPTERS], N_OUT);
    for (uint32_t i = 0; i < N_ALL; i++)
        check(r[i], i, "in company");
    /* All prompts are cached now, each under its own adapter. */
    for (uint32_t i = 0; i < N_ALL; i++)
        r[i] = submit(&t, i, names[i % N_ADAPTERS], N_OUT);
    for (uint32_t i = 0; i < N_ALL; i++) {
        engine_test_wait(r[i]);
        assert_true(atomic_load(&r[i]->n_cached) >= KV_BLOCK_TOKENS);
        check(r[i], i, "from the cache");
    }
    engine_test_close(&t);
}

static void rows_of_several_adapters_share_steps(void **state)
{
    (void)state;
    for (kernels = all_kernels; kernels < all_kernels + ARRAY_SIZE(all_kernels); kernels++) {
        answer_alone();
        check_in_company(64);
        if (N_EACH > 1)
            check_in_company(512);
    }
    kernels = all_kernels;
}

static void kv_of_another_adapter_is_never_used(void **state)
{
    struct engine_test t;
    struct request *r[N_ADAPTERS];

    (void)state;
    open_engine(&t, 512, N_ADAPTERS, 8 << 20);
    for (uint32_t i = 0; i < N_ADAPTERS; i++) {
        r[i] = submit(&t, 0, names[i], N_OUT);
        engine_test_wait(r[i]);
        assert_int_equal(atomic_load(&r[i]->n_cached), 0);
        for (uint32_t k = 0; k < i; k++) /* the adapters do change the answer */
            assert_memory_not_equal(r[i]->out_top, r[k]->out_top,
                                    N_OUT * SAMPLING_N_LOGPROBS_MAX * sizeof *r[i]->out_top);
    }
    for (uint32_t i = 0; i < N_ADAPTERS; i++)
        request_unref(r[i]);
    engine_test_close(&t);
}

static void the_same_adapter_under_another_name_finds_its_kv(void **state)
{
    struct engine_test t;

    (void)state;
    answer_alone();
    open_engine(&t, 512, N_ADAPTERS, 8 << 20);
    check(submit(&t, 1, "first", N_OUT), 1, "alone");
    load(&t, 1, "again");
    struct request *r = submit(&t, 1, "again", N_OUT);
    engine_test_wait(r);
    assert_true(atomic_load(&r->n_cached) > 0);
    check(r, 1, "from the cache");
    engine_test_close(&t);
}

/* After a restart, KV on disk serves the adapter that computed it, and no other. */
static void kv_on_disk_belongs_to_its_adapter(void **state)
{
    struct engine_stats stats;
    struct engine_test t;
    struct temp_dir disk;

    (void)state;
    answer_alone();
    temp_dir_make(&disk);
    disk_path = disk.path;
    open_engine(&t, 512, N_ADAPTERS, 8 << 20);
    check(submit(&t, 1, "first", N_OUT), 1, "alone");
    do /* a block is written when it is not used any more */
        engine_test_idle(&t, &stats);
    while (stats.cache.tier[CACHE_DISK].n_cached == 0);
    engine_test_close(&t);
    open_engine(&t, 512, N_ADAPTERS, 8 << 20);
    struct request *r = submit(&t, 1, "second", N_OUT), *base = submit(&t, 1, NULL, N_OUT);
    engine_test_wait(r);
    engine_test_wait(base);
    assert_int_equal(atomic_load(&r->n_cached), 0);
    assert_int_equal(atomic_load(&base->n_cached), 0);
    request_unref(r);
    request_unref(base);
    r = submit(&t, 1, "first", N_OUT);
    engine_test_wait(r);
    engine_stats(t.engine, &stats);
    /* A fast machine may expect to compute the prompt faster than the disk reads it. */
    assert_true(atomic_load(&r->n_cached_in[CACHE_DISK]) > 0 ||
                stats.cache.tier[CACHE_DISK].n_not_worth > 0);
    check(r, 1, "from disk");
    engine_test_close(&t);
    temp_dir_remove(&disk);
    disk_path = NULL;
}

static void a_request_keeps_the_adapter_that_it_began_with(void **state)
{
    struct out_token before[N_LATE];
    struct engine_test t;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    open_engine(&t, 512, N_ADAPTERS, 8 << 20);
    struct request *r = submit(&t, 1, "first", N_LATE);
    engine_test_wait(r);
    memcpy(before, r->out, sizeof before);
    request_unref(r);
    r = submit(&t, 1, "first", N_LATE);
    assert_ok(adapters_unload(engine_adapters(t.engine), "first", &why));
    assert_null(adapters_find(engine_adapters(t.engine), "first"));
    assert_int_equal(adapters_unload(engine_adapters(t.engine), "first", &why), ERR_NOT_FOUND);
    /* Another adapter takes the name while the first one is in use. */
    assert_ok(adapters_load(engine_adapters(t.engine), "first", dirs[2], NULL, false, &why));
    engine_test_wait(r);
    assert_memory_equal(before, r->out, sizeof before);
    request_unref(r);
    engine_test_close(&t);
    buf_fini(&why);
}

#ifndef TEST_ON_GPU
static void preempted_requests_with_adapters_keep_their_bits(void **state)
{
    static struct out_token late[N_ADAPTERS][N_LATE];
    struct engine_stats st = {0};
    struct engine_test t;

    (void)state;
    open_engine(&t, 256, N_ADAPTERS, 20 * BLOCK_BYTES);
    for (uint32_t i = 0; i < N_ADAPTERS; i++) {
        struct request *r = submit(&t, i, names[i], N_LATE);
        engine_test_wait(r);
        assert_int_equal(request_n_out(r), N_LATE);
        memcpy(late[i], r->out, sizeof late[i]);
        request_unref(r);
    }
    for (int k = 0; k < N_TRIES && st.n_preemptions == 0; k++) {
        struct request *r[N_ADAPTERS];
        for (uint32_t i = 0; i < N_ADAPTERS; i++)
            r[i] = submit(&t, i, names[i], N_LATE);
        for (uint32_t i = 0; i < N_ADAPTERS; i++) {
            engine_test_wait(r[i]);
            assert_memory_equal(late[i], r[i]->out, sizeof late[i]);
            request_unref(r[i]);
        }
        engine_stats(t.engine, &st);
    }
    assert_true(st.n_preemptions > 0);
    engine_test_close(&t);
}
#endif

static int make_files(void **state)
{
    (void)state;
    kernels = all_kernels;
    for (uint32_t b = 0; b < N_ALL; b++)
        for (uint32_t i = 0; i < N_PROMPT; i++)
            ids[b][i] = rng_u32(b + 100, i) % N_VOCAB;
    for (uint32_t i = 1; i < N_ADAPTERS; i++)
        adapter_files_make(dirs[i], &files[i]);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < N_ADAPTERS; i++)
        adapter_files_remove(dirs[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_several_adapters_share_steps),
        cmocka_unit_test(kv_of_another_adapter_is_never_used),
        cmocka_unit_test(the_same_adapter_under_another_name_finds_its_kv),
        cmocka_unit_test(kv_on_disk_belongs_to_its_adapter),
        cmocka_unit_test(a_request_keeps_the_adapter_that_it_began_with),
#ifndef TEST_ON_GPU
        cmocka_unit_test(preempted_requests_with_adapters_keep_their_bits),
#endif
    };

    return cmocka_run_group_tests(tests, make_files, remove_files);
}
