/* test_http_batch.c - requests are answered however many of them become ready at the same time. */
#include "tests/unit/test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/http/http.h"

/* MHD takes so many events at a time. */
#define N_BATCH 128
#define WAIT_MS 60000
#define N_ROUNDS 3 /* one tick is not enough */

struct test {
    struct http_server *http;
    sem_t inside, leave; /* of the handler of /block */
};

static void early(void *arg, struct http_exchange *x)
{
    struct test *t = arg;

    if (strcmp(http_path(x), "/block") != 0)
        return;
    sem_post(&t->inside);
    sem_wait(&t->leave);
}

static void handle(void *arg, struct http_exchange *x)
{
    (void)arg;
    http_reply(x, 200, "text/plain", NULL);
}

static int client(const struct test *t)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_port(t->http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void ask(int fd, const char *path)
{
    char text[128];
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);

    assert_int_equal(write(fd, text, (size_t)n), n);
}

static void wait_for_answer(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char text[4096];

    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    ssize_t n = read(fd, text, sizeof text);
    assert_true(n > 12 && memcmp(text, "HTTP/1.1 200", 12) == 0);
}

/* Several times: while the one HTTP thread is inside a handler, n other clients send one request
 * each, so that the thread's next epoll_wait() returns n events at once. */
static void ask_together(uint32_t n)
{
    struct test t = {0};
    struct http_config config = {.host = "127.0.0.1",
                                 .n_threads = 1,
                                 .n_connections_max = n + 1,
                                 .body_bytes_max = 1024,
                                 .early = early,
                                 .handle = handle,
                                 .arg = &t};
    int fds[N_BATCH + 1], blocker;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    sem_init(&t.inside, 0, 0);
    sem_init(&t.leave, 0, 0);
    assert_ok(http_create(&t.http, &config, &why));
    blocker = client(&t);
    for (uint32_t i = 0; i < n; i++) {
        fds[i] = client(&t);
        ask(fds[i], "/");
        wait_for_answer(fds[i]);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        ask(blocker, "/block");
        sem_wait(&t.inside);
        for (uint32_t i = 0; i < n; i++)
            ask(fds[i], "/");
        sem_post(&t.leave);
        wait_for_answer(blocker);
        for (uint32_t i = 0; i < n; i++)
            wait_for_answer(fds[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
    close(blocker);
    http_stop(t.http);
    http_destroy(t.http);
    sem_destroy(&t.inside);
    sem_destroy(&t.leave);
    buf_fini(&why);
}

static void a_full_batch_of_requests_is_answered(void **state)
{
    (void)state;
    ask_together(N_BATCH);
}

static void a_batch_that_is_not_full_is_answered(void **state)
{
    (void)state;
    ask_together(N_BATCH - 1);
    ask_together(N_BATCH + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_batch_of_requests_is_answered),
        cmocka_unit_test(a_batch_that_is_not_full_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
