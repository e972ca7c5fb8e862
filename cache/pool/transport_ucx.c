/* Messages as active messages of UCP. The header of an active message is
 *
 *   offset  bytes  what
 *   0       4      WIRE_MAGIC
 *   4       4      number of the message on this connection and in this direction, from 0
 *   8       4      n_head
 *   12      n_head the head, if it fits into a header of UCX
 *
 * and its data is the payload. A head that does not fit goes ahead in an active message AM_HEAD with
 * the same number. UCX may use several lanes, so what arrives is put in order by these numbers.
 *
 * libucp is loaded when a transport is opened and not linked: its constructors install signal
 * handlers and replace sigaction(), which a server without --pool, or with tcp, must not have. The
 * environment says before loading what the library reads only then; variables that are set already
 * stay, so UCX can be configured as usual.
 *
 * A connection is closed by force, and TRANSPORT_CLOSED waits until UCX has ended all operations on
 * its payload. Payload is fetched by the receiver (RNDV_SCHEME get_zcopy, or copied by it), so no
 * peer writes into memory whose connection is closed. */
#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/pool/transport_inner.h"

#define WIRE_MAGIC 0x31585254u /* "TRX1" */
#define WIRE_BYTES 12u
#define N_REQUESTS_MAX 64  /* connection requests between two calls of progress */
#define N_PROGRESS_MAX 64  /* calls of ucp_worker_progress() in one of progress */
#define N_WAITING_MAX 256u /* messages that are not taken; then nothing more is received */
#define CLOSE_MAX_NS UINT64_C(20000000000)

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

static struct {
    void *library;
#define MEMBER(name) __typeof__(&name) name;
    UCX_FUNCTIONS(MEMBER)
#undef MEMBER
    const char *(*ucs_status_string)(ucs_status_t status);
} ucx;

static void *find_function(const char *name, bool *ok)
{
    void *f = dlsym(ucx.library, name);

    if (!f)
        *ok = false;
    return f;
}

static enum status load(struct buf *why)
{
    bool ok = true;

    if (ucx.library)
        return OK;
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    setenv("UCX_DEBUG_SIGNO", "0", 0);
    setenv("UCX_LOG_LEVEL", "fatal", 0); /* what matters is reported as an event */
    ucx.library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!ucx.library)
        return buf_why(why, ERR_UNSUPPORTED, "UCX cannot be loaded (libucx0): %s", dlerror());
#define FIND(name) *(void **)&ucx.name = find_function(#name, &ok);
    UCX_FUNCTIONS(FIND)
    FIND(ucs_status_string)
#undef FIND
    if (ok)
        return OK;
    dlclose(ucx.library);
    ucx.library = NULL;
    return buf_why(why, ERR_UNSUPPORTED, "this version of UCX is too old: 1.11 is needed");
}

bool transport_ucx_is_worthwhile(void)
{
    DIR *d = opendir("/sys/class/infiniband"); /* RDMA devices, RoCE too */
    bool any = false;
    const struct dirent *e;

    while (d && !any && (e = readdir(d)))
        any = e->d_name[0] != '.';
    if (d)
        closedir(d);
    return any;
}

/* --- state --- */

struct conn;

struct send {
    struct transport_note note; /* first: TRANSPORT_SENT */
    struct conn *conn;
    uint32_t n_ops; /* of UCX under way */
    ucp_dt_iov_t iov[TRANSPORT_PIECES_MAX];
    uint8_t wire[]; /* header of the active message, and the head */
};

