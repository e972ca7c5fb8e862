/* catalog_search.c - the documents whose words fit a query best.
 *
 * One FTS5 index holds the words of all tenants. Rows of one tenant are one range, and FTS5 seeks
 * to it.
 *
 * Common words match most documents but decide little. The search begins with documents that have
 * one of the rarest words, scored by all words. A document without these words scores at most the
 * sum of what each other word can give. Where the k-th hit is above that sum, the hits are exact;
 * else further words select too (Turtle and Flood, "Query Evaluation: Strategies and
 * Optimizations", 1995: MaxScore). */
#include "engine/retrieval/catalog_inner.h"

#include <stdlib.h>

#define MATCH_BYTES_MAX (2 * N_WORDS_MAX * (WORD_BYTES_MAX + 6) + 64)

/* The usual values of BM25. */
#define K1 1.2
#define B 0.75
#define TITLE_WEIGHT 2.0 /* a word of the title counts as so many of the text */

struct search {
    struct store_link *link;
    struct store_fits *fits; /* NULL: no filter */
    int64_t own;             /* number of the tenant; its ids hide those of public documents */
    int64_t now_s;
    struct query_words query; /* rarest first */
    struct buf match;
    double idf[STORE_N_PHRASES_MAX];
    double *best;             /* [k] for the scoring */
    struct catalog_hit *hits; /* best first */
    uint32_t k, n;
    enum status error; /* of a check during the scoring */
    struct buf *why;
};

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

/* Whether the row is visible, has not expired and passes the filter; arg is the search. */
static bool row_fits(void *arg, int64_t row)
{
    struct search *q = arg;
    int64_t found = 0;

    if (q->error == OK)
        q->error = store_run_int(q->link, ROW_FITS,
                                 STORE_VALUES(store_int(row), store_int(q->now_s),
                                              store_fits(q->fits), store_int(q->own)),
                                 &found, q->why);
    return found != 0;
}

/* --- matches --- */

static enum status list_words(struct search *q, uint32_t n)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = buf_printf(&q->match, "%s\"%s\"", i > 0 ? " OR " : "", q->query.words[i].text);
    return s;
}

/* Write the query of FTS5: documents that have one of the first n_select words, scored by all. */
static enum status write_match(struct search *q, uint32_t n_select, struct store_bm25 *bm25,
                               struct buf *why)
{
    uint32_t n = q->query.n, n_ignored = n_select < n ? n_select : 0;
    enum status s = OK;

    buf_reset(&q->match);
    if (n_ignored > 0 && (s = buf_puts(&q->match, "(")) == OK &&
        (s = list_words(q, n_select)) == OK)
        s = buf_puts(&q->match, ") AND (");
    if (s == OK)
        s = list_words(q, n);
    if (s == OK && n_ignored > 0)
        s = buf_puts(&q->match, ")");
    for (uint32_t i = 0; i < n_ignored + n; i++)
        q->idf[i] = i < n_ignored ? 0 : q->query.words[i - n_ignored].idf;
    *bm25 = (struct store_bm25){.k1 = K1,
                                .b = B,
                                .mean_words = q->query.mean_words,
                                .weights = {TITLE_WEIGHT, 1},
                                .n_phrases = n_ignored + n,
                                .idf = q->idf,
                                .best = q->best,
                                .n_best = q->n,
                                .n_best_max = q->k,
                                .fits = row_fits,
                                .arg = q};
    for (uint32_t i = 0; i < q->n; i++) /* the least one first is a heap */
        q->best[i] = q->hits[q->n - 1 - i].score;
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

static enum status take_matches(struct search *q, const struct row_range *range, uint32_t n_select,
                                struct buf *why)
{
    struct store_bm25 bm25;
    struct store_rows r;
    bool has_row;
    enum status s = write_match(q, n_select, &bm25, why);

    if (s != OK)
        return s;
    s = store_query(&r, q->link, SCORE_MATCHES,
                    STORE_VALUES(store_text(q->match.data, q->match.len), store_int(range->first),
                                 store_int(range->last), store_bm25(&bm25), store_int(q->k)),
                    why);
    if (s != OK)
        return s;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        int64_t row = store_get_int(&r, 0);
        double score = store_get_real(&r, 1);

