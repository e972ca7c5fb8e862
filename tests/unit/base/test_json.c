#include "tests/unit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static struct json *parse(const char *text)
{
    struct json *j;

    assert_ok(js_parse(&j, text, strlen(text), NULL));
    return j;
}

static void refuse(const char *text, const char *words)
{
    struct json *j = (struct json *)1;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(js_parse(&j, text, strlen(text), &why), ERR_INVALID);
    assert_null(j);
    if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" does not mention \"%s\"", buf_str(&why), words);
    buf_fini(&why);
}

static void malformed_text_is_refused_with_its_place(void **state)
{
    (void)state;
    refuse("{\"a\": 1,\n \"b\" 2}", "line 2");
    refuse("", "the text is empty");
    refuse(" \r\n\t ", "the text is empty");
    refuse("{\"a\": 1, \"a\": 2}", "malformed");
    refuse("\"\xff\"", "malformed");
    refuse("[1] trailing", "line 1, column 12: more text follows the end of the JSON value");
    refuse("{}{}", "more text follows");
}

static void numbers_beyond_64_bits_are_reals(void **state)
{
    struct json *j = parse("{\"a\": [9223372036854775807, 9223372036854775808], "
                           "\"s\": \"9223372036854775808 \\\" 9223372036854775808\", "
                           "\"b\": -9223372036854775808, \"c\":-9223372036854775809,"
                           "\"d\":123456789012345678901234567890}");
    int64_t n = 0;
    struct buf why;

    (void)state;
    assert_true(js_int(js_at(js_get(j, "a"), 0)) == INT64_MAX);
    assert_float_equal(js_number(js_at(js_get(j, "a"), 1)), 0x1p63, 0);
    assert_true(js_int(js_get(j, "b")) == INT64_MIN);
    assert_float_equal(js_number(js_get(j, "c")), -0x1p63, 0);
    assert_float_equal(js_number(js_get(j, "d")), 123456789012345678901234567890.0, 0);
    assert_string_equal(js_string(js_get(j, "s"), NULL),
                        "9223372036854775808 \" 9223372036854775808");
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(js_get_i64(j, "d", 0, 10, &n, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "d: 1.23456789012345"));
    assert_non_null(strstr(buf_str(&why), "e+29 is outside of [0, 10]"));
    buf_fini(&why);
    js_unref(j);
    j = parse("99999999999999999999");
    assert_true(js_is(j, JS_REAL));
    js_unref(j);
    /* With one that is wrong besides. */
    refuse("[9223372036854775808, x]", "malformed");
}

static void numbers_that_json_has_not_are_named(void **state)
{
    (void)state;
    refuse("{\"a\": [{\"x\": \"a,b\"}, {\"y\": [], \"z_1\": 1e999}]}",
           "a[1].z_1: 1e999 is too large for a number");
    refuse("{\"temperature\": NaN}", "temperature: NaN is not a JSON number; leave it out");
    refuse("{\"a\": 1, \"b\": -Infinity}", "b: -Infinity is not a JSON number");
    refuse("{\"a\": 1, \"b\": {\"c\": Infinity, \"d\": 2}}", "b.c: Infinity is not a JSON number");
    refuse("{\"a b\\n\": 1e999}", "a?b?n: 1e999 is too large");
    refuse("1e999", "1e999 is too large");
    refuse("[NaN", "[0]: NaN is not a JSON number");
    refuse("{\"a\": nanosecond}", "malformed");
}

static void nesting_is_bounded(void **state)
{
    char deep[2000];

    (void)state;
    memset(deep, '[', 999);
    memset(deep + 999, ']', 999);
    deep[1998] = 0;
    refuse(deep, "deeper");
    /* brackets inside of strings do not nest */
    struct json *j = parse("[\"[[[[[[[\\\"[[[[[\"]");
    assert_int_equal(js_len(j), 1);
    js_unref(j);
}

