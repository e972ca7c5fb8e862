/* Pools of one process that look up, pull and lend, with the test as their engines. */
#include "tests/unit/cache/pool/pool_reads.h"

#include "base/log.h"

static void pull(struct side *s, uint32_t n_local, uint32_t n_expected)
{
    struct pool_found found;
    uint32_t ticket = side_lookup(s, n_local), tag = s->n_done;

    assert_int_equal(side_look(s, ticket, &found), POOL_FOUND);
    assert_int_equal(found.n_blocks, n_expected);
    for (uint32_t i = n_local; i < n_expected; i += 4) {
        uint32_t n = n_expected - i < 4 ? n_expected - i : 4;
        assert_ok(read_blocks(s, ticket, i, n, tag++));
    }
    WAIT_FOR(s->n_done == tag);
    for (uint32_t i = 0; i < tag; i++)
        assert_ok(s->done[i]);
    check_blocks(n_local, n_expected);
    pool_forget(s->pool, ticket);
}

static void what_another_instance_holds_is_pulled_with_equal_bytes(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    pull(b, 4, N_PATH);
    WAIT_FOR(a->n_returned == 1);
    pull(b, 0, N_PATH); /* over the same connection */
    WAIT_FOR(a->n_returned == 2 && a->n_lent == 2 && a->n_pulled == 2);
    WAIT_FOR(stats_of(b).n_pulled_blocks == 2 * N_PATH - 4 && stats_of(a).n_lent == 0);
    struct pool_stats stats = stats_of(b);
    assert_int_equal(stats.n_pulled_bytes, (2 * N_PATH - 4) * BLOCK_BYTES);
    assert_int_equal(stats.n_found, 2);
    assert_int_equal(stats.n_peers, 1);
    assert_true(stats.read_bytes_per_s > 0 && stats.read_latency_s > 0);
}

static void read_all(struct side *s, uint32_t ticket)
{
    uint32_t tag = s->n_done;

    for (uint32_t i = 0; i < N_PATH; i += 8)
        assert_ok(read_blocks(s, ticket, i, 8, tag++));
    WAIT_FOR(s->n_done == tag);
    check_blocks(0, N_PATH);
}

/* Have a hold the path and b find it; returns b's ticket. */
static uint32_t find_path(struct side *a, struct side *b)
{
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
    return ticket;
}

static void a_lease_ends_when_all_is_read_if_the_engine_wants_that(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    uint32_t ticket = find_path(a, b);

    (void)state;
    read_all(b, ticket);
    assert_int_equal(a->n_returned, 0);
    pool_end_when_read(b->pool, ticket, true); /* from the next read on */
    assert_ok(read_blocks(b, ticket, 3, 2, b->n_done));
    WAIT_FOR(a->n_returned == 1 && a->n_pulled == 1);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    assert_int_equal(read_blocks(b, ticket, 3, 2, 99), ERR_UNAVAILABLE);
    pool_forget(b->pool, ticket);
    pull(b, 0, N_PATH);
    WAIT_FOR(a->n_returned == 2 && stats_of(a).n_lent == 0);
}

static void a_lease_of_which_a_part_was_read_goes_on(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    uint32_t ticket = find_path(a, b);

    (void)state;
    pool_end_when_read(b->pool, ticket, true);
    for (uint32_t i = 0; i < 20; i++) { /* the same blocks */
        assert_ok(read_blocks(b, ticket, 0, 8, i));
        WAIT_FOR(b->n_done == i + 1);
        assert_ok(b->done[i]);
    }
    assert_int_equal(pool_look(b->pool, ticket, NULL), POOL_FOUND);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
    assert_int_equal(a->n_pulled, 0);
}

static void what_the_lender_says_of_its_copy_arrives(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_found found;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    for (a->flags = 0; a->flags <= (POOL_KEEPS | POOL_AWAITED); a->flags++) {
        uint32_t ticket = side_lookup(b, 0);
        assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
        assert_int_equal(found.keeps, (a->flags & POOL_KEEPS) != 0);
        assert_int_equal(found.was_awaited, (a->flags & POOL_AWAITED) != 0);
        pool_forget(b->pool, ticket);
    }
}

/* The rate by which a lookup says that the other side sends. */
static double found_rate(struct side *s, bool reads)
{
    struct pool_found found;
    uint32_t ticket = side_lookup(s, 0), tag = s->n_done;

    assert_int_equal(side_look(s, ticket, &found), POOL_FOUND);
    if (reads && read_blocks(s, ticket, 0, 1, tag) == OK)
        WAIT_FOR(s->n_done == tag + 1);
    pool_forget(s->pool, ticket);
    return found.bytes_per_s;
}

