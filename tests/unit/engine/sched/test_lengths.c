/* test_lengths.c - what was learned of answer lengths is what the answers were, and ranks are the
 * Gittins index. */
#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/sched/lengths.h"

static const struct length_traits plain = {.tenant = 1, .n_prompt = 100};

static struct lengths *make(void)
{
    struct lengths *l;

    assert_ok(lengths_create(&l));
    return l;
}

static void note(struct lengths *l, const struct length_traits *t, uint32_t n_tokens, int n)
{
    uint32_t class = lengths_enter(l, t);

    for (int i = 0; i < n; i++)
        lengths_note(l, class, n_tokens);
    lengths_leave(l, class);
}

/* --- ranks --- */

/* The definition in lengths.h, over answers that are listed one by one. */
static double naive_rank(const uint32_t *s, const double *weight, int n, uint32_t a, double p,
                         bool normalized)
{
    double best = INFINITY;

    for (uint32_t end = a + 1; end < 64; end++) {
        double gain = 0, cost = 0;
        for (int i = 0; i < n; i++) {
            if (s[i] <= a)
                continue;
            cost += weight[i] * (p + (s[i] < end ? s[i] - a : end - a));
            if (s[i] <= end)
                gain += weight[i] * (normalized ? 1.0 / s[i] : 1);
        }
        if (gain > 0 && cost / gain < best)
            best = cost / gain;
    }
    return best;
}

#define N_ANSWERS 6000

static void ranks_are_the_gittins_index(void **state)
{
    static uint32_t s[N_ANSWERS];
    static double weight[N_ANSWERS];
    struct lengths *l = make();
    uint32_t x = 1;

    (void)state;
    for (int i = 0; i < N_ANSWERS; i++) {
        x = x * 1664525 + 1013904223;
        s[i] = 1 + (x >> 16) % 15 * ((x >> 24) % 3) / 2; /* below 16 each length has its own bin */
        weight[i] = exp2((i - N_ANSWERS) / (double)LENGTHS_HALF_LIFE);
        note(l, &plain, s[i], 1);
    }
    uint32_t class = lengths_class(l, &plain);
    for (uint32_t a = 0; a < 14; a++)
        for (int p = 0; p < 40; p += 13)
            for (int normalized = 0; normalized < 2; normalized++) {
                double want = naive_rank(s, weight, N_ANSWERS, a, p, normalized);
                double got =
                    lengths_rank(l, class, a, p, normalized ? OBJECTIVE_NORMALIZED : OBJECTIVE_E2E);
                assert_true(fabs(got - want) < 0.02 * want);
            }
    lengths_destroy(l);
}

static void with_equal_lengths_the_answer_that_began_goes_first(void **state)
{
    struct lengths *l = make();

    (void)state;
    note(l, &plain, 200, 2000);
    uint32_t class = lengths_class(l, &plain);
    double before = lengths_rank(l, class, 0, 0, OBJECTIVE_E2E);
    for (uint32_t n = 10; n < 190; n += 10) {
        double now = lengths_rank(l, class, n, 0, OBJECTIVE_E2E);
        assert_true(now <= before);
        before = now;
    }
    assert_true(before < 0.2 * lengths_rank(l, class, 0, 0, OBJECTIVE_E2E));
    lengths_destroy(l);
}

static void with_heavy_tails_new_answers_go_first(void **state)
{
    struct lengths *l = make();

    (void)state;
    for (uint32_t i = 0; i < 4000; i++) /* twice the length, half as many answers that reach it */
        note(l, &plain, 8 * 4000 / (1 + i * 1237 % 4000), 1);
    uint32_t class = lengths_class(l, &plain);
    double before = 0;
    for (uint32_t n = 0; n < 1024; n = n ? 2 * n : 16) {
        double now = lengths_rank(l, class, n, 0, OBJECTIVE_NORMALIZED);
        assert_true(now > before);
        before = now;
    }
    lengths_destroy(l);
}

static void ranks_change_only_between_steps(void **state)
{
    struct lengths *l = make();

    (void)state;
    for (uint32_t n = 1; n < 3000; n += 7)
        note(l, &plain, n, 1);
    uint32_t class = lengths_class(l, &plain);
    for (uint32_t n = 0; n < 4000; n++)
        if (lengths_step(n) == lengths_step(n + 1))
            assert_true(lengths_rank(l, class, n, 0, OBJECTIVE_NORMALIZED) ==
                        lengths_rank(l, class, n + 1, 0, OBJECTIVE_NORMALIZED));
        else
            assert_int_equal(lengths_step(n + 1), lengths_step(n) + 1);
    assert_true(lengths_rank(l, class, UINT32_MAX - 1, 0, OBJECTIVE_E2E) >= 1);
    lengths_destroy(l);
}

