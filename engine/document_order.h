/* document_order.h - in which order of a prompt's documents most of it is cached.
 *
 * KV is found by prefix, so a document is a hit only behind the same documents in the same order as
 * before. Given a prompt whose documents are spans, this looks for the path of documents that is
 * cached farthest, and puts what is left behind it in the given order. Nothing is reserved and
 * nothing waits: what is cached is read from a hint (cache_knows()) and may change at once.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   positions in the prompt, in tokens. */
#ifndef TARN_ENGINE_DOCUMENT_ORDER_H
#define TARN_ENGINE_DOCUMENT_ORDER_H

#include "cache/cache.h"

struct engine;

/* A document's span. */
struct document_place {
    uint32_t begin, end;
};

/* The prompt as it is with the documents in the given order. */
struct document_prompt {
    const uint32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends; /* [n_span_ends], as struct cache_prompt has them */
    uint32_t n_span_ends;
    uint32_t n_public;
    const struct kv_scope *scope;
    const struct document_place *documents; /* [n_documents], ascending; what stands between two of
                                               them belongs to the place, not to the documents */
    uint32_t n_documents;
};

/* order [n_documents]: which document stands at each place. *n_cached: tokens of documents that are
 * cached in that order; 0 leaves the given order. Looks at a bounded number of blocks (8192, about
 * 5 ms): what was found by then counts. */
NODISCARD enum status document_order_by_cache(const struct engine *e,
                                              const struct document_prompt *p, uint32_t *order,
                                              uint32_t *n_cached);

#endif
