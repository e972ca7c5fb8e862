/* test_memory.c - zeroed memory whose pages exist at once. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

#define N_BYTES ((size_t)16 << 20)

static void all_bytes_are_zero(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) { /* the second block may reuse the first one's memory */
        unsigned char *p = memory_zeroed(999, 33);
        assert_non_null(p);
        for (size_t at = 0; at < 999 * 33; at++)
            assert_int_equal(p[at], 0);
        memset(p, 0xff, 999 * 33);
        free(p);
    }
}

static void all_pages_are_in_memory(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_absent = 0;
    static unsigned char resident[N_BYTES / 4096 + 1];

    (void)state;
    char *p = memory_zeroed(N_BYTES / 16, 16);
    assert_non_null(p);
    uintptr_t first = ((uintptr_t)p + page - 1) / page * page;
    size_t n_pages = ((uintptr_t)p + N_BYTES - first) / page; /* whole pages */
    assert_true(n_pages > 0 && n_pages <= sizeof resident);
    assert_int_equal(mincore((void *)first, n_pages * page, resident), 0);
    for (size_t i = 0; i < n_pages; i++)
        n_absent += !(resident[i] & 1);
    assert_int_equal(n_absent, 0);
    free(p);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their calloc() aborts */
static void a_product_that_overflows_gives_null(void **state)
{
    (void)state;
    assert_null(memory_zeroed(SIZE_MAX / 2, 4));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_are_zero),
        cmocka_unit_test(all_pages_are_in_memory),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(a_product_that_overflows_gives_null),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
