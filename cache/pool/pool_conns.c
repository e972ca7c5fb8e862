/* pool_conns.c - connections: opened on demand or accepted, handshake, messages to their readers.
 *
 * Connections have a direction: what this instance asks for goes over the connection that it
 * opened, and over an accepted one it only answers. A connection that breaks a rule is marked, and
 * closed at the next sweep, so that no reader of a message finds its own state changed. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "cache/pool/pool_inner.h"

#define EVENTS_MAX 256u /* of one turn of the loop */
#define OPENED_MAX (POOL_N_CONNS / 2)
#define ACCEPTED_MAX (POOL_N_CONNS / 2)
#define SHAKES_MAX 32u             /* accepted, and not members yet */
#define SHAKE_NS (2 * POOL_SECOND) /* for connecting and for the handshake */
#define IDLE_NS (5 * POOL_SECOND) /* or as long as a lease; then it may make room for another one */

static struct pool_conn *conn_of(struct pool *p, uint32_t number)
{
    uint32_t no;

    return map_get(&p->conn_of_number, number, &no) ? &p->conns[no] : NULL;
}

static uint32_t number_of(const struct pool *p, const struct pool_conn *c)
{
    return (uint32_t)(c - p->conns);
}

bool pool_conn_is_member(const struct pool *p, uint32_t conn)
{
    return conn != POOL_NONE && p->conns[conn].stage == POOL_CONN_MEMBER && !p->conns[conn].failure;
}

void pool_conn_fail(struct pool *p, uint32_t conn, bool is_peers_fault, const char *why)
{
    struct pool_conn *c = &p->conns[conn];

    if (c->failure || c->stage == POOL_CONN_FREE || c->stage == POOL_CONN_CLOSES)
        return;
    c->failure = why;
    c->is_peers_fault = is_peers_fault;
    p->n_failed++;
    p->is_busy = true;
}

/* --- sending --- */

bool pool_conn_say(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    uint8_t head[WIRE_HEAD_MAX];

    if (!pool_conn_is_member(p, conn))
        return false;
    p->is_busy = true;
    p->conns[conn].used_ns = p->now_ns;
    if (transport_send(p->transport, p->conns[conn].number, head, wire_encode(m, head), NULL, 0,
                       0) != OK) {
        pool_conn_fail(p, conn, true, "the peer does not read");
        return false;
    }
    return true;
}

enum status pool_conn_send(struct pool *p, uint32_t conn, const struct wire_message *m,
                           const struct iovec *payload, uint32_t n_payload, enum pool_payload what,
                           uint32_t index)
{
    uint8_t head[WIRE_HEAD_MAX];
    uint32_t no = p->first_send;

    if (!pool_conn_is_member(p, conn))
        return ERR_UNAVAILABLE;
    if (no == POOL_NONE)
        return ERR_BUSY;
    enum status s = transport_send(p->transport, p->conns[conn].number, head, wire_encode(m, head),
                                   payload, n_payload, (uint64_t)no + 1);
    if (s == OK) {
        p->first_send = p->sends[no].next_free;
        p->sends[no] =
            (struct pool_send){.is_used = true, .what = what, .index = index, .conn = conn};
        p->conns[conn].used_ns = p->now_ns;
        p->is_busy = true;
    } else if (s != ERR_BUSY) {
        pool_conn_fail(p, conn, true, "sending failed");
    }
    return s;
}

/* The payload is not read any more. */
static void end_send(struct pool *p, uint32_t no)
{
    struct pool_send *s = &p->sends[no];
    uint32_t index = s->index;

    s->is_used = false;
    s->next_free = p->first_send;
    p->first_send = no;
    switch (s->what) {
    case POOL_SENDS_TICKET: pool_lookup_sent(p, index); break;
    case POOL_SENDS_LEASE:
        p->conns[s->conn].n_data_out--;
        pool_lend_sent(p, index);
        break;
    case POOL_SENDS_OFFER: pool_offer_sent(p, index); break;
    case POOL_SENDS_NOTE: pool_note_sent(p, index); break;
    case POOL_SENDS_QUERY: pool_query_sent(p, index); break;
    case POOL_SENDS_TILES: pool_attend_sent(p, index); break;
    }
}

/* --- opening and closing --- */

/* Nothing depends on the connection any more. */
static bool is_idle(const struct pool *p, const struct pool_conn *c)
{
    return c->stage == POOL_CONN_MEMBER && !c->failure && c->n_leases == 0 &&
           p->now_ns - c->used_ns >= (p->pull_ns > IDLE_NS ? p->pull_ns : IDLE_NS);
}

