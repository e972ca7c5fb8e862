/* kv_store_move.c - between tiers of memory: making room, spilling, fetching, and the copies under
 * way.
 *
 * Ordering, where tiers are different memories. Kernels run on the compute stream, spills on
 * copy-out, fetches on copy-in.
 *   - A copy starts behind what the compute stream has been given so far: it reads what steps
 *     wrote, and does not overwrite what they read.
 *   - A node's blocks that are being spilled are handed out again only with compute and copy-in
 *     ordered behind the spill.
 *   - A fetch is ordered behind the spill that brought the node to the host, and kernels that read
 *     it behind the fetch. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_disk.h"

/* Of one call; and what is due within this time is not spilled ahead. */
#define SPILL_AHEAD_NODES_MAX 16
#define SPILL_AHEAD_MIN_S 0.1

/* --- copies under way --- */

enum status init_transfers(struct store *st)
{
    enum status s = device_event_create(st->config.device, &st->compute_done);

    for (uint32_t i = 0; s == OK && i < N_TRANSFERS; i++)
        s = device_event_create(st->config.device, &st->transfers[i].event);
    return s;
}

void fini_transfers(struct store *st)
{
    device_event_destroy(st->config.device, st->compute_done);
    for (uint32_t i = 0; i < N_TRANSFERS; i++)
        device_event_destroy(st->config.device, st->transfers[i].event);
}

static struct stream *stream_of(const struct store *st, enum transfer_kind kind)
{
    return device_stream(st->config.device, is_inward(kind) ? DEVICE_COPY_IN : DEVICE_COPY_OUT);
}

static struct transfer *transfer_at(struct store *st, uint32_t i)
{
    return &st->transfers[(st->first_transfer + i) % N_TRANSFERS];
}

/* Under way, or NULL. They end in the order of their start. */
static struct transfer *transfer_of(struct store *st, uint64_t no)
{
    uint64_t n_done = st->n_transfers_ever - st->n_transfers;

    return no > n_done ? transfer_at(st, (uint32_t)(no - n_done - 1)) : NULL;
}

bool is_moving(const struct store *st, uint32_t node)
{
    uint64_t n_done = st->n_transfers_ever - st->n_transfers;

    return st->info[node].fetch_no > n_done || st->info[node].spill_no > n_done ||
           st->info[node].is_writing || st->info[node].is_reading;
}

/* What comes on the stream from now on waits for the transfer; should the device not take that, the
 * host does. (A device that does neither is dead, and computes nothing with what is wrong.) */
static void order_behind(struct store *st, const struct transfer *t, struct stream *s)
{
    if (device_event_order(st->config.device, t->event, s) != OK &&
        device_event_wait(st->config.device, t->event) != OK)
        st->n_copies_failed++;
}

void wait_for_fetch(struct store *st, uint32_t node)
{
    const struct transfer *t = transfer_of(st, st->info[node].fetch_no);

    if (t)
        order_behind(st, t, device_stream(st->config.device, DEVICE_COMPUTE));
}

/* The device blocks of a spill, once its copy has read them. */
static void release_blocks(struct store *st, struct transfer *t)
{
    struct store_tier *device = &st->tier[CACHE_DEVICE];

    for (uint32_t i = 0; i < t->n_held; i++)
        tier_push(device, t->device_blocks[i]);
    device->n_in_transfer -= t->n_held;
    t->n_held = 0;
}

static void complete_first(struct store *st)
{
    struct transfer *t = transfer_at(st, 0);
    uint32_t entry = st->info[t->node].entry;

    switch (t->kind) {
    case TRANSFER_FETCH:
        replace_unpin(st->policy, CACHE_HOST, entry);
        node_unpin(st, t->node);
        st->tier[CACHE_DEVICE].n_in_transfer -= t->n_held;
        break;
    case TRANSFER_SPILL:
        replace_unpin(st->policy, CACHE_HOST, entry);
        release_blocks(st, t);
        st->tier[CACHE_HOST].n_in_transfer -= t->n;
        break;
    case TRANSFER_LOAD:
        node_unpin(st, t->node);
        st->tier[CACHE_DEVICE].n_in_transfer -= t->n_held;
        disk_give_slots(st->disk->disk, t->memory_blocks, t->n);
        st->disk->n_load_events++;
        break;
    case TRANSFER_SAVE:
        node_unpin(st, t->node);
        unit_saved(st, t->memory_blocks);
        break;
    }
    st->first_transfer = (st->first_transfer + 1) % N_TRANSFERS;
    st->n_transfers--;
}

