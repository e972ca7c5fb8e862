/* The choice between reading KV of another instance, sending queries to it, and computing it. */
#include "tests/unit/test.h"

#include <math.h>

#include "cache/store/query_choice.h"

/* One segment of 256 tokens in 24 layers, 8 KV heads of 64 floats, 16 heads, at 1 GB/s. */
static struct query_costs one_segment(void)
{
    return (struct query_costs){.n_bytes = 24.0 * 256 * 2 * 8 * 64 * 4,
                                .bytes_per_s = 1e9,
                                .row_bytes = 16 * 64 * 4 + 16 * 66 * 4,
                                .n_layers = 24,
                                .n_rows_max = 64,
                                .compute_s = INFINITY};
}

static void by_bytes_alone_queries_win_up_to_126_rows(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.n_output_rows = 126;
    assert_true(query_is_best(&c));
    c.n_output_rows = 127;
    assert_false(query_is_best(&c));
    c.n_output_rows = 63;
    c.n_prompt_rows = 63;
    assert_true(query_is_best(&c));
    c.n_prompt_rows = 64;
    assert_false(query_is_best(&c));
}

static void rows_of_12_KB_win_up_to_85(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.row_bytes = 12 * 1024;
    c.n_output_rows = 85;
    assert_true(query_is_best(&c));
    c.n_output_rows = 86;
    assert_false(query_is_best(&c));
}

static void each_query_pays_the_latency(void **state)
{
    struct query_costs c = one_segment();
    struct query_times t;

    (void)state;
    c.latency_s = 1e-3;
    c.n_output_rows = 1;
    query_expected_times(&c, &t);
    assert_true(fabs(t.pull_s - (1e-3 + 25165824e-9)) < 1e-9);
    assert_true(fabs(t.query_s - 24 * (1e-3 + 8320e-9)) < 1e-9);
    assert_true(query_is_best(&c)); /* 24.2 ms and 26.2 ms */
    c.n_output_rows = 2;
    assert_false(query_is_best(&c));
}

static void prompt_rows_share_a_query(void **state)
{
    struct query_costs c = one_segment();
    struct query_times t;

    (void)state;
    c.query_s = 1e-3;
    c.n_prompt_rows = 65;
    query_expected_times(&c, &t);
    assert_true(fabs(t.query_s - 24 * (2e-3 + 63 * 8320e-9)) < 1e-9);
}

static void a_measured_query_replaces_the_estimate(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.n_output_rows = 10;
    assert_true(query_is_best(&c)); /* 2 ms */
    c.query_s = 200e-6;             /* the peer is busy: 48 ms */
    assert_false(query_is_best(&c));
}

static void evictions_speak_for_queries_and_lost_kv_against_them(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.n_output_rows = 200;
    assert_false(query_is_best(&c));
    c.evict_s = 0.1;
    assert_true(query_is_best(&c));
    c.lost_s = 0.1;
    assert_false(query_is_best(&c));
}

static void computing_wins_over_a_slow_link(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.n_output_rows = 10;
    c.compute_s = 1e-3;
    assert_false(query_is_best(&c));
    c.compute_s = 1;
    assert_true(query_is_best(&c));
}

static void an_unknown_rate_is_measured_by_a_pull(void **state)
{
    struct query_costs c = one_segment();

    (void)state;
    c.bytes_per_s = 0;
    c.query_s = 1e-6;
    assert_false(query_is_best(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_bytes_alone_queries_win_up_to_126_rows),
        cmocka_unit_test(rows_of_12_KB_win_up_to_85),
        cmocka_unit_test(each_query_pays_the_latency),
        cmocka_unit_test(prompt_rows_share_a_query),
        cmocka_unit_test(a_measured_query_replaces_the_estimate),
        cmocka_unit_test(evictions_speak_for_queries_and_lost_kv_against_them),
        cmocka_unit_test(computing_wins_over_a_slow_link),
        cmocka_unit_test(an_unknown_rate_is_measured_by_a_pull),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
