/* catalog_inner.h - what the files of the catalog share. Outside of them nobody includes it. */
#ifndef TARN_ENGINE_RETRIEVAL_CATALOG_INNER_H
#define TARN_ENGINE_RETRIEVAL_CATALOG_INNER_H

#include <pthread.h>

#include "base/map.h"
#include "base/store.h"
#include "engine/retrieval/catalog_records.h"

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
    struct kept_count *counts;      /* [N_COUNTS], by the key's remainder */
    uint64_t writer;                /* of this process' stamps: random */
    uint8_t key[CATALOG_KEY_BYTES]; /* of the digests; constant while they are used */
    bool is_keyed;                  /* the digests in the file are of this key */
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
    FIND_OWN,        /* tenant, id -> row, version, n_words, created_s, expires_s, title, text,
                        tenant's name, id */
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
    FIND_PREAMBLE,      /* tenant, id -> row, version, created_s, is body equal to ?3 */
    ADD_PREAMBLE,       /* tenant, id, body, version, created_s, updated_s -> row */
    CHANGE_PREAMBLE,    /* row, body, version, created_s, updated_s */
    DROP_PREAMBLE,      /* row */
    GET_PREAMBLE,       /* tenant, id -> columns */
    GET_PREAMBLE_ROW,   /* row -> columns */
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
    /* records */
    NEXT_COUNTER,  /* -> counter */
    RAISE_COUNTER, /* counter */
    GET_COUNTER,   /* -> counter */
    GET_KEY_TAG,   /* -> tag */
    SET_KEY_TAG,   /* tag */
    GET_UNSTAMPED, /* -> 1: the file is of a version without stamps */
    SET_STAMPED,
    EACH_DOCUMENT,  /* -> row, owner, id, updated_s */
    EACH_PREAMBLE,  /* the same */
    FIND_STAMP,     /* name -> counter, writer, deleted_s, kind, row */
    PUT_STAMP,      /* name, counter, writer, deleted_s, kind, row */
    DROP_STAMP,     /* name */
    LIST_BUCKET,    /* after, last, limit -> name, counter, writer, deleted_s */
    LIST_SINCE,     /* counter, limit -> the same */
    LIST_STAMPS,    /* -> the same */
    LIST_DELETIONS, /* before, limit -> the same */
    XOR_DIGEST,     /* bucket, hash */
    SET_DIGEST,     /* bucket, digest */
    LIST_DIGESTS,   /* -> bucket, digest */
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

/* --- documents, for records --- */

/* A document as the catalog has it under a row. */
struct old_document {
    int64_t row; /* 0: nothing */
    uint32_t version;
    int64_t n_words, created_s, expires_s;
    struct buf title, text;
    char owner[128], id[DOCUMENT_ID_BYTES_MAX + 1];
};
void catalog_old_fini(struct old_document *old);
/* Read the tenant's document with this id, or the document of a row. *old must be fresh: its
 * buffers are set here, and catalog_old_fini() is due also after an error. */
NODISCARD enum status catalog_find_old(struct store_link *link, int64_t tenant, const char *id,
                                       struct old_document *old, struct buf *why);
NODISCARD enum status catalog_find_old_row(struct store_link *link, int64_t row,
                                           struct old_document *old, struct buf *why);
/* Write all tables for one document; `old` is what they have. is_given: version and times are those
 * of *d. */
NODISCARD enum status catalog_put_over(struct store_link *link, const struct document *d,
                                       int64_t tenant, const struct old_document *old,
                                       bool is_given, struct catalog_change *out, struct buf *why);
NODISCARD enum status catalog_drop(struct store_link *link, const struct old_document *old,
                                   struct buf *why);
NODISCARD enum status catalog_check_document(const struct document *d, struct buf *why);
NODISCARD enum status catalog_check_preamble(const struct preamble_record *p, struct buf *why);
/* Put the preamble; is_given: with its version and times. *row, *is_new. */
NODISCARD enum status catalog_put_preamble_in(struct store_link *link,
                                              const struct preamble_record *p, bool is_given,
                                              int64_t *row, bool *is_new, struct buf *why);
NODISCARD enum status catalog_read_preamble_row(struct store_link *link, int64_t row,
                                                struct preamble_record *out, bool *found,
                                                struct buf *why);
NODISCARD enum status catalog_read_document_row(struct catalog *c, struct store_link *link,
                                                int64_t row, struct document *out, bool *found,
                                                struct buf *why);

/* --- stamps: within a transaction --- */

/* The record that a name has. stamp.counter 0: none. */
struct stamped {
    struct catalog_stamp stamp;
    int64_t deleted_s;
    enum catalog_kind kind;
    int64_t row; /* of the document or the preamble; 0: a deletion */
};
NODISCARD enum status catalog_find_stamp(struct store_link *link, const uint8_t *name,
                                         struct stamped *out, struct buf *why);
/* Replace the stamp of a name, and update its digest. */
NODISCARD enum status catalog_put_stamp(struct catalog *c, struct store_link *link,
                                        const uint8_t *name, const struct stamped *s,
                                        struct buf *why);
/* A client has put (row) or deleted (row 0) it. */
NODISCARD enum status catalog_stamp_change(struct catalog *c, struct store_link *link,
                                           enum catalog_kind kind, const char *owner,
                                           const char *id, int64_t row, struct buf *why);
NODISCARD enum status catalog_stamp_expired(struct catalog *c, struct store_link *link,
                                            const struct old_document *old, struct buf *why);
/* Give stamps to all that a file of an older version has. */
NODISCARD enum status catalog_stamp_all(struct catalog *c, struct buf *why);
/* Compare the digests with those that the stamps give. ERR_CORRUPT. */
NODISCARD enum status catalog_check_digests(struct catalog *c, struct buf *why);

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
