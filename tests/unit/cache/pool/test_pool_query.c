/* Queries between pools of one process, with the test as their engines, over each transport. */
#include "tests/unit/cache/pool/pool_world.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "cache/pool/pool_inner.h"

enum { N_ROWS = 3, N_WINDOW = 16 };

static const struct pool_segment all_segments[] = {
    {.at = 0, .n_blocks = 8, .n_tokens = 256},
    {.at = 8, .n_blocks = 8, .n_tokens = 256},
    {.at = 16, .n_blocks = 8, .n_tokens = 250},
};

static int set_up(void **state)
{
    (void)state;
    world_begin();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SIDES; i++)
        atomic_store(&world.sides[i].n_allowed, UINT32_MAX);
    world_end();
    return 0;
}

/* A lender that holds the whole path, and askers. */
static struct side *open_sides(uint32_t n_askers)
{
    struct side *a = side_open_with(0, query_config());

    for (uint32_t i = 1; i <= n_askers; i++)
        side_open_with(i, query_config());
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(1 + n_askers));
    return a;
}

static uint32_t find(struct side *s, uint32_t n_local)
{
    struct pool_found found;
    uint32_t ticket = side_lookup(s, n_local);

    assert_int_equal(side_look(s, ticket, &found), POOL_FOUND);
    assert_int_equal(found.n_blocks, N_PATH);
    assert_true(found.attends);
    return ticket;
}

static struct pool_stats stats_of(struct side *s)
{
    struct pool_stats stats;

    pool_stats(s->pool, &stats);
    return stats;
}

/* --- one query --- */

struct asked {
    struct pool_query query;
    float q[N_ROWS * QUERY_FLOATS];
    uint32_t number;
};

/* Send a query whose first float is `first`. */
static enum status ask_with(struct side *s, struct asked *k, uint32_t ticket, float first)
{
    for (uint32_t i = 0; i < N_ROWS * QUERY_FLOATS; i++)
        k->q[i] = first + (float)i;
    k->query.ticket = ticket;
    k->query.q = k->q;
    k->query.q_stride = QUERY_FLOATS;
    k->query.n_rows = N_ROWS;
    return pool_query(s->pool, &k->query, &k->number);
}

static enum status ask(struct side *s, struct asked *k, uint32_t ticket, float first)
{
    *k = (struct asked){
        .query = {.layer = (uint32_t)first % N_LAYERS, .segments = all_segments, .n_segments = 3}};
    return ask_with(s, k, ticket, first);
}

/* Whether the tiles are those of the path's blocks. */
static bool is_right(const struct asked *k, const float *tiles)
{
    static _Thread_local uint8_t memory[N_PATH][BLOCK_BYTES];
    static _Thread_local bool is_filled;
    float expected[3 * N_ROWS * TILE_FLOATS];
    const void *blocks[N_PATH];

    for (uint32_t i = 0; i < N_PATH; i++) {
        if (!is_filled)
            world_fill(memory[i], i);
        blocks[i] = memory[i];
    }
    is_filled = true;
    struct pool_attend a = {.layer = k->query.layer,
                            .n_rows = N_ROWS,
                            .q = k->q,
                            .blocks = blocks,
                            .n_blocks = N_PATH,
                            .segments = k->query.segments,
                            .n_segments = k->query.n_segments,
                            .tiles = expected};
    world_tiles(&a);
    size_t n = (size_t)k->query.n_segments * N_ROWS * TILE_FLOATS;
    return memcmp(tiles, expected, n * sizeof *tiles) == 0;
}

/* ERR_INTERNAL: the tiles are wrong. */
static enum status end(struct side *s, struct asked *k)
{
    const float *tiles = NULL;
    enum status status =
        pool_query_end(s->pool, k->number, clock_now_ns() + UINT64_C(60000000000), &tiles);

    if (status == OK && !is_right(k, tiles))
        status = ERR_INTERNAL;
    pool_query_forget(s->pool, k->number);
    return status;
}

/* --- honest sides --- */

