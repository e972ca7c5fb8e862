/* pool_read.c - reads of found tickets: sent a few at a time, received where the engine wants them,
 * checked, and over by the end of the lease. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/pool/pool_inner.h"

#define DONE_MIN_NS 1000u /* between two measured answers */

static uint64_t tag_of(const struct pool *p, const struct pool_read_slot *r)
{
    return pool_tag(POOL_TAG_READ, (uint32_t)(r - p->reads), r->generation);
}

/* --- the end of a read --- */

/* The peer has one read less under way. Closing a connection resets the count. */
static void is_back(struct pool *p, struct pool_read_slot *r)
{
    struct pool_ticket *t = &p->tickets[r->ticket];

    if (r->is_out && pool_conn_is_member(p, t->conn) && p->peers[t->peer].n_reads_out > 0)
        p->peers[t->peer].n_reads_out--;
    r->is_out = false;
}

static void finish(struct pool *p, struct pool_read_slot *r, enum status status)
{
    struct pool_ticket *t = &p->tickets[r->ticket];
    struct pool_read_done done = {.index = (uint32_t)(r - p->reads), .status = status};

    is_back(p, r);
    if (status == OK) {
        p->live.n_pulled_blocks += r->n;
        p->live.n_pulled_bytes += r->n * p->self.block_bytes;
        p->live.n_near_bytes += r->is_near ? r->n * p->self.block_bytes : 0;
    } else {
        p->live.n_reads_lost += status != ERR_TIMEOUT && status != ERR_CORRUPT;
        p->live.n_reads_timed_out += status == ERR_TIMEOUT;
        p->live.n_reads_corrupt += status == ERR_CORRUPT;
    }
    if (r->stage == POOL_READ_WAITS)
        link_remove(&r->link);
    r->stage = POOL_READ_FREE;
    r->generation++;
    t->n_reads--;
    p->has_posted = true;
    if (status == OK)
        pool_lookup_read(p, r->ticket, r->at, r->n);
    bool ok = spsc_push(p->reads_done, &done);
    ASSERT(ok);
}

/* End a read that was not answered in time, or whose lease is over. Memory that a payload is still
 * arriving in stays the pool's until the connection is closed. A copy of the engine's ends by
 * itself. */
static void end_read(struct pool *p, struct pool_read_slot *r, enum status status)
{
    struct pool_ticket *t = &p->tickets[r->ticket];
    bool is_open = t->conn != POOL_NONE && p->conns[t->conn].stage == POOL_CONN_MEMBER;

    if (r->stage == POOL_READ_COPIES) {
        is_back(p, r); /* the ticket may be lost before the copy ends */
        return;
    }
    if (r->stage == POOL_READ_ARRIVES && is_open) {
        pool_conn_fail(p, t->conn, true, "a read takes too long");
        return;
    }
    if (r->stage == POOL_READ_SENT && is_open)
        p->conns[t->conn].n_reads_cancelled++;
    if (status == ERR_TIMEOUT && r->stage != POOL_READ_WAITS)
        pool_peer_timed_out(p, &p->peers[t->peer]);
    finish(p, r, status);
}

void pool_read_end_all(struct pool *p, uint32_t ticket, enum status status)
{
    struct pool_ticket *t = &p->tickets[ticket];

    for (uint32_t i = 0; i < POOL_N_READS && t->n_reads > 0; i++)
        if (p->reads[i].stage != POOL_READ_FREE && p->reads[i].ticket == ticket)
            end_read(p, &p->reads[i], p->now_ns >= t->deadline_ns ? ERR_TIMEOUT : status);
}

/* --- sending --- */

void pool_read_begin(struct pool *p, uint32_t read)
{
    struct pool_read_slot *r = &p->reads[read];

    p->tickets[r->ticket].n_reads++;
    r->stage = POOL_READ_WAITS;
    link_append(&p->waiting_reads, &r->link);
}

/* Send the read, if its peer has few enough. False: later. */
static bool send_read(struct pool *p, struct pool_read_slot *r)
{
    struct pool_ticket *t = &p->tickets[r->ticket];
    struct wire_message m = {.kind = WIRE_READ,
                             .id = pool_tag(POOL_TAG_TICKET, r->ticket, t->generation),
                             .read = tag_of(p, r),
                             .n = r->n};

    if (t->stage != POOL_HOLDING || !pool_conn_is_member(p, t->conn)) {
        finish(p, r, ERR_NOT_FOUND);
        return true;
    }
    struct pool_peer *peer = &p->peers[t->peer];
    if (peer->n_reads_out >= POOL_READS_OUT_MAX)
        return false;
    memcpy(m.at, r->at, sizeof m.at);
    if (!pool_conn_say(p, t->conn, &m)) {
        finish(p, r, ERR_NOT_FOUND);
        return true;
    }
    r->stage = POOL_READ_SENT;
    r->is_alone = peer->n_reads_out++ == 0;
    r->is_out = true;
    r->sent_ns = clock_now_ns();
    return true;
}

void pool_read_pump(struct pool *p)
{
    for (struct link *l = p->waiting_reads.next, *next; l != &p->waiting_reads; l = next) {
        next = l->next;
        if (send_read(p, LINK_ITEM(l, pool_read_slot, link)))
            link_remove(l);
    }
}

/* --- answers --- */

/* The read with this id. NULL: it was cancelled, or the peer invents answers: then disconnect. */
static struct pool_read_slot *read_of(struct pool *p, uint32_t conn, uint64_t tag)
{
    uint32_t index = pool_tag_index(tag);
    struct pool_conn *c = &p->conns[conn];
    struct pool_read_slot *r = index < POOL_N_READS ? &p->reads[index] : NULL;

