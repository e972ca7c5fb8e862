/* test_grammar.c - texts that grammars accept, what is refused by name, and masks: equal to trying
 * each token, and enough to write finished answers. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/grammar.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer.h"

#define EOS 1u
#define N_STEPS_MAX 4000u

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static uint32_t n_vocab;
static const uint32_t eos_ids[] = {EOS};

static int open_vocab(void **state)
{
    struct buf why;

    (void)state;
    buf_init(&why, 4096);
    assert_ok(tokenizer_load(&tokenizer, TARN_SOURCE_DIR "/deploy/demo-model", &why));
    n_vocab = tokenizer_n_vocab(tokenizer);
    assert_ok(grammar_vocab_create(&vocab, tokenizer, n_vocab));
    buf_fini(&why);
    return 0;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    return 0;
}

/* The source as JSON, or, of a regular expression or a grammar, the string itself. */
static enum status make(struct grammar **g, enum grammar_kind kind, const char *source,
                        struct buf *why)
{
    bool is_text = kind == GRAMMAR_REGEX || kind == GRAMMAR_EBNF;
    struct json *j = is_text ? js_new_string(source, strlen(source)) : NULL;

    if (!is_text)
        assert_ok(js_parse(&j, source, strlen(source), NULL));
    enum status s = grammar_create(g, vocab, kind, j, why);
    js_unref(j);
    return s;
}

static struct grammar *grammar_of(enum grammar_kind kind, const char *source)
{
    struct grammar *g = NULL;
    struct buf why;

    buf_init(&why, 4096);
    if (make(&g, kind, source, &why) != OK)
        fail_msg("%s: %s", source, buf_str(&why));
    buf_fini(&why);
    return g;
}

static bool matches(struct grammar *g, const char *text)
{
    bool yes = false;

    assert_ok(grammar_matches(g, text, strlen(text), &yes));
    return yes;
}

struct row {
    enum grammar_kind kind;
    const char *source;
    const char *yes[8], *no[10];
};

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = grammar_of(rows[i].kind, rows[i].source);
        for (const char *const *t = rows[i].yes; *t; t++)
            if (!matches(g, *t))
                fail_msg("%s does not match %s", rows[i].source, *t);
        for (const char *const *t = rows[i].no; *t; t++)
            if (matches(g, *t))
                fail_msg("%s matches %s", rows[i].source, *t);
        grammar_unref(g);
    }
}

