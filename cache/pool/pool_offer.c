/* pool_offer.c - paths that an instance hands over, because it leaves or to balance load, on both
 * sides.
 *
 * The offering side chooses a peer and sends the path; the peer asks for it like for any other path
 * and tells its engine; when the engine has forgotten the ticket, the peer's inventory says whether
 * the path lies there now. */
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool_inner.h"

#define TRIES_MAX 3u                  /* peers that are offered one path */
#define GRACE_NS (500 * POOL_MS)      /* between the engine's forgetting and its cache events */
#define CHECK_NS (500 * POOL_MS)      /* for the directory */
#define TRY_MORE_NS (2 * POOL_SECOND) /* for one peer, beside the time of a lease */

/* --- the offering side --- */

static void release(struct pool *p, struct pool_offer_slot *o)
{
    if (o->stage != POOL_OFFER_ENDS || o->n_sending > 0)
        return;
    o->stage = POOL_OFFER_FREE;
    atomic_store_explicit(&o->is_used, 0, memory_order_release);
    atomic_fetch_sub_explicit(&p->n_offers, 1, memory_order_release);
    p->has_posted = true;
}

static void end_offer(struct pool *p, struct pool_offer_slot *o, bool is_safe)
{
    p->live.n_handed_over += is_safe && o->why == POOL_OFFER_HANDS_OVER;
    p->live.n_copies += is_safe && o->why == POOL_OFFER_COPY;
    p->live.n_moves += is_safe && o->why == POOL_OFFER_MOVE;
    o->stage = POOL_OFFER_ENDS;
    o->conn = POOL_NONE;
    o->generation++;
    release(p, o);
}

static bool was_tried(const struct pool_offer_slot *o, uint64_t id)
{
    for (uint32_t i = 0; i < o->n_tries; i++)
        if (o->tried[i] == id)
            return true;
    return false;
}

/* Whether the path may be offered to the peer. */
static bool may_offer(const struct pool *p, const struct pool_offer_slot *o,
                      const struct pool_peer *peer)
{
    return peer->is_used && pool_peer_is_usable(p, peer) && !peer->info.is_leaving &&
           (o->to == 0 || peer->info.id == o->to) && !was_tried(o, peer->info.id);
}

/* The peer with most room: free blocks less what it was offered since it said so. NULL: none. */
static struct pool_peer *choose(struct pool *p, const struct pool_offer_slot *o)
{
    struct pool_peer *best = NULL;
    int64_t best_room = 0;

    for (uint32_t i = 0; i < p->n_peers; i++) {
        struct pool_peer *peer = &p->peers[i];
        int64_t room = (int64_t)peer->info.n_free_blocks - peer->n_offered_blocks;
        if (!may_offer(p, o, peer) || (best && room <= best_room))
            continue;
        best = peer;
        best_room = room;
    }
    return best;
}

static bool send_offer(struct pool *p, struct pool_offer_slot *o)
{
    uint32_t no = (uint32_t)(o - p->offers_out);
    struct iovec path[2] = {{.iov_base = o->keys, .iov_len = o->n * sizeof *o->keys},
                            {.iov_base = o->meta, .iov_len = (size_t)o->n * WIRE_META_BYTES}};
    struct wire_message m = {
        .kind = WIRE_OFFER, .id = pool_tag(POOL_TAG_OFFER, no, o->generation), .n = o->n};

    if (pool_conn_send(p, o->conn, &m, path, 2, POOL_SENDS_OFFER, no) != OK)
        return false;
    o->n_sending++;
    o->stage = POOL_OFFER_WAITS;
    return true;
}

/* Offer the path to the next peer. */
static void offer_next(struct pool *p, struct pool_offer_slot *o)
{
    struct pool_peer *peer;

    o->conn = POOL_NONE;
    o->generation++;
    while (o->n_tries < TRIES_MAX && (peer = choose(p, o))) {
        o->tried[o->n_tries++] = peer->info.id;
        o->conn = pool_peer_connect(p, peer);
        if (o->conn == POOL_NONE)
            continue;
        o->stage = POOL_OFFER_CONNECTS;
        o->deadline_ns = p->now_ns + p->pull_ns + TRY_MORE_NS;
        if (p->conns[o->conn].stage != POOL_CONN_MEMBER || send_offer(p, o)) {
            peer->n_offered_blocks += o->n;
            return;
        }
    }
    end_offer(p, o, false);
}

