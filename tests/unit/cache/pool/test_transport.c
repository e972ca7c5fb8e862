#include "tests/unit/test.h"

#include <signal.h>

#include "base/rng.h"
#include "tests/unit/cache/pool/transport_ends.h"

/* --- addresses --- */

static enum status try_open(const char *listen, const char *announce_host, struct buf *why,
                            char *address, size_t n_address)
{
    struct transport_config config = {
        .kind = kind, .listen = listen, .announce_host = announce_host, .payload_max = 1};
    struct transport *t;

    buf_reset(why);
    enum status s = transport_open(&t, &config, why);
    if (s == OK) {
        snprintf(address, n_address, "%s", transport_address(t));
        transport_close(t);
    } else {
        assert_null(t);
        assert_true(why->len > 0);
    }
    return s;
}

static void bad_addresses_are_refused_in_words(void **state)
{
    static const struct {
        const char *listen, *words;
    } rows[] = {
        {"", "no port"},
        {"127.0.0.1", "no port"},
        {"127.0.0.1:", "port"},
        {"127.0.0.1:70000", "port"},
        {"127.0.0.1:-1", "port"},
        {"127.0.0.1:12x", "port"},
        {"127.0.0.1:999999999999999999999", "port"},
        {":8000", "no host"},
        {"[]:8000", "no host"},
        {"[::1:8000", "]:PORT"},
        {"::1:8000", "[ADDRESS]:PORT"},
        {"256.1.1.1.1:8000", "cannot resolve"},
        {"no such host.invalid:8000", "cannot resolve"},
        {"192.0.2.1:8000", "cannot listen"}, /* not an address of this machine */
    };
    struct buf why;
    char address[128], long_host[400];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum status s = try_open(rows[i].listen, NULL, &why, address, sizeof address);
        assert_int_equal(s, strcmp(rows[i].words, "cannot listen") == 0 ? ERR_IO : ERR_INVALID);
        if (!strstr(buf_str(&why), rows[i].words))
            fail_msg("\"%s\": %s", rows[i].listen, buf_str(&why));
    }
    memset(long_host, 'x', sizeof long_host);
    memcpy(long_host + sizeof long_host - 6, ":8000", 6);
    assert_int_equal(try_open(long_host, NULL, &why, address, sizeof address), ERR_INVALID);
    buf_fini(&why);
}

static void the_announced_address_can_be_connected_to(void **state)
{
    static const char *const listens[] = {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::1]:0",
                                          "[::]:0"};
    struct transport_config usual = {0};

    (void)state;
    for (size_t i = 0; i < sizeof listens / sizeof *listens; i++) {
        struct transport_config config = {.kind = kind, .listen = listens[i]};
        struct transport *probe;
        config.payload_max = 1;
        if (listens[i][0] == '[' && transport_open(&probe, &config, NULL) != OK)
            continue; /* this machine has no IPv6 */
        if (listens[i][0] == '[')
            transport_close(probe);
        open_end(&a, usual);
        open_end(&b, (struct transport_config){.listen = listens[i]});
        assert_memory_equal(transport_address(b.t), kind, strlen(kind));
        assert_null(strstr(transport_address(b.t), "0.0.0.0"));
        assert_null(strstr(transport_address(b.t), "[::]"));
        assert_null(strstr(transport_address(b.t), "localhost"));
        connect_ends();
        close_ends();
    }
}

static void the_announced_host_can_be_chosen(void **state)
{
    struct buf why;
    char address[128], expected[64];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(try_open("0.0.0.0:0", "10.1.2.3", &why, address, sizeof address));
    snprintf(expected, sizeof expected, "%s://10.1.2.3:", kind);
    assert_memory_equal(address, expected, strlen(expected));
    assert_ok(try_open("0.0.0.0:0", "fd00::7", &why, address, sizeof address));
    snprintf(expected, sizeof expected, "%s://[fd00::7]:", kind);
    assert_memory_equal(address, expected, strlen(expected));
    assert_int_equal(try_open("0.0.0.0:0", "no such host.invalid", &why, address, sizeof address),
                     ERR_INVALID);
    assert_int_equal(try_open("0.0.0.0:0", "localhost", &why, address, sizeof address),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "loopback"));
    buf_fini(&why);
}

