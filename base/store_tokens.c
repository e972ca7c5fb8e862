/* store_tokens.c - the tokenizer of FTS5 tables: words where a script writes blanks between them,
 * pairs of characters where it does not (Chinese, Japanese, Thai, Lao, Khmer, Burmese).
 *
 * FTS5's own unicode61 takes a run of Chinese for one word, and cuts Thai at its vowel signs, so a
 * question never has a word of its document. Every two neighbouring characters of such a run are a
 * token instead, as in Lucene's CJKAnalyzer; a character includes the vowel and tone signs behind
 * it. A run of one character is a token alone. Everything else goes to unicode61. */
#include "base/store_inner.h"
#include "base/utf8.h"

#include <stdlib.h>

#define N_MARKS_MAX 3 /* of one character; further ones begin a new one, so a token is short */

enum kind { SPACED, LETTER, MARK };

/* By the Unicode Character Database, ascending. Marks: general category M. */
static const struct range {
    uint32_t first, last;
    enum kind kind;
} ranges[] = {
    {0x0e01, 0x0e30, LETTER},   {0x0e31, 0x0e31, MARK},   {0x0e32, 0x0e33, LETTER},
    {0x0e34, 0x0e3a, MARK},     {0x0e40, 0x0e46, LETTER}, {0x0e47, 0x0e4e, MARK},
    {0x0e81, 0x0eb0, LETTER},   {0x0eb1, 0x0eb1, MARK},   {0x0eb2, 0x0eb3, LETTER},
    {0x0eb4, 0x0ebc, MARK},     {0x0ebd, 0x0ec6, LETTER}, {0x0ec8, 0x0ece, MARK},
    {0x0edc, 0x0edf, LETTER},   {0x1000, 0x102a, LETTER}, {0x102b, 0x103e, MARK},
    {0x103f, 0x103f, LETTER},   {0x1050, 0x1055, LETTER}, {0x1056, 0x1059, MARK},
    {0x105a, 0x105d, LETTER},   {0x105e, 0x1060, MARK},   {0x1061, 0x1061, LETTER},
    {0x1062, 0x1064, MARK},     {0x1065, 0x1066, LETTER}, {0x1067, 0x106d, MARK},
    {0x106e, 0x1070, LETTER},   {0x1071, 0x1074, MARK},   {0x1075, 0x1081, LETTER},
    {0x1082, 0x108d, MARK},     {0x108e, 0x108e, LETTER}, {0x1780, 0x17b3, LETTER},
    {0x17b4, 0x17d3, MARK},     {0x17d7, 0x17d7, LETTER}, {0x17dd, 0x17dd, MARK},
    {0x2e80, 0x2fd5, LETTER},   {0x3005, 0x3007, LETTER}, {0x3021, 0x3029, LETTER},
    {0x3031, 0x3035, LETTER},   {0x303b, 0x303c, LETTER}, {0x3041, 0x3096, LETTER},
    {0x3099, 0x309a, MARK},     {0x309d, 0x309f, LETTER}, {0x30a1, 0x30fa, LETTER},
    {0x30fc, 0x30ff, LETTER},   {0x3105, 0x312f, LETTER}, {0x31a0, 0x31bf, LETTER},
    {0x31f0, 0x31ff, LETTER},   {0x3400, 0x4dbf, LETTER}, {0x4e00, 0x9fff, LETTER},
    {0xf900, 0xfaff, LETTER},   {0xff66, 0xff9d, LETTER}, {0xff9e, 0xff9f, MARK},
    {0x20000, 0x323af, LETTER},
};

static enum kind kind_of(uint32_t c)
{
    uint32_t low = 0, high = sizeof ranges / sizeof *ranges;

