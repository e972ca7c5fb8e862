/* kv_store_lend.c - what other instances get from this one: loans, offers when this instance leaves
 * the pool; what it gets by their offers; and the price of KV that others have, too.
 *
 * Loans. A peer asks for a path; the part of it that lies in memory is pinned and lent until the
 * pool gives the lease back. Every node of the path is pinned in the tier from which it is lent, so
 * no block of it moves or is evicted, and all accounting sees it as in use. On a separate device
 * memory the pool lends from the host: nodes that lie on the device only are copied there first,
 * and without a host tier nothing is lent. An instance that has mapped the device memory gets
 * blocks there, too (kv_store_near.c). Loans pin at most LENT_SHARE of a tier, and none begin for a
 * while after a request did not fit because of them.
 *
 * Disk. What lies on disk only is read into memory for the loan, within LENT_SHARE. The answer
 * waits for that as long as the asker allows, which is shorter than it takes the asker to compute;
 * reads that are not expected to end within that time do not begin. Other asks are answered
 * meanwhile. The answer waits in the same way for blocks that a sequence here is about to compute.
 *
 * Leaving. Paths that only this instance has are offered to others, those used most first; whatever
 * enters the tree meanwhile is offered in a further round.
 *
 * Copies. What many instances read is offered to further ones when the pool asks for that, and so
 * is what a lightly loaded instance is to serve instead of this one.
 *
 * Adoption. A path that another instance offers is read like a preload. It may evict what is
 * worth less.
 *
 * Price. What other instances have, too, costs a pull instead of a computation when it is lost
 * here. The policy gets that smaller price, so copies that others can replace are evicted first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool.h"
#include "cache/store/kv_store_slow.h"

#define LENT_SHARE 0.5
#define LENT_SHARE_LEAVING 0.75 /* most requests have gone elsewhere by then */
/* Nodes of handed-over paths that are read at a time: the other units are for waiting requests. */
#define N_ADOPTING 8
/* Paths that one poll offers: each costs a walk to the root. */
#define N_OFFERED_PER_POLL 8
/* Between two rounds of offers: a round walks the whole tree. */
#define LIST_PAUSE_NS UINT64_C(100000000)
/* The price of a pull, as a share of the computation, before any pull was measured. */
#define PULL_SHARE_FIRST 0.125
/* No loan begins for so long after a request did not fit because of loans. */
#define NO_LOAN_NS UINT64_C(100000000)

/* --- loans --- */

static uint32_t lent_max(const struct store *st, enum cache_tier tier)
{
    double share = st->remote->leaves ? LENT_SHARE_LEAVING : LENT_SHARE;

    return (uint32_t)(share * tier_n_blocks(st->tier[tier].t));
}

/* Pin a node for one more loan. is_near: the peer reads device memory, too. False: it cannot be
 * lent, or too much is. */
static bool lend_node(struct store *st, uint32_t node, bool is_near)
{
    struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);
    bool in_place = lies_in(&look, CACHE_DEVICE) && (is_near || !st->copies);
    enum cache_tier from = in_place ? CACHE_DEVICE : CACHE_HOST;

    if (info->n_lent > 0 && info->lent_in == CACHE_DEVICE && st->copies && !is_near)
        return false;
    if (info->n_lent == 0) {
        if (info->is_orphan || !st->tier[from].t || st->sleeps ||
            st->remote->n_lent[from] + look.n_blocks > lent_max(st, from) ||
            (!lies_in(&look, from) && (is_moving(st, node) || !copy_to_host(st, node))))
            return false;
        info->lent_in = (uint8_t)from;
        st->remote->n_lent[from] += look.n_blocks;
    }
    info->n_lent++;
    lent_pin(st, node);
    return true;
}

static void return_node(struct store *st, uint32_t node)
{
    struct node_info *info = &st->info[node];

    lent_unpin(st, node);
    if (--info->n_lent == 0)
        st->remote->n_lent[info->lent_in] -= ktree_look(st->tree, node).n_blocks;
}

static void return_path(struct store *st, uint32_t node)
{
    for (uint32_t parent; node != KTREE_ROOT; node = parent) {
        parent = ktree_look(st->tree, node).parent;
        return_node(st, node);
    }
}

