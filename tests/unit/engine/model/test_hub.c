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

static void make_file(const char *path)
{
    char at[256];

    snprintf(at, sizeof at, "%s/%s", root, path);
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    fclose(f);
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
    make("models--org--gguf");
    make("models--org--gguf/snapshots");
    make("models--org--gguf/snapshots/main");
    make("models--org--gguf/snapshots/main/big");
    make_file("models--org--gguf/snapshots/main/m-Q4_K_M.gguf");
    make_file("models--org--gguf/snapshots/main/m-Q8_0.gguf");
    make_file("models--org--gguf/snapshots/main/mmproj-Q5_1.gguf");
    make_file("models--org--gguf/snapshots/main/big/m-f16-00001-of-00002.gguf");
    make_file("models--org--gguf/snapshots/main/big/m-f16-00002-of-00002.gguf");
    make_file("models--org--name/snapshots/abc123/only.gguf");
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
    finds("org/name", "/snapshots/abc123/only.gguf"); /* which has no config.json */
    finds("org/name@main", "/snapshots/abc123/only.gguf");
    make_file("models--org--name/snapshots/abc123/config.json");
    finds("org/name", "/snapshots/abc123");
    finds("org/name:only.gguf", "/snapshots/abc123/only.gguf");
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

static void a_gguf_file_is_found_by_its_name_or_a_part_of_it(void **state)
{
    char path[256];

    (void)state;
    finds("org/gguf:m-Q8_0.gguf", "/main/m-Q8_0.gguf");
    finds("org/gguf@main:q4_k_m", "/main/m-Q4_K_M.gguf");
    finds("org/gguf:mmproj-Q5_1.gguf", "/main/mmproj-Q5_1.gguf");
    finds("org/gguf:f16", "/main/big/m-f16-00001-of-00002.gguf");
    misses("org/gguf:Q5_1"); /* of images, which only their whole name means */
    misses("org/gguf:Q2_K");
    misses("org/gguf:../m.gguf");
    misses("org/gguf:");
    snprintf(path, sizeof path, "%s/models--org--gguf/snapshots/main/m-Q8_0.gguf", root);
    finds(path, "/main/m-Q8_0.gguf");
    snprintf(path, sizeof path, "%s/models--org--gguf/snapshots/main/big", root);
    finds(path, "/main/big/m-f16-00001-of-00002.gguf");
}

static void several_gguf_files_are_listed(void **state)
{
    struct buf path, why;

    (void)state;
    buf_init(&path, 4096);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(hub_resolve("org/gguf", &path, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "3 GGUF files"));
    assert_non_null(strstr(buf_str(&why), "m-Q4_K_M.gguf, m-Q8_0.gguf"));
    assert_int_equal(path.len, 0);
    buf_fini(&path);
    buf_fini(&why);
}

static void a_model_without_all_its_files_is_not_there(void **state)
{
    char path[256];

    (void)state;
    assert_true(hub_has_model("org/gguf:f16"));
    assert_true(hub_has_model("org/gguf")); /* to be chosen, not downloaded */
    assert_false(hub_has_model("org/gguf:Q2_K"));
    assert_false(hub_has_model("org/name@main")); /* config.json alone */
    snprintf(path, sizeof path, "%s/models--org--gguf/snapshots/main/big/m-f16-00002-of-00002.gguf",
             root);
    assert_int_equal(unlink(path), 0);
    assert_false(hub_has_model("org/gguf:f16"));
}

static void paths_that_leave_their_directory_are_refused(void **state)
{
    static const char *const good[] = {"a", "a/b.json", ".gitattributes", "a/.b", "x y.gguf"};
    static const char *const bad[] = {"",  "/a",  "a/",  "a//b", "..",  "../a", "a/..", "a/../b",
                                      ".", "./a", "a/.", "a\\b", "..a", "a\nb", "a\x7f"};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(hub_is_inside(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(hub_is_inside(bad[i]));
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
        cmocka_unit_test(a_gguf_file_is_found_by_its_name_or_a_part_of_it),
        cmocka_unit_test(several_gguf_files_are_listed),
        cmocka_unit_test(a_model_without_all_its_files_is_not_there),
        cmocka_unit_test(paths_that_leave_their_directory_are_refused),
        cmocka_unit_test(what_is_not_there_is_not_found),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