static void a_rate_without_reads_for_long_is_not_believed(void **state)
{
    struct pool_config c = side_config();
    struct side *a = side_open(0), *b;

    (void)state;
    c.pull_ms = 200;
    b = side_open_with(1, c);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    WAIT_FOR(found_rate(b, true) > 0); /* of the read before */
    WAIT_FOR(found_rate(b, false) == 0);
    WAIT_FOR(found_rate(b, true) > 0);
}

/* As an instance does that sleeps and wakes. */
static void memory_is_lent_again_after_it_was_freed(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    WAIT_FOR(all_know(2));
    for (uint32_t n = 1; n <= 3; n++) {
        pool_register(a->pool, a->memory, (uint64_t)N_PATH * BLOCK_BYTES);
        side_hold(a, N_PATH);
        WAIT_FOR(is_announced(a));
        pull(b, 0, N_PATH);
        WAIT_FOR(a->n_returned == n);
        side_hold(a, 0);
        pool_unregister(a->pool);
        WAIT_FOR(pool_is_unregistered(a->pool));
        free(a->memory);
        a->memory = malloc((size_t)N_PATH * BLOCK_BYTES);
        for (uint32_t i = 0; i < N_PATH; i++)
            world_fill(a->memory + (size_t)i * BLOCK_BYTES, i);
        WAIT_FOR(is_announced(a)); /* nothing is */
    }
}

static void a_part_of_a_path_is_found_by_its_segments(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, 11); /* the second segment not wholly */
    WAIT_FOR(is_announced(a) && all_know(2));
    pull(b, 0, 11);
    pull(b, 10, 11);
}

static void a_holder_that_has_no_more_than_is_local_is_not_asked(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, 11);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 11);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    assert_int_equal(a->n_asks, 0);
    pool_forget(b->pool, ticket);
}

static void say_held_in(uint64_t id, uint32_t segment, uint8_t n_blocks, uint8_t tier)
{
    struct directory_segment d = {.n_blocks = n_blocks, .tier = tier};

    memcpy(d.key, world.keys[segment * N_IN_SEGMENT].bytes, sizeof d.key);
    fake_directory_hold(id, &d);
}

static void say_held(uint64_t id, uint32_t segment, uint8_t n_blocks)
{
    say_held_in(id, segment, n_blocks, 0);
}

static void a_stale_holder_costs_a_miss_and_is_forgotten(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    WAIT_FOR(all_know(2));
    say_held(a->id, 2, 8);
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    assert_int_equal(fake_directory_blocks(a->id, &world.keys[16]), 0);
    pool_forget(b->pool, ticket);
    WAIT_FOR(stats_of(b).n_stale == 1);
}

/* Ask again behind n_local blocks. Returns the blocks that are found. */
static uint32_t look_again(struct side *s, uint32_t n_local)
{
    struct pool_path path = {.keys = world.keys,
                             .n = N_PATH,
                             .starts = world.starts,
                             .n_starts = N_PATH / N_IN_SEGMENT,
                             .n_local = n_local,
                             .is_again = true};
    struct pool_found found = {0};
    uint32_t ticket;

    WAIT_FOR((ticket = pool_lookup(s->pool, &path)) != POOL_NO_TICKET);
    (void)side_look(s, ticket, &found);
    pool_forget(s->pool, ticket);
    return found.n_blocks;
}

/* Many prompts share the first segment, and its holders were asked the first time. */
static void who_asks_again_does_not_ask_holders_of_the_first_segment(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, 7);
    WAIT_FOR(is_announced(a) && all_know(2));
    assert_int_equal(look_again(b, 3), 0);
    assert_int_equal(a->n_asks, 0);
    side_hold(a, 12);
    WAIT_FOR(is_announced(a));
    assert_int_equal(look_again(b, 3), 12);
}

static void who_asks_again_asks_holders_of_more_than_is_local(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, 14);
    WAIT_FOR(is_announced(a) && all_know(2));
    assert_int_equal(look_again(b, 14), 0);
    assert_int_equal(look_again(b, 11), 14);
    assert_int_equal(a->n_asks, 1);
}

static void after_a_stale_holder_comes_the_next_one(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);

    (void)state;
    side_hold(c, 20);
    WAIT_FOR(is_announced(c) && all_know(3));
    say_held(a->id, 2, 8); /* more than c */
    pull(b, 0, 20);
    assert_int_equal(c->n_asks, 1);
}

