/* kv_store_path.c - the paths of sequences: match, attach, append, tails. */
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

static void note_user(struct node_info *info, const struct store_use *use)
{
    if (info->owner != use->session)
        info->owner = 0;
}

/* Count a use of the node. n: blocks of it that the request uses. */
static void count_use(struct store *st, uint32_t node, uint32_t n, const struct store_use *use,
                      bool was_cached)
{
    struct node_info *info = &st->info[node];
    struct replace_access access = {.was_cached = was_cached,
                                    .miss_s_per_byte = use->miss_s_per_byte,
                                    .own_s_per_byte = own_seconds_per_byte(st, node)};

    note_user(info, use);
    replace_accessed(st->policy, info->entry, &access);
    info->n_uses++;
    info->used_ns = st->now_ns;
    if (st->disk)
        disk_offer(st, node, n, use, false);
}

/* --- attaching --- */

/* Shorten the match to end before this node of its path. */
static void cut_match(const struct store *st, struct ktree_match *m, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    *m = (struct ktree_match){look.parent, ktree_look(st->tree, look.parent).n_blocks,
                              look.n_before};
}

/* Nodes in slow tiers only are at the end of the path, because a parent lies in a tier at least as
 * fast as its children. Orphans are never found, even while a sequence still uses them. */
struct ktree_match store_match(const struct store *st, const struct kv_key *keys, uint32_t n)
{
    struct ktree_match m = ktree_match(st->tree, keys, n);

    for (uint32_t x = m.node; (st->disk || st->remote) && x != KTREE_ROOT; x = m.node) {
        struct ktree_node look = ktree_look(st->tree, x);

        if (!lies_slow_only(&look))
            break;
        cut_match(st, &m, x);
    }
    for (uint32_t x = m.node; st->n_orphans > 0 && x != KTREE_ROOT;
         x = ktree_look(st->tree, x).parent)
        if (st->info[x].is_orphan)
            cut_match(st, &m, x);
    return m;
}

struct ktree_match store_match_all(const struct store *st, const struct kv_key *keys, uint32_t n)
{
    return ktree_match(st->tree, keys, n);
}

/* Tokens of a node's first n blocks. Only its last block may be partly filled. */
static uint32_t tokens_of(const struct store *st, uint32_t node, uint32_t n)
{
    const struct node_info *info = &st->info[node];

    return n == ktree_look(st->tree, node).n_blocks ? info->n_tokens : n * KV_BLOCK_TOKENS;
}

uint32_t store_match_tokens(const struct store *st, const struct ktree_match *m)
{
    if (m->node == KTREE_ROOT)
        return 0;
    return st->info[m->node].pos0 + tokens_of(st, m->node, m->n_in_node);
}

uint32_t store_need(const struct store *st, const struct ktree_match *m)
{
    uint32_t n = 0;

    for (uint32_t node = m->node; node != KTREE_ROOT;) {
        struct ktree_node look = ktree_look(st->tree, node);

        if (lies_in(&look, CACHE_DEVICE) && (look.n_pins || look.n_active_children))
            break; /* pinned already, and so are all nodes before it */
        n += look.n_blocks;
        node = look.parent;
    }
    return n;
}

/* List the nodes of the path to `node` in st->path, the root's child first. Returns their number.
 */
static uint32_t list_path(struct store *st, uint32_t node)
{
    uint32_t n = 0;

    for (uint32_t x = node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent)
        st->path[n++] = x;
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t other = st->path[i];
        st->path[i] = st->path[n - 1 - i];
        st->path[n - 1 - i] = other;
    }
    return n;
}

/* Fetch the nodes path[first, n) from the host, one by one; *pinned advances to the last one that
 * is on the device. Returns the number of nodes of the path on the device. */
static uint32_t fetch_path(struct store *st, uint32_t first, uint32_t n, uint32_t *pinned)
{
    uint32_t end = st->info[st->path[n - 1]].entry, i;

    /* Making room must not evict the end of this path from the host. */
    replace_pin(st->policy, CACHE_HOST, end);
    for (i = first; i < n; i++) {
        if (i == n - 1)
            replace_unpin(st->policy, CACHE_HOST, end); /* fetch_node() pins it itself */
        if (!fetch_node(st, st->path[i]))
            break;
        move_pin(st, *pinned, st->path[i]);
        *pinned = st->path[i];
    }
    if (i < n - 1)
        replace_unpin(st->policy, CACHE_HOST, end);
    return i;
}

/* A sequence now uses this node: order kernels behind its fetch, if one is under way, and return
 * the node's blocks to the prefetch budget. */
static void take_over(struct store *st, uint32_t node)
{
    struct node_info *info = &st->info[node];

    wait_for_fetch(st, node);
    info->read_from = 0;
    if (!info->is_prefetched)
        return;
    info->is_prefetched = false;
    st->n_prefetched -= ktree_look(st->tree, node).n_blocks;
}

