/* A pool against a member that breaks the rules of queries, in each role. */
#include "tests/unit/cache/pool/liar.h"

#include "base/log.h"

static void a_lender_that_lies_about_tiles_is_not_believed(void **state)
{
    static const struct pool_segment segments[] = {{.at = 4, .n_blocks = 4, .n_tokens = 128},
                                                   {.at = 8, .n_blocks = 8, .n_tokens = 255}};
    static const enum status expected[LIE_N_QUERY - LIE_N] = {
        OK,
        ERR_CORRUPT,
        ERR_CORRUPT,
        ERR_CORRUPT,
        ERR_CORRUPT,
        ERR_NOT_FOUND,
        OK, /* or the end of the connection, if both came at once */
        ERR_NOT_FOUND,
        ERR_NOT_FOUND,
        ERR_BUSY,
        ERR_BUSY};
    struct side *b = side_open_with(1, query_config());
    struct pool_query q = {.layer = 1,
                           .n_rows = 2,
                           .q = liar.q,
                           .q_stride = QUERY_FLOATS,
                           .segments = segments,
                           .n_segments = 2};
    const float *tiles;
    uint32_t query;

    (void)state;
    for (liar.lie = LIE_N; liar.lie < LIE_N_QUERY; liar.lie++) {
        uint32_t n_closed = liar.n_closed, n_queried = liar.n_queried;
        bool is_honest = liar.lie == LIE_N || liar.lie == LIE_REFUSED_STALE ||
                         liar.lie == LIE_REFUSED_BUSY || liar.lie == LIE_TILES_DIE;
        list_liar();
        WAIT_FOR(knows(b, liar.self.id));
        q.ticket = side_lookup(b, 4);
        assert_int_equal(side_look(b, q.ticket, NULL), POOL_FOUND);
        assert_ok(pool_query(b->pool, &q, &query));
        WAIT_FOR(liar.n_queried == n_queried + 1);
        enum status s = ERR_TIMEOUT; /* the liar needs turns */
        WAIT_FOR((s = pool_query_end(b->pool, query, clock_now_ns() + 1000000, &tiles)) !=
                 ERR_TIMEOUT);
        if (s != expected[liar.lie - LIE_N] && (liar.lie != LIE_TILES_DIE || s != OK))
            fail_msg("lie %d: status %d", liar.lie, s);
        pool_query_forget(b->pool, query);
        if (!is_honest)
            WAIT_FOR(liar.n_closed == n_closed + 1);
        if (!is_honest || liar.lie == LIE_REFUSED_STALE)
            WAIT_FOR(pool_look(b->pool, q.ticket, NULL) == POOL_NOT_FOUND);
        if (liar.lie == LIE_REFUSED_BUSY)
            assert_int_equal(pool_look(b->pool, q.ticket, NULL), POOL_FOUND);
        pool_forget(b->pool, q.ticket);
        unlist_liar();
    }
    check_honest(b);
}

/* A query that can be answered: all segments of what an_asker's lease lends. */
static struct wire_message good_query(void)
{
    static uint8_t segments[2 * WIRE_SEGMENT_BYTES];

    wire_put_segment(&(struct wire_segment){.at = 4, .n_blocks = 4, .n_tokens = 128}, segments);
    wire_put_segment(&(struct wire_segment){.at = 8, .n_blocks = 2, .n_tokens = 64},
                     segments + WIRE_SEGMENT_BYTES);
    uint32_t n_bytes = 3 * QUERY_FLOATS * sizeof *liar.q;
    return (struct wire_message){.kind = WIRE_QUERY,
                                 .id = 1,
                                 .query = 7,
                                 .layer = N_LAYERS - 1,
                                 .n_rows = 3,
                                 .ms = 60000,
                                 .n_bytes = n_bytes,
                                 .floats_crc = hash_crc32c(0, liar.q, n_bytes),
                                 .n = 2,
                                 .segments = segments};
}