/* --- what is learned --- */

static void means_and_quantiles_are_those_of_the_answers(void **state)
{
    struct lengths *l = make();

    (void)state;
    for (int i = 0; i < 3000; i++)
        note(l, &plain, i % 2 ? 10 : 100, 1);
    uint32_t class = lengths_class(l, &plain);
    assert_true(fabs(lengths_mean_left(l, class, 0) - 55) < 3);
    assert_true(fabs(lengths_mean_left(l, class, 10) - 90) < 5);
    assert_true(fabs(lengths_quantile_left(l, class, 0, 0.4) - 10) < 1);
    assert_true(fabs(lengths_quantile_left(l, class, 0, 0.9) - 100) < 8);
    assert_true(lengths_mean_left(l, class, 1000000) >= 1);
    lengths_destroy(l);
}

static void a_change_of_lengths_is_followed_within_a_few_hundred_answers(void **state)
{
    struct lengths *l = make();

    (void)state;
    note(l, &plain, 1000, 5000);
    note(l, &plain, 50, 2 * LENGTHS_HALF_LIFE);
    uint32_t class = lengths_class(l, &plain);
    assert_true(lengths_mean_left(l, class, 0) < 350);
    assert_true(lengths_quantile_left(l, class, 0, 0.5) < 60);
    lengths_destroy(l);
}

static void a_young_class_answers_as_its_parent_does(void **state)
{
    struct length_traits other = plain;
    struct lengths *l = make();

    (void)state;
    other.tenant = 2;
    note(l, &plain, 64, 1000);
    uint32_t class = lengths_enter(l, &other);
    assert_true(fabs(lengths_mean_left(l, class, 0) - 64) < 6);
    for (int i = 0; i < 10 * LENGTHS_LEAN; i++)
        lengths_note(l, class, 1024);
    assert_true(lengths_mean_left(l, class, 0) > 800);
    assert_true(lengths_mean_left(l, lengths_class(l, &plain), 0) < 200);
    lengths_leave(l, class);
    lengths_destroy(l);
}

/* All these prompts are in one band of two octaves; those of 150 and 170 tokens are in one class of
 * a quarter of an octave. */
static void prompts_of_a_quarter_octave_are_learned_apart(void **state)
{
    static const uint32_t lengths[] = {150, 170, 190, 400, 500};
    struct length_traits t[ARRAY_SIZE(lengths)];
    uint32_t class[ARRAY_SIZE(lengths)];
    struct lengths *l = make();

    (void)state;
    for (uint32_t i = 0; i < ARRAY_SIZE(lengths); i++)
        t[i] = (struct length_traits){.tenant = 1, .n_prompt = lengths[i]};
    note(l, &t[0], 10, 1000);
    note(l, &t[4], 1000, 1000);
    note(l, &t[0], 10, 1000);
    for (uint32_t i = 0; i < ARRAY_SIZE(lengths); i++)
        class[i] = lengths_enter(l, &t[i]);
    assert_int_equal(class[0], class[1]);
    for (uint32_t i = 2; i < ARRAY_SIZE(lengths); i++)
        assert_true(class[i] != class[i - 1]);
    double usual = lengths_mean_left(l, class[3], 0);
    assert_true(lengths_mean_left(l, class[1], 0) < 20);
    assert_true(lengths_mean_left(l, class[4], 0) > 800);
    assert_true(usual > 30 && usual < 700); /* no answer yet: that of the band */
    assert_true(lengths_mean_left(l, class[2], 0) == usual);
    for (uint32_t i = 0; i < ARRAY_SIZE(lengths); i++)
        lengths_leave(l, class[i]);
    lengths_destroy(l);
}

static void programs_and_calls_are_learned_apart(void **state)
{
    struct length_traits program = plain;
    struct lengths *l = make();

    (void)state;
    program.kind = LENGTH_PROGRAM;
    note(l, &plain, 10, 1000);
    note(l, &program, 5000, 1000);
    assert_true(lengths_mean_left(l, lengths_class(l, &plain), 0) < 12);
    assert_true(lengths_mean_left(l, lengths_class(l, &program), 0) > 4000);
    lengths_destroy(l);
}