static void tiles_are_computed_from_the_lent_blocks(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct pool_found found;
    struct asked k;

    (void)state;
    assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
    assert_true(found.query_s == 0);
    uint64_t before_ns = found.until_ns;
    for (uint32_t i = 0; i < 100; i++) {
        assert_ok(ask(b, &k, ticket, (float)i));
        assert_ok(end(b, &k));
    }
    assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
    assert_true(found.query_s > 0 && found.until_ns > before_ns);
    WAIT_FOR(stats_of(a).n_attended == 100 && stats_of(b).n_queries == 100);
    assert_int_equal(stats_of(a).n_attended_rows, 100 * N_ROWS);
    assert_int_equal(stats_of(b).n_queries_failed, 0);
    uint64_t n_floats = N_ROWS * QUERY_FLOATS + 3 * N_ROWS * TILE_FLOATS;
    WAIT_FOR(stats_of(b).n_query_bytes == 100 * n_floats * sizeof(float));
    assert_true(stats_of(b).query_s > 0);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
    assert_int_equal(a->n_pulled, 0);
}

static void segments_of_a_part_of_the_path_are_counted_from_its_beginning(void **state)
{
    static const struct pool_segment two[] = {{.at = 8, .n_blocks = 1, .n_tokens = 3},
                                              {.at = 16, .n_blocks = 2, .n_tokens = 33}};
    open_sides(1);
    struct side *b = &world.sides[1];
    uint32_t ticket = find(b, 7);
    struct asked k = {.query = {.layer = 4, .segments = two, .n_segments = 2}};

    (void)state;
    assert_ok(ask_with(b, &k, ticket, 5));
    assert_ok(end(b, &k));
    pool_forget(b->pool, ticket);
}

static void answers_are_taken_in_any_order(void **state)
{
    open_sides(1);
    struct side *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct asked k[20];

    (void)state;
    for (uint32_t i = 0; i < 20; i++)
        assert_ok(ask(b, &k[i], ticket, (float)i));
    for (uint32_t i = 20; i-- > 0;)
        assert_ok(end(b, &k[i]));
    pool_forget(b->pool, ticket);
}

/* The engine thread of one asker, with many queries under way. */
struct asker {
    struct side *side;
    uint32_t ticket, n_bad;
    pthread_t thread;
};

static void *ask_many(void *arg)
{
    struct asker *w = arg;
    struct asked k[N_WINDOW];

    for (uint32_t i = 0; i < 300 + N_WINDOW; i++) {
        struct asked *at = &k[i % N_WINDOW];
        if (i >= N_WINDOW)
            w->n_bad += end(w->side, at) != OK;
        if (i < 300)
            w->n_bad += ask(w->side, at, w->ticket, (float)(1000 * w->side->id + i)) != OK;
    }
    return NULL;
}

static void queries_of_several_instances_do_not_mix(void **state)
{
    struct side *a = open_sides(3);
    struct asker askers[3] = {0};
    float last[3] = {0};

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        askers[i] =
            (struct asker){.side = &world.sides[1 + i], .ticket = find(&world.sides[1 + i], 0)};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_many, &askers[i]), 0);
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].n_bad, 0);
        pool_forget(askers[i].side->pool, askers[i].ticket);
    }
    assert_int_equal(a->n_attended, 900);
    for (uint32_t i = 0; i < 900; i++) { /* in the order in which each instance sent them */
        uint32_t no = (uint32_t)(a->attended[i] / 1000) - 101;
        assert_true(no < 3 && a->attended[i] > last[no]);
        last[no] = a->attended[i];
    }
    WAIT_FOR(a->n_returned == 3);
}

/* Wait until all messages that were sent on the connection have arrived at the lender. */
static void wait_for_arrival(struct side *s, uint32_t ticket)
{
    static uint8_t block[BLOCK_BYTES];
    void *to = block;
    uint32_t at = 9, tag = N_TAGS - 1;

    s->is_done[tag] = false;
    assert_ok(pool_read(s->pool, ticket, &at, &to, 1, tag));
    WAIT_FOR(s->is_done[tag]);
    assert_ok(s->done[tag]);
}

