/* http_flags.h - what the user's flags mean for http.h.
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

/* The routes of `srv` behind the flags of `c`. */
void http_flags_apply(struct http_config *out, const struct config *c, struct server *srv);

#endif
