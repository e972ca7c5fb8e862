/* transport_ucx_inner.h - what the files of the transport over UCX share.
 *
 * Owns    nothing.
 * Thread  the pool thread.
 * Errors  as transport.h.
 * Units   bytes. */
#ifndef TARN_CACHE_POOL_TRANSPORT_UCX_INNER_H
#define TARN_CACHE_POOL_TRANSPORT_UCX_INNER_H

#include <ucp/api/ucp.h>

#include "cache/pool/transport_inner.h"

#define WIRE_MAGIC 0x31585254u /* "TRX1" */
#define WIRE_BYTES 12u
#define N_REQUESTS_MAX 64  /* connection requests between two calls of progress */
#define N_WAITING_MAX 256u /* messages that are not taken; then nothing more is received */

enum { AM_OPEN = 1, AM_HEAD, AM_MESSAGE };

/* --- the library --- */

#define UCX_FUNCTIONS(X)                                                                           \
    X(ucp_config_read)                                                                             \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_release)                                                                          \
    X(ucp_init_version)                                                                            \
    X(ucp_cleanup)                                                                                 \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_query)                                                                            \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_arm)                                                                              \
    X(ucp_worker_progress)                                                                         \
    X(ucp_worker_set_am_recv_handler)                                                              \
    X(ucp_listener_create)                                                                         \
    X(ucp_listener_destroy)                                                                        \
    X(ucp_listener_query)                                                                          \
    X(ucp_listener_reject)                                                                         \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_am_send_nbx)                                                                             \
    X(ucp_am_recv_data_nbx)                                                                        \
    X(ucp_am_data_release)                                                                         \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucp_mem_map)                                                                                 \
    X(ucp_mem_unmap)

struct ucx_library {
    void *library;
#define MEMBER(name) __typeof__(&name) name;
    UCX_FUNCTIONS(MEMBER)
#undef MEMBER
    const char *(*ucs_status_string)(ucs_status_t status);
};
extern struct ucx_library ucx; /* filled in by transport_ucx_load() */

/* --- state --- */

struct ux_conn;

struct ux_send {
    struct transport_note note; /* first: TRANSPORT_SENT */
    struct ux_conn *conn;
    uint32_t n_ops; /* of UCX under way */
    ucp_dt_iov_t iov[TRANSPORT_PIECES_MAX];
    uint8_t wire[]; /* header of the active message, and the head */
};

struct ux_message {
    struct transport_note note; /* first: TRANSPORT_MESSAGE */
    struct transport_note received;
    struct ux_conn *conn;
    struct link link; /* of conn.messages, until its head and its payload were taken */
    uint32_t number;
    bool has_head, has_body;
    uint32_t n_users; /* the note of the message, the receive under way or its note */
    void *data;       /* of UCX, to be received or released; NULL: none */
    bool is_here;     /* data are the bytes, else what UCX needs to fetch them */
    uint64_t n_payload;
    ucp_dt_iov_t iov[TRANSPORT_PIECES_MAX];
    uint32_t n_head;
    uint8_t *head;
};

enum conn_state {
    CONN_FREE,
    CONN_CONNECTING, /* AM_OPEN of the peer is awaited */
    CONN_OPEN,
    CONN_CLOSING, /* UCX still works on it */
    CONN_CLOSED   /* TRANSPORT_CLOSED is posted */
};

struct ux_conn {
    enum conn_state state;
    bool is_acceptor;
    bool was_heard, moved;
    uint64_t t_moved_ns;
    struct ux *ux;
    ucp_ep_h ep;
    void *closing; /* request of UCX; NULL: none */
    uint32_t n_ops;
    uint32_t n_sends; /* also those whose event is not taken */
    uint32_t n_under_way;
    uint32_t number_out, number_in;
    struct link messages;
    struct transport_note opened, closed;
    const char *failed; /* to be closed; NULL: no */
    enum transport_end end;
    bool is_given_up; /* the caller has closed it: no event follows */
};

struct ux {
    struct transport *t;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    int fd;
    uint64_t now_ns;
    uint32_t n_header_max; /* of an active message */
    uint32_t n_waiting;    /* messages that are not taken */
    struct ux_conn *conns; /* [n_conns_max] */
    uint32_t n_used;
    ucp_conn_request_h requests[N_REQUESTS_MAX];
    uint32_t n_requests;
    ucp_mem_h *regions;
    uint32_t n_regions;
};

static inline uint32_t ux_index_of(const struct ux_conn *c)
{
    return (uint32_t)(c - c->ux->conns);
}

/* Words for a status of UCX, static. */
const char *ux_words_of(ucs_status_t s);
/* To be closed when UCX is not on the stack any more. The first reason counts. */
void ux_fail(struct ux_conn *c, enum transport_end end, const char *why);

/* --- messages: transport_ucx_message.c --- */

NODISCARD ucs_status_t ux_set_handlers(struct ux *ux);
void ux_unuse(struct ux_message *m);
void ux_release_data(struct ux_message *m);
void ux_send_open(struct ux_conn *c);
NODISCARD enum status ux_send(struct transport *t, uint32_t conn, const void *head, uint32_t n_head,
                              const struct iovec *payload, uint32_t n_payload, uint64_t tag);
void ux_receive(struct transport *t, struct transport_note *note, const struct iovec *to,
                uint32_t n_to, uint64_t tag);

/* --- connections: transport_ucx_conn.c --- */

void ux_on_request(ucp_conn_request_h request, void *arg);
NODISCARD enum status ux_connect(struct transport *t, const struct sockaddr *to, socklen_t n_to,
                                 uint32_t *conn);
void ux_disconnect(struct transport *t, uint32_t conn);
/* Give up connections that are not there yet, and wait a bounded time until they can be closed. */
void ux_await_connections(struct ux *ux);
void ux_taken(struct transport *t, struct transport_note *note);
bool ux_progress(struct transport *t, uint64_t now_ns);
void ux_count_conns(const struct transport *t, struct transport_stats *out);

#endif
