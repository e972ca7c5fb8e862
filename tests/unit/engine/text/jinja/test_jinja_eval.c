/* test_jinja_eval.c - values of expressions, scopes, errors, limits of a run. */
#include "tests/unit/engine/text/jinja/jinja_test.h"

#include "engine/text/jinja/jinja_eval.h"
#include "engine/text/jinja/jinja_parser.h"

/* Run a source in an opened test; *out gets the text. */
static enum status run(struct jinja_test *t, const char *source, struct jinja_out *out)
{
    struct jinja_tokens tokens;
    struct jinja_node *root;
    struct jinja_scope *scope;
    struct jinja_value context;
    enum jinja_flow flow;

    *out = (struct jinja_out){0};
    assert_ok(jinja_lex(&t->run, source, strlen(source), &tokens));
    if (jinja_parse(&t->run, &tokens, &root) != OK)
        fail_msg("%s: %s", source, buf_str(&t->why));
    assert_ok(jinja_dict_new(&t->run, 0, &context));
    t->run.context = context.dict;
    assert_ok(jinja_scope_new(&t->run, NULL, &scope));
    return jinja_exec(&t->run, scope, root, out, &flow);
}

static void gives(const char *source, const char *expected)
{
    struct jinja_test t;
    struct jinja_out out;

    jinja_test_open(&t);
    if (run(&t, source, &out) != OK)
        fail_msg("%s: %s", source, buf_str(&t.why));
    if (out.len != strlen(expected) || (out.len && memcmp(out.p, expected, out.len) != 0))
        fail_msg("%s\n  expected %s\n  got      %.*s", source, expected, (int)out.len, out.p);
    assert_int_equal(t.run.depth, 0);
    jinja_test_close(&t);
}

static void fails(const char *source, enum status expected, const char *words)
{
    struct jinja_test t;
    struct jinja_out out;

    jinja_test_open(&t);
    enum status s = run(&t, source, &out);
    jinja_test_failed(&t, source, s, expected, words);
    jinja_test_close(&t);
}

static void arithmetic_is_pythons(void **state)
{
    (void)state;
    gives("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }}", "3 -4 2 -2");
    gives("{{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 10 }} {{ 1 + 2.5 }}", "3.5 2.0 1024 3.5");
    gives("{{ 1 ~ 'a' ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }}", "1aNone abab [1, 2]");
    fails("{{ 9223372036854775807 + 1 }}", ERR_UNSUPPORTED,
          "chat template line 1: an integer does not fit into 64 bits");
}

static void logic_returns_an_operand_and_stops_early(void **state)
{
    (void)state;
    gives("{{ 0 or 'b' }} {{ 'a' or 'b' }} {{ 0 and 'b' }} {{ 'a' and 'b' }}", "b a 0 b");
    gives("{{ false and x.y }} {{ true or x.y }}", "False True");
    gives("{{ 'a' if true else x.y }} {{ x.y if false else 'b' }}", "a b");
    gives("[{{ 'a' if false }}]", "[]");
}

static void comparisons_chain_and_stop_early(void **state)
{
    (void)state;
    gives("{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 3 > 2 > 2 }}", "True False False");
    gives("{{ 2 < 1 < x.y }}", "False");
    gives("{{ 1 == 1.0 == true }} {{ 2 in [1, 2] }} {{ 'b' not in 'abc' }}", "True True False");
}

static void arguments_are_spread(void **state)
{
    static const char macro[] =
        "{% macro m(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}";
    char source[256];

    (void)state;
    snprintf(source, sizeof source, "%s{{ m(1, *[2], **{'c': 5}) }}", macro);
    gives(source, "125(){}");
    snprintf(source, sizeof source, "%s{{ m(1, *[2, 3, 4], d=5) }}", macro);
    gives(source, "123(4,){'d': 5}");
    snprintf(source, sizeof source, "%s{{ m(1, **[2]) }}", macro);
    fails(source, ERR_INVALID,
          "chat template line 1: argument after ** must be a mapping, not list");
}

