/* render.h - answers what the prompt of a call would be, as token ids, without computing it.
 *
 * The answer has the form of vLLM's render endpoints: an object for a chat, an array of such
 * objects for text completions. Routers read token_ids.
 *
 * Owns    nothing.
 * Thread  that of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_RENDER_H
#define TARN_SERVER_API_RENDER_H

#include "base/buf.h"

struct call;

/* Append the answer. Params and prompts of the call are final. */
NODISCARD enum status render_write(const struct call *call, struct buf *out);

#endif
