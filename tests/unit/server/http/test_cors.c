/* test_cors.c - which origins are allowed. */
#include "tests/unit/test.h"

#include "server/http/cors.h"

static void an_empty_list_allows_no_origin(void **state)
{
    (void)state;
    assert_false(cors_allows("", "https://a.example"));
    assert_false(cors_allows(" , ,", "https://a.example"));
    assert_false(cors_allows(" , ,", ""));
    assert_false(cors_allows("*", NULL));
}

static void an_origin_is_compared_as_a_whole(void **state)
{
    static const char list[] = "https://a.example, http://localhost:3000 ,https://c.example";

    (void)state;
    assert_true(cors_allows(list, "https://a.example"));
    assert_true(cors_allows(list, "http://localhost:3000"));
    assert_true(cors_allows(list, "https://c.example"));
    assert_false(cors_allows(list, "https://a.example.evil"));
    assert_false(cors_allows(list, "https://a.exampl"));
    assert_false(cors_allows(list, "http://a.example"));
    assert_false(cors_allows(list, "https://a.example, http://localhost:3000"));
    assert_false(cors_allows(list, "*"));
    assert_false(cors_allows(list, ""));
    assert_false(cors_allows(list, "null"));
}

static void a_star_allows_every_origin_only_alone(void **state)
{
    (void)state;
    assert_true(cors_allows("*", "https://a.example"));
    assert_true(cors_allows("https://b.example, *", "https://a.example"));
    assert_false(cors_allows("https://*.example", "https://a.example"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_list_allows_no_origin),
        cmocka_unit_test(an_origin_is_compared_as_a_whole),
        cmocka_unit_test(a_star_allows_every_origin_only_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
