/* public_documents.h - the public documents behind a public preamble, whose KV all tenants share.
 *
 * A registered document that is public extends the public prefix of a prompt (preamble.h) to the
 * end of its span if it stands directly behind that prefix, and so does each further one directly
 * behind it. The first text from the request ends the public prefix: an inline document never
 * belongs to it, whatever its text is.
 *
 * The template decides what it writes around a document, and a request can influence the template
 * (chat_template_kwargs). So the span must have exactly the bytes that the server's own chat has
 * around a document's title and text; else it is not public.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   bytes of UTF-8; Unix seconds. */
#ifndef TARN_SERVER_API_PUBLIC_DOCUMENTS_H
#define TARN_SERVER_API_PUBLIC_DOCUMENTS_H

#include "server/api/documents.h"

struct spans;

/* Move *end, the end of a public preamble in a chat's text, behind the public documents that follow
 * it, and set is_shareable of every document that may be one of them. d may be NULL. */
NODISCARD enum status public_documents_extend(const struct server *srv, struct documents *d,
                                              bool in_template, int64_t now_s,
                                              const struct spans *spans, const char *text,
                                              size_t *end);

#endif
