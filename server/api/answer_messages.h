/* answer_messages.h - answers in the form of Anthropic's Messages API: a message of content blocks,
 * whole and as events.
 *
 * usage: input_tokens are those that were neither read from the cache nor newly held there by
 * cache_control; the three fields add up to the prompt.
 *
 * The signature of a thinking block is a hash of its text. Nothing checks it; clients drop a block
 * without one.
 *
 * Owns    struct messages_state, in call->shape_state.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_ANSWER_MESSAGES_H
#define TARN_SERVER_API_ANSWER_MESSAGES_H

#include "base/hash.h"
#include "base/json.h"
#include "server/api/shape.h"

enum messages_block { MESSAGES_NO_BLOCK, MESSAGES_THINKING, MESSAGES_TEXT, MESSAGES_CALL };

struct messages_state {
    struct json *chat;          /* the request; params point into it */
    enum messages_block block;  /* open in the stream */
    uint32_t n_blocks;          /* begun */
    struct hash_state thoughts; /* of an open block of thinking */
    uint32_t n_calls;           /* begun; the last one is that of an open block of a call */
};

extern const struct shape answer_messages;

/* Give the call its state, which takes over `chat`, also after an error: ERR_NOMEM. */
NODISCARD enum status messages_state_attach(struct call *call, struct json *chat);

#endif
