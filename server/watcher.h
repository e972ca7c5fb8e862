/* watcher.h - one thread that sees clients leave.
 *
 * Every client socket with an answer under way is in its epoll set with EPOLLRDHUP, so a client
 * that closes, resets or shuts down its sending side is noticed at once, in every phase and
 * without anything being sent to it. The thread also ticks a few times a second, for streams that
 * owe their client a sign of life.
 *
 * Owns    the thread, the epoll set, a table of entries; not the sockets.
 * Thread  any. After watcher_remove() returns, no callback of that entry runs or will run.
 *         Callbacks run on the watcher thread under its lock: they must not block and must not
 *         call back into the watcher.
 * Errors  ERR_IO, ERR_NOMEM.
 * Units   nanoseconds (CLOCK_MONOTONIC). */
#ifndef TARN_SERVER_WATCHER_H
#define TARN_SERVER_WATCHER_H

#include <stdint.h>

#include "base/status.h"

struct watcher;

struct watcher_callbacks {
    void (*lost)(void *arg);                 /* once per entry */
    void (*tick)(void *arg, uint64_t now_ns);
};

/* Entries are named by the caller: index in [0, n_max). */
NODISCARD enum status watcher_create(struct watcher **out, uint32_t n_max,
                                     const struct watcher_callbacks *callbacks);
void watcher_destroy(struct watcher *w); /* NULL is fine */

NODISCARD enum status watcher_add(struct watcher *w, uint32_t index, int fd, void *arg);
void watcher_remove(struct watcher *w, uint32_t index);
/* As if every client had left; `fn` instead of lost() when not NULL. */
void watcher_for_each(struct watcher *w, void (*fn)(void *arg));

#endif
