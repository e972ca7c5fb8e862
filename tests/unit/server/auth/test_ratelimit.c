/* test_ratelimit.c - token buckets with a test clock. */
#include "tests/unit/test.h"

#include "base/rng.h"
#include "server/auth/ratelimit.h"

#define MS UINT64_C(1000000)
#define S (1000 * MS)
#define T0 (UINT64_C(77) * S)

static void a_full_bucket_pays_for_a_minute_and_no_more(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 60, 0, T0);
    for (int i = 0; i < 60; i++)
        assert_int_equal(bucket_take(&l.requests, 1, T0, &wait), VERDICT_YES);
    assert_int_equal(bucket_take(&l.requests, 1, T0, &wait), VERDICT_LATER);
    assert_int_equal(wait, 1);
    assert_int_equal(bucket_take(&l.requests, 1, T0 + 999 * MS, &wait), VERDICT_LATER);
    assert_int_equal(bucket_take(&l.requests, 1, T0 + S, &wait), VERDICT_YES);
    assert_int_equal(bucket_take(&l.requests, 1, T0 + S, &wait), VERDICT_LATER);
    /* After any pause the bucket holds at most one minute's limit. */
    for (int i = 0; i < 60; i++)
        assert_int_equal(bucket_take(&l.requests, 1, T0 + 9999999 * S, &wait), VERDICT_YES);
    assert_int_equal(bucket_take(&l.requests, 1, T0 + 9999999 * S, &wait), VERDICT_LATER);
}

static void waiting_as_long_as_told_is_enough(void **state)
{
    uint64_t limits[] = {1, 7, 60, 601, 1000003, RATELIMIT_PER_MINUTE_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct limiter l;
        uint64_t now = T0, wait = 0;
        limiter_init(&l, 0, limits[i], now);
        for (int k = 0; k < 500; k++) {
            uint64_t n = 1 + rng_u32(5, (uint64_t)k) % limits[i];
            enum verdict v = bucket_take(&l.tokens, n, now, &wait);
            if (v == VERDICT_LATER) {
                assert_in_range(wait, 1, 60);
                /* One second less than wait_s is too early. */
                uint64_t unused;
                struct bucket copy = l.tokens;
                if (wait > 1)
                    assert_int_equal(bucket_take(&copy, n, now + (wait - 1) * S - MS, &unused),
                                     VERDICT_LATER);
                now += wait * S;
                assert_int_equal(bucket_take(&l.tokens, n, now, &wait), VERDICT_YES);
            } else {
                assert_int_equal(v, VERDICT_YES);
            }
        }
    }
}

static void the_tokens_of_an_answer_become_a_debt(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 0, 600, T0);
    assert_int_equal(bucket_take(&l.tokens, 100, T0, &wait), VERDICT_YES);
    bucket_charge(&l.tokens, 1100, T0); /* a debt of 600, which takes a minute to fill */
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 0);
    assert_int_equal(bucket_look(&l.tokens, T0).reset_ms, 120000);
    assert_int_equal(bucket_take(&l.tokens, 10, T0, &wait), VERDICT_LATER);
    assert_int_equal(wait, 61);
    assert_int_equal(bucket_take(&l.tokens, 10, T0 + 61 * S, &wait), VERDICT_YES);
    /* Debts stay within 63 bits. */
    for (int i = 0; i < 10; i++)
        bucket_charge(&l.tokens, UINT64_MAX, T0 + 61 * S);
    assert_int_equal(bucket_take(&l.tokens, 1, T0 + 61 * S, &wait), VERDICT_LATER);
    assert_true(wait > 60);
}

static void more_than_a_minute_never_passes(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 1, 100, T0);
    assert_int_equal(bucket_take(&l.tokens, 101, T0, &wait), VERDICT_NEVER);
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 100);
    assert_int_equal(bucket_take(&l.tokens, UINT64_MAX, T0, &wait), VERDICT_NEVER);
    assert_int_equal(bucket_take(&l.tokens, 100, T0, &wait), VERDICT_YES);
}

static void no_limit_is_no_limit(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 0, 0, T0);
    assert_int_equal(bucket_take(&l.tokens, UINT64_MAX, T0, &wait), VERDICT_YES);
    bucket_charge(&l.tokens, UINT64_MAX, T0);
    assert_int_equal(bucket_take(&l.requests, 5, T0, &wait), VERDICT_YES);
    assert_int_equal(bucket_look(&l.requests, T0).limit, 0);
}

static void new_limits_keep_what_was_used(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 0, 1000, T0);
    assert_int_equal(bucket_take(&l.tokens, 400, T0, &wait), VERDICT_YES);
    limiter_set(&l, 0, 2000, T0);
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 1600);
    limiter_set(&l, 0, 100, T0);
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 0);
    limiter_set(&l, 0, 1000, T0);
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 600);
    limiter_set(&l, 0, 0, T0);
    assert_int_equal(bucket_take(&l.tokens, 99999, T0, &wait), VERDICT_YES);
    limiter_set(&l, 0, 500, T0); /* use during the time without a limit does not count */
    assert_int_equal(bucket_look(&l.tokens, T0).remaining, 500 - 400);
}

static void a_clock_that_goes_back_gives_nothing(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 2, 0, T0);
    assert_int_equal(bucket_take(&l.requests, 2, T0, &wait), VERDICT_YES);
    assert_int_equal(bucket_take(&l.requests, 1, T0 - 60 * S, &wait), VERDICT_LATER);
    assert_int_equal(bucket_take(&l.requests, 1, 0, &wait), VERDICT_LATER);
    assert_int_equal(bucket_take(&l.requests, 1, T0 + 30 * S, &wait), VERDICT_YES);
}

/* Many short intervals fill exactly as much as one long interval. */
static void nothing_is_lost_to_rounding(void **state)
{
    struct limiter l;
    uint64_t wait = 0;

    (void)state;
    limiter_init(&l, 0, 7, T0);
    assert_int_equal(bucket_take(&l.tokens, 7, T0, &wait), VERDICT_YES);
    for (uint64_t t = 0; t < 60 * S; t += 333333)
        (void)bucket_look(&l.tokens, T0 + t);
    assert_int_equal(bucket_look(&l.tokens, T0 + 60 * S).remaining, 7);
    assert_int_equal(bucket_look(&l.tokens, T0 + 60 * S).reset_ms, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_bucket_pays_for_a_minute_and_no_more),
        cmocka_unit_test(waiting_as_long_as_told_is_enough),
        cmocka_unit_test(the_tokens_of_an_answer_become_a_debt),
        cmocka_unit_test(more_than_a_minute_never_passes),
        cmocka_unit_test(no_limit_is_no_limit),
        cmocka_unit_test(new_limits_keep_what_was_used),
        cmocka_unit_test(a_clock_that_goes_back_gives_nothing),
        cmocka_unit_test(nothing_is_lost_to_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
