/* test_grammar_hostile.c - schemas, expressions and grammars that try to take all memory or time,
 * or to read behind their text: each ends, refused by name or made. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define TEXT_BYTES_MAX ((size_t)2 << 20)

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static struct buf text, why; /* the source, and why it was refused */

static int open_vocab(void **state)
{
    (void)state;
    buf_init(&text, TEXT_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(tokenizer_load(&tokenizer, TARN_SOURCE_DIR "/deploy/demo-model", &why));
    assert_ok(grammar_vocab_create(&vocab, tokenizer, tokenizer_n_vocab(tokenizer)));
    return 0;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    buf_fini(&text);
    buf_fini(&why);
    return 0;
}

static void put(const char *words)
{
    assert_ok(buf_puts(&text, words));
}

static void put_times(uint32_t n, const char *words)
{
    for (uint32_t i = 0; i < n; i++)
        put(words);
}

/* Make the grammar of the text, which is emptied. */
static enum status make(enum grammar_kind kind)
{
    bool is_text = kind == GRAMMAR_REGEX || kind == GRAMMAR_EBNF;
    struct json *j = is_text ? js_new_string(text.data, text.len) : NULL;
    struct grammar *g = NULL;
    enum status s = OK;

    buf_reset(&why);
    if (!is_text)
        s = js_parse(&j, text.data, text.len, &why);
    assert_ok(s);
    s = grammar_create(&g, vocab, kind, j, &why);
    assert_true((s == OK) == (g != NULL) && (s == OK || why.len > 0));
    grammar_unref(g);
    js_unref(j);
    buf_reset(&text);
    return s;
}

static void assert_refused(enum grammar_kind kind, enum status want, const char *word)
{
    enum status s = make(kind);

    if (s != want || !strstr(buf_str(&why), word))
        fail_msg("%s: %s", status_name(s), buf_str(&why));
}

static void references_end_where_their_text_ends(void **state)
{
    static const char *const refs[] = {"#/a%5", "#/a%", "#/a%4", "#/%", "#/~", "#a", "#/% 5"};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refs); i++) {
        assert_ok(buf_printf(&text, "{\"$ref\": \"%s\"}", refs[i]));
        assert_refused(GRAMMAR_JSON_SCHEMA, ERR_INVALID, "names nothing");
    }
    put("{\"$ref\": \"#/%61%2B\", \"a+\": {\"type\": \"null\"}}");
    assert_ok(make(GRAMMAR_JSON_SCHEMA));
}

static void schemas_in_schemas_do_not_multiply(void **state)
{
    (void)state;
    put_times(60, "{\"type\": [\"object\", \"object\", \"object\"], \"properties\": {\"a\": ");
    put("true");
    put_times(60, "}}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "too large");
    put("{\"$defs\": {\"d0\": {\"type\": \"null\"}");
    for (int i = 1; i < 40; i++)
        assert_ok(buf_printf(&text,
                             ", \"d%d\": {\"anyOf\": [{\"$ref\": \"#/$defs/d%d\", \"maxItems\": 5}"
                             ", {\"$ref\": \"#/$defs/d%d\", \"maxItems\": 5}]}",
                             i, i - 1, i - 1));
    put("}, \"anyOf\": [{\"$ref\": \"#/$defs/d39\"}]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "joined");
}

static void joined_schemas_have_a_bound(void **state)
{
    (void)state;
    put("{\"allOf\": [{\"description\": \"");
    put_times(100000, "word ");
    put("\"}");
    put_times(3000, ", {}");
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "joined");
}

static void choices_of_schemas_have_a_bound(void **state)
{
    (void)state;
    put("{\"oneOf\": [");
    for (int i = 0; i < 800; i++) {
        assert_ok(buf_printf(&text, "%s{\"enum\": [%d", i ? ", " : "", 1000 * i));
        for (int k = 1; k < 100; k++)
            assert_ok(buf_printf(&text, ",%d", 1000 * i + k));
        put("]}");
    }
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "too many values to compare: oneOf");
}

