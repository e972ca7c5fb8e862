/* kv_store_remote.c - lookups in the pool of instances, and the remote nodes that they find.
 *
 * A lookup that is found gives handles of blocks that another instance lends for a short time. Its
 * blocks enter the tree as remote nodes, behind the part of the path that is known here, and are
 * read like nodes on disk (kv_store_load.c). Requests that wait for the same blocks share a lookup.
 * When no request needs it any more, its lease is over, or its peer is gone, its remote nodes leave
 * the tree, those behind others first; a node that is being read leaves when the read is over. The
 * ticket is given back when no handle and no read refers to it. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/pool/pool.h"
#include "cache/store/kv_store_slow.h"

/* Weight of a new value in the moving mean of the time of lookups that found something, and the
 * mean before the first one: a round trip to the directory and one to a peer, in one network.
 * Lookups that ran into their deadline do not count: they would end all further ones. */
#define MEAN_SHARE 0.2
#define LEFT_OUT_MAX 63u /* lookups, for their time, before one is made all the same */
#define LOOKUP_S_FIRST 1e-3
/* Blocks that sequences here have promised to compute; more are not promised. */
#define N_COMING_MAX 16384u
/* Destroying the store waits for reads that long beyond their deadline. */
#define CLOSE_WAIT_NS UINT64_C(1000000000)
#define CLOSE_PAUSE_NS UINT64_C(1000000)

/* --- life --- */

enum status init_remote(struct store *st, struct tier *t, struct pool *pool)
{
    struct store_remote *r = calloc(1, sizeof *r);

    if (!r)
        return ERR_NOMEM;
    st->remote = r;
    st->slow[CACHE_REMOTE] = &r->slow;
    r->slow.which = CACHE_REMOTE;
    r->slow.t = t;
    r->slow.timeout_ns = st->config.remote.pull_ms * UINT64_C(1000000);
    r->pool = pool;
    r->lookup_s = LOOKUP_S_FIRST;
    r->slow.units = calloc(N_UNITS, sizeof *r->slow.units);
    r->lookups = calloc(POOL_TICKETS_MAX, sizeof *r->lookups);
    r->blocks = calloc(POOL_PATH_MAX, sizeof *r->blocks);
    r->path_keys = calloc(POOL_PATH_MAX, sizeof *r->path_keys);
    r->path_meta = calloc(POOL_PATH_MAX, sizeof *r->path_meta);
    st->memory_bytes +=
        sizeof *r + N_UNITS * sizeof *r->slow.units + POOL_TICKETS_MAX * sizeof *r->lookups;
    if (!r->slow.units || !r->lookups || !r->blocks || !r->path_keys || !r->path_meta)
        return ERR_NOMEM;
    enum status s = map_init(&r->coming, N_COMING_MAX);
    return s == OK ? map_init(&r->hesitant, N_COMING_MAX) : s;
}

static void free_lookup(struct store_remote *r, struct lookup *l)
{
    free(l->keys);
    free(l->meta);
    *l = (struct lookup){.ticket = POOL_NO_TICKET};
    r->n_lookups--;
}

/* Tickets are given back when no read of them is under way. */
static void wait_for_reads(const struct slow_tier *w)
{
    uint64_t until = clock_now_ns() + w->timeout_ns + CLOSE_WAIT_NS;
    struct tier_done done;

    while (tier_is_busy(w->t) && clock_now_ns() < until)
        if (tier_poll(w->t, &done, 1) == 0)
            clock_sleep_ns(CLOSE_PAUSE_NS);
}

void fini_remote(struct store *st)
{
    struct store_remote *r = st->remote;

    if (!r)
        return;
    wait_for_reads(&r->slow);
    for (uint32_t i = 0; r->lookups && i < POOL_TICKETS_MAX; i++) {
        struct lookup *l = &r->lookups[i];

        if (!l->is_used)
            continue;
        if (l->ticket != POOL_NO_TICKET)
            pool_forget(r->pool, l->ticket);
        free_lookup(r, l);
    }
    map_fini(&r->coming);
    map_fini(&r->hesitant);
    free(r->slow.units);
    fini_near(st);
    free(r->lookups);
    free(r->blocks);
    free(r->leaving);
    free(r->path_keys);
    free(r->path_meta);
    free(r);
    st->remote = NULL;
}

