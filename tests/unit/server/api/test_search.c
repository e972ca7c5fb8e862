/* test_search.c - the field `retrieval` of a request. */
#include "tests/unit/server/server_test.h"

#include <string.h>

#include "server/api/search.h"

#define CHAT "'messages':[{'role':'user','content':'Who?'}]"

/* Read a body's field; *s is the caller's to free. */
static enum status read_body(struct search *s, const char *json, bool is_chat, struct json **body,
                             struct buf *why)
{
    *body = json_of(json);
    return search_read(s, *body, is_chat, NULL, why);
}

static void refuses(const char *retrieval, const char *words)
{
    char json[2000];
    struct search s;
    struct json *body;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    snprintf(json, sizeof json, "{" CHAT ",'retrieval':%s}", retrieval);
    assert_int_equal(read_body(&s, json, true, &body, &why), ERR_INVALID);
    if (!strstr(buf_str(&why), words))
        fail_msg("%s: %s", retrieval, buf_str(&why));
    search_fini(&s);
    js_unref(body);
    buf_fini(&why);
}

static void a_wrong_field_is_named(void **state)
{
    (void)state;
    refuses("true", "retrieval: expected an object");
    refuses("{'scope':'mine'}", "retrieval.scope: \"mine\" is none of all|own|public");
    refuses("{'mode':7}", "retrieval.mode: ");
    refuses("{'order':'given'}", "retrieval.order: ");
    refuses("{'top_k':0}", "retrieval.top_k: ");
    refuses("{'top_k':65}", "retrieval.top_k: ");
    refuses("{'query':''}", "retrieval.query: expected 1 to");
    refuses("{'query':['a']}", "retrieval.query: ");
    refuses("{'embedding':[]}", "retrieval.embedding: expected 1 to");
    refuses("{'embedding':'x'}", "retrieval.embedding: expected an array");
    refuses("{'embedding':[1,'x']}", "retrieval.embedding[1]: expected a number");
    refuses("{'embedding':[1e300]}", "retrieval.embedding[0]: ");
    refuses("{'filter':'x'}", "retrieval.filter: ");
    refuses("{},'documents_order':'cache'", "documents_order: beside `retrieval`");
}

static void a_deep_filter_is_refused(void **state)
{
    char text[1500] = "{'filter':";

    (void)state;
    for (int i = 0; i < 40; i++)
        strcat(text, "{'type':'and','filters':[");
    strcat(text, "{'type':'eq','key':'a','value':1}");
    for (int i = 0; i < 40; i++)
        strcat(text, "]}");
    strcat(text, "}");
    refuses(text, "retrieval.filter: ");
}

static void asks(const char *json, bool is_chat, const char *query)
{
    struct search s;
    struct json *body;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (read_body(&s, json, is_chat, &body, &why) != OK)
        fail_msg("%s: %s", json, buf_str(&why));
    assert_string_equal(buf_str(&s.query), query);
    search_fini(&s);
    js_unref(body);
    buf_fini(&why);
}

static void the_default_query_is_the_last_message_of_a_user(void **state)
{
    (void)state;
    asks("{" CHAT ",'retrieval':{}}", true, "Who?");
    asks("{'messages':[{'role':'user','content':'one'},{'role':'assistant','content':'two'},"
         "{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]},"
         "{'role':'assistant','content':'c'}],'retrieval':{}}",
         true, "a\nb");
    asks("{'messages':[{'role':'system','content':'one'}],'retrieval':{}}", true, "");
    asks("{" CHAT ",'retrieval':{'query':'else'}}", true, "else");
    asks("{'prompt':'Tell me','retrieval':{}}", false, "Tell me");
    asks("{'prompt':[1,2],'retrieval':{}}", false, "");
    asks("{'messages':7,'retrieval':{}}", true, "");
}

static void a_long_default_query_is_cut_between_characters(void **state)
{
    struct json *body = json_of("{'retrieval':{}}");
    struct buf text, why;
    struct search s;

    (void)state;
    buf_init(&text, 1u << 20);
    buf_init(&why, BUF_WHY_MAX);
    for (int i = 0; i < 10000; i++)
        assert_ok(buf_puts(&text, "\xe2\x82\xac"));
    assert_ok(js_set(body, "prompt", js_new_string(text.data, text.len)));
    assert_ok(search_read(&s, body, false, NULL, &why));
    assert_int_equal(s.query.len, SEARCH_QUERY_BYTES_MAX / 3 * 3);
    search_fini(&s);
    js_unref(body);
    buf_fini(&text);
    buf_fini(&why);
}

static void all_fields_are_read(void **state)
{
    struct search s;
    struct json *body;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(read_body(&s,
                        "{" CHAT ",'retrieval':{'scope':'public','mode':'hybrid','top_k':64,"
                        "'embedding':[1,0.5],'order':'cache','filter':{'a':1}}}",
                        true, &body, &why));
    assert_true(s.public && !s.own);
    assert_int_equal(s.mode, RETRIEVAL_HYBRID);
    assert_int_equal(s.top_k, 64);
    assert_int_equal(s.order, DOCUMENTS_BY_CACHE);
    assert_int_equal(s.vector.len, 2 * sizeof(float));
    assert_true(((float *)(void *)s.vector.data)[1] == 0.5f);
    assert_non_null(s.filter);
    search_fini(&s);
    js_unref(body);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_field_is_named),
        cmocka_unit_test(a_deep_filter_is_refused),
        cmocka_unit_test(the_default_query_is_the_last_message_of_a_user),
        cmocka_unit_test(a_long_default_query_is_cut_between_characters),
        cmocka_unit_test(all_fields_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
