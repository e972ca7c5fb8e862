/* A pool against a member that breaks the rules, in each role, and against strangers. A lookup or a
 * read may end without success; nothing else happens, and the next honest peer is served. */
#include "tests/unit/cache/pool/liar.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

static void a_lender_that_lies_in_a_lookup_costs_a_miss_and_its_connection(void **state)
{
    struct pool_config c = side_config();

    (void)state;
    c.lookup_ms = 60000; /* the end of the connection ends the lookup */
    struct side *b = side_open_with(1, c);
    for (liar.lie = LIE_NONE + 1; liar.lie < LIE_N_FIND; liar.lie++) {
        uint32_t n_closed = liar.n_closed, n_asked = liar.n_asked;
        list_liar();
        WAIT_FOR(knows(b, liar.self.id));
        uint32_t ticket = side_lookup(b, 4);
        if (side_look(b, ticket, NULL) != POOL_NOT_FOUND && liar.lie != LIE_LENT_TWICE)
            fail_msg("lie %d was believed", liar.lie);
        assert_int_equal(liar.n_asked, n_asked + 1);
        if (liar.lie != LIE_CLOSE_INSTEAD)
            WAIT_FOR(liar.n_closed == n_closed + 1);
        WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
        pool_forget(b->pool, ticket);
        unlist_liar();
    }
    check_honest(b);
}

static void a_lender_that_lies_in_a_read_is_not_believed(void **state)
{
    static uint8_t memory[4][BLOCK_BYTES], expected[BLOCK_BYTES];
    struct side *b = side_open(1);
    uint32_t at[4] = {4, 5, 6, 7};
    void *to[4] = {memory[0], memory[1], memory[2], memory[3]};
    struct pool_stats stats;

    (void)state;
    for (liar.lie = LIE_N_FIND; liar.lie < LIE_N; liar.lie++) {
        uint32_t n_closed = liar.n_closed, tag = liar.lie;
        list_liar();
        WAIT_FOR(knows(b, liar.self.id));
        uint32_t ticket = side_lookup(b, 4);
        assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
        assert_ok(pool_read(b->pool, ticket, at, to, 4, tag));
        WAIT_FOR(b->is_done[tag]);
        if (liar.lie == LIE_N_FIND) { /* no lie */
            assert_ok(b->done[tag]);
            world_fill(expected, 7);
            assert_memory_equal(memory[3], expected, BLOCK_BYTES);
        } else if (liar.lie >= LIE_BYTES && liar.lie <= LIE_FEWER) {
            assert_int_equal(b->done[tag], ERR_CORRUPT);
        } else {
            assert_int_equal(b->done[tag], ERR_NOT_FOUND);
        }
        if (liar.lie != LIE_N_FIND && liar.lie != LIE_GONE && liar.lie != LIE_DIE_IN_PAYLOAD)
            WAIT_FOR(liar.n_closed == n_closed + 1);
        pool_forget(b->pool, ticket);
        unlist_liar();
    }
    /* Each failed read is counted once, by its end. */
    WAIT_FOR((pool_stats(b->pool, &stats), stats.n_reads_lost == LIE_N - LIE_SHORT_PAYLOAD));
    assert_int_equal(stats.n_reads_corrupt, LIE_SHORT_PAYLOAD - LIE_BYTES);
    assert_int_equal(stats.n_reads_timed_out, 0);
    check_honest(b);
}

