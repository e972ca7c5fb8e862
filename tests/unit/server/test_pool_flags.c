/* test_pool_flags.c - the pool's options for the engine, and the line about the pool at start. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "server/pool_flags.h"

#define TEXT(words) (char *)(uintptr_t)words

static struct config pool_config(const char *host, uint64_t port)
{
    return (struct config){.host = (char *)(uintptr_t)host,
                           .port = port,
                           .uds = TEXT(""),
                           .tls_cert = TEXT(""),
                           .pool = TEXT("redis://u:p@h:6379/0"),
                           .pool_name = TEXT("blue"),
                           .pool_listen = TEXT("10.0.0.5:7000"),
                           .pool_announce = TEXT(""),
                           .pool_transport = TEXT("tcp"),
                           .instance_name = TEXT(""),
                           .pool_lookup_ms = 7,
                           .pool_pull_ms = 8,
                           .pool_query = TEXT("never"),
                           .pool_query_ms = 9,
                           .pool_balance = true,
                           .pool_device_ipc = true};
}

static void the_engine_gets_the_options(void **state)
{
    struct config c = pool_config("10.0.0.9", 8000);
    struct engine_config e = {0};

    (void)state;
    pool_flags_apply(&e, &c);
    assert_string_equal(e.pool_url, c.pool);
    assert_string_equal(e.pool_name, "blue");
    assert_string_equal(e.pool_listen, "10.0.0.5:7000");
    assert_null(e.pool_announce_host);
    assert_string_equal(e.pool_transport, "tcp");
    assert_string_equal(e.pool_instance_name, "10.0.0.9:8000");
    assert_string_equal(e.pool_http, "http://10.0.0.9:8000");
    assert_ptr_equal(e.pool_secret, c.pool_member);
    assert_true(e.pool_lookup_ms == 7 && e.pool_pull_ms == 8 && e.pool_query_ms == 9);
    assert_string_equal(e.pool_query, "never");
    assert_true(e.pool_balance && e.pool_device_ipc);
    c.pool = TEXT("");
    e = (struct engine_config){0};
    pool_flags_apply(&e, &c);
    assert_null(e.pool_url);
    assert_null(e.pool_secret);
}

static void an_instance_is_named_by_where_it_is_reached(void **state)
{
    struct config c = pool_config("0.0.0.0", 8000);
    struct engine_config e = {0};

    (void)state;
    pool_flags_apply(&e, &c); /* all addresses: that of the pool is one of them */
    assert_string_equal(e.pool_http, "http://10.0.0.5:8000");
    c.pool_announce = TEXT("tarn-1.tarn");
    c.tls_cert = TEXT("cert");
    pool_flags_apply(&e, &c);
    assert_string_equal(e.pool_instance_name, "tarn-1.tarn:8000");
    assert_string_equal(e.pool_http, "https://tarn-1.tarn:8000");
    assert_string_equal(e.pool_announce_host, "tarn-1.tarn");
    c.host = TEXT("fd00::1");
    pool_flags_apply(&e, &c);
    assert_string_equal(e.pool_http, "https://[fd00::1]:8000");
    c.instance_name = TEXT("first");
    pool_flags_apply(&e, &c);
    assert_string_equal(e.pool_instance_name, "first");
    c.instance_name = TEXT("");
    c.port = 0; /* any free one: not known before the server listens */
    pool_flags_apply(&e, &c);
    assert_memory_equal(e.pool_instance_name, "fd00::1-", 8);
    assert_string_equal(e.pool_http, "");
    c.port = 8000;
    c.uds = TEXT("/run/tarn.sock");
    pool_flags_apply(&e, &c);
    assert_string_equal(e.pool_http, "");
    c.uds = TEXT("");
    c.host = TEXT("::");
    c.pool_announce = TEXT("");
    c.pool_listen = TEXT("[::]:0");
    pool_flags_apply(&e, &c);
    assert_null(strstr(e.pool_http, "["));
    assert_non_null(strstr(e.pool_http, ":8000"));
}

static void expect(const struct config *c, const struct pool_stats *s, const char *want)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    pool_print(f, c, s);
    fclose(f);
    assert_string_equal(text, want);
    free(text);
}

static void the_line_says_whether_the_directory_answers(void **state)
{
    struct config c = pool_config("h", 1);
    struct pool_stats s = {.transport = "ucx", .n_instances = 1};

    (void)state;
    expect(&c, &s,
           "Pool blue at redis://u:***@h:6379/0: it does not answer yet, this instance joins "
           "later; transport ucx\n");
    s.directory.is_up = true;
    expect(&c, &s, "Pool blue at redis://u:***@h:6379/0: 1 instance, transport ucx\n");
    s.n_instances = 4;
    expect(&c, &s, "Pool blue at redis://u:***@h:6379/0: 4 instances, transport ucx\n");
    c.pool = TEXT("");
    expect(&c, &s, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_gets_the_options),
        cmocka_unit_test(an_instance_is_named_by_where_it_is_reached),
        cmocka_unit_test(the_line_says_whether_the_directory_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
