/* answer.h - the JSON of answers, whole and as SSE frames, in OpenAI's shape.
 *
 * Beyond OpenAI's, as in vLLM: stop_reason (the stop string or id that ended an answer, else null),
 * token_ids and prompt_token_ids on return_token_ids. usage.prompt_tokens_details.cached_tokens is
 * always there, and beside it, named as in SGLang, cached_tokens_details: the same tokens by the
 * tier that held them.
 *
 * Owns    nothing.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_ANSWER_H
#define TARN_SERVER_API_ANSWER_H

#include "base/buf.h"

struct call;
struct choice;

/* Every choice is finished. */
NODISCARD enum status answer_write(const struct call *call, struct buf *out);

/* Frames, each "data: {...}\n\n". The first of a choice: its role, or the echoed prompt. */
NODISCARD enum status frame_write_begin(const struct call *call, const struct choice *c,
                                        struct buf *out);
/* What choice_has_delta() speaks of. */
NODISCARD enum status frame_write_delta(const struct call *call, const struct choice *c,
                                        struct buf *out);
NODISCARD enum status frame_write_end(const struct call *call, const struct choice *c,
                                      struct buf *out);
NODISCARD enum status frame_write_usage(const struct call *call, struct buf *out);
NODISCARD enum status frame_write_error(struct buf *out, enum status s, const char *words);
/* What frame_write_*() put before "choices"; made once per call. */
NODISCARD enum status frame_make_head(const struct call *call, struct buf *head);

#define FRAME_DONE "data: [DONE]\n\n"
#define FRAME_KEEP_ALIVE ": keep-alive\n\n"

#endif
