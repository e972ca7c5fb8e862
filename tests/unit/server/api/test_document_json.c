/* test_document_json.c - documents from JSON and to JSON; mistakes name the member. */
#include "tests/unit/server/server_test.h"

#include <stdlib.h>

#include "server/api/document_json.h"

#define NOW_S 1000

static struct document d;
static struct document_change change;

static int open_document(void **state)
{
    (void)state;
    document_init(&d);
    return 0;
}

static int close_document(void **state)
{
    (void)state;
    document_fini(&d);
    return 0;
}

static void reads(const char *text)
{
    struct json *body = json_of(text);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (document_read(&d, &change, body, NOW_S, NULL, &why) != OK)
        fail_msg("%s: %s", text, buf_str(&why));
    buf_fini(&why);
    js_unref(body);
}

/* Check that the words of the error begin with `words`. */
static void refuses(const char *text, bool is_change, enum status status, const char *words)
{
    struct json *body = json_of(text);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = is_change ? document_read_change(&d, &change, body, NOW_S, &why)
                              : document_read(&d, &change, body, NOW_S, NULL, &why);
    assert_int_equal(s, status);
    if (strncmp(buf_str(&why), words, strlen(words)) != 0)
        fail_msg("%s: %s", text, buf_str(&why));
    buf_fini(&why);
    js_unref(body);
}

static void every_member_is_read(void **state)
{
    (void)state;
    reads("{'text':'T','title':'A','metadata':{'x':[1,2]},'embedding':[1,-0.5],'public':true,"
          "'pin':true,'ttl':60,'prefill':'now','version':3}");
    assert_string_equal(buf_str(&d.text), "T");
    assert_string_equal(buf_str(&d.title), "A");
    assert_string_equal(buf_str(&d.metadata), "{\"x\":[1,2]}");
    assert_int_equal(d.embedding.len, 2 * sizeof(float));
    assert_true(((const float *)(const void *)d.embedding.data)[1] == -0.5F);
    assert_true(d.is_pinned && change.is_public && change.has_version);
    assert_int_equal(change.version, 3);
    assert_int_equal(d.expires_s, NOW_S + 60);
    assert_int_equal(d.prefill, DOCUMENT_PREFILL_NOW);
}

static void absent_members_have_their_defaults(void **state)
{
    (void)state;
    reads("{'text':'T','title':'A','metadata':{'x':1},'embedding':[1],'pin':true,'ttl':60,"
          "'prefill':'now'}");
    reads("{'text':'U','metadata':{},'ttl':null}"); /* the same struct, as an import has it */
    assert_int_equal(d.title.len + d.metadata.len + d.embedding.len, 0);
    assert_false(d.is_pinned || change.is_public || change.has_version);
    assert_int_equal(d.expires_s, 0);
    assert_int_equal(d.prefill, DOCUMENT_PREFILL_LAZY);
}

static void mistakes_name_the_member(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"{}", "text: is required"},
        {"{'text':''}", "text: must not be empty"},
        {"{'text':7}", "text: expected a string"},
        {"{'text':'a\\u0000b'}", "text: must not contain U+0000"},
        {"{'text':'T','title':[]}", "title: expected a string"},
        {"{'text':'T','metadata':[]}", "metadata: expected an object"},
        {"{'text':'T','embedding':{}}", "embedding: expected an array"},
        {"{'text':'T','embedding':[]}", "embedding: expected 1 to 8192"},
        {"{'text':'T','embedding':[1,'2']}", "embedding[1]: expected a number"},
        {"{'text':'T','embedding':[1e300]}", "embedding[0]: is too large"},
        {"{'text':'T','embedding':[0,0]}", "embedding: all numbers are 0"},
        {"{'text':'T','prefill':'soon'}", "prefill: expected \"now\" or \"lazy\""},
        {"{'text':'T','pin':1}", "pin: expected"},
        {"{'text':'T','ttl':0}", "ttl: "},
        {"{'text':'T','ttl':-5}", "ttl: "},
        {"{'text':'T','public':'yes'}", "public: expected"},
        {"{'text':'T','version':-1}", "version: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuses(rows[i].text, false, ERR_INVALID, rows[i].words);
}

