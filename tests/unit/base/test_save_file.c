/* test_save_file.c - several processes that save one path, or that lock one directory. */
#include "tests/unit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/save_file.h"
#include "tests/temp_dir.h"

static struct temp_dir dir;
static char path[sizeof dir.path + 16];
static int begun[2]; /* a pipe: the other process is in the middle of its work */

static int begin(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/file", dir.path);
    return pipe(begun);
}

static int end(void **state)
{
    (void)state;
    close(begun[0]);
    close(begun[1]);
    temp_dir_remove(&dir);
    return 0;
}

static void await_other(void)
{
    char c;

    assert_int_equal(read(begun[0], &c, 1), 1);
}

static void check_content(const char *expected)
{
    char text[128] = "";
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    assert_int_equal(fclose(f), 0);
    assert_string_equal(text, expected);
    snprintf(text, sizeof text, "%s.new", path);
    assert_int_not_equal(access(text, F_OK), 0);
}

static enum status save(const char *text)
{
    struct buf b, why;

    buf_init(&b, 64);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_printf(&b, "%s", text));
    enum status s = save_file(path, &b, &why);
    assert_true((s == OK) == (why.len == 0));
    buf_fini(&b);
    buf_fini(&why);
    return s;
}

/* Write slowly, so that the other process saves in the middle of it. */
static bool write_slowly(void *arg, FILE *f)
{
    (void)arg;
    bool good = fputs("the text of a slow process, ", f) >= 0 && fflush(f) == 0 &&
                write(begun[1], "", 1) == 1;

    clock_sleep_ns(100000000);
    return good && fputs("whole", f) >= 0;
}

static bool fail_slowly(void *arg, FILE *f)
{
    (void)write_slowly(arg, f);
    errno = ENOSPC;
    return false;
}

static pid_t begin_other(bool (*write_it)(void *arg, FILE *f))
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        _exit(save_file_by(path, write_it, NULL, &why) == OK ? 0 : 1);
    }
    await_other();
    return pid;
}

static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void two_processes_save_one_path_and_the_last_one_counts(void **state)
{
    (void)state;
    pid_t other = begin_other(write_slowly);

    assert_ok(save("short"));
    assert_int_equal(status_of(other), 0);
    check_content("short");
}

static void the_failure_of_one_process_does_not_touch_the_file_of_another(void **state)
{
    (void)state;
    pid_t other = begin_other(fail_slowly);

    assert_ok(save("short"));
    assert_int_equal(status_of(other), 1);
    check_content("short");
}

static void what_a_killed_process_left_is_replaced(void **state)
{
    char unfinished[sizeof path + 8];

    (void)state;
    snprintf(unfinished, sizeof unfinished, "%s.new", path);
    FILE *f = fopen(unfinished, "w");
    assert_true(f && fputs("much more than the new text", f) >= 0 && fclose(f) == 0);
    assert_ok(save("new"));
    check_content("new");
    snprintf(path, sizeof path, "%s/no/file", dir.path);
    assert_int_equal(save("new"), ERR_IO);
}

static void a_directory_is_locked_by_one_process_at_a_time(void **state)
{
    int lock = save_lock_dir(dir.path);

    (void)state;
    assert_true(lock >= 0);
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        close(lock); /* the same lock: it would end with this process only */
        bool good = write(begun[1], "", 1) == 1 && save_lock_dir(dir.path) >= 0;

        _exit(good && access(path, F_OK) == 0 ? 0 : 1);
    }
    await_other();
    clock_sleep_ns(50000000); /* the other one tries meanwhile */
    assert_ok(save("made by the first one"));
    save_unlock_dir(lock);
    assert_int_equal(status_of(other), 0);
    assert_int_equal(save_lock_dir("/no such directory"), -1);
    save_unlock_dir(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, begin, end)
        T(two_processes_save_one_path_and_the_last_one_counts),
        T(the_failure_of_one_process_does_not_touch_the_file_of_another),
        T(what_a_killed_process_left_is_replaced),
        T(a_directory_is_locked_by_one_process_at_a_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
