#include "cache/pool/transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/transport_inner.h"

#define N_CONNS_DEFAULT 256u
#define N_QUEUED_DEFAULT 1024u
#define IDLE_TIMEOUT_DEFAULT_NS UINT64_C(10000000000)

/* --- open and close --- */

static enum status choose(const struct transport_ops **ops, const char *kind, struct buf *why)
{
    *ops = &transport_tcp_ops;
    if (!kind || strcmp(kind, "auto") == 0) {
        if (transport_ucx_is_worthwhile() && transport_ucx_load(ops, NULL) != OK)
            *ops = &transport_tcp_ops;
        return OK;
    }
    if (strcmp(kind, "tcp") == 0)
        return OK;
    if (strcmp(kind, "ucx") == 0)
        return transport_ucx_load(ops, why);
    return buf_why(why, ERR_INVALID, "there is no transport \"%s\": auto, tcp or ucx", kind);
}

static struct transport *create(const struct transport_config *config)
{
    struct transport *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->config = *config;
    t->config.kind = t->config.listen = t->config.announce_host = NULL;
    if (t->config.n_conns_max == 0)
        t->config.n_conns_max = N_CONNS_DEFAULT;
    if (t->config.n_queued_max == 0)
        t->config.n_queued_max = N_QUEUED_DEFAULT;
    if (t->config.idle_timeout_ns == 0)
        t->config.idle_timeout_ns = IDLE_TIMEOUT_DEFAULT_NS;
    link_init(&t->notes);
    return t;
}

static enum status open_kind(struct transport *t, const char *kind, const char *where,
                             struct buf *why)
{
    struct sockaddr_storage a;
    socklen_t n;
    enum status s = choose(&t->ops, kind, why);

    if (s == OK)
        s = transport_parse(&a, &n, where, t->ops->family, true, why);
    return s == OK ? t->ops->open(t, (const struct sockaddr *)&a, n, why) : s;
}

enum status transport_open(struct transport **out, const struct transport_config *config,
                           struct buf *why)
{
    struct transport *t = create(config);

    *out = NULL;
    if (!t)
        return buf_why(why, ERR_NOMEM, "out of memory");
    enum status s = open_kind(t, config->kind, config->listen, why);
    if (s != OK) {
        free(t);
        return s;
    }
    s = transport_announce(t->address, sizeof t->address, t->ops->name, &t->bound,
                           config->announce_host, why);
    if (s != OK) {
        transport_close(t);
        return s;
    }
    *out = t;
    return OK;
}

void transport_close(struct transport *t)
{
    if (!t)
        return;
    t->ops->close(t);
    free(t);
}

const char *transport_kind(const struct transport *t)
{
    return t->ops->name;
}

const char *transport_address(const struct transport *t)
{
    return t->address;
}

void transport_register(struct transport *t, const void *base, uint64_t n_bytes)
{
    if (t->ops->register_memory)
        t->ops->register_memory(t, base, n_bytes);
}

void transport_unregister_all(struct transport *t)
{
    if (t->ops->unregister_all)
        t->ops->unregister_all(t);
}

int transport_fd(const struct transport *t)
{
    return t->ops->fd(t);
}

/* --- events --- */

/* The caller is done with the head of the message that was reported last. */
static void end_message(struct transport *t)
{
    struct transport_note *note = t->reported;

    if (!note)
        return;
    if (t->payload_is_due)
        t->ops->receive(t, note, NULL, 0, 0);
    t->payload_is_due = false;
    t->reported = NULL;
    t->ops->taken(t, note);
}

bool transport_progress(struct transport *t, uint64_t now_ns)
{
    end_message(t);
    bool may_wait = t->ops->progress(t, now_ns);
    return may_wait && link_is_empty(&t->notes);
}

bool transport_next(struct transport *t, struct transport_event *out)
{
    end_message(t);
    if (link_is_empty(&t->notes))
        return false;
    struct transport_note *note = LINK_ITEM(t->notes.next, transport_note, link);
    link_remove(&note->link);
    *out = note->event;
    if (out->kind == TRANSPORT_MESSAGE) {
        t->reported = note;
        t->payload_is_due = out->n_payload > 0;
    } else {
        t->ops->taken(t, note);
    }
    return true;
}

