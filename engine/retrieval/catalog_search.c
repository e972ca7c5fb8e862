/* catalog_search.c - the documents whose words fit a query best.
 *
 * One FTS5 index holds the words of all tenants. Rows of one tenant are one range, and FTS5 seeks
 * to it. Scores must not depend on documents that the tenant cannot see (promise P5), so how often
 * a word occurs is counted in the visible ranges. */
#include "engine/retrieval/catalog_inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_WORDS_MAX 64             /* distinct words of a query; further ones are ignored */
#define WORD_BYTES_MAX 128         /* a longer word is ignored */
#define QUERY_BYTES_MAX (1u << 20) /* what is behind them is ignored */
#define MATCH_BYTES_MAX (2 * N_WORDS_MAX * (WORD_BYTES_MAX + 6) + 64)

/* The usual values of BM25. */
#define K1 1.2
#define B 0.75
#define TITLE_WEIGHT 2.0 /* a word of the title counts as so many of the text */

struct word {
    char text[WORD_BYTES_MAX + 1];
    bool is_stop;
    double idf;
};

struct range {
    int64_t first, last;
};

struct search {
    struct catalog *c;
    struct store_link *link;
    struct store_fits *fits; /* NULL: no filter */
    int64_t own;             /* number of the tenant; its ids hide those of public documents */
    int64_t now_s;
    struct range ranges[2];
    uint32_t n_ranges;
    int64_t n_documents;
    double mean_words;
    struct word words[N_WORDS_MAX];
    uint32_t n_words, n_plain; /* n_plain: without stop words */
    struct buf match;
    struct catalog_hit *hits; /* best first */
    uint32_t k, n;
};

/* --- words --- */

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
    struct search *q = arg;
    struct word *w = &q->words[q->n_words];

    if (len > WORD_BYTES_MAX || memchr(text, '\0', len) || memchr(text, '"', len))
        return true;
    memcpy(w->text, text, len);
    w->text[len] = '\0';
    w->is_stop = is_stop_word(w->text);
    for (uint32_t i = 0; i < q->n_words; i++)
        if (strcmp(q->words[i].text, w->text) == 0)
            return true;
    q->n_words++;
    q->n_plain += !w->is_stop;
    return q->n_words < N_WORDS_MAX;
}

/* Leave out stop words where other words are left. */
static void drop_stop_words(struct search *q)
{
    uint32_t n = 0;

    if (q->n_plain == 0 || q->n_plain == q->n_words)
        return;
    for (uint32_t i = 0; i < q->n_words; i++)
        if (!q->words[i].is_stop)
            q->words[n++] = q->words[i];
    q->n_words = n;
}

/* --- statistics of the visible documents --- */

static enum status count_documents(struct search *q, struct buf *why)
{
    int64_t n_words = 0;
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < q->n_ranges; i++) {
        struct store_rows r;
        bool has_row;

        s = store_query(&r, q->link, RANGE_COUNTS,
                        STORE_VALUES(store_int(q->ranges[i].first >> COUNT_BITS)), why);
        if (s != OK)
            break;
        if ((s = store_next(&r, &has_row, why)) == OK && has_row) {
            q->n_documents += store_get_int(&r, 0);
            n_words += store_get_int(&r, 1);
        }
        store_end(&r);
    }
    q->mean_words =
        q->n_documents > 0 && n_words > 0 ? (double)n_words / (double)q->n_documents : 1;
    return s;
}

/* Set the idf of a word; 0 if no visible document has it. */
static enum status weigh_word(struct search *q, struct word *w, struct buf *why)
{
    char match[WORD_BYTES_MAX + 3];
    int64_t df = 0;

    snprintf(match, sizeof match, "\"%s\"", w->text);
    for (uint32_t i = 0; i < q->n_ranges; i++) {
        int64_t n = 0;
        enum status s = store_run_int(q->link, COUNT_MATCHES,
                                      STORE_VALUES(store_str(match), store_int(q->ranges[i].first),
                                                   store_int(q->ranges[i].last)),
                                      &n, why);
        if (s != OK)
            return s;
        df += n;
    }
    double rest = (double)(q->n_documents > df ? q->n_documents - df : 0);
    w->idf = df > 0 ? log(1 + (rest + 0.5) / ((double)df + 0.5)) : 0;
    return OK;
}

static enum status weigh_words(struct search *q, struct buf *why)
{
    uint32_t n = 0;
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < q->n_words; i++) {
        s = weigh_word(q, &q->words[i], why);
        if (q->words[i].idf > 0)
            q->words[n++] = q->words[i];
    }
    q->n_words = n;
    return s;
}

/* --- hits --- */

static bool is_better(double score, int64_t row, const struct catalog_hit *than)
{
    return score != than->score ? score > than->score : row < than->row;
}

static void insert_hit(struct search *q, int64_t row, double score)
{
    uint32_t i = q->n < q->k ? q->n++ : q->k - 1;

    for (; i > 0 && is_better(score, row, &q->hits[i - 1]); i--)
        q->hits[i] = q->hits[i - 1];
    q->hits[i] = (struct catalog_hit){row, score};
}

static enum status row_fits(struct search *q, int64_t row, bool *yes, struct buf *why)
{
    int64_t found = 0;
    enum status s = store_run_int(
        q->link, ROW_FITS,
        STORE_VALUES(store_int(row), store_int(q->now_s), store_fits(q->fits), store_int(q->own)),
        &found, why);

    *yes = found != 0;
    return s;
}

/* Take the best `limit` matches of a range and keep those that fit. *is_done: further matches
 * cannot change the hits. */
