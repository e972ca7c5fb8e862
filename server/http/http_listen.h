/* http_listen.h - what must be there before the first client: descriptors, a listening socket, the
 * PEM files of TLS.
 *
 * Owns    nothing; the caller gets the descriptor and the bytes.
 * Thread  main, at start and end.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_IO with words that name the flag, address or file.
 * Units   descriptors, bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_LISTEN_H
#define TARN_SERVER_HTTP_HTTP_LISTEN_H

#include <stdint.h>

#include "base/buf.h"

/* Raises the soft limit on descriptors to what n_connections need. Returns how many connections
 * there can be: fewer, and a warning, where the hard limit is lower. */
uint32_t listen_fit_files(uint32_t n_connections);

/* On OK *fd listens, *bound_port is what a port of 0 became. */
NODISCARD enum status listen_tcp(int *fd, const char *host, uint16_t port, uint16_t *bound_port,
                                 struct buf *why);

/* A Unix socket at `path` with these permissions. A socket file that nobody listens on any more is
 * replaced; one that somebody listens on, or any other file, is an error. */
NODISCARD enum status listen_unix(int *fd, const char *path, uint32_t mode, struct buf *why);
/* Removes the file at `path` if it still is the socket `fd`. Before fd is closed. */
void listen_unix_remove(int fd, const char *path);

/* The bytes of a PEM file that must have `marker` in it. `flag` is how the user gave it. */
NODISCARD enum status listen_read_pem(struct buf *out, const char *flag, const char *path,
                                      const char *marker, struct buf *why);

#endif