static void a_port_that_is_taken_is_refused(void **state)
{
    struct buf why;
    char address[128];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    open_end(&a, (struct transport_config){0});
    const char *taken = strstr(transport_address(a.t), "://") + 3;
    assert_int_equal(try_open(taken, NULL, &why, address, sizeof address), ERR_IO);
    assert_non_null(strstr(buf_str(&why), "in use"));
    close_ends();
    buf_fini(&why);
}

static void connecting_needs_an_address_of_the_same_kind(void **state)
{
    uint32_t conn;

    (void)state;
    open_end(&a, (struct transport_config){0});
    assert_int_equal(transport_connect(a.t, "other://127.0.0.1:5", &conn), ERR_UNSUPPORTED);
    assert_int_equal(transport_connect(a.t, "127.0.0.1:5", &conn), ERR_INVALID);
    assert_int_equal(transport_connect(a.t, "", &conn), ERR_INVALID);
    char name[64];
    snprintf(name, sizeof name, "%s://localhost:5", kind); /* resolving a name may wait */
    assert_int_equal(transport_connect(a.t, name, &conn), ERR_INVALID);
    snprintf(name, sizeof name, "%s://127.0.0.1:", kind);
    assert_int_equal(transport_connect(a.t, name, &conn), ERR_INVALID);
    assert_int_equal(conn, TRANSPORT_NO_CONN);
    close_ends();
}

static void connecting_to_nobody_ends_in_closed(void **state)
{
    char address[128];
    uint32_t conn;

    (void)state;
    open_end(&b, (struct transport_config){0});
    snprintf(address, sizeof address, "%s", transport_address(b.t));
    close_ends();
    open_end(&a, (struct transport_config){0});
    for (uint32_t i = 1; i <= 3; i++) {
        assert_ok(transport_connect(a.t, address, &conn));
        assert_int_equal(transport_send(a.t, conn, "x", 1, NULL, 0, 0), ERR_UNAVAILABLE);
        wait_for(&a, TRANSPORT_CLOSED, i);
        assert_int_equal(a.last.conn, conn);
        assert_int_equal(a.n_seen[TRANSPORT_CONNECTED], 0);
    }
    close_ends();
}

/* --- messages --- */

static const uint32_t head_sizes[] = {0,    1,    15,   16,    4079,  4080,  4081,  4095,
                                      4096, 4097, 8192, 20000, 65519, 65520, 65535, 65536};
#define N_HEADS (sizeof head_sizes / sizeof *head_sizes)
static uint32_t n_heads_taken;

static void check_head(struct end *e, const struct transport_event *m)
{
    (void)e;
    uint32_t i = n_heads_taken++;
    assert_int_equal(m->n_head, head_sizes[i % N_HEADS]);
    assert_int_equal(m->n_payload, 0);
    assert_filled(m->head, m->n_head, i);
}

static void heads_of_all_sizes_arrive_in_order(void **state)
{
    uint8_t *head = malloc(TRANSPORT_HEAD_MAX);

    (void)state;
    open_ends((struct transport_config){0});
    n_heads_taken = 0;
    b.on_message = check_head;
    for (uint32_t i = 0; i < 20 * N_HEADS; i++) {
        fill(head, head_sizes[i % N_HEADS], i);
        assert_ok(transport_send(a.t, a.conn, head, head_sizes[i % N_HEADS], NULL, 0, 1 + i));
        if (i % 3 == 0)
            drive();
    }
    wait_for(&b, TRANSPORT_MESSAGE, 20 * N_HEADS);
    wait_for(&a, TRANSPORT_SENT, 20 * N_HEADS);
    assert_int_equal(a.last_of[TRANSPORT_SENT].tag, 20 * N_HEADS);
    close_ends();
    free(head);
}