/* Checks of values are paid for by keyword, name and byte, not by value. */
static void checks_of_values_have_a_bound(void **state)
{
    static const char *const rests[] = {"\"dependentRequired\": {\"a\": [\"a\"",
                                        "\"required\": [\"a\""};

    (void)state;
    put("{\"$defs\": {\"many\": {\"x-0\": 0");
    for (int i = 1; i < 20000; i++)
        assert_ok(buf_printf(&text, ", \"x-%d\": 0", i));
    put("}}, \"$ref\": \"#/$defs/many\", \"enum\": [0");
    for (int i = 1; i < 2500; i++)
        assert_ok(buf_printf(&text, ", %d", i));
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "beside: enum");
    for (size_t k = 0; k < ARRAY_SIZE(rests); k++) {
        put("{\"enum\": [{\"a\": 0}");
        for (int i = 1; i < 2500; i++)
            assert_ok(buf_printf(&text, ", {\"a\": %d}", i));
        assert_ok(buf_printf(&text, "], %s", rests[k]));
        put_times(100000, ",\"a\"");
        put(k == 0 ? "]}}" : "]}");
        assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "beside: enum");
    }
    put("{\"const\": \"");
    put_times(400000, "x");
    put("\", \"allOf\": [true");
    put_times(30000, ", {\"minLength\": 1}");
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "beside: enum or const");
}

/* The work for a byte is that of the pattern's states. */
static void patterns_of_values_have_a_bound(void **state)
{
    (void)state;
    put("{\"pattern\": \"^(a?){1000}$\", \"enum\": [\"\"");
    for (int i = 0; i < 500; i++) {
        put(", \"");
        put_times(900, "a");
        assert_ok(buf_printf(&text, "%d\"", i));
    }
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "beside: enum");
    put("{\"enum\": [\"\"");
    for (int i = 0; i < 1000; i++)
        assert_ok(buf_printf(&text, ", \"%d\"", i));
    put("]");
    for (int i = 0; i < 20; i++)
        assert_ok(buf_printf(&text, "%s{\"pattern\": \"^(a?){1000}%d\"}",
                             i ? ", " : ", \"anyOf\": [", i));
    put("]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "beside: enum");
}

static void long_lists_of_values_are_made(void **state)
{
    bool yes = true;
    struct json *j = NULL;
    struct grammar *g = NULL;

    (void)state;
    /* The list is searched for a value inside of a value. */
    put("{\"enum\": [1, {\"a\": 1}, {\"a\": 2}], \"properties\": {\"a\": {\"$ref\": \"#\"}}}");
    assert_ok(js_parse(&j, text.data, text.len, NULL));
    assert_ok(grammar_create(&g, vocab, GRAMMAR_JSON_SCHEMA, j, &why));
    assert_ok(grammar_matches(g, "{\"a\":1}", 7, &yes));
    assert_true(yes);
    assert_ok(grammar_matches(g, "{\"a\":2}", 7, &yes));
    assert_false(yes);
    grammar_unref(g);
    js_unref(j);
    buf_reset(&text);
    put("{\"type\": \"string\", \"pattern\": \"^city [0-9]+$\", \"enum\": [\"city 0\"");
    for (int i = 1; i < 4000; i++)
        assert_ok(buf_printf(&text, ", \"city %d\"", i));
    put("]}");
    assert_ok(make(GRAMMAR_JSON_SCHEMA));
}

