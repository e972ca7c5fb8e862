#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "clients/c/answer.h"
#include "clients/c/sse.h"

#define N_LINE_MAX 262144

/* Write chunks as "index:text[+reasoning][#ids](finish);", one after another. */
static void write_chunk(void *arg, const struct tarn_chunk *c)
{
    struct buf *out = arg;

    assert_ok(buf_printf(out, "%u:%.*s", c->index, (int)c->text_len, c->text));
    if (c->reasoning_len)
        assert_ok(buf_printf(out, "+%s", c->reasoning));
    for (size_t i = 0; i < c->n_ids; i++)
        assert_ok(buf_printf(out, "#%u", c->ids[i]));
    if (c->has_role)
        assert_ok(buf_puts(out, "R"));
    if (c->has_delta)
        assert_ok(buf_puts(out, "D"));
    if (c->finish_reason)
        assert_ok(buf_printf(out, "(%s)", c->finish_reason));
    assert_ok(buf_puts(out, ";"));
}

struct fixture {
    struct buf out;
    struct answer a;
};

static void set_up(struct fixture *f, enum tarn_kind kind)
{
    buf_init(&f->out, 1 << 20);
    answer_init(&f->a, kind, write_chunk, &f->out);
}

static void tear_down(struct fixture *f)
{
    answer_fini(&f->a);
    buf_fini(&f->out);
}

static enum tarn_error event(struct fixture *f, const char *json)
{
    return answer_take_event(&f->a, json, strlen(json), false, 100 + f->a.n_chunks);
}

static void the_documents_of_an_answer_are_read_once(void **state)
{
    static const char *const shapes[] = {"{\"choices\":[],\"documents\":[1]}",
                                         "{\"choices\":[],\"documents\":{\"used\":7}}",
                                         "{\"choices\":[],\"documents\":{\"used\":[]}}"};
    struct fixture f;

    (void)state;
    set_up(&f, TARN_CHAT);
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
        assert_int_equal(event(&f, shapes[i]), TARN_OK);
    assert_int_equal(f.a.n_sources, 0);
    assert_int_equal(event(&f,
                           "{\"choices\":[],\"documents\":{\"used\":[{\"id\":\"a\",\"title\":\"A\","
                           "\"score\":1.5,\"n_tokens\":40,\"cached_tokens\":32,"
                           "\"cached_tokens_details\":{\"device\":30,\"disk\":2}},7]}}"),
                     TARN_OK);
    assert_int_equal(event(&f, "{\"choices\":[],\"documents\":{\"used\":[{},{},{}]}}"), TARN_OK);
    assert_int_equal(f.a.n_sources, 2);
    assert_string_equal(f.a.sources[0].id, "a");
    assert_string_equal(f.a.sources[0].title, "A");
    assert_true(f.a.sources[0].score == 1.5);
    assert_int_equal(f.a.sources[0].n_tokens, 40);
    assert_int_equal(f.a.sources[0].cached_tokens, 32);
    assert_int_equal(f.a.sources[0].cached_by_tier[TARN_TIER_DISK], 2);
    assert_int_equal(f.a.sources[0].cached_by_tier[TARN_TIER_HOST], -1);
    assert_true(f.a.sources[1].score == TARN_UNSET_REAL);
    assert_string_equal(f.a.sources[1].id, "");
    tear_down(&f);
}

