/* prompt_documents.h - prompts with documents: their order, their spans, and text completions.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  as prompt.h.
 * Units   none. */
#ifndef TARN_SERVER_API_PROMPT_DOCUMENTS_H
#define TARN_SERVER_API_PROMPT_DOCUMENTS_H

#include "server/api/documents.h"
#include "server/api/prompt.h"

struct spans;

/* Make the prompt with encode(), which tokenizes the documents of *d in their order and finds their
 * spans. For the order "cache" it is made a second time, in the chosen order. *p takes over
 * d->uses.
 */
NODISCARD enum status
prompt_with_documents(struct prompt *p, const struct server *srv, struct documents *d,
                      enum status (*encode)(void *arg, struct prompt *p, struct spans *spans),
                      void *arg, struct buf *why);

/* The prompt of a text completion: the documents' block and the text behind it. flags: as
 * prompt_from_text(). want_text: keep both for `echo`. */
NODISCARD enum status prompt_from_text_with(struct prompt *p, const struct server *srv,
                                            const char *text, size_t len, unsigned flags,
                                            struct documents *d, bool want_text, struct buf *why);

#endif
