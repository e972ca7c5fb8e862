/* test_jinja_lexer.c - tokens, their lines, white space around tags, and errors. */
#include "tests/unit/engine/text/jinja/jinja_test.h"

/* Append a token: D[text], N[name], S[string], a number, or the token's own spelling. */
static void spell(struct buf *out, const struct jinja_token *t)
{
    int len = (int)t->text.len;

    switch (t->type) {
    case TOK_DATA: assert_ok(buf_printf(out, "D[%.*s]", len, t->text.p)); break;
    case TOK_NAME: assert_ok(buf_printf(out, "N[%.*s]", len, t->text.p)); break;
    case TOK_STRING: assert_ok(buf_printf(out, "S[%.*s]", len, t->text.p)); break;
    case TOK_INT: assert_ok(buf_printf(out, "%lld", (long long)t->integer)); break;
    case TOK_FLOAT: assert_ok(buf_printf(out, "%.17gf", t->real)); break;
    default: assert_ok(buf_printf(out, "%s", jinja_tok_name(t->type)));
    }
}

/* Check the tokens of a source, without the TOK_EOF at the end. */
static void is_spelled(const char *source, const char *expected)
{
    struct jinja_test t;
    struct jinja_tokens tokens;
    struct buf text;

    jinja_test_open(&t);
    buf_init(&text, 4096);
    if (jinja_lex(&t.run, source, strlen(source), &tokens) != OK)
        fail_msg("%s: %s", source, buf_str(&t.why));
    for (size_t i = 0; i + 1 < tokens.n; i++) {
        assert_ok(buf_append(&text, " ", i > 0));
        spell(&text, &tokens.items[i]);
    }
    assert_int_equal(tokens.items[tokens.n - 1].type, TOK_EOF);
    assert_string_equal(buf_str(&text), expected);
    buf_fini(&text);
    jinja_test_close(&t);
}

static void fails(const char *source, enum status expected, const char *words)
{
    struct jinja_test t;
    struct jinja_tokens tokens;

    jinja_test_open(&t);
    enum status s = jinja_lex(&t.run, source, strlen(source), &tokens);
    jinja_test_failed(&t, source, s, expected, words);
    jinja_test_close(&t);
}

static void every_operator_has_its_kind(void **state)
{
    static const char source[] = "{{ + - * / // % ** ~ == != < <= > >= = . : | , ; ( ) [ ] { } }}";
    static const enum jinja_tok kinds[] = {
        TOK_VAR_BEGIN, TOK_ADD,    TOK_SUB,       TOK_MUL,     TOK_DIV,    TOK_FLOORDIV,
        TOK_MOD,       TOK_POW,    TOK_TILDE,     TOK_EQ,      TOK_NE,     TOK_LT,
        TOK_LE,        TOK_GT,     TOK_GE,        TOK_ASSIGN,  TOK_DOT,    TOK_COLON,
        TOK_PIPE,      TOK_COMMA,  TOK_SEMICOLON, TOK_LPAREN,  TOK_RPAREN, TOK_LBRACKET,
        TOK_RBRACKET,  TOK_LBRACE, TOK_RBRACE,    TOK_VAR_END, TOK_EOF};
    struct jinja_test t;
    struct jinja_tokens tokens;

    (void)state;
    jinja_test_open(&t);
    assert_ok(jinja_lex(&t.run, source, strlen(source), &tokens));
    assert_int_equal(tokens.n, sizeof kinds / sizeof *kinds);
    for (size_t i = 0; i < tokens.n; i++)
        assert_int_equal(tokens.items[i].type, kinds[i]);
    jinja_test_close(&t);
}

static void each_token_has_the_line_of_its_first_byte(void **state)
{
    static const char source[] = "a\n{{ x\n + 'b\nc' }}\n{% y %}{# z\n\n#}{{ w }}";
    static const int lines[] = {1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 7, 7, 7, 7};
    struct jinja_test t;
    struct jinja_tokens tokens;

    (void)state;
    is_spelled(source, "D[a\n] '{{' N[x] '+' S[b\nc] '}}' D[\n] '{%' N[y] '%}' '{{' N[w] '}}'");
    jinja_test_open(&t);
    assert_ok(jinja_lex(&t.run, source, strlen(source), &tokens));
    assert_int_equal(tokens.n, sizeof lines / sizeof *lines);
    for (size_t i = 0; i < tokens.n; i++)
        assert_int_equal(tokens.items[i].line, lines[i]);
    jinja_test_close(&t);
}

static void numbers_are_read_as_in_python(void **state)
{
    (void)state;
    is_spelled("{{ 42 0x1F 0o17 0b101 1_000 }}", "'{{' 42 31 15 5 1000 '}}'");
    is_spelled("{{ 1.5 2e3 2.5e-1 1_0.5 }}", "'{{' 1.5f 2000f 0.25f 10.5f '}}'");
    is_spelled("{{ a.0.1 }}", "'{{' N[a] '.' 0 '.' 1 '}}'"); /* subscripts */
    is_spelled("{{ 9223372036854775807 }}", "'{{' 9223372036854775807 '}}'");
    fails("{{ 9223372036854775808 }}", ERR_INVALID,
          "chat template line 1: an integer is out of range");
    fails("{{\n0b12 }}", ERR_INVALID, "chat template line 2: a malformed number");
}

