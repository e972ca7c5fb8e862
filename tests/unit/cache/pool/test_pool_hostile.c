/* A pool against a member that breaks the rules, in each role, and against strangers. A lookup or a
 * read may end without success; nothing else happens, and the next honest peer is served. */
#include "tests/unit/cache/pool/pool_world.h"

#include "base/log.h"

#define LIAR_ID 5500u /* and the lie: the pause after one lie is not for the next one */

/* A peer that the test scripts: a transport and a handshake, no pool. */
static struct liar {
    struct transport *transport;
    struct handshake_self self;
    struct handshake shake;
    uint32_t conn;
    bool is_open, is_member;
    uint32_t n_closed, n_members;
    uint32_t n_asked, n_read, n_lent, n_gone, n_data, n_closes, n_taken, n_busy;
    struct wire_message last; /* of the kind it waits for */
    enum lie {
        LIE_NONE,
        LIE_MORE_THAN_ASKED,
        LIE_OTHER_LOCAL,
        LIE_NO_TOKENS,
        LIE_LENT_TWICE,
        LIE_UNKNOWN_ASK,
        LIE_NOISE,
        LIE_EMPTY,
        LIE_WRONG_VERSION,
        LIE_QUESTION, /* a message of the other role */
        LIE_PAYLOAD,  /* with a message that has none */
        LIE_DATA_UNASKED,
        LIE_CLOSE_INSTEAD,
        LIE_N_FIND, /* those before end a lookup, those behind a read */
        LIE_BYTES,
        LIE_CRC,
        LIE_KEY,
        LIE_INDEX,
        LIE_FEWER,
        LIE_SHORT_PAYLOAD,
        LIE_UNKNOWN_READ,
        LIE_GONE,
        LIE_GONE_TWICE,
        LIE_DIE_IN_PAYLOAD,
        LIE_N
    } lie;
    uint8_t block[POOL_READ_MAX * BLOCK_BYTES];
    struct kv_key keys[POOL_PATH_MAX];
} liar;

/* The pool may have closed the connection a moment ago. */
static void liar_send_pieces(const void *head, uint32_t n, const struct iovec *pieces,
                             uint32_t n_pieces)
{
    enum status s =
        transport_send(liar.transport, liar.conn, head, n, pieces, n_pieces, n_pieces ? 1 : 0);

    assert_true(s == OK || s == ERR_UNAVAILABLE);
}

static void liar_send(const struct wire_message *m, const void *payload, uint64_t n_payload)
{
    uint8_t head[WIRE_HEAD_MAX];
    struct iovec piece = {.iov_base = (void *)(uintptr_t)payload, .iov_len = n_payload};
    uint32_t n = wire_encode(m, head);

    liar_send_pieces(head, n, &piece, payload ? 1 : 0);
}

static void liar_send_bytes(const void *head, uint32_t n)
{
    liar_send_pieces(head, n, NULL, 0);
}

/* --- as a lender --- */

static void lie_about_ask(const struct wire_message *ask)
{
    static const uint8_t tokens[POOL_PATH_MAX] = {[0 ... POOL_PATH_MAX - 1] = 32};
    struct wire_message m = {.kind = WIRE_LENT,
                             .id = ask->id,
                             .n = ask->n,
                             .n_there = ask->n_there,
                             .ms = 60000,
                             .n_tokens = tokens};
    uint8_t head[WIRE_HEAD_MAX], noise[333];

    switch (liar.lie) {
    case LIE_MORE_THAN_ASKED: m.n = ask->n + 1; break;
    case LIE_OTHER_LOCAL: m.n_there = ask->n_there + 1; break;
    case LIE_NO_TOKENS: {
        uint32_t n = wire_encode(&m, head);
        head[n - 1] = 0;
        liar_send_bytes(head, n);
        return;
    }
    case LIE_LENT_TWICE: liar_send(&m, NULL, 0); break;
    case LIE_UNKNOWN_ASK: m.id ^= 1; break;
    case LIE_NOISE:
        for (uint32_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)rng_u32(3, i);
        liar_send_bytes(noise, sizeof noise);
        return;
    case LIE_EMPTY: liar_send_bytes("", 0); return;
    case LIE_WRONG_VERSION: {
        uint32_t n = wire_encode(&m, head);
        head[0]++;
        liar_send_bytes(head, n);
        return;
    }
    case LIE_QUESTION: m = (struct wire_message){.kind = WIRE_CLOSE, .id = ask->id}; break;
    case LIE_PAYLOAD: liar_send(&m, liar.block, 100); return;
    case LIE_DATA_UNASKED:
        m = (struct wire_message){.kind = WIRE_DATA, .read = ask->id, .n = 1};
        liar_send(&m, liar.block, BLOCK_BYTES);
        return;
    case LIE_CLOSE_INSTEAD:
        transport_disconnect(liar.transport, liar.conn);
        liar.is_open = false;
        return;
    default: break;
    }
    liar_send(&m, NULL, 0);
}

