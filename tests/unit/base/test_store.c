#include "base/store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/temp_dir.h"
#include "tests/unit/test.h"

enum { PUT, GET, COUNT, SUM, PUT_NEW, N };

static const char *const statements[N] = {
    [PUT] = "INSERT OR REPLACE INTO t (k, v) VALUES (?1, ?2)",
    [GET] = "SELECT v, k FROM t WHERE k = ?1",
    [COUNT] = "SELECT count(*) FROM t",
    [SUM] = "SELECT coalesce(sum(length(v)), 0) FROM t",
    [PUT_NEW] = "INSERT INTO t (k, v, w) VALUES (?1, ?2, 7)",
};
static const char *const migrations[] = {
    "CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)",
    "ALTER TABLE t ADD COLUMN w INTEGER NOT NULL DEFAULT 3",
    "CREATE TABLE u (x); SELECT no_such_function()",
};

static struct temp_dir dir;
static char file[128], words[1024];
static struct buf why;
static struct store *st;

static struct store_config config_of(uint32_t n_migrations)
{
    return (struct store_config){.file = file,
                                 .noun = "the things",
                                 .application_id = 0x12345678,
                                 .migrations = migrations,
                                 .n_migrations = n_migrations,
                                 .statements = statements,
                                 .n_statements = N,
                                 .n_readers = 2};
}

static enum status reopen(uint32_t n_migrations)
{
    struct store_config config = config_of(n_migrations);

    store_close(st);
    return store_open(&st, &config, &why);
}

static int setup(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/things.db", dir.path);
    buf_init(&why, sizeof words);
    st = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    store_close(st);
    buf_fini(&why);
    temp_dir_remove(&dir);
    return 0;
}

static enum status put(struct store_link *link, int64_t k, const char *v)
{
    return store_run(link, PUT, STORE_VALUES(store_int(k), store_str(v)), &why);
}

static void put_one(int64_t k, const char *v)
{
    struct store_link *link;

    assert_ok(store_begin(st, &link, &why));
    assert_ok(put(link, k, v));
    assert_ok(store_commit(st, &why));
}

static int64_t count(void)
{
    struct store_link *link = store_reader(st);
    int64_t n = -1;

    assert_ok(store_run_int(link, COUNT, NULL, 0, &n, &why));
    store_put_back(st, link);
    return n;
}

