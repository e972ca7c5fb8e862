/* retrieval.h - finds documents for a query: words (BM25), vectors, or both.
 *
 * Both lists are joined by reciprocal rank: score = sum of 1 / (60 + rank) (Cormack, Clarke and
 * Buettcher, "Reciprocal Rank Fusion", SIGIR 2009). Each tenant has an index of its own, and public
 * documents have one. An index is opened at its first use, from its file and the catalog; the least
 * recently used one is saved and closed where RETRIEVAL_N_OPEN_MAX are open.
 *
 * Vectors of one tenant have one dimension, that of the first; when all are deleted, the next may
 * have another. A query searches the tenant's own and the public vectors. If only the public ones
 * have another dimension than the query, they are left out. Without Faiss there are no vectors:
 * retrieval_put() ignores embeddings, and RETRIEVAL_AUTO means words only.
 *
 * Owns    the indexes; the catalog is borrowed.
 * Thread  any; calls block on the disk and on locks: work threads only.
 * Errors  as catalog.h and vectors.h; ERR_INVALID: words name the field without a prefix;
 *         ERR_UNSUPPORTED: a vector search was demanded in a build without Faiss.
 * Units   none. */
#ifndef TARN_ENGINE_RETRIEVAL_RETRIEVAL_H
#define TARN_ENGINE_RETRIEVAL_RETRIEVAL_H

#include "engine/retrieval/catalog.h"
#include "engine/retrieval/vectors.h"

#define RETRIEVAL_TOP_K_MAX 64
#define RETRIEVAL_N_OPEN_MAX 64

struct retrieval;

enum retrieval_mode { RETRIEVAL_AUTO, RETRIEVAL_LEXICAL, RETRIEVAL_VECTOR, RETRIEVAL_HYBRID };

struct retrieval_config {
    struct catalog *catalog;
    const char *dir;     /* of index files, made if absent; NULL: indexes are not saved */
    const char *factory; /* as vectors.h */
};

NODISCARD enum status retrieval_open(struct retrieval **out, const struct retrieval_config *config,
                                     struct buf *why);
void retrieval_close(struct retrieval *r); /* saves the indexes. NULL is fine */

/* Tell the index about a document that the catalog has put (with its embedding, or without) or
 * deleted. The words are indexed by the catalog itself. */
NODISCARD enum status retrieval_put(struct retrieval *r, const struct document *d, int64_t row,
                                    struct buf *why);
void retrieval_remove(struct retrieval *r, const char *tenant, int64_t row);
/* The dimension of the tenant's vectors; 0: it has none yet. */
uint32_t retrieval_dim(struct retrieval *r, const char *tenant);

struct retrieval_query {
    struct catalog_scope scope;
    const char *text; /* [text_len]; NULL: vector only */
    size_t text_len;
    const float *vector; /* [dim]; NULL: words only */
    uint32_t dim;
    const struct json *filter; /* NULL: none */
    enum retrieval_mode mode;  /* AUTO: both where both are given and there are vectors */
    uint32_t top_k;            /* 1 to RETRIEVAL_TOP_K_MAX */
    uint32_t n_stages;         /* of the vector search; 0 and 1: one */
};

struct retrieval_hit {
    int64_t row;
    double score;                       /* the one that orders the list */
    uint32_t lexical_rank, vector_rank; /* from 1; 0: not in that list */
};

/* One search. Words are searched in the first stage; every further stage visits more lists. Filter,
 * text and tenant are borrowed until retrieval_end(), the vector is copied. */
struct retrieval_search;
NODISCARD enum status retrieval_begin(struct retrieval_search **out, struct retrieval *r,
                                      const struct retrieval_query *q, struct buf *why);
/* Run a stage: hits [top_k], best first, *n of them. *is_last: this list is final. */
NODISCARD enum status retrieval_next(struct retrieval_search *s, struct retrieval_hit *hits,
                                     uint32_t *n, bool *is_last, struct buf *why);
void retrieval_end(struct retrieval_search *s); /* NULL is fine */

struct retrieval_stats {
    uint64_t n_searches, n_vectors, n_tombstones, n_rebuilds, memory_bytes;
};
void retrieval_stats(struct retrieval *r, struct retrieval_stats *out);

#endif
