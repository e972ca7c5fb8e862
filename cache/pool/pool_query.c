/* pool_query.c - queries to peers: sent, answered by tiles or refused, checked.
 *
 * A finished query belongs to the engine thread at once, so its slot is reused without a command. A
 * query that was forgotten before is freed here, when no payload of it is under way. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/pool/pool_inner.h"

static uint64_t tag_of(const struct pool *p, const struct pool_query_slot *s)
{
    return pool_tag(POOL_TAG_QUERY, (uint32_t)(s - p->queries), s->generation);
}

static struct pool_query_parts parts_of(const struct pool_query_slot *s)
{
    return pool_query_parts(&s->buffer, s->n_tile_bytes, s->n_q_bytes);
}

/* --- the end of a query --- */

static void pass_on(struct pool *p, struct pool_query_slot *s)
{
    uint32_t no = (uint32_t)(s - p->queries);

    if (s->is_forgotten) {
        bool ok = spsc_push(p->queries_free, &no);
        ASSERT(ok);
        return;
    }
    uint32_t state = POOL_QUERY_DONE + (uint32_t)s->status;
    if (atomic_exchange_explicit(&s->state, state, memory_order_acq_rel) == POOL_QUERY_AWAITED)
        pool_futex_wake(&s->state);
}

static void finish(struct pool *p, struct pool_query_slot *s, enum status status)
{
    p->live.n_queries_failed += status != OK;
    s->stage = POOL_QUERY_FREE;
    s->generation++;
    s->status = status;
    s->is_over = true;
    if (!s->is_sending)
        pass_on(p, s);
}

void pool_query_sent(struct pool *p, uint32_t query)
{
    struct pool_query_slot *s = &p->queries[query];

    s->is_sending = false;
    if (s->is_over)
        pass_on(p, s);
}

/* The answer is not waited for any more. */
static void cancel(struct pool *p, struct pool_query_slot *s, enum status status)
{
    struct pool_conn *c = &p->conns[s->conn];

    if (c->stage == POOL_CONN_MEMBER) {
        c->n_queries_cancelled++;
        if (status == ERR_TIMEOUT)
            pool_peer_timed_out(p, &p->peers[s->peer]);
    }
    finish(p, s, status);
}

void pool_query_drop(struct pool *p, uint32_t query)
{
    struct pool_query_slot *s = &p->queries[query];

    s->is_forgotten = true;
    if (s->is_over && !s->is_sending)
        pass_on(p, s);
    else if (s->stage == POOL_QUERY_SENT)
        cancel(p, s, s->is_timed_out ? ERR_TIMEOUT : ERR_CANCELLED);
}

void pool_query_lost(struct pool *p, uint32_t ticket, enum status status)
{
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++) {
        struct pool_query_slot *s = &p->queries[i];
        if (s->stage == POOL_QUERY_SENT && s->ticket == ticket &&
            s->ticket_generation == p->tickets[ticket].generation)
            cancel(p, s, status);
    }
}

void pool_query_closed(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_QUERIES_MAX; i++)
        if (p->queries[i].stage != POOL_QUERY_FREE && p->queries[i].conn == conn)
            finish(p, &p->queries[i], ERR_NOT_FOUND);
}

/* --- sending --- */

static enum status send_query(struct pool *p, struct pool_query_slot *s, struct pool_ticket *t)
{
    struct pool_query_parts parts = parts_of(s);
    struct iovec q = {.iov_base = parts.q, .iov_len = s->n_q_bytes};
    uint64_t ms = s->until_ns > p->now_ns ? (s->until_ns - p->now_ns) / POOL_MS + 1 : 0;
    struct wire_message m = {.kind = WIRE_QUERY,
                             .id = pool_tag(POOL_TAG_TICKET, s->ticket, t->generation),
                             .query = tag_of(p, s),
                             .layer = s->layer,
                             .n_rows = s->n_rows,
                             .ms = ms < WIRE_MS_MAX ? (uint32_t)ms : WIRE_MS_MAX,
                             .n_bytes = s->n_q_bytes,
                             .floats_crc = hash_crc32c(0, parts.q, s->n_q_bytes),
                             .n = s->n_segments,
                             .segments = parts.segments};