/* The number of connections of one direction; *idle: the one that was used last longest ago. */
static uint32_t count(struct pool *p, bool is_asker, uint32_t *n_shaking, struct pool_conn **idle)
{
    uint32_t n = 0;

    *n_shaking = 0;
    *idle = NULL;
    for (uint32_t i = 0; i < POOL_N_CONNS; i++) {
        struct pool_conn *c = &p->conns[i];
        if (c->stage == POOL_CONN_FREE || c->is_asker != is_asker)
            continue;
        n++;
        *n_shaking += c->stage == POOL_CONN_SHAKES;
        if (is_idle(p, c) && (!*idle || c->used_ns < (*idle)->used_ns))
            *idle = c;
    }
    return n;
}

static struct pool_conn *add_conn(struct pool *p, uint32_t number, bool is_asker)
{
    uint32_t no = 0;

    while (no < POOL_N_CONNS && p->conns[no].stage != POOL_CONN_FREE)
        no++;
    if (no == POOL_N_CONNS || conn_of(p, number))
        return NULL;
    struct pool_conn *c = &p->conns[no];
    *c = (struct pool_conn){.number = number,
                            .is_asker = is_asker,
                            .stage = is_asker ? POOL_CONN_OPENS : POOL_CONN_SHAKES,
                            .peer = POOL_NONE,
                            .map = POOL_NONE,
                            .began_ns = p->now_ns,
                            .used_ns = p->now_ns};
    link_init(&c->attends);
    link_init(&c->turn);
    map_put(&p->conn_of_number, number, no);
    return c;
}

uint32_t pool_conn_open(struct pool *p, uint32_t peer)
{
    struct pool_conn *idle;
    uint32_t n_shaking, number;

    if (count(p, true, &n_shaking, &idle) >= OPENED_MAX) {
        if (idle)
            pool_conn_fail(p, number_of(p, idle), false, "room for another peer");
        return POOL_NONE;
    }
    if (transport_connect(p->transport, p->peers[peer].info.address, &number) != OK)
        return POOL_NONE;
    struct pool_conn *c = add_conn(p, number, true);
    if (!c) {
        transport_disconnect(p->transport, number);
        return POOL_NONE;
    }
    c->peer = peer;
    p->is_busy = true;
    return number_of(p, c);
}

/* Count a stranger. Another model's instance is none. */
static void count_refused(struct pool *p, const struct pool_conn *c, enum status s)
{
    p->live.n_refused += !c->is_asker && s != ERR_UNSUPPORTED;
}

/* Close the oldest accepted connection that has said nothing, or else the oldest of those that have
 * proved nothing: strangers that are silent, however many, keep no member out. */
static void drop_stranger(struct pool *p)
{
    struct pool_conn *oldest = NULL;

    for (uint32_t i = 0; i < POOL_N_CONNS; i++) {
        struct pool_conn *c = &p->conns[i];
        if (c->stage != POOL_CONN_SHAKES || c->is_asker || c->failure)
            continue;
        bool speaks = c->handshake.n_theirs > 0;
        bool is_oldest_speaking = oldest && oldest->handshake.n_theirs > 0;
        if (!oldest || (is_oldest_speaking && !speaks) ||
            (is_oldest_speaking == speaks && c->began_ns < oldest->began_ns))
            oldest = c;
    }
    if (!oldest)
        return;
    count_refused(p, oldest, ERR_TIMEOUT);
    pool_conn_fail(p, number_of(p, oldest), true, "room for another handshake");
}

static void accept_conn(struct pool *p, uint32_t number)
{
    struct pool_conn *c, *idle;
    uint32_t n_shaking, n = count(p, false, &n_shaking, &idle);

    if (n >= ACCEPTED_MAX && idle)
        pool_conn_fail(p, number_of(p, idle), false, "room for another peer");
    if (n_shaking >= SHAKES_MAX)
        drop_stranger(p);
    if (n >= ACCEPTED_MAX || !(c = add_conn(p, number, false))) {
        transport_disconnect(p->transport, number);
        return;
    }
    handshake_init(&c->handshake, &p->self, false);
}