static void opposites_and_conditions_have_a_bound(void **state)
{
    (void)state;
    put("{\"not\": {\"oneOf\": [false");
    for (int i = 0; i < 60; i++) {
        put(", {\"enum\": [0");
        put_times(4000, ",1");
        put("]}");
    }
    put("]}}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "joined");
    put_times(150, "{\"type\": \"object\", \"if\": {}, \"properties\": {\"a\": ");
    put("{\"enum\": [0");
    put_times(100000, ",1");
    put("]}");
    put_times(150, "}}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "joined");
    put("{\"type\": \"string\", \"not\": {\"minLength\": 1e300}}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_UNSUPPORTED, "minLength");
}

static void equal_values_in_other_words_do_not_exclude(void **state)
{
    (void)state;
    put("{\"oneOf\": [{\"const\": {\"a\": 1, \"b\": 2}}, {\"const\": {\"b\": 2, \"a\": 1.0}}]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_INVALID, "no text");
}

static void names_that_are_required_twice_come_once(void **state)
{
    bool yes = false;
    struct json *j = NULL;
    struct grammar *g = NULL;

    (void)state;
    put("{\"type\": \"object\", \"required\": [\"a\", \"a\"]}");
    assert_ok(js_parse(&j, text.data, text.len, NULL));
    assert_ok(grammar_create(&g, vocab, GRAMMAR_JSON_SCHEMA, j, &why));
    assert_ok(grammar_matches(g, "{\"a\":1}", 7, &yes));
    assert_true(yes);
    grammar_unref(g);
    js_unref(j);
    buf_reset(&text);
    put("{\"type\": \"object\", \"required\": [\"a\\u0000b\"]}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_INVALID, "required");
}

static void expressions_end_where_their_text_ends(void **state)
{
    static const char *const sources[] = {"[a-\\", "[\\",  "\\",     "(?<n",       "(?P<", "[",
                                          "a{9",   "\\x4", "\\u{12", "\\ud800\\u", "(",    "(?"};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
        put(sources[i]);
        if (i != 6) /* a brace that begins no repetition is a character */
            assert_refused(GRAMMAR_REGEX, i == 11 ? ERR_UNSUPPORTED : ERR_INVALID, "");
        else
            assert_ok(make(GRAMMAR_REGEX));
    }
}

/* The reader stops at the bound: reading the rest would be for nothing. */
static void long_sources_are_too_large(void **state)
{
    (void)state;
    put_times(1000000, "|");
    assert_refused(GRAMMAR_REGEX, ERR_TOO_LARGE, "too large");
    put_times(1000000, "a");
    assert_refused(GRAMMAR_REGEX, ERR_TOO_LARGE, "too large");
    put("{\"pattern\": \"");
    put_times(300000, "[^x]");
    put("\"}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "too large");
    put("start: \"a\"");
    put_times(1000000, "?");
    assert_refused(GRAMMAR_EBNF, ERR_TOO_LARGE, "too large");
    put("[\"");
    put_times(1000000, "x");
    put("\"]");
    assert_refused(GRAMMAR_CHOICE, ERR_TOO_LARGE, "too large");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    put_times(100000, "(");
    assert_refused(GRAMMAR_REGEX, ERR_TOO_LARGE, "nested");
    put("root ::= ");
    put_times(100000, "(");
    assert_refused(GRAMMAR_EBNF, ERR_TOO_LARGE, "nested");
    put_times(240, "{\"items\": ");
    put("true");
    put_times(240, "}");
    assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "nested");
}

/* 4096 rules, each of which is empty if the next one is. */
static void chains_of_rules_are_read_in_one_pass(void **state)
{
    (void)state;
    put("root ::= a0 \"x\" | \"x\"\n");
    for (int i = 0; i < 4000; i++) {
        assert_ok(buf_printf(&text, "a%d ::= a%d", i, i + 1));
        put_times(20, " a4000");
        put("\n");
    }
    put("a4000 ::= \"y\"?\n");
    assert_ok(make(GRAMMAR_EBNF));
    put("root ::= a \"x\"\na ::= b\nb ::= c? root?\nc ::= \"c\"\n");
    assert_refused(GRAMMAR_EBNF, ERR_UNSUPPORTED, "left recursion");
}

static void repetitions_have_bounds(void **state)
{
    (void)state;
    put("(a?){100000}");
    assert_refused(GRAMMAR_REGEX, ERR_TOO_LARGE, "too many ways");
    put("{\"type\": \"array\", \"maxItems\": 10000, \"items\": {\"type\": \"object\", "
        "\"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 100000}}}}");
    assert_ok(make(GRAMMAR_JSON_SCHEMA));
    put("((((((((a|bcdefg){90000}){90000}){90000}){90000}x){90000}){90000}y){90000}z){90000}");
    (void)make(GRAMMAR_REGEX);
}

static void an_object_has_up_to_1000_properties(void **state)
{
    (void)state;
    for (int n = 1000; n <= 1001; n++) {
        put("{\"type\": \"object\", \"properties\": {");
        for (int i = 0; i < n; i++)
            assert_ok(buf_printf(&text, "%s\"p%d\": {\"type\": \"null\"}", i ? ", " : "", i));
        put("}}");
        if (n == 1000)
            assert_ok(make(GRAMMAR_JSON_SCHEMA));
        else
            assert_refused(GRAMMAR_JSON_SCHEMA, ERR_TOO_LARGE, "properties");
    }
}

/* --- work --- */

#define N_STEPS 40u

struct trace {
    enum status status; /* that ended the answer */
    uint32_t n;
    struct {
        uint32_t n_allowed, work;
        uint64_t credit;
    } steps[N_STEPS];
};

static struct grammar *regex(const char *source)
{
    struct json *j = js_new_string(source, strlen(source));
    struct grammar *g;

    assert_ok(grammar_create(&g, vocab, GRAMMAR_REGEX, j, &why));
    js_unref(j);
    return g;
}

/* Write an answer of random tokens, and note what each mask was. slice UINT32_MAX: no bound. */
static void write_answer(struct grammar *g, uint64_t seed, uint32_t slice, struct trace *out)
{
    uint32_t n_vocab = tokenizer_n_vocab(tokenizer), eos = tokenizer_eos(tokenizer);
    uint32_t *mask = calloc(vocab_mask_n_words(n_vocab), sizeof *mask);
    struct grammar_run r;

    *out = (struct trace){.n = 0};
    grammar_run_init(&r, g, true);
    for (uint32_t i = 0; i < N_STEPS && !r.is_over; i++) {
        uint32_t n = 0, at;
        enum status s = grammar_run_try_mask(&r, slice, &eos, 1, mask);
        while (s == ERR_BUSY && (s = grammar_run_prepare(&r)) == OK)
            s = grammar_run_try_mask(&r, slice, &eos, 1, mask);
        if ((out->status = s) != OK)
            break;
        for (uint32_t id = 0; id < n_vocab; id++)
            n += vocab_mask_allows(mask, id);
        out->steps[i].n_allowed = n;
        out->steps[i].work = r.work;
        out->steps[i].credit = r.credit;
        out->n++;
        at = rng_u32(seed, i) % n;
        for (uint32_t id = 0; id < n_vocab; id++)
            if (vocab_mask_allows(mask, id) && at-- == 0) {
                assert_ok(grammar_run_feed(&r, &eos, 1, id));
                break;
            }
    }
    grammar_run_fini(&r);
    free(mask);
}

static const char *const costly[] = {"(.*a.{900}b.*)", "([a-m]?[b-y]?){900}", "(a?){3000}b",
                                     "(.{0,60}[a-m].{0,60}[n-z]){40}",
                                     "([^x]*x){0,3000}(y?z?[a-z]?){900}"};

/* An answer of a grammar that other answers have used, and one that computes its masks in slices,
 * end as the same answer of a new grammar does: allowed, or refused at the same token. */
static void work_is_that_of_the_answer_alone(void **state)
{
    struct trace alone, late;
    uint32_t n_refused = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(costly); i++) {
        struct grammar *used = regex(costly[i]);
        for (uint64_t seed = 0; seed < 2; seed++) {
            struct grammar *g = regex(costly[i]);
            write_answer(g, seed, UINT32_MAX, &alone);
            write_answer(used, seed, (uint32_t)(1 + 3000 * seed), &late);
            assert_memory_equal(&alone, &late, sizeof alone);
            write_answer(used, seed, 500, &late);
            assert_memory_equal(&alone, &late, sizeof alone);
            n_refused += alone.status == ERR_TOO_LARGE;
            grammar_unref(g);
        }
        grammar_unref(used);
    }
    assert_true(n_refused > 0);
}

/* A walk over 840000 nodes takes more than a slice; each question walks them again. */
static void masks_of_a_large_vocabulary_end(void **state)
{
    static const uint32_t eos[] = {0};
    const uint32_t n_tokens = 1700, n_long = 490;
    struct tokenizer *large;
    struct grammar_vocab *v;
    struct grammar_run run;
    struct grammar *g;
    uint32_t mask[1700 / 32 + 1];

    (void)state;
    put("{\"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false}, \"added_tokens\": [], \"model\": {\"type\": \"BPE\", "
        "\"merges\": [], \"vocab\": {");
    for (uint32_t i = 0; i < n_tokens; i++) {
        assert_ok(buf_printf(&text, "%s\"%c%c%c", i ? ", " : "", 'a' + i / 676, 'a' + i / 26 % 26,
                             'a' + i % 26));
        put_times(n_long, "x");
        assert_ok(buf_printf(&text, "\": %u", i));
    }
    put("}}}");
    if (tok_load_text(&large, text.data, text.len, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_reset(&text);
    assert_ok(grammar_vocab_create(&v, large, n_tokens));
    struct json *source = js_new_string("[a-z]*", 6);
    assert_ok(grammar_create(&g, v, GRAMMAR_REGEX, source, &why));
    grammar_run_init(&run, g, true);
    assert_ok(grammar_run_mask(&run, eos, 1, mask));
    assert_true(vocab_mask_allows(mask, 0) && vocab_mask_allows(mask, n_tokens - 1));
    grammar_run_fini(&run);
    grammar_unref(g);
    js_unref(source);
    grammar_vocab_destroy(v);
    tokenizer_destroy(large);
}

/* Strings of 255 kinds of characters: each of their 2,048 states has as many steps. */
static void free_texts_of_many_strings_end(void **state)
{
    uint64_t n = 0;

    (void)state;
    put("{\"format\": {\"type\": \"any_text\", \"excludes\": [");
    for (uint32_t i = 0; i < 64; i++) {
        put(i ? ", \"" : "\"");
        for (uint32_t k = 0; k < 32; k++)
            assert_ok(buf_printf(&text, "\\u%04x", 0x100 + rng_u32(1, n++) % 255));
        put("\"");
    }
    put("]}}");
    enum status s = make(GRAMMAR_TAGS);
    if (s != OK && s != ERR_TOO_LARGE)
        fail_msg("%s: %s", status_name(s), buf_str(&why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_of_a_large_vocabulary_end),
        cmocka_unit_test(references_end_where_their_text_ends),
        cmocka_unit_test(free_texts_of_many_strings_end),
        cmocka_unit_test(schemas_in_schemas_do_not_multiply),
        cmocka_unit_test(joined_schemas_have_a_bound),
        cmocka_unit_test(choices_of_schemas_have_a_bound),
        cmocka_unit_test(checks_of_values_have_a_bound),
        cmocka_unit_test(patterns_of_values_have_a_bound),
        cmocka_unit_test(long_lists_of_values_are_made),
        cmocka_unit_test(opposites_and_conditions_have_a_bound),
        cmocka_unit_test(equal_values_in_other_words_do_not_exclude),
        cmocka_unit_test(names_that_are_required_twice_come_once),
        cmocka_unit_test(expressions_end_where_their_text_ends),
        cmocka_unit_test(long_sources_are_too_large),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(chains_of_rules_are_read_in_one_pass),
        cmocka_unit_test(repetitions_have_bounds),
        cmocka_unit_test(an_object_has_up_to_1000_properties),
        cmocka_unit_test(work_is_that_of_the_answer_alone),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
