/* The whole client against canned answers: how each end is named, and what callbacks are owed. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/http.h"
#include "clients/c/tarn_client.h"
#include "tests/unit/clients/canned_server.h"
#include "tests/unit/test_clock.h"

#define NS_PER_S UINT64_C(1000000000)
#define SSE_HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
#define CHUNK(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define FINISH "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define USAGE                                                                                      \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"                \
    "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n"
#define DONE "data: [DONE]\n\n"
#define JSON_HEAD(status, n)                                                                       \
    "HTTP/1.1 " status "\r\nContent-Type: application/json; charset=x"                             \
    "\r\nX-Request-Id: r-1\r\nContent-Length: " #n "\r\n\r\n"

struct seen {
    struct tarn_call *call;
    int n_heads, n_ends;
    struct buf text;
    struct tarn_result result;
    char message[256], code[64], request_id[64], body[256];
    int n_chunks, cancel_at; /* hangs up in the n-th chunk */
    bool pause;
    uint64_t last_ns;
};

static void on_head(void *arg, struct tarn_call *call, int http_status, uint64_t time_ns)
{
    struct seen *s = arg;

    (void)call;
    (void)time_ns;
    assert_true(http_status >= 200);
    s->n_heads++;
}

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk)
{
    struct seen *s = arg;

    assert_int_equal(s->n_ends, 0);
    assert_true(chunk->time_ns >= s->last_ns);
    s->last_ns = chunk->time_ns;
    assert_ok(buf_append(&s->text, chunk->text, chunk->text_len));
    s->n_chunks++;
    if (s->n_chunks == s->cancel_at)
        tarn_call_cancel(call);
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct seen *s = arg;

    s->n_ends++;
    s->result = *r;
    snprintf(s->message, sizeof s->message, "%s", r->message);
    snprintf(s->code, sizeof s->code, "%s", r->code);
    snprintf(s->request_id, sizeof s->request_id, "%s", r->request_id);
    snprintf(s->body, sizeof s->body, "%s", r->body);
    tarn_call_cancel(call); /* too late, and harmless */
    tarn_call_pause(call, true);
}

static const struct tarn_handlers handlers = {on_head, on_chunk, on_end};

static struct tarn_client *make_client(const char *url, struct tarn_client_config config)
{
    struct tarn_client *client;

    config.url = url;
    assert_int_equal(tarn_client_create(&client, &config, NULL, 0), TARN_OK);
    return client;
}

static void make_body(struct tarn_body *body, enum tarn_kind kind, bool stream)
{
    static const struct tarn_message hello[] = {{"user", {"Hi", 0}}};
    struct tarn_request r;

    tarn_request_init(&r, kind);
    r.messages = hello;
    r.n_messages = 1;
    r.prompt = (struct tarn_text){"Hi", 0};
    r.stream = stream;
    assert_int_equal(tarn_body_build(body, &r, NULL, 0), TARN_OK);
}

static struct seen call_url(const char *url, struct tarn_client_config config, bool stream,
                            int cancel_at)
{
    struct tarn_client *client = make_client(url, config);
    struct seen s = {.cancel_at = cancel_at};
    struct http_loop *loop;
    struct tarn_body body;

    buf_init(&s.text, 1 << 20);
    make_body(&body, TARN_CHAT, stream);
    assert_ok(http_loop_create(&loop, NULL));
    assert_int_equal(tarn_call_start(&s.call, loop, client, &body, &handlers, &s), TARN_OK);
    assert_int_equal(s.n_ends, 0);
    assert_ok(http_loop_run(loop));
    assert_int_equal(s.n_ends, 1);
    http_loop_destroy(loop);
    tarn_body_fini(&body);
    tarn_client_destroy(client);
    return s;
}

static struct seen call(const struct canned *answer, struct tarn_client_config config, bool stream,
                        int cancel_at)
{
    struct canned_server *server = canned_start(answer, 1);
    struct seen s = call_url(canned_url(server), config, stream, cancel_at);

    canned_stop(server);
    return s;
}

#define CALL(text_, then_)                                                                         \
    call(&(struct canned){.text = (text_), .then = (then_), .then_ms = 20},                        \
         (struct tarn_client_config){0}, true, 0)

static void expect(struct seen *s, enum tarn_error e, const char *text, const char *words)
{
    if (s->result.error != e || strcmp(buf_str(&s->text), text) != 0 || !strstr(s->message, words))
        fail_msg("%s: \"%s\", text \"%s\"; expected %s: \"%s\", text \"%s\"",
                 tarn_error_name(s->result.error), s->message, buf_str(&s->text),
                 tarn_error_name(e), words, text);
    assert_int_equal(s->result.n_chunks, s->n_chunks);
    buf_fini(&s->text);
}

