/* watcher.h - one thread that watches all client sockets for input and for lost clients.
 *
 * Every client socket is in the epoll set for as long as its connection lives. Between requests the
 * thread watches for the first byte of a request, where the header's deadline starts; while an
 * answer is computed, for the client's leaving. Five times a second the thread also ticks, for
 * deadlines and for streams that need a keep-alive comment.
 *
 * Over TCP, a client that closes its socket and a client that only shuts down its sending side look
 * the same: both send a FIN. Only a reset, or the end of both directions, is certain. So a FIN has
 * a callback of its own, half_closed(), which decides whether the client counts as lost; if not,
 * the thread goes on watching for the certain signs.
 *
 * Owns    the thread, the epoll set, a table of entries; not the sockets.
 * Thread  any. After watcher_remove() returns, no callback of that entry runs or will run. After
 *         watcher_mute() returns, no input() or lost() runs until the next watcher_watch().
 *         Callbacks run on the watcher thread under its lock: they must not block and must not
 *         call the watcher.
 * Errors  ERR_IO, ERR_NOMEM.
 * Units   nanoseconds (CLOCK_MONOTONIC). */
#ifndef TARN_SERVER_HTTP_WATCHER_H
#define TARN_SERVER_HTTP_WATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct watcher;

enum watch_kind {
    WATCH_INPUT, /* bytes to read, or a FIN */
    WATCH_LEAVE, /* a close, a reset or a FIN */
    WATCH_LOSS,  /* a certain loss only; set by the watcher after half_closed() returned true */
};

struct watcher_callbacks {
    void (*input)(void *arg, bool end); /* once per watcher_watch(); end: a FIN came too */
    void (*lost)(void *arg);            /* once per watcher_watch() */
    void (*tick)(void *arg, uint64_t now_ns);
    /* The client sent a FIN. True: it may still read the answer, so watch on for a certain loss.
     * False: lost() follows. NULL means false. Once per watcher_watch(). */
    bool (*half_closed)(void *arg);
};

/* The caller numbers the entries: index in [0, n_max). */
NODISCARD enum status watcher_create(struct watcher **out, uint32_t n_max,
                                     const struct watcher_callbacks *callbacks);
void watcher_destroy(struct watcher *w); /* NULL is fine */
/* An eventfd that is written at each tick and that nobody reads: one edge a tick for every
 * edge-triggered epoll set that it is in. The watcher owns it. (A timerfd would not do: Linux
 * starts it again only when somebody reads it.) */
int watcher_tick_fd(const struct watcher *w);

/* Add a socket and watch it for input. */
NODISCARD enum status watcher_add(struct watcher *w, uint32_t index, int fd, void *arg);
/* Watch for one event of this kind, instead of the kind watched for before. */
void watcher_watch(struct watcher *w, uint32_t index, enum watch_kind kind);
/* Watch for nothing until the next watcher_watch(); ticks continue. */
void watcher_mute(struct watcher *w, uint32_t index);
void watcher_remove(struct watcher *w, uint32_t index);
/* Call fn(arg) for every entry, or lost(arg) when fn is NULL. */
void watcher_for_each(struct watcher *w, void (*fn)(void *arg));

#endif
