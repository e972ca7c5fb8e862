/* document_order.h - the order of a prompt's documents for which most of the prompt is cached.
 *
 * KV is found by prefix, so a document is a hit only behind the same documents in the same order as
 * before. The search finds the longest cached path of documents; documents that are not on the path
 * follow it in the given order. The search reserves nothing and takes no lock: cache_knows() is a
 * hint, and the cache may change right after.
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
    bool is_public; /* its KV is shared by all tenants where everything before it is */
};

/* The prompt with the documents in the given order. */
struct document_prompt {
    const uint32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends; /* [n_span_ends], as struct cache_prompt has them */
    uint32_t n_span_ends;
    uint32_t n_public;
    const struct kv_scope *scope;
    const struct document_place *documents; /* [n_documents], ascending; the text between two of
                                               them stays at its place when documents move */
    uint32_t n_documents;
};

/* Choose the order. order [n_documents]: the index of the document for each place. *n_cached:
 * tokens of documents that are cached in that order; with 0 the given order stays. The search looks
 * up at most 8192 blocks, about 5 ms, and then returns the best order so far. */
NODISCARD enum status document_order_by_cache(const struct engine *e,
                                              const struct document_prompt *p, uint32_t *order,
                                              uint32_t *n_cached);

#endif