    if (r && pool_tag_kind(tag) == POOL_TAG_READ && r->generation == (uint32_t)tag &&
        r->stage == POOL_READ_SENT && p->tickets[r->ticket].conn == conn)
        return r;
    if (c->n_reads_cancelled == 0)
        pool_conn_fail(p, conn, true, "an answer to no read");
    else
        c->n_reads_cancelled--;
    return NULL;
}

/* The answer names the blocks that the read asked for, by index and by key. */
static bool is_answer(const struct pool *p, const struct pool_read_slot *r,
                      const struct wire_message *m)
{
    const struct pool_ticket *t = &p->tickets[r->ticket];

    if (m->n != r->n)
        return false;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->at[i] != r->at[i] || memcmp(m->key[i], t->keys[r->at[i]].bytes, WIRE_KEY_BYTES) != 0)
            return false;
    return true;
}

void pool_read_data(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_read_slot *r = read_of(p, conn, m->read);
    struct transport *tr = p->transport;
    struct iovec to[POOL_READ_MAX];

    if (!r) {
        transport_receive(tr, p->conns[conn].number, NULL, 0, 0);
        return;
    }
    if (!is_answer(p, r, m) || r->is_near) {
        finish(p, r, ERR_CORRUPT);
        pool_conn_fail(p, conn, true, "other blocks than were asked for");
        return;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        to[i] = (struct iovec){.iov_base = r->to[i], .iov_len = p->self.block_bytes};
        r->crc[i] = m->crc[i];
    }
    r->stage = POOL_READ_ARRIVES;
    r->head_ns = clock_now_ns();
    transport_receive(tr, p->conns[conn].number, to, r->n, tag_of(p, r));
}

void pool_read_places(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_read_slot *r = read_of(p, conn, m->read);
    uint64_t n_bytes = p->self.block_bytes;

    if (!r)
        return;
    uint32_t no = (uint32_t)(r - p->reads), map = p->tickets[r->ticket].map;
    bool is_good = is_answer(p, r, m) && r->is_near && map != POOL_NONE;
    for (uint32_t i = 0; i < r->n && is_good; i++) {
        is_good = m->place[i] < p->maps[map].n_bytes / n_bytes;
        r->from[i] = (const uint8_t *)p->maps[map].memory + m->place[i] * n_bytes;
        r->crc[i] = m->crc[i];
    }
    if (!is_good) {
        finish(p, r, ERR_CORRUPT);
        pool_conn_fail(p, conn, true, "other blocks than were asked for");
        return;
    }
    r->stage = POOL_READ_COPIES;
    r->head_ns = clock_now_ns();
    p->has_posted = true;
    bool ok = spsc_push(p->places, &no);
    ASSERT(ok);
}

void pool_read_gone(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_read_slot *r = read_of(p, conn, m->read);

    if (!r)
        return;
    uint32_t ticket = r->ticket;
    finish(p, r, ERR_NOT_FOUND);
    if (p->tickets[ticket].n_reads == 0)
        pool_lookup_lost(p, ticket);
}

/* Latency: of reads that nothing of this peer was before. Rate: of what arrived since the last
 * answer, or since the head of this one's. */
static void measure(struct pool *p, const struct pool_read_slot *r, struct pool_peer *peer)
{
    uint64_t now = clock_now_ns(), from = r->sent_ns;

    if (r->is_alone) {
        double latency_s = (double)(r->head_ns - r->sent_ns) / 1e9;
        peer->latency_s += (latency_s - peer->latency_s) / (peer->bytes_per_s == 0 ? 1 : 8);
        pool_mean_add(&p->latency_s, latency_s);
        from = r->head_ns;
    }
    from = peer->last_done_ns > from ? peer->last_done_ns : from;
    double s = (double)(now - from < DONE_MIN_NS ? DONE_MIN_NS : now - from) / 1e9;
    double rate = (double)r->n * (double)p->self.block_bytes / s;
    peer->bytes_per_s += peer->bytes_per_s == 0 ? rate : (rate - peer->bytes_per_s) / 8;
    peer->last_done_ns = now;
    pool_mean_add(&p->bytes_per_s, rate);
}

void pool_read_received(struct pool *p, uint32_t read)
{
    struct pool_read_slot *r = &p->reads[read];
    struct pool_ticket *t = &p->tickets[r->ticket];
    enum status s = OK;

    ASSERT(r->stage == POOL_READ_ARRIVES);
    for (uint32_t i = 0; i < r->n && s == OK; i++)
        if (hash_crc32c(0, r->to[i], p->self.block_bytes) != r->crc[i])
            s = ERR_CORRUPT;
    if (s == OK) {
        measure(p, r, &p->peers[t->peer]);
        pool_peer_answered(&p->peers[t->peer]);
    } else {
        pool_conn_fail(p, t->conn, true, "wrong bytes");
    }
    finish(p, r, s);
}

/* The lender may use the blocks again once the lease is over: wrong bytes after that are nobody's
 * fault. */
void pool_read_copied(struct pool *p, uint32_t read, enum status status)
{
    struct pool_read_slot *r = &p->reads[read];
    struct pool_ticket *t = &p->tickets[r->ticket];
    bool is_held = t->stage == POOL_HOLDING;

    ASSERT(r->stage == POOL_READ_COPIES);
    if (status == OK && is_held) {
        measure(p, r, &p->peers[t->peer]);
        pool_peer_answered(&p->peers[t->peer]);
    } else if (status == ERR_CORRUPT && !is_held) {
        status = ERR_NOT_FOUND;
    } else if (status == ERR_CORRUPT && p->now_ns >= t->deadline_ns) {
        status = ERR_TIMEOUT;
    } else if (status == ERR_CORRUPT) {
        pool_conn_fail(p, t->conn, true, "wrong bytes");
    }
    finish(p, r, status);
}
