/* Device memory of instances on one machine: who maps whose, what is read from it, and when it is
 * unmapped. The memory is this process's, and the test copies in place of the engines. */
#include "tests/unit/cache/pool/liar.h"

#include "base/log.h"

static uint8_t to[N_PATH][BLOCK_BYTES];

/* The exported memory: that of side 0, which outlives it. */
static uint8_t exported[N_PATH][BLOCK_BYTES];
static _Atomic uint32_t n_mapped, n_unmapped;
static _Atomic bool map_fails;
static bool copies_wait; /* the test copies itself */
static struct pool_places places;
static uint32_t n_places;

static const uint8_t handle[POOL_HANDLE_BYTES] = "a handle";

static enum status map(void *arg, const uint8_t given[POOL_HANDLE_BYTES], void **memory)
{
    (void)arg;
    if (map_fails || memcmp(given, handle, sizeof handle) != 0)
        return ERR_UNSUPPORTED;
    n_mapped++;
    *memory = exported;
    return OK;
}

static void unmap(void *arg, void *memory)
{
    (void)arg;
    n_unmapped += memory == exported;
}

/* Copy the blocks of the latest read. */
static void copy(struct side *s)
{
    enum status status = OK;

    for (uint32_t i = 0; i < places.n; i++) {
        size_t at = (size_t)((const uint8_t *)places.from[i] - exported[0]) / BLOCK_BYTES;
        memcpy(to[at], places.from[i], BLOCK_BYTES);
        if (hash_crc32c(0, to[at], BLOCK_BYTES) != places.crc[i])
            status = ERR_CORRUPT;
    }
    pool_copied(s->pool, places.read, status);
}

static void take_turns(void)
{
    for (uint32_t i = 1; i < N_SIDES; i++)
        while (world.sides[i].pool && pool_next_places(world.sides[i].pool, &places)) {
            n_places++;
            if (!copies_wait)
                copy(&world.sides[i]);
        }
}

static void more(void)
{
    take_turns();
    liar_turn();
}

static int begin(void **state)
{
    int status = set_up(state);

    world.more = more;
    n_mapped = n_unmapped = n_places = 0;
    map_fails = copies_wait = false;
    memset(to, 0, sizeof to);
    for (uint32_t i = 0; i < N_PATH; i++)
        world_fill(exported[i], i);
    return status;
}

static struct pool_config near_config(void)
{
    struct pool_config c = side_config();

    c.map = map;
    c.unmap = unmap;
    return c;
}

static struct side *near_side(uint32_t no)
{
    return side_open_with(no, near_config());
}

/* Side 0, which holds the path and lends it. */
static struct side *lender(struct pool_config c)
{
    struct side *a = side_open_with(0, c);

    a->lends_near = true;
    pool_export(a->pool, handle, sizeof exported);
    side_hold(a, N_PATH);
    return a;
}

static struct pool_stats stats_of(struct side *s)
{
    struct pool_stats stats;

    pool_stats(s->pool, &stats);
    return stats;
}

static uint32_t find(struct side *b)
{
    uint32_t ticket = side_lookup(b, 0);

    assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
    return ticket;
}

/* Begin to read blocks [from, from + 4). */
static void begin_read(struct side *b, uint32_t ticket, uint32_t from, uint64_t tag)
{
    uint32_t at[4] = {from, from + 1, from + 2, from + 3};
    void *memory[4] = {to[from], to[from + 1], to[from + 2], to[from + 3]};

    b->is_done[tag] = false;
    assert_ok(pool_read(b->pool, ticket, at, memory, 4, tag));
}

static enum status read_four(struct side *b, uint32_t ticket, uint32_t from, uint64_t tag)
{
    begin_read(b, ticket, from, tag);
    WAIT_FOR(b->is_done[tag]);
    return b->done[tag];
}

static void check_four(uint32_t from)
{
    static uint8_t expected[BLOCK_BYTES];

    for (uint32_t i = from; i < from + 4; i++) {
        world_fill(expected, i);
        assert_memory_equal(to[i], expected, BLOCK_BYTES);
    }
}

static void device_memory_of_this_machine_is_mapped_and_read(void **state)
{
    struct side *a = lender(near_config()), *b = near_side(1);

    (void)state;
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    assert_true(pool_is_near(b->pool, ticket, 0) && pool_is_near(b->pool, ticket, N_PATH - 1));
    for (uint32_t i = 0; i < N_PATH; i += 4) {
        assert_ok(read_four(b, ticket, i, i));
        check_four(i);
    }
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
    assert_int_equal(a->n_pulled, 1);
    WAIT_FOR(stats_of(b).n_near_bytes == sizeof exported && stats_of(b).n_mapped == 1);
    assert_true(stats_of(b).n_pulled_bytes == sizeof exported && stats_of(b).read_bytes_per_s > 0);
    assert_int_equal(n_places, N_PATH / 4);
    pool_forget(b->pool, find(b)); /* the memory stays mapped */
    WAIT_FOR(a->n_returned == 2 && a->n_pulled == 1);
    assert_true(a->n_near == 2 && n_mapped == 1 && n_unmapped == 0);
}

