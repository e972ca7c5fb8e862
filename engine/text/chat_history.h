/* chat_history.h - the messages of a chat in the form that the chat template renders.
 *
 * Clients send the same history to every server, but templates support different roles and fields
 * (chat_traits.h). Messages are adapted so that no part of them is lost:
 * - Role "developer" becomes "system" if the template does not support it.
 * - The tool_calls of an assistant get their arguments as an object or as text, whichever the
 *   template renders. If it renders neither, each call becomes a line of the assistant's content:
 *       Tool call ID: NAME(ARGUMENTS)
 * - A message of role "tool" becomes one of role "user" if the template drops it:
 *       Tool result ID:
 *       CONTENT
 *   Consecutive results become one message, because many templates require that user and assistant
 *   alternate.
 *
 * Owns    the array of messages and the list of calls, until they are taken, and the text of
 *         results.
 * Thread  one at a time.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE: a text exceeds CHAT_HISTORY_TEXT_BYTES_MAX.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_CHAT_HISTORY_H
#define TARN_ENGINE_TEXT_CHAT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "engine/text/chat_traits.h"

#define CHAT_HISTORY_TEXT_BYTES_MAX (256u << 20)

/* Tool calls that became text: the content of this message from `begin` on. Their arguments may
 * repeat the words of a user or a tool, so the text is untrusted. */
struct chat_history_calls {
    uint32_t message; /* index in the array of messages */
    size_t begin;     /* bytes */
};

struct chat_history {
    struct json *messages;
    struct chat_traits traits;
    struct buf calls;   /* array of struct chat_history_calls */
    struct buf results; /* tool results since the last message that was none: the content of a
                           message to add */
    bool has_results;
};

NODISCARD enum status chat_history_init(struct chat_history *h, const struct chat_traits *traits);
void chat_history_fini(struct chat_history *h);
/* End the history and hand over the array of messages. */
NODISCARD enum status chat_history_take(struct chat_history *h, struct json **out);
/* Hand over the list of tool calls that became text: struct chat_history_calls. */
void chat_history_take_calls(struct chat_history *h, struct buf *out);

/* Add a message, which is taken over in every case. It is the caller's own object with a known
 * `role`, `content` (a text or null), and all other members that the client sent. The caller has
 * checked tool_calls: an array of {id, type, function: {name, arguments}} with C strings for id and
 * name; arguments are a text, an object or absent. tool_call_id, if set, is a C string. */
NODISCARD enum status chat_history_add(struct chat_history *h, struct json *message);

#endif
