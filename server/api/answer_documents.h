/* answer_documents.h - what an answer says about the documents of its prompt and about the search.
 *
 * Owns    nothing.
 * Thread  the HTTP thread of the exchange.
 * Errors  in the writer.
 * Units   tokens, milliseconds. */
#ifndef TARN_SERVER_API_ANSWER_DOCUMENTS_H
#define TARN_SERVER_API_ANSWER_DOCUMENTS_H

#include "server/api/call.h"
#include "server/api/documents.h"
#include "server/api/writer.h"

/* Whether the answer has something to say about documents. */
bool answer_has_documents(const struct call *call);
/* Write the members `documents` and `retrieval`, each with a comma before it, where the call has
 * them. The requests have begun, so that it is known what was cached. */
void answer_write_documents(struct writer *w, const struct call *call);
/* Write the member `citations` of a choice whose text is complete, with a comma before it, where
 * they were asked for. */
void answer_write_citations(struct writer *w, const struct call *call, const struct choice *c);

#endif
