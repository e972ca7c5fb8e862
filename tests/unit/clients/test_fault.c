/* Every allocation of one streamed call fails once: the call is refused or ends exactly once, and
 * the next call works.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/http.h"
#include "clients/c/tarn_client.h"
#include "tests/unit/clients/canned_server.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

#define N_FAILURES_MAX 20000
#define STREAM                                                                                     \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"              \
    "data: {\"choices\":[{\"delta\":{\"content\":\"Hello \"},\"token_ids\":[1,2,3]}]}\n\n"         \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3}}\n\n"           \
    "data: [DONE]\n\n"

struct seen {
    int n_ends, n_chunks;
    enum tarn_error error;
};

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk)
{
    struct seen *s = arg;

    (void)call;
    (void)chunk;
    s->n_chunks++;
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct seen *s = arg;

    (void)call;
    s->n_ends++;
    s->error = r->error;
}

/* One client, one loop, one call; false when all of it worked. */
static bool once(const char *url, long fail_at)
{
    static const struct tarn_handlers handlers = {.on_chunk = on_chunk, .on_end = on_end};
    static const struct tarn_message hello[] = {{"user", {"Hi", 0}}};
    static const char *const headers[] = {"X-Some: header"};
    struct tarn_client_config config = {.url = url,
                                        .api_key = "key",
                                        .headers = headers,
                                        .n_headers = 1,
                                        .total_timeout_ms = 90000,
                                        .fresh_connections = true};
    struct tarn_client *client = NULL;
    struct http_loop *loop = NULL;
    struct tarn_body body = {0};
    struct tarn_request r;
    struct seen seen = {0};

    tarn_request_init(&r, TARN_CHAT);
    r.messages = hello;
    r.n_messages = 1;
    r.stream = true;
    r.extra_body = "{\"a\":[1,\"b\"]}";
    fail_in = fail_at;
    enum tarn_error e = tarn_client_create(&client, &config, NULL, 0);
    if (e == TARN_OK)
        e = tarn_body_build(&body, &r, NULL, 0);
    if (e == TARN_OK && http_loop_create(&loop, NULL) != OK)
        e = TARN_ERR_NOMEM;
    if (e == TARN_OK)
        e = tarn_call_start(NULL, loop, client, &body, &handlers, &seen);
    bool started = e == TARN_OK;
    if (started)
        assert_ok(http_loop_run(loop));
    bool failed = fail_in == 0 && fail_at > 0;
    fail_in = 0;
    assert_int_equal(seen.n_ends, started);
    if (seen.error == TARN_ERR_TIMEOUT)
        fail_msg("allocation %ld: a call was left alone", fail_at);
    if (!failed) {
        assert_true(started);
        assert_int_equal(seen.error, TARN_OK);
        assert_int_equal(seen.n_chunks, 1);
    }
    http_loop_destroy(loop);
    tarn_body_fini(&body);
    tarn_client_destroy(client);
    return failed;
}

static void every_allocation_may_fail(void **state)
{
    static const struct canned answer = {.text = STREAM, .then = CANNED_CLOSE};
    struct canned_server *server = canned_start(&answer, 1);
    long n = 0;

    (void)state;
    assert_false(once(canned_url(server), 0));
    while (n < N_FAILURES_MAX && once(canned_url(server), n + 1))
        n++;
    assert_false(once(canned_url(server), 0));
    print_message("%ld allocations failed, one at a time\n", n);
    assert_true(n > 30 && n < N_FAILURES_MAX);
    canned_stop(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
