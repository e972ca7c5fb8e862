/* test_cache_dir.c - folders that outlive the process: made for this user alone, and refused if
 * they belong to another one. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/cache_dir.h"

static char dir[] = "/tmp/tarn-test-cache-dir-XXXXXX";

static const char *below(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static unsigned mode_of(const char *path)
{
    struct stat st;

    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void what_is_not_there_is_made_for_us_alone(void **state)
{
    char path[PATH_MAX], again[PATH_MAX], base[256];

    (void)state;
    snprintf(base, sizeof base, "%s", below("not/there/yet"));
    assert_null(cache_dir_open(path, base, "cost"));
    assert_string_equal(path, below("not/there/yet/cost"));
    assert_int_equal(mode_of(path), 0700);
    assert_int_equal(mode_of(base), 0700);
    assert_null(cache_dir_open(again, base, "cost"));
    assert_string_equal(again, path);
}

static void what_is_there_keeps_its_mode(void **state)
{
    char path[PATH_MAX];

    (void)state;
    assert_int_equal(mkdir(below("shared"), 0750), 0);
    assert_int_equal(chmod(below("shared"), 0770), 0); /* the mode of a Kubernetes volume */
    assert_null(cache_dir_open(path, dir, "shared"));
    assert_int_equal(mode_of(path), 0770);
}

static void a_folder_that_others_can_write_to_is_refused(void **state)
{
    char path[PATH_MAX];

    (void)state;
    assert_int_equal(mkdir(below("open"), 0700), 0);
    assert_int_equal(chmod(below("open"), 0777), 0);
    assert_string_equal(cache_dir_open(path, dir, "open"), "all users may write to it");
    assert_int_equal(symlink("open", below("link")), 0);
    assert_string_equal(cache_dir_open(path, dir, "link"), "it is not a directory");
    FILE *f = fopen(below("file"), "w");
    assert_non_null(f);
    fclose(f);
    assert_string_equal(cache_dir_open(path, dir, "file"), "it is not a directory");
    if (geteuid() == 0) {
        assert_int_equal(mkdir(below("theirs"), 0700), 0);
        assert_int_equal(chown(below("theirs"), 12345, 12345), 0);
        assert_string_equal(cache_dir_open(path, dir, "theirs"), "it belongs to another user");
    }
}

static void what_cannot_be_made_is_said(void **state)
{
    char path[PATH_MAX], *deep = malloc(2 * PATH_MAX);

    (void)state;
    assert_non_null(deep);
    assert_non_null(cache_dir_open(path, "/proc/no/such/place", "cost"));
    assert_non_null(cache_dir_open(path, below("file"), "cost")); /* the parent is a file */
    for (int i = 0; i < PATH_MAX; i++)
        memcpy(deep + 2 * i, "/a", 2);
    deep[2 * PATH_MAX - 1] = '\0';
    assert_string_equal(cache_dir_open(path, deep, "cost"), "the path is too long");
    deep[PATH_MAX - 3] = '\0'; /* too long only together with the name */
    assert_string_equal(cache_dir_open(path, deep, "cost"), "the path is too long");
    free(deep);
}

static void without_a_flag_the_place_follows_xdg(void **state)
{
    char path[PATH_MAX], want[PATH_MAX];

    (void)state;
    setenv("XDG_CACHE_HOME", below("xdg"), 1);
    assert_true(cache_dir_find(path, ""));
    snprintf(want, sizeof want, "%s/tarn", below("xdg"));
    assert_string_equal(path, want);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", dir, 1);
    assert_true(cache_dir_find(path, ""));
    assert_string_equal(path, below(".cache/tarn"));
    unsetenv("HOME");
    assert_false(cache_dir_find(path, ""));
    assert_string_equal(cache_dir_open(path, "", "cost"), "neither XDG_CACHE_HOME nor HOME is set");
    assert_true(cache_dir_find(path, "here"));
    assert_string_equal(path, "here");
}

static int start(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int end(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_there_is_made_for_us_alone),
        cmocka_unit_test(what_is_there_keeps_its_mode),
        cmocka_unit_test(a_folder_that_others_can_write_to_is_refused),
        cmocka_unit_test(what_cannot_be_made_is_said),
        cmocka_unit_test(without_a_flag_the_place_follows_xdg),
    };
    return cmocka_run_group_tests(tests, start, end);
}