    if (t->stage != POOL_HOLDING || !pool_conn_is_member(p, t->conn))
        return ERR_NOT_FOUND;
    if (ms == 0)
        return ERR_TIMEOUT;
    enum status status =
        pool_conn_send(p, t->conn, &m, &q, 1, POOL_SENDS_QUERY, (uint32_t)(s - p->queries));
    return status == OK || status == ERR_BUSY ? status : ERR_NOT_FOUND;
}

void pool_query_begin(struct pool *p, uint32_t query)
{
    struct pool_query_slot *s = &p->queries[query];
    struct pool_ticket *t = &p->tickets[s->ticket];

    s->is_forgotten = s->is_over = s->is_sending = false;
    p->live.n_queries++;
    enum status status = send_query(p, s, t);
    if (status != OK) {
        finish(p, s, status);
        return;
    }
    s->stage = POOL_QUERY_SENT;
    s->is_sending = true;
    s->conn = t->conn;
    s->peer = t->peer;
    s->ticket_generation = t->generation;
    p->live.n_query_bytes += s->n_q_bytes;
    t->deadline_ns = p->now_ns + t->lease_ns;
    atomic_store_explicit(&t->until_ns, t->deadline_ns, memory_order_relaxed);
    pool_stay_alert(p);
}

/* --- answers --- */

/* The query with this number. NULL: it was cancelled, or the peer invents answers: then disconnect.
 * */
static struct pool_query_slot *query_of(struct pool *p, uint32_t conn, uint64_t tag)
{
    uint32_t index = pool_tag_index(tag);
    struct pool_conn *c = &p->conns[conn];
    struct pool_query_slot *s = index < POOL_QUERIES_MAX ? &p->queries[index] : NULL;

    if (s && pool_tag_kind(tag) == POOL_TAG_QUERY && s->generation == (uint32_t)tag &&
        s->stage == POOL_QUERY_SENT && s->conn == conn)
        return s;
    if (c->n_queries_cancelled == 0)
        pool_conn_fail(p, conn, true, "an answer to no query");
    else
        c->n_queries_cancelled--;
    return NULL;
}

void pool_query_tiles(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_query_slot *s = query_of(p, conn, m->query);

    if (!s) {
        transport_receive(p->transport, p->conns[conn].number, NULL, 0, 0);
        return;
    }
    if (m->n_bytes != s->n_tile_bytes) {
        finish(p, s, ERR_CORRUPT);
        pool_conn_fail(p, conn, true, "other tiles than were asked for");
        return;
    }
    struct iovec to = {.iov_base = parts_of(s).tiles, .iov_len = s->n_tile_bytes};
    s->stage = POOL_QUERY_ARRIVES;
    s->crc = m->floats_crc;
    transport_receive(p->transport, p->conns[conn].number, &to, 1, tag_of(p, s));
}

void pool_query_refused(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_query_slot *s = query_of(p, conn, m->query);

    if (!s)
        return;
    struct pool_ticket *t = &p->tickets[s->ticket];
    bool is_lost = m->reason == WIRE_STALE && t->generation == s->ticket_generation;
    pool_peer_answered(&p->peers[s->peer]);
    finish(p, s, m->reason == WIRE_BUSY ? ERR_BUSY : ERR_NOT_FOUND);
    if (is_lost && t->n_reads == 0)
        pool_lookup_lost(p, (uint32_t)(t - p->tickets));
}

static void measure(struct pool *p, const struct pool_query_slot *s)
{
    _Atomic uint64_t *mean = &p->query_ns[s->peer];
    uint64_t ns = clock_now_ns() - s->began_ns,
             old = atomic_load_explicit(mean, memory_order_relaxed);

    atomic_store_explicit(mean, old == 0 ? ns : old - old / 8 + ns / 8, memory_order_relaxed);
    pool_mean_add(&p->query_s, (double)ns / 1e9);
}

void pool_query_received(struct pool *p, uint32_t query)
{
    struct pool_query_slot *s = &p->queries[query];
    enum status status = OK;

    ASSERT(s->stage == POOL_QUERY_ARRIVES);
    if (hash_crc32c(0, parts_of(s).tiles, s->n_tile_bytes) != s->crc) {
        status = ERR_CORRUPT;
        pool_conn_fail(p, s->conn, true, "wrong tiles");
    } else {
        p->live.n_query_bytes += s->n_tile_bytes;
        pool_peer_answered(&p->peers[s->peer]);
        measure(p, s);
    }
    pool_stay_alert(p);
    finish(p, s, status);
}