static void an_instance_that_lends_already_is_avoided(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);
    struct pool_path path = {.keys = world.keys,
                             .n = N_PATH,
                             .starts = world.starts,
                             .n_starts = N_PATH / N_IN_SEGMENT,
                             .avoid = &a->id,
                             .n_avoid = 1};
    struct pool_found found;
    uint32_t ticket;

    (void)state;
    side_hold(a, N_PATH);
    side_hold(c, 11);
    WAIT_FOR(is_announced(a) && is_announced(c) && all_know(3));
    WAIT_FOR((ticket = pool_lookup(b->pool, &path)) != POOL_NO_TICKET);
    assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
    assert_true(found.peer == c->id && found.n_blocks == 11 && found.n_named == 17);
    pool_forget(b->pool, ticket);
    path.n_local = 11; /* only a has more */
    WAIT_FOR((ticket = pool_lookup(b->pool, &path)) != POOL_NO_TICKET);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    assert_int_equal(a->n_asks, 0);
    pool_forget(b->pool, ticket);
}

/* A segment has the name of its first block, so its holder may have another branch of it. */
static void a_holder_of_another_branch_refuses_without_its_engine(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    uint32_t n_asks;

    (void)state;
    side_hold(a, 3);
    WAIT_FOR(is_announced(a) && all_know(2));
    do { /* while a's cache is being listed, its engine is asked */
        n_asks = a->n_asks;
        say_held(a->id, 0, 8);
        uint32_t ticket = side_lookup(b, 3);
        assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
        pool_forget(b->pool, ticket);
    } while (a->n_asks > n_asks);
    a->is_deaf = true;
    say_held(a->id, 0, 8);
    uint32_t ticket = side_lookup(b, 3);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    a->is_deaf = false;
    assert_int_equal(a->n_asks, n_asks);
}

/* The lookup gives no time for a disk, so of the longer path only a part would be lent. */
static void a_holder_in_memory_is_asked_before_one_with_more_on_disk(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);

    (void)state;
    side_hold(a, 8);
    side_hold(c, 20);
    WAIT_FOR(is_announced(a) && is_announced(c) && all_know(3));
    say_held_in(a->id, 2, 8, DIRECTORY_TIER_DISK);
    pull(b, 0, 20);
    assert_int_equal(a->n_asks, 0);
}

static void without_a_holder_of_a_segment_the_earlier_ones_are_looked_for(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);

    (void)state;
    side_hold(c, 8);
    WAIT_FOR(is_announced(c) && all_know(3));
    say_held(a->id, 2, 8);
    say_held(a->id, 1, 8);
    pull(b, 0, 8);
    assert_int_equal(c->n_asks, 1);
}

static void an_instance_that_leaves_is_asked_only_when_no_other_holds_it(void **state)
{
    struct side *a = side_open(0), *b = side_open(1), *c = side_open(2);

    (void)state;
    side_hold(a, N_PATH);
    side_hold(c, 20);
    pool_leave(a->pool);
    WAIT_FOR(is_announced(a) && is_announced(c) && all_know(3) && fake_directory_is_leaving(a->id));
    WAIT_FOR(({
        struct directory_instance all[4];
        uint32_t n = pool_instances(b->pool, all, 4), n_leaving = 0;
        for (uint32_t i = 0; i < n; i++)
            n_leaving += all[i].is_leaving;
        n_leaving == 1;
    }));
    pull(b, 0, 20);
    assert_int_equal(a->n_asks, 0);
    side_hold(c, 0);
    WAIT_FOR(is_announced(c));
    pull(b, 0, N_PATH);
}

static void another_model_is_listed_and_never_asked(void **state)
{
    struct pool_config other = side_config();

    (void)state;
    other.fingerprint[0]++;
    struct side *a = side_open_with(0, other), *b = side_open(1);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    assert_int_equal(stats_of(b).n_peers, 0);
    pool_forget(b->pool, ticket);
}

static void a_wrong_secret_gets_nothing(void **state)
{
    struct pool_config stranger = side_config();

    (void)state;
    stranger.secret[5] = 1;
    struct side *a = side_open(0), *b = side_open_with(1, stranger);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    WAIT_FOR(stats_of(a).n_refused == 1);
    assert_int_equal(a->n_asks, 0);
    /* The list says which instances have another secret. */
    struct directory_instance all[2];
    WAIT_FOR(pool_instances(a->pool, all, 2) == 2);
    assert_int_equal(strlen(all[0].member), 16);
    assert_int_equal(strlen(all[1].member), 16);
    assert_string_not_equal(all[0].member, all[1].member);
}

/* --- faults --- */

