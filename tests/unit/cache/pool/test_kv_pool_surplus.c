/* The order of eviction of the two copies that a pull leaves, and the time from which the lender
 * can use the memory of lent blocks again. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS
#define TWO_SEGMENTS "ABCDEFGHIJKLMNOP"

/* Have b read the prompt from another cache, up to where its blocks lie in staging. */
static void read_all(struct cache *b, struct open_seq *o, const char *text, bool is_first)
{
    fake_of(b)->stalls = true;
    seq(b, o, text);
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o->s, is_first);
        step_all();
    }
    fake_of(b)->stalls = false;
    fake_now += STEP_NS;
    fake_step();
}

static uint32_t n_in_use(const struct cache *c)
{
    return stats_of(c).tier[CACHE_DEVICE].n_in_use;
}

/* --- the end of a lease --- */

static void a_lease_ends_when_all_has_been_read(void **state)
{
    struct cache *a = join(16, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD");
    read_all(b, &o, "ABCDE", true);
    (void)cache_poll(a, fake_now); /* b has placed nothing yet */
    assert_int_equal(n_in_use(a), 0);
    assert_int_equal(match(b, "ABCD"), 0);
    ask(a, "IJKLMNOPQRSTUVW"); /* evicts what was lent */
    assert_int_equal(match(a, "ABCD"), 0);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
    cache_seq_close(o.s);
}

/* Another request reads the same blocks to which a sequence sends queries. */
static void a_lease_that_queries_use_does_not_end_when_all_has_been_read(void **state)
{
    struct cache_config config = query_config_of(64, 0, CACHE_QUERY_ALWAYS);
    struct cache *a = join_with(&config), *b = join_with(&config);
    struct open_seq queries, reads;

    (void)state;
    ask(a, TWO_SEGMENTS);
    seq(b, &queries, TWO_SEGMENTS "Q");
    (void)wait_loaded(b, queries.s);
    assert_int_equal(compute_kv(b, &queries, NULL), 16 * B);
    assert_true(cache_seq_queries(queries.s));
    seq(b, &reads, TWO_SEGMENTS "R");
    cache_seq_bring_here(reads.s);
    (void)wait_loaded(b, reads.s);
    assert_int_equal(fake_of(b)->n_read_blocks, 16);
    pass_ms(5);
    assert_int_equal(n_in_use(a), 16);
    assert_ok(query_kv(b, &queries, 1));
    cache_seq_close(queries.s);
    assert_int_equal(compute_kv(b, &reads, NULL), 16 * B);
    cache_seq_close(reads.s);
    pass_ms(2);
    assert_int_equal(n_in_use(a), 0);
}

/* The reader has no room for the blocks that it has read, and the lease has ended. */
static void what_cannot_be_placed_after_the_lease_is_computed(void **state)
{
    struct cache *a = join(32, 0), *b = join(8, 0);
    struct open_seq first, runs, o;

    (void)state;
    ask(a, "ABCD");
    seq(b, &first, "WXYZ"); /* only the first of the waiting requests may wait for room */
    (void)cache_seq_load(first.s, true);
    read_all(b, &o, "ABCD", false);
    seq(b, &runs, "JKLMNOP"); /* takes all of b's memory */
    assert_int_equal(compute_kv(b, &runs, NULL), 0);
    pass_ms(5);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    cache_seq_close(runs.s);
    cache_seq_close(first.s);
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
    assert_int_equal(match(b, "ABCD"), 4 * B);
    assert_int_equal(n_in_use(b), 0);
    assert_int_equal(n_in_use(a), 0);
    assert_int_equal(ask(b, "ABCD"), 4 * B);
}

/* --- the surplus copy --- */

/* The turn ABCD comes to b after the later one has run in a. */
static void check_borrowed(const char *later, const char *turn, bool is_surplus)
{
    struct cache *a = join(32, 0), *b = join(16, 0);
    uint32_t n = (uint32_t)strlen(turn) * B;

    ask(a, later);
    ask(b, "WXYZ"); /* older than what is pulled */
    assert_int_equal(ask(b, turn), n);
    pass_ms(5);
    ask(b, "KLMNOPQRS"); /* evicts one of the two */
    assert_int_equal(match(b, turn), is_surplus ? 0 : n);
    assert_int_equal(match(b, "WXYZ"), is_surplus ? 4 * B : 0);
    assert_int_equal(match(a, later), (uint32_t)strlen(later) * B);
    leave_world(NULL);
}

static void a_copy_that_goes_on_at_the_lender_is_surplus_at_the_reader(void **state)
{
    (void)state;
    check_borrowed("ABCDEF", "ABCD", true);         /* in the middle of a segment */
    check_borrowed("ABCDEFGHIJ", "ABCDEFGH", true); /* at its end */
}

static void a_copy_that_ends_at_the_lender_is_not_surplus_at_the_reader(void **state)
{
    (void)state;
    check_borrowed("ABCD", "ABCD", false);
}

/* If prompts go on in both instances, the reader's copy stays, as after any pull. */
static void a_reader_that_goes_on_keeps_its_copy(void **state)
{
    struct cache *a = join(16, 0), *b = join(16, 0);

    (void)state;
    ask(a, "ABCDEFGHIJ");
    ask(a, "WXYZ");
    ask(a, "ABCDEFGH"); /* used later than WXYZ */
    ask(b, "KLMN");
    assert_int_equal(ask(b, "ABCDEFGHQ"), 8 * B);
    pass_ms(5);
    ask(b, "OPQRS");
    assert_int_equal(match(b, "ABCDEFGHQ"), 9 * B);
    assert_int_equal(match(b, "KLMN"), 0);
    ask(a, "OPQRS"); /* evicts IJ, and then one of the others */
    assert_int_equal(match(a, "ABCDEFGH"), 0);
    assert_int_equal(match(a, "WXYZ"), 4 * B);
}

static void a_borrowed_copy_that_is_used_again_is_like_others(void **state)
{
    struct cache *a = join(32, 0), *b = join(16, 0);

    (void)state;
    ask(a, "ABCDEF");
    ask(b, "WXYZ");
    assert_int_equal(ask(b, "ABCD"), 4 * B);
    assert_int_equal(ask(b, "ABCD"), 4 * B);
    assert_int_equal(fake_of(b)->n_read_blocks, 4);
    ask(b, "KLMNOPQRS");
    assert_int_equal(match(b, "ABCD"), 4 * B);
    assert_int_equal(match(b, "WXYZ"), 0);
}

/* The path that is moved goes on here, and is to be read elsewhere all the same. */
static void what_is_moved_is_surplus_where_it_was(void **state)
{
    struct cache *a = join(16, 0), *b = join(16, 0);
    struct prompt q;

    (void)state;
    ask(a, "ABCDEFGHIJ");
    ask(a, "WXYZ");
    ask(a, "ABCDEFGH");
    prompt_of(&q, "ABCDEFGH");
    fake_of(a)->copies[fake_of(a)->n_copies++] =
        (struct pool_copy){.last = q.keys[0], .to = 2, .why = POOL_OFFER_MOVE};
    pass_ms(10);
    assert_int_equal(match(b, "ABCDEFGH"), 8 * B);
    ask(a, "OPQRS"); /* evicts IJ, and then one of the others */
    assert_int_equal(match(a, "ABCDEFGH"), 0);
    assert_int_equal(match(a, "WXYZ"), 4 * B);
}

static void a_borrowed_copy_that_is_continued_later_is_kept(void **state)
{
    struct cache *a = join(32, 0), *b = join(16, 0);
    struct open_seq first, second;

    (void)state;
    ask(a, "ABCDEF");
    ask(b, "XYZ");
    seq(b, &first, "ABCD");
    (void)wait_loaded(b, first.s);
    assert_int_equal(compute_kv(b, &first, NULL), 4 * B);
    fake_of(a)->is_away = true;
    seq(b, &second, "ABCDQ");
    (void)wait_loaded(b, second.s);
    assert_int_equal(compute_kv(b, &second, NULL), 4 * B);
    cache_seq_close(second.s);
    cache_seq_close(first.s);
    pass_ms(5);
    ask(b, "KLMNOPQR");
    assert_int_equal(match(b, "ABCDQ"), 5 * B);
    assert_int_equal(match(b, "XYZ"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_teardown(f, leave_world)
        TEST(a_lease_ends_when_all_has_been_read),
        TEST(a_lease_that_queries_use_does_not_end_when_all_has_been_read),
        TEST(what_cannot_be_placed_after_the_lease_is_computed),
        TEST(a_copy_that_goes_on_at_the_lender_is_surplus_at_the_reader),
        TEST(a_copy_that_ends_at_the_lender_is_not_surplus_at_the_reader),
        TEST(a_reader_that_goes_on_keeps_its_copy),
        TEST(a_borrowed_copy_that_is_used_again_is_like_others),
        TEST(what_is_moved_is_surplus_where_it_was),
        TEST(a_borrowed_copy_that_is_continued_later_is_kept),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
