/* test_catalog_search.c - text search and filters, against a search written out plainly. */
#include "tests/unit/engine/retrieval/catalog_world.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

static struct catalog *c; /* in memory, fresh for each test */
static char words[512];
static struct buf why;
static struct catalog_hit hits[64];
static uint32_t n_hits;

static int open_catalog(void **state)
{
    (void)state;
    buf_init(&why, sizeof words);
    return catalog_open(&c, NULL, 0, NULL) == OK ? 0 : 1;
}

static int close_catalog(void **state)
{
    (void)state;
    catalog_close(c);
    buf_fini(&why);
    return 0;
}

/* The ids of the hits, best first. */
static const char *search_in(const struct catalog_scope *scope, const char *query, size_t len,
                             const char *filter_text)
{
    static char ids[4096];
    struct json *filter = filter_text ? parse(filter_text) : NULL;
    struct document d;

    ids[0] = '\0';
    document_init(&d);
    assert_ok(catalog_search_text(c, scope, query, len, filter, 64, hits, &n_hits, &why));
    for (uint32_t i = 0; i < n_hits; i++) {
        assert_ok(catalog_get_row(c, hits[i].row, &d, NULL));
        snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%s ", d.tenant[0] ? "" : "+",
                 d.id);
        assert_true(hits[i].score > 0 && (i == 0 || hits[i].score <= hits[i - 1].score));
    }
    document_fini(&d);
    js_unref(filter);
    return ids;
}

static const char *search(const char *tenant, const char *query)
{
    const struct catalog_scope scope = {.tenant = tenant, .own = true, .public = true};

    return search_in(&scope, query, strlen(query), NULL);
}

static void documents_are_found_by_their_words(void **state)
{
    (void)state;
    put(c, "t", "cats", "Cats sleep all day. A cat purrs.");
    put(c, "t", "dogs", "Dogs bark and run, and a dog digs.");
    put_with(c, "t", "title", "Caf\xc3\xa9 des Chats", "Coffee with animals", "", 0);
    assert_string_equal(search("t", "Which DOG barks?"), "dogs ");
    assert_string_equal(search("t", "cafe"), "title ");
    assert_string_equal(search("t", "CAF\xc3\x89"), "title ");
    assert_string_equal(search("t", "elephants"), "");
    put(c, "t", "dogs", "Now about elephants"); /* the old words are gone */
    assert_string_equal(search("t", "dog"), "");
    assert_string_equal(search("t", "elephants"), "dogs ");
}

static void a_word_of_the_title_counts_more(void **state)
{
    (void)state;
    put_with(c, "t", "text", "Something", "Here is a zebra among others in the text", "", 0);
    put_with(c, "t", "title", "Zebra", "Here is something among others in the text", "", 0);
    put_with(c, "t", "none", "Other", "Here is nothing", "", 0);
    assert_string_equal(search("t", "zebra"), "title text ");
}

static void stop_words_count_only_where_nothing_else_is_left(void **state)
{
    (void)state;
    put(c, "t", "a", "the who and the what");
    put(c, "t", "b", "rabbits");
    assert_string_equal(search("t", "what about the rabbits"), "b ");
    assert_string_equal(search("t", "The Who"), "a ");
}

static void any_text_is_a_legal_query(void **state)
{
    static const char *const queries[] = {
        "",
        " ",
        "\"",
        "\"\"\"",
        "'",
        "AND",
        "OR NOT AND",
        "NEAR(a b, 2)",
        "title : x",
        "{title text} : x",
        "-zebra",
        "^zebra",
        "zebra*",
        "zebra OR",
        "(zebra",
        "zebra)",
        "a AND (b OR",
        "*",
        "\\",
        "%s%n",
        "?1 ?2",
        "';DROP TABLE words;--",
        "\xff\xfe zebra \xc3",
        "\xe2\x80\x9czebra\xe2\x80\x9d",
        "zebra + zebra",
        "text:zebra",
        "words MATCH 'zebra'",
    };
    const struct catalog_scope scope = {.tenant = "t", .own = true};
    (void)state;

    put(c, "t", "z", "zebra or not and near title");
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        search("t", queries[i]);
        if (strstr(queries[i], "zebra"))
            assert_int_equal(n_hits, 1);
    }
    assert_string_equal(search_in(&scope, "\0\0zebra\0\"", 9, NULL), "z ");
}

