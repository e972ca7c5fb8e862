/* test_prefault.c - pages that exist before they are used. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/prefault.h"

#define MB ((size_t)1 << 20)
#define N_WAITS 20000 /* of a millisecond */

static unsigned char *map(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

static size_t n_resident(unsigned char *p, size_t n_bytes)
{
    static unsigned char pages[64 * MB / 4096];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;

    assert_int_equal(mincore(p, n_bytes, pages), 0);
    for (size_t i = 0; i < n_bytes / page; i++)
        n += pages[i] & 1;
    return n * page;
}

static void wait_for(const struct prefault *p, size_t n_bytes)
{
    for (int i = 0; i < N_WAITS && prefault_n_done(p) < n_bytes; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_true(prefault_n_done(p) >= n_bytes);
}

static bool kernel_can(void)
{
    unsigned char *p = map(MB);
    bool can = madvise(p, MB, 23) == 0; /* MADV_POPULATE_WRITE */

    munmap(p, MB);
    return can;
}

static void pages_are_supplied_up_to_the_distance_and_keep_their_content(void **state)
{
    unsigned char *memory = map(32 * MB);
    struct prefault *p;

    (void)state;
    if (!kernel_can())
        skip();
    memory[5] = 7;
    p = prefault_create(memory, 32 * MB, 8 * MB);
    assert_non_null(p);
    wait_for(p, 8 * MB);
    assert_in_range(n_resident(memory, 32 * MB), 8 * MB, 12 * MB); /* huge pages reach further */
    assert_int_equal(memory[5], 7);
    prefault_reach(p, 10 * MB);
    wait_for(p, 18 * MB);
    assert_in_range(n_resident(memory, 32 * MB), 18 * MB, 22 * MB);
    assert_int_equal(memory[5], 7);
    prefault_destroy(p);
    munmap(memory, 32 * MB);
}

static void a_reach_beyond_the_end_supplies_all(void **state)
{
    unsigned char *memory = map(4 * MB);
    struct prefault *p;

    (void)state;
    if (!kernel_can())
        skip();
    p = prefault_create(memory + 100, 4 * MB - 4196, MB);
    assert_non_null(p);
    prefault_reach(p, 1);
    prefault_reach(p, (size_t)1 << 40);
    wait_for(p, 4 * MB - 2 * 4096 - 4096);
    prefault_reach(p, 2);
    prefault_destroy(p);
    munmap(memory, 4 * MB);
}

static void an_early_end_stops_the_thread(void **state)
{
    unsigned char *memory = map(64 * MB);

    (void)state;
    for (int i = 0; i < 20; i++) {
        struct prefault *p = prefault_create(memory, 64 * MB, 64 * MB);

        assert_non_null(p);
        prefault_destroy(p);
    }
    prefault_destroy(NULL);
    munmap(memory, 64 * MB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_supplied_up_to_the_distance_and_keep_their_content),
        cmocka_unit_test(a_reach_beyond_the_end_supplies_all),
        cmocka_unit_test(an_early_end_stops_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