void complete_transfers(struct store *st, bool all)
{
    while (st->n_transfers > 0) {
        struct transfer *t = transfer_at(st, 0);
        bool done = true;

        /* An error is the device's end; engine/step.c finds that out by itself. */
        if (all ? device_event_wait(st->config.device, t->event) != OK
                : device_event_query(st->config.device, t->event, &done) != OK)
            st->n_copies_failed++;
        if (!done)
            return;
        complete_first(st);
    }
}

/* Copy n blocks between the device's pool and host memory or staging. */
static enum status copy_blocks(struct store *st, enum transfer_kind kind,
                               const uint32_t *device_blocks, const uint32_t *memory_blocks,
                               uint32_t n)
{
    struct device *d = st->config.device;
    struct stream *s = stream_of(st, kind);
    bool is_staged = kind == TRANSFER_LOAD || kind == TRANSFER_SAVE;
    unsigned char *pool = st->pool.base, *memory = is_staged ? st->disk->staging : st->host;
    size_t bytes = st->block_bytes, stride = is_staged ? st->disk->extent_bytes : bytes;
    enum status status;

    status = device_event_record(d, st->compute_done, device_stream(d, DEVICE_COMPUTE));
    if (status == OK)
        status = device_event_order(d, st->compute_done, s);
    for (uint32_t i = 0; status == OK && i < n; i++) {
        unsigned char *device = pool + device_blocks[i] * bytes;
        unsigned char *host = memory + memory_blocks[i] * stride;
        status = is_inward(kind) ? device_upload_async(d, s, device, host, bytes)
                                 : device_download_async(d, s, host, device, bytes);
    }
    return status;
}

enum status start_transfer(struct store *st, enum transfer_kind kind, uint32_t node,
                           const uint32_t *device_blocks, const uint32_t *memory_blocks, uint32_t n)
{
    struct transfer *t;
    enum status s;

    if (st->n_transfers == N_TRANSFERS) { /* the ring is full: wait for the oldest */
        if (device_event_wait(st->config.device, transfer_at(st, 0)->event) != OK)
            st->n_copies_failed++;
        complete_first(st);
    }
    s = copy_blocks(st, kind, device_blocks, memory_blocks, n);
    t = transfer_at(st, st->n_transfers);
    if (s == OK)
        s = device_event_record(st->config.device, t->event, stream_of(st, kind));
    if (s != OK) {
        st->n_copies_failed++;
        /* None of it may be under way: the blocks go back. A dead device copies nothing. */
        return device_stream_wait(st->config.device, stream_of(st, kind)) == OK ? s : ERR_INTERNAL;
    }
    t->kind = kind;
    t->node = node;
    t->n = n;
    t->n_held = kind == TRANSFER_SAVE ? 0 : n; /* that one leaves them where they are */
    memcpy(t->device_blocks, device_blocks, n * sizeof *device_blocks);
    memcpy(t->memory_blocks, memory_blocks, n * sizeof *memory_blocks);
    t->no = ++st->n_transfers_ever;
    st->n_transfers++;
    st->tier[CACHE_DEVICE].n_in_transfer += t->n_held;
    return OK;
}

/* --- leaving the host --- */

/* It leaves its last tier, and somebody waits for it. */
static void count_lost(struct store *st, uint32_t node, enum cache_tier tier)
{
    struct ktree_node look = ktree_look(st->tree, node);

    if (look.tiers == 1u << tier && is_awaited(st, ktree_key_at(st->tree, node, 0)))
        st->n_expected_lost += look.n_blocks;
}

/* What was read from disk and leaves memory without having been used was read in vain. */
static void look_gone_to_disk(struct store *st, uint32_t node, enum cache_tier tier)
{
    if ((ktree_look(st->tree, node).tiers & ~(1u << CACHE_DISK)) == 1u << tier)
        st->info[node].from_disk = false;
}

/* It has been taken out of the host's order. */
static void leave_host(struct store *st, uint32_t node)
{
    struct store_tier *host = &st->tier[CACHE_HOST];
    uint32_t n = ktree_look(st->tree, node).n_blocks, slots[NODE_N_BLOCKS_MAX];
    uint32_t entry = st->info[node].entry;

    ktree_slots(st->tree, node, CACHE_HOST, slots, n);
    for (uint32_t i = 0; i < n; i++)
        tier_push(host, slots[i]);
    host->n_evicted += n;
    count_lost(st, node, CACHE_HOST);
    look_gone_to_disk(st, node, CACHE_HOST);
    if (ktree_leave(st->tree, node, CACHE_HOST))
        node_left(st, node, entry);
}

