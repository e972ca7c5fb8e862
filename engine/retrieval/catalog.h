/* catalog.h - the documents and preambles that clients registered, kept in a SQLite file.
 *
 * A document belongs to the tenant that put it, or is public. A tenant sees its own documents and
 * the public ones; where both have the same id, its own. The empty tenant name "" is the owner of
 * public documents. A document whose text or title changes gets a new version; a version that was
 * replaced is gone. An expired document is treated as absent at once, and catalog_sweep() deletes
 * it.
 *
 * A path is one place at which the KV of a document's version was computed: the key of its span's
 * first block. Paths are kept so that deleting a document can erase its KV from every tier, also
 * after a restart.
 *
 * Everything that catalog_put() and its relatives return OK for survives SIGKILL; between
 * catalog_begin() and catalog_commit() it survives once catalog_commit() has returned OK.
 *
 * Owns    the file, its connections; struct document: document_fini().
 * Thread  any; a call may block on the disk, so not the engine thread and not an HTTP thread.
 * Errors  ERR_NOT_FOUND; ERR_INVALID, ERR_TOO_LARGE: words name the field; ERR_BUSY: another
 *         process holds the file; ERR_IO, ERR_CORRUPT, ERR_NOMEM: words name the file and what to
 *         do.
 * Units   Unix seconds; bytes of UTF-8. */
#ifndef TARN_ENGINE_RETRIEVAL_CATALOG_H
#define TARN_ENGINE_RETRIEVAL_CATALOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"

#define DOCUMENT_ID_BYTES_MAX 256
#define DOCUMENT_TITLE_BYTES_MAX 1024
#define DOCUMENT_TEXT_BYTES_MAX (4u << 20)
#define DOCUMENT_METADATA_BYTES_MAX (64u << 10)
#define DOCUMENT_DIM_MAX 8192
#define DOCUMENT_N_PATHS_MAX 256 /* of one document; the oldest is returned to be erased */
#define DOCUMENT_KEY_BYTES 32    /* of struct kv_key */

struct catalog;

enum document_prefill { DOCUMENT_PREFILL_LAZY, DOCUMENT_PREFILL_NOW };

struct document {
    int64_t row; /* number of this document in the catalog: constant over versions, never reused */
    char tenant[128]; /* "": public */
    char id[DOCUMENT_ID_BYTES_MAX + 1];
    struct buf title, text;
    struct buf metadata;  /* a JSON object; empty: none */
    struct buf embedding; /* of float; empty: none */
    bool is_pinned;
    enum document_prefill prefill;
    uint32_t version; /* 1, 2, ... */
    int64_t created_s, updated_s;
    int64_t expires_s; /* 0: never */
    uint64_t n_uses;   /* requests that named or retrieved it: catalog_note_use() */
};
void document_init(struct document *d);
void document_fini(struct document *d);

/* file: made with mode 0600 if it does not exist. NULL: in memory only, everything ends with the
 * process. max_bytes: the file does not grow
 * above it, and a change that needs more is ERR_IO; 0: no bound. */
NODISCARD enum status catalog_open(struct catalog **out, const char *file, uint64_t max_bytes,
                                   struct buf *why);
void catalog_close(struct catalog *c); /* NULL is fine */
/* Read the whole file and compare its structures: slow. ERR_CORRUPT. */
NODISCARD enum status catalog_check(struct catalog *c, struct buf *why);

/* --- documents --- */

struct catalog_change {
    int64_t row;
    uint32_t version;
    bool is_new;
    bool is_text_changed; /* title or text; true when new */
};
/* Insert or replace the document (tenant, id). row, version, times and uses of *d are ignored. */
NODISCARD enum status catalog_put(struct catalog *c, const struct document *d,
                                  struct catalog_change *out, struct buf *why);
/* Find what `tenant` sees under this id. *out must be initialized. */
NODISCARD enum status catalog_get(struct catalog *c, const char *tenant, const char *id,
                                  struct document *out, struct buf *why);
NODISCARD enum status catalog_get_row(struct catalog *c, int64_t row, struct document *out,
                                      struct buf *why);
/* Delete the tenant's own document ("": a public one). *row: its number. Its paths stay until
 * catalog_take_paths(). */
NODISCARD enum status catalog_delete(struct catalog *c, const char *tenant, const char *id,
                                     int64_t *row, struct buf *why);
/* Set pin and expiry without a new version. */
NODISCARD enum status catalog_set(struct catalog *c, const char *tenant, const char *id,
                                  const bool *is_pinned, const int64_t *expires_s, struct buf *why);
/* Call f, in the order of ids, for at most `limit` documents that `tenant` sees, from the first id
 * behind `after` (NULL: from the first). Text and embedding are left empty. f must not call the
 * catalog. filter: as catalog_search_text();
 * NULL: all. *has_more: there are further ones. f returning false ends the list. */
NODISCARD enum status catalog_list(struct catalog *c, const char *tenant, const char *after,
                                   uint32_t limit, const struct json *filter,
                                   bool (*f)(void *arg, const struct document *d), void *arg,
                                   bool *has_more, struct buf *why);
/* Call f for every embedding v [dim] of a document that belongs to `tenant` exactly. For building
 * an index. f must not call the catalog. */
NODISCARD enum status catalog_each_embedding(struct catalog *c, const char *tenant,
                                             bool (*f)(void *arg, int64_t row, const float *v,
                                                       uint32_t dim),
                                             void *arg, struct buf *why);
/* Call f with the row of each document, of all tenants, that is pinned or has prefill "now". f must
 * not call the catalog. */
