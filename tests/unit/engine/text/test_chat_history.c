/* test_chat_history.c - developer messages, tool calls and their results reach every template. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/chat_history.h"

#define OUT_BYTES_MAX (4u << 20)

static struct chat_template *compile(const char *source)
{
    struct chat_template *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (chat_template_create(&t, source, strlen(source), &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return t;
}

/* Render messages (' for ") of a client with the template's own traits; *out is "ERR ..." when it
 * refuses. */
static void render(const struct chat_template *t, const char *messages, struct buf *out)
{
    struct json *context = NULL, *given = NULL;
    struct chat_history h;
    struct chat_traits traits;
    char text[8192];
    struct buf why;
    size_t n = 0;

    for (; messages[n]; n++)
        text[n] = messages[n] == '\'' ? '"' : messages[n];
    text[n] = '\0';
    buf_init(&why, BUF_WHY_MAX);
    chat_traits_find(&traits, t);
    assert_ok(chat_history_init(&h, &traits));
    assert_ok(js_parse(&given, text, n, &why));
    for (size_t i = 0; i < js_len(given); i++)
        assert_ok(chat_history_add(&h, js_copy_deep(js_at(given, i))));
    js_unref(given);
    assert_ok(chat_history_take(&h, &given));
    context = js_new_object();
    assert_ok(js_set(context, "messages", given));
    assert_ok(js_set(context, "add_generation_prompt", js_new_bool(true)));
    assert_ok(js_set(context, "tools", js_new_null()));
    assert_ok(js_set(context, "documents", js_new_null()));
    assert_ok(js_set(context, "bos_token", js_new_string("<BOS>", 5)));
    assert_ok(js_set(context, "eos_token", js_new_string("<EOS>", 5)));
    buf_reset(out);
    if (chat_template_render(t, context, 1735787045, out, &why) != OK) {
        buf_reset(out);
        assert_ok(buf_printf(out, "ERR %s", buf_str(&why)));
    }
    js_unref(context);
    chat_history_fini(&h);
    buf_fini(&why);
}

static void renders(const char *source, const char *messages, const char *expected)
{
    struct chat_template *t = compile(source);
    struct buf out;

    buf_init(&out, OUT_BYTES_MAX);
    render(t, messages, &out);
    assert_string_equal(buf_str(&out), expected);
    buf_fini(&out);
    chat_template_destroy(t);
}

#define CALL_OF(content, id, arguments)                                                            \
    "{'role':'assistant','content':" content ",'tool_calls':[{'id':'" id "','type':'function',"    \
    "'function':{'name':'weather','arguments':" arguments "}}]}"
#define CALL(arguments) CALL_OF("null", "call_1", arguments)
#define RESULT(id, text) "{'role':'tool','tool_call_id':'" id "','content':'" text "'}"
/* As OpenAI's clients send it: arguments are the text of an object. */
#define PARIS "'{\\u0022city\\u0022: \\u0022Paris\\u0022}'"
#define HISTORY "[{'role':'user','content':'Hot?'}," CALL(PARIS) "," RESULT("call_1", "18 C") "]"

/* --- templates made for this test --- */

#define EACH "{% for m in messages %}"
#define END "{% endfor %}"

static void arguments_take_the_form_that_the_template_renders(void **state)
{
    static const char objects[] = EACH
        "[{{ m.role }}|{{ m.content }}{% for c in m.tool_calls %}|"
        "{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]" END;
    static const char strings[] =
        EACH "[{{ m.role }}|{{ m.content }}{% for c in m.tool_calls %}|"
             "{{ c.function.name + c.function.arguments }}{% endfor %}]" END;
    static const char null[] =
        EACH "[{{ m.role }}|{% if m.content is none %}"
             "{{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}"
             "{% else %}{{ m.content }}{% endif %}]" END;

    (void)state;
    renders(objects, HISTORY,
            "[user|Hot?][assistant||call_1 weather {\"city\": \"Paris\"}]"
            "[tool|18 C]");
    renders(strings, HISTORY, "[user|Hot?][assistant||weather{\"city\": \"Paris\"}][tool|18 C]");
    renders(null, HISTORY, "[user|Hot?][assistant|weather{\"city\": \"Paris\"}][tool|18 C]");
    /* With a text in the same message such a template would drop the call. */
    renders(null, "[" CALL_OF("'Let me see.'", "call_1", "{}") "]",
            "[assistant|Let me see.\nTool call call_1: weather({})]");
    /* Ollama's clients send the object itself. */
    renders(objects, "[" CALL("{'city':'Paris'}") "]",
            "[assistant||call_1 weather {\"city\": \"Paris\"}]");
    renders(strings, "[" CALL("{'city':'Paris'}") "]", "[assistant||weather{\"city\":\"Paris\"}]");
    /* Arguments that are an empty object, missing, or invalid JSON. */
    renders(objects, "[" CALL("'{ }'") "," CALL("''") "," CALL("null") "," CALL("'no json'") "]",
            "[assistant||call_1 weather {}][assistant||call_1 weather {}]"
            "[assistant||call_1 weather {}][assistant||call_1 weather \"no json\"]");
}

