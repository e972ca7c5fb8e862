/* tally.h - counters of the server for /metrics: exchanges by route and status, their durations,
 * the n and max_tokens of generating requests, speculative prefills, and searches for documents.
 *
 * Clients cannot make the number of series grow: the routes are those of the table in route.c and
 * one for all other paths, and only status codes that were sent have a series.
 *
 * Owns    the counts.
 * Thread  any.
 * Errors  tally_create(): ERR_NOMEM.
 * Units   seconds, tokens, HTTP status codes. */
#ifndef TARN_SERVER_API_TALLY_H
#define TARN_SERVER_API_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hist.h"
#include "base/status.h"

/* Status codes are TALLY_STATUS_MIN to TALLY_STATUS_MAX. */
#define TALLY_STATUS_MIN 100
#define TALLY_STATUS_MAX 599
/* The status under which web servers count a request whose client left without an answer. */
#define TALLY_STATUS_NONE 499

struct tally;

/* Bytes of a route's name, with the NUL. */
#define ROUTE_NAME_BYTES 64

/* Routes are numbered 0 to n_routes - 1; the last one stands for all paths that have no route.
 * name() writes a route's name; false: the route is never counted. */
NODISCARD enum status tally_create(struct tally **out, uint32_t n_routes,
                                   bool (*name)(uint32_t route, char out[ROUTE_NAME_BYTES]));
void tally_destroy(struct tally *t); /* NULL is fine */

/* Count one exchange; a status out of range, such as 0, counts as TALLY_STATUS_NONE. */
void tally_exchange(struct tally *t, uint32_t route, int status, double seconds);
/* Count one search for documents. */
void tally_search(struct tally *t, double seconds, bool succeeded);
/* Count one prompt: the request asked for `n` answers of at most n_tokens_max tokens. */
void tally_prompt(struct tally *t, uint32_t n, uint32_t n_tokens_max);

/* Single counts. tally_add() takes no lock. */
enum tally_count {
    TALLY_SPECULATION_STARTED,
    TALLY_SPECULATION_CONFIRMED,
    TALLY_SPECULATION_REPLACED,
    TALLY_SPECULATION_DROPPED,
    TALLY_SPECULATED_FOR_NOTHING, /* tokens */
    TALLY_EMBEDDED_INPUTS,        /* of the further models, as the next */
    TALLY_EMBEDDED_TOKENS,
    TALLY_N_COUNTS
};
void tally_add(struct tally *t, enum tally_count what, uint64_t n);
uint64_t tally_count(const struct tally *t, enum tally_count what);

uint32_t tally_n_routes(const struct tally *t);
/* The name of a route; NULL: the route is never counted. */
const char *tally_route_name(const struct tally *t, uint32_t route);

/* Call f for each status of a route that was counted, in ascending order, and for `always` even if
 * it was not: a series that begins with 0 shows its first increase. */
void tally_each_status(struct tally *t, uint32_t route, int always,
                       void (*f)(void *arg, int status, uint64_t n), void *arg);
void tally_seconds(struct tally *t, uint32_t route, struct hist *out);
void tally_prompts(struct tally *t, struct hist *n, struct hist *n_tokens_max);
/* seconds: of the searches that succeeded. */
void tally_searches(struct tally *t, struct hist *seconds, uint64_t *n_failed);

#endif