/* More tenants than classes: unused classes are used again, and with all in use the parent answers,
 * so that no answer is lost. */
static void any_number_of_tenants_is_served(void **state)
{
    static uint32_t held[2 * LENGTHS_N_CLASSES_MAX];
    struct lengths *l = make();

    (void)state;
    for (uint64_t tenant = 0; tenant < 5000; tenant++) {
        struct length_traits t = {.tenant = tenant, .n_prompt = 10};
        note(l, &t, 32, 1);
    }
    for (uint64_t i = 0; i < ARRAY_SIZE(held); i++)
        held[i] = lengths_enter(l, &(struct length_traits){.tenant = 1 << 20 | i, .n_prompt = 10});
    for (uint64_t i = 0; i < ARRAY_SIZE(held); i++) {
        assert_true(fabs(lengths_mean_left(l, held[i], 0) - 32) < 3);
        lengths_note(l, held[i], 32);
        lengths_leave(l, held[i]);
    }
    assert_int_equal(lengths_n_noted(l), 5000 + ARRAY_SIZE(held));
    lengths_destroy(l);
}

/* --- file --- */

static const uint8_t model[32] = {1, 2, 3}, other_model[32] = {1, 2, 4};

static void a_file_gives_back_what_was_learned(void **state)
{
    struct length_traits limited = plain;
    struct lengths *l = make(), *copy = make();
    char dir[] = "/tmp/tarn-lengths-XXXXXX", path[64];
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    limited.has_limit = true;
    limited.n_out_max = 256;
    note(l, &plain, 100, 500);
    note(l, &limited, 250, 500);
    assert_non_null(mkdtemp(dir));
    assert_ok(lengths_save(l, dir, model, &why));
    assert_int_equal(lengths_load(copy, dir, other_model, &why), ERR_NOT_FOUND);
    assert_ok(lengths_load(copy, dir, model, &why));
    assert_true(fabs(lengths_mean_left(copy, lengths_class(copy, &plain), 0) -
                     lengths_mean_left(l, lengths_class(l, &plain), 0)) < 15);
    assert_true(fabs(lengths_mean_left(copy, lengths_class(copy, &limited), 0) - 250) < 20);
    snprintf(path, sizeof path, "%s/lengths-0102030000000000.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* nothing else was left */
    lengths_destroy(l);
    lengths_destroy(copy);
    buf_fini(&why);
}

static void a_wrong_file_is_refused_and_changes_nothing(void **state)
{
#define HEAD                                                                                       \
    "{\"format\":1,\"model\":"                                                                     \
    "\"0102030000000000000000000000000000000000000000000000000000000000\","
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        HEAD "\"classes\":3}",
        HEAD "\"classes\":[3]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[[0,-1]]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[[100000,1]]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[[-1,1]]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[[0,1e300]]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"counts\":[[0,\"1\"]]}]}",
        HEAD "\"classes\":[{\"programs\":7,\"counts\":[[0,1]]}]}",
        HEAD "\"classes\":[{\"programs\":false,\"band\":99,\"counts\":[[0,1]]}]}",
        "{\"format\":2,\"model\":\"\",\"classes\":[]}",
    };
    struct lengths *l = make();
    struct buf why;

    (void)state;
    note(l, &plain, 77, 1000);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        buf_init(&why, BUF_WHY_MAX);
        assert_true(lengths_read(l, wrong[i], strlen(wrong[i]), model, &why) != OK);
        assert_true(why.len > 0);
        buf_fini(&why);
    }
    assert_true(fabs(lengths_mean_left(l, lengths_class(l, &plain), 0) - 77) < 5);
    lengths_destroy(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_the_gittins_index),
        cmocka_unit_test(with_equal_lengths_the_answer_that_began_goes_first),
        cmocka_unit_test(with_heavy_tails_new_answers_go_first),
        cmocka_unit_test(ranks_change_only_between_steps),
        cmocka_unit_test(means_and_quantiles_are_those_of_the_answers),
        cmocka_unit_test(a_change_of_lengths_is_followed_within_a_few_hundred_answers),
        cmocka_unit_test(a_young_class_answers_as_its_parent_does),
        cmocka_unit_test(prompts_of_a_quarter_octave_are_learned_apart),
        cmocka_unit_test(programs_and_calls_are_learned_apart),
        cmocka_unit_test(any_number_of_tenants_is_served),
        cmocka_unit_test(a_file_gives_back_what_was_learned),
        cmocka_unit_test(a_wrong_file_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
