/* test_arena.c - memory of an arena is aligned, zeroed, disjoint, and within the maximum. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "tests/unit/fault.h"

#define N_PIECES 500
#define MAX_BYTES (4u << 20)

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    static unsigned char *pieces[N_PIECES];
    static size_t sizes[N_PIECES];
    struct arena a;

    (void)state;
    arena_init(&a, MAX_BYTES);
    for (uint32_t i = 0; i < N_PIECES; i++) {
        sizes[i] = rng_u32(1, i) % (i % 50 == 49 ? 100000 : 300); /* 0 too */
        pieces[i] = arena_alloc(&a, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], (int)(i % 255 + 1), sizes[i]);
    }
    for (uint32_t i = 0; i < N_PIECES; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(pieces[i][k], i % 255 + 1);
    arena_fini(&a);
}

static void the_maximum_is_never_passed(void **state)
{
    struct arena a;
    size_t n = 0;

    (void)state;
    arena_init(&a, 100000);
    assert_null(arena_alloc(&a, 100001));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 8));
    while (arena_alloc(&a, 1000))
        n++;
    assert_true(n >= 10 && n <= 100);
    assert_true(a.used_bytes <= 100000);
    arena_reset(&a); /* gives all of it back */
    assert_int_equal(a.used_bytes, 0);
    for (size_t i = 0; i < n; i++)
        assert_non_null(arena_alloc(&a, 1000));
    arena_fini(&a);
}

static void copies_end_with_a_nul(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, MAX_BYTES);
    char *s = arena_dup(&a, "abc\0def", 7);
    assert_memory_equal(s, "abc\0def", 8);
    assert_string_equal(arena_dup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_dup(&a, "", 0), "");
    arena_fini(&a);
}

static void without_memory_it_answers_null_and_goes_on(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, MAX_BYTES);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    fail_in = 1;
    assert_null(arena_alloc(&a, 10));
    assert_int_equal(fail_in, 0);
    assert_int_equal(a.used_bytes, 0);
#endif
    assert_non_null(arena_alloc(&a, 10));
    arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(the_maximum_is_never_passed),
        cmocka_unit_test(copies_end_with_a_nul),
        cmocka_unit_test(without_memory_it_answers_null_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
