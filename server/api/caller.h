/* caller.h - the account that sent a request, and whether it may use admin paths.
 *
 * Owns    nothing.
 * Thread  HTTP and work threads.
 * Errors  caller_check_admin(): ERR_FORBIDDEN.
 * Units   none. */
#ifndef TARN_SERVER_API_CALLER_H
#define TARN_SERVER_API_CALLER_H

#include "base/buf.h"

struct account;
struct http_exchange;
struct server;

/* The account of the request's key, which was checked once, when the head was read: a key that is
 * removed meanwhile still serves its request. NULL on paths that need no key. Valid until the end
 * of the exchange. */
struct account *caller_account(const struct http_exchange *x);

/* OK where `a` may use admin paths: it has an admin key, or the server has no keys and listens to
 * this machine only. ERR_FORBIDDEN: with words that say what to do. */
NODISCARD enum status caller_check_admin(const struct server *srv, const struct account *a,
                                         struct buf *why);

#endif