struct message {
    struct transport_note note; /* first: TRANSPORT_MESSAGE */
    struct transport_note received;
    struct conn *conn;
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

struct conn {
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
    struct conn *conns;    /* [n_conns_max] */
    uint32_t n_used;
    ucp_conn_request_h requests[N_REQUESTS_MAX];
    uint32_t n_requests;
    ucp_mem_h *regions;
    uint32_t n_regions;
};

static uint32_t index_of(const struct conn *c)
{
    return (uint32_t)(c - c->ux->conns);
}

static const char *words_of(ucs_status_t s)
{
    switch (s) {
    case UCS_ERR_CONNECTION_RESET: return "the peer left";
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE: return "the peer cannot be reached";
    case UCS_ERR_REJECTED: return "the peer refuses connections";
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT: return "the peer does not answer";
    case UCS_ERR_NO_MEMORY: return transport_words(ENOMEM);
    default: return ucx.ucs_status_string(s); /* static */
    }
}

/* To be closed when UCX is not on the stack any more. The first reason counts. */
static void fail_conn(struct conn *c, enum transport_end end, const char *why)
{
    if (c->failed || c->state == CONN_FREE || c->state >= CONN_CLOSING)
        return;
    c->failed = why;
    c->end = end;
}

/* --- messages that arrive --- */

static void unuse(struct message *m)
{
    if (--m->n_users > 0)
        return;
    link_remove(&m->link);
    free(m->head);
    free(m);
}

static void release_data(struct message *m)
{
    if (m->data)
        ucx.ucp_am_data_release(m->conn->ux->worker, m->data);
    m->data = NULL;
}

static struct message *message_of(struct conn *c, uint32_t number)
{
    for (struct link *l = c->messages.next; l != &c->messages; l = l->next) {
        struct message *m = LINK_ITEM(l, message, link);
        if (m->number == number)
            return m;
    }
    if (number - c->number_in > c->ux->t->config.n_queued_max + N_WAITING_MAX)
        return NULL; /* also one that was reported already */
    struct message *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->conn = c;
    m->number = number;
    m->n_users = 1;
    link_append(&c->messages, &m->link);
    return m;
}

/* Report what is complete, in order. */
static void report_messages(struct conn *c)
{
    struct transport *t = c->ux->t;
    bool any = c->state == CONN_OPEN;

    while (any) {
        any = false;
        for (struct link *l = c->messages.next; l != &c->messages; l = l->next) {
            struct message *m = LINK_ITEM(l, message, link);
            if (m->number != c->number_in || !m->has_head || !m->has_body)
                continue;
            any = true;
            c->number_in++;
            c->ux->n_waiting++;
            c->was_heard = true;
            t->stats.n_messages_in++;
            m->note.event = (struct transport_event){
                .head = m->head, .n_head = m->n_head, .n_payload = m->n_payload};
            transport_post(t, &m->note, TRANSPORT_MESSAGE, index_of(c));
            break;
        }
    }
}

static struct conn *conn_of(struct ux *ux, const ucp_am_recv_param_t *param)
{
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP))
        return NULL;
    for (uint32_t i = 0; i < ux->n_used; i++)
        if (ux->conns[i].ep == param->reply_ep && ux->conns[i].state != CONN_FREE)
            return &ux->conns[i];
    return NULL;
}

static bool take_head(struct message *m, const void *head, uint32_t n)
{
    if (m->has_head)
        return false;
    m->head = malloc(n > 0 ? n : 1);
    if (!m->head)
        return false;
    if (n > 0)
        memcpy(m->head, head, n);
    m->n_head = n;
    m->has_head = true;
    return true;
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

/* The message to which an active message belongs. NULL: the connection is broken or closed. */
static struct message *begin_message(struct conn *c, const uint8_t *wire, size_t n_wire)
{
    if (!c || c->state >= CONN_CLOSING || c->failed)
        return NULL;
    struct message *m = NULL;
    if (n_wire < WIRE_BYTES || get_u32(wire) != WIRE_MAGIC)
        fail_conn(c, TRANSPORT_BROKEN, "the peer does not send messages of this version");
    else if (get_u32(wire + 8) > TRANSPORT_HEAD_MAX)
        fail_conn(c, TRANSPORT_BROKEN, "the peer announced too long a head");
    else if (!(m = message_of(c, get_u32(wire + 4))))
        fail_conn(c, TRANSPORT_BROKEN, "the peer's messages have wrong numbers");
    c->moved = true;
    return m;
}

static ucs_status_t on_head(void *arg, const void *header, size_t n_header, void *data, size_t n,
                            const ucp_am_recv_param_t *param)
{
    struct conn *c = conn_of(arg, param);
    struct message *m = begin_message(c, header, n_header);

    if (!m)
        return UCS_OK;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ||
        n != get_u32((const uint8_t *)header + 8) || !take_head(m, data, (uint32_t)n))
        fail_conn(c, TRANSPORT_BROKEN, "the peer sent a broken head");
    c->ux->t->stats.n_bytes_in += n;
    report_messages(c);
    return UCS_OK;
}

