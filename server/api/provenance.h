/* provenance.h - which texts of a chat may not spell special tokens.
 *
 * Untrusted is what users, tools and documents say: every string and key of a message whose role is
 * neither system, developer nor assistant (its role apart), the tool calls of assistant messages
 * (also where they became text),
 * documents, and tool definitions. Trusted are the template's own text, system and developer
 * messages (the operator's), the model's earlier answers, and chat_template_kwargs, which the
 * application sets.
 *
 * Owns    nothing: the list borrows the strings of the context.
 * Thread  any.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   bytes of UTF-8. */
#ifndef TARN_SERVER_API_PROVENANCE_H
#define TARN_SERVER_API_PROVENANCE_H

#include "base/json.h"
#include "engine/text/chat_history.h"
#include "engine/text/chat_template.h"

/* Append to *texts (of struct chat_text) what is untrusted in a template's context. `calls` lists
 * the tool calls that became text (of struct chat_history_calls). When documents end the first
 * message's content, documents_len is how many bytes were written there for them, and `in_it` says
 * which of those are the documents' own; else documents_len is 0. */
NODISCARD enum status provenance_collect(struct buf *texts, const struct json *context,
                                         const struct buf *calls, size_t documents_len,
                                         const struct ranges *in_it);

#endif
