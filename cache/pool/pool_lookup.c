/* pool_lookup.c - tickets: ask the directory for holders, ask the best holder for a lease, go on
 * with the next one when it has nothing, all before the deadline. */
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool_inner.h"

#define ROUNDS_MAX 4u    /* lookups in the directory for one ticket */
#define TAKE_LOOKUPS 10u /* a taken offer may wait longer than a request: times lookup_ms */

static uint64_t tag_of(const struct pool *p, const struct pool_ticket *t)
{
    return pool_tag(POOL_TAG_TICKET, (uint32_t)(t - p->tickets), t->generation);
}

static bool is_of_offer(const struct pool *p, const struct pool_ticket *t)
{
    return t >= p->tickets + POOL_TICKETS_MAX;
}

static struct pool_ticket *ticket_of(struct pool *p, uint64_t tag)
{
    uint32_t index = pool_tag_index(tag);

    if (pool_tag_kind(tag) != POOL_TAG_TICKET || index >= POOL_N_TICKETS ||
        p->tickets[index].generation != (uint32_t)tag)
        return NULL;
    return &p->tickets[index];
}

/* --- the end of a lookup --- */

static void set_state(struct pool *p, struct pool_ticket *t, uint32_t state)
{
    atomic_store_explicit(&t->state, state, memory_order_release);
    p->has_posted = true;
}

/* Free the slot, unless its keys are still being sent. */
static void release(struct pool *p, struct pool_ticket *t)
{
    uint32_t no = (uint32_t)(t - p->tickets);

    if (t->n_sending > 0)
        return;
    t->is_forgotten = false;
    t->generation++;
    pool_map_release(p, t);
    if (is_of_offer(p, t)) {
        p->taken[no - POOL_TICKETS_MAX].is_used = false;
        return;
    }
    bool ok = spsc_push(p->tickets_free, &no);
    ASSERT(ok);
}

static void end_lookup(struct pool *p, struct pool_ticket *t, bool is_found)
{
    uint32_t no = (uint32_t)(t - p->tickets);

    t->stage = is_found ? POOL_HOLDING : POOL_IDLE;
    if (is_found) {
        p->live.n_found++;
        pool_mean_add(&p->lookup_s, (double)(p->now_ns - t->began_ns) / 1e9);
    }
    set_state(p, t, is_found ? POOL_FOUND : POOL_NOT_FOUND);
    if (is_of_offer(p, t))
        pool_take_looked(p, no - POOL_TICKETS_MAX, is_found);
}

/* The answer to the ask is not waited for any more. */
static void cancel_ask(struct pool *p, struct pool_ticket *t)
{
    if (t->stage == POOL_ASKING && pool_conn_is_member(p, t->conn)) {
        p->conns[t->conn].n_asks_cancelled++;
        pool_conn_say(p, t->conn, &(struct wire_message){.kind = WIRE_CLOSE, .id = tag_of(p, t)});
    }
    t->conn = POOL_NONE;
}

/* --- choosing a holder --- */

static uint32_t blocks_of(const struct pool_ticket *t, const struct directory_holder *h)
{
    uint32_t n = t->starts[t->at + 1] - t->starts[t->at];

    return t->starts[t->at] + (h->n_blocks < n ? h->n_blocks : n);
}

/* Seconds that a block from this peer is expected to wait: compared, not believed. */
static double delay_of(const struct pool_peer *peer)
{
    return (peer->latency_s + 1e-5) * (1.0 + peer->n_reads_out + peer->info.n_running);
}

/* Whether the holder lends only a part of what it has, because no time is given to its disk. */
static bool lends_less(const struct pool_ticket *t, uint32_t i)
{
    return t->disk_ns < POOL_MS && t->holders[i].tier >= DIRECTORY_TIER_DISK;
}

