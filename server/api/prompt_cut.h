/* prompt_cut.h - truncate_prompt_tokens: the last tokens of a prompt.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE: of the echoed text.
 * Units   tokens. */
#ifndef TARN_SERVER_API_PROMPT_CUT_H
#define TARN_SERVER_API_PROMPT_CUT_H

#include "server/api/params.h"
#include "server/api/prompt.h"

/* Tokens that a prompt may have before the cut: the model's context, or with truncate_prompt_tokens
 * a multiple of it, so that a long text costs bounded time. */
uint32_t prompt_n_ids_max(const struct params *p, const struct server *srv);
/* Leave the last tokens of the prompts, as the request asks. A prompt that was cut is one span of
 * the tenant's own, and its echoed text is that of the tokens left. */
NODISCARD enum status prompts_cut(const struct params *p, const struct server *srv,
                                  struct prompt *prompts, uint32_t n, struct buf *why);

#endif
