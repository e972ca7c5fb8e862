/* error.h - JSON errors, in the form that the exchange wants (http_error_form()):
 *
 *   OpenAI     {"error":{"message","type","param","code"}}
 *   Anthropic  {"type":"error","error":{"type","message","details":{"error_code"}},"request_id"}
 *
 * A message of the form "messages[2].role: expected a string" begins with a parameter's name, which
 * becomes `param`.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  when memory is short, the answer is sent without a body.
 * Units   HTTP status codes. */
#ifndef TARN_SERVER_HTTP_ERROR_H
#define TARN_SERVER_HTTP_ERROR_H

#include <stdint.h>

#include "base/buf.h"

struct http_exchange;

/* Append the object alone, for a stream. code NULL: the default code of the status. */
NODISCARD enum status error_write(struct buf *out, enum status s, const char *code,
                                  const char *words);
/* The same in Anthropic's form; http: the HTTP status, which the type follows from. */
NODISCARD enum status error_write_anthropic(struct buf *out, int http, enum status s,
                                            const char *code, const char *words,
                                            const char *request_id);
/* The same in the form that the exchange wants. */
NODISCARD enum status error_write_for(const struct http_exchange *x, struct buf *out, int http,
                                      enum status s, const char *code, const char *words);
/* Answer with an error. The HTTP status follows from s; 429 and 503 get Retry-After and
 * x-llm-d-request-dropped-reason. `code`, a
 * static string, is also logged; `words` are not, because they may quote the request. */
void error_reply(struct http_exchange *x, enum status s, const char *code, const char *words);
/* The same, with this Retry-After if the HTTP status is 429 or 503. */
void error_reply_later(struct http_exchange *x, enum status s, const char *code, const char *words,
                       uint32_t retry_s);
/* Answer with an error and this HTTP status. */
void error_reply_as(struct http_exchange *x, int http, enum status s, const char *code,
                    const char *words);
/* Answer a prompt that exceeds the context: 400 with OpenAI's code. */
void error_reply_too_long(struct http_exchange *x, const char *words);

#endif
