/* transport.h - messages between two instances, with payload that is never copied by Tarn.
 *
 * Two implementations pass the same tests: `tcp` (sockets of the kernel, no library) and `ucx`
 * (libucx: shared memory, TCP or RDMA, by what the machines have). A message has a head of at most
 * TRANSPORT_HEAD_MAX bytes and may have a payload. The sender's payload goes out from where it
 * lies; the receiver sees the head first and says where the payload is to go. Messages of one
 * connection arrive in the order in which they were sent.
 *
 * Everything that arrives is hostile until checked: lengths are bounded before anything is
 * allocated, and a peer that breaks the framing is disconnected. That holds for tcp; below the
 * messages of ucx lies the protocol of UCX, which trusts its network. The transport knows nothing
 * about what messages mean, and does not authenticate: handshake.h does.
 *
 * Nothing here waits. Work happens in transport_progress(), results are events. Bounds:
 * connections, messages queued for a connection (then ERR_BUSY: back-pressure), bytes of heads. The
 * caller's loop:
 *
 *   may_wait = transport_progress(t, now);
 *   while (transport_next(t, &event)) { ...send, receive, disconnect...; may_wait = false; }
 *   if (may_wait) poll(transport_fd(t)) with a timeout below idle_timeout_ns;
 *
 * Owns    sockets, endpoints, registered memory, heads in flight. Payload memory is the caller's
 *         and must stay until TRANSPORT_SENT or TRANSPORT_RECEIVED names its tag, or until
 *         TRANSPORT_CLOSED of that connection, after which no payload of it is touched any more.
 * Thread  the pool thread only. transport_open() of ucx sets environment variables (UCX_*) once, so
 *         no other thread may read the environment meanwhile.
 * Errors  transport_open(): ERR_INVALID for a bad address, ERR_UNSUPPORTED when Tarn was built
 *         without UCX, ERR_IO with words.
 * Units   bytes. */
#ifndef TARN_CACHE_POOL_TRANSPORT_H
#define TARN_CACHE_POOL_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/status.h"

#define TRANSPORT_HEAD_MAX 65536u
#define TRANSPORT_PIECES_MAX 16u /* of one payload */
#define TRANSPORT_NO_CONN UINT32_MAX

struct transport;

struct transport_config {
    const char *kind;   /* "tcp", "ucx", "auto": ucx where it is installed and the machine has
                                  RDMA devices, else tcp */
    const char *listen; /* "HOST:PORT", "[IPV6]:PORT", port 0: any free one */
    const char *announce_host; /* the host part of transport_address(); NULL: of listen, and of the
                                  machine where listen is a wildcard */
    uint32_t n_conns_max;      /* 0: 256 */
    uint32_t n_queued_max;     /* messages queued for one connection; 0: 1024 */
    uint64_t payload_max;      /* of one message; more is a broken peer */
    uint64_t idle_timeout_ns;  /* a connection on which a message stands still for so long, or
                                  whose peer has sent no whole message for so long since it
                                  began, is closed; 0: 10 s */
};

NODISCARD enum status transport_open(struct transport **out, const struct transport_config *config,
                                     struct buf *why);
void transport_close(struct transport *t);             /* NULL is fine */
const char *transport_kind(const struct transport *t); /* "tcp", "ucx" */
/* The address to which other instances connect: "tcp://10.0.0.5:41234", "ucx://...". */
const char *transport_address(const struct transport *t);
/* Memory from which payload will be sent often: registered once where that helps. Optional. */
void transport_register(struct transport *t, const void *base, uint64_t n_bytes);
/* The registered memory is about to be freed; no payload of it is under way. */
void transport_unregister_all(struct transport *t);

/* A file descriptor that is readable when transport_progress() has something to do. It may be
 * waited on only right after transport_progress() returned true, with no other call in between. */
int transport_fd(const struct transport *t);
/* Do what can be done now. Returns whether the descriptor may be waited on: false means that events
 * wait for transport_next(), or that the next call should come at once. */
bool transport_progress(struct transport *t, uint64_t now_ns);

/* Connect to transport_address() of another instance: of the same kind, else ERR_UNSUPPORTED.
 * TRANSPORT_CONNECTED or TRANSPORT_CLOSED follows. ERR_INVALID: no address; ERR_BUSY: too many
 * connections. */
NODISCARD enum status transport_connect(struct transport *t, const char *address, uint32_t *conn);
/* Close at once. No further event of this connection follows; payload of it is free. */
void transport_disconnect(struct transport *t, uint32_t conn);

/* Queue a message of at most payload_max bytes of payload. head [n_head] is copied; payload
 * [n_payload] pieces are not. tag: of the TRANSPORT_SENT event; 0: no event is wanted (only without
 * payload). ERR_BUSY: too much is queued, or too many TRANSPORT_SENT events wait; ERR_UNAVAILABLE:
 * not connected. */
NODISCARD enum status transport_send(struct transport *t, uint32_t conn, const void *head,
                                     uint32_t n_head, const struct iovec *payload,
                                     uint32_t n_payload, uint64_t tag);
/* Say where the payload of the message that was just reported goes: pieces whose lengths sum up to
 * its n_payload. TRANSPORT_RECEIVED with this tag follows. NULL: the payload is thrown away,
 * without an event. To be called before the next transport_next() or transport_progress(). */
void transport_receive(struct transport *t, uint32_t conn, const struct iovec *to, uint32_t n_to,
                       uint64_t tag);

enum transport_event_kind {
    TRANSPORT_ACCEPTED,  /* a connection from outside: conn is new */
    TRANSPORT_CONNECTED, /* of transport_connect() */
    TRANSPORT_MESSAGE,   /* head [n_head] is valid until the next transport_next(); with n_payload >
                            0 transport_receive() is due */
    TRANSPORT_SENT,
    TRANSPORT_RECEIVED,
    TRANSPORT_CLOSED /* the peer left, was too slow, or broke the framing: why. conn is free */
};

struct transport_event {
    enum transport_event_kind kind;
    uint32_t conn;
    uint64_t tag;
    const void *head;
    uint32_t n_head;
    uint64_t n_payload;
    const char *why; /* static */
};
/* The next event. False: none. */
bool transport_next(struct transport *t, struct transport_event *out);

struct transport_stats {
    uint32_t n_conns;
    uint64_t n_messages_in, n_messages_out, n_bytes_in, n_bytes_out;
    uint64_t n_broken, n_timeouts; /* connections closed for these reasons */
};
void transport_stats(const struct transport *t, struct transport_stats *out);

#endif
