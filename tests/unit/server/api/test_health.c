/* /health/ready over a socket, with the fake engine: 503 as soon as requests are not accepted. */
#include "tests/unit/server/server_test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http/http.h"
#include "server/api/route.h"

static struct server_test t;
static struct http_server *http;

static void open_test(void)
{
    struct buf why;

    server_test_open(&t, "");
    buf_init(&why, BUF_WHY_MAX);
    struct http_config config = {.host = "127.0.0.1",
                                 .n_threads = 1,
                                 .n_connections_max = 8,
                                 .body_bytes_max = 1u << 20,
                                 .early = route_early,
                                 .handle = route_handle,
                                 .arg = &t.srv};
    if (http_create(&http, &config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static void close_test(void)
{
    http_stop(http);
    engine_close(t.engine);
    http_destroy(http);
    server_fini(&t.srv);
}

/* Head and body of the answer. */
static const char *get(const char *path)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_port(http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char bytes[4096];
    size_t n_read = 0;
    ssize_t n;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int len = snprintf(bytes, sizeof bytes,
                       "GET %s HTTP/1.1\r\nHost: x\r\n"
                       "Connection: close\r\n\r\n",
                       path);
    assert_int_equal(write(fd, bytes, (size_t)len), len);
    while (n_read < sizeof bytes - 1 &&
           (n = read(fd, bytes + n_read, sizeof bytes - 1 - n_read)) > 0)
        n_read += (size_t)n;
    bytes[n_read] = '\0';
    close(fd);
    return bytes;
}

static void ready_goes_off_when_the_device_fails(void **state)
{
    const char *answer;

    (void)state;
    open_test();
    assert_non_null(strstr(get("/health/ready"), "HTTP/1.1 200"));
    atomic_store(&fake_failed, true);
    answer = get("/health/ready");
    assert_non_null(strstr(answer, "HTTP/1.1 503"));
    assert_non_null(strstr(answer, "device_failed"));
    assert_non_null(strstr(get("/health"), "HTTP/1.1 503"));
    assert_non_null(strstr(get("/health/live"), "HTTP/1.1 200")); /* the process still answers */
    atomic_store(&fake_failed, false);
    close_test();
}

static void ready_goes_off_while_draining(void **state)
{
    (void)state;
    open_test();
    atomic_store(&t.srv.draining, true);
    assert_non_null(strstr(get("/health/ready"), "HTTP/1.1 503"));
    assert_non_null(strstr(get("/health/live"), "HTTP/1.1 200"));
    close_test();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_goes_off_when_the_device_fails),
        cmocka_unit_test(ready_goes_off_while_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
