#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flag_table.h"

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

static void help_is_wrapped_and_lined_up(void **state)
{
    static const struct flag_row rows[] = {
        {"Group", "some", true, NULL, "says some", "true"},
        {NULL, "a-name-that-is-rather-long", false, "VALUE",
         "words words words words words words words words words words words words words", ""},
    };
    char *text = NULL;
    size_t size = 0;

    (void)state;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        flag_print(f, &rows[i]);
    fclose(f);
    assert_string_equal(
        text,
        "\nGroup\n"
        "  --[no-]some                 says some [true]\n"
        "  --a-name-that-is-rather-long VALUE\n"
        "                              words words words words words words words words words words"
        " words\n"
        "                              words words\n");
    free(text);
}

/* --- a command line by a table --- */

struct fields {
    const char *name, *way;
    uint64_t n, bytes;
    bool loud;
    char other[16];
};

static enum status take_other(void *options, const struct option_row *row, const char *text,
                              struct buf *why)
{
    struct fields *f = options;

    if (strlen(text) >= sizeof f->other)
        return buf_why(why, ERR_TOO_LARGE, "--%s: too long", row->name);
    strcpy(f->other, text);
    return OK;
}

#define AT(field) offsetof(struct fields, field)

static const struct option_row rows[] = {
    {"Group", "name", OPTION_TEXT, AT(name), 0, 0, "nobody", "NAME", "a text"},
    {NULL, "way", OPTION_CHOICE, AT(way), 0, 0, "left", "left|right", "a choice"},
    {NULL, "count", OPTION_COUNT, AT(n), 1, 9, "3", "N", "a number"},
    {NULL, "bytes", OPTION_SIZE, AT(bytes), 0, 1 << 20, "2K", "SIZE", "a size"},
    {NULL, "loud", OPTION_SWITCH, AT(loud), 0, 0, "", NULL, "a switch"},
    {NULL, "other", OPTION_OTHER, 0, 0, 0, "", "TEXT", "the program's own"}};
static const struct option_table table = {rows, ARRAY_SIZE(rows), take_other};

/* All of the command line that the table reads; *words as of the first error. */
static enum status read_all(struct fields *f, char **argv, struct buf *words)
{
    int argc = 0;
    enum status s;

    *f = (struct fields){.loud = true};
    s = option_table_presets(&table, f, words);
    while (argv[argc])
        argc++;
    for (int i = 0; s == OK && i < argc; i++)
        s = option_table_read(&table, f, argc, argv, &i, words);
    return s;
}

static void a_table_fills_its_fields(void **state)
{
    char *none[] = {NULL};
    char *some[] = {"--name",     "x",      "--way=right", "--count", "9",
                    "--bytes=1M", "--loud", "--other",     "own",     NULL};
    struct fields f;

    (void)state;
    assert_ok(read_all(&f, none, NULL));
    assert_string_equal(f.name, "nobody");
    assert_string_equal(f.way, "left");
    assert_int_equal(f.n, 3);
    assert_int_equal(f.bytes, 2048);
    assert_false(f.loud);
    assert_ok(read_all(&f, some, NULL));
    assert_string_equal(f.name, "x");
    assert_string_equal(f.way, "right");
    assert_int_equal(f.n, 9);
    assert_int_equal(f.bytes, 1 << 20);
    assert_true(f.loud);
    assert_string_equal(f.other, "own");
}

static void a_table_names_what_is_wrong(void **state)
{
    static const struct {
        char *argv[3];
        const char *words;
    } cases[] = {{{"--cuont", "3", NULL}, "did you mean --count"},
                 {{"--zzzzzzzz", NULL, NULL}, "see --help"},
                 {{"--name", NULL, NULL}, "a value is missing"},
                 {{"--loud=yes", NULL, NULL}, "takes no value"},
                 {{"--way", "up", NULL}, "left|right"},
                 {{"--count", "10", NULL}, "--count"},
                 {{"--other", "far too long a text", NULL}, "too long"}};
    struct fields f;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *argv[3];

        memcpy(argv, cases[i].argv, sizeof argv);
        buf_reset(&why);
        assert_int_not_equal(read_all(&f, argv, &why), OK);
        if (!strstr(buf_str(&why), cases[i].words))
            fail_msg("%s: \"%s\" does not say \"%s\"", argv[0], buf_str(&why), cases[i].words);
    }
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_powers_of_1024),
        cmocka_unit_test(a_wrong_number_is_refused_with_words),
        cmocka_unit_test(the_nearest_word_is_a_slip_away),
        cmocka_unit_test(items_of_a_list_lose_the_space_around_them),
        cmocka_unit_test(a_choice_is_a_whole_word),
        cmocka_unit_test(help_is_wrapped_and_lined_up),
        cmocka_unit_test(a_table_fills_its_fields),
        cmocka_unit_test(a_table_names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
