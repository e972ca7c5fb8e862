/* kv_store_save.c - what is written to disk: offers, and the units that write them. */
#include "cache/store/kv_store_slow.h"

#include <string.h>

#include "base/check.h"

/* Limits of one poll, so that a step is not held up: offers looked at, and writes begun. */
#define N_OFFERS_TRIED 16
#define N_WRITES_BEGUN 2
/* Nothing is written for this time after a failed write. */
#define WRITE_PAUSE_NS UINT64_C(5000000000)

/* --- offers --- */

static bool is_written_before(const struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    return node == KTREE_ROOT || lies_in(&look, CACHE_DISK) || st->info[node].is_offered ||
           st->info[node].is_writing;
}

static void fill_offer(const struct store *st, struct offer *o, uint32_t node, uint32_t n,
                       uint32_t n_tokens, const struct store_use *use)
{
    const struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);

    o->n = n;
    for (uint32_t i = 0; i < n; i++)
        o->keys[i] = *ktree_key_at(st->tree, node, i);
    o->parent = (struct kv_key){{0}};
    if (look.parent != KTREE_ROOT)
        o->parent = *ktree_key(st->tree, look.parent);
    o->is_registered = info->pos0 + n_tokens <= use->n_public;
    o->scope = o->is_registered ? (struct kv_scope){{0}} : use->scope;
    o->pos0 = info->pos0;
    o->n_tokens = n_tokens;
    o->depth = look.depth;
    o->n_uses = replace_n_uses(st->policy, info->entry);
    o->starts_segment = info->starts_segment;
    memcpy(o->ids, use->ids + info->pos0, n_tokens * sizeof *o->ids);
}

void disk_offer(struct store *st, uint32_t node, uint32_t n, const struct store_use *use, bool must)
{
    struct store_disk *d = st->disk;
    struct node_info *info = &st->info[node];
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t n_tokens = n < look.n_blocks ? n * KV_BLOCK_TOKENS : info->n_tokens;
    uint32_t end = info->pos0 + n_tokens;

    if (!use->ids || end > use->n_ids || info->tail_of != KTREE_NONE || info->is_offered ||
        info->is_writing || info->is_orphan || lies_in(&look, CACHE_DISK) ||
        d->n_offers == N_OFFERS || !is_written_before(st, look.parent) ||
        st->now_ns < d->no_write_until_ns || tier_is_hung(d->slow.t))
        return;
    /* Most prompts are used once: writing waits for the second use. */
    if (!must && end > use->n_public &&
        replace_n_uses(st->policy, info->entry) < st->config.disk.min_uses)
        return;
    struct offer *o = d->offer_ring[(d->first_offer + d->n_offers) % N_OFFERS];
    fill_offer(st, o, node, n, n_tokens, use);
    d->n_offers++;
    info->is_offered = true;
}

void store_save(struct store *st, const struct kv_key *keys, uint32_t n,
                const struct store_use *use)
{
    uint32_t node, k;

    for (uint32_t i = 0; st->disk && i < n; i += k) {
        if ((node = ktree_find(st->tree, &keys[i])) == KTREE_NONE ||
            (k = ktree_look(st->tree, node).n_blocks) > n - i)
            return;
        disk_offer(st, node, k, use, true);
    }
}

/* Clear the marks of nodes that are no longer in an offer or in a unit that writes. */
static void unmark(struct store *st, const struct kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = ktree_find(st->tree, &keys[i]);
        if (node != KTREE_NONE)
            st->info[node].is_offered = st->info[node].is_writing = false;
    }
}

void drop_offers(struct store *st)
{
    struct store_disk *d = st->disk;

    for (; d->n_offers > 0; d->n_offers--) {
        const struct offer *o = d->offer_ring[d->first_offer];
        unmark(st, o->keys, o->n);
        d->first_offer = (d->first_offer + 1) % N_OFFERS;
    }
}

/* Remove the first n blocks from an offer. */
static void shift_offer(struct offer *o, uint32_t n)
{
    uint32_t n_tokens = n * KV_BLOCK_TOKENS < o->n_tokens ? n * KV_BLOCK_TOKENS : o->n_tokens;

    o->parent = o->keys[n - 1];
    o->n -= n;
    memmove(o->keys, o->keys + n, o->n * sizeof *o->keys);
    memmove(o->ids, o->ids + n_tokens, (o->n_tokens - n_tokens) * sizeof *o->ids);
    o->pos0 += n_tokens;
    o->n_tokens -= n_tokens;
    o->starts_segment = false;
}

/* Copy the first n blocks of an offer. */
static void copy_offer(struct offer *out, const struct offer *o, uint32_t n)
{
    *out = *o;
    out->n = n;
    if (n < o->n)
        out->n_tokens = n * KV_BLOCK_TOKENS;
}