/* Pin the nodes of the matched path, the root's child first. The loan ends where that fails. */
static void pin_path(struct store *st, struct loan *l, const struct ktree_match *m)
{
    struct ktree_node end = ktree_look(st->tree, m->node);
    bool is_on_host = m->node != KTREE_ROOT && lies_in(&end, CACHE_HOST);
    uint32_t n = 0, entry = st->info[m->node].entry;

    for (uint32_t x = m->node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent)
        st->path[n++] = x;
    l->node = KTREE_ROOT;
    l->n_blocks = 0;
    /* Copying to the host must not evict the end of this path from there. */
    if (is_on_host)
        replace_pin(st->policy, CACHE_HOST, entry);
    while (n-- > 0 && lend_node(st, st->path[n], l->ask.is_near)) {
        struct ktree_node look = ktree_look(st->tree, st->path[n]);

        l->node = st->path[n];
        l->n_blocks = look.n_before + look.n_blocks;
    }
    if (is_on_host)
        replace_unpin(st->policy, CACHE_HOST, entry);
    l->n_blocks = l->n_blocks < m->n_blocks ? l->n_blocks : m->n_blocks;
}

/* Pin what lies in memory now; what the asker has, too, only while more may come from disk. */
static void pin_match(struct store *st, struct loan *l)
{
    struct ktree_match m = {.node = KTREE_ROOT};

    if (st->now_ns >= st->remote->no_loan_until_ns)
        m = store_match(st, l->ask.keys, l->ask.n);
    if (m.n_blocks <= l->n_there && st->now_ns >= l->disk_until_ns)
        m = (struct ktree_match){.node = KTREE_ROOT};
    pin_path(st, l, &m);
}

/* Whether what is read from disk can be lent. */
static bool lends_from_disk(const struct store *st)
{
    return st->disk && (!st->copies || st->tier[CACHE_HOST].t);
}

static void begin_loan(struct store *st, const struct pool_ask *ask)
{
    struct store_remote *r = st->remote;
    struct loan *l = r->loans;

    while (l < r->loans + POOL_LEASES_MAX && l->is_used)
        l++;
    if (l == r->loans + POOL_LEASES_MAX) {
        pool_lend(r->pool, ask->lease, r->blocks, 0, 0);
        return;
    }
    *l = (struct loan){.is_used = true,
                       .bequest = find_bequest(st, ask),
                       .lease = ask->lease,
                       .node = KTREE_ROOT,
                       .n_there = ask->n_there,
                       .is_asked = true,
                       .ask = *ask};
    r->n_loans++;
    if (l->bequest) {
        l->is_asked = false;
        lend_bequest(st, l->bequest, ask);
        return;
    }
    if ((lends_from_disk(st) || r->coming.n > 0) && ask->until_ns > st->now_ns) {
        uint64_t most = (ask->until_ns - st->now_ns) / 8 * 7; /* the answer has its way to go */

        l->disk_until_ns = st->now_ns + (ask->disk_ns < most ? ask->disk_ns : most);
    }
    r->n_asked++;
    pin_match(st, l);
}

/* Fill in the blocks of the loan from n_there on. Returns the number of blocks of the path that can
 * be read now: fewer while copies to the host, or to the device, are under way. */
static uint32_t fill_blocks(const struct store *st, const struct loan *l, uint32_t n_there,
                            struct pool_block *blocks)
{
    uint32_t slots[NODE_N_BLOCKS_MAX], n = l->n_blocks;
    struct ktree_node look;

    for (uint32_t x = l->node; x != KTREE_ROOT; x = look.parent) {
        const struct node_info *info = &st->info[x];
        const struct tier *t = st->tier[info->lent_in].t;

        look = ktree_look(st->tree, x);
        if (!is_move_over(st, info->lent_in == CACHE_HOST ? info->spill_no : info->fetch_no) &&
            look.n_before < n)
            n = look.n_before;
        if (look.n_before + look.n_blocks <= n_there)
            continue;
        ktree_slots(st->tree, x, info->lent_in, slots, look.n_blocks);
        for (uint32_t i = 0; i < look.n_blocks; i++) {
            uint32_t at = look.n_before + i, left = info->n_tokens - i * KV_BLOCK_TOKENS;

            if (at >= n_there && at < l->n_blocks)
                blocks[at - n_there] = (struct pool_block){
                    .memory = tier_memory(t, slots[i]),
                    .place = slots[i],
                    .n_tokens = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS};
        }
    }
    return n;
}

