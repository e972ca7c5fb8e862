/* client.h - what call.c and wait.c know of a client; not for users.
 *
 * Owns    copies of all strings.
 * Thread  read-only after tarn_client_create(): any.
 * Errors  none.
 * Units   see tarn_client.h. */
#ifndef TARN_CLIENTS_C_CLIENT_H
#define TARN_CLIENTS_C_CLIENT_H

#include "clients/c/tarn_client.h"

struct tarn_client {
    /* Its pointers are ours, its zeros replaced by the defaults; url ends without slash and /v1. */
    struct tarn_client_config config;
};

#endif
