/* http_slot.h - the state of one client connection, shared by its HTTP thread, the work threads,
 * the watcher and wake-ups; and the limit on the number of connections.
 *
 * A connection cycles through the phases idle, header, body, work (the answer is computed), send.
 * The header, the body and each block of an answer have a deadline. The watcher closes a connection
 * that misses one, after a 408 if no answer has begun and the socket is not encrypted. MHD's own
 * timeout cannot serve here: it starts again with every byte, so a slowloris attack defeats it. A
 * connection that never sent a byte has the header's deadline too.
 *
 * There are n_max connections. When one more arrives, the server evicts the idlest connection:
 * first those that never sent a byte, then those between two requests, then those whose header
 * stopped arriving. When all are busy, n_guests more are admitted, so that a health check can reach
 * a full server. Any other request of a guest is refused, and a guest whose body is slow is evicted
 * when the next connection arrives.
 *
 * A client that sent a FIN while its answer is computed has either left or shut down only its
 * sending side and waits for the answer. Only sending to it tells: a closed socket answers with a
 * reset. To a stream the server sends a comment at once and then each second. Before an answer
 * begins, the server sends the interim answer "100 Continue", which HTTP/1.1 allows at any time and
 * clients skip: at once, then after 1, 2, 4, ... 16 s. Clients that can be sent neither (HTTP/1.0,
 * TLS) count as lost. On a Unix socket the kernel reports the two cases differently.
 *
 * Two facts about MHD shape this file (tried with 0.9.75). Resuming a connection that is not
 * suspended is undefined, so the decisions to suspend and to resume are made under the slot's lock.
 * A suspended connection does not notice that its client left, so the watcher does.
 *
 * Slots are freed only with the server. The engine thread may call slot_wake() after the request
 * has ended (the end may be visible before wake() returns); such a late call wakes the slot's next
 * connection without a reason, but never touches freed memory.
 *
 * Owns    the watcher, one slot per possible connection; not the sockets.
 * Thread  slots_admit(), slots_make_room(), slot_dismiss(): the accepting thread. Other slots_*:
 *         main. slot_open() to slot_suspend(): the HTTP thread of the connection; slot_defer() also
 *         the work thread that runs the handler between slot_offload_begin() and _end().
 *         slot_wake(): any, does not block.
 * Errors  ERR_NOMEM, ERR_IO; ERR_UNAVAILABLE when the server stops.
 * Units   nanoseconds (CLOCK_MONOTONIC), bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_SLOT_H
#define TARN_SERVER_HTTP_HTTP_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct slots;
struct slot;
struct MHD_Connection;

enum slot_phase { SLOT_IDLE, SLOT_HEADER, SLOT_BODY, SLOT_WORK, SLOT_SEND };

struct slots_config {
    uint32_t n_max;    /* connections */
    uint32_t n_guests; /* connections beyond n_max, when all n_max are busy */
    bool plain;        /* not encrypted, so a 408 can be written past MHD */
    bool local;        /* a Unix socket */
    void *owner;       /* see slot_owner() */
    /* 0: no limit */
    uint64_t header_timeout_ns; /* first byte to end of header, TLS handshake included */
    uint64_t body_timeout_ns;   /* plus the time of the received bytes at SLOT_BODY_RATE_MIN */
    uint64_t write_timeout_ns;  /* for each block of an answer */
};

/* A body may take longer than its timeout if it arrives at least this fast. */
#define SLOT_BODY_RATE_MIN (16u << 10) /* bytes per second */

NODISCARD enum status slots_create(struct slots **out, const struct slots_config *config);
void slots_destroy(struct slots *s); /* NULL is fine */
/* Count of requests that are deferred or on a work thread. */
uint32_t slots_n_in_flight(const struct slots *s);
/* Count of connections closed since the start because they missed a deadline. */
uint64_t slots_n_cut(const struct slots *s);
/* Call gone() of every deferred request and wake its connection. `lose`: also treat its client as
 * lost. */
void slots_cancel(struct slots *s, bool lose);
/* See watcher_tick_fd(). */
int slots_tick_fd(const struct slots *s);
/* Make every later slot_defer() return ERR_UNAVAILABLE. */
void slots_stop(struct slots *s);
/* Shut down all connections. Returns the number that MHD has not closed yet. */
uint32_t slots_cut_all(struct slots *s);

/* Whether a slot is free, guests' slots included. */
bool slots_have_room(struct slots *s);
/* Reserve a slot for an accepted connection until slot_open(). Evicts the idlest connection if
 * there are more than n_max now. NULL: no slot is free. */
struct slot *slots_admit(struct slots *s, int fd);
/* Free the slot of an admitted connection that MHD refused. */
void slot_dismiss(struct slot *slot);
/* Evict the idlest connection, unless all are busy or MHD still has to close an evicted one. */
void slots_make_room(struct slots *s);

/* Begin an admitted connection. NULL: the watcher cannot watch its socket. */
struct slot *slot_open(struct slots *s, struct MHD_Connection *connection, int fd);
void slot_close(struct slot *slot);
/* Whether the connection is a guest. A guest becomes an ordinary connection as soon as there are no
 * more than n_max. */
bool slot_is_surplus(struct slot *slot);
void *slot_owner(const struct slot *slot); /* slots_config.owner */
/* The first line of a request was read: start the header's deadline. */
void slot_input(struct slot *slot);
/* Shut down the socket in both directions, so that MHD closes the connection. */
void slot_shut(struct slot *slot);
/* Allow or forbid "100 Continue" for the request that begins. */
void slot_set_interim(struct slot *slot, bool allowed);

/* Enter a phase and start its deadline. False: the connection missed a deadline and is being
 * closed, so the caller gives it up. */
NODISCARD bool slot_enter(struct slot *slot, enum slot_phase phase);
/* In SLOT_BODY: move the deadline, `n_bytes` of the body have arrived in all. */
void slot_body_came(struct slot *slot, uint64_t n_bytes);
/* In SLOT_SEND: restart the deadline, the last block was sent and the next one follows. */
void slot_sending(struct slot *slot);
/* Whether the client was sent a 408 because its request was late. */
bool slot_told_late(struct slot *slot);
/* End the request; the connection is idle. No thread calls gone() after this returns. */
void slot_finish(struct slot *slot);

/* Have gone(arg) called when the client leaves. */
NODISCARD enum status slot_defer(struct slot *slot, void (*gone)(void *arg), void *arg);
/* Suspend the connection while a work thread runs its handler. */
void slot_offload_begin(struct slot *slot);
void slot_offload_end(struct slot *slot);

/* Suspend the connection. False: a wake-up came since the last call, so it is not suspended and the
 * caller looks at its state again. */
bool slot_suspend(struct slot *slot);
void slot_wake(void *slot);
bool slot_lost(const struct slot *slot);
/* Have the connection woken after each second in which nothing was sent. */
void slot_set_streaming(struct slot *slot);
uint64_t slot_idle_ns(const struct slot *slot);
/* Wake the connection at that time, within the watcher's tick of 0.2 s; 0: never. */
void slot_wake_at(struct slot *slot, uint64_t at_ns);

#endif
