/* Framing, all numbers little-endian; docs/design/pool.md says why:
 *
 *   offset  bytes  what
 *   0       4      FRAME_MAGIC
 *   4       4      n_head, at most TRANSPORT_HEAD_MAX
 *   8       8      n_payload, at most payload_max
 *   16      n_head the head
 *           n_payload the payload
 *
 * A connection reads a few KiB ahead, so that many small messages cost one system call, and at most
 * that much of a payload is copied; the rest is received where it belongs. While an event of the
 * connection waits to be taken, nothing more of it is parsed, so a peer that sends faster than the
 * caller works is slowed down by TCP itself. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/little_endian.h"
#include "cache/pool/transport_inner.h"

#define FRAME_MAGIC 0x314E5254u /* "TRN1" */
#define FRAME_BYTES 16u
#define READ_AHEAD 4096u
#define DISCARD_BYTES 65536u
#define BACKLOG 256
#define N_EVENTS 64
#define N_ACCEPT_MAX 64
#define N_IOV 64
#define BUDGET_BYTES (8u << 20) /* of one connection, one direction, per transport_progress() */
#define ACCEPT_PAUSE_NS UINT64_C(1000000000)
#define LISTENER UINT64_MAX

struct send {
    struct transport_note note; /* first: TRANSPORT_SENT */
    struct link link;           /* of conn.sends */
    struct iovec payload[TRANSPORT_PIECES_MAX];
    uint32_t n_payload;
    uint64_t n_bytes;  /* frame, head and payload */
    uint32_t n_before; /* frame and head */
    uint8_t before[];
};

enum conn_state { CONN_FREE, CONN_CONNECTING, CONN_OPEN, CONN_CLOSED };
enum in_state {
    IN_FRAME,   /* frame and head of the next message */
    IN_WAITING, /* an event of the last one is not taken */
    IN_PAYLOAD,
    IN_DISCARD
};

struct conn {
    enum conn_state state;
    int fd;
    uint32_t generation; /* epoll events of an earlier connection in this place are stale */
    uint32_t armed;      /* what epoll watches */
    bool was_heard;      /* a whole message has arrived */
    bool moved;          /* bytes moved, or something began, since the last look at the clock */
    uint64_t t_moved_ns;
    struct transport_note opened, message, received, closed;

    enum in_state in;
    uint8_t *ahead; /* bytes [ahead_at, ahead_end) of ahead_cap are read and not parsed */
    uint32_t ahead_at, ahead_end, ahead_cap;
    uint32_t n_need; /* frame and head of the message that is incomplete; 0: not known yet */
    uint64_t n_left; /* of the payload */
    struct iovec to[TRANSPORT_PIECES_MAX];
    uint32_t n_to, at_to;

    struct link sends;
    uint32_t n_sends; /* also those whose event is not taken */
    uint64_t n_sent;  /* bytes of the first one */
};

struct tcp {
    int epoll_fd, listen_fd;
    bool listens;            /* the listener is in epoll */
    uint64_t accept_from_ns; /* when it returns there */
    uint64_t now_ns;
    struct conn *conns; /* [n_conns_max] */
    uint32_t n_used;    /* no connection lies at or behind this index */
    bool has_unsent;    /* a send was queued since the last transport_progress() */
    uint8_t discard[DISCARD_BYTES];
};

static uint32_t index_of(const struct tcp *tcp, const struct conn *c)
{
    return (uint32_t)(c - tcp->conns);
}

/* --- connections --- */

static void watch(struct tcp *tcp, struct conn *c, uint32_t events)
{
    struct epoll_event e = {.events = events,
                            .data.u64 = (uint64_t)c->generation << 32 | index_of(tcp, c)};

    if (c->armed != events)
        ASSERT(epoll_ctl(tcp->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) == 0);
    c->armed = events;
}

static void set_options(int fd, uint64_t idle_timeout_ns)
{
    uint64_t idle_s = idle_timeout_ns / UINT64_C(1000000000);
    int on = 1, n = 3, s = idle_s < 1 ? 1 : idle_s > 3600 ? 3600 : (int)idle_s;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* The idle timeout sees a message that stands still; the kernel's probes see a machine that is
     * gone while there is nothing to say. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &s, sizeof s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &s, sizeof s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
}

/* NULL: there is no room, and fd is closed. */
static struct conn *add_conn(struct transport *t, int fd, enum conn_state state)
{
    struct tcp *tcp = t->state;
    uint32_t i = 0;