static void payloads_of_all_sizes_arrive_in_the_callers_pieces(void **state)
{
    static const uint64_t sizes[] = {1,     100,     4095,    4096,        8191,        65536,
                                     65537, 1000003, 4 * MIB, 4 * MIB + 5, 33 * MIB + 1};
    uint8_t *from = map_bytes(34 * MIB), *to = map_bytes(34 * MIB);
    uint32_t n = 0;

    (void)state;
    open_ends((struct transport_config){0});
    transport_register(a.t, from, 34 * MIB);
    transport_register(b.t, to, 34 * MIB);
    b.on_message = receive_whole;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t n_from = 1; n_from <= TRANSPORT_PIECES_MAX; n_from += 5) {
            struct iovec pieces[TRANSPORT_PIECES_MAX];
            if (sizes[i] > MIB && n_from == 11)
                continue;
            n++;
            fill(from, sizes[i], n);
            memset(to, 0xA5, sizes[i] + 64);
            cut(pieces, n_from, from, sizes[i], n);
            to_bytes = to + 32;
            to_seed = n;
            to_pieces = 1 + (n * 7) % TRANSPORT_PIECES_MAX;
            assert_ok(transport_send(a.t, a.conn, "head", 4, pieces, n_from, n));
            wait_for(&b, TRANSPORT_RECEIVED, n);
            wait_for(&a, TRANSPORT_SENT, n);
            assert_int_equal(a.last_of[TRANSPORT_SENT].tag, n);
            assert_int_equal(b.last_of[TRANSPORT_RECEIVED].tag, 1000 + n);
            assert_filled(to + 32, sizes[i], n);
            for (uint32_t k = 0; k < 32; k++)
                assert_true(to[k] == 0xA5 && to[32 + sizes[i] + k] == 0xA5);
        }
    }
    close_ends();
    munmap(from, 34 * MIB);
    munmap(to, 34 * MIB);
}

/* Between two rounds the memory is given back to the system, as by an instance that sleeps. */
static void memory_is_registered_again_after_it_was_freed(void **state)
{
    static const uint64_t sizes[] = {5000, 300000, 4 * MIB + 5};
    uint32_t n = 0;

    (void)state;
    open_ends((struct transport_config){0});
    b.on_message = receive_whole;
    for (uint32_t round = 0; round < 5; round++) {
        uint8_t *from = map_bytes(5 * MIB), *to = map_bytes(5 * MIB);

        if (round != 3) { /* memory that is not registered will do, too */
            transport_register(a.t, from, 2 * MIB);
            transport_register(a.t, from + 2 * MIB, 3 * MIB);
            transport_register(b.t, to, 5 * MIB);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct iovec piece = {from, sizes[i]};

            fill(from, sizes[i], ++n);
            to_bytes = to;
            to_seed = n;
            to_pieces = 1;
            assert_ok(transport_send(a.t, a.conn, "head", 4, &piece, 1, n));
            wait_for(&b, TRANSPORT_RECEIVED, n);
            wait_for(&a, TRANSPORT_SENT, n);
            assert_filled(to, sizes[i], n);
        }
        transport_unregister_all(a.t);
        transport_unregister_all(b.t);
        munmap(from, 5 * MIB);
        munmap(to, 5 * MIB);
    }
    transport_unregister_all(a.t); /* nothing is registered */
    close_ends();
}

static void a_payload_that_is_not_wanted_is_thrown_away(void **state)
{
    static const uint64_t sizes[] = {1, 5000, 300000, 9 * MIB};
    uint8_t *from = map_bytes(9 * MIB);

    (void)state;
    open_ends((struct transport_config){0});
    for (uint32_t i = 0; i < 12; i++) {
        struct iovec v = {from, sizes[i % 4]};
        assert_ok(transport_send(a.t, a.conn, "x", 1, &v, 1, 1));
        assert_ok(transport_send(a.t, a.conn, "after", 5, NULL, 0, 0));
    }
    wait_for(&b, TRANSPORT_MESSAGE, 24);
    wait_for(&a, TRANSPORT_SENT, 12);
    assert_int_equal(b.last.n_head, 5);
    assert_int_equal(b.n_seen[TRANSPORT_RECEIVED], 0);
    close_ends();
    munmap(from, 9 * MIB);
}

