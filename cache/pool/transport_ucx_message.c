/* Messages as active messages of UCP. The header of an active message is
 *
 *   offset  bytes  what
 *   0       4      WIRE_MAGIC
 *   4       4      number of the message on this connection and in this direction, from 0
 *   8       4      n_head
 *   12      n_head the head, if it fits into a header of UCX
 *
 * and its data is the payload. A head that does not fit goes ahead in an active message AM_HEAD
 * with the same number. UCX may use several lanes, so what arrives is put in order by these
 * numbers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/little_endian.h"
#include "cache/pool/transport_ucx_inner.h"

/* --- messages that arrive --- */

void ux_unuse(struct ux_message *m)
{
    if (--m->n_users > 0)
        return;
    link_remove(&m->link);
    free(m->head);
    free(m);
}

void ux_release_data(struct ux_message *m)
{
    if (m->data)
        ucx.ucp_am_data_release(m->conn->ux->worker, m->data);
    m->data = NULL;
}

static struct ux_message *message_of(struct ux_conn *c, uint32_t number)
{
    for (struct link *l = c->messages.next; l != &c->messages; l = l->next) {
        struct ux_message *m = LINK_ITEM(l, ux_message, link);
        if (m->number == number)
            return m;
    }
    if (number - c->number_in > c->ux->t->config.n_queued_max + N_WAITING_MAX)
        return NULL; /* also one that was reported already */
    struct ux_message *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->conn = c;
    m->number = number;
    m->n_users = 1;
    link_append(&c->messages, &m->link);
    return m;
}

/* Report what is complete, in order. */
static void report_messages(struct ux_conn *c)
{
    struct transport *t = c->ux->t;
    bool any = c->state == CONN_OPEN;

    while (any) {
        any = false;
        for (struct link *l = c->messages.next; l != &c->messages; l = l->next) {
            struct ux_message *m = LINK_ITEM(l, ux_message, link);
            if (m->number != c->number_in || !m->has_head || !m->has_body)
                continue;
            any = true;
            c->number_in++;
            c->ux->n_waiting++;
            c->was_heard = true;
            t->stats.n_messages_in++;
            m->note.event = (struct transport_event){
                .head = m->head, .n_head = m->n_head, .n_payload = m->n_payload};
            transport_post(t, &m->note, TRANSPORT_MESSAGE, ux_index_of(c));
            break;
        }
    }
}

static struct ux_conn *conn_of(struct ux *ux, const ucp_am_recv_param_t *param)
{
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP))
        return NULL;
    for (uint32_t i = 0; i < ux->n_used; i++)
        if (ux->conns[i].ep == param->reply_ep && ux->conns[i].state != CONN_FREE)
            return &ux->conns[i];
    return NULL;
}

static bool take_head(struct ux_message *m, const void *head, uint32_t n)
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

/* The message to which an active message belongs. NULL: the connection is broken or closed. */
static struct ux_message *begin_message(struct ux_conn *c, const uint8_t *wire, size_t n_wire)
{
    if (!c || c->state >= CONN_CLOSING || c->failed || c->is_given_up)
        return NULL;
    struct ux_message *m = NULL;
    if (n_wire < WIRE_BYTES || get_u32(wire) != WIRE_MAGIC)
        ux_fail(c, TRANSPORT_BROKEN, "the peer does not send messages of this version");
    else if (get_u32(wire + 8) > TRANSPORT_HEAD_MAX)
        ux_fail(c, TRANSPORT_BROKEN, "the peer announced too long a head");
    else if (!(m = message_of(c, get_u32(wire + 4))))
        ux_fail(c, TRANSPORT_BROKEN, "the peer's messages have wrong numbers");
    c->moved = true;
    return m;
}

static ucs_status_t on_head(void *arg, const void *header, size_t n_header, void *data, size_t n,
                            const ucp_am_recv_param_t *param)
{
    struct ux_conn *c = conn_of(arg, param);
    struct ux_message *m = begin_message(c, header, n_header);

    if (!m)
        return UCS_OK;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ||
        n != get_u32((const uint8_t *)header + 8) || !take_head(m, data, (uint32_t)n))
        ux_fail(c, TRANSPORT_BROKEN, "the peer sent a broken head");
    c->ux->t->stats.n_bytes_in += n;
    report_messages(c);
    return UCS_OK;
}

