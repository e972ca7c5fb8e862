/* catalog_inner.h - what the files of the catalog share. Outside of them nobody includes it. */
#ifndef TARN_ENGINE_RETRIEVAL_CATALOG_INNER_H
#define TARN_ENGINE_RETRIEVAL_CATALOG_INNER_H

#include <pthread.h>

#include "base/map.h"
#include "base/store.h"
#include "engine/retrieval/catalog.h"

#define N_USES_MAX 4096 /* documents with uses that are not written yet */

/* Number of a tenant. A row is the tenant's number << 32 | a count, so that the rows of a tenant
 * are one range: a search in its documents does not visit those of others. */
#define PUBLIC_TENANT 0
#define NO_TENANT (-1)
#define TENANT_BITS 20
#define COUNT_BITS 32

/* A count of documents with a word, kept for the next query. */
struct kept_count {
    uint64_t key; /* of tenant and word */
    int64_t n_changes, n;
};
#define N_COUNTS 8192

struct catalog {
    struct store *store;
    pthread_mutex_t uses_lock;
    struct map uses; /* row -> uses that are not written yet */
    int64_t uses_written_s;
    pthread_mutex_t counts_lock;
    struct kept_count *counts; /* [N_COUNTS], by the key's remainder */
};

/* The statements of catalog.c, each with the values that it needs. */
enum catalog_statement {
    /* tenants */
    FIND_TENANT,  /* name */
    ADD_TENANT,   /* name */
    NEXT_ROW,     /* tenant */
    ADD_COUNTS,   /* tenant, documents, words */
    RANGE_COUNTS, /* tenant -> documents, words, changes */
    /* documents */
    FIND_OWN,        /* tenant, id -> row, version, n_words, created_s, expires_s, title, text */
    FIND_ROW,        /* row -> the same */
    ADD_DOCUMENT,    /* row, tenant, id, title, metadata, pinned, prefill, version, created,
                        updated, expires, n_words */
    CHANGE_DOCUMENT, /* the same */
    DROP_DOCUMENT,   /* row */
    PUT_TEXT,        /* row, text */
    DROP_TEXT,       /* row */
    PUT_EMBEDDING,   /* row, vector */
    DROP_EMBEDDING,  /* row */
    ADD_WORDS,       /* row, title, text */
    DROP_WORDS,      /* row, title, text */
    SET_PIN,         /* row, pinned */
    SET_EXPIRY,      /* row, expires */
    ADD_USES,        /* row, uses */
    LIST_EXPIRED,    /* now, limit -> row */
    GET_VISIBLE,     /* tenant, id, now -> all columns */
    GET_ROW,         /* row, now -> all columns */
    LIST_DOCUMENTS,  /* tenant, after, now, fits, limit -> columns without text and embedding */
    EACH_EMBEDDING,  /* tenant, now -> row, vector */
    EACH_PREFILL,    /* now -> row */
    NAME_TENANT,     /* row -> name */
    ROW_FITS,        /* row, now, fits, the tenant whose ids shadow -> 1 */
    /* statistics; tenant NULL: all */
    COUNT_DOCUMENTS, /* tenant */
    COUNT_PINNED,    /* tenant */
    COUNT_PREAMBLES, /* tenant */
    /* preambles */
    FIND_PREAMBLE,      /* tenant, id -> row, version, is body equal to ?3 */
    ADD_PREAMBLE,       /* tenant, id, body, now */
    CHANGE_PREAMBLE,    /* row, body, version, now */
    DROP_PREAMBLE,      /* tenant, id */
    GET_PREAMBLE,       /* tenant, id -> columns */
    LIST_PREAMBLES,     /* tenant -> columns */
    LIST_ALL_PREAMBLES, /* -> columns */
    /* paths */
    DOCUMENT_VERSION, /* row -> version */
    ADD_PATH,         /* row, key, version, place, n_tokens, preamble, used_s */
    ADD_ORPHAN,       /* the same without row */
    DROP_ORPHAN,      /* key */
    DROP_USED_ORPHANS,
    DROP_PATH,    /* row, key */
    ORPHAN_PATHS, /* row */
    DROP_PATHS,   /* row */
    COUNT_PATHS,  /* row */
    OLDEST_PATH,  /* row -> columns of a path */
    LIST_PATHS,   /* row, limit -> columns of a path */
    FIND_PATH,    /* key -> row, tenant, id, title, version */
    HAS_ORPHANS,  /* -> 1 */
    LIST_ORPHANS, /* limit -> columns of a path */
    /* search */
    COUNT_MATCHES, /* words, first row, last row */
    CHECK_WORDS,
    SCORE_MATCHES, /* words, first row, last row, bm25, limit -> row, score */
    N_STATEMENTS
};

int64_t catalog_now_s(void);

/* Commit if s is OK, else roll back; the status of both. */
enum status catalog_finish(struct catalog *c, enum status s, struct buf *why);

/* *no: NO_TENANT when the tenant has never put anything. */
NODISCARD enum status catalog_find_tenant(struct store_link *link, const char *name, int64_t *no,
                                          struct buf *why);
/* The same, but adds the tenant. */
NODISCARD enum status catalog_add_tenant(struct store_link *link, const char *name, int64_t *no,
                                         struct buf *why);

NODISCARD enum status catalog_check_id(const char *id, struct buf *why);
/* Whether the text is UTF-8, not empty unless it may be, and at most max bytes. */
NODISCARD enum status catalog_check_text(const char *field, const struct buf *text, size_t max,
                                         bool may_be_empty, struct buf *why);
/* Whether the text is a JSON object. */
NODISCARD enum status catalog_check_object(const char *field, const struct buf *text, size_t max,
                                           struct buf *why);

/* Copy a column to a buffer or to a C string of n bytes. */
NODISCARD enum status catalog_read(const struct store_rows *r, int column, struct buf *out,
                                   struct buf *why);
void catalog_read_str(const struct store_rows *r, int column, char *out, size_t n);

/* Uses of a row that are not written yet; write all of them. */
uint64_t catalog_unwritten_uses(struct catalog *c, int64_t row);
NODISCARD enum status catalog_write_uses(struct catalog *c, struct buf *why);

/* --- words of queries --- */

#define N_WORDS_MAX 64     /* distinct words of a query; further ones are ignored */
#define WORD_BYTES_MAX 128 /* a longer word is ignored */

struct query_word {
    char text[WORD_BYTES_MAX + 1];
    bool is_stop;
    int64_t n_documents; /* visible ones that have it, at least 1 */
    double idf;          /* inverse document frequency */
};

struct query_words {
    struct query_word words[N_WORDS_MAX];
    uint32_t n;
    int64_t n_documents; /* visible ones */
    double mean_words;   /* of a document, at least 1 */
};

/* The rows of one tenant. */
struct row_range {
    int64_t first, last;
    int64_t n_changes; /* of its documents so far */
};

/* Read the words of a query that documents of the ranges have, rarest first. *q: zeroed. */
NODISCARD enum status catalog_read_query(struct catalog *c, struct store_link *link,
                                         const char *query, size_t len, struct row_range *ranges,
                                         uint32_t n_ranges, struct query_words *q, struct buf *why);

/* --- filters --- */

/* Whether a document's metadata pass the filter; arg is the filter, a struct json. */
bool catalog_filter_fits(void *filter, const char *metadata, size_t len);

#endif
