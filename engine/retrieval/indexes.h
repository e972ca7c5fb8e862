/* indexes.h - the open indexes of vectors, one per tenant and one for public documents.
 *
 * Owns    the indexes; the catalog is borrowed.
 * Thread  any; calls wait while the tenant's index is being opened or closed.
 * Errors  as catalog.h and vectors.h.
 * Units   none. */
#ifndef TARN_ENGINE_RETRIEVAL_INDEXES_H
#define TARN_ENGINE_RETRIEVAL_INDEXES_H

#include "engine/retrieval/retrieval.h"

struct indexes;
struct index_use; /* one tenant's index; it stays open until indexes_put_back() */

NODISCARD enum status indexes_create(struct indexes **out, const struct retrieval_config *config,
                                     struct buf *why);
void indexes_destroy(struct indexes *x); /* saves. NULL is fine */

/* Open the tenant's index, or find it open. */
NODISCARD enum status indexes_get(struct index_use **out, struct indexes *x, const char *tenant,
                                  struct buf *why);
/* The same if it is open or being opened; else NULL. */
struct index_use *indexes_get_open(struct indexes *x, const char *tenant);
void indexes_put_back(struct indexes *x, struct index_use *use); /* NULL is fine */

/* The vectors, valid until indexes_put_back(); NULL: none were ever put. */
struct vectors *index_vectors(struct index_use *use);
uint32_t index_dim(struct index_use *use); /* 0: there are no vectors */
NODISCARD enum status index_put(struct indexes *x, struct index_use *use, int64_t row,
                                const float *v, uint32_t dim, struct buf *why);
void index_remove(struct index_use *use, int64_t row);

/* Add up the vectors' part of *out. */
void indexes_stats(struct indexes *x, struct retrieval_stats *out);

#endif