static ucs_status_t on_message(void *arg, const void *header, size_t n_header, void *data, size_t n,
                               const ucp_am_recv_param_t *param)
{
    const uint8_t *wire = header;
    struct conn *c = conn_of(arg, param);
    struct message *m = begin_message(c, wire, n_header);

    if (!m)
        return UCS_OK;
    uint32_t n_head = get_u32(wire + 8);
    bool is_whole = n_header == WIRE_BYTES + n_head;
    if (m->has_body || n > c->ux->t->config.payload_max || (!is_whole && n_header != WIRE_BYTES) ||
        (is_whole && !take_head(m, wire + WIRE_BYTES, n_head))) {
        fail_conn(c, TRANSPORT_BROKEN,
                  n > c->ux->t->config.payload_max ? "the peer announced too much payload"
                                                   : "the peer sent a broken message");
        return UCS_OK;
    }
    m->has_body = true;
    m->n_payload = n;
    m->data = n > 0 ? data : NULL;
    m->is_here = !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    c->ux->t->stats.n_bytes_in += n_header;
    report_messages(c);
    return n > 0 ? UCS_INPROGRESS : UCS_OK;
}

static void send_open(struct conn *c);

static ucs_status_t on_open(void *arg, const void *header, size_t n_header, void *data, size_t n,
                            const ucp_am_recv_param_t *param)
{
    struct conn *c = conn_of(arg, param);

    (void)data;
    if (!c || c->failed || c->state >= CONN_CLOSING)
        return UCS_OK;
    if (c->state != CONN_CONNECTING || n > 0 || n_header != WIRE_BYTES ||
        get_u32(header) != WIRE_MAGIC) {
        fail_conn(c, TRANSPORT_BROKEN, "the peer does not send messages of this version");
        return UCS_OK;
    }
    c->state = CONN_OPEN;
    c->moved = true;
    transport_post(c->ux->t, &c->opened, c->is_acceptor ? TRANSPORT_ACCEPTED : TRANSPORT_CONNECTED,
                   index_of(c));
    if (c->is_acceptor)
        send_open(c);
    report_messages(c);
    return UCS_OK;
}

static void end_receive(struct message *m, ucs_status_t s)
{
    struct conn *c = m->conn;

    if (s != UCS_OK)
        fail_conn(c, TRANSPORT_LEFT, words_of(s));
    if (s != UCS_OK || c->state >= CONN_CLOSING || c->failed) {
        unuse(m);
        return;
    }
    c->moved = true;
    c->ux->t->stats.n_bytes_in += m->n_payload;
    transport_post(c->ux->t, &m->received, TRANSPORT_RECEIVED, index_of(c));
}

static void on_received(void *request, ucs_status_t s, size_t n, void *arg)
{
    struct message *m = arg;

    m->conn->n_ops--;
    m->conn->n_under_way--;
    ucx.ucp_request_free(request);
    end_receive(m, s == UCS_OK && n != m->n_payload ? UCS_ERR_MESSAGE_TRUNCATED : s);
}

static void *to_iov(ucp_dt_iov_t *out, const struct iovec *pieces, uint32_t n, size_t *count,
                    ucp_request_param_t *param)
{
    uint32_t n_used = 0;

    for (uint32_t i = 0; i < n; i++)
        if (pieces[i].iov_len > 0)
            out[n_used++] =
                (ucp_dt_iov_t){.buffer = pieces[i].iov_base, .length = pieces[i].iov_len};
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    if (n_used <= 1) {
        param->datatype = ucp_dt_make_contig(1);
        *count = n_used ? out[0].length : 0;
        return n_used ? out[0].buffer : NULL;
    }
    param->datatype = UCP_DATATYPE_IOV;
    *count = n_used;
    return out;
}

static void fetch(struct message *m, const struct iovec *to, uint32_t n_to)
{
    struct conn *c = m->conn;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = on_received,
        .user_data = m,
    };
    size_t count;
    void *buffer = to_iov(m->iov, to, n_to, &count, &param);
    void *data = m->data;

    m->data = NULL; /* belongs to UCX again */
    ucs_status_ptr_t r = ucx.ucp_am_recv_data_nbx(c->ux->worker, data, buffer, count, &param);
    if (UCS_PTR_IS_PTR(r)) {
        c->n_ops++;
        c->n_under_way++;
    } else {
        end_receive(m, UCS_PTR_STATUS(r));
    }
}

