#include "tests/unit/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/http.h"
#include "tests/unit/clients/canned_server.h"
#include "tests/unit/test_clock.h"

#define MS 1000000ull
#define N_ORDER_MAX 64

/* The events of one call, and its behaviour in callbacks. */
struct seen {
    struct http_call *call;
    struct http_loop *loop;
    int n_heads, n_bodies, n_ends;
    int status;
    enum http_end end;
    char message[256];
    struct buf body;
    struct http_done done;
    uint64_t last_ns;
    size_t cancel_at; /* body bytes after which it hangs up */
    size_t pause_at;  /* or pauses, until the test resumes it */
    bool cancel_in_head;
    char header[64];
    const char *want_header;
};

static void on_head(void *arg, struct http_call *call, int status, uint64_t time_ns)
{
    struct seen *s = arg;
    const char *value = s->want_header ? http_call_header(call, s->want_header) : NULL;

    s->n_heads++;
    s->status = status;
    s->last_ns = time_ns;
    assert_int_equal(s->n_bodies + s->n_ends, 0);
    snprintf(s->header, sizeof s->header, "%s", value ? value : "(none)");
    if (s->cancel_in_head)
        http_call_cancel(call);
}

static void on_body(void *arg, struct http_call *call, const void *bytes, size_t n,
                    uint64_t time_ns)
{
    struct seen *s = arg;

    s->n_bodies++;
    assert_int_equal(s->n_heads, 1);
    assert_int_equal(s->n_ends, 0);
    assert_true(time_ns >= s->last_ns && time_ns <= clock_now_ns());
    s->last_ns = time_ns;
    assert_ok(buf_append(&s->body, bytes, n));
    if (s->cancel_at && s->body.len >= s->cancel_at)
        http_call_cancel(call);
    if (s->pause_at && s->body.len >= s->pause_at) {
        s->pause_at = 0;
        http_call_pause(call, true);
    }
}

static void on_end(void *arg, struct http_call *call, const struct http_done *done)
{
    struct seen *s = arg;

    assert_int_equal(++s->n_ends, 1);
    s->end = done->end;
    s->done = *done;
    snprintf(s->message, sizeof s->message, "%s", done->message);
    http_call_cancel(call); /* too late, and harmless */
    http_call_pause(call, true);
}

static const struct http_handlers handlers = {on_head, on_body, on_end};

static void begin(struct seen *s, struct http_loop *loop, const struct http_request *r)
{
    s->loop = loop;
    buf_init(&s->body, 64u << 20);
    assert_ok(http_call_start(&s->call, loop, r, &handlers, s, NULL));
    assert_int_equal(s->n_heads + s->n_bodies + s->n_ends, 0); /* nothing from inside of start */
}

static void run(struct seen *s, const struct http_request *r)
{
    struct http_loop *loop;

    assert_ok(http_loop_create(&loop, NULL));
    begin(s, loop, r);
    assert_ok(http_loop_run(loop));
    assert_int_equal(s->n_ends, 1);
    http_loop_destroy(loop);
}

/* Answer one request with a canned answer; return the events. `r` without a url. */
static struct seen ask(const struct canned *answer, struct http_request r, struct seen s)
{
    struct canned_server *server = canned_start(answer, 1);

    r.url = canned_url(server);
    run(&s, &r);
    canned_stop(server);
    return s;
}

#define ASK(text_, then_)                                                                          \
    ask(&(struct canned){.text = (text_), .then = (then_)}, (struct http_request){0},              \
        (struct seen){0})

static void expect(struct seen *s, enum http_end end, const char *words)
{
    if (s->end != end || !strstr(s->message, words))
        fail_msg("%s: %s, expected %s: %s", http_end_name(s->end), s->message, http_end_name(end),
                 words);
    buf_fini(&s->body);
}

#define OK_HEAD "HTTP/1.1 200 OK\r\n"
#define LENGTH(n) "Content-Length: " #n "\r\n"

