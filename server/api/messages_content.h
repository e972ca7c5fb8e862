/* messages_content.h - the messages of Anthropic's Messages API as messages of a chat.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED with words that begin with the name of the field; ERR_NOMEM,
 *         without words.
 * Units   none. */
#ifndef TARN_SERVER_API_MESSAGES_CONTENT_H
#define TARN_SERVER_API_MESSAGES_CONTENT_H

#include <stdbool.h>

#include "base/json.h"

struct messages_content {
    struct json *messages;      /* of the chat */
    struct json *documents;     /* of the blocks */
    struct json *cache_control; /* of the last tool or document before the first message; borrowed.
                                   NULL: none */
    bool has_turn;              /* a message of the user or the assistant was added */
    bool continues;             /* the last message is text of the assistant */
};

/* Add the system message; v NULL: there is none. */
NODISCARD enum status messages_add_system(struct messages_content *c, struct json *v,
                                          struct buf *why);
/* Add messages[index]. */
NODISCARD enum status messages_add(struct messages_content *c, struct json *message, size_t index,
                                   struct buf *why);

/* --- for messages_request.c --- */

/* Check the type of a member; absent and null are fine. name: of the object, "" for the body. */
NODISCARD enum status messages_check_type(struct json *object, const char *name, const char *key,
                                          enum js_type type, struct buf *why);
/* Check cache_control of the object `name`. */
NODISCARD enum status messages_check_control(struct json *object, const char *name,
                                             struct buf *why);
/* Copy a member that is set. */
NODISCARD enum status messages_copy(struct json *out, const char *out_key, struct json *from,
                                    const char *key);

#endif