static void ucx_receive(struct transport *t, struct transport_note *note, const struct iovec *to,
                        uint32_t n_to, uint64_t tag)
{
    struct message *m = (struct message *)note; /* its first member */

    (void)t;
    if (!to || !m->data) { /* data was released when the connection was closed */
        release_data(m);
        return;
    }
    m->received.event = (struct transport_event){.tag = tag};
    m->n_users++;
    if (!m->is_here) {
        fetch(m, to, n_to);
        return;
    }
    const uint8_t *from = m->data; /* ucp_am_recv_data_nbx() of UCX 1.13 would lose its memory */
    for (uint32_t i = 0; i < n_to; i++) {
        if (to[i].iov_len > 0)
            memcpy(to[i].iov_base, from, to[i].iov_len);
        from += to[i].iov_len;
    }
    release_data(m);
    end_receive(m, UCS_OK);
}

/* --- messages that leave --- */

static void put_wire(uint8_t *wire, uint32_t number, uint32_t n_head)
{
    uint32_t words[] = {htole32(WIRE_MAGIC), htole32(number), htole32(n_head)};

    memcpy(wire, words, WIRE_BYTES);
}

static void end_send(struct send *s, ucs_status_t status)
{
    struct conn *c = s->conn;
    struct transport *t = c->ux->t;

    /* A receiver that does not want the payload cancels it. */
    if (status != UCS_OK && status != UCS_ERR_CANCELED)
        fail_conn(c, TRANSPORT_LEFT, words_of(status));
    if (--s->n_ops > 0)
        return;
    c->n_under_way--;
    c->moved = true;
    if (s->note.event.tag && c->state == CONN_OPEN && !c->failed) {
        transport_post(t, &s->note, TRANSPORT_SENT, index_of(c));
    } else {
        c->n_sends--;
        free(s);
    }
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct send *s = arg;

    s->conn->n_ops--;
    ucx.ucp_request_free(request);
    end_send(s, status);
}

static void send_part(struct send *s, unsigned id, uint32_t n_wire, const void *buffer,
                      size_t count, ucp_request_param_t *param)
{
    struct conn *c = s->conn;

    param->op_attr_mask |=
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param->cb.send = on_sent;
    param->user_data = s;
    param->flags |= UCP_AM_SEND_FLAG_REPLY;
    ucs_status_ptr_t r = ucx.ucp_am_send_nbx(c->ep, id, s->wire, n_wire, buffer, count, param);
    if (UCS_PTR_IS_PTR(r))
        c->n_ops++;
    else
        end_send(s, UCS_PTR_STATUS(r));
}

static struct send *new_send(struct conn *c, uint32_t n_head, uint64_t tag)
{
    struct send *s = malloc(sizeof *s + WIRE_BYTES + n_head);

    if (!s)
        return NULL;
    s->conn = c;
    s->n_ops = 1;
    s->note.event = (struct transport_event){.tag = tag};
    c->n_sends++;
    c->n_under_way++;
    c->moved = true;
    return s;
}

static void send_open(struct conn *c)
{
    struct send *s = new_send(c, 0, 0);
    ucp_request_param_t param = {0};

    if (!s) {
        fail_conn(c, TRANSPORT_LEFT, transport_words(ENOMEM));
        return;
    }
    put_wire(s->wire, 0, 0);
    send_part(s, AM_OPEN, WIRE_BYTES, NULL, 0, &param);
}

static enum status ucx_send(struct transport *t, uint32_t conn, const void *head, uint32_t n_head,
                            const struct iovec *payload, uint32_t n_payload, uint64_t tag)
{
    struct ux *ux = t->state;
    struct conn *c = &ux->conns[conn];
    ucp_request_param_t param = {0};
    size_t count;

    ASSERT(conn < t->config.n_conns_max);
    if (c->state != CONN_OPEN || c->failed)
        return ERR_UNAVAILABLE;
    if (c->n_sends >= t->config.n_queued_max)
        return ERR_BUSY;
    struct send *s = new_send(c, n_head, tag);
    if (!s)
        return ERR_NOMEM;
    bool is_whole = WIRE_BYTES + n_head <= ux->n_header_max;
    put_wire(s->wire, c->number_out++, n_head);
    if (n_head > 0)
        memcpy(s->wire + WIRE_BYTES, head, n_head);
    t->stats.n_messages_out++;
    t->stats.n_bytes_out += WIRE_BYTES + n_head + transport_sum(payload, n_payload);
    if (!is_whole) {
        ucp_request_param_t eager = {.flags = UCP_AM_SEND_FLAG_EAGER};
        s->n_ops = 2;
        send_part(s, AM_HEAD, WIRE_BYTES, s->wire + WIRE_BYTES, n_head, &eager);
    }
    void *buffer = to_iov(s->iov, payload, n_payload, &count, &param);
    send_part(s, AM_MESSAGE, WIRE_BYTES + (is_whole ? n_head : 0), buffer, count, &param);
    return OK;
}

