/* transport_inner.h - what the implementations of transport.h share: the list of events, addresses.
 *
 * An event is a note inside the object that it reports on (a connection, a message), so that
 * reporting never allocates and never fails.
 *
 * Owns    nothing.
 * Thread  the pool thread.
 * Errors  as transport.h.
 * Units   bytes. */
#ifndef TARN_CACHE_POOL_TRANSPORT_INNER_H
#define TARN_CACHE_POOL_TRANSPORT_INNER_H

#include <sys/socket.h>

#include "base/list.h"
#include "cache/pool/transport.h"

struct transport_note {
    struct link link; /* of transport.notes; in no list before it is posted */
    struct transport_event event;
};

struct transport_ops {
    const char *name;
    int family; /* of addresses: AF_INET, or AF_UNSPEC for IPv6 too */
    NODISCARD enum status (*open)(struct transport *t, const struct sockaddr *listen,
                                  socklen_t n_listen, struct buf *why);
    void (*close)(struct transport *t);
    void (*register_memory)(struct transport *t, const void *base, uint64_t n_bytes);
    void (*unregister_all)(struct transport *t);
    int (*fd)(const struct transport *t);
    /* Returns whether the descriptor may be waited on if no note is posted. */
    bool (*progress)(struct transport *t, uint64_t now_ns);
    NODISCARD enum status (*connect)(struct transport *t, const struct sockaddr *to, socklen_t n_to,
                                     uint32_t *conn);
    /* Close; no event but TRANSPORT_CLOSED follows, which is posted before returning. A connection
     * without payload may go on closing, without any event, and keeps its number as long. */
    void (*disconnect)(struct transport *t, uint32_t conn);
    NODISCARD enum status (*send)(struct transport *t, uint32_t conn, const void *head,
                                  uint32_t n_head, const struct iovec *payload, uint32_t n_payload,
                                  uint64_t tag);
    /* Of the message of this note. to NULL: throw the payload away. */
    void (*receive)(struct transport *t, struct transport_note *message, const struct iovec *to,
                    uint32_t n_to, uint64_t tag);
    /* The event was reported; of a message: its head is not needed any more. The note may be
     * posted again, or freed. After TRANSPORT_CLOSED the connection's number is free. */
    void (*taken)(struct transport *t, struct transport_note *note);
    void (*count_conns)(const struct transport *t, struct transport_stats *out);
};

struct transport {
    const struct transport_ops *ops;
    struct transport_config config;  /* defaults filled in; its strings are not kept */
    struct link notes;               /* posted, in order */
    struct transport_note *reported; /* the message whose head is valid */
    bool payload_is_due;             /* of reported */
    struct sockaddr_storage bound;   /* where it listens, with the port; set by ops.open() */
    char address[128];
    struct transport_stats stats;
    void *state; /* of the implementation */
};

extern const struct transport_ops transport_tcp_ops;
/* Fill *ops with the functions of UCX. ERR_UNSUPPORTED: built without it, or the library is not
 * installed. */
NODISCARD enum status transport_ucx_load(const struct transport_ops **ops, struct buf *why);
/* Whether UCX finds hardware here that the kernel's sockets do not use. */
bool transport_ucx_is_worthwhile(void);

/* The event of the note is filled in but for conn and kind. Posting a posted note is a bug. */
void transport_post(struct transport *t, struct transport_note *note,
                    enum transport_event_kind kind, uint32_t conn);
/* Post TRANSPORT_CLOSED and count why. */
enum transport_end { TRANSPORT_LEFT, TRANSPORT_BROKEN, TRANSPORT_TIMEOUT };
void transport_post_closed(struct transport *t, struct transport_note *note, uint32_t conn,
                           enum transport_end end, const char *why);
/* Words for an errno of a connection, static. */
const char *transport_words(int error);
uint64_t transport_sum(const struct iovec *pieces, uint32_t n);

/* "HOST:PORT" or "[IPV6]:PORT". Names are resolved if may_resolve, which may wait. */
NODISCARD enum status transport_parse(struct sockaddr_storage *out, socklen_t *n, const char *text,
                                      int family, bool may_resolve, struct buf *why);
/* Write "KIND://HOST:PORT" for peers: the host is announce_host, else the host of *bound, else, for
 * a wildcard, an address of this machine. */
NODISCARD enum status transport_announce(char *out, size_t n_out, const char *kind,
                                         const struct sockaddr_storage *bound,
                                         const char *announce_host, struct buf *why);

#endif