/* --- many messages of random sizes, both ways, checked against a model --- */

#define N_MODEL 600
#define MODEL_BYTES MIB

struct model {
    uint64_t seed;
    uint32_t n_sent, n_taken, n_received, n_wanted;
    uint8_t *from, *to; /* [8][MODEL_BYTES] */
    bool busy_from[8], busy_to[8];
};
static struct model models[2]; /* what a sends, what b sends */

static uint64_t model_payload(const struct model *m, uint32_t i)
{
    uint32_t r = rng_u32(m->seed, i);

    return r % 3 == 0 ? 0 : r % 3 == 1 ? r % 9000 : r % MODEL_BYTES;
}

static uint32_t model_head(const struct model *m, uint32_t i)
{
    uint32_t r = rng_u32(m->seed + 1, i);

    return r % 7 == 0 ? r % 65537 : r % 200;
}

static void take_of_model(struct end *e, const struct transport_event *event)
{
    struct model *m = &models[e == &a];
    uint32_t i = m->n_taken++;

    assert_int_equal(event->n_head, model_head(m, i));
    assert_int_equal(event->n_payload, model_payload(m, i));
    assert_filled(event->head, event->n_head, i + m->seed);
    if (event->n_payload == 0 || rng_u32(m->seed + 2, i) % 5 == 0)
        return;
    uint32_t slot = 0;
    while (slot < 8 && m->busy_to[slot])
        slot++;
    if (slot == 8)
        return; /* thrown away */
    struct iovec to[5];
    m->busy_to[slot] = true;
    m->n_wanted++;
    cut(to, 5, m->to + slot * MODEL_BYTES, event->n_payload, i);
    transport_receive(e->t, event->conn, to, 5, (uint64_t)i << 8 | slot);
}

/* take_events(), with what the model needs of each event. */
static void take_for_model(struct end *e)
{
    struct model *in = &models[e == &a], *out = &models[e == &b];
    struct transport_event event;

    while (transport_next(e->t, &event)) {
        e->n_seen[event.kind]++;
        if (event.kind == TRANSPORT_MESSAGE)
            take_of_model(e, &event);
        if (event.kind == TRANSPORT_SENT)
            out->busy_from[event.tag & 7] = false;
        if (event.kind == TRANSPORT_RECEIVED) {
            uint32_t i = (uint32_t)(event.tag >> 8), slot = event.tag & 255;
            assert_filled(in->to + slot * MODEL_BYTES, model_payload(in, i), i + in->seed + 9);
            in->busy_to[slot] = false;
            in->n_received++;
        }
        if (event.kind == TRANSPORT_CLOSED)
            fail_msg("closed: %s", event.why);
    }
}

static void send_of_model(struct end *e)
{
    struct model *m = &models[e == &b];
    uint32_t i = m->n_sent, slot = 0;
    static uint8_t head[TRANSPORT_HEAD_MAX];
    struct iovec from[3];
    uint64_t n = model_payload(m, i);

    while (slot < 8 && m->busy_from[slot])
        slot++;
    if (i == N_MODEL || slot == 8)
        return;
    fill(head, model_head(m, i), i + m->seed);
    fill(m->from + slot * MODEL_BYTES, n, i + m->seed + 9);
    cut(from, 3, m->from + slot * MODEL_BYTES, n, i + 1);
    enum status s =
        transport_send(e->t, e->conn, head, model_head(m, i), from, 3, n ? 8 + slot : 0);
    if (s == ERR_BUSY)
        return;
    assert_ok(s);
    m->busy_from[slot] = n > 0;
    m->n_sent++;
}

static bool model_is_done(const struct model *m)
{
    return m->n_taken == N_MODEL && m->n_received == m->n_wanted;
}

