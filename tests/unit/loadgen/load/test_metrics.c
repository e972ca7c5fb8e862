/* Figures of constructed outcomes, compared with values computed by hand. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "loadgen/load/metrics.h"

#define MS UINT64_C(1000000)
#define T0 (UINT64_C(5000) * MS)

/* An outcome that was sent 2 ms late, with tokens at these times after the intended time. */
static struct outcome made(uint64_t at_ms, const uint64_t *tokens_ms, uint32_t n, int64_t n_said)
{
    struct load_request r;
    struct outcome o;

    load_request_init(&r, at_ms);
    r.n_prompt_tokens = 100;
    outcome_init(&o, &r);
    o.measured = true;
    o.intended_ns = o.free_ns = T0 + at_ms * MS;
    o.sent_ns = o.intended_ns + 2 * MS;
    for (uint32_t i = 0; i < n; i++)
        assert_ok(outcome_token(&o, o.intended_ns + tokens_ms[i] * MS));
    o.first_ns = o.token_ns[0];
    o.last_ns = o.token_ns[n - 1];
    o.end_ns = o.last_ns + MS;
    o.usage.completion_tokens = n_said;
    return o;
}

static const struct percents usual = {{50, 90, 99}, 3};
static const char *const names[] = {"a", "b"};

static void latencies_are_those_of_the_definitions(void **state)
{
    const uint64_t one[] = {100, 110, 140}, two[] = {300, 350};
    struct outcome v[] = {made(0, one, 3, -1), made(1000, two, 2, 4)};
    struct metrics_options o = {usual, T0, 0, names, 1};
    struct metrics m;

    (void)state;
    v[0].usage.prompt_tokens = 90;
    v[0].usage.cached_tokens = 64;
    v[0].usage.cached_by_tier[TARN_TIER_HOST] = 32;
    assert_ok(metrics_compute(&m, v, 2, &o));
    const struct group *g = &m.all;
    assert_int_equal(g->n_completed, 2);
    assert_int_equal(g->prompt_tokens, 90 + 100);
    assert_int_equal(g->output_tokens, 3 + 4);
    assert_int_equal(g->cached_tokens, 64);
    assert_int_equal(g->cached_by_tier[TARN_TIER_HOST], 32);
    assert_near(m.duration_s, 1.351, 1e-12);
    assert_near(g->of[METRIC_TTFT].mean, 0.2, 1e-12);
    assert_near(g->of[METRIC_TTFT].std, 0.1, 1e-12);
    assert_near(g->of[METRIC_TTFT].at[1], 0.28, 1e-12);
    assert_near(g->of[METRIC_TTFT_SEND].mean, 0.198, 1e-12);
    assert_near(g->of[METRIC_E2EL].mean, 0.245, 1e-12);
    /* (140 - 100) / 2 and (350 - 300) / 3, by the server's count of output tokens */
    assert_near(g->of[METRIC_TPOT].mean, (0.02 + 0.05 / 3) / 2, 1e-12);
    assert_int_equal(g->of[METRIC_ITL].n, 3);
    assert_near(g->of[METRIC_ITL].mean, 0.03, 1e-12);
    assert_near(g->of[METRIC_NORMALIZED].mean, (0.14 / 3 + 0.35 / 4) / 2, 1e-12);
    assert_near(g->of[METRIC_LAG].max, 0.002, 1e-12);
    assert_int_equal(m.peak_output_tokens_per_s, 3);
    assert_int_equal(m.peak_concurrent, 1);
    metrics_fini(&m);
    outcome_fini(&v[0]);
    outcome_fini(&v[1]);
}

static void what_does_not_count_does_not(void **state)
{
    const uint64_t t[] = {100, 200};
    struct outcome v[6];
    struct metrics_options o = {usual, T0, 0, names, 1};
    struct metrics m;

    (void)state;
    for (uint64_t i = 0; i < 6; i++)
        v[i] = made(i * 10, t, 2, -1);
    v[0].measured = false;
    v[1].end = OUTCOME_FAILED;
    v[1].error = TARN_ERR_BUSY;
    v[2].end = OUTCOME_DISCONNECTED;
    v[3].end = OUTCOME_UNFINISHED;
    v[4].slow_reader = true;
    v[4].token_ns[1] += 999 * MS;
    v[4].last_ns += 999 * MS;
    assert_ok(metrics_compute(&m, v, 6, &o));
    assert_int_equal(m.all.n_completed, 2);
    assert_int_equal(m.all.n_failed, 1);
    assert_int_equal(m.n_errors[TARN_ERR_BUSY], 1);
    assert_int_equal(m.all.n_disconnected, 1);
    assert_int_equal(m.all.n_unfinished, 1);
    assert_int_equal(m.all.n_slow, 1);
    assert_int_equal(m.all.output_tokens, 4); /* the tokens of a slow reader were generated */
    assert_int_equal(m.all.of[METRIC_E2EL].n, 1);
    assert_near(m.all.of[METRIC_E2EL].mean, 0.2, 1e-12);
    metrics_fini(&m);
    for (int i = 0; i < 6; i++)
        outcome_fini(&v[i]);
}