static void a_lender_that_is_silent_costs_the_time_of_the_lease(void **state)
{
    enum { N_READS = 40 };
    static uint8_t memory[BLOCK_BYTES];
    struct pool_config c = side_config();
    void *to = memory;
    uint32_t at = 5, n_timed_out = 0;
    struct pool_stats stats;

    (void)state;
    c.pull_ms = 100;
    struct side *b = side_open_with(1, c);
    liar.lie = LIE_N_FIND;
    list_liar();
    WAIT_FOR(all_know(2));
    uint32_t ticket = side_lookup(b, 0);
    while (side_look(b, ticket, NULL) != POOL_FOUND ||
           pool_read(b->pool, ticket, &at, &to, 1, 1) != OK) { /* the lease was over too soon */
        pool_forget(b->pool, ticket);
        ticket = side_lookup(b, 0);
    }
    world.more = NULL;                      /* the liar is silent from now on */
    for (uint32_t i = 2; i <= N_READS; i++) /* more than are sent at a time */
        if (pool_read(b->pool, ticket, &at, &to, 1, i) != OK)
            b->is_done[i] = true; /* the lease is over */
    for (uint32_t i = 1; i <= N_READS; i++) {
        WAIT_FOR(b->is_done[i]);
        assert_true(b->done[i] == ERR_TIMEOUT || b->done[i] == ERR_NOT_FOUND || b->done[i] == OK);
        n_timed_out += b->done[i] == ERR_TIMEOUT;
    }
    assert_int_equal(b->done[1], ERR_TIMEOUT);
    WAIT_FOR((pool_stats(b->pool, &stats), stats.n_reads_timed_out == n_timed_out));
    assert_int_equal(stats.n_reads_corrupt, 0);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    world.more = liar_turn;
    check_honest(b); /* the late answer arrives meanwhile and has no effect */
}

/* --- as an asker --- */

static void an_asker_gets_only_what_is_lent_to_it(void **state)
{
    struct side *a = side_open(0);
    struct wire_message read = {.kind = WIRE_READ, .id = 1, .read = 9, .n = 1};

    (void)state;
    side_hold(a, 10);
    liar_connect(a);
    liar_send(&read, NULL, 0); /* of no lease */
    WAIT_FOR(liar.n_gone == 1);
    liar_ask(1);
    WAIT_FOR(liar.n_lent == 1);
    assert_int_equal(liar.last.n, 10);
    read.at[0] = 9;
    liar_send(&read, NULL, 0);
    WAIT_FOR(liar.n_data == 1);
    assert_memory_equal(liar.last.key[0], world.keys[9].bytes, WIRE_KEY_BYTES);
    assert_int_equal(liar.last.crc[0], hash_crc32c(0, a->memory + 9 * BLOCK_BYTES, BLOCK_BYTES));
    for (uint32_t i = 0; i < 2; i++) { /* not lent: before the beginning, behind the end */
        read.at[0] = i ? 10 : 3;
        liar_send(&read, NULL, 0);
        WAIT_FOR(liar.n_closed == i + 1 && a->n_returned == i + 1);
        if (i)
            break;
        liar_connect(a);
        liar_ask(1);
        WAIT_FOR(liar.n_lent == 2);
    }
    struct side *b = side_open(1);
    WAIT_FOR(all_know(2));
    check_honest(b);
}

static void an_asker_that_asks_twice_or_floods_is_bounded(void **state)
{
    struct side *a = side_open(0), *b;

    (void)state;
    side_hold(a, 10);
    liar_connect(a);
    for (uint64_t id = 0; id < 100; id++)
        liar_ask(id);
    WAIT_FOR(liar.n_lent + liar.n_busy == 100);
    assert_int_equal(liar.n_lent, POOL_LEASES_MAX);
    struct wire_message m = {.kind = WIRE_CLOSE, .id = 3};
    liar_send(&m, NULL, 0);
    liar_send(&m, NULL, 0); /* has ended: no effect */
    WAIT_FOR(a->n_returned == 1);
    liar_ask(5); /* is lent already */
    WAIT_FOR(liar.n_closed == 1 && a->n_returned == POOL_LEASES_MAX);
    liar_connect(a);
    liar_ask(1);
    WAIT_FOR(liar.n_lent == POOL_LEASES_MAX + 1);
    m = (struct wire_message){.kind = WIRE_READ, .id = 1, .n = 8, .at = {4, 5, 6, 7, 8, 9, 4, 4}};
    for (uint32_t i = 0; i < 2000 && liar.is_open; i++) {
        uint8_t head[WIRE_HEAD_MAX];
        m.read = i;
        if (transport_send(liar.transport, liar.conn, head, wire_encode(&m, head), NULL, 0, 0) !=
            OK)
            break;
    }
    WAIT_FOR(liar.n_closed == 2 && a->n_returned == POOL_LEASES_MAX + 1);
    b = side_open(1);
    WAIT_FOR(all_know(2));
    check_honest(b);
}

