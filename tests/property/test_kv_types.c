/* Promise P1 with KV of one byte: answers have the same bits cold, warm, from the host and the disk
 * tier and after a restart; and KV of one type is never taken for that of another. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "tests/many_prompts.h"
#include "tests/temp_dir.h"

#define N_PROMPTS 24
#define N_OUT 12
#define N_POOL_BYTES (UINT64_C(100) * 2 * 2 * 2 * 12 * 32 * 2) /* 100 blocks of bf16 */
#define N_DISK_BYTES (UINT64_C(8) << 20)

static const char *const types[] = {"int8", "fp8", "bf16"};
#define N_TYPES 3

static struct many_prompt prompts[N_PROMPTS];

static void config(struct engine_config *c, const char *type)
{
    engine_config_init(c);
    c->n_threads = 2;
    c->max_num_seqs = 8;
    c->max_batched_tokens = 200;
    c->max_model_len = MANY_PROMPTS_IDS_MAX + N_OUT;
    c->kv_bytes = N_POOL_BYTES;
    c->kv_dtype = type;
}

/* Ask all prompts at once, or one after the other. */
static void ask(struct engine_test *t, struct answer_digest out[N_PROMPTS], bool at_once)
{
    struct request *r[N_PROMPTS];

    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        r[p] = many_prompts_submit(t, &prompts[p], p, N_OUT);
        if (!at_once)
            out[p] = many_prompts_digest(r[p], N_OUT);
    }
    for (uint32_t p = 0; at_once && p < N_PROMPTS; p++)
        out[p] = many_prompts_digest(r[p], N_OUT);
}

static void ask_cold(const char *type, struct answer_digest out[N_PROMPTS])
{
    struct engine_config c;
    struct engine_test t;

    config(&c, type);
    c.prefix_caching = false;
    engine_test_open(&t, NULL, &c);
    ask(&t, out, false);
    engine_test_close(&t);
}

static void assert_same(const struct answer_digest got[N_PROMPTS],
                        const struct answer_digest want[N_PROMPTS], const char *how)
{
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        if (memcmp(&got[p], &want[p], sizeof *got))
            fail_msg("%s: prompt %u has other bits than cold", how, p);
}

static void tiers_keep_the_bits(void **state)
{
    struct answer_digest cold[N_PROMPTS], got[N_PROMPTS];
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    for (int i = 0; i < 2; i++) {
        ask_cold(types[i], cold);
        config(&c, types[i]);
        c.kv_bytes = N_POOL_BYTES / 4;
        c.kv_host_bytes = N_POOL_BYTES;
        engine_test_open(&t, NULL, &c);
        for (int round = 0; round < 2; round++) {
            ask(&t, got, true);
            assert_same(got, cold, types[i]);
        }
        engine_test_idle(&t, &st);
        assert_true(st.n_prompt_tokens_in[CACHE_HOST] > 0);
        engine_test_close(&t);
    }
}

/* One directory for all types, one after the other: each finds its own blocks after a restart, and
 * none of another type. */
static void a_restart_finds_blocks_of_its_own_type_only(void **state)
{
    struct answer_digest cold[N_TYPES][N_PROMPTS], got[N_PROMPTS];
    char fingerprints[N_TYPES][65];
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    struct temp_dir d;

    (void)state;
    temp_dir_make(&d);
    for (int i = 0; i < N_TYPES; i++) {
        ask_cold(types[i], cold[i]);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(cold[i], cold[j], sizeof cold[i]);
        config(&c, types[i]);
        c.kv_disk_path = d.path;
        c.kv_disk_bytes = N_DISK_BYTES;
        c.kv_disk_min_uses = 1;
        c.kv_disk_timeout_ms = 20000;
        for (int restart = 0; restart < 2; restart++) {
            engine_test_open(&t, NULL, &c);
            memcpy(fingerprints[i], engine_info(t.engine)->fingerprint_hex, 65);
            engine_stats(t.engine, &st);
            assert_true(restart ? st.cache.disk.n_found > 0 : st.cache.disk.n_found == 0);
            ask(&t, got, false);
            assert_same(got, cold[i], restart ? "after a restart" : "with an empty disk");
            engine_test_idle(&t, &st);
            assert_true(!restart || st.n_prompt_tokens_in[CACHE_DISK] > 0);
            engine_test_close(&t);
        }
        for (int j = 0; j < i; j++)
            assert_string_not_equal(fingerprints[i], fingerprints[j]);
    }
    temp_dir_remove(&d);
}

/* A scale is one float for each token, layer, head and K or V. */
static void a_pool_holds_more_tokens_of_one_byte(void **state)
{
    uint32_t n_blocks[N_TYPES];
    struct engine_config c;
    struct engine_test t;

    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        config(&c, types[i]);
        engine_test_open(&t, NULL, &c);
        n_blocks[i] = engine_info(t.engine)->n_kv_blocks;
        assert_int_equal(engine_info(t.engine)->kv_block_bytes,
                         2 * 2 * 2 * 32 * (i < 2 ? 12 + 4 : 2 * 12));
        engine_test_close(&t);
    }
    assert_int_equal(n_blocks[2], 100);
    assert_int_equal(n_blocks[0], 100 * 24 / 16);
    assert_int_equal(n_blocks[1], n_blocks[0]);
}

static int setup(void **state)
{
    (void)state;
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        many_prompts_make(&prompts[p], p);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_keep_the_bits),
        cmocka_unit_test(a_restart_finds_blocks_of_its_own_type_only),
        cmocka_unit_test(a_pool_holds_more_tokens_of_one_byte),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
