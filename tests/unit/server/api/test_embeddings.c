/* api_embeddings.c, embedding_request.c, embeddings.c: POST /v1/embeddings over a fake embedder. */
#include "tests/unit/server/http/http_test.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "server/api/embedding_request.h"
#include "server/api/embeddings.h"
#include "server/auth/auth.h"
#include "tests/unit/server/fake_embedder.h"

#define PATH "/v1/embeddings"
#define KEY "sk-00000001"
#define POLL_NS UINT64_C(1000000)

static char key_file[] = "/tmp/tarn-test-embeddings-XXXXXX";
static struct http_test t;

static void write_keys(void)
{
    FILE *f = fopen(key_file, "w");

    assert_non_null(f);
    fprintf(f, "{\"keys\": [{\"name\": \"one\", \"key\": \"" KEY "\"},"
               "{\"name\": \"few\", \"key\": \"sk-00000002\", \"tokens_per_minute\": 20}]}");
    assert_int_equal(fclose(f), 0);
}

static const char *ask_as(const char *key, const char *body)
{
    return http_test_read(&t, http_test_send_body(&t, "POST", PATH, key, body));
}

/* The answer to a body, which is a 200; the caller owns a reference. */
static struct json *answer(const char *body)
{
    const char *text = ask_as(KEY, body);

    if (!strstr(text, "HTTP/1.1 200"))
        fail_msg("%s: %s", body, text);
    return http_test_json(&t);
}

static const struct json *vector_of(const struct json *answer, size_t i)
{
    const struct json *entry = js_at(js_get(answer, "data"), i);

    assert_int_equal(js_int(js_get(entry, "index")), i);
    return js_get(entry, "embedding");
}

static void same_vectors(const struct json *a, const struct json *b)
{
    assert_true(js_len(a) > 0);
    assert_int_equal(js_len(a), js_len(b));
    for (size_t i = 0; i < js_len(a); i++)
        assert_true(js_number(js_at(a, i)) == js_number(js_at(b, i)));
}

/* Both bodies have the same vector as their first one. */
static void same_answers(const char *one, const char *two)
{
    struct json *a = answer(one), *b = answer(two);

    same_vectors(vector_of(a, 0), vector_of(b, 0));
    js_unref(a);
    js_unref(b);
}

static int64_t n_tokens(const char *body)
{
    struct json *a = answer(body);
    int64_t n = js_int(js_get(js_get(a, "usage"), "prompt_tokens"));

    assert_int_equal(js_int(js_get(js_get(a, "usage"), "total_tokens")), n);
    js_unref(a);
    return n;
}

static void each_kind_of_input_is_answered_in_order(void **state)
{
    struct json *all = answer("{'input':['a','bc',[97,98],[5]]}"), *one;
    static const char *const bodies[] = {"{'input':'a'}", "{'input':['bc']}", "{'input':[97,98]}",
                                         "{'input':[[5]]}"};

    (void)state;
    assert_string_equal(js_string(js_get(all, "object"), NULL), "list");
    assert_string_equal(js_string(js_get(all, "model"), NULL), "./tests");
    assert_int_equal(js_len(js_get(all, "data")), 4);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        one = answer(bodies[i]);
        same_vectors(vector_of(one, 0), vector_of(all, i));
        js_unref(one);
    }
    js_unref(all);
}

static void special_tokens_are_those_of_the_tokenizer_unless_left_out(void **state)
{
    (void)state;
    same_answers("{'input':'ab'}", "{'input':[256,97,98,257]}");
    same_answers("{'input':'ab','add_special_tokens':false}", "{'input':[97,98]}");
}

static void only_an_input_type_brings_a_prompt(void **state)
{
    (void)state;
    same_answers("{'input':'a','input_type':'query'}", "{'input':'q:a'}");
    same_answers("{'input':'a','input_type':'document'}", "{'input':'d:a'}");
    same_answers("{'input':[7],'input_type':'query'}", "{'input':[7]}");
}

