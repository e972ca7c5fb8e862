/* stream.c: a choice follows the tokens and the end that the engine has published, and decides
 * nothing itself. */
#include "tests/unit/server/server_test.h"

#include "server/api/stream.h"

static struct server_test t;
static const struct detok_stop stop = {"cd", 2};

struct one {
    struct params params;
    struct choice choice;
    struct request *request;
};

/* A request of which nothing is published yet; with or without a stop string. */
static void one_open(struct one *o, bool stops)
{
    static const uint32_t prompt[] = {'x', 'y'};
    struct buf why;

    memset(o, 0, sizeof *o);
    buf_init(&why, BUF_WHY_MAX);
    struct json *body = json_of("{'prompt':'xy','max_tokens':20,'return_token_ids':true}");
    assert_ok(params_parse(&o->params, &t.srv, body, PARAMS_COMPLETION, &why));
    if (stops) {
        o->params.stopping.n_stops = 1;
        o->params.stopping.stops = &stop;
    }
    assert_ok(request_create(&o->request, t.engine, prompt, 2, NULL, 0, &o->params.scope, 0,
                             &o->params.sampling, &o->params.stopping, &why));
    choice_init(&o->choice, o->request, t.srv.tokenizer);
    o->params.stopping.n_stops = 0;
    o->params.stopping.stops = NULL;
    js_unref(body);
    buf_fini(&why);
}

static void one_close(struct one *o)
{
    choice_fini(&o->choice);
    params_fini(&o->params);
}

/* Publish tokens up to n of "abcdef...", of which the first n_ids are text, and n_bytes certain. */
static void publish(struct one *o, uint32_t n, uint32_t n_ids, uint64_t n_bytes)
{
    for (uint32_t i = 0; i < n; i++)
        o->request->out[i] = (struct out_token){.id = 'a' + i};
    atomic_store(&o->request->n_text_ids, n_ids);
    atomic_store(&o->request->n_text_bytes, n_bytes);
    atomic_store(&o->request->n_out, n);
}

static void assert_taken(struct one *o, uint32_t n_max, const char *text, const char *ids)
{
    assert_ok(choice_take(&o->choice, &t.srv, &o->params, PARAMS_COMPLETION, n_max));
    assert_string_equal(buf_str(&o->choice.text), text);
    assert_string_equal(buf_str(&o->choice.ids), ids);
}

static void only_certain_text_is_given(void **state)
{
    struct one o;

    (void)state;
    one_open(&o, true);
    publish(&o, 3, 3, 2);
    assert_taken(&o, UINT32_MAX, "ab", "97,98,99");
    publish(&o, 5, 5, 5);
    assert_taken(&o, UINT32_MAX, "abcde", "97,98,99,100,101");
    atomic_store(&o.request->n_text_bytes, STOP_TEXT_ALL);
    atomic_store(&o.request->finish, FINISH_LENGTH);
    assert_taken(&o, UINT32_MAX, "abcde", "97,98,99,100,101");
    assert_int_equal(o.choice.finish, FINISH_LENGTH);
    one_close(&o);
}

static void text_behind_a_stop_string_is_dropped(void **state)
{
    struct one o;

    (void)state;
    one_open(&o, true);
    publish(&o, 4, 4, 2);
    o.request->stop_string = 0;
    atomic_store(&o.request->finish, FINISH_STOP);
    assert_taken(&o, UINT32_MAX, "ab", "97,98,99,100");
    assert_int_equal(o.choice.finish, FINISH_STOP);
    one_close(&o);
}

/* The stream has not read the last tokens when the engine's verdict already covers them. */
static void a_verdict_ahead_of_the_tokens_read_gives_their_text(void **state)
{
    struct one o;

    (void)state;
    one_open(&o, true);
    publish(&o, 6, 6, 6);
    assert_taken(&o, 2, "ab", "97,98");
    assert_taken(&o, 2, "abcd", "97,98,99,100");
    one_close(&o);
}

static void a_token_that_is_no_text_has_an_id_only(void **state)
{
    struct one o;

    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        one_open(&o, stops);
        publish(&o, 3, 2, STOP_TEXT_ALL);
        atomic_store(&o.request->finish, FINISH_STOP);
        assert_taken(&o, UINT32_MAX, "ab", "97,98,99");
        one_close(&o);
    }
}

static void the_end_comes_with_the_last_token(void **state)
{
    struct one o;

    (void)state;
    one_open(&o, false);
    publish(&o, 3, 3, STOP_TEXT_ALL);
    atomic_store(&o.request->finish, FINISH_LENGTH);
    assert_taken(&o, 2, "ab", "97,98");
    assert_int_equal(o.choice.finish, FINISH_NONE);
    assert_true(choice_has_delta(&o.choice));
    choice_reset_delta(&o.choice);
    assert_false(choice_has_delta(&o.choice));
    assert_taken(&o, 2, "c", "99");
    assert_int_equal(o.choice.finish, FINISH_LENGTH);
    one_close(&o);
}

static int set_up(void **state)
{
    (void)state;
    server_test_open(&t, "");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    server_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_certain_text_is_given),
        cmocka_unit_test(text_behind_a_stop_string_is_dropped),
        cmocka_unit_test(a_verdict_ahead_of_the_tokens_read_gives_their_text),
        cmocka_unit_test(a_token_that_is_no_text_has_an_id_only),
        cmocka_unit_test(the_end_comes_with_the_last_token),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
