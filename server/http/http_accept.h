/* http_accept.h - a thread that accepts connections and passes them to a callback.
 *
 * libmicrohttpd (MHD) could accept by itself. But closing its listening socket while its threads
 * run (MHD_quiesce_daemon()) has a race that aborts the process, and MHD cannot choose a connection
 * to close when there are too many. With this thread, stopping is simple: no other thread uses the
 * listening socket, so acceptor_stop() joins the thread.
 *
 * Owns    the thread; not the listening socket, not the accepted sockets.
 * Thread  acceptor_create() and acceptor_stop(): main. The callbacks run on the accepting thread.
 * Errors  ERR_IO, ERR_NOMEM. A failure of accept() is logged and tried again.
 * Units   none. */
#ifndef TARN_SERVER_HTTP_HTTP_ACCEPT_H
#define TARN_SERVER_HTTP_HTTP_ACCEPT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

struct acceptor;

struct acceptor_config {
    int listen_fd; /* non-blocking */
    /* Whether one more connection may be accepted now. Called before each accept(). */
    bool (*has_room)(void *arg);
    /* Close some connection: a client waits, and either has_room() returned false or the process
     * has no descriptor left. Called every few milliseconds for as long as that is so. */
    void (*make_room)(void *arg);
    /* Take over an accepted connection. The callee closes the descriptor. */
    void (*take)(void *arg, int fd, const struct sockaddr *address, socklen_t n_address);
    void *arg;
};

NODISCARD enum status acceptor_create(struct acceptor **out, const struct acceptor_config *config);
/* No callback runs after this. NULL is fine. */
void acceptor_stop(struct acceptor *a);

#endif