/* --- connections --- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t s)
{
    struct conn *c = arg;

    if (c->ep == ep)
        fail_conn(c, TRANSPORT_LEFT, words_of(s));
}

/* Make a connection with these parameters of UCX. NULL: no room, or UCX refuses. */
static struct conn *add_conn(struct ux *ux, ucp_ep_params_t *params, bool is_acceptor)
{
    uint32_t i = 0;

    while (i < ux->t->config.n_conns_max && ux->conns[i].state != CONN_FREE)
        i++;
    if (i == ux->t->config.n_conns_max)
        return NULL;
    struct conn *c = &ux->conns[i];
    *c = (struct conn){
        .state = CONN_CONNECTING, .is_acceptor = is_acceptor, .moved = true, .ux = ux};
    link_init(&c->messages);
    if (ux->n_used <= i)
        ux->n_used = i + 1;
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    params->err_handler.arg = c;
    if (ucx.ucp_ep_create(ux->worker, params, &c->ep) == UCS_OK)
        return c;
    c->ep = NULL;
    c->state = CONN_FREE;
    return NULL;
}

static void free_conn(struct conn *c)
{
    struct ux *ux = c->ux;

    c->state = CONN_FREE;
    while (ux->n_used > 0 && ux->conns[ux->n_used - 1].state == CONN_FREE)
        ux->n_used--;
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    struct ux *ux = arg;

    if (ux->n_requests < N_REQUESTS_MAX)
        ux->requests[ux->n_requests++] = request;
    else
        ucx.ucp_listener_reject(ux->listener, request);
}

static void accept_conns(struct ux *ux)
{
    for (uint32_t i = 0; i < ux->n_requests; i++) {
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
                                  .conn_request = ux->requests[i]};
        uint32_t n = 0;
        for (uint32_t k = 0; k < ux->n_used; k++)
            n += ux->conns[k].state != CONN_FREE;
        if (n >= ux->t->config.n_conns_max)
            ucx.ucp_listener_reject(ux->listener, ux->requests[i]);
        else
            add_conn(ux, &params, true);
    }
    ux->n_requests = 0;
}

static enum status ucx_connect(struct transport *t, const struct sockaddr *to, socklen_t n_to,
                               uint32_t *conn)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = to, .addrlen = n_to},
    };
    struct conn *c = add_conn(t->state, &params, false);

    if (!c)
        return ERR_BUSY;
    *conn = index_of(c);
    send_open(c);
    return OK;
}

/* Begin to close: UCX ends what is under way. */
static void begin_close(struct conn *c)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    struct link *next;

    for (struct link *l = c->messages.next; l != &c->messages; l = next) {
        struct message *m = LINK_ITEM(l, message, link);
        next = l->next;
        release_data(m);
        if (!m->has_head || !m->has_body || (int32_t)(m->number - c->number_in) >= 0)
            unuse(m); /* never reported */
    }
    c->state = CONN_CLOSING;
    ucs_status_ptr_t r = ucx.ucp_ep_close_nbx(c->ep, &param);
    c->ep = NULL;
    c->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
}

/* Post TRANSPORT_CLOSED if UCX has ended everything. */
static void try_to_end_close(struct conn *c)
{
    if (c->closing && ucx.ucp_request_check_status(c->closing) != UCS_INPROGRESS) {
        ucx.ucp_request_free(c->closing);
        c->closing = NULL;
    }
    if (c->closing || c->n_ops > 0)
        return;
    c->state = CONN_CLOSED;
    transport_post_closed(c->ux->t, &c->closed, index_of(c), c->end, c->failed);
}