/* --- writes --- */

/* The node that consists of the first *n blocks of the offer: of all of them, unless the tree has
 * split the node meanwhile. KTREE_NONE: the tree does not have them any more. */
static uint32_t node_of_offer(struct store *st, const struct offer *o, uint32_t *n)
{
    uint32_t node = ktree_find(st->tree, &o->keys[0]), lower = node, n_node;

    if (node == KTREE_NONE || st->info[node].is_orphan)
        return KTREE_NONE;
    n_node = ktree_look(st->tree, node).n_blocks;
    *n = n_node < o->n ? n_node : o->n;
    for (uint32_t i = 1; i < *n; i++)
        if (memcmp(ktree_key_at(st->tree, node, i), &o->keys[i], sizeof *o->keys) != 0)
            return KTREE_NONE;
    if (*n == n_node)
        return node;
    if (!node_split(st, lower, *n, &node)) /* the rest is not part of the offer */
        return KTREE_NONE;
    st->info[lower].is_offered = false;
    return node;
}

/* Copy the node's KV to staging: at once where the host can address it, else by a move of the
 * device. */
static bool save_payload(struct store *st, struct unit *u, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);
    enum cache_tier from = lies_in(&look, CACHE_DEVICE) ? CACHE_DEVICE : CACHE_HOST;
    uint32_t blocks[NODE_N_BLOCKS_MAX], n = look.n_blocks;

    ktree_slots(st->tree, node, from, blocks, n);
    if (tier_is_addressable(st->tier[from].t)) {
        u->state = UNIT_SAVED;
        (void)take_copy_budget(st, n * st->block_bytes);
        return tier_read(st->tier[from].t, blocks, u->buffers, n, false, 0) == OK;
    }
    if (!begin_move(st, MOVE_SAVE, node, blocks, u->buffers, n))
        return false;
    node_pin(st, node);
    u->save_no = st->n_moves_begun;
    u->state = UNIT_SAVING;
    return true;
}

enum fate { FATE_WAITS, FATE_BEGUN, FATE_OVER };

/* Begin to write a node, whose blocks are the first n of the offer. */
static enum fate begin_write(struct store *st, const struct offer *o, uint32_t node, uint32_t n)
{
    struct store_disk *d = st->disk;
    struct unit *u = take_unit(&d->slow);
    bool reserved;

    /* Half of the staging buffers are kept for reads: requests wait for these. */
    if (!u || tier_n_free_buffers(d->slow.t) < n + tier_n_buffers(d->slow.t) / 2 ||
        tier_n_free(d->slow.t) < n || st->copy_left == 0 || !tier_stage(d->slow.t, u->buffers, n))
        return FATE_WAITS;
    u->is_stale = false;
    copy_offer(&u->what, o, n);
    if (!save_payload(st, u, node)) {
        u->state = UNIT_FREE;
        tier_unstage(d->slow.t, u->buffers, n);
        return FATE_OVER;
    }
    reserved = tier_reserve(d->slow.t, u->blocks, n);
    ASSERT(reserved); /* checked above */
    st->tier[CACHE_DISK].n_placing += n;
    d->n_writing += n;
    st->info[node].is_offered = false;
    st->info[node].is_writing = true;
    return FATE_BEGUN;
}

/* Try to begin the write of an offer. Blocks that are done are removed from it. */
static enum fate try_offer(struct store *st, struct offer *o)
{
    uint32_t n, node = node_of_offer(st, o, &n);
    struct ktree_node look, parent;

    if (node == KTREE_NONE)
        return FATE_OVER;
    look = ktree_look(st->tree, node);
    parent = ktree_look(st->tree, look.parent);
    if (lies_in(&look, CACHE_DISK)) {
        st->info[node].is_offered = false;
    } else {
        if (look.parent != KTREE_ROOT && !lies_in(&parent, CACHE_DISK))
            return is_written_before(st, look.parent) ? FATE_WAITS : FATE_OVER;
        if (is_moving(st, node))
            return FATE_WAITS;
        if (!make_disk_room(st, st->info[node].entry, n, st->disk->n_writing))
            return FATE_OVER;
        enum fate fate = begin_write(st, o, node, n);
        if (fate != FATE_BEGUN)
            return fate;
    }
    if (n == o->n)
        return FATE_BEGUN;
    shift_offer(o, n);
    return FATE_WAITS;
}

/* The oldest offer first. An offer that must wait goes to the end, so that it does not delay
 * others. */