static void a_cut_text_keeps_its_closing_token(void **state)
{
    (void)state;
    same_answers("{'input':'abcdef','truncate_prompt_tokens':4}", "{'input':[256,97,98,257]}");
    same_answers("{'input':[1,2,3],'truncate_prompt_tokens':2}", "{'input':[1,2]}");
    same_answers("{'input':'abc','add_special_tokens':false,'truncate_prompt_tokens':1}",
                 "{'input':[97]}");
    assert_int_equal(
        n_tokens("{'input':['a','aaaaaaaaaaaaaaaaaaaaaa'],'truncate_prompt_tokens':-1}"),
        3 + FAKE_MAX_TOKENS);
}

static void dimensions_give_the_first_numbers_with_length_1(void **state)
{
    struct json *whole = answer("{'input':'a'}"), *cut = answer("{'input':'a','dimensions':2}");
    double x = js_number(js_at(vector_of(whole, 0), 0));
    double y = js_number(js_at(vector_of(whole, 0), 1));
    double u = js_number(js_at(vector_of(cut, 0), 0)), v = js_number(js_at(vector_of(cut, 0), 1));

    (void)state;
    assert_int_equal(js_len(vector_of(whole, 0)), FAKE_DIM);
    assert_int_equal(js_len(vector_of(cut, 0)), 2);
    assert_float_equal(u * u + v * v, 1, 1e-6);
    assert_float_equal(u * y, v * x, 1e-6);
    js_unref(whole);
    js_unref(cut);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *body, *words;
    } cases[] = {
        {"{}", "\"message\":\"input: is required"},
        {"{'input':''}", "input: must not be empty"},
        {"{'input':[]}", "input: must not be empty"},
        {"{'input':['a','']}", "input[1]: must not be empty"},
        {"{'input':[[1],[]]}", "input[1]: must not be empty"},
        {"{'input':3}", "input: expected a text or an array of token ids, got an integer"},
        {"{'input':['a',null]}", "input[1]: expected"},
        {"{'input':[1,'a']}", "input[1]: expected a token id"},
        {"{'input':[1,258]}", "input[1]: token id 258 is outside of [0, 258)"},
        {"{'input':[-1]}", "token id -1 is outside"},
        {"{'input':'a','encoding_format':'int8'}", "encoding_format"},
        {"{'input':'a','input_type':'x'}", "input_type"},
        {"{'input':'a','dimensions':0}", "dimensions"},
        {"{'input':'a','dimensions':9}", "dimensions"},
        {"{'input':[0],'dimensions':2}", "dimensions: the first 2 elements"},
        {"{'input':'a','user':3}", "user"},
        {"{'input':'a','truncate_prompt_tokens':0}", "truncate_prompt_tokens"},
        {"{'input':'a','truncate_prompt_tokens':-2}", "truncate_prompt_tokens"},
        {"{'input':'a','truncate_prompt_tokens':17}", "truncate_prompt_tokens"},
        {"{'input':'a','add_special_tokens':1}", "add_special_tokens"},
        {"{'input':['a','abcdefghijklmno']}", "\"param\":\"input[1]\""},
        {"{'input':'abcdefghijklmno'}", "context_length_exceeded"},
        {"{'input':'abcdefghijklmno'}", "maximum context length is 16 tokens"},
        {"{'input':", "malformed_json"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *text = ask_as(KEY, cases[i].body);
        if (!strstr(text, "HTTP/1.1 400") || !strstr(text, cases[i].words))
            fail_msg("%s: %s", cases[i].body, text);
    }
}

static void a_misspelt_field_is_reported(void **state)
{
    (void)state;
    assert_non_null(strstr(ask_as(KEY, "{'input':'a','inptu':1}"),
                           "X-Tarn-Ignored-Fields: inptu (did you mean input?)"));
}

/* Read a body of its own with n entries, each of ids [n_each]. */
static enum status read_many(uint32_t n, uint32_t n_each, struct buf *why)
{
    struct embedding_request r;
    struct json *body = js_new_object(), *list = js_new_array();