/* Give a sequence the first n blocks of a node that is on the device. */
static void take_node(struct store *st, uint32_t node, uint32_t n, bool from_host,
                      const struct store_use *use, uint32_t *blocks, uint32_t *found)
{
    struct node_info *info = &st->info[node];
    uint32_t n_tokens = tokens_of(st, node, n);
    enum cache_tier lay = info->read_from                    ? (enum cache_tier)info->read_from
                          : from_host || info->is_prefetched ? CACHE_HOST
                                                             : CACHE_DEVICE;

    ktree_slots(st->tree, node, CACHE_DEVICE, blocks, n);
    take_over(st, node);
    found[lay] += n;
    note_user(info, use);
    if (!use->is_new)
        return;
    count_use(st, node, n, use, true);
    info->n_hit_tokens += n_tokens;
    double saved_s = saved_seconds(st, node, n_tokens);
    info->saved_s += saved_s;
    st->saved_s += saved_s;
    st->tier[lay].saved_s += saved_s;
    st->tier[lay].n_hit_tokens += n_tokens;
}

void store_attach(struct store *st, const struct ktree_match *m, const struct store_use *use,
                  struct store_end *end, uint32_t *blocks, uint32_t *found)
{
    uint32_t n = m->node == KTREE_ROOT ? 0 : list_path(st, m->node), n_there = 0, n_on_device;
    uint32_t pinned = KTREE_ROOT;

    ASSERT(end->node == KTREE_ROOT);
    for (enum cache_tier tier = 0; tier < CACHE_N_TIERS; tier++)
        found[tier] = 0;
    while (n_there < n) {
        struct ktree_node look = ktree_look(st->tree, st->path[n_there]);
        if (!lies_in(&look, CACHE_DEVICE))
            break;
        pinned = st->path[n_there++];
    }
    move_pin(st, KTREE_ROOT, pinned);
    n_on_device = n_there < n ? fetch_path(st, n_there, n, &pinned) : n;
    end->node = pinned;
    end->n_blocks =
        n_on_device == n ? m->n_blocks : ktree_look(st->tree, st->path[n_on_device]).n_before;
    for (uint32_t i = 0; i < n_on_device; i++) {
        struct ktree_node look = ktree_look(st->tree, st->path[i]);
        uint32_t left = end->n_blocks - look.n_before;

        take_node(st, st->path[i], left < look.n_blocks ? left : look.n_blocks, i >= n_there, use,
                  blocks + look.n_before, found);
    }
    /* The request shares only the first blocks of a node that it does not use whole. */
    if (n_on_device > 0 && n_on_device == n &&
        m->n_in_node < ktree_look(st->tree, m->node).n_blocks)
        n_on_device--;
    tell_path(st, st->path, n_on_device, use);
}

void store_release(struct store *st, struct store_end *end)
{
    if (end->node != KTREE_ROOT) {
        node_unpin(st, end->node);
        return_borrowed(st, end->node);
    }
    *end = (struct store_end){KTREE_ROOT, 0};
}

uint32_t store_reclaimable(const struct store *st, const struct store_end *end)
{
    struct ktree_node look;
    uint32_t n = 0, n_pins = 1, n_below = 0;

    for (uint32_t node = end->node; node != KTREE_ROOT; node = look.parent) {
        look = ktree_look(st->tree, node);
        if (look.n_pins != n_pins || look.n_active_children != n_below)
            break; /* other sequences use it, and so all nodes before it */
        n += look.n_blocks;
        n_pins = 0;
        n_below = 1;
    }
    return n;
}

/* --- growing --- */

/* Move the end up to the node in which the path ends now: other sequences may have split the node.
 */
static void climb(struct store *st, struct store_end *end)
{
    struct ktree_node look;

    while (end->node != KTREE_ROOT &&
           (look = ktree_look(st->tree, end->node)).n_before >= end->n_blocks) {
        move_pin(st, end->node, look.parent);
        end->node = look.parent;
    }
}

static void move_end(struct store *st, struct store_end *end, uint32_t node)
{
    move_pin(st, end->node, node);
    end->node = node;
}

static uint32_t run_tokens(const struct store_run *run, uint32_t i, uint32_t n)
{
    return i + n == run->n ? run->n_tokens - i * KV_BLOCK_TOKENS : n * KV_BLOCK_TOKENS;
}

