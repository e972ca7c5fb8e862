/* answer_response.h - responses of /v1/responses, whole and as events.
 *
 * An answer becomes output items in order: the search of file_search, reasoning, the message,
 * calls. The same machine writes the events of a stream and the items of a whole answer. A final
 * response is kept (responses.h) unless the request says `store: false`.
 *
 * Owns    the state of a call: response_answer_create(), freed by the shape.
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_ANSWER_RESPONSE_H
#define TARN_SERVER_API_ANSWER_RESPONSE_H

#include "server/api/response_read.h"
#include "server/api/shape.h"

extern const struct shape answer_response;

/* Give the call its state, and its id. *ask: to be read, borrowed from the call. */
NODISCARD enum status response_answer_create(struct call *call, struct response_ask **ask);
/* The request was read: make what the response repeats of it. */
NODISCARD enum status response_answer_begin(struct call *call);

#endif
