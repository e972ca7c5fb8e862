/* logprobs.h - log-probabilities of tokens as JSON, in OpenAI's two shapes.
 *
 * Chats have one list, whose members are objects. Text completions have four lists side by side:
 * tokens, their logprobs, the best alternatives, and text_offset, the number of characters of the
 * answer's text before the token. A character that several tokens make together has the offset of
 * its first byte in all of them, so text[offset[i]:offset[i + 1]] is what token i completed.
 *
 * A token that is no text by itself (a part of a character) is written as OpenAI does, with
 * backslashes: "bytes:\xe2\x82" in text completions, "\xe2\x82" in chats. Without a tokenizer a
 * token is "token_id:5", as in vLLM.
 *
 * Owns    nothing: the lists are the choice's.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   nats; characters of the text. */
#ifndef TARN_SERVER_API_LOGPROBS_H
#define TARN_SERVER_API_LOGPROBS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct choice;
struct server;

#define LOGPROB_LEAST (-9999.0) /* instead of -inf, which JSON has not; as in vLLM */

/* Append output token i of the choice. in_text: the token is part of the answer's text. */
NODISCARD enum status logprobs_add_chat(struct choice *c, const struct server *srv, uint32_t i);
NODISCARD enum status logprobs_add_completion(struct choice *c, const struct server *srv,
                                              uint32_t i, bool in_text);
/* Append token i of the echoed prompt (c->scored, c->echo), in order; nothing precedes token 0, so
 * its logprob is null. */
NODISCARD enum status logprobs_add_prompt(struct choice *c, const struct server *srv, uint32_t i);
/* Append the whole prompt as `from` has it, which is not streamed. */
NODISCARD enum status logprobs_copy_prompt(struct choice *c, const struct choice *from);

#endif
