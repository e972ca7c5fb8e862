/* banner.h - prints on stdout that the server accepts requests: a text for people, or with
 * --log-format json one line of JSON with the event "serving", whose last member is the URL.
 *
 * Owns    nothing.
 * Thread  main.
 * Errors  none.
 * Units   tokens, bytes, seconds. */
#ifndef TARN_SERVER_BANNER_H
#define TARN_SERVER_BANNER_H

#include <stdint.h>

struct server;

void banner_print(const struct server *srv, uint16_t port);

#endif
