/* How connections end: with messages under way, before they are there, by either side. */
#include "tests/unit/test.h"

#include <dirent.h>

#include "base/rng.h"
#include "tests/unit/cache/pool/transport_ends.h"

static uint32_t count_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void connections_that_come_and_go_leave_nothing(void **state)
{
    uint32_t n_files = 0;

    (void)state;
    open_end(&a, (struct transport_config){.n_conns_max = 3});
    open_end(&b, (struct transport_config){.n_conns_max = 3});
    for (uint32_t i = 0; i < 40; i++) {
        if (i == 10)
            n_files = count_files();
        a.n_seen[TRANSPORT_CLOSED] = b.n_seen[TRANSPORT_CLOSED] = 0;
        connect_ends();
        transport_disconnect(i % 2 ? a.t : b.t, i % 2 ? a.conn : b.conn);
        wait_for(i % 2 ? &b : &a, TRANSPORT_CLOSED, 1);
    }
    assert_int_equal(a.n_seen[TRANSPORT_CLOSED] + b.n_seen[TRANSPORT_CLOSED], 1);
    assert_true(count_files() <= n_files + 4);
    struct transport_stats s;
    transport_stats(b.t, &s);
    assert_int_equal(s.n_conns, 0);
    assert_int_equal(s.n_broken, 0);
    close_ends();
}

static void messages_that_came_before_the_end_are_reported(void **state)
{
    (void)state;
    open_ends((struct transport_config){0});
    greet();
    for (uint32_t i = 0; i < 10; i++)
        assert_ok(transport_send(a.t, a.conn, "bye", 3, NULL, 0, 7));
    wait_for(&a, TRANSPORT_SENT, 10);
    if (strcmp(kind, "tcp") != 0) /* UCX drops what the receiver has not taken off the wire */
        wait_for(&b, TRANSPORT_MESSAGE, 11);
    transport_disconnect(a.t, a.conn);
    wait_for(&b, TRANSPORT_CLOSED, 1);
    assert_int_equal(b.n_seen[TRANSPORT_MESSAGE], 11);
    close_ends();
}

/* a sends to b, which takes the message and then does not work. */
static void start_payload(struct end *from, struct end *to, const struct iovec *v)
{
    uint64_t give_up_ns = clock_now_ns() + GUARD_NS;
    uint32_t n = to->n_seen[TRANSPORT_MESSAGE];

    to->on_message = receive_whole;
    assert_ok(transport_send(from->t, from->conn, "big", 3, v, 1, 99));
    while (to->n_seen[TRANSPORT_MESSAGE] == n) {
        transport_progress(from->t, now_ns);
        transport_progress(to->t, now_ns);
        take_events(to);
        assert_true(clock_now_ns() < give_up_ns);
    }
}

/* One side leaves while payload is under way. The memory of both is then made inaccessible. */
static void leave_under_way(struct end *leaver, struct end *from, struct end *to, bool by_close)
{
    uint8_t *p = map_bytes(48 * MIB), *q = map_bytes(48 * MIB);
    struct iovec v = {p, 48 * MIB};
    struct end *other = leaver == &a ? &b : &a;
    uint8_t *leavers = leaver == from ? p : q, *others = leaver == from ? q : p;

    memset(p, 1, 48 * MIB);
    to_bytes = q;
    to_pieces = 3;
    to_seed = 4;
    start_payload(from, to, &v);
    uint32_t n_sent = from->n_seen[TRANSPORT_SENT], n_received = to->n_seen[TRANSPORT_RECEIVED];
    if (by_close)
        close_end(leaver);
    else
        transport_disconnect(leaver->t, leaver->conn);
    forbid(leavers, 48 * MIB);
    wait_for(other, TRANSPORT_CLOSED, 1);
    forbid(others, 48 * MIB);
    drive_times(200);
    if (leaver == from)
        assert_int_equal(n_received, to->n_seen[TRANSPORT_RECEIVED]);
    else
        assert_int_equal(n_sent, from->n_seen[TRANSPORT_SENT]);
    if (!by_close)
        assert_int_equal(leaver->n_seen[TRANSPORT_CLOSED], 0);
    munmap(p, 48 * MIB);
    munmap(q, 48 * MIB);
}

static void payload_is_not_touched_after_an_end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        open_ends((struct transport_config){0});
        greet();
        leave_under_way(i & 1 ? &a : &b, i & 2 ? &a : &b, i & 2 ? &b : &a, i & 4);
        close_ends();
    }
}

static void disconnecting_with_sends_under_way_ends_them_all(void **state)
{
    uint8_t *p = map_bytes(8 * MIB);
    struct iovec v = {p, 8 * MIB};
    uint32_t conn;

    (void)state;
    memset(p, 3, 8 * MIB);
    open_ends((struct transport_config){0});
    greet();
    for (uint32_t i = 0; i < 20; i++)
        assert_ok(transport_send(a.t, a.conn, "x", 1, &v, 1, 1 + i));
    transport_progress(a.t, now_ns);
    transport_disconnect(a.t, a.conn);
    forbid(p, 8 * MIB);
    wait_for(&b, TRANSPORT_CLOSED, 1);
    drive_times(200);
    assert_int_equal(a.n_seen[TRANSPORT_CLOSED], 0);
    assert_int_equal(transport_send(a.t, a.conn, "x", 1, NULL, 0, 0), ERR_UNAVAILABLE);
    munmap(p, 8 * MIB);
    /* A connection that is not there yet can be given up too. */
    assert_ok(transport_connect(a.t, transport_address(b.t), &conn));
    transport_disconnect(a.t, conn);
    drive_times(200);
    assert_int_equal(a.n_seen[TRANSPORT_CONNECTED], 1);
    b.n_seen[TRANSPORT_CLOSED] = 0;
    connect_ends();
    close_ends();
}

