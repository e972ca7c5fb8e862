/* kv_store_look.c - statistics, checks, and the spans with most hits. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

static void count_tier(const struct store *st, enum cache_tier which,
                       const struct ktree_stats *tree, struct cache_tier_stats *out)
{
    const struct store_tier *t = &st->tier[which];
    struct replace_stats policy = {.order = ""};
    struct tier_stats moves;

    *out = (struct cache_tier_stats){.order = ""};
    if (!t->t)
        return;
    tier_stats(t->t, &moves);
    if (which == CACHE_REMOTE)
        policy.n_entries = st->remote->n_nodes;
    else
        replace_stats(st->policy, order_of(st, which), &policy);
    *out = (struct cache_tier_stats){
        .n_blocks = tier_n_blocks(t->t),
        .n_free = tier_is_asleep(t->t) ? tier_n_blocks(t->t) : tier_n_free(t->t),
        .n_cached = tree->n_blocks_in[which] - t->n_filling,
        .n_in_transfer = t->n_filling + t->n_placing + moves.n_arriving + moves.n_leaving,
        .n_nodes = policy.n_entries,
        .n_hit_tokens = t->n_hit_tokens,
        .n_evicted = t->n_evicted,
        .n_moved_in = t->n_moved_in,
        .n_not_worth = st->slow[which] ? st->slow[which]->n_not_worth : 0,
        .saved_s = t->saved_s,
        .lost_s = t->lost_s,
        .order = policy.order};
    if (which == CACHE_DEVICE) {
        out->n_cached -= tree->n_blocks_active;
        out->n_in_use = st->n_private + tree->n_blocks_active - moves.n_arriving;
    }
    if (which == CACHE_HOST && st->remote) {
        uint32_t n_lent = st->remote->n_lent[CACHE_HOST]; /* some may still be in transfer */
        out->n_in_use = n_lent < out->n_cached ? n_lent : out->n_cached;
        out->n_cached -= out->n_in_use;
    }
    out->n_leaked =
        out->n_blocks - out->n_free - out->n_cached - out->n_in_use - out->n_in_transfer;
}

static void count_disk(const struct store *st, struct cache_disk_stats *out)
{
    const struct store_disk *d = st->disk;
    struct tier_stats stats;

    tier_stats(d->slow.t, &stats);
    *out = d->found;
    out->is_on = true;
    out->is_hung = tier_is_hung(d->slow.t);
    out->io = stats.io;
    out->is_direct = stats.is_direct;
    out->extent_bytes = stats.extent_bytes;
    out->n_read_bytes = stats.n_read_bytes;
    out->n_written_bytes = stats.n_written_bytes;
    out->n_reads_failed = stats.n_reads_failed;
    out->n_writes_failed = stats.n_writes_failed;
    out->n_timeouts = stats.n_timeouts;
    out->n_corrupt = stats.n_corrupt;
    out->n_not_worth = d->slow.n_not_worth;
    out->n_preloaded_blocks = d->n_preloaded;
    out->read_bytes_per_s = d->slow.bytes_per_s;
}

void store_stats(const struct store *st, struct cache_stats *out)
{
    struct tier_stats device;
    struct ktree_stats tree;

    tier_stats(device_tier(st), &device);
    ktree_stats(st->tree, &tree);
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
        count_tier(st, t, &tree, &out->tier[t]);
    if (st->disk)
        count_disk(st, &out->disk);
    else
        out->disk.io = "";
    out->n_tiers = st->remote ? CACHE_N_TIERS : CACHE_REMOTE;
    if (st->remote)
        pool_stats(st->remote->pool, &out->pool);
    out->n_nodes = tree.n_nodes;
    out->n_copies_failed = device.n_failed;
    out->n_spilled_ahead = st->n_spilled_ahead;
    out->n_spilled_on_demand = st->n_spilled_on_demand;
    out->n_fetched_ahead = st->n_fetched_ahead;
    out->n_fetched_on_demand = st->n_fetched_on_demand;
    out->n_expected_lost = st->n_expected_lost;
    out->n_holds = st->n_holds;
    out->n_held_blocks = st->held.n;
    for (out->n_owners = 0; out->n_owners < st->n_owners && out->n_owners < CACHE_N_OWNERS_MAX;
         out->n_owners++)
        out->owners[out->n_owners] =
            (struct cache_owner){st->owners[out->n_owners].id, st->owners[out->n_owners].n_blocks};
    out->n_session_blocks = n_session_blocks(st);
    out->n_superseded = st->n_superseded;
    out->saved_s = st->saved_s;
    out->memory_bytes = st->memory_bytes;
}

