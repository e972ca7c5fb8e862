/* test_drafting.c - how many guessed tokens are verified. */
#include "tests/unit/test.h"

#include <math.h>

#include "engine/sched/drafting.h"
#include "tests/unit/engine/sched/costs.h"

#define N_MAX DRAFT_TOKENS_MAX

static uint32_t length(const struct cost_model *m, uint32_t n_decodes, uint32_t n_rows,
                       double chance)
{
    double chances[N_MAX];
    struct draft_step step;

    for (uint32_t i = 0; i < N_MAX; i++)
        chances[i] = chance;
    draft_step_begin(&step, m, NULL, n_decodes, 100, n_rows);
    return draft_step_length(&step, 100, chances, N_MAX);
}

static void rows_that_cost_nothing_are_taken_at_a_small_chance(void **state)
{
    struct cost_model m = cost_of_rows();

    (void)state;
    assert_in_range(length(&m, 1, 1, 0.1), 1, 7);
    assert_int_equal(length(&m, 1, 1, 0.001), 0);
}

static void a_better_chance_makes_a_longer_draft(void **state)
{
    struct cost_model m = cost_of_rows();
    uint32_t before = 0;

    (void)state;
    for (double chance = 0.1; chance < 1; chance += 0.1) {
        uint32_t n = length(&m, 1, 1, chance);
        assert_true(n >= before);
        before = n;
    }
    assert_int_equal(length(&m, 1, 1, 1), N_MAX);
}

static void a_full_batch_and_a_chunk_make_drafts_shorter(void **state)
{
    struct cost_model m = cost_of_rows();

    (void)state;
    assert_true(length(&m, 64, 64, 0.6) < length(&m, 1, 1, 0.6));
    assert_int_equal(length(&m, 64, 64, 0.6), 0); /* 1 ms for 0.6 tokens; a decode takes 0.7 */
    assert_int_equal(length(&m, 1, 300, 0.05), 0);
    assert_true(length(&m, 1, 300, 0.9) > 0); /* 10 rows in the time of a decode */
}

static void drafts_of_a_step_make_further_ones_dearer(void **state)
{
    struct cost_model m = cost_of_rows();
    double chances[N_MAX];
    struct draft_step step;

    (void)state;
    for (uint32_t i = 0; i < N_MAX; i++)
        chances[i] = 0.1;
    draft_step_begin(&step, &m, NULL, 8, 100, 1);
    assert_true(draft_step_length(&step, 100, chances, N_MAX) > 0);
    draft_step_add(&step, 100, chances, 7);
    assert_true(step.drafts_s > 0);
    assert_int_equal(draft_step_length(&step, 100, chances, N_MAX), 0);
}

static uint32_t length_learned(const struct cost_model *m, struct draft_rows *rows)
{
    double chances[N_MAX];
    struct draft_step step;

    for (uint32_t i = 0; i < N_MAX; i++)
        chances[i] = 0.9;
    draft_step_begin(&step, m, rows, 1, 100, 1);
    return draft_step_length(&step, 100, chances, N_MAX);
}

static void the_time_of_rows_is_learned_and_tried_again(void **state)
{
    struct cost_model m = cost_of_rows();
    struct draft_rows rows = {0};

    (void)state;
    assert_true(length_learned(&m, &rows) > 8); /* untried: cheap */
    for (uint32_t n = 1; n <= N_MAX; n++)       /* every row takes 20 ms */
        for (int i = 0; i < 100; i++)
            draft_rows_learn(&rows, n + 1, n, 0.010 + 0.020 * n, 0.010, 0.001 * n);
    assert_int_equal(length_learned(&m, &rows), 0);
    for (int i = 0; i < 100; i++) /* no more */
        draft_rows_learn(&rows, 8, 7, 0.0101, 0.010, 0.001);
    assert_int_equal(length_learned(&m, &rows), 7);
    struct draft_rows once = {0};
    once.n_steps = 1;
    draft_rows_learn(&once, 8, 7, 100, 0.010, 0.007); /* a disturbed step */
    assert_true(once.row_s[1] < 0.003);
}

static void a_step_with_guesses_can_show_that_decodes_are_faster(void **state)
{
    struct cost_model m = cost_of_rows();
    struct draft_rows rows = {0};
    double chances[] = {0.9, 0.9};
    struct draft_step step;

    (void)state;
    draft_step_begin(&step, &m, &rows, 1, 100, 1);
    draft_step_add(&step, 100, chances, 2);
    assert_true(draft_step_beats(&step, 0.009));
    assert_false(draft_step_beats(&step, 0.011));
    draft_step_begin(&step, &m, NULL, 1, 100, 301); /* beside a chunk */
    assert_false(draft_step_beats(&step, 0.001));
}

static void leads_of_a_draft_model_have_chances_of_their_own(void **state)
{
    struct acceptance server = {0}, a = {0}, b = {0};

    (void)state;
    assert_true(acceptance_lead_chance(&server, &a, 5) > acceptance_lead_chance(&server, &a, 0.1F));
    for (uint32_t i = 0; i < 300; i++) {
        acceptance_note_lead(&server, &a, 5, false);
        acceptance_note_lead(&server, &a, -1, true);
        acceptance_note_lead(&server, &a, NAN, true);
    }
    assert_true(acceptance_lead_chance(&server, &a, 9) < 0.1);
    assert_true(acceptance_lead_chance(&server, &b, 9) < 0.1);
    assert_true(acceptance_lead_chance(&server, &a, 0.2F) > 0.9);
    assert_true(acceptance_model_chance(&server, &b) > 0.5);
    assert_true(acceptance_model_chance(&server, &b) < 0.8);
    assert_true(acceptance_chance(&server, &a, 4) == acceptance_chance(&server, &b, 4));
}

static void chances_are_learned_by_length_and_request(void **state)
{
    struct acceptance server = {0}, copies = {0}, talks = {0};

    (void)state;
    double before = acceptance_chance(&server, &copies, 3);
    assert_true(acceptance_chance(&server, &copies, 20) > before);
    for (int i = 0; i < 60; i++) {
        acceptance_note(&server, &copies, 3, true);
        acceptance_note(&server, &talks, 3, false);
    }
    assert_true(acceptance_chance(&server, &copies, 3) > 0.85);
    assert_true(acceptance_chance(&server, &talks, 3) < 0.15);
    struct acceptance fresh = {0};
    assert_in_range((int)(100 * acceptance_chance(&server, &fresh, 3)), 35, 65);
    assert_true(acceptance_chance(&server, &talks, 20) > 0.8); /* not touched */
}

static void what_was_learned_is_forgotten(void **state)
{
    struct acceptance server = {0}, request = {0};

    (void)state;
    for (int i = 0; i < 2000; i++)
        acceptance_note(&server, &request, 5, false);
    for (int i = 0; i < 200; i++)
        acceptance_note(&server, &request, 5, true);
    assert_true(acceptance_chance(&server, &request, 5) > 0.8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_cost_nothing_are_taken_at_a_small_chance),
        cmocka_unit_test(a_better_chance_makes_a_longer_draft),
        cmocka_unit_test(a_full_batch_and_a_chunk_make_drafts_shorter),
        cmocka_unit_test(drafts_of_a_step_make_further_ones_dearer),
        cmocka_unit_test(the_time_of_rows_is_learned_and_tried_again),
        cmocka_unit_test(a_step_with_guesses_can_show_that_decodes_are_faster),
        cmocka_unit_test(leads_of_a_draft_model_have_chances_of_their_own),
        cmocka_unit_test(chances_are_learned_by_length_and_request),
        cmocka_unit_test(what_was_learned_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
