/* test_preamble.c - the public ids of a chat are exactly those of a preamble. */
#include "tests/unit/server/server_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "server/api/preamble.h"
#include "server/api/prompt.h"

#define N_FILES_MAX 8
#define DAY_S 86400

static struct server_test t;
static char dir[] = "/tmp/tarn-test-preamble-XXXXXX";

/* Write these texts to files. Return the value of --preamble. */
static const char *files_of(const char *const *texts, const size_t *lens, int n)
{
    static char list[N_FILES_MAX * 64];
    char path[64];
    size_t used = 0;

    list[0] = '\0';
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(texts[i], 1, lens[i], f), lens[i]);
        assert_int_equal(fclose(f), 0);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? "," : "", path);
    }
    return list;
}

static void use(const char *const *texts, int n)
{
    size_t lens[N_FILES_MAX];
    struct preambles *p;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    for (int i = 0; i < n; i++)
        lens[i] = strlen(texts[i]);
    preambles_destroy(t.srv.preambles);
    t.srv.preambles = NULL;
    if (preambles_open(&p, files_of(texts, lens, n), &why) != OK ||
        preambles_prepare(p, &t.srv, &why) != OK)
        fail_msg("%s", buf_str(&why));
    t.srv.preambles = p;
    buf_fini(&why);
}

static void use_one(const char *text)
{
    use(&text, 1);
}

static void read_chat(struct prompt *p, const char *json, bool add_special)
{
    struct json *body = json_of(json);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    prompt_init(p, 1000);
    if (prompt_from_chat(p, &t.srv, body, add_special, &why) != OK)
        fail_msg("%s: %s", json, buf_str(&why));
    js_unref(body);
    buf_fini(&why);
}

/* Check that the public ids of the chat are those of `text`, and that a span ends there. An id is a
 * byte; <s> counts as three bytes of `text`. */
static void shares(const char *json, const char *text)
{
    uint32_t n = (uint32_t)strlen(text), is_end = n == 0;
    struct prompt p;

    read_chat(&p, json, false);
    if (p.n_public != n)
        fail_msg("%s: %u public ids instead of %u", json, p.n_public, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(prompt_ids(&p)[i], (unsigned char)text[i]);
    for (uint32_t i = 0; i < prompt_n_span_ends(&p); i++)
        is_end |= prompt_span_ends(&p)[i] == n;
    assert_true(is_end);
    prompt_fini(&p);
}

static void a_chat_that_begins_with_the_preamble_shares_its_ids(void **state)
{
    (void)state;
    use_one("Be kind.");
    shares("{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'q'}]}",
           "<s>system: Be kind.\n");
    shares("{'messages':[{'role':'developer','content':'Be kind.'},{'role':'user','content':'q'}]}",
           "<s>system: Be kind.\n");
    shares("{'messages':[{'role':'system','content':[{'type':'text','text':'Be kind.'}]},"
           "{'role':'user','content':'q'},{'role':'assistant','content':'a'},"
           "{'role':'user','content':'r'}]}",
           "<s>system: Be kind.\n");
}

static void nothing_else_is_public(void **state)
{
    static const char *const chats[] = {
        "{'messages':[{'role':'system','content':'Be kind'},{'role':'user','content':'q'}]}",
        "{'messages':[{'role':'system','content':'Be kind..'},{'role':'user','content':'q'}]}",
        "{'messages':[{'role':'system','content':' Be kind.'},{'role':'user','content':'q'}]}",
        "{'messages':[{'role':'user','content':'Be kind.'}]}",
        "{'messages':[{'role':'user','content':'q'},{'role':'system','content':'Be kind.'}]}",
        "{'messages':[{'role':'user','content':'q'}]}",
        "{'messages':[{'role':'system','content':'Be kind.'}],'continue_final_message':true}",
    };

    (void)state;
    use_one("Be kind.");
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++)
        shares(chats[i], "");
}

static void text_before_the_preamble_makes_a_chat_private(void **state)
{
    const char *chat = "{'messages':[{'role':'system','content':'Be kind.'},"
                       "{'role':'user','content':'q'}],'documents_placement':'template',"
                       "'documents':[{'title':'T','text':'x'}]}";

    (void)state;
    atomic_store(&fake_uses_documents, true); /* the template writes documents first */
    use_one("Be kind.");
    shares(chat, "");
    atomic_store(&fake_uses_documents, false);
}

