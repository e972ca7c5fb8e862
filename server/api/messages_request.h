/* messages_request.h - a request of Anthropic's Messages API as a request of a chat.
 *
 *   system, messages       messages; content blocks of text become parts, tool_use becomes
 *                          tool_calls, tool_result a message of the role "tool", thinking
 *                          reasoning_content; a last message of the assistant is continued
 *   document               an entry of `documents`, before those messages (documents.h)
 *   tools, tool_choice     the same in OpenAI's form, with parallel_tool_calls
 *   stop_sequences         stop
 *   thinking               enable_thinking and thinking of chat_template_kwargs; absent: false.
 *                          display "omitted": include_reasoning false
 *   output_config          format: response_format; effort: reasoning_effort
 *   cache_control          of content blocks: the same (retention.h). Of a tool or a document,
 *                          whose place in the prompt is the template's matter: of the first message
 *                          behind the system message
 *
 * Fields of chats that the Messages API does not have, such as `seed` and `retrieval`, are copied.
 *
 * Owns    nothing; the chat shares values with the body.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED with words that begin with the name of the field; ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_MESSAGES_REQUEST_H
#define TARN_SERVER_API_MESSAGES_REQUEST_H

#include "base/json.h"
#include "server/api/unknown_fields.h"

/* counts: for /v1/messages/count_tokens, which has no max_tokens. */
NODISCARD enum status messages_to_chat(struct json **out, const struct json *body, bool counts,
                                       struct buf *why);
/* Add the fields of the body that the Messages API and this server do not have. */
void messages_find_unknown(struct unknown_fields *u, const struct json *body);

#endif
