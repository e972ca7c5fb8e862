/* vectors.h - an index of vectors: the k nearest of one collection, by Faiss.
 *
 * Faiss's index_factory() makes the index ("Flat", "IVF1024,Flat", "HNSW32", ...). "auto" searches
 * exactly while there are few vectors and builds an inverted file where there are many. Vectors are
 * normalized, so that the inner product is the cosine. A removed or replaced vector becomes a
 * tombstone, which searches skip; above 20 % of tombstones the index is rebuilt in the background,
 * and searches go on in the old one until the new one is ready.
 *
 * The index lies in memory and is saved to a file, which is only a cache: whoever owns the vectors
 * (catalog.h) can always build it again. A file that is torn, of another version, dimension or
 * generation is ignored.
 *
 * Staged search. An inverted file is searched list by list, nearest centroid first (Faiss's
 * search_preassigned()); after each stage the provisional result is known, which a pipeline may use
 * before the end (Jin et al., "RAGCache", 2024, arXiv 2404.12457, section 5.3).
 *
 * Owns    the index, its file, the thread that rebuilds it.
 * Thread  any; calls lock. Searches run in parallel; a put waits for them.
 * Errors  ERR_INVALID: a wrong dimension or factory, a vector that is not finite or is zero; ERR_IO;
 *         ERR_NOMEM; ERR_UNSUPPORTED: built without Faiss.
 * Units   scores: cosine, -1 to 1. */
#ifndef TARN_ENGINE_RETRIEVAL_VECTORS_H
#define TARN_ENGINE_RETRIEVAL_VECTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct vectors;

struct vectors_config {
    uint32_t dim;
    const char *factory; /* NULL or "auto": chosen by the number of vectors */
    const char *file;    /* NULL: not saved */
    uint64_t generation; /* of the catalog: a file of another generation is ignored */
    uint32_t n_probe;    /* lists that a search visits; 0: chosen */
    uint32_t n_threads;  /* of one rebuild; 0: 1 */
    uint64_t seed;
};

/* Whether this build has Faiss. Without it vectors_open() answers ERR_UNSUPPORTED. */
bool vectors_are_supported(void);
/* *is_loaded: the file was read; else the index is empty and the caller puts all vectors. */
NODISCARD enum status vectors_open(struct vectors **out, const struct vectors_config *config,
                                   bool *is_loaded, struct buf *why);
void vectors_close(struct vectors *v); /* waits for a rebuild; does not save. NULL is fine */

/* Add or replace the vector x [dim] of this id (>= 0). */
NODISCARD enum status vectors_put(struct vectors *v, int64_t id, const float *x, struct buf *why);
/* The same for n vectors x [n * dim]. */
NODISCARD enum status vectors_put_many(struct vectors *v, const int64_t *ids, const float *x,
                                       uint32_t n, struct buf *why);
void vectors_remove(struct vectors *v, int64_t id); /* an unknown id is fine */
/* Write the file: complete or not at all. */
NODISCARD enum status vectors_save(struct vectors *v, struct buf *why);

struct vector_hit {
    int64_t id;
    float score;
};
/* The k nearest of q [dim], best first; fits (may be NULL) leaves ids out. *n: hits, at most k. */
NODISCARD enum status vectors_search(struct vectors *v, const float *q, uint32_t k,
                                     bool (*fits)(void *arg, int64_t id), void *arg,
                                     struct vector_hit *hits, uint32_t *n, struct buf *why);

/* One search in n_stages. An index without lists, and one of few vectors, has one stage. */
struct vectors_scan;
NODISCARD enum status vectors_scan_begin(struct vectors_scan **out, struct vectors *v,
                                         const float *q, uint32_t k, uint32_t n_stages,
                                         bool (*fits)(void *arg, int64_t id), void *arg,
                                         struct buf *why);
/* Run one stage: the hits so far, best first. *is_last: no stage is left. */
NODISCARD enum status vectors_scan_next(struct vectors_scan *scan, struct vector_hit *hits,
                                        uint32_t *n, bool *is_last, struct buf *why);
void vectors_scan_end(struct vectors_scan *scan); /* NULL is fine */

struct vectors_stats {
    uint64_t n_live, n_tombstones, n_rebuilds;
    bool is_rebuilding;
    char factory[64]; /* of the index in use */
    uint64_t memory_bytes;
};
void vectors_stats(struct vectors *v, struct vectors_stats *out);

#endif
