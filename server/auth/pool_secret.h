/* pool_secret.h - the secret of a pool of instances (--pool-secret), read from a file.
 *
 * Two keys are made of the file's content, so that neither tells anything about the other:
 *   member  proves to other instances that this one belongs to the pool (cache/pool/handshake.h)
 *   scope   takes the place of the installation secret (secret.h): KV scopes are hashed with it, so
 *           that a tenant has the same KV keys on all instances, and nobody else can compute them
 *
 * White space at the end of the file does not count, because one program ends a file with a newline
 * and another one does not.
 *
 * Owns    nothing.
 * Thread  main, at start.
 * Errors  ERR_NOT_FOUND, ERR_FORBIDDEN (users of other groups may read or write the file),
 *         ERR_INVALID (no regular file; too short; too long), ERR_IO; all with words.
 * Units   bytes. */
#ifndef TARN_SERVER_AUTH_POOL_SECRET_H
#define TARN_SERVER_AUTH_POOL_SECRET_H

#include <stdint.h>

#include "base/buf.h"
#include "server/auth/secret.h"

NODISCARD enum status pool_secret_read(const char *path, uint8_t member[SECRET_BYTES],
                                       uint8_t scope[SECRET_BYTES], struct buf *why);

#endif
