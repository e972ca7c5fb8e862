#include "tests/unit/test.h"

#include <string.h>

#include "base/check.h"
#include "base/flags.h"

static void sizes_are_powers_of_1024(void **state)
{
    static const char *const bad[] = {"", "K", "-1", "1.5G", "1KB", "99999999999G", "0x10", " 1"};
    uint64_t n;

    (void)state;
    assert_ok(flag_parse_size("0", &n));
    assert_int_equal(n, 0);
    assert_ok(flag_parse_size("3", &n));
    assert_int_equal(n, 3);
    assert_ok(flag_parse_size("2K", &n));
    assert_int_equal(n, 2048);
    assert_ok(flag_parse_size("5m", &n));
    assert_int_equal(n, 5u << 20);
    assert_ok(flag_parse_size("8G", &n));
    assert_int_equal(n, UINT64_C(8) << 30);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(flag_parse_size(bad[i], &n), ERR_INVALID);
}

static void a_wrong_number_is_refused_with_words(void **state)
{
    uint64_t n = 7;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(flag_parse(FLAG_COUNT, "--n", "2K", 0, 9, &n, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "--n: expected a whole number, got \"2K\"");
    assert_int_equal(flag_parse(FLAG_SIZE, "--n", "x", 0, 9, &n, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "--n: expected a size such as 512M or 2G, got \"x\"");
    assert_int_equal(flag_parse(FLAG_SIZE, "--n", "2K", 0, 9, &n, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "--n: 2K is outside of [0, 9]");
    assert_int_equal(n, 7);
    assert_ok(flag_parse(FLAG_COUNT, "--n", "9", 0, 9, &n, &why));
    assert_int_equal(n, 9);
    buf_fini(&why);
}

static void the_nearest_word_is_a_slip_away(void **state)
{
    static const char *const words[] = {"port", "host", "model"};
    char longer[FLAG_NAME_BYTES_MAX + 2];

    (void)state;
    assert_string_equal(flag_nearest("modle", words, 3), "model");
    assert_string_equal(flag_nearest("post", words, 3), "port"); /* the first of two as near */
    assert_null(flag_nearest("zzzz", words, 3));
    assert_null(flag_nearest("", words, 3));
    memset(longer, 'p', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_null(flag_nearest(longer, words, 3));
}

static void items_of_a_list_lose_the_space_around_them(void **state)
{
    static const char *const expected[] = {"a", "b c", "", "d", ""};
    const char *list = " a ,b c,\t,d\n,", *item;
    size_t len, n = 0;

    (void)state;
    while (flag_list_next(&list, &item, &len)) {
        assert_true(n < ARRAY_SIZE(expected));
        assert_int_equal(len, strlen(expected[n]));
        assert_memory_equal(item, expected[n], len);
        n++;
    }
    assert_int_equal(n, ARRAY_SIZE(expected));
    list = "";
    assert_true(flag_list_next(&list, &item, &len));
    assert_int_equal(len, 0);
    assert_false(flag_list_next(&list, &item, &len));
}

static void a_choice_is_a_whole_word(void **state)
{
    (void)state;
    assert_true(flag_is_choice("auto|f32", "auto"));
    assert_true(flag_is_choice("auto|f32", "f32"));
    assert_false(flag_is_choice("auto|f32", "f3"));
    assert_false(flag_is_choice("auto|f32", "auto|f32"));
    assert_false(flag_is_choice("auto|f32", ""));
}

static void a_choice_has_a_place(void **state)
{
    (void)state;
    assert_int_equal(flag_choice_at("a|bc|b", "a"), 0);
    assert_int_equal(flag_choice_at("a|bc|b", "b"), 2);
}

static void a_number_is_decimal_and_finite(void **state)
{
    static const char *const bad[] = {"", "x", "1x", "nan", "inf", "0x10", "1e999", " 1"};
    double v;

    (void)state;
    assert_ok(flag_parse_number("-1.5e2", &v));
    assert_true(v == -150);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(flag_parse_number(bad[i], &v), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_powers_of_1024),
        cmocka_unit_test(a_wrong_number_is_refused_with_words),
        cmocka_unit_test(the_nearest_word_is_a_slip_away),
        cmocka_unit_test(items_of_a_list_lose_the_space_around_them),
        cmocka_unit_test(a_choice_is_a_whole_word),
        cmocka_unit_test(a_choice_has_a_place),
        cmocka_unit_test(a_number_is_decimal_and_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
