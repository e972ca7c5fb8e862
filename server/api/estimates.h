/* estimates.h - predictions in answers, and the targets (SLO) of requests.
 *
 * A request asks for its first token, or for the mean gap between tokens, within a time: by the
 * headers of a trusted router (router.h), else by the fields slo_ttft_ms and slo_tpot_ms of the
 * body, else by the server's options.
 *
 * Owns    nothing.
 * Thread  HTTP threads.
 * Errors  none.
 * Units   milliseconds where a name ends in _ms; Retry-After is in seconds. */
#ifndef TARN_SERVER_API_ESTIMATES_H
#define TARN_SERVER_API_ESTIMATES_H

#include <stdint.h>

#include "base/buf.h"

struct http_exchange;
struct request;
struct server;

/* Largest target: one hour. */
#define SLO_MS_MAX 3600000.0

/* Add the headers x-tarn-estimated-ttft-ms (of the earliest first token) and
 * x-tarn-estimated-e2e-ms (of the latest end) of an answer's requests. Adds none before all of them
 * are predicted. */
void estimates_add_headers(struct http_exchange *x, const struct request *const *requests,
                           uint32_t n);

/* Retry-After for a refused request r: its prediction, or where r is NULL or has none, that of a
 * usual request; 1 to 600 s. */
uint32_t estimates_retry_s(const struct server *srv, const struct request *r);

#endif
