/* client.h - the struct of a client, for call.c and wait.c; not part of the library's interface.
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

/* tarn_call_start_raw() with any method; NULL: POST if there is a body, else GET. */
enum tarn_error call_start_method(struct tarn_call **out, struct http_loop *loop,
                                  const struct tarn_client *client, const char *method,
                                  const char *path, const char *body, size_t body_len,
                                  const struct tarn_handlers *handlers, void *arg);

#endif