static void large_members_are_refused_by_size(void **state)
{
    struct json *body = js_new_object(), *metadata = js_new_object();
    char *large = malloc(DOCUMENT_TEXT_BYTES_MAX + 1);
    struct buf why;

    (void)state;
    assert_non_null(large);
    memset(large, 'x', DOCUMENT_TEXT_BYTES_MAX + 1);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(js_set(body, "text", js_new_string(large, DOCUMENT_TEXT_BYTES_MAX + 1)));
    assert_int_equal(document_read(&d, &change, body, NOW_S, NULL, &why), ERR_TOO_LARGE);
    assert_ok(js_set(body, "text", js_new_string(large, DOCUMENT_TEXT_BYTES_MAX)));
    assert_ok(document_read(&d, &change, body, NOW_S, NULL, &why));
    assert_ok(js_set(metadata, "x", js_new_string(large, DOCUMENT_METADATA_BYTES_MAX)));
    assert_ok(js_set(body, "metadata", metadata));
    assert_int_equal(document_read(&d, &change, body, NOW_S, NULL, &why), ERR_TOO_LARGE);
    assert_ok(js_set(body, "title", js_new_string(large, DOCUMENT_TITLE_BYTES_MAX + 1)));
    assert_int_equal(document_read(&d, &change, body, NOW_S, NULL, &why), ERR_TOO_LARGE);
    assert_memory_equal(buf_str(&why), "title: ", 7);
    js_unref(body);
    buf_fini(&why);
    free(large);
}

static void only_keeping_changes_without_the_text(void **state)
{
    struct json *body = json_of("{'pin':false,'ttl':null}");

    (void)state;
    assert_ok(document_read_change(&d, &change, body, NOW_S, NULL));
    assert_true(change.has_pin && change.has_expiry && !change.has_prefill);
    assert_int_equal(d.expires_s, 0);
    js_unref(body);
    refuses("{}", true, ERR_INVALID, "expected pin, ttl or prefill");
    refuses("{'pin':true,'title':'A'}", true, ERR_INVALID, "title: only pin, ttl and prefill");
    refuses("{'prefill':'x'}", true, ERR_INVALID, "prefill: ");
}

static void ids_are_short_text_without_control_characters(void **state)
{
    char large[DOCUMENT_ID_BYTES_MAX + 2];

    (void)state;
    memset(large, 'x', sizeof large);
    assert_ok(document_check_id(large, DOCUMENT_ID_BYTES_MAX, NULL));
    assert_ok(document_check_id("folder/K\xc3\xbcrze 1.txt", 19, NULL));
    assert_int_equal(document_check_id(large, DOCUMENT_ID_BYTES_MAX + 1, NULL), ERR_INVALID);
    assert_int_equal(document_check_id("", 0, NULL), ERR_INVALID);
    assert_int_equal(document_check_id("a\nb", 3, NULL), ERR_INVALID);
    assert_int_equal(document_check_id("a\0b", 3, NULL), ERR_INVALID);
    assert_int_equal(document_check_id("\xff", 1, NULL), ERR_INVALID);
    assert_int_equal(document_check_id("\xc2\x85", 2, NULL), ERR_INVALID);
}

static void what_is_written_is_json_with_all_members(void **state)
{
    struct buf out;
    struct writer w = {&out, OK};
    struct json *j;

    (void)state;
    reads("{'text':'T\\'\\n','title':'A','metadata':{'x':1},'embedding':[1,2]}");
    memcpy(d.id, "x", 2);
    d.version = 4;
    d.created_s = 7;
    buf_init(&out, 4096);
    write_puts(&w, "{");
    document_write(&w, &d, true, true);
    write_puts(&w, "}");
    assert_ok(w.status);
    assert_ok(js_parse(&j, buf_str(&out), out.len, NULL));
    assert_string_equal(js_string(js_get(j, "id"), NULL), "x");
    assert_int_equal(js_int(js_get(j, "version")), 4);
    assert_int_equal(js_int(js_get(j, "embedding_dim")), 2);
    assert_int_equal(js_int(js_get(js_get(j, "metadata"), "x")), 1);
    assert_true(js_bool(js_get(j, "public"))); /* no tenant */
    assert_true(js_is(js_get(j, "expires_at"), JS_NULL));
    assert_int_equal(js_int(js_get(j, "created_at")), 7);
    assert_int_equal(js_int(js_get(j, "uses")), 0);
    js_unref(j);
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_member_is_read, open_document, close_document),
        cmocka_unit_test_setup_teardown(absent_members_have_their_defaults, open_document,
                                        close_document),
        cmocka_unit_test_setup_teardown(mistakes_name_the_member, open_document, close_document),
        cmocka_unit_test_setup_teardown(large_members_are_refused_by_size, open_document,
                                        close_document),
        cmocka_unit_test_setup_teardown(only_keeping_changes_without_the_text, open_document,
                                        close_document),
        cmocka_unit_test(ids_are_short_text_without_control_characters),
        cmocka_unit_test_setup_teardown(what_is_written_is_json_with_all_members, open_document,
                                        close_document),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