static void documents_behind_the_preamble_end_it(void **state)
{
    const char *one = "{'messages':[{'role':'system','content':'Be kind.'},"
                      "{'role':'user','content':'q'}],'documents':[{'text':'x'}]}";
    const char *two = "{'messages':[{'role':'system','content':'Be kind.'},"
                      "{'role':'user','content':'q'}],'documents':[{'text':'y'},{'text':'x'}]}";
    struct prompt with, without;

    (void)state;
    use_one("Be kind.");
    shares(one, "<s>system: Be kind.\n\nDocuments:\n");
    shares(two, "<s>system: Be kind.\n\nDocuments:\n");
    /* The preamble ends where documents begin, so it adds no span end. */
    read_chat(&with, two, false);
    preambles_destroy(t.srv.preambles);
    t.srv.preambles = NULL;
    read_chat(&without, two, false);
    assert_int_equal(without.n_public, 0);
    assert_int_equal(prompt_n_span_ends(&with), prompt_n_span_ends(&without));
    assert_int_equal(prompt_n_ids(&with), prompt_n_ids(&without));
    prompt_fini(&with);
    prompt_fini(&without);
}

static void white_space_at_the_end_of_the_file_may_be_left_out(void **state)
{
    (void)state;
    use_one("Be kind. \n");
    shares("{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'q'}]}",
           "<s>system: Be kind.\n");
    shares("{'messages':[{'role':'system','content':'Be kind.\\t'},{'role':'user','content':'q'}]}",
           "");
    shares("{'messages':[{'role':'system','content':'Be kind. \\n'},"
           "{'role':'user','content':'q'}]}",
           "<s>system: Be kind. \n");
}

static void the_longest_preamble_counts(void **state)
{
    const char *texts[] = {"Be kind.\nBe brief.", "Be kind.", "Be\nkind."};

    (void)state;
    use(texts, 3);
    shares("{'messages':[{'role':'system','content':'Be kind.\\nBe brief.'},"
           "{'role':'user','content':'q'}]}",
           "<s>system: Be kind.\nBe brief.\n");
    shares("{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'q'}]}",
           "<s>system: Be kind.\n");
    shares("{'messages':[{'role':'system','content':'Be\\nkind.'},{'role':'user','content':'q'}]}",
           "<s>system: Be\nkind.\n");
}

static void a_prompt_asked_for_as_one_text_is_one_span(void **state)
{
    struct prompt p;

    (void)state;
    use_one("Be kind.");
    read_chat(&p,
              "{'messages':[{'role':'system','content':'Be kind.'},"
              "{'role':'user','content':'q'}]}",
              true);
    assert_int_equal(p.n_public, 0);
    assert_int_equal(prompt_n_span_ends(&p), 0);
    prompt_fini(&p);
}

static size_t find_at(const char *text, int64_t now_s)
{
    size_t end;

    assert_ok(preambles_find(t.srv.preambles, text, strlen(text), NULL, now_s, &end));
    return end;
}

static void a_date_in_the_template_is_that_of_the_day(void **state)
{
    const char *day_7 = "<s>7\nsystem: Be kind.\nuser: q\n";
    const char *day_8 = "<s>8\nsystem: Be kind.\nuser: q\n";
    size_t n = strlen("<s>7\nsystem: Be kind.\n");

    (void)state;
    atomic_store(&fake_clock_s, DAY_S);
    use_one("Be kind.");
    assert_int_equal(find_at(day_7, 7 * DAY_S), n);
    assert_int_equal(find_at(day_7, 8 * DAY_S - 1), n);
    assert_int_equal(find_at(day_8, 8 * DAY_S - 1), 0);
    assert_int_equal(find_at(day_8, 8 * DAY_S), n);
    assert_int_equal(find_at(day_7, 7 * DAY_S), n); /* a request rendered before midnight */
    atomic_store(&fake_clock_s, 0);
}

/* Look up a chat of day *arg repeatedly. Do not assert, because cmocka's assertions work on the
 * main thread only. */
static void *ask_all_day(void *arg)
{
    int day = *(const int *)arg;
    char text[64];
    size_t end;

    int n = snprintf(text, sizeof text, "<s>%d\nsystem: Be kind.\nuser: q\n", day);
    for (int64_t now_s = day * DAY_S; now_s < day * DAY_S + 200; now_s++)
        if (preambles_find(t.srv.preambles, text, (size_t)n, NULL, now_s, &end) != OK ||
            end != strlen("<s>7\nsystem: Be kind.\n"))
            return arg;
    return NULL;
}

