/* secret.h - the installation secret: 32 random bytes that KV scopes are hashed with.
 *
 * The file DIR/installation-secret (64 hex digits and a newline, mode 0600) is created at the first
 * start and never changed. So a tenant's KV keys stay the same over restarts, and only this
 * installation can compute them. If the file cannot be written, the process uses a random secret
 * of its own and logs a warning.
 *
 * Owns    the file, and DIR (0700) if this module created it.
 * Thread  main, at start. Servers that start at the same time get the same secret.
 * Errors  none: a warning in the log.
 * Units   bytes. */
#ifndef TARN_SERVER_AUTH_SECRET_H
#define TARN_SERVER_AUTH_SECRET_H

#include <stdint.h>

#define SECRET_BYTES 32

/* Read or create the secret. dir: --cache-dir; "": $XDG_CACHE_HOME/tarn or ~/.cache/tarn; NULL: no
 * file, a random secret (tests). */
void secret_load(uint8_t out[SECRET_BYTES], const char *dir);

#endif
