/* functions.h - OpenAI's older fields about functions: `functions`, `function_call`, and messages
 * of role "function". They become tools, and the answer is written in the older form.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID: words begin with the name of the field; ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_API_FUNCTIONS_H
#define TARN_SERVER_API_FUNCTIONS_H

#include "base/buf.h"
#include "base/json.h"

/* Whether a chat's body has any of these fields. */
bool functions_are_used(const struct json *body);
/* Make a copy of the body that says the same with tools. */
NODISCARD enum status functions_to_tools(struct json **out, const struct json *body,
                                         struct buf *why);

#endif
