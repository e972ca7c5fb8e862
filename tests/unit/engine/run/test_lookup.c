/* test_lookup.c - guesses from earlier places of the same ids. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/run/lookup.h"

#define N_MAX 4096u

static uint32_t ids[N_MAX];

static void open_with(struct lookup *l, const uint32_t *first, uint32_t n_first,
                      const uint32_t *prompt, uint32_t n)
{
    memcpy(ids, prompt, n * sizeof *ids);
    assert_ok(lookup_init(l, first, n_first, ids, N_MAX));
    lookup_add_prompt(l, n);
}

static struct lookup_guess push(struct lookup *l, uint32_t id)
{
    ids[l->n - l->n_first] = id;
    return lookup_push(l);
}

static void assert_guess(const struct lookup *l, const uint32_t *want, uint32_t n)
{
    uint32_t got[16];

    assert_int_equal(lookup_guess(l, got, n), n);
    assert_memory_equal(got, want, n * sizeof *got);
}

static void a_run_that_came_before_goes_on_as_before(void **state)
{
    const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct lookup l;

    (void)state;
    open_with(&l, NULL, 0, prompt, 8);
    assert_false(lookup_has_guess(&l));
    assert_false(push(&l, 3).was_made);
    assert_false(push(&l, 4).was_made);
    assert_true(lookup_has_guess(&l));
    assert_guess(&l, (const uint32_t[]){5, 6, 7, 8}, 4);
    struct lookup_guess g = push(&l, 5);
    assert_true(g.was_made && g.was_right && g.n_match == 2);
    g = push(&l, 9);
    assert_true(g.was_made && !g.was_right && g.n_match == 3);
    assert_false(lookup_has_guess(&l));
    lookup_fini(&l);
}

static void the_longest_match_wins_and_of_equal_ones_the_latest(void **state)
{
    const uint32_t prompt[] = {1, 2, 3, 4, 10, 9, 3, 4, 11, 8, 3, 4, 12, 7};
    struct lookup l;

    (void)state;
    open_with(&l, NULL, 0, prompt, ARRAY_SIZE(prompt));
    push(&l, 3);
    push(&l, 4);
    assert_guess(&l, (const uint32_t[]){12}, 1);
    push(&l, 5);
    push(&l, 2);
    push(&l, 3);
    push(&l, 4);
    assert_int_equal(l.n_match, 3);
    assert_guess(&l, (const uint32_t[]){10}, 1);
    lookup_fini(&l);
}

static void a_repetition_is_guessed_beyond_its_end(void **state)
{
    const uint32_t prompt[] = {9, 1, 2, 3, 1, 2, 3, 1, 2};
    struct lookup l;

    (void)state;
    open_with(&l, NULL, 0, prompt, ARRAY_SIZE(prompt));
    assert_guess(&l, (const uint32_t[]){3, 1, 2, 3, 1, 2, 3, 1}, 8);
    lookup_fini(&l);
}

static void a_prediction_is_followed_from_its_beginning_and_ends(void **state)
{
    const uint32_t prediction[] = {50, 51, 52, 53}, prompt[] = {1, 2};
    struct lookup l;
    uint32_t got[8];

    (void)state;
    open_with(&l, prediction, 4, prompt, 2);
    assert_guess(&l, (const uint32_t[]){50, 51, 52, 53}, 4);
    assert_int_equal(lookup_guess(&l, got, 8), 4);
    assert_true(push(&l, 50).was_right);
    assert_false(push(&l, 99).was_right);
    assert_false(lookup_has_guess(&l));
    push(&l, 51);
    push(&l, 52);
    assert_guess(&l, (const uint32_t[]){53}, 1);
    assert_true(push(&l, 53).was_right);
    assert_false(lookup_has_guess(&l));
    lookup_fini(&l);
}

/* Every guess comes from a place whose ids before it equal the latest ids, is checked against the
 * id that comes, and is missed only where no such place is among those that are compared. */
static void guesses_are_those_of_a_naive_search(void **state)
{
    uint32_t got[4];

    (void)state;
    for (uint32_t trial = 0; trial < 40; trial++) {
        uint32_t n_kinds = 2 + trial % 9, n_first = trial % 3 ? 0 : 50, prediction[50];
        struct lookup l;
        struct lookup_guess g;

        for (uint32_t i = 0; i < 50; i++)
            prediction[i] = rng_u32(trial, 5000 + i) % n_kinds;
        assert_ok(lookup_init(&l, prediction, n_first, ids, N_MAX));
        ids[0] = 0;
        lookup_add_prompt(&l, 1);
        for (uint32_t n = 1; n < 300; n++) {
            bool has = lookup_has_guess(&l);
            uint32_t k = lookup_guess(&l, got, 4), first = k ? got[0] : 0;

            ids[n] = rng_u32(trial, n) % n_kinds;
            g = lookup_push(&l);
            assert_int_equal(g.was_made, has);
            assert_int_equal(has, k > 0);
            assert_true(!has || g.was_right == (first == ids[n]));
            for (uint32_t i = 0; i < l.n_match; i++) {
                uint32_t place = l.at - 1 - i;
                uint32_t id = place < n_first ? prediction[place] : ids[place - n_first];
                assert_int_equal(id, ids[n - i]);
            }
            bool before = false; /* do the latest two ids stand anywhere before? */
            for (uint32_t i = 1; i < n; i++)
                before |= ids[i] == ids[n] && ids[i - 1] == ids[n - 1];
            assert_true(!before || lookup_has_guess(&l));
        }
        lookup_fini(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_came_before_goes_on_as_before),
        cmocka_unit_test(the_longest_match_wins_and_of_equal_ones_the_latest),
        cmocka_unit_test(a_repetition_is_guessed_beyond_its_end),
        cmocka_unit_test(a_prediction_is_followed_from_its_beginning_and_ends),
        cmocka_unit_test(guesses_are_those_of_a_naive_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
