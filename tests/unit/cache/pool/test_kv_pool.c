/* KV of other instances: pulled for waiting requests, lent to others, handed over. */
#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define B KV_BLOCK_TOKENS

/* --- pull --- */

static void what_another_instance_computed_is_pulled(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    assert_int_equal(ask(a, "PPp|ABCDEFGHIJ"), 0);
    assert_int_equal(ask_found(b, "PPp|ABCDEFGHIJ", found), 12 * B + 20);
    assert_int_equal(found[CACHE_REMOTE], 12 * B + 20);
    assert_int_equal(fake_of(b)->n_read_blocks, 13);
    pass_ms(10);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    assert_int_equal(ask_found(b, "PPp|ABCDEFGHIJ", found), 12 * B + 20);
    assert_int_equal(found[CACHE_DEVICE], 12 * B + 20);
    assert_int_equal(fake_of(b)->n_lookups, 1);
}

static void only_what_is_missing_is_pulled(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    ask(a, "PP|ABCDEFGHIJ");
    ask(b, "PP|ABX");
    assert_int_equal(ask_found(b, "PP|ABCDEFGHIJY", found), 12 * B);
    assert_int_equal(found[CACHE_DEVICE], 4 * B);
    assert_int_equal(found[CACHE_REMOTE], 8 * B);
}

static void what_nobody_has_is_computed(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);

    (void)state;
    ask(a, "PP|A");
    assert_int_equal(ask(b, "QQ|A"), 0);
    assert_int_equal(fake_of(b)->n_lookups, 1);
}

static void a_stale_holder_is_passed_over(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0), *c = join(64, 0);

    (void)state;
    ask(a, "ABCD");
    (void)b;
    cache_reset(a);
    ask(b, "XYZ");
    ask(c, "ABCDE");
    assert_int_equal(ask(b, "ABCDE"), 5 * B);
}

static void a_silent_pool_delays_a_request_but_does_not_stop_it(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD");
    fake_of(b)->holds_back = true;
    seq(b, &o, "ABCD");
    for (int i = 0; i < 50; i++) {
        (void)cache_seq_load(o.s, true);
        assert_true(cache_seq_is_loading(o.s));
        step_all();
    }
    cache_seq_stop_loading(o.s); /* the engine's deadline */
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
}

/* Answers of other instances wake the engine; a poll places blocks that have arrived. */
static void an_engine_that_waits_for_the_pool_only_may_sleep(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct cache_config alone = small_config(64, 0);
    struct cache *c = make(&alone);
    struct open_seq o;

    (void)state;
    assert_false(cache_awaits_pool_only(c));
    cache_destroy(c);
    ask(a, "ABCD");
    pass_ms(10);
    fake_of(b)->holds_back = true;
    seq(b, &o, "ABCDE");
    (void)cache_seq_load(o.s, true);
    assert_true(cache_poll(b, fake_now) && cache_seq_is_loading(o.s));
    assert_false(cache_awaits_pool_only(b)); /* another sequence is the first one now */
    assert_true(cache_awaits_pool_only(b));
    fake_of(b)->holds_back = false;
    fake_of(b)->stalls = true;
    pass_ms(5);
    assert_false(cache_awaits_pool_only(b)); /* the answer is here: the sequence reads next */
    (void)cache_seq_load(o.s, true);
    assert_true(cache_awaits_pool_only(b));
    fake_of(b)->stalls = false;
    (void)wait_loaded(b, o.s);
    assert_false(cache_awaits_pool_only(b)); /* the blocks are here: it can run */
    assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
    cache_seq_close(o.s);
}

