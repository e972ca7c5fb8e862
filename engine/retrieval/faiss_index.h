/* faiss_index.h - the few functions of Faiss that vectors.c needs, in C.
 *
 * faiss_index.cc implements them and is the only file that sees Faiss; faiss_none.c is linked
 * instead where Tarn is built without Faiss, and every function that returns a status then answers
 * ERR_UNSUPPORTED.
 *
 * An index keeps whole vectors of length 1 and compares them by inner product. Its factory
 * (Faiss's index_factory()) is "Flat", "HNSW<m>[,Flat]" or "IVF<n>,Flat", where the part before the
 * comma may name another coarse quantizer, as in "IVF4096_HNSW32,Flat". The n-th vector added has
 * the label n, from 0. Of hits with the same score the one with the larger label is better.
 *
 * Owns    the index.
 * Thread  any; the caller locks: readers (const) in parallel, or one writer. A search uses the
 *         calling thread only.
 * Errors  ERR_INVALID: the factory; ERR_NOMEM; ERR_CORRUPT: the stored index; ERR_CANCELLED: *stop;
 *         ERR_INTERNAL: Faiss failed; ERR_UNSUPPORTED. No exception gets out.
 * Units   none. */
#ifndef TARN_ENGINE_RETRIEVAL_FAISS_INDEX_H
#define TARN_ENGINE_RETRIEVAL_FAISS_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct faiss_index;

bool faiss_index_is_supported(void);

NODISCARD enum status faiss_index_create(struct faiss_index **out, uint32_t dim,
                                         const char *factory, uint64_t seed, struct buf *why);
void faiss_index_destroy(struct faiss_index *ix); /* NULL is fine */

/* Inverted lists; 0: an index without lists, which needs no training. */
uint32_t faiss_index_n_lists(const struct faiss_index *ix);
uint64_t faiss_index_n_total(const struct faiss_index *ix);
uint64_t faiss_index_bytes(const struct faiss_index *ix);

struct faiss_work {
    uint32_t n_threads;
    const bool *stop; /* set by another thread, atomically: give up; NULL: never */
};
/* Choose the lists by k-means over x [n, dim], n at least faiss_index_n_lists(). */
NODISCARD enum status faiss_index_train(struct faiss_index *ix, const struct faiss_work *work,
                                        const float *x, uint64_t n, struct buf *why);
/* All or none of the n vectors; ERR_INTERNAL, ERR_NOMEM and ERR_CANCELLED may leave an index that
 * can only be destroyed. */
NODISCARD enum status faiss_index_add(struct faiss_index *ix, const struct faiss_work *work,
                                      const float *x, uint64_t n, struct buf *why);
/* Return the memory that grown tables do not use. */
void faiss_index_trim(struct faiss_index *ix);

struct faiss_hits {
    bool (*fits)(void *arg, int64_t label); /* asked only for vectors that would be hits */
    void *arg;
    uint32_t k;
    float *scores;   /* [k], best first */
    int64_t *labels; /* [k] */
    uint32_t n;      /* written */
};
/* The k nearest of q [dim] in an index without lists. */
NODISCARD enum status faiss_index_search(const struct faiss_index *ix, const float *q,
                                         struct faiss_hits *hits, struct buf *why);
/* The n lists whose centroids are nearest to q, nearest first. */
NODISCARD enum status faiss_index_lists(const struct faiss_index *ix, const float *q, uint32_t n,
                                        int64_t *lists, float *scores, struct buf *why);
/* The k nearest of q in these lists, as faiss_index_lists() returned them. */
NODISCARD enum status faiss_index_search_lists(const struct faiss_index *ix, const float *q,
                                               const int64_t *lists, const float *scores,
                                               uint32_t n_lists, struct faiss_hits *hits,
                                               struct buf *why);

/* Copy the next at most n_max vectors to labels [n_max] and x [n_max, dim]; *n is 0 at the end.
 * A vector added after the first call may be missing. */
struct faiss_cursor {
    uint64_t list, at; /* zero before the first call */
};
void faiss_index_copy(const struct faiss_index *ix, struct faiss_cursor *cursor, uint64_t n_max,
                      int64_t *labels, float *x, uint64_t *n);

/* Write the index by calls of `write`; ERR_IO if one returns false. */
NODISCARD enum status faiss_index_write(const struct faiss_index *ix,
                                        bool (*write)(void *arg, const void *bytes, size_t n),
                                        void *arg, struct buf *why);
/* Read what faiss_index_write() wrote of an index of this factory. The bytes are checked: a search
 * of an index that is returned stays inside its memory. */
NODISCARD enum status faiss_index_read(struct faiss_index **out, uint32_t dim, const char *factory,
                                       const void *bytes, size_t n, struct buf *why);

#ifdef __cplusplus
}
#endif
#endif
