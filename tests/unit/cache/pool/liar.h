/* liar.h - a member of the pool that a test scripts and that breaks the rules, in each role: a
 * transport and a handshake, without a pool. It takes turns with the sides of pool_world.h.
 *
 * Include it once. Owns the liar's transport. One thread. A failure ends the test. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_LIAR_H
#define TARN_TESTS_UNIT_CACHE_POOL_LIAR_H

#include "tests/unit/cache/pool/pool_world.h"

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
    uint32_t n_queried, n_tiles, n_refused, n_handles;
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
        LIE_HANDLE_UNASKED,
        LIE_ON_DEVICE, /* blocks in memory that is not mapped */
        LIE_CLOSE_INSTEAD,
        LIE_N_FIND, /* those before end a lookup, those behind a read */
        LIE_BYTES,
        LIE_CRC,
        LIE_KEY,
        LIE_INDEX,
        LIE_PLACES, /* the blocks were lent in host memory */
        LIE_FEWER,
        LIE_SHORT_PAYLOAD,
        LIE_UNKNOWN_READ,
        LIE_GONE,
        LIE_GONE_TWICE,
        LIE_DIE_IN_PAYLOAD,
        LIE_N, /* those behind end a query; this one is no lie */
        LIE_TILES_BYTES,
        LIE_TILES_CRC,
        LIE_TILES_SHORT,
        LIE_TILES_LONG,
        LIE_TILES_UNKNOWN,
        LIE_TILES_TWICE,
        LIE_TILES_DIE,
        LIE_REFUSED_STALE,
        LIE_REFUSED_BUSY,
        LIE_REFUSED_TWICE,
        LIE_N_QUERY
    } lie;
    uint8_t block[POOL_READ_MAX * BLOCK_BYTES];
    float tiles[1024], q[64 * QUERY_FLOATS];
    struct kv_key keys[POOL_PATH_MAX];
} liar;

/* The pool may have closed the connection a moment ago. */
static inline void liar_send_pieces(const void *head, uint32_t n, const struct iovec *pieces,
                                    uint32_t n_pieces)
{
    enum status s =
        transport_send(liar.transport, liar.conn, head, n, pieces, n_pieces, n_pieces ? 1 : 0);

    assert_true(s == OK || s == ERR_UNAVAILABLE);
}

static inline void liar_send(const struct wire_message *m, const void *payload, uint64_t n_payload)
{
    uint8_t head[WIRE_HEAD_MAX];
    struct iovec piece = {.iov_base = (void *)(uintptr_t)payload, .iov_len = n_payload};
    uint32_t n = wire_encode(m, head);

    liar_send_pieces(head, n, &piece, payload ? 1 : 0);
}

static inline void liar_send_bytes(const void *head, uint32_t n)
{
    liar_send_pieces(head, n, NULL, 0);
}

/* --- as a lender --- */

static inline void lie_about_ask(const struct wire_message *ask)
{
    static const uint8_t tokens[POOL_PATH_MAX] = {[0 ... POOL_PATH_MAX - 1] = 32};
    static const uint8_t on_device[POOL_PATH_MAX] = {[0 ... POOL_PATH_MAX - 1] =
                                                         32 | WIRE_ON_DEVICE};
    struct wire_message m = {.kind = WIRE_LENT,
                             .id = ask->id,
                             .n = ask->n,
                             .n_there = ask->n_there,
                             .ms = 60000,
                             .attends = true,
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
    case LIE_HANDLE_UNASKED: m = (struct wire_message){.kind = WIRE_HANDLE, .n_memory = 1}; break;
    case LIE_ON_DEVICE: m.n_tokens = on_device; break;
    case LIE_CLOSE_INSTEAD:
        transport_disconnect(liar.transport, liar.conn);
        liar.is_open = false;
        return;
    default: break;
    }
    liar_send(&m, NULL, 0);
}

static inline void lie_about_read(const struct wire_message *read)
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
    case LIE_PLACES:
        m.kind = WIRE_PLACES;
        liar_send(&m, NULL, 0);
        return;
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

