/* Blocks that another instance is about to compute: awaited, promised, and looked for again. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS

/* Wait until the sequence waits for nothing: it is then going to compute its blocks. */
static void begin_to_compute(struct cache *c, struct open_seq *o, const char *text)
{
    seq(c, o, text);
    (void)wait_loaded(c, o->s);
}

/* `second` of b waits for n steps, then finds what `first` of a computes; both are closed. */
static void assert_awaited(struct cache *a, struct open_seq *first, struct cache *b,
                           struct open_seq *second, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)cache_seq_load(second->s, true);
        assert_true(cache_seq_is_loading(second->s));
        step_all();
    }
    assert_int_equal(compute_kv(a, first, NULL), 0);
    (void)wait_loaded(b, second->s);
    assert_int_equal(compute_kv(b, second, NULL), 4 * B);
    cache_seq_close(first->s);
    cache_seq_close(second->s);
}

static void what_another_instance_is_about_to_compute_is_awaited(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq first, second;

    (void)state;
    begin_to_compute(a, &first, "ABCD");
    seq(b, &second, "ABCDEF");
    assert_awaited(a, &first, b, &second, 10);
}

static void a_promise_that_is_not_kept_ends_the_wait(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq first, second;

    (void)state;
    begin_to_compute(a, &first, "ABCD");
    seq(b, &second, "ABCDEF");
    (void)cache_seq_load(second.s, true);
    pass_ms(3);
    cache_seq_close(first.s); /* cancelled */
    assert_true(wait_loaded(b, second.s) <= 5);
    assert_int_equal(compute_kv(b, &second, NULL), 0);
    cache_seq_close(second.s);
}

static void a_promise_is_awaited_for_a_bounded_time(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq first, second;

    (void)state;
    begin_to_compute(a, &first, "ABCD"); /* and never runs */
    seq(b, &second, "ABCDEF");
    assert_in_range(wait_loaded(b, second.s), 20, 60); /* the fake's asks wait for 50 ms */
    assert_int_equal(compute_kv(b, &second, NULL), 0);
    cache_seq_close(first.s);
    cache_seq_close(second.s);
}

/* Computing everything takes 0.26 ms, and the request runs in 30 ms in any case. */
static void a_promise_is_awaited_while_the_request_waits_in_any_case(void **state)
{
    static const double fast = 1e-6;
    struct cache_config config = pool_config_of(32, 0, false);
    struct cache *a = join(32, 0), *b;
    struct open_seq first, second;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &fast;
    b = join_with(&config);
    pass_ms(1);
    begin_to_compute(a, &first, "ABCD");
    seq(b, &second, "ABCDEF");
    cache_seq_expect(second.s, fake_now + 30000000);
    assert_awaited(a, &first, b, &second, 20);
}

static void what_was_computed_elsewhere_since_the_answer_is_found(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq o;

    (void)state;
    begin_to_compute(b, &o, "ABCDEF"); /* nobody has it, and it waits for its turn */
    ask(a, "ABCD");
    cache_seq_look_again(o.s);
    assert_true(cache_seq_is_loading(o.s));
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
    cache_seq_close(o.s);
}

/* The time for which a lookup waits for blocks says nothing about the next one. */
static void an_awaited_lookup_does_not_make_lookups_look_slow(void **state)
{
    struct cache_config config = pool_config_of(32, 0, false);
    double s_per_token = 10e-3 / (4 * B);
    struct open_seq first, second;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &s_per_token;
    struct cache *a = join_with(&config), *b = join_with(&config);
    fake_of(b)->ask_ns = 1000 * STEP_NS;
    begin_to_compute(a, &first, "ABCD");
    seq(b, &second, "ABCDEF");
    cache_seq_expect(second.s, fake_now + 200 * STEP_NS);
    assert_awaited(a, &first, b, &second, 100);
    ask(a, "WXYZ");
    assert_int_equal(ask(b, "WXYZ"), 4 * B);
}