static void a_whole_answer_comes_through(void **state)
{
    (void)state;
    struct seen s = ask(&(struct canned){.text = OK_HEAD LENGTH(5) "X-A: 1\r\nx-a:  two \r\n"
                                                                   "\r\nhello",
                                         .then = CANNED_HOLD},
                        (struct http_request){0}, (struct seen){.want_header = "X-a"});
    assert_int_equal(s.status, 200);
    assert_string_equal(buf_str(&s.body), "hello");
    assert_string_equal(s.header, "two ");
    assert_true(s.done.start_ns < s.done.ready_ns && s.done.ready_ns < s.done.head_ns &&
                s.done.head_ns <= s.done.end_ns);
    assert_int_equal(s.done.n_body_bytes, 5);
    assert_false(s.done.reused);
    expect(&s, HTTP_END_OK, "");
}

static void a_body_may_be_split_at_any_byte(void **state)
{
    static const char text[] = OK_HEAD "Transfer-Encoding: chunked\r\n\r\n"
                                       "3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nTrailer: t\r\n\r\n";

    (void)state;
    struct seen s = ask(&(struct canned){.text = text, .split = 1, .split_ms = 1},
                        (struct http_request){0}, (struct seen){.want_header = "trailer"});
    assert_string_equal(buf_str(&s.body), "abcd");
    assert_string_equal(s.header, "(none)");
    assert_true(s.n_bodies >= 2);
    expect(&s, HTTP_END_OK, "");
}

static void interim_answers_are_skipped(void **state)
{
    (void)state;
    struct seen s = ask(&(struct canned){.text = "HTTP/1.1 103 Early Hints\r\nX-A: early\r\n\r\n"
                                                 "HTTP/1.1 404 No\r\n" LENGTH(2) "\r\nno"},
                        (struct http_request){0}, (struct seen){.want_header = "x-a"});
    assert_int_equal(s.status, 404);
    assert_string_equal(s.header, "(none)");
    expect(&s, HTTP_END_OK, "");
}

static void redirects_are_not_followed(void **state)
{
    (void)state;
    struct seen s = ASK("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n" LENGTH(0) "\r\n",
                        CANNED_HOLD);
    assert_int_equal(s.status, 302);
    expect(&s, HTTP_END_OK, "");
}

