/* route.c: which handler serves a path, and which requests are refused before the body. */
#include "tests/unit/server/http/http_test.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "server/auth/auth.h"

static char key_file[] = "/tmp/tarn-test-route-XXXXXX";
static struct http_test t;

static void write_keys(const char *keys)
{
    FILE *f = fopen(key_file, "w");

    assert_non_null(f);
    fprintf(f, "{\"keys\": [%s{\"name\": \"two\", \"key\": \"sk-00000002\"}]}", keys);
    assert_int_equal(fclose(f), 0);
}

#define KEY_ONE "{\"name\": \"one\", \"key\": \"sk-00000001\"}, "

static const char *ask(const char *method, const char *path, const char *key)
{
    return http_test_ask(&t, method, path, key);
}

static void every_path_is_a_route_and_all_others_are_one(void **state)
{
    char name[ROUTE_NAME_BYTES];

    (void)state;
    for (uint32_t i = 0; i < route_n(); i++)
        if (route_name(i, name) && !strstr(name, "{id}") && i + 1 < route_n())
            assert_int_equal(route_of(name), i);
    assert_int_equal(route_of("/v1/models/m"), route_of("/v1/models/other"));
    assert_int_not_equal(route_of("/v1/models/m"), route_of("/v1/models"));
    /* Something must follow a prefix; nothing may follow any other path. */
    assert_int_equal(route_of("/v1/models/"), route_n() - 1);
    assert_int_equal(route_of("/v1/completions/x"), route_n() - 1);
    assert_int_equal(route_of(""), route_n() - 1);
    assert_true(route_name(route_n() - 1, name));
    assert_string_equal(name, ROUTE_NAME_OTHER);
}

static void probes_are_health_and_metrics(void **state)
{
    (void)state;
    assert_true(route_is_probe(route_of("/health")) && route_is_probe(route_of("/health/live")));
    assert_true(route_is_probe(route_of("/metrics")));
    assert_false(route_is_probe(route_of("/v1/models")) || route_is_probe(route_n() - 1));
}

static void without_a_key_nobody_learns_what_paths_there_are(void **state)
{
    (void)state;
    assert_non_null(strstr(ask("GET", "/no/such", ""), "HTTP/1.1 401"));
    assert_non_null(strstr(ask("DELETE", "/v1/models", "sk-wrong"), "HTTP/1.1 401"));
    assert_non_null(strstr(ask("GET", "/no/such", "sk-00000001"), "HTTP/1.1 404"));
    assert_non_null(strstr(ask("GET", "/health/live", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(ask("GET", "/ping", ""), "HTTP/1.1 200"));
    assert_non_null(strstr(ask("GET", "/version", ""), "HTTP/1.1 401"));
    assert_non_null(strstr(ask("GET", "/version", "sk-00000001"), "HTTP/1.1 200"));
}

static void another_method_is_told_which_ones_there_are(void **state)
{
    (void)state;
    assert_non_null(strstr(ask("PUT", "/cache", "sk-admin"), "HTTP/1.1 405"));
    assert_non_null(strstr(buf_str(&t.text), "Allow: GET, HEAD, DELETE, OPTIONS"));
    assert_non_null(strstr(buf_str(&t.text), "use GET or DELETE"));
    assert_non_null(strstr(ask("OPTIONS", "/v1/models", "sk-00000001"), "HTTP/1.1 204"));
    assert_non_null(strstr(buf_str(&t.text), "Allow: GET, HEAD, OPTIONS"));
}

static void a_server_that_drains_refuses_what_generates_only(void **state)
{
    (void)state;
    atomic_store(&t.s.srv.draining, true);
    const char *answer = http_test_read(
        &t, http_test_send_body(&t, "POST", "/v1/completions", "sk-00000001", "{'prompt':'a'}"));
    assert_non_null(strstr(answer, "HTTP/1.1 503"));
    assert_non_null(strstr(answer, "draining"));
    assert_non_null(strstr(ask("GET", "/v1/models", "sk-00000001"), "HTTP/1.1 200"));
    atomic_store(&t.s.srv.draining, false);
}

static void an_admins_path_needs_an_admins_key(void **state)
{
    (void)state;
    assert_non_null(strstr(ask("GET", "/cache", "sk-00000001"), "HTTP/1.1 403"));
    assert_non_null(strstr(ask("GET", "/cache", "sk-admin"), "HTTP/1.1 200"));
}

/* The key is looked up when the head is read, and not again. */
static void a_request_keeps_the_account_that_its_head_named(void **state)
{
    static const char body[] = "{\"prompt\":\"ab\",\"max_tokens\":1}";
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_port(t.http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct fake_submitted seen[FAKE_N_SUBMITTED_MAX];
    char text[512];
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: sk-00000001\r\n"
                     "Expect: 100-continue\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     strlen(body));
    assert_int_equal(write(fd, text, (size_t)n), n);
    assert_true(read(fd, text, sizeof text) > 12); /* the head was read */
    assert_memory_equal(text, "HTTP/1.1 100", 12);
    write_keys("");
    assert_ok(auth_reload(t.s.srv.auth, &why));
    assert_int_equal(write(fd, body, strlen(body)), strlen(body));
    assert_non_null(strstr(http_test_read(&t, fd), "HTTP/1.1 200"));
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 1);
    assert_non_null(strstr(ask("GET", "/v1/models", "sk-00000001"), "HTTP/1.1 401"));
    write_keys(KEY_ONE);
    assert_ok(auth_reload(t.s.srv.auth, &why));
    buf_fini(&why);
}

static int start(void **state)
{
    int fd = mkstemp(key_file);

    (void)state;
    if (fd < 0 || hash_init() != OK)
        return 1;
    close(fd);
    write_keys(KEY_ONE);
    http_test_open(&t, "m", key_file, "sk-admin");
    return 0;
}

static int end(void **state)
{
    (void)state;
    http_test_close(&t);
    return unlink(key_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path_is_a_route_and_all_others_are_one),
        cmocka_unit_test(probes_are_health_and_metrics),
        cmocka_unit_test(without_a_key_nobody_learns_what_paths_there_are),
        cmocka_unit_test(another_method_is_told_which_ones_there_are),
        cmocka_unit_test(a_server_that_drains_refuses_what_generates_only),
        cmocka_unit_test(an_admins_path_needs_an_admins_key),
        cmocka_unit_test(a_request_keeps_the_account_that_its_head_named),
    };

    return cmocka_run_group_tests(tests, start, end);
}