static void a_request_that_waits_long_asks_seldom(void **state)
{
    struct cache *b = join(32, 0);
    struct open_seq o;

    (void)state;
    (void)join(32, 0);
    begin_to_compute(b, &o, "ABCDEF");
    for (uint32_t ms = 0; ms < 1000; ms++) {
        cache_seq_look_again(o.s);
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    assert_in_range(fake_of(b)->n_lookups, 4, 14);
    cache_seq_close(o.s);
}

/* `first` has promised its blocks in a, which `second` waits for in b. Then `first` looks again,
 * and gets no answer yet. */
static void look_again_while_awaited(struct cache *a, struct open_seq *first, struct cache *b,
                                     struct open_seq *second)
{
    begin_to_compute(a, first, "ABCD");
    seq(b, second, "ABCDEF");
    (void)cache_seq_load(second->s, true);
    pass_ms(5);
    assert_true(cache_seq_is_loading(second->s));
    fake_of(a)->holds_back = true;
    cache_seq_look_again(first->s);
    (void)cache_seq_load(first->s, true);
    assert_true(cache_seq_is_loading(first->s));
}

static void who_looks_again_promises_nothing_to_a_smaller_id(void **state)
{
    struct cache *b = join(32, 0), *a = join(32, 0);
    struct open_seq first, second;

    (void)state;
    look_again_while_awaited(a, &first, b, &second);
    assert_true(wait_loaded(b, second.s) <= 5);
    fake_of(a)->holds_back = false;
    (void)wait_loaded(a, first.s); /* it waits for the second one now, for a bounded time */
    cache_seq_close(first.s);
    cache_seq_close(second.s);
}

static void a_larger_id_waits_for_who_looks_again(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq first, second;

    (void)state;
    look_again_while_awaited(a, &first, b, &second);
    for (int i = 0; i < 10; i++) {
        step_all();
        (void)cache_seq_load(second.s, true);
        assert_true(cache_seq_is_loading(second.s));
    }
    fake_of(a)->holds_back = false;
    (void)wait_loaded(a, first.s);
    assert_int_equal(compute_kv(a, &first, NULL), 0);
    cache_seq_close(first.s);
    (void)wait_loaded(b, second.s);
    assert_int_equal(compute_kv(b, &second, NULL), 4 * B);
    cache_seq_close(second.s);
}

/* Two requests have promised the same blocks, and both look again: one request computes the
 * blocks, and the other one finds them. */
static void of_two_that_look_again_one_computes(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq x, y;

    (void)state;
    fake_of(a)->holds_back = fake_of(b)->holds_back = true; /* neither hears of the other */
    seq(a, &x, "ABCD");
    seq(b, &y, "ABCD");
    (void)cache_seq_load(x.s, true);
    (void)cache_seq_load(y.s, true);
    pass_ms(1);
    for (uint32_t i = 0; i < 2; i++)
        fakes[i].tickets[0].is_over = true;
    fake_of(a)->holds_back = fake_of(b)->holds_back = false;
    (void)wait_loaded(a, x.s);
    (void)wait_loaded(b, y.s);
    pass_ms(5);
    cache_seq_look_again(x.s);
    cache_seq_look_again(y.s);
    (void)cache_seq_load(x.s, true);
    (void)cache_seq_load(y.s, true);
    assert_true(cache_seq_is_loading(x.s) && cache_seq_is_loading(y.s));
    assert_true(wait_loaded(a, x.s) <= 10);
    (void)cache_seq_load(y.s, true);
    assert_true(cache_seq_is_loading(y.s));
    assert_int_equal(compute_kv(a, &x, NULL), 0);
    cache_seq_close(x.s);
    (void)wait_loaded(b, y.s);
    assert_int_equal(compute_kv(b, &y, NULL), 4 * B);
    cache_seq_close(y.s);
}

static void two_that_ask_each_other_do_not_wait_for_each_other(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);
    struct open_seq x, y;

    (void)state;
    seq(a, &x, "ABCD");
    seq(b, &y, "ABCD");
    (void)cache_seq_load(x.s, true);
    (void)cache_seq_load(y.s, true);
    assert_true(wait_loaded(a, x.s) <= 10);
    assert_true(wait_loaded(b, y.s) <= 10);
    cache_seq_close(x.s);
    cache_seq_close(y.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_another_instance_is_about_to_compute_is_awaited,
                                  leave_world),
        cmocka_unit_test_teardown(a_promise_that_is_not_kept_ends_the_wait, leave_world),
        cmocka_unit_test_teardown(a_promise_is_awaited_for_a_bounded_time, leave_world),
        cmocka_unit_test_teardown(a_promise_is_awaited_while_the_request_waits_in_any_case,
                                  leave_world),
        cmocka_unit_test_teardown(what_was_computed_elsewhere_since_the_answer_is_found,
                                  leave_world),
        cmocka_unit_test_teardown(an_awaited_lookup_does_not_make_lookups_look_slow, leave_world),
        cmocka_unit_test_teardown(a_request_that_waits_long_asks_seldom, leave_world),
        cmocka_unit_test_teardown(who_looks_again_promises_nothing_to_a_smaller_id, leave_world),
        cmocka_unit_test_teardown(a_larger_id_waits_for_who_looks_again, leave_world),
        cmocka_unit_test_teardown(of_two_that_look_again_one_computes, leave_world),
        cmocka_unit_test_teardown(two_that_ask_each_other_do_not_wait_for_each_other, leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
