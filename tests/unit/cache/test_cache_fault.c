/* Each allocation of the cache fails once: an error or no effect, and nothing is lost.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/test.h"

#include <malloc.h>

#include "tests/unit/cache/cache_prompt.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

/* Enough runs to fill the allocator's lists of free chunks, which count as allocated. */
#define N_WARM_UP 20

static size_t n_allocated(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

/* Create a cache of every kind, each time failing later. Return how many allocations failed. */
static long fail_every_create(void)
{
    enum status s;
    struct cache *c;
    long n_failed = 0;

    for (int kind = 0; kind < 4; kind++) {
        struct cache_config config = small_config(16, kind ? 32 : 0);

        config.always_copy = kind & 1;
        config.prefix_caching = kind < 3;
        s = ERR_NOMEM;
        for (long n = 1; s != OK; n++) {
            fail_in = n;
            s = cache_create(&c, &config, NULL);
            fail_in = 0;
            assert_true(s == OK ? c != NULL : s == ERR_NOMEM && c == NULL);
            n_failed += s != OK;
        }
        cache_check(c);
        cache_destroy(c);
    }
    return n_failed;
}

static void a_cache_that_cannot_be_made_is_an_error(void **state)
{
    long n_failed = 0;

    (void)state;
    for (int i = 0; i < N_WARM_UP; i++)
        n_failed = fail_every_create();
    assert_true(n_failed > 40);
    size_t before = n_allocated();
    for (int i = 0; i < N_WARM_UP; i++)
        fail_every_create();
    assert_int_equal(n_allocated(), before);
}

static void a_failed_create_states_the_reason(void **state)
{
    struct cache_config config = small_config(16, 32);
    struct cache *c;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_reserve(&why, 500)); /* allocated before allocations fail */
    for (long n = 1; n < 4; n++) {
        buf_reset(&why);
        fail_in = n;
        assert_int_equal(cache_create(&c, &config, &why), ERR_NOMEM);
        fail_in = 0;
        assert_true(why.len > 0);
    }
    buf_fini(&why);
}

static void run(struct cache *c, const struct prompt *q)
{
    struct cache_seq *s;

    assert_ok(cache_seq_open(c, &q->p, q->p.n_ids, &s));
    uint32_t hit = cache_seq_attach(s, NULL);
    assert_ok(cache_seq_grow(s, q->p.n_ids - hit));
    cache_seq_commit(s, q->p.n_ids - hit);
    cache_seq_close(s);
}

static void a_sequence_without_memory_is_an_error(void **state)
{
    struct cache_config config = small_config(16, 32);
    struct cache_seq *s;
    struct prompt q;
    struct cache *c;

    (void)state;
    prompt_of(&q, "AAA|BB");
    assert_ok(cache_create(&c, &config, NULL));
    run(c, &q);
    fail_in = 1;
    assert_int_equal(cache_seq_open(c, &q.p, q.p.n_ids, &s), ERR_NOMEM);
    fail_in = 0;
    assert_null(s);
    cache_check(c);
    cache_destroy(c); /* asserts that no sequence is open */
}

static void a_hold_without_memory_has_no_effect(void **state)
{
    struct cache_config config = small_config(16, 32);
    struct cache_stats stats;
    struct cache_seq *s;
    struct prompt q;
    struct cache *c;

    (void)state;
    prompt_of(&q, "AAA|BB|C");
    assert_ok(cache_create(&c, &config, NULL));
    run(c, &q);
    assert_ok(cache_seq_open(c, &q.p, q.p.n_ids, &s));
    fail_in = 1;
    cache_seq_expect(s, 0);
    cache_seq_expect(s, 1000000000u);
    cache_spill_ahead(c, 14);
    (void)cache_seq_prefetch(s);
    assert_int_equal(fail_in, 1); /* none of these allocates */
    assert_int_equal(cache_seq_hold(s, q.p.n_ids, &(struct cache_hold){.until_ns = 1000}, NULL), 0);
    assert_int_equal(fail_in, 0);
    cache_check(c);
    cache_stats(c, &stats);
    assert_true(stats.n_holds == 0 && stats.n_held_blocks == 0);
    cache_seq_expect(s, 0); /* and again, with memory */
    assert_int_equal(cache_seq_hold(s, q.p.n_ids, &(struct cache_hold){.until_ns = 1000}, NULL),
                     192);
    cache_check(c);
    cache_seq_close(s);
    (void)cache_poll(c, 1000);
    cache_check(c);
    cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_that_cannot_be_made_is_an_error),
        cmocka_unit_test(a_failed_create_states_the_reason),
        cmocka_unit_test(a_sequence_without_memory_is_an_error),
        cmocka_unit_test(a_hold_without_memory_has_no_effect),
    };
    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}

#endif
