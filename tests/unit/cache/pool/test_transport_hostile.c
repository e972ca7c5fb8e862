/* Peers that are not transports, and peers that die. */
#include "tests/unit/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/unit/cache/pool/transport_ends.h"

/* --- a socket that speaks to b --- */

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)atoi(strrchr(transport_address(b.t), ':') + 1));
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

/* A frame as docs/design/pool.md describes it. */
static uint32_t frame(uint8_t *out, uint32_t n_head, uint64_t n_payload)
{
    memcpy(out, "TRN1", 4);
    put(out + 4, n_head, 4);
    put(out + 8, n_payload, 8);
    return 16;
}

static void write_all(int fd, const void *bytes, size_t n)
{
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

static void open_b(void)
{
    memset(&a, 0, sizeof a);
    open_end(&b, (struct transport_config){.idle_timeout_ns = SECOND_NS, .payload_max = MIB});
}

/* b closes the connection, and its reason contains `words`. */
static void assert_ends(int fd, const char *words)
{
    uint32_t n = b.n_seen[TRANSPORT_CLOSED];

    wait_for(&b, TRANSPORT_CLOSED, n + 1);
    if (!strstr(b.last_of[TRANSPORT_CLOSED].why, words))
        fail_msg("%s", b.last_of[TRANSPORT_CLOSED].why);
    close(fd);
}

static void a_frame_that_is_not_allowed_ends_the_connection(void **state)
{
    static const struct {
        uint32_t n_head;
        uint64_t n_payload;
        const char *words;
    } rows[] = {
        {65537, 0, "head"},
        {0x80000000u, 0, "head"},
        {0xFFFFFFFFu, 0, "head"},
        {0, MIB + 1, "payload"},
        {0, UINT64_C(1) << 63, "payload"},
        {0, UINT64_MAX, "payload"},
        {65536, UINT64_MAX - 65536 - 16 + 1, "payload"},
    };
    struct transport_stats s;
    uint8_t f[16];

    (void)state;
    open_b();
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int fd = dial();
        write_all(fd, f, frame(f, rows[i].n_head, rows[i].n_payload));
        assert_ends(fd, rows[i].words);
    }
    int fd = dial();
    frame(f, 0, 0);
    f[3] = '2';
    write_all(fd, f, sizeof f);
    assert_ends(fd, "version");
    fd = dial();
    write_all(fd, "GET / HTTP/1.1\r\n\r\n", 18);
    assert_ends(fd, "version");
    transport_stats(b.t, &s);
    assert_int_equal(s.n_broken, sizeof rows / sizeof *rows + 2);
    assert_int_equal(b.n_seen[TRANSPORT_MESSAGE], 0);
    close_ends();
}

static void garbage_behind_valid_messages_ends_the_connection(void **state)
{
    uint8_t bytes[3 * 20 + 1000];

    (void)state;
    open_b();
    for (uint32_t seed = 0; seed < 30; seed++) {
        uint32_t n_before = b.n_seen[TRANSPORT_MESSAGE];
        for (uint32_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)(rng_u32(seed, i) | 1); /* never "TRN1" */
        for (uint32_t i = 0; i < 3; i++)
            frame(bytes + 20 * i, 4, 0);
        int fd = dial();
        write_all(fd, bytes, sizeof bytes);
        assert_ends(fd, "version");
        assert_int_equal(b.n_seen[TRANSPORT_MESSAGE], n_before + 3);
    }
    close_ends();
}

static uint32_t n_taken;

static void take_small(struct end *e, const struct transport_event *m)
{
    (void)e;
    assert_int_equal(m->n_head, 5);
    assert_memory_equal(m->head, "tiny!", 5);
    n_taken++;
}

static void bytes_that_come_one_by_one_are_messages_too(void **state)
{
    uint8_t f[16 + 5 + 3];

    (void)state;
    open_b();
    b.on_message = take_small;
    n_taken = 0;
    int fd = dial();
    for (uint32_t k = 0; k < 20; k++) {
        uint32_t n = frame(f, 5, k % 2 ? 3 : 0);
        memcpy(f + n, "tiny!abc", 8);
        for (uint32_t i = 0; i < n + 5 + (k % 2 ? 3 : 0); i++) {
            write_all(fd, f + i, 1);
            drive();
        }
    }
    wait_for(&b, TRANSPORT_MESSAGE, 20);
    assert_int_equal(n_taken, 20);
    write_all(fd, f, 7);
    drive_times(5);
    close(fd);
    wait_for(&b, TRANSPORT_CLOSED, 1);
    assert_non_null(strstr(b.last.why, "middle"));
    close_ends();
}