static void a_stream_comes_through_at_every_split(void **state)
{
    static const char text[] = SSE_HEAD ": hello\n\n" CHUNK("a") CHUNK("b") FINISH USAGE DONE;
    static const size_t splits[] = {0, 1, 7};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct seen s = call(&(struct canned){.text = text, .split = splits[i]},
                             (struct tarn_client_config){0}, true, 0);
        assert_int_equal(s.n_heads, 1);
        assert_int_equal(s.n_chunks, 3);
        assert_int_equal(s.result.n_deltas, 2);
        assert_int_equal(s.result.usage.prompt_tokens, 3);
        assert_int_equal(s.result.usage.completion_tokens, 2);
        assert_int_equal(s.result.usage.cached_tokens, 1);
        assert_string_equal(s.result.finish_reason, "stop");
        assert_true(s.result.start_ns < s.result.ready_ns && s.result.ready_ns < s.result.head_ns &&
                    s.result.head_ns <= s.result.first_ns &&
                    s.result.first_ns <= s.result.last_ns && s.result.last_ns <= s.result.end_ns);
        expect(&s, TARN_OK, "ab", "");
    }
}

/* The head arrives first, then each cut of the stream in two writes. */
static void a_stream_may_be_cut_at_every_byte(void **state)
{
    static const char stream[] = CHUNK("x") "data: {\"choices\":[],\r\ndata: \"usage\":null}"
                                            "\r\n\r\n" FINISH DONE;
    char text[2048];
    size_t head = strlen(SSE_HEAD), n = sizeof stream - 1;

    (void)state;
    for (size_t cut = 1; cut < n; cut += 3) {
        snprintf(text, sizeof text, "%s%s", SSE_HEAD, stream);
        struct seen s = call(
            &(struct canned){.text = text, .len = head + n, .split = head + cut, .split_ms = 1},
            (struct tarn_client_config){0}, true, 0);
        expect(&s, TARN_OK, "x", "");
    }
}

