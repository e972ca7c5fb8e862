/* params_prediction.h - reads OpenAI's field `prediction`: text that the answer is expected to be.
 *
 * The text changes no token. Where the answer agrees with it, several tokens come from one step
 * (engine/draft.c).
 *
 * Owns    the array of ids in struct params: params_fini().
 * Thread  one at a time.
 * Errors  as params.h.
 * Units   ids. */
#ifndef TARN_SERVER_API_PARAMS_PREDICTION_H
#define TARN_SERVER_API_PARAMS_PREDICTION_H

#include "server/api/params.h"

NODISCARD enum status params_read_prediction(struct params *p, const struct server *srv,
                                             const struct json *body, struct buf *why);

#endif