static void a_template_without_tools_gets_calls_and_results_as_text(void **state)
{
    /* Like the demo model's: it knows three roles and appends the content to a string. */
    static const char plain[] =
        EACH "{% if m.role == 'user' %}{{ 'U:' + m.content + ';' }}"
             "{% elif m.role == 'assistant' %}{{ 'A:' + m.content + ';' }}{% endif %}" END;

    (void)state;
    renders(plain, HISTORY,
            "U:Hot?;A:Tool call call_1: weather({\"city\": \"Paris\"});"
            "U:Tool result call_1:\n18 C;");
    /* Results in a row become one message; the message after them stays separate. */
    renders(plain,
            "[" CALL("{}") "," RESULT("call_1", "a") "," RESULT(
                "call_2", "b") ",{'role':'user','content':'c'}," RESULT("call_3", "d") "]",
            "A:Tool call call_1: weather({});U:Tool result call_1:\na\n\nTool result call_2:\nb;"
            "U:c;U:Tool result call_3:\nd;");
    renders(plain, "[" CALL_OF("'Let me see.'", "x", "{}") "]",
            "A:Let me see.\nTool call x: weather({});");
    /* No calls: null content is an empty text, also with an empty list of calls. */
    renders(plain,
            "[{'role':'assistant','content':null},"
            "{'role':'assistant','content':null,'tool_calls':[]},"
            "{'role':'assistant','content':'b','tool_calls':null}]",
            "A:;A:;A:b;");
}

static void ids_are_shortened_where_the_template_demands_it(void **state)
{
    static const char mistral[] =
        EACH "{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
             "{{ raise_exception('9!') }}{% endif %}<{{ c.id }} {{ c.function.name }} "
             "{{ c.function.arguments | tojson }}>{% endfor %}"
             "{% if m.role == 'tool' %}<{{ m.tool_call_id }} {{ m.content }}>{% endif %}" END;
    struct chat_template *t = compile(mistral);
    char id[10], id_of_result[10];
    struct buf out;

    (void)state;
    buf_init(&out, OUT_BYTES_MAX);
    render(t, HISTORY, &out);
    if (sscanf(buf_str(&out), "<%9s weather {\"city\": \"Paris\"}><%9s 18 C>", id, id_of_result) !=
        2)
        fail_msg("%s", buf_str(&out));
    assert_string_equal(id, id_of_result);
    assert_int_equal(strlen(id), 9);
    render(t, "[" CALL_OF("null", "abcDEF123", "{}") "," RESULT("abcDEF123", "x") "]", &out);
    assert_string_equal(buf_str(&out), "<abcDEF123 weather {}><abcDEF123 x>");
    buf_fini(&out);
    chat_template_destroy(t);
}

static void a_developer_message_is_never_lost(void **state)
{
    static const char chat[] = "[{'role':'developer','content':'Rule'},"
                               "{'role':'user','content':'q'}]";

    (void)state;
    /* The template prints any role, but does not name this one, so the model was not trained with
     * it. */
    renders(EACH "<{{ m.role }}>{{ m.content }}" END, chat, "<system>Rule<user>q");
    /* Named and rendered. */
    renders(EACH "{% if m.role == 'developer' %}D:{% endif %}{{ m.content }};" END, chat,
            "D:Rule;q;");
    /* Named, but dropped. */
    renders("The developer says:" EACH "{% if m.role in ['user', 'system'] %}{{ m.content }};"
            "{% endif %}" END,
            chat, "The developer says:Rule;q;");
    /* Named, but refused. */
    renders(EACH "{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}"
                 "{{ m.content }};" END,
            chat, "Rule;q;");
}

static void nothing_is_known_without_a_template(void **state)
{
    struct chat_traits traits = {.developer = true, .tool_role = true};

    (void)state;
    chat_traits_find(&traits, NULL);
    assert_false(traits.developer || traits.tool_role);
    assert_int_equal(traits.tool_calls, TOOL_CALLS_AS_TEXT);
}

/* --- templates of real models --- */

static char dir[4096];

static char *read_template(const char *name)
{
    char path[8192], *source = calloc(1, OUT_BYTES_MAX);
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "rb");
    if (f && source) {
        source[fread(source, 1, OUT_BYTES_MAX - 1, f)] = '\0';
        fclose(f);
        return source;
    }
    free(source);
    return NULL;
}

/* The expected traits. jinja2 3.1.6 renders the same messages from these templates. */
struct known {
    const char *name;
    enum tool_call_form calls;
    bool developer, tool_role, null_content, short_call_ids;
    const char *rendered; /* a part of HISTORY's rendering */
};

