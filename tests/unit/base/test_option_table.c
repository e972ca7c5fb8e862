/* test_option_table.c - one table gives reading, messages, help and values. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/option_rows.h"

struct fields {
    bool want_help, want_version;
    char *name, *way, *dtype, *file, *operand;
    struct option_list tags;
    uint64_t n, bytes;
    double ratio, share, unset;
    bool loud, fast;
    bool given[16];
};

static const char *listed(void)
{
    return "auto, f32, float=f32";
}

#define OPTIONS_OF struct fields

static const struct option_row rows[] = {
    TEXT("Group", "name", name, "nobody", "NAME", "a text"),
    SECRET(NULL, "key", operand, "KEY", NULL),
    CHOICE(NULL, "way", way, "left", "left|right", "a choice"),
    CHOICE_OF(NULL, "dtype", dtype, "auto", listed, "a listed choice"),
    COUNT(NULL, "count", n, 1, 9, "3", "a number"),
    SIZE(NULL, "some-bytes", bytes, 0, 1 << 20, "2K", "a size"),
    NUMBER(NULL, "ratio", ratio, 0.5, 2, "1", "X", "a ratio"),
    NUMBER(NULL, "unset", unset, 0, 1, "", "X", "no default"),
    SHARE(NULL, "share", share, "0.9", "a share"),
    SWITCH(NULL, "loud", loud, "a switch"),
    BOOL(NULL, "fast", fast, "true",
         "words words words words words words words words words words words"),
    LIST(NULL, "tag", tags, "A-VALUE-THAT-IS-RATHER-LONG", "a list"),
    CONFIG_FILE(NULL, "config", file, "a file of options"),
};
_Static_assert(ARRAY_SIZE(rows) <= 16, "struct fields has a place for each");

static const char *const aliases[][2] = {{"label", "name"}, {"slow", "no-fast"}};

static enum status refuse_secret(const void *options, const struct option_row *row,
                                 const char *text, const char *source, struct buf *why)
{
    (void)options;
    if (row->offset == OPTION_AT(name) && strcmp(text, "forbidden") == 0)
        return buf_why(why, ERR_INVALID, "%s: forbidden", source);
    return OK;
}

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
    .given = OPTION_AT(given),
    .aliases = aliases,
    .n_aliases = ARRAY_SIZE(aliases),
    .variables = "TEST_",
    .check = refuse_secret,
};

static struct buf why;

/* `line`: words separated by blanks. */
static enum status read_line(struct fields *f, const char *line)
{
    static char text[256];
    char *argv[16], *save = NULL;
    int argc = 0;

    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    buf_reset(&why);
    *f = (struct fields){.unset = -1};
    enum status s = option_table_presets(&table, f, &why);
    return s == OK ? option_table_read_args(&table, f, argc, argv, 0, &why) : s;
}

static void defaults_fill_the_fields(void **state)
{
    struct fields f;

    (void)state;
    assert_ok(read_line(&f, ""));
    assert_string_equal(f.name, "nobody");
    assert_string_equal(f.way, "left");
    assert_int_equal(f.n, 3);
    assert_int_equal(f.bytes, 2048);
    assert_true(f.ratio == 1 && f.share == 0.9 && f.unset == -1);
    assert_true(f.fast && !f.loud && f.tags.n == 0 && !f.given[0]);
    option_table_fini(&table, &f);
    assert_null(f.name);
}

static void a_command_line_fills_the_fields(void **state)
{
    struct fields f;

    (void)state;
    assert_ok(read_line(&f, "--label x --way=right --dtype float --count 9 --some-bytes=1M --loud "
                            "--ratio 5e-1 --no-enable-fast --tag a b --tag=c"));
    assert_string_equal(f.name, "x");
    assert_string_equal(f.way, "right");
    assert_string_equal(f.dtype, "f32");
    assert_int_equal(f.n, 9);
    assert_int_equal(f.bytes, 1 << 20);
    assert_true(f.ratio == 0.5 && f.loud && !f.fast && f.given[0]);
    assert_int_equal(f.tags.n, 3);
    assert_string_equal(f.tags.v[2], "c");
    option_table_fini(&table, &f);
    assert_ok(read_line(&f, "--slow --version -h"));
    assert_true(!f.fast && f.want_help && f.want_version);
    option_table_fini(&table, &f);
}

