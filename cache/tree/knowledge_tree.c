#include "cache/tree/knowledge_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/memory.h"
#include "cache/key.h"
#include "cache/tree/key_index.h"

struct node {
    uint32_t parent;
    uint32_t first_child, older, newer; /* children in a list; newer links unused nodes too */
    uint32_t first_block, last_block, n_blocks;
    uint32_t n_before, depth, n_pins, n_children, n_active_children;
    uint32_t tiers;
    uint32_t n_children_in[KTREE_N_TIERS_MAX];
    bool used;
};

struct block {
    struct kv_key key;
    uint32_t next; /* of the node; links unused blocks too */
};

struct ktree {
    uint32_t n_nodes_max, n_blocks_max, n_tiers;
    uint32_t unused_node, unused_block;
    uint32_t n_nodes_unused, n_blocks_unused;
    uint32_t n_pinned, n_blocks_active;
    uint32_t n_blocks_in[KTREE_N_TIERS_MAX];
    uint64_t memory_bytes;
    struct map by_first_key; /* first 8 bytes of a node's first key -> node */
    struct node *nodes;      /* [n_nodes_max + 1], the root first */
    struct block *blocks;    /* [n_blocks_max] */
    uint32_t *slots;         /* [n_blocks_max][n_tiers] */
    struct key_index *index; /* of the keys of all blocks, or NULL */
    void (*watch)(void *arg, uint32_t node, uint32_t tier, bool enters); /* or NULL */
    void *watch_arg;
};