static void lie_about_read(const struct wire_message *read)
{
    struct wire_message m = {.kind = WIRE_DATA, .read = read->read, .n = read->n};
    struct wire_message gone = {.kind = WIRE_GONE, .read = read->read};
    uint64_t n_bytes = (uint64_t)read->n * BLOCK_BYTES;

    for (uint32_t i = 0; i < read->n; i++) {
        uint8_t *block = liar.block + (size_t)i * BLOCK_BYTES;
        world_fill(block, read->at[i]);
        m.at[i] = read->at[i];
        m.crc[i] = hash_crc32c(0, block, BLOCK_BYTES);
        memcpy(m.key[i], world.keys[read->at[i]].bytes, WIRE_KEY_BYTES);
    }
    switch (liar.lie) {
    case LIE_BYTES: liar.block[BLOCK_BYTES / 2] ^= 1; break;
    case LIE_CRC: m.crc[read->n - 1]++; break;
    case LIE_KEY: m.key[0][7] ^= 0x80; break;
    case LIE_INDEX: m.at[0] ^= 1; break;
    case LIE_FEWER:
        m.n--;
        n_bytes -= BLOCK_BYTES;
        break;
    case LIE_SHORT_PAYLOAD: n_bytes--; break;
    case LIE_UNKNOWN_READ: m.read ^= UINT64_C(1) << 40; break;
    case LIE_GONE_TWICE:
        liar_send(&gone, NULL, 0);
        liar_send(&gone, NULL, 0);
        return;
    case LIE_GONE: liar_send(&gone, NULL, 0); return;
    default: break;
    }
    liar_send(&m, liar.block, n_bytes);
    if (liar.lie == LIE_DIE_IN_PAYLOAD) {
        transport_disconnect(liar.transport, liar.conn);
        liar.is_open = false;
    }
}

/* --- both roles --- */

static void liar_take(const struct transport_event *e)
{
    struct wire_message m;
    struct iovec to = {.iov_base = liar.keys, .iov_len = e->n_payload};

    assert_ok(wire_decode(&m, e->head, e->n_head)); /* a pool breaks no rule */
    assert_int_equal(e->n_payload, wire_payload_bytes(&m, BLOCK_BYTES));
    if (m.kind == WIRE_ASK && e->n_payload <= sizeof liar.keys)
        transport_receive(liar.transport, e->conn, &to, 1, 7);
    else if (e->n_payload > 0)
        transport_receive(liar.transport, e->conn, NULL, 0, 0);
    liar.n_asked += m.kind == WIRE_ASK;
    liar.n_read += m.kind == WIRE_READ;
    liar.n_lent += m.kind == WIRE_LENT && m.n > 0;
    liar.n_busy += m.kind == WIRE_LENT && m.reason == WIRE_BUSY;
    liar.n_gone += m.kind == WIRE_GONE;
    liar.n_data += m.kind == WIRE_DATA;
    liar.n_closes += m.kind == WIRE_CLOSE;
    liar.last = m;
    if (m.kind == WIRE_ASK)
        lie_about_ask(&m);
    else if (m.kind == WIRE_READ)
        lie_about_read(&m);
}

static void liar_shake(const struct transport_event *e)
{
    uint8_t out[HANDSHAKE_MESSAGE_MAX];
    uint32_t n = 0;
    const char *why;

    assert_ok(handshake_take(&liar.shake, e->head, e->n_head, out, &n, &why));
    if (n > 0)
        liar_send_bytes(out, n);
    liar.is_member = liar.shake.is_done;
    liar.n_members += liar.is_member;
}

static void liar_turn(void)
{
    struct transport_event e;
    uint8_t out[HANDSHAKE_MESSAGE_MAX];

    transport_progress(liar.transport, clock_now_ns());
    while (transport_next(liar.transport, &e)) {
        switch (e.kind) {
        case TRANSPORT_ACCEPTED:
        case TRANSPORT_CONNECTED:
            liar.conn = e.conn;
            liar.is_open = true;
            liar.is_member = false;
            handshake_init(&liar.shake, &liar.self, e.kind == TRANSPORT_CONNECTED);
            if (e.kind == TRANSPORT_CONNECTED && liar.lie == LIE_NONE)
                liar_send_bytes(out, handshake_begin(&liar.shake, out));
            break;
        case TRANSPORT_MESSAGE:
            if (liar.is_member)
                liar_take(&e);
            else
                liar_shake(&e);
            break;
        case TRANSPORT_CLOSED:
            liar.n_closed++;
            liar.is_open = liar.is_member = false;
            break;
        default: break;
        }
    }
}

static struct transport_config liar_config(void)
{
    return (struct transport_config){
        .kind = "tcp", .listen = "127.0.0.1:0", .payload_max = UINT64_C(1) << 30};
}

