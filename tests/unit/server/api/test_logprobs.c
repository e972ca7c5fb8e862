/* test_logprobs.c - logprobs of text completions and chats as JSON: tokens that are not valid
 * UTF-8, text_offset, and the echoed prompt. */
#include "tests/unit/server/server_test.h"

#include <math.h>

#include "server/api/call.h"

#define EURO 0xe2, 0x82, 0xac

static struct server_test t;

/* An answer of a request that no engine runs: the test sets its tokens. */
struct one {
    struct params params;
    struct choice choice;
    struct request *request;
    struct buf text;
};

static void one_open(struct one *o, enum params_kind kind, const char *json, const uint32_t *prompt,
                     uint32_t n_prompt, const uint32_t *out, uint32_t n_out)
{
    struct json *body = json_of(json);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    buf_init(&o->text, 1000);
    assert_ok(params_parse(&o->params, &t.srv, body, kind, &why));
    o->params.stopping.max_tokens = n_out;
    assert_ok(request_create(&o->request, t.engine, prompt, n_prompt, NULL, 0, &o->params.scope, 0,
                             &o->params.sampling, &o->params.stopping, &why));
    choice_init(&o->choice, o->request, t.srv.tokenizer);
    uint32_t n_top = o->params.sampling.n_logprobs;
    for (uint32_t i = 0; i < n_out; i++) {
        o->request->out[i] = (struct out_token){out[i], -1};
        for (uint32_t k = 0; k < n_top; k++)
            o->request->out_top[i * n_top + k] =
                (struct out_top){k == 0 ? out[i] : 'A' + k, -1 - (float)k};
    }
    js_unref(body);
    buf_fini(&why);
}

/* Take the whole answer. Return its lists as JSON: four for a completion, one for a chat. */
static struct json *take(struct one *o, enum params_kind kind)
{
    static const char *const names[] = {"tokens", "values", "tops", "offsets"};
    struct json *j;
    struct buf all;

    atomic_store(&o->request->n_prompt_out, o->request->prompt.n_ids);
    atomic_store(&o->request->n_text_ids, o->params.stopping.max_tokens);
    atomic_store(&o->request->n_text_bytes, STOP_TEXT_ALL);
    atomic_store(&o->request->n_out, o->params.stopping.max_tokens);
    atomic_store(&o->request->finish, FINISH_LENGTH);
    assert_ok(choice_take(&o->choice, &t.srv, &o->params, kind, UINT32_MAX));
    buf_init(&all, 100000);
    for (int k = 0; k < LP_N; k++)
        assert_ok(
            buf_printf(&all, "%s\"%s\":[%s]", k ? "," : "{", names[k], buf_str(&o->choice.lp[k])));
    assert_ok(buf_puts(&all, "}"));
    assert_ok(js_parse(&j, all.data, all.len, NULL));
    buf_fini(&all);
    return j;
}

static void one_close(struct one *o, struct json *j)
{
    js_unref(j);
    choice_fini(&o->choice);
    params_fini(&o->params);
    buf_fini(&o->text);
}

static void assert_offsets(const struct json *j, const int *want, size_t n)
{
    assert_int_equal(js_len(js_get(j, "offsets")), n);
    for (size_t i = 0; i < n; i++)
        if (js_int(js_at(js_get(j, "offsets"), i)) != want[i])
            fail_msg("offset %zu is %d instead of %d", i,
                     (int)js_int(js_at(js_get(j, "offsets"), i)), want[i]);
}