static bool evict_from_host(struct store *st)
{
    struct replace_victim victim;

    if (replace_evict(st->policy, CACHE_HOST, &victim) != OK)
        return false;
    leave_host(st, st->node_of[victim.id]);
    return true;
}

bool make_host_room(struct store *st, uint32_t entry, uint32_t n, bool must)
{
    while (st->tier[CACHE_HOST].n_free < n)
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

/* What hangs below the node on the host would be faster than it: it leaves the host. */
static void drop_below(struct store *st, uint32_t node)
{
    uint32_t x = node, child;

    complete_transfers(st, true);
    for (;;) {
        while ((child = child_in(st, x, CACHE_HOST)) != KTREE_NONE)
            x = child;
        if (x == node)
            return;
        child = x;
        x = ktree_look(st->tree, x).parent;
        replace_remove(st->policy, CACHE_HOST, st->info[child].entry);
        leave_host(st, child);
    }
}

/* --- leaving the device --- */

/* The host gets the node's blocks, and gives as many free ones for them. */
static void exchange_out(struct store *st, uint32_t node, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tier_push(&st->tier[CACHE_DEVICE], tier_pop(&st->tier[CACHE_HOST]));
    ktree_place(st->tree, node, CACHE_HOST, slots);
    replace_insert(st->policy, CACHE_HOST, st->info[node].entry);
}

static bool copy_out(struct store *st, uint32_t node, const uint32_t *slots, uint32_t n)
{
    struct store_tier *host = &st->tier[CACHE_HOST];
    uint32_t entry = st->info[node].entry, to[NODE_N_BLOCKS_MAX];

    for (uint32_t i = 0; i < n; i++)
        to[i] = tier_pop(host);
    if (start_transfer(st, TRANSFER_SPILL, node, slots, to, n) != OK) {
        for (uint32_t i = n; i-- > 0;)
            tier_push(host, to[i]);
        return false;
    }
    host->n_in_transfer += n;
    ktree_place(st->tree, node, CACHE_HOST, to);
    replace_insert(st->policy, CACHE_HOST, entry);
    replace_pin(st->policy, CACHE_HOST, entry); /* until the copy is done */
    st->info[node].spill_no = st->n_transfers_ever;
    return true;
}

/* The node's KV goes to the host. False: it does not; the caller frees its blocks. */
static bool spill(struct store *st, uint32_t node, const uint32_t *slots, uint32_t n)
{
    if (st->n_tiers < 2 ||
        !make_host_room(st, st->info[node].entry, n, child_in(st, node, CACHE_HOST) != KTREE_NONE))
        return false;
    if (st->copies) {
        if (!copy_out(st, node, slots, n))
            return false;
    } else {
        exchange_out(st, node, slots, n);
    }
    st->tier[CACHE_HOST].n_moved_in += n;
    *(st->is_ahead ? &st->n_spilled_ahead : &st->n_spilled_on_demand) += n;
    return true;
}

/* It has been taken out of the device's order; where its blocks go is the caller's. */
static void forget_on_device(struct store *st, uint32_t node)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, entry = st->info[node].entry;

    if (st->info[node].is_prefetched) {
        st->info[node].is_prefetched = false;
        st->n_prefetched -= n;
    }
    st->tier[CACHE_DEVICE].n_evicted += n;
    st->n_expected_out += replace_n_expected(st->policy, entry) > 0;
    count_lost(st, node, CACHE_DEVICE);
    look_gone_to_disk(st, node, CACHE_DEVICE);
    if (ktree_leave(st->tree, node, CACHE_DEVICE))
        node_left(st, node, entry);
}

static void leave_device(struct store *st, uint32_t node)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, slots[NODE_N_BLOCKS_MAX];

    ktree_slots(st->tree, node, CACHE_DEVICE, slots, n);
    for (uint32_t i = 0; i < n; i++)
        tier_push(&st->tier[CACHE_DEVICE], slots[i]);
    forget_on_device(st, node);
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
    /* A copy on disk is no reason not to have a faster one. */
    bool is_on_host = lies_in(&look, CACHE_HOST);
    if (!is_on_host && spill(st, node, slots, look.n_blocks)) {
        forget_on_device(st, node);
        return true;
    }
    if (!is_on_host && victim.has_below)
        drop_below(st, node);
    leave_device(st, node);
    return true;
}

