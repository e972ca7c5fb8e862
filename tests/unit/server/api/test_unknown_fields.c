/* test_unknown_fields.c - names of unknown fields are made printable, bounded, and logged once. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "server/api/unknown_fields.h"

#define SECOND_NS UINT64_C(1000000000)

static const char *const known[] = {"temperature", "top_p", "n", "max_completion_tokens"};

static const struct unknown_field *add(struct unknown_fields *u, const char *name)
{
    unknown_fields_add(u, "", name, known, 4);
    return &u->named[u->n - 1];
}

static void only_slips_get_a_suggestion(void **state)
{
    struct unknown_fields u = {0};

    (void)state;
    assert_string_equal(add(&u, "temprature")->near, "temperature");
    assert_string_equal(add(&u, "Temperature")->near, "temperature");
    assert_string_equal(add(&u, "maxCompletionTokens")->near, "max_completion_tokens");
    assert_null(add(&u, "temp")->near);
    assert_null(add(&u, "x")->near);
    assert_null(add(&u, "")->near);
}

static void names_are_cut_and_hold_harmless_characters(void **state)
{
    struct unknown_fields u = {0};
    char longest[201];

    (void)state;
    assert_string_equal(add(&u, "a\r\nSet-Cookie: \x1b\"\xc3\xa9[0].b")->name,
                        "a??Set-Cookie??????[0].b");
    memset(longest, 'a', 200);
    longest[200] = '\0';
    assert_int_equal(strlen(add(&u, longest)->name), UNKNOWN_NAME_BYTES - 1);
    /* Two long names with the same beginning are two names. */
    longest[199] = 'b';
    assert_true(add(&u, longest)->hash != u.named[1].hash);
    for (int i = 0; i < 1000; i++)
        unknown_fields_add(&u, "", "more", known, 4);
    assert_int_equal(u.n, 1003);
}

static void members_that_are_known_are_left_out(void **state)
{
    const char text[] = "{\"n\":1,\"top_p\":1,\"N\":1}";
    struct unknown_fields u = {0};
    struct json *object;

    (void)state;
    assert_ok(js_parse(&object, text, sizeof text - 1, NULL));
    unknown_fields_find(&u, object, "options.", known, 4);
    assert_int_equal(u.n, 1);
    assert_string_equal(u.named[0].name, "options.N");
    unknown_fields_find(&u, NULL, "", known, 4);
    assert_int_equal(u.n, 1);
    js_unref(object);
}

static void a_name_is_warned_of_once_an_hour(void **state)
{
    struct unknown_log log = {0};
    uint64_t now_ns = 5 * SECOND_NS;

    (void)state;
    unknown_log_init(&log);
    for (uint64_t i = 1; i <= UNKNOWN_N_LOGGED_MAX; i++) {
        assert_true(unknown_log_admit(&log, i, now_ns + i));
        assert_false(unknown_log_admit(&log, i, now_ns + i));
    }
    /* The log is full: no more names in the hour that began with the first one. */
    assert_false(unknown_log_admit(&log, 1000, now_ns + (UNKNOWN_FORGET_S - 1) * SECOND_NS));
    now_ns += 1 + UNKNOWN_FORGET_S * SECOND_NS;
    assert_true(unknown_log_admit(&log, 1000, now_ns));
    assert_true(unknown_log_admit(&log, 1, now_ns));
    assert_false(unknown_log_admit(&log, 1, now_ns));
    unknown_log_fini(&log);
}

static int init(void **state)
{
    (void)state;
    return hash_init() == OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_slips_get_a_suggestion),
        cmocka_unit_test(names_are_cut_and_hold_harmless_characters),
        cmocka_unit_test(members_that_are_known_are_left_out),
        cmocka_unit_test(a_name_is_warned_of_once_an_hour),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
