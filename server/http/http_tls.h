/* http_tls.h - the certificate of HTTPS, and how it is replaced while the server runs.
 *
 * ONLY module that includes GnuTLS, which libmicrohttpd (MHD) uses for TLS. MHD by itself reads a
 * certificate once, at start. Here GnuTLS calls back for the certificate at each handshake, so that
 * after tls_reload() new connections use the renewed certificate and open ones keep theirs. A
 * replaced pair is freed only at the end, because a handshake may still use it: each renewal costs
 * a few KB.
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
/* Read the files again. On an error the old pair stays in use. *changed: the files differ. */
NODISCARD enum status tls_reload(struct tls *t, bool *changed, struct buf *why);

/* The value of MHD_OPTION_HTTPS_CERT_CALLBACK. `of` finds the struct tls of a connection; all
 * servers of a process must use the same function. */
void *tls_callback(struct tls *(*of)(struct MHD_Connection *connection));
/* Send these bytes and end the encrypted stream. Errors are ignored. */
void tls_send_last(struct MHD_Connection *connection, const char *bytes, size_t n);

#endif
