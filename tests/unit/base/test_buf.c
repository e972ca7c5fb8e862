#include "tests/unit/test.h"

#include <string.h>

#include "base/arena.h"
#include "base/buf.h"

static void buf_never_passes_its_maximum(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 10);
    assert_ok(buf_append(&b, "0123456789", 10));
    assert_int_equal(buf_putc(&b, 'x'), ERR_TOO_LARGE);
    assert_int_equal(buf_printf(&b, "%d", 5), ERR_TOO_LARGE);
    assert_int_equal(b.len, 10);
    assert_string_equal(b.data, "0123456789");
    buf_fini(&b);
}

static void buf_is_always_terminated(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 300; i++) {
        assert_ok(buf_putc(&b, 'a'));
        assert_int_equal(strlen(b.data), b.len);
    }
    assert_ok(buf_printf(&b, "%s-%d", "z", 7));
    assert_int_equal(strlen(b.data), b.len);
    buf_fini(&b);
}

static void consume_keeps_the_rest(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 100);
    assert_ok(buf_puts(&b, "hello world"));
    buf_consume(&b, 6);
    assert_string_equal(b.data, "world");
    buf_consume(&b, 5);
    assert_string_equal(b.data, "");
    buf_fini(&b);
}

static void why_replaces_and_cuts(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 8);
    assert_int_equal(buf_why(&b, ERR_IO, "first"), ERR_IO);
    assert_int_equal(buf_why(&b, ERR_NOMEM, "%s", "a longer text"), ERR_NOMEM);
    assert_string_equal(b.data, "a longer");
    assert_int_equal(buf_why(NULL, ERR_IO, "nobody listens"), ERR_IO);
    buf_fini(&b);
}

static void arena_memory_is_zeroed_aligned_and_bounded(void **state)
{
    struct arena a;

    (void)state;
    arena_init(&a, 100000);
    for (size_t n = 0; n < 300; n++) {
        unsigned char *p = arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, n);
    }
    assert_null(arena_alloc(&a, 100001));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_true(a.used_bytes <= a.max_bytes);
    arena_reset(&a);
    assert_string_equal(arena_dup(&a, "text and more", 4), "text");
    arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_never_passes_its_maximum),
        cmocka_unit_test(buf_is_always_terminated),
        cmocka_unit_test(consume_keeps_the_rest),
        cmocka_unit_test(why_replaces_and_cuts),
        cmocka_unit_test(arena_memory_is_zeroed_aligned_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
