#include "server/early_end.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

static struct {
    pthread_t thread;
    int signal_fd, stop_fd;
    bool runs;
} early = {.signal_fd = -1, .stop_fd = -1};

static void *wait_for_signal(void *arg)
{
    struct pollfd fds[2] = {{.fd = early.stop_fd, .events = POLLIN},
                            {.fd = early.signal_fd, .events = POLLIN}};
    struct signalfd_siginfo info;

    (void)arg;
    for (;;) {
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[0].revents)
            return NULL;
        if (read(early.signal_fd, &info, sizeof info) == sizeof info) {
            log_event(LOG_INFO, "stopped while starting", "signal=%u", info.ssi_signo);
            _exit(EXIT_SUCCESS); /* exit handlers would run while other threads still work */
        }
    }
}

static void close_both(void)
{
    if (early.signal_fd >= 0)
        close(early.signal_fd);
    if (early.stop_fd >= 0)
        close(early.stop_fd);
    early.signal_fd = early.stop_fd = -1;
}

enum status early_end_begin(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    early.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    early.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status s = early.signal_fd >= 0 && early.stop_fd >= 0 ? OK : ERR_IO;
    if (s == OK && pthread_create(&early.thread, NULL, wait_for_signal, NULL) != 0)
        s = ERR_NOMEM;
    early.runs = s == OK;
    if (s != OK)
        close_both();
    return s;
}

void early_end_stop(void)
{
    uint64_t one = 1;

    if (!early.runs)
        return;
    /* The write cannot fail: the eventfd is at zero, and nothing else writes to it. */
    ASSERT(write(early.stop_fd, &one, sizeof one) == sizeof one);
    pthread_join(early.thread, NULL);
    early.runs = false;
    close_both();
}
