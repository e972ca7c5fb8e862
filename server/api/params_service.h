/* params_service.h - reads the fields of a call on which no token depends: cache_salt, session_id,
 * its id (request_id, or SGLang's rid), kv_transfer_params, and whether the answer has its timings.
 *
 * Owns    nothing; ids are the JSON document's.
 * Thread  one at a time.
 * Errors  as params.h.
 * Units   none. */
#ifndef TARN_SERVER_API_PARAMS_SERVICE_H
#define TARN_SERVER_API_PARAMS_SERVICE_H

#include "server/api/params.h"

NODISCARD enum status params_read_service(struct params *p, const struct server *srv,
                                          const struct json *body, struct buf *why);

#endif
