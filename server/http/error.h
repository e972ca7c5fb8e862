/* error.h - JSON errors: {"error":{"message","type","param","code"}}.
 *
 * Words of the form "messages[2].role: expected a string" name a parameter; it is repeated as
 * `param`.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  an answer that cannot be built for lack of memory goes out without a body.
 * Units   HTTP status codes. */
#ifndef TARN_SERVER_HTTP_ERROR_H
#define TARN_SERVER_HTTP_ERROR_H

#include "base/buf.h"

struct http_exchange;

/* The object alone, for a stream. code NULL: the usual one of the status. */
NODISCARD enum status error_write(struct buf *out, enum status s, const char *code,
                                  const char *words);
/* Status code by s, Retry-After on 429 and 503. code, static text, also goes into the log's line of
 * the request; words do not, as they may quote it. */
void error_reply(struct http_exchange *x, enum status s, const char *code, const char *words);
/* The same with another HTTP status code. */
void error_reply_as(struct http_exchange *x, int http, enum status s, const char *code,
                    const char *words);
/* What a prompt that does not fit gets: 400 with OpenAI's code. */
void error_reply_too_long(struct http_exchange *x, const char *words);

#endif