static void random_messages_both_ways_agree_with_a_model(void **state)
{
    uint64_t give_up_ns = clock_now_ns() + GUARD_NS;

    (void)state;
    open_ends((struct transport_config){.n_queued_max = 5});
    for (uint32_t k = 0; k < 2; k++)
        models[k] = (struct model){.seed = 77 + 1000 * k,
                                   .from = map_bytes(8 * MODEL_BYTES),
                                   .to = map_bytes(8 * MODEL_BYTES)};
    for (uint64_t n = 0; !model_is_done(&models[0]) || !model_is_done(&models[1]); n++) {
        uint32_t r = rng_u32(3, n);
        struct end *e = r & 1 ? &a : &b;
        assert_true(clock_now_ns() < give_up_ns);
        if (r & 2)
            send_of_model(e);
        if (r & 4)
            transport_progress(e->t, now_ns);
        if (r & 8)
            take_for_model(e);
    }
    close_ends();
    for (uint32_t k = 0; k < 2; k++) {
        munmap(models[k].from, 8 * MODEL_BYTES);
        munmap(models[k].to, 8 * MODEL_BYTES);
    }
}

/* --- bounds --- */

static void a_full_queue_is_busy_and_recovers(void **state)
{
    uint8_t *from = map_bytes(4 * MIB), *to = map_bytes(4 * MIB);
    struct iovec v = {from, 4 * MIB};
    uint32_t n = 0;

    (void)state;
    open_ends((struct transport_config){.n_queued_max = 6});
    fill(from, 4 * MIB, 1);
    to_bytes = to;
    to_pieces = 1;
    b.on_message = receive_whole;
    b.is_deaf = true;
    for (; n < 100; n++) {
        enum status s = transport_send(a.t, a.conn, "big", 3, &v, 1, 1 + n);
        if (s == ERR_BUSY)
            break;
        assert_ok(s);
        drive_times(3);
    }
    assert_in_range(n, 6, 20); /* what was sent already may lie in the kernel */
    assert_int_equal(transport_send(a.t, a.conn, "x", 1, NULL, 0, 0), ERR_BUSY);
    b.is_deaf = false;
    wait_for(&b, TRANSPORT_RECEIVED, n);
    wait_for(&a, TRANSPORT_SENT, n);
    assert_filled(to, 4 * MIB, 1);
    assert_ok(transport_send(a.t, a.conn, "x", 1, NULL, 0, 0));
    wait_for(&b, TRANSPORT_MESSAGE, n + 1);
    close_ends();
    munmap(from, 4 * MIB);
    munmap(to, 4 * MIB);
}

/* Small messages of a sender that never stops do not fill the memory of a receiver that takes
 * nothing, and all arrive once it does. */
static void a_receiver_that_takes_nothing_slows_the_sender_down(void **state)
{
    uint8_t head[1000] = {0};
    uint32_t n = 0, n_busy = 0;

    (void)state;
    open_ends((struct transport_config){.n_queued_max = 50});
    b.is_deaf = true;
    while (n_busy < 3000 && n < 200000) {
        enum status s = transport_send(a.t, a.conn, head, sizeof head, NULL, 0, 0);
        if (s == OK)
            n++;
        else
            n_busy++;
        drive();
        transport_progress(b.t, now_ns); /* works, but its events are not taken */
    }
    assert_int_equal(n_busy, 3000);
    b.is_deaf = false;
    wait_for(&b, TRANSPORT_MESSAGE, n);
    close_ends();
}

static void connections_beyond_the_bound_are_refused(void **state)
{
    uint32_t conn, conns[4];

    (void)state;
    open_end(&a, (struct transport_config){.n_conns_max = 64});
    open_end(&b, (struct transport_config){.n_conns_max = 4});
    for (uint32_t i = 0; i < 4; i++) {
        connect_ends();
        conns[i] = a.conn;
    }
    assert_ok(transport_connect(a.t, transport_address(b.t), &conn));
    wait_for(&a, TRANSPORT_CLOSED, 1);
    assert_int_equal(a.last_of[TRANSPORT_CLOSED].conn, conn);
    assert_int_equal(b.n_seen[TRANSPORT_ACCEPTED], 4);
    assert_int_equal(transport_connect(b.t, transport_address(a.t), &conn), ERR_BUSY);
    transport_disconnect(a.t, conns[2]);
    wait_for(&b, TRANSPORT_CLOSED, 1);
    a.n_seen[TRANSPORT_CLOSED] = b.n_seen[TRANSPORT_CLOSED] = 0;
    connect_ends();
    close_ends();
}

