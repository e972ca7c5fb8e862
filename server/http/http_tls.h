/* http_tls.h - the certificate of HTTPS, and how it is replaced while the server runs.
 *
 * ONLY module that includes GnuTLS, the library that libmicrohttpd (MHD) speaks TLS with. MHD reads
 * a certificate once, at start. GnuTLS can ask for it at each handshake instead: then a certificate
 * that was renewed on disk serves new connections after tls_reload(), and open ones stay as they
 * are. A pair that was replaced is kept until the end, since a handshake may still use it: a few
 * KB for each renewal.
 *
 * Owns    the certificates and keys.
 * Thread  tls_create(), tls_reload(), tls_destroy(): main. The rest: HTTP threads.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_IO with words that name the flag and the file.
 * Units   bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_TLS_H
#define TARN_SERVER_HTTP_HTTP_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct MHD_Connection;
struct tls;

/* PEM files: a certificate with its chain, and its private key. */
NODISCARD enum status tls_create(struct tls **out, const char *cert_path, const char *key_path,
                                 struct buf *why);
void tls_destroy(struct tls *t); /* NULL is fine */
/* Read the files again. On an error the old certificate stays. *changed: there is a new one. */
NODISCARD enum status tls_reload(struct tls *t, bool *changed, struct buf *why);

/* The value of MHD_OPTION_HTTPS_CERT_CALLBACK. `of` finds the struct tls of a connection; it is the
 * same function for all servers of a process. */
void *tls_callback(struct tls *(*of)(struct MHD_Connection *connection));
/* Send these bytes now, and the end of the encrypted stream. Best effort. */
void tls_send_last(struct MHD_Connection *connection, const char *bytes, size_t n);

#endif
