/* Files that users name: what is no regular file is refused at once, and a file that another process
 * cuts off does no harm. */
#include "tests/unit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mapfile.h"
#include "tests/temp_dir.h"

#define N_BYTES 10000
#define HANG_S 60 /* a guard: an open() that waits ends the test */

static struct temp_dir dir;
static char path[128], bytes[N_BYTES];
static struct buf why;
static bool cuts; /* the file is cut off before the next read */

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (cuts)
        assert_int_equal(truncate(path, N_BYTES / 2), 0);
    return __real_pread(fd, to, n, at);
}

static int setup(void **state)
{
    (void)state;
    alarm(HANG_S);
    cuts = false;
    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/file", dir.path);
    buf_init(&why, BUF_WHY_MAX);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(&dir);
    buf_fini(&why);
    return 0;
}

static void write_file(void)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (size_t i = 0; i < N_BYTES; i++)
        bytes[i] = (char)('a' + i % 26);
    assert_int_equal(fwrite(bytes, 1, N_BYTES, f), N_BYTES);
    fclose(f);
}

static void check_refused(enum status s, enum status want, const char *words)
{
    assert_int_equal(s, want);
    if (!strstr(buf_str(&why), words) || !strstr(buf_str(&why), dir.path))
        fail_msg("\"%s\" instead of \"%s\"", buf_str(&why), words);
}

static void check_all(enum status want, const char *words)
{
    struct json *doc;
    struct mapfile m;
    struct buf text;

    buf_init(&text, N_BYTES);
    check_refused(file_read(&text, path, &why), want, words);
    check_refused(mapfile_open(&m, path, &why), want, words);
    check_refused(mapfile_copy(&m, path, N_BYTES, &why), want, words);
    check_refused(js_parse_file(&doc, path, N_BYTES, &why), want, words);
    assert_true(text.len == 0 && !m.data && !doc);
    buf_fini(&text);
}

static void what_is_no_regular_file_is_refused_without_waiting(void **state)
{
    (void)state;
    check_all(ERR_NOT_FOUND, "cannot open");
    assert_int_equal(mkfifo(path, 0600), 0);
    check_all(ERR_INVALID, "is not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    check_all(ERR_INVALID, "is not a regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    check_all(ERR_INVALID, "is not a regular file");
}

static void a_file_is_read_up_to_the_limit(void **state)
{
    struct mapfile m;
    struct buf text;

    (void)state;
    write_file();
    buf_init(&text, N_BYTES);
    assert_ok(file_read(&text, path, &why));
    assert_int_equal(text.len, N_BYTES);
    assert_memory_equal(text.data, bytes, N_BYTES);
    buf_fini(&text);
    buf_init(&text, N_BYTES - 1);
    check_refused(file_read(&text, path, &why), ERR_TOO_LARGE, "is larger than 9999 bytes");
    buf_fini(&text);
    assert_ok(mapfile_copy(&m, path, N_BYTES, &why));
    assert_memory_equal(m.data, bytes, N_BYTES);
    mapfile_close(&m);
    check_refused(mapfile_copy(&m, path, N_BYTES - 1, &why), ERR_TOO_LARGE, "has 10000 bytes");
    assert_null(m.data);
}

static void a_copy_outlives_what_happens_to_the_file(void **state)
{
    struct mapfile m;

    (void)state;
    write_file();
    assert_ok(mapfile_copy(&m, path, N_BYTES, &why));
    assert_int_equal(truncate(path, 0), 0);
    assert_memory_equal(m.data, bytes, N_BYTES);
    mapfile_close(&m);
    write_file();
    cuts = true;
    check_refused(mapfile_copy(&m, path, N_BYTES, &why), ERR_IO, "was cut off while it was read");
    assert_null(m.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_no_regular_file_is_refused_without_waiting, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_file_is_read_up_to_the_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_copy_outlives_what_happens_to_the_file, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
