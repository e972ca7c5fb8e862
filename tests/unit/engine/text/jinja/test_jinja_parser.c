/* test_jinja_parser.c - the shape of parsed templates: precedence, statements, errors, depth. */
#include "tests/unit/engine/text/jinja/jinja_test.h"

#include "engine/text/jinja/jinja_parser.h"

static enum status parse(struct jinja_test *t, const char *source, struct jinja_node **out)
{
    struct jinja_tokens tokens;

    jinja_test_open(t);
    assert_ok(jinja_lex(&t->run, source, strlen(source), &tokens));
    return jinja_parse(&t->run, &tokens, out);
}

static struct jinja_node *parse_ok(struct jinja_test *t, const char *source)
{
    struct jinja_node *root = NULL;

    if (parse(t, source, &root) != OK)
        fail_msg("%s: %s", source, buf_str(&t->why));
    return root;
}

static void fails(const char *source, enum status expected, const char *words)
{
    struct jinja_test t;
    struct jinja_node *root;

    enum status s = parse(&t, source, &root);
    jinja_test_failed(&t, source, s, expected, words);
    jinja_test_close(&t);
}

static void show(struct buf *out, const struct jinja_node *node);

static void show_list(struct buf *out, const char *before, const struct jinja_nodes *list)
{
    for (size_t i = 0; i < list->n; i++) {
        assert_ok(buf_printf(out, "%s", before));
        show(out, list->items[i]);
    }
}

static void show_part(struct buf *out, const char *before, const struct jinja_node *node)
{
    if (!node)
        return;
    assert_ok(buf_printf(out, "%s", before));
    show(out, node);
}

static void show_const(struct buf *out, const struct jinja_value *v)
{
    if (v->type == JINJA_INT)
        assert_ok(buf_printf(out, "%d", (int)v->integer));
    else if (v->type == JINJA_BOOL)
        assert_ok(buf_printf(out, "%s", v->boolean ? "true" : "false"));
    else if (v->type == JINJA_STR)
        assert_ok(buf_printf(out, "\"%.*s\"", (int)v->str.len, v->str.p));
    else
        assert_ok(buf_printf(out, "none"));
}

/* Append an expression in prefix form, e.g. ('+' 1 ('*' 2 3)). */
static void show(struct buf *out, const struct jinja_node *node)
{
    static const char *const heads[] = {
        [NODE_LIST] = "list",    [NODE_TUPLE] = "tuple",     [NODE_DICT] = "dict",
        [NODE_GETATTR] = "attr", [NODE_GETITEM] = "item",    [NODE_SLICE] = "slice",
        [NODE_CALL] = "call",    [NODE_FILTER] = "filter",   [NODE_TEST] = "is",
        [NODE_KEYWORD] = "key",  [NODE_NOT] = "not",         [NODE_NEG] = "neg",
        [NODE_POS] = "pos",      [NODE_AND] = "and",         [NODE_OR] = "or",
        [NODE_CONCAT] = "~",     [NODE_COMPARE] = "compare", [NODE_COND] = "cond"};

    if (node->kind == NODE_CONST) {
        show_const(out, &node->value);
        return;
    }
    if (node->kind == NODE_NAME) {
        assert_ok(buf_printf(out, "%s", node->name));
        return;
    }
    bool op = node->kind == NODE_BINARY || node->kind == NODE_OPERAND;
    assert_ok(
        buf_printf(out, "(%s", op ? jinja_tok_name((enum jinja_tok)node->op) : heads[node->kind]));
    if (node->name)
        assert_ok(buf_printf(out, " %s", node->name));
    show_part(out, " ", node->a);
    bool call = node->kind == NODE_CALL || node->kind == NODE_FILTER || node->kind == NODE_TEST;
    show_list(out, " ", &node->args);
    show_list(out, " ", &node->more);
    show_part(out, call ? " *" : " ", node->b);
    show_part(out, call ? " **" : " ", node->c);
    assert_ok(buf_printf(out, ")"));
}

static void is_parsed(const char *expr, const char *expected)
{
    char source[256];
    struct jinja_test t;
    struct buf text;

    snprintf(source, sizeof source, "{{ %s }}", expr);
    buf_init(&text, 4096);
    struct jinja_node *root = parse_ok(&t, source);
    assert_int_equal(root->args.n, 1);
    assert_int_equal(root->args.items[0]->kind, NODE_OUTPUT);
    show(&text, root->args.items[0]->a);
    if (strcmp(buf_str(&text), expected) != 0)
        fail_msg("%s\n  expected %s\n  got      %s", expr, expected, buf_str(&text));
    buf_fini(&text);
    jinja_test_close(&t);
}