void transport_post(struct transport *t, struct transport_note *note,
                    enum transport_event_kind kind, uint32_t conn)
{
    note->event.kind = kind;
    note->event.conn = conn;
    link_append(&t->notes, &note->link);
}

void transport_post_closed(struct transport *t, struct transport_note *note, uint32_t conn,
                           enum transport_end end, const char *why)
{
    if (end == TRANSPORT_BROKEN)
        t->stats.n_broken++;
    if (end == TRANSPORT_TIMEOUT)
        t->stats.n_timeouts++;
    note->event = (struct transport_event){.why = why};
    transport_post(t, note, TRANSPORT_CLOSED, conn);
}

/* --- connections --- */

enum status transport_connect(struct transport *t, const char *address, uint32_t *conn)
{
    size_t n_kind = strlen(t->ops->name);
    const char *rest = strstr(address, "://");
    struct sockaddr_storage to;
    socklen_t n_to;

    *conn = TRANSPORT_NO_CONN;
    if (!rest)
        return ERR_INVALID;
    if ((size_t)(rest - address) != n_kind || memcmp(address, t->ops->name, n_kind) != 0)
        return ERR_UNSUPPORTED;
    enum status s = transport_parse(&to, &n_to, rest + 3, t->ops->family, false, NULL);
    return s == OK ? t->ops->connect(t, (const struct sockaddr *)&to, n_to, conn) : s;
}

void transport_disconnect(struct transport *t, uint32_t conn)
{
    struct transport_note *reported = t->reported;
    struct link *next;

    t->ops->disconnect(t, conn); /* posts TRANSPORT_CLOSED, which nobody sees */
    if (reported && reported->event.conn == conn) {
        t->reported = NULL;
        t->payload_is_due = false;
        t->ops->taken(t, reported);
    }
    for (struct link *l = t->notes.next; l != &t->notes; l = next) {
        struct transport_note *note = LINK_ITEM(l, transport_note, link);
        next = l->next;
        if (note->event.conn != conn)
            continue;
        link_remove(l);
        t->ops->taken(t, note);
    }
}

uint64_t transport_sum(const struct iovec *pieces, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += pieces[i].iov_len;
    return sum;
}

enum status transport_send(struct transport *t, uint32_t conn, const void *head, uint32_t n_head,
                           const struct iovec *payload, uint32_t n_payload, uint64_t tag)
{
    uint64_t n_bytes = transport_sum(payload, n_payload);

    ASSERT(n_head <= TRANSPORT_HEAD_MAX && n_payload <= TRANSPORT_PIECES_MAX);
    ASSERT(n_bytes <= t->config.payload_max && (tag != 0 || n_bytes == 0));
    return t->ops->send(t, conn, head, n_head, payload, n_payload, tag);
}

void transport_receive(struct transport *t, uint32_t conn, const struct iovec *to, uint32_t n_to,
                       uint64_t tag)
{
    struct transport_note *message = t->reported;

    ASSERT(message && message->event.conn == conn && t->payload_is_due);
    ASSERT(!to ||
           (n_to <= TRANSPORT_PIECES_MAX && transport_sum(to, n_to) == message->event.n_payload));
    t->payload_is_due = false;
    t->ops->receive(t, message, to, n_to, tag);
}

void transport_stats(const struct transport *t, struct transport_stats *out)
{
    *out = t->stats;
    t->ops->count_conns(t, out);
}

const char *transport_words(int error)
{
    switch (error) {
    case 0: return "the peer left";
    case ECONNREFUSED: return "the peer refuses connections";
    case ECONNRESET:
    case EPIPE: return "the peer reset the connection";
    case EHOSTUNREACH:
    case ENETUNREACH: return "the peer cannot be reached";
    case ETIMEDOUT: return "the peer does not answer";
    case ENOMEM: return "out of memory";
    default: return "the connection failed";
    }
}
