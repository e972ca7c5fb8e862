/* kv_store_move.c - moves of nodes between tiers: moves under way, making room, evicting, spilling
 * to the host, fetching from it.
 *
 * Order of copies and kernels where the tiers are separate memories (tier.h has the calls):
 *   - Blocks whose spill is under way are handed out again only with kernels and fetches ordered
 *     behind the spill.
 *   - A fetch is ordered behind the spill that brought the node to the host, and kernels that read
 *     the node behind the fetch. */
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

/* --- moves under way --- */

bool is_move_over(const struct store *st, uint64_t no)
{
    return no <= st->n_moves_over;
}

bool is_moving(const struct store *st, uint32_t node)
{
    const struct node_info *info = &st->info[node];

    return !is_move_over(st, info->fetch_no) || !is_move_over(st, info->spill_no) ||
           info->is_writing || info->is_reading;
}

void wait_for_fetch(struct store *st, uint32_t node)
{
    uint64_t no = st->info[node].fetch_no;

    if (!is_move_over(st, no))
        tier_order(device_tier(st), no, TIER_BEFORE_KERNELS);
}

static void end_move(struct store *st, uint64_t no)
{
    struct store_move *m = &st->moves[no % N_MOVES];
    uint32_t entry = st->info[m->node].entry;

    ASSERT(no == st->n_moves_over + 1);
    st->n_moves_over = no;
    switch (m->kind) {
    case MOVE_FETCH:
        replace_unpin(st->policy, CACHE_HOST, entry);
        node_unpin(st, m->node);
        break;
    case MOVE_SPILL:
        replace_unpin(st->policy, CACHE_HOST, entry);
        st->tier[CACHE_HOST].n_filling -= m->n;
        break;
    case MOVE_LOAD:
        node_unpin(st, m->node);
        tier_unstage(st->tier[m->from].t, m->buffers, m->n);
        st->n_load_events++;
        break;
    case MOVE_SAVE: node_unpin(st, m->node); break;
    case MOVE_COPY:
        replace_unpin(st->policy, CACHE_HOST, entry);
        st->tier[CACHE_HOST].n_filling -= m->n;
        node_unpin(st, m->node);
        break;
    }
}

static bool end_oldest_move(struct store *st, bool wait)
{
    struct tier_done done;

    if (wait)
        tier_wait(device_tier(st));
    if (tier_poll(device_tier(st), &done, 1) == 0)
        return false;
    end_move(st, done.tag);
    return true;
}

void complete_moves(struct store *st, bool all)
{
    while (st->n_moves_over < st->n_moves_begun && end_oldest_move(st, all)) {
    }
}

bool begin_move(struct store *st, enum move_kind kind, uint32_t node, const uint32_t *blocks,
                void *const *memory, uint32_t n)
{
    const void *from[NODE_N_BLOCKS_MAX];
    uint64_t no = st->n_moves_begun + 1;
    enum status s;

    if (!tier_can_move(device_tier(st)))
        end_oldest_move(st, true);
    if (kind == MOVE_FETCH || kind == MOVE_LOAD) {
        memcpy(from, memory, n * sizeof *from);
        s = tier_write(device_tier(st), blocks, from, NULL, n, no);
    } else {
        s = tier_read(device_tier(st), blocks, memory, n, kind == MOVE_SPILL, no);
    }
    if (s != OK)
        return false;
    struct store_move *m = &st->moves[no % N_MOVES];
    *m = (struct store_move){.kind = kind, .node = node, .n = n};
    memcpy(m->buffers, memory, n * sizeof *memory);
    st->n_moves_begun = no;
    return true;
}

/* The addresses of host blocks [n]. */
static void host_memory(const struct store *st, const uint32_t *blocks, void **memory, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        memory[i] = tier_memory(host_tier(st), blocks[i]);
}

/* --- leaving the tree --- */

/* Count a node that leaves its last tier although a request waits for it. */
static void count_lost(struct store *st, uint32_t node, enum cache_tier tier)
{
    struct ktree_node look = ktree_look(st->tree, node);

    if (look.tiers == 1u << tier && is_awaited(st, ktree_key_at(st->tree, node, 0)))
        st->n_expected_lost += look.n_blocks;
}

/* A node that leaves memory loses its mark of having been read from a slow tier. */
static void unmark_read(struct store *st, uint32_t node, enum cache_tier tier)
{
    struct node_info *info = &st->info[node];

    if (!info->read_from || (ktree_look(st->tree, node).tiers & ~(1u << CACHE_DISK)) != 1u << tier)
        return;
    st->tier[info->read_from].lost_s += info->read_s;
    info->read_from = 0;
}

/* Take the node out of the tree's tier. When that is its last tier here, the remote nodes below it
 * leave first. True: the node is gone. */