/* End what depends on the connection; the transport has closed it. */
static void close_conn(struct pool *p, struct pool_conn *c, bool is_peers_fault, const char *why)
{
    uint32_t no = number_of(p, c);
    bool was_member = c->stage == POOL_CONN_MEMBER;

    log_event(was_member ? LOG_INFO : LOG_DEBUG, "pool connection closed",
              "peer=%016llx asker=%s why=\"%s\"", (unsigned long long)c->peer_id,
              c->is_asker ? "true" : "false", why ? why : "");
    p->n_failed -= c->failure != NULL;
    c->failure = NULL;
    p->live.n_peers -= was_member && c->is_asker;
    c->stage = POOL_CONN_CLOSES; /* the number is not used again before all know */
    map_remove(&p->conn_of_number, c->number);
    for (uint32_t i = 0; i < POOL_N_SENDS; i++)
        if (p->sends[i].is_used && p->sends[i].conn == no)
            end_send(p, i);
    if (c->is_asker) {
        pool_peer_closed(p, &p->peers[c->peer], is_peers_fault);
        pool_lookup_closed(p, no);
        pool_query_closed(p, no);
    } else {
        pool_attend_closed(p, no);
        pool_lend_closed(p, no);
    }
    pool_map_closed(p, no);
    pool_note_closed(p, no);
    pool_offer_closed(p, no);
    free(c->reads);
    c->reads = NULL;
    c->stage = POOL_CONN_FREE;
}

void pool_conns_sweep(struct pool *p)
{
    while (p->n_failed > 0) {
        for (uint32_t i = 0; i < POOL_N_CONNS; i++) {
            struct pool_conn *c = &p->conns[i];
            if (!c->failure)
                continue;
            transport_disconnect(p->transport, c->number);
            close_conn(p, c, c->is_peers_fault, c->failure);
        }
    }
}

/* --- the handshake --- */

static void become_member(struct pool *p, struct pool_conn *c)
{
    uint32_t no = number_of(p, c);

    c->peer_id = c->handshake.peer_id;
    if (c->peer_id == p->info.id || (c->is_asker && c->peer_id != p->peers[c->peer].info.id)) {
        pool_conn_fail(p, no, true, "another instance than expected");
        return;
    }
    c->reads = calloc(POOL_READS_QUEUED_MAX, sizeof *c->reads);
    if (!c->reads) {
        pool_conn_fail(p, no, false, "out of memory");
        return;
    }
    c->stage = POOL_CONN_MEMBER;
    if (!c->is_asker)
        return;
    struct pool_peer *peer = &p->peers[c->peer];
    p->live.n_peers++;
    if (peer->latency_s == 0) /* two round trips, until a read is measured */
        peer->latency_s = (double)(p->now_ns - c->began_ns) / 2e9;
    pool_map_begin(p, no);
    if (!c->is_mapping)
        pool_lookup_member(p, no);
    pool_offer_member(p, no);
}

static bool send_shake(struct pool *p, const struct pool_conn *c, const uint8_t *bytes, uint32_t n)
{
    p->is_busy = true;
    return n == 0 || transport_send(p->transport, c->number, bytes, n, NULL, 0, 0) == OK;
}

static void take_handshake(struct pool *p, struct pool_conn *c, const struct transport_event *e)
{
    uint8_t out[HANDSHAKE_MESSAGE_MAX];
    uint32_t n_out = 0;
    const char *why = "a payload in the handshake";
    enum status s = ERR_INVALID;

    if (e->n_payload == 0)
        s = handshake_take(&c->handshake, e->head, e->n_head, out, &n_out, &why);
    if (s == OK && !send_shake(p, c, out, n_out)) {
        s = ERR_IO;
        why = "sending failed";
    }
    if (s != OK) {
        count_refused(p, c, s);
        log_event(LOG_WARN, "pool handshake failed", "asker=%s why=\"%s\"",
                  c->is_asker ? "true" : "false", why ? why : status_name(s));
        pool_conn_fail(p, number_of(p, c), true, why);
    } else if (c->handshake.is_done) {
        become_member(p, c);
    }
}

/* --- messages --- */

