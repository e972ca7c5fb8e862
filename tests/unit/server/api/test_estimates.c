/* Predictions over a socket, with the fake engine: headers, GET /v1/estimate, Retry-After,
 * targets. */
#include "tests/unit/server/http/http_test.h"

#include <stdlib.h>

#include "base/clock.h"

#define COMPLETIONS "/v1/completions"

static struct http_test t;

static const char *post(const char *json)
{
    return http_test_read(&t, http_test_send_body(&t, "POST", COMPLETIONS, "none", json));
}

static void expect(const char *answer, const char *words)
{
    if (!strstr(answer, words))
        fail_msg("\"%s\" is not in: %s", words, answer);
}

/* A prompt of four tokens (with the BOS) is predicted at 4 and 6 ms. */
static void answers_and_streams_carry_the_prediction(void **state)
{
    static const char *const bodies[] = {"{'prompt':'abc','max_tokens':2}",
                                         "{'prompt':'abc','max_tokens':2,'stream':true}",
                                         "{'prompt':'abc','max_tokens':2,'logprobs':1}"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *answer = post(bodies[i]);
        expect(answer, "HTTP/1.1 200");
        expect(answer, "x-tarn-estimated-ttft-ms: 4.000\r\n");
        expect(answer, "x-tarn-estimated-e2e-ms: 6.000\r\n");
    }
}

static void of_several_answers_the_first_token_and_the_last_end_count(void **state)
{
    (void)state;
    const char *answer = post("{'prompt':['abcdef','ab'],'max_tokens':1}");
    expect(answer, "x-tarn-estimated-ttft-ms: 3.000\r\n");
    expect(answer, "x-tarn-estimated-e2e-ms: 10.500\r\n");
}

static void a_stream_that_fails_at_once_says_why(void **state)
{
    (void)state;
    atomic_store(&fake_fail_at, 0);
    const char *answer = post("{'prompt':'ab','max_tokens':2,'stream':true}");
    atomic_store(&fake_fail_at, -1);
    expect(answer, "the fake engine was told to fail");
}

static void a_full_queue_says_when_to_come_again(void **state)
{
    static const struct {
        uint32_t usual_ms;
        const char *header;
    } cases[] = {{1, "Retry-After: 1\r\n"},
                 {1001, "Retry-After: 2\r\n"},
                 {42000, "Retry-After: 42\r\n"},
                 {9000000, "Retry-After: 600\r\n"}};

    (void)state;
    atomic_store(&fake_n_max, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&fake_usual_ms, cases[i].usual_ms);
        const char *answer = post("{'prompt':'ab','max_tokens':1}");
        expect(answer, "HTTP/1.1 429");
        expect(answer, cases[i].header);
    }
    atomic_store(&fake_n_max, 64);
}

static void an_estimate_follows_its_query(void **state)
{
    (void)state;
    expect(http_test_ask(&t, "GET", "/v1/estimate?prompt_tokens=50&cached_tokens=10&max_tokens=7",
                         "none"),
           "{\"object\":\"estimate\",\"model\":\"m\",\"ttft_ms\":{\"p50\":40.000,\"p90\":80.000},"
           "\"e2e_ms\":{\"p50\":47.000,\"p90\":94.000},"
           "\"queue\":{\"running\":2,\"waiting\":5,\"ahead\":3},"
           "\"accuracy\":{\"requests\":70,\"ttft_median_error\":0.125,"
           "\"e2e_median_error\":0.250}}");
    expect(http_test_ask(&t, "GET", "/v1/estimate?prompt_tokens=1&priority=-1", "none"),
           "\"ahead\":0}");
}

static void wrong_queries_are_refused_by_name(void **state)
{
    static const char *const cases[][2] = {
        {"", "prompt_tokens"},
        {"?prompt_tokens=", "prompt_tokens"},
        {"?prompt_tokens=0", "prompt_tokens"},
        {"?prompt_tokens=101", "prompt_tokens"}, /* the context has 100 */
        {"?prompt_tokens=7x", "prompt_tokens"},
        {"?prompt_tokens=7&cached_tokens=8", "cached_tokens"},
        {"?prompt_tokens=7&max_tokens=0", "max_tokens"},
        {"?prompt_tokens=7&priority=99999999999", "priority"},
    };
    char path[128];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "/v1/estimate%s", cases[i][0]);
        expect(http_test_ask(&t, "GET", path, "none"), "HTTP/1.1 400");
        struct json *j = http_test_json(&t);
        assert_string_equal(js_string(js_get(js_get(j, "error"), "param"), NULL), cases[i][1]);
        js_unref(j);
    }
    atomic_store(&fake_is_stuck, true);
    expect(http_test_ask(&t, "GET", "/v1/estimate?prompt_tokens=5", "none"), "HTTP/1.1 503");
    atomic_store(&fake_is_stuck, false);
}

/* --- targets --- */