static void each_way_to_fail_has_its_name(void **state)
{
    struct seen s;

    (void)state;
    s = ASK("", CANNED_CLOSE);
    expect(&s, HTTP_END_CLOSED, "mpty");
    s = ASK(OK_HEAD LENGTH(50) "\r\nhello", CANNED_CLOSE);
    assert_string_equal(s.done.status == 200 ? "200" : "", "200");
    expect(&s, HTTP_END_CLOSED, "remaining");
    s = ASK(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\nhel", CANNED_CLOSE);
    expect(&s, HTTP_END_CLOSED, "remaining");
    s = ask(&(struct canned){.text = OK_HEAD LENGTH(50) "\r\nhello",
                             .then = CANNED_RESET,
                             .then_ms = 20},
            (struct http_request){0}, (struct seen){0});
    expect(&s, HTTP_END_RESET, "reset");
    s = ASK("SSH-2.0-OpenSSH_9\r\n", CANNED_CLOSE);
    expect(&s, HTTP_END_PROTOCOL, "");
    s = ASK(OK_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", CANNED_CLOSE);
    assert_true(s.end == HTTP_END_PROTOCOL || s.end == HTTP_END_RESET);
    buf_fini(&s.body);
    s = (struct seen){0};
    run(&s, &(struct http_request){.url = "http://127.0.0.1:1/"});
    expect(&s, HTTP_END_CONNECT, "onnect");
    s = (struct seen){0};
    run(&s, &(struct http_request){.url = "http://no-such-host.invalid/"});
    expect(&s, HTTP_END_CONNECT, "resolve");
    s = (struct seen){0};
    run(&s, &(struct http_request){.url = "http://localhost", .unix_path = "/tmp/none/such"});
    expect(&s, HTTP_END_CONNECT, "");
    s = ask(&(struct canned){.text = "no TLS at all\r\n\r\n", .then = CANNED_CLOSE},
            (struct http_request){0}, (struct seen){0});
    expect(&s, HTTP_END_PROTOCOL, "");
}

static void a_server_without_tls_fails_as_tls(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(0) "\r\n", .then = CANNED_CLOSE};
    struct canned_server *server = canned_start(&answer, 1);
    struct seen s = {0};
    char url[64];

    (void)state;
    snprintf(url, sizeof url, "https%s", canned_url(server) + 4);
    run(&s, &(struct http_request){.url = url, .connect_timeout_ms = 300});
    assert_true(s.end == HTTP_END_TLS || s.end == HTTP_END_TIMEOUT);
    buf_fini(&s.body);
    canned_stop(server);
}

/* A call under a clock that only the test advances. */
struct timed {
    struct canned_server *server;
    struct http_loop *loop;
    struct seen s;
};

static void step_until_n_bytes(struct timed *t, size_t n)
{
    while (t->s.body.len < n && t->s.n_ends == 0)
        assert_ok(http_loop_step(t->loop, 0));
    assert_int_equal(t->s.body.len, n);
}

/* Start the call and stop the clock once the server has the request. */
static void timed_begin(struct timed *t, const struct canned *answer, struct http_request r)
{
    *t = (struct timed){.server = canned_start(answer, 1)};
    r.url = canned_url(t->server);
    assert_ok(http_loop_create(&t->loop, NULL));
    begin(&t->s, t->loop, &r);
    while (!canned_has_request(t->server))
        assert_ok(http_loop_step(t->loop, MS));
    assert_ok(http_loop_step(t->loop, 0));
    test_clock_stop();
}

static void timed_advance(struct timed *t, uint64_t ms)
{
    test_clock_advance(ms * MS);
    assert_ok(http_loop_step(t->loop, 0));
}

static void timed_end(struct timed *t, enum http_end end, const char *words)
{
    assert_int_equal(t->s.n_ends, 1);
    expect(&t->s, end, words);
    http_loop_destroy(t->loop);
    test_clock_resume();
    canned_stop(t->server);
}

static void the_total_timeout_ends_a_silent_call(void **state)
{
    static const struct canned silent = {.text = "", .then = CANNED_HOLD};
    struct timed t;

    (void)state;
    timed_begin(&t, &silent, (struct http_request){.total_timeout_ms = 600000});
    timed_advance(&t, 300000);
    assert_int_equal(t.s.n_ends, 0);
    timed_advance(&t, 300000);
    timed_end(&t, HTTP_END_TIMEOUT, "not finished after 600000 ms");
}

static void the_idle_timeout_ends_a_call_without_bytes(void **state)
{
    static const struct canned silent = {.text = "", .then = CANNED_HOLD};
    static const struct canned half = {.text = OK_HEAD LENGTH(9) "\r\nabc", .then = CANNED_HOLD};
    struct timed t;

    (void)state;
    timed_begin(&t, &silent, (struct http_request){.idle_timeout_ms = 600000});
    timed_advance(&t, 300000);
    assert_int_equal(t.s.n_ends, 0);
    timed_advance(&t, 300000);
    timed_end(&t, HTTP_END_TIMEOUT, "no byte came for 600000 ms");
    timed_begin(&t, &half, (struct http_request){.idle_timeout_ms = 600000});
    step_until_n_bytes(&t, 3);
    timed_advance(&t, 599999);
    assert_int_equal(t.s.n_ends, 0);
    timed_advance(&t, 1);
    assert_string_equal(buf_str(&t.s.body), "abc");
    timed_end(&t, HTTP_END_TIMEOUT, "no byte");
}

static void slow_bytes_are_not_idle_and_the_total_timeout_counts(void **state)
{
    static const struct canned slow = {.text = OK_HEAD LENGTH(6) "\r\nabcdef",
                                       .split = 1,
                                       .gate_at = sizeof OK_HEAD LENGTH(6) "\r\n" - 1,
                                       .then = CANNED_HOLD};
    static const struct http_request limits[] = {
        {.idle_timeout_ms = 600000},
        {.idle_timeout_ms = 600000, .total_timeout_ms = 1500000},
    };
    struct timed t;

    (void)state;
    for (int i = 0; i < 2; i++) {
        timed_begin(&t, &slow, limits[i]);
        for (size_t n = 1; n <= 6 && t.s.n_ends == 0; n++) {
            canned_release(t.server);
            step_until_n_bytes(&t, n);
            if (n < 6)
                timed_advance(&t, 400000);
        }
        while (t.s.n_ends == 0)
            assert_ok(http_loop_step(t.loop, 0));
        assert_int_equal(t.s.body.len, i == 0 ? 6 : 4);
        timed_end(&t, i == 0 ? HTTP_END_OK : HTTP_END_TIMEOUT, i == 0 ? "" : "not finished");
    }
}

static void limits_hold(void **state)
{
    static char head[70000];
    struct seen s;

    (void)state;
    s = ask(&(struct canned){.text = OK_HEAD LENGTH(6) "\r\nabcdef", .then = CANNED_HOLD},
            (struct http_request){.body_bytes_max = 5}, (struct seen){0});
    assert_int_equal(s.body.len, 0);
    expect(&s, HTTP_END_TOO_LARGE, "body");
    s = ask(&(struct canned){.text = OK_HEAD LENGTH(6) "\r\nabcdef", .then = CANNED_HOLD},
            (struct http_request){.body_bytes_max = 6}, (struct seen){0});
    expect(&s, HTTP_END_OK, "");
    strcpy(head, OK_HEAD);
    for (size_t n = strlen(head); n + 40 < sizeof head; n = strlen(head))
        snprintf(head + n, sizeof head - n, "X-Long: 0123456789012345678901\r\n");
    s = ASK(head, CANNED_HOLD);
    assert_int_equal(s.n_heads, 0);
    expect(&s, HTTP_END_TOO_LARGE, "headers");
    static char line[300000];
    memset(line, 'x', sizeof line - 1);
    memcpy(line, OK_HEAD "X:", strlen(OK_HEAD "X:"));
    s = ASK(line, CANNED_HOLD);
    expect(&s, HTTP_END_TOO_LARGE, "header");
}

static void a_cancelled_call_says_nothing_more(void **state)
{
    static const struct canned slow = {
        .text = OK_HEAD LENGTH(100) "\r\nabcdefghijklmnopq", .split = 1, .then = CANNED_HOLD};
    struct seen s;

    (void)state;
    s = ask(&slow, (struct http_request){0}, (struct seen){.cancel_at = 3});
    assert_true(s.body.len >= 3 && s.body.len <= 17);
    assert_int_equal(s.status, 200);
    expect(&s, HTTP_END_CANCELLED, "cancelled");
    s = ask(&slow, (struct http_request){0}, (struct seen){.cancel_in_head = true});
    assert_int_equal(s.n_bodies, 0);
    expect(&s, HTTP_END_CANCELLED, "");
}

static void a_call_may_be_cancelled_before_it_began(void **state)
{
    struct http_loop *loop;
    struct seen s = {0};

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    begin(&s, loop, &(struct http_request){.url = "http://127.0.0.1:1"});
    http_call_cancel(s.call);
    http_call_cancel(s.call);
    assert_int_equal(s.n_ends, 0);
    assert_ok(http_loop_run(loop));
    assert_int_equal(s.n_ends, 1);
    expect(&s, HTTP_END_CANCELLED, "");
    http_loop_destroy(loop);
}

static void what_cannot_be_asked_is_refused_at_once(void **state)
{
    static const char *const split[] = {"X: a\r\nY: b"}, *const no_colon[] = {"X"};
    static const struct http_request bad[] = {
        {.url = NULL},
        {.url = "ftp://a/"},
        {.url = "http://"},
        {.url = "http://a b/"},
        {.url = "http://a:99999/"},
        {.url = "http://a/\n"},
        {.url = "http://a/", .headers = split, .n_headers = 1},
        {.url = "http://a/", .headers = no_colon, .n_headers = 1},
        {.url = "http://a/", .api_key = "a\r\nb"},
        {.url = "http://a/", .method = "GET / HTTP/1.1\r\n"},
    };
    struct http_loop *loop;
    struct http_call *call;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(http_loop_create(&loop, NULL));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        buf_reset(&why);
        if (http_call_start(&call, loop, &bad[i], &handlers, NULL, &why) != ERR_INVALID)
            fail_msg("case %zu was taken", i);
        assert_null(call);
        assert_true(why.len > 0);
    }
    assert_ok(http_loop_run(loop)); /* nothing to do */
    http_loop_destroy(loop);
    buf_fini(&why);
}

