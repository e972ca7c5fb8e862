/* tool_calls.h - what a chat's history says about tools: the checks of tool_calls and tool_call_id.
 *
 * engine/text/chat_history.h then writes them in the form that the chat template knows.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID and ERR_UNSUPPORTED with words that name the field, as in
 *         "messages[1].tool_calls[0].id: expected a string, got null".
 * Units   none. */
#ifndef TARN_SERVER_API_TOOL_CALLS_H
#define TARN_SERVER_API_TOOL_CALLS_H

#include "base/json.h"

/* Check messages[index], which has this role. */
NODISCARD enum status tool_calls_check(const struct json *message, const char *role, size_t index,
                                       struct buf *why);

#endif