static ucs_status_t on_message(void *arg, const void *header, size_t n_header, void *data, size_t n,
                               const ucp_am_recv_param_t *param)
{
    const uint8_t *wire = header;
    struct ux_conn *c = conn_of(arg, param);
    struct ux_message *m = begin_message(c, wire, n_header);

    if (!m)
        return UCS_OK;
    uint32_t n_head = get_u32(wire + 8);
    bool is_whole = n_header == WIRE_BYTES + n_head;
    if (m->has_body || n > c->ux->t->config.payload_max || (!is_whole && n_header != WIRE_BYTES) ||
        (is_whole && !take_head(m, wire + WIRE_BYTES, n_head))) {
        ux_fail(c, TRANSPORT_BROKEN,
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

static ucs_status_t on_open(void *arg, const void *header, size_t n_header, void *data, size_t n,
                            const ucp_am_recv_param_t *param)
{
    struct ux_conn *c = conn_of(arg, param);

    (void)data;
    if (!c || c->failed || c->state >= CONN_CLOSING)
        return UCS_OK;
    if (c->state != CONN_CONNECTING || n > 0 || n_header != WIRE_BYTES ||
        get_u32(header) != WIRE_MAGIC) {
        ux_fail(c, TRANSPORT_BROKEN, "the peer does not send messages of this version");
        return UCS_OK;
    }
    if (c->is_given_up) {
        ux_fail(c, TRANSPORT_LEFT, "closed here");
        return UCS_OK;
    }
    c->state = CONN_OPEN;
    c->moved = true;
    transport_post(c->ux->t, &c->opened, c->is_acceptor ? TRANSPORT_ACCEPTED : TRANSPORT_CONNECTED,
                   ux_index_of(c));
    if (c->is_acceptor)
        ux_send_open(c);
    report_messages(c);
    return UCS_OK;
}

static void end_receive(struct ux_message *m, ucs_status_t s)
{
    struct ux_conn *c = m->conn;

    if (s != UCS_OK)
        ux_fail(c, TRANSPORT_LEFT, ux_words_of(s));
    if (s != UCS_OK || c->state >= CONN_CLOSING || c->failed) {
        ux_unuse(m);
        return;
    }
    c->moved = true;
    c->ux->t->stats.n_bytes_in += m->n_payload;
    transport_post(c->ux->t, &m->received, TRANSPORT_RECEIVED, ux_index_of(c));
}

static void on_received(void *request, ucs_status_t s, size_t n, void *arg)
{
    struct ux_message *m = arg;

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

static void fetch(struct ux_message *m, const struct iovec *to, uint32_t n_to)
{
    struct ux_conn *c = m->conn;
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

void ux_receive(struct transport *t, struct transport_note *note, const struct iovec *to,
                uint32_t n_to, uint64_t tag)
{
    struct ux_message *m = (struct ux_message *)note; /* its first member */

    (void)t;
    if (!to || !m->data) { /* data was released when the connection was closed */
        ux_release_data(m);
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
    ux_release_data(m);
    end_receive(m, UCS_OK);
}

/* --- messages that leave --- */

static void put_wire(uint8_t *wire, uint32_t number, uint32_t n_head)
{
    put_u32(wire, WIRE_MAGIC);
    put_u32(wire + 4, number);
    put_u32(wire + 8, n_head);
}

static void end_send(struct ux_send *s, ucs_status_t status)
{
    struct ux_conn *c = s->conn;
    struct transport *t = c->ux->t;

    /* A receiver that does not want the payload cancels it. */
    if (status != UCS_OK && status != UCS_ERR_CANCELED)
        ux_fail(c, TRANSPORT_LEFT, ux_words_of(status));
    if (--s->n_ops > 0)
        return;
    c->n_under_way--;
    c->moved = true;
    if (s->note.event.tag && c->state == CONN_OPEN && !c->failed) {
        transport_post(t, &s->note, TRANSPORT_SENT, ux_index_of(c));
    } else {
        c->n_sends--;
        free(s);
    }
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct ux_send *s = arg;

    s->conn->n_ops--;
    ucx.ucp_request_free(request);
    end_send(s, status);
}

static void send_part(struct ux_send *s, unsigned id, uint32_t n_wire, const void *buffer,
                      size_t count, ucp_request_param_t *param)
{
    struct ux_conn *c = s->conn;

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

static struct ux_send *new_send(struct ux_conn *c, uint32_t n_head, uint64_t tag)
{
    struct ux_send *s = malloc(sizeof *s + WIRE_BYTES + n_head);

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

void ux_send_open(struct ux_conn *c)
{
    struct ux_send *s = new_send(c, 0, 0);
    ucp_request_param_t param = {0};

    if (!s) {
        ux_fail(c, TRANSPORT_LEFT, transport_words(ENOMEM));
        return;
    }
    put_wire(s->wire, 0, 0);
    send_part(s, AM_OPEN, WIRE_BYTES, NULL, 0, &param);
}

enum status ux_send(struct transport *t, uint32_t conn, const void *head, uint32_t n_head,
                    const struct iovec *payload, uint32_t n_payload, uint64_t tag)
{
    struct ux *ux = t->state;
    struct ux_conn *c = &ux->conns[conn];
    ucp_request_param_t param = {0};
    size_t count;

    ASSERT(conn < t->config.n_conns_max);
    if (c->state != CONN_OPEN || c->failed)
        return ERR_UNAVAILABLE;
    if (c->n_sends >= t->config.n_queued_max)
        return ERR_BUSY;
    struct ux_send *s = new_send(c, n_head, tag);
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

ucs_status_t ux_set_handlers(struct ux *ux)
{
    static const struct {
        unsigned id;
        ucp_am_recv_callback_t cb;
    } handlers[] = {{AM_OPEN, on_open}, {AM_HEAD, on_head}, {AM_MESSAGE, on_message}};
    ucs_status_t s = UCS_OK;

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
    return s;
}