/* The three read host memory over the transport. */
static void others_get_no_device_memory(void **state)
{
    struct pool_config far = near_config();
    struct side *a = lender(near_config()), *b, *c, *d;

    (void)state;
    far.machine = "another machine";
    b = side_open(1); /* switched off, or a CPU */
    c = side_open_with(2, far);
    map_fails = true; /* as between two GPUs that cannot see each other */
    d = near_side(3);
    WAIT_FOR(is_announced(a) && all_know(4));
    struct side *all[] = {b, c, d};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t ticket = find(all[i]);
        assert_false(pool_is_near(all[i]->pool, ticket, 0));
        assert_ok(read_four(all[i], ticket, 4, 1));
        check_four(4);
        memset(to, 0, sizeof to);
        pool_forget(all[i]->pool, ticket);
    }
    WAIT_FOR(a->n_returned == 3);
    assert_true(a->n_near == 0 && n_mapped == 0 && n_places == 0);
}

static void wrong_bytes_are_a_miss_and_cost_the_connection(void **state)
{
    struct side *a = lender(near_config()), *b = near_side(1);

    (void)state;
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    copies_wait = true;
    begin_read(b, ticket, 8, 1);
    WAIT_FOR(n_places == 1);
    exported[9][77] ^= 1;
    copy(b);
    WAIT_FOR(b->is_done[1]);
    assert_int_equal(b->done[1], ERR_CORRUPT);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    assert_int_equal(n_unmapped, 0); /* the engine may still copy */
    pool_forget(b->pool, ticket);
    WAIT_FOR(n_unmapped == 1 && a->n_returned == 1 && stats_of(b).n_reads_corrupt == 1);
    exported[9][77] ^= 1;
    copies_wait = false;
    WAIT_FOR((ticket = side_lookup(b, 0), side_look(b, ticket, NULL)) == POOL_FOUND ||
             (pool_forget(b->pool, ticket), false)); /* the pause after the fault is over */
    assert_ok(read_four(b, ticket, 8, 2));
    check_four(8);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 2);
}

static void a_lender_that_dies_is_unmapped_behind_the_last_copy(void **state)
{
    struct side *a = lender(near_config()), *b = near_side(1);

    (void)state;
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    copies_wait = true;
    begin_read(b, ticket, 0, 1);
    WAIT_FOR(n_places == 1);
    side_close(a);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    assert_false(b->is_done[1]);
    copy(b);
    WAIT_FOR(b->is_done[1]);
    assert_ok(b->done[1]); /* the checksum says that these are the bytes */
    check_four(0);
    assert_int_equal(n_unmapped, 0);
    pool_forget(b->pool, ticket);
    WAIT_FOR(n_unmapped == 1 && stats_of(b).n_mapped == 0);
}

/* As an instance does that sleeps and wakes. */
static void memory_that_goes_away_is_unmapped_first(void **state)
{
    struct side *a = lender(near_config()), *b = near_side(1);

    (void)state;
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    side_hold(a, 0);
    pool_unregister(a->pool);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND && a->n_returned == 1);
    for (uint32_t i = 0; i < 50; i++)
        world_turn();
    assert_true(!pool_is_unregistered(a->pool) && n_unmapped == 0);
    pool_forget(b->pool, ticket);
    WAIT_FOR(pool_is_unregistered(a->pool));
    assert_true(n_unmapped == 1 && stats_of(b).n_peer_timeouts == 0);
    side_hold(a, N_PATH); /* meanwhile nothing is lent from it */
    WAIT_FOR(is_announced(a));
    ticket = find(b);
    assert_false(pool_is_near(b->pool, ticket, 0));
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 2);
    pool_export(a->pool, handle, sizeof exported);
    WAIT_FOR(n_mapped == 2);
    do { /* a has not heard of that yet, perhaps */
        ticket = find(b);
        pool_forget(b->pool, ticket);
    } while (a->n_near < 2);
}

/* A peer that keeps the memory mapped delays that by pull_ms at most. */
static void memory_goes_away_from_a_peer_that_does_not_answer(void **state)
{
    struct pool_config c = near_config();
    struct side *a, *b;

    (void)state;
    c.pull_ms = 300;
    a = lender(c);
    b = near_side(1);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b), n = 0;
    uint64_t began_ns = clock_now_ns();
    pool_unregister(a->pool);
    for (; !pool_is_unregistered(a->pool); n++)
        world_turn();
    assert_true(clock_now_ns() - began_ns >= 300 * UINT64_C(1000000) && n > 1);
    pool_forget(b->pool, ticket);
    WAIT_FOR(n_unmapped == 1 && a->n_returned == 1);
}

