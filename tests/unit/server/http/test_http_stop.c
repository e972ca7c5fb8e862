/* test_http_stop.c - stops a server many times while clients connect, send, wait and leave.
 *
 * During a stop, the server's own threads, those of the HTTP library and the engine give up the
 * same connections. A mistake shows as an abort of the library, a use after free that ASan finds,
 * or a stop that never returns (the test's time limit). */
#include "tests/unit/server/http/http_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"

#ifndef N_STOPS
#define N_STOPS 1000
#endif
#define N_CLIENTS 4
#define BUSY_MS 4
#define CHAT                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":500,\"stream\":%s}"

struct crowd {
    atomic_uint port; /* 0: no server listens now */
    atomic_bool ended;
    atomic_uint n_connected;
    atomic_uint n_answered;
};

static int connect_to(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void send_chat(int fd, const char *stream)
{
    char body[256], text[512];

    snprintf(body, sizeof body, CHAT, stream);
    int n = snprintf(text, sizeof text,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL);
}

/* Be a client of a kind that depends on `turn`, so that a stop meets clients of all kinds. */
static void visit(struct crowd *c, int fd, unsigned turn)
{
    static const char health[] = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    static const char refused[] = "GET nonsense\r\n\r\n";
    char bytes[512];

    if (turn % 5 == 0) { /* sends requests until the connection ends */
        while (send(fd, health, sizeof health - 1, MSG_NOSIGNAL) > 0 &&
               recv(fd, bytes, sizeof bytes, 0) > 0)
            atomic_fetch_add(&c->n_answered, 1);
        return;
    }
    if (turn % 5 == 1) {
        (void)!send(fd, health, 20, MSG_NOSIGNAL); /* half a header */
    } else if (turn % 5 == 4 && turn % 2) {
        (void)!send(fd, refused, sizeof refused - 1, MSG_NOSIGNAL); /* refused by the library */
    } else if (turn % 5 < 4) {
        send_chat(fd, turn % 5 == 2 ? "true" : "false");
    } /* else it sends nothing */
    if (turn % 3 == 0)
        shutdown(fd, SHUT_WR);
    if (turn % 7 < 6) /* one in seven leaves without reading */
        while (recv(fd, bytes, sizeof bytes, 0) > 0)
            continue;
}

static void *come_and_go(void *arg)
{
    struct crowd *c = arg;

    for (unsigned turn = 0; !atomic_load(&c->ended);) {
        unsigned port = atomic_load(&c->port);
        int fd = port ? connect_to((uint16_t)port) : -1;
        if (fd < 0) {
            clock_sleep_ns(50000);
            continue;
        }
        atomic_fetch_add(&c->n_connected, 1);
        visit(c, fd, turn++);
        close(fd);
    }
    return NULL;
}

static void serve_and_stop(struct http_test *t, struct crowd *c, const struct http_config *config,
                           unsigned turn)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (http_create(&t->http, config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    unsigned n_connected = atomic_load(&c->n_connected);
    atomic_store(&c->port, http_port(t->http));
    /* Wait for a new connection, and then a while, so that connections are in all phases. */
    while (atomic_load(&c->n_connected) == n_connected)
        clock_sleep_ns(20000);
    clock_sleep_ns(turn % BUSY_MS * UINT64_C(700000));
    http_stop(t->http);
    atomic_store(&c->port, 0);
    while (atomic_load(&fake_n_inside) > 0) /* until no request can wake a connection */
        clock_sleep_ns(20000);
    http_destroy(t->http);
    buf_fini(&why);
}

static void a_thousand_busy_servers_stop(void **state)
{
    struct http_test t;
    struct crowd c = {0};
    pthread_t clients[N_CLIENTS];

    (void)state;
    log_init(LOG_ERROR, false);
    http_test_open(&t, "m", "", "");
    struct http_config config = {.host = "127.0.0.1",
                                 .n_threads = 2,
                                 .n_connections_max = 64,
                                 .body_bytes_max = 1u << 20,
                                 .long_body_bytes = 64,
                                 .header_timeout_s = 10,
                                 .early = route_early,
                                 .handle = route_handle,
                                 .arg = &t.s.srv};
    http_stop(t.http);
    http_destroy(t.http);
    atomic_store(&fake_step_ns, 200000);
    for (int i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, come_and_go, &c), 0);
    for (unsigned i = 0; i < N_STOPS; i++)
        serve_and_stop(&t, &c, &config, i);
    atomic_store(&c.ended, true);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(clients[i], NULL);
    print_message("%u connections, %u answers of /health/live over %d servers\n",
                  atomic_load(&c.n_connected), atomic_load(&c.n_answered), N_STOPS);
    assert_true(atomic_load(&c.n_answered) > 0);
    t.http = NULL;
    engine_close(t.s.engine);
    server_fini(&t.s.srv);
    buf_fini(&t.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_busy_servers_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
