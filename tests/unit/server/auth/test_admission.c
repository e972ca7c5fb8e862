/* test_admission.c - headers and errors about a key's rate limits, over a socket and with a test
 * clock. */
#include "tests/unit/server/http/http_test.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "server/auth/admission.h"
#include "server/auth/auth.h"

#define S UINT64_C(1000000000)
#define T0 (77 * S)

static struct http_test t;
static struct tenant tenant;
static struct account account;
static uint64_t test_now_ns;

/* Buckets see the test clock; the HTTP server, on the same thread, sees the real clock outside of
 * admission_*(). */
static _Thread_local bool in_admission;
uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);

uint64_t __wrap_clock_now_ns(void)
{
    return in_admission ? test_now_ns : __real_clock_now_ns();
}

static void early(void *arg, struct http_exchange *x)
{
    (void)arg;
    in_admission = true;
    assert_true(admission_request(&account, x) == !http_replied(x));
    in_admission = false;
}

static uint64_t query(const struct http_exchange *x, const char *name)
{
    const char *value = http_query(x, name);

    return value ? strtoull(value, NULL, 10) : 0;
}

/* Admit a prompt of ?prompt=N tokens, and charge ?generated=N tokens. */
static void handle(void *arg, struct http_exchange *x)
{
    (void)arg;
    in_admission = true;
    bool admitted = admission_prompt(&account, x, query(x, "prompt"));
    if (admitted)
        admission_generated(&account, query(x, "generated"));
    in_admission = false;
    assert_true(admitted == !http_replied(x));
    if (admitted)
        http_reply(x, 200, "application/json", NULL);
}

static int open_server(void **state)
{
    const struct http_config config = {.host = "127.0.0.1",
                                       .n_threads = 1,
                                       .n_connections_max = 8,
                                       .body_bytes_max = 1u << 20,
                                       .early = early,
                                       .handle = handle};

    (void)state;
    account.tenant = &tenant;
    pthread_mutex_init(&account.lock, NULL);
    buf_init(&t.text, 1u << 20);
    assert_ok(http_create(&t.http, &config, NULL));
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    http_stop(t.http);
    http_destroy(t.http);
    buf_fini(&t.text);
    pthread_mutex_destroy(&account.lock);
    return 0;
}

static void set_limits(uint64_t requests, uint64_t tokens)
{
    test_now_ns = T0;
    atomic_store(&tenant.n_rate_limited, 0);
    limiter_init(&account.limiter, requests, tokens, T0);
}

static void ask(const char *path)
{
    http_test_ask(&t, "POST", path, "");
}

static void has(const char *words)
{
    if (!strstr(buf_str(&t.text), words))
        fail_msg("no \"%s\" in %s", words, buf_str(&t.text));
}

static void has_not(const char *words)
{
    if (strstr(buf_str(&t.text), words))
        fail_msg("\"%s\" in %s", words, buf_str(&t.text));
}

static void a_key_without_limits_gets_no_headers(void **state)
{
    (void)state;
    set_limits(0, 0);
    ask("/?prompt=99999999&generated=99999999");
    ask("/?prompt=99999999");
    has("HTTP/1.1 200");
    has_not("x-ratelimit-");
}

static void the_headers_tell_limit_rest_and_reset(void **state)
{
    (void)state;
    set_limits(2, 600);
    ask("/?prompt=1");
    has("HTTP/1.1 200");
    has("x-ratelimit-limit-requests: 2\r\n");
    has("x-ratelimit-remaining-requests: 1\r\n");
    has("x-ratelimit-reset-requests: 30s\r\n");
    has("x-ratelimit-limit-tokens: 600\r\n");
    has("x-ratelimit-remaining-tokens: 599\r\n");
    has("x-ratelimit-reset-tokens: 100ms\r\n");
    ask("/?prompt=14");
    has("x-ratelimit-remaining-requests: 0\r\n");
    has("x-ratelimit-reset-requests: 1m0s\r\n");
    has("x-ratelimit-remaining-tokens: 585\r\n");
    has("x-ratelimit-reset-tokens: 1.5s\r\n");
}

static void a_request_above_the_limit_is_refused_until_its_time(void **state)
{
    (void)state;
    set_limits(2, 600);
    ask("/");
    ask("/");
    ask("/");
    has("HTTP/1.1 429");
    has("Retry-After: 30\r\n");
    has("\"code\":\"rate_limit_exceeded\"");
    has("Rate limit reached for this key on requests per minute: limit 2, wanted 1. Please try "
        "again in 30s.");
    has_not("x-ratelimit-limit-tokens"); /* the prompt was not looked at */
    assert_int_equal(tenant.n_rate_limited, 1);
    test_now_ns += 29 * S;
    ask("/");
    has("HTTP/1.1 429");
    has("Retry-After: 1\r\n");
    assert_int_equal(tenant.n_rate_limited, 2);
    test_now_ns += S;
    ask("/");
    has("HTTP/1.1 200");
    assert_int_equal(tenant.n_rate_limited, 2);
}

static void a_prompt_that_is_refused_still_counts_as_a_request(void **state)
{
    (void)state;
    set_limits(10, 600);
    ask("/?prompt=500");
    ask("/?prompt=101");
    has("HTTP/1.1 429");
    has("Retry-After: 1\r\n");
    has("on tokens per minute: limit 600, wanted 101.");
    has("x-ratelimit-remaining-tokens: 100\r\n");
    has("x-ratelimit-remaining-requests: 8\r\n");
    assert_int_equal(tenant.n_rate_limited, 1);
    ask("/?prompt=100");
    has("HTTP/1.1 200");
    has("x-ratelimit-remaining-tokens: 0\r\n");
}

static void a_prompt_larger_than_the_bucket_is_never_admitted(void **state)
{
    (void)state;
    set_limits(0, 600);
    ask("/?prompt=601");
    has("HTTP/1.1 413");
    has("\"code\":\"rate_limit_too_small\"");
    has("This request has 601 tokens, more than this key's 600 per minute: it can never be "
        "admitted.");
    has_not("Retry-After");
    has("x-ratelimit-remaining-tokens: 600\r\n");
    assert_int_equal(tenant.n_rate_limited, 1);
    ask("/?prompt=600");
    has("HTTP/1.1 200");
}

static void generated_tokens_delay_the_next_prompt(void **state)
{
    (void)state;
    set_limits(0, 600);
    ask("/?prompt=100&generated=1100"); /* a debt of 600 tokens */
    has("HTTP/1.1 200");
    has("x-ratelimit-remaining-tokens: 500\r\n"); /* charged after the headers were made */
    ask("/?prompt=10");
    has("HTTP/1.1 429");
    has("Retry-After: 61\r\n");
    has("x-ratelimit-remaining-tokens: 0\r\n");
    has("x-ratelimit-reset-tokens: 2m0s\r\n");
    test_now_ns += 61 * S;
    ask("/?prompt=10");
    has("HTTP/1.1 200");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_without_limits_gets_no_headers),
        cmocka_unit_test(the_headers_tell_limit_rest_and_reset),
        cmocka_unit_test(a_request_above_the_limit_is_refused_until_its_time),
        cmocka_unit_test(a_prompt_that_is_refused_still_counts_as_a_request),
        cmocka_unit_test(a_prompt_larger_than_the_bucket_is_never_admitted),
        cmocka_unit_test(generated_tokens_delay_the_next_prompt),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
