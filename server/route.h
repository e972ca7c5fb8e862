/* route.h - method and path to handler; what is refused before a body is read.
 *
 * Owns    nothing; one constant table.
 * Thread  HTTP threads.
 * Errors  404 no such path, 405 another method (with Allow), 401, 503 while draining: JSON.
 * Units   none. */
#ifndef TARN_SERVER_ROUTE_H
#define TARN_SERVER_ROUTE_H

struct http_exchange;

/* For struct http_config; arg is the struct server. */
void route_early(void *arg, struct http_exchange *x);
void route_handle(void *arg, struct http_exchange *x);

#endif
