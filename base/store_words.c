/* store_words.c - the functions that SQL may call, and the words of a text. */
#include "base/store_inner.h"

static void sql_fits(sqlite3_context *c, int n, sqlite3_value **v)
{
    const struct store_fits *f = sqlite3_value_pointer(v[0], "store_fits");
    const void *text = sqlite3_value_blob(v[1]);

    (void)n;
    sqlite3_result_int(c, !f || f->f(f->arg, text ? text : "", (size_t)sqlite3_value_bytes(v[1])));
}

/* The weighted number of times that a phrase stands in the current row. */
static int count_phrase(const Fts5ExtensionApi *api, Fts5Context *row, int phrase,
                        const double *weights, double *out)
{
    Fts5PhraseIter it;
    int column, at;
    int code = api->xPhraseFirst(row, phrase, &it, &column, &at);

    *out = 0;
    for (; code == SQLITE_OK && column >= 0; api->xPhraseNext(row, &it, &column, &at))
        *out += column < STORE_N_COLUMNS_MAX ? weights[column] : 0;
    return code;
}

static double sum_scores(const struct store_bm25 *b, const double *tf, double k)
{
    double score = 0;

    for (uint32_t i = 0; i < b->n_phrases; i++)
        if (tf[i] > 0)
            score += b->idf[i] * tf[i] * (b->k1 + 1) / (tf[i] + k);
    return score;
}

static bool is_among_best(const struct store_bm25 *b, double score)
{
    return b->n_best < b->n_best_max || score > b->best[0];
}

/* best[] is a heap: no entry is greater than those at 2 i + 1 and 2 i + 2. */
static void add_best(struct store_bm25 *b, double score)
{
    uint32_t i, child;

    if (b->n_best < b->n_best_max) {
        for (i = b->n_best++; i > 0 && b->best[(i - 1) / 2] > score; i = (i - 1) / 2)
            b->best[i] = b->best[(i - 1) / 2];
        b->best[i] = score;
        return;
    }
    for (i = 0; (child = 2 * i + 1) < b->n_best; i = child) {
        child += child + 1 < b->n_best && b->best[child + 1] < b->best[child];
        if (b->best[child] >= score)
            break;
        b->best[i] = b->best[child];
    }
    b->best[i] = score;
}

static int score_row(const Fts5ExtensionApi *api, Fts5Context *row, struct store_bm25 *b,
                     double *score)
{
    double tf[STORE_N_PHRASES_MAX];
    int n_words = 0, code = SQLITE_OK;

    for (uint32_t i = 0; i < b->n_phrases && code == SQLITE_OK; i++) {
        tf[i] = 0;
        if (b->idf[i] > 0)
            code = count_phrase(api, row, (int)i, b->weights, &tf[i]);
    }
    *score = 0;
    if (code != SQLITE_OK || !is_among_best(b, sum_scores(b, tf, b->k1 * (1 - b->b))))
        return code;
    code = api->xColumnSize(row, -1, &n_words);
    double exact = sum_scores(b, tf, b->k1 * (1 - b->b + b->b * n_words / b->mean_words));
    if (code == SQLITE_OK && is_among_best(b, exact) && b->fits(b->arg, api->xRowid(row))) {
        add_best(b, exact);
        *score = exact;
    }
    return code;
}

static void sql_bm25_of(const Fts5ExtensionApi *api, Fts5Context *row, sqlite3_context *c, int n,
                        sqlite3_value **v)
{
    struct store_bm25 *b = n == 1 ? sqlite3_value_pointer(v[0], "store_bm25") : NULL;
    double score;

    if (!b || b->n_phrases > STORE_N_PHRASES_MAX ||
        (uint32_t)api->xPhraseCount(row) != b->n_phrases) {
        sqlite3_result_error(c, "bm25_of: a wrong value, or a wrong number of phrases", -1);
        return;
    }
    int code = score_row(api, row, b, &score);
    if (code != SQLITE_OK)
        sqlite3_result_error_code(c, code);
    else
        sqlite3_result_double(c, score);
}

