#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/pool/transport_ucx_inner.h"

#define N_PROGRESS_MAX 64 /* calls of ucp_worker_progress() in one of progress */
/* A close that takes longer than both is a bug: of UCX, or here. */
#define CLOSE_MAX_NS UINT64_C(20000000000)
#define CLOSE_STEPS_MAX 1000000u
#define CLOSE_AWAIT_NS UINT64_C(100000000) /* at the end, for connections that are not there yet */

const char *ux_words_of(ucs_status_t s)
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

void ux_fail(struct ux_conn *c, enum transport_end end, const char *why)
{
    if (c->failed || c->state == CONN_FREE || c->state >= CONN_CLOSING)
        return;
    c->failed = why;
    c->end = end;
}

/* --- connections --- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t s)
{
    struct ux_conn *c = arg;

    if (c->ep == ep)
        ux_fail(c, TRANSPORT_LEFT, ux_words_of(s));
}

/* Make a connection with these parameters of UCX. NULL: no room, or UCX refuses. */
static struct ux_conn *add_conn(struct ux *ux, ucp_ep_params_t *params, bool is_acceptor)
{
    uint32_t i = 0;

    while (i < ux->t->config.n_conns_max && ux->conns[i].state != CONN_FREE)
        i++;
    if (i == ux->t->config.n_conns_max)
        return NULL;
    struct ux_conn *c = &ux->conns[i];
    *c = (struct ux_conn){
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

static void free_conn(struct ux_conn *c)
{
    struct ux *ux = c->ux;

    c->state = CONN_FREE;
    while (ux->n_used > 0 && ux->conns[ux->n_used - 1].state == CONN_FREE)
        ux->n_used--;
}

void ux_on_request(ucp_conn_request_h request, void *arg)
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

enum status ux_connect(struct transport *t, const struct sockaddr *to, socklen_t n_to,
                       uint32_t *conn)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = to, .addrlen = n_to},
    };
    struct ux_conn *c = add_conn(t->state, &params, false);

    if (!c)
        return ERR_BUSY;
    *conn = ux_index_of(c);
    ux_send_open(c);
    return OK;
}

/* Begin to close: UCX ends what is under way. */
static void begin_close(struct ux_conn *c)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    struct link *next;

    for (struct link *l = c->messages.next; l != &c->messages; l = next) {
        struct ux_message *m = LINK_ITEM(l, ux_message, link);
        next = l->next;
        ux_release_data(m);
        if (!m->has_head || !m->has_body || (int32_t)(m->number - c->number_in) >= 0)
            ux_unuse(m); /* never reported */
    }
    c->state = CONN_CLOSING;
    ucs_status_ptr_t r = ucx.ucp_ep_close_nbx(c->ep, &param);
    c->ep = NULL;
    c->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
}

/* Post TRANSPORT_CLOSED if UCX has ended everything. */
static void try_to_end_close(struct ux_conn *c)
{
    if (c->closing && ucx.ucp_request_check_status(c->closing) != UCS_INPROGRESS) {
        ucx.ucp_request_free(c->closing);
        c->closing = NULL;
    }
    if (c->closing || c->n_ops > 0)
        return;
    if (c->is_given_up) {
        free_conn(c);
        return;
    }
    c->state = CONN_CLOSED;
    transport_post_closed(c->ux->t, &c->closed, ux_index_of(c), c->end, c->failed);
}

void ux_disconnect(struct transport *t, uint32_t conn)
{
    struct ux *ux = t->state;
    struct ux_conn *c = &ux->conns[conn];
    uint64_t give_up_ns = clock_now_ns() + CLOSE_MAX_NS;

    ASSERT(conn < t->config.n_conns_max && c->state != CONN_FREE);
    if (c->state == CONN_CONNECTING && !c->failed && !c->is_given_up) {
        /* UCX 1.13 ends the process (an assertion in its own thread) when an endpoint is closed
         * between finding the peer's address and sending to it. Nobody sends payload yet, so this
         * one is closed by check_conn() when it is there, has failed or takes too long. */
        c->is_given_up = true;
        return;
    }
    ux_fail(c, TRANSPORT_LEFT, "closed here");
    if (c->state < CONN_CLOSING)
        begin_close(c);
    /* The payload must be free on return. This takes microseconds: UCX cancels, nothing is awaited
     * from the peer. An operation that does not end would write to memory of other requests. */
    for (uint32_t n = 0; c->state == CONN_CLOSING; n++) {
        ucx.ucp_worker_progress(ux->worker);
        try_to_end_close(c);
        ASSERT(n < CLOSE_STEPS_MAX || clock_now_ns() < give_up_ns);
    }
}

void ux_await_connections(struct ux *ux)
{
    uint64_t give_up_ns = clock_now_ns() + CLOSE_AWAIT_NS;
    bool any = ux->conns && ux->worker;

    for (uint32_t i = 0; any && i < ux->n_used; i++)
        if (ux->conns[i].state == CONN_CONNECTING)
            ux->conns[i].is_given_up = true;
    while (any && clock_now_ns() < give_up_ns) {
        any = false;
        ucx.ucp_worker_progress(ux->worker);
        for (uint32_t i = 0; i < ux->n_used; i++) {
            struct ux_conn *c = &ux->conns[i];
            any = any || (c->state == CONN_CONNECTING && !c->is_acceptor && !c->failed);
        }
    }
}

void ux_taken(struct transport *t, struct transport_note *note)
{
    struct ux *ux = t->state;
    struct ux_conn *c = &ux->conns[note->event.conn];

    switch (note->event.kind) {
    case TRANSPORT_CLOSED: free_conn(c); return;
    case TRANSPORT_SENT:
        c->n_sends--;
        free(note); /* the first member of its send */
        return;
    case TRANSPORT_MESSAGE:
        ux->n_waiting--;
        c->moved = true;
        ux_release_data((struct ux_message *)note); /* of a connection that was given up */
        ux_unuse((struct ux_message *)note);
        return;
    case TRANSPORT_RECEIVED: ux_unuse(LINK_ITEM(note, ux_message, received)); return;
    default: return;
    }
}

/* --- progress --- */

static void check_conn(struct ux *ux, struct ux_conn *c)
{
    if (c->state == CONN_CLOSING)
        try_to_end_close(c);
    if (c->state != CONN_CONNECTING && c->state != CONN_OPEN)
        return;
    /* UCX does not say how far a payload is: one message must arrive within the timeout. */
    bool stands = c->state == CONN_CONNECTING || c->n_under_way > 0 || !c->was_heard;
    if (c->moved || !stands)
        c->t_moved_ns = ux->now_ns;
    c->moved = false;
    if (ux->now_ns - c->t_moved_ns >= ux->t->config.idle_timeout_ns)
        ux_fail(c, TRANSPORT_TIMEOUT,
                c->state == CONN_CONNECTING ? "the peer does not answer" : "the peer stands still");
    if (c->failed) {
        begin_close(c);
        try_to_end_close(c);
    }
}

bool ux_progress(struct transport *t, uint64_t now_ns)
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

void ux_count_conns(const struct transport *t, struct transport_stats *out)
{
    const struct ux *ux = t->state;

    out->n_conns = 0;
    for (uint32_t i = 0; i < ux->n_used; i++)
        out->n_conns += ux->conns[i].state == CONN_OPEN;
}
