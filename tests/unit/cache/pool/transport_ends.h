/* transport_ends.h - two transports that are driven by one thread, for the tests of a transport.
 *
 * The clock is a variable. Waiting means: drive both ends until a state is reached; a guard of
 * minutes ends a test that hangs.
 *
 * Owns    the two ends.
 * Thread  one.
 * Errors  cmocka's assertions.
 * Units   bytes, nanoseconds. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_TRANSPORT_ENDS_H
#define TARN_TESTS_UNIT_CACHE_POOL_TRANSPORT_ENDS_H

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cache/pool/transport.h"

#define MIB (UINT64_C(1) << 20)
#define SECOND_NS UINT64_C(1000000000)
#define GUARD_NS (120 * SECOND_NS)
#define N_KINDS 6
#define N_CONNS_MAX 512
#define PAYLOAD_MAX (64 * MIB)

static const char *kind; /* of the transport under test */
static uint64_t now_ns = 5 * SECOND_NS;

struct end {
    struct transport *t;
    uint32_t n_seen[N_KINDS];    /* events by kind */
    struct transport_event last; /* without its head */
    struct transport_event last_of[N_KINDS];
    uint32_t conn; /* of the last TRANSPORT_ACCEPTED or TRANSPORT_CONNECTED */
    /* Takes a message; NULL: the payload of every message is thrown away. */
    void (*on_message)(struct end *e, const struct transport_event *m);
    bool is_deaf; /* neither progress nor events */
};

static struct end a, b;

static inline void take_events(struct end *e)
{
    struct transport_event event;

    while (transport_next(e->t, &event)) {
        e->n_seen[event.kind]++;
        if (event.kind == TRANSPORT_ACCEPTED || event.kind == TRANSPORT_CONNECTED)
            e->conn = event.conn;
        if (event.kind == TRANSPORT_MESSAGE && e->on_message)
            e->on_message(e, &event);
        if (event.kind == TRANSPORT_CLOSED)
            assert_non_null(event.why);
        event.head = NULL;
        e->last = e->last_of[event.kind] = event;
    }
}

/* Returns whether both ends may wait. */
static inline bool drive(void)
{
    bool may_wait = true;
    struct end *ends[] = {&a, &b};

    for (int i = 0; i < 2; i++) {
        if (!ends[i]->t || ends[i]->is_deaf)
            continue;
        if (!transport_progress(ends[i]->t, now_ns))
            may_wait = false;
        take_events(ends[i]);
    }
    return may_wait;
}

static inline void drive_times(uint32_t n)
{
    while (n-- > 0)
        drive();
}

/* Until e has seen n events of this kind in all. */
static inline void wait_for(struct end *e, enum transport_event_kind event, uint32_t n)
{
    uint64_t give_up_ns = clock_now_ns() + GUARD_NS;

    while (e->n_seen[event] < n) {
        bool may_wait = drive();
        if (e->n_seen[event] >= n)
            return;
        if (e->n_seen[TRANSPORT_CLOSED] > 0 && event != TRANSPORT_CLOSED)
            fail_msg("closed instead: %s", e->last_of[TRANSPORT_CLOSED].why);
        assert_true(clock_now_ns() < give_up_ns);
        if (may_wait && !a.is_deaf && !b.is_deaf) {
            struct pollfd fds[2];
            nfds_t n_fds = 0;
            if (a.t)
                fds[n_fds++] = (struct pollfd){.fd = transport_fd(a.t), .events = POLLIN};
            if (b.t)
                fds[n_fds++] = (struct pollfd){.fd = transport_fd(b.t), .events = POLLIN};
            /* drive() called transport_next() behind transport_progress(): a short wait, as
             * another transport_progress() may have something to do. */
            poll(fds, n_fds, 1);
        }
    }
}

static inline void open_end(struct end *e, struct transport_config config)
{
    struct buf why;

    memset(e, 0, sizeof *e);
    buf_init(&why, BUF_WHY_MAX);
    config.kind = kind;
    if (!config.listen)
        config.listen = "127.0.0.1:0";
    if (!config.payload_max)
        config.payload_max = PAYLOAD_MAX;
    enum status s = transport_open(&e->t, &config, &why);
    if (s != OK)
        print_error("%s\n", buf_str(&why));
    buf_fini(&why);
    assert_ok(s);
    e->conn = TRANSPORT_NO_CONN;
}

static inline void close_end(struct end *e)
{
    transport_close(e->t);
    e->t = NULL;
}

static inline void close_ends(void)
{
    close_end(&a);
    close_end(&b);
}

/* a connects to b. */
static inline void connect_ends(void)
{
    uint32_t n_connected = a.n_seen[TRANSPORT_CONNECTED], n_accepted = b.n_seen[TRANSPORT_ACCEPTED];
    uint32_t conn;

    assert_ok(transport_connect(a.t, transport_address(b.t), &conn));
    wait_for(&a, TRANSPORT_CONNECTED, n_connected + 1);
    wait_for(&b, TRANSPORT_ACCEPTED, n_accepted + 1);
    assert_int_equal(a.conn, conn);
}

static inline void open_ends(struct transport_config config)
{
    open_end(&a, config);
    open_end(&b, config);
    connect_ends();
}

/* Each side hears the other, so that neither takes the other for a silent stranger. */
static inline void greet(void)
{
    uint32_t n_a = a.n_seen[TRANSPORT_MESSAGE], n_b = b.n_seen[TRANSPORT_MESSAGE];

    assert_ok(transport_send(a.t, a.conn, "hi", 2, NULL, 0, 0));
    assert_ok(transport_send(b.t, b.conn, "hi", 2, NULL, 0, 0));
    wait_for(&a, TRANSPORT_MESSAGE, n_a + 1);
    wait_for(&b, TRANSPORT_MESSAGE, n_b + 1);
}

/* --- payload memory that can be made inaccessible --- */

static inline uint8_t *map_bytes(uint64_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(p != MAP_FAILED);
    return p;
}

static inline void forbid(uint8_t *p, uint64_t n)
{
    assert_int_equal(mprotect(p, n, PROT_NONE), 0);
}

static inline uint8_t byte_at(uint64_t seed, uint64_t i)
{
    uint64_t x = (seed * UINT64_C(0x9E3779B97F4A7C15) + (i >> 3)) * UINT64_C(0xBF58476D1CE4E5B9);

    return (uint8_t)((x ^ x >> 31) >> 8 * (i & 7));
}

static inline void fill(uint8_t *p, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = byte_at(seed, i);
}

static inline void assert_filled(const uint8_t *p, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != byte_at(seed, i))
            fail_msg("byte %llu differs", (unsigned long long)i);
}

/* Cut p [n] into n_pieces of different lengths, some of them empty. */
static inline void cut(struct iovec *out, uint32_t n_pieces, uint8_t *p, uint64_t n, uint64_t seed)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < n_pieces; i++) {
        uint64_t left = n - at;
        uint64_t len = i + 1 == n_pieces ? left : left * byte_at(seed, i) / 600;
        out[i] = (struct iovec){p + at, len};
        at += len;
    }
}

/* --- a receiver that takes each payload whole --- */

static uint8_t *to_bytes;
static uint64_t to_seed;
static uint32_t to_pieces;

static inline void receive_whole(struct end *e, const struct transport_event *m)
{
    struct iovec to[TRANSPORT_PIECES_MAX];

    if (m->n_payload == 0)
        return;
    cut(to, to_pieces, to_bytes, m->n_payload, to_seed);
    transport_receive(e->t, m->conn, to, to_pieces, 1000 + to_seed);
}

#endif
