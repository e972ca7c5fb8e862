/* tally.h - what the HTTP side counts for /metrics: exchanges by route and status, how long they
 * took, and what generating requests asked for.
 *
 * The number of series has a bound whatever clients send: routes are those of the table of route.c
 * and one for all else, and only status codes that were sent are there.
 *
 * Owns    the counts.
 * Thread  any.
 * Errors  tally_create(): ERR_NOMEM.
 * Units   seconds, tokens, HTTP status codes. */
#ifndef TARN_SERVER_API_TALLY_H
#define TARN_SERVER_API_TALLY_H

#include <stdint.h>

#include "base/hist.h"
#include "base/status.h"

/* Status codes are TALLY_STATUS_MIN to TALLY_STATUS_MAX. */
#define TALLY_STATUS_MIN 100
#define TALLY_STATUS_MAX 599
/* The status under which web servers count a request whose client got no answer. */
#define TALLY_STATUS_NONE 499

struct tally;

/* n_routes: routes are 0 to n_routes - 1. */
NODISCARD enum status tally_create(struct tally **out, uint32_t n_routes);
void tally_destroy(struct tally *t); /* NULL is fine */

/* Count one exchange; a status out of range, such as 0, counts as TALLY_STATUS_NONE. */
void tally_exchange(struct tally *t, uint32_t route, int status, double seconds);
/* Count one prompt: `n` answers were asked for, the longest has n_tokens_max tokens. */
void tally_prompt(struct tally *t, uint32_t n, uint32_t n_tokens_max);

/* Call f for each status of a route that was seen, in their order, and for `always` in any case: a
 * series that begins with 0 loses no increase. */
void tally_each_status(struct tally *t, uint32_t route, int always,
                       void (*f)(void *arg, int status, uint64_t n), void *arg);
void tally_seconds(struct tally *t, uint32_t route, struct hist *out);
void tally_prompts(struct tally *t, struct hist *n, struct hist *n_tokens_max);

#endif