/* --- check --- */

/* Check that each block of a tier is in one place only: free or in the tree. Returns the number of
 * the other blocks: private, being placed, or on their way to be free. */
static uint32_t check_places(const struct store *st, enum cache_tier tier, uint8_t *seen,
                             uint32_t n_ids)
{
    const struct tier *t = st->tier[tier].t;
    uint32_t n_seen = tier_check_free(t, seen, n_ids), slots[NODE_N_BLOCKS_MAX];

    for (uint32_t x = KTREE_ROOT, next; x != KTREE_NONE; x = next) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (x != KTREE_ROOT && lies_in(&look, tier)) {
            ASSERT(look.n_blocks <= NODE_N_BLOCKS_MAX);
            ktree_slots(st->tree, x, tier, slots, look.n_blocks);
            for (uint32_t i = 0; i < look.n_blocks; i++)
                ASSERT(slots[i] < n_ids && !seen[slots[i]]++);
            n_seen += look.n_blocks;
        }
        next = ktree_next(st->tree, x, KTREE_ROOT);
    }
    return tier_n_blocks(t) - n_seen;
}

/* Check that the policy and node_info agree with the tree on a node. */
static void check_node(const struct store *st, uint32_t node)
{
    const struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);

    ASSERT(st->node_of[info->entry] == node);
    ASSERT(look.parent == KTREE_ROOT || st->info[look.parent].entry != info->entry);
    for (enum cache_tier tier = 0; tier < CACHE_N_TIERS; tier++)
        ASSERT(st->tier[tier].t && tier != CACHE_REMOTE
                   ? replace_in_tier(st->policy, order_of(st, tier), info->entry) ==
                         lies_in(&look, tier)
                   : !lies_in(&look, tier) || tier == CACHE_REMOTE);
    ASSERT(!lies_in(&look, CACHE_REMOTE) || look.tiers == 1u << CACHE_REMOTE);
    if (lies_in(&look, CACHE_DISK) && look.parent != KTREE_ROOT) {
        struct ktree_node parent = ktree_look(st->tree, look.parent);
        ASSERT(lies_in(&parent, CACHE_DISK));
    }
    ASSERT(!info->read_from || !lies_slow_only(&look));
    ASSERT(look.n_pins == 0 || lies_in(&look, CACHE_DEVICE));
    ASSERT(info->n_tokens <= look.n_blocks * KV_BLOCK_TOKENS &&
           info->n_tokens > (look.n_blocks - 1) * KV_BLOCK_TOKENS);
    ASSERT(info->tail_of == KTREE_NONE || info->tail_of == look.parent);
    ASSERT(info->pos0 == (look.parent == KTREE_ROOT
                              ? 0
                              : st->info[look.parent].pos0 + st->info[look.parent].n_tokens));
    uint32_t n_tails = 0;
    for (uint32_t c = ktree_first_child(st->tree, node); c != KTREE_NONE;
         c = ktree_next_sibling(st->tree, c))
        n_tails += st->info[c].tail_of == node;
    ASSERT(n_tails == info->n_tails);
    ASSERT(!info->is_prefetched || lies_in(&look, CACHE_DEVICE));
    ASSERT(replace_n_expected(st->policy, info->entry) ==
           n_expected(st, ktree_key_at(st->tree, node, 0)));
    ASSERT(!is_held(st, ktree_key_at(st->tree, node, 0)) ||
           replace_due_s(st->policy, info->entry) == 0);
}

/* Check the counts of units, and that no staging buffer is lost. Returns the blocks being written.
 */