static void a_lease_that_ends_is_a_miss(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGHIJ");
    fake_of(b)->lease_ns = 20 * STEP_NS;
    fake_of(b)->stalls = true;
    seq(b, &o, "ABCDEFGHIJ");
    for (int i = 0; i < 30; i++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    fake_of(b)->stalls = false;
    fake_of(b)->read_status = ERR_TIMEOUT;
    assert_true(wait_loaded(b, o.s) < 10);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
    pass_ms(2);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
}

static void what_arrived_before_a_fault_is_used(void **state)
{
    static const enum status faults[] = {ERR_TIMEOUT, ERR_NOT_FOUND, ERR_CORRUPT};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct cache *a = join(64, 0), *b = join(64, 0);
        uint32_t found[CACHE_N_TIERS];

        ask(a, "ABCDEFGH|IJKLMNOP|Q");
        fake_of(b)->n_reads_good = 1;
        fake_of(b)->read_status = faults[i];
        assert_int_equal(ask_found(b, "ABCDEFGH|IJKLMNOP|Q", found), 8 * B);
        assert_int_equal(found[CACHE_REMOTE], 8 * B);
        leave_world(NULL);
    }
}

static void a_peer_that_dies_is_a_miss(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGH|IJKL");
    fake_of(b)->stalls = true;
    seq(b, &o, "ABCDEFGH|IJKL");
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    fake_of(a)->is_away = true;
    fake_of(b)->stalls = false;
    assert_true(wait_loaded(b, o.s) < 10);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
}

static void requests_that_wait_for_the_same_blocks_share_a_pull(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o[3];
    static const char *const texts[] = {"ABCDEFGH|I", "ABCDEFGH|J", "ABCDEFGH"};

    (void)state;
    ask(a, "ABCDEFGH|X");
    for (int i = 0; i < 3; i++)
        seq(b, &o[i], texts[i]);
    for (int i = 0; i < 3; i++)
        (void)cache_seq_load(o[i].s, i == 0);
    assert_int_equal(fake_of(b)->n_lookups, 1);
    for (int ms = 0; ms < 20; ms++) {
        for (int i = 0; i < 3; i++)
            (void)cache_seq_load(o[i].s, i == 0);
        step_all();
    }
    for (int i = 0; i < 3; i++) {
        assert_false(cache_seq_is_loading(o[i].s));
        assert_int_equal(compute_kv(b, &o[i], NULL), i == 2 ? 8 * B : 8 * B);
    }
    assert_int_equal(fake_of(b)->n_read_blocks, 8);
    for (int i = 0; i < 3; i++)
        cache_seq_close(o[i].s);
}

static void a_request_that_ends_gives_its_lease_back(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGH|IJKLMNOP|Q");
    fake_of(b)->stalls = true;
    seq(b, &o, "ABCDEFGH|IJKLMNOP|Q");
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    assert_true(n_in(b, CACHE_REMOTE) > 0);
    assert_true(stats_of(a).tier[CACHE_DEVICE].n_in_use == 17);
    cache_seq_close(o.s);
    fake_of(b)->stalls = false;
    pass_ms(5);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    assert_int_equal(stats_of(a).tier[CACHE_DEVICE].n_in_use, 0);
}

static void a_slow_peer_is_not_read_where_computing_is_faster(void **state)
{
    static const double fast = 1e-6, slow = 1e-2;
    struct cache_config config = pool_config_of(64, 0, false);
    struct cache *a = join(64, 0), *b;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &slow;
    b = join_with(&config);
    ask(a, "ABCDEFGH");
    fake_of(b)->bytes_per_s = 1; /* 512 s for a block, 0.32 s to compute it */
    assert_int_equal(ask(b, "ABCDEFGH"), 0);
    assert_int_equal(stats_of(b).tier[CACHE_REMOTE].n_not_worth, 1);
    config.seconds_arg = &fast;
    b = join_with(&config);
    assert_int_equal(ask(b, "ABCDEFGH"), 0); /* 0.26 ms in all: a lookup takes longer */
    assert_int_equal(fake_of(b)->n_lookups, 0);
}

/* 0.26 ms to compute everything, 1 ms for a lookup; ten times as long while others use the
 * processor, too. */