#define ASSERT_OFFSETS(j, ...)                                                                     \
    assert_offsets(j, (const int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static void assert_token(const struct json *j, size_t i, const char *want)
{
    assert_string_equal(js_string(js_at(js_get(j, "tokens"), i), NULL), want);
}

static void parts_of_a_character_are_bytes_and_share_its_offset(void **state)
{
    static const uint32_t prompt[] = {'x'}, out[] = {'a', EURO, 'b', EURO, FAKE_EOS};
    struct one o;

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':1,'ignore_eos':true}", prompt, 1, out, 9);
    struct json *j = take(&o, PARAMS_COMPLETION);
    assert_string_equal(buf_str(&o.choice.text), "a\342\202\254b\342\202\254");
    assert_token(j, 0, "a");
    assert_token(j, 1, "bytes:\\xe2");
    assert_token(j, 3, "bytes:\\xac");
    assert_token(j, 8, "</s>");
    assert_true(js_get(js_at(js_get(j, "tops"), 2), "bytes:\\x82") != NULL);
    ASSERT_OFFSETS(j, 0, 1, 1, 1, 2, 3, 3, 3, 4); /* the special token is not in the text */
    one_close(&o, j);
    one_open(&o, PARAMS_CHAT, "{'logprobs':true}", prompt, 1, out, 2);
    j = take(&o, PARAMS_CHAT);
    const struct json *token = js_at(js_get(j, "tokens"), 1);
    assert_string_equal(js_string(js_get(token, "token"), NULL), "\\xe2");
    assert_int_equal(js_int(js_at(js_get(token, "bytes"), 0)), 0xe2);
    one_close(&o, j);
}

static void an_echoed_prompt_comes_first(void **state)
{
    static const uint32_t prompt[] = {FAKE_BOS, 'h', EURO, 'i'}, out[] = {'a', 'b'};
    struct one o;

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':2,'echo':true}", prompt, 6, out, 2);
    assert_ok(buf_puts(&o.text, "h\342\202\254i"));
    o.choice.scored = o.request;
    o.choice.echo = &o.text;
    for (uint32_t i = 1; i < 6; i++) {
        o.request->prompt_out[i] = (struct out_token){prompt[i], i == 3 ? -INFINITY : -(float)i};
        o.request->prompt_top[2 * i] = (struct out_top){'q', -0.25f};
        o.request->prompt_top[2 * i + 1] = (struct out_top){'r', -0.5f};
    }
    struct json *j = take(&o, PARAMS_COMPLETION);
    const struct json *values = js_get(j, "values"), *tops = js_get(j, "tops");
    assert_int_equal(js_len(values), 8);
    assert_token(j, 0, "<s>");
    assert_token(j, 2, "bytes:\\xe2");
    assert_true(js_is(js_at(values, 0), JS_NULL) && js_is(js_at(tops, 0), JS_NULL));
    assert_true(js_number(js_at(values, 1)) == -1 && js_number(js_at(values, 3)) == -9999);
    assert_int_equal(js_len(js_at(tops, 1)), 3); /* the two best, and the token itself */
    assert_true(js_number(js_get(js_at(tops, 1), "h")) == -1);
    ASSERT_OFFSETS(j, 0, 0, 1, 1, 1, 2, 3, 4);
    one_close(&o, j);
}

/* A stream takes one frame of the prompt at a time, and generated tokens only after its end. */
static void a_streamed_prompt_is_taken_before_the_first_token(void **state)
{
    static uint32_t prompt[2000], out[] = {'a'};
    struct one o;
    uint32_t n_takes = 0;

    (void)state;
    for (uint32_t i = 0; i < 2000; i++)
        prompt[i] = 'a' + i % 26;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':20,'echo':true,'stream':true}", prompt, 2000, out,
             1);
    buf_fini(&o.text);
    buf_init(&o.text, 3000);
    for (uint32_t i = 0; i < 2000; i++)
        assert_ok(buf_putc(&o.text, (char)prompt[i]));
    o.choice.scored = o.request;
    o.choice.echo = &o.text;
    for (uint32_t i = 0; i < 2000 * 20; i++)
        o.request->prompt_top[i] = (struct out_top){'A' + i % 20, -1.2345678f};
    assert_ok(choice_take(&o.choice, &t.srv, &o.params, PARAMS_COMPLETION, 64));
    assert_int_equal(o.choice.n_echoed, 0); /* not computed yet */
    atomic_store(&o.request->n_prompt_out, 1999);
    assert_ok(choice_take(&o.choice, &t.srv, &o.params, PARAMS_COMPLETION, 64));
    assert_int_equal(o.choice.n_echoed, 0);
    atomic_store(&o.request->n_prompt_out, 2000);
    for (; choice_has_prompt_left(&o.choice); n_takes++) {
        choice_reset_delta(&o.choice);
        assert_ok(choice_take(&o.choice, &t.srv, &o.params, PARAMS_COMPLETION, 64));
        assert_true(choice_has_delta(&o.choice) && o.choice.n_taken == 0);
        assert_true(o.choice.lp[LP_TOPS].len < 300000);
    }
    assert_true(n_takes >= 2);
    choice_reset_delta(&o.choice);
    struct json *j = take(&o, PARAMS_COMPLETION);
    ASSERT_OFFSETS(j, 2000);
    one_close(&o, j);
}

/* An answer in one piece takes the logprobs computed so far, and tokens only after all of them. */
static void a_whole_answer_takes_its_prompt_step_by_step(void **state)
{
    static const uint32_t prompt[] = {'x', 'y', 'z'}, out[] = {'a'};
    struct choice copy;
    struct one o;

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':0,'echo':true}", prompt, 3, out, 1);
    assert_ok(buf_puts(&o.text, "xyz"));
    o.choice.scored = o.request;
    o.choice.first = &o.choice;
    o.choice.echo = &o.text;
    atomic_fetch_add(&o.request->refs, 1);
    choice_init(&copy, o.request, t.srv.tokenizer);
    copy.scored = o.request;
    copy.first = &o.choice;
    copy.echo = &o.text;
    for (uint32_t n = 0; n < 3; n++) {
        atomic_store(&o.request->n_prompt_out, n);
        assert_ok(choice_take(&o.choice, &t.srv, &o.params, PARAMS_COMPLETION, UINT32_MAX));
        assert_ok(choice_take(&copy, &t.srv, &o.params, PARAMS_COMPLETION, UINT32_MAX));
        assert_true(o.choice.n_echoed == n && o.choice.n_taken == 0 && copy.n_echoed == 0);
    }
    struct json *j = take(&o, PARAMS_COMPLETION);
    assert_int_equal(js_len(js_get(j, "tokens")), 4);
    assert_ok(choice_take(&copy, &t.srv, &o.params, PARAMS_COMPLETION, UINT32_MAX));
    for (int k = 0; k < LP_N; k++)
        assert_string_equal(buf_str(&copy.lp[k]), buf_str(&o.choice.lp[k]));
    choice_fini(&copy);
    one_close(&o, j);
}

/* A prompt that fails halfway must end the answer with an error. */
static void a_failed_prompt_ends_its_answer(void **state)
{
    static const uint32_t prompt[] = {'x', 'y', 'z'}, out[] = {'a'};
    struct one o;

    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        one_open(&o, PARAMS_COMPLETION,
                 stream ? "{'logprobs':1,'echo':true,'stream':true}" : "{'logprobs':1,'echo':true}",
                 prompt, 3, out, 1);
        o.choice.scored = o.request;
        o.choice.echo = &o.text;
        atomic_store(&o.request->n_prompt_out, 2);
        atomic_store(&o.request->finish, FINISH_ERROR);
        assert_ok(choice_take(&o.choice, &t.srv, &o.params, PARAMS_COMPLETION, 64));
        assert_int_equal(o.choice.finish, FINISH_ERROR);
        one_close(&o, NULL);
    }
}

