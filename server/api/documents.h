/* documents.h - the `documents` of a chat request: what they are and where they stand.
 *
 * Most chat templates know no documents, and some put them behind the first user message, where
 * nothing in front of them ever repeats. So by default the template's own place is used only if
 * nothing request-specific stands before it; else documents go to the end of the system message
 * (which is made if there is none):
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
 * Each begins on a new line and ends with a newline, so that it can be a span (engine/text/spans.h).
 * `documents_placement` "system" or "template" overrides.
 *
 * Their order is the given one, or with `documents_order` "cache" the one of which most is cached
 * (engine/document_order.h); then the answer says which that was.
 *
 * Owns    struct documents: documents_fini().
 * Thread  any; reads only what is constant after start.
 * Errors  ERR_INVALID with words that name the field; ERR_NOMEM.
 * Units   bytes of UTF-8. */
#ifndef TARN_SERVER_API_DOCUMENTS_H
#define TARN_SERVER_API_DOCUMENTS_H

#include <stdbool.h>

#include "base/json.h"
#include "engine/text/chat_template.h"

struct server;

struct documents {
    struct json *list; /* array of {"title", "text", ...}; NULL when there are none */
    bool in_template;  /* else at the end of the system message */
    bool by_cache;     /* what is cached may choose their order */
};

NODISCARD enum status documents_read(struct documents *d, const struct server *srv,
                                     const struct json *body, struct buf *why);
void documents_fini(struct documents *d);
/* The document that stood at order[i] stands at i. order [js_len(list)] is a permutation. */
NODISCARD enum status documents_reorder(struct documents *d, const uint32_t *order);

/* The stated format above, from "Documents:" on. Which bytes of it are the documents' own is added
 * to *own (may be NULL), as offsets into *out. */
NODISCARD enum status documents_write(const struct json *list, struct buf *out, struct ranges *own);

/* Whether the template puts documents before anything that a request says: tried once at start with
 * made-up messages. False when it knows no documents. template may be NULL. */
bool documents_lead(const struct chat_template *template);

#endif