static void instances_take_turns(void **state)
{
    struct side *a = open_sides(2), *b = &world.sides[1], *c = &world.sides[2];
    uint32_t ticket_b = find(b, 0), ticket_c = find(c, 0);
    struct asked k[30], one;

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < 30; i++)
        assert_ok(ask(b, &k[i], ticket_b, (float)i));
    wait_for_arrival(b, ticket_b);
    assert_ok(ask(c, &one, ticket_c, 5000));
    wait_for_arrival(c, ticket_c);
    atomic_store(&a->n_allowed, UINT32_MAX);
    for (uint32_t i = 0; i < 30; i++)
        assert_ok(end(b, &k[i]));
    assert_ok(end(c, &one));
    uint32_t at = 0;
    while (a->attended[at] != 5000)
        at++;
    assert_in_range(at, 0, 4); /* two ran or were ready, and one more had its turn */
    pool_forget(b->pool, ticket_b);
    pool_forget(c->pool, ticket_c);
}

/* --- bounds --- */

static void more_queries_than_fit_are_refused_and_the_others_answered(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0), n_ok = 0;
    static struct asked k[POOL_QUERIES_MAX + 1];

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        assert_ok(ask(b, &k[i], ticket, (float)i));
    assert_int_equal(ask(b, &k[POOL_QUERIES_MAX], ticket, 1), ERR_BUSY);
    atomic_store(&a->n_allowed, UINT32_MAX);
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++) {
        enum status s = end(b, &k[i]);
        assert_true(s == OK || s == ERR_BUSY);
        n_ok += s == OK;
    }
    assert_int_equal(n_ok, POOL_N_ATTENDS);
    assert_ok(ask(b, &k[0], ticket, 1));
    assert_ok(end(b, &k[0]));
    pool_forget(b->pool, ticket);
}

static void each_instance_has_its_share_of_the_lender(void **state)
{
    struct side *a = open_sides(2), *b = &world.sides[1], *c = &world.sides[2];
    uint32_t ticket_b = find(b, 0), ticket_c = find(c, 0), n_ok = 0;
    static struct asked k[POOL_QUERIES_MAX];
    struct asked one;

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        assert_ok(ask(b, &k[i], ticket_b, (float)i));
    wait_for_arrival(b, ticket_b);
    assert_ok(ask(c, &one, ticket_c, 7));
    wait_for_arrival(c, ticket_c);
    atomic_store(&a->n_allowed, UINT32_MAX);
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        n_ok += end(b, &k[i]) == OK;
    assert_int_equal(n_ok, POOL_N_ATTENDS / 2);
    assert_ok(end(c, &one));
    WAIT_FOR(stats_of(a).n_queries_refused == POOL_QUERIES_MAX - POOL_N_ATTENDS / 2);
    pool_forget(b->pool, ticket_b);
    pool_forget(c->pool, ticket_c);
}

static enum status attend_nothing(void *arg, const struct pool_attend *a)
{
    (void)arg;
    memset(a->tiles, 0, sizeof *a->tiles * a->n_segments * a->n_rows);
    return OK;
}