static void a_query_of_a_megabyte_is_bounded(void **state)
{
    const struct catalog_scope scope = {.tenant = "t", .own = true, .public = true};
    size_t len = 0, size = 1200000;
    char *query = malloc(size);
    (void)state;

    put(c, "t", "a", "w0 text");
    put(c, "t", "b", "w99999 text");
    for (uint32_t i = 0; len + 32 < size; i++)
        len += (size_t)sprintf(query + len, "w%u ", i % 120000);
    assert_string_equal(search_in(&scope, query, len, NULL), "a ");
    memset(query, 'x', size); /* one word */
    assert_string_equal(search_in(&scope, query, size, NULL), "");
    memset(query, '"', size);
    assert_string_equal(search_in(&scope, query, size, NULL), "");
    free(query);
}

/* Promise P5: neither hits nor scores depend on what other tenants have. */
static void another_tenants_documents_change_nothing(void **state)
{
    struct catalog_hit before[4];
    uint32_t n;
    (void)state;

    put(c, "t", "a", "alpha beta gamma");
    put(c, "t", "b", "alpha delta");
    put(c, "", "p", "alpha epsilon");
    assert_string_equal(search("t", "alpha beta"), "a +p b ");
    memcpy(before, hits, sizeof before);
    n = n_hits;
    for (int i = 0; i < 50; i++)
        put(c, "u", (char[]){(char)('0' + i), 0}, "beta beta alpha");
    assert_string_equal(search("t", "alpha beta"), "a +p b ");
    assert_memory_equal(hits, before, n * sizeof before[0]);
    assert_string_equal(search("v", "beta"), "");
    assert_string_equal(search("v", "alpha"), "+p ");
}

static void the_scope_chooses_own_and_public_documents(void **state)
{
    const struct catalog_scope own = {.tenant = "t", .own = true},
                               public = {.tenant = "t", .public = true}, none = {.tenant = "t"},
                               only = {.tenant = "", .own = true, .public = true};
    (void)state;

    put(c, "t", "a", "zebra");
    put(c, "", "p", "zebra");
    put(c, "", "a", "zebra zebra"); /* hidden from t by its own */
    assert_string_equal(search("t", "zebra"), "+p a ");
    assert_string_equal(search_in(&own, "zebra", 5, NULL), "a ");
    assert_string_equal(search_in(&public, "zebra", 5, NULL), "+p ");
    assert_string_equal(search_in(&none, "zebra", 5, NULL), "");
    assert_string_equal(search_in(&only, "zebra", 5, NULL), "+a +p ");
}

/* --- filters --- */

static const char *filtered(const char *filter)
{
    const struct catalog_scope scope = {.tenant = "t", .own = true};

    return search_in(&scope, "x", 1, filter);
}

static void filters_compare_attributes(void **state)
{
    (void)state;
    put_with(c, "t", "a", "", "x", "{\"year\": 2020, \"lang\": \"en\", \"ok\": true}", 0);
    put_with(c, "t", "b", "", "x", "{\"year\": 2021.5, \"lang\": \"de\", \"ok\": false}", 0);
    put_with(c, "t", "c", "", "x", "{\"year\": \"2020\", \"l\\\"q\": \"q\", \"list\": [1]}", 0);
    put_with(c, "t", "d", "", "x", "", 0);
#define F(type, key, value) "{\"type\": \"" type "\", \"key\": \"" key "\", \"value\": " value "}"
    assert_string_equal(filtered(F("eq", "year", "2020")), "a ");
    assert_string_equal(filtered(F("eq", "year", "2020.0")), "a ");
    assert_string_equal(filtered(F("eq", "year", "\"2020\"")), "c ");
    assert_string_equal(filtered(F("ne", "year", "2020")), "b c d ");
    assert_string_equal(filtered(F("gt", "year", "2020")), "b ");
    assert_string_equal(filtered(F("gte", "year", "2020")), "a b ");
    assert_string_equal(filtered(F("lt", "year", "2021.5")), "a ");
    assert_string_equal(filtered(F("lte", "year", "2021.5")), "a b ");
    assert_string_equal(filtered(F("lt", "lang", "\"en\"")), "b ");
    assert_string_equal(filtered(F("in", "lang", "[\"en\", \"fr\", 3]")), "a ");
    assert_string_equal(filtered(F("nin", "lang", "[\"en\"]")), "b c d ");
    assert_string_equal(filtered(F("in", "lang", "[]")), "");
    assert_string_equal(filtered(F("eq", "ok", "true")), "a ");
    assert_string_equal(filtered(F("ne", "ok", "true")), "b c d ");
    assert_string_equal(filtered(F("eq", "ok", "1")), "");
    assert_string_equal(filtered(F("eq", "list", "1")), "");
    assert_string_equal(filtered("{\"lang\": \"en\", \"year\": 2020}"), "a ");
    assert_string_equal(filtered("{\"l\\\"q\": \"q\"}"), "c ");
    assert_string_equal(filtered("{\"type\": \"en\"}"), "");
    assert_string_equal(filtered("{}"), "a b c d ");
    assert_string_equal(filtered("{\"type\": \"or\", \"filters\": [{\"lang\": \"en\"}, {\"type\": "
                                 "\"and\", \"filters\": [{\"lang\": \"de\"}, {\"ok\": false}]}]}"),
                        "a b ");
}

