/* test_documents.c - the list of a prompt's documents: entries, ids, order, bounds. */
#include "tests/unit/server/server_test.h"

#include <stdlib.h>

#include "engine/retrieval/catalog.h"
#include "server/api/documents.h"

static struct server_test t;

/* A catalog of "a" to "z" (rows 1 to 26, version 3, public from "n" on) with the title "T-a" and
 * the text "text of a". */
static enum status find(void *arg, const char *id, struct document *out, struct buf *why)
{
    (void)arg;
    if (id[0] < 'a' || id[0] > 'z' || id[1])
        return buf_why(why, ERR_NOT_FOUND, "none");
    snprintf(out->tenant, sizeof out->tenant, "%s", id[0] < 'n' ? "me" : "");
    snprintf(out->id, sizeof out->id, "%s", id);
    out->row = id[0] - 'a' + 1;
    out->version = 3;
    assert_ok(buf_printf(&out->title, "T-%s", id));
    assert_ok(buf_printf(&out->text, "text of %s", id));
    return OK;
}

static const struct documents_finder finder = {find, NULL};

static enum status read_list(struct documents *d, const char *json, struct buf *why)
{
    struct json *body = json_of(json);
    enum status s = documents_read(d, &t.srv, body, true, &finder, why);

    js_unref(body);
    return s;
}

/* Check the block of the list. */
static void writes(const char *json, const char *expected)
{
    struct documents d;
    struct buf why, out;

    buf_init(&why, BUF_WHY_MAX);
    buf_init(&out, 100000);
    if (read_list(&d, json, &why) != OK)
        fail_msg("%s: %s", json, buf_str(&why));
    assert_ok(documents_write(d.list, d.wants_citations, &out, NULL));
    assert_string_equal(buf_str(&out), expected);
    documents_fini(&d);
    buf_fini(&why);
    buf_fini(&out);
}

static void refuses(const char *json, enum status s, const char *words)
{
    struct documents d;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(read_list(&d, json, &why), s);
    if (!strstr(buf_str(&why), words))
        fail_msg("%s: %s", json, buf_str(&why));
    documents_fini(&d);
    buf_fini(&why);
}

static void ids_and_texts_may_be_mixed(void **state)
{
    (void)state;
    writes("{'documents':['b',{'text':'x'},{'id':'a'},{'id':'own','title':'T','text':'y'}]}",
           "Documents:\n### T-b\ntext of b\n### Document\nx\n### T-a\ntext of a\n### T\ny\n"
           "### End of documents\n");
}

static void a_registered_document_is_written_like_its_text(void **state)
{
    (void)state;
    writes("{'documents':['a']}", "Documents:\n### T-a\ntext of a\n### End of documents\n");
    writes("{'documents':[{'title':'T-a','text':'text of a'}]}",
           "Documents:\n### T-a\ntext of a\n### End of documents\n");
}

static void a_document_named_twice_is_used_once(void **state)
{
    (void)state;
    writes("{'documents':['b','a',{'id':'b'},'b']}",
           "Documents:\n### T-b\ntext of b\n### T-a\ntext of a\n### End of documents\n");
}

static void the_request_for_citations_stands_behind_the_documents(void **state)
{
    (void)state;
    writes("{'documents':['a'],'citations':true}",
           "Documents:\n### T-a\ntext of a\n### End of documents\n" DOCUMENTS_CITATION_LINE);
}

static void documents_can_be_sorted_by_id(void **state)
{
    (void)state;
    writes("{'documents':['c',{'text':'x'},'a',{'text':'y','id':'b'}],'documents_order':'id'}",
           "Documents:\n### T-a\ntext of a\n### Document\ny\n### T-c\ntext of c\n"
           "### Document\nx\n### End of documents\n");
}

static void a_wrong_entry_is_named(void **state)
{
    (void)state;
    refuses("{'documents':['a','none']}", ERR_NOT_FOUND,
            "documents[1]: there is no document \"none\"");
    refuses("{'documents':[{'id':'none'}]}", ERR_NOT_FOUND, "documents[0]: ");
    refuses("{'documents':['']}", ERR_INVALID, "documents[0]: an id has 1 to 256 bytes");
    refuses("{'documents':['a\\u0000b']}", ERR_INVALID, "documents[0]: ");
    refuses("{'documents':[{'id':7}]}", ERR_INVALID, "documents[0]: expected a string");
    refuses("{'documents':[7]}", ERR_INVALID, "documents[0]: expected an id or an object");
    refuses("{'documents':[{'title':'x'}]}", ERR_INVALID, "documents[0].text: ");
    refuses("{'documents':[{'text':'x','id':7}]}", ERR_INVALID, "documents[0].id: ");
    refuses("{'documents':{}}", ERR_INVALID, "documents: expected an array");
    refuses("{'documents':[],'citations':1}", ERR_INVALID, "citations: ");
}

static void ids_need_a_finder(void **state)
{
    struct json *body = json_of("{'documents':['a']}");
    struct documents d;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_true(documents_have_ids(body));
    assert_int_equal(documents_read(&d, &t.srv, body, true, NULL, &why), ERR_UNSUPPORTED);
    documents_fini(&d);
    js_unref(body);
    buf_fini(&why);
}

static void texts_beyond_the_context_are_refused(void **state)
{
    struct documents d;
    struct document big;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    documents_init(&d, &t.srv, false);
    document_init(&big);
    while (big.text.len < d.n_bytes_max)
        assert_ok(buf_puts(&big.text, "0123456789"));
    assert_int_equal(documents_add(&d, &big, NULL, &why), ERR_TOO_LARGE);
    document_fini(&big);
    documents_fini(&d);
    buf_fini(&why);
}

static void what_is_known_of_a_document_moves_with_it(void **state)
{
    const uint32_t order[] = {2, 0, 1};
    struct documents d, copy;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(read_list(&d, "{'documents':['a',{'text':'x','id':'i'},'z']}", &why));
    assert_ok(documents_copy(&copy, &d));
    assert_ok(documents_reorder(&copy, order));
    assert_string_equal(buf_str(&copy.uses[0].id), "z");
    assert_true(copy.uses[0].is_registered && copy.uses[0].is_public);
    assert_int_equal(copy.uses[0].version, 3);
    assert_int_equal(copy.uses[0].given, 2);
    assert_true(copy.uses[1].is_registered && !copy.uses[1].is_public);
    assert_true(!copy.uses[2].is_registered && copy.uses[2].given == 1);
    assert_string_equal(js_string(js_get(js_at(copy.list, 2), "text"), NULL), "x");
    assert_string_equal(buf_str(&d.uses[0].id), "a"); /* the original stays */
    documents_fini(&copy);
    documents_fini(&d);
    buf_fini(&why);
}

static int start(void **state)
{
    (void)state;
    server_test_open(&t, "");
    return 0;
}

static int end(void **state)
{
    (void)state;
    server_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_may_be_mixed),
        cmocka_unit_test(a_registered_document_is_written_like_its_text),
        cmocka_unit_test(a_document_named_twice_is_used_once),
        cmocka_unit_test(the_request_for_citations_stands_behind_the_documents),
        cmocka_unit_test(documents_can_be_sorted_by_id),
        cmocka_unit_test(a_wrong_entry_is_named),
        cmocka_unit_test(ids_need_a_finder),
        cmocka_unit_test(texts_beyond_the_context_are_refused),
        cmocka_unit_test(what_is_known_of_a_document_moves_with_it),
    };
    return cmocka_run_group_tests(tests, start, end);
}