static void ucx_disconnect(struct transport *t, uint32_t conn)
{
    struct ux *ux = t->state;
    struct conn *c = &ux->conns[conn];
    uint64_t give_up_ns = clock_now_ns() + CLOSE_MAX_NS;

    ASSERT(conn < t->config.n_conns_max && c->state != CONN_FREE);
    fail_conn(c, TRANSPORT_LEFT, "closed here");
    if (c->state < CONN_CLOSING)
        begin_close(c);
    /* The payload must be free on return. This takes microseconds: UCX cancels, nothing is awaited
     * from the peer. An operation that does not end would write to memory of other requests. */
    while (c->state == CONN_CLOSING) {
        ucx.ucp_worker_progress(ux->worker);
        try_to_end_close(c);
        ASSERT(clock_now_ns() < give_up_ns);
    }
}

static void ucx_taken(struct transport *t, struct transport_note *note)
{
    struct ux *ux = t->state;
    struct conn *c = &ux->conns[note->event.conn];

    switch (note->event.kind) {
    case TRANSPORT_CLOSED: free_conn(c); return;
    case TRANSPORT_SENT:
        c->n_sends--;
        free(note); /* the first member of its send */
        return;
    case TRANSPORT_MESSAGE:
        ux->n_waiting--;
        c->moved = true;
        release_data((struct message *)note); /* of a connection that was given up */
        unuse((struct message *)note);
        return;
    case TRANSPORT_RECEIVED: unuse(LINK_ITEM(note, message, received)); return;
    default: return;
    }
}

/* --- progress --- */

static void check_conn(struct ux *ux, struct conn *c)
{
    if (c->state == CONN_CLOSING)
        try_to_end_close(c);
    if (c->state != CONN_CONNECTING && c->state != CONN_OPEN)
        return;
    bool stands = c->state == CONN_CONNECTING || c->n_under_way > 0 || !c->was_heard;
    if (c->moved || !stands)
        c->t_moved_ns = ux->now_ns;
    c->moved = false;
    if (ux->now_ns - c->t_moved_ns >= ux->t->config.idle_timeout_ns)
        fail_conn(c, TRANSPORT_TIMEOUT,
                  c->state == CONN_CONNECTING ? "the peer does not answer"
                                              : "the peer stands still");
    if (c->failed) {
        begin_close(c);
        try_to_end_close(c);
    }
}

static bool ucx_progress(struct transport *t, uint64_t now_ns)
{
    struct ux *ux = t->state;
    bool is_drained = false, any_closing = false;

    ux->now_ns = now_ns;
    for (uint32_t i = 0; i < N_PROGRESS_MAX && !is_drained && ux->n_waiting < N_WAITING_MAX; i++)
        is_drained = ucx.ucp_worker_progress(ux->worker) == 0;
    accept_conns(ux);
    for (uint32_t i = 0; i < ux->n_used; i++) {
        check_conn(ux, &ux->conns[i]);
        any_closing = any_closing || ux->conns[i].state == CONN_CLOSING;
    }
    return is_drained && !any_closing && link_is_empty(&t->notes) &&
           ucx.ucp_worker_arm(ux->worker) == UCS_OK;
}

static int ucx_fd(const struct transport *t)
{
    return ((const struct ux *)t->state)->fd;
}

static void ucx_count_conns(const struct transport *t, struct transport_stats *out)
{
    const struct ux *ux = t->state;

    out->n_conns = 0;
    for (uint32_t i = 0; i < ux->n_used; i++)
        out->n_conns += ux->conns[i].state == CONN_OPEN;
}

/* Memory that cannot be registered works too, slower. */
static void ucx_register(struct transport *t, const void *base, uint64_t n_bytes)
{
    struct ux *ux = t->state;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = (void *)base,
        .length = n_bytes,
    };
    ucp_mem_h *more = realloc(ux->regions, (ux->n_regions + 1) * sizeof *more);

    if (!more)
        return;
    ux->regions = more;
    if (ucx.ucp_mem_map(ux->context, &params, &more[ux->n_regions]) == UCS_OK)
        ux->n_regions++;
}

/* --- open and close --- */

static ucs_status_t make_context(struct ux *ux)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .name = "tarn"};
    ucp_config_t *config;
    ucs_status_t s = ucx.ucp_config_read(NULL, NULL, &config);

    if (s != UCS_OK)
        return s;
    if (!getenv("UCX_RNDV_SCHEME"))
        ucx.ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
    s = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ux->context);
    ucx.ucp_config_release(config);
    return s;
}

