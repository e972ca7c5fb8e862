/* test_citations.c - marks that cite documents, in texts that come in pieces. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "server/api/citations.h"
#include "server/api/documents.h"

#define N_TITLES 6

static struct document_use documents[N_TITLES];

static int set_titles(void **state)
{
    static const char *const titles[N_TITLES] = {"Notes", "Notes on Vomta", "Kumn\xc3\xb6r",
                                                 "notes", "a [b]",          ""};

    (void)state;
    for (int i = 0; i < N_TITLES; i++) {
        buf_init(&documents[i].title, 100);
        assert_ok(buf_puts(&documents[i].title, titles[i]));
    }
    return 0;
}

static int free_titles(void **state)
{
    (void)state;
    for (int i = 0; i < N_TITLES; i++)
        buf_fini(&documents[i].title);
    return 0;
}

/* Check the marks of a text that comes in pieces of n bytes: "begin-end:document " for each. */
static void cites_in_pieces(const char *text, size_t n, const char *expected)
{
    struct citations *c;
    char got[400] = "";
    uint32_t n_found;

    assert_ok(citations_create(&c, documents, N_TITLES));
    for (size_t at = 0; at < strlen(text); at += n)
        assert_ok(citations_feed(c, text + at, strlen(text) - at < n ? strlen(text) - at : n));
    const struct citation *found = citations_found(c, &n_found);
    for (uint32_t i = 0; i < n_found; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d-%d:%u ", (int)found[i].begin,
                 (int)found[i].end, found[i].document);
    assert_string_equal(got, expected);
    citations_destroy(c);
}

static void cites(const char *text, const char *expected)
{
    for (size_t n = 1; n <= 7; n++)
        cites_in_pieces(text, n, expected);
    cites_in_pieces(text, strlen(text) + 1, expected);
}

static void a_title_in_brackets_cites_its_document(void **state)
{
    (void)state;
    cites("It is 7 [Notes on Vomta].", "8-24:1 ");
    cites("[Notes][Notes on Vomta] [Notes]", "0-7:0 7-23:1 24-31:0 ");
}

static void positions_count_characters_not_bytes(void **state)
{
    (void)state;
    cites("\xc3\xa9\xf0\x9f\x98\x80 [Kumn\xc3\xb6r] \xe2\x82\xac [Notes]", "3-11:2 14-21:0 ");
}

static void case_and_white_space_inside_the_brackets_do_not_matter(void **state)
{
    (void)state;
    cites("[ NOTES on vomta\n]", "0-18:1 ");
    cites("[         Notes]", ""); /* more than 8 */
}

static void the_first_of_equal_titles_is_cited(void **state)
{
    (void)state;
    cites("[notes]", "0-7:0 ");
}

static void titles_may_have_brackets(void **state)
{
    (void)state;
    cites("[a [b]]", "0-7:4 ");
    cites("[[Notes]]", "1-8:0 ");
}

static void brackets_that_name_no_document_are_text(void **state)
{
    (void)state;
    cites("[1] [] [Note] [Notes on] Notes] [Notes [x[Notes", "");
    cites("[unknown] and [Notes]", "14-21:0 ");
}

static void a_long_text_is_searched_in_little_memory(void **state)
{
    static char text[1000000];
    size_t n = sizeof text - 1;

    (void)state;
    memset(text, '[', n);
    memcpy(text + n - 7, "[Notes]", 7);
    cites_in_pieces(text, 4096, "999992-999999:0 ");
}

static void the_number_of_marks_is_bounded(void **state)
{
    struct citations *c;
    uint32_t n;

    (void)state;
    assert_ok(citations_create(&c, documents, N_TITLES));
    for (int i = 0; i < 2 * CITATIONS_N_MAX; i++)
        assert_ok(citations_feed(c, "[Notes]", 7));
    const struct citation *found = citations_found(c, &n);
    assert_int_equal(n, CITATIONS_N_MAX);
    assert_int_equal(found[n - 1].end, 7 * CITATIONS_N_MAX);
    citations_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_title_in_brackets_cites_its_document),
        cmocka_unit_test(positions_count_characters_not_bytes),
        cmocka_unit_test(case_and_white_space_inside_the_brackets_do_not_matter),
        cmocka_unit_test(the_first_of_equal_titles_is_cited),
        cmocka_unit_test(titles_may_have_brackets),
        cmocka_unit_test(brackets_that_name_no_document_are_text),
        cmocka_unit_test(a_long_text_is_searched_in_little_memory),
        cmocka_unit_test(the_number_of_marks_is_bounded),
    };
    return cmocka_run_group_tests(tests, set_titles, free_titles);
}