static void a_request_is_sent_as_asked(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(0) "\r\n", .then = CANNED_CLOSE};
    static const char *const headers[] = {"X-One: 1", "X-Two: 2"};
    struct canned_server *server = canned_start(&answer, 1);
    char url[128];
    struct seen s = {0};

    (void)state;
    snprintf(url, sizeof url, "%s/a/b?c=d", canned_url(server));
    run(&s, &(struct http_request){.url = url,
                                   .api_key = "sk-1",
                                   .headers = headers,
                                   .n_headers = 2,
                                   .body = "{\"a\":1}",
                                   .body_len = 7});
    expect(&s, HTTP_END_OK, "");
    const char *sent = canned_requests(server);
    static const char *const wanted[] = {"POST /a/b?c=d HTTP/1.1\r\n",
                                         "\r\nX-One: 1\r\n",
                                         "\r\nX-Two: 2\r\n",
                                         "\r\nAuthorization: Bearer sk-1\r\n",
                                         "\r\nContent-Type: application/json\r\n",
                                         "\r\nContent-Length: 7\r\n",
                                         "\r\n\r\n{\"a\":1}"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(sent, wanted[i]))
            fail_msg("%s lacks %s", sent, wanted[i]);
    assert_null(strstr(sent, "Expect"));
    canned_stop(server);
}