/* Below 0: holder a is better than b, whatever their delays; 0: they are equal. */
static int compare(const struct pool_ticket *t, uint32_t a, const struct pool_peer *peer_a,
                   uint32_t b, const struct pool_peer *peer_b)
{
    uint32_t n_a = blocks_of(t, &t->holders[a]), n_b = blocks_of(t, &t->holders[b]);

    if (peer_a->info.is_leaving != peer_b->info.is_leaving)
        return peer_b->info.is_leaving ? -1 : 1;
    if (lends_less(t, a) != lends_less(t, b))
        return lends_less(t, b) ? -1 : 1;
    if (n_a != n_b)
        return n_a > n_b ? -1 : 1;
    return t->holders[a].tier - t->holders[b].tier;
}

static bool is_avoided(const struct pool_ticket *t, uint64_t peer)
{
    for (uint32_t i = 0; i < t->n_avoid; i++)
        if (t->avoid[i] == peer)
            return true;
    return false;
}

/* A holder with its peer. */
struct choice {
    uint32_t holder;
    struct pool_peer *peer;
};

/* List the best holders that were not tried, which differ by delay and load only. */
static uint32_t list_best(struct pool *p, const struct pool_ticket *t,
                          struct choice out[DIRECTORY_HOLDERS_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_holders; i++) {
        struct pool_peer *peer = pool_peer_by_id(p, t->holders[i].id);
        if ((t->tried & 1u << i) || !peer || !pool_peer_is_usable(p, peer) ||
            is_avoided(t, peer->info.id) || blocks_of(t, &t->holders[i]) <= t->n_local)
            continue;
        int order = n > 0 ? compare(t, i, peer, out[0].holder, out[0].peer) : 0;
        n = order < 0 ? 0 : n;
        if (order <= 0)
            out[n++] = (struct choice){i, peer};
    }
    return n;
}

/* The entry with the shortest delay. Where loads are uneven, one of two that are drawn, so that
 * readers do not all run to one holder between two heartbeats. */
static uint32_t pick(struct pool *p, const struct choice *best, uint32_t n)
{
    uint32_t nearest = 0, a, b;

    for (uint32_t i = 0; i < n; i++)
        if (delay_of(best[i].peer) < delay_of(best[nearest].peer))
            nearest = i;
    if (n < 2 || !pool_balance_is_due(p))
        return nearest;
    a = pool_balance_draw(p, n);
    b = (a + 1 + pool_balance_draw(p, n - 1)) % n;
    return pool_balance_draws_second(p, best[a].peer->info.load, best[b].peer->info.load) ? b : a;
}

/* The best holder that was not tried. NULL: none. */
static struct pool_peer *choose(struct pool *p, struct pool_ticket *t)
{
    struct choice best[DIRECTORY_HOLDERS_MAX];
    uint32_t n = list_best(p, t, best);

    if (n == 0)
        return NULL;
    const struct choice *c = &best[pick(p, best, n)];
    t->tried |= 1u << c->holder;
    t->is_on_disk = t->holders[c->holder].tier >= DIRECTORY_TIER_DISK;
    return c->peer;
}

static bool has_untried(const struct pool_ticket *t)
{
    return t->n_holders > 0 && t->tried != (1u << t->n_holders) - 1;
}

/* --- asking --- */

static void search(struct pool *p, struct pool_ticket *t, uint32_t n_segments);

static bool send_ask(struct pool *p, struct pool_ticket *t)
{
    uint64_t left_ns = t->deadline_ns > p->now_ns ? t->deadline_ns - p->now_ns : 0;
    struct iovec keys = {.iov_base = t->keys, .iov_len = t->n * sizeof *t->keys};
    struct wire_message m = {.kind = WIRE_ASK,
                             .id = tag_of(p, t),
                             .n = t->n,
                             .n_there = t->n_local,
                             .ms = (uint32_t)(left_ns / POOL_MS) + 1};
    uint64_t try_ns = t->try_until_ns > p->now_ns ? t->try_until_ns - p->now_ns : 0;
    uint64_t disk_ms = (t->disk_ns < try_ns ? t->disk_ns : try_ns) / POOL_MS;

    if (m.ms > WIRE_MS_MAX)
        m.ms = WIRE_MS_MAX;
    m.disk_ms = disk_ms < m.ms ? (uint32_t)disk_ms : m.ms;
    if (left_ns == 0 || pool_conn_send(p, t->conn, &m, &keys, 1, POOL_SENDS_TICKET,
                                       (uint32_t)(t - p->tickets)) != OK)
        return false;
    t->n_sending++;
    t->stage = POOL_ASKING;
    t->asked_ns = p->now_ns;
    return true;
}

