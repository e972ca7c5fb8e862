/* Expressions and templates against what jinja2 prints; errors by name and line; bounds; mutated
 * templates do not crash (run it under ASan and UBSan). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/text/chat_template.h"

struct row {
    const char *source;
    const char *expected; /* NULL: an error */
};

#include "tests/unit/engine/text/chat_template_exprs.h"
#include "tests/unit/engine/text/chat_template_texts.h"

#define NOW_S 1735787045 /* 2025-01-02 03:04:05 UTC */
#define OUT_MAX_BYTES ((size_t)1 << 20)
#ifndef N_MUTATIONS /* -DN_MUTATIONS=1000000 for a long run */
#define N_MUTATIONS 2000
#endif

static const char context_text[] =
    "{\"n\": 7, \"f\": 2.5, \"s\": \"Hello, Wörld\", \"e\": \"\", \"l\": [3, 1, 2],"
    " \"nested\": [[1, 2], [3, [4]]], \"d\": {\"b\": 1, \"a\": [1, 2], \"items\": 5, \"c\": null},"
    " \"msgs\": [{\"role\": \"user\", \"content\": \"Hi\", \"n\": 2}, {\"role\": \"assistant\","
    " \"content\": \"Yo\", \"n\": 1}, {\"role\": \"User\", \"content\": null}], \"t\": true,"
    " \"none\": null, \"big\": 9007199254740993, \"u\": \"naïve 日本語 🙂\","
    " \"lines\": \"a\\n\\n  b\\nc\\n\", \"html\": \"<a href=\\\"x\\\">'&'</a>\", \"neg\": -3,"
    " \"empty\": [], \"ed\": {}}";

static const char fuzz_context_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\","
    " \"content\": \"What is 2+2?\"}, {\"role\": \"assistant\","
    " \"content\": \"<think>hm</think>4\", \"tool_calls\": [{\"id\": \"call00001\","
    " \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1,"
    " \"b\": [true, null]}}}]}, {\"role\": \"tool\", \"content\": \"ok\"}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\","
    " \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}],"
    " \"documents\": [{\"title\": \"T\", \"text\": \"body\"}], \"add_generation_prompt\": true,"
    " \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";

static struct json *parse_json(const char *text)
{
    struct json *j = NULL;

    assert_int_equal(js_parse(&j, text, strlen(text), NULL), OK);
    return j;
}

/* Render source[0..len); `why` gets the words of an error. */
static enum status render(const char *source, size_t len, const struct json *context,
                          struct buf *out, struct buf *why)
{
    struct chat_template *t;
    enum status s = chat_template_create(&t, source, len, why);

    if (s == OK)
        s = chat_template_render(t, context, NOW_S, out, why);
    chat_template_destroy(t);
    return s;
}

static bool row_holds(const struct row *row, const char *format, const struct json *context)
{
    char source[4096];
    struct buf out, why;

    int n = snprintf(source, sizeof source, format, row->source);
    assert_true(n > 0 && (size_t)n < sizeof source);
    buf_init(&out, OUT_MAX_BYTES);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = render(source, (size_t)n, context, &out, &why);
    bool holds = row->expected ? s == OK && strcmp(buf_str(&out), row->expected) == 0
                               : s != OK && why.len > 0;
    if (!holds)
        printf("%s\n  expected %s\n  got      %s\n", source,
               row->expected ? row->expected : "an error", s == OK ? buf_str(&out) : buf_str(&why));
    buf_fini(&out);
    buf_fini(&why);
    return holds;
}

static void check_rows(const struct row *rows, size_t n, const char *format)
{
    struct json *context = parse_json(context_text);
    size_t n_wrong = 0;

    for (size_t i = 0; i < n; i++)
        n_wrong += !row_holds(&rows[i], format, context);
    printf("%zu of %zu rows as jinja2 has them\n", n - n_wrong, n);
    js_unref(context);
    assert_int_equal(n_wrong, 0);
}

static void expressions_print_as_in_jinja2(void **state)
{
    (void)state;
    check_rows(expr_rows, ARRAY_SIZE(expr_rows), "{{ %s }}");
}

static void statements_print_as_in_jinja2(void **state)
{
    (void)state;
    check_rows(text_rows, ARRAY_SIZE(text_rows), "%s");
}

/* Errors ----------------------------------------------------------------------------------- */

static void expect_error(const char *source, enum status expected, const char *words)
{
    struct json *context = parse_json(context_text);
    struct buf out, why;

    buf_init(&out, OUT_MAX_BYTES);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(buf_puts(&out, "before"), OK);
    enum status s = render(source, strlen(source), context, &out, &why);
    if (s != expected || strcmp(buf_str(&why), words) != 0)
        printf("%s: %s '%s'\n", source, status_name(s), buf_str(&why));
    assert_int_equal(s, expected);
    assert_string_equal(buf_str(&why), words);
    assert_string_equal(buf_str(&out), "before");
    buf_fini(&out);
    buf_fini(&why);
    js_unref(context);
}

