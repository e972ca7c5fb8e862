/* test_answer.c - answers and SSE frames are valid JSON of the right shape for any text. */
#include "tests/unit/server/server_test.h"

#include <stdlib.h>

#include "base/clock.h"
#include "server/api/answer.h"
#include "server/auth/auth.h"
#include "server/api/call.h"
#include "server/http/error.h"

static struct server_test t;

/* A call with one choice that has all its tokens. */
struct one {
    struct call call;
    struct choice choice;
    struct prompt prompt;
};

static void on_wake(void *arg)
{
    (void)arg;
}

static void one_open(struct one *o, enum params_kind kind, const char *json)
{
    static const uint32_t ids[3] = {1, 2, 3};
    struct json *body = json_of(json);
    struct request *r;
    struct buf why;

    memset(o, 0, sizeof *o);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(params_parse(&o->call.params, &t.srv, body, kind, &why));
    o->call.srv = &t.srv;
    o->call.shape = kind == PARAMS_CHAT ? &answer_chat : &answer_completion;
    strcpy(o->call.id, "x-1");
    o->call.created_s = 7;
    o->call.n_prompts = o->call.n_choices = 1;
    o->call.prompts = &o->prompt;
    o->call.choices = &o->choice;
    prompt_init(&o->prompt, 16);
    buf_init(&o->call.frame_head, 1024);
    assert_ok(request_create(&r, t.engine, ids, 3, NULL, 0, &o->call.params.scope, 0,
                             &o->call.params.sampling, &o->call.params.stopping, &why));
    r->wake = on_wake;
    choice_init(&o->choice, r, t.srv.tokenizer);
    assert_ok(engine_submit(t.engine, r, &why));
    while (request_finish(r) == FINISH_NONE)
        clock_sleep_ns(100000);
    assert_ok(choice_take(&o->choice, &t.srv, &o->call.params, kind, UINT32_MAX));
    assert_ok(o->call.shape->open(&o->call));
    js_unref(body);
    buf_fini(&why);
}

static void one_close(struct one *o)
{
    choice_fini(&o->choice);
    prompt_fini(&o->prompt);
    buf_fini(&o->call.frame_head);
    params_fini(&o->call.params);
}

/* Parse the JSON of a frame "data: JSON\n\n". */
static struct json *parse_frame(const struct buf *frame)
{
    struct json *j = NULL;

    assert_true(frame->len > 8);
    assert_memory_equal(frame->data, "data: ", 6);
    assert_memory_equal(frame->data + frame->len - 2, "\n\n", 2);
    assert_null(memchr(frame->data, '\n', frame->len - 2)); /* one line */
    assert_ok(js_parse(&j, frame->data + 6, frame->len - 8, NULL));
    return j;
}

/* The frame with the usage, of the last two frames. */
static void write_usage_frame(struct one *o, struct buf *f)
{
    static const char done[] = "data: [DONE]\n\n";
    size_t n = sizeof done - 1;

    o->call.params.include_usage = true;
    assert_ok(o->call.shape->finish(&o->call, f));
    assert_true(f->len > n);
    assert_memory_equal(f->data + f->len - n, done, n);
    f->len -= n;
}

static struct json *choice_of(const struct json *j)
{
    return js_at(js_get(j, "choices"), 0);
}

