/* test_http_accept.c - connections are accepted while there is room, and never after a stop. */
#include "tests/unit/test.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/http/http_accept.h"
#include "server/http/http_listen.h"

#define N_FDS_MAX 64

struct server {
    struct acceptor *acceptor;
    int listen_fd;
    uint16_t port;
    atomic_uint n_max, n_taken, n_calls_for_room;
    int fds[N_FDS_MAX]; /* [n_taken] */
};

static bool has_room(void *arg)
{
    struct server *s = arg;

    return atomic_load(&s->n_taken) < atomic_load(&s->n_max);
}

static void make_room(void *arg)
{
    atomic_fetch_add(&((struct server *)arg)->n_calls_for_room, 1);
}

static void take(void *arg, int fd, const struct sockaddr *address, socklen_t n_address)
{
    struct server *s = arg;

    assert_true(address->sa_family == AF_INET && n_address == sizeof(struct sockaddr_in));
    assert_true(atomic_load(&s->n_taken) < N_FDS_MAX);
    s->fds[atomic_load(&s->n_taken)] = fd;
    atomic_fetch_add(&s->n_taken, 1);
}

static void server_open(struct server *s, unsigned n_max)
{
    struct acceptor_config config = {
        .has_room = has_room, .make_room = make_room, .take = take, .arg = s};

    memset(s, 0, sizeof *s);
    atomic_store(&s->n_max, n_max);
    assert_ok(listen_tcp(&s->listen_fd, "127.0.0.1", 0, &s->port, NULL));
    config.listen_fd = s->listen_fd;
    assert_ok(acceptor_create(&s->acceptor, &config));
}

static void server_close(struct server *s)
{
    acceptor_stop(s->acceptor);
    close(s->listen_fd);
    for (unsigned i = 0; i < atomic_load(&s->n_taken); i++)
        close(s->fds[i]);
}

static int client(const struct server *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(s->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void wait_at_least(atomic_uint *n, unsigned value)
{
    for (int i = 0; i < 60000 && atomic_load(n) < value; i++)
        clock_sleep_ns(1000000);
    assert_true(atomic_load(n) >= value);
}

static void without_room_clients_wait_and_room_is_asked_for(void **state)
{
    struct server s;
    int fds[5];

    (void)state;
    server_open(&s, 3);
    for (int i = 0; i < 5; i++)
        fds[i] = client(&s);
    wait_at_least(&s.n_taken, 3);
    wait_at_least(&s.n_calls_for_room, 2);
    assert_int_equal(atomic_load(&s.n_taken), 3);
    atomic_store(&s.n_max, 10);
    wait_at_least(&s.n_taken, 5);
    server_close(&s);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
}

static void without_descriptors_room_is_asked_for(void **state)
{
    struct server s;
    struct rlimit before, none;

    (void)state;
    log_init(LOG_ERROR, false);
    server_open(&s, 10);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int fd = client(&s);
    wait_at_least(&s.n_taken, 1);
    int second = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(s.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(connect(second, (struct sockaddr *)&to, sizeof to), 0);
    wait_at_least(&s.n_calls_for_room, 1);
    assert_int_equal(atomic_load(&s.n_taken), 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    wait_at_least(&s.n_taken, 2); /* the client waited in the kernel's queue */
    server_close(&s);
    close(fd);
    close(second);
}

static void a_stop_returns_at_once_and_nothing_is_taken_after(void **state)
{
    struct server s;

    (void)state;
    server_open(&s, 0); /* stopping also works while there is no room */
    int fd = client(&s);
    wait_at_least(&s.n_calls_for_room, 1);
    acceptor_stop(s.acceptor);
    s.acceptor = NULL;
    atomic_store(&s.n_max, 10);
    clock_sleep_ns(20000000);
    assert_int_equal(atomic_load(&s.n_taken), 0);
    server_close(&s);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_room_clients_wait_and_room_is_asked_for),
        cmocka_unit_test(without_descriptors_room_is_asked_for),
        cmocka_unit_test(a_stop_returns_at_once_and_nothing_is_taken_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
