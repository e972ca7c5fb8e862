/* http_private.h - the server's struct, shared by http.c (requests and answers) and http_serve.c
 * (threads, sockets, start and end).
 *
 * Owns    see http.h.
 * Thread  see http.h; the callbacks run on the HTTP thread of the connection.
 * Errors  see http.h.
 * Units   bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_PRIVATE_H
#define TARN_SERVER_HTTP_HTTP_PRIVATE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/http/http.h"

struct http_server {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct slots *slots;
    struct work_pool *pool, *jobs; /* handlers of long bodies; http_run() */
    struct acceptor *acceptor;
    struct tls *tls; /* NULL: not encrypted */
    int listen_fd;
    uint16_t port;
    _Atomic size_t bodies_bytes;
    pthread_mutex_t lock;
    char mhd_words[256]; /* MHD's last log message; under lock */
};

/* MHD's callbacks for a request, in the order of the calls; exchange_on_access() is called several
 * times. arg: the server. */
void *exchange_on_target(void *arg, const char *target, struct MHD_Connection *connection);
enum MHD_Result exchange_on_access(void *arg, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *upload,
                                   size_t *n_upload, void **memory);
void exchange_on_completed(void *arg, struct MHD_Connection *connection, void **memory,
                           enum MHD_RequestTerminationCode why);
/* Send an error answer past MHD and shut the socket. For requests that MHD 0.9.75 is about to
 * answer twice (http_check.h). */
void exchange_refuse_at_once(struct http_exchange *x, int status, const char *words);
/* Run a struct http_job; on a work thread. */
void exchange_work(void *job);

#endif