/* Begin to ask the peer. False: not possible now. */
static bool ask(struct pool *p, struct pool_ticket *t, struct pool_peer *peer)
{
    uint64_t left_ns = t->deadline_ns - p->now_ns;

    t->peer = (uint32_t)(peer - p->peers);
    t->conn = pool_peer_connect(p, peer);
    if (t->conn == POOL_NONE)
        return false;
    t->try_until_ns = has_untried(t) ? p->now_ns + left_ns / 2 : t->deadline_ns;
    t->stage = POOL_CONNECTING;
    if (p->conns[t->conn].stage == POOL_CONN_MEMBER && !p->conns[t->conn].is_mapping)
        return send_ask(p, t);
    return !p->conns[t->conn].failure;
}

/* Ask the next holder; without one, look for those of the segments before. */
static void ask_next(struct pool *p, struct pool_ticket *t)
{
    struct pool_peer *peer;

    t->stage = POOL_IDLE;
    t->conn = POOL_NONE;
    while (p->now_ns < t->deadline_ns && (peer = choose(p, t)))
        if (ask(p, t, peer))
            return;
    t->stage = POOL_IDLE;
    t->conn = POOL_NONE;
    if (!is_of_offer(p, t) && p->now_ns < t->deadline_ns && t->n_holders > 0 && t->at > 0 &&
        t->n_rounds < ROUNDS_MAX)
        search(p, t, t->at);
    else
        end_lookup(p, t, false);
}

/* Ask the directory for holders of the first n_segments. */
static void search(struct pool *p, struct pool_ticket *t, uint32_t n_segments)
{
    uint8_t(*keys)[DIRECTORY_SEGMENT_BYTES] = p->lookup_keys;

    for (uint32_t i = 0; i < n_segments; i++)
        memcpy(keys[i], t->keys[t->starts[i]].bytes, DIRECTORY_SEGMENT_BYTES);
    t->n_rounds++;
    t->n_holders = 0;
    t->stage = POOL_SEARCHING;
    p->is_busy = true;
    if (directory_lookup(p->directory, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])keys, n_segments,
                         tag_of(p, t)) != OK)
        end_lookup(p, t, false);
}

static void begin(struct pool *p, struct pool_ticket *t, uint64_t ns)
{
    t->is_forgotten = false;
    t->n_reads = t->n_rounds = t->tried = t->n_holders = t->n_named = 0;
    t->is_on_disk = false;
    t->conn = t->peer = POOL_NONE;
    t->began_ns = p->now_ns;
    t->deadline_ns = p->now_ns + ns;
    p->live.n_lookups++;
}

void pool_lookup_begin(struct pool *p, uint32_t ticket)
{
    begin(p, &p->tickets[ticket], p->lookup_ns);
    search(p, &p->tickets[ticket], p->tickets[ticket].n_starts);
}

void pool_lookup_ask(struct pool *p, uint32_t ticket, struct pool_peer *peer)
{
    struct pool_ticket *t = &p->tickets[ticket];

    begin(p, t, TAKE_LOOKUPS * p->lookup_ns);
    if (!ask(p, t, peer))
        end_lookup(p, t, false);
}

/* --- answers --- */

/* A holder of a segment has its first block; more of it may be of another branch. */
static void note_named(struct pool *p, struct pool_ticket *t)
{
    for (uint32_t i = 0; i < t->n_holders; i++)
        if (pool_peer_by_id(p, t->holders[i].id) && t->starts[t->at] >= t->n_named)
            t->n_named = t->starts[t->at] + 1;
}

/* Whether the deepest segment that somebody holds begins before what is missing here. Its holders
 * seldom have more of this branch, and those that had any lent it when they were asked first. */
static bool is_known(const struct pool_ticket *t)
{
    return t->is_again && t->n_holders > 0 && t->starts[t->at] < t->n_local;
}