static void frames_of_a_chat_have_openais_shape(void **state)
{
    struct one o;
    struct buf f;

    (void)state;
    one_open(&o, PARAMS_CHAT,
             "{'max_tokens':3,'stream':true,'stream_options':"
             "{'include_usage':true},'logprobs':true,'top_logprobs':2}");
    buf_init(&f, 1 << 16);
    assert_ok(o.call.shape->begin(&o.call, &o.choice, &f));
    struct json *j = parse_frame(&f);
    assert_string_equal(js_string(js_get(j, "object"), NULL), "chat.completion.chunk");
    assert_string_equal(js_string(js_get(js_get(choice_of(j), "delta"), "role"), NULL),
                        "assistant");
    assert_true(js_get(j, "usage") && js_is(js_get(j, "usage"), JS_NULL));
    js_unref(j);

    buf_reset(&f);
    assert_true(choice_has_delta(&o.choice));
    assert_ok(o.call.shape->delta(&o.call, &o.choice, &f));
    j = parse_frame(&f);
    assert_string_equal(js_string(js_get(js_get(choice_of(j), "delta"), "content"), NULL), "abc");
    const struct json *content = js_get(js_get(choice_of(j), "logprobs"), "content");
    assert_int_equal(js_len(content), 3);
    assert_int_equal(js_len(js_get(js_at(content, 2), "top_logprobs")), 2);
    assert_int_equal(js_int(js_at(js_get(js_at(content, 1), "bytes"), 0)), 'b');
    js_unref(j);

    buf_reset(&f);
    choice_reset_delta(&o.choice);
    assert_false(choice_has_delta(&o.choice));
    assert_ok(o.call.shape->end(&o.call, &o.choice, &f));
    j = parse_frame(&f);
    assert_string_equal(js_string(js_get(choice_of(j), "finish_reason"), NULL), "length");
    js_unref(j);

    buf_reset(&f);
    write_usage_frame(&o, &f);
    j = parse_frame(&f);
    assert_int_equal(js_len(js_get(j, "choices")), 0);
    assert_int_equal(js_int(js_get(js_get(j, "usage"), "total_tokens")), 6);
    js_unref(j);
    buf_fini(&f);
    one_close(&o);
}

static void a_whole_completion_has_openais_shape(void **state)
{
    struct one o;
    struct buf f;
    struct json *j;

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'max_tokens':4,'logprobs':1,'return_token_ids':true}");
    buf_init(&f, 1 << 16);
    assert_ok(o.call.shape->whole(&o.call, &f));
    assert_ok(js_parse(&j, f.data, f.len, NULL));
    const struct json *c = choice_of(j), *lp = js_get(c, "logprobs");
    assert_string_equal(js_string(js_get(c, "text"), NULL), "abcd");
    assert_int_equal(js_len(js_get(lp, "tokens")), 4);
    assert_int_equal(js_len(js_get(lp, "token_logprobs")), 4);
    assert_int_equal(js_len(js_get(lp, "top_logprobs")), 4);
    assert_int_equal(js_int(js_at(js_get(lp, "text_offset"), 3)), 3);
    assert_int_equal(js_len(js_get(c, "token_ids")), 4);
    assert_int_equal(js_len(js_get(c, "prompt_token_ids")), 3);
    assert_int_equal(
        js_int(js_get(js_get(js_get(j, "usage"), "prompt_tokens_details"), "cached_tokens")), 0);
    js_unref(j);
    buf_fini(&f);
    one_close(&o);
}

/* Test a chat and a completion, each as a stream and in one piece. */
static void usage_says_which_tier_held_the_cached_tokens(void **state)
{
    static const enum params_kind kinds[] = {PARAMS_CHAT, PARAMS_COMPLETION};
    struct one o;
    struct buf f;
    struct json *j;

    (void)state;
    buf_init(&f, 1 << 16);
    for (int i = 0; i < 4; i++) {
        one_open(&o, kinds[i / 2], "{'max_tokens':2}");
        struct request *r = o.choice.request;
        atomic_store(&r->n_cached, 112);
        atomic_store(&r->n_cached_in[CACHE_DEVICE], 64);
        atomic_store(&r->n_cached_in[CACHE_HOST], 32);
        atomic_store(&r->n_cached_in[CACHE_DISK], 16);
        r->n_held = i == 3 ? 96 : 160; /* what was cached before is not written */
        buf_reset(&f);
        if (i % 2 == 0) {
            assert_ok(o.call.shape->whole(&o.call, &f));
            assert_ok(js_parse(&j, f.data, f.len, NULL));
        } else {
            write_usage_frame(&o, &f);
            j = parse_frame(&f);
        }
        const struct json *d = js_get(js_get(j, "usage"), "prompt_tokens_details");
        const struct json *by_tier = js_get(d, "cached_tokens_details");
        assert_int_equal(js_int(js_get(d, "cached_tokens")), 112);
        assert_int_equal(js_int(js_get(d, "held_tokens")), i == 3 ? 96 : 160);
        assert_int_equal(js_int(js_get(d, "cache_write_tokens")), i == 3 ? 0 : 48);
        assert_int_equal(js_len(by_tier), 3);
        assert_int_equal(js_int(js_get(by_tier, "device")), 64);
        assert_int_equal(js_int(js_get(by_tier, "host")), 32);
        assert_int_equal(js_int(js_get(by_tier, "disk")), 16);
        js_unref(j);
        one_close(&o);
    }
    buf_fini(&f);
}

