/* test_messages_request.c - a request of the Messages API becomes the chat that says the same. */
#include "tests/unit/server/server_test.h"

#include "server/api/messages_request.h"

/* Translate with ' for ". The chat as JSON with ' for ", or the error's words. */
static const char *chat_of(const char *json)
{
    static char text[4096];
    struct json *body = json_of(json), *chat = NULL;
    struct buf out, why;

    buf_init(&out, sizeof text - 1);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = messages_to_chat(&chat, body, false, &why);
    if (s == OK)
        assert_ok(js_write(&out, chat));
    snprintf(text, sizeof text, "%s", s == OK ? buf_str(&out) : buf_str(&why));
    for (char *p = text; s == OK && *p; p++)
        if (*p == '"')
            *p = '\'';
    assert_true((s == OK) == (chat != NULL));
    js_unref(chat);
    js_unref(body);
    buf_fini(&out);
    buf_fini(&why);
    return text;
}

#define THINKS_NOT "'chat_template_kwargs':{'enable_thinking':false,'thinking':false}"

static void results_and_text_become_messages_in_their_order(void **state)
{
    (void)state;
    assert_string_equal(
        chat_of("{'max_tokens':1,'system':'s','messages':[{'role':'assistant','content':["
                "{'type':'thinking','thinking':'hm','signature':''},{'type':'text','text':'t'},"
                "{'type':'tool_use','id':'i','name':'f','input':{'a':1}}]},{'role':'user',"
                "'content':[{'type':'tool_result','tool_use_id':'i','content':'r'},"
                "{'type':'tool_result','tool_use_id':'j'},{'type':'text','text':'u'}]}]}"),
        "{'max_tokens':1," THINKS_NOT ",'messages':[{'role':'system','content':'s'},"
        "{'role':'assistant','content':[{'type':'text','text':'t'}],'tool_calls':[{'id':'i',"
        "'type':'function','function':{'name':'f','arguments':{'a':1}}}],"
        "'reasoning_content':'hm'},{'role':'tool','content':'r','tool_call_id':'i'},"
        "{'role':'tool','content':'','tool_call_id':'j'},"
        "{'role':'user','content':[{'type':'text','text':'u'}]}]}");
}

static void a_breakpoint_of_a_tool_or_document_is_that_of_the_first_message(void **state)
{
    static const char control[] = "'cache_control':{'type':'ephemeral'}";
    char body[1024], want[1024];

    (void)state;
    snprintf(body, sizeof body,
             "{'max_tokens':1,'tools':[{'name':'f','input_schema':{},%s}],'messages':["
             "{'role':'user','content':'u'},{'role':'user','content':'v'}]}",
             control);
    snprintf(want, sizeof want,
             "{'max_tokens':1,'tools':[{'type':'function','function':{'name':'f','parameters':{}}"
             "}]," THINKS_NOT ",'messages':[{'role':'user','content':'u',%s},"
             "{'role':'user','content':'v'}]}",
             control);
    assert_string_equal(chat_of(body), want);
    snprintf(body, sizeof body,
             "{'max_tokens':1,'documents':['a'],'messages':[{'role':'user','content':[{"
             "'type':'document','context':'c','source':{'type':'text','data':'d'},%s},"
             "{'type':'text','text':'u'}]}]}",
             control);
    snprintf(want, sizeof want,
             "{'max_tokens':1,'documents':['a',{'text':'c\\n\\nd'}]," THINKS_NOT ",'messages':["
             "{'role':'user','content':[{'type':'text','text':'u'}],%s}]}",
             control);
    assert_string_equal(chat_of(body), want);
}

static void a_last_text_of_the_assistant_is_continued(void **state)
{
    (void)state;
    assert_non_null(strstr(chat_of("{'max_tokens':1,'messages':[{'role':'assistant',"
                                   "'content':'a'}]}"),
                           "'continue_final_message':true"));
    assert_null(strstr(chat_of("{'max_tokens':1,'messages':[{'role':'assistant','content':["
                               "{'type':'tool_use','id':'i','name':'f','input':{}}]}]}"),
                       "continue_final_message"));
    assert_null(strstr(chat_of("{'max_tokens':1,'messages':[{'role':'assistant','content':'a'},"
                               "{'role':'user','content':'u'}]}"),
                       "continue_final_message"));
}

static void every_error_names_its_field(void **state)
{
    static const struct {
        const char *body, *name;
    } rows[] = {
        {"{'messages':[]}", "max_tokens: "},
        {"{'max_tokens':1}", "messages: "},
        {"{'max_tokens':1,'messages':{}}", "messages: "},
        {"{'max_tokens':1,'messages':['x']}", "messages[0]: "},
        {"{'max_tokens':1,'messages':[{}]}", "messages[0].role: "},
        {"{'max_tokens':1,'messages':[{'role':'user'}]}", "messages[0].content: "},
        {"{'max_tokens':1,'messages':[{'role':'user','content':['x']}]}",
         "messages[0].content[0].type: "},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'tool_result',"
         "'tool_use_id':'i','content':[{'type':'image'}]}]}]}",
         "messages[0].content[0].content[0].type: "},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'document',"
         "'source':{'type':'text','data':1}}]}]}",
         "messages[0].content[0].source.data: "},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'document',"
         "'citations':{'enabled':true},'source':{'type':'text','data':'d'}}]}]}",
         "messages[0].content[0].citations: "},
        {"{'max_tokens':1,'messages':[{'role':'assistant','content':[{'type':'tool_use',"
         "'id':'i','name':'f','input':'x'}]}]}",
         "messages[0].content[0].input: "},
        {"{'max_tokens':1,'system':1,'messages':[]}", "system: "},
        {"{'max_tokens':1,'tools':[{'name':'f','input_schema':{},'strict':1}]}",
         "tools[0].strict: "},
        {"{'max_tokens':1,'tool_choice':{}}", "tool_choice.type: "},
        {"{'max_tokens':1,'tool_choice':{'type':'tool'}}", "tool_choice.name: "},
        {"{'max_tokens':1,'thinking':{'type':'enabled','budget_tokens':'x'}}",
         "thinking.budget_tokens: "},
        {"{'max_tokens':1,'thinking':{'type':'disabled','display':'all'}}", "thinking.display: "},
        {"{'max_tokens':1,'output_config':{'format':{'type':'regex'}}}",
         "output_config.format.type: "},
        {"{'max_tokens':1,'output_format':{'type':'json_schema'}}", "output_format.schema: "},
        {"{'max_tokens':1,'stop_sequences':[1]}", "stop_sequences[0]: "},
        {"{'max_tokens':1,'container':'x'}", "container: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *words = chat_of(rows[i].body);
        if (strncmp(words, rows[i].name, strlen(rows[i].name)) != 0)
            fail_msg("%s: %s", rows[i].body, words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_and_text_become_messages_in_their_order),
        cmocka_unit_test(a_breakpoint_of_a_tool_or_document_is_that_of_the_first_message),
        cmocka_unit_test(a_last_text_of_the_assistant_is_continued),
        cmocka_unit_test(every_error_names_its_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
