/* tarn-cachebench's statistics against values known by hand, and the parsing of its command
 * line. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/check.h"
#include "loadgen/bench/cache/figure.h"
#include "loadgen/bench/cache/options.h"

static struct figure figure_of_values(const double *values, uint32_t n)
{
    struct figure_series s;

    assert_ok(figure_series_init(&s, n + 1));
    for (uint32_t i = 0; i < n; i++)
        figure_series_add(&s, values[i]);
    struct figure f = figure_of(&s);
    figure_series_fini(&s);
    return f;
}

static void figure_of_an_even_number_of_values(void **state)
{
    const double values[] = {9, 1, 7, 3, 5, 2, 8, 4, 10, 6};
    struct figure f = figure_of_values(values, ARRAY_SIZE(values));

    (void)state;
    assert_int_equal(f.n, 10);
    assert_true(f.median == 5.5 && f.min == 1 && f.max == 10);
    assert_true(f.p90 == 9); /* nine of the ten are at most this */
}

static void figure_of_one_value_is_that_value(void **state)
{
    const double value = 3;
    struct figure f = figure_of_values(&value, 1);

    (void)state;
    assert_true(f.median == 3 && f.min == 3 && f.max == 3 && f.p90 == 3);
}

static void figure_of_nothing_is_zero(void **state)
{
    struct figure f = figure_of_values(NULL, 0);

    (void)state;
    assert_true(f.n == 0 && f.median == 0 && f.max == 0);
}

static void all_parts_run_unless_one_is_named(void **state)
{
    char *one[] = {"tarn-cachebench", "--part=tree", "--segments", "200", "--json"};
    struct cachebench_options o;

    (void)state;
    assert_ok(cachebench_options_parse(&o, 1, one, NULL));
    assert_true(cachebench_wants(&o, "ttft") && cachebench_wants(&o, "miss"));
    assert_true(cachebench_wants(&o, "disk") && cachebench_wants(&o, "index"));
    assert_int_equal(o.prefix, 4000);
    assert_int_equal(o.segments, 1000000);
    cachebench_options_fini(&o);
    assert_ok(cachebench_options_parse(&o, ARRAY_SIZE(one), one, NULL));
    assert_true(cachebench_wants(&o, "tree") && !cachebench_wants(&o, "ttft"));
    assert_int_equal(o.segments, 200);
    assert_true(o.json && !o.quiet);
    cachebench_options_fini(&o);
}

static void options_name_what_is_wrong(void **state)
{
    char *bad[][3] = {{"", "--frobnicate", "1"},   {"", "--threads", "two"},
                      {"", "--quiet", "--json=1"}, {"", "--part", "none"},
                      {"", "--json", "--hits"},    {"", "--new", "0"},
                      {"", "--segments", "99"},    {"", "word", "--json"}};
    const char *words[] = {"--frobnicate", "--threads", "--json",          "--part",
                           "--hits",       "--new",     "--path-segments", "word"};
    struct cachebench_options o;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(cachebench_options_parse(&o, 3, bad[i], &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), words[i]));
        cachebench_options_fini(&o);
    }
    buf_fini(&why);
}

static void a_misspelled_option_gets_the_nearest_name(void **state)
{
    char *near[] = {"", "--segmnts=3"};
    struct cachebench_options o;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(cachebench_options_parse(&o, 2, near, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "did you mean --segments?"));
    cachebench_options_fini(&o);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figure_of_an_even_number_of_values),
        cmocka_unit_test(figure_of_one_value_is_that_value),
        cmocka_unit_test(figure_of_nothing_is_zero),
        cmocka_unit_test(all_parts_run_unless_one_is_named),
        cmocka_unit_test(options_name_what_is_wrong),
        cmocka_unit_test(a_misspelled_option_gets_the_nearest_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