static struct jinja_value get(struct jinja_test *t, const struct jinja_scope *s, const char *name)
{
    struct jinja_value v;

    assert_ok(jinja_scope_get(&t->run, s, name, &v));
    return v;
}

static void a_name_is_looked_up_from_the_inside_out(void **state)
{
    struct jinja_scope *outer, *inner;
    struct jinja_value context, key = jinja_cstr("range"), v = jinja_int(1);
    struct jinja_test t;

    (void)state;
    jinja_test_open(&t);
    assert_ok(jinja_dict_new(&t.run, 0, &context));
    t.run.context = context.dict;
    assert_ok(jinja_scope_new(&t.run, NULL, &outer));
    assert_ok(jinja_scope_new(&t.run, outer, &inner));
    assert_int_equal(get(&t, inner, "range").type, JINJA_FUNCTION);
    assert_int_equal(get(&t, inner, "none_such").type, JINJA_UNDEFINED);
    assert_ok(jinja_dict_set(&t.run, context.dict, &key, &v));
    assert_int_equal(get(&t, inner, "range").integer, 1); /* the context hides the function */
    v = jinja_int(2);
    assert_ok(jinja_scope_set(&t.run, outer, "range", &v));
    assert_int_equal(get(&t, inner, "range").integer, 2);
    v = jinja_int(3);
    assert_ok(jinja_scope_set(&t.run, inner, "range", &v));
    assert_int_equal(get(&t, inner, "range").integer, 3);
    assert_int_equal(get(&t, outer, "range").integer, 2);
    v = jinja_int(4);
    assert_ok(jinja_scope_set(&t.run, inner, "range", &v));
    assert_int_equal(inner->n, 1); /* replaced, not added */
    assert_int_equal(get(&t, inner, "range").integer, 4);
    jinja_test_close(&t);
}