/* --- connections that are given up before they are there --- */

/* Connect a to b, once something that was given up has gone away, and send one message. b may see
 * the ends of connections that were given up meanwhile. */
static void connect_behind_others(void)
{
    uint32_t conn, n_messages = b.n_seen[TRANSPORT_MESSAGE];
    uint64_t give_up_ns = clock_now_ns() + GUARD_NS;

    while (transport_connect(a.t, transport_address(b.t), &conn) == ERR_BUSY) {
        assert_true(clock_now_ns() < give_up_ns);
        if (drive())
            clock_sleep_ns(100000);
    }
    wait_for(&a, TRANSPORT_CONNECTED, 1);
    assert_ok(transport_send(a.t, conn, "hi", 2, NULL, 0, 0));
    while (b.n_seen[TRANSPORT_MESSAGE] == n_messages) {
        assert_true(clock_now_ns() < give_up_ns);
        if (drive())
            clock_sleep_ns(100000);
    }
}

/* UCX 1.13 ended the process here, now and then, by an assertion in a thread of its own. */
static void connections_given_up_at_once_leave_nothing(void **state)
{
    enum { N = 250 };
    uint32_t n_files = 0, conn;

    (void)state;
    open_end(&a, (struct transport_config){.n_conns_max = 8});
    open_end(&b, (struct transport_config){.n_conns_max = 8});
    for (uint32_t i = 0; i < N; i++) {
        if (i == N / 4)
            n_files = count_files();
        while (transport_connect(a.t, transport_address(b.t), &conn) == ERR_BUSY)
            drive(); /* what was given up goes away */
        for (uint32_t k = 0; k < i % 5; k++)
            transport_progress(i % 2 ? a.t : b.t, now_ns);
        if (i % 7 < 4) /* a thread of UCX works meanwhile */
            clock_sleep_ns(rng_u32(5, i) % 300000);
        transport_disconnect(a.t, conn);
        if (i % 3 == 0)
            drive_times(20);
    }
    assert_int_equal(a.n_seen[TRANSPORT_CONNECTED] + a.n_seen[TRANSPORT_CLOSED], 0);
    connect_behind_others();
    assert_true(count_files() <= n_files + 50);
    close_ends();
}

static void a_transport_can_be_closed_while_it_connects(void **state)
{
    uint32_t conn;

    (void)state;
    open_end(&b, (struct transport_config){0});
    for (uint32_t i = 0; i < 20; i++) {
        open_end(&a, (struct transport_config){0});
        for (uint32_t k = 0; k < 3; k++)
            assert_ok(transport_connect(a.t, transport_address(b.t), &conn));
        if (i % 2)
            transport_disconnect(a.t, conn);
        for (uint32_t k = 0; k < i / 4; k++)
            transport_progress(a.t, now_ns);
        close_end(&a);
        drive_times(20);
    }
    open_end(&a, (struct transport_config){0});
    b.n_seen[TRANSPORT_CLOSED] = 0;
    connect_ends();
    close_ends();
}

/* Nobody answers at the peer's address: what is given up is closed after the time of silence. */
static void a_connection_that_is_given_up_and_never_comes_goes_away(void **state)
{
    uint32_t conn;

    (void)state;
    open_end(&a, (struct transport_config){.n_conns_max = 1, .idle_timeout_ns = SECOND_NS});
    open_end(&b, (struct transport_config){0});
    b.is_deaf = true;
    assert_ok(transport_connect(a.t, transport_address(b.t), &conn));
    transport_disconnect(a.t, conn);
    drive_times(20);
    now_ns += 2 * SECOND_NS;
    b.is_deaf = false;
    uint64_t give_up_ns = clock_now_ns() + GUARD_NS;
    while (transport_connect(a.t, transport_address(b.t), &conn) == ERR_BUSY) {
        drive();
        assert_true(clock_now_ns() < give_up_ns);
    }
    assert_int_equal(a.n_seen[TRANSPORT_CLOSED], 0);
    wait_for(&a, TRANSPORT_CONNECTED, 1);
    close_ends();
}

static int run_kind(const char *name)
{
    struct transport_config config = {.kind = name, .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_come_and_go_leave_nothing),
        cmocka_unit_test(messages_that_came_before_the_end_are_reported),
        cmocka_unit_test(payload_is_not_touched_after_an_end),
        cmocka_unit_test(disconnecting_with_sends_under_way_ends_them_all),
        cmocka_unit_test(connections_given_up_at_once_leave_nothing),
        cmocka_unit_test(a_transport_can_be_closed_while_it_connects),
        cmocka_unit_test(a_connection_that_is_given_up_and_never_comes_goes_away),
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
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return argc > 1 ? run_kind(argv[1]) : run_kind("tcp") + run_kind("ucx");
}