static uint32_t check_units(const struct store *st, const struct slow_tier *w)
{
    uint32_t n_writing = 0, n_reading = 0, n_buffers = 0;

    for (uint32_t i = 0; i < N_UNITS; i++) {
        const struct unit *u = &w->units[i];

        n_writing += is_write(u) ? u->what.n : 0;
        n_reading += u->state != UNIT_FREE && !is_write(u) ? u->what.n : 0;
    }
    ASSERT(n_reading == w->n_reading);
    if (n_writing + n_reading == 0 && st->n_moves_over == st->n_moves_begun && !tier_is_busy(w->t))
        n_buffers = tier_n_buffers(w->t) - tier_n_free_buffers(w->t);
    ASSERT(n_buffers == 0);
    return n_writing;
}

static void check_disk(const struct store *st)
{
    const struct store_disk *d = st->disk;
    uint32_t n_writing = check_units(st, &d->slow);

    ASSERT(n_writing == d->n_writing && st->tier[CACHE_DISK].n_placing == n_writing);
    ASSERT(d->n_offers <= N_OFFERS);
}

/* Each handle is of a lookup that has its ticket. */
static void check_remote(const struct store *st)
{
    const struct store_remote *r = st->remote;
    uint32_t n_used = 0, n_nodes = 0, slot;

    (void)check_units(st, &r->slow);
    for (uint32_t i = 0; i < POOL_TICKETS_MAX; i++) {
        const struct lookup *l = &r->lookups[i];

        n_used += l->is_used;
        ASSERT(!l->is_used || l->n_users > 0 || l->ticket != POOL_NO_TICKET);
        ASSERT(l->n_queriers <= l->n_users && (l->n_queriers == 0 || l->is_found));
        ASSERT(l->n_queriers == 0 || l->ticket != POOL_NO_TICKET);
        ASSERT((l->is_used && l->is_found && l->ticket != POOL_NO_TICKET) ||
               tier_remote_n_uses(r->slow.t, i) == 0);
    }
    ASSERT(n_used == r->n_lookups);
    for (uint32_t x = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE;
         x = ktree_next(st->tree, x, KTREE_ROOT)) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (!lies_in(&look, CACHE_REMOTE))
            continue;
        n_nodes++;
        ktree_slots(st->tree, x, CACHE_REMOTE, &slot, 1);
        ASSERT(r->lookups[tier_remote_lookup(r->slow.t, slot)].is_found);
    }
    ASSERT(n_nodes == r->n_nodes);
}

/* Blocks of a tier that no node has: reserved for a node, or on their way to be free. */
static uint32_t n_in_no_node(const struct store *st, enum cache_tier tier)
{
    const struct store_tier *t = &st->tier[tier];

    return t->n_placing + tier_n_free_soon(t->t) - tier_n_free(t->t);
}

static void check_tiers(const struct store *st, uint8_t *seen, uint32_t n_ids)
{
    ASSERT(check_places(st, CACHE_DEVICE, seen, n_ids) ==
           st->n_private + n_in_no_node(st, CACHE_DEVICE));
    if (st->n_tiers > 1) {
        if (st->copies) /* separate memory has numbers of its own */
            memset(seen, 0, n_ids);
        ASSERT(check_places(st, CACHE_HOST, seen, n_ids) == n_in_no_node(st, CACHE_HOST));
    }
    if (st->disk) {
        memset(seen, 0, n_ids);
        ASSERT(check_places(st, CACHE_DISK, seen, n_ids) == n_in_no_node(st, CACHE_DISK));
        check_disk(st);
    }
    if (st->remote) {
        memset(seen, 0, n_ids);
        ASSERT(check_places(st, CACHE_REMOTE, seen, n_ids) == 0);
        check_remote(st);
    }
}

