/* pool_lend.c - paths that this instance lends: asks for the engine, leases, and the blocks that
 * peers read from them.
 *
 * The engine pins a lent path, and gets it back by `returns` once no payload of it is under way.
 * Each peer has a share of the leases and a bounded number of answers under way; waiting reads are
 * served one per peer in turn. */
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "cache/pool/pool_inner.h"

#define SHARE_MIN 4u /* of each peer, however many there are */

static void say_lent(struct pool *p, uint32_t conn, uint64_t ask, uint32_t n_there,
                     enum wire_reason reason)
{
    pool_conn_say(
        p, conn,
        &(struct wire_message){.kind = WIRE_LENT, .id = ask, .n_there = n_there, .reason = reason});
}

/* --- the end of a lease --- */

static void free_lease(struct pool_lease *l)
{
    l->stage = POOL_LEASE_FREE;
    l->conn = POOL_NONE;
}

/* The peer does not read it any more: give it back to the engine, once no payload is under way. */
static void end_lease(struct pool *p, struct pool_lease *l)
{
    uint32_t no = (uint32_t)(l - p->leases);

    if (l->stage == POOL_LEASE_LENT && l->conn != POOL_NONE)
        p->conns[l->conn].n_leases--;
    l->stage = POOL_LEASE_ENDS;
    if (l->n_sending + l->n_attending > 0)
        return;
    p->live.n_lent -= l->n_lent - l->n_there;
    l->stage = POOL_LEASE_BACK;
    l->conn = POOL_NONE;
    p->has_posted_later = true; /* its blocks may as well be evicted a little later */
    bool ok = spsc_push(p->returns, &no);
    ASSERT(ok);
}

void pool_lend_back(struct pool *p, uint32_t lease)
{
    ASSERT(p->leases[lease].stage == POOL_LEASE_BACK);
    free_lease(&p->leases[lease]);
}

void pool_lend_sent(struct pool *p, uint32_t lease)
{
    struct pool_lease *l = &p->leases[lease];

    l->n_sending--;
    if (l->stage == POOL_LEASE_ENDS)
        end_lease(p, l);
}

void pool_lend_attended(struct pool *p, uint32_t lease)
{
    struct pool_lease *l = &p->leases[lease];

    l->n_attending--;
    if (l->stage == POOL_LEASE_ENDS)
        end_lease(p, l);
}

/* --- asks --- */

uint32_t pool_lend_share(const struct pool *p, uint32_t n_all)
{
    uint32_t n_askers = 0;

    for (uint32_t i = 0; i < POOL_N_CONNS; i++)
        n_askers += p->conns[i].stage == POOL_CONN_MEMBER && !p->conns[i].is_asker;
    uint32_t n = n_all / (n_askers ? n_askers : 1);
    return n > SHARE_MIN ? n : SHARE_MIN;
}

struct pool_lease *pool_lend_find(struct pool *p, uint32_t conn, uint64_t ask)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++) {
        struct pool_lease *l = &p->leases[i];
        if (l->stage != POOL_LEASE_FREE && l->stage != POOL_LEASE_BACK && l->conn == conn &&
            l->ask == ask)
            return l;
    }
    return NULL;
}

void pool_lend_ask(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];
    uint32_t no = 0;

    if (pool_lend_find(p, conn, m->id)) {
        pool_conn_fail(p, conn, true, "the same question twice");
        return;
    }
    while (no < POOL_LEASES_MAX && p->leases[no].stage != POOL_LEASE_FREE)
        no++;
    if (no == POOL_LEASES_MAX || c->n_leases >= pool_lend_share(p, POOL_LEASES_MAX)) {
        transport_receive(p->transport, c->number, NULL, 0, 0);
        say_lent(p, conn, m->id, m->n_there, WIRE_BUSY);
        return;
    }
    struct pool_lease *l = &p->leases[no];
    struct iovec to = {.iov_base = l->keys, .iov_len = m->n * sizeof *l->keys};
    l->stage = POOL_LEASE_ARRIVES;
    l->number = ++p->n_leases_ever;
    l->conn = conn;
    l->ask = m->id;
    l->n = m->n;
    l->n_there = m->n_there;
    l->until_ns = p->now_ns + m->ms * POOL_MS;
    l->disk_ns = m->disk_ms * POOL_MS;
    l->is_closed = false;
    l->is_near = c->reads_device;
    l->yields = c->peer_id > p->info.id;
    l->n_sending = l->n_attending = l->n_lent = l->n_read = 0;
    c->n_leases++;
    transport_receive(p->transport, c->number, &to, 1, pool_tag(POOL_TAG_LEASE, no, 0));
}