static void a_large_body_goes_out_whole(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(0) "\r\n", .then = CANNED_CLOSE};
    struct canned_server *server = canned_start(&answer, 1);
    size_t n = 5u << 20;
    char *body = malloc(n);
    struct seen s = {0};

    (void)state;
    assert_non_null(body);
    memset(body, 'b', n);
    run(&s, &(struct http_request){.url = canned_url(server), .body = body, .body_len = n});
    expect(&s, HTTP_END_OK, "");
    const char *at = strstr(canned_requests(server), "\r\n\r\n");
    assert_non_null(at);
    assert_int_equal(strlen(at + 4), n);
    free(body);
    canned_stop(server);
}

static void connections_are_reused_unless_fresh_is_asked(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(2) "\r\nok", .then = CANNED_NEXT};
    struct canned_server *server = canned_start(&answer, 1);
    struct http_loop *loop;
    struct http_loop_stats st;

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    for (int i = 0; i < 4; i++) {
        struct seen s = {0};
        begin(&s, loop,
              &(struct http_request){.url = canned_url(server), .fresh_connection = i == 2});
        /* The canned server serves one connection at a time: end the kept one first. */
        if (i == 2) {
            http_call_cancel(s.call);
            assert_ok(http_loop_run(loop));
            buf_fini(&s.body);
            continue;
        }
        assert_ok(http_loop_run(loop));
        assert_int_equal(s.done.reused, i > 0);
        expect(&s, HTTP_END_OK, "");
    }
    http_loop_stats(loop, &st);
    assert_int_equal(st.n_connections, 1);
    assert_int_equal(st.n_started, 4);
    assert_int_equal(st.n_ended, 4);
    assert_int_equal(st.n_calls, 0);
    http_loop_destroy(loop);
    canned_stop(server);

    server = canned_start(&answer, 1);
    assert_ok(http_loop_create(&loop, NULL));
    for (int i = 0; i < 3; i++) {
        struct seen s = {0};
        begin(&s, loop,
              &(struct http_request){.url = canned_url(server), .fresh_connection = true});
        assert_ok(http_loop_run(loop));
        assert_false(s.done.reused);
        expect(&s, HTTP_END_OK, "");
    }
    assert_int_equal(canned_n_connections(server), 3);
    http_loop_destroy(loop);
    canned_stop(server);
}

