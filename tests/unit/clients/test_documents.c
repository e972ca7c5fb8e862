/* test_documents.c - the calls about registered documents: what they send. */
#include "tests/unit/test.h"

#include <string.h>

#include "clients/c/tarn_client.h"
#include "tests/unit/clients/canned_server.h"

#define ANSWER "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

struct fixture {
    struct canned_server *server;
    struct tarn_client *client;
    struct tarn_answer answer;
};

static void set_up(struct fixture *f)
{
    static const struct canned canned = {.text = ANSWER, .then = CANNED_CLOSE};

    f->server = canned_start(&canned, 1);
    struct tarn_client_config c = {.url = canned_url(f->server)};
    assert_int_equal(tarn_client_create(&f->client, &c, NULL, 0), TARN_OK);
}

static void tear_down(struct fixture *f)
{
    tarn_client_destroy(f->client);
    canned_stop(f->server);
}

/* The call has succeeded, and the last request has this first line and this end. */
static void expect_sent(struct fixture *f, const char *line, const char *end)
{
    const char *sent = canned_requests(f->server), *last = NULL;

    assert_string_equal(f->answer.text, "{}");
    for (const char *at = sent; (at = strstr(at, line)) != NULL; at++)
        last = at;
    if (!last || strlen(sent) < strlen(end) || strcmp(sent + strlen(sent) - strlen(end), end) != 0)
        fail_msg("no request \"%s\" that ends with \"%s\" in\n%s", line, end, sent);
    tarn_answer_fini(&f->answer);
}

static void a_document_is_sent_with_the_fields_that_are_set(void **state)
{
    static const float vector[] = {0.5f, -1};
    struct tarn_document_fields d;
    struct fixture f;

    (void)state;
    set_up(&f);
    tarn_document_fields_init(&d);
    d.text = (struct tarn_text){"abc", 2};
    assert_int_equal(tarn_document_put(&f.answer, f.client, "a", &d), TARN_OK);
    expect_sent(&f, "PUT /v1/documents/a HTTP", "{\"text\":\"ab\"}");
    d.title = (struct tarn_text){"T", 0};
    d.metadata = "{\"k\": [1]}";
    d.embedding = vector;
    d.n_embedding = 2;
    d.is_public = 1;
    d.is_pinned = 0;
    d.ttl = 60;
    d.prefill = "now";
    assert_int_equal(tarn_document_put(&f.answer, f.client, "a", &d), TARN_OK);
    expect_sent(
        &f, "PUT /v1/documents/a HTTP",
        "{\"title\":\"T\",\"text\":\"ab\",\"metadata\":{\"k\":[1]},\"embedding\":[0.5,-1.0],"
        "\"public\":true,\"pin\":false,\"ttl\":60,\"prefill\":\"now\"}");
    tarn_document_fields_init(&d);
    d.prefill = "now";
    assert_int_equal(tarn_document_change(&f.answer, f.client, "a", &d), TARN_OK);
    expect_sent(&f, "POST /v1/documents/a HTTP", "{\"prefill\":\"now\"}");
    tear_down(&f);
}

static void an_id_is_escaped_in_the_path(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(tarn_document_get(&f.answer, f.client, "a/../b c?\xc3\xa9%"), TARN_OK);
    expect_sent(&f, "GET /v1/documents/a%2F..%2Fb%20c%3F%C3%A9%25 HTTP", "\r\n\r\n");
    assert_int_equal(tarn_document_delete(&f.answer, f.client, "~x"), TARN_OK);
    expect_sent(&f, "DELETE /v1/documents/~x HTTP", "\r\n\r\n");
    assert_int_equal(tarn_documents_list(&f.answer, f.client, "a&b", 7), TARN_OK);
    expect_sent(&f, "GET /v1/documents?limit=7&after=a%26b HTTP", "\r\n\r\n");
    assert_int_equal(tarn_documents_list(&f.answer, f.client, NULL, 0), TARN_OK);
    expect_sent(&f, "GET /v1/documents HTTP", "\r\n\r\n");
    tear_down(&f);
}

static void ids_and_fields_that_cannot_be_sent_are_refused(void **state)
{
    struct tarn_document_fields d;
    struct fixture f;
    char id[300];

    (void)state;
    set_up(&f);
    memset(id, 'x', sizeof id);
    id[257] = '\0';
    const char *const bad[] = {"", ".", "..", id};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tarn_document_get(&f.answer, f.client, bad[i]), TARN_ERR_INVALID);
        assert_string_equal(f.answer.text, "");
        tarn_answer_fini(&f.answer);
    }
    id[256] = '\0';
    assert_int_equal(tarn_document_get(&f.answer, f.client, id), TARN_OK);
    tarn_answer_fini(&f.answer);
    tarn_document_fields_init(&d);
    d.text = (struct tarn_text){"\xff", 1};
    assert_int_equal(tarn_document_put(&f.answer, f.client, "a", &d), TARN_ERR_INVALID);
    tarn_answer_fini(&f.answer);
    d.text = (struct tarn_text){"a", 1};
    d.metadata = "{";
    assert_int_equal(tarn_document_put(&f.answer, f.client, "a", &d), TARN_ERR_INVALID);
    tarn_answer_fini(&f.answer);
    assert_int_equal(canned_n_connections(f.server), 1);
    tear_down(&f);
}

static void lines_and_preambles_have_their_paths(void **state)
{
    static const struct tarn_text text = {"Be brief.", 0};
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(tarn_documents_import(&f.answer, f.client, "{}\n{}\n", 6), TARN_OK);
    assert_non_null(strstr(canned_requests(f.server), "application/x-ndjson"));
    expect_sent(&f, "POST /v1/documents/bulk HTTP", "{}\n{}\n");
    assert_int_equal(tarn_preamble_put(&f.answer, f.client, "p", &text, NULL, TARN_UNSET), TARN_OK);
    expect_sent(&f, "PUT /v1/preambles/p HTTP", "{\"system\":\"Be brief.\"}");
    assert_int_equal(tarn_preamble_delete(&f.answer, f.client, "p"), TARN_OK);
    expect_sent(&f, "DELETE /v1/preambles/p HTTP", "\r\n\r\n");
    assert_int_equal(tarn_preambles_list(&f.answer, f.client), TARN_OK);
    expect_sent(&f, "GET /v1/preambles HTTP", "\r\n\r\n");
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_sent_with_the_fields_that_are_set),
        cmocka_unit_test(an_id_is_escaped_in_the_path),
        cmocka_unit_test(ids_and_fields_that_cannot_be_sent_are_refused),
        cmocka_unit_test(lines_and_preambles_have_their_paths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
