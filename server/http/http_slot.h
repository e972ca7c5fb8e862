/* http_slot.h - one client connection: where its HTTP thread, wake-ups, work threads and the
 * watcher meet; and how many connections there may be.
 *
 * A connection goes round: idle, header, body, work (the answer is made), send, idle. Header, body
 * and each block of an answer have a deadline; the watcher cuts a connection that is late, with a
 * 408 where nothing was answered yet and the socket is not encrypted. Deadlines are ours because
 * MHD's one timeout starts again with every byte, which is all that a slowloris needs. A connection
 * that never sent a byte has the header's deadline too.
 *
 * There are n_max connections. When one more comes, the idlest is closed for it: first those that
 * never sent a byte, then those between two requests, then those whose header stopped coming. When
 * all are busy, n_guests more are let in, for somebody who asks whether the server is alive; a
 * guest that asks for more is refused, and closed for the next one if its body takes long.
 *
 * A client that sent a FIN while its answer is made may be gone or may wait for the answer (it shut
 * down only its sending side). Nothing but sending to it shows which: a closed socket answers with
 * a reset. A stream is sent a comment at once and then each second. Before an answer begins, the
 * interim answer "100 Continue" is sent, which HTTP/1.1 allows at any time and clients skip: at
 * once, then after 1, 2, 4, ... 16 s. Clients to which neither can be sent (HTTP/1.0, TLS) count as
 * lost. On a Unix socket the kernel tells the two cases apart.
 *
 * Facts about MHD that shape this file (tried with 0.9.75): resuming a connection that is not
 * suspended is undefined, so "nothing to do: suspend" and "something came: resume" happen under the
 * slot's lock; a suspended connection does not notice that its client left: the watcher does.
 *
 * A slot is memory that is never given back while the server lives, so a late slot_wake() from the
 * engine thread (a request's end may be seen before its wake() returns) is at worst a wake-up for
 * nothing, never a use after free.
 *
 * Owns    the watcher, one slot per possible connection; not the sockets.
 * Thread  slots_admit(), slots_make_room(), slot_dismiss(): the one thread that accepts. Other
 *         slots_*: main. slot_open() to slot_suspend(): the HTTP thread of the connection;
 *         slot_defer() also the work thread that has it between slot_offload_begin() and _end().
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
    uint32_t n_guests; /* and so many more when all of them are busy */
    bool plain;        /* not encrypted: we can write a 408 ourselves */
    bool local;        /* a Unix socket */
    void *owner;       /* see slot_owner() */
    /* 0: no limit */
    uint64_t header_timeout_ns; /* first byte to end of header, TLS handshake included */
    uint64_t body_timeout_ns;   /* beside what SLOT_BODY_RATE_MIN allows for its bytes */
    uint64_t write_timeout_ns;  /* for each block of an answer */
};

/* A body may take longer than its timeout while it comes at least this fast. */
#define SLOT_BODY_RATE_MIN (16u << 10) /* bytes per second */

NODISCARD enum status slots_create(struct slots **out, const struct slots_config *config);
void slots_destroy(struct slots *s); /* NULL is fine */
/* Deferred or offloaded. */
uint32_t slots_n_in_flight(const struct slots *s);
/* Connections cut because they were late, since the start. */
uint64_t slots_n_cut(const struct slots *s);
/* Calls gone() of whatever is deferred and wakes it; `lose`: also as if the client had left. */
void slots_cancel(struct slots *s, bool lose);
/* From now on slot_defer() says ERR_UNAVAILABLE. */
void slots_stop(struct slots *s);
/* Cut all connections. Returns how many there are that MHD has not closed yet. */
uint32_t slots_cut_all(struct slots *s);

/* False: there is no slot, not even for a guest. */
bool slots_have_room(struct slots *s);
/* A connection was accepted: keep a slot for it until slot_open(), and close the idlest connection
 * if there are too many now. NULL: no room. */
struct slot *slots_admit(struct slots *s, int fd);
/* The admitted connection will never begin. */
void slot_dismiss(struct slot *slot);
/* Close the idlest connection, unless all are busy or one that was cut has not gone yet. */
void slots_make_room(struct slots *s);

/* An admitted connection begins: NULL when it cannot be watched. */
struct slot *slot_open(struct slots *s, struct MHD_Connection *connection, int fd);
void slot_close(struct slot *slot);
/* A guest, and there still are more than n_max connections; otherwise it is a guest no longer. */
bool slot_is_surplus(struct slot *slot);
void *slot_owner(const struct slot *slot); /* slots_config.owner */
/* The first line of a request was read. */
void slot_input(struct slot *slot);
/* Cut the connection: nothing more can be read or sent, and MHD closes it. */
void slot_shut(struct slot *slot);
/* Whether "100 Continue" may be sent for the request that begins. */
void slot_set_interim(struct slot *slot, bool allowed);

/* The connection's next phase. False: it was late and is being cut, so let go of it. */
NODISCARD bool slot_enter(struct slot *slot, enum slot_phase phase);
/* SLOT_BODY: `n_bytes` have come so far. */
void slot_body_came(struct slot *slot, uint64_t n_bytes);
/* SLOT_SEND: the client took everything; it is given more. */
void slot_sending(struct slot *slot);
/* Whether the client was told 408 because its request was late. */
bool slot_told_late(struct slot *slot);
/* The request is over: nobody calls gone() any more. The connection is idle. */
void slot_finish(struct slot *slot);

/* From now on gone(arg) is called when the client leaves. */
NODISCARD enum status slot_defer(struct slot *slot, void (*gone)(void *arg), void *arg);
/* Suspends the connection while a work thread has its request. */
void slot_offload_begin(struct slot *slot);
void slot_offload_end(struct slot *slot);

/* True: the connection is suspended. False: a wake-up came in between, so look again. */
bool slot_suspend(struct slot *slot);
void slot_wake(void *slot);
bool slot_lost(const struct slot *slot);
/* Wake it once a second while nothing is sent. */
void slot_set_streaming(struct slot *slot);
uint64_t slot_idle_ns(const struct slot *slot);

#endif
