/* test_catalog_kill.c - the catalog's file: SIGKILL at any moment, other processes, many
 * threads. */
#include "tests/unit/engine/retrieval/catalog_world.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/temp_dir.h"

#define N_KILLS 16
#define N_IN_GROUP 5

static struct temp_dir dir;
static char file[128], words[1024];
static struct buf why;

static int setup(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/documents.db", dir.path);
    buf_init(&why, sizeof words);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    buf_fini(&why);
    temp_dir_remove(&dir);
    return 0;
}

static void put_group(struct catalog *c, uint32_t g)
{
    char id[32], text[256];

    assert_ok(catalog_begin(c, NULL));
    for (uint32_t i = 0; i < N_IN_GROUP; i++) {
        snprintf(id, sizeof id, "g%u-%u", g, i);
        snprintf(text, sizeof text, "group%ug document %u with some more words to index", g, i);
        put(c, "t", id, text);
    }
    snprintf(text, sizeof text, "counter at %u", g);
    put(c, "t", "counter", text);
    assert_ok(catalog_commit(c, NULL));
}

/* How many documents of a group the search finds. */
static uint32_t find_group(struct catalog *c, uint32_t g)
{
    const struct catalog_scope scope = {.tenant = "t", .own = true};
    struct catalog_hit hits[2 * N_IN_GROUP];
    char word[32];
    uint32_t n;

    snprintf(word, sizeof word, "group%ug", g);
    assert_ok(
        catalog_search_text(c, &scope, word, strlen(word), NULL, 2 * N_IN_GROUP, hits, &n, NULL));
    return n;
}

/* Import groups from `first` on for ever; write the number of each one after its commit. */
static void import_until_killed(uint32_t first, int out)
{
    struct catalog *c;

    if (catalog_open(&c, file, 0, NULL) != OK)
        _exit(1);
    for (uint32_t g = first;; g++) {
        put_group(c, g);
        if (write(out, &g, sizeof g) != (ssize_t)sizeof g)
            _exit(1);
    }
}

/* Let a child import, and kill it. Returns the groups that it reported as committed. */
static uint32_t import_and_kill(uint32_t first, uint32_t round)
{
    uint32_t g, n_reported = first, n_wanted = rng_u32(round, 0) % 6;
    int ends[2], about;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        import_until_killed(first, ends[1]);
    }
    close(ends[1]);
    while (n_reported < first + n_wanted && read(ends[0], &g, sizeof g) == (ssize_t)sizeof g)
        n_reported = g + 1;
    clock_sleep_ns(rng_u32(round, 1) % 8000000); /* at any point of the next group, or of opening */
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &about, 0), child);
    assert_true(WIFSIGNALED(about));
    while (read(ends[0], &g, sizeof g) == (ssize_t)sizeof g)
        n_reported = g + 1;
    close(ends[0]);
    return n_reported;
}

static void sigkill_during_an_import_loses_nothing_that_was_committed(void **state)
{
    struct catalog_stats stats;
    struct document d;
    uint32_t n_reported = 0, n_whole = 0;
    (void)state;

    document_init(&d);
    for (uint32_t round = 0; round < N_KILLS; round++) {
        struct catalog *c;
        char text[64];

        n_reported = import_and_kill(n_whole, round);
        assert_ok(catalog_open(&c, file, 0, &why));
        assert_ok(catalog_check(c, &why));
        for (n_whole = 0; find_group(c, n_whole) == N_IN_GROUP; n_whole++)
            ;
        assert_true(n_whole >= n_reported);
        assert_int_equal(find_group(c, n_whole), 0); /* whole or not there */
        assert_ok(catalog_stats(c, "t", &stats));
        assert_int_equal(stats.n_documents, n_whole > 0 ? n_whole * N_IN_GROUP + 1 : 0);
        if (n_whole > 0) {
            assert_ok(catalog_get(c, "t", "counter", &d, NULL));
            assert_int_equal(d.version, n_whole);
            snprintf(text, sizeof text, "counter at %u", n_whole - 1);
            assert_string_equal(buf_str(&d.text), text);
        }
        catalog_close(c);
    }
    assert_true(n_whole > 0);
    document_fini(&d);
}