/* A peer that has closed the connection may still copy. */
static void memory_outlives_a_closed_connection_by_pull_ms(void **state)
{
    struct pool_config c = near_config();
    struct side *a, *b;
    uint64_t closed_ns;

    (void)state;
    c.pull_ms = 300;
    a = lender(c);
    b = near_side(1);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    copies_wait = true;
    begin_read(b, ticket, 0, 1);
    WAIT_FOR(n_places == 1);
    struct pool_places first = places;
    begin_read(b, ticket, 4, 2);
    WAIT_FOR(n_places == 2);
    closed_ns = clock_now_ns();                    /* or a little later */
    pool_copied(b->pool, first.read, ERR_CORRUPT); /* so b closes the connection */
    WAIT_FOR(a->n_returned == 1);
    pool_unregister(a->pool);
    WAIT_FOR(pool_is_unregistered(a->pool));
    assert_true(clock_now_ns() - closed_ns >= 300 * UINT64_C(1000000));
    copy(b);
    WAIT_FOR(b->is_done[1] && b->is_done[2]);
    pool_forget(b->pool, ticket);
    WAIT_FOR(n_unmapped == 1);
}

/* Copies that end behind the ticket are no reads of the peer any more: later ones are sent. */
static void memory_that_goes_away_under_copies_leaves_no_read_behind(void **state)
{
    enum { N = 16 }; /* as many as may be under way to one peer */
    struct pool_places of[N];
    struct side *a = lender(near_config()), *b = near_side(1);
    uint32_t ticket;

    (void)state;
    WAIT_FOR(is_announced(a) && all_know(2));
    copies_wait = true;
    ticket = find(b);
    for (uint32_t i = 0; i < N; i++) {
        begin_read(b, ticket, i % 6 * 4, i);
        WAIT_FOR(n_places == i + 1);
        of[i] = places;
    }
    pool_unregister(a->pool);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    for (uint32_t i = 0; i < N; i++)
        pool_copied(b->pool, of[i].read, OK);
    WAIT_FOR(b->n_done == N);
    pool_forget(b->pool, ticket);
    WAIT_FOR(pool_is_unregistered(a->pool) && a->n_returned == 1);
    ticket = find(b); /* of host memory */
    assert_ok(read_four(b, ticket, 4, N));
    check_four(4);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 2);
}

static void a_copy_that_outlives_the_lease_is_nobodys_fault(void **state)
{
    struct pool_config c = near_config();
    struct side *a, *b;
    struct pool_found found;

    (void)state;
    c.pull_ms = 500;
    a = lender(near_config());
    b = side_open_with(1, c);
    WAIT_FOR(is_announced(a) && all_know(2));
    uint32_t ticket = find(b);
    copies_wait = true;
    begin_read(b, ticket, 0, 1);
    WAIT_FOR(n_places == 1);
    assert_int_equal(pool_look(b->pool, ticket, &found), POOL_FOUND);
    while (clock_now_ns() < found.until_ns + 50 * UINT64_C(1000000))
        world_turn();
    assert_int_equal(a->n_returned, 0); /* the lender waits for the copy */
    exported[1][0] ^= 1;                /* as if its own time were over */
    copy(b);
    WAIT_FOR(b->is_done[1]);
    assert_int_equal(b->done[1], ERR_TIMEOUT);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
    assert_true(n_unmapped == 0 && stats_of(b).n_reads_corrupt == 0);
}

/* A member that asks for what it may not have. */
static void a_member_without_the_machine_gets_no_handle(void **state)
{
    struct side *a = lender(near_config());
    struct wire_message map_it = {.kind = WIRE_MAP, .machine = "elsewhere"};

    (void)state;
    liar_connect(a);
    liar_send(&map_it, NULL, 0);
    WAIT_FOR(liar.n_handles == 1);
    assert_true(liar.last.n_memory == 0);
    liar_ask(5);
    WAIT_FOR(liar.n_lent == 1); /* of host memory */
    assert_int_equal(a->n_near, 0);
    uint32_t n_closed = liar.n_closed;
    liar_send(&(struct wire_message){.kind = WIRE_MAPPED, .is_mapped = true}, NULL, 0);
    WAIT_FOR(liar.n_closed == n_closed + 1);
    WAIT_FOR(a->n_returned == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, begin, tear_down)
        T(device_memory_of_this_machine_is_mapped_and_read),
        T(others_get_no_device_memory),
        T(wrong_bytes_are_a_miss_and_cost_the_connection),
        T(a_lender_that_dies_is_unmapped_behind_the_last_copy),
        T(memory_that_goes_away_is_unmapped_first),
        T(memory_goes_away_from_a_peer_that_does_not_answer),
        T(memory_outlives_a_closed_connection_by_pull_ms),
        T(memory_that_goes_away_under_copies_leaves_no_read_behind),
        T(a_copy_that_outlives_the_lease_is_nobodys_fault),
        T(a_member_without_the_machine_gets_no_handle),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
