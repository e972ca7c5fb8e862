/* Promise P1 with the KV store: 500 prompts give the same bits cold, warm, after a preemption, and
 * from the host tier, by exchange and by copy; and after thousands of preemptions at any token.
 *
 * The expected answers are those of an engine without prefix caching, one request at a time. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "tests/many_prompts.h"
#include "tests/unit/cache/failing_copies.h"

#ifndef N_PROMPTS /* sanitizer builds take fewer: see CMakeLists.txt */
#define N_PROMPTS 500
#endif
#ifndef N_PREEMPTIONS
#define N_PREEMPTIONS 10000
#endif
#define N_OUT 12
#define N_OUT_LONG 120 /* for tests in which sequences exceed the pool */
#define N_WINDOW 40
#define BLOCK_BYTES (2 * 2 * 2 * 12 * 32 * 2) /* layers, K and V, heads, head_dim, tokens, bf16 */

static struct many_prompt prompts[N_PROMPTS];
static struct answer_digest cold[N_PROMPTS], cold_long[N_PROMPTS];

static void make_prompts(void)
{
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        many_prompts_make(&prompts[p], p);
}

static struct request *submit(struct engine_test *t, uint32_t p, uint32_t n_out)
{
    return many_prompts_submit(t, &prompts[p], p, n_out);
}

static void config(struct engine_config *c, uint32_t n_blocks, uint32_t n_host_blocks)
{
    engine_config_init(c);
    c->n_threads = 2;
    c->max_num_seqs = 16;
    c->max_batched_tokens = 200;
    c->max_model_len = MANY_PROMPTS_IDS_MAX + N_OUT_LONG;
    c->kv_bytes = (uint64_t)n_blocks * BLOCK_BYTES;
    c->kv_host_bytes = (uint64_t)n_host_blocks * BLOCK_BYTES;
}

static int learn_cold(void **state)
{
    struct engine_config c;
    struct engine_test t;

    (void)state;
    make_prompts();
    config(&c, 400, 0);
    c.prefix_caching = false;
    engine_test_open(&t, NULL, &c);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        cold[p] = many_prompts_digest(submit(&t, p, N_OUT), N_OUT);
        if (p < 2 * N_WINDOW)
            cold_long[p] = many_prompts_digest(submit(&t, p, N_OUT_LONG), N_OUT_LONG);
    }
    engine_test_close(&t);
    return 0;
}

/* Ask all prompts `rounds` times, N_WINDOW at once, in a different order each time. */
static void ask_all(struct engine_test *t, uint32_t rounds, const char *how)
{
    struct request *r[N_WINDOW];
    uint32_t which[N_WINDOW];

    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < N_PROMPTS; i += N_WINDOW) {
            uint32_t n = N_PROMPTS - i < N_WINDOW ? N_PROMPTS - i : N_WINDOW;

            for (uint32_t w = 0; w < n; w++) {
                which[w] = (i + w) * (round % 2 ? 7 : 1) % N_PROMPTS; /* 7 is prime to N_PROMPTS */
                r[w] = submit(t, which[w], N_OUT);
            }
            for (uint32_t w = 0; w < n; w++) {
                struct answer_digest d = many_prompts_digest(r[w], N_OUT);
                if (memcmp(&d, &cold[which[w]], sizeof d))
                    fail_msg("%s: prompt %u has other bits than cold, in round %u", how, which[w],
                             round);
            }
        }
}

static void print_stats(const char *how, const struct engine_stats *st)
{
    const struct cache_stats *c = &st->cache;

    printf("%s: %llu of %llu tokens found (%llu on the host), %llu restored, %llu preemptions, "
           "%llu blocks in, %llu out\n",
           how, (unsigned long long)c->n_hit_tokens, (unsigned long long)c->n_query_tokens,
           (unsigned long long)st->n_prompt_tokens_in[CACHE_HOST],
           (unsigned long long)c->n_restored_tokens, (unsigned long long)st->n_preemptions,
           (unsigned long long)c->tier[CACHE_DEVICE].n_moved_in,
           (unsigned long long)c->tier[CACHE_HOST].n_moved_in);
    assert_int_equal(c->tier[CACHE_DEVICE].n_leaked, 0);
    assert_int_equal(c->tier[CACHE_HOST].n_leaked, 0);
}

