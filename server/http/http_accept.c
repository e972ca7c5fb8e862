#include "server/http/http_accept.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define NO_ROOM_MS 5
#define WARN_NS UINT64_C(10000000000)

struct acceptor {
    struct acceptor_config config;
    pthread_t thread;
    int stop_fd;
    uint64_t t_warned;
};

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

/* No descriptor or kernel memory is left: the client stays in the kernel's queue meanwhile. */
static void on_shortage(struct acceptor *a, int error)
{
    uint64_t now_ns = clock_now_ns();

    if (a->t_warned == 0 || now_ns - a->t_warned > WARN_NS) {
        a->t_warned = now_ns;
        log_event(LOG_WARN, "cannot accept a connection", "why=\"%s\"", strerror(error));
    }
    a->config.make_room(a->config.arg);
}

/* False: no client waits, or no connection can be accepted now. */
static bool accept_one(struct acceptor *a)
{
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    int fd =
        accept4(a->config.listen_fd, (struct sockaddr *)&address, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        a->config.take(a->config.arg, fd, (struct sockaddr *)&address, n);
        return true;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        on_shortage(a, errno);
        clock_sleep_ns(NO_ROOM_MS * UINT64_C(1000000));
        return false;
    }
    /* On Linux, accept() also reports errors of the one new connection: try the next one. */
    return errno != EAGAIN && errno != EWOULDBLOCK && errno != EBADF && errno != EINVAL;
}

static void *accept_all(void *arg)
{
    struct acceptor *a = arg;

    for (;;) {
        bool room = a->config.has_room(a->config.arg);
        struct pollfd fds[2] = {{.fd = a->stop_fd, .events = POLLIN},
                                {.fd = room ? a->config.listen_fd : -1, .events = POLLIN}};
        if (poll(fds, 2, room ? -1 : NO_ROOM_MS) < 0 && errno != EINTR)
            log_event(LOG_ERROR, "cannot wait for connections", "errno=%d", errno);
        if (fds[0].revents)
            return NULL;
        if (!room && is_readable(a->config.listen_fd))
            a->config.make_room(a->config.arg);
        else if (fds[1].revents)
            while (accept_one(a) && a->config.has_room(a->config.arg) && !is_readable(a->stop_fd))
                continue;
    }
}

enum status acceptor_create(struct acceptor **out, const struct acceptor_config *config)
{
    struct acceptor *a = calloc(1, sizeof *a);

    *out = NULL;
    if (!a)
        return ERR_NOMEM;
    a->config = *config;
    a->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status s = a->stop_fd >= 0 ? OK : ERR_IO;
    if (s == OK && pthread_create(&a->thread, NULL, accept_all, a) != 0)
        s = ERR_NOMEM;
    if (s == OK) {
        *out = a;
        return OK;
    }
    if (a->stop_fd >= 0)
        close(a->stop_fd);
    free(a);
    return s;
}

void acceptor_stop(struct acceptor *a)
{
    uint64_t one = 1;

    if (!a)
        return;
    /* The write cannot fail: the eventfd is at zero, and nothing else writes to it. */
    ASSERT(write(a->stop_fd, &one, sizeof one) == sizeof one);
    pthread_join(a->thread, NULL);
    close(a->stop_fd);
    free(a);
}