void pool_offer_begin(struct pool *p, uint32_t offer)
{
    struct pool_offer_slot *o = &p->offers_out[offer];

    o->n_tries = 0;
    o->conn = POOL_NONE;
    if (o->why != POOL_OFFER_HANDS_OVER) {
        p->live.n_copies_offered++;
        p->balance.budget -= (double)o->n * (double)p->self.block_bytes;
        offer_next(p, o);
        return;
    }
    p->live.n_offered++;
    o->stage = POOL_OFFER_CHECKS;
    o->deadline_ns = p->now_ns + CHECK_NS;
    memcpy(p->lookup_keys[0], o->keys[o->last_start].bytes, DIRECTORY_SEGMENT_BYTES);
    if (directory_lookup(p->directory, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])p->lookup_keys, 1,
                         pool_tag(POOL_TAG_OFFER, offer, o->generation)) != OK)
        offer_next(p, o);
}

/* A holder of the last segment holds all before it, too. */
void pool_offer_checked(struct pool *p, const struct directory_event *e)
{
    uint32_t no = pool_tag_index(e->tag);
    struct pool_offer_slot *o = no < POOL_OFFERS_MAX ? &p->offers_out[no] : NULL;

    if (!o || o->generation != (uint32_t)e->tag || o->stage != POOL_OFFER_CHECKS)
        return;
    for (uint32_t i = 0; e->kind == DIRECTORY_FOUND && i < e->n_holders; i++) {
        const struct pool_peer *peer = pool_peer_by_id(p, e->holders[i].id);
        if (peer && peer->is_listed && !peer->info.is_leaving &&
            e->holders[i].n_blocks >= o->n - o->last_start) {
            end_offer(p, o, true);
            return;
        }
    }
    offer_next(p, o);
}

void pool_offer_member(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++) {
        struct pool_offer_slot *o = &p->offers_out[i];
        if (o->stage == POOL_OFFER_CONNECTS && o->conn == conn && !send_offer(p, o))
            offer_next(p, o);
    }
}

void pool_offer_done(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    uint32_t no = pool_tag_index(m->id);
    struct pool_offer_slot *o = no < POOL_OFFERS_MAX ? &p->offers_out[no] : NULL;

    if (!o || pool_tag_kind(m->id) != POOL_TAG_OFFER || o->generation != (uint32_t)m->id ||
        o->stage != POOL_OFFER_WAITS || o->conn != conn)
        return; /* of an offer that took too long */
    if (m->is_taken)
        end_offer(p, o, true);
    else
        offer_next(p, o);
}

void pool_offer_sent(struct pool *p, uint32_t offer)
{
    p->offers_out[offer].n_sending--;
    release(p, &p->offers_out[offer]);
}

/* --- the peer's side --- */

static struct pool_ticket *ticket_of(struct pool *p, const struct pool_taken *k)
{
    return &p->tickets[POOL_TICKETS_MAX + (uint32_t)(k - p->taken)];
}

/* The offer is over: tell the offering side, and free the slot with its ticket. */
static void end_taken(struct pool *p, struct pool_taken *k, bool is_taken)
{
    if (k->conn != POOL_NONE)
        pool_conn_say(p, k->conn,
                      &(struct wire_message){.kind = WIRE_DONE, .id = k->id, .is_taken = is_taken});
    k->conn = POOL_NONE;
    k->is_arriving = k->is_pulled_soon = false;
    pool_lookup_release(p, (uint32_t)(ticket_of(p, k) - p->tickets));
}

void pool_take_offer(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    uint32_t no = 0;

    while (no < POOL_OFFERS_MAX && p->taken[no].is_used)
        no++;
    if (no == POOL_OFFERS_MAX || p->info.is_leaving) {
        transport_receive(p->transport, p->conns[conn].number, NULL, 0, 0);
        pool_conn_say(p, conn, &(struct wire_message){.kind = WIRE_DONE, .id = m->id});
        return;
    }
    struct pool_taken *k = &p->taken[no];
    struct pool_ticket *t = ticket_of(p, k);
    struct iovec to[2] = {{.iov_base = t->keys, .iov_len = m->n * sizeof *t->keys},
                          {.iov_base = k->wire_meta, .iov_len = (size_t)m->n * WIRE_META_BYTES}};
    k->is_used = k->is_arriving = true;
    k->is_pulled_soon = false;
    k->conn = conn;
    k->id = m->id;
    t->n = m->n;
    t->n_local = t->n_starts = t->n_avoid = 0;
    transport_receive(p->transport, p->conns[conn].number, to, 2, pool_tag(POOL_TAG_TAKEN, no, 0));
}