void pool_lookup_found(struct pool *p, const struct directory_event *e)
{
    struct pool_ticket *t = ticket_of(p, e->tag);

    if (!t || t->stage != POOL_SEARCHING)
        return;
    t->at = e->at;
    t->tried = 0;
    t->n_holders = e->at < t->n_starts ? e->n_holders : 0;
    memcpy(t->holders, e->holders, sizeof t->holders);
    note_named(p, t);
    if (is_known(t))
        end_lookup(p, t, false);
    else
        ask_next(p, t);
}

void pool_lookup_not_now(struct pool *p, uint64_t tag)
{
    struct pool_ticket *t = ticket_of(p, tag);

    if (t && t->stage == POOL_SEARCHING)
        end_lookup(p, t, false);
}

/* The holder lends nothing: count it as stale, and withdraw its entry from the directory if the
 * segment itself is missing there. */
static void forget_holder(struct pool *p, const struct pool_ticket *t, uint32_t n_held)
{
    p->live.n_stale++;
    if (!is_of_offer(p, t) && n_held <= t->starts[t->at])
        directory_forget(p->directory, p->peers[t->peer].info.id, t->keys[t->starts[t->at]].bytes);
}

static void take_lease(struct pool *p, struct pool_ticket *t, const struct wire_message *m)
{
    struct pool_peer *peer = &p->peers[t->peer];
    uint64_t ns = m->ms * POOL_MS;

    /* The lender counts from a later time on, so its lease does not end before this one. */
    t->lease_ns = ns < p->pull_ns ? ns : p->pull_ns;
    t->deadline_ns = t->asked_ns + t->lease_ns;
    atomic_store_explicit(&t->until_ns, t->deadline_ns, memory_order_relaxed);
    t->found = (struct pool_found){.n_blocks = m->n,
                                   .n_named = t->n_named,
                                   .peer = peer->info.id,
                                   .latency_s = peer->latency_s,
                                   .bytes_per_s = pool_peer_rate(p, peer),
                                   .was_awaited = t->is_on_disk || m->was_awaited,
                                   .keeps = m->keeps,
                                   .attends = m->attends && p->config.attend};
    t->n_blocks_read = 0;
    memset(t->was_read + t->n_local, 0, m->n - t->n_local);
    for (uint32_t i = t->n_local; i < m->n; i++)
        t->is_near[i] = (m->n_tokens[i - t->n_local] & WIRE_ON_DEVICE) != 0;
    pool_map_use(p, t);
    end_lookup(p, t, true);
}

static bool names_device(const struct wire_message *m)
{
    for (uint32_t i = m->n_there; i < m->n; i++)
        if (m->n_tokens[i - m->n_there] & WIRE_ON_DEVICE)
            return true;
    return false;
}

void pool_lookup_lent(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];
    struct pool_ticket *t = ticket_of(p, m->id);

    if (!t || t->stage != POOL_ASKING || t->conn != conn) {
        if (c->n_asks_cancelled == 0)
            pool_conn_fail(p, conn, true, "an answer that nobody asked for");
        else
            c->n_asks_cancelled--;
        return;
    }
    if (m->n > t->n || m->n_there != t->n_local) {
        pool_conn_fail(p, conn, true, "more blocks than were asked for");
        return;
    }
    if (names_device(m) && c->map == POOL_NONE) {
        pool_conn_fail(p, conn, true, "blocks in memory that is not mapped");
        return;
    }
    pool_peer_answered(&p->peers[t->peer]);
    if (m->n > t->n_local) {
        take_lease(p, t, m);
        return;
    }
    if (m->reason == WIRE_STALE)
        forget_holder(p, t, t->n_local);
    ask_next(p, t);
}

void pool_lookup_member(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_N_TICKETS; i++) {
        struct pool_ticket *t = &p->tickets[i];
        if (t->stage == POOL_CONNECTING && t->conn == conn && !send_ask(p, t))
            ask_next(p, t);
    }
}

/* --- losing and forgetting --- */