static void getters_name_the_bad_field(void **state)
{
    struct json *j = parse("{\"n\": \"x\", \"big\": 7, \"t\": 0.5, \"s\": 1, \"b\": null}");
    struct buf why;
    int64_t n = 42;
    double x = 0;
    bool b = true;
    const char *s = NULL;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(js_get_i64(j, "n", 0, 5, &n, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "n: expected an integer, got a string");
    assert_int_equal(js_get_i64(j, "big", 0, 5, &n, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "big: 7 is outside of [0, 5]"));
    assert_int_equal(js_get_str(j, "s", &s, NULL, &why), ERR_INVALID);
    assert_int_equal(js_get_f64(j, "t", 1, 2, &x, &why), ERR_INVALID);
    assert_int_equal(n, 42);
    /* absent and null leave the default */
    assert_ok(js_get_bool(j, "b", &b, &why));
    assert_ok(js_get_bool(j, "absent", &b, &why));
    assert_true(b);
    buf_fini(&why);
    js_unref(j);
}

static void a_nul_is_refused_where_a_c_string_is_read(void **state)
{
    struct json *j = parse("{\"s\": \"a\\u0000b\", \"t\": \"\\u0000\", \"fine\": \"a\", \"n\": 1}");
    const char *s = "kept";
    struct buf why;
    size_t len = 0;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(js_get_str(j, "s", &s, NULL, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "s: must not hold the character U+0000");
    assert_int_equal(js_read_cstr(js_get(j, "t"), "x[1].t", &s, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "x[1].t: must not hold the character U+0000");
    assert_int_equal(js_read_cstr(js_get(j, "n"), "n", &s, &why), ERR_INVALID);
    assert_int_equal(js_read_cstr(NULL, "n", &s, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "n: expected a string, got null");
    assert_string_equal(s, "kept");
    /* The length is taken on purpose: the text is bytes. */
    assert_ok(js_get_str(j, "s", &s, &len, &why));
    assert_int_equal(len, 3);
    assert_memory_equal(s, "a\0b", 3);
    assert_ok(js_get_str(j, "fine", &s, NULL, &why));
    assert_string_equal(s, "a");
    buf_fini(&why);
    js_unref(j);
    refuse("{\"k\\u0000ey\": 1}", "malformed"); /* so every key is a C string */
}

static void what_is_written_parses_back_equal(void **state)
{
    const char text[] = "a\"\\\n\t\x01\x7f\xc3\xa9\xf0\x9f\x98\x80 end";
    struct json *j;
    struct buf out;
    size_t len;

    (void)state;
    buf_init(&out, 1000);
    assert_ok(js_write_string(&out, text, sizeof text - 1));
    j = parse(out.data);
    assert_string_equal(js_string(j, &len), text);
    assert_int_equal(len, sizeof text - 1);
    js_unref(j);
    buf_fini(&out);
}

static void bytes_that_are_no_utf8_become_replacement_characters(void **state)
{
    struct buf out;

    (void)state;
    buf_init(&out, 1000);
    assert_ok(js_write_string(&out, "a\xff\xc3(\xe2\x82", 6));
    assert_string_equal(out.data, "\"a\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_fini(&out);
}

static void numbers_survive_writing(void **state)
{
    const double values[] = {0, 1, -1.5, 0.1, 1e300, 5e-324, 123456789.123456789, -2.0 / 3};
    struct buf out;

    (void)state;
    buf_init(&out, 1000);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        buf_reset(&out);
        assert_ok(js_write_number(&out, values[i]));
        assert_true(strtod(out.data, NULL) == values[i]);
    }
    buf_reset(&out);
    assert_ok(js_write_number(&out, INFINITY));
    assert_string_equal(out.data, "null");
    buf_fini(&out);
}

static void built_documents_keep_their_order(void **state)
{
    struct json *o = js_new_object(), *a = js_new_array();
    struct buf out;

    (void)state;
    buf_init(&out, 1000);
    assert_ok(js_push(a, js_new_int(1)));
    assert_ok(js_push(a, js_new_bool(true)));
    assert_ok(js_set(o, "z", js_new_string("x", 1)));
    assert_ok(js_set(o, "a", a));
    assert_int_equal(js_set(o, "bad", js_new_string("\xff", 1)), ERR_NOMEM);
    assert_ok(js_write(&out, o));
    assert_string_equal(out.data, "{\"z\":\"x\",\"a\":[1,true]}");
    js_unref(o);
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_text_is_refused_with_its_place),
        cmocka_unit_test(numbers_beyond_64_bits_are_reals),
        cmocka_unit_test(numbers_that_json_has_not_are_named),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(getters_name_the_bad_field),
        cmocka_unit_test(a_nul_is_refused_where_a_c_string_is_read),
        cmocka_unit_test(what_is_written_parses_back_equal),
        cmocka_unit_test(bytes_that_are_no_utf8_become_replacement_characters),
        cmocka_unit_test(numbers_survive_writing),
        cmocka_unit_test(built_documents_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
