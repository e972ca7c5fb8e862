/* vectors.h - an index of vectors: the k nearest of one collection, by Faiss.
 *
 * The factory is one of Faiss's index_factory() that keeps whole vectors: "Flat", "IVF<n>,Flat" or
 * "HNSW<m>". "auto" searches exactly while there are fewer than VECTORS_AUTO_FLAT vectors, and
 * above that builds an inverted file (IVF) of 2 sqrt(n) lists. An inverted file needs a sample of
 * vectors for its k-means: the index is "Flat" until there are VECTORS_PER_LIST vectors per list.
 *
 * Vectors are normalized, so that the inner product is the cosine. A removed or replaced vector
 * becomes a tombstone, which searches skip. The index is rebuilt in the background above 20 % of
 * tombstones, when a flat index has vectors enough for its lists, and when an automatic inverted
 * file has grown fourfold. Searches and changes go on in the old index until the new one is ready.
 *
 * The index lies in memory and is saved to a file, which is only a cache: whoever owns the vectors
 * (catalog.h) can always build it again. A file that is torn, or of another version, dimension,
 * factory or generation, is ignored. After loading a file the owner puts all vectors again, which
 * is cheap for those that are in the index already, and then calls vectors_retain().
 *
 * Staged search. An inverted file is searched list by list, nearest centroid first (Faiss's
 * search_preassigned()); after each stage the provisional result is known, which a pipeline may use
 * before the end (Jin et al., "RAGCache", 2024, arXiv 2404.12457, section 5.3).
 *
 * Owns    the index, the thread that rebuilds it.
 * Thread  any; calls lock. Searches run in parallel, each on the calling thread; a put waits for
 *         them. `fits` is called under the lock and must not call this module.
 * Errors  ERR_INVALID: a wrong dimension or factory, a vector that is not finite or is zero (words
 *         without a prefix); ERR_IO; ERR_NOMEM; ERR_UNSUPPORTED: built without Faiss.
 * Units   scores: cosine, -1 to 1. */
#ifndef TARN_ENGINE_RETRIEVAL_VECTORS_H
#define TARN_ENGINE_RETRIEVAL_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define VECTORS_DIM_MAX 8192
#define VECTORS_FACTORY_BYTES_MAX 64
#define VECTORS_AUTO_FLAT 20000
#define VECTORS_PER_LIST 8

struct vectors;

struct vectors_config {
    uint32_t dim;
    const char *factory; /* NULL or "auto": chosen by the number of vectors */
    const char *file;    /* NULL: not saved */
    uint64_t generation; /* of the owner's data: a file of another generation is ignored */
    uint32_t n_probe;    /* lists that a search visits; 0: chosen */
    uint32_t n_threads;  /* of one rebuild; 0: 1 */
    uint64_t seed;
};

/* Whether this build has Faiss. Without it vectors_open() answers ERR_UNSUPPORTED. */
bool vectors_are_supported(void);
/* *is_loaded: the file was read; else the index is empty and the caller puts all vectors. */
NODISCARD enum status vectors_open(struct vectors **out, const struct vectors_config *config,
                                   bool *is_loaded, struct buf *why);
void vectors_close(struct vectors *v); /* stops a rebuild; does not save. NULL is fine */

/* Add or replace the vector x [dim] of this id (>= 0). The same vector again changes nothing. */
NODISCARD enum status vectors_put(struct vectors *v, int64_t id, const float *x, struct buf *why);
/* The same for n vectors x [n * dim]. */
NODISCARD enum status vectors_put_many(struct vectors *v, const int64_t *ids, const float *x,
                                       uint32_t n, struct buf *why);
void vectors_remove(struct vectors *v, int64_t id); /* an unknown id is fine */
/* Remove all ids but these, which are in ascending order. */
void vectors_retain(struct vectors *v, const int64_t *ids, uint64_t n);
/* Wait until no rebuild runs. */
void vectors_wait(struct vectors *v);
/* Write the file, complete or not at all, if anything has changed since it was read or written. A
 * rebuild that ends writes it too. */
NODISCARD enum status vectors_save(struct vectors *v, struct buf *why);

struct vector_hit {
    int64_t id;
    float score;
};
/* The k nearest of q [dim], best first; fits (may be NULL) leaves ids out. *n: hits, at most k. */
NODISCARD enum status vectors_search(struct vectors *v, const float *q, uint32_t k,
                                     bool (*fits)(void *arg, int64_t id), void *arg,
                                     struct vector_hit *hits, uint32_t *n, struct buf *why);

/* One search in n_stages, at most one per list visited. An index without lists has one stage. If
 * the index is rebuilt between two stages, the next one searches the new index and is the last. */
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