static void a_whole_answer_comes_through(void **state)
{
    static const char json[] = "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":"
                               "\"Hello\"},\"finish_reason\":\"stop\"}]}";
    char text[512];
    struct seen s;

    (void)state;
    snprintf(text, sizeof text,
             "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(json), json);
    s = call(&(struct canned){.text = text}, (struct tarn_client_config){0}, false, 0);
    expect(&s, TARN_OK, "Hello", "");
    /* Also where a stream was asked for. */
    s = call(&(struct canned){.text = text}, (struct tarn_client_config){0}, true, 0);
    expect(&s, TARN_OK, "Hello", "");
    s = call(&(struct canned){.text = text}, (struct tarn_client_config){0}, true, 1);
    expect(&s, TARN_ERR_CANCELLED, "Hello", "cancelled");
}

static void each_way_to_fail_has_its_kind(void **state)
{
    struct seen s;

    (void)state;
    s = CALL(SSE_HEAD CHUNK("a"), CANNED_CLOSE);
    expect(&s, TARN_ERR_TRUNCATED, "a", "[DONE]");
    s = CALL(SSE_HEAD CHUNK("a") "data: {\"cho", CANNED_CLOSE);
    expect(&s, TARN_ERR_TRUNCATED, "a", "inside an event");
    s = CALL("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:", CANNED_CLOSE);
    expect(&s, TARN_ERR_TRUNCATED, "", "");
    s = CALL("", CANNED_CLOSE);
    expect(&s, TARN_ERR_RESET, "", "mpty");
    s = CALL(SSE_HEAD CHUNK("a"), CANNED_RESET);
    expect(&s, TARN_ERR_RESET, "a", "reset");
    s = CALL(SSE_HEAD CHUNK("a") DONE, CANNED_RESET); /* all was said */
    expect(&s, TARN_OK, "a", "");
    s = CALL(SSE_HEAD CHUNK("a") "data: {\"oops\n\n" CHUNK("b"), CANNED_HOLD);
    expect(&s, TARN_ERR_PARSE, "a", "malformed JSON");
    s = CALL(SSE_HEAD CHUNK("a") "data: {\"error\":{\"message\":\"no\",\"code\":\"c\"}}\n\n",
             CANNED_HOLD);
    assert_string_equal(s.code, "c");
    expect(&s, TARN_ERR_STREAM, "a", "no");
    s = CALL(SSE_HEAD "event: error\ndata: gone\n\n", CANNED_HOLD);
    expect(&s, TARN_ERR_STREAM, "", "gone");
    s = CALL(SSE_HEAD CHUNK("a") DONE "data: {\"junk\n\n", CANNED_CLOSE); /* behind the end */
    expect(&s, TARN_OK, "a", "");
    s = CALL("SSH-2.0\r\n", CANNED_CLOSE);
    expect(&s, TARN_ERR_PARSE, "", "");
    s = CALL(JSON_HEAD("200 OK", 4) "true", CANNED_CLOSE);
    expect(&s, TARN_ERR_PARSE, "", "an object");
    s = call_url("http://127.0.0.1:1", (struct tarn_client_config){0}, true, 0);
    assert_int_equal(s.result.http_status, 0);
    expect(&s, TARN_ERR_CONNECT, "", "onnect");
}

static void refusals_are_told_apart(void **state)
{
    static const char error[] = "{\"error\":{\"message\":\"mm\",\"code\":\"cc\"}}";
    static const struct {
        const char *status;
        enum tarn_error error;
    } cases[] = {{"400 Bad", TARN_ERR_HTTP_4XX},     {"401 No", TARN_ERR_HTTP_4XX},
                 {"429 Later", TARN_ERR_BUSY},       {"500 Oh", TARN_ERR_HTTP_5XX},
                 {"503 Not now", TARN_ERR_HTTP_5XX}, {"302 There", TARN_ERR_HTTP},
                 {"600 What", TARN_ERR_HTTP}};
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text,
                 "HTTP/1.1 %s\r\nX-Request-Id: r-1\r\nRetry-After: 7\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 cases[i].status, strlen(error), error);
        struct seen s = CALL(text, CANNED_CLOSE);
        assert_int_equal(s.result.http_status, atoi(cases[i].status));
        assert_string_equal(s.code, "cc");
        assert_string_equal(s.request_id, "r-1");
        assert_string_equal(s.body, error);
        assert_true(s.result.retry_after_s == 7);
        expect(&s, cases[i].error, "", "mm");
    }
    struct seen s = CALL("HTTP/1.1 502 Bad\r\nContent-Length: 90\r\nRetry-After: Mon\r\n\r\n<html>",
                         CANNED_CLOSE);
    assert_true(s.result.retry_after_s == -1);
    expect(&s, TARN_ERR_HTTP_5XX, "", "<html>");
}

/* The same as call(), but an hour passes once the whole text has come. */
static struct seen call_for_an_hour(const struct canned *answer, struct tarn_client_config config)
{
    struct canned_server *server = canned_start(answer, 1);
    struct tarn_client *client = make_client(canned_url(server), config);
    size_t n_body_bytes = strlen(answer->text) - strlen(SSE_HEAD);
    struct http_loop_stats stats = {0};
    struct seen s = {0};
    struct http_loop *loop;
    struct tarn_body body;

    buf_init(&s.text, 1 << 20);
    make_body(&body, TARN_CHAT, true);
    assert_ok(http_loop_create(&loop, NULL));
    assert_int_equal(tarn_call_start(&s.call, loop, client, &body, &handlers, &s), TARN_OK);
    while (stats.n_bytes_in < n_body_bytes) {
        assert_ok(http_loop_step(loop, NS_PER_S));
        http_loop_stats(loop, &stats);
    }
    test_clock_stop();
    test_clock_advance(3600 * NS_PER_S);
    assert_ok(http_loop_step(loop, 0));
    assert_int_equal(s.n_ends, 1);
    test_clock_resume();
    http_loop_destroy(loop);
    tarn_body_fini(&body);
    tarn_client_destroy(client);
    canned_stop(server);
    return s;
}

static void timeouts_say_which_limit_was_hit(void **state)
{
    static const struct canned stalled = {.text = SSE_HEAD CHUNK("a"), .then = CANNED_HOLD};
    static const struct canned after_done = {.text = SSE_HEAD CHUNK("a") DONE, .then = CANNED_HOLD};
    struct seen s;

    (void)state;
    s = call_for_an_hour(&stalled, (struct tarn_client_config){.idle_timeout_ms = 600000});
    expect(&s, TARN_ERR_TIMEOUT, "a", "no byte");
    s = call_for_an_hour(&stalled, (struct tarn_client_config){.total_timeout_ms = 600000});
    expect(&s, TARN_ERR_TIMEOUT, "a", "not finished");
    /* The server may keep the connection open behind a complete stream. */
    s = call_for_an_hour(&after_done, (struct tarn_client_config){.total_timeout_ms = 600000});
    expect(&s, TARN_OK, "a", "");
}