    while (i < t->config.n_conns_max && tcp->conns[i].state != CONN_FREE)
        i++;
    struct conn *c = i < t->config.n_conns_max ? &tcp->conns[i] : NULL;
    uint8_t *ahead = c ? malloc(READ_AHEAD) : NULL;
    uint32_t events = state == CONN_OPEN ? EPOLLIN : EPOLLOUT;
    struct epoll_event e = {.events = events};
    if (c)
        e.data.u64 = (uint64_t)(c->generation + 1) << 32 | i;
    if (!ahead || epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        free(ahead);
        close(fd);
        return NULL;
    }
    *c = (struct conn){.state = state,
                       .fd = fd,
                       .generation = c->generation + 1,
                       .armed = events,
                       .moved = true,
                       .ahead = ahead,
                       .ahead_cap = READ_AHEAD};
    link_init(&c->sends);
    if (tcp->n_used <= i)
        tcp->n_used = i + 1;
    set_options(fd, t->config.idle_timeout_ns);
    return c;
}

static void free_conn(struct tcp *tcp, struct conn *c)
{
    free(c->ahead);
    c->ahead = NULL;
    c->state = CONN_FREE;
    while (tcp->n_used > 0 && tcp->conns[tcp->n_used - 1].state == CONN_FREE)
        tcp->n_used--;
}

/* Close. Events that were posted before stay, and so does a head that was reported. */
static void end_conn(struct transport *t, struct conn *c, enum transport_end end, const char *why)
{
    struct link *next;

    close(c->fd);
    c->fd = -1;
    c->state = CONN_CLOSED;
    c->n_to = 0;
    for (struct link *l = c->sends.next; l != &c->sends; l = next) {
        next = l->next;
        free(LINK_ITEM(l, send, link));
    }
    link_init(&c->sends);
    transport_post_closed(t, &c->closed, index_of(t->state, c), end, why);
}

static bool is_inside_message(const struct conn *c)
{
    return c->in == IN_FRAME ? c->ahead_end > c->ahead_at : c->in != IN_WAITING;
}

/* --- out --- */

/* Write the unsent rest of the first messages to iov [N_IOV]. Returns its length. */
static int gather(const struct conn *c, struct iovec *iov)
{
    uint64_t skip = c->n_sent;
    int n = 0;

    for (struct link *l = c->sends.next; l != &c->sends && n < N_IOV; l = l->next) {
        struct send *s = LINK_ITEM(l, send, link);
        for (uint32_t i = 0; i <= s->n_payload && n < N_IOV; i++) {
            struct iovec v = i == 0 ? (struct iovec){s->before, s->n_before} : s->payload[i - 1];
            uint64_t n_skip = skip < v.iov_len ? skip : v.iov_len;
            skip -= n_skip;
            if (n_skip == v.iov_len)
                continue;
            iov[n++] = (struct iovec){(uint8_t *)v.iov_base + n_skip, v.iov_len - n_skip};
        }
    }
    return n;
}

static void count_sent(struct transport *t, struct conn *c, uint64_t n)
{
    c->n_sent += n;
    c->moved = true;
    t->stats.n_bytes_out += n;
    while (!link_is_empty(&c->sends)) {
        struct send *s = LINK_ITEM(c->sends.next, send, link);
        if (c->n_sent < s->n_bytes)
            return;
        c->n_sent -= s->n_bytes;
        t->stats.n_messages_out++;
        link_remove(&s->link);
        if (s->note.event.tag) {
            transport_post(t, &s->note, TRANSPORT_SENT, index_of(t->state, c));
        } else {
            c->n_sends--;
            free(s);
        }
    }
}

static void flush(struct transport *t, struct conn *c)
{
    struct iovec iov[N_IOV];
    uint64_t n_all = 0;

    while (!link_is_empty(&c->sends) && n_all < BUDGET_BYTES) {
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)gather(c, iov)};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
            break;
        if (n < 0) {
            end_conn(t, c, TRANSPORT_LEFT, transport_words(errno));
            return;
        }
        count_sent(t, c, (uint64_t)n);
        n_all += (uint64_t)n;
    }
    watch(t->state, c, (c->armed & EPOLLIN) | (link_is_empty(&c->sends) ? 0 : EPOLLOUT));
}

