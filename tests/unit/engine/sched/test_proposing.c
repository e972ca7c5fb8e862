/* test_proposing.c - whether a draft model guesses, for which sequences, and how far. */
#include "tests/unit/test.h"

#include "engine/sched/proposing.h"
#include "tests/unit/engine/sched/costs.h"

#define N_SEQS 16
#define N_MAX 24u

static struct draft_step step_of(const struct cost_model *m, uint32_t n_decodes)
{
    struct draft_step step;

    draft_step_begin(&step, m, NULL, n_decodes, 100, n_decodes);
    return step;
}

/* How many of n sequences with this chance are guessed for, by a model whose pass takes so long. */
static uint32_t n_begun(double chance, double pass_s, uint32_t n)
{
    struct proposal v[N_SEQS];
    struct cost_model m = cost_of_rows();
    struct draft_step step = step_of(&m, n);
    struct proposing p;

    proposing_init(&p, 0.1);
    for (uint32_t n_rows = 1; n_rows <= 512; n_rows *= 2)
        proposing_learn(&p, n_rows, pass_s);
    for (uint32_t i = 0; i < n; i++)
        v[i] = (struct proposal){.chance = chance, .n_unseen = 1, .n_max = N_MAX};
    return proposing_begin(&p, &step, 100, v, n);
}

static void a_model_that_is_seldom_right_or_slow_does_not_guess(void **state)
{
    (void)state;
    assert_int_equal(n_begun(0.8, 0.001, 1), 1);
    assert_int_equal(n_begun(0.02, 0.001, 1), 0);
    assert_int_equal(n_begun(0.8, 0.010, 1), 0);
    assert_int_equal(n_begun(0, 0.000001, 1), 0);
}

static void a_full_batch_does_not_guess(void **state)
{
    (void)state;
    assert_int_equal(n_begun(0.7, 0.001, 2), 2);
    assert_int_equal(n_begun(0.4, 0.001, N_SEQS), 0); /* 1 ms a row, 1.1 ms a token */
}

static void only_the_sequences_with_good_chances_are_guessed_for(void **state)
{
    struct proposal v[8];
    struct cost_model m = cost_of_rows();
    struct draft_step step = step_of(&m, 8);
    struct proposing p;

    (void)state;
    proposing_init(&p, 0.1);
    for (uint32_t n_rows = 1; n_rows <= 512; n_rows *= 2)
        proposing_learn(&p, n_rows, 0.0001);
    for (uint32_t i = 0; i < 8; i++)
        v[i] = (struct proposal){.chance = i < 2 ? 0.95 : 0.01, .n_unseen = 1, .n_max = N_MAX};
    assert_int_equal(proposing_begin(&p, &step, 100, v, 8), 2);
}

static void passes_go_on_while_they_are_expected_to_pay(void **state)
{
    struct cost_model m = cost_of_rows();
    struct draft_step step = step_of(&m, 1);
    struct proposing p;

    (void)state;
    proposing_init(&p, 0.1);
    proposing_learn(&p, 1, 0.001);
    assert_true(proposing_goes_on(&p, &step, 100, 1, 1, 0.8));
    assert_false(proposing_goes_on(&p, &step, 100, 1, 1, 0.1));
    assert_false(proposing_goes_on(&p, &step, 100, 20, 1, 0.2)); /* rows cost more by now */
}

static void the_time_of_passes_is_estimated_and_then_learned(void **state)
{
    struct cost_model m = cost_of_rows();
    struct proposing p;

    (void)state;
    proposing_init(&p, 0.1);
    assert_true(proposing_seconds(&p, &m, 1) > 0.0009 && proposing_seconds(&p, &m, 1) < 0.0011);
    proposing_learn(&p, 1, 0.003);
    assert_true(proposing_seconds(&p, &m, 1) > 0.0029);
    assert_true(proposing_seconds(&p, &m, 64) < 0.010); /* another class */
    proposing_learn(&p, 1, 3);                          /* a disturbed pass */
    assert_true(proposing_seconds(&p, &m, 1) < 0.004);
    for (uint32_t i = 0; i < 100; i++)
        proposing_learn(&p, 1, 0.001);
    assert_true(proposing_seconds(&p, &m, 1) < 0.0011);
    proposing_learn(&p, UINT32_MAX, 1);
    assert_true(proposing_seconds(&p, &m, UINT32_MAX - 1) > 0.9);
}

static bool catches_up(uint32_t n_unseen, uint32_t n_out, uint32_t n_left, double chance)
{
    struct proposal v = {.chance = chance, .n_unseen = n_unseen, .n_max = N_MAX};
    struct cost_model m = cost_of_rows();
    struct draft_step step = step_of(&m, 1);
    struct proposing p;

    proposing_init(&p, 0.1);
    for (uint32_t n_rows = 1; n_rows <= 128; n_rows *= 2)
        proposing_learn(&p, n_rows, 0.001);
    proposing_learn(&p, 256, 0.020);
    return proposing_catches_up(&p, &step, 100, &v, 256, n_out, n_left);
}

static void a_text_is_read_if_the_rest_of_the_answer_pays_for_it(void **state)
{
    (void)state;
    assert_true(catches_up(256, 1, 1000, 0.8));
    assert_false(catches_up(256, 1, 2, 0.8));      /* it ends soon */
    assert_false(catches_up(256, 1, 1000, 0.05));  /* guesses are wrong */
    assert_false(catches_up(8192, 1, 1000, 0.8));  /* 640 ms for 32 tokens of 10 ms */
    assert_true(catches_up(8192, 900, 1000, 0.8)); /* an answer that has long gone on */
}

static void trials_take_their_share_of_the_time_and_no_more(void **state)
{
    struct proposal v = {.chance = 0, .n_unseen = 1, .n_max = N_MAX};
    struct cost_model m = cost_of_rows();
    struct draft_step step = step_of(&m, 1);
    struct proposing p;
    uint32_t n = 0, n_steps = 100000;

    (void)state;
    proposing_init(&p, 0.1);
    for (uint32_t i = 0; i < n_steps; i++) {
        proposing_save(&p, 0.010);
        n += proposing_tries(&p, &step, 100, &v);
    }
    double each_s = TRIAL_TOKENS * proposing_seconds(&p, &m, 1); /* at least */
    assert_true(n > 0 && n * each_s <= TRIAL_SHARE * 0.010 * n_steps);
    v.n_unseen = UINT32_MAX; /* a trial that can never be paid for */
    p.trial_s = 0;
    proposing_save(&p, 1e9);
    proposing_learn(&p, UINT32_MAX, 10);
    assert_false(proposing_tries(&p, &step, 100, &v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_is_seldom_right_or_slow_does_not_guess),
        cmocka_unit_test(a_full_batch_does_not_guess),
        cmocka_unit_test(only_the_sequences_with_good_chances_are_guessed_for),
        cmocka_unit_test(passes_go_on_while_they_are_expected_to_pay),
        cmocka_unit_test(the_time_of_passes_is_estimated_and_then_learned),
        cmocka_unit_test(a_text_is_read_if_the_rest_of_the_answer_pays_for_it),
        cmocka_unit_test(trials_take_their_share_of_the_time_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