static enum status check(const char *filter)
{
    struct json *j = parse(filter);
    enum status s = catalog_check_filter(j, &why);

    js_unref(j);
    return s;
}

static void wrong_filters_are_named(void **state)
{
    char deep[2048] = "";
    struct json *j;
    uint32_t n;
    (void)state;

    assert_int_equal(check("[]"), ERR_INVALID);
    assert_int_equal(check(F("equals", "a", "1")), ERR_INVALID);
    assert_string_equal(why.data, "type: \"equals\" is none of eq, ne, gt, gte, lt, lte, in, nin, "
                                  "and, or");
    assert_int_equal(check("{\"type\": \"eq\", \"key\": 1, \"value\": 1}"), ERR_INVALID);
    assert_int_equal(check("{\"type\": \"eq\", \"key\": \"a\"}"), ERR_INVALID);
    assert_int_equal(check("{\"type\": \"eq\\u0000\", \"key\": \"a\", \"value\": 1}"), ERR_INVALID);
    assert_int_equal(check(F("eq", "a\\u0000b", "1")), ERR_INVALID);
    assert_int_equal(check(F("eq", "a", "null")), ERR_INVALID);
    assert_int_equal(check(F("gt", "a", "true")), ERR_INVALID);
    assert_int_equal(check(F("in", "a", "1")), ERR_INVALID);
    assert_string_equal(why.data, "value: \"in\" needs an array");
    assert_int_equal(check(F("in", "a", "[[1]]")), ERR_INVALID);
    assert_int_equal(check("{\"type\": \"and\", \"filters\": []}"), ERR_INVALID);
    assert_int_equal(check("{\"type\": \"and\", \"key\": \"a\", \"filters\": 5}"), ERR_INVALID);
    assert_int_equal(check("{\"a\": {\"b\": 1}}"), ERR_INVALID);
    for (int i = 0; i < 30; i++)
        strcat(deep, "{\"type\": \"and\", \"filters\": [");
    strcat(deep, "{}");
    for (int i = 0; i < 30; i++)
        strcat(deep, "]}");
    assert_int_equal(check(deep), ERR_TOO_LARGE);
    j = parse("[]");
    assert_int_equal(catalog_search_text(c, &(struct catalog_scope){.tenant = "t"}, "x", 1, j, 5,
                                         hits, &n, &why),
                     ERR_INVALID);
    js_unref(j);
}

static void rows_are_filtered_in_their_order(void **state)
{
    int64_t rows[4], gone;
    struct json *filter = parse("{\"k\": 1}");
    uint32_t n;
    (void)state;

    rows[0] = put_with(c, "t", "d", "", "x", "{\"k\": 1}", 0).row;
    rows[1] = put_with(c, "t", "c", "", "x", "{\"k\": 2}", 0).row;
    rows[2] = put_with(c, "", "b", "", "x", "{\"k\": 1}", 0).row;
    rows[3] = put_with(c, "t", "a", "", "x", "{\"k\": 1}", 1).row; /* expired */
    gone = rows[1];
    assert_ok(catalog_filter_rows(c, filter, rows, 4, &n, NULL));
    assert_int_equal(n, 2);
    assert_true(rows[0] >> 32 > 0 && rows[1] >> 32 == 0);
    assert_ok(catalog_filter_rows(c, NULL, &gone, 1, &n, NULL));
    assert_int_equal(n, 1);
    js_unref(filter);
}

/* --- against plain BM25 --- */

#define N_TERMS 40
#define N_TEXTS 400

struct text {
    int tenant; /* 0: public, 1: t, 2: u */
    uint32_t n_of[N_TERMS], n_title[N_TERMS], n_words;
    bool is_gone;
    int64_t row;
    char id[8];
    int group;
};
static struct text texts[N_TEXTS];

static bool is_visible(const struct text *x)
{
    return !x->is_gone && x->tenant != 2;
}

static bool is_hidden(const struct text *x)
{
    for (int i = 0; i < N_TEXTS; i++)
        if (x->tenant == 0 && texts[i].tenant == 1 && strcmp(texts[i].id, x->id) == 0 &&
            !texts[i].is_gone)
            return true;
    return false;
}

