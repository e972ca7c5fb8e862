#include "tests/unit/loadgen/loadgen_test.h"

#define N 100000

/* Mean and coefficient of variation of the gaps. */
static void gaps(const struct arrival_config *c, double *mean, double *cv)
{
    double last = 0, sum = 0, squares = 0;
    struct arrival a;

    arrival_init(&a, c, 11);
    for (int i = 0; i < N; i++) {
        double t = arrival_next_s(&a);
        assert_true(t >= last);
        sum += t - last;
        squares += (t - last) * (t - last);
        last = t;
    }
    *mean = sum / N;
    *cv = sqrt(squares / N - *mean * *mean) / *mean;
}

static void gaps_have_the_rate_and_the_burstiness(void **state)
{
    double mean, cv;

    (void)state;
    for (int i = 0; i < 3; i++) {
        double burstiness = (const double[]){1, 0.25, 4}[i];
        struct arrival_config c = {.kind = ARRIVAL_GAMMA, .rate = 50, .burstiness = burstiness};
        gaps(&c, &mean, &cv);
        assert_near(mean, 0.02, 0.0007);
        assert_near(cv, 1 / sqrt(burstiness), 0.05);
    }
}

static void constant_is_even(void **state)
{
    struct arrival_config c = {.kind = ARRIVAL_CONSTANT, .rate = 4, .burstiness = 1};
    struct arrival a;

    (void)state;
    arrival_init(&a, &c, 1);
    for (int i = 0; i < 9; i++)
        assert_near(arrival_next_s(&a), i * 0.25, 1e-12);
}

static void closed_and_at_once_have_no_times(void **state)
{
    struct arrival_config c = {.kind = ARRIVAL_CLOSED};
    struct arrival a;

    (void)state;
    arrival_init(&a, &c, 1);
    assert_near(arrival_next_s(&a), 0, 0);
    c.kind = ARRIVAL_AT_ONCE;
    arrival_init(&a, &c, 1);
    assert_near(arrival_next_s(&a), 0, 0);
    assert_near(arrival_next_s(&a), 0, 0);
}

/* In each tenth of the ramp the share of arrivals is the integral of the rate there. */
static void count_ramp(bool exponential)
{
    struct arrival_config c = {.kind = ARRIVAL_GAMMA,
                               .burstiness = 1,
                               .ramp = true,
                               .ramp_exponential = exponential,
                               .ramp_start = 100,
                               .ramp_end = 1000,
                               .ramp_s = 100};
    int counts[11] = {0};
    struct arrival a;
    double t;

    arrival_init(&a, &c, 3);
    while ((t = arrival_next_s(&a)) < 110)
        counts[(int)(t / 10)]++;
    for (int i = 0; i < 11; i++) {
        double from = i * 0.1, to = from + 0.1, expected;
        if (i == 10)
            expected = 10000;
        else if (exponential)
            expected = 100 * 100 / log(10) * (pow(10, to) - pow(10, from));
        else
            expected = 100 * (100 * (to - from) + 900 * (to * to - from * from) / 2);
        assert_near(counts[i], expected, 5 * sqrt(expected));
    }
}

static void ramps_follow_their_rate(void **state)
{
    (void)state;
    count_ramp(false);
    count_ramp(true);
}

static void one_seed_one_schedule(void **state)
{
    struct arrival_config c = {.kind = ARRIVAL_GAMMA, .rate = 5, .burstiness = 0.7};
    struct arrival a, b, other;
    int n_equal = 0;

    (void)state;
    arrival_init(&a, &c, 1);
    arrival_init(&b, &c, 1);
    arrival_init(&other, &c, 2);
    for (int i = 0; i < 100; i++) {
        double t = arrival_next_s(&a);
        assert_true(t == arrival_next_s(&b));
        n_equal += t == arrival_next_s(&other);
    }
    assert_int_equal(n_equal, 0);
}

static void nonsense_is_refused(void **state)
{
    const struct arrival_config wrong[] = {
        {.kind = ARRIVAL_GAMMA, .rate = 0, .burstiness = 1},
        {.kind = ARRIVAL_GAMMA, .rate = -3, .burstiness = 1},
        {.kind = ARRIVAL_GAMMA, .rate = NAN, .burstiness = 1},
        {.kind = ARRIVAL_GAMMA, .rate = 5, .burstiness = 0},
        {.kind = ARRIVAL_GAMMA,
         .burstiness = 1,
         .ramp = true,
         .ramp_start = 1,
         .ramp_end = 0,
         .ramp_s = 5},
        {.kind = ARRIVAL_GAMMA, .burstiness = 1, .ramp = true, .ramp_start = 1, .ramp_end = 2},
        {.kind = ARRIVAL_CLOSED, .ramp = true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(arrival_check(&wrong[i], NULL), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_have_the_rate_and_the_burstiness),
        cmocka_unit_test(constant_is_even),
        cmocka_unit_test(closed_and_at_once_have_no_times),
        cmocka_unit_test(ramps_follow_their_rate),
        cmocka_unit_test(one_seed_one_schedule),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