static enum status tcp_send(struct transport *t, uint32_t conn, const void *head, uint32_t n_head,
                            const struct iovec *payload, uint32_t n_payload, uint64_t tag)
{
    struct tcp *tcp = t->state;
    struct conn *c = &tcp->conns[conn];

    ASSERT(conn < t->config.n_conns_max);
    if (c->state != CONN_OPEN)
        return ERR_UNAVAILABLE;
    if (c->n_sends >= t->config.n_queued_max)
        return ERR_BUSY;
    struct send *s = malloc(sizeof *s + FRAME_BYTES + n_head);
    if (!s)
        return ERR_NOMEM;
    uint64_t n_bytes = transport_sum(payload, n_payload);
    put_u32(s->before, FRAME_MAGIC);
    put_u32(s->before + 4, n_head);
    put_u64(s->before + 8, n_bytes);
    if (n_head > 0)
        memcpy(s->before + FRAME_BYTES, head, n_head);
    s->n_before = FRAME_BYTES + n_head;
    s->n_bytes = s->n_before + n_bytes;
    s->n_payload = n_payload;
    if (n_payload > 0)
        memcpy(s->payload, payload, n_payload * sizeof *payload);
    s->note.event = (struct transport_event){.tag = tag};
    link_append(&c->sends, &s->link);
    c->n_sends++;
    c->moved = true;
    tcp->has_unsent = true;
    return OK;
}

/* --- in --- */

/* Move what was read ahead to the front, with room for n_need bytes in all. */
static bool fit(struct conn *c, uint32_t n_need)
{
    memmove(c->ahead, c->ahead + c->ahead_at, c->ahead_end - c->ahead_at);
    c->ahead_end -= c->ahead_at;
    c->ahead_at = 0;
    if (n_need <= c->ahead_cap)
        return true;
    uint8_t *larger = realloc(c->ahead, n_need);
    if (!larger)
        return false;
    c->ahead = larger;
    c->ahead_cap = n_need;
    return true;
}

/* Report the next message if its head is complete. */
static void parse_frame(struct transport *t, struct conn *c)
{
    const uint8_t *frame = c->ahead + c->ahead_at;
    uint32_t n_ahead = c->ahead_end - c->ahead_at;

    if (n_ahead < FRAME_BYTES)
        return;
    uint64_t n_head = get_u32(frame + 4), n_payload = get_u64(frame + 8);
    if (get_u32(frame) != FRAME_MAGIC)
        return end_conn(t, c, TRANSPORT_BROKEN, "the peer does not send frames of this version");
    if (n_head > TRANSPORT_HEAD_MAX)
        return end_conn(t, c, TRANSPORT_BROKEN, "the peer announced too long a head");
    if (n_payload > t->config.payload_max)
        return end_conn(t, c, TRANSPORT_BROKEN, "the peer announced too much payload");
    if (n_ahead < FRAME_BYTES + n_head) {
        c->n_need = FRAME_BYTES + (uint32_t)n_head;
        if (!fit(c, c->n_need))
            end_conn(t, c, TRANSPORT_LEFT, transport_words(ENOMEM));
        return;
    }
    c->ahead_at += FRAME_BYTES + (uint32_t)n_head;
    c->n_need = 0;
    c->in = IN_WAITING;
    c->n_left = n_payload;
    if (n_payload == 0) {
        t->stats.n_messages_in++;
        c->was_heard = true;
    }
    c->message.event = (struct transport_event){
        .head = frame + FRAME_BYTES, .n_head = (uint32_t)n_head, .n_payload = n_payload};
    transport_post(t, &c->message, TRANSPORT_MESSAGE, index_of(t->state, c));
}

/* n more bytes of the payload are where they belong. */
static void count_payload(struct transport *t, struct conn *c, uint64_t n)
{
    c->n_left -= n;
    if (c->n_left > 0)
        return;
    t->stats.n_messages_in++;
    c->was_heard = true;
    if (c->in == IN_PAYLOAD) {
        c->in = IN_WAITING;
        transport_post(t, &c->received, TRANSPORT_RECEIVED, index_of(t->state, c));
    } else {
        c->in = IN_FRAME;
    }
}

/* n bytes have gone to c->to. */
static void advance_to(struct conn *c, uint64_t n)
{
    while (c->at_to < c->n_to) {
        struct iovec *v = &c->to[c->at_to];
        uint64_t n_here = n < v->iov_len ? n : v->iov_len;
        v->iov_base = (uint8_t *)v->iov_base + n_here;
        v->iov_len -= n_here;
        n -= n_here;
        if (v->iov_len > 0)
            return;
        c->at_to++;
    }
}

