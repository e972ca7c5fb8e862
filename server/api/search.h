/* search.h - the field `retrieval` of a request, which asks the server to find documents.
 *
 *     {"scope": "all"|"own"|"public", "query": text, "embedding": [numbers],
 *      "mode": "auto"|"lexical"|"vector"|"hybrid", "top_k": 4, "filter": {...},
 *      "order": "score"|"cache"|"id"}
 *
 * The default query is the last message of a user, or the prompt of a text completion. Without an
 * embedding the query is embedded where the server has a model for that. The default order is "id":
 * the prompt depends on the found documents alone, neither on the ranks of a provisional list nor
 * on what is cached (docs/user/retrieval.md has the measurement).
 *
 * Owns    struct search: search_fini(). The filter is borrowed from the JSON document.
 * Thread  search_read(): any. search_run(): a work thread.
 * Errors  ERR_INVALID: words name the field; ERR_UNSUPPORTED: the server lacks what is asked for;
 *         ERR_CANCELLED: step() ended the search; others as retrieval.h.
 * Units   milliseconds where a name ends in _ms. */
#ifndef TARN_SERVER_API_SEARCH_H
#define TARN_SERVER_API_SEARCH_H

#include <stdbool.h>

#include "server/api/documents.h"
#include "server/api/library.h"
#include "server/api/unknown_fields.h"

#define SEARCH_QUERY_BYTES_MAX (16u << 10)
#define SEARCH_N_STAGES 4

struct search {
    bool own, public;
    struct buf query;  /* empty: none */
    struct buf vector; /* of float; empty: none */
    enum retrieval_mode mode;
    uint32_t top_k;
    const struct json *filter; /* NULL: none */
    enum documents_order order;
    uint32_t n_stages_min; /* stages to run even if the list is final; 0: none */
};

/* Whether the body asks for a search. */
bool search_is_wanted(const struct json *body);
/* Read the field; is_chat as documents_read(). unknown (may be NULL) collects unknown fields. Call
 * search_fini() after errors too. */
NODISCARD enum status search_read(struct search *s, const struct json *body, bool is_chat,
                                  struct unknown_fields *unknown, struct buf *why);
void search_fini(struct search *s);
/* "score", "cache", "id" */
const char *search_order_name(const struct search *s);

/* The result of a search so far. */
struct search_state {
    struct retrieval_hit hits[RETRIEVAL_TOP_K_MAX]; /* best first */
    uint32_t n_hits, n_stages;
    const char *mode; /* the one in effect: "lexical", "vector", "hybrid" */
    double embedding_ms;
    bool is_last; /* the list is final */
};
/* Search, and call step() after each stage; step() returning another status than OK ends the
 * search. */
NODISCARD enum status search_run(struct search *s, const struct library_parts *parts,
                                 const char *tenant,
                                 enum status (*step)(void *arg, const struct search_state *state),
                                 void *arg, struct search_state *state, struct buf *why);

#endif