static bool leave_tree(struct store *st, uint32_t node, enum cache_tier tier)
{
    uint32_t entry = st->info[node].entry;

    if (ktree_look(st->tree, node).tiers == 1u << tier)
        drop_remote_below(st, node);
    if (!ktree_leave(st->tree, node, tier))
        return false;
    node_left(st, node, entry);
    return true;
}

static bool leave_memory(struct store *st, uint32_t node, enum cache_tier tier)
{
    st->tier[tier].n_evicted += ktree_look(st->tree, node).n_blocks;
    count_lost(st, node, tier);
    unmark_read(st, node, tier);
    return leave_tree(st, node, tier);
}

static void drop_blocks(struct store *st, uint32_t node, enum cache_tier tier)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, slots[NODE_N_BLOCKS_MAX];

    ktree_slots(st->tree, node, tier, slots, n);
    tier_drop(st->tier[tier].t, slots, n, false);
}

bool leave_host(struct store *st, uint32_t node)
{
    drop_blocks(st, node, CACHE_HOST);
    return leave_memory(st, node, CACHE_HOST);
}

bool evict_from_host(struct store *st)
{
    struct replace_victim victim;

    if (replace_evict(st->policy, CACHE_HOST, &victim) != OK)
        return false;
    (void)leave_host(st, st->node_of[victim.id]);
    return true;
}

bool make_host_room(struct store *st, uint32_t entry, uint32_t n, bool must)
{
    while (tier_n_free(host_tier(st)) < n)
        if ((!must && !replace_admits(st->policy, CACHE_HOST, entry)) || !evict_from_host(st))
            return false;
    return true;
}

uint32_t child_in(const struct store *st, uint32_t node, enum cache_tier tier)
{
    uint32_t child = ktree_first_child(st->tree, node);

    while (child != KTREE_NONE) {
        struct ktree_node look = ktree_look(st->tree, child);
        if (lies_in(&look, tier))
            break;
        child = ktree_next_sibling(st->tree, child);
    }
    return child;
}

/* Remove from the host all nodes below one that leaves memory: a node never lies in a faster tier
 * than its parent. */
static void drop_below(struct store *st, uint32_t node)
{
    uint32_t x = node, child;

    complete_moves(st, true);
    for (;;) {
        while ((child = child_in(st, x, CACHE_HOST)) != KTREE_NONE)
            x = child;
        if (x == node)
            return;
        child = x;
        x = ktree_look(st->tree, x).parent;
        replace_remove(st->policy, CACHE_HOST, st->info[child].entry);
        (void)leave_host(st, child);
    }
}

/* --- leaving the device --- */

/* The host takes over the node's block numbers and gives as many free ones in exchange. */
static void exchange_out(struct store *st, uint32_t node, const uint32_t *slots, uint32_t n)
{
    uint32_t numbers[NODE_N_BLOCKS_MAX];
    bool reserved = tier_reserve(host_tier(st), numbers, n);

    ASSERT(reserved); /* room was made */
    tier_drop(device_tier(st), numbers, n, false);
    ktree_place(st->tree, node, CACHE_HOST, slots);
    replace_insert(st->policy, CACHE_HOST, st->info[node].entry);
}

static bool copy_out(struct store *st, enum move_kind kind, uint32_t node, const uint32_t *slots,
                     uint32_t n)
{
    uint32_t entry = st->info[node].entry, to[NODE_N_BLOCKS_MAX];
    void *memory[NODE_N_BLOCKS_MAX];
    bool reserved = tier_reserve(host_tier(st), to, n);

    ASSERT(reserved); /* room was made */
    host_memory(st, to, memory, n);
    if (!begin_move(st, kind, node, slots, memory, n)) {
        tier_unreserve(host_tier(st), to, n);
        return false;
    }
    st->tier[CACHE_HOST].n_filling += n;
    ktree_place(st->tree, node, CACHE_HOST, to);
    replace_insert(st->policy, CACHE_HOST, entry);
    replace_pin(st->policy, CACHE_HOST, entry); /* until the copy is over */
    st->info[node].spill_no = st->n_moves_begun;
    return true;
}

/* Give the host the node's KV. False: not done, the caller drops the node's device blocks. */
static bool spill(struct store *st, uint32_t node, const uint32_t *slots, uint32_t n)
{
    if (st->n_tiers < 2 ||
        !make_host_room(st, st->info[node].entry, n, child_in(st, node, CACHE_HOST) != KTREE_NONE))
        return false;
    if (!st->copies)
        exchange_out(st, node, slots, n);
    else if (!copy_out(st, MOVE_SPILL, node, slots, n))
        return false;
    st->tier[CACHE_HOST].n_moved_in += n;
    *(st->is_ahead ? &st->n_spilled_ahead : &st->n_spilled_on_demand) += n;
    return true;
}