static void a_paused_call_stalls_its_server(void **state)
{
    static char text[100000];
    static const char head[] = OK_HEAD "Connection: close\r\n\r\n";
    struct canned answer = {.text = text, .repeat = 400, .then = CANNED_CLOSE};
    struct timed t;

    (void)state;
    memset(text, 'z', sizeof text - 1);
    memcpy(text, head, strlen(head)); /* repeated it is body */
    t = (struct timed){.server = canned_start(&answer, 1), .s.pause_at = 1};
    assert_ok(http_loop_create(&t.loop, NULL));
    begin(&t.s, t.loop,
          &(struct http_request){.url = canned_url(t.server), .idle_timeout_ms = 600000});
    while (t.s.n_bodies == 0)
        assert_ok(http_loop_step(t.loop, 10 * MS));
    test_clock_stop();
    int n_bodies = t.s.n_bodies;
    size_t n_written;
    do { /* until the server's writes have stalled */
        n_written = canned_n_written(t.server);
        for (int i = 0; i < 50; i++) {
            assert_ok(http_loop_step(t.loop, 0));
            clock_sleep_ns(MS);
        }
    } while (canned_n_written(t.server) > n_written);
    assert_int_equal(t.s.n_bodies, n_bodies); /* nothing came while paused */
    assert_true(n_written < 40u * 1000 * 1000 / 2);
    timed_advance(&t, 900000); /* the pause is no idleness */
    assert_int_equal(t.s.n_ends, 0);
    http_call_pause(t.s.call, false);
    while (t.s.n_ends == 0)
        assert_ok(http_loop_step(t.loop, 0));
    assert_int_equal(t.s.body.len, 400 * (sizeof text - 1) - strlen(head));
    timed_end(&t, HTTP_END_OK, "");
}

static void a_paused_call_can_be_cancelled(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(90) "\r\nabc", .then = CANNED_HOLD};
    struct canned_server *server = canned_start(&answer, 1);
    struct http_loop *loop;
    struct seen s = {.pause_at = 1};

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    begin(&s, loop, &(struct http_request){.url = canned_url(server)});
    while (s.n_bodies == 0)
        assert_ok(http_loop_step(loop, 10 * MS));
    http_call_cancel(s.call);
    assert_ok(http_loop_step(loop, 0));
    assert_int_equal(s.n_ends, 1);
    expect(&s, HTTP_END_CANCELLED, "");
    http_loop_destroy(loop);
    canned_stop(server);
}

static void a_unix_socket_will_do(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(2) "\r\nok", .then = CANNED_CLOSE};
    char path[64];
    struct seen s = {0};

    (void)state;
    snprintf(path, sizeof path, "/tmp/tarn-test-http-%d.sock", (int)getpid());
    struct canned_server *server = canned_start_unix(path, &answer, 1);
    run(&s, &(struct http_request){.url = canned_url(server), .unix_path = path});
    assert_string_equal(buf_str(&s.body), "ok");
    expect(&s, HTTP_END_OK, "");
    canned_stop(server);
    unlink(path);
}