static void the_largest_queries_pass_and_larger_ones_are_refused(void **state)
{
    enum { N_FLOATS = POOL_QUERY_BYTES_MAX / 64 / sizeof(float) }; /* of a row */
    struct pool_config c = query_config();
    struct pool_query q = {.n_rows = 64, .q_stride = N_FLOATS, .segments = all_segments};
    uint32_t numbers[POOL_QUERIES_MAX], number, n = 0;
    const float *tiles;
    float *floats = calloc(65 * N_FLOATS, sizeof *floats);

    (void)state;
    c.attend = attend_nothing;
    c.query_floats = c.tile_floats = N_FLOATS;
    struct side *a = side_open_with(0, c), *b = side_open_with(1, c);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    q.ticket = find(b, 0);
    q.q = floats;
    q.n_segments = 2;
    assert_int_equal(pool_query(b->pool, &q, &number), ERR_TOO_LARGE);
    q.n_segments = 1;
    while (n < POOL_QUERIES_MAX && pool_query(b->pool, &q, &numbers[n]) == OK)
        n++;
    assert_in_range(n, 4, 10); /* their memory is bounded */
    for (uint32_t i = 0; i < n; i++) {
        assert_ok(
            pool_query_end(b->pool, numbers[i], clock_now_ns() + UINT64_C(60000000000), &tiles));
        pool_query_forget(b->pool, numbers[i]);
    }
    q.n_rows = 1; /* the memory of large queries is there for small ones */
    for (uint32_t i = 0; i < 32; i++)
        assert_ok(pool_query(b->pool, &q, &numbers[i]));
    for (uint32_t i = 0; i < 32; i++) {
        assert_ok(
            pool_query_end(b->pool, numbers[i], clock_now_ns() + UINT64_C(60000000000), &tiles));
        pool_query_forget(b->pool, numbers[i]);
    }
    free(floats);
    pool_forget(b->pool, q.ticket);
}

static void who_answers_no_queries_says_so_and_sends_none(void **state)
{
    struct side *a = side_open(0), *b = side_open_with(1, query_config());
    struct pool_found found;
    struct asked k;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, &found), POOL_FOUND);
    assert_false(found.attends);
    assert_int_equal(ask(b, &k, ticket, 1), ERR_UNAVAILABLE);
    pool_forget(b->pool, ticket);
    side_hold(a, 0);
    side_hold(b, N_PATH);
    WAIT_FOR(is_announced(a) && is_announced(b));
    ticket = side_lookup(a, 0);
    assert_int_equal(side_look(a, ticket, &found), POOL_FOUND);
    assert_false(found.attends);
    pool_forget(a->pool, ticket);
}

/* --- faults --- */

static void a_computation_that_fails_is_refused_and_the_lease_stays(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct asked k;

    (void)state;
    atomic_store(&a->attend_fails, true);
    assert_ok(ask(b, &k, ticket, 1));
    assert_int_equal(end(b, &k), ERR_BUSY);
    atomic_store(&a->attend_fails, false);
    assert_ok(ask(b, &k, ticket, 2));
    assert_ok(end(b, &k));
    pool_forget(b->pool, ticket);
}

static void a_lease_does_not_end_under_a_query_that_runs(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct asked k[4];

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(ask(b, &k[i], ticket, (float)i));
    WAIT_FOR(atomic_load(&a->n_begun) == 1);
    for (uint32_t i = 0; i < 4; i++)
        pool_query_forget(b->pool, k[i].number);
    pool_forget(b->pool, ticket);
    ticket = find(b, 0); /* the lender has seen the end of the first lease */
    for (uint32_t i = 0; i < 100; i++)
        world_turn();
    assert_int_equal(a->n_returned, 0);
    atomic_store(&a->n_allowed, UINT32_MAX);
    WAIT_FOR(a->n_returned == 1);
    assert_in_range(atomic_load(&a->n_attended), 1, 2); /* the others had to wait and are not run */
    assert_ok(ask(b, &k[0], ticket, 9));
    assert_ok(end(b, &k[0]));
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 2);
}

static void an_asker_that_dies_leaves_nothing_at_the_lender(void **state)
{
    struct side *a = open_sides(2), *b = &world.sides[1], *c = &world.sides[2];
    uint32_t ticket = find(b, 0), other;
    struct asked k;

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < 30; i++)
        assert_ok(ask(b, &k, ticket, (float)i));
    wait_for_arrival(b, ticket);
    side_close(b);
    other = find(c, 0);
    assert_int_equal(a->n_returned, 0);
    atomic_store(&a->n_allowed, UINT32_MAX);
    WAIT_FOR(a->n_returned == 1);
    assert_ok(ask(c, &k, other, 3));
    assert_ok(end(c, &k));
    assert_in_range(atomic_load(&a->n_attended), 2, 3);
    pool_forget(c->pool, other);
}