/* --- what was found enters the tree --- */

static uint32_t number_of(const struct store_remote *r, const struct lookup *l)
{
    return (uint32_t)(l - r->lookups);
}

/* The number of blocks from i on that become one node. */
static uint32_t node_length(const struct store *st, const struct lookup *l, uint32_t i, uint32_t n)
{
    const struct pool *p = st->remote->pool;
    uint32_t k = 1;

    /* A node is read by one read, from one memory. */
    while (k < NODE_N_BLOCKS_MAX && i + k < n && !l->meta[i + k].starts_segment &&
           pool_is_near(p, l->ticket, i + k) == pool_is_near(p, l->ticket, i))
        k++;
    return k;
}

/* Enter blocks [i, i + n) of the path as a node behind `parent`. KTREE_NONE: not possible. */
static uint32_t enter_node(struct store *st, const struct lookup *l, uint32_t parent, uint32_t i,
                           uint32_t n)
{
    struct tier *t = st->remote->slow.t;
    uint32_t slots[NODE_N_BLOCKS_MAX], n_tokens = 0, node;

    if (!tier_reserve(t, slots, n))
        return KTREE_NONE;
    tier_remote_name(t, slots, n, number_of(st->remote, l), i);
    for (uint32_t k = 0; k < n; k++)
        n_tokens += l->meta[i + k].n_tokens;
    node = node_enter(
        st, &(struct node_birth){.parent = parent,
                                 .depth = l->meta[i].depth,
                                 .pos0 = parent == KTREE_ROOT
                                             ? 0
                                             : st->info[parent].pos0 + st->info[parent].n_tokens,
                                 .n_tokens = n_tokens,
                                 .tier = CACHE_REMOTE,
                                 .keys = l->keys + i,
                                 .slots = slots,
                                 .n = n,
                                 .starts_segment = l->meta[i].starts_segment,
                                 .is_public = l->meta[i].is_public});
    if (node == KTREE_NONE)
        tier_drop(t, slots, n, false);
    return node;
}

/* Enter the first n blocks of the path, as far as they are not known. */
static void enter_found(struct store *st, struct lookup *l, uint32_t n)
{
    struct ktree_match m = ktree_match(st->tree, l->keys, n);
    uint32_t node = m.node, k;

    /* Blocks that were here when the pool was asked are not lent, and may have been evicted since.
     * */
    if (m.n_blocks == n || m.n_blocks < l->n_local)
        return;
    if (node != KTREE_ROOT && (st->info[node].is_orphan || st->info[node].tail_of != KTREE_NONE ||
                               (m.n_in_node < ktree_look(st->tree, node).n_blocks &&
                                !node_split(st, node, m.n_in_node, &node))))
        return;
    for (uint32_t i = m.n_blocks; i < n && node != KTREE_NONE; i += k) {
        k = node_length(st, l, i, n);
        node = enter_node(st, l, node, i, k);
    }
}

static void note_found(struct store *st, const struct pool_found *found)
{
    struct store_remote *r = st->remote;

    r->latency_s = found->latency_s;
    r->s_per_byte = found->bytes_per_s > 0 ? 1 / found->bytes_per_s : 0;
}

static void take_found(struct store *st, struct lookup *l, const struct pool_found *found)
{
    struct store_remote *r = st->remote;

    double s = (double)(st->now_ns - l->began_ns) * 1e-9;

    if (!l->is_adopted && !found->was_awaited)
        r->lookup_s += (l->is_first_again ? 1 : MEAN_SHARE) * (s - r->lookup_s);
    tier_remote_begin(r->slow.t, number_of(r, l), l->ticket, found);
    note_found(st, found);
    l->is_found = true;
    l->found = *found;
    l->until_ns = found->until_ns;
    if (!l->is_adopted)
        pool_end_when_read(r->pool, l->ticket, true);
    if (!l->is_part) {
        enter_found(st, l, found->n_blocks < l->n ? found->n_blocks : l->n);
        l->is_over = tier_remote_n_uses(r->slow.t, number_of(r, l)) == 0;
    }
    st->n_load_events++;
}

/* --- the end --- */