static void a_scope_keeps_many_names(void **state)
{
    static char names[100][8];
    struct jinja_scope *s;
    struct jinja_test t;

    (void)state;
    jinja_test_open(&t);
    assert_ok(jinja_scope_new(&t.run, NULL, &s));
    for (int i = 0; i < 100; i++) {
        struct jinja_value v = jinja_int(i);
        snprintf(names[i], sizeof names[i], "n%d", i);
        assert_ok(jinja_scope_set(&t.run, s, names[i], &v));
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(get(&t, s, names[i]).integer, i);
    jinja_test_close(&t);
}

static void names_set_in_a_block_are_lost_after_it(void **state)
{
    (void)state;
    gives("{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = 9 %}{% endfor %}{{ a }}", "111");
    gives("{% set a = 1 %}{% with a = 2 %}{{ a }}{% set a = 3 %}{% endwith %}{{ a }}", "21");
    gives("{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}", "2"); /* no scope */
    gives("{% set a = 1 %}{% macro m() %}{% set a = 2 %}{{ a }}{% endmacro %}{{ m() }}{{ a }}",
          "21");
    gives("{% for i in [] %}{% else %}{{ i is defined }}{% endfor %}", "False");
    gives("{% set n = namespace(a=0) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}"
          "{{ n.a }}",
          "3");
}

static void errors_name_line_and_reason(void **state)
{
    static const struct {
        const char *source;
        enum status status;
        const char *words;
    } rows[] = {
        {"{{ 'a'.rjust('b') }}", ERR_INVALID,
         "chat template line 1: rjust(): width must be an integer"},
        {"{{ 'a'.islower(1) }}", ERR_INVALID,
         "chat template line 1: islower() takes at most 0 arguments, 1 given"},
        {"{{ 1 }}\n{{ x.y }}", ERR_INVALID, "chat template line 2: 'x' is undefined"},
        {"\n\n{{ x() }}", ERR_INVALID, "chat template line 3: 'x' is undefined"},
        {"{{ 'a'() }}", ERR_INVALID, "chat template line 1: 'str' object is not callable"},
        {"{% if true %}\n{{ 1|nothing }}{% endif %}", ERR_UNSUPPORTED,
         "chat template line 2: unknown filter 'nothing'"},
        {"{% if 1 is odder %}{% endif %}", ERR_UNSUPPORTED,
         "chat template line 1: unknown test 'odder'"},
        {"{{ 1 < 'a' }}", ERR_INVALID,
         "chat template line 1: '<' not supported between instances of 'int' and 'str'"},
        {"\n{{ raise_exception('no\\nsystem') }}", ERR_INVALID, "chat template line 2: no\nsystem"},
        {"{% set a, b = [1] %}", ERR_INVALID,
         "chat template line 1: not enough values to unpack (expected 2, got 1)"},
        {"{% set a = 1 %}{% set a.b = 1 %}", ERR_INVALID,
         "chat template line 1: cannot assign attribute on non-namespace object 'a'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fails(rows[i].source, rows[i].status, rows[i].words);
}

static void steps_are_limited(void **state)
{
    static const char source[] = "{% for i in range(100) %}{{ i }}{% endfor %}";
    struct jinja_test t;
    struct jinja_out out;

    (void)state;
    jinja_test_open(&t);
    assert_ok(run(&t, source, &out));
    uint64_t n_steps = t.run.steps;
    assert_in_range(n_steps, 300, 3000); /* a turn, a statement and an expression each time */
    jinja_test_close(&t);

    jinja_test_open(&t);
    t.run.steps = JINJA_STEPS_MAX - n_steps; /* exactly enough */
    assert_ok(run(&t, source, &out));
    jinja_test_close(&t);

    jinja_test_open(&t);
    t.run.steps = JINJA_STEPS_MAX - n_steps + 1;
    assert_int_equal(run(&t, source, &out), ERR_TOO_LARGE);
    assert_string_equal(buf_str(&t.why), "chat template line 1: more than 10000000 steps");
    jinja_test_close(&t);
}

static void depth_is_limited(void **state)
{
    static const char words[] = "nested deeper than 600 levels";
    struct jinja_test t;
    struct jinja_out out;

    (void)state;
    gives("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(50)|length }}",
          "51");
    jinja_test_open(&t);
    assert_int_equal(run(&t, "{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", &out),
                     ERR_TOO_LARGE);
    assert_non_null(strstr(buf_str(&t.why), words));
    jinja_test_close(&t);
}

static void output_and_memory_are_limited(void **state)
{
    struct jinja_test t;
    struct jinja_out out;

    (void)state;
    jinja_test_open(&t);
    t.run.out_max_bytes = 10;
    assert_ok(run(&t, "{{ '01234' }}56789", &out));
    assert_int_equal(out.len, 10);
    assert_int_equal(run(&t, "{{ '01234' }}56789{{ 'x' }}", &out), ERR_TOO_LARGE);
    jinja_test_close(&t);

    jinja_test_open(&t);
    t.arena.max_bytes = 300000;
    assert_int_equal(run(&t, "{{ range(100000)|list|length }}", &out), ERR_TOO_LARGE);
    assert_non_null(strstr(buf_str(&t.why), "needs more than 300000 bytes of memory"));
    jinja_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_pythons),
        cmocka_unit_test(logic_returns_an_operand_and_stops_early),
        cmocka_unit_test(comparisons_chain_and_stop_early),
        cmocka_unit_test(arguments_are_spread),
        cmocka_unit_test(a_name_is_looked_up_from_the_inside_out),
        cmocka_unit_test(a_scope_keeps_many_names),
        cmocka_unit_test(names_set_in_a_block_are_lost_after_it),
        cmocka_unit_test(errors_name_line_and_reason),
        cmocka_unit_test(steps_are_limited),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(output_and_memory_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
