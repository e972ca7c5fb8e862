/* route.h - method and path to handler, and refusals before a body is read.
 *
 * Owns    nothing; one constant table.
 * Thread  HTTP threads.
 * Errors  404 no such path, 405 another method (with Allow), 401, 503 while draining: JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_ROUTE_H
#define TARN_SERVER_API_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api/tally.h"

struct http_exchange;

/* For struct http_config; arg is the struct server. */
void route_early(void *arg, struct http_exchange *x);
void route_handle(void *arg, struct http_exchange *x);

/* Routes as /metrics names them, by path and for all methods: 0 to route_n() - 1. The last one,
 * "other", stands for all paths that are not in the table. */
#define ROUTE_NAME_OTHER "other"
uint32_t route_n(void);
uint32_t route_of(const char *path);
/* Write the name, such as "/v1/models/{id}". False: route_of() never returns this route, because an
 * earlier one has the same path. */
bool route_name(uint32_t route, char out[ROUTE_NAME_BYTES]);
/* Whether probes and scrapers request this route periodically: /health*, /metrics. */
bool route_is_probe(uint32_t route);

#endif