static void where_steps_are_slow_more_is_asked_for(void **state)
{
    static const double fast = 1e-6;
    struct cache_config config = pool_config_of(64, 0, false);
    struct cache *a = join(64, 0), *b;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &fast;
    b = join_with(&config);
    ask(a, "ABCDEFGH");
    assert_int_equal(ask(b, "ABCDEFGH"), 0);
    cache_reset(b);
    cache_set_pace(b, 10);
    assert_int_equal(ask(b, "ABCDEFGHI"), 8 * B);
    assert_int_equal(fake_of(b)->n_lookups, 1);
}

/* 0.26 ms to compute everything, 1 ms for a lookup, 50 ms until the request runs. */
static void a_lookup_that_ends_before_its_request_runs_costs_nothing(void **state)
{
    static const double fast = 1e-6;
    struct cache_config config = pool_config_of(64, 0, false);
    struct cache *a = join(64, 0), *b;
    struct open_seq o;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &fast;
    b = join_with(&config);
    ask(a, "ABCDEFGH");
    (void)cache_poll(b, fake_now);
    seq(b, &o, "ABCDEFGH");
    cache_seq_expect(o.s, fake_now + 50000000);
    (void)wait_loaded(b, o.s);
    assert_int_equal(fake_of(b)->n_lookups, 1);
    assert_int_equal(compute_kv(b, &o, NULL), 8 * B);
    cache_seq_close(o.s);
}

/* 512 ms for a lookup, 32 ms to compute a block: no lookup, until one tells that they are fast. */
static void after_slow_lookups_fast_ones_are_noticed(void **state)
{
    static const double cost = 1e-3;
    struct cache_config config = pool_config_of(64, 0, false);
    struct cache *a = join(64, 0), *b;
    struct open_seq o;
    uint32_t n = 0;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &cost;
    b = join_with(&config);
    ask(a, "ABCD");
    fake_of(b)->holds_back = true;
    seq(b, &o, "ABCD");
    for (int ms = 0; ms < 3000; ms++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    fake_of(b)->holds_back = false;
    (void)wait_loaded(b, o.s);
    cache_seq_close(o.s);
    ask(a, "E");
    while (ask(b, "E") == 0 && n < 1000) {
        cache_reset(b);
        n++;
    }
    assert_int_equal(n, 63);
    cache_reset(b);
    assert_int_equal(ask(b, "E"), B); /* the mean has fallen */
}

static void lookups_go_on_after_some_had_no_answer(void **state)
{
    static const double cost = 1e-3;
    struct cache_config config = pool_config_of(64, 0, false);
    struct cache *a = join(64, 0), *b;

    (void)state;
    config.seconds = slow_seconds;
    config.seconds_arg = &cost;
    b = join_with(&config);
    ask(a, "ABCD");
    for (int i = 0; i < 4; i++) {
        struct open_seq o;

        fake_of(b)->holds_back = true;
        seq(b, &o, "ABCD");
        for (int ms = 0; ms < 500; ms++) {
            (void)cache_seq_load(o.s, true);
            step_all();
        }
        fake_of(a)->is_away = true; /* the lookup ends without a result */
        fake_of(b)->holds_back = false;
        (void)wait_loaded(b, o.s);
        cache_seq_close(o.s);
        fake_of(a)->is_away = false;
    }
    assert_int_equal(ask(b, "ABCD"), 4 * B);
}

static void remote_nodes_do_not_keep_a_block_from_eviction(void **state)
{
    struct cache *a = join(64, 0), *b = join(16, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCD|EFGH");
    ask(b, "ABCD|X");
    fake_of(b)->stalls = true;
    seq(b, &o, "ABCD|EFGH");
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    assert_true(n_in(b, CACHE_REMOTE) > 0);
    ask(b, "JKLMNOPQRSTUVWX"); /* needs every block */
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    fake_of(b)->stalls = false;
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
}

static void a_reset_forgets_remote_nodes(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);
    struct open_seq o;

    (void)state;
    ask(a, "ABCDEFGH|IJKL");
    fake_of(b)->stalls = true;
    seq(b, &o, "ABCDEFGH|IJKL");
    for (int i = 0; i < 5; i++) {
        (void)cache_seq_load(o.s, true);
        step_all();
    }
    cache_reset(b);
    cache_check(b);
    assert_int_equal(n_in(b, CACHE_REMOTE), 0);
    fake_of(b)->stalls = false;
    (void)wait_loaded(b, o.s);
    assert_int_equal(compute_kv(b, &o, NULL), 0);
    cache_seq_close(o.s);
}

static void what_is_pulled_goes_to_the_host_where_there_is_one(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        struct cache_config config = pool_config_of(64, 64, copies);
        struct cache *a = join_with(&config), *b = join_with(&config);
        uint32_t found[CACHE_N_TIERS];

        ask(a, "ABCDEFGH|IJ");
        assert_int_equal(ask_found(b, "ABCDEFGH|IJ", found), 10 * B);
        assert_int_equal(found[CACHE_REMOTE], 10 * B);
        leave_world(NULL);
    }
}