static void a_query_must_name_what_is_lent(void **state)
{
    enum { N_WRONG = 8 };
    struct side *a = side_open_with(0, query_config());

    (void)state;
    a->n_tokens_last = 31; /* of the last block that it holds */
    side_hold(a, 10);
    for (uint32_t i = 0; i < N_WRONG; i++) {
        uint8_t segments[2 * WIRE_SEGMENT_BYTES];
        struct wire_message m = good_query();
        struct wire_segment first = {.at = 4, .n_blocks = 4, .n_tokens = 128},
                            second = {.at = 8, .n_blocks = 2, .n_tokens = 63};
        liar_connect(a);
        liar_ask(1);
        WAIT_FOR(liar.n_lent == i + 1);
        switch (i) {
        case 0: second.n_tokens = 64; break; /* more than the last block has */
        case 1: second = (struct wire_segment){.at = 8, .n_blocks = 3, .n_tokens = 65}; break;
        case 2: second.at = WIRE_PATH_MAX - 2; break;
        case 3: first.at = 3; break; /* a block that the asker said it has */
        case 4: m.layer = N_LAYERS; break;
        case 5: m.n_rows = 2; break;
        case 6: m.n_bytes -= 4; break;
        case 7: m.floats_crc++; break;
        }
        wire_put_segment(&first, segments);
        wire_put_segment(&second, segments + WIRE_SEGMENT_BYTES);
        m.segments = segments;
        liar_send(&m, liar.q, m.n_bytes);
        WAIT_FOR(liar.n_closed == i + 1 && a->n_returned == i + 1);
    }
    assert_int_equal(a->n_begun, 0);
    liar_connect(a);
    struct wire_message m = good_query();
    liar_send(&m, liar.q, m.n_bytes); /* no lease yet */
    WAIT_FOR(liar.n_refused == 1);
    assert_int_equal(liar.last.reason, WIRE_STALE);
    a->n_tokens_last = 0;
    liar_ask(1);
    WAIT_FOR(liar.n_lent == N_WRONG + 1);
    assert_true(liar.last.attends);
    liar_send(&m, liar.q, m.n_bytes);
    WAIT_FOR(liar.n_tiles == 1);
    assert_int_equal(liar.last.query, 7);
    assert_int_equal(liar.last.n_bytes, 2 * 3 * TILE_FLOATS * sizeof(float));
    struct side *b = side_open(1);
    WAIT_FOR(all_know(2));
    check_honest(b);
}

static void a_query_to_an_instance_that_answers_none_ends_the_connection(void **state)
{
    struct side *a = side_open(0);
    struct wire_message m = good_query();

    (void)state;
    side_hold(a, 10);
    liar_connect(a);
    liar_ask(1);
    WAIT_FOR(liar.n_lent == 1);
    assert_false(liar.last.attends);
    liar_send(&m, liar.q, m.n_bytes);
    WAIT_FOR(liar.n_closed == 1 && a->n_returned == 1);
}

/* The answers to a flood of queries are refusals, and what runs ends after the connection. */
static void a_flood_of_queries_is_bounded(void **state)
{
    enum { N_FLOOD = 600 };
    struct side *a = side_open_with(0, query_config());

    (void)state;
    side_hold(a, 10);
    atomic_store(&a->n_allowed, 0);
    liar_connect(a);
    liar_ask(1);
    WAIT_FOR(liar.n_lent == 1);
    for (uint32_t i = 0; i < N_FLOOD; i++) {
        struct wire_message m = good_query();
        m.query = 5; /* even under one number */
        liar_send(&m, liar.q, m.n_bytes);
    }
    WAIT_FOR(liar.n_refused == N_FLOOD - 128);
    transport_disconnect(liar.transport, liar.conn);
    liar.is_open = liar.is_member = false;
    for (uint32_t i = 0; i < 50; i++)
        world_turn();
    assert_int_equal(a->n_returned, 0);
    atomic_store(&a->n_allowed, UINT32_MAX);
    WAIT_FOR(a->n_returned == 1);
    assert_in_range(atomic_load(&a->n_attended), 1, 2);
    struct side *b = side_open_with(1, query_config());
    WAIT_FOR(all_know(2));
    check_honest(b);
}

/* A member gets another lease under the id of one that has just ended, with fewer blocks. Queries
 * that wait for their turn were checked against the first one, so not against the second one. */
static void queries_that_wait_do_not_meet_another_lease(void **state)
{
    struct side *a = side_open_with(0, query_config());
    struct wire_message m = good_query(), close = {.kind = WIRE_CLOSE, .id = 1},
                        ask = {.kind = WIRE_ASK, .id = 1, .n = N_PATH, .n_there = 9, .ms = 60000};

    (void)state;
    side_hold(a, 10);
    atomic_store(&a->n_allowed, 0);
    liar_connect(a);
    liar_ask(2); /* its query runs */
    WAIT_FOR(liar.n_lent == 1);
    m.id = 2;
    liar_send(&m, liar.q, m.n_bytes);
    liar_send(&m, liar.q, m.n_bytes);
    liar_ask(1);
    WAIT_FOR(liar.n_lent == 2);
    m.id = 1;
    liar_send(&m, liar.q, m.n_bytes);
    liar_send(&m, liar.q, m.n_bytes);
    liar_send(&close, NULL, 0);
    WAIT_FOR(a->n_returned == 1);
    liar_send(&ask, world.keys, sizeof world.keys); /* lends one block */
    WAIT_FOR(liar.n_lent == 3);
    atomic_store(&a->n_allowed, UINT32_MAX);
    WAIT_FOR(liar.n_tiles == 2 && liar.n_refused == 2);
    assert_int_equal(a->n_attended, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(a_lender_that_lies_about_tiles_is_not_believed),
        T(a_query_must_name_what_is_lent),
        T(a_query_to_an_instance_that_answers_none_ends_the_connection),
        T(a_flood_of_queries_is_bounded),
        T(queries_that_wait_do_not_meet_another_lease),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