void store_check(const struct store *st)
{
    uint32_t n_ids = st->pools[0].n_blocks;
    struct cache_stats stats;
    uint8_t *seen;

    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
        if (st->tier[t].t && tier_n_blocks(st->tier[t].t) > n_ids)
            n_ids = tier_n_blocks(st->tier[t].t);
    seen = calloc(n_ids ? n_ids : 1, 1);
    if (!seen)
        return; /* there is no memory to check with */
    check_tiers(st, seen, n_ids);
    free(seen);
    for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++) {
        store_stats(st, &stats);
        ASSERT(stats.tier[t].n_leaked == 0 && stats.tier[t].n_cached <= stats.tier[t].n_blocks &&
               stats.tier[t].n_in_use <= stats.tier[t].n_blocks);
    }
    ASSERT(st->n_spilled_ahead + st->n_spilled_on_demand == st->tier[CACHE_HOST].n_moved_in &&
           st->n_fetched_ahead + st->n_fetched_on_demand == st->tier[CACHE_DEVICE].n_moved_in);
    check_holds(st);
    check_sessions(st);
    ktree_check(st->tree);
    replace_check(st->policy);
    uint32_t n_prefetched = 0, n_orphans = 0;
    for (uint32_t x = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE;
         x = ktree_next(st->tree, x, KTREE_ROOT)) {
        check_node(st, x);
        n_prefetched += st->info[x].is_prefetched ? ktree_look(st->tree, x).n_blocks : 0;
        n_orphans += st->info[x].is_orphan;
    }
    ASSERT(n_prefetched == st->n_prefetched && n_orphans == st->n_orphans);
}

/* --- spans --- */

/* A node is the first of its span if its parent has another depth. */
static bool begins_span(const struct store *st, const struct ktree_node *look)
{
    return look->parent == KTREE_ROOT || ktree_look(st->tree, look->parent).depth != look->depth;
}

/* Sum up the span that begins at `first`: all nodes of its depth below it, in depth-first order. */
static void measure_span(const struct store *st, uint32_t first, struct cache_span *out)
{
    const struct node_info *head = &st->info[first];
    uint32_t depth = ktree_look(st->tree, first).depth;

    *out = (struct cache_span){
        .key = *ktree_key_at(st->tree, first, 0), .depth = depth, .n_uses = head->n_uses};
    uint64_t used_ns = head->used_ns;
    for (uint32_t x = first; x != KTREE_NONE;) {
        const struct node_info *info = &st->info[x];
        struct ktree_node look = ktree_look(st->tree, x);

        if (look.depth != depth) {
            out->n_children += ktree_look(st->tree, look.parent).depth == depth;
            x = ktree_next_outside(st->tree, x, first);
            continue;
        }
        out->n_nodes++;
        out->n_blocks += look.n_blocks;
        out->n_tokens += info->n_tokens;
        for (uint32_t tier = 0; tier < CACHE_N_TIERS; tier++)
            out->n_blocks_in[tier] += lies_in(&look, (enum cache_tier)tier) ? look.n_blocks : 0;
        out->n_hit_tokens += info->n_hit_tokens;
        out->saved_s += info->saved_s;
        out->in_use |= ktree_is_active(st->tree, x);
        out->is_held |= is_held(st, ktree_key_at(st->tree, x, 0));
        used_ns = info->used_ns > used_ns ? info->used_ns : used_ns;
        x = ktree_next(st->tree, x, first);
    }
    out->idle_ns = st->now_ns > used_ns ? st->now_ns - used_ns : 0;
}

static bool is_better(const struct cache_span *a, const struct cache_span *b)
{
    if (a->n_hit_tokens != b->n_hit_tokens)
        return a->n_hit_tokens > b->n_hit_tokens;
    return a->n_blocks > b->n_blocks;
}

bool store_find_span(const struct store *st, const struct kv_key *first, struct cache_span *out)
{
    uint32_t node = ktree_find(st->tree, first);

    if (node == KTREE_NONE)
        return false;
    struct ktree_node look = ktree_look(st->tree, node);
    if (!begins_span(st, &look))
        return false;
    measure_span(st, node, out);
    return true;
}

uint32_t store_top_spans(const struct store *st, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all)
{
    struct cache_span span;
    uint32_t n = 0;

    *n_all = 0;
    for (uint32_t x = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE;
         x = ktree_next(st->tree, x, KTREE_ROOT)) {
        struct ktree_node look = ktree_look(st->tree, x);
        uint32_t i;

        if (!begins_span(st, &look))
            continue;
        ++*n_all;
        measure_span(st, x, &span);
        for (i = n; i > 0 && is_better(&span, &out[i - 1]); i--)
            if (i < n_max)
                out[i] = out[i - 1];
        if (i < n_max) {
            out[i] = span;
            n += n < n_max;
        }
    }
    return n;
}