static void limits_hold(void **state)
{
    static const struct canned stalled = {.text = SSE_HEAD CHUNK("a"), .then = CANNED_HOLD};
    struct seen s;

    (void)state;
    s = call(&stalled, (struct tarn_client_config){.event_bytes_max = 30}, true, 0);
    expect(&s, TARN_ERR_TOO_LARGE, "", "30 bytes");
    s = call(
        &(struct canned){.text = JSON_HEAD("200 OK", 99) "{\"choices\":[", .then = CANNED_HOLD},
        (struct tarn_client_config){.body_bytes_max = 5}, false, 0);
    expect(&s, TARN_ERR_TOO_LARGE, "", "5 bytes");
}

static void a_cancelled_call_gives_no_more_chunks(void **state)
{
    static const struct canned many = {.text = SSE_HEAD CHUNK("a") CHUNK("b") CHUNK("c") DONE,
                                       .then = CANNED_HOLD};

    (void)state;
    for (int n = 1; n <= 3; n++) {
        struct seen s = call(&many, (struct tarn_client_config){0}, true, n);
        char wanted[4] = "abc";
        wanted[n] = '\0';
        expect(&s, TARN_ERR_CANCELLED, wanted, "cancelled");
    }
}

#define SPAN_KEY "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef"

static void keys_and_paths_are_sent(void **state)
{
    static const struct canned answer = {.text = JSON_HEAD("200 OK", 2) "{}", .then = CANNED_CLOSE};
    struct canned_server *server = canned_start(&answer, 1);
    static const char *const headers[] = {"X-Mine: 1"};
    struct tarn_client *client;
    struct tarn_answer a;
    char url[128];

    (void)state;
    snprintf(url, sizeof url, "%s/v1/", canned_url(server));
    client = make_client(
        url, (struct tarn_client_config){
                 .api_key = "k", .admin_key = "adm", .headers = headers, .n_headers = 1});
    assert_int_equal(tarn_health(&a, client), TARN_OK);
    assert_string_equal(a.text, "{}");
    tarn_answer_fini(&a);
    assert_int_equal(tarn_cache_reset(&a, client), TARN_OK);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_cache_erase(&a, client, SPAN_KEY), TARN_OK);
    tarn_answer_fini(&a);
    /* No request is sent for these: text that is no key must not become another path. */
    static const char *const wrong[] = {"",
                                        "00",
                                        SPAN_KEY "0",
                                        "../" SPAN_KEY,
                                        "&" SPAN_KEY,
                                        "zz23456789abcdef0123456789abcdef0123456789abcdef"
                                        "0123456789abcdef"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(tarn_cache_erase(&a, client, wrong[i]), TARN_ERR_INVALID);
        assert_non_null(strstr(a.message, "64 hex digits"));
        tarn_answer_fini(&a);
    }
    const char *sent = canned_requests(server);
    assert_non_null(strstr(sent, "GET /health HTTP/1.1\r\n"));
    assert_non_null(strstr(sent, "Bearer k\r\n"));
    assert_non_null(strstr(sent, "X-Mine: 1\r\n"));
    assert_non_null(strstr(sent, "DELETE /cache HTTP/1.1\r\n"));
    const char *erased = strstr(sent, "DELETE /cache?span=");
    assert_non_null(strstr(erased, "DELETE /cache?span=" SPAN_KEY " HTTP/1.1\r\n"));
    assert_null(strstr(erased + 1, "DELETE"));
    assert_non_null(strstr(sent, "Bearer adm\r\n"));
    tarn_client_destroy(client);
    canned_stop(server);
}

static bool stop_at_b(void *arg, const struct tarn_chunk *chunk)
{
    ++*(int *)arg;
    return chunk->text[0] != 'b';
}

