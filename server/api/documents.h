/* documents.h - reads the `documents` of a chat request and chooses their place in the prompt.
 *
 * Most chat templates do not render documents, and some render them after the first user message.
 * The KV of such documents is never reused, because their prefix differs in each request. So by
 * default the template's own place is used only if the template writes nothing of the request
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
 * (engine/text/spans.h). `documents_placement` "system" or "template" overrides the default.
 *
 * Documents keep the given order. With `documents_order` "cache" the server chooses the order of
 * which most KV is cached (engine/document_order.h), and the answer contains that order.
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
    bool in_template;  /* at the template's own place, not at the end of the system message */
    bool by_cache;     /* documents_order is "cache" */
};

NODISCARD enum status documents_read(struct documents *d, const struct server *srv,
                                     const struct json *body, struct buf *why);
void documents_fini(struct documents *d);
/* Move the document at index order[i] to index i. order [js_len(list)] is a permutation. */
NODISCARD enum status documents_reorder(struct documents *d, const uint32_t *order);

/* Append the format above, from "Documents:" on. Adds to *own (may be NULL) the ranges of *out that
 * are titles and texts of documents. */
NODISCARD enum status documents_write(const struct json *list, struct buf *out, struct ranges *own);

/* Whether the template writes documents before any text of a request; tested once at start with
 * probe messages. False when the template does not render documents. template may be NULL. */
bool documents_lead(const struct chat_template *template);

#endif
