/* Bodies are compared as JSON: what a server would read. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "base/json.h"
#include "loadgen/load/prompt.h"

static struct prompt_style usual_style(enum tarn_kind kind)
{
    return (struct prompt_style){.kind = kind,
                                 .model = "m",
                                 .tokens_per_word = 1,
                                 .stream = true,
                                 .temperature = TARN_UNSET_REAL,
                                 .top_p = TARN_UNSET_REAL,
                                 .sampling_seed = TARN_UNSET,
                                 .documents_field = true,
                                 .id_lo = 300,
                                 .id_hi = 500};
}

static struct json *build(const struct prompt_style *style, const struct load_request *r,
                          const struct prompt_answers *answers)
{
    struct tarn_body body;
    struct json *j = NULL;

    assert_ok(prompt_build(&body, style, r, answers, NULL));
    assert_ok(js_parse(&j, body.data, body.len, NULL));
    tarn_body_fini(&body);
    return j;
}

static void add_text(struct load_request *r, enum part_role role, const char *text,
                     const char *title)
{
    struct part *p = load_request_add(r, role, 1, 0);

    assert_non_null(p);
    p->text = text;
    p->text_len = strlen(text);
    p->title = title;
}

static const char *text_at(const struct json *j, const char *list, size_t i, const char *key)
{
    return js_string(js_get(js_at(js_get(j, list), i), key), NULL);
}

static int n_words(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == ' ';
    return n;
}

static void add_rag(struct load_request *r)
{
    load_request_init(r, 0);
    add_text(r, PART_SYSTEM, "Be brief.", NULL);
    add_text(r, PART_DOCUMENT, "alpha", "A");
    add_text(r, PART_DOCUMENT, "beta", NULL);
    add_text(r, PART_USER, "Why?", NULL);
}

static void documents_go_into_their_field(void **state)
{
    struct prompt_style style = usual_style(TARN_CHAT);
    struct load_request r;

    (void)state;
    add_rag(&r);
    struct json *j = build(&style, &r, NULL);
    assert_int_equal(js_len(js_get(j, "messages")), 2);
    assert_string_equal(text_at(j, "messages", 0, "content"), "Be brief.");
    assert_string_equal(text_at(j, "messages", 1, "content"), "Why?");
    assert_int_equal(js_len(js_get(j, "documents")), 2);
    assert_string_equal(text_at(j, "documents", 0, "title"), "A");
    assert_string_equal(text_at(j, "documents", 1, "text"), "beta");
    js_unref(j);
    load_request_fini(&r);
}

#define DOCUMENTS_TEXT                                                                             \
    "Be brief.\n\nDocuments:\n### A\nalpha\n### Document\nbeta\n### End of documents\n\n"

static void documents_go_as_text_in_the_same_order(void **state)
{
    struct prompt_style style = usual_style(TARN_CHAT);
    struct load_request r;

    (void)state;
    add_rag(&r);
    style.documents_field = false;
    struct json *j = build(&style, &r, NULL);
    assert_null(js_get(j, "documents"));
    assert_int_equal(js_len(js_get(j, "messages")), 2);
    assert_string_equal(text_at(j, "messages", 0, "role"), "system");
    assert_string_equal(text_at(j, "messages", 0, "content"), DOCUMENTS_TEXT);
    assert_string_equal(text_at(j, "messages", 1, "content"), "Why?");
    js_unref(j);
    style.kind = TARN_COMPLETION;
    j = build(&style, &r, NULL);
    assert_string_equal(js_string(js_get(j, "prompt"), NULL), DOCUMENTS_TEXT "Why?");
    js_unref(j);
    load_request_fini(&r);
}

static void lengths_follow_the_calibration(void **state)
{
    struct prompt_style style = usual_style(TARN_COMPLETION);
    struct load_request r;

    (void)state;
    style.tokens_per_word = 1.25;
    style.overhead_tokens = 25;
    load_request_init(&r, 0);
    assert_non_null(load_request_add(&r, PART_SYSTEM, 5, 100));
    assert_non_null(load_request_add(&r, PART_USER, 6, 100));
    r.n_output_tokens = 17;
    struct json *j = build(&style, &r, NULL);
    /* 100 / 1.25, and (100 - 25) / 1.25 for the last part. */
    assert_int_equal(n_words(js_string(js_get(j, "prompt"), NULL)), 80 + 60);
    assert_int_equal(js_int(js_get(j, "max_tokens")), 17);
    assert_null(js_get(j, "temperature"));
    js_unref(j);
    load_request_fini(&r);
}