static void take_message(struct pool *p, struct pool_conn *c, const struct transport_event *e)
{
    struct wire_message m;
    uint32_t no = number_of(p, c);

    c->used_ns = p->now_ns;
    if (wire_decode(&m, e->head, e->n_head) != OK ||
        e->n_payload != wire_payload_bytes(&m, p->self.block_bytes)) {
        pool_conn_fail(p, no, true, "a broken message");
        return;
    }
    if (wire_is_answer(m.kind) != c->is_asker) {
        pool_conn_fail(p, no, true, "a message in the wrong direction");
        return;
    }
    switch (m.kind) {
    case WIRE_ASK: pool_lend_ask(p, no, &m); break;
    case WIRE_LENT: pool_lookup_lent(p, no, &m); break;
    case WIRE_READ: pool_lend_read(p, no, &m); break;
    case WIRE_DATA: pool_read_data(p, no, &m); break;
    case WIRE_GONE: pool_read_gone(p, no, &m); break;
    case WIRE_CLOSE: pool_lend_close(p, no, &m); break;
    case WIRE_OFFER: pool_take_offer(p, no, &m); break;
    case WIRE_DONE: pool_offer_done(p, no, &m); break;
    case WIRE_NOTE: pool_note_take(p, no, &m); break;
    case WIRE_QUERY: pool_attend_query(p, no, &m); break;
    case WIRE_TILES: pool_query_tiles(p, no, &m); break;
    case WIRE_REFUSED: pool_query_refused(p, no, &m); break;
    case WIRE_MAP: pool_map_asked(p, no, &m); break;
    case WIRE_HANDLE: pool_map_handle(p, no, &m); break;
    case WIRE_MAPPED: pool_map_answered(p, no, &m); break;
    case WIRE_PLACES: pool_read_places(p, no, &m); break;
    }
}

static void take_received(struct pool *p, uint64_t tag)
{
    uint32_t index = pool_tag_index(tag);

    switch (pool_tag_kind(tag)) {
    case POOL_TAG_READ: pool_read_received(p, index); break;
    case POOL_TAG_LEASE: pool_lend_received(p, index); break;
    case POOL_TAG_TAKEN: pool_take_received(p, index); break;
    case POOL_TAG_NOTE: pool_note_received(p, index); break;
    case POOL_TAG_QUERY: pool_query_received(p, index); break;
    case POOL_TAG_ATTEND: pool_attend_received(p, index); break;
    default: ASSERT(false);
    }
}

static void take_connected(struct pool *p, struct pool_conn *c)
{
    uint8_t out[HANDSHAKE_MESSAGE_MAX];

    c->stage = POOL_CONN_SHAKES;
    c->began_ns = p->now_ns;
    handshake_init(&c->handshake, &p->self, true);
    if (!send_shake(p, c, out, handshake_begin(&c->handshake, out)))
        pool_conn_fail(p, number_of(p, c), true, "sending failed");
}

static void take_event(struct pool *p, const struct transport_event *e)
{
    struct pool_conn *c = e->kind == TRANSPORT_ACCEPTED ? NULL : conn_of(p, e->conn);

    if (e->kind == TRANSPORT_ACCEPTED) {
        accept_conn(p, e->conn);
        return;
    }
    if (!c)
        return;
    switch (e->kind) {
    case TRANSPORT_ACCEPTED: break;
    case TRANSPORT_CONNECTED: take_connected(p, c); break;
    case TRANSPORT_MESSAGE:
        if (c->stage == POOL_CONN_MEMBER)
            take_message(p, c, e);
        else
            take_handshake(p, c, e);
        break;
    case TRANSPORT_SENT:
        if (e->tag >= 1 && e->tag <= POOL_N_SENDS && p->sends[e->tag - 1].is_used)
            end_send(p, (uint32_t)e->tag - 1);
        break;
    case TRANSPORT_RECEIVED: take_received(p, e->tag); break;
    case TRANSPORT_CLOSED:
        if (c->stage != POOL_CONN_MEMBER)
            count_refused(p, c, ERR_INVALID);
        close_conn(p, c, true, e->why);
        break;
    }
}

void pool_conns_events(struct pool *p, uint32_t *n_events)
{
    struct transport_event e;

    *n_events = 0;
    while (*n_events < EVENTS_MAX && transport_next(p->transport, &e)) {
        take_event(p, &e);
        pool_conns_sweep(p);
        ++*n_events;
    }
}

void pool_conns_timers(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_N_CONNS; i++) {
        struct pool_conn *c = &p->conns[i];
        if (c->is_asker && !p->peers[c->peer].is_listed && is_idle(p, c))
            pool_conn_fail(p, i, false, "the peer has left the pool");
        if ((c->stage != POOL_CONN_OPENS && c->stage != POOL_CONN_SHAKES && !c->is_mapping) ||
            p->now_ns - c->began_ns < SHAKE_NS)
            continue;
        if (c->stage == POOL_CONN_SHAKES)
            count_refused(p, c, ERR_TIMEOUT);
        pool_conn_fail(p, i, true, "the handshake takes too long");
    }
}
