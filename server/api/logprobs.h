/* logprobs.h - writes log-probabilities of tokens as JSON, in OpenAI's two shapes and in vLLM's.
 *
 * Chats have one list of objects. Text completions have four parallel lists: tokens, their
 * logprobs, the best alternatives, and text_offset, the number of characters of the answer's text
 * before the token. When several tokens form one character, all of them have the offset of that
 * character. So text[offset[i]:offset[i + 1]] is the text that token i completed.
 *
 * A token that is not valid UTF-8 by itself (a part of a character) is written with backslashes, as
 * OpenAI does: "bytes:\xe2\x82" in text completions, "\xe2\x82" in chats. So is a token with the
 * character U+0000 in text completions, where tokens are keys of objects. Without a tokenizer,
 * and with return_tokens_as_token_ids, a token is written "token_id:5", as in vLLM.
 *
 * Owns    nothing: the lists belong to the choice.
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

#define LOGPROB_LEAST (-9999.0) /* stands for -inf, which JSON cannot express; as in vLLM */

/* Append output token i of the choice. in_text: the token is part of the answer's text. */
NODISCARD enum status logprobs_add_chat(struct choice *c, const struct server *srv, uint32_t i);
NODISCARD enum status logprobs_add_completion(struct choice *c, const struct server *srv,
                                              uint32_t i, bool in_text);
/* Append token i of the echoed prompt (c->scored, c->echo), in ascending order. The logprob of
 * token 0 is null, because it has no context. */
NODISCARD enum status logprobs_add_prompt(struct choice *c, const struct server *srv, uint32_t i);
/* Append entry i of the prompt's list prompt_logprobs to c->ranked, in ascending order, as vLLM
 * writes it: {"ID": {"logprob", "rank", "decoded_token"}} of the token and of n_tops alternatives,
 * null for token 0. The rank of a token that is none of them is null. */
NODISCARD enum status logprobs_add_ranked(struct choice *c, const struct server *srv,
                                          uint32_t n_tops, uint32_t i);
/* Copy the logprobs of the whole prompt from another choice, which is not streamed. */
NODISCARD enum status logprobs_copy_prompt(struct choice *c, const struct choice *from);

#endif