static void regular_expressions_match_what_they_say(void **state)
{
    static const struct row rows[] = {
        {GRAMMAR_REGEX, "abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
        {GRAMMAR_REGEX, "^a|b$", {"a", "b"}, {"ab", ""}},
        {GRAMMAR_REGEX, "(ab)*c+?", {"c", "ababcc"}, {"ab", "abac"}},
        {GRAMMAR_REGEX, "[a-c]{2,3}", {"ab", "ccc"}, {"a", "abca", "ad"}},
        {GRAMMAR_REGEX, "a{2}b{1,}", {"aab", "aabbb"}, {"ab", "aaa", "aa"}},
        {GRAMMAR_REGEX, "\\d{3}-\\w+\\s?", {"123-a_9", "000-x "}, {"12-a", "123-"}},
        {GRAMMAR_REGEX,
         "[^x]",
         {"y", "\n", "\xc3\xa4", "\xf0\x9f\x98\x80"},
         {"x", "yy", "\xc3", "\xff", "\xed\xa0\x80"}},
        {GRAMMAR_REGEX, ".", {"a", "\xe2\x82\xac"}, {"\n", "\r", ""}},
        {GRAMMAR_REGEX,
         "[\xc3\xa4-\xe2\x82\xac]",
         {"\xc3\xa4", "\xc3\xbf", "\xe2\x82\xac", "\xd0\x96"},
         {"\xc3\xa3", "\xe2\x82\xad", "a"}},
        {GRAMMAR_REGEX, "\\u00e4|\\x41|\\u{1F600}", {"\xc3\xa4", "A", "\xf0\x9f\x98\x80"}, {"B"}},
        {GRAMMAR_REGEX, "(?:a|(?<n>b))\\.", {"a.", "b."}, {"ab", "a"}},
        {GRAMMAR_REGEX, "[\\d\\-\\]]+", {"1-]"}, {"a", "["}},
        {GRAMMAR_REGEX, "\\D\\W\\S", {"a-b", "x y"}, {"1-b", "aab", "a- "}},
        {GRAMMAR_REGEX, "a{,2}", {"a{,2}"}, {"a", "aa"}},
        {GRAMMAR_REGEX, "(((a{9000}){9000}){9000}){9000}", {NULL}, {"", "aaaa"}},
        {GRAMMAR_REGEX, "(a*)*b", {"b", "aaab"}, {"a"}},
        {GRAMMAR_REGEX, "(|a)(b|)", {"", "a", "b", "ab"}, {"ba"}},
        {GRAMMAR_CHOICE,
         "[\"yes\", \"no\", \"not \\u00e4\"]",
         {"yes", "no", "not \xc3\xa4"},
         {"ye", "", "not"}}};

    (void)state;
    check_rows(rows, ARRAY_SIZE(rows));
}

static void schemas_match_their_values(void **state)
{
    static const struct row rows[] = {
        {GRAMMAR_JSON_OBJECT,
         "null",
         {"{}", "{\"a\": 1}", "{\"a\":[true, null,{\"b\":-1.5e3}]}"},
         {"[]", "1", "{\"a\"}", "{\"a\":01}", "{,}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud800\"}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\"}",
         {"\"\"", "\"a\\n\\u00e4\\\"\"", "\"\xc3\xa4\"", "\"\\ud83d\\ude00\""},
         {"a", "\"", "\"\\x\"", "\"\x01\"", "\"\\ude00\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"ab\"", "\"\xc3\xa4\\n\\u0041\""},
         {"\"a\"", "\"abcd\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"pattern\": \"^[a-z\\\"\\\\\\\\]+$\"}",
         {"\"ab\"", "\"\\\"\\\\\""},
         {"\"\"", "\"A\"", "\"\"\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\", \"pattern\": \"b\"}",
         {"\"b\"", "\"abc\"", "\"xx\\nb\""},
         {"\"a\"", "\"\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\", \"format\": \"date-time\"}",
         {"\"2026-11-23T09:00:00Z\"", "\"2024-02-28T23:59:59.5+01:00\""},
         {"\"2026-13-01T00:00:00Z\"", "\"2026-02-30T00:00:00Z\"", "\"2026-11-23\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"integer\", \"minimum\": -12, \"maximum\": 205}",
         {"-12", "-1", "0", "9", "99", "199", "205"},
         {"-13", "206", "300", "1.0", "01", "-0"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"integer\", \"exclusiveMinimum\": 3}",
         {"4", "10", "123456"},
         {"3", "-4", "0"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"number\", \"minimum\": 0, \"exclusiveMaximum\": 1}",
         {"0", "0.0", "0.999"},
         {"1", "1.0", "-0.1", "2"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"number\", \"exclusiveMinimum\": -2, \"maximum\": 10}",
         {"-1.999", "-0.5", "0", "9.9", "10", "10.0"},
         {"-2", "-2.0", "10.1", "11"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"number\"}",
         {"-0.5", "1e5", "12.25E-3"},
         {"1.", ".5", "+1", "1e"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"enum\": [1, \"a\", null, {\"b\": [2]}]}",
         {"1", "\"a\"", "null", "{\"b\":[2]}"},
         {"2", "a", "{}"}},
        {GRAMMAR_JSON_SCHEMA, "{\"const\": \"x\\ny\"}", {"\"x\\ny\""}, {"\"x\ny\"", "\"x\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": [\"boolean\", \"null\"]}",
         {"true", "false", "null"},
         {"0", "\"true\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
         "{\"type\": "
         "\"string\"}, \"c\": {\"type\": \"boolean\"}}, \"required\": [\"b\"]}",
         {"{\"b\":\"\"}", "{\"a\": 1, \"b\": \"x\"}", "{\"a\":1,\"b\":\"\",\"c\":true}",
          "{\n  \"b\": \"\",\n  \"c\": false\n}"},
         {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",}", "{\"b\":1}",
          "{\"b\":\"\",\"d\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"integer\"}, \"ac\": {}}, "
         "\"additionalProperties\": {\"type\": \"boolean\"}}",
         {"{}", "{\"ab\":1,\"x\":true}", "{\"a\":true}", "{\"abc\":false,\"\":true}"},
         {"{\"ab\":true}", "{\"ac\":1,\"ab\":1}", "{\"ac\":1,\"ac\":true}", "{\"x\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"null\"}, "
         "\"minProperties\": 1, \"maxProperties\": 2}",
         {"{\"a\":null}", "{\"a\":null,\"b\":null}"},
         {"{}", "{\"a\":null,\"b\":null,\"c\":null}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"patternProperties\": {\"^x_[0-9]$\": {\"type\": \"integer\"}}, "
         "\"additionalProperties\": false}",
         {"{}", "{\"x_1\":5}", "{\"x_1\":5, \"x_2\":6}"},
         {"{\"y\":1}", "{\"x_11\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
         {"[1]", "[1,2]", "[ 1, 2, 3 ]"},
         {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"string\"}], \"items\": "
         "{\"type\": "
         "\"boolean\"}, \"minItems\": 1}",
         {"[1]", "[1,\"a\"]", "[1,\"a\",true,false]"},
         {"[]", "[\"a\"]", "[1,true]"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}",
         {"1", "\"a\""},
         {"true"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"k\": {\"type\": \"integer\"}}, \"required\": [\"k\"], \"anyOf\": "
         "[{\"properties\": {\"x\": {\"const\": 1}}, \"required\": [\"x\"]}, {\"properties\": "
         "{\"y\": {\"const\": 2}}, \"required\": [\"y\"]}]}",
         {"{\"k\":5,\"x\":1}", "{\"k\":5,\"y\":2}"},
         {"{\"k\":5}", "{\"x\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"oneOf\": [{\"properties\": {\"t\": {\"const\": \"a\"}}, \"required\": [\"t\"]}, "
         "{\"properties\": {\"t\": {\"const\": \"b\"}, \"n\": {\"type\": \"null\"}}, \"required\": "
         "[\"t\", \"n\"]}]}",
         {"{\"t\":\"a\"}", "{\"t\":\"b\",\"n\":null}"},
         {"{\"t\":\"b\"}", "{}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"properties\": {\"a\": {\"const\": 1}}}, {\"required\": [\"a\"]}]}",
         {"{\"a\":1}"},
         {"{}", "{\"a\":2}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"$ref\": \"#/$defs/node\", \"$defs\": {\"node\": {\"type\": \"object\", "
         "\"properties\": "
         "{\"v\": {\"type\": \"integer\"}, \"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/node\"}, "
         "{\"type\": \"null\"}]}}, \"required\": [\"v\", \"next\"]}}}",
         {"{\"v\":1,\"next\":null}",
          "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
         {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"integer\", \"nullable\": true}", {"1", "null"}, {"a"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"a\": {\"type\": \"null\"}, \"b\": {\"type\": \"null\"}}, "
         "\"minProperties\": 1, \"maxProperties\": 2}",
         {"{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}"},
         {"{}", "{\"c\":null}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"null\"}}, "
         "\"required\": [\"a\"], \"additionalProperties\": false}, {\"type\": \"object\", "
         "\"properties\": {\"b\": {\"type\": \"null\"}}, \"additionalProperties\": false}]}",
         {"{\"a\":null}", "{\"b\":null}", "{}"},
         {"{\"a\":null,\"b\":null}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"properties\": {\"a\": {\"minimum\": 2}}}, {\"properties\": {\"a\": "
         "{\"type\": \"integer\", \"maximum\": 4}, \"b\": true}}, {\"required\": [\"a\"]}, "
         "{\"properties\": {\"b\": false}}]}",
         {"{\"a\":2}", "{\"a\":4}"},
         {"{\"a\":1}", "{\"a\":5}", "{\"a\":3,\"b\":1}", "{}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\", \"pattern\": \"^[a-z\\u00e4]{2}(-x)?$\", \"minLength\": 2, "
         "\"maxLength\": 4}",
         {"\"ab\"", "\"\xc3\xa4z-x\""},
         {"\"a\"", "\"abc\""}},
        {GRAMMAR_JSON_SCHEMA, "true", {"1", "[{}]", "\"\""}, {"", "nul"}}};

    (void)state;
    check_rows(rows, ARRAY_SIZE(rows));
}

static void combined_schemas_match_their_values(void **state)
{
    static const struct row rows[] = {
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": [\"string\", \"integer\", \"null\"], \"not\": {\"enum\": [\"no\", 7, null]}}",
         {"\"yes\"", "\"nos\"", "6", "8", "-1"},
         {"\"no\"", "7", "null"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}, \"not\": {\"required\": "
         "[\"a\"]}}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}", "1"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"string\", \"not\": {\"pattern\": \"^a\"}, \"maxLength\": 3}",
         {"\"\"", "\"ba\"", "\"bcd\""},
         {"\"a\"", "\"ab\"", "\"bcde\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"k\": {\"enum\": [\"x\", \"y\"]}, \"n\": {\"type\": \"integer\"}}, "
         "\"required\": [\"k\"], \"if\": {\"properties\": {\"k\": {\"const\": \"x\"}}}, \"then\": "
         "{\"required\": [\"n\"]}, \"else\": {\"properties\": {\"n\": false}}}",
         {"{\"k\":\"x\",\"n\":1}", "{\"k\":\"y\"}"},
         {"{\"k\":\"x\"}", "{\"k\":\"y\",\"n\":1}", "{}"}},
        {GRAMMAR_JSON_SCHEMA, /* null has to be a value of both */
         "{\"allOf\": [{\"type\": \"string\", \"nullable\": true}, {\"type\": \"string\"}]}",
         {"\"a\""},
         {"null"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"type\": \"string\", \"nullable\": true}, {\"enum\": [\"a\", 1, null]}]}",
         {"\"a\"", "null"},
         {"1", "\"b\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"type\": \"integer\", \"nullable\": true}, {\"type\": \"string\", "
         "\"nullable\": true}]}",
         {"null"},
         {"1", "\"b\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"type\": \"string\", \"nullable\": true}, {\"anyOf\": [{\"const\": "
         "\"a\"}, "
         "{\"type\": \"null\"}]}]}",
         {"\"a\"", "null"},
         {"\"b\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"type\": \"string\", \"nullable\": true}, {\"anyOf\": [{\"const\": "
         "\"a\"}, "
         "{\"type\": \"boolean\"}]}]}",
         {"\"a\""},
         {"\"b\"", "null", "true"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"x\": {\"$ref\": \"#/$defs/s\", \"nullable\": true}, \"y\": "
         "{\"allOf\": "
         "[{\"$ref\": \"#/$defs/n\"}], \"type\": \"string\"}}, \"$defs\": {\"s\": {\"type\": "
         "\"string\"}, "
         "\"n\": {\"type\": \"string\", \"nullable\": true}}}",
         {"{\"x\":null}", "{\"x\":\"a\"}", "{\"y\":\"a\"}"},
         {"{\"y\":null}", "{\"x\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}",
         {"0.5", "-12.25"},
         {"1", "1.0", "0"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"null\"}, \"b\": {\"type\": "
         "\"null\"}}, \"oneOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}",
         {"{\"a\":null}", "{\"b\":null}"},
         {"{}", "{\"a\":null,\"b\":null}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"a\": {}, \"b\": {}, \"c\": {}}, \"dependentRequired\": {\"a\": "
         "[\"b\"]}, \"dependencies\": {\"c\": {\"properties\": {\"b\": {\"const\": 1}}}}}",
         {"{}", "{\"b\":2}", "{\"a\":0,\"b\":2}", "{\"b\":1,\"c\":0}"},
         {"{\"a\":0}", "{\"b\":2,\"c\":0}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"xa\": {\"type\": \"integer\"}}, \"patternProperties\": {\"^x\": "
         "{\"minimum\": 3}, \"y$\": {\"type\": \"null\"}}, \"additionalProperties\": false}",
         {"{\"xa\":3}", "{\"xb\":5,\"y\":null}", "{\"ay\":null}"},
         {"{\"xa\":2}", "{\"xa\":4.5}", "{\"z\":1}", "{\"xy\":3}", "{\"y\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[a-z]{2}$\"}, "
         "\"additionalProperties\": {\"type\": \"null\"}}",
         {"{}", "{\"ab\":null}"},
         {"{\"a\":null}", "{\"abc\":null}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"array\", \"items\": {\"enum\": [1, 2, \"a\"]}, \"uniqueItems\": true, "
         "\"minItems\": 1}",
         {"[1]", "[2,1]", "[\"a\",2,1]"},
         {"[]", "[1,1]", "[1,2,1]"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"contains\": {\"minimum\": "
         "5}, \"maxItems\": 3}",
         {"[5]", "[1,7]", "[1,2,6]"},
         {"[]", "[1,2]", "[1,2,3,9]"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"integer\", \"multipleOf\": 12, \"minimum\": 0, \"maximum\": 100}",
         {"0", "12", "96"},
         {"13", "108", "-12", "1"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"number\", \"minimum\": 0.25, \"exclusiveMaximum\": 1.5}",
         {"0.25", "0.3", "1", "1.4999"},
         {"0.2", "0.2499", "1.5", "1.50", "0"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"pattern\": \"^[a-z]+$\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"ab\"", "\"abc\""},
         {"\"a\"", "\"abcd\"", "\"AB\""}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"enum\": [\"ab\", \"b\", 3], \"pattern\": \"^a\", \"type\": \"string\"}",
         {"\"ab\""},
         {"\"b\"", "3"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"a\": false, \"b\": {}}}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}, {\"anyOf\": "
         "[{\"minimum\": 3}, {\"maxLength\": 2}]}]}",
         {"3", "\"ab\""},
         {"true"}},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"a\": {}, \"b\": {}, \"c\": {}}, \"minProperties\": 2, "
         "\"maxProperties\": 2}",
         {"{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":2}"},
         {"{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{}"}}};

    (void)state;
    check_rows(rows, ARRAY_SIZE(rows));
}

static void grammars_match_in_both_notations(void **state)
{
    static const struct row rows[] = {
        {GRAMMAR_EBNF,
         "root ::= expr \"\\n\"? # a sum\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]{1,3} |\n  "
         "\"(\" "
         "expr \")\"\n",
         {"1", "12+(3*4)\n", "((1))"},
         {"", "1234", "1+", "(1", "1 "}},
        {GRAMMAR_EBNF,
         "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"",
         {"- a\n", "- a\n- b c\n"},
         {"- \n", "a\n"}},
        {GRAMMAR_EBNF,
         "?start: sum\nsum: NUMBER (\"+\" NUMBER)* -> added\n// digits\nNUMBER: /[1-9][0-9]*/ | "
         "\"0\"\n",
         {"1", "10+20+0"},
         {"01", "1+", "+"}},
        {GRAMMAR_EBNF, "start: \"a\"..\"c\"~2..3 [\"X\"i]", {"ab", "abcx", "ccX"}, {"a", "abcdx"}},
        {GRAMMAR_EBNF,
         "start: pair (\",\" pair)*\npair: CNAME \"=\" value\nvalue: SIGNED_NUMBER | STRING\n"
         "%import common.CNAME\n%import common (SIGNED_NUMBER, WS)\n"
         "%import common.ESCAPED_STRING -> STRING\n%ignore WS\n%ignore /#[a-z]*;/",
         {"a=1", " a = -1.5e3 ,\tb_2=\"x\\\"y\" ", "a=.5#why;,b=2\n"},
         {"", "a=", "a=1 2", "a b=1", "a=\"x", "a=1 #Why;"}},
        {GRAMMAR_EBNF,
         "start: A \"-\" b\nA: \"x\" \"y\"\nb: (\"(\" b \")\")?\n%ignore \" \"",
         {"xy-", " xy - ( ( ) )", "xy-()"},
         {"x y-", "xy", "xy-(", "xy\t-"}},
        {GRAMMAR_EBNF,
         "start: HEXDIGIT INT DECIMAL FLOAT SIGNED_INT WORD C_COMMENT NEWLINE\n%import common "
         "(DIGIT, HEXDIGIT, INT, DECIMAL, FLOAT, SIGNED_FLOAT, NUMBER, LETTER, LCASE_LETTER)\n"
         "%import common (SIGNED_INT, WORD, C_COMMENT, NEWLINE, UCASE_LETTER, WS_INLINE, CR, LF)\n"
         "%import common (SH_COMMENT, CPP_COMMENT, SQL_COMMENT)",
         {"F12.5.5e1-3ab/* **/\n", "01.5.1e9+1a/***/\r\n\n"},
         {"F1", "g12.5.5e1-3ab/**/\n", "F12.5.5e1-3ab/* */ */\n"}}};

    (void)state;
    check_rows(rows, ARRAY_SIZE(rows));
}

#define TAG_INT "{\"type\": \"json_schema\", \"json_schema\": {\"type\": \"integer\"}}"

static void structural_tags_match_text_and_tags(void **state)
{
    static const struct row rows[] = {
        {GRAMMAR_TAGS,
         "{\"type\": \"structural_tag\", \"triggers\": [\"<f=\"], \"structures\": ["
         "{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"integer\"}, \"end\": \"</f>\"}, "
         "{\"begin\": \"<f=b>\", \"schema\": {\"type\": \"null\"}, \"end\": \"</f>\"}]}",
         {"", "any < text <f", "x<f=a>12</f>", "<<f=a>1</f><f=b>null</f>\xc3\xa4 <f=a>3</f>."},
         {"<f=", "<f=c>1</f>", "x<f=a>null</f>", "<f=a>1</g>", "<f=a>1", "\xc3"}},
        {GRAMMAR_TAGS,
         "{\"format\": {\"type\": \"triggered_tags\", \"at_least_one\": true, "
         "\"stop_after_first\": true, \"triggers\": [\"[\", \"(\"], \"tags\": ["
         "{\"begin\": \"[\", \"content\": " TAG_INT ", \"end\": \"]\"}, "
         "{\"begin\": \"(\", \"content\": " TAG_INT ", \"end\": [\")\", \">\"]}]}}",
         {"[1]", "(2)", "(2>"},
         {"", "x[1]", "[1]x", "[1)", "[1](2)"}},
        {GRAMMAR_TAGS,
         "{\"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"tag\", \"begin\": "
         "\"<think>\", \"content\": {\"type\": \"any_text\", \"excludes\": [\"bad\"]}, \"end\": "
         "\"</think>\"}, {\"type\": \"or\", \"elements\": [{\"type\": \"const_string\", "
         "\"value\": \"yes\"}, {\"type\": \"regex\", \"pattern\": \"no+\"}, {\"type\": "
         "\"grammar\", "
         "\"grammar\": \"root ::= \\\"x\\\" [0-9]\"}]}]}}",
         {"<think></think>yes", "<think>a</thin </think>noo", "<think>ba d</think>x7"},
         {"yes", "<think>bad</think>yes", "<think></think></think>yes", "<think></think>"}},
        {GRAMMAR_TAGS,
         "{\"format\": {\"type\": \"tags_with_separator\", \"separator\": \", \", \"tags\": ["
         "{\"type\": \"tag\", \"begin\": \"a\", \"content\": " TAG_INT ", \"end\": \"\"}, "
         "{\"begin\": \"b\", \"content\": " TAG_INT ", \"end\": \";\"}]}}",
         {"", "a1", "a1, b2;", "b2;, a3, a4"},
         {"a1,", "b2", "a1, ", "a1 b2;", "x"}},
        {GRAMMAR_TAGS,
         "{\"format\": {\"type\": \"tag\", \"begin\": \"{\", \"end\": \"}\", \"content\": "
         "{\"type\": \"triggered_tags\", \"triggers\": [\"abab\", \"bac\"], \"tags\": [{\"begin\": "
         "\"abab\", \"content\": " TAG_INT ", \"end\": \"!\"}, {\"begin\": \"bac\", \"content\": "
         "{\"type\": \"any_text\"}, \"end\": \"aa\"}]}}}",
         {"{}", "{aba}", "{aabab5!x}", "{abacx yaaab}", "{bacxaaabab1!}"},
         {"{ababx}", "{a}b}", "{bac}", "{abab5!", "{bacxa}"}}};

    (void)state;
    check_rows(rows, ARRAY_SIZE(rows));
}

static void what_cannot_be_enforced_is_refused_by_name(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *source;
        enum status want;
        const char *word;
    } rows[] = {
        {GRAMMAR_REGEX, "a(?=b)", ERR_UNSUPPORTED, "look-ahead"},
        {GRAMMAR_REGEX, "(a)\\1", ERR_UNSUPPORTED, "back references"},
        {GRAMMAR_REGEX, "a\\b", ERR_UNSUPPORTED, "word boundaries"},
        {GRAMMAR_REGEX, "\\p{L}", ERR_UNSUPPORTED, "Unicode properties"},
        {GRAMMAR_REGEX, "(a", ERR_INVALID, ") is missing"},
        {GRAMMAR_REGEX, "a)", ERR_INVALID, ") without ("},
        {GRAMMAR_REGEX, "[b-a]", ERR_INVALID, "range"},
        {GRAMMAR_REGEX, "*a", ERR_INVALID, "repetition of nothing"},
        {GRAMMAR_REGEX,
         "a{99999}b{99999}a{99999}b{99999}a{99999}b{99999}a{99999}b{99999}a{99999}b{99999}a{99999}",
         ERR_TOO_LARGE, "too large"},
        {GRAMMAR_JSON_SCHEMA, "{\"not\": {}}", ERR_INVALID, "no text"},
        {GRAMMAR_JSON_SCHEMA, "{\"not\": {\"multipleOf\": 3}}", ERR_UNSUPPORTED,
         "below not, or in oneOf with schemas that may match together (use anyOf): multipleOf"},
        {GRAMMAR_JSON_SCHEMA, "{\"unevaluatedProperties\": false}", ERR_UNSUPPORTED,
         "unevaluatedProperties"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"array\", \"uniqueItems\": true}", ERR_UNSUPPORTED,
         "uniqueItems"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"number\", \"multipleOf\": 0.1}", ERR_UNSUPPORTED,
         "multipleOf"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"oneOf\": [{\"type\": \"string\", \"format\": \"date\"}, {\"maxLength\": 9}]}",
         ERR_UNSUPPORTED, "format"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\": \"other.json#/a\"}", ERR_UNSUPPORTED, "other.json#/a"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\": \"#/nowhere\"}", ERR_INVALID, "#/nowhere"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\": [{\"prefixItems\": [{\"minimum\": 3}]}], \"items\": {\"minimum\": 5}}",
         ERR_UNSUPPORTED, "prefixItems"},
        {GRAMMAR_JSON_SCHEMA, "{\"pattern\": \"a.{30}b\", \"maxLength\": 400}", ERR_TOO_LARGE,
         "too large together"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\": {\"a\": {}}, \"additionalProperties\": true, \"maxProperties\": 1}",
         ERR_UNSUPPORTED, "maxProperties"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\": \"#\"}", ERR_UNSUPPORTED, "left recursion"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}",
         ERR_INVALID, "no text"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\": \"thing\"}", ERR_INVALID, "thing"},
        {GRAMMAR_JSON_SCHEMA, "false", ERR_INVALID, "no text"},
        {GRAMMAR_JSON_SCHEMA, "[]", ERR_INVALID, "object"},
        {GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", ERR_UNSUPPORTED, "left recursion"},
        {GRAMMAR_EBNF, "root ::= other", ERR_INVALID, "other is not defined"},
        {GRAMMAR_EBNF, "root ::= \"a", ERR_INVALID, "closing quote"},
        {GRAMMAR_EBNF, "start: INT\n%import common.NOTHING", ERR_UNSUPPORTED,
         "%import: no such terminal"},
        {GRAMMAR_EBNF, "start: a\n%import python (a)", ERR_UNSUPPORTED,
         "%import: only terminals of `common`"},
        {GRAMMAR_EBNF, "start: \"a\"\n%declare B", ERR_UNSUPPORTED, "directives other than"},
        {GRAMMAR_EBNF, "start: <|end|>", ERR_UNSUPPORTED, "special tokens"},
        {GRAMMAR_EBNF, "root ::= <[5]>", ERR_UNSUPPORTED, "special tokens"},
        {GRAMMAR_EBNF, "start: pair{\"a\"}", ERR_UNSUPPORTED, "templates"},
        {GRAMMAR_EBNF, "pair{x}: x", ERR_UNSUPPORTED, "templates"},
        {GRAMMAR_EBNF, "start[max_tokens=5]: \"a\"", ERR_UNSUPPORTED, "attributes"},
        {GRAMMAR_EBNF, "start: %json {}", ERR_UNSUPPORTED, "%json"},
        {GRAMMAR_EBNF, "start: /a/i", ERR_UNSUPPORTED, "flags"},
        {GRAMMAR_EBNF, "start: \"a\" & \"b\"", ERR_UNSUPPORTED, "intersection"},
        {GRAMMAR_EBNF, "root ::= \"a\" (= \"b\")", ERR_UNSUPPORTED, "look-ahead"},
        {GRAMMAR_EBNF, "root ::= TagDispatch((\"a\", b))", ERR_UNSUPPORTED, "TagDispatch"},
        {GRAMMAR_EBNF, "a ::= \"b\"", ERR_INVALID, "root is not defined"},
        {GRAMMAR_CHOICE, "[]", ERR_INVALID, "at least one"},
        {GRAMMAR_TAGS, "[]", ERR_INVALID, "object"},
        {GRAMMAR_TAGS, "{}", ERR_INVALID, "neither format nor structures"},
        {GRAMMAR_TAGS, "{\"format\": {\"type\": \"what\"}}", ERR_UNSUPPORTED, "what"},
        {GRAMMAR_TAGS, "{\"format\": {\"type\": \"qwen_xml_parameter\"}}", ERR_UNSUPPORTED,
         "qwen_xml_parameter"},
        {GRAMMAR_TAGS,
         "{\"structures\": [{\"begin\": \"<a>\", \"schema\": {}, \"end\": \"\"}], "
         "\"triggers\": [\"<b\"]}",
         ERR_INVALID, "no tag begins with the trigger <b"},
        {GRAMMAR_TAGS,
         "{\"structures\": [{\"begin\": \"<a>\", \"schema\": {\"uniqueItems\": true, \"type\": "
         "\"array\"}, \"end\": \"\"}], \"triggers\": [\"<\"]}",
         ERR_UNSUPPORTED, "uniqueItems"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct grammar *g = NULL;
        struct buf why;
        buf_init(&why, 4096);
        enum status s = make(&g, rows[i].kind, rows[i].source, &why);
        if (s != rows[i].want || !strstr(buf_str(&why), rows[i].word))
            fail_msg("%s: %s, %s", rows[i].source, status_name(s), buf_str(&why));
        assert_null(g);
        buf_fini(&why);
    }
}

/* --- masks --- */

static uint64_t seed = 1;

static uint32_t drawn(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* The mask that trying each token gives. */
static void try_all(const struct grammar_run *r, uint32_t *mask)
{
    memset(mask, 0, vocab_mask_n_words(n_vocab) * sizeof *mask);
    for (uint32_t id = 0; id < n_vocab; id++) {
        struct grammar_run copy = *r;
        if (id == EOS ? false : grammar_run_feed(&copy, eos_ids, 1, id) == OK)
            mask[id / 32] |= 1u << id % 32;
    }
}

/* Write an answer of random tokens; check the mask now and then; append the text. */
static void write_answer(struct grammar *g, bool checks, struct buf *text)
{
    uint32_t *mask = calloc(vocab_mask_n_words(n_vocab), sizeof *mask),
             *want = calloc(vocab_mask_n_words(n_vocab), sizeof *want),
             *ids = calloc(n_vocab, sizeof *ids);
    struct grammar_run r;

    grammar_run_init(&r, g, true);
    for (uint32_t i = 0; !r.is_over; i++) {
        uint32_t n = 0;
        size_t len;
        assert_true(i < N_STEPS_MAX);
        assert_ok(grammar_run_mask(&r, eos_ids, 1, mask));
        bool may_end = vocab_mask_allows(mask, EOS);
        if (checks && i % 7 == 0) {
            try_all(&r, want);
            want[EOS / 32] |= mask[EOS / 32] & 1u << EOS % 32;
            assert_memory_equal(mask, want, vocab_mask_n_words(n_vocab) * sizeof *mask);
        }
        for (uint32_t id = 0; id < n_vocab; id++)
            if (id != EOS && vocab_mask_allows(mask, id))
                ids[n++] = id;
        assert_true(n > 0 || may_end);
        /* Endings and short ways out are likely, so that answers end. */
        uint32_t id = may_end && (n == 0 || drawn(3) == 0) ? EOS : ids[drawn(n)];
        const char *bytes = tokenizer_bytes(tokenizer, id, &len);
        for (uint32_t k = 0, at = drawn(n + 1); id != EOS && i > 60 && k < n; k++) {
            uint32_t other = ids[(at + k) % n]; /* prefer what closes */
            size_t other_len;
            const char *p = tokenizer_bytes(tokenizer, other, &other_len);
            if (other_len == 1 && strchr("\"}].\n", *p)) {
                id = other;
                bytes = p;
                len = 1;
                break;
            }
        }
        assert_ok(grammar_run_feed(&r, eos_ids, 1, id));
        if (id != EOS)
            assert_ok(buf_append(text, bytes, len));
    }
    grammar_run_fini(&r);
    free(mask);
    free(want);
    free(ids);
}

static void masks_are_those_of_trying_each_token(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *source;
    } rows[] = {
        {GRAMMAR_JSON_OBJECT, "null"},
        {GRAMMAR_REGEX, "([A-Za-z ]+[.!?] ?){1,4}"},
        {GRAMMAR_REGEX, "[^\\n]{3,40}"},
        {GRAMMAR_CHOICE, "[\"the captain\", \"the ship\", \"then\"]"},
        {GRAMMAR_EBNF, "root ::= (\"- \" [^\\n]+ \"\\n\")+"},
        {GRAMMAR_TAGS,
         "{\"structures\": [{\"begin\": \"the \", \"schema\": {\"type\": \"integer\"}, \"end\": "
         "\".\"}], \"triggers\": [\"th\"]}"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"tags\": "
         "{\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"maxItems\": 4}, \"n\": "
         "{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 500}}, \"required\": [\"name\", "
         "\"n\"]}"}};
    struct buf text;

    (void)state;
    buf_init(&text, 1 << 20);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct grammar *g = grammar_of(rows[i].kind, rows[i].source);
        for (int k = 0; k < 3; k++) {
            buf_reset(&text);
            write_answer(g, true, &text);
            bool yes = false;
            assert_ok(grammar_matches(g, text.data, text.len, &yes));
            assert_true(yes);
        }
        grammar_unref(g);
    }
    buf_fini(&text);
}

/* Random answers of random nested schemas are JSON. */
static void random_schema(struct buf *b, int depth)
{
    static const char *const leaves[] = {"{\"type\":\"string\"}",
                                         "{\"type\":\"integer\"}",
                                         "{\"type\":\"boolean\"}",
                                         "{\"type\":\"number\",\"minimum\":0,\"maximum\":10}",
                                         "{\"enum\":[\"a\",1,null]}",
                                         "{\"type\":\"string\",\"maxLength\":5}",
                                         "{\"type\":\"string\",\"format\":\"date\"}"};
    uint32_t kind = depth > 2 ? 0 : drawn(4), n = 1 + drawn(3);

    if (kind < 2) {
        assert_ok(buf_puts(b, leaves[drawn(ARRAY_SIZE(leaves))]));
        return;
    }
    assert_ok(buf_puts(b, kind == 2 ? "{\"type\":\"array\",\"maxItems\":3,\"items\":"
                                    : "{\"type\":\"object\",\"properties\":{"));
    for (uint32_t i = 0; i < (kind == 2 ? 1 : n); i++) {
        if (kind == 3)
            assert_ok(buf_printf(b, "%s\"p%u\":", i ? "," : "", i));
        random_schema(b, depth + 1);
    }
    if (kind == 3)
        assert_ok(buf_printf(b, "},\"required\":[\"p%u\"]", drawn(n)));
    assert_ok(buf_puts(b, "}"));
}

static void answers_of_random_schemas_are_json(void **state)
{
    struct buf schema, text;

    (void)state;
    buf_init(&schema, 1 << 16);
    buf_init(&text, 1 << 20);
    for (int i = 0; i < 100; i++) {
        struct json *j = NULL;
        buf_reset(&schema);
        buf_reset(&text);
        random_schema(&schema, 0);
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, buf_str(&schema));
        write_answer(g, false, &text);
        if (js_parse(&j, text.data, text.len, NULL) != OK)
            fail_msg("%s: %s", buf_str(&schema), buf_str(&text));
        js_unref(j);
        grammar_unref(g);
    }
    buf_fini(&schema);
    buf_fini(&text);
}

static void a_token_that_the_mask_forbids_is_an_error(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_CHOICE, "[\"a\"]");
    struct grammar_run r;

    (void)state;
    grammar_run_init(&r, g, true);
    assert_int_equal(grammar_run_feed(&r, eos_ids, 1, tokenizer_find(tokenizer, "b", 1)),
                     ERR_INVALID);
    grammar_run_fini(&r);
    grammar_run_init(&r, g, true);
    assert_ok(
        grammar_run_feed(&r, eos_ids, 1, EOS)); /* the caller's own: ignore_eos and the like */
    assert_true(r.is_over);
    grammar_run_fini(&r);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regular_expressions_match_what_they_say),
        cmocka_unit_test(schemas_match_their_values),
        cmocka_unit_test(combined_schemas_match_their_values),
        cmocka_unit_test(grammars_match_in_both_notations),
        cmocka_unit_test(structural_tags_match_text_and_tags),
        cmocka_unit_test(what_cannot_be_enforced_is_refused_by_name),
        cmocka_unit_test(masks_are_those_of_trying_each_token),
        cmocka_unit_test(answers_of_random_schemas_are_json),
        cmocka_unit_test(a_token_that_the_mask_forbids_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