static void a_chat_stream_is_read(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, TARN_CHAT);
    assert_int_equal(event(&f, "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
                               "\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},"
                               "\"token_ids\":[7,8]}]}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[{\"delta\":{\"content\":null,"
                               "\"reasoning_content\":\"hm\"}}]}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[{\"index\":1,\"delta\":{\"tool_calls\":[{}]}}]}"), 0);
    assert_int_equal(event(&f, "{\"choices\":[{\"index\":1,\"delta\":{},"
                               "\"finish_reason\":\"stop\"}]}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[{\"index\":0,\"delta\":{},"
                               "\"finish_reason\":\"length\"}]}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,"
                               "\"completion_tokens\":6,\"total_tokens\":11,"
                               "\"prompt_tokens_details\":{\"cached_tokens\":3,"
                               "\"cache_write_tokens\":4,\"held_tokens\":7,"
                               "\"cached_tokens_details\":{\"device\":1,\"disk\":2}}}}"),
                     0);
    assert_string_equal(buf_str(&f.out), "0:R;0:Hi#7#8D;0:+hmD;1:D;1:(stop);0:(length);");
    assert_string_equal(f.a.finish_reason, "length");
    assert_int_equal(f.a.n_chunks, 6);
    assert_int_equal(f.a.n_deltas, 3);
    assert_int_equal(f.a.first_ns, 101);
    assert_int_equal(f.a.last_ns, 103);
    assert_int_equal(f.a.usage.prompt_tokens, 5);
    assert_int_equal(f.a.usage.completion_tokens, 6);
    assert_int_equal(f.a.usage.cached_tokens, 3);
    assert_int_equal(f.a.usage.cache_write_tokens, 4);
    assert_int_equal(f.a.usage.held_tokens, 7);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_DEVICE], 1);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_HOST], -1);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_DISK], 2);
    tear_down(&f);
}

static void a_completion_stream_is_read(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, TARN_COMPLETION);
    assert_int_equal(event(&f, "{\"choices\":[{\"text\":\"a\",\"index\":0},"
                               "{\"text\":\"b\",\"index\":1,\"finish_reason\":\"stop\"}]}"),
                     0);
    assert_int_equal(event(&f, "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],"
                               "\"timings\":{\"cache_n\":9}}"),
                     0);
    assert_string_equal(buf_str(&f.out), "0:aD;1:bD(stop);0:(length);");
    assert_int_equal(f.a.usage.cached_tokens, 9);
    assert_int_equal(f.a.usage.prompt_tokens, -1);
    tear_down(&f);
}

static void sglang_tells_tiers_in_its_own_way(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, TARN_COMPLETION);
    assert_int_equal(event(&f, "{\"choices\":[],\"sglext\":{\"cached_tokens_details\":"
                               "{\"device\":4,\"host\":2,\"storage\":1}}}"),
                     0);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_DEVICE], 4);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_HOST], 2);
    assert_int_equal(f.a.usage.cached_by_tier[TARN_TIER_DISK], 1);
    tear_down(&f);
}

static void whole_answers_are_read(void **state)
{
    static const char chat[] = "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":"
                               "\"Hello\"},\"finish_reason\":\"stop\"}],"
                               "\"usage\":{\"prompt_tokens\":2}}";
    static const char text[] = "{\"choices\":[{\"text\":\"Hello\",\"finish_reason\":\"stop\"}]}";
    struct fixture f;

    (void)state;
    set_up(&f, TARN_CHAT);
    assert_int_equal(answer_take_whole(&f.a, chat, strlen(chat), 1), TARN_OK);
    assert_string_equal(buf_str(&f.out), "0:HelloRD(stop);");
    assert_int_equal(f.a.usage.prompt_tokens, 2);
    tear_down(&f);
    set_up(&f, TARN_COMPLETION);
    assert_int_equal(answer_take_whole(&f.a, text, strlen(text), 1), TARN_OK);
    assert_string_equal(buf_str(&f.out), "0:HelloD(stop);");
    assert_int_equal(answer_take_whole(&f.a, "{}", 2, 1), TARN_ERR_PARSE);
    tear_down(&f);
}

static void a_field_of_another_shape_is_refused_by_name(void **state)
{
    static const char *const bad[][2] = {
        {"", "JSON"},
        {"{", "JSON"},
        {"[]", "an object"},
        {"7", "an object"},
        {"{\"choices\":{}}", "choices"},
        {"{\"choices\":[7]}", "choices[]"},
        {"{\"choices\":[{\"index\":-1}]}", "index"},
        {"{\"choices\":[{\"index\":1e300}]}", "index"},
        {"{\"choices\":[{\"index\":\"0\"}]}", "index"},
        {"{\"choices\":[{\"delta\":7}]}", "delta"},
        {"{\"choices\":[{\"delta\":{\"content\":7}}]}", "content"},
        {"{\"choices\":[{\"delta\":{\"content\":[\"a\"]}}]}", "content"},
        {"{\"choices\":[{\"delta\":{},\"finish_reason\":7}]}", "finish_reason"},
        {"{\"choices\":[{\"delta\":{},\"token_ids\":7}]}", "token_ids"},
        {"{\"choices\":[{\"delta\":{},\"token_ids\":[-1]}]}", "token_ids"},
        {"{\"choices\":[{\"delta\":{},\"token_ids\":[4294967296]}]}", "token_ids"},
    };
    struct fixture f;

    (void)state;
    set_up(&f, TARN_CHAT);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(event(&f, bad[i][0]), TARN_ERR_PARSE);
        if (!strstr(buf_str(&f.a.words), bad[i][1]))
            fail_msg("%s: \"%s\" does not name %s", bad[i][0], buf_str(&f.a.words), bad[i][1]);
    }
    assert_int_equal(f.out.len, 0);
    tear_down(&f);
}

