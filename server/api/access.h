/* access.h - what happens when an exchange is over: it is counted, and a line of the log says how
 * it ended.
 *
 *     http id=4f2a... method="POST" path="/v1/completions" status=400 key=a tenant=a
 *     duration_us=210 n_in=31 n_out=142 error=malformed_json
 *
 * (one line). Every request has one, those that were refused before a handler too. key and tenant
 * are there when the key was known, error when the answer was one, whole=false when the client did
 * not take all of the answer; status 0: it got none. No text of a request or an answer is logged
 * but its path, without the query. What probes and scrapers ask for again and again (/health*,
 * /metrics) is logged at level debug unless it failed, all else at info.
 *
 * Owns    nothing.
 * Thread  HTTP threads.
 * Errors  none.
 * Units   bytes of bodies, microseconds from the end of the request's header to the last byte of
 *         the answer. */
#ifndef TARN_SERVER_API_ACCESS_H
#define TARN_SERVER_API_ACCESS_H

struct http_done;

/* For struct http_config; arg is the struct server. */
void access_done(void *arg, const struct http_done *d);

#endif
