/* test_call.c - tenant, session and priority of a request, as passed to the engine. */
#include "tests/unit/server/http/http_test.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"

#define COMPLETIONS "/v1/completions"

static char key_file[] = "/tmp/tarn-test-call-XXXXXX";
static struct http_test t;
static struct fake_submitted seen[FAKE_N_SUBMITTED_MAX];

/* Post a request. `seen` gets the engine's submissions; returns their number. */
static uint32_t post(const char *path, const char *key, const char *json)
{
    const char *answer = http_test_read(&t, http_test_send_body(&t, "POST", path, key, json));

    if (!strstr(answer, "HTTP/1.1 200"))
        fail_msg("%s: %s", json, answer);
    return fake_engine_submitted(t.s.engine, seen);
}

static struct fake_submitted post_one(const char *key, const char *json)
{
    assert_int_equal(post(COMPLETIONS, key, json), 1);
    return seen[0];
}

#define IN_SESSION "{'prompt':'ab','max_tokens':1,'session_id':'agent-7'}"

static void a_session_is_one_tenants(void **state)
{
    struct fake_submitted first = post_one("sk-00000001", IN_SESSION);
    struct fake_submitted mate = post_one("sk-00000002", IN_SESSION);
    struct fake_submitted other = post_one("sk-00000003", IN_SESSION);
    struct fake_submitted alone = post_one("sk-00000004", IN_SESSION);

    (void)state;
    assert_true(first.session != 0 && first.tenant != 0);
    assert_true(mate.tenant == first.tenant && mate.session == first.session);
    assert_true(other.tenant != first.tenant && other.session != first.session);
    assert_true(alone.tenant != first.tenant && alone.session != first.session);
    assert_true(alone.tenant != other.tenant && alone.session != other.session);
}

static void what_was_not_said_is_zero(void **state)
{
    (void)state;
    struct fake_submitted r = post_one("sk-00000001", "{'prompt':'ab','max_tokens':1}");
    assert_true(r.session == 0);
    assert_int_equal(r.priority, 0);
    assert_int_equal(post("/v1/chat/completions", "sk-00000001",
                          "{'messages':[{'role':'user','content':'x'}],'max_tokens':1,"
                          "'session_id':null}"),
                     1);
    assert_true(seen[0].session == 0 && seen[0].tenant == r.tenant);
}

static void every_choice_belongs_to_the_session(void **state)
{
    struct fake_submitted first = post_one("sk-00000001", IN_SESSION);

    (void)state;
    assert_int_equal(post(COMPLETIONS, "sk-00000001",
                          "{'prompt':['ab','cd'],'n':3,'max_tokens':1,'session_id':'agent-7',"
                          "'priority':-2}"),
                     6);
    for (int i = 0; i < 6; i++) {
        assert_true(seen[i].session == first.session && seen[i].tenant == first.tenant);
        assert_int_equal(seen[i].priority, -2);
    }
    assert_int_equal(post("/v1/chat/completions", "sk-00000002",
                          "{'messages':[{'role':'user','content':'x'}],'n':2,'max_tokens':1,"
                          "'session_id':'agent-7','stream':true}"),
                     2);
    assert_true(seen[0].session == first.session && seen[1].session == first.session);
}

static void a_wrong_session_reaches_no_engine(void **state)
{
    (void)state;
    const char *answer =
        http_test_read(&t, http_test_send_body(&t, "POST", COMPLETIONS, "sk-00000001",
                                               "{'prompt':'ab','max_tokens':1,'session_id':7}"));
    assert_non_null(strstr(answer, "HTTP/1.1 400"));
    struct json *j = http_test_json(&t);
    assert_string_equal(js_string(js_get(js_get(j, "error"), "param"), NULL), "session_id");
    js_unref(j);
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
}

/* Answer of a path of /v1/sessions/. */
static const char *ask_session(const char *method, const char *key, const char *path)
{
    char full[400];

    snprintf(full, sizeof full, "/v1/sessions/%s", path);
    return http_test_read(&t, http_test_send_body(&t, method, full, key, ""));
}