uint32_t n_spilling(const struct store *st)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < st->n_transfers; i++) {
        const struct transfer *t = &st->transfers[(st->first_transfer + i) % N_TRANSFERS];
        n += t->kind == TRANSFER_SPILL ? t->n_held : 0;
    }
    return n;
}

/* Whether the next victim is better out before its room is needed. Not what was fetched ahead, nor
 * what is due about now: both would only come back. And nothing that somebody waits for is lost for
 * a reserve: there must be a copy of it, or room for one, or something on the host to give way. */
static bool may_spill_ahead(const struct store *st, uint32_t entry)
{
    uint32_t node = st->node_of[entry], out = replace_peek(st->policy, CACHE_HOST);
    double due_s = replace_due_s(st->policy, entry);

    if (isinf(due_s))
        return true; /* nobody waits for it */
    if (st->info[node].is_prefetched || due_s - store_now_s(st) <= SPILL_AHEAD_MIN_S)
        return false;
    return replace_in_tier(st->policy, CACHE_HOST, entry) ||
           st->tier[CACHE_HOST].n_free >= ktree_look(st->tree, node).n_blocks ||
           (out != REPLACE_NONE && isinf(replace_due_s(st->policy, out)));
}

void store_spill_ahead(struct store *st, uint32_t n_blocks)
{
    uint32_t entry;

    if (!store_prefetches(st))
        return;
    st->n_reserve = n_blocks;
    st->is_ahead = true;
    for (uint32_t i = 0; i < SPILL_AHEAD_NODES_MAX && st->n_transfers < N_TRANSFERS &&
                         st->tier[CACHE_DEVICE].n_free + n_spilling(st) < n_blocks;
         i++) {
        entry = replace_peek(st->policy, CACHE_DEVICE);
        if (entry == REPLACE_NONE || !may_spill_ahead(st, entry) || !evict_from_device(st))
            break;
    }
    st->is_ahead = false;
}

/* Blocks whose spill is under way can be written behind it. */
static bool reap_spill(struct store *st)
{
    for (uint32_t i = 0; i < st->n_transfers; i++) {
        struct transfer *t = transfer_at(st, i);

        if (t->kind != TRANSFER_SPILL || t->n_held == 0)
            continue;
        order_behind(st, t, device_stream(st->config.device, DEVICE_COMPUTE));
        order_behind(st, t, stream_of(st, TRANSFER_FETCH));
        release_blocks(st, t);
        return true;
    }
    return false;
}

bool make_device_room(struct store *st, uint32_t n)
{
    if (st->tier[CACHE_DEVICE].n_free >= n)
        return true;
    if (n > store_n_available(st))
        return false;
    while (st->tier[CACHE_DEVICE].n_free < n)
        if (!reap_spill(st) && !evict_from_device(st))
            return false;
    return true;
}

static void copy_evicted(const struct store *st, uint64_t out[CACHE_N_TIERS])
{
    for (uint32_t tier = 0; tier < CACHE_N_TIERS; tier++)
        out[tier] = st->tier[tier].n_evicted;
}

/* Nothing had to make room. */
static void restore_evicted(struct store *st, const uint64_t n_evicted[CACHE_N_TIERS])
{
    for (uint32_t tier = 0; tier < CACHE_N_TIERS; tier++)
        st->tier[tier].n_evicted = n_evicted[tier];
}

void store_reset(struct store *st)
{
    uint64_t n_evicted[CACHE_N_TIERS], n_lost = st->n_expected_lost;
    struct replace_victim victim;

    copy_evicted(st, n_evicted);
    complete_transfers(st, true);
    drop_holds(st);
    if (st->disk)
        disk_tier_reset(st);
    while (st->n_tiers > 1 && evict_from_host(st)) {
    }
    while (replace_evict(st->policy, CACHE_DEVICE, &victim) == OK)
        leave_device(st, st->node_of[victim.id]);
    restore_evicted(st, n_evicted);
    st->n_expected_lost = n_lost;
}

/* --- forgetting what was one sequence's --- */

/* It leaves all tiers; it has no child, and nothing of it moves. */
static void forget_node(struct store *st, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);
    uint32_t entry = st->info[node].entry;
    uint64_t n_evicted[CACHE_N_TIERS];

    copy_evicted(st, n_evicted);
    if (lies_in(&look, CACHE_DISK) && leave_disk(st, node, true))
        return;
    if (lies_in(&look, CACHE_DEVICE)) {
        replace_remove(st->policy, CACHE_DEVICE, entry);
        leave_device(st, node);
    }
    if (lies_in(&look, CACHE_HOST)) {
        replace_remove(st->policy, CACHE_HOST, entry);
        leave_host(st, node);
    }
    restore_evicted(st, n_evicted);
}

