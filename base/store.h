/* store.h - one SQLite file: what must survive exactly.
 *
 * ONLY module that includes SQLite. The file is in WAL mode: a committed change survives SIGKILL
 * and loss of power (synchronous=FULL; each commit waits for the disk), and readers do not wait for
 * a writer. One connection writes; a pool of others reads. All SQL is constant and known at open;
 * values are always bound.
 *
 * The file belongs to one process: FILE.lock is locked while it is open. The schema has a version
 * number in the file; store_open() brings an older file up to date, one transaction per version.
 *
 * Text search. A schema may have FTS5 tables that use STORE_TOKENIZER. Their queries may call
 * bm25_of() below. store_words() cuts a text into the words that such a table holds.
 *
 * Owns    the connections, their prepared statements, the lock file's lock.
 * Thread  any. A transaction belongs to the thread that began it: reads of this thread go to the
 *         writing connection and see its changes. Other threads' transactions wait.
 * Errors  ERR_BUSY: another process has the file; ERR_CORRUPT: damaged, or not ours;
 *         ERR_UNSUPPORTED: written by a newer version; ERR_FULL; ERR_IO; ERR_NOMEM; words
 *         name the file and what to do. A failed change leaves nothing of itself.
 * Units   bytes of UTF-8; columns count from 0. */
#ifndef TARN_BASE_STORE_H
#define TARN_BASE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

struct store;
struct store_link; /* one connection, used by one thread at a time */

struct store_config {
    const char *file;        /* NULL: in memory, gone with store_close() */
    const char *noun;        /* what the file holds, for messages: "the documents" */
    uint32_t application_id; /* in the file's header; a file with another one is refused */
    /* SQL scripts [n_migrations]: migrations[i] turns schema i into schema i + 1; schema 0 is an
     * empty file. */
    const char *const *migrations;
    uint32_t n_migrations;
    /* SQL texts [n_statements], each one statement, used by their index. Constant memory. */
    const char *const *statements;
    uint32_t n_statements;
    uint32_t n_readers; /* at least 1; in memory the writing connection also reads */
    uint64_t max_bytes; /* the file does not grow above this; 0: no bound */
};

/* The folder of the file must exist. */
NODISCARD enum status store_open(struct store **out, const struct store_config *config,
                                 struct buf *why);
void store_close(struct store *st); /* rolls back an open transaction. NULL is fine */
/* Read the whole file and compare its structures: slow. ERR_CORRUPT. */
NODISCARD enum status store_verify(struct store *st, struct buf *why);
/* Bytes of the file and its write-ahead log. 0: in memory. */
uint64_t store_file_bytes(const struct store *st);

/* --- connections and transactions --- */

/* Wait for a reading connection. One thread may hold several, but must not need more than
 * n_readers. */
struct store_link *store_reader(struct store *st);
void store_put_back(struct store *st, struct store_link *link);
/* Begin a transaction and return the writing connection; within a transaction of this thread, a
 * part of it that is committed or rolled back alone. */
NODISCARD enum status store_begin(struct store *st, struct store_link **link, struct buf *why);
/* Ends the transaction also when it fails: then nothing of it is kept. */
NODISCARD enum status store_commit(struct store *st, struct buf *why);
void store_rollback(struct store *st);

/* --- statements --- */

struct store_value {
    enum { STORE_NULL, STORE_INT, STORE_TEXT, STORE_BLOB, STORE_FITS, STORE_BM25 } kind;
    int64_t i;
    const void *p; /* borrowed until the statement ends */
    size_t len;
};
static inline struct store_value store_int(int64_t i)
{
    return (struct store_value){.kind = STORE_INT, .i = i};
}
static inline struct store_value store_text(const char *p, size_t len)
{
    return (struct store_value){.kind = STORE_TEXT, .p = p ? p : "", .len = len};
}
static inline struct store_value store_str(const char *p)
{
    return store_text(p, strlen(p));
}
static inline struct store_value store_blob(const void *p, size_t len)
{
    return (struct store_value){.kind = STORE_BLOB, .p = p ? p : "", .len = len};
}