static void errors_say_line_and_name(void **state)
{
    (void)state;
    expect_error("a\n\n{{ n|foo }}", ERR_UNSUPPORTED, "chat template line 3: unknown filter 'foo'");
    expect_error("a\n{% if t %}\n{{ n|foo(1) }}{% endif %}", ERR_UNSUPPORTED,
                 "chat template line 3: unknown filter 'foo'");
    expect_error("{{ n is foo }}", ERR_UNSUPPORTED, "chat template line 1: unknown test 'foo'");
    expect_error("\n{% include 'x' %}", ERR_UNSUPPORTED,
                 "chat template line 2: unknown tag 'include'");
    expect_error("{{ l|map('foo')|list }}", ERR_UNSUPPORTED,
                 "chat template line 1: unknown filter 'foo'");
    expect_error("x{{ n }}\n{{ raise_exception('roles must alternate') }}", ERR_INVALID,
                 "chat template line 2: roles must alternate");
    expect_error("x\n{{ foo.bar }}", ERR_INVALID, "chat template line 2: 'foo' is undefined");
    expect_error("{{ d.foo.bar }}", ERR_INVALID,
                 "chat template line 1: 'dict object' has no attribute 'foo'");
    expect_error("{% set x = l.append(1) %}", ERR_INVALID,
                 "chat template line 1: access to attribute 'append' of 'list' object is unsafe");
    expect_error("{% if t %}", ERR_INVALID,
                 "chat template line 1: the template ends where 'endif' was expected");
    expect_error("{{ 'a' + 1 }}", ERR_INVALID,
                 "chat template line 1: can only concatenate str (not \"int\") to str");
    expect_error("\xff", ERR_INVALID, "chat template line 1: the source is not UTF-8");
}

/* Bounds ----------------------------------------------------------------------------------- */

static void expect_too_large(const char *source)
{
    struct json *context = parse_json(context_text);
    struct buf out, why;

    buf_init(&out, OUT_MAX_BYTES);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = render(source, strlen(source), context, &out, &why);
    if (s != ERR_TOO_LARGE)
        printf("%.200s: %s '%s'\n", source, status_name(s), buf_str(&why));
    assert_int_equal(s, ERR_TOO_LARGE);
    assert_true(why.len > 0);
    assert_int_equal(out.len, 0);
    buf_fini(&out);
    buf_fini(&why);
    js_unref(context);
}

