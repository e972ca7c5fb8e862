/* Load of access over pools of one process, with the test as their engines: who is asked, and what
 * gets further copies. */
#include "tests/unit/cache/pool/pool_world.h"

#include <math.h>

#include "base/check.h"
#include "cache/pool/pool_inner.h"

enum { N_TOKENS = N_IN_SEGMENT * KV_BLOCK_TOKENS };

static uint8_t to[N_PATH][BLOCK_BYTES];

static int set_up(void **state)
{
    (void)state;
    world_begin();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    world_end();
    return 0;
}

static struct pool_stats stats_of(struct side *s)
{
    struct pool_stats stats;

    pool_stats(s->pool, &stats);
    return stats;
}

/* Open n_sides; the first n_holders of them hold the path. */
static void open_sides(uint32_t n_sides, uint32_t n_holders)
{
    struct pool_config c = query_config();

    c.balances = true;
    for (uint32_t i = 0; i < n_sides; i++)
        side_open_with(i, c);
    for (uint32_t i = 0; i < n_holders; i++)
        side_hold(&world.sides[i], N_PATH);
    for (uint32_t i = 0; i < n_holders; i++)
        WAIT_FOR(is_announced(&world.sides[i]) && all_know(n_sides));
}

/* Say that the side has used its own KV so much, and has room. */
static void use_own(struct side *s, double n_accesses)
{
    pool_set_load(s->pool, &(struct pool_load){
                               .n_blocks = 100, .n_free_blocks = 1, .n_accesses = n_accesses});
}

static struct directory_instance seen(struct side *by, const struct side *s)
{
    struct directory_instance all[N_SIDES];
    uint32_t n = pool_instances(by->pool, all, N_SIDES);

    for (uint32_t i = 0; i < n; i++)
        if (all[i].id == s->id)
            return all[i];
    return (struct directory_instance){0};
}

/* All sides have room, and all know that. */
static void give_room(uint32_t n_sides)
{
    for (uint32_t i = 0; i < n_sides; i++)
        use_own(&world.sides[i], 0);
    for (uint32_t i = 0; i < n_sides; i++)
        for (uint32_t k = 0; k < n_sides; k++)
            WAIT_FOR(seen(&world.sides[i], &world.sides[k]).n_blocks == 100);
}

static uint32_t find(struct side *s)
{
    struct pool_found found;
    uint32_t ticket = side_lookup(s, 0);

    assert_int_equal(side_look(s, ticket, &found), POOL_FOUND);
    assert_int_equal(found.n_blocks, N_PATH);
    return ticket;
}

/* Read the first n blocks of a found ticket. */
static void read_blocks(struct side *s, uint32_t ticket, uint32_t n)
{
    memset(s->is_done, 0, sizeof s->is_done);
    s->n_done = 0;
    for (uint32_t i = 0; i < n; i += POOL_READ_MAX) {
        uint32_t at[POOL_READ_MAX];
        void *memory[POOL_READ_MAX];
        for (uint32_t k = 0; k < POOL_READ_MAX; k++) {
            at[k] = i + k;
            memory[k] = to[i + k];
        }
        assert_ok(pool_read(s->pool, ticket, at, memory, POOL_READ_MAX, i));
    }
    WAIT_FOR(s->n_done == n / POOL_READ_MAX);
    for (uint32_t i = 0; i < n; i += POOL_READ_MAX)
        assert_ok(s->done[i]);
}

static void pull(struct side *s, uint32_t n)
{
    uint32_t ticket = find(s);

    read_blocks(s, ticket, n);
    pool_forget(s->pool, ticket);
}

/* Read the first n blocks until their holder wants them to be offered. own: what the holder uses
 * itself before each read. */
static struct pool_copy read_until_wanted(uint32_t n, double own)
{
    struct side *a = &world.sides[0], *reader = &world.sides[1];
    uint64_t until_ns = clock_now_ns() + UINT64_C(60000000000);
    struct pool_copy copy;

    while (!pool_next_copy(a->pool, &copy)) {
        if (clock_now_ns() > until_ns)
            fail_msg("no copy was wanted within a minute");
        use_own(a, own);
        pull(reader, n);
        world_turn();
    }
    return copy;
}