static void nonsense_in_usage_fails_nothing(void **state)
{
    static const char *const odd[] = {
        "{\"usage\":7}",
        "{\"usage\":[]}",
        "{\"usage\":{\"prompt_tokens\":-1}}",
        "{\"usage\":{\"prompt_tokens\":\"5\"}}",
        "{\"usage\":{\"prompt_tokens\":1e30}}",
        "{\"usage\":{\"prompt_tokens\":9223372036854775807}}",
        "{\"usage\":{\"prompt_tokens_details\":[1]}}",
        "{\"timings\":3,\"sglext\":\"x\"}",
        "{}",
    };
    struct fixture f;

    (void)state;
    set_up(&f, TARN_CHAT);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        assert_int_equal(event(&f, odd[i]), TARN_OK);
    assert_int_equal(f.a.usage.prompt_tokens, -1);
    assert_int_equal(f.a.usage.cached_tokens, -1);
    tear_down(&f);
}

static void errors_inside_a_stream_are_told(void **state)
{
    static const char *const errors[][3] = {
        {"{\"error\":{\"message\":\"no room\",\"code\":\"busy\",\"type\":\"t\"}}", "no room",
         "busy"},
        {"{\"error\":{\"message\":\"no room\",\"type\":\"t\",\"code\":null}}", "no room", "t"},
        {"{\"error\":{\"message\":\"m\",\"code\":503}}", "m", "503"},
        {"{\"error\":\"plain\"}", "plain", ""},
        {"{\"error\":{}}", "without words", ""},
        {"{\"object\":\"error\",\"message\":\"old vLLM\",\"code\":40303}", "old vLLM", "40303"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        struct fixture f;
        set_up(&f, TARN_CHAT);
        assert_int_equal(event(&f, errors[i][0]), TARN_ERR_STREAM);
        assert_non_null(strstr(buf_str(&f.a.words), errors[i][1]));
        assert_string_equal(f.a.code, errors[i][2]);
        tear_down(&f);
    }
    struct fixture f;
    set_up(&f, TARN_CHAT);
    assert_int_equal(answer_take_event(&f.a, "out of luck", 11, true, 1), TARN_ERR_STREAM);
    assert_string_equal(buf_str(&f.a.words), "out of luck");
    tear_down(&f);
}

static void refusals_give_words_whatever_they_are(void **state)
{
    static const char *const bodies[][3] = {
        {"{\"error\":{\"message\":\"bad n\",\"code\":\"c\"}}", "bad n", "c"},
        {"{\"message\":\"old\",\"type\":\"t\"}", "old", "t"},
        {"{\"detail\":\"Not Found\"}", "Not Found", ""},
        {"{\"detail\":[{\"loc\":1}]}", "HTTP 418: {", ""},
        {"<html>Bad Gateway</html>", "HTTP 418: <html>", ""},
        {"", "HTTP 418 without", ""},
        {"[1", "HTTP 418: [1", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct fixture f;
        set_up(&f, TARN_CHAT);
        answer_take_refusal(&f.a, 418, bodies[i][0], strlen(bodies[i][0]));
        if (!strstr(buf_str(&f.a.words), bodies[i][1]))
            fail_msg("%s gave %s", bodies[i][0], buf_str(&f.a.words));
        assert_string_equal(f.a.code, bodies[i][2]);
        tear_down(&f);
    }
}

/* --- recorded answers of api.openai.com --- */

struct replay {
    struct answer a;
    struct buf out;
    bool done;
};

static enum status on_event(void *arg, const char *name, const char *data, size_t len)
{
    struct replay *r = arg;

    assert_string_equal(name, "");
    assert_false(r->done);
    if (strcmp(data, "[DONE]") == 0)
        r->done = true;
    else
        assert_int_equal(answer_take_event(&r->a, data, len, false, 1), TARN_OK);
    return OK;
}

static void replay(enum tarn_kind kind, const char *text, size_t len, size_t step)
{
    struct replay r = {.done = false};
    struct sse p;

    buf_init(&r.out, 1 << 22);
    answer_init(&r.a, kind, write_chunk, &r.out);
    sse_init(&p, 1 << 20);
    for (size_t at = 0; at < len; at += step)
        assert_ok(sse_feed(&p, text + at, len - at < step ? len - at : step, on_event, &r));
    assert_true(r.done);
    assert_false(sse_is_inside(&p));
    assert_true(r.a.n_chunks > 1);
    assert_true(r.a.finish_reason[0] != '\0');
    sse_fini(&p);
    answer_fini(&r.a);
    buf_fini(&r.out);
}

static void take_recorded(enum tarn_kind kind, const struct json *call, int *n)
{
    const struct json *response = js_get(call, "response");
    size_t len;

    if (js_is(js_get(call, "sse"), JS_BOOL) && js_bool(js_get(call, "sse"))) {
        const char *text = js_string(response, &len);
        replay(kind, text, len, len);
        replay(kind, text, len, 1);
        replay(kind, text, len, 7);
        n[0]++;
        return;
    }
    struct buf body;
    struct fixture f;
    set_up(&f, kind);
    buf_init(&body, N_LINE_MAX);
    assert_ok(js_write(&body, response));
    if (js_int(js_get(call, "status")) == 200) {
        assert_int_equal(answer_take_whole(&f.a, body.data, body.len, 1), TARN_OK);
        assert_true(f.a.usage.prompt_tokens > 0);
        n[1]++;
    } else {
        answer_take_refusal(&f.a, 400, body.data, body.len);
        assert_null(strstr(buf_str(&f.a.words), "HTTP 400"));
        assert_true(f.a.code[0] != '\0');
        n[2]++;
    }
    buf_fini(&body);
    tear_down(&f);
}

static bool take_file(enum tarn_kind kind, const char *name, int *n)
{
    static char line[N_LINE_MAX];
    const char *shared = getenv("TARN_SHARED");
    char path[512];

    snprintf(path, sizeof path, "%s/data/openai-recorded/%s",
             shared ? shared : TARN_SOURCE_DIR "/../shared", name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    while (fgets(line, sizeof line, file)) {
        struct json *call;
        assert_ok(js_parse(&call, line, strlen(line), NULL));
        take_recorded(kind, call, n);
        js_unref(call);
    }
    fclose(file);
    return true;
}

static void all_recorded_calls_are_understood(void **state)
{
    int n[3] = {0};

    (void)state;
    if (!take_file(TARN_CHAT, "chat_completions.jsonl", n) ||
        !take_file(TARN_COMPLETION, "completions.jsonl", n))
        skip();
    print_message("%d streams, %d whole answers, %d errors\n", n[0], n[1], n[2]);
    assert_int_equal(n[0], 43 + 15);
    assert_int_equal(n[2], 7);
    assert_int_equal(n[0] + n[1] + n[2], 213 + 35);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_stream_is_read),
        cmocka_unit_test(the_documents_of_an_answer_are_read_once),
        cmocka_unit_test(a_completion_stream_is_read),
        cmocka_unit_test(sglang_tells_tiers_in_its_own_way),
        cmocka_unit_test(whole_answers_are_read),
        cmocka_unit_test(a_field_of_another_shape_is_refused_by_name),
        cmocka_unit_test(nonsense_in_usage_fails_nothing),
        cmocka_unit_test(errors_inside_a_stream_are_told),
        cmocka_unit_test(refusals_give_words_whatever_they_are),
        cmocka_unit_test(all_recorded_calls_are_understood),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