/* Where a peer stops: in the frame, the head, before the payload, in it. */
static const uint32_t stops[] = {0, 1, 15, 16, 20, 116, 117, 5000};

static uint32_t write_part(int fd, uint32_t n)
{
    static uint8_t bytes[16 + 100 + 10000];

    memset(bytes, 'x', sizeof bytes);
    frame(bytes, 100, 10000);
    write_all(fd, bytes, n);
    return n;
}

static uint8_t *memory;

static void receive_to_memory(struct end *e, const struct transport_event *m)
{
    struct iovec v[2] = {{memory, 4000}, {memory + 4000, m->n_payload - 4000}};

    transport_receive(e->t, m->conn, v, 2, 1);
}

static void a_peer_that_stops_in_the_middle_is_timed_out(void **state)
{
    struct transport_stats s;

    (void)state;
    open_b();
    for (uint32_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        memory = map_bytes(65536);
        b.on_message = receive_to_memory;
        int fd = dial();
        write_part(fd, stops[i]);
        wait_for(&b, TRANSPORT_ACCEPTED, i + 1);
        drive_times(20);
        now_ns += SECOND_NS - 1;
        drive_times(5);
        assert_int_equal(b.n_seen[TRANSPORT_CLOSED], i);
        now_ns += SECOND_NS;
        assert_ends(fd, "still");
        forbid(memory, 65536); /* nothing is written there any more */
        drive_times(20);
        munmap(memory, 65536);
    }
    transport_stats(b.t, &s);
    assert_int_equal(s.n_timeouts, sizeof stops / sizeof *stops);
    assert_int_equal(b.n_seen[TRANSPORT_RECEIVED], 0);
    close_ends();
}