void save_begin(struct store *st)
{
    struct store_disk *d = st->disk;
    uint32_t n_tried = d->n_offers < N_OFFERS_TRIED ? d->n_offers : N_OFFERS_TRIED, n_begun = 0;

    while (n_tried-- > 0 && n_begun < N_WRITES_BEGUN) {
        uint32_t first = d->first_offer, end = (first + d->n_offers) % N_OFFERS;
        struct offer *o = d->offer_ring[first];
        enum fate fate = try_offer(st, o);

        d->first_offer = (first + 1) % N_OFFERS;
        if (fate == FATE_WAITS) { /* in a full ring both places are the same */
            struct offer *other = d->offer_ring[end];
            d->offer_ring[end] = o;
            if (end != first)
                d->offer_ring[first] = other;
            continue;
        }
        d->n_offers--;
        n_begun += fate == FATE_BEGUN;
        if (fate == FATE_OVER)
            unmark(st, o->keys, o->n);
    }
}

static void fill_records(const struct offer *o, struct tier_record *records)
{
    for (uint32_t i = 0; i < o->n; i++) {
        struct tier_record *r = &records[i];
        uint32_t at = i * KV_BLOCK_TOKENS;

        *r = (struct tier_record){.key = o->keys[i],
                                  .parent = i ? o->keys[i - 1] : o->parent,
                                  .scope = o->scope,
                                  .pos0 = o->pos0 + at,
                                  .depth = o->depth,
                                  .n_uses = o->n_uses,
                                  .starts_segment = i == 0 && o->starts_segment,
                                  .is_registered = o->is_registered};
        r->n_tokens = o->n_tokens - at < KV_BLOCK_TOKENS ? o->n_tokens - at : KV_BLOCK_TOKENS;
        memcpy(r->ids, o->ids + at, r->n_tokens * sizeof *r->ids);
    }
}

static void write_saved(struct store_disk *d, struct unit *u)
{
    struct tier_record records[NODE_N_BLOCKS_MAX];
    const void *from[NODE_N_BLOCKS_MAX];

    fill_records(&u->what, records);
    memcpy(from, u->buffers, u->what.n * sizeof *from);
    if (tier_write(d->slow.t, u->blocks, from, records, u->what.n, unit_tag(&d->slow, u)) == OK)
        u->state = UNIT_WRITING;
}

/* Give the node that begins with block i of a finished write its copy on disk. Returns its number
 * of blocks; 0: the tree does not have block i any more, or does not want it there. */
static uint32_t place_written(struct store *st, const struct unit *u, uint32_t i)
{
    const struct kv_key *keys = &u->what.keys[i];
    uint32_t node = ktree_find(st->tree, keys), n_left = u->what.n - i, n;
    struct ktree_node look, parent;

    if (node == KTREE_NONE)
        return 0;
    look = ktree_look(st->tree, node);
    parent = ktree_look(st->tree, look.parent);
    n = look.n_blocks < n_left ? look.n_blocks : n_left;
    if (u->is_stale || st->info[node].is_orphan || st->info[node].tail_of != KTREE_NONE ||
        lies_in(&look, CACHE_DISK) || (look.parent != KTREE_ROOT && !lies_in(&parent, CACHE_DISK)))
        return 0;
    for (uint32_t k = 1; k < n; k++) /* it may have been computed again, with other blocks */
        if (memcmp(ktree_key_at(st->tree, node, k), &keys[k], sizeof *keys) != 0)
            n = k;
    if (n < look.n_blocks && !node_split(st, node, n, &node))
        return 0;
    ktree_place(st->tree, node, CACHE_DISK, u->blocks + i);
    replace_insert(st->policy, order_of(st, CACHE_DISK), st->info[node].entry);
    return n;
}

void save_write_done(struct store *st, struct unit *u, enum status status)
{
    struct store_tier *t = &st->tier[CACHE_DISK];
    struct store_disk *d = st->disk;

    d->n_writing -= u->what.n;
    t->n_placing -= u->what.n;
    unmark(st, u->what.keys, u->what.n);
    if (status != OK) { /* the tier has logged it, and drops the blocks */
        d->no_write_until_ns = st->now_ns + WRITE_PAUSE_NS;
        drop_offers(st);
    }
    for (uint32_t i = 0, n; status == OK && i < u->what.n; i += n) {
        n = place_written(st, u, i);
        t->n_moved_in += n;
        if (n > 0)
            continue;
        n = 1; /* erase it: the node may be gone because a client erased it */
        tier_drop(t->t, &u->blocks[i], n, true);
    }
    u->state = UNIT_FREE;
}

void save_poll(struct store *st)
{
    struct store_disk *d = st->disk;

    for (uint32_t i = 0; i < N_UNITS && d->n_writing > 0; i++) {
        struct unit *u = &d->slow.units[i];

        if (u->state == UNIT_SAVING && is_move_over(st, u->save_no))
            u->state = UNIT_SAVED;
        if (u->state == UNIT_SAVED)
            write_saved(d, u);
    }
}