/* Whether the node's handles are those of the lookup. */
static bool is_of_lookup(const struct store *st, uint32_t node, const struct lookup *l)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t slot;

    if (!lies_in(&look, CACHE_REMOTE))
        return false;
    ktree_slots(st->tree, node, CACHE_REMOTE, &slot, 1);
    return tier_remote_lookup(st->remote->slow.t, slot) == number_of(st->remote, l);
}

/* Remove the remote nodes of a lookup that is over, those behind others first. Nodes that are being
 * read stay, and so do the nodes before them. */
static void sweep(struct store *st, const struct lookup *l)
{
    for (uint32_t i = l->n; i-- > 0;) {
        uint32_t node = ktree_find(st->tree, &l->keys[i]);

        if (node != KTREE_NONE && is_of_lookup(st, node, l) && !st->info[node].is_reading &&
            child_in(st, node, CACHE_REMOTE) == KTREE_NONE)
            (void)leave_remote(st, node);
    }
}

/* Give back what a lookup that is over does not need any more. */
static void finish(struct store *st, struct lookup *l)
{
    struct store_remote *r = st->remote;

    if (l->is_found && l->ticket != POOL_NO_TICKET)
        sweep(st, l);
    if (l->ticket != POOL_NO_TICKET && l->n_queriers == 0 &&
        (!l->is_found || tier_remote_n_uses(r->slow.t, number_of(r, l)) == 0)) {
        pool_forget(r->pool, l->ticket);
        l->ticket = POOL_NO_TICKET;
    }
    if (l->n_users == 0 && l->ticket == POOL_NO_TICKET)
        free_lookup(r, l);
}

static void poll_lookup(struct store *st, struct lookup *l)
{
    struct store_remote *r = st->remote;
    struct pool_found found;
    enum pool_look look;

    if (l->is_over) {
        finish(st, l);
        return;
    }
    look = pool_look(r->pool, l->ticket, &found);
    if (look == POOL_LOOKING)
        return;
    if (look == POOL_FOUND && !l->is_found)
        take_found(st, l, &found);
    else if (look == POOL_FOUND) { /* queries lengthen the lease */
        l->found = found;
        l->until_ns = found.until_ns;
    }
    l->is_over |= look == POOL_NOT_FOUND || st->now_ns >= l->until_ns;
    if (l->is_over) {
        st->n_load_events++;
        finish(st, l);
    }
}

void poll_lookups(struct store *st)
{
    struct store_remote *r = st->remote;

    for (uint32_t i = 0; r->n_lookups > 0 && i < POOL_TICKETS_MAX; i++)
        if (r->lookups[i].is_used)
            poll_lookup(st, &r->lookups[i]);
}

void reset_remote(struct store *st)
{
    struct store_remote *r = st->remote;

    for (uint32_t x = KTREE_ROOT, next; r->n_nodes > 0 && x != KTREE_NONE; x = next) {
        struct ktree_node look = ktree_look(st->tree, x);

        next = ktree_next(st->tree, x, KTREE_ROOT);
        if (x == KTREE_ROOT || !lies_in(&look, CACHE_REMOTE))
            continue;
        next = ktree_next_outside(st->tree, x, KTREE_ROOT);
        drop_remote(st, x);
    }
    for (uint32_t i = 0; i < POOL_TICKETS_MAX; i++)
        r->lookups[i].is_over |= r->lookups[i].is_used;
    drop_bequests(st);
    st->n_load_events++;
}

/* --- new lookups --- */

static bool copy_path(struct lookup *l, const struct kv_key *keys, const struct pool_meta *meta,
                      uint32_t n)
{
    l->keys = malloc(n * sizeof *keys);
    l->meta = malloc(n * sizeof *meta);
    if (!l->keys || !l->meta)
        return false;
    memcpy(l->keys, keys, n * sizeof *keys);
    memcpy(l->meta, meta, n * sizeof *meta);
    l->n = n;
    return true;
}

/* A new record with a copy of the path; NULL: there is none, or no memory. */
static struct lookup *new_lookup(struct store *st, const struct kv_key *keys,
                                 const struct pool_meta *meta, uint32_t n)
{
    struct store_remote *r = st->remote;
    struct lookup *l = r->lookups;

    ASSERT(n > 0 && n <= POOL_PATH_MAX);
    while (l < r->lookups + POOL_TICKETS_MAX && l->is_used)
        l++;
    if (l == r->lookups + POOL_TICKETS_MAX)
        return NULL;
    *l = (struct lookup){
        .is_used = true, .ticket = POOL_NO_TICKET, .began_ns = st->now_ns, .until_ns = UINT64_MAX};
    r->n_lookups++;
    if (copy_path(l, keys, meta, n))
        return l;
    free_lookup(r, l);
    return NULL;
}