static struct loan *loan_of(struct store_remote *r, uint32_t lease)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++)
        if (r->loans[i].is_used && r->loans[i].lease == lease)
            return &r->loans[i];
    return NULL;
}

static void end_loan(struct store *st, struct loan *l, bool was_pulled)
{
    if (l->bequest)
        return_bequest(l->bequest);
    if (was_pulled && !l->keeps)
        demote_pulled(st, l);
    return_path(st, l->node);
    l->is_used = false;
    st->remote->n_loans--;
}

/* --- loans from disk --- */

/* Forget the nodes that are not being read any more. */
static void end_lending(struct store *st)
{
    struct store_remote *r = st->remote;

    for (uint32_t i = 0; i < r->n_lending;) {
        uint32_t node = ktree_find(st->tree, &r->lending[i]);

        if (node != KTREE_NONE && st->info[node].is_reading)
            i++;
        else
            r->lending[i] = r->lending[--r->n_lending];
    }
}

/* The expected time until n more blocks are read; 0: not known. */
static double disk_seconds(const struct slow_tier *disk, uint32_t n)
{
    double bytes = (double)(disk->n_reading + n) * (double)tier_extent_bytes(disk->t);

    return disk->bytes_per_s > 0 ? bytes / disk->bytes_per_s : 0;
}

/* Whether the node, which lies on disk only, is to be read for the loan. */
static bool may_read(const struct store *st, const struct loan *l, uint32_t node, uint32_t n_more)
{
    const struct slow_tier *disk = st->slow[CACHE_DISK];
    const struct store_remote *r = st->remote;
    enum cache_tier to = load_tier(st);

    return r->n_lending < N_LENDING && st->now_ns >= st->info[node].no_load_until_ns &&
           st->now_ns >= st->info[node].no_load_ahead_until_ns && !tier_is_hung(disk->t) &&
           r->n_lent[to] + n_more <= lent_max(st, to) &&
           st->now_ns + (uint64_t)(disk_seconds(disk, n_more) * 1e9) < l->disk_until_ns;
}

/* List the nodes of the ask's path behind what is pinned that lie on disk, deepest first. Returns
 * their number; they are in st->path. */
static uint32_t list_disk_part(struct store *st, const struct loan *l)
{
    struct ktree_match m = store_match_all(st, l->ask.keys, l->ask.n);
    uint32_t n = 0;

    for (uint32_t x = m.node; m.n_blocks > l->n_there && x != l->node && x != KTREE_ROOT;) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (!lies_slow_only(&look))
            return 0; /* what lies in memory may not be lent, or not all of it */
        if (lies_in(&look, CACHE_DISK) && !st->info[x].is_orphan)
            st->path[n++] = x;
        else
            n = 0; /* the path ends before this node */
        x = look.parent;
    }
    return n;
}

/* Read what lies on disk behind the pinned part. True: reads are under way that the answer waits
 * for. */
static bool reads_for(struct store *st, struct loan *l)
{
    struct store_remote *r = st->remote;
    uint32_t n, n_more = 0;
    bool is_reading = false;

    if (st->now_ns >= l->disk_until_ns || st->now_ns < r->no_loan_until_ns)
        return false;
    n = list_disk_part(st, l);
    while (n-- > 0) {
        uint32_t node = st->path[n];

        n_more += ktree_look(st->tree, node).n_blocks;
        if (!st->info[node].is_reading) {
            if (!may_read(st, l, node, n_more) ||
                begin_read(st, node, NULL, STORE_NO_DUE, READ_FOR_LOAN) != OK)
                break;
            r->lending[r->n_lending++] = *ktree_key_at(st->tree, node, 0);
        }
        is_reading = true;
    }
    return is_reading;
}