static void goodput_counts_whom_the_slo_is_kept_for(void **state)
{
    const uint64_t fast[] = {100, 110}, slow[] = {100, 400}, single[] = {90};
    struct outcome v[] = {made(0, fast, 2, -1), made(10, slow, 2, -1), made(20, single, 1, -1),
                          made(30, slow, 2, -1)};
    struct metrics_options o = {usual, T0, 0, names, 1};
    struct metrics m;

    (void)state;
    for (int i = 0; i < 3; i++)
        v[i].slo = (struct slo){{100, 50, 0, 0}};
    assert_ok(metrics_compute(&m, v, 4, &o));
    assert_int_equal(m.all.n_with_slo, 3);
    assert_int_equal(m.all.n_good, 2); /* one token has no TPOT to miss */
    metrics_fini(&m);
    for (int i = 0; i < 4; i++)
        outcome_fini(&v[i]);
}

static void rows_by_tenant_and_priority_add_up(void **state)
{
    const uint64_t t[] = {100, 200};
    struct outcome v[10];
    struct metrics_options o = {usual, T0, 0, names, 2};
    struct metrics m;

    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        v[i] = made(i * 10, t, 2, -1);
        v[i].tenant = i % 2;
        v[i].priority = i < 3 ? 5 : -1;
    }
    assert_ok(metrics_compute(&m, v, 10, &o));
    assert_int_equal(m.n_tenants, 2);
    assert_string_equal(m.tenants[1].name, "b");
    assert_int_equal(m.tenants[0].n_completed + m.tenants[1].n_completed, 10);
    assert_int_equal(m.n_priorities, 2);
    assert_string_equal(m.priorities[0].name, "-1");
    assert_int_equal(m.priorities[0].n_completed, 7);
    assert_int_equal(m.priorities[1].n_completed, 3);
    metrics_fini(&m);
    for (int i = 0; i < 10; i++)
        outcome_fini(&v[i]);
}

static void pieces_of_several_tokens_are_counted(void **state)
{
    const uint64_t t[] = {100, 200, 300};
    struct outcome v[] = {made(0, t, 3, 12), made(10, t, 3, 4), made(20, t, 3, -1),
                          made(30, t, 3, 90)};
    struct metrics_options o = {usual, T0, 0, names, 1};
    struct metrics m;

    (void)state;
    strcpy(v[1].finish_reason, "stop"); /* three pieces and the token that ends the answer */
    v[3].slow_reader = true;
    assert_ok(metrics_compute(&m, v, 4, &o));
    assert_int_equal(m.all.n_pieces, 6); /* v[2] has no count of the server's */
    assert_int_equal(m.all.n_piece_tokens, 12 + 3);
    assert_near(metrics_tokens_per_piece(&m.all), 2.5, 1e-12);
    metrics_fini(&m);
    assert_ok(metrics_compute(&m, &v[2], 1, &o));
    assert_near(metrics_tokens_per_piece(&m.all), 0, 0);
    metrics_fini(&m);
    for (int i = 0; i < 4; i++)
        outcome_fini(&v[i]);
}

static void nothing_at_all_has_a_report(void **state)
{
    struct metrics_options o = {usual, T0, 0, names, 2};
    struct metrics m;

    (void)state;
    assert_ok(metrics_compute(&m, NULL, 0, &o));
    assert_int_equal(m.all.n_completed, 0);
    assert_near(m.duration_s, 0, 0);
    metrics_fini(&m);
    o.until_ns = T0 + 3000 * MS;
    assert_ok(metrics_compute(&m, NULL, 0, &o));
    assert_near(m.duration_s, 3, 1e-12); /* the window lasts even without arrivals */
    assert_near(m.all.of[METRIC_TTFT].at[2], 0, 0);
    metrics_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latencies_are_those_of_the_definitions),
        cmocka_unit_test(what_does_not_count_does_not),
        cmocka_unit_test(goodput_counts_whom_the_slo_is_kept_for),
        cmocka_unit_test(rows_by_tenant_and_priority_add_up),
        cmocka_unit_test(pieces_of_several_tokens_are_counted),
        cmocka_unit_test(nothing_at_all_has_a_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