static void a_message_names_the_option_and_what_is_right(void **state)
{
    static const char *const cases[][2] = {
        {"--cuont 3", "--cuont: unknown option, did you mean --count?"},
        {"--zzzzzzzz", "--zzzzzzzz: unknown option, see --help"},
        {"--no-count 3", "--no-count: unknown option, did you mean --count?"},
        {"--name", "--name: needs a value"},
        {"--loud=yes", "--loud: takes no value"},
        {"--fast=maybe", "--fast: expected true or false, got \"maybe\""},
        {"--way lfet", "--way: \"lfet\" is not known, did you mean \"left\"? (one of left, right)"},
        {"--dtype x", "--dtype: \"x\" is not known (one of auto, f32)"},
        {"--count 10", "--count: 10 is outside of [1, 9]"},
        {"--some-bytes x", "--some-bytes: expected a size such as 512M or 2G, got \"x\""},
        {"--ratio 3", "--ratio: expected a number from 0.5 to 2, got \"3\""},
        {"--share 0", "--share: expected a number above 0 and at most 1, got \"0\""},
        {"--name forbidden", "--name: forbidden"},
        {"stray", "\"stray\": expected an option, see --help"},
    };
    struct fields f;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(read_line(&f, cases[i][0]), ERR_INVALID);
        assert_string_equal(buf_str(&why), cases[i][1]);
        option_table_fini(&table, &f);
    }
}

static void variables_and_files_fill_the_fields(void **state)
{
    char *env[] = {(char *)(uintptr_t) "TEST_SOME_BYTES=7", (char *)(uintptr_t) "OTHER_COUNT=4",
                   (char *)(uintptr_t) "TEST_UNKNOWN=4", NULL};
    char *bad[] = {(char *)(uintptr_t) "TEST_COUNT=x", NULL};
    char path[] = "/tmp/tarn-test-options-XXXXXX", words[128];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    struct fields f;

    (void)state;
    assert_non_null(file);
    fputs("# remark\n\n name = a b \ncount=5\nconfig = x\n", file);
    fclose(file);
    assert_ok(read_line(&f, ""));
    assert_ok(option_table_read_env(&table, &f, env, &why));
    assert_int_equal(f.bytes, 7);
    assert_int_equal(f.n, 3);
    assert_int_equal(option_table_read_env(&table, &f, bad, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "TEST_COUNT: expected a whole number, got \"x\"");
    assert_int_equal(option_table_read_file(&table, &f, path, "--config", &why), ERR_INVALID);
    snprintf(words, sizeof words, "%s:5: config: unknown option", path);
    assert_non_null(strstr(buf_str(&why), words));
    assert_string_equal(f.name, "a b");
    assert_int_equal(f.n, 5);
    option_table_fini(&table, &f);
    unlink(path);
}

static void help_is_wrapped_and_lined_up(void **state)
{
    char *text = NULL;
    size_t size = 0;

    (void)state;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    option_table_help(&table, f);
    fclose(f);
    assert_non_null(strstr(text, "\nGroup\n  --name NAME                 a text [nobody]\n"));
    assert_null(strstr(text, "--key")); /* a row without help */
    assert_non_null(strstr(text, "\n  --dtype auto|f32            a listed choice [auto]\n"));
    assert_non_null(
        strstr(text, "\n  --[no-]fast                 words words words words words words words "
                     "words words words words\n                              [true]\n"));
    assert_non_null(strstr(text, "\n  --tag A-VALUE-THAT-IS-RATHER-LONG\n"
                                 "                              a list\n"));
    assert_non_null(strstr(text, "\nOther\n  --help, --version           print and exit\n"));
    free(text);
}

static void a_secret_has_no_value_to_print(void **state)
{
    char text[OPTION_VALUE_BYTES];
    struct fields f;

    (void)state;
    assert_ok(read_line(&f, "--key hidden --ratio 0.75"));
    assert_string_equal(option_table_value(option_table_find(&table, "key"), &f, text), "***");
    assert_string_equal(option_table_value(option_table_find(&table, "ratio"), &f, text), "0.75");
    assert_string_equal(option_table_value(option_table_find(&table, "label"), &f, text), "nobody");
    option_table_fini(&table, &f);
}

static void a_message_from_below_gets_the_programs_names(void **state)
{
    (void)state;
    buf_why(&why, OK, "{some_bytes}: 7 is too little; raise {count} in /tmp/{dir}/{ {} {some");
    option_table_name_options(&table, &why);
    assert_string_equal(buf_str(&why),
                        "--some-bytes: 7 is too little; raise --count in /tmp/{dir}/{ {} {some");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_the_fields),
        cmocka_unit_test(a_command_line_fills_the_fields),
        cmocka_unit_test(a_message_names_the_option_and_what_is_right),
        cmocka_unit_test(variables_and_files_fill_the_fields),
        cmocka_unit_test(help_is_wrapped_and_lined_up),
        cmocka_unit_test(a_secret_has_no_value_to_print),
        cmocka_unit_test(a_message_from_below_gets_the_programs_names),
    };
    buf_init(&why, BUF_WHY_MAX);
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_fini(&why);
    return n_failed;
}
