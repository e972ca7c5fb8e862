#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "clients/c/tarn_client.h"

static void expect_body(const struct tarn_request *r, const char *wanted)
{
    struct tarn_body body;
    struct json *parsed;

    assert_int_equal(tarn_body_build(&body, r, NULL, 0), TARN_OK);
    assert_int_equal(body.len, strlen(body.data));
    assert_string_equal(body.data, wanted);
    assert_ok(js_parse(&parsed, body.data, body.len, NULL)); /* refuses duplicate names */
    js_unref(parsed);
    tarn_body_fini(&body);
}

static void refuse(const struct tarn_request *r, const char *words)
{
    struct tarn_body body;
    char why[256];

    assert_int_equal(tarn_body_build(&body, r, why, sizeof why), TARN_ERR_INVALID);
    assert_null(body.data);
    if (!strstr(why, words))
        fail_msg("\"%s\" does not mention %s", why, words);
}

static void only_what_was_set_is_sent(void **state)
{
    static const struct tarn_message hello[] = {{"user", {"Hi \"you\"\n", 0}}};
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_CHAT);
    r.messages = hello;
    r.n_messages = 1;
    expect_body(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi \\\"you\\\"\\n\"}]}");
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"abc", 2};
    r.max_tokens = 0;
    r.temperature = 0;
    expect_body(&r, "{\"prompt\":\"ab\",\"max_tokens\":0,\"temperature\":0}");
}

static void everything_has_its_place(void **state)
{
    static const struct tarn_message two[] = {{"system", {"S", 1}}, {"user", {"U", 1}}};
    static const struct tarn_document documents[] = {{{"T", 1}, {"a", 1}}, {{NULL, 0}, {"b", 1}}};
    static const char *const stops[] = {"x", "\n"};
    static const uint32_t ids[] = {1, 4294967295u};
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_CHAT);
    r.model = "m";
    r.messages = two;
    r.n_messages = 2;
    r.documents = documents;
    r.n_documents = 2;
    r.documents_placement = "system";
    r.stream = r.include_usage = true;
    r.n = 2;
    r.max_tokens = 5;
    r.max_completion_tokens = 6;
    r.seed = -7;
    r.temperature = 0.5;
    r.top_p = 0.9;
    r.presence_penalty = -1;
    r.frequency_penalty = 1;
    r.stop = stops;
    r.n_stop = 2;
    r.logprobs = 1;
    r.top_logprobs = 3;
    r.user = "u";
    r.top_k = 40;
    r.min_tokens = 2;
    r.ignore_eos = 1;
    r.priority = -3;
    r.return_token_ids = 0;
    r.add_special_tokens = 0;
    r.min_p = 0.1;
    r.repetition_penalty = 1.1;
    r.stop_token_ids = ids;
    r.n_stop_token_ids = 2;
    r.session_id = "s";
    r.cache_salt = "c";
    r.cache_ttl = 60;
    r.request_id = "q";
    expect_body(&r, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
                    "{\"role\":\"user\",\"content\":\"U\"}],\"documents\":[{\"title\":\"T\","
                    "\"text\":\"a\"},{\"text\":\"b\"}],\"documents_placement\":\"system\","
                    "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":2,"
                    "\"max_tokens\":5,\"max_completion_tokens\":6,\"seed\":-7,\"temperature\":0.5,"
                    "\"top_p\":0.9,\"presence_penalty\":-1,\"frequency_penalty\":1,"
                    "\"stop\":[\"x\",\"\\n\"],\"logprobs\":true,\"top_logprobs\":3,\"user\":\"u\","
                    "\"top_k\":40,\"min_tokens\":2,\"ignore_eos\":true,\"priority\":-3,"
                    "\"return_token_ids\":false,\"add_special_tokens\":false,\"min_p\":0.1,"
                    "\"repetition_penalty\":1.1,\"stop_token_ids\":[1,4294967295],"
                    "\"session_id\":\"s\",\"cache_salt\":\"c\",\"cache_ttl\":60,"
                    "\"request_id\":\"q\"}");
}