static inline void lie_about_query(const struct wire_message *query)
{
    struct wire_message m = {.kind = WIRE_TILES, .query = query->query},
                        refused = {.kind = WIRE_REFUSED, .query = query->query};
    uint32_t n = query->n * query->n_rows * TILE_FLOATS;

    for (uint32_t i = 0; i < n; i++)
        liar.tiles[i] = (float)i;
    n -= liar.lie == LIE_TILES_SHORT;
    n += liar.lie == LIE_TILES_LONG;
    m.n_bytes = n * (uint32_t)sizeof *liar.tiles;
    m.floats_crc = hash_crc32c(0, liar.tiles, m.n_bytes);
    refused.reason = liar.lie == LIE_REFUSED_STALE ? WIRE_STALE : WIRE_BUSY;
    switch (liar.lie) {
    case LIE_TILES_BYTES: liar.tiles[n / 2]++; break;
    case LIE_TILES_CRC: m.floats_crc++; break;
    case LIE_TILES_UNKNOWN: m.query ^= UINT64_C(1) << 40; break;
    case LIE_TILES_TWICE: liar_send(&m, liar.tiles, m.n_bytes); break;
    case LIE_REFUSED_TWICE: liar_send(&refused, NULL, 0); break;
    default: break;
    }
    if (liar.lie >= LIE_REFUSED_STALE)
        liar_send(&refused, NULL, 0);
    else
        liar_send(&m, liar.tiles, m.n_bytes);
    if (liar.lie == LIE_TILES_DIE) {
        transport_disconnect(liar.transport, liar.conn);
        liar.is_open = false;
    }
}

/* --- both roles --- */

static inline void liar_take(const struct transport_event *e)
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
    liar.n_queried += m.kind == WIRE_QUERY;
    liar.n_tiles += m.kind == WIRE_TILES;
    liar.n_refused += m.kind == WIRE_REFUSED;
    liar.n_handles += m.kind == WIRE_HANDLE;
    liar.last = m;
    if (m.kind == WIRE_ASK)
        lie_about_ask(&m);
    else if (m.kind == WIRE_READ)
        lie_about_read(&m);
    else if (m.kind == WIRE_QUERY)
        lie_about_query(&m);
}

static inline void liar_shake(const struct transport_event *e)
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

static inline void liar_turn(void)
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

static inline struct transport_config liar_config(void)
{
    return (struct transport_config){
        .kind = "tcp", .listen = "127.0.0.1:0", .payload_max = UINT64_C(1) << 30};
}

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    (void)state;
    world_end();
    transport_close(liar.transport);
    return 0;
}

/* Nothing of what the liar is said to hold is left. */
static inline void unlist_liar(void)
{
    struct directory_segment none = {0};

    for (uint32_t i = 0; i < N_PATH; i += N_IN_SEGMENT) {
        memcpy(none.key, world.keys[i].bytes, sizeof none.key);
        fake_directory_hold(liar.self.id, &none);
    }
}

/* The directory says that the liar holds everything. */
static inline void list_liar(void)
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

static inline bool knows(struct side *s, uint64_t id)
{
    struct directory_instance all[64];
    uint32_t n = pool_instances(s->pool, all, 64);

    for (uint32_t i = 0; i < n; i++)
        if (all[i].id == id)
            return true;
    return false;
}

/* The pool is as it was: it finds and reads what an honest peer has. */
static inline void check_honest(struct side *b)
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

/* --- as an asker --- */

static inline void liar_connect(const struct side *a)
{
    struct directory_instance all[1];
    uint32_t n_closed = liar.n_closed;

    assert_int_equal(pool_instances(a->pool, all, 1), 1);
    assert_ok(transport_connect(liar.transport, all[0].address, &liar.conn));
    WAIT_FOR(liar.is_open || liar.n_closed > n_closed);
    if (liar.lie == LIE_NONE)
        WAIT_FOR(liar.is_member);
}

static inline void liar_ask(uint64_t id)
{
    struct wire_message m = {.kind = WIRE_ASK, .id = id, .n = N_PATH, .n_there = 4, .ms = 60000};

    liar_send(&m, world.keys, sizeof world.keys);
}

#endif