    if (c < ranges[0].first)
        return SPACED;
    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (c > ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof ranges / sizeof *ranges && c >= ranges[low].first ? ranges[low].kind
                                                                          : SPACED;
}

struct Fts5Tokenizer {
    fts5_tokenizer words;
    Fts5Tokenizer *words_state;
};

typedef int token_f(void *arg, int flags, const char *token, int n, int begin, int end);

struct loop {
    void *arg;
    token_f *f;
    const char *text;
    int n, offset; /* offset: of the part that unicode61 reads */
};

static int take_word(void *arg, int flags, const char *word, int n, int begin, int end)
{
    const struct loop *l = arg;

    return l->f(l->arg, flags, word, n, l->offset + begin, l->offset + end);
}

/* The kind of the character at `at` and its length; a broken byte counts as SPACED. */
static enum kind next(const struct loop *l, int at, int *len)
{
    uint32_t c;
    size_t n = utf8_decode(l->text + at, (size_t)(l->n - at), &c);

    *len = n > 0 ? (int)n : 1;
    return n > 0 ? kind_of(c) : SPACED;
}

/* The end of the part without characters of unspaced scripts that begins at `at`. */
static int end_of_spaced(const struct loop *l, int at)
{
    int len;

    while (at < l->n) {
        if ((unsigned char)l->text[at] < 0x80)
            len = 1;
        else if (next(l, at, &len) != SPACED)
            break;
        at += len;
    }
    return at;
}

/* The end of the character that begins at `at`, with its marks; `at` if there is none. */
static int end_of_character(const struct loop *l, int at)
{
    int len, n_marks = 0;

    if (at >= l->n || next(l, at, &len) == SPACED)
        return at;
    at += len;
    while (at < l->n && n_marks++ < N_MARKS_MAX && next(l, at, &len) == MARK)
        at += len;
    return at;
}

/* Tokens of the run that begins at *at. */
static int take_pairs(const struct loop *l, int *at)
{
    int first = *at, second = end_of_character(l, first), code = SQLITE_OK;
    bool is_alone = true;

    for (int end; code == SQLITE_OK && (end = end_of_character(l, second)) > second; second = end) {
        code = l->f(l->arg, 0, l->text + first, end - first, first, end);
        first = second;
        is_alone = false;
    }
    if (code == SQLITE_OK && is_alone)
        code = l->f(l->arg, 0, l->text + first, second - first, first, second);
    *at = second;
    return code;
}

static int tokenize(Fts5Tokenizer *t, void *arg, int flags, const char *text, int n, token_f *f)
{
    struct loop l = {.arg = arg, .f = f, .text = text, .n = n};
    int at = 0, code = SQLITE_OK;

    while (code == SQLITE_OK && at < n) {
        int end = end_of_spaced(&l, at);

        l.offset = at;
        if (end > at)
            code = t->words.xTokenize(t->words_state, &l, flags, text + at, end - at, take_word);
        at = end;
        if (code == SQLITE_OK && at < n)
            code = take_pairs(&l, &at);
    }
    return code;
}

static int create(void *api_, const char **options, int n_options, Fts5Tokenizer **out)
{
    static const char *inner[] = {"remove_diacritics", "2"};
    fts5_api *api = api_;
    Fts5Tokenizer *t = calloc(1, sizeof *t);
    void *arg = NULL;
    int code = t ? SQLITE_OK : SQLITE_NOMEM;

    (void)options, (void)n_options;
    if (code == SQLITE_OK)
        code = api->xFindTokenizer(api, "unicode61", &arg, &t->words);
    if (code == SQLITE_OK)
        code = t->words.xCreate(arg, inner, 2, &t->words_state);
    if (code != SQLITE_OK) {
        free(t);
        return code;
    }
    *out = t;
    return SQLITE_OK;
}

static void destroy(Fts5Tokenizer *t)
{
    t->words.xDelete(t->words_state);
    free(t);
}

int store_add_tokenizer(struct fts5_api *api)
{
    static fts5_tokenizer functions = {
        .xCreate = create, .xDelete = destroy, .xTokenize = tokenize};

    return api->xCreateTokenizer(api, STORE_TOKENIZER, api, &functions, NULL);
}
