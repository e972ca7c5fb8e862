/* http_accept.h - a thread that accepts connections and hands them over.
 *
 * The HTTP library could listen by itself. Its way of giving the listening socket up while its
 * threads run (MHD_quiesce_daemon()) has a race that aborts the process, and it offers no say in
 * which connection is closed when there are too many. Here nobody but one thread of ours touches
 * the listening socket, and stopping means to join that thread.
 *
 * Owns    the thread; not the listening socket, not what was handed over.
 * Thread  acceptor_create() and acceptor_stop(): main. The callbacks run on the thread.
 * Errors  ERR_IO, ERR_NOMEM. A socket that cannot be accepted is logged and tried again.
 * Units   none. */
#ifndef TARN_SERVER_HTTP_HTTP_ACCEPT_H
#define TARN_SERVER_HTTP_HTTP_ACCEPT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

struct acceptor;

struct acceptor_config {
    int listen_fd; /* not blocking */
    /* True: one more connection may be accepted now. Called before each. */
    bool (*has_room)(void *arg);
    /* A client waits and has_room() said no, or the process has no descriptor left: give some
     * connection up. Called again every few milliseconds while that lasts. */
    void (*make_room)(void *arg);
    /* An accepted connection; its descriptor is the callee's to close. */
    void (*take)(void *arg, int fd, const struct sockaddr *address, socklen_t n_address);
    void *arg;
};

NODISCARD enum status acceptor_create(struct acceptor **out, const struct acceptor_config *config);
/* No callback runs after this. NULL is fine. */
void acceptor_stop(struct acceptor *a);

#endif