/* Use what was read ahead. */
static void use_ahead(struct transport *t, struct conn *c)
{
    while (c->state == CONN_OPEN && c->ahead_at < c->ahead_end &&
           (c->in == IN_PAYLOAD || c->in == IN_DISCARD)) {
        uint64_t n = c->ahead_end - c->ahead_at;
        n = n < c->n_left ? n : c->n_left;
        if (c->in == IN_PAYLOAD) {
            while (c->to[c->at_to].iov_len == 0)
                c->at_to++;
            if (n > c->to[c->at_to].iov_len)
                n = c->to[c->at_to].iov_len;
            memcpy(c->to[c->at_to].iov_base, c->ahead + c->ahead_at, n);
            advance_to(c, n);
        }
        c->ahead_at += (uint32_t)n;
        count_payload(t, c, n);
    }
    if (c->state == CONN_OPEN && c->in == IN_FRAME)
        parse_frame(t, c);
}

/* Read once: the due payload to its pieces, and all bytes behind it to the buffer. */
static ssize_t read_once(struct tcp *tcp, struct conn *c)
{
    struct iovec iov[TRANSPORT_PIECES_MAX + 1];
    uint32_t n = 0;

    if (c->in == IN_FRAME) {
        uint32_t n_wanted = c->n_need > READ_AHEAD ? c->n_need : READ_AHEAD;
        fit(c, 0);
        return recv(c->fd, c->ahead + c->ahead_end, n_wanted - c->ahead_end, MSG_DONTWAIT);
    }
    c->ahead_at = c->ahead_end = 0; /* use_ahead() has emptied it */
    if (c->in == IN_DISCARD) {
        iov[n++] =
            (struct iovec){tcp->discard, c->n_left < DISCARD_BYTES ? c->n_left : DISCARD_BYTES};
    } else {
        for (uint32_t i = c->at_to; i < c->n_to; i++)
            iov[n++] = c->to[i];
    }
    if (transport_sum(iov, n) == c->n_left)
        iov[n++] = (struct iovec){c->ahead, READ_AHEAD};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    return recvmsg(c->fd, &m, MSG_DONTWAIT);
}

static void take_bytes(struct transport *t, struct conn *c, uint64_t n)
{
    c->moved = true;
    t->stats.n_bytes_in += n;
    if (c->in == IN_FRAME) {
        c->ahead_end += (uint32_t)n;
    } else {
        uint64_t n_here = n < c->n_left ? n : c->n_left;
        if (c->in == IN_PAYLOAD)
            advance_to(c, n_here);
        c->ahead_end = (uint32_t)(n - n_here);
        count_payload(t, c, n_here);
    }
    use_ahead(t, c);
}

static void read_conn(struct transport *t, struct conn *c)
{
    uint64_t n_all = 0;

    while (c->state == CONN_OPEN && c->in != IN_WAITING && n_all < BUDGET_BYTES) {
        ssize_t n = read_once(t->state, c);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            bool inside = n == 0 && is_inside_message(c);
            end_conn(t, c, TRANSPORT_LEFT,
                     inside ? "the peer left in the middle of a message"
                            : transport_words(n == 0 ? 0 : errno));
            return;
        }
        take_bytes(t, c, (uint64_t)n);
        n_all += (uint64_t)n;
    }
}

static void tcp_receive(struct transport *t, struct transport_note *message, const struct iovec *to,
                        uint32_t n_to, uint64_t tag)
{
    struct tcp *tcp = t->state;
    struct conn *c = &tcp->conns[message->event.conn];

    if (c->state != CONN_OPEN)
        return;
    c->in = to ? IN_PAYLOAD : IN_DISCARD;
    c->n_to = c->at_to = 0;
    if (to) {
        memcpy(c->to, to, n_to * sizeof *to);
        c->n_to = n_to;
        c->received.event = (struct transport_event){.tag = tag};
    }
}

static void tcp_taken(struct transport *t, struct transport_note *note)
{
    struct tcp *tcp = t->state;
    struct conn *c = &tcp->conns[note->event.conn];

    if (note->event.kind == TRANSPORT_CLOSED) {
        free_conn(tcp, c);
        return;
    }
    if (note->event.kind == TRANSPORT_SENT) {
        c->n_sends--;
        free(note); /* the first member of its send */
        return;
    }
    if (c->state != CONN_OPEN)
        return;
    if (note == &c->received || (note == &c->message && c->n_left == 0))
        c->in = IN_FRAME;
    if (note == &c->received || note == &c->message) {
        c->moved = true;
        use_ahead(t, c);
        if (c->state == CONN_OPEN && c->in != IN_WAITING)
            watch(tcp, c, c->armed | EPOLLIN);
    }
}

