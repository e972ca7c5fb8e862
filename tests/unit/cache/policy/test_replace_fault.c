/* Each allocation of replace_create() fails once; later calls allocate nothing.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/test.h"

#include "cache/policy/replace.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

#define N_ALLOCATIONS_MAX 1000000000L

static const struct replace_config config = {REPLACE_CONTEST, 50, 2, {20, 40}, false};

static void a_failed_allocation_is_an_answer(void **state)
{
    struct replace *r = NULL;
    enum status s = ERR_NOMEM;
    long n;

    (void)state;
    for (n = 1; s != OK && n < 100; n++) {
        fail_in = n;
        s = replace_create(&r, &config);
        fail_in = 0;
        assert_true(s == OK ? r != NULL : s == ERR_NOMEM && r == NULL);
    }
    assert_true(n > 5 && s == OK);
    replace_destroy(r);
}

static void no_event_allocates(void **state)
{
    struct replace_access access = {.miss_s_per_byte = 1, .own_s_per_byte = 1};
    struct replace_victim v;
    struct replace *r;

    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace_config one = config;

        one.policy = (enum replace_policy)p;
        assert_ok(replace_create(&r, &one));
        fail_in = N_ALLOCATIONS_MAX;
        for (uint64_t key = 0; key < 2000; key++) {
            uint32_t id = replace_enter(r, key % 300, REPLACE_NONE, 0, 1);

            replace_accessed(r, id, &access);
            while (!replace_has_room(r, 0, 1)) {
                assert_ok(replace_evict(r, 0, &v));
                replace_leave(r, v.id);
            }
            replace_insert(r, 0, id);
            replace_pin(r, 0, id);
            replace_expect(r, id, +1);
            replace_unpin(r, 0, id);
            replace_expect(r, id, -1);
        }
        assert_int_equal(fail_in, N_ALLOCATIONS_MAX);
        fail_in = 0;
        replace_destroy(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_is_an_answer),
        cmocka_unit_test(no_event_allocates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