/* Enter blocks [i, run->n) of the run as a new node behind the end. */
static bool add_node(struct store *st, struct store_end *end, const struct store_run *run,
                     uint32_t i, const struct store_use *use)
{
    uint32_t n = run->n - i;
    uint32_t node = node_enter(
        st, &(struct node_birth){.parent = end->node,
                                 .depth = run->depth,
                                 .pos0 = run->pos0 + i * KV_BLOCK_TOKENS,
                                 .n_tokens = run_tokens(run, i, n),
                                 .tier = CACHE_DEVICE,
                                 .keys = run->keys + i,
                                 .slots = run->blocks + i,
                                 .n = n,
                                 .starts_segment = i == 0 && run->starts_segment,
                                 .is_public = run->pos0 + run->n_tokens <= use->n_public});

    if (node == KTREE_NONE)
        return false;
    count_use(st, node, n, use, false);
    /* More than this use: the node was in the tree before, and another session may have used it. */
    if (replace_n_uses(st->policy, st->info[node].entry) == 1)
        st->info[node].owner = use->session;
    replace_insert(st->policy, CACHE_DEVICE, st->info[node].entry);
    move_end(st, end, node);
    return true;
}

static bool extend_node(struct store *st, const struct store_end *end, const struct store_run *run,
                        uint32_t i)
{
    struct node_info *info = &st->info[end->node];
    uint32_t n = run->n - i;
    uint64_t bytes = (ktree_look(st->tree, end->node).n_blocks + (uint64_t)n) * st->block_bytes;

    if (!replace_grow(st->policy, info->entry, short_key(&run->keys[run->n - 1]), bytes))
        return false;
    enum status s =
        ktree_extend(st->tree, end->node, CACHE_DEVICE, run->keys + i, run->blocks + i, n);
    ASSERT(s == OK); /* there are as many records as blocks */
    info->n_tokens += run_tokens(run, i, n);
    info->is_borrowed = false; /* it goes on here */
    return true;
}

/* The number of the node's first blocks that equal the run from block i on. */
static uint32_t n_alike(const struct store *st, uint32_t node, const struct store_run *run,
                        uint32_t i)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, k = 1;

    while (k < n && i + k < run->n &&
           memcmp(ktree_key_at(st->tree, node, k), &run->keys[i + k], sizeof *run->keys) == 0)
        k++;
    return k;
}

static bool lies_in_remote(const struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    return lies_in(&look, CACHE_REMOTE);
}

/* The tree has *n blocks of the run from i on, in a node that does not lie on the device. The
 * private blocks become its copies on the device; they are equal by promise P1. */
static bool place_in_child(struct store *st, struct store_end *end, uint32_t child,
                           const struct store_run *run, uint32_t i, const struct store_use *use,
                           uint32_t *n)
{
    *n = n_alike(st, child, run, i);
    if (ktree_look(st->tree, child).n_blocks > *n && !node_split(st, child, *n, &child))
        return false;
    ktree_place(st->tree, child, CACHE_DEVICE, &run->blocks[i]);
    if (lies_in_remote(st, child))
        (void)leave_remote(st, child);
    count_use(st, child, *n, use, false);
    replace_insert(st->policy, CACHE_DEVICE, st->info[child].entry);
    move_end(st, end, child);
    st->n_private -= *n;
    return true;
}

/* Compare block i of the run with the tree, and use the tree's block if it is equal. *n: blocks
 * from i on that are done, 0 if the tree has none there. False: the run cannot be entered. */
static bool meet_tree(struct store *st, struct store_end *end, const struct store_run *run,
                      uint32_t i, const struct store_use *use, uint32_t *n)
{
    struct ktree_node look = ktree_look(st->tree, end->node);
    uint32_t at = end->n_blocks - look.n_before, child, slots[NODE_N_BLOCKS_MAX];

    *n = 1;
    if (at < look.n_blocks) {
        const struct kv_key *key = ktree_key_at(st->tree, end->node, at);

        if (memcmp(key, &run->keys[i], sizeof *key) == 0) {
            ktree_slots(st->tree, end->node, CACHE_DEVICE, slots, at + 1);
            store_give(st, run->blocks[i]);
            run->blocks[i] = slots[at];
            return true;
        }
        if (!node_split(st, end->node, at, &child))
            return false;
        move_end(st, end, child);
    }
    child = ktree_find(st->tree, &run->keys[i]);
    *n = child != KTREE_NONE;
    if (*n == 0)
        return true;
    look = ktree_look(st->tree, child);
    if (look.parent != end->node)
        return false;
    if (!lies_in(&look, CACHE_DEVICE))
        return place_in_child(st, end, child, run, i, use, n);
    count_use(st, child, n_alike(st, child, run, i), use, false);
    move_end(st, end, child);
    take_over(st, child); /* a prefetch of it may be under way */
    ktree_slots(st->tree, child, CACHE_DEVICE, slots, 1);
    store_give(st, run->blocks[i]);
    run->blocks[i] = slots[0];
    return true;
}

