/* http_exchange.h - one request and its answer, shared by http_exchange.c (what handlers see) and
 * http.c (the callbacks of libmicrohttpd).
 *
 * Owns    the path, the body and the answer; http.c creates and frees an exchange.
 * Thread  the HTTP thread of the connection, or the work thread that runs the handler meanwhile.
 * Errors  see http.h.
 * Units   bytes, nanoseconds. */
#ifndef TARN_SERVER_HTTP_HTTP_EXCHANGE_H
#define TARN_SERVER_HTTP_HTTP_EXCHANGE_H

#include <microhttpd.h>

#include "server/http/http.h"
#include "server/http/http_check.h"

#define N_EXTRA_HEADERS 16
#define HEADER_VALUE_BYTES 128

struct extra_header {
    const char *name;
    char value[HEADER_VALUE_BYTES];
};

struct http_exchange {
    struct http_server *server;
    struct MHD_Connection *connection;
    struct slot *slot; /* the connection's */
    struct http_head head;
    bool begun;   /* the head was read and checked: method and path are set */
    bool refused; /* exchange_refuse_at_once() answered */
    bool surplus;
    const char *method;
    char *path;
    char id[HTTP_ID_BYTES];
    struct buf body;
    size_t n_body;           /* bytes received, dropped ones included */
    size_t n_body_counted;   /* this body's share of http_server.bodies_bytes */
    bool body_taken;         /* http_take_body(): it counts until the end of the exchange */
    enum status body_status; /* not OK: the body was dropped, the request will be refused */
    uint64_t client;         /* http_set_client(); 0: identified by its address */
    bool will_wait;
    bool handled;
    struct http_job job; /* on a work thread: handle() */
    void *kept;          /* http_keep() */
    void (*free_kept)(void *p);
    /* for done() */
    uint64_t t_begin_ns;
    uint64_t n_sent; /* bytes of the answer's body */
    char key[HTTP_NAME_BYTES], tenant[HTTP_NAME_BYTES];
    const char *error; /* NULL: none */
    enum http_error_form error_form;
    /* the answer */
    bool replied;
    bool queued;
    int status;
    const char *content_type;
    struct buf reply;
    struct extra_header extra[N_EXTRA_HEADERS];
    uint32_t n_extra;
    /* deferred */
    const struct http_async *async; /* NULL until then */
    void *ctx;
    struct buf out;
    size_t n_out_sent;
    enum http_next stream_end; /* HTTP_WAIT while it goes on */
};

#endif