static void waiting_calls_give_the_answer_or_the_reason(void **state)
{
    static const struct canned answer = {.text = "HTTP/1.1 503 Busy\r\n" LENGTH(4) "\r\nbusy",
                                         .then = CANNED_CLOSE};
    struct canned_server *server = canned_start(&answer, 1);
    struct http_answer a;

    (void)state;
    assert_ok(http_get(&a, canned_url(server)));
    assert_int_equal(a.status, 503);
    assert_string_equal(buf_str(&a.body), "busy");
    http_answer_fini(&a);
    assert_ok(http_post(&a, canned_url(server), "{}", 2));
    assert_int_equal(a.status, 503);
    http_answer_fini(&a);
    assert_int_equal(
        http_fetch(&a, &(struct http_request){.url = canned_url(server), .body_bytes_max = 3}),
        ERR_TOO_LARGE);
    assert_int_equal(a.end, HTTP_END_TOO_LARGE);
    http_answer_fini(&a);
    assert_int_equal(http_get(&a, "http://127.0.0.1:1"), ERR_IO);
    assert_int_equal(a.end, HTTP_END_CONNECT);
    assert_true(a.message[0] != '\0');
    http_answer_fini(&a);
    assert_int_equal(http_get(&a, "gopher://x"), ERR_INVALID);
    http_answer_fini(&a);
    canned_stop(server);
}

/* --- timers --- */

struct order {
    struct http_loop *loop;
    int seen[N_ORDER_MAX];
    int n;
    uint64_t began_ns;
};

struct tick {
    struct order *order;
    int number;
    struct http_timer *victim;
};

static void note(void *arg, uint64_t due_ns)
{
    struct tick *t = arg;

    assert_true(clock_now_ns() >= due_ns);
    t->order->seen[t->order->n++] = t->number;
    http_timer_cancel(t->order->loop, t->victim);
}

static void timers_run_in_order_and_never_early(void **state)
{
    static const int delays_ms[] = {30, 10, 20, 10, 0, 30, 5, 10};
    static const int wanted[] = {4, 6, 1, 3, 7, 2, 0}; /* 5 is cancelled by 0 */
    struct order o = {0};
    struct tick ticks[8];
    struct http_timer *timers[8];
    struct http_loop_stats st;
    uint64_t now = clock_now_ns();

    (void)state;
    assert_ok(http_loop_create(&o.loop, NULL));
    for (int i = 0; i < 8; i++) {
        ticks[i] = (struct tick){&o, i, NULL};
        assert_ok(http_timer_start(&timers[i], o.loop, now + (uint64_t)delays_ms[i] * MS, note,
                                   &ticks[i]));
    }
    ticks[0].victim = timers[5];
    assert_ok(http_loop_run(o.loop));
    assert_int_equal(o.n, 7);
    assert_memory_equal(o.seen, wanted, sizeof wanted);
    http_loop_stats(o.loop, &st);
    assert_int_equal(st.n_lags, 7);
    assert_int_equal(st.lag_s.n, 7);
    assert_true(st.lag_ns_max * 7 >= st.lag_ns_sum);
    http_loop_destroy(o.loop);
}

/* Random times, most of them cancelled: the others run in the order of time, then of start. */
static void many_timers_keep_their_order(void **state)
{
    enum { N = 2000 };
    static struct tick ticks[N];
    static struct http_timer *timers[N];
    struct http_loop *loop;
    static uint64_t due[N];
    uint64_t x = 88172645463325252ull, now = clock_now_ns();

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    struct order o = {.loop = loop};
    int n_left = 0;
    for (int i = 0; i < N; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        due[i] = now - 1000 * MS + x % 1000;
        ticks[i] = (struct tick){&o, i, NULL};
        assert_ok(http_timer_start(&timers[i], loop, due[i], note, &ticks[i]));
    }
    for (int i = 0; i < N; i++) {
        if (i % 40 != 0) {
            http_timer_cancel(loop, timers[i]);
            continue;
        }
        n_left++;
    }
    assert_ok(http_loop_run(loop));
    assert_int_equal(o.n, n_left);
    for (int i = 1; i < o.n; i++)
        assert_true(due[o.seen[i - 1]] < due[o.seen[i]] ||
                    (due[o.seen[i - 1]] == due[o.seen[i]] && o.seen[i - 1] < o.seen[i]));
    http_loop_destroy(loop);
}