/* --- opening --- */

static void accept_conns(struct transport *t)
{
    struct tcp *tcp = t->state;

    for (int i = 0; i < N_ACCEPT_MAX; i++) {
        int fd = accept4(tcp->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
            /* The listener stays readable: without a pause this thread would not sleep. */
            epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, tcp->listen_fd, NULL);
            tcp->listens = false;
            tcp->accept_from_ns = tcp->now_ns + ACCEPT_PAUSE_NS;
        }
        if (fd < 0)
            return;
        struct conn *c = add_conn(t, fd, CONN_OPEN);
        if (c)
            transport_post(t, &c->opened, TRANSPORT_ACCEPTED, index_of(tcp, c));
    }
}

static bool listen_again(struct tcp *tcp)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = LISTENER};

    tcp->listens = epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, tcp->listen_fd, &e) == 0;
    return tcp->listens;
}

static enum status tcp_connect(struct transport *t, const struct sockaddr *to, socklen_t n_to,
                               uint32_t *conn)
{
    struct tcp *tcp = t->state;
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? ERR_BUSY : ERR_IO;
    int error = connect(fd, to, n_to) == 0 || errno == EINPROGRESS ? 0 : errno;
    struct conn *c = add_conn(t, fd, CONN_CONNECTING);
    if (!c)
        return ERR_BUSY;
    *conn = index_of(tcp, c);
    if (error)
        end_conn(t, c, TRANSPORT_LEFT, transport_words(error));
    return OK;
}

/* Connecting to a free port of this machine may meet itself, when the kernel chooses that port. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t n_here = sizeof here, n_there = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &n_here) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &n_there) == 0 && n_here == n_there &&
           memcmp(&here, &there, n_here) == 0;
}

static void finish_connect(struct transport *t, struct conn *c)
{
    int error = 0;
    socklen_t n = sizeof error;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (!error && is_connected_to_itself(c->fd))
        error = ECONNREFUSED;
    if (error) {
        end_conn(t, c, TRANSPORT_LEFT, transport_words(error));
        return;
    }
    c->state = CONN_OPEN;
    c->moved = true;
    watch(t->state, c, EPOLLIN);
    transport_post(t, &c->opened, TRANSPORT_CONNECTED, index_of(t->state, c));
}

/* --- progress --- */

static void on_event(struct transport *t, struct conn *c, uint32_t events)
{
    if (c->state == CONN_CONNECTING)
        return finish_connect(t, c);
    if (events & EPOLLIN) {
        if (c->in == IN_WAITING)
            watch(t->state, c, c->armed & ~(uint32_t)EPOLLIN); /* until the event is taken */
        else
            read_conn(t, c);
    }
    if (c->state == CONN_OPEN && events & EPOLLOUT)
        flush(t, c);
    if (c->state == CONN_OPEN && events & (EPOLLERR | EPOLLHUP) && !(events & EPOLLIN)) {
        int error = 0;
        socklen_t n = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
        end_conn(t, c, TRANSPORT_LEFT, transport_words(error));
    }
}

static void check_times(struct transport *t)
{
    struct tcp *tcp = t->state;

    for (uint32_t i = 0; i < tcp->n_used; i++) {
        struct conn *c = &tcp->conns[i];
        if (c->state != CONN_OPEN && c->state != CONN_CONNECTING)
            continue;
        bool stands = c->state == CONN_CONNECTING || !link_is_empty(&c->sends) ||
                      (c->in != IN_WAITING && (!c->was_heard || is_inside_message(c)));
        if (c->moved || !stands)
            c->t_moved_ns = tcp->now_ns;
        c->moved = false;
        if (tcp->now_ns - c->t_moved_ns >= t->config.idle_timeout_ns)
            end_conn(t, c, TRANSPORT_TIMEOUT,
                     c->state == CONN_CONNECTING ? "the peer does not answer"
                                                 : "the peer stands still");
    }
    if (!tcp->listens && tcp->now_ns >= tcp->accept_from_ns)
        listen_again(tcp);
}