static void ids_are_as_many_as_asked(void **state)
{
    struct prompt_style style = usual_style(TARN_COMPLETION);
    struct load_request r;

    (void)state;
    style.ids = true;
    load_request_init(&r, 0);
    assert_non_null(load_request_add(&r, PART_SYSTEM, 5, 30));
    assert_non_null(load_request_add(&r, PART_USER, 6, 12));
    struct json *j = build(&style, &r, NULL);
    const struct json *ids = js_get(j, "prompt");
    assert_int_equal(js_len(ids), 42);
    for (size_t i = 0; i < js_len(ids); i++)
        assert_in_range(js_int(js_at(ids, i)), 300, 499);
    js_unref(j);
    struct tarn_body body;
    add_text(&r, PART_USER, "words", NULL);
    assert_int_equal(prompt_build(&body, &style, &r, NULL, NULL), ERR_INVALID);
    load_request_fini(&r);
}

static void earlier_answers_stand_as_they_came(void **state)
{
    struct prompt_style style = usual_style(TARN_CHAT);
    const struct tarn_text turns[] = {{"what was said", 13}};
    const struct prompt_answers answers = {turns, 1};
    struct load_request r;

    (void)state;
    load_request_init(&r, 0);
    assert_non_null(load_request_add(&r, PART_USER, 1, 3));
    struct part *p = load_request_add(&r, PART_ASSISTANT, 2, 9);
    assert_non_null(p);
    p->answer_of = 0;
    assert_non_null(load_request_add(&r, PART_USER, 3, 4));
    struct json *j = build(&style, &r, &answers);
    assert_int_equal(js_len(js_get(j, "messages")), 3);
    assert_string_equal(text_at(j, "messages", 1, "role"), "assistant");
    assert_string_equal(text_at(j, "messages", 1, "content"), "what was said");
    js_unref(j);
    j = build(&style, &r, NULL);
    assert_int_equal(n_words(text_at(j, "messages", 1, "content")), 9);
    js_unref(j);
    load_request_fini(&r);
}

static void settings_are_sent_and_verify_is_greedy(void **state)
{
    struct prompt_style style = usual_style(TARN_CHAT);
    struct load_request r;

    (void)state;
    style.temperature = 0.7;
    style.ignore_eos = true;
    style.extra_body = "{\"top_k\": 5, \"min_p\": 0.1}";
    style.send_session = true;
    load_request_init(&r, 0);
    assert_non_null(load_request_add(&r, PART_USER, 1, 3));
    r.extra = "{\"top_k\": 9}";
    r.priority = -4;
    r.has_priority = true;
    r.session = 255;
    struct json *j = build(&style, &r, NULL);
    assert_near(js_number(js_get(j, "temperature")), 0.7, 1e-12);
    assert_true(js_bool(js_get(j, "ignore_eos")));
    assert_int_equal(js_int(js_get(j, "top_k")), 9); /* the request's value takes precedence */
    assert_near(js_number(js_get(j, "min_p")), 0.1, 1e-12);
    assert_int_equal(js_int(js_get(j, "priority")), -4);
    assert_string_equal(js_string(js_get(j, "session_id"), NULL), "loadgen-00000000000000ff");
    assert_true(js_bool(js_get(js_get(j, "stream_options"), "include_usage")));
    js_unref(j);
    r.verify = true;
    j = build(&style, &r, NULL);
    assert_near(js_number(js_get(j, "temperature")), 0, 0);
    js_unref(j);
    load_request_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_go_into_their_field),
        cmocka_unit_test(documents_go_as_text_in_the_same_order),
        cmocka_unit_test(lengths_follow_the_calibration),
        cmocka_unit_test(ids_are_as_many_as_asked),
        cmocka_unit_test(earlier_answers_stand_as_they_came),
        cmocka_unit_test(settings_are_sent_and_verify_is_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