static void strings_are_decoded(void **state)
{
    (void)state;
    is_spelled("{{ 'it\\'s' \"\\\\ \\x41\\u00e9\\101\" }}", "'{{' S[it's] S[\\ A\u00e9A] '}}'");
    is_spelled("{{ 'a\\\nb' '\\q' '{{ %}' }}", "'{{' S[ab] S[\\q] S[{{ %}] '}}'");
    fails("{{ '\\u12' }}", ERR_INVALID,
          "chat template line 1: a string holds a truncated \\x or \\u escape");
}

static void a_block_tag_takes_its_indent_and_its_newline(void **state)
{
    (void)state;
    is_spelled("x\n  {% a %}\ny", "D[x\n] '{%' N[a] '%}' D[y]");
    is_spelled("  {% a %}\n\ny", "'{%' N[a] '%}' D[\ny]");
    is_spelled("x\n  {# c #}\ny", "D[x\n] D[y]");
    is_spelled("x  {% a %} \ny", "D[x  ] '{%' N[a] '%}' D[ \ny]");
    is_spelled("{{ a }}  {% b %}", "'{{' N[a] '}}' D[  ] '{%' N[b] '%}'");
    is_spelled("x\n  {{ a }}\ny", "D[x\n  ] '{{' N[a] '}}' D[\ny]"); /* a variable does not */
}

static void signs_override_the_white_space_rules(void **state)
{
    (void)state;
    is_spelled("x \n {%- a -%} \n y", "D[x] '{%' N[a] '%}' D[y]");
    is_spelled("x\n  {%+ a +%}\ny", "D[x\n  ] '{%' N[a] '%}' D[\ny]");
    is_spelled("x \n {{- a -}} \n y", "D[x] '{{' N[a] '}}' D[y]");
    is_spelled("x \n {#- c -#} \n y", "D[x] D[y]");
    is_spelled("{{ a - b -}}", "'{{' N[a] '-' N[b] '}}'");
}

static void raw_text_has_no_tags(void **state)
{
    (void)state;
    is_spelled("{% raw %}{{ a }}{% b %}{# c{% endraw %}d", "D[{{ a }}{% b %}{# c] D[d]");
    is_spelled("x\n {%- raw -%} {{ {%- endraw -%} y", "D[x] D[{{] D[y]");
}

static void braces_of_a_dict_do_not_end_the_tag(void **state)
{
    (void)state;
    is_spelled("{{ {'a': {}}}}", "'{{' '{' S[a] ':' '{' '}' '}' '}}'");
}

static void errors_name_line_and_reason(void **state)
{
    static const struct {
        const char *source, *words;
    } rows[] = {
        {"{{ a", "chat template line 1: '{{' is not closed"},
        {"\n{% a", "chat template line 2: '{%' is not closed"},
        {"{# a", "chat template line 1: a comment is not closed"},
        {"\n\n{# a", "chat template line 3: a comment is not closed"},
        {"\n{% raw %}", "chat template line 2: a raw block is not closed"},
        {"\n{{ 'a }}", "chat template line 2: a string is not closed"},
        {"{{\n(] }}", "chat template line 2: brackets do not match"},
        {"{{ ) }}", "chat template line 1: brackets do not match"},
        {"x\n{{ a\n$ }}", "chat template line 3: unexpected character '$'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fails(rows[i].source, ERR_INVALID, rows[i].words);
}

static void open_brackets_are_limited(void **state)
{
    char source[600] = "{{";

    (void)state;
    memset(source + 2, '(', 257);
    fails(source, ERR_TOO_LARGE, "chat template line 1: more than 256 brackets are open");
    source[2 + 256] = '\0'; /* as many as are allowed: only the end is missing */
    fails(source, ERR_INVALID, "chat template line 1: '{{' is not closed");
}

static void the_arena_limits_the_tokens(void **state)
{
    static char source[20001];
    struct jinja_test t;
    struct jinja_tokens tokens;

    (void)state;
    memset(source, '+', sizeof source - 1);
    memcpy(source, "{{", 2);
    jinja_test_open(&t);
    t.arena.max_bytes = 100000;
    assert_int_equal(jinja_lex(&t.run, source, strlen(source), &tokens), ERR_TOO_LARGE);
    assert_non_null(strstr(buf_str(&t.why), "needs more than 100000 bytes of memory"));
    jinja_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_has_its_kind),
        cmocka_unit_test(each_token_has_the_line_of_its_first_byte),
        cmocka_unit_test(numbers_are_read_as_in_python),
        cmocka_unit_test(strings_are_decoded),
        cmocka_unit_test(a_block_tag_takes_its_indent_and_its_newline),
        cmocka_unit_test(signs_override_the_white_space_rules),
        cmocka_unit_test(raw_text_has_no_tags),
        cmocka_unit_test(braces_of_a_dict_do_not_end_the_tag),
        cmocka_unit_test(errors_name_line_and_reason),
        cmocka_unit_test(open_brackets_are_limited),
        cmocka_unit_test(the_arena_limits_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
