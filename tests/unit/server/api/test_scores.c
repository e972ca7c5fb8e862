/* api_scores.c, score_request.c: POST /score, /rerank and /classify over a fake model with labels.
 * The logit is a known number of the ids and of where the second type begins. */
#include "tests/unit/server/http/http_test.h"

#include <math.h>

#include "server/api/embedding_request.h"
#include "server/api/embeddings.h"
#include "tests/unit/server/fake_embedder.h"

static struct http_test t;

static const char *ask(const char *path, const char *body)
{
    return http_test_read(&t, http_test_send_body(&t, "POST", path, "", body));
}

static struct json *answer(const char *path, const char *body)
{
    const char *text = ask(path, body);

    if (!strstr(text, "HTTP/1.1 200"))
        fail_msg("%s: %s", body, text);
    return http_test_json(&t);
}

static double score_of(const char *body)
{
    struct json *a = answer("/score", body);
    double score = js_number(js_get(js_at(js_get(a, "data"), 0), "score"));

    js_unref(a);
    return score;
}

/* 256 a 257 b 257, of which ids 3 and 4 have type 1. */
static void a_pair_is_joined_with_its_types(void **state)
{
    (void)state;
    assert_true(score_of("{'text_1':'a','text_2':'b','use_activation':false}") ==
                (double)((256 + 97 + 257 + 98 + 257 + 3 + 4) / 100.0f));
    /* The longer text is cut: 256 a 257 b b 257. */
    assert_true(score_of("{'text_1':'a','text_2':'bbbb','use_activation':false,"
                         "'truncate_prompt_tokens':6}") ==
                (double)((256 + 97 + 257 + 98 + 98 + 257 + 3 + 4 + 5) / 100.0f));
}

static void the_activation_is_that_of_pairs_or_of_texts(void **state)
{
    struct json *a = answer("/classify", "{'input':[[1],[2]]}"), *entry;

    (void)state;
    assert_true(fabs(score_of("{'text_1':'a','text_2':'b'}") - 1 / (1 + exp(-9.72))) < 1e-6);
    entry = js_at(js_get(a, "data"), 1);
    assert_true(js_number(js_at(js_get(entry, "probs"), 0)) == 1); /* a softmax of one number */
    assert_string_equal(js_string(js_get(entry, "label"), NULL), "sea");
    assert_int_equal(js_int(js_get(entry, "num_classes")), 1);
    assert_int_equal(js_int(js_get(js_get(a, "usage"), "prompt_tokens")), 2);
    js_unref(a);
}

static void a_text_longer_than_the_model_is_refused_by_scores_and_cut_by_rankings(void **state)
{
    char body[128], text[64];
    struct json *a;

    (void)state;
    memset(text, 'x', 40);
    text[40] = '\0';
    snprintf(body, sizeof body, "{'text_1':'a','text_2':'%s'}", text);
    assert_non_null(strstr(ask("/score", body), "context_length_exceeded"));
    snprintf(body, sizeof body, "{'query':'a','documents':['%s']}", text);
    a = answer("/rerank", body);
    assert_int_equal(js_int(js_get(js_get(a, "usage"), "prompt_tokens")), FAKE_MAX_TOKENS);
    js_unref(a);
    snprintf(body, sizeof body, "{'query':'a','documents':['%s'],'max_tokens_per_doc':2}", text);
    a = answer("/rerank", body);
    assert_int_equal(js_int(js_get(js_get(a, "usage"), "prompt_tokens")), 6);
    js_unref(a);
}

/* The model named by the request computes; without a name, the one with labels. */
static void the_name_chooses_the_model(void **state)
{
    struct json *a = answer("/rerank", "{'query':'a','documents':['b'],'model':'vectors'}");

    (void)state;
    assert_string_equal(js_string(js_get(a, "model"), NULL), "vectors");
    js_unref(a);
    a = answer("/rerank", "{'query':'a','documents':['b']}");
    assert_string_equal(js_string(js_get(a, "model"), NULL), "judge");
    js_unref(a);
    assert_non_null(strstr(ask("/rerank", "{'query':'a','documents':['b'],'model':'no'}"),
                           "\\\"judge\\\" or \\\"vectors\\\" is"));
}

/* The query is part of each pair. */
static void all_tokens_of_a_request_are_bounded(void **state)
{
    struct json *body = js_new_object(), *list = js_new_array();
    char text[996];
    struct embedding_request r;
    struct buf why;

    (void)state;
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i <= EMBEDDING_N_TOKENS_MAX / 1000; i++)
        assert_int_equal(js_push(list, js_new_string(text, sizeof text)), OK);
    assert_int_equal(js_set(body, "query", js_new_string("q", 1)), OK);
    assert_int_equal(js_set(body, "documents", list), OK);
    atomic_store(&fake_embedder_max_tokens, 2000);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(rerank_request_read(&r, &t.s.srv, body, &why), ERR_INVALID);
    assert_string_equal(buf_str(&why), "documents[300]: more than 300000 tokens in all; send "
                                       "fewer inputs at once");
    assert_int_equal(embedding_request_n_tokens(&r), EMBEDDING_N_TOKENS_MAX);
    atomic_store(&fake_embedder_max_tokens, FAKE_MAX_TOKENS);
    embedding_request_fini(&r);
    buf_fini(&why);
    js_unref(body);
}

static int start(void **state)
{
    (void)state;
    http_test_open(&t, "m", NULL, NULL);
    atomic_store(&fake_embedder_n_labels, 1);
    t.s.config.cpu_variant = (char *)(uintptr_t) "auto";
    t.s.config.embedding_model = (char *)(uintptr_t)TARN_SOURCE_DIR;
    t.s.config.served_embedding_model_name = (char *)(uintptr_t) "vectors";
    t.s.config.rerank_model = (char *)(uintptr_t)TARN_SOURCE_DIR;
    t.s.config.served_rerank_model_name = (char *)(uintptr_t) "judge";
    if (embeddings_open(&t.s.srv.embeddings, &t.s.srv, EMBEDDINGS_VECTORS, NULL) != OK)
        return 1;
    return embeddings_open(&t.s.srv.classifier, &t.s.srv, EMBEDDINGS_LABELS, NULL) == OK ? 0 : 1;
}

static int end(void **state)
{
    (void)state;
    http_stop(t.http);
    embeddings_close(t.s.srv.embeddings);
    embeddings_close(t.s.srv.classifier);
    http_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pair_is_joined_with_its_types),
        cmocka_unit_test(the_activation_is_that_of_pairs_or_of_texts),
        cmocka_unit_test(a_text_longer_than_the_model_is_refused_by_scores_and_cut_by_rankings),
        cmocka_unit_test(the_name_chooses_the_model),
        cmocka_unit_test(all_tokens_of_a_request_are_bounded),
    };

    return cmocka_run_group_tests(tests, start, end);
}