/* If normalization or a prefix changed the text, offsets stay within the client's text. */
static void offsets_follow_the_clients_text(void **state)
{
    static const struct {
        uint32_t ids[6];
        uint32_t n;
        const char *text;
        int want[7];
    } cases[] = {
        {{FAKE_BOS, ' ', 'a', 'b'}, 4, "ab", {0, 0, 0, 1, 2}}, /* the tokenizer added a space */
        {{' ', 'a'}, 2, " a", {0, 1, 2}},                      /* the client sent the space */
        {{'a', FAKE_EOS, 'b'}, 3, "a</s>b", {0, 1, 5, 6}},     /* the client spelled the token */
        {{'x', 'y', 'z'}, 3, "X\303\211z", {0, 1, 2, 3}},      /* changed, character by character */
        {{'x', 'y', 'z'}, 3, "x", {0, 1, 1, 1}},
        {{'x'}, 1, "xyz", {0, 3}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const uint32_t out[] = {'q'};
        struct one o;
        one_open(&o, PARAMS_COMPLETION, "{'logprobs':0,'echo':true}", cases[i].ids, cases[i].n, out,
                 1);
        assert_ok(buf_puts(&o.text, cases[i].text));
        o.choice.scored = o.request;
        o.choice.echo = &o.text;
        struct json *j = take(&o, PARAMS_COMPLETION);
        assert_offsets(j, cases[i].want, cases[i].n + 1);
        one_close(&o, j);
    }
}

static void no_key_of_top_logprobs_comes_twice(void **state)
{
    static const uint32_t prompt[] = {'x'}, out[] = {'a'};
    struct one o;

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':3}", prompt, 1, out, 1);
    o.request->out[0].logprob = -3;
    o.request->out_top[0] = (struct out_top){'c', -0.5f};
    o.request->out_top[1] = (struct out_top){'b', -1};
    o.request->out_top[2] = (struct out_top){'c', -2}; /* an id with the same text as another */
    struct json *j = take(&o, PARAMS_COMPLETION);
    assert_int_equal(js_len(js_at(js_get(j, "tops"), 0)), 3);
    assert_true(js_number(js_get(js_at(js_get(j, "tops"), 0), "c")) == -0.5);
    assert_string_equal(buf_str(&o.choice.lp[LP_TOPS]), "{\"c\":-0.5,\"b\":-1,\"a\":-3}");
    one_close(&o, j);
}

static void without_a_tokenizer_a_token_is_its_id(void **state)
{
    static const uint32_t prompt[] = {'x'}, out[] = {'a'};
    const struct tokenizer *tokenizer = t.srv.tokenizer;
    struct one o;

    (void)state;
    t.srv.tokenizer = NULL;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':2}", prompt, 1, out, 1);
    struct json *j = take(&o, PARAMS_COMPLETION);
    assert_token(j, 0, "token_id:97");
    assert_true(js_get(js_at(js_get(j, "tops"), 0), "token_id:66") != NULL);
    one_close(&o, j);
    t.srv.tokenizer = tokenizer;
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

static void a_nul_is_no_part_of_a_key(void **state)
{
    static const uint32_t prompt[] = {FAKE_BOS};
    struct one o = {0};

    (void)state;
    one_open(&o, PARAMS_COMPLETION, "{'logprobs':1}", prompt, 1, (const uint32_t[]){0}, 1);
    struct json *j = take(&o, PARAMS_COMPLETION);
    assert_string_equal(js_string(js_at(js_get(j, "tokens"), 0), NULL), "bytes:\\x00");
    assert_non_null(js_get(js_at(js_get(j, "tops"), 0), "bytes:\\x00"));
    one_close(&o, j);
}

static void a_prompts_list_has_ranks_and_the_token_once(void **state)
{
    static const uint32_t prompt[] = {FAKE_BOS, 'a', 0xe2};
    struct one o = {0};

    (void)state;
    one_open(&o, PARAMS_CHAT, "{'prompt_logprobs':2,'logprobs':true,'top_logprobs':1}", prompt, 3,
             (const uint32_t[]){'x'}, 1);
    struct request *r = o.request;
    r->prompt_out[1] = (struct out_token){'a', -1};
    r->prompt_out[2] = (struct out_token){0xe2, -INFINITY};
    memcpy(r->prompt_top + 2, ((struct out_top[]){{'b', -0.5f}, {'a', -1}, {'c', -2}, {'d', -3}}),
           4 * sizeof *r->prompt_top);
    o.choice.n_tops = o.params.n_tops;
    struct json *j = take(&o, PARAMS_CHAT);
    assert_string_equal(buf_str(&o.choice.ranked),
                        "null,{\"97\":{\"logprob\":-1,\"rank\":2,\"decoded_token\":\"a\"},"
                        "\"98\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"b\"}},"
                        "{\"226\":{\"logprob\":-9999,\"rank\":null,\"decoded_token\":"
                        "\"\\\\xe2\"},\"99\":{\"logprob\":-2,\"rank\":1,\"decoded_token\":"
                        "\"c\"},\"100\":{\"logprob\":-3,\"rank\":2,\"decoded_token\":\"d\"}}");
    /* The answer's token has as many alternatives as top_logprobs says. */
    assert_int_equal(js_len(js_get(js_at(js_get(j, "tokens"), 0), "top_logprobs")), 1);
    one_close(&o, j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_character_are_bytes_and_share_its_offset),
        cmocka_unit_test(an_echoed_prompt_comes_first),
        cmocka_unit_test(a_streamed_prompt_is_taken_before_the_first_token),
        cmocka_unit_test(a_whole_answer_takes_its_prompt_step_by_step),
        cmocka_unit_test(a_failed_prompt_ends_its_answer),
        cmocka_unit_test(offsets_follow_the_clients_text),
        cmocka_unit_test(no_key_of_top_logprobs_comes_twice),
        cmocka_unit_test(without_a_tokenizer_a_token_is_its_id),
        cmocka_unit_test(a_nul_is_no_part_of_a_key),
        cmocka_unit_test(a_prompts_list_has_ranks_and_the_token_once),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