static int set_up(void **state)
{
    struct pool_config c = side_config();
    struct transport_config t = liar_config();

    (void)state;
    world_begin();
    memset(&liar, 0, sizeof liar);
    liar.self.id = LIAR_ID;
    liar.self.block_bytes = BLOCK_BYTES;
    memcpy(liar.self.secret, c.secret, sizeof c.secret);
    memcpy(liar.self.fingerprint, c.fingerprint, sizeof c.fingerprint);
    assert_ok(transport_open(&liar.transport, &t, NULL));
    world.more = liar_turn;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    world_end();
    transport_close(liar.transport);
    return 0;
}

/* Nothing of what the liar is said to hold is left. */
static void unlist_liar(void)
{
    struct directory_segment none = {0};

    for (uint32_t i = 0; i < N_PATH; i += N_IN_SEGMENT) {
        memcpy(none.key, world.keys[i].bytes, sizeof none.key);
        fake_directory_hold(liar.self.id, &none);
    }
}

/* The directory says that the liar holds everything. */
static void list_liar(void)
{
    struct pool_config c = side_config();
    struct directory_instance info = {.id = LIAR_ID + liar.lie};

    liar.self.id = info.id;
    memcpy(info.fingerprint, c.fingerprint, sizeof info.fingerprint);
    snprintf(info.address, sizeof info.address, "%s", transport_address(liar.transport));
    fake_directory_join(&info);
    for (uint32_t i = 0; i < N_PATH; i += N_IN_SEGMENT) {
        struct directory_segment d = {.n_blocks = N_IN_SEGMENT};
        memcpy(d.key, world.keys[i].bytes, sizeof d.key);
        fake_directory_hold(info.id, &d);
    }
}

static bool knows(struct side *s, uint64_t id)
{
    struct directory_instance all[64];
    uint32_t n = pool_instances(s->pool, all, 64);

    for (uint32_t i = 0; i < n; i++)
        if (all[i].id == id)
            return true;
    return false;
}

/* The pool is as it was: it finds and reads what an honest peer has. */
static void check_honest(struct side *b)
{
    static uint8_t block[BLOCK_BYTES], expected[BLOCK_BYTES];
    struct side *a = side_open(2);
    void *to = block;
    uint32_t at = 3, tag = 1000;

    unlist_liar();
    side_hold(a, N_PATH);
    WAIT_FOR(is_announced(a) && knows(b, a->id));
    uint32_t ticket = side_lookup(b, 0);
    assert_int_equal(side_look(b, ticket, NULL), POOL_FOUND);
    b->is_done[tag] = false;
    assert_ok(pool_read(b->pool, ticket, &at, &to, 1, tag));
    WAIT_FOR(b->is_done[tag]);
    assert_ok(b->done[tag]);
    world_fill(expected, at);
    assert_memory_equal(block, expected, BLOCK_BYTES);
    pool_forget(b->pool, ticket);
    WAIT_FOR(a->n_returned == 1);
}

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
        } else if (liar.lie == LIE_BYTES || liar.lie == LIE_CRC) {
            assert_int_equal(b->done[tag], ERR_CORRUPT);
        } else {
            assert_int_equal(b->done[tag], ERR_NOT_FOUND);
        }
        if (liar.lie != LIE_N_FIND && liar.lie != LIE_GONE && liar.lie != LIE_DIE_IN_PAYLOAD)
            WAIT_FOR(liar.n_closed == n_closed + 1);
        pool_forget(b->pool, ticket);
        unlist_liar();
    }
    check_honest(b);
}

static void a_lender_that_is_silent_costs_the_time_of_the_lease(void **state)
{
    enum { N_READS = 40 };
    static uint8_t memory[BLOCK_BYTES];
    struct pool_config c = side_config();
    void *to = memory;
    uint32_t at = 5;

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
    }
    assert_int_equal(b->done[1], ERR_TIMEOUT);
    WAIT_FOR(pool_look(b->pool, ticket, NULL) == POOL_NOT_FOUND);
    pool_forget(b->pool, ticket);
    world.more = liar_turn;
    check_honest(b); /* the late answer arrives meanwhile and has no effect */
}

/* --- as an asker --- */

static void liar_connect(const struct side *a)
{
    struct directory_instance all[1];
    uint32_t n_closed = liar.n_closed;

    assert_int_equal(pool_instances(a->pool, all, 1), 1);
    assert_ok(transport_connect(liar.transport, all[0].address, &liar.conn));
    WAIT_FOR(liar.is_open || liar.n_closed > n_closed);
    if (liar.lie == LIE_NONE)
        WAIT_FOR(liar.is_member);
}

static void liar_ask(uint64_t id)
{
    struct wire_message m = {.kind = WIRE_ASK, .id = id, .n = N_PATH, .n_there = 4, .ms = 60000};

    liar_send(&m, world.keys, sizeof world.keys);
}

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
    /* Strangers that fail often are not even answered, but members get in again soon. */
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
        T(broken_messages_of_an_asker_close_its_connection),
        T(before_the_handshake_no_message_is_taken),
        T(broken_offers_are_refused),
    };
    log_init(LOG_ERROR, false);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
