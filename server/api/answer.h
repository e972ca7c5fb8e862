/* answer.h - the JSON of answers, whole and as SSE frames, in OpenAI's shape.
 *
 * Fields beyond OpenAI's, as in vLLM: stop_reason (the stop string or id that ended an answer, else
 * null); token_ids and prompt_token_ids where return_token_ids asks for them.
 * usage.prompt_tokens_details always has cached_tokens and, named as in SGLang,
 * cached_tokens_details: the same tokens by the tier that held them. What Tarn says about documents
 * is in answer_documents.h; in a stream it stands in the first frame.
 *
 * Owns    nothing.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_ANSWER_H
#define TARN_SERVER_API_ANSWER_H

#include "server/api/shape.h"

extern const struct shape answer_chat, answer_completion;

#endif