static void a_session_is_seen_and_closed_by_its_tenant_only(void **state)
{
    char longest[270];

    (void)state;
    fake_engine_submitted(t.s.engine, seen);
    (void)http_test_read(&t,
                         http_test_send_body(&t, "POST", COMPLETIONS, "sk-00000001", IN_SESSION));
    assert_non_null(strstr(ask_session("GET", "sk-00000002", "agent-7"), "\"requests\":1"));
    js_unref(http_test_json(&t));
    assert_non_null(strstr(ask_session("GET", "sk-00000003", "agent-7"), "HTTP/1.1 404"));
    assert_non_null(
        strstr(ask_session("POST", "sk-00000003", "agent-7/close"), "\"closed\":false"));
    assert_non_null(strstr(ask_session("GET", "sk-00000001", "agent-7"), "HTTP/1.1 200"));
    assert_non_null(strstr(ask_session("POST", "sk-00000002", "%61gent%2D7/close"),
                           "\"id\":\"agent-7\",\"closed\":true"));
    assert_non_null(strstr(ask_session("GET", "sk-00000001", "agent-7"), "HTTP/1.1 404"));
    assert_non_null(
        strstr(ask_session("POST", "sk-00000001", "agent-7/close"), "\"closed\":false"));
    assert_non_null(strstr(ask_session("POST", "sk-00000001", "agent-7"), "HTTP/1.1 404"));
    assert_non_null(strstr(ask_session("PUT", "sk-00000001", "agent-7"), "Allow: GET, HEAD, POST"));
    assert_non_null(strstr(ask_session("GET", "sk-9", "agent-7"), "HTTP/1.1 401"));
    assert_non_null(strstr(ask_session("POST", "sk-00000001", "/close"), "HTTP/1.1 400"));
    memset(longest, 'a', sizeof longest);
    memcpy(longest + 257, "/close", sizeof "/close");
    assert_non_null(strstr(ask_session("POST", "sk-00000001", longest), "HTTP/1.1 400"));
    atomic_store(&fake_is_stuck, true);
    assert_non_null(strstr(ask_session("POST", "sk-00000001", "a/close"), "HTTP/1.1 503"));
    atomic_store(&fake_is_stuck, false);
    fake_engine_submitted(t.s.engine, seen);
}

/* Refused at once, because the queue can never have that much room. */
static void more_answers_than_the_server_takes_in_are_refused(void **state)
{
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"{'prompt':'ab','n':105}", "n: 105 answers for 1 prompts are more than the 104"},
        {"{'prompt':'ab','best_of':105}", "best_of: 105 answers for 1 prompts"},
        {"{'prompt':['ab','cd'],'n':53}", "n: 53 answers for 2 prompts are more than the 104"},
        {"{'prompt':['ab','cd'],'n':65}", "n: 65 answers for 2 prompts are more than 128"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *answer = http_test_read(
            &t, http_test_send_body(&t, "POST", COMPLETIONS, "sk-00000001", cases[i].json));
        if (!strstr(answer, "HTTP/1.1 400") || !strstr(answer, cases[i].words))
            fail_msg("%s: %s", cases[i].json, answer);
        assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
    }
    post(COMPLETIONS, "sk-00000001", "{'prompt':['ab','cd'],'n':52,'max_tokens':1}");
}

/* Only one of the requests of a call computes the prompt's logprobs. */
static void an_answer_has_the_prompts_logprobs_beside_its_own(void **state)
{
    (void)state;
    const char *answer = http_test_read(
        &t, http_test_send_body(&t, "POST", COMPLETIONS, "sk-00000001",
                                "{'prompt':'xy','n':2,'max_tokens':2,'echo':true,'logprobs':1}"));
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    struct json *j = http_test_json(&t);
    for (size_t i = 0; i < 2; i++) {
        const struct json *c = js_at(js_get(j, "choices"), i), *lp = js_get(c, "logprobs");
        const struct json *values = js_get(lp, "token_logprobs");
        assert_string_equal(js_string(js_get(c, "text"), NULL), "xyab");
        assert_int_equal(js_len(values), 5); /* <s>, x, y, a, b */
        assert_true(js_is(js_at(values, 0), JS_NULL));
        assert_true(js_number(js_at(values, 1)) == -1 && js_number(js_at(values, 2)) == -2);
        assert_true(js_number(js_at(values, 3)) == -0.5);
        assert_true(js_is(js_at(js_get(lp, "top_logprobs"), 0), JS_NULL));
        assert_true(js_number(js_get(js_at(js_get(lp, "top_logprobs"), 2), "y")) == -2);
    }
    js_unref(j);
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 2);
}

