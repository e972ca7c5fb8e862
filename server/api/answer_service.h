/* answer_service.h - what an answer says about the call: `timings` (return_timings) and
 * `kv_transfer_params`.
 *
 * Owns    nothing.
 * Thread  the HTTP thread of the exchange.
 * Errors  in the writer.
 * Units   milliseconds, tokens. */
#ifndef TARN_SERVER_API_ANSWER_SERVICE_H
#define TARN_SERVER_API_ANSWER_SERVICE_H

#include "server/api/call.h"
#include "server/api/writer.h"

bool answer_has_service(const struct call *call);
/* Write the members that the call asks for, each with a comma before it. All choices have ended. */
void answer_write_service(struct writer *w, const struct call *call);

#endif