static double plain_score(const struct text *x, const bool *in_query)
{
    double score = 0, n = 0, n_words = 0;

    for (int i = 0; i < N_TEXTS; i++)
        if (is_visible(&texts[i])) {
            n++;
            n_words += texts[i].n_words;
        }
    for (int t = 0; t < N_TERMS; t++) {
        double df = 0, tf = 2.0 * x->n_title[t] + x->n_of[t] - x->n_title[t];
        for (int i = 0; i < N_TEXTS; i++)
            df += is_visible(&texts[i]) && texts[i].n_of[t] > 0;
        if (in_query[t] && tf > 0)
            score += log(1 + (n - df + 0.5) / (df + 0.5)) * tf * 2.2 /
                     (tf + 1.2 * (0.25 + 0.75 * x->n_words / (n_words / n)));
    }
    return score;
}

static void put_random_text(uint32_t seed, struct text *x)
{
    static const char *const tenants[] = {"", "t", "u"};
    char title[64] = "", text[1024] = "", metadata[32];
    uint32_t n = 5 + rng_u32(seed, 0) % 60;

    x->tenant = (int)(rng_u32(seed, 1) % 3);
    x->group = (int)(rng_u32(seed, 2) % 8);
    snprintf(x->id, sizeof x->id, "d%u", seed % 300); /* some ids occur twice */
    for (uint32_t i = 0; i < n + 2; i++) {
        float u = rng_uniform(seed, 10 + i);
        int t = (int)((float)N_TERMS * u * u * u); /* small terms are common */
        char *out = i < 2 ? title : text;

        sprintf(out + strlen(out), "w%dw ", t);
        x->n_of[t]++;
        x->n_title[t] += i < 2;
    }
    x->n_words = n + 2;
    sprintf(metadata, "{\"g\": %d}", x->group);
    for (int i = 0; &texts[i] < x; i++) /* the same id of one tenant: a new version */
        if (texts[i].tenant == x->tenant && strcmp(texts[i].id, x->id) == 0)
            texts[i].is_gone = true;
    x->row = put_with(c, tenants[x->tenant], x->id, title, text, metadata, 0).row;
}

static void check_query(uint32_t seed, uint32_t k, int group)
{
    const struct catalog_scope scope = {.tenant = "t", .own = true, .public = true};
    bool in_query[N_TERMS] = {false};
    char query[256] = "", filter_text[32];
    static double best[N_TEXTS];
    uint32_t n_best = 0, n;
    struct json *filter = NULL;

    for (uint32_t i = 0; i < 1 + seed % 7; i++) {
        uint32_t t = rng_u32(seed, i) % N_TERMS;
        in_query[t] = true;
        sprintf(query + strlen(query), "w%uw, ", t);
    }
    for (int i = 0; i < N_TEXTS; i++) {
        const struct text *x = &texts[i];
        double score = is_visible(x) && !is_hidden(x) && (group < 0 || x->group == group)
                           ? plain_score(x, in_query)
                           : 0;
        uint32_t j = n_best;
        if (score == 0)
            continue;
        for (n_best++; j > 0 && best[j - 1] < score; j--)
            best[j] = best[j - 1];
        best[j] = score;
    }
    snprintf(filter_text, sizeof filter_text, "{\"g\": %d}", group);
    if (group >= 0)
        filter = parse(filter_text);
    assert_ok(catalog_search_text(c, &scope, query, strlen(query), filter, k, hits, &n, &why));
    assert_int_equal(n, n_best < k ? n_best : k);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(fabs(hits[i].score - best[i]) < 1e-9);
        for (int t = 0; t < N_TEXTS; t++)
            if (texts[t].row == hits[i].row && !texts[t].is_gone)
                assert_true(fabs(plain_score(&texts[t], in_query) - hits[i].score) < 1e-9);
    }
    js_unref(filter);
}

static void hits_and_scores_are_those_of_plain_bm25(void **state)
{
    (void)state;
    memset(texts, 0, sizeof texts);
    assert_ok(catalog_begin(c, NULL));
    for (uint32_t i = 0; i < N_TEXTS; i++)
        put_random_text(1000 + i, &texts[i]);
    assert_ok(catalog_commit(c, NULL));
    for (uint32_t i = 0; i < 30; i++) {
        check_query(i, 1 + i % 9, -1);
        check_query(i, 1 + i % 5, (int)(i % 9)); /* group 8 has no document */
        check_query(i, 64, -1);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, open_catalog, close_catalog)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(documents_are_found_by_their_words),
        T(a_word_of_the_title_counts_more),
        T(stop_words_count_only_where_nothing_else_is_left),
        T(any_text_is_a_legal_query),
        T(a_query_of_a_megabyte_is_bounded),
        T(another_tenants_documents_change_nothing),
        T(the_scope_chooses_own_and_public_documents),
        T(filters_compare_attributes),
        T(wrong_filters_are_named),
        T(rows_are_filtered_in_their_order),
        T(hits_and_scores_are_those_of_plain_bm25),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