static bool tcp_progress(struct transport *t, uint64_t now_ns)
{
    struct tcp *tcp = t->state;
    struct epoll_event events[N_EVENTS];

    tcp->now_ns = now_ns;
    if (tcp->has_unsent) {
        tcp->has_unsent = false;
        for (uint32_t i = 0; i < tcp->n_used; i++)
            if (tcp->conns[i].state == CONN_OPEN && !(tcp->conns[i].armed & EPOLLOUT))
                flush(t, &tcp->conns[i]);
    }
    int n = epoll_wait(tcp->epoll_fd, events, N_EVENTS, 0);
    for (int i = 0; i < n; i++) {
        uint64_t data = events[i].data.u64;
        if (data == LISTENER) {
            accept_conns(t);
            continue;
        }
        struct conn *c = &tcp->conns[(uint32_t)data];
        if (c->generation == (uint32_t)(data >> 32) &&
            (c->state == CONN_OPEN || c->state == CONN_CONNECTING))
            on_event(t, c, events[i].events);
    }
    check_times(t);
    return true; /* what is left to do keeps the descriptor readable */
}

static int tcp_fd(const struct transport *t)
{
    return ((const struct tcp *)t->state)->epoll_fd;
}

static void tcp_disconnect(struct transport *t, uint32_t conn)
{
    struct tcp *tcp = t->state;
    struct conn *c = &tcp->conns[conn];

    ASSERT(conn < t->config.n_conns_max && c->state != CONN_FREE);
    if (c->state != CONN_CLOSED)
        end_conn(t, c, TRANSPORT_LEFT, "closed here");
}

static void tcp_count_conns(const struct transport *t, struct transport_stats *out)
{
    const struct tcp *tcp = t->state;

    out->n_conns = 0;
    for (uint32_t i = 0; i < tcp->n_used; i++)
        out->n_conns += tcp->conns[i].state == CONN_OPEN;
}

/* --- open and close --- */

static enum status start_listening(struct tcp *tcp, struct sockaddr_storage *bound,
                                   const struct sockaddr *a, socklen_t n, struct buf *why)
{
    int on = 1, off = 0;
    socklen_t n_bound = sizeof *bound;

    tcp->listen_fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->listen_fd < 0)
        return buf_why(why, ERR_IO, "socket: %s", strerror(errno));
    setsockopt(tcp->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->sa_family == AF_INET6)
        setsockopt(tcp->listen_fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(tcp->listen_fd, a, n) != 0 || listen(tcp->listen_fd, BACKLOG) != 0)
        return buf_why(why, ERR_IO, "cannot listen: %s", strerror(errno));
    if (getsockname(tcp->listen_fd, (struct sockaddr *)bound, &n_bound) != 0 || !listen_again(tcp))
        return buf_why(why, ERR_IO, "cannot listen: %s", strerror(errno));
    return OK;
}

static void tcp_close(struct transport *t)
{
    struct tcp *tcp = t->state;

    for (uint32_t i = 0; tcp->conns && i < t->config.n_conns_max; i++)
        if (tcp->conns[i].state != CONN_FREE)
            transport_disconnect(t, i);
    if (tcp->listen_fd >= 0)
        close(tcp->listen_fd);
    if (tcp->epoll_fd >= 0)
        close(tcp->epoll_fd);
    free(tcp->conns);
    free(tcp);
}

static enum status tcp_open(struct transport *t, const struct sockaddr *listen, socklen_t n_listen,
                            struct buf *why)
{
    struct tcp *tcp = calloc(1, sizeof *tcp);

    if (!tcp)
        return buf_why(why, ERR_NOMEM, "out of memory");
    t->state = tcp;
    tcp->listen_fd = -1;
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->conns = calloc(t->config.n_conns_max, sizeof *tcp->conns);
    enum status s = !tcp->conns         ? buf_why(why, ERR_NOMEM, "out of memory")
                    : tcp->epoll_fd < 0 ? buf_why(why, ERR_IO, "epoll: %s", strerror(errno))
                                        : start_listening(tcp, &t->bound, listen, n_listen, why);
    if (s != OK)
        tcp_close(t);
    return s;
}

const struct transport_ops transport_tcp_ops = {
    .name = "tcp",
    .family = AF_UNSPEC,
    .open = tcp_open,
    .close = tcp_close,
    .fd = tcp_fd,
    .progress = tcp_progress,
    .connect = tcp_connect,
    .disconnect = tcp_disconnect,
    .send = tcp_send,
    .receive = tcp_receive,
    .taken = tcp_taken,
    .count_conns = tcp_count_conns,
};