bool copy_to_host(struct store *st, uint32_t node)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, slots[NODE_N_BLOCKS_MAX];
    bool done = false;

    if (st->n_tiers < 2)
        return false;
    node_pin(st, node); /* until the copy is over */
    wait_for_fetch(st, node);
    ktree_slots(st->tree, node, CACHE_DEVICE, slots, n);
    if (make_host_room(st, st->info[node].entry, n, false))
        done = copy_out(st, MOVE_COPY, node, slots, n);
    if (!done) {
        node_unpin(st, node);
        return false;
    }
    st->tier[CACHE_HOST].n_moved_in += n;
    st->n_spilled_ahead += n;
    return true;
}

/* Take the node off the device; its blocks have gone elsewhere. */
static bool forget_on_device(struct store *st, uint32_t node)
{
    struct node_info *info = &st->info[node];

    if (info->is_prefetched) {
        info->is_prefetched = false;
        st->n_prefetched -= ktree_look(st->tree, node).n_blocks;
    }
    st->n_expected_out += replace_n_expected(st->policy, info->entry) > 0;
    return leave_memory(st, node, CACHE_DEVICE);
}

bool leave_device(struct store *st, uint32_t node)
{
    drop_blocks(st, node, CACHE_DEVICE);
    return forget_on_device(st, node);
}

bool evict_from_device(struct store *st)
{
    struct replace_victim victim;
    uint32_t slots[NODE_N_BLOCKS_MAX];

    if (replace_evict(st->policy, CACHE_DEVICE, &victim) != OK)
        return false;
    uint32_t node = st->node_of[victim.id];
    struct ktree_node look = ktree_look(st->tree, node);
    ktree_slots(st->tree, node, CACHE_DEVICE, slots, look.n_blocks);
    /* The host gets a copy even if the disk has one: it is faster. */
    bool is_on_host = lies_in(&look, CACHE_HOST);
    if (!is_on_host && !victim.is_dead && spill(st, node, slots, look.n_blocks)) {
        (void)forget_on_device(st, node);
        return true;
    }
    if (!is_on_host && victim.has_below)
        drop_below(st, node);
    (void)leave_device(st, node);
    return true;
}

static uint32_t n_cached_blocks(const struct store *st)
{
    struct ktree_stats tree;

    ktree_stats(st->tree, &tree);
    return tree.n_blocks_in[CACHE_DEVICE] - tree.n_blocks_active;
}

uint32_t store_n_available(const struct store *st)
{
    return tier_n_free_soon(device_tier(st)) + n_cached_blocks(st);
}

uint32_t store_n_held(const struct store *st)
{
    return st->held.n + n_session_blocks(st);
}

bool make_device_room(struct store *st, uint32_t n)
{
    if (tier_n_free(device_tier(st)) >= n)
        return true;
    if (n > store_n_available(st))
        return false;
    while (tier_n_free(device_tier(st)) < n)
        if (!tier_reap(device_tier(st)) && !evict_from_device(st))
            return false;
    return true;
}

/* --- leaving the disk --- */

/* The caller has removed the node from the disk's order. */
static bool forget_on_disk(struct store *st, uint32_t node, bool erase)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t slots[NODE_N_BLOCKS_MAX];

    ktree_slots(st->tree, node, CACHE_DISK, slots, look.n_blocks);
    tier_drop(st->tier[CACHE_DISK].t, slots, look.n_blocks, erase);
    count_lost(st, node, CACHE_DISK);
    return leave_tree(st, node, CACHE_DISK);
}

bool leave_disk(struct store *st, uint32_t node, bool erase)
{
    replace_remove(st->policy, order_of(st, CACHE_DISK), st->info[node].entry);
    return forget_on_disk(st, node, erase);
}

static bool evict_from_disk(struct store *st)
{
    struct replace_victim victim;

    if (replace_evict(st->policy, order_of(st, CACHE_DISK), &victim) != OK)
        return false;
    uint32_t node = st->node_of[victim.id];
    st->tier[CACHE_DISK].n_evicted += ktree_look(st->tree, node).n_blocks;
    (void)forget_on_disk(st, node, false);
    return true;
}

bool make_disk_room(struct store *st, uint32_t entry, uint32_t n, uint32_t n_promised)
{
    uint32_t order = order_of(st, CACHE_DISK);

    while (!replace_has_room(st->policy, order, ((uint64_t)n_promised + n) * st->block_bytes))
        if (!replace_admits(st->policy, order, entry) || !evict_from_disk(st))
            return false;
    return true;
}