/* --- lend --- */

static void lent_blocks_stay_while_the_lender_evicts(void **state)
{
    (void)state;
    for (int host = 0; host < 2; host++) {
        struct cache *a = join(16, host ? 16 : 0), *b = join(64, 0);
        struct open_seq o;

        ask(a, "ABCD");
        fake_of(b)->stalls = true;
        seq(b, &o, "ABCD");
        for (int i = 0; i < 5; i++) {
            (void)cache_seq_load(o.s, true);
            step_all();
        }
        ask(a, "JKLMNOPQRST");
        ask(a, "jklmnopqrst");
        ask(a, "KLMNOPQRSTU");
        fake_of(b)->stalls = false;
        (void)wait_loaded(b, o.s);
        assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
        cache_seq_close(o.s);
        leave_world(NULL);
    }
}

static void a_lent_block_can_be_used_by_the_lender(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        struct cache_config config = pool_config_of(16, 32, copies);
        struct cache *a = join_with(&config), *b = join(64, 0);
        struct open_seq o;
        uint32_t found[CACHE_N_TIERS];

        ask(a, "ABCD");
        ask(a, "JKLMNOPQRSTUVW"); /* ABCD goes to the host */
        fake_of(b)->stalls = true;
        seq(b, &o, "ABCD|");
        for (int i = 0; i < 5; i++) {
            (void)cache_seq_load(o.s, true);
            step_all();
        }
        assert_int_equal(fake_of(a)->n_lent_blocks, 4);
        assert_int_equal(ask_found(a, "ABCD", found), 4 * B);
        assert_int_equal(ask(a, "ABXY"), 2 * B); /* splits the node */
        fake_of(b)->stalls = false;
        (void)wait_loaded(b, o.s);
        assert_int_equal(compute_kv(b, &o, NULL), 4 * B);
        cache_seq_close(o.s);
        leave_world(NULL);
    }
}

static void loans_are_bounded(void **state)
{
    struct cache *a = join(32, 0), *b = join(64, 0);

    (void)state;
    ask(a, "ABCDEFGH|IJKLMNOP|QRST");
    assert_int_equal(ask(b, "ABCDEFGH|IJKLMNOP|QRST"), 16 * B); /* half of 32 blocks */
}

/* --- price, leaving --- */

/* The pool says whether other instances have the first segment of this prompt, too. */
static void news_of(struct cache *c, const char *text, bool is_replica)
{
    struct pool_news *news = &fake_of(c)->news[fake_of(c)->n_news++];
    struct prompt q;

    prompt_of(&q, text);
    *news = (struct pool_news){.is_replica = is_replica};
    memcpy(news->segment.bytes, q.keys[0].bytes, DIRECTORY_SEGMENT_BYTES);
    pass_ms(1);
}

static void what_a_peer_has_pulled_is_evicted_first(void **state)
{
    struct cache *a = join(16, 0), *b = join(64, 0);

    (void)state;
    ask(a, "EFGH");
    ask(a, "ABCD");
    assert_int_equal(ask(b, "ABCD"), 4 * B);
    pass_ms(5); /* the lease is given back */
    ask(a, "JKLMNOPQ");
    assert_int_equal(match(a, "ABCD"), 0);
    assert_int_equal(match(a, "EFGH"), 4 * B);
    assert_int_equal(match(b, "ABCD"), 4 * B);
}

