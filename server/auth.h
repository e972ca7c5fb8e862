/* auth.h - API keys.
 *
 * Keys are kept and compared as hashes, every one of them each time, so that the time an answer
 * takes tells nothing about how much of a key was right, nor which one it was near.
 *
 * Owns    the hashes in struct server (server_fini() frees them).
 * Thread  auth_check(): any.
 * Errors  ERR_UNAUTHORIZED with words.
 * Units   none. */
#ifndef TARN_SERVER_AUTH_H
#define TARN_SERVER_AUTH_H

#include "base/buf.h"

struct server;

/* keys: a comma list; empty: no key is ever needed. */
NODISCARD enum status auth_init(struct server *srv, const char *keys);
/* authorization: the header "Bearer KEY", x_api_key: a bare key; either may be NULL. */
NODISCARD enum status auth_check(const struct server *srv, const char *authorization,
                                 const char *x_api_key, struct buf *why);

#endif