static void a_warm_cache_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    config(&c, 12000, 0);
    engine_test_open(&t, NULL, &c);
    ask_all(&t, 2, "warm");
    engine_test_idle(&t, &st);
    print_stats("warm", &st);
    assert_true(st.cache.n_hit_tokens > st.cache.n_query_tokens / 2);
    engine_test_close(&t);
}

static void the_host_tier_does_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    for (int copy = 0; copy < 2; copy++) {
        config(&c, 100, 12000);
        c.kv_always_copy = copy;
        c.check_each_step = N_PROMPTS < 500; /* in sanitizer builds, which use fewer prompts */
        engine_test_open(&t, NULL, &c);
        ask_all(&t, 2, copy ? "host by copy" : "host by exchange");
        engine_test_idle(&t, &st);
        print_stats(copy ? "host by copy" : "host by exchange", &st);
        assert_true(st.n_prompt_tokens_in[CACHE_HOST] > st.cache.n_query_tokens / 20);
        engine_test_close(&t);
    }
}

/* The blocks of a failed copy are computed again, and no request fails. */
static void copies_that_fail_do_not_change_a_bit(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;
    uint32_t n_rounds = 0;

    (void)state;
    config(&c, 100, 12000);
    c.kv_always_copy = true;
    c.mlfq_variant = "tarn"; /* its order moves more KV through the host tier */
    engine_test_open(&t, NULL, &c);
    fail_one_in = 40;
    do { /* until a prompt has found KV on the host, as the first or second time does */
        ask_all(&t, 1, "copies that fail");
        engine_test_idle(&t, &st);
    } while (st.n_prompt_tokens_in[CACHE_HOST] == 0 && ++n_rounds < 10);
    print_stats("copies that fail", &st);
    assert_true(n_failed > 0 && st.cache.n_copies_failed > 0);
    assert_true(st.n_prompt_tokens_in[CACHE_HOST] > 0);
    assert_int_equal(st.n_finished[FINISH_ERROR], 0);
    fail_one_in = 0;
    engine_test_close(&t);
}

/* 16 sequences exceed a pool of 48 blocks. So some are always preempted, at any token, and resume
 * from the host tier or are computed again. */
static void preemptions_do_not_change_a_bit(void **state)
{
    const uint32_t n_host[] = {2000, 60, 0};
    const uint32_t n_distinct = N_PROMPTS < 2 * N_WINDOW ? N_PROMPTS : 2 * N_WINDOW;
    uint64_t n_done = 0, n_restored = 0;

    (void)state;
    for (uint32_t round = 0; n_done < N_PREEMPTIONS; round++) {
        struct request *r[N_WINDOW];
        struct engine_config c;
        struct engine_test t;
        struct engine_stats st;

        config(&c, 48, n_host[round % ARRAY_SIZE(n_host)]);
        c.kv_always_copy = round % 2;
        c.max_batched_tokens = 64 + round % 5 * 40;
        engine_test_open(&t, NULL, &c);
        for (uint32_t w = 0; w < N_WINDOW; w++)
            r[w] = submit(&t, (round + w * (2 * (round % 16) + 1)) % n_distinct, N_OUT_LONG);
        for (uint32_t w = 0; w < N_WINDOW; w++) {
            uint32_t p = (round + w * (2 * (round % 16) + 1)) % n_distinct;
            struct answer_digest d = many_prompts_digest(r[w], N_OUT_LONG);
            if (memcmp(&d, &cold_long[p], sizeof d))
                fail_msg("prompt %u has other bits than cold, in round %u", p, round);
        }
        engine_test_idle(&t, &st);
        n_done += st.n_preemptions;
        n_restored += st.cache.n_restored_tokens;
        engine_test_close(&t);
        assert_true(round < 1000);
    }
    printf("%llu preemptions, %llu tokens restored\n", (unsigned long long)n_done,
           (unsigned long long)n_restored);
    assert_true(n_restored > n_done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_cache_does_not_change_a_bit),
        cmocka_unit_test(the_host_tier_does_not_change_a_bit),
        cmocka_unit_test(copies_that_fail_do_not_change_a_bit),
        cmocka_unit_test(preemptions_do_not_change_a_bit),
    };
    return cmocka_run_group_tests(tests, learn_cold, NULL);
}