/* The answer leaves a tail behind the prompt, which no peer pulls. */
static void what_goes_on_elsewhere_is_evicted_with_its_tail(void **state)
{
    struct cache *a = join(16, 0), *b = join(64, 0);

    (void)state;
    ask(a, "EFGH");
    ask(a, "ABCDe"); /* the small letter: an open block */
    assert_int_equal(ask(b, "ABCDIJ"), 4 * B);
    pass_ms(5);
    ask(a, "KLMNOPQR");
    assert_int_equal(match(a, "ABCD"), 0);
    assert_int_equal(match(a, "EFGH"), 4 * B);
}

static void the_part_that_a_peer_had_counts_as_pulled_too(void **state)
{
    struct cache *a = join(16, 0), *b = join(64, 0);

    (void)state;
    ask(b, "AB");
    ask(a, "EFGH");
    ask(a, "ABCD"); /* two blocks of it are pulled */
    assert_int_equal(ask(b, "ABCDIJ"), 4 * B);
    pass_ms(5);
    ask(a, "KLMNOPQR");
    assert_int_equal(match(a, "AB"), 0);
    assert_int_equal(match(a, "EFGH"), 4 * B);
}

/* Others hold the segment that begins with A, but not its branch ABCD. */
static void branches_of_a_shared_segment_are_no_replicas(void **state)
{
    static const double cost = 1e-2;
    struct cache_config config = pool_config_of(16, 0, false);
    struct cache *b;

    (void)state;
    config.policy = "contest";
    config.seconds = slow_seconds;
    config.seconds_arg = &cost;
    b = join_with(&config);
    fake_of(b)->bytes_per_s = 1e8;
    ask(b, "EFGH");
    ask(b, "ABCD");
    ask(b, "AXYZ");
    news_of(b, "ABCD", true);
    ask(b, "JKLMNOP");
    assert_int_equal(match(b, "ABCD") + match(b, "AXYZ"), 8 * B);
}

static void copies_that_others_have_are_evicted_first(void **state)
{
    static const double cost = 1e-2;
    struct cache_config config = pool_config_of(16, 0, false);
    struct cache *a = join(64, 0), *b;

    (void)state;
    config.policy = "contest";
    config.seconds = slow_seconds;
    config.seconds_arg = &cost;
    b = join_with(&config);
    fake_of(b)->bytes_per_s = 1e8;
    ask(a, "ABCD");
    ask(b, "EFGH");
    ask(b, "ABCD"); /* used later than EFGH */
    news_of(b, "ABCD", true);
    ask(b, "JKLMNOPQ");
    assert_int_equal(match(b, "ABCD"), 0);
    assert_int_equal(match(b, "EFGH"), 4 * B);
}

static void the_last_copy_regains_its_price(void **state)
{
    static const double cost = 1e-2;
    struct cache_config config = pool_config_of(16, 0, false);
    struct cache *a = join(64, 0), *b;

    (void)state;
    config.policy = "contest";
    config.seconds = slow_seconds;
    config.seconds_arg = &cost;
    b = join_with(&config);
    fake_of(b)->bytes_per_s = 1e8;
    ask(a, "ABCD");
    ask(b, "EFGH");
    ask(b, "ABCD");
    news_of(b, "ABCD", true);
    news_of(b, "ABCD", false);
    ask(b, "JKLMNOPQ");
    assert_int_equal(match(b, "ABCD"), 4 * B);
    assert_int_equal(match(b, "EFGH"), 0);
}