static int count_word(void *arg, int flags, const char *word, int len, int begin, int end)
{
    (void)flags, (void)word, (void)len, (void)begin, (void)end;
    ++*(int64_t *)arg;
    return SQLITE_OK;
}

static void sql_n_words(sqlite3_context *c, int n, sqlite3_value **v)
{
    const struct store_link *link = sqlite3_user_data(c);
    const char *text = (const char *)sqlite3_value_text(v[0]);
    int64_t n_words = 0;

    (void)n;
    int code = !text ? SQLITE_OK
                     : link->tokenizer_functions.xTokenize(link->tokenizer, &n_words,
                                                           FTS5_TOKENIZE_DOCUMENT, text,
                                                           sqlite3_value_bytes(v[0]), count_word);
    if (code == SQLITE_OK)
        sqlite3_result_int64(c, n_words);
    else
        sqlite3_result_error_code(c, code);
}

/* SQLite's documented way to its FTS5 functions. */
static fts5_api *find_fts5(sqlite3 *db)
{
    fts5_api *api = NULL;
    sqlite3_stmt *q = NULL;

    if (sqlite3_prepare_v2(db, "SELECT fts5(?1)", -1, &q, NULL) == SQLITE_OK) {
        sqlite3_bind_pointer(q, 1, (void *)&api, "fts5_api_ptr", NULL);
        sqlite3_step(q);
    }
    sqlite3_finalize(q);
    return api;
}

enum status store_add_functions(struct store_link *link, struct buf *why)
{
    fts5_api *api = find_fts5(link->db);
    void *arg = NULL;
    int code;

    if (!api)
        return buf_why(why, ERR_UNSUPPORTED,
                       "the SQLite library %s was built without FTS5: install one that has it",
                       sqlite3_libversion());
    code = sqlite3_create_function_v2(link->db, "fits", 2, SQLITE_UTF8 | SQLITE_DIRECTONLY, NULL,
                                      sql_fits, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = api->xCreateFunction(api, "bm25_of", NULL, sql_bm25_of, NULL);
    if (code == SQLITE_OK)
        code = store_add_tokenizer(api);
    if (code == SQLITE_OK)
        code = api->xFindTokenizer(api, STORE_TOKENIZER, &arg, &link->tokenizer_functions);
    if (code == SQLITE_OK)
        code = link->tokenizer_functions.xCreate(arg, NULL, 0, &link->tokenizer);
    if (code == SQLITE_OK)
        code = sqlite3_create_function_v2(link->db, "n_words", 1, SQLITE_UTF8 | SQLITE_DIRECTONLY,
                                          link, sql_n_words, NULL, NULL, NULL);
    return code == SQLITE_OK ? OK : store_error(link->store, link->db, code, why);
}

void store_drop_functions(struct store_link *link)
{
    if (link->tokenizer)
        link->tokenizer_functions.xDelete(link->tokenizer);
}

struct word_loop {
    bool (*f)(void *arg, const char *word, size_t len);
    void *arg;
};

static int take_word(void *arg, int flags, const char *word, int len, int begin, int end)
{
    const struct word_loop *loop = arg;

    (void)flags, (void)begin, (void)end;
    return loop->f(loop->arg, word, (size_t)len) ? SQLITE_OK : SQLITE_DONE;
}

enum status store_words(struct store_link *link, const char *text, size_t len,
                        bool (*f)(void *arg, const char *word, size_t len), void *arg,
                        struct buf *why)
{
    struct word_loop loop = {f, arg};
    int code;

    if (len > INT32_MAX)
        return buf_why(why, ERR_TOO_LARGE, "a text of %zu bytes is too long", len);
    code = link->tokenizer_functions.xTokenize(link->tokenizer, &loop, FTS5_TOKENIZE_QUERY, text,
                                               (int)len, take_word);
    if (code == SQLITE_OK || code == SQLITE_DONE)
        return OK;
    return store_error(link->store, NULL, code, why);
}