static struct side *side_of(uint64_t id)
{
    for (uint32_t i = 0; i < N_SIDES; i++)
        if (world.sides[i].pool && world.sides[i].id == id)
            return &world.sides[i];
    return NULL;
}

/* Offer what is wanted; returns the receiver, which has the offer. */
static struct side *offer(const struct pool_copy *copy)
{
    struct pool_meta meta[N_PATH];
    struct side *a = &world.sides[0], *b = side_of(copy->to);

    for (uint32_t i = 0; i < N_PATH; i++)
        meta[i] = (struct pool_meta){.n_tokens = 32, .starts_segment = i % N_IN_SEGMENT == 0};
    assert_true(b && b != a);
    assert_true(pool_offer(
        a->pool,
        &(struct pool_offer){
            .keys = world.keys, .meta = meta, .n = N_PATH, .to = copy->to, .why = copy->why}));
    WAIT_FOR(b->n_offers == 1);
    return b;
}

/* The receiver takes what is offered. */
static void hand_over(const struct pool_copy *copy)
{
    struct side *a = &world.sides[0], *b = offer(copy);

    read_blocks(b, b->offer.ticket, N_PATH);
    side_hold(b, N_PATH);
    pool_forget(b->pool, b->offer.ticket);
    WAIT_FOR(pool_n_offers(a->pool) == 0 && a->n_returned == a->n_lent);
}

/* --- who is asked --- */

static void two_holders_are_drawn_by_each_others_load(void **state)
{
    struct pool *p = calloc(1, sizeof *p);
    const double loads[][3] = {{3, 1, 0.75}, {1, 3, 0.25}, {0, 0, 0.5}, {5, 0, 1}, {0, 5, 0}};
    const uint32_t n = 20000;

    (void)state;
    assert_non_null(p);
    for (uint32_t i = 0; i < ARRAY_SIZE(loads); i++) {
        uint32_t n_second = 0;
        for (uint32_t k = 0; k < n; k++)
            n_second += pool_balance_draws_second(p, loads[i][0], loads[i][1]);
        assert_true(fabs((double)n_second / n - loads[i][2]) < 0.02);
    }
    free(p);
}

static void readers_go_to_the_holder_with_less_load(void **state)
{
    (void)state;
    for (uint32_t full = 0; full < 2; full++) {
        world_begin();
        open_sides(3, 2);
        struct side *reader = &world.sides[2], *loaded = &world.sides[full];
        use_own(loaded, 1e9);
        WAIT_FOR(seen(reader, loaded).load > 0 && stats_of(reader).load_cv > 0.5);
        for (uint32_t i = 0; i < 20; i++)
            pool_forget(reader->pool, find(reader));
        assert_int_equal(loaded->n_asks, 0);
        assert_int_equal(world.sides[1 - full].n_asks, 20);
        world_end();
    }
}

/* --- the load --- */

static void each_token_that_is_read_or_queried_is_an_access(void **state)
{
    struct pool_segment segments[] = {{.at = 0, .n_blocks = 8, .n_tokens = 250},
                                      {.at = 8, .n_blocks = 8, .n_tokens = 240}};
    float q[2 * QUERY_FLOATS] = {0};
    const float *tiles;
    uint32_t query;

    (void)state;
    open_sides(2, 1);
    struct side *a = &world.sides[0], *reader = &world.sides[1];
    pull(reader, N_PATH);
    WAIT_FOR(stats_of(a).n_accesses == 3 * N_TOKENS);
    use_own(a, 1000);
    WAIT_FOR(stats_of(a).n_accesses == 3 * N_TOKENS + 1000);
    uint32_t ticket = find(reader);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        struct pool_query k = {.ticket = ticket,
                               .layer = layer,
                               .n_rows = 2,
                               .q = q,
                               .q_stride = QUERY_FLOATS,
                               .segments = segments,
                               .n_segments = 2};
        assert_ok(pool_query(reader->pool, &k, &query));
        assert_ok(pool_query_end(reader->pool, query, UINT64_MAX, &tiles));
        pool_query_forget(reader->pool, query);
    }
    pool_forget(reader->pool, ticket);
    /* Five layers of 50 and 48 tokens each. */
    WAIT_FOR(fabs(stats_of(a).n_accesses - (3 * N_TOKENS + 1000 + 490)) < 1e-6);
    assert_true(stats_of(reader).n_accesses == 0);
}