static void an_instance_that_leaves_hands_over_what_it_alone_has(void **state)
{
    struct cache *a = join(64, 0), *b = join(64, 0);

    (void)state;
    ask(a, "ABCDEFGH|IJ");
    ask(a, "ABCDEFGH|KL");
    ask(a, "MNp|OP");
    assert_false(cache_has_left(a));
    cache_leave(a);
    for (int ms = 0; ms < 200 && !cache_has_left(a); ms++)
        step_all();
    assert_true(cache_has_left(a));
    pass_ms(10);
    fake_of(a)->is_away = true;
    assert_int_equal(ask(b, "ABCDEFGH|IJ"), 10 * B);
    assert_int_equal(ask(b, "ABCDEFGH|KL"), 10 * B);
    assert_int_equal(ask(b, "MNp|OP"), 4 * B + 20);
    assert_int_equal(fake_of(b)->n_read_blocks, 10 + 2 + 5);
}

static void without_a_pool_there_is_nothing_to_leave(void **state)
{
    struct cache_config config = small_config(16, 0);
    struct cache *c = make(&config);
    struct directory_instance one;

    (void)state;
    cache_leave(c);
    assert_true(cache_has_left(c));
    assert_int_equal(cache_instances(c, &one, 1), 0);
    assert_int_equal(stats_of(c).n_tiers, 3);
    cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_another_instance_computed_is_pulled, leave_world),
        cmocka_unit_test_teardown(only_what_is_missing_is_pulled, leave_world),
        cmocka_unit_test_teardown(what_nobody_has_is_computed, leave_world),
        cmocka_unit_test_teardown(a_stale_holder_is_passed_over, leave_world),
        cmocka_unit_test_teardown(a_silent_pool_delays_a_request_but_does_not_stop_it, leave_world),
        cmocka_unit_test_teardown(an_engine_that_waits_for_the_pool_only_may_sleep, leave_world),
        cmocka_unit_test_teardown(a_lease_that_ends_is_a_miss, leave_world),
        cmocka_unit_test_teardown(what_arrived_before_a_fault_is_used, leave_world),
        cmocka_unit_test_teardown(a_peer_that_dies_is_a_miss, leave_world),
        cmocka_unit_test_teardown(requests_that_wait_for_the_same_blocks_share_a_pull, leave_world),
        cmocka_unit_test_teardown(a_request_that_ends_gives_its_lease_back, leave_world),
        cmocka_unit_test_teardown(a_slow_peer_is_not_read_where_computing_is_faster, leave_world),
        cmocka_unit_test_teardown(where_steps_are_slow_more_is_asked_for, leave_world),
        cmocka_unit_test_teardown(a_lookup_that_ends_before_its_request_runs_costs_nothing,
                                  leave_world),
        cmocka_unit_test_teardown(after_slow_lookups_fast_ones_are_noticed, leave_world),
        cmocka_unit_test_teardown(lookups_go_on_after_some_had_no_answer, leave_world),
        cmocka_unit_test_teardown(remote_nodes_do_not_keep_a_block_from_eviction, leave_world),
        cmocka_unit_test_teardown(a_reset_forgets_remote_nodes, leave_world),
        cmocka_unit_test_teardown(what_is_pulled_goes_to_the_host_where_there_is_one, leave_world),
        cmocka_unit_test_teardown(lent_blocks_stay_while_the_lender_evicts, leave_world),
        cmocka_unit_test_teardown(a_lent_block_can_be_used_by_the_lender, leave_world),
        cmocka_unit_test_teardown(loans_are_bounded, leave_world),
        cmocka_unit_test_teardown(what_goes_on_elsewhere_is_evicted_with_its_tail, leave_world),
        cmocka_unit_test_teardown(the_part_that_a_peer_had_counts_as_pulled_too, leave_world),
        cmocka_unit_test_teardown(branches_of_a_shared_segment_are_no_replicas, leave_world),
        cmocka_unit_test_teardown(what_a_peer_has_pulled_is_evicted_first, leave_world),
        cmocka_unit_test_teardown(copies_that_others_have_are_evicted_first, leave_world),
        cmocka_unit_test_teardown(the_last_copy_regains_its_price, leave_world),
        cmocka_unit_test_teardown(an_instance_that_leaves_hands_over_what_it_alone_has,
                                  leave_world),
        cmocka_unit_test_teardown(without_a_pool_there_is_nothing_to_leave, leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
