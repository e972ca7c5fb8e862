/* access.h - counts each exchange that is over and writes its line of the log.
 *
 *     http id=4f2a... method="POST" path="/v1/completions" status=400 key=a tenant=a
 *     duration_us=210 n_in=31 n_out=142 error=malformed_json
 *
 * (one line). Every request is logged, also one that was refused before a handler ran. key and
 * tenant are present when the key was valid, error when the answer was an error, whole=false when
 * the client did not take the whole answer; status=0 means that no answer was sent. Of a request's
 * text only the path is logged, without its query. Successful requests of probes and scrapers
 * (/health*, /metrics) are logged at level debug, all others at info.
 *
 * Owns    nothing.
 * Thread  HTTP threads.
 * Errors  none.
 * Units   bytes of bodies, microseconds from the end of the request's header to the last byte of
 *         the answer. */
#ifndef TARN_SERVER_API_ACCESS_H
#define TARN_SERVER_API_ACCESS_H

struct http_done;

/* The callback done of struct http_config; arg: the struct server. */
void access_done(void *arg, const struct http_done *d);

#endif