static void *stop_soon(void *arg)
{
    clock_sleep_ns(30 * MS);
    http_loop_stop(arg);
    return NULL;
}

static void never(void *arg, uint64_t due_ns)
{
    (void)arg;
    (void)due_ns;
    fail_msg("a timer ran that lies in the far future");
}

static void another_thread_can_stop_the_loop(void **state)
{
    struct http_loop *loop;
    pthread_t thread;

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    assert_ok(http_timer_start(NULL, loop, clock_now_ns() + 3600 * 1000 * MS, never, NULL));
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, loop), 0);
    assert_ok(http_loop_run(loop));
    pthread_join(thread, NULL);
    assert_ok(http_loop_step(loop, 0)); /* and it goes on */
    http_loop_destroy(loop);
}

static void a_loop_may_go_while_calls_run(void **state)
{
    static const struct canned answer = {.text = OK_HEAD LENGTH(90) "\r\nabc", .then = CANNED_HOLD};
    struct canned_server *server = canned_start(&answer, 1);
    struct http_loop *loop;
    struct seen s[3] = {{0}};

    (void)state;
    assert_ok(http_loop_create(&loop, NULL));
    begin(&s[0], loop, &(struct http_request){.url = canned_url(server), .idle_timeout_ms = 9999});
    while (s[0].n_bodies == 0)
        assert_ok(http_loop_step(loop, 10 * MS));
    begin(&s[1], loop, &(struct http_request){.url = canned_url(server)});
    http_call_cancel(s[1].call);
    begin(&s[2], loop, &(struct http_request){.url = canned_url(server)});
    http_loop_destroy(loop);
    assert_int_equal(s[0].n_ends + s[1].n_ends + s[2].n_ends, 0);
    for (int i = 0; i < 3; i++)
        buf_fini(&s[i].body);
    canned_stop(server);
}

static void names_are_words(void **state)
{
    (void)state;
    for (int i = 0; i < HTTP_END_COUNT; i++)
        assert_true(strlen(http_end_name((enum http_end)i)) >= 2);
    assert_string_equal(http_end_name((enum http_end) - 1), "?");
    assert_true(http_raise_descriptor_limit() >= 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_answer_comes_through),
        cmocka_unit_test(a_body_may_be_split_at_any_byte),
        cmocka_unit_test(interim_answers_are_skipped),
        cmocka_unit_test(redirects_are_not_followed),
        cmocka_unit_test(each_way_to_fail_has_its_name),
        cmocka_unit_test(a_server_without_tls_fails_as_tls),
        cmocka_unit_test(the_total_timeout_ends_a_silent_call),
        cmocka_unit_test(the_idle_timeout_ends_a_call_without_bytes),
        cmocka_unit_test(slow_bytes_are_not_idle_and_the_total_timeout_counts),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_cancelled_call_says_nothing_more),
        cmocka_unit_test(a_call_may_be_cancelled_before_it_began),
        cmocka_unit_test(what_cannot_be_asked_is_refused_at_once),
        cmocka_unit_test(a_request_is_sent_as_asked),
        cmocka_unit_test(a_large_body_goes_out_whole),
        cmocka_unit_test(connections_are_reused_unless_fresh_is_asked),
        cmocka_unit_test(a_paused_call_stalls_its_server),
        cmocka_unit_test(a_paused_call_can_be_cancelled),
        cmocka_unit_test(a_unix_socket_will_do),
        cmocka_unit_test(waiting_calls_give_the_answer_or_the_reason),
        cmocka_unit_test(timers_run_in_order_and_never_early),
        cmocka_unit_test(many_timers_keep_their_order),
        cmocka_unit_test(another_thread_can_stop_the_loop),
        cmocka_unit_test(a_loop_may_go_while_calls_run),
        cmocka_unit_test(names_are_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
