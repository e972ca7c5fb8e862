/* provenance.h - lists the untrusted texts of a chat, in which special tokens are plain text.
 *
 * Untrusted are the texts of users, tools and documents: all strings and keys of messages whose
 * role is not system, developer or assistant (except the role itself), the tool calls of assistant
 * messages (also if they were written as text), documents, and tool definitions. Trusted are the
 * template's own text, system and developer messages (the operator's), the model's earlier answers,
 * and chat_template_kwargs, which the application sets.
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

/* Append the untrusted texts of a template's context to *texts (of struct chat_text). `calls`: the
 * tool calls that were written as text (of struct chat_history_calls). documents_len: bytes at the
 * end of the first message that hold documents, 0 if none do; `in_it`: the ranges of these bytes
 * that are the documents' own text. */
NODISCARD enum status provenance_collect(struct buf *texts, const struct json *context,
                                         const struct buf *calls, size_t documents_len,
                                         const struct ranges *in_it);

#endif