static void a_lender_that_dies_ends_its_reads_and_its_tickets(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_found found;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0), n = 0;
    assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
    while (n < 100 && read_blocks(b, ticket, n % 16, 8, n) == OK)
        n++;
    side_close(a);
    WAIT_FOR(b->n_done == n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(b->done[i] == OK || b->done[i] == ERR_NOT_FOUND);
    WAIT_FOR(pool_look(b->pool, ticket, &found) == POOL_NOT_FOUND);
    assert_int_equal(read_blocks(b, ticket, 0, 1, 500), ERR_UNAVAILABLE);
    pool_forget(b->pool, ticket);
}

static void a_lender_that_comes_back_is_found_again(void **state)
{
    (void)state;
    struct side *b = side_open(1);
    for (uint32_t i = 0; i < 3; i++) {
        struct side *a = side_open(0);
        side_hold(a, N_PATH);
        WAIT_FOR(is_announced(a) && all_know(2));
        for (;;) { /* pauses after the last connection's end */
            uint32_t ticket = side_lookup(b, 0);
            bool is_found = side_look(b, ticket, NULL) == POOL_FOUND;
            pool_forget(b->pool, ticket);
            if (is_found)
                break;
            world_turn();
        }
        side_close(a);
    }
}

static void an_engine_that_does_not_answer_costs_the_lookup_time(void **state)
{
    struct pool_config quick = side_config();

    (void)state;
    quick.lookup_ms = 30;
    struct side *a = side_open(0), *b = side_open_with(1, quick);
    side_hold(a, N_PATH);
    a->is_deaf = true;
    WAIT_FOR(is_announced(a) && all_know(2));
    WAIT_FOR(({ /* a peer that never answers loses its connection */
                uint32_t ticket = side_lookup(b, 0);
                assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
                pool_forget(b->pool, ticket);
                stats_of(b).n_peer_timeouts >= 4 && stats_of(b).n_peers == 0;
    }));
    a->is_deaf = false; /* what was asked is answered, and nothing stays lent */
    WAIT_FOR(stats_of(a).n_lent == 0 && a->n_asks > 0 && a->n_returned == a->n_lent);
}

static void a_directory_that_does_not_answer_costs_the_lookup_time(void **state)
{
    struct pool_config quick = side_config();

    (void)state;
    quick.lookup_ms = 30;
    struct side *a = side_open(0), *b = side_open_with(1, quick);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    fake_directory_set(false, true);
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    WAIT_FOR(stats_of(b).n_lookup_timeouts == 1);
}

static void without_a_directory_nothing_is_looked_up_until_it_is_back(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct pool_path path = {
        .keys = world.keys, .n = N_PATH, .starts = world.starts, .n_starts = 3, .n_local = 0};
    uint32_t ticket;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    fake_directory_set(true, false);
    WAIT_FOR(({
        ticket = pool_lookup(b->pool, &path);
        if (ticket != POOL_NO_TICKET)
            pool_forget(b->pool, ticket);
        ticket == POOL_NO_TICKET;
    }));
    fake_directory_reset(); /* it comes back empty */
    WAIT_FOR(is_announced(a) && all_know(2));
    pull(b, 0, N_PATH);
}

static void a_lease_ends_by_itself(void **state)
{
    struct pool_config brief = side_config();
    struct pool_found found;

    (void)state;
    brief.pull_ms = 200;
    struct side *a = side_open_with(0, brief), *b = side_open_with(1, brief);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    WAIT_FOR(pool_look(b->pool, ticket, &found) == POOL_NOT_FOUND);
    WAIT_FOR(a->n_lent == 1 && a->n_returned == 1); /* without pool_forget() */
    WAIT_FOR(stats_of(b).n_found == 1);
    assert_int_equal(read_blocks(b, ticket, 0, 1, 0), ERR_UNAVAILABLE);
    pool_forget(b->pool, ticket);
}

static void more_reads_than_fit_are_refused_and_the_others_arrive(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    uint32_t n = 0;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
    while (read_blocks(b, ticket, n % 3 * 8, 8, n) == OK)
        n++;
    assert_in_range(n, 64, N_TAGS);
    WAIT_FOR(b->n_done == n);
    for (uint32_t i = 0; i < n; i++)
        assert_ok(b->done[i]);
    check_blocks(0, N_PATH);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
}

