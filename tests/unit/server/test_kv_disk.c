/* test_kv_disk.c - the messages about the disk tier at start. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "server/kv_disk.h"

static const struct cache_stats store = {.tier[CACHE_DISK] = {.n_blocks = 1000},
                                         .disk = {.is_on = true,
                                                  .io = "io_uring",
                                                  .is_direct = true,
                                                  .extent_bytes = 8192,
                                                  .index_s = 0.3125,
                                                  .n_found = 380}};

static void expect(const struct cache_stats *c, const char *want)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    kv_disk_print(f, "/var/kv", c);
    fclose(f);
    assert_string_equal(text, want);
    free(text);
}

static void the_line_has_the_size_and_the_found_blocks(void **state)
{
    struct cache_stats c = store;

    (void)state;
    expect(&c, "Disk KV cache size: 32000 tokens (8.2 MB) in /var/kv: 380 blocks found in 0.31 s "
               "(io_uring, O_DIRECT)\n");
    c.disk.io = "threads";
    c.disk.is_direct = false;
    expect(&c, "Disk KV cache size: 32000 tokens (8.2 MB) in /var/kv: 380 blocks found in 0.31 s "
               "(threads, page cache)\n");
    c.disk.is_on = false;
    expect(&c, "");
}

static void what_was_dropped_has_its_reason(void **state)
{
    struct cache_stats c = store;

    (void)state;
    c.disk.n_orphaned = 2;
    expect(&c, "Disk KV cache size: 32000 tokens (8.2 MB) in /var/kv: 380 blocks found in 0.31 s "
               "(io_uring, O_DIRECT)\n  records that cannot be used: 2 orphaned\n");
    c.disk.n_torn = 11;
    c.disk.n_foreign = 12;
    c.disk.n_impossible = 13;
    c.disk.n_misnamed = 14;
    c.disk.n_doubled = 15;
    expect(&c, "Disk KV cache size: 32000 tokens (8.2 MB) in /var/kv: 380 blocks found in 0.31 s "
               "(io_uring, O_DIRECT)\n  records that cannot be used: 11 torn, 12 foreign, "
               "13 impossible, 14 misnamed, 2 orphaned, 15 doubled\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_has_the_size_and_the_found_blocks),
        cmocka_unit_test(what_was_dropped_has_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