NODISCARD enum status catalog_each_prefill(struct catalog *c, bool (*f)(void *arg, int64_t row),
                                           void *arg, struct buf *why);
/* The tenant that a row belongs or belonged to, also after the document's end. */
NODISCARD enum status catalog_tenant_of(struct catalog *c, int64_t row, char out[128],
                                        struct buf *why);
/* A group of changes by this thread that is written at once: for imports. Other writers wait. */
NODISCARD enum status catalog_begin(struct catalog *c, struct buf *why);
NODISCARD enum status catalog_commit(struct catalog *c, struct buf *why);
void catalog_rollback(struct catalog *c);
/* Count a use of each row; buffered in memory and written within some seconds. */
void catalog_note_use(struct catalog *c, const int64_t *rows, uint32_t n);
/* Delete expired documents, at most `limit`; *n: how many were deleted. rows [limit]. */
NODISCARD enum status catalog_sweep(struct catalog *c, int64_t now_s, uint32_t limit, int64_t *rows,
                                    uint32_t *n, struct buf *why);

struct catalog_stats {
    uint64_t n_documents, n_public, n_pinned, n_preambles;
    uint64_t file_bytes;
};
NODISCARD enum status catalog_stats(struct catalog *c, const char *tenant_or_null,
                                    struct catalog_stats *out);

/* --- search in text --- */

struct catalog_hit {
    int64_t row;
    double score; /* higher is better; BM25. Equal ones: the lower row first */
};
/* The best documents that `tenant` sees for the words of `query`, by BM25 (Robertson and Zaragoza,
 * "The Probabilistic Relevance Framework", 2009) over title and text; SQLite's FTS5 computes it.
 * Any text is a legal query: operators of FTS5 in it are plain words; stop words are ignored where
 * others are left. filter: NULL, or OpenAI's form: {"type": "eq"|"ne"|"gt"|"gte"|"lt"|"lte"|"in"|
 * "nin", "key", "value"} or {"type": "and"|"or", "filters": [...]}, or an object {key: value, ...},
 * which means that all are equal. own, public: which documents. *n: hits written, at most k. */
struct catalog_scope {
    const char *tenant;
    bool own, public;
};
NODISCARD enum status catalog_search_text(struct catalog *c, const struct catalog_scope *scope,
                                          const char *query, size_t len, const struct json *filter,
                                          uint32_t k, struct catalog_hit *hits, uint32_t *n,
                                          struct buf *why);
/* Whether the filter is well formed; ERR_INVALID: words name what is wrong, without a prefix. */
NODISCARD enum status catalog_check_filter(const struct json *filter, struct buf *why);
/* Keep of rows [n] those that pass the filter and have not expired; order stays. *n_left. */
NODISCARD enum status catalog_filter_rows(struct catalog *c, const struct json *filter,
                                          int64_t *rows, uint32_t n, uint32_t *n_left,
                                          struct buf *why);

/* --- preambles --- */

struct preamble_record {
    char tenant[128]; /* "": public */
    char id[DOCUMENT_ID_BYTES_MAX + 1];
    struct buf body; /* a JSON object: {"system": text, "tools": [...]} */
    uint32_t version;
    int64_t created_s, updated_s;
};
void preamble_record_init(struct preamble_record *p);
void preamble_record_fini(struct preamble_record *p);
NODISCARD enum status catalog_put_preamble(struct catalog *c, const struct preamble_record *p,
                                           bool *is_new, struct buf *why);
NODISCARD enum status catalog_get_preamble(struct catalog *c, const char *tenant, const char *id,
                                           struct preamble_record *out, struct buf *why);
NODISCARD enum status catalog_delete_preamble(struct catalog *c, const char *tenant, const char *id,
                                              struct buf *why);
/* All preambles that `tenant` sees (NULL: of all tenants), by id. */
NODISCARD enum status catalog_list_preambles(struct catalog *c, const char *tenant,
                                             bool (*f)(void *arg, const struct preamble_record *p),
                                             void *arg, struct buf *why);

/* --- paths --- */

struct document_path {
    uint8_t key[DOCUMENT_KEY_BYTES];          /* of the span's first block */
    uint32_t version;                         /* of the document */
    uint32_t place;                           /* 0: the first document of its prompt */
    uint32_t n_tokens;                        /* of the span */
    char preamble[DOCUMENT_ID_BYTES_MAX + 1]; /* registered preamble before it; "": another text */
    int64_t used_s;
};
/* Add a path or renew its used_s. *dropped: whether *oldest was removed to make room, whose KV the
 * caller erases. */
NODISCARD enum status catalog_add_path(struct catalog *c, int64_t row,
                                       const struct document_path *p, struct document_path *oldest,
                                       bool *dropped, struct buf *why);
/* The paths of a document, latest use first; returns at most n_max. */
NODISCARD enum status catalog_paths(struct catalog *c, int64_t row, struct document_path *out,
                                    uint32_t n_max, uint32_t *n, struct buf *why);
/* The document whose paths have this key: for names in listings. ERR_NOT_FOUND. Only row, tenant,
 * id, title and version are set. */
NODISCARD enum status catalog_find_path(struct catalog *c, const uint8_t key[DOCUMENT_KEY_BYTES],
                                        struct document *out);
/* Remove and return paths whose document is gone or has a newer version: the caller erases their
 * KV. Call until *n is 0. After a crash between this call and the erasure the KV stays cached, but
 * no request finds it by id; it is evicted like any other. */
NODISCARD enum status catalog_take_paths(struct catalog *c, struct document_path *out,
                                         uint32_t n_max, uint32_t *n, struct buf *why);

#endif