static void hostile_templates_hit_a_bound(void **state)
{
    (void)state;
    expect_too_large("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}"
                     "{% endfor %}");
    expect_too_large("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    expect_too_large("{% macro m(x) %}{% if x %}{{ m([x]) }}{% endif %}{% endmacro %}{{ m(1) }}");
    expect_too_large("{{ 'a' * 100000000 }}");
    expect_too_large("{{ [0] * 1000000000 }}");
    expect_too_large("{% for i in range(100000) %}0123456789012345{% endfor %}");
    expect_too_large("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
                     "{% set ns.x = ns.x + ns.x %}{% endfor %}");
    expect_too_large("{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
                     "{% set ns.x = ns.x ~ ns.x %}{% endfor %}");
    expect_too_large("{% set ns = namespace(x=1) %}{% for i in range(5000) %}"
                     "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}");
    expect_too_large("{% set ns = namespace(x=1, y=1) %}{% for i in range(5000) %}"
                     "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}"
                     "{{ ns.x == ns.y }}");
    expect_too_large("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
    expect_too_large("{{ range(100001) }}");
    expect_too_large("{{ '%99999d' % 1 }}");
    expect_too_large("{{ 'x'.center(1000000000000) }}");
    expect_too_large("{{ 'x'|indent(1000000000000) }}");
    expect_too_large("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
}

/* "open" repeated, `middle`, "close" repeated. */
static void expect_nesting_refused(const char *open, const char *middle, const char *close)
{
    struct buf source;

    buf_init(&source, OUT_MAX_BYTES);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(buf_puts(&source, open), OK);
    assert_int_equal(buf_puts(&source, middle), OK);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(buf_puts(&source, close), OK);
    expect_too_large(buf_str(&source));
    buf_fini(&source);
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    expect_nesting_refused("{% if t %}", "x", "{% endif %}");
    expect_nesting_refused("{% for x in l %}", "x", "{% endfor %}");
    expect_nesting_refused("{{ (", "1", ") }}");
}

static void chains_and_brackets_end_in_words(void **state)
{
    static const char *const heads[] = {"{{ ", "{{ ", "{{ ", "{{ n", "{{ n", "{{ 1 if 1 else "};
    static const char *const links[] = {"(", "not ", "- ", ".x", "|list", "1 if 1 else "};
    struct json *context = parse_json(context_text);

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        struct buf source, out, why;
        buf_init(&source, OUT_MAX_BYTES);
        buf_init(&out, OUT_MAX_BYTES);
        buf_init(&why, BUF_WHY_MAX);
        assert_int_equal(buf_puts(&source, heads[i]), OK);
        for (int k = 0; k < 5000; k++)
            assert_int_equal(buf_puts(&source, links[i]), OK);
        assert_int_equal(buf_puts(&source, " }}"), OK);
        assert_int_not_equal(render(source.data, source.len, context, &out, &why), OK);
        assert_true(why.len > 0);
        buf_fini(&source);
        buf_fini(&out);
        buf_fini(&why);
    }
    js_unref(context);
}

static void output_respects_the_buffer(void **state)
{
    struct json *context = parse_json(context_text);
    struct buf out, why;

    (void)state;
    buf_init(&out, 8);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(buf_puts(&out, "abc"), OK);
    assert_int_equal(render("12345", 5, context, &out, &why), OK);
    assert_string_equal(buf_str(&out), "abc12345");
    assert_int_equal(render("x", 1, context, &out, &why), ERR_TOO_LARGE);
    assert_string_equal(buf_str(&out), "abc12345");
    buf_fini(&out);
    buf_fini(&why);
    js_unref(context);
}

static void uses_finds_variables_only(void **state)
{
    static const char source[] =
        "tools {{ x.documents }} {% if tools %}{{ 'messages' }}{% endif %}";
    struct chat_template *t;

    (void)state;
    assert_int_equal(chat_template_create(&t, source, sizeof source - 1, NULL), OK);
    assert_true(chat_template_uses(t, "tools"));
    assert_true(chat_template_uses(t, "x"));
    assert_false(chat_template_uses(t, "documents"));
    assert_false(chat_template_uses(t, "messages"));
    chat_template_destroy(t);
}

/* Mutations -------------------------------------------------------------------------------- */

#define SEEDS_MAX 64
static struct buf seeds[SEEDS_MAX];
static size_t n_seeds;

static const char inline_seed[] =
    "{%- macro show(x, sep=', ') -%}{{ x | map('string') | join(sep) }}{%- endmacro -%}\n"
    "{{ bos_token }}{% set ns = namespace(n=0, tools=[]) %}\n"
    "{% for m in messages if m.role != 'system' %}{% if loop.first %}[{{ loop.length }}]"
    "{% endif %}\n"
    "<|{{ m['role'] | upper }}|>{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}\n"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}{% set ns.n = ns.n + 1 %}\n"
    "{{ f.name }}({% for k, v in f.arguments | dictsort %}{{ k ~ '=' ~ v | tojson }}{% endfor "
    "%})\n"
    "{% else %}-{% endfor %}{% if not loop.last %}{% continue %}{% endif %}{% endfor %}\n"
    "{% filter indent(2) %}{{ tools | selectattr('type', 'equalto', 'function') | list |\n"
    " tojson(indent=2) }}{% endfilter %}{% set x %}{{ '%s-%d' % (ns.n, 3) }}{% endset %}{{ x }}\n"
    "{{ show(range(1, 9)[::2]) }}{{ '{:>4}'.format(1) }}{{ 7 // 2 ** 2 % 3 }}"
    "{{ eos_token[::-1] }}\n"
    "{% if add_generation_prompt %}{% generation %}<|a|>{% endgeneration %}{% endif %}";

static void add_seed_file(const char *path)
{
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");

    if (!f || n_seeds == SEEDS_MAX)
        abort();
    buf_init(&seeds[n_seeds], OUT_MAX_BYTES);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        assert_int_equal(buf_append(&seeds[n_seeds], chunk, n), OK);
    n_seeds++;
    fclose(f);
}

static int is_template(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 6 && strcmp(e->d_name + n - 6, ".jinja") == 0;
}

/* The shared templates in a fixed order, and the one above. */
static void load_seeds(void)
{
    const char *shared = getenv("TARN_SHARED");
    char dir[4096] = "", path[8192];
    struct dirent **names;

    if (shared)
        snprintf(dir, sizeof dir, "%s/data/chat-templates-llamacpp", shared);
#ifdef TARN_SOURCE_DIR
    else
        snprintf(dir, sizeof dir, "%s/../shared/data/chat-templates-llamacpp", TARN_SOURCE_DIR);
#endif
    int n = scandir(dir, &names, is_template, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (n_seeds < SEEDS_MAX - 4)
            add_seed_file(path);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    /* several copies: short and dense, it is where most mutations of meaning come from */
    for (int i = 0; i < 4; i++) {
        buf_init(&seeds[n_seeds], OUT_MAX_BYTES);
        assert_int_equal(buf_puts(&seeds[n_seeds], inline_seed), OK);
        n_seeds++;
    }
}

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static size_t random_below(size_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return n ? (size_t)(random_state >> 11) % n : 0;
}

static void mutate_once(struct buf *b)
{
    static const char *const pieces[] = {"{{",
                                         "}}",
                                         "{%",
                                         "%}",
                                         "-%}",
                                         "{#",
                                         "#}",
                                         "(",
                                         ")",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         "|",
                                         ".",
                                         ",",
                                         "'",
                                         "\"",
                                         "\\",
                                         "*",
                                         "**",
                                         "%",
                                         "//",
                                         "~",
                                         "-",
                                         "1",
                                         "0",
                                         "-1",
                                         "9999999999",
                                         "1e300",
                                         "none",
                                         "loop",
                                         "messages",
                                         "tools",
                                         "namespace(",
                                         " in ",
                                         " is ",
                                         " not ",
                                         " if ",
                                         " else ",
                                         "[::-1]",
                                         "[-1:",
                                         "|list",
                                         "|map(",
                                         "|join",
                                         "|tojson",
                                         "|sort",
                                         "|length",
                                         ".items()",
                                         ".split(",
                                         ".format(",
                                         "range(",
                                         "{% set x = ",
                                         "{% for m in messages %}",
                                         "{% endfor %}",
                                         "{% endif %}",
                                         "{% endmacro %}",
                                         "{% break %}",
                                         "\n",
                                         "\xf0\x9f\x99\x82",
                                         "\xff",
                                         "%s",
                                         "|safe",
                                         "|e",
                                         "|groupby('role')",
                                         "|batch(2)",
                                         "loop(",
                                         "caller()",
                                         "varargs"};
    struct buf copy;
    size_t at = random_below(b->len + 1);
    size_t n = random_below(random_below(4) ? 8 : 80);
    const char *piece = pieces[random_below(ARRAY_SIZE(pieces))];
    size_t piece_len = strlen(piece);

    if (n > b->len - at)
        n = b->len - at;
    buf_init(&copy, OUT_MAX_BYTES);
    assert_int_equal(buf_append(&copy, b->data, at), OK);
    size_t what = random_below(4); /* repeat, delete, replace or insert */
    if (what == 0)
        assert_int_equal(buf_append(&copy, b->data + at, n), OK);
    if (what >= 2)
        assert_int_equal(buf_append(&copy, piece, piece_len), OK);
    if (what == 1 || what == 2)
        at += n;
    assert_int_equal(buf_append(&copy, b->data + at, b->len - at), OK);
    buf_fini(b);
    *b = copy;
}

static void mutated_templates_render_or_say_why(void **state)
{
    struct json *context = parse_json(fuzz_context_text);
    int n_ok = 0;

    (void)state;
    load_seeds();
    for (int i = 0; i < N_MUTATIONS; i++) {
        struct buf source, out, why;
        const struct buf *seed = &seeds[random_below(n_seeds)];
        buf_init(&source, OUT_MAX_BYTES);
        buf_init(&out, OUT_MAX_BYTES);
        buf_init(&why, BUF_WHY_MAX);
        assert_int_equal(buf_append(&source, seed->data, seed->len), OK);
        for (size_t k = 1 + random_below(4); k > 0; k--)
            mutate_once(&source);
        enum status s = render(source.data, source.len, context, &out, &why);
        n_ok += s == OK;
        assert_true(s == OK || why.len > 0);
        assert_int_not_equal(s, ERR_INTERNAL);
        buf_fini(&source);
        buf_fini(&out);
        buf_fini(&why);
    }
    printf("%d mutations of %zu templates: %d rendered, %d refused\n", N_MUTATIONS, n_seeds, n_ok,
           N_MUTATIONS - n_ok);
    for (size_t i = 0; i < n_seeds; i++)
        buf_fini(&seeds[i]);
    js_unref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_print_as_in_jinja2),
        cmocka_unit_test(statements_print_as_in_jinja2),
        cmocka_unit_test(errors_say_line_and_name),
        cmocka_unit_test(hostile_templates_hit_a_bound),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(chains_and_brackets_end_in_words),
        cmocka_unit_test(output_respects_the_buffer),
        cmocka_unit_test(uses_finds_variables_only),
        cmocka_unit_test(mutated_templates_render_or_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