static uint32_t n_echoed[N_CONNS_MAX];

static void echo(struct end *e, const struct transport_event *m)
{
    char head[64];

    assert_true(m->n_head <= sizeof head);
    memcpy(head, m->head, m->n_head);
    assert_ok(transport_send(e->t, m->conn, head, m->n_head, NULL, 0, 0));
}

static void check_echo(struct end *e, const struct transport_event *m)
{
    char expected[64];

    (void)e;
    snprintf(expected, sizeof expected, "connection %u message %u", m->conn, n_echoed[m->conn]++);
    assert_int_equal(m->n_head, strlen(expected));
    assert_memory_equal(m->head, expected, strlen(expected));
}

static void many_connections_do_not_mix(void **state)
{
    enum { N = 60, N_EACH = 20 };
    uint32_t conns[N];

    (void)state;
    memset(n_echoed, 0, sizeof n_echoed);
    open_end(&a, (struct transport_config){0});
    open_end(&b, (struct transport_config){0});
    a.on_message = check_echo;
    b.on_message = echo;
    for (uint32_t i = 0; i < N; i++) {
        connect_ends();
        conns[i] = a.conn;
    }
    for (uint32_t k = 0; k < N_EACH; k++) {
        for (uint32_t i = 0; i < N; i++) {
            char head[64];
            int n = snprintf(head, sizeof head, "connection %u message %u", conns[i], k);
            assert_ok(transport_send(a.t, conns[i], head, (uint32_t)n, NULL, 0, 0));
        }
    }
    wait_for(&a, TRANSPORT_MESSAGE, N * N_EACH);
    struct transport_stats s;
    transport_stats(a.t, &s);
    assert_int_equal(s.n_conns, N);
    assert_int_equal(s.n_messages_in, N * N_EACH);
    assert_int_equal(s.n_messages_out, N * N_EACH);
    assert_true(s.n_bytes_in > N * N_EACH * 20 && s.n_bytes_out > N * N_EACH * 20);
    close_ends();
}

/* --- time --- */

static void a_message_that_stands_still_ends_the_connection(void **state)
{
    uint8_t *p = map_bytes(48 * MIB);
    struct iovec v = {p, 48 * MIB};

    (void)state;
    open_ends((struct transport_config){.idle_timeout_ns = SECOND_NS});
    greet();
    b.is_deaf = true;
    assert_ok(transport_send(a.t, a.conn, "big", 3, &v, 1, 5));
    drive_times(50);
    now_ns += SECOND_NS - 1;
    drive_times(50);
    assert_int_equal(a.n_seen[TRANSPORT_CLOSED], 0);
    now_ns += SECOND_NS;
    wait_for(&a, TRANSPORT_CLOSED, 1);
    assert_non_null(strstr(a.last.why, "still"));
    forbid(p, 48 * MIB);
    drive_times(50);
    struct transport_stats s;
    transport_stats(a.t, &s);
    assert_int_equal(s.n_timeouts, 1);
    b.is_deaf = false;
    wait_for(&b, TRANSPORT_CLOSED, 1);
    close_ends();
    munmap(p, 48 * MIB);
}

static void a_quiet_connection_stays_and_a_silent_stranger_does_not(void **state)
{
    (void)state;
    open_ends((struct transport_config){.idle_timeout_ns = SECOND_NS});
    greet();
    for (uint32_t i = 0; i < 20; i++) {
        now_ns += 10 * SECOND_NS;
        drive_times(5);
    }
    greet();
    assert_int_equal(a.n_seen[TRANSPORT_CLOSED] + b.n_seen[TRANSPORT_CLOSED], 0);
    connect_ends(); /* a second one, on which nobody says anything */
    drive_times(5);
    now_ns += SECOND_NS;
    wait_for(&b, TRANSPORT_CLOSED, 1);
    now_ns += SECOND_NS;
    wait_for(&a, TRANSPORT_CLOSED, 1);
    close_ends();
}

