/* What the server does for routers, over a socket with the fake engine: headers that only a trusted
 * router may set, the reason of refusals, and the render endpoints. */
#include "tests/unit/server/http/http_test.h"

#include <stdlib.h>

#include "server/api/router.h"

#define CHAT "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define BODY "{'prompt':'ab','max_tokens':1,'priority':5}"
#define FLOW "x-llm-d-inference-fairness-id: "
#define OBJECTIVE "x-llm-d-inference-objective: "

static struct http_test t;

static void expect(const char *answer, const char *words)
{
    if (!strstr(answer, words))
        fail_msg("\"%s\" is not in: %s", words, answer);
}

static const char *post(const char *path, const char *json)
{
    return http_test_read(&t, http_test_send_body(&t, "POST", path, "none", json));
}

static const char *answer_to(const char *headers)
{
    char key[512];

    /* The helper writes the key into a header line: more lines may follow it. */
    snprintf(key, sizeof key, "none\r\n%s", headers);
    return http_test_read(&t, http_test_send_body(&t, "POST", COMPLETIONS, key, BODY));
}

static struct fake_submitted submitted(const char *headers)
{
    struct fake_submitted seen[FAKE_N_SUBMITTED_MAX];

    (void)fake_engine_submitted(t.s.engine, seen);
    expect(answer_to(headers), "HTTP/1.1 200");
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 1);
    return seen[0];
}

static void no_header_counts_unless_routers_are_trusted(void **state)
{
    (void)state;
    t.s.config.trust_router_headers = false;
    struct fake_submitted r = submitted(FLOW "a\r\n" OBJECTIVE "premium\r\n"
                                             "x-llm-d-slo-ttft-ms: 500\r\n"
                                             "x-slo-tpot-ms: not read");
    t.s.config.trust_router_headers = true;
    assert_true(r.flow == 0 && r.priority == 5 && r.slo_ttft_s == 0 && r.slo_tpot_s == 0);
}

static void a_flow_has_one_number(void **state)
{
    struct fake_submitted a = submitted(FLOW "a"), b = submitted(FLOW "b"),
                          old = submitted("x-gateway-inference-fairness-id: a"),
                          none = submitted(FLOW), plain = submitted("x-other: 1");
    char too_long[ROUTER_FLOW_BYTES_MAX + 64] = FLOW;

    (void)state;
    assert_true(a.flow != 0 && b.flow != 0 && a.flow != b.flow);
    assert_true(old.flow == a.flow && a.tenant == b.tenant);
    assert_true(none.flow == 0 && plain.flow == 0);
    memset(too_long + strlen(FLOW), 'x', ROUTER_FLOW_BYTES_MAX + 1);
    expect(answer_to(too_long), "HTTP/1.1 400");
}

static void an_objective_is_the_priority_of_its_name(void **state)
{
    (void)state;
    assert_int_equal(submitted(OBJECTIVE "premium").priority, -10);
    assert_int_equal(submitted(OBJECTIVE "batch").priority, 3);
    assert_int_equal(submitted("x-gateway-inference-objective: batch").priority, 3);
    assert_int_equal(submitted(OBJECTIVE "prem").priority, 5); /* the body's */
}

static void the_number_of_flows_is_bounded(void **state)
{
    char headers[64];
    uint64_t first = submitted(FLOW "first").flow, last[2];

    (void)state;
    for (uint32_t i = router_n_flows(t.s.srv.router_flows); i < ROUTER_N_FLOWS_MAX; i++) {
        snprintf(headers, sizeof headers, FLOW "flow %u", i);
        (void)answer_to(headers);
    }
    assert_int_equal(router_n_flows(t.s.srv.router_flows), ROUTER_N_FLOWS_MAX);
    last[0] = submitted(FLOW "one too many").flow;
    last[1] = submitted(FLOW "and another").flow;
    assert_true(last[0] == last[1] && last[0] != 0 && last[0] != first);
    assert_int_equal(submitted(FLOW "first").flow, first);
    assert_int_equal(router_n_flows(t.s.srv.router_flows), ROUTER_N_FLOWS_MAX);
}

static void a_refusal_names_its_reason(void **state)
{
    (void)state;
    atomic_store(&t.s.srv.draining, true);
    const char *answer = post(COMPLETIONS, BODY);
    atomic_store(&t.s.srv.draining, false);
    expect(answer, "HTTP/1.1 503");
    expect(answer, "x-llm-d-request-dropped-reason: rejected-shutting-down\r\n");
    expect(answer, "Retry-After: ");
}

/* --- render --- */

static void rendering_answers_ids_and_submits_nothing(void **state)
{
    struct fake_submitted seen[FAKE_N_SUBMITTED_MAX];

    (void)state;
    (void)fake_engine_submitted(t.s.engine, seen);
    expect(post(COMPLETIONS "/render", "{'prompt':[[5,6,7],[8]],'max_tokens':3,'stream':true}"),
           "HTTP/1.1 200");
    struct json *list = http_test_json(&t);
    assert_int_equal(js_len(list), 2);
    const struct json *ids = js_get(js_at(list, 0), "token_ids");
    assert_int_equal(js_len(ids), 3);
    assert_int_equal(js_number(js_at(ids, 2)), 7);
    assert_int_equal(js_number(js_get(js_get(js_at(list, 1), "sampling_params"), "max_tokens")), 3);
    js_unref(list);
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
}

static void rendering_refuses_what_the_endpoint_refuses(void **state)
{
    static const char *const bodies[] = {"{}",
                                         "{'prompt':'a','temperature':-1}",
                                         "{'prompt':'a','model':'other'}",
                                         "{'prompt':'a','n':100000}",
                                         "{'prompt':[99999999]}",
                                         "{'prompt':'a','suffix':'b'}",
                                         "["};

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char rendered[64], served[64];
        snprintf(served, sizeof served, "%s", post(COMPLETIONS, bodies[i]));
        snprintf(rendered, sizeof rendered, "%s", post(COMPLETIONS "/render", bodies[i]));
        assert_memory_equal(served, rendered, strlen("HTTP/1.1 400"));
        assert_true(strncmp(served, "HTTP/1.1 4", 10) == 0);
    }
    expect(http_test_ask(&t, "GET", CHAT "/render", "none"), "HTTP/1.1 405");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_header_counts_unless_routers_are_trusted),
        cmocka_unit_test(a_flow_has_one_number),
        cmocka_unit_test(an_objective_is_the_priority_of_its_name),
        cmocka_unit_test(the_number_of_flows_is_bounded),
        cmocka_unit_test(a_refusal_names_its_reason),
        cmocka_unit_test(rendering_answers_ids_and_submits_nothing),
        cmocka_unit_test(rendering_refuses_what_the_endpoint_refuses),
    };

    http_test_open(&t, "m", "", "");
    t.s.config.trust_router_headers = true;
    t.s.config.router_objectives = (char *)(uintptr_t) "premium=10, batch=-3";
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    http_test_close(&t);
    return failed;
}