static bool can_extend(const struct store *st, const struct store_end *end,
                       const struct store_run *run, uint32_t i)
{
    struct ktree_node look = ktree_look(st->tree, end->node);

    /* A node that is being written must keep its blocks: the unit names it by their keys. */
    return end->node != KTREE_ROOT && look.n_children == 0 && look.tiers == 1u << CACHE_DEVICE &&
           (i > 0 || !run->starts_segment) && st->info[end->node].n_lent == 0 &&
           !st->info[end->node].is_offered && !st->info[end->node].is_writing;
}

uint32_t store_append(struct store *st, struct store_end *end, const struct store_run *run,
                      const struct store_use *use)
{
    uint32_t n;

    ASSERT(run->n > 0 && run->n <= NODE_N_BLOCKS_MAX);
    for (uint32_t i = 0; i < run->n; i += n, end->n_blocks += n) {
        climb(st, end);
        if (!meet_tree(st, end, run, i, use, &n))
            return i;
        if (n > 0)
            continue;
        if (can_extend(st, end, run, i) ? !extend_node(st, end, run, i)
                                        : !add_node(st, end, run, i, use))
            return i;
        tell_appended(st, end->node, run->n - i, use);
        st->n_private -= run->n - i;
        end->n_blocks += run->n - i;
        break;
    }
    return run->n;
}

/* --- tails --- */

bool store_leave_tail(struct store *st, struct store_end *end, const struct kv_key *key,
                      uint32_t block, uint32_t pos0, uint32_t n_tokens, uint32_t depth,
                      const struct store_use *use)
{
    struct store_run run = {key, &block, 1, pos0, n_tokens, depth, true};
    struct store_use unnamed = {
        .is_new = use->is_new, .miss_s_per_byte = use->miss_s_per_byte, .session = use->session};
    struct store_end at;

    climb(st, end);
    if (end->node == KTREE_ROOT ||
        end->n_blocks <
            ktree_look(st->tree, end->node).n_before + ktree_look(st->tree, end->node).n_blocks ||
        ktree_find(st->tree, key) != KTREE_NONE)
        return false;
    at = *end;
    node_pin(st, at.node);                       /* add_node() moves this pin */
    if (!add_node(st, &at, &run, 0, &unnamed)) { /* unnamed: tails are not written to disk */
        node_unpin(st, at.node);
        return false;
    }
    node_unpin(st, at.node);
    st->info[at.node].tail_of = end->node;
    st->info[end->node].n_tails++;
    st->n_private--;
    return true;
}

bool store_has_tails(const struct store *st, const struct ktree_match *m)
{
    return m->node != KTREE_ROOT && st->info[m->node].n_tails > 0 &&
           m->n_in_node == ktree_look(st->tree, m->node).n_blocks;
}

uint32_t store_find_tail(const struct store *st, const struct ktree_match *m,
                         const struct kv_key *key)
{
    uint32_t node = ktree_find(st->tree, key);
    struct ktree_node look;

    if (node == KTREE_NONE || st->info[node].tail_of != m->node)
        return KTREE_NONE;
    look = ktree_look(st->tree, node);
    if (look.n_children || look.n_pins || st->info[node].n_lent || is_moving(st, node) ||
        (st->copies && !lies_in(&look, CACHE_DEVICE))) /* taking it would wait for a copy */
        return KTREE_NONE;
    return node;
}

bool store_take_tail(struct store *st, uint32_t node, const struct store_use *use, uint32_t *block,
                     enum cache_tier *lay)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t entry = st->info[node].entry, n_tokens = st->info[node].n_tokens, slot;

    *lay = lies_in(&look, CACHE_DEVICE) ? CACHE_DEVICE : CACHE_HOST;
    if (*lay == CACHE_HOST && !fetch_node(st, node))
        return false;
    look = ktree_look(st->tree, node);
    ktree_slots(st->tree, node, CACHE_DEVICE, block, 1);
    if (use->is_new) {
        count_use(st, node, 1, use, true);
        st->tier[*lay].n_hit_tokens += n_tokens;
        st->saved_s += saved_seconds(st, node, n_tokens);
        st->tier[*lay].saved_s += saved_seconds(st, node, n_tokens);
    }
    if (lies_in(&look, CACHE_HOST)) {
        ktree_slots(st->tree, node, CACHE_HOST, &slot, 1);
        replace_remove(st->policy, CACHE_HOST, entry);
        (void)ktree_leave(st->tree, node, CACHE_HOST);
        tier_drop(host_tier(st), &slot, 1, false);
    }
    if (st->info[node].is_prefetched)
        st->n_prefetched--;
    replace_remove(st->policy, CACHE_DEVICE, entry);
    if (ktree_leave(st->tree, node, CACHE_DEVICE))
        node_left(st, node, entry);
    st->n_private++;
    return true;
}