/* Pin what has been read since. */
static void pin_again(struct store *st, struct loan *l)
{
    uint32_t pinned = l->node;

    pin_match(st, l);
    return_path(st, pinned);
}

/* Whether a sequence here is about to compute what comes behind the pinned part. */
static bool awaits_coming(const struct store *st, const struct loan *l)
{
    return st->now_ns < l->disk_until_ns && l->n_blocks < l->ask.n &&
           is_coming(st, &l->ask.keys[l->n_blocks], l->ask.yields);
}

/* Answer an ask, if that is possible now: copies to the host and reads from disk may be under way,
 * and sequences may be computing the blocks. */
static void answer(struct store *st, struct loan *l)
{
    struct store_remote *r = st->remote;
    bool is_late = st->now_ns >= l->ask.until_ns;
    uint32_t n;

    if (!awaits_sums(st, l)) {
        if (l->disk_until_ns > 0)
            pin_again(st, l);
        if (reads_for(st, l) || awaits_coming(st, l)) {
            l->was_awaited = true;
            return;
        }
    }
    n = fill_blocks(st, l, l->n_there, r->blocks);
    if (!is_late && (n < l->n_blocks || !fill_sums(st, l, &n)))
        return;
    if (is_late) {
        drop_sums(st, l);
        n = 0;
    }
    l->is_asked = false;
    r->n_asked--;
    l->keeps = n > l->n_there && keeps_copy(st, l, n);
    pool_lend(r->pool, l->lease, r->blocks, n,
              (l->keeps ? POOL_KEEPS : 0u) | (l->was_awaited ? POOL_AWAITED : 0u));
    if (n <= l->n_there)
        end_loan(st, l, false);
}

void poll_loans(struct store *st)
{
    struct store_remote *r = st->remote;
    struct pool_ask ask;
    struct loan *l;
    uint32_t lease;
    bool was_pulled;

    while (pool_next_return(r->pool, &lease, &was_pulled))
        if ((l = loan_of(r, lease)))
            end_loan(st, l, was_pulled);
    while (pool_next_ask(r->pool, &ask))
        begin_loan(st, &ask);
    end_lending(st);
    poll_sums(st);
    for (uint32_t i = 0; r->n_asked > 0 && i < POOL_LEASES_MAX; i++)
        if (r->loans[i].is_used && r->loans[i].is_asked)
            answer(st, &r->loans[i]);
}

void store_note_need(struct store *st, uint32_t n_blocks)
{
    struct store_remote *r = st->remote;

    if (r->n_lent[CACHE_DEVICE] > 0 && n_blocks > store_n_available(st))
        r->no_loan_until_ns = st->now_ns + NO_LOAN_NS;
}

/* --- price --- */

/* The price of having the node's KV again. */
static void set_price(struct store *st, uint32_t node)
{
    const struct store_remote *r = st->remote;
    double pull = r->s_per_byte > 0
                      ? r->s_per_byte + r->latency_s / (double)(NODE_N_BLOCKS_MAX * st->block_bytes)
                      : PULL_SHARE_FIRST * own_seconds_per_byte(st, node);

    replace_limit_cost(st->policy, st->info[node].entry,
                       st->info[node].is_replica ? pull : (double)INFINITY);
}

void set_replica(struct store *st, uint32_t node, bool is_replica)
{
    st->info[node].is_replica = is_replica;
    set_price(st, node);
}

/* A segment is one node, or several where it was split or grew. The directory knows it by its first
 * block: where prompts part within it, other holders have other branches, so what lies behind the
 * parting is no replica. */
static void note_segment(struct store *st, uint32_t first, bool is_replica)
{
    for (uint32_t x = first; x != KTREE_NONE;) {
        if (x != first && (st->info[x].starts_segment || st->info[x].tail_of != KTREE_NONE)) {
            x = ktree_next_outside(st->tree, x, first);
            continue;
        }
        set_replica(st, x, is_replica);
        is_replica = is_replica && !has_branches(st, x);
        x = ktree_next(st->tree, x, first);
    }
}