/* Send reads, and take no answer, until the lender cannot send any more of them: the buffers of the
 * kernel are full. Returns how many. */
static uint32_t fill_connection(struct side *a, struct wire_message *read)
{
    struct pool_stats stats = {0};
    uint32_t n = 0;

    for (uint32_t k = 0; k < 40 && stats.n_lent_blocks == n * 8; k++) {
        for (uint32_t i = 0; i < 48; i++, n++, read->read++)
            liar_send(read, NULL, 0);
        transport_progress(liar.transport, clock_now_ns());
        uint64_t before, grew_ns = clock_now_ns();
        do {
            before = stats.n_lent_blocks;
            world_turn();
            pool_stats(a->pool, &stats);
            grew_ns = stats.n_lent_blocks > before ? clock_now_ns() : grew_ns;
        } while (stats.n_lent_blocks < n * 8 && clock_now_ns() < grew_ns + 400 * UINT64_C(1000000));
    }
    return n;
}

/* A member closes a lease while reads of it wait behind much payload, and gets another lease under
 * the same id, with fewer blocks. The reads were checked against the first one. */
static void reads_that_wait_do_not_meet_another_lease(void **state)
{
    struct side *a = side_open(0);
    struct wire_message read = {.kind = WIRE_READ, .id = 2, .n = 8, .at = {4, 5, 6, 7, 8, 9, 4, 4}},
                        close = {.kind = WIRE_CLOSE, .id = 1},
                        ask = {.kind = WIRE_ASK, .id = 1, .n = N_PATH, .n_there = 9, .ms = 60000};

    (void)state;
    side_hold(a, 10);
    liar_connect(a);
    liar_ask(1);
    liar_ask(2);
    WAIT_FOR(liar.n_lent == 2);
    world.more = NULL; /* the liar takes nothing meanwhile */
    uint32_t n = fill_connection(a, &read) + 4;
    read.id = 1;
    for (uint32_t i = 0; i < 4; i++, read.read++)
        liar_send(&read, NULL, 0);
    liar_send(&close, NULL, 0);
    liar_send(&ask, world.keys, sizeof world.keys); /* lends one block */
    transport_progress(liar.transport, clock_now_ns());
    WAIT_FOR(a->n_asks == 3 && a->n_returned == 1);
    world.more = liar_turn;
    WAIT_FOR(liar.n_data + liar.n_gone == n && liar.n_lent == 3);
    assert_int_equal(liar.n_closed, 0);
}

static void broken_messages_of_an_asker_close_its_connection(void **state)
{
    struct side *a = side_open(0);
    struct wire_message m = {.kind = WIRE_LENT, .id = 1, .reason = WIRE_BUSY};
    uint8_t noise[64];

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        liar_connect(a);
        for (uint32_t k = 0; k < sizeof noise; k++)
            noise[k] = (uint8_t)rng_u32(i, k);
        noise[0] = i == 2 ? WIRE_VERSION : noise[0];
        if (i == 0)
            liar_send(&m, NULL, 0); /* an answer, from an asker */
        else
            liar_send_bytes(noise, i < 4 ? sizeof noise : 0);
        WAIT_FOR(liar.n_closed == i + 1);
    }
}