static struct fake_submitted submitted(const char *json, const char *headers)
{
    struct fake_submitted seen[FAKE_N_SUBMITTED_MAX];
    char key[256];

    /* The helper writes the key into a header line: more lines may follow it. */
    snprintf(key, sizeof key, "none%s%s", headers[0] ? "\r\n" : "", headers);
    (void)fake_engine_submitted(t.s.engine, seen);
    expect(http_test_read(&t, http_test_send_body(&t, "POST", COMPLETIONS, key, json)),
           "HTTP/1.1 200");
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 1);
    return seen[0];
}

static void expect_targets(struct fake_submitted r, double ttft_s, double tpot_s)
{
    assert_true(r.slo_ttft_s == ttft_s);
    assert_true(r.slo_tpot_s == tpot_s);
}

static void targets_come_from_header_body_and_options_in_this_order(void **state)
{
    (void)state;
    expect_targets(submitted("{'prompt':'ab','max_tokens':1}", ""), 0, 0);
    expect_targets(
        submitted("{'prompt':'ab','max_tokens':1,'slo_ttft_ms':250,'slo_tpot_ms':62.5}", ""), 0.25,
        0.0625);
    expect_targets(submitted("{'prompt':'ab','max_tokens':1,'slo_ttft_ms':250,'slo_tpot_ms':62.5}",
                             "x-llm-d-slo-ttft-ms: 500"),
                   0.5, 0.0625);
    expect_targets(
        submitted("{'prompt':'ab','max_tokens':1}", "x-slo-ttft-ms: 500\r\nx-slo-tpot-ms: 125"),
        0.5, 0.125);
    t.s.config.slo_ttft_ms = 1000;
    t.s.config.slo_tpot_ms = 31.25;
    expect_targets(submitted("{'prompt':'ab','max_tokens':1}", ""), 1, 0.03125);
    expect_targets(submitted("{'prompt':'ab','max_tokens':1,'slo_ttft_ms':0}", ""), 0, 0.03125);
    t.s.config.slo_ttft_ms = t.s.config.slo_tpot_ms = 0;
}

static void wrong_targets_are_refused(void **state)
{
    static const char *const headers[] = {"x-llm-d-slo-ttft-ms: soon", "x-llm-d-slo-tpot-ms: -1",
                                          "x-slo-ttft-ms: 3600001", "x-llm-d-slo-ttft-ms: nan",
                                          "x-llm-d-slo-ttft-ms: 5ms"};
    static const char *const bodies[] = {"{'prompt':'ab','slo_ttft_ms':-1}",
                                         "{'prompt':'ab','slo_ttft_ms':3600001}",
                                         "{'prompt':'ab','slo_tpot_ms':'fast'}"};
    char key[128];

    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        snprintf(key, sizeof key, "none\r\n%s", headers[i]);
        const char *answer = http_test_read(
            &t, http_test_send_body(&t, "POST", COMPLETIONS, key, "{'prompt':'ab'}"));
        expect(answer, "HTTP/1.1 400");
        expect(answer, "expected milliseconds from 0 (no target) to 3600000");
    }
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        const char *answer = post(bodies[i]);
        expect(answer, "HTTP/1.1 400");
        expect(answer, "slo_t");
    }
}

static void metrics_have_predictions_and_targets(void **state)
{
    static const char *const lines[] = {
        "tarn:estimated_ttft_seconds{model_name=\"m\",engine=\"0\"} 0.375\n",
        "tarn:estimated_e2e_seconds{model_name=\"m\",engine=\"0\"} 1.375\n",
        "tarn:estimate_ttft_error_count{model_name=\"m\",engine=\"0\"} 1\n",
        "of=\"ttft\",waits=\"false\",quantile=\"0.9\"} 2.5\n",
        "target=\"ttft\",result=\"met\"} 91\n",
        "target=\"tpot\",result=\"missed\"} 94\n",
        "target=\"all\",result=\"met\"} 95\n",
        "tarn:slo_rejected_total{model_name=\"m\",engine=\"0\"} 97\n",
    };
    const char *page = http_test_ask(&t, "GET", "/metrics", "none");

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect(page, lines[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_streams_carry_the_prediction),
        cmocka_unit_test(of_several_answers_the_first_token_and_the_last_end_count),
        cmocka_unit_test(a_stream_that_fails_at_once_says_why),
        cmocka_unit_test(a_full_queue_says_when_to_come_again),
        cmocka_unit_test(an_estimate_follows_its_query),
        cmocka_unit_test(wrong_queries_are_refused_by_name),
        cmocka_unit_test(targets_come_from_header_body_and_options_in_this_order),
        cmocka_unit_test(wrong_targets_are_refused),
        cmocka_unit_test(metrics_have_predictions_and_targets),
    };

    http_test_open(&t, "m", "", "");
    t.s.config.trust_router_headers = true;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    http_test_close(&t);
    return failed;
}