static ucs_status_t make_worker(struct ux *ux)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    static const struct {
        unsigned id;
        ucp_am_recv_callback_t cb;
    } handlers[] = {{AM_OPEN, on_open}, {AM_HEAD, on_head}, {AM_MESSAGE, on_message}};
    ucs_status_t s = ucx.ucp_worker_create(ux->context, &params, &ux->worker);

    for (size_t i = 0; s == UCS_OK && i < ARRAY_SIZE(handlers); i++) {
        ucp_am_handler_param_t p = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = handlers[i].id,
            .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
            .cb = handlers[i].cb,
            .arg = ux,
        };
        s = ucx.ucp_worker_set_am_recv_handler(ux->worker, &p);
    }
    if (s == UCS_OK)
        s = ucx.ucp_worker_get_efd(ux->worker, &ux->fd);
    if (s == UCS_OK)
        s = ucx.ucp_worker_query(ux->worker, &attr);
    ux->n_header_max = (uint32_t)attr.max_am_header;
    return s == UCS_OK && attr.max_am_header < WIRE_BYTES ? UCS_ERR_UNSUPPORTED : s;
}

static ucs_status_t make_listener(struct ux *ux, const struct sockaddr *a, socklen_t n)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = a, .addrlen = n},
        .conn_handler = {.cb = on_request, .arg = ux},
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t s = ucx.ucp_listener_create(ux->worker, &params, &ux->listener);

    if (s == UCS_OK)
        s = ucx.ucp_listener_query(ux->listener, &attr);
    if (s == UCS_OK)
        ux->t->bound = attr.sockaddr;
    return s;
}

static void ucx_close(struct transport *t)
{
    struct ux *ux = t->state;

    for (uint32_t i = 0; ux->conns && i < t->config.n_conns_max; i++)
        if (ux->conns[i].state != CONN_FREE)
            transport_disconnect(t, i);
    for (uint32_t i = 0; i < ux->n_requests; i++)
        ucx.ucp_listener_reject(ux->listener, ux->requests[i]);
    if (ux->listener)
        ucx.ucp_listener_destroy(ux->listener);
    if (ux->worker)
        ucx.ucp_worker_destroy(ux->worker);
    for (uint32_t i = 0; i < ux->n_regions; i++)
        ucx.ucp_mem_unmap(ux->context, ux->regions[i]);
    if (ux->context)
        ucx.ucp_cleanup(ux->context);
    free(ux->regions);
    free(ux->conns);
    free(ux);
}

static enum status ucx_open(struct transport *t, const struct sockaddr *listen, socklen_t n_listen,
                            struct buf *why)
{
    struct ux *ux = calloc(1, sizeof *ux);

    if (!ux)
        return buf_why(why, ERR_NOMEM, "out of memory");
    t->state = ux;
    ux->t = t;
    ux->conns = calloc(t->config.n_conns_max, sizeof *ux->conns);
    const char *step = "start";
    ucs_status_t s = ux->conns ? make_context(ux) : UCS_ERR_NO_MEMORY;
    if (s == UCS_OK)
        s = make_worker(ux);
    if (s == UCS_OK) {
        step = "listen";
        s = make_listener(ux, listen, n_listen);
    }
    if (s == UCS_OK)
        return OK;
    buf_why(why, ERR_IO, "UCX cannot %s: %s", step,
            s == UCS_ERR_BUSY ? "the address is in use" : ucx.ucs_status_string(s));
    ucx_close(t);
    return s == UCS_ERR_NO_MEMORY ? ERR_NOMEM : ERR_IO;
}

static const struct transport_ops ucx_ops = {
    .name = "ucx",
    .family = AF_INET, /* UCX 1.13 reads and frees memory that is not its own with IPv6 addresses */
    .open = ucx_open,
    .close = ucx_close,
    .register_memory = ucx_register,
    .fd = ucx_fd,
    .progress = ucx_progress,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .send = ucx_send,
    .receive = ucx_receive,
    .taken = ucx_taken,
    .count_conns = ucx_count_conns,
};

enum status transport_ucx_load(const struct transport_ops **ops, struct buf *why)
{
    enum status s = load(why);

    *ops = s == OK ? &ucx_ops : NULL;
    return s;
}