static void arithmetic_binds_as_in_jinja(void **state)
{
    (void)state;
    is_parsed("1 + 2 * 3", "('+' 1 ('*' 2 3))");
    is_parsed("(1 + 2) * 3", "('*' ('+' 1 2) 3)");
    is_parsed("1 - 2 - 3", "('-' ('-' 1 2) 3)");
    is_parsed("8 // 3 % 2 / 1", "('/' ('%' ('//' 8 3) 2) 1)");
    is_parsed("2 * 3 ** 4", "('*' 2 ('**' 3 4))");
    is_parsed("2 ** 3 ** 4", "('**' ('**' 2 3) 4)"); /* unlike Python */
    is_parsed("-2 ** 2", "('**' (neg 2) 2)");        /* unlike Python */
    is_parsed("1 + 2 ~ 3 * 4 ~ 5", "('+' 1 (~ 2 ('*' 3 4) 5))");
}

static void comparison_and_logic_bind_looser_than_arithmetic(void **state)
{
    (void)state;
    is_parsed("a + 1 < b", "(compare ('+' a 1) ('<' b))");
    is_parsed("a < b <= c", "(compare a ('<' b) ('<=' c))");
    is_parsed("a not in b", "(compare a ('not in' b))");
    is_parsed("not a in b", "(not (compare a ('in' b)))");
    is_parsed("not a and b", "(and (not a) b)");
    is_parsed("a or b and c", "(or a (and b c))");
    is_parsed("a and b or c", "(or (and a b) c)");
    is_parsed("a or b if c else d", "(cond c (or a b) d)");
    is_parsed("a if b else c if d else e", "(cond b a (cond d c e))");
    is_parsed("a if b", "(cond b a)");
}

static void filters_tests_and_calls_bind_tightest(void **state)
{
    (void)state;
    is_parsed("a + b|length", "('+' a (filter length b))");
    is_parsed("-a|abs", "(filter abs (neg a))");
    is_parsed("-a.b", "(neg (attr b a))");
    is_parsed("a|join(', ')|upper", "(filter upper (filter join a \", \"))");
    is_parsed("a is not defined or b", "(or (not (is defined a)) b)");
    is_parsed("a is divisibleby 3 and b", "(and (is divisibleby a 3) b)");
    is_parsed("a.b[0](1, k=2, *c, **d).e",
              "(attr e (call (item (attr b a) 0) 1 (key k 2) *c **d))");
    is_parsed("a.0[1:][::2]", "(item (item (item a 0) (slice 1)) (slice 2))");
}

static void literals_have_their_values(void **state)
{
    (void)state;
    is_parsed("[1, true, none,]", "(list 1 true none)");
    is_parsed("()", "(tuple)");
    is_parsed("(1,)", "(tuple 1)");
    is_parsed("(1)", "1");
    is_parsed("1, 2", "(tuple 1 2)");
    is_parsed("{'a': 1, b: 2}", "(dict \"a\" b 1 2)");
    is_parsed("'a' \"b\"", "\"ab\"");
}

static void statements_keep_their_parts_and_lines(void **state)
{
    struct jinja_test t;

    (void)state;
    struct jinja_node *root = parse_ok(&t, "{% if a %}x{% elif b %}{% else %}z{% endif %}\n\n"
                                           "{% for i, j in c if d recursive %}{% break %}"
                                           "{% else %}y{% endfor %}\n{% set n.k = 1 %}");
    assert_int_equal(root->args.n, 4); /* with the newline of the empty line */
    const struct jinja_node *cond = root->args.items[0];
    assert_int_equal(cond->kind, NODE_IF);
    assert_int_equal(cond->args.n, 2);
    assert_int_equal(cond->more.n, 2);
    assert_int_equal(cond->more.items[1]->args.n, 0);
    assert_int_equal(cond->c->args.n, 1);
    const struct jinja_node *loop = root->args.items[2];
    assert_int_equal(loop->kind, NODE_FOR);
    assert_int_equal(loop->line, 3);
    assert_int_equal(loop->a->kind, NODE_TUPLE);
    assert_string_equal(loop->b->name, "c");
    assert_string_equal(loop->c->name, "d");
    assert_true(loop->op);
    assert_int_equal(loop->body->args.items[0]->kind, NODE_BREAK);
    assert_int_equal(loop->other->args.n, 1);
    const struct jinja_node *set = root->args.items[3];
    assert_int_equal(set->kind, NODE_SET);
    assert_int_equal(set->line, 4);
    assert_int_equal(set->a->kind, NODE_NSREF);
    assert_string_equal(set->a->attr, "k");
    jinja_test_close(&t);
}

static void a_macro_knows_the_special_names_of_its_own_body(void **state)
{
    struct jinja_test t;

    (void)state;
    struct jinja_node *root =
        parse_ok(&t, "{% macro m(a, b=1) %}{{ caller() }}"
                     "{% macro inner() %}{{ kwargs }}{% endmacro %}{{ varargs }}{% endmacro %}");
    const struct jinja_node *outer = root->args.items[0], *inner = outer->body->args.items[1];
    assert_int_equal(outer->op, MACRO_CALLER | MACRO_VARARGS);
    assert_int_equal(inner->op, MACRO_KWARGS);
    assert_int_equal(outer->args.n, 2);
    assert_int_equal(outer->more.n, 1);
    jinja_test_close(&t);
}