static void write_file(const char *path, const void *bytes, size_t n, long at)
{
    FILE *f = fopen(path, at < 0 ? "w" : "r+");

    assert_non_null(f);
    assert_int_equal(fseek(f, at < 0 ? 0 : at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void values_are_read_as_they_were_bound(void **state)
{
    static const char bytes[] = "a\0b'; DROP TABLE t; --";
    struct store_link *link;
    struct store_rows r, inner;
    bool has_row;
    size_t len;
    (void)state;

    assert_ok(reopen(1));
    assert_ok(store_begin(st, &link, NULL));
    assert_ok(store_run(link, PUT,
                        STORE_VALUES(store_int(INT64_MIN), store_blob(bytes, sizeof bytes)), NULL));
    assert_int_equal(store_n_changed(link), 1);
    assert_ok(store_commit(st, NULL));
    link = store_reader(st);
    assert_ok(store_query(&r, link, GET, STORE_VALUES(store_int(INT64_MIN)), NULL));
    assert_ok(store_next(&r, &has_row, NULL));
    assert_true(has_row);
    assert_memory_equal(store_get_bytes(&r, 0, &len), bytes, sizeof bytes);
    assert_int_equal(len, sizeof bytes);
    assert_true(store_get_int(&r, 1) == INT64_MIN);
    /* The same statement inside of itself. */
    assert_ok(store_query(&inner, link, GET, STORE_VALUES(store_int(5)), NULL));
    assert_ok(store_next(&inner, &has_row, NULL));
    assert_false(has_row);
    store_end(&inner);
    assert_ok(store_next(&r, &has_row, NULL));
    assert_false(has_row);
    store_end(&r);
    store_put_back(st, link);
}

static void the_file_is_private_and_survives_closing(void **state)
{
    struct stat about;
    (void)state;

    assert_ok(reopen(1));
    put_one(1, "one");
    assert_ok(reopen(1));
    assert_int_equal(count(), 1);
    assert_ok(store_verify(st, &why));
    assert_int_equal(stat(file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_true(store_file_bytes(st) > 0);
}

static void parts_of_a_transaction_are_rolled_back_alone(void **state)
{
    struct store_link *link;
    (void)state;

    for (int in_memory = 0; in_memory < 2; in_memory++) {
        struct store_config config = config_of(1);
        config.file = in_memory ? NULL : file;
        store_close(st);
        assert_ok(store_open(&st, &config, &why));
        assert_ok(store_begin(st, &link, NULL));
        assert_ok(put(link, 1, "kept"));
        assert_ok(store_begin(st, &link, NULL));
        assert_ok(put(link, 2, "dropped"));
        assert_int_equal(count(), 2); /* a read of this thread */
        store_rollback(st);
        assert_ok(store_begin(st, &link, NULL));
        assert_ok(put(link, 3, "kept"));
        assert_ok(store_commit(st, NULL));
        assert_int_equal(count(), 2);
        assert_ok(store_commit(st, NULL));
        assert_ok(store_begin(st, &link, NULL));
        assert_ok(put(link, 4, "dropped"));
        store_rollback(st);
        assert_int_equal(count(), 2);
    }
}

static void *read_count(void *out)
{
    *(int64_t *)out = count();
    return NULL;
}

static void a_reader_does_not_wait_for_a_writer(void **state)
{
    struct store_link *link;
    pthread_t thread;
    int64_t n = -1;
    (void)state;

    assert_ok(reopen(1));
    put_one(1, "one");
    assert_ok(store_begin(st, &link, NULL));
    assert_ok(put(link, 2, "two"));
    assert_int_equal(pthread_create(&thread, NULL, read_count, &n), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(n, 1);
    assert_ok(store_commit(st, NULL));
    assert_int_equal(count(), 2);
}

/* --- versions --- */

static void an_older_file_is_brought_up_to_date(void **state)
{
    struct store_link *link;
    (void)state;

    assert_ok(reopen(1));
    put_one(1, "one");
    assert_ok(reopen(2));
    assert_ok(store_begin(st, &link, NULL));
    assert_ok(store_run(link, PUT_NEW, STORE_VALUES(store_int(2), store_str("two")), &why));
    assert_ok(store_commit(st, NULL));
    assert_int_equal(count(), 2);
    assert_int_equal(reopen(1), ERR_UNSUPPORTED);
    assert_non_null(strstr(why.data, "schema 2; this version knows 1 to 1"));
}

static void a_migration_that_fails_leaves_the_old_version(void **state)
{
    (void)state;
    assert_ok(reopen(2));
    put_one(1, "one");
    assert_int_not_equal(reopen(3), OK);
    assert_ok(reopen(2));
    assert_int_equal(count(), 1);
}

static void a_database_of_another_program_is_refused(void **state)
{
    struct store_config config = config_of(1);
    (void)state;

    assert_ok(reopen(1));
    store_close(st);
    config.application_id = 77;
    assert_int_equal(store_open(&st, &config, &why), ERR_CORRUPT);
    assert_non_null(strstr(why.data, "another program"));
    assert_ok(reopen(1));
}

/* --- damage --- */

static void what_is_not_a_database_is_refused_and_left_alone(void **state)
{
    char junk[20000], now[sizeof junk];
    (void)state;

    memset(junk, 'x', sizeof junk);
    write_file(file, junk, sizeof junk, -1);
    assert_int_equal(reopen(1), ERR_CORRUPT);
    assert_non_null(strstr(why.data, file));
    assert_non_null(strstr(why.data, "move it away"));
    FILE *f = fopen(file, "r");
    assert_int_equal(fread(now, 1, sizeof now, f), sizeof now);
    fclose(f);
    assert_memory_equal(now, junk, sizeof now);
}

static void fill(int64_t n)
{
    static char text[2000];
    struct store_link *link;

    memset(text, 't', sizeof text - 1);
    assert_ok(store_begin(st, &link, NULL));
    for (int64_t i = 0; i < n; i++)
        assert_ok(put(link, i, text));
    assert_ok(store_commit(st, NULL));
}

static void a_damaged_or_truncated_file_is_an_error_never_a_crash(void **state)
{
    char junk[4096];
    (void)state;

    memset(junk, 0xa5, sizeof junk);
    for (int i = 0; i < 2; i++) {
        struct store_link *link;
        int64_t n = 0;

        unlink(file);
        assert_ok(reopen(1));
        fill(100);
        store_close(st);
        st = NULL;
        if (i == 0)
            write_file(file, junk, sizeof junk, 8192 * 5);
        else
            assert_int_equal(truncate(file, 8192 * 6), 0);
        enum status s = reopen(1);
        if (s == OK) {
            assert_int_equal(store_verify(st, &why), ERR_CORRUPT);
            link = store_reader(st);
            s = store_run_int(link, SUM, NULL, 0, &n, &why);
            store_put_back(st, link);
        }
        assert_int_equal(s, ERR_CORRUPT);
        assert_non_null(strstr(why.data, "Restore it from a copy"));
        store_close(st);
        st = NULL;
    }
}

static void impossible_places_are_named(void **state)
{
    (void)state;
    snprintf(file, sizeof file, "%s/none/things.db", dir.path);
    assert_int_equal(reopen(1), ERR_IO);
    assert_non_null(strstr(why.data, "none/things.db"));
    snprintf(file, sizeof file, "%s/folder", dir.path);
    assert_int_equal(mkdir(file, 0700), 0);
    assert_int_equal(reopen(1), ERR_IO);
    assert_non_null(strstr(why.data, "not a regular file"));
    if (geteuid() == 0) /* root writes everywhere */
        return;
    assert_int_equal(chmod(file, 0500), 0);
    snprintf(file, sizeof file, "%s/folder/things.db", dir.path);
    assert_int_equal(reopen(1), ERR_IO);
    assert_non_null(strstr(why.data, strerror(EACCES)));
}

/* --- full --- */

static void a_full_file_keeps_what_it_has(void **state)
{
    static char text[100000];
    struct store_config config = config_of(1);
    struct store_link *link;
    int64_t n = 0;
    enum status s = OK;
    (void)state;

    memset(text, 'x', sizeof text - 1);
    config.max_bytes = 1 << 20;
    assert_ok(store_open(&st, &config, &why));
    while (s == OK && n < 100) {
        assert_ok(store_begin(st, &link, NULL));
        if ((s = put(link, n, text)) == OK)
            assert_ok(store_commit(st, NULL));
        else
            store_rollback(st);
        n += s == OK;
    }
    assert_int_equal(s, ERR_FULL);
    assert_non_null(strstr(why.data, "full"));
    assert_in_range(n, 5, 11);
    assert_int_equal(count(), n);
    assert_ok(reopen(1));
    assert_int_equal(count(), n);
    assert_ok(store_verify(st, NULL));
}

/* SQLite may have ended the transaction by itself: later parts must not be kept without it. */
static void a_group_with_an_error_is_never_kept_in_part(void **state)
{
    static char text[400000];
    struct store_config config = config_of(1);
    struct store_link *link;
    enum status s;
    (void)state;

    memset(text, 'x', sizeof text - 1);
    config.max_bytes = 1 << 20;
    assert_ok(store_open(&st, &config, &why));
    assert_ok(store_begin(st, &link, NULL));
    assert_ok(put(link, 1, "first"));
    for (int i = 2; i < 6; i++) {
        if (store_begin(st, &link, NULL) != OK)
            continue;
        if (put(link, i, i == 5 ? "last" : text) == OK)
            assert_ok(store_commit(st, NULL));
        else
            store_rollback(st);
    }
    s = store_commit(st, &why);
    /* Either the whole group without the parts that failed, or nothing. */
    int64_t n = count();
    assert_true(s == OK ? n >= 2 : n == 0);
}

/* The system refuses to let the file grow: in a child, because the limit is the process's. */
static void a_write_that_the_system_refuses_keeps_what_was_there(void **state)
{
    int about;
    (void)state;

    assert_ok(reopen(1));
    put_one(1, "one");
    store_close(st);
    st = NULL;
    pid_t child = fork();
    if (child == 0) {
        static char text[3000000];
        struct rlimit limit = {1 << 20, 1 << 20};
        struct store_config config = config_of(1);
        struct store_link *link;
        bool good = store_open(&st, &config, NULL) == OK;

        memset(text, 'x', sizeof text - 1);
        signal(SIGXFSZ, SIG_IGN);
        good = good && setrlimit(RLIMIT_FSIZE, &limit) == 0 && store_begin(st, &link, NULL) == OK;
        enum status s = good ? put(link, 2, text) : OK;
        if (good && s == OK)
            s = store_commit(st, &why);
        else if (good)
            store_rollback(st);
        good = good && s == ERR_IO && strstr(why.data, file) && count() == 1;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &about, 0), child);
    assert_true(WIFEXITED(about) && WEXITSTATUS(about) == 0);
    assert_ok(reopen(1));
    assert_int_equal(count(), 1);
    assert_ok(store_verify(st, NULL));
}

/* --- one process --- */

static void the_file_belongs_to_one_opener(void **state)
{
    struct store_config config = config_of(1);
    struct store *second;
    char number[32];
    int about;
    (void)state;

    assert_ok(reopen(1));
    snprintf(number, sizeof number, "(number %ld)", (long)getpid());
    assert_int_equal(store_open(&second, &config, &why), ERR_BUSY);
    assert_non_null(strstr(why.data, "in use by another process"));
    assert_non_null(strstr(why.data, number));
    pid_t child = fork();
    if (child == 0)
        _exit(store_open(&second, &config, NULL) == ERR_BUSY ? 0 : 1);
    assert_int_equal(waitpid(child, &about, 0), child);
    assert_true(WIFEXITED(about) && WEXITSTATUS(about) == 0);
    put_one(1, "one");
    assert_ok(reopen(1));
}

/* --- words --- */

static bool take_word(void *arg, const char *word, size_t len)
{
    size_t n = strlen(arg);

    snprintf((char *)arg + n, 256 - n, "%.*s|", (int)len, word);
    return len != 4 || memcmp(word, "stop", 4) != 0;
}

static void texts_are_cut_into_folded_words(void **state)
{
    const char text[] = "\xc3\x9c"
                        "n\xc3\xaf-Code's 42\0NUL \xe2\x80\x9cquoted\xe2\x80\x9d \xff OR* stop not";
    char got[256] = "";
    struct store_link *link;
    (void)state;

    assert_ok(reopen(1));
    link = store_reader(st);
    assert_ok(store_words(link, text, sizeof text - 1, take_word, got, NULL));
    store_put_back(st, link);
    assert_non_null(strstr(got, "uni|code|s|42|nul|quoted|"));
    assert_non_null(strstr(got, "or|stop|"));
    assert_null(strstr(got, "not"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(values_are_read_as_they_were_bound),
        T(the_file_is_private_and_survives_closing),
        T(parts_of_a_transaction_are_rolled_back_alone),
        T(a_reader_does_not_wait_for_a_writer),
        T(an_older_file_is_brought_up_to_date),
        T(a_migration_that_fails_leaves_the_old_version),
        T(a_database_of_another_program_is_refused),
        T(what_is_not_a_database_is_refused_and_left_alone),
        T(a_damaged_or_truncated_file_is_an_error_never_a_crash),
        T(impossible_places_are_named),
        T(a_full_file_keeps_what_it_has),
        T(a_group_with_an_error_is_never_kept_in_part),
        T(a_write_that_the_system_refuses_keeps_what_was_there),
        T(the_file_belongs_to_one_opener),
        T(texts_are_cut_into_folded_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
