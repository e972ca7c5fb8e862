/* tool_calls.h - checks tool_calls and tool_call_id in the messages of a chat.
 *
 * engine/text/chat_history.h then writes them in the form that the chat template renders.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID and ERR_UNSUPPORTED with words that name the field, as in
 *         "messages[1].tool_calls[0].id: expected a string, got null".
 * Units   none. */
#ifndef TARN_SERVER_API_TOOL_CALLS_H
#define TARN_SERVER_API_TOOL_CALLS_H

#include "base/json.h"

/* Check messages[index]; role: its role. */
NODISCARD enum status tool_calls_check(const struct json *message, const char *role, size_t index,
                                       struct buf *why);

#endif
