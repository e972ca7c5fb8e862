/* secret.h - the installation's secret: 32 random bytes that scopes are made with.
 *
 * It stands in DIR/installation-secret (64 hex digits and a newline, mode 0600), is made at the
 * first start and never changed, so that a tenant's KV keys stay the same over restarts and nobody
 * outside can compute them. Where it cannot be kept, a new one per process does; that is logged.
 *
 * Owns    the file, and DIR (0700) if it had to be made.
 * Thread  main, at start. Servers that start at once agree on one secret.
 * Errors  none: a warning in the log.
 * Units   bytes. */
#ifndef TARN_SERVER_AUTH_SECRET_H
#define TARN_SERVER_AUTH_SECRET_H

#include <stdint.h>

#define SECRET_BYTES 32

/* dir: --cache-dir; "": $XDG_CACHE_HOME/tarn or ~/.cache/tarn; NULL: no file (tests). */
void secret_load(uint8_t out[SECRET_BYTES], const char *dir);

#endif