void pool_lend_received(struct pool *p, uint32_t lease)
{
    struct pool_lease *l = &p->leases[lease];

    ASSERT(l->stage == POOL_LEASE_ARRIVES);
    /* The name of a segment is that of its first block, so a holder of it often has another branch:
     * the inventory knows at once, and the engine is busy with a step. */
    l->is_offered = pool_offer_has(p, l->keys, l->n);
    if (!inventory_may_have(p->inventory, &l->keys[l->n_there]) && !l->is_offered) {
        say_lent(p, l->conn, l->ask, l->n_there, WIRE_STALE);
        p->conns[l->conn].n_leases--;
        free_lease(l);
        return;
    }
    l->is_copy = pool_offer_is_copy(p, p->conns[l->conn].peer_id, l->keys, l->n);
    bool ok = spsc_push(p->asks, &lease);
    ASSERT(ok);
    l->stage = POOL_LEASE_ASKED;
    p->has_posted = true;
}

static uint32_t lease_ms(const struct pool *p)
{
    uint64_t ms = p->pull_ns / POOL_MS;

    return ms < WIRE_MS_MAX ? (uint32_t)ms : WIRE_MS_MAX;
}

static void say_lease(struct pool *p, struct pool_lease *l)
{
    struct wire_message m = {.kind = WIRE_LENT,
                             .id = l->ask,
                             .n = l->n_lent,
                             .n_there = l->n_there,
                             .ms = lease_ms(p),
                             .attends = p->config.attend != NULL,
                             .keeps = (l->flags & POOL_KEEPS) != 0,
                             .was_awaited = (l->flags & POOL_AWAITED) != 0,
                             .n_tokens = l->n_tokens};

    l->until_ns = p->now_ns + m.ms * POOL_MS;
    pool_conn_say(p, l->conn, &m);
}

void pool_lend_renew(struct pool *p, struct pool_lease *l)
{
    l->until_ns = p->now_ns + lease_ms(p) * POOL_MS;
}

/* The engine has answered. Each ask is answered by exactly one LENT. */
void pool_lend_answer(struct pool *p, uint32_t lease)
{
    struct pool_lease *l = &p->leases[lease];
    bool is_wanted = l->conn != POOL_NONE && !l->is_closed && p->now_ns < l->until_ns &&
                     (!l->is_near || p->conns[l->conn].reads_device);

    ASSERT(l->stage == POOL_LEASE_ASKED);
    if (l->n_lent == 0 || !is_wanted) {
        if (l->conn != POOL_NONE) {
            /* An engine that lends nothing of what is here has lent too much already. */
            bool is_here = l->n_lent > 0 || inventory_has(p->inventory, &l->keys[l->n_there]);
            say_lent(p, l->conn, l->ask, l->n_there, is_here ? WIRE_BUSY : WIRE_STALE);
            p->conns[l->conn].n_leases--;
        }
        if (l->n_lent == 0) {
            free_lease(l);
            return;
        }
        p->live.n_lent += l->n_lent - l->n_there;
        l->conn = POOL_NONE;
        l->stage = POOL_LEASE_LENT;
        end_lease(p, l);
        return;
    }
    memset(l->has_crc, 0, l->n_lent - l->n_there);
    p->live.n_lent += l->n_lent - l->n_there;
    l->stage = POOL_LEASE_LENT;
    say_lease(p, l);
}

void pool_lend_close(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_lease *l = pool_lend_find(p, conn, m->id);

    if (!l)
        return; /* it has ended meanwhile */
    l->is_closed = true;
    if (l->stage == POOL_LEASE_LENT)
        end_lease(p, l);
}

void pool_lend_closed(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++) {
        struct pool_lease *l = &p->leases[i];
        if (l->conn != conn || l->stage == POOL_LEASE_FREE || l->stage == POOL_LEASE_BACK)
            continue;
        if (l->stage == POOL_LEASE_ARRIVES)
            free_lease(l);
        else if (l->stage == POOL_LEASE_LENT)
            end_lease(p, l);
        if (l->stage == POOL_LEASE_ASKED || l->stage == POOL_LEASE_ENDS)
            l->conn = POOL_NONE;
    }
    p->n_lend_reads -= p->conns[conn].n_reads;
    p->conns[conn].n_leases = p->conns[conn].n_reads = 0;
}

/* --- reads --- */

static void say_gone(struct pool *p, uint32_t conn, uint64_t read)
{
    pool_conn_say(p, conn, &(struct wire_message){.kind = WIRE_GONE, .read = read});
}

void pool_lend_read(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];
    struct pool_lease *l = pool_lend_find(p, conn, m->id);

    if (c->n_reads == POOL_READS_QUEUED_MAX) {
        pool_conn_fail(p, conn, true, "too many reads");
        return;
    }
    if (!l || l->stage != POOL_LEASE_LENT) {
        say_gone(p, conn, m->read);
        return;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->at[i] < l->n_there || m->at[i] >= l->n_lent) {
            pool_conn_fail(p, conn, true, "a read of a block that is not lent");
            return;
        }
        if (!l->memory[m->at[i] - l->n_there] != !l->memory[m->at[0] - l->n_there]) {
            pool_conn_fail(p, conn, true, "a read of blocks in two memories");
            return;
        }
    }
    uint32_t at = (c->reads_first + c->n_reads++) % POOL_READS_QUEUED_MAX;
    p->n_lend_reads++;
    c->reads[at] = (struct pool_lend_read){
        .read = m->read, .lease_number = l->number, .lease = (uint32_t)(l - p->leases), .n = m->n};
    memcpy(c->reads[at].at, m->at, sizeof m->at);
}

