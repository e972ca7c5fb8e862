/* Unit tests of engine/text/reasoning: thoughts and answers in every format, in pieces of any
 * length; which format a template teaches; where a prompt stands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/reasoning.h"
#include "tests/unit/test.h"

/* Feed a text in pieces of n bytes. The result is THOUGHTS|TEXT and the end of the reasoning. */
static uint64_t run(const char *format, enum reasoning_place place, const char *text, size_t n,
                    struct buf *out)
{
    const struct reasoning_format *f = reasoning_find(format, NULL);
    struct reasoning_parser p;
    struct buf said;
    size_t len = strlen(text);

    assert_non_null(f);
    buf_init(out, 1 << 20);
    buf_init(&said, 1 << 20);
    reasoning_parser_init(&p, f, place);
    for (size_t at = 0; at < len; at += n)
        assert_ok(reasoning_parser_feed(&p, text + at, len - at < n ? len - at : n, out, &said));
    assert_ok(reasoning_parser_finish(&p, out, &said));
    assert_ok(buf_putc(out, '|'));
    assert_ok(buf_append(out, buf_str(&said), said.len));
    uint64_t end_at = p.end_at;
    reasoning_parser_fini(&p);
    buf_fini(&said);
    return end_at;
}

#define START "<|start|>assistant"
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define CALL(name, text)                                                                           \
    "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>" text "<|call|>"

struct row {
    const char *format;
    enum reasoning_place place;
    const char *text, *want;
    uint64_t end_at; /* 0: never */
};

static void thoughts_and_answers_are_told_apart_in_any_pieces(void **state)
{
    static const struct row rows[] = {
        {"qwen3", REASONING_MAY_BEGIN, "<think>\nSo.\n</think>\n\nYes.", "So.|Yes.", 20},
        {"qwen3", REASONING_MAY_BEGIN, "\n <think>a</think>b", "a|b", 18},
        {"qwen3", REASONING_MAY_BEGIN, " Yes. <think>a</think>", "| Yes. <think>a</think>", 0},
        {"qwen3", REASONING_MAY_BEGIN, "<thin", "|<thin", 0},
        {"qwen3", REASONING_MAY_BEGIN, " \n", "| \n", 0},
        {"qwen3", REASONING_MAY_BEGIN, "", "|", 0},
        {"qwen3", REASONING_MAY_BEGIN, "<think>a </thi b </th", "a </thi b </th|", 0},
        {"qwen3", REASONING_MAY_BEGIN, "<think></think>", "|", 15},
        {"qwen3", REASONING_BEGAN, "So.\n</think>\n\nYes. </think> No.", "So.|Yes. </think> No.",
         12},
        {"qwen3", REASONING_BEGAN, "\n<think>So.\n", "So.|", 0},
        {"qwen3", REASONING_ENDED, "\n\n<think>a</think>", "|<think>a</think>", 0},
        {"deepseek_r1", REASONING_MAY_BEGIN, "a <b></think>c", "a <b>|c", 13},
        {"deepseek_r1", REASONING_MAY_BEGIN, "<think>\na</think>\n\nc", "a|c", 17},
        {"deepseek_r1", REASONING_ENDED, "a</think>", "|a</think>", 0},
        {"mistral", REASONING_MAY_BEGIN, "[THINK]a [b][/THINK]c", "a [b]|c", 20},
        {"granite", REASONING_MAY_BEGIN,
         "Here is my thought process: x Here is Here's my response: y", "x Here is|y", 57},
        {"granite", REASONING_MAY_BEGIN,
         "Here's my thought process: x Here is my response: Here's my response: y",
         "x|Here's my response: y", 49},
        {"granite", REASONING_MAY_BEGIN, "Here is my plan.", "|Here is my plan.", 0},
        {"seed_oss", REASONING_MAY_BEGIN, "<seed:think>a</seed:think>b", "a|b", 26},
        {"gemma4", REASONING_MAY_BEGIN, "<|channel>thought\na\n<channel|>b", "a|b", 30},
        {"gpt_oss", REASONING_MAY_BEGIN, ANALYSIS "So < it.<|end|>" START FINAL "Yes.<|return|>",
         "So < it.|Yes.", 45},
        {"gpt_oss", REASONING_MAY_BEGIN, ANALYSIS "So", "So|", 0},
        {"gpt_oss", REASONING_MAY_BEGIN, FINAL "Yes < no", "|Yes < no", 0},
        {"gpt_oss", REASONING_MAY_BEGIN, "Yes <|", "|Yes <|", 0},
        {"gpt_oss", REASONING_MAY_BEGIN, "", "|", 0},
        {"gpt_oss", REASONING_MAY_BEGIN, ANALYSIS "a<|end|>" START, "a|", 0},
        {"gpt_oss", REASONING_MAY_BEGIN,
         ANALYSIS "a<|end|>" START ANALYSIS "b<|end|>" START
                  "<|channel|>commentary<|message|>c<|end|>" START FINAL "d",
         "a\nb|c\nd", 94},
        {"gpt_oss", REASONING_MAY_BEGIN,
         ANALYSIS "a<|end|>" START
                  "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
                  "{}<|call|>",
         "a|" CALL("f", "{}"), 38},
        {"gpt_oss", REASONING_MAY_BEGIN, " to=functions.f<|channel|>commentary json<|message|>{}",
         "|<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", 0},
        {"gpt_oss", REASONING_MAY_BEGIN,
         "<|channel|>commentary to=browser.search code<|message|>{}<|call|>", "{}|", 0},
        {"gpt_oss", REASONING_MAY_BEGIN, ANALYSIS "a<|channel|>final<|message|>b", "a|b", 31},
        {"gpt_oss", REASONING_ENDED, "b<|end|>", "|b", 0},
        {"gpt_oss", REASONING_BEGAN, "a<|end|>" START FINAL "b", "a|b", 8},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct row *r = &rows[i];
        for (size_t n = 1; n <= strlen(r->text) + 1; n++) {
            struct buf out;
            uint64_t end_at = run(r->format, r->place, r->text, n, &out);
            if (strcmp(buf_str(&out), r->want) != 0 ||
                end_at != (r->end_at ? r->end_at : UINT64_MAX))
                fail_msg("%s in pieces of %zu: \"%s\" gave \"%s\" and %llu", r->format, n, r->text,
                         buf_str(&out), (unsigned long long)end_at);
            buf_fini(&out);
        }
    }
}

