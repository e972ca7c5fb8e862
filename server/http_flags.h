/* http_flags.h - the configuration of http.h from that of tarn-server.
 *
 * Owns    nothing; the result points into the configuration.
 * Thread  main.
 * Errors  none.
 * Units   as http.h. */
#ifndef TARN_SERVER_HTTP_FLAGS_H
#define TARN_SERVER_HTTP_FLAGS_H

struct config;
struct http_config;
struct server;

/* Fill *out from the options of `c`, with the routes of `srv`. */
void http_flags_apply(struct http_config *out, const struct config *c, struct server *srv);

#endif
