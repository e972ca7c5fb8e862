/* http_listen.h - preparations before the first client: the limit on descriptors, a listening
 * socket, the PEM files of TLS.
 *
 * Owns    nothing; the caller owns the descriptor and the bytes.
 * Thread  main, at start and end.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_IO with words that name the flag, address or file.
 * Units   descriptors, bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_LISTEN_H
#define TARN_SERVER_HTTP_HTTP_LISTEN_H

#include <stdint.h>

#include "base/buf.h"

/* Raise the soft limit on descriptors for n_connections. Returns the number of connections that
 * the limit allows: n_connections, or fewer with a warning if the hard limit is too low. */
uint32_t listen_fit_files(uint32_t n_connections);

/* Listen on an address. *bound_port: the port, chosen by the kernel if `port` is 0. */
NODISCARD enum status listen_tcp(int *fd, const char *host, uint16_t port, uint16_t *bound_port,
                                 struct buf *why);

/* Listen on a Unix socket at `path` with these permissions. Replaces a socket file on which no
 * process listens. ERR_INVALID: a process listens on it, or the file is not a socket. */
NODISCARD enum status listen_unix(int *fd, const char *path, uint32_t mode, struct buf *why);
/* Remove the file at `path` if it is still the socket `fd`. Call it before closing fd. */
void listen_unix_remove(int fd, const char *path);

/* Read a PEM file, which must contain `marker`. `flag`: the option's name, for messages. */
NODISCARD enum status listen_read_pem(struct buf *out, const char *flag, const char *path,
                                      const char *marker, struct buf *why);

#endif