static void long_white_space_ends_where_the_bound_is(void **state)
{
    char text[1024];
    struct buf whole, part;

    (void)state;
    for (int n_space = 250; n_space < 262; n_space++) {
        snprintf(text, sizeof text, "%*s<think>a%*s</think>b", n_space, "", n_space, "");
        run("qwen3", REASONING_MAY_BEGIN, text, sizeof text, &whole);
        for (size_t n = 1; n < 9; n++) {
            run("qwen3", REASONING_MAY_BEGIN, text, n, &part);
            assert_string_equal(buf_str(&part), buf_str(&whole));
            buf_fini(&part);
        }
        assert_true((strcmp(buf_str(&whole), "a|b") == 0) == (n_space < 256));
        buf_fini(&whole);
    }
}

static const struct reasoning_format *of_template(const char *source)
{
    struct chat_template *t;

    assert_ok(chat_template_create(&t, source, strlen(source), NULL));
    const struct reasoning_format *f = reasoning_find("auto", t);
    chat_template_destroy(t);
    return f;
}

static void the_template_says_the_format(void **state)
{
    static const struct {
        const char *source, *want;
    } rows[] = {
        {"{{ m.split('</think>')[-1] }}{% if enable_thinking is false %}x{% endif %}", "qwen3"},
        {"<｜Assistant｜>{{ m.split('</think>')[-1] }}", "deepseek_r1"},
        {"<｜Assistant｜>{% if thinking %}<think>{% else %}</think>{% endif %}", "qwen3"},
        {"[SYSTEM_PROMPT]Draft in [THINK] and [/THINK].", "mistral"},
        {"Write 'Here is my thought process:' first.", "granite"},
        {"{{ '<|channel|>analysis<|message|>' + m }}", "gpt_oss"},
        {"{{ '</seed:think>' }}", "seed_oss"},
        {"{{ '<|channel>thought' + m + '<channel|>' }}", "gemma4"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct reasoning_format *f = of_template(rows[i].source);
        assert_non_null(f);
        assert_string_equal(f->name, rows[i].want);
    }
    assert_null(of_template("<|user|>{{ messages[0].content }}"));
    assert_null(reasoning_find("auto", NULL));
    assert_null(reasoning_find("none", NULL));
}

/* A header without an end is text from its bound on. */
static void a_long_header_is_text_in_any_pieces(void **state)
{
    char text[1024];
    struct buf whole, part;

    (void)state;
    for (int n = 480; n < 500; n++) {
        snprintf(text, sizeof text, "<|channel|>%0*d<|message|>x", n, 0);
        run("gpt_oss", REASONING_MAY_BEGIN, text, sizeof text, &whole);
        for (size_t k = 1; k < 9; k++) {
            run("gpt_oss", REASONING_MAY_BEGIN, text, k, &part);
            assert_string_equal(buf_str(&part), buf_str(&whole));
            buf_fini(&part);
        }
        assert_true((strcmp(buf_str(&whole), "|x") == 0) ==
                    (n + 22 <= (int)REASONING_HEADER_BYTES_MAX));
        buf_fini(&whole);
    }
}

static void the_end_of_the_prompt_says_the_place(void **state)
{
    const struct reasoning_format *oss = reasoning_find("gpt_oss", NULL);
    const struct reasoning_format *f = reasoning_find("qwen3", NULL);
    const struct reasoning_format *r1 = reasoning_find("deepseek_r1", NULL);

    (void)state;
    assert_int_equal(reasoning_place_of(f, "x<think>\n", 9), REASONING_BEGAN);
    assert_int_equal(reasoning_place_of(f, "<think>\n\n</think>\n\n", 19), REASONING_ENDED);
    assert_int_equal(reasoning_place_of(f, "<think> x", 9), REASONING_MAY_BEGIN);
    assert_int_equal(reasoning_place_of(f, "", 0), REASONING_MAY_BEGIN);
    assert_int_equal(reasoning_place_of(oss, START, strlen(START)), REASONING_MAY_BEGIN);
    assert_int_equal(reasoning_place_of(oss, START FINAL, strlen(START FINAL)), REASONING_ENDED);
    assert_int_equal(reasoning_place_of(oss, ANALYSIS, strlen(ANALYSIS)), REASONING_BEGAN);
    assert_int_equal(reasoning_place_in(oss, "The answer is", 13), REASONING_ENDED);
    static const struct {
        const char *text;
        enum reasoning_place place;
    } messages[] = {
        {ANALYSIS "so", REASONING_BEGAN},
        {ANALYSIS "so<|end|>", REASONING_MAY_BEGIN},
        {ANALYSIS "so<|end|>" FINAL "yes", REASONING_ENDED},
        {ANALYSIS "so<|end|>" FINAL "yes<|end|>", REASONING_ENDED},
        {ANALYSIS "so<|end|>" FINAL "yes<|end|>" ANALYSIS "but", REASONING_BEGAN},
        {ANALYSIS "a<|end|>" FINAL "b<|end|>" ANALYSIS "c<|end|>", REASONING_MAY_BEGIN}};
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
        assert_int_equal(reasoning_place_in(oss, messages[i].text, strlen(messages[i].text)),
                         messages[i].place);
    assert_string_equal(reasoning_prefix(oss, REASONING_MAY_BEGIN), "");
    assert_string_equal(reasoning_prefix(oss, REASONING_ENDED), FINAL);
    assert_int_equal(reasoning_place_in(f, "<think> x", 9), REASONING_BEGAN);
    assert_int_equal(reasoning_place_in(f, "<think></think>x", 16), REASONING_ENDED);
    assert_int_equal(reasoning_place_in(r1, "The answer is", 13), REASONING_ENDED);
    assert_string_equal(reasoning_prefix(f, REASONING_MAY_BEGIN), "");
    assert_string_equal(reasoning_prefix(r1, REASONING_MAY_BEGIN), "<think>");
    assert_string_equal(reasoning_prefix(f, REASONING_BEGAN), "<think>");
    assert_string_equal(reasoning_prefix(r1, REASONING_ENDED), "<think></think>");
}

/* A client may have a long text continued. */
static void many_messages_are_read_in_one_pass(void **state)
{
    const struct reasoning_format *oss = reasoning_find("gpt_oss", NULL);
    static const char *const pieces[] = {"<|end|>", "<|channel|><|message|>",
                                         "to=functions.f<|message|><|call|>"};
    struct buf text;

    (void)state;
    buf_init(&text, 8u << 20);
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        buf_reset(&text);
        while (text.len < 4u << 20)
            assert_ok(buf_puts(&text, pieces[i]));
        assert_int_equal(reasoning_place_in(oss, buf_str(&text), text.len), REASONING_ENDED);
    }
    assert_ok(buf_puts(&text, ANALYSIS)); /* behind calls */
    assert_int_equal(reasoning_place_in(oss, buf_str(&text), text.len), REASONING_BEGAN);
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_and_answers_are_told_apart_in_any_pieces),
        cmocka_unit_test(long_white_space_ends_where_the_bound_is),
        cmocka_unit_test(many_messages_are_read_in_one_pass),
        cmocka_unit_test(the_template_says_the_format),
        cmocka_unit_test(a_long_header_is_text_in_any_pieces),
        cmocka_unit_test(the_end_of_the_prompt_says_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