static void chats_before_and_after_midnight_find_theirs_at_once(void **state)
{
    int days[4] = {7, 8, 7, 8};
    pthread_t threads[4];
    void *failed;

    (void)state;
    atomic_store(&fake_clock_s, DAY_S);
    use_one("Be kind.");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_all_day, &days[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    atomic_store(&fake_clock_s, 0);
}

static void refuses_files(const char *files, enum status s, const char *words)
{
    struct preambles *p;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status got = preambles_open(&p, files, &why);
    if (got == OK) {
        got = preambles_prepare(p, &t.srv, &why);
        preambles_destroy(p);
    } else {
        assert_null(p);
    }
    if (got != s || !strstr(buf_str(&why), "--preamble: ") || !strstr(buf_str(&why), words))
        fail_msg("%s \"%s\" instead of %s \"%s\"", status_name(got), buf_str(&why), status_name(s),
                 words);
    buf_fini(&why);
}

static void refuses_text(const char *text, size_t len, enum status s, const char *words)
{
    refuses_files(files_of(&text, &len, 1), s, words);
}

static void a_file_that_is_no_preamble_is_refused_with_its_name(void **state)
{
    char many[64 * (PREAMBLES_N_MAX + 1)], longer[200], *large = malloc(PREAMBLE_BYTES_MAX + 1);
    const char *text = "Be kind.";
    size_t used = 0, len = strlen(text);

    (void)state;
    assert_non_null(large);
    refuses_files("/nowhere/a.txt", ERR_NOT_FOUND, "cannot open /nowhere/a.txt: No such file");
    refuses_files(dir, ERR_INVALID, "is not a regular file");
    refuses_text("", 0, ERR_INVALID, "/0 is empty");
    refuses_text(" \n\t\r\n", 5, ERR_INVALID, "/0 is empty");
    refuses_text("caf\xe9.", 5, ERR_INVALID, "/0 is no UTF-8 text");
    refuses_text("a\0b", 3, ERR_INVALID, "/0 is no UTF-8 text");
    memset(large, 'a', PREAMBLE_BYTES_MAX + 1);
    refuses_text(large, PREAMBLE_BYTES_MAX + 1, ERR_TOO_LARGE, "/0 is larger than 1024 KiB");
    memset(longer, 'a', sizeof longer);
    refuses_text(longer, sizeof longer, ERR_TOO_LARGE, "/0 has more tokens than");
    const char *good = files_of(&text, &len, 1);
    for (int i = 0; i <= PREAMBLES_N_MAX; i++)
        used += (size_t)snprintf(many + used, sizeof many - used, "%s,", good);
    refuses_files(many, ERR_INVALID, "more than 64 files");
    free(large);
}

static void a_model_that_cannot_share_is_named(void **state)
{
    const char *text = "Be kind.";
    size_t len = strlen(text);
    const struct chat_template *template = t.srv.template;
    const struct tokenizer *tokenizer = t.srv.tokenizer;

    (void)state;
    t.srv.template = NULL;
    refuses_text(text, len, ERR_UNSUPPORTED, "no chat template");
    t.srv.template = template;
    t.srv.tokenizer = NULL;
    refuses_text(text, len, ERR_UNSUPPORTED, "no tokenizer");
    t.srv.tokenizer = tokenizer;
    atomic_store(&fake_clock_s, 3600);
    refuses_text(text, len, ERR_INVALID, "the time of day");
    atomic_store(&fake_clock_s, 0);
}

static void a_public_end_takes_its_place_among_the_ends(void **state)
{
    static const size_t want[] = {5, 9, 20};
    const size_t later = 20;
    struct spans s;

    (void)state;
    for (int i = 0; i < 4; i++) { /* before all ends, between two, equal to one, after all */
        static const size_t at[] = {5, 9, 20, 30};
        spans_init(&s);
        assert_ok(spans_add_public(&s, i == 0 ? 9 : 5));
        assert_ok(buf_append(&s.ends, &later, sizeof later));
        assert_ok(spans_add_public(&s, at[i]));
        assert_int_equal(s.public_end, at[i]);
        assert_int_equal(spans_n_ends(&s), i == 2 ? 2 : 3);
        for (size_t k = 0; k < spans_n_ends(&s); k++)
            assert_true(k == 0 || spans_end(&s, k) > spans_end(&s, k - 1));
        for (size_t k = 0; i < 2 && k < 3; k++)
            assert_int_equal(spans_end(&s, k), want[k]);
        spans_fini(&s);
    }
}

static void without_files_nothing_is_public(void **state)
{
    struct preambles *p;
    size_t end = 7;

    (void)state;
    assert_ok(preambles_open(&p, NULL, NULL));
    preambles_destroy(p);
    assert_ok(preambles_open(&p, ",,", NULL));
    assert_ok(preambles_prepare(p, &t.srv, NULL));
    assert_ok(preambles_find(p, "<s>system: Be kind.\n", 20, NULL, 0, &end));
    assert_int_equal(end, 0);
    preambles_destroy(p);
}

static enum status put(const char *name, const char *text)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    const struct preamble_text preamble = {text, strlen(text), NULL};
    enum status s = preambles_put(t.srv.preambles, name, &preamble, &why);
    assert_int_equal(s == OK, why.len == 0);
    assert_true(s == OK || strncmp(buf_str(&why), "system: ", 8) == 0 || s == ERR_TOO_LARGE);
    buf_fini(&why);
    return s;
}

