/* server_test.h - a struct server with the fake engine, for unit tests.
 *
 * Owns    the engine; freed by server_test_close().
 * Thread  the test's.
 * Errors  end the test.
 * Units   none. */
#ifndef TARN_TESTS_SERVER_TEST_H
#define TARN_TESTS_SERVER_TEST_H

#include "tests/unit/test.h"

#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "tests/unit/server/fake_engine.h"
#include "server/server.h"

struct server_test {
    struct config config;
    struct server srv;
    struct engine *engine;
};

static inline void server_test_open(struct server_test *t, const char *api_key)
{
    memset(t, 0, sizeof *t);
    t->config.model = (char *)(uintptr_t) "org/fake";
    t->config.served_model_name = (char *)(uintptr_t) "one,two";
    t->config.api_key = (char *)(uintptr_t)api_key;
    t->config.max_body_bytes = 1u << 20;
    t->engine = fake_engine_create(100);
    assert_ok(hash_init());
    assert_ok(server_init(&t->srv, &t->config, t->engine));
}

static inline void server_test_close(struct server_test *t)
{
    server_fini(&t->srv);
    engine_close(t->engine);
}

/* Parse JSON in which ' stands for ". */
static inline struct json *json_of(const char *text)
{
    char copy[4096];
    struct json *j = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_true(strlen(text) < sizeof copy);
    size_t n = 0;
    for (; text[n]; n++)
        copy[n] = text[n] == '\'' ? '"' : text[n];
    if (js_parse(&j, copy, n, &why) != OK)
        fail_msg("%s: %s", text, buf_str(&why));
    buf_fini(&why);
    return j;
}

#endif
