/* preamble_use.h - requests that name a preamble: {"preamble": "support"}.
 *
 * The request becomes the one that brings the preamble's text itself: its system prompt is the
 * first message of a chat, `system` of a message, `instructions` of a response. Its tools are the
 * chat's where the body has no `tools` (absent or null). Own tools, an empty list included, take
 * their place. A request that names a preamble has no such system prompt of its own.
 *
 * The tools are written as in chats. The reader of another API's body puts them into the chat that
 * it makes, by preamble_add_tools(): translated to that API's form and back, they might not be the
 * same text.
 *
 * The record is read on a work thread (wait.h), which makes the new body.
 *
 * Owns    the work, until the wait is over.
 * Thread  the exchange's.
 * Errors  ERR_NOT_FOUND: no preamble of this id that the caller sees; ERR_UNSUPPORTED: the server
 *         keeps no preambles; ERR_INVALID; ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_PREAMBLE_USE_H
#define TARN_SERVER_API_PREAMBLE_USE_H

#include <stdbool.h>

#include "base/json.h"

struct call;

enum preamble_api { PREAMBLE_CHAT, PREAMBLE_MESSAGES, PREAMBLE_RESPONSES };

bool preamble_is_named(const struct json *body);
/* From the read() of call_serve(): have the call wait for the body with the preamble's text. */
NODISCARD enum status preamble_use_begin(struct call *call, enum preamble_api api,
                                         const struct json *body, struct buf *why);
/* Put the preamble's tools, if the call waited for one that has some, into a chat without tools. */
NODISCARD enum status preamble_add_tools(const struct call *call, struct json *chat,
                                         struct buf *why);

#endif