static void a_registered_preamble_is_public_until_it_is_removed_or_replaced(void **state)
{
    static const char chat[] = "{'messages':[{'role':'system','content':'Be brief.'},"
                               "{'role':'user','content':'Hi'}]}";
    static const char public[] = "<s>system: Be brief.\n";

    (void)state;
    use_one("Be kind.");
    shares(chat, "");
    assert_ok(put("a", "Be brief."));
    shares(chat, public);
    assert_ok(put("a", "Be loud."));
    shares(chat, "");
    assert_ok(put("a", "Be brief.\n"));
    shares(chat, public);
    preambles_remove(t.srv.preambles, "b");
    shares(chat, public);
    preambles_remove(t.srv.preambles, "a");
    shares(chat, "");
    /* Files stay. */
    shares("{'messages':[{'role':'system','content':'Be kind.'},{'role':'user','content':'Hi'}]}",
           "<s>system: Be kind.\n");
}

static void a_registered_preamble_must_be_a_text_that_fits(void **state)
{
    char *large = malloc(PREAMBLE_BYTES_MAX + 2);

    (void)state;
    use_one("Be kind.");
    assert_int_equal(put("a", " \n"), ERR_INVALID);
    assert_int_equal(put("a", "\xff"), ERR_INVALID);
    assert_non_null(large);
    memset(large, 'x', PREAMBLE_BYTES_MAX + 1);
    large[PREAMBLE_BYTES_MAX + 1] = '\0';
    assert_int_equal(put("a", large), ERR_TOO_LARGE);
    free(large);
}

static void registered_preambles_have_a_limit_of_their_own(void **state)
{
    char name[16];

    (void)state;
    use_one("Be kind.");
    for (int i = 0; i < PREAMBLES_N_REGISTERED_MAX; i++) {
        snprintf(name, sizeof name, "p%d", i);
        assert_ok(put(name, name));
    }
    assert_int_equal(put("more", "more"), ERR_TOO_LARGE);
    assert_ok(put("p3", "another text"));
    preambles_remove(t.srv.preambles, "p5");
    assert_ok(put("more", "more"));
}

static void *find_all_the_time(void *stop)
{
    size_t end;

    while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
        assert_ok(preambles_find(t.srv.preambles, "<s>system: Be brief.\n", 21, NULL, 0, &end));
        assert_true(end == 0 || end == 21);
    }
    return NULL;
}

static void chats_are_rendered_while_preambles_change(void **state)
{
    pthread_t reader;
    bool stop = false;

    (void)state;
    use_one("Be kind.");
    assert_int_equal(pthread_create(&reader, NULL, find_all_the_time, &stop), 0);
    for (int i = 0; i < 200; i++) {
        assert_ok(put("a", i % 2 ? "Be brief." : "Be long."));
        if (i % 3 == 0)
            preambles_remove(t.srv.preambles, "a");
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    pthread_join(reader, NULL);
}

static int open_server(void **state)
{
    (void)state;
    log_init(LOG_WARN, false);
    server_test_open(&t, "");
    return mkdtemp(dir) ? 0 : -1;
}

static int close_server(void **state)
{
    char path[64];

    (void)state;
    for (int i = 0; i < N_FILES_MAX; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        unlink(path);
    }
    rmdir(dir);
    preambles_destroy(t.srv.preambles);
    server_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_that_begins_with_the_preamble_shares_its_ids),
        cmocka_unit_test(nothing_else_is_public),
        cmocka_unit_test(text_before_the_preamble_makes_a_chat_private),
        cmocka_unit_test(documents_behind_the_preamble_end_it),
        cmocka_unit_test(white_space_at_the_end_of_the_file_may_be_left_out),
        cmocka_unit_test(the_longest_preamble_counts),
        cmocka_unit_test(a_prompt_asked_for_as_one_text_is_one_span),
        cmocka_unit_test(a_date_in_the_template_is_that_of_the_day),
        cmocka_unit_test(chats_before_and_after_midnight_find_theirs_at_once),
        cmocka_unit_test(a_file_that_is_no_preamble_is_refused_with_its_name),
        cmocka_unit_test(a_model_that_cannot_share_is_named),
        cmocka_unit_test(a_public_end_takes_its_place_among_the_ends),
        cmocka_unit_test(without_files_nothing_is_public),
        cmocka_unit_test(a_registered_preamble_is_public_until_it_is_removed_or_replaced),
        cmocka_unit_test(a_registered_preamble_must_be_a_text_that_fits),
        cmocka_unit_test(registered_preambles_have_a_limit_of_their_own),
        cmocka_unit_test(chats_are_rendered_while_preambles_change),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
