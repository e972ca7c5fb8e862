/* test_verify.c - the output and the exit code of tarnctl cache verify. */
#include "tests/unit/test.h"

#include "base/json.h"
#include "clients/tarnctl/verify.h"
#include "tests/unit/cache/disk/disk_files.h"

static struct disk_files files;

static int set_up(void **state)
{
    (void)state;
    disk_files_init(&files, 5000, 0xAB);
    disk_files_write(&files);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    disk_files_fini(&files);
    return 0;
}

/* Verify a path. Return the exit code; the caller frees *out and *err. */
static int run(const char *path, bool json, char **out, char **err)
{
    size_t n_out, n_err;
    FILE *o = open_memstream(out, &n_out), *e = open_memstream(err, &n_err);

    assert_non_null(o);
    assert_non_null(e);
    int code = verify_path(o, e, path, json);
    fclose(o);
    fclose(e);
    return code;
}

static void expect(const char *path, int code, const char *out_word, const char *err_word)
{
    char *out, *err;
    int got = run(path, false, &out, &err);

    if (got != code || !strstr(out, out_word) || !strstr(err, err_word))
        fail_msg("code %d\n%s\n%s", got, out, err);
    if (!out_word[0])
        assert_string_equal(out, "");
    if (!err_word[0])
        assert_string_equal(err, "");
    free(out);
    free(err);
}

static void a_sound_directory_is_fine(void **state)
{
    char *out, *err;

    (void)state;
    expect(files.root, VERIFY_FINE, "good                16  404 tokens; 4 records registered", "");
    expect(files.dir, VERIFY_FINE, "20 extents of 8.0K (payload 4.9K), 172.0K on disk", "");
    assert_int_equal(run(files.root, false, &out, &err), VERIFY_FINE);
    assert_memory_equal(out, files.dir, strlen(files.dir));
    assert_non_null(strstr(out, "\n  fine\n"));
    assert_null(strstr(out, "torn"));
    free(out);
    free(err);
}

static void damage_is_told_by_kind_and_place(void **state)
{
    uint32_t e = disk_files_extent(7);
    char place[64];

    (void)state;
    disk_files_header(&files, e)[50] ^= 1;
    disk_files_write(&files);
    snprintf(place, sizeof place, "\n    extent %u: torn\n", e);
    expect(files.root, VERIFY_DAMAGED, place, "");
    expect(files.root, VERIFY_DAMAGED, "torn                 1  the header's checksum", "");
    expect(files.root, VERIFY_DAMAGED, "DAMAGED: 1 records", "");
}

static void what_a_kill_leaves_is_fine(void **state)
{
    (void)state;
    memset(disk_files_header(&files, disk_files_extent(4)), 0, DISK_HEADER_BYTES);
    disk_files_write(&files);
    expect(files.root, VERIFY_FINE, "orphaned             3  harmless", "");
}

static void what_cannot_be_read_is_an_error(void **state)
{
    char path[256];

    (void)state;
    expect("/nowhere/at/all", VERIFY_UNREADABLE, "", "tarnctl: cannot read /nowhere/at/all");
    snprintf(path, sizeof path, "%s/data", files.dir);
    assert_int_equal(unlink(path), 0);
    expect(files.root, VERIFY_UNREADABLE, "", "/data: No such file");
    disk_files_write(&files);
    files.table[0] = 'X';
    disk_files_write(&files);
    expect(files.root, VERIFY_DAMAGED, "", "superblock");
}

/* A directory that cannot be read does not hide the results of the others. */
static void the_worst_of_all_directories_counts(void **state)
{
    char dir[256];

    (void)state;
    snprintf(dir, sizeof dir, "%.*s9", (int)strlen(files.dir) - 1, files.dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    expect(files.root, VERIFY_UNREADABLE, "  fine\n", "version 9");
}

static int64_t number(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    assert_true(js_is(v, JS_INT));
    return js_int(v);
}

static struct json *run_json(int code)
{
    struct json *root;
    char *out, *err;

    assert_int_equal(run(files.root, true, &out, &err), code);
    assert_ok(js_parse(&root, out, strlen(out), NULL));
    assert_int_equal(out[strlen(out) - 1], '\n');
    free(out);
    free(err);
    assert_string_equal(js_string(js_get(root, "object"), NULL), "cache.verify");
    assert_int_equal(js_bool(js_get(root, "fine")), code == VERIFY_FINE);
    return root;
}

static void json_says_the_same(void **state)
{
    uint32_t e = disk_files_extent(7);

    (void)state;
    disk_files_payload(&files, e)[50] ^= 1;
    files.table[files.n_table_bytes - 1] = 7;
    disk_files_write(&files);
    files.table[files.n_table_bytes - 1] = 0;
    struct json *root = run_json(VERIFY_DAMAGED);
    const struct json *d = js_at(js_get(root, "directories"), 0);
    assert_string_equal(js_string(js_get(d, "path"), NULL), files.dir);
    assert_string_equal(js_string(js_get(d, "status"), NULL), "ok");
    assert_int_equal(strlen(js_string(js_get(d, "fingerprint"), NULL)), 64);
    assert_false(js_bool(js_get(d, "in_use")));
    assert_int_equal(number(d, "extents"), 20);
    assert_int_equal(number(d, "extent_bytes"), 8192);
    assert_int_equal(number(d, "block_bytes"), 5000);
    assert_int_equal(number(d, "file_bytes"), files.n_table_bytes + files.n_data_bytes);
    assert_int_equal(number(d, "stray_bytes"), 1);
    assert_int_equal(number(d, "damaged"), 1);
    assert_int_equal(number(d, "good"), 15);
    assert_int_equal(number(d, "empty"), 4);
    assert_int_equal(number(d, "changed"), 0);
    assert_int_equal(number(d, "registered"), 3);
    assert_int_equal(number(d, "tokens"), 404 - 5);
    assert_int_equal(number(js_get(d, "faults"), "payload"), 1);
    assert_int_equal(number(js_get(d, "faults"), "orphaned"), 0);
    assert_int_equal(js_len(js_get(d, "places")), 1);
    assert_int_equal(number(js_at(js_get(d, "places"), 0), "extent"), e);
    assert_string_equal(js_string(js_get(js_at(js_get(d, "places"), 0), "fault"), NULL), "payload");
    js_unref(root);
}

static void json_has_the_words_of_an_error(void **state)
{
    (void)state;
    files.table[4000] = 1;
    disk_files_write(&files);
    struct json *root = run_json(VERIFY_DAMAGED);
    const struct json *d = js_at(js_get(root, "directories"), 0);
    assert_string_equal(js_string(js_get(d, "status"), NULL), status_name(ERR_CORRUPT));
    assert_non_null(strstr(js_string(js_get(d, "error"), NULL), "checksum"));
    assert_null(js_get(d, "good"));
    js_unref(root);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_directory_is_fine),           TEST(damage_is_told_by_kind_and_place),
        TEST(what_a_kill_leaves_is_fine),          TEST(what_cannot_be_read_is_an_error),
        TEST(the_worst_of_all_directories_counts), TEST(json_says_the_same),
        TEST(json_has_the_words_of_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