static void errors_name_line_and_reason(void **state)
{
    static const struct {
        const char *source;
        enum status status;
        const char *words;
    } rows[] = {
        {"\n{{ }}", ERR_INVALID, "chat template line 2: expected an expression, got '}}'"},
        {"{{ a b }}", ERR_INVALID, "chat template line 1: expected '}}', got 'b'"},
        {"{{ a.\n1.5 }}", ERR_INVALID, "chat template line 2: expected a name, got a float"},
        {"{{ f(a=1, 2) }}", ERR_INVALID,
         "chat template line 1: expected a keyword argument, got an integer"},
        {"{% if a %}\n\nx", ERR_INVALID,
         "chat template line 3: the template ends where 'endif' was expected"},
        {"{% if a %}{% endfor %}", ERR_INVALID,
         "chat template line 1: 'endfor' has no opening tag"},
        {"a\n{% break %}", ERR_INVALID, "chat template line 2: 'break' outside of a loop"},
        {"{% for i in a %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", ERR_INVALID,
         "chat template line 1: 'break' outside of a loop"},
        {"{% set 1 = 2 %}", ERR_INVALID, "chat template line 1: cannot assign to this expression"},
        {"{% macro m(a=1, b) %}{% endmacro %}", ERR_INVALID,
         "chat template line 1: a parameter without default follows one with"},
        {"{% call a %}{% endcall %}", ERR_INVALID,
         "chat template line 1: a call block needs a call"},
        {"\n{% include 'x' %}", ERR_UNSUPPORTED, "chat template line 2: unknown tag 'include'"},
        {"{{ a|nothing.like.it }}", ERR_UNSUPPORTED,
         "chat template line 1: unknown filter 'nothing.like.it'"},
        {"{{ a is odder }}", ERR_UNSUPPORTED, "chat template line 1: unknown test 'odder'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fails(rows[i].source, rows[i].status, rows[i].words);
}

static void an_unknown_filter_inside_an_if_is_no_error_yet(void **state)
{
    struct jinja_test t;

    (void)state;
    struct jinja_node *root = parse_ok(&t, "{% if a %}{{ b|nothing }}{{ c is odder }}{% endif %}");
    const struct jinja_node *body = root->args.items[0]->more.items[0];
    assert_null(body->args.items[0]->a->filter);
    assert_null(body->args.items[1]->a->test);
    jinja_test_close(&t);
    fails("{% if a %}{% endif %}{{ b|nothing }}", ERR_UNSUPPORTED,
          "chat template line 1: unknown filter 'nothing'");
}

/* "{{ ", `piece` n times, "1", `end` n times, " }}" */
static const char *nested(const char *piece, int n, const char *end)
{
    static char source[16384];
    size_t len = (size_t)sprintf(source, "{{ ");

    for (int i = 0; i < n; i++)
        len += (size_t)sprintf(source + len, "%s", piece);
    len += (size_t)sprintf(source + len, "1");
    for (int i = 0; i < n; i++)
        len += (size_t)sprintf(source + len, "%s", end);
    sprintf(source + len, " }}");
    return source;
}

static void nesting_is_limited(void **state)
{
    static const char words[] = "chat template line 1: nested deeper than 150 levels";
    static const char *const pieces[][2] = {{"(", ")"},   {"[", "]"},  {"- ", ""},
                                            {"not ", ""}, {"f(", ")"}, {"a[", "]"}};
    struct jinja_test t;

    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        parse_ok(&t, nested(pieces[i][0], 70, pieces[i][1]));
        jinja_test_close(&t);
        fails(nested(pieces[i][0], 150, pieces[i][1]), ERR_TOO_LARGE, words);
    }
}

static void nesting_that_ended_does_not_count(void **state)
{
    static char source[400 * 64];
    struct jinja_test t;
    size_t len = 0;

    (void)state;
    for (int i = 0; i < 400; i++)
        len += (size_t)sprintf(source + len, "{%% if not -1 %%}{{ (a)|abs }}{%% endif %%}");
    assert_int_equal(parse_ok(&t, source)->args.n, 400);
    jinja_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_binds_as_in_jinja),
        cmocka_unit_test(comparison_and_logic_bind_looser_than_arithmetic),
        cmocka_unit_test(filters_tests_and_calls_bind_tightest),
        cmocka_unit_test(literals_have_their_values),
        cmocka_unit_test(statements_keep_their_parts_and_lines),
        cmocka_unit_test(a_macro_knows_the_special_names_of_its_own_body),
        cmocka_unit_test(errors_name_line_and_reason),
        cmocka_unit_test(an_unknown_filter_inside_an_if_is_no_error_yet),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(nesting_that_ended_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