/* Values for a statement's ?1, ?2, ...: store_run(link, X, STORE_VALUES(store_int(1)), why). */
#define STORE_VALUES(...)                                                                          \
    (const struct store_value[]){__VA_ARGS__},                                                     \
        sizeof((const struct store_value[]){__VA_ARGS__}) / sizeof(struct store_value)

/* A running statement. */
struct store_rows {
    struct store_link *link;
    void *statement;
    bool is_temporary;
};
NODISCARD enum status store_query(struct store_rows *r, struct store_link *link, unsigned statement,
                                  const struct store_value *values, size_t n, struct buf *why);
/* Go to the next row. *has_row false: there is none. */
NODISCARD enum status store_next(struct store_rows *r, bool *has_row, struct buf *why);
void store_end(struct store_rows *r);

/* Columns of the current row. */
int64_t store_get_int(const struct store_rows *r, int column);
double store_get_real(const struct store_rows *r, int column);
/* Text or blob; NULL and an empty value: "" and 0. Borrowed until the next call with r. */
const void *store_get_bytes(const struct store_rows *r, int column, size_t *len);

/* Run a statement to its end. */
NODISCARD enum status store_run(struct store_link *link, unsigned statement,
                                const struct store_value *values, size_t n, struct buf *why);
/* The same; *out: the first column of its first row, unchanged without a row. */
NODISCARD enum status store_run_int(struct store_link *link, unsigned statement,
                                    const struct store_value *values, size_t n, int64_t *out,
                                    struct buf *why);
/* Rows that the last statement inserted, updated or deleted. */
uint64_t store_n_changed(const struct store_link *link);

/* --- functions that SQL may call --- */

/* fits(?, text): whether f accepts a column's bytes. A NULL instead of the value: always. */
struct store_fits {
    bool (*f)(void *arg, const char *text, size_t len);
    void *arg;
};
static inline struct store_value store_fits(const struct store_fits *f)
{
    return (struct store_value){.kind = f ? STORE_FITS : STORE_NULL, .p = f};
}

#define STORE_N_COLUMNS_MAX 4
#define STORE_N_PHRASES_MAX 128
/* bm25_of(TABLE, ?): the BM25 score of a row of an FTS5 query, higher is better, from statistics
 * that the caller gives. (FTS5's own bm25() takes them from the whole table.) The phrases of the
 * query are counted from 0 in the order in which they stand in it.
 *
 * Only the best n_best_max rows of the statement are wanted. Other rows may score 0: the length of
 * a row is not read where even the shortest row would not be among the best so far, and `fits` is
 * called for the best so far only. */
struct store_bm25 {
    double k1, b;
    double mean_words; /* of a row */
    double weights[STORE_N_COLUMNS_MAX];
    uint32_t n_phrases;
    const double *idf; /* [n_phrases]; 0: the phrase does not count */
    double *best;      /* [n_best_max] working memory: a heap, the least score first */
    uint32_t n_best, n_best_max;
    /* A row that does not fit scores 0. It may run other statements of the connection. */
    bool (*fits)(void *arg, int64_t row);
    void *arg;
};
static inline struct store_value store_bm25(struct store_bm25 *b)
{
    return (struct store_value){.kind = STORE_BM25, .p = b};
}

/* For FTS5's option tokenize: words of Unicode letters and digits, in lower case, without
 * diacritics. In scripts that write no blanks between words (Chinese, Japanese, Thai, Lao, Khmer,
 * Burmese) every two neighbouring characters are a word. */
#define STORE_TOKENIZER "tarn"
/* The SQL function n_words(TEXT) counts the words of a text. */
/* Call f for each word of the text in order; f returning false ends the loop. */
NODISCARD enum status store_words(struct store_link *link, const char *text, size_t len,
                                  bool (*f)(void *arg, const char *word, size_t len), void *arg,
                                  struct buf *why);

#endif