/* --- waiting --- */

static void the_descriptor_wakes_the_receiver(void **state)
{
    (void)state;
    open_ends((struct transport_config){0});
    greet();
    for (uint32_t i = 0; i < 50; i++) {
        struct pollfd p = {.fd = transport_fd(b.t), .events = POLLIN};
        while (!transport_progress(b.t, now_ns))
            take_events(&b);
        assert_ok(transport_send(a.t, a.conn, "ping", 4, NULL, 0, 0));
        while (!transport_progress(a.t, now_ns))
            take_events(&a);
        assert_int_equal(poll(&p, 1, 60000), 1);
        wait_for(&b, TRANSPORT_MESSAGE, 2 + i);
    }
    close_ends();
}

/* --- all, for each kind --- */

static void an_unknown_kind_is_refused_and_auto_works(void **state)
{
    struct transport_config config = {.kind = "pigeon", .listen = "127.0.0.1:0"};
    struct transport *t;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(transport_open(&t, &config, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "pigeon"));
    config.kind = "auto";
    assert_ok(transport_open(&t, &config, &why));
    transport_close(t);
    config.kind = NULL;
    assert_ok(transport_open(&t, &config, &why));
    transport_close(t);
    buf_fini(&why);
}

/* libucp replaces them when it is loaded in the usual way. */
static void opening_leaves_signal_handlers_as_they_are(void **state)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP, SIGABRT, SIGPIPE};
    struct sigaction before[sizeof signals / sizeof *signals], after;
    struct transport_config config = {.kind = "ucx", .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;

    (void)state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        assert_int_equal(sigaction(signals[i], NULL, &before[i]), 0);
    if (transport_open(&t, &config, NULL) != OK)
        skip();
    transport_close(t);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        assert_int_equal(sigaction(signals[i], NULL, &after), 0);
        assert_ptr_equal(after.sa_handler, before[i].sa_handler);
    }
}

static int run_kind(const char *name)
{
    struct transport_config config = {.kind = name, .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_addresses_are_refused_in_words),
        cmocka_unit_test(the_announced_address_can_be_connected_to),
        cmocka_unit_test(the_announced_host_can_be_chosen),
        cmocka_unit_test(a_port_that_is_taken_is_refused),
        cmocka_unit_test(connecting_needs_an_address_of_the_same_kind),
        cmocka_unit_test(connecting_to_nobody_ends_in_closed),
        cmocka_unit_test(heads_of_all_sizes_arrive_in_order),
        cmocka_unit_test(payloads_of_all_sizes_arrive_in_the_callers_pieces),
        cmocka_unit_test(memory_is_registered_again_after_it_was_freed),
        cmocka_unit_test(a_payload_that_is_not_wanted_is_thrown_away),
        cmocka_unit_test(random_messages_both_ways_agree_with_a_model),
        cmocka_unit_test(a_full_queue_is_busy_and_recovers),
        cmocka_unit_test(a_receiver_that_takes_nothing_slows_the_sender_down),
        cmocka_unit_test(connections_beyond_the_bound_are_refused),
        cmocka_unit_test(many_connections_do_not_mix),
        cmocka_unit_test(a_message_that_stands_still_ends_the_connection),
        cmocka_unit_test(a_quiet_connection_stays_and_a_silent_stranger_does_not),
        cmocka_unit_test(the_descriptor_wakes_the_receiver),
    };

    kind = name;
    if (transport_open(&t, &config, NULL) == ERR_UNSUPPORTED) {
        print_message("%s: not available here\n", name);
        return 0;
    }
    transport_close(t);
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(opening_leaves_signal_handlers_as_they_are), /* first: it loads UCX */
        cmocka_unit_test(an_unknown_kind_is_refused_and_auto_works),
    };

    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (argc > 1)
        return run_kind(argv[1]);
    return cmocka_run_group_tests(common, NULL, NULL) + run_kind("tcp") + run_kind("ucx");
}