static void documents_are_ids_then_texts_and_may_be_searched(void **state)
{
    static const struct tarn_message hello[] = {{"user", {"Hi", 0}}};
    static const struct tarn_document documents[] = {{{NULL, 0}, {"b", 1}}};
    static const char *const ids[] = {"x", "y \""};
    struct tarn_retrieval t = {.top_k = TARN_UNSET};
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_CHAT);
    r.messages = hello;
    r.n_messages = 1;
    r.document_ids = ids;
    r.n_document_ids = 2;
    r.documents = documents;
    r.n_documents = 1;
    r.retrieval = &t;
    expect_body(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                    "\"documents\":[\"x\",\"y \\\"\",{\"text\":\"b\"}],\"retrieval\":{}}");
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"p", 0};
    r.retrieval = &t;
    t = (struct tarn_retrieval){"own", {"q", 0}, 3, "{\"a\": 1}", "cache"};
    expect_body(&r, "{\"prompt\":\"p\",\"retrieval\":{\"scope\":\"own\",\"query\":\"q\","
                    "\"top_k\":3,\"filter\":{\"a\": 1},\"order\":\"cache\"}}");
    t.filter = "[]";
    refuse(&r, "retrieval.filter: expected a JSON object");
    t.filter = "{\"a\":1},\"b\":{";
    refuse(&r, "retrieval.filter");
}

static void token_ids_stand_for_a_prompt(void **state)
{
    static const uint32_t ids[] = {5, 0, 7};
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"not this", 0};
    r.prompt_ids = ids;
    r.n_prompt_ids = 3;
    r.logprobs = 4;
    expect_body(&r, "{\"prompt\":[5,0,7],\"logprobs\":4}");
}

static void extra_members_are_added_or_replace_ours(void **state)
{
    struct tarn_request r;
    struct tarn_body body;

    (void)state;
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"p", 0};
    r.max_tokens = 3;
    r.extra_body = "{\"max_tokens\":9,\"a\":{\"b\":[1,null]}}";
    expect_body(&r, "{\"prompt\":\"p\",\"max_tokens\":9,\"a\":{\"b\":[1,null]}}");
    r.extra_body = "{\"prompt\":\"q\",\"stream\":true}";
    r.max_tokens = TARN_UNSET;
    assert_int_equal(tarn_body_build(&body, &r, NULL, 0), TARN_OK);
    assert_string_equal(body.data, "{\"prompt\":\"q\",\"stream\":true}");
    assert_true(body.stream);
    tarn_body_fini(&body);
    tarn_request_init(&r, TARN_COMPLETION);
    r.extra_body = "{\"prompt\":[[1],[2]]}";
    r.stream = true;
    expect_body(&r, "{\"stream\":true,\"prompt\":[[1],[2]]}");
}

static void bytes_that_are_no_text_become_text(void **state)
{
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"a\xff\0b", 4};
    expect_body(&r, "{\"prompt\":\"a\xef\xbf\xbd\\u0000b\"}");
}

static void incomplete_or_invalid_requests_are_refused(void **state)
{
    struct tarn_request r;

    (void)state;
    tarn_request_init(&r, TARN_CHAT);
    refuse(&r, "messages");
    tarn_request_init(&r, TARN_COMPLETION);
    refuse(&r, "prompt");
    r.prompt = (struct tarn_text){"p", 0};
    r.extra_body = "[1]";
    refuse(&r, "extra_body: expected a JSON object");
    r.extra_body = "{";
    refuse(&r, "extra_body: malformed");
    r.extra_body = NULL;
    r.temperature = NAN;
    refuse(&r, "temperature");
    r.temperature = INFINITY;
    refuse(&r, "temperature");
}

static void equal_requests_are_equal_bytes(void **state)
{
    struct tarn_request r;
    struct tarn_body a, b;

    (void)state;
    tarn_request_init(&r, TARN_COMPLETION);
    r.prompt = (struct tarn_text){"p", 0};
    r.temperature = 0.1 + 0.2;
    r.extra_body = "{\"z\":1,\"a\":2}";
    assert_int_equal(tarn_body_build(&a, &r, NULL, 0), TARN_OK);
    assert_int_equal(tarn_body_build(&b, &r, NULL, 0), TARN_OK);
    assert_string_equal(a.data, b.data);
    tarn_body_fini(&a);
    tarn_body_fini(&a); /* twice is fine */
    tarn_body_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_was_set_is_sent),
        cmocka_unit_test(everything_has_its_place),
        cmocka_unit_test(documents_are_ids_then_texts_and_may_be_searched),
        cmocka_unit_test(token_ids_stand_for_a_prompt),
        cmocka_unit_test(extra_members_are_added_or_replace_ours),
        cmocka_unit_test(bytes_that_are_no_text_become_text),
        cmocka_unit_test(incomplete_or_invalid_requests_are_refused),
        cmocka_unit_test(equal_requests_are_equal_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