static void waiting_calls_give_text_or_words(void **state)
{
    static const struct canned answers[] = {
        {.text = SSE_HEAD CHUNK("a") CHUNK("b") FINISH USAGE DONE, .then = CANNED_CLOSE},
        {.text = SSE_HEAD CHUNK("a") CHUNK("b") FINISH USAGE DONE, .then = CANNED_CLOSE},
        {.text = JSON_HEAD("200 OK", 38) "{\"data\":[{\"id\":\"one\"},{\"id\":\"two\"}]}\r\n",
         .then = CANNED_CLOSE},
        {.text = JSON_HEAD("200 OK", 11) "{\"data\":[7]", .then = CANNED_CLOSE},
        {.text = JSON_HEAD("200 OK", 16) "{\"tokens\":[1,2]}", .then = CANNED_CLOSE},
        {.text = JSON_HEAD("200 OK", 15) "{\"tokens\":[-1]}", .then = CANNED_CLOSE},
        {.text = JSON_HEAD("200 OK", 15) "{\"prompt\":\"ab\"}", .then = CANNED_CLOSE},
        {.text = JSON_HEAD("404 No", 19) "{\"error\":\"no path\"}", .then = CANNED_CLOSE},
    };
    struct canned_server *server = canned_start(answers, sizeof answers / sizeof answers[0]);
    struct tarn_client *client = make_client(canned_url(server), (struct tarn_client_config){0});
    static const struct tarn_message hello[] = {{"user", {"Hi", 0}}};
    struct tarn_request r;
    struct tarn_answer a;
    uint32_t *ids;
    size_t n_ids;
    int n = 0;

    (void)state;
    tarn_request_init(&r, TARN_CHAT);
    r.messages = hello;
    r.n_messages = 1;
    r.stream = true;
    assert_int_equal(tarn_generate(&a, client, &r, NULL, NULL), TARN_OK);
    assert_string_equal(a.text, "ab");
    assert_string_equal(a.finish_reason, "stop");
    assert_int_equal(a.usage.cached_tokens, 1);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_generate(&a, client, &r, stop_at_b, &n), TARN_ERR_CANCELLED);
    assert_int_equal(n, 2);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_models(&a, client), TARN_OK);
    assert_string_equal(a.text, "one\ntwo\n");
    tarn_answer_fini(&a);
    assert_int_equal(tarn_models(&a, client), TARN_ERR_PARSE);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_tokenize(&a, client, "x", 1, &ids, &n_ids), TARN_OK);
    assert_int_equal(n_ids, 2);
    assert_int_equal(ids[1], 2);
    free(ids);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_tokenize(&a, client, "x", 1, &ids, &n_ids), TARN_ERR_PARSE);
    assert_null(ids);
    tarn_answer_fini(&a);
    assert_int_equal(tarn_detokenize(&a, client, (uint32_t[]){1, 2}, 2), TARN_OK);
    assert_string_equal(a.text, "ab");
    tarn_answer_fini(&a);
    assert_int_equal(tarn_fetch(&a, client, "/x", NULL, 0), TARN_ERR_HTTP_4XX);
    assert_string_equal(a.message, "no path");
    tarn_answer_fini(&a);
    r.n_messages = 0;
    assert_int_equal(tarn_generate(&a, client, &r, NULL, NULL), TARN_ERR_INVALID);
    assert_non_null(strstr(a.message, "messages"));
    assert_string_equal(a.text, "");
    tarn_answer_fini(&a);
    assert_int_equal(tarn_fetch(&a, client, "no-slash", NULL, 0), TARN_ERR_INVALID);
    tarn_answer_fini(&a);
    tarn_client_destroy(client);
    canned_stop(server);
}

static void a_client_checks_its_configuration(void **state)
{
    static const char *const urls[] = {NULL,      "",           "host:8000",
                                       "ftp://a", "http://a?x", "http://a#x"};
    struct tarn_client *client;
    char why[128];

    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct tarn_client_config c = {.url = urls[i]};
        assert_int_equal(tarn_client_create(&client, &c, why, sizeof why), TARN_ERR_INVALID);
        assert_null(client);
        assert_non_null(strstr(why, "url"));
    }
    for (int i = 0; i < TARN_N_ERRORS; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(tarn_error_name((enum tarn_error)i),
                                    tarn_error_name((enum tarn_error)k));
    assert_string_equal(tarn_error_name((enum tarn_error) - 1), "?");
    tarn_client_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_comes_through_at_every_split),
        cmocka_unit_test(a_stream_may_be_cut_at_every_byte),
        cmocka_unit_test(a_whole_answer_comes_through),
        cmocka_unit_test(each_way_to_fail_has_its_kind),
        cmocka_unit_test(refusals_are_told_apart),
        cmocka_unit_test(timeouts_say_which_limit_was_hit),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_cancelled_call_gives_no_more_chunks),
        cmocka_unit_test(keys_and_paths_are_sent),
        cmocka_unit_test(waiting_calls_give_text_or_words),
        cmocka_unit_test(a_client_checks_its_configuration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