static void the_load_of_one_instance_is_uneven_and_that_of_two_is_even(void **state)
{
    (void)state;
    open_sides(2, 0);
    use_own(&world.sides[0], 1e7);
    WAIT_FOR(stats_of(&world.sides[1]).load_cv > 0.9);
    for (uint32_t i = 0; i < 2; i++) /* one of them has up to twice the other's */
        use_own(&world.sides[i], 1e7);
    WAIT_FOR(stats_of(&world.sides[1]).load_cv < 0.5);
}

/* --- copies --- */

static void what_is_read_often_gets_a_copy_that_others_read_too(void **state)
{
    (void)state;
    open_sides(3, 1);
    give_room(3);
    struct side *a = &world.sides[0];
    struct pool_copy copy = read_until_wanted(N_PATH, 0);
    assert_int_equal(copy.why, POOL_OFFER_COPY);
    assert_memory_equal(&copy.last, &world.keys[N_PATH - 1], sizeof copy.last);
    WAIT_FOR(a->n_returned == a->n_lent);
    uint32_t n_pulled = a->n_pulled;
    double n_accesses = (double)a->n_lent * 3 * N_TOKENS;
    WAIT_FOR(stats_of(a).n_accesses == n_accesses);
    hand_over(&copy);
    WAIT_FOR(stats_of(a).n_copies == 1);
    assert_int_equal(stats_of(a).n_copies_offered, 1);
    assert_int_equal(a->n_offered, 1);
    assert_int_equal(stats_of(a).n_moves, 0);
    assert_int_equal(stats_of(a).n_handed_over, 0);
    assert_int_equal(a->n_pulled, n_pulled); /* the holder keeps its own as before */
    assert_true(stats_of(a).n_accesses == n_accesses);
}

static void only_the_part_that_is_read_often_gets_a_copy(void **state)
{
    (void)state;
    open_sides(3, 1);
    give_room(3);
    struct pool_copy copy = read_until_wanted(N_IN_SEGMENT, 0);
    assert_memory_equal(&copy.last, &world.keys[N_IN_SEGMENT - 1], sizeof copy.last);
}

static void the_fullest_instance_moves_a_path_to_another_one(void **state)
{
    (void)state;
    open_sides(3, 1);
    give_room(3);
    struct side *a = &world.sides[0];
    struct pool_copy copy = read_until_wanted(N_PATH, 1e6);
    assert_int_equal(copy.why, POOL_OFFER_MOVE);
    WAIT_FOR(a->n_returned == a->n_lent);
    uint32_t n_pulled = a->n_pulled;
    hand_over(&copy);
    WAIT_FOR(stats_of(a).n_moves == 1);
    assert_int_equal(stats_of(a).n_copies, 0);
    assert_int_equal(a->n_pulled, n_pulled + 1); /* its own copy can be replaced */
}

static void an_offer_that_the_receiver_refuses_is_no_copy(void **state)
{
    (void)state;
    open_sides(3, 1);
    give_room(3);
    struct side *a = &world.sides[0];
    struct pool_copy copy = read_until_wanted(N_PATH, 0);
    struct side *b = offer(&copy);
    pool_forget(b->pool, b->offer.ticket);
    WAIT_FOR(pool_n_offers(a->pool) == 0);
    WAIT_FOR(stats_of(a).n_copies_offered == 1);
    assert_int_equal(stats_of(a).n_copies, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_holders_are_drawn_by_each_others_load),
        T(readers_go_to_the_holder_with_less_load),
        T(each_token_that_is_read_or_queried_is_an_access),
        T(the_load_of_one_instance_is_uneven_and_that_of_two_is_even),
        T(what_is_read_often_gets_a_copy_that_others_read_too),
        T(only_the_part_that_is_read_often_gets_a_copy),
        T(the_fullest_instance_moves_a_path_to_another_one),
        T(an_offer_that_the_receiver_refuses_is_no_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
