/* The table of u64 -> u32 against an array that is searched from end to end. */
#include "tests/unit/test.h"

#include <stdbool.h>

#include "base/map.h"
#include "base/rng.h"
#include "tests/unit/fault.h"

#define N_MAX 100
#define N_KEYS 160 /* more than fit at once */
#define N_EVENTS 200000

/* Keys that differ in their high bits only, in their low ones only, and the two extremes. */
static uint64_t key_of(uint32_t i)
{
    return i == 0 ? 0 : i == 1 ? UINT64_MAX : i % 2 ? (uint64_t)i << 48 : (uint64_t)i;
}

static void a_random_table_equals_an_array(void **state)
{
    bool there[N_KEYS] = {false};
    uint32_t values[N_KEYS], n = 0, value;
    struct map m;

    (void)state;
    assert_ok(map_init(&m, N_MAX));
    for (uint32_t e = 0; e < N_EVENTS; e++) {
        uint32_t i = rng_u32(1, e) % N_KEYS;
        bool puts = rng_u32(2, e) % 2;
        if (puts && (there[i] || n < N_MAX)) {
            n += !there[i];
            there[i] = true;
            values[i] = e;
            map_put(&m, key_of(i), e);
        } else if (!puts) {
            assert_int_equal(map_remove(&m, key_of(i)), there[i]);
            n -= there[i];
            there[i] = false;
        }
        assert_int_equal(m.n, n);
        uint32_t asked = rng_u32(3, e) % N_KEYS;
        map_prefetch(&m, key_of(asked));
        assert_int_equal(map_get(&m, key_of(asked), &value), there[asked]);
        if (there[asked])
            assert_int_equal(value, values[asked]);
    }
    map_fini(&m);
}

static void a_full_table_holds_every_pair(void **state)
{
    uint32_t value;
    struct map m;

    (void)state;
    assert_ok(map_init(&m, N_MAX));
    for (uint32_t i = 0; i < N_MAX; i++)
        map_put(&m, key_of(i), i);
    for (uint32_t i = 0; i < N_MAX; i++) {
        assert_true(map_get(&m, key_of(i), &value));
        assert_int_equal(value, i);
    }
    assert_false(map_get(&m, key_of(N_MAX), &value));
    /* Removing from the middle of a run of slots leaves the rest of the run reachable. */
    for (uint32_t i = 0; i < N_MAX; i += 2)
        assert_true(map_remove(&m, key_of(i)));
    for (uint32_t i = 0; i < N_MAX; i++)
        assert_int_equal(map_get(&m, key_of(i), &value), i % 2);
    map_fini(&m);
}

static void without_memory_init_says_so(void **state)
{
    struct map m;

    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    fail_in = 1;
    assert_int_equal(map_init(&m, N_MAX), ERR_NOMEM);
    fail_in = 0;
#endif
    assert_ok(map_init(&m, 1));
    map_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_table_equals_an_array),
        cmocka_unit_test(a_full_table_holds_every_pair),
        cmocka_unit_test(without_memory_init_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
