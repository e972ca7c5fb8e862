/* The treap of slots against an array that is searched from end to end. */
#include "tests/unit/test.h"

#include <stdbool.h>

#include "base/rng.h"
#include "engine/sched/order.h"
#include "tests/unit/fault.h"

#define N_SLOTS 60
#define N_EVENTS 60000

static struct order_key keys[N_SLOTS];
static bool is_in[N_SLOTS];

static bool before(uint32_t a, uint32_t b)
{
    const struct order_key *x = &keys[a], *y = &keys[b];

    if (x->high != y->high)
        return x->high < y->high;
    if (x->middle != y->middle)
        return x->middle < y->middle;
    return x->low != y->low ? x->low < y->low : a < b;
}

/* The slot that follows `after`, or the first one. */
static uint32_t next_in_array(uint32_t after)
{
    uint32_t best = ORDER_NONE;

    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (is_in[i] && (after == ORDER_NONE || before(after, i)) &&
            (best == ORDER_NONE || before(i, best)))
            best = i;
    return best;
}

/* Few values, so that many keys are equal in one part or in all. */
static struct order_key random_key(uint32_t e)
{
    return (struct order_key){rng_u32(4, e) % 3 ? 1 : UINT64_MAX, rng_u32(5, e) % 4,
                              rng_u32(6, e) % 4};
}

static void expect_same(const struct order *o)
{
    uint32_t n = 0, slot = order_first(o);

    order_check(o);
    for (uint32_t want = next_in_array(ORDER_NONE); want != ORDER_NONE;
         want = next_in_array(want), slot = order_next(o, slot), n++)
        assert_int_equal(slot, want);
    assert_int_equal(slot, ORDER_NONE);
    assert_int_equal(o->n, n);
}

/* Whether a walk meets other slots before or behind this one than it would with `key`. */
static bool would_stay(uint32_t slot, struct order_key key)
{
    struct order_key old = keys[slot];
    bool stays = true;

    for (uint32_t i = 0; i < N_SLOTS; i++) {
        if (!is_in[i] || i == slot)
            continue;
        bool was = before(i, slot);
        keys[slot] = key;
        stays &= before(i, slot) == was;
        keys[slot] = old;
    }
    return stays;
}

static void a_random_set_is_walked_as_an_array_is(void **state)
{
    struct order o;

    (void)state;
    assert_ok(order_init(&o, N_SLOTS));
    expect_same(&o);
    for (uint32_t e = 0; e < N_EVENTS; e++) {
        uint32_t slot = rng_u32(1, e) % N_SLOTS;
        struct order_key key = random_key(e);
        if (!is_in[slot]) {
            is_in[slot] = true;
            keys[slot] = key;
            order_insert(&o, slot, key);
        } else if (rng_u32(2, e) % 3 == 0) {
            order_remove(&o, slot);
            is_in[slot] = false;
        } else {
            bool stays = would_stay(slot, key);
            keys[slot] = key;
            if (!order_move(&o, slot, key))
                assert_true(stays);
        }
        if (is_in[slot]) {
            struct order_key got = order_key_of(&o, slot);
            assert_true(got.high == keys[slot].high && got.middle == keys[slot].middle &&
                        got.low == keys[slot].low);
        }
        if (e % 64 == 0)
            expect_same(&o);
    }
    for (uint32_t a = 0; a < N_SLOTS; a++)
        for (uint32_t b = 0; b < N_SLOTS; b++)
            if (is_in[a] && is_in[b] && a != b)
                assert_int_equal(order_before(&o, a, b), before(a, b));
    order_fini(&o);
}

static void equal_keys_go_by_slot(void **state)
{
    static const uint32_t slots[] = {3, 0, 4, 1, 2};
    struct order o;

    (void)state;
    assert_ok(order_init(&o, 5));
    for (int i = 0; i < 5; i++)
        order_insert(&o, slots[i], (struct order_key){7, 7, 7});
    uint32_t slot = order_first(&o);
    for (uint32_t i = 0; i < 5; i++, slot = order_next(&o, slot))
        assert_int_equal(slot, i);
    assert_false(order_move(&o, 2, (struct order_key){7, 7, 7}));
    order_fini(&o);
}

static void a_zeroed_set_can_be_freed_and_no_memory_is_said(void **state)
{
    struct order o = {0};

    (void)state;
    order_fini(&o);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    fail_in = 1;
    assert_int_equal(order_init(&o, 5), ERR_NOMEM);
    fail_in = 0;
    order_fini(&o);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_set_is_walked_as_an_array_is),
        cmocka_unit_test(equal_keys_go_by_slot),
        cmocka_unit_test(a_zeroed_set_can_be_freed_and_no_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