static void a_second_process_is_refused_with_words(void **state)
{
    struct catalog *c, *second;
    int about;
    (void)state;

    assert_ok(catalog_open(&c, file, 0, NULL));
    pid_t child = fork();
    if (child == 0)
        _exit(catalog_open(&second, file, 0, &why) == ERR_BUSY && strstr(why.data, file) ? 0 : 1);
    assert_int_equal(waitpid(child, &about, 0), child);
    assert_true(WIFEXITED(about) && WEXITSTATUS(about) == 0);
    put(c, "t", "x", "text");
    catalog_close(c);
    assert_ok(catalog_open(&c, file, 0, NULL));
    catalog_close(c);
}

static void uses_and_paths_survive_closing(void **state)
{
    struct document_path p = {.version = 1, .used_s = 5}, got, oldest;
    struct document d;
    struct catalog *c;
    int64_t row;
    bool dropped;
    uint32_t n;
    (void)state;

    document_init(&d);
    assert_ok(catalog_open(&c, file, 0, NULL));
    row = put(c, "t", "x", "text").row;
    catalog_note_use(c, &row, 1);
    assert_ok(catalog_add_path(c, row, &p, &oldest, &dropped, NULL));
    catalog_close(c);
    assert_ok(catalog_open(&c, file, 0, NULL));
    assert_ok(catalog_get(c, "t", "x", &d, NULL));
    assert_true(d.row == row && d.n_uses == 1);
    assert_ok(catalog_paths(c, row, &got, 1, &n, NULL));
    assert_true(n == 1 && got.used_s == 5);
    catalog_close(c);
    document_fini(&d);
}

/* --- threads --- */

#define N_GROUPS 40
#define N_THREADS 6 /* more than reading connections */

static struct catalog *shared;
static atomic_bool is_finished;
static atomic_uint n_bad, n_reads;

static bool count_document(void *arg, const struct document *d)
{
    (void)d;
    ++*(uint32_t *)arg;
    return true;
}

static void *read_all(void *arg)
{
    struct document d;
    bool has_more;

    document_init(&d);
    for (uint32_t i = (uint32_t)(uintptr_t)arg; !is_finished || i < 20; i++, n_reads++) {
        uint32_t n = find_group(shared, i % N_GROUPS), n_listed = 0;
        enum status s = catalog_get(shared, "t", "g3-1", &d, NULL);

        n_bad += n != 0 && n != N_IN_GROUP;
        n_bad += s != OK && s != ERR_NOT_FOUND;
        s = catalog_list(shared, "t", NULL, 1000, NULL, count_document, &n_listed, &has_more, NULL);
        n_bad += s != OK || n_listed % N_IN_GROUP > 1; /* whole groups and the counter */
    }
    document_fini(&d);
    return NULL;
}

static void *write_others(void *arg)
{
    int64_t row;

    for (uint32_t i = 0; i < 60; i++) {
        char id[16];
        snprintf(id, sizeof id, "own%u", i % 7);
        put(shared, "u", id, i % 2 ? "one text" : "another text");
        if (i % 3 == 0)
            n_bad += catalog_delete(shared, "u", id, &row, NULL) != OK;
    }
    return arg;
}

static void readers_see_whole_groups_while_others_write(void **state)
{
    pthread_t threads[N_THREADS], writer;
    (void)state;

    for (int in_memory = 0; in_memory < 2; in_memory++) {
        is_finished = false;
        assert_ok(catalog_open(&shared, in_memory ? NULL : file, 0, NULL));
        for (uintptr_t i = 0; i < N_THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, read_all, (void *)i), 0);
        assert_int_equal(pthread_create(&writer, NULL, write_others, NULL), 0);
        for (uint32_t g = 0; g < N_GROUPS; g++)
            put_group(shared, g);
        is_finished = true;
        assert_int_equal(pthread_join(writer, NULL), 0);
        for (int i = 0; i < N_THREADS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(n_bad, 0);
        assert_true(n_reads >= N_THREADS);
        for (uint32_t g = 0; g < N_GROUPS; g++)
            assert_int_equal(find_group(shared, g), N_IN_GROUP);
        assert_ok(catalog_check(shared, &why));
        catalog_close(shared);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(sigkill_during_an_import_loses_nothing_that_was_committed),
        T(a_second_process_is_refused_with_words),
        T(uses_and_paths_survive_closing),
        T(readers_see_whole_groups_while_others_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