    for (uint32_t i = 0; i < n; i++) {
        struct json *ids = js_new_array();
        for (uint32_t k = 0; k < n_each; k++)
            assert_ok(js_push(ids, js_new_int(k % FAKE_EMBEDDER_N_VOCAB)));
        assert_ok(js_push(list, ids));
    }
    assert_ok(js_set(body, "input", list));
    enum status s = embedding_request_read(&r, &t.s.srv, body, why);
    if (s == OK)
        assert_int_equal(embedding_request_n_tokens(&r), n * n_each);
    embedding_request_fini(&r);
    js_unref(body);
    return s;
}

static void inputs_are_bounded(void **state)
{
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(read_many(EMBEDDING_N_INPUTS_MAX, FAKE_MAX_TOKENS, &why));
    assert_int_equal(read_many(EMBEDDING_N_INPUTS_MAX + 1, 1, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "input: 2049 entries, at most 2048 are taken");
    assert_int_equal(read_many(1, FAKE_MAX_TOKENS + 1, &why), ERR_TOO_LARGE);
    atomic_store(&fake_embedder_max_tokens, 10000);
    assert_ok(read_many(EMBEDDING_N_TOKENS_MAX / 10000, 10000, &why));
    assert_int_equal(read_many(EMBEDDING_N_TOKENS_MAX / 9999 + 1, 9999, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why),
                        "input: more than 300000 tokens in all; send fewer inputs at once");
    atomic_store(&fake_embedder_max_tokens, FAKE_MAX_TOKENS);
    buf_fini(&why);
}

static void the_model_has_its_name_and_the_last_part_of_it(void **state)
{
    (void)state;
    same_answers("{'input':'a','model':'tests'}", "{'input':'a','model':'./tests'}");
    assert_non_null(strstr(ask_as(KEY, "{'input':'a','model':'m'}"), "HTTP/1.1 404"));
    assert_non_null(strstr(buf_str(&t.text), "model_not_found"));
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models", KEY), "\"id\":\"./tests\""));
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models/tests", KEY), "\"id\":\"tests\""));
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models/m", KEY), "\"id\":\"m\""));
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models/x", KEY), "HTTP/1.1 404"));
}

static void without_an_embedding_model_the_flag_is_named(void **state)
{
    struct embeddings *own = t.s.srv.embeddings;

    (void)state;
    t.s.srv.embeddings = NULL;
    assert_non_null(strstr(ask_as(KEY, "{'input':'a'}"), "HTTP/1.1 404"));
    assert_non_null(strstr(buf_str(&t.text), "--embedding-model"));
    assert_null(strstr(http_test_ask(&t, "GET", "/v1/models", KEY), "./tests"));
    t.s.srv.embeddings = own;
}

static void tokens_count_towards_the_limit_of_the_key(void **state)
{
    (void)state;
    assert_non_null(strstr(ask_as("sk-wrong", "{'input':'a'}"), "HTTP/1.1 401"));
    assert_non_null(
        strstr(ask_as("sk-00000002", "{'input':[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"), "HTTP/1.1 200"));
    assert_non_null(strstr(buf_str(&t.text), "x-ratelimit-remaining-tokens: 5"));
    assert_non_null(
        strstr(ask_as("sk-00000002", "{'input':[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}"), "HTTP/1.1 429"));
    assert_non_null(strstr(ask_as("sk-00000002", "{'input':['abcdefgh','abcdefgh','abcdefgh']}"),
                           "HTTP/1.1 413"));
}

static void wait_for_calls(unsigned n)
{
    while (atomic_load(&fake_embedder_n_begun) < n)
        clock_sleep_ns(POLL_NS);
}

static void unsent_answers_are_bounded(void **state)
{
    struct embeddings *e = t.s.srv.embeddings;

    (void)state;
    assert_true(embeddings_reserve(e, 2 * EMBEDDINGS_BYTES_MAX)); /* alone */
    assert_non_null(strstr(ask_as(KEY, "{'input':'a'}"), "HTTP/1.1 429"));
    embeddings_release(e, 2 * EMBEDDINGS_BYTES_MAX);
    assert_non_null(strstr(ask_as(KEY, "{'input':'a'}"), "HTTP/1.1 200"));
    /* Each exchange has released what it reserved, when its connection is closed. */
    while (http_n_in_flight(t.http) > 0 || !embeddings_reserve(e, EMBEDDINGS_BYTES_MAX))
        clock_sleep_ns(POLL_NS);
    assert_false(embeddings_reserve(e, 1));
    embeddings_release(e, EMBEDDINGS_BYTES_MAX);
}