static void a_lender_that_dies_ends_its_queries(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct asked k[40];

    (void)state;
    atomic_store(&a->n_allowed, 10);
    for (uint32_t i = 0; i < 40; i++)
        assert_ok(ask(b, &k[i], ticket, (float)i));
    WAIT_FOR(atomic_load(&a->n_begun) == 11);
    atomic_store(&a->n_allowed, 11); /* closing waits for the one that runs */
    side_close(a);
    for (uint32_t i = 0; i < 40; i++) {
        enum status s = end(b, &k[i]);
        assert_true(i < 11 ? s == OK || s == ERR_NOT_FOUND : s == ERR_NOT_FOUND);
    }
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    assert_int_equal(ask(b, &k[0], ticket, 1), ERR_UNAVAILABLE);
    pool_forget(b->pool, ticket);
}

static void a_late_answer_has_no_effect_on_later_queries(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    const float *tiles;
    struct asked k[3], next[20];

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(ask(b, &k[i], ticket, (float)i));
        assert_int_equal(pool_query_end(b->pool, k[i].number, clock_now_ns() + 1000000, &tiles),
                         ERR_TIMEOUT);
        pool_query_forget(b->pool, k[i].number);
    }
    WAIT_FOR(stats_of(b).n_peer_timeouts == 3);
    for (uint32_t i = 0; i < 20; i++)
        assert_ok(ask(b, &next[i], ticket, (float)(100 + i)));
    atomic_store(&a->n_allowed, UINT32_MAX);
    for (uint32_t i = 0; i < 20; i++)
        assert_ok(end(b, &next[i]));
    WAIT_FOR(stats_of(b).n_queries_failed == 3);
    assert_int_equal(stats_of(b).n_peers, 1);
    pool_forget(b->pool, ticket);
}

static void a_lender_that_is_always_late_loses_its_connection(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    const float *tiles;
    struct asked k;

    (void)state;
    atomic_store(&a->n_allowed, 0);
    while (ask(b, &k, ticket, 1) == OK) {
        enum status s = pool_query_end(b->pool, k.number, clock_now_ns() + 1000000, &tiles);
        assert_true(s == ERR_TIMEOUT || s == ERR_NOT_FOUND);
        pool_query_forget(b->pool, k.number);
        world_turn();
    }
    WAIT_FOR(stats_of(b).n_peer_timeouts == 4 && stats_of(b).n_peers == 0);
    atomic_store(&a->n_allowed, UINT32_MAX);
    WAIT_FOR(a->n_returned == 1);
    pool_forget(b->pool, ticket);
}

static void a_query_whose_time_is_over_is_not_computed(void **state)
{
    struct side *a = open_sides(1), *b = &world.sides[1];
    uint32_t ticket = find(b, 0);
    struct asked k[4];

    (void)state;
    atomic_store(&a->n_allowed, 0);
    for (uint32_t i = 0; i < 4; i++) {
        k[i] = (struct asked){.query = {.segments = all_segments,
                                        .n_segments = 3,
                                        .until_ns = i < 3 ? 0 : clock_now_ns() + 30000000}};
        assert_ok(ask_with(b, &k[i], ticket, (float)i));
    }
    wait_for_arrival(b, ticket);
    clock_sleep_ns(60000000);
    atomic_store(&a->n_allowed, UINT32_MAX);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(end(b, &k[i]));
    enum status s = end(b, &k[3]); /* of a slow machine: it was not even sent */
    assert_true(s == ERR_BUSY || s == ERR_TIMEOUT);
    assert_int_equal(a->n_attended, 3);
    pool_forget(b->pool, ticket);
}