static enum status take_matches(struct search *q, const struct range *range,
                                const struct store_bm25 *bm25, int64_t limit, bool *is_done,
                                struct buf *why)
{
    struct store_rows r;
    bool has_row, fits;
    int64_t n = 0;
    enum status s =
        store_query(&r, q->link, SCORE_MATCHES,
                    STORE_VALUES(store_text(q->match.data, q->match.len), store_int(range->first),
                                 store_int(range->last), store_bm25(bm25), store_int(limit)),
                    why);
    if (s != OK)
        return s;
    *is_done = true;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        int64_t row = store_get_int(&r, 0);
        double score = store_get_real(&r, 1);

        if (q->n == q->k && !is_better(score, row, &q->hits[q->k - 1]))
            break;
        if ((s = row_fits(q, row, &fits, why)) != OK)
            break;
        if (fits)
            insert_hit(q, row, score);
        *is_done = ++n < limit;
    }
    store_end(&r);
    return s;
}

/* SQLite keeps only the best `limit` matches while it sorts. Documents that do not fit need more. */
static enum status search_range(struct search *q, const struct range *range,
                                const struct store_bm25 *bm25, struct buf *why)
{
    uint32_t n_before = q->n;
    struct catalog_hit *before = NULL;
    int64_t limit = 2 * (int64_t)q->k + 16;
    bool is_done = false;
    enum status s = OK;

    if (n_before > 0) {
        before = malloc(n_before * sizeof *before);
        if (!before)
            return buf_why(why, ERR_NOMEM, "out of memory");
        memcpy(before, q->hits, n_before * sizeof *before);
    }
    for (; s == OK && !is_done; limit *= 16) {
        q->n = n_before;
        if (before)
            memcpy(q->hits, before, n_before * sizeof *before);
        s = take_matches(q, range, bm25, limit, &is_done, why);
    }
    free(before);
    return s;
}

static enum status search_words(struct search *q, struct buf *why)
{
    double idf[N_WORDS_MAX];
    struct store_bm25 bm25 = {.k1 = K1,
                              .b = B,
                              .mean_words = q->mean_words,
                              .weights = {TITLE_WEIGHT, 1},
                              .n_phrases = q->n_words,
                              .idf = idf};
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < q->n_words; i++) {
        idf[i] = q->words[i].idf;
        s = buf_printf(&q->match, "%s\"%s\"", i > 0 ? " OR " : "", q->words[i].text);
    }
    if (s != OK)
        return buf_why(why, s, "out of memory");
    for (uint32_t i = 0; s == OK && i < q->n_ranges; i++)
        s = search_range(q, &q->ranges[i], &bm25, why);
    return s;
}

/* --- the search --- */

static void add_range(struct search *q, int64_t tenant)
{
    int64_t first = tenant << COUNT_BITS;

    q->ranges[q->n_ranges++] = (struct range){first, first + UINT32_MAX};
}

static enum status run(struct search *q, const struct catalog_scope *scope, const char *query,
                       size_t len, struct buf *why)
{
    enum status s = catalog_find_tenant(q->link, scope->tenant, &q->own, why);

    if (s != OK)
        return s;
    if (scope->own && q->own != NO_TENANT)
        add_range(q, q->own);
    if (scope->public && !(scope->own && q->own == PUBLIC_TENANT))
        add_range(q, PUBLIC_TENANT);
    s = store_words(q->link, query, len < QUERY_BYTES_MAX ? len : QUERY_BYTES_MAX, add_word, q,
                    why);
    if (s != OK)
        return s;
    drop_stop_words(q);
    s = count_documents(q, why);
    if (s == OK)
        s = weigh_words(q, why);
    return s == OK && q->n_words > 0 ? search_words(q, why) : s;
}

enum status catalog_search_text(struct catalog *c, const struct catalog_scope *scope,
                                const char *query, size_t len, const struct json *filter,
                                uint32_t k, struct catalog_hit *hits, uint32_t *n, struct buf *why)
{
    struct store_fits fits = {catalog_filter_fits, (void *)filter};
    struct search *q;
    enum status s = filter ? catalog_check_filter(filter, why) : OK;

    *n = 0;
    if (s != OK || k == 0)
        return s;
    if (!(q = calloc(1, sizeof *q)))
        return buf_why(why, ERR_NOMEM, "out of memory");
    q->c = c;
    q->fits = filter ? &fits : NULL;
    q->now_s = catalog_now_s();
    q->hits = hits;
    q->k = k;
    buf_init(&q->match, MATCH_BYTES_MAX);
    q->link = store_reader(c->store);
    s = run(q, scope, query, len, why);
    store_put_back(c->store, q->link);
    *n = s == OK ? q->n : 0;
    buf_fini(&q->match);
    free(q);
    return s;
}

enum status catalog_filter_rows(struct catalog *c, const struct json *filter, int64_t *rows,
                                uint32_t n, uint32_t *n_left, struct buf *why)
{
    struct store_fits fits = {catalog_filter_fits, (void *)filter};
    struct search q = {.fits = filter ? &fits : NULL, .now_s = catalog_now_s(), .own = NO_TENANT};
    bool yes;
    enum status s = filter ? catalog_check_filter(filter, why) : OK;

    *n_left = 0;
    if (s != OK)
        return s;
    q.link = store_reader(c->store);
    for (uint32_t i = 0; s == OK && i < n; i++)
        if ((s = row_fits(&q, rows[i], &yes, why)) == OK && yes)
            rows[(*n_left)++] = rows[i];
    store_put_back(c->store, q.link);
    return s;
}
