/* fuzz_words.c - any bytes as a text that is cut into words for the search, and as a query.
 *
 * Checks beyond crashes: words are not empty; the words of a text are those that SQL counts; a text
 * in UTF-8, as all documents are, is found by each of its first words. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/store.h"
#include "base/utf8.h"
#include "tests/fuzz/fuzz.h"

#define WORD_BYTES_MAX 64
#define N_ASKED_MAX 20

enum { COUNT_WORDS, PUT, FIND, DROP };
static const char *const statements[] = {
    "SELECT n_words(?1)",
    "INSERT INTO words (rowid, text) VALUES (7, ?1)",
    "SELECT count(*) FROM words WHERE words MATCH ?1",
    "INSERT INTO words (words, rowid, text) VALUES ('delete', 7, ?1)",
};
static const char *const migrations[] = {
    "CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='" STORE_TOKENIZER "')",
};

static struct store *st;

struct words {
    int64_t n;
    uint32_t n_kept;
    char kept[N_ASKED_MAX][WORD_BYTES_MAX + 3]; /* in quotes */
};

static bool take_word(void *arg, const char *word, size_t len)
{
    struct words *w = arg;

    ASSERT(len > 0);
    w->n++;
    if (w->n_kept < N_ASKED_MAX && len <= WORD_BYTES_MAX && !memchr(word, '"', len) &&
        !memchr(word, '\0', len))
        snprintf(w->kept[w->n_kept++], sizeof w->kept[0], "\"%.*s\"", (int)len, word);
    return true;
}

static void open_store(void)
{
    static const struct store_config config = {.noun = "words",
                                               .application_id = 1,
                                               .migrations = migrations,
                                               .n_migrations = 1,
                                               .statements = statements,
                                               .n_statements = 4,
                                               .n_readers = 1};

    if (!st)
        ASSERT(store_open(&st, &config, NULL) == OK);
}

static bool is_utf8(const char *text, size_t size)
{
    uint32_t c;

    for (size_t at = 0, n; at < size; at += n)
        if ((n = utf8_decode(text + at, size - at, &c)) == 0)
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A copy of the exact size, so that a read behind the end is found. */
    char *text = malloc(size ? size : 1);
    struct words w = {0};
    struct store_link *link;
    int64_t n = -1;

    ASSERT(text);
    memcpy(text, data, size);
    open_store();
    ASSERT(store_begin(st, &link, NULL) == OK);
    ASSERT(store_words(link, text, size, take_word, &w, NULL) == OK);
    ASSERT(store_run_int(link, COUNT_WORDS, STORE_VALUES(store_text(text, size)), &n, NULL) == OK);
    ASSERT(n == w.n);
    ASSERT(store_run(link, PUT, STORE_VALUES(store_text(text, size)), NULL) == OK);
    for (uint32_t i = 0; i < w.n_kept && is_utf8(text, size); i++) {
        ASSERT(store_run_int(link, FIND, STORE_VALUES(store_str(w.kept[i])), &n, NULL) == OK);
        ASSERT(n == 1);
    }
    ASSERT(store_run(link, DROP, STORE_VALUES(store_text(text, size)), NULL) == OK);
    store_rollback(st);
    free(text);
    return 0;
}