        if (score == 0 || (q->n == q->k && !is_better(score, row, &q->hits[q->k - 1])))
            break;
        insert_hit(q, row, score);
    }
    store_end(&r);
    return s == OK ? q->error : s;
}

/* Return the number of rarest words that select every document which can still become a hit. */
static uint32_t count_needed_words(const struct search *q)
{
    uint32_t n = q->query.n;
    double most = 0; /* that the words from n on can give */

    if (q->n < q->k)
        return n;
    while (n > 0 && (most += q->query.words[n - 1].idf * (K1 + 1)) < q->hits[q->k - 1].score)
        n--;
    return n;
}

/* The words to begin with: those of some more documents than hits. */
static uint32_t count_first_words(const struct search *q)
{
    int64_t n_documents = 0;
    uint32_t n = 0;

    while (n < q->query.n && n_documents < 4 * (int64_t)q->k + 32)
        n_documents += q->query.words[n++].n_documents;
    return n;
}

/* Join the best of a range with the hits of the ranges before. */
static enum status search_range(struct search *q, const struct row_range *range, struct buf *why)
{
    struct catalog_hit *before = malloc((q->n + 1) * sizeof *before);
    uint32_t n_before = q->n, n_select = 0, n_needed = count_first_words(q);
    enum status s = before ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    if (before)
        memcpy(before, q->hits, n_before * sizeof *before);
    while (s == OK && n_needed > n_select) {
        n_select = n_needed;
        q->n = n_before;
        memcpy(q->hits, before, n_before * sizeof *before);
        s = take_matches(q, range, n_select, why);
        n_needed = count_needed_words(q);
    }
    free(before);
    return s;
}

/* --- the search --- */

static struct row_range range_of(int64_t tenant)
{
    int64_t first = tenant << COUNT_BITS;

    return (struct row_range){.first = first, .last = first + UINT32_MAX};
}

static enum status run(struct catalog *c, struct search *q, const struct catalog_scope *scope,
                       const char *query, size_t len, struct buf *why)
{
    struct row_range ranges[2];
    uint32_t n_ranges = 0;
    enum status s = catalog_find_tenant(q->link, scope->tenant, &q->own, why);

    if (s != OK)
        return s;
    if (scope->own && q->own != NO_TENANT)
        ranges[n_ranges++] = range_of(q->own);
    if (scope->public && !(scope->own && q->own == PUBLIC_TENANT))
        ranges[n_ranges++] = range_of(PUBLIC_TENANT);
    s = catalog_read_query(c, q->link, query, len, ranges, n_ranges, &q->query, why);
    for (uint32_t i = 0; s == OK && i < n_ranges && q->query.n > 0; i++)
        s = search_range(q, &ranges[i], why);
    return s;
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
    q->fits = filter ? &fits : NULL;
    q->now_s = catalog_now_s();
    q->hits = hits;
    q->k = k;
    q->why = why;
    buf_init(&q->match, MATCH_BYTES_MAX);
    q->link = store_reader(c->store);
    q->best = malloc(k * sizeof q->best[0]);
    s = q->best ? run(c, q, scope, query, len, why) : buf_why(why, ERR_NOMEM, "out of memory");
    store_put_back(c->store, q->link);
    free(q->best);
    *n = s == OK ? q->n : 0;
    buf_fini(&q->match);
    free(q);
    return s;
}

enum status catalog_filter_rows(struct catalog *c, const struct json *filter, int64_t *rows,
                                uint32_t n, uint32_t *n_left, struct buf *why)
{
    struct store_fits fits = {catalog_filter_fits, (void *)filter};
    struct search q = {
        .fits = filter ? &fits : NULL, .now_s = catalog_now_s(), .own = NO_TENANT, .why = why};
    enum status s = filter ? catalog_check_filter(filter, why) : OK;

    *n_left = 0;
    if (s != OK)
        return s;
    q.link = store_reader(c->store);
    for (uint32_t i = 0; i < n; i++)
        if (row_fits(&q, rows[i]))
            rows[(*n_left)++] = rows[i];
    store_put_back(c->store, q.link);
    return q.error;
}