static void a_client_that_leaves_ends_its_work(void **state)
{
    (void)state;
    atomic_store(&fake_embedder_n_begun, 0);
    atomic_store(&fake_embedder_is_held, true);
    int fd = http_test_send_body(&t, "POST", PATH, KEY, "{'input':['a','b','c','d']}");
    wait_for_calls(1);
    close(fd);
    while (http_n_in_flight(t.http) > 0)
        clock_sleep_ns(POLL_NS);
    atomic_store(&fake_embedder_is_held, false);
    assert_non_null(strstr(ask_as(KEY, "{'input':'a'}"), "HTTP/1.1 200"));
    assert_int_equal(atomic_load(&fake_embedder_n_begun), 2);
}

static void other_requests_are_served_while_vectors_are_computed(void **state)
{
    (void)state;
    atomic_store(&fake_embedder_n_begun, 0);
    atomic_store(&fake_embedder_is_held, true);
    int fd = http_test_send_body(&t, "POST", PATH, KEY, "{'input':'a'}");
    wait_for_calls(1);
    assert_non_null(strstr(http_test_ask(&t, "GET", "/v1/models", KEY), "HTTP/1.1 200"));
    atomic_store(&fake_embedder_is_held, false);
    assert_non_null(strstr(http_test_read(&t, fd), "HTTP/1.1 200"));
}

/* As at the end of a drain. */
static void a_cancelled_request_is_answered(void **state)
{
    (void)state;
    atomic_store(&fake_embedder_n_begun, 0);
    atomic_store(&fake_embedder_is_held, true);
    int fd = http_test_send_body(&t, "POST", PATH, KEY, "{'input':['a','b']}");
    wait_for_calls(1);
    http_cancel_all(t.http);
    assert_non_null(strstr(http_test_read(&t, fd), "HTTP/1.1 503"));
    atomic_store(&fake_embedder_is_held, false);
}

static int start(void **state)
{
    int fd = mkstemp(key_file);

    (void)state;
    if (fd < 0 || hash_init() != OK)
        return 1;
    close(fd);
    write_keys();
    http_test_open(&t, "m", key_file, "sk-admin");
    t.s.config.cpu_variant = (char *)(uintptr_t) "auto";
    t.s.config.embedding_model = (char *)(uintptr_t)TARN_SOURCE_DIR;
    t.s.config.served_embedding_model_name = (char *)(uintptr_t) "./tests";
    return embeddings_open(&t.s.srv.embeddings, &t.s.srv, EMBEDDINGS_VECTORS, NULL) == OK ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    http_stop(t.http);
    embeddings_close(t.s.srv.embeddings);
    http_test_close(&t);
    unlink(key_file);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_input_is_answered_in_order),
        cmocka_unit_test(special_tokens_are_those_of_the_tokenizer_unless_left_out),
        cmocka_unit_test(only_an_input_type_brings_a_prompt),
        cmocka_unit_test(a_cut_text_keeps_its_closing_token),
        cmocka_unit_test(dimensions_give_the_first_numbers_with_length_1),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_misspelt_field_is_reported),
        cmocka_unit_test(inputs_are_bounded),
        cmocka_unit_test(the_model_has_its_name_and_the_last_part_of_it),
        cmocka_unit_test(without_an_embedding_model_the_flag_is_named),
        cmocka_unit_test(tokens_count_towards_the_limit_of_the_key),
        cmocka_unit_test(unsent_answers_are_bounded),
        cmocka_unit_test(a_client_that_leaves_ends_its_work),
        cmocka_unit_test(other_requests_are_served_while_vectors_are_computed),
        cmocka_unit_test(a_cancelled_request_is_answered),
    };

    return cmocka_run_group_tests(tests, start, end);
}
