/* client.h - the struct of a client and the functions that the library's files share; not part of
 * the library's interface.
 *
 * Owns    copies of all strings.
 * Thread  read-only after tarn_client_create(): any.
 * Errors  none.
 * Units   see tarn_client.h. */
#ifndef TARN_CLIENTS_C_CLIENT_H
#define TARN_CLIENTS_C_CLIENT_H

#include "clients/c/tarn_client.h"

struct tarn_client {
    /* Strings are copies, defaults are filled in, and url has no trailing slash and no /v1. */
    struct tarn_client_config config;
};

/* tarn_call_start_raw() with any method and type of the body. NULL: POST if there is a body, else
 * GET; application/json. */
enum tarn_error call_start_method(struct tarn_call **out, struct http_loop *loop,
                                  const struct tarn_client *client, const char *method,
                                  const char *content_type, const char *path, const char *body,
                                  size_t body_len, const struct tarn_handlers *handlers, void *arg);

/* --- wait.c --- */

/* A call that waits, with the same defaults. */
enum tarn_error wait_fetch(struct tarn_answer *answer, const struct tarn_client *client,
                           const char *method, const char *content_type, const char *path,
                           const char *body, size_t body_len);
/* End a call that cannot be sent. */
enum tarn_error wait_refuse(struct tarn_answer *answer, enum tarn_error e, const char *words);

#endif