static void before_the_handshake_no_message_is_taken(void **state)
{
    struct side *a = side_open(0), *b;
    struct pool_stats stats;

    (void)state;
    side_hold(a, N_PATH);
    liar.lie = LIE_NOISE; /* no handshake */
    for (uint32_t i = 0; i < 40; i++) {
        liar_connect(a);
        liar_ask(1);
        WAIT_FOR(liar.n_closed == i + 1);
        liar.is_open = false;
    }
    assert_int_equal(a->n_asks, 0);
    WAIT_FOR((pool_stats(a->pool, &stats), stats.n_refused > 0));
    /* Members get in. */
    liar.lie = LIE_NONE;
    b = side_open(1);
    WAIT_FOR(is_announced(a) && all_know(2));
    for (;;) {
        uint32_t ticket = side_lookup(b, 0);
        bool is_found = side_look(b, ticket, NULL) == POOL_FOUND;
        pool_forget(b->pool, ticket);
        if (is_found)
            break;
        world_turn();
    }
}

/* --- strangers that are silent --- */

enum { N_STRANGERS = 48 };
static struct {
    int fds[N_STRANGERS];
    struct sockaddr_in to;
    uint32_t n_dialed;
} strangers;

static int dial_silently(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&strangers.to, sizeof strangers.to), 0);
    strangers.n_dialed++;
    return fd;
}

/* Strangers whose connections were closed connect again. */
static void come_again(void)
{
    char byte;

    for (uint32_t i = 0; i < N_STRANGERS; i++) {
        if (recv(strangers.fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
            continue;
        close(strangers.fds[i]);
        strangers.fds[i] = dial_silently();
    }
}

static void begin_silence(const struct side *a)
{
    struct directory_instance self;
    unsigned port = 0;

    assert_int_equal(pool_instances(a->pool, &self, 1), 1);
    assert_int_equal(sscanf(strrchr(self.address, ':'), ":%u", &port), 1);
    strangers.to = (struct sockaddr_in){.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    strangers.n_dialed = 0;
    for (uint32_t i = 0; i < N_STRANGERS; i++)
        strangers.fds[i] = dial_silently();
}

/* More of them than handshakes at a time, and each that is closed comes again. */
static void silent_strangers_keep_no_member_out(void **state)
{
    struct side *a = side_open(0), *b = side_open(1);
    void (*before)(void) = world.more;

    (void)state;
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && all_know(2));
    begin_silence(a);
    world.more = come_again;
    WAIT_FOR(strangers.n_dialed > 3 * N_STRANGERS);
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
    pool_forget(b->pool, ticket);
    world.more = before;
    for (uint32_t i = 0; i < N_STRANGERS; i++)
        close(strangers.fds[i]);
}

static void broken_offers_are_refused(void **state)
{
    struct side *a = side_open(0);
    static uint8_t path[N_PATH * (KV_KEY_BYTES + WIRE_META_BYTES)];
    struct wire_message m = {.kind = WIRE_OFFER, .id = 1, .n = N_PATH};

    (void)state;
    liar_connect(a);
    memcpy(path, world.keys, sizeof world.keys); /* blocks without tokens */
    liar_send(&m, path, sizeof path);
    WAIT_FOR(liar.n_closed == 1);
    for (uint32_t i = 0; i < N_PATH; i++)
        wire_put_meta(&(struct wire_meta){.n_tokens = 32, .starts_segment = i == 0},
                      path + sizeof world.keys + i * WIRE_META_BYTES);
    liar_connect(a); /* of an instance that the directory does not list: it cannot be asked */
    liar_send(&m, path, sizeof path);
    WAIT_FOR(liar.last.kind == WIRE_DONE);
    assert_false(liar.last.is_taken);
    assert_int_equal(a->n_offers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(a_lender_that_lies_in_a_lookup_costs_a_miss_and_its_connection),
        T(a_lender_that_lies_in_a_read_is_not_believed),
        T(a_lender_that_is_silent_costs_the_time_of_the_lease),
        T(an_asker_gets_only_what_is_lent_to_it),
        T(an_asker_that_asks_twice_or_floods_is_bounded),
        T(reads_that_wait_do_not_meet_another_lease),
        T(broken_messages_of_an_asker_close_its_connection),
        T(before_the_handshake_no_message_is_taken),
        T(silent_strangers_keep_no_member_out),
        T(broken_offers_are_refused),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