#define O TOOL_CALLS_AS_OBJECTS
#define S TOOL_CALLS_AS_STRINGS
#define T TOOL_CALLS_AS_TEXT
static const struct known known[] = {
    {"Qwen-Qwen2.5-7B-Instruct.jinja", O, false, true, false, false,
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"},
    {"Qwen-QwQ-32B.jinja", O, false, true, false, false, "\"arguments\": {\"city\": \"Paris\"}"},
    {"meta-llama-Llama-3.1-8B-Instruct.jinja", O, false, true, false, false,
     "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}"},
    {"mistralai-Mistral-Nemo-Instruct-2407.jinja", O, false, true, false, true,
     "\"arguments\": {\"city\": \"Paris\"}, \"id\": \""},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", S, false, true, true, false,
     "weather\n```json\n{\"city\": \"Paris\"}\n```"},
    {"deepseek-ai-DeepSeek-V3.2.jinja", O, false, true, false, false,
     "parameter name=\"city\" string=\"true\">Paris</"},
    {"deepseek-ai-DeepSeek-V4.jinja", O, true, true, false, false, ">Paris</"},
    {"GigaChat3-10B-A1.8B.jinja", O, true, true, false, false, "\"city\": \"Paris\""},
    {"GigaChat3.1-10B-A1.8B.jinja", O, true, true, false, false, "\"city\": \"Paris\""},
    {"google-gemma-4-31B-it.jinja", O, true, true, false, false, "weather{city:"},
    {"openai-gpt-oss-120b.jinja", O, true, true, false, false, "{\"city\": \"Paris\"}"},
    {"MiniMax-M3.jinja", O, true, true, false, false, "Paris"},
    {"MiniMax-M2.jinja", O, false, true, false, false, "<parameter name=\"city\">Paris"},
    {"GLM-4.6.jinja", O, false, true, false, false, "<arg_value>Paris</arg_value>"},
    /* These raise an error for role "developer", or drop the message. */
    {"Apertus-8B-Instruct.jinja", O, false, true, false, false,
     "{\"weather\": {\"city\": \"Paris\"}}"},
    {"Cohere2MoE.jinja", O, false, true, false, false, "\"parameters\": {\"city\": \"Paris\"}"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja", O, false, true, false, false,
     "\"parameters\": {\"city\": \"Paris\"}"},
    /* No tool_calls; the second one has no role "tool" either. */
    {"LFM2.5-Instruct.jinja", T, false, true, false, false,
     "Tool call call_1: weather({\"city\": \"Paris\"})"},
    {"llama-cpp-rwkv-world.jinja", T, false, false, false, false, "User: Tool result call_1:"},
};

static void the_traits_of_real_templates_are_found(void **state)
{
    struct chat_traits traits;
    struct buf out;

    (void)state;
    buf_init(&out, OUT_BYTES_MAX);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct known *k = &known[i];
        char *source = read_template(k->name);
        if (!source)
            skip();
        struct chat_template *t = compile(source);
        chat_traits_find(&traits, t);
        render(t, HISTORY, &out);
        if (traits.tool_calls != k->calls || traits.developer != k->developer ||
            traits.tool_role != k->tool_role || traits.null_content != k->null_content ||
            traits.short_call_ids != k->short_call_ids || !strstr(buf_str(&out), k->rendered) ||
            !strstr(buf_str(&out), "18 C"))
            fail_msg("%s: calls %d developer %d tool %d null %d short %d: %s", k->name,
                     traits.tool_calls, traits.developer, traits.tool_role, traits.null_content,
                     traits.short_call_ids, buf_str(&out));
        render(t, "[{'role':'developer','content':'QxRule'},{'role':'user','content':'q'}]", &out);
        if (!strstr(buf_str(&out), "QxRule"))
            fail_msg("%s: the developer message is lost: %s", k->name, buf_str(&out));
        chat_template_destroy(t);
        free(source);
    }
    buf_fini(&out);
}

static int find_dir(void **state)
{
    const char *shared = getenv("TARN_SHARED");

    (void)state;
    snprintf(dir, sizeof dir, "%s/data/chat-templates-llamacpp", shared ? shared : "");
#ifdef TARN_SOURCE_DIR
    if (!shared)
        snprintf(dir, sizeof dir, "%s/../shared/data/chat-templates-llamacpp", TARN_SOURCE_DIR);
#endif
    return hash_init() == OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_take_the_form_that_the_template_renders),
        cmocka_unit_test(a_template_without_tools_gets_calls_and_results_as_text),
        cmocka_unit_test(ids_are_shortened_where_the_template_demands_it),
        cmocka_unit_test(a_developer_message_is_never_lost),
        cmocka_unit_test(nothing_is_known_without_a_template),
        cmocka_unit_test(the_traits_of_real_templates_are_found),
    };
    return cmocka_run_group_tests(tests, find_dir, NULL);
}