void drop_disk_below(struct store *st, uint32_t node, bool erase)
{
    uint32_t x, child;

    do {
        x = node;
        while ((child = child_in(st, x, CACHE_DISK)) != KTREE_NONE)
            x = child;
        (void)leave_disk(st, x, erase);
    } while (x != node);
}

void drop_all_of_disk(struct store *st)
{
    struct replace_victim victim;

    while (replace_evict(st->policy, order_of(st, CACHE_DISK), &victim) == OK)
        (void)forget_on_disk(st, st->node_of[victim.id], true);
}

/* --- remote nodes --- */

bool leave_remote(struct store *st, uint32_t node)
{
    drop_blocks(st, node, CACHE_REMOTE);
    st->remote->n_nodes--;
    return leave_tree(st, node, CACHE_REMOTE);
}

void drop_remote(struct store *st, uint32_t node)
{
    uint32_t x, child;

    do {
        x = node;
        while ((child = child_in(st, x, CACHE_REMOTE)) != KTREE_NONE)
            x = child;
        (void)leave_remote(st, x);
    } while (x != node);
}

void drop_remote_below(struct store *st, uint32_t node)
{
    uint32_t child;

    while (st->remote && (child = child_in(st, node, CACHE_REMOTE)) != KTREE_NONE)
        drop_remote(st, child);
}

/* --- fetching from the host --- */

/* A node that is lent from the host gets other block numbers, but its bytes stay where they are. */
static void move_loans(struct store *st, uint32_t node, uint32_t n)
{
    struct node_info *info = &st->info[node];

    for (uint32_t i = 0; i < info->n_lent; i++)
        lent_unpin(st, node);
    info->lent_in = CACHE_DEVICE;
    for (uint32_t i = 0; i < info->n_lent; i++)
        lent_pin(st, node);
    st->remote->n_lent[CACHE_HOST] -= n;
    st->remote->n_lent[CACHE_DEVICE] += n;
}

/* The host gets as many free block numbers for the node's. The node then lies on the device only.
 */
static void exchange_in(struct store *st, uint32_t node, uint32_t n)
{
    uint32_t slots[NODE_N_BLOCKS_MAX], numbers[NODE_N_BLOCKS_MAX];
    bool reserved;

    ktree_slots(st->tree, node, CACHE_HOST, slots, n);
    ktree_place(st->tree, node, CACHE_DEVICE, slots);
    replace_insert(st->policy, CACHE_DEVICE, st->info[node].entry);
    if (st->info[node].n_lent > 0)
        move_loans(st, node, n);
    replace_remove(st->policy, CACHE_HOST, st->info[node].entry);
    bool gone = ktree_leave(st->tree, node, CACHE_HOST);
    ASSERT(!gone);
    reserved = tier_reserve(device_tier(st), numbers, n);
    ASSERT(reserved); /* room was made */
    tier_drop(host_tier(st), numbers, n, false);
}

static bool copy_in(struct store *st, uint32_t node, uint32_t n)
{
    uint32_t from[NODE_N_BLOCKS_MAX], to[NODE_N_BLOCKS_MAX], entry = st->info[node].entry;
    uint64_t spill_no = st->info[node].spill_no;
    void *memory[NODE_N_BLOCKS_MAX];
    bool reserved = tier_reserve(device_tier(st), to, n);

    ASSERT(reserved); /* room was made */
    ktree_slots(st->tree, node, CACHE_HOST, from, n);
    host_memory(st, from, memory, n);
    if (!is_move_over(st, spill_no))
        tier_order(device_tier(st), spill_no, TIER_BEFORE_WRITES);
    if (!begin_move(st, MOVE_FETCH, node, to, memory, n)) {
        tier_unreserve(device_tier(st), to, n);
        return false;
    }
    ktree_place(st->tree, node, CACHE_DEVICE, to);
    replace_insert(st->policy, CACHE_DEVICE, entry);
    node_pin(st, node); /* both pins until the copy is over */
    replace_pin(st->policy, CACHE_HOST, entry);
    st->info[node].fetch_no = st->n_moves_begun;
    return true;
}

bool fetch_node(struct store *st, uint32_t node)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, entry = st->info[node].entry;
    bool done;

    replace_pin(st->policy, CACHE_HOST, entry); /* making room must not evict the node itself */
    done = make_device_room(st, n);
    replace_unpin(st->policy, CACHE_HOST, entry);
    if (!done)
        return false;
    if (st->copies)
        done = copy_in(st, node, n);
    else
        exchange_in(st, node, n);
    if (done) {
        st->tier[CACHE_DEVICE].n_moved_in += n;
        *(st->is_ahead ? &st->n_fetched_ahead : &st->n_fetched_on_demand) += n;
    }
    return done;
}
