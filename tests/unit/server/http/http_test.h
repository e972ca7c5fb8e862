/* http_test.h - an HTTP server with the fake engine, and a client over a socket, for unit tests.
 *
 * Owns    server, engine and sockets; freed by http_test_close().
 * Thread  the test's; http_test_ask() opens a connection each time.
 * Errors  end the test.
 * Units   bytes. */
#ifndef TARN_TESTS_HTTP_TEST_H
#define TARN_TESTS_HTTP_TEST_H

#include "tests/unit/server/server_test.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/api/access.h"
#include "server/http/http.h"
#include "server/api/route.h"

struct http_test {
    struct server_test s;
    struct http_server *http;
    struct buf text; /* the last answer, head and body */
};

/* Start a server with one HTTP thread, so that a handler that blocks would block all requests. */
static inline void http_test_open(struct http_test *t, const char *model, const char *key_file,
                                  const char *admin_key)
{
    struct buf why;

    memset(t, 0, sizeof *t);
    t->s.config.model = (char *)(uintptr_t)model;
    t->s.config.served_model_name = (char *)(uintptr_t) "";
    t->s.config.api_key = (char *)(uintptr_t) "";
    t->s.config.api_key_file = (char *)(uintptr_t)key_file;
    t->s.config.admin_api_key = (char *)(uintptr_t)admin_key;
    t->s.config.max_body_bytes = 1u << 20;
    t->s.config.pool_name = (char *)(uintptr_t) "default";
    t->s.engine = fake_engine_create(100);
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&t->text, 8u << 20);
    assert_ok(server_init(&t->s.srv, &t->s.config, t->s.engine));
    struct http_config config = {.host = "127.0.0.1",
                                 .n_threads = 1,
                                 .n_connections_max = 8,
                                 .body_bytes_max = 1u << 20,
                                 .early = route_early,
                                 .handle = route_handle,
                                 .done = access_done,
                                 .arg = &t->s.srv};
    if (http_create(&t->http, &config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static inline void http_test_close(struct http_test *t)
{
    http_stop(t->http);
    engine_close(t->s.engine);
    http_destroy(t->http);
    server_fini(&t->s.srv);
    buf_fini(&t->text);
}

/* Send a request. Return the descriptor for its answer. body: JSON with ' for ", or "". */
static inline int http_test_send_body(const struct http_test *t, const char *method,
                                      const char *path, const char *key, const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_port(t->http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[2048];
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int head = snprintf(text, sizeof text,
                        "%s %s HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        method, path, key, strlen(body));
    int len = head + snprintf(text + head, sizeof text - (size_t)head, "%s", body);
    assert_true(len < (int)sizeof text);
    for (char *c = text + head; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    assert_int_equal(write(fd, text, (size_t)len), len);
    return fd;
}

static inline int http_test_send(const struct http_test *t, const char *method, const char *path,
                                 const char *key)
{
    return http_test_send_body(t, method, path, key, "");
}

/* Read the whole answer into t->text. */
static inline const char *http_test_read(struct http_test *t, int fd)
{
    char bytes[4096];
    ssize_t n;

    buf_reset(&t->text);
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        assert_ok(buf_append(&t->text, bytes, (size_t)n));
    close(fd);
    return buf_str(&t->text);
}

static inline const char *http_test_ask(struct http_test *t, const char *method, const char *path,
                                        const char *key)
{
    return http_test_read(t, http_test_send(t, method, path, key));
}

/* The body of the last answer; the caller owns a reference. */
static inline struct json *http_test_json(const struct http_test *t)
{
    const char *text = buf_str(&t->text), *body = strstr(text, "\r\n\r\n");
    struct json *j = NULL;

    assert_non_null(body);
    body += 4;
    assert_ok(js_parse(&j, body, t->text.len - (size_t)(body - text), NULL));
    return j;
}

#endif