static uint32_t crc_of(const struct pool *p, struct pool_lease *l, uint32_t i)
{
    if (!l->has_crc[i]) {
        if (l->memory[i])
            l->crc[i] = hash_crc32c(0, l->memory[i], p->self.block_bytes);
        l->has_crc[i] = 1;
        l->n_read++;
    }
    return l->crc[i];
}

/* Send the blocks, or say where they lie in device memory. False: later. */
static bool send_blocks(struct pool *p, uint32_t conn, const struct pool_lend_read *r)
{
    struct pool_lease *l = &p->leases[r->lease];
    bool is_near = l->memory[r->at[0] - l->n_there] == NULL;
    struct wire_message m = {.kind = is_near ? WIRE_PLACES : WIRE_DATA, .read = r->read, .n = r->n};
    struct iovec blocks[POOL_READ_MAX];

    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t at = r->at[i] - l->n_there;
        m.at[i] = r->at[i];
        m.crc[i] = crc_of(p, l, at);
        m.place[i] = l->place[at];
        memcpy(m.key[i], l->keys[r->at[i]].bytes, WIRE_KEY_BYTES);
        /* iovec has no const; the transport only reads */
        blocks[i] = (struct iovec){(void *)(uintptr_t)l->memory[at], p->self.block_bytes};
    }
    if (is_near)
        return pool_conn_say(p, conn, &m);
    if (pool_conn_send(p, conn, &m, blocks, r->n, POOL_SENDS_LEASE, r->lease) != OK)
        return false;
    l->n_sending++;
    p->conns[conn].n_data_out++;
    return true;
}

/* Answer the oldest read of this peer. False: it must wait. */
static bool serve(struct pool *p, uint32_t conn)
{
    struct pool_conn *c = &p->conns[conn];
    const struct pool_lend_read *r = &c->reads[c->reads_first];
    struct pool_lease *l = &p->leases[r->lease];

    if (l->number == r->lease_number && l->stage == POOL_LEASE_LENT) {
        if (!send_blocks(p, conn, r))
            return false;
        for (uint32_t i = 0; i < r->n && !l->is_copy; i++)
            pool_balance_count(p, &l->keys[r->at[i]],
                               l->n_tokens[r->at[i] - l->n_there] & ~WIRE_ON_DEVICE);
        p->live.n_lent_blocks += r->n;
        p->live.n_lent_bytes += r->n * p->self.block_bytes;
    } else {
        say_gone(p, conn, r->read);
    }
    c->reads_first = (c->reads_first + 1) % POOL_READS_QUEUED_MAX;
    c->n_reads--;
    p->n_lend_reads--;
    return true;
}

/* The tiles of a peer's queries go out behind its blocks, so a peer that sends queries gets its
 * blocks by fewer answers at a time. */
static uint32_t data_out_max(const struct pool *p, const struct pool_conn *c)
{
    return p->now_ns < c->query_ns + POOL_SECOND && c->query_ns > 0 ? 1 : POOL_DATA_OUT_MAX;
}

void pool_lend_pump(struct pool *p)
{
    uint32_t first = p->at_conn;

    p->at_conn = (first + 1) % POOL_N_CONNS;
    for (uint32_t i = 0; i < POOL_N_CONNS && p->n_lend_reads > 0; i++) {
        uint32_t no = (first + i) % POOL_N_CONNS;
        struct pool_conn *c = &p->conns[no];
        if (c->n_reads == 0 || !pool_conn_is_member(p, no) || c->n_data_out >= data_out_max(p, c))
            continue;
        if (serve(p, no))
            p->is_busy = true; /* the next of its reads has to wait for the others' */
    }
}

/* --- deadlines --- */

/* A lease ends at its time. A peer that then still takes payload of it has as long once more. */
void pool_lend_timers(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++) {
        struct pool_lease *l = &p->leases[i];
        if (l->stage == POOL_LEASE_LENT && p->now_ns >= l->until_ns) {
            p->live.n_lease_timeouts++;
            end_lease(p, l);
        } else if (l->stage == POOL_LEASE_ENDS && l->n_sending > 0 && l->conn != POOL_NONE &&
                   p->now_ns >= l->until_ns + p->pull_ns) {
            pool_conn_fail(p, l->conn, true, "the peer reads too slowly");
        }
        if (l->stage == POOL_LEASE_LENT)
            pool_due(p, l->until_ns);
    }
}