static void many_tickets_share_what_there_is(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    uint32_t tickets[POOL_TICKETS_MAX], n = 0, n_found = 0;
    struct pool_path path = {
        .keys = world.keys, .n = N_PATH, .starts = world.starts, .n_starts = 3, .n_local = 0};

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    tickets[n++] = side_lookup(b, 0);
    while (n < POOL_TICKETS_MAX && (tickets[n] = pool_lookup(b->pool, &path)) != POOL_NO_TICKET)
        n++;
    assert_int_equal(n, POOL_TICKETS_MAX);
    assert_int_equal(pool_lookup(b->pool, &path), POOL_NO_TICKET);
    for (uint32_t i = 0; i < n; i++)
        n_found += side_look(b, tickets[i], NULL) == POOL_FOUND;
    assert_int_equal(n_found, POOL_LEASES_MAX);
    for (uint32_t i = 0; i < n; i++)
        pool_forget(b->pool, tickets[i]);
    WAIT_FOR(a->n_returned == POOL_LEASES_MAX);
    pull(b, 0, N_PATH);
}

/* --- what others hold --- */

static void one_of_two_holders_learns_that_its_copy_is_a_replica(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);

    (void)state;
    side_hold(a, 8);
    WAIT_FOR(is_announced(a) && a->n_news == 1);
    assert_false(a->news.is_replica);
    assert_memory_equal(a->news.segment.bytes, world.keys[0].bytes, DIRECTORY_SEGMENT_BYTES);
    side_hold(b, 8);
    WAIT_FOR(b->n_news == 1);
    assert_true(b->news.is_replica);
    side_hold(a, 0);
    WAIT_FOR(b->n_news == 2);
    assert_false(b->news.is_replica);
}

static void the_instances_of_the_pool_are_listed_this_one_first(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    struct directory_instance all[4];
    struct pool_load load = {.n_blocks = 100, .n_free_blocks = 40, .n_waiting = 3, .n_running = 2};

    (void)state;
    pool_set_load(a->pool, &load);
    WAIT_FOR(pool_instances(b->pool, all, 4) == 2 && all[1].n_free_blocks == 40);
    assert_int_equal(all[0].id, b->id);
    assert_int_equal(all[1].id, a->id);
    assert_string_equal(all[1].name, "side");
    assert_string_equal(all[1].http, "http://side");
    assert_int_equal(all[1].n_running, 2);
    assert_int_equal(strncmp(all[1].address, "tcp://127.0.0.1:", 16), 0);
}

static void an_address_that_cannot_be_used_is_refused_by_the_flags_name(void **state)
{
    struct pool_config c = side_config();
    struct pool *p;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    c.listen = "nonsense";
    assert_int_equal(pool_open(&p, &c, &why), ERR_INVALID);
    assert_null(p);
    assert_non_null(strstr(buf_str(&why), "{pool_listen}"));
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(what_another_instance_holds_is_pulled_with_equal_bytes),
        T(a_lease_ends_when_all_is_read_if_the_engine_wants_that),
        T(a_lease_of_which_a_part_was_read_goes_on),
        T(what_the_lender_says_of_its_copy_arrives),
        T(a_rate_without_reads_for_long_is_not_believed),
        T(memory_is_lent_again_after_it_was_freed),
        T(a_part_of_a_path_is_found_by_its_segments),
        T(a_holder_that_has_no_more_than_is_local_is_not_asked),
        T(a_stale_holder_costs_a_miss_and_is_forgotten),
        T(after_a_stale_holder_comes_the_next_one),
        T(an_instance_that_lends_already_is_avoided),
        T(who_asks_again_does_not_ask_holders_of_the_first_segment),
        T(who_asks_again_asks_holders_of_more_than_is_local),
        T(a_holder_of_another_branch_refuses_without_its_engine),
        T(a_holder_in_memory_is_asked_before_one_with_more_on_disk),
        T(without_a_holder_of_a_segment_the_earlier_ones_are_looked_for),
        T(an_instance_that_leaves_is_asked_only_when_no_other_holds_it),
        T(another_model_is_listed_and_never_asked),
        T(a_wrong_secret_gets_nothing),
        T(a_lender_that_dies_ends_its_reads_and_its_tickets),
        T(a_lender_that_comes_back_is_found_again),
        T(an_engine_that_does_not_answer_costs_the_lookup_time),
        T(a_directory_that_does_not_answer_costs_the_lookup_time),
        T(without_a_directory_nothing_is_looked_up_until_it_is_back),
        T(a_lease_ends_by_itself),
        T(more_reads_than_fit_are_refused_and_the_others_arrive),
        T(many_tickets_share_what_there_is),
        T(one_of_two_holders_learns_that_its_copy_is_a_replica),
        T(the_instances_of_the_pool_are_listed_this_one_first),
        T(an_address_that_cannot_be_used_is_refused_by_the_flags_name),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