void poll_news(struct store *st)
{
    struct pool_news news;

    while (pool_next_news(st->remote->pool, &news)) {
        uint32_t node = ktree_find_part(st->tree, &news.segment, DIRECTORY_SEGMENT_BYTES);

        if (node != KTREE_NONE)
            note_segment(st, node, news.is_replica);
    }
}

/* --- leaving --- */

/* A node that ends a path of which only this instance may have the KV in memory. */
static bool is_to_offer(const struct store *st, uint32_t node)
{
    const struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);

    return !lies_slow_only(&look) && !info->is_replica && !info->was_offered && !info->is_orphan &&
           info->tail_of == KTREE_NONE && look.n_before + look.n_blocks <= POOL_PATH_MAX;
}

/* Whether a child that is to be offered, too, extends the path. */
static bool has_longer_path(const struct store *st, uint32_t node)
{
    for (uint32_t c = ktree_first_child(st->tree, node); c != KTREE_NONE;
         c = ktree_next_sibling(st->tree, c))
        if (is_to_offer(st, c))
            return true;
    return false;
}

static int by_uses(const void *a, const void *b)
{
    const struct leaving_path *x = a, *y = b;

    return (x->n_uses < y->n_uses) - (x->n_uses > y->n_uses);
}

/* List the paths to offer, those used most first. */
static void list_paths(struct store *st)
{
    struct store_remote *r = st->remote;
    struct ktree_stats tree;

    ktree_stats(st->tree, &tree);
    free(r->leaving);
    r->listed_ns = st->now_ns;
    r->n_leaving = r->at_leaving = 0;
    r->leaving = calloc(tree.n_nodes + 1, sizeof *r->leaving);
    for (uint32_t x = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT); r->leaving && x != KTREE_NONE;
         x = ktree_next(st->tree, x, KTREE_ROOT))
        if (is_to_offer(st, x) && !has_longer_path(st, x))
            r->leaving[r->n_leaving++] = (struct leaving_path){
                *ktree_key_at(st->tree, x, 0), replace_n_uses(st->policy, st->info[x].entry)};
    if (r->leaving)
        qsort(r->leaving, r->n_leaving, sizeof *r->leaving, by_uses);
}

/* Write keys and meta of the path to `node`. Returns its number of blocks. */
static uint32_t write_path(struct store *st, uint32_t node, struct kv_key *keys,
                           struct pool_meta *meta)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t n = look.n_before + look.n_blocks;

    for (uint32_t x = node; x != KTREE_ROOT; x = look.parent) {
        const struct node_info *info = &st->info[x];

        look = ktree_look(st->tree, x);
        for (uint32_t i = 0; i < look.n_blocks; i++) {
            uint32_t left = info->n_tokens - i * KV_BLOCK_TOKENS;

            keys[look.n_before + i] = *ktree_key_at(st->tree, x, i);
            meta[look.n_before + i] = (struct pool_meta){
                .n_tokens = (uint8_t)(left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS),
                .starts_segment = i == 0 && info->starts_segment,
                .is_public = info->is_public,
                .is_registered = info->is_public,
                .depth = look.depth};
        }
    }
    return n;
}

/* False: the pool takes no more now. */
static bool offer_to(struct store *st, uint32_t node, uint64_t to, enum pool_offer_why why)
{
    struct store_remote *r = st->remote;
    uint32_t n = write_path(st, node, r->path_keys, r->path_meta);

    return pool_offer(r->pool, &(struct pool_offer){.keys = r->path_keys,
                                                    .meta = r->path_meta,
                                                    .n = n,
                                                    .to = to,
                                                    .why = why,
                                                    .ticket = POOL_NO_TICKET});
}

/* Offer one path to whoever has room. False: the pool takes no more now. */
static bool offer_path(struct store *st, uint32_t node)
{
    if (!offer_to(st, node, 0, POOL_OFFER_HANDS_OVER))
        return false;
    for (uint32_t x = node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent)
        st->info[x].was_offered = true;
    return true;
}

static void offer_paths(struct store *st)
{
    struct store_remote *r = st->remote;

    if (r->at_leaving == r->n_leaving && st->now_ns >= r->listed_ns + LIST_PAUSE_NS)
        list_paths(st);
    for (uint32_t i = 0; i < N_OFFERED_PER_POLL && r->at_leaving < r->n_leaving; i++) {
        uint32_t node = ktree_find(st->tree, &r->leaving[r->at_leaving].first);

        if (node != KTREE_NONE && is_to_offer(st, node) && !offer_path(st, node))
            return;
        r->at_leaving++;
    }
}

