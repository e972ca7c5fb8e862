/* http_slot.h - one client connection: where its HTTP thread, wake-ups, work threads and the
 * watcher meet.
 *
 * A connection goes round: idle, header, body, work (the answer is made), send, idle. Header, body
 * and each block of an answer have a deadline; the watcher cuts a connection that is late, with a
 * 408 where nothing was answered yet and the socket is not encrypted. Deadlines are ours because
 * MHD's one timeout starts again with every byte, which is all that a slowloris needs.
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
 * Thread  slots_*: main. slot_open() to slot_suspend(): the HTTP thread of the connection;
 *         slot_defer() also the work thread that has it between slot_offload_begin() and _end().
 *         slot_wake(): any, does not block.
 * Errors  ERR_NOMEM, ERR_IO; ERR_UNAVAILABLE when the server stops.
 * Units   nanoseconds (CLOCK_MONOTONIC), bytes. */
#ifndef TARN_SERVER_HTTP_SLOT_H
#define TARN_SERVER_HTTP_SLOT_H

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
    uint32_t n_max;
    bool plain; /* not encrypted: we can write a 408 ourselves */
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

/* A connection begins: NULL when there is no slot or it cannot be watched. */
struct slot *slot_open(struct slots *s, struct MHD_Connection *connection, int fd);
void slot_close(struct slot *slot);

/* The connection's next phase. False: it was late and is being cut, so let go of it. */
NODISCARD bool slot_enter(struct slot *slot, enum slot_phase phase);
/* SLOT_BODY: `n_bytes` have come so far. */
void slot_body_came(struct slot *slot, uint64_t n_bytes);
/* SLOT_SEND: the client took everything; it is given more. */
void slot_sending(struct slot *slot);
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
