/* watcher.h - one thread that sees what happens on client sockets while nobody else looks.
 *
 * Every client socket is in its epoll set for as long as the connection lives. What is watched for
 * changes with what the connection does: the first byte of a request (deadlines start there), or
 * a client that leaves while its answer is made. The thread also ticks a few times a second, for
 * deadlines and for streams that owe their client a sign of life.
 *
 * A client that closes its socket and a client that only shuts down its sending side look the same
 * over TCP: both send a FIN. A reset, and the end of both directions, is a loss for certain. So a
 * FIN has a callback of its own, half_closed(), whose answer says whether the client counts as
 * lost; if not, the socket stays watched for the certain signs.
 *
 * Owns    the thread, the epoll set, a table of entries; not the sockets.
 * Thread  any. After watcher_remove() returns, no callback of that entry runs or will run; after
 *         watcher_mute(), no input() or lost() of what was watched for before.
 *         Callbacks run on the watcher thread under its lock: they must not block and must not
 *         call back into the watcher.
 * Errors  ERR_IO, ERR_NOMEM.
 * Units   nanoseconds (CLOCK_MONOTONIC). */
#ifndef TARN_SERVER_HTTP_WATCHER_H
#define TARN_SERVER_HTTP_WATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct watcher;

enum watch_kind {
    WATCH_INPUT, /* something to read, or the end */
    WATCH_LEAVE, /* closed, reset, or its sending side shut down */
    WATCH_LOSS,  /* as WATCH_LEAVE after half_closed() said true: no FIN, only a certain loss */
};

struct watcher_callbacks {
    void (*input)(void *arg, bool end); /* once per watcher_watch(); end: with a FIN */
    void (*lost)(void *arg);            /* once per watcher_watch() */
    void (*tick)(void *arg, uint64_t now_ns);
    /* The client sent a FIN and nothing else is known. True: it may still read, so go on watching
     * for its loss; false: lost() follows. NULL is false. Once per watcher_watch(). */
    bool (*half_closed)(void *arg);
};

/* Entries are named by the caller: index in [0, n_max). */
NODISCARD enum status watcher_create(struct watcher **out, uint32_t n_max,
                                     const struct watcher_callbacks *callbacks);
void watcher_destroy(struct watcher *w); /* NULL is fine */

/* Watches for input. */
NODISCARD enum status watcher_add(struct watcher *w, uint32_t index, int fd, void *arg);
/* From now on for this, once; what was watched for before no longer counts. */
void watcher_watch(struct watcher *w, uint32_t index, enum watch_kind kind);
/* For nothing; ticks go on. */
void watcher_mute(struct watcher *w, uint32_t index);
void watcher_remove(struct watcher *w, uint32_t index);
/* As if every client had left; `fn` instead of lost() when not NULL. */
void watcher_for_each(struct watcher *w, void (*fn)(void *arg));

#endif
