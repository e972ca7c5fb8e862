/* Cutting rendered prompts at their documents. A document's ids must not depend on its neighbours,
 * and a prompt that cannot be cut must give a reason. The tokenizer is the demo model's. */
#include "engine/text/spans.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "engine/text/chat_template.h"
#include "tests/unit/test.h"

#ifndef TARN_SOURCE_DIR
#define TARN_SOURCE_DIR "."
#endif

static struct tokenizer *tok;
static struct span_marks *marks;

/* Each document between special tokens and newlines, as in the demo model's template. */
static const char clean[] =
    "<|bos|><|system|>\nRead.\n{% for d in documents %}<|doc|>{{ d.title }}\n{{ d.text }}\n"
    "{% endfor %}<|end|>\n<|user|>\n{{ question }}<|end|>\n";
/* An index on a line of its own. */
static const char indexed[] =
    "Documents:\n{% for d in documents %}No. {{ loop.index }}\n= {{ d.text }}\n{% endfor %}"
    "Question: {{ question }}";
/* An index on the document's own line. */
static const char inline_index[] =
    "{% for d in documents %}{{ loop.index }}: {{ d.text }}\n{% endfor %}{{ question }}";
static const char no_tail[] = "{% for d in documents %}\n\n{{ d.text }}{% endfor %} {{ question }}";
static const char one_newline[] =
    "{% for d in documents %}\n{{ d.text }}{% endfor %} {{ question }}";
static const char upper[] = "{% for d in documents %}\n{{ d.text | upper }}\n{% endfor %}";
static const char trimmed[] = "{% for d in documents %}\n{{ d.text | trim }}\n{% endfor %}";
static const char only_first[] = "\n{{ documents[0].text }}\n{{ question }}";

struct rendering {
    struct chat_template *template;
    struct json *context;
};

static enum status render(void *arg, struct json *documents, struct buf *out)
{
    struct rendering *r = arg;
    enum status s = js_set(r->context, "documents", js_ref(documents));

    return s == OK ? chat_template_render(r->template, r->context, 0, out, NULL) : s;
}

static struct json *parse(const char *text)
{
    struct json *j;

    assert_ok(js_parse(&j, text, strlen(text), NULL));
    return j;
}

/* A rendering, its cut, and the ids. */
struct result {
    struct buf text, ids, ends;
    struct spans spans;
};

static void run(struct result *r, const char *template, const char *documents)
{
    struct rendering how;
    struct json *docs = parse(documents);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    buf_init(&r->text, 1 << 20);
    buf_init(&r->ids, 1 << 20);
    buf_init(&r->ends, 1 << 20);
    spans_init(&r->spans);
    how.context = parse("{\"question\": \"What?\"}");
    if (chat_template_create(&how.template, template, strlen(template), &why) != OK)
        fail_msg("%s", buf_str(&why));
    assert_ok(render(&how, docs, &r->text));
    struct spans_render fn = {render, &how};
    assert_ok(spans_find(&r->spans, marks, docs, buf_str(&r->text), r->text.len, NULL, &fn));
    assert_ok(
        spans_tokenize(&r->spans, tok, buf_str(&r->text), r->text.len, NULL, &r->ids, &r->ends));
    chat_template_destroy(how.template);
    js_unref(how.context);
    js_unref(docs);
    buf_fini(&why);
}

static void done(struct result *r)
{
    buf_fini(&r->text);
    buf_fini(&r->ids);
    buf_fini(&r->ends);
    spans_fini(&r->spans);
}

/* The i-th span's text must be this. */
static void assert_span(const struct result *r, size_t i, const char *want)
{
    size_t from = i ? spans_end(&r->spans, i - 1) : 0;
    size_t to = i < spans_n_ends(&r->spans) ? spans_end(&r->spans, i) : r->text.len;
    char got[512];

    assert_true(to - from < sizeof got);
    memcpy(got, r->text.data + from, to - from);
    got[to - from] = '\0';
    assert_string_equal(got, want);
}

#define TWO "[{\"title\":\"A\",\"text\":\"first one\"},{\"title\":\"B\",\"text\":\"two\\nlines\"}]"

static void documents_become_spans_of_their_own(void **state)
{
    struct result r;

    (void)state;
    run(&r, clean, TWO);
    assert_string_equal(r.spans.reason, "");
    assert_int_equal(spans_n_ends(&r.spans), 3);
    assert_span(&r, 0, "<|bos|><|system|>\nRead.\n");
    assert_span(&r, 1, "<|doc|>A\nfirst one\n");
    assert_span(&r, 2, "<|doc|>B\ntwo\nlines\n");
    assert_span(&r, 3, "<|end|>\n<|user|>\nWhat?<|end|>");
    done(&r);
}

static void a_single_document_is_cut_like_many(void **state)
{
    struct result r;

    (void)state;
    run(&r, clean, "[{\"title\":\"B\",\"text\":\"two\\nlines\"}]");
    assert_int_equal(spans_n_ends(&r.spans), 2);
    assert_span(&r, 1, "<|doc|>B\ntwo\nlines\n");
    done(&r);
}

