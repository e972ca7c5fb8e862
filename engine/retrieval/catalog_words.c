/* catalog_words.c - the words of a query, and how much each one tells.
 *
 * Scores must not depend on documents that the tenant cannot see (promise P5), so the documents
 * that have a word are counted in the visible rows only. A count visits all of them; it is kept in
 * memory as long as the tenant's documents do not change. */
#include "engine/retrieval/catalog_inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define QUERY_BYTES_MAX (1u << 20) /* further bytes are ignored */

/* Words of questions and of grammar: nearly every text has them. */
static const char *const stop_words[] = {
    "a",   "about", "an",   "and",   "are",  "as",    "at",    "be",   "by",   "can",
    "did", "do",    "does", "for",   "from", "had",   "has",   "have", "how",  "i",
    "in",  "is",    "it",   "its",   "many", "me",    "much",  "my",   "of",   "on",
    "or",  "s",     "t",    "that",  "the",  "their", "there", "they", "this", "to",
    "was", "we",    "were", "what",  "when", "where", "which", "who",  "whom", "whose",
    "why", "will",  "with", "would", "you",  "your",
};

static int compare_words(const void *a, const void *b)
{
    return strcmp(a, *(const char *const *)b);
}

static bool is_stop_word(const char *word)
{
    return bsearch(word, stop_words, sizeof stop_words / sizeof *stop_words, sizeof *stop_words,
                   compare_words) != NULL;
}

static bool add_word(void *arg, const char *text, size_t len)
{
    struct query_words *q = arg;
    struct query_word *w = &q->words[q->n];

    if (len > WORD_BYTES_MAX || memchr(text, '\0', len) || memchr(text, '"', len))
        return true;
    memcpy(w->text, text, len);
    w->text[len] = '\0';
    w->is_stop = is_stop_word(w->text);
    for (uint32_t i = 0; i < q->n; i++)
        if (strcmp(q->words[i].text, w->text) == 0)
            return true;
    return ++q->n < N_WORDS_MAX;
}

/* Leave out stop words where other words are left. */
static void drop_stop_words(struct query_words *q)
{
    uint32_t n = 0, n_stop = 0;

    for (uint32_t i = 0; i < q->n; i++)
        n_stop += q->words[i].is_stop;
    if (n_stop == q->n)
        return;
    for (uint32_t i = 0; i < q->n; i++)
        if (!q->words[i].is_stop)
            q->words[n++] = q->words[i];
    q->n = n;
}

/* --- counts --- */

/* Read how many documents, words and changes a range has. */
static enum status read_counts(struct store_link *link, struct row_range *range,
                               struct query_words *q, int64_t *n_words, struct buf *why)
{
    struct store_rows r;
    bool has_row;
    enum status s = store_query(&r, link, RANGE_COUNTS,
                                STORE_VALUES(store_int(range->first >> COUNT_BITS)), why);

    if (s != OK)
        return s;
    if ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        q->n_documents += store_get_int(&r, 0);
        *n_words += store_get_int(&r, 1);
        range->n_changes = store_get_int(&r, 2);
    }
    store_end(&r);
    return s;
}

/* FNV-1a. Two words with one key would share a count: scores would be a little off. */
static uint64_t count_key(const struct row_range *range, const char *word)
{
    uint64_t key =
        0xcbf29ce484222325u ^ (uint64_t)(range->first >> COUNT_BITS) * 0x9e3779b97f4a7c15u;

    for (; *word; word++)
        key = (key ^ (unsigned char)*word) * 0x100000001b3u;
    return key;
}

/* Count the documents of a range that have the word. */
static enum status count_word(struct catalog *c, struct store_link *link,
                              const struct row_range *range, const char *word, int64_t *n,
                              struct buf *why)
{
    char match[WORD_BYTES_MAX + 3];
    uint64_t key = count_key(range, word);
    struct kept_count *kept = &c->counts[(key ^ key >> 32) % N_COUNTS];
    bool is_kept;

    pthread_mutex_lock(&c->counts_lock);
    is_kept = kept->key == key && kept->n_changes == range->n_changes;
    *n = is_kept ? kept->n : 0;
    pthread_mutex_unlock(&c->counts_lock);
    if (is_kept)
        return OK;
    snprintf(match, sizeof match, "\"%s\"", word);
    enum status s = store_run_int(
        link, COUNT_MATCHES,
        STORE_VALUES(store_str(match), store_int(range->first), store_int(range->last)), n, why);
    if (s != OK)
        return s;
    pthread_mutex_lock(&c->counts_lock);
    *kept = (struct kept_count){.key = key, .n_changes = range->n_changes, .n = *n};
    pthread_mutex_unlock(&c->counts_lock);
    return OK;
}

static int compare_rarity(const void *a, const void *b)
{
    const struct query_word *x = a, *y = b;

    return x->n_documents != y->n_documents ? (x->n_documents > y->n_documents ? 1 : -1)
                                            : strcmp(x->text, y->text);
}

enum status catalog_read_query(struct catalog *c, struct store_link *link, const char *query,
                               size_t len, struct row_range *ranges, uint32_t n_ranges,
                               struct query_words *q, struct buf *why)
{
    int64_t n_words = 0, n;
    uint32_t n_found = 0;
    enum status s =
        store_words(link, query, len < QUERY_BYTES_MAX ? len : QUERY_BYTES_MAX, add_word, q, why);

    drop_stop_words(q);
    for (uint32_t i = 0; s == OK && i < n_ranges; i++)
        s = read_counts(link, &ranges[i], q, &n_words, why);
    q->mean_words =
        q->n_documents > 0 && n_words > 0 ? (double)n_words / (double)q->n_documents : 1;
    for (uint32_t i = 0; s == OK && i < q->n; i++) {
        struct query_word *w = &q->words[i];

        w->n_documents = 0;
        for (uint32_t j = 0; s == OK && j < n_ranges; j++)
            if ((s = count_word(c, link, &ranges[j], w->text, &n, why)) == OK)
                w->n_documents += n;
        double rest = (double)q->n_documents - (double)w->n_documents;
        w->idf = log(1 + ((rest > 0 ? rest : 0) + 0.5) / ((double)w->n_documents + 0.5));
        if (w->n_documents > 0)
            q->words[n_found++] = *w;
    }
    q->n = n_found;
    qsort(q->words, q->n, sizeof q->words[0], compare_rarity);
    return s;
}