static void without_keys_all_are_one_tenant(void **state)
{
    struct http_test open;
    struct fake_submitted r[2];

    (void)state;
    http_test_open(&open, "m", "", "");
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "sk-any" : "";
        http_test_read(&open, http_test_send_body(&open, "POST", COMPLETIONS, key, IN_SESSION));
        assert_int_equal(fake_engine_submitted(open.s.engine, seen), 1);
        r[i] = seen[0];
    }
    assert_true(r[0].tenant == r[1].tenant && r[0].session == r[1].session && r[0].session != 0);
    http_test_close(&open);
}

/* --- a call that waits: its documents are looked up --- */

#define LOOKUP                                                                                     \
    "{'messages':[{'role':'user','content':'x'}],'max_tokens':1,'documents_order':'cache',"        \
    "'documents':[{'text':'a'},{'text':'b'}]}"

/* Send it, and return when its lookup has begun, which is held. */
static int send_held(void)
{
    unsigned n = atomic_load(&fake_n_orders);

    atomic_store(&fake_order_is_held, true);
    int fd = http_test_send_body(&t, "POST", "/v1/chat/completions", "sk-00000001", LOOKUP);
    while (atomic_load(&fake_n_orders) == n)
        clock_sleep_ns(100000);
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
    return fd;
}

/* The lookup that is held goes on, and ends. */
static void release(void)
{
    unsigned n = atomic_load(&fake_n_orders);

    atomic_store(&fake_order_is_held, false);
    while (atomic_load(&fake_n_ordered) != n)
        clock_sleep_ns(100000);
}

/* Nothing is in flight: http_n_in_flight() falls when the exchange is over. */
static void wait_until_over(void)
{
    while (http_n_in_flight(t.http) > 0)
        clock_sleep_ns(100000);
}

static void a_waiting_call_is_submitted_when_it_is_resumed(void **state)
{
    (void)state;
    int fd = send_held();
    /* There is one HTTP thread, and the call does not hold it. */
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models", "sk-00000001"), "HTTP/1.1 200"));
    assert_int_equal(post(COMPLETIONS, "sk-00000002", IN_SESSION), 1);
    release();
    assert_non_null(strstr(http_test_read(&t, fd), "HTTP/1.1 200"));
    assert_non_null(strstr(buf_str(&t.text), "\"order\":[1,0]"));
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 1);
}

static void a_client_that_leaves_while_its_call_waits_has_nothing_submitted(void **state)
{
    (void)state;
    close(send_held());
    wait_until_over();
    release(); /* the work ends after the call */
    post(COMPLETIONS, "sk-00000001", "{'prompt':'ab','max_tokens':1}");
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0); /* beside that one */
}

static void a_call_that_waits_too_long_answers_503(void **state)
{
    (void)state;
    t.s.srv.wait_timeout_ns = 100000000; /* the lookup is held for longer */
    int fd = send_held();
    assert_non_null(strstr(http_test_read(&t, fd), "HTTP/1.1 503"));
    assert_non_null(strstr(buf_str(&t.text), "documents_order: the lookup took too long"));
    wait_until_over();
    release();
    t.s.srv.wait_timeout_ns = UINT64_C(1000000000000);
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
}

static void a_stream_may_wait_too(void **state)
{
    (void)state;
    int fd = http_test_send_body(&t, "POST", "/v1/chat/completions", "sk-00000001",
                                 "{'stream':true,'messages':[{'role':'user','content':'x'}],"
                                 "'max_tokens':1,'documents_order':'cache',"
                                 "'documents':[{'text':'a'},{'text':'b'}]}");
    assert_non_null(strstr(http_test_read(&t, fd), "[DONE]"));
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 1);
}