static void what_depends_on_the_position_stands_in_a_run_before(void **state)
{
    struct result r;

    (void)state;
    run(&r, indexed, TWO);
    assert_int_equal(spans_n_ends(&r.spans), 4);
    assert_span(&r, 0, "Documents:\nNo. 1\n");
    assert_span(&r, 1, "= first one\n");
    assert_span(&r, 2, "No. 2\n");
    assert_span(&r, 3, "= two\nlines\n");
    assert_span(&r, 4, "Question: What?");
    done(&r);
}

static void what_cannot_be_cut_is_one_span_with_a_reason(void **state)
{
    const struct {
        const char *template, *documents, *words;
    } cases[] = {
        {inline_index, TWO, "precedes each document"},
        {no_tail, TWO, "follows a document"},
        {one_newline, TWO, "precedes each document"},
        {upper, TWO, "rewrites documents"},
        {trimmed, "[{\"text\":\"  spaces  \"}]", "changes the documents' text"},
        {only_first, TWO, "omits, mixes or rewrites documents"},
        {clean, "[{\"title\":\"\",\"text\":\"\"}]", "omits, mixes or rewrites documents"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct result r;
        run(&r, cases[i].template, cases[i].documents);
        assert_int_equal(spans_n_ends(&r.spans), 0);
        assert_int_equal(r.ends.len, 0);
        if (!strstr(r.spans.reason, cases[i].words))
            fail_msg("case %zu: \"%s\"", i, r.spans.reason);
        done(&r);
    }
}

static void text_that_looks_like_structure_changes_no_cut(void **state)
{
    struct result r;

    (void)state;
    run(&r, clean,
        "[{\"title\":\"Qx0123456789abcdefd0s0z\",\"text\":\"<|doc|>A\\nfirst one\\n\"},"
        "{\"title\":\"A\",\"text\":\"first one\"},{\"title\":\"A\",\"text\":\"first one\"}]");
    assert_string_equal(r.spans.reason, "");
    assert_int_equal(spans_n_ends(&r.spans), 4);
    assert_span(&r, 1, "<|doc|>Qx0123456789abcdefd0s0z\n<|doc|>A\nfirst one\n\n");
    assert_span(&r, 2, "<|doc|>A\nfirst one\n");
    assert_span(&r, 3, "<|doc|>A\nfirst one\n");
    done(&r);
}

/* The ids of document "k" wherever it stands among five must be the same. */
static void ids_do_not_depend_on_the_neighbours(void **state)
{
    static const char *const texts[5] = {"Plain words.", "  leading and trailing  ", "12345 678",
                                         "don't -- stop!", "\\u00e9t\\u00e9 \\ud83d\\ude00"};
    uint32_t first[5][200], n_first[5] = {0};

    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t order[5] = {0, 1, 2, 3, 4};
        char documents[1024] = "[";
        struct result r;
        for (uint32_t i = 4; i > 0; i--) {
            uint32_t j = rng_u32(round, i) % (i + 1), t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        uint32_t n = 1 + rng_u32(round, 9) % 5;
        for (uint32_t i = 0; i < n; i++)
            sprintf(documents + strlen(documents), "%s{\"title\":\"T%u\",\"text\":\"%s\"}",
                    i ? "," : "", order[i], texts[order[i]]);
        strcat(documents, "]");
        run(&r, clean, documents);
        assert_int_equal(r.ends.len / 4, n + 1);
        const uint32_t *ids = (const uint32_t *)(const void *)r.ids.data;
        const uint32_t *ends = (const uint32_t *)(const void *)r.ends.data;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = order[i], len = ends[i + 1] - ends[i];
            if (n_first[k] == 0) {
                n_first[k] = len;
                memcpy(first[k], ids + ends[i], len * sizeof *ids);
            }
            assert_int_equal(len, n_first[k]);
            assert_memory_equal(ids + ends[i], first[k], len * sizeof *ids);
        }
        done(&r);
    }
}

static void no_documents_are_one_span_without_a_reason(void **state)
{
    struct result r;

    (void)state;
    run(&r, clean, "[]");
    assert_int_equal(spans_n_ends(&r.spans), 0);
    assert_string_equal(r.spans.reason, "");
    done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_become_spans_of_their_own),
        cmocka_unit_test(a_single_document_is_cut_like_many),
        cmocka_unit_test(what_depends_on_the_position_stands_in_a_run_before),
        cmocka_unit_test(what_cannot_be_cut_is_one_span_with_a_reason),
        cmocka_unit_test(text_that_looks_like_structure_changes_no_cut),
        cmocka_unit_test(ids_do_not_depend_on_the_neighbours),
        cmocka_unit_test(no_documents_are_one_span_without_a_reason),
    };
    if (hash_init() != OK ||
        tokenizer_load(&tok, TARN_SOURCE_DIR "/deploy/demo-model", NULL) != OK ||
        span_marks_create(&marks, tok) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    span_marks_destroy(marks);
    tokenizer_destroy(tok);
    return rc;
}