static void queries_renew_the_lease(void **state)
{
    enum { PULL_MS = 400 };
    struct pool_config c = query_config();
    uint64_t began = 0, last = 0, now;
    uint32_t ticket = POOL_NO_TICKET;
    struct asked k;

    (void)state;
    c.pull_ms = PULL_MS;
    struct side *a = side_open_with(0, c), *b = side_open_with(1, c);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    do { /* a pause of the machine that is longer than the lease begins the test again */
        bool is_over = ticket == POOL_NO_TICKET || ask(b, &k, ticket, 1) != OK || end(b, &k) != OK;
        now = clock_now_ns();
        if (is_over) {
            if (last > 0 && now - last < PULL_MS / 2 * UINT64_C(1000000))
                fail_msg("the lease ended although queries were sent");
            if (ticket != POOL_NO_TICKET)
                pool_forget(b->pool, ticket);
            ticket = side_lookup(b, 0);
            if (side_look(b, ticket, NULL) != POOL_FOUND)
                last = 0;
            began = clock_now_ns();
        }
        last = is_over ? 0 : now;
        world_turn();
    } while (now < began + 3 * PULL_MS * UINT64_C(1000000));
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == a->n_lent);
}

/* --- the time of a query --- */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The figure depends on the machine, so it is printed and not compared. TARN_QUERY_PAUSE_US: the
 * time between two queries. */
static void the_round_trip_is_measured(void **state)
{
    enum { N = 400 };
    static uint64_t ns[N];
    const char *pause_us = getenv("TARN_QUERY_PAUSE_US");
    uint64_t pause_ns = pause_us ? 1000 * strtoull(pause_us, NULL, 10) : 0;
    struct pool_config c = query_config();
    const float *tiles;
    struct asked k;

    (void)state;
    c.attend = attend_nothing;
    struct side *a = side_open_with(0, c), *b = side_open_with(1, c);
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b, 0);
    for (uint32_t i = 0; i < N; i++) {
        ns[i] = clock_now_ns();
        assert_ok(ask(b, &k, ticket, 1));
        assert_ok(pool_query_end(b->pool, k.number, ns[i] + UINT64_C(60000000000), &tiles));
        ns[i] = clock_now_ns() - ns[i];
        pool_query_forget(b->pool, k.number);
        if (pause_ns > 0)
            clock_sleep_ns(pause_ns);
    }
    qsort(ns, N, sizeof *ns, compare);
    print_message("a query and its answer: p50 %.1f us, p90 %.1f us\n", (double)ns[N / 2] / 1e3,
                  (double)ns[N * 9 / 10] / 1e3);
    pool_forget(b->pool, ticket);
}

static int run_kind(const char *kind)
{
    struct transport_config config = {.kind = kind, .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(tiles_are_computed_from_the_lent_blocks),
        T(segments_of_a_part_of_the_path_are_counted_from_its_beginning),
        T(answers_are_taken_in_any_order),
        T(queries_of_several_instances_do_not_mix),
        T(instances_take_turns),
        T(more_queries_than_fit_are_refused_and_the_others_answered),
        T(each_instance_has_its_share_of_the_lender),
        T(the_largest_queries_pass_and_larger_ones_are_refused),
        T(who_answers_no_queries_says_so_and_sends_none),
        T(a_computation_that_fails_is_refused_and_the_lease_stays),
        T(a_lease_does_not_end_under_a_query_that_runs),
        T(an_asker_that_dies_leaves_nothing_at_the_lender),
        T(a_lender_that_dies_ends_its_queries),
        T(a_late_answer_has_no_effect_on_later_queries),
        T(a_lender_that_is_always_late_loses_its_connection),
        T(a_query_whose_time_is_over_is_not_computed),
        T(queries_renew_the_lease),
        T(the_round_trip_is_measured),
    };

    world.kind = kind;
    if (transport_open(&t, &config, NULL) == ERR_UNSUPPORTED) {
        print_message("%s: not available here\n", kind);
        return 0;
    }
    transport_close(t);
    return cmocka_run_group_tests_name(kind, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    log_init(LOG_ERROR, false);
    if (hash_init() != OK)
        return 1;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (argc > 1)
        return run_kind(argv[1]);
    return run_kind("tcp") + run_kind("ucx");
}