static void what_is_wrong_with_a_waiting_call_is_answered(void **state)
{
    (void)state;
    const char *answer = http_test_read(
        &t, http_test_send_body(&t, "POST", "/v1/chat/completions", "sk-00000001",
                                "{'messages':[{'role':'user','content':7}],"
                                "'documents_order':'cache','documents':[{'text':'a'}]}"));
    assert_non_null(strstr(answer, "HTTP/1.1 400"));
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 0);
}

#define CITED                                                                                      \
    "'messages':[{'role':'user','content':'x'}],'max_tokens':26,'citations':true,"                 \
    "'documents':[{'title':'Vomta','text':'a','id':'v'},{'title':'Else','text':'b'}]}"

static void marks_in_an_answer_are_listed_as_citations(void **state)
{
    static const char *const bodies[] = {"{'stream':true," CITED, "{" CITED};
    static const char found[] =
        "\"citations\":[{\"start\":4,\"end\":11,\"place\":0,\"document_id\":\"v\","
        "\"title\":\"Vomta\"},{\"start\":20,\"end\":26,\"place\":1,\"document_id\":null,"
        "\"title\":\"Else\"}]";

    struct engine_info *info = (struct engine_info *)(uintptr_t)t.s.srv.info;
    const uint32_t usual_len = info->max_model_len;

    (void)state;
    info->max_model_len = 1000; /* room for the line that asks for citations */
    const char *usual = atomic_exchange(&fake_text, "It: [Vomta] [None]. [else]");
    for (int i = 0; i < 2; i++) {
        (void)http_test_read(
            &t, http_test_send_body(&t, "POST", "/v1/chat/completions", "sk-00000001", bodies[i]));
        if (!strstr(buf_str(&t.text), found))
            fail_msg("%s", buf_str(&t.text));
    }
    atomic_store(&fake_text, usual);
    info->max_model_len = usual_len;
    assert_int_equal(fake_engine_submitted(t.s.engine, seen), 2);
}

static int start(void **state)
{
    int fd = mkstemp(key_file);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;

    (void)state;
    if (!f || hash_init() != OK)
        return 1;
    fprintf(f, "{\"keys\": ["
               "{\"name\": \"one\", \"key\": \"sk-00000001\", \"tenant\": \"a\"},"
               "{\"name\": \"two\", \"key\": \"sk-00000002\", \"tenant\": \"a\"},"
               "{\"name\": \"three\", \"key\": \"sk-00000003\", \"tenant\": \"b\"},"
               "{\"name\": \"four\", \"key\": \"sk-00000004\"}]}");
    if (fclose(f) != 0)
        return 1;
    http_test_open(&t, "m", key_file, "");
    t.s.srv.wait_timeout_ns = UINT64_C(1000000000000); /* longer than any machine takes */
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
        cmocka_unit_test(a_session_is_one_tenants),
        cmocka_unit_test(what_was_not_said_is_zero),
        cmocka_unit_test(every_choice_belongs_to_the_session),
        cmocka_unit_test(a_wrong_session_reaches_no_engine),
        cmocka_unit_test(a_session_is_seen_and_closed_by_its_tenant_only),
        cmocka_unit_test(more_answers_than_the_server_takes_in_are_refused),
        cmocka_unit_test(an_answer_has_the_prompts_logprobs_beside_its_own),
        cmocka_unit_test(without_keys_all_are_one_tenant),
        cmocka_unit_test(a_waiting_call_is_submitted_when_it_is_resumed),
        cmocka_unit_test(a_client_that_leaves_while_its_call_waits_has_nothing_submitted),
        cmocka_unit_test(a_call_that_waits_too_long_answers_503),
        cmocka_unit_test(a_stream_may_wait_too),
        cmocka_unit_test(what_is_wrong_with_a_waiting_call_is_answered),
        cmocka_unit_test(marks_in_an_answer_are_listed_as_citations),
    };
    return cmocka_run_group_tests(tests, start, end);
}
