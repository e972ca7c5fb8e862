/* test_hub.c - a name finds its directory in a Hugging Face cache, and nothing outside of it. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/hub.h"

static char root[64];

static void make(const char *path)
{
    char at[256];

    snprintf(at, sizeof at, "%s/%s", root, path);
    assert_int_equal(mkdir(at, 0700), 0);
}

static int make_cache(void **state)
{
    char at[256];

    (void)state;
    strcpy(root, "/tmp/tarn-test-hub-XXXXXX");
    if (!mkdtemp(root))
        return 1;
    make("models--org--name");
    make("models--org--name/refs");
    make("models--org--name/snapshots");
    make("models--org--name/snapshots/abc123");
    make("models--org--name/snapshots/def456");
    make("models--org--evil");
    make("models--org--evil/refs");
    snprintf(at, sizeof at, "%s/models--org--name/refs/main", root);
    FILE *f = fopen(at, "w");
    fputs("abc123\n", f);
    fclose(f);
    snprintf(at, sizeof at, "%s/models--org--evil/refs/main", root);
    f = fopen(at, "w");
    fputs("../../models--org--name/snapshots/abc123", f);
    fclose(f);
    setenv("HF_HUB_CACHE", root, 1);
    return 0;
}

static int remove_cache(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void finds(const char *name, const char *end)
{
    struct buf path, why;

    buf_init(&path, 4096);
    buf_init(&why, BUF_WHY_MAX);
    if (hub_resolve(name, &path, &why) != OK)
        fail_msg("%s: %s", name, buf_str(&why));
    assert_true(path.len >= strlen(end));
    assert_string_equal(path.data + path.len - strlen(end), end);
    buf_fini(&path);
    buf_fini(&why);
}

static void misses(const char *name)
{
    struct buf path, why;

    buf_init(&path, 4096);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(hub_resolve(name, &path, &why), ERR_NOT_FOUND);
    assert_true(why.len > 0 && path.len == 0);
    buf_fini(&path);
    buf_fini(&why);
}

static void a_name_means_the_commit_of_main(void **state)
{
    (void)state;
    finds("org/name", "/snapshots/abc123");
    finds("org/name@main", "/snapshots/abc123");
}

static void a_commit_can_be_named(void **state)
{
    (void)state;
    finds("org/name@def456", "/snapshots/def456");
}

static void a_directory_is_itself(void **state)
{
    (void)state;
    finds(root, root);
}

static void what_is_not_there_is_not_found(void **state)
{
    (void)state;
    misses("org/other");
    misses("org/name@nope");
    misses("nothing");
    misses("a/b/c");
    misses("org/..");
    misses("../org");
    misses("org/name@..");
    misses("org/name@a/b");
    misses("org/evil");
    misses("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_means_the_commit_of_main),
        cmocka_unit_test(a_commit_can_be_named),
        cmocka_unit_test(a_directory_is_itself),
        cmocka_unit_test(what_is_not_there_is_not_found),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