bool adopt_lookup(struct store *st, const struct pool_offer *offer)
{
    struct pool_found found;
    struct lookup *l;

    if (pool_look(st->remote->pool, offer->ticket, &found) != POOL_FOUND ||
        !(l = new_lookup(st, offer->keys, offer->meta, offer->n)))
        return false;
    l->ticket = offer->ticket;
    l->n_local = offer->n_there;
    l->is_adopted = true;
    take_found(st, l, &found);
    return true;
}

/* --- waiting requests --- */

static bool is_key(const struct kv_key *a, const struct kv_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool is_among(uint32_t lookup, const uint32_t *lookups, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (lookups[i] == lookup)
            return true;
    return false;
}

static uint32_t join(struct store *st, uint32_t lookup)
{
    st->remote->lookups[lookup].n_users++;
    return lookup;
}

uint32_t store_join_lookup(struct store *st, const struct kv_key *keys, uint32_t n,
                           const uint32_t *joined, uint32_t n_joined)
{
    struct store_remote *r = st->remote;
    struct ktree_match m = ktree_match(st->tree, keys, n);
    struct ktree_node look;

    if (r->n_lookups == 0)
        return STORE_NO_LOOKUP;
    for (uint32_t x = m.node, slot; x != KTREE_ROOT; x = look.parent) {
        look = ktree_look(st->tree, x);
        if (!lies_in(&look, CACHE_REMOTE))
            break;
        ktree_slots(st->tree, x, CACHE_REMOTE, &slot, 1);
        slot = tier_remote_lookup(r->slow.t, slot);
        if (!is_among(slot, joined, n_joined))
            return join(st, slot);
    }
    for (uint32_t i = 0; m.n_blocks < n && i < POOL_TICKETS_MAX; i++) {
        const struct lookup *l = &r->lookups[i];

        if (store_is_looking(st, i) && !l->is_part && l->n > m.n_blocks &&
            is_key(&l->keys[m.n_blocks], &keys[m.n_blocks]) && !is_among(i, joined, n_joined))
            return join(st, i);
    }
    return STORE_NO_LOOKUP;
}

bool store_leaves_more(const struct store *st, uint32_t lookup)
{
    const struct lookup *l = &st->remote->lookups[lookup];

    return l->is_found && !l->is_part && l->found.n_blocks < l->n &&
           l->found.n_named > l->found.n_blocks;
}

/* Whether a lookup of the blocks behind the match is expected to cost less time than computing
 * them, even if all are found. Computing delays n_delayed sequences. A lookup delays only the one
 * that asks, as steps go on meanwhile, and only beyond the wait_s that it waits in any case. A
 * lookup that is not worth it is made now and then all the same, as nothing else shows that lookups
 * have become faster. */
static bool is_lookup_worth(const struct store *st, const struct ktree_match *m,
                            const struct pool_meta *meta, uint32_t n, uint32_t n_delayed,
                            double wait_s)
{
    struct store_remote *r = st->remote;
    uint32_t n_tokens = 0;

    for (uint32_t i = m->n_blocks; i < n; i++)
        n_tokens += meta[i].n_tokens;
    if (n_tokens == 0)
        return false;
    bool is_worth = !st->config.seconds || st->config.remote.query == CACHE_QUERY_ALWAYS ||
                    n_delayed * compute_time(st, store_match_tokens(st, m), n_tokens) >
                        r->lookup_s + r->latency_s - wait_s;
    r->n_left_out = is_worth || r->n_left_out == LEFT_OUT_MAX ? 0 : r->n_left_out + 1;
    return r->n_left_out == 0;
}

/* The time that a peer may take to read the path from its disk, or to compute what it is about to:
 * with the pull after it, and beyond the time that the request waits in any case, no longer than
 * computing here delays n_delayed sequences in all. */
static uint64_t disk_ns_of(const struct store *st, const struct lookup *l, uint32_t at_token,
                           const struct store_ask *ask)
{
    const struct store_remote *r = st->remote;
    double bytes = (double)(l->n - l->n_local) * (double)st->block_bytes, s;
    uint32_t n_tokens = 0;

    if (!st->config.seconds)
        return UINT64_MAX;
    for (uint32_t i = l->n_local; i < l->n; i++)
        n_tokens += l->meta[i].n_tokens;
    s = ask->n_delayed * compute_time(st, at_token, n_tokens) + ask->wait_s - r->latency_s -
        bytes * r->s_per_byte;
    return s > 0 ? (uint64_t)(s * 1e9) : 0;
}

/* The first block of what is asked for. Behind blocks of another lookup that is the beginning of a
 * segment, because no segment is divided between instances that are sent queries. */
static uint32_t first_asked(const struct store *st, const struct ktree_match *m,
                            const struct store_ask *ask)
{
    struct ktree_node look = ktree_look(st->tree, m->node);
    uint32_t i = m->n_blocks;

    if (ask->is_part)
        return ask->from;
    if (m->node != KTREE_ROOT && lies_in(&look, CACHE_REMOTE))
        while (i > 0 && i < ask->n && !ask->meta[i].starts_segment)
            i--;
    return i;
}

/* The instances that lend what the other lookups of the request found. */
static uint32_t lenders(const struct store *st, const struct store_ask *ask,
                        uint64_t ids[POOL_AVOID_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ask->n_others && n < POOL_AVOID_MAX; i++)
        if (st->remote->lookups[ask->others[i]].is_found)
            ids[n++] = st->remote->lookups[ask->others[i]].found.peer;
    return n;
}

/* Ask the pool; POOL_NO_TICKET: it cannot now. */
static uint32_t ask_pool(const struct store *st, const struct lookup *l, uint32_t at_token,
                         const struct store_ask *ask)
{
    uint32_t starts[POOL_PATH_MAX], n_starts = 0;
    uint64_t avoid[POOL_AVOID_MAX];

    for (uint32_t i = 0; i < l->n; i++)
        if (l->meta[i].starts_segment)
            starts[n_starts++] = i;
    return pool_lookup(
        st->remote->pool,
        &(struct pool_path){.keys = l->keys,
                            .n = l->n,
                            .starts = starts,
                            .n_starts = n_starts,
                            .n_local = l->n_local,
                            .is_again = ask->is_again,
                            .disk_ns = l->is_part ? 0 : disk_ns_of(st, l, at_token, ask),
                            .avoid = avoid,
                            .n_avoid = lenders(st, ask, avoid)});
}

uint32_t store_begin_lookup(struct store *st, const struct store_ask *ask)
{
    struct store_remote *r = st->remote;
    struct ktree_match m = ktree_match(st->tree, ask->keys, ask->n);
    bool is_first_again = r->n_left_out > 0; /* the mean is old: replace it */
    struct lookup *l;

    if ((!ask->is_part &&
         !is_lookup_worth(st, &m, ask->meta, ask->n, ask->n_delayed, ask->wait_s)) ||
        !(l = new_lookup(st, ask->keys, ask->meta, ask->n)))
        return STORE_NO_LOOKUP;
    l->is_first_again = is_first_again && !ask->is_part;
    l->is_part = ask->is_part;
    l->n_users = 1;
    l->n_local = first_asked(st, &m, ask);
    l->ticket = ask_pool(st, l, store_match_tokens(st, &m), ask);
    if (l->ticket == POOL_NO_TICKET) {
        free_lookup(r, l);
        return STORE_NO_LOOKUP;
    }
    return number_of(r, l);
}

double store_lookup_seconds(const struct store *st)
{
    return st->remote->lookup_s + st->remote->latency_s;
}

bool store_is_looking(const struct store *st, uint32_t lookup)
{
    const struct lookup *l = &st->remote->lookups[lookup];

    return l->is_used && !l->is_found && !l->is_over;
}

void store_end_lookup(struct store *st, uint32_t lookup)
{
    struct lookup *l = &st->remote->lookups[lookup];

    ASSERT(l->is_used && l->n_users > 0);
    if (--l->n_users > 0)
        return;
    l->is_over = true;
    finish(st, l);
}
