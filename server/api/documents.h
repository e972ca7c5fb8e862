/* documents.h - the documents of one prompt: which they are, their place and their order.
 *
 * An entry of the field `documents` is inline, {"title", "text"}, or names a registered document by
 * its id, "a" or {"id": "a"}. A registered document that is named twice is used once, at its first
 * place. Documents that a search found follow those of the field.
 *
 * Place. Most chat templates do not render documents, and some render them after the first user
 * message. The KV of such documents is never reused, because their prefix differs in each request.
 * So by default the template's own place is used only if the template writes nothing of the request
 * before it. Otherwise documents go to the end of the system message (one is added if there is
 * none), in this format:
 *
 *     {system message}
 *     (empty line)
 *     Documents:
 *     ### {title of the first, or "Document"}
 *     {its text}
 *     ### {title of the second}
 *     ...
 *     ### End of documents
 *
 * Each document begins on a new line and ends with a newline, so that it can be a span
 * (engine/text/spans.h). `documents_placement` "system" or "template" overrides the default. In a
 * text completion the block, from "Documents:" on, stands before the prompt.
 *
 * Order. `documents_order`: "given"; "id": by id, the documents without one behind them; "cache":
 * the order of which most KV is cached (engine/document_order.h).
 *
 * Citations. `citations` true adds a line that asks for them (citations.h) behind the documents, so
 * that their KV is the same with it and without it: in the block, or at the template's own place at
 * the end of the last user message.
 *
 * Owns    struct documents: documents_fini(). struct document_use: document_uses_free().
 * Thread  any; reads only what is constant after start.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_TOO_LARGE with words that name the field; ERR_NOMEM.
 * Units   bytes of UTF-8. */
#ifndef TARN_SERVER_API_DOCUMENTS_H
#define TARN_SERVER_API_DOCUMENTS_H

#include <stdbool.h>

#include "base/json.h"
#include "engine/text/chat_template.h"

struct document;
struct server;

enum documents_order { DOCUMENTS_GIVEN, DOCUMENTS_BY_CACHE, DOCUMENTS_BY_ID };
#define DOCUMENTS_ORDER_NAMES "given|cache|id"

/* The part of an answer about one document. */
struct document_use {
    struct buf id;    /* empty: it has none */
    struct buf title; /* as the prompt has it */
    /* Registered documents only. */
    bool is_registered;
    bool is_public;
    bool is_shareable; /* its span may be public: public_documents.h */
    int64_t row;
    uint32_t version;
    /* Of a search. */
    bool is_retrieved;
    double score;
    uint32_t lexical_rank, vector_rank; /* from 1; 0: not in that list */
    bool wants_text;                    /* keep the text for the answer */
    struct json *text;                  /* a string, a reference; NULL: not kept */

    uint32_t given;            /* its index before the documents were ordered */
    uint32_t begin_id, end_id; /* its span, in tokens of the prompt; both 0: it is no span */
};
void document_uses_free(struct document_use *uses, uint32_t n); /* NULL is fine */

struct documents {
    struct json *list;         /* array of {"title", "text", ...}; NULL when there are none */
    struct document_use *uses; /* [n] beside the list */
    uint32_t n;
    size_t n_bytes, n_bytes_max; /* of texts */
    bool in_template;            /* at the template's own place, not at the end of the system
                                    message */
    bool template_leads;         /* documents_lead() of the template */
    bool wants_citations;
    enum documents_order order;
    uint32_t n_fixed; /* leading documents that keep their places whatever the order is */
};

/* Finds a registered document: catalog_get() for one tenant. */
struct documents_finder {
    enum status (*find)(void *arg, const char *id, struct document *out, struct buf *why);
    void *arg;
};

/* An empty list in this place. */
void documents_init(struct documents *d, const struct server *srv, bool in_template);
/* Read the fields `documents`, `documents_placement`, `documents_order` and `citations`. finder
 * NULL: an entry that is an id is refused. is_chat false: a text completion. */
NODISCARD enum status documents_read(struct documents *d, const struct server *srv,
                                     const struct json *body, bool is_chat,
                                     const struct documents_finder *finder, struct buf *why);
/* Whether an entry of `documents` is an id, so that documents_read() needs a finder. */
bool documents_have_ids(const struct json *body);
/* Append a registered document; found: the fields "of a search" are copied from it; may be NULL.
 * Does nothing if the list has the document already. */
NODISCARD enum status documents_add(struct documents *d, const struct document *registered,
                                    const struct document_use *found, struct buf *why);
/* Copy the list; the documents themselves are shared. */
NODISCARD enum status documents_copy(struct documents *out, const struct documents *d);
void documents_fini(struct documents *d);

/* Move the document at index order[i] to index i. order [n] is a permutation. */
NODISCARD enum status documents_reorder(struct documents *d, const uint32_t *order);
/* Carry out the order "id". */
NODISCARD enum status documents_sort(struct documents *d);

/* Append the format above, from "Documents:" on. Adds to *own (may be NULL) the ranges of *out that
 * are titles and texts of documents. */
NODISCARD enum status documents_write(const struct json *list, bool wants_citations,
                                      struct buf *out, struct ranges *own);

/* Whether the template writes documents before any text of a request; tested once at start with
 * probe messages. False when the template does not render documents. template may be NULL. */
bool documents_lead(const struct chat_template *template);

/* The line that asks for citations, with its newline. */
#define DOCUMENTS_CITATION_LINE                                                                    \
    "Cite each document that you use by its title in brackets, like this: [Title]\n"

#endif
