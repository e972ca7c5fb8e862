/* GET /metrics over a socket, with the fake engine: what each caller sees, and how much of it. The
 * format itself is checked by tests/integration/test_keys.py. */
#include "tests/unit/server/server_test.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/auth.h"
#include "server/http.h"
#include "server/route.h"

struct metrics_test {
    struct server_test s;
    struct http_server *http;
    struct buf text; /* the last answer, head and body */
};

static char key_file[] = "/tmp/tarn-test-metrics-XXXXXX";

static void open_test(struct metrics_test *t, const char *model, const char *keys,
                      const char *admin)
{
    struct buf why;

    memset(t, 0, sizeof *t);
    t->s.config.model = (char *)(uintptr_t)model;
    t->s.config.served_model_name = (char *)(uintptr_t) "";
    t->s.config.api_key = (char *)(uintptr_t) "";
    t->s.config.api_key_file = (char *)(uintptr_t)keys;
    t->s.config.admin_api_key = (char *)(uintptr_t)admin;
    t->s.config.max_body_bytes = 1u << 20;
    t->s.engine = fake_engine_create(100);
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&t->text, 8u << 20);
    assert_ok(server_init(&t->s.srv, &t->s.config, t->s.engine));
    struct http_config config = {.host = "127.0.0.1", .n_threads = 1, .n_connections_max = 8,
                                 .body_bytes_max = 1u << 20, .early = route_early,
                                 .handle = route_handle, .arg = &t->s.srv};
    if (http_create(&t->http, &config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static void close_test(struct metrics_test *t)
{
    http_stop(t->http);
    engine_close(t->s.engine);
    http_destroy(t->http);
    server_fini(&t->s.srv);
    buf_fini(&t->text);
}

/* The page as this key sees it. */
static const char *get(struct metrics_test *t, const char *key)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(http_port(t->http)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char bytes[4096];
    ssize_t n;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    int len = snprintf(bytes, sizeof bytes, "GET /metrics HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n"
                       "Connection: close\r\n\r\n", key);
    assert_int_equal(write(fd, bytes, (size_t)len), len);
    buf_reset(&t->text);
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        assert_ok(buf_append(&t->text, bytes, (size_t)n));
    close(fd);
    return buf_str(&t->text);
}

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;

    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

static void write_keys(unsigned n)
{
    FILE *f = fopen(key_file, "w");

    assert_non_null(f);
    fprintf(f, "{\"keys\": [");
    for (unsigned i = 0; i < n; i++)
        fprintf(f, "%s{\"name\": \"k%u\", \"key\": \"sk-%08u\", \"tenant\": \"t%u\","
                "\"weight\": %u.5, \"tokens_per_minute\": %u}", i ? "," : "", i, i, i % 200,
                i % 9 + 1, i + 7);
    fprintf(f, "]}");
    fclose(f);
}

static void each_key_sees_itself_and_an_admin_all(void **state)
{
    struct metrics_test t;

    (void)state;
    write_keys(3);
    open_test(&t, "m", key_file, "boss");
    const char *page = get(&t, "sk-00000001");
    assert_non_null(strstr(page, "HTTP/1.1 200"));
    assert_non_null(strstr(page, "tarn:tenant_requests_total{model_name=\"m\",engine=\"0\","
                                 "tenant=\"t1\"} 0\n"));
    assert_non_null(strstr(page, "tarn:key_weight{model_name=\"m\",engine=\"0\",key=\"k1\","
                                 "tenant=\"t1\"} 2.5\n"));
    assert_non_null(strstr(page, "key=\"k1\",tenant=\"t1\"} 8\n")); /* tokens per minute */
    assert_null(strstr(page, "\"t0\""));
    assert_null(strstr(page, "\"t2\""));
    assert_null(strstr(page, "\"k0\""));
    page = get(&t, "boss");
    for (int i = 0; i < 3; i++) {
        char label[32];
        snprintf(label, sizeof label, "key=\"k%d\"", i);
        assert_int_equal(count(page, label), 4);
    }
    assert_non_null(strstr(page, "key=\"admin-api-key-1\""));
    page = get(&t, "nobody");
    assert_non_null(strstr(page, "HTTP/1.1 401"));
    assert_null(strstr(page, "vllm:"));
    assert_null(strstr(page, "sk-0000"));
    close_test(&t);
}

static void labels_are_bounded(void **state)
{
    struct metrics_test t;

    (void)state;
    write_keys(1000);
    open_test(&t, "m", key_file, "boss");
    const char *page = get(&t, "boss");
    assert_int_equal(count(page, "\ntarn:key_weight{"), 100);
    assert_int_equal(count(page, "\ntarn:tenant_requests_total{"), AUTH_N_TENANTS_MAX + 1);
    assert_int_equal(count(page, "tenant=\"_other\""), 5);
    close_test(&t);
}

static void without_keys_there_is_one_tenant(void **state)
{
    struct metrics_test t;

    (void)state;
    open_test(&t, "a\"b\\c\nd", "", "");
    const char *page = get(&t, "any");
    assert_non_null(strstr(page, "tarn:tenant_requests_total{model_name=\"a\\\"b\\\\c\\nd\","
                                 "engine=\"0\",tenant=\"default\"} 0\n"));
    assert_null(strstr(page, "tarn:key_"));
    assert_null(strstr(page, " nan"));
    assert_int_equal(count(page, "# HELP "), count(page, "# TYPE "));
    close_test(&t);
}

static int start(void **state)
{
    int fd = mkstemp(key_file);

    (void)state;
    return fd >= 0 && close(fd) == 0 && hash_init() == OK ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    return unlink(key_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_sees_itself_and_an_admin_all),
        cmocka_unit_test(labels_are_bounded),
        cmocka_unit_test(without_keys_there_is_one_tenant),
    };
    return cmocka_run_group_tests(tests, start, end);
}