void pool_lookup_lost(struct pool *p, uint32_t ticket)
{
    struct pool_ticket *t = &p->tickets[ticket];

    if (t->stage != POOL_HOLDING)
        return;
    if (pool_conn_is_member(p, t->conn))
        pool_conn_say(p, t->conn, &(struct wire_message){.kind = WIRE_CLOSE, .id = tag_of(p, t)});
    pool_query_lost(p, ticket, ERR_NOT_FOUND);
    t->stage = POOL_IDLE;
    t->conn = POOL_NONE;
    set_state(p, t, POOL_LOST);
}

void pool_lookup_read(struct pool *p, uint32_t ticket, const uint32_t *at, uint32_t n)
{
    struct pool_ticket *t = &p->tickets[ticket];

    if (t->stage != POOL_HOLDING)
        return;
    for (uint32_t i = 0; i < n; i++) {
        t->n_blocks_read += !t->was_read[at[i]];
        t->was_read[at[i]] = 1;
    }
    if (t->n_blocks_read == t->found.n_blocks - t->n_local && t->n_reads == 0 &&
        !is_of_offer(p, t) && atomic_load_explicit(&t->ends_when_read, memory_order_relaxed))
        pool_lookup_lost(p, ticket);
}

void pool_lookup_closed(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_N_TICKETS; i++) {
        struct pool_ticket *t = &p->tickets[i];
        if (t->conn != conn || t->stage == POOL_IDLE)
            continue;
        if (t->stage == POOL_HOLDING) {
            pool_lookup_lost(p, i);
            pool_read_end_all(p, i, ERR_NOT_FOUND);
        } else {
            ask_next(p, t);
        }
    }
}

void pool_lookup_release(struct pool *p, uint32_t ticket)
{
    p->tickets[ticket].is_forgotten = true;
    release(p, &p->tickets[ticket]);
}

void pool_lookup_forget(struct pool *p, uint32_t ticket)
{
    struct pool_ticket *t = &p->tickets[ticket];

    ASSERT(t->n_reads == 0 && !t->is_forgotten);
    if (t->stage == POOL_HOLDING) {
        pool_conn_say(p, t->conn, &(struct wire_message){.kind = WIRE_CLOSE, .id = tag_of(p, t)});
    } else if (t->stage != POOL_IDLE) {
        cancel_ask(p, t);
    }
    t->stage = POOL_IDLE;
    t->conn = POOL_NONE;
    if (is_of_offer(p, t))
        pool_take_forgotten(p, ticket - POOL_TICKETS_MAX);
    else
        pool_lookup_release(p, ticket);
}

void pool_lookup_sent(struct pool *p, uint32_t ticket)
{
    struct pool_ticket *t = &p->tickets[ticket];

    t->n_sending--;
    if (t->is_forgotten)
        release(p, t);
}

/* --- deadlines --- */

static void give_up_holder(struct pool *p, struct pool_ticket *t)
{
    struct pool_peer *peer = &p->peers[t->peer];

    if (t->stage == POOL_ASKING)
        pool_peer_timed_out(p, peer);
    cancel_ask(p, t);
    if (p->now_ns < t->deadline_ns) {
        ask_next(p, t);
        return;
    }
    p->live.n_lookup_timeouts++;
    end_lookup(p, t, false);
}

void pool_lookup_timers(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_N_TICKETS; i++) {
        struct pool_ticket *t = &p->tickets[i];
        if (t->stage == POOL_IDLE)
            continue;
        uint64_t until_ns = t->deadline_ns;
        if ((t->stage == POOL_CONNECTING || t->stage == POOL_ASKING) && t->try_until_ns < until_ns)
            until_ns = t->try_until_ns;
        if (p->now_ns < until_ns) {
            pool_due(p, until_ns);
        } else if (t->stage == POOL_HOLDING) {
            pool_query_lost(p, i, ERR_TIMEOUT);
            pool_read_end_all(p, i, ERR_TIMEOUT);
            if (t->n_reads == 0) /* else a connection is to be closed first, or a copy ends */
                pool_lookup_lost(p, i);
        } else if (t->stage == POOL_SEARCHING) {
            p->live.n_lookup_timeouts++;
            end_lookup(p, t, false);
        } else {
            give_up_holder(p, t);
        }
    }
}
