/* body.h - the body of a request as JSON.
 *
 * Owns    nothing.
 * Thread  HTTP and work threads.
 * Errors  sent to the client as JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_BODY_H
#define TARN_SERVER_API_BODY_H

#include <stdbool.h>
#include <stddef.h>

struct http_exchange;
struct json;

/* Parse the body, a JSON object; the caller owns a reference: js_unref(). NULL: the exchange has
 * its error answer. */
struct json *body_read(struct http_exchange *x);
/* Whether the body is an object with one of these members [n], and not null. The body is parsed
 * only if a name stands in it. */
bool body_has(const struct http_exchange *x, const char *const *names, size_t n);

#endif
