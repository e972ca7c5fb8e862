/* route.h - method and path to handler; what is refused before a body is read.
 *
 * Owns    nothing; one constant table.
 * Thread  HTTP threads.
 * Errors  404 no such path, 405 another method (with Allow), 401, 503 while draining: JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_ROUTE_H
#define TARN_SERVER_API_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct account;
struct http_exchange;
struct server;

/* For struct http_config; arg is the struct server. */
void route_early(void *arg, struct http_exchange *x);
void route_handle(void *arg, struct http_exchange *x);

/* The account of the request's key, which was checked once, when the head was read: a key that is
 * removed meanwhile still serves its request. NULL on paths that need no key. Valid until the end of
 * the exchange. */
struct account *route_account(const struct http_exchange *x);

/* OK where `a` may do what needs an admin: with an admin key, or on a server without any key that
 * only this machine reaches. ERR_FORBIDDEN with words that say what to do. */
NODISCARD enum status route_check_admin(const struct server *srv, const struct account *a,
                                        struct buf *why);

/* Routes as /metrics names them, by path without regard to the method: 0 to route_n() - 1, of which
 * the last one, "other", is all paths that are not in the table. */
#define ROUTE_NAME_BYTES 64
#define ROUTE_NAME_OTHER "other"
uint32_t route_n(void);
uint32_t route_of(const char *path);
/* "/v1/models/{id}". False: route_of() never says this one, another has its path. */
bool route_name(uint32_t route, char out[ROUTE_NAME_BYTES]);
/* Asked for again and again by probes and scrapers: /health*, /metrics. */
bool route_is_probe(uint32_t route);

#endif