static bool is_in_use(const struct store *st, uint32_t node)
{
    return is_moving(st, node) || ktree_look(st->tree, node).n_pins > 0;
}

/* The orphan, and those above that have no other child, as far as nothing moves. */
static void forget_upwards(struct store *st, uint32_t node)
{
    while (node != KTREE_ROOT && st->info[node].is_orphan && !is_in_use(st, node) &&
           ktree_look(st->tree, node).n_children == 0) {
        uint32_t parent = ktree_look(st->tree, node).parent;

        forget_node(st, node);
        node = parent;
    }
}

void forget_orphans(struct store *st)
{
    /* What comes behind a node in this order is not above it. */
    for (uint32_t x = KTREE_ROOT, next; st->n_orphans > 0 && x != KTREE_NONE; x = next) {
        next = ktree_next(st->tree, x, KTREE_ROOT);
        forget_upwards(st, x);
    }
}

uint32_t store_forget(struct store *st, const struct kv_key *first)
{
    uint32_t top = ktree_find(st->tree, first), n_blocks = 0;

    if (top == KTREE_NONE)
        return 0;
    for (uint32_t x = top; x != KTREE_NONE; x = ktree_next(st->tree, x, top)) {
        n_blocks += ktree_look(st->tree, x).n_blocks;
        st->n_orphans += !st->info[x].is_orphan;
        st->info[x].is_orphan = true;
    }
    struct ktree_node look = ktree_look(st->tree, top);
    if (lies_in(&look, CACHE_DISK)) { /* at once: the process may end before who uses it does */
        drop_disk_below(st, top, true);
        if (lies_on_disk_only(&look))
            return n_blocks;
    }
    for (uint32_t x = top, next; x != KTREE_NONE; x = next) {
        next = ktree_next(st->tree, x, top); /* not above x, which is all that may go with it */
        forget_upwards(st, x);
    }
    return n_blocks;
}

/* --- coming back --- */

/* The host gets as many free blocks for the node's. It lies on the device only then. */
static void exchange_in(struct store *st, uint32_t node, uint32_t n)
{
    uint32_t slots[NODE_N_BLOCKS_MAX];

    ktree_slots(st->tree, node, CACHE_HOST, slots, n);
    ktree_place(st->tree, node, CACHE_DEVICE, slots);
    replace_insert(st->policy, CACHE_DEVICE, st->info[node].entry);
    replace_remove(st->policy, CACHE_HOST, st->info[node].entry);
    bool gone = ktree_leave(st->tree, node, CACHE_HOST);
    ASSERT(!gone);
    for (uint32_t i = 0; i < n; i++)
        tier_push(&st->tier[CACHE_HOST], tier_pop(&st->tier[CACHE_DEVICE]));
}

static bool copy_in(struct store *st, uint32_t node, uint32_t n)
{
    struct store_tier *device = &st->tier[CACHE_DEVICE];
    uint32_t from[NODE_N_BLOCKS_MAX], to[NODE_N_BLOCKS_MAX];
    uint32_t entry = st->info[node].entry;
    const struct transfer *spill = transfer_of(st, st->info[node].spill_no);

    ktree_slots(st->tree, node, CACHE_HOST, from, n);
    for (uint32_t i = 0; i < n; i++)
        to[i] = tier_pop(device);
    if (spill)
        order_behind(st, spill, stream_of(st, TRANSFER_FETCH));
    if (start_transfer(st, TRANSFER_FETCH, node, to, from, n) != OK) {
        for (uint32_t i = n; i-- > 0;)
            tier_push(device, to[i]);
        return false;
    }
    ktree_place(st->tree, node, CACHE_DEVICE, to);
    replace_insert(st->policy, CACHE_DEVICE, entry);
    node_pin(st, node); /* both until the copy is done */
    replace_pin(st->policy, CACHE_HOST, entry);
    st->info[node].fetch_no = st->n_transfers_ever;
    return true;
}

bool fetch_node(struct store *st, uint32_t node)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks, entry = st->info[node].entry;
    bool done;

    replace_pin(st->policy, CACHE_HOST, entry); /* room is not made of itself */
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
