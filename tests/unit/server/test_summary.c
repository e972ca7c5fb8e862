/* The periodic line about throughput, in virtual time. */
#include "tests/unit/test.h"

#include <string.h>

#include "engine/engine.h"
#include "server/summary.h"

#define SECOND UINT64_C(1000000000)

static struct engine_stats stats; /* too large for a stack */

static void the_words_are_those_that_parsers_of_vllms_log_look_for(void **state)
{
    struct summary_figures f = {.prompt_per_s = 12.34,
                                .generation_per_s = 5,
                                .n_running = 3,
                                .n_waiting = 1,
                                .kv_usage_perc = 0.44,
                                .hit_perc = 50};
    char words[SUMMARY_WORDS_BYTES];

    (void)state;
    summary_words(&f, words);
    assert_string_equal(words,
                        "Engine 000: Avg prompt throughput: 12.3 tokens/s, Avg generation "
                        "throughput: 5.0 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV cache "
                        "usage: 0.4%, Prefix cache hit rate: 50.0%");
    f.n_preemptions = 7;
    f.has_host = f.has_disk = true;
    f.host_full_perc = 1;
    f.disk_full_perc = 2;
    summary_words(&f, words);
    assert_non_null(strstr(words,
                           "Waiting: 1 reqs, Preemptions: 7, GPU KV cache usage: 0.4%, "
                           "Prefix cache hit rate: 50.0%, Host KV cache full: 1.0%, Disk KV cache "
                           "full: 2.0%"));
}

static void figures_are_those_of_the_interval(void **state)
{
    struct summary s = {.t_ns = 5 * SECOND};
    struct summary_figures f;

    (void)state;
    memset(&stats, 0, sizeof stats);
    stats.n_steps = 10;
    stats.n_prompt_tokens = 100;
    stats.n_generation_tokens = 40;
    stats.n_preemptions = 2;
    stats.cache.n_query_tokens = 100;
    stats.cache.n_hit_tokens = 25;
    stats.cache.tier[CACHE_DEVICE].n_blocks = 200;
    stats.cache.tier[CACHE_DEVICE].n_in_use = 50;
    assert_true(summary_next(&s, &stats, 15 * SECOND, &f));
    assert_true(f.prompt_per_s == 10 && f.generation_per_s == 4 && f.n_preemptions == 2);
    assert_true(f.kv_usage_perc == 25 && f.hit_perc == 25);
    assert_false(f.has_host || f.has_disk);
    stats.n_steps = 11;
    stats.n_generation_tokens = 60;
    assert_true(summary_next(&s, &stats, 35 * SECOND, &f));
    assert_true(f.prompt_per_s == 0 && f.generation_per_s == 1 && f.n_preemptions == 0);
    assert_true(f.hit_perc == 25); /* without a lookup the last rate stays */
}

static void an_engine_that_becomes_idle_says_so_once(void **state)
{
    struct summary s = {0};
    struct summary_figures f;
    uint64_t now = 0;

    (void)state;
    memset(&stats, 0, sizeof stats);
    assert_false(summary_next(&s, &stats, now += 10 * SECOND, &f)); /* nothing has run yet */
    for (int round = 0; round < 2; round++) {
        stats.n_steps += 5;
        stats.n_generation_tokens += 5;
        assert_true(summary_next(&s, &stats, now += 10 * SECOND, &f));
        assert_true(f.generation_per_s > 0);
        assert_true(summary_next(&s, &stats, now += 10 * SECOND, &f));
        assert_true(f.generation_per_s == 0 && f.prompt_per_s == 0);
        for (int i = 0; i < 5; i++)
            assert_false(summary_next(&s, &stats, now += 10 * SECOND, &f));
    }
    stats.n_running = 1; /* a step that is longer than an interval does not count as idle */
    assert_true(summary_next(&s, &stats, now += 10 * SECOND, &f));
    assert_true(summary_next(&s, &stats, now += 10 * SECOND, &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_words_are_those_that_parsers_of_vllms_log_look_for),
        cmocka_unit_test(figures_are_those_of_the_interval),
        cmocka_unit_test(an_engine_that_becomes_idle_says_so_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