static bool decode_meta(struct pool_taken *k, uint32_t n)
{
    struct wire_meta meta;

    for (uint32_t i = 0; i < n; i++) {
        if (wire_get_meta(&meta, k->wire_meta + (size_t)i * WIRE_META_BYTES) != OK)
            return false;
        k->meta[i] = (struct pool_meta){.n_tokens = meta.n_tokens,
                                        .starts_segment = meta.starts_segment,
                                        .is_public = meta.is_public,
                                        .is_registered = meta.is_registered,
                                        .depth = meta.depth};
    }
    return k->meta[0].starts_segment;
}

void pool_take_received(struct pool *p, uint32_t taken)
{
    struct pool_taken *k = &p->taken[taken];
    struct pool_ticket *t = ticket_of(p, k);

    k->is_arriving = false;
    if (!decode_meta(k, t->n)) {
        pool_conn_fail(p, k->conn, true, "a broken offer");
        end_taken(p, k, false);
        return;
    }
    struct pool_peer *peer = pool_peer_by_id(p, p->conns[k->conn].peer_id);
    if (!peer || !pool_peer_is_usable(p, peer)) {
        end_taken(p, k, false);
        return;
    }
    t->n_local = inventory_n_in_memory(p->inventory, t->keys, t->n);
    if (t->n_local == t->n) {
        end_taken(p, k, true);
        return;
    }
    atomic_store_explicit(&t->state, POOL_LOOKING, memory_order_relaxed);
    pool_lookup_ask(p, POOL_TICKETS_MAX + taken, peer);
}

void pool_take_looked(struct pool *p, uint32_t taken, bool is_found)
{
    struct pool_taken *k = &p->taken[taken];
    struct pool_ticket *t = ticket_of(p, k);

    if (!is_found) {
        end_taken(p, k, false);
        return;
    }
    t->n = t->found.n_blocks;
    bool ok = spsc_push(p->offers, &taken);
    ASSERT(ok);
}

void pool_take_forgotten(struct pool *p, uint32_t taken)
{
    struct pool_taken *k = &p->taken[taken];

    k->is_pulled_soon = true;
    k->deadline_ns = p->now_ns + GRACE_NS;
}

/* --- both --- */

bool pool_offer_is_copy(const struct pool *p, uint64_t to, const struct kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++) {
        const struct pool_offer_slot *o = &p->offers_out[i];
        if (o->stage == POOL_OFFER_WAITS && o->why == POOL_OFFER_COPY && o->to == to && n == o->n &&
            memcmp(&o->keys[n - 1], &keys[n - 1], sizeof *keys) == 0)
            return true;
    }
    return false;
}

bool pool_offer_balances(const struct pool *p)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++)
        if (p->offers_out[i].stage != POOL_OFFER_FREE &&
            p->offers_out[i].why != POOL_OFFER_HANDS_OVER)
            return true;
    return false;
}

bool pool_offer_has(const struct pool *p, const struct kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++) {
        const struct pool_offer_slot *o = &p->offers_out[i];
        if (o->stage == POOL_OFFER_WAITS && o->to != 0 && n <= o->n &&
            memcmp(&o->keys[n - 1], &keys[n - 1], sizeof *keys) == 0)
            return true;
    }
    return false;
}

void pool_offer_closed(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++) {
        struct pool_offer_slot *o = &p->offers_out[i];
        struct pool_taken *k = &p->taken[i];
        if (o->conn == conn && (o->stage == POOL_OFFER_CONNECTS || o->stage == POOL_OFFER_WAITS))
            offer_next(p, o);
        if (!k->is_used || k->conn != conn)
            continue;
        k->conn = POOL_NONE;
        if (k->is_arriving)
            end_taken(p, k, false);
    }
}

void pool_offer_timers(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_OFFERS_MAX; i++) {
        struct pool_offer_slot *o = &p->offers_out[i];
        struct pool_taken *k = &p->taken[i];
        if (o->stage != POOL_OFFER_FREE && o->stage != POOL_OFFER_ENDS &&
            p->now_ns >= o->deadline_ns)
            offer_next(p, o);
        if (k->is_used && k->is_pulled_soon) {
            bool is_here =
                inventory_has(p->inventory, &ticket_of(p, k)->keys[ticket_of(p, k)->n - 1]);
            if (is_here || p->now_ns >= k->deadline_ns)
                end_taken(p, k, is_here);
        }
    }
}