static bool same_key(const struct kv_key *a, const struct kv_key *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static uint32_t fastest_of(uint32_t tiers)
{
    return tiers ? (uint32_t)__builtin_ctz(tiers) : KTREE_N_TIERS_MAX;
}

static struct node *node_at(const struct ktree *t, uint32_t node)
{
    ASSERT(node <= t->n_nodes_max && t->nodes[node].used);
    return &t->nodes[node];
}

static bool is_active(const struct node *n)
{
    return n->n_pins > 0 || n->n_active_children > 0;
}

static uint32_t *slot_at(const struct ktree *t, uint32_t block, uint32_t tier)
{
    return &t->slots[(uint64_t)block * t->n_tiers + tier];
}

/* --- lifecycle --- */

static void link_unused(struct ktree *t)
{
    t->unused_node = t->unused_block = KTREE_NONE;
    for (uint32_t i = t->n_nodes_max; i > 0; i--) { /* low ids first */
        t->nodes[i].newer = t->unused_node;
        t->unused_node = i;
    }
    for (uint32_t i = t->n_blocks_max; i-- > 0;) {
        t->blocks[i].next = t->unused_block;
        t->unused_block = i;
    }
    t->n_nodes_unused = t->n_nodes_max;
    t->n_blocks_unused = t->n_blocks_max;
    t->nodes[KTREE_ROOT] = (struct node){.parent = KTREE_NONE,
                                         .first_child = KTREE_NONE,
                                         .older = KTREE_NONE,
                                         .newer = KTREE_NONE,
                                         .first_block = KTREE_NONE,
                                         .last_block = KTREE_NONE,
                                         .tiers = (1u << t->n_tiers) - 1,
                                         .used = true};
}

enum status ktree_create(struct ktree **out, uint32_t n_nodes_max, uint32_t n_blocks_max,
                         uint32_t n_tiers)
{
    struct ktree *t = calloc(1, sizeof *t);

    *out = NULL;
    ASSERT(n_nodes_max > 0 && n_nodes_max < KTREE_NONE - 1 && n_blocks_max > 0 &&
           n_blocks_max < KTREE_NONE && n_tiers > 0 && n_tiers <= KTREE_N_TIERS_MAX);
    if (!t)
        return ERR_NOMEM;
    t->n_nodes_max = n_nodes_max;
    t->n_blocks_max = n_blocks_max;
    t->n_tiers = n_tiers;
    t->nodes = memory_zeroed((size_t)n_nodes_max + 1, sizeof *t->nodes);
    t->blocks = memory_zeroed(n_blocks_max, sizeof *t->blocks);
    t->slots = memory_zeroed((size_t)n_blocks_max * n_tiers, sizeof *t->slots);
    if (!t->nodes || !t->blocks || !t->slots || map_init(&t->by_first_key, n_nodes_max) != OK) {
        ktree_destroy(t);
        return ERR_NOMEM;
    }
    t->memory_bytes = sizeof *t + ((uint64_t)n_nodes_max + 1) * sizeof *t->nodes +
                      (uint64_t)n_blocks_max * (sizeof *t->blocks + n_tiers * sizeof *t->slots) +
                      ((uint64_t)t->by_first_key.mask + 1) * sizeof(struct map_slot);
    link_unused(t);
    *out = t;
    return OK;
}

void ktree_share_keys(struct ktree *t, struct key_index *x)
{
    t->index = x;
}

void ktree_watch(struct ktree *t, void (*fn)(void *arg, uint32_t node, uint32_t tier, bool enters),
                 void *arg)
{
    t->watch = fn;
    t->watch_arg = arg;
}

void ktree_destroy(struct ktree *t)
{
    if (!t)
        return;
    map_fini(&t->by_first_key);
    free(t->slots);
    free(t->blocks);
    free(t->nodes);
    free(t);
}

/* --- links --- */

static uint32_t take_node(struct ktree *t)
{
    uint32_t node = t->unused_node;

    t->unused_node = t->nodes[node].newer;
    t->n_nodes_unused--;
    t->nodes[node] = (struct node){.parent = KTREE_NONE,
                                   .first_child = KTREE_NONE,
                                   .first_block = KTREE_NONE,
                                   .last_block = KTREE_NONE,
                                   .used = true};
    return node;
}

static void link_child(struct ktree *t, uint32_t parent, uint32_t node)
{
    struct node *p = &t->nodes[parent], *n = &t->nodes[node];

    n->parent = parent;
    n->older = KTREE_NONE;
    n->newer = p->first_child;
    if (n->newer != KTREE_NONE)
        t->nodes[n->newer].older = node;
    p->first_child = node;
    p->n_children++;
    for (uint32_t tier = 0; tier < t->n_tiers; tier++)
        p->n_children_in[tier] += n->tiers >> tier & 1;
}

static void unlink_child(struct ktree *t, uint32_t node)
{
    struct node *n = &t->nodes[node], *p = &t->nodes[n->parent];

    if (n->older != KTREE_NONE)
        t->nodes[n->older].newer = n->newer;
    else
        p->first_child = n->newer;
    if (n->newer != KTREE_NONE)
        t->nodes[n->newer].older = n->older;
    p->n_children--;
    for (uint32_t tier = 0; tier < t->n_tiers; tier++)
        p->n_children_in[tier] -= n->tiers >> tier & 1;
}

static const struct kv_key *first_key(const struct ktree *t, const struct node *n)
{
    return &t->blocks[n->first_block].key;
}

static void append_blocks(struct ktree *t, struct node *n, uint32_t tier, const struct kv_key *keys,
                          const uint32_t *slots, uint32_t n_new)
{
    for (uint32_t i = 0; i < n_new; i++) {
        uint32_t block = t->unused_block;

        t->unused_block = t->blocks[block].next;
        t->blocks[block] = (struct block){keys[i], KTREE_NONE};
        *slot_at(t, block, tier) = slots[i];
        key_index_add(t->index, &keys[i]);
        if (n->last_block != KTREE_NONE)
            t->blocks[n->last_block].next = block;
        else
            n->first_block = block;
        n->last_block = block;
    }
    n->n_blocks += n_new;
    t->n_blocks_unused -= n_new;
    t->n_blocks_in[tier] += n_new;
}

/* --- finding --- */

/* The number of the node's first blocks that have these keys. A key is a hash over everything
 * before it, too: if the last one is equal, all are. */
static uint32_t count_equal(const struct ktree *t, const struct node *n, const struct kv_key *keys,
                            uint32_t n_keys)
{
    uint32_t i = 0;

    if (n_keys >= n->n_blocks && same_key(&t->blocks[n->last_block].key, &keys[n->n_blocks - 1]))
        return n->n_blocks;
    for (uint32_t block = n->first_block; block != KTREE_NONE && i < n_keys; i++) {
        if (!same_key(&t->blocks[block].key, &keys[i]))
            break;
        block = t->blocks[block].next;
    }
    return i;
}

/* Prefetch the next nodes into the processor's cache. A walk through a large tree misses that cache
 * three times per node: for the map slot, the node, and its last block. Most nodes of a long path
 * are whole segments, so the first keys of the next nodes can be guessed. A wrong guess costs only
 * the prefetch. */
static void prefetch_ahead(const struct ktree *t, const struct kv_key *keys, uint32_t n_keys)
{
    const uint32_t step = KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS;
    uint32_t node;

    if (n_keys > 6 * step)
        map_prefetch(&t->by_first_key, short_key(&keys[6 * step]));
    if (n_keys > 4 * step && map_get(&t->by_first_key, short_key(&keys[4 * step]), &node)) {
        __builtin_prefetch(&t->nodes[node]);
        __builtin_prefetch(&t->nodes[node].n_before);
    }
    if (n_keys > 2 * step && map_get(&t->by_first_key, short_key(&keys[2 * step]), &node))
        __builtin_prefetch(&t->blocks[t->nodes[node].last_block]);
}

struct ktree_match ktree_match(const struct ktree *t, const struct kv_key *keys, uint32_t n_keys)
{
    struct ktree_match m = {.node = KTREE_ROOT};
    uint32_t next;

    while (m.n_blocks < n_keys && map_get(&t->by_first_key, short_key(&keys[m.n_blocks]), &next)) {
        uint32_t n = count_equal(t, &t->nodes[next], keys + m.n_blocks, n_keys - m.n_blocks);

        /* n == 0 or another parent: only the first 64 bits of the keys were equal. */
        if (n == 0 || t->nodes[next].parent != m.node)
            break;
        m.node = next;
        m.n_in_node = n;
        m.n_blocks += n;
        prefetch_ahead(t, keys + m.n_blocks, n_keys - m.n_blocks);
        if (n < t->nodes[next].n_blocks)
            break;
    }
    return m;
}

uint32_t ktree_find(const struct ktree *t, const struct kv_key *first)
{
    uint32_t node;

    if (!map_get(&t->by_first_key, short_key(first), &node) ||
        !same_key(first_key(t, &t->nodes[node]), first))
        return KTREE_NONE;
    return node;
}

uint32_t ktree_find_part(const struct ktree *t, const struct kv_key *first, uint32_t n)
{
    uint32_t node;

    ASSERT(n >= sizeof(uint64_t) && n <= sizeof first->bytes);
    if (!map_get(&t->by_first_key, short_key(first), &node) ||
        memcmp(first_key(t, &t->nodes[node])->bytes, first->bytes, n) != 0)
        return KTREE_NONE;
    return node;
}

/* --- growing --- */

enum status ktree_split(struct ktree *t, uint32_t node, uint32_t n_upper, uint32_t *upper)
{
    struct node *low = node_at(t, node), *up;
    uint32_t block = low->first_block;
    uint32_t id;

    ASSERT(n_upper > 0 && n_upper < low->n_blocks);
    for (uint32_t i = 1; i < n_upper; i++)
        block = t->blocks[block].next;
    /* Two nodes cannot have first keys with equal first 64 bits. This practically never happens. */
    if (t->unused_node == KTREE_NONE ||
        map_get(&t->by_first_key, short_key(&t->blocks[t->blocks[block].next].key), &id))
        return ERR_NO_BLOCKS;
    id = take_node(t);
    up = &t->nodes[id];
    up->depth = low->depth;
    up->n_before = low->n_before;
    up->n_active_children = is_active(low);
    up->tiers = low->tiers;
    up->n_blocks = n_upper;
    up->first_block = low->first_block;
    up->last_block = block;
    uint32_t parent = low->parent;
    unlink_child(t, node);
    map_put(&t->by_first_key, short_key(first_key(t, up)), id); /* instead of node */
    low->first_block = t->blocks[block].next;
    low->n_blocks -= n_upper;
    low->n_before += n_upper;
    t->blocks[block].next = KTREE_NONE;
    map_put(&t->by_first_key, short_key(first_key(t, low)), node);
    link_child(t, parent, id);
    link_child(t, id, node);
    *upper = id;
    return OK;
}

enum status ktree_add(struct ktree *t, uint32_t parent, uint32_t depth, uint32_t tier,
                      const struct kv_key *keys, const uint32_t *slots, uint32_t n, uint32_t *node)
{
    uint32_t id;

    ASSERT(n > 0 && tier < t->n_tiers && fastest_of(node_at(t, parent)->tiers) <= tier);
    if (t->unused_node == KTREE_NONE || n > t->n_blocks_unused)
        return ERR_NO_BLOCKS;
    if (map_get(&t->by_first_key, short_key(&keys[0]), &id)) {
        ASSERT(!same_key(first_key(t, &t->nodes[id]), &keys[0]));
        return ERR_NO_BLOCKS; /* equal first 64 bits: do not cache it, so that lookups stay exact */
    }
    id = take_node(t);
    t->nodes[id].depth = depth;
    t->nodes[id].n_before = t->nodes[parent].n_before + t->nodes[parent].n_blocks;
    t->nodes[id].tiers = 1u << tier;
    append_blocks(t, &t->nodes[id], tier, keys, slots, n);
    map_put(&t->by_first_key, short_key(&keys[0]), id);
    link_child(t, parent, id);
    *node = id;
    return OK;
}

enum status ktree_extend(struct ktree *t, uint32_t node, uint32_t tier, const struct kv_key *keys,
                         const uint32_t *slots, uint32_t n)
{
    struct node *x = node_at(t, node);

    ASSERT(node != KTREE_ROOT && x->n_children == 0 && x->tiers == 1u << tier);
    if (n > t->n_blocks_unused)
        return ERR_NO_BLOCKS;
    append_blocks(t, x, tier, keys, slots, n);
    t->n_blocks_active += is_active(x) ? n : 0;
    return OK;
}

/* --- tiers and pins --- */

void ktree_place(struct ktree *t, uint32_t node, uint32_t tier, const uint32_t *slots)
{
    struct node *n = node_at(t, node);
    uint32_t i = 0;

    ASSERT(node != KTREE_ROOT && tier < t->n_tiers && !(n->tiers >> tier & 1));
    ASSERT(fastest_of(t->nodes[n->parent].tiers) <= tier);
    for (uint32_t block = n->first_block; block != KTREE_NONE; block = t->blocks[block].next)
        *slot_at(t, block, tier) = slots[i++];
    n->tiers |= 1u << tier;
    t->nodes[n->parent].n_children_in[tier]++;
    t->n_blocks_in[tier] += n->n_blocks;
    if (t->watch)
        t->watch(t->watch_arg, node, tier, true);
}

bool ktree_can_leave(const struct ktree *t, uint32_t node, uint32_t tier)
{
    const struct node *n = node_at(t, node);
    uint32_t left = n->tiers & ~(1u << tier);

    if (node == KTREE_ROOT || !(n->tiers >> tier & 1) ||
        (n->n_pins > 0 && fastest_of(n->tiers) == tier))
        return false;
    for (uint32_t faster = 0; faster < t->n_tiers && faster < fastest_of(left); faster++)
        if (n->n_children_in[faster] > 0)
            return false;
    return true;
}

static void free_node(struct ktree *t, uint32_t node)
{
    struct node *n = &t->nodes[node];

    ASSERT(map_remove(&t->by_first_key, short_key(first_key(t, n))));
    unlink_child(t, node);
    for (uint32_t b = n->first_block; t->index && b != KTREE_NONE; b = t->blocks[b].next)
        key_index_remove(t->index, &t->blocks[b].key);
    t->blocks[n->last_block].next = t->unused_block;
    t->unused_block = n->first_block;
    t->n_blocks_unused += n->n_blocks;
    n->used = false;
    n->newer = t->unused_node;
    t->unused_node = node;
    t->n_nodes_unused++;
}

bool ktree_leave(struct ktree *t, uint32_t node, uint32_t tier)
{
    struct node *n = node_at(t, node);

    ASSERT(ktree_can_leave(t, node, tier));
    if (t->watch)
        t->watch(t->watch_arg, node, tier, false);
    n->tiers &= ~(1u << tier);
    t->nodes[n->parent].n_children_in[tier]--;
    t->n_blocks_in[tier] -= n->n_blocks;
    if (n->tiers)
        return false;
    ASSERT(n->n_children == 0);
    free_node(t, node);
    return true;
}

void ktree_pin(struct ktree *t, uint32_t node)
{
    struct node *n = node_at(t, node);
    bool was_active = is_active(n);

    t->n_pinned += n->n_pins++ == 0;
    for (; !was_active; n = &t->nodes[n->parent]) {
        t->n_blocks_active += n->n_blocks;
        if (n->parent == KTREE_NONE)
            break;
        was_active = is_active(&t->nodes[n->parent]);
        t->nodes[n->parent].n_active_children++;
    }
}

void ktree_unpin(struct ktree *t, uint32_t node)
{
    struct node *n = node_at(t, node);

    ASSERT(n->n_pins > 0);
    t->n_pinned -= --n->n_pins == 0;
    for (; !is_active(n); n = &t->nodes[n->parent]) {
        t->n_blocks_active -= n->n_blocks;
        if (n->parent == KTREE_NONE)
            break;
        t->nodes[n->parent].n_active_children--;
    }
}

/* --- looking --- */

struct ktree_node ktree_look(const struct ktree *t, uint32_t node)
{
    const struct node *n = node_at(t, node);

    return (struct ktree_node){.parent = n->parent,
                               .depth = n->depth,
                               .n_blocks = n->n_blocks,
                               .n_children = n->n_children,
                               .n_before = n->n_before,
                               .n_pins = n->n_pins,
                               .n_active_children = n->n_active_children,
                               .tiers = n->tiers,
                               .fastest = fastest_of(n->tiers)};
}

bool ktree_is_active(const struct ktree *t, uint32_t node)
{
    return is_active(node_at(t, node));
}

void ktree_slots(const struct ktree *t, uint32_t node, uint32_t tier, uint32_t *slots, uint32_t n)
{
    const struct node *x = node_at(t, node);
    uint32_t block = x->first_block;

    ASSERT(tier < t->n_tiers && (x->tiers >> tier & 1) && n <= x->n_blocks);
    for (uint32_t i = 0; i < n; i++, block = t->blocks[block].next)
        slots[i] = *slot_at(t, block, tier);
}

const struct kv_key *ktree_key(const struct ktree *t, uint32_t node)
{
    const struct node *n = node_at(t, node);

    ASSERT(node != KTREE_ROOT);
    return &t->blocks[n->last_block].key;
}

const struct kv_key *ktree_key_at(const struct ktree *t, uint32_t node, uint32_t i)
{
    const struct node *n = node_at(t, node);
    uint32_t block = n->first_block;

    ASSERT(i < n->n_blocks);
    while (i-- > 0)
        block = t->blocks[block].next;
    return &t->blocks[block].key;
}

uint32_t ktree_first_child(const struct ktree *t, uint32_t node)
{
    return node_at(t, node)->first_child;
}

uint32_t ktree_next_sibling(const struct ktree *t, uint32_t node)
{
    return node == KTREE_ROOT ? KTREE_NONE : node_at(t, node)->newer;
}

uint32_t ktree_next_outside(const struct ktree *t, uint32_t node, uint32_t top)
{
    while (node != top) {
        uint32_t sibling = node_at(t, node)->newer;

        if (sibling != KTREE_NONE)
            return sibling;
        node = t->nodes[node].parent;
    }
    return KTREE_NONE;
}

uint32_t ktree_next(const struct ktree *t, uint32_t node, uint32_t top)
{
    uint32_t child = node_at(t, node)->first_child;

    return child != KTREE_NONE ? child : ktree_next_outside(t, node, top);
}

void ktree_stats(const struct ktree *t, struct ktree_stats *out)
{
    *out = (struct ktree_stats){
        .n_nodes = t->n_nodes_max - t->n_nodes_unused,
        .n_blocks = t->n_blocks_max - t->n_blocks_unused,
        .n_pinned = t->n_pinned,
        .n_blocks_active = t->n_blocks_active,
        .memory_bytes = t->memory_bytes,
    };
    memcpy(out->n_blocks_in, t->n_blocks_in, sizeof out->n_blocks_in);
}

/* Check a node's links to its children and its counts of them. Returns its number of blocks. */
static uint32_t check_node(const struct ktree *t, uint32_t node)
{
    const struct node *n = &t->nodes[node];
    uint32_t n_children = 0, n_blocks = 0, n_active = 0, n_in[KTREE_N_TIERS_MAX] = {0};
    uint32_t older = KTREE_NONE;

    for (uint32_t c = n->first_child; c != KTREE_NONE; c = t->nodes[c].newer) {
        const struct node *child = node_at(t, c);

        ASSERT(child->parent == node && child->older == older);
        ASSERT(fastest_of(n->tiers) <= fastest_of(child->tiers)); /* the invariant */
        ASSERT(child->n_before == n->n_before + n->n_blocks);
        older = c;
        n_children++;
        n_active += is_active(child);
        for (uint32_t tier = 0; tier < t->n_tiers; tier++)
            n_in[tier] += child->tiers >> tier & 1;
    }
    for (uint32_t b = n->first_block; b != KTREE_NONE; b = t->blocks[b].next) {
        n_blocks++;
        ASSERT((t->blocks[b].next == KTREE_NONE) == (b == n->last_block));
    }
    ASSERT(n_children == n->n_children && n_blocks == n->n_blocks && n->tiers != 0);
    ASSERT(n_active == n->n_active_children);
    ASSERT(memcmp(n_in, n->n_children_in, sizeof n_in) == 0);
    return n_blocks;
}

void ktree_check(const struct ktree *t)
{
    uint32_t n_used = 0, n_blocks = 0, n_pinned = 0, n_unused = 0, n_children = 0;
    uint32_t n_in[KTREE_N_TIERS_MAX] = {0}, n_active = 0, found;

    for (uint32_t i = 0; i <= t->n_nodes_max; i++) {
        const struct node *n = &t->nodes[i];
        uint32_t n_here;

        if (!n->used)
            continue;
        n_here = check_node(t, i);
        n_used++;
        n_blocks += n_here;
        n_pinned += n->n_pins > 0;
        n_active += is_active(n) ? n_here : 0;
        n_children += n->n_children;
        if (i == KTREE_ROOT)
            continue;
        ASSERT(n_here > 0 && map_get(&t->by_first_key, short_key(first_key(t, n)), &found));
        ASSERT(found == i);
        for (uint32_t tier = 0; tier < t->n_tiers; tier++)
            n_in[tier] += n->tiers >> tier & 1 ? n_here : 0;
    }
    for (uint32_t b = t->unused_block; b != KTREE_NONE; b = t->blocks[b].next)
        n_unused++;
    ASSERT(n_children == n_used - 1 && t->by_first_key.n == n_used - 1);
    ASSERT(n_used - 1 + t->n_nodes_unused == t->n_nodes_max);
    ASSERT(n_unused == t->n_blocks_unused && n_blocks + n_unused == t->n_blocks_max);
    ASSERT(n_pinned == t->n_pinned && n_active == t->n_blocks_active);
    ASSERT(memcmp(n_in, t->n_blocks_in, sizeof n_in) == 0);
}