static void a_stop_string_ends_the_text_and_is_named(void **state)
{
    struct one o;
    struct buf f;
    struct json *j;

    (void)state;
    one_open(&o, PARAMS_CHAT, "{'max_tokens':20,'stop':['zz','de']}");
    buf_init(&f, 1 << 16);
    assert_ok(o.call.shape->whole(&o.call, &f));
    assert_ok(js_parse(&j, f.data, f.len, NULL));
    const struct json *c = choice_of(j);
    assert_string_equal(js_string(js_get(js_get(c, "message"), "content"), NULL), "abc");
    assert_string_equal(js_string(js_get(c, "finish_reason"), NULL), "stop");
    assert_string_equal(js_string(js_get(c, "stop_reason"), NULL), "de");
    js_unref(j);
    buf_fini(&f);
    one_close(&o);
}

static void any_bytes_make_valid_frames(void **state)
{
    struct one o;
    struct buf f;
    char text[256];

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'max_tokens':1,'stream':true}");
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    buf_init(&f, 1 << 16);
    assert_ok(buf_append(&o.choice.text, text, sizeof text));
    assert_ok(o.call.shape->delta(&o.call, &o.choice, &f));
    js_unref(parse_frame(&f));
    buf_fini(&f);
    one_close(&o);
}

static void errors_repeat_the_parameter(void **state)
{
    struct buf f;
    struct json *j;

    (void)state;
    buf_init(&f, 4096);
    assert_ok(error_write(&f, ERR_INVALID, NULL, "messages[2].role: \"x\" is wrong"));
    assert_ok(js_parse(&j, f.data, f.len, NULL));
    const struct json *e = js_get(j, "error");
    assert_string_equal(js_string(js_get(e, "param"), NULL), "messages[2].role");
    assert_string_equal(js_string(js_get(e, "type"), NULL), "invalid_request_error");
    assert_true(js_is(js_get(e, "code"), JS_STRING));
    js_unref(j);
    buf_reset(&f);
    assert_ok(error_write(&f, ERR_BUSY, NULL, "the queue is full: try later"));
    assert_ok(js_parse(&j, f.data, f.len, NULL));
    assert_true(js_is(js_get(js_get(j, "error"), "param"), JS_NULL));
    js_unref(j);
    buf_fini(&f);
}

static void only_the_right_key_passes(void **state)
{
    struct server_test k;

    (void)state;
    server_test_open(&k, "first,second");
    assert_ok(auth_check(&k.srv, "Bearer first", NULL, NULL));
    assert_ok(auth_check(&k.srv, "bearer second", NULL, NULL));
    assert_ok(auth_check(&k.srv, NULL, "second", NULL));
    assert_int_equal(auth_check(&k.srv, NULL, NULL, NULL), ERR_UNAUTHORIZED);
    assert_int_equal(auth_check(&k.srv, "Bearer ", NULL, NULL), ERR_UNAUTHORIZED);
    assert_int_equal(auth_check(&k.srv, "Bearer firs", NULL, NULL), ERR_UNAUTHORIZED);
    assert_int_equal(auth_check(&k.srv, "Bearer first,second", NULL, NULL), ERR_UNAUTHORIZED);
    assert_int_equal(auth_check(&k.srv, "Basic first", NULL, NULL), ERR_UNAUTHORIZED);
    server_test_close(&k);
    server_test_open(&k, ",");
    assert_int_equal(auth_check(&k.srv, "Bearer ,", NULL, NULL), ERR_UNAUTHORIZED);
    server_test_close(&k);
    assert_ok(auth_check(&t.srv, NULL, NULL, NULL));
}

static int open_server(void **state)
{
    (void)state;
    server_test_open(&t, "");
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    server_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_a_chat_have_openais_shape),
        cmocka_unit_test(a_whole_completion_has_openais_shape),
        cmocka_unit_test(usage_says_which_tier_held_the_cached_tokens),
        cmocka_unit_test(a_stop_string_ends_the_text_and_is_named),
        cmocka_unit_test(any_bytes_make_valid_frames),
        cmocka_unit_test(errors_repeat_the_parameter),
        cmocka_unit_test(only_the_right_key_passes),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
