/* kv_events.h - opens the publisher of KV events (events/publisher.h) by the options
 * --kv-events-*.
 *
 * Owns    nothing.
 * Thread  main.
 * Errors  as publisher.h; ERR_INVALID for options that do not fit together.
 * Units   none. */
#ifndef TARN_SERVER_KV_EVENTS_H
#define TARN_SERVER_KV_EVENTS_H

#include "server/events/publisher.h"

struct config;
struct server;

/* Open the sockets. *out NULL: no events are wanted. */
NODISCARD enum status kv_events_open(struct publisher **out, const struct config *c,
                                     struct buf *why);
/* Begin to publish. p may be NULL. port: that the server listens on; 0: a Unix socket. */
NODISCARD enum status kv_events_start(struct publisher *p, const struct server *srv, uint16_t port,
                                      struct buf *why);

#endif