static void a_peer_that_leaves_in_the_middle_ends_the_connection(void **state)
{
    (void)state;
    open_b();
    for (uint32_t i = 1; i < sizeof stops / sizeof *stops; i++) {
        memory = map_bytes(65536);
        b.on_message = receive_to_memory;
        int fd = dial();
        write_part(fd, stops[i]);
        wait_for(&b, TRANSPORT_ACCEPTED, i);
        drive_times(20);
        if (i % 2) {
            struct linger reset = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        close(fd);
        wait_for(&b, TRANSPORT_CLOSED, i);
        assert_non_null(strstr(b.last_of[TRANSPORT_CLOSED].why, i % 2 ? "reset" : "middle"));
        forbid(memory, 65536);
        drive_times(20);
        munmap(memory, 65536);
    }
    assert_int_equal(b.n_seen[TRANSPORT_RECEIVED], 0);
    close_ends();
}

static void silent_strangers_do_not_keep_members_out(void **state)
{
    int fds[8];

    (void)state;
    open_end(&a, (struct transport_config){0});
    open_end(&b, (struct transport_config){.n_conns_max = 8, .idle_timeout_ns = SECOND_NS});
    for (uint32_t i = 0; i < 8; i++)
        fds[i] = dial();
    wait_for(&b, TRANSPORT_ACCEPTED, 8);
    now_ns += SECOND_NS;
    wait_for(&b, TRANSPORT_CLOSED, 8);
    b.n_seen[TRANSPORT_CLOSED] = 0;
    connect_ends();
    greet();
    for (uint32_t i = 0; i < 8; i++)
        close(fds[i]);
    close_ends();
}

/* --- both kinds: random bytes to the port, and a process that is killed --- */

static void random_bytes_to_the_port_do_no_harm(void **state)
{
    uint8_t bytes[3000];

    (void)state;
    open_end(&a, (struct transport_config){0});
    open_end(&b, (struct transport_config){.idle_timeout_ns = SECOND_NS});
    for (uint32_t seed = 0; seed < 20; seed++) {
        int fd = dial();
        for (uint32_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)rng_u32(seed, i);
        write_all(fd, bytes, 1 + rng_u32(seed, 9999) % sizeof bytes);
        drive_times(50);
        close(fd);
        drive_times(50);
    }
    drive_times(500);
    now_ns += 2 * SECOND_NS;
    drive_times(50);
    a.n_seen[TRANSPORT_CLOSED] = b.n_seen[TRANSPORT_CLOSED] = 0;
    connect_ends();
    greet();
    close_ends();
}

#define BIG (64 * MIB)

/* The child: connect to the address that comes through the pipe; send a payload, or receive what
 * comes; then work until it is killed. */
static void be_peer(int address_fd, int ready_fd, bool sends)
{
    char address[128] = {0};

    if (read(address_fd, address, sizeof address - 1) <= 0)
        _exit(1);
    open_end(&a, (struct transport_config){0});
    memset(&b, 0, sizeof b);
    uint32_t conn;
    assert_ok(transport_connect(a.t, address, &conn));
    wait_for(&a, TRANSPORT_CONNECTED, 1);
    memory = map_bytes(BIG);
    memset(memory, 7, BIG);
    struct iovec v = {memory, BIG};
    assert_ok(transport_send(a.t, conn, "hello", 5, sends ? &v : NULL, sends, sends ? 1 : 0));
    if (sends) {
        /* Begin, and then stand: the parent kills a process that works no more. */
        for (int i = 0; i < 40; i++) {
            transport_progress(a.t, now_ns);
            take_events(&a);
        }
    } else {
        wait_for(&a, TRANSPORT_MESSAGE, 1); /* with payload, of which it takes nothing */
    }
    if (write(ready_fd, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void receive_big(struct end *e, const struct transport_event *m)
{
    struct iovec v = {memory, m->n_payload};

    if (m->n_payload > 0)
        transport_receive(e->t, m->conn, &v, 1, 1);
}

static void kill_peer(bool peer_sends)
{
    int address_pipe[2], ready_pipe[2];
    char byte;

    assert_int_equal(pipe(address_pipe) | pipe(ready_pipe), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        be_peer(address_pipe[0], ready_pipe[1], peer_sends);
        _exit(0);
    }
    memset(&a, 0, sizeof a);
    open_end(&b, (struct transport_config){0});
    memory = map_bytes(BIG);
    b.on_message = receive_big;
    const char *address = transport_address(b.t);
    assert_int_equal(write(address_pipe[1], address, strlen(address)), strlen(address));
    wait_for(&b, TRANSPORT_ACCEPTED, 1);
    wait_for(&b, TRANSPORT_MESSAGE, 1);
    if (!peer_sends) {
        struct iovec v = {memory, BIG};
        assert_ok(transport_send(b.t, b.conn, "big", 3, &v, 1, 3));
    }
    assert_int_equal(fcntl(ready_pipe[0], F_SETFL, O_NONBLOCK), 0);
    while (read(ready_pipe[0], &byte, 1) != 1)
        drive();
    drive_times(100);
    /* The whole payload may have been fetched from the peer's memory already. */
    bool over = b.n_seen[TRANSPORT_RECEIVED] + b.n_seen[TRANSPORT_SENT] > 0;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    wait_for(&b, TRANSPORT_CLOSED, 1);
    forbid(memory, BIG);
    drive_times(200);
    assert_int_equal(b.n_seen[TRANSPORT_RECEIVED] + b.n_seen[TRANSPORT_SENT], over);
    close_ends();
    munmap(memory, BIG);
    close(address_pipe[0]);
    close(address_pipe[1]);
    close(ready_pipe[0]);
    close(ready_pipe[1]);
}

static void a_receiver_that_is_killed_frees_the_payload(void **state)
{
    (void)state;
    kill_peer(false);
}

static void a_sender_that_is_killed_frees_the_payload(void **state)
{
    (void)state;
    kill_peer(true);
}

static int run_kind(const char *name)
{
    struct transport_config config = {.kind = name, .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;
    const struct CMUnitTest framing[] = {
        cmocka_unit_test(a_frame_that_is_not_allowed_ends_the_connection),
        cmocka_unit_test(garbage_behind_valid_messages_ends_the_connection),
        cmocka_unit_test(bytes_that_come_one_by_one_are_messages_too),
        cmocka_unit_test(a_peer_that_stops_in_the_middle_is_timed_out),
        cmocka_unit_test(a_peer_that_leaves_in_the_middle_ends_the_connection),
        cmocka_unit_test(silent_strangers_do_not_keep_members_out),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receiver_that_is_killed_frees_the_payload),
        cmocka_unit_test(a_sender_that_is_killed_frees_the_payload),
        cmocka_unit_test(random_bytes_to_the_port_do_no_harm),
    };

    kind = name;
    if (strcmp(name, "tcp") == 0 && cmocka_run_group_tests_name("framing", framing, NULL, NULL))
        return 1;
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