/* Offer what the pool wants others to have, too. The pool asks again for what is not offered. */
static void offer_copies(struct store *st)
{
    struct pool_copy copy;

    while (pool_next_copy(st->remote->pool, &copy)) {
        uint32_t node = ktree_find(st->tree, &copy.last);
        struct ktree_node look = ktree_look(st->tree, node == KTREE_NONE ? KTREE_ROOT : node);

        if (node != KTREE_NONE && !lies_slow_only(&look) && !st->info[node].is_orphan &&
            !st->sleeps && look.n_before + look.n_blocks <= POOL_PATH_MAX)
            (void)offer_to(st, node, copy.to, copy.why);
    }
}

void store_leave(struct store *st)
{
    if (st->remote->leaves)
        return;
    st->remote->leaves = st->remote->drains = true;
    pool_leave(st->remote->pool);
    list_paths(st);
}

bool store_has_left(const struct store *st)
{
    const struct store_remote *r = st->remote;

    return r->leaves && r->at_leaving == r->n_leaving && pool_n_offers(r->pool) == 0 &&
           r->n_bequeathed == 0;
}

void store_drain(struct store *st)
{
    st->remote->drains = true;
}

bool store_drains(const struct store *st)
{
    return st->remote->drains;
}

/* --- adoption --- */

/* Whether the blocks can follow each other: the peer's description is not trusted. */
static bool is_path(const struct pool_offer *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const struct pool_meta *b = &o->meta[i], *a = i ? b - 1 : NULL;

        if (b->n_tokens == 0 || b->n_tokens > KV_BLOCK_TOKENS ||
            (!a ? !b->starts_segment || b->depth > 0
                : b->depth < a->depth || (!b->starts_segment &&
                                          (a->n_tokens < KV_BLOCK_TOKENS || b->depth != a->depth))))
            return false;
    }
    return o->n > 0 && o->n <= POOL_PATH_MAX;
}

static void take_offers(struct store *st)
{
    struct pool_offer offer;

    while (pool_next_offer(st->remote->pool, &offer))
        if (st->sleeps || !is_path(&offer) || !adopt_lookup(st, &offer))
            pool_forget(st->remote->pool, offer.ticket);
}

/* Begin to read the next nodes of a path that is handed over. Returns false when it has to wait. */
static bool adopt_some(struct store *st, struct lookup *l)
{
    for (; l->at < l->n; l->at++) {
        uint32_t node = ktree_find(st->tree, &l->keys[l->at]);
        struct ktree_node look = ktree_look(st->tree, node == KTREE_NONE ? KTREE_ROOT : node);

        if (node == KTREE_NONE || !lies_in(&look, CACHE_REMOTE) || st->info[node].is_reading)
            continue;
        if (st->remote->slow.n_reading >= N_ADOPTING * NODE_N_BLOCKS_MAX)
            return false;
        switch (begin_read(st, node, NULL, STORE_NO_DUE, READ_ADOPTED)) {
        case OK: continue;
        case ERR_BUSY: return false;
        default: l->is_over = true; return false;
        }
    }
    return true;
}

static bool is_read_under_way(const struct store *st, const struct lookup *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t node = ktree_find(st->tree, &l->keys[i]);

        if (node != KTREE_NONE && st->info[node].is_reading)
            return true;
    }
    return false;
}

static void adopt(struct store *st)
{
    for (uint32_t i = 0; i < POOL_TICKETS_MAX; i++) {
        struct lookup *l = &st->remote->lookups[i];

        if (l->is_used && l->is_adopted && l->is_found && !l->is_over && adopt_some(st, l))
            l->is_over = !is_read_under_way(st, l);
    }
}

void poll_offers(struct store *st)
{
    take_offers(st);
    if (st->remote->n_lookups > 0)
        adopt(st);
    if (st->remote->leaves)
        offer_paths(st);
    offer_copies(st);
}
