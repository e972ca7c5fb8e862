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

#include "base/buf.h"

struct call;
struct choice;

/* Write the whole answer; every choice has finished. */
NODISCARD enum status answer_write(const struct call *call, struct buf *out);

/* Frames, each "data: {...}\n\n". The first frame of a choice has its role, or the echoed
 * prompt. */
NODISCARD enum status frame_write_begin(const struct call *call, const struct choice *c,
                                        struct buf *out);
/* The contents of the choice's bufs (choice_has_delta()). */
NODISCARD enum status frame_write_delta(const struct call *call, const struct choice *c,
                                        struct buf *out);
NODISCARD enum status frame_write_end(const struct call *call, const struct choice *c,
                                      struct buf *out);
NODISCARD enum status frame_write_usage(const struct call *call, struct buf *out);
NODISCARD enum status frame_write_error(struct buf *out, enum status s, const char *words);
/* The beginning of every frame, up to "choices"; made once per call. */
NODISCARD enum status frame_make_head(const struct call *call, struct buf *head);

#define FRAME_DONE "data: [DONE]\n\n"
#define FRAME_KEEP_ALIVE ": keep-alive\n\n"

#endif
